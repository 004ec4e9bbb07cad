//! What happens to one request.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use relent::{Backoff, GaveUp, Policy, retry};
#[cfg(feature = "webhook")]
use relent_core::claim::ClaimConfig;
use relent_core::claim::Fingerprint;
use relent_http::{CallerFacts, grpc};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use tower_service::Service;
use uuid::Uuid;

use super::problems::Refused;
use super::{Answer, Body, Common, Settings, request};
use crate::loan::Loan;
use crate::observe;
use crate::overload::SlotOf;
use crate::store::{Claimed, Key, Store, StoreFailure};

/// The service of an [`IdempotencyLayer`](super::IdempotencyLayer).
pub struct Idempotency<I, S> {
    inner: I,
    server: Server<S>,
}

/// What each task gets a share of.
pub(crate) struct Server<S> {
    pub(super) store: Arc<S>,
    pub(super) settings: Arc<Settings>,
    pub(super) common: Arc<Common>,
}

/// A store that fails is asked again a few times, within about half a second.
pub(super) static STORE: Policy = Policy::builder(Backoff::exponential(Duration::from_millis(20)))
    .max_delay(Duration::from_secs(1))
    .max_retries(4)
    .build_const();

/// A wait for longer is one of this length, so that no sum with the time overflows.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Another process may run the handler: so often a duplicate looks whether it is done.
const LOOK: Duration = Duration::from_millis(100);

impl<I, S> Idempotency<I, S> {
    pub(super) const fn new(
        inner: I,
        store: Arc<S>,
        settings: Arc<Settings>,
        common: Arc<Common>,
    ) -> Self {
        let server = Server {
            store,
            settings,
            common,
        };
        Self { inner, server }
    }
}

impl<I, S, B, R> Service<Request<B>> for Idempotency<I, S>
where
    I: Service<Request<Body<B>>, Response = Response<R>> + Clone + Send + 'static,
    I::Future: Send,
    I::Error: Send,
    S: Store,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    R: http_body::Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<Body<R>>;
    type Error = I::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, I::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that is ready goes, and its clone has yet to become so.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let server = self.server.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let is_grpc = grpc::is_grpc(&parts.headers);
            match request::key(&parts, &server.settings) {
                Ok(None) => {
                    let request = Request::from_parts(parts, Body::streamed(body));
                    pass(inner, request).await
                }
                Ok(Some(key)) => {
                    let settings = &server.settings;
                    let read = async {
                        if settings.first_sent {
                            request::is_remembered(&parts, SystemTime::now(), &settings.claim)?;
                        }
                        let record = request::record_key(&parts, &key, settings)?;
                        let bytes = request::read(&parts, body, settings.max_request).await?;
                        Ok((record, bytes))
                    };
                    let (key, bytes) = match read.await {
                        Ok(read) => read,
                        Err(refused) => return Ok(server.refuse(refused, is_grpc)),
                    };
                    let fingerprint = request::fingerprint(&parts, &bytes, &settings.fingerprint);
                    server.once(inner, parts, bytes, key, fingerprint).await
                }
                Err(refused) => Ok(server.refuse(refused, is_grpc)),
            }
        })
    }
}

/// A request with a key, and the service that is ready for it.
pub(super) struct Work<I> {
    pub(super) inner: I,
    pub(super) parts: Parts,
    pub(super) bytes: Bytes,
    pub(super) key: Key,
    owner: u128,
    pub(super) fingerprint: Fingerprint,
}

/// How far one look at the store has come.
pub(super) enum Tried<I, R, E> {
    Answered(Result<Response<Body<R>>, E>),
    Refused(Refused),
    Panicked(Box<dyn Any + Send>),
    InFlight(Work<I>, Duration),
    /// The store fails, and the request is to go through as if it had no key.
    Open(Work<I>),
}

impl<S> Server<S> {
    #[cfg(feature = "webhook")]
    pub(crate) fn claim_config(&self) -> &ClaimConfig {
        &self.settings.claim
    }

