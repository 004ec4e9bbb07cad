//! Shared configuration of the calls of a layer.

use std::error::Error;
use std::sync::Arc;

use http::{HeaderMap, Uri};
use http_body::Body;
use relent::Destination;
use relent::clock::Clock;
use relent::driver::{Driver, DriverBuilder};
use relent::random::SessionRandom;
use relent_core::{Failure, Policy, Repeatable};

use super::upstreams::Upstreams;
use crate::cross_layer::CrossLayer;
use crate::destinations::DestinationSource;
use crate::field::content_length;
use crate::hint::HintOptions;
use crate::observe::MetricLabel;
use crate::on_attempt::OnAttempt;
use crate::replaced_policy::ReplacedPolicy;
use crate::replay::{BoxError, Reopen, Replay, ReplayBody};

pub(super) type ClassifyError = fn(&(dyn Error + 'static)) -> Failure;
type NewRandom = dyn Fn() -> SessionRandom + Send + Sync;

/// Configuration of a layer and of the services that it makes.
#[derive(Clone)]
pub(super) struct Config<K, M, N> {
    pub(super) policy: Arc<Policy>,
    /// Shared by all layers with the same destinations.
    pub(super) replaced: Arc<ReplacedPolicy>,
    pub(super) destinations: DestinationSource,
    pub(super) hints: HintOptions,
    pub(super) traced: bool,
    pub(super) named: MetricLabel,
    pub(super) cap: usize,
    pub(super) upstreams: Option<Arc<dyn Upstreams>>,
    pub(super) on_attempt: OnAttempt,
    pub(super) random: Option<Arc<NewRandom>>,
    pub(super) cross: Option<CrossLayer>,
    pub(super) errors: ClassifyError,
    /// Whether a call of the service may make more than one request.
    pub(super) calls_twice: bool,
    /// Whether the service counts the requests that it sends again.
    pub(super) counts_resends: bool,
    /// Whether calls end where their destination would queue them.
    pub(super) fails_fast: bool,
    /// [`is_plain`](Self::is_plain), computed when the layer is applied to a service.
    pub(super) plain: bool,
    pub(super) clock: K,
    pub(super) map: M,
    pub(super) reopen: N,
}

pub(super) type CallBuilder<K> = DriverBuilder<'static, K>;

/// The driver of a call; it must not borrow.
pub(super) type CallDriver<K> = Driver<'static, K>;

impl<K, M, N> Config<K, M, N> {
    /// Whether calls use only the policy (which may hedge), the destination and a map of the body.
    pub(super) const fn is_plain(&self) -> bool {
        self.cross.is_none()
            && self.random.is_none()
            && !self.traced
            && !self.counts_resends
            && !self.fails_fast
            && self.upstreams.is_none()
    }

    /// Uses this destination for all calls, and detaches from policies that are later set for others.
    pub(super) fn use_destination(&mut self, destination: Arc<Destination>) {
        self.destinations = DestinationSource::One(destination);
        self.replaced = Arc::new(ReplacedPolicy::clone(&self.replaced));
    }

    /// Replaces the fields with generic types; returns the unused rest too.
    pub(super) fn with<K2, M2, N2, T>(
        self,
        others: impl FnOnce(K, M, N) -> (K2, M2, N2, T),
    ) -> (Config<K2, M2, N2>, T) {
        let (clock, map, reopen, left) = others(self.clock, self.map, self.reopen);
        let config = Config {
            policy: self.policy,
            replaced: self.replaced,
            destinations: self.destinations,
            hints: self.hints,
            traced: self.traced,
            named: self.named,
            cap: self.cap,
            upstreams: self.upstreams,
            on_attempt: self.on_attempt,
            random: self.random,
            cross: self.cross,
            errors: self.errors,
            calls_twice: self.calls_twice,
            counts_resends: self.counts_resends,
            fails_fast: self.fails_fast,
            plain: self.plain,
            clock,
            map,
            reopen,
        };
        (config, left)
    }
}

impl<K: Clock + Clone, M, N> Config<K, M, N> {
    /// The driver of one call, with the state that the callers of the destination share.
    #[inline]
    pub(super) fn driver(
        &self,
        uri: &Uri,
        policy: &Arc<Policy>,
        repeatable: Repeatable,
    ) -> CallBuilder<K> {
        let destination = Some(self.destinations.at(uri));
        let driver = Driver::shared(policy.clone(), destination, self.clock.clone());
        self.named.name(driver.repeatable(repeatable))
    }

    /// Adds the settings that a [`plain`](Self::plain) layer does not have.
    pub(super) fn with_extras(&self, mut driver: CallBuilder<K>) -> CallBuilder<K> {
        if let Some(random) = &self.random {
            driver = driver.random(random());
        }
        if self.traced {
            driver = driver.traced();
        }
        driver
    }

    /// Creates the kept body of this request, and the body of its first attempt.
    #[inline]
    pub(super) fn replay<B>(
        &self,
        headers: &HeaderMap,
        body: B,
        once: bool,
    ) -> (Replay<B>, ReplayBody<B>)
    where
        B: Body<Error: Into<BoxError>>,
        N: Reopen<B>,
    {
        let cap = if once { 0 } else { self.cap };
        let (mut replay, body) = Replay::new(body, &self.reopen, cap);
        if replay.is_streamed()
            && let Some(length) = content_length(headers)
        {
            replay.announce(length);
        }
        (replay, body)
    }
}
