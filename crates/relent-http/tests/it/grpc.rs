//! gRPC over real sockets, between tonic's client and tonic's server (gRFC A6).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use http::uri::PathAndQuery;
use relent::driver::Driver;
use relent::policy::RateLimitConfig;
use relent::random::SessionRandom;
use relent::{
    Backoff, Destination, Failure, Hint, NamedPolicy, Policy, StopReason, Summary, VirtualClock,
};
use relent_http::body::ReplayBody;
use relent_http::grpc::ServiceConfig;
use relent_http::layer::GrpcRetryService;
use relent_http::{Mark, Override, RetryLayer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};
use tower::{Layer, ServiceBuilder, ServiceExt};

use crate::grpc_support::{self, Raw, Scripted, ScriptedAnswer, channel};

const GET: &str = "/test.Echo/Get";

fn preset() -> Policy {
    NamedPolicy::load("grpc").unwrap().policy
}

/// Declares `Get` repeatable, and `Put` not.
fn methods() -> ServiceConfig {
    ServiceConfig::default().repeatable(["test.Echo/Get"])
}

type ToBody = fn(ReplayBody<Body>) -> Body;
type Retried<K> = Grpc<GrpcRetryService<Channel, K, ToBody>>;

fn layer(policy: Policy) -> RetryLayer<relent::clock::TokioClock, ToBody> {
    RetryLayer::new(policy)
        .random(|| SessionRandom::with_seed(7))
        .map_body(Body::new as ToBody)
}

/// A client that retries in virtual time, with its clock.
fn client(channel: Channel) -> (Retried<VirtualClock>, VirtualClock) {
    let clock = VirtualClock::new();
    let layer = layer(preset()).clock(clock.clone()).grpc(methods());
    (Grpc::new(layer.layer(channel)), clock)
}

async fn unary<K: relent::clock::Sleeper + Clone + Send + 'static>(
    client: &mut Retried<K>,
    path: &'static str,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, Status>
where
    K::Sleep: Send,
{
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static(path);
    client.unary(request, path, Raw).await
}

async fn streaming(
    client: &mut Retried<VirtualClock>,
    path: &'static str,
) -> Result<Streaming<Bytes>, Status> {
    client.ready().await.unwrap();
    let (request, path) = (Request::new(Bytes::new()), PathAndQuery::from_static(path));
    let response = client.server_streaming(request, path, Raw).await?;
    Ok(response.into_inner())
}

fn hello() -> Request<Bytes> {
    Request::new(Bytes::from("hello"))
}

fn say(message: &'static str) -> ScriptedAnswer {
    ScriptedAnswer::Say(vec![message])
}

fn unavailable() -> Status {
    Status::unavailable("restarting")
}

/// Adds this pushback to a status.
fn pushed(mut status: Status, pushback: &'static str) -> Status {
    let pushback = MetadataValue::from_static(pushback);
    status
        .metadata_mut()
        .insert("grpc-retry-pushback-ms", pushback);
    status
}

/// The two places of a status: the headers of a response without messages, and the
/// trailers.
fn both(status: &Status) -> [ScriptedAnswer; 2] {
    [
        ScriptedAnswer::Refuse(status.clone()),
        ScriptedAnswer::Break(Vec::new(), status.clone()),
    ]
}

#[tokio::test]
async fn a_unary_call_is_retried_for_a_status_in_headers_or_trailers() {
    let [headers, trailers] = both(&unavailable());
    let (server, channel) = Scripted::answering([headers, trailers, say("done")]).await;
    let (mut client, clock) = client(channel);
    let response = unary(&mut client, GET, hello()).await.unwrap();
    assert_eq!(response.get_ref(), "done");
    let summary = response.extensions().get::<Summary>().unwrap();
    assert_eq!((summary.attempts, summary.reason), (3, None));
    assert!(server.seen().iter().all(|call| call.message == "hello"));

    // 100 ms and 200 ms, each ±20 %.
    let waits = clock.sleeps();
    for (wait, backoff) in waits.iter().zip([100, 200]) {
        let off = wait.abs_diff(Duration::from_millis(backoff));
        assert!(off <= Duration::from_millis(backoff / 5), "{waits:?}");
    }
}

