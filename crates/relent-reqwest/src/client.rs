//! The async client and its options.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{Method, Uri};
use relent::Destinations;
use relent_core::Policy;
use relent_http::KeyForm;
use relent_http::attempt::DestinationSource;
use relent_http::body::Replay;

use crate::attempt_failure::AttemptError;
use crate::dns::Resolver;
use crate::read_timeout::ReadTimeout;
use crate::redirects::{self, limit_redirects};
use crate::retry_options::{RetryOptions, SharedOptions, retry_option_methods};
use crate::route::Route;

/// HTTP client that sends each request as often as its policy allows.
///
/// Clones share connections, policy and destinations. Each origin (scheme, host and port) has its own retry
/// budget, circuit breaker and cooldown, which all requests to it share ([`Destinations`]). After a
/// [redirect](crate::track_redirects), a failure counts for the origin that the redirect led to. An attempt that
/// the attempt timeout or the deadline cuts off may have taken effect.
///
/// # How long a call takes
/// While an origin is down, a call with a deadline ([`PolicyBuilder::deadline`](relent_core::PolicyBuilder::deadline))
/// is queued until the deadline, for at most five minutes. Without a deadline, the policy
/// [`STANDARD`](relent_core::Policy::STANDARD) starts no attempt later than 30 s after the start of the call. This
/// limit is 9 s while no attempt of this client has had a response from the origin. Neither limit cuts off a
/// running attempt. A `Retry-After` beyond the limit ends the call immediately.
///
/// ```no_run
/// use relent::Policy;
/// use relent_reqwest::Client;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::new(Policy::STANDARD)?; // was: reqwest::Client::new()
/// let response = client.get("https://example.com/").send().await?;
/// println!("{}, attempts: {}", response.status(), response.summary().attempts);
/// println!("{}", response.error_for_status()?.text().await?);
/// # Ok(())
/// # }
/// ```
///
/// # Hedging
/// If the policy has a hedge ([`PolicyBuilder::hedge`](relent_core::PolicyBuilder::hedge)), a slow first attempt
/// is joined by a second one, and the first response is used. A request is hedged only if it is repeatable and
/// its body can be [sent again](crate::Body::can_be_sent_again). The hedge delay counts from the start of an
/// attempt, so time in a queue does not count. A hedge counts as a retry of the policy and is paid from the same
/// budget. [`Race`](relent_core::call::Race) defines the effect of a failure while another attempt runs. If
/// [`when`](Self::when) returns `false` for a failure, the race ends.
///
/// An attempt ends with the head of its response, so [`send`](Self::send) is hedged.
/// [`download`](Self::download) and [`RequestBuilder::whole_body`](crate::RequestBuilder::whole_body) are not
/// hedged, because their attempts include the body. The losing attempt is dropped: HTTP/2 resets its stream,
/// HTTP/1.1 closes its connection. The server may still complete it.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<ClientInner>);

/// Contents of a client, behind one `Arc` because each request holds its client.
#[derive(Clone)]
pub(crate) struct ClientInner {
    pub(crate) http: reqwest::Client,
    /// Builds `unpooled`.
    new_builder: Option<Arc<NewBuilder>>,
    /// For the retry of a 421, which needs a new connection. Built on first use.
    unpooled: Arc<OnceLock<Option<reqwest::Client>>>,
    shared: SharedOptions,
    routes: Vec<(Route, RouteOptions)>,
    pub(crate) key_form: KeyForm,
    /// The largest part of a streamed request body that is kept, in bytes.
    pub(crate) body_cap: usize,
}

/// Options that belong to one route.
#[derive(Clone)]
struct RouteOptions {
    policy: Arc<Policy>,
    destinations: Option<DestinationSource>,
}

type NewBuilder = dyn Fn() -> reqwest::ClientBuilder + Send + Sync;

