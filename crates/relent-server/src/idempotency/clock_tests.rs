//! Tests with a store whose clock is set while a handler runs in this process.

#![allow(clippy::unwrap_used, reason = "tests may")]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use relent_core::idempotency::{NotResolved, Takeover};
use tokio::sync::Notify;
use tower::{Layer, ServiceExt, service_fn};

use super::{Body, IdempotencyLayer};
use crate::store::{Resolution, ResolveError, Sqlite};

const HOUR: Duration = Duration::from_secs(3600);

fn pay() -> Request<Full<Bytes>> {
    let request = Request::post("/payments").header("idempotency-key", "one-key");
    request.body(Full::default()).unwrap()
}

#[tokio::test]
async fn a_clock_change_never_reruns_a_request_of_the_same_process() {
    // Beyond the lease, and beyond the retention of records.
    for ahead in [HOUR, 48 * HOUR] {
        for takeover in [Takeover::Refuse, Takeover::Rerun, Takeover::Resume] {
            let directory = tempfile::tempdir().unwrap();
            let store = Sqlite::open(directory.path().join("keys.db")).unwrap();
            let layer = IdempotencyLayer::anonymous(store.clone())
                .takeover(takeover)
                .wait(Duration::ZERO);
            let begun = Arc::new(AtomicU32::new(0));
            let [has_begun, goes_on] = [Arc::new(Notify::new()), Arc::new(Notify::new())];
            let handler = {
                let (begun, has_begun) = (Arc::clone(&begun), Arc::clone(&has_begun));
                let goes_on = Arc::clone(&goes_on);
                service_fn(move |_: Request<Body<Full<Bytes>>>| {
                    let number = begun.fetch_add(1, Ordering::SeqCst) + 1;
                    let (has_begun, goes_on) = (Arc::clone(&has_begun), Arc::clone(&goes_on));
                    async move {
                        has_begun.notify_one();
                        goes_on.notified().await;
                        let paid = format!("charge {number}");
                        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(paid)))
                    }
                })
            };
            let service = layer.layer(handler);
            let ask = || {
                let service = service.clone();
                async move {
                    let response = service.oneshot(pay()).await.unwrap();
                    let status = response.status().as_u16();
                    let body = response.into_body().collect().await.unwrap().to_bytes();
                    (status, String::from_utf8(body.to_vec()).unwrap())
                }
            };
            let first = tokio::spawn(ask());
            has_begun.notified().await;
            store.seen.set_ahead(ahead);
            let (status, body) = ask().await;
            assert!(status == 409 && body.contains("in-flight"), "{body}");
            // An operator cannot resolve the running request as lost, either.
            let outcomes = layer.unknown_outcomes();
            for found in outcomes.find(None, 10).await.unwrap() {
                let resolved = outcomes.resolve(&found, Resolution::NotApplied).await;
                let runs = NotResolved::Running;
                assert!(matches!(resolved, Err(ResolveError::Refused(why)) if why == runs));
            }
            goes_on.notify_one();
            let answer = (200, "charge 1".to_owned());
            assert_eq!(first.await.unwrap(), answer, "{ahead:?} {takeover:?}");
            assert_eq!(ask().await, answer, "{ahead:?} {takeover:?}");
            assert_eq!(begun.load(Ordering::SeqCst), 1);
        }
    }
}
