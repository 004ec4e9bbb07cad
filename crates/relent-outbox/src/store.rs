//! Where messages and what became of them are kept.
//!
//! An endpoint belongs to one worker at a time, so its limits hold for the whole fleet. A worker keeps a lease by
//! [beating](Store::beat); whoever finds the lease of another expired takes its endpoints over, with a higher fence, and
//! nothing is written with the fence of before. All times are those of the store.

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

/// Keeps messages, endpoints and attempts: see the [module](self). Its clones are the same store.
///
/// Each of its methods is one transaction, unless it says otherwise; none waits for HTTP.
pub trait Store: Clone + Send + Sync + 'static {
    /// Why it fails.
    type Error: Error + Send + Sync + 'static;

    // Producers.

    /// Enqueues these, all or none, each once however often it is enqueued. Durable when it returns.
    ///
    /// A message that [cannot be enqueued](NewMessage::check), whose endpoint is not registered, or that is there with
    /// another payload, content type, topic or order key is refused, and none of the others is enqueued. Its delay may be
    /// another: that of the first time holds.
    fn enqueue(
        &self,
        messages: Vec<NewMessage>,
    ) -> impl Future<Output = Result<Vec<Enqueued>, EnqueueError<Self::Error>>> + Send;

    /// Enqueues a message for each endpoint of the event's tenant that has [subscribed](Endpoint::topics) to its topic: what
    /// [`enqueue`](Self::enqueue) does with them, in one transaction for all these events. For each event its messages, in
    /// the order of the names of the endpoints; none if no endpoint has subscribed, and then nothing is kept of it.
    ///
    /// An event that is published again is enqueued for endpoints that have subscribed since, and for no other. The index
    /// of a [refusal](EnqueueError::Refused) is that of the event. More than [`MAX_FAN_OUT`] messages, or
    /// [`MAX_FAN_OUT_BYTES`] of payloads, are refused.
    fn publish(
        &self,
        events: Vec<NewEvent>,
    ) -> impl Future<Output = Result<Vec<Published>, EnqueueError<Self::Error>>> + Send;

    // Workers.

    /// Tells when something may have been enqueued, and where, so that a worker need not look all the time. What it does
    /// not tell of is there all the same: a worker looks now and then. By default it tells nothing.
    fn hints(&self) -> Hints {
        Hints::none()
    }

    /// The worker lives, and has this lease from now on; with a lease of zero it has none. Workers whose lease has
    /// expired are forgotten, and their endpoints are nobody's.
    fn beat(
        &self,
        worker: &str,
        lease: Duration,
    ) -> impl Future<Output = Result<Beat, Self::Error>> + Send;

    /// Active endpoints with messages that are due before `within` is over, or that an earlier owner has left running,
    /// which are this worker's or nobody's: those whose message is due first, `most` of them. Until the next claim there
    /// it may tell of an endpoint all of whose due messages wait behind others with their order keys.
    fn find_work(
        &self,
        worker: &str,
        within: Duration,
        most: usize,
    ) -> impl Future<Output = Result<Vec<Work>, Self::Error>> + Send;

    /// Takes those of these endpoints that are active and nobody's, whose worker's lease has expired, or that are this
    /// worker's already: whoever lost the answer asks again. Each has a higher fence than ever before, so what ran is
    /// [lost](Claimed::lost). None if the worker has no lease.
    fn acquire(
        &self,
        worker: &str,
        endpoints: Vec<i64>,
    ) -> impl Future<Output = Result<Vec<Owned>, Self::Error>> + Send;

    /// Gives those of these endpoints back that the worker has with this fence. What still runs may be settled until
    /// another takes the endpoint.
    fn release(
        &self,
        worker: &str,
        endpoints: Vec<(i64, Fence)>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Claims messages that are due, [in this order](Wanted::first), and counts an attempt for each; or before them, without
    /// counting, messages that an earlier owner of the endpoint has left running. None of an endpoint that is not the
    /// worker's with this fence, or is disabled; none if the worker has no lease.
    ///
    /// None either of an endpoint whose [revision](Work::revision) is another than the one that the worker knows: what the
    /// endpoint is now is [returned](Claims::changed) instead. So an attempt that is claimed after a change goes by the
    /// change. What was claimed before it may begin for [`GRANT`] from when the claim was asked for, and after that only
    /// if it is [confirmed](Self::confirm).
    ///
    /// A message with an order key is claimed only if no other one to the same endpoint with the same key is running, and
    /// no earlier one is pending, or dead where the endpoint [blocks](crate::endpoint::AfterDead::Block) after it. So of
    /// each key one attempt runs at a time, also after a [resend](Self::resend), and if the transaction of an earlier one
    /// commits late.
    ///
    /// A message that cannot be read, such as one that another version has written, is dead from then on, with the reason,
    /// and the others are claimed.
    fn claim(
        &self,
        worker: &str,
        wanted: Vec<Wanted>,
    ) -> impl Future<Output = Result<Claims, Self::Error>> + Send;

    /// Whether each of these claimed messages may begin its attempt, for [`GRANT`] from when this was asked; with its
    /// payload, or an empty one if that is not asked for. `None` unless its attempt runs with this fence, which is that of
    /// the endpoint, and the endpoint is the worker's, active, and of this [revision](Work::revision). Changes nothing.
    fn confirm(
        &self,
        worker: &str,
        attempts: Vec<Confirm>,
    ) -> impl Future<Output = Result<Vec<Option<Bytes>>, Self::Error>> + Send;

    /// Writes what came of these. For each, whether it was written: not unless the attempt of this number of the schedule
    /// that began then runs with this fence, which is that of the endpoint. So what is written again, because the answer was
    /// lost, changes no later attempt. It may be written after the endpoint was released or disabled, or the lease has expired, as long as nobody
    /// else has taken the endpoint. What it says of the endpoint is written only while the endpoint has the
    /// [revision](Settled::revision) that the attempt was made by.
    fn settle(
        &self,
        settled: Vec<Settled>,
    ) -> impl Future<Output = Result<Vec<bool>, Self::Error>> + Send;

    // Operators.

    /// Registers an endpoint, or replaces the one of this tenant and name: then its [`revision`](Work::revision) rises,
    /// and its messages, its activity and its worker stay. The change is in force for every attempt that begins after this
    /// returns: if attempts of the endpoint run, it waits for [`GRANT`], after which none of them can still begin.
    fn put_endpoint(
        &self,
        endpoint: Endpoint,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// The same if its [revision](EndpointStatus::revision) is still this one, or with `None` if there still is none:
    /// `false` otherwise, and nothing is changed. So that whoever changes what was read undoes no change of others.
    fn replace_endpoint(
        &self,
        endpoint: Endpoint,
        revision: Option<i64>,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Deletes an endpoint with all its messages, unless some of them are pending, running or dead and are not to be
    /// discarded. In batches, the endpoint last: what was done before an error, or before another message came in, stays
    /// done. A message that was enqueued before it is gone is deleted, or keeps it; one that comes later is refused. An
    /// attempt that runs goes on, and is not written down; none begins after this returns.
    fn delete_endpoint(
        &self,
        tenant: &str,
        name: &str,
        discard: bool,
    ) -> impl Future<Output = Result<Deletion, Self::Error>> + Send;

    /// The endpoint of this tenant and name.
    fn endpoint(
        &self,
        tenant: &str,
        name: &str,
    ) -> impl Future<Output = Result<Option<EndpointStatus>, Self::Error>> + Send;

    /// Endpoints in the order of tenant and name, after this one.
    fn endpoints(
        &self,
        after: Option<(String, String)>,
        most: usize,
    ) -> impl Future<Output = Result<Vec<EndpointStatus>, Self::Error>> + Send;

    /// Enables or disables an endpoint, with the reason. While it is disabled nothing is claimed there, and no attempt
    /// begins after this returns; messages are enqueued as before. One that was disabled begins with an empty [health](Settled::health), so that what it was
    /// disabled for does not disable it again, and its [`revision`](Work::revision) rises, so that its worker forgets it too.
    /// `false` if there is none.
    fn set_activity(
        &self,
        tenant: &str,
        name: &str,
        activity: Activity,
        reason: &str,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Endpoints that need somebody: those that are disabled, have dead letters, or whose last attempt failed. The disabled
    /// ones come first, then each group in the order of tenant and name: `most` of them.
    fn troubled_endpoints(
        &self,
        most: usize,
    ) -> impl Future<Output = Result<Vec<EndpointStatus>, Self::Error>> + Send;

    /// How the latest attempts at an endpoint went: those of the last [`RECENT`], as far as they are among the last
    /// [`RECENT_ATTEMPTS`] of the whole outbox. `None` if there is no such endpoint.
    fn recent(
        &self,
        tenant: &str,
        name: &str,
    ) -> impl Future<Output = Result<Option<Recent>, Self::Error>> + Send;

    /// Messages, the one that was enqueued last first: `most` of them.
    fn messages(
        &self,
        filter: Filter,
        most: usize,
    ) -> impl Future<Output = Result<Vec<MessageStatus>, Self::Error>> + Send;

    /// The attempts of a message, in their order. Of a schedule that goes on and on these are the first 10 and the last
    /// 40 to 49.
    fn attempts(
        &self,
        id: &MessageId,
    ) -> impl Future<Output = Result<Vec<AttemptRecord>, Self::Error>> + Send;

    /// What a message holds: its payload. `None` if there is no such message.
    fn content(
        &self,
        id: &MessageId,
    ) -> impl Future<Output = Result<Option<Content>, Self::Error>> + Send;

    /// Makes pending messages due now, whatever they wait for until later: their attempts so far and their schedule stay as
    /// they are. How many are due now. A message with an order key is due now and still waits for those before it; the
    /// limits of its endpoint hold as before. In batches, the earliest first: what was done before an error stays done.
    fn send_now(&self, filter: Filter) -> impl Future<Output = Result<u64, Self::Error>> + Send;

    /// Has messages delivered again, from the beginning of their schedule, with the same identifiers: those that are
    /// delivered, dead or cancelled. How many. In batches, the earliest first: what was done before an error stays done.
    fn resend(&self, filter: Filter) -> impl Future<Output = Result<u64, Self::Error>> + Send;

    /// Cancels messages that are pending or dead. How many. In batches: what was done before an error stays done.
    fn cancel(&self, filter: Filter) -> impl Future<Output = Result<u64, Self::Error>> + Send;

    /// By what workers check that they have the key of this store: what [`replace_key_check`](Self::replace_key_check) has
    /// kept; `None` if nothing was.
    fn key_check(&self) -> impl Future<Output = Result<Option<String>, Self::Error>> + Send;

    /// Keeps this in place of `before`: `false` if something else is kept, and nothing is changed.
    fn replace_key_check(
        &self,
        check: String,
        before: Option<String>,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Forgets messages that were delivered, died or were cancelled before this time, with their attempts: `most` of them.
    /// How many. Dead ones that others wait for by their order key stay. An event that is forgotten is a new one when it
    /// is enqueued again.
    fn purge(
        &self,
        before: SystemTime,
        most: usize,
    ) -> impl Future<Output = Result<u64, Self::Error>> + Send;

    /// How many messages are in each state, and how old the oldest is that is due.
    fn summary(&self) -> impl Future<Output = Result<Summary, Self::Error>> + Send;
}

/// What became of enqueuing a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Enqueued {
    /// Its identifier.
    pub id: MessageId,
    /// Whether it was there already.
    pub duplicate: bool,
}

/// The messages of one [published](Store::publish) event: the endpoint of each, and what became of enqueuing it.
pub type Published = Vec<(String, Enqueued)>;

/// The most messages that one call of [`Store::publish`] enqueues.
pub const MAX_FAN_OUT: usize = 10_000;
/// The most bytes in the payloads of all these messages: 64 MiB.
pub const MAX_FAN_OUT_BYTES: usize = 64 << 20;

/// Gathers the messages of events, within the limits of [`Store::publish`].
#[cfg(any(feature = "postgres", feature = "sqlite"))]
#[derive(Default)]
struct FanOut {
    messages: Vec<NewMessage>,
    /// Of each message the index of its event.
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

    /// Of a refusal the event, and not the message.
    fn refused<E>(&self, error: EnqueueError<E>) -> EnqueueError<E> {
        match error {
            EnqueueError::Refused { index, refusal } => EnqueueError::Refused {
                index: self.events.get(index).copied().unwrap_or_default(),
                refusal,
            },
            error => error,
        }
    }

    /// What became of each event.
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

/// Why nothing is enqueued.
#[derive(Debug)]
#[non_exhaustive]
pub enum EnqueueError<E> {
    /// A message is refused.
    Refused {
        /// Its place among those that were given, from 0.
        index: usize,
        /// What is wrong with it.
        refusal: Refusal,
    },
    /// The store fails. Enqueue them again.
    Store(E),
}

/// What is wrong with a message that is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// It can be no message.
    Invalid(InvalidMessage),
    /// Its endpoint is not registered.
    UnknownEndpoint,
    /// The message with this identifier tells of the same event with another payload, content type, topic or order key.
    OtherPayload(MessageId),
    /// With the events before it, it is for more endpoints than one call may enqueue for.
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
        // The text of the error itself is in this one.
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

/// What became of deleting an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deletion {
    /// No endpoint has this tenant and name.
    Unknown,
    /// It stays, since it has messages that were not delivered.
    Refused {
        /// So many that wait or run.
        pending: u64,
        /// So many dead letters.
        dead: u64,
    },
    /// It is deleted.
    Done {
        /// With so many messages.
        messages: u64,
    },
}

/// What a worker hears when it has said that it lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beat {
    /// Whether it had a lease until now. If not, whatever the worker had may be another's. `false` for a new one.
    pub kept: bool,
    /// How many endpoints each live worker would have, if all active ones were shared equally; rounded up.
    pub share: usize,
}

/// Rises whenever an endpoint is taken. What is written with an earlier one is refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fence(pub i64);

/// An endpoint that has something to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    /// The endpoint.
    pub endpoint: i64,
    /// With which fence it is this worker's.
    pub owned: Option<Fence>,
    /// In how long its next message is due; zero if one is, or was left running.
    pub due: Duration,
    /// Rises when the endpoint is [registered](Store::put_endpoint) anew, also after it was deleted, or enabled after it was
    /// disabled: whoever has it with a lower one has an old URL or health, and reads the endpoint again.
    pub revision: i64,
}

/// An endpoint that was taken.
#[derive(Clone, PartialEq, Debug)]
pub struct Owned {
    /// The endpoint.
    pub id: i64,
    /// The fence to write with.
    pub fence: Fence,
    /// Where it is, and its rules.
    pub endpoint: Endpoint,
    /// Of which [revision](Work::revision) that is.
    pub revision: i64,
    /// What [`Settled::health`] said last; empty if nothing was.
    pub health: Vec<u8>,
}

/// For how long an attempt may begin once it was claimed or [confirmed](Store::confirm), counted from before the store was
/// asked. A change of an endpoint takes as long to return while attempts of the endpoint run.
pub const GRANT: Duration = Duration::from_millis(500);
/// A longer payload, in bytes, is not claimed with its message. The worker [loads](Store::confirm) it when the attempt
/// starts.
pub const INLINE: usize = 8 << 10;

/// Messages of an endpoint that a worker wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Wanted {
    /// The endpoint.
    pub endpoint: i64,
    /// The fence that the worker has it with.
    pub fence: Fence,
    /// The [revision](Work::revision) whose rules the worker knows.
    pub revision: i64,
    /// The most of them. With none, the worker asks whether the endpoint has changed.
    pub most: usize,
    /// Which of them first.
    pub first: First,
}

