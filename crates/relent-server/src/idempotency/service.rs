//! The service that runs each key once.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use relent::retry;
use relent_core::idempotency::{Fingerprint, Lease};
use relent_http::{CallerContext, grpc};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tower_service::Service;
use uuid::Uuid;

use super::common::Common;
use super::execution::{Follower, Leader, LeaderResult, LeaderStage, RequestRole};
use super::limits::MAX_WAIT;
use super::problems::Rejection;
use super::server::Server;
use super::settings::Settings;
use super::store_call::{CALL_RETRIES, CALL_TIMEOUT, CallError, in_time};
use super::work::{ExecutionStart, KeyClaimed, KeyedRequest, RunResult, Work};
use super::{Body, StoredResponse, request};
use crate::fair_shares::{Principal, Share};
use crate::observe;
use crate::overload::{HeldSlot, WeakSlot};
use crate::quota_refund::QuotaRefund;
use crate::store::{Change, Claimed, Key, Store, WriteError};

/// The service of an [`IdempotencyLayer`](super::IdempotencyLayer).
///
/// It is always ready: a duplicate, or a rejected request, does not wait for the service inside. A request that runs
/// waits for it after the key is claimed.
pub struct Idempotency<I, S> {
    inner: I,
    server: Server<S>,
}

/// The interval at which one duplicate asks the store whether another process has completed its request.
const STORE_POLL_INTERVAL: Duration = Duration::from_millis(100);

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

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (inner, server) = (self.inner.clone(), self.server.clone());
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let is_grpc = grpc::is_grpc(&parts.headers);
            match request::key(&parts, &server.settings) {
                Ok(None) => {
                    let request = Request::from_parts(parts, Body::streamed(body));
                    pass(inner, request).await
                }
                Ok(Some(key)) => {
                    let arrived = Instant::now();
                    let settings = &server.settings;
                    let read = async {
                        if settings.first_sent {
                            request::is_remembered(&parts, SystemTime::now(), &settings.claim)?;
                        }
                        let (record, principal) = request::record_key(&parts, &key, settings)?;
                        let mut memory = server.memory(&principal)?;
                        let limits = settings.read_limits();
                        let bytes = request::read(&parts, body, limits, &mut memory).await?;
                        Ok((record, principal, bytes, memory))
                    };
                    let (key, principal, bytes, memory) = match read.await {
                        Ok(read) => read,
                        Err(refused) => return Ok(server.refuse(refused, is_grpc)),
                    };
                    let fingerprint = request::fingerprint(&parts, &bytes, &settings.fingerprint);
                    let keyed = KeyedRequest {
                        parts,
                        bytes,
                        key,
                        fingerprint,
                        principal,
                        memory,
                        arrived,
                    };
                    server.once(inner, keyed).await
                }
                Err(refused) => Ok(server.refuse(refused, is_grpc)),
            }
        })
    }
}

/// The next action of a follower.
enum FollowerAction {
    /// Reads the recorded response, concurrently with others.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    Alone,
    /// Leads, unless another request does. If another process has the key: asks the store not before this time, and
    /// the lease lasts this much longer.
    Leads(Option<(Instant, Duration)>),
    Answered(Arc<StoredResponse>),
    Rejection(Rejection),
}

impl<S: Store> Server<S> {
    /// Runs a request once for each key, or returns the response of the first.
    pub(crate) async fn once<I, B, R>(
        self,
        inner: I,
        request: KeyedRequest,
    ) -> Result<Response<Body<R>>, I::Error>
    where
        I: Service<Request<Body<B>>, Response = Response<R>> + Send + 'static,
        I::Future: Send,
        I::Error: Send,
        B: Send + 'static,
        R: http_body::Body<Data = Bytes> + Send + 'static,
    {
        if request.parts.extensions.get::<KeyClaimed>().is_some() {
            let is_grpc = grpc::is_grpc(&request.parts.headers);
            return Ok(self.refuse(Rejection::Nested, is_grpc));
        }
        let work = Work {
            inner,
            request,
            owner: Uuid::new_v4().as_u128(),
        };
        self.run_or_wait(work).await
    }

