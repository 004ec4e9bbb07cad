//! A policy that is replaced while requests run, on real sockets.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use relent::{Backoff, Jitter, Policy, Summary};
use relent_reqwest::{Client, RetryMiddleware, recipe};
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
    recipe().no_proxy().tls_certs_only([])
}

fn client(most: u32) -> Client {
    Client::made_by(http, policy(most)).unwrap()
}

fn refused() -> Step {
    Step::Answer(response(503, &[], "no"))
}

async fn attempts(client: &Client, url: &str) -> u32 {
    client.get(url).send().await.unwrap().summary().attempts
}

#[tokio::test]
async fn rule_14_later_requests_of_a_client_and_its_clones_go_by_the_policy_that_was_set() {
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
async fn rule_14_a_request_that_runs_goes_on_by_its_policy() {
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
async fn a_client_that_is_changed_after_it_was_cloned_has_a_policy_of_its_own() {
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
async fn rule_14_the_policy_of_a_middleware_is_set_while_it_is_in_a_stack() {
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
