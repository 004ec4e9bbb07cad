//! Downloads on real sockets: which ones resume or restart, what counts as progress, and which methods of a sink are
//! called.

use std::collections::HashSet;
use std::future::{pending, poll_fn};
use std::io;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use relent::destination::Budget;
use relent::policy::{BudgetConfig, PolicyBuilder};
use relent::{Backoff, Destination, Failure, GaveUp, Jitter, Policy, StopReason, Summary};
use relent_core::Scope;
use relent_reqwest::default_builder;
use relent_reqwest::{
    AttemptError, Body, Client, Download, DownloadHook, FailedAttempt, LastResult, NextDelay,
    Resumable, Sink, ToWriter,
};
use tokio::io::AsyncReadExt;
use tokio::sync::Notify;

use crate::scripted::{Seen, Server, Step, cut, pattern, response, rest};

const TAG: &str = "\"v1\"";
const LENGTH: usize = 50_000;

fn quick() -> PolicyBuilder {
    Policy::builder(Backoff::constant(Duration::from_millis(1)))
        .jitter(Jitter::None)
        .max_retries(3)
}

fn plain() -> reqwest::ClientBuilder {
    default_builder().no_proxy().tls_certs_only([])
}

fn client(policy: PolicyBuilder) -> Client {
    Client::from_builder(plain, policy.build().unwrap()).unwrap()
}

fn request(method: Method, url: &str, fields: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(url);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).unwrap()
}

fn get(url: &str) -> Request<Body> {
    request(Method::GET, url, &[])
}

async fn download(
    server: &Server,
    sink: &mut RecordingSink,
) -> Result<(Response<()>, Summary), GaveUp<AttemptError>> {
    let client = client(quick());
    client.download(get(&server.url("/")), sink).await
}

fn redirect(to: &str) -> Step {
    Step::Answer(response(302, &[("location", to)], ""))
}

/// `whole` with a tag, from the requested position, cut after `length` bytes.
fn ranged(whole: &[u8], seen: &Seen, length: usize) -> Step {
    Step::Close(match seen.range_start() {
        Some(first) => rest(first, whole, TAG, length),
        None => cut(200, &[("etag", TAG)], whole, length),
    })
}

fn paths(server: &Server) -> Vec<String> {
    let seen = server.seen();
    seen.iter().map(|seen| seen.path().to_owned()).collect()
}

/// For each failed attempt: whether its response was not the rest, and whether it made progress.
#[derive(Default)]
struct Failures(Vec<(bool, bool)>);

impl DownloadHook for Failures {
    fn after_failure(&mut self, _: u32, failed: &FailedAttempt, _: Option<NextDelay>) {
        let not_the_rest = matches!(
            failed.last,
            LastResult::Error(AttemptError::UnexpectedResponse(_))
        );
        self.0.push((not_the_rest, failed.progressed));
    }
}

/// A sink that records its calls.
#[derive(Default)]
struct RecordingSink {
    sink_calls: Vec<String>,
    bytes: Vec<u8>,
    /// After this many bytes, it reports that and never returns.
    busy_after: Option<usize>,
    at_work: Arc<Notify>,
    cannot_restart: bool,
}

impl RecordingSink {
    /// Starts with these bytes.
    fn with(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            ..Self::default()
        }
    }
}

impl Sink for RecordingSink {
    async fn start(&mut self, _: &Response<()>, resumable: Option<&Resumable>) -> io::Result<()> {
        let name = resumable.map_or("none", Resumable::validator);
        self.sink_calls.push(format!("start {name}"));
        self.bytes.clear();
        Ok(())
    }

    async fn resume(
        &mut self,
        _: &Response<()>,
        from: u64,
        resumable: Option<&Resumable>,
    ) -> io::Result<()> {
        let name = resumable.map_or("none", Resumable::validator);
        self.sink_calls.push(format!("resume {from} {name}"));
        Ok(())
    }

    async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        self.bytes.extend_from_slice(&bytes);
        if self.busy_after.is_some_and(|most| self.bytes.len() >= most) {
            self.busy_after = None;
            self.sink_calls.push("busy".to_owned());
            self.at_work.notify_one();
            return pending().await;
        }
        Ok(())
    }

    async fn complete(&mut self) -> io::Result<()> {
        self.sink_calls.push("complete".to_owned());
        Ok(())
    }

    async fn no_content(&mut self, _: &Response<()>) -> io::Result<()> {
        self.sink_calls.push("no content".to_owned());
        Ok(())
    }

    fn can_start_over(&self) -> bool {
        !self.cannot_restart || self.bytes.is_empty()
    }
}

#[tokio::test]
async fn a_download_resumes_at_the_final_url_if_the_redirect_changed() {
    let (one, other) = (pattern(1, LENGTH), pattern(2, LENGTH));
    let (first, second) = (one.clone(), other);
    let server = Server::answering(move |index, seen| match (seen.path(), index) {
        ("/latest", 0) => redirect("/1"),
        ("/latest", _) => redirect("/2"),
        ("/1", 1) => ranged(&first, seen, 20_000),
        ("/1", _) => ranged(&first, seen, usize::MAX),
        _ => ranged(&second, seen, usize::MAX),
    });
    let mut sink = RecordingSink::default();
    let request = get(&server.url("/latest"));
    client(quick()).download(request, &mut sink).await.unwrap();
    assert!(sink.bytes == one);
    assert_eq!(paths(&server), ["/latest", "/1", "/1"]);
    let sink_calls = ["start \"v1\"", "resume 20000 \"v1\"", "complete"];
    assert_eq!(sink.sink_calls, sink_calls);
}

