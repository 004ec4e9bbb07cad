//! No wait holds readiness. Over a concurrency limit, a call that is held, waits or has completed blocks
//! no other call. In tokio's paused time.

use std::io;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::Full;
use relent::clock::TokioClock;
use relent::destination::Budget;
use relent::driver::Driver;
use relent::policy::{BudgetConfig, HedgeConfig, PolicyBuilder, RateLimitConfig};
use relent::{Backoff, Destination, Failure, GaveUp, Hint, Policy, StopReason};
use relent_http::body::ReplayBody;
use relent_http::layer::{ReadinessError, ResponseBody};
use relent_http::{BoxError, RetryLayer, ServiceError};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tower::buffer::Buffer;
use tower::limit::ConcurrencyLimit;
use tower::{Layer, Service, ServiceExt};

use super::mock::{Mock, MockAnswer, Reply, status};
use super::{SECOND, ending, get, policy};

use crate::held_by::{ALL, HeldBy};

const MILLI: Duration = Duration::from_millis(1);

type Outcome = Result<Response<ResponseBody<Reply>>, GaveUp<ServiceError>>;

/// A service with a limit of concurrent calls, and the semaphore of its permits.
fn limited(mock: &Mock, permits: usize) -> (ConcurrencyLimit<Mock>, Arc<Semaphore>) {
    let semaphore = Arc::new(Semaphore::new(permits));
    let service = ConcurrencyLimit::with_semaphore(mock.clone(), semaphore.clone());
    (service, semaphore)
}

/// Polls this service ready, calls it, and keeps it while the call runs.
async fn call<S>(mut service: S) -> S::Response
where
    S: Service<Request<Full<Bytes>>>,
    S::Error: std::fmt::Debug,
{
    started_call(&mut service).await.await.unwrap()
}

/// Starts a call of this service, after polling it ready.
async fn started_call<S>(service: &mut S) -> S::Future
where
    S: Service<Request<Full<Bytes>>>,
    S::Error: std::fmt::Debug,
{
    service.ready().await.unwrap().call(get())
}

fn late(millis: u32, status: u16) -> MockAnswer {
    MockAnswer::Late(MILLI * millis, status)
}

/// A policy that holds attempts for some seconds.
fn holding_policy(by: HeldBy) -> Policy {
    let policy = Policy::STANDARD
        .clone()
        .into_builder()
        .deadline(90 * SECOND);
    let policy = match by {
        HeldBy::Rate => policy.rate_limit(RateLimitConfig {
            burst: Some(1),
            ..RateLimitConfig::new(2.0)
        }),
        HeldBy::CircuitBreaker | HeldBy::Cooldown => policy,
    };
    policy.build().unwrap()
}

/// A destination that holds first attempts.
async fn holding_destination(by: HeldBy) -> Arc<Destination> {
    let there = match by {
        HeldBy::CircuitBreaker => by.destination().await,
        HeldBy::Cooldown | HeldBy::Rate => Destination::new(holding_policy(by)),
    };
    if by == HeldBy::Cooldown {
        let policy = holding_policy(by);
        let mut other = Driver::builder(&policy, TokioClock)
            .destination(&there)
            .start();
        let permit = other.enter(None).permit().unwrap();
        other.on_attempt(permit);
        other.on_failure(&Failure::throttled().hint(Hint::after(5 * SECOND)));
    }
    Arc::new(there)
}

