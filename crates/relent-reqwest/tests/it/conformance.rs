//! Each script of responses runs through every implementation that retries: the tower layer over hyper's client, the
//! client, its attempts that include the body, and the middleware. The server must see the same requests. The traces
//! must have the same decisions, reasons and delays.
//!
//! `relent-cli/tests/it/conformance.rs` runs the same scripts through `relent fetch`.

mod cases;
mod implementations;

use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use cases::{Case, History, answer, policy};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use http::header::IF_MATCH;
use http::{Extensions, Request};
use http_body_util::Full;
use implementations::{BY_HEAD, HEDGED, IMPLEMENTATIONS, Implementation, TestCall, plain};
use relent::failure::{Cause, Network};
use relent::{GaveUp, StopReason, Summary};
use relent_http::RetryLayer;
use relent_reqwest::network::classify_error;
use relent_reqwest::{Client, RetryMiddleware};
use reqwest_middleware::ClientBuilder;
use tower::{Layer, ServiceExt};

use crate::scripted::{self, Server, Step};

/// Runs each script through these implementations concurrently, and compares the results.
async fn same(implementations: &[Implementation], cases: Vec<Case>) {
    for case in &cases {
        let played = implementations.iter().map(|implementation| async move {
            let stage = TestCall::new(case);
            let told = stage.make_call(*implementation).await;
            assert_eq!(
                stage.begun() as usize,
                case.requests,
                "{} by {implementation:?}",
                case.name
            );
            let left = (
                stage.there.queued_while_down(),
                stage.there.held_by_rate_limit(),
            );
            assert_eq!(left, (0, 0), "{} by {implementation:?}", case.name);
            told
        });
        let told = join_all(played).await;
        let expected = &told[0];
        assert_eq!(expected.reason, case.reason, "{}: {expected:?}", case.name);
        assert_eq!(expected.requests.len(), case.requests, "{}", case.name);
        for (implementation, told) in implementations.iter().zip(&told) {
            assert_eq!(told, expected, "{} by {implementation:?}", case.name);
        }
    }
}

#[tokio::test]
async fn all_implementations_attempt_alike() {
    same(&IMPLEMENTATIONS, cases::outcomes()).await;
}

#[tokio::test]
async fn admission_holds_back_all_implementations_alike() {
    same(&IMPLEMENTATIONS, cases::held_back()).await;
    same(&BY_HEAD, cases::held_back_in_the_middle()).await;
}

#[tokio::test]
async fn the_deadline_ends_all_implementations_alike() {
    same(&IMPLEMENTATIONS, cases::deadlines()).await;
}

#[tokio::test]
async fn all_hedging_implementations_hedge_alike() {
    same(&HEDGED, cases::hedges()).await;
}

/// Polls it this many times and drops it. Returns whether it was still pending.
async fn drop_after<F: Future + Unpin>(mut future: F, polls: u32) -> bool {
    let mut left = polls;
    poll_fn(|context| {
        if std::pin::Pin::new(&mut future).poll(context).is_ready() {
            return Poll::Ready(false);
        }
        left -= 1;
        match left {
            0 => Poll::Ready(true),
            _ => Poll::Pending,
        }
    })
    .await
}

/// Drops the call after every possible number of polls. Returns how many times it was dropped.
async fn drop_everywhere(implementation: Implementation, case: &Case) -> u32 {
    for polls in 1.. {
        let stage = TestCall::new(case);
        let balance = || stage.there.budget().unwrap().balance();
        let before = balance();
        if !drop_after(stage.make_call(implementation), polls).await {
            return polls - 1;
        }
        let what = format!("{} by {implementation:?} after {polls} polls", case.name);
        let left = (
            stage.there.queued_while_down(),
            stage.there.held_by_rate_limit(),
        );
        assert_eq!(left, (0, 0), "{what}");
        let (paid, retries) = (before - balance(), stage.begun().saturating_sub(1));
        match case.before {
            // Each request adds to the budget.
            History::Down => assert!(paid <= f64::from(retries), "{what}: {paid}"),
            _ => assert!((paid - f64::from(retries)).abs() < 0.001, "{what}: {paid}"),
        }
        // A leaked permit would block the next call while the breaker is down.
        let told = stage.again().make_call(implementation).await;
        assert_eq!(told.reason, None, "{what}: {told:?}");
    }
    0
}

/// A call that is dropped at any await leaves its destination unchanged: a retry that has not started costs nothing,
/// no waiter stays in the queue, and the next call starts.
#[tokio::test]
async fn cancelling_a_call_at_any_await_leaves_no_state_behind() {
    let cases = cases::dropped();
    let implementations = |case: &Case| match case.hedged {
        true => HEDGED.to_vec(),
        false => IMPLEMENTATIONS.to_vec(),
    };
    let all = cases.iter().flat_map(|case| {
        implementations(case)
            .into_iter()
            .map(move |implementation| drop_everywhere(implementation, case))
    });
    // Each future is polled only when it is woken itself.
    let drops: Vec<_> = all.collect::<FuturesUnordered<_>>().collect().await;
    assert!(drops.iter().all(|drops| *drops > 1), "{drops:?}");
}

