//! The driver's functions for concurrent attempts (hedges).

use std::sync::Arc;

use relent_core::call::{CallPermit, RaceAttempt, RaceOutcome};
use relent_core::destination::Hedge;
use relent_core::{Cause, Failure, Instant, StopReason};

use super::Driver;
use crate::clock::Clock;

impl<K: Clock> Driver<'_, K> {
    /// The hedging state, if the policy hedges. It is the destination's, or without a destination a
    /// new one that knows only this call. `None` if the policy does not hedge.
    ///
    /// # Errors
    /// [`StopReason::NoDestination`] if the policy hedges at a percentile without a destination,
    /// which would record success latencies: [give up](Self::on_retry_abandoned) with this reason.
    pub fn hedge(&self) -> Result<Option<Arc<Hedge>>, StopReason> {
        let policy = self.policy();
        // A hedge is a retry.
        let config = policy.hedge().filter(|_| policy.max_retries() != Some(0));
        let Some(config) = config else {
            return Ok(None);
        };
        match self.destination() {
            Some(destination) => Ok(destination.hedge(config)),
            None if config.uses_latencies() => Err(StopReason::NoDestination),
            None => Ok(policy.new_hedge().map(Arc::new)),
        }
    }

    /// Starts the attempt that the permit allows; hedges may join it.
    pub fn begin_race(&mut self, hedge: &Hedge, permit: CallPermit) -> RaceAttempt {
        self.call.begin_race(&mut self.environment, hedge, permit)
    }

    /// The instant at which the next hedge joins unless the race is over; `None` if there is none.
    #[must_use]
    pub fn hedge_due(&self) -> Option<Instant> {
        self.call.hedge_due()
    }

    /// Requests the hedge that is due. It is paid from the retry budget, and refunded if the race
    /// ends before [`begin_hedge`](Self::begin_hedge). If it is denied, no other hedge joins.
    pub fn grant_hedge(&mut self) -> bool {
        self.call.grant_hedge(&mut self.environment)
    }

    /// Starts the granted hedge.
    pub fn begin_hedge(&mut self) -> RaceAttempt {
        self.call.begin_hedge(&mut self.environment)
    }

    /// Defers the granted hedge, which cannot be sent yet, and refunds it. Request it again with
    /// [`grant_hedge`](Self::grant_hedge) when it can.
    pub fn put_off_hedge(&mut self) {
        self.call.defer_hedge(&mut self.environment);
    }

    /// Cancels the granted hedge, which cannot be sent, and refunds it. No other hedge joins.
    pub fn cancel_hedge(&mut self) {
        self.call.cancel_hedge(&mut self.environment);
    }

    /// Reports that an attempt of the race succeeded, with its status for the trace. Drop the other
    /// attempts and report them with [`on_lost`](Self::on_lost) first.
    pub fn on_race_won(&mut self, hedge: &Hedge, racer: &RaceAttempt, seen: Option<Cause>) {
        self.call
            .race_won(&mut self.environment, hedge, racer, seen);
    }

    /// Reports that an attempt of the race failed. If that ends the race, call
    /// [`on_lost`](Self::on_lost) for the running attempts, and then
    /// [`on_failure`](Self::on_failure) with the deciding failure.
    pub fn on_race_failure(
        &mut self,
        hedge: &Hedge,
        racer: &RaceAttempt,
        failure: &Failure,
    ) -> RaceOutcome {
        self.call
            .race_failed(&mut self.environment, hedge, racer, failure)
    }

    /// Reports that this attempt lost the race and is dropped.
    pub fn on_lost(&mut self, racer: &RaceAttempt) {
        self.call.race_lost(&mut self.environment, racer);
    }
}
