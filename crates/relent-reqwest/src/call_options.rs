//! How a request is retried: what a client does for all of them, and what one request changes.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};
use relent::Destination;
use relent::clock::TokioClock;
use relent::driver::{Driver, ToDestination};
use relent::random::SessionRandom;
use relent_core::{
    Cause, Decision, Failure, Hedge, Hop, Instant, Kind, Pattern, Policy, Repeatable, StopReason,
};
use relent_http::attempt::{
    AttemptSpan, CrossLayer, DestinationSource, Judge, Named, OnAttempt, ReplacedPolicy, Telling,
};
use relent_http::grpc::is_grpc;
use relent_http::{HintOptions, RequestFacts};
use reqwest::Url;

use crate::body::Body;
use crate::failed::{AttemptError, Failed, Last, Outcome};
use crate::min_rate::Rate;
use crate::read_timeout::{ReadTimeout, Waiting};
use crate::redirects::Watch;
use crate::request_template::Template;

/// Whether an attempt is to be repeated.
type When = dyn Fn(u32, Option<&AttemptError>, Option<&reqwest::Response>) -> bool + Send + Sync;
/// How long to wait before the next.
type Delay =
    dyn Fn(u32, Option<&AttemptError>, Option<&reqwest::Response>) -> Duration + Send + Sync;

/// Where an attempt goes.
type Reroute = dyn Fn(u32, &mut reqwest::Url) + Send + Sync;

/// What each call draws from.
type NewRandom = dyn Fn() -> SessionRandom + Send + Sync;

/// The driver of a request, with shares in its policy and destination.
pub(crate) type CallDriver =
    Driver<'static, TokioClock, SessionRandom, Arc<Policy>, ToDestination<Arc<Destination>>>;

/// What a client or a middleware does for all of its requests. One that is changed goes by another policy from
/// then on.
#[derive(Clone, Debug)]
pub(crate) struct SharedOptions {
    options: Arc<CallOptions>,
    replaced: ReplacedPolicy,
}

impl SharedOptions {
    pub(crate) fn new(policy: Arc<Policy>) -> Self {
        Self {
            options: Arc::new(CallOptions::new(policy)),
            replaced: ReplacedPolicy::default(),
        }
    }

    /// Those of a request that is sent now.
    #[inline]
    pub(crate) fn now(&self) -> Arc<CallOptions> {
        let mut options = Arc::clone(&self.options);
        if let Some(policy) = self.replaced.get() {
            Arc::make_mut(&mut options).policy = policy;
        }
        options
    }

    /// To be changed.
    pub(crate) fn change(&mut self) -> &mut CallOptions {
        if let Some(policy) = std::mem::take(&mut self.replaced).get() {
            Arc::make_mut(&mut self.options).policy = policy;
        }
        Arc::make_mut(&mut self.options)
    }

    pub(crate) fn set_policy(&self, policy: Arc<Policy>) {
        let destinations = &self.options.destinations;
        self.replaced.set(policy, destinations, &TokioClock);
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.options.watched
    }
}

#[derive(Clone)]
pub(crate) struct CallOptions {
    pub(crate) policy: Arc<Policy>,
    pub(crate) destinations: DestinationSource,
    /// In place of what the policy says.
    pub(crate) hedge: Option<Arc<Hedge>>,
    pub(crate) when: Option<Arc<When>>,
    pub(crate) delay: Option<Arc<Delay>>,
    pub(crate) reroute: Option<Arc<Reroute>>,
    /// Whether the request may run twice, by the caller's word.
    pub(crate) repeatable: Repeatable,
    /// The least that is to arrive of a body that is read in the attempt.
    pub(crate) rate: Option<Rate>,
    pub(crate) read_timeout: ReadTimeout,
    pub(crate) traced: bool,
    /// In place of a stream that is seeded by the operating system.
    pub(crate) random: Option<Arc<NewRandom>>,
    pub(crate) named: Named,
    pub(crate) on_attempt: OnAttempt,
    /// What is told to the server, if anything.
    pub(crate) cross: Option<CrossLayer>,
    pub(crate) hints: HintOptions,
    /// Whether the redirects that an attempt follows are seen, and it makes no other calls.
    pub(crate) watched: bool,
    /// Whether an attempt is known to follow no redirect.
    pub(crate) no_redirects: bool,
}

