//! Tests of `relent deliver serve` with PostgreSQL; skipped without a PostgreSQL.
#![allow(
    dead_code,
    reason = "tests may, and the helpers are those of others too"
)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::deliver_support::{INSIDE, Receiver, Server, until};
use crate::servers;
use crate::support::{finish, relent};

/// Two processes share a database: one is killed, and the other takes over its messages.
#[test]
fn a_killed_process_is_replaced_by_another_on_the_same_database() {
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

/// Without its database the process reports and counts the failure, and ends on SIGTERM.
#[test]
fn metrics_are_served_while_the_database_is_unreachable() {
    let Some(postgres) = servers::postgres(&[]) else {
        return;
    };
    let at = format!("postgres:{}", postgres.config());
    let folder = tempfile::tempdir().unwrap();
    let args = [&INSIDE[..], &["--lease", "1s", "--store", &at]].concat();
    let server = Server::start_with(folder.path(), &args);
    let token = format!("authorization: Bearer {}\r\n", server.token);
    let metrics = || server.raw("GET", "/metrics", &token, "");
    assert!(metrics().2.contains("relent_outbox_endpoints_disabled 0"));
    let _directory = postgres.server.end();
    until("the failure is counted", || {
        let (status, _, told) = metrics();
        assert_eq!(status, 200, "{told}");
        let counted =
            told.contains("\nrelent_outbox_store_errors_total{operation=\"summary\"} 2\n");
        (counted && told.contains("\nrelent_outbox_endpoints_disabled NaN")).then_some(())
    });
    let (status, problem) = server.ask("GET", "/v1/summary", "");
    assert_eq!(status, 503);
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("the store does not answer"), "{detail}");
    assert_eq!(server.stop(Signal::SIGTERM), Some(0));
}

/// A PostgreSQL that requires TLS, and the CA certificate for its name `localhost`.
fn with_tls() -> Option<(servers::Postgres, u16, PathBuf)> {
    let directory = servers::postgres(&[])?.server.end();
    let owner = fs::metadata(directory.path().join("data")).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let file = |name: &str, content: &str| {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
        path
    };
    let key = file("key.pem", &key.serialize_pem());
    let certificate = file("certificate.pem", &certificate.pem());
    let access =
        "hostssl all all 127.0.0.1/32 trust\nhostssl all all ::1/128 trust\nlocal all all trust\n";
    let access = file("access", access);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let settings = [
        "ssl=on".to_owned(),
        "listen_addresses=localhost".to_owned(),
        format!("ssl_key_file={}", key.display()),
        format!("ssl_cert_file={}", certificate.display()),
        format!("hba_file={}", access.display()),
    ];
    let settings = settings.each_ref().map(String::as_str);
    let postgres = servers::postgres_on(directory, port, &settings)?;
    Some((postgres, port, certificate))
}

#[test]
fn a_database_with_tls_is_used_if_its_certificate_matches() {
    let Some((_postgres, port, certificate)) = with_tls() else {
        return;
    };
    let receiver = Receiver::start();
    let folder = tempfile::tempdir().unwrap();
    let at =
        |host: &str, mode: &str| format!("postgres://relent@{host}:{port}/postgres?sslmode={mode}");
    let refused = |store: &str, more: &[&str]| {
        let args = [
            &[
                "deliver",
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--store",
                store,
            ],
            more,
        ]
        .concat();
        let relent = relent(&args).current_dir(folder.path()).spawn();
        let ran = finish(relent.unwrap());
        assert_ne!(ran.status, 0, "{store}");
        ran.stderr
    };
    let ca = certificate.to_str().unwrap();
    let unproven = refused(&at("localhost", "require"), &[]);
    assert!(unproven.contains("certificate"), "{unproven}");
    let other_name = refused(&at("127.0.0.1", "require"), &["--store-ca", ca]);
    assert!(other_name.contains("certificate"), "{other_name}");
    let plain = refused(&at("localhost", "disable"), &[]);
    assert!(plain.contains("pg_hba.conf"), "{plain}");
    let no_file = refused(&at("localhost", "require"), &["--store-ca", "/nowhere.pem"]);
    assert!(no_file.contains("--store-ca /nowhere.pem"), "{no_file}");

    let store = at("localhost", "verify-full");
    let args = [&INSIDE[..], &["--store", &store, "--store-ca", ca]].concat();
    let server = Server::start_with(folder.path(), &args);
    let endpoint = json!({ "url": receiver.url("/") }).to_string();
    assert_eq!(server.ask("PUT", "/v1/endpoints/shop", &endpoint).0, 201);
    let message = json!({ "endpoint": "shop", "event": "e1", "payload": 1 }).to_string();
    let (status, answer) = server.ask("POST", "/v1/messages", &message);
    assert_eq!(status, 202, "{answer}");
    server.message_is(answer["id"].as_str().unwrap(), "delivered");
    assert_eq!(server.stop(Signal::SIGTERM), Some(0));
}

