//! Hedged requests of the client, on real sockets.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use relent::destination::{Budget, Hedge};
use relent::driver::Decision;
use relent::failure::Cause;
use relent::policy::{BudgetConfig, HedgeConfig, PolicyBuilder};
use relent::{Backoff, Destination, Jitter, Policy, StopReason};
use relent_reqwest::{AttemptError, Body, Client, Error, IdempotencyKey};
use relent_reqwest::{RequestBuilder, Response, default_builder};

use crate::scripted::{Server, Step, response, with_silences};

const MILLI: Duration = Duration::from_millis(1);
/// Much longer than the hedge delay.
const LATE_RESPONSE_AFTER: Duration = Duration::from_secs(1);
/// Longer than any passing test waits.
const MAX_TEST_WAIT: Duration = Duration::from_secs(30);

fn quick() -> PolicyBuilder {
    Policy::builder(Backoff::constant(MILLI))
        .jitter(Jitter::None)
        .max_retries(3)
        .deadline(MAX_TEST_WAIT)
}

/// A client for this machine, which ignores the proxy of the environment.
fn plain(policy: PolicyBuilder) -> Client {
    let plain = || default_builder().no_proxy().tls_certs_only([]);
    Client::from_builder(plain, policy.build().unwrap()).unwrap()
}

const HEDGE_AFTER: Duration = Duration::from_millis(40);

fn hedge() -> Hedge {
    Hedge::new(&HedgeConfig::after(HEDGE_AFTER)).unwrap()
}

/// Sends it. The hedge delay starts when the server is silent, so the speed of the machine does not matter.
async fn send_hedged(server: &Server, request: RequestBuilder) -> Result<Response, Error> {
    with_silences(server, 1, HEDGE_AFTER, request.send()).await
}

fn hedged(policy: PolicyBuilder) -> Client {
    plain(policy.hedge(HedgeConfig::after(HEDGE_AFTER)))
}

fn silent() -> Step {
    Step::Stall(Vec::new())
}

fn status(status: u16) -> Step {
    Step::Answer(response(status, &[], "done"))
}

fn late(status: u16) -> Step {
    Step::Slow(
        LATE_RESPONSE_AFTER,
        usize::MAX,
        response(status, &[], "done"),
    )
}

fn ending(result: &Result<Response, Error>) -> (Option<u16>, u32, Option<StopReason>) {
    match result {
        Ok(response) => {
            let summary = response.summary();
            let status = response.status().as_u16();
            (Some(status), summary.attempts, summary.reason)
        }
        Err(error) => {
            let summary = error.summary().unwrap();
            (None, summary.attempts, summary.reason)
        }
    }
}

/// Waits until the condition holds.
async fn until(is_so: impl Fn() -> bool) {
    let so = async {
        while !is_so() {
            tokio::time::sleep(MILLI).await;
        }
    };
    tokio::time::timeout(MAX_TEST_WAIT, so).await.unwrap();
}

#[tokio::test]
async fn the_client_hedges_a_slow_request_and_drops_the_losing_attempt() {
    let server = Server::script([silent(), status(200)]);
    let client = hedged(quick()).traced();
    let sent = send_hedged(&server, client.get(server.url("/"))).await;
    let response = sent.unwrap();
    assert_eq!(response.status(), 200);
    let summary = response.summary();
    assert_eq!((summary.attempts, summary.reason), (2, None));

    let trace = summary.trace.as_ref().unwrap();
    let mut told: Vec<_> = trace
        .entries()
        .map(|entry| (entry.attempt, entry.seen, entry.decision))
        .collect();
    told.sort_unstable_by_key(|(attempt, ..)| *attempt);
    assert!(
        matches!(
            told[..],
            [
                (1, None, Some(Decision::Stop(stop))),
                (2, Some(Cause::Status(200)), None)
            ] if stop.reason == StopReason::Cancelled
        ),
        "{told:?}"
    );
    // The winner's connection is kept for the next request; the loser's is not.
    until(|| server.ended() == 1).await;
    assert_eq!(server.count(), 2);
}

