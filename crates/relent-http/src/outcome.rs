//! Whether a request took effect, according to its response.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{Extensions, HeaderMap, Response, StatusCode};
#[cfg(feature = "attempt")]
use relent_core::StopReason;
use relent_core::{Advice, GrpcCode, Hint};

use crate::grpc;
use crate::headers::X_ENVOY_RATELIMITED;
use crate::hint::{HintOptions, asks_for_delay, hint};
use crate::no_retry_mark::Mark;

/// Whether a request took effect: "did it run?".
///
/// Client and server both use this type: [`classify`](crate::classify) derives the kind of a failure from it, and
/// an idempotency layer decides with it whether to release a key. A handler that knows better than the status inserts
/// an `Outcome` into the extensions of its response. Otherwise the status decides:
///
/// | status | outcome |
/// |---|---|
/// | 401, 403, 409, 421, 425, 429 | [`NotApplied`](Self::NotApplied) |
/// | 408, 503 | [`NotApplied`](Self::NotApplied) if the response itself adds a delay (`Retry-After`) or "do retry", else [`Unknown`](Self::Unknown) |
/// | 413 | [`NotApplied`](Self::NotApplied) if the response itself adds a delay, else [`Final`](Self::Final) |
/// | any failure with `x-envoy-ratelimited` | [`NotApplied`](Self::NotApplied) |
/// | every other below 500 | [`Final`](Self::Final) |
/// | every other from 500 up | [`Unknown`](Self::Unknown) |
///
/// A [`Mark`] on a response reports that a call of the handler was given up. The delay beside it does not show that
/// the handler did nothing, so a 503 with a mark is [`Unknown`](Self::Unknown).
///
/// | over gRPC | outcome |
/// |---|---|
/// | `OK`, `INVALID_ARGUMENT`, `NOT_FOUND`, `ALREADY_EXISTS`, `FAILED_PRECONDITION`, `OUT_OF_RANGE`, `UNIMPLEMENTED` | [`Final`](Self::Final) |
/// | `UNAUTHENTICATED`, `PERMISSION_DENIED`, `RESOURCE_EXHAUSTED`, `ABORTED` | [`NotApplied`](Self::NotApplied) |
/// | any other, and none | [`Unknown`](Self::Unknown) |
///
/// # When a handler must set the outcome
/// The statuses in the `NotApplied` rows mean "nothing was done: come back". A handler must insert its outcome if it
/// may have taken effect before it responds with one of them, such as 503 with `Retry-After`. The same holds for a
/// handler that passes on the rejection of another service. The last response describes the last attempt only: an
/// earlier attempt of its call may have taken effect. It also holds for a timeout layer that responds with a status
/// other than 408, 503 without `Retry-After`, or 504.
///
/// ```
/// use http::{Response, StatusCode, header::RETRY_AFTER};
/// use relent_http::Outcome;
///
/// // Nothing was written yet: the client comes back in a second, and the request runs.
/// let mut response = Response::new("the card network is away");
/// *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
/// response.headers_mut().insert(RETRY_AFTER, 1.into());
/// assert_eq!(Outcome::of(&response), Outcome::NotApplied);
///
/// // The same response after the card was charged: the handler sets the outcome.
/// response.extensions_mut().insert(Outcome::Unknown);
/// assert_eq!(Outcome::of(&response), Outcome::Unknown);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// The response is final: duplicates receive it.
    Final,
    /// The request had no effect, and the next one with its key runs.
    NotApplied,
    /// The request may have had an effect: the next one is a takeover.
    Unknown,
}

impl Outcome {
    /// Reads the outcome of a response from its extensions, else its gRPC status, else its HTTP status.
    ///
    /// If the HTTP status is not 200, the gRPC status alone does not decide: if either is unknown, the outcome is
    /// [`Unknown`](Self::Unknown), and if they differ, [`Final`](Self::Final). The
    /// [response of an own call](Self::in_view_of_call) that the handler passes on can be unknown, too.
    #[must_use]
    pub fn of<B>(response: &Response<B>) -> Self {
        if let Some(outcome) = response.extensions().get() {
            return *outcome;
        }
        Self::of_statuses(response).in_view_of_call(response.extensions())
    }

    /// The outcome of a response with these extensions: a handler may pass on the response of its own call by a client
    /// of Relent. The `Summary` in the extensions may report that an earlier request of that call can have taken effect,
    /// whatever the last response is. The outcome is then [`Unknown`](Self::Unknown).
    #[must_use]
    pub fn in_view_of_call(self, extensions: &Extensions) -> Self {
        #[cfg(feature = "attempt")]
        if let Some(relent::Summary { reason, .. }) = extensions.get() {
            return match (reason, self) {
                (Some(StopReason::OutcomeUnknown), _)
                | (Some(StopReason::NotRepeatable), Self::NotApplied) => Self::Unknown,
                _ => self,
            };
        }
        #[cfg(not(feature = "attempt"))]
        let _ = extensions;
        self
    }

