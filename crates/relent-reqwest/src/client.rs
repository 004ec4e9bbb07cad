//! A client over reqwest that retries, and hedges if it is asked to.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{Method, Uri};
use relent::Destinations;
use relent_core::Policy;
use relent_http::KeyForm;
use relent_http::attempt::DestinationSource;
use relent_http::body::Replay;

use crate::call_options::{CallOptions, SharedOptions, call_option_methods};
use crate::dns::Resolver;
use crate::failed::AttemptError;
use crate::read_timeout::ReadTimeout;
use crate::redirects::{self, limited};
use crate::route::Route;

/// Sends requests as often as a policy allows, by design rules 1–9.
///
/// A clone shares connections, policy and destinations: each origin (scheme, host and port) that it
/// calls has a budget, a gate and a cooldown of its own, which all requests to it share
/// ([`Destinations`]). A failure after a [redirect](crate::watched) is one of the origin that it led to.
/// An attempt that is cut off by the attempt timeout
/// or the deadline of the policy may have taken effect.
///
/// # How long a call takes
/// While an origin is down, a call with a deadline ([`PolicyBuilder::deadline`](relent_core::PolicyBuilder::deadline))
/// is queued until then, for five minutes at most. With the policy [`STANDARD`](relent_core::Policy::STANDARD) and no
/// deadline no attempt starts later than 30 s after the call began, and 9 s while no attempt of this client has ever
/// had a response from the origin. A running attempt is never cut off by that, and a `Retry-After` beyond it ends the
/// call at once.
///
/// ```no_run
/// use relent::Policy;
/// use relent_reqwest::Client;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::new(Policy::STANDARD)?; // was: reqwest::Client::new()
/// let response = client.get("https://example.com/").send().await?;
/// println!("{} after {} attempts", response.status(), response.summary().attempts);
/// println!("{}", response.error_for_status()?.text().await?);
/// # Ok(())
/// # }
/// ```
///
/// # What is hedged
/// If the policy has a hedge ([`PolicyBuilder::hedge`](relent_core::PolicyBuilder::hedge)), a second
/// attempt joins the first when that takes long, and the answer that is there first is taken. Only
/// requests that are repeatable are hedged, and whose body can be [sent
/// again](crate::Body::can_be_sent_again). The delay counts from the start of an attempt: while a
/// destination holds it back it is not slow. A hedge counts among the retries of the policy and is taken
/// from the same budget. [`Race`](relent_core::Race) says what a failure means while another attempt runs;
/// a judgement by [`when`](Self::when) that says no ends the race.
///
/// An attempt is over with the head of its response, so [`send`](Self::send) is hedged; a
/// [`download`](Self::download) and [`RequestBuilder::whole_body`](crate::RequestBuilder::whole_body) are
/// not, whose attempts go on with the body. The loser is dropped: in HTTP/2 that resets its stream, in
/// HTTP/1.1 it closes its connection. The server may go on with what it has begun.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Made>);

/// What a client is made of, apart, since each request has a share in its client.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) http: reqwest::Client,
    /// Makes `unpooled`.
    recipe: Option<Arc<Recipe>>,
    /// For the retry of a 421, which needs a fresh connection; made when it is first needed.
    unpooled: Arc<OnceLock<Option<reqwest::Client>>>,
    shared: SharedOptions,
    routes: Vec<(Route, Routed)>,
    pub(crate) key_form: KeyForm,
    /// The most bytes that are kept of a body that streams.
    pub(crate) body_cap: usize,
}

/// What a route has of its own.
#[derive(Clone)]
struct Routed {
    policy: Arc<Policy>,
    destinations: Option<DestinationSource>,
}

type Recipe = dyn Fn() -> reqwest::ClientBuilder + Send + Sync;

