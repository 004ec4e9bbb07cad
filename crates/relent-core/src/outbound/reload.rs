//! Changing the policy while callers wait.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{Outbound, later_by};
use crate::cooldown::Cooldown;
use crate::gate::Gate;
use crate::policy::Policy;
use crate::random::{Random, up_to};
use crate::time::{Instant, nanos, share_of};

impl Outbound {
    /// Changes the policy. Existing parts keep their state. A running cooldown is cut to the new
    /// `max_hint`. All waiting callers are woken to wait by the new rules, or to stop if that takes too
    /// long.
    ///
    /// While retries are off, circuit breaker and throttle stay as they are, even if this policy has
    /// none: they do not apply to new requests, and waiting callers continue by the old rules.
    pub fn set_policy(
        &mut self,
        now: Instant,
        policy: &Policy,
        cooldown: &Cooldown,
        random: &mut impl Random,
    ) {
        // Apply what is due by the old rules first.
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
            // Its jitter may belong to a longer cooldown that is over.
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

    /// Callers whose slot is now too late get the result when they request again.
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

    /// The callers that it has queued request again, in its order.
    fn remove_gate(&mut self) {
        if let Some(gate) = self.gate.take() {
            gate.all_parked().for_each(|id| self.line.pass_over(id));
            self.gates = self.gates.wrapping_add(1);
        }
    }
}