    /// Runs the request if its key is free; otherwise waits for the running one.
    async fn run_or_wait<I, B, R>(self, mut work: Work<I>) -> Result<Response<Body<R>>, I::Error>
    where
        I: Service<Request<Body<B>>, Response = Response<R>> + Send + 'static,
        I::Future: Send,
        I::Error: Send,
        B: Send + 'static,
        R: http_body::Body<Data = Bytes> + Send + 'static,
    {
        let (key, fingerprint) = (work.request.key, work.request.fingerprint);
        let is_grpc = grpc::is_grpc(&work.request.parts.headers);
        let mut wait = DuplicateWait::of(&self, &work.request);
        // The request continues when its client disconnects, so its rate limit quota is not refunded.
        if let Some(quota_refund) = work.request.parts.extensions.get::<QuotaRefund>() {
            quota_refund.begins();
        }
        let mut looks_at = None;
        let mut lead = None;
        loop {
            let leads = match lead.take() {
                Some(lead) => lead,
                None => match self.common.running.enter(key, fingerprint) {
                    RequestRole::Leads(lead) => lead,
                    RequestRole::Follows(leader) => {
                        match self.follow(leader, fingerprint, &mut wait).await {
                            #[cfg(any(feature = "postgres", feature = "sqlite"))]
                            FollowerAction::Alone => Leader::alone(),
                            FollowerAction::Leads(look) => {
                                looks_at = look;
                                continue;
                            }
                            FollowerAction::Answered(answer) => {
                                return match StoredResponse::clone(&answer).replay() {
                                    Some(response) => Ok(response),
                                    None => Ok(self.refuse(Rejection::AnswerNotKept, is_grpc)),
                                };
                            }
                            FollowerAction::Rejection(Rejection::StoreFailed)
                                if self.settings.fail_open =>
                            {
                                return pass_on(work).await;
                            }
                            FollowerAction::Rejection(refused) => {
                                return Ok(self.refuse(refused, is_grpc));
                            }
                        }
                    }
                },
            };
            if let Some((at, left)) = looks_at.take() {
                sleep_until(at.min(wait.until)).await;
                // A duplicate that waits longer asks the store next.
                if at > wait.until {
                    let refused = Rejection::InFlight(self.retry_delay(left));
                    return Ok(self.refuse(refused, is_grpc));
                }
            }
            let (mut sender, receiver) = oneshot::channel();
            let (server, holding) = (self.clone(), wait.slot.clone());
            // From the claim on, the task does not depend on the client: otherwise a claimed request could be lost.
            self.common.running.spawn(async move {
                // A handler that continues without its client keeps its slot.
                let tried = server.attempt(work, leads, holding, sender.closed()).await;
                // If the client has disconnected, a duplicate gets the response from the store.
                drop(sender.send(tried));
            });
            let left = match receiver.await {
                Ok(RunResult::Answered(answer)) => return answer,
                Ok(RunResult::Rejection(refused)) => return Ok(self.refuse(refused, is_grpc)),
                Ok(RunResult::Panicked(payload)) => resume_unwind(payload),
                Ok(RunResult::Open(open)) => return pass_on(open).await,
                Ok(RunResult::InFlight(back, leads, left)) => {
                    (work, lead) = (back, Some(leads));
                    left
                }
                // The runtime is shutting down.
                Err(_) => return Ok(self.refuse(Rejection::Unknown, is_grpc)),
            };
            let now = Instant::now();
            let look = now + STORE_POLL_INTERVAL.min(left);
            if let Some(lead) = &mut lead {
                lead.reach(LeaderStage::Elsewhere(left));
                lead.set_result(LeaderResult::Open(Some((look, left))));
            }
            if !wait.may_wait() || now >= wait.until {
                let refused = Rejection::InFlight(self.retry_delay(left));
                return Ok(self.refuse(refused, is_grpc));
            }
            looks_at = Some((look, left));
        }
    }

