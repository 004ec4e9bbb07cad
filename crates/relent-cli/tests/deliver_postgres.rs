//! `relent deliver serve` with its messages in PostgreSQL. Passes over what it needs a PostgreSQL for where there is none.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code,
    reason = "tests may, and the helpers are those of others too"
)]

mod deliver_support;
#[path = "../../relent-server/tests/support/servers.rs"]
mod servers;
mod support;

use deliver_support::{INSIDE, Receiver, Server};
use nix::sys::signal::Signal;
use serde_json::json;

/// Two processes with one database: one is killed, and what it had goes on in the other.
#[test]
fn two_processes_share_a_database_and_one_may_be_killed() {
    let Some(postgres) = servers::postgres(&[]) else {
        return;
    };
    let receiver = Receiver::start();
    let at = format!("postgres:{}", postgres.config());
    let args = [&INSIDE[..], &["--lease", "1s", "--store", &at]].concat();
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [first, second] = folders
        .each_ref()
        .map(|folder| Server::start_with(folder.path(), &args));
    let endpoint = json!({ "url": receiver.url("/"), "policy": "standard-webhooks" }).to_string();
    assert_eq!(first.ask("PUT", "/v1/endpoints/shop", &endpoint).0, 201);
    let send = |server: &Server, event: u32| {
        let message = json!({ "endpoint": "shop", "event": format!("e{event}"), "payload": { "order": event } });
        let (status, answer) = server.ask("POST", "/v1/messages", &message.to_string());
        assert_eq!(status, 202, "{answer}");
        answer["id"].as_str().unwrap().to_owned()
    };
    let mut ids: Vec<String> = (0..20).map(|event| send(&first, event)).collect();
    first.stop(Signal::SIGKILL);
    ids.extend((20..40).map(|event| send(&second, event)));
    for id in &ids {
        second.message_is(id, "delivered");
    }
    let seen = receiver.seen();
    let arrived = |id: &&String| {
        seen.iter()
            .any(|request| request.header("webhook-id") == Some(id))
    };
    assert!(ids.iter().all(|id| arrived(&id)));
    assert_eq!(second.stop(Signal::SIGTERM), Some(0));
}