#[tokio::test]
async fn the_client_does_not_hedge_a_fast_request() {
    let server = Server::script([status(200)]);
    let client = plain(quick().hedge(HedgeConfig::after(MAX_TEST_WAIT)));
    let result = client.get(server.url("/")).send().await;
    assert_eq!(ending(&result), (Some(200), 1, None));
    assert_eq!(server.count(), 1);
}

type Change = fn(RequestBuilder) -> RequestBuilder;

#[tokio::test]
async fn the_client_hedges_a_post_only_if_it_is_repeatable() {
    let cases: [(Change, bool); 8] = [
        (|post| post, false),
        (|post| post.idempotency_key(IdempotencyKey::new()), true),
        (|post| post.repeatable(true), true),
        (
            |post| {
                post.idempotency_key(IdempotencyKey::new())
                    .repeatable(false)
            },
            false,
        ),
        (|post| post.repeatable(true).no_hedge(), false),
        (|post| post.repeatable(true).no_retry(), false),
        (
            |post| {
                post.policy(
                    quick()
                        .assume_repeatable(true)
                        .hedge(HedgeConfig::after(HEDGE_AFTER))
                        .build()
                        .unwrap(),
                )
            },
            true,
        ),
        // The caller's declaration for one request takes precedence over the policy.
        (
            |post| {
                let assuming = quick()
                    .assume_repeatable(true)
                    .hedge(HedgeConfig::after(HEDGE_AFTER))
                    .build()
                    .unwrap();
                post.policy(assuming).repeatable(false)
            },
            false,
        ),
    ];
    for (number, (change, is_hedged)) in cases.into_iter().enumerate() {
        // Only a hedge ends it, if one is expected.
        let first = if is_hedged { silent() } else { late(200) };
        let server = Server::script([first, status(201)]);
        let post = hedged(quick()).post(server.url("/")).body("content");
        let result = match is_hedged {
            true => send_hedged(&server, change(post)).await,
            false => change(post).send().await,
        };
        let expected = if is_hedged { (201, 2) } else { (200, 1) };
        let (answered, attempts, _) = ending(&result);
        assert_eq!((answered.unwrap(), attempts), expected, "{number}");
        assert_eq!(server.count(), attempts as usize, "{number}");
        let key = |index: usize| {
            server.seen()[index]
                .header("idempotency-key")
                .map(str::to_owned)
        };
        if is_hedged {
            assert_eq!(key(0), key(1), "{number}");
            assert_eq!(server.seen()[1].body, b"content", "{number}");
        }
    }
}

#[tokio::test]
async fn one_request_can_have_its_own_hedge() {
    let server = Server::script([silent(), status(200)]);
    let get = plain(quick()).get(server.url("/"));
    let result = send_hedged(&server, get.hedge(hedge())).await;
    assert_eq!(ending(&result), (Some(200), 2, None));
}

#[tokio::test]
async fn a_prebuilt_request_is_hedged() {
    let server = Server::script([silent(), status(200)]);
    let client = hedged(quick());
    let get = client.get(server.url("/")).build().unwrap();
    let sent = with_silences(&server, 1, HEDGE_AFTER, client.send(&get)).await;
    assert_eq!(ending(&sent), (Some(200), 2, None));
}

#[tokio::test]
async fn an_empty_budget_sends_no_hedge() {
    for (reserve, attempts) in [(1.0, 2), (0.0, 1)] {
        let first = if attempts == 2 { silent() } else { late(200) };
        let server = Server::script([first, status(200)]);
        let budget = BudgetConfig {
            ratio: 0.0,
            initial_tokens: reserve,
            per_second: 0.0,
            ..BudgetConfig::DEFAULT
        };
        let there = Destination::new(quick().build().unwrap());
        let there = Arc::new(there.with_budget(Budget::new(&budget).unwrap()));
        let client = hedged(quick()).destination(there.clone());
        let get = client.get(server.url("/"));
        let result = match attempts {
            2 => send_hedged(&server, get).await,
            _ => get.send().await,
        };
        assert_eq!(ending(&result), (Some(200), attempts, None));
        assert_eq!(server.count(), attempts as usize);
        assert_eq!(there.budget().unwrap().balance(), 0.0);
    }
}

