//! Retry semantics of gRPC (gRFC [A6](https://github.com/grpc/proposal/blob/master/A6-client-retries.md)).
//!
//! The response to a gRPC call has two statuses: the HTTP status, which is nearly always 200, and the gRPC
//! status. The latter is in the headers if there is no message ("trailers-only") and in the trailers
//! otherwise. So classification has two steps: [`classify_head`], and, if that does not decide,
//! [`classify_trailers`].
//!
//! | status | kind |
//! |---|---|
//! | 14 `UNAVAILABLE` | ambiguous: a proxy may respond with it after forwarding |
//! | 8 `RESOURCE_EXHAUSTED` | throttled if the server adds a delay, else permanent: it may also mean that a message is too long |
//! | 9 `FAILED_PRECONDITION` with "do not retry", to a call with an `idempotency-key` | permanent, [as if an earlier attempt had taken effect](Failure::as_if_applied) |
//! | every other | permanent, unless a policy lists it in `retry_on`, which makes it ambiguous |
//!
//! 10 `ABORTED` asks the client to repeat the whole read-modify-write, which `relent::retry_on_conflict` does. The HTTP
//! method is always POST and does not show whether a call may run twice, so the caller declares it.
//!
//! | from the server | read as |
//! |---|---|
//! | `grpc-retry-pushback-ms` | the delay in milliseconds; negative or unreadable: do not retry |
//! | `google.rpc.RetryInfo` in `grpc-status-details-bin` | a delay (with the feature `grpc`) |
//! | `relent-mark` beside the status | do not retry; see [`Mark`](crate::Mark) |
//!
//! # Features
//! - `grpc`: reads [`RetryInfo`](retry_delay) and the [`Status`]; reads the beginning of a body
//!   ([`Peek`]); imports a [`ServiceConfig`].
//! - `grpc` and `tower`: [`GrpcLayer`](crate::GrpcLayer), which retries the calls of a channel.

mod code;
#[cfg(feature = "grpc")]
pub(crate) mod details;
#[cfg(feature = "grpc")]
mod peek;
#[cfg(feature = "grpc")]
mod service_config;
#[cfg(feature = "grpc")]
mod status;
pub(crate) mod timeout;

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, StatusCode};
use relent_core::{Advice, Cause, Failure, FailureKind, GrpcCode, Hint, Network};

use crate::RequestInfo;
use crate::field::{MILLIS, rounded_up};
use crate::headers::{CONTENT_TYPE, GRPC_PREVIOUS_RPC_ATTEMPTS, GRPC_RETRY_PUSHBACK_MS};
use crate::hint::{HintOptions, asks_for_delay, hint};
use crate::no_retry_mark::marked;
use crate::status::kind as kind_of_http;

pub use code::code;
#[cfg(feature = "grpc")]
pub use details::retry_delay;
#[cfg(feature = "grpc")]
pub use peek::{First, Peek, Peeked};
#[cfg(feature = "grpc")]
pub use service_config::{Hedging, MethodConfig, ServiceConfig, ServiceConfigError};
#[cfg(feature = "grpc")]
pub use status::{Status, classify_status};

/// Whether a response is gRPC: its content type is `application/grpc`, `application/grpc+proto`
/// or similar.
#[must_use]
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// The gRPC status for a response without `grpc-status`, usually one of a proxy
/// ([http-grpc-status-mapping.md](https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md)).
///
/// ```
/// use http::StatusCode;
/// use relent_core::GrpcCode;
/// use relent_http::grpc::code_of_http;
///
/// assert_eq!(code_of_http(StatusCode::BAD_GATEWAY), GrpcCode::Unavailable);
/// assert_eq!(code_of_http(StatusCode::OK), GrpcCode::Unknown);
/// ```
#[must_use]
pub const fn code_of_http(status: StatusCode) -> GrpcCode {
    match status.as_u16() {
        400 => GrpcCode::Internal,
        401 => GrpcCode::Unauthenticated,
        403 => GrpcCode::PermissionDenied,
        404 => GrpcCode::Unimplemented,
        429 | 502..=504 => GrpcCode::Unavailable,
        _ => GrpcCode::Unknown,
    }
}

