//! Responses that concern one request only, and statuses that only a policy treats as failures, on real sockets:
//! which requests are delayed or retried, and that no other request is held back.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use relent::policy::{CircuitBreakerConfig, Pattern, PolicyBuilder};
use relent::{Backoff, Destination, Jitter, Policy, StopReason};
use relent_reqwest::default_builder;
use relent_reqwest::{Body, Client, RetryMiddleware};
use reqwest_middleware::ClientBuilder;

use crate::scripted::{Server, Step, response};

fn quick() -> PolicyBuilder {
    Policy::builder(Backoff::constant(Duration::from_millis(1)))
        .jitter(Jitter::None)
        .max_retries(3)
}

fn client(policy: PolicyBuilder) -> Client {
    let plain = || default_builder().no_proxy().tls_certs_only([]);
    Client::from_builder(plain, policy.build().unwrap()).unwrap()
}

fn answer(status: u16, fields: &[(&str, &str)]) -> Step {
    Step::Answer(response(status, fields, format!("{status}")))
}

fn request(method: Method, url: &str, key: Option<&str>) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(url);
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    request.body("payload".into()).unwrap()
}

/// The last status, the reason to stop, and the number of attempts.
type Ending = (u16, Option<StopReason>, u32);

async fn sent(client: &Client, request: &Request<Body>) -> Ending {
    let (response, summary) = client.send(request).await.unwrap().into_parts();
    let status = response.status().as_u16();
    // The last response is returned unchanged.
    assert_eq!(response.text().await.unwrap(), status.to_string());
    (status, summary.reason, summary.attempts)
}

async fn downloaded(client: &Client, request: Request<Body>) -> Ending {
    let mut sink = Vec::new();
    let (response, summary) = client.download(request, &mut sink).await.unwrap();
    (response.status().as_u16(), summary.reason, summary.attempts)
}

/// Sends the request through reqwest-middleware.
async fn through_middleware(policy: PolicyBuilder, method: Method, url: &str) -> Ending {
    let plain = default_builder()
        .no_proxy()
        .tls_certs_only([])
        .build()
        .unwrap();
    let retry = RetryMiddleware::new(policy.build().unwrap());
    let stack = ClientBuilder::new(plain).with(retry).build();
    let response = stack.request(method, url).body("payload").send().await;
    let response = response.unwrap();
    let summary: relent::Summary = response.extensions().get().cloned().unwrap();
    let status = response.status().as_u16();
    assert_eq!(response.text().await.unwrap(), status.to_string());
    (status, summary.reason, summary.attempts)
}

#[tokio::test]
async fn a_409_after_an_own_ambiguous_attempt_is_retried() {
    let doubtful = [Step::Close(Vec::new()), answer(502, &[])];
    for doubtful in doubtful {
        let script = [
            doubtful,
            answer(409, &[]),
            answer(409, &[]),
            answer(201, &[]),
        ];
        let server = Server::script(script.clone());
        let pay = request(Method::POST, &server.url("/"), Some("\"k\""));
        assert_eq!(sent(&client(quick()), &pay).await, (201, None, 4));

        let server = Server::script(script);
        let pay = request(Method::POST, &server.url("/"), Some("\"k\""));
        assert_eq!(downloaded(&client(quick()), pay).await, (201, None, 4));
    }
}

#[tokio::test]
async fn a_409_without_a_key_or_ambiguous_attempt_is_a_conflict() {
    let conflict = || answer(409, &[]);
    let server = Server::script([conflict(), answer(201, &[])]);
    let pay = request(Method::POST, &server.url("/"), Some("\"k\""));
    let ending = sent(&client(quick()), &pay).await;
    assert_eq!(ending, (409, Some(StopReason::Permanent), 1));

    let server = Server::script([answer(502, &[]), conflict(), answer(201, &[])]);
    let put = request(Method::PUT, &server.url("/"), None);
    let ending = sent(&client(quick()), &put).await;
    assert_eq!(ending, (409, Some(StopReason::Permanent), 2));
}

#[tokio::test]
async fn any_request_is_retried_after_a_413_with_a_delay() {
    let server = Server::script([answer(413, &[("retry-after", "0")]), answer(200, &[])]);
    let post = request(Method::POST, &server.url("/"), None);
    assert_eq!(sent(&client(quick()), &post).await, (200, None, 2));

    let server = Server::script([answer(413, &[])]);
    let post = request(Method::POST, &server.url("/"), None);
    let ending = sent(&client(quick()), &post).await;
    assert_eq!(ending, (413, Some(StopReason::Permanent), 1));
}

#[tokio::test]
async fn a_409_or_413_delay_holds_back_no_other_request() {
    let hour = [("retry-after", "3600")];
    // A 503 concerns the whole destination, but with a circuit breaker it starts no cooldown.
    for (status, held_back) in [(409, false), (413, false), (429, true), (503, false)] {
        let server = Server::script([answer(status, &hour), answer(200, &[])]);
        let policy = quick()
            .circuit_breaker(CircuitBreakerConfig::DEFAULT)
            .build()
            .unwrap();
        let there = Arc::new(Destination::new(&policy));
        let client = client(quick()).destination(there.clone());
        let pay = request(Method::POST, &server.url("/"), Some("\"k\""));
        let ending = sent(&client, &pay).await;
        assert_eq!(ending, (status, Some(StopReason::RetryLater), 1));
        assert_eq!(there.cooldown().has_begun(), held_back, "{status}");
        if !held_back {
            let other = request(Method::GET, &server.url("/"), None);
            assert_eq!(sent(&client, &other).await, (200, None, 1), "{status}");
            assert!(there.is_normal());
        }
    }
}

#[tokio::test]
async fn the_client_treats_any_listed_status_as_a_failure() {
    let listed = || quick().retry_on([Pattern::from(202), Pattern::from(204)]);
    let soon = || answer(202, &[("retry-after", "0")]);
    let script = || [soon(), soon(), answer(200, &[])];

    let server = Server::script(script());
    let get = request(Method::GET, &server.url("/"), None);
    assert_eq!(sent(&client(listed()), &get).await, (200, None, 3));

    let server = Server::script(script());
    let get = request(Method::GET, &server.url("/"), None);
    assert_eq!(downloaded(&client(listed()), get).await, (200, None, 3));

    let server = Server::script(script());
    let url = server.url("/");
    let ending = through_middleware(listed(), Method::GET, &url).await;
    assert_eq!(ending, (200, None, 3));

    // Also with a rule of the policy.
    let server = Server::script(script());
    let get = request(Method::GET, &server.url("/"), None);
    let ruled = quick().rule(relent::policy::Rule::on([Pattern::Status(200, 202)]));
    let ending = sent(&client(ruled), &get).await;
    assert_eq!(ending, (200, Some(StopReason::RetriesExhausted), 4));
}

#[tokio::test]
async fn a_listed_success_status_is_ambiguous() {
    let listed = || quick().retry_on([Pattern::from(202)]);
    for keyed in [false, true] {
        let server = Server::script([answer(202, &[]), answer(200, &[])]);
        let key = keyed.then_some("\"k\"");
        let post = request(Method::POST, &server.url("/"), key);
        let ending = sent(&client(listed()), &post).await;
        let expected = match keyed {
            true => (200, None, 2),
            false => (202, Some(StopReason::NotRepeatable), 1),
        };
        assert_eq!(ending, expected);
    }
    let server = Server::script([answer(202, &[]), answer(200, &[])]);
    let ending = through_middleware(listed(), Method::POST, &server.url("/")).await;
    assert_eq!(ending, (202, Some(StopReason::NotRepeatable), 1));
}
