//! Failures after a redirect within an attempt, on real sockets: an earlier request of the same attempt may have taken
//! effect.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use relent::destination::Hedge;
use relent::policy::{BudgetConfig, HedgeConfig, PolicyBuilder};
use relent::{Backoff, Destination, Destinations, GaveUp, Jitter, Policy, StopReason, Summary};
use relent_core::FailureKind;
use relent_http::RetryLayer;
use relent_http::layer::AnsweredBy;
use relent_reqwest::{AttemptError, Body, Client, RetryMiddleware};
use relent_reqwest::{RedirectRefused, default_builder, track_redirects};
use reqwest::redirect;
use reqwest_middleware::ClientBuilder;
use tower::{Layer, ServiceExt};

use crate::scripted::{Server, Step, TEST_TIMEOUT, response, unused_address, with_silences};

const MILLI: Duration = Duration::from_millis(1);
/// A delay that is obeyed and does not fit the deadline.
const HINT: (&str, &str) = ("retry-after-ms", "120000");
const SOON: (&str, &str) = ("retry-after-ms", "1");

fn quick() -> PolicyBuilder {
    Policy::builder(Backoff::constant(MILLI))
        .jitter(Jitter::None)
        .max_retries(3)
}

/// A client builder for this machine, which ignores the proxy of the environment.
fn plain() -> reqwest::ClientBuilder {
    default_builder().no_proxy().tls_certs_only([])
}

fn client(policy: PolicyBuilder) -> Client {
    Client::from_builder(plain, policy.build().unwrap()).unwrap()
}

/// Failure of the request that follows a redirect.
#[derive(Clone, Debug)]
enum Fault {
    Answer(u16, Vec<(&'static str, &'static str)>),
    Reset,
    HangUp,
    Refused,
}

impl Fault {
    /// The failures that, on their own, would mean not processed, or possibly so.
    fn all() -> Vec<Self> {
        vec![
            Self::Refused,
            Self::Reset,
            Self::HangUp,
            Self::Answer(429, vec![SOON]),
            Self::Answer(429, vec![]),
            Self::Answer(421, vec![]),
            Self::Answer(425, vec![]),
            Self::Answer(503, vec![SOON]),
            Self::Answer(408, vec![SOON]),
            Self::Answer(500, vec![]),
        ]
    }

    fn step(&self) -> Step {
        match self {
            Self::Answer(status, fields) => Step::Answer(response(*status, fields, "no")),
            Self::Reset => Step::Reset(Vec::new()),
            Self::HangUp | Self::Refused => Step::Close(Vec::new()),
        }
    }
}

/// Target of the redirect.
#[derive(Clone, Copy, PartialEq, Debug)]
enum To {
    SameUrl,
    OtherUrl,
    OtherOrigin,
}

/// A service that processes a `POST` and redirects.
struct Shop {
    asked: Server,
    _other: Server,
}

impl Shop {
    /// Redirects with this status. The first request after the redirect fails; later ones succeed.
    fn open(status: u16, to: To, fault: &Fault) -> Self {
        let failed = Arc::new(AtomicUsize::new(0));
        let step = fault.step();
        let follow = move || match failed.fetch_add(1, Ordering::Relaxed) {
            0 => step.clone(),
            _ => Step::Answer(response(200, &[], "done")),
        };
        let follow = Arc::new(follow);
        let there = Arc::clone(&follow);
        let other = Server::answering(move |_, _| there());
        let target = match (to, fault) {
            (To::OtherOrigin, Fault::Refused) => format!("http://{}/done", unused_address()),
            (To::OtherOrigin, _) => other.url("/done"),
            (To::OtherUrl, _) => "/done".to_owned(),
            (To::SameUrl, _) => "/pay".to_owned(),
        };
        let asked = Server::answering(move |_, seen| {
            if seen.path() == "/pay" && (seen.method() == "POST" || to != To::SameUrl) {
                Step::Answer(response(status, &[("location", &target)], "moved"))
            } else {
                follow()
            }
        });
        Self {
            asked,
            _other: other,
        }
    }

    fn posts(&self) -> usize {
        let seen = self.asked.seen();
        seen.iter().filter(|seen| seen.method() == "POST").count()
    }

    fn url(&self) -> String {
        self.asked.url("/pay")
    }
}

/// Every shop with every fault. A refused connection needs another origin.
fn shops(status: u16) -> Vec<(String, Shop)> {
    let mut shops = Vec::new();
    for to in [To::SameUrl, To::OtherUrl, To::OtherOrigin] {
        for fault in Fault::all() {
            if matches!(fault, Fault::Refused) && to != To::OtherOrigin {
                continue;
            }
            let name = format!("{status} to {to:?}, then {fault:?}");
            shops.push((name, Shop::open(status, to, &fault)));
        }
    }
    shops
}

