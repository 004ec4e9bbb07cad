//! Tests of the dashboard and the alert rules in docs/observability: they use existing metrics, labels and values.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use regex::Regex;
use serde_json::Value;

use crate::documents::root;

/// The labels that Prometheus adds.
const SCRAPED: [&str; 2] = ["job", "instance"];

/// A metric: whether it is a histogram, and its labels.
struct Known {
    is_histogram: bool,
    labels: Vec<&'static str>,
}

/// All metrics of the tables in code.
fn metrics() -> BTreeMap<String, Known> {
    let mut known = BTreeMap::new();
    let mut add = |name: &str, kind: &str, labels: Vec<&'static str>| {
        let is_histogram = kind == "histogram";
        known.insert(
            name.to_owned(),
            Known {
                is_histogram,
                labels,
            },
        );
    };
    for metric in relent::observe::METRICS {
        let labels = [metric.labels, &[relent::observe::DESTINATION]].concat();
        add(metric.name, metric.kind.name(), labels);
    }
    let server = relent_server::observe::METRICS.into_iter();
    let outbox = relent_outbox::observe::METRICS;
    let nats = relent_outbox_nats::observe::METRICS;
    for metric in server.chain(outbox).chain(nats) {
        add(metric.name, metric.kind.name(), metric.labels.to_vec());
    }
    known
}

/// The documented values of all labels, as text.
fn documented_values() -> String {
    let client = relent::observe::LABELS.iter().map(|(_, values)| *values);
    let server = relent_server::observe::LABELS
        .iter()
        .map(|(_, values)| *values);
    let outbox = relent_outbox::observe::LABELS.into_iter();
    let outbox = outbox.chain(relent_outbox_nats::observe::LABELS);
    let outbox = outbox.flat_map(|(_, values)| values.iter().copied());
    client
        .chain(server)
        .chain(outbox)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The mistakes of a query.
fn mistakes(query: &str) -> Vec<String> {
    let (known, values) = (metrics(), documented_values());
    let reasons = crate::generated::stop_reasons();
    let selector = Regex::new(r"\b(relent_\w+)(?:\{([^}]*)\})?").unwrap();
    let matcher = Regex::new(r#"(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)""#).unwrap();
    let grouping = Regex::new(r"\b(?:by|without)\s*\(([^)]*)\)").unwrap();
    let mut wrong = Vec::new();
    let mut usable: BTreeSet<&str> = SCRAPED.into();
    for found in selector.captures_iter(query) {
        let name = &found[1];
        let parts = ["_bucket", "_sum", "_count"];
        let base = parts.iter().find_map(|part| name.strip_suffix(part));
        let Some(metric) = known
            .get(name)
            .or_else(|| known.get(base?).filter(|metric| metric.is_histogram))
        else {
            wrong.push(format!("no metric {name}"));
            continue;
        };
        usable.extend(&metric.labels);
        usable.extend(name.ends_with("_bucket").then_some("le"));
        let matchers = found.get(2).map_or("", |matchers| matchers.as_str());
        for matcher in matcher.captures_iter(matchers) {
            let (label, value) = (&matcher[1], &matcher[3]);
            if !metric.labels.contains(&label) && !SCRAPED.contains(&label) {
                wrong.push(format!("{name} has no label {label}"));
            }
            if value.starts_with('$') {
                continue;
            }
            for value in value.split('|') {
                let is_value = values.contains(&format!("`{value}`"))
                    || values.split(' ').any(|word| word == value)
                    || reasons.iter().any(|reason| reason == value);
                if !is_value {
                    wrong.push(format!("{label} of {name} is never {value}"));
                }
            }
        }
    }
    for group in grouping.captures_iter(query) {
        for label in group[1].split(',').map(str::trim) {
            if !usable.contains(label) {
                wrong.push(format!("no metric has the label {label}"));
            }
        }
    }
    wrong
}

fn file(name: &str) -> String {
    fs::read_to_string(root().join("docs/observability").join(name)).unwrap()
}

/// The queries of the dashboard.
fn dashboard_queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&file("grafana-dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let queries = targets
        .flatten()
        .map(|target| target["expr"].as_str().unwrap());
    queries.map(str::to_owned).collect()
}

/// The queries of the alert rules: the rest of the line, or the indented lines after `>`.
fn alert_queries() -> Vec<String> {
    let text = file("prometheus-alerts.yml");
    let mut queries = Vec::new();
    for rule in text.split("expr: ").skip(1) {
        let (first, rest) = rule.split_once('\n').unwrap();
        let indented = rest
            .lines()
            .take_while(|line| line.starts_with("          "));
        queries.push(match first {
            ">" => indented.collect::<Vec<_>>().join(" "),
            query => query.to_owned(),
        });
    }
    queries
}

#[test]
fn the_dashboard_and_the_alerts_use_existing_metrics_labels_and_values() {
    let (dashboard, alerts) = (dashboard_queries(), alert_queries());
    assert!(dashboard.len() > 30 && alerts.len() > 10);
    for query in dashboard.iter().chain(&alerts) {
        let wrong = mistakes(query);
        assert!(
            query.contains("relent_") && wrong.is_empty(),
            "{query}: {wrong:?}"
        );
    }
}

#[test]
fn the_check_of_queries_detects_wrong_names() {
    for (query, mistake) in [
        ("relent_attempts", "no metric relent_attempts"),
        (
            "relent_attempts_total_sum",
            "no metric relent_attempts_total_sum",
        ),
        (
            r#"relent_stops_total{kind="budget"}"#,
            "relent_stops_total has no label kind",
        ),
        (
            r#"relent_stops_total{reason="bugdet"}"#,
            "reason of relent_stops_total is never bugdet",
        ),
        (
            "sum by (reason) (relent_held_back)",
            "no metric has the label reason",
        ),
        (
            "sum by (le) (relent_wait_seconds_sum)",
            "no metric has the label le",
        ),
    ] {
        assert_eq!(mistakes(query), [mistake]);
    }
    let right = r#"sum by (le, by, job) (rate(relent_held_seconds_bucket{by=~"cooldown|rate_limit", job="a"}[5m]))"#;
    assert_eq!(mistakes(right), [""; 0]);
}

/// Runs the rules and their tests in Prometheus itself, if it is installed.
#[test]
fn promtool_accepts_the_alerts() {
    for arguments in [
        ["check", "rules", "prometheus-alerts.yml"],
        ["test", "rules", "prometheus-alerts.test.yml"],
    ] {
        let folder = root().join("docs/observability");
        let promtool = Command::new("promtool")
            .args(arguments)
            .current_dir(folder)
            .output();
        let Ok(promtool) = promtool else {
            return;
        };
        let printed = [promtool.stdout, promtool.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        assert!(promtool.status.success(), "{printed}");
    }
}