#[tokio::test]
async fn the_server_receives_the_number_of_previous_attempts() {
    let refused = ScriptedAnswer::Refuse(unavailable());
    let (server, channel) = Scripted::answering([refused.clone(), refused, say("done")]).await;
    let (mut client, _) = client(channel);
    unary(&mut client, GET, hello()).await.unwrap();
    let seen = server.seen();
    let told: Vec<_> = seen
        .iter()
        .map(|call| call.header("grpc-previous-rpc-attempts"))
        .collect();
    assert_eq!(told, [None, Some("1"), Some("2")]);
}

#[tokio::test]
async fn a_stream_is_repeated_before_its_first_message() {
    let [headers, trailers] = both(&unavailable());
    let said = ScriptedAnswer::Say(vec!["one", "two"]);
    let (server, channel) = Scripted::answering([headers, trailers, said]).await;
    let (mut client, _) = client(channel);
    let stream = streaming(&mut client, GET).await.unwrap();
    let messages: Vec<_> = stream.map(Result::unwrap).collect().await;
    assert_eq!(messages, ["one", "two"]);
    assert_eq!(server.calls(), 3);
}

#[tokio::test]
async fn the_first_message_commits_a_stream() {
    let broken = ScriptedAnswer::Break(vec!["one"], unavailable());
    let (server, channel) = Scripted::answering([broken, say("again")]).await;
    let (mut client, _) = client(channel);
    let mut stream = streaming(&mut client, GET).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap(), "one");
    let status = stream.next().await.unwrap().unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unavailable, "restarting")
    );
    assert_eq!(server.calls(), 1);
}

#[tokio::test]
async fn commit_on_headers_does_not_retry_for_trailers() {
    let [headers, trailers] = both(&unavailable());
    for (answer, calls) in [(headers, 2), (trailers, 1)] {
        let (server, channel) = Scripted::answering([answer, say("done")]).await;
        let layer = layer(preset()).clock(VirtualClock::new()).grpc(methods());
        let mut client = Grpc::new(layer.commit_on_headers().layer(channel));
        let result = unary(&mut client, GET, hello()).await;
        assert_eq!(result.is_ok(), calls == 2);
        assert_eq!(server.calls(), calls);
    }
}

#[tokio::test]
async fn a_pushback_is_honoured_exactly() {
    for answer in both(&pushed(unavailable(), "70")) {
        let (server, channel) = Scripted::answering([answer.clone(), say("done")]).await;
        let (mut client, clock) = client(channel);
        unary(&mut client, GET, hello()).await.unwrap();
        assert_eq!(clock.sleeps(), [Duration::from_millis(70)], "{answer:?}");
        assert_eq!(server.calls(), 2);
    }
}

#[tokio::test]
async fn a_pushback_that_is_negative_or_unreadable_ends_the_call() {
    for pushback in ["-1", "soon"] {
        for answer in both(&pushed(unavailable(), pushback)) {
            let (server, channel) = Scripted::answering([answer.clone(), say("done")]).await;
            let (mut client, _) = client(channel);
            let status = unary(&mut client, GET, hello()).await.unwrap_err();
            assert_eq!(status.code(), Code::Unavailable);
            assert_eq!(server.calls(), 1, "{answer:?}");
        }
    }
}

/// `RESOURCE_EXHAUSTED` with a delay was not processed: any call may be repeated.
#[tokio::test]
async fn the_delay_of_a_retry_info_is_honoured() {
    // google.rpc.Status { details: [RetryInfo { retry_delay: 2 s }] }
    let details =
        b"\x1a\x30\x0a\x28type.googleapis.com/google.rpc.RetryInfo\x12\x04\x0a\x02\x08\x02";
    let details = Bytes::from_static(details);
    let busy = Status::with_details(Code::ResourceExhausted, "quota", details);
    for answer in both(&busy) {
        let (server, channel) = Scripted::answering([answer.clone(), say("done")]).await;
        let clock = VirtualClock::new();
        let layer = layer(Policy::STANDARD.clone()).clock(clock.clone());
        let mut client = Grpc::new(layer.grpc(methods()).layer(channel));
        unary(&mut client, "/test.Echo/Put", hello()).await.unwrap();
        let waited: Duration = clock.sleeps().iter().sum();
        // The delay is a minimum, plus jitter, since other callers may have got the same delay.
        let range = Duration::from_secs(2)..=Duration::from_secs(4);
        assert!(range.contains(&waited), "{answer:?}: {waited:?}");
        assert_eq!(server.calls(), 2);
    }
}

