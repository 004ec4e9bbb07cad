//! Tests of the overload layer with slow handlers, in virtual time.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{join_all, poll_immediate};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use proptest::prelude::*;
use relent_core::Criticality;
use relent_core::admission::{
    Admitted, ConcurrencyConfig, ConcurrencyLimiterConfig, LimiterConfig, ShedderConfig,
};
use relent_server::admission::{AdmissionLayer, Quota};
use relent_server::idempotency::IdempotencyLayer;
use relent_server::overload::{OverloadLayer, SlotBody};
use relent_server::store::Memory;
use relent_server::{Body, ServerLayer};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};

fn at_most(limit: u32) -> ConcurrencyLimiterConfig {
    ConcurrencyLimiterConfig {
        concurrency: ConcurrencyConfig::fixed(limit),
        ..ConcurrencyLimiterConfig::DEFAULT
    }
}

fn layer(limit: u32) -> OverloadLayer {
    OverloadLayer::new(&at_most(limit)).unwrap()
}

fn request(fields: &[(&'static str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::default());
    for (name, value) in fields {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    request
}

type Reply = Response<Body<SlotBody<Full<Bytes>>>>;

/// Each request takes 10 ms.
async fn work(_: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
    sleep(Duration::from_millis(10)).await;
    Ok(Response::new(Full::from("done")))
}

async fn ask(layer: &OverloadLayer, fields: &[(&'static str, &str)]) -> Reply {
    layer
        .layer(service_fn(work))
        .oneshot(request(fields))
        .await
        .unwrap()
}

/// Returns the status, the retry advice, and the no-retry marker.
fn told(response: &Reply) -> (u16, Option<&str>, Option<&str>) {
    let field = |name| {
        let value: Option<&http::HeaderValue> = response.headers().get(name);
        value.map(|value| value.to_str().unwrap())
    };
    let retry = field("retry-after").or(field("x-should-retry"));
    (response.status().as_u16(), retry, field("relent-mark"))
}

fn is_idle(layer: &OverloadLayer) -> bool {
    (layer.in_flight(), layer.waiting()) == (0, 0)
}

#[tokio::test(start_paused = true)]
async fn concurrency_never_exceeds_the_slots_and_all_requests_complete() {
    let layer = layer(4);
    let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let seen = Arc::clone(&most);
    let handler = service_fn(move |_: Request<Full<Bytes>>| {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(Duration::from_millis(10)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done")))
        }
    });
    let began = Instant::now();
    let asked = (0..40).map(|_| async {
        let response = layer
            .layer(handler.clone())
            .oneshot(request(&[]))
            .await
            .unwrap();
        response.into_body().collect().await.unwrap().to_bytes()
    });
    let answers = join_all(asked).await;
    assert!(answers.iter().all(|answer| answer == "done"));
    assert_eq!(seen.load(Ordering::SeqCst), 4);
    assert_eq!(began.elapsed(), Duration::from_millis(100));
    assert!(is_idle(&layer));
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_held_until_the_body_ends_or_is_dropped() {
    let layer = layer(1);
    let service = service_fn(|_: Request<Full<Bytes>>| async {
        let frames = [1, 2].map(|_| Ok::<_, Infallible>(Frame::data(Bytes::from("part"))));
        let body = http_body_util::StreamBody::new(futures_util::stream::iter(frames));
        Ok::<_, Infallible>(Response::new(body))
    });
    let response = layer.layer(service).oneshot(request(&[])).await.unwrap();
    assert_eq!(layer.in_flight(), 1, "the head alone is not the answer");
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(layer.in_flight(), 1);
    body.frame().await.unwrap().unwrap();
    assert!(body.frame().await.is_none());
    assert_eq!(layer.in_flight(), 0, "before it is dropped");
    drop(body);
    let response = layer.layer(service).oneshot(request(&[])).await.unwrap();
    assert_eq!(layer.in_flight(), 1);
    drop(response);
    assert_eq!(layer.in_flight(), 0);
    // A body that is complete.
    let response = ask(&layer, &[]).await;
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(layer.in_flight(), 0, "nothing follows the last frame");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_keeps_request_extensions_does_not_keep_the_slot() {
    let (layer, kept) = (layer(1), Arc::new(Mutex::new(Vec::new())));
    let log = Arc::clone(&kept);
    let service = service_fn(move |request: Request<Full<Bytes>>| {
        log.lock().unwrap().push(request.into_parts().0);
        async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done"))) }
    });
    for _ in 0..2 {
        let answer = layer.layer(service.clone()).oneshot(request(&[]));
        let body = answer.await.unwrap().into_body();
        body.collect().await.unwrap();
        assert!(is_idle(&layer), "after the answer");
    }
    assert_eq!(kept.lock().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_body_ends_at_its_announced_length() {
    // A body of unknown length, such as a file, and the response to HEAD.
    for (method, announced) in [("GET", Some("4")), ("HEAD", None)] {
        let layer = layer(1);
        let service = service_fn(move |_: Request<Full<Bytes>>| async move {
            let mut response = Response::new(Odd(5));
            if let Some(length) = announced {
                let length = http::HeaderValue::from_static(length);
                response.headers_mut().insert("content-length", length);
            }
            Ok::<_, Infallible>(response)
        });
        let mut request = request(&[]);
        *request.method_mut() = method.parse().unwrap();
        let response = layer.layer(service).oneshot(request).await.unwrap();
        let mut body = response.into_body();
        if announced.is_some() {
            assert_eq!(layer.in_flight(), 1);
            body.frame().await.unwrap().unwrap();
        }
        assert_eq!(layer.in_flight(), 0, "{method}: before the body is dropped");
    }
}

#[tokio::test(start_paused = true)]
async fn a_grpc_body_ends_with_its_status() {
    let layer = layer(1);
    let service = service_fn(|_: Request<Full<Bytes>>| async {
        let status = async {
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", http::HeaderValue::from_static("14"));
            Some(Ok::<_, Infallible>(trailers))
        };
        // A body of known length, such as a stored response.
        let body = Full::<Bytes>::from("part").with_trailers(Box::pin(status));
        let response = Response::builder().header("content-type", "application/grpc");
        Ok::<_, Infallible>(response.body(body).unwrap())
    });
    let response = layer.layer(service).oneshot(request(&[])).await.unwrap();
    let mut body = response.into_body();
    assert!(body.frame().await.unwrap().unwrap().is_data());
    assert_eq!(layer.in_flight(), 1, "it is not known how it went");
    assert!(body.frame().await.unwrap().unwrap().is_trailers());
    drop(body);
    assert!(is_idle(&layer));
}

#[tokio::test(start_paused = true)]
async fn a_disconnected_waiter_passes_its_new_slot_to_the_next() {
    let layer = layer(1);
    let held = ask(&layer, &[]).await;
    let mut calls: Vec<_> = (0..3).map(|_| Box::pin(ask(&layer, &[]))).collect();
    for call in &mut calls {
        assert!(poll_immediate(call).await.is_none());
    }
    assert_eq!(layer.waiting(), 3);
    drop(held);
    assert_eq!(
        (layer.in_flight(), layer.waiting()),
        (1, 2),
        "the first has it"
    );
    drop(calls.remove(0));
    assert_eq!(
        (layer.in_flight(), layer.waiting()),
        (1, 1),
        "the second has it"
    );
    // A waiter leaves the queue.
    drop(calls.remove(1));
    assert_eq!((layer.in_flight(), layer.waiting()), (1, 0));
    assert_eq!(calls.remove(0).await.status(), 200);
    assert!(is_idle(&layer));
}

#[tokio::test(start_paused = true)]
async fn an_overload_rejection_has_retry_after_or_do_not_retry() {
    let config = ConcurrencyLimiterConfig {
        queue: 0,
        ..at_most(1)
    };
    let layer = OverloadLayer::new(&config).unwrap();
    let _held = ask(&layer, &[]).await;
    let refused = ask(&layer, &[]).await;
    assert_eq!(told(&refused), (503, Some("1"), None));
    assert!(!refused.headers().contains_key("content-type"));
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "", "nobody has asked for more");
    let refused = ask(&layer, &[("accept", "application/problem+json")]).await;
    assert_eq!(told(&refused), (503, Some("1"), None));
    assert_eq!(
        refused.headers()["content-type"],
        "application/problem+json"
    );
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    assert!(body.starts_with(b"{") && body.ends_with(b"}"), "{body:?}");
    // A client whose calls all take five attempts.
    let refused = ask(&layer, &[("relent-histogram", "0,0,0,0,100")]).await;
    assert_eq!(told(&refused), (503, Some("false"), Some("overloaded")));
    let refused = ask(&layer, &[("relent-deadline-ms", "0")]).await;
    assert_eq!(told(&refused).0, 504);
}

#[tokio::test(start_paused = true)]
async fn one_client_that_lies_about_retries_does_not_affect_others() {
    let config = ConcurrencyLimiterConfig {
        queue: 0,
        ..at_most(1)
    };
    let account = |parts: &http::request::Parts| parts.headers.get("x-account").cloned();
    for knows_callers in [true, false] {
        let layer = OverloadLayer::new(&config).unwrap();
        let layer = match knows_callers {
            true => layer.caller(account),
            false => layer,
        };
        let _held = ask(&layer, &[]).await;
        for honest in ["1", "2", "3", "4", "5", "6", "7"] {
            for _ in 0..20 {
                let lie = [
                    ("x-account", "liar"),
                    ("relent-attempt", "9"),
                    ("relent-deadline-ms", "60000"),
                ];
                ask(&layer, &lie).await;
            }
            let refused = ask(&layer, &[("x-account", honest)]).await;
            assert_eq!(told(&refused), (503, Some("1"), None), "{honest}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn if_most_callers_retry_the_rejection_is_do_not_retry() {
    let config = ConcurrencyLimiterConfig {
        queue: 0,
        ..at_most(1)
    };
    let account = |parts: &http::request::Parts| parts.headers.get("x-account").cloned();
    for layer in [
        OverloadLayer::new(&config).unwrap().caller(account),
        OverloadLayer::new(&config).unwrap(),
    ] {
        let _held = ask(&layer, &[]).await;
        let accounts: Vec<String> = (0..40).map(|number| number.to_string()).collect();
        for attempt in ["1", "2", "3"] {
            for account in &accounts {
                ask(
                    &layer,
                    &[("x-account", account), ("relent-attempt", attempt)],
                )
                .await;
            }
        }
        let retry = [("x-account", "7"), ("relent-attempt", "4")];
        let refused = ask(&layer, &retry).await;
        assert_eq!(told(&refused), (503, Some("false"), Some("overloaded")));
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_past_its_deadline_never_starts_and_others_get_the_rest() {
    let layer = layer(1);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sees = Arc::clone(&seen);
    let service = service_fn(move |request: Request<Full<Bytes>>| {
        let left = request.headers().get("relent-deadline-ms").cloned();
        sees.lock().unwrap().push(left);
        work(request)
    });
    let ask = |millis: &'static str| {
        layer
            .layer(service.clone())
            .oneshot(request(&[("relent-deadline-ms", millis)]))
            .map(|response| response.unwrap().status().as_u16())
    };
    let statuses = tokio::join!(ask("1000"), ask("9"), ask("500"), ask("15"));
    assert_eq!(statuses, (200, 504, 200, 504));
    let seen: Vec<_> = seen.lock().unwrap().iter().flatten().cloned().collect();
    assert_eq!(seen, ["1000", "490"]);
    assert!(is_idle(&layer));
}

#[tokio::test(start_paused = true)]
async fn the_criticality_header_raises_the_class_only_if_trusted() {
    let order = |layer: OverloadLayer| async move {
        let order = Arc::new(Mutex::new(Vec::new()));
        let sees = Arc::clone(&order);
        let service = service_fn(move |request: Request<Full<Bytes>>| {
            let told = request.headers().get("relent-criticality");
            let told = told.map_or("none", |value| value.to_str().unwrap());
            sees.lock().unwrap().push(told.to_owned());
            work(request)
        });
        let ask = |told: &'static str| {
            let fields = [("relent-criticality", told)];
            let fields = if told.is_empty() { &[][..] } else { &fields };
            layer
                .layer(service.clone())
                .oneshot(request(fields))
                .map(drop)
        };
        join_all(["", "SHEDDABLE", "", "CRITICAL_PLUS"].map(ask)).await;
        let order = order.lock().unwrap();
        order[1..].join(" ")
    };
    assert_eq!(order(layer(1)).await, "none CRITICAL_PLUS SHEDDABLE");
    assert_eq!(
        order(layer(1).trust_criticality()).await,
        "CRITICAL_PLUS none SHEDDABLE"
    );
    assert_eq!(
        order(layer(1).ignore_criticality()).await,
        "SHEDDABLE none CRITICAL_PLUS"
    );
    let by_route = layer(1).criticality(|parts| {
        let is_plus = parts.headers.contains_key("relent-criticality");
        is_plus.then_some(Criticality::SheddablePlus)
    });
    assert_eq!(order(by_route).await, "none CRITICAL_PLUS SHEDDABLE");
}

#[tokio::test(start_paused = true)]
async fn an_exempt_request_needs_no_slot() {
    let layer = layer(1).exempt(|parts| parts.headers.contains_key("x-health"));
    let _held = layer
        .layer(service_fn(work))
        .oneshot(request(&[]))
        .await
        .unwrap();
    assert_eq!(layer.in_flight(), 1);
    assert_eq!(told(&ask(&layer, &[("x-health", "1")]).await).0, 200);
    assert_eq!(layer.in_flight(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_or_fails_gives_its_slot_back() {
    let layer = layer(1);
    for panics in [true, false] {
        let service = service_fn(move |_: Request<Full<Bytes>>| async move {
            assert!(!panics, "a bug of the handler");
            Err::<Response<Full<Bytes>>, _>("an error")
        });
        let answered = std::panic::AssertUnwindSafe(layer.layer(service).oneshot(request(&[])));
        let answered = answered.catch_unwind().await;
        assert_eq!(answered.is_err(), panics);
        assert!(is_idle(&layer));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_with_a_slot_waits_for_the_service_to_be_ready() {
    /// Ready when it has a permit.
    #[derive(Clone)]
    struct Slow(tokio_util::sync::PollSemaphore);
    impl Service<Request<Full<Bytes>>> for Slow {
        type Response = Response<Full<Bytes>>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Self::Response, Infallible>>;
        fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            self.0.poll_acquire(context).map(|permit| {
                permit.unwrap().forget();
                Ok(())
            })
        }
        fn call(&mut self, _: Request<Full<Bytes>>) -> Self::Future {
            std::future::ready(Ok(Response::new(Full::default())))
        }
    }
    let semaphore = Arc::new(Semaphore::new(0));
    let slow = Slow(tokio_util::sync::PollSemaphore::new(Arc::clone(&semaphore)));
    let layer = layer(1);
    let mut call = Box::pin(layer.layer(slow).oneshot(request(&[])));
    assert!(poll_immediate(&mut call).await.is_none());
    assert_eq!(layer.in_flight(), 1);
    semaphore.add_permits(1);
    assert_eq!(call.await.unwrap().status(), 200);
    assert!(is_idle(&layer));
}

#[tokio::test(start_paused = true)]
async fn a_running_request_keeps_its_slot_and_a_waiting_duplicate_has_none() {
    let overload = layer(2);
    let idempotency = IdempotencyLayer::anonymous(Memory::new());
    let service = ServerLayer::new(idempotency).overload(overload.clone());
    let handler = |request: Request<relent_server::idempotency::Body<Full<Bytes>>>| async move {
        drop(request);
        sleep(Duration::from_secs(1)).await;
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("paid")))
    };
    let pay = || {
        let mut request = request(&[("idempotency-key", "a")]);
        *request.method_mut() = http::Method::POST;
        service.layer(service_fn(handler)).oneshot(request)
    };
    let mut first = Box::pin(pay());
    assert!(poll_immediate(&mut first).await.is_none());
    tokio::task::yield_now().await;
    drop(first);
    assert_eq!(overload.in_flight(), 1, "it still runs");
    let mut duplicates: Vec<_> = (0..5).map(|_| Box::pin(pay())).collect();
    for _ in 0..10 {
        for duplicate in &mut duplicates {
            assert!(poll_immediate(duplicate).await.is_none());
        }
        tokio::task::yield_now().await;
    }
    assert_eq!((overload.in_flight(), overload.waiting()), (1, 0));
    for answer in join_all(duplicates).await {
        assert_eq!(answer.unwrap().headers()["idempotent-replayed"], "true");
    }
    assert!(is_idle(&overload));
    service.drain().await;
}

#[tokio::test(start_paused = true)]
async fn the_rate_limiter_is_outside_both_layers() {
    let overload = layer(1).exempt(|parts| parts.extensions.get::<u8>() == Some(&7));
    let limits = tower::util::MapRequestLayer::new(|mut request: Request<Full<Bytes>>| {
        request.extensions_mut().insert(7_u8);
        request
    });
    let idempotency = IdempotencyLayer::anonymous(Memory::new());
    let service = ServerLayer::new(idempotency)
        .overload(overload.clone())
        .admission(limits);
    let handler = |_| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("paid"))) };
    let held = service
        .layer(service_fn(handler))
        .oneshot(request(&[]))
        .await
        .unwrap();
    assert_eq!(
        overload.in_flight(),
        0,
        "the overload layer saw what was outside of it"
    );
    drop(held);
}

/// The queue is full, and a first attempt displaces a retry, but not a request in its reserved slot.
#[tokio::test(start_paused = true)]
async fn a_request_in_its_reserved_slot_is_not_a_retry() {
    for (ticket, statuses) in [(false, (503, 200)), (true, (200, 503))] {
        let config = ConcurrencyLimiterConfig {
            queue: 1,
            ..at_most(1)
        };
        let layer = OverloadLayer::new(&config).unwrap();
        let service = || layer.layer(service_fn(work));
        let mut again = request(&[("relent-attempt", "2")]);
        again.extensions_mut().insert(Admitted {
            reserved_slot: ticket,
        });
        let status = |response: Result<Reply, Infallible>| response.unwrap().status().as_u16();
        let (_, again, first) = tokio::join!(
            service().oneshot(request(&[])).map(status),
            service().oneshot(again).map(status),
            service().oneshot(request(&[])).map(status),
        );
        assert_eq!((again, first), statuses, "ticket: {ticket}");
    }
}

/// The standard layers in their order, with a limit of 1/s for all requests.
#[tokio::test(start_paused = true)]
async fn a_rate_limit_works_around_the_standard_layers() {
    let config = LimiterConfig {
        burst: 1,
        ..LimiterConfig::new(1, Duration::from_secs(1))
    };
    let admission = AdmissionLayer::new().quota(Quota::new("service", config).unwrap());
    let handler = |_| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("paid"))) };
    let service = ServerLayer::new(IdempotencyLayer::anonymous(Memory::new()))
        .admission(admission)
        .layer(service_fn(handler));
    let mut statuses = Vec::new();
    for _ in 0..2 {
        let response = service.clone().oneshot(request(&[])).await.unwrap();
        statuses.push(response.status().as_u16());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(!body.is_empty());
    }
    assert_eq!(statuses, [200, 429]);
}

#[tokio::test(start_paused = true)]
async fn an_overload_rejection_inside_an_idempotency_layer_is_not_stored() {
    let config = ConcurrencyLimiterConfig {
        queue: 0,
        ..at_most(1)
    };
    let (overload, idempotency) = (
        OverloadLayer::new(&config).unwrap(),
        IdempotencyLayer::anonymous(Memory::new()),
    );
    let handler = |_| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("paid"))) };
    let pay = || {
        let mut request = request(&[("idempotency-key", "a")]);
        *request.method_mut() = http::Method::POST;
        idempotency
            .layer(overload.layer(service_fn(handler)))
            .oneshot(request)
    };
    let held = ask(&overload, &[]).await;
    assert_eq!(pay().await.unwrap().status(), 503);
    drop(held);
    let paid = pay().await.unwrap();
    assert_eq!(paid.status(), 200, "the first was not processed");
    assert!(!paid.headers().contains_key("idempotent-replayed"));
}

#[tokio::test(start_paused = true)]
async fn two_nested_idempotency_layers_are_rejected() {
    let (outer, inner) = (
        IdempotencyLayer::anonymous(Memory::new()),
        IdempotencyLayer::anonymous(Memory::new()),
    );
    let handler = |_| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) };
    let mut request = request(&[("idempotency-key", "a")]);
    *request.method_mut() = http::Method::POST;
    let response = outer
        .layer(inner.layer(service_fn(handler)))
        .oneshot(request)
        .await
        .unwrap();
    assert_eq!(response.status(), 500);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    assert!(body.contains("idempotency-layer-nested"), "{body}");
}

#[tokio::test(start_paused = true)]
async fn in_overload_critical_requests_are_served_and_others_shed() {
    // Eight workers with 10 ms each serve 800/s; users and a batch send 600/s each.
    let layer = OverloadLayer::new(&ConcurrencyLimiterConfig {
        shedder: ShedderConfig::DEFAULT,
        ..at_most(8)
    })
    .unwrap();
    let (users, batch) = (Mutex::new([0, 0]), Mutex::new([0, 0]));
    let began = Instant::now();
    let calls = (0..6000_u64).map(|number| {
        let is_user = number % 2 == 0;
        let count = if is_user { &users } else { &batch };
        let layer = &layer;
        async move {
            sleep(Duration::from_micros(number * 833)).await;
            let class = if is_user { "CRITICAL" } else { "SHEDDABLE" };
            let response = ask(layer, &[("relent-criticality", class)]).await;
            let is_served = response.status() == 200;
            drop(response);
            count.lock().unwrap()[usize::from(is_served)] += 1;
        }
    });
    join_all(calls).await;
    let (users, batch) = (users.into_inner().unwrap(), batch.into_inner().unwrap());
    let seconds = began.elapsed().as_secs_f64();
    let case = format!("users {users:?}, batch {batch:?} in {seconds} s");
    assert_eq!(users[0], 0, "{case}");
    assert!(batch[0] > 1500, "{case}");
    assert!(
        f64::from(users[1] + batch[1]) > 0.95 * 800.0 * seconds,
        "{case}"
    );
}

/// A body that ends, fails, or never ends.
struct Odd(u8);

impl http_body::Body for Odd {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match self.0 {
            0 => Poll::Ready(None),
            1 => Poll::Ready(Some(Err(std::io::Error::other("cut")))),
            2 => Poll::Pending,
            _ => {
                self.0 -= 3;
                Poll::Ready(Some(Ok(Frame::data(Bytes::from("part")))))
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Callers disconnect at any time, handlers panic, bodies end early or never: no slot is lost, and no waiter is
    /// forgotten.
    #[test]
    fn no_slot_is_lost_by_drops_panics_or_failed_bodies(
        limit in 1..4_u32,
        fates in prop::collection::vec((0..30_u64, 0..40_u64, 0..12_u8, any::<bool>()), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let mut runtime = runtime;
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let layer = layer(limit);
            let calls = fates.into_iter().map(|(begins, patience, kind, panics)| {
                let layer = layer.clone();
                tokio::spawn(async move {
                    sleep(Duration::from_millis(begins)).await;
                    let service = service_fn(move |_: Request<Full<Bytes>>| async move {
                        sleep(Duration::from_millis(3)).await;
                        assert!(!panics || kind % 4 != 0, "a bug of the handler");
                        Ok::<_, Infallible>(Response::new(Odd(kind)))
                    });
                    let call = async {
                        let response = layer.layer(service).oneshot(request(&[])).await.unwrap();
                        drop(response.into_body().collect().await);
                    };
                    drop(tokio::time::timeout(Duration::from_millis(patience), call).await);
                })
            });
            let calls: Vec<_> = calls.collect();
            for call in calls {
                drop(call.await);
            }
            assert!(is_idle(&layer), "{} in flight, {} wait", layer.in_flight(), layer.waiting());
            // All slots are available.
            let held = join_all((0..limit).map(|_| ask(&layer, &[]))).await;
            assert!(held.iter().all(|response| response.status() == 200));
        });
    }
}
