//! Any status of a gRPC call: no panic, and a hint that is never longer than the stated delay.
#![no_main]

use std::time::SystemTime;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use relent_http::{HintOptions, grpc};

const NAMES: [&str; 5] = [
    "grpc-status",
    "grpc-message",
    "grpc-status-details-bin",
    "grpc-retry-pushback-ms",
    "content-type",
];

fuzz_target!(|input: (Vec<u8>, Vec<(u8, Vec<u8>)>, String)| {
    let (details, fields, config) = input;
    let delay = grpc::retry_delay(&details);
    let failure = grpc::classify_status(8, &HeaderMap::new(), &details);
    // A retry session counts in nanoseconds, up to 584 years.
    let longest = std::time::Duration::from_nanos(u64::MAX);
    assert_eq!(
        failure.hint.delay(),
        delay.ok().flatten().map(|delay| delay.min(longest))
    );

    let mut trailers = HeaderMap::new();
    for (name, value) in fields.into_iter().take(16) {
        let name = HeaderName::from_static(NAMES[usize::from(name) % NAMES.len()]);
        if let Ok(value) = HeaderValue::from_bytes(&value) {
            trailers.append(name, value);
        }
    }
    let status = grpc::Status::read(&trailers);
    let now = SystemTime::UNIX_EPOCH;
    let failure = grpc::classify_trailers(&trailers, now, &HintOptions::default());
    assert!(failure.is_some() || status.is_some_and(|status| status.code == 0));

    let _ = grpc::ServiceConfig::from_json(&config);
});
