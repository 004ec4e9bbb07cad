//! A tower layer that retries HTTP requests (design rules 1–9).

mod body;
mod calls;
mod config;
mod cross_layer;
mod error;
mod first_attempt;
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
mod sender;

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
use crate::observe::Named;
use crate::on_attempt::OnAttempt;
use crate::replay::{BoxError, ByType, Reopen, Replay, ReplayBody};

pub use body::ResponseBody;
pub use calls::AnsweredBy;
use config::{CallDriver, Config};
pub(crate) use error::within;
pub use error::{ReadinessError, ServiceError};
pub use future::ResponseFuture;
#[cfg(feature = "grpc")]
pub use grpc::{Attempts, CallFuture, GrpcLayer, GrpcRetry};
pub use map_body::{MapBody, Unchanged};
pub use overrides::{FreshConnection, Override};

/// Retries the calls of a service by a policy, design rules 1–9.
///
/// The service takes an `http::Request` and answers with an `http::Response`: the client of
/// hyper-util, a tonic channel, a stack of middleware. One that follows redirects, such as reqwest behind
/// an adapter, has to be [declared](RetryLayer::may_call_twice). Have a layer for
/// each destination that fails by itself: the budget of the policy is shared by the clones of a
/// layer and the services that it makes.
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
/// // A header field that a server folds over several lines is no error then (RFC 9112 §5.2).
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
/// # What may be retried
/// By method, `Idempotency-Key` and precondition ([`RequestFacts`](crate::RequestFacts)), by the policy's
/// `assume_repeatable`, or by an [`Override`] in the extensions of the request. A body is sent again
/// if its content is known or was kept: see [`Replay`].
///
/// # What is hedged
/// If the policy has a hedge ([`PolicyBuilder::hedge`](relent_core::PolicyBuilder::hedge)), a second
/// attempt joins the first when that takes long, and the answer that is there first is taken. Each
/// destination remembers for itself how long its successes take. The delay counts from the start of an
/// attempt: while a destination holds it back it is not slow, and nothing joins it. Only requests that are repeatable are
/// hedged, and whose content is known when the hedge is due: by itself, or because the running attempt
/// has sent it to its end and it was kept ([`Replay`]). A hedge counts among the retries of the policy
/// and is taken from the same budget; it goes out when the service is ready for it, and is given back if
/// the race is over before. An attempt is over with the head of its response; see
/// [`Race`](relent_core::Race) for what a failure means. A 404 or 410 to a `DELETE` that is running
/// twice waits for the other attempt, which may have deleted it.
///
/// The loser is dropped. In HTTP/2 that resets its stream, and the connection goes on. In HTTP/1.1 its
/// connection is closed, so that each hedge costs a new connection: allow for that in the delay, or
/// prefer HTTP/2. The server may go on with what it has begun. It costs a box for each attempt of a
/// request that may be hedged.
///
/// ```
/// use relent::Policy;
/// use relent::policy::HedgeConfig;
/// use relent_http::RetryLayer;
///
/// // The slowest twentieth is sent twice, once enough is known of how long they take.
/// let policy = Policy::STANDARD.clone().into_builder().hedge(HedgeConfig::percentile(0.95));
/// let layer = RetryLayer::new(policy.build()?);
/// # drop(layer);
/// # Ok::<(), relent::policy::PolicyError>(())
/// ```
///
/// # What comes back
/// The last real outcome, as it is: a 503 response remains `Ok`, and only if the last attempt had no
/// response there is a [`GaveUp`] with its error. The extensions of a response hold a [`Summary`]
/// when there was more than one attempt, when the policy stopped, or when a trace was asked for.
/// A response without one was the first attempt's, and a success. An outer layer does not retry what
/// this one has given up.
///
/// That holds too when a retry was granted and then held back to the end of the call: by a gate, a
/// cooldown, a request rate, or a service that is not ready. What was read of the refused response
/// meanwhile is kept for that, so a call that waits holds on to at most 256 KiB; a body that was not
/// read to its end ends with [`NotKept`](crate::body::NotKept) after that much. Only a call that never had
/// an attempt has a [`GaveUp`] without an error.
///
/// # Connections
/// An attempt that is over lets go of its request: its body fails from then on, so that a connection
/// that waits for more of it closes. A body of more than 64 KiB is handed to its connection piece by piece,
/// the next when the one before is written, so that the connection waits for it also when the server does
/// not read. That of the last attempt goes on while the server reads, and fails 30 s after it has stopped.
/// Over HTTP/2 it is the stream that ends; where the server opens no window of the whole connection, hyper
/// waits for one.
///
/// That needs tokio, and a service that drops what it has written, as hyper does. One that keeps the first
/// piece, such as a service that collects the body, gets the rest as it comes. Beside it, a bound of the
/// kernel does no harm: on Linux, Android and Fuchsia `set_tcp_user_timeout` (RFC 5482) of hyper-util's
/// `HttpConnector`.
///
/// # Time
/// The attempt timeout of the policy is the only limit of a silent server here: set one
/// ([`PolicyBuilder::attempt_timeout`](relent_core::PolicyBuilder::attempt_timeout)). It ends with the head of
/// the response, and the body is under no limit; the attempt is cut off by dropping it. Readiness of the service is acquired for each attempt, within the deadline. What is
/// left of a response that is retried is read before the next attempt, up to 256 KiB and 250 ms, so
/// that its connection can be used again; while it waits, and longer if the deadline leaves time.
///
/// Requests after the first, and a first one that was held back or may be hedged, carry their
/// [`Attempt`] as an extension, for services of your own to see.
///
/// A service cannot be told to open a new connection. After a 421, or an answer that came before the
/// request was sent to its end, the next request carries the extension [`FreshConnection`] for a
/// service of your own to see; others may get the same connection again.
#[derive(Clone)]
pub struct RetryLayer<K = TokioClock, M = Unchanged, N = ByType> {
    config: Config<K, M, N>,
}