#[tokio::test]
async fn a_download_restarts_if_the_redirect_leads_to_another_url() {
    let (one, other) = (pattern(1, LENGTH), pattern(2, LENGTH));
    let (first, second) = (one, other.clone());
    for gone in [403, 404, 301] {
        let (first, second) = (first.clone(), second.clone());
        let server = Server::answering(move |index, seen| match (seen.path(), index) {
            ("/latest", 0) => redirect("/1"),
            ("/latest", _) => redirect("/2"),
            ("/1", 1) => ranged(&first, seen, 20_000),
            ("/1", _) if gone == 301 => Step::Answer(response(301, &[], "")),
            ("/1", _) => Step::Answer(response(gone, &[], "")),
            _ => ranged(&second, seen, usize::MAX),
        });
        let mut sink = RecordingSink::default();
        let request = get(&server.url("/latest"));
        client(quick()).download(request, &mut sink).await.unwrap();
        assert!(sink.bytes == other, "{gone}");
        // Only a request for the rest shows where the first URL leads.
        let asked = ["/latest", "/1", "/1", "/latest", "/2", "/latest", "/2"];
        assert_eq!(paths(&server), asked);
        assert_eq!(server.seen()[4].range_start(), Some(20_000));
        assert!(server.seen()[6].range_start().is_none());
    }
}

/// Redirects from `/hop` to `/file` with a new signature each time. `expired` is the status for a second request for
/// `/file` with the same signature.
fn signing(whole: &[u8], cut_after: usize, expired: Option<u16>) -> Server {
    let whole = whole.to_vec();
    let used = Mutex::new(HashSet::new());
    Server::answering(move |index, seen| match seen.path() {
        "/get" => redirect("/hop"),
        "/hop" => redirect(&format!("/file?signature={index}")),
        signed => match expired {
            Some(status) if !used.lock().unwrap().insert(signed.to_owned()) => {
                Step::Answer(response(status, &[], "expired"))
            }
            _ => ranged(&whole, seen, cut_after),
        },
    })
}

/// The requests for the body: `None` from its beginning, or the start of the range.
fn ranges(server: &Server) -> Vec<Option<usize>> {
    let seen = server.seen();
    let files = seen.iter().filter(|seen| seen.path().starts_with("/file"));
    files.map(Seen::range_start).collect()
}

#[tokio::test]
async fn an_expired_signed_url_is_replaced_through_the_first_url() {
    let whole = pattern(18, LENGTH);
    // 200 is a page that says so.
    for expired in [400, 401, 403, 404, 410, 200] {
        let server = signing(&whole, 10_000, Some(expired));
        let mut sink = RecordingSink::default();
        let request = get(&server.url("/get"));
        let (_, summary) = client(quick()).download(request, &mut sink).await.unwrap();
        assert!(sink.bytes == whole, "{expired}");
        let starts = sink
            .sink_calls
            .iter()
            .filter(|sink_calls| sink_calls.starts_with("start"));
        assert_eq!(starts.count(), 1, "{:?}", sink.sink_calls);
        // The second signature has expired. From then on the first URL is requested.
        let from = [0, 1, 1, 2, 3, 4].map(|part| (part > 0).then_some(part * 10_000));
        assert_eq!(ranges(&server), from, "{expired}");
        assert_eq!(summary.attempts, 6, "{expired}");
    }
}

#[tokio::test]
async fn another_signature_resumes_only_with_the_same_total_length() {
    let whole = pattern(19, LENGTH);
    for (total, goes_on) in [
        (Some(LENGTH as u64), true),
        (Some(1 << 20), false),
        (None, false),
    ] {
        let server = signing(&whole, usize::MAX, None);
        let earlier = server.url("/file?signature=of-an-earlier-call");
        let stored = Resumable::new(&earlier, TAG, total).unwrap();
        let mut sink = RecordingSink::with(&whole[..20_000]);
        let client = client(quick());
        let download = Download::new(&client, get(&server.url("/get"))).resume(stored, 20_000);
        let received = download.run(&mut sink, &mut (), pending()).await;
        received.result.unwrap();
        assert!(sink.bytes == whole);
        let sink_calls = match goes_on {
            true => "resume 20000 \"v1\"",
            false => "start \"v1\"",
        };
        assert_eq!(sink.sink_calls, [sink_calls, "complete"], "{total:?}");
        let asked = server.seen()[2].header("if-range").map(str::to_owned);
        assert_eq!(asked.as_deref(), Some(TAG));
    }
}

#[tokio::test]
async fn if_the_final_server_fails_the_first_url_is_requested_again() {
    let whole = pattern(20, LENGTH);
    let (one, two) = (whole.clone(), whole.clone());
    let gone = Server::answering(move |index, seen| match index {
        0 => ranged(&one, seen, 20_000),
        _ => Step::Close(Vec::new()),
    });
    let mirror = Server::answering(move |_, seen| ranged(&two, seen, usize::MAX));
    let first = Server::script([redirect(&gone.url("/file")), redirect(&mirror.url("/file"))]);
    let mut sink = RecordingSink::default();
    let request = get(&first.url("/"));
    client(quick()).download(request, &mut sink).await.unwrap();
    assert!(sink.bytes == whole);
    // The same tag at another origin proves nothing.
    let sink_calls = ["start \"v1\"", "start \"v1\"", "complete"];
    assert_eq!(sink.sink_calls, sink_calls);
    assert_eq!(ranges(&mirror), [Some(20_000), None]);
}

