//! A tower layer that retries HTTP requests.

mod attempt;
mod body;
mod calls;
mod config;
mod cross_layer;
mod error;
mod future;
#[cfg(feature = "grpc")]
mod grpc;
mod last_outcome;
mod map_body;
mod next_attempt;
mod outcome;
mod overrides;
mod race;
mod readiness;
mod resends;
mod start;
mod state;
mod upstreams;

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Request, Response, Uri};
use http_body::Body;
use relent::clock::{Clock, Sleeper, TokioClock};
use relent::random::SessionRandom;
use relent::{Attempt, Destination, GaveUp, Summary};
use relent_core::{Failure, Policy, StopReason};
use tower_layer::Layer;
use tower_service::Service;

use crate::destinations::DestinationSource;
use crate::hint::HintOptions;
use crate::network;
use crate::observe::MetricLabel;
use crate::on_attempt::OnAttempt;
use crate::replay::{BoxError, ByType, Reopen, Replay, ReplayBody};

pub use body::ResponseBody;
pub use calls::AnsweredBy;
use config::{CallDriver, Config};
pub(crate) use error::within;
pub use error::{ReadinessError, ServiceError};
pub use future::ResponseFuture;
#[cfg(feature = "grpc")]
pub use grpc::{CallFuture, GrpcAttempts, GrpcLayer, GrpcRetryService};
pub use map_body::{MapBody, Unchanged};
pub use overrides::{FreshConnection, Override};
pub use resends::Resends;
use upstreams::ByNumber;
pub use upstreams::{PreviousAttempt, UpstreamChoice, Upstreams};

