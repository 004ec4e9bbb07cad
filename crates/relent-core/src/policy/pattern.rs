//! Patterns of failures, for rules and lists of a policy.

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use crate::failure::{Cause, Failure, FailureKind, Network};
use crate::grpc::GrpcCode;

/// A set of causes, as written in a policy file's `on`, `retry_on`, `stop_on` and `not_processed`.
///
/// | text | matches |
/// |---|---|
/// | `503`, `500-504`, `5xx` | an HTTP status, from 200 to 599; a pattern that includes 408 also matches what `timeout` matches |
/// | `grpc:unavailable`, `grpc:14` | a gRPC status code other than OK, by name or number |
/// | `exit:75`, `exit:1-9` | an exit status of a command |
/// | `signal` | a command ended by any signal |
/// | `output` | a command whose output matched the retry pattern |
/// | `timeout` | an attempt that `attempt_timeout` ended; not a response with the status 408 |
/// | `network` | any transport failure |
/// | `connect` | a transport failure before the request was sent |
/// | `throttled` | any throttled failure |
/// | `error` | an unclassified error of the operation |
/// | `any` | every failure |
///
/// In `retry_on`, `any`, `error`, `network` and `connect` do not match permanent failures: these are
/// retried only if their own status, code or exit status is listed. A proxy that refuses a password
/// is such a failure, and repeating the password locks accounts. A pending result ([`Cause::Pending`]) and a
/// write conflict ([`Cause::Conflict`]) are not failures.
///
/// ```
/// use relent_core::{Cause, Failure, Pattern};
///
/// let server_errors: Pattern = "5xx".parse()?;
/// assert!(server_errors.matches(&Failure::ambiguous().cause(Cause::Status(503))));
/// # Ok::<(), relent_core::policy::PatternError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// An HTTP status in this range, both ends included.
    Status(u16, u16),
    /// A gRPC status code by number; [`GrpcCode`] has the names.
    Grpc(u16),
    /// An exit status in this range, both ends included.
    Exit(i32, i32),
    /// A command ended by a signal.
    Signal,
    /// A command whose output matched the retry pattern.
    Output,
    /// A local attempt timeout.
    Timeout,
    /// Any transport failure.
    Network,
    /// A transport failure before the request was sent.
    Connect,
    /// Any throttled failure.
    Throttled,
    /// An unclassified error of the operation.
    Error,
    /// Every failure.
    Any,
}

impl Pattern {
    /// Whether this pattern matches the failure.
    #[must_use]
    pub const fn matches(&self, failure: &Failure) -> bool {
        match (*self, failure.cause) {
            (Self::Any, cause) => !cause.is_regular_response(),
            (Self::Throttled, _) => matches!(failure.kind, FailureKind::Throttled),
            (Self::Status(low, high), Cause::Status(status)) => low <= status && status <= high,
            // A local timeout uses the delay and limit of the rule for 408.
            (Self::Status(low, high), Cause::Timeout) => low <= 408 && 408 <= high,
            (Self::Grpc(wanted), Cause::Grpc(code)) => wanted == code,
            (Self::Exit(low, high), Cause::Exit(code)) => low <= code && code <= high,
            (Self::Connect, Cause::Network(network)) => {
                matches!(network.kind(), FailureKind::NotProcessed)
            }
            (Self::Network, Cause::Network(network)) => {
                !matches!(network, Network::Certificate | Network::BadRequest)
            }
            (Self::Signal, Cause::Signal(_))
            | (Self::Output, Cause::Output)
            | (Self::Timeout, Cause::Timeout)
            | (Self::Error, Cause::Error) => true,
            _ => false,
        }
    }

    /// Whether this pattern matches the cause of the failure, and not just a class of failures.
    const fn names(&self, failure: &Failure) -> bool {
        !matches!(
            self,
            Self::Any | Self::Error | Self::Network | Self::Connect
        ) && self.matches(failure)
    }