impl Wanted {
    /// So many messages of an endpoint that was taken, those that are due first.
    #[must_use]
    pub const fn of(owned: &Owned, most: usize) -> Self {
        Self {
            endpoint: owned.id,
            fence: owned.fence,
            revision: owned.revision,
            most,
            first: First::Due,
        }
    }

    /// In this order.
    #[must_use]
    pub const fn first(mut self, first: First) -> Self {
        self.first = first;
        self
    }
}

/// Which of the messages that are due are claimed first. A message is fresh that has never failed: it was neither attempted
/// nor [resent](Store::resend).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum First {
    /// Those that are due first.
    #[default]
    Due,
    /// Fresh ones, those that are due first; then the others. Behind 10,000 that are due earlier none is found.
    Fresh,
    /// Fresh ones, those that are due last; then the others. Before 10,000 that are due later none is found.
    Newest,
}

/// What a claim has come to.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Claims {
    /// The messages.
    pub messages: Vec<Claimed>,
    /// Endpoints of which none was claimed, since their revision is another than the worker knows: as they are now, with
    /// the fence of before.
    pub changed: Vec<Owned>,
}

/// A claimed message whose attempt is to begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Confirm {
    /// The row.
    pub row: i64,
    /// The endpoint.
    pub endpoint: i64,
    /// The fence that it was claimed with.
    pub fence: Fence,
    /// The [revision](Work::revision) whose rules the attempt goes by.
    pub revision: i64,
    /// Whether the payload is wanted.
    pub payload: bool,
}

