//! Tests of the commands of `relent deliver` that register, change and show endpoints, and of their signing keys.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::deliver_support::{INSIDE, Server, Setup, until};
use crate::support::{Ran, finish, relent};

/// The registered settings of the endpoint.
fn settings(server: &Server, path: &str) -> Value {
    server.ask("GET", path, "").1["endpoint"].clone()
}

/// Runs `relent deliver new-key ARGS` in this folder.
fn new_key(at: &Setup, args: &[&str]) -> Ran {
    let child = relent(&[&["deliver", "new-key"], args].concat())
        .current_dir(at.folder())
        .spawn();
    finish(child.unwrap())
}

#[test]
fn adding_an_existing_endpoint_changes_only_the_given_settings() {
    let at = Setup::start();
    let url = at.receiver.url("/ok");
    let add = |args: &[&str]| at.run(&[&["endpoints", "add", "pay", &url], args].concat());
    let first = add(&[
        "--policy",
        "wechat-pay",
        "--acknowledgement",
        "code-success",
        "--concurrency",
        "7",
        "--no-hold",
        "--on-dead-letter",
        "skip",
        "--topic",
        "pay.*",
        "-H",
        "x-shop: eu",
    ]);
    assert!(first.stderr.contains("pay is registered"), "{first:?}");
    let before = settings(&at.server, "/v1/endpoints/pay");
    assert_eq!(
        (&before["policy"], &before["acknowledgement"]),
        (&json!("wechat-pay"), &json!("code-success"))
    );

    // A new key leaves everything else.
    assert_eq!(new_key(&at, &["--output", "k1"]).status, 0);
    let ran = add(&["--secret", "k1"]);
    assert!(
        ran.stderr
            .contains("pay is changed: signing keys: 1 (newest): encrypted"),
        "{ran:?}"
    );
    let mut expected = before.clone();
    expected["secrets"] = json!(["encrypted"]);
    assert_eq!(settings(&at.server, "/v1/endpoints/pay"), expected);

    // Without an option nothing changes, and each option changes its own setting.
    let ran = add(&[]);
    assert!(ran.stderr.contains("nothing has changed"), "{ran:?}");
    assert_eq!(settings(&at.server, "/v1/endpoints/pay"), expected);
    let ran = add(&["--concurrency", "9", "--hold"]);
    assert!(
        ran.stderr
            .contains("concurrency: 9, was 7; hold: true, was false"),
        "{ran:?}"
    );
    (expected["concurrency"], expected["hold"]) = (json!(9), json!(true));
    assert_eq!(settings(&at.server, "/v1/endpoints/pay"), expected);
    let moved = at.receiver.url("/echo");
    let ran = at.run(&["endpoints", "add", "pay", &moved]);
    assert!(
        ran.stderr.contains(&format!("url: {moved}, was {url}")),
        "{ran:?}"
    );
    expected["url"] = json!(moved);
    assert_eq!(settings(&at.server, "/v1/endpoints/pay"), expected);

    let shown = at.run(&["endpoints", "show", "pay"]).stdout;
    for row in [
        "policy           wechat-pay",
        "acknowledgement  code-success",
        "concurrency      9",
        "hold             false: the schedule is a contract",
        "on-dead-letter   skip",
        "topics           pay.*",
        "headers          x-shop: encrypted",
        "keys             1 (newest): encrypted ",
    ] {
        assert!(shown.contains(row), "{row} in {shown}");
    }
}

/// The change that another client has made since the command read the endpoint is not undone.
#[test]
fn a_change_of_an_endpoint_requires_the_version_that_was_read() {
    let at = Setup::start();
    let url = at.receiver.url("/ok");
    at.server.register(
        "shop",
        &json!({ "url": url, "secrets": ["env:A", "env:B"] }),
    );
    let token = format!("authorization: Bearer {}\r\n", at.server.token);
    let (_, head, _) = at.server.raw("GET", "/v1/endpoints/shop", &token, "");
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: "));
    let fields = format!("{token}if-match: {}\r\n", tag.unwrap());
    at.run(&["endpoints", "add", "shop", &url, "--concurrency", "8"]);
    let body = json!({ "url": url }).to_string();
    let (status, ..) = at.server.raw("PUT", "/v1/endpoints/shop", &fields, &body);
    assert_eq!(status, 412, "the command has made another version");
}

