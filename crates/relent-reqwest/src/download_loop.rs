//! The retry loop of a download.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use http::{Request, Response};
use relent::driver::CallPermit;
use relent::{GaveUp, Summary};
use relent_core::{Cause, Decision, Failure, Stop, StopReason};

use crate::attempt::Connection;
use crate::attempt_failure::{AttemptError, FailedAttempt, LastResult};
use crate::body::{Body, OpenedBody};
use crate::call::{AttemptLoop, CallFailure};
use crate::client::Client;
use crate::download::Download;
use crate::download_hook::{DownloadHook, NextDelay};
use crate::request_template::Template;
use crate::retry_options::{CallDriver, RetryOptions};
use crate::sink::Sink;

/// Result of a download that was [run](Download::run).
#[derive(Debug)]
#[non_exhaustive]
pub struct DownloadResult<'c> {
    /// The head of the response whose body is in the sink, or the result of the last attempt. That is `None` if no
    /// attempt was made or the caller cancelled. Read the body of a refused response with [`Download::finish`].
    pub result: Result<Response<()>, Option<LastResult>>,
    /// Summary of the attempts.
    pub summary: Summary,
    /// The download after the last attempt.
    pub download: Download<'c>,
}

impl<'c> Download<'c> {
    /// Makes attempts until the whole body is in `sink`, the policy stops, or `cancelled` is ready.
    ///
    /// `cancelled` returns the failure to report for the attempt that it cuts off. If you need neither hook nor
    /// cancellation, use [`Client::download`].
    ///
    /// ```no_run
    /// # async fn example(client: relent_reqwest::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use relent::Failure;
    /// use relent_reqwest::{Body, Download, DownloadHook, FailedAttempt, NextDelay};
    ///
    /// struct Log;
    ///
    /// impl DownloadHook for Log {
    ///     fn after_failure(&mut self, attempt: u32, failed: &FailedAttempt, next: Option<NextDelay>) {
    ///         let delay = next.map(|next| next.delay);
    ///         eprintln!("attempt {attempt}: {}, next in {delay:?}", failed.failure.cause);
    ///     }
    /// }
    ///
    /// let request = http::Request::get("https://example.com/large").body(Body::empty())?;
    /// let interrupted = async {
    ///     tokio::time::sleep(Duration::from_secs(3600)).await;
    ///     Failure::ambiguous()
    /// };
    /// let mut large = Vec::new();
    /// let download = Download::new(&client, request);
    /// let received = download.run(&mut large, &mut Log, interrupted).await;
    /// println!("attempts: {}", received.summary.attempts);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<S: Sink, H: DownloadHook>(
        self,
        sink: &mut S,
        hook: &mut H,
        cancelled: impl Future<Output = Failure>,
    ) -> DownloadResult<'c> {
        let mut receiving = DownloadLoop {
            driver: self.driver(),
            download: self,
            sink,
            hook,
            attempting: false,
            is_delay_shortened: false,
        };
        let ended = {
            let mut cancelled = pin!(cancelled);
            let mut attempts = pin!(receiving.run_attempts());
            poll_fn(|context| {
                if let Poll::Ready(failure) = cancelled.as_mut().poll(context) {
                    return Poll::Ready(Err(failure));
                }
                attempts.as_mut().poll(context).map(Ok)
            })
            .await
        };
        let DownloadLoop {
            download,
            mut driver,
            attempting,
            ..
        } = receiving;
        let (result, stop) = match ended {
            Ok(Ok(head)) => (Ok(head), None),
            Ok(Err(CallFailure { last, stop })) => (Err(last), Some(stop)),
            Err(failure) if attempting => {
                let stop = driver.on_stop(&failure, StopReason::Cancelled);
                (Err(None), Some(stop))
            }
            Err(_) => (Err(None), Some(driver.on_cancel())),
        };
        DownloadResult {
            result,
            summary: driver.summary(stop),
            download,
        }
    }
}

