//! Tests that the generated parts of the documents are those that the tables in code give.
//!
//! `RELENT_RECORD=1 cargo test -p relent-cli --test it generated` rewrites them.

use std::fmt::Write;
use std::fs;
use std::sync::{Mutex, PoisonError};

use relent::observe::Metric;
use relent::policy::{BudgetConfig, PolicyFile, format_duration};
use relent::{Backoff, Policy};
use relent_outbox::endpoint::Acknowledgement;
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::Value;

use crate::documents::root;
use crate::support::run;

/// Whether the tests write documents, instead of comparing them.
pub(crate) fn is_recorded() -> bool {
    std::env::var_os("RELENT_RECORD").is_some()
}

/// Compares the generated part of a document, between its two comments, with `content`; or writes it.
#[track_caller]
fn part(document: &str, name: &str, content: &str) {
    // Several tests write parts of one document.
    static WRITER: Mutex<()> = Mutex::new(());
    let _writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    let file = root().join("docs").join(document);
    let text = fs::read_to_string(&file).unwrap();
    let (begin, end) = (format!("<!-- generated: {name} -->\n"), "<!-- end -->");
    let (before, rest) = text
        .split_once(&begin)
        .unwrap_or_else(|| panic!("{document} has no {begin}"));
    let (shown, after) = rest.split_once(end).unwrap();
    let content = format!("\n{}\n\n", content.trim_end());
    if is_recorded() {
        fs::write(&file, format!("{before}{begin}{content}{end}{after}")).unwrap();
    } else {
        assert!(
            shown == content,
            "docs/{document} lacks what `RELENT_RECORD=1 cargo test -p relent-cli --test it generated` writes:\n{content}"
        );
    }
}

