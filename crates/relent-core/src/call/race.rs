//! Hedged requests: an attempt and its hedges, when the next one joins, and which failure decides.

use crate::call::session::Session;
use crate::destination::attempt_outcome::{AttemptOutcome, is_pushback};
use crate::destination::budget::{Budget, Taken};
use crate::destination::hedge::Hedge;
use crate::failure::{Failure, FailureKind};
use crate::hint::Advice;
use crate::policy::Policy;
use crate::time::{Instant, nanos};

/// A race of an attempt and its hedges: a small plain value, beside the [`Session`] that counts and
/// pays for the attempts.
///
/// The first success wins, and the driver drops the others. After a failure while others run:
/// - A permanent failure ends the race.
/// - Otherwise the others continue. If the server pushed back (throttled, overloaded, "do not retry",
///   any delay), no further hedge joins. If not, the next hedge, if there is one, joins immediately and
///   replaces the failed attempt (gRFC A6).
///
/// When the last one has failed, the session decides once for all of them, as after a single failed
/// attempt. The failure with the clearest request to stay away decides, then the one with the longest
/// delay, then the latest.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Failure, HedgeConfig, Instant, Policy, Session};
/// use relent_core::call::{Race, RaceOutcome};
/// use relent_core::destination::Hedge;
///
/// let policy = Policy::STANDARD;
/// let hedge = Hedge::new(&HedgeConfig::after(Duration::from_millis(50)))?;
/// let start = Instant::ORIGIN;
/// let mut session = Session::new(start, true);
/// session.on_attempt();
/// let mut race = Race::new(&hedge, start);
///
/// // 50 ms later there is no response yet.
/// let now = race.due().expect("a hedge may join");
/// assert_eq!(now, start.saturating_add(Duration::from_millis(50)));
/// assert!(session.grant_hedge(policy, now, None));
/// session.on_hedge();
/// race.on_hedge(now);
/// assert_eq!(race.due(), None, "one hedge unless said otherwise");
///
/// // One of the two fails: the other may still succeed.
/// let raced = race.on_failure(&hedge, &mut session, policy, now, &Failure::ambiguous(), None);
/// assert_eq!(raced, RaceOutcome::GoesOn { kept: true });
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Race {
    started: Instant,
    /// Nanoseconds between the attempts; `u64::MAX` if there are no hedges.
    delay: u64,
    due: Instant,
    /// Hedges that may still join.
    left: u32,
    running: u32,
    /// The failure that decides unless a clearer one follows, and when it occurred.
    kept: Option<(Failure, Instant)>,
}

/// Effect of a failure on a [`Race`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RaceOutcome {
    /// Other attempts are running.
    GoesOn {
        /// Whether this failure decides unless a clearer one follows: keep the data that belongs to it.
        kept: bool,
    },
    /// The race is over: report this failure to the session, and drop attempts that still run.
    Over {
        /// The failure that decides.
        failure: Failure,
        /// Whether it is the latest failure; otherwise it is the one that was kept.
        latest: bool,
    },
}

impl Race {
    /// Starts a race with its first attempt at `now`.
    #[must_use]
    pub fn new(hedge: &Hedge, now: Instant) -> Self {
        let delay = hedge.delay().map_or(u64::MAX, nanos);
        let mut race = Self {
            started: now,
            delay,
            due: Instant::MAX,
            left: if delay == u64::MAX {
                0
            } else {
                hedge.max_hedges()
            },
            running: 1,
            kept: None,
        };
        race.schedule_next(now);
        race
    }

    fn schedule_next(&mut self, now: Instant) {
        self.due = Instant::from_nanos(now.as_nanos().saturating_add(self.delay));
    }

    /// When the next hedge joins, unless the race is over before; `None` if there is none.
    #[must_use]
    pub const fn due(&self) -> Option<Instant> {
        if self.left == 0 { None } else { Some(self.due) }
    }

    /// Number of running attempts.
    #[must_use]
    pub const fn running(&self) -> u32 {
        self.running
    }

    /// Records that a hedge joins.
    pub fn on_hedge(&mut self, now: Instant) {
        self.left = self.left.saturating_sub(1);
        self.running = self.running.saturating_add(1);
        self.schedule_next(now);
    }

    /// Ends hedging: a hedge was not granted, or could not be sent.
    pub const fn close(&mut self) {
        self.left = 0;
    }

    /// Records that an attempt succeeded; `taken` is its tokens from the budget. Drop the others.
    pub fn on_success(
        &mut self,
        hedge: &Hedge,
        session: &mut Session,
        now: Instant,
        taken: Taken,
        budget: Option<&Budget>,
    ) {
        self.close();
        hedge.on_success(now.saturating_since(self.started));
        session.on_race_won(taken, budget);
    }

    /// Records that an attempt failed.
    pub fn on_failure(
        &mut self,
        hedge: &Hedge,
        session: &mut Session,
        policy: &Policy,
        now: Instant,
        failure: &Failure,
        budget: Option<&Budget>,
    ) -> RaceOutcome {
        hedge.on_failure(&AttemptOutcome::of(failure));
        self.running = self.running.saturating_sub(1);
        let others = self.running > 0;
        let kept_decides = self
            .kept
            .map(|(kept, at)| Failure {
                hint: kept.hint.later(now.nanos_since(at)),
                ..kept
            })
            .filter(|kept| clarity(kept) > clarity(failure));
        if !others || session.ends_race(policy, failure) {
            self.close();
            session.cancel_hedge(budget);
            let fatal = others;
            return match kept_decides {
                Some(kept) if !fatal => {
                    session.note(policy, failure);
                    RaceOutcome::Over {
                        failure: kept,
                        latest: false,
                    }
                }
                _ => RaceOutcome::Over {
                    failure: *failure,
                    latest: true,
                },
            };
        }
        session.note(policy, failure);
        session.charge_loser(policy, failure, budget);
        if is_pushback(failure) {
            self.close();
            session.cancel_hedge(budget);
        } else {
            self.due = now;
        }
        if kept_decides.is_none() {
            self.kept = Some((*failure, now));
        }
        RaceOutcome::GoesOn {
            kept: kept_decides.is_none(),
        }
    }
}

/// How clearly a failure asks to stay away. Among retryable failures the longest delay decides: with a
/// circuit breaker, nothing else makes the caller wait for it.
const fn clarity(failure: &Failure) -> (u8, u64, bool) {
    let said = match failure.kind {
        _ if matches!(failure.hint.advice, Advice::DoNotRetry) => 3,
        FailureKind::Overloaded => 3,
        FailureKind::Permanent => 2,
        FailureKind::Throttled | FailureKind::Ambiguous | FailureKind::NotProcessed => 1,
    };
    let delay = match failure.hint.delay_nanos() {
        Some(delay) => delay,
        None => 0,
    };
    (said, delay, matches!(failure.kind, FailureKind::Throttled))
}

#[cfg(all(test, not(loom)))]
mod tests;
