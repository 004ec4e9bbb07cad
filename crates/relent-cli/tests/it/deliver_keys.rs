//! Tests of `relent deliver`: keys, warnings, delays, private CAs, and untrusted texts.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::deliver_support::{INSIDE, Receiver, Server, Setup, until};
use crate::support::{Ran, finish, relent};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const KEY: &str = "relent-deliver.key";

fn serve(folder: &Path, args: &[&str]) -> Ran {
    let args = [&["deliver", "serve", "--listen", "127.0.0.1:0"], args].concat();
    finish(relent(&args).current_dir(folder).spawn().unwrap())
}

fn enqueue(server: &Server, endpoint: &str, event: &str) -> String {
    server.send(&json!({ "endpoint": endpoint, "event": event, "payload": 1 }))
}

#[test]
fn a_server_does_not_start_with_the_wrong_encryption_key() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start());
    let folder = folder.path();
    let file = folder.join(KEY);
    let server = Server::start(folder);
    let first = fs::read_to_string(&file).unwrap();
    assert_eq!(server.stop(Signal::SIGTERM), Some(0));
    // Nothing is encrypted yet: a lost key is created again.
    fs::remove_file(&file).unwrap();
    let server = Server::start(folder);
    let key = fs::read_to_string(&file).unwrap();
    assert_ne!(first, key);
    let spec = json!({ "url": receiver.url("/later"), "secrets": [SECRET] });
    server.register("shop", &spec);
    let id = enqueue(&server, "shop", "e");
    until("an attempt was made", || {
        (!receiver.seen().is_empty()).then_some(())
    });
    assert_eq!(server.stop(Signal::SIGTERM), Some(0));

    fs::remove_file(&file).unwrap();
    let refused = serve(folder, &INSIDE);
    assert_eq!(refused.status, 2, "{refused:?}");
    for part in [
        "--key-file relent-deliver.key: is missing",
        "\"shop\"",
        "copy",
        "--replace-key",
    ] {
        assert!(
            refused.stderr.contains(part),
            "{part} in {}",
            refused.stderr
        );
    }
    assert!(!file.exists(), "no other key is made");
    fs::write(&file, &first).unwrap();
    let refused = serve(folder, &INSIDE);
    assert_eq!(refused.status, 2, "{refused:?}");
    for part in [
        "--key-file relent-deliver.key: it does not decrypt",
        "\"shop\"",
        "copy",
    ] {
        assert!(
            refused.stderr.contains(part),
            "{part} in {}",
            refused.stderr
        );
    }
    let args = ["deliver", "serve", "--listen", "127.0.0.1:0"];
    let refused = relent(&args)
        .current_dir(folder)
        .env("RELENT_OUTBOX_KEY", first.trim())
        .spawn();
    let refused = finish(refused.unwrap());
    assert_eq!(refused.status, 2);
    assert!(
        refused
            .stderr
            .contains("RELENT_OUTBOX_KEY: it does not decrypt"),
        "{}",
        refused.stderr
    );

    // With the key restored, the message is delivered, signed.
    fs::write(&file, &key).unwrap();
    receiver.answer(200);
    let server = Server::start(folder);
    server.message_is(&id, "delivered");
    let last = receiver.seen().pop().unwrap();
    assert!(last.header("webhook-signature").is_some());
}

#[test]
fn replace_key_holds_messages_until_signing_keys_are_registered_again() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start());
    let folder = folder.path();
    let server = Server::start(folder);
    let spec = json!({ "url": receiver.url("/ok"), "secrets": [SECRET] });
    server.register("shop", &spec);
    assert_eq!(server.stop(Signal::SIGTERM), Some(0));
    fs::remove_file(folder.join(KEY)).unwrap();
    let args = [&INSIDE[..], &["--lease", "2s", "--replace-key"]].concat();
    let server = Server::start_with(folder, &args);
    let id = enqueue(&server, "shop", "e");
    let held = until("it is held", || {
        let (_, shop) = server.ask("GET", "/v1/endpoints/shop", "");
        (shop["held"]["hold_reason"] == "local-fault").then_some(shop)
    });
    assert!(
        held["held"]["error"]
            .as_str()
            .unwrap()
            .contains("register it again"),
        "{held}"
    );
    assert!(
        held["warnings"][0]
            .as_str()
            .unwrap()
            .starts_with("secrets: "),
        "{held}"
    );
    assert_eq!(held["last_error"], "");
    let (_, shown) = server.ask("GET", &format!("/v1/messages/{id}"), "");
    assert_eq!(
        (&shown["message"]["attempts"], &shown["attempts"]),
        (&json!(0), &json!([]))
    );
    until("it is said", || {
        let said = server.said();
        (said.contains("messages are held by a local fault") && said.contains("signing-key"))
            .then_some(())
    });
    let (_, _, metrics) = server.raw(
        "GET",
        "/metrics",
        &format!("authorization: Bearer {}\r\n", server.token),
        "",
    );
    assert!(
        metrics.contains("relent_outbox_local_faults_total{fault=\"signing-key\"}"),
        "{metrics}"
    );
    let listed = server.deliver(folder, &["endpoints", "list"]);
    assert!(
        listed
            .stdout
            .contains("local-fault: the signing key was encrypted"),
        "{listed:?}"
    );
    assert!(receiver.seen().is_empty());
    server.register("shop", &spec);
    server.message_is(&id, "delivered");
    assert_eq!(receiver.seen().len(), 1);
    assert_eq!(server.stop(Signal::SIGTERM), Some(0));
    Server::start(folder);
}

