//! Tests that `relent deliver` says why a message waits, and waits no longer than it says.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::deliver_support::{INSIDE, Setup, until};
use crate::support::{finish, relent};

/// A policy with one attempt.
const ONCE: &str = "backoff = \"none\"\nmax_retries = 0\n";

/// Registers an endpoint whose messages wait for each reason, and returns a message that waits with the reason.
fn waiting(at: &Setup) -> Vec<(String, &'static str)> {
    let server = &at.server;
    let message = |endpoint: &str, event: &str, more: Value| {
        let mut message = json!({ "endpoint": endpoint, "event": event, "payload": 1 });
        message
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        server.send(&message)
    };
    let (ok, bad) = (at.receiver.url("/ok"), at.receiver.url("/bad"));
    server.register("disabled", &json!({ "url": ok }));
    at.run(&["endpoints", "disable", "disabled", "--reason", "moves"]);
    server.register("ordered", &json!({ "url": bad, "policy": ONCE }));
    let order = json!({ "order": "key" });
    let dead = message("ordered", "first", order.clone());
    server.message_is(&dead, "dead");
    server.register(
        "signed",
        &json!({ "url": ok, "secrets": ["env:RELENT_NO_SUCH"] }),
    );
    server.register("later", &json!({ "url": ok }));
    vec![
        (message("disabled", "e", json!({})), "endpoint-disabled"),
        (message("ordered", "second", order), "dead-letter"),
        (message("signed", "e", json!({})), "local-fault"),
        (
            message(
                "later",
                "e",
                json!({ "delay_ms": 3_600_000, "order": "key" }),
            ),
            "schedule",
        ),
        (
            message("later", "f", json!({ "order": "key" })),
            "earlier-message",
        ),
    ]
}

#[test]
fn a_waiting_message_says_why_in_each_place() {
    let at = Setup::start();
    let session = at.server.sign_in(&at.server.token);
    for (id, reason) in waiting(&at) {
        let path = format!("/v1/messages/{id}");
        let shown = until(&format!("{id} waits: {reason}"), || {
            let (_, shown) = at.server.ask("GET", &path, "");
            (shown["message"]["wait"]["reason"] == reason).then_some(shown)
        });
        let detail = shown["message"]["wait"]["detail"].as_str().unwrap();
        let listed = at.run(&["list", "--search", &id]).stdout;
        assert!(listed.contains(&format!("waits: {detail}")), "{listed}");
        let text = at.run(&["show", &id]).stdout;
        assert!(text.contains(&format!("why           {detail}")), "{text}");
        let (_, page) = at.server.page(&session, &format!("/messages/{id}"));
        assert!(page.contains("It waits"), "{page}");
    }
    let listed = at.run(&["endpoints", "list"]).stdout;
    assert!(listed.contains("local-fault  1"), "{listed}");
    // The overview counts the endpoint, although none of its attempts has failed.
    let (_, overview) = at.server.page(&session, "/");
    for part in [
        "1 endpoint held by a local fault",
        "1 dead letter",
        "1 disabled endpoint",
    ] {
        assert!(overview.contains(part), "{part} in {overview}");
    }
    let place = |name: &str| overview.find(&format!(">{name}</a>")).unwrap();
    assert!(place("signed") < place("disabled"), "{overview}");
}

#[test]
fn wait_says_why_a_message_waits_and_ends_at_its_timeout() {
    let at = Setup::start();
    at.server
        .register("shop", &json!({ "url": at.receiver.url("/ok") }));
    at.run(&["endpoints", "disable", "shop", "--reason", "moves"]);
    let send = [
        "send",
        "--endpoint",
        "shop",
        "--event",
        "e",
        "-d",
        "1",
        "--wait",
    ];
    let begun = Instant::now();
    let ran = at
        .server
        .deliver(at.folder(), &[&send[..], &["--timeout", "1s"]].concat());
    assert_eq!(ran.status, 124, "{ran:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{ran:?}");
    let id = ran.stdout.trim();
    for part in [
        "waiting: its endpoint is disabled: moves",
        "was not acknowledged within 1s",
        "stays enqueued",
        id,
    ] {
        assert!(ran.stderr.contains(part), "{part} in {ran:?}");
    }
    assert_eq!(ran.stderr.matches("waiting: ").count(), 1, "once: {ran:?}");
    let refused = at.server.deliver(
        at.folder(),
        &[
            "send",
            "--endpoint",
            "shop",
            "--event",
            "e",
            "-d",
            "1",
            "--timeout",
            "1s",
        ],
    );
    assert_eq!(refused.status, 2, "only with --wait: {refused:?}");
    // The wait goes on after the reason ends.
    let server = format!("http://{}", at.server.address);
    let child = relent(&[&["deliver"], &send[..], &["--timeout", "unlimited"]].concat())
        .env("RELENT_DELIVER_SERVER", server)
        .current_dir(at.folder())
        .spawn()
        .unwrap();
    at.run(&["endpoints", "enable", "shop"]);
    let ran = finish(child);
    assert_eq!(ran.status, 0, "{ran:?}");
}

