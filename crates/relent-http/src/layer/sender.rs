//! Sends the attempts of a call after the first, and first attempts that were held or are hedged.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Request;
use http_body::Body;
use pin_project_lite::pin_project;
use relent::Attempt;
use relent::clock::Clock;
use relent::race::RaceAttempt;
use tower_service::Service;

use super::outcome::span_of;
use super::{Config, FreshConnection, MapBody};
use crate::attempt::{AttemptSpan, CrossLayerCall, RequestTemplate};
use crate::replay::{BoxError, ReadProgress, ReplayBody};

/// Everything for such an attempt except its body. The service must be ready when it is sent.
pub(super) struct Sender<'a, S, K: Clock, M, N> {
    pub(super) service: &'a mut S,
    pub(super) template: &'a RequestTemplate,
    pub(super) config: &'a Config<K, M, N>,
    pub(super) new_connection: bool,
    pub(super) cross_layer_call: &'a mut CrossLayerCall<K>,
}

impl<S, K: Clock + Clone, M, N> Sender<'_, S, K, M, N> {
    /// Sends the attempt with this body.
    pub(super) fn send<B>(
        &mut self,
        body: ReplayBody<B>,
        attempt: Attempt,
    ) -> (S::Future, AttemptSpan)
    where
        S: Service<Request<M::Body>>,
        M: MapBody<B>,
    {
        let body = self.config.map.map_body(body);
        let mut request = self.template.request(body);
        if self.new_connection {
            request.extensions_mut().insert(FreshConnection);
        }
        request.extensions_mut().insert(attempt);
        self.config.route(&mut request, attempt.number);
        self.cross_layer_call
            .write_headers(&attempt, request.headers_mut());
        let span = span_of(&request, attempt.number);
        let entered = span.enter();
        self.config
            .on_attempt
            .write(&attempt, request.headers_mut());
        let call = self.service.call(request);
        drop(entered);
        (call, span)
    }

    /// Sends an attempt that a hedge may join.
    pub(super) fn race<B>(
        &mut self,
        body: ReplayBody<B>,
        racer: &RaceAttempt,
    ) -> RunningAttempt<S::Future, B>
    where
        S: Service<Request<M::Body>>,
        M: MapBody<B>,
        B: Body<Error: Into<BoxError>>,
    {
        let sent = body.read_progress();
        let (call, span) = self.send(body, racer.attempt());
        RunningAttempt::new(call, sent, span)
    }
}

pin_project! {
    /// One running attempt, with the progress of its body.
    pub(super) struct RunningAttempt<F, B> {
        #[pin]
        call: F,
        // `None` when it has ended.
        sent: Option<ReadProgress<B>>,
        pub(super) span: Option<AttemptSpan>,
    }
}

impl<F, B> RunningAttempt<F, B> {
    fn new(call: F, sent: ReadProgress<B>, span: AttemptSpan) -> Self {
        let (sent, span) = (Some(sent), Some(span));
        Self { call, sent, span }
    }
}

impl<F, B> Future for RunningAttempt<F, B>
where
    F: Future,
    B: Body<Error: Into<BoxError>>,
{
    /// The output of the call, with the progress of the request body.
    type Output = (F::Output, Option<ReadProgress<B>>, Option<AttemptSpan>);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let entered = this.span.as_ref().map(AttemptSpan::enter);
        let output = ready!(this.call.poll(context));
        drop(entered);
        Poll::Ready((output, this.sent.take(), this.span.take()))
    }
}
