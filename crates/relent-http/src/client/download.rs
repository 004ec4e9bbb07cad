//! Attempts that include reading the body, which resume where the last one was cut off.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use relent::{Attempt, GaveUp, Summary, TokioClock};
use relent_core::{Cause, Decision, StopReason};
use reqwest::ResponseBuilderExt;

use super::Client;
use super::attempt::{AttemptError, Broken, Failed, Last, Until};
use super::body::Body;
use super::hops::Watch;
use super::manner::Manner;
use super::outgoing::Outgoing;
use super::resume::Representation;
use super::sending::{Connection, wait};
use crate::cross_layer::Telling;
use crate::repeatable::RequestFacts;

/// Where the body of a response goes.
///
/// It hears [`start`](Self::start), then [`write`](Self::write) for each piece in order, and
/// `start` again if the response begins anew: what was written before is void then. A response that
/// is resumed goes on with `write`. A write is never cut off by an attempt timeout.
pub trait Sink {
    /// A response begins. If it is cut short and `resumable`, the rest will be asked for, and only
    /// when that fails begins it anew.
    ///
    /// # Errors
    /// Ends the download with [`AttemptError::Sink`].
    fn start(&mut self, head: &Response<()>, resumable: bool) -> io::Result<()>;

    /// More of the body.
    ///
    /// # Errors
    /// Ends the download with [`AttemptError::Sink`].
    fn write(&mut self, bytes: Bytes) -> impl Future<Output = io::Result<()>> + Send;

    /// Whether what was written can be made void. Bytes that have left cannot be called back; a
    /// download that would have to begin anew ends with [`StopReason::NotReplayable`] then.
    fn can_start_over(&self) -> bool {
        true
    }
}

impl Sink for Vec<u8> {
    fn start(&mut self, _: &Response<()>, _: bool) -> io::Result<()> {
        self.clear();
        Ok(())
    }

    async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        self.extend_from_slice(&bytes);
        Ok(())
    }
}

/// One download across its attempts; for a loop of your own around a
/// [`Driver`](relent::Driver). [`Client::download`] is that loop.
#[derive(Debug)]
pub struct Download<'c> {
    client: &'c Client,
    request: Outgoing,
    manner: Arc<Manner>,
    /// Attempts that have ended.
    attempts: u32,
    partial: Option<Partial>,
    connection: Connection,
    until: Until,
    telling: Telling<TokioClock>,
    /// The running attempt.
    begun: Attempt,
    /// The redirects that it follows.
    watch: Watch,
}

/// What has arrived of a representation that can be resumed.
#[derive(Debug)]
struct Partial {
    representation: Representation,
    received: u64,
}

impl<'c> Download<'c> {
    /// A download that has not begun.
    #[must_use]
    pub fn new(client: &'c Client, request: Request<Body>) -> Self {
        let manner = client.manner_of(request.method(), || Some(request.uri().clone()));
        let manner = manner.settled(request.headers());
        let request = Outgoing::of(request, &client.0.http, client.0.body_cap);
        Self::with(client, request, manner)
    }

    pub(crate) fn with(client: &'c Client, request: Outgoing, manner: Arc<Manner>) -> Self {
        Self {
            client,
            request,
            telling: manner.telling(),
            manner,
            attempts: 0,
            partial: None,
            connection: Connection::Pooled,
            until: Until::after(None),
            begun: Attempt {
                number: 1,
                remaining: None,
                limit: None,
            },
            watch: Watch::default(),
        }
    }

    /// Whether the request may run twice.
    #[must_use]
    pub fn facts(&self) -> RequestFacts {
        self.request.facts()
    }

    /// One attempt, which ends when the whole body is in `sink` or the `limit` is over.
    ///
    /// # Errors
    /// How it failed, for [`Failed::decide`].
    pub async fn attempt<S: Sink>(
        &mut self,
        limit: Option<Duration>,
        sink: &mut S,
    ) -> Result<Response<()>, Failed> {
        let begun = Attempt {
            number: self.attempts.saturating_add(1),
            remaining: None,
            limit,
        };
        self.attempt_as(begun, sink).await
    }

    async fn attempt_as<S: Sink>(
        &mut self,
        begun: Attempt,
        sink: &mut S,
    ) -> Result<Response<()>, Failed> {
        self.until = Until::after(begun.limit);
        self.begun = begun;
        self.watch = Watch::default();
        let result = self.run(sink).await;
        let attempt = self.attempts;
        self.attempts = attempt.saturating_add(1);
        result.map_err(|failed| {
            let mut failed = *failed;
            self.connection = Connection::after(&failed.failure);
            if matches!(failed.last, Last::Error(_)) {
                self.manner.judge_failed(attempt, &mut failed);
            }
            let (watch, watched) = (&self.watch, self.client.0.watched);
            let facts = || self.request.facts();
            self.manner
                .note_hops(&mut failed.failure, watch, watched, facts);
            self.request.take_back(&mut failed);
            if self.partial.is_none() && !sink.can_start_over() {
                failed.stop.get_or_insert(StopReason::NotReplayable);
            }
            failed
        })
    }

