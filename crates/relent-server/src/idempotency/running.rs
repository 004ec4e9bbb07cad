//! An execution: the handler runs, its lease is renewed meanwhile, and its end is written down.

use std::convert::Infallible;
use std::error::Error;
use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt;
use relent::{Backoff, Policy, retry};
use relent_core::claim::{Lease, Takeover};
use relent_http::grpc;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};
use tower_service::Service;

use super::execution::{CheckpointError, Execution};
use super::lease::HeldLease;
use super::problems::Refused;
use super::service::{Guarded, Server, Tried, Work};
use super::{Answer, Body, Outcome, request};
use crate::observe;
use crate::store::{Change, Key, Store, WriteError};

/// Why something is not written into a record.
pub(super) type WriteFailed = WriteError<Box<dyn Error + Send + Sync>>;

/// What a handler has done is written down however long that takes, within limits.
static RECORD: Policy = Policy::builder(Backoff::exponential(Duration::from_millis(20)))
    .max_delay(Duration::from_secs(1))
    .max_retries(60)
    .max_elapsed(Duration::from_secs(30))
    .build_const();

/// A lease is renewed so often before it would run out.
const RENEWALS: u32 = 3;
/// However short it is, its renewal does not take a whole core.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

impl<S: Store> Server<S> {
    /// Runs the handler, and writes down how it ended. The lease is renewed meanwhile.
    pub(super) async fn run<I, B, R>(
        &self,
        work: Work<I>,
        lease: Lease,
        step: u32,
        repeated: bool,
        permit: OwnedSemaphorePermit,
    ) -> Tried<I, R, I::Error>
    where
        I: Service<Request<Body<B>>, Response = Response<R>>,
        R: http_body::Body<Data = Bytes>,
    {
        let held = HeldLease::new(work.key, work.fingerprint, lease, step, repeated);
        let held = Arc::new(held);
        let begun = self.common.running.begin_alone(held.key, held.fingerprint);
        let Some(_over) = begun.await else {
            // It has begun since it was looked for, and the store takes it for lost already.
            drop(self.write_held(&held, Change::GiveUp).await);
            return Tried::InFlight(work, self.settings.claim.lease);
        };
        observe::keyed(if repeated { "taken_over" } else { "run" });
        let (server, own) = (self.clone(), Arc::clone(&held));
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
        let execution = Execution::new(lease.fence, step, repeated, Arc::clone(&held), checkpoint);
        let ended = async {
            let began = Instant::now();
            let handled = AssertUnwindSafe(self.handle(work, execution)).catch_unwind();
            let tried = tokio::select! {
                handled = handled => match handled {
                    Ok(handled) => self.end(&held, handled).await,
                    Err(payload) => {
                        observe::unknown(&held.key);
                        // If that is not written, the lease runs out, and it means the same.
                        drop(self.write_held(&held, Change::GiveUp).await);
                        Tried::Panicked(payload)
                    }
                },
                () = self.may_stop(&held) => {
                    observe::lease_lost(&held.key);
                    Tried::Refused(Refused::InFlight(self.common.running.mean()))
                }
            };
            self.common.running.took(began.elapsed());
            tried
        };
        let tried = tokio::select! {
            tried = ended => tried,
            never = self.renew(&held) => match never {},
        };
        drop(permit);
        tried
    }

    /// Until another has the key, where a handler may end anywhere: the other begins again, or where this one was.
    /// Elsewhere the handler is told and goes on, since it may be in the midst of its only run.
    async fn may_stop(&self, held: &HeldLease) {
        match self.settings.claim.takeover {
            Takeover::Rerun | Takeover::Resume => held.lost().await,
            _ => pending().await,
        }
    }

    /// The answer of the handler, as far as it has to be read before its end is written down.
    async fn handle<I, B, R>(&self, mut work: Work<I>, execution: Execution) -> Handled<R, I::Error>
    where
        I: Service<Request<Body<B>>, Response = Response<R>>,
        R: http_body::Body<Data = Bytes>,
    {
        work.parts.extensions.insert(execution);
        work.parts.extensions.insert(Guarded);
        let trace = request::trace(&work.parts);
        let request = Request::from_parts(work.parts, Body::whole(work.bytes));
        let mut response = match work.inner.call(request).await {
            Ok(response) => response,
            Err(error) => return Handled::new(Change::GiveUp, Some(Err(error))),
        };
        self.settings.source.judge(&mut response);
        let end = match Outcome::of(&response) {
            Outcome::Final => return self.read(response, trace).await,
            Outcome::NotApplied => Change::Release,
            Outcome::Unknown => Change::GiveUp,
        };
        Handled::new(end, Some(Ok(response.map(Body::streamed))))
    }