/// Pairs of implementations, one calling the other in one process.
#[tokio::test]
async fn no_implementation_retries_a_call_that_another_gave_up() {
    let policy = policy().build().unwrap();
    let client = Client::from_builder(plain, policy.clone()).unwrap();
    for steps in [answer(503, &[]), Step::Reset(Vec::new())] {
        // A layer above the client.
        let server = Server::script([steps.clone()]);
        let (inner, url) = (client.clone(), server.url("/"));
        let layer = RetryLayer::new(policy.clone()).classify_errors(classify_error);
        let outer = layer.layer(tower::service_fn(move |_: Request<_>| {
            let sent = inner.get(&url).send();
            async move {
                sent.await
                    .map(|response| http::Response::from(response.into_inner()))
            }
        }));
        let get = Request::get("http://localhost/").body(Full::<Bytes>::default());
        let ended = match outer.oneshot(get.unwrap()).await {
            Ok(response) => response.extensions().get::<Summary>().unwrap().reason,
            Err(gave_up) => Some(gave_up.reason()),
        };
        assert_eq!((server.count(), ended), (3, Some(StopReason::DoNotRetry)));

        // A middleware above a middleware.
        let server = Server::script([steps.clone()]);
        let retries = || RetryMiddleware::new(policy.clone()).redirects_are_tracked();
        let stack = ClientBuilder::new(plain().build().unwrap())
            .with(retries())
            .with(retries())
            .build();
        let get = stack.get(server.url("/")).build().unwrap();
        let mut extensions = Extensions::new();
        let _ = stack.execute_with_extensions(get, &mut extensions).await;
        let summary = extensions.get::<Summary>().unwrap();
        let ended = (server.count(), summary.attempts, summary.reason);
        assert_eq!(ended, (3, 1, Some(StopReason::DoNotRetry)));
    }
}

/// The response of a conditional write can be the result of its earlier attempt. Each layer above reports that, too.
#[tokio::test]
async fn an_outcome_that_is_unknown_below_is_unknown_in_each_layer_above() {
    let policy = policy().build().unwrap();
    let client = Client::from_builder(plain, policy.clone()).unwrap();
    let written_and_lost = || Server::script([Step::Reset(Vec::new()), answer(412, &[])]);

    // A layer above the client.
    let server = written_and_lost();
    let (inner, url) = (client.clone(), server.url("/"));
    let layer = RetryLayer::new(policy.clone()).classify_errors(classify_error);
    let outer = layer.layer(tower::service_fn(move |_: Request<_>| {
        let sent = inner.put(&url).header(IF_MATCH, "\"v1\"").send();
        async move {
            sent.await
                .map(|response| http::Response::from(response.into_inner()))
        }
    }));
    let put = Request::put("http://localhost/").header(IF_MATCH, "\"v1\"");
    let put = put.body(Full::<Bytes>::default()).unwrap();
    let response = outer.oneshot(put).await.unwrap();
    let summary: &Summary = response.extensions().get().unwrap();
    let ended = (server.count(), summary.attempts, summary.reason);
    assert_eq!(ended, (2, 1, Some(StopReason::OutcomeUnknown)));

    // A middleware above a middleware.
    let server = written_and_lost();
    let retries = || RetryMiddleware::new(policy.clone()).redirects_are_tracked();
    let stack = ClientBuilder::new(plain().build().unwrap())
        .with(retries())
        .with(retries())
        .build();
    let put = stack.put(server.url("/")).header(IF_MATCH, "\"v1\"");
    let mut extensions = Extensions::new();
    let sent = stack.execute_with_extensions(put.build().unwrap(), &mut extensions);
    assert_eq!(sent.await.unwrap().status(), 412);
    let summary = extensions.get::<Summary>().unwrap();
    let ended = (server.count(), summary.attempts, summary.reason);
    assert_eq!(ended, (2, 1, Some(StopReason::OutcomeUnknown)));
}

/// An error that another layer gave up keeps its cause, and is marked as already retried.
#[tokio::test]
async fn an_error_after_a_give_up_keeps_its_cause() {
    let client = Client::from_builder(plain, policy().build().unwrap()).unwrap();
    let unused_address = format!("http://{}/", scripted::unused_address());
    let error = client.get(unused_address).send().await.unwrap_err();
    let failure = classify_error(&error);
    assert_eq!(failure.cause, Cause::Network(Network::Connect));
    assert_eq!(failure.hint.advice, relent::failure::Advice::DoNotRetry);
    let gave_up = match error {
        relent_reqwest::Error::GaveUp(gave_up) => gave_up,
        error => panic!("{error}"),
    };
    let _: &GaveUp<_> = &gave_up;
    assert_eq!(gave_up.reason(), StopReason::RetriesExhausted);
}
