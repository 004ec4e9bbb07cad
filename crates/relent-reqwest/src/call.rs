//! The retry loop that all calls share, and the calls that end with the head of a response.

use std::future::{Future, poll_fn, ready};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Request;
use pin_project_lite::pin_project;
use relent::GaveUp;
use relent::clock::TokioClock;
use relent::driver::{CallPermit, NextStep};
use relent_core::{Decision, Failure, Stop, StopReason};
use relent_http::attempt::{AttemptSpan, CrossLayerCall, not_retried};
use tokio::time::Sleep;

use crate::attempt::{Attempt, Connection, SendFuture, TimeLimit, span_fields};
use crate::body::{Body, OpenedBody};
use crate::call_options::{CallDriver, CallOptions};
use crate::client::Client;
use crate::complete::{checked, drained_while};
use crate::error::Error;
use crate::failed::{AttemptError, FailedAttempt, LastResult};
use crate::redirects::CurrentRequest;
use crate::request_options::{RequestOptions, build_error};
use crate::request_template::Template;
use crate::response::Response;

/// Makes the attempts of a call. The retry loop, its delays and its result are the same for all implementations.
pub(crate) trait AttemptLoop {
    /// The result of a successful attempt.
    type Success;

    fn options(&self) -> Arc<CallOptions>;

    fn driver(&mut self) -> &mut CallDriver;

    /// The request of all attempts.
    fn template(&self) -> &Template;

    /// Makes one attempt, or several concurrent ones, with permission of the destination. `body` is that of the first.
    async fn attempt(
        &mut self,
        connection: Connection,
        leave: CallPermit,
        body: OpenedBody,
    ) -> Result<Self::Success, Box<FailedAttempt>>;

    /// Called with the decision about a failed attempt.
    fn on_decision(&mut self, failed: &FailedAttempt, decision: &Decision) {
        let _ = (failed, decision);
    }

    /// Waits for permission of the destination.
    async fn entered(&mut self) -> Result<CallPermit, Stop> {
        self.driver().entered().await
    }

    /// Permission for the next attempt, with its opened body.
    async fn next_permit(&mut self) -> Result<(CallPermit, OpenedBody), CannotStart> {
        let mut leave = self.entered().await.map_err(CannotStart::HeldBack)?;
        loop {
            let body = self.template().body().clone();
            if body.opens_without_waiting() {
                return Ok((leave, body.open_now().map_err(CannotStart::Unopened)?));
            }
            let room = self.driver().room();
            // Starting at the last allowed instant is in time.
            let late = room.map(|room| room.saturating_add(Duration::from_nanos(1)));
            let opened = TimeLimit::after(late).timeout(body.open()).await;
            // Opening a file takes time, so request admission again.
            leave = self.entered().await.map_err(CannotStart::HeldBack)?;
            if let Ok(opened) = opened {
                return Ok((leave, opened.map_err(CannotStart::Unopened)?));
            }
        }
    }

    /// Makes all attempts, or those after a first one that failed with `failed`.
    async fn run_attempts(
        &mut self,
        mut failed: Option<Box<FailedAttempt>>,
    ) -> Result<Self::Success, CallFailure> {
        let options = self.options();
        let repeatable = options.may_repeat(self.template().facts());
        self.driver().set_repeatable(repeatable);
        loop {
            let mut connection = Connection::Pooled;
            let (mut last, mut failure) = (None, Failure::not_processed());
            if let Some(failed) = failed {
                let decision = options.decide(self.driver(), &failed);
                self.on_decision(&failed, &decision);
                let after = match decision {
                    Decision::Retry { after } => after,
                    Decision::Stop(stop) => {
                        not_retried(stop.reason);
                        let last = Some(failed.last);
                        return Err(CallFailure { last, stop });
                    }
                };
                (connection, failure) = (Connection::after(&failed.failure), failed.failure);
                let room = self.driver().room();
                last = Some(Box::new(drained_while(after, room, failed.last).await));
            }
            let (leave, body) = match self.next_permit().await {
                Ok(next_permit) => next_permit,
                Err(CannotStart::HeldBack(stop)) => {
                    let last = last.map(|last: Box<LastResult>| *last);
                    return Err(CallFailure { last, stop });
                }
                // Nothing is sent, so this does not count as an attempt.
                Err(CannotStart::Unopened(error)) => {
                    let stop = self
                        .driver()
                        .on_retry_abandoned(&failure, StopReason::NotReplayable);
                    let last = Some(LastResult::Error(AttemptError::Body(error)));
                    return Err(CallFailure { last, stop });
                }
            };
            drop(last);
            failed = match self.attempt(connection, leave, body).await {
                Ok(success) => return Ok(success),
                Err(failed) => Some(failed),
            };
        }
    }
}

/// Reason why an attempt cannot start.
pub(crate) enum CannotStart {
    /// The destination held it back until its time limit.
    HeldBack(Stop),
    /// The request body cannot be read again.
    Unopened(io::Error),
}

