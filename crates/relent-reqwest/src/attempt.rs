//! One attempt on its way: a request goes out, until the head of its response has come.

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

use crate::body::{Opened, Redirected};
use crate::call_options::CallOptions;
use crate::client::Client;
use crate::failed::{Broken, Outcome};
use crate::read_timeout::Waiting;
use crate::redirects::{Asking, Watch};
use crate::request_template::Template;

/// Which connections an attempt may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Connection {
    /// Any that is open.
    #[default]
    Pooled,
    /// A new one.
    Fresh,
}

impl Connection {
    /// The one to take after this failure (design rule 2).
    pub(crate) fn after(failure: &Failure) -> Self {
        match failure.cause {
            Cause::Status(421) => Self::Fresh,
            _ => Self::Pooled,
        }
    }
}

/// The end of the time given to an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until(Option<(Instant, Duration)>);

impl Until {
    /// This long from now; `None` for as long as it takes.
    pub(crate) fn after(limit: Option<Duration>) -> Self {
        let end = |limit| Instant::now().checked_add(limit).map(|end| (end, limit));
        Self(limit.and_then(end))
    }

    /// Runs until then.
    pub(crate) fn timer(self) -> Option<Sleep> {
        self.0.map(|(end, _)| sleep_until(end))
    }

    /// What an attempt has come to that was cut off then.
    #[cold]
    pub(crate) fn over(self) -> Box<Broken> {
        Broken::timeout(self.0.map_or(Duration::MAX, |(_, given)| given))
    }

    pub(crate) async fn timeout<F: Future>(self, future: F) -> Result<F::Output, Box<Broken>> {
        let Some((end, _)) = self.0 else {
            return Ok(future.await);
        };
        let in_time = tokio::time::timeout_at(end, future).await;
        in_time.map_err(|_| self.over())
    }
}

pin_project! {
    /// An attempt on its way. It is judged when it is over.
    pub(crate) struct Attempt<F> {
        #[pin]
        sending: F,
        span: AttemptSpan,
        watch: Watch,
        // What ends it if the server is silent.
        waiting: Option<Waiting>,
    }
}

/// A request on its way through reqwest.
type Call = <reqwest::Client as Service<reqwest::Request>>::Future;

pin_project! {
    /// A request on its way. One whose body reqwest does not send on when it is redirected is sent again
    /// then, as a part of the attempt, with a body that it does.
    pub(crate) struct Sent {
        #[pin]
        call: Call,
        redirected: Option<Box<(reqwest::Client, Redirected)>>,
    }
}

impl Sent {
    /// Sends this. Not in a future, which would keep room for the request.
    #[inline]
    pub(crate) fn new(
        mut http: &reqwest::Client,
        mut request: reqwest::Request,
        body: Opened,
        options: &CallOptions,
    ) -> Self {
        let redirected = body.attach(&mut request).filter(|_| !options.no_redirects);
        Self {
            call: http.call(request),
            redirected: redirected.map(|again| Box::new((http.clone(), *again))),
        }
    }
}

impl Future for Sent {
    type Output = reqwest::Result<reqwest::Response>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let outcome = ready!(this.call.as_mut().poll(context));
        match (&outcome, this.redirected.take()) {
            (Ok(response), Some(again)) if Redirected::by(response) => {
                let (mut http, again) = (&again.0, again.1);
                this.call.set(http.call(again.into_request()));
                this.call.poll(context)
            }
            _ => Poll::Ready(outcome),
        }
    }
}

/// What an attempt sends, or why it cannot.
type Built = Result<reqwest::Request, Box<Broken>>;

impl<F> Attempt<F> {
    /// Sends it, in this span. `asking`: what it begins with, if anything is sent.
    #[inline]
    pub(crate) fn start(
        span: AttemptSpan,
        asking: Option<Asking>,
        waiting: Option<Waiting>,
        send: impl FnOnce() -> F,
    ) -> Self {
        let sending = {
            let _entered = span.enter();
            send()
        };
        Self {
            sending,
            span,
            watch: Watch::over(asking),
            waiting,
        }
    }

    /// Its span, and the redirects that it has followed.
    #[inline]
    pub(crate) fn parts(self: Pin<&mut Self>) -> (&mut AttemptSpan, &mut Watch) {
        let this = self.project();
        (this.span, this.watch)
    }

    /// Ready when it is over, or cut off by this timer.
    #[inline]
    pub(crate) fn poll_until<E>(
        self: Pin<&mut Self>,
        until: Until,
        timer: Pin<&mut Option<Sleep>>,
        context: &mut Context<'_>,
    ) -> Poll<Outcome>
    where
        F: Future<Output = Result<reqwest::Response, E>>,
        E: Into<Box<Broken>>,
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
    E: Into<Box<Broken>>,
{
    type Output = Outcome;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let this = self.project();
        let entered = this.span.enter();
        let polled = this.watch.poll(|| this.sending.poll(context));
        drop(entered);
        match (polled, this.waiting) {
            (Poll::Ready(outcome), _) => Poll::Ready(outcome.map_err(Into::into)),
            (Poll::Pending, Some(waiting)) => waiting.poll(context).map(Err),
            (Poll::Pending, None) => Poll::Pending,
        }
    }
}

impl Client {
    /// What an attempt sends, but for the body. `tell` has the last word on the address and the fields.
    pub(crate) fn build(
        &self,
        template: &Template,
        connection: Connection,
        tell: impl FnOnce(&mut reqwest::Request),
    ) -> Built {
        let mut built = template.request(self.http(connection))?;
        tell(&mut built);
        Ok(built)
    }

    /// This attempt starts, which sends what was built and the body.
    pub(crate) fn start(
        &self,
        connection: Connection,
        begun: relent::Attempt,
        mut built: Built,
        options: &CallOptions,
        waiting: Option<Waiting>,
        body: impl Future<Output = Result<Opened, Box<Broken>>>,
    ) -> Attempt<impl Future<Output = Outcome>> {
        let http = self.http(connection);
        let span = AttemptSpan::of(|| seen(built.as_ref().ok()?), begun.number);
        let asking = built.as_ref().ok().map(|built| Asking::of(built.method()));
        Attempt::start(span, asking, waiting, || {
            if let Ok(built) = &mut built {
                options.on_attempt.write(&begun, built.headers_mut());
            }
            async move {
                let body = body.await?;
                Ok(Sent::new(http, built?, body, options).await?)
            }
        })
    }

    /// The connections to take.
    pub(crate) fn http(&self, connection: Connection) -> &reqwest::Client {
        match connection {
            Connection::Pooled => &self.0.http,
            Connection::Fresh => self.unpooled(),
        }
    }
}

/// What the span tells of a request.
pub(crate) fn seen(built: &reqwest::Request) -> Option<(&Method, Uri)> {
    Some((built.method(), built.url().as_str().parse().ok()?))
}