/// Ignores `Range` beside `If-Range`, and cuts each response after 10,000 bytes. `tags` returns the tag of each
/// response.
fn without_if_range(
    whole: &[u8],
    announced: bool,
    tags: impl Fn(usize) -> String + Send + Sync + 'static,
) -> Server {
    let whole = whole.to_vec();
    Server::answering(move |index, seen| {
        let tag = tags(index);
        let ranges = if announced { "bytes" } else { "" };
        let first = seen.range_start();
        let first = first.filter(|_| seen.header("if-range").is_none());
        Step::Close(match first {
            Some(first) => rest(first, &whole, &tag, 10_000),
            None => {
                let fields = [("etag", tag.as_str()), ("accept-ranges", ranges)];
                cut(200, &fields, &whole, 10_000)
            }
        })
    })
}

#[tokio::test]
async fn range_is_sent_without_if_range_if_the_server_ignores_it() {
    let whole = pattern(21, LENGTH);
    // The first retry detects it. If the server announces ranges, that attempt sends another request. Otherwise it
    // reads the whole, and the next attempt requests the rest.
    for (announced, attempts) in [(true, 5), (false, 6)] {
        let server = without_if_range(&whole, announced, |_| TAG.to_owned());
        let mut sink = RecordingSink::default();
        let (_, summary) = download(&server, &mut sink).await.unwrap();
        assert!(sink.bytes == whole);
        assert_eq!((summary.attempts, server.count()), (attempts, 6));
        let seen = server.seen();
        assert_eq!(seen[1].header("if-range"), Some(TAG));
        for seen in &seen[2..] {
            assert_eq!(seen.header("if-range"), None);
        }
    }
    // A sink that cannot undo its writes continues, too.
    let server = without_if_range(&whole, false, |_| TAG.to_owned());
    let mut sink = ToWriter::new(Vec::new());
    let get = client(quick()).get(server.url("/"));
    get.download(&mut sink).await.unwrap();
    assert!(sink.into_inner() == whole);
}

#[tokio::test]
async fn without_if_range_the_response_must_have_the_same_tag() {
    let (old, new) = (pattern(1, LENGTH), pattern(2, LENGTH));
    let second = new.clone();
    let server = Server::answering(move |index, seen| match (index, seen.range_start()) {
        (0 | 1, _) => {
            let fields = [("etag", TAG), ("accept-ranges", "bytes")];
            Step::Close(cut(200, &fields, &old, 20_000))
        }
        (_, Some(start)) => Step::Answer(rest(start, &second, "\"v2\"", usize::MAX)),
        (_, None) => Step::Answer(response(200, &[("etag", "\"v2\"")], &second)),
    });
    let mut sink = RecordingSink::default();
    download(&server, &mut sink).await.unwrap();
    assert!(sink.bytes == new);
    let asked: Vec<_> = server.seen().iter().map(Seen::range_start).collect();
    assert_eq!(asked, [None, Some(20_000), Some(20_000), None]);
}

#[tokio::test]
async fn assume_unchanged_resumes_across_servers_with_different_tags() {
    let whole = pattern(22, LENGTH);
    let of_each: fn(usize) -> String = |index| format!("\"node-{index}\"");
    let of_two: fn(usize) -> String = |index| format!("\"node-{}\"", index / 2 % 2);
    let weak: fn(usize) -> String = |index| match index % 3 {
        0 => "\"v1\"".to_owned(),
        1 => "W/\"v1\"".to_owned(),
        _ => "W/\"v2\"".to_owned(),
    };
    for tags in [of_each, of_two, weak] {
        let server = without_if_range(&whole, false, tags);
        let client = client(quick());
        let mut sink = RecordingSink::default();
        let download = Download::new(&client, get(&server.url("/"))).assume_unchanged();
        let done = download.run(&mut sink, &mut (), pending()).await;
        done.result.unwrap();
        assert!(sink.bytes == whole);
        let starts = sink
            .sink_calls
            .iter()
            .filter(|sink_calls| sink_calls.starts_with("start"));
        assert_eq!(starts.count(), 1, "{:?}", sink.sink_calls);
        assert_eq!(done.summary.attempts, 5);
    }
}

#[tokio::test]
async fn assume_unchanged_resumes_without_a_strong_validator() {
    let whole = pattern(23, LENGTH);
    let now = "Sun, 06 Nov 1994 08:49:37 GMT";
    for fields in [
        &[][..],
        &[("etag", "W/\"v1\"")],
        &[("last-modified", now), ("date", now)],
        &[("last-modified", now)],
    ] {
        for stated in [false, true] {
            let (served, fields) = (whole.clone(), fields.to_vec());
            let server = Server::answering(move |_, seen| {
                Step::Close(match seen.range_start() {
                    Some(first) => {
                        let range = format!("bytes {first}-{}/{LENGTH}", LENGTH - 1);
                        let fields = [&fields[..], &[("content-range", &range)]].concat();
                        cut(206, &fields, &served[first..], 10_000)
                    }
                    None => cut(200, &fields, &served, 10_000),
                })
            });
            let client = client(quick());
            let download = Download::new(&client, get(&server.url("/")));
            let download = match stated {
                true => download.assume_unchanged(),
                false => download,
            };
            let mut sink = RecordingSink::default();
            let done = download.run(&mut sink, &mut (), pending()).await;
            assert_eq!(done.result.is_ok(), stated);
            let from = match stated {
                true => vec![None, Some(10_000), Some(20_000), Some(30_000), Some(40_000)],
                false => vec![None; 4],
            };
            let asked: Vec<_> = server.seen().iter().map(Seen::range_start).collect();
            assert_eq!(asked, from);
            assert!(!stated || sink.bytes == whole);
        }
    }
}