#[test]
fn a_signing_key_is_rotated_with_two_commands() {
    let at = Setup::start();
    let url = at.receiver.url("/ok");
    let mut fingerprints = Vec::new();
    for name in ["old.key", "new.key"] {
        let made = new_key(&at, &["--output", name]);
        assert_eq!((made.status, made.stdout.as_str()), (0, ""), "{made:?}");
        let file = at.folder().join(name);
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "only its owner can read it");
        let (_, fingerprint) = made.stderr.trim().rsplit_once(' ').unwrap();
        fingerprints.push(fingerprint.to_owned());
    }
    let [old, new] = &fingerprints[..] else {
        panic!("two keys");
    };
    assert_ne!(old, new);
    at.run(&["endpoints", "add", "shop", &url, "--secret", "old.key"]);
    // The request may be repeated.
    for _ in 0..2 {
        let ran = at.run(&["endpoints", "add-key", "shop", "--secret", "new.key"]);
        let says = format!("shop signs with 1 (newest): encrypted {new}, 2: encrypted {old}");
        assert!(ran.stderr.contains(&says), "{says} in {ran:?}");
    }
    let id = at
        .server
        .send(&json!({ "endpoint": "shop", "event": "e", "payload": 1 }));
    at.server.message_is(&id, "delivered");
    let signature = at.receiver.seen()[0]
        .header("webhook-signature")
        .unwrap()
        .to_owned();
    assert_eq!(signature.split(' ').count(), 2, "{signature}");
    for key in ["2", old] {
        let ran = at.run(&["endpoints", "remove-key", "shop", key]);
        let says = format!("2: encrypted {old}; signing keys left: 1 (newest): encrypted {new}");
        assert!(ran.stderr.contains(&says), "{says} in {ran:?}");
        // As the newest, so the keys change places.
        at.run(&["endpoints", "remove-key", "shop", "1", "--allow-unsigned"]);
        at.run(&["endpoints", "add-key", "shop", "--secret", "old.key"]);
        at.run(&["endpoints", "add-key", "shop", "--secret", "new.key"]);
    }
}

#[test]
fn new_key_makes_a_valid_key_and_replaces_no_file() {
    let at = Setup::start();
    let made = new_key(&at, &[]);
    let key = made.stdout.trim();
    assert!(key.starts_with("whsec_") && key.len() == 50, "{key}");
    fs::write(at.folder().join("k"), key).unwrap();
    let url = at.receiver.url("/ok");
    at.run(&["endpoints", "add", "shop", &url, "--secret", "k"]);
    let refused = new_key(&at, &["-o", "k"]);
    assert_eq!(refused.status, 2, "{refused:?}");
    let refused = new_key(&at, &["-o", "no/folder/k"]);
    let says = "no/folder/k: cannot be created: No such file or directory";
    assert!(refused.stderr.contains(says), "{refused:?}");
    assert_eq!(fs::read_to_string(at.folder().join("k")).unwrap(), key);
    let add = ["endpoints", "add", "shop", &url, "--policy", "off"];
    let refused = at.server.deliver(at.folder(), &add);
    let says = "an endpoint needs a schedule";
    assert!(
        refused.status == 2 && refused.stderr.contains(says),
        "{refused:?}"
    );
    fs::write(at.folder().join("bad"), "hunter2").unwrap();
    let add = ["endpoints", "add", "shop", &url, "--secret", "bad"];
    let refused = at.server.deliver(at.folder(), &add);
    assert!(
        refused.stderr.contains("`relent deliver new-key`"),
        "{refused:?}"
    );
}

#[test]
fn a_header_field_that_is_given_twice_is_refused() {
    let at = Setup::start();
    let url = at.receiver.url("/ok");
    let add = [
        "endpoints",
        "add",
        "shop",
        &url,
        "-H",
        "x-a: 1",
        "-H",
        "X-A: 2",
    ];
    let ran = at.server.deliver(at.folder(), &add);
    assert_eq!(ran.status, 2, "{ran:?}");
    assert!(
        ran.stderr.contains("x-a") && ran.stderr.contains("twice"),
        "{ran:?}"
    );
    assert_eq!(at.server.ask("GET", "/v1/endpoints/shop", "").0, 404);
}

