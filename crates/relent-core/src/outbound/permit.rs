//! Permits for single attempts.

use crate::gate::Pass;
use crate::time::Instant;

/// Permit for one attempt, from [`Outbound::ask`](super::Outbound::ask). It ends in exactly one of
/// [`ended`](super::Outbound::ended) and [`cancel`](super::Outbound::cancel), and cannot be copied.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "end it by `ended` or `cancel`, else a closed gate waits for its probe"]
pub struct Permit {
    started: Instant,
    /// Nanoseconds from taking the slot of the rate limit to the start; [`NO_SLOT`] if no slot can be
    /// given back. This keeps a permit at 16 bytes.
    slot_age: u32,
    /// Generation of the circuit breaker that issued it.
    gates: u16,
    gate: AtGate,
    begun: bool,
}

const NO_SLOT: u32 = u32::MAX;

/// Record of the attempt at the circuit breaker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AtGate {
    Unknown,
    Attempt,
    Probe,
}

impl Permit {
    pub(super) fn new(now: Instant, paced: bool, pass: Option<Pass>, gates: u16) -> Self {
        Self {
            started: now,
            slot_age: if paced { 0 } else { NO_SLOT },
            gates,
            gate: match pass {
                None => AtGate::Unknown,
                Some(pass) if pass.is_probe() => AtGate::Probe,
                Some(_) => AtGate::Attempt,
            },
            begun: false,
        }
    }

    /// For an attempt at a [calm](crate::gate::Calm) breaker, which has `begun` or soon will.
    #[inline]
    pub(crate) const fn calm(now: Instant, begun: bool) -> Self {
        Self {
            started: now,
            slot_age: NO_SLOT,
            gates: 0,
            gate: AtGate::Attempt,
            begun,
        }
    }

    /// For a hedge: it holds only a slot, if there is one.
    pub(crate) fn for_hedge(now: Instant, paced: bool) -> Self {
        Self::new(now, paced, None, 0)
    }

    /// Whether the circuit breaker knows of the attempt.
    #[inline]
    pub(crate) const fn is_known_to_gate(&self) -> bool {
        !matches!(self.gate, AtGate::Unknown)
    }

    /// For an attempt that reached the destination without admission: by a redirect from another one.
    pub const fn unasked(started: Instant) -> Self {
        Self {
            started,
            slot_age: NO_SLOT,
            gates: 0,
            gate: AtGate::Attempt,
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
        matches!(self.gate, AtGate::Probe)
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
    pub(super) fn into_parts(self, gates: u16) -> (Option<Instant>, Option<Pass>) {
        let probe = self.is_probe() && self.gates == gates;
        let pass = match self.gate {
            AtGate::Unknown => None,
            AtGate::Attempt | AtGate::Probe => Some(Pass::new(self.started, probe)),
        };
        (self.slot(), pass)
    }
}
