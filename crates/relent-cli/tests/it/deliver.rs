//! Tests of `relent deliver`: the real command, with real sockets.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::deliver_support::{INSIDE, Receiver, Request, Server, until};
use crate::scripted::unused_address;
use crate::support::{self, Ran, finish, relent};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Runs `relent deliver ARGS` in this folder, with this standard input.
fn deliver(folder: &Path, args: &[&str], input: &[u8]) -> Ran {
    let mut child = relent(&[&["deliver"], args].concat())
        .current_dir(folder)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    // The command may end without reading its input.
    let _ = child.stdin.take().unwrap().write_all(input);
    finish(child)
}

fn ok(ran: &Ran) -> &str {
    assert_eq!(ran.status, 0, "{ran:?}");
    ran.stdout.trim_end()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// A receiver is down, an operator finds the reason, and the message arrives in the end.
#[test]
fn a_dead_letter_can_be_listed_shown_and_replayed_until_acknowledged() {
    let (folder, receiver) = (folder(), Receiver::start());
    let folder = folder.path();
    let server = Server::start(folder);
    let run = |args: &[&str]| server.deliver(folder, args);
    fs::write(
        folder.join("once.toml"),
        "backoff = \"none\"\nmax_retries = 1\nretry_on = [\"5xx\"]\n",
    )
    .unwrap();
    let url = receiver.url("/later");
    ok(&run(&[
        "endpoints",
        "add",
        "shop",
        &url,
        "--policy",
        "once.toml",
        "--no-hold",
    ]));
    let send = [
        "send",
        "--endpoint",
        "shop",
        "--event",
        "e1",
        "-d",
        "{\"order\":17}",
    ];
    let sent = run(&[&send[..], &["--topic", "payment.settled", "--wait"]].concat());
    assert_eq!(sent.status, 1, "{sent:?}");
    assert!(
        sent.stderr.contains("status 503") && sent.stderr.contains("is dead"),
        "{}",
        sent.stderr
    );
    assert!(
        !sent.stderr.contains('\u{1b}'),
        "what a receiver writes does nothing to a terminal"
    );
    let id = sent.stdout.trim().to_owned();
    assert_eq!(receiver.seen().len(), 2);
    // The server also logs it.
    let line = until("it is in the log", || {
        let said = server.said();
        let line = said.lines().find(|line| line.contains(&id));
        line.map(str::to_owned)
    });
    for part in [" WARN ", "no attempt follows", "status 503"] {
        assert!(line.contains(part), "{part}: {line}");
    }

    let dead = run(&["dead-letters"]);
    assert!(
        ok(&dead).contains(&id) && dead.stdout.contains("status 503"),
        "{}",
        dead.stdout
    );
    let listed: Value = serde_json::from_str(ok(&run(&[
        "list", "--state", "dead", "--since", "1h", "--json",
    ])))
    .unwrap();
    assert_eq!((&listed[0]["id"], &listed[1]), (&json!(id), &Value::Null));
    for nothing in [
        &["--state", "delivered"][..],
        &["--endpoint", "other"],
        &["--until", "1h"],
        &["--topic", "x"],
    ] {
        let ran = run(&[&["list", "--json"], nothing].concat());
        assert_eq!(ok(&ran), "[]", "{nothing:?}");
    }
    let shown = run(&["show", &id]);
    assert!(
        ok(&shown).contains("attempt 2") && shown.stdout.contains("payment.settled"),
        "{}",
        shown.stdout
    );
    assert!(ok(&run(&["endpoints", "list"])).contains("last attempt: status 503"));

    receiver.answer(200);
    let replayed = run(&["replay", "--endpoint", "shop", "--since", "1h"]);
    assert!(
        replayed.stderr.contains("1 message will be sent again"),
        "{}",
        replayed.stderr
    );
    server.message_is(&id, "delivered");
    let ids: Vec<_> = receiver
        .seen()
        .iter()
        .map(|seen| seen.header("webhook-id").unwrap().to_owned())
        .collect();
    assert_eq!(
        ids,
        [id.as_str(); 3],
        "each attempt has the same identifier"
    );
    let json_of = |ran: &Ran| -> Value { serde_json::from_str(&ran.stdout).unwrap() };
    let resent = run(&["resend", &id, "msg_no", "--json"]);
    assert_eq!(
        (resent.status, &json_of(&resent)[0]),
        (1, &json!({ "id": id, "done": true }))
    );
    let missing = &json_of(&resent)[1];
    assert_eq!(missing["done"], false);
    assert!(missing["detail"].as_str().unwrap().contains("msg_no"));
    server.message_is(&id, "delivered");
    let shown = run(&["show", &id]);
    assert!(shown.stdout.contains("\nresent\nattempt 1, "), "{shown:?}");
    let none = run(&["replay", "--endpoint", "shop", "--json"]);
    ok(&none);
    assert_eq!(json_of(&none), json!({ "resent": 0 }));
    let refused = run(&["cancel", &id]);
    assert_eq!(refused.status, 1);
    assert!(
        refused.stderr.contains("it is delivered"),
        "{}",
        refused.stderr
    );

    // An event is stored once, and another payload for it is refused.
    let again = run(&send);
    assert_eq!(again.status, 1, "without its topic: {again:?}");
    let again = run(&[&send[..], &["--topic", "payment.settled", "--json"]].concat());
    ok(&again);
    assert_eq!(json_of(&again), json!({ "id": id, "duplicate": true }));
    let again = run(&[&send[..], &["--topic", "payment.settled", "--wait"]].concat());
    assert_eq!(ok(&again), id);
    assert!(
        again.stderr.contains("the message was enqueued before"),
        "{}",
        again.stderr
    );
    assert_eq!(receiver.seen().len(), 4);

    ok(&run(&["endpoints", "disable", "shop", "--reason", "moves"]));
    let held = run(&["send", "--endpoint", "shop", "--event", "e2", "-d", "{}"]);
    let held = ok(&held);
    assert!(ok(&run(&["endpoints", "list"])).contains("moves"));
    assert_eq!(server.ask("GET", "/v1/summary", "").1["disabled"], 1);
    let refused = run(&["endpoints", "delete", "shop"]);
    assert_eq!(refused.status, 1);
    for part in ["(pending: 1, dead: 0)", "--discard"] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    ok(&run(&["endpoints", "enable", "shop"]));
    server.message_is(held, "delivered");
    let deleted = run(&["endpoints", "delete", "shop"]);
    ok(&deleted);
    assert!(deleted.stderr.contains("with it: 2"), "{}", deleted.stderr);
    assert_eq!(ok(&run(&["list", "--json"])), "[]");
}

/// Messages that are enqueued when the process dies are delivered by the next one, with the returned identifier.
#[test]
#[ignore = "slow: scripts/test --all runs it"]
fn a_server_that_is_killed_loses_nothing() {
    let (folder, receiver) = (folder(), Receiver::start());
    let folder = folder.path();
    let mut server = Server::start(folder);
    let spec = json!({ "url": receiver.url("/slow"), "concurrency": 2, "hold": false }).to_string();
    server.ask("PUT", "/v1/endpoints/shop", &spec);
    let mut ids = Vec::new();
    for round in 0..3 {
        for number in 0..6 {
            let event = format!("{round}-{number}");
            let message =
                json!({ "endpoint": "shop", "event": event, "payload": number }).to_string();
            let (status, sent) = server.ask("POST", "/v1/messages", &message);
            assert_eq!(status, 202);
            ids.push(sent["id"].as_str().unwrap().to_owned());
        }
        let before = receiver.seen().len();
        until("attempts run", || {
            (receiver.seen().len() > before).then_some(())
        });
        assert_eq!(server.stop(Signal::SIGKILL), None);
        server = Server::start(folder);
    }
    for id in &ids {
        server.message_is(id, "delivered");
    }
    let seen = receiver.seen();
    for id in &ids {
        let count = seen
            .iter()
            .filter(|seen| seen.header("webhook-id") == Some(id))
            .count();
        assert!((1..=4).contains(&count), "{id}: {count}");
    }
    // At most one repetition for each kill and running attempt.
    assert!(seen.len() <= ids.len() + 3 * 2, "{}", seen.len());
    assert_eq!(server.ask("GET", "/v1/summary", "").1["dead"], 0);
}

/// SIGTERM waits for running attempts and starts no other; a second one does not wait.
#[test]
fn a_server_finishes_running_attempts_on_sigterm() {
    let (folder, receiver) = (folder(), Receiver::start());
    let folder = folder.path();
    let server = Server::start(folder);
    let spec = json!({ "url": receiver.url("/slow"), "concurrency": 1 }).to_string();
    server.ask("PUT", "/v1/endpoints/shop", &spec);
    let send = |event: &str| {
        let message = json!({ "endpoint": "shop", "event": event, "payload": 1 }).to_string();
        server.ask("POST", "/v1/messages", &message).1["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let ids = [send("a"), send("b"), send("c")];
    until("an attempt runs", || {
        (!receiver.seen().is_empty()).then_some(())
    });
    assert_eq!(server.stop(Signal::SIGTERM), Some(0));
    let log = folder.join("relent-deliver.db-wal");
    assert!(!log.exists(), "the database is closed, and is one file");
    let attempts = receiver.seen().len();
    assert!(attempts < 3, "what waits is not begun");
    let server = Server::start(folder);
    for id in &ids {
        server.message_is(id, "delivered");
    }
    assert_eq!(receiver.seen().len(), 3, "nothing that had run is repeated");

    // A receiver that never responds.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    server.ask(
        "PUT",
        "/v1/endpoints/silent",
        &json!({ "url": url }).to_string(),
    );
    let message = json!({ "endpoint": "silent", "event": "a", "payload": 1 }).to_string();
    server.ask("POST", "/v1/messages", &message);
    let connection = silent.accept().unwrap();
    kill(server.pid(), Signal::SIGTERM).unwrap();
    until("the API is closed", || {
        std::net::TcpStream::connect(&server.address)
            .is_err()
            .then_some(())
    });
    assert_eq!(
        server.stop(Signal::SIGINT),
        Some(130),
        "it does not wait any longer"
    );
    drop(connection);
}

#[test]
fn attempts_cut_off_by_the_shutdown_timeout_are_reported() {
    let folder = folder();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start_with(
        folder.path(),
        &[&INSIDE[..], &["--shutdown-timeout", "100ms"]].concat(),
    );
    let url = format!("http://{}/", silent.local_addr().unwrap());
    server.ask(
        "PUT",
        "/v1/endpoints/silent",
        &json!({ "url": url }).to_string(),
    );
    let message = json!({ "endpoint": "silent", "event": "a", "payload": 1 }).to_string();
    server.ask("POST", "/v1/messages", &message);
    let connection = silent.accept().unwrap();
    assert_eq!(server.stop(Signal::SIGTERM), Some(1));
    drop(connection);
}

#[test]
fn server_files_are_private_and_the_api_requires_a_token() {
    let folder = folder();
    let server = Server::start(folder.path());
    for name in [
        "relent-deliver.db",
        "relent-deliver.token",
        "relent-deliver.key",
    ] {
        let mode = fs::metadata(folder.path().join(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    // Without the operator's permission no internal address is called.
    let token = server.token.clone();
    drop(server);
    let server = Server::start_with(folder.path(), &[]);
    assert_eq!(server.token, token, "the same after a restart");
    for url in [
        "http://127.0.0.1:9/",
        "https://127.0.0.1:9999/",
        "https://10.1.2.3/",
    ] {
        let (status, problem) =
            server.ask("PUT", "/v1/endpoints/x", &json!({ "url": url }).to_string());
        assert_eq!(status, 422, "{url}: {problem}");
    }
    for (args, says) in [
        (&["--listen", "0.0.0.0:0"][..], "--token-file"),
        (&["--listen", "localhost"], "--listen"),
        (&["--store", "mysql:x"], "sqlite:"),
        (
            &["--store", "sqlite:/no/such/folder/x.db"],
            "/no/such/folder",
        ),
        (&["--token-file", "/dev/null"], "a token is 16 to 1024"),
        (&["--key-file", "/dev/null"], "base64"),
        (
            &["--token-file", "/no/such/folder/token"],
            "--token-file /no/such/folder/token: is missing, and cannot be created in the folder /no/such/folder: ",
        ),
        (
            &["--key-file", "/no/such/folder/key"],
            "cannot be created in the folder /no/such/folder: ",
        ),
        (
            &["--store", "postgres://relent@127.0.0.1:9/outbox"],
            "database outbox at 127.0.0.1:9: ",
        ),
        (&["--allow-network", "10"], "10.0.0.0/24"),
    ] {
        let ran = deliver(folder.path(), &[&["serve"], args].concat(), b"");
        assert!(ran.status == 2 || ran.status == 1, "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(says), "{args:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains(".tmp"), "{}", ran.stderr);
    }
    let taken = deliver(folder.path(), &["serve", "--listen", &server.address], b"");
    assert_eq!(taken.status, 1);
    assert!(taken.stderr.contains("another port"), "{}", taken.stderr);
}

#[test]
fn an_unusable_listen_address_is_reported_with_its_option() {
    let folder = folder();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let port = format!("port {} is in use", address.port());
    let address = address.to_string();
    let worker = ["worker", "--nats", "nats://127.0.0.1:9", "--metrics"];
    for (args, option, says) in [
        (
            &["serve", "--listen", &address][..],
            "--listen",
            port.as_str(),
        ),
        (&[&worker[..], &[&address]].concat(), "--metrics", &port),
        (
            &[
                "serve",
                "--listen",
                "192.0.2.1:8480",
                "--token-file",
                "token",
            ],
            "--listen",
            "does not have the address 192.0.2.1",
        ),
    ] {
        let ran = deliver(folder.path(), args, b"");
        assert_eq!(ran.status, 1, "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(says), "{args:?}: {}", ran.stderr);
        let advice = format!("by {option}");
        assert!(ran.stderr.contains(&advice), "{args:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains("os error"), "{}", ran.stderr);
    }
}

#[test]
fn an_unusable_database_is_reported_with_file_and_cause() {
    let folder = folder();
    let path = folder.path();
    fs::create_dir(path.join("folder.db")).unwrap();
    fs::write(path.join("text.db"), "no database\n".repeat(1000)).unwrap();
    let locked = rusqlite::Connection::open(path.join("locked.db")).unwrap();
    locked.execute_batch("BEGIN EXCLUSIVE").unwrap();
    for (file, says) in [
        ("folder.db", "directory"),
        ("text.db", "is not an SQLite database"),
        ("locked.db", "is locked by another process"),
    ] {
        let store = format!("sqlite:{file}");
        let args = ["serve", "--listen", "127.0.0.1:0", "--store", &store];
        let ran = deliver(path, &args, b"");
        assert_eq!(ran.status, 1, "{file}: {ran:?}");
        for part in [format!("--store {store}: "), says.to_owned()] {
            assert!(ran.stderr.contains(&part), "{file}: {}", ran.stderr);
        }
    }
}

/// A port without a listener.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn a_client_waits_for_a_server_that_starts_later() {
    let folder = folder();
    let address = format!("127.0.0.1:{}", free_port());
    let url = format!("http://{address}");
    let add = [
        "deliver",
        "endpoints",
        "add",
        "shop",
        "https://shop.example/",
    ];
    let client = relent(&add)
        .env("RELENT_DELIVER_SERVER", &url)
        .current_dir(folder.path())
        .spawn();
    let mut client = client.unwrap();
    // By now the client has found no server and no token. No event marks that, so the test waits.
    std::thread::sleep(std::time::Duration::from_millis(1300));
    assert_eq!(client.try_wait().unwrap(), None, "it waits");
    let server = Server::start_with(folder.path(), &["--listen", &address]);
    let ran = finish(client);
    ok(&ran);
    let notice = format!("waiting for {url} to be ready, up to 10s (--wait-for-server)");
    assert_eq!(ran.stderr.matches(&notice).count(), 1, "{}", ran.stderr);
    assert_eq!(server.ask("GET", "/v1/endpoints/shop", "").0, 200);
}

#[test]
fn a_client_waits_at_most_wait_for_server_and_reports_the_error() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("relent-deliver.token"), "relent_0123456789abcdef").unwrap();
    let closed = format!("http://{}", unused_address());
    let ask = |server: &str, wait: &str| {
        let args = ["list", "--server", server, "--wait-for-server", wait];
        let ran = deliver(path, &args, b"");
        assert_eq!(ran.status, 1, "{ran:?}");
        ran.stderr
    };
    let waited = ask(&closed, "1500ms");
    assert_eq!(waited.matches("waiting for ").count(), 1, "{waited}");
    let refused = format!("{closed} does not respond: Connection refused (127.0.0.1:");
    for said in [&waited, &ask(&closed, "0s"), &ask(&closed, "100ms")] {
        assert!(said.contains(&refused), "{said}");
    }
    assert!(!ask(&closed, "100ms").contains("waiting"));
    // All requests of a command together wait no longer than one.
    let args = [
        "resend",
        "a",
        "b",
        "c",
        "--server",
        &closed,
        "--wait-for-server",
        "1500ms",
    ];
    let begun = std::time::Instant::now();
    let ran = deliver(path, &args, b"");
    assert_eq!(
        ran.stderr.matches(" does not respond: ").count(),
        3,
        "{ran:?}"
    );
    assert!(begun.elapsed() < 3 * std::time::Duration::from_millis(1500));
    // The client does not wait for an error that does not go away.
    let unknown = ask("http://no-such-host.invalid:8480", "1h");
    assert!(unknown.contains("name"), "{unknown}");
    assert!(!unknown.contains("refused"), "{unknown}");
    assert!(!unknown.contains("waiting"), "{unknown}");
}

/// As a reverse proxy responds while the server starts.
#[test]
fn a_client_retries_after_a_503() {
    let folder = folder();
    fs::write(
        folder.path().join("relent-deliver.token"),
        "relent_0123456789abcdef",
    )
    .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answering = std::thread::spawn(move || {
        for (status, body) in [(503, ""), (503, "{}"), (200, "{\"messages\":[]}")] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 4096];
            let _ = std::io::Read::read(&mut stream, &mut head).unwrap();
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
            )
            .unwrap();
        }
    });
    let ran = deliver(folder.path(), &["list", "--json", "--server", &url], b"");
    assert_eq!(ok(&ran), "[]");
    answering.join().unwrap();
}

#[test]
fn deliver_commands_report_usage_and_server_errors() {
    let folder = folder();
    let server = Server::start(folder.path());
    for (args, status, says) in [
        (&["list", "--state", "lost"][..], 2, "possible values"),
        (&["list", "--since", "yesterday"], 2, "2h for two hours ago"),
        (&["list", "--token-file", "none"], 2, "relent deliver serve"),
        (
            &["list", "--server", "localhost"],
            2,
            "http://127.0.0.1:8480",
        ),
        (
            &[
                "list",
                "--server",
                "http://127.0.0.1:9",
                "--wait-for-server",
                "0s",
            ],
            1,
            "does not respond",
        ),
        (&["list", "--no"], 2, "see `relent deliver list --help`"),
        (
            &["endpoints", "list", "--no"],
            2,
            "see `relent deliver endpoints list --help`",
        ),
        (&["show", "msg_no"], 1, "`relent deliver list` lists those"),
        (&["show", "a/b"], 1, "there is no message"),
        (&["resend", "msg_no"], 1, "there is no message"),
        (
            &["replay", "--state", "pending"],
            2,
            "[possible values: dead, delivered, cancelled]",
        ),
        (
            &["endpoints", "enable", "no"],
            1,
            "`relent deliver endpoints list` lists those",
        ),
        (
            &["endpoints", "add", "..", "https://shop.example/"],
            2,
            "cannot be part of a URL",
        ),
        (
            &[
                "endpoints",
                "add",
                "x",
                "https://shop.example/",
                "--secret",
                SECRET,
            ],
            2,
            "can be seen by others",
        ),
        (
            &[
                "endpoints",
                "add",
                "x",
                "https://shop.example/",
                "--secret",
                "none",
            ],
            2,
            "cannot be read",
        ),
        (
            &[
                "endpoints",
                "add",
                "x",
                "https://shop.example/",
                "--policy",
                "none",
            ],
            2,
            "relent policy list",
        ),
        (
            &["endpoints", "add", "x", "https://192.168.0.1/"],
            1,
            "private",
        ),
        (
            &["send", "--endpoint", "no", "--event", "e", "-d", "{}"],
            1,
            "register it first",
        ),
        (&["send", "--endpoint", "no", "-d", "{}"], 2, "--event"),
        (&["send", "-d", "{}"], 2, "<URL>"),
        (
            &["send", "http://127.0.0.1:9/", "-d", "{}"],
            2,
            "by --allow-http",
        ),
        (
            &["send", "https://127.0.0.1:9999/", "-d", "{}"],
            2,
            "the loopback",
        ),
        (
            &["send", "https://shop.example/", "-d", "@none"],
            2,
            "cannot be read",
        ),
    ] {
        let ran = server.deliver(folder.path(), args);
        assert_eq!(ran.status, status, "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(says), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{args:?}");
        assert!(!ran.stderr.contains(SECRET), "{}", ran.stderr);
    }
    fs::write(folder.path().join("bad.key"), "no key").unwrap();
    let add = ["endpoints", "add", "x", "https://shop.example/"];
    for (args, status, says) in [
        (
            &["list", "--limit", "0"][..],
            2,
            "a whole number from 1 to 4294967295",
        ),
        (&["list", "--limit", "-1"], 2, "a whole number from 1"),
        (&["list", "--since", "-5m"], 2, "2h for two hours ago"),
        (&["show", ""], 2, "cannot be part of a URL"),
        (&["resend", ".."], 2, "cannot be part of a URL"),
        (
            &["list", "--server", "http://"],
            2,
            "use a URL such as http://127.0.0.1:8480",
        ),
        (
            &["list", "--server", "http://127.0.0.1:1/?x"],
            2,
            "use a URL such as http://127.0.0.1:8480",
        ),
        (
            &[&add[..], &["--concurrency", "0"]].concat(),
            2,
            "a whole number from 1",
        ),
        (
            &[&add[..], &["--policy", "wechat-pya"]].concat(),
            2,
            "did you mean `wechat-pay`?",
        ),
        (
            &[&add[..], &["--secret", "bad.key"]].concat(),
            1,
            "relent: --secret: ",
        ),
        (
            &["endpoints", "add", "x", "shop.example"],
            1,
            "relent: URL: not a URL: it has no scheme",
        ),
        (
            &["send", "--endpoint", "no", "--event", "e", "-d", "{}"],
            1,
            "by `relent deliver endpoints add`",
        ),
        (&["send", "shop.example", "-d", "{}"], 2, "it has no scheme"),
        (
            &["send", "http://shop.example/", "-d", "{}"],
            2,
            "it is allowed by --allow-http",
        ),
        (
            &["send", "https://10.0.0.1/", "-d", "{}"],
            2,
            "allow its network by --allow-network CIDR",
        ),
        (
            &["serve", "--listen", "localhost:8480"],
            2,
            "such as 127.0.0.1:8480",
        ),
        (&["serve", "--lease", "0s"], 2, "use 1s or more"),
        (&["serve", "--store-ca", "ca.pem"], 2, "is for PostgreSQL"),
        (
            &["worker", "--concurrency", "0"],
            2,
            "a whole number from 1",
        ),
    ] {
        let ran = server.deliver(folder.path(), args);
        assert_eq!(ran.status, status, "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(says), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    for args in [
        &["list", "--endpoint", "sohp", "--json"][..],
        &["dead-letters", "--endpoint", "sohp"],
        &["replay", "--endpoint", "sohp"],
        &["send-now", "--endpoint", "sohp"],
    ] {
        let ran = server.deliver(folder.path(), args);
        assert_eq!(ran.status, 0, "{args:?}: {ran:?}");
        let says = "no such message of an endpoint \"sohp\"";
        assert!(ran.stderr.contains(says), "{args:?}: {}", ran.stderr);
    }
    let tls = format!("https://{}", server.address);
    let ran = server.deliver(folder.path(), &["list", "--server", &tls]);
    assert!(ran.stderr.contains("use http://"), "{}", ran.stderr);
    fs::write(folder.path().join("other.token"), "relent_not_the_token\n").unwrap();
    let ran = server.deliver(folder.path(), &["list", "--token-file", "other.token"]);
    assert_eq!(ran.status, 1);
    assert!(
        ran.stderr.contains("token of this server"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_refused_endpoint_url_names_the_serve_option_that_allows_it() {
    let folder = folder();
    let server = Server::start_with(folder.path(), &[]);
    for (url, says) in [
        (
            "http://shop.example/",
            "`relent deliver serve --allow-http`",
        ),
        (
            "https://10.0.0.1/",
            "`relent deliver serve --allow-network CIDR`",
        ),
    ] {
        let ran = server.deliver(folder.path(), &["endpoints", "add", "shop", url]);
        assert_eq!(ran.status, 1, "{ran:?}");
        assert!(ran.stderr.contains(says), "{}", ran.stderr);
    }
}

/// A failure would make a script send it again, under another identifier.
#[test]
fn an_acknowledged_message_is_a_success_even_if_its_identifier_cannot_be_printed() {
    let receiver = Receiver::start();
    let url = receiver.url("/ok");
    let send = [&["deliver", "send", &url, "-d", "x"][..], &INSIDE].concat();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let sent = finish(relent(&send).stdout(full).spawn().unwrap());
    assert_eq!((sent.status, receiver.seen().len()), (0, 1), "{sent:?}");
    assert!(sent.stderr.contains("cannot write"), "{sent:?}");
}

/// A failure would make a script replay all messages once more.
#[test]
fn a_replay_is_a_success_even_if_its_count_cannot_be_printed() {
    let folder = folder();
    let server = Server::start_with(folder.path(), &[]);
    succeeds_unprinted(
        folder.path(),
        &server,
        &["replay", "--state", "delivered", "--json"],
    );
}

/// The first attempt may have sent messages again, although the later ones were refused.
#[test]
fn a_replay_whose_server_ends_is_told_how_to_continue() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("relent-deliver.token"), "relent_0123456789abcdef").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let ends = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        drop(listener);
        let _ = socket.read(&mut [0; 1024]);
    });
    let args = [
        "replay",
        "--state",
        "delivered",
        "--server",
        &server,
        "--wait-for-server",
        "1s",
    ];
    let ran = deliver(path, &args, b"");
    ends.join().unwrap();
    assert_eq!(ran.status, 1, "{ran:?}");
    for says in ["Connection refused", "; continue the replay with --until "] {
        assert!(ran.stderr.contains(says), "{ran:?}");
    }
}

/// Runs a command whose output cannot be written, and which is a success nevertheless.
fn succeeds_unprinted(folder: &Path, server: &Server, args: &[&str]) {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let child = relent(&[&["deliver"], args].concat())
        .env(
            "RELENT_DELIVER_SERVER",
            format!("http://{}", server.address),
        )
        .current_dir(folder)
        .stdout(full)
        .spawn();
    let ran = finish(child.unwrap());
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.stderr.contains("cannot write"), "{ran:?}");
}

/// A failure would make a script publish the event under another identifier.
#[test]
fn a_published_event_is_a_success_even_if_its_messages_cannot_be_printed() {
    let folder = folder();
    let server = Server::start_with(folder.path(), &[]);
    let add = [
        "endpoints",
        "add",
        "shop",
        "https://shop.example/",
        "--topic=*",
    ];
    ok(&server.deliver(folder.path(), &add));
    let publish = ["publish", "order.paid", "--event=e", "-d=x"];
    succeeds_unprinted(folder.path(), &server, &publish);
}

/// As with `--token-file <(command)`; the command sends several requests.
#[test]
fn a_token_can_come_from_a_pipe() {
    let folder = folder();
    let server = Server::start_with(folder.path(), &[]);
    let token = fs::read(folder.path().join("relent-deliver.token")).unwrap();
    let add = ["endpoints", "add", "shop", "https://shop.example/"];
    let server = format!("--server=http://{}", server.address);
    let args = [&add[..], &["--token-file=/dev/stdin", &server]].concat();
    let added = deliver(folder.path(), &args, &token);
    assert_eq!(added.status, 0, "{added:?}");
}

#[test]
fn a_signal_ends_send_while_it_reads_a_named_pipe() {
    let folder = folder();
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let url = ["https://shop.example/"];
    let endpoint = ["--endpoint=shop", "--event=e"];
    for (to, option) in [
        (&url[..], "--policy"),
        (&url, "--secret"),
        (&url, "--ca-file"),
        (&endpoint, "--token-file"),
    ] {
        let send = ["deliver", "send", "-d=x", option, pipe.to_str().unwrap()];
        let mut child = relent(&[&send[..], to].concat()).spawn().unwrap();
        let mut writing = File::options();
        writing.write(true).custom_flags(nix::libc::O_NONBLOCK);
        let writer = until("relent reads it", || writing.open(&pipe).ok());
        kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
        let ended = until("it ends", || child.try_wait().unwrap());
        let by_signal = ended.signal() == Some(Signal::SIGINT as i32);
        assert!(by_signal || ended.code() == Some(130), "{option}: {ended}");
        drop(writer);
    }
}

#[test]
fn a_signal_ends_send_while_it_reads_standard_input() {
    let send = ["deliver", "send", "https://shop.example/", "-d", "@-"];
    let mut child = relent(&send).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // More than a pipe holds: it is written when relent reads.
    stdin.write_all(&[b'x'; 100_000]).unwrap();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let ended = until("it ends", || child.try_wait().unwrap());
    assert_eq!(ended.signal(), Some(Signal::SIGINT as i32));
}

/// Without a server, the attempts and policies are the same.
#[test]
fn a_message_is_sent_directly_to_a_url() {
    let (folder, receiver) = (folder(), Receiver::start());
    let folder = folder.path();
    fs::write(folder.join("shop.key"), format!("{SECRET}\n")).unwrap();
    fs::write(
        folder.join("twice.toml"),
        "backoff = \"none\"\nmax_retries = 1\nretry_on = [\"5xx\"]\n",
    )
    .unwrap();
    let inside = ["--allow-network", "127.0.0.0/8", "--allow-http"];
    let send = |path: &str, args: &[&str], input: &str| {
        let url = receiver.url(path);
        deliver(
            folder,
            &[&["send", &url][..], &inside, args].concat(),
            input.as_bytes(),
        )
    };
    let sent = send("/ok", &["-d", "@-", "--secret", "shop.key"], "{\"a\":1}\n");
    let id = ok(&sent).to_owned();
    assert!(
        sent.stderr.contains("attempt 1") && sent.stderr.contains("acknowledged"),
        "{}",
        sent.stderr
    );
    let seen = receiver.seen().remove(0);
    assert_eq!(
        (seen.body.as_str(), seen.header("webhook-id")),
        ("{\"a\":1}\n", Some(id.as_str()))
    );

    let failed = send(
        "/bad",
        &["-d", "x", "--policy", "twice.toml", "--id", "msg_1"],
        "",
    );
    assert_eq!((failed.status, failed.stdout.as_str()), (1, ""));
    for part in ["attempt 1", "status 500", "msg_1 is not acknowledged"] {
        assert!(failed.stderr.contains(part), "{part} in {}", failed.stderr);
    }
    assert!(!failed.stderr.contains('\u{1b}'));
    assert_eq!(receiver.seen().len(), 3);
    let gone = send("/gone", &["-d", "x"], "");
    assert_eq!(gone.status, 1);
    assert_eq!(receiver.seen().len(), 4, "410 ends it");
    let whole = send(
        "/ok",
        &[
            "-d",
            "x",
            "--policy",
            "twice.toml",
            "--acknowledgement",
            "body-success",
        ],
        "",
    );
    assert_eq!(
        whole.status, 1,
        "200 alone is no acknowledgement: {whole:?}"
    );

    // Ctrl-C ends the delay before the next attempt.
    let url = receiver.url("/bad");
    let child = relent(
        &[
            &["deliver", "send", &url, "-d", "x", "--policy", "alipay"][..],
            &inside,
        ]
        .concat(),
    )
    .spawn()
    .unwrap();
    let before = receiver.seen().len();
    until("an attempt was made", || {
        (receiver.seen().len() > before).then_some(())
    });
    kill(
        nix::unistd::Pid::from_raw(child.id() as i32),
        Signal::SIGINT,
    )
    .unwrap();
    assert_eq!(finish(child).status, 130);
}

#[test]
fn verify_accepts_a_valid_signature_and_explains_an_invalid_one() {
    let (folder, receiver) = (folder(), Receiver::start());
    let folder = folder.path();
    fs::write(folder.join("shop.key"), format!("{SECRET}\n")).unwrap();
    fs::write(
        folder.join("other.key"),
        "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n",
    )
    .unwrap();
    let url = receiver.url("/ok");
    let inside = [
        "--allow-network",
        "127.0.0.0/8",
        "--allow-http",
        "--secret",
        "shop.key",
    ];
    let body = "{\"order\": 17}";
    ok(&deliver(
        folder,
        &[&["send", &url, "-d", body][..], &inside].concat(),
        b"",
    ));
    let Request { head, .. } = receiver.seen().remove(0);
    fs::write(folder.join("headers"), &head).unwrap();
    let verify =
        |args: &[&str], body: &str| deliver(folder, &[&["verify"], args].concat(), body.as_bytes());
    let with = |key| ["--secret", key, "--header-file", "headers"];
    let good = verify(&with("shop.key"), body);
    assert!(ok(&good).starts_with("msg_"), "{good:?}");
    ok(&verify(
        &[
            "--secret",
            "other.key",
            "--secret",
            "shop.key",
            "--header-file",
            "headers",
        ],
        body,
    ));
    let flags: Vec<String> = head
        .lines()
        .filter(|line| line.starts_with("webhook-"))
        .flat_map(|line| ["-H".to_owned(), line.to_owned()])
        .collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    ok(&verify(
        &[&["--secret", "shop.key"], &flags[..]].concat(),
        body,
    ));
    for (args, body, status, says) in [
        (&with("other.key")[..], body, 1, "no signature matches"),
        (
            &with("shop.key"),
            "{\"order\": 17}\n",
            1,
            "without the white space at its end",
        ),
        (
            &with("shop.key"),
            "{\"order\":18}",
            1,
            "no signature matches",
        ),
        (&["--secret", "shop.key"], body, 1, "webhook-id is missing"),
        (
            &[&with("shop.key")[..], &["--at", "2020-01-01T00:00:00Z"]].concat(),
            body,
            1,
            "ahead of the clock",
        ),
        (
            &[&with("shop.key")[..], &["-H", "webhook-id: other"]].concat(),
            body,
            1,
            "malformed or there twice",
        ),
        (&["--header-file", "headers"], body, 2, "--secret"),
        (&["--secret", "headers"], body, 2, "--secret headers"),
        (&["--secret", "env:RELENT_NO_SUCH"], body, 2, "not set"),
        (
            &["--secret", "shop.key", "-H", "nonsense"],
            body,
            2,
            "a colon",
        ),
    ] {
        let ran = verify(args, body);
        assert_eq!(ran.status, status, "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(says), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "");
    }
}

/// Runs the commands of a page in one shell, on free ports, because the default ones may be in use.
fn pasted(blocks: &str) -> Ran {
    let (own, receiver) = (free_port().to_string(), free_port().to_string());
    let script = format!("set -euo pipefail\ntrap 'kill $(jobs -p)' EXIT\n{blocks}")
        .replace("deliver serve", "deliver serve --listen 127.0.0.1:8480")
        .replace("8480", &own)
        .replace("3000", &receiver);
    let folder = folder();
    let bin = Path::new(support::RELENT).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let child = std::process::Command::new("bash")
        .args(["-c", &script])
        .current_dir(folder.path())
        .env("PATH", path)
        .env("RELENT_DELIVER_SERVER", format!("http://127.0.0.1:{own}"))
        .env_remove("RELENT_DELIVER_TOKEN_FILE")
        .env_remove("RELENT_OUTBOX_KEY")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let ran = finish(child);
    assert_eq!(ran.status, 0, "{ran:?}");
    ran
}

fn page(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(name)).unwrap()
}

/// Runs every marked command of docs/deliver.md in one shell, and compares the results with the page.
#[test]
fn the_commands_of_the_documentation_work() {
    let page = page("docs/deliver.md");
    let blocks: Vec<&str> = page
        .split("<!-- tested: ")
        .skip(1)
        .map(|rest| {
            let (_, rest) = rest.split_once("```sh\n").unwrap();
            rest.split_once("```").unwrap().0
        })
        .collect();
    assert_eq!(blocks.len(), 4);
    let ran = pasted(&blocks.concat());
    for part in [
        "b'{\"order\":17}'",
        "delivered",
        "\"duplicate\":false",
        "\"disabled\":0",
    ] {
        assert!(ran.stdout.contains(part), "{part} in {ran:?}");
    }
}

#[test]
fn the_readme_commands_work_when_pasted() {
    let readme = page("README.md");
    let mut blocks = readme.split("```sh\n").skip(1);
    let block = blocks.find(|block| block.starts_with("relent deliver serve"));
    let ran = pasted(block.unwrap().split_once("```").unwrap().0);
    let listed = ran.stdout.lines().last().unwrap();
    assert!(ran.stdout.contains("order-17-paid"), "{ran:?}");
    assert!(!listed.is_empty());
}
