//! What the layer offers to a transport of your own, such as the one of a proxy.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{Empty, Full};
use relent::clock::TokioClock;
use relent::policy::{HedgeConfig, Rule};
use relent::{Attempt, Backoff, Destination, Policy, StopReason, Summary};
use relent_core::{Cause, Failure, FailureKind, Network};
use relent_http::body::ReplayBody;
use relent_http::layer::{PreviousAttempt, Resends, UpstreamChoice, Upstreams};
use relent_http::network::{NotConnected, classify_error};
use relent_http::{BoxError, ErrorResponse, Override, RetryLayer};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};

use super::mock::{Arrived, Mock, MockAnswer, status};
use super::{ending, get, layer, policy, post};
use crate::held_by::{ALL, HeldBy};

#[tokio::test]
async fn a_post_is_sent_again_after_every_failure_to_connect() {
    let connector_errors: [fn() -> BoxError; 5] = [
        || io::Error::from(io::ErrorKind::TimedOut).into(),
        || io::Error::from(io::ErrorKind::HostUnreachable).into(),
        || io::Error::from(io::ErrorKind::ConnectionReset).into(),
        || io::Error::from(io::ErrorKind::BrokenPipe).into(),
        || "no upstream is up".into(),
    ];
    for error in connector_errors {
        let (layer, _) = layer(policy());
        let calls = Arc::new(AtomicU32::new(0));
        let service = tower::service_fn({
            let calls = calls.clone();
            move |_: Request<_>| {
                let is_first = calls.fetch_add(1, Ordering::Relaxed) == 0;
                async move {
                    match is_first {
                        true => Err(BoxError::from(NotConnected::new(error()))),
                        false => Ok(Response::new(Empty::<Bytes>::new())),
                    }
                }
            }
        });
        let result = layer.layer(service).oneshot(post()).await;
        assert_eq!(ending(&result), (Some(200), 2, None), "{}", error());
    }
}

#[test]
fn the_cause_of_a_failure_to_connect_is_that_of_the_connector() {
    let of = |error: io::Error| {
        let failure = classify_error(&NotConnected::new(error));
        (failure.kind, failure.cause)
    };
    let (unsent, network) = (FailureKind::NotProcessed, Cause::Network);
    let timed_out = io::Error::from(io::ErrorKind::TimedOut);
    assert_eq!(of(timed_out), (unsent, Cause::Timeout));
    let cut = io::Error::from(io::ErrorKind::UnexpectedEof);
    assert_eq!(of(cut), (unsent, network(Network::Handshake)));
    let other = io::Error::other("the pool is closed");
    assert_eq!(of(other), (unsent, network(Network::Connect)));
}

#[cfg(feature = "rustls")]
#[test]
fn a_rejected_certificate_stays_permanent_while_connecting() {
    let rejected = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
    let rejected = io::Error::new(io::ErrorKind::InvalidData, rejected);
    let failure = classify_error(&NotConnected::new(rejected));
    let certificate = Cause::Network(Network::Certificate);
    assert_eq!(
        (failure.kind, failure.cause),
        (FailureKind::Permanent, certificate)
    );
}

