//! A policy that is replaced while requests run, on real sockets.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use relent::{Backoff, Jitter, Policy, Summary};
use relent_reqwest::{Client, RetryMiddleware, default_builder};
use reqwest_middleware::ClientBuilder;

use crate::scripted::{Server, Step, response};

fn policy(retries: u32) -> Policy {
    Policy::builder(Backoff::constant(Duration::from_millis(1)))
        .jitter(Jitter::None)
        .max_retries(retries)
        .build()
        .unwrap()
}

fn http() -> reqwest::ClientBuilder {
    default_builder().no_proxy().tls_certs_only([])
}

fn client(most: u32) -> Client {
    Client::from_builder(http, policy(most)).unwrap()
}

fn refused() -> Step {
    Step::Answer(response(503, &[], "no"))
}

async fn attempts(client: &Client, url: &str) -> u32 {
    client.get(url).send().await.unwrap().summary().attempts
}

#[tokio::test]
async fn set_policy_applies_to_later_requests_of_all_clones() {
    let server = Server::script([refused()]);
    let url = server.url("/");
    let client = client(3).route("*/slow".parse().unwrap(), policy(2));
    let clone = client.clone();
    client.set_policy(policy(3).without_retries());
    for client in [&client, &clone] {
        assert_eq!(attempts(client, &url).await, 1);
    }
    // A policy of a route or a request takes precedence.
    assert_eq!(attempts(&client, &server.url("/slow")).await, 3);
    let own = client.get(&url).policy(policy(1)).send().await.unwrap();
    assert_eq!(own.summary().attempts, 2);
    client.set_policy(policy(4));
    assert_eq!(attempts(&clone, &url).await, 5);
}

#[tokio::test]
async fn set_policy_does_not_affect_a_running_request() {
    let client = client(3);
    let reload: Arc<Mutex<Option<Client>>> = Arc::new(Mutex::new(Some(client.clone())));
    let server = Server::answering(move |_, _| {
        // In the middle of the first attempt.
        if let Some(client) = reload.lock().unwrap().take() {
            client.set_policy(policy(0));
        }
        refused()
    });
    assert_eq!(attempts(&client, &server.url("/")).await, 4);
    assert_eq!(attempts(&client, &server.url("/")).await, 1);
}

/// It keeps its policy, and later changes for the other clones do not affect it.
#[tokio::test]
async fn set_policy_does_not_affect_a_clone_that_was_changed() {
    let server = Server::script([refused()]);
    let url = server.url("/");
    let client = client(3);
    client.set_policy(policy(1));
    let changed = client.clone().retry_on([503]);
    client.set_policy(policy(2));
    assert_eq!(attempts(&changed, &url).await, 2);
    assert_eq!(attempts(&client, &url).await, 3);
    changed.set_policy(policy(0));
    assert_eq!(attempts(&changed, &url).await, 1);
    assert_eq!(attempts(&client, &url).await, 3);
}

#[tokio::test]
async fn set_policy_applies_to_a_middleware_in_a_stack() {
    let server = Server::script([refused()]);
    let retry = RetryMiddleware::new(policy(3));
    let client = ClientBuilder::new(http().build().unwrap())
        .with(retry.clone())
        .build();
    for (most, attempts) in [(None, 4), (Some(0), 1), (Some(1), 2)] {
        if let Some(most) = most {
            retry.set_policy(policy(most));
        }
        let response = client.get(server.url("/")).send().await.unwrap();
        let summary = response.extensions().get::<Summary>().unwrap();
        assert_eq!(summary.attempts, attempts);
    }
}
