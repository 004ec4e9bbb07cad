//! An execution: runs the handler, renews its lease, and records its result.

use std::any::Any;
use std::convert::Infallible;
use std::future::{Future, pending};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use relent::{Backoff, Policy, retry};
use relent_core::idempotency::{Lease, Takeover};
use relent_http::field::content_length;
use relent_http::grpc;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tower_service::Service;

use super::execution::{CheckpointError, Execution, Leader, LeaderResult};
use super::lease::HeldLease;
use super::limits::MAX_WAIT;
use super::problems::Rejection;
use super::server::Server;
use super::service::{ready, take_slot};
use super::store_call::{CALL_TIMEOUT, CallError, WriteFailed};
use super::work::{ExecutionStart, KeyClaimed, RunResult, Work};
use super::{Body, Outcome, StoredResponse, request};
use crate::fair_shares::Share;
use crate::observe;
use crate::store::{Change, Key, Store, WriteError};

/// Retries of the write that records the result of a handler: for 30 s at most.
static RECORD_RETRIES: Policy = Policy::builder(Backoff::exponential(Duration::from_millis(20)))
    .max_delay(Duration::from_secs(1))
    .max_retries(60)
    .max_elapsed(Duration::from_secs(30))
    .build_const();

/// The number of renewals within a lease.
const RENEWALS_PER_LEASE: u32 = 3;
/// The shortest interval of renewals, so that a short lease does not take a whole core.
const MIN_RENEWAL_INTERVAL: Duration = Duration::from_millis(1);

/// How long a handler may continue after its outcome is unknown. Dropping it half-way could lose the record of a
/// charge. Its response is still recorded.
const MAX_TIME_AFTER_UNKNOWN: Duration = Duration::from_secs(600);

/// How many handlers may continue; further ones are dropped.
pub(super) const MAX_HANDLERS_AFTER_UNKNOWN: usize = 1000;

/// The result of the handler, or its panic.
type HandlerOutput<R, E> = Result<Result<Response<R>, E>, Box<dyn Any + Send>>;

/// Another execution has the key, and the handler is stopped.
struct Stopped;

impl<S: Store> Server<S> {
    /// Runs the handler, renews its lease meanwhile, and records its result. Returns the result for the client and
    /// for the duplicates.
    pub(super) async fn run<I, B, R>(
        &self,
        work: Work<I>,
        begins: ExecutionStart,
        lead: &mut Leader,
        gone: impl Future<Output = ()>,
    ) -> (RunResult<I, R, I::Error>, LeaderResult)
    where
        I: Service<Request<Body<B>>, Response = Response<R>> + Send + 'static,
        I::Future: Send,
        I::Error: Send,
        B: Send + 'static,
        R: http_body::Body<Data = Bytes> + Send + 'static,
    {
        let ExecutionStart {
            lease,
            step,
            repeated,
            permit,
            slot,
        } = begins;
        let Work {
            mut inner, request, ..
        } = work;
        observe::keyed(if repeated { "taken_over" } else { "run" });
        let held = HeldLease::new(request.key, request.fingerprint, lease, step, repeated);
        let held = Arc::new(held);
        let execution = self.execution(&held, lease.fence, step, repeated);
        let (mut parts, mut memory) = (request.parts, request.memory);
        let trace = request::trace(&parts);
        let quota_refund = parts.extensions.get().cloned();
        parts.extensions.insert(execution);
        parts.extensions.insert(KeyClaimed);
        let request = Request::from_parts(parts, Body::whole(request.bytes));
        let run = async {
            let began = Instant::now();
            let mut limit_reached = pin!(self.limit_reached(gone));
            let starts = async {
                let taken = take_slot(slot.as_ref(), quota_refund.as_ref()).await;
                taken.map_err(ClientResult::Rejection)?;
                let ready = ready(&mut inner).await;
                ready.map_err(|error| ClientResult::StoredResponse(Err(error)))
            };
            let not_ready = tokio::select! {
                started = AssertUnwindSafe(starts).catch_unwind() => match started {
                    Ok(started) => started.err(),
                    Err(payload) => Some(ClientResult::Panic(payload)),
                },
                () = &mut limit_reached => Some(ClientResult::Nothing),
                () = held.lost() => Some(ClientResult::Nothing),
            };
            if held.is_lost() {
                // Another execution has the key, and this one has had no effect.
                return self.stopped(&held);
            }
            if let Some(given) = not_ready {
                // The handler has not started.
                return self
                    .end(&held, HandlerResult::new(Change::Release, given))
                    .await;
            }
            let call = async move { inner.call(request).await };
            let mut handler = Box::pin(AssertUnwindSafe(call).catch_unwind());
            let called = tokio::select! {
                called = &mut handler => Ok(called),
                () = self.stop_allowed(&held) => Err(Stopped),
                () = limit_reached => {
                    // Permit and slot are free for other requests.
                    drop((permit, slot));
                    return self
                        .give_up_running(handler, &held, lead, trace, memory)
                        .await;
                }
            };
            let read = match called {
                Ok(called) => tokio::select! {
                    read = self.read_called(called, trace, &mut memory) => Ok(read),
                    () = self.stop_allowed(&held) => Err(Stopped),
                },
                Err(stopped) => Err(stopped),
            };
            let ended = match read {
                Ok(handled) => self.end(&held, handled).await,
                Err(Stopped) => self.stopped(&held),
            };
            self.common.running.took(began.elapsed());
            drop((permit, slot));
            ended
        };
        tokio::select! {
            ended = run => ended,
            never = self.renew(&held) => match never {},
        }
    }

