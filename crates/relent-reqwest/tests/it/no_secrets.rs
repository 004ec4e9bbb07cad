//! The debug output of requests, responses and errors contains no credentials.

use std::future::pending;
use std::time::Duration;

use relent::{Backoff, Policy};
use relent_reqwest::default_builder;
use relent_reqwest::{Body, Client, Download, DownloadHook, FailedAttempt, NextDelay};

use crate::scripted::{Server, Step, response};

/// Records the arguments of a hook.
#[derive(Default)]
struct Failures(Vec<String>);

impl DownloadHook for Failures {
    fn after_failure(&mut self, _: u32, failed: &FailedAttempt, _: Option<NextDelay>) {
        self.0.push(format!("{failed:?}"));
    }
}

/// `{:?}` ends up in logs.
#[tokio::test]
async fn no_debug_output_contains_a_credential() {
    let server = Server::script([
        Step::Answer(response(200, &[("set-cookie", "hunter2")], "hunter2")),
        Step::Answer(response(503, &[("set-cookie", "hunter2")], "hunter2")),
    ]);
    let once = Policy::builder(Backoff::constant(Duration::from_millis(1))).max_retries(0);
    // Without TLS, and without the proxy of the environment.
    let plain = || default_builder().no_proxy().tls_certs_only([]);
    let client = Client::from_builder(plain, once.build().unwrap()).unwrap();
    let url = server
        .url("/?token=hunter2")
        .replace("//", "//user:hunter2@");
    let request = || {
        let request = http::Request::post(&url).header("authorization", "hunter2");
        request.body(Body::from("hunter2")).unwrap()
    };
    let mut seen = vec![
        format!("{:?}", Body::from("hunter2")),
        format!("{:?}", Download::new(&client, request())),
        format!("{:?}", client.get(&url).header("cookie", "hunter2")),
    ];
    for _ in 0..2 {
        let response = client.send(&request()).await.unwrap();
        seen.push(format!("{response:?}"));
        if let Err(error) = response.error_for_status() {
            seen.push(format!("{error:?} {error}"));
        }
    }
    let mut failures = Failures::default();
    let download = Download::new(&client, request());
    let mut sink = Vec::new();
    let received = download.run(&mut sink, &mut failures, pending()).await;
    seen.push(format!("{received:?}"));
    assert_eq!(failures.0.len(), 1);
    seen.extend(failures.0);
    let refused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = refused.local_addr().unwrap();
    drop(refused);
    for url in [
        format!("http://user:hunter2@{address}/?token=hunter2"),
        "http://user:hunter2@h:99999/".to_owned(),
    ] {
        let error = client.get(&url).send().await.unwrap_err();
        seen.push(format!("{error:?} {error}"));
    }
    for text in seen {
        assert!(!text.contains("hunter2"), "{text}");
    }
}
