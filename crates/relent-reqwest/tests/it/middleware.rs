//! The middleware on real sockets, in a stack of reqwest-middleware.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http::{Extensions, Method};
use relent::failure::Repeatable;
use relent::policy::PolicyBuilder;
use relent::{Backoff, GaveUp, Jitter, Policy, StopReason, Summary};
use relent_http::body::Replay;
use relent_reqwest::default_builder;
use relent_reqwest::{AttemptError, RetryMiddleware};
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Error, Middleware, Next, Result};

use crate::scripted::{Server, Step, TEST_TIMEOUT, response, with_paused_time, with_silences};

fn quick() -> PolicyBuilder {
    Policy::builder(Backoff::constant(Duration::from_millis(1)))
        .jitter(Jitter::None)
        .max_retries(3)
}

fn stack(retry: RetryMiddleware) -> ClientBuilder {
    let plain = default_builder()
        .no_proxy()
        .tls_certs_only([])
        .build()
        .unwrap();
    ClientBuilder::new(plain).with(retry)
}

fn client(policy: PolicyBuilder) -> ClientWithMiddleware {
    stack(RetryMiddleware::new(policy.build().unwrap())).build()
}

fn status(status: u16) -> Step {
    Step::Answer(response(status, &[], "no"))
}

fn ok() -> Step {
    Step::Answer(response(200, &[], "done"))
}

fn summary(response: &Response) -> (u16, Option<StopReason>, u32) {
    let summary = response.extensions().get::<Summary>().unwrap();
    (response.status().as_u16(), summary.reason, summary.attempts)
}

#[tokio::test]
async fn a_post_is_not_retried_after_an_ambiguous_failure() {
    for fault in [status(500), status(503), Step::Close(Vec::new())] {
        let server = Server::script([fault.clone(), ok()]);
        let sent = client(quick()).post(server.url("/")).body("x").send().await;
        assert_eq!(server.count(), 1, "{fault:?}");
        if let Ok(response) = sent {
            assert_eq!(summary(&response).1, Some(StopReason::NotRepeatable));
        }

        let server = Server::script([fault, ok()]);
        let keyed = client(quick()).post(server.url("/")).body("x");
        let keyed = keyed
            .header("idempotency-key", "\"k\"")
            .send()
            .await
            .unwrap();
        assert_eq!(summary(&keyed), (200, None, 2));
        assert!(server.seen().iter().all(|seen| seen.body == b"x"));
    }
}

#[tokio::test]
async fn repeatable_no_in_extensions_overrides_assume_repeatable() {
    for (said, attempts) in [
        (Repeatable::Unknown, 2),
        (Repeatable::No, 1),
        (Repeatable::Yes, 2),
    ] {
        for method in [Method::GET, Method::POST] {
            let server = Server::script([status(503), ok()]);
            let client = client(quick().assume_repeatable(true));
            let request = client.request(method, server.url("/"));
            let _ = request.with_extension(said).send().await;
            assert_eq!(server.count(), attempts, "{said:?}");
        }
    }
}

#[tokio::test]
async fn the_middleware_waits_for_retry_after() {
    let hinted = Step::Answer(response(503, &[("retry-after-ms", "200")], ""));
    let server = Server::script([hinted, ok()]);
    let began = Instant::now();
    let response = client(quick()).get(server.url("/")).send().await.unwrap();
    assert_eq!(summary(&response), (200, None, 2));
    assert!(began.elapsed() >= Duration::from_millis(200));
}

#[tokio::test]
async fn middleware_body_replay_keeps_a_stream_up_to_the_cap() {
    let server = Server::script([status(503), Step::Close(Vec::new()), ok()]);
    let stream = reqwest::Body::wrap(reqwest::Body::from("streamed"));
    let put = client(quick()).put(server.url("/")).body(stream);
    let response = put.send().await.unwrap();
    assert_eq!(summary(&response), (200, None, 3));
    assert_eq!(server.seen().len(), 3);
    assert!(server.seen().iter().all(|seen| seen.body == b"streamed"));

    let server = Server::script([status(503), ok()]);
    let long = vec![b'x'; Replay::CAP + 1];
    let stream = reqwest::Body::wrap(reqwest::Body::from(long.clone()));
    let put = client(quick()).put(server.url("/")).body(stream);
    let response = put.send().await.unwrap();
    assert_eq!(
        summary(&response),
        (503, Some(StopReason::NotReplayable), 1)
    );
    assert!(server.seen()[0].body == long);

    let missing = Server::script([status(404)]);
    let stream = reqwest::Body::wrap(reqwest::Body::from("streamed"));
    let put = client(quick()).put(missing.url("/")).body(stream);
    let response = put.send().await.unwrap();
    assert_eq!(summary(&response), (404, Some(StopReason::Permanent), 1));
}

#[tokio::test]
async fn the_connection_of_a_failed_attempt_is_reused() {
    let large = Step::Answer(response(503, &[], vec![b'x'; 200_000]));
    let server = Server::script([large.clone(), large, ok()]);
    let no_delay = quick().backoff(Backoff::constant(Duration::ZERO));
    // Draining has a time limit.
    let sent = client(no_delay).get(server.url("/")).send();
    let response = with_paused_time(sent).await.unwrap();
    assert_eq!(summary(&response), (200, None, 3));
    assert!(server.seen().iter().all(|seen| seen.connection == 1));
}