    /// Ends an execution whose key another one has.
    fn stopped<I, R, E>(&self, held: &HeldLease) -> (RunResult<I, R, E>, LeaderResult) {
        observe::lease_lost(&held.key);
        let refused = Rejection::InFlight(self.retry_delay(self.settings.claim.lease));
        (RunResult::Rejection(refused), LeaderResult::Open(None))
    }

    /// Creates the handler's view of its execution.
    fn execution(&self, held: &Arc<HeldLease>, fence: u64, step: u32, repeated: bool) -> Execution {
        let (server, own) = (self.clone(), Arc::clone(held));
        let checkpoint = move |step| {
            let (server, held) = (server.clone(), Arc::clone(&own));
            let write = async move {
                match server.write_held(&held, Change::Checkpoint(step)).await {
                    Ok(()) => {
                        held.done(step);
                        Ok(())
                    }
                    Err(WriteError::Lost | WriteError::Gone) => Err(CheckpointError::Lost),
                    Err(WriteError::Store(error)) => Err(CheckpointError::Store(error)),
                }
            };
            Box::pin(write) as _
        };
        Execution::new(fence, step, repeated, Arc::clone(held), checkpoint)
    }

    /// Completes when another execution has the key, if the route allows a rerun or a resume. Otherwise the handler
    /// is only notified, since it may be in the middle of its only run.
    async fn stop_allowed(&self, held: &HeldLease) {
        match self.is_rerun_allowed() {
            true => held.lost().await,
            false => pending().await,
        }
    }

    fn is_rerun_allowed(&self) -> bool {
        matches!(
            self.settings.claim.takeover,
            Takeover::Rerun | Takeover::Resume
        )
    }

    /// Completes when a limit of the handler is reached: its total time, or its time without a client.
    pub(super) async fn limit_reached(&self, gone: impl Future<Output = ()>) {
        let limits = &self.settings.limits;
        let alone = async {
            gone.await;
            sleep(limits.disconnected).await;
        };
        tokio::select! {
            () = alone => {}
            () = sleep(limits.execution) => {}
        }
    }

