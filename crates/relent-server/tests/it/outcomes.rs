//! Tests what a response means for a retry: our own client, over sockets, against services whose handlers are cut
//! off, reject or panic. One key has one effect, and a request that was not started runs when its client retries.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Router, body};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use relent::{Backoff, Policy};
use relent_core::FailureKind;
use relent_http::{HintOptions, RequestInfo, classify};
use relent_reqwest::{Client, IdempotencyKey};
use relent_server::ServerLayer;
use relent_server::idempotency::{IdempotencyLayer, Outcome};
use relent_server::store::Memory;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::TimeoutLayer;

/// Counts charges, and starts of the handler.
#[derive(Clone, Default)]
struct Card {
    charges: Arc<AtomicU32>,
    begun: Arc<AtomicU32>,
}

impl Card {
    fn begin(&self) -> u32 {
        self.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn charge(&self) {
        self.charges.fetch_add(1, Ordering::SeqCst);
    }

    fn charges(&self) -> u32 {
        self.charges.load(Ordering::SeqCst)
    }

    fn begun(&self) -> u32 {
        self.begun.load(Ordering::SeqCst)
    }
}

/// Charges, and responds slowly.
async fn slow(State(card): State<Card>) -> &'static str {
    card.begin();
    card.charge();
    sleep(Duration::from_secs(60)).await;
    "paid"
}

async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(axum::serve(listener, app).into_future());
    format!("http://{address}/payments")
}

/// A client with eight retries and short delays.
fn client() -> Client {
    let policy = Policy::builder(Backoff::constant(Duration::from_millis(2)))
        .max_retries(8)
        .build()
        .unwrap();
    Client::new(policy).unwrap()
}

async fn pay(client: &Client, url: &str, key: &str) -> (StatusCode, String) {
    let key: IdempotencyKey = key.parse().unwrap();
    let sent = client.post(url).idempotency_key(key).body("5 EUR").send();
    let response = sent.await.unwrap();
    (response.status(), response.text().await.unwrap())
}

fn keyed() -> IdempotencyLayer<Memory> {
    IdempotencyLayer::anonymous(Memory::new())
}

#[tokio::test]
async fn a_handler_cut_off_by_a_timeout_has_one_effect() {
    for status in [408, 499, 500, 503, 504, 524, 600] {
        let timeout = TimeoutLayer::with_status_code(
            StatusCode::from_u16(status).unwrap(),
            Duration::from_millis(50),
        );
        let card = Card::default();
        let app = Router::new()
            .route("/payments", post(slow))
            .layer(timeout)
            .layer(ServerLayer::new(keyed()))
            .with_state(card.clone());
        let url = serve(app).await;
        for _ in 0..3 {
            let (status, body) = pay(&client(), &url, "one-key").await;
            let is_heard = match status.as_u16() {
                // No timeout should use this status: it is stored and replayed.
                499 => body.is_empty(),
                409 => body.contains("idempotency-outcome-unknown"),
                _ => false,
            };
            assert!(is_heard, "{status} {body}");
        }
        assert_eq!((card.charges(), card.begun()), (1, 1), "{status}");
    }
}

#[tokio::test]
async fn a_handler_that_panics_half_way_has_one_effect() {
    async fn panics(State(card): State<Card>) -> &'static str {
        card.begin();
        card.charge();
        panic!("after the charge")
    }
    let card = Card::default();
    let app = Router::new()
        .route("/payments", post(panics))
        .layer(CatchPanicLayer::new())
        .layer(keyed())
        .with_state(card.clone());
    let url = serve(app).await;
    let (status, body) = pay(&client(), &url, "one-key").await;
    assert!(
        body.contains("idempotency-outcome-unknown"),
        "{status} {body}"
    );
    assert_eq!(card.charges(), 1);
}

#[tokio::test]
async fn a_rejection_by_an_inner_layer_is_replayed_without_a_charge() {
    let card = Card::default();
    for (longest, path, expected) in [(1, "", 413), (100, "/nowhere", 404)] {
        let app = Router::new()
            .route("/payments", post(slow))
            .layer(RequestBodyLimitLayer::new(longest))
            .layer(keyed())
            .with_state(card.clone());
        let url = serve(app).await + path;
        for _ in 0..2 {
            assert_eq!(pay(&client(), &url, "one-key").await.0, expected);
        }
    }
    assert_eq!(card.begun(), 0);
}

