//! Error responses of a service that rejects a request or failed to serve it.

use std::time::Duration;
#[cfg(feature = "attempt")]
use std::time::SystemTime;

use http::{HeaderMap, Response, StatusCode};
#[cfg(feature = "attempt")]
use relent::Summary;
use relent_core::admission::{Rejected, Shed};
use relent_core::{Advice, GrpcCode, Hint, StopReason};

use crate::no_retry_mark::Mark;
use crate::outcome::Outcome;
#[cfg(feature = "problem")]
use crate::problem::{Problem, QUOTA_EXCEEDED, TEMPORARY_REDUCED_CAPACITY};
use crate::set_hint;

/// Response of a service that rejects a request, or whose own call was given up: the status, the delay, and
/// whether to retry.
///
/// | cause | HTTP | gRPC | mark |
/// |---|---|---|---|
/// | rate limited | 429, with a delay | `RESOURCE_EXHAUSTED` | |
/// | the cost exceeds what the limiter can ever admit | 422, do not retry | `INVALID_ARGUMENT` | |
/// | shed, retry later | 503, with a delay | `UNAVAILABLE` | |
/// | shed, do not retry | 503, do not retry | `UNAVAILABLE` | `overloaded` |
/// | the caller's deadline has passed | 504 | `DEADLINE_EXCEEDED` | |
/// | a call below was given up because time ran out | 504 | `DEADLINE_EXCEEDED` | that of [`Mark::of`] |
/// | … because of overload, the circuit breaker or the retry budget; because it asked for a later retry; because the call was cancelled | 503 | `UNAVAILABLE` | that of [`Mark::of`] |
/// | … because a retry cannot help | 502, do not retry | `INTERNAL` | |
/// | … because the outcome is unknown | 502, do not retry | `UNKNOWN` | |
/// | … because it had no destination (misconfiguration) | 500, do not retry | `INTERNAL` | |
/// | … for any other reason | 502 | `UNAVAILABLE` | that of [`Mark::of`] |
///
/// A delay goes into `Retry-After` and, if it is a ticket, into the fields of [`set_hint`]. After a call that
/// was given up it is the delay that the service below sent. A client that understands the mark does not
/// retry regardless of the delay.
///
/// ```
/// use std::time::Duration;
/// use relent_core::StopReason;
/// use relent_core::admission::{Refusal, Rejected};
/// use relent_http::ErrorResponse;
///
/// // A rejection by an `AdmissionController`.
/// let refusal = Refusal::Ticket(Duration::from_millis(20));
/// let limited = ErrorResponse::rejected(&Rejected::Limited { refusal, limiter: 0 }).into_http();
/// assert_eq!(limited.status(), 429);
/// assert_eq!(limited.headers()["retry-after-ms"], "20");
/// assert_eq!(limited.headers()["retry-after"], "1");
///
/// // A call to a service below that was given up.
/// let stopped = ErrorResponse::stopped(StopReason::RetryLater, Some(Duration::from_secs(60)));
/// let head = stopped.head();
/// assert_eq!(head.status(), 503);
/// assert_eq!(head.headers()["retry-after"], "60");
/// assert_eq!(head.headers()["relent-mark"], "exhausted");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ErrorResponse {
    /// The HTTP status.
    pub status: StatusCode,
    /// The gRPC status.
    pub code: GrpcCode,
    /// The delay until a retry, or "do not retry".
    pub hint: Hint,
    /// The no-retry marker for all layers above.
    pub mark: Option<Mark>,
    /// Whether the request took effect, for an outer idempotency layer; stored in the extensions of the responses.
    /// A rejected request had no effect. After a call to another service the outcome is unknown, unless the handler
    /// knows it and sets it.
    pub outcome: Outcome,
    /// A sentence for people.
    pub detail: &'static str,
}

