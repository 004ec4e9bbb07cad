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
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use uuid::Uuid;

use crate::observe;
use crate::queue::{MAX_OVERHEAD_BYTES, OFFER_TIMEOUT, Queue, REPORT_TIMEOUT, RETRY_PAUSE};
use crate::wire::{self, ACCEPTED, Attempt, REFUSED_PREFIX, START_TIMEOUT};
use relent_outbox::fault::{FaultKind, LONGEST_WAIT, LocalFault};
use relent_outbox::relay::{
    AttemptEnd, Exchange, Job, NoResult, Relay, StartPermission, Transport,
};
use relent_outbox::sender::AttemptResult;

/// Distributes attempts to NATS workers.
struct Dispatcher {
    shared: Arc<Shared>,
    /// Aborted on drop.
    _tasks: JoinSet<()>,
}

struct Shared {
    queue: Queue,
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
    permission: StartPermission,
    /// The NATS worker that makes it, and the time of its permission.
    begun: Option<(Uuid, Instant)>,
    /// The upper bound on the duration of the attempt.
    over: Duration,
    news: mpsc::UnboundedSender<AttemptEvent>,
}

enum AttemptEvent {
    Begun,
    /// No NATS worker gets permission any more, and the one that requested it has discarded the attempt.
    Refusal,
    AttemptEnd(Exchange),
}

/// The response to a request to start an attempt.
enum StartReply {
    /// Permission for this time; none if it is zero.
    For(Duration),
    /// The permission must be renewed first.
    Renewed(Box<ExpiredPermission>),
}

/// An attempt whose permission has expired, because the endpoint may have changed since.
struct ExpiredPermission {
    number: u64,
    permission: StartPermission,
}

/// The reason for refusing a message of a NATS worker.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Refusal {
    /// It cannot be parsed, or contains an impossible number.
    Unreadable(String),
    /// No attempt with this number was published.
    Unknown,
    /// No NATS worker had permission to start it.
    NotStarted,
    /// The result was reported before, or the dispatcher no longer waits for it.
    Over,
}

impl Refusal {
    /// Its label value in [`NATS_REFUSED`](observe::NATS_REFUSED).
    const fn reason(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "unreadable",
            Self::Unknown => "unknown",
            Self::NotStarted => "not_granted",
            Self::Over => "over",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreadable(wrong) => wrong,
            Self::Unknown => "no attempt of this number was published",
            Self::NotStarted => "no worker had permission to begin the attempt",
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

impl Relay for Queue {
    fn start(self: Box<Self>) -> Transport {
        observe::dispatcher_starts();
        let shared = Arc::new(Shared {
            subject: format!("{}{}", self.relays(), Uuid::now_v7().simple()),
            queue: *self,
            next: AtomicU64::new(0),
            stream_takes: AtomicUsize::new(usize::MAX),
            waiting: Mutex::default(),
            open: watch::Sender::new(false),
        });
        let open = shared.open.subscribe();
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&shared).serve_requests());
        tasks.spawn(Arc::clone(&shared).keep_open());
        let dispatcher = Dispatcher {
            shared,
            _tasks: tasks,
        };
        Transport::new(open, move |job| dispatcher.make(job))
    }
}