/// Otherwise every further call with the same declaration would get the same response.
#[tokio::test]
async fn assume_unchanged_requests_the_whole_if_the_rest_fails() {
    let (old, new) = (pattern(1, LENGTH), pattern(2, LENGTH + 1));
    let part = |first: usize, tag, more: &[_]| {
        let range = format!("bytes {first}-{}/{LENGTH}", LENGTH - 1);
        let fields = [&[("etag", tag), ("content-range", range.as_str())], more].concat();
        response(206, &fields, &old[first..])
    };
    for (what, answers) in [
        ("another start", vec![part(20_001, TAG, &[])]),
        ("an earlier start", vec![part(0, TAG, &[])]),
        ("another total", vec![rest(20_000, &new, TAG, usize::MAX)]),
        (
            "an encoding",
            vec![part(20_000, TAG, &[("content-encoding", "br")])],
        ),
        ("another tag", vec![part(20_000, "\"v2\"", &[]); 2]),
        ("412", vec![response(412, &[], "")]),
        (
            "less than there is",
            vec![response(416, &[("content-range", "bytes */10")], "")],
        ),
    ] {
        let requests = answers.len() + 1;
        let whole = response(200, &[("etag", "\"v2\"")], &new);
        let server = Server::script(answers.into_iter().chain([whole]).map(Step::Answer));
        let client = client(quick().max_retries(0));
        let stored = Resumable::new(&server.url("/"), TAG, Some(LENGTH as u64)).unwrap();
        let download = Download::new(&client, get(&server.url("/"))).resume(stored, 20_000);
        let mut sink = RecordingSink::with(&old[..20_000]);
        let done = download
            .assume_unchanged()
            .run(&mut sink, &mut (), pending())
            .await;
        assert!(done.result.is_ok(), "{what}");
        assert_eq!(
            (done.summary.attempts, server.count()),
            (1, requests),
            "{what}"
        );
        assert!(sink.bytes == new, "{what}");
    }
}

#[tokio::test]
async fn a_rerouted_retry_restarts_the_download() {
    let (one, other) = (pattern(1, LENGTH), pattern(2, LENGTH));
    let (first, second) = (one, other.clone());
    let server = Server::answering(move |_, seen| match seen.path() {
        "/1" => ranged(&first, seen, 20_000),
        _ => ranged(&second, seen, usize::MAX),
    });
    let client = client(quick()).reroute(|attempt, url| {
        if attempt > 1 {
            url.set_path("/2");
        }
    });
    let mut sink = RecordingSink::default();
    let request = get(&server.url("/1"));
    client.download(request, &mut sink).await.unwrap();
    assert!(sink.bytes == other);
    assert!(server.seen()[1].range_start().is_none());
}

#[tokio::test]
async fn resuming_at_another_origin_sends_no_credentials() {
    let whole = pattern(3, LENGTH);
    let served = whole.clone();
    let store =
        Server::answering(move |index, seen| ranged(&served, seen, [20_000, usize::MAX][index]));
    let circuit_breaker = Server::script([redirect(&store.url("/file?signature=1"))]);
    let fields = [("authorization", "Bearer secret"), ("accept", "a/b")];
    let request = request(Method::GET, &circuit_breaker.url("/"), &fields);
    let mut sink = RecordingSink::default();
    client(quick()).download(request, &mut sink).await.unwrap();
    assert!(sink.bytes == whole);
    assert_eq!((circuit_breaker.count(), store.count()), (1, 2));
    for seen in store.seen() {
        assert_eq!(seen.header("authorization"), None);
        assert_eq!(seen.header("accept"), Some("a/b"));
    }
}

/// Credentials that are added after the download has built its request. With those of the client, the rest is
/// requested from the first URL, whose redirect removes them.
#[tokio::test]
async fn resuming_at_another_origin_sends_no_credentials_of_client_and_hook() {
    fn secret(headers: &mut http::HeaderMap) {
        let value = http::HeaderValue::from_static("Bearer secret");
        headers.insert(http::header::AUTHORIZATION, value);
    }
    let with_defaults = || {
        let mut headers = http::HeaderMap::new();
        secret(&mut headers);
        plain().default_headers(headers)
    };
    let policy = || quick().build().unwrap();
    let hooked = Client::from_builder(plain, policy()).unwrap();
    let hooked = hooked.on_attempt(|_, headers| secret(headers));
    let defaults = Client::from_builder(with_defaults, policy()).unwrap();
    for (client, firsts) in [(hooked, 1), (defaults, 2)] {
        let whole = pattern(3, LENGTH);
        let served = whole.clone();
        let store = Server::answering(move |index, seen| {
            ranged(&served, seen, [20_000, usize::MAX][index])
        });
        let to = store.url("/file?signature=1");
        let first = Server::script([redirect(&to)]);
        let mut sink = RecordingSink::default();
        client
            .download(get(&first.url("/")), &mut sink)
            .await
            .unwrap();
        assert!(sink.bytes == whole);
        assert_eq!((first.count(), store.count()), (firsts, 2));
        assert_eq!(store.seen()[1].range_start(), Some(20_000));
        let told = |server: &Server| {
            let seen = server.seen();
            let secrets = seen
                .iter()
                .filter(|seen| seen.header("authorization").is_some());
            secrets.count()
        };
        assert_eq!((told(&first), told(&store)), (firsts, 0));
    }
}