#[test]
fn an_unset_key_variable_holds_messages_until_a_start_with_it() {
    let at = Setup::start();
    let (server, receiver, folder) = (&at.server, &at.receiver, at.folder());
    let added = server.deliver(
        folder,
        &[
            "endpoints",
            "add",
            "shop",
            &receiver.url("/ok"),
            "--secret",
            "env:RELENT_NO_SUCH",
        ],
    );
    assert_eq!(added.status, 0, "{added:?}");
    assert!(
        added
            .stderr
            .contains("warning: secrets: the signing key env:RELENT_NO_SUCH is not set"),
        "{added:?}"
    );
    let id = enqueue(server, "shop", "e");
    until("it is held", || {
        let (_, shop) = server.ask("GET", "/v1/endpoints/shop", "");
        let error = shop["held"]["error"].as_str()?.to_owned();
        error.contains("RELENT_NO_SUCH").then_some(())
    });
    let (_, shown) = server.ask("GET", &format!("/v1/messages/{id}"), "");
    assert_eq!(shown["message"]["attempts"], 0);
    assert!(receiver.seen().is_empty());
}

#[test]
fn removing_the_last_signing_key_requires_allow_unsigned() {
    let at = Setup::start();
    let (server, receiver, folder) = (&at.server, &at.receiver, at.folder());
    let spec = json!({ "url": receiver.url("/ok"), "secrets": ["env:NEW", "env:OLD"] });
    server.register("shop", &spec);
    let run = |args: &[&str]| {
        server.deliver(
            folder,
            &[&["endpoints", "remove-key", "shop"], args].concat(),
        )
    };
    let keys = || server.ask("GET", "/v1/endpoints/shop", "").1["endpoint"]["secrets"].clone();
    let removed = run(&["2"]);
    assert_eq!(removed.status, 0, "{removed:?}");
    assert!(
        removed.stderr.contains("signing keys left: 1"),
        "{removed:?}"
    );
    assert_eq!(keys(), json!(["env:NEW"]));
    let refused = run(&["2"]);
    assert_eq!(refused.status, 1);
    assert!(
        refused.stderr.contains("it has no signing key 2"),
        "{refused:?}"
    );
    let refused = run(&["1"]);
    assert_eq!(refused.status, 1);
    assert!(
        refused.stderr.contains("by --allow-unsigned"),
        "{refused:?}"
    );
    // An empty list needs permission, too.
    let none = json!({ "url": receiver.url("/ok"), "secrets": [] }).to_string();
    let (status, problem) = server.ask("PUT", "/v1/endpoints/shop", &none);
    assert_eq!(status, 422, "{problem}");
    assert_eq!(keys(), json!(["env:NEW"]));
    for wrong in ["0", "x", "96ad2cc"] {
        let refused = run(&[wrong]);
        assert_eq!(refused.status, 2, "{refused:?}");
        assert!(refused.stderr.contains("1 for the newest"), "{refused:?}");
    }
    assert_eq!(run(&["1", "--allow-unsigned"]).status, 0);
    assert_eq!(keys(), json!([]));
}