/// A message to be sent, or one that was lost with its worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claimed {
    /// The row.
    pub row: i64,
    /// The endpoint.
    pub endpoint: i64,
    /// The fence to settle with.
    pub fence: Fence,
    /// The [revision](Work::revision) whose rules the attempt goes by.
    pub revision: i64,
    /// The identifier that is sent.
    pub id: MessageId,
    /// What the payload is.
    pub content_type: String,
    /// The payload; empty if the message was lost, or if it is longer than [`INLINE`].
    pub payload: Bytes,
    /// How many bytes the payload has; 0 if the message was lost.
    pub size: usize,
    /// The attempts so far, with this one.
    pub attempt: u32,
    /// Whether others wait for it, or may, by an order key.
    pub ordered: bool,
    /// What [`Settled::session`] said last; empty if nothing was. After a
    /// [resend](Store::resend) it is no schedule.
    pub session: Vec<u8>,
    /// When it was enqueued, and its schedule began: later if it was [resent](Store::resend), and by a microsecond for each
    /// time that it was [not sent](Next::is_unsent).
    pub began: SystemTime,
    /// The time of the store.
    pub now: SystemTime,
    /// An earlier owner has begun this attempt and not settled it: whether it arrived is unknown. Nothing is to be sent now.
    pub lost: bool,
}

