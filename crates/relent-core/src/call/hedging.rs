//! Hedging: concurrent attempts of a call.

use super::{Attempt, Call, CallPermit, CallWork, Environment, budget, refundable_budget};
use crate::call::race::{Race, RaceOutcome};
use crate::call::session::decision::Decision;
use crate::call::stop::{Stop, StopReason};
use crate::call::trace::TraceEntry;
use crate::destination::attempt_outcome::AttemptOutcome;
use crate::destination::budget::Taken;
use crate::destination::hedge::Hedge;
use crate::failure::{Cause, Failure};
use crate::time::Instant;

/// One attempt of a race: the data that its call needs when it ends, since others may have started
/// meanwhile. Created by [`Call::begin_race`] and [`Call::begin_hedge`].
#[derive(Clone, Copy, Debug)]
pub struct RaceAttempt {
    attempt: Attempt,
    started: Instant,
    ends: Option<Instant>,
    taken: Taken,
}

impl RaceAttempt {
    /// The attempt, and how long it may run.
    #[must_use]
    pub const fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// The instant at which it is cut off; `None` for never.
    #[must_use]
    pub const fn ends(&self) -> Option<Instant> {
        self.ends
    }
}

impl Call<'_> {
    /// Begins the admitted attempt, which hedges may join.
    pub fn begin_race<E: Environment>(
        &mut self,
        environment: &mut E,
        hedge: &Hedge,
        permit: CallPermit,
    ) -> RaceAttempt {
        let started = permit.use_up();
        let (attempt, ends) = self.begin(environment, CallPermit::given(started));
        self.begin_trace();
        self.work = CallWork::Extras;
        let extras = self.extras.get_or_insert_default();
        extras.begin_race(Race::new(hedge, started));
        RaceAttempt {
            attempt,
            started,
            ends,
            taken: self.session.taken(),
        }
    }

    /// When the next hedge joins, unless the race is over before; `None` if there is none.
    #[must_use]
    pub fn hedge_due(&self) -> Option<Instant> {
        self.extras.as_ref()?.race.as_ref()?.due()
    }

    fn race(&mut self) -> Option<&mut Race> {
        self.extras.as_mut()?.race.as_mut()
    }

    /// Requests a hedge that is due. It is paid from the budget like a retry, and refunded if the race
    /// ends before [`begin_hedge`](Self::begin_hedge). A hedge never waits: if it is not granted now,
    /// no other joins.
    pub fn grant_hedge<E: Environment>(&mut self, environment: &mut E) -> bool {
        self.give_back_hedge_slot(environment);
        let now = self.now(environment);
        let shared = budget(environment);
        let mut granted = now <= self.no_deadline_end(environment)
            && self.session.grant_hedge(environment.policy(), now, shared);
        if granted && let Some(destination) = environment.destination() {
            let permit = destination.try_hedge(now);
            granted = permit.is_some();
            if !granted {
                self.session.cancel_hedge(refundable_budget(environment));
            }
            if let Some(extras) = &mut self.extras {
                extras.hedge = permit;
            }
        }
        if !granted && let Some(race) = self.race() {
            race.close();
        }
        granted
    }

    /// Starts the granted hedge.
    pub fn begin_hedge<E: Environment>(&mut self, environment: &mut E) -> RaceAttempt {
        let now = self.now(environment);
        let (number, taken) = self.session.on_hedge();
        if let Some(extras) = &mut self.extras {
            extras.hedge = None;
            if let Some(race) = &mut extras.race {
                race.on_hedge(now);
            }
        }
        environment.on_hedge();
        environment.on_budget();
        let (attempt, ends) = self.timed(environment, number, now);
        RaceAttempt {
            attempt,
            started: now,
            ends,
            taken,
        }
    }

    /// The granted hedge cannot be sent yet. Refunds it; call [`grant_hedge`](Self::grant_hedge) again
    /// when it can.
    pub fn defer_hedge<E: Environment>(&mut self, environment: &mut E) {
        self.session.cancel_hedge(refundable_budget(environment));
        self.give_back_hedge_slot(environment);
    }

    /// The granted hedge cannot be sent. Refunds it; no other joins.
    pub fn cancel_hedge<E: Environment>(&mut self, environment: &mut E) {
        if let Some(race) = self.race() {
            race.close();
        }
        self.defer_hedge(environment);
    }

    /// Gives back the rate-limit slot of a granted hedge that is not sent now, so that another call can
    /// use it.
    pub(super) fn give_back_hedge_slot<E: Environment>(&mut self, environment: &E) {
        if let Some(extras) = &mut self.extras
            && let Some(permit) = extras.hedge.take()
            && let Some(destination) = environment.destination()
            && destination.has_rate_limit()
        {
            destination.cancel(environment.now(), permit);
        }
    }

    /// An attempt of the race succeeded. `seen` is its result, for the trace. Drop the others, and call
    /// [`race_lost`](Self::race_lost) for each of them before.
    pub fn race_won<E: Environment>(
        &mut self,
        environment: &mut E,
        hedge: &Hedge,
        racer: &RaceAttempt,
        seen: Option<Cause>,
    ) {
        let now = self.now(environment);
        self.defer_hedge(environment);
        if let Some(mut race) = self.extras.as_mut().and_then(|extras| extras.race.take()) {
            let shared = budget(environment);
            race.on_success(hedge, &mut self.session, now, racer.taken, shared);
        }
        self.answered(environment);
        self.record_racer(racer, now, seen, None, None);
    }

    /// An attempt of the race failed. If the race is over, call [`race_lost`](Self::race_lost) for
    /// attempts that still run, then [`failed`](Self::failed) with the deciding failure.
    pub fn race_failed<E: Environment>(
        &mut self,
        environment: &mut E,
        hedge: &Hedge,
        racer: &RaceAttempt,
        failure: &Failure,
    ) -> RaceOutcome {
        let now = self.now(environment);
        let race = self.extras.as_mut().and_then(|extras| extras.race.as_mut());
        let Some(race) = race else {
            // No race has begun, or it is over.
            return RaceOutcome::Over {
                failure: *failure,
                latest: true,
            };
        };
        // A budget that a reload has removed charges nothing.
        let (policy, shared) = (environment.policy(), refundable_budget(environment));
        let raced = race.on_failure(hedge, &mut self.session, policy, now, failure, shared);
        if race.due().is_none() {
            // No hedge joins any more; a granted one is cancelled.
            self.give_back_hedge_slot(environment);
        }
        // The session gets the deciding failure, and counts it unless that was done when it occurred.
        if !matches!(raced, RaceOutcome::Over { latest: true, .. }) {
            environment.on_failure(failure);
            if let Some(destination) = environment.destination()
                && destination.learn(now, racer.started, None, &AttemptOutcome::of(failure))
            {
                environment.on_cooldown();
            }
        }
        match raced {
            RaceOutcome::GoesOn { .. } => {
                self.note_cause(environment.policy(), failure.cause, now);
                self.record_racer(racer, now, Some(failure.cause), Some(*failure), None);
            }
            RaceOutcome::Over { latest, .. } => {
                if let Some(extras) = &mut self.extras {
                    let seen = (!latest).then_some(*failure);
                    extras.race = None;
                    extras.end_race(racer.attempt.number, racer.started, seen);
                }
            }
        }
        raced
    }

    /// The race is over without this attempt, which is dropped.
    pub fn race_lost<E: Environment>(&mut self, environment: &mut E, racer: &RaceAttempt) {
        let now = match &self.extras {
            Some(extras) if extras.trace.is_some() => self.now(environment),
            _ => return,
        };
        let stop = Decision::Stop(Stop::because(StopReason::Cancelled));
        self.record_racer(racer, now, None, None, Some(stop));
    }

    fn record_racer(
        &mut self,
        racer: &RaceAttempt,
        ended: Instant,
        seen: Option<Cause>,
        failure: Option<Failure>,
        decision: Option<Decision>,
    ) {
        if let Some(extras) = &mut self.extras
            && let Some(trace) = &mut extras.trace
        {
            trace.push(TraceEntry {
                attempt: racer.attempt.number,
                started: racer.started,
                ended,
                seen,
                failure,
                decision,
            });
        }
    }
}
