//! Request bodies through the layer.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Request};
use http_body::{Body, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use relent::StopReason;
use relent::driver::Decision;
use relent_http::BoxError;
use relent_http::body::ReplayBody;
use relent_http::layer::FreshConnection;
use tower::{Layer, ServiceExt};

use super::mock::{Mock, MockAnswer, status};
use super::{ending, layer, policy, summary};

/// A body that cannot be cloned and does not know its length.
pub(crate) fn streamed(text: &'static str) -> impl Body<Data = Bytes, Error = Infallible> + Send {
    let frames = text
        .as_bytes()
        .chunks(1)
        .map(|byte| Ok(Frame::data(Bytes::from_static(byte))));
    StreamBody::new(stream::iter(frames))
}

fn put<B>(body: B) -> Request<B> {
    Request::put("http://service/").body(body).unwrap()
}

fn bodies(mock: &Mock) -> Vec<Bytes> {
    mock.arrived()
        .into_iter()
        .map(|arrived| arrived.body)
        .collect()
}

#[tokio::test]
async fn reqwest_and_tower_790_do_not_retry_a_body_that_cannot_be_cloned() {
    let (layer, _) = layer(policy());
    let mock = Mock::new([status(503), status(503), status(200)]);
    let result = layer
        .layer(mock.clone())
        .oneshot(put(streamed("content")))
        .await;
    assert_eq!(ending(&result), (Some(200), 3, None));
    assert_eq!(bodies(&mock), ["content"; 3]);
}

#[tokio::test]
async fn reqwest_retry_sends_no_request_at_all_with_a_streaming_body() {
    let (layer, _) = layer(policy());
    let mock = Mock::new([status(503)]);
    let layer = layer.body_cap(3);
    let result = layer
        .layer(mock.clone())
        .oneshot(put(streamed("content")))
        .await;
    // Too long to be kept: it is sent once, completely.
    assert_eq!(
        ending(&result),
        (Some(503), 1, Some(StopReason::NotReplayable))
    );
    assert_eq!(bodies(&mock), ["content"]);
}

#[tokio::test]
async fn trailers_are_sent_in_every_attempt() {
    let mut trailers = HeaderMap::new();
    trailers.insert("checksum", "12".parse().unwrap());
    let (layer, _) = layer(policy());
    let mock = Mock::new([status(503), status(200)]);
    let body = streamed("ab").with_trailers(std::future::ready(Some(Ok(trailers.clone()))));
    layer.layer(mock.clone()).oneshot(put(body)).await.unwrap();
    for arrived in mock.arrived() {
        assert_eq!(arrived.body, "ab");
        assert_eq!(arrived.trailers, Some(trailers.clone()));
    }
    assert_eq!(mock.calls(), 2);
}

#[tokio::test]
async fn an_early_response_to_a_streamed_body_is_not_retried() {
    let (layer, _) = layer(policy());
    let mock = Mock::new([MockAnswer::Early(503)]);
    let result = layer
        .traced()
        .layer(mock.clone())
        .oneshot(put(streamed("content")))
        .await;
    assert_eq!(
        ending(&result),
        (Some(503), 1, Some(StopReason::NotReplayable))
    );
    // The trace has one attempt, and no retry that was granted before.
    let response = result.unwrap();
    let trace = summary(&response).trace.as_ref().unwrap();
    let stops: Vec<_> = trace.entries().map(|entry| entry.decision).collect();
    assert!(
        matches!(stops[..], [Some(Decision::Stop(stop))] if stop.reason == StopReason::NotReplayable),
        "{stops:?}"
    );
}

#[tokio::test]
async fn an_early_response_to_known_content_requests_a_new_connection() {
    let (layer, _) = layer(policy());
    let mock = Mock::new([MockAnswer::Early(503), status(200)]);
    let long = Bytes::from(vec![1; 1 << 20]);
    let result = layer
        .layer(mock.clone())
        .oneshot(put(Full::new(long.clone())))
        .await;
    assert_eq!(ending(&result), (Some(200), 2, None));
    let arrived = mock.arrived();
    assert_eq!(arrived[1].body, long);
    assert!(arrived[1].extensions.get::<FreshConnection>().is_some());
}

#[tokio::test]
async fn a_body_that_fails_fails_the_attempt_and_is_not_sent_again() {
    let (layer, _) = layer(policy());
    let mock = Mock::new([status(200)]);
    let frames = stream::iter([
        Ok(Frame::data(Bytes::from("a"))),
        Err(BoxError::from("the disk is gone")),
    ]);
    let result = layer
        .layer(mock.clone())
        .oneshot(put(StreamBody::new(frames)))
        .await;
    let gave_up = result.unwrap_err();
    assert_eq!(
        (gave_up.attempts(), gave_up.reason()),
        (1, StopReason::NotReplayable)
    );
    assert!(
        gave_up.to_string().contains("the disk is gone"),
        "{gave_up}"
    );
}

#[tokio::test]
async fn map_body_converts_the_body_for_the_service() {
    type Boxed = UnsyncBoxBody<Bytes, BoxError>;
    let mock = Mock::new([status(503), status(200)]);
    let inner = tower::service_fn({
        let mock = mock.clone();
        move |request: Request<Boxed>| mock.clone().oneshot(request)
    });
    let (layer, _) = layer(policy());
    let service = layer.map_body(Boxed::new).layer(inner);
    let body = UnsyncBoxBody::new(streamed("content"));
    let response = service.oneshot(put(body)).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(bodies(&mock), ["content"; 2]);
}

#[tokio::test]
async fn known_body_copies_content_with_the_function_of_the_caller() {
    let (layer, _) = layer(policy());
    let layer = layer
        .body_cap(0)
        .known_body(|body: &http_body_util::Either<Full<Bytes>, Full<Bytes>>| Some(body.clone()));
    let mock = Mock::new([status(503), status(200)]);
    let body = http_body_util::Either::Left(Full::<Bytes>::from("content"));
    layer.layer(mock.clone()).oneshot(put(body)).await.unwrap();
    assert_eq!(bodies(&mock), ["content"; 2]);
}

#[tokio::test]
async fn the_last_body_continues_after_the_call_ends() {
    // A server may respond immediately and continue to read: a call in both directions.
    let inner = tower::service_fn(|request: Request<ReplayBody<_>>| async move {
        Ok::<_, BoxError>(http::Response::new(request.into_body()))
    });
    let (layer, _) = layer(policy());
    let response = layer
        .layer(inner)
        .oneshot(put(streamed("content")))
        .await
        .unwrap();
    let read = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(read, "content");
}

#[tokio::test]
async fn an_empty_body_needs_no_framing() {
    let (layer, _) = layer(policy());
    let inner = tower::service_fn(|request: Request<ReplayBody<Full<Bytes>>>| async move {
        assert!(request.body().is_end_stream());
        assert_eq!(request.body().size_hint().exact(), Some(0));
        Ok::<_, BoxError>(http::Response::new(Full::<Bytes>::default()))
    });
    layer
        .layer(inner)
        .oneshot(put(Full::<Bytes>::default()))
        .await
        .unwrap();
}
