//! Every preset against its source: the delays at the random draws 0, ½ and 1 computed by hand, the
//! number of retries, limits, and the retried failures.

use std::time::Duration;

use relent::clock::Instant;
use relent::driver::{Decision, Session};
use relent::failure::{Cause, Network};
use relent::policy::{Ceiling, HintMode};
use relent::random::FixedRandom;
use relent::{Failure, FailureKind, Hint, NamedPolicy, Policy, StopReason, presets};

fn load(name: &str) -> Policy {
    presets::get(name).unwrap().load().unwrap().policy
}

/// A failed HTTP request with its default classification.
fn status(status: u16) -> Failure {
    let kind = match status {
        421 | 425 => FailureKind::NotProcessed,
        429 => FailureKind::Throttled,
        408 | 500 | 502 | 503 | 504 => FailureKind::Ambiguous,
        _ => FailureKind::Permanent,
    };
    Failure::new(kind).cause(Cause::Status(status))
}

fn timeout() -> Failure {
    Failure::ambiguous().cause(Cause::Timeout)
}

/// The delays in milliseconds if every attempt fails immediately with `failure`.
fn waits(policy: &Policy, failure: Failure, draw: f64) -> Vec<f64> {
    policy
        .waits_after(failure, FixedRandom::at(draw))
        .take(100)
        .map(|wait| wait.as_nanos() as f64 / 1e6)
        .collect()
}

/// Checks the delays at the draws 0, ½ and 1.
#[track_caller]
fn pinned(policy: &Policy, failure: Failure, expected: [&[f64]; 3]) {
    for (draw, expected) in [0.0, 0.5, 1.0].into_iter().zip(expected) {
        assert_eq!(waits(policy, failure, draw), expected, "at draw {draw}");
    }
}

fn decide(policy: &Policy, failure: Failure, repeatable: bool) -> Decision {
    let mut session = Session::new(Instant::ORIGIN, repeatable);
    session.on_attempt();
    session.on_failure(
        policy,
        Instant::ORIGIN,
        &failure,
        &mut FixedRandom::at(0.5),
        None,
    )
}

fn retries(policy: &Policy, failure: Failure, repeatable: bool) -> bool {
    matches!(decide(policy, failure, repeatable), Decision::Retry { .. })
}

/// Checks that exactly these statuses are retried for an operation that may run twice.
#[track_caller]
fn retried_statuses(policy: &Policy, expected: impl Fn(u16) -> bool) {
    for code in 100..600 {
        assert_eq!(
            retries(policy, status(code), true),
            expected(code),
            "status {code}"
        );
    }
}

#[test]
fn every_preset_parses_and_has_a_description_and_a_source() {
    assert_eq!(presets::names().len(), presets::all().len());
    for preset in presets::all() {
        let named = NamedPolicy::load(preset.name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(named.name.as_deref(), Some(preset.name));
        assert!(
            named.description.is_some_and(|text| !text.contains('\n')),
            "{}",
            preset.name
        );
        assert!(named.source.is_some(), "{}", preset.name);
        assert!(preset.text.starts_with("# "), "{}", preset.name);
        assert!(preset.text.contains("\n# Source: "), "{}", preset.name);
        let written = toml::to_string(&named.policy).unwrap();
        assert_eq!(
            toml::from_str::<Policy>(&written).unwrap(),
            named.policy,
            "{written}"
        );
    }
}

#[test]
fn the_policies_folder_contains_exactly_the_presets() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/policies");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let mut names: Vec<_> = presets::names()
        .iter()
        .map(|name| format!("{name}.toml"))
        .collect();
    names.sort();
    assert_eq!(files, names);
}

#[test]
fn no_preset_assumes_that_everything_is_repeatable() {
    for preset in presets::all() {
        assert!(!load(preset.name).assume_repeatable(), "{}", preset.name);
    }
}

#[test]
fn the_linter_finds_nothing_in_a_preset() {
    for preset in presets::all() {
        let findings = load(preset.name).lint();
        assert!(findings.is_empty(), "{}: {findings:?}", preset.name);
    }
}

