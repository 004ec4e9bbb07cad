//! Tests that the JSON Schemas of policy, scenario and service files agree with their parsers.

use std::collections::BTreeSet;

use relent::Policy;
use relent::policy::PolicyFile;
use relent_sim::Scenario;
use relent_sim::advise::Description;
use serde_json::{Value, json};

use crate::documents::{root, with_suffix};
use crate::generated::{is_recorded, stop_reasons};
use crate::json_schema::Schema;
use crate::support::run;

/// A key that no format has.
const UNKNOWN: &str = "zzz";

/// A format of files: its schema, its parser, and files that use every key.
struct Format {
    name: &'static str,
    text: &'static str,
    /// The parsed value as text, or the error.
    parse: fn(&Value) -> Result<String, String>,
    /// The error of serde, which lists the known keys.
    serde_error: fn(Value) -> Option<String>,
    examples: &'static [&'static str],
}

fn toml(value: &Value) -> String {
    toml::to_string(value).unwrap()
}

const FORMATS: [Format; 3] = [
    Format {
        name: "policy",
        text: PolicyFile::SCHEMA,
        parse: |value| {
            let file = PolicyFile::parse(&value.to_string());
            file.map(|file| format!("{file:?}"))
                .map_err(|error| error.to_string())
        },
        serde_error: |value| {
            let error = serde_json::from_value::<Policy>(value).err()?;
            Some(error.to_string())
        },
        examples: &POLICIES,
    },
    Format {
        name: "scenario",
        text: Scenario::SCHEMA,
        parse: |value| {
            let scenario = Scenario::parse(&toml(value));
            scenario
                .map(|scenario| format!("{scenario:?}"))
                .map_err(|error| error.to_string())
        },
        serde_error: |value| {
            let error = serde_json::from_value::<Scenario>(value).err()?;
            Some(error.to_string())
        },
        examples: &SCENARIOS,
    },
    Format {
        name: "service",
        text: Description::SCHEMA,
        parse: |value| {
            let service = Description::parse(&toml(value));
            service
                .map(|service| format!("{service:?}"))
                .map_err(|error| error.to_string())
        },
        serde_error: |value| {
            let error = serde_json::from_value::<Description>(value).err()?;
            Some(error.to_string())
        },
        examples: &SERVICES,
    },
];

const POLICIES: [&str; 12] = [
    r#"
    description = "d"
    source = "s"
    max_retries = 5
    max_elapsed = "10m"
    deadline = "20m"
    attempt_timeout = "5s"
    min_attempt_time = "1s"
    final_attempt_before_deadline = true
    max_delay = "30s"
    ceiling = "after_jitter"
    jitter = "equal"
    throttled_initial = "2s"
    hint = "clamp"
    max_hint = "1m"
    retry_after_jitter = 0.5
    retry_on = ["5xx", 429, "timeout", "grpc:unavailable", "exit:1-9"]
    stop_on = [501]
    not_processed = [503]
    assume_repeatable = true
    retries = "off"
    backoff.exponential = { initial = "1s", factor = 3 }
    throttle = { factor = 3, window = "1m" }
    rate_limit = { limit = 50, burst = 9, adaptive = true }
    [[rules]]
    on = ["timeout"]
    max_retries = 1
    attempt_timeout = "9s"
    max_delay = "9s"
    jitter = "proportional:0.5"
    backoff.constant = { delay = "1s" }
    [budget]
    ratio = 0.2
    success = 0.1
    initial_tokens = 1
    per_second = 1
    capacity = 50
    cost = 2
    throttled_cost = 2
    timeout_cost = 2
    min_tokens = 1
    overload_reserve = 1
    queue_when_exhausted = true
    refund_on_success = true
    charge_failures = true
    [circuit_breaker]
    first_probe = "1s"
    max_probe = "9s"
    max_queue_time = "1m"
    max_queue_time_without_deadline = "1m"
    max_queue_time_without_response = "1m"
    [hedge]
    percentile = 0.9
    least = "2ms"
    most = "9s"
    samples = 500
    max_hedges = 2
    "#,
    "backoff = 'none'\nhedge.delay = '50ms'\nrate_limit = { limit = 5 }",
    "max_retries = 'unlimited'\nmax_elapsed = '1h 30m'\nbackoff.linear = { initial = '1s', step = '1s' }",
    "jitter = 'additive:1ms..1s'\nbackoff.fibonacci = { initial = '.5s' }",
    "backoff.decorrelated = { initial = '1s', factor = 2 }",
    "backoff.slotted = { slot = '51.2us', exponent_limit = 5 }",
    "backoff.schedule = { delays = ['1s', '0'] }",
    "backoff.elapsed = { initial = '1s', fraction = 0.1 }",
    "backoff.chain = [{ retries = 3, backoff = 'none' }, { backoff.constant = { delay = '1s' } }]",
    "backoff.constant = { delay = '1s' }",
    "rate_limit = { adaptive = true }\nbackoff = 'none'",
    "[policies.a]\nbackoff = 'none'\n[policies.b]\nbackoff.constant = { delay = '1s' }",
];