#[test]
fn wait_says_that_the_message_stays_enqueued_if_the_server_is_gone() {
    let at = Setup::start();
    let url = at.receiver.url("/ok");
    at.server.register("shop", &json!({ "url": url }));
    at.run(&["endpoints", "disable", "shop"]);
    let send = ["deliver", "send", "--endpoint", "shop", "-d", "1", "--wait"];
    let options = ["--event", "e", "--wait-for-server", "100ms"];
    let mut child = relent(&[&send[..], &options].concat())
        .env(
            "RELENT_DELIVER_SERVER",
            format!("http://{}", at.server.address),
        )
        .current_dir(at.folder())
        .spawn()
        .unwrap();
    let (mut id, printed) = (String::new(), child.stdout.take().unwrap());
    BufReader::new(printed).read_line(&mut id).unwrap();
    at.server.stop(Signal::SIGKILL);
    let (ran, id) = (finish(child), id.trim());
    assert_eq!(ran.status, 1, "{ran:?}");
    let says = format!("{id} stays enqueued, and `relent deliver show {id}` shows its state");
    assert!(
        !id.is_empty() && ran.stderr.contains(&says),
        "{says} in {ran:?}"
    );
}

#[test]
fn replay_counts_from_the_end_of_a_message() {
    let at = Setup::start();
    let spec = json!({ "url": at.receiver.url("/later"), "policy": ONCE });
    at.server.register("shop", &spec);
    let id = at
        .server
        .send(&json!({ "endpoint": "shop", "event": "e", "payload": 1, "delay_ms": 1500 }));
    let dead = at.server.message_is(&id, "dead");
    let (created, ended) = (
        dead["message"]["created_ms"].as_i64().unwrap(),
        dead["message"]["ended_ms"].as_i64().unwrap(),
    );
    assert!(ended >= created + 1500);
    // It was enqueued before the time, and became a dead letter after it.
    let between = jiff::Timestamp::from_millisecond(created + 1000).unwrap();
    let between = between.to_string();
    for (args, count) in [
        (&["--since", &between][..], 1),
        (&["--until", &between], 0),
        (&["--enqueued-until", &between], 1),
        (&["--enqueued-since", &between], 0),
    ] {
        for command in [&["list"][..], &["dead-letters"]] {
            let ran = at.run(&[command, args, &["--json"]].concat());
            let listed: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
            assert_eq!(listed.len(), count, "{command:?} {args:?}");
        }
    }
    let ran = at.run(&["replay", "--until", &between, "--json"]);
    assert_eq!(ran.stdout, "{\"resent\":0}\n");
    at.receiver.answer(200);
    let ran = at.run(&["replay", "--since", &between, "--json"]);
    assert_eq!(ran.stdout, "{\"resent\":1}\n");
    at.server.message_is(&id, "delivered");
    for state in ["pending", "running"] {
        let args = ["list", "--state", state, "--since", "1h"];
        let ran = at.server.deliver(at.folder(), &args);
        assert!(
            ran.status == 2 && ran.stderr.contains("--enqueued-since"),
            "{ran:?}"
        );
    }
    let narrowed = json!({ "ended_from_ms": 0 }).to_string();
    let (status, problem) = at.server.ask("POST", "/v1/send-now", &narrowed);
    assert_eq!(status, 422, "{problem}");
}

#[test]
fn a_list_that_is_cut_says_so() {
    let at = Setup::start();
    at.server
        .register("shop", &json!({ "url": at.receiver.url("/ok") }));
    for event in ["a", "b", "c"] {
        at.server.send(
            &json!({ "endpoint": "shop", "event": event, "payload": 1, "delay_ms": 3_600_000 }),
        );
    }
    for (limit, is_cut) in [("2", true), ("3", false), ("4", false)] {
        let ran = at.run(&["list", "--limit", limit, "--json"]);
        assert_eq!(
            ran.stderr.contains("more messages match"),
            is_cut,
            "{ran:?}"
        );
    }
}

#[test]
fn an_interrupted_send_says_whether_an_attempt_was_running() {
    let at = Setup::start();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("http://{}/", silent.local_addr().unwrap());
    let mut connection = None;
    for (url, is_running) in [(silent_url, true), (at.receiver.url("/bad"), false)] {
        let send = ["deliver", "send", &url, "-d", "1", "--policy", "alipay"];
        let mut child = relent(&[&send[..], &INSIDE].concat()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        match is_running {
            true => connection = Some(silent.accept().unwrap()),
            // The report of an attempt follows its end.
            false => drop(stderr.read_line(&mut said).unwrap()),
        }
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
        assert_eq!(finish(child).status, 143);
        let mut last = String::new();
        stderr.read_to_string(&mut last).unwrap();
        assert!(last.contains("msg_"), "{said}{last}");
        assert_eq!(last.contains("unknown"), is_running, "{said}{last}");
        assert_eq!(last.contains("status 500"), !is_running, "{said}{last}");
    }
    drop(connection);
}