impl CallOptions {
    pub(crate) fn new(policy: Arc<Policy>) -> Self {
        Self {
            destinations: DestinationSource::by_origin(&policy),
            policy,
            hedge: None,
            when: None,
            delay: None,
            reroute: None,
            repeatable: Repeatable::Unknown,
            rate: None,
            read_timeout: ReadTimeout::Default,
            traced: false,
            random: None,
            named: Named::default(),
            on_attempt: OnAttempt::default(),
            cross: None,
            hints: HintOptions::default(),
            watched: false,
            no_redirects: false,
        }
    }

    /// Retries exactly these failures.
    pub(crate) fn retry_on(&mut self, patterns: impl IntoIterator<Item = Pattern>) {
        self.when = None;
        self.change_policy(|policy| policy.retrying(patterns));
    }

    pub(crate) fn change_policy(&mut self, change: impl FnOnce(Policy) -> Policy) {
        self.policy = Arc::new(change(Policy::clone(&self.policy)));
    }

    /// A driver for one request to this address, which does not run twice until that is
    /// [found out](Self::may_repeat): most do not fail. The only place that knows what is shared among
    /// the requests to a destination.
    pub(crate) fn driver(&self, url: Option<&Url>) -> CallDriver {
        let destination = Some(self.destinations.named(url.map_or("", origin)));
        let driver = Driver::shared(self.policy.clone(), destination, TokioClock);
        let mut driver = driver.repeatable(Repeatable::Unknown);
        if self.traced {
            driver = driver.traced();
        }
        if let Some(random) = &self.random {
            driver = driver.random(random());
        }
        self.named.name(driver).start()
    }

    /// Whether a request of which this is known may run twice. The caller's word goes before all else.
    pub(crate) fn may_repeat(&self, facts: RequestFacts) -> Repeatable {
        match self.repeatable {
            Repeatable::Unknown => Repeatable::known(facts.repeatable),
            said => said,
        }
    }

    /// An attempt failed, which may have followed redirects: what that says about the whole of it, and
    /// whom it names. The destination that redirects led to is told.
    #[cold]
    pub(crate) fn heed_redirects(
        &self,
        driver: &mut CallDriver,
        failed: &mut Failed,
        template: &Template,
        watch: &Watch,
    ) {
        self.note_redirects(failed, template, watch);
        self.tell_failed(driver, failed, watch);
    }

    /// The first half of it. The failure is that of the last request. Where not all redirects are seen,
    /// nothing proves that what is not repeatable was sent once.
    #[cold]
    pub(crate) fn note_redirects(&self, failed: &mut Failed, template: &Template, watch: &Watch) {
        let proven = || {
            self.watched
                || self
                    .may_repeat(template.facts())
                    .is_allowed_by(&self.policy)
        };
        if watch.followed().is_some() || !proven() {
            failed.failure.hop = Hop::Here;
        }
        if let Last::Error(AttemptError::Transport(error)) = &mut failed.last {
            watch.name_asked(error);
        }
        failed.body = Some(template.body().clone());
    }

    /// Tells the destination that redirects led to how the attempt failed there. Where redirects are not
    /// seen, the URL of a response tells of those to another origin, unless the caller has chosen it.
    #[cold]
    pub(crate) fn tell_failed(&self, driver: &mut CallDriver, failed: &mut Failed, watch: &Watch) {
        let (error, response) = failed.last.parts();
        let error = match error {
            Some(AttemptError::Transport(error)) => Some(error),
            _ => None,
        };
        let (since, url) = match watch.followed() {
            Some(followed) => (Some(followed.at), followed.by(response, error)),
            None if self.reroute.is_none() => (None, response.map(reqwest::Response::url)),
            None => return,
        };
        if let Some(url) = url {
            self.tell_elsewhere(driver, url, since, Some(&mut failed.failure));
        }
    }

    /// An attempt was answered from this address, which redirects may have led to: tells the destination
    /// there.
    #[inline]
    pub(crate) fn tell_answered(&self, driver: &mut CallDriver, url: &Url, watch: &Watch) {
        if let Some(followed) = watch.followed() {
            self.tell_elsewhere(driver, url, Some(followed.at), None);
        }
    }

    /// Tells the destination at this address, if it is another than the session's own, how an attempt
    /// ended that was redirected there; `None` is a success.
    #[cold]
    pub(crate) fn tell_elsewhere(
        &self,
        driver: &mut CallDriver,
        url: &Url,
        since: Option<Instant>,
        failure: Option<&mut Failure>,
    ) {
        let there = self.destinations.named(origin(url));
        let own = driver.destination();
        if own.is_some_and(|own| std::ptr::eq(own, &*there)) {
            return;
        }
        driver.on_elsewhere(&there, since, failure.as_deref());
        if let Some(failure) = failure {
            failure.hop = Hop::Elsewhere;
        }
    }

