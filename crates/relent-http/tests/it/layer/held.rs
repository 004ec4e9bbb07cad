//! The result of a call whose retry is held for as long as it may wait: the last real outcome.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body::Body;
use http_body_util::{BodyExt, Full};
use relent::policy::HedgeConfig;
use relent::{GaveUp, StopReason};
use relent_http::body::{NotKept, ReplayBody};
use relent_http::layer::ResponseBody;
use relent_http::{RetryLayer, ServiceError};
use tower::{Layer, ServiceExt};

use super::mock::{Mock, MockAnswer, Reply, status};
use super::{SECOND, ending, get, layer, policy};

use crate::held_by::{ALL, HeldBy};

type Result = std::result::Result<http::Response<ResponseBody<Reply>>, GaveUp<ServiceError>>;

/// Makes one attempt with this answer; its retry is held.
async fn call_with_held_retry(by: HeldBy, hedge: bool, answer: MockAnswer) -> Result {
    let policy = by.policy();
    let there = Arc::new(by.destination().await);
    let mock = Mock::new([answer]);
    let service = tower::service_fn({
        let (mock, there) = (mock.clone(), there.clone());
        move |request: Request<ReplayBody<Full<Bytes>>>| {
            by.start_cooldown(&there);
            mock.clone().oneshot(request)
        }
    });
    let hedging = || {
        policy
            .clone()
            .into_builder()
            .hedge(HedgeConfig::after(SECOND))
    };
    let policy = match hedge {
        true => hedging().build().unwrap(),
        false => policy,
    };
    let layer = RetryLayer::new(policy).destination(there);
    let result = layer.layer(service).oneshot(get()).await;
    assert_eq!(mock.calls(), 1, "{by:?}");
    result
}

/// A reply of `count` frames of `length` bytes, with numbered bytes.
fn frames(count: usize, length: usize) -> (Reply, Vec<u8>) {
    let all: Vec<u8> = (0..count * length).map(|at| (at % 251) as u8).collect();
    let mut reply = Reply::default();
    reply
        .frames
        .extend(all.chunks(length).map(Bytes::copy_from_slice));
    (reply, all)
}

/// The bytes of a body, and the error at its end, if any.
async fn read(mut body: ResponseBody<Reply>) -> (Vec<u8>, Option<relent_http::BoxError>) {
    let mut bytes = Vec::new();
    loop {
        match body.frame().await {
            Some(Ok(frame)) => bytes.extend_from_slice(frame.data_ref().unwrap()),
            Some(Err(error)) => return (bytes, Some(error)),
            None => return (bytes, None),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejected_response_keeps_its_body_when_its_retry_is_held() {
    for by in ALL {
        for hedge in [false, true] {
            for (count, length) in [(0, 1), (3, 7), (16, 16 << 10)] {
                let (reply, all) = frames(count, length);
                let answer = MockAnswer::Status(503, &[("x-why", "full")], reply.clone());
                let result = call_with_held_retry(by, hedge, answer).await;
                assert_eq!(ending(&result), (Some(503), 1, Some(by.reason())));
                let response = result.unwrap();
                assert_eq!(response.headers()["x-why"], "full");
                // The layer read it to its end to reuse the connection.
                assert!(reply.read.lock().unwrap().ended);
                let body = response.into_body();
                assert_eq!(body.size_hint().exact(), Some(all.len() as u64));
                assert_eq!(body.is_end_stream(), all.is_empty());
                let (bytes, error) = read(body).await;
                assert_eq!((bytes, error.is_some()), (all, false));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_is_returned_when_its_retry_is_held() {
    for by in ALL {
        for hedge in [false, true] {
            let answer = MockAnswer::Fail(io::ErrorKind::ConnectionReset);
            let gave_up = call_with_held_retry(by, hedge, answer).await.unwrap_err();
            assert_eq!((gave_up.reason(), gave_up.attempts()), (by.reason(), 1));
            let Some(ServiceError::Service(error)) = gave_up.error() else {
                unreachable!("{gave_up}");
            };
            let error = error.downcast_ref::<io::Error>().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
    }
}

/// The body yields the part that was read, up to the limit, and then an error.
#[tokio::test(start_paused = true)]
async fn a_partly_read_body_of_the_layer_ends_with_an_error() {
    let (long, all) = frames(40, 10_000);
    let (mut slow, beginning) = frames(2, 100);
    slow.stalls = true;
    for (reply, kept, why) in [
        (long, &all[..256 << 10], "longer than 256 KiB"),
        (slow, &beginning[..], "took too long"),
    ] {
        let read_state = reply.read.clone();
        let answer = MockAnswer::Status(503, &[], reply);
        let response = call_with_held_retry(HeldBy::CircuitBreaker, false, answer)
            .await
            .unwrap();
        assert!(read_state.lock().unwrap().dropped);
        assert_eq!(response.status(), 503);
        let body = response.into_body();
        assert_eq!(body.size_hint().exact(), None);
        assert!(!body.is_end_stream());
        let (bytes, error) = read(body).await;
        assert_eq!(bytes.len(), kept.len());
        assert_eq!(bytes, kept);
        let error = error.unwrap();
        assert!(error.is::<NotKept>(), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[tokio::test]
async fn an_unready_service_does_not_hide_the_last_response() {
    let (layer, clock) = layer(policy().deadline(3 * SECOND));
    let (reply, all) = frames(1, 10);
    let answer = MockAnswer::Status(503, &[], reply);
    let mock = Mock::new([answer]).never_ready_again();
    let result = layer.layer(mock).oneshot(get()).await;
    assert_eq!(ending(&result), (Some(503), 1, Some(StopReason::Deadline)));
    assert_eq!(read(result.unwrap().into_body()).await.0, all);
    assert_eq!(clock.elapsed(), 3 * SECOND);
}

/// The response of the previous attempt is no longer kept.
#[tokio::test(start_paused = true)]
async fn a_response_is_dropped_when_its_retry_starts() {
    let (reply, _) = frames(2, 10);
    let answers = [
        MockAnswer::Status(503, &[], reply),
        status(502),
        MockAnswer::Hang,
    ];
    let policy = policy().deadline(10 * SECOND).build().unwrap();
    let layer = RetryLayer::new(policy);
    let gave_up = layer.layer(Mock::new(answers)).oneshot(get()).await;
    let gave_up = gave_up.unwrap_err();
    assert!(matches!(gave_up.error(), Some(ServiceError::Timeout(_))));
    assert_eq!(gave_up.elapsed() / 1000, Duration::from_millis(10));
}

#[tokio::test]
async fn a_response_that_is_not_held_has_the_body_of_the_service() {
    for answer in [status(200), status(503)] {
        let (layer, _) = layer(policy());
        let response = layer.layer(Mock::new([answer])).oneshot(get()).await;
        assert!(response.unwrap().into_body().into_inner().is_some());
    }
}