#[test]
fn the_standard_preset_equals_its_constant() {
    let policy = load("standard");
    assert_eq!(&policy, Policy::STANDARD);
    // random · 100 ms · 2^n, seven times.
    pinned(
        &policy,
        status(502),
        [
            &[0.0; 7],
            &[50.0, 100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0],
            &[100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0, 6400.0],
        ],
    );
    assert!(policy.circuit_breaker().is_some());
    let budget = policy.budget().unwrap();
    assert_eq!((budget.ratio, budget.initial_tokens), (0.1, 10.0));
    assert_eq!(policy.hint(), HintMode::Floor);
}

#[test]
fn the_patient_preset_equals_its_constant() {
    let policy = load("patient");
    assert_eq!(&policy, Policy::PATIENT);
    // random · min(1 s · 2^n, 32 s), ten times.
    let upper = [1e3, 2e3, 4e3, 8e3, 16e3, 32e3, 32e3, 32e3, 32e3, 32e3];
    pinned(
        &policy,
        status(502),
        [&[0.0; 10], &upper.map(|wait| wait / 2.0), &upper],
    );
    assert!(policy.budget().is_none());
    // A single caller cannot cause a thundering herd, and a deadline leaves a final attempt.
    assert_eq!(policy.retry_after_jitter(), 0.25);
    assert!(policy.final_attempt_before_deadline());
    assert_eq!(Policy::STANDARD.retry_after_jitter(), 1.0);
    assert!(!Policy::STANDARD.final_attempt_before_deadline());
}

#[test]
fn poll_waits_a_tenth_of_the_elapsed_time() {
    let policy = load("poll");
    let at_half = waits(&policy, Failure::not_processed(), 0.5);
    // 1 s until a tenth of the elapsed time is more: after 10 s. The eleventh delay is a tenth of
    // 10 s, the twelfth of 11 s, the thirteenth of 12.1 s.
    assert_eq!(at_half[..11], [1000.0; 11]);
    assert_eq!(at_half[11..13], [1100.0, 1210.0]);
    // 10 s · 1.1^61 = 3350 s, and a tenth more is beyond the hour: 10 + 61 delays.
    assert_eq!(at_half.len(), 71);
    // ±10 %: 0.9 s and 1.1 s while the delay is 1 s.
    assert_eq!(
        waits(&policy, Failure::not_processed(), 0.0)[..3],
        [900.0; 3]
    );
    assert_eq!(
        waits(&policy, Failure::not_processed(), 1.0)[..3],
        [1100.0; 3]
    );
}

/// The source: min(1 s · 2^n, 32 s) + 0..1 s, exactly ten retries.
#[test]
fn api_design_patterns_waits() {
    let policy = load("api-design-patterns");
    let delays = [1e3, 2e3, 4e3, 8e3, 16e3, 32e3, 32e3, 32e3, 32e3, 32e3];
    pinned(
        &policy,
        status(503),
        [
            &delays,
            &delays.map(|delay| delay + 500.0),
            &delays.map(|delay| delay + 1000.0),
        ],
    );
    assert_eq!(
        policy.max_retries(),
        Some(10),
        "the listing allows an eleventh"
    );
}

/// The three tables of statuses of the source.
#[test]
fn api_design_patterns_eligibility() {
    let policy = load("api-design-patterns");
    for code in [408, 421, 425, 429, 503] {
        assert!(
            retries(&policy, status(code), false),
            "{code} was never processed"
        );
    }
    for code in [403, 405, 412, 501] {
        assert!(
            !retries(&policy, status(code), true),
            "{code} is never retried"
        );
    }
    for code in [500, 502, 504] {
        assert!(
            retries(&policy, status(code), true),
            "{code} may be retried"
        );
        let stop = decide(&policy, status(code), false).stop().unwrap();
        assert_eq!(
            stop.reason,
            StopReason::NotRepeatable,
            "{code} depends on the operation"
        );
    }
    let listed = [408, 421, 425, 429, 500, 502, 503, 504];
    retried_statuses(&policy, |code| listed.contains(&code));
}