    /// What ends an attempt, which sends this body, if the server is silent before its head. None where its
    /// limit ends it no later.
    #[inline]
    pub(crate) fn waiting(
        &self,
        template: &Template,
        body: &Body,
        limit: Option<Duration>,
    ) -> Option<Waiting> {
        let limited = || self.policy.attempt_timeout().is_some() || template.has_timeout();
        let within = self.read_timeout.unless(limited)?;
        let sooner = limit.is_some_and(|limit| limit <= within);
        (!sooner).then(|| Waiting::new(within, body.clone()))
    }

    /// The longest silence in the body of a response that is handed up. No limit of the policy includes it.
    #[inline]
    pub(crate) fn read_timeout_of(&self, template: &Template) -> Option<Duration> {
        self.read_timeout.unless(|| template.has_timeout())
    }

    /// The same as a rate, for a body that is read in the attempt.
    pub(crate) fn least_rate(&self, template: &Template) -> Option<Rate> {
        let limited = || self.policy.attempt_timeout().is_some() || template.has_timeout();
        let within = self.read_timeout.unless(limited)?;
        Some(Rate { bytes: 1, within })
    }

    /// Lets the caller choose where the attempt goes.
    #[inline]
    pub(crate) fn route(&self, attempt: u32, request: &mut reqwest::Request) {
        if let Some(reroute) = &self.reroute {
            reroute(attempt, request.url_mut());
        }
    }

    /// Whether this request is hedged.
    #[inline]
    pub(crate) fn hedges(&self, request: &Template) -> bool {
        (self.hedge.is_some() || self.policy.hedge().is_some())
            && self.may_repeat(request.facts()).is_allowed_by(&self.policy)
            && self.policy.max_retries() != Some(0)
            && request.can_be_sent_again()
    }

    /// By what this request is hedged, if it is.
    pub(crate) fn hedge_for(&self, driver: &CallDriver, request: &Template) -> Option<Arc<Hedge>> {
        if !self.hedges(request) {
            return None;
        }
        // There is a destination, which can remember what any policy needs.
        let of_policy = || driver.hedge().ok().flatten();
        self.hedge.clone().or_else(of_policy)
    }

    /// What an attempt has come to, which its span and the destinations are told.
    #[inline]
    pub(crate) fn conclude(
        &self,
        driver: &mut CallDriver,
        template: &Template,
        span: &mut AttemptSpan,
        watch: &Watch,
        outcome: Outcome,
    ) -> Result<reqwest::Response, Box<Failed>> {
        let number = driver.attempts().saturating_sub(1);
        match self.judge(number, self.classify(template, span, outcome)) {
            Ok(response) => {
                self.tell_answered(driver, response.url(), watch);
                driver.on_success_with(cause(response.status()));
                Ok(response)
            }
            Err(mut failed) => {
                self.heed_redirects(driver, &mut failed, template, watch);
                Err(failed)
            }
        }
    }

    /// What HTTP and the lists of the policy say of an attempt, which its span is told.
    #[inline]
    pub(crate) fn classify(
        &self,
        template: &Template,
        span: &mut AttemptSpan,
        outcome: Outcome,
    ) -> Result<reqwest::Response, Box<Failed>> {
        let judge = Judge {
            policy: &self.policy,
            hints: &self.hints,
        };
        match outcome {
            Ok(response) if judge.is_fine(response.status(), response.headers()) => {
                span.answered(response.status(), None);
                Ok(response)
            }
            outcome => self.classify_failed(judge, template, span, outcome),
        }
    }

    #[cold]
    fn classify_failed(
        &self,
        judge: Judge<'_>,
        template: &Template,
        span: &mut AttemptSpan,
        outcome: Outcome,
    ) -> Result<reqwest::Response, Box<Failed>> {
        match outcome {
            Ok(response) => {
                let (status, headers) = (response.status(), response.headers());
                let (facts, now) = (template.facts(), SystemTime::now());
                let failure = judge.failure(status, headers, response.extensions(), facts, now);
                // The lists of the policy are out of the way of the caller's own judgement.
                let only_listed = status.as_u16() < 400 && !is_grpc(headers);
                let failure = failure.filter(|_| !only_listed || self.when.is_none());
                span.answered(status, failure.as_ref());
                match failure {
                    None => Ok(response),
                    Some(failure) => Err(Failed::new(failure, Last::Refused(response))),
                }
            }
            Err(broken) => {
                span.failed(&broken.failure);
                Err(broken.into())
            }
        }
    }

