//! Responses that are not valid HTTP. Each is an error; an idempotent request is sent at most twice, any other once.

use std::time::Duration;

use relent::{Backoff, Jitter, Policy};
use relent_core::{Cause, Failure, Network, StopReason};
use relent_reqwest::{AttemptError, Client, Error, default_builder, network};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::scripted::{Server, Step, response};

fn client() -> Client {
    let policy = Policy::builder(Backoff::constant(Duration::from_millis(1)))
        .jitter(Jitter::None)
        .max_retries(10)
        .build()
        .unwrap();
    // A connection that the server is closing would fail a retry in another way.
    let builder = || default_builder().no_proxy().tls_certs_only([]);
    let without_reuse = move || builder().pool_max_idle_per_host(0);
    Client::from_builder(without_reuse, policy).unwrap()
}

/// Invalid heads.
fn heads() -> Vec<(&'static str, Vec<u8>)> {
    let with = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n").into_bytes();
    vec![
        ("HTTP/0.9", b"<html>hello</html>\r\n\r\n".to_vec()),
        ("another protocol", b"SSH-2.0-OpenSSH_9.2p1\r\n".to_vec()),
        ("bytes", b"\x00\xff\r\n\r\n".to_vec()),
        ("another version", b"HTTP/3.0 200 OK\r\n\r\n".to_vec()),
        ("no status", b"HTTP/1.1 OK\r\n\r\n".to_vec()),
        ("a status of two digits", b"HTTP/1.1 20 OK\r\n\r\n".to_vec()),
        ("no colon", with("content-length 5\r\n")),
        ("a space in a name", with("content length: 5\r\n")),
        ("a control character", with("a: b\x01c\r\n")),
        (
            "two lengths",
            with("content-length: 5\r\ncontent-length: 6\r\n"),
        ),
        ("two lengths in one field", with("content-length: 5, 6\r\n")),
        ("a negative length", with("content-length: -1\r\n")),
        ("a length with a sign", with("content-length: +5\r\n")),
        ("a length in words", with("content-length: five\r\n")),
        (
            "a length beyond 64 bits",
            with("content-length: 99999999999999999999\r\n"),
        ),
        ("too many fields", with(&"a: b\r\n".repeat(1000))),
        (
            "too long a head",
            with(&format!("a: {}\r\n", "x".repeat(1 << 20))),
        ),
    ]
}

/// Invalid bodies.
fn bodies() -> Vec<(&'static str, Vec<u8>)> {
    let under = |coding: &str, body: &str| {
        let head = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: {coding}\r\n\r\n");
        (head + body).into_bytes()
    };
    vec![
        ("gzip", under("gzip", "hello")),
        (
            "gzip in chunks",
            under("gzip, chunked", "5\r\nhello\r\n0\r\n\r\n"),
        ),
        (
            "chunks in something",
            under("chunked, identity", "5\r\nhello\r\n0\r\n\r\n"),
        ),
        ("an unknown coding", under("x", "hello")),
        ("a chunk without a size", under("chunked", "hello\r\n")),
        (
            "a chunk that is too large",
            under("chunked", "fffffffffffffffff\r\nhello"),
        ),
        (
            "a chunk of a negative size",
            under("chunked", "-5\r\nhello\r\n0\r\n\r\n"),
        ),
        (
            "a chunk without its end",
            under("chunked", "5\r\nhelloXX0\r\n\r\n"),
        ),
    ]
}

fn assert_malformed(name: &str, error: &Error, attempts: u32, reason: StopReason) {
    let Error::GaveUp(gave_up) = error else {
        panic!("{name}: {error:?}");
    };
    // The text of an incomplete response keeps nothing else of its cause.
    if !matches!(gave_up.error(), Some(AttemptError::UnexpectedResponse(_))) {
        let malformed = Cause::Network(Network::Malformed);
        let failure = network::classify_error(error);
        assert_eq!(failure.cause, malformed, "{name}: {error:?}");
    }
    let summary = error.summary().unwrap();
    assert_eq!(
        (summary.attempts, summary.reason),
        (attempts, Some(reason)),
        "{name}: {error}"
    );
}

