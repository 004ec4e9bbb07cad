//! The client as users write it: the builder, options of one request, routes, keys.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Method};
use http_body::Frame;
use http_body_util::StreamBody;
use relent::policy::{BudgetConfig, Pattern, PolicyBuilder, RateLimitConfig, ThrottleConfig};
use relent::{Backoff, Jitter, Policy, StopReason};
use relent_core::Scope;
use relent_reqwest::default_builder;
use relent_reqwest::{AttemptError, Body, Client, Error, IdempotencyKey, KeyForm, Response};

use crate::scripted::{Server, Step, TEST_TIMEOUT, cut, pattern, response, rest, with_silences};

fn quick() -> PolicyBuilder {
    Policy::builder(Backoff::constant(Duration::from_millis(1)))
        .jitter(Jitter::None)
        .max_retries(3)
}

fn client(policy: PolicyBuilder) -> Client {
    let plain = || default_builder().no_proxy().tls_certs_only([]);
    Client::from_builder(plain, policy.build().unwrap()).unwrap()
}

fn status(status: u16) -> Step {
    Step::Answer(response(status, &[], "no"))
}

fn ok() -> Step {
    Step::Answer(response(200, &[], "done"))
}

/// The last status, the reason to stop, and the number of attempts.
fn ending(result: &Result<Response, Error>) -> (Option<u16>, Option<StopReason>, u32) {
    let status = result
        .as_ref()
        .ok()
        .map(|response| response.status().as_u16());
    let summary = match result {
        Ok(response) => response.summary(),
        Err(error) => error.summary().unwrap(),
    };
    (status, summary.reason, summary.attempts)
}

#[tokio::test]
async fn a_builder_makes_the_request_that_reqwest_would() {
    let server = Server::script([ok()]);
    let response = client(quick())
        .post(server.url("/pay?a=1"))
        .header("x-one", "1")
        .headers(HeaderMap::from_iter([(
            http::header::ACCEPT,
            "text/plain".parse().unwrap(),
        )]))
        .query(&[("b", "2 3")])
        .bearer_auth("secret")
        .json(&["x"])
        .send()
        .await
        .unwrap();
    assert_eq!(response.summary().attempts, 1);
    assert_eq!(response.url().path(), "/pay");
    assert_eq!(response.text().await.unwrap(), "done");
    let seen = &server.seen()[0];
    assert!(seen.head.starts_with("POST /pay?a=1&b=2+3 HTTP/1.1\r\n"));
    for (name, value) in [
        ("x-one", "1"),
        ("accept", "text/plain"),
        ("authorization", "Bearer secret"),
        ("content-type", "application/json"),
        ("content-length", "5"),
    ] {
        assert_eq!(seen.header(name), Some(value));
    }
    assert_eq!(seen.body, b"[\"x\"]");
    assert_eq!(seen.header("idempotency-key"), None);
}

#[tokio::test]
async fn the_last_body_set_on_a_request_is_sent() {
    let server = Server::script([ok()]);
    let client = client(quick());
    let post = || client.post(server.url("/"));
    post().body("raw").form(&[("a", "b")]).send().await.unwrap();
    post().form(&[("a", "b")]).body("raw").send().await.unwrap();
    let bodies: Vec<Vec<u8>> = server.seen().into_iter().map(|seen| seen.body).collect();
    assert_eq!(bodies, [b"a=b".as_slice(), b"raw"]);
}

