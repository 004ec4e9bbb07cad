//! Headers that a client sends to the server about its retries.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use relent::policy::{HedgeConfig, RateLimitConfig};
use relent::{Backoff, StopReason, Summary, VirtualClock};
use relent_http::body::ReplayBody;
use relent_http::{CallerContext, Override, RetryLayer};
use relent_reqwest::default_builder;
use relent_reqwest::{Body, Client};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::{DEADLINE, Seen, client, quick};
use crate::scripted::{Server, Step, response};

/// The value of this header in each request.
fn header_values(server: &Server, name: &str) -> Vec<Option<String>> {
    let seen = server.seen();
    seen.iter()
        .map(|seen| seen.header(name).map(str::to_owned))
        .collect()
}

fn failing() -> Server {
    Server::script([Step::Answer(response(503, &[], "no"))])
}

#[tokio::test]
async fn no_cross_layer_headers_are_sent_by_default() {
    let server = failing();
    let builder = || default_builder().no_proxy().tls_certs_only([]);
    let client =
        Client::from_builder(builder, quick().deadline(DEADLINE).build().unwrap()).unwrap();
    client.get(server.url("/")).send().await.unwrap();
    assert_eq!(server.count(), 4);
    assert!(
        server
            .seen()
            .iter()
            .all(|seen| !seen.head.contains("relent-"))
    );
}

#[tokio::test]
async fn without_a_deadline_no_deadline_header_is_sent() {
    let server = failing();
    client(quick()).get(server.url("/")).send().await.unwrap();
    assert_eq!(
        header_values(&server, "relent-deadline-ms"),
        [const { None }; 4]
    );
    let attempts = header_values(&server, "relent-attempt");
    assert_eq!(
        attempts,
        [None, Some("2"), Some("3"), Some("4")]
            .map(|header_values| header_values.map(str::to_owned))
    );
}

#[tokio::test]
async fn a_deadline_header_on_a_request_limits_all_its_attempts() {
    let slow = quick().backoff(Backoff::constant(Duration::from_secs(60)));
    let server = failing();
    let sent = client(slow)
        .get(server.url("/"))
        .header("relent-deadline-ms", "5000")
        .send();
    let response = sent.await.unwrap();
    assert_eq!(response.summary().reason, Some(StopReason::Deadline));
    assert_eq!(server.count(), 1);
}

#[tokio::test]
async fn with_no_time_left_one_attempt_sends_a_zero_deadline() {
    let server = failing();
    let get = || client(quick().deadline(DEADLINE)).get(server.url("/"));
    get()
        .header("relent-deadline-ms", "0")
        .send()
        .await
        .unwrap();
    assert_eq!(
        header_values(&server, "relent-deadline-ms"),
        [Some("0".to_owned())]
    );
}

#[tokio::test(start_paused = true)]
async fn with_no_time_left_an_attempt_and_a_wait_for_the_rate_limit_end() {
    let once = RateLimitConfig {
        burst: Some(1),
        ..RateLimitConfig::new(0.01)
    };
    for policy in [quick(), quick().rate_limit(once)] {
        let layer = RetryLayer::new(policy.build().unwrap()).cross_layer();
        let service = layer.layer(local(Seen::default()));
        for _ in 0..2 {
            let mut request = get("/hang");
            let zero = "0".parse().unwrap();
            request.headers_mut().insert("relent-deadline-ms", zero);
            let sent = service.clone().oneshot(request);
            let ended = tokio::time::timeout(Duration::from_secs(2), sent).await;
            assert!(ended.unwrap().is_err());
        }
    }
}

#[tokio::test]
async fn a_deadline_header_beyond_the_policys_is_lowered() {
    let server = failing();
    let get = client(quick().deadline(DEADLINE)).get(server.url("/"));
    get.header("relent-deadline-ms", "3600000")
        .send()
        .await
        .unwrap();
    for header_values in header_values(&server, "relent-deadline-ms") {
        assert!(header_values.unwrap().parse::<u128>().unwrap() <= DEADLINE.as_millis());
    }
}

#[tokio::test]
async fn a_download_sends_cross_layer_headers() {
    let server = failing();
    let get = Request::get(server.url("/")).body(Body::empty()).unwrap();
    let client = client(quick().deadline(DEADLINE));
    client.download(get, &mut Vec::new()).await.unwrap();
    assert_eq!(
        header_values(&server, "relent-attempt")[3].as_deref(),
        Some("4")
    );
    assert!(
        header_values(&server, "relent-deadline-ms")
            .iter()
            .all(Option::is_some)
    );
}

/// A service that fails the calls to `/fail`, and records the requests.
fn local(
    seen: Seen,
) -> impl Service<
    Request<ReplayBody<Empty<Bytes>>>,
    Response = Response<Empty<Bytes>>,
    Error = Infallible,
    Future: Send,
