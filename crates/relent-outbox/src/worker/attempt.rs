//! A single attempt, from claim to result.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::watch;
use tokio::time::Instant;

use super::payload_memory::PayloadPermit;
use super::permission::{NotGranted, StartPermission};
use super::rules::Rules;
use crate::acknowledgement::{MAX_BODY, MAX_EXCERPT};
use crate::endpoint::Acknowledgement;
use crate::message::MessageId;
use crate::schedule;
use crate::sender::{AttemptResult, Exchange, Outgoing, Sender};
use crate::target::Target;

/// An attempt to make.
pub struct Job {
    pub(super) rules: Arc<Rules>,
    pub(super) id: MessageId,
    pub(super) content_type: String,
    /// Empty until it is [loaded](Self::ready), if it is long.
    pub(super) payload: Bytes,
    /// The payload's size in bytes, and the memory for it if it is not loaded yet.
    pub(super) size: usize,
    pub(super) memory: Option<PayloadPermit>,
    pub(super) limit: Duration,
    pub(super) now: SystemTime,
    pub(super) permission: StartPermission,
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

    /// The size of the payload in bytes, which is known before it is loaded.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Waits for permission, loads the payload, and signs the request.
    ///
    /// # Errors
    /// The end of the attempt, if nothing can be sent.
    pub async fn request(&mut self) -> Result<JobRequest<'_>, Box<AttemptEnd>> {
        self.ready().await.map_err(|unmade| Box::new(Err(unmade)))?;
        let unsendable = |sent: Box<AttemptResult>| Box::new(Ok(*sent));
        let headers = self.outgoing().and_then(|outgoing| outgoing.headers());
        let headers = headers.map_err(unsendable)?;
        let payload = std::mem::take(&mut self.payload);
        Ok(JobRequest {
            outgoing: self.outgoing().map_err(unsendable)?,
            url: &self.rules.endpoint.url,
            permission: &self.permission,
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
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// The request of a [`Job`].
pub struct JobRequest<'a> {
    /// For the evaluation of the response. Its payload is empty.
    outgoing: Outgoing<'a>,
    url: &'a str,
    permission: &'a StartPermission,
    headers: HeaderMap,
    payload: Bytes,
}

impl JobRequest<'_> {
    /// The URL as it was registered.
    #[must_use]
    pub const fn url(&self) -> &str {
        self.url
    }

    /// The signed header fields.
    #[must_use]
    pub const fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Takes the payload. Drop it once it is written: until then it counts against
    /// [`body_bytes`](crate::worker::WorkerConfig::body_bytes).
    #[must_use]
    pub fn take_payload(&mut self) -> Bytes {
        std::mem::take(&mut self.payload)
    }

    /// The time limit of the attempt.
    #[must_use]
    pub const fn limit(&self) -> Duration {
        self.outgoing.limit
    }

    /// The permission to start.
    #[must_use]
    pub const fn permission(&self) -> &StartPermission {
        self.permission
    }

    /// The size of the beginning of the response body, in bytes, that [`judge`](Self::judge) needs: to evaluate it, and to
    /// redact secrets in its excerpt.
    #[must_use]
    pub fn needed_body(&self) -> usize {
        let secrets = self.outgoing.secrets(&self.headers);
        let longest = secrets.iter().map(|text| text.len()).max();
        match self.outgoing.acknowledgement {
            Acknowledgement::Success => MAX_EXCERPT.saturating_add(longest.unwrap_or_default()),
            _ => MAX_BODY,
        }
    }

    /// Evaluates the response.
    #[must_use]
    pub fn judge(&self, exchange: Exchange) -> AttemptResult {
        exchange.judge(&self.outgoing, &self.headers)
    }
}

impl fmt::Debug for JobRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobRequest")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// The end of an attempt.
pub type AttemptEnd = Result<AttemptResult, NoResult>;

/// The reason that the receiver's response is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoResult {
    /// The attempt was certainly not started, and never will be: it does not count.
    NotStarted,
    /// The attempt was not started, because the store did not confirm it in time.
    StoreAway,
    /// The receiver may have got the message. With a description.
    Unknown(&'static str),
}

type Sending = Pin<Box<dyn Future<Output = AttemptEnd> + Send>>;
/// A running test: whether the machine can make attempts at any of these targets.
type Test = Arc<dyn Fn(Vec<Target>) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;

/// Makes the attempts of a worker. Clones share it.
#[derive(Clone)]
pub struct Transport {
    open: watch::Receiver<bool>,
    make: Arc<dyn Fn(Job) -> Sending + Send + Sync>,
    /// `None` if other processes make the attempts.
    test: Option<Test>,
}

impl Transport {
    /// Creates a transport that makes attempts by `make`. The worker claims messages only while `open` is true.
    pub fn new<F>(
        open: watch::Receiver<bool>,
        make: impl Fn(Job) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = AttemptEnd> + Send + 'static,
    {
        let make = Arc::new(move |job| Box::pin(make(job)) as Sending);
        Self {
            open,
            make,
            test: None,
        }
    }

    /// Makes the attempts in this process, whose machine is tested like this.
    pub(super) fn in_process<F>(
        mut self,
        test: impl Fn(Vec<Target>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        self.test = Some(Arc::new(move |targets| Box::pin(test(targets))));
        self
    }

    /// Makes attempts with this sender, in this process.
    pub(super) fn with_sender(sender: Sender) -> Self {
        let tested = sender.clone();
        let transport = Self::new(watch::channel(true).1, move |mut job| {
            let sender = sender.clone();
            async move {
                let mut request = match job.request().await {
                    Ok(request) => request,
                    Err(ended) => return *ended,
                };
                let (fields, payload) = (request.headers.clone(), request.take_payload());
                let (target, limit) = (request.outgoing.target, request.limit());
                let exchange = sender.exchange(target, fields, payload, limit);
                Ok(request.judge(exchange.await))
            }
        });
        transport.in_process(move |targets| {
            let sender = tested.clone();
            async move { sender.is_able(targets).await }
        })
    }

    /// Whether this process makes the attempts.
    pub(super) const fn is_in_process(&self) -> bool {
        self.test.is_some()
    }

    /// Whether attempts can be made, as far as this machine is concerned: in this process at any of these targets;
    /// otherwise whether they are accepted.
    pub(super) async fn is_able(&self, targets: Vec<Target>) -> bool {
        match &self.test {
            Some(test) => test(targets).await,
            None => self.is_open(),
        }
    }

    /// Whether it accepts attempts now.
    pub(super) fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    /// Reports when it begins or ceases to accept attempts.
    pub(super) fn open(&self) -> watch::Receiver<bool> {
        self.open.clone()
    }

    pub(super) fn make(&self, job: Job) -> Sending {
        (self.make)(job)
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("open", &self.is_open())
            .finish_non_exhaustive()
    }
}

/// The result of an attempt that was aborted on this side: the receiver may have got the message.
pub(super) fn broken_off(error: &str, took: Duration) -> AttemptResult {
    AttemptResult::failed(schedule::lost(), error.to_owned(), took)
}