impl ErrorResponse {
    /// The response to a request that an [`AdmissionController`](relent_core::admission::AdmissionController) has rejected.
    #[must_use]
    pub const fn rejected(rejected: &Rejected) -> Self {
        let (status, code, detail) = match rejected {
            Rejected::Limited { .. } => (
                StatusCode::TOO_MANY_REQUESTS,
                GrpcCode::ResourceExhausted,
                "the rate limit is reached",
            ),
            Rejected::TooCostly { .. } => (
                StatusCode::UNPROCESSABLE_ENTITY,
                GrpcCode::InvalidArgument,
                "the request costs more than the rate limit can ever admit at once",
            ),
            Rejected::Shed(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                GrpcCode::Unavailable,
                "the service is overloaded",
            ),
            Rejected::Expired => (
                StatusCode::GATEWAY_TIMEOUT,
                GrpcCode::DeadlineExceeded,
                "the deadline of the caller has passed",
            ),
        };
        let mark = match rejected {
            Rejected::Shed(Shed {
                advice: Advice::DoNotRetry,
                ..
            }) => Some(Mark::Overloaded),
            _ => None,
        };
        Self {
            status,
            code,
            hint: rejected.hint(),
            mark,
            outcome: Outcome::NotApplied,
            detail,
        }
    }

    /// The response to a request whose own call to a service below was given up for this reason.
    /// `retry_after` is the time left until the service below may be called again, if it sent one.
    #[must_use]
    pub const fn stopped(reason: StopReason, retry_after: Option<Duration>) -> Self {
        let (status, code) = match reason {
            StopReason::Deadline | StopReason::MaxElapsed => {
                (StatusCode::GATEWAY_TIMEOUT, GrpcCode::DeadlineExceeded)
            }
            StopReason::Budget
            | StopReason::CircuitBreaker
            | StopReason::RetryLater
            | StopReason::Overloaded
            | StopReason::Throttle
            | StopReason::Cancelled => (StatusCode::SERVICE_UNAVAILABLE, GrpcCode::Unavailable),
            StopReason::Permanent => (StatusCode::BAD_GATEWAY, GrpcCode::Internal),
            StopReason::OutcomeUnknown => (StatusCode::BAD_GATEWAY, GrpcCode::Unknown),
            // This service is misconfigured.
            StopReason::NoDestination => (StatusCode::INTERNAL_SERVER_ERROR, GrpcCode::Internal),
            StopReason::RetriesExhausted
            | StopReason::NotRepeatable
            | StopReason::NotReplayable
            | StopReason::DoNotRetry => (StatusCode::BAD_GATEWAY, GrpcCode::Unavailable),
        };
        let hint = match (reason, retry_after) {
            // These reasons have no mark, and no status expresses them.
            (StopReason::Permanent | StopReason::OutcomeUnknown | StopReason::NoDestination, _) => {
                Hint::do_not_retry()
            }
            (_, Some(after)) => Hint::after(after),
            (_, None) => Hint::NONE,
        };
        Self {
            status,
            code,
            hint,
            mark: Mark::of(reason),
            outcome: Outcome::Unknown,
            detail: "a service that this one calls has failed",
        }
    }

    /// The response for a failed call, from its attempt summary; `now` is the local time. The summary is that of
    /// [`GaveUp::summary`](relent::GaveUp::summary), or the [`Summary`] of a response. `None` if the call
    /// succeeded.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use relent::{GaveUp, Policy, VirtualClock, blocking};
    /// use relent_http::ErrorResponse;
    ///
    /// let clock = VirtualClock::new();
    /// let gave_up = blocking::retry(Policy::STANDARD, || Err::<(), _>("refused")).clock(&clock).run().unwrap_err();
    /// let response = ErrorResponse::gave_up(gave_up.summary(), SystemTime::now()).expect("it has failed");
    /// assert_eq!(response.status, 502);
    /// ```
    #[cfg(feature = "attempt")]
    #[must_use]
    pub fn gave_up(summary: &Summary, now: SystemTime) -> Option<Self> {
        let until = |at: SystemTime| at.duration_since(now).unwrap_or_default();
        Some(Self::stopped(summary.reason?, summary.retry_at.map(until)))
    }

