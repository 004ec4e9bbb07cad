//! Services that make more than one request for one call.

use http::{Response, Uri};
use relent::clock::Clock;
use relent_core::{Failure, Hop};

use super::outcome::AttemptResult;
use super::{CallDriver, Config};

/// Response extension: the address that responded, if it may differ from the address of the request.
///
/// A service that follows redirects inserts it, below a layer that
/// [`may_call_twice`](super::RetryLayer::may_call_twice). A cooldown that such a response asks for
/// then applies to that address; for the original destination the request counts as answered.
///
/// ```
/// use relent_http::layer::AnsweredBy;
///
/// // From `tower_http::follow_redirect::RequestUri`, which is in the extensions of its responses.
/// let mut response = http::Response::new("");
/// let answered = http::Uri::from_static("https://other.example/");
/// response.extensions_mut().insert(AnsweredBy(answered));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnsweredBy(pub Uri);

impl<K: Clock + Clone, M, N> Config<K, M, N> {
    /// Marks a failure as one of the last request only. If another destination answered that request, and its address
    /// is known, reports the failure to that destination.
    #[cold]
    pub(super) fn attribute_to_last_request<R>(
        &self,
        driver: &mut CallDriver<K>,
        outcome: &AttemptResult<R>,
        failure: &mut Failure,
    ) {
        failure.hop = Hop::Here;
        let Some(AnsweredBy(uri)) = outcome.as_ref().ok().and_then(answered_by) else {
            return;
        };
        let there = self.destinations.at(uri);
        let own = driver.destination();
        if own.is_none_or(|own| !std::ptr::eq(own, &*there)) {
            driver.on_redirected(&there, None, Some(failure));
            failure.hop = Hop::Elsewhere;
        }
    }
}

fn answered_by<R>(response: &Response<R>) -> Option<&AnsweredBy> {
    response.extensions().get()
}
