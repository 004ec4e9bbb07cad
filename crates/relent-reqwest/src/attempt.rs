//! One attempt: sends a request and waits for the head of its response.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Method, Uri};
use pin_project_lite::pin_project;
use relent_core::{Cause, Failure};
use relent_http::attempt::AttemptSpan;
use tokio::time::{Instant, Sleep, sleep_until};
use tower_service::Service;

use crate::body::{OpenedBody, RedirectedRequest};
use crate::call_options::CallOptions;
use crate::client::Client;
use crate::failed::{AttemptFailure, Outcome};
use crate::read_timeout::HeadTimeout;
use crate::redirects::{CurrentRequest, RedirectWatch};
use crate::request_template::Template;

/// The connections that an attempt may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Connection {
    /// Any open connection.
    #[default]
    Pooled,
    /// A new connection.
    New,
}

impl Connection {
    /// The connection for the attempt after this failure: a new one after a 421, which a pooled one would repeat.
    pub(crate) fn after(failure: &Failure) -> Self {
        match failure.cause {
            Cause::Status(421) => Self::New,
            _ => Self::Pooled,
        }
    }
}

/// The time limit of an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeLimit(Option<(Instant, Duration)>);

impl TimeLimit {
    /// A limit this long from now; `None` for no limit.
    pub(crate) fn after(limit: Option<Duration>) -> Self {
        let end = |limit| Instant::now().checked_add(limit).map(|end| (end, limit));
        Self(limit.and_then(end))
    }

    /// A timer that ends at the limit.
    pub(crate) fn timer(self) -> Option<Sleep> {
        self.0.map(|(end, _)| sleep_until(end))
    }

    /// The result of an attempt that reached this limit.
    #[cold]
    pub(crate) fn over(self) -> Box<AttemptFailure> {
        AttemptFailure::timeout(self.0.map_or(Duration::MAX, |(_, given)| given))
    }

    pub(crate) async fn timeout<F: Future>(
        self,
        future: F,
    ) -> Result<F::Output, Box<AttemptFailure>> {
        let Some((end, _)) = self.0 else {
            return Ok(future.await);
        };
        let in_time = tokio::time::timeout_at(end, future).await;
        in_time.map_err(|_| self.over())
    }
}

pin_project! {
    /// A running attempt. It is classified when it ends.
    pub(crate) struct Attempt<F> {
        #[pin]
        sending: F,
        span: AttemptSpan,
        watch: RedirectWatch,
        // Ends the attempt if the server is silent.
        head_timeout: Option<HeadTimeout>,
    }
}

/// A request in reqwest.
type Call = <reqwest::Client as Service<reqwest::Request>>::Future;

pin_project! {
    /// A sent request. If a redirect must keep the body, and reqwest cannot send it again, the request is sent a
    /// second time within the attempt, with a body that reqwest can send on.
    pub(crate) struct SendFuture {
        #[pin]
        call: Call,
        redirected: Option<Box<(reqwest::Client, RedirectedRequest)>>,
    }
}

impl SendFuture {
    /// Sends the request. Not an async function, whose future would reserve space for the request.
    #[inline]
    pub(crate) fn new(
        mut http: &reqwest::Client,
        mut request: reqwest::Request,
        body: OpenedBody,
        options: &CallOptions,
    ) -> Self {
        let redirected = body.attach(&mut request).filter(|_| !options.no_redirects);
        Self {
            call: http.call(request),
            redirected: redirected.map(|again| Box::new((http.clone(), *again))),
        }
    }
}

impl Future for SendFuture {
    type Output = reqwest::Result<reqwest::Response>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let outcome = ready!(this.call.as_mut().poll(context));
        match (&outcome, this.redirected.take()) {
            (Ok(response), Some(again)) if RedirectedRequest::by(response) => {
                let (mut http, again) = (&again.0, again.1);
                this.call.set(http.call(again.into_request()));
                this.call.poll(context)
            }
            _ => Poll::Ready(outcome),
        }
    }
}