#[tokio::test]
async fn after_an_invalid_response_head_only_repeatable_requests_are_retried() {
    let client = client();
    for (name, bytes) in heads() {
        let server = Server::script([Step::Close(bytes)]);
        let error = client.get(server.url("/")).send().await.unwrap_err();
        assert_malformed(name, &error, 2, StopReason::RetriesExhausted);
        assert_eq!(server.count(), 2, "{name}");
        let error = client.post(server.url("/")).send().await.unwrap_err();
        assert_malformed(name, &error, 1, StopReason::NotRepeatable);
        assert_eq!(server.count(), 3, "{name}");
    }
}

#[tokio::test]
async fn after_an_unrequested_206_only_repeatable_requests_are_retried() {
    let client = client();
    let fields = [("content-range", "bytes 0-1/9")];
    let part = || Step::Answer(response(206, &fields, "ok"));
    let server = Server::script((0..3).map(|_| part()));
    let mut got = Vec::new();
    let call = client.get(server.url("/")).download(&mut got);
    let error = call.await.unwrap_err();
    assert_malformed("206", &error, 2, StopReason::RetriesExhausted);
    let call = client.post(server.url("/")).whole_body().send();
    let error = call.await.unwrap_err();
    assert_malformed("206", &error, 1, StopReason::NotRepeatable);
    assert_eq!((server.count(), got), (3, vec![]));
}

#[tokio::test]
async fn an_invalid_response_body_is_an_error() {
    let client = client();
    for (name, bytes) in bodies() {
        let server = Server::script([Step::Close(bytes)]);
        let mut got = Vec::new();
        let error = client
            .get(server.url("/"))
            .download(&mut got)
            .await
            .unwrap_err();
        assert_malformed(name, &error, 2, StopReason::RetriesExhausted);
        assert_eq!(server.count(), 2, "{name}");
        let post = client.post(server.url("/")).whole_body().send().await;
        assert_malformed(name, &post.unwrap_err(), 1, StopReason::NotRepeatable);
        // An attempt that ends with the head succeeds; reading its body fails.
        let response = client.get(server.url("/")).send().await.unwrap();
        let error = response.bytes().await.unwrap_err();
        let failure = network::classify_error(&error);
        assert_eq!(
            failure,
            Failure::network(Network::Malformed),
            "{name}: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_folded_header_field_is_read_as_one_value() {
    let head =
        "HTTP/1.1 200 OK\r\nx-folded: one\r\n two\r\n\t three\r\ncontent-length: 2\r\n\r\nok";
    let server = Server::script([Step::Answer(head.into())]);
    let response = client().get(server.url("/")).send().await.unwrap();
    let folded = response.headers()["x-folded"].to_str().unwrap();
    let words: Vec<_> = folded.split_ascii_whitespace().collect();
    assert_eq!(words, ["one", "two", "three"]);
    assert!(!folded.contains(['\r', '\n']), "{folded:?}");
    assert_eq!(response.text().await.unwrap(), "ok");
}

#[tokio::test]
async fn a_server_of_another_protocol_is_contacted_at_most_twice() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        let mut connections = 0;
        loop {
            let accepted = tokio::time::timeout(Duration::from_secs(1), listener.accept()).await;
            let Ok(accepted) = accepted else {
                return connections;
            };
            connections += 1;
            let (mut stream, _) = accepted.unwrap();
            stream
                .write_all(b"220 mail.example ESMTP\r\n")
                .await
                .unwrap();
            tokio::spawn(async move { stream.read_to_end(&mut Vec::new()).await });
        }
    });
    let error = client().get(url).send().await.unwrap_err();
    let Error::GaveUp(gave_up) = &error else {
        panic!("{error:?}")
    };
    assert!(matches!(gave_up.error(), Some(AttemptError::Transport(_))));
    assert_eq!(
        network::classify_error(&error).cause,
        Cause::Network(Network::Malformed)
    );
    assert_eq!(serving.await.unwrap(), 2, "{error:?}");
}
