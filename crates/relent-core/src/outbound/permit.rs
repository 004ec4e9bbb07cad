//! Leave to make one attempt.

use crate::gate::Pass;
use crate::time::Instant;

/// Leave to make one attempt, given by [`Outbound::ask`](super::Outbound::ask). It ends in exactly one
/// of [`ended`](super::Outbound::ended) and [`cancel`](super::Outbound::cancel), and cannot be copied.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "end it by `ended` or `cancel`, else a closed gate waits for its probe"]
pub struct Permit {
    started: Instant,
    /// How many nanoseconds before that its slot of the request rate was taken; [`NO_SLOT`] if it has
    /// none that can be given back. So a permit has 16 bytes.
    slot_age: u32,
    /// Which gate it is of.
    gates: u16,
    gate: AtGate,
    begun: bool,
}

const NO_SLOT: u32 = u32::MAX;

/// What the gate knows of it.
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

    /// For an attempt at a gate that is [calm](crate::gate::Calm), which has `begun` or soon will.
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

    /// For a hedge: it is for its slot alone, if it has one.
    pub(crate) fn for_hedge(now: Instant, paced: bool) -> Self {
        Self::new(now, paced, None, 0)
    }

    /// Whether the gate knows of the attempt.
    #[inline]
    pub(crate) const fn is_known_to_gate(&self) -> bool {
        !matches!(self.gate, AtGate::Unknown)
    }

    /// For an attempt that came to the destination without asking there: by a redirect of another.
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

    /// Whether the attempt finds out if a closed destination is up again.
    #[must_use]
    pub const fn is_probe(&self) -> bool {
        matches!(self.gate, AtGate::Probe)
    }

    /// Notes that the attempt has started, for a driver that needs to know it.
    pub const fn begin(&mut self) {
        self.begun = true;
    }

    /// Whether the attempt has started.
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        self.begun
    }

    /// The attempt starts only now: what it waited for since is no time that it took.
    pub fn restart(&mut self, now: Instant) {
        if let Some(slot) = self.slot() {
            // After seconds others have taken theirs, and it cannot be given back any more.
            self.slot_age = u32::try_from(now.nanos_since(slot)).unwrap_or(NO_SLOT);
        }
        self.started = now;
    }

    fn slot(&self) -> Option<Instant> {
        let age = u64::from(self.slot_age);
        let slot = self.started.as_nanos().saturating_sub(age);
        (self.slot_age != NO_SLOT).then_some(Instant::from_nanos(slot))
    }

    /// What there is to give back: the slot, and what the gate gave. To any other gate than the one that
    /// gave it, it is an attempt like any other.
    pub(super) fn into_parts(self, gates: u16) -> (Option<Instant>, Option<Pass>) {
        let probe = self.is_probe() && self.gates == gates;
        let pass = match self.gate {
            AtGate::Unknown => None,
            AtGate::Attempt | AtGate::Probe => Some(Pass::new(self.started, probe)),
        };
        (self.slot(), pass)
    }
}