fn table(heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = format!(
        "| {} |\n|{}\n",
        heads.join(" | "),
        "---|".repeat(heads.len())
    );
    for row in rows {
        let row = format!("| {} |", row.join(" | "));
        // An empty cell has one space.
        writeln!(text, "{}", row.replace("|  |", "| |")).unwrap();
    }
    text
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

fn codes(list: &[&str]) -> String {
    let list: Vec<_> = list.iter().map(|text| code(text)).collect();
    list.join(", ")
}

const METRIC_HEADS: [&str; 5] = ["name", "type", "unit", "labels", "meaning"];

/// The rows of a table of metrics.
fn metric_rows(metrics: &[Metric], labels: impl Fn(&Metric) -> String) -> Vec<Vec<String>> {
    let row = |metric: &Metric| {
        vec![
            code(metric.name),
            metric.kind.name().to_owned(),
            metric.unit.to_owned(),
            labels(metric),
            metric.meaning.to_owned(),
        ]
    };
    metrics.iter().map(row).collect()
}

fn label_rows(labels: &[(&str, &str)]) -> Vec<Vec<String>> {
    let row = |(name, values): &(&str, &str)| vec![code(name), (*values).to_owned()];
    labels.iter().map(row).collect()
}

/// Metric names are an interface: dashboards and alerts use them.
#[test]
fn the_page_on_observability_shows_the_tables_of_metrics() {
    use relent::observe as client;
    use relent_outbox::observe as outbox;
    use relent_outbox_nats::observe as nats;
    use relent_server::observe as server;
    let page = "observability.md";
    let names = |metric: &Metric| codes(metric.labels);
    let rows = metric_rows(&client::METRICS, names);
    part(page, "client metrics", &table(&METRIC_HEADS, rows));
    let rows = metric_rows(&server::METRICS, names);
    part(page, "server metrics", &table(&METRIC_HEADS, rows));
    let mut rows = metric_rows(&outbox::METRICS, with_values(&outbox::LABELS));
    rows.extend(metric_rows(&nats::METRICS, with_values(&nats::LABELS)));
    part(page, "outbox metrics", &table(&METRIC_HEADS, rows));
    let heads = ["label", "values"];
    let labels = table(&heads, label_rows(&client::LABELS));
    part(page, "client labels", &labels);
    let labels = table(&heads, label_rows(&server::LABELS));
    part(page, "server labels", &labels);
}

/// The label of a metric with its values.
fn with_values(labels: &[(&str, &[&str])]) -> impl Fn(&Metric) -> String {
    move |metric| {
        let labels = labels
            .iter()
            .filter(|(name, _)| metric.labels.contains(name));
        let labels = labels.map(|(name, values)| format!("{}: {}", code(name), codes(values)));
        labels.collect::<Vec<_>>().join("; ")
    }
}

/// Every label of a metric is in the table of labels, and the other way round.
#[test]
fn the_labels_of_metrics_are_those_of_the_tables() {
    use relent::observe as client;
    use relent_outbox::observe as outbox;
    use relent_outbox_nats::observe as nats;
    use relent_server::observe as server;
    let client_labels = client::METRICS.iter().flat_map(|metric| metric.labels);
    let client_labels = client_labels.chain(&[client::DESTINATION]);
    let labels = |metrics: &[Metric]| -> Vec<_> {
        let labels = metrics.iter().flat_map(|metric| metric.labels);
        labels.copied().collect()
    };
    for (mut used, mut known) in [
        (
            client_labels.copied().collect(),
            client::LABELS.map(|(name, _)| name).to_vec(),
        ),
        (
            labels(&server::METRICS),
            server::LABELS.map(|(name, _)| name).to_vec(),
        ),
        (
            labels(&outbox::METRICS),
            outbox::LABELS.map(|(name, _)| name).to_vec(),
        ),
        (
            labels(&nats::METRICS),
            nats::LABELS.map(|(name, _)| name).to_vec(),
        ),
    ] {
        used.sort_unstable();
        used.dedup();
        known.sort_unstable();
        assert_eq!(used, known);
    }
}

/// The variants of an enum in a source file, each with its documentation and the text that `name` gives.
fn variants(file: &str, name: &str) -> Vec<(String, String)> {
    let source = fs::read_to_string(root().join("crates").join(file)).unwrap();
    let (_, body) = source.split_once(&format!("pub enum {name} {{")).unwrap();
    let (body, rest) = body.split_once("\n}").unwrap();
    let mut documentation = String::new();
    let mut found = Vec::new();
    for line in body.lines().map(str::trim) {
        if let Some(line) = line.strip_prefix("///") {
            documentation.push_str(line);
        } else if let Some(variant) = line.strip_suffix(',') {
            let arm = format!("Self::{variant} => \"");
            let (_, named) = rest.split_once(&arm).unwrap();
            let (named, _) = named.split_once('"').unwrap();
            found.push((named.to_owned(), documentation.trim().to_owned()));
            documentation.clear();
        }
    }
    found
}

/// A text of rustdoc without its links to items.
fn without_links(text: &str) -> String {
    let mut parts = text.split('[');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(']') {
            Some((linked, after)) => {
                plain.push_str(linked);
                let target = after
                    .strip_prefix('(')
                    .and_then(|rest| rest.split_once(')'));
                plain.push_str(target.map_or(after, |(_, after)| after));
            }
            None => {
                plain.push('[');
                plain.push_str(part);
            }
        }
    }
    plain
}

const DECISIONS: &str = "relent-core/src/call/stop.rs";

/// The names of the reasons for giving up.
pub(crate) fn stop_reasons() -> Vec<String> {
    let reasons = variants(DECISIONS, "StopReason").into_iter();
    reasons.map(|(name, _)| name).collect()
}

