//! "Do not retry this", from the layer that has judged a failure to all those above it.

use http::HeaderMap;
use http::HeaderValue;
#[cfg(feature = "attempt")]
use http::Response;
#[cfg(feature = "attempt")]
use relent::Summary;
use relent_core::{Advice, Failure, Hint, HintSource, Kind, Scope, StopReason};

use crate::field::trim;
use crate::headers::{RELENT_MARK, X_ENVOY_RATELIMITED};

/// What a service says of its own failed response, so that no layer above retries it (design rule 8).
///
/// Layers that each attempt four times make 4, 16, 64 attempts of one call. So the lowest layer that
/// can retry does, and marks what it hands up when it gives up; those above hand the mark on.
/// [`classify`](crate::classify) understands it, in every client: `exhausted` is advice not to retry,
/// `overloaded` is a kind of failure, which keeps the server's time for coming back.
///
/// ```
/// use relent_core::StopReason;
/// use relent_http::Mark;
///
/// // The retries of a call below are used up, and so is this response.
/// let mut response = http::Response::builder().status(502).body(())?;
/// if let Some(mark) = Mark::of(StopReason::RetriesExhausted) {
///     mark.set(response.headers_mut());
/// }
/// assert_eq!(response.headers()["relent-mark"], "exhausted");
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mark {
    /// Retries were exhausted below: what a retry can do has been done.
    Exhausted,
    /// Overloaded, here or below: retries are what it can do without. Outranks
    /// [`Exhausted`](Self::Exhausted).
    Overloaded,
}

impl Mark {
    /// The mark for the response of a service whose own call to a service below was given up, for
    /// this reason; `None` if that says nothing about a retry above.
    ///
    /// | reason | mark |
    /// |---|---|
    /// | retries, time, budget or gate used up; the server said not to retry, or to come back later; not repeatable | `Exhausted` |
    /// | overloaded | `Overloaded` |
    /// | permanent, outcome unknown | none: the status is to say it |
    /// | not replayable, no destination, cancelled | none: who has the request may repeat it |
    #[must_use]
    pub const fn of(reason: StopReason) -> Option<Self> {
        match reason {
            StopReason::RetriesExhausted
            | StopReason::MaxElapsed
            | StopReason::Deadline
            | StopReason::NotRepeatable
            | StopReason::DoNotRetry
            | StopReason::Budget
            | StopReason::Gate
            | StopReason::RetryLater => Some(Self::Exhausted),
            StopReason::Overloaded => Some(Self::Overloaded),
            StopReason::Permanent
            | StopReason::OutcomeUnknown
            | StopReason::NotReplayable
            | StopReason::NoDestination
            | StopReason::Cancelled => None,
        }
    }

    /// The word for it in the header.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::Overloaded => "overloaded",
        }
    }

    /// The mark in the headers of a response, or in the trailers of gRPC. Of several the one that
    /// outranks the other; a word that is neither is ignored.
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

    /// Marks the response that has these headers.
    pub fn set(self, headers: &mut HeaderMap) {
        headers.insert(RELENT_MARK, HeaderValue::from_static(self.name()));
    }

    /// The failure of a response that has it.
    fn on(self, mut failure: Failure) -> Failure {
        match self {
            Self::Overloaded => {
                failure.kind = Kind::Overloaded;
                failure.scope = Scope::Destination;
            }
            // It is as open as before whether it took effect. In gRPC the mark may be in the headers, and
            // all else in the trailers.
            Self::Exhausted if failure.hint.advice != Advice::DoNotRetry => {
                let malformed = failure.hint.malformed;
                failure.hint = Hint::do_not_retry().from_source(HintSource::RelentMark);
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

/// Whether the field holds a word that is no mark.
pub(crate) fn is_malformed(headers: &HeaderMap) -> bool {
    words(headers).any(|word| word.is_none())
}

/// Each word of the field, `None` for one that is no mark.
fn words(headers: &HeaderMap) -> impl Iterator<Item = Option<Mark>> {
    headers
        .get_all(RELENT_MARK)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(|word| Mark::from_word(trim(word)))
}

/// The failure that a response with these headers is, whatever its status alone would say.
pub(crate) fn marked(mut failure: Failure, headers: &HeaderMap) -> Failure {
    // `x-envoy-overloaded` says nothing more than the status does, for Envoy itself since 2020.
    if headers.contains_key(X_ENVOY_RATELIMITED) {
        failure.kind = Kind::Throttled;
        failure.scope = Scope::Destination;
    }
    match Mark::read(headers) {
        Some(mark) => mark.on(failure),
        None => failure,
    }
}

/// The failure of a call that another layer of this process has given up for this reason: as if the
/// layer had marked it.
#[cfg(feature = "attempt")]
pub(crate) fn given_up(failure: Failure, reason: StopReason) -> Failure {
    match Mark::of(reason) {
        Some(mark) => mark.on(failure),
        None => failure,
    }
}

/// Marks the response of a service if the [`Summary`] in its extensions tells of a call that was
/// given up. For a service that hands up what it got from below, as the outermost function around it.
///
/// A response that was made anew has the summary if it is put there, or [`Mark::set`] marks it.
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
    fn a_mark_is_read_in_any_capitals_from_any_line_or_list() {
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
    fn what_is_set_is_read() {
        for mark in [Mark::Exhausted, Mark::Overloaded] {
            let mut headers = of(&["exhausted", "overloaded"]);
            mark.set(&mut headers);
            assert_eq!(Mark::read(&headers), Some(mark));
        }
    }

    #[test]
    fn a_layer_that_could_do_nothing_leaves_the_retry_to_the_one_above() {
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
