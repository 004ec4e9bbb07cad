//! Tests of the commands, the API and the page of `relent deliver` for operators and producers.

use std::fs;

use serde_json::{Value, json};

use crate::deliver_support::{Receiver, Server, Setup, until};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// A policy with one retry, after an hour.
fn rarely() -> Value {
    json!(
        "max_retries = 3\njitter = \"none\"\nretry_on = [\"5xx\"]\nbackoff.constant = { delay = \"1h\" }\n"
    )
}

#[test]
fn send_now_sends_pending_messages_and_keeps_the_attempt_count() {
    let at = Setup::start();
    at.server.register(
        "shop",
        &json!({ "url": at.receiver.url("/later"), "policy": rarely(), "hold": false }),
    );
    let ids: Vec<_> = ["a", "b", "c"]
        .map(|event| {
            at.server
                .send(&json!({ "endpoint": "shop", "event": event, "payload": 1 }))
        })
        .into();
    for id in &ids {
        until("an attempt failed", || {
            let (_, shown) = at.server.ask("GET", &format!("/v1/messages/{id}"), "");
            (shown["message"]["attempts"] == 1 && shown["message"]["state"] == "pending")
                .then_some(())
        });
    }
    at.receiver.answer(200);
    let ran = at.run(&["send-now", &ids[0]]);
    assert!(ran.stderr.contains("is due now"), "{ran:?}");
    let shown = at.server.message_is(&ids[0], "delivered");
    assert_eq!(shown["message"]["attempts"], 2);
    assert_eq!(shown["attempts"][1]["number"], 2);
    let (_, other) = at
        .server
        .ask("GET", &format!("/v1/messages/{}", ids[1]), "");
    assert_eq!(other["message"]["state"], "pending");
    // All other messages of the endpoint, and with the button.
    let session = at.server.sign_in(&at.server.token);
    let path = format!("/messages/{}", ids[1]);
    let token = at.server.form_token(&session, &path);
    let form = format!("act=send-now&id={}&form_token={token}", ids[1]);
    let (status, to) = at.server.fill(&session, "/do", &form);
    assert_eq!((status, to), (303, format!("/messages/{}?due=1", ids[1])));
    at.server.message_is(&ids[1], "delivered");
    let ran = at.run(&["send-now", "--endpoint", "shop", "--json"]);
    assert_eq!(ran.stdout, "{\"due\":1}\n");
    at.server.message_is(&ids[2], "delivered");
    for (args, status) in [
        (&["send-now"][..], 2),
        (&["send-now", &ids[0], "--endpoint", "shop"], 2),
        (&["send-now", &ids[0]], 1),
    ] {
        let ran = at.server.deliver(at.folder(), args);
        assert_eq!(ran.status, status, "{ran:?}");
    }
}

