//! NATS worker: takes attempts, asks for permission, sends the request and reports the result.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::consumer::pull::Batch;
use async_nats::jetstream::{AckKind, Message};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join;
use relent_core::{Failure, Network};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::observe;
use crate::queue::{MAX_OVERHEAD_BYTES, Queue, REPORT_TIMEOUT, RESPONSE_TIMEOUT, RETRY_PAUSE};
use crate::wire::{self, ACCEPTED, Attempt};
use relent_outbox::fault::{FaultKind, is_able, next_wait};
use relent_outbox::sender::{Exchange, Sender};
use relent_outbox::text::printable;

/// The largest number of attempts requested from NATS in one call.
const MAX_BATCH: usize = 256;
/// Memory is counted in units of this size in bytes. The longest attempt needs [`MAX_ATTEMPT_KIB`] of them.
const KIB: usize = 1 << 10;
const MAX_ATTEMPT_KIB: u32 = 2 << 10;
/// The time limit of a request for attempts.
const BATCH_TIMEOUT: Duration = Duration::from_secs(2);

/// Settings of a [`NatsWorker`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NatsWorkerConfig {
    /// The largest number of concurrent attempts; 1024 by default. Each has a connection: the process needs file
    /// descriptors for all of them. All NATS workers together should allow more than the dispatchers'
    /// [`slow_in_flight`](relent_outbox::worker::WorkerConfig::slow_in_flight), so that slow endpoints do not occupy all of
    /// them.
    pub in_flight: usize,
    /// The total size of attempts that it requests and holds, in bytes; 64 MiB by default, and at least 2 MiB, so that
    /// the longest fits. An attempt counts until its payload is written to the connection.
    pub body_bytes: usize,
    /// The time for running attempts to end at shutdown; 30 s by default.
    pub drain: Duration,
}

impl Default for NatsWorkerConfig {
    fn default() -> Self {
        Self {
            in_flight: 1024,
            body_bytes: 64 << 20,
            drain: Duration::from_secs(30),
        }
    }
}

/// Makes the attempts of a [`Queue`], together with any number of others. It needs no store, and knows no signing key.
///
/// Its own [`Sender`] decides which addresses are called.
#[derive(Debug)]
pub struct NatsWorker {
    queue: Queue,
    sender: Sender,
    config: NatsWorkerConfig,
}

impl NatsWorker {
    /// Creates a NATS worker for this queue.
    #[must_use]
    pub const fn new(queue: Queue, sender: Sender, config: NatsWorkerConfig) -> Self {
        Self {
            queue,
            sender,
            config,
        }
    }

    /// Works until `shutdown` completes, then takes nothing more and waits for running attempts, up to
    /// [`NatsWorkerConfig::drain`]. Returns the number of attempts that it aborted: their dispatcher counts them as
    /// failed with unknown outcome.
    ///
    /// While NATS is unavailable it waits. Call it within a tokio runtime with time and I/O.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> usize {
        observe::nats_worker_starts();
        let slots = self.config.in_flight.clamp(1, Semaphore::MAX_PERMITS);
        let slots = Arc::new(Semaphore::new(slots));
        let memory = self.config.body_bytes.div_ceil(KIB) as u64;
        let memory = memory.clamp(MAX_ATTEMPT_KIB.into(), u32::MAX.into()) as usize;
        let memory = Arc::new(Semaphore::new(memory.min(Semaphore::MAX_PERMITS)));
        let one = Arc::new(SharedState {
            queue: self.queue,
            sender: self.sender,
            faults: AtomicUsize::new(0),
            recovered: Notify::new(),
        });
        let mut attempts = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        let (mut consumer, mut pause) = (None, None);
        loop {
            while attempts.try_join_next().is_some() {}
            let asked = tokio::select! {
                biased;
                () = &mut shutdown => break,
                asked = one.request_batch(&mut consumer, &mut pause, &slots, &memory) => asked,
            };
            let taken = match asked {
                Ok((batch, slots, memory)) => {
                    let free = (slots, memory);
                    one.take(batch, free, &mut attempts, shutdown.as_mut())
                        .await
                }
                Err(error) => Err(error),
            };
            match taken {
                Ok(false) => {}
                Ok(true) => break,
                Err(error) => {
                    observe::nats_error(&error);
                    consumer = None;
                    // NATS may refuse each request immediately, such as beyond the limits of the consumer.
                    tokio::select! {
                        () = &mut shutdown => break,
                        () = sleep(RETRY_PAUSE) => {}
                    }
                }
            }
        }
        let drained = async { while attempts.join_next().await.is_some() {} };
        let _ = timeout(self.config.drain, drained).await;
        let aborted = attempts.len();
        attempts.shutdown().await;
        aborted
    }
}

/// The state that all attempts share.
struct SharedState {
    queue: Queue,
    sender: Sender,
    /// The number of attempts since the last one without a local fault.
    faults: AtomicUsize,
    /// The process is able to make attempts again.
    recovered: Notify,
}