/// The request of an attempt, or the reason why it cannot be built.
type BuildResult = Result<reqwest::Request, Box<AttemptFailure>>;

impl<F> Attempt<F> {
    /// Starts the attempt within this span. `current_request` is its first request, if anything is sent.
    #[inline]
    pub(crate) fn start(
        span: AttemptSpan,
        current_request: Option<CurrentRequest>,
        head_timeout: Option<HeadTimeout>,
        send: impl FnOnce() -> F,
    ) -> Self {
        let sending = {
            let _entered = span.enter();
            send()
        };
        Self {
            sending,
            span,
            watch: RedirectWatch::over(current_request),
            head_timeout,
        }
    }

    /// Its span and the redirects that it followed.
    #[inline]
    pub(crate) fn parts(self: Pin<&mut Self>) -> (&mut AttemptSpan, &mut RedirectWatch) {
        let this = self.project();
        (this.span, this.watch)
    }

    /// Ready when the attempt ends or reaches its limit.
    #[inline]
    pub(crate) fn poll_until<E>(
        self: Pin<&mut Self>,
        until: TimeLimit,
        timer: Pin<&mut Option<Sleep>>,
        context: &mut Context<'_>,
    ) -> Poll<Outcome>
    where
        F: Future<Output = Result<reqwest::Response, E>>,
        E: Into<Box<AttemptFailure>>,
    {
        if let Poll::Ready(outcome) = self.poll(context) {
            return Poll::Ready(outcome);
        }
        match timer.as_pin_mut() {
            Some(timer) => {
                ready!(timer.poll(context));
                Poll::Ready(Err(until.over()))
            }
            None => Poll::Pending,
        }
    }
}

impl<F, E> Future for Attempt<F>
where
    F: Future<Output = Result<reqwest::Response, E>>,
    E: Into<Box<AttemptFailure>>,
{
    type Output = Outcome;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let this = self.project();
        let entered = this.span.enter();
        let polled = this.watch.poll(|| this.sending.poll(context));
        drop(entered);
        match (polled, this.head_timeout) {
            (Poll::Ready(outcome), _) => Poll::Ready(outcome.map_err(Into::into)),
            (Poll::Pending, Some(head_timeout)) => head_timeout.poll(context).map(Err),
            (Poll::Pending, None) => Poll::Pending,
        }
    }
}

impl Client {
    /// Builds the request of an attempt, without the body. `tell` makes the final changes to URL and headers.
    pub(crate) fn build(
        &self,
        template: &Template,
        connection: Connection,
        tell: impl FnOnce(&mut reqwest::Request),
    ) -> BuildResult {
        let mut built = template.request(self.http(connection))?;
        tell(&mut built);
        Ok(built)
    }

    /// Starts an attempt with this request and body.
    pub(crate) fn start(
        &self,
        connection: Connection,
        begun: relent::Attempt,
        mut built: BuildResult,
        options: &CallOptions,
        head_timeout: Option<HeadTimeout>,
        body: impl Future<Output = Result<OpenedBody, Box<AttemptFailure>>>,
    ) -> Attempt<impl Future<Output = Outcome>> {
        let http = self.http(connection);
        let span = AttemptSpan::of(|| span_fields(built.as_ref().ok()?), begun.number);
        let current_request = built
            .as_ref()
            .ok()
            .map(|built| CurrentRequest::of(built.method()));
        Attempt::start(span, current_request, head_timeout, || {
            if let Ok(built) = &mut built {
                options.on_attempt.write(&begun, built.headers_mut());
            }
            async move {
                let body = body.await?;
                Ok(SendFuture::new(http, built?, body, options).await?)
            }
        })
    }

    /// The reqwest client with these connections.
    pub(crate) fn http(&self, connection: Connection) -> &reqwest::Client {
        match connection {
            Connection::Pooled => &self.0.http,
            Connection::New => self.unpooled(),
        }
    }
}

/// The properties of a request that its span records.
pub(crate) fn span_fields(built: &reqwest::Request) -> Option<(&Method, Uri)> {
    Some((built.method(), built.url().as_str().parse().ok()?))
}