    /// Writes hint and mark to the headers of a response, replacing existing ones. If this response has no mark,
    /// a mark from below stays. The [outcome](Self::outcome) is not written to headers.
    pub fn set(&self, headers: &mut HeaderMap) {
        set_hint(headers, &self.hint);
        if let Some(mark) = self.mark {
            mark.set(headers);
        }
    }

    /// The head of the response: status, hint, mark and outcome.
    #[must_use]
    pub fn head(&self) -> Response<()> {
        let mut response = Response::new(());
        *response.status_mut() = self.status;
        response.extensions_mut().insert(self.outcome);
        self.set(response.headers_mut());
        response
    }

    /// Builds the problem details, which can be extended. Then [`set`](Self::set) completes the head of
    /// [`Problem::into_response`].
    #[cfg(feature = "problem")]
    #[must_use]
    pub fn problem(&self) -> Problem {
        let problem = Problem::new(self.status).detail(self.detail);
        match (self.status, self.mark) {
            (StatusCode::TOO_MANY_REQUESTS, _) => {
                problem.kind(QUOTA_EXCEEDED, "The quota of requests is used up")
            }
            (StatusCode::SERVICE_UNAVAILABLE, None | Some(Mark::Overloaded)) => problem.kind(
                TEMPORARY_REDUCED_CAPACITY,
                "The service has less capacity than it is asked for",
            ),
            _ => problem,
        }
    }

    /// Builds the whole response, with the problem details as its body.
    #[cfg(feature = "problem")]
    #[must_use]
    pub fn into_http(self) -> Response<String> {
        let mut response = self.problem().into_response();
        self.set(response.headers_mut());
        response.extensions_mut().insert(self.outcome);
        response
    }

