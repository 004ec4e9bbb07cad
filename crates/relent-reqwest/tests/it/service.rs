//! reqwest's own client under the tower layer of relent-http.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use relent::{Backoff, Policy, Summary};
use relent_core::{Cause, Network};
use relent_http::RetryLayer;
use relent_reqwest::network::classify_error;
use reqwest::Body;
use tower::{Service, ServiceBuilder, ServiceExt};

use crate::scripted::{Server, Step, pattern, response};

#[tokio::test]
async fn a_reqwest_client_works_as_the_inner_service_of_the_layer() {
    let policy = Policy::builder(Backoff::constant(Duration::from_millis(1))).max_retries(3);
    let cloned = |body: &Body| Some(Bytes::copy_from_slice(body.as_bytes()?).into());
    let layer = RetryLayer::new(policy.build().unwrap())
        .known_body(cloned)
        .classify_errors(classify_error);
    let http = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([])
        .retry(reqwest::retry::never())
        .build()
        .unwrap();
    let service = ServiceBuilder::new()
        .layer(layer.map_body(Body::wrap))
        .service_fn(move |request: Request<Body>| {
            let mut http = http.clone();
            async move {
                let request = reqwest::Request::try_from(request)?;
                http.ready()
                    .await?
                    .call(request)
                    .await
                    .map(Response::<Body>::from)
            }
        });
    let long = pattern(5, 200_000);
    for fault in [
        Step::Answer(response(503, &[], "no")),
        Step::Close(Vec::new()),
    ] {
        let server = Server::script([fault, Step::Answer(response(200, &[], "yes"))]);
        // Longer than the cap, but its length is known.
        let put = Request::put(server.url("/")).body(Body::from(long.clone()));
        let response = service.clone().oneshot(put.unwrap()).await.unwrap();
        let summary = response.extensions().get::<Summary>().unwrap();
        assert_eq!(
            (response.status().as_u16(), summary.attempts, summary.reason),
            (200, 2, None)
        );
        for seen in server.seen() {
            assert_eq!(seen.body, long);
        }
    }
}

/// The layer does not depend on reqwest, and calls the classifier that it was given.
#[tokio::test]
async fn the_layer_classifies_reqwest_errors() {
    let http = reqwest::Client::new();
    let layer = RetryLayer::new(Policy::STANDARD.clone()).traced();
    let service = ServiceBuilder::new()
        .layer(layer.classify_errors(classify_error))
        .service_fn(move |_: Request<_>| {
            let request = http.get("no URL").send();
            async move { request.await.map(Response::<Body>::from) }
        });
    let get = Request::get("http://localhost/").body(Body::default());
    let gave_up = service.oneshot(get.unwrap()).await.unwrap_err();
    let trace = gave_up.summary().trace.as_ref().unwrap();
    let failure = trace.entries().next().unwrap().failure.unwrap();
    assert_eq!(failure.cause, Cause::Network(Network::BadRequest));
    assert_eq!(gave_up.summary().attempts, 1);
}
