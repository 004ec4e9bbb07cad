//! The retry loop that all calls share, and the calls that end with the head of a response.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use relent::GaveUp;
use relent::clock::TokioClock;
use relent::driver::CallPermit;
use relent_core::{Decision, Failure, Stop, StopReason};
use relent_http::attempt::{CrossLayerCall, not_retried};

use crate::attempt::{Connection, Sender, TimeLimit};
use crate::attempt_failure::{AttemptError, FailedAttempt, LastResult};
use crate::body::{Body, OpenedBody};
use crate::client::Client;
use crate::complete::{checked, drained_while};
use crate::error::Error;
use crate::request_options::{RequestOptions, build_error};
use crate::request_template::Template;
use crate::response::Response;
use crate::retry_options::{CallDriver, RetryOptions};

/// Makes the attempts of a call. The retry loop, its delays and its result are the same for all implementations.
pub(crate) trait AttemptLoop {
    /// The result of a successful attempt.
    type Success;

    fn options(&self) -> Arc<RetryOptions>;

    fn driver(&mut self) -> &mut CallDriver;

    /// The request of all attempts.
    fn template(&self) -> &Template;

    /// Makes one attempt, or several concurrent ones, with permission of the destination. `body` is that of the first.
    async fn attempt(
        &mut self,
        connection: Connection,
        permit: CallPermit,
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
        let mut permit = self.entered().await.map_err(CannotStart::HeldBack)?;
        loop {
            let body = self.template().body().clone();
            if body.opens_without_waiting() {
                return Ok((permit, body.open_now().map_err(CannotStart::Unopened)?));
            }
            let room = self.driver().room();
            // Starting at the last allowed instant is in time.
            let late = room.map(|room| room.saturating_add(Duration::from_nanos(1)));
            let opened = TimeLimit::after(late).timeout(body.open()).await;
            // Opening a file takes time, so request admission again.
            permit = self.entered().await.map_err(CannotStart::HeldBack)?;
            if let Ok(opened) = opened {
                return Ok((permit, opened.map_err(CannotStart::Unopened)?));
            }
        }
    }

    /// Makes all attempts.
    async fn run_attempts(&mut self) -> Result<Self::Success, CallFailure> {
        let options = self.options();
        let mut failed: Option<Box<FailedAttempt>> = None;
        loop {
            let mut connection = Connection::Pooled;
            let (mut last, mut failure) = (None, Failure::not_processed());
            if let Some(failed) = failed {
                // Only now, since most requests do not fail.
                let repeatable = options.may_repeat(self.template().facts());
                self.driver().set_repeatable(repeatable);
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
            let (permit, body) = match self.next_permit().await {
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
                    // What happened to a request that was sent is worth more than why none follows.
                    let unopened = || LastResult::Error(AttemptError::Body(error));
                    let last = last.map_or_else(unopened, |last: Box<LastResult>| *last);
                    let last = Some(last);
                    return Err(CallFailure { last, stop });
                }
            };
            drop(last);
            failed = match self.attempt(connection, permit, body).await {
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

/// A request of the client, with the state that its attempts share.
pub(crate) struct ClientCall {
    pub(crate) client: Client,
    pub(crate) options: Arc<RetryOptions>,
    pub(crate) template: Template,
    pub(crate) driver: CallDriver,
    pub(crate) cross_layer_call: CrossLayerCall<TokioClock>,
    /// The request of the first attempt, which takes it.
    pub(crate) first: Option<reqwest::Request>,
}

impl ClientCall {
    /// Creates the call of a request that reqwest has built.
    #[inline]
    pub(crate) fn new(
        built: reqwest::Result<reqwest::Request>,
        request_options: RequestOptions,
    ) -> Result<Self, Error> {
        let mut built = built.map_err(build_error)?;
        let (client, options, body) = request_options.resolve(&mut built)?;
        let template = Template::new(&mut built, body, client.0.body_cap);
        Ok(Self::of(client, options, template, Some(built)))
    }

    #[inline]
    fn of(
        client: Client,
        options: Arc<RetryOptions>,
        template: Template,
        first: Option<reqwest::Request>,
    ) -> Self {
        Self {
            driver: options.driver(template.url()),
            cross_layer_call: options.cross_layer_call(),
            client,
            options,
            template,
            first,
        }
    }

    /// Makes all attempts. The result is the last real outcome.
    pub(crate) async fn run(&mut self) -> Result<Response, Error> {
        match self.run_attempts().await {
            Ok(response) => Ok(response),
            Err(CallFailure { last, stop }) => {
                let summary = self.driver.summary(Some(stop));
                match last {
                    Some(LastResult::Refused(response)) => {
                        let read = self.options.read_timeout_of(&self.template);
                        Ok(Response::new(checked(None, response, read), summary))
                    }
                    Some(LastResult::Error(error)) => Err(GaveUp::new(Some(error), summary).into()),
                    None => Err(GaveUp::new(None, summary).into()),
                }
            }
        }
    }

    /// Makes one attempt.
    async fn send(
        &mut self,
        connection: Connection,
        permit: CallPermit,
        body: OpenedBody,
    ) -> Result<Response, Box<FailedAttempt>> {
        let attempt = self.driver.on_attempt(permit);
        let Self {
            client,
            options,
            template,
            driver,
            cross_layer_call,
            first,
        } = self;
        let mut sender = Sender {
            client,
            options,
            template,
            cross_layer_call,
            connection,
            elsewhere: false,
        };
        let until = TimeLimit::after(attempt.limit);
        let built = sender.request(attempt.number, first.take());
        let mut attempt = pin!(sender.start(attempt, built, template.body(), body));
        let outcome = until.timeout(attempt.as_mut()).await.flatten();
        let (span, watch) = attempt.parts();
        let response = options.conclude(driver, template, span, watch, outcome)?;
        Ok(options.finish_response(driver, template, response))
    }
}

impl RetryOptions {
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

impl AttemptLoop for ClientCall {
    type Success = Response;

    fn options(&self) -> Arc<RetryOptions> {
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
        permit: CallPermit,
        body: OpenedBody,
    ) -> Result<Response, Box<FailedAttempt>> {
        match self.options.hedge_for(&self.driver, &self.template) {
            Some(hedge) => {
                let repeatable = self.options.may_repeat(self.template.facts());
                self.driver.set_repeatable(repeatable);
                // Boxed, because few requests are hedged.
                Box::pin(self.race(&hedge, connection, permit, body)).await
            }
            None => self.send(connection, permit, body).await,
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
        let mut call = match Template::build(request.clone(), &self.0.http) {
            Ok((built, body)) => {
                let options = RequestOptions::new(self.clone(), Some(body));
                ClientCall::new(Ok(built), options)?
            }
            Err(refused) => {
                let options = self.options_of(request.method(), || Some(request.uri().clone()));
                let options = options.for_request(request.headers());
                ClientCall::of(self.clone(), options, *refused, None)
            }
        };
        // Boxed, because the attempts of a request need much space, and futures are moved.
        Box::pin(call.run()).await
    }
}
