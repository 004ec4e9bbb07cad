//! What happens to one request.

use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use relent::retry;
use relent_core::claim::{Fingerprint, Lease};
use relent_http::{CallerFacts, grpc};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tower_service::Service;
use uuid::Uuid;

use super::common::Common;
use super::execution::{Ended, Entered, Follower, Lead, Stage};
use super::limits::LONGEST_WAIT;
use super::problems::Refused;
use super::server::Server;
use super::settings::Settings;
use super::store_call::{CALL, CallError, STORE, in_time};
use super::work::{Begins, Guarded, KeyedRequest, Tried, Work};
use super::{Answer, Body, request};
use crate::loan::Loan;
use crate::observe;
use crate::overload::{Held, SlotOf};
use crate::shares::{Principal, Share};
use crate::store::{Change, Claimed, Key, Store};

/// The service of an [`IdempotencyLayer`](super::IdempotencyLayer).
pub struct Idempotency<I, S> {
    inner: I,
    server: Server<S>,
}

/// Another process may run the handler: so often one of its duplicates in this process looks whether it is done.
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
                    };
                    server.once(inner, keyed).await
                }
                Err(refused) => Ok(server.refuse(refused, is_grpc)),
            }
        })
    }
}

/// How a request that follows another one goes on.
enum Followed {
    /// It asks for itself, beside others.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    Alone,
    /// It leads, if nobody else does. If another process has the key, it asks the store not before this, and the lease lasts
    /// so much longer.
    Leads(Option<(Instant, Duration)>),
    Answered(Arc<Answer>),
    Refused(Refused),
}

impl<S: Store> Server<S> {
    /// Runs a request once for each key: what it gets, or the answer of the one before.
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
        if request.parts.extensions.get::<Guarded>().is_some() {
            let is_grpc = grpc::is_grpc(&request.parts.headers);
            return Ok(self.refuse(Refused::Nested, is_grpc));
        }
        let work = Work {
            inner,
            request,
            owner: Uuid::new_v4().as_u128(),
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
        let (key, fingerprint) = (work.request.key, work.request.fingerprint);
        let is_grpc = grpc::is_grpc(&work.request.parts.headers);
        let mut wait = Wait::of(&self, &work.request);
        // It goes on when its client has gone: a layer inside that lets it wait cannot have its quota given back.
        if let Some(loan) = work.request.parts.extensions.get::<Loan>() {
            loan.begins();
        }
        let mut looks_at = None;
        let mut lead = None;
        loop {
            let leads = match lead.take() {
                Some(lead) => lead,
                None => match self.common.running.enter(key, fingerprint) {
                    Entered::Leads(lead) => lead,
                    Entered::Follows(leader) => {
                        match self.follow(leader, fingerprint, &mut wait).await {
                            #[cfg(any(feature = "postgres", feature = "sqlite"))]
                            Followed::Alone => Lead::alone(),
                            Followed::Leads(look) => {
                                looks_at = look;
                                continue;
                            }
                            Followed::Answered(answer) => {
                                return match Answer::clone(&answer).replay() {
                                    Some(response) => Ok(response),
                                    None => Ok(self.refuse(Refused::AnswerNotKept, is_grpc)),
                                };
                            }
                            Followed::Refused(Refused::StoreFailed) if self.settings.fail_open => {
                                return pass_on(work).await;
                            }
                            Followed::Refused(refused) => {
                                return Ok(self.refuse(refused, is_grpc));
                            }
                        }
                    }
                },
            };
            if let Some((at, left)) = looks_at.take() {
                sleep_until(at.min(wait.until)).await;
                // The next look is left to a duplicate that waits for longer.
                if at > wait.until {
                    let refused = Refused::InFlight(self.come_back(left));
                    return Ok(self.refuse(refused, is_grpc));
                }
            }
            let (mut sender, receiver) = oneshot::channel();
            let (server, holding) = (self.clone(), wait.slot.clone());
            // From the claim on nothing depends on the client any more: what is claimed and not run
            // would be lost.
            self.common.running.spawn(async move {
                // What runs on when its client has gone holds its slot.
                let tried = server.attempt(work, leads, holding, sender.closed()).await;
                // If nobody waits for it any more, a duplicate gets it from the store.
                drop(sender.send(tried));
            });
            let left = match receiver.await {
                Ok(Tried::Answered(answer)) => return answer,
                Ok(Tried::Refused(refused)) => return Ok(self.refuse(refused, is_grpc)),
                Ok(Tried::Panicked(payload)) => resume_unwind(payload),
                Ok(Tried::Open(open)) => return pass_on(open).await,
                Ok(Tried::InFlight(back, leads, left)) => {
                    (work, lead) = (back, Some(leads));
                    left
                }
                // The runtime shuts down.
                Err(_) => return Ok(self.refuse(Refused::Unknown, is_grpc)),
            };
            let now = Instant::now();
            let look = now + LOOK.min(left);
            if let Some(lead) = &mut lead {
                lead.reach(Stage::Elsewhere(left));
                lead.will_end(Ended::Open(Some((look, left))));
            }
            if !wait.may_wait() || now >= wait.until {
                let refused = Refused::InFlight(self.come_back(left));
                return Ok(self.refuse(refused, is_grpc));
            }
            looks_at = Some((look, left));
        }
    }