    /// The outcome by the gRPC status and the HTTP status.
    fn of_statuses<B>(response: &Response<B>) -> Self {
        let (status, headers) = (response.status(), response.headers());
        match grpc::code(headers).map(Self::of_code) {
            None => Self::of_http(status, headers),
            Some(of_code) if status == StatusCode::OK => of_code,
            Some(of_code) => match (of_code, Self::of_http(status, headers)) {
                (one, other) if one == other => one,
                (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
                _ => Self::Final,
            },
        }
    }

    /// The outcome by HTTP status and headers only, without extensions or a gRPC status.
    #[must_use]
    pub fn of_http(status: StatusCode, headers: &HeaderMap) -> Self {
        let mark = Mark::read(headers);
        let is_failure = status.as_u16() >= 400;
        if is_failure && mark.is_none() && headers.contains_key(X_ENVOY_RATELIMITED) {
            return Self::NotApplied;
        }
        Self::of_status(status, || match mark {
            Some(_) => Hint::NONE,
            None => hint(headers, approximate_now(), &HintOptions::default()),
        })
    }

    /// The outcome of a gRPC call with these trailers.
    #[must_use]
    pub fn of_trailers(trailers: Option<&HeaderMap>) -> Self {
        trailers
            .and_then(grpc::code)
            .map_or(Self::Unknown, Self::of_code)
    }

    /// The outcome by HTTP status and the hint of the response.
    pub(crate) fn of_status(status: StatusCode, hint: impl Fn() -> Hint) -> Self {
        let asks_for_retry = || {
            let hint = hint();
            asks_for_delay(&hint) || hint.advice == Advice::DoRetry
        };
        match status.as_u16() {
            401 | 403 | 409 | 421 | 425 | 429 => Self::NotApplied,
            408 | 503 if asks_for_retry() => Self::NotApplied,
            413 if asks_for_delay(&hint()) => Self::NotApplied,
            // Intermediaries and timeout layers use these after they have forwarded the request.
            408 | 500.. => Self::Unknown,
            _ => Self::Final,
        }
    }

    /// The outcome by gRPC status, given its [number](crate::grpc::code()).
    #[must_use]
    pub fn of_code(code: u16) -> Self {
        match GrpcCode::from_number(code) {
            Some(
                GrpcCode::Ok
                | GrpcCode::InvalidArgument
                | GrpcCode::NotFound
                | GrpcCode::AlreadyExists
                | GrpcCode::FailedPrecondition
                | GrpcCode::OutOfRange
                | GrpcCode::Unimplemented,
            ) => Self::Final,
            Some(
                GrpcCode::Unauthenticated
                | GrpcCode::PermissionDenied
                | GrpcCode::ResourceExhausted
                | GrpcCode::Aborted,
            ) => Self::NotApplied,
            _ => Self::Unknown,
        }
    }
}

/// A fixed time for callers that only need to know whether there is a delay. It only has to be close enough to
/// determine the century of a two-digit year.
pub(crate) fn approximate_now() -> SystemTime {
    const YEARS: u64 = 56;
    UNIX_EPOCH + Duration::from_secs(YEARS * 365 * 24 * 3600)
}

#[cfg(test)]
mod tests {
    use relent_core::FailureKind;

    use super::*;
    use crate::{RequestInfo, classify};

    const REQUESTS: [RequestInfo; 2] = [
        RequestInfo {
            repeatable: false,
            keyed: false,
            conditional: false,
        },
        RequestInfo {
            repeatable: true,
            keyed: true,
            conditional: false,
        },
    ];

