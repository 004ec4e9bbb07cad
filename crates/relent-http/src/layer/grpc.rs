//! The retry layer for gRPC: which calls have failed, and which may run twice.

mod attempts;
mod call;

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use relent::clock::{Clock, Sleeper, TokioClock};
use relent::{Destination, GaveUp};
use relent_core::Policy;
use tower_layer::Layer;
use tower_service::Service;

use super::readiness::release_readiness;
use super::{MapBody, Override, ResponseBody, RetryLayer, RetryService, ServiceError, Unchanged};
use crate::cross_layer::CrossLayer;
use crate::deadline::within;
use crate::grpc::{Peeked, ServiceConfig, timeout};
use crate::headers::GRPC_PREVIOUS_RPC_ATTEMPTS;
use crate::replay::{BoxError, ByType, Reopen};

pub use attempts::GrpcAttempts;
pub(super) use attempts::{AfterHead, Classified};
pub use call::CallFuture;

/// Tower layer that retries gRPC calls; made by [`RetryLayer::grpc`].
///
/// Differences from other requests:
/// - The gRPC status decides, in the headers or in the trailers. The layer holds a response back until its first
///   message or its trailers. So a call that fails before its first message can be retried,
///   unary or streaming; until then the attempt timeout runs. The first message commits the call to this
///   response. A call that is still sending commits on the headers of its response: the server may be
///   waiting for the next message. gRFC A6 commits every response on its headers;
///   [`commit_on_headers`](Self::commit_on_headers) does so.
/// - A repeatable method is declared by [`ServiceConfig::repeatable`], an [`Override`] or
///   an `idempotency-key` in the metadata.
/// - The policy of a method is that of the [`ServiceConfig`], or that of the layer if it has none.
/// - A method with a `hedgingPolicy` is hedged by it if it is declared repeatable. An attempt ends
///   with its first message or its trailers. The caller's message is known, and can be sent by a
///   hedge, once the running attempt has sent all of it.
/// - The `grpc-timeout` of a call is the deadline of all its attempts together. Each attempt is sent with the time
///   left of it, or of the policy's deadline if that is nearer. A call that runs out of time ends
///   with `DEADLINE_EXCEEDED`; a call with no time at all is not sent.
/// - An error after the headers of a response is never "not processed", whatever it claims: the server has
///   started. So a stream that is refused then is repeated only if its method is declared repeatable.
/// - Attempts after the first carry `grpc-previous-rpc-attempts`.
pub struct GrpcLayer<K = TokioClock, M = Unchanged, N = ByType> {
    retry: RetryLayer<K, Unchanged, N>,
    map: M,
    methods: Arc<ServiceConfig>,
    peeks: bool,
}

/// Service whose gRPC calls are retried; made by [`GrpcLayer`].
pub struct GrpcRetryService<S, K = TokioClock, M = Unchanged, N = ByType> {
    retry: RetryService<GrpcAttempts<S, K, M>, K, Unchanged, N>,
    methods: Arc<ServiceConfig>,
}

impl<K, M, N> RetryLayer<K, M, N> {
    /// Converts this layer to one for gRPC: see [`GrpcLayer`].
    ///
    /// Retry throttling in the configuration replaces the layer's budget;
    /// it counts for all calls of the layer, as one server name.
    ///
    /// ```
    /// use relent::NamedPolicy;
    /// use relent_http::grpc::ServiceConfig;
    /// use relent_http::RetryLayer;
    /// use relent_http::body::ReplayBody;
    /// use tonic::body::Body;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let methods = ServiceConfig::default().repeatable(["shop.Orders/Get"]);
    /// let layer = RetryLayer::new(NamedPolicy::load("grpc")?.policy)
    ///     .map_body(|body: ReplayBody<Body>| Body::new(body))
    ///     .grpc(methods);
    /// // OrdersClient::new(layer.layer(channel))
    /// # drop(layer);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn grpc(mut self, methods: ServiceConfig) -> GrpcLayer<K, M, N> {
        if let Some(budget) = methods.new_budget() {
            let policy = self.config.replaced.get();
            let policy = policy.unwrap_or_else(|| self.config.policy.clone());
            let there = Destination::new(policy).with_budget(budget);
            self.config.use_destination(Arc::new(there));
        }
        // An attempt maps the body after it has read the first frame.
        let unmapped = |clock, map, reopen| (clock, Unchanged, reopen, map);
        let (config, map) = self.config.with(unmapped);
        GrpcLayer {
            retry: RetryLayer { config },
            map,
            methods: Arc::new(methods),
            peeks: true,
        }
    }
}

impl<K, M, N> GrpcLayer<K, M, N> {
    /// Returns every response on its headers, as gRFC A6 does: for methods that send
    /// headers long before the first message, such as a watch. A status in the trailers then
    /// causes no retry.
    #[must_use]
    pub const fn commit_on_headers(mut self) -> Self {
        self.peeks = false;
        self
    }