/// How [`Client::new`] makes its reqwest client: rustls, HTTP/1 and HTTP/2, proxies from the
/// environment, [`Resolver`] so that failed look-ups can be told apart, and none of reqwest's own
/// retries, which no policy would count. It follows at most ten redirects and no loop, by [`limited`]. A
/// header field that is folded over several lines is read as one (RFC 9112 §5.2).
///
/// Start from it for a client of your own.
pub fn recipe() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .retry(reqwest::retry::never())
        .redirect(limited(10))
        .http1_allow_obsolete_multiline_headers_in_responses(true)
        .dns_resolver(Arc::new(Resolver))
}

impl Client {
    /// A client with connections of its own, made by [`recipe`].
    ///
    /// # Errors
    /// When the system's certificates or the proxies in the environment cannot be read.
    pub fn new(policy: impl Into<Arc<Policy>>) -> reqwest::Result<Self> {
        Self::made_by(recipe, policy)
    }

    /// A client with connections of its own, made by your recipe. It is used a second time if a
    /// server answers 421, to make one that does not keep connections. Retries of reqwest's own are
    /// turned off: no policy would count them.
    ///
    /// A redirect policy that the recipe sets has to be [`watched`](crate::watched). If it is not, a request that is not
    /// repeatable is never sent again, as described at [`over`](Self::over).
    ///
    /// # Errors
    /// What building the reqwest client returns.
    pub fn made_by(
        recipe: impl Fn() -> reqwest::ClientBuilder + Send + Sync + 'static,
        policy: impl Into<Arc<Policy>>,
    ) -> reqwest::Result<Self> {
        let (http, redirects) = redirects::built(|| built_once(&recipe).build())?;
        let mut client = Self::over(http, policy);
        let options = client.options();
        (options.watched, options.no_redirects) = (redirects.watched, redirects.none);
        client.made().recipe = Some(Arc::new(recipe));
        Ok(client)
    }

    /// A client over one that you have. It should come from a [`recipe`]: reqwest's own retries are
    /// not counted otherwise. After a 421 its pool may hand out the same connection again.
    ///
    /// Nothing proves how often such a client sends a request: it may follow a redirect after a `POST`
    /// that was processed, and what the last server says is no proof that the first did nothing. So a
    /// request that is not repeatable is never sent again, whatever the answer, unless you say that its
    /// [redirects are watched](Self::redirects_are_watched). Repeatable requests are retried as ever.
    pub fn over(http: reqwest::Client, policy: impl Into<Arc<Policy>>) -> Self {
        Self(Arc::new(Made {
            http,
            recipe: None,
            unpooled: Arc::default(),
            shared: SharedOptions::new(policy.into()),
            routes: Vec::new(),
            key_form: KeyForm::default(),
            body_cap: Replay::CAP,
        }))
    }

