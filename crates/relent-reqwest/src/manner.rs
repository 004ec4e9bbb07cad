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
use reqwest::Url;

use crate::attempt::{AttemptError, Failed, Last};
use crate::hops::Watch;
use crate::outgoing::Outgoing;
use relent_http::HintOptions;
use relent_http::RequestFacts;
use relent_http::attempt::DestinationSource;
use relent_http::attempt::Named;
use relent_http::attempt::{CrossLayer, Telling};
use relent_http::classify_listed;

/// Whether an attempt is to be repeated.
type When = dyn Fn(u32, Option<&AttemptError>, Option<&reqwest::Response>) -> bool + Send + Sync;
/// How long to wait before the next.
type Delay =
    dyn Fn(u32, Option<&AttemptError>, Option<&reqwest::Response>) -> Duration + Send + Sync;

/// Where an attempt goes.
type Reroute = dyn Fn(u32, &mut reqwest::Url) + Send + Sync;

/// So many bytes within so much time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) bytes: u64,
    pub(crate) within: Duration,
}

/// The driver of a request, with shares in its policy and destination.
pub(crate) type CallDriver =
    Driver<'static, TokioClock, SessionRandom, Arc<Policy>, ToDestination<Arc<Destination>>>;

#[derive(Clone)]
pub(crate) struct Manner {
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
    pub(crate) traced: bool,
    pub(crate) named: Named,
    /// What is told to the server, if anything.
    pub(crate) cross: Option<CrossLayer>,
}

impl Manner {
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
            traced: false,
            named: Named::default(),
            cross: None,
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
        self.named.name(driver).start()
    }

    /// Whether a request of which this is known may run twice. The caller's word goes before all else.
    pub(crate) fn may_repeat(&self, facts: RequestFacts) -> Repeatable {
        match self.repeatable {
            Repeatable::Unknown => Repeatable::known(facts.repeatable),
            said => said,
        }
    }

    /// What an attempt that failed says about the whole of it, and whom it names: the failure is that of
    /// its last request. `watched` says whether all redirects are seen. Where they are not, nothing proves that what is not
    /// repeatable was sent once.
    #[cold]
    pub(crate) fn note_hops(
        &self,
        failed: &mut Failed,
        watch: &Watch,
        watched: bool,
        facts: impl FnOnce() -> RequestFacts,
    ) {
        self.note_hop(&mut failed.failure, watch, watched, facts);
        if let Last::Error(AttemptError::Transport(error)) = &mut failed.last {
            watch.name_asked(error);
        }
    }

    /// The same of the failure alone, without its error.
    #[cold]
    pub(crate) fn note_hop(
        &self,
        failure: &mut Failure,
        watch: &Watch,
        watched: bool,
        facts: impl FnOnce() -> RequestFacts,
    ) {
        let proven = || watched || self.may_repeat(facts()).is_allowed_by(&self.policy);
        if watch.followed().is_some() || !proven() {
            failure.hop = Hop::Here;
        }
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

    /// Lets the caller choose where the attempt goes.
    #[inline]
    pub(crate) fn route(&self, attempt: u32, request: &mut reqwest::Request) {
        if let Some(reroute) = &self.reroute {
            reroute(attempt, request.url_mut());
        }
    }

    /// Whether this request is hedged.
    #[inline]
    pub(crate) fn hedges(&self, request: &Outgoing) -> bool {
        (self.hedge.is_some() || self.policy.hedge().is_some())
            && self.may_repeat(request.facts()).is_allowed_by(&self.policy)
            && self.policy.max_retries() != Some(0)
            && request.can_be_sent_again()
    }

    /// By what this request is hedged, if it is.
    pub(crate) fn hedge_for(&self, driver: &CallDriver, request: &Outgoing) -> Option<Arc<Hedge>> {
        if !self.hedges(request) {
            return None;
        }
        // There is a destination, which can remember what any policy needs.
        let of_policy = || driver.hedge().ok().flatten();
        self.hedge.clone().or_else(of_policy)
    }

    /// Whether a response that is no failure by its status may be one by the caller's own judgement, or
    /// by the lists of the policy.
    #[inline]
    pub(crate) fn judges(&self, status: StatusCode) -> bool {
        self.when.is_some() || self.policy.makes_failure_of(status.as_u16())
    }

    /// The caller's own judgement of a response, which goes before that of the status, else that of
    /// the lists of the policy. `attempt` counts from 0.
    #[inline]
    pub(crate) fn judge(
        &self,
        attempt: u32,
        outcome: Result<reqwest::Response, Box<Failed>>,
    ) -> Result<reqwest::Response, Box<Failed>> {
        let Some(when) = &self.when else {
            return match outcome {
                Ok(response) if self.judges(response.status()) => self.judge_listed(response),
                outcome => outcome,
            };
        };
        match outcome {
            Ok(response) if when(attempt, None, Some(&response)) => {
                let failure = Failure::ambiguous().cause(cause(response.status()));
                let last = Last::Refused(response);
                Err(Failed::new(failure, last))
            }
            Err(mut failed) => {
                self.judge_failed(attempt, &mut failed);
                Err(failed)
            }
            success => success,
        }
    }

    /// A response whose status the policy lists.
    #[cold]
    fn judge_listed(&self, response: reqwest::Response) -> Result<reqwest::Response, Box<Failed>> {
        let (status, headers) = (response.status(), response.headers());
        let (now, options) = (SystemTime::now(), HintOptions::default());
        match classify_listed(&self.policy, status, headers, now, &options) {
            None => Ok(response),
            Some(failure) => Err(Failed::new(failure, Last::Refused(response))),
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
                if failed.progressed {
                    driver.on_progress();
                }
                let own = delay(driver.attempts().saturating_sub(1), error, response);
                driver.on_failure_with(&failed.failure, Some(own))
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
    pub(crate) fn settled(self: Arc<Self>, headers: &HeaderMap) -> Arc<Self> {
        if self.cross.is_none() && self.when.is_none() {
            return self;
        }
        self.settled_by(headers)
    }

    fn settled_by(mut self: Arc<Self>, headers: &HeaderMap) -> Arc<Self> {
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

impl fmt::Debug for Manner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manner")
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