#[tokio::test]
async fn a_stored_download_resumes_only_from_the_same_final_url() {
    let (one, other) = (pattern(1, LENGTH), pattern(2, LENGTH));
    for moved in [false, true] {
        let (first, second) = (one.clone(), other.clone());
        let server = Server::answering(move |_, seen| match seen.path() {
            "/latest" if moved => redirect("/2"),
            "/latest" => redirect("/1"),
            "/1" => ranged(&first, seen, usize::MAX),
            _ => ranged(&second, seen, usize::MAX),
        });
        let stored = Resumable::new(&server.url("/1"), TAG, Some(LENGTH as u64)).unwrap();
        let mut sink = RecordingSink::with(&one[..20_000]);
        let client = client(quick());
        let download = Download::new(&client, get(&server.url("/latest"))).resume(stored, 20_000);
        let mut failures = Failures::default();
        let received = download.run(&mut sink, &mut failures, pending()).await;
        received.result.unwrap();
        if moved {
            assert_eq!(failures.0, [(true, false)], "not the rest, and no progress");
            assert!(sink.bytes == other);
            assert_eq!(sink.sink_calls, ["start \"v1\"", "complete"]);
        } else {
            assert_eq!(failures.0, []);
            assert!(sink.bytes == one);
            assert_eq!(sink.sink_calls, ["resume 20000 \"v1\"", "complete"]);
        }
    }
}

#[tokio::test]
async fn resume_unchecked_continues_only_at_the_right_position() {
    let whole = pattern(4, LENGTH);
    let none_left = format!("bytes */{LENGTH}");
    let part = |first| rest(first, &whole, TAG, usize::MAX);
    let all = || response(200, &[("etag", TAG)], &whole);
    for (what, received, answers, sink_calls) in [
        (
            "the rest",
            20_000,
            vec![part(20_000)],
            vec!["resume 20000 none", "complete"],
        ),
        (
            "another part",
            20_000,
            vec![part(20_001), all()],
            vec!["start \"v1\"", "complete"],
        ),
        (
            "the whole",
            20_000,
            vec![all()],
            vec!["start \"v1\"", "complete"],
        ),
        (
            "nothing is missing",
            LENGTH,
            vec![response(416, &[("content-range", &none_left)], "")],
            vec!["complete"],
        ),
        (
            "there is less",
            20_000,
            vec![response(416, &[("content-range", "bytes */10")], ""), all()],
            vec!["start \"v1\"", "complete"],
        ),
    ] {
        let server = Server::script(answers.into_iter().map(Step::Answer));
        let client = client(quick());
        let mut sink = RecordingSink::with(&whole[..received]);
        let download = Download::new(&client, get(&server.url("/")));
        let download = download.resume_unchecked(received as u64, None);
        let done = download.run(&mut sink, &mut (), pending()).await;
        assert!(done.result.is_ok(), "{what}");
        assert!(done.summary.attempts <= 2, "{what}");
        assert!(sink.bytes == whole, "{what}");
        let sink_calls: Vec<_> = sink_calls
            .into_iter()
            .map(|sink_calls| sink_calls.replace("none", TAG))
            .collect();
        assert_eq!(sink.sink_calls, sink_calls, "{what}");
        let first = &server.seen()[0];
        assert_eq!(first.range_start(), Some(received), "{what}");
        assert_eq!(first.header("if-range"), None, "{what}");
    }
}

#[tokio::test]
async fn a_body_with_a_strong_date_is_resumed_with_it() {
    const DATES: [(&str, &str); 2] = [
        ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("date", "Sun, 06 Nov 1994 09:49:37 GMT"),
    ];
    let whole = pattern(5, LENGTH);
    let served = whole.clone();
    let server = Server::answering(move |_, seen| match seen.range_start() {
        Some(first) if seen.header("if-range") == Some(DATES[0].1) => {
            let range = format!("bytes {first}-{}/{LENGTH}", LENGTH - 1);
            let fields = [DATES[0], ("content-range", range.as_str())];
            Step::Answer(response(206, &fields, &served[first..]))
        }
        _ => Step::Close(cut(200, &DATES, &served, 20_000)),
    });
    let mut sink = RecordingSink::default();
    let result = download(&server, &mut sink);
    assert_eq!(result.await.unwrap().1.attempts, 2);
    assert!(sink.bytes == whole);
}

