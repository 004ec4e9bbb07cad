//! Attempts of a hedged request.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use relent::driver::CallPermit;
use relent::race::{RaceAttempt, RaceEvent, Running};
use relent_core::call::RaceOutcome;
use relent_core::destination::Hedge;
use relent_core::{Failure, FailureKind, StopReason};
use relent_http::attempt::apply_concurrent_attempts;

use crate::attempt::{Connection, RunningAttempt, SendFuture, Sender};
use crate::attempt_failure::{AttemptFailure, AttemptResult, FailedAttempt};
use crate::body::{Body, OpenedBody};
use crate::call::ClientCall;
use crate::redirects::RedirectWatch;
use crate::request_template::Template;
use crate::response::Response;
use crate::retry_options::{RetryOptions, cause};

pin_project! {
    /// One of the attempts, classified when it ends.
    struct Contender<'c> {
        #[pin]
        attempt: RunningAttempt<SendFuture>,
        options: &'c RetryOptions,
        template: &'c Template,
        body: Body,
    }
}

/// The body of a hedge that is being opened.
type OpeningBody = Pin<Box<dyn Future<Output = (Body, io::Result<OpenedBody>)> + Send>>;

/// The result of an attempt, its redirects, and its body.
type ContenderResult = (
    Result<reqwest::Response, Box<FailedAttempt>>,
    RedirectWatch,
    Body,
);

impl Contender<'_> {
    fn finish(self: Pin<&mut Self>, outcome: AttemptResult) -> ContenderResult {
        let this = self.project();
        let (span, watch) = this.attempt.parts();
        let classified = this.options.classify(this.template, span, outcome);
        (classified, std::mem::take(watch), std::mem::take(this.body))
    }

    /// Ends the attempt at its time limit.
    fn cut_off(self: Pin<&mut Self>, racer: &RaceAttempt) -> ContenderResult {
        let given = racer.attempt().limit.unwrap_or_default();
        self.finish(Err(AttemptFailure::timeout(given)))
    }
}

impl Future for Contender<'_> {
    type Output = ContenderResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ContenderResult> {
        let outcome = ready!(self.as_mut().project().attempt.poll(context));
        Poll::Ready(self.finish(outcome))
    }
}

impl ClientCall {
    /// Makes an attempt that hedges join if it is slow, until one succeeds or all have failed.
    pub(crate) async fn race(
        &mut self,
        hedge: &Hedge,
        connection: Connection,
        permit: CallPermit,
        body: OpenedBody,
    ) -> Result<Response, Box<FailedAttempt>> {
        let Self {
            client,
            options,
            template,
            driver,
            cross_layer_call,
            first,
        } = self;
        let (options, template) = (&**options, &*template);
        let mut sender = Sender {
            client,
            options,
            template,
            cross_layer_call,
            connection,
            elsewhere: false,
        };
        let mut start = |racer: &RaceAttempt, body: Body, opened: OpenedBody| {
            let attempt = racer.attempt();
            let built = sender.request(attempt.number, first.take());
            Contender {
                attempt: sender.start(attempt, built, &body, opened),
                options,
                template,
                body,
            }
        };
        let mut running = Running::new();
        running.begin(driver, hedge, permit, |racer| {
            start(racer, template.body().clone(), body)
        });
        // The body of the hedge that is due. It takes time to open a file.
        let mut opening: Option<OpeningBody> = None;
        // The failure that decides so far; a clearer one replaces it.
        let mut kept: Option<Box<FailedAttempt>> = None;
        loop {
            let next = poll_fn(|context| {
                if let Some(opening) = &mut opening
                    && let Poll::Ready(opened) = opening.as_mut().poll(context)
                {
                    return Poll::Ready(Err(opened));
                }
                running.poll_next(driver, context).map(Ok)
            });
            let (racer, (outcome, watch, body)) = match next.await {
                Err((body, opened)) => {
                    opening = None;
                    match opened {
                        Ok(opened) => running.join(driver, |racer| start(racer, body, opened)),
                        // Nothing is sent, so this does not count as an attempt. The running one may succeed.
                        Err(_) => running.cancel_due_hedge(driver),
                    }
                    continue;
                }
                Ok(RaceEvent::Due) => {
                    let body = template.body().for_concurrent_attempt();
                    opening = Some(Box::pin(async {
                        let opened = body.open().await;
                        (body, opened)
                    }));
                    continue;
                }
                Ok(RaceEvent::Ended(racer, completed)) => (racer, completed),
                Ok(RaceEvent::CutOff(racer, mut contender)) => {
                    let completed = contender.as_mut().cut_off(&racer);
                    (racer, completed)
                }
            };
            let before = racer.attempt().number.saturating_sub(1);
            let mut failed = match options.judge(before, outcome) {
                Ok(response) => {
                    release(kept);
                    options.report_redirected_success(driver, response.url(), &watch);
                    running.won(driver, hedge, &racer, Some(cause(response.status())));
                    return Ok(options.finish_response(driver, template, response));
                }
                Err(failed) => failed,
            };
            options.apply_redirects(driver, &mut failed, template, &watch);
            failed.body = Some(body);
            if let Some(method) = template.method()
                && !running.is_empty()
            {
                failed.failure = apply_concurrent_attempts(failed.failure, method);
            }
            let race_failure = Failure {
                // The caller's `when` has ruled out a retry.
                kind: match failed.stop {
                    Some(StopReason::Permanent) => FailureKind::Permanent,
                    _ => failed.failure.kind,
                },
                ..failed.failure
            };
            match running.failed(driver, hedge, &racer, &race_failure) {
                RaceOutcome::GoesOn { kept: keep } => {
                    let not_kept = match keep {
                        true => kept.replace(failed),
                        false => Some(failed),
                    };
                    release(not_kept);
                }
                RaceOutcome::Over { failure, latest } => {
                    let (mut last, other) = match kept.take() {
                        Some(kept) if !latest => (kept, Some(failed)),
                        kept => (failed, kept),
                    };
                    release(other);
                    last.failure.hint = failure.hint;
                    return Err(last);
                }
            }
        }
    }
}

/// Releases the request body of a failure that does not decide: its connection may still wait for more of it.
fn release(failed: Option<Box<FailedAttempt>>) {
    if let Some(body) = failed.and_then(|failed| failed.body) {
        body.release();
    }
}
