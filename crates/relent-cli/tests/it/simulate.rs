//! Tests of `relent simulate`: its output, and its messages for wrong input.

use serde_json::Value;

use crate::support::{self, run};

const SMALL: [&str; 4] = [
    "simulate",
    "random-failures",
    "--set",
    "clients.arrivals.poisson.for=20s",
];

fn with(args: &[&'static str]) -> support::Ran {
    run(&[&SMALL[..], args].concat())
}

#[test]
fn json_has_one_line_for_each_seed_with_every_policy() {
    let args = ["--json", "--seeds", "2", "--seed", "7", "--policies"];
    let ran = with(&[&args[..], &["off,patient"]].concat());
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let lines: Vec<Value> = ran
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[1]["scenario"], "random-failures");
    assert_eq!(lines[1]["seed"], 8);
    let runs = lines[1]["runs"].as_array().unwrap();
    assert_eq!(lines[1]["bound"], 1.0);
    let policies: Vec<_> = runs.iter().map(|run| run["policy"].as_str()).collect();
    assert_eq!(policies, [Some("off"), Some("patient")]);
    let mut keys: Vec<_> = runs[0].as_object().unwrap().keys().cloned().collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "amplification",
            "attempts",
            "back",
            "backoff",
            "classes",
            "drain_s",
            "drops",
            "duplicates",
            "efficiency",
            "ended",
            "fairness",
            "give_ups",
            "goodput",
            "held",
            "held_answered",
            "layers",
            "p50_ms",
            "p999_ms",
            "p99_ms",
            "peak",
            "policy",
            "requests",
            "retried",
            "successes",
            "ttr_s",
            "unanswered",
        ]
    );
    assert_eq!(runs[0]["attempts"], runs[0]["requests"]);
    assert!(runs[0]["ttr_s"].is_null());
    assert_eq!(runs[0]["requests"], runs[1]["requests"], "the same crowd");
    let again = with(&[&args[..], &["off,patient"]].concat());
    assert_eq!(again.stdout, ran.stdout, "the same seed, the same numbers");
}

