//! Messages and events to deliver.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::topic;

pub(crate) use crate::invalid_message::is_name;
pub use crate::invalid_message::{InvalidMessage, MAX_NAME, MAX_PAYLOAD};

/// Identifies a message in all its attempts: the `webhook-id`, by which a receiver drops duplicates. It contains no
/// `.`, which Standard Webhooks forbids.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MessageId(String);

impl MessageId {
    /// Creates an identifier that sorts after those that this process created before. Those of several processes sort by
    /// their clocks.
    #[must_use]
    pub fn new() -> Self {
        let mut hex = [0; 32];
        let hex = uuid::Uuid::now_v7().simple().encode_lower(&mut hex);
        Self(["msg_", hex].concat())
    }

    /// Wraps a stored identifier without a check, for display. Identifiers are checked before they are sent.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) const fn stored(id: String) -> Self {
        Self(id)
    }

    /// The identifier as it is sent.
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
/// Messages with equal tenant, event and endpoint are the same message. A producer that is not sure whether it has
/// enqueued a message enqueues it again; the store keeps one.
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
    /// The owner of the endpoint; empty if all endpoints have one owner.
    pub tenant: String,
    /// The name of the [endpoint](crate::endpoint::Endpoint) that it goes to.
    pub endpoint: String,
    /// The producer's own identifier of the event, the same whenever the event is enqueued again.
    pub event: String,
    /// The kind of event, such as `payment.settled`; messages can be listed by it. Empty for none.
    pub topic: String,
    /// Messages of one endpoint with the same order key are delivered one at a time, in the order in which they were
    /// enqueued. A message that is [resent](crate::store::Store::resend), or whose transaction commits late, waits for
    /// a later message that is already running, and precedes all other later ones.
    pub order: Option<String>,
    /// The media type of the payload; `application/json` by default.
    pub content_type: String,
    /// The body, sent and signed unchanged.
    pub payload: Bytes,
    /// The delay before the first attempt; zero by default. The limits of the policy count from then.
    pub delay: Duration,
}

impl NewMessage {
    /// Creates a message to this endpoint about this event.
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

    /// Creates a message that tests an endpoint: it has a new event, the topic [`topic::TEST`], and a payload that says
    /// that it is a test.
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

    /// Sets the owner of the endpoint.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// Sets the kind of event.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = topic.into();
        self
    }

    /// Delivers it after all earlier messages to the same endpoint with the same order key.
    #[must_use]
    pub fn in_order(mut self, key: impl Into<String>) -> Self {
        self.order = Some(key.into());
        self
    }

    /// Sets the media type of the payload.
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = content_type.into();
        self
    }

    /// Delays the first attempt. The limits of the policy count from then.
    #[must_use]
    pub const fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// The memory that it holds, in bytes.
    #[cfg(feature = "sqlite")]
    pub(crate) fn held_bytes(&self) -> usize {
        let order = self.order.as_ref().map_or(0, String::len);
        let names = [
            &self.tenant,
            &self.endpoint,
            &self.event,
            &self.topic,
            &self.content_type,
        ];
        let names: usize = names.iter().map(|name| name.len()).sum();
        size_of::<Self>() + names + order + self.payload.len()
    }

    /// Checks that the message can be enqueued. Stores call it.
    ///
    /// # Errors
    /// [`InvalidMessage`] states the first violated limit.
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

/// An event, delivered to each endpoint that has [subscribed](crate::endpoint::Endpoint::topics) to its topic.
///
/// Events with equal tenant and identifier are the same event. A producer that is not sure whether it has published an
/// event publishes it again; each endpoint gets it once.
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
    /// Creates an event of this topic with the producer's own identifier.
    #[must_use]
    pub fn new(
        topic: impl Into<String>,
        event: impl Into<String>,
        payload: impl Into<Bytes>,
    ) -> Self {
        Self(NewMessage::new("", event, payload).topic(topic))
    }

    /// Sets the tenant whose endpoints get it.
    #[must_use]
    pub fn tenant(self, tenant: impl Into<String>) -> Self {
        Self(self.0.tenant(tenant))
    }

    /// Delivers it at each endpoint after all earlier messages with the same order key.
    #[must_use]
    pub fn in_order(self, key: impl Into<String>) -> Self {
        Self(self.0.in_order(key))
    }

    /// Sets the media type of the payload.
    #[must_use]
    pub fn content_type(self, content_type: impl Into<String>) -> Self {
        Self(self.0.content_type(content_type))
    }

    /// Delays the first attempts.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        Self(self.0.delay(delay))
    }

    /// Checks that the event can be published. Stores call it.
    ///
    /// # Errors
    /// [`InvalidMessage`] states the first violated limit.
    pub fn check(&self) -> Result<(), InvalidMessage> {
        if self.0.topic.is_empty() {
            return Err(InvalidMessage::Name("topic"));
        }
        // Any valid endpoint name will do.
        self.to("-").check()
    }

    /// The tenant and the topic.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn subject(&self) -> (&str, &str) {
        (&self.0.tenant, &self.0.topic)
    }

    /// The memory that it holds, in bytes.
    #[cfg(feature = "sqlite")]
    pub(crate) fn held_bytes(&self) -> usize {
        self.0.held_bytes()
    }

    /// The message of this event to one endpoint of its tenant.
    pub(crate) fn to(&self, endpoint: &str) -> NewMessage {
        let mut message = self.0.clone();
        endpoint.clone_into(&mut message.endpoint);
        message
    }
}