    /// Replaces the policy for later calls, as [`RetryLayer::set_policy`] does, in existing services
    /// too. A method to which the [`ServiceConfig`] gives a policy keeps it.
    ///
    /// ```
    /// use relent::Policy;
    /// use relent_http::RetryLayer;
    /// use relent_http::grpc::ServiceConfig;
    ///
    /// let layer = RetryLayer::new(Policy::STANDARD).grpc(ServiceConfig::default());
    /// // ... during an incident, while its services are in use:
    /// layer.set_policy(Policy::STANDARD.clone().without_retries());
    /// ```
    pub fn set_policy(&self, policy: impl Into<Arc<Policy>>)
    where
        K: Clock,
    {
        self.retry.set_policy(policy);
    }
}

impl<S, K, M, N> Layer<S> for GrpcLayer<K, M, N>
where
    K: Clone,
    M: Clone,
    N: Clone,
{
    type Service = GrpcRetryService<S, K, M, N>;

    fn layer(&self, service: S) -> Self::Service {
        let clock = self.retry.config.clock.clone();
        let hints = self.retry.config.hints;
        let attempts = GrpcAttempts::new(service, self.map.clone(), clock, hints, self.peeks);
        GrpcRetryService {
            retry: self.retry.layer(attempts),
            methods: self.methods.clone(),
        }
    }
}

impl<S, B, R, K, M, N> Service<Request<B>> for GrpcRetryService<S, K, M, N>
where
    S: Service<Request<M::Body>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    B: Body<Error: Into<BoxError>>,
    R: Body<Error: Into<BoxError>> + Unpin,
    K: Sleeper + Clone,
    M: MapBody<B> + Clone,
    N: Reopen<B>,
{
    type Response = Response<ResponseBody<Peeked<R>>>;
    type Error = GaveUp<ServiceError>;
    type Future = CallFuture<S, B, R, K, M, N>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.retry.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if timeout::read(request.headers()).is_some_and(|timeout| timeout.is_zero()) {
            // The service has reserved capacity for a call that is not made.
            release_readiness(&mut self.retry.service);
            return CallFuture::too_late();
        }
        let deadline = self.describe(&mut request);
        CallFuture::new(self.retry.call(request), deadline)
    }
}

impl<S, K, M, N> GrpcRetryService<S, K, M, N> {
    /// Adds the declarations about the method to the request, unless the caller has set them. Returns the deadline of
    /// the call.
    fn describe<B>(&self, request: &mut Request<B>) -> Option<Duration> {
        // The field of a forwarded call describes another hop.
        request.headers_mut().remove(GRPC_PREVIOUS_RPC_ATTEMPTS);
        let forwarded_deadline = self.retry.config.cross.as_ref();
        let forwarded_deadline =
            forwarded_deadline.and_then(|_| CrossLayer::remaining(request.headers()));
        let timeout = timeout::read(request.headers())
            .into_iter()
            .chain(forwarded_deadline)
            .min();
        let method = self.methods.method(request.uri().path());
        let declared = self.methods.declared(request.uri().path());
        let mut overrides: Override = request.extensions_mut().remove().unwrap_or_default();
        if overrides.policy.is_none() {
            overrides.policy = method.map(|method| method.policy().clone());
        }
        overrides.repeatable = overrides.repeatable.or(declared);
        let config = &self.retry.config;
        let replaced = config.replaced.get();
        let policy = overrides.policy.as_ref().or(replaced.as_ref());
        let policy = policy.unwrap_or(&config.policy);
        let sooner = timeout.and_then(|timeout| within(policy, timeout));
        let deadline = sooner.as_ref().unwrap_or(policy).deadline();
        overrides.policy = sooner.or(overrides.policy);
        if let Some(deadline) = deadline {
            timeout::lower(request.headers_mut(), deadline);
        }
        if !overrides.is_empty() {
            request.extensions_mut().insert(overrides);
        }
        deadline
    }
}

impl<K: Clone, M: Clone, N: Clone> Clone for GrpcLayer<K, M, N> {
    fn clone(&self) -> Self {
        Self {
            retry: self.retry.clone(),
            map: self.map.clone(),
            methods: self.methods.clone(),
            peeks: self.peeks,
        }
    }
}

impl<S: Clone, K: Clone, M: Clone, N> Clone for GrpcRetryService<S, K, M, N> {
    fn clone(&self) -> Self {
        Self {
            retry: self.retry.clone(),
            methods: self.methods.clone(),
        }
    }
}

impl<K, M, N> fmt::Debug for GrpcLayer<K, M, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcLayer")
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}

impl<S, K, M, N> fmt::Debug for GrpcRetryService<S, K, M, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcRetryService")
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}
