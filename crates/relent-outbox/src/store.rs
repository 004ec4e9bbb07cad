//! Stores of messages, endpoints and attempts.
//!
//! One worker at a time owns an endpoint, so the limits of the endpoint hold for the whole fleet. A worker keeps a
//! lease by [heartbeats](Store::heartbeat). Another worker takes over the endpoints of an expired lease with a higher
//! fencing token ([`Fence`]); writes with an earlier token are rejected. All times are those of the store.

pub mod conformance;
mod hints;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use hints::{Hinted, Hints};
#[cfg(feature = "postgres")]
pub use postgres::{Postgres, PostgresError};
#[cfg(feature = "sqlite")]
pub use sqlite::{Sqlite, SqliteError};

use std::error::Error;
use std::fmt;
use std::future::Future;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::endpoint::{Activity, Endpoint};
use crate::message::{InvalidMessage, MessageId, NewEvent, NewMessage, is_name};

/// A store of messages, endpoints and attempts: see the [module](self). Clones refer to the same store.
///
/// Each method is one transaction, unless its documentation says otherwise. No method waits for HTTP.
pub trait Store: Clone + Send + Sync + 'static {
    /// The error of a failed operation.
    type Error: Error + Send + Sync + 'static;

    // Producers.

    /// Enqueues all of these messages or none. A message that is enqueued repeatedly is stored once. Durable when it
    /// returns.
    ///
    /// A message is refused if it is [invalid](NewMessage::check), if its endpoint is not registered, or if it is
    /// already stored with another payload, content type, topic or order key. Then no message is enqueued. A different
    /// delay is accepted and ignored.
    fn enqueue(
        &self,
        messages: Vec<NewMessage>,
    ) -> impl Future<Output = Result<Vec<Enqueued>, EnqueueError<Self::Error>>> + Send;

    /// Enqueues a message for each endpoint of the event's tenant that has [subscribed](Endpoint::topics) to its topic,
    /// as [`enqueue`](Self::enqueue) does, in one transaction for all events. Returns the messages of each event,
    /// ordered by the endpoint's name. An event without subscribers leaves no trace.
    ///
    /// An event that is published again is enqueued only for endpoints that have subscribed since. The index of a
    /// [refusal](EnqueueError::Refused) is that of the event. More than [`MAX_FAN_OUT`] messages, or more than
    /// [`MAX_FAN_OUT_BYTES`] of payloads, are refused.
    fn publish(
        &self,
        events: Vec<NewEvent>,
    ) -> impl Future<Output = Result<Vec<Published>, EnqueueError<Self::Error>>> + Send;

    // Workers.

    /// Returns notifications of enqueued messages, so that workers need not poll often. Notifications may be lost:
    /// workers poll nevertheless. The default implementation sends none.
    fn hints(&self) -> Hints {
        Hints::none()
    }

    /// Sends a heartbeat: the worker's lease runs from now on; a lease of zero ends it. Workers with expired leases are
    /// deleted, and their endpoints have no owner. `able`: the worker can make attempts, and gets a
    /// [share](Heartbeat::share) of the endpoints.
    fn heartbeat(
        &self,
        worker: &str,
        lease: Duration,
        able: bool,
    ) -> impl Future<Output = Result<Heartbeat, Self::Error>> + Send;

    /// Lists active endpoints with messages due within `within`, or left running by an earlier owner. They belong to
    /// this worker or to none; at most `most` of them, the earliest due first. Until the next claim, the list may
    /// include an endpoint all of whose due messages wait behind others with their order keys.
    fn find_work(
        &self,
        worker: &str,
        within: Duration,
        most: usize,
    ) -> impl Future<Output = Result<Vec<EndpointWork>, Self::Error>> + Send;

    /// Takes those of these endpoints that are active and have no owner, whose owner's lease has expired, or that this
    /// worker already owns: a worker that has lost the result calls it again. Each gets a fencing token higher than
    /// ever before, so running attempts become [lost](Claimed::lost). Takes none if the worker has no lease.
    fn acquire(
        &self,
        worker: &str,
        endpoints: Vec<i64>,
    ) -> impl Future<Output = Result<Vec<OwnedEndpoint>, Self::Error>> + Send;

    /// Releases those of these endpoints that the worker owns with this fencing token. Running attempts may still be
    /// settled until another worker takes the endpoint.
    fn release(
        &self,
        worker: &str,
        endpoints: Vec<(i64, Fence)>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Claims due messages, [in this order](ClaimRequest::first), and counts an attempt for each. Messages that an earlier
    /// owner has left running come first, and are not counted again. Claims none of an endpoint that is disabled or
    /// that the worker does not own with this fencing token, and none if the worker has no lease.
    ///
    /// If the [revision](EndpointWork::revision) of an endpoint differs from the one that the worker knows, none of its
    /// messages is claimed. The current endpoint is [returned](Claims::changed) instead. An attempt claimed after a
    /// change therefore follows the change. An attempt claimed before it may start within [`GRANT`] of the request, and
    /// later only if it is [confirmed](Self::confirm).
    ///
    /// A message with an order key is claimed only if no other message of this endpoint and key is running, and no
    /// earlier one is pending, or dead where the endpoint [blocks](crate::endpoint::OnDeadLetter::Block) after it. So one
    /// attempt of each key runs at a time, also after a [resend](Self::resend) or a late commit of an earlier message.
    ///
    /// An unreadable message, such as one written by another version, becomes dead with a reason; the others are
    /// claimed.
    fn claim(
        &self,
        worker: &str,
        wanted: Vec<ClaimRequest>,
    ) -> impl Future<Output = Result<Claims, Self::Error>> + Send;

    /// Checks for each of these claimed messages that its attempt may start, within [`GRANT`] of this request. Returns
    /// the payload, or an empty one if none is requested. `None` unless the attempt runs with this fencing token, which
    /// is the endpoint's, and the worker owns the endpoint, which is active and has this [revision](EndpointWork::revision).
    /// Changes nothing.
    fn confirm(
        &self,
        worker: &str,
        attempts: Vec<ConfirmRequest>,
    ) -> impl Future<Output = Result<Vec<Option<Bytes>>, Self::Error>> + Send;

    /// Writes the results of these attempts. For each, returns whether it was written: only if the attempt with this
    /// number and start of the schedule is running with this fencing token, which is the endpoint's. A repeated write
    /// after a lost response therefore changes no later attempt. A result is accepted after the endpoint was released
    /// or disabled, or the lease has expired, until another worker takes the endpoint. Health and activity of the
    /// endpoint are written only while it has the [revision](Settled::revision) of the attempt.
    fn settle(
        &self,
        settled: Vec<Settled>,
    ) -> impl Future<Output = Result<Vec<bool>, Self::Error>> + Send;

    // Operators.

    /// Registers an endpoint, or replaces the one of this tenant and name. A replacement increments its
    /// [`revision`](EndpointWork::revision); its messages, activity and worker stay. Its [health](Settled::health) stays
    /// unless the URL changes, since failures of the old receiver are no evidence about the new one. Every attempt that
    /// starts after this returns follows the change. If attempts of the endpoint run, it waits for [`GRANT`], after
    /// which none of them can still start.
    fn put_endpoint(
        &self,
        endpoint: Endpoint,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Registers or replaces an endpoint as [`put_endpoint`](Self::put_endpoint) does, if its
    /// [revision](EndpointStatus::revision) is still this one, or with `None` if it does not exist. Returns `false`
    /// otherwise, without a change. A caller can thus change an endpoint that it has read, without undoing other
    /// changes.
    fn replace_endpoint(
        &self,
        endpoint: Endpoint,
        revision: Option<i64>,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Deletes an endpoint with all its messages. Unless `discard` is set, it refuses if some are pending, running or
    /// dead. It deletes in batches, the endpoint last: deletions before an error, or before a new message, stay. A
    /// message enqueued meanwhile is deleted, or keeps the endpoint; a later one is refused. A running attempt
    /// continues but is not recorded; none starts after this returns.
    fn delete_endpoint(
        &self,
        tenant: &str,
        name: &str,
        discard: bool,
    ) -> impl Future<Output = Result<Deletion, Self::Error>> + Send;

    /// Returns the endpoint of this tenant and name.
    fn endpoint(
        &self,
        tenant: &str,
        name: &str,
    ) -> impl Future<Output = Result<Option<EndpointStatus>, Self::Error>> + Send;

    /// Lists endpoints ordered by tenant and name, after this one.
    fn endpoints(
        &self,
        after: Option<(String, String)>,
        most: usize,
    ) -> impl Future<Output = Result<Vec<EndpointStatus>, Self::Error>> + Send;

    /// Enables or disables an endpoint, with the reason. A disabled endpoint accepts messages, but none is claimed
    /// there, and no attempt starts after this returns. Enabling a disabled endpoint clears its
    /// [health](Settled::health), so that the old failures do not disable it again. It also increments the
    /// [`revision`](EndpointWork::revision), so that the worker clears its copy. Returns `false` if there is no such endpoint.
    fn set_activity(
        &self,
        tenant: &str,
        name: &str,
        activity: Activity,
        reason: &str,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Lists endpoints that need attention: disabled, with dead letters, or with a failed last attempt. Disabled ones
    /// come first; each group is ordered by tenant and name. At most `most` of them.
    fn endpoints_needing_attention(
        &self,
        most: usize,
    ) -> impl Future<Output = Result<Vec<EndpointStatus>, Self::Error>> + Send;

    /// Returns statistics of an endpoint's attempts in the last [`RECENT`], as far as they are among the last
    /// [`RECENT_ATTEMPTS`] of the whole outbox. `None` if there is no such endpoint.
    fn recent(
        &self,
        tenant: &str,
        name: &str,
    ) -> impl Future<Output = Result<Option<Recent>, Self::Error>> + Send;

    /// Lists at most `most` messages, the latest enqueued first.
    fn messages(
        &self,
        filter: Filter,
        most: usize,
    ) -> impl Future<Output = Result<Vec<MessageStatus>, Self::Error>> + Send;

    /// Lists the attempts of a message in their order. For a schedule without an end, the first 10 and the last 40 to
    /// 49 are kept.
    fn attempts(
        &self,
        id: &MessageId,
    ) -> impl Future<Output = Result<Vec<AttemptRecord>, Self::Error>> + Send;

    /// Returns the payload of a message. `None` if there is no such message.
    fn content(
        &self,
        id: &MessageId,
    ) -> impl Future<Output = Result<Option<Content>, Self::Error>> + Send;

    /// Makes pending messages due now, and returns their number. Attempts so far and schedule stay as they are. A
    /// message with an order key still waits for earlier ones, and the limits of the endpoint apply. It works in
    /// batches, the earliest first: changes before an error stay.
    fn send_now(&self, filter: Filter) -> impl Future<Output = Result<u64, Self::Error>> + Send;

    /// Delivers messages again that are delivered, dead or cancelled, and returns their number. Their schedule
    /// restarts; their identifiers stay. It works in batches, the earliest first: changes before an error stay. A message
    /// that ends after this was called is not selected, so it does not resend what it has resent. A caller that repeats
    /// it after an error sets [`ended_until_ms`](Filter::ended_until_ms) for the same reason.
    fn resend(&self, filter: Filter) -> impl Future<Output = Result<u64, Self::Error>> + Send;

    /// Cancels pending or dead messages, and returns their number. It works in batches: changes before an error stay.
    fn cancel(&self, filter: Filter) -> impl Future<Output = Result<u64, Self::Error>> + Send;

    /// Returns the value that [`replace_key_check`](Self::replace_key_check) has stored, by which workers check that
    /// they have the key of this store. `None` if there is none.
    fn key_check(&self) -> impl Future<Output = Result<Option<String>, Self::Error>> + Send;

    /// Stores this value in place of `before`. Returns `false`, without a change, if another value is stored.
    fn replace_key_check(
        &self,
        check: String,
        before: Option<String>,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Deletes at most `most` messages that were delivered, died or were cancelled at least `age` ago by the clock of
    /// the store, with their attempts, and returns their number. Dead letters that block others by their order key
    /// stay. An event whose message was deleted counts as new when it is enqueued again.
    fn purge(
        &self,
        age: Duration,
        most: usize,
    ) -> impl Future<Output = Result<u64, Self::Error>> + Send;

    /// Returns the number of messages in each state, and the age of the oldest due message.
    fn summary(&self) -> impl Future<Output = Result<Summary, Self::Error>> + Send;
}

/// The result of enqueuing a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Enqueued {
    /// The identifier of the message.
    pub id: MessageId,
    /// Whether it was already stored.
    pub duplicate: bool,
}

/// The messages of one [published](Store::publish) event: the name of each endpoint with the result of enqueuing.
pub type Published = Vec<(String, Enqueued)>;

/// The largest number of messages that one call of [`Store::publish`] enqueues.
pub const MAX_FAN_OUT: usize = 10_000;
/// The largest total size of the payloads of these messages: 64 MiB.
pub const MAX_FAN_OUT_BYTES: usize = 64 << 20;

/// Collects the messages of events, within the limits of [`Store::publish`].
#[cfg(any(feature = "postgres", feature = "sqlite"))]
#[derive(Default)]
struct FanOut {
    messages: Vec<NewMessage>,
    /// For each message, the index of its event.
    events: Vec<usize>,
    bytes: usize,
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl FanOut {
    fn add(&mut self, index: usize, message: NewMessage) -> Result<(), Refusal> {
        self.bytes = self.bytes.saturating_add(message.payload.len());
        if self.messages.len() == MAX_FAN_OUT || self.bytes > MAX_FAN_OUT_BYTES {
            return Err(Refusal::TooManyEndpoints);
        }
        self.messages.push(message);
        self.events.push(index);
        Ok(())
    }

    /// Replaces the index of the message by that of its event.
    fn refused<E>(&self, error: EnqueueError<E>) -> EnqueueError<E> {
        match error {
            EnqueueError::Refused { index, refusal } => EnqueueError::Refused {
                index: self.events.get(index).copied().unwrap_or_default(),
                refusal,
            },
            error => error,
        }
    }

    /// Groups the results by event.
    fn published(self, events: usize, enqueued: Vec<Enqueued>) -> Vec<Published> {
        let mut published = vec![Published::new(); events];
        let all = self.events.into_iter().zip(self.messages).zip(enqueued);
        for ((index, message), enqueued) in all {
            if let Some(of) = published.get_mut(index) {
                of.push((message.endpoint, enqueued));
            }
        }
        published
    }
}

/// The reason that no message is enqueued.
#[derive(Debug)]
#[non_exhaustive]
pub enum EnqueueError<E> {
    /// A message is refused.
    Refused {
        /// Its index among the arguments, from 0.
        index: usize,
        /// The reason.
        refusal: Refusal,
    },
    /// The store fails. Enqueue the messages again.
    Store(E),
}

/// The reason for refusing a message.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The message is invalid.
    Invalid(InvalidMessage),
    /// The endpoint is not registered.
    UnknownEndpoint,
    /// The same event is stored under this identifier with another payload, content type, topic or order key.
    OtherPayload(MessageId),
    /// The event and those before it address more endpoints than one call may.
    TooManyEndpoints,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(invalid) => invalid.fmt(f),
            Self::UnknownEndpoint => {
                f.write_str("no endpoint has this tenant and name: register it first")
            }
            Self::OtherPayload(id) => write!(
                f,
                "the message {id} tells of the same event with another payload, content type, topic or order key: give each event \
                 an identifier of its own"
            ),
            Self::TooManyEndpoints => write!(
                f,
                "with the events before it, it makes more than {MAX_FAN_OUT} messages or {} MiB: publish fewer events in one \
                 call, or send a reference to a large payload",
                MAX_FAN_OUT_BYTES >> 20
            ),
        }
    }
}

impl<E: fmt::Display> fmt::Display for EnqueueError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { index, refusal } => {
                write!(
                    f,
                    "nothing is enqueued, for the message at index {index}: {refusal}"
                )
            }
            Self::Store(error) => write!(f, "nothing is enqueued: {error}"),
        }
    }
}