/// A Retry-After replaces the computed delay, whether it is shorter or longer.
#[test]
fn api_design_patterns_retry_after_replaces() {
    let policy = load("api-design-patterns");
    for seconds in [0, 1, 60, 300] {
        let after = Duration::from_secs(seconds);
        let failure = status(429).hint(Hint::after(after));
        assert_eq!(decide(&policy, failure, false), Decision::Retry { after });
    }
    let failure = status(429).hint(Hint::after(Duration::from_secs(301)));
    let stop = decide(&policy, failure, false).stop().unwrap();
    assert_eq!(stop.reason, StopReason::RetryLater);
    assert_eq!(stop.retry_at, Some(Instant::from_nanos(301_000_000_000)));
}

/// The source: min(1000·2^n + 1..1000, 15000) ms, three times; 408: 1000 ms, once.
#[test]
fn vital_waits_per_status() {
    let policy = load("vital");
    // Additions: 1 at the lower end, 1 + 999/2 = 500.5 in the middle, 1000 at the upper end.
    for failure in [status(500), status(503), status(429)] {
        pinned(
            &policy,
            failure,
            [
                &[1001.0, 2001.0, 4001.0],
                &[1500.5, 2500.5, 4500.5],
                &[2000.0, 3000.0, 5000.0],
            ],
        );
    }
    for failure in [status(408), timeout()] {
        pinned(&policy, failure, [&[1000.0], &[1000.0], &[1000.0]]);
    }
    // The fifth delay is the first to reach the cap: 16000 + … > 15000.
    let longer = policy.into_builder().max_retries(5).build().unwrap();
    assert_eq!(waits(&longer, status(500), 0.0)[3..], [8001.0, 15000.0]);
}

/// The retried statuses and the attempt timeout of the source.
#[test]
fn vital_eligibility_and_attempt_timeout() {
    let policy = load("vital");
    retried_statuses(&policy, |code| code >= 500 || code == 408 || code == 429);
    assert_eq!(policy.attempt_timeout(), Some(Duration::from_secs(60)));
    assert!(
        !retries(&policy, status(500), false),
        "R2.5: only what is safe to repeat"
    );
}

/// The defaults of the source: three retries, 1000 ms apart, of network errors.
#[test]
fn fetch_retry_defaults() {
    let policy = load("fetch-retry");
    pinned(&policy, Failure::network(Network::Reset), [&[1000.0; 3]; 3]);
    retried_statuses(&policy, |_| false);
    let hinted = Failure::network(Network::Connect).hint(Hint::after(Duration::from_secs(9)));
    let after = Duration::from_secs(1);
    assert_eq!(decide(&policy, hinted, false), Decision::Retry { after });
}

/// The source: min(2^n + 0..1, 32) s until 300 s have passed.
#[test]
fn google_iam_waits() {
    let policy = load("google-iam");
    // The first five add up to 31, 33.5 and 36 s. Eight delays of 32 s (256 s) still start within
    // 300 s; a ninth would end at 319 s or later.
    let then = [32e3; 8];
    pinned(
        &policy,
        status(503),
        [
            &[&[1e3, 2e3, 4e3, 8e3, 16e3], &then[..]].concat(),
            &[&[1.5e3, 2.5e3, 4.5e3, 8.5e3, 16.5e3], &then[..]].concat(),
            &[&[2e3, 3e3, 5e3, 9e3, 17e3], &then[..]].concat(),
        ],
    );
    assert_eq!(policy.max_retries(), None);
    assert_eq!(policy.max_elapsed(), Some(Duration::from_secs(300)));
    assert_eq!(policy.ceiling(), Ceiling::AfterJitter);
}