/// Tower layer that retries the calls of an HTTP service by a policy.
///
/// The service takes an `http::Request` and returns an `http::Response`: the client of
/// hyper-util, a tonic channel, a stack of middleware. One that follows redirects, such as reqwest behind
/// an adapter, has to be [declared](RetryLayer::may_call_twice). Use one layer for
/// each destination that fails independently: the clones of a layer and the services that it makes share the
/// budget of the policy.
///
/// ```no_run
/// use bytes::Bytes;
/// use http_body_util::Full;
/// use hyper_util::{client::legacy::Client, rt::TokioExecutor};
/// use relent::{Policy, Summary};
/// use relent_http::RetryLayer;
/// use tower::{Layer, ServiceExt};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// // Accept a header field that the server folds over several lines (RFC 9112 §5.2).
/// let client = Client::builder(TokioExecutor::new())
///     .http1_allow_obsolete_multiline_headers_in_responses(true)
///     .build_http();
/// let client = RetryLayer::new(Policy::STANDARD).layer(client);
/// let request = http::Request::get("http://localhost/").body(Full::<Bytes>::default())?;
/// let response = client.oneshot(request).await?;
/// let attempts = response.extensions().get::<Summary>().map_or(1, |summary| summary.attempts);
/// println!("{} after {attempts} attempts", response.status());
/// # Ok(())
/// # }
/// ```
///
/// # Which requests are retried
/// Repeatable ones: by method, `Idempotency-Key` and precondition ([`RequestInfo`](crate::RequestInfo)), by the
/// policy's `assume_repeatable`, or by an [`Override`] in the extensions of the request. A body is sent again
/// if its content is known or was kept: see [`Replay`].
///
/// # Hedging
/// If the policy has a hedge ([`PolicyBuilder::hedge`](relent_core::PolicyBuilder::hedge)), a slow first attempt is
/// joined by a second one, and the first response is taken. Each destination tracks how long its successes take.
/// The hedge delay counts from the start of an attempt, so an attempt that its destination still holds is not hedged.
/// Only repeatable requests are hedged. Their content must also be known when the hedge is due: by itself, or
/// because the running attempt has sent all of it and it was kept ([`Replay`]).
///
/// A hedge counts among the retries of the policy and is paid from the same budget. It starts when the service
/// is ready for it; if the race ends before, its cost is refunded. An attempt ends with the head of its response; see
/// [`Race`](relent_core::call::Race) for the effect of a failure. If a `DELETE` runs twice, a 404 or 410
/// waits for the other attempt, which may have deleted the resource.
///
/// The losing attempt is dropped. In HTTP/2 that resets its stream, and the connection stays open. In HTTP/1.1 it
/// closes the connection, so each hedge costs a new one: choose a longer delay, or
/// prefer HTTP/2. The server may continue the work of the loser. Each attempt of a request that may be hedged
/// costs a heap allocation.
///
/// ```
/// use relent::Policy;
/// use relent::policy::HedgeConfig;
/// use relent_http::RetryLayer;
///
/// // The slowest 5 % are sent twice, once enough latencies are known.
/// let policy = Policy::STANDARD.clone().into_builder().hedge(HedgeConfig::percentile(0.95));
/// let layer = RetryLayer::new(policy.build()?);
/// # drop(layer);
/// # Ok::<(), relent::policy::PolicyError>(())
/// ```
///
/// # Result of a call
/// The last real outcome, unchanged: a 503 response remains `Ok`. A [`GaveUp`] with an error is returned only if the
/// last attempt had no response. The extensions of a response hold a [`Summary`]
/// if there was more than one attempt, if the policy stopped, or if a trace was requested.
/// A response without one is a success of the first attempt. An outer layer does not retry a call that
/// this one has given up.
///
/// The same holds if a retry was granted and then held until the call ended: by a circuit breaker, a
/// cooldown, a rate limit, or a service that is not ready. For that case the read part of the rejected response
/// is kept, at most 256 KiB for each waiting call. A longer body that was not
/// read to its end then ends with [`NotKept`](crate::body::NotKept). Only a call that never made
/// an attempt has a [`GaveUp`] without an error.
///
/// # Connections
/// When an attempt ends, its request body fails from then on, so that a connection
/// that waits for more of it closes. A body of more than 64 KiB is passed to its connection in pieces,
/// each after the previous one is written, so the connection notices the end even if the server does
/// not read. The body of the last attempt continues while the server reads, and fails 30 s after the server stops
/// reading. Over HTTP/2 only the stream ends; if the server opens no window of the whole connection, hyper
/// waits for one.
///
/// That needs tokio, and a service that drops the data that it has written, as hyper does. A service that keeps the
/// first piece, such as one that collects the body, gets the rest as the body yields it. You can also set a kernel
/// timeout: on Linux, Android and Fuchsia `set_tcp_user_timeout` (RFC 5482) of hyper-util's
/// `HttpConnector`.
///
/// # Timeouts
/// The attempt timeout of the policy is the only limit for a silent server: set one
/// ([`PolicyBuilder::attempt_timeout`](relent_core::PolicyBuilder::attempt_timeout)). It covers the time until the
/// head of the response; the body has no limit. A timed-out attempt is dropped. The layer waits for readiness of the
/// service before each attempt, within the deadline.
///
/// In HTTP/2 a dropped attempt leaves its connection open, and the next one uses it again. If the connection is dead,
/// all of them time out. So let the client send pings: `http2_keep_alive_interval` of hyper-util's client, or of
/// tonic's `Endpoint`.
///
/// Before the next attempt, the rest of a retried response is read, up to 256 KiB and 250 ms, so
/// that its connection can be used again. This happens during the delay, and longer if the deadline leaves time.
///
/// Requests after the first, and a first one that was held or may be hedged, carry their
/// [`Attempt`] as an extension, for your own services.
///
/// The layer cannot make a service open a new connection. After a 421, or a response that arrived before the
/// request was fully sent, the next request carries the extension [`FreshConnection`] for
/// your own services. Other services may reuse the same connection.
///
/// # Tests
/// The layer makes a `Request<`[`ReplayBody`]`<B>>` from a `Request<B>`, so that it can send
/// the body again. A service of your test must take that type: with `Request<_>` the compiler infers it. If
/// tokio's time is paused, delays take no time.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use std::time::Duration;
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::Empty;
/// use relent::{Backoff, Jitter, Policy};
/// use relent_http::{BoxError, RetryLayer};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// // In a test: `#[tokio::test(start_paused = true)]`, with tokio's feature `test-util`.
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let policy = Policy::builder(Backoff::constant(Duration::from_secs(1)))
///     .jitter(Jitter::None)
///     .build()
///     .unwrap();
/// let count = Arc::new(AtomicUsize::new(0));
/// let service = service_fn(move |_: Request<_>| {
///     let status = [503, 200][count.fetch_add(1, Ordering::Relaxed)];
///     async move {
///         let response = Response::builder().status(status).body(Empty::<Bytes>::new())?;
///         Ok::<_, BoxError>(response)
///     }
/// });
/// let request = Request::get("http://service/").body(Empty::<Bytes>::new()).unwrap();
/// let start = tokio::time::Instant::now();
/// let response = RetryLayer::new(policy).layer(service).oneshot(request).await.unwrap();
/// assert_eq!(response.status(), 200);
/// assert!(start.elapsed() >= Duration::from_secs(1));
/// # }
/// ```
#[derive(Clone)]
pub struct RetryLayer<K = TokioClock, M = Unchanged, N = ByType> {
    config: Config<K, M, N>,
}