#[tokio::test]
async fn if_all_hedges_fail_the_clearest_failure_is_decided_once() {
    let asks = response(503, &[("retry-after", "20")], "later");
    let server = Server::script([
        Step::Slow(LATE_RESPONSE_AFTER, usize::MAX, asks),
        status(500),
        status(200),
    ]);
    // The server's delay does not fit.
    let client = hedged(quick().deadline(Duration::from_secs(10))).traced();
    let result = client.get(server.url("/")).send().await;
    assert_eq!(
        ending(&result),
        (Some(503), 2, Some(StopReason::RetryLater))
    );
    let response = result.unwrap();
    let trace = response.summary().trace.as_ref().unwrap();
    let decided = |entry: &&relent::trace::TraceEntry| entry.decision.is_some();
    assert_eq!(trace.entries().filter(decided).count(), 1);
    assert_eq!(trace.entries().len(), 2);
    assert_eq!(response.text().await.unwrap(), "later");
}

#[tokio::test]
async fn the_retry_of_a_failed_race_is_hedged_again() {
    let server = Server::script([status(503), silent(), status(200)]);
    let no_delay = quick().backoff(Backoff::constant(Duration::ZERO));
    let result = send_hedged(&server, hedged(no_delay).get(server.url("/"))).await;
    assert_eq!(ending(&result), (Some(200), 3, None));
}

#[tokio::test]
async fn hedges_have_their_own_limits_and_the_latest_failure_decides() {
    let server = Server::script([silent(), status(500)]);
    let policy = quick().max_retries(1).attempt_timeout(LATE_RESPONSE_AFTER);
    let result = send_hedged(&server, hedged(policy).get(server.url("/"))).await;
    assert_eq!(
        ending(&result),
        (None, 2, Some(StopReason::RetriesExhausted))
    );
    let Err(Error::GaveUp(gave_up)) = result else {
        panic!("answered");
    };
    assert!(
        matches!(gave_up.error(), Some(AttemptError::Timeout(limit)) if *limit == LATE_RESPONSE_AFTER)
    );
}

#[tokio::test]
async fn a_permanent_failure_ends_the_race() {
    let server = Server::script([silent(), status(403)]);
    let result = send_hedged(&server, hedged(quick()).get(server.url("/"))).await;
    assert_eq!(ending(&result), (Some(403), 2, Some(StopReason::Permanent)));
}

#[tokio::test]
async fn when_applies_to_hedged_attempts() {
    // `false` ends the race, although the other attempt runs.
    let server = Server::script([silent(), status(500)]);
    let get = hedged(quick()).get(server.url("/"));
    let judged = get.when(|attempt, _, response| {
        let status = response.map(reqwest::Response::status);
        assert_eq!(
            (attempt, status),
            (1, Some(StatusCode::INTERNAL_SERVER_ERROR))
        );
        false
    });
    let result = send_hedged(&server, judged).await;
    assert_eq!(ending(&result), (Some(500), 2, Some(StopReason::Permanent)));

    // `true`: a 202 is not final yet, so the response of the other attempt is awaited.
    let server = Server::script([late(200), status(202)]);
    let get = hedged(quick()).get(server.url("/"));
    let judged = get.when(|_, _, response| {
        response.is_some_and(|response| response.status() == StatusCode::ACCEPTED)
    });
    assert_eq!(ending(&judged.send().await), (Some(200), 2, None));
}

#[tokio::test]
async fn a_404_to_a_hedged_delete_waits_for_the_other_attempt() {
    for gone in [404, 410] {
        let server = Server::script([late(204), status(gone)]);
        let result = hedged(quick()).delete(server.url("/")).send().await;
        assert_eq!(ending(&result), (Some(204), 2, None));
        let server = Server::script([late(204), status(gone)]);
        let result = hedged(quick()).get(server.url("/")).send().await;
        assert_eq!(
            ending(&result),
            (Some(gone), 2, Some(StopReason::Permanent))
        );
    }
}

