//! Time limits, delays, and draining of a response during the delay.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use relent::{Policy, StopReason};
use relent_http::layer::ResponseBody;
use relent_http::{RetryLayer, ServiceError};
use tower::{Layer, ServiceExt};

use super::mock::{Mock, MockAnswer, Reply, status};
use super::{SECOND, ending, get, layer, policy};

const MILLIS: Duration = Duration::from_millis(1);

#[tokio::test]
async fn an_attempt_is_dropped_at_its_limit_and_retried() {
    let (layer, clock) = layer(policy().attempt_timeout(5 * SECOND));
    let mock = Mock::new([MockAnswer::Hang, status(200)]);
    let result = layer.layer(mock.clone()).oneshot(get()).await;
    assert_eq!(ending(&result), (Some(200), 2, None));
    assert_eq!(mock.running(), 0);
    assert_eq!(clock.sleeps(), [5 * SECOND, SECOND]);
}

#[tokio::test]
async fn a_deadline_cuts_the_last_attempt_off() {
    let (layer, clock) = layer(policy().deadline(3 * SECOND));
    let mock = Mock::new([status(503), MockAnswer::Hang]);
    let result = layer.layer(mock.clone()).oneshot(get()).await;
    let gave_up = result.unwrap_err();
    assert!(
        matches!(gave_up.error(), Some(ServiceError::Timeout(_))),
        "{gave_up}"
    );
    assert_eq!(
        (gave_up.attempts(), gave_up.reason()),
        (2, StopReason::Deadline)
    );
    assert_eq!(clock.elapsed(), 3 * SECOND);
}

#[tokio::test]
async fn no_timer_is_set_for_an_attempt_that_is_ready_immediately() {
    let (layer, clock) = layer(policy().attempt_timeout(SECOND).deadline(3 * SECOND));
    layer
        .layer(Mock::new([status(200)]))
        .oneshot(get())
        .await
        .unwrap();
    assert!(clock.sleeps().is_empty());
}

#[tokio::test]
async fn a_call_to_an_unready_service_ends_at_the_deadline() {
    let (layer, clock) = layer(policy().deadline(3 * SECOND));
    let mock = Mock::new([status(503)]).never_ready_again();
    let result = layer.layer(mock.clone()).oneshot(get()).await;
    assert_eq!(ending(&result), (Some(503), 1, Some(StopReason::Deadline)));
    assert_eq!(clock.elapsed(), 3 * SECOND);
    assert_eq!(mock.calls(), 1);
}

fn refused(reply: &Reply) -> MockAnswer {
    MockAnswer::Status(503, &[], reply.clone())
}

fn frames(count: usize, length: usize) -> Reply {
    let mut reply = Reply::default();
    let frame = Bytes::from(vec![0; length]);
    reply.frames.extend(std::iter::repeat_n(frame, count));
    reply
}

/// Makes a call with one retry after this response; the real time is tokio's.
async fn after(reply: &Reply, policy: Policy) -> Response<ResponseBody<Reply>> {
    let mock = Mock::new([refused(reply), status(200)]);
    let service = RetryLayer::new(policy).layer(mock);
    service.oneshot(get()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_retried_response_is_drained_to_its_end() {
    let reply = frames(16, 16 << 10);
    after(&reply, policy().build().unwrap()).await;
    assert!(reply.read.lock().unwrap().ended);
}

#[tokio::test(start_paused = true)]
async fn a_long_response_is_drained_up_to_a_limit() {
    let reply = frames(100, 16 << 10);
    after(&reply, policy().build().unwrap()).await;
    let read = *reply.read.lock().unwrap();
    // 256 KiB, and the frame that exceeds it.
    assert_eq!((read.frames, read.ended), (17, false));
}

#[tokio::test(start_paused = true)]
async fn a_stalled_response_is_dropped_before_the_delay_ends() {
    let mut reply = frames(1, 10);
    reply.stalls = true;
    let mock = Mock::new([refused(&reply), status(200)]);
    let read = reply.read.clone();
    drop(reply);
    let begin = tokio::time::Instant::now();
    let call = tokio::spawn(
        RetryLayer::new(policy().build().unwrap())
            .layer(mock)
            .oneshot(get()),
    );
    tokio::time::sleep(200 * MILLIS).await;
    *read.lock().unwrap() = Default::default();
    tokio::time::sleep(100 * MILLIS).await;
    assert!(read.lock().unwrap().dropped);
    call.await.unwrap().unwrap();
    let took = begin.elapsed();
    assert!(took >= SECOND && took < SECOND + 10 * MILLIS, "{took:?}");
}

/// The limit is about the cost of a new connection.
#[tokio::test(start_paused = true)]
async fn a_stalled_response_extends_a_short_delay_up_to_a_limit() {
    for wait in [0, 20, 249] {
        let mut reply = frames(1, 10);
        reply.stalls = true;
        let begin = tokio::time::Instant::now();
        let short = policy().backoff(relent::Backoff::constant(wait * MILLIS));
        after(&reply, short.build().unwrap()).await;
        let took = begin.elapsed();
        assert!(took >= 250 * MILLIS && took < 260 * MILLIS, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_response_uses_no_time_of_the_next_attempt() {
    let mut reply = frames(1, 10);
    reply.stalls = true;
    let begin = tokio::time::Instant::now();
    let short = policy().backoff(relent::Backoff::constant(20 * MILLIS));
    let limited = short.deadline(260 * MILLIS).build().unwrap();
    after(&reply, limited).await;
    let took = begin.elapsed();
    assert!(took >= 20 * MILLIS && took < 30 * MILLIS, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn without_a_delay_available_data_is_drained_without_a_timer() {
    let reply = frames(2, 10);
    let begin = tokio::time::Instant::now();
    after(
        &reply,
        policy().backoff(relent::Backoff::None).build().unwrap(),
    )
    .await;
    assert_eq!(begin.elapsed(), Duration::ZERO);
    assert!(reply.read.lock().unwrap().ended);
}

#[tokio::test(start_paused = true)]
async fn retries_without_a_delay_yield_to_other_tasks() {
    let endless = Policy::builder(relent::Backoff::None)
        .unlimited_retries()
        .build()
        .unwrap();
    let service = RetryLayer::new(endless).layer(Mock::new([status(503)]));
    let call = tokio::spawn(service.oneshot(get()));
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
}

/// The policy requires a second for an attempt, but the caller has only half a second.
#[tokio::test(start_paused = true)]
async fn a_deadline_below_the_minimum_attempt_time_still_applies() {
    let policy = policy().min_attempt_time(SECOND).max_elapsed(60 * SECOND);
    let mock = Mock::new([MockAnswer::Hang]);
    let layer = RetryLayer::new(policy.build().unwrap()).cross_layer();
    let mut request = get();
    let fields = request.headers_mut();
    fields.insert("relent-deadline-ms", "500".parse().unwrap());
    let begin = tokio::time::Instant::now();
    let call = layer.layer(mock.clone()).oneshot(request);
    let result = tokio::time::timeout(60 * SECOND, call).await;
    let gave_up = result.expect("it is cut off").unwrap_err();
    assert_eq!(
        (gave_up.attempts(), gave_up.reason()),
        (1, StopReason::Deadline)
    );
    assert_eq!(begin.elapsed(), 500 * MILLIS);
}
