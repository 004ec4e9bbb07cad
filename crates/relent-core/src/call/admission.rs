//! Admission: before each attempt a call checks its time limits and its destination.

use core::mem;
use core::time::Duration;

use super::destination_state::{DestinationState, Stage};
use super::queued::Queued;
use super::{Attempt, Call, CallWork, Environment};
use crate::call::stop::{Stop, StopReason};
use crate::destination::attempt_outcome::AttemptOutcome;
use crate::destination::circuit_breaker::AttemptKind;
use crate::destination::outbound::{Admission, AdmissionRequest, BlockedBy};
use crate::destination::{Access, Destination};
use crate::time::Instant;

/// Result of [`Call::next`].
#[derive(PartialEq, Eq, Debug)]
pub enum NextStep {
    /// [Begin](Call::begin) the attempt now.
    Start(CallPermit),
    /// Call `next` again when woken, at this time at the latest.
    Wait {
        /// The time from now.
        after: Duration,
        /// The corresponding instant.
        until: Instant,
        /// The reason for the wait.
        by: BlockedBy,
        /// Notice for the caller, once for each control: that the attempt is queued, by which control,
        /// and for how long at most. `after` can be shorter, since the wait may continue then. Another
        /// notice follows if the destination responds for the first time, and the call may wait longer.
        queued: Option<Queued>,
    },
    /// Give up. The call has returned everything that it had acquired.
    Stop(Stop),
}

impl NextStep {
    /// The permit, if the attempt may start.
    #[must_use]
    pub fn permit(self) -> Option<CallPermit> {
        match self {
            Self::Start(permit) => Some(permit),
            _ => None,
        }
    }

    /// The stop, if it is one.
    #[must_use]
    pub const fn stop(&self) -> Option<Stop> {
        match self {
            Self::Stop(stop) => Some(*stop),
            _ => None,
        }
    }
}

/// Permit to begin an attempt immediately: issued by [`Call::next`], consumed by [`Call::begin`]. If
/// the attempt cannot begin after all, call [`Call::release_permit`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "begin the attempt, or step back"]
pub struct CallPermit {
    at: Instant,
}

impl CallPermit {
    #[inline]
    pub(super) const fn given(at: Instant) -> Self {
        Self { at }
    }

    /// When it was issued. Consumes it.
    #[inline]
    pub(super) const fn use_up(self) -> Instant {
        self.at
    }
}