#[tokio::test]
async fn a_success_without_a_body_does_not_change_the_sink() {
    for (method, status) in [("GET", 304), ("GET", 204), ("GET", 205), ("HEAD", 200)] {
        let bytes = format!("HTTP/1.1 {status} Scripted\r\netag: {TAG}\r\n\r\n").into_bytes();
        let server = Server::script([Step::Close(bytes)]);
        let method: Method = method.parse().unwrap();
        let mut sink = RecordingSink::with(b"from before");
        let condition = [("if-none-match", TAG)];
        let asked = request(method.clone(), &server.url("/"), &condition);
        let result = client(quick()).download(asked, &mut sink).await;
        assert_eq!(result.unwrap().0.status(), status);
        assert_eq!(sink.sink_calls, ["no content"]);
        assert_eq!(sink.bytes, b"from before");
        let mut cached = b"from before".to_vec();
        let asked = request(method.clone(), &server.url("/"), &condition);
        let result = client(quick()).download(asked, &mut cached).await;
        assert_eq!(result.unwrap().0.status(), status);
        assert_eq!(cached, b"from before");

        let whole = client(quick()).request(method, server.url("/"));
        let whole = whole.header("if-none-match", TAG);
        let response = whole.whole_body().send().await.unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["etag"], TAG);
        assert!(response.bytes().await.unwrap().is_empty());
    }
}

/// RFC 9110 §15.4.5.
#[tokio::test]
async fn an_unconditional_304_is_a_failure() {
    for (fields, ends_well) in [
        (&[][..], false),
        (&[("range", "bytes=1-2")], false),
        (&[("if-none-match", TAG)], true),
        (
            &[("if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT")],
            true,
        ),
    ] {
        let server = Server::script([Step::Answer(response(304, &[("etag", TAG)], ""))]);
        let mut sink = RecordingSink::default();
        let asked = request(Method::GET, &server.url("/"), fields);
        let result = client(quick()).download(asked, &mut sink).await;
        assert_eq!(result.is_ok(), ends_well, "{fields:?}");
        assert_eq!(sink.sink_calls.is_empty(), !ends_well, "{fields:?}");
    }
}

#[tokio::test]
async fn a_response_without_a_body_does_not_complete_a_partial_body() {
    let whole = pattern(6, LENGTH);
    let directory = tempfile::tempdir().unwrap();
    for status in [204, 205, 304] {
        for tag in [&[("etag", TAG)][..], &[]] {
            for comes in [true, false] {
                let served = whole.clone();
                let tag = tag.to_vec();
                let server = Server::answering(move |index, _| match index {
                    0 => Step::Close(cut(200, &tag, &served, 20_000)),
                    2 if comes => Step::Answer(response(200, &tag, &served)),
                    _ => Step::Answer(response(status, &[("etag", TAG)], "")),
                });
                let path = directory.path().join("file");
                let mut file = tokio::fs::File::create(&path).await.unwrap();
                let get = client(quick()).get(server.url("/"));
                let result = get.header("if-none-match", TAG).download(&mut file).await;
                assert_eq!(result.is_ok(), comes, "{status}");
                if comes {
                    assert!(std::fs::read(&path).unwrap() == whole, "{status}");
                }
            }
        }
    }
}

#[tokio::test]
async fn an_unrequested_206_is_not_the_whole() {
    let part = rest(0, &pattern(6, 100), TAG, usize::MAX);
    let server = Server::script([Step::Answer(part)]);
    let mut sink = RecordingSink::default();
    let result = download(&server, &mut sink);
    let gave_up = result.await.unwrap_err();
    assert_eq!(gave_up.reason(), StopReason::RetriesExhausted);
    let error = gave_up.error().unwrap().to_string();
    assert!(error.contains("206"), "{error}");
    assert!(sink.sink_calls.is_empty());
    let whole = client(quick()).get(server.url("/")).whole_body();
    assert!(whole.send().await.is_err());
}

#[tokio::test]
async fn a_101_is_not_a_complete_response() {
    let switch = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
    let server = Server::script([Step::Close(switch.to_vec())]);
    let fields = [("connection", "upgrade"), ("upgrade", "x")];
    let mut sink = RecordingSink::default();
    let asked = request(Method::GET, &server.url("/"), &fields);
    let gave_up = client(quick()).download(asked, &mut sink).await;
    let gave_up = gave_up.unwrap_err();
    assert_eq!(gave_up.attempts(), 1, "{gave_up}");
    assert!(sink.sink_calls.is_empty());
}

/// Runs it until the event, which cuts off the running attempt.
async fn cut_off<'c>(
    download: Download<'c>,
    sink: &mut RecordingSink,
    event: impl Future<Output = ()>,
) -> Download<'c> {
    let cancelled = async {
        event.await;
        Failure::ambiguous()
    };
    let received = download.run(sink, &mut (), cancelled).await;
    let reason = received.summary.reason;
    assert_eq!(reason, Some(StopReason::Cancelled));
    assert_eq!(received.summary.attempts, 1);
    received.download
}

#[tokio::test]
async fn a_download_dropped_during_a_write_restarts() {
    let whole = pattern(7, LENGTH);
    for cannot_restart in [false, true] {
        let served = whole.clone();
        let server = Server::answering(move |_, seen| ranged(&served, seen, usize::MAX));
        let client = client(quick());
        let mut sink = RecordingSink {
            busy_after: Some(20_000),
            cannot_restart,
            ..RecordingSink::default()
        };
        let download = Download::new(&client, get(&server.url("/")));
        let at_work = sink.at_work.clone();
        let download = cut_off(download, &mut sink, at_work.notified()).await;
        // The next attempt may still get the connection of the dropped one.
        let mut failures = Failures::default();
        let again = download.run(&mut sink, &mut failures, pending()).await;
        assert!(failures.0.iter().all(|(_, progressed)| !progressed));
        if cannot_restart {
            assert!(again.result.is_err());
            assert_eq!(again.summary.reason, Some(StopReason::NotReplayable));
            continue;
        }
        again.result.unwrap();
        assert!(sink.bytes == whole);
        let sink_calls = ["start \"v1\"", "busy", "start \"v1\"", "complete"];
        assert_eq!(sink.sink_calls, sink_calls);
    }
}