#[tokio::test]
async fn a_response_is_read_like_a_reqwest_response() {
    let server = Server::answering(|_, seen| {
        let status = if seen.head.contains("/missing") {
            404
        } else {
            200
        };
        Step::Answer(response(status, &[], "[1, 2]"))
    });
    let client = client(quick());
    let get = |path| client.get(server.url(path)).send();
    assert_eq!(
        get("/").await.unwrap().json::<Vec<u8>>().await.unwrap(),
        [1, 2]
    );
    assert_eq!(get("/").await.unwrap().bytes().await.unwrap(), "[1, 2]");
    assert!(get("/").await.unwrap().error_for_status().is_ok());
    let wrong = get("/").await.unwrap().json::<String>().await.unwrap_err();
    assert!(matches!(wrong, Error::Body(..)), "{wrong}");

    let missing = get("/missing")
        .await
        .unwrap()
        .error_for_status()
        .unwrap_err();
    assert_eq!(missing.status().map(|status| status.as_u16()), Some(404));
    let summary = missing.summary().unwrap();
    assert_eq!(
        (summary.reason, summary.attempts),
        (Some(StopReason::Permanent), 1)
    );
    assert!(
        missing.to_string().contains("repeating cannot help"),
        "{missing}"
    );
}

#[tokio::test]
async fn an_invalid_request_is_an_error_before_anything_is_sent() {
    let server = Server::script([ok()]);
    let client = client(quick());
    let get = || client.get(server.url("/"));
    for result in [
        client.get("no url").send().await,
        get().header("a b", "c").send().await,
        get().header("a", "b\n").send().await,
        get().idempotency_key("").send().await,
        get().idempotency_key("a\"b").send().await,
    ] {
        let error = result.unwrap_err();
        assert!(error.summary().is_none());
        let Error::Request(cause) = &error else {
            panic!("{error}");
        };
        // The text contains the cause, and no source repeats it.
        let mut root: &dyn std::error::Error = &**cause;
        while let Some(source) = root.source() {
            root = source;
        }
        assert!(error.to_string().contains(&root.to_string()), "{error}");
        assert!(std::error::Error::source(&error).is_none());
    }
    assert_eq!(server.count(), 0);
}

#[tokio::test]
async fn one_request_can_have_its_own_policy() {
    let server = Server::script([status(500)]);
    let client = client(quick());
    let get = || client.get(server.url("/"));
    let once = quick().max_retries(1).build().unwrap();
    assert_eq!(ending(&get().send().await).2, 4);
    assert_eq!(ending(&get().policy(once).send().await).2, 2);
    let single = get().no_retry().send().await;
    assert_eq!(
        ending(&single),
        (Some(500), Some(StopReason::RetriesExhausted), 1)
    );
}

#[tokio::test]
async fn options_of_a_request_change_its_policy_in_any_order() {
    let server = Server::script([status(404)]);
    let client = client(quick());
    let get = || client.get(server.url("/"));
    let listed = [Pattern::Status(404, 404)];
    let policy = || {
        let policy = quick().max_retries(1).retry_on(listed);
        policy.build().unwrap()
    };
    assert_eq!(ending(&get().policy(policy()).send().await).2, 2);
    let single = get().no_retry().policy(policy()).send().await;
    assert_eq!(ending(&single).2, 1);
    let listed = get().retry_on([503]).policy(policy()).send().await;
    assert_eq!(ending(&listed).2, 1);
}

#[tokio::test]
async fn retry_on_replaces_the_failures_that_are_retried() {
    let server = Server::script([status(404), status(503), ok()]);
    let client = client(quick());
    let result = client
        .get(server.url("/"))
        .retry_on([404, 503])
        .send()
        .await;
    assert_eq!(ending(&result), (Some(200), None, 3));

    let server = Server::script([status(503)]);
    let result = client
        .get(server.url("/"))
        .retry_on([Pattern::Network])
        .send()
        .await;
    assert_eq!(ending(&result), (Some(503), Some(StopReason::Permanent), 1));
    let defaults = client.clone().retry_on([404]);
    let result = defaults.get(server.url("/")).send().await;
    assert_eq!(ending(&result), (Some(503), Some(StopReason::Permanent), 1));
}

#[tokio::test]
async fn retry_on_never_makes_a_request_repeatable() {
    let server = Server::script([status(500), ok()]);
    let client = client(quick());
    let post = || client.post(server.url("/"));
    let listed = post().retry_on([500]).send().await;
    assert_eq!(
        ending(&listed),
        (Some(500), Some(StopReason::NotRepeatable), 1)
    );
    assert_eq!(ending(&post().send().await).2, 1);
}

