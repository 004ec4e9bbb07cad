//! A request and its attempts, until the head of a response.

use std::future::{Future, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use relent::clock::TokioClock;
use relent::driver::{Leave, Next};
use relent::{GaveUp, Summary};
use relent_core::Decision;
use tokio::time::Sleep;
use tower_service::Service;

use crate::attempt::{Failed, Last, Until};
use crate::client::Client;
use crate::complete::checked;
use crate::error::Error;
use crate::hops::{Followed, Watch};
use crate::manner::{CallDriver, Manner, cause};
use crate::outgoing::Outgoing;
use crate::request::{Plan, wrong};
use crate::response::Response;
use crate::sending::{Connection, Sent, seen, wait};
use relent_http::attempt::AttemptSpan;
use relent_http::attempt::Telling;
use relent_http::attempt::cannot_fail;

type Ending = Result<Response, Error>;

pin_project! {
    /// The future of a request. It is no larger than its first attempt needs, since it is moved with
    /// all that it has, and most requests have no other.
    pub(crate) struct Exchange {
        // Before `call`, so that the attempt is dropped first.
        first: Option<First>,
        // Of the first attempt, if it has a limit.
        #[pin]
        timer: Option<Sleep>,
        // What the first attempt sends, which uses it up.
        built: Option<reqwest::Request>,
        // Until it is over, or goes on in the box.
        call: Option<Call>,
        rest: Option<Pin<Box<dyn Future<Output = Ending> + Send>>>,
    }
}

/// The first attempt, on its way.
struct First {
    sent: Sent,
    until: Until,
    span: AttemptSpan,
    watch: Watch,
}

/// What the attempts of a request have in common.
pub(crate) struct Call {
    pub(crate) client: Client,
    pub(crate) manner: Arc<Manner>,
    pub(crate) request: Outgoing,
    pub(crate) driver: CallDriver,
    pub(crate) telling: Telling<TokioClock>,
}

impl Exchange {
    /// What reqwest has built, by this plan.
    #[inline]
    pub(crate) fn new(built: reqwest::Result<reqwest::Request>, plan: Plan) -> Self {
        let mut built = match built {
            Ok(built) => built,
            Err(error) => return Self::boxed(ready(Err(wrong(error)))),
        };
        let (client, manner, body) = match plan.settle(&mut built) {
            Ok(settled) => settled,
            Err(error) => return Self::boxed(ready(Err(error))),
        };
        let cap = client.0.body_cap;
        Self {
            call: Some(Call {
                driver: manner.driver(Some(built.url())),
                telling: manner.telling(),
                client,
                manner,
                request: Outgoing::new(&mut built, body, cap),
            }),
            built: Some(built),
            first: None,
            timer: None,
            rest: None,
        }
    }

    /// Something else that ends like an exchange.
    pub(crate) fn boxed(rest: impl Future<Output = Ending> + Send + 'static) -> Self {
        Self {
            call: None,
            built: None,
            first: None,
            timer: None,
            rest: Some(Box::pin(rest)),
        }
    }
}

impl Future for Exchange {
    type Output = Ending;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ending> {
        let mut this = self.project();
        if let Some(call) = this.call {
            if this.built.is_some() {
                *this.first = call.begin(this.built);
                *this.built = None;
                if let Some(end) = this.first.as_ref().and_then(|first| first.until.timer()) {
                    this.timer.set(Some(end));
                }
            }
            let failed = match this.first {
                None => None,
                Some(first) => match ready!(call.poll_first(first, this.timer.as_mut(), context)) {
                    Ok(response) => {
                        let summary = call.succeeded(&response, &first.watch);
                        let response = call.checked(response);
                        *this.first = None;
                        *this.call = None;
                        return Poll::Ready(Ok(Response::new(response, summary)));
                    }
                    Err(mut failed) => {
                        call.heed_hops(&mut failed, &first.watch);
                        Some(failed)
                    }
                },
            };
            *this.first = None;
            this.timer.set(None);
            *this.rest = this.call.take().map(|call| call.into_rest(failed));
        }
        match this.rest {
            Some(rest) => rest.as_mut().poll(context),
            // Polled again by mistake.
            None => Poll::Pending,
        }
    }
}

impl Call {
    #[inline]
    pub(crate) fn new(client: Client, manner: Arc<Manner>, request: Outgoing) -> Self {
        Self {
            driver: manner.driver(request.url()),
            telling: manner.telling(),
            client,
            manner,
            request,
        }
    }

    /// The first attempt starts, unless something has to be waited for before it, or others may join.
    #[inline]
    fn begin(&mut self, built: &mut Option<reqwest::Request>) -> Option<First> {
        if self.manner.hedges(&self.request) {
            return None;
        }
        let body = self.request.body_at_hand()?;
        let Next::Start(leave) = self.driver.enter(None) else {
            return None;
        };
        let body = body.open_now().ok()?;
        let begun = self.driver.on_attempt(leave);
        let until = Until::after(begun.limit);
        let sent = built.as_mut()?;
        if body.is_some() {
            *sent.body_mut() = body;
        }
        self.manner.route(begun.number, sent);
        self.telling.tell(&begun, sent.headers_mut());
        let span = AttemptSpan::of(|| seen(sent), begun.number);
        let mut http = &self.client.0.http;
        let sent = {
            let _entered = span.enter();
            http.call(built.take()?)
        };
        Some(First {
            sent,
            until,
            span,
            watch: Watch::default(),
        })
    }

    #[inline]
    fn poll_first(
        &self,
        first: &mut First,
        timer: Pin<&mut Option<Sleep>>,
        context: &mut Context<'_>,
    ) -> Poll<Result<reqwest::Response, Box<Failed>>> {
        let First {
            sent,
            until,
            span,
            watch,
        } = first;
        let entered = span.enter();
        let polled = watch.poll(|| Pin::new(sent).poll(context));
        drop(entered);
        let outcome = match polled {
            Poll::Ready(Ok(response))
                if cannot_fail(response.status(), response.headers())
                    && !self.manner.judges(response.status()) =>
            {
                span.answered(response.status(), None);
                return Poll::Ready(Ok(response));
            }
            Poll::Ready(outcome) => outcome.map_err(Into::into),
            Poll::Pending => match timer.as_pin_mut() {
                Some(timer) => {
                    ready!(timer.poll(context));
                    Err(until.over())
                }
                None => return Poll::Pending,
            },
        };
        Poll::Ready(
            self.manner
                .judge(0, self.client.judge(&self.request, span, outcome)),
        )
    }

    #[inline]
    fn succeeded(&mut self, response: &reqwest::Response, watch: &Watch) -> Summary {
        if let Some(followed) = watch.followed() {
            self.succeeded_elsewhere(response, followed);
        }
        self.driver.on_success_with(cause(response.status()));
        self.driver.summary(None)
    }

    /// The response as it is handed up.
    #[inline]
    pub(crate) fn checked(&self, response: reqwest::Response) -> reqwest::Response {
        let method = self.request.asked().map(|(method, _)| method);
        checked(method, response)
    }

    #[cold]
    fn succeeded_elsewhere(&mut self, response: &reqwest::Response, followed: &Followed) {
        let (url, since) = (response.url(), Some(followed.at));
        self.manner
            .tell_elsewhere(&mut self.driver, url, since, None);
    }

    /// An attempt failed, which may have followed redirects.
    #[cold]
    pub(crate) fn heed_hops(&mut self, failed: &mut Failed, watch: &Watch) {
        let (manner, watched) = (&self.manner, self.client.0.watched);
        let facts = || self.request.facts();
        manner.note_hops(failed, watch, watched, facts);
        manner.tell_failed(&mut self.driver, failed, watch);
    }

    #[cold]
    fn into_rest(
        self,
        failed: Option<Box<Failed>>,
    ) -> Pin<Box<dyn Future<Output = Ending> + Send>> {
        Box::pin(self.go_on(failed))
    }

    /// The attempts after the first, which has failed thus, or all of them.
    pub(crate) async fn go_on(mut self, mut failed: Option<Box<Failed>>) -> Ending {
        let repeatable = self.manner.may_repeat(self.request.facts());
        self.driver.set_repeatable(repeatable);
        loop {
            let mut connection = Connection::Pooled;
            let mut last = None;
            if let Some(mut failed) = failed {
                self.request.take_back(&mut failed);
                let after = match self.manner.decide(&mut self.driver, &failed) {
                    Decision::Retry { after } => after,
                    Decision::Stop(stop) => {
                        return ended(Some(failed.last), self.driver.summary(Some(stop)));
                    }
                };
                connection = Connection::after(&failed.failure);
                last = Some(wait(after, self.driver.room(), failed.last).await);
            }
            let leave = match self.driver.entered().await {
                Ok(leave) => leave,
                Err(stop) => return ended(last, self.driver.summary(Some(stop))),
            };
            drop(last);
            let outcome = match self.manner.hedge_for(&self.driver, &self.request) {
                // Apart, since few requests have one.
                Some(hedge) => Box::pin(self.race(&hedge, connection, leave)).await,
                None => self.attempt(connection, leave).await,
            };
            failed = match outcome {
                Ok(response) => return Ok(response),
                Err(failed) => Some(failed),
            };
        }
    }

    /// One attempt.
    async fn attempt(
        &mut self,
        connection: Connection,
        leave: Leave,
    ) -> Result<Response, Box<Failed>> {
        let begun = self.driver.on_attempt(leave);
        let (until, number) = (Until::after(begun.limit), begun.number);
        let (manner, telling) = (&self.manner, &mut self.telling);
        let mut watch = Watch::default();
        let tell = |request: &mut reqwest::Request| {
            manner.route(number, request);
            telling.tell(&begun, request.headers_mut());
        };
        let attempt =
            self.client
                .attempt(&self.request, connection, until, number, &mut watch, tell);
        let outcome = pin!(attempt).await;
        match self.manner.judge(number.saturating_sub(1), outcome) {
            Ok(response) => {
                let summary = self.succeeded(&response, &watch);
                Ok(Response::new(self.checked(response), summary))
            }
            Err(mut failed) => {
                self.heed_hops(&mut failed, &watch);
                Err(failed)
            }
        }
    }
}

/// The last real outcome, if there is one.
fn ended(last: Option<Last>, summary: Summary) -> Ending {
    match last {
        Some(Last::Refused(response)) => Ok(Response::new(checked(None, response), summary)),
        Some(Last::Error(error)) => Err(GaveUp::new(Some(error), summary).into()),
        None => Err(GaveUp::new(None, summary).into()),
    }
}
