//! Whether a request took effect, as its response says it (design rule 2).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, Response, StatusCode};
use relent_core::{Advice, GrpcCode, Hint};

use crate::grpc;
use crate::headers::X_ENVOY_RATELIMITED;
use crate::hint::{HintOptions, asks_for_delay, hint};
use crate::mark::Mark;

/// Whether a request took effect: "did it run?".
///
/// Client and server decide it by this type alone. [`classify`](crate::classify) makes the kind of a failure of it, and
/// an idempotency layer decides by it whether a key is free again. A server says it in the extensions of its response,
/// where it knows better than the status does. Else the status says it:
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
/// A response with a [`Mark`] tells of a call that its handler made and gave up, so its delay does not show that the
/// handler did nothing: a 503 with a mark is [`Unknown`](Self::Unknown).
///
/// | over gRPC | outcome |
/// |---|---|
/// | `OK`, `INVALID_ARGUMENT`, `NOT_FOUND`, `ALREADY_EXISTS`, `FAILED_PRECONDITION`, `OUT_OF_RANGE`, `UNIMPLEMENTED` | [`Final`](Self::Final) |
/// | `UNAUTHENTICATED`, `PERMISSION_DENIED`, `RESOURCE_EXHAUSTED`, `ABORTED` | [`NotApplied`](Self::NotApplied) |
/// | any other, and none | [`Unknown`](Self::Unknown) |
///
/// # What a handler has to say by itself
/// A status of the first rows means "nothing was done: come back". A handler that may have taken effect before it
/// answers so, such as 503 with `Retry-After`, must insert its outcome. So must a handler that hands up the refusal
/// of another service after it has taken effect, and a timeout layer that answers with a status other than 408, 503
/// without `Retry-After`, or 504.
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
/// // The same answer after the card was charged: the handler says so.
/// response.extensions_mut().insert(Outcome::Unknown);
/// assert_eq!(Outcome::of(&response), Outcome::Unknown);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// The answer stands: duplicates get it.
    Final,
    /// The request has had no effect, and the next one with its key runs.
    NotApplied,
    /// It may have had an effect: the next one is a takeover.
    Unknown,
}

impl Outcome {
    /// Of a response: what its extensions say, else its gRPC status, else its HTTP status.
    ///
    /// A gRPC status beside an HTTP status other than 200 is not believed more than that: if either leaves it open, it is
    /// [`Unknown`](Self::Unknown), and if they differ, [`Final`](Self::Final).
    #[must_use]
    pub fn of<B>(response: &Response<B>) -> Self {
        if let Some(outcome) = response.extensions().get() {
            return *outcome;
        }
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

    /// Of a response over plain HTTP, whatever its extensions or a gRPC status say.
    #[must_use]
    pub fn of_http(status: StatusCode, headers: &HeaderMap) -> Self {
        let mark = Mark::read(headers);
        let is_failure = status.as_u16() >= 400;
        if is_failure && mark.is_none() && headers.contains_key(X_ENVOY_RATELIMITED) {
            return Self::NotApplied;
        }
        Self::of_status(status, || match mark {
            Some(_) => Hint::NONE,
            None => hint(headers, some_time(), &HintOptions::default()),
        })
    }

    /// Of a gRPC call with these trailers.
    #[must_use]
    pub fn of_trailers(trailers: Option<&HeaderMap>) -> Self {
        trailers
            .and_then(grpc::code)
            .map_or(Self::Unknown, Self::of_code)
    }

    /// Of a status, and of the hint that came with it.
    pub(crate) fn of_status(status: StatusCode, hint: impl Fn() -> Hint) -> Self {
        let asks_to_return = || {
            let hint = hint();
            asks_for_delay(&hint) || hint.advice == Advice::DoRetry
        };
        match status.as_u16() {
            401 | 403 | 409 | 421 | 425 | 429 => Self::NotApplied,
            408 | 503 if asks_to_return() => Self::NotApplied,
            413 if asks_for_delay(&hint()) => Self::NotApplied,
            // Intermediaries and timeouts answer so when they have handed the request on.
            408 | 500.. => Self::Unknown,
            _ => Self::Final,
        }
    }

    /// Of a gRPC status, by its [number](crate::grpc::code()).
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

/// The time does not matter: what counts is whether there is a delay, not how long it is. It only has to be near enough
/// to tell the century of a year with two digits.
pub(crate) fn some_time() -> SystemTime {
    const YEARS: u64 = 56;
    UNIX_EPOCH + Duration::from_secs(YEARS * 365 * 24 * 3600)
}

#[cfg(test)]
mod tests {
    use relent_core::Kind;

    use super::*;
    use crate::{RequestFacts, classify};

    const REQUESTS: [RequestFacts; 2] = [
        RequestFacts {
            repeatable: false,
            keyed: false,
            conditional: false,
        },
        RequestFacts {
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

    fn kind(response: &Response<()>, request: RequestFacts) -> Option<Kind> {
        let (status, headers) = (response.status(), response.headers());
        let options = HintOptions::default();
        classify(status, headers, request, some_time(), &options).map(|failure| failure.kind)
    }

    #[test]
    fn a_server_releases_no_key_whose_response_a_client_calls_ambiguous_and_keeps_none_that_it_calls_not_processed()
     {
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
                        Some(Kind::NotProcessed | Kind::Throttled) => {
                            assert_eq!(outcome, Outcome::NotApplied, "{status} {fields:?}");
                        }
                        Some(Kind::Ambiguous) => {
                            assert_eq!(outcome, Outcome::Unknown, "{status} {fields:?}");
                        }
                        Some(Kind::Permanent | Kind::Overloaded) => {}
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
    fn what_a_handler_says_prevails_over_its_status() {
        for said in [Outcome::Final, Outcome::NotApplied, Outcome::Unknown] {
            for status in [200, 408, 429, 500, 503] {
                let mut response = response(status, &[("retry-after", "1")]);
                response.extensions_mut().insert(said);
                assert_eq!(Outcome::of(&response), said, "{status}");
            }
        }
    }

    #[test]
    fn a_delay_of_a_call_below_does_not_show_that_the_handler_did_nothing() {
        for mark in ["exhausted", "overloaded"] {
            for status in [408, 503] {
                let fields = [("relent-mark", mark), ("retry-after", "60")];
                assert_eq!(Outcome::of(&response(status, &fields)), Outcome::Unknown);
            }
        }
    }

    #[test]
    fn a_grpc_status_beside_a_failure_of_http_hides_none_of_it() {
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