> + Clone {
    service_fn(move |request: Request<_>| {
        seen.record(request.headers());
        let status = match request.uri().path() {
            "/fail" => 503,
            "/hang" => 0,
            _ => 200,
        };
        async move {
            if status == 0 {
                std::future::pending::<()>().await;
            }
            let response = Response::builder().status(status).body(Empty::new());
            Ok(response.unwrap())
        }
    })
}

fn get(path: &str) -> Request<Empty<Bytes>> {
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = path.parse().unwrap();
    request
}

fn histograms(seen: &Seen) -> Vec<(usize, [u32; 8])> {
    let seen = seen.0.lock().unwrap();
    let header_values = seen.iter().enumerate();
    header_values
        .filter_map(|(index, caller)| Some((index, caller.histogram?)))
        .collect()
}

#[tokio::test]
async fn every_64th_call_carries_the_histogram_of_all_clones() {
    let (seen, clock) = (Seen::default(), VirtualClock::new());
    let layer = RetryLayer::new(quick().build().unwrap())
        .clock(clock)
        .cross_layer();
    let clones = [
        layer.layer(local(seen.clone())),
        layer.clone().layer(local(seen.clone())),
    ];
    for call in 1..=128_usize {
        let client = clones[call % 2].clone();
        // One call takes four attempts, and one is cancelled during its first.
        match call {
            10 => drop(client.oneshot(get("/fail")).await.unwrap()),
            20 => {
                let hanging = client.oneshot(get("/hang"));
                let cut = tokio::time::timeout(Duration::ZERO, hanging).await;
                assert!(cut.is_err());
            }
            _ => drop(client.oneshot(get("/")).await.unwrap()),
        }
    }
    // Three retries come before.
    assert_eq!(
        histograms(&seen),
        [
            (63 + 3, [62, 0, 0, 1, 0, 0, 0, 0]),
            (127 + 3, [126, 0, 0, 1, 0, 0, 0, 0])
        ]
    );
}

#[tokio::test]
async fn every_attempt_of_the_64th_call_sends_the_histogram() {
    let seen = Seen::default();
    let layer = RetryLayer::new(quick().build().unwrap())
        .clock(VirtualClock::new())
        .cross_layer();
    let client = layer.layer(local(seen.clone()));
    for _ in 1..64 {
        client.clone().oneshot(get("/")).await.unwrap();
    }
    client.clone().oneshot(get("/fail")).await.unwrap();
    let header_values = histograms(&seen);
    assert_eq!(header_values.len(), 4);
    assert!(
        header_values.iter().all(|(_, counts)| counts[0] == 63),
        "{header_values:?}"
    );
}

#[tokio::test]
async fn headers_of_another_hop_are_not_forwarded() {
    let seen = Seen::default();
    let layer = RetryLayer::new(quick().build().unwrap()).cross_layer();
    let mut request = get("/");
    request
        .headers_mut()
        .insert("relent-attempt", "3".parse().unwrap());
    request
        .headers_mut()
        .insert("relent-histogram", "1, 2".parse().unwrap());
    layer
        .layer(local(seen.clone()))
        .oneshot(request)
        .await
        .unwrap();
    let nothing = CallerContext {
        attempt: 1,
        remaining: None,
        histogram: None,
    };
    assert_eq!(seen.0.lock().unwrap()[..], [nothing]);
}

#[tokio::test]
async fn the_layer_takes_the_nearer_deadline_of_request_and_policy() {
    for (own, header_values, expected) in [
        (None, 700, 700),
        (Some(500), 700, 500),
        (Some(900), 700, 700),
    ] {
        let (seen, clock) = (Seen::default(), VirtualClock::new());
        let layer = RetryLayer::new(quick().build().unwrap())
            .clock(clock.clone())
            .cross_layer();
        let mut request = get("/fail");
        if let Some(own) = own {
            let policy = quick()
                .deadline(Duration::from_millis(own))
                .build()
                .unwrap();
            request
                .extensions_mut()
                .insert(Override::new().policy(policy));
        }
        request
            .headers_mut()
            .insert("relent-deadline-ms", header_values.into());
        let response = layer
            .layer(local(seen.clone()))
            .oneshot(request)
            .await
            .unwrap();
        let summary: &Summary = response.extensions().get().unwrap();
        assert_eq!(summary.reason, Some(StopReason::RetriesExhausted));
        // Each delay is 1 ms.
        let left = [0, 1, 2, 3].map(|waited| Duration::from_millis(expected - waited));
        assert_eq!(seen.remaining(), left);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hedge_sends_its_attempt_number_and_the_time_left() {
    let seen = Seen::default();
    let policy = quick().deadline(Duration::from_millis(500)).max_retries(1);
    let policy = policy.hedge(HedgeConfig::after(Duration::from_millis(50)));
    let layer = RetryLayer::new(policy.build().unwrap());
    let hedged = layer.cross_layer().layer(local(seen.clone()));
    hedged.oneshot(get("/hang")).await.unwrap_err();
    assert_eq!(seen.attempts(), [1, 2]);
    assert_eq!(seen.remaining(), [500, 450].map(Duration::from_millis));
}
