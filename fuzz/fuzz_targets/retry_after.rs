//! Any bytes as `Retry-After`, at any time of the local clock.
#![no_main]

use std::time::{Duration, SystemTime};

use libfuzzer_sys::fuzz_target;
use relent_http::retry_after;

fuzz_target!(|input: (u64, &[u8])| {
    let (now, value) = input;
    let now = SystemTime::UNIX_EPOCH
        .checked_add(Duration::from_secs(now))
        .unwrap_or(SystemTime::UNIX_EPOCH);
    let _ = retry_after::parse(value, now);
});
