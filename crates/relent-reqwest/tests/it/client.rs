//! The client on real sockets: which requests are retried or never run twice, and which bodies are resumed.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Method, Request, Response};
use relent::destination::Budget;
use relent::policy::{BudgetConfig, PolicyBuilder};
use relent::{Backoff, Destination, GaveUp, Jitter, Policy, StopReason, Summary};
use relent_reqwest::default_builder;
use relent_reqwest::{AttemptError, Body, Client, Error, Resumable, Sink};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::scripted::{
    Server, Step, TEST_TIMEOUT, cut, pattern, response, rest, unused_address, with_paused_time,
    with_silences,
};

fn quick() -> PolicyBuilder {
    Policy::builder(Backoff::constant(Duration::from_millis(1)))
        .jitter(Jitter::None)
        .max_retries(3)
}

fn client(policy: PolicyBuilder) -> Client {
    // No proxy, even if the environment names one: the tests use this machine without TLS. Reading the system's
    // certificates for every test would take long.
    let plain = || default_builder().no_proxy().tls_certs_only([]);
    Client::from_builder(plain, policy.build().unwrap()).unwrap()
}

fn request(
    method: Method,
    url: &str,
    fields: &[(&str, &str)],
    body: impl Into<Body>,
) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(url);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(body.into()).unwrap()
}

fn get(url: &str) -> Request<Body> {
    request(Method::GET, url, &[], ())
}

fn gave_up(error: Error) -> GaveUp<AttemptError> {
    match error {
        Error::GaveUp(gave_up) => gave_up,
        error => panic!("{error}"),
    }
}

type Downloaded = Result<(Response<()>, Summary), GaveUp<AttemptError>>;

/// How it ended: the last status or the last failure's cause, and the reason.
fn ending(result: &Downloaded) -> (Option<u16>, Option<StopReason>, u32) {
    match result {
        Ok((head, summary)) => (
            Some(head.status().as_u16()),
            summary.reason,
            summary.attempts,
        ),
        Err(gave_up) => (None, Some(gave_up.reason()), gave_up.attempts()),
    }
}

const OK: &[u8] = b"done";

fn ok() -> Step {
    Step::Answer(response(200, &[], OK))
}

type Fields = &'static [(&'static str, &'static str)];

/// The requests of the tables, each with its headers and whether it is repeatable.
const REQUESTS: [(&str, Fields, bool); 6] = [
    ("GET", &[], true),
    ("PUT", &[], true),
    ("POST", &[("idempotency-key", "\"k\"")], true),
    ("PATCH", &[("if-match", "\"v1\"")], true),
    ("POST", &[], false),
    ("PATCH", &[], false),
];

/// Sends every request to a server that fails once in this way and then succeeds. Returns how each one ended.
async fn fails_once(
    fault: &Step,
    policy: fn() -> PolicyBuilder,
) -> Vec<(bool, Server, Downloaded)> {
    let mut endings = Vec::new();
    for (method, fields, repeatable) in REQUESTS {
        let server = Server::script([fault.clone(), ok()]);
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let body = if method == Method::GET { "" } else { "payload" };
        let request = request(method, &server.url("/"), fields, body);
        let mut sink = Vec::new();
        let client = client(policy());
        let sent = client.download(request, &mut sink);
        let result = match fault {
            Step::Stall(_) => with_silences(&server, 1, TEST_TIMEOUT, sent).await,
            _ => sent.await,
        };
        if let Ok((head, _)) = &result
            && head.status() == 200
        {
            assert_eq!(sink, OK, "{fault:?}");
        }
        endings.push((repeatable, server, result));
    }
    endings
}

#[tokio::test]
async fn any_request_is_retried_after_a_status_for_not_processed() {
    for (status, fields) in [
        (503, [("retry-after", "0")].as_slice()),
        (408, &[("retry-after-ms", "1")]),
        (
            503,
            &[
                ("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"),
                ("date", "Sun, 06 Nov 1994 08:49:39 GMT"),
            ],
        ),
        (421, &[]),
        (425, &[]),
        (429, &[]),
    ] {
        let fault = Step::Answer(response(status, fields, "no"));
        for (_, server, result) in fails_once(&fault, quick).await {
            assert_eq!(ending(&result), (Some(200), None, 2), "{status}");
            assert_eq!(server.count(), 2, "{status}");
        }
    }
}

