//! Tests of `relent simulate` and `relent advise`: their output, and its messages for wrong input.

use serde_json::Value;

use crate::support::{self, run};

const SMALL: [&str; 5] = [
    "simulate",
    "run",
    "random-failures",
    "--set",
    "clients.arrivals.poisson.for=20s",
];

fn with(args: &[&'static str]) -> support::Ran {
    run(&[&SMALL[..], args].concat())
}

#[test]
fn json_has_one_line_for_each_seed_with_every_policy() {
    let args = ["--json", "--seeds", "2", "--seed", "7", "--policy"];
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
            "held_while_up",
            "layers",
            "p50_ms",
            "p999_ms",
            "p99_ms",
            "peak",
            "policy",
            "requests",
            "retried",
            "success_after_fault",
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
    let ran = with(&["--policy", "off,standard", "--set", "service.failures=0"]);
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
    let ran = run(&["simulate", "list"]);
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
    let ran = run(&["simulate", "run", path, "--seeds", "1", "--json"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let line: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(line["runs"][1]["successes"], 3);

    std::fs::write(&file, "[clients]\narrivals.herds = { clients = 3 }\n").unwrap();
    let ran = run(&["simulate", "run", path]);
    assert_eq!(ran.status, 2);
    assert!(ran.stderr.contains("line 2"), "{}", ran.stderr);
}

#[test]
fn an_installed_command_prints_a_template_and_a_scenario_to_start_from() {
    let template = run(&["simulate", "template"]);
    assert_eq!(template.status, 0, "{}", template.stderr);
    assert_is_toml_of(&template.stdout, relent_sim::scenarios::FORMAT);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    for scenario in relent_sim::scenarios::all() {
        let shown = run(&["simulate", "show", scenario.name]);
        assert_eq!(shown.status, 0, "{}", shown.stderr);
        assert_eq!(shown.stdout, scenario.text, "comments and all");
    }
    std::fs::write(&file, run(&["simulate", "show", "herd"]).stdout).unwrap();
    let args = ["--seeds", "1", "--policy", "off", "--json"];
    let ran = run(&[&["simulate", "run", file.to_str().unwrap()], &args[..]].concat());
    let line: Value = serde_json::from_str(&ran.stdout).unwrap();
    let builtin = run(&[&["simulate", "run", "herd"], &args[..]].concat());
    let other: Value = serde_json::from_str(&builtin.stdout).unwrap();
    assert_eq!(line["runs"], other["runs"]);
}

#[test]
fn an_error_in_a_scenario_names_the_template() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    std::fs::write(&file, "[clients]\narivals.herd = { clients = 3 }\n").unwrap();
    let path = file.to_str().unwrap();
    for args in [
        vec!["simulate", "run", path],
        vec!["simulate", "run", "no-such"],
        vec!["simulate", "run", "herd", "--set", "service.modl=row"],
    ] {
        let ran = run(&args);
        assert_eq!(ran.status, 2, "{args:?}");
        let told = ran.stderr.contains("`relent simulate template`");
        assert!(told, "{args:?}: {}", ran.stderr);
    }
    let help = run(&["simulate", "run", "--help"]).stdout;
    for part in ["simulate template", "simulate show", "TOML"] {
        assert!(help.contains(part), "{part}");
    }
}

#[test]
fn simulate_reports_wrong_arguments_before_the_first_run() {
    for (args, part) in [
        (vec!["simulate", "run", "no-such"], "random-failures"),
        (
            vec!["simulate", "run", "herd", "--policy", "standart"],
            "did you mean `standard`?",
        ),
        (
            vec!["simulate", "run", "herd", "--set", "service.model"],
            "service.failures=0.1",
        ),
        (
            vec!["simulate", "run", "herd", "--set", "service.modl=row"],
            "modl",
        ),
        (
            vec!["simulate", "run", "herd", "--seeds", "0"],
            "from 1 to 10000",
        ),
        (
            vec!["simulate", "run", "herd", "--seed", "-1"],
            "whole number",
        ),
        (vec!["simulate", "list", "--json"], "--json"),
        (vec!["simulate", "template", "policy"], "scenario, service"),
        (vec!["simulate", "show", "no-such"], "random-failures"),
        (vec!["simulate", "random", "0"], "from 1 to 10000"),
        (vec!["simulate", "grid", "no-such"], "cannot be read"),
    ] {
        let ran = run(&args);
        assert_eq!(ran.status, 2, "{args:?}");
        assert!(ran.stderr.contains(part), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{args:?}");
    }
}

#[test]
fn a_former_command_line_is_an_error_that_names_the_present_one() {
    for (args, part) in [
        (&["blackout"][..], "`relent simulate run blackout`"),
        (
            &["./mine.toml", "--seeds", "1"],
            "`relent simulate run ./mine.toml`",
        ),
        (&["--seeds", "1"], "`relent simulate run --seeds`"),
        (&["--policies", "off"], "`relent simulate run --policy`"),
        (&["--list"], "`relent simulate list`"),
        (&["--show", "blackout"], "`relent simulate show SCENARIO`"),
        (&["--format"], "`relent simulate template`"),
        (&["--format=service"], "`relent simulate template`"),
        (&["--random", "3"], "`relent simulate random N`"),
        (&["--grid", "far.toml"], "`relent simulate grid FILE`"),
        (&["--advise", "orders.toml"], "`relent advise FILE`"),
        (&["run", "--random", "3"], "`relent simulate random N`"),
        (&["run", "herd", "--policies", "off"], "use --policy"),
        (&["random", "3", "--save", "found"], "use --output"),
    ] {
        let ran = run(&[&["simulate"], args].concat());
        assert_eq!((ran.status, &*ran.stdout), (2, ""), "{args:?}");
        assert!(ran.stderr.contains(part), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{args:?}: {}", ran.stderr);
    }
    let ran = run(&["advise", "orders.toml", "--since", "before.txt"]);
    assert!(ran.stderr.contains("use --baseline"), "{}", ran.stderr);
}

#[test]
fn without_a_subcommand_the_help_of_the_group_is_shown() {
    let ran = run(&["simulate"]);
    assert_eq!((ran.status, &*ran.stdout), (2, ""));
    for subcommand in ["run", "list", "show", "template", "random", "grid"] {
        let line = format!("\n  {subcommand} ");
        assert!(ran.stderr.contains(&line), "{subcommand}: {}", ran.stderr);
    }
}

#[test]
fn a_grid_lists_the_bounds_that_a_policy_misses() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("grid.toml");
    let grid = |attempts: f64| {
        let text = format!(
            "scenario.clients.arrivals.poisson = {{ rate = 50, for = \"20s\" }}\n\
             axes = [{{ name = \"failures\", key = \"service.failures\", values = [0, 0.5] }}]\n\
             bounds.attempts = {attempts}\n"
        );
        std::fs::write(&file, text).unwrap();
        run(&["simulate", "grid", file.to_str().unwrap()])
    };
    let kept = grid(100.0);
    assert_eq!((kept.status, &*kept.stderr), (0, ""), "{}", kept.stdout);
    assert!(kept.stdout.contains("0 of 2 cells miss a bound"));
    let missed = grid(1.1);
    assert_eq!(missed.status, 1, "{}", missed.stdout);
    assert!(missed.stderr.contains("1 of 2 cells miss a bound"));
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
        let args = ["simulate", "random", "2", "--seed", "4", "--jobs", jobs];
        run(&[&args[..], &["--policy", policy, "--output", save]].concat())
    };
    let none = judged("1", "off");
    assert_eq!((none.status, &*none.stderr), (0, ""), "{}", none.stdout);
    assert!(
        none.stdout
            .contains("0 in which it does not recover, 0 worse than off"),
        "{}",
        none.stdout
    );
    let guilty = judged("1", naive.to_str().unwrap());
    assert_eq!(guilty.status, 1, "{}", guilty.stdout);
    assert!(
        guilty
            .stderr
            .contains("did not recover with a policy, or it was worse than off"),
        "{}",
        guilty.stderr
    );
    assert_eq!(judged("3", naive.to_str().unwrap()).stdout, guilty.stdout);
    let mut files = std::fs::read_dir(&found).unwrap();
    let file = files.next().unwrap().unwrap().path();
    let played = run(&[
        "simulate",
        "run",
        file.to_str().unwrap(),
        "--seeds",
        "1",
        "--policy",
        "off",
    ]);
    assert_eq!(played.status, 0, "{}", played.stderr);
}

#[test]
fn policies_are_ranked_with_off_and_the_bound() {
    let ran = with(&["--policy", "standard", "--seeds", "2"]);
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
        "simulate", "run", "stall", "--policy", "cenkalti", "--seeds", "1",
    ];
    let worse = run(&args);
    let told = "warning: cenkalti is worse than no retries";
    assert!(
        worse.stdout.contains(told),
        "{}{}",
        worse.stdout,
        worse.stderr
    );
    let none = run(&["simulate", "run", "herd", "--seeds", "1"]).stdout;
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
    let args = ["advise", &service, "--histogram", &metrics, "--seeds", "1"];
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
    let since = ["--histogram", &later, "--baseline", &metrics, "--unit", "s"];
    let ran = run(&[&args[..2], &since, &["--seeds", "1", "--policy", "off"]].concat());
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("p50 100ms"), "{}", ran.stdout);
    let ran = run(&[&args[..2], &since[..4]].concat());
    assert_eq!(ran.status, 2);
    assert!(ran.stderr.contains("--unit"), "{}", ran.stderr);
    // An error in the earlier metrics names their file and their line.
    std::fs::write(
        &metrics,
        histogram
            .replace("seconds", "latency")
            .replace("9990", "many"),
    )
    .unwrap();
    let ran = run(&[&args[..2], &since].concat());
    assert_eq!(ran.status, 2);
    let named = format!("{metrics}: a bucket is written");
    assert!(ran.stderr.contains(&named), "{}", ran.stderr);
    assert!(ran.stderr.contains("(line 2)"), "{}", ran.stderr);

    let without = run(&["advise", &service]);
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
fn the_template_of_a_service_is_a_file_that_advise_accepts() {
    let template = run(&["simulate", "template", "service"]);
    assert_is_toml_of(&template.stdout, relent_sim::advise::FORMAT);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("orders.toml");
    std::fs::write(&file, template.stdout).unwrap();
    let file = file.to_str().unwrap();
    let advised = run(&["advise", file, "--seeds", "1", "--policy", "off"]);
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
