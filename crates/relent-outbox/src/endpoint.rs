//! Endpoints: the URL that messages are sent to, with policy, limits and signing keys.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

pub use crate::invalid_message::MAX_TOPICS;
use crate::invalid_message::{InvalidMessage, is_name};
use crate::topic;

/// A receiver of messages: its URL, retry policy, limits and signing keys.
///
/// ```
/// use relent_outbox::endpoint::{Acknowledgement, Endpoint};
///
/// let endpoint = Endpoint::new("shop", "https://shop.example/notify")
///     .policy("wechat-pay")
///     .acknowledgement(Acknowledgement::CodeSuccess);
/// assert_eq!(endpoint.policy, "wechat-pay");
/// ```
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Endpoint {
    /// The owner; empty if all endpoints have one owner.
    #[serde(default)]
    pub tenant: String,
    /// The name, unique within the tenant.
    pub name: String,
    /// The URL that attempts are sent to.
    pub url: String,
    /// The name of a preset, or a policy written in TOML: it sets the delays between attempts, their number, the
    /// `[circuit_breaker]` and the `[rate_limit]`. `standard-webhooks` by default.
    #[serde(default = "standard_webhooks")]
    pub policy: String,
    /// The response that acknowledges a message.
    #[serde(default)]
    pub acknowledgement: Acknowledgement,
    /// The largest number of concurrent attempts; 4 by default. Where the schedule is [a
    /// contract](crate::schedule::is_contract), at least
    /// [`CONTRACT_CONCURRENCY`](crate::schedule::CONTRACT_CONCURRENCY) apply, so that slow attempts do not delay those
    /// that are due.
    #[serde(default = "four")]
    pub concurrency: NonZeroU32,
    /// Whether messages are held, without an attempt, while the endpoint is down; `true` by default. Nothing is held
    /// where the schedule is [a contract](crate::schedule::is_contract): each message has its attempts even if others
    /// fail.
    #[serde(default = "yes")]
    pub hold: bool,
    /// Whether messages wait behind a dead letter with the same order key.
    #[serde(default)]
    pub on_dead_letter: OnDeadLetter,
    /// The signing keys, encrypted or by reference, the newest first. Attempts are not signed if there is none.
    #[serde(default)]
    pub secrets: Vec<String>,
    /// Additional header fields of each attempt, by name. Values are encrypted or by reference, like the keys: see
    /// [`headers`](crate::headers).
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The topics of [published](crate::store::Store::publish) events that it receives, at most [`MAX_TOPICS`]. Each is
    /// a topic or a [pattern](crate::topic) such as `order.*`. Messages enqueued for this endpoint by name come in
    /// addition.
    #[serde(default)]
    pub topics: Vec<String>,
}

fn standard_webhooks() -> String {
    "standard-webhooks".to_owned()
}

fn four() -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(3)
}

fn yes() -> bool {
    true
}

