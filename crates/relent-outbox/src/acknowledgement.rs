//! Acknowledgement of messages: decides whether a response acknowledges, or how it failed.

use std::borrow::Cow;
use std::time::SystemTime;

use http::{HeaderMap, HeaderName, StatusCode};
use relent_core::{Advice, Cause, Failure, Hint, Network, Policy, Scope};
use relent_http::headers::{
    GRPC_RETRY_PUSHBACK_MS, RELENT_MARK, STRIPE_SHOULD_RETRY, X_SHOULD_RETRY,
};
use relent_http::{HintOptions, Mark, RequestInfo, classify, classify_listed};
use serde_json::Value;

use crate::endpoint::Acknowledgement;
use crate::text::printable;

/// The largest part of a body that is read: 64 KiB.
pub const MAX_BODY: usize = 64 << 10;
/// The largest part of a body that is kept: 1 KiB.
pub const MAX_EXCERPT: usize = 1 << 10;
/// The header by which a receiver controls further delivery. `abort-message` ends the attempts for this message (Svix);
/// `disable` stops all messages until an operator enables the endpoint.
pub const WEBHOOK_DELIVERY: HeaderName = HeaderName::from_static("webhook-delivery");

/// How far the body of a response was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyEnd {
    /// The body is complete.
    Whole,
    /// The body is longer than [`MAX_BODY`], and was not read further.
    TooLong,
    /// The body was truncated: it acknowledges nothing.
    Cut,
    /// The body did not end within the time limit of the attempt: it acknowledges nothing.
    TimedOut,
}

/// A response of the receiver, as far as it was read.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverResponse<'a> {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: &'a HeaderMap,
    /// The body, as far as it was read.
    pub body: &'a [u8],
    /// How far the body was read.
    pub end: BodyEnd,
}

/// The failure of a response that does not acknowledge.
#[derive(Clone, PartialEq, Debug)]
pub struct NotAcknowledged {
    /// The failure, as the schedule evaluates it.
    pub failure: Failure,
    /// The description of the failure.
    pub error: String,
    /// The receiver wants no more messages: see [`disables`].
    pub gone: bool,
}

/// Returns the reason that a response disables its endpoint, if it does: the status 410, or `webhook-delivery:
/// disable`, even in an acknowledgement.
#[must_use]
pub fn disables(status: StatusCode, headers: &HeaderMap) -> Option<&'static str> {
    if says(headers, b"disable") {
        Some(
            "it answered webhook-delivery: disable: it wants no messages until somebody enables it",
        )
    } else if status == StatusCode::GONE {
        Some("it answered 410: it wants no messages any more")
    } else {
        None
    }
}

/// Whether the response asks to disable the endpoint and to hold this message.
pub(crate) fn holds(headers: &HeaderMap) -> bool {
    says(headers, b"disable") && !says(headers, b"abort-message")
}

fn says(headers: &HeaderMap, what: &[u8]) -> bool {
    let values = headers.get_all(WEBHOOK_DELIVERY).iter();
    let mut words = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    words.any(|word| word.trim_ascii().eq_ignore_ascii_case(what))
}

