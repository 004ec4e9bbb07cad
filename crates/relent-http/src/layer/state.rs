//! The state of a call between two polls.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use relent::clock::{Clock, Sleeper};
use relent::driver::CallPermit;
use relent::{Attempt, Summary};
use relent_core::destination::Hedge;
use relent_core::{Failure, Instant, Stop};
use tower_service::Service;

use super::attempt::{AttemptExtras, AttemptRequest, RunningAttempt, Sender};
use super::body::ResponseBody;
use super::last_outcome::LastOutcome;
use super::outcome::with;
use super::race::Racing;
use super::readiness::Reserve;
use super::{CallDriver, MapBody};
use crate::replay::{BoxError, ReplayBody};

/// State that few calls need, boxed to keep the others small.
pub(super) struct CallExtras<B, R, K: Clock> {
    pub(super) of_attempts: AttemptExtras<K>,
    /// The hedge that joins slow attempts.
    pub(super) hedge: Option<Arc<Hedge>>,
    /// There is no attempt after the first.
    pub(super) once: bool,
    /// The body of the first attempt, while it is held.
    pub(super) first: Option<ReplayBody<B>>,
    /// The next attempt should use a new connection.
    pub(super) new_connection: bool,
    /// The outcome of the last attempt, until the next one starts.
    pub(super) last: Option<LastOutcome<R>>,
}

impl<B, R, K: Clock> Default for CallExtras<B, R, K> {
    fn default() -> Self {
        Self {
            of_attempts: AttemptExtras::default(),
            hedge: None,
            once: false,
            first: None,
            new_connection: false,
            last: None,
        }
    }
}

/// The time limit of a running attempt.
#[derive(Clone, Copy)]
pub(super) enum AttemptLimit {
    Never,
    /// Ends at this instant; the timer is set only when the attempt has to wait.
    At(Instant, Duration),
    /// The timer is set.
    Timer(Duration),
}

/// The purpose of the timer during a delay.
#[derive(Clone, Copy)]
pub(super) enum TimerUse {
    Nothing,
    Wait,
    /// For the remaining drain after the delay.
    Drain,
}

pin_project! {
    #[project = StateProjection]
    pub(super) enum State<F, B, R, K: Sleeper> {
        Running {
            #[pin]
            attempt: RunningAttempt<F, K>,
            limit: AttemptLimit,
        },
        // Until one of several attempts has succeeded, or all have failed.
        Racing {
            racing: Box<Racing<F, B, R, K>>,
        },
        // Until the delay ends and the last response is drained, which may take longer.
        Waiting {
            // The rest of the delay, and of the time to drain, after the timer has run out.
            left: Duration,
            drain_time: Duration,
            timer: TimerUse,
            failure: Failure,
        },
        // Until destination and service admit the next attempt, or until it is too late.
        Reserving {
            reserve: Reserve,
            failure: Failure,
        },
        // If polled again by mistake, the future must not call the service again.
        Done,
    }
}

impl<F, B, R, K> State<F, B, R, K>
where
    F: Future,
    B: Body<Error: Into<BoxError>>,
    K: Sleeper + Clone,
{
    /// Starts the attempt that the permit allows, with the hedge that may join it.
    #[inline]
    pub(super) fn start<S, M, N>(
        mut sender: Sender<'_, S, K, M, N>,
        driver: &mut CallDriver<K>,
        permit: CallPermit,
        hedge: Option<Arc<Hedge>>,
        request: AttemptRequest<B>,
    ) -> Self
    where
        S: Service<Request<M::Body>, Response = Response<R>, Future = F>,
        M: MapBody<B>,
    {
        if let Some(hedge) = hedge {
            let racing = Racing::begin(hedge, driver, permit, sender, request);
            return Self::Racing { racing };
        }
        let (attempt, limit) = begin(driver, permit);
        let attempt = sender.send(attempt, request);
        Self::Running { attempt, limit }
    }
}

/// Begins an attempt.
#[inline]
fn begin<K: Clock>(driver: &mut CallDriver<K>, permit: CallPermit) -> (Attempt, AttemptLimit) {
    let (attempt, ends) = driver.begin_attempt(permit);
    let limit = match (ends, attempt.limit) {
        (Some(ends), Some(limit)) => AttemptLimit::At(ends, limit),
        _ => AttemptLimit::Never,
    };
    (attempt, limit)
}

/// The summary of a call, with the requests that the service has sent again.
pub(super) fn summary<B, R, K: Clock>(
    driver: &mut CallDriver<K>,
    extras: Option<&CallExtras<B, R, K>>,
    stop: Option<Stop>,
) -> Summary {
    let mut summary = driver.summary(stop);
    let resends = extras.and_then(|extras| extras.of_attempts.resends.as_ref());
    if let Some(resends) = resends.filter(|_| summary.attempts > 0) {
        let attempts = resends.attempts();
        if attempts > summary.attempts {
            driver.on_resends(attempts - summary.attempts);
        }
        summary.attempts = attempts;
    }
    summary
}

/// The result of a call that succeeded.
#[inline]
pub(super) fn answer<B, R, K: Clock>(
    driver: &mut CallDriver<K>,
    extras: Option<&CallExtras<B, R, K>>,
    traced: bool,
    method: Option<&Method>,
    response: Response<R>,
) -> Response<ResponseBody<R>> {
    let response = ResponseBody::under(method, response);
    let is_resent = |extras: &CallExtras<B, R, K>| {
        let resends = extras.of_attempts.resends.as_ref();
        resends.is_some_and(|resends| resends.attempts() > 1)
    };
    if driver.attempts() > 1 || traced || extras.is_some_and(is_resent) {
        return with(summary(driver, extras, None), response);
    }
    response
}
