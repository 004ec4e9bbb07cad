//! The side of the fleet: takes attempts, asks leave, makes the exchange and says what came of it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::consumer::pull::Batch;
use async_nats::jetstream::{AckKind, Message};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join;
use relent_core::{Failure, Network};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::wire::{self, Attempt};
use super::{ANSWER_WITHIN, HEADROOM, HEARD, PAUSE, Queue, TELL_FOR};
use crate::fault::FaultKind;
use crate::observe::{self, Part};
use crate::sender::{Exchange, Sender};
use crate::text::printable;

/// As many attempts are asked for at once.
const BATCH: usize = 256;
/// Room is counted in so many bytes, and the longest attempt needs so much of it.
const KIB: usize = 1 << 10;
const LONGEST: u32 = 2 << 10;
/// And waited for so long.
const WAIT: Duration = Duration::from_secs(2);

/// How a [`Deliverer`] works.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DelivererConfig {
    /// How many attempts run at once; 1024 unless said otherwise. Each has a connection: the process needs file
    /// descriptors for all of them. All deliverers together should have more than the relays'
    /// [`slow_in_flight`](crate::worker::WorkerConfig::slow_in_flight), so that slow endpoints leave some for the others.
    pub in_flight: usize,
    /// How many bytes of attempts it asks for at once, and holds; 64 MiB unless said otherwise, and 2 MiB at least, so that
    /// the longest fits. An attempt counts until its payload is written to the connection.
    pub body_bytes: usize,
    /// How long running attempts are waited for when it ends; 30 s unless said otherwise.
    pub drain: Duration,
}

impl Default for DelivererConfig {
    fn default() -> Self {
        Self {
            in_flight: 1024,
            body_bytes: 64 << 20,
            drain: Duration::from_secs(30),
        }
    }
}

/// Makes the attempts of a [`Queue`], beside any number of others. It needs no store, and knows no key.
///
/// Its own [`Sender`] says which addresses are called, and how.
#[derive(Debug)]
pub struct Deliverer {
    queue: Queue,
    sender: Sender,
    config: DelivererConfig,
}

impl Deliverer {
    /// A deliverer for this queue.
    #[must_use]
    pub const fn new(queue: Queue, sender: Sender, config: DelivererConfig) -> Self {
        Self {
            queue,
            sender,
            config,
        }
    }

    /// Works until `shutdown` is over, then takes nothing more and waits for the attempts that run, up to
    /// [`DelivererConfig::drain`]. How many it has cut off: their relay counts them as failed with unknown outcome.
    ///
    /// While NATS is away it waits. To be called within a runtime of tokio with time and I/O.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> usize {
        observe::begin(Part::Deliverer);
        let slots = self.config.in_flight.clamp(1, Semaphore::MAX_PERMITS);
        let slots = Arc::new(Semaphore::new(slots));
        let room = self.config.body_bytes.div_ceil(KIB) as u64;
        let room = room.clamp(LONGEST.into(), u32::MAX.into()) as usize;
        let room = Arc::new(Semaphore::new(room.min(Semaphore::MAX_PERMITS)));
        let one = Arc::new(One {
            queue: self.queue,
            sender: self.sender,
        });
        let mut attempts = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        let mut consumer = None;
        loop {
            while attempts.try_join_next().is_some() {}
            let (batch, slots, room) = tokio::select! {
                biased;
                () = &mut shutdown => break,
                asked = one.ask_for_some(&mut consumer, &slots, &room) => match asked {
                    Ok(batch) => batch,
                    Err(error) => {
                        observe::nats_error(&error);
                        consumer = None;
                        tokio::select! {
                            () = &mut shutdown => break,
                            () = sleep(PAUSE) => continue,
                        }
                    }
                }
            };
            match one
                .take(batch, (slots, room), &mut attempts, shutdown.as_mut())
                .await
            {
                Ok(false) => {}
                Ok(true) => break,
                Err(error) => {
                    observe::nats_error(&error);
                    consumer = None;
                }
            }
        }
        let drained = async { while attempts.join_next().await.is_some() {} };
        let _ = timeout(self.config.drain, drained).await;
        let cut_off = attempts.len();
        attempts.shutdown().await;
        cut_off
    }
}

/// What each attempt uses.
struct One {
    queue: Queue,
    sender: Sender,
}

impl One {
    /// Asks for as many attempts as there are slots and room for, once there is one slot, and room for the longest attempt.
    async fn ask_for_some(
        &self,
        consumer: &mut Option<PullConsumer>,
        slots: &Arc<Semaphore>,
        room: &Arc<Semaphore>,
    ) -> Result<(Batch, OwnedSemaphorePermit, OwnedSemaphorePermit), String> {
        let consumer = match consumer {
            Some(consumer) => consumer,
            None => consumer.insert(self.queue.consumer().await?),
        };
        let free = all_of(slots, 1, BATCH).await?;
        let room = all_of(room, LONGEST, usize::MAX).await?;
        let batch = consumer.batch().max_messages(free.num_permits());
        let batch = batch.max_bytes(room.num_permits().saturating_mul(KIB));
        let batch = batch.expires(WAIT).messages().await;
        Ok((batch.map_err(|error| error.to_string())?, free, room))
    }