impl Claimed {
    /// Whether it is [fresh](First), and this is its first attempt.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        !self.lost && self.attempt == 1 && self.session.is_empty()
    }
}

/// What came of a claimed message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settled {
    /// The row.
    pub row: i64,
    /// The endpoint.
    pub endpoint: i64,
    /// With this fence.
    pub fence: Fence,
    /// By the rules of this [revision](Work::revision). The endpoint's health and activity stay as they are if it has
    /// another one by now.
    pub revision: i64,
    /// The attempt that this is about: [`Claimed::attempt`].
    pub number: u32,
    /// Of which schedule: [`Claimed::began`]. One that was resent counts its attempts anew, and one that was not sent counts
    /// one of them again: each begins later than before, so nothing is taken for what is about another attempt.
    pub began: SystemTime,
    /// Whether others may wait for it by an order key: [`Claimed::ordered`].
    pub ordered: bool,
    /// What becomes of it.
    pub next: Next,
    /// The state of its schedule: [`Session::save`](relent_core::Session::save).
    pub session: Vec<u8>,
    /// The attempt, to be kept. `None` if nothing was sent.
    pub attempt: Option<AttemptRecord>,
    /// What is to be remembered of the endpoint; `None` to leave it as it is.
    pub health: Option<Vec<u8>>,
    /// Why the endpoint is disabled by this; `None` to leave it as it is.
    pub disable: Option<String>,
}

