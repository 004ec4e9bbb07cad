//! What a driver does for attempts that run at once.

use std::ops::Deref;

use relent_core::{
    Cause, Decision, Ended, Failure, Hedge, Instant, Policy, Race, Raced, Random, Stop, StopReason,
    Taken, TraceEntry,
};

use super::{Attempt, Driver, Goes, budget};
use crate::clock::Clock;

/// One of the attempts of a race: what its driver has to know when it is over, since others may have
/// started meanwhile. Made by [`Driver::begin_race`] and [`Driver::begin_hedge`].
#[derive(Clone, Copy, Debug)]
pub struct Racer {
    attempt: Attempt,
    started: Instant,
    ends: Option<Instant>,
    taken: Taken,
}

impl Racer {
    /// Which attempt it is, and how long it may run.
    #[must_use]
    pub const fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// When it is cut off; `None` for never.
    #[must_use]
    pub const fn ends(&self) -> Option<Instant> {
        self.ends
    }
}

impl<K, R, P, D> Driver<'_, K, R, P, D>
where
    K: Clock,
    R: Random,
    P: Deref<Target = Policy>,
    D: Goes,
{
    /// An attempt starts that hedges may join.
    pub fn begin_race(&mut self, hedge: &Hedge) -> (Race, Racer) {
        self.counted = false;
        let (attempt, ends) = self.begin_attempt();
        let started = self.now();
        let racer = Racer {
            attempt,
            started,
            ends,
            taken: self.session.taken(),
        };
        (Race::new(hedge, started), racer)
    }

    /// A hedge is due: may it join? It is taken from the same budget as a retry, and given back if
    /// the race ends before [`begin_hedge`](Self::begin_hedge). If it may not, no other joins.
    pub fn grant_hedge(&mut self, race: &mut Race) -> bool {
        let now = self.now();
        let granted = self
            .session
            .grant_hedge(&self.policy, now, budget(&self.to))
            && self.grant_slot(now);
        if !granted {
            race.close();
        }
        granted
    }

    /// A hedge that would have to wait is none. The slot of one that is called off is lost, and the next
    /// comes with time.
    fn grant_slot(&mut self, now: Instant) -> bool {
        let there = self.to.destination();
        let granted = there.is_none_or(|there| there.is_quiet() || there.try_hedge(now));
        if !granted {
            self.session.call_off_hedge(budget(&self.to));
        }
        granted
    }

    /// The hedge that was granted starts.
    pub fn begin_hedge(&mut self, race: &mut Race) -> Racer {
        let now = self.now();
        let (number, taken) = self.session.on_hedge();
        race.on_hedge(now);
        self.observer.on_hedge();
        if let Some(budget) = budget(&self.to) {
            self.observer.on_budget(budget);
        }
        let limit = self.session.attempt_limit(&self.policy, now);
        Racer {
            attempt: Attempt {
                number,
                remaining: self.session.remaining(&self.policy, now),
                limit,
            },
            started: now,
            ends: limit.map(|limit| now.saturating_add(limit)),
            taken,
        }
    }

    /// The hedge that was granted cannot be sent yet. It is given back, and asked for again by
    /// [`grant_hedge`](Self::grant_hedge) when it can.
    pub fn put_off_hedge(&mut self) {
        self.session.call_off_hedge(budget(&self.to));
    }

    /// The hedge that was granted cannot be sent. It is given back, and no other joins.
    pub fn call_off_hedge(&mut self, race: &mut Race) {
        race.close();
        self.session.call_off_hedge(budget(&self.to));
    }

    /// An attempt of the race succeeded, with what was seen of it, for the trace. The others are to
    /// be dropped, and told to [`on_lost`](Self::on_lost) before.
    pub fn on_race_won(
        &mut self,
        race: &mut Race,
        hedge: &Hedge,
        racer: &Racer,
        seen: Option<Cause>,
    ) {
        let now = self.now();
        let shared = budget(&self.to);
        race.on_success(hedge, &mut self.session, now, racer.taken, shared);
        self.end_visit(Ended::Answered);
        self.record_racer(racer, seen, None, None);
    }

    /// An attempt of the race failed. If the race is over, [`on_failure`](Self::on_failure) with the
    /// failure that decides comes next, after [`on_lost`](Self::on_lost) for those that still run.
    pub fn on_race_failure(
        &mut self,
        race: &mut Race,
        hedge: &Hedge,
        racer: &Racer,
        failure: &Failure,
    ) -> Raced {
        let now = self.now();
        let (policy, budget) = (&*self.policy, budget(&self.to));
        let raced = race.on_failure(hedge, &mut self.session, policy, now, failure, budget);
        // The session hears of the one that decides, and counts it unless that was done when it came.
        let decides = matches!(raced, Raced::Over { latest: true, .. });
        self.counted = matches!(raced, Raced::Over { latest: false, .. });
        if !decides {
            self.observer.on_failure(failure);
            if let Some(destination) = self.to.destination()
                && destination.failed(now, racer.started, None, failure)
            {
                self.observer.on_cooldown();
            }
        }
        match raced {
            Raced::GoesOn { .. } => {
                self.record_racer(racer, Some(failure.cause), Some(*failure), None);
            }
            Raced::Over { latest, .. } => {
                if let Some(extras) = &mut *self.extras {
                    extras.attempt = racer.attempt.number;
                    extras.attempt_started = racer.started;
                    extras.seen = (!latest).then_some(*failure);
                }
            }
        }
        raced
    }

    /// The race is over without this attempt, which is dropped.
    pub fn on_lost(&mut self, racer: &Racer) {
        let stop = Stop {
            reason: StopReason::Cancelled,
            retry_at: None,
        };
        self.record_racer(racer, None, None, Some(Decision::Stop(stop)));
    }

    fn record_racer(
        &mut self,
        racer: &Racer,
        seen: Option<Cause>,
        failure: Option<Failure>,
        decision: Option<Decision>,
    ) {
        if self.extras.is_none() {
            return;
        }
        let ended = self.now();
        if let Some(extras) = &mut *self.extras
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