const SCENARIOS: [&str; 12] = [
    r#"
    description = "d"
    [clients]
    arrivals.poisson = { rate = 10, for = "60s" }
    processes = 4
    attempt_timeout = "2s"
    deadline = "9s"
    clock_skew = "1s"
    destination = "node"
    repeatable = false
    backlog = { requests = 5, at = "1s", over = "2s" }
    restarts = [{ at = "1s", over = "2s", processes = [1, 0] }]
    [[clients.classes]]
    name = "zzz"
    share = 2
    cost = 3
    time = { lognormal = 1 }
    deadline = "3s"
    attempt_timeout = "1s"
    [network]
    one_way = "2ms"
    deviation = "1ms"
    loss = 0.1
    [service]
    model = "queue"
    capacity = 100
    nodes = 3
    balancer = "random"
    sticky = true
    workers = 2
    time = "constant"
    queue = "100ms"
    cancellation = true
    reject_cost = 0.1
    failures = 0.1
    fast_failures = { every = 9 }
    status = 500
    retry_after = "1s"
    shedder = { target = "30ms", interval = "200ms", in_flight = 9 }
    [[outages]]
    at = "1s"
    for = "1s"
    effect = { brownout = 0.5 }
    every = "2s"
    times = 3
    rolling = true
    classes = ["zzz"]
    [[outages]]
    at = "1s"
    for = "1s"
    effect = "restart"
    nodes = [1]
    "#,
    r#"
    clients.arrivals.herd = { clients = 9 }
    chain = { layers = 2, mark = true, hears = "deadline" }
    service.queue = 9
    service.failures_as = "reset"
    service.limiter = { rate = 9, burst = 2, retry_after = "slots", format = "date", horizon = "1m", grace = "1s" }
    "#,
    "clients.arrivals.closed = { clients = 2, think = '1s', for = '9s' }\nservice.fast_failures = 0.1",
    "clients.arrivals.bursts = { rate = 2, on = '1s', off = '1s', idle = 1, for = '9s' }\n\
     outages = [{ at = '1s', for = '1s', effect = { failures = 0.5 } }]",
    "clients.arrivals.curve = { points = [{ at = '0s', rate = 1 }, { at = '1s', rate = 2 }], for = '9s' }\n\
     outages = [{ at = '1s', for = '1s', effect = { loss = 0.5 } }]",
    "clients.arrivals.wave = { rate = 1, swing = 0.5, period = '2s', for = '9s' }\n\
     outages = [{ at = '1s', for = '1s', effect = { fast_failures = { every_first = 5 } } }]",
    "clients.arrivals.poisson = { rate = 1, for = '9s' }\nservice.model.job = { median = '1s', sigma = 1 }",
    "clients.arrivals.poisson = { rate = 1, for = '9s' }\nservice.model = 'row'",
    "clients.arrivals.saturated = { clients = 2, for = '1s' }\n\
     service.model.medium = { slot = '16us', rate = 3e6, frame = 48, overhead = '1us', collision = '9us', access = 'share' }",
    "clients.arrivals.saturated = { clients = 2, for = '1s' }\n\
     service.model.medium = { slot = '16us', rate = 3e6, frame = 48, access = { window = 32 } }",
    "clients.arrivals.herd = { clients = 9 }\nservice.limiter = { rate = 9, retry_after = '1s' }\n\
     network.one_way = '2ms'\nchain.layers = 2",
    "clients.arrivals.herd = { clients = 9 }\nclients.classes = [{ name = 'a', share = 1 }]\nservice.nodes = 2",
];