#[tokio::test]
async fn after_an_ambiguous_failure_only_repeatable_requests_are_retried() {
    let timeout = || quick().attempt_timeout(TEST_TIMEOUT);
    let head = b"HTTP/1.1 200 OK\r\nconte".to_vec();
    let body = cut(200, &[], b"a body that is longer", 5);
    let chunk = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n".to_vec();
    let faults: [(Step, fn() -> PolicyBuilder); 14] = [
        (Step::Answer(response(503, &[], "no")), quick),
        (Step::Answer(response(500, &[], "no")), quick),
        (Step::Answer(response(502, &[], "no")), quick),
        (Step::Answer(response(504, &[], "no")), quick),
        (Step::Close(Vec::new()), quick),
        (Step::Reset(Vec::new()), quick),
        (Step::Close(head.clone()), quick),
        (Step::Reset(head), quick),
        (Step::Close(body.clone()), quick),
        (Step::Reset(body.clone()), quick),
        (Step::Close(chunk), quick),
        (Step::Close(b"SSH-2.0-OpenSSH_9.2p1\r\n".to_vec()), quick),
        (Step::Stall(Vec::new()), timeout),
        (Step::Stall(body), timeout),
    ];
    for (fault, policy) in faults {
        for (repeatable, server, result) in fails_once(&fault, policy).await {
            if repeatable {
                assert_eq!(ending(&result), (Some(200), None, 2), "{fault:?}");
            } else {
                let (status, reason, attempts) = ending(&result);
                assert_ne!(status, Some(200), "{fault:?}");
                assert_eq!(
                    (reason, attempts),
                    (Some(StopReason::NotRepeatable), 1),
                    "{fault:?}"
                );
                assert_eq!(server.count(), 1, "{fault:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_permanent_failure_is_attempted_once() {
    for status in [400, 403, 404, 409, 501] {
        let fault = Step::Answer(response(status, &[], "no"));
        for (_, server, result) in fails_once(&fault, quick).await {
            assert_eq!(
                ending(&result),
                (Some(status), Some(StopReason::Permanent), 1)
            );
            assert_eq!(server.count(), 1);
        }
    }
}

#[tokio::test]
async fn any_request_is_retried_after_a_refused_connection() {
    let url = format!("http://{}/", unused_address());
    for (method, fields, _) in REQUESTS {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = request(method, &url, fields, ());
        let gave_up = gave_up(client(quick()).send(&request).await.unwrap_err());
        assert_eq!(
            (gave_up.reason(), gave_up.attempts()),
            (StopReason::RetriesExhausted, 4)
        );
        let error = gave_up.into_error().unwrap().to_string();
        assert!(error.to_lowercase().contains("refused"), "{error}");
    }
}

#[tokio::test]
async fn a_policy_can_assume_that_requests_are_repeatable() {
    let server = Server::script([Step::Close(Vec::new()), ok()]);
    let client = client(quick().assume_repeatable(true));
    let request = request(Method::POST, &server.url("/"), &[], "payload");
    let (response, summary) = client.send(&request).await.unwrap().into_parts();
    assert_eq!((response.status().as_u16(), summary.attempts), (200, 2));
    assert!(server.seen().iter().all(|seen| seen.body == b"payload"));
}

#[tokio::test]
async fn the_last_response_is_returned_unchanged() {
    let server = Server::script([Step::Answer(response(503, &[("x-who", "me")], "busy"))]);
    let client = client(quick().max_retries(1));
    let (response, summary) = client
        .send(&get(&server.url("/")))
        .await
        .unwrap()
        .into_parts();
    assert_eq!((response.status().as_u16(), summary.attempts), (503, 2));
    assert_eq!(summary.reason, Some(StopReason::RetriesExhausted));
    assert_eq!(response.headers()["x-who"], "me");
    assert_eq!(response.text().await.unwrap(), "busy");

    let mut sink = Vec::new();
    let (head, _) = client
        .download(get(&server.url("/")), &mut sink)
        .await
        .unwrap();
    assert_eq!(
        (head.status().as_u16(), sink.as_slice()),
        (503, b"busy".as_slice())
    );
}

#[tokio::test]
async fn a_retry_after_beyond_the_limits_sets_retry_at() {
    let server = Server::script([Step::Answer(response(503, &[("retry-after", "7200")], ""))]);
    let (_, summary) = client(quick())
        .send(&get(&server.url("/")))
        .await
        .unwrap()
        .into_parts();
    assert_eq!(
        (summary.reason, summary.attempts),
        (Some(StopReason::RetryLater), 1)
    );
    let ahead = summary
        .retry_at
        .unwrap()
        .duration_since(std::time::SystemTime::now());
    assert!((7190..=7200).contains(&ahead.unwrap().as_secs()));
}

#[tokio::test]
async fn the_client_waits_for_retry_after() {
    let hinted = response(503, &[("retry-after-ms", "200")], "");
    let server = Server::script([Step::Answer(hinted), ok()]);
    let began = Instant::now();
    let (_, summary) = client(quick())
        .send(&get(&server.url("/")))
        .await
        .unwrap()
        .into_parts();
    assert_eq!(summary.attempts, 2);
    assert!(began.elapsed() >= Duration::from_millis(200));
}

#[tokio::test]
async fn the_deadline_cuts_off_a_running_attempt() {
    let server = Server::script([Step::Stall(Vec::new())]);
    let client = client(quick().deadline(TEST_TIMEOUT));
    let request = get(&server.url("/"));
    let sent = with_silences(&server, 1, TEST_TIMEOUT, client.send(&request)).await;
    let gave_up = gave_up(sent.unwrap_err());
    assert_eq!(
        (gave_up.reason(), gave_up.attempts()),
        (StopReason::Deadline, 1)
    );
    assert!(matches!(gave_up.error(), Some(AttemptError::Timeout(_))));
}

#[tokio::test]
async fn an_exhausted_budget_returns_the_last_real_outcome() {
    let server = Server::script([Step::Answer(response(503, &[], "no"))]);
    let one = BudgetConfig {
        initial_tokens: 1.0,
        ..BudgetConfig::DEFAULT
    };
    let of_policy = client(quick().budget(one));
    let there = Destination::new(quick().build().unwrap());
    let there = there.with_budget(Budget::new(&one).unwrap());
    let given = client(quick()).destination(Arc::new(there));
    for client in [of_policy, given] {
        let (_, first) = client
            .send(&get(&server.url("/")))
            .await
            .unwrap()
            .into_parts();
        // A clone uses the same budget.
        let (last, second) = client
            .clone()
            .send(&get(&server.url("/")))
            .await
            .unwrap()
            .into_parts();
        assert_eq!(
            (first.reason, first.attempts),
            (Some(StopReason::Budget), 2)
        );
        assert_eq!(
            (second.reason, second.attempts),
            (Some(StopReason::Budget), 1)
        );
        assert_eq!(last.status(), 503);
    }
}

#[tokio::test]
async fn a_download_can_run_in_a_spawned_task() {
    let server = Server::script([ok()]);
    let client = client(quick());
    let task = tokio::spawn(async move {
        let mut sink = Vec::new();
        client
            .download(get(&server.url("/")), &mut sink)
            .await
            .unwrap();
        sink
    });
    assert_eq!(task.await.unwrap(), OK);
}

#[tokio::test]
async fn a_short_refused_response_is_drained_and_its_connection_reused() {
    let chunked = |length: usize| {
        let mut bytes = b"HTTP/1.1 503 X\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        bytes.extend_from_slice(format!("{length:x}\r\n").as_bytes());
        bytes.extend_from_slice(&vec![b'x'; length]);
        bytes.extend_from_slice(b"\r\n0\r\n\r\n");
        bytes
    };
    let known = |length| response(503, &[], vec![b'x'; length]);
    let refused = [
        known(200_000),
        known(3_000_000),
        chunked(200_000),
        chunked(3_000_000),
    ];
    let server = Server::script(refused.map(Step::Answer).into_iter().chain([ok()]));
    let no_delay = quick().backoff(Backoff::constant(Duration::ZERO));
    let client = client(no_delay.max_retries(4));
    let request = get(&server.url("/"));
    // Draining has a time limit.
    let sent = with_paused_time(client.send(&request)).await;
    let (_, summary) = sent.unwrap().into_parts();
    assert_eq!(summary.attempts, 5);
    let connections: Vec<usize> = server.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [1, 1, 2, 2, 3]);
}

#[tokio::test]
async fn draining_a_slow_response_has_a_time_limit() {
    let busy = Step::Stall(cut(503, &[], b"busy", 1));
    let server = Server::script([busy, ok()]);
    let began = Instant::now();
    let (_, summary) = client(quick())
        .send(&get(&server.url("/")))
        .await
        .unwrap()
        .into_parts();
    assert_eq!(summary.attempts, 2);
    assert!(began.elapsed() < TEST_TIMEOUT, "the rest never comes");
}

#[tokio::test]
async fn a_421_is_retried_once_on_a_new_connection() {
    let misdirected = Step::Answer(response(421, &[], ""));
    let server = Server::script([misdirected.clone(), ok(), misdirected]);
    let client = client(quick());
    let (_, summary) = client
        .send(&get(&server.url("/")))
        .await
        .unwrap()
        .into_parts();
    assert_eq!(summary.attempts, 2);
    assert_ne!(server.seen()[0].connection, server.seen()[1].connection);

    let (last, summary) = client
        .send(&get(&server.url("/")))
        .await
        .unwrap()
        .into_parts();
    assert_eq!((last.status().as_u16(), summary.attempts), (421, 2));
}

#[tokio::test]
async fn a_425_is_retried_once() {
    let server = Server::script([Step::Answer(response(425, &[], ""))]);
    let (last, summary) = client(quick())
        .send(&get(&server.url("/")))
        .await
        .unwrap()
        .into_parts();
    assert_eq!((last.status().as_u16(), summary.attempts), (425, 2));
}

#[tokio::test]
async fn every_attempt_sends_the_whole_body() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let large = pattern(1, 300_000);
    std::fs::write(file.path(), &large).unwrap();
    let server = Server::script([
        Step::Answer(response(503, &[], "")),
        Step::Close(Vec::new()),
        ok(),
    ]);
    let body = Body::file(file.path()).unwrap();
    let request = request(Method::PUT, &server.url("/"), &[], body);
    let (_, summary) = client(quick()).send(&request).await.unwrap().into_parts();
    assert_eq!(summary.attempts, 3);
    for seen in server.seen() {
        assert_eq!(seen.header("content-length"), Some("300000"));
        assert!(seen.body == large);
    }
}

#[tokio::test]
async fn post_and_put_without_a_body_send_content_length_zero() {
    let server = Server::script([ok()]);
    for (method, length) in [("POST", Some("0")), ("PUT", Some("0")), ("DELETE", None)] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = request(method, &server.url("/"), &[], ());
        client(quick()).send(&request).await.unwrap();
        let seen = server.seen();
        assert_eq!(seen.last().unwrap().header("content-length"), length);
    }
}

#[tokio::test]
async fn a_file_body_that_changed_is_not_sent_again() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "one").unwrap();
    let path = file.path().to_owned();
    let server = Server::answering(move |_, _| {
        std::fs::write(&path, "another").unwrap();
        Step::Answer(response(503, &[], ""))
    });
    let body = Body::file(file.path()).unwrap();
    let request = request(Method::PUT, &server.url("/"), &[], body);
    let (response, summary) = client(quick()).send(&request).await.unwrap().into_parts();
    assert_eq!(response.status(), 503, "the last real outcome");
    assert_eq!(
        (summary.reason, summary.attempts),
        (Some(StopReason::NotReplayable), 1)
    );
    assert_eq!(server.count(), 1);
}