impl Endpoint {
    /// Creates an endpoint with this name and URL, and default settings.
    #[must_use]
    pub fn new(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            tenant: String::new(),
            name: name.into(),
            url: url.into(),
            policy: standard_webhooks(),
            acknowledgement: Acknowledgement::default(),
            concurrency: four(),
            hold: true,
            on_dead_letter: OnDeadLetter::default(),
            secrets: Vec::new(),
            headers: BTreeMap::new(),
            topics: Vec::new(),
        }
    }

    /// Checks the names and topics. Stores call it.
    ///
    /// # Errors
    /// [`InvalidMessage`] names the first that is invalid.
    pub fn check(&self) -> Result<(), InvalidMessage> {
        for (what, name, may_be_empty) in [
            ("tenant", &self.tenant, true),
            ("endpoint", &self.name, false),
        ] {
            if !(is_name(name) || name.is_empty() && may_be_empty) {
                return Err(InvalidMessage::Name(what));
            }
        }
        if self.topics.len() > MAX_TOPICS {
            return Err(InvalidMessage::Pattern);
        }
        self.topics
            .iter()
            .try_for_each(|one| topic::check_pattern(one))
    }

    /// The memory that it holds, in bytes.
    #[cfg(feature = "sqlite")]
    pub(crate) fn held_bytes(&self) -> usize {
        let headers = self.headers.iter().flat_map(|(name, value)| [name, value]);
        let texts = [&self.tenant, &self.name, &self.url, &self.policy];
        let texts = texts.into_iter().chain(&self.secrets).chain(&self.topics);
        size_of::<Self>() + texts.chain(headers).map(String::len).sum::<usize>()
    }

    /// Sets the owner.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// Sets the retry policy: the name of a preset, or TOML.
    #[must_use]
    pub fn policy(mut self, policy: impl Into<String>) -> Self {
        self.policy = policy.into();
        self
    }

    /// Sets the response that acknowledges a message.
    #[must_use]
    pub const fn acknowledgement(mut self, acknowledgement: Acknowledgement) -> Self {
        self.acknowledgement = acknowledgement;
        self
    }

    /// Sets the largest number of concurrent attempts.
    #[must_use]
    pub const fn concurrency(mut self, concurrency: NonZeroU32) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Sets whether messages are held, without an attempt, while the endpoint is down.
    #[must_use]
    pub const fn hold(mut self, hold: bool) -> Self {
        self.hold = hold;
        self
    }

    /// Subscribes to these topics, and to no others.
    #[must_use]
    pub fn topics(mut self, topics: impl IntoIterator<Item: Into<String>>) -> Self {
        self.topics = topics.into_iter().map(Into::into).collect();
        self
    }

    /// Sets whether messages wait behind a dead letter with the same order key.
    #[must_use]
    pub const fn on_dead_letter(mut self, on_dead_letter: OnDeadLetter) -> Self {
        self.on_dead_letter = on_dead_letter;
        self
    }
}

/// The response that acknowledges a message. The response must be complete: a truncated one acknowledges nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Acknowledgement {
    /// A status from 200 to 299 (Standard Webhooks).
    #[default]
    Success,
    /// A status from 200 to 299 with the body `success`, and nothing else (Alipay).
    BodySuccess,
    /// A status from 200 to 299 with a JSON object whose `code` is `SUCCESS` (WeChat Pay, API v3 at first).
    CodeSuccess,
    /// The status 200 or 204 without a body (WeChat Pay, the later rules of API v3).
    NoBody,
}

impl Acknowledgement {
    /// Each variant with its registered name and a description of the response that it requires.
    pub const ALL: [(Self, &'static str, &'static str); 4] = [
        (Self::Success, "success", "a status from 200 to 299"),
        (
            Self::BodySuccess,
            "body-success",
            "a status from 200 to 299 with the body `success` and nothing else",
        ),
        (
            Self::CodeSuccess,
            "code-success",
            "a status from 200 to 299 with a JSON object whose `code` is `SUCCESS`",
        ),
        (
            Self::NoBody,
            "no-body",
            "the status 200 or 204 without a body",
        ),
    ];

    /// Describes the response that it requires.
    #[must_use]
    pub fn describe(self) -> &'static str {
        let mut all = Self::ALL.iter();
        all.find(|(one, ..)| *one == self)
            .map_or("", |(_, _, answer)| answer)
    }
}

/// Whether messages wait behind a dead letter with the same order key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnDeadLetter {
    /// They wait until an operator resends or cancels it.
    #[default]
    Block,
    /// They are delivered.
    Skip,
}

/// Whether messages are sent to an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activity {
    /// Messages are sent.
    Active,
    /// Messages wait: the endpoint has responded with 410, failed for too long, or an operator has disabled it.
    Disabled,
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Disabled => "disabled",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgement_names_match_their_serialized_form() {
        for (one, name, answer) in Acknowledgement::ALL {
            assert_eq!(serde_json::to_value(one).unwrap(), name);
            assert_eq!(one.describe(), answer);
        }
        let mut names: Vec<_> = Acknowledgement::ALL
            .iter()
            .map(|(_, name, _)| name)
            .collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Acknowledgement::ALL.len());
    }
}
