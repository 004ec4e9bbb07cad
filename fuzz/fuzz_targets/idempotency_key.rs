//! Any `Idempotency-Key` fields: no panic, and a key that can be written and read again.
#![no_main]

use http::header::{HeaderMap, HeaderValue};
use http::Method;
use libfuzzer_sys::fuzz_target;
use relent_http::{IdempotencyKey, KeyForm, RequestInfo};

fuzz_target!(|values: Vec<Vec<u8>>| {
    let mut headers = HeaderMap::new();
    for value in values.iter().take(4) {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append("idempotency-key", value);
        }
    }
    let key = IdempotencyKey::of(&headers);
    // A key, and nothing else, makes a POST repeatable.
    let facts = RequestInfo::of(&Method::POST, &headers);
    assert_eq!(facts.keyed, key.is_some());
    assert!(key.is_none() || headers.len() == 1);
    if let Some(key) = key {
        assert!(!key.as_str().is_empty());
        let mut again = HeaderMap::new();
        key.attach(KeyForm::Quoted, &mut again);
        assert_eq!(IdempotencyKey::of(&again), Some(key));
    }
    for value in &values {
        if let Ok(key) = std::str::from_utf8(value).unwrap_or_default().parse::<IdempotencyKey>() {
            let mut headers = HeaderMap::new();
            key.attach(KeyForm::Quoted, &mut headers);
            assert_eq!(IdempotencyKey::of(&headers), Some(key));
        }
    }
});