#[tokio::test]
async fn a_trace_contains_every_attempt() {
    let server = Server::script([
        Step::Close(Vec::new()),
        Step::Answer(response(503, &[], "")),
        ok(),
    ]);
    let client = client(quick()).traced();
    let (_, summary) = client
        .send(&get(&server.url("/")))
        .await
        .unwrap()
        .into_parts();
    let trace = summary.trace.unwrap();
    let outcomes: Vec<String> = trace
        .entries()
        .map(|entry| entry.seen.map(|seen| seen.to_string()).unwrap())
        .collect();
    assert_eq!(outcomes, ["connection reset", "status 503", "status 200"]);
}

#[tokio::test]
async fn a_request_that_cannot_be_sent_is_attempted_once() {
    let gave_up = gave_up(client(quick()).send(&get("/no/host")).await.unwrap_err());
    assert_eq!(
        (gave_up.reason(), gave_up.attempts()),
        (StopReason::Permanent, 1)
    );
}

/// Serves `whole` with a strong tag and ranges. Response `n` is cut after `lengths[n]` bytes of its body.
fn by_ranges(whole: &[u8], etag: &'static str, lengths: Vec<usize>) -> Server {
    let whole = whole.to_vec();
    Server::answering(move |index, seen| {
        let length = lengths.get(index).copied().unwrap_or(usize::MAX);
        Step::Close(match seen.range_start() {
            Some(first) if seen.header("if-range") == Some(etag) => {
                rest(first, &whole, etag, length)
            }
            _ => cut(200, &[("etag", etag)], &whole, length),
        })
    })
}

