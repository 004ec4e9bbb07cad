//! Tests that `relent fetch` applies the whole policy, also the parts that callers of a destination share.

use std::io::Write;
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use crate::fetch_support::{fetch, refused};
use crate::scripted::{Server, Step, response};

/// A policy that retries immediately, with additional settings.
fn policy(more: &str) -> NamedTempFile {
    let mut file = NamedTempFile::with_suffix(".toml").unwrap();
    let constant = "jitter = 'none'\n[backoff.constant]\ndelay = '1ms'";
    write!(file, "max_retries = 'unlimited'\n{constant}\n{more}").unwrap();
    file
}

fn refusing() -> Server {
    Server::script((0..1000).map(|_| Step::Answer(response(502, &[], "down"))))
}

#[test]
fn fetch_attempts_respect_the_rate_limit_of_the_policy() {
    let policy = policy("[rate_limit]\nlimit = 5\nburst = 1");
    let (server, start) = (refusing(), Instant::now());
    let policy = policy.path().to_str().unwrap();
    let fetched = fetch(&["--policy", policy, &server.url("/")]);
    // The second to the fourth attempt wait 0.2 s each.
    assert!(start.elapsed() >= Duration::from_millis(600));
    assert_eq!((fetched.status, server.count()), (22, 4));
    let held = "is held by the rate limit for at most ";
    assert_eq!(
        fetched.stderr.matches(held).count(),
        3,
        "{}",
        fetched.stderr
    );
}

#[test]
fn the_last_response_is_printed_if_the_next_slot_is_beyond_the_limit() {
    let policy = policy("[rate_limit]\nlimit = 0.001\nburst = 1");
    let server = refusing();
    let policy = policy.path().to_str().unwrap();
    let fetched = fetch(&["--policy", policy, &server.url("/")]);
    assert_eq!((fetched.status, server.count()), (75, 1));
    assert_eq!(fetched.stdout, b"down");
    assert!(
        fetched.stderr.contains("; come back at "),
        "{}",
        fetched.stderr
    );
}

#[test]
fn a_fetch_that_keeps_failing_is_probed_by_the_circuit_breaker() {
    let policy = policy("[circuit_breaker]\nfirst_probe = '500ms'");
    let server = refusing();
    let policy = policy.path().to_str().unwrap();
    let limits = ["--max-retries", "unlimited", "--deadline", "3s"];
    let url = server.url("/");
    let args = ["--policy", policy, &url];
    let fetched = fetch(&[&args[..], &limits].concat());
    assert_eq!(fetched.status, 22);
    // It was held until the deadline, and its last response had arrived before.
    assert_eq!(fetched.stdout, b"down", "{}", fetched.stderr);
    // Without the circuit breaker there would be hundreds.
    assert!((2..100).contains(&server.count()), "{}", server.count());
}

#[test]
fn without_a_deadline_a_fetch_from_a_closed_port_ends_with_a_reason() {
    let policy = policy("[circuit_breaker]\nmax_queue_time_without_response = '1s'");
    let (began, url) = (Instant::now(), format!("http://{}/", refused()));
    let policy = policy.path().to_str().unwrap();
    let fetched = fetch(&["--policy", policy, "--max-retries", "unlimited", &url]);
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    let said = fetched.stderr;
    assert_eq!(fetched.status, 7, "{said}");
    let queued = " is held by the circuit breaker for at most ";
    assert!(
        said.contains(queued) && said.contains("Connection refused"),
        "{said}"
    );
    assert!(
        said.contains(", and without --deadline no attempt starts after 1s"),
        "{said}"
    );
}

#[test]
fn fetch_with_standard_from_a_closed_port_ends_within_ten_seconds() {
    let (began, url) = (Instant::now(), format!("http://{}/", refused()));
    let fetched = fetch(&["--policy", "standard", &url]);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    let said = fetched.stderr;
    assert_eq!(fetched.status, 7, "{said}");
    assert!(said.contains("Connection refused"), "{said}");
}

#[test]
fn a_download_is_never_hedged_and_reports_it() {
    let policy = policy("[hedge]\ndelay = '10ms'");
    let late = Step::Slow(
        Duration::from_millis(300),
        usize::MAX,
        response(200, &[], "done"),
    );
    let server = Server::script([late]);
    let fetched = fetch(&[
        "--policy",
        policy.path().to_str().unwrap(),
        &server.url("/"),
    ]);
    assert_eq!((fetched.status, server.count()), (0, 1));
    let said = fetched.stderr;
    assert!(
        said.contains("the [hedge] of the policy does not apply"),
        "{said}"
    );
}
