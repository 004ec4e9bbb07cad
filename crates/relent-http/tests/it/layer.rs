//! The tower layer over a scripted service, in virtual time. A test that reproduces a bug of another
//! library is named after that library.

mod bodies;
mod hedge;
mod held;
mod mock;
mod one_request;
mod readiness;
mod reload;
mod time;
mod transport;

use std::io;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, Uri};
use http_body_util::{Empty, Full};
use mock::{Mock, MockAnswer, Reply, status};
use relent::destination::Budget;
use relent::policy::{BudgetConfig, Pattern, PolicyBuilder};
use relent::random::SessionRandom;
use relent::{Backoff, Destination, GaveUp, Jitter, Policy, StopReason, Summary, VirtualClock};
use relent_http::layer::{FreshConnection, ResponseBody};
use relent_http::{Override, RetryLayer, ServiceError};
use tower::{Layer, Service, ServiceExt};

use crate::held_by::SECOND;

/// Three retries, with a delay of one second before each.
fn policy() -> PolicyBuilder {
    Policy::builder(Backoff::constant(SECOND))
        .jitter(Jitter::None)
        .max_retries(3)
}

fn layer(policy: PolicyBuilder) -> (RetryLayer<VirtualClock>, VirtualClock) {
    let clock = VirtualClock::new();
    let layer = RetryLayer::new(policy.build().unwrap()).clock(clock.clone());
    (layer, clock)
}

fn request(method: Method, fields: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri("http://service/path");
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(Full::default()).unwrap()
}

fn get() -> Request<Full<Bytes>> {
    request(Method::GET, &[])
}

fn post() -> Request<Full<Bytes>> {
    request(Method::POST, &[])
}

fn summary(response: &Response<ResponseBody<Reply>>) -> &Summary {
    response.extensions().get().expect("it has a summary")
}

/// The result of a call: the status, the number of attempts and the stop reason.
fn ending<R>(
    result: &Result<Response<R>, GaveUp<ServiceError>>,
) -> (Option<u16>, u32, Option<StopReason>) {
    match result {
        Ok(response) => {
            let summary: Option<&Summary> = response.extensions().get();
            (
                Some(response.status().as_u16()),
                summary.map_or(1, |summary| summary.attempts),
                summary.and_then(|summary| summary.reason),
            )
        }
        Err(gave_up) => (None, gave_up.attempts(), Some(gave_up.reason())),
    }
}

#[tokio::test]
async fn a_success_at_the_first_attempt_is_returned_unchanged() {
    let (layer, clock) = layer(policy());
    let mock = Mock::new([status(200)]);
    let response = layer.layer(mock.clone()).oneshot(get()).await.unwrap();
    assert!(response.extensions().is_empty());
    assert_eq!((mock.calls(), clock.sleeps().len()), (1, 0));
}