    /// Gives up a handler that still runs: its outcome is unknown. If the route allows a rerun, the handler is
    /// dropped. Otherwise it continues without a lease, and its response is recorded unless the outcome is resolved
    /// before. Meanwhile no other handler of its key starts in this process.
    async fn give_up_running<I, R, E>(
        &self,
        handler: impl Future<Output = HandlerOutput<R, E>> + Send + 'static,
        held: &Arc<HeldLease>,
        lead: &mut Leader,
        trace: Option<HeaderValue>,
        mut memory: Share,
    ) -> (RunResult<I, R, E>, LeaderResult)
    where
        R: http_body::Body<Data = Bytes> + Send + 'static,
        E: Send + 'static,
    {
        let runs_on = Arc::clone(&self.common.run_on).try_acquire_owned();
        if let (false, Ok(permit)) = (self.is_rerun_allowed(), runs_on) {
            let (server, held, lead) = (self.clone(), Arc::clone(held), lead.continues());
            self.common.running.spawn(async move {
                let end = match timeout(MAX_TIME_AFTER_UNKNOWN, handler).await {
                    Ok(called) => server.read_called(called, trace, &mut memory).await.end,
                    Err(_) => Change::GiveUp,
                };
                // The write fails if another request has taken over or an operator has resolved the outcome. If the
                // record has expired meanwhile, it is written again: the handler may have had its effect after that.
                drop(server.write_held(&held, end).await);
                drop((memory, permit, lead));
            });
        } else {
            drop(handler);
        }
        observe::unknown(&held.key, None);
        // If the write fails, the lease expires, which has the same meaning.
        drop(self.write_held(held, Change::GiveUp).await);
        (
            RunResult::Rejection(Rejection::Unknown),
            LeaderResult::Open(None),
        )
    }

