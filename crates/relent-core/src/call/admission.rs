//! Admission: before each attempt a call checks its time limits and its destination.

use core::mem;
use core::time::Duration;

use super::destination_state::{DestinationSlot, DestinationState, Stage};
use super::queued::Queued;
use super::{Attempt, Call, CallWork, Environment, UNREAD_CLOCK};
use crate::call::decision::{Stop, StopReason};
use crate::destination::attempt_outcome::AttemptOutcome;
use crate::destination::circuit_breaker::AttemptKind;
use crate::destination::outbound::{Admission, AdmissionRequest, BlockedBy, Permit};
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
        /// and for how long at most. `after` can be shorter, since the wait may continue then.
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
            Self::Start(leave) => Some(leave),
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
    /// The clock was not read.
    const WITHOUT_TIME: Self = Self::given(UNREAD_CLOCK);

    #[inline]
    pub(super) const fn given(at: Instant) -> Self {
        Self { at }
    }

    /// When it was issued; [`UNREAD_CLOCK`] if the clock was not read. Consumes it.
    #[inline]
    pub(super) const fn use_up(self) -> Instant {
        self.at
    }
}

impl<L: DestinationSlot> Call<'_, L> {
    /// Requests admission for the next attempt.
    ///
    /// A transport calls it before each attempt, and again after each wait that it returns. The
    /// destination keeps `waker` and wakes it when calling again helps. Without a waker, the call sees
    /// changes only at its next call.
    pub fn next<E: Environment<DestinationSlot = L>>(
        &mut self,
        environment: &mut E,
        waker: Option<&<E::Access as Access>::Waker>,
    ) -> NextStep {
        if self.work == CallWork::Nothing {
            return NextStep::Start(CallPermit::WITHOUT_TIME);
        }
        if !self.needs_no_admission(environment) {
            return self.ask(environment, waker);
        }
        if self.work >= CallWork::Clock {
            return self.start_in_time(environment);
        }
        NextStep::Start(CallPermit::WITHOUT_TIME)
    }

    /// Requests admission and begins in one step, if the call need not wait and the attempt has no time
    /// limit. Returns the attempt number. On `None` try [`begin_immediately`](Self::begin_immediately). It is
    /// cheaper for transports whose attempts mostly succeed immediately.
    #[inline]
    pub fn begin_untimed<E: Environment<DestinationSlot = L>>(
        &mut self,
        environment: &mut E,
    ) -> Option<u32> {
        if self.work != CallWork::Nothing
            && (self.work >= CallWork::Clock
                || !self.is_registered_without_admission(environment)
                    && self.start_while_healthy(environment).is_none()
                    && !self.is_off_at_destination(environment))
        {
            return None;
        }
        let number = self.session.on_attempt();
        environment.on_attempt(number);
        Some(number)
    }

    /// Requests admission and begins in one step, if the call need not wait. Returns the same as
    /// [`begin`](Self::begin); on `None` call [`next`](Self::next).
    #[inline]
    pub fn begin_immediately<E: Environment<DestinationSlot = L>>(
        &mut self,
        environment: &mut E,
    ) -> Option<(Attempt, Option<Instant>)> {
        let now = if self.needs_no_admission(environment) {
            let now = self.now(environment);
            (!self.is_late(environment, now)).then_some(now)?
        } else {
            self.start_while_healthy(environment)?
        };
        let number = self.session.on_attempt();
        environment.on_attempt(number);
        Some(self.begin_timed(environment, number, now))
    }

    /// Whether the next attempt needs no admission at the destination. Registers a new call there.
    #[inline]
    fn needs_no_admission<E: Environment<DestinationSlot = L>>(&mut self, environment: &E) -> bool {
        self.is_registered_without_admission(environment) || self.is_off_at_destination(environment)
    }

    /// Whether the destination needs no admission, and the call has not requested any.
    #[inline]
    fn is_registered_without_admission<E: Environment<DestinationSlot = L>>(
        &mut self,
        environment: &E,
    ) -> bool {
        let (Some(destination), Some(slot)) =
            (environment.destination(), self.destination_state.slot())
        else {
            return true;
        };
        if !destination.needs_no_admission() {
            return false;
        }
        match slot {
            None => {
                let stage = Stage::NotRequired;
                *slot = Some(DestinationState { id: 0, stage });
                destination.count_request();
                environment.on_budget();
                true
            }
            Some(entered) => matches!(entered.stage, Stage::NotRequired),
        }
    }

    /// Whether retries are off, so that no admission is needed. The rate limit applies to first
    /// attempts too.
    #[inline(never)]
    fn is_off_at_destination<E: Environment<DestinationSlot = L>>(
        &mut self,
        environment: &E,
    ) -> bool {
        let is_off = environment.policy().is_off()
            && environment
                .destination()
                .is_some_and(|there| !there.has_rate_limit());
        match self.destination_state.get().map(|entered| &entered.stage) {
            // It has a queue position or a permit there, whatever a reload has changed since.
            Some(Stage::Waiting { .. } | Stage::Permitted(_)) => false,
            None if is_off => {
                self.enter_with_retries_off(environment);
                true
            }
            _ => is_off,
        }
    }

    /// Starts the attempt unless it is too late, for example after a late timer.
    #[inline]
    fn start_in_time<E: Environment<DestinationSlot = L>>(
        &mut self,
        environment: &mut E,
    ) -> NextStep {
        let now = self.now(environment);
        if !self.is_late(environment, now) {
            return NextStep::Start(CallPermit::given(now));
        }
        let reason = self.limit_at(environment, now);
        self.stop_before_attempt(environment, Stop::because(reason))
    }

    #[inline]
    fn ask<E: Environment<DestinationSlot = L>>(
        &mut self,
        environment: &mut E,
        waker: Option<&<E::Access as Access>::Waker>,
    ) -> NextStep {
        let now = self.now(environment);
        if self.permit_while_healthy(environment, now, false, waker) {
            return NextStep::Start(CallPermit::given(now));
        }
        let before = self.blocked_since();
        let answer = self.answer(environment, now, waker);
        let stop = match answer {
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
                let is_new = before.is_none_or(|(before, _)| before != by);
                let queued = is_new.then(|| self.queued(environment, until)).flatten();
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

    /// Starts the attempt immediately if the destination is calm. Returns the time.
    #[inline(never)]
    fn start_while_healthy<E: Environment<DestinationSlot = L>>(
        &mut self,
        environment: &E,
    ) -> Option<Instant> {
        if !environment.destination()?.may_be_healthy() || environment.policy().is_off() {
            return None;
        }
        let now = self.now(environment);
        self.permit_while_healthy(environment, now, true, None)
            .then_some(now)
    }

    /// Permits the attempt without taking the lock, if the destination is calm. `begun`: the attempt
    /// starts with this call.
    #[inline]
    fn permit_while_healthy<E: Environment<DestinationSlot = L>>(
        &mut self,
        environment: &E,
        now: Instant,
        begun: bool,
        waker: Option<&<E::Access as Access>::Waker>,
    ) -> bool {
        let last_start = self.last_start(environment);
        let (Some(destination), Some(slot)) =
            (environment.destination(), self.destination_state.slot())
        else {
            return false;
        };
        if now > last_start || !destination.is_healthy(now) {
            return false;
        }
        let id = match slot {
            None => destination.enter_healthy(waker),
            Some(entered) if matches!(entered.stage, Stage::Idle) && !self.session.is_unpaid() => {
                entered.id
            }
            Some(_) => return false,
        };
        let is_new = slot.is_none();
        let stage = Stage::Permitted(Permit::calm(now, begun));
        *slot = Some(DestinationState { id, stage });
        if is_new {
            environment.on_budget();
        }
        // Reports changes that others have made.
        environment.on_admission(None, None, None);
        true
    }

    /// The last instant at which an attempt may start there.
    #[inline]
    pub(super) fn last_start<E: Environment<DestinationSlot = L>>(
        &self,
        environment: &E,
    ) -> Instant {
        // One nanosecond before the caller's own deadline, so that an attempt has some time left.
        let latest = match environment.answer_by() {
            Instant::MAX => Instant::MAX,
            end => Instant::from_nanos(end.as_nanos().saturating_sub(1)),
        };
        let by_policy = self.session.last_start(environment.policy());
        by_policy.min(latest).min(self.no_deadline_end(environment))
    }

    /// Requests admission at the destination, and records the wait if there is one.
    #[inline]
    fn answer<E: Environment<DestinationSlot = L>>(
        &mut self,
        environment: &E,
        now: Instant,
        waker: Option<&<E::Access as Access>::Waker>,
    ) -> Admission {
        let mut request = self.request(environment);
        let answer = self.admission_from(environment, now, &mut request, waker);
        if let Admission::Wait(_, by) = answer {
            let since = match self.blocked_since() {
                Some((before, since)) if before == by => since,
                _ => now,
            };
            self.set_stage(Stage::Waiting {
                by,
                since,
                answer_by: request.answer_by,
            });
        }
        answer
    }

    /// Requests admission. Assigns the call its id there if it has none.
    #[inline]
    fn admission_from<E: Environment<DestinationSlot = L>>(
        &mut self,
        environment: &E,
        now: Instant,
        request: &mut AdmissionRequest,
        waker: Option<&<E::Access as Access>::Waker>,
    ) -> Admission {
        let overloaded = Admission::Stop(Stop::because(StopReason::Overloaded));
        let (Some(destination), Some(slot)) =
            (environment.destination(), self.destination_state.slot())
        else {
            return overloaded;
        };
        let Some(entered) = slot else {
            let Some(answer) = destination.enter(now, request, waker) else {
                return overloaded;
            };
            let (id, stage) = (request.id, Stage::Idle);
            *slot = Some(DestinationState { id, stage });
            environment.on_budget();
            return with_waker(destination, now, request, answer, waker);
        };
        request.id = entered.id;
        if let Some(mut permit) = entered.stage.take_permit(|_| true) {
            // It has a permit from before.
            if now > request.last_start {
                destination.cancel(now, permit);
                return Admission::TooLate;
            }
            permit.restart(now);
            return Admission::Start(permit);
        }
        match entered.stage {
            Stage::Stopped(reason, at) => Admission::Stop(Stop {
                reason,
                retry_at: Some(at).filter(|at| *at != Instant::MAX),
            }),
            Stage::Waiting { answer_by, .. } => {
                request.answer_by = answer_by;
                destination.admit(now, request, true, waker)
            }
            Stage::NotRequired => {
                let answer = destination.admit_first(now, request, waker);
                entered.id = request.id;
                with_waker(destination, now, request, answer, waker)
            }
            _ => destination.admit(now, request, false, waker),
        }
    }

    /// The deadline of the response, by policy and caller.
    pub(super) fn answer_by<E: Environment<DestinationSlot = L>>(
        &self,
        environment: &E,
    ) -> Instant {
        let deadline = environment.policy().deadline();
        let by_policy = deadline.map(|limit| self.session.started().saturating_add(limit));
        environment
            .answer_by()
            .min(by_policy.unwrap_or(Instant::MAX))
    }

    /// The admission request for its destination, without the id.
    #[inline]
    fn request<E: Environment<DestinationSlot = L>>(&self, environment: &E) -> AdmissionRequest {
        let policy = environment.policy();
        AdmissionRequest {
            id: 0,
            since: self.session.started(),
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
        }
    }

    /// Begins the admitted attempt. Returns it, with the instant at which it is cut off.
    #[inline]
    pub fn begin<E: Environment<DestinationSlot = L>>(
        &mut self,
        environment: &mut E,
        leave: CallPermit,
    ) -> (Attempt, Option<Instant>) {
        let number = self.session.on_attempt();
        environment.on_attempt(number);
        let now = leave.use_up();
        if now != UNREAD_CLOCK {
            if let Some(Some(entered)) = self.destination_state.slot()
                && let Stage::Permitted(permit) = &mut entered.stage
            {
                permit.begin();
            }
            if self.work >= CallWork::Clock {
                return self.begin_timed(environment, number, now);
            }
        }
        (Attempt::unlimited(number), None)
    }

    #[inline]
    fn begin_timed<E: Environment<DestinationSlot = L>>(
        &mut self,
        environment: &E,
        number: u32,
        now: Instant,
    ) -> (Attempt, Option<Instant>) {
        // A first attempt that began with its call need not be recorded before it ends.
        let begins_later = number > 1 || now != self.session.started();
        if self.work == CallWork::Extras && (begins_later || self.extras.is_some()) {
            self.record_begin(number, now);
        }
        self.timed(environment, number, now)
    }

    /// The facts about an attempt that starts now, and the instant at which it is cut off.
    pub(super) fn timed<E: Environment<DestinationSlot = L>>(
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
    pub fn release_permit<E: Environment<DestinationSlot = L>>(
        &mut self,
        environment: &mut E,
        leave: CallPermit,
    ) {
        leave.use_up();
        self.end_stage(environment, &AttemptOutcome::UNKNOWN);
    }

    /// The call reaches its destination with retries off. The circuit breaker counts the request all
    /// the same.
    #[inline(never)]
    fn enter_with_retries_off<E: Environment<DestinationSlot = L>>(&mut self, environment: &E) {
        let now = self.now(environment);
        if let (Some(destination), Some(slot)) =
            (environment.destination(), self.destination_state.slot())
        {
            let (id, stage) = (destination.on_request(now), Stage::Idle);
            *slot = Some(DestinationState { id, stage });
        }
        environment.on_budget();
    }

    /// The call ends before an attempt: returns what was acquired for it, once, and reports it.
    #[inline(never)]
    fn stop_before_attempt<E: Environment<DestinationSlot = L>>(
        &mut self,
        environment: &mut E,
        stop: Stop,
    ) -> NextStep {
        if !mem::replace(&mut self.over, true) {
            self.break_off(environment, None, stop);
        }
        NextStep::Stop(stop)
    }
}

/// For a new call: few have to wait, and only those store a waker.
#[inline]
fn with_waker<A: Access>(
    destination: &Destination<A>,
    now: Instant,
    request: &AdmissionRequest,
    answer: Admission,
    waker: Option<&A::Waker>,
) -> Admission {
    match answer {
        Admission::Wait(..) if waker.is_some() => destination.admit(now, request, true, waker),
        answer => answer,
    }
}
