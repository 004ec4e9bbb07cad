//! Downloads: attempts that include the response body and resume where the last one was cut off.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::{IF_MODIFIED_SINCE, IF_NONE_MATCH};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use relent::Attempt;
use relent::clock::TokioClock;
use relent_core::call::Progress;
use relent_core::{Cause, FailureKind, Scope, StopReason};
use relent_http::attempt::{CrossLayerCall, has_content};
use relent_http::grpc;
use reqwest::Url;

use crate::attempt::{Connection, Sender, TimeLimit};
use crate::attempt_failure::{AttemptError, AttemptFailure, FailedAttempt, LastResult};
use crate::body::{Body, OpenedBody};
use crate::client::Client;
use crate::complete::proof_of;
use crate::download_hook::DownloadHook;
use crate::min_rate::{MinRate, RateWindow};
use crate::range_request::{Partial, RangeState, RestResponse, has_own_range};
use crate::redirects::RedirectWatch;
use crate::request_template::Template;
use crate::response_head::{head_of, head_of_whole};
use crate::resumable::{Resumable, announces_ranges};
use crate::retry_options::{CallDriver, RetryOptions};
use crate::secret::adds_credentials;
use crate::sink::Sink;

/// The least time for [`Download::finish`].
const MIN_FINISH_TIME: Duration = Duration::from_secs(1);

/// A download, resumed across attempts; [`run`](Self::run) makes the attempts. For a download that starts at the
/// beginning and needs no hook, [`Client::download`] is shorter.
///
/// ```no_run
/// # async fn example(client: relent_reqwest::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use relent_reqwest::{Body, Download, Resumable};
///
/// // Stored by another process before it stopped, with the bytes that it received.
/// let stored = Resumable::new("https://example.com/large", "\"v1\"", Some(1 << 31))?;
/// let mut bytes = std::fs::read("large.part")?;
///
/// let request = http::Request::get("https://example.com/large").body(Body::empty())?;
/// let download = Download::new(&client, request).resume(stored, bytes.len() as u64);
/// let received = download.run(&mut bytes, &mut (), std::future::pending()).await;
/// println!("attempts: {}", received.summary.attempts);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Download<'c> {
    client: &'c Client,
    template: Template,
    options: Arc<RetryOptions>,
    partial: Option<Partial>,
    range_state: RangeState,
    /// Whether a body has begun in this download, so the sink has a part of it.
    body_started: bool,
    progress: Progress,
    /// Whether a call to the sink is running. If the attempt is dropped then, it is unknown how much was written.
    sink_call_running: bool,
    connection: Connection,
    until: TimeLimit,
    /// The end of the call, which also cuts off the sink.
    deadline: TimeLimit,
    rate: Option<MinRate>,
    cross_layer_call: CrossLayerCall<TokioClock>,
    /// The running attempt.
    begun: Attempt,
    /// The redirects of the running attempt.
    watch: RedirectWatch,
}

impl<'c> Download<'c> {
    /// Creates a download that starts at the beginning.
    #[must_use]
    pub fn new(client: &'c Client, request: Request<Body>) -> Self {
        let options = client.options_of(request.method(), || Some(request.uri().clone()));
        let options = options.for_request(request.headers());
        let template = Template::of(request, &client.0.http, client.0.body_cap);
        Self::with(client, template, options)
    }

    pub(crate) fn with(client: &'c Client, template: Template, options: Arc<RetryOptions>) -> Self {
        let rate = options.rate.or_else(|| options.default_min_rate(&template));
        Self {
            client,
            template,
            cross_layer_call: options.cross_layer_call(),
            rate,
            options,
            partial: None,
            range_state: RangeState::default(),
            body_started: false,
            progress: Progress::default(),
            sink_call_running: false,
            connection: Connection::Pooled,
            until: TimeLimit::after(None),
            deadline: TimeLimit::after(None),
            begun: Attempt {
                number: 1,
                remaining: None,
                limit: None,
            },
            watch: RedirectWatch::default(),
        }
    }

