//! A single attempt, from claim to result.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::bodies::PayloadPermit;
use super::endpoint_state::Rules;
use super::grants::NotGranted;
use super::heartbeat::StartPermission;
use crate::message::MessageId;
use crate::schedule;
use crate::sender::{AttemptResult, Outgoing, Sender};

use bytes::Bytes;
use http::HeaderMap;

/// The input of an attempt.
pub(crate) struct Job {
    pub(super) rules: Arc<Rules>,
    pub(crate) id: MessageId,
    pub(super) content_type: String,
    /// Empty until it is [loaded](Self::ready), if it is long.
    pub(super) payload: Bytes,
    /// The payload's size in bytes, and the memory for it if it is not loaded yet.
    pub(crate) size: usize,
    pub(super) memory: Option<PayloadPermit>,
    pub(super) limit: Option<Duration>,
    pub(super) now: SystemTime,
    pub(crate) permission: StartPermission,
}

/// The number of tries to get a permission that lasts long enough to be used.
const MAX_PERMISSION_TRIES: usize = 3;

impl Job {
    /// Loads a payload that is not here yet, and renews an expired permission.
    ///
    /// # Errors
    /// The attempt may not start.
    pub(super) async fn ready(&mut self) -> Result<(), NoResult> {
        for _ in 0..MAX_PERMISSION_TRIES {
            let missing = match self.payload.len() < self.size {
                true => self.size,
                false => 0,
            };
            if missing == 0 && !self.permission.left(Instant::now()).is_zero() {
                return Ok(());
            }
            let payload = self.permission.ask(missing, self.memory.take()).await;
            match payload {
                Ok(payload) if missing > 0 => {
                    // The stored payload may have changed since the claim.
                    self.size = payload.len();
                    self.payload = payload;
                }
                Ok(_) => {}
                Err(NotGranted::Refused) => return Err(NoResult::NotStarted),
                Err(NotGranted::Away) => return Err(NoResult::StoreAway),
            }
        }
        match self.permission.left(Instant::now()).is_zero() {
            true => Err(NoResult::NotStarted),
            false => Ok(()),
        }
    }

    /// Waits for permission, and moves the payload into the request, so that it is freed once it is written.
    ///
    /// # Errors
    /// The result of the attempt if nothing can be sent.
    pub(crate) async fn request(&mut self) -> Result<JobRequest<'_>, Box<AttemptEnd>> {
        self.ready().await.map_err(|unmade| Box::new(Err(unmade)))?;
        let unsendable = |sent: Box<AttemptResult>| Box::new(Ok(*sent));
        let headers = self.outgoing().and_then(|outgoing| outgoing.headers());
        let headers = headers.map_err(unsendable)?;
        let payload = std::mem::take(&mut self.payload);
        Ok(JobRequest {
            #[cfg(feature = "nats")]
            job: self,
            outgoing: self.outgoing().map_err(unsendable)?,
            headers,
            payload,
        })
    }

    fn outgoing(&self) -> Result<Outgoing<'_>, Box<AttemptResult>> {
        let rules = &self.rules;
        match &rules.target {
            Ok(target) => Ok(Outgoing {
                target,
                id: &self.id,
                content_type: &self.content_type,
                payload: &self.payload,
                signing: rules.signing.as_ref(),
                custom: Some(&rules.custom),
                policy: &rules.policy,
                acknowledgement: rules.endpoint.acknowledgement,
                limit: self.limit,
                now: self.now,
            }),
            Err(fault) => Err(Box::new(AttemptResult::local_fault(fault))),
        }
    }

    /// The URL as it was registered.
    #[cfg(feature = "nats")]
    pub(crate) fn url(&self) -> &str {
        &self.rules.endpoint.url
    }
}

/// The request of a [`Job`].
pub(crate) struct JobRequest<'a> {
    #[cfg(feature = "nats")]
    pub(crate) job: &'a Job,
    /// For the evaluation of the response. Its payload is empty.
    pub(crate) outgoing: Outgoing<'a>,
    /// The signed header fields.
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Bytes,
}

/// The end of an attempt.
pub(crate) type AttemptEnd = Result<AttemptResult, NoResult>;

/// The reason that the receiver's response is unknown.
#[derive(Debug)]
pub(crate) enum NoResult {
    /// The attempt was certainly not started, and never will be: it does not count.
    NotStarted,
    /// The attempt was not started, because the store did not confirm it in time.
    StoreAway,
    /// The receiver may have got the message. With a description.
    Unknown(&'static str),
}

pub(crate) type Sending = Pin<Box<dyn Future<Output = AttemptEnd> + Send>>;

/// Makes attempts. Tests use an implementation without a network.
pub(crate) type Transport = Arc<dyn Fn(Job) -> Sending + Send + Sync>;

/// Makes attempts with this sender.
pub(super) fn over(sender: Sender) -> Transport {
    Arc::new(move |mut job| {
        let sender = sender.clone();
        Box::pin(async move {
            let JobRequest {
                outgoing,
                headers,
                payload,
                ..
            } = match job.request().await {
                Ok(request) => request,
                Err(ended) => return *ended,
            };
            let fields = headers.clone();
            let exchange = sender.exchange(outgoing.target, fields, payload, outgoing.limit);
            Ok(exchange.await.judge(&outgoing, &headers))
        })
    })
}

/// The result of an attempt that was aborted on this side: the receiver may have got the message.
pub(crate) fn broken_off(error: &str, took: Duration) -> AttemptResult {
    AttemptResult::failed(schedule::lost(), error.to_owned(), took)
}
