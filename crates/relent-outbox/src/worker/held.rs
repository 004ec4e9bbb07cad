//! What a worker holds back, and why: for whoever operates it.

use std::fmt;
use std::time::SystemTime;

use relent_core::Holding;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

/// So many may ask at once; others wait until they are answered.
const ASKED: usize = 16;

/// An endpoint of a worker whose messages wait, although they are due.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Held {
    /// Whose endpoint it is.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// Why.
    pub because: Because,
    /// When the worker looks again whether it may go, by the clock of this machine; `None` if that is when an attempt ends.
    pub until: Option<SystemTime>,
    /// How many of its attempts run.
    pub running: usize,
    /// What is wrong on this side, and what mends it; empty unless it is held because of a
    /// [local fault](Because::LocalFault).
    pub error: String,
}

/// Why messages that are due are not sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Because {
    /// The endpoint is down: its gate is closed, and lets a probe go now and then.
    Down,
    /// The endpoint comes back: its gate lets more and more go.
    Recovering,
    /// The endpoint has asked for a pause, such as by `Retry-After`.
    Cooldown,
    /// The `[request_rate]` of its policy.
    RequestRate,
    /// As many of its attempts run as its concurrency allows.
    Concurrency,
    /// As many attempts run as the worker makes at once, to all endpoints.
    Slots,
    /// A [fault of this side](crate::fault), such as a signing key that is not to be had.
    LocalFault,
}

impl Because {
    /// Of what holds back who asks, at a gate that is closed or not.
    pub(super) const fn of(holding: Holding, closed: bool) -> Self {
        match holding {
            Holding::Cooldown => Self::Cooldown,
            Holding::Gate if closed => Self::Down,
            Holding::Gate => Self::Recovering,
            _ => Self::RequestRate,
        }
    }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Down => "the endpoint is down, and is probed now and then",
            Self::Recovering => "the endpoint comes back, and gets more and more attempts",
            Self::Cooldown => "the endpoint has asked for a pause",
            Self::RequestRate => "the request rate of its policy allows no more",
            Self::Concurrency => "as many of its attempts run as its concurrency allows",
            Self::Slots => "the worker makes as many attempts as it may, to all endpoints",
            Self::LocalFault => "a fault of this side, which the operator has to mend",
        })
    }
}

/// A worker that can be asked what it holds back.
#[derive(Clone, Debug)]
pub struct Watch {
    name: String,
    asked: mpsc::Sender<oneshot::Sender<Vec<Held>>>,
}

/// Where a worker is asked.
pub(super) type Asked = mpsc::Receiver<oneshot::Sender<Vec<Held>>>;

impl Watch {
    pub(super) fn new(name: String) -> (Self, Asked) {
        let (asked, answers) = mpsc::channel(ASKED);
        (Self { name, asked }, answers)
    }

    /// The name of the worker, as the store knows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The endpoints that it has whose messages wait although they are due, in no order. None if it has ended; before it
    /// [runs](super::Worker::run) nobody answers. What it holds back is looked at when it is asked, and costs nothing
    /// otherwise.
    pub async fn held(&self) -> Vec<Held> {
        let (answer, held) = oneshot::channel();
        match self.asked.send(answer).await {
            Ok(()) => held.await.unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }
}