    /// What a request gets that gets no answer of its handler.
    pub(crate) fn refuse<R>(&self, refused: Refused, is_grpc: bool) -> Response<Body<R>> {
        let refused = refused.observed(self.settings.source, is_grpc);
        refused.map(Body::whole)
    }
}

impl<S: Store> Server<S> {
    /// The operator is told that a call of the store has failed.
    pub(super) fn store_failed(
        &self,
        operation: &'static str,
        key: &Key,
        error: &(dyn Error + 'static),
    ) {
        // What has given up says no more than its last error.
        let last = error.downcast_ref::<GaveUp<S::Error>>();
        let error = match last.and_then(GaveUp::error) {
            Some(last) => last,
            None => error,
        };
        let failure = StoreFailure::new(operation, *key, error);
        self.settings.failures.failed(&failure);
    }

    /// Runs a request once for each key: what it gets, or the answer of the one before.
    pub(crate) async fn once<I, B, R>(
        self,
        inner: I,
        parts: Parts,
        bytes: Bytes,
        key: Key,
        fingerprint: Fingerprint,
    ) -> Result<Response<Body<R>>, I::Error>
    where
        I: Service<Request<Body<B>>, Response = Response<R>> + Send + 'static,
        I::Future: Send,
        I::Error: Send,
        B: Send + 'static,
        R: http_body::Body<Data = Bytes> + Send + 'static,
    {
        if parts.extensions.get::<Guarded>().is_some() {
            let is_grpc = grpc::is_grpc(&parts.headers);
            return Ok(self.refuse(Refused::Nested, is_grpc));
        }
        let work = Work {
            inner,
            parts,
            bytes,
            key,
            owner: Uuid::new_v4().as_u128(),
            fingerprint,
        };
        self.run_or_wait(work).await
    }

    /// Runs the request if its key is free, or waits for the one that runs.
    async fn run_or_wait<I, B, R>(self, mut work: Work<I>) -> Result<Response<Body<R>>, I::Error>
    where
        I: Service<Request<Body<B>>, Response = Response<R>> + Send + 'static,
        I::Future: Send,
        I::Error: Send,
        B: Send + 'static,
        R: http_body::Body<Data = Bytes> + Send + 'static,
    {
        let until = self.until(&work.parts.headers);
        let is_grpc = grpc::is_grpc(&work.parts.headers);
        // It goes on when its client has gone: a layer inside that lets it wait cannot have its quota given back.
        if let Some(loan) = work.parts.extensions.get::<Loan>() {
            loan.begins();
        }
        let held = work.parts.extensions.get().and_then(SlotOf::hold);
        let mut waits = None;
        loop {
            let (sender, receiver) = oneshot::channel();
            let (key, server, holding) = (work.key, self.clone(), held.clone());
            // From the claim on nothing depends on the client any more: what is claimed and not run
            // would be lost.
            self.common.running.spawn(async move {
                let tried = server.attempt(work).await;
                // If nobody waits for it any more, a duplicate gets it from the store.
                drop(sender.send(tried));
                // What runs on when its client has gone holds its slot.
                drop(holding);
            });
            let left = match receiver.await {
                Ok(Tried::Answered(answer)) => return answer,
                Ok(Tried::Refused(refused)) => return Ok(self.refuse(refused, is_grpc)),
                Ok(Tried::Panicked(payload)) => resume_unwind(payload),
                Ok(Tried::Open(open)) => {
                    let request = Request::from_parts(open.parts, Body::whole(open.bytes));
                    return pass(open.inner, request).await;
                }
                Ok(Tried::InFlight(back, left)) => {
                    work = back;
                    left
                }
                // The runtime shuts down.
                Err(_) => return Ok(self.refuse(Refused::Unknown, is_grpc)),
            };
            if waits.is_none() {
                waits = self.common.waiters.try_acquire().ok();
                if waits.is_some() {
                    observe::keyed_wait();
                }
                // Duplicates that only wait would keep others out.
                if let Some(held) = &held {
                    held.release();
                }
            }
            let now = Instant::now();
            if waits.is_none() || now >= until {
                let refused = Refused::InFlight(self.come_back(left));
                return Ok(self.refuse(refused, is_grpc));
            }
            let look = LOOK.min(left).min(until - now);
            tokio::select! {
                () = self.common.running.over(&key) => {}
                () = sleep(look) => {}
            }
        }
    }

    /// How long a duplicate waits.
    pub(super) fn until(&self, headers: &HeaderMap) -> Instant {
        let wait = match CallerFacts::of(headers).remaining {
            Some(remaining) => remaining.min(self.settings.wait),
            None => self.settings.wait,
        };
        Instant::now() + wait.min(LONGEST_WAIT)
    }

    /// When a duplicate had best come back: when executions usually end, and when the lease runs out at
    /// the latest.
    fn come_back(&self, left: Duration) -> Duration {
        self.common.running.mean().min(left)
    }

    /// Claims the key, and runs the handler if it is free.
    async fn attempt<I, B, R>(&self, work: Work<I>) -> Tried<I, R, I::Error>
    where
        I: Service<Request<Body<B>>, Response = Response<R>>,
        R: http_body::Body<Data = Bytes>,
    {
        let executions = Arc::clone(&self.common.executions);
        let Ok(permit) = executions.try_acquire_owned() else {
            return Tried::Refused(Refused::Busy);
        };
        #[cfg(any(feature = "postgres", feature = "sqlite"))]
        if self.settings.exactly_once {
            return self.attempt_once(work).await;
        }
        // It is not lost, whatever the store says: its clock may have been set, or it may have forgotten.
        match self.common.running.fingerprint(&work.key) {
            Some(same) if same == work.fingerprint => {
                return Tried::InFlight(work, self.settings.claim.lease);
            }
            Some(_) => return Tried::Refused(Refused::Mismatch),
            None => {}
        }
        let claim = || {
            let (owner, fingerprint) = (work.owner, work.fingerprint);
            self.store
                .claim(&work.key, owner, fingerprint, &self.settings.claim)
        };
        match retry(&STORE, claim).await {
            Ok(Claimed::Run {
                lease,
                step,
                repeated,
            }) => self.run(work, lease, step, repeated, permit).await,
            Ok(Claimed::InFlight(left)) => Tried::InFlight(work, left),
            Ok(claimed) => match Refused::of(claimed).map(Answer::replay) {
                Ok(Some(response)) => Tried::Answered(Ok(response)),
                Ok(None) => Tried::Refused(Refused::AnswerNotKept),
                Err(refused) => Tried::Refused(refused),
            },
            Err(error) => {
                self.store_failed("claim", &work.key, &error);
                if self.settings.fail_open {
                    return Tried::Open(work);
                }
                tokio::spawn(self.clone().give_back(work.key, work.owner));
                Tried::Refused(Refused::StoreFailed)
            }
        }
    }
}

/// The service answers as if this layer were not there.
async fn pass<I, B, R>(
    mut inner: I,
    request: Request<Body<B>>,
) -> Result<Response<Body<R>>, I::Error>
where
    I: Service<Request<Body<B>>, Response = Response<R>>,
{
    let response = inner.call(request).await?;
    Ok(response.map(Body::streamed))
}

/// In the extensions of a request whose key a layer has claimed.
#[derive(Clone, Copy)]
pub(super) struct Guarded;

impl<S> Clone for Server<S> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            settings: Arc::clone(&self.settings),
            common: Arc::clone(&self.common),
        }
    }
}

impl<I: Clone, S> Clone for Idempotency<I, S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            server: self.server.clone(),
        }
    }
}

impl<I: fmt::Debug, S> fmt::Debug for Idempotency<I, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
