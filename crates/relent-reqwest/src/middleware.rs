//! Retries as a middleware, for an existing stack of reqwest-middleware.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use async_trait::async_trait;
use http::Extensions;
use relent::clock::TokioClock;
use relent::driver::CallPermit;
use relent::{GaveUp, Summary};
use relent_core::{Policy, Repeatable};
use relent_http::attempt::{AttemptSpan, AttemptStart, CrossLayerCall, apply_inner_summary};
use relent_http::body::{NotReplayable, Replay};
use reqwest::{Request, Response};
use reqwest_middleware::{Error, Middleware, Next, Result};

use crate::attempt::{Connection, RunningAttempt, TimeLimit};
use crate::attempt_failure::{AttemptError, AttemptFailure, FailedAttempt, LastResult};
use crate::body::{Body, OpenedBody};
use crate::call::{AttemptLoop, CallFailure};
use crate::complete::checked_by_length;
use crate::request_template::Template;
use crate::retry_options::{CallDriver, RetryOptions, SharedOptions, retry_option_methods};

/// Middleware for reqwest-middleware that retries each request as often as its policy allows.
///
/// - The result is the last real outcome: a 503 is `Ok`, a reqwest error stays a reqwest error. If the policy cut
///   off the last attempt, or no attempt was made, the error is `Error::Middleware` with a [`GaveUp`].
/// - A response whose retry was held back has the part of its body that was read, at most 256 KiB. If that is not
///   all, the body ends with [`NotKept`](relent_http::body::NotKept).
/// - The extensions of the response, and those of the caller, contain a [`Summary`].
/// - A body that reqwest can clone is sent with each attempt. A stream is kept while it is sent, up to
///   [`Replay::CAP`], and sent again if all of it was kept.
/// - Each attempt starts with the extensions of the caller, not with those of the previous attempt.
/// - After an error of another middleware the request may have taken effect, so it is retried only if it may run
///   twice. That also applies after a redirect, and to every failure unless you declare that
///   [redirects are tracked](Self::redirects_are_tracked).
/// - A 421 is retried once, but on any connection. Use [`Client`](crate::Client) for a new connection.
///
/// With the feature `tracing` it emits events for delays and give-ups, but no spans: for these add another
/// middleware after it, such as reqwest-tracing.
///
/// Build the reqwest client with [`default_builder`](crate::default_builder), so that its own retries do not multiply. A request sets
/// its own policy with `.with_extension(Arc<Policy>)`. With `.with_extension(Repeatable::No)` or `Yes` it declares
/// whether it may run twice, regardless of its method and headers.
///
/// ```no_run
/// use relent::Policy;
/// use relent_reqwest::{RetryMiddleware, default_builder};
/// use reqwest_middleware::ClientBuilder;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = ClientBuilder::new(default_builder().build()?)
///     .with(RetryMiddleware::new(Policy::STANDARD).redirects_are_tracked())
///     .build();
/// let response = client.get("https://example.com/").send().await?;
/// if let Some(summary) = response.extensions().get::<relent::Summary>() {
///     println!("{}, attempts: {}", response.status(), summary.attempts);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RetryMiddleware {
    shared: Arc<SharedOptions>,
}

impl RetryMiddleware {
    /// Creates a middleware with this policy. Clones share its retry budget.
    #[must_use]
    pub fn new(policy: impl Into<Arc<Policy>>) -> Self {
        Self {
            shared: Arc::new(SharedOptions::new(policy.into())),
        }
    }

    fn shared(&self) -> &SharedOptions {
        &self.shared
    }

    fn options(&mut self) -> &mut RetryOptions {
        Arc::make_mut(&mut self.shared).change()
    }

    /// Declares that every call of an attempt is visible.
    ///
    /// That requires three conditions. The redirect policy of the reqwest client is [`track_redirects`](crate::track_redirects), as
    /// that of [`default_builder`](crate::default_builder) is. The client has no retries of its own. No middleware after this one
    /// sends a request twice.
    ///
    /// Without this declaration, an attempt may follow a redirect after a `POST` that was processed, and the last
    /// server's response does not prove that the first server did nothing. A request that is not repeatable is
    /// therefore never sent again. Repeatable requests are retried as usual.
    #[must_use]
    pub fn redirects_are_tracked(mut self) -> Self {
        self.options().tracked = true;
        self
    }
}