/// Service whose calls are retried; made by [`RetryLayer`].
///
/// The service is cloned for the attempts after the first, which then acquire their own
/// readiness: the instance that was polled ready is the one that is called. A first attempt that the
/// destination holds releases its readiness, and acquires it again when it may start. So a waiting call
/// never blocks others in a concurrency limit or a buffer.
///
/// As with any tower service, a caller that polls it ready and does not call it keeps the reserved capacity of the
/// inner service until it drops this one.
pub struct RetryService<S, K = TokioClock, M = Unchanged, N = ByType> {
    service: S,
    config: Arc<Config<K, M, N>>,
}

impl RetryLayer {
    /// Creates a layer that retries by this policy. Each origin (scheme, host
    /// and port) has its own budget and circuit breaker, if the policy has them.
    pub fn new(policy: impl Into<Arc<Policy>>) -> Self {
        let policy = policy.into();
        Self {
            config: Config {
                destinations: DestinationSource::by_origin(&policy),
                policy,
                replaced: Arc::default(),
                hints: HintOptions::default(),
                traced: false,
                named: MetricLabel::default(),
                cap: Replay::CAP,
                upstreams: None,
                on_attempt: OnAttempt::default(),
                random: None,
                cross: None,
                errors: network::classify_error,
                calls_twice: false,
                counts_resends: false,
                fails_fast: false,
                plain: false,
                clock: TokioClock,
                map: Unchanged,
                reopen: ByType,
            },
        }
    }
}

impl<K, M, N> RetryLayer<K, M, N> {
    /// Uses this one destination for all calls, instead of one for each origin: to share its budget, circuit breaker
    /// and cooldown with others, or if many hosts fail together.
    #[must_use]
    pub fn destination(mut self, destination: Arc<Destination>) -> Self {
        self.config.use_destination(destination);
        self
    }

    /// Replaces the policy for later calls through this layer, its clones and the services that they have made.
    /// All their destinations use it too, and keep their state. A running call keeps its policy, but waits at its
    /// destination by the new rules: see [`Destination::set_policy`]. An [`Override`] of a request, and the policies
    /// that a gRPC service config gives to methods, still take precedence.
    ///
    /// A clone that has since been given another [`destination`](Self::destination) has a policy of its own.
    ///
    /// ```
    /// use relent::Policy;
    /// use relent_http::RetryLayer;
    ///
    /// let layer = RetryLayer::new(Policy::STANDARD);
    /// // ... during an incident, while its services are in use:
    /// layer.set_policy(Policy::STANDARD.clone().without_retries());
    /// ```
    pub fn set_policy(&self, policy: impl Into<Arc<Policy>>)
    where
        K: Clock,
    {
        let Config {
            replaced,
            destinations,
            clock,
            ..
        } = &self.config;
        replaced.set(policy.into(), destinations, clock);
    }

    /// Sets how to interpret headers whose meaning differs between vendors.
    #[must_use]
    pub const fn hints(mut self, options: HintOptions) -> Self {
        self.config.hints = options;
        self
    }

    /// Keeps a trace of every attempt in the [`Summary`], which is then on every response.
    #[must_use]
    pub const fn traced(mut self) -> Self {
        self.config.traced = true;
        self
    }

