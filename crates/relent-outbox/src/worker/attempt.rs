//! One attempt, from what was claimed to what is written down.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::beat::Leave;
use super::lane::Rules;
use crate::message::MessageId;
use crate::schedule;
use crate::sender::{Outgoing, Sender, Sent};

use bytes::Bytes;

/// What an attempt needs.
pub(crate) struct Job {
    pub(super) rules: Arc<Rules>,
    pub(crate) id: MessageId,
    pub(super) content_type: String,
    pub(crate) payload: Bytes,
    pub(crate) limit: Option<Duration>,
    pub(super) now: SystemTime,
    #[cfg_attr(
        not(feature = "nats"),
        allow(dead_code, reason = "a sender begins at once")
    )]
    pub(crate) leave: Leave,
}

impl Job {
    /// What is sent.
    ///
    /// # Errors
    /// What comes of the attempt if nothing can be sent.
    pub(crate) fn outgoing(&self) -> Result<Outgoing<'_>, Box<Sent>> {
        let rules = &self.rules;
        match &rules.target {
            Ok(target) => Ok(Outgoing {
                target,
                id: &self.id,
                content_type: &self.content_type,
                payload: &self.payload,
                signing: rules.signing.as_ref(),
                policy: &rules.policy,
                acknowledgement: rules.endpoint.acknowledgement,
                limit: self.limit,
                now: self.now,
            }),
            Err(fault) => Err(Box::new(Sent::faulty(fault))),
        }
    }

    /// Its URL as it was registered.
    #[cfg(feature = "nats")]
    pub(crate) fn url(&self) -> &str {
        &self.rules.endpoint.url
    }
}

/// Why nothing is known of what the receiver said.
#[derive(Debug)]
pub(crate) enum Unmade {
    /// The attempt was surely not begun, and never will be: it does not count.
    #[cfg_attr(
        not(feature = "nats"),
        allow(dead_code, reason = "a sender begins at once")
    )]
    NotBegun,
    /// The receiver may have it. In words.
    Unknown(&'static str),
}

pub(crate) type Sending = Pin<Box<dyn Future<Output = Result<Sent, Unmade>> + Send>>;

/// Makes attempts. Tests have one without a network.
pub(crate) type Transport = Arc<dyn Fn(Job) -> Sending + Send + Sync>;

/// Makes attempts by this sender.
pub(super) fn over(sender: Sender) -> Transport {
    Arc::new(move |job| {
        let sender = sender.clone();
        Box::pin(async move {
            Ok(match job.outgoing() {
                Ok(outgoing) => sender.send(outgoing).await,
                Err(unsendable) => *unsendable,
            })
        })
    })
}

/// The attempt broke off on this side: the receiver may have it.
pub(crate) fn broken_off(error: &str, took: Duration) -> Sent {
    Sent::not(schedule::lost(), error.to_owned(), took)
}
