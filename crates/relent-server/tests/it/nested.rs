//! Tests of layers inside axum's `nest`, over sockets: axum strips the prefix, such as an account, from the URI.

use axum::Router;
use axum::extract::{OriginalUri, Path};
use axum::routing::post;
use relent::{Backoff, Policy};
use relent_reqwest::{Client, IdempotencyKey};
use relent_server::idempotency::IdempotencyLayer;
use relent_server::store::Memory;
use tokio::net::TcpListener;

async fn pay(Path(account): Path<String>) -> String {
    format!("paid by {account}")
}

async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(axum::serve(listener, app).into_future());
    format!("http://{address}")
}

fn client() -> Client {
    Client::new(
        Policy::builder(Backoff::None)
            .max_retries(0)
            .build()
            .unwrap(),
    )
    .unwrap()
}

async fn ask(url: &str, path: &str) -> (u16, String, bool) {
    let key: IdempotencyKey = "one-key".parse().unwrap();
    let sent = client()
        .post(format!("{url}{path}"))
        .idempotency_key(key)
        .send();
    let response = sent.await.unwrap();
    let replayed = response.headers().contains_key("idempotent-replayed");
    (
        response.status().as_u16(),
        response.text().await.unwrap(),
        replayed,
    )
}

/// Puts the layer on the nested router, between two nested routers, and outside both.
fn apps(layer: &IdempotencyLayer<Memory>) -> [Router; 3] {
    let payments = || Router::new().route("/payments", post(pay));
    let inside = payments().layer(layer.clone());
    [
        Router::new().nest("/accounts/{account}", inside.clone()),
        Router::new().nest("/accounts", Router::new().nest("/{account}", inside)),
        Router::new()
            .nest("/accounts/{account}", payments())
            .layer(layer.clone()),
    ]
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn in_a_nested_router_accounts_do_not_share_responses() {
    for place in 0..3 {
        let layer = IdempotencyLayer::anonymous(Memory::new());
        let url = serve(apps(&layer)[place].clone()).await;
        for replayed in [false, true] {
            let alice = ask(&url, "/accounts/alice/payments").await;
            assert_eq!(
                alice,
                (200, "paid by alice".to_owned(), replayed),
                "{place}"
            );
        }
        let (status, body, _) = ask(&url, "/accounts/bob/payments").await;
        assert_eq!(status, 422, "{place}: {body}");
        assert!(body.contains("idempotency-key-reused"), "{place}: {body}");
    }
}

/// Runs with and without the feature `axum`.
#[tokio::test]
async fn in_a_nested_router_the_operation_separates_accounts() {
    for place in 0..3 {
        let layer = IdempotencyLayer::anonymous(Memory::new()).operation(|parts| {
            let original = parts.extensions.get::<OriginalUri>();
            Some(
                original
                    .map_or(&parts.uri, |original| &original.0)
                    .path()
                    .to_owned(),
            )
        });
        let url = serve(apps(&layer)[place].clone()).await;
        for replayed in [false, true] {
            for account in ["alice", "bob"] {
                let paid = ask(&url, &format!("/accounts/{account}/payments")).await;
                assert_eq!(
                    paid,
                    (200, format!("paid by {account}"), replayed),
                    "{place}"
                );
            }
        }
    }
}

#[cfg(all(feature = "axum", feature = "webhook"))]
#[tokio::test]
async fn in_a_nested_router_each_endpoint_handles_its_message() {
    use std::time::SystemTime;

    use relent_http::webhook::{Signer, Verifier, VerifyingKey};
    use relent_server::webhook::WebhookLayer;

    const KEY: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let key: VerifyingKey = KEY.parse().unwrap();
    let layer = WebhookLayer::new(Memory::new(), "acquirer", Verifier::new([key]));
    let hooks = Router::new().route("/hook", post(pay)).layer(layer);
    let url = serve(Router::new().nest("/accounts/{account}", hooks)).await;
    for (account, replayed) in [("alice", false), ("bob", false), ("%61lice", true)] {
        let mut headers = http::HeaderMap::new();
        let signer = Signer::new(KEY.parse().unwrap());
        let now = SystemTime::now();
        signer.sign("msg_1", now, b"5 EUR", &mut headers).unwrap();
        let sent = client().post(format!("{url}/accounts/{account}/hook"));
        let response = sent.headers(headers).body("5 EUR").send().await.unwrap();
        let is_replay = response.headers().contains_key("idempotent-replayed");
        assert_eq!(
            (response.status().as_u16(), is_replay),
            (200, replayed),
            "{account}"
        );
    }
}
