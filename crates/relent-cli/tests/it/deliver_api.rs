//! Tests that the API of `relent deliver serve` is exactly as described.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use relent_outbox::observe::{LABELS, METRICS, Metric, MetricKind};
use serde_json::{Value, json};

use crate::deliver_support::{INSIDE, Receiver, Server, until};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A server and a receiver, with a record of the requests.
struct Setup {
    server: Server,
    receiver: Receiver,
    description: Value,
    met: BTreeSet<(String, String)>,
    folder: tempfile::TempDir,
}

impl Setup {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = ["--lease", "2s", "--content-token-file", "content.token"];
        let server = Server::start_with(folder.path(), &[&INSIDE[..], &options].concat());
        let (status, description) = server.ask("GET", "/openapi.json", "");
        assert_eq!(status, 200);
        Self {
            server,
            receiver: Receiver::start(),
            description,
            met: BTreeSet::new(),
            folder,
        }
    }

    /// Sends a request, and checks status, media type and schema of the response against the description.
    fn ask(&mut self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let token = format!("authorization: Bearer {}\r\n", self.server.token);
        self.ask_as(&token, method, path, body)
    }

    fn ask_as(&mut self, fields: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, head, text) = self.server.raw(method, path, fields, body);
        let operation = self.operation(path, method);
        let name = operation["operationId"].as_str().unwrap().to_owned();
        let asked = format!("{method} {path} {body:.200}: {status} {text}");
        let response = self.resolved(&operation["responses"][status.to_string()]);
        assert!(response.is_object(), "not described: {asked}");
        let (kind, content) = response["content"]
            .as_object()
            .unwrap()
            .iter()
            .next()
            .unwrap();
        let line = format!("content-type: {kind}");
        assert!(head.to_lowercase().contains(&line), "{asked}\n{head}");
        self.met.insert((name, status.to_string()));
        if !kind.contains("json") {
            return (status, Value::String(text));
        }
        let value = serde_json::from_str(&text).expect(&asked);
        self.check(&content["schema"], &value, &asked);
        if status >= 400 {
            assert!(
                value["detail"]
                    .as_str()
                    .is_some_and(|detail| !detail.is_empty()),
                "{asked}"
            );
        }
        (status, value)
    }

    fn operation(&self, path: &str, method: &str) -> Value {
        let path = path.split('?').next().unwrap();
        let paths = self.description["paths"].as_object().unwrap();
        let matches = |template: &str| {
            let (own, asked) = (template.split('/'), path.split('/'));
            own.clone().count() == asked.clone().count()
                && own
                    .zip(asked)
                    .all(|(own, asked)| own.starts_with('{') || own == asked)
        };
        let (_, found) = paths
            .iter()
            .find(|(template, _)| matches(template))
            .expect(path);
        found[method.to_lowercase()].clone()
    }

    fn resolved(&self, value: &Value) -> Value {
        match value["$ref"].as_str() {
            Some(to) => {
                let found = self.description.pointer(to.strip_prefix('#').unwrap());
                self.resolved(found.expect(to))
            }
            None => value.clone(),
        }
    }

    /// Checks a value against a schema, with the parts of JSON Schema that the description uses.
    fn check(&self, schema: &Value, value: &Value, asked: &str) {
        let schema = self.resolved(schema);
        if let Some(options) = schema["oneOf"].as_array() {
            let fits = options.iter().any(|option| {
                let option = self.resolved(option);
                let required = option["required"].as_array().unwrap();
                required
                    .iter()
                    .all(|key| value.get(key.as_str().unwrap()).is_some())
            });
            assert!(fits, "{asked}");
            return;
        }
        if let Some(options) = schema["enum"].as_array() {
            assert!(options.contains(value), "{value}: {asked}");
        }
        let kinds = match &schema["type"] {
            Value::Array(kinds) => kinds.clone(),
            Value::Null => Vec::new(),
            kind => vec![kind.clone()],
        };
        let fits = |kind: &Value| match kind.as_str().unwrap() {
            "string" => value.is_string(),
            "integer" => value.is_i64() || value.is_u64(),
            "boolean" => value.is_boolean(),
            "number" => value.is_number(),
            "object" => value.is_object(),
            "array" => value.is_array(),
            "null" => value.is_null(),
            other => panic!("{other}"),
        };
        assert!(
            kinds.is_empty() || kinds.iter().any(fits),
            "{value} is no {kinds:?}: {asked}"
        );
        for item in value.as_array().into_iter().flatten() {
            self.check(&schema["items"], item, asked);
        }
        if let (Some(properties), Some(members)) =
            (schema["properties"].as_object(), value.as_object())
        {
            for (key, member) in members {
                let property = properties
                    .get(key)
                    .unwrap_or_else(|| panic!("{key}: {asked}"));
                self.check(property, member, asked);
            }
            for key in schema["required"].as_array().into_iter().flatten() {
                assert!(
                    members.contains_key(key.as_str().unwrap()),
                    "{key}: {asked}"
                );
            }
        }
    }

    fn refused(&mut self, status: u16, method: &str, path: &str, body: &str, says: &str) {
        let (got, problem) = self.ask(method, path, body);
        let detail = problem["detail"].as_str().unwrap();
        assert_eq!(got, status, "{method} {path} {body:.200}: {detail}");
        assert!(
            detail.contains(says),
            "{method} {path} {body:.200}: {detail}"
        );
        assert!(!detail.contains(SECRET), "{detail}");
    }
}