/// Evaluates a response, by the rules of HTTP and the lists of the policy.
///
/// - A status from 200 to 299 acknowledges if the response is as `rule` [requires](Acknowledgement::ALL). A body longer
///   than [`MAX_BODY`] never satisfies a rule about the body.
/// - A redirect is a failure: it is never followed.
/// - A status outside of 200 to 599 is invalid in HTTP, and counts as 500 (RFC 9110, section 15).
/// - 410 and `webhook-delivery: disable` set [`NotAcknowledged::gone`]. Whether this message has more attempts after a 410
///   depends on the policy.
/// - `webhook-delivery: abort-message` ends the attempts for this message, whatever the policy says.
/// - `x-should-retry: false` ends them, too, and so do the other fields by which a server says "do not retry":
///   `stripe-should-retry: false`, and a `grpc-retry-pushback-ms` that is negative or unreadable. A [`Mark`] beside them
///   cancels that: it asks callers who wait for a response not to repeat it now, and the next attempt of a schedule comes
///   later.
/// - A `Retry-After` is limited to the policy's `max_hint`. It never ends the attempts by itself.
/// - A success status with a body that does not acknowledge is retried. It counts as a failure of the message and of the
///   endpoint, but not for the circuit breaker.
///
/// # Errors
/// [`NotAcknowledged`] if it does not acknowledge.
pub fn judge(
    answer: ReceiverResponse<'_>,
    rule: Acknowledgement,
    policy: &Policy,
    now: SystemTime,
) -> Result<(), NotAcknowledged> {
    let ReceiverResponse {
        status, headers, ..
    } = answer;
    let options = HintOptions::default();
    let headers = &*without_mark(headers);
    // The identifier makes the request idempotent: the receiver drops duplicates.
    let facts = RequestInfo {
        repeatable: true,
        ..RequestInfo::default()
    };
    let refused = |failure: Failure| refused(status, headers, bounded(failure, headers, policy));
    if !matches!(status.as_u16(), 200..=599) {
        // No list of a policy can contain this status.
        let broken = classify(
            StatusCode::INTERNAL_SERVER_ERROR,
            headers,
            facts,
            now,
            &options,
        );
        return Err(refused(broken.unwrap_or_else(Failure::ambiguous)));
    }
    let listed = || classify_listed(policy, status, headers, now, &options);
    if let Some(failure) = classify(status, headers, facts, now, &options).or_else(listed) {
        return Err(refused(failure));
    }
    if !status.is_success() {
        // A redirect that the policy does not list.
        let cause = Cause::Status(status.as_u16());
        return Err(refused(
            Failure::permanent().cause(cause).scope(Scope::Request),
        ));
    }
    let (failure, missing) = match lacks(&answer, rule) {
        None => return Ok(()),
        Some(missing) if answer.end == BodyEnd::Cut => {
            (Failure::network(Network::Truncated), missing)
        }
        Some(missing) if answer.end == BodyEnd::TimedOut => {
            (Failure::ambiguous().cause(Cause::Timeout), missing)
        }
        Some(missing) => {
            let failure = Failure::ambiguous().cause(Cause::Pending);
            (failure.scope(Scope::Request), missing)
        }
    };
    let mut refused = refused(failure);
    refused.error = format!("status {status}, but {missing}");
    Err(refused)
}

/// Returns the missing part for which a success status does not acknowledge by this rule.
fn lacks(answer: &ReceiverResponse<'_>, rule: Acknowledgement) -> Option<&'static str> {
    let ReceiverResponse { body, end, .. } = *answer;
    let lacking = match rule {
        _ if end == BodyEnd::Cut => (true, "the answer was cut off before its end"),
        _ if end == BodyEnd::TimedOut => (true, "the answer did not end in time"),
        Acknowledgement::Success => (false, ""),
        Acknowledgement::NoBody if !matches!(answer.status.as_u16(), 200 | 204) => {
            (true, "only 200 and 204 acknowledge")
        }
        Acknowledgement::NoBody => (!body.is_empty(), "it has a body"),
        _ if end == BodyEnd::TooLong => (true, "the body is longer than 64 kB"),
        Acknowledgement::BodySuccess => (body != b"success", "the body is not exactly `success`"),
        Acknowledgement::CodeSuccess => (
            !is_code_success(body),
            "the body is no JSON object whose `code` is `SUCCESS`",
        ),
    };
    lacking.0.then_some(lacking.1)
}

fn refused(status: StatusCode, headers: &HeaderMap, failure: Failure) -> NotAcknowledged {
    NotAcknowledged {
        failure,
        error: if status.is_redirection() {
            format!("status {status}: redirects are not followed")
        } else {
            format!("status {status}")
        },
        gone: disables(status, headers).is_some(),
    }
}

/// Removes a no-retry marker with its advice.
fn without_mark(headers: &HeaderMap) -> Cow<'_, HeaderMap> {
    if Mark::read(headers).is_none() {
        return Cow::Borrowed(headers);
    }
    let mut headers = headers.clone();
    for name in [RELENT_MARK, X_SHOULD_RETRY, STRIPE_SHOULD_RETRY] {
        headers.remove(name);
    }
    // Of the rest, only a pushback can say "do not retry". Its delay does not depend on the time.
    let rest = relent_http::hint(&headers, SystemTime::UNIX_EPOCH, &HintOptions::default());
    if rest.advice == Advice::DoNotRetry {
        headers.remove(GRPC_RETRY_PUSHBACK_MS);
    }
    Cow::Owned(headers)
}