#[tokio::test]
async fn an_ambiguous_call_is_retried_only_if_declared_repeatable() {
    let put = "/test.Echo/Put";
    let with_key = || {
        let mut request = hello();
        let key = MetadataValue::from_static("8e03978e-40d5-43dd-bc93-6894a57f9324");
        request.metadata_mut().insert("idempotency-key", key);
        request
    };
    let declared = || {
        let mut request = hello();
        request
            .extensions_mut()
            .insert(Override::new().repeatable(true));
        request
    };
    for answer in both(&unavailable()) {
        for (path, request, calls) in [
            (put, hello(), 1),
            (GET, hello(), 2),
            (put, with_key(), 2),
            (put, declared(), 2),
        ] {
            let (server, channel) = Scripted::answering([answer.clone(), say("done")]).await;
            let (mut client, _) = client(channel);
            let result = unary(&mut client, path, request).await;
            assert_eq!(server.calls(), calls, "{path} {answer:?}");
            assert_eq!(result.is_ok(), calls == 2);
        }
    }
}

#[tokio::test]
async fn a_permanent_grpc_status_is_returned_immediately() {
    let aborted = ScriptedAnswer::Refuse(Status::aborted("somebody else wrote"));
    let (server, channel) = Scripted::answering([aborted, say("done")]).await;
    let (mut client, _) = client(channel);
    let status = unary(&mut client, GET, hello()).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Aborted, "somebody else wrote")
    );
    assert_eq!(server.calls(), 1);
}

/// The server responds with headers and waits for the client's next message; the client waits for the response.
#[tokio::test]
async fn a_bidirectional_stream_does_not_wait_for_its_first_message() {
    let (_server, channel) = Scripted::answering([say("unused")]).await;
    let (mut client, _) = client(channel);
    client.ready().await.unwrap();
    let (say, said) = tokio::sync::mpsc::channel::<Bytes>(1);
    let outbound = stream::unfold(said, |mut said| async move {
        said.recv().await.map(|message| (message, said))
    });
    let path = PathAndQuery::from_static("/test.Echo/Chat");
    let response = client.streaming(Request::new(outbound), path, Raw);
    // Without a response the test fails instead of waiting forever.
    let response = tokio::time::timeout(Duration::from_secs(30), response).await;
    let mut inbound = response.unwrap().unwrap().into_inner();
    for message in ["one", "two"] {
        say.send(Bytes::from(message)).await.unwrap();
        assert_eq!(inbound.next().await.unwrap().unwrap(), message);
    }
    drop(say);
    assert!(inbound.next().await.is_none());
}

#[tokio::test]
async fn a_service_config_sets_how_a_method_is_retried() {
    let config = ServiceConfig::from_json(
        r#"{
            "methodConfig": [
                {
                    "name": [{ "service": "test.Echo" }],
                    "retryPolicy": {
                        "maxAttempts": 2,
                        "initialBackoff": "0.1s",
                        "maxBackoff": "1s",
                        "backoffMultiplier": 2,
                        "retryableStatusCodes": ["INTERNAL"]
                    }
                },
                { "name": [{ "service": "test.Echo", "method": "Never" }] }
            ],
            "retryThrottling": { "maxTokens": 4, "tokenRatio": 0.1 }
        }"#,
    )
    .unwrap()
    .repeatable(["test.Echo"]);
    let (server, channel) =
        Scripted::answering([ScriptedAnswer::Refuse(Status::internal("bug"))]).await;
    let layer = layer(preset()).clock(VirtualClock::new());
    let mut client = Grpc::new(layer.grpc(config).layer(channel));
    let calls = async |client: &mut Retried<VirtualClock>, path| {
        let before = server.calls();
        unary(client, path, hello()).await.unwrap_err();
        server.calls() - before
    };
    assert_eq!(calls(&mut client, "/test.Echo/Never").await, 1);
    // Two failures take two of four tokens; retries need more than half of the tokens.
    assert_eq!(calls(&mut client, GET).await, 2);
    assert_eq!(calls(&mut client, GET).await, 1);
}

