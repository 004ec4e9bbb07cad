//! Transactional requests: the handler claims the key itself, in the transaction of its effects.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use relent_http::grpc;
use tokio::time::Instant;
use tower_service::Service;

use super::execution::{Leader, LeaderResult, LeaderStage};
use super::limits::MAX_WAIT;
use super::problems::Rejection;
use super::server::Server;
use super::service::{ready, take_slot};
use super::work::{KeyClaimed, KeyedRequest, RunResult, Work};
use super::{Body, KeySource, Outcome};
use crate::overload::HeldSlot;
use crate::store::Store;
use crate::transactional::{Keyed, Transactional};

impl<S: Store> Server<S> {
    /// Runs the handler, which claims the key itself, even if a response is stored.
    pub(super) async fn attempt_transactional<I, B, R>(
        &self,
        work: Work<I>,
        lead: Leader,
        slot: Option<HeldSlot>,
        gone: impl Future<Output = ()>,
    ) -> RunResult<I, R, I::Error>
    where
        I: Service<Request<Body<B>>, Response = Response<R>>,
        R: http_body::Body<Data = Bytes>,
    {
        let KeyedRequest {
            mut parts,
            bytes,
            key,
            fingerprint,
            principal,
            memory,
            arrived,
        } = work.request;
        // A request without followers reads a recorded response, and needs neither a permit nor a slot.
        let permit = self.common.executions.take(&principal, 1);
        if permit.is_none() && !lead.is_alone() {
            lead.end(LeaderResult::Rejection(Rejection::Busy));
            return RunResult::Rejection(Rejection::Busy);
        }
        let own_slot = slot.as_ref().filter(|_| !lead.is_alone());
        let quota_refund = parts.extensions.get().cloned();
        lead.reach(LeaderStage::Runs);
        let mut keyed = Keyed::new(key, fingerprint);
        keyed.claim = self.settings.claim;
        keyed.max_response = self.settings.max_response;
        keyed.source = self.settings.source;
        keyed.claim_limit = Some(self.settings.limits.claim.min(MAX_WAIT));
        let until = self.until(&parts.headers, arrived);
        let (store, common) = (Arc::clone(&self.store), Arc::clone(&self.common));
        let is_grpc = grpc::is_grpc(&parts.headers);
        let failures = self.settings.failures.clone();
        let once = Transactional::new(store, keyed, until, common, failures, is_grpc);
        parts.extensions.insert(once.clone());
        parts.extensions.insert(KeyClaimed);
        let request = Request::from_parts(parts, Body::whole(bytes));
        let mut inner = work.inner;
        let call = async {
            take_slot(own_slot, quota_refund.as_ref()).await?;
            Ok(match ready(&mut inner).await {
                Ok(()) => {
                    let began = Instant::now();
                    let called = inner.call(request).await;
                    if once.used().has_worked {
                        self.common.running.took(began.elapsed());
                    }
                    called
                }
                Err(error) => Err(error),
            })
        };
        let handler = AssertUnwindSafe(call).catch_unwind();
        let called = tokio::select! {
            called = handler => called,
            // If the handler is dropped, its transaction is rolled back or committed with its record. The next
            // request finds out.
            () = self.limit_reached(gone) => {
                let refused = Rejection::InFlight(self.retry_delay(self.settings.claim.lease));
                return RunResult::Rejection(refused);
            }
        };
        drop((permit, memory));
        let used = once.used();
        if used.is_recorded {
            lead.end(LeaderResult::Recorded);
        }
        match called {
            Ok(Err(refused)) => RunResult::Rejection(refused),
            Ok(Ok(handled)) => {
                if let Some(refused) = used.refused {
                    // The handler may have ignored the rejection.
                    return RunResult::Rejection(refused);
                }
                let mut response = match handled {
                    Ok(response) => response,
                    Err(error) => return RunResult::Answered(Err(error)),
                };
                let source = self.settings.source;
                source.set_outcome(&mut response);
                if succeeds(&response, source) {
                    if !used.is_recorded {
                        return RunResult::Rejection(Rejection::NotRecorded);
                    }
                    if used.is_run_twice() {
                        return RunResult::Rejection(Rejection::RunTwice);
                    }
                }
                RunResult::Answered(Ok(response.map(Body::streamed)))
            }
            Err(payload) => RunResult::Panicked(payload),
        }
    }
}

/// Returns whether a response reports success.
fn succeeds<B>(response: &Response<B>, source: KeySource) -> bool {
    let status = response.status();
    // A sender of webhooks reads only the HTTP status, not that of gRPC.
    let failed = source == KeySource::IdempotencyKey
        && grpc::code(response.headers()).is_some_and(|code| code != 0);
    let succeeds = status.is_success() || status.is_redirection();
    Outcome::of(response) == Outcome::Final && succeeds && !failed
}
