//! One attempt, from what was claimed to what is written down.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use relent_core::{Failure, Network};

use super::lane::Rules;
use crate::message::MessageId;
use crate::schedule;
use crate::sender::{Outgoing, Sender, Sent};

use bytes::Bytes;

/// What an attempt needs.
pub(super) struct Job {
    pub(super) rules: Arc<Rules>,
    pub(super) id: MessageId,
    pub(super) content_type: String,
    pub(super) payload: Bytes,
    pub(super) limit: Option<Duration>,
    pub(super) now: SystemTime,
}

pub(super) type Sending = Pin<Box<dyn Future<Output = Sent> + Send>>;

/// Makes attempts. Tests have one without a network.
pub(super) type Transport = Arc<dyn Fn(Job) -> Sending + Send + Sync>;

/// Makes attempts by this sender.
pub(super) fn over(sender: Sender) -> Transport {
    Arc::new(move |job| {
        let sender = sender.clone();
        Box::pin(async move {
            let rules = &job.rules;
            match &rules.target {
                Ok(target) => {
                    let outgoing = Outgoing {
                        target,
                        id: &job.id,
                        content_type: &job.content_type,
                        payload: &job.payload,
                        signing: rules.signing.as_ref(),
                        policy: &rules.policy,
                        acknowledgement: rules.endpoint.acknowledgement,
                        limit: job.limit,
                        now: job.now,
                    };
                    sender.send(outgoing).await
                }
                // It can be put right while the schedule lasts.
                Err(wrong) => Sent::not(
                    Failure::network(Network::Connect),
                    wrong.clone(),
                    Duration::ZERO,
                ),
            }
        })
    })
}

/// The attempt broke off on this side: the receiver may have it.
pub(super) fn broken_off(error: &str, took: Duration) -> Sent {
    Sent::not(schedule::lost(), error.to_owned(), took)
}
