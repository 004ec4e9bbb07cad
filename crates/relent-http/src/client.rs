//! A client over reqwest that retries.

mod attempt;
mod body;
mod download;
mod resume;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use http::header::CONTENT_LENGTH;
use http::{Method, Request};
use relent::{Driver, GaveUp, Summary, TokioClock};
use relent_core::{Budget, Cause, Decision, Failure, Policy, StopReason};

use crate::classify;
use crate::dns::Resolver;
use crate::hint::HintOptions;
use crate::repeatable::RequestFacts;

pub use attempt::{AttemptError, Failed, Last};
use attempt::{Broken, Until};
pub use body::Body;
pub use download::{Download, Sink};

/// Sends requests as often as a policy allows, by design rules 1–9.
///
/// A clone shares connections, policy and budget, so have one client for each destination that
/// fails by itself: the budget of a policy is that of a destination. An attempt that is cut off by the attempt timeout
/// or the deadline of the policy may have taken effect.
///
/// ```no_run
/// use relent::Policy;
/// use relent_http::{Body, Client};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::new(Policy::STANDARD.clone())?;
/// let request = http::Request::get("https://example.com/").body(Body::empty())?;
/// let (response, summary) = client.send(&request).await?;
/// println!("{} after {} attempts", response.status(), summary.attempts);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    /// Makes `unpooled`.
    recipe: Option<Arc<Recipe>>,
    /// For the retry of a 421, which needs a fresh connection; made when it is first needed.
    unpooled: Arc<OnceLock<Option<reqwest::Client>>>,
    policy: Arc<Policy>,
    budget: Option<Arc<Budget>>,
    hints: HintOptions,
    traced: bool,
}

type Recipe = dyn Fn() -> reqwest::ClientBuilder + Send + Sync;