/// Result of a call without a success: the last real outcome, if any, and the reason to stop.
pub(crate) struct CallFailure {
    pub(crate) last: Option<LastResult>,
    pub(crate) stop: Stop,
}

type CallResult = Result<Response, Error>;

pin_project! {
    /// The future of a request. It is only as large as a first attempt needs: the whole future is moved, and most
    /// requests need no other attempt.
    pub(crate) struct CallFuture {
        // Declared before `call`, so that the attempt is dropped first.
        first: Option<FirstAttempt>,
        // Of the first attempt, if it has a time limit.
        #[pin]
        timer: Option<Sleep>,
        // The request of the first attempt, which takes it.
        built: Option<reqwest::Request>,
        // `None` after the call has ended or continues in `rest`.
        call: Option<Call>,
        rest: Option<Pin<Box<dyn Future<Output = CallResult> + Send>>>,
    }
}

/// A first attempt that could start immediately.
struct FirstAttempt {
    attempt: Attempt<SendFuture>,
    until: TimeLimit,
}

/// The state that the attempts of a request share.
pub(crate) struct Call {
    pub(crate) client: Client,
    pub(crate) options: Arc<CallOptions>,
    pub(crate) template: Template,
    pub(crate) driver: CallDriver,
    pub(crate) telling: CrossLayerCall<TokioClock>,
}

impl CallFuture {
    /// Creates the call of a request that reqwest has built.
    #[inline]
    pub(crate) fn new(
        built: reqwest::Result<reqwest::Request>,
        request_options: RequestOptions,
    ) -> Self {
        let mut built = match built {
            Ok(built) => built,
            Err(error) => return Self::boxed(ready(Err(build_error(error)))),
        };
        let (client, options, body) = match request_options.resolve(&mut built) {
            Ok(settled) => settled,
            Err(error) => return Self::boxed(ready(Err(error))),
        };
        let cap = client.0.body_cap;
        Self {
            call: Some(Call {
                driver: options.driver(Some(built.url())),
                telling: options.telling(),
                client,
                options,
                template: Template::new(&mut built, body, cap),
            }),
            built: Some(built),
            first: None,
            timer: None,
            rest: None,
        }
    }

    /// Wraps another future with the result of a call.
    pub(crate) fn boxed(rest: impl Future<Output = CallResult> + Send + 'static) -> Self {
        Self {
            call: None,
            built: None,
            first: None,
            timer: None,
            rest: Some(Box::pin(rest)),
        }
    }
}

impl Future for CallFuture {
    type Output = CallResult;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CallResult> {
        let mut this = self.project();
        if let Some(call) = this.call {
            if this.built.is_some() {
                *this.first = call.try_start(this.built);
                *this.built = None;
                if let Some(end) = this.first.as_ref().and_then(|first| first.until.timer()) {
                    this.timer.set(Some(end));
                }
            }
            let failed = match this.first {
                None => None,
                Some(first) => {
                    let mut attempt = Pin::new(&mut first.attempt);
                    let polled =
                        attempt
                            .as_mut()
                            .poll_until(first.until, this.timer.as_mut(), context);
                    let outcome = ready!(polled);
                    let Call {
                        options,
                        template,
                        driver,
                        ..
                    } = call;
                    let (span, watch) = attempt.parts();
                    match options.conclude(driver, template, span, watch, outcome) {
                        Ok(response) => {
                            let response = options.finish_response(driver, template, response);
                            *this.first = None;
                            *this.call = None;
                            return Poll::Ready(Ok(response));
                        }
                        Err(failed) => Some(failed),
                    }
                }
            };
            *this.first = None;
            this.timer.set(None);
            *this.rest = this.call.take().map(|call| call.into_retry_loop(failed));
        }
        match this.rest {
            Some(rest) => rest.as_mut().poll(context),
            // Polled after completion.
            None => Poll::Pending,
        }
    }
}

impl Call {
    #[inline]
    fn new(client: Client, options: Arc<CallOptions>, template: Template) -> Self {
        Self {
            driver: options.driver(template.url()),
            telling: options.telling(),
            client,
            options,
            template,
        }
    }

    /// Starts the first attempt with the request that reqwest has built. `None` if it must wait, or may be hedged.
    #[inline]
    fn try_start(&mut self, built: &mut Option<reqwest::Request>) -> Option<FirstAttempt> {
        if self.options.hedges(&self.template) {
            return None;
        }
        let body = self.template.body_without_waiting()?;
        let NextStep::Start(leave) = self.driver.enter(None) else {
            return None;
        };
        let body = body.open_now().ok()?;
        let begun = self.driver.on_attempt(leave);
        let until = TimeLimit::after(begun.limit);
        let request = built.as_mut()?;
        self.options.route(begun.number, request);
        self.telling.write_headers(&begun, request.headers_mut());
        let span = AttemptSpan::of(|| span_fields(request), begun.number);
        let http = &self.client.0.http;
        let (template, limit) = (&self.template, begun.limit);
        let head_timeout = self.options.head_timeout(template, template.body(), limit);
        let mut request = built.take()?;
        let options = &*self.options;
        let current_request = Some(CurrentRequest::of(request.method()));
        Some(FirstAttempt {
            attempt: Attempt::start(span, current_request, head_timeout, || {
                options.on_attempt.write(&begun, request.headers_mut());
                SendFuture::new(http, request, body, options)
            }),
            until,
        })
    }