impl Dispatcher {
    fn make(&self, job: Job) -> impl Future<Output = AttemptEnd> + use<> {
        let shared = Arc::clone(&self.shared);
        async move { shared.make(job).await }
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
                sleep(RETRY_PAUSE).await;
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
        let needs = bytes.saturating_add(MAX_OVERHEAD_BYTES);
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
    async fn serve_requests(self: Arc<Self>) {
        loop {
            let subject = format!("{}.*.*", self.subject);
            let Ok(mut asked) = self.queue.client.subscribe(subject).await else {
                sleep(RETRY_PAUSE).await;
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
                            let answer =
                                answer.unwrap_or_else(|_| wire::permission(Duration::ZERO));
                            drop(this.queue.client.publish(reply, answer).await);
                        });
                    }
                }
            }
        }
    }

    /// Asks the store whether an attempt may still start.
    async fn renew(
        &self,
        ExpiredPermission {
            number,
            mut permission,
        }: ExpiredPermission,
    ) {
        let renewed = permission.renew().await;
        self.waiting(|waiting| {
            if let Some(attempt) = waiting.get_mut(&number) {
                match renewed {
                    true => attempt.permission = permission,
                    // The receiver may be gone, if the attempt has ended.
                    false => drop(attempt.news.send(AttemptEvent::Refusal)),
                }
            }
        });
    }

    /// The response to this message under this subject, or `Err` if the permission must be renewed first.
    fn answer(&self, subject: &str, payload: &Bytes) -> Result<Bytes, Box<ExpiredPermission>> {
        let refused = |refused: Refusal| {
            observe::refused(refused.reason(), &refused);
            refused
        };
        let mut words = subject.rsplit('.');
        let (word, number) = (words.next(), words.next());
        let number = number.and_then(|number| number.parse().ok());
        Ok(match (number, word) {
            (Some(number), Some("begin")) => match self.begin(number, payload).map_err(refused) {
                Ok(StartReply::For(permission)) => wire::permission(permission),
                Ok(StartReply::Renewed(stale)) => return Err(stale),
                Err(_) => wire::permission(Duration::ZERO),
            },
            (Some(number), Some("end")) => match self.end(number, payload).map_err(refused) {
                // The NATS worker repeats a result if our confirmation was lost.
                Ok(()) | Err(Refusal::Over) => Bytes::from_static(ACCEPTED),
                Err(refused) => format!("{REFUSED_PREFIX}{refused}").into(),
            },
            _ => {
                let wrong = "a subject ends with .NUMBER.begin or .NUMBER.end".to_owned();
                format!("{REFUSED_PREFIX}{}", refused(Refusal::Unreadable(wrong))).into()
            }
        })
    }

    /// Whether this NATS worker may start. A repeated request gets the remaining time.
    fn begin(&self, number: u64, by: &Bytes) -> Result<StartReply, Refusal> {
        let by = Uuid::try_parse_ascii(by)
            .map_err(|_| Refusal::Unreadable("the name of a worker is a UUID".to_owned()))?;
        let now = Instant::now();
        self.waiting(|waiting| {
            let Some(attempt) = waiting.get_mut(&number) else {
                return match self.missing(number) {
                    Refusal::Over => Ok(StartReply::For(Duration::ZERO)),
                    unknown => Err(unknown),
                };
            };
            // Times are sent in milliseconds, so less than 1 ms is none.
            let none = Duration::from_millis(1);
            let left = match &attempt.begun {
                Some((other, _)) if *other != by => return Ok(StartReply::For(Duration::ZERO)),
                Some((_, since)) => (*since + START_TIMEOUT).saturating_duration_since(now),
                None => START_TIMEOUT,
            };
            if left < none || attempt.permission.left_of_lease(now) < none {
                if attempt.begun.is_none() {
                    let _ = attempt.news.send(AttemptEvent::Refusal);
                }
                return Ok(StartReply::For(Duration::ZERO));
            }
            let held = attempt.permission.left(now).min(left);
            if held < none {
                let permission = attempt.permission.clone();
                return Ok(StartReply::Renewed(Box::new(ExpiredPermission {
                    number,
                    permission,
                })));
            }
            if attempt.begun.is_none() {
                attempt.begun = Some((by, now));
                // The receiver may be gone, if the attempt has ended.
                let _ = attempt.news.send(AttemptEvent::Begun);
            }
            Ok(StartReply::For(held))
        })
    }

    /// Handles the result of an attempt.
    fn end(&self, number: u64, answer: &Bytes) -> Result<(), Refusal> {
        let exchange = wire::read_answer(answer).map_err(Refusal::Unreadable)?;
        self.waiting(|waiting| {
            let Some(attempt) = waiting.get(&number) else {
                return Err(self.missing(number));
            };
            if attempt.begun.is_none() {
                return Err(Refusal::NotStarted);
            }
            if exchange.took > attempt.over {
                return Err(Refusal::Unreadable(format!(
                    "it took {} s, and may take {} s",
                    exchange.took.as_secs(),
                    attempt.over.as_secs()
                )));
            }
            if let Some(attempt) = waiting.remove(&number) {
                let _ = attempt.news.send(AttemptEvent::AttemptEnd(exchange));
            }
            Ok(())
        })
    }

    /// The reason that no attempt with this number is waiting.
    fn missing(&self, number: u64) -> Refusal {
        match number < self.next.load(Ordering::Relaxed) {
            true => Refusal::Over,
            false => Refusal::Unknown,
        }
    }

    async fn make(&self, mut job: Job) -> AttemptEnd {
        // The size suffices to detect this; the payload need not be loaded.
        if let Some(fault) = self.too_large(job.size()) {
            return Ok(AttemptResult::local_fault(&fault));
        }
        let mut request = match job.request().await {
            Ok(request) => request,
            Err(ended) => return *ended,
        };
        let payload = request.take_payload();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let subject = format!("{}.{number}", self.subject);
        let limit = request.limit().min(wire::MAX_ATTEMPT_TIME);
        let over = limit + START_TIMEOUT + REPORT_TIMEOUT;
        let attempt = Attempt {
            version: wire::VERSION,
            relay: subject.clone(),
            url: request.url().to_owned(),
            headers: wire::fields(request.headers()).collect(),
            limit,
            keep: request.needed_body(),
        };
        let bytes = match wire::attempt(&attempt, &payload) {
            Ok(bytes) => bytes,
            Err(error) => {
                let kind = FaultKind::Registration;
                return Ok(AttemptResult::local_fault(&LocalFault { kind, error }));
            }
        };
        if let Some(fault) = self.too_large(bytes.len()) {
            return Ok(AttemptResult::local_fault(&fault));
        }
        let (news, mut events) = mpsc::unbounded_channel();
        let waiting = Waiting {
            permission: request.permission().clone(),
            begun: None,
            over,
            news,
        };
        self.waiting(|all| all.insert(number, waiting));
        let _published = Published {
            shared: self,
            number,
        };
        let mut permission = request.permission().clone();
        let until = Instant::now() + OFFER_TIMEOUT;
        // The payload is released as soon as NATS has stored it.
        let publish = async {
            let published = self.publish(&subject, bytes, until).await;
            drop(payload);
            published
        };
        let begun = tokio::select! {
            biased;
            // A NATS worker may respond before the server confirms the publication.
            news = events.recv() => matches!(news, Some(AttemptEvent::Begun)),
            () = permission.stopped() => false,
            published = publish => match published {
                Ok(()) => tokio::select! {
                    biased;
                    begun = timeout_at(until, events.recv()) => matches!(begun, Ok(Some(AttemptEvent::Begun))),
                    () = permission.stopped() => false,
                },
                Err(_) => false,
            },
        };
        if !begun && self.take_back(number) {
            observe::attempt_withdrawn();
            return Err(NoResult::NotStarted);
        }
        let ended = async {
            loop {
                match events.recv().await {
                    Some(AttemptEvent::Begun | AttemptEvent::Refusal) => {}
                    Some(AttemptEvent::AttemptEnd(exchange)) => return Some(exchange),
                    None => return None,
                }
            }
        };
        match timeout(over, ended).await {
            Ok(Some(exchange)) => Ok(request.judge(exchange)),
            _ => Err(NoResult::Unknown(
                "the worker that has begun the attempt has not said what came of it",
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
