//! The upstream of each attempt: its choice, and how the attempt ended there.

use std::fmt;
use std::sync::Arc;

use http::Uri;
use relent::Destination;
use relent::clock::Clock;
use relent::destination::DestinationAttempt;
use relent_core::{Failure, Instant};

/// Chooses the upstream of each attempt, and learns how the attempt ended there: for a load balancer that avoids
/// the upstream that has just failed, and for passive health checks.
///
/// Give each upstream a [`Destination`] of its own, and choose one that
/// [lets the attempt start](UpstreamChoice::try_start). While an upstream is down, its circuit breaker lets only
/// probes start, so other attempts go to the others:
///
/// ```
/// use std::sync::Arc;
/// use http::Uri;
/// use relent::{Destination, Policy};
/// use relent_http::RetryLayer;
/// use relent_http::layer::{UpstreamChoice, Upstreams};
///
/// /// Two upstreams, each with its circuit breaker.
/// struct Pair([(Uri, Arc<Destination>); 2]);
///
/// impl Upstreams for Pair {
///     fn choose(&self, choice: &mut UpstreamChoice<'_>) {
///         let [first, second] = &self.0;
///         let failed = choice.previous().is_some_and(|previous| previous.uri == first.0);
///         let order = if failed { [second, first] } else { [first, second] };
///         let free = order.iter().find(|(_, destination)| choice.try_start(destination));
///         // If neither may start, the attempt is made nevertheless.
///         *choice.uri_mut() = free.unwrap_or(&order[0]).0.clone();
///     }
/// }
///
/// let upstream = |uri| (Uri::from_static(uri), Arc::new(Destination::new(Policy::STANDARD)));
/// let pair = Pair([upstream("http://one.example/"), upstream("http://two.example/")]);
/// let layer = RetryLayer::new(Policy::STANDARD).upstreams(pair);
/// # drop(layer);
/// ```
///
/// The destination of the layer still admits each attempt before an upstream is chosen, and its budget pays for
/// retries. It is down only if most attempts fail, whichever upstream they had.
///
/// A request with an idempotency key is repeatable only if the upstreams share their records of keys. Otherwise it may
/// run once at each: make it not repeatable with an [`Override`](super::Override).
pub trait Upstreams: Send + Sync {
    /// Changes the URI of the request to that of an upstream.
    fn choose(&self, choice: &mut UpstreamChoice<'_>);

    /// Called when an attempt has ended at the upstream with this URI. `failure` is `None` for a success. It is not
    /// called for an attempt that is cancelled.
    fn ended(&self, uri: &Uri, failure: Option<&Failure>) {
        let _ = (uri, failure);
    }
}

/// The choice of an upstream for an attempt.
pub struct UpstreamChoice<'a> {
    attempt: u32,
    previous: Option<&'a PreviousAttempt>,
    uri: &'a mut Uri,
    start: &'a mut dyn FnMut(&Arc<Destination>) -> bool,
}

impl UpstreamChoice<'_> {
    /// The number of the attempt; 1 for the first.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The attempt that has failed, or that a hedge joins; `None` for the first attempt.
    #[must_use]
    pub const fn previous(&self) -> Option<&PreviousAttempt> {
        self.previous
    }

    /// The URI of the request.
    #[must_use]
    pub const fn uri(&self) -> &Uri {
        self.uri
    }

    /// The URI of the request, to be changed.
    #[must_use]
    pub const fn uri_mut(&mut self) -> &mut Uri {
        self.uri
    }

    /// Whether the attempt may start now at this destination, as [`Destination::try_start`] decides. If so, the layer
    /// reports the end of the attempt to it, and takes back an earlier start of this choice.
    pub fn try_start(&mut self, destination: &Arc<Destination>) -> bool {
        (self.start)(destination)
    }
}

impl fmt::Debug for UpstreamChoice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamChoice")
            .field("attempt", &self.attempt)
            .field("previous", &self.previous)
            .finish_non_exhaustive()
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
    fn choose(&self, choice: &mut UpstreamChoice<'_>) {
        (self.0)(choice.attempt, choice.uri);
    }
}

/// The upstream of a running attempt.
pub(super) struct ChosenUpstream<K: Clock> {
    uri: Uri,
    /// When it was chosen.
    pub(super) at: Instant,
    /// The attempt at the destination of the upstream, if that was asked.
    started: Option<DestinationAttempt<K>>,
}

impl<K: Clock + Clone> ChosenUpstream<K> {
    /// Chooses the upstream of an attempt, and writes its URI.
    #[cold]
    pub(super) fn choose(
        upstreams: &dyn Upstreams,
        attempt: u32,
        previous: Option<&PreviousAttempt>,
        uri: &mut Uri,
        clock: &K,
    ) -> Self {
        let mut started = None;
        upstreams.choose(&mut UpstreamChoice {
            attempt,
            previous,
            uri,
            start: &mut |destination| {
                let next = destination.try_start(clock.clone(), attempt > 1);
                let may_start = next.is_some();
                started = next.or(started.take());
                may_start
            },
        });
        Self {
            uri: uri.clone(),
            at: clock.now(),
            started,
        }
    }
}

impl<K: Clock> ChosenUpstream<K> {
    /// The attempt, while it runs.
    pub(super) fn running(&self) -> PreviousAttempt {
        PreviousAttempt {
            uri: self.uri.clone(),
            failure: None,
        }
    }

    /// Reports the end of the attempt; `is_evidence`: to the destination of the upstream, too. Returns the attempt if
    /// it failed.
    pub(super) fn ended(
        self,
        upstreams: &dyn Upstreams,
        failure: Option<&Failure>,
        is_evidence: bool,
    ) -> Option<PreviousAttempt> {
        let Self { uri, started, .. } = self;
        if let Some(started) = started.filter(|_| is_evidence) {
            started.end(failure);
        }
        upstreams.ended(&uri, failure);
        failure.map(|failure| PreviousAttempt {
            uri,
            failure: Some(*failure),
        })
    }
}
