//! Classification of a response as a [`Failure`].

use std::time::SystemTime;

use http::{HeaderMap, StatusCode};
use relent_core::{Cause, Failure, Policy, Scope};

use crate::grpc;
use crate::hint::{HintOptions, hint};
use crate::no_retry_mark::marked;
use crate::repeatable::RequestInfo;
use crate::status::{kind, scope};

/// Classifies a response; `None` if it is not a failure. Whether the request took effect is decided by
/// [`Outcome`](crate::Outcome), as on the server.
///
/// | status | kind |
/// |---|---|
/// | below 400 | no failure, except for a gRPC response that carries a `grpc-status` other than 0 |
/// | 421, 425 | not processed |
/// | 429 | throttled |
/// | 408, 503 | not processed if the server adds a delay or "do retry", else ambiguous: an intermediary may respond after forwarding |
/// | 409 | throttled if the request has an `Idempotency-Key` and the response a delay: the same key is in progress. Else permanent; to a request with a key [as if an earlier attempt were still in progress](Failure::as_if_in_progress) |
/// | 412 | permanent; to a write under a precondition, [as if an earlier attempt had taken effect](Failure::as_if_applied) |
/// | 413 | not processed if the server adds a delay: it is temporary (RFC 9110 §15.5.14). Else permanent |
/// | 501, 505, 511, every other 4xx | permanent |
/// | every other 5xx, 600 and above | ambiguous |
/// | any of these with `x-envoy-ratelimited` | throttled |
/// | any of these with the [mark](crate::Mark) `overloaded` | overloaded |
///
/// A 4xx other than 408 and 429 concerns [this request](Scope::Request) only: its key, its body or its
/// connection. So does any failure with `relent-scope: request`. It is no sign of load, and its delay starts no
/// cooldown. A policy may list a status below
/// 400: see [`classify_listed`].
///
/// Only a delay that the response itself asks for counts here, not the reset of a rate limit, which is on
/// any response. The failure always carries the hint. A [`Session`](relent_core::Session) obeys its "do not
/// retry" before it looks at the kind.
///
/// The kinds of gRPC statuses are those of [`grpc`](crate::grpc).
///
/// `now` is the local time; it is used only for dates in a response without a usable `Date`.
///
/// ```
/// use std::time::SystemTime;
/// use http::{HeaderMap, Method, StatusCode};
/// use relent_core::FailureKind;
/// use relent_http::{HintOptions, RequestInfo, classify};
///
/// let request = RequestInfo::of(&Method::POST, &HeaderMap::new());
/// let options = HintOptions::default();
/// let mut headers = HeaderMap::new();
///
/// let now = SystemTime::now();
/// let failure = classify(StatusCode::SERVICE_UNAVAILABLE, &headers, request, now, &options);
/// assert_eq!(failure.map(|failure| failure.kind), Some(FailureKind::Ambiguous));
///
/// headers.insert("retry-after", "2".parse()?);
/// let failure = classify(StatusCode::SERVICE_UNAVAILABLE, &headers, request, now, &options);
/// assert_eq!(failure.map(|failure| failure.kind), Some(FailureKind::NotProcessed));
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
#[must_use]
pub fn classify(
    status: StatusCode,
    headers: &HeaderMap,
    request: RequestInfo,
    now: SystemTime,
    options: &HintOptions,
) -> Option<Failure> {
    if status.as_u16() >= 400 {
        let hint = hint(headers, now, options);
        let kind = kind(status, &hint, request);
        let unmet = request.conditional && status == StatusCode::PRECONDITION_FAILED;
        let failure = Failure::new(kind)
            .cause(Cause::Status(status.as_u16()))
            .hint(hint)
            .as_if_applied(unmet)
            .as_if_in_progress(request.keyed && status == StatusCode::CONFLICT)
            .scope(scope(status));
        return Some(marked(failure, headers));
    }
    if !grpc::is_grpc(headers) {
        return None;
    }
    let failure = grpc::failure(grpc::code(headers)?, || hint(headers, now, options))?;
    Some(marked(grpc::in_view_of_key(failure, request), headers))
}

