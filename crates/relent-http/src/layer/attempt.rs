//! Attempts of a call: every first, later and hedged one starts and ends here.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use relent::Attempt;
use relent::clock::Clock;
use relent_core::{Failure, Hop};
use tower_service::Service;

use super::outcome::{AttemptResult, classification, is_certain_success, known, of_error};
use super::upstreams::{ChosenUpstream, PreviousAttempt, Upstreams};
use super::{CallDriver, Config, FreshConnection, MapBody, Resends, ServiceError};
use crate::attempt::{AttemptSpan, AttemptStart, CrossLayerCall, RequestTemplate};
use crate::repeatable::RequestInfo;
use crate::replay::ReplayBody;

/// Sends the attempts of a call. The service must be ready for each.
pub(super) struct Sender<'a, S, K: Clock, M, N> {
    pub(super) service: &'a mut S,
    pub(super) config: &'a Config<K, M, N>,
    pub(super) extras: Option<&'a mut AttemptExtras<K>>,
}

/// What the attempts of few calls need beside service and configuration.
pub(super) struct AttemptExtras<K: Clock> {
    pub(super) cross_layer_call: CrossLayerCall<K>,
    /// The count of all attempts, if the service sends requests again by itself.
    pub(super) resends: Option<Resends>,
    /// The attempt that was started last, if the caller chooses upstreams.
    pub(super) previous: Option<Box<PreviousAttempt>>,
}

impl<K: Clock> Default for AttemptExtras<K> {
    fn default() -> Self {
        Self {
            cross_layer_call: CrossLayerCall::NOTHING,
            resends: None,
            previous: None,
        }
    }
}

/// The request of an attempt.
pub(super) struct AttemptRequest<B> {
    pub(super) request: Request<ReplayBody<B>>,
    /// Whether the request carries its [`Attempt`].
    pub(super) is_numbered: bool,
}

impl<B> AttemptRequest<B> {
    /// For an attempt after the first, or for a first one that was held.
    pub(super) fn again(
        template: &RequestTemplate,
        body: ReplayBody<B>,
        new_connection: bool,
    ) -> Self {
        let mut request = template.request(body);
        if new_connection {
            request.extensions_mut().insert(FreshConnection);
        }
        Self {
            request,
            is_numbered: true,
        }
    }
}

impl<S, K: Clock + Clone, M, N> Sender<'_, S, K, M, N> {
    /// Sends the request of an attempt.
    #[inline]
    pub(super) fn send<B>(
        &mut self,
        mut attempt: Attempt,
        request: AttemptRequest<B>,
    ) -> RunningAttempt<S::Future, K>
    where
        S: Service<Request<M::Body>>,
        M: MapBody<B>,
    {
        let Self {
            service,
            config,
            extras,
        } = self;
        let AttemptRequest {
            mut request,
            is_numbered,
        } = request;
        let mut no_headers = CrossLayerCall::NOTHING;
        let mut upstream = None;
        let cross_layer_call = match extras {
            None => &mut no_headers,
            Some(extras) => {
                if let Some(resends) = &extras.resends {
                    if attempt.number > 1 {
                        attempt.number = resends.begin_retry();
                    }
                    request.extensions_mut().insert(resends.clone());
                }
                if let Some(upstreams) = &config.upstreams {
                    let (previous, uri) = (extras.previous.as_deref(), request.uri_mut());
                    let chosen = ChosenUpstream::choose(
                        &**upstreams,
                        attempt.number,
                        previous,
                        uri,
                        &config.clock,
                    );
                    extras.previous = Some(Box::new(chosen.running()));
                    upstream = Some(Box::new(chosen));
                }
                &mut extras.cross_layer_call
            }
        };
        if is_numbered {
            request.extensions_mut().insert(attempt);
        }
        let start = AttemptStart {
            attempt,
            cross_layer_call,
            on_attempt: &config.on_attempt,
        };
        let span = |request: &Request<_>| {
            let (method, uri, headers) = (request.method(), request.uri(), request.headers());
            AttemptSpan::start(method, uri, headers, attempt.number)
        };
        let (call, span) = start.send(request, Request::headers_mut, span, |request| {
            service.call(request.map(|body| config.map.map_body(body)))
        });
        let trail = Some(Trail { span, upstream });
        RunningAttempt { call, trail }
    }
}