#[tokio::test]
async fn a_cut_body_with_a_strong_tag_is_resumed_exactly() {
    let whole = pattern(7, 250_000);
    for seed in 0..20 {
        // The cuts differ between the iterations, but not between test runs.
        let cuts: Vec<usize> = pattern(seed, 9)
            .chunks(3)
            .map(|bytes| {
                bytes
                    .iter()
                    .fold(0, |sum, byte| sum * 256 + usize::from(*byte))
                    % 90_000
            })
            .collect();
        let server = by_ranges(&whole, "\"v1\"", cuts.clone());
        let mut sink = Vec::new();
        let result = client(quick())
            .download(get(&server.url("/")), &mut sink)
            .await;
        let (_, reason, attempts) = ending(&result);
        assert_eq!((reason, attempts), (None, 4), "{cuts:?}");
        assert!(sink == whole, "{cuts:?}");
        let mut from = 0;
        for (seen, cut) in server.seen().iter().zip(cuts.iter().chain([&0])) {
            assert_eq!(seen.range_start(), (from > 0).then_some(from));
            from += cut;
        }
    }
}

#[tokio::test]
async fn a_cut_body_without_a_strong_tag_restarts() {
    let whole = pattern(8, 100_000);
    for fields in [
        &[][..],
        &[("etag", "W/\"v1\"")],
        &[("etag", "\"v1\""), ("content-encoding", "br")],
        &[("etag", "\"v1\""), ("accept-ranges", "none")],
        &[("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")],
    ] {
        let server = Server::script([
            Step::Close(cut(200, fields, &whole, 70_000)),
            Step::Reset(cut(200, fields, &whole, 30_000)),
            Step::Answer(response(200, fields, &whole)),
        ]);
        let mut sink = Vec::new();
        let result = client(quick())
            .download(get(&server.url("/")), &mut sink)
            .await;
        assert_eq!(ending(&result), (Some(200), None, 3), "{fields:?}");
        assert!(sink == whole, "{fields:?}");
        assert!(
            server
                .seen()
                .iter()
                .all(|seen| seen.header("range").is_none())
        );
    }
}