/// What an engineer does about each reason for giving up.
const REMEDIES: [(&str, &str); 15] = [
    (
        "retries_exhausted",
        "Find out why the service fails: `relent_failures_total` by `kind`. Raise `max_retries` only if its failures end \
         by themselves. If there was one attempt only, check whether `retries` or `RELENT_POLICY` is `off`.",
    ),
    (
        "max_elapsed",
        "Find out why the service fails. Raise `max_elapsed` only if the caller can wait longer.",
    ),
    (
        "deadline",
        "Find out why the service fails or is slow. If one attempt uses up the time, set `attempt_timeout`. Raise \
         `deadline` only if the caller can wait longer.",
    ),
    (
        "permanent",
        "Correct the request, its credentials or its address. The last error or response names the cause.",
    ),
    (
        "not_repeatable",
        "Find out whether the request took effect, before you send it again. For later calls, send an [idempotency \
         key](safe-retries.md#make-a-post-safe).",
    ),
    (
        "outcome_unknown",
        "Find out whether the request took effect: read the resource, or ask the operator of the service.",
    ),
    (
        "not_replayable",
        "Send a body in memory or a file instead of a stream, or raise `body_cap`. Start a download again.",
    ),
    (
        "do_not_retry",
        "Find the cause at the service, or at a service that it calls.",
    ),
    (
        "budget",
        "Check the health of the service. Do not enlarge the budget: more retries would add load.",
    ),
    (
        "circuit_breaker",
        "Check the health of the service. When it is up again, the breaker releases calls by itself.",
    ),
    (
        "retry_later",
        "Postpone the work until that instant, or make fewer requests.",
    ),
    (
        "overloaded",
        "Add capacity to the service, or make fewer requests.",
    ),
    (
        "throttle",
        "Find out why the service rejects many requests.",
    ),
    (
        "no_destination",
        "Pass a `Destination` to the call, or set a fixed `delay` in `[hedge]`.",
    ),
    ("cancelled", "Nothing, if the caller cancelled on purpose."),
];

#[test]
fn the_page_on_observability_shows_the_reasons_for_giving_up() {
    let reasons = variants(DECISIONS, "StopReason");
    let names: Vec<_> = reasons.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, REMEDIES.map(|(name, _)| name));
    let rows = reasons
        .iter()
        .zip(REMEDIES)
        .map(|((name, meaning), (_, remedy))| {
            vec![code(name), without_links(meaning), remedy.to_owned()]
        });
    part(
        "observability.md",
        "stop reasons",
        &table(&["reason", "meaning", "what to do"], rows),
    );
}