    /// Says of a client [over one that you have](Self::over) that its redirect policy is [`watched`](crate::watched),
    /// which that of a [`recipe`] is, and that it has no retries of its own. A request that is not
    /// repeatable is sent again then after an answer that proves that it was not processed.
    ///
    /// ```
    /// use relent::Policy;
    /// use relent_reqwest::Client;
    /// use relent_reqwest::recipe;
    ///
    /// let http = recipe().build()?;
    /// let client = Client::over(http, Policy::STANDARD.clone()).redirects_are_watched();
    /// # drop(client);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn redirects_are_watched(mut self) -> Self {
        self.options().watched = true;
        self
    }

    /// What it is made of, to be changed: other clones stay as they are.
    fn made(&mut self) -> &mut Made {
        Arc::make_mut(&mut self.0)
    }

    fn shared(&self) -> &SharedOptions {
        &self.0.shared
    }

    fn options(&mut self) -> &mut CallOptions {
        self.made().shared.change()
    }

    /// Finds the destination of each origin here, to share them with other clients. An origin is called
    /// by its scheme, host and port, such as `https://one.example`; see [`Destinations::of`].
    #[must_use]
    pub fn destinations(mut self, destinations: Arc<Destinations>) -> Self {
        self.options().destinations = DestinationSource::ByOrigin(destinations);
        self
    }

    /// The most bytes that are kept of a body that streams, so that it can be sent again: 64 KiB unless
    /// said otherwise. What is longer goes out all the same, once. See [`Body`](crate::Body).
    #[must_use]
    pub fn body_cap(mut self, bytes: usize) -> Self {
        self.made().body_cap = bytes;
        self
    }

    /// Ends an attempt when the server is silent for this long: when no byte of the head of a response
    /// arrives and none of the request goes out. It also ends the body of the response, with an
    /// [`Error::Body`](crate::Error::Body), when its next byte does not arrive within this time.
    ///
    /// 60 s unless said otherwise, so that no call waits for ever for a server that says nothing. By
    /// itself that default applies where nothing else limits the time: an attempt timeout of the policy
    /// takes its place until the head, and [`RequestBuilder::timeout`](crate::RequestBuilder::timeout) for all
    /// of the attempt. A time that is set here applies beside them. After a part of the request has gone
    /// out, a silence can take up to twice as long until it is noticed.
    ///
    /// It is the same for a client [over one that you have](Self::over), beside a `read_timeout` of that
    /// one. reqwest's own also ends an upload that takes longer, though the server reads; this one does not.
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

    /// Waits for a silent server for as long as it takes; see [`read_timeout`](Self::read_timeout).
    #[must_use]
    pub fn no_read_timeout(mut self) -> Self {
        self.options().read_timeout = ReadTimeout::Never;
        self
    }

    /// How the keys of [`RequestBuilder::idempotency_key`](crate::RequestBuilder::idempotency_key) are written: in quotes, unless said
    /// otherwise.
    #[must_use]
    pub fn key_form(mut self, form: KeyForm) -> Self {
        self.made().key_form = form;
        self
    }

    /// Retries the requests of this route by this policy (R2.4). The first route that matches
    /// decides; what a request says itself goes before it.
    ///
    /// A policy with a budget or a gate has them for this route, for each origin; without, the route
    /// shares the client's.
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
        let own = policy.budget().is_some() || policy.gate().is_some();
        let destinations = own.then(|| DestinationSource::by_origin(&policy));
        let routed = Routed {
            policy,
            destinations,
        };
        self.made().routes.push((route, routed));
        self
    }

    /// Retries when this says so; see [`RequestBuilder::when`](crate::RequestBuilder::when).
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

    /// Waits for as long as this says; see [`RequestBuilder::delay`](crate::RequestBuilder::delay).
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

    /// Chooses where an attempt goes: given its number (the first is 1) and the address of the
    /// request, which it may change. For a fallback, or for another node when only some fail.
    ///
    /// The destination, with its budget, gate and cooldown, stays that of the request's own address.
    /// All header fields go along, credentials too: reroute only to those who may have them.
    ///
    /// ```
    /// use relent::Policy;
    /// use relent_reqwest::Client;
    ///
    /// let client = Client::new(Policy::STANDARD)?.reroute(|attempt, url| {
    ///     if attempt > 1 {
    ///         // An address without a host cannot be given one, and stays.
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

    /// How a request to this address is retried, unless it says otherwise itself.
    pub(crate) fn options_of(
        &self,
        method: &Method,
        uri: impl FnOnce() -> Option<Uri>,
    ) -> Arc<CallOptions> {
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

    /// The client without a pool, if one can be made.
    pub(crate) fn unpooled(&self) -> &reqwest::Client {
        let make = || {
            let recipe = self.0.recipe.as_ref()?;
            let build = || built_once(&**recipe).pool_max_idle_per_host(0).build();
            let (http, redirects) = redirects::built(build).ok()?;
            // A recipe may make another client each time.
            (redirects.watched || !self.0.shared.is_watched()).then_some(http)
        };
        let unpooled = self.0.unpooled.get_or_init(make).as_ref();
        unpooled.unwrap_or(&self.0.http)
    }
}

call_option_methods!(Client);

/// A builder of the recipe, without retries of reqwest's own.
fn built_once(recipe: &Recipe) -> reqwest::ClientBuilder {
    recipe().retry(reqwest::retry::never())
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("policy", &self.0.shared.now().policy)
            .finish_non_exhaustive()
    }
}