#[tokio::test]
async fn bytes_of_two_representations_are_never_mixed() {
    let (old, new) = (pattern(1, 50_000), pattern(2, 60_000));
    let wrong_range = |first: usize| {
        let range = format!("bytes {first}-49999/50000");
        cut(
            206,
            &[("etag", "\"old\""), ("content-range", &range)],
            &old[first..],
            usize::MAX,
        )
    };
    // Responses to a request for the rest of the old representation from byte 20,000.
    let answers = [
        (
            "a new representation",
            response(200, &[("etag", "\"new\"")], &new),
            2,
        ),
        ("another tag", rest(20_000, &new, "\"new\"", usize::MAX), 3),
        (
            "no tag",
            cut(
                206,
                &[("content-range", "bytes 20000-49999/50000")],
                &old[20_000..],
                usize::MAX,
            ),
            3,
        ),
        ("a range that begins before", wrong_range(19_999), 3),
        ("a range that begins after", wrong_range(20_001), 3),
        (
            "another total",
            rest(20_000, &new, "\"old\"", usize::MAX),
            3,
        ),
        (
            "416",
            response(416, &[("content-range", "bytes */10")], ""),
            3,
        ),
        ("412", response(412, &[], ""), 3),
        (
            "more than the range",
            {
                let fields = [
                    ("etag", "\"old\""),
                    ("content-range", "bytes 20000-29999/50000"),
                ];
                cut(206, &fields, &old[20_000..], usize::MAX)
            },
            3,
        ),
    ];
    for (what, answer, attempts) in answers {
        let server = Server::script([
            Step::Close(cut(200, &[("etag", "\"old\"")], &old, 20_000)),
            Step::Answer(answer),
            Step::Answer(response(200, &[("etag", "\"new\"")], &new)),
        ]);
        let mut sink = Vec::new();
        let result = client(quick())
            .download(get(&server.url("/")), &mut sink)
            .await;
        assert_eq!(ending(&result), (Some(200), None, attempts), "{what}");
        assert!(sink == new, "{what}");
        assert_eq!(server.seen()[1].range_start(), Some(20_000), "{what}");
    }
}