/// A proxy before this server that drops the response to the first request with this method.
fn dropping(server: &Server, method: &'static str) -> String {
    let to = server.address.clone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut has_dropped = false;
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut head = vec![0; 16 << 10];
            let read = client.read(&mut head).unwrap();
            let head = String::from_utf8_lossy(&head[..read]).into_owned();
            let once = head.replacen("\r\n", "\r\nconnection: close\r\n", 1);
            let mut server = TcpStream::connect(&to).unwrap();
            server.write_all(once.as_bytes()).unwrap();
            let mut answer = Vec::new();
            server.read_to_end(&mut answer).unwrap();
            if head.starts_with(method) && !std::mem::replace(&mut has_dropped, true) {
                continue;
            }
            client.write_all(&answer).unwrap();
        }
    });
    format!("http://{address}")
}

#[test]
fn a_removal_whose_response_is_lost_can_be_repeated_and_removes_one_key() {
    let at = Setup::start();
    let names = ["a.key", "b.key"];
    let mut fingerprints = Vec::new();
    for name in names {
        let made = at.run(&["new-key", "--output", name]);
        let (_, fingerprint) = made.stderr.trim().rsplit_once(' ').unwrap();
        fingerprints.push(fingerprint.to_owned());
    }
    let url = at.receiver.url("/ok");
    let mut add = vec!["endpoints", "add", "shop", &url];
    for name in names {
        add.extend(["--secret", name]);
    }
    at.run(&add);
    let server = dropping(&at.server, "DELETE");
    let remove = |key: &str| {
        let args = ["deliver", "endpoints", "remove-key", "shop", key];
        let child = relent(&[&args[..], &["--server", &server]].concat())
            .current_dir(at.folder())
            .spawn();
        finish(child.unwrap())
    };
    let first = remove("2");
    if first.status != 0 {
        let again = format!("remove-key shop {}`", fingerprints[1]);
        assert!(first.stderr.contains(&again), "{first:?}");
    }
    let repeated = remove(&fingerprints[1]);
    assert!(
        repeated.stderr.contains("or has it no more"),
        "{repeated:?}"
    );
    let (_, shop) = at.server.ask("GET", "/v1/endpoints/shop", "");
    assert_eq!(shop["fingerprints"], json!([fingerprints[0]]));
}

#[test]
fn a_repeated_removal_of_one_of_three_signing_keys_removes_no_other() {
    let at = Setup::start();
    let url = at.receiver.url("/ok");
    let names = ["a.key", "b.key", "c.key"];
    let mut add = vec!["endpoints", "add", "shop", &url];
    for name in names {
        at.run(&["new-key", "--output", name]);
        add.extend(["--secret", name]);
    }
    at.run(&add);
    let keys = || at.server.ask("GET", "/v1/endpoints/shop", "").1["fingerprints"].clone();
    let before = keys();
    let second = before[1].as_str().unwrap();
    let remove = |key: &str| {
        let args = ["endpoints", "remove-key", "shop", key];
        at.server.deliver(at.folder(), &args)
    };
    let refused = remove("2");
    assert_eq!((refused.status, keys()), (1, before.clone()), "{refused:?}");
    let advice = format!("remove-key shop {second}`");
    assert!(refused.stderr.contains(&advice), "{refused:?}");
    for status in [0, 1] {
        let ran = remove(second);
        assert_eq!(ran.status, status, "{ran:?}");
        assert_eq!(keys(), json!([before[0], before[2]]));
    }
}

/// A form names the key by its number, which may belong to another key when the form is sent.
#[test]
fn a_form_removes_a_signing_key_unless_the_keys_have_changed() {
    let at = Setup::start();
    let server = &at.server;
    let spec = json!({ "url": at.receiver.url("/ok"), "secrets": ["env:NEW", "env:OLD"] });
    server.register("shop", &spec);
    let session = server.sign_in(&server.token);
    let path = "/endpoints/shop";
    let token = server.form_token(&session, path);
    let revision = || {
        let (_, page) = server.page(&session, path);
        let (_, revision) = page.split_once("name=\"revision\" value=\"").expect(&page);
        revision.split('"').next().unwrap().to_owned()
    };
    let keys = || server.ask("GET", "/v1/endpoints/shop", "").1["endpoint"]["secrets"].clone();
    let remove = |number: &str, revision: &str, more: &str| {
        let form = format!(
            "act=remove-key&tenant=&name=shop&number={number}&revision={revision}&form_token={token}{more}"
        );
        server.fill(&session, "/do", &form)
    };
    let first = revision();
    for (number, revision, status, says) in [
        ("3", &first[..], 422, "it has no signing key 3"),
        ("0", &first, 422, "nor its number"),
        ("2", "", 409, "was changed"),
    ] {
        let (got, said) = remove(number, revision, "");
        assert!(got == status && said.contains(says), "{got}: {said}");
    }
    let (status, to) = remove("2", &first, "");
    assert_eq!((status, &to[..]), (303, "/endpoints/shop?tenant="));
    assert_eq!(keys(), json!(["env:NEW"]));
    assert_eq!(remove("1", &first, "&unsigned=on").0, 409, "an old page");
    let (status, said) = remove("1", &revision(), "");
    assert!(status == 422 && said.contains("Tick the box"), "{said}");
    assert_eq!(keys(), json!(["env:NEW"]));
    assert_eq!(remove("1", &revision(), "&unsigned=on").0, 303);
    assert_eq!(keys(), json!([]));
    assert!(!server.page(&session, path).1.contains("remove-key"));
}