    /// Reads the body of the last refused response into `sink`, within the limit of its attempt:
    /// for an attempt that is not followed by another.
    ///
    /// # Errors
    /// When the body cannot be read to its end, or the sink refuses it.
    pub async fn finish<S: Sink>(
        &mut self,
        response: reqwest::Response,
        sink: &mut S,
    ) -> Result<Response<()>, AttemptError> {
        self.partial = None;
        let read = self.read_anew(response, sink).await;
        read.map_err(|broken| broken.error)
    }

    async fn run<S: Sink>(&mut self, sink: &mut S) -> Result<Response<()>, Box<Failed>> {
        let begun = self.partial.take().filter(|partial| partial.received > 0);
        let Some(mut partial) = begun else {
            let outcome = self.send(None).await;
            let response = self.judge(outcome)?;
            return Ok(self.read_anew(response, sink).await?);
        };
        let Partial {
            representation,
            received,
        } = &mut partial;
        let response = match self.send(Some((representation, *received))).await {
            Ok(response) => self.judge(Ok(response))?,
            Err(failed) => {
                if let Some(status) = failed.last.status()
                    && matches!(
                        status,
                        StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::PRECONDITION_FAILED
                    )
                {
                    let status = status.as_u16();
                    let what = format!("the server answered {status} when asked for the rest");
                    return Err(Broken::not_the_rest(what).into());
                }
                // What has arrived is still good.
                self.partial = Some(partial);
                return self.judge(Err(failed)).map(|response| head(&response));
            }
        };
        if response.status() != StatusCode::PARTIAL_CONTENT {
            return Ok(self.read_anew(response, sink).await?);
        }
        let head = head(&response);
        let Some(end) = representation.continues(*received, &head) else {
            let what = "the server sent another range or tag when asked for the rest";
            return Err(Broken::not_the_rest(what).into());
        };
        let read = read_rest(response, &mut partial, end, self.until, sink).await;
        if partial.received <= end {
            self.partial = Some(partial);
        }
        read?;
        Ok(head)
    }

    /// Asks for the whole, or for the rest of this from there on.
    async fn send(
        &mut self,
        rest: Option<(&Representation, u64)>,
    ) -> Result<reqwest::Response, Box<Failed>> {
        let (begun, telling, manner) = (&self.begun, &mut self.telling, &self.manner);
        let tell = |request: &mut reqwest::Request| {
            manner.route(begun.number, request);
            if let Some((representation, from)) = rest {
                representation.ask_for_rest(from, request.headers_mut());
            }
            telling.tell(begun, request.headers_mut());
        };
        let (request, connection) = (&self.request, self.connection);
        let (until, watch) = (self.until, &mut self.watch);
        let attempt = self
            .client
            .attempt(request, connection, until, begun.number, watch, tell);
        attempt.await
    }

    /// The caller's own judgement of a response. That of an error waits until the attempt is over.
    fn judge(
        &self,
        outcome: Result<reqwest::Response, Box<Failed>>,
    ) -> Result<reqwest::Response, Box<Failed>> {
        match outcome {
            Err(failed) if matches!(failed.last, Last::Error(_)) => Err(failed),
            answered => self.manner.judge(self.attempts, answered),
        }
    }

    /// Reads a response from its beginning.
    async fn read_anew<S: Sink>(
        &mut self,
        mut response: reqwest::Response,
        sink: &mut S,
    ) -> Result<Response<()>, Box<Broken>> {
        let head = head(&response);
        if !sink.can_start_over() {
            let what = "this response begins anew, and a part of another has left";
            let mut broken = Broken::not_the_rest(what);
            broken.stop = Some(StopReason::NotReplayable);
            return Err(broken);
        }
        let (asked, none) = (self.request.asked(), HeaderMap::new());
        let fields = self.request.headers().unwrap_or(&none);
        let representation =
            asked.and_then(|(method, _)| Representation::of(method, fields, &head));
        sink.start(&head, representation.is_some())
            .map_err(refused_by_sink)?;
        self.partial = representation.map(|representation| Partial {
            representation,
            received: 0,
        });
        while let Some(bytes) = self.until.timeout(response.chunk()).await?? {
            let length = bytes.len() as u64;
            sink.write(bytes).await.map_err(refused_by_sink)?;
            if let Some(partial) = &mut self.partial {
                partial.received += length;
            }
        }
        Ok(head)
    }
}

