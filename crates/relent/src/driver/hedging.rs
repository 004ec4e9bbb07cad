//! What a driver does for attempts that run at once.

use std::ops::Deref;
use std::sync::Arc;

use relent_core::{
    Cause, Failure, Hedge, Instant, Leave, Policy, Raced, Racer, Random, StopReason,
};

use super::{Driver, Target};
use crate::clock::Clock;

impl<K, R, P, D> Driver<'_, K, R, P, D>
where
    K: Clock,
    R: Random,
    P: Deref<Target = Policy>,
    D: Target,
{
    /// What hedges the attempts, if the policy hedges: what the destination remembers for it. Without a
    /// destination it is made anew, and knows only this call. `None` if nothing is hedged.
    ///
    /// # Errors
    /// The policy hedges at a percentile, and there is no destination, which would remember how long
    /// successes take: the call is to [give up](Self::on_declined) for
    /// [that reason](StopReason::NoDestination).
    pub fn hedge(&self) -> Result<Option<Arc<Hedge>>, StopReason> {
        let policy = self.policy();
        // A hedge is a retry.
        let config = policy.hedge().filter(|_| policy.max_retries() != Some(0));
        let Some(config) = config else {
            return Ok(None);
        };
        match self.destination() {
            Some(destination) => Ok(destination.hedge(config)),
            None if config.learns() => Err(StopReason::NoDestination),
            None => Ok(policy.new_hedge().map(Arc::new)),
        }
    }

    /// The attempt starts that has leave, and hedges may join it.
    pub fn begin_race(&mut self, hedge: &Hedge, leave: Leave) -> Racer {
        self.call.begin_race(&mut self.environment, hedge, leave)
    }

    /// When the next hedge is to join, unless the race is over before; `None` if there is none.
    #[must_use]
    pub fn hedge_due(&self) -> Option<Instant> {
        self.call.hedge_due()
    }

    /// A hedge is due: may it join? It is taken from the same budget as a retry, and given back if
    /// the race ends before [`begin_hedge`](Self::begin_hedge). If it may not, no other joins.
    pub fn grant_hedge(&mut self) -> bool {
        self.call.grant_hedge(&mut self.environment)
    }

    /// The hedge that was granted starts.
    pub fn begin_hedge(&mut self) -> Racer {
        self.call.begin_hedge(&mut self.environment)
    }

    /// The hedge that was granted cannot be sent yet. It is given back, and asked for again by
    /// [`grant_hedge`](Self::grant_hedge) when it can.
    pub fn put_off_hedge(&mut self) {
        self.call.put_off_hedge(&mut self.environment);
    }

    /// The hedge that was granted cannot be sent. It is given back, and no other joins.
    pub fn call_off_hedge(&mut self) {
        self.call.call_off_hedge(&mut self.environment);
    }

    /// An attempt of the race succeeded, with what was seen of it, for the trace. The others are to
    /// be dropped, and told to [`on_lost`](Self::on_lost) before.
    pub fn on_race_won(&mut self, hedge: &Hedge, racer: &Racer, seen: Option<Cause>) {
        self.call
            .race_won(&mut self.environment, hedge, racer, seen);
    }

    /// An attempt of the race failed. If the race is over, [`on_failure`](Self::on_failure) with the
    /// failure that decides comes next, after [`on_lost`](Self::on_lost) for those that still run.
    pub fn on_race_failure(&mut self, hedge: &Hedge, racer: &Racer, failure: &Failure) -> Raced {
        self.call
            .race_failed(&mut self.environment, hedge, racer, failure)
    }

    /// The race is over without this attempt, which is dropped.
    pub fn on_lost(&mut self, racer: &Racer) {
        self.call.race_lost(&mut self.environment, racer);
    }
}