    /// Starts after the first `received` bytes, which the sink already has from an earlier call or another process.
    ///
    /// The first attempt requests the rest from the URL of the request. If the response provably continues the same
    /// representation, the download calls [`Sink::resume`]. It must come from the same final URL, with the same
    /// validator, and begin at the right position. Only the query of a signed URL may differ, if the total length
    /// is the same. Otherwise the download restarts and calls [`Sink::start`].
    ///
    /// If the server responds that nothing is missing (416 with that length and validator), the download is complete.
    /// The returned head is that of the whole, with status 200. A request that is not a GET, or that has its own
    /// `Range`, starts at the beginning.
    #[must_use]
    pub fn resume(self, of: Resumable, received: u64) -> Self {
        self.start_after(Partial::earlier(of, received))
    }

    /// Starts after the first `received` bytes, without a validator. You declare that the URL still leads to the
    /// same content.
    ///
    /// Includes [`assume_unchanged`](Self::assume_unchanged). After the first response, retries require the URL and
    /// the validator of that response, if it has one. `total` is the total length in bytes, if the response of the
    /// earlier call stated it. If a response states another length, the download restarts.
    #[must_use]
    pub fn resume_unchecked(self, received: u64, total: Option<u64>) -> Self {
        self.assume_unchanged()
            .start_after(Partial::stated(received, total))
    }

    /// Declares that the representation does not change during this download, nor since the call that it
    /// [resumes](Self::resume). If it does change, bytes of two representations can be mixed, as with `curl -C -`.
    ///
    /// The rest is then requested even after a response without a strong validator or with a `Content-Encoding`, and may
    /// come from another URL, such as that of a mirror. The response must be a 206 that begins at the right position,
    /// with the same total and the same `Content-Encoding`. A known strong validator must still be the same, unless two
    /// responses of one attempt differ, which shows that each server sends its own. After any other response the same
    /// attempt requests the whole. If the other response is a 416 without `Content-Range`, and the whole is as long as
    /// the received part, the download is complete.
    #[must_use]
    pub const fn assume_unchanged(mut self) -> Self {
        self.range_state.declared_unchanged = true;
        self
    }

    fn start_after(mut self, partial: Partial) -> Self {
        let may = self
            .template
            .method()
            .is_some_and(|method| *method == Method::GET)
            && !self.template.headers().is_some_and(has_own_range);
        if may {
            self.progress = Progress::new(partial.received);
            self.body_started = true;
            self.partial = Some(partial);
        }
        self
    }

    /// Cuts off an attempt if fewer than `bytes` of the body arrive `within` this time, because such a server would
    /// delay the caller without limit. The time of the sink does not count. The attempt fails with
    /// [`AttemptError::Slow`].
    ///
    /// ```
    /// # fn example(download: relent_reqwest::Download<'_>) -> relent_reqwest::Download<'_> {
    /// use std::time::{Duration, SystemTime};
    ///
    /// download.min_rate(64 << 10, Duration::from_secs(60)) // about a kilobyte per second
    /// # }
    /// ```
    #[must_use]
    pub const fn min_rate(mut self, bytes: u64, within: Duration) -> Self {
        self.rate = Some(MinRate { bytes, within });
        self
    }

    /// Declares whether the request may run twice, regardless of its method and headers; see
    /// [`RequestBuilder::repeatable`](crate::RequestBuilder::repeatable).
    #[must_use]
    pub fn repeatable(mut self, repeatable: bool) -> Self {
        Arc::make_mut(&mut self.options).repeatable = repeatable.into();
        self
    }

    /// A driver for the attempts.
    pub(crate) fn driver(&self) -> CallDriver {
        self.options.driver(self.template.url())
    }

    pub(crate) const fn template(&self) -> &Template {
        &self.template
    }

    pub(crate) fn options(&self) -> Arc<RetryOptions> {
        self.options.clone()
    }

    /// The redirects of the last attempt.
    pub(crate) const fn watch(&self) -> &RedirectWatch {
        &self.watch
    }

    /// Continues with another request, to which the last response has led.
    fn switch_request(&mut self, next: Request<Body>) {
        self.template = Template::of(next, &self.client.0.http, self.client.0.body_cap);
        self.partial = None;
        self.body_started = false;
        self.progress = Progress::default();
    }

