//! A request whose handler claims the key itself, in the transaction of its effects.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use relent_http::grpc;
use tower_service::Service;

use super::problems::Refused;
use super::service::{Guarded, Server, Tried, Work};
use super::{Body, KeySource, Outcome};
use crate::exactly_once::{ExactlyOnce, Keyed};
use crate::store::Store;

impl<S: Store> Server<S> {
    /// Runs the handler, which claims the key itself.
    pub(super) async fn attempt_once<I, B, R>(&self, mut work: Work<I>) -> Tried<I, R, I::Error>
    where
        I: Service<Request<Body<B>>, Response = Response<R>>,
        R: http_body::Body<Data = Bytes>,
    {
        let mut keyed = Keyed::new(work.key, work.fingerprint);
        keyed.claim = self.settings.claim;
        keyed.max_answer = self.settings.max_answer;
        keyed.source = self.settings.source;
        let until = self.until(&work.parts.headers);
        let (store, common) = (Arc::clone(&self.store), Arc::clone(&self.common));
        let is_grpc = grpc::is_grpc(&work.parts.headers);
        let failures = self.settings.failures.clone();
        let once = ExactlyOnce::new(store, keyed, until, common, failures, is_grpc);
        work.parts.extensions.insert(once.clone());
        work.parts.extensions.insert(Guarded);
        let request = Request::from_parts(work.parts, Body::whole(work.bytes));
        let handle = async { work.inner.call(request).await };
        match AssertUnwindSafe(handle).catch_unwind().await {
            Ok(handled) => {
                let used = once.used();
                if let Some(refused) = used.refused {
                    // A handler may not have looked at it.
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

/// Whether a response tells of effects.
fn succeeds<B>(response: &Response<B>, source: KeySource) -> bool {
    let status = response.status();
    // The status of a gRPC call is not that of HTTP, which is all that a sender of webhooks reads.
    let failed = source == KeySource::IdempotencyKey
        && grpc::code(response.headers()).is_some_and(|code| code != 0);
    let succeeds = status.is_success() || status.is_redirection();
    Outcome::of(response) == Outcome::Final && succeeds && !failed
}