/// Result of [`classify_head`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Head {
    /// The call is complete: it failed, or it succeeded without a message.
    Over(Option<Failure>),
    /// Messages or trailers follow.
    Open,
}

/// Classifies the head of the response to a gRPC call.
///
/// A `grpc-status` decides, whatever the HTTP status. Without it, a status other than 200 and a
/// response that is not gRPC are mapped by [`code_of_http`]. Where that is `UNAVAILABLE`, the kind is that of the
/// HTTP status, so that a 429 is throttled. `now` and `options` are those of
/// [`hint`](crate::hint).
///
/// ```
/// use std::time::SystemTime;
/// use http::{HeaderMap, StatusCode};
/// use relent_core::{Cause, FailureKind};
/// use relent_http::{HintOptions, grpc};
///
/// let mut headers = HeaderMap::new();
/// headers.insert("content-type", "application/grpc".parse()?);
/// let head = |headers: &HeaderMap| {
///     grpc::classify_head(StatusCode::OK, headers, SystemTime::now(), &HintOptions::default())
/// };
/// assert_eq!(head(&headers), grpc::Head::Open);
///
/// headers.insert("grpc-status", "14".parse()?);
/// let grpc::Head::Over(Some(failure)) = head(&headers) else { unreachable!() };
/// assert_eq!((failure.kind, failure.cause), (FailureKind::Ambiguous, Cause::Grpc(14)));
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
#[must_use]
pub fn classify_head(
    status: StatusCode,
    headers: &HeaderMap,
    now: SystemTime,
    options: &HintOptions,
) -> Head {
    if let Some(code) = code(headers) {
        let failure = failure(code, || hint(headers, now, options));
        return Head::Over(failure.map(|failure| marked(failure, headers)));
    }
    if status == StatusCode::OK && is_grpc(headers) {
        return Head::Open;
    }
    let hint = hint(headers, now, options);
    let code = code_of_http(status);
    let kind = match code {
        GrpcCode::Unavailable => kind_of_http(status, &hint, RequestInfo::default()),
        code => kind(code.number(), &hint),
    };
    let failure = Failure::new(kind).cause(code.into()).hint(hint);
    Head::Over(Some(marked(failure, headers)))
}

/// Classifies the trailers of the response to a gRPC call; `None` if it succeeded. Trailers without
/// a status mean a truncated response. `now` and `options` are those of
/// [`hint`](crate::hint).
#[must_use]
pub fn classify_trailers(
    trailers: &HeaderMap,
    now: SystemTime,
    options: &HintOptions,
) -> Option<Failure> {
    match code(trailers) {
        Some(code) => {
            let failure = failure(code, || hint(trailers, now, options))?;
            Some(marked(failure, trailers))
        }
        None => Some(Failure::network(Network::Truncated)),
    }
}

/// Writes the number of earlier attempts to `grpc-previous-rpc-attempts`, which is
/// absent on the first attempt and 1 on the second (gRFC A6). `attempt` is the number of the attempt; the
/// first is 1.
///
/// ```
/// let mut headers = http::HeaderMap::new();
/// relent_http::grpc::set_previous_attempts(&mut headers, 1);
/// assert!(headers.is_empty());
/// relent_http::grpc::set_previous_attempts(&mut headers, 3);
/// assert_eq!(headers["grpc-previous-rpc-attempts"], "2");
/// ```
pub fn set_previous_attempts(headers: &mut HeaderMap, attempt: u32) {
    match attempt {
        0 | 1 => {}
        later => {
            headers.insert(GRPC_PREVIOUS_RPC_ATTEMPTS, HeaderValue::from(later - 1));
        }
    }
}

