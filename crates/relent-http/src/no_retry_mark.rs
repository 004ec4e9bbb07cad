//! The no-retry marker: a response header that stops retries in all layers above.

use http::HeaderMap;
use http::HeaderValue;
#[cfg(feature = "attempt")]
use http::Response;
#[cfg(feature = "attempt")]
use relent::Summary;
#[cfg(feature = "attempt")]
use relent_core::Hop;
use relent_core::{Advice, Failure, FailureKind, Hint, Scope, StopReason};

use crate::field::trim;
use crate::headers::{RELENT_MARK, RELENT_SCOPE, X_ENVOY_RATELIMITED};
use crate::hint::source;

/// No-retry marker that a service sets on its own failed response, so that no layer above retries it.
///
/// If three layers each make four attempts, one call becomes 4, 16, 64 attempts. So only the lowest layer that
/// can retry does. When it gives up, it marks its response; the layers above pass the mark on.
/// [`classify`](crate::classify) understands the mark in every client. `exhausted` is advice not to retry;
/// `overloaded` is a kind of failure, and the server's delay stays valid.
///
/// ```
/// use relent_core::StopReason;
/// use relent_http::Mark;
///
/// // The retries of a call below are exhausted, so the response of this service gets a mark too.
/// let mut response = http::Response::builder().status(502).body(())?;
/// if let Some(mark) = Mark::of(StopReason::RetriesExhausted) {
///     mark.set(response.headers_mut());
/// }
/// assert_eq!(response.headers()["relent-mark"], "exhausted");
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mark {
    /// Retries were exhausted below: further retries cannot help.
    Exhausted,
    /// This service or one below is overloaded: retries would add load. Outranks
    /// [`Exhausted`](Self::Exhausted).
    Overloaded,
}

impl Mark {
    /// The mark for the response of a service whose call to a service below was given up for this reason;
    /// `None` if the reason says nothing about a retry above.
    ///
    /// | reason | mark |
    /// |---|---|
    /// | retries, time, budget or circuit breaker used up; the server said not to retry, or to come back later; not repeatable | `Exhausted` |
    /// | overloaded; rejected by the throttle of this process | `Overloaded` |
    /// | permanent, outcome unknown | none: the "do not retry" of an [`ErrorResponse`](crate::ErrorResponse) is enough |
    /// | not replayable, no destination, cancelled | none: the holder of the request may repeat it |
    #[must_use]
    pub const fn of(reason: StopReason) -> Option<Self> {
        match reason {
            StopReason::RetriesExhausted
            | StopReason::MaxElapsed
            | StopReason::Deadline
            | StopReason::NotRepeatable
            | StopReason::DoNotRetry
            | StopReason::Budget
            | StopReason::CircuitBreaker
            | StopReason::RetryLater => Some(Self::Exhausted),
            StopReason::Overloaded | StopReason::Throttle => Some(Self::Overloaded),
            StopReason::Permanent
            | StopReason::OutcomeUnknown
            | StopReason::NotReplayable
            | StopReason::NoDestination
            | StopReason::Cancelled => None,
        }
    }

    /// The word for this mark in the header.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::Overloaded => "overloaded",
        }
    }

    /// Reads the mark from the headers of a response or from gRPC trailers. Of several marks the one of higher rank
    /// counts; unknown words are ignored.
    ///
    /// ```
    /// use relent_http::Mark;
    ///
    /// let mut headers = http::HeaderMap::new();
    /// assert_eq!(Mark::read(&headers), None);
    /// headers.insert("relent-mark", "exhausted, overloaded".parse()?);
    /// assert_eq!(Mark::read(&headers), Some(Mark::Overloaded));
    /// # Ok::<(), http::header::InvalidHeaderValue>(())
    /// ```
    #[must_use]
    pub fn read(headers: &HeaderMap) -> Option<Self> {
        words(headers).flatten().max()
    }

    /// Writes the mark to the headers of a response.
    pub fn set(self, headers: &mut HeaderMap) {
        headers.insert(RELENT_MARK, HeaderValue::from_static(self.name()));
    }

    /// The failure of a response that has this mark.
    fn on(self, mut failure: Failure) -> Failure {
        match self {
            Self::Overloaded => {
                failure.kind = FailureKind::Overloaded;
                failure.scope = Scope::Destination;
            }
            // Whether the request took effect stays unknown. In gRPC the mark may be in the headers, and
            // everything else in the trailers.
            Self::Exhausted if failure.hint.advice != Advice::DoNotRetry => {
                let malformed = failure.hint.malformed;
                failure.hint = Hint::do_not_retry().from_source(source::RELENT_MARK);
                failure.hint.malformed = malformed;
            }
            Self::Exhausted => {}
        }
        failure
    }

    fn from_word(word: &[u8]) -> Option<Self> {
        [Self::Exhausted, Self::Overloaded]
            .into_iter()
            .find(|mark| word.eq_ignore_ascii_case(mark.name().as_bytes()))
    }
}

/// Whether the field holds an unknown word.
pub(crate) fn is_malformed(headers: &HeaderMap) -> bool {
    words(headers).any(|word| word.is_none())
}