const SERVICES: [&str; 2] = [
    r#"
    name = "orders"
    rate = 80
    capacity = 100
    nodes = 2
    processes = 4
    deadline = "9s"
    repeatable = true
    latency = { p50 = "1ms", p75 = "2ms", p90 = "3ms", p95 = "4ms", p99 = "5ms", p999 = "6ms" }
    failure = { share = 0.1, status = 500, retry_after = "1s", outage = "10s" }
    "#,
    "rate = 8\nconcurrency = 9\nprocesses = 1\ndeadline = '1s'\nrepeatable = false",
];

/// A table in an example: its place, and the part of the schema for it.
type Place<'s> = (String, &'s Value);

/// Finds the tables of a value whose keys the schema lists.
fn tables<'s>(schema: &'s Schema, part: &'s Value, value: &Value, at: &str) -> Vec<Place<'s>> {
    let mut found = Vec::new();
    if let Some(reference) = part.get("$ref") {
        found.extend(tables(schema, schema.target(reference), value, at));
    }
    for part in part["anyOf"].as_array().into_iter().flatten() {
        if schema.check_part(part, value, at).is_ok() {
            found.extend(tables(schema, part, value, at));
        }
    }
    if value.is_object() && part["additionalProperties"] == json!(false) {
        found.push((at.to_owned(), part));
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        let other = part["additionalProperties"].is_object();
        let other = other.then_some(&part["additionalProperties"]);
        if let Some(part) = part["properties"].get(key).or(other) {
            found.extend(tables(schema, part, value, &format!("{at}/{key}")));
        }
    }
    if let Some(part) = part.get("items") {
        for (index, value) in value.as_array().into_iter().flatten().enumerate() {
            found.extend(tables(schema, part, value, &format!("{at}/{index}")));
        }
    }
    found
}

/// The number of tables with listed keys in a schema.
fn table_count(part: &Value) -> usize {
    let own = usize::from(part.get("additionalProperties") == Some(&json!(false)));
    let inner: usize = match part {
        Value::Object(parts) => parts.values().map(table_count).sum(),
        Value::Array(parts) => parts.iter().map(table_count).sum(),
        _ => 0,
    };
    own + inner
}

impl Format {
    fn schema(&self) -> Schema {
        Schema::parse(self.text)
    }

    fn examples(&self) -> Vec<Value> {
        let parse = |text: &&str| toml::from_str(text).unwrap();
        self.examples.iter().map(parse).collect()
    }

    /// Calls `each` with every table of every example. Checks that the examples use every table of the schema.
    fn each_table(&self, mut each: impl FnMut(&Schema, &Value, &str, &Value)) {
        let schema = self.schema();
        let mut used: Vec<&Value> = Vec::new();
        for example in &self.examples() {
            for (at, part) in tables(&schema, &schema.root, example, "") {
                each(&schema, example, &at, part);
                if !used.iter().any(|known| std::ptr::eq(*known, part)) {
                    used.push(part);
                }
            }
        }
        assert_eq!(used.len(), table_count(&schema.root), "{}", self.name);
    }
}

/// The example with a change of the table at this place.
fn changed(example: &Value, at: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut value = example.clone();
    change(value.pointer_mut(at).unwrap());
    value
}

/// The names that an error of serde lists: "expected one of `a`, `b`".
fn listed(error: &str) -> BTreeSet<String> {
    let (_, names) = error
        .split_once("expected")
        .unwrap_or_else(|| panic!("{error}"));
    let names = names.split('`').skip(1).step_by(2);
    names.map(str::to_owned).collect()
}

