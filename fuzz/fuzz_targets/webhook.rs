//! Any fields and keys of a webhook: no panic, and nothing unsigned is accepted.
#![no_main]

use std::time::{Duration, UNIX_EPOCH};

use http::header::{HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;
use relent_http::webhook::{
    Signer, SigningKey, Verifier, VerifyingKey, WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP,
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fuzz_target!(|input: (Vec<u8>, Vec<u8>, Vec<u8>, Vec<u8>, u32)| {
    let (id, time, signature, body, seconds) = input;
    let now = UNIX_EPOCH + Duration::from_secs(seconds.into());
    let secret: VerifyingKey = SECRET.parse().expect("a key");
    let verifier = Verifier::new([secret]);

    let mut headers = HeaderMap::new();
    for (name, value) in [(WEBHOOK_ID, &id), (WEBHOOK_TIMESTAMP, &time), (WEBHOOK_SIGNATURE, &signature)] {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(name, value);
        }
    }
    assert!(verifier.verify(&headers, &body, now).is_err());

    let key: SigningKey = SECRET.parse().expect("a key");
    let id = String::from_utf8_lossy(&id);
    let mut headers = HeaderMap::new();
    if Signer::new(key).sign(&id, now, &body, &mut headers).is_ok() {
        let verified = verifier.verify(&headers, &body, now).expect("it was signed");
        assert_eq!((verified.id, verified.at), (&*id, now));
    }
    let _ = id.parse::<SigningKey>();
    let _ = id.parse::<VerifyingKey>();
});
