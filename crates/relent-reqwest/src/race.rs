//! The attempts of a request that is hedged.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use relent::driver::Leave;
use relent::race::{RaceEvent, Racer, Running};
use relent_core::{Failure, Hedge, Kind, Raced, StopReason};

use crate::attempt::{Broken, Failed};
use crate::client::Client;
use crate::complete::checked;
use crate::exchange::Call;
use crate::hops::Watch;
use crate::manner::cause;
use crate::outgoing::Outgoing;
use crate::response::Response;
use crate::sending::{Connection, span_of};
use relent_http::attempt::AttemptSpan;
use relent_http::attempt::is_gone;

pin_project! {
    /// One of the attempts, which is judged when it is over.
    struct Sending<'c, F> {
        #[pin]
        sending: F,
        client: &'c Client,
        request: &'c Outgoing,
        span: AttemptSpan,
        watch: Watch,
    }
}

/// What it came to, and the redirects that it followed.
type Outcome = (Result<reqwest::Response, Box<Failed>>, Watch);

impl<F> Future for Sending<'_, F>
where
    F: Future<Output = Result<reqwest::Response, Box<Broken>>>,
{
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let this = self.project();
        let entered = this.span.enter();
        let polled = this.watch.poll(|| this.sending.poll(context));
        drop(entered);
        let sent = ready!(polled);
        let judged = this.client.judge(this.request, this.span, sent);
        Poll::Ready((judged, std::mem::take(this.watch)))
    }
}

impl<F> Sending<'_, F> {
    /// It has reached its limit.
    fn cut_off(self: Pin<&mut Self>, racer: &Racer) -> Outcome {
        let given = racer.attempt().limit.unwrap_or_default();
        let this = self.project();
        let late = Err(Broken::timeout(given));
        let judged = this.client.judge(this.request, this.span, late);
        (judged, std::mem::take(this.watch))
    }
}

impl Call {
    /// An attempt that others join if it takes long, until one has succeeded or all have failed.
    pub(crate) async fn race(
        &mut self,
        hedge: &Hedge,
        connection: Connection,
        leave: Leave,
    ) -> Result<Response, Box<Failed>> {
        let Self {
            client,
            manner,
            request,
            driver,
            telling,
        } = self;
        let (client, request) = (&*client, &*request);
        let mut start = |racer: &Racer| {
            let begun = racer.attempt();
            let tell = |request: &mut reqwest::Request| {
                manner.route(begun.number, request);
                telling.tell(&begun, request.headers_mut());
            };
            let built = client.built(request, connection, tell);
            let span = span_of(&built, begun.number);
            Sending {
                sending: client.transmit(request, connection, built),
                client,
                request,
                span,
                watch: Watch::default(),
            }
        };
        let mut running = Running::new();
        running.begin(driver, hedge, leave, &mut start);
        // What belongs to the failure that decides, unless a plainer one comes.
        let mut kept = None;
        loop {
            let (racer, (outcome, watch)) =
                match poll_fn(|context| running.poll_next(driver, context)).await {
                    RaceEvent::Due => {
                        running.join(driver, &mut start);
                        continue;
                    }
                    RaceEvent::Ended(racer, outcome) => (racer, outcome),
                    RaceEvent::CutOff(racer, mut sending) => {
                        let outcome = sending.as_mut().cut_off(&racer);
                        (racer, outcome)
                    }
                };
            let before = racer.attempt().number.saturating_sub(1);
            let mut failed = match manner.judge(before, outcome) {
                Ok(response) => {
                    if let Some(followed) = watch.followed() {
                        let (url, since) = (response.url(), Some(followed.at));
                        manner.tell_elsewhere(driver, url, since, None);
                    }
                    let seen = Some(cause(response.status()));
                    running.won(driver, hedge, &racer, seen);
                    let method = request.asked().map(|(method, _)| method);
                    let response = checked(method, response);
                    return Ok(Response::new(response, driver.summary(None)));
                }
                Err(failed) => failed,
            };
            let facts = || request.facts();
            manner.note_hops(&mut failed, &watch, client.0.watched, facts);
            manner.tell_failed(driver, &mut failed, &watch);
            if !running.is_empty() {
                stand_beside(&mut failed, request);
            }
            let told = Failure {
                // The caller says that no other helps.
                kind: match failed.stop {
                    Some(StopReason::Permanent) => Kind::Permanent,
                    _ => failed.failure.kind,
                },
                ..failed.failure
            };
            match running.failed(driver, hedge, &racer, &told) {
                Raced::GoesOn { kept: keep } => {
                    if keep {
                        kept = Some(failed);
                    }
                }
                Raced::Over { failure, latest } => {
                    let mut last = match kept.take() {
                        Some(kept) if !latest => kept,
                        _ => failed,
                    };
                    last.failure.hint = failure.hint;
                    return Err(last);
                }
            }
        }
    }
}

/// What a failure means while another attempt runs.
fn stand_beside(failed: &mut Failed, request: &Outgoing) {
    if request
        .asked()
        .is_some_and(|(method, _)| is_gone(method, &failed.failure))
    {
        // The other may have deleted it.
        failed.failure.as_if_done = true;
    }
    if failed.stop == Some(StopReason::NotReplayable) {
        // Its body could not be opened again: nothing was sent, and the other may yet succeed.
        failed.failure.kind = Kind::NotProcessed;
    }
}