#[tokio::test]
async fn a_download_dropped_while_the_server_is_silent_resumes() {
    let whole = pattern(8, LENGTH);
    let served = whole.clone();
    let server = Server::answering(move |index, seen| match index {
        0 => Step::Stall(cut(200, &[("etag", TAG)], &served, 20_000)),
        _ => ranged(&served, seen, usize::MAX),
    });
    let client = client(quick());
    let mut sink = RecordingSink::default();
    let download = Download::new(&client, get(&server.url("/")));
    let silent = poll_fn(|context| {
        if server.silences() == 1 {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    });
    let download = cut_off(download, &mut sink, silent).await;
    let from = sink.bytes.len();
    let again = download.run(&mut sink, &mut (), pending()).await;
    again.result.unwrap();
    assert!(sink.bytes == whole);
    assert_eq!(server.seen()[1].range_start(), (from > 0).then_some(from));
}

/// A server that cuts every response after this many bytes.
fn cutting(whole: &[u8], after: usize) -> Server {
    let whole = whole.to_vec();
    Server::answering(move |_, seen| ranged(&whole, seen, after))
}

#[tokio::test]
async fn progress_resets_the_retries_of_a_download() {
    let whole = pattern(9, 160_000);
    let server = cutting(&whole, 10_000);
    let policy = quick().max_retries(1).budget(BudgetConfig {
        initial_tokens: 1.0,
        ratio: 0.0,
        per_second: 0.0,
        ..BudgetConfig::DEFAULT
    });
    let policy = policy.build().unwrap();
    let there = Arc::new(Destination::new(&policy));
    let client = client(quick()).destination(there.clone());
    let mut sink = RecordingSink::default();
    let get = client.get(server.url("/")).policy(policy);
    let (_, summary) = get.download(&mut sink).await.unwrap();
    assert_eq!(summary.attempts, 16);
    assert!(sink.bytes == whole);
    let left = there.budget().map(Budget::balance);
    assert_eq!(left, Some(0.0), "only the last retry is still paid for");
}

#[tokio::test]
async fn standard_completes_a_large_download_over_an_unreliable_connection() {
    let whole = pattern(10, 320_000);
    let server = cutting(&whole, 20_000);
    let plain = || default_builder().no_proxy().tls_certs_only([]);
    let client = Client::from_builder(plain, Policy::STANDARD).unwrap();
    let mut sink = RecordingSink::default();
    let (_, summary) = client
        .download(get(&server.url("/")), &mut sink)
        .await
        .unwrap();
    assert_eq!(summary.attempts, 16);
    assert!(sink.bytes == whole);
}

#[tokio::test]
async fn a_few_bytes_do_not_count_as_progress() {
    let whole = pattern(11, 160_000);
    let server = cutting(&whole, 1_000);
    let mut sink = RecordingSink::default();
    let result = download(&server, &mut sink);
    let gave_up = result.await.unwrap_err();
    assert_eq!(gave_up.reason(), StopReason::RetriesExhausted);
    assert_eq!(gave_up.attempts(), 4);
}

#[tokio::test]
async fn a_restart_does_not_count_as_progress() {
    let whole = pattern(12, 160_000);
    let server = Server::script([Step::Close(cut(200, &[], &whole, 80_000))]);
    let mut sink = RecordingSink::default();
    let result = download(&server, &mut sink);
    assert_eq!(result.await.unwrap_err().attempts(), 4);
}

#[tokio::test]
async fn a_download_hook_is_notified_of_progress() {
    let whole = pattern(14, 160_000);
    let server = cutting(&whole, 10_000);
    let client = client(quick().max_retries(1));
    let mut sink = RecordingSink::default();
    let mut failures = Failures::default();
    let download = Download::new(&client, get(&server.url("/")));
    let received = download.run(&mut sink, &mut failures, pending()).await;
    received.result.unwrap();
    assert_eq!(failures.0, [(false, true); 15]);
}

#[tokio::test]
async fn a_body_below_the_minimum_rate_is_cut_off() {
    let whole = pattern(15, LENGTH);
    let served = whole.clone();
    let server = Server::answering(move |index, seen| match index {
        0 => Step::Stall(cut(200, &[("etag", TAG)], &served, 1_000)),
        _ => ranged(&served, seen, usize::MAX),
    });
    let client = client(quick().max_retries(0));
    let mut sink = RecordingSink::default();
    let rate = Duration::from_millis(50);
    let download = Download::new(&client, get(&server.url("/"))).min_rate(2_000, rate);
    let done = download.run(&mut sink, &mut (), pending()).await;
    let Err(Some(LastResult::Error(AttemptError::Slow { received, within }))) = done.result else {
        panic!("{done:?}");
    };
    // How much of it arrives in time depends on the machine.
    assert!(received <= 1_000 && within == rate);
    let quick = client.get(server.url("/")).min_rate(2_000, HOUR);
    quick.download(&mut sink).await.unwrap();
    assert!(sink.bytes == whole);
}

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn a_file_sink_resumes_and_ends_with_the_last_response() {
    let whole = pattern(16, LENGTH);
    let served = whole.clone();
    let server = Server::answering(move |index, seen| match index {
        // Restarts with fewer bytes.
        0 => Step::Close(cut(200, &[], &served, 40_000)),
        1 => Step::Close(cut(200, &[("etag", TAG)], &served, 20_000)),
        2 => ranged(&served, seen, usize::MAX),
        3 => Step::Close(b"HTTP/1.1 304 Not Modified\r\n\r\n".to_vec()),
        _ => ranged(&served[..100], seen, usize::MAX),
    });
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, vec![b'x'; 2 * LENGTH]).unwrap();
    let mut open = tokio::fs::OpenOptions::new();
    let mut file = open.write(true).open(&path).await.unwrap();
    let client = client(quick());
    let get = || client.get(server.url("/"));
    let (_, summary) = get().download(&mut file).await.unwrap();
    assert_eq!(summary.attempts, 3);
    assert!(std::fs::read(&path).unwrap() == whole);

    let unless_changed = get().header("if-none-match", TAG);
    let (head, _) = unless_changed.download(&mut file).await.unwrap();
    assert_eq!(head.status(), 304);
    assert!(std::fs::read(&path).unwrap() == whole, "left alone");

    get().download(&mut file).await.unwrap();
    assert!(std::fs::read(&path).unwrap() == whole[..100]);
}