#[tokio::test]
async fn the_client_does_not_retry_a_redirected_post() {
    for status in [301, 302, 303] {
        for (name, shop) in shops(status) {
            let sent = client(quick())
                .post(shop.url())
                .body("amount=5")
                .send()
                .await;
            let reason = match &sent {
                Ok(response) => response.summary().reason,
                Err(error) => error.summary().and_then(|summary| summary.reason),
            };
            assert_eq!(shop.posts(), 1, "{name}");
            assert_eq!(reason, Some(StopReason::NotRepeatable), "{name}");
        }
    }
}

#[tokio::test]
async fn a_redirected_download_by_post_is_not_retried() {
    for (name, shop) in shops(303) {
        let client = client(quick());
        let request = Request::post(shop.url())
            .body(Body::from("amount=5"))
            .unwrap();
        let _ = client.download(request, &mut Vec::new()).await;
        assert_eq!(shop.posts(), 1, "{name}");
    }
    for (name, shop) in shops(303) {
        let post = client(quick()).post(shop.url()).body("amount=5");
        let _ = post.whole_body().send().await;
        assert_eq!(shop.posts(), 1, "{name}");
    }
}

#[tokio::test]
async fn an_attempt_error_contains_the_last_requested_url() {
    let to = format!(
        "http://name:hunter2@{}/last?token=hunter2",
        unused_address()
    );
    let server =
        Server::answering(move |_, _| Step::Answer(response(302, &[("location", &to)], "")));
    let hedge = Hedge::new(&HedgeConfig::after(TEST_TIMEOUT)).unwrap();
    let get = || client(quick().max_retries(0)).get(server.url("/first"));
    let sent = [
        get().send().await,
        get().whole_body().send().await,
        get().hedge(hedge).send().await,
    ];
    for sent in sent {
        let Err(relent_reqwest::Error::GaveUp(gave_up)) = sent else {
            panic!("{sent:?}");
        };
        let Some(AttemptError::Transport(error)) = gave_up.error() else {
            panic!("{gave_up:?}");
        };
        assert_eq!(error.url().map(reqwest::Url::path), Some("/last"));
        assert!(
            !format!("{error:?} {error}").contains("hunter2"),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn the_middleware_does_not_retry_a_redirected_post() {
    for declared in [false, true] {
        for (name, shop) in shops(303) {
            let mut retry = RetryMiddleware::new(quick().build().unwrap());
            if declared {
                retry = retry.redirects_are_tracked();
            }
            let stack = ClientBuilder::new(plain().build().unwrap()).with(retry);
            let _ = stack.build().post(shop.url()).body("amount=5").send().await;
            assert_eq!(shop.posts(), 1, "{name}");
        }
    }
}

#[tokio::test]
async fn a_hedging_client_does_not_retry_a_redirected_post() {
    let hedged = || client(quick().hedge(HedgeConfig::after(TEST_TIMEOUT)));
    for (name, shop) in shops(303) {
        let client = hedged();
        let _ = client.post(shop.url()).body("amount=5").send().await;
        assert_eq!(shop.posts(), 1, "{name}");
    }
    for (name, shop) in shops(303) {
        let client = hedged();
        let keyed = client.post(shop.url()).header("idempotency-key", "k");
        let _ = keyed.body("amount=5").send().await;
        let refused = name.ends_with("Refused");
        assert_eq!(shop.posts(), if refused { 4 } else { 2 }, "{name}");
    }
}

#[tokio::test]
async fn a_307_does_not_prove_that_a_post_was_not_processed() {
    for (name, shop) in shops(307) {
        if name.contains("SameUrl") {
            continue;
        }
        let _ = client(quick())
            .post(shop.url())
            .body("amount=5")
            .send()
            .await;
        let asked = shop.asked.seen();
        let asked = asked.iter().filter(|seen| seen.path() == "/pay").count();
        assert_eq!(asked, 1, "{name}");
    }
}

#[tokio::test]
async fn a_503_counts_as_not_processed_only_without_a_redirect() {
    let policy = || quick().not_processed(["any".parse().unwrap()]);
    for (name, shop) in shops(303) {
        let _ = client(policy())
            .post(shop.url())
            .body("amount=5")
            .send()
            .await;
        assert_eq!(shop.posts(), 1, "{name}");
    }
}

#[tokio::test]
async fn a_repeatable_request_is_retried_after_a_redirect() {
    for (name, shop) in shops(303) {
        if name.ends_with("Refused") {
            continue;
        }
        let keyed = client(quick())
            .post(shop.url())
            .header("idempotency-key", "k");
        let paid = keyed.body("amount=5").send().await.unwrap();
        assert_eq!((paid.status().as_u16(), shop.posts()), (200, 2), "{name}");
    }
    for (name, shop) in shops(302) {
        if name.ends_with("Refused") || name.contains("SameUrl") {
            continue;
        }
        let got = client(quick()).get(shop.url()).send().await.unwrap();
        assert_eq!(got.status(), 200, "{name}");
        assert_eq!(got.summary().attempts, 2, "{name}");
        let retry = RetryMiddleware::new(quick().build().unwrap());
        let shop = Shop::open(302, To::OtherOrigin, &Fault::Answer(503, vec![]));
        let stack = ClientBuilder::new(plain().build().unwrap()).with(retry);
        let got = stack.build().get(shop.url()).send().await.unwrap();
        assert_eq!(got.status(), 200);
    }
}

#[tokio::test]
async fn a_timeout_after_a_redirect_is_ambiguous() {
    let other = Server::script([Step::Stall(Vec::new())]);
    let moved = Step::Answer(response(303, &[("location", &other.url("/"))], ""));
    let asked = Server::script([moved]);
    let client = client(quick().attempt_timeout(TEST_TIMEOUT));
    let sent = client.post(asked.url("/")).send();
    let _ = with_silences(&other, 1, TEST_TIMEOUT, sent).await;
    assert_eq!((asked.count(), other.count()), (1, 1));
}

#[tokio::test]
async fn a_post_without_a_redirect_is_retried_if_not_processed() {
    let limited = || {
        Server::script([
            Step::Answer(response(429, &[SOON], "")),
            Step::Answer(response(200, &[], "")),
        ])
    };
    let over = || Client::from_client(plain().build().unwrap(), quick().build().unwrap());
    let own = || plain().redirect(track_redirects(redirect::Policy::limited(3)));
    let policy = || quick().build().unwrap();
    for client in [
        client(quick()),
        over().redirects_are_tracked(),
        Client::from_builder(own, policy()).unwrap(),
    ] {
        let server = limited();
        let _ = client.post(server.url("/")).send().await;
        assert_eq!(server.count(), 2);
    }
    let stack = ClientBuilder::new(plain().build().unwrap());
    let retry = RetryMiddleware::new(policy()).redirects_are_tracked();
    let server = limited();
    let _ = stack.with(retry).build().post(server.url("/")).send().await;
    assert_eq!(server.count(), 2);
}

#[tokio::test]
async fn without_tracked_redirects_a_post_is_never_retried() {
    let limited = || Server::script([Step::Answer(response(429, &[SOON], ""))]);
    let over = || Client::from_client(plain().build().unwrap(), quick().build().unwrap());
    let unseen = || plain().redirect(redirect::Policy::limited(3));
    let policy = || quick().build().unwrap();
    let clients = || [over(), Client::from_builder(unseen, policy()).unwrap()];
    for client in clients() {
        let server = limited();
        let sent = client.post(server.url("/")).send().await.unwrap();
        assert_eq!(sent.summary().reason, Some(StopReason::NotRepeatable));
        assert_eq!(server.count(), 1);
        let server = limited();
        let _ = client.get(server.url("/")).send().await;
        assert_eq!(server.count(), 4, "a GET is retried as ever");
    }
    for (name, shop) in shops(303) {
        for client in clients() {
            let before = shop.posts();
            let _ = client.post(shop.url()).body("amount=5").send().await;
            assert_eq!(shop.posts() - before, 1, "{name}");
        }
    }
    let retry = RetryMiddleware::new(policy());
    let server = limited();
    let stack = ClientBuilder::new(plain().build().unwrap()).with(retry);
    let _ = stack.build().post(server.url("/")).send().await;
    assert_eq!(server.count(), 1);
}

/// An origin that redirects to another one, with the destinations of both.
struct TwoOrigins {
    asked: Server,
    other: Server,
    shared: Arc<Destinations>,
}

impl TwoOrigins {
    fn new(policy: &Policy, steps: impl IntoIterator<Item = Step>) -> Self {
        let other = Server::script(steps);
        let moved = Step::Answer(response(302, &[("location", &other.url("/"))], ""));
        Self {
            asked: Server::script([moved]),
            other,
            shared: Arc::new(Destinations::new(policy.clone())),
        }
    }

    fn first(&self) -> Arc<Destination> {
        self.shared
            .get_or_create(&format!("http://{}", self.asked.address))
    }

    fn second(&self) -> Arc<Destination> {
        self.shared
            .get_or_create(&format!("http://{}", self.other.address))
    }
}

fn limited(hint: (&str, &str)) -> Step {
    Step::Answer(response(429, &[hint], ""))
}

#[tokio::test]
async fn a_cooldown_after_a_redirect_applies_to_the_final_origin() {
    let policy = quick().budget(BudgetConfig::DEFAULT).deadline(TEST_TIMEOUT);
    let policy = policy.build().unwrap();
    let made = |policy: &Policy| Client::from_builder(plain, policy.clone()).unwrap();
    let hedging = policy
        .clone()
        .into_builder()
        .hedge(HedgeConfig::after(TEST_TIMEOUT));
    let hedging = hedging.build().unwrap();
    let over = Client::from_client(plain().build().unwrap(), policy.clone());
    let unseen = plain().redirect(redirect::Policy::limited(3));
    let unseen = Client::from_client(unseen.build().unwrap(), policy.clone());
    for client in [made(&policy), made(&hedging), over, unseen] {
        let two = TwoOrigins::new(&policy, [limited(HINT)]);
        let client = client.destinations(two.shared.clone());
        let sent = client.get(two.asked.url("/")).send().await.unwrap();
        // The delay is beyond the deadline, and it is obeyed.
        assert_eq!(sent.summary().reason, Some(StopReason::RetryLater));
        assert!(two.second().cooldown().has_begun());
        assert!(!two.first().cooldown().has_begun());
    }
    let two = TwoOrigins::new(&policy, [limited(HINT)]);
    let client = made(&policy).destinations(two.shared.clone());
    let request = Request::get(two.asked.url("/"))
        .body(Body::empty())
        .unwrap();
    let _ = client.download(request, &mut Vec::new()).await;
    assert!(two.second().cooldown().has_begun());
    assert!(!two.first().cooldown().has_begun());

    // Also if no request follows.
    let two = TwoOrigins::new(&policy, [limited(HINT)]);
    let client = made(&policy).destinations(two.shared.clone());
    let _ = client.post(two.asked.url("/")).send().await;
    assert!(two.second().cooldown().has_begun());
    assert!(!two.first().cooldown().has_begun());

    let one = Arc::new(Destination::new(&policy));
    let two = TwoOrigins::new(&policy, [limited(HINT)]);
    let client = made(&policy).destination(one.clone());
    let _ = client.get(two.asked.url("/")).send().await;
    assert!(one.cooldown().has_begun(), "there is no other");
}

#[tokio::test]
async fn a_cooldown_in_the_middleware_applies_to_the_final_origin() {
    let policy = quick().deadline(TEST_TIMEOUT).build().unwrap();
    let two = TwoOrigins::new(&policy, [limited(HINT)]);
    let retry = RetryMiddleware::new(policy);
    let stack = ClientBuilder::new(plain().build().unwrap()).with(retry);
    let stack = stack.build();
    for asked in 1..=2 {
        stack.get(two.asked.url("/")).send().await.unwrap();
        assert_eq!((two.asked.count(), two.other.count()), (asked, asked));
    }
    let held = stack.get(two.other.url("/")).send().await.unwrap_err();
    let reqwest_middleware::Error::Middleware(error) = held else {
        panic!("{held}")
    };
    let gave_up: &GaveUp<AttemptError> = error.downcast_ref().unwrap();
    assert_eq!(gave_up.reason(), StopReason::RetryLater);
    assert_eq!(two.other.count(), 2, "it was not asked");
}

#[tokio::test]
async fn the_budget_of_the_first_origin_pays_for_a_redirected_retry() {
    let config = BudgetConfig {
        ratio: 0.0,
        initial_tokens: 10.0,
        per_second: 0.0,
        ..BudgetConfig::DEFAULT
    };
    let policy = quick().budget(config).build().unwrap();
    let done = Step::Answer(response(200, &[], ""));
    let two = TwoOrigins::new(&policy, [limited(SOON), done]);
    let client = Client::from_builder(plain, policy).unwrap();
    let client = client.destinations(two.shared.clone());
    let sent = client.get(two.asked.url("/")).send().await.unwrap();
    assert_eq!((sent.status().as_u16(), sent.summary().attempts), (200, 2));
    assert_eq!((two.asked.count(), two.other.count()), (2, 2));
    let left = |there: &Destination| there.budget().unwrap().balance();
    assert!(left(&two.first()) < left(&two.second()));
}

#[tokio::test]
async fn a_redirected_failure_affects_the_breaker_of_the_final_origin() {
    let policy = Policy::STANDARD.clone().into_builder().max_retries(0);
    let policy = policy.build().unwrap();
    let refused = Step::Answer(response(502, &[], ""));
    for fault in [refused, Step::Close(Vec::new())] {
        let two = TwoOrigins::new(&policy, [fault]);
        let client = Client::from_builder(plain, policy.clone()).unwrap();
        let client = client.destinations(two.shared.clone());
        let (first, second) = (two.first(), two.second());
        while !second.is_down() {
            let _ = client.get(two.asked.url("/")).send().await;
            assert!(first.is_normal());
        }
    }
}

#[tokio::test]
async fn a_redirected_success_ends_the_down_state_of_the_final_origin() {
    let policy = Policy::STANDARD.clone().into_builder().max_retries(0);
    let policy = policy.build().unwrap();
    let up = Arc::new(AtomicBool::new(false));
    let is_up = Arc::clone(&up);
    let other = Server::answering(move |_, _| match is_up.load(Ordering::Relaxed) {
        true => Step::Answer(response(200, &[], "")),
        false => Step::Close(Vec::new()),
    });
    let moved = Step::Answer(response(302, &[("location", &other.url("/"))], ""));
    let asked = Server::script([moved]);
    let shared = Arc::new(Destinations::new(policy.clone()));
    let client = Client::from_builder(plain, policy).unwrap();
    let client = client.destinations(shared.clone());
    let second = shared.get_or_create(&format!("http://{}", other.address));
    while !second.is_down() {
        let _ = client.get(asked.url("/")).send().await;
    }
    up.store(true, Ordering::Relaxed);
    client.get(asked.url("/")).send().await.unwrap();
    assert!(!second.is_down());
}

type Called = Result<http::Response<Full<Bytes>>, io::Error>;

/// The number of calls of a service that refuses, for one request with this method.
async fn calls(layer: RetryLayer, method: Method, refuse: fn() -> Called) -> usize {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let service = layer.layer(tower::service_fn(move |_: Request<_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        async move { refuse() }
    }));
    let request = Request::builder().method(method).uri("http://shop/");
    let body: Full<Bytes> = Full::from("amount=5");
    let _ = service.oneshot(request.body(body).unwrap()).await;
    count.load(Ordering::Relaxed)
}

#[tokio::test]
async fn may_call_twice_prevents_retries_of_a_post() {
    fn refused() -> Called {
        Err(io::ErrorKind::ConnectionRefused.into())
    }
    fn limited() -> Called {
        let response = http::Response::builder().status(429);
        Ok(response.body(Full::default()).unwrap())
    }
    let layer = || RetryLayer::new(quick().build().unwrap());
    let hedging = || {
        quick()
            .hedge(HedgeConfig::after(TEST_TIMEOUT))
            .build()
            .unwrap()
    };
    let hedged = || RetryLayer::new(hedging()).may_call_twice();
    for refuse in [refused, limited] {
        assert_eq!(calls(layer(), Method::POST, refuse).await, 4);
        let twice = || layer().may_call_twice();
        assert_eq!(calls(twice(), Method::POST, refuse).await, 1);
        assert_eq!(calls(hedged(), Method::POST, refuse).await, 1);
        assert_eq!(calls(twice(), Method::GET, refuse).await, 4);
        assert_eq!(calls(hedged(), Method::GET, refuse).await, 4);
    }
}

#[tokio::test]
async fn a_cooldown_of_the_inner_service_applies_to_the_answering_origin() {
    let policy = quick().deadline(TEST_TIMEOUT).build().unwrap();
    for hedged in [false, true] {
        let refuse = tower::service_fn(|_: Request<_>| async {
            let other = http::Uri::from_static("http://other/");
            let response = http::Response::builder()
                .status(429)
                .header(HINT.0, HINT.1)
                .extension(AnsweredBy(other));
            Ok::<_, Infallible>(response.body(Full::<Bytes>::default()).unwrap())
        });
        let hedging = policy
            .clone()
            .into_builder()
            .hedge(HedgeConfig::after(TEST_TIMEOUT));
        let policy = match hedged {
            true => hedging.build().unwrap(),
            false => policy.clone(),
        };
        let layer = RetryLayer::new(policy).may_call_twice();
        let service = layer.layer(refuse);
        let get = |uri: &str| Request::get(uri).body(Full::<Bytes>::default()).unwrap();
        let refused = service.clone().oneshot(get("http://shop/")).await.unwrap();
        let attempts = |response: &http::Response<_>| {
            let summary: &Summary = response.extensions().get().unwrap();
            summary.attempts
        };
        assert_eq!(attempts(&refused), 1);
        // The requested address is not held back; the one that responded is.
        let again = service.clone().oneshot(get("http://shop/")).await.unwrap();
        assert_eq!(attempts(&again), 1);
        let held = service.oneshot(get("http://other/")).await.unwrap_err();
        assert_eq!(held.attempts(), 0);
        assert_eq!(held.reason(), StopReason::RetryLater);
    }
}

/// A builder without a tracked policy is detected.
#[tokio::test]
async fn a_builder_that_replaces_the_tracked_policy_is_detected() -> Result<(), Infallible> {
    let replaced = || {
        drop(track_redirects(redirect::Policy::limited(1)));
        plain().redirect(redirect::Policy::default())
    };
    let client = Client::from_builder(replaced, quick().build().unwrap()).unwrap();
    let shop = Shop::open(303, To::SameUrl, &Fault::Answer(429, vec![SOON]));
    let _ = client.post(shop.url()).body("amount=5").send().await;
    assert_eq!(shop.posts(), 1);
    Ok(())
}

/// `/a` and `/b` redirect to each other, and any other path to itself.
fn circle(status: u16) -> Server {
    Server::answering(move |_, seen| {
        let to = match seen.path() {
            "/a" => "/b",
            "/b" => "/a",
            "/empty" => "",
            path => path,
        };
        Step::Answer(response(status, &[("location", to)], ""))
    })
}

/// Returns the error of the redirect policy; checks that nothing was retried.
fn refused_redirect(
    name: &str,
    sent: Result<relent_reqwest::Response, relent_reqwest::Error>,
) -> RedirectRefused {
    let error = sent.unwrap_err();
    let summary = error.summary().unwrap();
    assert_eq!(
        (summary.attempts, summary.reason),
        (1, Some(StopReason::Permanent)),
        "{name}"
    );
    let outside = relent_reqwest::network::classify_error(&error);
    assert_eq!(outside.kind, FailureKind::Permanent, "{name}");
    let relent_reqwest::Error::GaveUp(gave_up) = &error else {
        panic!("{name}: {error:?}");
    };
    match gave_up.error() {
        Some(AttemptError::Redirect(refused)) => refused.clone(),
        Some(AttemptError::Transport(error)) if error.is_redirect() => {
            let refused = relent_http::network::chain(error).find_map(|error| error.downcast_ref());
            refused
                .cloned()
                .unwrap_or_else(|| panic!("{name}: {error:?}"))
        }
        _ => panic!("{name}: {error:?}"),
    }
}

#[tokio::test]
async fn a_redirect_loop_ends_at_its_first_repetition() {
    for status in [301, 302, 303, 307, 308] {
        for (path, requests) in [("/self", 1), ("/empty", 1), ("/a", 2)] {
            let name = format!("{status} {path}");
            let server = circle(status);
            let refused =
                refused_redirect(&name, client(quick()).get(server.url(path)).send().await);
            assert!(
                refused.is_loop() && refused.to_string().contains(path),
                "{refused}"
            );
            assert_eq!(server.count(), requests, "{name}");
            // A POST that becomes a GET has repeated nothing yet.
            let server = circle(status);
            let post = client(quick()).post(server.url(path)).body("amount=5");
            assert!(refused_redirect(&name, post.send().await).is_loop());
            let becomes = usize::from(status < 307);
            assert_eq!(server.count(), requests + becomes, "{name}");
            let posts = server
                .seen()
                .iter()
                .filter(|seen| seen.method() == "POST")
                .count();
            assert_eq!(posts, if status < 307 { 1 } else { requests }, "{name}");
        }
    }
}

#[tokio::test]
async fn every_kind_of_client_detects_a_redirect_loop() {
    let count = |server: &Server| server.count();
    let server = circle(307);
    let _ = client(quick())
        .post(server.url("/self"))
        .whole_body()
        .send()
        .await;
    assert_eq!(count(&server), 1);
    let server = circle(307);
    let hedged = client(quick().hedge(HedgeConfig::after(TEST_TIMEOUT)));
    let _ = hedged.put(server.url("/a")).send().await;
    assert_eq!(count(&server), 2);
    let server = circle(307);
    let retry = RetryMiddleware::new(quick().build().unwrap()).redirects_are_tracked();
    let stack = ClientBuilder::new(plain().build().unwrap()).with(retry);
    let _ = stack.build().post(server.url("/self")).send().await;
    assert_eq!(count(&server), 1);
    // Without retries the method is unknown; only 307 and 308 keep it.
    let server = circle(308);
    let error = plain()
        .build()
        .unwrap()
        .post(server.url("/self"))
        .send()
        .await;
    assert!(error.unwrap_err().is_redirect());
    assert_eq!(count(&server), 1);
}

#[tokio::test]
async fn the_same_url_with_another_method_is_not_a_redirect_loop() {
    let server = Server::answering(|_, seen| {
        let moved = |status, to| Step::Answer(response(status, &[("location", to)], ""));
        match (seen.method(), seen.path()) {
            ("POST", _) => moved(303, "/wait"),
            (_, "/wait") => moved(302, "/pay"),
            _ => Step::Answer(response(200, &[], "done")),
        }
    });
    let sent = client(quick())
        .post(server.url("/pay"))
        .send()
        .await
        .unwrap();
    assert_eq!((sent.status().as_u16(), server.count()), (200, 3));
}

#[tokio::test]
async fn a_redirect_to_another_scheme_is_not_followed() {
    let to =
        |to: &'static str| Server::script([Step::Answer(response(302, &[("location", to)], ""))]);
    let server = to("ftp://name:hunter2@127.0.0.1/file");
    let refused = refused_redirect("ftp", client(quick()).get(server.url("/")).send().await);
    assert!(!refused.is_loop() && refused.url().unwrap().scheme() == "ftp");
    let says = "redirect to ftp://127.0.0.1/file: only http:// and https:// are followed";
    assert_eq!(refused.to_string(), says);
    for target in ["javascript:alert(1)", "data:,x", "mailto:a@b.example"] {
        let server = to(target);
        let sent = client(quick()).post(server.url("/")).send().await;
        let refused = refused_redirect(target, sent);
        assert!(refused.to_string().contains("only http"), "{refused}");
        assert_eq!(server.count(), 1, "{target}");
    }
}

#[tokio::test]
async fn a_redirect_without_a_usable_location_is_no_response() {
    let follows = || plain().redirect(track_redirects(redirect::Policy::limited(3)));
    let with = |builder: fn() -> reqwest::ClientBuilder| {
        Client::from_builder(builder, quick().build().unwrap()).unwrap()
    };
    for status in [301, 302, 303, 307, 308] {
        for fields in [
            &[][..],
            &[("location", "//")],
            &[("location", "http://[/")],
            &[("location", "http://")],
        ] {
            let name = format!("{status} {fields:?}");
            let server = Server::script([Step::Answer(response(status, fields, "moved"))]);
            let long = "x".repeat(1 << 20);
            for body in ["", "amount=5", &long] {
                for client in [client(quick()), with(follows)] {
                    let post = || client.post(server.url("/")).body(body.to_owned());
                    for sent in [post().send().await, post().whole_body().send().await] {
                        let refused = refused_redirect(&name, sent);
                        assert!(!refused.is_loop() && refused.url().is_none(), "{name}");
                        assert!(refused.to_string().contains("Location"), "{refused}");
                    }
                }
            }
            let request = Request::get(server.url("/")).body(Body::empty()).unwrap();
            let downloaded = client(quick()).download(request, &mut Vec::new()).await;
            assert!(downloaded.is_err(), "{name}");
            // A caller who asked for no redirects, or decides about each, gets the response.
            let none = || plain().redirect(track_redirects(redirect::Policy::none()));
            let own = || {
                plain().redirect(track_redirects(redirect::Policy::custom(|next| {
                    next.stop()
                })))
            };
            for client in [with(none), with(own)] {
                let sent = client.get(server.url("/")).send().await.unwrap();
                assert_eq!(sent.status(), status, "{name}");
            }
        }
    }
}

#[tokio::test]
async fn a_redirect_that_needs_a_stream_again_is_no_response() {
    for status in [307, 308] {
        let server = Server::script([Step::Answer(response(status, &[("location", "/to")], ""))]);
        let stream = reqwest::Body::wrap(reqwest::Body::from("amount=5"));
        let sent = client(quick()).post(server.url("/")).body(stream).send();
        let refused = refused_redirect("stream", sent.await);
        assert_eq!(refused.url().unwrap().path(), "/to");
        assert!(refused.to_string().contains("not in memory"), "{refused}");
        assert_eq!(server.count(), 1);
    }
}

#[tokio::test]
async fn more_redirects_than_the_limit_are_not_followed() {
    let server = Server::answering(|index, _| {
        let next = format!("/{}", index + 1);
        Step::Answer(response(302, &[("location", &next)], ""))
    });
    let refused = refused_redirect("10", client(quick()).get(server.url("/0")).send().await);
    assert_eq!(server.count(), 11);
    assert!(
        refused
            .to_string()
            .starts_with("too many redirects: 10 were followed")
    );
    let three = || plain().redirect(relent_reqwest::limit_redirects(3));
    let client = Client::from_builder(three, quick().build().unwrap()).unwrap();
    refused_redirect("3", client.get(server.url("/0")).send().await);
    assert_eq!(server.count(), 15);
}

/// The attempt has changed what redirects on its thread are compared with.
#[tokio::test]
async fn a_panic_in_an_attempt_does_not_affect_other_clients_on_its_thread() {
    let server = Server::answering(|index, seen| match index {
        0 | 1 => Step::Answer(response(303, &[("location", seen.path())], "")),
        _ => Step::Answer(response(200, &[], "")),
    });
    let panics = || redirect::Policy::custom(|_| panic!("a callback"));
    let panics = move || plain().redirect(track_redirects(panics()));
    let client = Client::from_builder(panics, quick().build().unwrap()).unwrap();
    let get = tokio::spawn(client.get(server.url("/form")).send());
    assert!(get.await.unwrap_err().is_panic());
    // A `POST` that redirects to the same URL is no loop.
    let limited = plain().redirect(relent_reqwest::limit_redirects(3));
    let post = limited.build().unwrap().post(server.url("/form"));
    assert_eq!(post.send().await.unwrap().status(), 200);
}

/// A long body is sent to the first URL again if the redirect keeps it and can be followed; otherwise the `POST` might
/// run twice.
#[tokio::test]
async fn a_long_post_is_sent_again_only_to_follow_a_redirect_with_its_body() {
    const NO_URL: &str = "http://[";
    let none = || redirect::Policy::none();
    let sent = |client: Client, first: u16, second: (u16, &'static str)| async move {
        let server = Server::answering(move |_, seen| match seen.path() {
            "/pay" if first == 0 => Step::Answer(response(second.0, &[("location", second.1)], "")),
            "/pay" => Step::Answer(response(first, &[("location", "/done")], "")),
            "/done" => Step::Answer(response(second.0, &[("location", second.1)], "")),
            _ => Step::Answer(response(200, &[], "")),
        });
        let post = client.post(server.url("/pay")).body(vec![7; 100 << 10]);
        let status = post
            .send()
            .await
            .ok()
            .map(|response| response.status().as_u16());
        let posts = server.seen();
        let posts = posts.iter().filter(|seen| seen.method() == "POST").count();
        (posts, status)
    };
    let default = || client(quick());
    let policy = || quick().build().unwrap();
    // The request that follows is the third `POST`.
    assert_eq!(sent(default(), 0, (307, "/next")).await, (3, Some(200)));
    assert_eq!(sent(default(), 0, (308, NO_URL)).await, (1, None));
    for processed in [301, 302, 303] {
        assert_eq!(sent(default(), processed, (307, NO_URL)).await, (1, None));
        assert_eq!(
            sent(default(), processed, (307, "/next")).await,
            (1, Some(200))
        );
    }
    let stops = || {
        redirect::Policy::custom(|attempt| match attempt.status().as_u16() {
            307 => attempt.stop(),
            _ => attempt.follow(),
        })
    };
    let stopping =
        Client::from_builder(move || plain().redirect(track_redirects(stops())), policy());
    assert_eq!(
        sent(stopping.unwrap(), 303, (307, "/next")).await,
        (1, Some(307))
    );
    let untracked = Client::from_builder(move || plain().redirect(none()), policy()).unwrap();
    assert_eq!(sent(untracked, 0, (307, "/next")).await, (1, Some(307)));
    let existing = Client::from_client(plain().redirect(none()).build().unwrap(), policy());
    assert_eq!(sent(existing, 0, (307, "/next")).await, (1, Some(307)));
}

/// The first server has had the body before it redirects, and gets it again to follow the redirect.
#[tokio::test]
async fn a_long_post_that_fails_when_it_is_sent_again_is_not_retried() {
    for fault in Fault::all() {
        if matches!(fault, Fault::Refused) {
            continue;
        }
        let step = fault.step();
        let server = Server::answering(move |index, _| match index {
            0 => Step::Answer(response(307, &[("location", "/next")], "")),
            1 => step.clone(),
            _ => Step::Answer(response(200, &[], "done")),
        });
        let post = client(quick()).post(server.url("/pay"));
        let ended = post.body(vec![7; 100 << 10]).send().await;
        let summary = match &ended {
            Ok(response) => response.summary(),
            Err(error) => error.summary().unwrap(),
        };
        assert_eq!(
            (summary.reason, summary.attempts),
            (Some(StopReason::NotRepeatable), 1),
            "{fault:?}"
        );
        assert_eq!(server.count(), 2, "{fault:?}");
    }
}

/// The redirect is a sign of life.
#[tokio::test]
async fn the_read_timeout_starts_again_with_each_redirect() {
    const PAUSE: Duration = Duration::from_millis(400);
    let server = Server::answering(|_, seen| {
        let to = match seen.path() {
            "/1" => response(302, &[("location", "/2")], ""),
            "/2" => response(307, &[("location", "/3")], ""),
            _ => response(200, &[], "done"),
        };
        Step::Slow(PAUSE, usize::MAX, to)
    });
    let client = client(quick().max_retries(0)).read_timeout(2 * PAUSE);
    for whole in [false, true] {
        let get = client.get(server.url("/1"));
        let get = if whole { get.whole_body() } else { get };
        assert_eq!(get.send().await.unwrap().status(), 200, "{whole}");
    }
}