/// What becomes of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Next {
    /// It is acknowledged.
    Delivered,
    /// Another attempt, so much later than now.
    Again(Duration),
    /// It was surely not sent: it is due as before, and the attempt does not count. Not for one that was
    /// [lost](Claimed::lost).
    Unsent,
    /// The same, and it is due so much later than now: a [fault of this side](crate::fault) holds it, for this reason, which is
    /// shown until the next attempt ends.
    Held(Duration, String),
    /// No attempt follows, for this reason.
    Dead(String),
}

impl Next {
    /// Whether the attempt was surely not made, and does not count.
    #[must_use]
    pub const fn is_unsent(&self) -> bool {
        matches!(self, Self::Unsent | Self::Held(..))
    }
}

/// In which state a message is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It waits for an attempt.
    Pending,
    /// An attempt runs.
    Running,
    /// It is acknowledged.
    Delivered,
    /// No attempt follows: a dead letter.
    Dead,
    /// Somebody has cancelled it.
    Cancelled,
}

impl fmt::Display for State {
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

/// An attempt, as it is kept. A NUL in a text is kept as U+FFFD, since PostgreSQL has none.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// Its number; the first is 1.
    pub number: u32,
    /// When it began, in milliseconds since 1970.
    pub began_ms: i64,
    /// How long it took, in milliseconds.
    pub took_ms: u32,
    /// The status of the answer, if there was one.
    pub status: Option<u16>,
    /// What went wrong, in words; empty if it was acknowledged.
    pub error: String,
    /// The beginning of the answer.
    pub excerpt: String,
    /// The address that it was sent to; empty if there was no connection.
    pub address: String,
    /// The header fields of the request as they may be seen: see [`visible`](crate::headers::visible). Not among what is
    /// serialized, since more people may see the rest.
    #[serde(skip)]
    pub request: String,
    /// The same of the answer; empty if there was none.
    #[serde(skip)]
    pub response: String,
}