    /// Makes one attempt, which ends when the whole body is in `sink`, or at its time limit. `opened` is the body of
    /// its first request.
    ///
    /// The future may be dropped and another attempt made. If it is dropped during a call to the sink, it is unknown
    /// how much was written, and the next attempt restarts.
    pub(crate) async fn attempt<S: Sink, H: DownloadHook>(
        &mut self,
        begun: Attempt,
        opened: OpenedBody,
        sink: &mut S,
        hook: &mut H,
    ) -> Result<Response<()>, FailedAttempt> {
        self.until = TimeLimit::after(begun.limit);
        self.deadline = TimeLimit::after(begun.remaining);
        self.begun = begun;
        self.watch = RedirectWatch::default();
        self.partial.iter_mut().for_each(Partial::begin_attempt);
        let attempt = begun.number.saturating_sub(1);
        let mut opened = Some(opened);
        let result = loop {
            match self.receive(opened.take(), sink).await {
                Ok(Some(head)) => match hook.follow(&head) {
                    Some(next) => self.switch_request(next),
                    None => break Ok(head),
                },
                Ok(None) => {}
                Err(failed) => break Err(failed),
            }
        };
        result.map_err(|failed| {
            let mut failed = *failed;
            self.connection = Connection::after(&failed.failure);
            if matches!(failed.last, LastResult::Error(_)) {
                self.options.judge_failed(attempt, &mut failed);
            }
            let (template, watch) = (&self.template, &self.watch);
            self.options
                .apply_redirects_to_failure(&mut failed, template, watch);
            if let Cause::Grpc(code) = failed.failure.cause {
                // The body is not returned, and HTTP status 200 alone would look like a success.
                failed.last = LastResult::Error(AttemptError::Grpc(code));
            }
            match &self.partial {
                Some(partial) => {
                    let (received, total) = (partial.received, partial.total());
                    failed.progressed = self.progress.reached(received, total);
                }
                None if !sink.can_start_over() => {
                    failed.cannot_retry = Some(StopReason::NotReplayable);
                }
                None => {}
            }
            failed
        })
    }

    /// Reads the body of the last refused response into `sink`, within the limit of its attempt, but for at least one
    /// second: the call may have been queued beyond that limit. Use it only if no attempt follows.
    ///
    /// # Errors
    /// If the body cannot be read to its end, or the sink fails.
    pub async fn finish<S: Sink>(
        &mut self,
        response: reqwest::Response,
        sink: &mut S,
    ) -> Result<Response<()>, AttemptError> {
        self.partial = None;
        self.until = self.until.at_least(MIN_FINISH_TIME);
        self.deadline = self.deadline.at_least(MIN_FINISH_TIME);
        let read = self.read_from_start(response, None, sink).await;
        read.map_err(|broken| broken.error)
    }

    /// Sends one request and receives its response. `None` if the same attempt must send another request: without
    /// `If-Range`, or for the whole.
    async fn receive<S: Sink>(
        &mut self,
        opened: Option<OpenedBody>,
        sink: &mut S,
    ) -> Result<Option<Response<()>>, Box<FailedAttempt>> {
        if self.sink_call_running {
            self.partial = None;
        }
        let (asked, outcome) = self.send(opened).await;
        let DownloadRequest { url, rest } = asked;
        let response = match outcome {
            Ok(response) => {
                let judged = self
                    .options
                    .judge(self.begun.number.saturating_sub(1), Ok(response));
                judged?
            }
            Err(failed) => {
                match self.handle_failed_rest(rest, &failed)? {
                    FailedRest::Complete(head) => {
                        self.complete(sink).await?;
                        return Ok(Some(head));
                    }
                    FailedRest::Again => return Ok(None),
                    FailedRest::Failure => {}
                }
                return match failed.last {
                    // An error goes through `when` at the end of the attempt.
                    LastResult::Error(_) => Err(failed),
                    LastResult::Refused(_) => {
                        let attempt = self.begun.number.saturating_sub(1);
                        let judged = self.options.judge(attempt, Err(failed));
                        judged.map(|response| Some(head_of(&response)))
                    }
                };
            }
        };
        if self.is_unconditional_304(response.status()) {
            let what = "the server answered 304 to a request without a condition";
            return Err(AttemptFailure::malformed(what).into());
        }
        let Some(partial) = self.partial.as_mut().filter(|_| rest) else {
            let received = self.range_state.perhaps_complete.take();
            let head = head_of(&response);
            if received.is_some_and(|received| received.is_proven_by(&head)) {
                self.complete(sink).await?;
                return Ok(Some(head));
            }
            return Ok(Some(self.read_from_start(response, url, sink).await?));
        };
        let (status, head) = (response.status(), head_of(&response));
        let uses_final_url = partial.uses_final_url(&self.range_state);
        // Another request is worth its cost if the server announces ranges, or if the whole is of no use.
        let is_whole = status == StatusCode::OK;
        let reads_whole = is_whole && !self.range_state.declared_unchanged && sink.can_start_over();
        match partial.answered(&mut self.range_state, response.url(), &head) {
            RestResponse::Again if reads_whole && !announces_ranges(head.headers()) => {
                Ok(Some(self.read_from_start(response, url, sink).await?))
            }
            RestResponse::Rest(end) => {
                partial.continue_from(url);
                self.read_rest(response, &head, end, sink).await?;
                Ok(Some(head_of_whole(head, end)))
            }
            RestResponse::Again => Ok(None),
            RestResponse::Other | RestResponse::Complete
                if status == StatusCode::PARTIAL_CONTENT =>
            {
                let what =
                    "the server sent another range or representation when asked for the rest";
                self.discard_part(what)?;
                Ok(None)
            }
            RestResponse::Other | RestResponse::Complete => {
                // Even a 200 can be the page that replaces an expired URL. The first URL shows what is there now.
                if uses_final_url {
                    self.range_state.first_url = true;
                    return Err(AttemptFailure::unexpected_response(describe_moved(status)).into());
                }
                Ok(Some(self.read_from_start(response, url, sink).await?))
            }
        }
    }