#[test]
fn contents_require_the_content_token_and_never_include_secrets() {
    let at = Setup::start();
    fs::write(at.folder().join("key"), SECRET).unwrap();
    fs::write(at.folder().join("token"), "Bearer token-4711\n").unwrap();
    let url = at.receiver.url("/echo");
    at.run(&[
        "endpoints",
        "add",
        "shop",
        &url,
        "--secret",
        "key",
        "-H",
        "Authorization: @token",
        "-H",
        "x-region: region-4711",
    ]);
    let payload = format!("{{\"key\":\"{SECRET}\",\"note\":\"\u{202e}<b>\"}}");
    let id = at
        .server
        .send(&json!({ "endpoint": "shop", "event": "e", "text": payload }));
    at.server.message_is(&id, "delivered");
    let seen = at.receiver.seen();
    let signature = seen[0].header("webhook-signature").unwrap().to_owned();
    assert_eq!(seen[0].header("authorization"), Some("Bearer token-4711"));
    assert_eq!(seen[0].header("x-region"), Some("region-4711"));

    let content = format!("/v1/messages/{id}/content");
    assert_eq!(at.server.ask("GET", &content, "").0, 403);
    let bearer = format!("authorization: Bearer {}\r\n", at.content_token());
    let (status, _, shown) = at.server.raw("GET", &content, &bearer, "");
    assert_eq!(status, 200, "{shown}");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let field = |side: &str, name: &str| {
        let fields = shown["attempts"][0][side].as_array().unwrap();
        let field = fields.iter().find(|field| field["name"] == name);
        field.unwrap_or_else(|| panic!("{name} in {fields:?}"))["value"].clone()
    };
    for name in ["authorization", "x-region", "webhook-signature"] {
        assert_eq!(field("request", name), "[redacted]");
    }
    assert_eq!(field("request", "webhook-id"), id);
    assert_eq!(field("response", "set-cookie"), "[redacted]");
    assert_eq!(field("response", "x-shop"), "eu");
    let ran = at.run(&["show", &id, "--content", "--token-file", "content.token"]);
    assert!(
        ran.stdout.contains("> webhook-signature: [redacted]"),
        "{}",
        ran.stdout
    );
    assert!(!ran.stdout.contains('\u{202e}'), "{}", ran.stdout);
    let refused = at.server.deliver(at.folder(), &["show", &id, "--content"]);
    assert_eq!(refused.status, 1);
    assert!(refused.stderr.contains("--token-file"), "{refused:?}");

    // The page has a link for users with the content token, and none for others.
    let (may, may_not) = (
        at.server.sign_in(&at.content_token()),
        at.server.sign_in(&at.server.token),
    );
    let path = format!("/messages/{id}/content");
    let (_, message) = at.server.page(&may, &format!("/messages/{id}"));
    assert!(message.contains(&path), "{message}");
    let (_, message) = at.server.page(&may_not, &format!("/messages/{id}"));
    assert!(!message.contains(&path), "{message}");
    assert_eq!(at.server.page(&may_not, &path).0, 403);
    let (status, page) = at.server.page(&may, &path);
    assert_eq!(status, 200);
    assert!(
        page.contains("\\u{202e}&lt;b&gt;") && !page.contains('\u{202e}'),
        "{page}"
    );

    // Secrets occur nowhere, also if the receiver has repeated them.
    let (_, listed) = at.server.ask("GET", "/v1/endpoints/shop", "");
    let (_, message) = at.server.ask("GET", &format!("/v1/messages/{id}"), "");
    let (_, endpoint) = at.server.page(&may, "/endpoints/shop");
    assert_eq!(listed["endpoint"]["headers"]["authorization"], "encrypted");
    let database = fs::read(at.folder().join("relent-deliver.db-wal")).unwrap();
    let kept = String::from_utf8_lossy(&database).into_owned();
    for text in [
        shown.to_string(),
        ran.stdout,
        page,
        listed.to_string(),
        message.to_string(),
        endpoint,
        kept.replace(&payload, ""),
    ] {
        for secret in [
            "token-4711",
            "region-4711",
            "cookie-4711",
            SECRET,
            &signature,
        ] {
            assert!(!text.contains(secret), "{secret} in {text:.2000}");
        }
    }

    // Other changes keep the fields.
    at.server
        .register("shop", &json!({ "url": url, "topics": ["order.*"] }));
    let id = at
        .server
        .send(&json!({ "endpoint": "shop", "event": "f", "payload": 1 }));
    at.server.message_is(&id, "delivered");
    assert_eq!(
        at.receiver.seen()[1].header("authorization"),
        Some("Bearer token-4711")
    );
    at.server
        .register("shop", &json!({ "url": url, "headers": {} }));
    let id = at
        .server
        .send(&json!({ "endpoint": "shop", "event": "g", "payload": 1 }));
    at.server.message_is(&id, "delivered");
    assert_eq!(at.receiver.seen()[2].header("authorization"), None);
    let spelled = [
        "endpoints",
        "add",
        "shop",
        &url,
        "-H",
        "authorization: Bearer 4711",
    ];
    let ran = at.server.deliver(at.folder(), &spelled);
    assert!(ran.status == 2 && !ran.stderr.contains("4711"), "{ran:?}");
}

