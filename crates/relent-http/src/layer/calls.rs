//! A service that makes more than one call for one of its own.

use http::{Response, Uri};
use relent::clock::Clock;
use relent_core::{Failure, Hop};

use super::outcome::Outcome;
use super::{CallDriver, Config};

/// In the extensions of a response: the address that answered, where that may be another than the one
/// that was asked.
///
/// A service that follows redirects puts it there, below a layer that
/// [`may_call_twice`](super::RetryLayer::may_call_twice). A cooldown that such a response asks for is
/// then one of that address, and the destination that was asked has answered.
///
/// ```
/// use relent_http::layer::AnsweredBy;
///
/// // Of `tower_http::follow_redirect::RequestUri`, which is in the extensions of its responses.
/// let mut response = http::Response::new("");
/// let answered = http::Uri::from_static("https://other.example/");
/// response.extensions_mut().insert(AnsweredBy(answered));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnsweredBy(pub Uri);

impl<K: Clock + Clone, M, N> Config<K, M, N> {
    /// Says of a failure that it is one of the last call only, and tells the destination of that call,
    /// if there was more than one and it is known.
    #[cold]
    pub(super) fn heed_calls<R>(
        &self,
        driver: &mut CallDriver<K>,
        outcome: &Outcome<R>,
        failure: &mut Failure,
    ) {
        failure.hop = Hop::Here;
        let Some(AnsweredBy(uri)) = outcome.response().and_then(answered_by) else {
            return;
        };
        let there = self.destinations.at(uri);
        let own = driver.destination();
        if own.is_none_or(|own| !std::ptr::eq(own, &*there)) {
            driver.on_elsewhere(&there, None, Some(failure));
            failure.hop = Hop::Elsewhere;
        }
    }
}

fn answered_by<R>(response: &Response<R>) -> Option<&AnsweredBy> {
    response.extensions().get()
}
