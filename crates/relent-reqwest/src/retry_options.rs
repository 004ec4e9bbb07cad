//! How a request is retried: options of a client, and changes by one request.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};
use relent::clock::TokioClock;
use relent::driver::Driver;
use relent::random::SessionRandom;
use relent_core::destination::Hedge;
use relent_core::{
    Cause, Decision, Failure, FailureKind, Hop, Instant, Pattern, Policy, Repeatable, StopReason,
};
use relent_http::attempt::{
    AttemptSpan, CrossLayer, CrossLayerCall, DestinationSource, MetricLabel, OnAttempt,
    ReplacedPolicy, ResponseClassifier,
};
use relent_http::grpc::is_grpc;
use relent_http::{HintOptions, RequestInfo};
use reqwest::Url;

use crate::attempt_failure::{AttemptError, AttemptResult, FailedAttempt, LastResult};
use crate::body::Body;
use crate::min_rate::MinRate;
use crate::read_timeout::{HeadTimeout, ReadTimeout};
use crate::redirects::RedirectWatch;
use crate::request_template::Template;

/// Decides whether an attempt is repeated.
type When = dyn Fn(u32, Option<&AttemptError>, Option<&reqwest::Response>) -> bool + Send + Sync;
/// Computes the delay before the next attempt.
type Delay =
    dyn Fn(u32, Option<&AttemptError>, Option<&reqwest::Response>) -> Duration + Send + Sync;

/// Chooses the URL of an attempt.
type Reroute = dyn Fn(u32, &mut reqwest::Url) + Send + Sync;

/// Makes the random stream of a call.
type NewRandom = dyn Fn() -> SessionRandom + Send + Sync;

/// The driver of a request, which holds its policy and destination in an `Arc`.
pub(crate) type CallDriver = Driver<'static, TokioClock>;

/// Options of all requests of a client or a middleware. `replaced` holds the policy of a later `set_policy`.
#[derive(Clone, Debug)]
pub(crate) struct SharedOptions {
    options: Arc<RetryOptions>,
    replaced: ReplacedPolicy,
}

impl SharedOptions {
    pub(crate) fn new(policy: Arc<Policy>) -> Self {
        Self {
            options: Arc::new(RetryOptions::new(policy)),
            replaced: ReplacedPolicy::default(),
        }
    }

    /// The options of a request that is sent now.
    #[inline]
    pub(crate) fn now(&self) -> Arc<RetryOptions> {
        let mut options = Arc::clone(&self.options);
        if let Some(policy) = self.replaced.get() {
            Arc::make_mut(&mut options).policy = policy;
        }
        options
    }

    /// The options, to be changed.
    pub(crate) fn change(&mut self) -> &mut RetryOptions {
        if let Some(policy) = std::mem::take(&mut self.replaced).get() {
            Arc::make_mut(&mut self.options).policy = policy;
        }
        Arc::make_mut(&mut self.options)
    }

    pub(crate) fn set_policy(&self, policy: Arc<Policy>) {
        let destinations = &self.options.destinations;
        self.replaced.set(policy, destinations, &TokioClock);
    }

    pub(crate) fn tracks_redirects(&self) -> bool {
        self.options.tracked
    }
}

#[derive(Clone)]
pub(crate) struct RetryOptions {
    pub(crate) policy: Arc<Policy>,
    pub(crate) destinations: DestinationSource,
    /// Replaces the hedge of the policy.
    pub(crate) hedge: Option<Arc<Hedge>>,
    pub(crate) when: Option<Arc<When>>,
    pub(crate) delay: Option<Arc<Delay>>,
    pub(crate) reroute: Option<Arc<Reroute>>,
    /// Whether the request may run twice, as the caller declared.
    pub(crate) repeatable: Repeatable,
    /// The minimum rate of a body that is read within the attempt.
    pub(crate) rate: Option<MinRate>,
    pub(crate) read_timeout: ReadTimeout,
    pub(crate) traced: bool,
    /// Replaces the stream that the operating system seeds.
    pub(crate) random: Option<Arc<NewRandom>>,
    pub(crate) named: MetricLabel,
    pub(crate) on_attempt: OnAttempt,
    /// The headers of cross-layer retries, if they are sent.
    pub(crate) cross: Option<CrossLayer>,
    pub(crate) hints: HintOptions,
    /// Whether every redirect of an attempt is seen, and the attempt makes no other calls.
    pub(crate) tracked: bool,
    /// Whether an attempt is known to follow no redirects.
    pub(crate) no_redirects: bool,
    /// Whether a redirect that was not followed is a failure.
    pub(crate) follows_redirects: bool,
}