/// The text and the sources name the error of the connector once.
#[test]
fn a_failure_to_connect_displays_as_the_error_of_the_connector() {
    let not_connected = NotConnected::new(io::Error::other("the pool is closed"));
    assert_eq!(not_connected.to_string(), "the pool is closed");
    assert!(std::error::Error::source(&not_connected).is_none());
    assert!(not_connected.get_ref().is::<io::Error>());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fails_fast_never_waits_at_its_destination() {
    for (by, by_request) in ALL.into_iter().flat_map(|by| [(by, false), (by, true)]) {
        let there = Arc::new(by.destination().await);
        let layer = RetryLayer::new(by.policy()).destination(there.clone());
        let layer = if by_request { layer } else { layer.fail_fast() };
        let (mock, refused) = (Mock::new([status(200)]), Mock::new([status(503)]));
        let call = async |mock: &Mock| {
            let mut request = get();
            if by_request {
                request.extensions_mut().insert(Override::new().fail_fast());
            }
            layer.layer(mock.clone()).oneshot(request).await
        };
        match by {
            // Until a call makes the probe. Its retry would be queued.
            HeldBy::CircuitBreaker => loop {
                let result = call(&refused).await;
                if refused.calls() > 0 {
                    assert_eq!(ending(&result), (Some(503), 1, Some(by.reason())));
                    break;
                }
                assert_eq!(ending(&result), (None, 0, Some(by.reason())));
                tokio::time::sleep(Duration::from_millis(100)).await;
                assert!(there.is_down(), "without a probe it stays down");
            },
            HeldBy::Cooldown => by.start_cooldown(&there),
            // The call takes the only slot.
            HeldBy::Rate => assert_eq!(ending(&call(&mock).await), (Some(200), 1, None)),
        }
        let (before, calls) = (Instant::now(), mock.calls());
        let gave_up = call(&mock).await.unwrap_err();
        assert_eq!(before.elapsed(), Duration::ZERO, "{by:?}");
        assert_eq!((gave_up.attempts(), gave_up.reason()), (0, by.reason()));
        assert!(gave_up.error().is_none());
        assert_eq!(mock.calls(), calls);
        // Also before it is polled: another call would wait behind it.
        let mut request = get();
        request.extensions_mut().insert(Override::new().fail_fast());
        let unpolled = layer.layer(mock.clone()).call(request);
        assert_eq!(there.queued_while_down(), 0, "{by:?}");
        drop(unpolled);
        let answer = ErrorResponse::gave_up(gave_up.summary(), SystemTime::now()).unwrap();
        assert_eq!(answer.status, 503);
        let has_time = by != HeldBy::CircuitBreaker;
        assert_eq!(answer.hint.delay().is_some(), has_time, "{by:?}");
    }
}

/// No call waits for the probe, so a later call makes it.
#[tokio::test(start_paused = true)]
async fn calls_that_fail_fast_probe_a_destination_that_is_down() {
    let there = Arc::new(HeldBy::CircuitBreaker.destination().await);
    let policy = HeldBy::CircuitBreaker.policy();
    let layer = RetryLayer::new(policy)
        .destination(there.clone())
        .fail_fast();
    let mock = Mock::new([status(200)]);
    for _ in 0..10_000 {
        if !there.is_down() {
            break;
        }
        let _ = layer.layer(mock.clone()).oneshot(get()).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!there.is_down() && mock.calls() > 0);
}

/// A pool that sends a request up to three times, and responds with this status; counts what it sends.
fn pool(status: u16, sent: &Arc<AtomicU32>) -> impl Pool {
    let sent = sent.clone();
    tower::service_fn(move |request: Request<ReplayBody<Full<Bytes>>>| {
        let resends: &Resends = request.extensions().get().unwrap();
        let number = request
            .extensions()
            .get()
            .map_or(1, |attempt: &Attempt| attempt.number);
        assert_eq!(number, sent.fetch_add(1, Ordering::Relaxed) + 1);
        for _ in 0..2 {
            if resends.try_count() {
                sent.fetch_add(1, Ordering::Relaxed);
            }
        }
        let response = Response::builder().status(status);
        std::future::ready(Ok::<_, BoxError>(
            response.body(Full::<Bytes>::default()).unwrap(),
        ))
    })
}

trait Pool:
    Service<
        Request<ReplayBody<Full<Bytes>>>,
        Response = Response<Full<Bytes>>,
        Error = BoxError,
        Future: Send,
    > + Clone
{
}

impl<S> Pool for S where
    S: Service<
            Request<ReplayBody<Full<Bytes>>>,
            Response = Response<Full<Bytes>>,
            Error = BoxError,
            Future: Send,
        > + Clone
{
}

/// Caddy made 10 and pingora 8 attempts for a limit of 3: the retries of their pools were not counted.
#[tokio::test]
async fn caddy_and_pingora_do_not_count_what_their_pool_sends_again() {
    for (max_retries, sends) in [(0, 1), (1, 2), (3, 4), (5, 6)] {
        let (layer, _) = layer(policy().max_retries(max_retries));
        let sent = Arc::new(AtomicU32::new(0));
        let service = layer.counts_resends().layer(pool(503, &sent));
        let result = service.oneshot(get()).await;
        let ended = (Some(503), sends, Some(StopReason::RetriesExhausted));
        assert_eq!(ending(&result), ended);
        assert_eq!(sent.load(Ordering::Relaxed), sends);
    }
    // The limit of one request is that of its own policy.
    let (layer, _) = layer(policy());
    let sent = Arc::new(AtomicU32::new(0));
    let mut once = get();
    once.extensions_mut().insert(Override::new().no_retry());
    let service = layer.counts_resends().layer(pool(503, &sent));
    assert_eq!(ending(&service.oneshot(once).await).1, 1);
    assert_eq!(sent.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn no_hedge_joins_when_the_service_has_used_up_the_retries() {
    let policy = policy()
        .max_retries(1)
        .attempt_timeout(Duration::from_secs(1));
    let policy = policy.hedge(HedgeConfig::after(Duration::from_millis(50)));
    let layer = RetryLayer::new(policy.build().unwrap()).counts_resends();
    let sent = Arc::new(AtomicU32::new(0));
    let service = tower::service_fn({
        let sent = sent.clone();
        move |request: Request<ReplayBody<Full<Bytes>>>| {
            sent.fetch_add(1, Ordering::Relaxed);
            let resends: &Resends = request.extensions().get().unwrap();
            assert!(resends.try_count());
            std::future::pending::<Result<Response<Full<Bytes>>, BoxError>>()
        }
    });
    let gave_up = layer.layer(service).oneshot(get()).await.unwrap_err();
    let ended = (gave_up.attempts(), gave_up.reason());
    assert_eq!(ended, (2, StopReason::RetriesExhausted));
    assert_eq!(sent.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn the_summary_of_a_success_counts_what_the_service_sent_again() {
    let (layer, _) = layer(policy());
    let sent = Arc::new(AtomicU32::new(0));
    let service = layer.counts_resends().layer(pool(200, &sent));
    let result = service.oneshot(get()).await;
    assert_eq!(ending(&result), (Some(200), 3, None));
    assert!(result.unwrap().extensions().get::<Summary>().is_some());
}

/// Takes the next upstream for each attempt, and records its arguments.
#[derive(Clone, Default)]
struct RoundRobin(Arc<Mutex<Recorded>>);

/// An upstream, and the failure of an attempt there.
type Outcome = (String, Option<Cause>);

#[derive(Default)]
struct Recorded {
    /// For each attempt: its number, and the previous outcome.
    chosen: Vec<(u32, Option<Outcome>)>,
    /// Each result.
    ended: Vec<Outcome>,
}

impl Upstreams for RoundRobin {
    fn choose(&self, choice: &mut UpstreamChoice<'_>) {
        let (attempt, previous) = (choice.attempt(), choice.previous());
        let seen = |previous: &PreviousAttempt| {
            let cause = previous.failure.map(|failure| failure.cause);
            (previous.uri.host().unwrap().to_owned(), cause)
        };
        let mut recorded = self.0.lock().unwrap();
        recorded.chosen.push((attempt, previous.map(seen)));
        let uri = format!("http://upstream-{attempt}{}", choice.uri().path());
        *choice.uri_mut() = uri.parse().unwrap();
    }

    fn ended(&self, uri: &Uri, failure: Option<&Failure>) {
        let host = uri.host().unwrap().to_owned();
        let cause = failure.map(|failure| failure.cause);
        self.0.lock().unwrap().ended.push((host, cause));
    }
}

fn hosts(mock: &Mock) -> Vec<String> {
    let host = |arrived: Arrived| arrived.uri.host().unwrap().to_owned();
    mock.arrived().into_iter().map(host).collect()
}

#[tokio::test]
async fn the_choice_of_an_upstream_knows_which_one_failed_and_why() {
    let upstreams = RoundRobin::default();
    let (layer, _) = layer(policy());
    let reset = MockAnswer::Fail(io::ErrorKind::ConnectionReset);
    let mock = Mock::new([status(503), reset, status(200)]);
    let service = layer.upstreams(upstreams.clone()).layer(mock.clone());
    assert_eq!(ending(&service.oneshot(get()).await), (Some(200), 3, None));
    assert_eq!(hosts(&mock), ["upstream-1", "upstream-2", "upstream-3"]);

    let recorded = upstreams.0.lock().unwrap();
    let busy = ("upstream-1".to_owned(), Some(Cause::Status(503)));
    let cut = (
        "upstream-2".to_owned(),
        Some(Cause::Network(Network::Reset)),
    );
    let chosen = [(1, None), (2, Some(busy.clone())), (3, Some(cut.clone()))];
    assert_eq!(recorded.chosen, chosen);
    assert_eq!(recorded.ended, [busy, cut, ("upstream-3".to_owned(), None)]);
}

#[tokio::test(start_paused = true)]
async fn a_hedge_knows_the_upstream_of_the_attempt_that_it_joins() {
    let upstreams = RoundRobin::default();
    let hedge = HedgeConfig::after(Duration::from_millis(50));
    let layer = RetryLayer::new(policy().hedge(hedge).build().unwrap());
    let mock = Mock::new([MockAnswer::Hang, status(200)]);
    let service = layer.upstreams(upstreams.clone()).layer(mock.clone());
    assert_eq!(ending(&service.oneshot(get()).await), (Some(200), 2, None));

    let recorded = upstreams.0.lock().unwrap();
    let running = ("upstream-1".to_owned(), None);
    assert_eq!(recorded.chosen, [(1, None), (2, Some(running))]);
    // The lost attempt has no result.
    assert_eq!(recorded.ended, [("upstream-2".to_owned(), None)]);
}

/// Upstreams with a destination each. Prefers the first one that lets the attempt start, and has not just failed.
struct Listed(Vec<(Uri, Arc<Destination>)>);

impl Listed {
    fn new(count: usize) -> Self {
        let upstream = |number| {
            let uri = format!("http://upstream-{number}/").parse().unwrap();
            (uri, Arc::new(Destination::new(Policy::STANDARD)))
        };
        Self((1..=count).map(upstream).collect())
    }

    fn destinations(&self) -> Vec<Arc<Destination>> {
        self.0
            .iter()
            .map(|(_, destination)| destination.clone())
            .collect()
    }
}

impl Upstreams for Listed {
    fn choose(&self, choice: &mut UpstreamChoice<'_>) {
        let failed = choice.previous().map(|previous| previous.uri.clone());
        let mut order: Vec<_> = self.0.iter().collect();
        order.sort_by_key(|(uri, _)| Some(uri) == failed.as_ref());
        let free = order
            .iter()
            .find(|(_, destination)| choice.try_start(destination));
        *choice.uri_mut() = free.unwrap_or(&order[0]).0.clone();
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_avoid_an_upstream_that_is_down_except_for_its_probes() {
    let listed = Listed::new(2);
    let destinations = listed.destinations();
    let is_up = Arc::new(AtomicBool::new(false));
    let sent = Arc::new(Mutex::new([0_u32; 2]));
    let service = tower::service_fn({
        let (is_up, sent) = (is_up.clone(), sent.clone());
        move |request: Request<ReplayBody<Full<Bytes>>>| {
            let is_first = request.uri().host() == Some("upstream-1");
            sent.lock().unwrap()[usize::from(!is_first)] += 1;
            let fails = is_first && !is_up.load(Ordering::Relaxed);
            let status = if fails { 503 } else { 200 };
            async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                let response = Response::builder().status(status);
                Ok::<_, BoxError>(response.body(Full::<Bytes>::default())?)
            }
        }
    });
    let layer = RetryLayer::new(Policy::STANDARD).upstreams(listed);
    let mut service = layer.layer(service);
    let mut call = async |calls: u32| {
        for _ in 0..calls {
            let response = service.ready().await.unwrap().call(get()).await.unwrap();
            assert_eq!(response.status(), 200);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        std::mem::take(&mut *sent.lock().unwrap())
    };
    call(200).await;
    assert!(destinations[0].is_down() && destinations[1].is_normal());
    let [first, second] = call(1000).await;
    assert!(first <= 110, "one probe in ten requests: {first}");
    assert!(second >= 1000 - 20, "{second}");

    is_up.store(true, Ordering::Relaxed);
    call(1000).await;
    assert_eq!(call(100).await, [100, 0], "it is back");
    assert!(destinations[0].is_normal());
}

/// Has one upstream, for retries.
struct ForRetries(Arc<Destination>);

impl Upstreams for ForRetries {
    fn choose(&self, choice: &mut UpstreamChoice<'_>) {
        let _ = choice.attempt() > 1 && choice.try_start(&self.0);
    }
}

/// As at the destination of the call: a deadline that leaves little time is no evidence.
#[tokio::test(start_paused = true)]
async fn an_upstream_without_enough_time_has_no_timeouts() {
    let second = Duration::from_secs(1);
    let plain = Policy::builder(Backoff::None)
        .max_retries(1)
        .deadline(second);
    // The retry gets the timeout of its policy rule.
    let by_rule = plain.clone().attempt_timeout(second * 7 / 10);
    let by_rule = by_rule.rule(Rule {
        attempt_timeout: Some(second),
        ..Rule::on([503.into()])
    });
    let [plain, by_rule] = [plain, by_rule].map(|policy| Arc::new(policy.build().unwrap()));
    for (policy, before, closes) in [
        (&plain, 10, true),
        (&plain, 490, true),
        (&plain, 510, false),
        (&plain, 990, false),
        (&by_rule, 490, true),
        (&by_rule, 510, false),
    ] {
        let upstream = Arc::new(Destination::new(Policy::STANDARD));
        let layer = RetryLayer::new(policy.clone()).upstreams(ForRetries(upstream.clone()));
        let first = MockAnswer::Late(Duration::from_millis(before), 503);
        let answers = [first, MockAnswer::Hang].into_iter().cycle().take(80);
        let service = layer.layer(Mock::new(answers));
        for _ in 0..40 {
            let ended = service.clone().oneshot(get()).await;
            assert_eq!(ending(&ended).1, 2, "{before} ms");
        }
        assert_eq!(upstream.is_down(), closes, "{before} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_leaves_no_attempt_at_its_upstream() {
    let listed = Listed::new(1);
    let upstream = listed.destinations().remove(0);
    let down = Failure::throttled();
    while !upstream.is_down() {
        if let Some(attempt) = upstream.try_start(TokioClock, false) {
            attempt.end(Some(&down));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mock = Mock::new([MockAnswer::Hang, MockAnswer::Hang]);
    let service = RetryLayer::new(Policy::STANDARD)
        .upstreams(listed)
        .layer(mock.clone());
    let call = service.oneshot(get());
    let dropped = tokio::time::timeout(Duration::from_secs(10), call).await;
    assert!(dropped.is_err());
    // The dropped call had the probe; the next attempt can be one.
    let mut wait = Duration::ZERO;
    while upstream.try_start(TokioClock, false).is_none() {
        assert!(wait < Duration::from_secs(10), "no probe after a drop");
        wait += Duration::from_millis(100);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
