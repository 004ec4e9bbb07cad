//! Changing the policy while callers wait.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Outbound;
use crate::destination::circuit_breaker::CircuitBreaker;
use crate::destination::cooldown::Cooldown;
use crate::policy::Policy;
use crate::random::{Random, up_to};
use crate::time::{Instant, nanos, share_of};

impl Outbound {
    /// Changes the policy. Existing parts keep their state. A running cooldown is cut to the new
    /// [`max_cooldown`](Policy::max_cooldown). All waiting callers are woken to wait by the new rules, or
    /// to stop if that takes too long.
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
        match (&mut self.circuit_breaker, policy.circuit_breaker()) {
            (Some(circuit_breaker), Some(config)) => circuit_breaker.apply(now, config),
            (Some(_), None) if policy.is_off() => {}
            (Some(_), None) => self.remove_circuit_breaker(),
            (None, _) => self.circuit_breaker = policy.new_circuit_breaker(),
        }
        match (&mut self.rate, policy.rate_limit()) {
            (Some(rate), Some(config)) => rate.apply(now, config),
            (rate, _) => *rate = policy.new_rate_limit().map(Box::new),
        }
        match (&mut self.throttle, policy.throttle()) {
            (Some(throttle), Some(config)) => throttle.apply(config),
            (Some(_), None) if policy.is_off() => {}
            (throttle, _) => *throttle = policy.new_throttle().map(Box::new),
        }
        cooldown.shorten(now, policy.max_cooldown());
        let end = now.saturating_add(cooldown.left(now));
        self.queue.change_holds(|request, until| {
            // Its jitter may belong to a longer cooldown that is over.
            let jitter = share_of(nanos(policy.max_cooldown()), request.jitter);
            match until <= end.plus_nanos(jitter) {
                true => until,
                false => {
                    let room = request.last_start.nanos_since(end);
                    end.plus_nanos(up_to(jitter.min(room), random))
                }
            }
        });
        self.reject_late(now);
        self.changed(now, cooldown, random);
        self.queue.wake_all(
            self.circuit_breaker
                .iter()
                .flat_map(CircuitBreaker::all_queued),
        );
    }

    /// Callers whose slot is now too late get the result when they request again.
    fn reject_late(&mut self, now: Instant) {
        let mut ahead = 0;
        let queued: Vec<_> = self.queue.all_queued().collect();
        for request in queued {
            match self.too_late(now, ahead, &request) {
                Some(_) => self.queue.skip(request.id),
                None => ahead += 1,
            }
        }
    }

    /// The callers that it has queued request again, in its order.
    fn remove_circuit_breaker(&mut self) {
        if let Some(circuit_breaker) = self.circuit_breaker.take() {
            circuit_breaker
                .all_queued()
                .for_each(|id| self.queue.skip(id));
            self.breaker_generation = self.breaker_generation.wrapping_add(1);
        }
    }
}