/// The subcommands that `relent --help` lists.
fn subcommands() -> Vec<String> {
    let help = run(&["--help"]).stdout;
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let commands = commands.lines().take_while(|line| line.starts_with("  "));
    let names = commands.filter(|line| !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.map(str::to_owned).collect()
}

/// The help of a subcommand has its exit statuses.
#[test]
fn the_page_on_the_command_shows_the_exit_statuses() {
    let (mut text, mut count) = (String::new(), 0);
    for subcommand in subcommands() {
        if subcommand == "help" {
            continue;
        }
        let help = run(&[&subcommand, "--help"]).stdout;
        let Some((_, statuses)) = help.split_once("\nExit status: ") else {
            continue;
        };
        let (statuses, _) = statuses.split_once("\n\n").unwrap_or((statuses, ""));
        let statuses = statuses.trim();
        write!(
            text,
            "`relent {subcommand}`:\n\n```text\n{statuses}\n```\n\n"
        )
        .unwrap();
        count += 1;
    }
    assert!(count >= 5, "{text}");
    part("command-line.md", "exit statuses", &text);
}

/// The rows of the table with these heads in the rustdoc of a source file.
fn rustdoc_rows(file: &str, heads: &str) -> Vec<Vec<String>> {
    let source = fs::read_to_string(root().join("crates").join(file)).unwrap();
    let (_, rows) = source
        .split_once(&format!("/// {heads}\n/// |---|---|\n"))
        .unwrap();
    let rows = rows.lines().map_while(|line| line.strip_prefix("/// | "));
    let row = |row: &str| {
        let (first, second) = row.trim_end_matches(" |").split_once(" | ").unwrap();
        vec![first.to_owned(), without_links(second)]
    };
    rows.map(row).collect()
}

/// The rustdoc of `hint` has the table.
#[test]
fn the_page_on_headers_shows_the_hints_that_clients_read() {
    let rows = rustdoc_rows("relent-http/src/hint.rs", "| header | read as |");
    part(
        "headers.md",
        "hint headers",
        &table(&["header", "read as"], rows),
    );
}

#[test]
fn the_page_on_webhooks_shows_the_acknowledgements() {
    let rows = Acknowledgement::ALL
        .iter()
        .map(|(_, name, response)| vec![code(name), (*response).to_owned()]);
    let heads = ["`--acknowledgement`", "response that acknowledges"];
    part("deliver.md", "acknowledgements", &table(&heads, rows));
}

#[test]
fn the_page_on_policy_files_shows_the_presets() {
    let rows = relent::presets::all().iter().map(|preset| {
        let loaded = preset.load().unwrap();
        let source = match loaded.source.unwrap() {
            url if url.starts_with("https://") => format!("<{url}>"),
            text => text,
        };
        vec![code(preset.name), loaded.description.unwrap(), source]
    });
    part(
        "policy-files.md",
        "presets",
        &table(&["preset", "policy", "source"], rows),
    );
}

/// The delays of a preset before jitter, as its file has them.
fn delays(file: &toml::Table) -> String {
    let text = |value: &toml::Value| match value {
        toml::Value::String(text) => text.clone(),
        number => number.to_string(),
    };
    let Some(backoff) = file["backoff"].as_table() else {
        return "none".to_owned();
    };
    let (kind, keys) = backoff.iter().next().unwrap();
    let key = |name: &str| text(&keys[name]);
    let mut shown = match kind.as_str() {
        "constant" => key("delay"),
        "exponential" => {
            let factor = keys.get("factor").map_or_else(|| "2".to_owned(), text);
            let cap = text(
                &file
                    .get("max_delay")
                    .cloned()
                    .unwrap_or_else(|| "60s".into()),
            );
            format!("{}, then ×{factor}, at most {cap}", key("initial"))
        }
        "slotted" => format!(
            "0 to 2ⁿ − 1 slots of {} before retry n; n counts up to {}",
            key("slot"),
            key("exponent_limit")
        ),
        "elapsed" => format!(
            "{} × the elapsed time, at least {}",
            key("fraction"),
            key("initial")
        ),
        "schedule" => {
            let delays: Vec<_> = keys["delays"]
                .as_array()
                .unwrap()
                .iter()
                .map(text)
                .collect();
            let runs = delays.chunk_by(|one, next| one == next);
            let runs = runs.map(|run| match run.len() {
                1 => run[0].clone(),
                count => format!("{count} × {}", run[0]),
            });
            runs.collect::<Vec<_>>().join(", ")
        }
        _ => panic!("write the delays of {kind}"),
    };
    if let Some(initial) = file.get("throttled_initial") {
        write!(shown, "; {} first after a throttled failure", text(initial)).unwrap();
    }
    shown
}

/// The retry budget of a preset: its deposits, the tokens at the start, and the costs.
fn budget(budget: &BudgetConfig) -> String {
    let deposits = [
        (budget.ratio, "per request"),
        (budget.success, "per success"),
        (budget.per_second, "per second"),
    ];
    let deposits = deposits.into_iter().filter(|(tokens, _)| *tokens > 0.0);
    let mut parts: Vec<_> = deposits
        .map(|(tokens, of)| format!("{tokens} {of}"))
        .collect();
    parts.push(format!("{} at the start", budget.initial_tokens));
    let what = if budget.charge_failures {
        "failure"
    } else {
        "retry"
    };
    let mut costs = format!("a {what} costs {}", budget.cost);
    if budget.throttled_cost.total_cmp(&budget.cost).is_ne() {
        write!(
            costs,
            ", {} after a throttled failure",
            budget.throttled_cost
        )
        .unwrap();
    }
    if let Some(cost) = budget.timeout_cost {
        write!(costs, ", {cost} after an attempt timeout").unwrap();
    }
    if budget.min_tokens > 0.0 {
        write!(costs, "; no retry with {} or fewer", budget.min_tokens).unwrap();
    }
    parts.push(costs);
    parts.join("; ")
}

/// The time limits of a preset.
fn time_limits(policy: &Policy) -> String {
    let limits = [
        ("attempt_timeout", policy.attempt_timeout()),
        ("max_elapsed", policy.max_elapsed()),
    ];
    let limits = limits
        .into_iter()
        .filter_map(|(key, limit)| Some((key, limit?)));
    let limits: Vec<_> = limits
        .map(|(key, limit)| format!("`{key}` {}", format_duration(limit)))
        .collect();
    match limits.is_empty() {
        true => "none".to_owned(),
        false => limits.join(", "),
    }
}

/// Above the table, the page says which parts no preset has.
#[test]
fn the_page_on_policy_files_shows_the_limits_of_presets() {
    let rows = relent::presets::all().iter().map(|preset| {
        let policy = preset.load().unwrap().policy;
        assert_eq!(policy.deadline(), None);
        assert!(policy.rate_limit().is_none() && policy.hedge().is_none());
        assert!(policy.throttle().is_none());
        assert_eq!(
            policy.circuit_breaker().is_some(),
            preset.name == "standard"
        );
        let file: toml::Table = preset.text.parse().unwrap();
        assert_eq!(file.contains_key("rules"), preset.name == "vital");
        let attempts = policy.max_retries().map_or_else(
            || "unlimited".to_owned(),
            |retries| (retries + 1).to_string(),
        );
        let jitter = match file.get("jitter") {
            Some(jitter) => jitter.as_str().unwrap().to_owned(),
            None if policy.backoff() == &Backoff::None => "none".to_owned(),
            None => "full".to_owned(),
        };
        vec![
            code(preset.name),
            attempts,
            delays(&file),
            jitter,
            policy.budget().map_or_else(|| "none".to_owned(), budget),
            time_limits(&policy),
        ]
    });
    let heads = [
        "preset",
        "attempts",
        "delays before jitter",
        "jitter",
        "retry budget, in tokens",
        "time limits",
    ];
    part("policy-files.md", "preset limits", &table(&heads, rows));
}

/// The properties of a table, in the order of the schema.
struct Properties(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Properties {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Properties;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("properties")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Properties, A::Error> {
                let mut list = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    list.push(entry);
                }
                Ok(Properties(list))
            }
        }

        from.deserialize_map(InOrder)
    }
}