/// Also in a service that existed before.
#[tokio::test]
async fn a_replaced_policy_applies_to_grpc_methods_without_their_own() {
    let config = ServiceConfig::from_json(
        r#"{
            "methodConfig": [{
                "name": [{ "service": "test.Echo", "method": "Own" }],
                "retryPolicy": {
                    "maxAttempts": 2,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"]
                }
            }]
        }"#,
    )
    .unwrap()
    .repeatable(["test.Echo"]);
    let (server, channel) = Scripted::answering([ScriptedAnswer::Refuse(unavailable())]).await;
    let policy = Policy::builder(Backoff::None).max_retries(3);
    let policy = policy.build().unwrap();
    let layer = layer(policy.clone())
        .clock(VirtualClock::new())
        .grpc(config);
    let mut client = Grpc::new(layer.layer(channel));
    let mut attempts = async |path| {
        let before = server.calls();
        unary(&mut client, path, hello()).await.unwrap_err();
        server.calls() - before
    };
    assert_eq!(
        (attempts(GET).await, attempts("/test.Echo/Own").await),
        (4, 2)
    );
    layer.set_policy(policy.without_retries());
    assert_eq!(
        (attempts(GET).await, attempts("/test.Echo/Own").await),
        (1, 2)
    );
}

#[tokio::test]
async fn not_repeatable_overrides_the_assumption_of_the_policy() {
    let assuming = preset().into_builder().assume_repeatable(true);
    let assuming = assuming.build().unwrap();
    for (config, path, calls) in [
        (ServiceConfig::default(), "/test.Echo/Put", 2),
        (
            ServiceConfig::default().not_repeatable(["test.Echo/Put"]),
            "/test.Echo/Put",
            1,
        ),
        (
            ServiceConfig::default().not_repeatable(["test.Echo"]),
            GET,
            1,
        ),
        (methods().not_repeatable(["test.Echo"]), GET, 2),
    ] {
        let answers = [ScriptedAnswer::Refuse(unavailable()), say("done")];
        let (server, channel) = Scripted::answering(answers).await;
        let layer = layer(assuming.clone()).clock(VirtualClock::new());
        let mut client = Grpc::new(layer.grpc(config).layer(channel));
        let _ = unary(&mut client, path, hello()).await;
        assert_eq!(server.calls(), calls, "{path}");
    }
}

#[tokio::test]
async fn the_grpc_timeout_covers_all_attempts_of_a_call() {
    let refused = ScriptedAnswer::Refuse(pushed(unavailable(), "20"));
    let (server, channel) = Scripted::answering([refused, say("done")]).await;
    let layer = layer(preset()).grpc(methods());
    let mut client = Grpc::new(layer.layer(channel));
    let mut request = hello();
    request.set_timeout(Duration::from_secs(60));
    unary(&mut client, GET, request).await.unwrap();
    let seen = server.seen();
    let micros = |call: usize| -> u64 {
        let timeout = seen[call].header("grpc-timeout").unwrap();
        timeout.strip_suffix('u').unwrap().parse().unwrap()
    };
    assert_eq!(micros(0), 60_000_000);
    assert!(micros(1) <= 60_000_000 - 20_000, "{}", micros(1));
}

#[tokio::test]
async fn a_call_out_of_time_ends_with_deadline_exceeded() {
    let (server, channel) = Scripted::answering([ScriptedAnswer::Stall]).await;
    let layer = layer(
        preset()
            .into_builder()
            .deadline(Duration::from_millis(50))
            .build()
            .unwrap(),
    );
    let mut client = Grpc::new(layer.grpc(methods()).layer(channel));
    let status = unary(&mut client, GET, hello()).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    // All of the 50 ms, which begin with the attempt: no admission delay came before.
    assert!(
        status.message().contains("no answer after 50ms)"),
        "{status:?}"
    );
    assert!(server.calls() <= 1);
}

/// Tonic's channel has the same timer for each attempt. Whichever fires first, the caller gets the same result.
#[tokio::test]
async fn the_callers_own_timeout_ends_a_call_too() {
    for deadline in [None, Some(Duration::from_secs(60))] {
        let (_server, channel) = Scripted::answering([ScriptedAnswer::Stall]).await;
        let policy = preset().into_builder();
        let policy = deadline.map_or(policy.clone(), |deadline| policy.deadline(deadline));
        let layer = layer(policy.build().unwrap()).grpc(methods());
        let mut client = Grpc::new(layer.layer(channel));
        let mut request = hello();
        request.set_timeout(Duration::from_millis(50));
        let status = unary(&mut client, GET, request).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    }
}

