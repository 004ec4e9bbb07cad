//! One attempt: a request goes out, and the head of its response is judged.

use std::pin::pin;
use std::time::{Duration, SystemTime};

use http::{Method, Uri};
use relent_core::{Cause, Failure};
use tower_service::Service;

use crate::attempt::{Broken, Failed, Last, Until, drained};
use crate::client::Client;
use crate::hops::Watch;
use crate::outgoing::Outgoing;
use relent_http::attempt::AttemptSpan;
use relent_http::attempt::cannot_fail;
use relent_http::attempt::patience;
use relent_http::classify;

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

impl Client {
    /// One attempt, until the head of a response that is no failure. `tell` has the last word on the
    /// address and the fields of its request; `watch` sees the redirects that it follows.
    #[inline]
    pub(crate) async fn attempt(
        &self,
        request: &Outgoing,
        connection: Connection,
        until: Until,
        number: u32,
        watch: &mut Watch,
        tell: impl FnOnce(&mut reqwest::Request),
    ) -> Result<reqwest::Response, Box<Failed>> {
        let built = self.built(request, connection, tell);
        let mut span = span_of(&built, number);
        // Pinned where it is: what is handed on by value is copied each time.
        let sending = pin!(self.transmit(request, connection, built));
        let sending = watch.around(sending);
        let outcome = until.timeout(span.around(sending)).await.flatten();
        match outcome {
            Ok(response) if cannot_fail(response.status(), response.headers()) => {
                span.answered(response.status(), None);
                Ok(response)
            }
            outcome => self.judge(request, &mut span, outcome),
        }
    }

    /// What one attempt sends, but for the body. `tell` has the last word on it.
    pub(crate) fn built(
        &self,
        request: &Outgoing,
        connection: Connection,
        tell: impl FnOnce(&mut reqwest::Request),
    ) -> Result<reqwest::Request, Box<Broken>> {
        let mut built = request.request(self.http(connection))?;
        tell(&mut built);
        Ok(built)
    }

    /// Sends it with the body, until the head of a response.
    pub(crate) async fn transmit(
        &self,
        request: &Outgoing,
        connection: Connection,
        built: Result<reqwest::Request, Box<Broken>>,
    ) -> Result<reqwest::Response, Box<Broken>> {
        let body = request.open().await?;
        let sent = send(self.http(connection), built?, body);
        Ok(sent.await?)
    }

    fn http(&self, connection: Connection) -> &reqwest::Client {
        match connection {
            Connection::Pooled => &self.0.http,
            Connection::Fresh => self.unpooled(),
        }
    }

    /// What an attempt came to that may have failed.
    #[cold]
    pub(crate) fn judge(
        &self,
        request: &Outgoing,
        span: &mut AttemptSpan,
        outcome: Result<reqwest::Response, Box<Broken>>,
    ) -> Result<reqwest::Response, Box<Failed>> {
        match outcome {
            Ok(response) => {
                let (status, headers) = (response.status(), response.headers());
                let now = SystemTime::now();
                let failure = classify(status, headers, request.facts(), now, &self.0.hints);
                span.answered(status, failure.as_ref());
                match failure {
                    None => Ok(response),
                    Some(failure) => Err(Failed::new(failure, Last::Refused(response))),
                }
            }
            Err(broken) => {
                span.failed(&broken.failure);
                Err(broken.into())
            }
        }
    }
}

/// The span of the attempt that sends this. There is none if reqwest refuses it.
pub(crate) fn span_of(built: &Result<reqwest::Request, Box<Broken>>, number: u32) -> AttemptSpan {
    let built = built.as_ref().ok();
    AttemptSpan::of(|| seen(built?), number)
}

/// What the span tells of a request.
pub(crate) fn seen(built: &reqwest::Request) -> Option<(&Method, Uri)> {
    Some((built.method(), built.url().as_str().parse().ok()?))
}

/// A request on its way.
pub(crate) type Sent = <reqwest::Client as Service<reqwest::Request>>::Future;

/// Sends a request with this body. Not in a future, which would keep room for the request.
fn send(
    mut http: &reqwest::Client,
    mut request: reqwest::Request,
    body: Option<reqwest::Body>,
) -> Sent {
    *request.body_mut() = body;
    http.call(request)
}

/// Waits, and drains what is left of the failed attempt; what there is to show of it is given back.
pub(crate) async fn wait(after: Duration, room: Option<Duration>, last: Last) -> Last {
    match last {
        Last::Refused(response) => Last::Refused(wait_draining(after, room, response).await),
        error => {
            sleep(after).await;
            error
        }
    }
}

/// Waits, and drains a refused response, which may take longer; it is given back with what was read.
/// The next attempt must start within `room`.
pub(crate) async fn wait_draining(
    after: Duration,
    room: Option<Duration>,
    response: reqwest::Response,
) -> reqwest::Response {
    let draining = drained(response, patience(after, room));
    let ((), response) = tokio::join!(sleep(after), draining);
    response
}

/// Waits.
pub(crate) async fn sleep(after: Duration) {
    // The timer of tokio makes even no wait take a millisecond.
    if !after.is_zero() {
        tokio::time::sleep(after).await;
    }
}