/// Reads a response that goes on where `partial` ends, up to `end`. A piece that goes beyond is not
/// written but counted: the range was a lie.
async fn read_rest<S: Sink>(
    mut response: reqwest::Response,
    partial: &mut Partial,
    end: u64,
    until: Until,
    sink: &mut S,
) -> Result<(), Box<Broken>> {
    while let Some(bytes) = until.timeout(response.chunk()).await?? {
        partial.received += bytes.len() as u64;
        if partial.received > end {
            return Err(Broken::not_the_rest("the rest is longer than its range"));
        }
        sink.write(bytes).await.map_err(refused_by_sink)?;
    }
    if partial.representation.is_complete(partial.received) {
        return Ok(());
    }
    Err(Broken::not_the_rest(
        "the server sent only a part of the rest",
    ))
}

impl Client {
    /// Attempts until the whole body is in `sink`, or the policy stops.
    ///
    /// A body that is cut short is a failed attempt. If its response was a plain 200 to a GET with
    /// a strong `ETag`, the next attempt asks for the rest with `Range` and `If-Range`; otherwise,
    /// and whenever the answer is not provably the rest of the same representation, it begins anew:
    /// bytes of two representations are never mixed.
    ///
    /// An end of the body can be told from a cut with a `Content-Length`, with chunks and in HTTP/2.
    /// A body of HTTP/1 that has neither ends when the connection closes, and nothing tells whether
    /// it is whole (RFC 9112 §8): it is taken to be.
    ///
    /// As with [`send`](Self::send), a last response with a status that says failure is `Ok`, and
    /// its body is in the sink.
    ///
    /// # Errors
    /// When the last attempt brought no complete response.
    ///
    /// ```no_run
    /// # async fn example(client: relent_http::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use relent_http::Body;
    ///
    /// let request = http::Request::get("https://example.com/large").body(Body::empty())?;
    /// let mut large = Vec::new();
    /// let (head, summary) = client.download(request, &mut large).await?;
    /// println!("{}: {} bytes in {} attempts", head.status(), large.len(), summary.attempts);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn download<S: Sink>(
        &self,
        request: Request<Body>,
        sink: &mut S,
    ) -> Result<(Response<()>, Summary), GaveUp<AttemptError>> {
        let manner = self.manner_of(request.method(), || Some(request.uri().clone()));
        let manner = manner.settled(request.headers());
        let request = Outgoing::of(request, &self.0.http, self.0.body_cap);
        self.receive(request, manner, sink).await
    }

    pub(crate) async fn receive<S: Sink>(
        &self,
        request: Outgoing,
        manner: Arc<Manner>,
        sink: &mut S,
    ) -> Result<(Response<()>, Summary), GaveUp<AttemptError>> {
        let mut download = Download::with(self, request, manner.clone());
        let mut driver = manner.driver(download.request.url());
        driver.set_repeatable(manner.may_repeat(download.facts()));
        let mut last = None;
        let (last, stop) = loop {
            let entered = driver.entered().await;
            let earlier: Option<Box<Last>> = last.take();
            if let Err(stop) = entered {
                break (earlier.map(|last| *last), stop);
            }
            drop(earlier);
            let begun = driver.on_attempt();
            let attempted = download.attempt_as(begun, sink).await;
            let watch = &download.watch;
            let mut failed = match attempted {
                Ok(head) => {
                    let followed = watch.followed();
                    // A redirect that was not followed is an answer of the one that was asked.
                    if let Some(followed) = followed.filter(|_| !head.status().is_redirection()) {
                        manner.tell_elsewhere(&mut driver, followed.url(), Some(followed.at), None);
                    }
                    driver.on_success_with(Cause::Status(head.status().as_u16()));
                    return Ok((head, driver.summary(None)));
                }
                Err(failed) => failed,
            };
            manner.tell_failed(&mut driver, &mut failed, watch);
            match manner.decide(&mut driver, &failed) {
                Decision::Retry { after } => {
                    last = Some(Box::new(wait(after, driver.room(), failed.last).await));
                }
                Decision::Stop(stop) => break (Some(failed.last), stop),
            }
        };
        let error = match last {
            Some(Last::Refused(response)) => match download.finish(response, sink).await {
                Ok(head) => return Ok((head, driver.summary(Some(stop)))),
                Err(error) => Some(error),
            },
            Some(Last::Error(error)) => Some(error),
            None => None,
        };
        Err(GaveUp::new(error, driver.summary(Some(stop))))
    }
}

/// The head of a response, without its body.
fn head(response: &reqwest::Response) -> Response<()> {
    let url = Response::builder().url(response.url().clone());
    let mut head = url.body(()).unwrap_or_default();
    *head.status_mut() = response.status();
    *head.version_mut() = response.version();
    *head.headers_mut() = response.headers().clone();
    head
}

fn refused_by_sink(error: io::Error) -> Box<Broken> {
    Broken::local(StopReason::Permanent, AttemptError::Sink(error))
}