impl SharedState {
    /// Waits while the process is not [able](is_able) to make attempts, and returns the number of attempts to request: one
    /// as a test. A failing attempt ends at once, so a process without a resolver, for example, would take nearly all
    /// attempts.
    async fn after_faults(&self, pause: &mut Option<Duration>) -> usize {
        if is_able(self.faults.load(Ordering::Relaxed)) {
            *pause = None;
            return MAX_BATCH;
        }
        let wait = *pause.insert(next_wait(*pause));
        let _ = timeout(wait, self.recovered.notified()).await;
        1
    }

    /// Requests as many attempts as slots and memory allow, once one slot and memory for the longest attempt are free.
    async fn request_batch(
        &self,
        consumer: &mut Option<PullConsumer>,
        pause: &mut Option<Duration>,
        slots: &Arc<Semaphore>,
        memory: &Arc<Semaphore>,
    ) -> Result<(Batch, OwnedSemaphorePermit, OwnedSemaphorePermit), String> {
        let consumer = match consumer {
            Some(consumer) => consumer,
            None => consumer.insert(self.queue.consumer().await?),
        };
        let most = self.after_faults(pause).await;
        let free = acquire_range(slots, 1, most).await?;
        let memory = acquire_range(memory, MAX_ATTEMPT_KIB, usize::MAX).await?;
        let batch = consumer.batch().max_messages(free.num_permits());
        let batch = batch.max_bytes(memory.num_permits().saturating_mul(KIB));
        let batch = batch.expires(BATCH_TIMEOUT).messages().await;
        Ok((batch.map_err(|error| error.to_string())?, free, memory))
    }