    /// Drops the received part, because the response was not its rest. If the caller declares it unchanged, the same
    /// attempt requests the whole, so that the next call does not get the same response.
    fn discard_part(&mut self, what: impl Into<String>) -> Result<(), Box<AttemptFailure>> {
        self.partial = None;
        match self.range_state.declared_unchanged {
            true => Ok(()),
            false => Err(AttemptFailure::unexpected_response(what)),
        }
    }

    /// Handles a failed request for the rest.
    fn handle_failed_rest(
        &mut self,
        rest: bool,
        failed: &FailedAttempt,
    ) -> Result<FailedRest, Box<AttemptFailure>> {
        let Some(partial) = self.partial.as_mut().filter(|_| rest) else {
            return Ok(FailedRest::Failure);
        };
        let uses_final_url = partial.uses_final_url(&self.range_state);
        let LastResult::Refused(response) = &failed.last else {
            // The first URL may lead to a server that answers.
            self.range_state.first_url |= uses_final_url;
            return match &failed.last {
                LastResult::Error(AttemptError::Redirect(refused)) if uses_final_url => {
                    Err(AttemptFailure::unexpected_response(refused.to_string()))
                }
                _ => Ok(FailedRest::Failure),
            };
        };
        let (status, head) = (response.status(), head_of(response));
        match status {
            StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::PRECONDITION_FAILED => {
                let answer = partial.answered(&mut self.range_state, response.url(), &head);
                if answer == RestResponse::Complete {
                    return Ok(FailedRest::Complete(head_of_whole(head, partial.received)));
                }
                let received = partial.perhaps_complete(&self.range_state, &head);
                self.range_state.perhaps_complete = received;
                let status = status.as_u16();
                self.discard_part(format!(
                    "the server answered {status} when asked for the rest"
                ))?;
                Ok(FailedRest::Again)
            }
            _ if failed.failure.kind == FailureKind::Permanent && uses_final_url => {
                self.range_state.first_url = true;
                Err(AttemptFailure::unexpected_response(describe_moved(status)))
            }
            // The received part is still valid.
            _ => Ok(FailedRest::Failure),
        }
    }