#[tokio::test]
async fn a_failure_between_two_parts_keeps_the_first_part() {
    let whole = pattern(3, 50_000);
    let server = Server::script([
        Step::Close(cut(200, &[("etag", "\"v1\"")], &whole, 20_000)),
        Step::Answer(response(503, &[], "busy")),
        Step::Close(Vec::new()),
        Step::Answer(rest(20_000, &whole, "\"v1\"", usize::MAX)),
    ]);
    let mut sink = Vec::new();
    let result = client(quick())
        .download(get(&server.url("/")), &mut sink)
        .await;
    assert_eq!(ending(&result), (Some(200), None, 4));
    assert!(sink == whole);
    // A caller that requested the whole does not see in how many parts it arrived.
    let (head, _) = result.unwrap();
    assert!(!head.headers().contains_key("content-range"));
    assert_eq!(head.headers()["content-length"], whole.len().to_string());
}

#[tokio::test]
async fn a_206_with_less_than_the_rest_is_continued() {
    let whole = pattern(4, 50_000);
    let part = |first: usize, end: usize| {
        let range = format!("bytes {first}-{}/50000", end - 1);
        response(
            206,
            &[("etag", "\"v1\""), ("content-range", &range)],
            &whole[first..end],
        )
    };
    let server = Server::script([
        Step::Close(cut(200, &[("etag", "\"v1\"")], &whole, 20_000)),
        Step::Answer(part(20_000, 40_000)),
        Step::Answer(part(40_000, 50_000)),
    ]);
    let mut sink = Vec::new();
    let result = client(quick())
        .download(get(&server.url("/")), &mut sink)
        .await;
    assert_eq!(ending(&result), (Some(200), None, 3));
    assert!(sink == whole);
}