/// What a message holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Content {
    /// What the payload is.
    pub content_type: String,
    /// As it is sent.
    pub payload: Bytes,
}

/// How far [`Store::recent`] looks back: 15 min.
pub const RECENT: Duration = Duration::from_secs(900);
/// Among how many attempts of the whole outbox it looks: 20 000.
pub const RECENT_ATTEMPTS: usize = 20_000;

/// How the latest attempts at an endpoint went.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Recent {
    /// Over how many milliseconds this is: less than [`RECENT`] if there are many attempts.
    pub window_ms: u64,
    /// The attempts.
    pub attempts: u64,
    /// Those that were acknowledged.
    pub acknowledged: u64,
    /// Attempts in a minute.
    pub per_minute: f64,
    /// Half of them took no longer, in milliseconds; `None` if there was none.
    pub p50_ms: Option<u64>,
    /// 99 of 100 took no longer, in milliseconds.
    pub p99_ms: Option<u64>,
}

impl Recent {
    /// Of attempts that took so many milliseconds and were acknowledged or not, among all since `from_ms`.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    fn of(now_ms: i64, from_ms: i64, attempts: &[(u64, bool)]) -> Self {
        let window_ms = u64::try_from(now_ms.saturating_sub(from_ms)).unwrap_or_default();
        let mut took: Vec<_> = attempts.iter().map(|(took, _)| *took).collect();
        took.sort_unstable();
        // The nearest rank.
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

/// An endpoint and how it fares.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// What was registered.
    pub endpoint: Endpoint,
    /// Of which [revision](Work::revision) that is.
    pub revision: i64,
    /// Whether messages go there.
    pub activity: Activity,
    /// Why it is disabled; empty if it is not.
    pub reason: String,
    /// The worker that has it; empty for none.
    pub worker: String,
    /// Messages that wait or run.
    pub pending: u64,
    /// Dead letters.
    pub dead: u64,
    /// For how long the oldest has been due, in milliseconds; `None` if none is.
    pub lag_ms: Option<u64>,
    /// How it has fared: see [`Settled::health`].
    #[serde(skip)]
    pub health: Vec<u8>,
}

/// A message and what became of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MessageStatus {
    /// Its identifier.
    pub id: MessageId,
    /// Its place in the order in which messages were enqueued: [`Filter::before`] has a list go on behind it.
    #[serde(skip)]
    pub place: i64,
    /// Whose endpoint it goes to.
    pub tenant: String,
    /// The endpoint.
    pub endpoint: String,
    /// What it tells of.
    pub event: String,
    /// The kind of event.
    pub topic: String,
    /// Its order key.
    pub order: Option<String>,
    /// The dead letter that it waits behind, by their order key, if it does.
    pub behind: Option<MessageId>,
    /// Its state.
    pub state: State,
    /// Why it is dead, was cancelled, or is [held](Next::Held); empty otherwise.
    pub reason: String,
    /// What went wrong in its last attempt: [`AttemptRecord::error`]; empty if there was none.
    pub last_error: String,
    /// Attempts since it was enqueued or resent.
    pub attempts: u32,
    /// When it was enqueued, in milliseconds since 1970.
    pub created_ms: i64,
    /// When the next attempt is due, if it waits.
    pub due_ms: Option<i64>,
    /// When it ended, if it has.
    pub ended_ms: Option<i64>,
}

