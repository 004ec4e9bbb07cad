//! One attempt: sends a request and waits for the head of its response.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Method, Uri};
use pin_project_lite::pin_project;
use relent::clock::TokioClock;
use relent_core::{Cause, Failure};
use relent_http::attempt::{AttemptSpan, AttemptStart, CrossLayerCall};
use tokio::time::Instant;
use tower_service::Service;

use crate::attempt_failure::{AttemptFailure, AttemptResult};
use crate::body::{Body, OpenedBody, RedirectedRequest};
use crate::client::Client;
use crate::read_timeout::HeadTimeout;
use crate::redirects::{CurrentRequest, RedirectWatch, store_next_request, unfollowed};
use crate::request_template::Template;
use crate::retry_options::RetryOptions;
use crate::secret::remove_credentials;

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

    /// This limit, but not earlier than `least` from now.
    pub(crate) fn at_least(self, least: Duration) -> Self {
        let earliest = Instant::now().checked_add(least);
        Self(self.0.and_then(|(end, given)| match earliest? {
            earliest if earliest > end => Some((earliest, least)),
            _ => Some((end, given)),
        }))
    }

    /// Whether this limit has passed.
    pub(crate) fn is_over(self) -> bool {
        self.0.is_some_and(|(end, _)| Instant::now() >= end)
    }

    /// The outcome of a future, or the failure of an attempt that reached this limit.
    pub(crate) async fn timeout<F: Future>(
        self,
        future: F,
    ) -> Result<F::Output, Box<AttemptFailure>> {
        let Some((end, given)) = self.0 else {
            return Ok(future.await);
        };
        let in_time = tokio::time::timeout_at(end, future).await;
        in_time.map_err(|_| AttemptFailure::timeout(given))
    }
}

pin_project! {
    /// A running attempt of a client, a download or a middleware. It is classified when it ends.
    pub(crate) struct RunningAttempt<F> {
        // `None` if the request could not be built.
        #[pin]
        sending: Option<F>,
        unsent: Option<Box<AttemptFailure>>,
        span: AttemptSpan,
        watch: RedirectWatch,
        // Ends the attempt if the server is silent.
        head_timeout: Option<HeadTimeout>,
    }
}

/// A request in reqwest.
type RequestFuture = <reqwest::Client as Service<reqwest::Request>>::Future;

pin_project! {
    /// A sent request. If a redirect must keep the body, and reqwest cannot send it again, the request is sent a
    /// second time within the attempt, with a body that reqwest can send on.
    pub(crate) struct SendFuture {
        #[pin]
        call: RequestFuture,
        redirected: Option<Box<(reqwest::Client, RedirectedRequest)>>,
        follows_redirects: bool,
    }
}

impl SendFuture {
    /// Sends the request. Not an async function, whose future would reserve space for the request.
    #[inline]
    pub(crate) fn new(
        mut http: &reqwest::Client,
        mut request: reqwest::Request,
        body: OpenedBody,
        options: &RetryOptions,
    ) -> Self {
        let redirected = body.attach(&mut request).filter(|_| !options.no_redirects);
        Self {
            call: http.call(request),
            redirected: redirected.map(|again| Box::new((http.clone(), *again))),
            follows_redirects: options.follows_redirects,
        }
    }
}

impl Future for SendFuture {
    type Output = AttemptResult;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let mut outcome = ready!(this.call.as_mut().poll(context));
        if let (Ok(response), Some(again)) = (&outcome, this.redirected.take())
            && again.1.by(response)
        {
            let (mut http, request) = (&again.0, again.1.into_request());
            // The server has had the request once, whatever the next response says.
            store_next_request(request.url());
            this.call.set(http.call(request));
            outcome = ready!(this.call.poll(context));
        }
        if let Ok(response) = &outcome
            && *this.follows_redirects
            && let Some(refused) = unfollowed(response)
        {
            return Poll::Ready(Err(AttemptFailure::redirect(refused)));
        }
        Poll::Ready(outcome.map_err(Into::into))
    }
}

/// The request of an attempt, or the reason why it cannot be sent.
pub(crate) type BuildResult = Result<reqwest::Request, Box<AttemptFailure>>;