    /// The caller's own judgement, which goes before that of the status. `attempt` counts from 0.
    #[inline]
    pub(crate) fn judge(
        &self,
        attempt: u32,
        classified: Result<reqwest::Response, Box<Failed>>,
    ) -> Result<reqwest::Response, Box<Failed>> {
        match (&self.when, classified) {
            (None, classified) => classified,
            (Some(when), Ok(response)) if when(attempt, None, Some(&response)) => {
                let failure = Failure::ambiguous().cause(cause(response.status()));
                Err(Failed::new(failure, Last::Refused(response)))
            }
            (Some(_), Ok(response)) => Ok(response),
            (Some(_), Err(mut failed)) => {
                self.judge_failed(attempt, &mut failed);
                Err(failed)
            }
        }
    }

    /// The caller's own judgement of a failed attempt.
    pub(crate) fn judge_failed(&self, attempt: u32, failed: &mut Failed) {
        let Some(when) = &self.when else {
            return;
        };
        let (error, response) = failed.last.parts();
        if !when(attempt, error, response) {
            failed.stop.get_or_insert(StopReason::Permanent);
        } else if failed.failure.kind == Kind::Permanent {
            // Whether it may run twice is asked all the same.
            failed.failure.kind = Kind::Ambiguous;
        }
    }

    /// Lets the driver decide, with the caller's own wait if there is one.
    pub(crate) fn decide(&self, driver: &mut CallDriver, failed: &Failed) -> Decision {
        match &self.delay {
            Some(delay) if failed.stop.is_none() => {
                let (error, response) = failed.last.parts();
                let own = delay(driver.attempts().saturating_sub(1), error, response);
                failed.decide_by(driver, own)
            }
            _ => failed.decide(driver),
        }
    }

    /// What a call tells the server.
    pub(crate) fn telling(&self) -> Telling<TokioClock> {
        Telling::of(self.cross.as_ref(), || TokioClock)
    }

    /// For a request with these headers: under the deadline that it brings along, and with every list
    /// of the policy out of the way of the caller's own judgement.
    #[inline]
    pub(crate) fn for_request(self: Arc<Self>, headers: &HeaderMap) -> Arc<Self> {
        if self.cross.is_none() && self.when.is_none() {
            return self;
        }
        self.for_request_with(headers)
    }

    fn for_request_with(mut self: Arc<Self>, headers: &HeaderMap) -> Arc<Self> {
        let cross = self.cross.as_ref();
        if let Some(sooner) = cross.and_then(|_| CrossLayer::policy(&self.policy, headers)) {
            Arc::make_mut(&mut self).policy = sooner;
        }
        if self.when.is_some() && self.policy.retry_on().is_some() {
            Arc::make_mut(&mut self).change_policy(|policy| policy.retrying([Pattern::Any]));
        }
        self
    }
}

