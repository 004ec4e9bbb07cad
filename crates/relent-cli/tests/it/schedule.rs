//! Tests of `relent schedule`: the numbers, and the end of the table.

use serde_json::Value;

use crate::support::{Ran, finish, relent, run};

fn json(args: &[&str]) -> (Ran, Vec<Value>) {
    let mut all = vec!["schedule", "--json"];
    all.extend(args);
    let ran = run(&all);
    assert_eq!(ran.status, 0, "{args:?}: {}", ran.stderr);
    let rows = serde_json::from_str(&ran.stdout).unwrap();
    (ran, rows)
}

fn column(rows: &[Value], key: &str) -> Vec<f64> {
    rows.iter().map(|row| row[key].as_f64().unwrap()).collect()
}

#[test]
fn the_random_option_sets_the_position_of_a_delay_in_its_range() {
    let range = [1000.0, 2000.0, 4000.0];
    for (random, share) in [("0", 0.0), ("0.5", 0.5), ("1", 1.0)] {
        let (_, rows) = json(&["--max-retries", "3", "--random", random]);
        assert_eq!(column(&rows, "delay_ms"), range.map(|most| most * share));
        assert_eq!(column(&rows, "min_ms"), [0.0; 3]);
        assert_eq!(column(&rows, "max_ms"), range);
        assert_eq!(
            column(&rows, "total_ms"),
            [1000.0, 3000.0, 7000.0].map(|sum| sum * share)
        );
        assert_eq!(column(&rows, "retry"), [1.0, 2.0, 3.0]);
    }
    let (_, rows) = json(&["--max-retries", "1"]);
    assert_eq!(column(&rows, "delay_ms"), [500.0], "0.5 if not given");
}

#[test]
fn schedule_milliseconds_have_fractions() {
    let (_, rows) = json(&["--policy", "ethernet", "--random", "1"]);
    assert_eq!(rows.len(), 15);
    assert_eq!(column(&rows[..2], "delay_ms"), [0.0512, 0.1536]);
}

#[test]
fn the_range_of_decorrelated_jitter_follows_from_the_previous_delay() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("walk.toml");
    std::fs::write(
        &file,
        "backoff.decorrelated = { initial = \"1s\" }\nmax_retries = 3\n",
    )
    .unwrap();
    let (_, rows) = json(&["--policy", file.to_str().unwrap(), "--random", "1"]);
    assert_eq!(column(&rows, "delay_ms"), [3000.0, 9000.0, 27000.0]);
    assert_eq!(column(&rows, "min_ms"), [1000.0; 3]);
    assert_eq!(column(&rows, "max_ms"), [3000.0, 9000.0, 27000.0]);
}

#[test]
fn the_shortened_last_delay_before_a_deadline_is_shown() {
    // With the longest delays 1 s, 2 s and 4 s fit into 12 s, and 5 s are left for the next of 8 s. The last
    // attempt gets a quarter of them.
    let (ran, rows) = json(&["--deadline", "12s", "--random", "1"]);
    assert_eq!(column(&rows, "delay_ms"), [1000.0, 2000.0, 4000.0, 3750.0]);
    assert_eq!(column(&rows, "max_ms"), [1000.0, 2000.0, 4000.0, 3750.0]);
    assert_eq!(column(&rows, "min_ms"), [0.0; 4]);
    assert_eq!(ran.stderr, "");
    // A policy without that setting ends there.
    let (_, rows) = json(&["--policy", "standard", "--deadline", "1s", "--random", "1"]);
    assert_eq!(column(&rows, "delay_ms"), [100.0, 200.0, 400.0]);
}

#[test]
fn the_status_option_selects_the_rule_that_is_shown() {
    // 5xx and 429: 1000·2^n + 1..1000 ms; 408: once after 1 s.
    let (_, rows) = json(&["--policy", "vital", "--status", "408"]);
    assert_eq!(column(&rows, "delay_ms"), [1000.0]);
    let (_, by_status) = json(&["--policy", "vital", "--status", "503"]);
    let (_, first) = json(&["--policy", "vital"]);
    assert_eq!(by_status, first);
    assert_eq!(first.len(), 3);
    // Only the failures of its rule are retried.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("exits.toml");
    let text = "backoff = \"none\"\nmax_retries = 9\nretry_on = [404, \"exit:75\"]\nstop_on = [404]\n\
                [[rules]]\non = [\"exit:75\"]\nmax_retries = 2\nbackoff.constant = { delay = \"5ms\" }\n";
    std::fs::write(&file, text).unwrap();
    let table = run(&["schedule", "--policy", file.to_str().unwrap()]).stdout;
    assert!(table.contains(", after exit 75, "), "{table}");
    assert!(table.contains("\n3 attempts, "), "{table}");
}