/// Responds to the calls of a connection with a message, except to the first `refused`.
async fn answer(socket: TcpStream, mut refused: usize) {
    let mut connection = h2::server::handshake(socket).await.unwrap();
    while let Some(Ok((_request, mut respond))) = connection.accept().await {
        if refused > 0 {
            refused -= 1;
            respond.send_reset(h2::Reason::REFUSED_STREAM);
            continue;
        }
        let head = http::Response::builder().header("content-type", "application/grpc");
        let mut body = respond
            .send_response(head.body(()).unwrap(), false)
            .unwrap();
        let message = Bytes::from_static(b"\x00\x00\x00\x00\x04done");
        body.send_data(message, false).unwrap();
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        body.send_trailers(trailers).unwrap();
    }
}

/// A `Put`, which may not run twice, succeeds on its second attempt.
async fn second_attempt_of_any_call_succeeds(listener: &TcpListener, server: JoinHandle<()>) {
    let (mut client, _) = client(channel(listener.local_addr().unwrap()));
    let response = unary(&mut client, "/test.Echo/Put", hello()).await.unwrap();
    assert_eq!(response.get_ref(), "done");
    assert_eq!(response.extensions().get::<Summary>().unwrap().attempts, 2);
    server.abort();
}

/// The server did not process the call, so any call is repeated.
#[tokio::test]
async fn a_refused_stream_is_retried_for_any_call() {
    let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
    let accepting = listener.clone();
    let server = tokio::spawn(async move {
        let (socket, _) = accepting.accept().await.unwrap();
        answer(socket, 1).await;
    });
    second_attempt_of_any_call_succeeds(&listener, server).await;
}

/// The server will process no stream of the connection, so any call is repeated.
#[tokio::test]
async fn a_stream_above_the_last_of_a_goaway_is_retried_for_any_call() {
    const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
    const GOAWAY_ABOVE_0: &[u8] = b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\0";
    const HEADERS: u8 = 1;
    let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
    let accepting = listener.clone();
    let server = tokio::spawn(async move {
        let (mut socket, _) = accepting.accept().await.unwrap();
        let mut preface = [0; 24];
        socket.read_exact(&mut preface).await.unwrap();
        socket.write_all(SETTINGS).await.unwrap();
        loop {
            let mut frame = [0; 9];
            socket.read_exact(&mut frame).await.unwrap();
            let length = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]);
            let mut payload = vec![0; length as usize];
            socket.read_exact(&mut payload).await.unwrap();
            if frame[3] == HEADERS {
                break;
            }
        }
        socket.write_all(GOAWAY_ABOVE_0).await.unwrap();
        let (next, _) = accepting.accept().await.unwrap();
        answer(next, 0).await;
    });
    second_attempt_of_any_call_succeeds(&listener, server).await;
}

/// No listener: no server has received the call.
#[tokio::test]
async fn an_unsent_grpc_call_is_retried_for_any_method() {
    let taken = tokio::net::TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = taken.local_addr().unwrap();
    let (mut client, clock) = client(channel(address));
    let status = unary(&mut client, "/test.Echo/Put", hello())
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(clock.sleeps().len(), 3);
}

#[tokio::test]
async fn a_given_up_grpc_call_reports_its_stop_reason() {
    let (server, channel) = Scripted::answering([ScriptedAnswer::Refuse(unavailable())]).await;
    let layer = layer(preset()).traced().clock(VirtualClock::new());
    let service = layer.grpc(methods()).layer(channel);
    let message = http_body_util::Full::new(Bytes::from_static(b"\x00\x00\x00\x00\x05hello"));
    let request = http::Request::post(GET)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(message))
        .unwrap();
    let response = service.oneshot(request).await.unwrap();
    let status = relent_http::grpc::Status::read(response.headers()).unwrap();
    assert_eq!(status.to_string(), "grpc unavailable: restarting");
    let summary = response.extensions().get::<Summary>().unwrap();
    assert_eq!(summary.reason, Some(StopReason::RetriesExhausted));
    let entries = summary.trace.as_ref().unwrap().entries();
    let seen: Vec<_> = entries
        .map(|entry| entry.seen.unwrap().to_string())
        .collect();
    assert_eq!(seen, ["grpc unavailable"; 4]);
    assert_eq!(server.calls(), 4);
}

