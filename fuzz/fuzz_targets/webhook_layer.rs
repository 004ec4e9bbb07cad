//! Any webhook delivery to the receiver's layer: no panic, nothing unsigned is handled, and a signed delivery is
//! handled once.
#![no_main]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{Empty, StreamBody};
use libfuzzer_sys::fuzz_target;
use relent_http::webhook::{Signer, SigningKey, Verifier, VerifyingKey};
use relent_server::store::Memory;
use relent_server::webhook::{Delivery, WebhookLayer};
use tower::{Layer, ServiceExt, service_fn};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const MAX_BODY_BYTES: usize = 64;

type Field = (Vec<u8>, Vec<u8>);

fuzz_target!(|input: (bool, String, u32, Vec<Field>, Vec<Vec<u8>>)| {
    let (signed, id, seconds, fields, frames) = input;
    let now = UNIX_EPOCH + Duration::from_secs(seconds.into());
    let body = frames.concat();
    let mut request = Request::post("/hook").body(()).expect("a request");
    let headers = request.headers_mut();
    for (name, value) in &fields {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    let announced = headers.get("content-length").is_some();
    let key: SigningKey = SECRET.parse().expect("a key");
    let signed = signed && Signer::new(key).sign(&id, now, &body, headers).is_ok();

    let handled = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&handled);
    let service = service_fn(move |request: Request<_>| {
        counter.fetch_add(1, Ordering::Relaxed);
        let delivery: Option<&Delivery> = request.extensions().get();
        assert!(delivery.is_some(), "the handler knows what it handles");
        async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) }
    });
    let key: VerifyingKey = SECRET.parse().expect("a key");
    let layer = WebhookLayer::new(Memory::new(), "sender", Verifier::new([key]));
    let service = layer.clock(move || now).max_body(MAX_BODY_BYTES).layer(service);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(async {
        for repeated in [false, true] {
            let frames = frames.clone().into_iter();
            let frames = frames.map(|frame| Ok::<_, Infallible>(Frame::data(Bytes::from(frame))));
            let body_of = StreamBody::new(futures_util::stream::iter(frames));
            let (parts, ()) = request.clone().into_parts();
            let answer = service.clone().oneshot(Request::from_parts(parts, body_of)).await;
            let Ok(answer) = answer;
            let fits = body.len() <= MAX_BODY_BYTES;
            let known = signed && fits;
            // A wrong announced length may be rejected.
            assert!(!known || announced || answer.status().is_success());
            assert!(known || answer.status().is_client_error());
            let replayed = answer.headers().contains_key("idempotent-replayed");
            assert_eq!(replayed, repeated && answer.status().is_success());
        }
    });
    assert!(handled.load(Ordering::Relaxed) <= u32::from(signed));
});