impl<E: Error> Error for EnqueueError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // `Display` already includes the text of the store's error.
        match self {
            Self::Refused { .. } => None,
            Self::Store(error) => error.source(),
        }
    }
}

impl<E> From<E> for EnqueueError<E> {
    fn from(error: E) -> Self {
        Self::Store(error)
    }
}

/// The result of deleting an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deletion {
    /// No endpoint has this tenant and name.
    Unknown,
    /// The endpoint stays, because some of its messages were not delivered.
    Refused {
        /// The number of messages that wait or run.
        pending: u64,
        /// The number of dead letters.
        dead: u64,
    },
    /// The endpoint is deleted.
    Deleted {
        /// The number of messages deleted with it.
        messages: u64,
    },
}

/// The response to a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// Whether the worker had a lease until now; `false` for a new worker. If `false`, other workers may own its
    /// endpoints.
    pub kept: bool,
    /// The number of active endpoints divided by that of live workers that are able to make attempts, rounded up. Zero
    /// for a worker that is not able. If none is, each counts.
    pub share: usize,
}

impl Heartbeat {
    /// The share of a worker, of these numbers of active endpoints, of live workers, and of those that are able.
    #[cfg(any(test, feature = "sqlite", feature = "postgres"))]
    pub(crate) fn share_of(active: u64, live: u64, able: u64, is_able: bool) -> usize {
        let workers = match (able, is_able) {
            (0, _) => live,
            (_, true) => able,
            (_, false) => return 0,
        };
        usize::try_from(active.div_ceil(workers.max(1))).unwrap_or(usize::MAX)
    }
}