    /// Requests the whole, or the rest if a part has arrived.
    async fn send(
        &mut self,
        opened: Option<OpenedBody>,
    ) -> (
        DownloadRequest,
        Result<reqwest::Response, Box<FailedAttempt>>,
    ) {
        let template = &self.template;
        let partial = self.partial.as_ref().filter(|partial| partial.received > 0);
        let mut elsewhere =
            partial.is_some_and(|partial| partial.uses_another_origin(&self.range_state));
        // reqwest would add its default headers at the other origin, but not after a redirect.
        if elsewhere && adds_credentials(self.client.http(self.connection)) {
            (self.range_state.first_url, elsewhere) = (true, false);
        }
        let mut sender = Sender {
            client: self.client,
            options: &self.options,
            template,
            cross_layer_call: &mut self.cross_layer_call,
            connection: self.connection,
            elsewhere,
        };
        let mut built = sender.request(self.begun.number, None);
        let mut asked = DownloadRequest::default();
        if let Ok(request) = &mut built {
            asked.url = Some(request.url().clone());
            asked.rest = partial.is_some_and(|partial| partial.ask(&self.range_state, request));
            sender.elsewhere &= asked.rest;
        }
        let opened = self.until.timeout(template.body().opened(opened)).await;
        let opened = opened.and_then(|opened| opened.map_err(AttemptFailure::unopened));
        let (built, opened) = match opened {
            Ok(opened) => (built, opened),
            Err(failure) => (Err(failure), OpenedBody::default()),
        };
        let mut attempt = pin!(sender.start(self.begun, built, template.body(), opened));
        let outcome = self.until.timeout(attempt.as_mut()).await.flatten();
        let (span, watch) = attempt.parts();
        let classified = self.options.classify(template, span, outcome);
        self.watch = std::mem::take(watch);
        (asked, classified)
    }

    /// Reads a response from its beginning. `asked` is the URL of its request.
    async fn read_from_start<S: Sink>(
        &mut self,
        response: reqwest::Response,
        asked: Option<Url>,
        sink: &mut S,
    ) -> Result<Response<()>, Box<AttemptFailure>> {
        let head = head_of(&response);
        let method = self.template.method().unwrap_or(&Method::GET);
        let own_range = self.template.headers().is_some_and(has_own_range);
        self.partial = None;
        if !sink.can_start_over() {
            let what = "this response starts from the beginning, but the reader already has a part of another one";
            let mut broken = AttemptFailure::unexpected_response(what);
            broken.stop = Some(StopReason::NotReplayable);
            return Err(broken);
        }
        match head.status() {
            StatusCode::PARTIAL_CONTENT if !own_range => {
                let what = "the server sent a part (206) when asked for the whole";
                return Err(AttemptFailure::malformed(what));
            }
            status @ (StatusCode::SWITCHING_PROTOCOLS | StatusCode::CONTINUE) => {
                let status = status.as_u16();
                let what = format!("the server answered {status}, which is no complete response");
                let error = AttemptError::UnexpectedResponse(what);
                return Err(AttemptFailure::local(StopReason::Permanent, error));
            }
            _ => {}
        }
        if !has_content(method, head.status()) {
            if self.body_started {
                // The part that the sink already has would look like the whole.
                let status = head.status().as_u16();
                let what = format!(
                    "the server answered {status}, without a body, after a part of the body had arrived"
                );
                return Err(AttemptFailure::unexpected_response(what));
            }
            self.sink_call_running = true;
            until_deadline(self.deadline, sink.no_content(&head)).await?;
            self.sink_call_running = false;
            return Ok(head);
        }
        let partial = match own_range {
            true => None,
            false => Partial::begun(method, response.url(), &head, asked, &self.range_state),
        };
        let resumable = partial.as_ref().and_then(Partial::resumable);
        self.sink_call_running = true;
        self.body_started = true;
        until_deadline(self.deadline, sink.start(&head, resumable)).await?;
        self.sink_call_running = false;
        self.partial = partial;
        self.read(response, u64::MAX, sink).await?;
        self.complete(sink).await?;
        Ok(head)
    }

    /// Whether this is a 304 to a request without a condition. A 304 means that the copy of the client is current,
    /// and only a client that sent a condition has a copy (RFC 9110 §15.4.5).
    fn is_unconditional_304(&self, status: StatusCode) -> bool {
        let method = self.template.method();
        let conditional = |headers: &HeaderMap| {
            headers.contains_key(IF_NONE_MATCH) || headers.contains_key(IF_MODIFIED_SINCE)
        };
        status == StatusCode::NOT_MODIFIED
            && method != Some(&Method::HEAD)
            && !self.template.headers().is_some_and(conditional)
    }