/// A service whose calls are retried; made by [`RetryLayer`].
///
/// The service is cloned for the attempts after the first, which then acquire readiness for
/// themselves: the instance that was polled ready is the one that is called. A first attempt that the
/// destination holds back lets its readiness go, and acquires it anew when it may start, so no call that
/// waits keeps others out of a concurrency limit or a buffer.
///
/// As with any tower service, who has polled this one ready and does not call it holds what the service
/// within has set aside, until it drops this one.
pub struct Retry<S, K = TokioClock, M = Unchanged, N = ByType> {
    service: S,
    config: Arc<Config<K, M, N>>,
}

impl RetryLayer {
    /// Retries by this policy; each origin (scheme, host
    /// and port) has a budget and a gate of its own if the policy has them.
    pub fn new(policy: impl Into<Arc<Policy>>) -> Self {
        let policy = policy.into();
        Self {
            config: Config {
                destinations: DestinationSource::by_origin(&policy),
                policy,
                replaced: Arc::default(),
                hints: HintOptions::default(),
                traced: false,
                named: Named::default(),
                cap: Replay::CAP,
                reroute: None,
                on_attempt: OnAttempt::default(),
                random: None,
                cross: None,
                errors: network::classify_error,
                calls_twice: false,
                plain: false,
                clock: TokioClock,
                map: Unchanged,
                reopen: ByType,
            },
        }
    }
}

impl<K, M, N> RetryLayer<K, M, N> {
    /// Takes all that it calls for this one destination, in place of one for each origin: to share its
    /// budget, gate and cooldown with others, or where many hosts fail as one.
    #[must_use]
    pub fn destination(mut self, destination: Arc<Destination>) -> Self {
        self.config.at_one(destination);
        self
    }