#[tokio::test(start_paused = true)]
async fn a_held_first_attempt_does_not_block_a_concurrency_limit() {
    for by in ALL {
        for permits in [1, 2] {
            let there = holding_destination(by).await;
            let mock = Mock::new([late(10, 200)]);
            let (inner, semaphore) = limited(&mock, permits);
            let layer = RetryLayer::new(holding_policy(by)).destination(there);
            let service = layer.layer(inner);
            let calls = (0..10).map(|_| call(service.clone()));
            let all = timeout(60 * SECOND, join_all(calls)).await;
            let all = all.unwrap_or_else(|_| panic!("{by:?} with {permits}: nothing moves"));
            assert!(all.iter().all(|response| response.status() == 200));
            assert_eq!(mock.calls(), 10, "{by:?} with {permits}");
            assert!(mock.most_at_once() <= permits);
            assert_eq!(semaphore.available_permits(), permits);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_call_has_no_permit() {
    for by in [HeldBy::CircuitBreaker, HeldBy::Cooldown] {
        let there = holding_destination(by).await;
        let (inner, semaphore) = limited(&Mock::new([status(200)]), 3);
        let service = RetryLayer::new(holding_policy(by))
            .destination(there)
            .layer(inner);
        let calls: Vec<_> = (0..3)
            .map(|_| tokio::spawn(call(service.clone())))
            .collect();
        sleep(10 * MILLI).await;
        assert!(calls.iter().all(|call| !call.is_finished()), "{by:?}");
        assert_eq!(semaphore.available_permits(), 3, "{by:?}");
        for call in calls {
            call.await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_first_attempt_does_not_block_a_buffer() {
    for by in ALL {
        for permits in [1, 2] {
            let there = holding_destination(by).await;
            let mock = Mock::new([late(10, 200)]);
            let (inner, _) = limited(&mock, permits);
            let layer = RetryLayer::new(holding_policy(by)).destination(there);
            let service = layer.layer(Buffer::new(inner, permits));
            let calls = (0..10).map(|_| call(service.clone()));
            let all = timeout(60 * SECOND, join_all(calls)).await;
            assert!(all.is_ok(), "{by:?} with {permits}: nothing moves");
            assert_eq!(mock.calls(), 10);
        }
    }
}

/// A buffer around the layer has one worker, which waits for readiness before each call.
#[tokio::test(start_paused = true)]
async fn a_buffer_around_the_layer_continues_while_a_call_is_held() {
    for by in ALL {
        let there = holding_destination(by).await;
        let mock = Mock::new([late(10, 200)]);
        let (inner, _) = limited(&mock, 1);
        let layer = RetryLayer::new(holding_policy(by)).destination(there);
        let service = Buffer::new(layer.layer(inner), 10);
        let calls = (0..10).map(|_| call(service.clone()));
        let all = timeout(60 * SECOND, join_all(calls)).await;
        assert!(all.is_ok(), "{by:?}: nothing moves");
        assert_eq!(mock.calls(), 10);
    }
}

fn slowly() -> PolicyBuilder {
    policy().backoff(Backoff::constant(10 * SECOND))
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_its_retry_blocks_no_other_call() {
    for permits in [1, 2] {
        let mut answers = vec![status(503); permits];
        answers.push(late(10, 200));
        let mock = Mock::new(answers);
        let (inner, semaphore) = limited(&mock, permits);
        let service = RetryLayer::new(slowly().build().unwrap()).layer(inner);
        let waiting: Vec<_> = (0..permits)
            .map(|_| tokio::spawn(call(service.clone())))
            .collect();
        sleep(MILLI).await;
        assert_eq!(semaphore.available_permits(), permits);
        let begin = Instant::now();
        call(service.clone()).await;
        assert_eq!(begin.elapsed(), 10 * MILLI);
        for call in waiting {
            assert_eq!(call.await.unwrap().status(), 200);
        }
    }
}

fn hedged(policy: PolicyBuilder) -> RetryLayer {
    let policy = policy.hedge(HedgeConfig::after(50 * MILLI));
    RetryLayer::new(policy.build().unwrap())
}

/// The permit of the failed attempt went to the hedge of the same call, which was first in the
/// queue although it was no longer to be sent.
#[tokio::test(start_paused = true)]
async fn a_waiting_hedge_leaves_the_queue_when_its_race_ends() {
    for (first, limit) in [(late(80, 503), 10 * SECOND), (late(80, 200), 10 * SECOND)] {
        let mock = Mock::new([first, late(10, 200)]);
        let (inner, semaphore) = limited(&mock, 1);
        let service = hedged(slowly()).layer(inner);
        let mut one = service.clone();
        let mut racing = Box::pin(started_call(&mut one).await);
        // The hedge is in the queue before the other call.
        assert!(timeout(60 * MILLI, racing.as_mut()).await.is_err());
        let other = tokio::spawn(call(service.clone()));
        // Keeps the future of the completed call.
        let done = timeout(100 * MILLI, racing.as_mut()).await;
        let begin = Instant::now();
        timeout(limit, other).await.unwrap().unwrap();
        assert!(begin.elapsed() < SECOND, "{:?}", begin.elapsed());
        assert_eq!(semaphore.available_permits(), 1);
        if done.is_err() {
            assert_eq!(racing.await.unwrap().status(), 200);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn hedged_calls_at_a_concurrency_limit_all_complete() {
    for permits in [1, 2] {
        let mock = Mock::new([late(80, 503), late(70, 503), late(60, 200)]);
        let (inner, semaphore) = limited(&mock, permits);
        let service = hedged(policy()).layer(inner);
        let calls = (0..10).map(|_| call(service.clone()));
        let all = timeout(60 * SECOND, join_all(calls)).await;
        assert!(all.unwrap().iter().all(|response| response.status() == 200));
        assert_eq!(semaphore.available_permits(), permits);
        assert!(mock.most_at_once() <= permits);
    }
}

/// While a hedge waits, other calls can use its tokens.
#[tokio::test(start_paused = true)]
async fn a_hedge_that_waits_for_the_service_takes_no_budget() {
    let config = BudgetConfig {
        ratio: 0.0,
        initial_tokens: 1.0,
        per_second: 0.0,
        ..BudgetConfig::DEFAULT
    };
    let there = Destination::new(policy().build().unwrap());
    let there = Arc::new(there.with_budget(Budget::new(&config).unwrap()));
    let (inner, semaphore) = limited(&Mock::new([MockAnswer::Hang, late(10, 200)]), 1);
    let service = hedged(policy()).destination(there.clone()).layer(inner);
    let racing = tokio::spawn(call(service));
    sleep(60 * MILLI).await;
    assert_eq!(there.budget().unwrap().balance(), 1.0);
    // Now the service has capacity for it.
    semaphore.add_permits(1);
    assert_eq!(racing.await.unwrap().status(), 200);
    assert_eq!(there.budget().unwrap().balance(), 0.0);
}

/// The call may not start any more, but its caller keeps the future.
#[tokio::test(start_paused = true)]
async fn a_completed_call_is_in_no_queue() {
    let mock = Mock::new([status(503), MockAnswer::Hang, status(200)]);
    let (inner, semaphore) = limited(&mock, 1);
    let service = RetryLayer::new(policy().deadline(3 * SECOND).build().unwrap()).layer(inner);
    let mut one = service.clone();
    let mut first = Box::pin(started_call(&mut one).await);
    assert!(timeout(SECOND / 2, first.as_mut()).await.is_err());
    let hanging = tokio::spawn(call(service.clone()));
    let result: Outcome = first.as_mut().await;
    assert_eq!(ending(&result), (Some(503), 1, Some(StopReason::Deadline)));
    hanging.abort();
    assert!(hanging.await.unwrap_err().is_cancelled());
    assert_eq!(semaphore.available_permits(), 1);
    timeout(SECOND, call(service)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_in_any_state_releases_its_permit() {
    // Dropped in its attempt, in its delay, in the queue for its retry, and in the retry.
    for (millis, others) in [(5, false), (500, false), (1_100, true), (1_015, false)] {
        let mock = Mock::new([late(10, 503), late(500, 200)]);
        let (inner, semaphore) = limited(&mock, 1);
        let service = RetryLayer::new(policy().build().unwrap()).layer(inner);
        let one = tokio::spawn(call(service));
        sleep(20 * MILLI.min(MILLI * millis)).await;
        let taken = match others {
            true => Some(semaphore.clone().acquire_owned().await.unwrap()),
            false => None,
        };
        sleep((MILLI * millis).saturating_sub(20 * MILLI)).await;
        one.abort();
        assert!(one.await.unwrap_err().is_cancelled());
        drop(taken);
        assert_eq!(semaphore.available_permits(), 1, "{millis} ms");
    }
}

/// Records the time of each call; after `good` calls, polling for readiness fails.
#[derive(Clone)]
struct RecordingService<S> {
    inner: S,
    called: Arc<Mutex<Vec<Instant>>>,
    good: usize,
}

impl<S> RecordingService<S> {
    fn new(inner: S, good: usize) -> Self {
        Self {
            inner,
            called: Arc::default(),
            good,
        }
    }
}

impl<S> Service<Request<ReplayBody<Full<Bytes>>>> for RecordingService<S>
where
    S: Service<Request<ReplayBody<Full<Bytes>>>, Error = BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.called.lock().unwrap().len() >= self.good {
            return Poll::Ready(Err("the worker is gone".into()));
        }
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<ReplayBody<Full<Bytes>>>) -> Self::Future {
        self.called.lock().unwrap().push(Instant::now());
        self.inner.call(request)
    }
}

/// Slots that were taken while the service was not ready would all be used in one burst when it is.
#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_the_service_hold_no_rate_slots() {
    const CALLS: u32 = 5;
    let rate = RateLimitConfig {
        burst: Some(1),
        ..RateLimitConfig::new(1.0)
    };
    let policy = policy().rate_limit(rate).build().unwrap();
    let answers = vec![status(503); CALLS as usize];
    let mock = Mock::new(answers.into_iter().chain([status(200)]));
    let (inner, semaphore) = limited(&mock, CALLS as usize);
    let service = RecordingService::new(inner, usize::MAX);
    let called = service.called.clone();
    let service = RetryLayer::new(policy).layer(service);
    let calls: Vec<_> = (0..CALLS)
        .map(|_| tokio::spawn(call(service.clone())))
        .collect();
    sleep(SECOND * CALLS).await;
    assert_eq!(called.lock().unwrap().len(), CALLS as usize);
    let taken = semaphore.acquire_many(CALLS).await.unwrap();
    sleep(60 * SECOND).await;
    drop(taken);
    for call in calls {
        assert_eq!(call.await.unwrap().status(), 200);
    }
    let called = called.lock().unwrap();
    for pair in called.windows(2) {
        let apart = pair[1] - pair[0];
        assert!(apart >= 999 * MILLI, "{apart:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_the_service_does_not_hold_the_probe() {
    let there = Arc::new(HeldBy::CircuitBreaker.destination().await);
    let layer = RetryLayer::new(holding_policy(HeldBy::CircuitBreaker)).destination(there.clone());
    let (inner, semaphore) = limited(&Mock::new([status(200)]), 1);
    let blocked = layer.layer(inner);
    let mut one = blocked.clone();
    let blocked = started_call(&mut one).await;
    let blocked = tokio::spawn(blocked);
    // The call is queued and has released its permit, which another caller takes.
    let taken = semaphore.acquire().await.unwrap();
    sleep(MILLI).await;
    let begin = Instant::now();
    let other = call(layer.layer(Mock::new([status(200)])));
    timeout(60 * SECOND, other).await.unwrap();
    // The other call is the first probe, not a replacement for a probe that hangs.
    assert!(begin.elapsed() < 2 * SECOND, "{:?}", begin.elapsed());
    assert!(!blocked.is_finished());
    drop(taken);
    assert_eq!(blocked.await.unwrap().unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_readiness_error_does_not_hide_the_last_outcome() {
    let refused = MockAnswer::Status(503, &[("x-why", "full")], Reply::default());
    let layer = || RetryLayer::new(policy().build().unwrap());
    let service = RecordingService::new(Mock::new([refused]), 1);
    let result: Outcome = layer().layer(service).oneshot(get()).await;
    assert_eq!(ending(&result), (Some(503), 1, Some(StopReason::Permanent)));
    let response = result.unwrap();
    assert_eq!(response.headers()["x-why"], "full");
    let noted = response.extensions().get::<ReadinessError>().unwrap();
    assert!(noted.to_string().contains("the worker is gone"), "{noted}");

    let reset = MockAnswer::Fail(io::ErrorKind::ConnectionReset);
    let service = RecordingService::new(Mock::new([reset]), 1);
    let gave_up = layer().layer(service).oneshot(get()).await.unwrap_err();
    let Some(ServiceError::Service(error)) = gave_up.error() else {
        panic!("{gave_up}")
    };
    let error = error.downcast_ref::<io::Error>().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(gave_up.attempts(), 1);
}

/// Nor for a hedge: the running attempt continues.
#[tokio::test(start_paused = true)]
async fn a_readiness_error_for_a_hedge_does_not_end_the_attempt() {
    let service = RecordingService::new(Mock::new([late(80, 200)]), 1);
    let result: Outcome = hedged(policy()).layer(service).oneshot(get()).await;
    assert_eq!(ending(&result), (Some(200), 1, None));
}

/// There was no earlier outcome, so the call returns the error.
#[tokio::test(start_paused = true)]
async fn a_readiness_error_before_a_held_first_attempt_ends_the_call() {
    let there = holding_destination(HeldBy::Cooldown).await;
    let service = RecordingService::new(Mock::new([status(200)]), 1);
    let called = service.called.clone();
    let layer = RetryLayer::new(holding_policy(HeldBy::Cooldown)).destination(there);
    let mut service = layer.layer(service);
    let waiting = started_call(&mut service).await;
    called.lock().unwrap().push(Instant::now());
    let gave_up = waiting.await.unwrap_err();
    assert_eq!(gave_up.attempts(), 0);
    assert!(gave_up.to_string().contains("the worker is gone"));
}

#[tokio::test(start_paused = true)]
async fn an_unready_service_starts_no_attempt_after_max_elapsed() {
    let mock = Mock::new([status(503), status(200)]);
    let (inner, semaphore) = limited(&mock, 1);
    let policy = policy().max_elapsed(3 * SECOND).build().unwrap();
    let service = RetryLayer::new(policy).layer(inner);
    let one = tokio::spawn(service.oneshot(get()));
    sleep(MILLI).await;
    let taken = semaphore.acquire().await.unwrap();
    sleep(10 * SECOND).await;
    drop(taken);
    let result: Outcome = one.await.unwrap();
    assert_eq!(
        ending(&result),
        (Some(503), 1, Some(StopReason::MaxElapsed))
    );
    assert_eq!(mock.calls(), 1);
}

#[cfg(feature = "grpc")]
#[tokio::test(start_paused = true)]
async fn a_held_grpc_call_blocks_no_other_call() {
    use relent_http::grpc::ServiceConfig;

    const OVER: &[(&str, &str)] = &[("content-type", "application/grpc"), ("grpc-status", "0")];
    for by in ALL {
        let there = holding_destination(by).await;
        let mock = Mock::new([MockAnswer::Status(200, OVER, Reply::default())]);
        let (inner, _) = limited(&mock, 1);
        let layer = RetryLayer::new(holding_policy(by)).destination(there);
        let service = layer.grpc(ServiceConfig::default()).layer(inner);
        let calls = (0..10).map(|_| call(service.clone()));
        let all = timeout(60 * SECOND, join_all(calls)).await;
        assert!(all.is_ok(), "{by:?}: nothing moves");
        assert_eq!(mock.calls(), 10);
    }
}
