//! The gates of all processes, and when each is next asked whom to let go.

use relent_core::{Budget, Caller, Ended, Gate, Instant, Pass, Policy};

use crate::stream::Stream;

pub(crate) struct Gates {
    gates: Vec<Gated>,
    random: Stream,
}

struct Gated {
    gate: Gate,
    /// The next time it is asked; [`u64::MAX`] for never.
    at: u64,
}

/// What a gate says to a call that would start an attempt.
pub(crate) enum Entry {
    /// Go; with a pass, if there is a gate.
    Go(Option<Pass>),
    Parked,
}

impl Gates {
    /// As many as there are, if the policy has any.
    pub(crate) fn new(policy: &Policy, count: u32, random: Stream) -> Self {
        let gates = (0..count).filter_map(|_| policy.new_gate());
        Self {
            gates: gates.map(|gate| Gated { gate, at: u64::MAX }).collect(),
            random,
        }
    }

    fn get(&mut self, number: u32) -> Option<&mut Gated> {
        self.gates.get_mut(number as usize)
    }

    pub(crate) fn on_request(&mut self, number: u32, now: u64) {
        if let Some(gated) = self.get(number) {
            gated.gate.on_request(Instant::from_nanos(now));
        }
    }

    pub(crate) fn admit(&mut self, number: u32, now: u64, caller: Caller) -> Entry {
        let Some(gated) = self.get(number) else {
            return Entry::Go(None);
        };
        match gated.gate.admit(Instant::from_nanos(now), caller) {
            Some(pass) => Entry::Go(Some(pass)),
            None => Entry::Parked,
        }
    }

    /// Whether now is when the gate is to be asked, or was that before something else happened.
    pub(crate) fn is_time(&mut self, number: u32, now: u64) -> bool {
        match self.get(number) {
            Some(gated) if gated.at == now => {
                gated.at = u64::MAX;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn release(&mut self, number: u32, now: u64) -> Option<(Caller, Pass)> {
        self.get(number)?.gate.release(Instant::from_nanos(now))
    }

    /// When the gate is to be asked, if that is earlier than was thought.
    pub(crate) fn plan(&mut self, number: u32, now: u64) -> Option<u64> {
        let gated = self.get(number)?;
        let at = gated.gate.next_release(Instant::from_nanos(now))?;
        let at = at.as_nanos().max(now);
        (at < gated.at).then(|| {
            gated.at = at;
            at
        })
    }

    pub(crate) fn forget(&mut self, number: u32, caller: &Caller) {
        if let Some(gated) = self.get(number) {
            gated.gate.forget(caller);
        }
    }

    /// An attempt is over; the budget beside the gate learns what the gate makes of it.
    pub(crate) fn on_end(
        &mut self,
        number: u32,
        now: u64,
        pass: Pass,
        ended: Ended,
        budget: Option<&Budget>,
    ) {
        let Some(gated) = self.gates.get_mut(number as usize) else {
            return;
        };
        let now = Instant::from_nanos(now);
        gated.gate.on_end(now, pass, ended, &mut self.random);
        if let Some(budget) = budget {
            budget.widen(gated.gate.ratio(now));
            budget.waive(!gated.gate.is_open());
        }
    }
}