/// A fencing token, incremented whenever a worker takes the endpoint. Writes with an earlier token are rejected.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fence(pub i64);

/// An endpoint with due messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndpointWork {
    /// The endpoint's row.
    pub endpoint: i64,
    /// The fencing token, if this worker owns the endpoint.
    pub owned: Option<Fence>,
    /// The time until its next message is due; zero if one is due or was left running.
    pub due: Duration,
    /// Incremented when the endpoint is [registered](Store::put_endpoint) again, even after deletion, or enabled after
    /// it was disabled. A worker that holds a lower revision has an old URL or health, and reads the endpoint again.
    pub revision: i64,
}

/// An endpoint that a worker has taken.
#[derive(Clone, PartialEq, Debug)]
pub struct OwnedEndpoint {
    /// The endpoint's row.
    pub id: i64,
    /// The fencing token for writes.
    pub fence: Fence,
    /// The registered endpoint.
    pub endpoint: Endpoint,
    /// The [revision](EndpointWork::revision) of `endpoint`.
    pub revision: i64,
    /// The last value of [`Settled::health`]; empty if there is none.
    pub health: Vec<u8>,
}

/// The time in which an attempt may start after it was claimed or [confirmed](Store::confirm): 500 ms, counted from
/// before the request. A change of an endpoint takes as long to return while attempts of the endpoint run.
pub const GRANT: Duration = Duration::from_millis(500);
/// The largest payload that is claimed with its message: 8 KiB. The worker [loads](Store::confirm) a larger one when
/// the attempt starts.
pub const INLINE: usize = 8 << 10;