#[test]
fn an_endpoint_is_named_as_it_is_printed() {
    let at = Setup::start();
    let url = at.receiver.url("/ok");
    for (path, what) in [("a%2Fb", "name"), ("shop?tenant=a%2Fb", "tenant")] {
        let body = json!({ "url": url }).to_string();
        let (status, problem) = at
            .server
            .ask("PUT", &format!("/v1/endpoints/{path}"), &body);
        let detail = problem["detail"].as_str().unwrap();
        assert!(status == 422 && detail.contains(what), "{detail}");
    }
    for name in ["acme/", "acme/..", "/"] {
        let refused = at
            .server
            .deliver(at.folder(), &["endpoints", "add", name, &url]);
        assert_eq!(refused.status, 2, "{name}: {refused:?}");
    }
    let added = at.run(&["endpoints", "add", "acme/warehouse", &url]);
    assert!(
        added.stderr.contains("acme/warehouse is registered"),
        "{added:?}"
    );
    let again = ["endpoints", "add", "warehouse", &url, "--tenant", "acme"];
    let again = at.run(&again).stderr;
    assert!(again.contains("is registered already"), "{again}");
    let shown = at.run(&["endpoints", "show", "acme/warehouse"]).stdout;
    assert!(shown.contains("acme/warehouse"), "{shown}");
    at.run(&["endpoints", "disable", "acme/warehouse"]);
    let send = [
        "send",
        "--endpoint",
        "acme/warehouse",
        "--event",
        "e",
        "-d",
        "1",
    ];
    at.run(&send);
    let listed = at.run(&["list", "--endpoint", "acme/warehouse", "--json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(listed[0]["endpoint"], "warehouse");
}

#[test]
fn a_name_without_a_tenant_selects_no_messages_of_tenants() {
    let at = Setup::start();
    let url = at.receiver.url("/ok");
    for name in ["shop", "acme/shop"] {
        at.run(&["endpoints", "add", name, &url]);
        let send = ["send", "--endpoint", name, "--event", "e", "-d", "1"];
        let id = at.run(&send).stdout;
        at.server.message_is(id.trim(), "delivered");
    }
    for (selected, tenant) in [
        (&["--endpoint", "shop"][..], ""),
        (&["--endpoint", "acme/shop"], "acme"),
        (&["--endpoint", "shop", "--tenant", "acme"], "acme"),
    ] {
        let listed = at.run(&[&["list", "--json"][..], selected].concat());
        let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
        let tenants: Vec<_> = listed.as_array().unwrap().iter().collect();
        assert_eq!(tenants.len(), 1, "{selected:?}: {listed}");
        assert_eq!(tenants[0]["tenant"], tenant, "{selected:?}");
        let replay = ["replay", "--state", "delivered", "--json"];
        let replayed = at.run(&[&replay[..], selected].concat()).stdout;
        assert_eq!(replayed, "{\"resent\":1}\n", "{selected:?}");
        at.server
            .message_is(tenants[0]["id"].as_str().unwrap(), "delivered");
    }
}

#[test]
fn commands_say_that_an_endpoint_is_disabled() {
    let at = Setup::start();
    at.server.register(
        "shop",
        &json!({ "url": at.receiver.url("/ok"), "topics": ["order.*"] }),
    );
    let id = at
        .server
        .send(&json!({ "endpoint": "shop", "event": "e", "payload": 1 }));
    at.server.message_is(&id, "delivered");
    let disabled = at.run(&["endpoints", "disable", "shop"]);
    assert!(
        disabled.stderr.contains("its messages are held"),
        "{disabled:?}"
    );
    let again = at.run(&["endpoints", "disable", "shop"]);
    assert!(
        again
            .stderr
            .contains("disabled before: disabled by an operator"),
        "{again:?}"
    );
    let url = at.receiver.url("/ok");
    for args in [
        &["resend", &id][..],
        &["send-now", &id],
        &["send-now", "--endpoint", "shop"],
        &["cancel", &id],
        &["replay", "--state", "cancelled", "--endpoint", "shop"],
        &["endpoints", "add", "shop", &url],
        &["send", "--endpoint", "shop", "--event", "f", "-d", "1"],
        &["publish", "order.paid", "--event", "g", "-d", "1"],
    ] {
        let ran = at.run(args);
        let says = ran
            .stderr
            .contains("`relent deliver endpoints enable shop`")
            && ran.stderr.contains("disabled by an operator");
        assert_eq!(says, args[0] != "cancel", "{args:?}: {ran:?}");
    }
}

#[test]
fn replace_key_names_the_endpoints_whose_keys_are_lost() {
    let at = Setup::start();
    assert_eq!(new_key(&at, &["-o", "k"]).status, 0);
    let url = at.receiver.url("/ok");
    for (name, args) in [
        ("signed", &["--secret", "k"][..]),
        ("plain", &[]),
        ("with-field", &["-H", "x-shop: eu"]),
    ] {
        at.run(&[&["endpoints", "add", name, &url, "--tenant", "acme"], args].concat());
    }
    let store = at.folder().join("relent-deliver.db");
    fs::remove_file(at.folder().join("relent-deliver.key")).unwrap();
    let store = format!("sqlite:{}", store.display());
    let args = [&INSIDE[..], &["--replace-key", "--store", &store]].concat();
    let second = Server::start_with(at.folder(), &args);
    let said = until("it is said", || Some(second.said()));
    for (name, is_lost) in [("signed", true), ("plain", false), ("with-field", true)] {
        let line = format!("acme/{name}: --key-file");
        assert_eq!(said.contains(&line), is_lost, "{line} in {said}");
    }
}

#[test]
fn a_server_whose_port_is_in_use_writes_no_file() {
    let at = Setup::start();
    let folder = tempfile::tempdir().unwrap();
    let args = ["serve", "--listen", &at.server.address];
    let ran = at.server.deliver(folder.path(), &args);
    assert_eq!(ran.status, 1, "{ran:?}");
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert!(files.is_empty(), "{files:?}");
}