/// The retried statuses of the source.
#[test]
fn google_iam_eligibility() {
    let policy = load("google-iam");
    retried_statuses(&policy, |code| [500, 502, 503, 504].contains(&code));
    assert!(
        !retries(&policy, status(503), false),
        "for requests that are safe to retry"
    );
    let text = presets::get("google-iam").unwrap().text;
    let text = text.replace("504, \"timeout\"", "504, 404, \"timeout\"");
    let after_create: Policy = toml::from_str(&text).unwrap();
    assert!(
        retries(&after_create, status(404), true),
        "as its comment says"
    );
}

/// The source: min(2^n + 0..1000 ms, 64 s), and the same interval after the maximum.
#[test]
fn memorystore_waits() {
    let policy = load("memorystore");
    pinned(
        &policy,
        status(503),
        [
            &[1e3, 2e3, 4e3, 8e3, 16e3, 32e3, 64e3, 64e3, 64e3, 64e3],
            &[
                1.5e3, 2.5e3, 4.5e3, 8.5e3, 16.5e3, 32.5e3, 64e3, 64e3, 64e3, 64e3,
            ],
            &[2e3, 3e3, 5e3, 9e3, 17e3, 33e3, 64e3, 64e3, 64e3, 64e3],
        ],
    );
    retried_statuses(&policy, |code| code >= 500 || code == 429);
}

/// The standard: r slots of 51.2 µs, r in 0..=2^min(n, 10) - 1, 16 attempts.
#[test]
fn ethernet_waits() {
    let policy = load("ethernet");
    let slots = |slots: [u32; 15]| slots.map(|slots| f64::from(slots) * 51_200.0 / 1e6);
    pinned(
        &policy,
        Failure::not_processed(),
        [
            &[0.0; 15],
            // Half of 2^k values, the upper of the two in the middle: 2^(k-1).
            &slots([
                1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 512, 512, 512, 512, 512,
            ]),
            &slots([
                1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 1023, 1023, 1023, 1023, 1023,
            ]),
        ],
    );
    assert_eq!(
        policy.max_retries(),
        Some(15),
        "16 attempts, the first one included"
    );
    // 1023 · 51.2 µs = 52.3776 ms.
    assert_eq!(waits(&policy, status(500), 1.0)[14], 52.3776);
}

/// The defaults of the library: 500 ms · 1.5^n, at most 60 s, each ±50 %, for 15 minutes.
#[test]
fn cenkalti_waits() {
    let policy = load("cenkalti");
    let failure = Failure::ambiguous();
    let middle = [
        500.0, 750.0, 1125.0, 1687.5, 2531.25, 3796.875, 5695.3125, 8542.96875,
    ];
    assert_eq!(waits(&policy, failure, 0.5)[..8], middle);
    assert_eq!(
        waits(&policy, failure, 0.0)[..8],
        middle.map(|wait| wait / 2.0)
    );
    assert_eq!(
        waits(&policy, failure, 1.0)[..8],
        middle.map(|wait| wait * 1.5)
    );
    // The maximum limits the interval, not the randomized delay.
    assert_eq!(waits(&policy, failure, 1.0).last(), Some(&90_000.0));
}

/// The table of its documentation, which rounds every row and continues with the rounded value.
#[test]
fn cenkalti_documented_sequence() {
    let documented = [
        0.5, 0.75, 1.125, 1.687, 2.53, 3.795, 5.692, 8.538, 12.807, 19.210,
    ];
    let ours = waits(&load("cenkalti"), Failure::ambiguous(), 0.5);
    for (ours, documented) in ours.iter().zip(documented) {
        assert!(
            (ours / 1000.0 / documented - 1.0).abs() < 0.001,
            "{ours} {documented}"
        );
    }
}