/// A server that has lost the outcome of the first call with a key responds so to its repetitions.
#[tokio::test]
async fn a_failed_precondition_after_an_ambiguous_call_with_a_key_leaves_the_outcome_unknown() {
    let mut lost = Status::failed_precondition("it may have taken effect");
    let pushback = "grpc-retry-pushback-ms";
    lost.metadata_mut().insert(pushback, "-1".parse().unwrap());
    let lost = || ScriptedAnswer::Refuse(lost.clone());
    let first = || ScriptedAnswer::Refuse(unavailable());
    // The handler of a repetition, or a stored response.
    let rejected = || ScriptedAnswer::Refuse(Status::failed_precondition("closed account"));
    for (answers, key, reason) in [
        (vec![first(), lost()], Some("a"), StopReason::OutcomeUnknown),
        (vec![first(), rejected()], Some("a"), StopReason::Permanent),
        (vec![first(), lost()], None, StopReason::DoNotRetry),
        (vec![lost()], Some("a"), StopReason::DoNotRetry),
    ] {
        let calls = answers.len();
        let (server, channel) = Scripted::answering(answers).await;
        let layer = layer(preset()).traced().clock(VirtualClock::new());
        let message = http_body_util::Full::new(Bytes::from_static(b"\x00\x00\x00\x00\x05hello"));
        let mut request = http::Request::post(GET)
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Body::new(message)).unwrap();
        let service = layer.grpc(methods()).layer(channel);
        let response = service.oneshot(request).await.unwrap();
        let summary = response.extensions().get::<Summary>().unwrap();
        assert_eq!((summary.reason, server.calls()), (Some(reason), calls));
    }
}

