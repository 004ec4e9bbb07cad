//! One attempt: a request goes out, and the head of its response is judged.

use std::time::{Duration, SystemTime};

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, Request};
use relent_core::{Cause, Failure, Kind, StopReason};

use super::Client;
use super::attempt::{AttemptError, Broken, Failed, Last, Until};
use super::body::Body;
use crate::classify;
use crate::observe::AttemptSpan;
use crate::repeatable::RequestFacts;

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
    /// The attempt of this number, with these headers in place of the request's, until the head of a
    /// response that is no failure.
    pub(crate) async fn attempt(
        &self,
        request: &Request<Body>,
        headers: HeaderMap,
        timeout: Option<Duration>,
        connection: Connection,
        until: Until,
        number: u32,
    ) -> Result<reqwest::Response, Failed> {
        let (method, uri) = (request.method(), request.uri());
        let mut span = AttemptSpan::start(method, uri, &headers, number);
        let sending = self.transmit(request, headers, timeout, connection, until);
        let sent = span.around(sending).await;
        match &sent {
            Ok(response) => span.answered(response.status(), None),
            Err(failed) => match &failed.last {
                Last::Refused(response) => {
                    span.answered(response.status(), Some(&failed.failure));
                }
                Last::Error(_) => span.failed(&failed.failure),
            },
        }
        sent.map_err(|mut failed| {
            let helped = !matches!(failed.failure.kind, Kind::Permanent | Kind::Overloaded);
            if helped && !request.body().can_be_sent_again() {
                failed.stop.get_or_insert(StopReason::NotReplayable);
            }
            failed
        })
    }

    async fn transmit(
        &self,
        request: &Request<Body>,
        headers: HeaderMap,
        timeout: Option<Duration>,
        connection: Connection,
        until: Until,
    ) -> Result<reqwest::Response, Failed> {
        let body =
            request.body().open().await.map_err(|error| {
                Broken::local(StopReason::NotReplayable, AttemptError::Body(error))
            })?;
        let http = match connection {
            Connection::Pooled => &self.http,
            Connection::Fresh => self.unpooled(),
        };
        let mut attempt = http
            .request(request.method().clone(), request.uri().to_string())
            .version(request.version())
            .headers(headers);
        if let Some(timeout) = timeout {
            attempt = attempt.timeout(timeout);
        }
        // Hyper would leave out a length of zero, and some servers insist on it (RFC 9110 §8.6).
        let method = request.method();
        let none = || matches!(*method, Method::POST | Method::PUT | Method::PATCH).then_some(0);
        let length = match &body {
            None => none(),
            Some(_) => request.body().told_length(),
        };
        if let Some(length) = length
            && !request.headers().contains_key(CONTENT_LENGTH)
        {
            attempt = attempt.header(CONTENT_LENGTH, length);
        }
        if let Some(body) = body {
            attempt = attempt.body(body);
        }
        let response = until.timeout(attempt.send()).await?.map_err(Broken::from)?;
        let facts = RequestFacts::of(request.method(), request.headers());
        let now = SystemTime::now();
        let (status, headers) = (response.status(), response.headers());
        match classify(status, headers, facts, now, &self.hints) {
            None => Ok(response),
            Some(failure) => Err(Failed::new(failure, Last::Refused(response))),
        }
    }
}

/// Waits, and drains what is left of the failed attempt meanwhile; its error is given back.
pub(crate) async fn wait(after: Duration, failed: Failed) -> Option<AttemptError> {
    let ((), error) = tokio::join!(sleep(after), failed.drain());
    error
}

/// Waits.
pub(crate) async fn sleep(after: Duration) {
    // The timer of tokio makes even no wait take a millisecond.
    if !after.is_zero() {
        tokio::time::sleep(after).await;
    }
}
