//! Queue: the stream of NATS JetStream by which dispatchers distribute attempts, and its limits.

use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, Stream};

/// The time in which an attempt must be started: 30 s. After that the message is due as before.
pub const OFFER_TIMEOUT: Duration = Duration::from_secs(30);
/// The time for which a NATS worker repeats a result that the dispatcher does not confirm.
pub(crate) const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for which NATS keeps an attempt and detects duplicates. It exceeds [`OFFER_TIMEOUT`], after which no
/// dispatcher publishes the same attempt, so an attempt that is published repeatedly exists once.
const STREAM_MAX_AGE: Duration = Duration::from_secs(120);
/// NATS redelivers an attempt that is not acknowledged as started within this time.
const ACK_WAIT: Duration = Duration::from_secs(15);
/// The time limit for a response of NATS or of a dispatcher.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause after a failure.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The limits of a stream, in attempts and in bytes. Beyond them it accepts none.
const MAX_STREAM_MESSAGES: i64 = 100_000;
const MAX_STREAM_BYTES: i64 = 1 << 30;
/// The largest size of a NATS message's subject and headers, which count beside its payload, in bytes.
pub(crate) const MAX_OVERHEAD_BYTES: usize = 512;
/// The consumer that all NATS workers share.
const CONSUMER: &str = "deliverers";

/// A stream of NATS JetStream by which dispatchers distribute attempts to NATS workers.
///
/// Its first user creates it, unless an operator has: a work queue in files with one replica. Queues with the same name
/// share a stream. Dispatchers of several databases may share one, because each attempt names its dispatcher.
#[derive(Clone, Debug)]
pub struct Queue {
    pub(crate) client: async_nats::Client,
    pub(crate) context: Context,
    pub(crate) name: QueueName,
    replicas: usize,
}

impl Queue {
    /// Creates a handle to the queue of this name, over this client. Connect it with a `ping_interval` of a few seconds.
    /// With the default of 60 s, a connection that is lost without notice stops all attempts for three minutes.
    #[must_use]
    pub fn new(client: async_nats::Client, name: QueueName) -> Self {
        let context = ContextBuilder::new()
            .timeout(RESPONSE_TIMEOUT)
            .ack_timeout(RESPONSE_TIMEOUT)
            .build(client.clone());
        Self {
            client,
            context,
            name,
            replicas: 1,
        }
    }

    /// Sets the number of replicas of a stream that this creates: 1 by default, at most 5.
    #[must_use]
    pub const fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// The subject that attempts are published to.
    pub(crate) fn attempts(&self) -> String {
        format!("{}.attempts", self.name)
    }

    /// The prefix of dispatchers' subjects.
    pub(crate) fn relays(&self) -> String {
        format!("{}.relay.", self.name)
    }

    /// Returns the stream, and creates it if necessary.
    pub(crate) async fn stream(&self) -> Result<Stream, String> {
        let config = Config {
            name: self.name.to_string(),
            subjects: vec![self.attempts()],
            retention: RetentionPolicy::WorkQueue,
            discard: DiscardPolicy::New,
            max_messages: MAX_STREAM_MESSAGES,
            max_bytes: MAX_STREAM_BYTES,
            max_age: STREAM_MAX_AGE,
            duplicate_window: STREAM_MAX_AGE,
            num_replicas: self.replicas,
            ..Config::default()
        };
        let stream = self.context.get_or_create_stream(config).await;
        stream.map_err(|error| self.describe("stream", &error))
    }

    /// Returns the consumer of NATS workers, and creates it if necessary.
    pub(crate) async fn consumer(&self) -> Result<PullConsumer, String> {
        let config = pull::Config {
            durable_name: Some(CONSUMER.to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            max_ack_pending: MAX_STREAM_MESSAGES,
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

/// The name of a [`Queue`], and of its stream and subjects: at most 64 letters, digits, `_` and `-`; `relent-outbox` by
/// default.
///
/// ```
/// use relent_outbox_nats::QueueName;
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

/// The error for an invalid queue name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidName;

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a queue is 1 to 64 letters, digits, _ and -")
    }
}

impl Error for InvalidName {}
