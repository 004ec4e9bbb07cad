//! Retries as a middleware of reqwest-middleware, for a stack that is there already.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use http::Extensions;
use relent::{Destination, GaveUp, Summary};
use relent_core::{Cause, Decision, Failure, Kind, Pattern, Policy, Repeatable, StopReason};
use reqwest::{Request, Response};
use reqwest_middleware::{Error, Middleware, Next, Result};

use crate::attempt::{AttemptError, Until};
use crate::complete::checked_by_length;
use crate::hops::Watch;
use crate::manner::{Manner, cause};
use crate::network;
use crate::outgoing::Head;
use crate::sending::{sleep, wait_draining};
use crate::streamed::Streamed;
use relent_http::HintOptions;
use relent_http::Replay;
use relent_http::RequestFacts;
use relent_http::attempt::CrossLayer;
use relent_http::attempt::DestinationSource;
use relent_http::attempt::cannot_fail;
use relent_http::field::content_length;
use relent_http::{classify, classify_listed};

/// Runs what follows it in a stack of reqwest-middleware as often as a policy allows, by design
/// rules 1–8.
///
/// - The last real outcome is returned as it is: a 503 stays `Ok`, an error of reqwest its own.
///   Only where the policy cut the last attempt off, or there was no attempt, there is none, and the
///   error is `Error::Middleware` with a [`GaveUp`]. A response whose retry was held back has what was
///   read of its body, at most 256 KiB, and ends with [`NotKept`](relent_http::NotKept) if that is not all.
///   A [`Summary`] is in the extensions of the response, and
///   in those that the caller gave.
/// - A body that reqwest can clone is sent for each attempt. A stream is kept while it goes out, up to
///   [`Replay::CAP`], and sent again if that was all of it (design rule 9).
/// - Each attempt begins with the extensions that the caller gave: what one attempt has put into them
///   is not seen by the next.
/// - The error of another middleware may have taken effect, so it is retried only if the request may
///   run twice. The same holds for any failure unless you say that
///   [redirects are watched](Self::redirects_are_watched), and for one after a redirect.
/// - A 421 is retried once, but on any connection: for a fresh one, use [`Client`](crate::Client).
///
/// With the feature `tracing` it tells of waits and give-ups; it makes no spans, which are the work of
/// another middleware after it, such as reqwest-tracing.
///
/// The reqwest client should come from a [`recipe`](crate::recipe), so that its own retries do not
/// multiply. Requests take another policy with `.with_extension(Arc<Policy>)`, and with
/// `.with_extension(Repeatable::No)` or `Yes` they say whether they may run twice, whatever their method and
/// headers say.
///
/// ```no_run
/// use relent::Policy;
/// use relent_reqwest::{RetryMiddleware, recipe};
/// use reqwest_middleware::ClientBuilder;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = ClientBuilder::new(recipe().build()?)
///     .with(RetryMiddleware::new(Policy::STANDARD).redirects_are_watched())
///     .build();
/// let response = client.get("https://example.com/").send().await?;
/// if let Some(summary) = response.extensions().get::<relent::Summary>() {
///     println!("{} after {} attempts", response.status(), summary.attempts);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RetryMiddleware {
    manner: Arc<Manner>,
    hints: HintOptions,
    /// Whether all below makes one call for one, or lets redirects be seen.
    watched: bool,
}

impl RetryMiddleware {
    /// Retries by this policy. Clones share the budget that it has.
    #[must_use]
    pub fn new(policy: impl Into<Arc<Policy>>) -> Self {
        Self {
            manner: Arc::new(Manner::new(policy.into())),
            hints: HintOptions::default(),
            watched: false,
        }
    }

    fn manner(&mut self) -> &mut Manner {
        Arc::make_mut(&mut self.manner)
    }

    /// Says that each attempt makes one call, or lets it be seen if it makes more: the redirect policy of
    /// the reqwest client is [`watched`](crate::watched), which that of a [`recipe`](crate::recipe) is,
    /// the client has no retries of its own, and no middleware after this one calls twice.
    ///
    /// Without this nothing proves how often an attempt sends a request. It may follow a redirect after a
    /// `POST` that was processed, and what the last server says is no proof that the first did nothing. So
    /// a request that is not repeatable is never sent again, whatever the answer. Repeatable requests are
    /// retried as ever.
    #[must_use]
    pub const fn redirects_are_watched(mut self) -> Self {
        self.watched = true;
        self
    }

    /// Takes all that it calls for this one destination, in place of one for each origin.
    #[must_use]
    pub fn destination(mut self, destination: Arc<Destination>) -> Self {
        self.manner().destinations = DestinationSource::One(destination);
        self
    }

