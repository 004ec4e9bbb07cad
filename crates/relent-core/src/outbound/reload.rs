//! Another policy takes over while callers wait.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{Outbound, later_by};
use crate::cooldown::Cooldown;
use crate::gate::Gate;
use crate::policy::Policy;
use crate::random::{Random, up_to};
use crate::time::{Instant, nanos, share_of};

impl Outbound {
    /// Goes by this policy from now on. What is kept goes on with what it has learnt. A cooldown that runs
    /// is cut to the new longest hint. Whoever waits is woken, to wait by the new rules, and is told so if it
    /// would wait for too long by them.
    ///
    /// While retries are off the gate and the throttle are left as they are, even if this policy has none:
    /// they have no say about new requests, and those who wait there go on as they were promised.
    pub fn set_policy(
        &mut self,
        now: Instant,
        policy: &Policy,
        cooldown: &Cooldown,
        random: &mut impl Random,
    ) {
        // What is over by the old rules is over.
        self.settle(now, cooldown, random);
        match (&mut self.gate, policy.gate()) {
            (Some(gate), Some(config)) => gate.apply(now, config),
            (Some(_), None) if policy.is_off() => {}
            (Some(_), None) => self.remove_gate(),
            (None, _) => self.gate = policy.new_gate(),
        }
        match (&mut self.rate, policy.request_rate()) {
            (Some(rate), Some(config)) => rate.apply(now, config),
            (rate, _) => *rate = policy.new_request_rate().map(Box::new),
        }
        match (&mut self.throttle, policy.throttle()) {
            (Some(throttle), Some(config)) => throttle.apply(config),
            (Some(_), None) if policy.is_off() => {}
            (throttle, _) => *throttle = policy.new_throttle().map(Box::new),
        }
        cooldown.shorten(now, policy.max_hint());
        let end = now.saturating_add(cooldown.left(now));
        self.line.hold_again(|asking, until| {
            // It may be spread behind a cooldown that is over, and was longer.
            let spread = share_of(nanos(policy.max_hint()), asking.spread);
            match until <= later_by(end, spread) {
                true => until,
                false => {
                    let room = asking.last_start.nanos_since(end);
                    later_by(end, up_to(spread.min(room), random))
                }
            }
        });
        self.turn_away_late(now);
        self.changed(now, cooldown, random);
        self.line
            .wake_all(self.gate.iter().flat_map(Gate::all_parked));
    }

    /// Whose slot the request rate puts off too far is told so when it asks.
    fn turn_away_late(&mut self, now: Instant) {
        let mut ahead = 0;
        let queued: Vec<_> = self.line.all_queued().collect();
        for asking in queued {
            match self.too_late(now, ahead, &asking) {
                Some(_) => self.line.pass_over(asking.id),
                None => ahead += 1,
            }
        }
    }

    /// Those whom it has parked ask anew, in its order.
    fn remove_gate(&mut self) {
        if let Some(gate) = self.gate.take() {
            gate.all_parked().for_each(|id| self.line.pass_over(id));
            self.gates = self.gates.wrapping_add(1);
        }
    }
}
