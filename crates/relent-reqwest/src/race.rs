//! Attempts of a hedged request.

use std::future::{Future, poll_fn, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use relent::driver::Leave;
use relent::race::{RaceEvent, Racer, Running};
use relent_core::{Failure, Hedge, Kind, Raced, StopReason};
use relent_http::attempt::in_view_of_others;

use crate::attempt::{Attempt, Connection};
use crate::body::{Body, Opened};
use crate::call::Call;
use crate::call_options::{CallOptions, cause};
use crate::failed::{Broken, Failed, Outcome};
use crate::redirects::Watch;
use crate::request_template::Template;
use crate::response::Response;

pin_project! {
    /// One of the attempts, classified when it ends.
    struct Contender<'c, F> {
        #[pin]
        attempt: Attempt<F>,
        options: &'c CallOptions,
        template: &'c Template,
        body: Body,
    }
}

/// The body of a hedge that is being opened.
type Opening = Pin<Box<dyn Future<Output = (Body, io::Result<Opened>)> + Send>>;

/// The result of an attempt, its redirects, and its body.
type Came = (Result<reqwest::Response, Box<Failed>>, Watch, Body);

impl<F> Contender<'_, F> {
    fn came_to(self: Pin<&mut Self>, outcome: Outcome) -> Came {
        let this = self.project();
        let (span, watch) = this.attempt.parts();
        let classified = this.options.classify(this.template, span, outcome);
        (classified, std::mem::take(watch), std::mem::take(this.body))
    }

    /// Ends the attempt at its time limit.
    fn cut_off(self: Pin<&mut Self>, racer: &Racer) -> Came {
        let given = racer.attempt().limit.unwrap_or_default();
        self.came_to(Err(Broken::timeout(given)))
    }
}

impl<F> Future for Contender<'_, F>
where
    F: Future<Output = Outcome>,
{
    type Output = Came;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Came> {
        let outcome = ready!(self.as_mut().project().attempt.poll(context));
        Poll::Ready(self.came_to(outcome))
    }
}

impl Call {
    /// Makes an attempt that hedges join if it is slow, until one succeeds or all have failed.
    pub(crate) async fn race(
        &mut self,
        hedge: &Hedge,
        connection: Connection,
        leave: Leave,
        body: Opened,
    ) -> Result<Response, Box<Failed>> {
        let Self {
            client,
            options,
            template,
            driver,
            telling,
        } = self;
        let (client, options, template) = (&*client, &**options, &*template);
        let mut start = |racer: &Racer, body: Body, opened: Opened| {
            let begun = racer.attempt();
            let tell = |request: &mut reqwest::Request| {
                options.route(begun.number, request);
                telling.tell(&begun, request.headers_mut());
            };
            let built = client.build(template, connection, tell);
            let waiting = options.waiting(template, &body, begun.limit);
            let opened = ready(Ok(opened));
            Contender {
                attempt: client.start(connection, begun, built, options, waiting, opened),
                options,
                template,
                body,
            }
        };
        let mut running = Running::new();
        running.begin(driver, hedge, leave, |racer| {
            start(racer, template.body().clone(), body)
        });
        // The body of the hedge that is due. It takes time to open a file.
        let mut opening: Option<Opening> = None;
        // The failure that decides so far; a clearer one replaces it.
        let mut kept: Option<Box<Failed>> = None;
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
                        Err(_) => running.call_off(driver),
                    }
                    continue;
                }
                Ok(RaceEvent::Due) => {
                    let body = template.body().beside();
                    opening = Some(Box::pin(async {
                        let opened = body.open().await;
                        (body, opened)
                    }));
                    continue;
                }
                Ok(RaceEvent::Ended(racer, came)) => (racer, came),
                Ok(RaceEvent::CutOff(racer, mut contender)) => {
                    let came = contender.as_mut().cut_off(&racer);
                    (racer, came)
                }
            };
            let before = racer.attempt().number.saturating_sub(1);
            let mut failed = match options.judge(before, outcome) {
                Ok(response) => {
                    let_go(kept);
                    options.tell_answered(driver, response.url(), &watch);
                    running.won(driver, hedge, &racer, Some(cause(response.status())));
                    return Ok(options.answer(driver, template, response));
                }
                Err(failed) => failed,
            };
            options.heed_redirects(driver, &mut failed, template, &watch);
            failed.body = Some(body);
            if let Some(method) = template.method()
                && !running.is_empty()
            {
                failed.failure = in_view_of_others(failed.failure, method);
            }
            let told = Failure {
                // The caller's `when` has ruled out a retry.
                kind: match failed.stop {
                    Some(StopReason::Permanent) => Kind::Permanent,
                    _ => failed.failure.kind,
                },
                ..failed.failure
            };
            match running.failed(driver, hedge, &racer, &told) {
                Raced::GoesOn { kept: keep } => {
                    let not_kept = match keep {
                        true => kept.replace(failed),
                        false => Some(failed),
                    };
                    let_go(not_kept);
                }
                Raced::Over { failure, latest } => {
                    let (mut last, other) = match kept.take() {
                        Some(kept) if !latest => (kept, Some(failed)),
                        kept => (failed, kept),
                    };
                    let_go(other);
                    last.failure.hint = failure.hint;
                    return Err(last);
                }
            }
        }
    }
}

/// Releases the request body of a failure that does not decide: its connection may still wait for more of it.
fn let_go(failed: Option<Box<Failed>>) {
    if let Some(body) = failed.and_then(|failed| failed.body) {
        body.let_go();
    }
}
