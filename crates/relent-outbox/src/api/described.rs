//! Checks that the handlers accept and refuse calls as OpenAPI describes, by calls generated from the description.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

use axum::body::{Body, to_bytes};
use axum::http::Request;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};
use tower_service::Service;

use super::*;
use crate::secrets::Secrets;
use crate::store::Sqlite;

/// A generated call: a value for each parameter, and a body.
#[derive(Clone, Debug)]
struct Call {
    parameters: Vec<(Value, Option<Value>)>,
    body: Option<Value>,
}

struct Described {
    description: Value,
    router: Router,
    token: String,
    _folder: tempfile::TempDir,
}

impl Described {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(folder.path().join("outbox.db")).unwrap();
        let token = Token::new();
        let key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        let secrets = Secrets::with_key(key).unwrap();
        let api = Api::new(store, secrets, Token::new())
            .content_token(token.clone())
            .metrics(String::new);
        Self {
            description: serde_json::from_str(OPENAPI).unwrap(),
            router: api.into_router(),
            token: token.as_str().to_owned(),
            _folder: folder,
        }
    }

    fn resolved<'v>(&'v self, value: &'v Value) -> &'v Value {
        match value["$ref"].as_str() {
            Some(to) => self.resolved(self.description.pointer(&to[1..]).unwrap()),
            None => value,
        }
    }

    /// A valid value: the example of the schema, or its first option.
    fn example(&self, schema: &Value) -> Value {
        let schema = self.resolved(schema);
        let first = |of: &Value| of.get(0).cloned();
        let example = first(&schema["examples"]).or_else(|| first(&schema["enum"]));
        if let Some(example) = example.or_else(|| schema.get("default").cloned()) {
            return example;
        }
        match (first(&schema["oneOf"]), schema["type"].as_str()) {
            (Some(option), _) => self.example(&option),
            (None, Some("array")) => json!([self.example(&schema["items"])]),
            (None, Some("boolean")) => json!(true),
            (None, Some("object")) => {
                let required = schema["required"].as_array().into_iter().flatten();
                let member = |name: &Value| {
                    let name = name.as_str().unwrap();
                    (name.to_owned(), self.example(&schema["properties"][name]))
                };
                required.map(member).collect::<Map<_, _>>().into()
            }
            _ => panic!("no example: {schema}"),
        }
    }

    /// Valid values at the limits of the schema.
    fn edges(&self, schema: &Value) -> Vec<Value> {
        let schema = self.resolved(schema);
        let mut edges: Vec<Value> = schema["enum"].as_array().cloned().unwrap_or_default();
        edges.extend(schema["examples"].as_array().cloned().unwrap_or_default());
        edges.extend(
            [&schema["minimum"], &schema["maximum"]]
                .into_iter()
                .cloned(),
        );
        // For plain names, each character counts as one.
        if schema["pattern"]
            .as_str()
            .is_some_and(|pattern| pattern.contains("\\u0000"))
            && let Some(length) = schema["maxLength"].as_u64()
        {
            edges.push(json!("\u{1f600}".repeat(length as usize)));
            edges.push(json!("'%_\\\"\u{202e}<b>"));
        }
        if nullable(schema) {
            edges.push(Value::Null);
        }
        edges.retain(|edge| !edge.is_null() || nullable(schema));
        edges
    }

    /// Invalid values.
    fn wrong(&self, schema: &Value, in_text: bool) -> Vec<Value> {
        let schema = self.resolved(schema);
        let mut wrong = Vec::new();
        let kind = schema["type"].as_str().or(schema["type"][0].as_str());
        if let Some(most) = schema["maxLength"].as_u64() {
            wrong.push(json!("a".repeat(most as usize + 1)));
        }
        if schema["minLength"].as_u64() == Some(1) && !in_text {
            wrong.push(json!(""));
        }
        if schema["pattern"].is_string() {
            // No pattern allows a NUL.
            wrong.push(json!("a\0b"));
        }
        let number = |key: &str| schema[key].as_i64();
        if let Some(least) = number("minimum").and_then(|least| least.checked_sub(1)) {
            wrong.push(json!(least));
        }
        if let Some(most) = number("maximum") {
            wrong.push(json!(most as u64 + 1));
        }
        if schema["enum"].is_array() {
            wrong.push(json!("something else"));
        }
        if let Some(most) = schema["maxItems"].as_u64() {
            let item = self.example(&schema["items"]);
            wrong.push(vec![item; most as usize + 1].into());
        }
        if schema["items"].is_object() {
            let items = self.wrong(&schema["items"], false);
            wrong.extend(items.into_iter().map(|item| json!([item])));
        }
        if schema["additionalProperties"].is_object() {
            let values = self.wrong(&schema["additionalProperties"], false);
            wrong.extend(values.into_iter().map(|value| json!({ "x-shop": value })));
            for name in [
                "",
                "a b",
                "host",
                "content-length",
                "webhook-id",
                "te",
                "X-Shop",
            ] {
                wrong.push(json!({ name: "a" }));
            }
            let most = schema["maxProperties"].as_u64().unwrap();
            let many = (0..=most).map(|number| (format!("x-{number}"), json!("a")));
            wrong.push(many.collect::<Map<_, _>>().into());
        }
        if !in_text {
            // In a query every value is a text.
            let others = [
                json!(1.5),
                json!("text"),
                json!(true),
                json!([]),
                json!({}),
                json!(null),
            ];
            let allowed = |value: &Value| match kind {
                None => true,
                Some("string") => value.is_string(),
                Some("integer") => value.is_i64(),
                Some("boolean") => value.is_boolean(),
                Some("array") => value.is_array(),
                Some("object") => value.is_object(),
                Some(other) => panic!("{other}"),
            };
            let is_null_allowed = nullable(schema);
            wrong.extend(
                others
                    .into_iter()
                    .filter(|value| !(allowed(value) || value.is_null() && is_null_allowed)),
            );
        } else if matches!(kind, Some("integer" | "boolean")) {
            wrong.extend([json!("text"), json!(""), json!(1.5)]);
        }
        wrong
    }

    fn parameters(&self, operation: &Value) -> Vec<Value> {
        let listed = operation["parameters"].as_array().into_iter().flatten();
        listed.map(|one| self.resolved(one).clone()).collect()
    }

    async fn make(&mut self, method: &str, path: &str, call: &Call) -> (u16, String) {
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
        let (mut path, mut query) = (path.to_owned(), String::new());
        let mut request = Request::builder()
            .method(method.to_uppercase().as_str())
            .header("authorization", format!("Bearer {}", self.token));
        for (parameter, value) in &call.parameters {
            let Some(value) = value.as_ref().map(text) else {
                continue;
            };
            let name = parameter["name"].as_str().unwrap();
            match parameter["in"].as_str().unwrap() {
                "path" => path = path.replace(&format!("{{{name}}}"), &encoded(&value)),
                "query" => query += &format!("{name}={}&", encoded(&value)),
                "header" => request = request.header(name, value),
                other => panic!("{other}"),
            }
        }
        let body = call.body.as_ref().map_or(String::new(), Value::to_string);
        let request = request
            .uri(format!("{path}?{query}"))
            .body(Body::from(body));
        let response = self.router.call(request.unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    /// Creates the endpoint and message that the examples name.
    async fn fill(&mut self) -> String {
        let url = json!({ "url": "https://shop.example/notify", "topics": ["*"] });
        for query in ["", "?tenant=acme"] {
            let path = format!("/v1/endpoints/shop{query}");
            let (status, said) = self.put(&path, url.clone()).await;
            assert!(status < 300, "{said}");
        }
        let message = json!({ "endpoint": "shop", "event": "first", "payload": null });
        let (_, said) = self
            .make(
                "post",
                "/v1/messages",
                &Call {
                    parameters: Vec::new(),
                    body: Some(message),
                },
            )
            .await;
        let said: Value = serde_json::from_str(&said).unwrap();
        said["id"].as_str().unwrap().to_owned()
    }

    async fn put(&mut self, path: &str, body: Value) -> (u16, String) {
        let request = Request::builder()
            .method("PUT")
            .uri(path)
            .header("authorization", format!("Bearer {}", self.token))
            .body(Body::from(body.to_string()));
        let response = self.router.call(request.unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8_lossy(&body).into_owned())
    }
}

fn nullable(schema: &Value) -> bool {
    schema["type"]
        .as_array()
        .is_some_and(|kinds| kinds.contains(&json!("null")))
}

/// Valid calls by the examples and at their limits, and invalid calls.
fn calls(at: &Described, operation: &Value, id: &str) -> (Vec<Call>, Vec<Call>) {
    let parameters = at.parameters(operation);
    let given = |parameter: &Value| match parameter["name"].as_str() {
        Some("id") => Some(json!(id)),
        // Preconditions and selectors would change the subject of the call.
        Some("If-Match" | "If-None-Match" | "tenant" | "discard") => None,
        Some(name) if name.starts_with("after") => None,
        _ => Some(at.example(&parameter["schema"])),
    };
    let media = operation.pointer("/requestBody/content/application~1json/schema");
    let base = Call {
        parameters: parameters
            .iter()
            .map(|one| (one.clone(), given(one)))
            .collect(),
        body: media.map(|schema| at.example(schema)),
    };
    let (mut right, mut wrong) = (vec![base.clone()], Vec::new());
    for (place, parameter) in parameters.iter().enumerate() {
        let name = parameter["name"].as_str().unwrap();
        if parameter["in"] == "header" || name.starts_with("after") {
            continue;
        }
        let with = |value| {
            let mut call = base.clone();
            call.parameters[place].1 = Some(value);
            call
        };
        let schema = &parameter["schema"];
        // An invalid identifier gives 404, not 422.
        if name != "id" {
            right.extend(at.edges(schema).into_iter().map(with));
            let bad = at.wrong(schema, true);
            wrong.extend(bad.into_iter().filter(|value| value != "").map(with));
        }
    }
    let Some(schema) = media.map(|schema| at.resolved(schema)) else {
        return (right, wrong);
    };
    let one = match schema["oneOf"].get(0) {
        Some(option) if option["$ref"].is_string() => at.resolved(option),
        _ => schema,
    };
    let body = at.example(one);
    let with = |value: Value| Call {
        body: Some(value),
        ..base.clone()
    };
    if schema["oneOf"][1]["type"] == "array" {
        let mut many = Vec::new();
        for number in 0..3 {
            let mut body = body.clone();
            body["event"] = json!(format!("of an array {number}"));
            many.push(body);
        }
        right.push(with(many.into()));
        wrong.push(with(json!([])));
        wrong.push(with(vec![body.clone(); 1001].into()));
    }
    wrong.push(with(json!("text")));
    let mut more = body.clone();
    more["colour"] = json!("red");
    wrong.push(with(more));
    for required in one["required"].as_array().into_iter().flatten() {
        let mut less = body.clone();
        less.as_object_mut()
            .unwrap()
            .remove(required.as_str().unwrap());
        wrong.push(with(less));
    }
    let exclusive: Vec<_> = one["oneOf"].as_array().into_iter().flatten().collect();
    let is_exclusive = |name: &str| exclusive.iter().any(|option| option["required"][0] == name);
    for (name, schema) in one["properties"].as_object().unwrap() {
        let set = |value: Value| {
            let mut body = body.clone();
            if is_exclusive(name) {
                body.as_object_mut().unwrap().remove("payload");
            }
            // A new event for each call, so that calls do not conflict.
            if body["event"].is_string() && one["required"].is_array() {
                body["event"] = json!(uuid::Uuid::new_v4().to_string());
            }
            body[name] = value;
            with(body)
        };
        // With another tenant or endpoint, the call addresses an unknown endpoint.
        let found = !["tenant", "endpoint"].contains(&name.as_str()) || !one["required"].is_array();
        if found {
            right.extend(at.edges(schema).into_iter().map(set));
        }
        wrong.extend(at.wrong(schema, false).into_iter().map(set));
        if is_exclusive(name) && name != "payload" {
            let mut both = body.clone();
            both[name] = at.example(schema);
            wrong.push(with(both));
        }
    }
    (right, wrong)
}

#[tokio::test]
async fn handlers_accept_and_refuse_calls_as_openapi_describes() {
    let mut at = Described::open().await;
    let paths = at.description["paths"].as_object().unwrap().clone();
    let (mut accepted, mut refused, mut failed) = (0, 0, Vec::new());
    for (path, operations) in &paths {
        for (method, operation) in operations.as_object().unwrap() {
            let id = at.fill().await;
            let documented = operation["responses"].as_object().unwrap();
            let (right, wrong) = calls(&at, operation, &id);
            for (is_right, call) in right
                .into_iter()
                .map(|call| (true, call))
                .chain(wrong.into_iter().map(|call| (false, call)))
            {
                let (status, said) = at.make(method, path, &call).await;
                let is_refused = matches!(status, 400 | 422);
                let fits = match is_right {
                    true => !is_refused && status != 503,
                    // A name that nothing can have gives 404.
                    false => is_refused || status == 404,
                };
                accepted += u32::from(is_right);
                refused += u32::from(!is_right);
                if !fits || !documented.contains_key(&status.to_string()) {
                    let given: Vec<_> = call
                        .parameters
                        .iter()
                        .map(|(parameter, value)| (&parameter["name"], value))
                        .collect();
                    let body = call.body.map(|body| body.to_string());
                    failed.push(format!(
                        "{method} {path} {given:.300?} {body:.300?} is allowed: {is_right}; {status} {said:.300}"
                    ));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    // Covers each operation, and most of the members of their input.
    assert!(accepted > 100 && refused > 200, "{accepted} {refused}");
}
