//! Slow requests that are joined by a hedge, in tokio's paused time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use proptest::prelude::*;
use relent::clock::TokioClock;
use relent::destination::{Budget, Hedge};
use relent::driver::Driver;
use relent::policy::{BudgetConfig, HedgeConfig};
use relent::{Attempt, Destination, Failure, Hint, StopReason};
use relent_http::body::{ReplayBody, Superseded};
use relent_http::{BoxError, Override, RetryLayer};
use tower::{Layer, ServiceExt};

use super::mock::{Mock, MockAnswer, status};
use super::{SECOND, ending, get, policy, post, request};

const MILLI: Duration = Duration::from_millis(1);

fn hedge() -> HedgeConfig {
    HedgeConfig::after(MILLI * 50)
}

fn there() -> Arc<Destination> {
    let config = BudgetConfig {
        ratio: 0.0,
        initial_tokens: 3.0,
        per_second: 0.0,
        ..BudgetConfig::DEFAULT
    };
    let there = Destination::new(super::policy().build().unwrap());
    Arc::new(there.with_budget(Budget::new(&config).unwrap()))
}

fn hedged() -> RetryLayer {
    hedged_by(hedge())
}

fn hedged_by(hedge: HedgeConfig) -> RetryLayer {
    RetryLayer::new(policy().hedge(hedge).build().unwrap())
}

fn late(millis: u32, status: u16) -> MockAnswer {
    MockAnswer::Late(MILLI * millis, status)
}

#[tokio::test(start_paused = true)]
async fn the_layer_hedges_a_slow_request_and_drops_the_loser() {
    let (mock, there) = (Mock::new([MockAnswer::Hang, late(5, 200)]), there());
    let layer = hedged().destination(there.clone());
    let begin = tokio::time::Instant::now();
    let result = layer.layer(mock.clone()).oneshot(get()).await;
    assert_eq!(ending(&result), (Some(200), 2, None));
    assert_eq!(begin.elapsed(), MILLI * 55);
    assert_eq!((mock.calls(), mock.running()), (2, 0));
    let arrived = mock.arrived();
    let attempt = arrived[1].extensions.get::<Attempt>();
    assert_eq!(attempt.map(|attempt| attempt.number), Some(2));
    assert_eq!(there.budget().unwrap().balance(), 2.0);
}

#[tokio::test(start_paused = true)]
async fn the_hedge_delay_of_a_held_attempt_counts_from_its_start() {
    let (mock, there) = (Mock::new([MockAnswer::Hang, late(5, 200)]), there());
    let policy = policy().build().unwrap();
    let mut other = Driver::builder(&policy, TokioClock)
        .destination(&there)
        .start();
    let permit = other.enter(None).permit().unwrap();
    other.on_attempt(permit);
    other.on_failure(&Failure::throttled().hint(Hint::after(SECOND)));
    let layer = hedged().destination(there.clone());
    let begin = tokio::time::Instant::now();
    let result = layer.layer(mock.clone()).oneshot(get()).await;
    assert_eq!(ending(&result), (Some(200), 2, None));
    assert!(begin.elapsed() >= SECOND + MILLI * 55);
    let arrived = mock.arrived();
    let numbers = arrived.iter().map(|arrived| {
        let attempt = arrived.extensions.get::<Attempt>();
        attempt.map(|attempt| attempt.number)
    });
    assert_eq!(numbers.collect::<Vec<_>>(), [Some(1), Some(2)]);
}

#[tokio::test(start_paused = true)]
async fn the_layer_does_not_hedge_a_fast_request() {
    let (mock, there) = (Mock::new([late(49, 200)]), there());
    let layer = hedged().destination(there.clone());
    let response = layer.layer(mock.clone()).oneshot(get()).await.unwrap();
    assert!(response.extensions().is_empty());
    assert_eq!((mock.calls(), there.budget().unwrap().balance()), (1, 3.0));
}