    #[cold]
    fn into_retry_loop(
        mut self,
        failed: Option<Box<FailedAttempt>>,
    ) -> Pin<Box<dyn Future<Output = CallResult> + Send>> {
        Box::pin(async move {
            match self.run_attempts(failed).await {
                Ok(response) => Ok(response),
                Err(CallFailure { last, stop }) => {
                    let summary = self.driver.summary(Some(stop));
                    match last {
                        Some(LastResult::Refused(response)) => {
                            let read = self.options.read_timeout_of(&self.template);
                            Ok(Response::new(checked(None, response, read), summary))
                        }
                        Some(LastResult::Error(error)) => {
                            Err(GaveUp::new(Some(error), summary).into())
                        }
                        None => Err(GaveUp::new(None, summary).into()),
                    }
                }
            }
        })
    }

    /// Makes one attempt.
    async fn send(
        &mut self,
        connection: Connection,
        leave: CallPermit,
        body: OpenedBody,
    ) -> Result<Response, Box<FailedAttempt>> {
        let begun = self.driver.on_attempt(leave);
        let Self {
            client,
            options,
            template,
            driver,
            telling,
        } = self;
        let until = TimeLimit::after(begun.limit);
        let write_headers = |request: &mut reqwest::Request| {
            options.route(begun.number, request);
            telling.write_headers(&begun, request.headers_mut());
        };
        let built = client.build(template, connection, write_headers);
        let head_timeout = options.head_timeout(template, template.body(), begun.limit);
        let body = ready(Ok(body));
        let mut attempt = pin!(client.start(connection, begun, built, options, head_timeout, body));
        let mut timer = pin!(until.timer());
        let poll =
            |context: &mut Context<'_>| attempt.as_mut().poll_until(until, timer.as_mut(), context);
        let outcome = poll_fn(poll).await;
        let (span, watch) = attempt.parts();
        let response = options.conclude(driver, template, span, watch, outcome)?;
        Ok(options.finish_response(driver, template, response))
    }
}

impl CallOptions {
    /// The response for the caller.
    #[inline]
    pub(crate) fn finish_response(
        &self,
        driver: &mut CallDriver,
        template: &Template,
        response: reqwest::Response,
    ) -> Response {
        let read = self.read_timeout_of(template);
        let response = checked(template.method(), response, read);
        Response::new(response, driver.summary(None))
    }
}

impl AttemptLoop for Call {
    type Success = Response;

    fn options(&self) -> Arc<CallOptions> {
        self.options.clone()
    }

    fn driver(&mut self) -> &mut CallDriver {
        &mut self.driver
    }

    fn template(&self) -> &Template {
        &self.template
    }

    async fn attempt(
        &mut self,
        connection: Connection,
        leave: CallPermit,
        body: OpenedBody,
    ) -> Result<Response, Box<FailedAttempt>> {
        match self.options.hedge_for(&self.driver, &self.template) {
            // Boxed, because few requests are hedged.
            Some(hedge) => Box::pin(self.race(&hedge, connection, leave, body)).await,
            None => self.send(connection, leave, body).await,
        }
    }
}

impl Client {
    /// Sends an existing request; [`get`](Self::get) and similar methods build one.
    ///
    /// Makes attempts until a response head arrives that is not a failure, or until the policy stops. The result is
    /// the last real outcome. If the last attempt had a response, that response is `Ok`, whether its status is 200 or
    /// 503. [`Summary::reason`](relent::Summary::reason) is `None` only for a success.
    ///
    /// You read the body yourself. No limit of the policy applies to it, only the [read timeout](Self::read_timeout).
    /// For attempts that include the body use [`RequestBuilder::whole_body`](crate::RequestBuilder::whole_body) or
    /// [`download`](Self::download).
    ///
    /// A circuit breaker, a cooldown or a rate limit may hold back a retry until the call ends. The refused response
    /// is then returned with the part of its body that was read meanwhile, at most 256 KiB. If that is not all, the
    /// body ends with [`NotKept`](relent_http::body::NotKept).
    ///
    /// The HTTP version of the request is used; its extensions are ignored.
    ///
    /// # Errors
    /// [`Error::GaveUp`] if the last attempt had no response.
    pub async fn send(&self, request: &Request<Body>) -> Result<Response, Error> {
        let client = self.clone();
        let sent = match Template::build(request.clone(), &self.0.http) {
            Ok((built, body)) => {
                CallFuture::new(Ok(built), RequestOptions::new(client, Some(body)))
            }
            Err(refused) => {
                let options = self.options_of(request.method(), || Some(request.uri().clone()));
                let options = options.for_request(request.headers());
                let call = Call::new(client, options, *refused);
                CallFuture::boxed(call.into_retry_loop(None))
            }
        };
        sent.await
    }
}
