//! Server-side rate limits: Relent's, governor's, and a mutex around a map, which has no reserved slots. No request
//! is rejected, no clock is read, and the keys are numbers.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use governor::clock::{Clock, FakeRelativeClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{Quota as Governed, RateLimiter};
use http::{Request, Response};
use http_body_util::Empty;
use relent::clock::VirtualClock;
use relent_core::Instant;
use relent_core::admission::{AdmissionController, Arrival, KeyedLimiter, Limiter, LimiterConfig};
use relent_server::admission::{AdmissionLayer, Quota};
use tower::{Layer, Service};

use crate::work::poll_once;
use crate::{Row, Scenario};

/// Its rows.
pub const ROWS: &[Row] = &[
    Row::new(Scenario::Limit, "relent, limiter", limiter),
    Row::new(Scenario::Limit, "relent, intake", intake),
    Row::new(Scenario::Limit, "governor", governor),
    Row::new(Scenario::KeyedLimit, "relent, behind a mutex", keyed),
    Row::new(Scenario::KeyedLimit, "governor", governor_keyed),
    Row::new(Scenario::KeyedLimit, "mutex and map of instants", map),
    Row::new(Scenario::AdmissionLayer, "relent", layer),
    Row::new(Scenario::AdmissionLayer, "bare", bare),
];

const KEYS: u64 = 10_000;

/// Never rejects.
fn config() -> LimiterConfig {
    LimiterConfig {
        burst: 1 << 30,
        horizon: Duration::ZERO,
        ..LimiterConfig::new(1_000_000_000, Duration::from_secs(1))
    }
}

fn new_limiter() -> Option<Limiter> {
    Limiter::new(&config()).ok()
}

/// Mixes a number, as a hash would.
const fn key(call: u64) -> u64 {
    (call % KEYS).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn limiter(n: u64) {
    let Some(mut limiter) = new_limiter() else {
        return;
    };
    for call in 0..n {
        let _ = black_box(limiter.admit(Instant::from_nanos(call), None, 1));
    }
}

fn intake(n: u64) {
    let Some(limiter) = new_limiter() else {
        return;
    };
    let mut intake = AdmissionController::new().limiter(limiter);
    for call in 0..n {
        let _ = black_box(intake.admit(Instant::from_nanos(call), &Arrival::FIRST));
    }
}

fn governor(n: u64) {
    let clock = FakeRelativeClock::default();
    let limiter = black_box(RateLimiter::direct_with_clock(
        Governed::per_second(NonZeroU32::MAX),
        clock,
    ));
    for _ in 0..n {
        let _ = black_box(limiter.check());
    }
}

type Unobserved = NoOpMiddleware<<FakeRelativeClock as Clock>::Instant>;

/// All keys are used once before the measurement, so that they are known.
fn keyed(n: u64) {
    let Some(limiter) = new_limiter() else {
        return;
    };
    let keyed = Mutex::new(KeyedLimiter::new(limiter, 65_536));
    let now = Instant::ORIGIN;
    for call in 0..KEYS + n {
        let mut keyed = keyed.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = black_box(keyed.limiter(now, key(call)).admit(now, None, 1));
    }
}

fn governor_keyed(n: u64) {
    let (quota, clock) = (
        Governed::per_second(NonZeroU32::MAX),
        FakeRelativeClock::default(),
    );
    let state = DefaultKeyedStateStore::<u64>::default();
    let limiter: RateLimiter<u64, _, _, Unobserved> =
        black_box(RateLimiter::new(quota, state, clock));
    for call in 0..KEYS + n {
        let _ = black_box(limiter.check_key(&key(call)));
    }
}

fn map(n: u64) {
    let times: Mutex<HashMap<u64, u64>> = Mutex::default();
    for call in 0..KEYS + n {
        let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
        let time = times.entry(key(call)).or_default();
        let admitted = *time < 1 << 40;
        *time += u64::from(admitted);
        let _ = black_box(admitted);
    }
}

/// A service that responds immediately.
#[derive(Clone)]
struct Served;

impl Service<Request<u64>> for Served {
    type Response = Response<Empty<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<u64>) -> Self::Future {
        black_box(request);
        ready(Ok(Response::new(Empty::new())))
    }
}

fn layer(n: u64) {
    let (Ok(all), Ok(each)) = (Quota::new("all", config()), Quota::new("account", config())) else {
        return;
    };
    let layer = AdmissionLayer::new()
        .quota(all)
        .quota(each.key(|request| request.extensions.get::<u64>().copied()))
        .caller(|request| request.extensions.get::<u64>().copied())
        .clock(VirtualClock::new());
    calls(layer.layer(Served), n);
}

fn bare(n: u64) {
    calls(Served, n);
}

fn calls(mut service: impl Service<Request<u64>>, n: u64) {
    for call in 0..KEYS + n {
        let mut request = Request::new(call);
        request.extensions_mut().insert(key(call));
        let _ = black_box(poll_once(service.call(request)));
    }
}
