//! The side of the worker: publishes attempts, gives leave to begin them, and hears what came of them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;
use futures_util::StreamExt;
use relent_core::{Failure, Network, Scope};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::wire::{self, Attempt};
use super::{BEGIN_WITHIN, LEAVE, PAUSE, Queue, TELL_FOR};
use crate::acknowledgement::{MAX_BODY, MAX_EXCERPT};
use crate::endpoint::Acknowledgement;
use crate::observe;
use crate::sender::{Exchange, Outgoing, Sent};
use crate::worker::attempt::{Job, Transport, Unmade};
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
    /// The subject by which it is asked and told.
    subject: String,
    next: AtomicU64,
    /// Attempts that are published and not answered.
    waiting: Mutex<HashMap<u64, Waiting>>,
    /// Whether attempts are taken.
    open: watch::Sender<bool>,
}

/// An attempt that is published and not answered.
struct Waiting {
    leave: Leave,
    /// Who makes it, and since when.
    begun: Option<(Bytes, Instant)>,
    news: mpsc::UnboundedSender<News>,
}

enum News {
    Begun,
    /// Nobody gets leave any more, and whoever asked has thrown it away.
    Refused,
    Ended(Exchange),
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
            subject: format!("{}{}", queue.relays(), uuid::Uuid::now_v7().simple()),
            queue,
            attempt_timeout,
            next: AtomicU64::new(0),
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
            Box::pin(async move { shared.make(&job).await })
        })
    }
}

impl Shared {
    fn waiting<T>(&self, change: impl FnOnce(&mut HashMap<u64, Waiting>) -> T) -> T {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut waiting)
    }

    /// Makes the stream, and after any failure sees whether it is there again.
    async fn keep_open(self: Arc<Self>) {
        let mut open = self.open.subscribe();
        loop {
            match self.queue.stream().await {
                Ok(_) => self.open.send_replace(true),
                Err(error) => {
                    observe::nats_error(&error);
                    false
                }
            };
            // It is held by this, so there is no error.
            let _ = open.wait_for(|open| !open).await;
            sleep(PAUSE).await;
        }
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
            while let Some(message) = asked.next().await {
                let Some(reply) = message.reply else { continue };
                let mut words = message.subject.rsplit('.');
                let (word, number) = (words.next(), words.next());
                let number = number.and_then(|number| number.parse().ok());
                let answer = match (number, word) {
                    (Some(number), Some("begin")) => self.begin(number, message.payload),
                    (Some(number), Some("end")) => {
                        self.end(number, &message.payload);
                        Bytes::from_static(b"heard")
                    }
                    _ => continue,
                };
                // If it does not arrive they ask again.
                let _ = self.queue.client.publish(reply, answer).await;
            }
        }
    }

    /// For how many milliseconds this deliverer may begin: 0 for not at all. Asked again it has what is left.
    fn begin(&self, number: u64, by: Bytes) -> Bytes {
        let now = Instant::now();
        let left = self.waiting(|waiting| {
            let attempt = waiting.get_mut(&number)?;
            let held = attempt.leave.left(now).min(LEAVE);
            match &attempt.begun {
                Some((other, _)) if *other != by => None,
                Some((_, since)) => Some(held.min((*since + LEAVE).saturating_duration_since(now))),
                // Less than that is told as none.
                None if held < Duration::from_millis(1) => {
                    let _ = attempt.news.send(News::Refused);
                    None
                }
                None => {
                    attempt.begun = Some((by, now));
                    // Whoever does not wait any more is gone from the map.
                    let _ = attempt.news.send(News::Begun);
                    Some(held)
                }
            }
        });
        left.unwrap_or_default().as_millis().to_string().into()
    }

    fn end(&self, number: u64, answer: &Bytes) {
        let Some(exchange) = wire::read_answer(answer) else {
            return;
        };
        if let Some(attempt) = self.waiting(|waiting| waiting.remove(&number)) {
            let _ = attempt.news.send(News::Ended(exchange));
        }
    }

    async fn make(&self, job: &Job) -> Result<Sent, Unmade> {
        let outgoing = match job.outgoing() {
            Ok(outgoing) => outgoing,
            Err(unsendable) => return Ok(*unsendable),
        };
        let headers = match outgoing.headers() {
            Ok(headers) => headers,
            Err(unsendable) => return Ok(*unsendable),
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let subject = format!("{}.{number}", self.subject);
        let limit = outgoing.limit.unwrap_or(self.attempt_timeout);
        let attempt = Attempt {
            version: wire::VERSION,
            relay: subject.clone(),
            url: job.url().to_owned(),
            headers: wire::fields(&headers, usize::MAX),
            limit,
            keep: keep(&outgoing),
        };
        let Ok(bytes) = wire::attempt(&attempt, &job.payload) else {
            return Err(Unmade::NotBegun);
        };
        let (news, mut heard) = mpsc::unbounded_channel();
        let waiting = Waiting {
            leave: job.leave.clone(),
            begun: None,
            news,
        };
        self.waiting(|all| all.insert(number, waiting));
        let _published = Published {
            shared: self,
            number,
        };
        let mut leave = job.leave.clone();
        let until = Instant::now() + BEGIN_WITHIN;
        let begun = tokio::select! {
            biased;
            // Before the server has said that it has it, perhaps.
            news = heard.recv() => matches!(news, Some(News::Begun)),
            () = leave.stopped() => false,
            published = self.publish(&subject, bytes, until) => match published {
                Ok(()) => tokio::select! {
                    biased;
                    begun = timeout_at(until, heard.recv()) => matches!(begun, Ok(Some(News::Begun))),
                    () = leave.stopped() => false,
                },
                Err(PublishErrorKind::MaxPayloadExceeded) => return Ok(too_large()),
                Err(_) => false,
            },
        };
        if !begun && self.take_back(number) {
            observe::not_begun();
            return Err(Unmade::NotBegun);
        }
        let over = limit.saturating_add(LEAVE + TELL_FOR);
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
            Ok(Some(exchange)) => Ok(exchange.judge(&outgoing)),
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
                Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                    return Err(error.kind());
                }
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

/// As much of an answer's body is needed: to judge it, and to keep its beginning without the secrets in it.
fn keep(outgoing: &Outgoing<'_>) -> usize {
    let texts = outgoing.signing.map_or(&[][..], |signing| &signing.texts);
    let longest = texts.iter().map(|text| text.len()).max();
    match outgoing.acknowledgement {
        Acknowledgement::Success => MAX_EXCERPT.saturating_add(longest.unwrap_or_default()),
        _ => MAX_BODY,
    }
}

/// It can be put right while the schedule lasts.
fn too_large() -> Sent {
    Sent::not(
        Failure::network(Network::Connect).scope(Scope::Request),
        "the message is too large for NATS: raise max_payload of nats-server to 2MB".to_owned(),
        Duration::ZERO,
    )
}