    /// Reads the response of the handler as far as needed to record the result.
    async fn read_called<R, E>(
        &self,
        called: HandlerOutput<R, E>,
        trace: Option<HeaderValue>,
        memory: &mut Share,
    ) -> HandlerResult<R, E>
    where
        R: http_body::Body<Data = Bytes>,
    {
        let mut response = match called {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                return HandlerResult::new(
                    Change::GiveUp,
                    ClientResult::StoredResponse(Err(error)),
                );
            }
            Err(payload) => {
                return HandlerResult::new(Change::GiveUp, ClientResult::Panic(payload));
            }
        };
        self.settings.source.set_outcome(&mut response);
        let end = match Outcome::of(&response) {
            Outcome::Final => {
                let read = AssertUnwindSafe(self.read(response, trace, memory)).catch_unwind();
                return read.await.unwrap_or_else(|payload| {
                    HandlerResult::new(Change::GiveUp, ClientResult::Panic(payload))
                });
            }
            Outcome::NotApplied => Change::Release,
            Outcome::Unknown => Change::GiveUp,
        };
        HandlerResult::new(
            end,
            ClientResult::StoredResponse(Ok(response.map(Body::streamed))),
        )
    }

    /// Reads a response up to the limit for stored ones.
    async fn read<R, E>(
        &self,
        response: Response<R>,
        trace: Option<HeaderValue>,
        memory: &mut Share,
    ) -> HandlerResult<R, E>
    where
        R: http_body::Body<Data = Bytes>,
    {
        // The gRPC status comes last, unless the handler has set the outcome.
        let comes_last = grpc::is_grpc(response.headers())
            && grpc::code(response.headers()).is_none()
            && response.extensions().get::<Outcome>().is_none();
        let (head, body) = response.into_parts();
        let mut body = Box::pin(body);
        let wait = match is_event_stream(&head.headers) {
            // The client needs each event as it comes.
            true => Duration::ZERO,
            false => self.settings.limits.answer.min(MAX_WAIT),
        };
        let deadline = Instant::now() + wait;
        let (mut whole, mut trailers) = (BytesMut::new(), None);
        loop {
            let is_kept = match timeout_at(deadline, body.frame()).await {
                Ok(None) => break,
                Ok(Some(Err(_))) => {
                    return HandlerResult::new(Change::GiveUp, ClientResult::Nothing);
                }
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        // The response has its own limit, and must not be truncated.
                        memory.grow_anyway(data.len());
                        whole.extend_from_slice(&data);
                        whole.len() <= self.settings.max_response
                    }
                    Err(frame) => {
                        trailers = frame.into_trailers().ok();
                        true
                    }
                },
                Err(_) => false,
            };
            if !is_kept {
                // The client gets the rest as it comes. The head determines the outcome, except for gRPC.
                let end = match comes_last {
                    true => Change::GiveUp,
                    false => {
                        let answer = StoredResponse::new(&head, None, None).with_trace(trace);
                        Change::Complete(Arc::new(answer))
                    }
                };
                let body = Body::new(whole.freeze(), Some(body));
                let response = Response::from_parts(head, body);
                return HandlerResult::new(end, ClientResult::StoredResponse(Ok(response)));
            }
        }
        let whole = whole.freeze();
        let has_body = !matches!(
            head.status,
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        );
        if has_body
            && content_length(&head.headers).is_some_and(|length| length > whole.len() as u64)
        {
            // The first client gets an error of the connection, so duplicates must not get the rest as a whole.
            return HandlerResult::new(Change::GiveUp, ClientResult::Nothing);
        }
        let outcome = match comes_last {
            true => Outcome::of_trailers(trailers.as_ref()),
            false => Outcome::Final,
        };
        let end = match outcome {
            Outcome::Final => {
                observe::stored(whole.len());
                // A duplicate has no connection to switch (101).
                let stored = (!head.status.is_informational()).then(|| whole.clone());
                let answer = StoredResponse::new(&head, stored, trailers.clone());
                Change::Complete(Arc::new(answer.with_trace(trace)))
            }
            Outcome::NotApplied => Change::Release,
            Outcome::Unknown => Change::GiveUp,
        };
        let body = Body::with_trailers(whole, trailers);
        let response = Response::from_parts(head, body);
        HandlerResult::new(end, ClientResult::StoredResponse(Ok(response)))
    }

    /// Records the result of the handler; returns the result for its client and its duplicates.
    async fn end<I, R, E>(
        &self,
        held: &HeldLease,
        handled: HandlerResult<R, E>,
    ) -> (RunResult<I, R, E>, LeaderResult) {
        let completes = match &handled.end {
            Change::Complete(answer) => Some(Arc::clone(answer)),
            _ => None,
        };
        let is_released = matches!(handled.end, Change::Release);
        if matches!(handled.end, Change::GiveUp) {
            observe::unknown(&held.key, handled.given.status());
        }
        // If an unknown outcome cannot be recorded, the lease expires, which has the same meaning.
        let written = self.write_held(held, handled.end).await;
        // An execution that may have had an effect is not given back, whatever its record says by now.
        if is_released
            && !held.may_have_had_effect()
            && matches!(written, Err(WriteError::Store(_)))
        {
            // Otherwise the lease would expire, and duplicates of a request without effect get "outcome unknown".
            tokio::spawn(self.clone().give_back(held.key, held.get().owner));
        }
        let ended = match (&written, &completes) {
            (Ok(()), Some(answer)) => LeaderResult::Answered(Arc::clone(answer)),
            _ => LeaderResult::Open(None),
        };
        let tried = match (written, handled.given) {
            (_, ClientResult::Panic(payload)) => RunResult::Panicked(payload),
            (_, ClientResult::Rejection(refused)) => RunResult::Rejection(refused),
            // Another execution has taken over, and duplicates get its response.
            (Err(WriteError::Lost), _) if completes.is_some() => {
                let delay = self.retry_delay(self.settings.claim.lease);
                RunResult::Rejection(Rejection::InFlight(delay))
            }
            // Even if the response is not recorded, the client gets it; duplicates then get "outcome unknown".
            (_, ClientResult::StoredResponse(answer)) => RunResult::Answered(answer),
            (_, ClientResult::Nothing) if is_released => RunResult::Rejection(Rejection::Busy),
            (_, ClientResult::Nothing) => RunResult::Rejection(Rejection::Unknown),
        };
        (tried, ended)
    }

    /// Writes into the record of a key, with retries while the store may recover.
    pub(super) async fn write(
        &self,
        key: &Key,
        lease: &Lease,
        change: Change,
    ) -> Result<(), WriteFailed> {
        let write = || async {
            let (change, config) = (change.clone(), &self.settings.claim);
            let written = timeout(CALL_TIMEOUT, self.store.write(key, lease, change, config)).await;
            match written {
                Ok(Ok(_)) => Ok(Ok(())),
                Ok(Err(WriteError::Lost)) => Ok(Err(WriteError::Lost)),
                Ok(Err(WriteError::Gone)) => Ok(Err(WriteError::Gone)),
                Ok(Err(WriteError::Store(error))) => Err(CallError::Store(error)),
                Err(_) => Err(CallError::TimedOut(CALL_TIMEOUT)),
            }
        };
        match retry(&RECORD_RETRIES, write).await {
            Ok(Err(WriteError::Lost)) => {
                observe::lease_lost(key);
                Err(WriteError::Lost)
            }
            Ok(written) => written,
            Err(gave_up) => {
                self.store_failed("write", key, &gave_up);
                Err(WriteError::Store(Box::new(gave_up)))
            }
        }
    }

    /// Renews the lease until dropped. If the store has lost the record, claims the key again: otherwise a duplicate
    /// would run concurrently.
    async fn renew(&self, held: &HeldLease) -> Infallible {
        let every = (self.settings.claim.lease / RENEWALS_PER_LEASE).max(MIN_RENEWAL_INTERVAL);
        let mut due = Instant::now() + every.min(MAX_WAIT);
        loop {
            sleep_until(due).await;
            // From start to start: otherwise the renewal after a stalled one would come when the lease ends.
            due = Instant::now() + every.min(MAX_WAIT);
            let renewed = match timeout_at(due, self.renew_once(held)).await {
                Ok(renewed) => renewed,
                Err(_) => {
                    let error = CallError::<S::Error>::TimedOut(every);
                    Err(WriteError::Store(error.into()))
                }
            };
            match renewed {
                Ok(()) => {}
                Err(WriteError::Lost | WriteError::Gone) => {
                    held.set_lost();
                    return pending().await;
                }
                // The next renewal may succeed.
                Err(WriteError::Store(error)) => self.store_failed("renew", &held.key, &*error),
            }
        }
    }

    async fn renew_once(&self, held: &HeldLease) -> Result<(), WriteFailed> {
        let (lease, config) = (held.get(), &self.settings.claim);
        let renew = self.store.write(&held.key, &lease, Change::Renew, config);
        match renew.await {
            Err(WriteError::Gone) => self.claim_again(held).await,
            Err(WriteError::Store(error)) => Err(WriteError::Store(error.into())),
            Err(WriteError::Lost) => Err(WriteError::Lost),
            Ok(_) => Ok(()),
        }
    }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let kind = kind.and_then(|kind| kind.get(..EVENTS.len()));
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case(EVENTS))
}

/// The result of a handler.
struct HandlerResult<R, E> {
    /// The change to record.
    end: Change,
    given: ClientResult<R, E>,
}

/// The result for the client.
#[allow(
    clippy::large_enum_variant,
    reason = "it is nearly always an answer, and moved once"
)]
enum ClientResult<R, E> {
    StoredResponse(Result<Response<Body<R>>, E>),
    Panic(Box<dyn Any + Send>),
    /// The handler has not started, because it got no slot.
    Rejection(Rejection),
    /// The response body has failed, or the handler has not started in time.
    Nothing,
}

impl<R, E> ClientResult<R, E> {
    fn status(&self) -> Option<StatusCode> {
        match self {
            Self::StoredResponse(Ok(response)) => Some(response.status()),
            _ => None,
        }
    }
}

impl<R, E> HandlerResult<R, E> {
    const fn new(end: Change, given: ClientResult<R, E>) -> Self {
        Self { end, given }
    }
}
