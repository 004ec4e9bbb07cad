//! What is delivered.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::topic;

pub(crate) use crate::invalid_message::is_name;
pub use crate::invalid_message::{InvalidMessage, MAX_NAME, MAX_PAYLOAD};

/// Identifies a message over all its attempts: the `webhook-id`, by which a receiver drops what it has already done.
/// It holds no `.`, which Standard Webhooks forbids.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MessageId(String);

impl MessageId {
    /// A new one, later in order than those of before.
    #[must_use]
    pub fn new() -> Self {
        let mut hex = [0; 32];
        let hex = uuid::Uuid::now_v7().simple().encode_lower(&mut hex);
        Self(["msg_", hex].concat())
    }

    /// One that is stored, to be shown, whether it is one or not. What is sent is checked.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) const fn stored(id: String) -> Self {
        Self(id)
    }

    /// As it is sent.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for MessageId {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for MessageId {
    type Err = InvalidMessage;

    fn from_str(id: &str) -> Result<Self, Self::Err> {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        match id.len() {
            1..=MAX_NAME if id.bytes().all(valid) => Ok(Self(id.to_owned())),
            _ => Err(InvalidMessage::Id),
        }
    }
}

impl TryFrom<String> for MessageId {
    type Error = InvalidMessage;

    fn try_from(id: String) -> Result<Self, Self::Error> {
        id.parse()
    }
}

impl From<MessageId> for String {
    fn from(id: MessageId) -> Self {
        id.0
    }
}

/// A message to one endpoint, to be enqueued.
///
/// It is the same message as one that has the same tenant, event and endpoint: whoever is not sure whether it was
/// enqueued enqueues it again, and it is there once.
///
/// ```
/// use relent_outbox::message::NewMessage;
///
/// let message = NewMessage::new("shop", "payment-17-settled", r#"{"order":17}"#)
///     .tenant("acme")
///     .topic("payment.settled")
///     .in_order("order-17");
/// assert!(message.check().is_ok());
/// assert!(NewMessage::new("", "payment-17-settled", "").check().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NewMessage {
    /// Whose endpoint it is; empty if there is one owner only.
    pub tenant: String,
    /// The name of the [endpoint](crate::endpoint::Endpoint) that it goes to.
    pub endpoint: String,
    /// What it tells of: the producer's own identifier, the same whenever it is enqueued again.
    pub event: String,
    /// What kind of event it is, such as `payment.settled`: to find messages by. Empty for none.
    pub topic: String,
    /// Messages of one endpoint and one order key are delivered one after another, never two at once, in the order in
    /// which they were enqueued. One that is [resent](crate::store::Store::resend), or whose transaction commits after
    /// that of a later one, waits for the later one if that is on its way, and goes before all other later ones.
    pub order: Option<String>,
    /// `application/json` unless said otherwise.
    pub content_type: String,
    /// Sent and signed byte by byte as it is.
    pub payload: Bytes,
    /// How long its first attempt waits.
    pub delay: Duration,
}

impl NewMessage {
    /// A message to this endpoint about this event.
    #[must_use]
    pub fn new(
        endpoint: impl Into<String>,
        event: impl Into<String>,
        payload: impl Into<Bytes>,
    ) -> Self {
        Self {
            tenant: String::new(),
            endpoint: endpoint.into(),
            event: event.into(),
            topic: String::new(),
            order: None,
            content_type: "application/json".to_owned(),
            payload: payload.into(),
            delay: Duration::ZERO,
        }
    }

    /// A message by which somebody sees whether an endpoint works: a new one each time, of the topic
    /// [`topic::TEST`], whose payload says that it is a test.
    #[must_use]
    pub fn test(tenant: impl Into<String>, endpoint: impl Into<String>) -> Self {
        let event = format!("test-{}", uuid::Uuid::now_v7().simple());
        let payload = format!(
            r#"{{"type":"{}","test":true,"event":"{event}"}}"#,
            topic::TEST
        );
        Self::new(endpoint, event, payload)
            .tenant(tenant)
            .topic(topic::TEST)
    }