#[tokio::test]
async fn a_cut_chunked_body_is_resumed() {
    let whole = pattern(5, 5000);
    let mut begun =
        b"HTTP/1.1 200 OK\r\netag: \"v1\"\r\ntransfer-encoding: chunked\r\n\r\n7d0\r\n".to_vec();
    begun.extend_from_slice(&whole[..2000]);
    begun.extend_from_slice(b"\r\n");
    let server = Server::script([
        Step::Close(begun),
        Step::Answer(rest(2000, &whole, "\"v1\"", usize::MAX)),
    ]);
    let mut sink = Vec::new();
    let result = client(quick())
        .download(get(&server.url("/")), &mut sink)
        .await;
    assert_eq!(ending(&result), (Some(200), None, 2));
    assert!(sink == whole);
}

#[tokio::test]
async fn a_body_ended_by_connection_close_counts_as_whole() {
    let server = Server::script([Step::Close(b"HTTP/1.0 200 OK\r\n\r\nall there is".to_vec())]);
    let mut sink = Vec::new();
    let result = client(quick())
        .download(get(&server.url("/")), &mut sink)
        .await;
    assert_eq!(ending(&result), (Some(200), None, 1));
    assert_eq!(sink, b"all there is");
}

#[tokio::test]
async fn a_range_header_of_the_caller_is_not_changed() {
    let whole = pattern(6, 5000);
    let part = |length| {
        cut(
            206,
            &[("etag", "\"v1\""), ("content-range", "bytes 0-1999/5000")],
            &whole[..2000],
            length,
        )
    };
    let server = Server::script([Step::Close(part(1000)), Step::Answer(part(2000))]);
    let request = request(
        Method::GET,
        &server.url("/"),
        &[("range", "bytes=0-1999")],
        (),
    );
    let mut sink = Vec::new();
    let result = client(quick()).download(request, &mut sink).await;
    assert_eq!(ending(&result), (Some(206), None, 2));
    assert!(sink == whole[..2000]);
    assert!(
        server
            .seen()
            .iter()
            .all(|seen| seen.header("range") == Some("bytes=0-1999"))
    );
}

/// A sink that cannot undo its writes.
#[derive(Default)]
struct OneWay {
    left: Vec<u8>,
    full_after: Option<usize>,
}

impl Sink for OneWay {
    async fn start(&mut self, _: &Response<()>, _: Option<&Resumable>) -> io::Result<()> {
        Ok(())
    }

    async fn write(&mut self, bytes: bytes::Bytes) -> io::Result<()> {
        if self.full_after.is_some_and(|full| self.left.len() >= full) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.left.extend_from_slice(&bytes);
        Ok(())
    }

    fn can_start_over(&self) -> bool {
        self.left.is_empty()
    }
}

#[tokio::test]
async fn a_sink_that_cannot_restart_gets_no_byte_twice() {
    let whole = pattern(9, 50_000);
    let server = by_ranges(&whole, "\"v1\"", vec![20_000]);
    let mut sink = OneWay::default();
    let result = client(quick())
        .download(get(&server.url("/")), &mut sink)
        .await;
    assert_eq!(ending(&result), (Some(200), None, 2));
    assert!(sink.left == whole, "what can be resumed goes on");

    for (fields, answer, attempts) in [
        (&[][..], ok(), 1),
        (
            &[("etag", "\"old\"")],
            Step::Answer(response(200, &[("etag", "\"new\"")], OK)),
            2,
        ),
        (
            &[("etag", "\"old\"")],
            Step::Answer(response(416, &[], "")),
            2,
        ),
    ] {
        let server = Server::script([Step::Close(cut(200, fields, &whole, 20_000)), answer]);
        let mut sink = OneWay::default();
        let result = client(quick())
            .download(get(&server.url("/")), &mut sink)
            .await;
        assert_eq!(
            ending(&result),
            (None, Some(StopReason::NotReplayable), attempts)
        );
        assert!(sink.left == whole[..20_000]);
    }
}