#[tokio::test]
async fn only_bodies_that_can_be_sent_again_are_hedged() {
    let stream = || reqwest::Body::wrap(reqwest::Body::from("content"));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "content").unwrap();
    for (body, attempts) in [
        (Body::from(stream()), 1),
        (Body::made_by(stream), 2),
        (Body::file(file.path()).unwrap(), 2),
    ] {
        let first = if attempts == 2 { silent() } else { late(200) };
        let server = Server::script([first, status(200)]);
        let put = hedged(quick())
            .put(server.url("/"))
            .header("content-length", 7);
        let result = match attempts {
            2 => send_hedged(&server, put.body(body)).await,
            _ => put.body(body).send().await,
        };
        assert_eq!(ending(&result), (Some(200), attempts, None));
        for seen in server.seen() {
            assert_eq!(seen.body, b"content");
        }
        assert_eq!(server.count(), attempts as usize);
    }
}

#[tokio::test]
async fn an_unsent_hedge_with_a_changed_file_costs_nothing() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "content").unwrap();
    let body = Body::file(file.path()).unwrap();
    let path = file.path().to_owned();
    // Changed before the hedge starts, because the hedge delay is much longer than the request takes.
    let server = Server::answering(move |_, _| {
        std::fs::write(&path, "other content").unwrap();
        Step::Slow(
            LATE_RESPONSE_AFTER * 2,
            usize::MAX,
            response(200, &[], "done"),
        )
    });
    let there = Destination::new(quick().build().unwrap());
    let budget = BudgetConfig {
        ratio: 0.0,
        initial_tokens: 1.0,
        per_second: 0.0,
        ..BudgetConfig::DEFAULT
    };
    let there = Arc::new(there.with_budget(Budget::new(&budget).unwrap()));
    let client =
        plain(quick().hedge(HedgeConfig::after(LATE_RESPONSE_AFTER))).destination(there.clone());
    let result = client.put(server.url("/")).body(body).send().await;
    assert_eq!(ending(&result), (Some(200), 1, None));
    assert_eq!(there.budget().unwrap().balance(), 1.0);
    assert_eq!(server.count(), 1);
    assert_eq!(server.seen()[0].body, b"content");
}

#[tokio::test]
async fn attempts_that_include_the_body_are_not_hedged() {
    let server = Server::script([late(200), status(200)]);
    let client = hedged(quick());
    let result = client.get(server.url("/")).whole_body().send().await;
    assert_eq!(ending(&result), (Some(200), 1, None));
    let server = Server::script([late(200), status(200)]);
    let mut sink = Vec::new();
    let get = client.request(Method::GET, server.url("/"));
    let (_, summary) = get.download(&mut sink).await.unwrap();
    assert_eq!((summary.attempts, server.count()), (1, 1));
}

#[tokio::test]
async fn dropping_a_hedged_request_ends_all_its_attempts() {
    let server = Server::script([silent()]);
    let client = hedged(quick());
    let request = client.get(server.url("/")).send();
    tokio::select! {
        result = request => panic!("{result:?}"),
        () = until(|| server.silences() == 2) => {}
    }
    until(|| server.ended() == 2).await;
}

#[tokio::test]
async fn the_client_sends_the_attempt_number_of_a_hedge() {
    let server = Server::script([silent(), status(200)]);
    let client = hedged(quick()).cross_layer();
    let sent = send_hedged(&server, client.get(server.url("/"))).await;
    sent.unwrap();
    let seen = server.seen();
    assert_eq!(seen[0].header("relent-attempt"), None);
    assert_eq!(seen[1].header("relent-attempt"), Some("2"));
    for seen in &seen {
        assert!(seen.header("relent-deadline-ms").is_some(), "{}", seen.head);
    }
}