    /// Whether a `retry_on` list with these patterns matches this failure. A permanent failure must
    /// be matched by its cause.
    #[inline]
    pub(crate) fn list(patterns: &[Self], failure: &Failure) -> bool {
        match failure.kind {
            FailureKind::Permanent => patterns.iter().any(|pattern| pattern.names(failure)),
            _ => Self::any(patterns, failure),
        }
    }

    /// Whether this is a status or a range that includes this status.
    pub(crate) const fn has_status(&self, status: u16) -> bool {
        matches!(*self, Self::Status(low, high) if low <= status && status <= high)
    }

    /// The lowest status of these patterns; `u16::MAX` if there is none.
    pub(crate) const fn lowest_status(patterns: &[Self]) -> u16 {
        let (mut lowest, mut index) = (u16::MAX, 0);
        while index < patterns.len() {
            if let Self::Status(low, _) = patterns[index]
                && low < lowest
            {
                lowest = low;
            }
            index += 1;
        }
        lowest
    }

    /// Whether this pattern matches every failure that `other` matches.
    pub(crate) const fn covers(&self, other: &Self) -> bool {
        match (*self, *other) {
            (Self::Any, _)
            | (Self::Network, Self::Connect | Self::Network)
            | (Self::Connect, Self::Connect)
            | (Self::Throttled, Self::Throttled)
            | (Self::Timeout, Self::Timeout)
            | (Self::Signal, Self::Signal)
            | (Self::Output, Self::Output)
            | (Self::Error, Self::Error) => true,
            (Self::Status(..), Self::Timeout) => self.has_status(408),
            (Self::Status(low, high), Self::Status(first, last)) => low <= first && last <= high,
            (Self::Exit(low, high), Self::Exit(first, last)) => low <= first && last <= high,
            (Self::Grpc(one), Self::Grpc(other)) => one == other,
            _ => false,
        }
    }

    /// Whether there can be a failure that both patterns match.
    pub(crate) const fn overlaps(&self, other: &Self) -> bool {
        match (*self, *other) {
            // The kind of a failure, which any cause can have.
            (Self::Any | Self::Throttled, _) | (_, Self::Any | Self::Throttled) => true,
            (Self::Status(low, high), Self::Status(first, last)) => low <= last && first <= high,
            (Self::Exit(low, high), Self::Exit(first, last)) => low <= last && first <= high,
            _ => self.covers(other) || other.covers(self),
        }
    }

    /// Whether any of these patterns matches the failure.
    #[inline]
    pub(crate) const fn any(patterns: &[Self], failure: &Failure) -> bool {
        let mut index = 0;
        while index < patterns.len() {
            if patterns[index].matches(failure) {
                return true;
            }
            index += 1;
        }
        false
    }
}

impl From<u16> for Pattern {
    /// A pattern for one HTTP status.
    fn from(status: u16) -> Self {
        Self::Status(status, status)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Status(low, high) if low == high => write!(f, "{low}"),
            Self::Status(low, high) if low % 100 == 0 && high.checked_sub(low) == Some(99) => {
                write!(f, "{}xx", low / 100)
            }
            Self::Status(low, high) => write!(f, "{low}-{high}"),
            Self::Grpc(number) => match GrpcCode::from_number(number) {
                Some(code) => write!(f, "grpc:{code}"),
                None => write!(f, "grpc:{number}"),
            },
            Self::Exit(low, high) if low == high => write!(f, "exit:{low}"),
            Self::Exit(low, high) => write!(f, "exit:{low}-{high}"),
            Self::Signal => f.write_str("signal"),
            Self::Output => f.write_str("output"),
            Self::Timeout => f.write_str("timeout"),
            Self::Network => f.write_str("network"),
            Self::Connect => f.write_str("connect"),
            Self::Throttled => f.write_str("throttled"),
            Self::Error => f.write_str("error"),
            Self::Any => f.write_str("any"),
        }
    }
}

