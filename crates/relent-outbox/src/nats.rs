//! Attempts that are made by a fleet of processes, which take them from NATS JetStream.
//!
//! For more attempts at once than the processes that share the database can make, or for processes that reach the
//! receivers and not the database. The row in the store stays the record: attempt, fence, schedule, dead letter and
//! replay are decided by a [`Worker`](crate::worker::Worker) as without NATS. As a [relay](crate::worker::Worker::relay)
//! it makes no exchange of HTTP itself. A [`Deliverer`] does, and decides nothing.
//!
//! ```text
//! relay                    NATS                       deliverer
//!   │ claims what is due     │                            │
//!   ├── attempt ────────────►│ a stream in a file         │
//!   │                        ├── attempt ────────────────►│ takes what it has room for
//!   │◄── begin? ─────────────┼────────────────────────────┤
//!   ├── yes, for 0.5 s ──────┼───────────────────────────►│ acknowledges it to the stream, and
//!   │                        │                            │ makes the one exchange
//!   │◄── answer ─────────────┼────────────────────────────┤
//!   │ judges and settles     │                            │
//! ```
//!
//! An attempt is begun only with leave of the relay that has published it, which gives it to one deliverer, once, and only
//! while it holds the lease that it has claimed the message with, and the endpoint is as it was when the attempt was
//! published. Leave ends [`GRANT`](crate::store::GRANT) after the relay has asked the store. So whatever NATS delivers twice, late, or to two is
//! sent once at most, and neither a relay that was stopped for an hour nor one that was killed has anything sent.
//! What was not begun within [`BEGIN_WITHIN`] is taken back and does not count as an attempt. What was begun and is
//! not answered, because its deliverer was killed, counts as failed with unknown outcome, and the schedule repeats it.
//!
//! The relay signs: no key leaves it, and a deliverer needs none. Whoever may publish to the subjects of the stream can
//! have requests sent from the addresses of the deliverers, so keep those to the relays by the permissions of NATS.

mod deliverer;
mod relay;
mod wire;

#[cfg(fuzzing)]
pub use wire::any_bytes;

use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, Stream};

pub use deliverer::{Deliverer, DelivererConfig};
pub(crate) use relay::Relay;

/// The client of NATS that queues are made with.
pub use async_nats;

/// How long an attempt waits to be begun: 30 s. Then it is due as before.
pub const BEGIN_WITHIN: Duration = Duration::from_secs(30);
/// How long a deliverer may take to begin once it has asked.
const LEAVE: Duration = Duration::from_secs(5);
/// How long it says what came of an attempt to a relay that does not hear it.
const TELL_FOR: Duration = Duration::from_secs(10);
/// How long NATS keeps an attempt, and knows that it has it. Longer than a relay publishes the same attempt, so that it
/// is there once however often the relay had no answer: no relay publishes it after [`BEGIN_WITHIN`].
const KEPT_FOR: Duration = Duration::from_secs(120);
/// NATS gives an attempt to another deliverer if it has not heard for so long that one has begun.
const ACK_WAIT: Duration = Duration::from_secs(15);
/// How long an answer of NATS or of a relay is waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long one that fails is left alone.
const PAUSE: Duration = Duration::from_secs(1);
/// As many attempts are in a stream, and as many bytes. Beyond that it takes none.
const MOST: i64 = 100_000;
const MOST_BYTES: i64 = 1 << 30;
/// Beside its payload a message has a subject and fields, which count too: so many bytes at most.
const HEADROOM: usize = 512;
/// What a relay says that takes what a deliverer tells it, and what it begins with if it does not.
const HEARD: &[u8] = b"heard";
const REFUSED: &str = "refused: ";
/// The consumer that all deliverers share.
const CONSUMER: &str = "deliverers";

/// A stream of NATS JetStream by which relays have attempts made by deliverers.
///
/// Whoever uses it first makes it, unless an operator has: a work queue in files with one replica. Those who have
/// the same name share it: relays of several databases may, since each attempt knows its relay.
#[derive(Clone, Debug)]
pub struct Queue {
    client: async_nats::Client,
    context: Context,
    name: QueueName,
    replicas: usize,
}

impl Queue {
    /// The queue of this name, over this client.
    #[must_use]
    pub fn new(client: async_nats::Client, name: QueueName) -> Self {
        let context = ContextBuilder::new()
            .timeout(ANSWER_WITHIN)
            .ack_timeout(ANSWER_WITHIN)
            .build(client.clone());
        Self {
            client,
            context,
            name,
            replicas: 1,
        }
    }

    /// How many servers of a cluster keep it, if it is made by this: 1 unless said otherwise, 5 at most.
    #[must_use]
    pub const fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Where attempts are published.
    fn attempts(&self) -> String {
        format!("{}.attempts", self.name)
    }

    /// What the subjects of relays begin with.
    fn relays(&self) -> String {
        format!("{}.relay.", self.name)
    }

    /// The stream, which is made if it is not there.
    async fn stream(&self) -> Result<Stream, String> {
        let config = Config {
            name: self.name.to_string(),
            subjects: vec![self.attempts()],
            retention: RetentionPolicy::WorkQueue,
            discard: DiscardPolicy::New,
            max_messages: MOST,
            max_bytes: MOST_BYTES,
            max_age: KEPT_FOR,
            duplicate_window: KEPT_FOR,
            num_replicas: self.replicas,
            ..Config::default()
        };
        let stream = self.context.get_or_create_stream(config).await;
        stream.map_err(|error| self.describe("stream", &error))
    }

    /// What deliverers take attempts from, which is made if it is not there.
    async fn consumer(&self) -> Result<PullConsumer, String> {
        let config = pull::Config {
            durable_name: Some(CONSUMER.to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            max_ack_pending: MOST,
            ..pull::Config::default()
        };
        let consumer = self.stream().await?;
        let consumer = consumer.get_or_create_consumer(CONSUMER, config).await;
        consumer.map_err(|error| self.describe("consumer of the stream", &error))
    }

    fn describe(&self, what: &str, error: &dyn Error) -> String {
        format!(
            "the {what} {} cannot be used: {error}; it needs a nats-server with JetStream (`nats-server -js`) and leave to make it",
            self.name
        )
    }
}

/// The name of a [`Queue`], and of its stream and subjects: letters, digits, `_` and `-`, 64 at most;
/// `relent-outbox` unless said otherwise.
///
/// ```
/// use relent_outbox::nats::QueueName;
///
/// assert_eq!(QueueName::default().to_string(), "relent-outbox");
/// assert!("staging.outbox".parse::<QueueName>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct QueueName(String);

impl Default for QueueName {
    fn default() -> Self {
        Self("relent-outbox".to_owned())
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for QueueName {
    type Err = InvalidName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        match name.len() {
            1..=64 if name.bytes().all(valid) => Ok(Self(name.to_owned())),
            _ => Err(InvalidName),
        }
    }
}

/// The name of a queue is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidName;

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a queue is 1 to 64 letters, digits, _ and -")
    }
}

impl Error for InvalidName {}
