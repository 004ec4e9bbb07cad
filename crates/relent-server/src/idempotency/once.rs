//! Transactional requests: the handler claims the key itself, in the transaction of its effects.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use relent_http::grpc;
use tower_service::Service;

use super::execution::{Ended, Lead, Stage};
use super::limits::LONGEST_WAIT;
use super::problems::Refused;
use super::server::Server;
use super::work::{Guarded, KeyedRequest, Tried, Work};
use super::{Body, KeySource, Outcome};
use crate::exactly_once::{ExactlyOnce, Keyed};
use crate::store::Store;

impl<S: Store> Server<S> {
    /// Runs the handler, which claims the key itself, even if a response is stored.
    pub(super) async fn attempt_once<I, B, R>(
        &self,
        work: Work<I>,
        lead: Lead,
        gone: impl Future<Output = ()>,
    ) -> Tried<I, R, I::Error>
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
        } = work.request;
        // A request without followers reads a recorded response, and needs no permit.
        let permit = self.common.executions.take(&principal, 1);
        if permit.is_none() && !lead.is_alone() {
            lead.end(Ended::Refused(Refused::Busy));
            return Tried::Refused(Refused::Busy);
        }
        lead.reach(Stage::Runs);
        let mut keyed = Keyed::new(key, fingerprint);
        keyed.claim = self.settings.claim;
        keyed.max_answer = self.settings.max_answer;
        keyed.source = self.settings.source;
        keyed.claim_limit = Some(self.settings.limits.claim.min(LONGEST_WAIT));
        let until = self.until(&parts.headers);
        let (store, common) = (Arc::clone(&self.store), Arc::clone(&self.common));
        let is_grpc = grpc::is_grpc(&parts.headers);
        let failures = self.settings.failures.clone();
        let once = ExactlyOnce::new(store, keyed, until, common, failures, is_grpc);
        parts.extensions.insert(once.clone());
        parts.extensions.insert(Guarded);
        let request = Request::from_parts(parts, Body::whole(bytes));
        let mut inner = work.inner;
        let handler = AssertUnwindSafe(async move { inner.call(request).await }).catch_unwind();
        let called = tokio::select! {
            called = handler => called,
            // If the handler is dropped, its transaction is rolled back or committed with its record. The next
            // request finds out.
            () = self.too_long(gone) => {
                let refused = Refused::InFlight(self.common.running.mean());
                return Tried::Refused(refused);
            }
        };
        drop((permit, memory));
        let used = once.used();
        if used.is_recorded {
            lead.end(Ended::Recorded);
        }
        match called {
            Ok(handled) => {
                if let Some(refused) = used.refused {
                    // The handler may have ignored the rejection.
                    return Tried::Refused(refused);
                }
                let mut response = match handled {
                    Ok(response) => response,
                    Err(error) => return Tried::Answered(Err(error)),
                };
                let source = self.settings.source;
                source.judge(&mut response);
                if succeeds(&response, source) {
                    if !used.is_recorded {
                        return Tried::Refused(Refused::NotRecorded);
                    }
                    if used.is_run_twice() {
                        return Tried::Refused(Refused::RunTwice);
                    }
                }
                Tried::Answered(Ok(response.map(Body::streamed)))
            }
            Err(payload) => Tried::Panicked(payload),
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