#[test]
fn without_a_content_token_contents_are_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let (status, said) = server.ask("GET", "/v1/messages/msg_1/content", "");
    assert_eq!(status, 403);
    assert!(
        said["detail"]
            .as_str()
            .unwrap()
            .contains("--content-token-file"),
        "{said}"
    );
}

#[test]
fn an_event_reaches_each_endpoint_that_subscribes_to_its_topic() {
    let at = Setup::start();
    let url = at.receiver.url("/ok");
    let publish = ["publish", "order.paid", "--event", "order-17", "-d", "{}"];
    let ran = at.run(&publish);
    assert!(
        ran.stdout.is_empty() && ran.stderr.contains("no endpoint subscribes"),
        "{ran:?}"
    );
    at.run(&["endpoints", "add", "billing", &url, "--topic", "order.paid"]);
    at.run(&[
        "endpoints",
        "add",
        "stock",
        &url,
        "--topic",
        "order.*",
        "--topic",
        "stock.low",
    ]);
    at.run(&["endpoints", "add", "other", &url, "--topic", "refund.*"]);
    let ran = at.run(&publish);
    let lines: Vec<_> = ran
        .stdout
        .lines()
        .map(|line| line.split_once("  ").unwrap())
        .collect();
    let [(billing, "billing"), (stock, "stock")] = lines[..] else {
        panic!("{ran:?}");
    };
    assert_ne!(billing, stock, "each has a message of its own");
    for id in [billing, stock] {
        let shown = at.server.message_is(id, "delivered");
        assert_eq!(
            (&shown["message"]["event"], &shown["message"]["topic"]),
            (&json!("order-17"), &json!("order.paid"))
        );
    }
    assert_eq!(at.run(&publish).stdout, ran.stdout, "it is there once");
    assert_eq!(at.receiver.seen().len(), 2);
    // Other changes keep the subscriptions.
    at.run(&["endpoints", "add", "stock", &url, "--concurrency", "8"]);
    assert_eq!(at.run(&publish).stdout, ran.stdout);
    at.run(&["endpoints", "add", "billing", &url, "--no-topics"]);
    let (_, billing) = at.server.ask("GET", "/v1/endpoints/billing", "");
    assert_eq!(billing["endpoint"]["topics"], json!([]));
    let found = at.run(&[
        "list", "--topic", "order.*", "--search", "order-1", "--json",
    ]);
    let found: Value = serde_json::from_str(&found.stdout).unwrap();
    assert_eq!(found.as_array().unwrap().len(), 2);
    let shown = at.run(&["endpoints", "show", "stock"]).stdout;
    assert!(
        shown.contains("order.*, stock.low") && shown.contains("1 acknowledged"),
        "{shown}"
    );
}

#[test]
fn a_test_message_is_marked_as_a_test() {
    let at = Setup::start();
    at.server
        .register("shop", &json!({ "url": at.receiver.url("/ok") }));
    let ran = at.run(&["endpoints", "test", "shop", "--wait"]);
    let id = ran.stdout.trim();
    let seen = at.receiver.seen();
    assert_eq!((seen.len(), seen[0].header("webhook-id")), (1, Some(id)));
    let payload: Value = serde_json::from_str(&seen[0].body).unwrap();
    assert_eq!(
        (&payload["type"], &payload["test"]),
        (&json!("relent.test"), &json!(true))
    );
    let session = at.server.sign_in(&at.server.token);
    let (_, page) = at.server.page(&session, &format!("/messages/{id}"));
    assert!(page.contains(">test</span>"), "{page}");
    let token = at.server.form_token(&session, "/endpoints/shop");
    let form = format!("act=test&tenant=&name=shop&form_token={token}");
    let (status, to) = at.server.fill(&session, "/do", &form);
    assert!(status == 303 && to.starts_with("/messages/msg_"), "{to}");
    at.server
        .message_is(to.strip_prefix("/messages/").unwrap(), "delivered");
}

