//! Attempts of a call: every first, later and hedged one starts and ends here.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use relent::Attempt;
use relent::clock::Clock;
use relent_core::Failure;
use tower_service::Service;

use super::outcome::{Outcome, classification, is_certain_success, known, of_error};
use super::{CallDriver, Config, FreshConnection, MapBody, Resends};
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
}

impl<K: Clock> Default for AttemptExtras<K> {
    fn default() -> Self {
        Self {
            cross_layer_call: CrossLayerCall::NOTHING,
            resends: None,
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
    ) -> RunningAttempt<S::Future>
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
        let cross_layer_call = match extras {
            None => &mut no_headers,
            Some(extras) => {
                if let Some(resends) = &extras.resends {
                    if attempt.number > 1 {
                        attempt.number = resends.begin_retry();
                    }
                    request.extensions_mut().insert(resends.clone());
                }
                &mut extras.cross_layer_call
            }
        };
        if is_numbered {
            request.extensions_mut().insert(attempt);
        }
        config.route(&mut request, attempt.number);
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
        RunningAttempt {
            call,
            span: Some(span),
        }
    }
}

pin_project! {
    /// A running attempt: a call of the service, within its span.
    pub(super) struct RunningAttempt<F> {
        #[pin]
        call: F,
        // `None` when it has ended.
        span: Option<AttemptSpan>,
    }
}

impl<F> RunningAttempt<F> {
    /// Takes the span of an attempt that is cut off.
    pub(super) fn take_span(self: Pin<&mut Self>) -> Option<AttemptSpan> {
        self.project().span.take()
    }
}

impl<F: Future> Future for RunningAttempt<F> {
    type Output = (F::Output, Option<AttemptSpan>);

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let entered = this.span.as_ref().map(AttemptSpan::enter);
        let output = ready!(this.call.poll(context));
        drop(entered);
        Poll::Ready((output, this.span.take()))
    }
}

/// Classifies an attempt that has ended, and reports the result to its span. Returns the response, or the outcome
/// with its failure.
#[inline]
pub(super) fn conclude<R, K: Clock, M, N>(
    outcome: Outcome<R>,
    span: Option<AttemptSpan>,
    config: &Config<K, M, N>,
    driver: &mut CallDriver<K>,
    facts: &mut Option<RequestInfo>,
    template: Option<&RequestTemplate>,
) -> Result<Response<R>, (Outcome<R>, Failure)> {
    let response = match outcome {
        Ok(response) => response,
        Err(error) => {
            let (error, failure) = of_error(error, config.errors);
            if let Some(mut span) = span {
                span.failed(&failure);
            }
            return Err((Err(error), failure));
        }
    };
    let failure = if is_certain_success(&response, config, driver.policy()) {
        None
    } else {
        let facts = known(facts, template, driver);
        classification(&response, facts, config, driver)
    };
    if let Some(mut span) = span {
        span.answered(response.status(), failure.as_ref());
    }
    match failure {
        None => Ok(response),
        Some(failure) => Err((Ok(response), failure)),
    }
}