/// Each word of the field; `None` for an unknown one.
fn words(headers: &HeaderMap) -> impl Iterator<Item = Option<Mark>> {
    headers
        .get_all(RELENT_MARK)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(|word| Mark::from_word(trim(word)))
}

/// The failure after the markers in these headers have been applied.
pub(crate) fn marked(mut failure: Failure, headers: &HeaderMap) -> Failure {
    if headers
        .get(RELENT_SCOPE)
        .is_some_and(|scope| scope == "request")
    {
        failure.scope = Scope::Request;
    }
    // `x-envoy-overloaded` adds nothing to the status; Envoy itself ignores it since 2020.
    if headers.contains_key(X_ENVOY_RATELIMITED) {
        failure.kind = FailureKind::Throttled;
        failure.scope = Scope::Destination;
    }
    match Mark::read(headers) {
        Some(mark) => mark.on(failure),
        None => failure,
    }
}

/// The failure of a call that another layer of this process gave up for this reason, as if that layer had marked it.
#[cfg(feature = "attempt")]
pub(crate) fn given_up(mut failure: Failure, reason: StopReason) -> Failure {
    match (Mark::of(reason), reason) {
        (Some(mark), _) => mark.on(failure),
        // The failure can be the result of an earlier request of that layer, within one attempt of this one.
        (None, StopReason::OutcomeUnknown) => {
            if failure.hop == Hop::None {
                failure.hop = Hop::Here;
            }
            failure.as_if_applied(true)
        }
        (None, _) => failure,
    }
}

/// Marks the response of a service if the [`Summary`] in its extensions reports a call that was given up.
/// Use it as the outermost function around a service that returns the response of a service below.
///
/// A newly built response needs a copy of the summary in its extensions; or call [`Mark::set`].
///
/// After [`StopReason::OutcomeUnknown`] do not return the last response, such as a 412: it would say that nothing was
/// done. Respond with [`ErrorResponse::gave_up`](crate::ErrorResponse::gave_up).
///
/// ```
/// use relent_core::StopReason;
/// use relent_http::mark_response;
/// # use std::time::Duration;
///
/// # let summary = relent::Summary {
/// #     attempts: 4,
/// #     elapsed: Duration::ZERO,
/// #     reason: Some(StopReason::RetriesExhausted),
/// #     ..relent::Summary::default()
/// # };
/// // In a stack: tower::ServiceBuilder::new().map_response(mark_response), or axum's map_response.
/// let mut response = http::Response::builder().status(503).body("down")?;
/// response.extensions_mut().insert(summary);
/// assert_eq!(mark_response(response).headers()["relent-mark"], "exhausted");
/// # Ok::<(), http::Error>(())
/// ```
#[cfg(feature = "attempt")]
#[must_use]
pub fn mark_response<B>(mut response: Response<B>) -> Response<B> {
    let summary = response.extensions().get::<Summary>();
    if let Some(mark) = summary
        .and_then(|summary| summary.reason)
        .and_then(Mark::of)
    {
        mark.set(response.headers_mut());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(RELENT_MARK, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn marks_are_read_in_any_case_from_any_line_or_list() {
        for values in [
            &["overloaded"][..],
            &[" OverLoaded\t"],
            &["exhausted", "overloaded"],
            &["overloaded,exhausted"],
            &["what, overloaded"],
        ] {
            assert_eq!(
                Mark::read(&of(values)),
                Some(Mark::Overloaded),
                "{values:?}"
            );
        }
        assert_eq!(Mark::read(&of(&["exhausted"])), Some(Mark::Exhausted));
    }

    #[test]
    fn a_failure_with_the_scope_of_a_request_concerns_no_other() {
        let scope = |value: &str| {
            let headers = HeaderMap::from_iter([(RELENT_SCOPE, value.parse().unwrap())]);
            marked(Failure::ambiguous(), &headers).scope
        };
        assert_eq!(scope("request"), Scope::Request);
        assert_eq!(scope("service"), Scope::Destination);
    }

    #[test]
    fn a_word_that_is_no_mark_is_ignored() {
        for value in [
            "",
            ",",
            "true",
            "exhausted;",
            "exhausted overloaded",
            "\u{fc}",
        ] {
            let headers = of(&[value]);
            assert_eq!(Mark::read(&headers), None, "{value:?}");
            assert!(is_malformed(&headers), "{value:?}");
        }
        assert!(!is_malformed(&HeaderMap::new()));
        assert!(!is_malformed(&of(&["exhausted"])));
    }

    #[test]
    fn a_mark_that_is_set_is_read_back() {
        for mark in [Mark::Exhausted, Mark::Overloaded] {
            let mut headers = of(&["exhausted", "overloaded"]);
            mark.set(&mut headers);
            assert_eq!(Mark::read(&headers), Some(mark));
        }
    }

    #[test]
    fn a_give_up_without_retries_sets_no_mark() {
        for reason in [
            StopReason::Permanent,
            StopReason::OutcomeUnknown,
            StopReason::NotReplayable,
            StopReason::NoDestination,
            StopReason::Cancelled,
        ] {
            assert_eq!(Mark::of(reason), None, "{reason}");
        }
    }
}
