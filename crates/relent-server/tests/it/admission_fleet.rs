//! Tests of limits that several processes share in Redis, also while it is unreachable.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use redis::Client;
use relent::VirtualClock;
use relent_core::admission::LimiterConfig;
use relent_server::admission::{AdmissionLayer, Quota, RedisLimits};
use tokio::net::TcpListener;
use tower::{Layer, ServiceExt, service_fn};

use crate::servers;

const SECOND: Duration = Duration::from_secs(1);
/// Longer than Redis needs on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(5);

async fn serve(_: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::default()))
}

/// Ten per minute, all of which may come concurrently.
fn layer(fleet: RedisLimits) -> AdmissionLayer {
    let config = LimiterConfig {
        burst: 10,
        ..LimiterConfig::new(10, 60 * SECOND)
    };
    AdmissionLayer::redis_limits(fleet)
        .quota(Quota::new("all", config).unwrap())
        .caller(|parts| Some(parts.headers.get("x-caller")?.as_bytes().to_vec()))
}

async fn ask(layer: &AdmissionLayer, caller: Option<&str>) -> (u16, http::HeaderMap) {
    let mut request = Request::new(());
    if let Some(caller) = caller {
        request
            .headers_mut()
            .insert("x-caller", caller.parse().unwrap());
    }
    let service = layer.layer(service_fn(serve));
    let response = service.oneshot(request).await.unwrap();
    let (head, _) = response.into_parts();
    (head.status.as_u16(), head.headers)
}

/// Returns how many of the requests are admitted.
async fn admitted(layer: &AdmissionLayer, requests: u32) -> u32 {
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += u32::from(ask(layer, None).await.0 == 200);
    }
    admitted
}

#[tokio::test]
async fn processes_share_limits_and_slots() {
    let Some(server) = servers::redis(&["--appendonly", "no"]) else {
        return;
    };
    let process =
        || layer(RedisLimits::closed(Client::open(server.url()).unwrap()).max_wait(MAX_WAIT));
    let (one, other) = (process(), process());
    assert_eq!(admitted(&one, 4).await + admitted(&other, 20).await, 10);
    let (status, headers) = ask(&one, Some("ann")).await;
    assert_eq!(
        (status, &headers["relent-ticket"]),
        (429, &"true".parse().unwrap())
    );
    let millis = |headers: &http::HeaderMap| {
        headers["retry-after-ms"]
            .to_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let told = millis(&headers);
    // The second slot: the rejected requests without a caller have the first.
    assert!((6001..=12_000).contains(&told), "{told}");
    assert!(
        headers["ratelimit"]
            .to_str()
            .unwrap()
            .starts_with(r#""all";r=0;t="#)
    );
    let (_, again) = ask(&other, Some("ann")).await;
    assert!(
        millis(&again) <= told,
        "the same slot, in whichever process"
    );
    let (_, next) = ask(&other, Some("bob")).await;
    assert!(millis(&next) > told, "and the next is the next");
}

#[tokio::test]
async fn limits_fall_back_as_configured_while_redis_is_down_and_recover() {
    let Some(server) = servers::redis(&["--appendonly", "no"]) else {
        return;
    };
    let client = || Client::open(server.url()).unwrap();
    let clock = VirtualClock::new();
    let with = |fleet: RedisLimits| layer(fleet.max_wait(MAX_WAIT)).clock(clock.clone());
    let (open, closed) = (
        with(RedisLimits::open(client())),
        with(RedisLimits::closed(client())),
    );
    let local = with(RedisLimits::local(client(), 4));
    assert_eq!(admitted(&open, 20).await, 10, "while it is there it limits");
    assert_eq!(ask(&closed, None).await.0, 429);
    let url = server.url();
    let directory = server.server.end();
    assert_eq!(admitted(&open, 20).await, 20);
    let (status, headers) = ask(&closed, None).await;
    assert_eq!(
        (status, &headers["retry-after"]),
        (503, &"1".parse().unwrap())
    );
    assert!(!headers.contains_key("relent-mark") && !headers.contains_key("ratelimit"));
    assert_eq!(
        admitted(&local, 20).await,
        3,
        "a quarter of ten, rounded up"
    );
    clock.advance(60 * SECOND);
    assert_eq!(
        admitted(&local, 20).await,
        2,
        "a quarter of ten a minute, and whole ones"
    );

    let server = servers::redis_in(directory, &["--appendonly", "no"]).unwrap();
    assert_eq!(server.url(), url);
    // A failure pauses calls to Redis for 1 s.
    clock.advance(2 * SECOND);
    assert_eq!(admitted(&closed, 20).await, 10);
    assert_eq!(admitted(&open, 1).await, 0);
    assert_eq!(admitted(&local, 1).await, 0);
}

#[tokio::test]
async fn a_redis_that_never_responds_delays_only_one_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepts = tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            held.push(listener.accept().await.unwrap());
        }
    });
    let client = Client::open(format!("redis://{address}")).unwrap();
    let max_wait = Duration::from_millis(300);
    let layer = layer(RedisLimits::closed(client).max_wait(max_wait)).clock(VirtualClock::new());
    let began = Instant::now();
    for _ in 0..100 {
        assert_eq!(ask(&layer, None).await.0, 503);
    }
    let took = began.elapsed();
    // Only the first request waits. If each one waited, it would take 30 s.
    assert!(
        took >= max_wait && took < Duration::from_secs(10),
        "{took:?}"
    );
    accepts.abort();
}

#[tokio::test]
async fn rate_limits_recover_after_redis_stalls() {
    let Some(server) = servers::redis(&["--appendonly", "no"]) else {
        return;
    };
    let clock = VirtualClock::new();
    let client = Client::open(server.url()).unwrap();
    let layer = layer(RedisLimits::closed(client).max_wait(Duration::from_millis(500)))
        .clock(clock.clone());
    let until = async |status| {
        let max_wait = Instant::now() + Duration::from_secs(60);
        while ask(&layer, None).await.0 != status {
            assert!(Instant::now() < max_wait, "no {status}");
            clock.advance(2 * SECOND);
        }
    };
    until(200).await;
    server.server.signal("STOP");
    until(503).await;
    server.server.signal("CONT");
    until(200).await;
}