/// Writes `grpc-retry-pushback-ms`: the delay in whole milliseconds, rounded up; or, with `None`, -1 for "do not
/// retry" (gRFC A6). An existing field is replaced. It belongs beside the `grpc-status`.
///
/// The field holds up to 24 days. A longer delay is written as "do not retry", so that no client comes back early.
///
/// ```
/// use std::time::Duration;
/// use relent_http::grpc::set_pushback;
///
/// let mut trailers = http::HeaderMap::new();
/// set_pushback(&mut trailers, Some(Duration::from_micros(1500)));
/// assert_eq!(trailers["grpc-retry-pushback-ms"], "2");
/// set_pushback(&mut trailers, None);
/// assert_eq!(trailers["grpc-retry-pushback-ms"], "-1");
/// ```
pub fn set_pushback(fields: &mut HeaderMap, after: Option<Duration>) {
    let millis = after.and_then(|after| i32::try_from(rounded_up(after, MILLIS)).ok());
    fields.insert(
        GRPC_RETRY_PUSHBACK_MS,
        HeaderValue::from(millis.unwrap_or(-1)),
    );
}

/// The failure for this code; `None` if it is 0, `OK`.
pub(crate) fn failure(code: u16, hint: impl FnOnce() -> Hint) -> Option<Failure> {
    if code == GrpcCode::Ok.number() {
        return None;
    }
    Some(failed(code, hint()))
}

/// The failure of a request with these facts. A server that does not know what the first call with a key did responds
/// to its repetitions with `FAILED_PRECONDITION` and "do not retry". Without that, it is the response of the handler.
pub(crate) fn in_view_of_key(failure: Failure, request: RequestInfo) -> Failure {
    let unmet = request.keyed
        && failure.cause == GrpcCode::FailedPrecondition.into()
        && failure.hint.advice == Advice::DoNotRetry;
    failure.as_if_applied(failure.as_if_applied || unmet)
}

fn failed(code: u16, hint: Hint) -> Failure {
    let failure = Failure::new(kind(code, &hint));
    failure.cause(Cause::Grpc(code)).hint(hint)
}