/// A request for messages of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ClaimRequest {
    /// The endpoint's row.
    pub endpoint: i64,
    /// The worker's fencing token of the endpoint.
    pub fence: Fence,
    /// The [revision](EndpointWork::revision) that the worker knows.
    pub revision: i64,
    /// The largest number of messages. Zero only checks whether the endpoint has changed.
    pub most: usize,
    /// The order in which due messages are claimed.
    pub first: ClaimOrder,
}

impl ClaimRequest {
    /// Requests at most `most` messages of an endpoint that the worker has taken, the earliest due first.
    #[must_use]
    pub const fn of(owned: &OwnedEndpoint, most: usize) -> Self {
        Self {
            endpoint: owned.id,
            fence: owned.fence,
            revision: owned.revision,
            most,
            first: ClaimOrder::Due,
        }
    }

    /// Sets the order in which due messages are claimed.
    #[must_use]
    pub const fn first(mut self, first: ClaimOrder) -> Self {
        self.first = first;
        self
    }
}

/// The order in which due messages are claimed. A message is fresh if it was never attempted and never
/// [resent](Store::resend).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClaimOrder {
    /// The earliest due first.
    #[default]
    Due,
    /// Fresh messages first, the earliest due first; then the others. Only the first 10,000 due messages are searched.
    Fresh,
    /// Fresh messages first, the latest due first; then the others. Only the last 10,000 due messages are searched.
    Newest,
}