fn property_names(part: &Value) -> BTreeSet<String> {
    part["properties"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect()
}

#[test]
fn each_schema_lists_exactly_the_keys_of_its_parser() {
    for format in FORMATS {
        format.each_table(|schema, example, at, part| {
            let known = property_names(part);
            // A table of one key, such as a backoff.
            let is_choice = part["maxProperties"] == json!(1);
            let misspelt = changed(example, at, |table| match is_choice {
                true => *table = json!({ UNKNOWN: {} }),
                false => table[UNKNOWN] = json!(1),
            });
            assert!(schema.check(&misspelt).is_err(), "{misspelt}");
            assert!((format.parse)(&misspelt).is_err(), "{misspelt}");
            if example.get("policies").is_some() {
                return;
            }
            let error = (format.serde_error)(misspelt).unwrap();
            let accepted = listed(&error);
            let missing: Vec<_> = known.difference(&accepted).collect();
            assert!(
                missing.is_empty(),
                "{}{at}: {missing:?}: {error}",
                format.name
            );
            for word in accepted.difference(&known) {
                let with_word = changed(example, at, |table| *table = json!(word));
                let is_word = is_choice && schema.check(&with_word).is_ok();
                // A chain within a chain is a known key, and refused.
                let chain = changed(example, at, |table| {
                    *table = json!({ word.as_str(): [{ "backoff": "none" }] });
                });
                let is_refused = word == "chain" && (format.parse)(&chain).is_err();
                let place = format!("{}{at}", format.name);
                assert!(is_word || is_refused, "{place}: the schema lacks {word}");
            }
        });
    }
}

#[test]
fn each_example_uses_every_key_of_each_schema() {
    for format in FORMATS {
        let (mut known, mut used) = (BTreeSet::new(), BTreeSet::new());
        format.each_table(|_, example, at, part| {
            let name = |key: &String| format!("{}: {key}", part["description"]);
            known.extend(property_names(part).iter().map(name));
            let table = example.pointer(at).unwrap().as_object().unwrap();
            used.extend(table.keys().map(name));
        });
        let unused: Vec<_> = known.difference(&used).collect();
        assert!(unused.is_empty(), "{}: {unused:#?}", format.name);
    }
}

/// The bounds of a number in the schema, each moved outside.
fn outside(schema: &Schema, part: &Value) -> Vec<Value> {
    let moved = |bound: &Value, below: bool| match bound.as_i64() {
        Some(bound) if below => json!(bound - 1),
        Some(bound) => json!(bound + 1),
        None if below => json!(bound.as_f64().unwrap() / 2.0),
        None => json!(bound.as_f64().unwrap() * 2.0),
    };
    let mut values = Vec::new();
    values.extend(part.get("minimum").map(|bound| moved(bound, true)));
    values.extend(part.get("maximum").map(|bound| moved(bound, false)));
    values.extend(part.get("exclusiveMinimum").cloned());
    if let Some(reference) = part.get("$ref") {
        values.extend(outside(schema, schema.target(reference)));
    }
    for part in part["anyOf"].as_array().into_iter().flatten() {
        values.extend(outside(schema, part));
    }
    values
}

#[test]
fn schema_and_parser_refuse_wrong_types_and_values_out_of_range() {
    let (mut ranges, mut types) = (0, 0);
    for format in FORMATS {
        format.each_table(|schema, example, at, part| {
            for (key, part) in part["properties"].as_object().unwrap() {
                if example.pointer(at).unwrap().get(key).is_none() {
                    continue;
                }
                let with = |value: Value| changed(example, at, |table| table[key.as_str()] = value);
                let place = format!("{}{at}/{key}", format.name);
                let refused = |value: &Value| {
                    let value = with(value.clone());
                    let by_schema = schema.check(&value).is_err();
                    let by_parser = (format.parse)(&value).is_err();
                    assert!(
                        by_parser || !by_schema,
                        "{place}: only the schema refuses {value}"
                    );
                    (by_schema, by_parser)
                };
                for value in outside(schema, part) {
                    assert_eq!(refused(&value), (true, true), "{place} = {value}");
                    ranges += 1;
                }
                let unknown = json!(UNKNOWN);
                let (table, list) = (json!({ UNKNOWN: 1 }), json!([{ UNKNOWN: 1 }]));
                for value in [table, list, unknown] {
                    let (schema, parser) = refused(&value);
                    assert_eq!(schema, parser, "{place} = {value}");
                    types += usize::from(parser);
                }
                for value in [json!(true), json!(7), json!(1.5), json!("0s")] {
                    refused(&value);
                }
                for value in [json!(-1), json!("1 parsec")] {
                    let (schema, parser) = refused(&value);
                    let is_text = part["type"] == json!("string");
                    assert!(is_text || (schema && parser), "{place} = {value}");
                }
            }
        });
    }
    assert!(ranges > 150 && types > 400, "{ranges} {types}");
}

#[test]
fn schema_and_parser_require_the_same_keys() {
    for format in FORMATS {
        format.each_table(|schema, example, at, _| {
            let table = example.pointer(at).unwrap().as_object().unwrap();
            for key in table.keys() {
                let without = changed(example, at, |table| {
                    table.as_object_mut().unwrap().remove(key);
                });
                let error = (format.parse)(&without).err();
                let place = format!("{}{at}/{key}", format.name);
                if schema.check(&without).is_err() {
                    assert!(error.is_some(), "{place}: only the schema requires it");
                } else {
                    let error = error.unwrap_or_default();
                    assert!(!error.contains("missing"), "{place}: {error}");
                }
            }
        });
    }
}

/// A key with its default has the same meaning as an absent key.
#[test]
fn the_defaults_of_each_schema_are_those_of_its_parser() {
    for format in FORMATS {
        let (mut with_default, mut compared) = (BTreeSet::new(), BTreeSet::new());
        format.each_table(|schema, example, at, part| {
            for (key, property) in part["properties"].as_object().unwrap() {
                let Some(default) = property.get("default") else {
                    continue;
                };
                let name = format!("{}: {key}", part["description"]);
                with_default.insert(name.clone());
                let present = changed(example, at, |table| table[key.as_str()] = default.clone());
                let absent = changed(example, at, |table| {
                    table.as_object_mut().unwrap().remove(key);
                });
                if schema.check(&present).is_err() || schema.check(&absent).is_err() {
                    continue;
                }
                if let (Ok(present), Ok(absent)) =
                    ((format.parse)(&present), (format.parse)(&absent))
                {
                    assert_eq!(present, absent, "{}{at}/{key}", format.name);
                    compared.insert(name);
                }
            }
        });
        let missing: Vec<_> = with_default.difference(&compared).collect();
        assert!(missing.is_empty(), "{}: {missing:#?}", format.name);
    }
}

#[test]
fn each_schema_accepts_the_examples_presets_and_scenarios() {
    for format in FORMATS {
        for example in format.examples() {
            format.schema().check(&example).unwrap();
            (format.parse)(&example).unwrap();
        }
    }
    let accept = |schema: &Schema, text: &str, name: &str| {
        let value = toml::from_str(text).unwrap();
        schema
            .check(&value)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    };
    let schema = Schema::parse(PolicyFile::SCHEMA);
    for preset in relent::presets::all() {
        accept(&schema, preset.text, preset.name);
    }
    let schema = Schema::parse(Scenario::SCHEMA);
    for scenario in relent_sim::scenarios::all() {
        accept(&schema, scenario.text, scenario.name);
    }
    for folder in ["found", "everyday"] {
        for file in with_suffix(&root().join("scenarios").join(folder), ".toml") {
            accept(
                &schema,
                &std::fs::read_to_string(&file).unwrap(),
                &file.display().to_string(),
            );
        }
    }
    let example = |page: &str| {
        let (_, block) = page.split_once("```toml").unwrap();
        block.split_once("```").unwrap().0.to_owned()
    };
    accept(
        &schema,
        &example(relent_sim::scenarios::FORMAT),
        "FORMAT.md",
    );
    let schema = Schema::parse(Description::SCHEMA);
    accept(&schema, &example(relent_sim::advise::FORMAT), "SERVICE.md");
}

#[test]
fn the_published_schemas_are_those_of_the_parsers() {
    for format in FORMATS {
        let file = root().join(format!("docs/schema/{}.schema.json", format.name));
        if is_recorded() {
            std::fs::write(&file, format.text).unwrap();
        }
        let published = std::fs::read_to_string(&file).unwrap();
        assert!(
            published == format.text,
            "{}: run with RELENT_RECORD=1",
            file.display()
        );
    }
    for (command, schema) in [
        (&["policy", "schema"][..], PolicyFile::SCHEMA),
        (&["simulate", "schema"], Scenario::SCHEMA),
        (&["simulate", "schema", "scenario"], Scenario::SCHEMA),
        (&["simulate", "schema", "service"], Description::SCHEMA),
    ] {
        let printed = run(command);
        assert_eq!((printed.status, printed.stdout.as_str()), (0, schema));
    }
}

#[test]
fn the_schema_of_traces_has_every_reason_for_giving_up() {
    let schema = include_str!("../../../../docs/schema/trace.schema.json");
    let schema: Value = serde_json::from_str(schema).unwrap();
    let mut reasons = vec![Value::Null];
    reasons.extend(stop_reasons().into_iter().map(Value::from));
    assert_eq!(
        schema["properties"]["reason"]["enum"],
        Value::from(reasons),
        "docs/schema/trace.schema.json has all reasons, in the order of `StopReason`"
    );
}