fn endpoint(url: &str) -> String {
    json!({ "url": url }).to_string()
}

fn message(endpoint: &str, event: &str) -> String {
    json!({ "endpoint": endpoint, "event": event, "payload": { "a": 1 } }).to_string()
}

/// Every status of every described operation occurs, and no other.
#[test]
fn the_api_conforms_to_its_openapi_description() {
    let mut at = Setup::start();
    let kept = include_str!("../../../relent-outbox/src/api/openapi.json");
    assert_eq!(at.description, serde_json::from_str::<Value>(kept).unwrap());
    assert_eq!(at.description["openapi"], "3.1.0");
    references(&at.description, &at.description);

    let (ok, bad, gone) = (
        at.receiver.url("/ok"),
        at.receiver.url("/bad"),
        at.receiver.url("/gone"),
    );
    at.ask("GET", "/health", "");
    at.ask("GET", "/openapi.json", "");
    at.ask("GET", "/metrics", "");
    at.ask("GET", "/v1/summary", "");

    // Endpoints.
    assert_eq!(at.ask("PUT", "/v1/endpoints/shop", &endpoint(&ok)).0, 201);
    assert_eq!(at.ask("PUT", "/v1/endpoints/shop", &endpoint(&ok)).0, 200);
    at.ask("PUT", "/v1/endpoints/bad", &endpoint(&bad));
    at.ask("PUT", "/v1/endpoints/gone?tenant=acme", &endpoint(&gone));
    at.refused(400, "PUT", "/v1/endpoints/shop", "{", "no JSON");
    let huge = " ".repeat((16 << 20) + 1);
    for (method, path) in [
        ("PUT", "/v1/endpoints/shop"),
        ("POST", "/v1/endpoints/shop/disable"),
        ("POST", "/v1/messages"),
        ("POST", "/v1/replay"),
    ] {
        at.refused(413, method, path, &huge, "fewer");
        at.refused(400, method, path, "nonsense", "no JSON");
    }
    for (body, says) in [
        (json!({}), "url"),
        (
            json!({ "url": ok, "colour": "red" }),
            "unknown field `colour`",
        ),
        (
            json!({ "url": ok, "tenant": "x" }),
            "take it out of the body",
        ),
        (json!({ "url": "ftp://shop.example/" }), "https"),
        (json!({ "url": "https://10.0.0.1/" }), "private"),
        (json!({ "url": "https://[::ffff:10.0.0.1]/" }), "private"),
        (json!({ "url": "https://0xa9fea9fe/" }), "link-local"),
        (json!({ "url": ok, "policy": "no-such" }), "policy"),
        (json!({ "url": ok, "policy": "/etc/passwd" }), "policy"),
        (
            json!({ "url": ok, "policy": "jitter = \"none\"\nmax_retries = -1" }),
            "line 2",
        ),
        // It is a valid policy otherwise: a comment.
        (
            json!({ "url": ok, "policy": "#".repeat((64 << 10) + 1) }),
            "64 KiB",
        ),
        (json!({ "url": ok, "concurrency": 0 }), "nonzero"),
        (json!({ "url": ok, "secrets": ["hunter2"] }), "whsec_"),
        (json!({ "url": ok, "secrets": ["env:A-B"] }), "env:"),
        (json!({ "url": ok, "secrets": vec![SECRET; 9] }), "8 keys"),
        (
            json!({ "url": ok, "acknowledgement": "maybe" }),
            "body-success",
        ),
    ] {
        at.refused(422, "PUT", "/v1/endpoints/shop", &body.to_string(), says);
    }
    at.refused(422, "PUT", "/v1/endpoints/a%00b", &endpoint(&ok), "NUL");
    at.refused(422, "PUT", "/v1/endpoints/%2E%2E", &endpoint(&ok), "URL");
    at.refused(422, "GET", "/v1/endpoints?limit=0", "", "1 to 1000");
    at.refused(422, "GET", "/v1/endpoints?colour=red", "", "colour");
    at.refused(422, "GET", "/v1/endpoints?after=shop", "", "after_tenant");
    at.refused(422, "GET", "/v1/endpoints/shop?tenantt=a", "", "tenantt");
    at.refused(404, "GET", "/v1/endpoints/shop?tenant=other", "", "other");
    let (_, listed) = at.ask("GET", "/v1/endpoints?limit=2", "");
    assert_eq!(listed["endpoints"][1]["endpoint"]["name"], "shop");
    let next = listed["next"].as_str().unwrap().to_owned();
    let (_, listed) = at.ask("GET", &next, "");
    assert_eq!(listed["endpoints"][0]["endpoint"]["name"], "gone");
    assert_eq!(listed["next"], Value::Null);
    let (_, listed) = at.ask("GET", "/v1/endpoints?tenant=acme", "");
    assert_eq!(listed["endpoints"].as_array().unwrap().len(), 1);
    at.ask("GET", "/v1/endpoints/shop", "");
    let (_, disabled) = at.ask("POST", "/v1/endpoints/bad/disable", r#"{"reason":"moves"}"#);
    assert_eq!(
        (&disabled["activity"], &disabled["reason"]),
        (&json!("disabled"), &json!("moves"))
    );
    for body in ["", "{}"] {
        let (status, disabled) = at.ask("POST", "/v1/endpoints/bad/disable", body);
        assert_eq!(
            (status, &disabled["reason"]),
            (200, &json!("disabled by an operator"))
        );
    }
    at.refused(
        422,
        "POST",
        "/v1/endpoints/bad/disable",
        r#"{"reason":" "}"#,
        "reason",
    );
    at.refused(
        404,
        "POST",
        "/v1/endpoints/no/disable",
        r#"{"reason":"x"}"#,
        "no endpoint",
    );
    let (_, enabled) = at.ask("POST", "/v1/endpoints/bad/enable", "");
    assert_eq!(
        (&enabled["activity"], &enabled["reason"]),
        (&json!("active"), &json!(""))
    );
    at.refused(404, "POST", "/v1/endpoints/no/enable", "", "no endpoint");
    at.refused(422, "POST", "/v1/endpoints/bad/enable?x=1", "", "x");

    // Messages.
    let (status, first) = at.ask("POST", "/v1/messages", &message("shop", "e1"));
    assert_eq!((status, &first["duplicate"]), (202, &json!(false)));
    let (status, again) = at.ask("POST", "/v1/messages", &message("shop", "e1"));
    assert_eq!(
        (status, &again["duplicate"], &again["id"]),
        (200, &json!(true), &first["id"])
    );
    let other = json!({ "endpoint": "shop", "event": "e1", "payload": { "a": 2 } }).to_string();
    at.refused(
        409,
        "POST",
        "/v1/messages",
        &other,
        first["id"].as_str().unwrap(),
    );
    for (body, says) in [
        (json!({ "endpoint": "shop", "event": "e2" }), "payload"),
        (
            json!({ "endpoint": "shop", "event": "e2", "payload": 1, "text": "" }),
            "one of",
        ),
        (
            json!({ "endpoint": "shop", "event": "e2", "payload": 1, "tennant": "" }),
            "tennant",
        ),
        (
            json!({ "endpoint": "no", "event": "e2", "payload": 1 }),
            "register it first",
        ),
        (
            json!({ "endpoint": "shop", "event": "", "payload": 1 }),
            "event",
        ),
        (
            json!({ "endpoint": "shop", "event": "e2", "base64": "?" }),
            "base64",
        ),
        (
            json!({ "endpoint": "shop", "event": "e2", "text": "x".repeat((1 << 20) + 1) }),
            "1048576",
        ),
        (
            json!({ "endpoint": "shop", "event": "e2", "payload": 1, "delay_ms": -1 }),
            "-1",
        ),
        (json!([]), "1 to 1000"),
    ] {
        at.refused(422, "POST", "/v1/messages", &body.to_string(), says);
    }
    let batch = format!("[{},{}]", message("shop", "e3"), message("no", "e4"));
    let (_, problem) = at.ask("POST", "/v1/messages", &batch);
    assert_eq!(problem["index"], 1);
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("index 1: no endpoint"), "{detail}");
    let (_, listed) = at.ask("GET", "/v1/messages?endpoint=shop", "");
    assert_eq!(
        listed["messages"].as_array().unwrap().len(),
        1,
        "all or none"
    );
    let batch = format!(" \n[{},{}]", message("shop", "e3"), message("bad", "e4"));
    let (status, both) = at.ask("POST", "/v1/messages", &batch);
    assert_eq!(
        (status, both["messages"].as_array().unwrap().len()),
        (202, 2)
    );
    let failing = both["messages"][1]["id"].as_str().unwrap().to_owned();
    at.refused(422, "GET", "/v1/messages?state=lost", "", "state");
    at.refused(422, "GET", "/v1/messages?limit=1001", "", "1 to 1000");
    let (_, page) = at.ask("GET", "/v1/messages?limit=1", "");
    let next = page["next"].as_str().unwrap().to_owned();
    let (_, page) = at.ask("GET", &format!("/v1/messages?limit=1&before={next}"), "");
    assert_ne!(page["messages"][0]["id"], next);
    let id = first["id"].as_str().unwrap().to_owned();
    at.server.message_is(&id, "delivered");
    let (_, shown) = at.ask("GET", &format!("/v1/messages/{id}"), "");
    assert_eq!(shown["attempts"].as_array().unwrap().len(), 1);
    at.refused(404, "GET", "/v1/messages/msg_no", "", "msg_no");
    at.refused(404, "GET", "/v1/messages/a.b", "", "a.b");

    // Only ended messages are sent again.
    until("the attempt failed", || {
        let (_, shown) = at.server.ask("GET", &format!("/v1/messages/{failing}"), "");
        (shown["message"]["last_error"] != "").then_some(())
    });
    at.refused(
        409,
        "POST",
        &format!("/v1/messages/{failing}/resend"),
        "",
        "pending",
    );
    let (_, cancelled) = at.ask("POST", &format!("/v1/messages/{failing}/cancel"), "");
    assert_eq!(cancelled["cancelled"], 1);
    at.refused(
        409,
        "POST",
        &format!("/v1/messages/{failing}/cancel"),
        "",
        "cancelled",
    );
    at.refused(404, "POST", "/v1/messages/msg_no/cancel", "", "msg_no");
    let (_, resent) = at.ask("POST", &format!("/v1/messages/{id}/resend"), "");
    assert_eq!(resent["resent"], 1);
    at.refused(404, "POST", "/v1/messages/msg_no/resend", "", "msg_no");
    let delivered = at.server.message_is(&id, "delivered");
    // With an end, a repeated request does not resend what it has resent.
    let end = delivered["message"]["ended_ms"].as_i64().unwrap() + 1;
    let replay = json!({ "endpoint": "shop", "state": "delivered", "ended_until_ms": end });
    let replay = replay.to_string();
    let (_, replayed) = at.ask("POST", "/v1/replay", &replay);
    assert!(replayed["resent"].as_u64() >= Some(1), "{replayed}");
    at.server.message_is(&id, "delivered");
    let (_, replayed) = at.ask("POST", "/v1/replay", &replay);
    assert_eq!(replayed["resent"], 0);
    for body in [r#"{"endpoint":"shop"}"#, r#"{"state":"delivered"}"#] {
        at.refused(422, "POST", "/v1/replay", body, "ended_until_ms");
    }
    at.refused(422, "POST", "/v1/replay", "{}", "everything");
    at.refused(
        422,
        "POST",
        "/v1/replay",
        r#"{"endpont":"shop"}"#,
        "endpont",
    );

    // Only pending messages are sent now.
    let later =
        json!({ "endpoint": "shop", "event": "later", "payload": 1, "delay_ms": 3_600_000 });
    let (_, later) = at.ask("POST", "/v1/messages", &later.to_string());
    let later = later["id"].as_str().unwrap().to_owned();
    let now = format!("/v1/messages/{later}/send-now");
    let (_, due) = at.ask("POST", &now, "");
    assert_eq!(due["due"], 1);
    at.server.message_is(&later, "delivered");
    at.refused(409, "POST", &now, "", "delivered");
    at.refused(404, "POST", "/v1/messages/msg_no/send-now", "", "msg_no");
    let (_, due) = at.ask("POST", "/v1/send-now", r#"{"endpoint":"shop"}"#);
    assert_eq!(due["due"], 0);
    at.refused(400, "POST", "/v1/send-now", "nonsense", "no JSON");
    at.refused(413, "POST", "/v1/send-now", &huge, "fewer");
    for (body, says) in [
        ("{}", "everything"),
        (r#"{"topic":"*"}"#, "everything"),
        (r#"{"state":"dead"}"#, "replay"),
        (r#"{"tenant":null}"#, "null"),
    ] {
        at.refused(422, "POST", "/v1/send-now", body, says);
    }

    // Contents require the content token.
    let content = format!("/v1/messages/{later}/content");
    at.refused(403, "GET", &content, "", "content token");
    let token = std::fs::read_to_string(at.folder.path().join("content.token")).unwrap();
    let token = format!("authorization: Bearer {}\r\n", token.trim());
    let (status, shown) = at.ask_as(&token, "GET", &content, "");
    assert_eq!((status, &shown["payload"]["text"]), (200, &json!("1")));
    let none = "/v1/messages/msg_no/content";
    assert_eq!(at.ask_as(&token, "GET", none, "").0, 404);
    let wrong = format!("{content}?max_bytes=0");
    assert_eq!(at.ask_as(&token, "GET", &wrong, "").0, 422);

    // A test message, and the recent attempts.
    let (status, test) = at.ask("POST", "/v1/endpoints/shop/test", "");
    assert_eq!(status, 202);
    let shown = at
        .server
        .message_is(test["id"].as_str().unwrap(), "delivered");
    assert_eq!(shown["message"]["topic"], "relent.test");
    at.refused(404, "POST", "/v1/endpoints/no/test", "", "no endpoint");
    at.refused(422, "POST", "/v1/endpoints/shop/test?x=1", "", "x");
    until("the receiver that is gone is disabled", || {
        let (_, gone) = at.server.ask(
            "POST",
            "/v1/messages",
            &json!({ "tenant": "acme", "endpoint": "gone", "event": "e", "payload": 1 })
                .to_string(),
        );
        assert!(gone["id"].is_string(), "{gone}");
        let (_, shown) = at.server.ask("GET", "/v1/endpoints/gone?tenant=acme", "");
        (shown["activity"] == "disabled").then_some(())
    });
    let gone = "/v1/endpoints/gone/test?tenant=acme";
    at.refused(409, "POST", gone, "", "enable it");
    let (_, recent) = at.ask("GET", "/v1/endpoints/shop/recent", "");
    assert!(recent["attempts"].as_u64() >= Some(3), "{recent}");
    assert_eq!(recent["attempts"], recent["acknowledged"]);
    at.refused(404, "GET", "/v1/endpoints/no/recent", "", "no endpoint");
    at.refused(422, "GET", "/v1/endpoints/shop/recent?x=1", "", "x");

    // Events.
    let event = |payload: u32| {
        json!({ "topic": "order.paid", "event": "published", "payload": payload }).to_string()
    };
    let (status, published) = at.ask("POST", "/v1/events", &event(1));
    assert_eq!((status, &published["messages"]), (200, &json!([])));
    let subscribes = json!({ "url": ok, "topics": ["order.*"] }).to_string();
    at.ask("PUT", "/v1/endpoints/subscribes", &subscribes);
    let (status, published) = at.ask("POST", "/v1/events", &event(1));
    assert_eq!(status, 202);
    assert_eq!(published["messages"][0]["endpoint"], "subscribes");
    at.refused(409, "POST", "/v1/events", &event(2), "another payload");
    at.refused(400, "POST", "/v1/events", "nonsense", "no JSON");
    at.refused(413, "POST", "/v1/events", &huge, "fewer");
    for (body, says) in [
        (json!({ "event": "e", "payload": 1 }), "topic"),
        (
            json!({ "event": "e", "topic": "a.*", "payload": 1 }),
            "no *",
        ),
        (
            json!({ "event": "e", "topic": "a", "endpoint": "shop", "payload": 1 }),
            "/v1/messages",
        ),
        (json!({ "event": "e", "topic": "a" }), "payload"),
    ] {
        at.refused(422, "POST", "/v1/events", &body.to_string(), says);
    }
    let two = format!("[{},{}]", event(1), event(2));
    let (_, problem) = at.ask("POST", "/v1/events", &two);
    assert_eq!(problem["index"], 1);

    // Versions: a change applies to the version that was read, or fails.
    let token = format!("authorization: Bearer {}\r\n", at.server.token);
    let (_, head, _) = at.server.raw("GET", "/v1/endpoints/shop", &token, "");
    let tag = |head: &str| {
        let tag = head.lines().find_map(|line| line.strip_prefix("etag: "));
        tag.unwrap().to_owned()
    };
    let first = tag(&head);
    let put = |at: &mut Setup, field: &str| {
        let fields = format!("{token}{field}\r\n");
        at.ask_as(&fields, "PUT", "/v1/endpoints/shop", &endpoint(&ok))
    };
    let (status, changed) = put(&mut at, &format!("if-match: {first}"));
    assert_eq!(status, 200);
    assert!(format!("\"{}\"", changed["revision"]) > first, "{changed}");
    for stale in [&format!("if-match: {first}")[..], "if-none-match: *"] {
        let (status, problem) = put(&mut at, stale);
        assert_eq!(
            (status, &problem["code"]),
            (412, &json!("precondition-failed"))
        );
    }
    assert_eq!(put(&mut at, "if-match: 7").0, 400);
    assert_eq!(put(&mut at, "if-match: *").0, 200);
    for (field, wanted) in [
        (format!("if-match: {first}"), 412),
        ("if-match: 7".to_owned(), 400),
    ] {
        let fields = format!("{token}{field}\r\n");
        let (status, _) = at.ask_as(&fields, "DELETE", "/v1/endpoints/shop?discard=true", "");
        assert_eq!(status, wanted, "{field}");
    }
    assert_eq!(
        at.ask("GET", "/v1/endpoints/shop", "").0,
        200,
        "it is there"
    );
    let (_, head, _) = at
        .server
        .raw("PUT", "/v1/endpoints/moved", &token, &endpoint(&ok));
    let fields = format!("{token}if-match: {}\r\n", tag(&head));
    let (status, deleted) = at.ask_as(&fields, "DELETE", "/v1/endpoints/moved", "");
    assert_eq!((status, &deleted["messages"]), (200, &json!(0)));

    // Signing keys are removed one by one, the last one only on request.
    let spec = json!({ "url": ok, "secrets": ["env:NEW", "env:OLD"] }).to_string();
    let (_, signed) = at.ask("PUT", "/v1/endpoints/signed", &spec);
    assert_eq!(signed["warnings"].as_array().map(Vec::len), Some(1));
    let key = |key: &str| format!("/v1/endpoints/signed/secrets/{key}");
    at.refused(422, "DELETE", &key("0"), "", "1 is the newest");
    at.refused(422, "DELETE", &key("x"), "", "1 is the newest");
    let of_none = "/v1/endpoints/no/secrets/96ad2ccd";
    at.refused(404, "DELETE", of_none, "", "no endpoint");
    // A repeated request would remove another key.
    at.refused(428, "DELETE", &key("2"), "", "fingerprint");
    for (field, wanted) in [
        (format!("if-match: {first}"), 412),
        ("if-match: *".to_owned(), 412),
        ("if-match: 7".to_owned(), 400),
    ] {
        let fields = format!("{token}{field}\r\n");
        let (status, _) = at.ask_as(&fields, "DELETE", &key("1"), "");
        assert_eq!(status, wanted, "{field}");
    }
    let remove = |at: &mut Setup, path: &str| {
        let endpoint = "/v1/endpoints/signed";
        let (_, head, _) = at.server.raw("GET", endpoint, &token, "");
        let fields = format!("{token}if-match: {}\r\n", tag(&head));
        at.ask_as(&fields, "DELETE", path, "")
    };
    assert_eq!(remove(&mut at, &key("3")).0, 404);
    let (_, left) = remove(&mut at, &key("2"));
    assert_eq!(left["endpoint"]["secrets"], json!(["env:NEW"]));
    let (status, last) = remove(&mut at, &key("1"));
    assert_eq!(status, 409);
    assert!(last.to_string().contains("?allow_unsigned=true"), "{last}");
    let (_, left) = remove(&mut at, &format!("{}?allow_unsigned=true", key("1")));
    assert_eq!(left["endpoint"]["secrets"], json!([]));

    // A signing key is added as the newest, once.
    let keys = "/v1/endpoints/signed/secrets";
    let secret = |key: &str| json!({ "secret": key }).to_string();
    for key in ["env:OLD", "env:NEW", "env:OLD"] {
        at.ask("POST", keys, &secret(key));
    }
    let (_, signed) = at.ask("GET", "/v1/endpoints/signed", "");
    assert_eq!(signed["endpoint"]["secrets"], json!(["env:NEW", "env:OLD"]));
    assert_eq!(signed["fingerprints"], json!([null, null]));
    let (_, signed) = at.ask("POST", keys, &secret(SECRET));
    assert_eq!(signed["fingerprints"], json!(["96ad2ccd", null, null]));
    // By its fingerprint a key is removed once, however often the request is sent.
    assert_eq!(at.ask("DELETE", &key("96ad2ccd"), "").0, 200);
    at.refused(404, "DELETE", &key("96ad2ccd"), "", "96ad2ccd");
    let (_, signed) = at.ask("GET", "/v1/endpoints/signed", "");
    assert_eq!(signed["endpoint"]["secrets"], json!(["env:NEW", "env:OLD"]));
    at.refused(400, "POST", keys, "nonsense", "no JSON");
    at.refused(413, "POST", keys, &huge, "fewer");
    at.refused(422, "POST", keys, &secret("hunter2"), "secret: ");
    let none = "/v1/endpoints/no/secrets";
    at.refused(404, "POST", none, &secret("env:A"), "no endpoint");
    let fields = format!("{token}if-match: {first}\r\n");
    assert_eq!(at.ask_as(&fields, "POST", keys, &secret("env:A")).0, 412);
    for number in 0..6 {
        at.ask("POST", keys, &secret(&format!("env:KEY_{number}")));
    }
    at.refused(422, "POST", keys, &secret("env:KEY_9"), "8 keys");

    // An endpoint with undelivered messages stays, unless they are discarded.
    let (_, held) = at.ask("POST", "/v1/messages", &message("bad", "e5"));
    let held = held["id"].as_str().unwrap().to_owned();
    at.refused(409, "DELETE", "/v1/endpoints/bad", "", "?discard=true");
    at.refused(
        422,
        "DELETE",
        "/v1/endpoints/bad?discard=maybe",
        "",
        "discard",
    );
    at.refused(404, "DELETE", "/v1/endpoints/no", "", "no endpoint");
    let (_, deleted) = at.ask("DELETE", "/v1/endpoints/bad?discard=true", "");
    assert_eq!(deleted["messages"], 2);
    at.refused(404, "GET", &format!("/v1/messages/{held}"), "", &held);
    at.refused(
        422,
        "POST",
        "/v1/messages",
        &message("bad", "e6"),
        "register it",
    );

    // Requests without a token, and with a wrong one.
    let paths = at.description["paths"].clone();
    for (path, operations) in paths.as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            if operation["security"] == json!([]) {
                continue;
            }
            let method = method.to_uppercase();
            let path = path.replace("{name}", "shop").replace("{id}", &id);
            for fields in [
                "",
                "authorization: Bearer relent_no\r\n",
                "cookie: relent_session=x\r\n",
            ] {
                assert_eq!(
                    at.ask_as(fields, &method, &path, "").0,
                    401,
                    "{method} {path}"
                );
            }
        }
    }

    // Nothing else is described. A failing store has its own test.
    let described: BTreeSet<(String, String)> = paths
        .as_object()
        .unwrap()
        .values()
        .flat_map(|operations| operations.as_object().unwrap().values())
        .flat_map(|operation| {
            let name = operation["operationId"].as_str().unwrap();
            let statuses = operation["responses"].as_object().unwrap().keys();
            statuses.map(move |status| (name.to_owned(), status.clone()))
        })
        .filter(|(_, status)| status != "503")
        .collect();
    let missing: Vec<_> = described.difference(&at.met).collect();
    assert!(missing.is_empty(), "described and never met: {missing:?}");
}

/// One client's change of keys is not undone by a concurrent change of another member.
#[test]
fn concurrent_endpoint_changes_do_not_undo_each_other() {
    let at = Setup::start();
    let ok = at.receiver.url("/ok");
    let (server, begun) = (&at.server, Instant::now());
    let put = |body: Value| {
        let (status, answer) = server.ask("PUT", "/v1/endpoints/shop", &body.to_string());
        assert!(status == 200 || status == 201, "{status}: {answer}");
        answer
    };
    put(json!({ "url": ok }));
    let mut round = 0;
    while round < 20 || begun.elapsed() < Duration::from_secs(1) {
        round += 1;
        let name = format!("env:KEY_{round}");
        std::thread::scope(|scope| {
            scope.spawn(|| put(json!({ "url": ok, "secrets": [name] })));
            for concurrency in 1..4 {
                let ok = &ok;
                scope.spawn(move || put(json!({ "url": ok, "concurrency": concurrency })));
            }
        });
        let (_, shown) = server.ask("GET", "/v1/endpoints/shop", "");
        assert_eq!(shown["endpoint"]["secrets"], json!([name]), "round {round}");
    }
}

/// Checks that all references have a target.
fn references(value: &Value, whole: &Value) {
    match value {
        Value::Object(members) => {
            if let Some(to) = members.get("$ref").and_then(Value::as_str) {
                assert!(whole.pointer(&to[1..]).is_some(), "{to}");
            }
            members
                .values()
                .for_each(|member| references(member, whole));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, whole)),
        _ => {}
    }
}

#[test]
fn a_payload_arrives_unchanged_and_signed_and_no_response_has_the_key() {
    let mut at = Setup::start();
    let url = at.receiver.url("/ok");
    let spec = json!({ "url": url, "secrets": [SECRET] }).to_string();
    let (_, registered) = at.ask("PUT", "/v1/endpoints/shop", &spec);
    assert_eq!(registered["endpoint"]["secrets"], json!(["encrypted"]));
    // Other changes keep the key, and an empty list removes it.
    let (_, changed) = at.ask("PUT", "/v1/endpoints/shop", &endpoint(&url));
    assert_eq!(changed["endpoint"]["secrets"], json!(["encrypted"]));
    for path in ["/v1/endpoints", "/v1/endpoints/shop"] {
        let (_, shown) = at.ask("GET", path, "");
        let shown = shown.to_string();
        assert!(
            !shown.contains("whsec_") && !shown.contains("encrypted:"),
            "{shown}"
        );
    }
    let database = std::fs::read(at.folder.path().join("relent-deliver.db-wal")).unwrap();
    let key = SECRET.as_bytes();
    assert!(!database.windows(key.len()).any(|window| window == key));

    let payload = "{ \"b\" : 1.50, \"a\":\"\\u00e9\" }";
    let body = format!(r#"{{"endpoint":"shop","event":"e","payload":{payload}}}"#);
    let (_, enqueued) = at.ask("POST", "/v1/messages", &body);
    at.server
        .message_is(enqueued["id"].as_str().unwrap(), "delivered");
    let seen = at.receiver.seen();
    assert_eq!((seen.len(), seen[0].body.as_str()), (1, payload));
    assert_eq!(seen[0].header("webhook-id"), enqueued["id"].as_str());
    assert_eq!(seen[0].header("content-type"), Some("application/json"));
    assert!(
        seen[0]
            .header("webhook-signature")
            .unwrap()
            .starts_with("v1,")
    );
    let spec = json!({ "url": url, "secrets": [] }).to_string();
    at.refused(
        422,
        "PUT",
        "/v1/endpoints/shop",
        &spec,
        "?allow_unsigned=true",
    );
    let (_, changed) = at.ask("PUT", "/v1/endpoints/shop?allow_unsigned=true", &spec);
    assert_eq!(changed["endpoint"]["secrets"], json!([]));
}

#[test]
fn the_metrics_endpoint_has_exactly_the_documented_metrics() {
    let mut at = Setup::start();
    let url = at.receiver.url("/ok");
    at.ask("PUT", "/v1/endpoints/shop", &endpoint(&url));
    let gone = at.receiver.url("/gone");
    at.ask("PUT", "/v1/endpoints/gone", &endpoint(&gone));
    let (_, sent) = at.ask("POST", "/v1/messages", &message("shop", "e"));
    let (_, dead) = at.ask("POST", "/v1/messages", &message("gone", "e"));
    at.server
        .message_is(sent["id"].as_str().unwrap(), "delivered");
    at.server.message_is(dead["id"].as_str().unwrap(), "dead");
    let (_, text) = at.ask("GET", "/metrics", "");
    let text = text.as_str().unwrap();
    for line in [
        "relent_outbox_messages{state=\"pending\"} 0",
        "relent_outbox_messages{state=\"dead\"} 1",
        "relent_outbox_attempts_total{result=\"acknowledged\"} 1",
        "relent_outbox_attempts_total{result=\"failed\"} 1",
        "relent_outbox_time_to_acknowledgement_seconds_count 1",
        "relent_outbox_dead_letters_total 1",
        "relent_outbox_endpoints_disabled 1",
        "relent_outbox_lag_seconds 0",
    ] {
        assert!(text.lines().any(|own| own == line), "{line} in\n{text}");
    }
    let described = |kind: &str| -> BTreeMap<&str, &str> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(kind));
        lines.filter_map(|line| line.split_once(' ')).collect()
    };
    let (help, types) = (described("# HELP "), described("# TYPE "));
    for metric in &METRICS {
        assert_eq!(help.get(metric.name), Some(&metric.meaning), "{text}");
        assert_eq!(types.get(metric.name), Some(&metric.kind.name()), "{text}");
    }
    assert_eq!(
        (types.len(), help.len()),
        (METRICS.len(), METRICS.len()),
        "{text}"
    );
    // Each value of a label exists before the first count.
    let is_counter = |metric: &&Metric| metric.kind == MetricKind::Counter;
    for metric in METRICS.iter().filter(is_counter) {
        let labels = LABELS
            .iter()
            .filter(|(name, _)| metric.labels.contains(name));
        for (name, value) in
            labels.flat_map(|(name, values)| values.iter().map(move |value| (name, value)))
        {
            let series = format!("{}{{{name}=\"{value}\"}} ", metric.name);
            assert!(text.contains(&series), "{series} in\n{text}");
        }
    }
}