/// The result of a claim.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Claims {
    /// The claimed messages.
    pub messages: Vec<Claimed>,
    /// Endpoints of which none was claimed, because their revision differs from the one that the worker knows. They are
    /// in their current form, with the same fencing token.
    pub changed: Vec<OwnedEndpoint>,
}

/// A claimed message whose attempt is about to start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConfirmRequest {
    /// The message's row.
    pub row: i64,
    /// The endpoint's row.
    pub endpoint: i64,
    /// The fencing token that the message was claimed with.
    pub fence: Fence,
    /// The [revision](EndpointWork::revision) that the attempt follows.
    pub revision: i64,
    /// Whether to return the payload.
    pub payload: bool,
}

/// A message to send, or one that was lost with its worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claimed {
    /// The message's row.
    pub row: i64,
    /// The endpoint's row.
    pub endpoint: i64,
    /// The fencing token to settle with.
    pub fence: Fence,
    /// The [revision](EndpointWork::revision) that the attempt follows.
    pub revision: i64,
    /// The identifier that is sent.
    pub id: MessageId,
    /// The media type of the payload.
    pub content_type: String,
    /// The payload; empty if the message was lost, or if it is larger than [`INLINE`].
    pub payload: Bytes,
    /// The size of the payload in bytes; 0 if the message was lost.
    pub size: usize,
    /// The number of attempts, including this one.
    pub attempt: u32,
    /// Whether other messages wait for it, or may, by an order key.
    pub ordered: bool,
    /// The last value of [`Settled::session`]; empty if there is none. After a [resend](Store::resend) it is a marker
    /// and no schedule.
    pub session: Vec<u8>,
    /// The start of its schedule: the time at which it was enqueued, plus its [delay](NewMessage::delay), or
    /// [resent](Store::resend) or [sent now](Store::send_now). It grows by a microsecond whenever the message was
    /// [not sent](AfterAttempt::is_unsent).
    pub began: SystemTime,
    /// The time of the store.
    pub now: SystemTime,
    /// The start of this attempt, in the time of the store: [`now`](Self::now) unless it was lost.
    pub started: SystemTime,
    /// An earlier owner has started this attempt and not settled it, so its outcome is unknown. Do not send it now.
    pub lost: bool,
}

impl Claimed {
    /// Whether the message is [fresh](ClaimOrder), and this is its first attempt.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        !self.lost && self.attempt == 1 && self.session.is_empty()
    }
}