/// Three processes share a database; each in turn is killed while messages arrive.
#[test]
#[ignore = "slow: scripts/test --all runs it"]
fn no_message_is_lost_when_processes_are_killed_repeatedly() {
    const KILLS: usize = 6;
    const ENDPOINTS: usize = 6;
    const AT_ONCE: usize = 2;
    let Some(postgres) = servers::postgres(&[]) else {
        return;
    };
    let receiver = Receiver::start();
    let at = format!("postgres:{}", postgres.config());
    let args = [&INSIDE[..], &["--lease", "1s", "--store", &at]].concat();
    // The processes share the token and the key.
    let folder = tempfile::tempdir().unwrap();
    let start = || Some(Server::start_with(folder.path(), &args));
    let mut processes = [start(), start(), start()];
    for name in 0..ENDPOINTS {
        let path = if name % 2 == 0 { "/ok" } else { "/slow" };
        // An attempt that is lost with its process counts as failed, so the message needs another one.
        let policy =
            "max_retries = 20\njitter = \"none\"\nbackoff.constant = { delay = \"200ms\" }\n";
        let endpoint =
            json!({ "url": receiver.url(path), "concurrency": AT_ONCE, "policy": policy });
        let endpoint = endpoint.to_string();
        let through = processes[name % 3].as_ref().unwrap();
        let put = format!("/v1/endpoints/e{name}");
        assert_eq!(through.ask("PUT", &put, &endpoint).0, 201);
    }
    let mut sent = BTreeMap::new();
    for round in 0..KILLS {
        let victim = round % 3;
        let before = receiver.seen().len();
        for number in 0..48 {
            if number == 24 {
                until("attempts run", || {
                    (receiver.seen().len() > before).then_some(())
                });
                let killed = processes[victim].take().unwrap();
                assert_eq!(killed.stop(Signal::SIGKILL), None);
            }
            let through = processes[(victim + 1 + number % 2) % 3].as_ref().unwrap();
            let event = format!("{round}-{number}");
            let endpoint = format!("e{}", number % ENDPOINTS);
            let message = json!({ "endpoint": endpoint, "event": event, "payload": event });
            let (status, answer) = through.ask("POST", "/v1/messages", &message.to_string());
            assert_eq!(status, 202, "{answer}");
            sent.insert(answer["id"].as_str().unwrap().to_owned(), event);
        }
        processes[victim] = start();
    }
    for id in sent.keys() {
        processes[0].as_ref().unwrap().message_is(id, "delivered");
    }
    let seen = receiver.seen();
    let mut arrived = BTreeMap::<&str, usize>::new();
    for request in &seen {
        let id = request.header("webhook-id").unwrap();
        *arrived.entry(id).or_default() += 1;
        assert_eq!(request.body, json!(sent[id]).to_string(), "{id}");
    }
    assert_eq!(
        arrived.len(),
        sent.len(),
        "each has arrived, and nothing else"
    );
    // At most one repetition for each kill and attempt that may have been running.
    let most = KILLS * ENDPOINTS * AT_ONCE;
    assert!(
        seen.len() - sent.len() <= most,
        "{} of {}",
        seen.len(),
        sent.len()
    );
    let (_, summary) = processes[1].as_ref().unwrap().ask("GET", "/v1/summary", "");
    assert_eq!(
        (&summary["pending"], &summary["dead"]),
        (&json!(0), &json!(0))
    );
    for process in processes.into_iter().flatten() {
        assert_eq!(process.stop(Signal::SIGTERM), Some(0));
    }
}
