//! Any request head: no panic, and facts about the caller that a load shedder accepts. Parsed values can be formatted
//! and parsed again.
#![no_main]

use http::header::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use relent_http::{CallerContext, Mark, histogram};

const NAMES: [&str; 4] = [
    "relent-attempt",
    "relent-deadline-ms",
    "relent-histogram",
    "relent-mark",
];

fuzz_target!(|fields: Vec<(u8, Vec<u8>)>| {
    let mut headers = HeaderMap::new();
    for (name, value) in fields.into_iter().take(32) {
        let name = HeaderName::from_static(NAMES[usize::from(name) % NAMES.len()]);
        if let Ok(value) = HeaderValue::from_bytes(&value) {
            headers.append(name, value);
        }
    }
    let caller = CallerContext::from_headers(&headers);
    assert!(caller.attempt >= 1);
    if let Some(counts) = caller.histogram {
        let again = histogram::format(&counts).map(|value| histogram::parse(value.as_bytes()));
        assert_eq!(again.unwrap_or(Ok([0; 8])), Ok(counts));
    }
    if let Some(mark) = Mark::read(&headers) {
        mark.set(&mut headers);
        assert_eq!(Mark::read(&headers), Some(mark));
    }
    let mut below = HeaderMap::new();
    caller.pass_on(std::time::Duration::ZERO, &mut below);
    assert_eq!(CallerContext::from_headers(&below).remaining, caller.remaining);
});