/// Longer than the 5 s after which the system's resolver asks its second server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Both together are 30 s, after which reqwest lets TCP give up data that is not confirmed. gRPC servers may close a
/// connection at the fourth ping in five minutes without data; the default read timeout of 60 s is shorter.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Builder of the reqwest client that [`Client::new`] uses; start from it for a client of your own.
///
/// It sets rustls, HTTP/1 and HTTP/2, proxies from the environment, and [`Resolver`], which distinguishes failed
/// DNS look-ups. reqwest's own retries are off, because no policy would count them. Redirects are [`limit_redirects`] to
/// ten, without loops. A header field folded over several lines is read as one (RFC 9112 §5.2).
///
/// A connection has to be established within 10 s, including name resolution and the TLS handshake. Each address of a
/// name gets an equal share of that time, so a dead one does not take the whole attempt. With an attempt timeout below
/// that share, set a shorter `connect_timeout`.
///
/// A timed-out attempt closes its connection in HTTP/1.1, but not in HTTP/2. If a connection of HTTP/2 with a running
/// attempt receives nothing for 20 s, the client sends a ping. Without a response within 10 s the connection is dead:
/// its attempts fail as after a timeout, and later ones use a new connection. Some gRPC servers permit few pings. For
/// streams that are silent for minutes, set reqwest's `http2_keep_alive_interval` to `None`.
pub fn default_builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .retry(reqwest::retry::never())
        .redirect(limit_redirects(10))
        .http1_allow_obsolete_multiline_headers_in_responses(true)
        .dns_resolver(Arc::new(Resolver))
}

impl Client {
    /// Creates a client with its own connections, built by [`default_builder`].
    ///
    /// # Errors
    /// If the system's certificates or the proxies in the environment cannot be read.
    pub fn new(policy: impl Into<Arc<Policy>>) -> reqwest::Result<Self> {
        Self::from_builder(default_builder, policy)
    }

    /// Creates a client with its own connections, built by your function.
    ///
    /// The function is called a second time if a server responds with 421, to build a client that keeps no
    /// connections. reqwest's own retries are turned off, because no policy would count them.
    ///
    /// If the function sets a redirect policy, wrap that policy in [`track_redirects`](crate::track_redirects). Otherwise a request
    /// that is not repeatable is never sent again, as described at [`from_client`](Self::from_client).
    ///
    /// # Errors
    /// The error of building the reqwest client.
    pub fn from_builder(
        new_builder: impl Fn() -> reqwest::ClientBuilder + Send + Sync + 'static,
        policy: impl Into<Arc<Policy>>,
    ) -> reqwest::Result<Self> {
        let (http, redirects) = redirects::built(|| build_without_retries(&new_builder).build())?;
        let mut client = Self::from_client(http, policy);
        let options = client.options();
        options.tracked = redirects.tracked;
        options.no_redirects |= redirects.none;
        options.follows_redirects = redirects.follows;
        client.inner_mut().new_builder = Some(Arc::new(new_builder));
        Ok(client)
    }

    /// Creates a client from an existing reqwest client.
    ///
    /// Build the reqwest client with [`default_builder`]; otherwise its own retries are not counted. After a 421 its pool
    /// may return the same connection again.
    ///
    /// Such a client may send a request more often than Relent can see. It may follow a redirect after a `POST`
    /// that was processed, and the last server's response does not prove that the first server did nothing. A
    /// request that is not repeatable is therefore never sent again, unless you declare that its
    /// [redirects are tracked](Self::redirects_are_tracked). Repeatable requests are retried as usual.
    pub fn from_client(http: reqwest::Client, policy: impl Into<Arc<Policy>>) -> Self {
        let no_redirects = redirects::are_off(&http);
        let mut client = Self(Arc::new(ClientInner {
            http,
            new_builder: None,
            unpooled: Arc::default(),
            shared: SharedOptions::new(policy.into()),
            routes: Vec::new(),
            key_form: KeyForm::default(),
            body_cap: Replay::CAP,
        }));
        client.options().no_redirects = no_redirects;
        client
    }