#[tokio::test]
async fn bytes_passed_to_a_writer_are_not_written_again() {
    let whole = pattern(17, LENGTH);
    for (tag, reason) in [(Some(TAG), None), (None, Some(StopReason::NotReplayable))] {
        let served = whole.clone();
        let server = Server::answering(move |_, seen| match (tag, seen.range_start()) {
            (Some(_), Some(_)) => ranged(&served, seen, usize::MAX),
            (Some(_), None) => ranged(&served, seen, 20_000),
            (None, _) => Step::Close(cut(200, &[], &served, 20_000)),
        });
        let (writer, mut reader) = tokio::io::duplex(2 * LENGTH);
        let mut sink = ToWriter::new(writer);
        let result = client(quick())
            .get(server.url("/"))
            .download(&mut sink)
            .await;
        let stopped = result.err().and_then(|error| error.summary()?.reason);
        assert_eq!(stopped, reason);
        assert_eq!(sink.written(), if tag.is_some() { 50_000 } else { 20_000 });
        drop(sink);
        let mut arrived = Vec::new();
        reader.read_to_end(&mut arrived).await.unwrap();
        assert!(whole.starts_with(&arrived));
    }
}

/// A sink whose writes take this long, and which reports the first one.
struct SlowSink(Duration, Option<std::sync::mpsc::Sender<()>>);

impl Sink for SlowSink {
    async fn start(&mut self, _: &Response<()>, _: Option<&Resumable>) -> io::Result<()> {
        Ok(())
    }

    async fn write(&mut self, _: Bytes) -> io::Result<()> {
        self.1 = None;
        tokio::time::sleep(self.0).await;
        Ok(())
    }
}

/// The failed download into a sink whose writes take this long.
async fn into_slow_sink(
    policy: PolicyBuilder,
    answer: Step,
    takes: Duration,
) -> GaveUp<AttemptError> {
    let server = Server::script([answer]);
    let client = client(policy).traced();
    tokio::time::pause();
    // Paused time does not advance while a thread is blocked. This thread blocks until the sink is called.
    let (slow, at_work) = std::sync::mpsc::channel::<()>();
    let blocked = tokio::task::spawn_blocking(move || at_work.recv());
    let mut sink = SlowSink(takes, Some(slow));
    let ended = client.download(get(&server.url("/")), &mut sink).await;
    let _ = blocked.await;
    let gave_up = ended.unwrap_err();
    let trace = gave_up.summary().trace.as_ref().unwrap();
    let failure = trace.entries().next().unwrap().failure.unwrap();
    assert_eq!(failure.scope, Scope::Request, "the server has responded");
    gave_up
}

/// The server has sent what it was asked for, and is asked for more only after the attempt timeout.
#[tokio::test]
async fn an_attempt_whose_sink_takes_all_its_time_is_no_timeout_of_the_server() {
    let answer = Step::Stall(cut(200, &[], b"body", 2));
    let policy = quick().max_retries(0).attempt_timeout(HOUR / 2);
    let gave_up = into_slow_sink(policy, answer, HOUR).await;
    assert_eq!(gave_up.reason(), StopReason::RetriesExhausted);
    assert_eq!(gave_up.summary().elapsed.as_secs(), HOUR.as_secs());
}

/// An attempt timeout does not interrupt a write, because the next attempt must know how much was written.
#[tokio::test]
async fn the_deadline_ends_a_sink_that_does_not_complete_a_write() {
    let policy = quick().attempt_timeout(HOUR / 2).deadline(HOUR);
    let answer = Step::Answer(response(200, &[], "body"));
    let gave_up = into_slow_sink(policy, answer, 2 * HOUR).await;
    assert_eq!(gave_up.reason(), StopReason::Deadline);
    assert_eq!(gave_up.attempts(), 1);
    assert_eq!(gave_up.summary().elapsed.as_secs(), HOUR.as_secs());
}