/// The result of a claimed message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settled {
    /// The message's row.
    pub row: i64,
    /// The endpoint's row.
    pub endpoint: i64,
    /// The fencing token of the claim.
    pub fence: Fence,
    /// The [revision](EndpointWork::revision) that the attempt followed. If the endpoint has another one by now, its health and
    /// activity stay unchanged.
    pub revision: i64,
    /// The attempt: [`Claimed::attempt`].
    pub number: u32,
    /// The start of the schedule: [`Claimed::began`]. A resent message counts its attempts from 1 again, and an unsent
    /// attempt reuses its number. Each starts later than before, so a result cannot be taken for that of another
    /// attempt.
    pub began: SystemTime,
    /// Whether others may wait for it by an order key: [`Claimed::ordered`].
    pub ordered: bool,
    /// The next step of the message.
    pub next: AfterAttempt,
    /// The state of its schedule: [`Session::save`](relent_core::Session::save).
    pub session: Vec<u8>,
    /// The record of the attempt; `None` if nothing was sent.
    pub attempt: Option<AttemptRecord>,
    /// The new health of the endpoint; `None` to leave it unchanged.
    pub health: Option<Vec<u8>>,
    /// The reason to disable the endpoint; `None` to leave it unchanged.
    pub disable: Option<String>,
}

/// The next step of a message after an attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AfterAttempt {
    /// It is acknowledged.
    Delivered,
    /// Another attempt follows after this delay.
    Again(Duration),
    /// It was certainly not sent: it is due as before, and the attempt does not count. Not for a [lost](Claimed::lost)
    /// attempt.
    Unsent,
    /// It was certainly not sent, and is due after this delay because of a [local fault](crate::fault). The reason is
    /// shown until the next attempt ends.
    Held(Duration, String),
    /// No attempt follows, for this reason.
    Dead(String),
}

impl AfterAttempt {
    /// Whether the attempt was certainly not made, and does not count.
    #[must_use]
    pub const fn is_unsent(&self) -> bool {
        matches!(self, Self::Unsent | Self::Held(..))
    }
}

/// The state of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MessageState {
    /// It waits for an attempt.
    Pending,
    /// An attempt is running.
    Running,
    /// It is acknowledged.
    Delivered,
    /// No attempt follows: a dead letter.
    Dead,
    /// An operator or program has cancelled it.
    Cancelled,
}

impl fmt::Display for MessageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        })
    }
}

/// The stored record of an attempt. A NUL in a text is stored as U+FFFD, because PostgreSQL cannot store it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// The number of the attempt; the first is 1.
    pub number: u32,
    /// The start, in milliseconds since 1970.
    pub started_ms: i64,
    /// The duration, in milliseconds.
    pub duration_ms: u32,
    /// The status of the response, if there was one.
    pub status: Option<u16>,
    /// The error; empty if the message was acknowledged.
    pub error: String,
    /// The beginning of the response body.
    pub excerpt: String,
    /// The address that it was sent to; empty if there was no connection.
    pub address: String,
    /// The request's header fields in their [visible](crate::headers::visible) form. Not serialized, because more
    /// people may see the rest of the record.
    #[serde(skip)]
    pub request: String,
    /// The response's header fields in their visible form; empty if there was no response.
    #[serde(skip)]
    pub response: String,
}

/// The content of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Content {
    /// The media type of the payload.
    pub content_type: String,
    /// The payload as it is sent.
    pub payload: Bytes,
}

/// The period that [`Store::recent`] covers: 15 min.
pub const RECENT: Duration = Duration::from_secs(900);
/// The number of latest attempts of the whole outbox that [`Store::recent`] considers: 20,000.
pub const RECENT_ATTEMPTS: usize = 20_000;

/// Statistics of the latest attempts at an endpoint.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Recent {
    /// The period covered, in milliseconds: less than [`RECENT`] if there are many attempts.
    pub window_ms: u64,
    /// The number of attempts.
    pub attempts: u64,
    /// The number of acknowledged attempts.
    pub acknowledged: u64,
    /// Attempts per minute.
    pub per_minute: f64,
    /// The median duration, in milliseconds; `None` if there was no attempt.
    pub p50_ms: Option<u64>,
    /// The 99th percentile of the duration, in milliseconds.
    pub p99_ms: Option<u64>,
}