/// "We go over the MaxElapsedTime on the tenth try": only if the attempts themselves take the time.
#[test]
fn cenkalti_stops_at_the_tenth_attempt_when_time_is_up() {
    let policy = load("cenkalti");
    // 500 ms · (1.5^12 - 1) / 0.5 = 128.75 s for twelve waits, then 60 s each: twelve more end at
    // 848.75 s, a thirteenth would end at 908.75 s. Half: 64.37 s and 27 of 30 s (874.37 s). One and a
    // half: 193.12 s and 7 of 90 s (823.12 s).
    assert_eq!(waits(&policy, Failure::ambiguous(), 0.5).len(), 24);
    assert_eq!(waits(&policy, Failure::ambiguous(), 0.0).len(), 39);
    assert_eq!(waits(&policy, Failure::ambiguous(), 1.0).len(), 19);

    // Nine waits add up to 1.5^9 - 1 = 37.44 s; ten attempts of 85 s to 850 s: together 887.44 s, and
    // the tenth wait, 19.22 s, would end at 906.66 s.
    let attempt = Duration::from_secs(85);
    let mut session = Session::new(Instant::ORIGIN, true);
    let mut now = Instant::ORIGIN;
    for number in 1..=10 {
        assert_eq!(session.on_attempt(), number);
        now = now.saturating_add(attempt);
        let failure = Failure::ambiguous();
        match session.on_failure(&policy, now, &failure, &mut FixedRandom::at(0.5), None) {
            Decision::Retry { after } => now = now.saturating_add(after),
            Decision::Stop(stop) => {
                assert_eq!((number, stop.reason), (10, StopReason::MaxElapsed));
                return;
            }
        }
    }
    panic!("the tenth is Stop");
}

#[test]
fn cenkalti_retries_every_failure_that_is_not_permanent() {
    let policy = load("cenkalti");
    assert!(retries(&policy, Failure::ambiguous(), true));
    assert!(retries(
        &policy,
        Failure::ambiguous().cause(Cause::Exit(1)),
        true
    ));
    assert!(!retries(&policy, Failure::permanent(), true));
}

/// random · min(50 ms · 2^i, 20 s), or from 1 s when throttled; three attempts.
#[test]
fn aws_standard_waits() {
    let policy = load("aws-standard");
    pinned(
        &policy,
        status(503),
        [&[0.0, 0.0], &[25.0, 50.0], &[50.0, 100.0]],
    );
    pinned(
        &policy,
        status(429),
        [&[0.0, 0.0], &[500.0, 1000.0], &[1000.0, 2000.0]],
    );
    retried_statuses(&policy, |code| [429, 500, 502, 503, 504].contains(&code));
}

/// The hint is clamped to [backoff, backoff + 5 s]; backoff at draw ½: 25 ms, throttled 500 ms.
#[test]
fn aws_standard_clamps_the_server_time() {
    let policy = load("aws-standard");
    for (hint, wait) in [(1, 25), (2000, 2000), (60_000, 5025)] {
        let failure = status(503).hint(Hint::after(Duration::from_millis(hint)));
        let after = Duration::from_millis(wait);
        assert_eq!(
            decide(&policy, failure, true),
            Decision::Retry { after },
            "{hint}"
        );
    }
}

/// 500 tokens: 35 retries of 14 (490), and the remaining 10 are not enough for another; or 100 of
/// 5.
#[test]
fn aws_standard_quota() {
    let policy = load("aws-standard");
    for (kind, granted, left) in [
        (FailureKind::Ambiguous, 35, 10.0),
        (FailureKind::Throttled, 100, 0.0),
    ] {
        let budget = policy.new_budget().unwrap();
        let later = Instant::from_nanos(1 << 60);
        let count = std::iter::from_fn(|| budget.withdraw(later, kind)).count();
        assert_eq!((count, budget.balance()), (granted, left));
    }
}

/// random · min(1 s · 2^i, 20 s); three attempts; 500 tokens, 5 each: 100 retries.
#[test]
fn aws_legacy_waits_and_quota() {
    let policy = load("aws-legacy");
    pinned(
        &policy,
        status(503),
        [&[0.0, 0.0], &[500.0, 1000.0], &[1000.0, 2000.0]],
    );
    let budget = policy.new_budget().unwrap();
    let count =
        std::iter::from_fn(|| budget.withdraw(Instant::ORIGIN, FailureKind::Ambiguous)).count();
    assert_eq!((count, budget.balance()), (100, 0.0));
}