/// A status that means "nothing was done, retry", and its header fields.
type Refusal = (u16, &'static [(&'static str, &'static str)]);

const COME_BACK: [Refusal; 8] = [
    (408, &[("retry-after-ms", "1")]),
    (409, &[("retry-after-ms", "1")]),
    (413, &[("retry-after-ms", "1")]),
    (421, &[]),
    (425, &[]),
    (429, &[]),
    (503, &[("retry-after-ms", "1")]),
    (503, &[("x-should-retry", "true")]),
];

fn refuse((status, fields): Refusal) -> Response {
    let mut response = http::Response::builder().status(status);
    for (name, value) in fields {
        response = response.header(*name, *value);
    }
    response.body(body::Body::from("come back")).unwrap()
}

#[tokio::test]
async fn a_request_rejected_before_its_start_runs_when_retried() {
    for refusal in COME_BACK {
        let card = Card::default();
        let pays = move |State(card): State<Card>| async move {
            if card.begin() == 1 {
                return refuse(refusal);
            }
            card.charge();
            "paid".into_response()
        };
        let app = Router::new()
            .route("/payments", post(pays))
            .layer(keyed())
            .with_state(card.clone());
        let url = serve(app).await;
        for _ in 0..2 {
            let (status, body) = pay(&client(), &url, "one-key").await;
            assert_eq!((status.as_u16(), &*body), (200, "paid"), "{refusal:?}");
        }
        assert_eq!((card.charges(), card.begun()), (1, 2), "{refusal:?}");
    }
}

#[tokio::test]
async fn a_503_with_retry_after_runs_again_unless_its_outcome_is_set() {
    for (says_so, charges) in [(true, 1), (false, 2)] {
        let card = Card::default();
        let pays = move |State(card): State<Card>| async move {
            card.charge();
            if card.begin() > 1 {
                return "paid".into_response();
            }
            let mut response = refuse((503, &[("retry-after-ms", "1")]));
            if says_so {
                response.extensions_mut().insert(Outcome::Unknown);
            }
            response
        };
        let app = Router::new()
            .route("/payments", post(pays))
            .layer(keyed())
            .with_state(card.clone());
        let url = serve(app).await;
        let (status, body) = pay(&client(), &url, "one-key").await;
        let is_unknown = body.contains("idempotency-outcome-unknown");
        assert_eq!(is_unknown, says_so, "{status} {body}");
        assert_eq!(card.charges(), charges);
    }
}

#[tokio::test]
async fn client_and_layer_agree_on_ambiguous_and_unprocessed_responses() {
    let hints: [&[(&str, &str)]; 5] = [
        &[],
        &[("retry-after", "1")],
        &[("x-should-retry", "true")],
        &[("x-envoy-ratelimited", "true")],
        &[("relent-mark", "exhausted"), ("retry-after", "1")],
    ];
    let request = RequestInfo {
        repeatable: true,
        keyed: true,
        conditional: false,
    };
    for fields in hints {
        for status in 200..1000 {
            let runs = Arc::new(AtomicU32::new(0));
            let counted = Arc::clone(&runs);
            let handler = service_fn(move |_: Request<_>| {
                counted.fetch_add(1, Ordering::SeqCst);
                let mut response = http::Response::builder().status(status);
                for (name, value) in fields {
                    response = response.header(*name, *value);
                }
                async move { Ok::<_, Infallible>(response.body(Full::<Bytes>::default()).unwrap()) }
            });
            let service = keyed().layer(handler);
            let ask = async || {
                let request = Request::post("/payments").header("idempotency-key", "one-key");
                let request = request.body(Full::<Bytes>::default()).unwrap();
                service.clone().oneshot(request).await.unwrap()
            };
            let first = ask().await;
            let (now, options) = (SystemTime::now(), HintOptions::default());
            let failure = classify(first.status(), first.headers(), request, now, &options);
            let second = ask().await;
            let runs = runs.load(Ordering::SeqCst);
            match failure.map(|failure| failure.kind) {
                Some(FailureKind::NotProcessed | FailureKind::Throttled) => {
                    assert_eq!(runs, 2, "{status} {fields:?}");
                }
                Some(FailureKind::Ambiguous) => {
                    let body = second.into_body().collect().await.unwrap().to_bytes();
                    let unknown = b"idempotency-outcome-unknown";
                    let is_unknown = body.windows(unknown.len()).any(|part| part == unknown);
                    assert!(runs == 1 && is_unknown, "{status} {fields:?} {body:?}");
                }
                Some(FailureKind::Permanent | FailureKind::Overloaded) => {}
                None => {
                    assert_eq!((runs, second.status()), (1, first.status()));
                }
            }
        }
    }
}

#[cfg(feature = "webhook")]
mod webhooks {
    use relent_http::webhook::{Signer, Verifier, VerifyingKey};
    use relent_server::webhook::WebhookLayer;

    use super::*;

    const KEY: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn layer() -> WebhookLayer<Memory> {
        let key: VerifyingKey = KEY.parse().unwrap();
        WebhookLayer::new(Memory::new(), "acquirer", Verifier::new([key]))
    }

    async fn deliver(url: &str) -> (StatusCode, String) {
        let mut headers = http::HeaderMap::new();
        let signer = Signer::new(KEY.parse().unwrap());
        signer
            .sign("msg_1", SystemTime::now(), b"5 EUR", &mut headers)
            .unwrap();
        let client = Client::new(
            Policy::builder(Backoff::None)
                .max_retries(0)
                .build()
                .unwrap(),
        );
        let sent = client.unwrap().post(url).headers(headers).body("5 EUR");
        let response = sent.send().await.unwrap();
        (response.status(), response.text().await.unwrap())
    }

    #[tokio::test]
    async fn a_delivery_cut_off_by_a_timeout_is_handled_once() {
        for status in [408, 500, 503, 504, 524] {
            let status = StatusCode::from_u16(status).unwrap();
            let card = Card::default();
            let app = Router::new()
                .route("/payments", post(slow))
                .layer(TimeoutLayer::with_status_code(
                    status,
                    Duration::from_millis(50),
                ))
                .layer(layer())
                .with_state(card.clone());
            let url = serve(app).await;
            assert_eq!(deliver(&url).await.0, status);
            for _ in 0..2 {
                let (again, body) = deliver(&url).await;
                assert_eq!(again, 500, "{body}");
                assert!(body.contains("webhook-outcome-unknown"), "{body}");
            }
            assert_eq!((card.charges(), card.begun()), (1, 1), "{status}");
        }
    }

    #[tokio::test]
    async fn a_delivery_that_was_not_started_is_handled_when_repeated() {
        let others: [Refusal; 4] = [(400, &[]), (401, &[]), (409, &[]), (422, &[])];
        for refusal in COME_BACK.into_iter().chain(others) {
            let card = Card::default();
            let handle = move |State(card): State<Card>| async move {
                if card.begin() == 1 {
                    return refuse(refusal);
                }
                card.charge();
                StatusCode::NO_CONTENT.into_response()
            };
            let app = Router::new()
                .route("/payments", post(handle))
                .layer(layer())
                .with_state(card.clone());
            let url = serve(app).await;
            let statuses = [
                deliver(&url).await.0,
                deliver(&url).await.0,
                deliver(&url).await.0,
            ];
            assert_eq!(
                statuses.map(|status| status.as_u16()),
                [refusal.0, 204, 204]
            );
            assert_eq!((card.charges(), card.begun()), (1, 2), "{refusal:?}");
        }
    }

    #[test]
    fn a_retention_below_the_replay_window_is_a_configuration_error() {
        for minutes in [0, 4, 9] {
            assert!(
                layer()
                    .retention(Duration::from_secs(60 * minutes))
                    .is_err(),
                "{minutes}"
            );
        }
        assert!(layer().retention(Duration::from_secs(600)).is_ok());
        assert!(layer().lease(Duration::ZERO).is_err());
        let key: VerifyingKey = KEY.parse().unwrap();
        let verifier = Verifier::new([key]).tolerance(Duration::from_secs(3600));
        let patient = WebhookLayer::new(Memory::new(), "acquirer", verifier);
        assert!(
            patient
                .clone()
                .retention(Duration::from_secs(7199))
                .is_err()
        );
        assert!(patient.retention(Duration::from_secs(7200)).is_ok());
    }

    #[tokio::test]
    async fn a_sender_with_signatures_longer_than_the_retention_gets_500() {
        use relent_server::webhook::Sender;

        let key: VerifyingKey = KEY.parse().unwrap();
        let verifier = Verifier::new([key]).tolerance(Duration::from_secs(3600));
        let sender = Sender::new("acquirer", verifier);
        let layer = WebhookLayer::for_senders(Memory::new(), move |_| Some(sender.clone()));
        let layer = layer.retention(Duration::from_secs(3600)).unwrap();
        let card = Card::default();
        let app = Router::new()
            .route("/payments", post(slow))
            .layer(layer)
            .with_state(card.clone());
        let (status, body) = deliver(&serve(app).await).await;
        assert_eq!(status, 500);
        assert!(body.contains("webhook-kept-too-short"), "{body}");
        assert_eq!(card.begun(), 0);
    }
}

#[test]
fn a_configuration_that_allows_a_double_run_is_an_error() {
    use relent_core::idempotency::ClaimConfig;

    let config = ClaimConfig::DEFAULT;
    assert!(keyed().claim(config).is_ok());
    for (keep, lease) in [
        (Duration::ZERO, config.lease),
        (config.retention, Duration::ZERO),
    ] {
        let wrong = ClaimConfig {
            retention: keep,
            lease,
            ..config
        };
        let refused = keyed().claim(wrong).unwrap_err().to_string();
        assert!(
            refused.contains("is zero") || refused.contains("0ns"),
            "{refused}"
        );
    }
}
