//! Tests of the admission layer in virtual time.

use std::convert::Infallible;
use std::future::{Future, Ready, pending, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full};
use relent::VirtualClock;
use relent_core::admission::{Admitted, LimiterConfig};
use relent_server::admission::{AdmissionLayer, AdmissionService, Quota};
use relent_server::idempotency::IdempotencyLayer;
use relent_server::store::Memory;
use tower::{Layer, Service, ServiceExt};

const SECOND: Duration = Duration::from_secs(1);
/// 100 per second, without bursts.
const CONFIG: LimiterConfig = one_at_a_time(100, SECOND);

const fn one_at_a_time(rate: u32, per: Duration) -> LimiterConfig {
    LimiterConfig {
        burst: 1,
        ..LimiterConfig::new(rate, per)
    }
}

/// A service that responds immediately, and reports whether the request came in its reserved slot.
#[derive(Clone, Default)]
struct Served(Arc<AtomicU32>);

impl<B> Service<Request<B>> for Served {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.0.fetch_add(1, Ordering::Relaxed);
        let ticket = request
            .extensions()
            .get::<Admitted>()
            .is_some_and(|admitted| admitted.reserved_slot);
        ready(Ok(Response::new(Full::from(if ticket {
            "ticket"
        } else {
            "served"
        }))))
    }
}

/// A service behind the layer, with their common clock.
struct Site<S> {
    service: S,
    clock: VirtualClock,
}

fn quota(name: &str, config: LimiterConfig) -> Quota {
    Quota::new(name, config).unwrap()
}

/// Reads a header of the request.
fn of(
    name: &'static str,
) -> impl Fn(&http::request::Parts) -> Option<Vec<u8>> + Send + Sync + 'static {
    move |parts| Some(parts.headers.get(name)?.as_bytes().to_vec())
}

fn cost(parts: &http::request::Parts) -> u32 {
    let cost = parts.headers.get("x-cost");
    cost.and_then(|cost| cost.to_str().ok()?.parse().ok())
        .unwrap_or(1)
}

fn site(layer: AdmissionLayer) -> Site<AdmissionService<Served>> {
    let clock = VirtualClock::new();
    let service = layer.clock(clock.clone()).layer(Served::default());
    Site { service, clock }
}

/// A response: status, headers, body.
type Said = (u16, http::HeaderMap, String);

