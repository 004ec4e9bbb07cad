//! The blocking client, on real sockets.

use std::time::Duration;

use relent::{Backoff, Policy};
use relent_reqwest::blocking::Client;
use relent_reqwest::{Error, IdempotencyKey, default_builder};

use crate::scripted::{Server, Step, pattern, response};

fn client() -> Client {
    let policy = Policy::builder(Backoff::constant(Duration::from_millis(1)));
    let policy = policy.max_retries(2).build().unwrap();
    let plain = || default_builder().no_proxy().tls_certs_only([]);
    Client::from_client(relent_reqwest::Client::from_builder(plain, policy).unwrap()).unwrap()
}

fn busy_then(body: &[u8]) -> Server {
    Server::script([
        Step::Answer(response(503, &[], "busy")),
        Step::Answer(response(200, &[], body)),
    ])
}

#[test]
fn a_blocking_client_retries_and_reads_the_body() {
    let server = busy_then(b"done");
    let response = client().get(server.url("/")).send().unwrap();
    assert_eq!((response.status().as_u16(), response.attempts()), (200, 2));
    assert_eq!(response.text().unwrap(), "done");

    let long = pattern(3, 300_000);
    let server = busy_then(&long);
    let mut copied = Vec::new();
    let response = client().get(server.url("/")).send().unwrap();
    let length = response.copy_to(&mut copied).unwrap();
    assert_eq!((length, copied), (300_000, long));
}

#[test]
fn a_blocking_request_supports_the_options_of_the_async_one() {
    let server = busy_then(b"");
    let key = IdempotencyKey::new();
    let post = client()
        .post(server.url("/"))
        .header("x-a", "1")
        .body("pay")
        .idempotency_key(key);
    let paid = post.with(|request| request.repeatable(true).whole_body());
    let paid = paid.send().unwrap();
    assert_eq!(paid.summary().attempts, 2);
    for seen in server.seen() {
        assert_eq!((seen.header("x-a"), &*seen.body), (Some("1"), &b"pay"[..]));
    }
    let error = client().get("no URL").send().unwrap_err();
    assert!(matches!(error, Error::Request(_)), "{error}");
}

#[tokio::test]
async fn a_blocking_client_does_not_panic_in_an_async_task() {
    let server = busy_then(b"done");
    let response = client().get(server.url("/")).send().unwrap();
    assert_eq!(response.text().unwrap(), "done");
}
