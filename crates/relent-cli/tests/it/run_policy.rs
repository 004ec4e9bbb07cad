//! Tests that `relent run` applies the whole policy, also the parts that callers of a destination share.

use std::io::{BufRead, BufReader, Write};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use tempfile::NamedTempFile;

use crate::run_support::{code, finish, output, pid, sh, sh_with_messages, text};

/// A policy that retries a failed command immediately, with additional settings.
fn policy(more: &str) -> NamedTempFile {
    let mut file = NamedTempFile::with_suffix(".toml").unwrap();
    let constant = "jitter = 'none'\n[backoff.constant]\ndelay = '1ms'";
    write!(file, "max_retries = 'unlimited'\n{constant}\n{more}").unwrap();
    file
}

fn path(file: &NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}

#[test]
fn run_attempts_respect_the_rate_limit_of_the_policy() {
    let policy = policy("[rate_limit]\nlimit = 5\nburst = 1");
    let start = Instant::now();
    let result = output(sh_with_messages(
        &["--policy", path(&policy), "--attempts", "4"],
        "exit 7",
    ));
    // The second to the fourth attempt wait 0.2 s each.
    assert!(start.elapsed() >= Duration::from_millis(600));
    let said = text(&result.stderr);
    assert_eq!(code(&result), 7, "{said}");
    assert!(said.contains("gave up after 4 attempts"), "{said}");
    let held = "is held by the rate limit for at most ";
    assert_eq!(said.matches(held).count(), 3, "{said}");
}

#[test]
fn a_run_ends_if_its_rate_limit_slot_is_beyond_the_limit() {
    let policy = policy("[rate_limit]\nlimit = 0.001\nburst = 1");
    for (script, status) in [("exit 7", 7), ("exit 0", 123)] {
        let options = ["--policy", path(&policy), "--retry-on-exit", "0-255"];
        let result = output(sh_with_messages(&options, script));
        let said = text(&result.stderr);
        assert_eq!(code(&result), status, "{said}");
        assert!(said.contains("gave up after 1 attempt in"), "{said}");
        assert!(said.contains("; come back at "), "{said}");
    }
}

#[test]
fn a_run_that_keeps_failing_is_probed_by_the_circuit_breaker() {
    let policy = policy("[circuit_breaker]\nfirst_probe = '500ms'");
    let options = ["--policy", path(&policy), "--deadline", "3s"];
    let result = output(sh(&options, "echo x; exit 1"));
    let attempts =
        text(&result.stderr).matches('x').count() + text(&result.stdout).matches('x').count();
    // Without the circuit breaker there would be hundreds.
    assert!((2..100).contains(&attempts), "{attempts}");
    assert_eq!(code(&result), 124);
}

#[test]
fn without_a_deadline_a_queued_run_ends_with_a_reason() {
    let policy = policy("[circuit_breaker]\nmax_queue_time_without_deadline = '1s'");
    let (began, options) = (Instant::now(), ["--policy", path(&policy)]);
    let result = output(sh_with_messages(&options, "exit 7"));
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    let said = text(&result.stderr);
    assert_eq!(code(&result), 124, "{said}");
    let queued = " is held by the circuit breaker for at most ";
    assert!(said.contains(queued), "{said}");
    assert!(
        said.contains(", and without --deadline no attempt starts after 1s"),
        "{said}"
    );
}

#[test]
fn a_signal_ends_the_wait_of_a_held_attempt() {
    let policy = policy("[rate_limit]\nlimit = 0.01\nburst = 1");
    let mut child = sh_with_messages(&["--policy", path(&policy)], "exit 7")
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stderr.as_mut().unwrap()).lines();
    let held = said
        .map_while(Result::ok)
        .find(|line| line.contains("attempt 2 is held by the rate limit"));
    assert!(held.is_some());
    kill(pid(&child), Signal::SIGTERM).unwrap();
    assert_eq!(code(&finish(child)), 128 + Signal::SIGTERM as i32);
}

#[test]
fn a_command_is_never_hedged_and_relent_reports_it() {
    let policy = policy("[hedge]\ndelay = '10ms'");
    let options = ["--policy", path(&policy)];
    let result = output(sh_with_messages(
        &options,
        "echo $RELENT_ATTEMPT; sleep 0.2",
    ));
    assert_eq!((code(&result), text(&result.stdout)), (0, "1\n"));
    let said = text(&result.stderr);
    assert!(
        said.contains("the [hedge] of the policy does not apply"),
        "{said}"
    );
    let quiet = output(sh(&options, "exit 0"));
    assert_eq!(text(&quiet.stderr), "");
}