    /// Goes by this policy from now on: the calls that are made later through this layer, its clones and the
    /// services that they have made, and all their destinations, which keep what they have learnt. A call that
    /// has begun keeps the policy that it began with, and waits at its destination by the new rules: see
    /// [`Destination::set_policy`]. What a request says itself by an [`Override`], and the policies that a gRPC
    /// service config gives to methods, go before it as ever.
    ///
    /// A clone that was given another [`destination`](Self::destination) since has a policy of its own.
    ///
    /// ```
    /// use relent::Policy;
    /// use relent_http::RetryLayer;
    ///
    /// let layer = RetryLayer::new(Policy::STANDARD);
    /// // ... in an incident, while its services are called:
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

    /// What the destination means by headers that do not say it themselves.
    #[must_use]
    pub const fn hints(mut self, options: HintOptions) -> Self {
        self.config.hints = options;
        self
    }

    /// Keeps a trace of every attempt in the [`Summary`], which then every response has.
    #[must_use]
    pub const fn traced(mut self) -> Self {
        self.config.traced = true;
        self
    }

    /// Names the destination in metrics: a name of your choice, such as `payments`.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn label(mut self, name: impl Into<Arc<str>>) -> Self {
        self.config.named = Named::new(name);
        self
    }

    /// The most bytes that are kept of a body that streams; [`Replay::CAP`] unless said otherwise.
    #[must_use]
    pub const fn body_cap(mut self, bytes: usize) -> Self {
        self.config.cap = bytes;
        self
    }

    /// Chooses where an attempt goes: given its number (the first is 1) and the address of the
    /// request, which it may change. For a fallback, or for another node when only some fail. A
    /// `Host` header that the caller has set stays.
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
    pub fn reroute(mut self, route: impl Fn(u32, &mut Uri) + Send + Sync + 'static) -> Self {
        self.config.reroute = Some(Arc::new(route));
        self
    }

    /// Writes into the headers of each attempt, hedges too, before it goes out: a `traceparent` of its own, a
    /// signature with the time. It is called within the span of the attempt (feature `tracing`), so that
    /// `tracing::Span::current()` is that span.
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

    /// Says that the service may answer one call by several of its own: it follows redirects, as
    /// tower-http's `FollowRedirect` and reqwest behind an adapter do, or something in it calls again.
    ///
    /// A failure speaks of the last of these calls then, and an earlier one may have taken effect. So a
    /// request that is not repeatable is never sent again, not even after a refused connection or a 429,
    /// which otherwise prove that it was not processed. Repeatable requests are retried as ever.
    ///
    /// A cooldown is one of the address that was asked, unless the response names another as the one that
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

    /// Classifies the errors of the service by this, in place of [`network::classify_error`], which knows
    /// those of hyper, h2, rustls and I/O. For reqwest behind an adapter it is
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

    /// Draws each call's randomness from a stream made by this; by default they are seeded by the
    /// operating system.
    #[must_use]
    pub fn random(mut self, make: impl Fn() -> SessionRandom + Send + Sync + 'static) -> Self {
        self.config.random = Some(Arc::new(make));
        self
    }

    /// Reads this clock and waits by it; tokio's unless said otherwise.
    #[must_use]
    pub fn clock<K2: Sleeper>(self, clock: K2) -> RetryLayer<K2, M, N> {
        let (config, _) = self
            .config
            .with(|old, map, reopen| (clock, map, reopen, old));
        RetryLayer { config }
    }

    /// Makes the body that the service takes, such as `tonic::body::Body::new`; [`Unchanged`] unless
    /// said otherwise.
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

    /// Makes a body of the same content again, for bodies that are not known [`ByType`]. Where it
    /// gives `None`, the body is kept while it streams.
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
    type Service = Retry<S, K, M, N>;

    fn layer(&self, service: S) -> Self::Service {
        let mut config = self.config.clone();
        config.plain = config.is_plain();
        Retry {
            service,
            config: Arc::new(config),
        }
    }
}

impl<S, B, R, K, M, N> Service<Request<B>> for Retry<S, K, M, N>
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

impl<S: Clone, K, M, N> Clone for Retry<S, K, M, N> {
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

impl<S, K, M, N> fmt::Debug for Retry<S, K, M, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry")
            .field("policy", &self.config.policy)
            .finish_non_exhaustive()
    }
}