impl RetryOptions {
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
            named: MetricLabel::default(),
            on_attempt: OnAttempt::default(),
            cross: None,
            hints: HintOptions::default(),
            tracked: false,
            no_redirects: false,
            follows_redirects: false,
        }
    }

    /// Retries exactly these failures, and drops `when`.
    pub(crate) fn retry_on(&mut self, patterns: impl IntoIterator<Item = Pattern>) {
        self.when = None;
        self.change_policy(|policy| policy.retrying(patterns));
    }

    pub(crate) fn change_policy(&mut self, change: impl FnOnce(Policy) -> Policy) {
        self.policy = Arc::new(change(Policy::clone(&self.policy)));
    }

    /// A driver for one request to this URL. It counts as not repeatable until its first failure, when
    /// [`may_repeat`](Self::may_repeat) is computed: most requests do not fail. This is the only place that
    /// connects a request to its shared destination.
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

    /// Whether a request with these facts may run twice. The caller's declaration takes precedence.
    pub(crate) fn may_repeat(&self, facts: RequestInfo) -> Repeatable {
        match self.repeatable {
            Repeatable::Unknown => Repeatable::known(facts.repeatable),
            said => said,
        }
    }

    /// Applies the redirects that a failed attempt followed: to its classification, to the URL that its error names,
    /// and to the destination that they led to.
    #[cold]
    pub(crate) fn apply_redirects(
        &self,
        driver: &mut CallDriver,
        failed: &mut FailedAttempt,
        template: &Template,
        watch: &RedirectWatch,
    ) {
        self.apply_redirects_to_failure(failed, template, watch);
        self.report_redirected_failure(driver, failed, watch);
    }

    /// Applies the redirects to the failure, which is that of the last request. If some redirects are not seen,
    /// nothing proves that a request that is not repeatable was sent only once.
    #[cold]
    pub(crate) fn apply_redirects_to_failure(
        &self,
        failed: &mut FailedAttempt,
        template: &Template,
        watch: &RedirectWatch,
    ) {
        let proven = || {
            self.tracked
                || self
                    .may_repeat(template.facts())
                    .is_allowed_by(&self.policy)
        };
        if watch.followed().is_some() || !proven() {
            failed.failure.hop = Hop::Here;
        }
        if let LastResult::Error(AttemptError::Transport(error)) = &mut failed.last {
            watch.name_last_url(error);
        }
        failed.body = Some(template.body().clone());
    }

    /// Reports the failure to the destination that redirects led to. If redirects are not seen, the URL of the
    /// response reveals those to another origin, unless the caller chose the URL.
    #[cold]
    pub(crate) fn report_redirected_failure(
        &self,
        driver: &mut CallDriver,
        failed: &mut FailedAttempt,
        watch: &RedirectWatch,
    ) {
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
            self.report_to_final_destination(driver, url, since, Some(&mut failed.failure));
        }
    }

    /// Reports a success to the destination at this URL, if redirects led there.
    #[inline]
    pub(crate) fn report_redirected_success(
        &self,
        driver: &mut CallDriver,
        url: &Url,
        watch: &RedirectWatch,
    ) {
        if let Some(followed) = watch.followed() {
            self.report_to_final_destination(driver, url, Some(followed.at), None);
        }
    }

    /// Reports the end of a redirected attempt to the destination at this URL, unless it is the call's own. `None`
    /// is a success.
    #[cold]
    pub(crate) fn report_to_final_destination(
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
        driver.on_redirected(&there, since, failure.as_deref());
        if let Some(failure) = failure {
            failure.hop = Hop::Elsewhere;
        }
    }

    /// The timer that ends an attempt with this body if the server is silent before the head. `None` if the limit of
    /// the attempt ends it no later.
    #[inline]
    pub(crate) fn head_timeout(
        &self,
        template: &Template,
        body: &Body,
        limit: Option<Duration>,
    ) -> Option<HeadTimeout> {
        let limited = || self.policy.attempt_timeout().is_some() || template.has_timeout();
        let within = self.read_timeout.unless(limited)?;
        let sooner = limit.is_some_and(|limit| limit <= within);
        (!sooner).then(|| HeadTimeout::new(within, body.clone()))
    }

    /// The longest silence in the body of a returned response. No limit of the policy includes it.
    #[inline]
    pub(crate) fn read_timeout_of(&self, template: &Template) -> Option<Duration> {
        self.read_timeout.unless(|| template.has_timeout())
    }

    /// The read timeout as a minimum rate, for a body that is read within the attempt.
    pub(crate) fn default_min_rate(&self, template: &Template) -> Option<MinRate> {
        let limited = || self.policy.attempt_timeout().is_some() || template.has_timeout();
        let within = self.read_timeout.unless(limited)?;
        Some(MinRate { bytes: 1, within })
    }

    /// Lets the caller choose the URL of the attempt.
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

    /// The hedge of this request, if it is hedged.
    pub(crate) fn hedge_for(&self, driver: &CallDriver, request: &Template) -> Option<Arc<Hedge>> {
        if !self.hedges(request) {
            return None;
        }
        // There is always a destination here, so any policy's hedge has its statistics.
        let of_policy = || driver.hedge().ok().flatten();
        self.hedge.clone().or_else(of_policy)
    }

    /// Evaluates an attempt, and reports the result to its span and to the destinations.
    #[inline]
    pub(crate) fn conclude(
        &self,
        driver: &mut CallDriver,
        template: &Template,
        span: &mut AttemptSpan,
        watch: &RedirectWatch,
        outcome: AttemptResult,
    ) -> Result<reqwest::Response, Box<FailedAttempt>> {
        let number = driver.attempts().saturating_sub(1);
        match self.judge(number, self.classify(template, span, outcome)) {
            Ok(response) => {
                self.report_redirected_success(driver, response.url(), watch);
                driver.on_success_with(cause(response.status()));
                Ok(response)
            }
            Err(mut failed) => {
                self.apply_redirects(driver, &mut failed, template, watch);
                Err(failed)
            }
        }
    }

    /// Classifies an attempt by HTTP and the lists of the policy, and reports that to its span.
    #[inline]
    pub(crate) fn classify(
        &self,
        template: &Template,
        span: &mut AttemptSpan,
        outcome: AttemptResult,
    ) -> Result<reqwest::Response, Box<FailedAttempt>> {
        let judge = self.classifier();
        match outcome {
            Ok(response) if judge.is_certain_success(response.status(), response.headers()) => {
                span.answered(response.status(), None);
                Ok(response)
            }
            outcome => self.classify_failed(judge, template, span, outcome),
        }
    }

    #[inline]
    fn classifier(&self) -> ResponseClassifier<'_> {
        ResponseClassifier {
            policy: &self.policy,
            hints: &self.hints,
        }
    }

    #[cold]
    fn classify_failed(
        &self,
        judge: ResponseClassifier<'_>,
        template: &Template,
        span: &mut AttemptSpan,
        outcome: AttemptResult,
    ) -> Result<reqwest::Response, Box<FailedAttempt>> {
        match outcome {
            Ok(response) => {
                let (status, headers) = (response.status(), response.headers());
                let (facts, now) = (template.facts(), SystemTime::now());
                let failure = judge.failure(status, headers, response.extensions(), facts, now);
                // The caller's `when` replaces the lists of the policy.
                let only_listed = status.as_u16() < 400 && !is_grpc(headers);
                let failure = failure.filter(|_| !only_listed || self.when.is_none());
                span.answered(status, failure.as_ref());
                match failure {
                    None => Ok(response),
                    Some(failure) => {
                        Err(FailedAttempt::new(failure, LastResult::Refused(response)))
                    }
                }
            }
            Err(broken) => {
                span.failed(&broken.failure);
                Err(broken.into())
            }
        }
    }

    /// Applies the caller's `when`, which takes precedence over the status. `attempt` counts from 0.
    #[inline]
    pub(crate) fn judge(
        &self,
        attempt: u32,
        classified: Result<reqwest::Response, Box<FailedAttempt>>,
    ) -> Result<reqwest::Response, Box<FailedAttempt>> {
        match (&self.when, classified) {
            (None, classified) => classified,
            (Some(when), Ok(response)) if when(attempt, None, Some(&response)) => {
                let (status, headers) = (response.status(), response.headers());
                let failure = self
                    .classifier()
                    .refused(status, headers, SystemTime::now());
                Err(FailedAttempt::new(failure, LastResult::Refused(response)))
            }
            (Some(_), Ok(response)) => Ok(response),
            (Some(_), Err(mut failed)) => {
                self.judge_failed(attempt, &mut failed);
                Err(failed)
            }
        }
    }

    /// Applies the caller's `when` to a failed attempt.
    pub(crate) fn judge_failed(&self, attempt: u32, failed: &mut FailedAttempt) {
        let Some(when) = &self.when else {
            return;
        };
        let (error, response) = failed.last.parts();
        if !when(attempt, error, response) {
            failed.stop.get_or_insert(StopReason::Permanent);
        } else if failed.failure.kind == FailureKind::Permanent {
            // Whether it may run twice still matters.
            failed.failure.kind = FailureKind::Ambiguous;
        }
    }

    /// Lets the driver decide, with the caller's own delay if there is one.
    pub(crate) fn decide(&self, driver: &mut CallDriver, failed: &FailedAttempt) -> Decision {
        match &self.delay {
            Some(delay) if failed.stop.is_none() => {
                let (error, response) = failed.last.parts();
                let own = delay(driver.attempts().saturating_sub(1), error, response);
                failed.decide_by(driver, own)
            }
            _ => failed.decide(driver),
        }
    }

    /// The headers that a call sends to the server.
    pub(crate) fn cross_layer_call(&self) -> CrossLayerCall<TokioClock> {
        CrossLayerCall::of(self.cross.as_ref(), || TokioClock)
    }

    /// The options of a request with these headers: under the deadline of its header, and without the lists of the
    /// policy if the caller has a `when`.
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