    /// Reads a response that continues after `partial`, up to `end`.
    async fn read_rest<S: Sink>(
        &mut self,
        response: reqwest::Response,
        head: &Response<()>,
        end: u64,
        sink: &mut S,
    ) -> Result<(), Box<AttemptFailure>> {
        if let Some(partial) = &self.partial {
            self.sink_call_running = true;
            let resumed = sink.resume(head, partial.received, partial.resumable());
            until_deadline(self.deadline, resumed).await?;
            self.sink_call_running = false;
        }
        self.read(response, end, sink).await?;
        if !self.partial.as_ref().is_none_or(Partial::is_complete) {
            let what = "the server sent only a part of the rest";
            return Err(AttemptFailure::unexpected_response(what));
        }
        self.complete(sink).await
    }

    /// Reads a body to its end. A piece beyond `end` is not written: the stated range was wrong.
    async fn read<S: Sink>(
        &mut self,
        response: reqwest::Response,
        end: u64,
        sink: &mut S,
    ) -> Result<(), Box<AttemptFailure>> {
        let method = self.template.method().unwrap_or(&Method::GET);
        let mut proof = proof_of(Some(method), &response);
        let is_grpc = grpc::is_grpc(response.headers());
        let mut body = reqwest::Body::from(response);
        let mut window = self.rate.map(RateWindow::new);
        loop {
            // The sink may have taken the time that was left, and the server is not asked for more.
            let by_sink = self.until.is_over();
            let frame = match &mut window {
                None => self.until.timeout(body.frame()).await,
                Some(window) => {
                    let limited = window.limit_frame(body.frame());
                    self.until.timeout(limited).await.flatten()
                }
            };
            let frame = match by_sink {
                true => frame.map_err(late_by_sink)?,
                false => frame?,
            };
            let frame = match &mut proof {
                Some(proof) => proof.check(frame, || body.is_end_stream()),
                None => frame.map(|read| read.map_err(Into::into)),
            };
            let Some(frame) = frame.transpose().map_err(AttemptFailure::reading)? else {
                return Ok(());
            };
            let bytes = match frame.into_data() {
                Ok(bytes) => bytes,
                Err(frame) if is_grpc => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    let hints = &self.options.hints;
                    match grpc::classify_trailers(&trailers, SystemTime::now(), hints) {
                        Some(failure) => return Err(AttemptFailure::grpc(failure)),
                        None => continue,
                    }
                }
                Err(_) => continue,
            };
            let length = bytes.len() as u64;
            window.iter_mut().for_each(|window| window.data(length));
            if let Some(partial) = &mut self.partial
                && partial.received.saturating_add(length) > end
            {
                self.partial = None;
                return Err(AttemptFailure::unexpected_response(
                    "the rest is longer than its range",
                ));
            }
            self.sink_call_running = true;
            until_deadline(self.deadline, sink.write(bytes)).await?;
            self.sink_call_running = false;
            if let Some(partial) = &mut self.partial {
                partial.received += length;
            }
        }
    }

    /// Completes the sink.
    async fn complete<S: Sink>(&mut self, sink: &mut S) -> Result<(), Box<AttemptFailure>> {
        self.sink_call_running = true;
        until_deadline(self.deadline, sink.complete()).await?;
        self.sink_call_running = false;
        Ok(())
    }
}

/// A request of a download.
#[derive(Debug, Default)]
struct DownloadRequest {
    /// The URL before redirects, even if the request goes directly to a final URL.
    url: Option<Url>,
    /// Whether only the rest was requested.
    rest: bool,
}

/// Result of a failed request for the rest.
enum FailedRest {
    /// Nothing is missing.
    Complete(Response<()>),
    /// Request again in the same attempt, for the whole.
    Again,
    /// An ordinary failure.
    Failure,
}

/// The reason for requesting the first URL next.
fn describe_moved(status: StatusCode) -> String {
    let status = status.as_u16();
    format!("the URL that the redirect had led to answered {status} when asked for the rest")
}

/// Waits for a call to the sink until the deadline of the call. No attempt follows after it, so it does not matter
/// how much was written.
async fn until_deadline(
    deadline: TimeLimit,
    done: impl Future<Output = io::Result<()>>,
) -> Result<(), Box<AttemptFailure>> {
    let done = deadline.timeout(done).await.map_err(late_by_sink)?;
    done.map_err(|error| AttemptFailure::local(StopReason::Permanent, AttemptError::Sink(error)))
}

/// The failure of an attempt that the sink has made late: the server has responded.
fn late_by_sink(mut late: Box<AttemptFailure>) -> Box<AttemptFailure> {
    late.failure.scope = Scope::Request;
    late
}