#[test]
fn the_table_has_a_line_and_a_verdict_for_each_policy() {
    let ran = with(&["--policies", "off,standard", "--set", "service.failures=0"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("goodput"));
    let line = ran
        .stdout
        .lines()
        .find(|line| line.starts_with("standard "));
    let cells: Vec<&str> = line.unwrap().split_whitespace().collect();
    assert_eq!(cells[1..5], ["1.0000", "1.00", "-", "-"], "{}", ran.stdout);
    assert!(
        ran.stdout.contains("\noff: loses nothing\n"),
        "{}",
        ran.stdout
    );
    assert_eq!(ran.stderr, "", "no progress bar where nobody looks");
}

#[test]
fn every_built_in_scenario_is_listed() {
    let ran = run(&["simulate", "--list"]);
    assert_eq!(ran.status, 0);
    for name in relent_sim::scenarios::names() {
        assert!(ran.stdout.contains(&format!("{name} ")), "{name}");
    }
}

#[test]
fn a_scenario_can_be_loaded_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    std::fs::write(&file, "clients.arrivals.herd = { clients = 3 }\n").unwrap();
    let path = file.to_str().unwrap();
    let ran = run(&["simulate", path, "--seeds", "1", "--json"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let line: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(line["runs"][1]["successes"], 3);

    std::fs::write(&file, "[clients]\narrivals.herds = { clients = 3 }\n").unwrap();
    let ran = run(&["simulate", path]);
    assert_eq!(ran.status, 2);
    assert!(ran.stderr.contains("line 2"), "{}", ran.stderr);
}

#[test]
fn an_installed_command_shows_the_format_and_a_scenario_to_start_from() {
    let format = run(&["simulate", "--format"]);
    assert_eq!(format.status, 0, "{}", format.stderr);
    assert_is_toml_of(&format.stdout, relent_sim::scenarios::FORMAT);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    for scenario in relent_sim::scenarios::all() {
        let shown = run(&["simulate", "--show", scenario.name]);
        assert_eq!(shown.status, 0, "{}", shown.stderr);
        assert_eq!(shown.stdout, scenario.text, "comments and all");
    }
    std::fs::write(&file, run(&["simulate", "--show", "herd"]).stdout).unwrap();
    let args = ["--seeds", "1", "--policies", "off", "--json"];
    let ran = run(&[&["simulate", file.to_str().unwrap()], &args[..]].concat());
    let line: Value = serde_json::from_str(&ran.stdout).unwrap();
    let builtin = run(&[&["simulate", "herd"], &args[..]].concat());
    let other: Value = serde_json::from_str(&builtin.stdout).unwrap();
    assert_eq!(line["runs"], other["runs"]);
}

#[test]
fn an_error_in_a_scenario_names_the_format_option() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    std::fs::write(&file, "[clients]\narivals.herd = { clients = 3 }\n").unwrap();
    let path = file.to_str().unwrap();
    for args in [
        vec!["simulate", path],
        vec!["simulate", "no-such"],
        vec!["simulate", "herd", "--set", "service.modl=row"],
    ] {
        let ran = run(&args);
        assert_eq!(ran.status, 2, "{args:?}");
        let told = ran.stderr.contains("`relent simulate --format`");
        assert!(told, "{args:?}: {}", ran.stderr);
    }
    let help = run(&["simulate", "--help"]).stdout;
    for part in ["--format", "--show", "TOML"] {
        assert!(help.contains(part), "{part}");
    }
}

#[test]
fn simulate_reports_wrong_arguments_before_the_first_run() {
    for (args, part) in [
        (vec!["simulate", "no-such"], "random-failures"),
        (
            vec!["simulate", "herd", "--policies", "standart"],
            "did you mean `standard`?",
        ),
        (
            vec!["simulate", "herd", "--set", "service.model"],
            "service.failures=0.1",
        ),
        (
            vec!["simulate", "herd", "--set", "service.modl=row"],
            "modl",
        ),
        (vec!["simulate", "herd", "--seeds", "0"], "from 1 to 10000"),
        (vec!["simulate", "herd", "--seed", "-1"], "whole number"),
        (vec!["simulate", "--list", "--json"], "cannot be used"),
        (vec!["simulate", "--format", "--list"], "cannot be used"),
        (vec!["simulate", "--show", "no-such"], "random-failures"),
        (vec!["simulate", "herd", "--show", "herd"], "cannot be used"),
    ] {
        let ran = run(&args);
        assert_eq!(ran.status, 2, "{args:?}");
        assert!(ran.stderr.contains(part), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{args:?}");
    }
}

#[test]
fn random_scenarios_worse_than_off_are_saved_and_can_be_run() {
    let folder = tempfile::tempdir().unwrap();
    let naive = folder.path().join("naive.toml");
    let text = "max_retries = 5\njitter = \"none\"\nbackoff.constant = { delay = \"1ms\" }\n";
    std::fs::write(&naive, text).unwrap();
    let found = folder.path().join("found");
    let judged = |jobs: &str, policy: &str| {
        let save = found.to_str().unwrap();
        let args = ["simulate", "--random", "2", "--seed", "4", "--jobs", jobs];
        run(&[&args[..], &["--policies", policy, "--save", save]].concat())
    };
    let none = judged("1", "off");
    assert_eq!((none.status, &*none.stderr), (0, ""), "{}", none.stdout);
    assert!(
        none.stdout.contains("0 stuck, 0 worse than off"),
        "{}",
        none.stdout
    );
    let guilty = judged("1", naive.to_str().unwrap());
    assert_eq!(guilty.status, 1, "{}", guilty.stdout);
    assert!(
        guilty.stderr.contains("was stuck or worse than off"),
        "{}",
        guilty.stderr
    );
    assert_eq!(judged("3", naive.to_str().unwrap()).stdout, guilty.stdout);
    let mut files = std::fs::read_dir(&found).unwrap();
    let file = files.next().unwrap().unwrap().path();
    let played = run(&[
        "simulate",
        file.to_str().unwrap(),
        "--seeds",
        "1",
        "--policies",
        "off",
    ]);
    assert_eq!(played.status, 0, "{}", played.stderr);
    let refused = run(&["simulate", "blackout", "--random", "2"]);
    assert_eq!(refused.status, 2, "{}", refused.stderr);
}

#[test]
fn policies_are_ranked_with_off_and_the_bound() {
    let ran = with(&["--policies", "standard", "--seeds", "2"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let first: Vec<&str> = ran
        .stdout
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let place = |name: &str| first.iter().position(|word| *word == name).unwrap();
    assert!(
        place("bound") < place("standard") && place("standard") < place("off"),
        "{}",
        ran.stdout
    );
    let args = [
        "simulate",
        "stall",
        "--policies",
        "cenkalti",
        "--seeds",
        "1",
    ];
    let worse = run(&args);
    let told = "warning: cenkalti is worse than no retries";
    assert!(
        worse.stdout.contains(told),
        "{}{}",
        worse.stdout,
        worse.stderr
    );
    let none = run(&["simulate", "herd", "--seeds", "1"]).stdout;
    assert!(none.contains("no bound: a row"), "{none}");
}

const SERVICE: &str = "rate = 20\ncapacity = 40\nprocesses = 4\ndeadline = \"3s\"\nrepeatable = true\n\
    failure.outage = \"5s\"\n";

#[test]
fn advice_is_a_policy_file_with_a_comparison_and_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (service, metrics, report, policy) = (
        at("service.toml"),
        at("metrics.txt"),
        at("report.html"),
        at("policy.toml"),
    );
    std::fs::write(&service, SERVICE).unwrap();
    let histogram = "http_seconds_bucket{le=\"0.01\"} 5000\nhttp_seconds_bucket{le=\"0.2\"} 9990\n\
        http_seconds_bucket{le=\"+Inf\"} 10000\n";
    std::fs::write(&metrics, histogram).unwrap();
    let args = [
        "simulate",
        "--advise",
        &service,
        "--histogram",
        &metrics,
        "--seeds",
        "1",
    ];
    let ran = run(&[&args[..], &["--report", &report]].concat());
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    for part in [
        "# bound ",
        "# advised ",
        "# off ",
        "# standard ",
        "the histogram http_seconds",
    ] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
    std::fs::write(&policy, &ran.stdout).unwrap();
    let checked = run(&["policy", "check", &policy]);
    assert_eq!(checked.status, 0, "{}{}", checked.stdout, checked.stderr);
    let page = std::fs::read_to_string(&report).unwrap();
    assert!(page.contains("cold-stall") && page.contains("advised"));

    let later = at("later.txt");
    let slow = "http_seconds_bucket{le=\"0.01\"} 5000\nhttp_seconds_bucket{le=\"0.2\"} 19990\n\
        http_seconds_bucket{le=\"+Inf\"} 20000\n";
    std::fs::write(&later, slow.replace("seconds", "latency")).unwrap();
    std::fs::write(&metrics, histogram.replace("seconds", "latency")).unwrap();
    let since = ["--histogram", &later, "--since", &metrics, "--unit", "s"];
    let ran = run(&[&args[..3], &since, &["--seeds", "1", "--policies", "off"]].concat());
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("p50 100ms"), "{}", ran.stdout);
    let ran = run(&[&args[..3], &since[..4]].concat());
    assert_eq!(ran.status, 2);
    assert!(ran.stderr.contains("--unit"), "{}", ran.stderr);

    let without = run(&["simulate", "--advise", &service]);
    assert_eq!(without.status, 2);
    assert!(
        without.stderr.contains("--histogram FILE"),
        "{}",
        without.stderr
    );
    std::fs::write(&metrics, histogram.replace("9990", "many")).unwrap();
    let wrong = run(&args);
    assert_eq!(wrong.status, 2);
    assert!(wrong.stderr.contains("(line 2)"), "{}", wrong.stderr);
}

#[test]
fn the_printed_format_of_a_service_is_a_file_that_advise_accepts() {
    let format = run(&["simulate", "--format", "service"]);
    assert_is_toml_of(&format.stdout, relent_sim::advise::FORMAT);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("orders.toml");
    std::fs::write(&file, format.stdout).unwrap();
    let file = file.to_str().unwrap();
    let advised = run(&[
        "simulate",
        "--advise",
        file,
        "--seeds",
        "1",
        "--policies",
        "off",
    ]);
    assert_eq!(advised.status, 0, "{}", advised.stderr);
    relent::policy::PolicyFile::parse(&advised.stdout).unwrap();
}

/// Checks that the file has the TOML of the page, and its prose as comments.
fn assert_is_toml_of(file: &str, page: &str) {
    toml::from_str::<toml::Table>(file).unwrap();
    let (before, rest) = page.split_once("```toml\n").unwrap();
    let (shown, _) = rest.split_once("```").unwrap();
    assert!(file.contains(shown), "{file}");
    let comments = file.split(shown).next().unwrap();
    assert_eq!(comments.lines().count(), before.lines().count());
    for line in comments.lines() {
        assert!(line.is_empty() || line.starts_with("# "), "{line}");
    }
}