/// What a client and a middleware say alike of all their requests: both have `shared(&self) -> &SharedOptions`
/// and `options(&mut self) -> &mut CallOptions`.
macro_rules! call_option_methods {
    ($who:ty) => {
        impl $who {
            /// Goes by this policy from now on: the requests that are sent later by this one and its clones, and
            /// all their destinations, which keep what they have learnt. A request that runs keeps the
            /// policy that it began with, and waits at its destination by the new rules: see
            /// [`Destination::set_policy`](relent::Destination::set_policy). What a route or a request says itself
            /// goes before it as ever. Replaces what [`retry_on`](Self::retry_on) has changed in the policy.
            ///
            /// A clone that one of the methods here that take `self` has changed since goes by a policy of its
            /// own.
            ///
            /// ```
            /// use relent::Policy;
            /// use relent_reqwest::Client;
            ///
            /// let client = Client::new(Policy::STANDARD)?;
            /// // ... in an incident, while it is used:
            /// client.set_policy(Policy::STANDARD.clone().without_retries());
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            pub fn set_policy(&self, policy: impl Into<std::sync::Arc<relent_core::Policy>>) {
                self.shared().set_policy(policy.into());
            }

            /// Takes all that it calls for this one destination, in place of one for each origin: to
            /// share its budget, gate and cooldown with others, or where many hosts fail as one.
            #[must_use]
            pub fn destination(mut self, destination: std::sync::Arc<relent::Destination>) -> Self {
                self.options().destinations =
                    relent_http::attempt::DestinationSource::One(destination);
                self
            }

            /// What the destination means by headers that do not say it themselves.
            #[must_use]
            pub fn hints(mut self, options: relent_http::HintOptions) -> Self {
                self.options().hints = options;
                self
            }

            /// Keeps a trace of every attempt in the [`Summary`](relent::Summary).
            #[must_use]
            pub fn traced(mut self) -> Self {
                self.options().traced = true;
                self
            }

            /// Draws each call's randomness from a stream made by this; by default they are seeded by
            /// the operating system.
            #[must_use]
            pub fn random(
                mut self,
                make: impl Fn() -> relent::random::SessionRandom + Send + Sync + 'static,
            ) -> Self {
                self.options().random = Some(std::sync::Arc::new(make));
                self
            }

            /// Names the destination in metrics: a name of your choice, such as `payments`.
            #[cfg(feature = "metrics")]
            #[must_use]
            pub fn label(mut self, name: impl Into<std::sync::Arc<str>>) -> Self {
                self.options().named = relent_http::attempt::Named::new(name);
                self
            }

            /// Tells the server which attempt a request is (from the second on), how much time is left
            /// until the deadline, and from time to time how many attempts the calls of this one and
            /// its clones take: see [`CallerFacts`](relent_http::CallerFacts), which reads it, and
            /// `docs/headers.md`. Off by default, since it is for services that know each other.
            ///
            /// A request that brings a deadline along in
            /// [`relent-deadline-ms`](relent_http::headers::RELENT_DEADLINE_MS) has no more time than
            /// that for all its attempts together.
            ///
            /// ```
            /// use relent::Policy;
            /// use relent_reqwest::Client;
            ///
            /// let client = Client::new(Policy::STANDARD)?.cross_layer();
            /// # drop(client);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            #[must_use]
            pub fn cross_layer(mut self) -> Self {
                self.options().cross = Some(relent_http::attempt::CrossLayer::new());
                self
            }

            /// Writes into the headers of each attempt, hedges too, before it goes out: a `traceparent` of
            /// its own, a signature with the time. It is called within the span of the attempt (feature
            /// `tracing`), so that `tracing::Span::current()` is that span; in a middleware, within that
            /// of the caller.
            ///
            /// ```
            /// use http::HeaderValue;
            /// use relent::Policy;
            /// use relent_reqwest::Client;
            ///
            /// let client = Client::new(Policy::STANDARD)?.on_attempt(|attempt, headers| {
            ///     headers.insert("x-attempt", HeaderValue::from(attempt.number));
            /// });
            /// # drop(client);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            #[must_use]
            pub fn on_attempt(
                mut self,
                hook: impl Fn(&relent::Attempt, &mut http::HeaderMap) + Send + Sync + 'static,
            ) -> Self {
                self.options().on_attempt = relent_http::attempt::OnAttempt::new(hook);
                self
            }

            /// Retries exactly these failures, statuses or patterns, in place of those that the policy
            /// lists; see [`RequestBuilder::retry_on`](crate::RequestBuilder::retry_on).
            #[must_use]
            pub fn retry_on<P: Into<relent_core::Pattern>>(
                mut self,
                failures: impl IntoIterator<Item = P>,
            ) -> Self {
                self.options()
                    .retry_on(failures.into_iter().map(Into::into));
                self
            }
        }
    };
}
pub(crate) use call_option_methods;

pub(crate) fn cause(status: StatusCode) -> Cause {
    Cause::Status(status.as_u16())
}

/// The beginning of an address up to its path. A `Url` has no port that the scheme has anyway, and no
/// capitals.
#[inline]
fn origin(url: &Url) -> &str {
    const SEPARATOR: usize = "://".len();
    let end = url.scheme().len() + SEPARATOR + url.authority().len();
    url.as_str().get(..end).unwrap_or_default()
}

impl fmt::Debug for CallOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallOptions")
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_and_layer_call_an_origin_by_one_name() {
        let source = DestinationSource::by_origin(&Arc::new(Policy::STANDARD.clone()));
        for (written, name) in [
            ("https://one.example/", "https://one.example"),
            ("https://ONE.Example:443/b", "https://one.example"),
            ("https://user:pass@one.example/", "https://one.example"),
            ("http://one.example:80/", "http://one.example"),
            ("http://one.example:443/", "http://one.example:443"),
            ("https://one.example:8443/", "https://one.example:8443"),
            ("http://[2001:DB8::1]:80/", "http://[2001:db8::1]"),
            ("http://[2001:db8:0:0:0:0:0:1]/", "http://[2001:db8::1]"),
            ("http://one.example./", "http://one.example."),
        ] {
            let by_uri = source.at(&written.parse().unwrap());
            let by_url = source.named(origin(&written.parse().unwrap()));
            assert!(Arc::ptr_eq(&by_uri, &by_url), "{written}");
            assert!(Arc::ptr_eq(&by_url, &source.named(name)), "{written}");
        }
    }
}
