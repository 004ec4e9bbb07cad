//! Dispatcher: publishes the attempts of a worker, permits NATS workers to start them, and receives the results.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::Config;
use bytes::Bytes;
use futures_util::StreamExt;
use http::HeaderMap;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use uuid::Uuid;

use super::wire::{self, Attempt};
use super::{BEGIN_WITHIN, HEADROOM, HEARD, LEAVE, PAUSE, Queue, REFUSED, TELL_FOR};
use crate::acknowledgement::{MAX_BODY, MAX_EXCERPT};
use crate::endpoint::Acknowledgement;
use crate::fault::{FaultKind, LONGEST_WAIT, LocalFault};
use crate::observe;
use crate::sender::{Exchange, Outgoing, Sent};
use crate::worker::attempt::{Ended, Job, JobRequest, Transport, Unmade};
use crate::worker::beat::Leave;

/// Distributes attempts to NATS workers. Dropping it stops its tasks.
pub(crate) struct Relay {
    shared: Arc<Shared>,
    /// Aborted on drop.
    _tasks: JoinSet<()>,
}

struct Shared {
    queue: Queue,
    /// The time limit of an attempt whose policy sets none.
    attempt_timeout: Duration,
    /// The prefix of the subjects for requests for permission and results.
    subject: String,
    next: AtomicU64,
    /// The stream's limit on the size of a message in bytes, as far as it is known.
    stream_takes: AtomicUsize,
    /// Published attempts without a result.
    waiting: Mutex<HashMap<u64, Waiting>>,
    /// Whether attempts are accepted.
    open: watch::Sender<bool>,
}

/// A published attempt without a result.
struct Waiting {
    leave: Leave,
    /// The NATS worker that makes it, and the time of its permission.
    begun: Option<(Uuid, Instant)>,
    /// The upper bound on the duration of the attempt.
    over: Duration,
    news: mpsc::UnboundedSender<News>,
}

enum News {
    Begun,
    /// No NATS worker gets permission any more, and the one that requested it has discarded the attempt.
    Refused,
    Ended(Exchange),
}

/// The response to a request to start an attempt.
enum Begin {
    /// Permission for this time; none if it is zero.
    For(Duration),
    /// The permission must be renewed first.
    Renewed(Box<Stale>),
}

/// An attempt whose permission has expired, because the endpoint may have changed since.
struct Stale {
    number: u64,
    leave: Leave,
}

/// The reason for refusing a message of a NATS worker.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Refused {
    /// It cannot be parsed, or contains an impossible number.
    Unreadable(String),
    /// No attempt with this number was published.
    Unknown,
    /// No NATS worker had permission to start it.
    NotBegun,
    /// The result was reported before, or the dispatcher no longer waits for it.
    Over,
}

impl Refused {
    /// Its label value in [`NATS_REFUSED`](observe::NATS_REFUSED).
    const fn reason(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "unreadable",
            Self::Unknown => "unknown",
            Self::NotBegun => "not_begun",
            Self::Over => "over",
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreadable(wrong) => wrong,
            Self::Unknown => "no attempt of this number was published",
            Self::NotBegun => "nobody had leave to begin the attempt",
            Self::Over => "the attempt is over",
        })
    }
}

/// Withdraws an attempt on drop.
struct Published<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Published<'_> {
    fn drop(&mut self) {
        self.shared.waiting(|waiting| waiting.remove(&self.number));
    }
}

impl Relay {
    /// Starts the dispatcher, which accepts attempts once it has a stream. Call it within a tokio runtime.
    pub(crate) fn begin(queue: Queue, attempt_timeout: Duration) -> Self {
        let shared = Arc::new(Shared {
            subject: format!("{}{}", queue.relays(), Uuid::now_v7().simple()),
            queue,
            attempt_timeout,
            next: AtomicU64::new(0),
            stream_takes: AtomicUsize::new(usize::MAX),
            waiting: Mutex::default(),
            open: watch::Sender::new(false),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&shared).hear());
        tasks.spawn(Arc::clone(&shared).keep_open());
        Self {
            shared,
            _tasks: tasks,
        }
    }

    /// Whether it accepts attempts.
    pub(crate) fn open(&self) -> watch::Receiver<bool> {
        self.shared.open.subscribe()
    }