    /// Declares that an [existing client](Self::from_client) tracks its redirects and has no retries of its own.
    ///
    /// Redirects are tracked if the redirect policy comes from [`track_redirects`](crate::track_redirects) or [`default_builder`]. A request
    /// that is not repeatable is then sent again after a response that proves that it was not processed.
    ///
    /// ```
    /// use relent::Policy;
    /// use relent_reqwest::Client;
    /// use relent_reqwest::default_builder;
    ///
    /// let http = default_builder().build()?;
    /// let client = Client::from_client(http, Policy::STANDARD.clone()).redirects_are_tracked();
    /// # drop(client);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn redirects_are_tracked(mut self) -> Self {
        self.options().tracked = true;
        self
    }

    /// The contents, for a change that does not affect other clones.
    fn inner_mut(&mut self) -> &mut ClientInner {
        Arc::make_mut(&mut self.0)
    }

    fn shared(&self) -> &SharedOptions {
        &self.0.shared
    }

    fn options(&mut self) -> &mut RetryOptions {
        self.inner_mut().shared.change()
    }

    /// Takes the destination of each origin from this set, to share it with other clients. The name of an origin is
    /// its scheme, host and port, such as `https://one.example`; see [`Destinations::get_or_create`].
    #[must_use]
    pub fn destinations(mut self, destinations: Arc<Destinations>) -> Self {
        self.options().destinations = DestinationSource::ByOrigin(destinations);
        self
    }

    /// Sets how many bytes of a streamed request body are kept for a retry. The default is 64 KiB. A longer body is
    /// still sent, but only once. See [`Body`](crate::Body).
    #[must_use]
    pub fn body_cap(mut self, bytes: usize) -> Self {
        self.inner_mut().body_cap = bytes;
        self
    }

    /// Ends an attempt when the server is silent for this long. The default is 60 s.
    ///
    /// The server is silent while no byte of the response head arrives and no byte of the request is sent. The
    /// timeout also applies to the body of the response: reading fails with [`Error::Body`](crate::Error::Body) if
    /// the next byte does not arrive within this time.
    ///
    /// The default applies only where nothing else limits the time. An attempt timeout of the policy replaces it
    /// until the head arrives, and [`RequestBuilder::timeout`](crate::RequestBuilder::timeout) replaces it for the
    /// whole attempt. A time set here applies in addition to them. After a part of the request has been sent, it can
    /// take up to twice this time to detect the silence. If a redirect keeps a body of more than 64 KiB, the whole body
    /// has to be sent within this time: its progress is not visible then.
    ///
    /// It also applies to an [existing client](Self::from_client), in addition to that client's own `read_timeout`.
    /// reqwest's `read_timeout` also ends a longer upload while the server is still reading; this one does not.
    ///
    /// ```
    /// use std::time::Duration;
    /// use relent::Policy;
    /// use relent_reqwest::Client;
    ///
    /// let reports = Client::new(Policy::STANDARD)?.read_timeout(Duration::from_secs(300));
    /// let long_poll = Client::new(Policy::STANDARD)?.no_read_timeout();
    /// # drop((reports, long_poll));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn read_timeout(mut self, silence: Duration) -> Self {
        self.options().read_timeout = ReadTimeout::After(silence);
        self
    }

    /// Waits for a silent server without a limit; see [`read_timeout`](Self::read_timeout).
    #[must_use]
    pub fn no_read_timeout(mut self) -> Self {
        self.options().read_timeout = ReadTimeout::Never;
        self
    }

    /// Sets how [`RequestBuilder::idempotency_key`](crate::RequestBuilder::idempotency_key) writes its keys. The
    /// default is in quotes.
    #[must_use]
    pub fn key_form(mut self, form: KeyForm) -> Self {
        self.inner_mut().key_form = form;
        self
    }

    /// Uses this policy for the requests of this route. The first route that matches decides; an option of the
    /// request itself takes precedence.
    ///
    /// A policy with a budget, circuit breaker, rate limit or throttle gets its own ones for this route, per
    /// origin. Otherwise the route shares those of the client.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use relent::Policy;
    /// use relent_reqwest::Client;
    ///
    /// let limited = |seconds| {
    ///     let policy = Policy::STANDARD.clone().into_builder();
    ///     policy.attempt_timeout(Duration::from_secs(seconds)).build()
    /// };
    /// let client = Client::new(limited(60)?)?.route("*/reports".parse()?, limited(120)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn route(mut self, route: Route, policy: impl Into<Arc<Policy>>) -> Self {
        let policy = policy.into();
        let own = policy.budget().is_some()
            || policy.circuit_breaker().is_some()
            || policy.rate_limit().is_some()
            || policy.throttle().is_some();
        let destinations = own.then(|| DestinationSource::by_origin(&policy));
        let routed = RouteOptions {
            policy,
            destinations,
        };
        self.inner_mut().routes.push((route, routed));
        self
    }

    /// Sets the function that decides whether to retry; see [`RequestBuilder::when`](crate::RequestBuilder::when).
    #[must_use]
    pub fn when(
        mut self,
        when: impl Fn(u32, Option<&AttemptError>, Option<&reqwest::Response>) -> bool
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.options().when = Some(Arc::new(when));
        self
    }

    /// Sets the function that computes the delay; see [`RequestBuilder::delay`](crate::RequestBuilder::delay).
    #[must_use]
    pub fn delay(
        mut self,
        delay: impl Fn(u32, Option<&AttemptError>, Option<&reqwest::Response>) -> Duration
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.options().delay = Some(Arc::new(delay));
        self
    }

    /// Sets the function that chooses the URL of each attempt, for a fallback or another node.
    ///
    /// It receives the number of the attempt (the first is 1) and the URL of the request, which it may change. The
    /// destination with its budget, circuit breaker and cooldown stays that of the original URL. All header fields
    /// are sent along, including credentials: only name hosts that may receive them.
    ///
    /// A request with an idempotency key is repeatable only at hosts that share their records of keys. Otherwise it may
    /// run once at each: make it not [repeatable](crate::RequestBuilder::repeatable).
    ///
    /// ```
    /// use relent::Policy;
    /// use relent_reqwest::Client;
    ///
    /// let client = Client::new(Policy::STANDARD)?.reroute(|attempt, url| {
    ///     if attempt > 1 {
    ///         // A URL without a host cannot be given one, and stays unchanged.
    ///         let _ = url.set_host(Some("fallback.example"));
    ///     }
    /// });
    /// # drop(client);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn reroute(
        mut self,
        route: impl Fn(u32, &mut reqwest::Url) + Send + Sync + 'static,
    ) -> Self {
        self.options().reroute = Some(Arc::new(route));
        self
    }

    /// The options of a request to this URL, before the changes of the request itself.
    pub(crate) fn options_of(
        &self,
        method: &Method,
        uri: impl FnOnce() -> Option<Uri>,
    ) -> Arc<RetryOptions> {
        let routes = &self.0.routes;
        let mut options = self.0.shared.now();
        if !routes.is_empty()
            && let Some(uri) = uri()
            && let Some((_, routed)) = routes.iter().find(|(route, _)| route.matches(method, &uri))
        {
            let changed = Arc::make_mut(&mut options);
            changed.policy = routed.policy.clone();
            if let Some(own) = &routed.destinations {
                changed.destinations = own.clone();
            }
        }
        options
    }

    /// The client without a connection pool, or the normal one if it cannot be built.
    pub(crate) fn unpooled(&self) -> &reqwest::Client {
        let make = || {
            let new_builder = self.0.new_builder.as_ref()?;
            let build = || {
                build_without_retries(&**new_builder)
                    .pool_max_idle_per_host(0)
                    .build()
            };
            let (http, redirects) = redirects::built(build).ok()?;
            // The function may build another client each time.
            (redirects.tracked || !self.0.shared.tracks_redirects()).then_some(http)
        };
        let unpooled = self.0.unpooled.get_or_init(make).as_ref();
        unpooled.unwrap_or(&self.0.http)
    }
}

retry_option_methods!(Client);

/// Calls the builder function and turns off reqwest's own retries.
fn build_without_retries(new_builder: &NewBuilder) -> reqwest::ClientBuilder {
    new_builder().retry(reqwest::retry::never())
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("policy", &self.0.shared.now().policy)
            .finish_non_exhaustive()
    }
}
