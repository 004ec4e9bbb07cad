//! The side of the worker: publishes attempts, gives leave to begin them, and hears what came of them.

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

/// Has attempts made by deliverers. It ends when it is dropped.
pub(crate) struct Relay {
    shared: Arc<Shared>,
    /// They end with it.
    _tasks: JoinSet<()>,
}

struct Shared {
    queue: Queue,
    /// How long an attempt may take whose policy names no limit.
    attempt_timeout: Duration,
    /// The subject under which deliverers ask it and report to it.
    subject: String,
    next: AtomicU64,
    /// The most bytes of a message that the stream takes, as far as is known.
    stream_takes: AtomicUsize,
    /// Attempts that are published and not answered.
    waiting: Mutex<HashMap<u64, Waiting>>,
    /// Whether attempts are taken.
    open: watch::Sender<bool>,
}

/// An attempt that is published and not answered.
struct Waiting {
    leave: Leave,
    /// Who makes it, and since when.
    begun: Option<(Uuid, Instant)>,
    /// It cannot take longer.
    over: Duration,
    news: mpsc::UnboundedSender<News>,
}

enum News {
    Begun,
    /// Nobody gets leave any more, and whoever asked has thrown it away.
    Refused,
    Ended(Exchange),
}

/// Whether a deliverer may begin.
enum Begin {
    /// For so long; not at all if it is zero.
    For(Duration),
    /// Leave has to be renewed.
    Renewed(Box<Stale>),
}

/// An attempt whose leave is over, as far as the endpoint may have changed.
struct Stale {
    number: u64,
    leave: Leave,
}

/// Why what a deliverer says is not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Refused {
    /// It is nothing that a deliverer says, or has a number that cannot be.
    Unreadable(String),
    /// No attempt of this number was published.
    Unknown,
    /// Nobody had leave to begin it.
    NotBegun,
    /// A deliverer has reported it before, or the relay does not wait for it any more.
    Over,
}

impl Refused {
    /// Its [`REASON`](observe::REASON).
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

/// Takes an attempt back when it is dropped.
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
    /// Begins, and takes attempts once there is a stream for them. To be called within a runtime of tokio.
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

    /// Whether it takes attempts.
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

    /// Makes the stream, sees now and then what it takes, and after any failure whether it is there again.
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
            // It is held by this, so there is no error.
            let failed = open.wait_for(|open| !open);
            if timeout(LONGEST_WAIT, failed).await.is_ok() {
                sleep(PAUSE).await;
            }
        }
    }

    /// Why NATS takes no message of so many bytes, if it takes none.
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

    /// Nothing is taken for a while.
    fn close(&self, error: &str) {
        observe::nats_error(error);
        self.open.send_replace(false);
    }

    /// Answers deliverers: whether they may begin, and that it knows what came of it.
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
                    // If it does not arrive they ask again.
                    Ok(answer) => drop(self.queue.client.publish(reply, answer).await),
                    // Nobody else waits for the store.
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

    /// Asks the store whether an attempt may still begin.
    async fn renew(&self, Stale { number, mut leave }: Stale) {
        let renewed = leave.renew().await;
        self.waiting(|waiting| {
            if let Some(attempt) = waiting.get_mut(&number) {
                match renewed {
                    true => attempt.leave = leave,
                    // A waiter that has given up is gone from the map.
                    false => drop(attempt.news.send(News::Refused)),
                }
            }
        });
    }

    /// The reply to a deliverer that says this under this subject, unless leave has to be renewed first.
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
                // Told again, since it did not hear that it was heard.
                Ok(()) | Err(Refused::Over) => Bytes::from_static(HEARD),
                Err(refused) => format!("{REFUSED}{refused}").into(),
            },
            _ => {
                let wrong = "a subject ends with .NUMBER.begin or .NUMBER.end".to_owned();
                format!("{REFUSED}{}", refused(Refused::Unreadable(wrong))).into()
            }
        })
    }

    /// Whether this deliverer may begin. Asked again it has what is left.
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
            // Less than that is sent as none.
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
                // A waiter that has given up is gone from the map.
                let _ = attempt.news.send(News::Begun);
            }
            Ok(Begin::For(held))
        })
    }

    /// A deliverer says what came of an attempt.
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

    /// Why an attempt of this number does not wait.
    fn missing(&self, number: u64) -> Refused {
        match number < self.next.load(Ordering::Relaxed) {
            true => Refused::Over,
            false => Refused::Unknown,
        }
    }

    async fn make(&self, mut job: Job) -> Ended {
        // It need not be loaded to know that.
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
        // Once NATS has it nothing here holds the payload.
        let publish = async {
            let published = self.publish(&subject, bytes, until).await;
            drop(payload);
            published
        };
        let begun = tokio::select! {
            biased;
            // Before the server has said that it has it, perhaps.
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

    /// Whether nobody has begun it: then nobody will.
    fn take_back(&self, number: u64) -> bool {
        self.waiting(|waiting| match waiting.get(&number) {
            Some(attempt) if attempt.begun.is_none() => waiting.remove(&number).is_some(),
            _ => false,
        })
    }

    /// Publishes it, again if there is no answer: the server knows it by its subject.
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

/// The most bytes of a message that a stream takes: an operator may have made it with limits of its own.
fn largest(stream: &Config) -> usize {
    let limits = [stream.max_message_size.into(), stream.max_bytes];
    let limits = limits.into_iter().filter(|limit| *limit > 0);
    let limits = limits.filter_map(|limit| usize::try_from(limit).ok());
    limits.min().unwrap_or(usize::MAX)
}

/// As much of an answer's body is needed: to judge it, and to keep its beginning without the secrets in it.
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