/// Classifies a successful response as a failure if the policy lists its status in `retry_on` or in a rule, such as
/// `202` until there is a result.
///
/// The failure is ambiguous, so that only repeatable requests are repeated. It concerns [this request](Scope::Request)
/// only and has the hint of the response. `None` if the status is not listed, and for a gRPC response, which has its
/// own status.
///
/// Call it after [`classify`], with the same arguments.
///
/// ```
/// use std::time::SystemTime;
/// use http::{HeaderMap, StatusCode};
/// use relent_core::{FailureKind, Policy};
/// use relent_http::{HintOptions, classify_listed};
///
/// let policy = Policy::STANDARD.clone().retrying([202.into()]);
/// let (headers, options) = (HeaderMap::new(), HintOptions::default());
/// let listed = |status| classify_listed(&policy, status, &headers, SystemTime::now(), &options);
/// assert_eq!(listed(StatusCode::ACCEPTED).map(|failure| failure.kind), Some(FailureKind::Ambiguous));
/// assert_eq!(listed(StatusCode::OK), None);
/// ```
#[must_use]
pub fn classify_listed(
    policy: &Policy,
    status: StatusCode,
    headers: &HeaderMap,
    now: SystemTime,
    options: &HintOptions,
) -> Option<Failure> {
    if !policy.makes_failure_of(status.as_u16()) || grpc::is_grpc(headers) {
        return None;
    }
    Some(refused(status, headers, now, options))
}

/// The failure of a response that is none by HTTP, but that the policy or the caller refuses.
pub(crate) fn refused(
    status: StatusCode,
    headers: &HeaderMap,
    now: SystemTime,
    options: &HintOptions,
) -> Failure {
    let failure = Failure::ambiguous()
        .cause(Cause::Status(status.as_u16()))
        .hint(hint(headers, now, options))
        .scope(Scope::Request);
    marked(failure, headers)
}