/// The error of a text that is not a pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PatternError {
    text: String,
    /// The reason, if a pattern with this keyword exists but not with this value.
    refused: Option<&'static str>,
}

impl PatternError {
    /// Whether the text has a known form with an invalid value; the message has the reason.
    #[must_use]
    pub const fn has_known_form(&self) -> bool {
        self.refused.is_some()
    }
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = self.refused {
            return write!(f, "{:?} names no failure: {why}", self.text);
        }
        write!(
            f,
            "{:?} names no failure: use a status (503, 500-504, 5xx), exit:N, grpc:unavailable, \
             signal, output, timeout, network, connect, throttled, error or any",
            self.text
        )
    }
}

impl core::error::Error for PatternError {}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let refused = match parse(text.trim()) {
            Some(Pattern::Status(..=199, _)) => {
                Some("a status below 200 is not the answer to a request; use 200 to 599")
            }
            Some(Pattern::Grpc(0)) => {
                Some("the gRPC status OK is a success; use a code from 1 to 16, or its name")
            }
            Some(pattern) => return Ok(pattern),
            None => None,
        };
        Err(PatternError {
            text: text.to_string(),
            refused,
        })
    }
}

fn parse(text: &str) -> Option<Pattern> {
    Some(match text {
        "signal" => Pattern::Signal,
        "output" => Pattern::Output,
        "timeout" => Pattern::Timeout,
        "network" => Pattern::Network,
        "connect" => Pattern::Connect,
        "throttled" => Pattern::Throttled,
        "error" => Pattern::Error,
        "any" => Pattern::Any,
        _ => {
            if let Some(code) = text.strip_prefix("grpc:") {
                let named = code.parse().ok().map(GrpcCode::number);
                return named.or_else(|| number(code, 0, 16)).map(Pattern::Grpc);
            }
            if let Some(codes) = text.strip_prefix("exit:") {
                let (low, high) = range(codes, 0, 255)?;
                return Some(Pattern::Exit(i32::from(low), i32::from(high)));
            }
            if let Some(class) = text.strip_suffix("xx") {
                let class = number(class, 1, 5)?;
                return Some(Pattern::Status(class * 100, class * 100 + 99));
            }
            let (low, high) = range(text, 100, 599)?;
            Pattern::Status(low, high)
        }
    })
}

fn range(text: &str, least: u16, most: u16) -> Option<(u16, u16)> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let (low, high) = (number(low, least, most)?, number(high, least, most)?);
    (low <= high).then_some((low, high))
}