#[test]
fn unknown_api_paths_return_a_problem_document() {
    let at = Setup::start();
    let token = format!("authorization: Bearer {}\r\n", at.server.token);
    for (method, path, status) in [
        ("GET", "/v1/nothing", 404),
        ("DELETE", "/v1/messages", 405),
        ("POST", "/v1/summary", 405),
    ] {
        let (got, head, body) = at.server.raw(method, path, &token, "");
        assert_eq!(got, status, "{method} {path}");
        assert!(head.contains("application/problem+json"), "{head}");
        assert!(body.contains("/openapi.json"), "{body}");
    }
}

/// Such as one that another program has damaged. A precondition would have to read it.
#[test]
fn an_endpoint_that_cannot_be_read_can_be_deleted() {
    let mut at = Setup::start();
    let url = at.receiver.url("/ok");
    at.ask("PUT", "/v1/endpoints/shop", &endpoint(&url));
    let file = at.folder.path().join("relent-deliver.db");
    let other = rusqlite::Connection::open(file).unwrap();
    let spoil = "UPDATE relent_endpoint_1 SET spec = '{}'";
    until("the endpoint is damaged", || other.execute(spoil, []).ok());
    let (status, deleted) = at.ask("DELETE", "/v1/endpoints/shop", "");
    assert_eq!(status, 200, "{deleted}");
}