    /// Sets the name of the destination in metrics, such as `payments`.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn label(mut self, name: impl Into<Arc<str>>) -> Self {
        self.config.named = MetricLabel::new(name);
        self
    }

    /// Sets how many bytes of a streaming body are kept for retries, at most; default [`Replay::CAP`].
    #[must_use]
    pub const fn body_cap(mut self, bytes: usize) -> Self {
        self.config.cap = bytes;
        self
    }

    /// Chooses the target of each attempt. The function gets the attempt number (the first is 1) and the URI of the
    /// request, which it may change: for a fallback, or for another node if only some fail. A
    /// `Host` header that the caller has set stays.
    ///
    /// A request with an idempotency key is repeatable only at targets that share their records of keys. Otherwise it
    /// may run once at each: make it not repeatable with an [`Override`].
    ///
    /// ```
    /// use relent::Policy;
    /// use relent_http::RetryLayer;
    ///
    /// let layer = RetryLayer::new(Policy::STANDARD).reroute(|attempt, uri| {
    ///     if attempt > 1 {
    ///         *uri = http::Uri::from_static("http://fallback.example/");
    ///     }
    /// });
    /// # drop(layer);
    /// ```
    #[must_use]
    pub fn reroute(self, route: impl Fn(u32, &mut Uri) + Send + Sync + 'static) -> Self {
        self.upstreams(ByNumber(route))
    }

    /// Chooses the upstream of each attempt, by the upstream that has failed and its failure, and learns how the
    /// attempt ended there. It replaces [`reroute`](Self::reroute). The destination stays that of the request.
    #[must_use]
    pub fn upstreams(mut self, upstreams: impl Upstreams + 'static) -> Self {
        self.config.upstreams = Some(Arc::new(upstreams));
        self
    }

    /// Sets a hook that may change the headers of each attempt, hedges included, before it is sent: to add a
    /// `traceparent` of its own, or a signature with the time. It runs within the span of the attempt (feature
    /// `tracing`), so `tracing::Span::current()` is that span.
    ///
    /// ```
    /// use http::HeaderValue;
    /// use relent::Policy;
    /// use relent_http::RetryLayer;
    ///
    /// let layer = RetryLayer::new(Policy::STANDARD).on_attempt(|attempt, headers| {
    ///     headers.insert("x-attempt", HeaderValue::from(attempt.number));
    /// });
    /// # drop(layer);
    /// ```
    #[must_use]
    pub fn on_attempt(
        mut self,
        hook: impl Fn(&Attempt, &mut HeaderMap) + Send + Sync + 'static,
    ) -> Self {
        self.config.on_attempt = OnAttempt::new(hook);
        self
    }

    /// Declares that the service may make several requests for one call: it follows redirects, as
    /// tower-http's `FollowRedirect` and reqwest behind an adapter do, or an inner service repeats calls.
    ///
    /// A failure then describes only the last of these requests; an earlier one may have taken effect. So a
    /// request that is not repeatable is never sent again, not even after a refused connection or a 429,
    /// which otherwise prove that it was not processed. Repeatable requests are retried as before.
    ///
    /// A cooldown applies to the address of the request, unless the response names the address that
    /// [answered](AnsweredBy).
    ///
    /// ```
    /// use relent::Policy;
    /// use relent_http::RetryLayer;
    ///
    /// // In a stack: above FollowRedirectLayer.
    /// let layer = RetryLayer::new(Policy::STANDARD.clone()).may_call_twice();
    /// # drop(layer);
    /// ```
    #[must_use]
    pub const fn may_call_twice(mut self) -> Self {
        self.config.calls_twice = true;
        self
    }

    /// Gives [`Resends`] to the service, in the extensions of each request: for a service that sends a request again
    /// by itself, and counts it there. The count includes those requests in [`Summary::attempts`], in the number of
    /// each [`Attempt`], and in the retries that the policy allows. The metric `relent_resends_total` counts them, and
    /// `relent_attempts_total` does not.
    ///
    /// ```
    /// use relent::Policy;
    /// use relent_http::RetryLayer;
    ///
    /// // Above a pool of connections.
    /// let layer = RetryLayer::new(Policy::STANDARD).counts_resends();
    /// # drop(layer);
    /// ```
    #[must_use]
    pub const fn counts_resends(mut self) -> Self {
        self.config.counts_resends = true;
        self
    }

    /// Ends a call where its destination would queue it: at a circuit breaker that is down, a cooldown or a rate
    /// limit. The result is the last real outcome. A call without an attempt ends with a [`GaveUp`] without an error,
    /// from which [`ErrorResponse::gave_up`](crate::ErrorResponse::gave_up) makes a 503.
    ///
    /// For callers that queue or retry by themselves. The delays of the policy between attempts still apply.
    /// [`Override::fail_fast`] selects it for one request.
    ///
    /// ```
    /// use relent::Policy;
    /// use relent_http::RetryLayer;
    ///
    /// let layer = RetryLayer::new(Policy::STANDARD).fail_fast();
    /// # drop(layer);
    /// ```
    #[must_use]
    pub const fn fail_fast(mut self) -> Self {
        self.config.fails_fast = true;
        self
    }

    /// Sets the classification of service errors. The default, [`network::classify_error`], knows
    /// those of hyper, h2, rustls and I/O. For reqwest behind an adapter use
    /// `relent_reqwest::network::classify_error`.
    ///
    /// ```
    /// use relent::{Failure, Policy};
    /// use relent_http::{RetryLayer, network};
    ///
    /// let layer = RetryLayer::new(Policy::STANDARD).classify_errors(|error| match error.is::<std::fmt::Error>() {
    ///     true => Failure::permanent(),
    ///     false => network::classify_error(error),
    /// });
    /// # drop(layer);
    /// ```
    #[must_use]
    pub const fn classify_errors(
        mut self,
        classify: fn(&(dyn Error + 'static)) -> Failure,
    ) -> Self {
        self.config.errors = classify;
        self
    }

    /// Sets the source of random numbers for each call; by default the operating system seeds it.
    #[must_use]
    pub fn random(mut self, make: impl Fn() -> SessionRandom + Send + Sync + 'static) -> Self {
        self.config.random = Some(Arc::new(make));
        self
    }

    /// Sets the clock for reading time and for waiting; default tokio's.
    #[must_use]
    pub fn clock<K2: Sleeper>(self, clock: K2) -> RetryLayer<K2, M, N> {
        let (config, _) = self
            .config
            .with(|old, map, reopen| (clock, map, reopen, old));
        RetryLayer { config }
    }

    /// Sets the function that makes the body type of the service, such as `tonic::body::Body::new`; default
    /// [`Unchanged`].
    #[must_use]
    pub fn map_body<B, O, F>(self, map: F) -> RetryLayer<K, F, N>
    where
        F: Fn(ReplayBody<B>) -> O,
    {
        let (config, _) = self
            .config
            .with(|clock, old, reopen| (clock, map, reopen, old));
        RetryLayer { config }
    }

    /// Sets a function that copies a body of known content, for bodies that are not known [`ByType`]. If it
    /// returns `None`, the body is kept while it streams.
    #[must_use]
    pub fn known_body<B, F>(self, reopen: F) -> RetryLayer<K, M, F>
    where
        F: Fn(&B) -> Option<B>,
    {
        let (config, _) = self
            .config
            .with(|clock, map, old| (clock, map, reopen, old));
        RetryLayer { config }
    }
}

impl<S, K, M, N> Layer<S> for RetryLayer<K, M, N>
where
    K: Clone,
    M: Clone,
    N: Clone,
{
    type Service = RetryService<S, K, M, N>;

    fn layer(&self, service: S) -> Self::Service {
        let mut config = self.config.clone();
        config.plain = config.is_plain();
        RetryService {
            service,
            config: Arc::new(config),
        }
    }
}

impl<S, B, R, K, M, N> Service<Request<B>> for RetryService<S, K, M, N>
where
    S: Service<Request<M::Body>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    B: Body<Error: Into<BoxError>>,
    R: Body<Error: Into<BoxError>>,
    K: Sleeper + Clone,
    M: MapBody<B>,
    N: Reopen<B>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = GaveUp<ServiceError>;
    type Future = ResponseFuture<S, B, R, K, M, N>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service
            .poll_ready(context)
            .map_err(|error| never_called(error.into()))
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        ResponseFuture::start(&mut self.service, &self.config, request)
    }
}

#[cold]
fn never_called(error: BoxError) -> GaveUp<ServiceError> {
    let summary = Summary {
        attempts: 0,
        elapsed: Duration::ZERO,
        reason: Some(StopReason::Permanent),
        ..Summary::default()
    };
    GaveUp::new(Some(ServiceError::Service(error)), summary)
}

impl<S: Clone, K, M, N> Clone for RetryService<S, K, M, N> {
    fn clone(&self) -> Self {
        Self {
            service: self.service.clone(),
            config: self.config.clone(),
        }
    }
}

impl<K, M, N> fmt::Debug for RetryLayer<K, M, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryLayer")
            .field("policy", &self.config.policy)
            .finish_non_exhaustive()
    }
}

impl<S, K, M, N> fmt::Debug for RetryService<S, K, M, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryService")
            .field("policy", &self.config.policy)
            .finish_non_exhaustive()
    }
}