/// A timeout costs 10: 50 retries.
#[test]
fn aws_legacy_charges_10_for_a_timeout() {
    let policy = load("aws-legacy");
    let budget = policy.new_budget().unwrap();
    let timeout = Failure::ambiguous().cause(Cause::Timeout);
    let granted = std::iter::from_fn(|| {
        let mut session = Session::new(Instant::ORIGIN, true);
        session.on_attempt();
        let draw = &mut FixedRandom::at(0.5);
        let decision = session.on_failure(&policy, Instant::ORIGIN, &timeout, draw, Some(&budget));
        decision.stop().is_none().then_some(())
    });
    assert_eq!((granted.count(), budget.balance()), (50, 0.0));
}

/// gRFC A6: min(100 ms · 2^(n-1), 1 s) · 0.8..1.2; four attempts.
#[test]
fn grpc_waits() {
    let policy = load("grpc");
    let unavailable = Failure::ambiguous().cause(Cause::Grpc(14));
    pinned(
        &policy,
        unavailable,
        [
            &[80.0, 160.0, 320.0],
            &[100.0, 200.0, 400.0],
            &[120.0, 240.0, 480.0],
        ],
    );
    assert!(!retries(
        &policy,
        Failure::ambiguous().cause(Cause::Grpc(13)),
        true
    ));
    // Six retries reach the maximum: 100, 200, 400, 800 and 1000 ms.
    let longer = policy.into_builder().max_retries(5).build().unwrap();
    assert_eq!(waits(&longer, unavailable, 0.5)[3..], [800.0, 1000.0]);
}

/// gRFC A6: a pushback is exact, and the backoff restarts after it.
#[test]
fn grpc_pushback_restarts_the_backoff() {
    let policy = load("grpc");
    let unavailable = Failure::ambiguous().cause(Cause::Grpc(14));
    let pushback = unavailable.hint(Hint::after(Duration::from_millis(3)));
    let mut session = Session::new(Instant::ORIGIN, true);
    for (failure, wait) in [(unavailable, 100), (pushback, 3), (unavailable, 100)] {
        session.on_attempt();
        let now = Instant::ORIGIN;
        let decision = session.on_failure(&policy, now, &failure, &mut FixedRandom::at(0.5), None);
        assert_eq!(
            decision,
            Decision::Retry {
                after: Duration::from_millis(wait)
            }
        );
    }
}

/// gRFC A6: retries while more than 5 of 10 tokens are left: after 1, 2, 3 and 4 failures.
#[test]
fn grpc_throttling() {
    let policy = load("grpc");
    let budget = policy.new_budget().unwrap();
    let mut granted = 0;
    for _ in 0..10 {
        let mut session = Session::new(Instant::ORIGIN, true);
        session.on_attempt();
        let failure = Failure::ambiguous().cause(Cause::Grpc(14));
        let now = Instant::ORIGIN;
        let decision = session.on_failure(
            &policy,
            now,
            &failure,
            &mut FixedRandom::at(0.5),
            Some(&budget),
        );
        granted += u32::from(decision.stop().is_none());
    }
    assert_eq!((granted, budget.balance()), (4, 0.0));
}

/// gRFC A6: the failures that count for throttling.
#[test]
fn grpc_throttling_ignores_invalid_requests_and_unsent_attempts() {
    let policy = load("grpc");
    let unavailable = Failure::ambiguous().cause(Cause::Grpc(14));
    let refused = Failure::network(Network::RefusedStream);
    for (failures, balance) in [
        (vec![unavailable], 9.0),
        (vec![unavailable.hint(Hint::do_not_retry())], 9.0),
        (vec![Failure::permanent().cause(Cause::Grpc(3))], 10.0),
        (vec![refused], 10.0),
        (vec![refused, refused], 9.0),
    ] {
        let budget = policy.new_budget().unwrap();
        let mut session = Session::new(Instant::ORIGIN, true);
        for failure in &failures {
            session.on_attempt();
            let (now, draw) = (Instant::ORIGIN, &mut FixedRandom::at(0.5));
            session.on_failure(&policy, now, failure, draw, Some(&budget));
        }
        assert_eq!(budget.balance(), balance, "{failures:?}");
    }
}