/// A name may resolve to any address: a test message must not reach a forbidden one either.
#[test]
fn a_test_message_is_not_sent_to_a_forbidden_address() {
    let folder = tempfile::tempdir().unwrap();
    let (server, receiver) = (
        Server::start_with(folder.path(), &["--allow-http"]),
        Receiver::start(),
    );
    let url = format!("http://localhost:{}/ok", receiver.address.port());
    let (status, said) = server.ask(
        "PUT",
        "/v1/endpoints/shop",
        &json!({ "url": url }).to_string(),
    );
    if status == 201 {
        let (_, sent) = server.ask("POST", "/v1/endpoints/shop/test", "");
        let id = sent["id"].as_str().unwrap().to_owned();
        until("the attempt failed", || {
            let (_, shown) = server.ask("GET", &format!("/v1/messages/{id}"), "");
            let error = shown["message"]["last_error"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            (!error.is_empty()).then(|| assert!(error.contains("loopback"), "{error}"))
        });
    } else {
        assert_eq!(status, 422, "{said}");
    }
    assert!(receiver.seen().is_empty());
}

#[test]
fn a_signed_out_session_opens_no_page() {
    let at = Setup::start();
    let (session, other) = (
        at.server.sign_in(&at.server.token),
        at.server.sign_in(&at.server.token),
    );
    assert_ne!(session, other);
    let token = at.server.form_token(&session, "/");
    assert_eq!(at.server.page(&session, "/").0, 200);
    assert_eq!(at.server.fill(&session, "/logout", "").1, "/login");
    let form = format!("act=enable&tenant=&name=shop&form_token={token}");
    for (status, to) in [
        at.server.fill(&session, "/do", &form),
        at.server.fill(&session, "/do-selected", &form),
    ] {
        assert_eq!((status, &to[..]), (303, "/login"));
    }
    assert_eq!(
        at.server.page(&session, "/").0,
        303,
        "the cookie is nobody's"
    );
    assert_eq!(at.server.page(&other, "/").0, 200);
    // A form is valid in its session only.
    assert_eq!(at.server.fill(&other, "/do", &form).0, 403);
}

#[test]
fn one_form_resends_or_cancels_several_dead_letters() {
    let at = Setup::start();
    at.server.register("shop", &json!({ "url": at.receiver.url("/later"), "policy": "backoff = \"none\"\nmax_retries = 0\n" }));
    let ids: Vec<_> = (0..4)
        .map(|event| {
            at.server
                .send(&json!({ "endpoint": "shop", "event": event.to_string(), "payload": 1 }))
        })
        .collect();
    for id in &ids {
        at.server.message_is(id, "dead");
    }
    let session = at.server.sign_in(&at.server.token);
    let list = "/messages?state=dead&endpoint=shop";
    let token = at.server.form_token(&session, list);
    let (_, page) = at.server.page(&session, list);
    for id in &ids {
        assert!(
            page.contains(&format!("name=\"id\" value=\"{id} dead\"")),
            "{page}"
        );
    }
    let form = |act: &str, ids: &[String], token: &str| {
        let ids: String = ids.iter().map(|id| format!("&id={id}+dead")).collect();
        format!("act={act}&form_token={token}&list=%2Fmessages%3Fstate%3Ddead{ids}")
    };
    assert_eq!(
        at.server
            .fill(&session, "/do-selected", &form("resent", &ids, "x"))
            .0,
        403
    );
    assert_eq!(
        at.server
            .fill(&session, "/do-selected", &form("explode", &ids, &token))
            .0,
        422
    );
    let (status, to) = at.server.fill(
        &session,
        "/do-selected",
        &form("cancelled", &ids[..2], &token),
    );
    assert_eq!((status, &to[..]), (303, "/messages?state=dead&cancelled=2"));
    for id in &ids[..2] {
        at.server.message_is(id, "cancelled");
    }
    // This page was opened before.
    let late = form("resent", &ids[..2], &token);
    let (_, to) = at.server.fill(&session, "/do-selected", &late);
    assert_eq!(to, "/messages?state=dead&resent=0");
    let late = format!("act=resend&id={}&state=dead&form_token={token}", ids[0]);
    let (_, to) = at.server.fill(&session, "/do", &late);
    assert_eq!(to, format!("/messages/{}?resent=0", ids[0]));
    at.receiver.answer(200);
    let (_, to) = at
        .server
        .fill(&session, "/do-selected", &form("resent", &ids[2..], &token));
    assert_eq!(to, "/messages?state=dead&resent=2");
    for id in &ids[2..] {
        at.server.message_is(id, "delivered");
    }
    // The response leads back to a list, for any value in the form.
    let form =
        format!("act=resent&form_token={token}&list=https%3A%2F%2Fevil.example%2F%3Fstate%3Ddead");
    assert_eq!(
        at.server.fill(&session, "/do-selected", &form).1,
        "/messages?state=dead&resent=0"
    );
}

/// Otherwise a replay that is repeated would send the same messages again.
#[test]
fn a_replay_of_delivered_messages_on_the_page_needs_an_end() {
    let at = Setup::start();
    at.server
        .register("shop", &json!({ "url": at.receiver.url("/ok") }));
    let session = at.server.sign_in(&at.server.token);
    let token = at.server.form_token(&session, "/endpoints/shop");
    for (until, status) in [("", 422), ("2026-01-31T12%3A00", 303)] {
        let form = format!(
            "act=replay&tenant=&name=shop&state=delivered&from=&until={until}&form_token={token}"
        );
        assert_eq!(at.server.fill(&session, "/do", &form).0, status, "{until}");
    }
}

#[test]
fn a_form_registers_an_endpoint_like_the_api() {
    let at = Setup::start();
    let session = at.server.sign_in(&at.server.token);
    let token = at.server.form_token(&session, "/");
    let form = |name: &str, url: &str, headers: &str| {
        let url = url.replace(':', "%3A").replace('/', "%2F");
        format!(
            "act=register&form_token={token}&tenant=&name={name}&url={url}&policy=svix&acknowledgement=success\
             &topics=order.*%2C+stock.low&secret={SECRET}&headers={headers}"
        )
    };
    let ok = at.receiver.url("/ok");
    let fill = |form: &str| at.server.fill(&session, "/do", form);
    let (status, to) = fill(&form(
        "shop",
        &ok,
        "Authorization%3A+Bearer+4711%0D%0Ax-shop%3A+eu",
    ));
    assert_eq!((status, &to[..]), (303, "/endpoints/shop?tenant="));
    let (_, shown) = at.server.ask("GET", "/v1/endpoints/shop", "");
    let endpoint = &shown["endpoint"];
    assert_eq!(endpoint["topics"], json!(["order.*", "stock.low"]));
    assert_eq!(
        endpoint["headers"],
        json!({ "authorization": "encrypted", "x-shop": "encrypted" })
    );
    assert_eq!(
        (&endpoint["policy"], &endpoint["secrets"]),
        (&json!("svix"), &json!(["encrypted"]))
    );
    for (form, status, says) in [
        (form("shop", &ok, ""), 409, "already"),
        (form("private", "https://10.0.0.1/", ""), 422, "private"),
        (form("private", &ok, "host%3A+a"), 422, "connection"),
        (form("private", &ok, "nonsense"), 422, "colon"),
        (form("..", &ok, ""), 422, "URL"),
        (
            form("private", &ok, "").replace(&token, "x"),
            403,
            "session",
        ),
    ] {
        let (got, said) = fill(&form);
        assert_eq!(got, status, "{form}: {said}");
        assert!(
            said.contains(says) && !said.contains(SECRET),
            "{says}: {said}"
        );
    }
    assert_eq!(at.server.ask("GET", "/v1/endpoints/private", "").0, 404);
}

#[test]
fn a_message_blocked_by_a_dead_letter_links_to_it() {
    let at = Setup::start();
    at.server.register("shop", &json!({ "url": at.receiver.url("/bad"), "policy": "backoff = \"none\"\nmax_retries = 0\n" }));
    let send = |event: &str| {
        at.server
            .send(&json!({ "endpoint": "shop", "event": event, "order": "order-17", "payload": 1 }))
    };
    let first = send("first");
    at.server.message_is(&first, "dead");
    let second = send("second");
    let (_, shown) = at.server.ask("GET", &format!("/v1/messages/{second}"), "");
    assert_eq!(
        (&shown["message"]["state"], &shown["message"]["blocked_by"]),
        (&json!("pending"), &json!(first))
    );
    let session = at.server.sign_in(&at.server.token);
    for path in [
        format!("/messages/{second}"),
        "/messages?state=pending".to_owned(),
    ] {
        let (_, page) = at.server.page(&session, &path);
        assert!(
            page.contains(&format!("href=\"/messages/{first}\"")),
            "{page}"
        );
    }
    let listed = at.run(&["list", "--state", "pending"]).stdout;
    assert!(
        listed.contains(&format!("behind the dead letter {first}")),
        "{listed}"
    );
}

#[test]
fn a_list_can_be_searched_and_its_pages_stay_consistent() {
    let at = Setup::start();
    at.server
        .register("shop", &json!({ "url": at.receiver.url("/ok") }));
    at.server
        .register("depot", &json!({ "url": at.receiver.url("/ok") }));
    let many: Vec<_> = (0..250)
        .map(|event| json!({ "endpoint": "shop", "event": format!("order-{event:03}"), "topic": "order.paid", "payload": 1, "delay_ms": 3_600_000 }))
        .collect();
    at.server
        .ask("POST", "/v1/messages", &json!(many).to_string());
    let mut events = Vec::new();
    let mut next = String::new();
    loop {
        let path = format!("/v1/messages?limit=60&state=pending&topic=order.*{next}");
        let (_, page) = at.server.ask("GET", &path, "");
        let of = |message: &Value| message["event"].as_str().unwrap().to_owned();
        events.extend(page["messages"].as_array().unwrap().iter().map(of));
        let Some(before) = page["next"].as_str() else {
            break;
        };
        next = format!("&before={before}");
        // The last message of the page changes, and new ones arrive.
        let last = page["messages"].as_array().unwrap().last().unwrap();
        at.run(&["cancel", last["id"].as_str().unwrap()]);
        at.server.send(&json!({ "endpoint": "shop", "event": format!("order-new-{}", events.len()), "topic": "order.paid", "payload": 1, "delay_ms": 3_600_000 }));
    }
    let expected: Vec<_> = (0..250)
        .rev()
        .map(|event| format!("order-{event:03}"))
        .collect();
    assert_eq!(events, expected);
    let session = at.server.sign_in(&at.server.token);
    let (_, page) = at.server.page(
        &session,
        "/messages?search=order-01&state=&topic=&tenant=&endpoint=&from=&until=",
    );
    assert!(
        page.contains("order-015") && !page.contains("order-020"),
        "{page}"
    );
    let (status, page) = at
        .server
        .page(&session, "/messages?search=%3Cscript%3E&from=tomorrow");
    assert!(status == 422 && !page.contains("<script>"), "{page}");
    let (_, page) = at
        .server
        .page(&session, "/messages?search=%22%3E%3Cscript%3E");
    assert!(page.contains("&quot;&gt;&lt;script&gt;"), "{page}");
    let (_, page) = at
        .server
        .page(&session, "/messages?search=order-&state=pending");
    let (_, link) = page.rsplit_once("<a href=\"/messages?").unwrap();
    let link = link.split('"').next().unwrap().replace("&amp;", "&");
    assert!(
        link.contains("search=order%2D") && link.contains("before="),
        "{link}"
    );
    let (_, second) = at.server.page(&session, &format!("/messages?{link}"));
    assert!(
        second.contains("order-1") && !second.contains("order-249"),
        "{link}"
    );
}