/// Options that a client and a middleware share. Both have `shared(&self) -> &SharedOptions` and
/// `options(&mut self) -> &mut RetryOptions`.
macro_rules! retry_option_methods {
    ($who:ty) => {
        impl $who {
            /// Replaces the policy of this client or middleware, of its clones, and of all their destinations.
            ///
            /// The destinations keep their statistics. A running request keeps the policy that it started with,
            /// but waits at its destination by the new rules: see
            /// [`Destination::set_policy`](relent::Destination::set_policy). A policy of a route or a request
            /// still takes precedence. Changes by [`retry_on`](Self::retry_on) are lost.
            ///
            /// A clone that was changed by one of the methods that take `self` has a policy of its own, and is
            /// not affected.
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

            /// Uses this one destination for all requests, instead of one per origin: to share its budget,
            /// circuit breaker and cooldown with others, or because many hosts fail together.
            #[must_use]
            pub fn destination(mut self, destination: std::sync::Arc<relent::Destination>) -> Self {
                self.options().destinations =
                    relent_http::attempt::DestinationSource::One(destination);
                self
            }

            /// Sets how to read response headers whose meaning is not standardized.
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

            /// Sets the function that makes the random stream of each call. By default the operating system seeds
            /// it.
            #[must_use]
            pub fn random(
                mut self,
                make: impl Fn() -> relent::random::SessionRandom + Send + Sync + 'static,
            ) -> Self {
                self.options().random = Some(std::sync::Arc::new(make));
                self
            }

            /// Sets the name of the destination in metrics, such as `payments`.
            #[cfg(feature = "metrics")]
            #[must_use]
            pub fn label(mut self, name: impl Into<std::sync::Arc<str>>) -> Self {
                self.options().named = relent_http::attempt::MetricLabel::new(name);
                self
            }

            /// Sends headers about the retries to the server. Off by default, for services that cooperate.
            ///
            /// The headers state the number of the attempt (from the second on), the time left until the deadline,
            /// and from time to time how many attempts the calls of this client and its clones take. The server
            /// reads them with [`CallerContext`](relent_http::CallerContext); see `docs/headers.md`.
            ///
            /// If a request already has a deadline in
            /// [`relent-deadline-ms`](relent_http::headers::RELENT_DEADLINE_MS), it limits all attempts together.
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

            /// Sets a function that changes the headers of each attempt, including hedges, before it is sent: for
            /// a `traceparent` or a signature with the time. With the feature `tracing` it is called within the
            /// span of the attempt, so `tracing::Span::current()` is that span. In a middleware it is called
            /// within the span of the caller.
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

            /// Retries exactly these failures, statuses or patterns, instead of those that the policy lists; see
            /// [`RequestBuilder::retry_on`](crate::RequestBuilder::retry_on).
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
pub(crate) use retry_option_methods;

pub(crate) fn cause(status: StatusCode) -> Cause {
    Cause::Status(status.as_u16())
}

/// The part of a URL before its path. A `Url` omits the default port of its scheme and is in lower case.
#[inline]
fn origin(url: &Url) -> &str {
    const SEPARATOR: usize = "://".len();
    let end = url.scheme().len() + SEPARATOR + url.authority().len();
    url.as_str().get(..end).unwrap_or_default()
}

impl fmt::Debug for RetryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryOptions")
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_and_layer_use_the_same_name_for_an_origin() {
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