fn bounded(mut failure: Failure, headers: &HeaderMap, policy: &Policy) -> Failure {
    if says(headers, b"abort-message") {
        failure.hint = failure.hint.with_advice(Advice::DoNotRetry);
    }
    let most = policy.max_hint();
    if failure.hint.delay().is_some_and(|delay| delay > most) {
        // A delay beyond the limit is shortened, and is no reason to give up.
        let Hint {
            source,
            audience,
            advice,
            ..
        } = failure.hint;
        failure.hint = Hint::after(most)
            .from_source(source)
            .for_audience(audience)
            .with_advice(advice);
    }
    failure
}

fn is_code_success(body: &[u8]) -> bool {
    let value: Option<Value> = serde_json::from_slice(body).ok();
    value.is_some_and(|value| value.get("code").and_then(Value::as_str) == Some("SUCCESS"))
}

/// Returns the beginning of a body: at most [`MAX_EXCERPT`] bytes, printable, and without these secrets.
#[must_use]
pub fn excerpt(body: &[u8], secrets: &[impl AsRef<str>]) -> String {
    let longest = secrets.iter().map(|secret| secret.as_ref().len()).max();
    // Read far enough to redact a secret that extends beyond the end of the excerpt.
    let most = MAX_EXCERPT.saturating_add(longest.unwrap_or_default());
    let mut text = String::from_utf8_lossy(&body[..body.len().min(most)]).into_owned();
    for secret in secrets {
        let secret = secret.as_ref();
        if !secret.is_empty() {
            text = text.replace(secret, "[redacted]");
        }
    }
    printable(&text, MAX_EXCERPT)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use relent_core::FailureKind;

    use super::*;
    use crate::schedule;

    fn judged(
        policy: &str,
        rule: Acknowledgement,
        status: u16,
        fields: &[(&'static str, &str)],
        body: &[u8],
        end: BodyEnd,
    ) -> Result<(), NotAcknowledged> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        let answer = ReceiverResponse {
            status: StatusCode::from_u16(status).unwrap(),
            headers: &headers,
            body,
            end,
        };
        judge(answer, rule, &schedule::policy(policy).unwrap(), UNIX_EPOCH)
    }

    fn plain(status: u16, fields: &[(&'static str, &str)]) -> Result<(), NotAcknowledged> {
        judged(
            "standard-webhooks",
            Acknowledgement::Success,
            status,
            fields,
            b"",
            BodyEnd::Whole,
        )
    }

    #[test]
    fn a_2xx_acknowledges_and_nothing_else_does() {
        for status in 100..1000 {
            assert_eq!(
                plain(status, &[]).is_ok(),
                (200..300).contains(&status),
                "{status}"
            );
        }
    }

    #[test]
    fn an_invalid_http_status_counts_as_500() {
        for policy in ["standard-webhooks", "wechat-pay", "sns"] {
            for status in [100, 101, 199, 600, 601, 799, 999] {
                let whole = BodyEnd::Whole;
                let refused = judged(policy, Acknowledgement::Success, status, &[], b"", whole);
                let NotAcknowledged { failure, error, .. } = refused.unwrap_err();
                assert_eq!(failure.cause, Cause::Status(500), "{status}");
                assert_eq!(failure.kind, FailureKind::Ambiguous, "{status}");
                assert!(error.contains(&status.to_string()), "{error}");
            }
        }
    }

    #[test]
    fn the_later_wechat_pay_rule_requires_an_empty_200_or_204() {
        let rule = Acknowledgement::NoBody;
        for (status, body, acknowledges) in [
            (200, "", true),
            (204, "", true),
            (201, "", false),
            (202, "", false),
            (206, "", false),
            (200, "{\"code\":\"SUCCESS\"}", false),
            (200, "success", false),
            (200, " ", false),
            (500, "", false),
            (302, "", false),
        ] {
            for end in [BodyEnd::Whole, BodyEnd::Cut] {
                let judged = judged("wechat-pay", rule, status, &[], body.as_bytes(), end);
                let expected = acknowledges && end == BodyEnd::Whole;
                assert_eq!(judged.is_ok(), expected, "{status} {body:?} {end:?}");
            }
        }
    }

    #[test]
    fn each_acknowledgement_rule_requires_its_complete_body() {
        use Acknowledgement::{BodySuccess, CodeSuccess, Success};
        for (rule, body, acknowledges) in [
            (Success, "anything", true),
            (BodySuccess, "success", true),
            (BodySuccess, "success\n", false),
            (BodySuccess, "SUCCESS", false),
            (BodySuccess, "", false),
            (BodySuccess, "{\"code\":\"SUCCESS\"}", false),
            (CodeSuccess, "{\"code\":\"SUCCESS\"}", true),
            (
                CodeSuccess,
                " {\"message\":\"\", \"code\" : \"SUCCESS\"} ",
                true,
            ),
            (CodeSuccess, "{\"code\":\"success\"}", false),
            (CodeSuccess, "{\"code\":\"FAIL\"}", false),
            (CodeSuccess, "[{\"code\":\"SUCCESS\"}]", false),
            (CodeSuccess, "{\"code\":\"SUCCESS\"", false),
            (CodeSuccess, "success", false),
        ] {
            for end in [
                BodyEnd::Whole,
                BodyEnd::TooLong,
                BodyEnd::Cut,
                BodyEnd::TimedOut,
            ] {
                let judged = judged("wechat-pay", rule, 200, &[], body.as_bytes(), end);
                let expected = match end {
                    BodyEnd::Whole => acknowledges,
                    BodyEnd::TooLong => rule == Success,
                    BodyEnd::Cut | BodyEnd::TimedOut => false,
                };
                assert_eq!(judged.is_ok(), expected, "{rule:?} {body} {end:?}");
            }
        }
        // The status must be a success, too.
        let failed = judged(
            "wechat-pay",
            BodySuccess,
            500,
            &[],
            b"success",
            BodyEnd::Whole,
        );
        assert!(failed.is_err());
    }

    #[test]
    fn a_body_without_acknowledgement_does_not_count_as_endpoint_failure() {
        let rule = Acknowledgement::BodySuccess;
        let refused = judged("alipay", rule, 200, &[], b"fail", BodyEnd::Whole).unwrap_err();
        assert_eq!(refused.failure.scope, Scope::Request);
        assert_eq!(refused.failure.kind, FailureKind::Ambiguous);
    }

    #[test]
    fn a_410_marks_the_endpoint_gone_and_abort_message_forbids_retries() {
        assert!(plain(410, &[]).unwrap_err().gone);
        assert!(!plain(404, &[]).unwrap_err().gone);
        let aborted = plain(500, &[("webhook-delivery", "abort-message")]).unwrap_err();
        assert_eq!(aborted.failure.hint.advice, Advice::DoNotRetry);
        let other = plain(500, &[("webhook-delivery", "something")]).unwrap_err();
        assert_eq!(other.failure.hint.advice, Advice::None);
    }

    #[test]
    fn a_no_retry_marker_does_not_end_a_message() {
        for mark in ["exhausted", "overloaded"] {
            let fields = [
                ("relent-mark", mark),
                ("x-should-retry", "false"),
                ("retry-after", "60"),
            ];
            let refused = plain(503, &fields).unwrap_err();
            assert_ne!(refused.failure.kind, FailureKind::Overloaded);
            assert_eq!(refused.failure.hint.advice, Advice::None);
            let after = refused.failure.hint.delay();
            assert_eq!(after, Some(Duration::from_secs(60)));
        }
    }

    #[test]
    fn each_field_for_do_not_retry_ends_a_message_unless_a_no_retry_marker_is_beside_it() {
        for field in [
            ("x-should-retry", "false"),
            ("stripe-should-retry", "false"),
            ("grpc-retry-pushback-ms", "-1"),
            ("grpc-retry-pushback-ms", "soon"),
            ("grpc-retry-pushback-ms", "+5"),
            ("grpc-retry-pushback-ms", "-0"),
        ] {
            let refused = plain(422, &[field]).unwrap_err();
            assert_eq!(refused.failure.hint.advice, Advice::DoNotRetry, "{field:?}");
            let marked = plain(503, &[field, ("relent-mark", "exhausted")]).unwrap_err();
            assert_eq!(marked.failure.hint.advice, Advice::None, "{field:?}");
        }
        let delayed = [
            ("relent-mark", "exhausted"),
            ("grpc-retry-pushback-ms", "60000"),
        ];
        let hint = plain(503, &delayed).unwrap_err().failure.hint;
        assert_eq!(hint.delay(), Some(Duration::from_secs(60)));
    }

    #[test]
    fn a_response_disables_its_endpoint_by_410_or_by_header() {
        let disable = [("webhook-delivery", " Disable ")];
        for status in [200, 302, 404, 410, 500, 600] {
            let mut headers = HeaderMap::new();
            headers.append("webhook-delivery", "Disable".parse().unwrap());
            let status = StatusCode::from_u16(status).unwrap();
            assert!(disables(status, &headers).unwrap().contains("disable"));
            assert!(holds(&headers));
            let plain = disables(status, &HeaderMap::new());
            assert_eq!(plain.is_some(), status == StatusCode::GONE);
        }
        let refused = plain(503, &disable).unwrap_err();
        assert!(refused.gone);
        assert_eq!(refused.failure.hint.advice, Advice::None);
        assert!(!plain(503, &[]).unwrap_err().gone);
    }

    #[test]
    fn retry_after_is_limited_by_the_message_policy() {
        for (said, heard) in [
            ("60", 60),
            ("86400", 86_400),
            ("86401", 86_400),
            ("99999999999999999999", 86_400),
        ] {
            let refused = plain(429, &[("retry-after", said)]).unwrap_err();
            assert_eq!(
                refused.failure.hint.delay(),
                Some(Duration::from_secs(heard)),
                "{said}"
            );
        }
    }

    #[test]
    fn an_excerpt_is_short_and_printable_and_contains_no_secret() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let echoed = format!("your key {secret}\r\n\u{1b}[31m {secret}");
        let kept = excerpt(echoed.as_bytes(), &[secret]);
        assert_eq!(kept, "your key [redacted]\u{fffd} \u{fffd}[31m [redacted]");
        let none: [&str; 0] = [];
        assert_eq!(excerpt(&[b'a'; 5000], &none).len(), MAX_EXCERPT);
        assert!(excerpt(&[0xff; 5000], &none).len() <= MAX_EXCERPT);
        // A secret that extends beyond the end leaves no part behind.
        let mut long = vec![b'a'; MAX_EXCERPT - 10];
        long.extend(secret.as_bytes());
        assert!(!excerpt(&long, &[secret]).contains("whsec"));
    }
}