/// The rate admits one attempt in a thousand seconds, longer than any caller waits.
#[tokio::test]
async fn a_grpc_status_is_returned_when_its_retry_is_held() {
    for answer in both(&unavailable()) {
        let (server, channel) = Scripted::answering([answer]).await;
        let rate = RateLimitConfig {
            burst: Some(1),
            ..RateLimitConfig::new(0.001)
        };
        let policy = preset().into_builder().rate_limit(rate).build().unwrap();
        let layer = layer(policy).clock(VirtualClock::new()).grpc(methods());
        let mut client = Grpc::new(layer.layer(channel));
        let status = unary(&mut client, GET, hello()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert_eq!(status.message(), unavailable().message());
        assert_eq!(server.calls(), 1);
    }
}

/// A client with a configuration that hedges `Get` and `Put`, of which only `Get` may run twice.
fn hedging(channel: Channel) -> Retried<relent::clock::TokioClock> {
    let policy = r#"{ "maxAttempts": 3, "hedgingDelay": "0.05s", "nonFatalStatusCodes": [14] }"#;
    let config = format!(
        r#"{{ "methodConfig": [{{ "name": [{{ "service": "test.Echo" }}], "hedgingPolicy": {policy} }}] }}"#
    );
    let config = ServiceConfig::from_json(&config).unwrap();
    let layer = layer(preset()).grpc(config.repeatable(["test.Echo/Get"]));
    Grpc::new(layer.layer(channel))
}

#[tokio::test]
async fn a_hedging_policy_sends_a_slow_call_again_with_its_message() {
    let (server, channel) = Scripted::answering([
        ScriptedAnswer::Stall,
        ScriptedAnswer::Say(vec!["the hedge"]),
    ])
    .await;
    let request = Request::new(Bytes::from_static(b"question"));
    let response = unary(&mut hedging(channel), GET, request).await.unwrap();
    assert_eq!(response.into_inner(), "the hedge");
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    for (call, previous) in seen.iter().zip([None, Some("1")]) {
        assert_eq!(call.message, "question");
        assert_eq!(call.header("grpc-previous-rpc-attempts"), previous);
    }
}

#[tokio::test]
async fn a_non_fatal_status_sends_the_next_hedge_immediately() {
    let refused = ScriptedAnswer::Refuse(Status::unavailable("not here"));
    let (server, channel) = Scripted::answering([refused, ScriptedAnswer::Say(vec!["here"])]).await;
    let response = unary(&mut hedging(channel), GET, Request::new(Bytes::new())).await;
    assert_eq!(response.unwrap().into_inner(), "here");
    assert_eq!(server.calls(), 2);
}

#[tokio::test]
async fn a_fatal_status_ends_all_calls_of_a_race() {
    let refused = ScriptedAnswer::Refuse(Status::invalid_argument("no"));
    let (server, channel) = Scripted::answering([ScriptedAnswer::Stall, refused]).await;
    let status = unary(&mut hedging(channel), GET, Request::new(Bytes::new())).await;
    assert_eq!(status.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(server.calls(), 2);
}

#[tokio::test]
async fn a_method_that_is_not_declared_repeatable_is_not_hedged() {
    let (server, channel) = Scripted::answering([ScriptedAnswer::Stall]).await;
    let mut request = Request::new(Bytes::new());
    request.set_timeout(Duration::from_millis(300));
    let status = unary(&mut hedging(channel), "/test.Echo/Put", request).await;
    assert_eq!(status.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(server.calls(), 1);
}

#[tokio::test]
async fn a_marked_status_is_not_retried_in_headers_or_trailers() {
    for mark in ["exhausted", "overloaded"] {
        let mut status = unavailable();
        let value = MetadataValue::from_static(mark);
        status.metadata_mut().insert("relent-mark", value);
        for answer in both(&status) {
            let (server, channel) = Scripted::answering([answer, say("late")]).await;
            let (mut client, _) = client(channel);
            client.ready().await.unwrap();
            let path = PathAndQuery::from_static(GET);
            let refused = client.unary(hello(), path, Raw).await;
            assert_eq!(refused.unwrap_err().code(), Code::Unavailable, "{mark}");
            assert_eq!(server.calls(), 1, "{mark}");
        }
    }
}

#[tokio::test]
async fn a_mark_in_the_headers_applies_to_the_status_in_the_trailers() {
    let answers = [
        ScriptedAnswer::Break(Vec::new(), unavailable()),
        say("late"),
    ];
    let (server, channel) = Scripted::answering(answers).await;
    let marked = ServiceBuilder::new().map_response(|mut response: http::Response<_>| {
        Mark::Overloaded.set(response.headers_mut());
        response
    });
    let layer = layer(preset()).clock(VirtualClock::new()).grpc(methods());
    let mut client = Grpc::new(layer.layer(marked.service(channel)));
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static(GET);
    let refused = client.unary(hello(), path, Raw).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unavailable);
    assert_eq!(server.calls(), 1);
}

#[tokio::test]
async fn cross_layer_sends_attempt_and_deadline_over_grpc() {
    let (server, channel) =
        Scripted::answering([ScriptedAnswer::Refuse(unavailable()), say("done")]).await;
    let policy = preset().into_builder().deadline(Duration::from_secs(20));
    let layer = layer(policy.build().unwrap());
    let mut client = Grpc::new(layer.cross_layer().grpc(methods()).layer(channel));
    unary(&mut client, GET, hello()).await.unwrap();
    let seen = server.seen();
    assert_eq!(seen[0].header("relent-attempt"), None);
    assert_eq!(seen[1].header("relent-attempt"), Some("2"));
    let left = |call: usize| {
        seen[call]
            .header("relent-deadline-ms")
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    assert!(left(1) < left(0), "{} of {}", left(1), left(0));
}

/// gRFC A6: the headers of a response commit the call. The server has started it, so a later
/// `REFUSED_STREAM` does not prove that it was not processed.
#[tokio::test]
async fn a_stream_refused_after_its_headers_is_ambiguous() {
    for (path, expected) in [("/test.Echo/Put", 1), (GET, 2)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let server = tokio::spawn(async move {
            let (socket, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(socket).await.unwrap();
            while let Some(Ok((_request, mut respond))) = connection.accept().await {
                let head = http::Response::builder().header("content-type", "application/grpc");
                let head = head.body(()).unwrap();
                let mut body = respond.send_response(head, false).unwrap();
                if counted.fetch_add(1, Ordering::Relaxed) == 0 {
                    // Send the headers before the reset.
                    tokio::task::yield_now().await;
                    let flushed = std::future::poll_fn(|context| {
                        let _ = connection.poll_closed(context);
                        std::task::Poll::Ready(())
                    });
                    flushed.await;
                    body.send_reset(h2::Reason::REFUSED_STREAM);
                    continue;
                }
                let message = Bytes::from_static(b"\x00\x00\x00\x00\x04done");
                body.send_data(message, false).unwrap();
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().unwrap());
                body.send_trailers(trailers).unwrap();
            }
        });
        let (mut client, _) = client(channel(address));
        let result = unary(&mut client, path, hello()).await;
        assert_eq!(
            calls.load(Ordering::Relaxed),
            expected,
            "{path}: {result:?}"
        );
        assert_eq!(result.is_ok(), expected == 2, "{path}: {result:?}");
        server.abort();
    }
}

fn millis(seen: &grpc_support::Seen) -> u64 {
    let timeout = seen.header("grpc-timeout").unwrap();
    let (number, unit) = timeout.split_at(timeout.len() - 1);
    let number: u64 = number.parse().unwrap();
    match unit {
        "u" => number / 1000,
        "m" => number,
        "S" => number * 1000,
        _ => panic!("{timeout}"),
    }
}

/// The call waited for 20 of its 60 seconds.
#[tokio::test]
async fn a_held_first_attempt_is_sent_with_the_remaining_timeout() {
    let (clock, policy) = (VirtualClock::new(), preset());
    let there = Arc::new(Destination::new(&policy));
    let mut other = Driver::builder(&policy, clock.clone())
        .destination(&there)
        .start();
    let permit = other.enter(None).permit().unwrap();
    other.on_attempt(permit);
    let hint = Hint::after(Duration::from_secs(20));
    other.on_failure(&Failure::throttled().hint(hint));
    let (seen, mut arrived) = tokio::sync::mpsc::unbounded_channel();
    // In virtual time, so without a socket.
    let service = tower::service_fn(move |request: http::Request<Body>| {
        seen.send(request.headers()["grpc-timeout"].clone())
            .unwrap();
        let response = http::Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", "0")
            .body(Body::empty());
        async { Ok::<_, relent_http::BoxError>(response.unwrap()) }
    });
    let layer = layer(preset()).destination(there.clone());
    let service = layer.clock(clock.clone()).grpc(methods()).layer(service);
    let request = http::Request::post(GET)
        .header("grpc-timeout", "60S")
        .body(Body::empty())
        .unwrap();
    service.oneshot(request).await.unwrap();
    let waited = clock.elapsed();
    assert!(waited >= Duration::from_secs(20));
    let told = arrived.recv().await.unwrap();
    let told = told.to_str().unwrap().strip_suffix('u').unwrap();
    let told = Duration::from_micros(told.parse().unwrap());
    let left = Duration::from_secs(60) - waited;
    assert!(told <= left && left - told < Duration::from_millis(1));
}

#[tokio::test]
async fn the_grpc_timeout_is_capped_by_the_policy_deadline() {
    let (server, channel) = Scripted::answering([say("done")]).await;
    let policy = preset().into_builder().deadline(Duration::from_secs(10));
    let layer = layer(policy.build().unwrap()).grpc(methods());
    let mut request = hello();
    request.set_timeout(Duration::from_secs(60));
    let mut client = Grpc::new(layer.layer(channel));
    unary(&mut client, GET, request).await.unwrap();
    assert!(millis(&server.seen()[0]) <= 10_000);
}

#[tokio::test]
async fn a_hedge_is_sent_with_the_remaining_timeout() {
    let (server, channel) = Scripted::answering([ScriptedAnswer::Stall, say("the hedge")]).await;
    let mut request = hello();
    request.set_timeout(Duration::from_secs(60));
    unary(&mut hedging(channel), GET, request).await.unwrap();
    // It was due after 50 ms.
    let seen = server.seen();
    assert!(millis(&seen[1]) <= 60_000 - 50, "{seen:?}");
}

#[tokio::test]
async fn a_call_with_a_zero_timeout_is_not_sent() {
    for zero in ["0n", "0S", "00000000H"] {
        let (server, channel) = Scripted::answering([say("done")]).await;
        let (mut client, _) = client(channel);
        let mut request = hello();
        let zero = zero.parse().unwrap();
        request.metadata_mut().insert("grpc-timeout", zero);
        let status = unary(&mut client, GET, request).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
        assert_eq!(server.calls(), 0);
    }
}

/// gRFC A6 has no such field on a first attempt.
#[tokio::test]
async fn the_number_of_previous_attempts_is_per_hop() {
    let (server, channel) =
        Scripted::answering([ScriptedAnswer::Refuse(unavailable()), say("done")]).await;
    let (mut client, _) = client(channel);
    let mut request = hello();
    let forwarded = "3".parse().unwrap();
    let metadata = request.metadata_mut();
    metadata.insert("grpc-previous-rpc-attempts", forwarded);
    unary(&mut client, GET, request).await.unwrap();
    let seen = server.seen();
    let told = |call: usize| seen[call].header("grpc-previous-rpc-attempts");
    assert_eq!((told(0), told(1)), (None, Some("1")));
}
