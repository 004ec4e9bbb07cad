//! Any response head: no panic, and a hint that a retry session accepts.
#![no_main]

use std::time::{Duration, SystemTime};

use http::header::{HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use libfuzzer_sys::fuzz_target;
use relent::Policy;
use relent::clock::Instant;
use relent::driver::{Decision, Session};
use relent::random::FixedRandom;
use relent_http::headers::ALL;
use relent_http::{HintOptions, RequestInfo, classify, hint};
use relent_http::rate_limit::XRateLimitReset;

fuzz_target!(|input: (u16, u64, Vec<(u8, Vec<u8>)>)| {
    let (status, now, fields) = input;
    let now = SystemTime::UNIX_EPOCH
        .checked_add(Duration::from_secs(now))
        .unwrap_or(SystemTime::UNIX_EPOCH);
    let mut headers = HeaderMap::new();
    for (name, value) in fields.into_iter().take(32) {
        let name = ALL[usize::from(name) % ALL.len()].clone();
        if let Ok(value) = HeaderValue::from_bytes(&value) {
            headers.append(name, value);
        }
    }
    for reset in [XRateLimitReset::Off, XRateLimitReset::DelaySeconds, XRateLimitReset::UnixSeconds] {
        let options = HintOptions { x_rate_limit_reset: reset, ..HintOptions::default() };
        let _ = hint(&headers, now, &options);
        let Ok(status) = StatusCode::from_u16(status) else { return };
        let facts = RequestInfo::of(&Method::GET, &HeaderMap::new());
        let Some(failure) = classify(status, &headers, facts, now, &options) else { continue };
        let mut session = Session::new(Instant::ORIGIN, true);
        session.on_attempt();
        let policy = Policy::PATIENT;
        let decision =
            session.on_failure(policy, Instant::ORIGIN, &failure, &mut FixedRandom::at(1.0), None);
        if let Decision::Retry { after } = decision {
            // Not before the hint, and no later than twice the longest hint.
            assert!(failure.hint.delay().is_none_or(|hint| after >= hint));
            assert!(after <= 2 * policy.max_hint());
        }
    }
});