/// gRFC A6: an attempt that no server saw is retried even while retries are throttled.
#[test]
fn grpc_throttling_allows_the_retry_of_an_unsent_attempt() {
    let policy = load("grpc");
    let budget = policy.new_budget().unwrap();
    for _ in 0..10 {
        budget.on_failure(FailureKind::Ambiguous);
    }
    let mut session = Session::new(Instant::ORIGIN, false);
    let refused = Failure::network(Network::RefusedStream);
    for stops in [None, Some("budget")] {
        session.on_attempt();
        let (now, draw) = (Instant::ORIGIN, &mut FixedRandom::at(0.5));
        let decision = session.on_failure(&policy, now, &refused, draw, Some(&budget));
        assert_eq!(decision.stop().map(|stop| stop.reason.name()), stops);
    }
}

/// One retry, random · 25 ms.
#[test]
fn envoy_waits() {
    let policy = load("envoy");
    pinned(&policy, status(503), [&[0.0], &[12.5], &[25.0]]);
    retried_statuses(&policy, |code| code >= 500);
    // 25, 50, 100, 200 and, at ten times the base, 250 ms.
    let longer = policy.into_builder().max_retries(6).build().unwrap();
    assert_eq!(waits(&longer, status(503), 1.0)[3..], [200.0, 250.0, 250.0]);
}

#[test]
fn envoy_does_not_retry_rejections_by_its_rate_limit() {
    let policy = load("envoy");
    // `x-envoy-ratelimited` makes a 503 throttled.
    let limited = Failure::throttled().cause(Cause::Status(503));
    assert!(!retries(&policy, limited, true));
    assert!(retries(&policy, status(503), true));
    assert!(
        retries(Policy::STANDARD, limited, false),
        "elsewhere it is throttled"
    );
}

/// Immediate; 10 per second over 10 s, plus a fifth of the requests.
#[test]
fn finagle_requeues_immediately_within_its_budget() {
    let policy = load("finagle");
    pinned(&policy, Failure::network(Network::Connect), [&[0.0; 20]; 3]);
    let budget = policy.new_budget().unwrap();
    let drain =
        |now| std::iter::from_fn(|| budget.withdraw(now, FailureKind::NotProcessed)).count();
    let second = Instant::from_nanos(1_000_000_000);
    assert_eq!(drain(Instant::ORIGIN), 100);
    assert_eq!(drain(second), 10);
    for _ in 0..50 {
        budget.on_request();
    }
    assert_eq!(drain(second), 10);
    assert!(
        !retries(&policy, Failure::network(Network::Reset), true),
        "it may have been sent"
    );
}

/// RFC 6298 (2.1) and (5.5): 1 s, doubled each time, whatever the draw.
#[test]
fn tcp_waits() {
    let policy = load("tcp");
    let timeouts: [f64; 6] = [1e3, 2e3, 4e3, 8e3, 16e3, 32e3];
    pinned(&policy, timeout(), [&timeouts; 3]);
    assert!(
        policy.max_delay().unwrap() >= Duration::from_secs(60),
        "RFC 6298 (2.5)"
    );
}