/// How [`Client::new`] makes its reqwest client: rustls, HTTP/1 and HTTP/2, proxies from the
/// environment, [`Resolver`] so that failed look-ups can be told apart, and none of reqwest's own
/// retries, which no policy would count.
///
/// Start from it for a client of your own.
pub fn recipe() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .retry(reqwest::retry::never())
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
    /// server answers 421, to make one that does not keep connections.
    ///
    /// # Errors
    /// What building the reqwest client returns.
    pub fn made_by(
        recipe: impl Fn() -> reqwest::ClientBuilder + Send + Sync + 'static,
        policy: impl Into<Arc<Policy>>,
    ) -> reqwest::Result<Self> {
        let http = recipe().build()?;
        let mut client = Self::over(http, policy);
        client.recipe = Some(Arc::new(recipe));
        Ok(client)
    }

    /// A client over one that you have. It should come from a [`recipe`]: reqwest's own retries are
    /// not counted otherwise. After a 421 its pool may hand out the same connection again.
    pub fn over(http: reqwest::Client, policy: impl Into<Arc<Policy>>) -> Self {
        let policy = policy.into();
        Self {
            http,
            recipe: None,
            unpooled: Arc::default(),
            budget: policy.new_budget().map(Arc::new),
            policy,
            hints: HintOptions::default(),
            traced: false,
        }
    }

    /// Takes the retries out of this budget in place of one of its own, to share it among several
    /// clients of a destination.
    #[must_use]
    pub fn budget(mut self, budget: Arc<Budget>) -> Self {
        self.budget = Some(budget);
        self
    }

    /// What the destination means by headers that do not say it themselves.
    #[must_use]
    pub const fn hints(mut self, options: HintOptions) -> Self {
        self.hints = options;
        self
    }

    /// Keeps a trace of every attempt in the [`Summary`].
    #[must_use]
    pub const fn traced(mut self) -> Self {
        self.traced = true;
        self
    }

    /// Attempts until the head of a response has arrived that is no failure, or the policy stops.
    ///
    /// The last real outcome is returned as it is: if the last attempt was answered, its response is
    /// `Ok`, be it a 200 or a 503. [`Summary::reason`] is `None` only for a success. The body is
    /// yours to read, under no limit; for an attempt that includes the body, use
    /// [`download`](Self::download).
    ///
    /// The version of the request is obeyed, its extensions are not sent.
    ///
    /// # Errors
    /// When the last attempt brought no response.
    pub async fn send(
        &self,
        request: &Request<Body>,
    ) -> Result<(reqwest::Response, Summary), GaveUp<AttemptError>> {
        let mut driver = self.driver(RequestFacts::of(request.method(), request.headers()));
        let mut route = Route::Pooled;
        loop {
            let until = Until::after(driver.on_attempt().limit);
            let failed = match self.attempt(request, route, until).await {
                Ok(response) => {
                    driver.on_success_with(Cause::Status(response.status().as_u16()));
                    return Ok((response, driver.summary(None)));
                }
                Err(failed) => failed,
            };
            match failed.decide(&mut driver) {
                Decision::Retry { after } => {
                    route = Route::after(&failed.failure);
                    wait(after, failed).await;
                }
                Decision::Stop(stop) => {
                    let summary = driver.summary(Some(stop));
                    return match failed.last {
                        Last::Refused(response) => Ok((response, summary)),
                        Last::Error(error) => Err(GaveUp::new(Some(error), summary)),
                    };
                }
            }
        }
    }

    /// A driver for one request of which this much is known.
    pub(crate) fn driver(&self, facts: RequestFacts) -> Driver<'_, TokioClock> {
        let mut driver = Driver::builder(&self.policy, TokioClock).repeatable(facts.repeatable);
        if let Some(budget) = &self.budget {
            driver = driver.budget(budget);
        }
        if self.traced {
            driver = driver.traced();
        }
        driver.start()
    }

    /// One attempt, until the head of a response that is no failure.
    pub(crate) async fn attempt(
        &self,
        request: &Request<Body>,
        route: Route,
        until: Until,
    ) -> Result<reqwest::Response, Failed> {
        let body =
            request.body().open().await.map_err(|error| {
                Broken::local(StopReason::NotReplayable, AttemptError::Body(error))
            })?;
        let http = match route {
            Route::Pooled => &self.http,
            Route::Fresh => self.unpooled(),
        };
        let mut attempt = http
            .request(request.method().clone(), request.uri().to_string())
            .version(request.version())
            .headers(request.headers().clone());
        let length = request.body().len();
        let told = match body {
            // Hyper would leave out a length of zero, and some servers insist on it (RFC 9110 §8.6).
            None => matches!(
                *request.method(),
                Method::POST | Method::PUT | Method::PATCH
            ),
            Some(_) => request.body().is_streamed(),
        };
        if told && !request.headers().contains_key(CONTENT_LENGTH) {
            attempt = attempt.header(CONTENT_LENGTH, length);
        }
        if let Some(body) = body {
            attempt = attempt.body(body);
        }
        let response = until.timeout(attempt.send()).await?.map_err(Broken::from)?;
        let facts = RequestFacts::of(request.method(), request.headers());
        let now = SystemTime::now();
        match classify(
            response.status(),
            response.headers(),
            facts,
            now,
            &self.hints,
        ) {
            None => Ok(response),
            Some(failure) => Err(Failed {
                failure,
                stop: None,
                last: Last::Refused(response),
            }),
        }
    }

    /// The client without a pool, if one can be made.
    fn unpooled(&self) -> &reqwest::Client {
        let make = || {
            self.recipe.as_ref()?()
                .pool_max_idle_per_host(0)
                .build()
                .ok()
        };
        self.unpooled
            .get_or_init(make)
            .as_ref()
            .unwrap_or(&self.http)
    }
}

/// Which connections an attempt may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Route {
    /// Any that is open.
    #[default]
    Pooled,
    /// A new one.
    Fresh,
}

impl Route {
    /// The one to take after this failure (design rule 2).
    pub(crate) fn after(failure: &Failure) -> Self {
        match failure.cause {
            Cause::Status(421) => Self::Fresh,
            _ => Self::Pooled,
        }
    }
}

/// Waits, and drains what is left of the failed attempt meanwhile.
pub(crate) async fn wait(after: Duration, failed: Failed) {
    let sleep = async {
        // The timer of tokio makes even no wait take a millisecond.
        if !after.is_zero() {
            tokio::time::sleep(after).await;
        }
    };
    tokio::join!(sleep, failed.drain());
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