#[test]
fn throttling_has_its_own_first_delay() {
    let options = ["--policy", "aws-standard", "--random", "1", "--status"];
    let (_, rows) = json(&[&options[..], &["429"]].concat());
    assert_eq!(column(&rows[..1], "delay_ms"), [1000.0]);
    let (_, rows) = json(&[&options[..], &["500"]].concat());
    assert_eq!(column(&rows[..1], "delay_ms"), [50.0]);
}

#[test]
fn a_status_that_is_not_retried_is_reported() {
    for status in ["404", "501"] {
        let (ran, rows) = json(&["--status", status]);
        assert!(rows.is_empty());
        assert!(
            ran.stderr
                .contains(&format!("does not retry after status {status}"))
        );
    }
    let ran = run(&["schedule", "--status", "404", "--quiet"]);
    assert!(ran.stdout.contains("no retries") && ran.stderr.is_empty());
}

#[test]
fn an_endless_schedule_is_cut_at_twenty_rows_with_a_note() {
    for endless in ["unlimited", "4294967295"] {
        let (ran, rows) = json(&["--max-retries", endless]);
        assert_eq!(rows.len(), 20);
        assert!(
            ran.stderr.contains("the first 20 are shown"),
            "{}",
            ran.stderr
        );
    }
    // Delays of zero never reach the time limit.
    let (_, rows) = json(&[
        "--max-retries",
        "unlimited",
        "--deadline",
        "1h",
        "--random",
        "0",
    ]);
    assert_eq!(rows.len(), 20);
}

#[test]
fn a_time_limit_ends_the_schedule() {
    let options = [
        "--policy",
        "standard",
        "--jitter",
        "none",
        "--deadline",
        "1s",
    ];
    let (ran, rows) = json(&options);
    // 0.1 + 0.2 + 0.4 s fit, 0.8 s more would be too late; the range of a delay does not depend on the limit.
    assert_eq!(column(&rows, "total_ms"), [100.0, 300.0, 700.0]);
    assert_eq!(ran.stderr, "");
    // `patient` makes one more attempt: 3 s are left, and the attempt gets a quarter of them.
    let (_, rows) = json(&["--jitter", "none", "--deadline", "10s"]);
    assert_eq!(column(&rows[..3], "total_ms"), [1000.0, 3000.0, 7000.0]);
    assert_eq!(
        (&rows[3]["min_ms"], &rows[3]["max_ms"]),
        (&1687.5.into(), &2250.0.into())
    );
    assert_eq!(rows.len(), 4);
}

#[test]
fn a_status_below_400_is_a_failure_where_the_policy_lists_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("polling.toml");
    let text = "retry_on = [202]\nmax_retries = 2\nbackoff.constant = { delay = \"5ms\" }\n";
    std::fs::write(&file, text).unwrap();
    let options = ["--policy", file.to_str().unwrap(), "--status", "202"];
    let (_, rows) = json(&options);
    assert_eq!(rows.len(), 2);
}

#[test]
fn a_seed_gives_the_same_delays_each_time() {
    let (first, rows) = json(&["--seed", "7"]);
    let (second, _) = json(&["--seed", "7"]);
    let (other, _) = json(&["--seed", "8"]);
    assert_eq!(first.stdout, second.stdout);
    assert_ne!(first.stdout, other.stdout);
    for row in &rows {
        assert!(row["min_ms"].as_f64() <= row["delay_ms"].as_f64());
        assert!(row["delay_ms"].as_f64() <= row["max_ms"].as_f64());
    }
}

#[test]
fn a_run_has_the_same_delays_as_the_schedule_with_its_seed() {
    let options = ["--seed", "3", "--initial", "20ms", "--max-retries", "3"];
    let (_, rows) = json(&options);
    let command = ["run", "--trace", "-", "--quiet"];
    let ran = run(&[&command[..], &options, &["--", "false"]].concat());
    let trace: Value = serde_json::from_str(&ran.stderr).unwrap();
    let waits: Vec<_> = trace["attempts"].as_array().unwrap()[..3]
        .iter()
        .map(|attempt| attempt["wait_ms"].as_f64().unwrap())
        .collect();
    assert_eq!(waits, column(&rows, "delay_ms"));
}

#[test]
fn the_schedule_uses_ascii_if_the_locale_does() {
    let args = ["schedule", "--max-retries", "2"];
    assert!(run(&args).stdout.contains('█'));
    let ascii = finish(relent(&args).env("LC_ALL", "C").spawn().unwrap());
    assert!(
        ascii.stdout.is_ascii() && ascii.stdout.contains('#'),
        "{}",
        ascii.stdout
    );
}

