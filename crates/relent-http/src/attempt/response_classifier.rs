//! Classification of the response of an attempt.

use std::time::SystemTime;

use http::{Extensions, HeaderMap, Method, StatusCode};
use relent::Summary;
use relent_core::{Cause, Failure, Policy};

use crate::classify::{cannot_fail, classify, classify_listed, refused};
use crate::hint::HintOptions;
use crate::no_retry_mark::given_up;
use crate::repeatable::RequestInfo;

/// Classifies the responses of attempts by HTTP semantics, the lists of a policy, and calls that were
/// given up below.
///
/// ```
/// use std::time::SystemTime;
/// use http::{Extensions, HeaderMap, StatusCode};
/// use relent_core::Policy;
/// use relent_http::attempt::ResponseClassifier;
/// use relent_http::{HintOptions, RequestInfo};
///
/// let classifier = ResponseClassifier { policy: Policy::STANDARD, hints: &HintOptions::default() };
/// let headers = HeaderMap::new();
/// assert!(classifier.is_certain_success(StatusCode::OK, &headers));
/// let (facts, now) = (RequestInfo::default(), SystemTime::now());
/// let status = StatusCode::BAD_GATEWAY;
/// assert!(classifier.failure(status, &headers, &Extensions::new(), facts, now).is_some());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ResponseClassifier<'a> {
    /// The policy of the request.
    pub policy: &'a Policy,
    /// How to interpret headers whose meaning differs between vendors.
    pub hints: &'a HintOptions,
}

impl ResponseClassifier<'_> {
    /// Whether a response is certainly no failure, whatever the request facts: most are not, and need no clock.
    #[inline]
    #[must_use]
    pub fn is_certain_success(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        cannot_fail(status, headers) && !self.policy.makes_failure_of(status.as_u16())
    }

    /// The failure of a response with this head; `None` if it is no failure. `now` is the local time.
    #[must_use]
    pub fn failure(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        extensions: &Extensions,
        facts: RequestInfo,
        now: SystemTime,
    ) -> Option<Failure> {
        let failure = classify(status, headers, facts, now, self.hints)
            .or_else(|| classify_listed(self.policy, status, headers, now, self.hints))?;
        Some(apply_inner_summary(failure, extensions))
    }

    /// The failure of a response that is [none](Self::failure), but that the caller refuses. As with a listed status,
    /// it concerns this request only, has the hint and the mark of the response, and is ambiguous.
    #[must_use]
    pub fn refused(&self, status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Failure {
        refused(status, headers, now, self.hints)
    }
}

/// Applies the [`Summary`] in the extensions of a response to its failure. If another layer of this process has given
/// up the call, no layer above repeats its retries.
#[must_use]
pub fn apply_inner_summary(failure: Failure, extensions: &Extensions) -> Failure {
    let reason = extensions
        .get::<Summary>()
        .and_then(|summary| summary.reason);
    match reason {
        Some(reason) => given_up(failure, reason),
        None => failure,
    }
}

/// Changes the failure of an attempt while another attempt runs. If a `DELETE` finds the resource gone, the other
/// attempt may have deleted it.
#[must_use]
pub fn apply_concurrent_attempts(failure: Failure, method: &Method) -> Failure {
    let gone = *method == Method::DELETE && matches!(failure.cause, Cause::Status(404 | 410));
    failure.as_if_applied(failure.as_if_applied || gone)
}