impl Recent {
    /// Computes the statistics from the duration and success of all attempts since `from_ms`.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    fn of(now_ms: i64, from_ms: i64, attempts: &[(u64, bool)]) -> Self {
        let window_ms = u64::try_from(now_ms.saturating_sub(from_ms)).unwrap_or_default();
        let mut took: Vec<_> = attempts.iter().map(|(took, _)| *took).collect();
        took.sort_unstable();
        // Nearest-rank method.
        let quantile = |percent: usize| {
            let rank = (took.len() * percent).div_ceil(100);
            took.get(rank.checked_sub(1)?).copied()
        };
        let count = attempts.len() as u64;
        Self {
            window_ms,
            attempts: count,
            acknowledged: attempts.iter().filter(|(_, is_ok)| *is_ok).count() as u64,
            per_minute: count as f64 * 60_000.0 / window_ms.max(1000) as f64,
            p50_ms: quantile(50),
            p99_ms: quantile(99),
        }
    }
}

/// An endpoint with its status.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// The registered endpoint.
    pub endpoint: Endpoint,
    /// The [revision](EndpointWork::revision) of `endpoint`.
    pub revision: i64,
    /// Whether messages are sent there.
    pub activity: Activity,
    /// The reason that it is disabled; empty if it is not.
    pub reason: String,
    /// The worker that owns it; empty if there is none.
    pub worker: String,
    /// The number of messages that wait or run.
    pub pending: u64,
    /// The number of dead letters.
    pub dead: u64,
    /// For how long the oldest due message has been due, in milliseconds; `None` if none is due.
    pub lag_ms: Option<u64>,
    /// The recorded health: see [`Settled::health`].
    #[serde(skip)]
    pub health: Vec<u8>,
}

/// A message with its status.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MessageStatus {
    /// The identifier.
    pub id: MessageId,
    /// The position in the order of enqueuing, for [`Filter::before`].
    #[serde(skip)]
    pub place: i64,
    /// The owner of its endpoint.
    pub tenant: String,
    /// The name of the endpoint.
    pub endpoint: String,
    /// The producer's identifier of the event.
    pub event: String,
    /// The kind of event.
    pub topic: String,
    /// The order key.
    pub order: Option<String>,
    /// The dead letter with the same order key that it waits behind, if any.
    pub blocked_by: Option<MessageId>,
    /// Whether it is pending behind another message with the same order key: a dead letter, or one that is not
    /// delivered yet.
    #[serde(skip)]
    pub is_behind: bool,
    /// The reason that its endpoint is disabled; `None` if the endpoint is active.
    #[serde(skip)]
    pub disabled: Option<String>,
    /// The state.
    pub state: MessageState,
    /// The reason that it is dead, cancelled or [held](AfterAttempt::Held); empty otherwise.
    pub reason: String,
    /// The error of its last attempt: [`AttemptRecord::error`]; empty if there was none.
    pub last_error: String,
    /// The number of attempts since it was enqueued or resent.
    pub attempts: u32,
    /// The time of enqueuing, in milliseconds since 1970.
    pub created_ms: i64,
    /// The time at which the next attempt is due, if it waits.
    pub due_ms: Option<i64>,
    /// The time at which it was delivered, became a dead letter or was cancelled, in milliseconds since 1970.
    pub ended_ms: Option<i64>,
}

/// Selects messages. Each field narrows the selection; the default selects all.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// The message with this identifier.
    pub id: Option<MessageId>,
    /// Messages of this tenant.
    pub tenant: Option<String>,
    /// Messages to this endpoint.
    pub endpoint: Option<String>,
    /// Messages about this event.
    pub event: Option<String>,
    /// Messages whose event or identifier begins with this text.
    pub search: Option<String>,
    /// Messages of this topic, or of one that this [pattern](crate::topic) covers, such as `order.*`.
    pub topic: Option<String>,
    /// Messages in this state.
    pub state: Option<MessageState>,
    /// Messages enqueued at this time or later, in milliseconds since 1970.
    pub enqueued_from_ms: Option<i64>,
    /// Messages enqueued before this time, in milliseconds since 1970.
    pub enqueued_until_ms: Option<i64>,
    /// Messages that [ended](MessageStatus::ended_ms) at this time or later, in milliseconds since 1970.
    pub ended_from_ms: Option<i64>,
    /// Messages that [ended](MessageStatus::ended_ms) before this time, in milliseconds since 1970.
    pub ended_until_ms: Option<i64>,
    /// Messages enqueued before the one at this [position](MessageStatus::place), which may be deleted by now: the next
    /// page of a list. Concurrent changes cause no repetition, and no message that stays is missed.
    pub before: Option<i64>,
}