    /// Starts the attempts of a batch, and returns those that arrive after `shutdown` to NATS. `true` after `shutdown`.
    async fn take(
        self: &Arc<Self>,
        mut batch: Batch,
        (mut slots, mut memory): (OwnedSemaphorePermit, OwnedSemaphorePermit),
        attempts: &mut JoinSet<()>,
        mut shutdown: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<bool, String> {
        // NATS reports the end of the batch, unless it is unavailable.
        let until = Instant::now() + BATCH_TIMEOUT + RETRY_PAUSE;
        let mut stopping = false;
        loop {
            let message = tokio::select! {
                biased;
                () = shutdown.as_mut(), if !stopping => {
                    stopping = true;
                    continue;
                }
                message = timeout_at(until, batch.next()) => message,
            };
            match (message, slots.split(1)) {
                (Ok(Some(Ok(message))), Some(slot)) if !stopping => {
                    let this = Arc::clone(self);
                    let bytes = message
                        .payload
                        .len()
                        .div_ceil(KIB)
                        .min(memory.num_permits());
                    let held = memory.split(bytes);
                    attempts.spawn(async move {
                        this.attempt(message, held).await;
                        drop(slot);
                    });
                }
                (Ok(Some(Ok(message))), _) => return_attempt(&message, None).await,
                (Ok(Some(Err(error))), _) if stopping => {
                    // `shutdown` completes only once, so it must be reported now.
                    observe::nats_error(&error.to_string());
                    return Ok(true);
                }
                // The next attempt exceeds the remaining bytes of this request.
                (Ok(Some(Err(error))), _) if error.to_string().contains("Exceeds MaxBytes") => {
                    return Ok(stopping);
                }
                (Ok(Some(Err(error))), _) => return Err(error.to_string()),
                (Ok(None) | Err(_), _) => return Ok(stopping),
            }
        }
    }

    /// Makes an attempt, and holds `memory` until its payload is written.
    async fn attempt(&self, mut message: Message, memory: Option<OwnedSemaphorePermit>) {
        let payload = std::mem::take(&mut message.message.payload);
        let message = &message;
        let payload = Bytes::from_owner(CountedPayload {
            payload,
            _memory: memory,
        });
        let attempt = wire::read_attempt(&payload).and_then(|(attempt, payload)| {
            match attempt.relay.starts_with(&self.queue.relays()) {
                true => Ok((attempt, payload)),
                // Only dispatchers of this queue may be called.
                false => Err("its relay is not of this queue".to_owned()),
            }
        });
        // The slice with the payload keeps the memory permits until it is written.
        drop(payload);
        let (attempt, payload) = match attempt {
            Ok(attempt) => attempt,
            Err(wrong) => {
                // From a dispatcher of another version. The dispatcher withdraws it if no other NATS worker can read
                // it.
                observe::refused("unreadable", &wrong);
                return_attempt(message, Some(RETRY_PAUSE)).await;
                return;
            }
        };
        match self.may_start(&attempt.relay).await {
            Some(true) => {}
            Some(false) => {
                acknowledge(message, AckKind::Ack).await;
                observe::worker_attempt("cancelled");
                return;
            }
            None => {
                return_attempt(message, Some(RETRY_PAUSE)).await;
                return;
            }
        }
        // From here on the dispatcher is responsible for retries. If the acknowledgement is lost, NATS redelivers the
        // attempt, and the dispatcher denies permission. The request does not wait for the acknowledgement: while NATS
        // is unavailable that could take longer than the permission lasts.
        let acknowledged = acknowledge(message, AckKind::Ack);
        let ((), exchange) = join(acknowledged, self.exchange(&attempt, payload)).await;
        match exchange.fault {
            Some(_) => {
                self.faults.fetch_add(1, Ordering::Relaxed);
            }
            None if !is_able(self.faults.swap(0, Ordering::Relaxed)) => {
                self.recovered.notify_one();
            }
            None => {}
        }
        let result = match exchange.result {
            Ok(_) => "answered",
            Err(_) => "failed",
        };
        let most = self
            .queue
            .client
            .max_payload()
            .saturating_sub(MAX_OVERHEAD_BYTES);
        let accepted = match wire::answer(exchange, attempt.keep, most) {
            Ok(answer) => self.report(&attempt.relay, answer).await,
            Err(error) => {
                observe::nats_error(&error);
                false
            }
        };
        observe::worker_attempt(if accepted { result } else { "unreported" });
    }

    /// Whether the dispatcher permits the start; `None` if it does not respond.
    async fn may_start(&self, relay: &str) -> Option<bool> {
        // By this name the dispatcher recognizes a repeated request.
        let name = Bytes::from(uuid::Uuid::now_v7().simple().to_string());
        for _ in 0..3 {
            let asked = Instant::now();
            match self.request(relay, "begin", name.clone()).await {
                Ok(answer) => {
                    let left = match wire::read_permission(&answer) {
                        Ok(left) => left,
                        Err(wrong) => {
                            observe::refused("unreadable", &wrong);
                            return None;
                        }
                    };
                    if left.is_zero() {
                        return Some(false);
                    }
                    // If the response was late, the permission may have expired.
                    if asked.elapsed() < left {
                        return Some(true);
                    }
                }
                Err(RequestErrorKind::TimedOut) => {}
                Err(_) => return None,
            }
        }
        None
    }

    async fn exchange(&self, attempt: &Attempt, payload: Bytes) -> Exchange {
        let failed = |failure, error, fault| Exchange {
            result: Err((failure, error)),
            address: String::new(),
            took: Duration::ZERO,
            fault,
        };
        let headers = match wire::header_map(&attempt.headers) {
            Ok(headers) => headers,
            Err(error) => return failed(Failure::network(Network::BadRequest), error, None),
        };
        match self.sender.target(&attempt.url) {
            Ok(target) => {
                let limit = attempt.limit;
                self.sender.exchange(&target, headers, payload, limit).await
            }
            // The options of this process forbid the URL, although those of the dispatcher allow it.
            Err(error) => failed(
                Failure::network(Network::Connect),
                format!("the worker does not call the URL of the endpoint: {error}"),
                Some(FaultKind::Registration),
            ),
        }
    }

    /// Reports the result until the dispatcher responds. Returns whether it has accepted the result.
    async fn report(&self, relay: &str, answer: Bytes) -> bool {
        let until = Instant::now() + REPORT_TIMEOUT;
        loop {
            if let Ok(said) = self.request(relay, "end", answer.clone()).await {
                let taken = said == ACCEPTED;
                if !taken {
                    observe::nats_error(&printable(&String::from_utf8_lossy(&said), 1024));
                }
                return taken;
            }
            if Instant::now() + RETRY_PAUSE >= until {
                return false;
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    async fn request(
        &self,
        relay: &str,
        word: &str,
        payload: Bytes,
    ) -> Result<Bytes, RequestErrorKind> {
        let request = self
            .queue
            .client
            .request(format!("{relay}.{word}"), payload);
        match timeout(RESPONSE_TIMEOUT, request).await {
            Ok(Ok(answer)) => Ok(answer.payload),
            Ok(Err(error)) => Err(error.kind()),
            Err(_) => Err(RequestErrorKind::TimedOut),
        }
    }
}

/// Acquires `least` permits, waiting if necessary, and as many more as are free, up to `most` in total.
async fn acquire_range(
    of: &Arc<Semaphore>,
    least: u32,
    most: usize,
) -> Result<OwnedSemaphorePermit, String> {
    let least_of = Arc::clone(of).acquire_many_owned(least).await;
    let mut all = least_of.map_err(|_| "the slots are closed".to_owned())?;
    let more = most.saturating_sub(all.num_permits());
    let more = u32::try_from(of.available_permits().min(more)).unwrap_or(u32::MAX);
    if let Ok(more) = Arc::clone(of).try_acquire_many_owned(more) {
        all.merge(more);
    }
    Ok(all)
}

/// A payload with its memory permits, which are released with its last reference.
struct CountedPayload {
    payload: Bytes,
    _memory: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for CountedPayload {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

/// Returns an attempt to NATS, for redelivery after a short time.
async fn return_attempt(message: &Message, after: Option<Duration>) {
    acknowledge(message, AckKind::Nak(after)).await;
}

/// Acknowledges an attempt to NATS in this way. If that is lost, NATS redelivers the attempt later.
async fn acknowledge(message: &Message, what: AckKind) {
    // While NATS is unavailable its send buffer may be full.
    let _ = timeout(RESPONSE_TIMEOUT, message.ack_with(what)).await;
}
