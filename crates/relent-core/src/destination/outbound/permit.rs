//! Permits for single attempts.

use crate::destination::circuit_breaker::BreakerPermit;
use crate::time::Instant;

/// Permit for one attempt, from [`Outbound::admit`](super::Outbound::admit). It ends in exactly one of
/// [`end`](super::Outbound::end) and [`cancel`](super::Outbound::cancel), and cannot be copied.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "end it by `end` or `cancel`, else a circuit breaker that is down waits for its probe"]
pub struct Permit {
    started: Instant,
    /// Nanoseconds from taking the slot of the rate limit to the start; [`NO_SLOT`] if no slot can be
    /// given back. This keeps a permit at 16 bytes.
    slot_age: u32,
    /// Generation of the circuit breaker that issued it.
    breaker_generation: u16,
    circuit_breaker: BreakerRecord,
    begun: bool,
}

const NO_SLOT: u32 = u32::MAX;

/// Record of the attempt at the circuit breaker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BreakerRecord {
    Unknown,
    Attempt,
    Probe,
}

impl Permit {
    pub(super) fn new(
        now: Instant,
        paced: bool,
        permit: Option<BreakerPermit>,
        breaker_generation: u16,
    ) -> Self {
        Self {
            started: now,
            slot_age: if paced { 0 } else { NO_SLOT },
            breaker_generation,
            circuit_breaker: match permit {
                None => BreakerRecord::Unknown,
                Some(permit) if permit.is_probe() => BreakerRecord::Probe,
                Some(_) => BreakerRecord::Attempt,
            },
            begun: false,
        }
    }

    /// For an attempt at a healthy destination.
    #[inline]
    pub(crate) const fn healthy(now: Instant) -> Self {
        Self {
            started: now,
            slot_age: NO_SLOT,
            breaker_generation: 0,
            circuit_breaker: BreakerRecord::Attempt,
            begun: false,
        }
    }

    /// For a hedge: it holds only a slot, if there is one.
    pub(crate) fn for_hedge(now: Instant, paced: bool) -> Self {
        Self::new(now, paced, None, 0)
    }

    /// Whether the circuit breaker knows of the attempt.
    #[inline]
    pub(crate) const fn is_known_to_breaker(&self) -> bool {
        !matches!(self.circuit_breaker, BreakerRecord::Unknown)
    }

    /// For an attempt that reached the destination without admission: by a redirect from another one.
    pub const fn for_redirect(started: Instant) -> Self {
        Self {
            started,
            slot_age: NO_SLOT,
            breaker_generation: 0,
            circuit_breaker: BreakerRecord::Attempt,
            begun: true,
        }
    }

    /// When the attempt starts.
    #[must_use]
    pub const fn started(&self) -> Instant {
        self.started
    }

    /// Whether the attempt is a probe of a destination that is down.
    #[must_use]
    pub const fn is_probe(&self) -> bool {
        matches!(self.circuit_breaker, BreakerRecord::Probe)
    }

    /// Records that the attempt has started, for drivers that need it.
    pub const fn begin(&mut self) {
        self.begun = true;
    }

    /// Whether the attempt has started.
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        self.begun
    }

    /// The attempt starts only now: time spent waiting does not count as latency.
    pub fn restart(&mut self, now: Instant) {
        if let Some(slot) = self.slot() {
            // After seconds others have taken theirs, so it cannot be given back any more.
            self.slot_age = u32::try_from(now.nanos_since(slot)).unwrap_or(NO_SLOT);
        }
        self.started = now;
    }

    fn slot(&self) -> Option<Instant> {
        let age = u64::from(self.slot_age);
        let slot = self.started.as_nanos().saturating_sub(age);
        (self.slot_age != NO_SLOT).then_some(Instant::from_nanos(slot))
    }

    /// The slot and the breaker permit to give back. For another breaker than the one that issued it, a
    /// probe is an ordinary attempt.
    pub(super) fn into_parts(
        self,
        breaker_generation: u16,
    ) -> (Option<Instant>, Option<BreakerPermit>) {
        let probe = self.is_probe() && self.breaker_generation == breaker_generation;
        let permit = match self.circuit_breaker {
            BreakerRecord::Unknown => None,
            BreakerRecord::Attempt | BreakerRecord::Probe => {
                Some(BreakerPermit::new(self.started, probe))
            }
        };
        (self.slot(), permit)
    }
}