impl Filter {
    /// Its condition on the state of a delivery `d`, in SQL. The states are constants, so that the partial indices by
    /// state are used.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) const fn in_state(&self) -> &'static str {
        match self.state {
            None => "",
            Some(MessageState::Pending) => " AND d.state IN (0, 5)",
            Some(MessageState::Running) => " AND d.state = 1",
            Some(MessageState::Delivered) => " AND d.state = 2",
            Some(MessageState::Dead) => " AND d.state = 3",
            Some(MessageState::Cancelled) => " AND d.state = 4",
        }
    }

    /// Whether it selects all messages.
    #[must_use]
    pub fn is_all(&self) -> bool {
        let all = Self {
            search: self.search.clone().filter(String::is_empty),
            topic: self.topic.clone().filter(|topic| topic == "*"),
            ..Self::default()
        };
        *self == all
    }

    /// Checks that its texts can be names.
    ///
    /// # Errors
    /// [`InvalidMessage`] names one that is too long or contains a NUL.
    pub fn check(&self) -> Result<(), InvalidMessage> {
        for (what, text) in [
            ("tenant", &self.tenant),
            ("endpoint", &self.endpoint),
            ("event", &self.event),
            ("search", &self.search),
            ("topic", &self.topic),
        ] {
            match text.as_deref() {
                None | Some("") => {}
                Some(text) if is_name(text) => {}
                Some(_) => return Err(InvalidMessage::Name(what)),
            }
        }
        Ok(())
    }
}

/// The number of messages in each state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Messages that wait.
    pub pending: u64,
    /// Messages with a running attempt.
    pub running: u64,
    /// Dead letters.
    pub dead: u64,
    /// For how long the oldest message that may be attempted has been due, in milliseconds; `None` if there is none.
    pub lag_ms: Option<u64>,
    /// Disabled endpoints.
    pub disabled: u64,
}

/// Waits until no attempt can still start with a permission from before a change.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
async fn end_of_grants(runs: bool) {
    if runs {
        tokio::time::sleep(GRANT).await;
    }
}

/// SQL condition: the last attempt at the endpoint with alias `e` failed, in the format of
/// [`Health`](crate::health::Health). Replace `NONE` by eight bytes of 0xFF.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const FAILING: &str = "length(e.health) > 8 AND substr(e.health, 2, 8) <> NONE";

/// The number of messages changed in one transaction, so that other transactions wait only briefly.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const MAX_TRANSACTION_ROWS: usize = 500;

/// The number of messages to delete that are searched for at a time: a search may cost as much as the endpoint has.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const MAX_DELETION_ROWS: usize = 20 * MAX_TRANSACTION_ROWS;

/// Splits these rows of an endpoint into full batches. An empty one, for the rest, if they are no full batch.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn batches(rows: &[i64]) -> impl Iterator<Item = &[i64]> {
    let rest = (rows.len() < MAX_TRANSACTION_ROWS).then_some(&[][..]);
    rows.chunks_exact(MAX_TRANSACTION_ROWS).chain(rest)
}

/// Prepares a text for storage: see [`AttemptRecord`].
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Whether a registration changes the URL of this stored endpoint, or the stored one cannot be read.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn changes_url(stored: &str, endpoint: &Endpoint) -> bool {
    let stored: Result<Endpoint, _> = serde_json::from_str(stored);
    stored.map_or(true, |stored| stored.url != endpoint.url)
}

/// The error for a stored endpoint that cannot be read.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn unreadable(tenant: &str, name: &str, error: &serde_json::Error) -> String {
    format!(
        "the endpoint {name:?} of the tenant {tenant:?} is not as this version of relent-outbox writes it ({error}): use \
         the version that registered it, or register it again"
    )
}

/// The error for opening an outbox with tables of a later version.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn later_tables(names: &str) -> String {
    format!(
        "the outbox in this database is of a later version of Relent, which has put its messages into other tables ({names}): \
         run that version, or restore a copy from before it"
    )
}

/// The reason of death of an unreadable message.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn unreadable_message(why: &str) -> String {
    text(&format!(
        "what the store has of it cannot be read ({why}): correct it there and resend it, or cancel it"
    ))
}

/// The number of first attempts kept per schedule.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const FIRST_KEPT: u32 = 10;
/// The least number of last attempts kept per schedule.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const LAST_KEPT: u32 = 40;

/// Returns the attempts of a message to delete after the attempt `number` was written, so that an endless schedule does
/// not fill the store. It deletes ten at a time; published schedules are too short for any deletion.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn forgotten(number: u32) -> Option<RangeInclusive<u32>> {
    let many = number > FIRST_KEPT + LAST_KEPT && number.is_multiple_of(10);
    many.then(|| FIRST_KEPT + 1..=number - LAST_KEPT)
}

/// Converts to milliseconds since 1970; earlier times give 0.
pub(crate) fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Converts to microseconds since 1970. Valid until the year 294246.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn micros(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Adds a delay to a time in microseconds, rounded up.
#[cfg(feature = "sqlite")]
fn later(now: i64, wait: Duration) -> i64 {
    let wait = i64::try_from(wait.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX);
    now.saturating_add(wait)
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn system_time(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}