fn number(text: &str, least: u16, most: u16) -> Option<u16> {
    // Unlike `u16::from_str`, rejects "+5".
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse()
        .ok()
        .filter(|number| (least..=most).contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A proxy that refuses a password is one.
    #[test]
    fn no_class_of_failures_in_retry_on_matches_a_permanent_failure() {
        let classes = ["any", "error", "network", "connect"].map(|text| text.parse().unwrap());
        for cause in [Cause::Network(Network::Connect), Cause::Error] {
            let temporary = Failure::not_processed().cause(cause);
            assert!(Pattern::list(&classes, &temporary));
            assert!(!Pattern::list(&classes, &Failure::permanent().cause(cause)));
        }
        let gone = Failure::permanent().cause(Cause::Status(404));
        assert!(Pattern::list(&[404.into()], &gone));
    }

    #[test]
    fn text_form_round_trips() {
        for text in [
            "503",
            "500-504",
            "5xx",
            "grpc:unavailable",
            "exit:75",
            "exit:1-9",
            "signal",
            "output",
            "timeout",
            "network",
            "connect",
            "throttled",
            "error",
            "any",
        ] {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "9xx",
            "600",
            "504-500",
            "+503",
            "exit:256",
            "exit:-1",
            "grpc:17",
            "grpc:",
            "grpc:gone",
            "5XX",
        ] {
            let error = text.parse::<Pattern>().unwrap_err().to_string();
            assert!(error.contains("use a status"), "{error}");
        }
    }

    #[test]
    fn a_grpc_code_is_known_by_name_and_by_number() {
        for text in ["grpc:14", "grpc:unavailable", "grpc:UNAVAILABLE"] {
            assert_eq!(text.parse(), Ok(Pattern::Grpc(14)), "{text}");
        }
        let unavailable = Failure::ambiguous().cause(Cause::Grpc(14));
        assert!(Pattern::Grpc(14).matches(&unavailable));
        assert!(!Pattern::Grpc(13).matches(&unavailable));
    }

    #[test]
    fn a_local_timeout_follows_the_rule_for_408() {
        let timeout = Failure::ambiguous().cause(Cause::Timeout);
        for (text, wanted) in [
            ("408", true),
            ("4xx", true),
            ("timeout", true),
            ("504", false),
        ] {
            assert_eq!(
                text.parse::<Pattern>().unwrap().matches(&timeout),
                wanted,
                "{text}"
            );
        }
    }

    #[test]
    fn a_covering_pattern_matches_every_failure_of_the_other() {
        let all = [
            "408",
            "5xx",
            "503",
            "grpc:14",
            "exit:1",
            "exit:0-9",
            "signal",
            "output",
            "timeout",
            "network",
            "connect",
            "throttled",
            "error",
            "any",
        ];
        let all = all.map(|text| text.parse::<Pattern>().unwrap());
        let failures = [
            Cause::Status(408),
            Cause::Status(503),
            Cause::Status(504),
            Cause::Grpc(14),
            Cause::Exit(1),
            Cause::Exit(2),
            Cause::Signal(9),
            Cause::Output,
            Cause::Timeout,
            Cause::Network(Network::Reset),
            Cause::Network(Network::Connect),
            Cause::Error,
        ];
        for one in all {
            for other in all {
                let mut both = false;
                for (cause, kind) in failures.iter().flat_map(|cause| {
                    [
                        (*cause, FailureKind::Ambiguous),
                        (*cause, FailureKind::Throttled),
                    ]
                }) {
                    let failure = Failure::new(kind).cause(cause);
                    let (mine, others) = (one.matches(&failure), other.matches(&failure));
                    assert!(
                        !one.covers(&other) || mine || !others,
                        "{one} {other} {cause}"
                    );
                    both |= mine && others;
                }
                assert_eq!(one.overlaps(&other), both, "{one} {other}");
            }
        }
    }

    #[test]
    fn network_patterns_do_not_match_a_bad_certificate() {
        let certificate = Failure::network(Network::Certificate);
        assert!(!Pattern::Network.matches(&certificate));
        assert!(!Pattern::Connect.matches(&certificate));
    }

    #[test]
    fn patterns_that_match_no_failure_are_rejected_with_a_reason() {
        for (text, says) in [
            ("101", "a status below 200"),
            ("1xx", "a status below 200"),
            ("100-599", "a status below 200"),
            ("grpc:ok", "the gRPC status OK is a success"),
            ("grpc:0", "the gRPC status OK is a success"),
        ] {
            let error = text.parse::<Pattern>().unwrap_err().to_string();
            assert!(error.contains(says) && error.contains(text), "{error}");
        }
        // Below 400 a status is a failure only if it is listed.
        for text in ["200", "202", "2xx", "300-399"] {
            assert!(text.parse::<Pattern>().is_ok(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_pattern_displays_without_panic(low: u16, high: u16, code: i32) {
            for low in [low, low - low % 100] {
                let _ = Pattern::Status(low, high).to_string();
            }
            let _ = (Pattern::Grpc(low).to_string(), Pattern::Exit(code, i32::from(high)).to_string());
        }

        #[test]
        fn any_text_parses_as_a_pattern_or_fails_without_panic(text in ".{0,20}") {
            if let Ok(pattern) = text.parse::<Pattern>() {
                prop_assert_eq!(pattern.to_string().parse(), Ok(pattern));
            }
        }
    }
}