#[tokio::test]
async fn a_failure_is_retried_after_the_delay_of_the_policy() {
    let (layer, clock) = layer(policy());
    let answers = [
        status(503),
        MockAnswer::Fail(io::ErrorKind::ConnectionReset),
        status(200),
    ];
    let mock = Mock::new(answers);
    let response = layer.layer(mock.clone()).oneshot(get()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(summary(&response).attempts, 3);
    assert_eq!(summary(&response).reason, None);
    assert_eq!(clock.sleeps(), [SECOND, SECOND]);
}

#[tokio::test]
async fn the_last_response_is_returned_unchanged_with_the_reason() {
    let (layer, _) = layer(policy());
    let mock = Mock::new([status(503)]);
    let result = layer.layer(mock.clone()).oneshot(get()).await;
    assert_eq!(
        ending(&result),
        (Some(503), 4, Some(StopReason::RetriesExhausted))
    );
    assert_eq!(mock.calls(), 4);
}

#[tokio::test]
async fn the_last_error_is_returned_with_the_reason() {
    let (layer, _) = layer(policy());
    let mock = Mock::new([MockAnswer::Fail(io::ErrorKind::ConnectionReset)]);
    let gave_up = layer.layer(mock).oneshot(get()).await.unwrap_err();
    assert_eq!(gave_up.attempts(), 4);
    let Some(ServiceError::Service(error)) = gave_up.error() else {
        panic!("{gave_up}")
    };
    let error: &io::Error = error.downcast_ref().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn method_key_and_precondition_decide_repeatability() {
    let key = ("idempotency-key", "\"k\"");
    for (method, fields, calls) in [
        (Method::GET, vec![], 4),
        (Method::PUT, vec![], 4),
        (Method::POST, vec![key], 4),
        (Method::PATCH, vec![("if-match", "\"v1\"")], 4),
        (Method::POST, vec![], 1),
        (Method::PATCH, vec![], 1),
    ] {
        for answer in [
            status(500),
            MockAnswer::Fail(io::ErrorKind::ConnectionReset),
        ] {
            let (layer, _) = layer(policy());
            let mock = Mock::new([answer]);
            let result = layer
                .layer(mock.clone())
                .oneshot(request(method.clone(), &fields))
                .await;
            assert_eq!(mock.calls(), calls, "{method} {fields:?}");
            let reason = if calls == 1 {
                StopReason::NotRepeatable
            } else {
                StopReason::RetriesExhausted
            };
            assert_eq!(ending(&result).2, Some(reason), "{method} {fields:?}");
        }
    }
}

#[tokio::test]
async fn reqwest_retry_repeats_a_post_and_ignores_retry_after() {
    // Ambiguous: the request may have taken effect.
    let (over, _) = layer(policy());
    let mock = Mock::new([status(503), status(200)]);
    let result = over.layer(mock).oneshot(post()).await;
    assert_eq!(
        ending(&result),
        (Some(503), 1, Some(StopReason::NotRepeatable))
    );

    // Rejected with a delay: the layer waits for it.
    let (over, clock) = layer(policy());
    let later = MockAnswer::Status(503, &[("retry-after", "2")], Reply::default());
    let result = over
        .layer(Mock::new([later, status(200)]))
        .oneshot(post())
        .await;
    assert_eq!(ending(&result), (Some(200), 2, None));
    assert!(clock.elapsed() >= 2 * SECOND);
}

#[tokio::test]
async fn a_connection_that_was_refused_is_retried_for_any_request() {
    let (layer, _) = layer(policy());
    let refused = MockAnswer::Fail(io::ErrorKind::ConnectionRefused);
    let result = layer
        .layer(Mock::new([refused, status(200)]))
        .oneshot(post())
        .await;
    assert_eq!(ending(&result), (Some(200), 2, None));
}

#[tokio::test]
async fn a_request_overrides_the_settings_of_the_layer() {
    let with = |overrides: Override| {
        let mut request = post();
        request.extensions_mut().insert(overrides);
        request
    };
    let one = policy().max_retries(1).build().unwrap();
    for (overrides, calls) in [
        (Override::new().repeatable(true), 4),
        (Override::new().repeatable(true).policy(one), 2),
        (Override::new().repeatable(true).no_retry(), 1),
    ] {
        let (layer, _) = layer(policy());
        let mock = Mock::new([status(500)]);
        let request = with(overrides.clone());
        let result = layer.layer(mock.clone()).oneshot(request).await;
        assert_eq!(mock.calls(), calls, "{overrides:?}");
        assert_eq!(ending(&result).2, Some(StopReason::RetriesExhausted));
        for arrived in mock.arrived() {
            assert!(arrived.extensions.get::<Override>().is_none());
        }
    }
    // Conversely: a request that must not run twice although its method is idempotent.
    let (layer, _) = layer(policy());
    let mut request = get();
    request
        .extensions_mut()
        .insert(Override::new().repeatable(false));
    let result = layer.layer(Mock::new([status(500)])).oneshot(request).await;
    assert_eq!(ending(&result).2, Some(StopReason::NotRepeatable));
}

#[tokio::test]
async fn assume_repeatable_makes_every_request_repeatable() {
    let (layer, _) = layer(policy().assume_repeatable(true));
    let result = layer
        .layer(Mock::new([status(500), status(200)]))
        .oneshot(post())
        .await;
    assert_eq!(ending(&result), (Some(200), 2, None));
}

#[tokio::test]
async fn an_attempt_may_be_rerouted() {
    let (layer, _) = layer(policy());
    let layer = layer.reroute(|attempt, uri| {
        if attempt == 2 {
            *uri = Uri::from_static("http://fallback/path");
        }
    });
    let mock = Mock::new([status(503), status(503), status(200)]);
    layer.layer(mock.clone()).oneshot(get()).await.unwrap();
    let hosts: Vec<_> = mock
        .arrived()
        .into_iter()
        .map(|arrived| arrived.uri.host().map(str::to_owned))
        .collect();
    // Each attempt starts from the address of the request.
    assert_eq!(
        hosts,
        ["service", "fallback", "service"].map(|host| Some(host.to_owned()))
    );
}

#[tokio::test]
async fn a_421_is_retried_once_and_requests_a_new_connection() {
    let (over, _) = layer(policy());
    let mock = Mock::new([status(421)]);
    let result = over.layer(mock.clone()).oneshot(post()).await;
    assert_eq!(
        ending(&result),
        (Some(421), 2, Some(StopReason::RetriesExhausted))
    );
    let fresh: Vec<bool> = mock
        .arrived()
        .iter()
        .map(|arrived| arrived.extensions.get::<FreshConnection>().is_some())
        .collect();
    assert_eq!(fresh, [false, true]);

    // A new connection is requested only once.
    let (over, _) = layer(policy());
    let mock = Mock::new([status(421), status(429), status(200)]);
    over.layer(mock.clone()).oneshot(post()).await.unwrap();
    assert!(
        mock.arrived()[2]
            .extensions
            .get::<FreshConnection>()
            .is_none()
    );
}

#[tokio::test]
async fn a_425_is_retried_once_by_the_layer() {
    let (layer, _) = layer(policy());
    let result = layer.layer(Mock::new([status(425)])).oneshot(post()).await;
    assert_eq!(
        ending(&result),
        (Some(425), 2, Some(StopReason::RetriesExhausted))
    );
}

#[tokio::test]
async fn reqwest_middleware_leaks_extensions_from_one_attempt_to_the_next() {
    #[derive(Clone)]
    struct Mark;
    let (layer, _) = layer(policy());
    let mock = Mock::new([status(503), status(200)]);
    // The service marks each attempt; none arrives with the mark of another.
    let marking = tower::service_fn({
        let mock = mock.clone();
        move |mut request: Request<relent_http::body::ReplayBody<Full<Bytes>>>| {
            assert!(request.extensions().get::<Mark>().is_none());
            request.extensions_mut().insert(Mark);
            mock.clone().oneshot(request)
        }
    });
    layer.layer(marking).oneshot(get()).await.unwrap();
    assert_eq!(mock.calls(), 2);
}

#[tokio::test]
async fn request_extensions_reach_every_attempt() {
    #[derive(Clone)]
    struct Mark;
    let (layer, _) = layer(policy());
    let mock = Mock::new([status(503), status(200)]);
    let mut request = get();
    request.extensions_mut().insert(Mark);
    layer.layer(mock.clone()).oneshot(request).await.unwrap();
    let arrived = mock.arrived();
    assert_eq!(arrived.len(), 2);
    assert!(
        arrived
            .iter()
            .all(|arrived| arrived.extensions.get::<Mark>().is_some())
    );
}

#[tokio::test]
async fn tower_retry_assumes_that_its_clone_is_ready() {
    // The mock panics if it is called without having been polled ready.
    let (layer, _) = layer(policy());
    let mut service = layer.layer(Mock::new([status(503), status(503), status(200)]));
    let ready = ServiceExt::<Request<Full<Bytes>>>::ready(&mut service)
        .await
        .unwrap();
    let response = ready.call(get()).await.unwrap();
    assert_eq!(summary(&response).attempts, 3);
}

#[tokio::test]
async fn an_outer_layer_does_not_retry_calls_given_up_by_an_inner_one() {
    for answer in [
        status(503),
        MockAnswer::Fail(io::ErrorKind::ConnectionReset),
    ] {
        let (inner, _) = layer(policy());
        let (outer, _) = layer(policy());
        let mock = Mock::new([answer]);
        let result = outer.layer(inner.layer(mock.clone())).oneshot(get()).await;
        assert_eq!(mock.calls(), 4);
        // As if the inner layer had marked the response for another process.
        assert_eq!(ending(&result).2, Some(StopReason::DoNotRetry));
    }
}

#[tokio::test]
async fn an_outer_layer_retries_a_body_that_an_inner_one_cannot_replay() {
    let (inner, _) = layer(policy());
    let (outer, _) = layer(policy());
    let mock = Mock::new([status(503), status(200)]);
    // The inner layer sees the body as a stream that is longer than its cap.
    let put = Request::put("http://service/path").body(Full::<Bytes>::from("content"));
    let service = outer.layer(inner.body_cap(1).layer(mock.clone()));
    let result = service.oneshot(put.unwrap()).await;
    assert_eq!(ending(&result), (Some(200), 2, None));
    assert_eq!(mock.arrived()[1].body, "content");
}

fn small_budget() -> Arc<Destination> {
    let config = BudgetConfig {
        ratio: 0.0,
        per_second: 0.0,
        initial_tokens: 2.0,
        ..BudgetConfig::DEFAULT
    };
    let there = Destination::new(policy().build().unwrap());
    Arc::new(there.with_budget(Budget::new(&config).unwrap()))
}

#[tokio::test]
async fn clones_and_services_of_a_layer_share_its_budget() {
    let (layer, _) = layer(policy());
    let layer = layer.destination(small_budget());
    let (one, other) = (layer.clone(), layer);
    let mock = Mock::new([status(503)]);
    let result = one.layer(mock.clone()).oneshot(get()).await;
    assert_eq!(ending(&result), (Some(503), 3, Some(StopReason::Budget)));
    let result = other.layer(mock.clone()).oneshot(get()).await;
    assert_eq!(ending(&result), (Some(503), 1, Some(StopReason::Budget)));
}

#[tokio::test(start_paused = true)]
async fn tower_budget_is_not_refunded_when_a_call_is_dropped() {
    let there = small_budget();
    let budget = there.budget().unwrap();
    let layer = RetryLayer::new(policy().build().unwrap()).destination(there.clone());
    let mock = Mock::new([status(503)]);
    let waiting = layer.layer(mock.clone()).oneshot(get());
    assert!(tokio::time::timeout(SECOND / 2, waiting).await.is_err());
    assert_eq!((mock.calls(), mock.running()), (1, 0));
    assert_eq!(budget.balance(), 2.0);

    // The same if the service was not ready for the retry. A retry that has started is charged.
    let service = layer.layer(Mock::new([status(503)]).never_ready_again());
    assert!(
        tokio::time::timeout(5 * SECOND, service.oneshot(get()))
            .await
            .is_err()
    );
    assert_eq!(budget.balance(), 2.0);
    let service = layer.layer(Mock::new([status(503), MockAnswer::Hang]));
    assert!(
        tokio::time::timeout(5 * SECOND, service.oneshot(get()))
            .await
            .is_err()
    );
    assert_eq!(budget.balance(), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_down_queues_only_its_own_first_attempts() {
    let policy = Policy::STANDARD
        .clone()
        .into_builder()
        .deadline(20 * SECOND);
    let layer = RetryLayer::new(policy.build().unwrap());
    let to = |host: &str| {
        let address = format!("http://{host}/");
        Request::get(address)
            .body(Full::<Bytes>::default())
            .unwrap()
    };
    let down = Mock::new([status(503)]);
    let service = layer.layer(down.clone());
    let calls = (0..20).map(|_| service.clone().oneshot(to("down.example")));
    let all = futures_util::future::join_all(calls).await;
    assert!(all.iter().all(|result| ending(result).2.is_some()));
    // Without a circuit breaker each call would have made eight attempts.
    assert!(down.calls() <= 60, "{}", down.calls());

    let up = Mock::new([status(200)]);
    let service = layer.layer(up.clone());
    let began = tokio::time::Instant::now();
    let parked = service.clone().oneshot(to("down.example"));
    let other = service.oneshot(to("up.example")).await;
    assert_eq!(ending(&other).0, Some(200));
    assert_eq!((up.calls(), began.elapsed()), (1, Duration::ZERO));
    assert_eq!(ending(&parked.await).0, Some(200));
    assert!(began.elapsed() < 20 * SECOND);
}

#[tokio::test]
async fn a_queued_request_is_sent_once_before_its_deadline() {
    let policy = Policy::STANDARD.clone().into_builder().deadline(SECOND / 4);
    let (layer, _) = layer(policy);
    let down = Mock::new([status(503)]);
    let service = layer.layer(down.clone());
    for _ in 0..40 {
        let before = down.calls();
        if let Err(gave_up) = service.clone().oneshot(get()).await {
            let made = down.calls() - before;
            assert_eq!(u32::try_from(made).unwrap(), gave_up.attempts());
            assert!(made > 0, "no retries would have sent it too");
        }
    }
    assert!(down.calls() < 60, "{}", down.calls());
}

#[tokio::test]
async fn a_trace_explains_every_attempt() {
    let (layer, _) = layer(policy());
    let layer = layer.traced();
    let mock = Mock::new([status(503), status(200)]);
    let response = layer.layer(mock).oneshot(get()).await.unwrap();
    let trace = summary(&response).trace.as_ref().unwrap();
    let seen: Vec<String> = trace
        .entries()
        .map(|entry| entry.seen.unwrap().to_string())
        .collect();
    assert_eq!(seen, ["status 503", "status 200"]);
}

#[tokio::test]
async fn a_stop_on_match_is_not_reported_as_not_replayable() {
    let (layer, _) = layer(policy().stop_on(["503".parse::<Pattern>().unwrap()]));
    let mock = Mock::new([MockAnswer::Early(503)]);
    let request = Request::put("http://service/")
        .body(bodies::streamed("ab"))
        .unwrap();
    let result = layer.layer(mock).oneshot(request).await;
    assert_ne!(ending(&result).2, Some(StopReason::NotReplayable));
}

#[tokio::test]
async fn randomness_can_be_injected() {
    let waits = |seed| async move {
        let (layer, clock) = layer(policy().jitter(Jitter::Full));
        let layer = layer.random(move || SessionRandom::with_seed(seed));
        let _ = layer.layer(Mock::new([status(503)])).oneshot(get()).await;
        clock.sleeps()
    };
    assert_eq!(waits(7).await, waits(7).await);
    assert_ne!(waits(7).await, waits(8).await);
}

#[tokio::test]
async fn a_completed_future_that_is_polled_again_calls_nothing() {
    let (layer, _) = layer(policy());
    let mock = Mock::new([status(200)]);
    let mut service = layer.layer(mock.clone());
    let request = Request::get("http://service/")
        .body(Empty::<Bytes>::new())
        .unwrap();
    let ready = ServiceExt::<Request<Empty<Bytes>>>::ready(&mut service)
        .await
        .unwrap();
    let mut call = Box::pin(ready.call(request));
    call.as_mut().await.unwrap();
    let mut context = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending());
    assert_eq!(mock.calls(), 1);
}