    /// Waits for the leader of this key, without asking the store.
    async fn follow(
        &self,
        mut leader: Follower,
        fingerprint: Fingerprint,
        wait: &mut DuplicateWait<'_>,
    ) -> FollowerAction {
        // If the handler claims the key, only the store knows its fingerprint.
        let is_another = leader.fingerprint != fingerprint && !self.settings.is_exactly_once();
        loop {
            let left = match leader.stage() {
                LeaderStage::Over(ended) => {
                    return match ended {
                        LeaderResult::Answered(_) if is_another => {
                            FollowerAction::Rejection(Rejection::Mismatch)
                        }
                        LeaderResult::Answered(answer) => FollowerAction::Answered(answer),
                        #[cfg(any(feature = "postgres", feature = "sqlite"))]
                        LeaderResult::Recorded => FollowerAction::Alone,
                        LeaderResult::Open(look) => FollowerAction::Leads(look),
                        // A rejection of another request may not apply to this one.
                        LeaderResult::Rejection(refused)
                            if leader.fingerprint != fingerprint
                                && !matches!(refused, Rejection::Busy | Rejection::StoreFailed) =>
                        {
                            FollowerAction::Leads(None)
                        }
                        LeaderResult::Rejection(refused) => FollowerAction::Rejection(refused),
                    };
                }
                // The store is not asked: it may have no record any more, or a resolution by another process.
                LeaderStage::Continues => {
                    return FollowerAction::Rejection(match is_another {
                        true => Rejection::Mismatch,
                        false => Rejection::Unknown,
                    });
                }
                // A claim has a short limit. Its result is needed, since it may be a stored response.
                LeaderStage::Claims => {
                    leader.changed().await;
                    continue;
                }
                LeaderStage::Runs | LeaderStage::Elsewhere(_) if is_another => {
                    return FollowerAction::Rejection(Rejection::Mismatch);
                }
                LeaderStage::Runs => self.settings.claim.lease,
                LeaderStage::Elsewhere(left) => left,
            };
            let in_flight = FollowerAction::Rejection(Rejection::InFlight(self.retry_delay(left)));
            if !wait.may_wait() || Instant::now() >= wait.until {
                return in_flight;
            }
            drop(timeout_at(wait.until, leader.changed()).await);
        }
    }

    /// Returns the time until which a duplicate that arrived at `arrived` waits.
    pub(super) fn until(&self, headers: &HeaderMap, arrived: Instant) -> Instant {
        let longest = Instant::now() + self.settings.wait.min(MAX_WAIT);
        match CallerContext::from_headers(headers).remaining {
            Some(remaining) => longest.min(arrived + remaining.min(MAX_WAIT)),
            None => longest,
        }
    }

    /// Returns the delay for `Retry-After`: the average duration of an execution, but not more than the rest of the
    /// lease. One slow route raises the average of all routes of the layer.
    pub(super) fn retry_delay(&self, left: Duration) -> Duration {
        self.common.running.mean().min(left)
    }

    /// Claims the key, and runs the handler if it is free. A permit is taken after the claim, since a stored response
    /// needs none.
    async fn attempt<I, B, R>(
        self,
        work: Work<I>,
        mut lead: Leader,
        slot: Option<HeldSlot>,
        gone: impl Future<Output = ()> + Send,
    ) -> RunResult<I, R, I::Error>
    where
        I: Service<Request<Body<B>>, Response = Response<R>> + Send + 'static,
        I::Future: Send,
        I::Error: Send,
        B: Send + 'static,
        R: http_body::Body<Data = Bytes> + Send + 'static,
    {
        #[cfg(any(feature = "postgres", feature = "sqlite"))]
        if self.settings.transactional {
            return self.attempt_transactional(work, lead, slot, gone).await;
        }
        let (key, fingerprint) = (work.request.key, work.request.fingerprint);
        let refused = match self.claim(key, work.owner, fingerprint).await {
            Ok(Claimed::Run {
                lease,
                step,
                repeated,
            }) => match self.common.executions.take(&work.request.principal, 1) {
                Some(permit) => {
                    lead.reach(LeaderStage::Runs);
                    let begins = ExecutionStart {
                        lease,
                        step,
                        repeated,
                        permit,
                        slot,
                    };
                    let (tried, ended) = self.run(work, begins, &mut lead, gone).await;
                    lead.end(ended);
                    return tried;
                }
                None => {
                    self.release(key, lease).await;
                    Rejection::Busy
                }
            },
            Ok(Claimed::InFlight(left)) => return RunResult::InFlight(work, lead, left),
            Ok(claimed) => match Rejection::of(claimed) {
                Ok(answer) => {
                    lead.end(LeaderResult::Answered(Arc::new(answer.clone())));
                    return match answer.replay() {
                        Some(response) => RunResult::Answered(Ok(response)),
                        None => RunResult::Rejection(Rejection::AnswerNotKept),
                    };
                }
                Err(refused) => refused,
            },
            Err(ClaimFailed) => {
                lead.set_result(LeaderResult::Rejection(Rejection::StoreFailed));
                if self.settings.fail_open {
                    return RunResult::Open(work);
                }
                Rejection::StoreFailed
            }
        };
        lead.end(LeaderResult::Rejection(refused));
        RunResult::Rejection(refused)
    }

