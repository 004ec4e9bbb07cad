//! The blocking client, on real sockets.

use std::time::Duration;

use relent::{Backoff, Policy};
use relent_reqwest::blocking::Client;
use relent_reqwest::{Error, IdempotencyKey, default_builder};

use crate::scripted::{Server, Step, TEST_TIMEOUT, pattern, response};

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

/// Such as a hook that requests a new token. It runs on the only thread of the client.
#[test]
fn a_hook_of_a_blocking_request_can_send_another_one() {
    let server = Server::script([
        Step::Answer(response(401, &[], "")),
        Step::Answer(response(200, &[], "token")),
        Step::Answer(response(200, &[], "done")),
    ]);
    let (client, token) = (client(), server.url("/token"));
    let inner = client.clone();
    let (done, until_done) = std::sync::mpsc::channel();
    let get = client.get(server.url("/")).with(|request| {
        request.when(move |_, _, response| {
            let denied = response.is_some_and(|response| response.status() == 401);
            denied && inner.get(&token).send().unwrap().text().unwrap() == "token"
        })
    });
    std::thread::spawn(move || done.send(get.send().unwrap().text().unwrap()));
    let text = until_done.recv_timeout(TEST_TIMEOUT);
    assert_eq!(text.as_deref(), Ok("done"));
}

/// An error would say that nothing was sent, and the caller would send the payment again.
#[test]
fn a_panic_of_a_hook_reaches_the_blocked_caller() {
    let server = Server::script([Step::Answer(response(200, &[], "paid"))]);
    let post = client().post(server.url("/"));
    let post = post.with(|request| request.when(|_, _, _| panic!("a fault of the hook")));
    let sent = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| post.send()));
    let panic = sent.unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"a fault of the hook"));
    assert_eq!(server.count(), 1);
}
