//! The upstream of each attempt: its choice, and how the attempt ended there.

use std::fmt;

use http::Uri;
use relent_core::Failure;

/// Chooses the upstream of each attempt, and learns how the attempt ended there: for a load balancer that avoids
/// the upstream that has just failed, and for passive health checks.
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use http::Uri;
/// use relent::{Failure, Policy};
/// use relent_http::RetryLayer;
/// use relent_http::layer::{PreviousAttempt, Upstreams};
///
/// /// Two upstreams; each counts its failures in a row.
/// struct Pair([(Uri, AtomicU32); 2]);
///
/// impl Upstreams for Pair {
///     fn choose(&self, _: u32, previous: Option<&PreviousAttempt>, uri: &mut Uri) {
///         let [first, second] = &self.0;
///         let failed = previous.is_some_and(|previous| previous.uri == first.0);
///         let is_worse = first.1.load(Ordering::Relaxed) > second.1.load(Ordering::Relaxed);
///         *uri = if failed || is_worse { &second.0 } else { &first.0 }.clone();
///     }
///
///     fn ended(&self, uri: &Uri, failure: Option<&Failure>) {
///         for (_, failures) in self.0.iter().filter(|(upstream, _)| upstream == uri) {
///             match failure {
///                 Some(_) => failures.fetch_add(1, Ordering::Relaxed),
///                 None => failures.swap(0, Ordering::Relaxed),
///             };
///         }
///     }
/// }
///
/// let upstream = |uri| (Uri::from_static(uri), AtomicU32::new(0));
/// let pair = Pair([upstream("http://one.example/"), upstream("http://two.example/")]);
/// let layer = RetryLayer::new(Policy::STANDARD).upstreams(pair);
/// # drop(layer);
/// ```
pub trait Upstreams: Send + Sync {
    /// Changes the URI of the request to that of an upstream. `attempt` is 1 for the first. `previous` is the attempt
    /// that has failed, or that a hedge joins.
    fn choose(&self, attempt: u32, previous: Option<&PreviousAttempt>, uri: &mut Uri);

    /// Called when an attempt has ended at the upstream with this URI. `failure` is `None` for a success. It is not
    /// called for an attempt that is cancelled.
    fn ended(&self, uri: &Uri, failure: Option<&Failure>) {
        let _ = (uri, failure);
    }
}

/// The attempt before the one whose upstream is chosen.
#[derive(Clone)]
#[non_exhaustive]
pub struct PreviousAttempt {
    /// Its URI, as it was chosen.
    pub uri: Uri,
    /// The failure that ended it; `None` if it still runs, and a hedge joins it.
    pub failure: Option<Failure>,
}

/// Omits the URI, which can contain a credential.
impl fmt::Debug for PreviousAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreviousAttempt")
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

/// A function that chooses by the number of the attempt alone.
pub(super) struct ByNumber<F>(pub(super) F);

impl<F: Fn(u32, &mut Uri) + Send + Sync> Upstreams for ByNumber<F> {
    fn choose(&self, attempt: u32, _: Option<&PreviousAttempt>, uri: &mut Uri) {
        (self.0)(attempt, uri);
    }
}