    /// Retries exactly these failures, statuses or patterns, in place of those that the policy
    /// lists.
    #[must_use]
    pub fn retry_on<P: Into<Pattern>>(mut self, failures: impl IntoIterator<Item = P>) -> Self {
        self.manner().retry_on(failures.into_iter().map(Into::into));
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
    pub fn traced(mut self) -> Self {
        self.manner().traced = true;
        self
    }

    /// Names the destination in metrics: a name of your choice, such as `payments`.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn label(mut self, name: impl Into<Arc<str>>) -> Self {
        self.manner().named = relent_http::attempt::Named::new(name);
        self
    }

    /// Tells the server which attempt a request is (from the second on), how much time is left until
    /// the deadline, and from time to time how many attempts the calls of this middleware and its clones
    /// take: see [`CallerFacts`](relent_http::CallerFacts), which reads it, and `docs/headers.md`. Off by default,
    /// since it is for services that know each other.
    ///
    /// A request that brings a deadline along in [`relent-deadline-ms`](relent_http::headers::RELENT_DEADLINE_MS)
    /// has no more time than that for all its attempts together.
    #[must_use]
    pub fn cross_layer(mut self) -> Self {
        self.manner().cross = Some(CrossLayer::new());
        self
    }

    /// One attempt; an error is how it failed, and what there is to show of it.
    async fn attempt(
        &self,
        until: Until,
        policy: &Policy,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
        watch: &mut Watch,
    ) -> std::result::Result<Response, (Failure, Outcome)> {
        let facts = RequestFacts::of(request.method(), request.headers());
        let method = request.method().clone();
        let running = watch.around(next.run(request, extensions));
        let outcome = until.timeout(running).await;
        match outcome.map_err(|cut| (cut.failure, Outcome::Cut(cut.error)))? {
            Ok(response) => {
                let (status, headers) = (response.status(), response.headers());
                if cannot_fail(status, headers) && !policy.makes_failure_of(status.as_u16()) {
                    return Ok(checked_by_length(&method, response));
                }
                let now = SystemTime::now();
                let failure = classify(status, headers, facts, now, &self.hints)
                    .or_else(|| classify_listed(policy, status, headers, now, &self.hints));
                match failure {
                    None => Ok(checked_by_length(&method, response)),
                    Some(failure) => Err((failure, Outcome::Refused(response))),
                }
            }
            Err(error) => Err((failure_of(&error), Outcome::Error(error))),
        }
    }
}

/// What the next attempt is made of.
enum Again {
    Head(Head),
    Whole(Box<Request>),
    /// With a body that is kept while it goes out.
    Streamed(Head, Streamed),
}

impl Again {
    /// `stream` is the body if it is kept while it goes out, from the first attempt on.
    fn of(request: &mut Request, stream: &mut Option<Streamed>) -> Self {
        if stream.is_none() && request.body().is_some() {
            if let Some(whole) = request.try_clone() {
                return Self::Whole(Box::new(whole));
            }
            let length = content_length(request.headers());
            let body = request.body_mut().take();
            *stream = body.map(|body| Streamed::new(body, Replay::CAP, length));
            *request.body_mut() = stream.as_ref().and_then(|stream| stream.open().ok());
        }
        match stream {
            Some(stream) => Self::Streamed(Head::of(request), stream.clone()),
            None => Self::Head(Head::of(request)),
        }
    }

    /// Whether the attempt that has failed leaves a body for another.
    fn is_left(&self, answered: bool) -> bool {
        match self {
            Self::Streamed(_, stream) => stream.take_back(answered),
            _ => true,
        }
    }

    /// `None` if the body cannot be sent again after all.
    fn request(self) -> Option<Request> {
        match self {
            Self::Head(head) => Some(head.request()),
            Self::Whole(request) => Some(*request),
            Self::Streamed(head, stream) => {
                let mut request = head.request();
                *request.body_mut() = Some(stream.open().ok()?);
                Some(request)
            }
        }
    }
}

fn failure_of(error: &Error) -> Failure {
    match error {
        Error::Reqwest(error) => network::classify(error),
        Error::Middleware(error) => {
            if let Some(gave_up) = error.downcast_ref::<GaveUp<AttemptError>>() {
                // Retried once already, at another layer (design rule 8).
                return Failure::permanent().cause(match gave_up.reason() {
                    StopReason::Deadline => Cause::Timeout,
                    _ => Cause::Error,
                });
            }
            let reqwest = error.chain().find_map(|source| source.downcast_ref());
            reqwest.map_or(Failure::ambiguous(), network::classify)
        }
    }
}