impl Client {
    /// Makes attempts until the whole body is in `sink`, or until the policy stops.
    ///
    /// A body that is cut short is a failed attempt. If its response was a plain 200 to a GET with a strong validator
    /// ([`Resumable`](crate::Resumable)), the next attempt requests the rest with `Range` and `If-Range`. It uses the
    /// final URL after redirects, and the first URL once the final one refuses: a signed URL may have expired. If a
    /// server ignores `Range` beside `If-Range`, the request is sent without `If-Range`.
    ///
    /// In all other cases, and if the response is not provably the rest of the same representation from the same
    /// URL, the download restarts. Bytes of two representations are never mixed. Only the query of the URL may
    /// differ, if validator and total length are the same. If you know that the representation does not change, use
    /// [`Download::assume_unchanged`].
    ///
    /// The policy does not give up a download that advances. After an attempt that resumes and makes enough
    /// [`Progress`](relent_core::call::Progress), the count of retries and the backoff start again. The deadline and
    /// `max_elapsed` of the policy still apply.
    ///
    /// The end of a body is distinguishable from a cut if it has a `Content-Length` or chunks, and in HTTP/2. An HTTP/1
    /// body with neither ends when the connection closes (RFC 9112 §8), and counts as whole. So does an HTTP/2 body
    /// without `Content-Length` if reqwest is built with a feature that decodes bodies, which hides the end of the
    /// stream.
    ///
    /// As with [`send`](Self::send), a last response with an error status is `Ok`, and its body is in the sink. A
    /// success without a representation, such as a 304, is `Ok` and does not change the sink ([`Sink::no_content`]).
    /// A 304 to a request without a condition is a failure, and so is a 204 after a body that was cut short. A 206 is
    /// `Ok` only if the request has its own `Range`; a body received in parts is returned as the 200 of the whole.
    /// A gRPC call that failed is an error.
    ///
    /// # Errors
    /// If the last attempt had no complete response.
    ///
    /// ```no_run
    /// # async fn example(client: relent_reqwest::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use relent_reqwest::Body;
    ///
    /// let request = http::Request::get("https://example.com/large").body(Body::empty())?;
    /// let mut large = Vec::new();
    /// let (head, summary) = client.download(request, &mut large).await?;
    /// println!("{}: {} bytes, attempts: {}", head.status(), large.len(), summary.attempts);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn download<S: Sink>(
        &self,
        request: Request<Body>,
        sink: &mut S,
    ) -> Result<(Response<()>, Summary), GaveUp<AttemptError>> {
        let options = self.options_of(request.method(), || Some(request.uri().clone()));
        let options = options.for_request(request.headers());
        let template = Template::of(request, &self.0.http, self.0.body_cap);
        self.receive(template, options, sink).await
    }

    pub(crate) async fn receive<S: Sink>(
        &self,
        template: Template,
        options: Arc<RetryOptions>,
        sink: &mut S,
    ) -> Result<(Response<()>, Summary), GaveUp<AttemptError>> {
        let download = Download::with(self, template, options);
        let DownloadResult {
            result,
            summary,
            mut download,
        } = download.run(sink, &mut (), pending()).await;
        let error = match result {
            Ok(head) => return Ok((head, summary)),
            Err(Some(LastResult::Refused(response))) => match download.finish(response, sink).await
            {
                Ok(head) => return Ok((head, summary)),
                Err(error) => Some(error),
            },
            Err(Some(LastResult::Error(error))) => Some(error),
            Err(None) => None,
        };
        Err(GaveUp::new(error, summary))
    }
}

/// A download with its driver, sink and hook.
struct DownloadLoop<'c, 'r, S, H> {
    download: Download<'c>,
    driver: CallDriver,
    sink: &'r mut S,
    hook: &'r mut H,
    /// Whether an attempt is running.
    attempting: bool,
    /// Whether a delay was shortened for a final attempt, since the last progress.
    is_delay_shortened: bool,
}

impl<S: Sink, H: DownloadHook> AttemptLoop for DownloadLoop<'_, '_, S, H> {
    type Success = Response<()>;

    fn options(&self) -> Arc<RetryOptions> {
        self.download.options()
    }

    fn driver(&mut self) -> &mut CallDriver {
        &mut self.driver
    }

    fn template(&self) -> &Template {
        self.download.template()
    }

    fn on_decision(&mut self, failed: &FailedAttempt, decision: &Decision) {
        // Once, and once more after progress.
        let was_shortened = self.is_delay_shortened && !failed.progressed;
        self.is_delay_shortened = self.driver.is_delay_shortened();
        let next = match decision {
            Decision::Retry { after } => Some(NextDelay {
                delay: *after,
                is_shortened: self.is_delay_shortened && !was_shortened,
            }),
            Decision::Stop(_) => None,
        };
        self.hook
            .after_failure(self.driver.attempts(), failed, next);
    }

    async fn entered(&mut self) -> Result<CallPermit, Stop> {
        let (driver, hook) = (&mut self.driver, &mut self.hook);
        driver.entered_notifying(|queued| hook.queued(queued)).await
    }

    /// The download itself chooses the connection.
    async fn attempt(
        &mut self,
        _: Connection,
        permit: CallPermit,
        body: OpenedBody,
    ) -> Result<Response<()>, Box<FailedAttempt>> {
        let begun = self.driver.on_attempt(permit);
        self.hook.before_attempt(begun);
        self.attempting = true;
        let attempted = self
            .download
            .attempt(begun, body, self.sink, self.hook)
            .await;
        self.attempting = false;
        let options = self.download.options();
        let (driver, watch) = (&mut self.driver, self.download.watch());
        match attempted {
            Ok(head) => {
                let followed = watch.followed();
                // A redirect that was not followed is a response of the original destination.
                if let Some(followed) = followed.filter(|_| !head.status().is_redirection()) {
                    options.report_to_final_destination(
                        driver,
                        followed.url(),
                        Some(followed.at),
                        None,
                    );
                }
                driver.on_success_with(Cause::Status(head.status().as_u16()));
                Ok(head)
            }
            Err(mut failed) => {
                options.report_redirected_failure(driver, &mut failed, watch);
                Err(Box::new(failed))
            }
        }
    }
}