    /// Begins what comes of that, and gives back what comes after `shutdown`, which ends it: `true`.
    async fn take(
        self: &Arc<Self>,
        mut batch: Batch,
        (mut slots, mut room): (OwnedSemaphorePermit, OwnedSemaphorePermit),
        attempts: &mut JoinSet<()>,
        mut shutdown: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<bool, String> {
        // NATS says when the time is over, unless it is gone.
        let until = Instant::now() + WAIT + PAUSE;
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
                    let bytes = message.payload.len().div_ceil(KIB).min(room.num_permits());
                    let held = room.split(bytes);
                    attempts.spawn(async move {
                        this.attempt(message, held).await;
                        drop(slot);
                    });
                }
                (Ok(Some(Ok(message))), _) => not_now(&message, None).await,
                (Ok(Some(Err(error))), _) if stopping => {
                    // The end was asked for, which is said once.
                    observe::nats_error(&error.to_string());
                    return Ok(true);
                }
                // The next one needs more room than is left of what was asked for.
                (Ok(Some(Err(error))), _) if error.to_string().contains("MaxBytes") => {
                    return Ok(stopping);
                }
                (Ok(Some(Err(error))), _) => return Err(error.to_string()),
                (Ok(None) | Err(_), _) => return Ok(stopping),
            }
        }
    }

    /// Makes an attempt, with room for its payload.
    async fn attempt(&self, mut message: Message, room: Option<OwnedSemaphorePermit>) {
        let payload = std::mem::take(&mut message.message.payload);
        let message = &message;
        let payload = Bytes::from_owner(Counted {
            payload,
            _room: room,
        });
        let attempt = wire::read_attempt(&payload).and_then(|(attempt, payload)| {
            match attempt.relay.starts_with(&self.queue.relays()) {
                true => Ok((attempt, payload)),
                // A relay of this queue is asked, and nobody else.
                false => Err("its relay is not of this queue".to_owned()),
            }
        });
        // What is left of it is held until it is written.
        drop(payload);
        let (attempt, payload) = match attempt {
            Ok(attempt) => attempt,
            Err(wrong) => {
                // Of a relay of another version: its relay takes it back if no other deliverer can read it.
                observe::refused("unreadable", &wrong);
                not_now(message, Some(PAUSE)).await;
                return;
            }
        };
        match self.may_begin(&attempt.relay).await {
            Some(true) => {}
            Some(false) => {
                tell_nats(message, AckKind::Ack).await;
                observe::exchange("withdrawn");
                return;
            }
            None => {
                not_now(message, Some(PAUSE)).await;
                return;
            }
        }
        // From here on it is the relay that has it repeated. If this is not heard, it is asked for the attempt again,
        // and says no. The exchange does not wait for it: while NATS is away that may be longer than there is leave.
        let heard = tell_nats(message, AckKind::Ack);
        let ((), exchange) = join(heard, self.exchange(&attempt, payload)).await;
        let result = match exchange.result {
            Ok(_) => "answered",
            Err(_) => "failed",
        };
        let most = self.queue.client.max_payload().saturating_sub(HEADROOM);
        let told = match wire::answer(exchange, attempt.keep, most) {
            Ok(answer) => self.tell(&attempt.relay, answer).await,
            Err(error) => {
                observe::nats_error(&error);
                false
            }
        };
        observe::exchange(if told { result } else { "untold" });
    }

    /// Whether the relay gives leave to begin; `None` if it does not answer.
    async fn may_begin(&self, relay: &str) -> Option<bool> {
        // Asked again, it knows by this whom it has given leave.
        let name = Bytes::from(uuid::Uuid::now_v7().simple().to_string());
        for _ in 0..3 {
            let asked = Instant::now();
            match self.request(relay, "begin", name.clone()).await {
                Ok(answer) => {
                    let left = match wire::read_leave(&answer) {
                        Ok(left) => left,
                        Err(wrong) => {
                            observe::refused("unreadable", &wrong);
                            return None;
                        }
                    };
                    if left.is_zero() {
                        return Some(false);
                    }
                    // An answer that was late in coming may have nothing left.
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
                let limit = Some(attempt.limit);
                self.sender.exchange(&target, headers, payload, limit).await
            }
            // The options of this process say no, and those of the relay said yes.
            Err(error) => failed(
                Failure::network(Network::Connect),
                format!("the deliverer does not call the URL of the endpoint: {error}"),
                Some(FaultKind::Registration),
            ),
        }
    }

    /// Says what came of it until the relay has heard it. Whether it has, and has taken it.
    async fn tell(&self, relay: &str, answer: Bytes) -> bool {
        let until = Instant::now() + TELL_FOR;
        loop {
            if let Ok(said) = self.request(relay, "end", answer.clone()).await {
                let taken = said == HEARD;
                if !taken {
                    observe::nats_error(&printable(&String::from_utf8_lossy(&said), 1024));
                }
                return taken;
            }
            if Instant::now() + PAUSE >= until {
                return false;
            }
            sleep(PAUSE).await;
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
        match timeout(ANSWER_WITHIN, request).await {
            Ok(Ok(answer)) => Ok(answer.payload),
            Ok(Err(error)) => Err(error.kind()),
            Err(_) => Err(RequestErrorKind::TimedOut),
        }
    }
}

/// So many permits, once there are as many, and what there is beside them up to so many.
async fn all_of(
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

/// A payload and its room, until nothing holds it any more.
struct Counted {
    payload: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

/// Gives an attempt back, to be had again after a short time.
async fn not_now(message: &Message, after: Option<Duration>) {
    tell_nats(message, AckKind::Nak(after)).await;
}

/// Says what becomes of an attempt. If it is not heard, NATS gives it to another deliverer later.
async fn tell_nats(message: &Message, what: AckKind) {
    // While NATS is away there may be no room for it.
    let _ = timeout(ANSWER_WITHIN, message.ack_with(what)).await;
}