retry_option_methods!(RetryMiddleware);

/// A request with the state of its attempts.
struct MiddlewareCall<'a, 'n> {
    options: Arc<RetryOptions>,
    template: Template,
    driver: CallDriver,
    cross_layer_call: CrossLayerCall<TokioClock>,
    /// The request of the first attempt.
    first: Option<Request>,
    /// The extensions of the caller.
    caller_extensions: Extensions,
    extensions: &'a mut Extensions,
    next: Next<'n>,
}

impl AttemptLoop for MiddlewareCall<'_, '_> {
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

    /// Ignores the connection: nothing can ask the inner middleware for a new one.
    async fn attempt(
        &mut self,
        _: Connection,
        permit: CallPermit,
        body: OpenedBody,
    ) -> std::result::Result<Response, Box<FailedAttempt>> {
        let attempt = self.driver.on_attempt(permit);
        let (until, number) = (TimeLimit::after(attempt.limit), attempt.number);
        let built = match self.first.take().or_else(|| self.template.again()) {
            Some(mut request) => {
                // A body in one piece, because the next middleware may inspect it.
                *request.body_mut() = body.into_body();
                Ok(request)
            }
            None => Err(AttemptFailure::unopened(io::Error::other(NotReplayable))),
        };
        let start = AttemptStart {
            attempt,
            cross_layer_call: &mut self.cross_layer_call,
            on_attempt: &self.options.on_attempt,
        };
        self.extensions.clone_from(&self.caller_extensions);
        let (next, extensions) = (self.next.clone(), &mut *self.extensions);
        let (mut outcome, watch) = {
            let send = |request| next.run(request, extensions);
            // Another middleware makes the spans.
            let mut attempt = pin!(RunningAttempt::start(start, built, |_| None, None, send));
            let outcome = until.timeout(attempt.as_mut()).await.flatten();
            (outcome, std::mem::take(attempt.parts().1))
        };
        if let Err(broken) = &mut outcome {
            // An inner `RetryMiddleware` stores its summary here, also for an error.
            broken.failure = apply_inner_summary(broken.failure, self.extensions);
        }
        let (options, driver) = (&self.options, &mut self.driver);
        let mut span = AttemptSpan::of(|| None, number);
        options.conclude(driver, &self.template, &mut span, &watch, outcome)
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
        let mut options = self.shared.now();
        if let Some(policy) = extensions.get::<Arc<Policy>>() {
            Arc::make_mut(&mut options).policy = policy.clone();
        }
        if let Some(said) = extensions.get::<Repeatable>() {
            Arc::make_mut(&mut options).repeatable = *said;
        }
        let options = options.for_request(request.headers());
        let body = request
            .body_mut()
            .take()
            .map_or_else(Body::empty, Body::from);
        let mut caller_extensions = extensions.clone();
        caller_extensions.remove::<Summary>();
        let mut handled = MiddlewareCall {
            driver: options.driver(Some(request.url())),
            cross_layer_call: options.cross_layer_call(),
            options,
            template: Template::new(&mut request, body, Replay::CAP),
            first: Some(request),
            caller_extensions,
            extensions,
            next,
        };
        let ended = handled.run_attempts().await;
        let MiddlewareCall {
            template,
            mut driver,
            extensions,
            ..
        } = handled;
        let (last, summary) = match ended {
            Ok(response) => {
                let response = match template.method() {
                    Some(method) => checked_by_length(method, response),
                    None => response,
                };
                (Some(LastResult::Refused(response)), driver.summary(None))
            }
            Err(CallFailure { last, stop }) => (last, driver.summary(Some(stop))),
        };
        extensions.insert(summary.clone());
        match last {
            Some(LastResult::Refused(mut response)) => {
                response.extensions_mut().insert(summary);
                Ok(response)
            }
            Some(LastResult::Error(AttemptError::Transport(error))) => Err(Error::Reqwest(error)),
            Some(LastResult::Error(AttemptError::Middleware(error))) => {
                Err(Error::Middleware(error))
            }
            Some(LastResult::Error(error)) => {
                Err(Error::middleware(GaveUp::new(Some(error), summary)))
            }
            None => Err(Error::middleware(GaveUp::<AttemptError>::new(
                None, summary,
            ))),
        }
    }
}