/// Which messages are meant. Each part narrows it; the default is all.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// This one.
    pub id: Option<MessageId>,
    /// Of this tenant.
    pub tenant: Option<String>,
    /// To this endpoint.
    pub endpoint: Option<String>,
    /// Whose event this is.
    pub event: Option<String>,
    /// Whose event or identifier begins so.
    pub search: Option<String>,
    /// About this kind of event, or one that this [pattern](crate::topic) covers, such as `order.*`.
    pub topic: Option<String>,
    /// In this state.
    pub state: Option<State>,
    /// Enqueued then or later, in milliseconds since 1970.
    pub from_ms: Option<i64>,
    /// Enqueued before then.
    pub until_ms: Option<i64>,
    /// Enqueued before the one in this [place](MessageStatus::place), which may be gone by now: the next page of a list. So
    /// no message comes twice, and none is missed that is there all the while, whatever changes meanwhile.
    pub before: Option<i64>,
}

impl Filter {
    /// Whether it narrows nothing, so that all messages are meant.
    #[must_use]
    pub fn is_all(&self) -> bool {
        let all = Self {
            search: self.search.clone().filter(String::is_empty),
            topic: self.topic.clone().filter(|topic| topic == "*"),
            ..Self::default()
        };
        *self == all
    }

    /// Whether its texts can be those of anything: what can be asked of a store.
    ///
    /// # Errors
    /// [`InvalidMessage`] names one that is too long, or has a NUL in it.
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

/// How many messages are in each state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Those that wait.
    pub pending: u64,
    /// Those of which an attempt runs.
    pub running: u64,
    /// Dead letters.
    pub dead: u64,
    /// For how long the oldest that may be attempted has been due, in milliseconds; `None` if none is.
    pub lag_ms: Option<u64>,
    /// Endpoints that are disabled.
    pub disabled: u64,
}

/// What was begun with leave of before a change has ended once this returns.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
async fn end_of_grants(runs: bool) {
    if runs {
        tokio::time::sleep(GRANT).await;
    }
}

/// Of an endpoint that is the one named `e` in a statement of SQL, whether its last attempt failed: so
/// [`Health`](crate::health::Health) writes it. `NONE` stands for eight bytes of ones.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const FAILING: &str = "length(e.health) > 8 AND substr(e.health, 2, 8) <> NONE";

/// So many messages are changed in one transaction, so that others need not wait for all.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const BATCH: usize = 500;

/// A text as it is kept: see [`AttemptRecord`].
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// The specification of an endpoint cannot be read.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn unreadable(tenant: &str, name: &str, error: &serde_json::Error) -> String {
    format!(
        "the endpoint {name:?} of the tenant {tenant:?} is not as this version of relent-outbox writes it ({error}): use \
         the version that registered it, or register it again"
    )
}

/// Why an outbox with these tables of a later version is not opened.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn later_tables(names: &str) -> String {
    format!(
        "the outbox in this database is of a later version of Relent, which has put its messages into other tables ({names}): \
         run that version, or restore a copy from before it"
    )
}

/// Why a message is dead that cannot be read.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn unreadable_message(why: &str) -> String {
    text(&format!(
        "what the store has of it cannot be read ({why}): correct it there and resend it, or cancel it"
    ))
}

/// Of each schedule of a message the first attempts are kept.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const FIRST_KEPT: u32 = 10;
/// And of the last at least so many.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const LAST_KEPT: u32 = 40;

/// Which attempts of a message are forgotten after the one of this number was written, so that a schedule without end does
/// not fill the store. A few at a time: most attempts forget nothing, and those of a published schedule never do.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn forgotten(number: u32) -> Option<RangeInclusive<u32>> {
    let many = number > FIRST_KEPT + LAST_KEPT && number.is_multiple_of(10);
    many.then(|| FIRST_KEPT + 1..=number - LAST_KEPT)
}

/// In milliseconds since 1970; what is before that is then.
pub(crate) fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// In microseconds since 1970. Good until the year 294246.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn micros(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// So much later in microseconds, rounded up.
#[cfg(feature = "sqlite")]
fn later(now: i64, wait: Duration) -> i64 {
    let wait = i64::try_from(wait.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX);
    now.saturating_add(wait)
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn system_time(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}