#[test]
fn registering_a_policy_that_ends_messages_early_returns_a_warning() {
    let at = Setup::start();
    let (server, receiver, folder) = (&at.server, &at.receiver, at.folder());
    let spec = json!({
        "url": receiver.url("/ok"),
        "policy": "retry_on = [\"5xx\"]\nbackoff.constant = { delay = \"1m\" }",
    });
    let registered = server.register("early", &spec);
    let warning = registered["warnings"][0].as_str().unwrap();
    assert!(
        warning.starts_with("policy: ") && warning.contains("300-409, 411-499"),
        "{warning}"
    );
    fs::write(folder.join("early.toml"), spec["policy"].as_str().unwrap()).unwrap();
    let add = |args: &[&str]| {
        let url = receiver.url("/ok");
        let added = server.deliver(
            folder,
            &[&["endpoints", "add", "shop", &url], args].concat(),
        );
        assert_eq!(added.status, 0, "{added:?}");
        added.stderr
    };
    let said = add(&["--policy", "early.toml"]);
    assert!(
        said.contains(
            "warning: policy: retry_on: a message becomes a dead letter after one response"
        ),
        "{said}"
    );
    fs::write(
        folder.join("own.toml"),
        "max_retries = 5\nbackoff.constant = { delay = \"1m\" }\n",
    )
    .unwrap();
    for quiet in [
        &["--policy", "own.toml"][..],
        &["--policy", "wechat-pay", "--acknowledgement", "no-body"],
    ] {
        assert!(!add(quiet).contains("warning"), "{quiet:?}");
    }
}

#[test]
fn a_message_with_a_delay_is_sent_after_it() {
    let at = Setup::start();
    let (server, receiver, folder) = (&at.server, &at.receiver, at.folder());
    server.register("shop", &json!({ "url": receiver.url("/ok") }));
    let send = |event: &str, delay: &str| {
        let args = [
            "send",
            "--endpoint",
            "shop",
            "--event",
            event,
            "-d",
            "1",
            "--send-after",
            delay,
        ];
        let sent = server.deliver(folder, &args);
        assert_eq!(sent.status, 0, "{sent:?}");
        sent.stdout.trim().to_owned()
    };
    let (late, soon) = (send("late", "1h"), send("soon", "0s"));
    server.message_is(&soon, "delivered");
    let (_, shown) = server.ask("GET", &format!("/v1/messages/{late}"), "");
    let message = &shown["message"];
    let waits = message["due_ms"].as_i64().unwrap() - message["created_ms"].as_i64().unwrap();
    assert_eq!((&message["state"], waits), (&json!("pending"), 3_600_000));
}

#[test]
fn deliver_escapes_bidirectional_control_characters() {
    let at = Setup::start();
    let (server, receiver, folder) = (&at.server, &at.receiver, at.folder());
    let name = "shop\u{202e}gpj";
    let path = "/v1/endpoints/shop%E2%80%AEgpj";
    let spec = json!({ "url": receiver.url("/ok") }).to_string();
    assert_eq!(server.ask("PUT", path, &spec).0, 201);
    let reason = json!({ "reason": "moves\u{2067} soon" }).to_string();
    assert_eq!(
        server.ask("POST", &format!("{path}/disable"), &reason).0,
        200
    );
    let listed = server.deliver(folder, &["endpoints", "list"]);
    for part in ["shop\\u{202e}gpj", "moves\\u{2067} soon"] {
        assert!(listed.stdout.contains(part), "{part} in {listed:?}");
    }
    let listed = server.deliver(folder, &["endpoints", "list", "--json"]);
    let endpoints: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(endpoints[0]["endpoint"]["name"], name);
    let session = server.sign_in(&server.token);
    let (_, page) = server.page(&session, "/");
    for part in ["shop\\u{202e}gpj", "moves\\u{2067} soon"] {
        assert!(page.contains(part), "{part} in {page}");
    }
    for shown in [listed.stdout.as_str(), &page] {
        assert!(!shown.contains(['\u{202e}', '\u{2067}']), "{shown}");
    }
    // Actions on the page apply to the endpoint of this name.
    let (_, page) = server.page(&session, "/endpoints/shop%E2%80%AEgpj");
    assert!(page.contains("value=\"shop\u{202e}gpj\""), "{page}");
}