#[tokio::test]
async fn a_failing_sink_ends_the_download_immediately() {
    // More than one read can return, even if much has arrived meanwhile.
    let server = Server::script([Step::Answer(response(200, &[], vec![0; 8 << 20]))]);
    let mut sink = OneWay {
        full_after: Some(1000),
        ..OneWay::default()
    };
    let gave_up = client(quick())
        .download(get(&server.url("/")), &mut sink)
        .await
        .unwrap_err();
    assert_eq!(
        (gave_up.reason(), gave_up.attempts()),
        (StopReason::Permanent, 1)
    );
    assert!(matches!(gave_up.error(), Some(AttemptError::Sink(_))));
    assert_eq!(server.count(), 1);
}

#[tokio::test]
async fn a_cut_error_response_is_an_error() {
    let server = Server::script([Step::Close(cut(404, &[], b"not found", 3))]);
    let mut sink = Vec::new();
    let gave_up = client(quick())
        .download(get(&server.url("/")), &mut sink)
        .await
        .unwrap_err();
    assert_eq!(gave_up.reason(), StopReason::Permanent);
    assert_eq!(sink, b"not");
}

/// A server that accepts connections and never responds.
async fn silent() -> (tokio::net::TcpListener, String) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    (listener, url)
}

fn one_attempt() -> Client {
    let policy = Policy::builder(Backoff::None)
        .max_retries(0)
        .build()
        .unwrap();
    Client::from_builder(|| default_builder().no_proxy().tls_certs_only([]), policy).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_cut_off_after_a_minute_by_default() {
    let (_listener, url) = silent().await;
    let (client, begun) = (one_attempt(), tokio::time::Instant::now());
    for whole in [false, true] {
        let get = client.get(&url);
        let get = if whole { get.whole_body() } else { get };
        let error = get.send().await.unwrap_err();
        assert!(error.is_timeout(), "{error}");
        let text = error.to_string();
        assert!(text.contains("the server was silent for 1m"), "{text}");
    }
    assert_eq!(begun.elapsed().as_secs(), 120);

    // Turned off for a client and for a request. A limit that the caller sets replaces the default.
    let hour = Duration::from_secs(3600);
    for get in [
        one_attempt().no_read_timeout().get(&url),
        client.get(&url).no_read_timeout(),
    ] {
        assert!(tokio::time::timeout(hour, get.send()).await.is_err());
    }
    let begun = tokio::time::Instant::now();
    client.get(&url).timeout(hour).send().await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 3600);
    let begun = tokio::time::Instant::now();
    let sooner = client.get(&url).read_timeout(Duration::from_secs(5));
    sooner.send().await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 5);
}

#[tokio::test]
async fn a_stalled_response_body_ends_with_the_read_timeout() {
    let half = || Step::Stall(cut(200, &[], b"a body that is longer", 6));
    let server = Server::script([half()]);
    let client = one_attempt().read_timeout(Duration::from_millis(50));
    let mut response = client.get(server.url("/")).send().await.unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "a body");
    let error = response.chunk().await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    let response = client.get(server.url("/")).send().await.unwrap();
    assert!(response.text().await.unwrap_err().is_timeout());
    let whole = client.get(server.url("/")).whole_body().send().await;
    assert!(whole.unwrap_err().is_timeout());
}

/// The upload takes longer than the read timeout, but it always makes progress.
#[tokio::test]
async fn a_slow_upload_does_not_count_as_silence() {
    const LENGTH: usize = 16 << 20;
    let (listener, url) = silent().await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut piece = vec![0; 512 << 10];
        let mut read = 0;
        while read < LENGTH {
            read += stream.read(&mut piece).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let answer = response(200, &[], "");
        stream.write_all(&answer).await.unwrap();
        std::future::pending::<()>().await;
    });
    let begun = std::time::Instant::now();
    let client = one_attempt().read_timeout(Duration::from_millis(300));
    let put = client.put(&url).body(vec![7; LENGTH]).send().await.unwrap();
    assert_eq!(put.status(), 200);
    assert!(begun.elapsed() > Duration::from_millis(400));
    server.abort();
}