#[test]
fn a_schedule_table_ends_with_the_sum() {
    let table = run(&["schedule", "--jitter", "none", "--max-retries", "3"]).stdout;
    assert!(
        table.starts_with("patient, after a failure, random delays at the middle of their range\n"),
        "{table}"
    );
    assert!(table.ends_with("\n4 attempts, 7s of waiting\n"), "{table}");
}

#[test]
fn the_schedule_of_a_policy_with_a_circuit_breaker_shows_the_queue_time() {
    let table = run(&["schedule", "--policy", "standard"]).stdout;
    let says = "no attempt starts later than 30s after the call began, or 9s while there was never a response; \
                with a deadline it is queued until then, for 5m at most\n";
    assert!(table.ends_with(says), "{table}");
    let table = run(&["schedule", "--policy", "standard", "--deadline", "1m"]).stdout;
    assert!(table.ends_with(", until 1m after its start\n"), "{table}");
    let table = run(&["schedule", "--policy", "off"]).stdout;
    assert!(!table.contains("queued"), "{table}");
}

/// The schedules for redelivery are shown as their providers publish them.
#[test]
fn redelivery_schedules_are_shown_as_published() {
    const S: f64 = 1e3;
    const M: f64 = 60.0 * S;
    const H: f64 = 60.0 * M;
    let nmi = [
        &[15.0 * S, M, M, M, 5.0 * M, 15.0 * M, 30.0 * M][..],
        &[H; 10],
        &[12.0 * H, 12.0 * H, 24.0 * H],
    ]
    .concat();
    let published: [(&str, &[f64], f64); 9] = [
        (
            "wechat-pay",
            &[
                15.0 * S,
                15.0 * S,
                30.0 * S,
                3.0 * M,
                10.0 * M,
                20.0 * M,
                30.0 * M,
                30.0 * M,
                30.0 * M,
                H,
                3.0 * H,
                3.0 * H,
                3.0 * H,
                6.0 * H,
                6.0 * H,
            ],
            0.0,
        ),
        (
            "wechat-pay-v2",
            &[
                15.0 * S,
                15.0 * S,
                30.0 * S,
                180.0 * S,
                1800.0 * S,
                1800.0 * S,
                1800.0 * S,
                1800.0 * S,
                3600.0 * S,
            ],
            0.0,
        ),
        (
            "alipay",
            &[4.0 * M, 10.0 * M, 10.0 * M, H, 2.0 * H, 6.0 * H, 15.0 * H],
            0.0,
        ),
        (
            "svix",
            &[
                5.0 * S,
                5.0 * M,
                30.0 * M,
                2.0 * H,
                5.0 * H,
                10.0 * H,
                10.0 * H,
            ],
            0.2,
        ),
        (
            "standard-webhooks",
            &[
                5.0 * S,
                5.0 * M,
                30.0 * M,
                2.0 * H,
                5.0 * H,
                10.0 * H,
                14.0 * H,
                20.0 * H,
                24.0 * H,
            ],
            0.1,
        ),
        (
            "circle-cpn",
            &[
                S,
                10.0 * S,
                30.0 * S,
                M,
                15.0 * M,
                H,
                3.0 * H,
                5.0 * H,
                6.0 * H,
                10.0 * H,
                11.0 * H,
            ],
            0.0,
        ),
        (
            "juspay-upi",
            &[
                M,
                5.0 * M,
                5.0 * M,
                10.0 * M,
                10.0 * M,
                10.0 * M,
                10.0 * M,
                10.0 * M,
                H,
                H,
                H,
                H,
                H,
                6.0 * H,
                6.0 * H,
                6.0 * H,
            ],
            0.0,
        ),
        ("nmi", &nmi, 0.0),
        ("sns", &[20.0 * S; 3], 0.0),
    ];
    for (name, delays, spread) in published {
        let (_, rows) = json(&["--policy", name]);
        let near = |shown: Vec<f64>, factor: f64| {
            assert_eq!(shown.len(), delays.len(), "{name}");
            for (shown, delay) in shown.iter().zip(delays) {
                assert!(
                    (shown - delay * factor).abs() < 1.0,
                    "{name}: {shown} for {delay}"
                );
            }
        };
        near(column(&rows, "delay_ms"), 1.0);
        near(column(&rows, "min_ms"), 1.0 - spread);
        near(column(&rows, "max_ms"), 1.0 + spread);
    }
    // The provider publishes only that it is exponential and ends after three days.
    let (_, rows) = json(&["--policy", "stripe-like", "--random", "1"]);
    let delays = column(&rows, "delay_ms");
    assert!(
        delays
            .iter()
            .zip(&delays[1..])
            .all(|(one, next)| *next == (one * 2.0).min(12.0 * H))
    );
    let total = delays.iter().sum::<f64>();
    assert!((48.0 * H..=72.0 * H).contains(&total), "{total}");
}
