//! Tests that the operator, and not the sender, learns why deliveries are not verified.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use axum::Router;
use axum::routing::post;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use relent_server::observe::NOT_VERIFIED;
use relent_server::store::Memory;
use relent_server::webhook::{Sender, WebhookLayer};

use crate::support::{Message, OTHER_KEY, serve, verifier};

const NOW: u64 = 1_800_000_000;

async fn play() {
    let layer = WebhookLayer::for_senders(Memory::new(), |parts| {
        let known = parts.uri.query().is_none();
        known.then(|| Sender::new("acquirer", verifier()))
    });
    let layer = layer.clock(|| UNIX_EPOCH + Duration::from_secs(NOW));
    let app = Router::new().route("/hook", post(|| async {}));
    let address = serve(app.layer(layer)).await;
    let message = || Message::new("msg_1", NOW);
    message().send(&address).await;
    message().send_as_signed(&address).await; // It has no signature.
    Message::new("msg.1", NOW).send(&address).await;
    message().signed_by(&[OTHER_KEY]).send(&address).await;
    Message::new("msg_1", NOW - 301).send(&address).await;
    let mut unknown = message();
    unknown.path.push_str("?of=somebody");
    unknown.send(&address).await;
}

#[test]
fn each_unverified_delivery_is_counted_with_its_reason() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || runtime.block_on(play()));
    let mut counts = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let DebugValue::Counter(count) = value else {
            continue;
        };
        let key = key.key();
        let labels = key.labels().map(|label| label.value().to_owned());
        counts.insert((key.name().to_owned(), labels.collect::<String>()), count);
    }
    let of = |reason: &str| counts.get(&(NOT_VERIFIED.name.to_owned(), reason.to_owned()));
    for reason in [
        "missing",
        "malformed",
        "no_match",
        "out_of_time",
        "unknown_sender",
    ] {
        assert_eq!(of(reason), Some(&1), "{reason}");
    }
    let page = include_str!("../../../../docs/observability.md");
    assert!(page.contains(NOT_VERIFIED.name));
}