/// If the store does not respond, the request may be repeated, and takes effect once.
#[test]
fn a_failing_store_is_reported_and_the_request_may_be_repeated() {
    let mut at = Setup::start();
    let url = at.receiver.url("/ok");
    at.ask("PUT", "/v1/endpoints/shop", &endpoint(&url));
    let file = at.folder.path().join("relent-deliver.db");
    let other = rusqlite::Connection::open(file).unwrap();
    // Locks the database between two writes of the worker.
    until("the database is ours", || {
        other.execute_batch("BEGIN IMMEDIATE").ok()
    });
    let (status, problem) = at.ask("POST", "/v1/messages", &message("shop", "e"));
    assert_eq!(status, 503, "{problem}");
    let (_, text) = at.ask("GET", "/metrics", "");
    let counted = "relent_outbox_store_errors_total{operation=\"api\"} 1\n";
    assert!(text.as_str().unwrap().contains(counted), "{text}");
    let token = format!("authorization: Bearer {}\r\n", at.server.token);
    let (_, head, _) = at
        .server
        .raw("POST", "/v1/messages", &token, &message("shop", "e"));
    assert!(head.contains("retry-after: 1"), "{head}");
    other.execute_batch("ROLLBACK").unwrap();
    // Writers that waited for the database go first.
    let (status, sent) = until("the store is back", || {
        let answer = at.ask("POST", "/v1/messages", &message("shop", "e"));
        (answer.0 != 503).then_some(answer)
    });
    assert_eq!((status, &sent["duplicate"]), (202, &json!(false)));
    at.server
        .message_is(sent["id"].as_str().unwrap(), "delivered");
    assert_eq!(at.receiver.seen().len(), 1);
}

/// A client without a token cannot make the server buffer much.
#[test]
fn an_oversized_form_is_refused() {
    let at = Setup::start();
    let form = "content-type: application/x-www-form-urlencoded\r\n";
    let large = format!("token={}&x={}", at.server.token, "x".repeat(70_000));
    assert_eq!(at.server.raw("POST", "/login", form, &large).0, 401);
    let (status, _, _) = at.server.raw(
        "POST",
        "/login",
        form,
        &format!("token={}", at.server.token),
    );
    assert_eq!(status, 303);
}