/// What an attempt leaves when it ends.
pub(super) struct Trail<K: Clock> {
    span: AttemptSpan,
    /// Its upstream, if the caller chooses upstreams.
    upstream: Option<Box<ChosenUpstream<K>>>,
}

pin_project! {
    /// A running attempt: a call of the service, within its span.
    pub(super) struct RunningAttempt<F, K: Clock> {
        #[pin]
        call: F,
        // `None` when it has ended.
        trail: Option<Trail<K>>,
    }
}

impl<F, K: Clock> RunningAttempt<F, K> {
    /// Ends an attempt that is cut off.
    pub(super) fn cut_off(self: Pin<&mut Self>) -> Option<Trail<K>> {
        self.project().trail.take()
    }
}

impl<F: Future, K: Clock> Future for RunningAttempt<F, K> {
    type Output = (F::Output, Option<Trail<K>>);

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let entered = this.trail.as_ref().map(|trail| trail.span.enter());
        let output = ready!(this.call.poll(context));
        drop(entered);
        Poll::Ready((output, this.trail.take()))
    }
}

impl<K: Clock> AttemptExtras<K> {
    /// Reports the result of an attempt to its upstream, and to the caller who has chosen it.
    #[cold]
    fn ended(
        &mut self,
        upstreams: &dyn Upstreams,
        chosen: ChosenUpstream<K>,
        failure: Option<&Failure>,
        is_evidence: bool,
    ) {
        if let Some(failed) = chosen.ended(upstreams, failure, is_evidence) {
            self.previous = Some(Box::new(failed));
        }
    }
}

/// The outcome of a failed attempt, and its failure.
type FailedAttempt<R> = (AttemptResult<R>, Failure);

/// Classifies an attempt that has ended, and reports the result to its span and its upstream. Returns the response,
/// or the outcome with its failure.
#[inline]
pub(super) fn conclude<R, K: Clock + Clone, M, N>(
    outcome: AttemptResult<R>,
    trail: Option<Trail<K>>,
    config: &Config<K, M, N>,
    extras: Option<&mut AttemptExtras<K>>,
    driver: &mut CallDriver<K>,
    facts: &mut Option<RequestInfo>,
    template: Option<&RequestTemplate>,
) -> Result<Response<R>, Box<FailedAttempt<R>>> {
    let mut concluded = match outcome {
        Ok(response) if is_certain_success(&response, config, driver.policy()) => Ok(response),
        Ok(response) => {
            let facts = known(facts, template, driver);
            match classification(&response, facts, config, driver) {
                None => Ok(response),
                Some(failure) => Err(Box::new((Ok(response), failure))),
            }
        }
        Err(error) => {
            let (error, failure) = of_error(error, config.errors);
            Err(Box::new((Err(error), failure)))
        }
    };
    if config.calls_twice
        && let Err(failed) = &mut concluded
        && failed.1.hop == Hop::None
    {
        let (outcome, failure) = &mut **failed;
        config.attribute_to_last_request(driver, outcome, failure);
    }
    if let Some(Trail { mut span, upstream }) = trail {
        match concluded.as_ref().map_err(Box::as_ref) {
            Ok(response) => span.answered(response.status(), None),
            Err((Ok(response), failure)) => span.answered(response.status(), Some(failure)),
            Err((Err(_), failure)) => span.failed(failure),
        }
        if let (Some(chosen), Some(upstreams), Some(extras)) = (upstream, &config.upstreams, extras)
        {
            let failed = concluded.as_ref().err();
            let cut_off =
                failed.is_some_and(|failed| matches!(failed.0, Err(ServiceError::Timeout(_))));
            let is_evidence = !cut_off || !driver.had_little_time(chosen.at);
            let failure = failed.map(|failed| &failed.1);
            extras.ended(&**upstreams, *chosen, failure, is_evidence);
        }
    }
    concluded
}