impl<F> RunningAttempt<F> {
    /// Starts an attempt: the same steps for each first, later and hedged one. `traced` selects the properties of the
    /// request for the span, if it has one.
    #[inline]
    pub(crate) fn start(
        start: AttemptStart<'_, TokioClock>,
        built: BuildResult,
        traced: impl FnOnce(&reqwest::Request) -> Option<(&Method, Uri)>,
        head_timeout: Option<HeadTimeout>,
        send: impl FnOnce(reqwest::Request) -> F,
    ) -> Self {
        let number = start.attempt.number;
        let (sending, unsent, span, current_request) = match built {
            Ok(request) => {
                let current_request = CurrentRequest::of(request.method());
                let span = |request: &_| AttemptSpan::of(|| traced(request), number);
                let (sending, span) =
                    start.send(request, reqwest::Request::headers_mut, span, send);
                (Some(sending), None, span, Some(current_request))
            }
            Err(failure) => (None, Some(failure), AttemptSpan::of(|| None, number), None),
        };
        Self {
            sending,
            unsent,
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
}

impl<F, E> Future for RunningAttempt<F>
where
    F: Future<Output = Result<reqwest::Response, E>>,
    E: Into<Box<AttemptFailure>>,
{
    type Output = AttemptResult;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<AttemptResult> {
        let this = self.project();
        let Some(sending) = this.sending.as_pin_mut() else {
            return match this.unsent.take() {
                Some(failure) => Poll::Ready(Err(failure)),
                // Polled after completion.
                None => Poll::Pending,
            };
        };
        let entered = this.span.enter();
        let (polled, redirected) = this.watch.poll(|| sending.poll(context));
        drop(entered);
        match (polled, this.head_timeout) {
            (Poll::Ready(outcome), _) => Poll::Ready(outcome.map_err(Into::into)),
            (Poll::Pending, Some(head_timeout)) => {
                if redirected {
                    head_timeout.restart();
                }
                head_timeout.poll(context).map(Err)
            }
            (Poll::Pending, None) => Poll::Pending,
        }
    }
}

/// Sends the attempts of a client's call.
pub(crate) struct Sender<'a> {
    pub(crate) client: &'a Client,
    pub(crate) options: &'a RetryOptions,
    pub(crate) template: &'a Template,
    pub(crate) cross_layer_call: &'a mut CrossLayerCall<TokioClock>,
    pub(crate) connection: Connection,
    /// Whether the request goes directly to another origin than that of the call, which gets no credentials.
    pub(crate) elsewhere: bool,
}

impl Sender<'_> {
    /// The request of the attempt with this number, at its final URL. `first` is that of the first attempt.
    #[inline]
    pub(crate) fn request(&self, number: u32, first: Option<reqwest::Request>) -> BuildResult {
        let mut request = match first {
            Some(first) => first,
            None => self.template.request(self.client.http(self.connection))?,
        };
        self.options.route(number, &mut request);
        Ok(request)
    }

    /// Starts an attempt with this request and body.
    #[inline]
    pub(crate) fn start(
        &mut self,
        attempt: relent::Attempt,
        built: BuildResult,
        body: &Body,
        opened: OpenedBody,
    ) -> RunningAttempt<SendFuture> {
        let options = self.options;
        let start = AttemptStart {
            attempt,
            cross_layer_call: self.cross_layer_call,
            on_attempt: &options.on_attempt,
        };
        let http = self.client.http(self.connection);
        let head_timeout = options.head_timeout(self.template, body, attempt.limit);
        let elsewhere = self.elsewhere;
        RunningAttempt::start(start, built, span_fields, head_timeout, |mut request| {
            if elsewhere {
                // Again, since the caller's hook may have added some.
                remove_credentials(request.headers_mut());
            }
            SendFuture::new(http, request, opened, options)
        })
    }
}

impl Client {
    /// The reqwest client with these connections.
    pub(crate) fn http(&self, connection: Connection) -> &reqwest::Client {
        match connection {
            Connection::Pooled => &self.0.http,
            Connection::New => self.unpooled(),
        }
    }
}

/// The properties of a request that its span records.
fn span_fields(built: &reqwest::Request) -> Option<(&Method, Uri)> {
    Some((built.method(), built.url().as_str().parse().ok()?))
}