    /// Claims the key, within the time limit for all attempts. If the result is not known, the claim is given back.
    async fn claim(
        &self,
        key: Key,
        owner: u128,
        fingerprint: Fingerprint,
    ) -> Result<Claimed, ClaimFailed> {
        let claim = || {
            let config = &self.settings.claim;
            let claim = self.store.claim(&key, owner, fingerprint, config);
            in_time(CALL_TIMEOUT, claim)
        };
        let limit = self.settings.limits.claim;
        match timeout(limit, retry(&CALL_RETRIES, claim)).await {
            Ok(Ok(claimed)) => return Ok(claimed),
            Ok(Err(error)) => self.store_failed("claim", &key, &error),
            Err(_) => {
                let error = CallError::<S::Error>::TimedOut(limit);
                self.store_failed("claim", &key, &error);
            }
        }
        // With `fail_open` the request runs without a key, so the claim is not given back: duplicates get "outcome
        // unknown".
        if !self.settings.fail_open {
            tokio::spawn(self.clone().give_back(key, owner));
        }
        Err(ClaimFailed)
    }

    /// Gives back a claim whose request cannot run.
    async fn release(&self, key: Key, lease: Lease) {
        let server = self.clone();
        let mut release = Box::pin(async move {
            let released = server.write(&key, &lease, Change::Release).await;
            if let Err(WriteError::Store(_)) = released {
                tokio::spawn(server.give_back(key, lease.owner));
            }
        });
        if timeout(self.settings.limits.claim, &mut release)
            .await
            .is_err()
        {
            self.common.running.spawn(release);
        }
    }
}

/// The claim failed, or its result is not known.
struct ClaimFailed;

/// The wait of a duplicate, and the resources that it holds.
struct DuplicateWait<'a> {
    common: &'a Common,
    principal: Principal,
    until: Instant,
    slot: Option<HeldSlot>,
    permit: Option<Share>,
}

impl<'a> DuplicateWait<'a> {
    fn of<S: Store>(server: &'a Server<S>, request: &KeyedRequest) -> Self {
        Self {
            common: &server.common,
            principal: Arc::clone(&request.principal),
            until: server.until(&request.parts.headers, request.arrived),
            slot: request.parts.extensions.get().and_then(WeakSlot::hold),
            permit: None,
        }
    }

    /// Returns whether the duplicate may wait. Releases its slot, so that waiting duplicates do not block other
    /// requests.
    fn may_wait(&mut self) -> bool {
        if self.permit.is_none() {
            self.permit = self.common.waiters.take(&self.principal, 1);
            if self.permit.is_some() {
                observe::idempotent_wait();
            }
        }
        if let Some(slot) = &self.slot {
            slot.release();
        }
        self.permit.is_some()
    }
}

/// Waits for a slot again, if the request has released its own while it waited for another one with its key.
pub(super) async fn take_slot(
    slot: Option<&HeldSlot>,
    quota_refund: Option<&QuotaRefund>,
) -> Result<(), Rejection> {
    let Some(slot) = slot else {
        return Ok(());
    };
    slot.take_again().await.map_err(|rejected| {
        // A disconnected client does not end the wait, so only a rejection refunds the quota.
        if let Some(quota_refund) = quota_refund {
            quota_refund.reject();
        }
        Rejection::NoSlot(rejected)
    })
}

/// Waits until the service is ready.
pub(super) async fn ready<I, B>(inner: &mut I) -> Result<(), I::Error>
where
    I: Service<Request<Body<B>>>,
{
    poll_fn(|context| inner.poll_ready(context)).await
}

/// Calls the service without idempotency, and holds the memory of the request meanwhile.
async fn pass_on<I, B, R>(work: Work<I>) -> Result<Response<Body<R>>, I::Error>
where
    I: Service<Request<Body<B>>, Response = Response<R>>,
{
    let KeyedRequest {
        parts,
        bytes,
        memory,
        ..
    } = work.request;
    let response = pass(work.inner, Request::from_parts(parts, Body::whole(bytes))).await;
    drop(memory);
    response
}

/// Calls the service without idempotency.
async fn pass<I, B, R>(
    mut inner: I,
    request: Request<Body<B>>,
) -> Result<Response<Body<R>>, I::Error>
where
    I: Service<Request<Body<B>>, Response = Response<R>>,
{
    let quota_refund = request.extensions().get().cloned();
    QuotaRefund::during(quota_refund, ready(&mut inner)).await?;
    let response = inner.call(request).await?;
    Ok(response.map(Body::streamed))
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