#[tokio::test]
async fn the_last_reqwest_error_is_unchanged_with_a_summary_in_extensions() {
    let server = Server::script([Step::Close(Vec::new())]);
    let client = client(quick());
    let request = client.get(server.url("/")).build().unwrap();
    let mut extensions = Extensions::new();
    let error = client
        .execute_with_extensions(request, &mut extensions)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Reqwest(_)), "{error:?}");
    let summary = extensions.get::<Summary>().unwrap();
    assert_eq!(
        (summary.reason, summary.attempts),
        (Some(StopReason::RetriesExhausted), 4)
    );
}

#[tokio::test]
async fn a_timed_out_attempt_is_retried_and_the_last_is_reported() {
    let timeout = || quick().attempt_timeout(TEST_TIMEOUT);
    let server = Server::script([Step::Stall(Vec::new()), ok()]);
    let sent = client(timeout()).get(server.url("/")).send();
    let response = with_silences(&server, 1, TEST_TIMEOUT, sent).await.unwrap();
    assert_eq!(summary(&response), (200, None, 2));

    let server = Server::script([Step::Stall(Vec::new())]);
    let sent = client(timeout()).post(server.url("/")).send();
    let sent = with_silences(&server, 1, TEST_TIMEOUT, sent).await;
    let error = sent.unwrap_err();
    let Error::Middleware(error) = error else {
        panic!("{error}")
    };
    let gave_up = error.downcast_ref::<GaveUp<AttemptError>>().unwrap();
    assert_eq!(
        (gave_up.reason(), gave_up.attempts()),
        (StopReason::NotRepeatable, 1)
    );
    assert!(matches!(gave_up.error(), Some(AttemptError::Timeout(_))));
}

#[tokio::test]
async fn one_request_can_set_its_policy_by_an_extension() {
    let server = Server::script([status(500)]);
    let once: Arc<Policy> = quick().max_retries(1).build().unwrap().into();
    let request = client(quick()).get(server.url("/")).with_extension(once);
    assert_eq!(summary(&request.send().await.unwrap()).2, 2);
}

/// Counts how many times an extension was seen.
#[derive(Clone, Default)]
struct Count(u32);

/// Counts in the extensions, and fails a given number of times.
struct Counting {
    fails: u32,
    calls: std::sync::atomic::AtomicU32,
}

#[async_trait]
impl Middleware for Counting {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let count = extensions.get_or_insert_default::<Count>();
        count.0 += 1;
        assert_eq!(count.0, 1, "an attempt sees what another has put there");
        let calls = self
            .calls
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if calls < self.fails {
            return Err(Error::middleware(std::io::Error::other("no token")));
        }
        next.run(request, extensions).await
    }
}

#[tokio::test]
async fn an_attempt_does_not_see_extensions_of_other_attempts() {
    let server = Server::script([status(503), status(503), ok()]);
    let counting = Counting {
        fails: 0,
        calls: 0.into(),
    };
    let retry = RetryMiddleware::new(quick().build().unwrap());
    let client = stack(retry).with(counting).build();
    let response = client.get(server.url("/")).send().await.unwrap();
    assert_eq!(summary(&response), (200, None, 3));
}

#[tokio::test]
async fn the_error_of_another_middleware_is_retried_only_if_repeatable() {
    for (method, attempts) in [(Method::GET, 2), (Method::POST, 1)] {
        let server = Server::script([ok()]);
        let counting = Counting {
            fails: 1,
            calls: 0.into(),
        };
        let retry = RetryMiddleware::new(quick().build().unwrap());
        let client = stack(retry).with(counting).build();
        let request = client.request(method, server.url("/")).build().unwrap();
        let mut extensions = Extensions::new();
        let result = client
            .execute_with_extensions(request, &mut extensions)
            .await;
        assert_eq!(extensions.get::<Summary>().unwrap().attempts, attempts);
        assert_eq!(result.is_ok(), attempts == 2);
    }
}

#[tokio::test]
async fn two_retry_middlewares_in_one_stack_do_not_multiply_retries() {
    let server = Server::script([Step::Stall(Vec::new())]);
    let retry = || {
        RetryMiddleware::new(
            quick()
                .max_retries(1)
                .attempt_timeout(TEST_TIMEOUT)
                .build()
                .unwrap(),
        )
    };
    let outer = RetryMiddleware::new(quick().build().unwrap());
    let client = stack(outer).with(retry()).build();
    let sent = client.get(server.url("/")).send();
    let sent = with_silences(&server, 2, TEST_TIMEOUT, sent).await;
    sent.unwrap_err();
    assert_eq!(server.count(), 2);
}

#[tokio::test]
async fn the_middleware_sends_attempt_and_deadline_and_obeys_a_marker() {
    let marked = response(503, &[("relent-mark", "exhausted")], "no");
    let server = Server::script([status(503), Step::Answer(marked), ok()]);
    let policy = quick().deadline(Duration::from_secs(20)).build().unwrap();
    let client = stack(RetryMiddleware::new(policy).cross_layer()).build();
    let response = client.get(server.url("/")).send().await.unwrap();
    assert_eq!(summary(&response), (503, Some(StopReason::DoNotRetry), 2));
    let seen = server.seen();
    let attempts: Vec<_> = seen
        .iter()
        .map(|seen| seen.header("relent-attempt"))
        .collect();
    assert_eq!(attempts, [None, Some("2")]);
    assert!(
        seen.iter()
            .all(|seen| seen.header("relent-deadline-ms").is_some())
    );
}