    /// Builds the head of a gRPC response without messages: `grpc-status`, the delay as a pushback and as a
    /// `google.rpc.RetryInfo`, and the mark.
    ///
    /// ```
    /// use std::time::Duration;
    /// use relent_core::admission::{Refusal, Rejected};
    /// use relent_http::ErrorResponse;
    ///
    /// let refusal = Refusal::Ticket(Duration::from_millis(20));
    /// let response = ErrorResponse::rejected(&Rejected::Limited { refusal, limiter: 0 }).grpc_head();
    /// assert_eq!(response.status(), 200);
    /// assert_eq!(response.headers()["grpc-status"], "8");
    /// assert_eq!(response.headers()["grpc-retry-pushback-ms"], "20");
    /// assert_eq!(response.headers()["relent-ticket"], "true");
    /// ```
    #[cfg(feature = "grpc")]
    #[must_use]
    pub fn grpc_head(&self) -> Response<()> {
        let mut response = Response::new(());
        response.extensions_mut().insert(self.outcome);
        let headers = response.headers_mut();
        let grpc = http::HeaderValue::from_static("application/grpc");
        headers.insert(crate::headers::CONTENT_TYPE, grpc);
        self.set(headers);
        let status = crate::grpc::Status {
            code: self.code.number(),
            message: self.detail.to_owned(),
            retry_delay: self.hint.delay(),
        };
        status.set(headers);
        // Clients obey a pushback regardless of other fields.
        if self.mark.is_some() || self.hint.advice == Advice::DoNotRetry {
            crate::grpc::set_pushback(headers, None);
        } else if let Some(after) = self.hint.delay() {
            crate::grpc::set_pushback(headers, Some(after));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use relent_core::admission::Refusal;
    use relent_core::{Audience, FailureKind};

    use super::*;
    use crate::{HintOptions, RequestInfo, classify, hint};

    const ALL: [StopReason; 14] = [
        StopReason::RetriesExhausted,
        StopReason::MaxElapsed,
        StopReason::Deadline,
        StopReason::Permanent,
        StopReason::NotRepeatable,
        StopReason::OutcomeUnknown,
        StopReason::NotReplayable,
        StopReason::DoNotRetry,
        StopReason::Budget,
        StopReason::CircuitBreaker,
        StopReason::RetryLater,
        StopReason::Overloaded,
        StopReason::Throttle,
        StopReason::Cancelled,
    ];

    fn read(headers: &HeaderMap) -> Hint {
        hint(headers, UNIX_EPOCH, &HintOptions::default())
    }

    fn shed(advice: Advice) -> Rejected {
        Rejected::Shed(Shed {
            advice,
            after: Duration::from_millis(1500),
        })
    }

    fn limited(refusal: fn(Duration) -> Refusal) -> Rejected {
        let refusal = refusal(Duration::from_millis(1500));
        Rejected::Limited {
            refusal,
            limiter: 0,
        }
    }

    #[test]
    fn a_client_reads_the_hint_of_a_rejection() {
        let whole = Hint::after(Duration::from_secs(2));
        for (rejected, status, delay, audience) in [
            (
                limited(Refusal::Shared),
                429,
                whole.delay(),
                Audience::Shared,
            ),
            (
                limited(Refusal::Ticket),
                429,
                Some(Duration::from_millis(1500)),
                Audience::TicketMillis,
            ),
            (shed(Advice::None), 503, whole.delay(), Audience::Shared),
            (Rejected::Expired, 504, None, Audience::Shared),
        ] {
            let response = ErrorResponse::rejected(&rejected).into_http();
            assert_eq!(response.status(), status);
            let read = read(response.headers());
            assert_eq!(
                (read.delay(), read.audience),
                (delay, audience),
                "{rejected:?}"
            );
            assert_eq!(read.advice, Advice::None);
            assert_eq!(Mark::read(response.headers()), None);
        }
        for (rejected, status) in [
            (Rejected::TooCostly { limiter: 0 }, 422),
            (shed(Advice::DoNotRetry), 503),
        ] {
            let response = ErrorResponse::rejected(&rejected).into_http();
            assert_eq!(response.status(), status);
            assert!(!response.headers().contains_key("retry-after"));
            assert_eq!(read(response.headers()).advice, Advice::DoNotRetry);
        }
    }

    #[test]
    fn a_request_shed_without_retry_is_overloaded_for_the_client() {
        let failure = |rejected: &Rejected| {
            let head = ErrorResponse::rejected(rejected).head();
            let (status, headers) = (head.status(), head.headers());
            let facts = RequestInfo::default();
            classify(status, headers, facts, UNIX_EPOCH, &HintOptions::default())
        };
        let kind = |rejected| failure(&rejected).map(|failure| failure.kind);
        assert_eq!(
            kind(shed(Advice::DoNotRetry)),
            Some(FailureKind::Overloaded)
        );
        assert_eq!(kind(shed(Advice::None)), Some(FailureKind::NotProcessed));
        assert_eq!(kind(limited(Refusal::Ticket)), Some(FailureKind::Throttled));
        assert_eq!(
            kind(Rejected::TooCostly { limiter: 0 }),
            Some(FailureKind::Permanent)
        );
    }

    #[test]
    fn the_response_of_a_given_up_call_has_its_mark_and_delay() {
        let after = Duration::from_millis(59_001);
        for reason in ALL {
            let permanent = matches!(reason, StopReason::Permanent | StopReason::OutcomeUnknown);
            let head = ErrorResponse::stopped(reason, Some(after)).head();
            let (status, headers) = (head.status(), head.headers());
            assert!(status.is_server_error(), "{reason}");
            assert_eq!(Mark::read(headers), Mark::of(reason), "{reason}");
            let time = headers
                .get("retry-after")
                .map(|value| value.to_str().unwrap());
            assert_eq!(time, (!permanent).then_some("60"), "{reason}");
            let options = HintOptions::default();
            let failure = classify(
                status,
                headers,
                RequestInfo::default(),
                UNIX_EPOCH,
                &options,
            );
            let failure = failure.unwrap();
            // A layer above may retry only if the layer below was unable to repeat the call.
            let again =
                failure.kind != FailureKind::Overloaded && failure.hint.advice == Advice::None;
            let left = matches!(reason, StopReason::NotReplayable | StopReason::Cancelled);
            assert_eq!(again, left, "{reason}");
            let silent = ErrorResponse::stopped(reason, None).head();
            assert!(!silent.headers().contains_key("retry-after"), "{reason}");
        }
        let status = |reason| ErrorResponse::stopped(reason, None).status;
        assert_eq!(status(StopReason::Deadline), 504);
        assert_eq!(status(StopReason::CircuitBreaker), 503);
        assert_eq!(status(StopReason::RetriesExhausted), 502);
    }

    #[test]
    fn a_rejection_is_not_applied_and_a_given_up_call_is_unknown() {
        for rejected in [
            Rejected::Expired,
            shed(Advice::None),
            shed(Advice::DoNotRetry),
            limited(Refusal::Shared),
        ] {
            let response = ErrorResponse::rejected(&rejected);
            assert_eq!(Outcome::of(&response.head()), Outcome::NotApplied);
            assert_eq!(Outcome::of(&response.into_http()), Outcome::NotApplied);
        }
        // The handler may have had an effect before its call, even if it passes on a delay.
        for reason in ALL {
            let response = ErrorResponse::stopped(reason, Some(Duration::from_secs(1)));
            assert_eq!(Outcome::of(&response.head()), Outcome::Unknown, "{reason}");
            assert_eq!(
                Outcome::of(&response.into_http()),
                Outcome::Unknown,
                "{reason}"
            );
        }
    }

    #[cfg(feature = "attempt")]
    #[test]
    fn the_delay_of_a_given_up_call_counts_from_now() {
        let now = SystemTime::now();
        let summary = |reason, ahead: Duration| Summary {
            attempts: 1,
            elapsed: Duration::ZERO,
            reason,
            retry_at: Some(now + ahead),
            ..Summary::default()
        };
        let later = summary(Some(StopReason::RetryLater), Duration::from_secs(5));
        let response = ErrorResponse::gave_up(&later, now).unwrap();
        assert_eq!(response.hint.delay(), Some(Duration::from_secs(5)));
        let response = ErrorResponse::gave_up(&later, now + Duration::from_secs(9)).unwrap();
        assert_eq!(response.head().headers()["retry-after"], "1", "never 0");
        assert_eq!(
            ErrorResponse::gave_up(&summary(None, Duration::ZERO), now),
            None
        );
    }

    #[cfg(feature = "grpc")]
    #[test]
    fn a_grpc_client_reads_the_same_rejection() {
        use crate::grpc::{Head, classify_head};

        let failure = |rejected: &Rejected| {
            let head = ErrorResponse::rejected(rejected).grpc_head();
            let options = HintOptions::default();
            match classify_head(head.status(), head.headers(), UNIX_EPOCH, &options) {
                Head::Over(Some(failure)) => failure,
                other => panic!("{other:?} is no failure"),
            }
        };
        let ticket = failure(&limited(Refusal::Ticket));
        assert_eq!(ticket.kind, FailureKind::Throttled);
        assert_eq!(ticket.hint.delay(), Some(Duration::from_millis(1500)));
        assert_eq!(ticket.hint.audience, Audience::TicketMillis);
        let shared = failure(&limited(Refusal::Shared));
        assert_eq!(shared.hint.audience, Audience::Shared);
        assert_eq!(
            failure(&shed(Advice::DoNotRetry)).kind,
            FailureKind::Overloaded
        );
        assert_eq!(failure(&shed(Advice::None)).kind, FailureKind::Ambiguous);
        let costly = failure(&Rejected::TooCostly { limiter: 0 });
        assert_eq!(costly.hint.advice, Advice::DoNotRetry);
    }
}
