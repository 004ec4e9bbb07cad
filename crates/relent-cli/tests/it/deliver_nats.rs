//! Tests of `relent deliver serve --nats` and `relent deliver worker`. Without a nats-server, those that need it are
//! skipped.
#![allow(
    dead_code,
    reason = "tests may, and the helpers are those of others too"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Child;
use std::thread;

use futures_util::StreamExt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use relent_outbox_nats::async_nats;
use serde_json::json;

use crate::deliver_support::{INSIDE, Receiver, Server, until};
use crate::servers;
use crate::support::{finish, relent};

fn work(url: &str, more: &[&str]) -> Child {
    let args = [&["deliver", "worker", "--nats", url], &INSIDE[..], more].concat();
    let mut process = relent(&args).spawn().unwrap();
    let mut said = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "relent: connected to NATS\n");
    thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
    process
}

/// An address that is currently free.
fn free() -> String {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().to_string()
}

/// The metrics of a `worker`.
fn scrape(address: &str) -> String {
    let mut scrape = TcpStream::connect(address).unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    scrape.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    scrape.read_to_string(&mut text).unwrap();
    text
}

/// Sends a message to the endpoint `shop`, and waits for its delivery.
fn send(server: &Server, event: u32) -> String {
    let message =
        json!({ "endpoint": "shop", "event": format!("e{event}"), "payload": { "order": event } });
    let (status, answer) = server.ask("POST", "/v1/messages", &message.to_string());
    assert_eq!(status, 202, "{answer}");
    answer["id"].as_str().unwrap().to_owned()
}

#[test]
fn serve_dispatches_and_workers_deliver() {
    let Some(nats) = servers::nats() else { return };
    let receiver = Receiver::start();
    let folder = tempfile::tempdir().unwrap();
    let url = nats.url();
    let args = [&INSIDE[..], &["--nats", &url]].concat();
    let server = Server::start_with(folder.path(), &args);
    let endpoint = json!({ "url": receiver.url("/") }).to_string();
    assert_eq!(server.ask("PUT", "/v1/endpoints/shop", &endpoint).0, 201);
    let send = |event| send(&server, event);
    let first = send(0);
    let metrics = free();
    let one = work(&url, &["--metrics", &metrics]);
    server.message_is(&first, "delivered");
    let mut other = work(&url, &[]);
    other.kill().unwrap();
    other.wait().unwrap();
    let ids: Vec<String> = (1..20).map(send).collect();
    for id in &ids {
        server.message_is(id, "delivered");
    }
    assert_eq!(receiver.seen().len(), 20);
    let text = scrape(&metrics);
    let counted = "relent_outbox_worker_attempts_total{result=\"answered\"} 20";
    assert!(text.contains(counted), "{text}");
    kill(Pid::from_raw(one.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(finish(one).status, 0);
    assert_eq!(server.stop(Signal::SIGTERM), Some(0));
}

/// `serve` and `worker` count messages that they reject, and continue.
#[test]
fn invalid_nats_messages_are_rejected_and_counted() {
    let Some(nats) = servers::nats() else { return };
    let receiver = Receiver::start();
    let folder = tempfile::tempdir().unwrap();
    let url = nats.url();
    let server = Server::start_with(folder.path(), &[&INSIDE[..], &["--nats", &url]].concat());
    let endpoint = json!({ "url": receiver.url("/") }).to_string();
    assert_eq!(server.ask("PUT", "/v1/endpoints/shop", &endpoint).0, 201);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (client, mut attempts) = runtime.block_on(async {
        let client = async_nats::connect(&url).await.unwrap();
        let attempts = client.subscribe("relent-outbox.attempts").await.unwrap();
        client.flush().await.unwrap();
        (client, attempts)
    });
    let id = send(&server, 0);
    runtime.block_on(async {
        let attempt = attempts.next().await.unwrap();
        let head = attempt.payload.split(|byte| *byte == b'\n').next().unwrap();
        let head: serde_json::Value = serde_json::from_slice(head).unwrap();
        let this = head[1]["relay"].as_str().unwrap();
        let answer = json!([0, {
            "outcome": { "Answered": { "status": 200, "headers": [], "end": "Whole" } },
            "address": "", "took": { "secs": 0, "nanos": 0 },
        }]);
        let answer = format!("{answer}\n");
        for (subject, text, wrong) in [
            (format!("{this}.end"), "junk", "has no end"),
            (format!("{this}.end"), &answer, "no worker had permission"),
            (format!("{this}7.end"), &answer, "no attempt of this number"),
        ] {
            let said = client
                .request(subject, text.to_owned().into())
                .await
                .unwrap()
                .payload;
            let said = String::from_utf8_lossy(&said);
            assert!(
                said.starts_with("refused: ") && said.contains(wrong),
                "{said}"
            );
        }
        client
            .publish("relent-outbox.attempts", "junk".into())
            .await
            .unwrap();
        client.flush().await.unwrap();
    });
    let token = format!("authorization: Bearer {}\r\n", server.token);
    let (_, _, text) = server.raw("GET", "/metrics", &token, "");
    for reason in ["unreadable", "not_granted", "unknown"] {
        let counted = format!("relent_outbox_nats_refused_total{{reason=\"{reason}\"}} 1");
        assert!(text.contains(&counted), "{counted} is not in {text}");
    }
    let metrics = free();
    let one = work(&url, &["--metrics", &metrics]);
    server.message_is(&id, "delivered");
    let text = until("the work counts it", || {
        let text = scrape(&metrics);
        text.contains("relent_outbox_nats_refused_total{reason=\"unreadable\"}")
            .then_some(text)
    });
    assert!(
        text.contains("relent_outbox_worker_attempts_total{result=\"answered\"} 1"),
        "{text}"
    );
    assert_eq!(receiver.seen().len(), 1);
    kill(Pid::from_raw(one.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(finish(one).status, 0);
    assert_eq!(server.stop(Signal::SIGTERM), Some(0));
}

#[test]
fn wrong_nats_options_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    for (args, wrong) in [
        (&[][..], "--nats is missing"),
        (
            &["--nats", "nats://127.0.0.1:4222", "--nats-queue", "a.b"],
            "letters, digits",
        ),
        (&["--nats-queue", "fleet"], "--nats <URL>"),
        (&["--nats-replicas", "3"], "--nats <URL>"),
        (
            &[
                "--nats",
                "nats://127.0.0.1:4222",
                "--nats-creds",
                "no-such-file",
            ],
            "--nats-creds no-such-file",
        ),
        (
            &["--nats", "nats://one:a@127.0.0.1,nats://two:b@127.0.0.1"],
            "one user for all servers",
        ),
    ] {
        let child = relent(&[&["deliver", "worker"], args].concat())
            .current_dir(folder.path())
            .spawn();
        let ran = finish(child.unwrap());
        assert_eq!(ran.status, 2, "{}", ran.stderr);
        assert!(ran.stderr.contains(wrong), "{}", ran.stderr);
    }
    // Without a NATS server it waits, reports that, and ends on SIGTERM.
    let child = relent(&["deliver", "worker", "--nats", "nats://127.0.0.1:9"])
        .spawn()
        .unwrap();
    thread::sleep(std::time::Duration::from_millis(500));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    let ran = finish(child);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
}