/// Whether a response is certainly no failure: most are not, and need no clock.
#[cfg(feature = "attempt")]
#[inline]
pub(crate) fn cannot_fail(status: StatusCode, headers: &HeaderMap) -> bool {
    status.as_u16() < 400 && !grpc::is_grpc(headers)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use relent_core::{Advice, FailureKind, Hint, Pattern};

    use super::*;
    use crate::hint::source;
    use crate::rate_limit::XRateLimitReset;

    const PLAIN: RequestInfo = RequestInfo {
        repeatable: false,
        keyed: false,
        conditional: false,
    };
    const REPEATABLE: RequestInfo = RequestInfo {
        repeatable: true,
        keyed: false,
        conditional: false,
    };
    const KEYED: RequestInfo = RequestInfo {
        repeatable: true,
        keyed: true,
        conditional: false,
    };
    const EVERY_REQUEST: [RequestInfo; 3] = [PLAIN, REPEATABLE, KEYED];

    fn of(status: u16, request: RequestInfo, fields: &[(&'static str, &str)]) -> Option<Failure> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        let options = HintOptions {
            x_rate_limit_reset: XRateLimitReset::DelaySeconds,
        };
        classify(
            StatusCode::from_u16(status).unwrap(),
            &headers,
            request,
            UNIX_EPOCH,
            &options,
        )
    }

    fn kind_of(status: u16, request: RequestInfo, fields: &[(&'static str, &str)]) -> FailureKind {
        of(status, request, fields).unwrap().kind
    }

    #[test]
    fn a_status_below_400_is_not_a_failure() {
        for status in 100..400 {
            assert_eq!(of(status, PLAIN, &[("retry-after", "5")]), None, "{status}");
        }
    }

    #[test]
    fn statuses_421_and_425_are_not_processed_and_429_is_throttled() {
        for request in EVERY_REQUEST {
            assert_eq!(kind_of(421, request, &[]), FailureKind::NotProcessed);
            assert_eq!(kind_of(425, request, &[]), FailureKind::NotProcessed);
            assert_eq!(kind_of(429, request, &[]), FailureKind::Throttled);
        }
    }

    #[test]
    fn a_408_or_503_is_not_processed_only_when_the_server_adds_a_hint() {
        for status in [408, 503] {
            for request in EVERY_REQUEST {
                assert_eq!(kind_of(status, request, &[]), FailureKind::Ambiguous);
                for hint in [
                    ("retry-after", "5"),
                    ("retry-after", "0"),
                    ("retry-after-ms", "5"),
                    ("x-ms-retry-after-ms", "5"),
                    ("grpc-retry-pushback-ms", "5"),
                    ("x-should-retry", "true"),
                    ("stripe-should-retry", "true"),
                ] {
                    assert_eq!(
                        kind_of(status, request, &[hint]),
                        FailureKind::NotProcessed,
                        "{hint:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_503_without_a_usable_delay_of_its_own_is_ambiguous() {
        for hint in [
            ("retry-after", "soon"),
            ("ratelimit", r#""burst";r=0;t=5"#),
            ("x-ratelimit-reset", "5"),
            ("x-should-retry", "false"),
        ] {
            assert_eq!(
                kind_of(503, PLAIN, &[hint]),
                FailureKind::Ambiguous,
                "{hint:?}"
            );
        }
    }

    #[test]
    fn other_5xx_statuses_are_ambiguous() {
        for status in (500..=599).chain([600, 999]) {
            if matches!(status, 501 | 503 | 505 | 511) {
                continue;
            }
            for request in EVERY_REQUEST {
                assert_eq!(
                    kind_of(status, request, &[]),
                    FailureKind::Ambiguous,
                    "{status}"
                );
                let hinted = kind_of(status, request, &[("retry-after", "5")]);
                assert_eq!(hinted, FailureKind::Ambiguous, "{status}");
            }
        }
    }

    #[test]
    fn other_4xx_and_501_505_and_511_are_permanent() {
        for status in (400..=499).chain([501, 505, 511]) {
            if matches!(status, 408 | 421 | 425 | 429) {
                continue;
            }
            for request in EVERY_REQUEST {
                assert_eq!(
                    kind_of(status, request, &[]),
                    FailureKind::Permanent,
                    "{status}"
                );
            }
            if status != 413 {
                let hinted = kind_of(status, REPEATABLE, &[("retry-after", "5")]);
                assert_eq!(hinted, FailureKind::Permanent, "{status}");
            }
        }
    }

    #[test]
    fn a_413_with_a_delay_is_temporary_and_without_one_is_not() {
        for request in EVERY_REQUEST {
            let of = |fields: &[_]| kind_of(413, request, fields);
            assert_eq!(of(&[("retry-after", "5")]), FailureKind::NotProcessed);
            assert_eq!(of(&[("retry-after-ms", "5")]), FailureKind::NotProcessed);
            assert_eq!(of(&[("x-ratelimit-reset", "5")]), FailureKind::Permanent);
            assert_eq!(of(&[]), FailureKind::Permanent);
        }
    }

    #[test]
    fn a_4xx_except_408_and_429_has_request_scope() {
        for status in 400..600 {
            let request = (400..500).contains(&status) && status != 408 && status != 429;
            let expected = if request {
                Scope::Request
            } else {
                Scope::Destination
            };
            let of = |fields: &[_]| of(status, KEYED, fields).unwrap().scope;
            assert_eq!(of(&[("retry-after", "5")]), expected, "{status}");
            // An overloaded or rate-limited server describes itself, not one request.
            assert_eq!(of(&[("relent-mark", "overloaded")]), Scope::Destination);
            assert_eq!(of(&[("x-envoy-ratelimited", "true")]), Scope::Destination);
        }
    }

    #[test]
    fn a_409_to_a_keyed_request_counts_as_in_progress() {
        let conflict = of(409, KEYED, &[]).unwrap();
        assert_eq!(
            (conflict.kind, conflict.as_if_in_progress),
            (FailureKind::Permanent, true)
        );
        for request in [PLAIN, REPEATABLE] {
            assert!(!of(409, request, &[]).unwrap().as_if_in_progress);
        }
        assert!(!of(422, KEYED, &[]).unwrap().as_if_in_progress);
    }

    #[test]
    fn a_status_below_400_that_the_policy_lists_is_a_failure() {
        let policy = Policy::STANDARD.clone().retrying([
            Pattern::Status(202, 204),
            Pattern::from(301),
            Pattern::from(503),
        ]);
        let listed = |status: u16, fields: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, value.parse().unwrap());
            }
            let status = StatusCode::from_u16(status).unwrap();
            let options = HintOptions::default();
            classify_listed(&policy, status, &headers, UNIX_EPOCH, &options)
        };
        for status in 200..600 {
            let failure = listed(status, &[("retry-after", "5")]);
            // From 400 up, `classify` already finds the failure.
            let expected = matches!(status, 202..=204 | 301).then(|| {
                Failure::ambiguous()
                    .cause(Cause::Status(status))
                    .hint(Hint::after(Duration::from_secs(5)).from_source(source::RETRY_AFTER))
                    .scope(Scope::Request)
            });
            assert_eq!(failure, expected, "{status}");
        }
        assert_eq!(listed(202, &[("content-type", "application/grpc")]), None);
        // General patterns do not make a success a failure.
        for pattern in [Pattern::Any, Pattern::Error, Pattern::Throttled] {
            assert!(!policy.clone().retrying([pattern]).makes_failure_of(202));
        }
    }

    #[test]
    fn x_envoy_ratelimited_means_throttled_for_every_status() {
        const LIMITED: (&str, &str) = ("x-envoy-ratelimited", "true");
        for status in [403, 413, 429, 500, 503] {
            let limited = of(status, PLAIN, &[LIMITED, ("retry-after", "5")]).unwrap();
            assert_eq!(limited.kind, FailureKind::Throttled, "{status}");
            assert_eq!(limited.hint.delay(), Some(Duration::from_secs(5)));
            let overloaded = [("x-envoy-overloaded", "true")];
            assert_eq!(of(status, PLAIN, &overloaded), of(status, PLAIN, &[]));
        }
        let marked = [LIMITED, ("relent-mark", "overloaded")];
        assert_eq!(kind_of(503, PLAIN, &marked), FailureKind::Overloaded);
        let grpc = ("content-type", "application/grpc");
        let failed = of(200, PLAIN, &[grpc, ("grpc-status", "14"), LIMITED]).unwrap();
        assert_eq!(failed.kind, FailureKind::Throttled);
        assert_eq!(of(200, PLAIN, &[LIMITED]), None);
    }

    #[test]
    fn a_409_with_a_delay_on_a_keyed_request_is_throttled() {
        assert_eq!(
            kind_of(409, KEYED, &[("retry-after", "1")]),
            FailureKind::Throttled
        );
        assert_eq!(kind_of(409, KEYED, &[]), FailureKind::Permanent);
        assert_eq!(
            kind_of(409, KEYED, &[("x-ratelimit-reset", "1")]),
            FailureKind::Permanent
        );
        assert_eq!(
            kind_of(409, REPEATABLE, &[("retry-after", "1")]),
            FailureKind::Permanent
        );
    }

    #[test]
    fn a_412_to_a_conditional_write_counts_as_applied() {
        let write = RequestInfo {
            conditional: true,
            ..REPEATABLE
        };
        let refused = of(412, write, &[]).unwrap();
        assert_eq!(
            (refused.kind, refused.as_if_applied),
            (FailureKind::Permanent, true)
        );
        assert!(!of(412, REPEATABLE, &[]).unwrap().as_if_applied);
        assert!(!of(409, write, &[]).unwrap().as_if_applied);
    }

    #[test]
    fn a_failure_carries_its_status_and_its_hint() {
        let failure = of(503, PLAIN, &[("retry-after", "5")]).unwrap();
        assert_eq!(failure.cause, Cause::Status(503));
        assert_eq!(failure.hint.delay(), Some(Duration::from_secs(5)));
        assert_eq!(failure.hint.source, source::RETRY_AFTER);
        let refused = of(500, PLAIN, &[("x-should-retry", "false")]).unwrap();
        assert_eq!(refused.hint.advice, Advice::DoNotRetry);
    }

    #[test]
    fn a_marked_failure_is_not_retried_and_overloaded_is_a_kind() {
        for status in [429, 500, 503, 599] {
            let unmarked = kind_of(status, REPEATABLE, &[]);
            let exhausted = of(status, REPEATABLE, &[("relent-mark", "exhausted")]).unwrap();
            assert_eq!(
                (exhausted.kind, exhausted.hint.advice),
                (unmarked, Advice::DoNotRetry)
            );
            assert_eq!(exhausted.hint.source, source::RELENT_MARK);
            let fields = [("relent-mark", "overloaded"), ("retry-after", "5")];
            let overloaded = of(status, REPEATABLE, &fields).unwrap();
            assert_eq!(overloaded.kind, FailureKind::Overloaded);
            assert_eq!(overloaded.cause, Cause::Status(status));
            assert_eq!(overloaded.hint.delay(), Some(Duration::from_secs(5)));
        }
        assert_eq!(of(200, REPEATABLE, &[("relent-mark", "exhausted")]), None);
        let unreadable = of(503, REPEATABLE, &[("relent-mark", "tired")]).unwrap();
        assert_eq!(
            (unreadable.kind, unreadable.hint.advice),
            (FailureKind::Ambiguous, Advice::None)
        );
        assert_eq!(unreadable.hint.malformed, Some(source::RELENT_MARK));
    }

    #[test]
    fn do_retry_does_not_make_a_permanent_failure_another_kind() {
        // The session overrides the kind; classification keeps it.
        let failure = of(400, PLAIN, &[("x-should-retry", "true")]).unwrap();
        assert_eq!(
            (failure.kind, failure.hint.advice),
            (FailureKind::Permanent, Advice::DoRetry)
        );
    }

    #[test]
    fn a_grpc_status_is_read_from_a_grpc_response_only() {
        const GRPC: (&str, &str) = ("content-type", "application/grpc+proto");
        let code = |code| ("grpc-status", code);
        let kind =
            |fields: &[_]| of(200, PLAIN, fields).map(|failure| (failure.kind, failure.cause));
        assert_eq!(kind(&[GRPC]), None);
        assert_eq!(kind(&[GRPC, code("0")]), None);
        assert_eq!(kind(&[code("14")]), None);
        assert_eq!(
            kind(&[GRPC, code("14")]),
            Some((FailureKind::Ambiguous, Cause::Grpc(14)))
        );
        assert_eq!(
            kind(&[GRPC, code("8")]),
            Some((FailureKind::Permanent, Cause::Grpc(8)))
        );
        assert_eq!(
            kind(&[GRPC, code("8"), ("grpc-retry-pushback-ms", "5")]),
            Some((FailureKind::Throttled, Cause::Grpc(8))),
        );
        assert_eq!(
            kind(&[GRPC, code("3")]),
            Some((FailureKind::Permanent, Cause::Grpc(3)))
        );
        for unreadable in ["", "-1", "x", "99999999999999999999"] {
            assert_eq!(
                kind(&[GRPC, code(unreadable)]),
                Some((FailureKind::Permanent, Cause::Grpc(2)))
            );
        }
    }
}