#[tokio::test]
async fn when_takes_precedence_over_the_status() {
    let client = client(quick().retry_on([Pattern::Network]));
    // A response with a success status, and one that a retry cannot help.
    for first in [200, 404, 503] {
        let server = Server::script([status(first), ok()]);
        let not_done = client.get(server.url("/")).when(|_, error, response| {
            assert!(error.is_none());
            response.is_some_and(|response| response.content_length() == Some(2))
        });
        assert_eq!(
            ending(&not_done.send().await),
            (Some(200), None, 2),
            "{first}"
        );

        let server = Server::script([status(first), ok()]);
        let never = client
            .get(server.url("/"))
            .when(|_, _, _| false)
            .send()
            .await;
        let reason = (first >= 400).then_some(StopReason::Permanent);
        assert_eq!(ending(&never), (Some(first), reason, 1));
    }
}

/// Such as a poll for a result. It must not hold back the other callers of a healthy service.
#[tokio::test]
async fn a_success_that_when_refuses_keeps_its_hint_and_concerns_one_request() {
    let client = client(quick()).when(|_, _, _| true).traced();
    for (fields, reason, scope) in [
        (&[][..], StopReason::RetriesExhausted, Scope::Request),
        (
            &[("retry-after", "3600")],
            StopReason::RetryLater,
            Scope::Request,
        ),
        (
            &[("relent-mark", "exhausted")],
            StopReason::DoNotRetry,
            Scope::Request,
        ),
        (
            &[("relent-mark", "overloaded")],
            StopReason::Overloaded,
            Scope::Destination,
        ),
    ] {
        let server = Server::script([Step::Answer(response(202, fields, "wait"))]);
        let result = client.get(server.url("/")).send().await;
        let (status, ended, _) = ending(&result);
        assert_eq!((status, ended), (Some(202), Some(reason)), "{fields:?}");
        let response = result.unwrap();
        let trace = response.summary().trace.as_ref().unwrap();
        for entry in trace.entries() {
            assert_eq!(entry.failure.unwrap().scope, scope, "{fields:?}");
        }
    }
}