    /// The owner of the endpoint.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// The kind of event.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = topic.into();
        self
    }

    /// Delivers it after those of before with the same order key, to the same endpoint.
    #[must_use]
    pub fn in_order(mut self, key: impl Into<String>) -> Self {
        self.order = Some(key.into());
        self
    }

    /// What the payload is.
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = content_type.into();
        self
    }

    /// Makes its first attempt so much later.
    #[must_use]
    pub const fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Whether it can be enqueued. Stores ask.
    ///
    /// # Errors
    /// [`InvalidMessage`] says what is wrong.
    pub fn check(&self) -> Result<(), InvalidMessage> {
        let names = [
            ("tenant", self.tenant.as_str(), true),
            ("endpoint", &self.endpoint, false),
            ("event", &self.event, false),
            ("order key", self.order.as_deref().unwrap_or("-"), false),
        ];
        for (what, name, may_be_empty) in names {
            if !(is_name(name) || name.is_empty() && may_be_empty) {
                return Err(InvalidMessage::Name(what));
            }
        }
        topic::check(&self.topic)?;
        let visible = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        if self.content_type.is_empty()
            || self.content_type.len() > MAX_NAME
            || !self.content_type.bytes().all(visible)
        {
            return Err(InvalidMessage::ContentType);
        }
        if self.payload.len() > MAX_PAYLOAD {
            return Err(InvalidMessage::Payload(self.payload.len()));
        }
        Ok(())
    }
}

/// What has happened, for each endpoint that has [subscribed](crate::endpoint::Endpoint::topics) to its topic.
///
/// It is the same event as one of the same tenant that has the same identifier: a producer that is not sure whether it was
/// published publishes it again, and each endpoint gets it once.
///
/// ```
/// use relent_outbox::message::NewEvent;
///
/// let event = NewEvent::new("order.paid", "order-17-paid", r#"{"order":17}"#).tenant("acme");
/// assert!(event.check().is_ok());
/// assert!(NewEvent::new("", "order-17-paid", "").check().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewEvent(NewMessage);

impl NewEvent {
    /// An event of this topic with the producer's own identifier.
    #[must_use]
    pub fn new(
        topic: impl Into<String>,
        event: impl Into<String>,
        payload: impl Into<Bytes>,
    ) -> Self {
        Self(NewMessage::new("", event, payload).topic(topic))
    }

    /// Whose endpoints get it.
    #[must_use]
    pub fn tenant(self, tenant: impl Into<String>) -> Self {
        Self(self.0.tenant(tenant))
    }

    /// Delivers it at each endpoint after the messages of before with the same order key.
    #[must_use]
    pub fn in_order(self, key: impl Into<String>) -> Self {
        Self(self.0.in_order(key))
    }

    /// What the payload is.
    #[must_use]
    pub fn content_type(self, content_type: impl Into<String>) -> Self {
        Self(self.0.content_type(content_type))
    }

    /// Makes the first attempts so much later.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        Self(self.0.delay(delay))
    }

    /// Whether it can be published. Stores ask.
    ///
    /// # Errors
    /// [`InvalidMessage`] says what is wrong.
    pub fn check(&self) -> Result<(), InvalidMessage> {
        if self.0.topic.is_empty() {
            return Err(InvalidMessage::Name("topic"));
        }
        // Any endpoint will do.
        self.to("-").check()
    }

    /// Its tenant and its topic.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn subject(&self) -> (&str, &str) {
        (&self.0.tenant, &self.0.topic)
    }

    /// The message to an endpoint of its tenant.
    pub(crate) fn to(&self, endpoint: &str) -> NewMessage {
        let mut message = self.0.clone();
        endpoint.clone_into(&mut message.endpoint);
        message
    }
}