    pub(crate) fn transport(&self) -> Transport {
        let shared = Arc::clone(&self.shared);
        Arc::new(move |job| {
            let shared = Arc::clone(&shared);
            Box::pin(async move { shared.make(job).await })
        })
    }
}

impl Shared {
    fn waiting<T>(&self, change: impl FnOnce(&mut HashMap<u64, Waiting>) -> T) -> T {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut waiting)
    }

    /// Creates the stream, reads its limits regularly, and waits for it after each failure.
    async fn keep_open(self: Arc<Self>) {
        let mut open = self.open.subscribe();
        loop {
            match self.queue.stream().await {
                Ok(stream) => {
                    let takes = largest(&stream.cached_info().config);
                    self.stream_takes.store(takes, Ordering::Relaxed);
                    self.open.send_replace(true)
                }
                Err(error) => {
                    observe::nats_error(&error);
                    false
                }
            };
            // `self` owns the sender, so this cannot fail.
            let failed = open.wait_for(|open| !open);
            if timeout(LONGEST_WAIT, failed).await.is_ok() {
                sleep(PAUSE).await;
            }
        }
    }

    /// Returns a fault if NATS accepts no message of this size.
    fn too_large(&self, bytes: usize) -> Option<LocalFault> {
        let name = &self.queue.name;
        let of_server = self.queue.client.max_payload();
        let of_stream = self.stream_takes.load(Ordering::Relaxed);
        let (most, remedy) = match of_server <= of_stream {
            true => (of_server, "max_payload of nats-server to 2MB".to_owned()),
            false => (
                of_stream,
                format!("the limits of the stream {name} to 2 MiB a message"),
            ),
        };
        let needs = bytes.saturating_add(HEADROOM);
        (needs > most).then(|| LocalFault {
            kind: FaultKind::TooLarge,
            error: format!(
                "the message is too large for NATS: it needs {needs} bytes, and {most} are the most: raise {remedy}"
            ),
        })
    }

    /// Stops accepting attempts until the stream is available again.
    fn close(&self, error: &str) {
        observe::nats_error(error);
        self.open.send_replace(false);
    }

    /// Responds to NATS workers: whether they may start an attempt, and that a result has arrived.
    async fn hear(self: Arc<Self>) {
        loop {
            let subject = format!("{}.*.*", self.subject);
            let Ok(mut asked) = self.queue.client.subscribe(subject).await else {
                sleep(PAUSE).await;
                continue;
            };
            let mut renewals = JoinSet::new();
            while let Some(message) = asked.next().await {
                while renewals.try_join_next().is_some() {}
                let Some(reply) = message.reply else { continue };
                match self.answer(&message.subject, &message.payload) {
                    // If the response is lost, they ask again.
                    Ok(answer) => drop(self.queue.client.publish(reply, answer).await),
                    // In a task, so that other requests do not wait for the store.
                    Err(stale) => {
                        let this = Arc::clone(&self);
                        renewals.spawn(async move {
                            this.renew(*stale).await;
                            let answer = this.answer(&message.subject, &message.payload);
                            let answer = answer.unwrap_or_else(|_| wire::leave(Duration::ZERO));
                            drop(this.queue.client.publish(reply, answer).await);
                        });
                    }
                }
            }
        }
    }

    /// Asks the store whether an attempt may still start.
    async fn renew(&self, Stale { number, mut leave }: Stale) {
        let renewed = leave.renew().await;
        self.waiting(|waiting| {
            if let Some(attempt) = waiting.get_mut(&number) {
                match renewed {
                    true => attempt.leave = leave,
                    // The receiver may be gone, if the attempt has ended.
                    false => drop(attempt.news.send(News::Refused)),
                }
            }
        });
    }

    /// The response to this message under this subject, or `Err` if the permission must be renewed first.
    fn answer(&self, subject: &str, payload: &Bytes) -> Result<Bytes, Box<Stale>> {
        let refused = |refused: Refused| {
            observe::refused(refused.reason(), &refused);
            refused
        };
        let mut words = subject.rsplit('.');
        let (word, number) = (words.next(), words.next());
        let number = number.and_then(|number| number.parse().ok());
        Ok(match (number, word) {
            (Some(number), Some("begin")) => match self.begin(number, payload).map_err(refused) {
                Ok(Begin::For(leave)) => wire::leave(leave),
                Ok(Begin::Renewed(stale)) => return Err(stale),
                Err(_) => wire::leave(Duration::ZERO),
            },
            (Some(number), Some("end")) => match self.end(number, payload).map_err(refused) {
                // The NATS worker repeats a result if our confirmation was lost.
                Ok(()) | Err(Refused::Over) => Bytes::from_static(HEARD),
                Err(refused) => format!("{REFUSED}{refused}").into(),
            },
            _ => {
                let wrong = "a subject ends with .NUMBER.begin or .NUMBER.end".to_owned();
                format!("{REFUSED}{}", refused(Refused::Unreadable(wrong))).into()
            }
        })
    }

    /// Whether this NATS worker may start. A repeated request gets the remaining time.
    fn begin(&self, number: u64, by: &Bytes) -> Result<Begin, Refused> {
        let by = Uuid::try_parse_ascii(by)
            .map_err(|_| Refused::Unreadable("the name of a deliverer is a UUID".to_owned()))?;
        let now = Instant::now();
        self.waiting(|waiting| {
            let Some(attempt) = waiting.get_mut(&number) else {
                return match self.missing(number) {
                    Refused::Over => Ok(Begin::For(Duration::ZERO)),
                    unknown => Err(unknown),
                };
            };
            // Times are sent in milliseconds, so less than 1 ms is none.
            let none = Duration::from_millis(1);
            let left = match &attempt.begun {
                Some((other, _)) if *other != by => return Ok(Begin::For(Duration::ZERO)),
                Some((_, since)) => (*since + LEAVE).saturating_duration_since(now),
                None => LEAVE,
            };
            if left < none || attempt.leave.left_of_lease(now) < none {
                if attempt.begun.is_none() {
                    let _ = attempt.news.send(News::Refused);
                }
                return Ok(Begin::For(Duration::ZERO));
            }
            let held = attempt.leave.left(now).min(left);
            if held < none {
                let leave = attempt.leave.clone();
                return Ok(Begin::Renewed(Box::new(Stale { number, leave })));
            }
            if attempt.begun.is_none() {
                attempt.begun = Some((by, now));
                // The receiver may be gone, if the attempt has ended.
                let _ = attempt.news.send(News::Begun);
            }
            Ok(Begin::For(held))
        })
    }

    /// Handles the result of an attempt.
    fn end(&self, number: u64, answer: &Bytes) -> Result<(), Refused> {
        let exchange = wire::read_answer(answer).map_err(Refused::Unreadable)?;
        self.waiting(|waiting| {
            let Some(attempt) = waiting.get(&number) else {
                return Err(self.missing(number));
            };
            if attempt.begun.is_none() {
                return Err(Refused::NotBegun);
            }
            if exchange.took > attempt.over {
                return Err(Refused::Unreadable(format!(
                    "it took {} s, and may take {} s",
                    exchange.took.as_secs(),
                    attempt.over.as_secs()
                )));
            }
            if let Some(attempt) = waiting.remove(&number) {
                let _ = attempt.news.send(News::Ended(exchange));
            }
            Ok(())
        })
    }

    /// The reason that no attempt with this number is waiting.
    fn missing(&self, number: u64) -> Refused {
        match number < self.next.load(Ordering::Relaxed) {
            true => Refused::Over,
            false => Refused::Unknown,
        }
    }

    async fn make(&self, mut job: Job) -> Ended {
        // The size suffices to detect this; the payload need not be loaded.
        if let Some(fault) = self.too_large(job.size) {
            return Ok(Sent::faulty(&fault));
        }
        let JobRequest {
            job,
            outgoing,
            headers,
            payload,
        } = match job.request().await {
            Ok(request) => request,
            Err(ended) => return *ended,
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let subject = format!("{}.{number}", self.subject);
        let limit = outgoing.limit.unwrap_or(self.attempt_timeout);
        let limit = limit.min(wire::LONGEST);
        let over = limit + LEAVE + TELL_FOR;
        let attempt = Attempt {
            version: wire::VERSION,
            relay: subject.clone(),
            url: job.url().to_owned(),
            headers: wire::fields(&headers).collect(),
            limit,
            keep: keep(&outgoing, &headers),
        };
        let bytes = match wire::attempt(&attempt, &payload) {
            Ok(bytes) => bytes,
            Err(error) => {
                let kind = FaultKind::Registration;
                return Ok(Sent::faulty(&LocalFault { kind, error }));
            }
        };
        if let Some(fault) = self.too_large(bytes.len()) {
            return Ok(Sent::faulty(&fault));
        }
        let (news, mut heard) = mpsc::unbounded_channel();
        let waiting = Waiting {
            leave: job.leave.clone(),
            begun: None,
            over,
            news,
        };
        self.waiting(|all| all.insert(number, waiting));
        let _published = Published {
            shared: self,
            number,
        };
        let mut leave = job.leave.clone();
        let until = Instant::now() + BEGIN_WITHIN;
        // The payload is released as soon as NATS has stored it.
        let publish = async {
            let published = self.publish(&subject, bytes, until).await;
            drop(payload);
            published
        };
        let begun = tokio::select! {
            biased;
            // A NATS worker may respond before the server confirms the publication.
            news = heard.recv() => matches!(news, Some(News::Begun)),
            () = leave.stopped() => false,
            published = publish => match published {
                Ok(()) => tokio::select! {
                    biased;
                    begun = timeout_at(until, heard.recv()) => matches!(begun, Ok(Some(News::Begun))),
                    () = leave.stopped() => false,
                },
                Err(_) => false,
            },
        };
        if !begun && self.take_back(number) {
            observe::not_begun();
            return Err(Unmade::NotBegun);
        }
        let ended = async {
            loop {
                match heard.recv().await {
                    Some(News::Begun | News::Refused) => {}
                    Some(News::Ended(exchange)) => return Some(exchange),
                    None => return None,
                }
            }
        };
        match timeout(over, ended).await {
            Ok(Some(exchange)) => Ok(exchange.judge(&outgoing, &headers)),
            _ => Err(Unmade::Unknown(
                "the deliverer that has begun the attempt has not said what came of it",
            )),
        }
    }

    /// Withdraws the attempt if no NATS worker has started it. Returns whether it was withdrawn.
    fn take_back(&self, number: u64) -> bool {
        self.waiting(|waiting| match waiting.get(&number) {
            Some(attempt) if attempt.begun.is_none() => waiting.remove(&number).is_some(),
            _ => false,
        })
    }

    /// Publishes the attempt, repeatedly if there is no response. The server detects duplicates by the subject.
    async fn publish(
        &self,
        subject: &str,
        bytes: Bytes,
        until: Instant,
    ) -> Result<(), PublishErrorKind> {
        loop {
            if self.queue.client.connection_state() != State::Connected {
                self.close("there is no connection");
                return Err(PublishErrorKind::BrokenPipe);
            }
            let message = PublishMessage::build()
                .payload(bytes.clone())
                .message_id(subject);
            let published = async {
                let sent = self
                    .queue
                    .context
                    .send_publish(self.queue.attempts(), message);
                sent.await?.await
            };
            match published.await {
                Ok(_) => return Ok(()),
                Err(error) => {
                    let again = error.kind() == PublishErrorKind::TimedOut;
                    self.close(&error.to_string());
                    if !again || Instant::now() >= until {
                        return Err(error.kind());
                    }
                }
            }
        }
    }
}

/// The stream's limit on the size of a message in bytes. An operator may have created it with own limits.
fn largest(stream: &Config) -> usize {
    let limits = [stream.max_message_size.into(), stream.max_bytes];
    let limits = limits.into_iter().filter(|limit| *limit > 0);
    let limits = limits.filter_map(|limit| usize::try_from(limit).ok());
    limits.min().unwrap_or(usize::MAX)
}

/// The part of the response body to send back: enough to evaluate it, and to redact secrets in its beginning.
fn keep(outgoing: &Outgoing<'_>, request: &HeaderMap) -> usize {
    let longest = outgoing
        .secrets(request)
        .iter()
        .map(|text| text.len())
        .max();
    match outgoing.acknowledgement {
        Acknowledgement::Success => MAX_EXCERPT.saturating_add(longest.unwrap_or_default()),
        _ => MAX_BODY,
    }
}
