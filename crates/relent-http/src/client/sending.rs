//! One attempt: a request goes out, and the head of its response is judged.

use std::pin::pin;
use std::time::{Duration, SystemTime};

use relent::{Attempt, TokioClock};
use relent_core::{Cause, Failure, Kind, StopReason};

use super::Client;
use super::attempt::{Broken, Failed, Last, Until, drained};
use super::outgoing::Outgoing;
use crate::classify;
use crate::classify::cannot_fail;
use crate::cross_layer::Telling;
use crate::drain;
use crate::observe::AttemptSpan;

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
    /// One attempt, which tells the server what there is to tell, until the head of a response that is
    /// no failure.
    pub(crate) async fn attempt(
        &self,
        request: &Outgoing,
        connection: Connection,
        until: Until,
        begun: &Attempt,
        telling: &mut Telling<TokioClock>,
    ) -> Result<reqwest::Response, Failed> {
        let mut span = AttemptSpan::of(request.head(), begun.number);
        // Pinned where it is, here and below: what is handed on by value is copied each time.
        let sending = pin!(self.transmit(request, connection, until, begun, telling));
        let mut failed = match span.around(sending).await {
            Ok(response) => {
                let (status, headers) = (response.status(), response.headers());
                if cannot_fail(status, headers) {
                    span.answered(status, None);
                    return Ok(response);
                }
                let now = SystemTime::now();
                let failure = classify(status, headers, request.facts(), now, &self.0.hints);
                span.answered(status, failure.as_ref());
                match failure {
                    None => return Ok(response),
                    Some(failure) => Failed::new(failure, Last::Refused(response)),
                }
            }
            Err(broken) => {
                span.failed(&broken.failure);
                broken.into()
            }
        };
        let helped = !matches!(failed.failure.kind, Kind::Permanent | Kind::Overloaded);
        if helped && !request.can_be_sent_again() {
            failed.stop.get_or_insert(StopReason::NotReplayable);
        }
        Err(failed)
    }

    async fn transmit(
        &self,
        request: &Outgoing,
        connection: Connection,
        until: Until,
        begun: &Attempt,
        telling: &mut Telling<TokioClock>,
    ) -> Result<reqwest::Response, Broken> {
        let body = request.open().await?;
        let http = match connection {
            Connection::Pooled => &self.0.http,
            Connection::Fresh => self.unpooled(),
        };
        let mut request = request.request(http, body)?;
        telling.tell(begun, request.headers_mut());
        let sent = pin!(http.execute(request));
        Ok(until.timeout(sent).await??)
    }
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
    let draining = drained(response, drain::patience(after, room));
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