    /// Waits for the request that leads for this key, without a look at the store.
    async fn follow(
        &self,
        mut leader: Follower,
        fingerprint: Fingerprint,
        wait: &mut Wait<'_>,
    ) -> Followed {
        // Where the handler claims the key, nobody else knows for which request.
        let is_another = leader.fingerprint != fingerprint && !self.settings.is_exactly_once();
        loop {
            let left = match leader.stage() {
                Stage::Over(ended) => {
                    return match ended {
                        Ended::Answered(_) if is_another => Followed::Refused(Refused::Mismatch),
                        Ended::Answered(answer) => Followed::Answered(answer),
                        #[cfg(any(feature = "postgres", feature = "sqlite"))]
                        Ended::Recorded => Followed::Alone,
                        Ended::Open(look) => Followed::Leads(look),
                        // What is wrong with the other request may be right with this one.
                        Ended::Refused(refused)
                            if leader.fingerprint != fingerprint
                                && !matches!(refused, Refused::Busy | Refused::StoreFailed) =>
                        {
                            Followed::Leads(None)
                        }
                        Ended::Refused(refused) => Followed::Refused(refused),
                    };
                }
                // It takes no longer than a claim may, and has to be known: it may be an answer.
                Stage::Claims => {
                    leader.changed().await;
                    continue;
                }
                Stage::Runs | Stage::Elsewhere(_) if is_another => {
                    return Followed::Refused(Refused::Mismatch);
                }
                Stage::Runs => Duration::MAX,
                Stage::Elsewhere(left) => left,
            };
            let in_flight = Followed::Refused(Refused::InFlight(self.come_back(left)));
            if !wait.may_wait() || Instant::now() >= wait.until {
                return in_flight;
            }
            drop(timeout_at(wait.until, leader.changed()).await);
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

    /// Claims the key, and runs the handler if it is free. An execution takes its permit when the key is claimed: an
    /// answer that is stored needs none.
    async fn attempt<I, B, R>(
        self,
        work: Work<I>,
        mut lead: Lead,
        slot: Option<Held>,
        gone: impl Future<Output = ()> + Send,
    ) -> Tried<I, R, I::Error>
    where
        I: Service<Request<Body<B>>, Response = Response<R>> + Send + 'static,
        I::Future: Send,
        I::Error: Send,
        B: Send + 'static,
        R: http_body::Body<Data = Bytes> + Send + 'static,
    {
        #[cfg(any(feature = "postgres", feature = "sqlite"))]
        if self.settings.exactly_once {
            return self.attempt_once(work, lead, gone).await;
        }
        let (key, fingerprint) = (work.request.key, work.request.fingerprint);
        let refused = match self.claim(key, work.owner, fingerprint).await {
            Ok(Claimed::Run {
                lease,
                step,
                repeated,
            }) => match self.common.executions.take(&work.request.principal, 1) {
                Some(permit) => {
                    lead.reach(Stage::Runs);
                    let begins = Begins {
                        lease,
                        step,
                        repeated,
                        permit,
                        slot,
                    };
                    let (tried, ended) = self.run(work, begins, gone).await;
                    lead.end(ended);
                    return tried;
                }
                None => {
                    self.release(key, lease).await;
                    Refused::Busy
                }
            },
            Ok(Claimed::InFlight(left)) => return Tried::InFlight(work, lead, left),
            Ok(claimed) => match Refused::of(claimed) {
                Ok(answer) => {
                    lead.end(Ended::Answered(Arc::new(answer.clone())));
                    return match answer.replay() {
                        Some(response) => Tried::Answered(Ok(response)),
                        None => Tried::Refused(Refused::AnswerNotKept),
                    };
                }
                Err(refused) => refused,
            },
            Err(ClaimFailed) => {
                lead.will_end(Ended::Refused(Refused::StoreFailed));
                if self.settings.fail_open {
                    return Tried::Open(work);
                }
                Refused::StoreFailed
            }
        };
        lead.end(Ended::Refused(refused));
        Tried::Refused(refused)
    }

    /// Claims the key, within the limit of time for all attempts. One that is not known to be made is given back.
    async fn claim(
        &self,
        key: Key,
        owner: u128,
        fingerprint: Fingerprint,
    ) -> Result<Claimed, ClaimFailed> {
        let claim = || {
            let config = &self.settings.claim;
            let claim = self.store.claim(&key, owner, fingerprint, config);
            in_time(CALL, claim)
        };
        let limit = self.settings.limits.claim;
        match timeout(limit, retry(&STORE, claim)).await {
            Ok(Ok(claimed)) => return Ok(claimed),
            Ok(Err(error)) => self.store_failed("claim", &key, &error),
            Err(_) => {
                let error = CallError::<S::Error>::TimedOut(limit);
                self.store_failed("claim", &key, &error);
            }
        }
        // What goes through all the same is not given back: its duplicates hear that it may have had its effect.
        if !self.settings.fail_open {
            tokio::spawn(self.clone().give_back(key, owner));
        }
        Err(ClaimFailed)
    }

    /// Gives back a claim that was made, for a request that cannot run.
    async fn release(&self, key: Key, lease: Lease) {
        let server = self.clone();
        let mut release = Box::pin(async move {
            drop(server.write(&key, &lease, Change::Release).await);
        });
        if timeout(self.settings.limits.claim, &mut release)
            .await
            .is_err()
        {
            self.common.running.spawn(release);
        }
    }
}

/// A claim that is not known to be made.
struct ClaimFailed;

/// How a duplicate waits, and what it holds meanwhile.
struct Wait<'a> {
    common: &'a Common,
    principal: Principal,
    until: Instant,
    slot: Option<Held>,
    permit: Option<Share>,
}

impl<'a> Wait<'a> {
    fn of<S: Store>(server: &'a Server<S>, request: &KeyedRequest) -> Self {
        Self {
            common: &server.common,
            principal: Arc::clone(&request.principal),
            until: server.until(&request.parts.headers),
            slot: request.parts.extensions.get().and_then(SlotOf::hold),
            permit: None,
        }
    }

    /// Whether it may wait. Its slot is free from now on: duplicates that only wait would keep others out.
    fn may_wait(&mut self) -> bool {
        if self.permit.is_none() {
            self.permit = self.common.waiters.take(&self.principal, 1);
            if self.permit.is_some() {
                observe::keyed_wait();
            }
        }
        if let Some(slot) = &self.slot {
            slot.release();
        }
        self.permit.is_some()
    }
}

/// The service answers as if this layer were not there, for as long as the request holds its memory.
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