/// The part of the schema of policy files that the page shows.
#[derive(Deserialize)]
struct PolicySchema {
    #[serde(rename = "$defs")]
    definitions: Definitions,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Definitions {
    policy: Keys,
    rule: Keys,
    budget: Keys,
    circuit_breaker: Keys,
    rate_limit: Keys,
    hedge: Keys,
    throttle: Keys,
    constant_backoff: Keys,
    linear_backoff: Keys,
    exponential_backoff: Keys,
    fibonacci_backoff: Keys,
    decorrelated_backoff: Keys,
    slotted_backoff: Keys,
    schedule_backoff: Keys,
    elapsed_backoff: Keys,
    phase: Keys,
}

#[derive(Deserialize)]
struct Keys {
    description: String,
    #[serde(default)]
    required: Vec<String>,
    properties: Properties,
}

/// The values that a property accepts, in a few words.
fn values(property: &Value) -> String {
    if let Some(list) = property.get("enum") {
        let list = list
            .as_array()
            .unwrap()
            .iter()
            .map(|word| code(word.as_str().unwrap()));
        return list.collect::<Vec<_>>().join(", ");
    }
    let bound = |name: &str| property.get(name)?.as_f64().map(|bound| bound.to_string());
    let range = match (
        bound("minimum"),
        bound("exclusiveMinimum"),
        bound("maximum"),
    ) {
        (_, _, Some(most)) if most == u32::MAX.to_string() => match bound("minimum").as_deref() {
            Some("0") | None => String::new(),
            Some(least) => format!(" from {least}"),
        },
        (Some(least), _, Some(most)) => format!(" from {least} to {most}"),
        (None, Some(least), Some(most)) => format!(" above {least}, up to {most}"),
        (Some(least), _, None) => format!(" from {least}"),
        (None, Some(least), None) => format!(" above {least}"),
        (None, None, _) => String::new(),
    };
    let kind = match (property["type"].as_str(), property["$ref"].as_str()) {
        (Some("boolean"), _) => "`true`, `false`",
        (Some("string"), _) => "text",
        (Some("integer"), _) => "whole number",
        (Some("number"), _) => "number",
        (Some("array"), _) => match property["items"]["$ref"].as_str().unwrap() {
            "#/$defs/failure" => "list of [failures](#failures)",
            "#/$defs/rule" => "`[[rules]]`",
            _ => "list of times",
        },
        (_, Some("#/$defs/duration")) => "time",
        (_, Some("#/$defs/positiveDuration")) => "time above 0",
        (_, Some("#/$defs/limit")) => "time, `unlimited`",
        (_, Some("#/$defs/positiveLimit")) => "time above 0, `unlimited`",
        (_, Some("#/$defs/retries")) => "whole number, `unlimited`",
        (_, Some("#/$defs/jitter")) => "[jitter](#jitter)",
        (_, Some("#/$defs/backoff" | "#/$defs/phaseBackoff")) => "[backoff](#backoff)",
        (_, Some(_)) => "table",
        _ => panic!("{property}"),
    };
    format!("{kind}{range}")
}

impl Keys {
    fn table(&self) -> String {
        let rows = self.properties.0.iter().map(|(key, property)| {
            let default = match property.get("default") {
                Some(Value::String(default)) => code(default),
                Some(default) => code(&default.to_string()),
                None if self.required.contains(key) => "required".to_owned(),
                None => String::new(),
            };
            let description = property["description"].as_str().unwrap();
            vec![code(key), values(property), default, description.to_owned()]
        });
        table(&["key", "value", "default", "meaning"], rows)
    }
}

#[test]
fn the_page_on_policy_files_shows_every_key() {
    let schema: PolicySchema = serde_json::from_str(PolicyFile::SCHEMA).unwrap();
    let all = schema.definitions;
    let mut text = all.policy.table();
    for (title, keys) in [
        ("`[[rules]]`", all.rule),
        ("`[budget]`", all.budget),
        ("`[circuit_breaker]`", all.circuit_breaker),
        ("`[rate_limit]`", all.rate_limit),
        ("`[hedge]`", all.hedge),
        ("`[throttle]`", all.throttle),
    ] {
        write!(
            text,
            "\n### {title}\n\n{}\n\n{}",
            keys.description,
            keys.table()
        )
        .unwrap();
    }
    part("policy-files.md", "keys", &text);
    let of_chain = Keys {
        description: "A list of phases, one after the other; each has these keys.".to_owned(),
        ..all.phase
    };
    let kinds = [
        ("constant", all.constant_backoff),
        ("linear", all.linear_backoff),
        ("exponential", all.exponential_backoff),
        ("fibonacci", all.fibonacci_backoff),
        ("decorrelated", all.decorrelated_backoff),
        ("slotted", all.slotted_backoff),
        ("schedule", all.schedule_backoff),
        ("elapsed", all.elapsed_backoff),
        ("chain", of_chain),
    ];
    let rows = kinds.into_iter().map(|(kind, keys)| {
        let key = |(key, property): &(String, Value)| match property.get("default") {
            Some(default) => format!("`{key}` ({default})"),
            None => code(key),
        };
        let names: Vec<_> = keys.properties.0.iter().map(key).collect();
        vec![code(kind), keys.description, names.join(", ")]
    });
    let text = table(&["kind", "delays", "keys (default)"], rows);
    part("policy-files.md", "backoffs", &text);
}

/// The rustdoc of `Pattern` has the table.
#[test]
fn the_page_on_policy_files_shows_the_failures() {
    let rows = rustdoc_rows("relent-core/src/policy/pattern.rs", "| text | matches |");
    part(
        "policy-files.md",
        "failures",
        &table(&["text", "matches"], rows),
    );
}
