//! Where messages go, and by which rules.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

pub use crate::invalid_message::MAX_TOPICS;
use crate::invalid_message::{InvalidMessage, is_name};
use crate::topic;

/// Where messages go, and by which rules: what a receiver registers.
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
    /// Whose it is; empty if there is one owner only.
    #[serde(default)]
    pub tenant: String,
    /// Its name, unique for its tenant.
    pub name: String,
    /// Where attempts are sent.
    pub url: String,
    /// The name of a preset, such as `standard-webhooks`, or a policy written in TOML: when attempts are repeated and
    /// when they end, its `[gate]` and its `[request_rate]`. `standard-webhooks` unless said otherwise.
    #[serde(default = "standard_webhooks")]
    pub policy: String,
    /// Which answer says that the message has arrived.
    #[serde(default)]
    pub acknowledgement: Acknowledgement,
    /// How many attempts may run concurrently; 4 unless said otherwise. Where the schedule is
    /// [a contract](crate::schedule::is_contract), at least [`CONTRACT_CONCURRENCY`](crate::schedule::CONTRACT_CONCURRENCY)
    /// may: attempts that take long must not delay those that are due.
    #[serde(default = "four")]
    pub concurrency: NonZeroU32,
    /// Whether messages are held, without an attempt, while the endpoint is down; so unless said otherwise. Nothing is held
    /// where the schedule is [a contract](crate::schedule::is_contract): each message has its attempts whatever becomes of
    /// the others.
    #[serde(default = "yes")]
    pub park: bool,
    /// What becomes of messages behind one with the same order key that is dead.
    #[serde(default)]
    pub after_dead: AfterDead,
    /// The keys that attempts are signed with, sealed or by reference; the newest first. None for no signature.
    #[serde(default)]
    pub secrets: Vec<String>,
    /// Header fields of each attempt beside those of the message, by name; the values sealed or by reference, as the keys
    /// are: see [`headers`](crate::headers).
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The topics of [published](crate::store::Store::publish) events that it gets, [`MAX_TOPICS`] at most: each a topic, or
    /// a [pattern](crate::topic) such as `order.*`. Messages to it by name come beside these.
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
    /// An endpoint of this name at this URL.
    #[must_use]
    pub fn new(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            tenant: String::new(),
            name: name.into(),
            url: url.into(),
            policy: standard_webhooks(),
            acknowledgement: Acknowledgement::default(),
            concurrency: four(),
            park: true,
            after_dead: AfterDead::default(),
            secrets: Vec::new(),
            headers: BTreeMap::new(),
            topics: Vec::new(),
        }
    }

    /// Whether its names and topics can be those of an endpoint. Stores ask.
    ///
    /// # Errors
    /// [`InvalidMessage`] says which is not.
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

    /// Whose it is.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// By which policy attempts are repeated.
    #[must_use]
    pub fn policy(mut self, policy: impl Into<String>) -> Self {
        self.policy = policy.into();
        self
    }

    /// Which answer says that a message has arrived.
    #[must_use]
    pub const fn acknowledgement(mut self, acknowledgement: Acknowledgement) -> Self {
        self.acknowledgement = acknowledgement;
        self
    }

    /// How many attempts may run at once.
    #[must_use]
    pub const fn concurrency(mut self, concurrency: NonZeroU32) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Whether messages wait without an attempt while the endpoint is down.
    #[must_use]
    pub const fn park(mut self, park: bool) -> Self {
        self.park = park;
        self
    }

    /// Subscribes to these topics, and to no others.
    #[must_use]
    pub fn topics(mut self, topics: impl IntoIterator<Item: Into<String>>) -> Self {
        self.topics = topics.into_iter().map(Into::into).collect();
        self
    }

    /// What becomes of messages behind a dead one.
    #[must_use]
    pub const fn after_dead(mut self, after_dead: AfterDead) -> Self {
        self.after_dead = after_dead;
        self
    }
}

/// Which answer says that a message has arrived. In each case the answer has to be whole: one that is cut off
/// acknowledges nothing.
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
    /// Each with the name by which it is registered, and with the answer that it asks for.
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

    /// The answer that it asks for, in words.
    #[must_use]
    pub fn describe(self) -> &'static str {
        let mut all = Self::ALL.iter();
        all.find(|(one, ..)| *one == self)
            .map_or("", |(_, _, answer)| answer)
    }
}

/// What becomes of messages behind one with the same order key that is dead.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AfterDead {
    /// They wait until somebody resends it or cancels it.
    #[default]
    Block,
    /// They go.
    Skip,
}

/// Whether messages go to an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activity {
    /// They go.
    Active,
    /// They wait: it has answered 410, or failed for too long, or somebody has disabled it.
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
    fn the_table_of_acknowledgements_names_each_as_it_is_registered() {
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