    fn response(status: u16, fields: &[(&'static str, &str)]) -> Response<()> {
        let mut response = Response::builder().status(status);
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        response.body(()).unwrap()
    }

    fn kind(response: &Response<()>, request: RequestInfo) -> Option<FailureKind> {
        let (status, headers) = (response.status(), response.headers());
        let options = HintOptions::default();
        classify(status, headers, request, approximate_now(), &options).map(|failure| failure.kind)
    }

    #[test]
    fn server_outcome_and_client_failure_kind_agree() {
        let hints: [&[(&'static str, &str)]; 12] = [
            &[],
            &[("retry-after", "1")],
            &[("retry-after", "0")],
            &[("retry-after", "soon")],
            &[("retry-after", "Sunday, 06-Nov-94 08:49:37 GMT")],
            &[("retry-after-ms", "5")],
            &[("x-should-retry", "true")],
            &[("x-should-retry", "false"), ("retry-after", "1")],
            &[("ratelimit", r#""burst";r=0;t=5"#)],
            &[("x-envoy-ratelimited", "true")],
            &[("relent-mark", "exhausted"), ("retry-after", "1")],
            &[("relent-mark", "overloaded"), ("retry-after", "1")],
        ];
        for status in 100..1000 {
            for fields in hints {
                let response = response(status, fields);
                let outcome = Outcome::of(&response);
                for request in REQUESTS {
                    match kind(&response, request) {
                        Some(FailureKind::NotProcessed | FailureKind::Throttled) => {
                            assert_eq!(outcome, Outcome::NotApplied, "{status} {fields:?}");
                        }
                        Some(FailureKind::Ambiguous) => {
                            assert_eq!(outcome, Outcome::Unknown, "{status} {fields:?}");
                        }
                        Some(FailureKind::Permanent | FailureKind::Overloaded) => {}
                        None => assert_eq!(outcome, Outcome::Final, "{status} {fields:?}"),
                    }
                }
            }
        }
    }

    #[test]
    fn each_status_has_one_outcome() {
        for status in 100..1000 {
            let [alone, with_delay] = [&[][..], &[("retry-after", "1")]]
                .map(|fields| Outcome::of(&response(status, fields)));
            let expected = match status {
                401 | 403 | 409 | 421 | 425 | 429 => [Outcome::NotApplied; 2],
                408 | 503 => [Outcome::Unknown, Outcome::NotApplied],
                413 => [Outcome::Final, Outcome::NotApplied],
                500.. => [Outcome::Unknown; 2],
                _ => [Outcome::Final; 2],
            };
            assert_eq!([alone, with_delay], expected, "{status}");
        }
    }

    #[test]
    fn an_outcome_in_the_extensions_overrides_the_status() {
        for said in [Outcome::Final, Outcome::NotApplied, Outcome::Unknown] {
            for status in [200, 408, 429, 500, 503] {
                let mut response = response(status, &[("retry-after", "1")]);
                response.extensions_mut().insert(said);
                assert_eq!(Outcome::of(&response), said, "{status}");
            }
        }
    }

    #[cfg(feature = "attempt")]
    #[test]
    fn the_last_response_of_a_call_does_not_hide_the_effect_of_an_earlier_request() {
        let passed_on = |status, reason| {
            let mut response = response(status, &[("retry-after", "1")]);
            let reason = Some(reason);
            let summary = relent::Summary {
                reason,
                ..relent::Summary::default()
            };
            response.extensions_mut().insert(summary);
            Outcome::of(&response)
        };
        // A conditional write timed out, and its retry got 412.
        let after_a_timeout = passed_on(412, StopReason::OutcomeUnknown);
        assert_eq!(after_a_timeout, Outcome::Unknown);
        // A POST was redirected to a service that rejected it.
        for status in [429, 503] {
            let redirected = passed_on(status, StopReason::NotRepeatable);
            assert_eq!(redirected, Outcome::Unknown);
            let rejected = passed_on(status, StopReason::RetriesExhausted);
            assert_eq!(rejected, Outcome::NotApplied);
        }
        assert_eq!(passed_on(404, StopReason::Permanent), Outcome::Final);
    }

    #[test]
    fn a_delay_beside_a_mark_does_not_mean_not_applied() {
        for mark in ["exhausted", "overloaded"] {
            for status in [408, 503] {
                let fields = [("relent-mark", mark), ("retry-after", "60")];
                assert_eq!(Outcome::of(&response(status, &fields)), Outcome::Unknown);
            }
        }
    }

    #[test]
    fn a_grpc_status_does_not_hide_an_http_failure() {
        let of = |status, code: &str| Outcome::of(&response(status, &[("grpc-status", code)]));
        // UNAUTHENTICATED, NOT_FOUND and UNAVAILABLE.
        assert_eq!(of(200, "16"), Outcome::NotApplied);
        assert_eq!(of(200, "5"), Outcome::Final);
        assert_eq!(of(200, "14"), Outcome::Unknown);
        assert_eq!(of(401, "16"), Outcome::NotApplied);
        assert_eq!(of(408, "16"), Outcome::Unknown);
        assert_eq!(of(500, "0"), Outcome::Unknown);
        assert_eq!(of(429, "14"), Outcome::Unknown);
        assert_eq!(of(404, "16"), Outcome::Final);
    }
}