fn kind(code: u16, hint: &Hint) -> FailureKind {
    match GrpcCode::from_number(code) {
        Some(GrpcCode::Unavailable) => FailureKind::Ambiguous,
        Some(GrpcCode::ResourceExhausted) if asks_for_delay(hint) => FailureKind::Throttled,
        _ => FailureKind::Permanent,
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use proptest::prelude::*;

    use super::*;
    use crate::hint::source;

    const GRPC: (&str, &str) = ("content-type", "application/grpc");

    fn fields(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    fn head(status: u16, of: &[(&'static str, &str)]) -> Head {
        let status = StatusCode::from_u16(status).unwrap();
        classify_head(status, &fields(of), UNIX_EPOCH, &HintOptions::default())
    }

    fn trailers(of: &[(&'static str, &str)]) -> Option<Failure> {
        classify_trailers(&fields(of), UNIX_EPOCH, &HintOptions::default())
    }

    fn seen(head: Head) -> (FailureKind, Cause) {
        match head {
            Head::Over(Some(failure)) => (failure.kind, failure.cause),
            other => panic!("{other:?} is no failure"),
        }
    }

    #[test]
    fn a_grpc_head_without_a_status_is_open() {
        for content_type in [
            "application/grpc",
            "application/grpc+proto",
            "application/grpc;a=b",
        ] {
            assert_eq!(head(200, &[("content-type", content_type)]), Head::Open);
        }
    }

    #[test]
    fn a_grpc_status_in_the_headers_overrides_the_http_status() {
        for status in [200, 404, 503] {
            assert_eq!(
                head(status, &[GRPC, ("grpc-status", "0")]),
                Head::Over(None)
            );
            let failed = head(status, &[GRPC, ("grpc-status", "13")]);
            assert_eq!(seen(failed), (FailureKind::Permanent, Cause::Grpc(13)));
        }
    }

    #[test]
    fn a_proxy_response_is_classified_by_its_http_status() {
        for (status, code, kind) in [
            (400, GrpcCode::Internal, FailureKind::Permanent),
            (401, GrpcCode::Unauthenticated, FailureKind::Permanent),
            (403, GrpcCode::PermissionDenied, FailureKind::Permanent),
            (404, GrpcCode::Unimplemented, FailureKind::Permanent),
            (429, GrpcCode::Unavailable, FailureKind::Throttled),
            (500, GrpcCode::Unknown, FailureKind::Permanent),
            (502, GrpcCode::Unavailable, FailureKind::Ambiguous),
            (503, GrpcCode::Unavailable, FailureKind::Ambiguous),
            (504, GrpcCode::Unavailable, FailureKind::Ambiguous),
            (200, GrpcCode::Unknown, FailureKind::Permanent),
        ] {
            let html = head(status, &[("content-type", "text/html")]);
            assert_eq!(seen(html), (kind, code.into()), "{status}");
        }
        let hinted = head(503, &[("retry-after", "1")]);
        assert_eq!(
            seen(hinted),
            (FailureKind::NotProcessed, GrpcCode::Unavailable.into())
        );
    }

    #[test]
    fn only_unavailable_and_throttled_exhaustion_are_retryable() {
        for code in GrpcCode::ALL {
            let number = code.number().to_string();
            let plain = trailers(&[("grpc-status", &number)]).map(|failure| failure.kind);
            let pushed = trailers(&[("grpc-status", &number), ("grpc-retry-pushback-ms", "5")])
                .map(|failure| failure.kind);
            let expected = match code {
                GrpcCode::Ok => (None, None),
                GrpcCode::Unavailable => {
                    (Some(FailureKind::Ambiguous), Some(FailureKind::Ambiguous))
                }
                GrpcCode::ResourceExhausted => {
                    (Some(FailureKind::Permanent), Some(FailureKind::Throttled))
                }
                _ => (Some(FailureKind::Permanent), Some(FailureKind::Permanent)),
            };
            assert_eq!((plain, pushed), expected, "{code}");
        }
    }

    #[test]
    fn a_pushback_in_the_trailers_is_the_hint() {
        let failure = trailers(&[("grpc-status", "14"), ("grpc-retry-pushback-ms", "70")]).unwrap();
        assert_eq!(failure.hint.delay(), Some(Duration::from_millis(70)));
        assert_eq!(failure.hint.source, source::GRPC_PUSHBACK);
        for refusal in ["-1", "soon"] {
            let failure =
                trailers(&[("grpc-status", "14"), ("grpc-retry-pushback-ms", refusal)]).unwrap();
            assert_eq!(failure.hint.advice, Advice::DoNotRetry, "{refusal}");
        }
    }

    #[test]
    fn a_response_without_a_grpc_status_is_truncated() {
        let cut = trailers(&[]).unwrap();
        assert_eq!(cut, Failure::network(Network::Truncated));
    }

    #[test]
    fn an_unreadable_grpc_code_is_unknown() {
        for unreadable in ["", "-1", "x", "99999999999999999999"] {
            assert_eq!(code(&fields(&[("grpc-status", unreadable)])), Some(2));
        }
        assert_eq!(code(&fields(&[("grpc-status", " 17 ")])), Some(17));
    }

    proptest! {
        #[test]
        fn a_pushback_is_read_back_and_never_early(
            after in prop_oneof![
                Just(Duration::ZERO), Just(Duration::from_nanos(1)), Just(Duration::MAX),
                Just(Duration::from_millis(i32::MAX as u64)),
                (0..2_300_000_u64, 0..1_000_000_000_u32).prop_map(|(secs, nanos)| Duration::new(secs, nanos)),
            ],
        ) {
            let mut fields = HeaderMap::new();
            set_pushback(&mut fields, Some(after));
            let hint = hint(&fields, UNIX_EPOCH, &HintOptions::default());
            match hint.delay() {
                Some(read) => prop_assert!(read >= after && read - after < Duration::from_millis(1)),
                None => {
                    prop_assert!(after > Duration::from_millis(i32::MAX as u64));
                    prop_assert_eq!(hint.advice, Advice::DoNotRetry);
                }
            }
        }
    }
}
