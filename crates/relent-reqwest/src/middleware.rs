//! Retries as a middleware of reqwest-middleware, for a stack that is there already.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use async_trait::async_trait;
use http::Extensions;
use relent::clock::TokioClock;
use relent::driver::Leave;
use relent::{GaveUp, Summary};
use relent_core::{Policy, Repeatable};
use relent_http::attempt::{AttemptSpan, Telling, in_view_of_below};
use relent_http::body::{NotReplayable, Replay};
use reqwest::{Request, Response};
use reqwest_middleware::{Error, Middleware, Next, Result};

use crate::attempt::{Attempt, Connection, Until};
use crate::body::{Body, Opened};
use crate::call::{Attempts, Ended};
use crate::call_options::{CallDriver, CallOptions, SharedOptions, call_option_methods};
use crate::complete::checked_by_length;
use crate::failed::{AttemptError, Broken, Failed, Last};
use crate::redirects::Asking;
use crate::request_template::Template;

/// Runs what follows it in a stack of reqwest-middleware as often as a policy allows, by design
/// rules 1–8.
///
/// - The last real outcome is returned as it is: a 503 stays `Ok`, an error of reqwest its own.
///   Only where the policy cut the last attempt off, or there was no attempt, there is none, and the
///   error is `Error::Middleware` with a [`GaveUp`]. A response whose retry was held back has what was
///   read of its body, at most 256 KiB, and ends with [`NotKept`](relent_http::body::NotKept) if that is not all.
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
    shared: Arc<SharedOptions>,
}

impl RetryMiddleware {
    /// Retries by this policy. Clones share the budget that it has.
    #[must_use]
    pub fn new(policy: impl Into<Arc<Policy>>) -> Self {
        Self {
            shared: Arc::new(SharedOptions::new(policy.into())),
        }
    }

    fn shared(&self) -> &SharedOptions {
        &self.shared
    }

    fn options(&mut self) -> &mut CallOptions {
        Arc::make_mut(&mut self.shared).change()
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
    pub fn redirects_are_watched(mut self) -> Self {
        self.options().watched = true;
        self
    }
}

call_option_methods!(RetryMiddleware);

/// A request over its attempts.
struct Handled<'a, 'n> {
    options: Arc<CallOptions>,
    template: Template,
    driver: CallDriver,
    telling: Telling<TokioClock>,
    /// What the first attempt sends.
    first: Option<Request>,
    /// As the caller gave them.
    given: Extensions,
    extensions: &'a mut Extensions,
    next: Next<'n>,
}

impl Attempts for Handled<'_, '_> {
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

    /// Nothing tells the middleware below to take a fresh connection.
    async fn attempt(
        &mut self,
        _: Connection,
        leave: Leave,
        body: Opened,
    ) -> std::result::Result<Response, Box<Failed>> {
        let begun = self.driver.on_attempt(leave);
        let until = Until::after(begun.limit);
        let Some(mut request) = self.first.take().or_else(|| self.template.again()) else {
            return Err(Broken::unopened(io::Error::other(NotReplayable)).into());
        };
        // In one piece: what follows may want to look at it.
        *request.body_mut() = body.into_body();
        self.telling.tell(&begun, request.headers_mut());
        self.options.on_attempt.write(&begun, request.headers_mut());
        self.extensions.clone_from(&self.given);
        let (next, extensions) = (self.next.clone(), &mut *self.extensions);
        // Spans are the work of another middleware.
        let span = AttemptSpan::of(|| None, begun.number);
        let (mut outcome, watch) = {
            let asking = Some(Asking::of(request.method()));
            let sending = || next.run(request, extensions);
            let mut attempt = pin!(Attempt::start(span, asking, None, sending));
            let outcome = until.timeout(attempt.as_mut()).await.flatten();
            (outcome, std::mem::take(attempt.parts().1))
        };
        if let Err(broken) = &mut outcome {
            // Another of these below leaves its account here, also of an error.
            broken.failure = in_view_of_below(broken.failure, self.extensions);
        }
        let (options, driver) = (&self.options, &mut self.driver);
        let mut span = AttemptSpan::of(|| None, begun.number);
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
        let mut given = extensions.clone();
        given.remove::<Summary>();
        let mut handled = Handled {
            driver: options.driver(Some(request.url())),
            telling: options.telling(),
            options,
            template: Template::new(&mut request, body, Replay::CAP),
            first: Some(request),
            given,
            extensions,
            next,
        };
        let ended = handled.go_on(None).await;
        let Handled {
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
                (Some(Last::Refused(response)), driver.summary(None))
            }
            Err(Ended { last, stop }) => (last, driver.summary(Some(stop))),
        };
        extensions.insert(summary.clone());
        match last {
            Some(Last::Refused(mut response)) => {
                response.extensions_mut().insert(summary);
                Ok(response)
            }
            Some(Last::Error(AttemptError::Transport(error))) => Err(Error::Reqwest(error)),
            Some(Last::Error(AttemptError::Middleware(error))) => Err(Error::Middleware(error)),
            Some(Last::Error(error)) => Err(Error::middleware(GaveUp::new(Some(error), summary))),
            None => Err(Error::middleware(GaveUp::<AttemptError>::new(
                None, summary,
            ))),
        }
    }
}