/// The published notification schedules of providers, without jitter, and their totals.
#[test]
fn notifications_are_repeated_as_published() {
    const S: f64 = 1e3;
    const M: f64 = 60.0 * S;
    const H: f64 = 60.0 * M;
    let published: [(&str, &[f64], f64); 6] = [
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
                60.0 * M,
                3.0 * H,
                3.0 * H,
                3.0 * H,
                6.0 * H,
                6.0 * H,
            ],
            24.0 * H + 4.0 * M,
        ),
        (
            "wechat-pay-v2",
            &[
                15.0, 15.0, 30.0, 180.0, 1800.0, 1800.0, 1800.0, 1800.0, 3600.0,
            ]
            .map(|s| s * S),
            3.0 * H + 4.0 * M,
        ),
        (
            "alipay",
            &[4.0, 10.0, 10.0, 60.0, 120.0, 360.0, 900.0].map(|m| m * M),
            24.0 * H + 24.0 * M,
        ),
        (
            "circle-cpn",
            &[
                1.0, 10.0, 30.0, 60.0, 900.0, 3600.0, 10800.0, 18000.0, 21600.0, 36000.0, 39600.0,
            ]
            .map(|s| s * S),
            36.0 * H + 16.0 * M + 41.0 * S,
        ),
        (
            "juspay-upi",
            &[
                1.0, 5.0, 5.0, 10.0, 10.0, 10.0, 10.0, 10.0, 60.0, 60.0, 60.0, 60.0, 60.0, 360.0,
                360.0, 360.0,
            ]
            .map(|m| m * M),
            24.0 * H + M,
        ),
        ("sns", &[20.0 * S; 3], M),
    ];
    for (name, delays, total) in published {
        let policy = load(name);
        pinned(&policy, status(503), [delays; 3]);
        assert_eq!(delays.iter().sum::<f64>(), total, "{name}");
    }
    let nmi = waits(&load("nmi"), status(503), 0.5);
    assert_eq!((nmi.len(), nmi[0], nmi[19]), (20, 15.0 * S, 24.0 * H));
    assert_eq!(
        nmi.iter().sum::<f64>(),
        58.0 * H + 53.0 * M + 15.0 * S,
        "about the three days that NMI names"
    );
    for (name, retries, total, spread) in [
        ("standard-webhooks", 9, 75.0 * H + 35.0 * M + 5.0 * S, 0.1),
        ("svix", 7, 27.0 * H + 35.0 * M + 5.0 * S, 0.2),
    ] {
        let policy = load(name);
        for (draw, factor) in [(0.0, 1.0 - spread), (0.5, 1.0), (1.0, 1.0 + spread)] {
            let waits = waits(&policy, status(503), draw);
            let sum = waits.iter().sum::<f64>();
            assert_eq!(waits.len(), retries, "{name}");
            assert!((sum - total * factor).abs() < 1.0, "{name}: {sum}");
        }
    }
}

/// Every response that is not an acknowledgement is retried, also a redirect and a 4xx.
#[test]
fn a_notification_is_repeated_until_it_is_acknowledged() {
    for (name, gone) in [
        ("wechat-pay", true),
        ("wechat-pay-v2", true),
        ("alipay", true),
        ("circle-cpn", true),
        ("juspay-upi", true),
        ("nmi", true),
        ("standard-webhooks", false),
        ("svix", false),
        ("stripe-like", false),
    ] {
        let policy = load(name);
        retried_statuses(&policy, |code| code >= 300 && (gone || code != 410));
        assert!(retries(&policy, timeout(), true), "{name}");
    }
    retried_statuses(&load("sns"), |code| code >= 500 || code == 429);
}

/// Up to three days, 1 min doubling to 12 h.
#[test]
fn stripe_like_lasts_three_days() {
    let policy = load("stripe-like");
    assert_eq!(policy.max_elapsed(), Some(Duration::from_secs(72 * 3600)));
    let longest = waits(&policy, status(500), 1.0);
    assert_eq!(longest[..3], [60e3, 120e3, 240e3]);
    assert_eq!(longest[10], 12.0 * 3600e3);
}

/// Code that takes an iterator of durations must not get an empty one because a preset lists the
/// statuses that it retries.
#[test]
fn every_preset_makes_waits() {
    for preset in presets::all() {
        let policy = preset.load().unwrap().policy;
        assert!(
            policy.waits(FixedRandom::at(0.5)).next().is_some(),
            "{}",
            preset.name
        );
    }
}