impl Call<'_> {
    /// Requests admission for the next attempt.
    ///
    /// A transport calls it before each attempt, and again after each wait that it returns. The
    /// destination keeps `waker` and wakes it when calling again helps. Without a waker, the call sees
    /// changes only at its next call.
    #[inline]
    pub fn next<E: Environment>(
        &mut self,
        environment: &mut E,
        waker: Option<&<E::Access as Access>::Waker>,
    ) -> NextStep {
        if self.work == CallWork::Nothing {
            return NextStep::Start(CallPermit::given(self.now(environment)));
        }
        self.check_limits(environment, waker)
    }

    /// Checks the limits of the attempt: those of its destination, and those of time.
    #[inline(never)]
    fn check_limits<E: Environment>(
        &mut self,
        environment: &mut E,
        waker: Option<&<E::Access as Access>::Waker>,
    ) -> NextStep {
        if self.needs_admission(environment) {
            return self.request_admission(environment, waker);
        }
        let now = self.now(environment);
        if self.is_late(environment, now) {
            let reason = self.limit_at(environment, now);
            return self.stop_before_attempt(environment, Stop::because(reason));
        }
        NextStep::Start(CallPermit::given(now))
    }

    /// Whether the destination has to admit the next attempt. Counts a new call that it need not admit.
    fn needs_admission<E: Environment>(&mut self, environment: &E) -> bool {
        let Some(destination) = environment.destination() else {
            return false;
        };
        // The rate limit applies to first attempts too.
        let is_off = || environment.policy().is_off() && !destination.has_rate_limit();
        match self
            .destination_state
            .as_ref()
            .map(|entered| &entered.stage)
        {
            None if destination.needs_no_admission() => {
                destination.count_request();
                self.set_stage(Stage::NotRequired);
            }
            None if is_off() => {
                // The circuit breaker counts the request all the same.
                let now = self.now(environment);
                let (id, stage) = (destination.on_request(now), Stage::Idle);
                self.destination_state = Some(DestinationState { id, stage });
            }
            None => return true,
            Some(Stage::NotRequired) if destination.needs_no_admission() => return false,
            // It has a queue position or a permit there, whatever a reload has changed since.
            Some(Stage::Waiting { .. } | Stage::Permitted(_)) => return true,
            Some(_) => return !is_off(),
        }
        environment.on_budget();
        false
    }

    fn request_admission<E: Environment>(
        &mut self,
        environment: &mut E,
        waker: Option<&<E::Access as Access>::Waker>,
    ) -> NextStep {
        let now = self.now(environment);
        let before = self.blocked_since();
        let could_wait_longer = self.is_notice_short();
        let stop = match self.admission(environment, now, waker) {
            Admission::Start(permit) => {
                let learns = environment.destination().is_some_and(Destination::learns);
                // Otherwise only a cooldown applied, and it is over.
                self.set_stage(match learns {
                    true => Stage::Permitted(permit),
                    false => Stage::NotRequired,
                });
                self.report_admission(environment, before, Some(now));
                return NextStep::Start(CallPermit::given(now));
            }
            Admission::Wait(until, by) => {
                self.report_admission(environment, before, Some(now));
                let after = until.saturating_since(now);
                let is_longer = could_wait_longer && !self.is_notice_short();
                let is_new = is_longer || before.is_none_or(|(before, _)| before != by);
                let queued = is_new.then(|| self.queued(environment, now, until));
                let queued = queued.flatten();
                if let Some(queued) = &queued {
                    environment.on_queued(queued);
                }
                return NextStep::Wait {
                    after,
                    until,
                    by,
                    queued,
                };
            }
            Admission::Stop(stop) => stop,
            Admission::TooLate => Stop::because(self.limit_at(environment, now)),
        };
        let retry_at = stop.retry_at.unwrap_or(Instant::MAX);
        self.set_stage(Stage::Stopped(stop.reason, retry_at));
        self.report_admission(environment, before, Some(now));
        self.stop_before_attempt(environment, stop)
    }

    /// The answer of the destination: the only place that asks it for an attempt. Records the wait, if
    /// there is one.
    fn admission<E: Environment>(
        &mut self,
        environment: &E,
        now: Instant,
        waker: Option<&<E::Access as Access>::Waker>,
    ) -> Admission {
        let mut request = self.request(environment);
        let before = self.blocked_since();
        let resets = self.resets_after_wait();
        let Some(destination) = environment.destination() else {
            return Admission::Stop(Stop::because(StopReason::Overloaded));
        };
        let admission = match &mut self.destination_state {
            None => {
                let admission = destination.enter(now, &mut request, false, waker);
                environment.on_budget();
                let (id, stage) = (request.id, Stage::Idle);
                self.destination_state = Some(DestinationState { id, stage });
                admission
            }
            Some(entered) => {
                request.id = entered.id;
                match mem::replace(&mut entered.stage, Stage::Idle) {
                    // It has a permit from before.
                    Stage::Permitted(permit) if now > request.last_start => {
                        destination.cancel(now, permit);
                        Admission::TooLate
                    }
                    Stage::Permitted(mut permit) => {
                        permit.restart(now);
                        Admission::Start(permit)
                    }
                    Stage::Stopped(reason, at) => Admission::Stop(Stop {
                        reason,
                        retry_at: Some(at).filter(|at| *at != Instant::MAX),
                    }),
                    Stage::Waiting { answer_by, .. } => {
                        request.answer_by = answer_by;
                        destination.admit(now, &request, true, waker)
                    }
                    Stage::NotRequired => {
                        let admission = destination.enter(now, &mut request, true, waker);
                        entered.id = request.id;
                        admission
                    }
                    Stage::Idle => destination.admit(now, &request, false, waker),
                }
            }
        };
        match admission {
            Admission::Wait(_, by) => {
                let since = match before {
                    Some((before, since)) if before == by => since,
                    _ => now,
                };
                self.set_stage(Stage::Waiting {
                    by,
                    since,
                    answer_by: request.answer_by,
                    may_wait_longer: self.may_wait_longer(environment),
                    resets,
                });
            }
            Admission::Start(_) if resets => self.session.reset(now),
            _ => {}
        }
        admission
    }

    /// The last instant at which an attempt may start there.
    #[inline]
    pub(super) fn last_start<E: Environment>(&self, environment: &E) -> Instant {
        // One nanosecond before the caller's own deadline, so that an attempt has some time left.
        let latest = match environment.answer_by() {
            Instant::MAX => Instant::MAX,
            end => Instant::from_nanos(end.as_nanos().saturating_sub(1)),
        };
        let by_policy = self.session.last_start(environment.policy());
        by_policy.min(latest).min(self.no_deadline_end(environment))
    }

    /// The deadline of the response, by policy and caller.
    pub(super) fn answer_by<E: Environment>(&self, environment: &E) -> Instant {
        let deadline = environment.policy().deadline();
        let by_policy = deadline.map(|limit| self.session.started().saturating_add(limit));
        environment
            .answer_by()
            .min(by_policy.unwrap_or(Instant::MAX))
    }

    /// The admission request for its destination, without the id.
    #[inline]
    fn request<E: Environment>(&self, environment: &E) -> AdmissionRequest {
        let policy = environment.policy();
        AdmissionRequest {
            id: 0,
            since: self.session.since(),
            last_start: self.last_start(environment),
            answer_by: self.answer_by(environment),
            longest: policy.max_hint(),
            jitter: policy.retry_after_jitter(),
            kind: match self.session.attempts() {
                0 => AttemptKind::First,
                _ if self.session.is_unpaid() => AttemptKind::UnfundedRetry,
                _ => AttemptKind::FundedRetry,
            },
            waits_without_limit: false,
            rate_limit_only: policy.is_off(),
            may_wait: !self.fails_fast,
        }
    }

    /// Begins the admitted attempt. Returns it, with the instant at which it is cut off.
    #[inline]
    pub fn begin<E: Environment>(
        &mut self,
        environment: &mut E,
        permit: CallPermit,
    ) -> (Attempt, Option<Instant>) {
        let number = self.session.on_attempt();
        environment.on_attempt(number);
        let now = permit.use_up();
        if let Some(entered) = &mut self.destination_state
            && let Stage::Permitted(permit) = &mut entered.stage
        {
            permit.begin();
        }
        // A first attempt that began with its call need not be recorded before it ends.
        let begins_later = number > 1 || now != self.session.started();
        if self.work == CallWork::Extras && (begins_later || self.extras.is_some()) {
            self.record_begin(number, now);
        }
        self.timed(environment, number, now)
    }

    /// The facts about an attempt that starts now, and the instant at which it is cut off.
    pub(super) fn timed<E: Environment>(
        &self,
        environment: &E,
        number: u32,
        now: Instant,
    ) -> (Attempt, Option<Instant>) {
        if !environment.policy().needs_time() {
            return (Attempt::unlimited(number), None);
        }
        let limit = self.session.attempt_limit(environment.policy(), now);
        let attempt = Attempt {
            number,
            remaining: self.session.remaining(environment.policy(), now),
            limit,
        };
        (attempt, limit.map(|limit| now.saturating_add(limit)))
    }

    /// Returns the permit of an attempt that cannot start yet for a reason unknown to the destination,
    /// such as a service that is not ready. So others need not wait for it, and no stale permit is
    /// used. Call [`next`](Self::next) again when the attempt can start.
    pub fn release_permit<E: Environment>(&mut self, environment: &mut E, permit: CallPermit) {
        permit.use_up();
        self.end_stage(environment, &AttemptOutcome::UNKNOWN);
    }

    /// The call ends before an attempt: returns what was acquired for it, once, and reports it.
    #[inline(never)]
    fn stop_before_attempt<E: Environment>(&mut self, environment: &mut E, stop: Stop) -> NextStep {
        if !mem::replace(&mut self.over, true) {
            self.break_off(environment, None, stop);
        }
        NextStep::Stop(stop)
    }
}