fn request(fields: &[(&'static str, &str)]) -> Request<Empty<Bytes>> {
    let mut request = Request::new(Empty::new());
    for (name, value) in fields {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    request
}

impl<S, R> Site<S>
where
    S: Service<Request<Empty<Bytes>>, Response = Response<R>, Error = Infallible> + Clone,
    R: http_body::Body<Data = Bytes>,
    R::Error: std::fmt::Debug,
{
    fn ask(&self, fields: &[(&'static str, &str)]) -> Said {
        let answer = async {
            let response = self.service.clone().oneshot(request(fields)).await.unwrap();
            let (head, body) = response.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            (
                head.status.as_u16(),
                head.headers,
                String::from_utf8(body.to_vec()).unwrap(),
            )
        };
        answer.now_or_never().unwrap()
    }

    fn status(&self, fields: &[(&'static str, &str)]) -> u16 {
        self.ask(fields).0
    }
}

/// Guards against the fault of tower_governor, which truncates the fraction of a second.
#[test]
fn retry_after_is_rounded_up_to_a_second_and_is_never_zero() {
    let site = site(
        AdmissionLayer::new()
            .quota(quota("all", CONFIG))
            .caller(of("x-caller")),
    );
    assert_eq!(site.status(&[]), 200);
    let (status, headers, _) = site.ask(&[("x-caller", "ann")]);
    assert_eq!(
        (status, &headers["retry-after"], &headers["retry-after-ms"]),
        (429, &"1".parse().unwrap(), &"10".parse().unwrap())
    );
    site.clock.advance(Duration::from_nanos(1));
    let (_, headers, _) = site.ask(&[("x-caller", "ann")]);
    assert_eq!(headers["retry-after-ms"], "10", "9.999999 ms, rounded up");
    let (_, headers, _) = site.ask(&[]);
    assert_eq!(
        headers["retry-after"], "1",
        "nobody in particular is told a time, too"
    );
    assert!(!headers.contains_key("relent-ticket"));
}

/// Guards against the fault of tower_governor, whose `per_second(n)` means one in n seconds.
#[test]
fn a_limit_of_100_per_second_admits_100_in_each_second() {
    let site = site(AdmissionLayer::new().quota(quota("all", CONFIG)));
    let mut admitted = 0;
    for _ in 0..5000 {
        admitted += u32::from(site.status(&[]) == 200);
        site.clock.advance(Duration::from_millis(1));
    }
    assert_eq!(admitted, 500);
}

/// Guards against the fault of keyed maps that grow until they are swept (actix-governor#60).
#[test]
fn idle_quota_keys_are_evicted() {
    let layer = AdmissionLayer::new();
    let clock = VirtualClock::new();
    let layer = layer
        .quota(quota("each", CONFIG).key(of("x-key")))
        .clock(clock.clone());
    let site = Site {
        service: layer.layer(Served::default()),
        clock,
    };
    for key in 0..10_000 {
        assert_eq!(site.status(&[("x-key", &key.to_string())]), 200);
        site.clock.advance(Duration::from_millis(5));
    }
    assert!(layer.keys().0 < 20, "{:?}", layer.keys());
    assert_eq!(layer.keys().1, 0);
    // Also with more keys in use than may be remembered.
    let layer = AdmissionLayer::new()
        .quota(quota("each", CONFIG).key(of("x-key")).max_keys(100))
        .clock(VirtualClock::new());
    let site = Site {
        service: layer.layer(Served::default()),
        clock: VirtualClock::new(),
    };
    for key in 0..1000 {
        assert_eq!(site.status(&[("x-key", &key.to_string())]), 200);
    }
    assert_eq!(layer.keys(), (100, 900));
}

/// Guards against the fault of governor, which cannot check without taking (governor#117).
#[test]
fn a_request_rejected_by_one_quota_does_not_charge_the_others() {
    let all = LimiterConfig {
        burst: 3,
        ..LimiterConfig::new(1, 60 * SECOND)
    };
    let layer = AdmissionLayer::new()
        .quota(quota("all", all))
        .quota(quota("each", one_at_a_time(1, 60 * SECOND)).key(of("x-key")));
    let site = site(layer);
    assert_eq!(site.status(&[("x-key", "ann")]), 200);
    for _ in 0..50 {
        let (status, _, problem) = site.ask(&[("x-key", "ann")]);
        assert_eq!(status, 429);
        assert!(
            problem.contains(r#""violated-policies":["each"]"#),
            "{problem}"
        );
    }
    assert_eq!(site.status(&[("x-key", "bob")]), 200);
    assert_eq!(site.status(&[("x-key", "cid")]), 200);
    let (_, _, problem) = site.ask(&[("x-key", "dan")]);
    assert!(
        problem.contains(r#""violated-policies":["all"]"#),
        "{problem}"
    );
}

#[test]
fn a_rejected_caller_keeps_its_reserved_slot_for_the_grace_period() {
    let site = site(
        AdmissionLayer::new()
            .quota(quota("all", CONFIG))
            .caller(of("x-caller")),
    );
    assert_eq!(site.ask(&[("x-caller", "ann")]).2, "served");
    let told = |name| {
        let (status, headers, problem) = site.ask(&[("x-caller", name)]);
        assert_eq!(
            (status, &headers["relent-ticket"]),
            (429, &"true".parse().unwrap())
        );
        assert_eq!(headers["content-type"], "application/problem+json");
        assert!(problem.contains("quota-exceeded"), "{problem}");
        headers["retry-after-ms"]
            .to_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    assert_eq!((told("ann"), told("bob"), told("cid")), (10, 20, 30));
    site.clock.advance(Duration::from_millis(4));
    assert_eq!(
        (told("bob"), told("ann")),
        (16, 6),
        "one live slot each, wherever they ask"
    );
    site.clock.advance(Duration::from_millis(6));
    assert_eq!(site.ask(&[("x-caller", "ann")]).2, "ticket");
    // Late, but within the grace period.
    site.clock.advance(3 * SECOND);
    assert_eq!(site.ask(&[("x-caller", "cid")]).2, "ticket");
}

#[test]
fn a_request_above_the_burst_gets_422_without_retry_after() {
    let config = LimiterConfig { burst: 5, ..CONFIG };
    let layer = AdmissionLayer::new()
        .quota(quota("all", config))
        .caller(of("x-caller"))
        .cost(cost);
    let site = site(layer);
    let (status, headers, problem) = site.ask(&[("x-cost", "6"), ("x-caller", "ann")]);
    assert_eq!(status, 422);
    assert!(!headers.contains_key("retry-after") && !headers.contains_key("retry-after-ms"));
    assert_eq!(headers["x-should-retry"], "false");
    assert!(
        problem.contains(r#""violated-policies":["all"]"#),
        "{problem}"
    );
    assert_eq!(site.status(&[("x-cost", "5")]), 200, "it has taken nothing");
    let (_, headers, _) = site.ask(&[("x-cost", "3"), ("x-caller", "ann")]);
    assert_eq!(headers["retry-after-ms"], "30", "room for all of it");
}

#[test]
fn a_request_past_its_deadline_takes_no_quota() {
    let site = site(AdmissionLayer::new().quota(quota("all", one_at_a_time(1, 60 * SECOND))));
    let (status, headers, _) = site.ask(&[("relent-deadline-ms", "0")]);
    assert_eq!(status, 504);
    assert!(!headers.contains_key("retry-after"));
    assert_eq!(site.status(&[("relent-deadline-ms", "1")]), 200);
}

/// The layer belongs outside. Inside, a rejection must not occupy the key for as long as responses are kept.
#[tokio::test]
async fn a_rate_limit_rejection_inside_an_idempotency_layer_is_not_stored() {
    let dear = one_at_a_time(1, 3600 * SECOND);
    for (fields, refused) in [(("relent-deadline-ms", "0"), 504), (("x-cost", "2"), 422)] {
        let admission = AdmissionLayer::new().quota(quota("all", dear)).cost(cost);
        let layer = IdempotencyLayer::anonymous(Memory::new());
        let pay = |more: Option<(&'static str, &'static str)>| {
            let mut fields = vec![("idempotency-key", "a")];
            fields.extend(more);
            let mut request = request(&fields);
            *request.method_mut() = http::Method::POST;
            layer
                .layer(admission.layer(Served::default()))
                .oneshot(request)
        };
        assert_eq!(pay(Some(fields)).await.unwrap().status(), refused);
        let paid = pay(None).await.unwrap();
        assert_eq!(paid.status(), 200, "the first was not processed");
        assert!(!paid.headers().contains_key("idempotent-replayed"));
    }
}

#[test]
fn every_response_reports_the_rest_of_the_applied_quotas() {
    let all = LimiterConfig {
        burst: 2,
        ..LimiterConfig::new(2, 60 * SECOND)
    };
    let each = LimiterConfig {
        burst: 9,
        ..LimiterConfig::new(9, 3600 * SECOND)
    };
    let layer = AdmissionLayer::new()
        .quota(quota("all", all))
        .quota(quota("each", each).key(of("x-key")));
    let site = site(layer);
    let (status, headers, _) = site.ask(&[("x-key", "ann")]);
    assert_eq!(status, 200);
    assert_eq!(
        headers["ratelimit-policy"],
        r#""all";q=2;w=60, "each";q=9;w=3600"#
    );
    assert_eq!(headers["ratelimit"], r#""all";r=1;t=30, "each";r=8;t=400"#);
    let (_, headers, _) = site.ask(&[]);
    assert_eq!(
        headers["ratelimit"], r#""all";r=0;t=30"#,
        "the other does not count"
    );
    let (status, headers, _) = site.ask(&[]);
    assert_eq!(
        (status, &headers["ratelimit"]),
        (429, &r#""all";r=0;t=30"#.parse().unwrap())
    );
    assert_eq!(headers["retry-after"], "30");
    let layer = AdmissionLayer::new()
        .quota(quota("all", all))
        .quota(quota("all", each));
    assert_eq!(
        self::site(layer).ask(&[]).1["ratelimit-policy"],
        r#""all";q=9;w=3600"#,
        "a name is a quota's own"
    );
    let site = self::site(AdmissionLayer::new());
    assert!(
        !site.ask(&[]).1.contains_key("ratelimit"),
        "without a quota there is nothing to tell"
    );
}

#[test]
fn common_limits_admit_a_double_click() {
    for config in [
        LimiterConfig::new(1, SECOND),
        LimiterConfig::new(10, 60 * SECOND),
        LimiterConfig::new(1, 86_400 * SECOND),
        LimiterConfig::new(50_000, SECOND),
    ] {
        let site = site(AdmissionLayer::new().quota(quota("all", config)));
        assert_eq!(
            (site.status(&[]), site.status(&[])),
            (200, 200),
            "{config:?}"
        );
    }
}

/// Otherwise a client that follows `RateLimit` would come back immediately, and be rejected again.
#[test]
fn a_rejection_reports_zero_remaining_attempts() {
    for (rate, seconds) in [(100, 1_u32), (1000, 1), (1, 1), (10, 60)] {
        let config = LimiterConfig::new(rate, seconds * SECOND);
        let quotas = AdmissionLayer::new()
            .quota(quota("all", config))
            .quota(quota("roomy", LimiterConfig::new(1_000_000, SECOND)))
            .caller(of("x-caller"));
        let site = site(quotas);
        for _ in 0..config.burst {
            assert_eq!(site.status(&[]), 200);
        }
        for fields in [&[][..], &[("x-caller", "ann")], &[("x-caller", "ann")]] {
            let (status, headers, _) = site.ask(fields);
            let told = headers["ratelimit"].to_str().unwrap();
            assert_eq!(status, 429);
            let wait = headers["retry-after"].to_str().unwrap();
            assert!(
                told.starts_with(&format!(r#""all";r=0;t={wait}, "roomy";r="#)),
                "{rate}: {told}, after {wait}"
            );
            assert!(!told.contains(r#""roomy";r=0"#), "{told}");
        }
    }
}

#[cfg(feature = "grpc")]
#[test]
fn the_rate_limiter_rejects_a_grpc_call_with_a_grpc_status() {
    let site = site(
        AdmissionLayer::new()
            .quota(quota("all", CONFIG))
            .caller(of("x-caller")),
    );
    let call = [
        ("content-type", "application/grpc+proto"),
        ("x-caller", "ann"),
    ];
    assert_eq!(site.status(&call), 200);
    let (status, headers, body) = site.ask(&call);
    assert_eq!((status, body.as_str()), (200, ""));
    assert_eq!(headers["grpc-status"], "8");
    assert_eq!(headers["grpc-retry-pushback-ms"], "10");
    assert_eq!(headers["relent-ticket"], "true");
    assert_eq!(headers["content-type"], "application/grpc");
}

#[test]
fn routes_that_share_a_layer_share_its_limits() {
    let layer = AdmissionLayer::new()
        .quota(quota("all", CONFIG))
        .clock(VirtualClock::new());
    let of = |layer: &AdmissionLayer| Site {
        service: layer.layer(Served::default()),
        clock: VirtualClock::new(),
    };
    let (one, other, third) = (
        of(&layer),
        of(&layer.clone()),
        of(&layer.clone().quota(quota("more", CONFIG))),
    );
    assert_eq!(
        [one.status(&[]), other.status(&[]), third.status(&[])],
        [200, 429, 200]
    );
}

/// A body that never arrives, and must not be polled.
struct NeverRead;

impl http_body::Body for NeverRead {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("the body of a refused request was read");
    }
}

/// A service that never becomes ready.
#[derive(Clone)]
struct NeverReady;

impl Service<Request<NeverRead>> for NeverReady {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Pending
    }

    fn call(&mut self, _: Request<NeverRead>) -> Self::Future {
        Box::pin(pending())
    }
}

#[test]
fn a_rejection_waits_for_neither_the_body_nor_a_ready_service() {
    let layer = AdmissionLayer::new()
        .quota(quota("all", CONFIG))
        .clock(VirtualClock::new());
    let service = layer.layer(NeverReady);
    let mut first = Box::pin(service.clone().oneshot(Request::new(NeverRead)));
    assert!(
        first.as_mut().now_or_never().is_none(),
        "admitted, and waits"
    );
    let second = service.oneshot(Request::new(NeverRead)).now_or_never();
    assert_eq!(
        second.unwrap().unwrap().status(),
        StatusCode::TOO_MANY_REQUESTS
    );
}

#[test]
fn an_invalid_quota_is_an_error_that_names_valid_values() {
    let name = Quota::new("\u{fc}", CONFIG).unwrap_err().to_string();
    assert!(name.contains("ASCII"), "{name}");
    let rate = Quota::new("a", LimiterConfig::new(0, SECOND))
        .unwrap_err()
        .to_string();
    assert!(rate.contains("at least 1"), "{rate}");
}

#[tokio::test]
async fn over_a_socket_a_rejection_comes_before_the_body_is_complete() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    // One request a day.
    let config = one_at_a_time(1, 86_400 * SECOND);
    let layer = AdmissionLayer::new().quota(quota("all", config));
    let app = axum::Router::new()
        .route("/", axum::routing::get(|| async { "served" }))
        .layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let ask = async |head: &str| {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut line = [0; 12];
        stream.read_exact(&mut line).await.unwrap();
        String::from_utf8(line.to_vec()).unwrap()
    };
    assert_eq!(
        ask("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await,
        "HTTP/1.1 200"
    );
    // 1 KiB of 1 GiB, and then nothing.
    let body = "x".repeat(1024);
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000\r\n\r\n{body}");
    assert_eq!(ask(&head).await, "HTTP/1.1 429");
    server.abort();
}

/// A request that is shed behind a limit, or dropped before it starts, gets its quota back. A started request does
/// not, whatever its result.
#[tokio::test(start_paused = true)]
async fn a_request_rejected_by_overload_gets_its_quota_back() {
    use relent_server::ServerLayer;
    use relent_server::overload::{ConcurrencyConfig, ConcurrencyLimiterConfig, OverloadLayer};

    for queue in [0, 1] {
        let clock = VirtualClock::new();
        let five = LimiterConfig {
            burst: 5,
            ..LimiterConfig::new(5, 3600 * SECOND)
        };
        let admission = AdmissionLayer::new().clock(clock.clone());
        let admission = admission.quota(quota("all", five));
        let slots = ConcurrencyLimiterConfig {
            concurrency: ConcurrencyConfig::fixed(1),
            queue,
            ..ConcurrencyLimiterConfig::DEFAULT
        };
        let layer = ServerLayer::new(IdempotencyLayer::anonymous(Memory::new()))
            .overload(OverloadLayer::new(&slots).unwrap())
            .admission(admission);
        let handler = tower::service_fn(|request: Request<_>| async move {
            let hangs = request.headers().contains_key("x-hangs");
            drop(request);
            if hangs {
                pending::<()>().await;
            }
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        });
        let service = layer.layer(handler);
        let ask = |fields| Box::pin(service.clone().oneshot(request(fields)));
        // One of five requests holds the slot.
        let mut first = ask(&[("x-hangs", "1")]);
        assert!((&mut first).now_or_never().is_none());
        for _ in 0..20 {
            // With a queue of one the request waits, and its client disconnects; without a queue it is shed.
            match ask(&[]).now_or_never() {
                Some(response) => assert_eq!(response.unwrap().status(), 503),
                None => assert_eq!(queue, 1),
            }
        }
        // The client disconnects, but the started request keeps its quota.
        drop(first);
        for left in (0..4).rev() {
            let response = ask(&[]).await.unwrap();
            let told = response.headers()["ratelimit"].to_str().unwrap();
            assert_eq!(response.status(), 200, "{queue}: {told}");
            assert!(told.starts_with(&format!(r#""all";r={left};"#)), "{told}");
        }
        assert_eq!(ask(&[]).await.unwrap().status(), 429);
    }
}

/// Behind the idempotency layer a request continues after its client has disconnected. So its quota is not given
/// back, wherever it waits.
#[tokio::test(start_paused = true)]
async fn a_keyed_request_keeps_its_quota_after_its_client_disconnects() {
    use relent_server::overload::{ConcurrencyConfig, ConcurrencyLimiterConfig, OverloadLayer};

    let five = LimiterConfig {
        burst: 5,
        ..LimiterConfig::new(5, 3600 * SECOND)
    };
    let admission = AdmissionLayer::new().clock(VirtualClock::new());
    let admission = admission.quota(quota("all", five));
    let slots = ConcurrencyLimiterConfig {
        concurrency: ConcurrencyConfig::fixed(1),
        queue: 20,
        ..ConcurrencyLimiterConfig::DEFAULT
    };
    let (go, served) = (
        Arc::new(tokio::sync::Notify::new()),
        Arc::new(AtomicU32::new(0)),
    );
    let (may, counts) = (Arc::clone(&go), Arc::clone(&served));
    let handler = tower::service_fn(move |_: Request<_>| {
        let (may, counts) = (Arc::clone(&may), Arc::clone(&counts));
        async move {
            if counts.fetch_add(1, Ordering::SeqCst) == 0 {
                may.notified().await;
            }
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        }
    });
    let inner = OverloadLayer::new(&slots).unwrap().layer(handler);
    let keys = IdempotencyLayer::anonymous(Memory::new());
    let service = admission.layer(keys.layer(inner));
    for key in ["1", "2", "3", "4", "5", "6", "7", "8"] {
        let mut keyed = request(&[("idempotency-key", key)]);
        *keyed.method_mut() = http::Method::POST;
        let mut asked = Box::pin(service.clone().oneshot(keyed));
        for _ in 0..10 {
            if (&mut asked).now_or_never().is_none() {
                tokio::task::yield_now().await;
            } else {
                break;
            }
        }
        // The client disconnects.
        drop(asked);
    }
    go.notify_one();
    keys.drain().await;
    assert_eq!(served.load(Ordering::SeqCst), 5);
}