#[tokio::test]
async fn when_receives_the_attempt_number_and_the_error() {
    let server = Server::script([Step::Close(Vec::new())]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = seen.clone();
    let client = client(quick()).when(move |attempt, error, response| {
        let transport = matches!(error, Some(AttemptError::Transport(_)));
        note.lock()
            .unwrap()
            .push((attempt, transport, response.is_none()));
        attempt < 2
    });
    let result = client.get(server.url("/")).send().await;
    assert_eq!(ending(&result), (None, Some(StopReason::Permanent), 3));
    let expected = [(0, true, true), (1, true, true), (2, true, true)];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[tokio::test]
async fn when_cannot_exceed_limits_or_repeat_a_non_repeatable_request() {
    let server = Server::script([status(200)]);
    let client = client(quick()).when(|_, _, _| true);
    let get = client.get(server.url("/")).send().await;
    assert_eq!(
        ending(&get),
        (Some(200), Some(StopReason::RetriesExhausted), 4)
    );
    let post = || client.post(server.url("/"));
    let once = post().send().await;
    assert_eq!(
        ending(&once),
        (Some(200), Some(StopReason::NotRepeatable), 1)
    );
    assert_eq!(ending(&post().repeatable(true).send().await).2, 4);

    let asked_not_to = Step::Answer(response(500, &[("x-should-retry", "false")], ""));
    let server = Server::script([asked_not_to]);
    let result = client.get(server.url("/")).send().await;
    assert_eq!(
        ending(&result),
        (Some(500), Some(StopReason::DoNotRetry), 1)
    );
}

#[tokio::test]
async fn delay_is_a_function_of_attempt_error_and_response() {
    let server = Server::script([status(503), Step::Close(Vec::new()), ok()]);
    let calls = Arc::new(Mutex::new(Vec::new()));
    let note = calls.clone();
    let client = client(quick()).traced();
    let began = Instant::now();
    let result = client
        .get(server.url("/"))
        .delay(move |attempt, error, response| {
            let status = response.map(|response| response.status().as_u16());
            note.lock()
                .unwrap()
                .push((attempt, error.is_some(), status));
            Duration::from_millis(20 << attempt)
        })
        .send()
        .await;
    assert!(began.elapsed() >= Duration::from_millis(60));
    assert_eq!(
        *calls.lock().unwrap(),
        [(0, false, Some(503)), (1, true, None)]
    );
    let summary = result.unwrap().into_parts().1;
    let waits: Vec<_> = summary
        .trace
        .as_ref()
        .unwrap()
        .entries()
        .map(relent::trace::TraceEntry::wait)
        .collect();
    assert_eq!(
        waits,
        [
            Some(Duration::from_millis(20)),
            Some(Duration::from_millis(40)),
            None
        ]
    );
}

#[tokio::test]
async fn repeatable_overrides_the_method_of_a_request() {
    let server = Server::script([Step::Close(Vec::new()), ok()]);
    let client = client(quick());
    let result = client
        .post(server.url("/"))
        .body("x")
        .repeatable(true)
        .send()
        .await;
    assert_eq!(ending(&result), (Some(200), None, 2));

    let server = Server::script([status(500), ok()]);
    let result = client.get(server.url("/")).repeatable(false).send().await;
    let stopped = (Some(500), Some(StopReason::NotRepeatable), 1);
    assert_eq!(ending(&result), stopped);
}

#[tokio::test]
async fn a_request_timeout_limits_each_attempt() {
    let server = Server::script([Step::Stall(Vec::new()), ok()]);
    let client = client(quick());
    let sent = client.get(server.url("/")).timeout(TEST_TIMEOUT).send();
    let result = with_silences(&server, 1, TEST_TIMEOUT, sent).await;
    assert_eq!(ending(&result), (Some(200), None, 2));

    let server = Server::script([Step::Stall(Vec::new())]);
    let sent = client.post(server.url("/")).timeout(TEST_TIMEOUT).send();
    let sent = with_silences(&server, 1, TEST_TIMEOUT, sent).await;
    let error = sent.unwrap_err();
    assert!(error.is_timeout());
    assert_eq!(
        error.summary().unwrap().reason,
        Some(StopReason::NotRepeatable)
    );
}

#[tokio::test]
async fn every_attempt_sends_the_same_idempotency_key_once() {
    let server = Server::script([status(500), Step::Close(Vec::new()), status(503), ok()]);
    let client = client(quick());
    let key = IdempotencyKey::new();
    let result = client
        .post(server.url("/"))
        .header("idempotency-key", "another")
        .idempotency_key(key.clone())
        .send()
        .await;
    assert_eq!(ending(&result), (Some(200), None, 4));
    let sent: Vec<_> = server
        .seen()
        .iter()
        .map(|seen| {
            let keys: Vec<&str> = seen
                .head
                .lines()
                .filter(|line| line.to_lowercase().starts_with("idempotency-key:"))
                .collect();
            assert_eq!(keys.len(), 1);
            seen.header("idempotency-key").unwrap().to_owned()
        })
        .collect();
    assert_eq!(sent, vec![format!("\"{key}\""); 4]);

    // Another request gets another key.
    assert_ne!(IdempotencyKey::new(), key);
}

#[tokio::test]
async fn an_idempotency_key_can_be_sent_without_quotes() {
    let server = Server::script([ok()]);
    let client = client(quick()).key_form(KeyForm::Bare);
    client
        .post(server.url("/"))
        .idempotency_key("k 1")
        .send()
        .await
        .unwrap();
    assert_eq!(server.seen()[0].header("idempotency-key"), Some("k 1"));
}

#[tokio::test]
async fn no_idempotency_key_is_added_by_default() {
    let server = Server::script([status(503), ok()]);
    let client = client(quick()).key_form(KeyForm::Bare);
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
        let method = method.parse().unwrap();
        let _ = client
            .request(method, server.url("/"))
            .repeatable(true)
            .send()
            .await
            .unwrap();
    }
    assert!(server.count() > 5);
    assert!(
        server
            .seen()
            .iter()
            .all(|seen| seen.header("idempotency-key").is_none())
    );
}

#[tokio::test]
async fn a_409_for_an_in_flight_key_is_retried() {
    let in_flight = Step::Answer(response(409, &[("retry-after-ms", "50")], ""));
    let server = Server::script([Step::Close(Vec::new()), in_flight.clone(), in_flight, ok()]);
    let client = client(quick());
    let began = Instant::now();
    let result = client
        .post(server.url("/"))
        .idempotency_key("k")
        .send()
        .await;
    assert_eq!(ending(&result), (Some(200), None, 4));
    assert!(began.elapsed() >= Duration::from_millis(100));
}

#[tokio::test]
async fn a_412_after_an_ambiguous_failure_leaves_the_outcome_unknown() {
    for (name, value) in [("if-match", "\"v1\""), ("if-none-match", "*")] {
        for method in ["PUT", "PATCH", "POST", "DELETE"] {
            for first in [Step::Close(Vec::new()), status(500), status(503)] {
                let server = Server::script([first, status(412)]);
                let request = client(quick()).request(method.parse().unwrap(), server.url("/"));
                let result = request.header(name, value).body("new").send().await;
                let unknown = (Some(412), Some(StopReason::OutcomeUnknown), 2);
                assert_eq!(ending(&result), unknown, "{method} {name}");
            }
            for first in [
                Step::Answer(response(429, &[("retry-after-ms", "1")], "")),
                status(425),
            ] {
                let server = Server::script([first, status(412)]);
                let request = client(quick()).request(method.parse().unwrap(), server.url("/"));
                let result = request.header(name, value).body("new").send().await;
                let refused = (Some(412), Some(StopReason::Permanent), 2);
                assert_eq!(ending(&result), refused, "{method} {name}");
            }
        }
    }
}

#[tokio::test]
async fn the_first_matching_route_sets_the_policy() {
    let server = Server::script([status(500)]);
    let retries = |most| quick().max_retries(most).build().unwrap();
    let client = client(quick())
        .route("POST *".parse().unwrap(), retries(9))
        .route("127.0.0.1/reports".parse().unwrap(), retries(0))
        .route("127.0.0.1".parse().unwrap(), retries(1));
    for (path, attempts) in [("/reports/7", 1), ("/reports-old", 2), ("/", 2)] {
        let result = client.get(server.url(path)).send().await;
        assert_eq!(ending(&result).2, attempts, "{path}");
        let request = http::Request::get(server.url(path))
            .body(Body::empty())
            .unwrap();
        assert_eq!(ending(&client.send(&request).await).2, attempts, "{path}");
    }
    let own = retries(2);
    let result = client.get(server.url("/")).policy(own).send().await;
    assert_eq!(ending(&result).2, 3, "the request goes before the route");
}

#[tokio::test]
async fn a_route_without_its_own_budget_shares_that_of_the_client() {
    let server = Server::script([status(500)]);
    let reserve = |reserve| BudgetConfig {
        initial_tokens: reserve,
        ratio: 0.0,
        per_second: 0.0,
        ..BudgetConfig::DEFAULT
    };
    let client = client(quick().budget(reserve(2.0)))
        .route(
            "*/own".parse().unwrap(),
            quick().budget(reserve(1.0)).build().unwrap(),
        )
        .route("*/shared".parse().unwrap(), quick().build().unwrap());
    for (path, attempts) in [("/own", 2), ("/own", 1), ("/shared", 3), ("/", 1)] {
        assert_eq!(
            ending(&client.get(server.url(path)).send().await).2,
            attempts,
            "{path}"
        );
    }
    // A policy for one request uses the same budget.
    let generous = quick().max_retries(9).build().unwrap();
    let result = client.get(server.url("/")).policy(generous).send().await;
    assert_eq!(ending(&result), (Some(500), Some(StopReason::Budget), 1));
}

#[tokio::test]
async fn the_rate_limit_or_throttle_of_a_route_applies_without_a_budget() {
    let server = Server::script([ok(), status(500)]);
    let limited = quick().rate_limit(RateLimitConfig {
        limit: Some(0.001),
        burst: Some(1),
        adaptive: false,
    });
    let limited = limited.deadline(Duration::from_secs(9));
    let throttled = quick().throttle(ThrottleConfig {
        factor: 1.0,
        ..ThrottleConfig::DEFAULT
    });
    let client = client(quick())
        .route("*/limited".parse().unwrap(), limited.build().unwrap())
        .route("*/throttled".parse().unwrap(), throttled.build().unwrap());
    assert!(client.get(server.url("/limited")).send().await.is_ok());
    let (status, reason, attempts) = ending(&client.get(server.url("/limited")).send().await);
    assert_eq!((status, attempts), (None, 0));
    assert_eq!(reason, Some(StopReason::RetryLater));
    let mut reasons = Vec::new();
    for _ in 0..20 {
        let result = client.get(server.url("/throttled")).send().await;
        reasons.push(ending(&result).1);
    }
    assert!(reasons.contains(&Some(StopReason::Throttle)), "{reasons:?}");
}

#[tokio::test]
async fn reroute_sets_the_url_of_each_attempt() {
    let (one, other) = (Server::script([status(503)]), Server::script([ok()]));
    let port = other.address.port();
    let client = client(quick()).reroute(move |attempt, url| {
        if attempt > 1 {
            url.set_port(Some(port)).unwrap();
        }
    });
    let get = client.get(one.url("/a?b")).header("x-key", "1");
    assert_eq!(ending(&get.send().await), (Some(200), None, 2));
    assert_eq!((one.count(), other.count()), (1, 1));
    let seen = &other.seen()[0];
    assert_eq!((seen.path(), seen.header("x-key")), ("/a?b", Some("1")));

    // For one request, with attempts that include the body; the first attempt can be rerouted, too.
    let whole = client.get(one.url("/")).whole_body();
    let whole = whole.reroute(move |_, url| url.set_port(Some(port)).unwrap());
    assert_eq!(ending(&whole.send().await), (Some(200), None, 1));
    assert_eq!((one.count(), other.count()), (1, 2));
}

fn streamed() -> reqwest::Body {
    reqwest::Body::wrap(reqwest::Body::from("streamed"))
}

#[tokio::test]
async fn body_replay_sends_a_kept_stream_again() {
    // Refused, without a response, and accepted.
    let script = || Server::script([status(503), Step::Close(Vec::new()), ok()]);
    let client = client(quick()).body_cap(8);
    for whole_body in [false, true] {
        let server = script();
        let mut put = client.put(server.url("/")).body(streamed());
        if whole_body {
            put = put.whole_body();
        }
        assert_eq!(ending(&put.send().await), (Some(200), None, 3));
        assert_eq!(server.seen().len(), 3);
        assert!(server.seen().iter().all(|seen| seen.body == b"streamed"));
    }
    // Also if the caller's `when` refuses the response.
    let server = Server::script([ok(), ok()]);
    let put = client.put(server.url("/")).body(streamed());
    let put = put.when(|attempt, _, _| attempt == 0).send().await;
    assert_eq!(ending(&put), (Some(200), None, 2));
    assert!(server.seen().iter().all(|seen| seen.body == b"streamed"));
}

#[tokio::test]
async fn body_replay_sends_a_stream_over_the_cap_only_once() {
    for failed in [status(503), Step::Close(Vec::new())] {
        let answer = matches!(failed, Step::Answer(_)).then_some(503);
        let server = Server::script([failed, ok()]);
        let client = client(quick()).body_cap(7);
        let once = client.put(server.url("/")).body(streamed()).send().await;
        let expected = (answer, Some(StopReason::NotReplayable), 1);
        assert_eq!(ending(&once), expected);
        assert_eq!(server.seen()[0].body, b"streamed");
    }
}

#[tokio::test]
async fn body_replay_stops_after_a_response_during_the_upload() {
    let server = Server::answering_early(|_, _| Step::Early(response(503, &[], ""), false));
    let begun = stream::once(async { Ok::<_, io::Error>(Frame::data(Bytes::from("begun"))) });
    let endless = StreamBody::new(begun.chain(stream::pending()));
    let put = client(quick()).put(server.url("/"));
    let put = put.body(reqwest::Body::wrap(endless)).send().await;
    assert_eq!(
        ending(&put),
        (Some(503), Some(StopReason::NotReplayable), 1)
    );
}

#[tokio::test]
async fn a_multipart_form_within_the_cap_is_sent_again() {
    for (cap, attempts) in [(1 << 16, 2), (10, 1)] {
        let client = client(quick()).body_cap(cap);
        let server = Server::script([status(503), ok()]);
        let form = reqwest::multipart::Form::new().text("name", "value");
        let put = client.put(server.url("/")).multipart(form).send().await;
        assert_eq!(put.unwrap().summary().attempts, attempts);
        for seen in server.seen() {
            let kind = seen.header("content-type").unwrap();
            assert!(kind.starts_with("multipart/form-data; boundary="), "{kind}");
            assert!(String::from_utf8_lossy(&seen.body).contains("value"));
        }
    }
}

/// Its parts are in memory, so it does not matter that the server has not read them.
#[tokio::test]
async fn a_form_in_memory_is_sent_again_after_an_early_response() {
    let part = pattern(5, 40_000);
    let server = Server::answering_early(move |index, _| match index {
        0 => Step::Early(response(503, &[("connection", "close")], ""), false),
        _ => ok(),
    });
    let form = |stream: bool| {
        let part = match stream {
            true => reqwest::multipart::Part::stream(reqwest::Body::wrap(reqwest::Body::from("x"))),
            false => reqwest::multipart::Part::bytes(part.clone()),
        };
        reqwest::multipart::Form::new().part("file", part)
    };
    let put = client(quick()).put(server.url("/")).multipart(form(false));
    assert_eq!(ending(&put.send().await), (Some(200), None, 2));
    let seen = server.seen();
    let whole = &seen[1].body;
    assert!(whole.windows(part.len()).any(|bytes| bytes == part));

    // A form that is too long is not sent again.
    let server = Server::script([status(503), ok()]);
    let put = client(quick()).body_cap(1000).put(server.url("/"));
    let result = put.multipart(form(false)).send().await;
    let reason = Some(StopReason::NotReplayable);
    assert_eq!(ending(&result), (Some(503), reason, 1));
    assert!(server.seen()[0].body.len() > part.len());
}

#[tokio::test]
async fn a_body_from_a_function_is_made_again_for_each_attempt() {
    let client = client(quick());
    let server = Server::script([status(503), Step::Close(Vec::new()), ok()]);
    let made = AtomicU32::new(0);
    let made = Arc::new(made);
    let count = made.clone();
    let body = Body::made_by(move || {
        count.fetch_add(1, Ordering::Relaxed);
        streamed()
    });
    let again = client.put(server.url("/")).body(body).send().await;
    assert_eq!(ending(&again), (Some(200), None, 3));
    assert_eq!(made.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn whole_body_joins_the_parts_of_several_attempts_into_one_response() {
    let whole = pattern(11, 40_000);
    let tag = [("etag", "\"v1\""), ("x-first", "yes")];
    let server = Server::script([
        Step::Close(cut(200, &tag, &whole, 15_000)),
        Step::Answer(rest(15_000, &whole, "\"v1\"", usize::MAX)),
    ]);
    let result = client(quick())
        .get(server.url("/a"))
        .whole_body()
        .send()
        .await;
    assert_eq!(ending(&result), (Some(200), None, 2));
    let received = result.unwrap();
    assert_eq!(received.headers()["x-first"], "yes");
    assert_eq!(received.url().as_str(), server.url("/a"));
    assert!(received.bytes().await.unwrap() == whole);
    assert_eq!(server.seen()[1].range_start(), Some(15_000));

    // Without a strong tag it restarts. Without `whole_body` the reader gets the error.
    let cut_short = Step::Close(cut(200, &[], &whole, 15_000));
    let server = Server::script([cut_short, Step::Answer(response(200, &[], &whole))]);
    let whole_body = client(quick())
        .get(server.url("/"))
        .whole_body()
        .send()
        .await;
    assert_eq!(ending(&whole_body), (Some(200), None, 2));
    assert!(whole_body.unwrap().bytes().await.unwrap() == whole);

    let server = Server::script([Step::Close(cut(200, &[], &whole, 15_000))]);
    let head_only = client(quick()).get(server.url("/")).send().await;
    assert_eq!(ending(&head_only), (Some(200), None, 1));
    assert!(matches!(
        head_only.unwrap().bytes().await,
        Err(Error::Body(..))
    ));
}

#[tokio::test]
async fn whole_body_keeps_the_body_of_an_error_response() {
    let server = Server::script([status(503)]);
    let result = client(quick())
        .get(server.url("/"))
        .whole_body()
        .send()
        .await;
    assert_eq!(
        ending(&result),
        (Some(503), Some(StopReason::RetriesExhausted), 4)
    );
    assert_eq!(result.unwrap().text().await.unwrap(), "no");
}

#[tokio::test]
async fn options_of_one_request_apply_to_its_download() {
    let whole = pattern(12, 1000);
    let server = Server::script([
        status(404),
        Step::Close(cut(200, &[], &whole, 10)),
        Step::Answer(response(200, &[], &whole)),
    ]);
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let note = attempts.clone();
    let mut sink = Vec::new();
    let (_, summary) = client(quick())
        .get(server.url("/"))
        .when(move |attempt, error, response| {
            let status = response.map(|response| response.status().as_u16());
            note.lock()
                .unwrap()
                .push((attempt, error.is_some(), status));
            status != Some(200)
        })
        .download(&mut sink)
        .await
        .unwrap();
    assert_eq!(summary.attempts, 3);
    assert!(sink == whole);
    assert_eq!(
        *attempts.lock().unwrap(),
        [
            (0, false, Some(404)),
            (1, false, Some(200)),
            (1, true, None),
            (2, false, Some(200))
        ]
    );
}

/// A server that responds to GET requests with 503 once.
fn once() -> Server {
    Server::script([
        Step::Answer(response(503, &[], "")),
        Step::Answer(response(200, &[], "")),
    ])
}

#[tokio::test]
async fn repeatable_false_overrides_assume_repeatable_of_the_policy() {
    let assuming = || client(quick().assume_repeatable(true));
    for method in [Method::GET, Method::POST] {
        let server = once();
        let request = assuming().request(method.clone(), server.url("/"));
        assert_eq!(ending(&request.send().await).2, 2, "{method}");
        let server = once();
        let request = assuming().request(method.clone(), server.url("/"));
        let sent = request.repeatable(false).send().await.unwrap();
        assert_eq!(sent.summary().reason, Some(StopReason::NotRepeatable));
        assert_eq!(server.count(), 1, "{method}");
        let server = once();
        let request = assuming().request(method.clone(), server.url("/"));
        let _ = request.repeatable(false).whole_body().send().await;
        assert_eq!(server.count(), 1, "{method}");
        let server = once();
        let request = assuming().request(method.clone(), server.url("/"));
        let request = request.repeatable(false).idempotency_key("key");
        let _ = request.download(&mut Vec::new()).await;
        assert_eq!(server.count(), 1, "{method}");
    }
}