/// What a failed attempt leaves behind.
enum Outcome {
    Refused(Response),
    Error(Error),
    /// The policy cut the attempt off.
    Cut(AttemptError),
}

impl Outcome {
    /// The response, or the error of reqwest.
    fn parts(&self) -> (Option<&Response>, Option<&reqwest::Error>) {
        match self {
            Self::Refused(response) => (Some(response), None),
            Self::Error(Error::Reqwest(error)) => (None, Some(error)),
            Self::Error(Error::Middleware(_)) | Self::Cut(_) => (None, None),
        }
    }

    /// Waits for the next attempt, and drains what is left of this one meanwhile.
    async fn wait(self, after: Duration, room: Option<Duration>) -> Self {
        if let Self::Refused(response) = self {
            return Self::Refused(wait_draining(after, room, response).await);
        }
        sleep(after).await;
        self
    }

    /// As the caller gets it if no attempt follows.
    fn into_result(self, summary: Summary, extensions: &mut Extensions) -> Result<Response> {
        extensions.insert(summary.clone());
        match self {
            Self::Refused(mut response) => {
                response.extensions_mut().insert(summary);
                Ok(response)
            }
            Self::Error(error) => Err(error),
            Self::Cut(error) => Err(Error::middleware(GaveUp::new(Some(error), summary))),
        }
    }
}

#[async_trait]
impl Middleware for RetryMiddleware {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let mut manner = self.manner.clone();
        if let Some(policy) = extensions.get::<Arc<Policy>>() {
            Arc::make_mut(&mut manner).policy = policy.clone();
        }
        if let Some(said) = extensions.get::<Repeatable>() {
            Arc::make_mut(&mut manner).repeatable = *said;
        }
        let manner = manner.settled(request.headers());
        let mut telling = manner.telling();
        let facts = RequestFacts::of(request.method(), request.headers());
        let mut driver = manner.driver(Some(request.url()));
        driver.set_repeatable(manner.may_repeat(facts));
        let given = extensions.clone();
        let mut last = None;
        let mut stream = None;
        loop {
            let entered = driver.entered().await;
            let earlier: Option<Box<Outcome>> = last.take();
            let leave = match entered {
                Ok(leave) => leave,
                Err(stop) => {
                    let summary = driver.summary(Some(stop));
                    return match earlier {
                        Some(last) => last.into_result(summary, extensions),
                        None => Err(Error::middleware(GaveUp::<AttemptError>::new(
                            None, summary,
                        ))),
                    };
                }
            };
            drop(earlier);
            let begun = driver.on_attempt(leave);
            let until = Until::after(begun.limit);
            let again = Again::of(&mut request, &mut stream);
            telling.tell(&begun, request.headers_mut());
            extensions.clone_from(&given);
            let mut watch = Watch::default();
            let policy = &manner.policy;
            let attempt =
                self.attempt(until, policy, request, extensions, next.clone(), &mut watch);
            let (mut failure, outcome) = match attempt.await {
                Ok(mut response) => {
                    if let Some(followed) = watch.followed() {
                        let (url, since) = (response.url(), Some(followed.at));
                        manner.tell_elsewhere(&mut driver, url, since, None);
                    }
                    driver.on_success_with(cause(response.status()));
                    let summary = driver.summary(None);
                    extensions.insert(summary.clone());
                    response.extensions_mut().insert(summary);
                    return Ok(response);
                }
                Err(failed) => failed,
            };
            manner.note_hop(&mut failure, &watch, self.watched, || facts);
            if let Some(followed) = watch.followed() {
                let (response, error) = outcome.parts();
                if let Some(url) = followed.by(response, error) {
                    let since = Some(followed.at);
                    manner.tell_elsewhere(&mut driver, url, since, Some(&mut failure));
                }
            }
            let helped = !matches!(failure.kind, Kind::Permanent | Kind::Overloaded);
            let answered = matches!(outcome, Outcome::Refused(_));
            let stop = if helped && !again.is_left(answered) {
                driver.on_stop(&failure, StopReason::NotReplayable)
            } else {
                match driver.on_failure(&failure) {
                    Decision::Stop(stop) => stop,
                    Decision::Retry { after } => match again.request() {
                        Some(next) => {
                            let waited = outcome.wait(after, driver.room());
                            last = Some(Box::new(waited.await));
                            request = next;
                            continue;
                        }
                        None => driver.on_declined(&failure, StopReason::NotReplayable),
                    },
                }
            };
            return outcome.into_result(driver.summary(Some(stop)), extensions);
        }
    }
}