#[tokio::test(start_paused = true)]
async fn the_layer_hedges_a_post_only_with_a_key_or_an_override() {
    for (keyed, overrides, calls) in [
        (false, None, 1),
        (true, None, 2),
        (false, Some(Override::new().repeatable(true)), 2),
        (true, Some(Override::new().repeatable(false)), 1),
        (true, Some(Override::new().no_hedge()), 1),
        (true, Some(Override::new().no_retry()), 1),
    ] {
        let mut post = match keyed {
            true => request(Method::POST, &[("idempotency-key", "k")]),
            false => post(),
        };
        if let Some(overrides) = &overrides {
            post.extensions_mut().insert(overrides.clone());
        }
        let mock = Mock::new([late(80, 200)]);
        hedged().layer(mock.clone()).oneshot(post).await.unwrap();
        assert_eq!(mock.calls(), calls, "{keyed} {overrides:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_override_beats_assume_repeatable_in_the_layer() {
    let assuming = || policy().assume_repeatable(true);
    for (overrides, calls) in [(Override::new(), 2), (Override::new().repeatable(false), 1)] {
        for mut request in [get(), post()] {
            let mock = Mock::new([late(80, 200)]);
            let layer = RetryLayer::new(assuming().hedge(hedge()).build().unwrap());
            request.extensions_mut().insert(overrides.clone());
            layer.layer(mock.clone()).oneshot(request).await.unwrap();
            assert_eq!(mock.calls(), calls, "{overrides:?}");
        }
        for mut request in [get(), post()] {
            let mock = Mock::new([status(500), status(200)]);
            let layer = RetryLayer::new(assuming().build().unwrap());
            request.extensions_mut().insert(overrides.clone());
            layer.layer(mock.clone()).oneshot(request).await.unwrap();
            assert_eq!(mock.calls(), calls, "{overrides:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_request_can_have_its_own_hedge_config() {
    let mut get = get();
    let sooner = Hedge::new(&HedgeConfig::after(MILLI * 10)).unwrap();
    get.extensions_mut().insert(Override::new().hedge(sooner));
    let mock = Mock::new([MockAnswer::Hang, late(5, 200)]);
    let begin = tokio::time::Instant::now();
    let layer = RetryLayer::new(policy().build().unwrap());
    layer.layer(mock).oneshot(get).await.unwrap();
    assert_eq!(begin.elapsed(), MILLI * 15);
}

#[tokio::test(start_paused = true)]
async fn percentiles_of_different_hosts_do_not_mix() {
    let percentile = HedgeConfig::percentile(0.5);
    let layer = hedged_by(percentile);
    let get = |host: &str| Request::get(host).body(Full::<Bytes>::default()).unwrap();
    let asked = |host, answer| {
        let mock = Mock::new([answer]);
        let call = layer.layer(mock.clone()).oneshot(get(host));
        async move {
            call.await.unwrap();
            mock.calls()
        }
    };
    for _ in 0..40 {
        assert_eq!(asked("http://quick/", late(10, 200)).await, 1);
        assert_eq!(asked("http://slow/", late(400, 200)).await, 1);
    }
    assert_eq!(asked("http://quick/", late(300, 200)).await, 2);
    assert_eq!(asked("http://slow/", late(300, 200)).await, 1);
    assert_eq!(
        asked("http://new/", late(300, 200)).await,
        1,
        "nothing is known"
    );
}

#[tokio::test(start_paused = true)]
async fn one_request_can_be_hedged_by_its_own_policy() {
    let mut get = get();
    let own = policy()
        .hedge(HedgeConfig::after(MILLI * 10))
        .build()
        .unwrap();
    get.extensions_mut().insert(Override::new().policy(own));
    let mock = Mock::new([MockAnswer::Hang, late(5, 200)]);
    let begin = tokio::time::Instant::now();
    let layer = RetryLayer::new(policy().build().unwrap());
    layer.layer(mock).oneshot(get).await.unwrap();
    assert_eq!(begin.elapsed(), MILLI * 15);
}

fn streamed(pieces: usize) -> Request<impl http_body::Body<Data = Bytes, Error = std::io::Error>> {
    let piece = || Ok(Frame::data(Bytes::from_static(b"0123456789")));
    let body = StreamBody::new(stream::iter((0..pieces).map(move |_| piece())));
    Request::put("http://service/").body(body).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_fully_sent_stream_can_be_hedged() {
    let mock = Mock::new([late(500, 200), late(300, 200)]);
    let result = hedged()
        .layer(mock.clone())
        .oneshot(boxed(streamed(3)))
        .await;
    assert_eq!(ending(&result), (Some(200), 2, None));
    for arrived in mock.arrived() {
        assert_eq!(arrived.body, "0123456789".repeat(3));
    }
}

fn boxed<B>(
    request: Request<B>,
) -> Request<http_body_util::combinators::UnsyncBoxBody<Bytes, B::Error>>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
{
    request.map(http_body_util::BodyExt::boxed_unsync)
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_not_kept_is_not_hedged() {
    let (mock, there) = (Mock::new([late(500, 200)]), there());
    let layer = hedged().body_cap(20).destination(there.clone());
    let result = layer.layer(mock.clone()).oneshot(boxed(streamed(3))).await;
    assert_eq!(ending(&result), (Some(200), 1, None));
    assert_eq!(mock.arrived()[0].body, "0123456789".repeat(3));
    assert_eq!(
        there.budget().unwrap().balance(),
        3.0,
        "what was granted came back"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stream_retried_after_a_race_is_complete() {
    let mock = Mock::new([late(80, 503), late(80, 503), late(80, 503), late(10, 200)]);
    let layer = hedged().destination(there());
    let result = layer.layer(mock.clone()).oneshot(boxed(streamed(2))).await;
    // A race of two, and another race after the delay.
    assert_eq!(ending(&result), (Some(200), 4, None));
    assert!(mock.arrived().len() >= 3);
    for arrived in mock.arrived() {
        assert_eq!(arrived.body, "0123456789".repeat(2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_hedge_of_an_unready_service_is_refunded() {
    let mock = Mock::new([late(500, 200)]).never_ready_again();
    let there = there();
    let layer = hedged().destination(there.clone());
    let result = layer.layer(mock.clone()).oneshot(get()).await;
    assert_eq!(ending(&result), (Some(200), 1, None));
    assert_eq!((mock.calls(), there.budget().unwrap().balance()), (1, 3.0));
}

#[tokio::test(start_paused = true)]
async fn dropping_a_call_in_a_race_drops_all_its_attempts() {
    let (mock, there) = (Mock::new([MockAnswer::Hang]), there());
    let layer = hedged().destination(there.clone());
    let call = layer.layer(mock.clone()).oneshot(get());
    assert!(tokio::time::timeout(MILLI * 70, call).await.is_err());
    assert_eq!((mock.calls(), mock.running()), (2, 0));
    assert_eq!(there.budget().unwrap().balance(), 2.0);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_call_refunds_its_waiting_hedge() {
    let mock = Mock::new([MockAnswer::Hang]).never_ready_again();
    let there = there();
    let layer = hedged().destination(there.clone());
    let call = layer.layer(mock.clone()).oneshot(get());
    assert!(tokio::time::timeout(MILLI * 70, call).await.is_err());
    assert_eq!((mock.calls(), mock.running()), (1, 0));
    assert_eq!(there.budget().unwrap().balance(), 3.0);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_hedge_does_not_end_the_first_attempt() {
    let mock = Mock::new([late(500, 200), status(429)]);
    let layer = hedged_by(hedge().max_hedges(3));
    let result = layer.layer(mock.clone()).oneshot(get()).await;
    assert_eq!(ending(&result), (Some(200), 2, None));
}

#[tokio::test(start_paused = true)]
async fn a_404_to_a_hedged_delete_of_the_layer_waits() {
    for gone in [404, 410] {
        let mock = Mock::new([late(90, 204), late(10, gone)]);
        let delete = request(Method::DELETE, &[]);
        let result = hedged().layer(mock).oneshot(delete).await;
        assert_eq!(ending(&result), (Some(204), 2, None));
    }
    // For a read, 404 is the result.
    let mock = Mock::new([late(90, 200), late(10, 404)]);
    let result = hedged().layer(mock).oneshot(get()).await;
    assert_eq!(ending(&result).0, Some(404));
    // If the other attempt fails with an unknown outcome, so does the call.
    let lost = MockAnswer::Late(MILLI * 90, 502);
    let mock = Mock::new([lost, late(10, 404)]);
    let delete = request(Method::DELETE, &[]);
    let result = hedged().layer(mock).oneshot(delete).await;
    assert_eq!(
        ending(&result),
        (Some(404), 2, Some(StopReason::OutcomeUnknown))
    );
}

#[tokio::test(start_paused = true)]
async fn a_412_to_a_hedged_write_waits_for_the_other_attempt() {
    let mock = Mock::new([late(90, 200), late(10, 412)]);
    let put = request(Method::PUT, &[("if-match", "\"v1\"")]);
    let result = hedged().layer(mock).oneshot(put).await;
    assert_eq!(ending(&result), (Some(200), 2, None));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// A request that is not repeatable is sent once, whatever the responses and their timing. A repeatable
    /// one is never sent more often than the policy and the budget allow.
    #[test]
    fn a_request_that_is_not_repeatable_is_never_hedged(
        answers in proptest::collection::vec((0..200_u32, prop_oneof![
            Just(200_u16), Just(404), Just(412), Just(500), Just(502), Just(503), Just(504),
        ]), 6),
        delay in 0..150_u32,
        hedges in 1..=4_u32,
        repeatable in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let config = HedgeConfig::after(MILLI * delay).max_hedges(hedges);
        let there = there();
        let layer = hedged_by(config).destination(there.clone());
        let mock = Mock::new(answers.iter().map(|(after, status)| late(*after, *status)));
        let request = if repeatable { get() } else { post() };
        let result = runtime.block_on(layer.layer(mock.clone()).oneshot(request));
        prop_assert!(result.is_ok());
        prop_assert_eq!(mock.running(), 0);
        prop_assert!(mock.most_at_once() <= 1 + hedges as usize);
        let calls = mock.calls();
        if repeatable {
            prop_assert!(calls <= 4);
            prop_assert_eq!(there.budget().unwrap().balance(), 3.0 - (calls - 1) as f64);
        } else {
            prop_assert_eq!(calls, 1);
        }
    }
}

/// As the body of any last attempt. The server responds early, and then stops reading.
#[tokio::test(start_paused = true)]
async fn the_body_of_a_hedge_that_won_fails_when_its_server_stops_reading() {
    let calls = Arc::new(AtomicUsize::new(0));
    let (ended, until_ended) = tokio::sync::oneshot::channel();
    let ended = Arc::new(Mutex::new(Some(ended)));
    let service = tower::service_fn(move |request: Request<ReplayBody<Full<Bytes>>>| {
        let is_hedge = calls.fetch_add(1, Ordering::Relaxed) == 1;
        let ended = ended.lock().unwrap().take_if(|_| is_hedge);
        let mut body = request.into_body();
        async move {
            let Some(ended) = ended else {
                return std::future::pending().await;
            };
            tokio::spawn(async move {
                drop(body.frame().await);
                let unwritten = body.frame().await;
                let next = body.frame().await;
                drop(unwritten);
                let _ = ended.send(next.unwrap().map(drop));
            });
            Ok::<_, BoxError>(Response::new(Full::<Bytes>::default()))
        }
    });
    let content = Full::from(vec![1; 1 << 20]);
    let put = Request::put("http://service/").body(content).unwrap();
    let result = hedged().layer(service).oneshot(put).await;
    assert_eq!(ending(&result), (Some(200), 2, None));
    drop(result);
    let next = until_ended.await.unwrap();
    assert!(next.unwrap_err().is::<Superseded>());
}