    /// Reads an answer, as far as it may be kept.
    async fn read<R, E>(&self, response: Response<R>, trace: Option<HeaderValue>) -> Handled<R, E>
    where
        R: http_body::Body<Data = Bytes>,
    {
        // The status of a gRPC call comes last, unless the handler has said how it ended.
        let comes_last = grpc::is_grpc(response.headers())
            && grpc::code(response.headers()).is_none()
            && response.extensions().get::<Outcome>().is_none();
        let (head, body) = response.into_parts();
        let mut body = Box::pin(body);
        let (mut whole, mut trailers) = (BytesMut::new(), None);
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                return Handled::new(Change::GiveUp, None);
            };
            match frame.into_data() {
                Ok(data) => {
                    whole.extend_from_slice(&data);
                    if whole.len() > self.settings.max_answer {
                        let answer = Answer::new(&head, None, None).with_trace(trace);
                        let body = Body::new(whole.freeze(), Some(body));
                        let response = Response::from_parts(head, body);
                        return Handled::new(
                            Change::Complete(Arc::new(answer)),
                            Some(Ok(response)),
                        );
                    }
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
        let whole = whole.freeze();
        let outcome = match comes_last {
            true => Outcome::of_trailers(trailers.as_ref()),
            false => Outcome::Final,
        };
        let end = match outcome {
            Outcome::Final => {
                observe::stored(whole.len());
                let answer = Answer::new(&head, Some(whole.clone()), trailers.clone());
                Change::Complete(Arc::new(answer.with_trace(trace)))
            }
            Outcome::NotApplied => Change::Release,
            Outcome::Unknown => Change::GiveUp,
        };
        let body = Body::with_trailers(whole, trailers);
        let response = Response::from_parts(head, body);
        Handled::new(end, Some(Ok(response)))
    }

    /// Writes down how the handler ended; what its client gets.
    async fn end<I, R, E>(&self, held: &HeldLease, handled: Handled<R, E>) -> Tried<I, R, E> {
        let completes = matches!(handled.end, Change::Complete(_));
        if matches!(handled.end, Change::GiveUp) {
            observe::unknown(&held.key);
        }
        let written = self.write_held(held, handled.end).await;
        match (written, handled.answer) {
            // Another has taken over, and its answer is the one that duplicates get.
            (Err(WriteError::Lost), _) if completes => {
                Tried::Refused(Refused::InFlight(self.common.running.mean()))
            }
            // If it could not be written its client has it at least, and duplicates hear that the
            // outcome is unknown.
            (_, Some(answer)) => Tried::Answered(answer),
            (_, None) => Tried::Refused(Refused::Unknown),
        }
    }

    /// Writes into the record of a key; asks a store that fails again for as long as it may recover.
    pub(super) async fn write(
        &self,
        key: &Key,
        lease: &Lease,
        change: Change,
    ) -> Result<(), WriteFailed> {
        let write = || async {
            let (change, config) = (change.clone(), &self.settings.claim);
            match self.store.write(key, lease, change, config).await {
                Ok(_) => Ok(Ok(())),
                Err(WriteError::Lost) => Ok(Err(WriteError::Lost)),
                Err(WriteError::Gone) => Ok(Err(WriteError::Gone)),
                Err(WriteError::Store(error)) => Err(error),
            }
        };
        match retry(&RECORD, write).await {
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

    /// Renews the lease for as long as it is polled, and claims the key again if the store has forgotten that it is
    /// claimed: else a duplicate would run beside this one.
    async fn renew(&self, held: &HeldLease) -> Infallible {
        let config = &self.settings.claim;
        loop {
            sleep((config.lease / RENEWALS).max(SHORTEST_WAIT)).await;
            let lease = held.get();
            let renewed = match self
                .store
                .write(&held.key, &lease, Change::Renew, config)
                .await
            {
                Err(WriteError::Gone) => self.claim_again(held).await,
                Err(WriteError::Store(error)) => Err(WriteError::Store(error.into())),
                Err(WriteError::Lost) => Err(WriteError::Lost),
                Ok(_) => Ok(()),
            };
            match renewed {
                Ok(()) => {}
                Err(WriteError::Lost | WriteError::Gone) => {
                    held.set_lost();
                    return pending().await;
                }
                // It is made up for by the next.
                Err(WriteError::Store(error)) => self.store_failed("renew", &held.key, &*error),
            }
        }
    }
}

/// How a handler ended.
struct Handled<R, E> {
    /// What is written down of it.
    end: Change,
    /// `None` if the body of its answer has failed.
    answer: Option<Result<Response<Body<R>>, E>>,
}

impl<R, E> Handled<R, E> {
    fn new(end: Change, answer: Option<Result<Response<Body<R>>, E>>) -> Self {
        Self { end, answer }
    }
}