/// A receiver with TLS that responds with 200, and the certificate of its CA in PEM.
fn with_tls() -> (u16, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(["localhost".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let private = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .unwrap();
    let config = Arc::new(config);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let config = Arc::clone(&config);
            thread::spawn(move || {
                use std::io::{Read, Write};
                let mut stream = rustls::StreamOwned::new(
                    rustls::ServerConnection::new(config).unwrap(),
                    stream,
                );
                let mut request = Vec::new();
                let mut bytes = [0; 1024];
                while !request.ends_with(b"\r\n\r\n1") {
                    match stream.read(&mut bytes) {
                        Ok(read @ 1..) => request.extend_from_slice(&bytes[..read]),
                        _ => return,
                    }
                }
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
                let _ = stream.flush();
            });
        }
    });
    (port, certificate.pem())
}

#[test]
fn a_receiver_with_a_private_ca_is_reached_with_ca_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (port, pem) = with_tls();
    fs::write(folder.join("ca.pem"), pem).unwrap();
    let url = format!("https://localhost:{port}/");
    let send = |args: &[&str]| {
        let args = [
            &[
                "deliver",
                "send",
                &url,
                "-d",
                "1",
                "--allow-network",
                "127.0.0.0/8",
                "--allow-network",
                "::1",
            ],
            args,
        ]
        .concat();
        finish(relent(&args).current_dir(folder).spawn().unwrap())
    };
    let sent = send(&["--ca-file", "ca.pem"]);
    assert_eq!(sent.status, 0, "{sent:?}");
    fs::write(
        folder.join("once.toml"),
        "backoff = \"none\"\nmax_retries = 0\n",
    )
    .unwrap();
    let refused = send(&["--policy", "once.toml"]);
    assert_eq!(refused.status, 1, "{refused:?}");
    let why = "the endpoint's certificate is not trusted: no authority that is trusted here has signed it";
    assert!(refused.stderr.contains(why), "{refused:?}");
    for (file, says) in [
        ("none.pem", "--ca-file none.pem: "),
        ("once.toml", "no certificate in PEM"),
    ] {
        let wrong = send(&["--ca-file", file]);
        assert_eq!(wrong.status, 2, "{wrong:?}");
        assert!(wrong.stderr.contains(says), "{wrong:?}");
        let wrong = serve(folder, &["--ca-file", file]);
        assert_eq!(wrong.status, 2, "{wrong:?}");
        assert!(wrong.stderr.contains(says), "{wrong:?}");
    }
    let server = Server::start_with(
        folder,
        &[
            &INSIDE[..],
            &["--allow-network", "::1", "--ca-file", "ca.pem"],
        ]
        .concat(),
    );
    server.register("shop", &json!({ "url": url }));
    let id = enqueue(&server, "shop", "e");
    server.message_is(&id, "delivered");
}

#[test]
fn help_docs_and_openapi_list_the_same_acknowledgements() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/deliver.md");
    let page = fs::read_to_string(page).unwrap();
    let help = finish(
        relent(&["deliver", "endpoints", "add", "--help"])
            .spawn()
            .unwrap(),
    );
    let description: Value = serde_json::from_str(relent_outbox::api::OPENAPI).unwrap();
    let described =
        &description["components"]["schemas"]["NewEndpoint"]["properties"]["acknowledgement"];
    let all = relent_outbox::endpoint::Acknowledgement::ALL;
    let names: Vec<_> = all.iter().map(|(_, name, _)| *name).collect();
    assert_eq!(
        described["enum"],
        json!(names),
        "relent-outbox/src/api/openapi.json has all names, in the order of `Acknowledgement::ALL`"
    );
    let help = help.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for (_, name, answer) in all {
        assert!(page.contains(&format!("| `{name}` | {answer} |")), "{name}");
        assert!(
            help.contains(&format!("- {name}: {answer}")),
            "{name} in {help}"
        );
    }
}
