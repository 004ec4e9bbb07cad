//! Tests of the policy options, and of the messages for options that contradict a policy.

use super::*;
use clap::Parser;
use proptest::prelude::*;

#[derive(Parser)]
#[command(args_override_self = true)]
struct Line {
    #[command(flatten)]
    options: PolicyOptions,
}

fn options(args: &[&str]) -> PolicyOptions {
    let line = Line::try_parse_from(std::iter::once(&"relent").chain(args));
    line.unwrap_or_else(|error| panic!("{error}")).options
}

fn resolve(args: &[&str], variable: Option<&str>) -> Result<ResolvedPolicy, String> {
    options(args).resolve_in(variable.map(str::to_owned).ok_or(VarError::NotPresent))
}

fn policy(args: &[&str]) -> Policy {
    resolve(args, None).unwrap().policy
}

#[test]
fn without_options_the_policy_is_patient() {
    assert_eq!(policy(&[]), *Policy::PATIENT);
    assert_eq!(resolve(&[], Some("")).unwrap().policy, *Policy::PATIENT);
}

#[test]
fn the_policy_option_overrides_the_environment() {
    let chosen = resolve(&[], Some("standard")).unwrap();
    assert_eq!(
        (chosen.name.as_str(), &chosen.policy),
        ("standard", Policy::STANDARD)
    );
    let chosen = resolve(&["--policy", "patient"], Some("standard")).unwrap();
    assert_eq!(chosen.policy, *Policy::PATIENT);
}

#[test]
fn relent_policy_off_overrides_all_options() {
    let wanted = ["--policy", "standard", "--max-retries", "7"];
    assert_eq!(policy(&wanted).max_retries(), Some(7));
    let chosen = resolve(&wanted, Some("off")).unwrap();
    assert_eq!(chosen.policy.max_retries(), Some(0));
    assert_eq!(policy(&["--policy", "off"]).max_retries(), Some(0));
}

#[test]
fn relent_policy_off_keeps_the_limits_of_the_chosen_policy() {
    // The maximum delay of `patient` would contradict these options.
    let options = ["--policy=cenkalti", "--initial=40s", "--attempt-timeout=3s"];
    assert!(resolve(&options, None).is_ok());
    let chosen = resolve(&options, Some("off")).unwrap();
    assert!(chosen.policy.is_off());
    assert_eq!(
        chosen.policy.attempt_timeout(),
        Some(Duration::from_secs(3))
    );
}

#[test]
fn off_is_the_same_policy_in_option_variable_and_library() {
    let off = NamedPolicy::load("off").unwrap().policy;
    assert!(off.is_off());
    assert_eq!(policy(&["--policy", "off"]), off);
    assert_eq!(resolve(&[], Some("off")).unwrap().policy, off);
    let error = resolve(&[], Some("OFF")).unwrap_err();
    assert!(error.contains("did you mean `off`?"), "{error}");
}

#[test]
fn attempts_is_one_more_than_max_retries() {
    assert_eq!(policy(&["--attempts", "1"]).max_retries(), Some(0));
    assert_eq!(policy(&["--attempts", "5"]).max_retries(), Some(4));
    assert_eq!(policy(&["--attempts", "unlimited"]).max_retries(), None);
    let both = ["--attempts", "5", "--max-retries", "9"];
    assert_eq!(policy(&both).max_retries(), Some(9));
    let both = ["--max-retries", "9", "--attempts", "5"];
    assert_eq!(policy(&both).max_retries(), Some(4));
}

#[test]
fn the_delay_option_is_a_constant_backoff() {
    let waits = |args: &[&str]| -> Vec<_> {
        let policy = policy(args);
        let waits = policy.waits(SessionRandom::with_seed(1)).take(5);
        waits.map(|wait| wait.as_millis()).collect()
    };
    assert_eq!(waits(&["--delay", "5s"]), [5000; 5]);
    // Above the maximum delay of `patient`.
    assert_eq!(waits(&["--delay", "1m"]), [60_000; 5]);
    assert_eq!(waits(&["--delay", "0s"]), [0; 5]);
    assert_eq!(waits(&["--policy", "ethernet", "--delay", "2s"]), [2000; 5]);
    let jittered = waits(&["--delay", "5s", "--jitter", "equal"]);
    assert!(jittered.iter().all(|wait| (2500..=5000).contains(wait)));
    assert_ne!(jittered, [5000; 5]);
}

#[test]
fn a_misspelt_policy_error_names_option_or_variable() {
    let error = resolve(&[], Some("patiemt")).unwrap_err();
    assert!(error.starts_with("RELENT_POLICY=patiemt in the environment: "));
    assert!(error.contains("did you mean `patient`?"), "{error}");
    let error = resolve(&["--policy", "patiemt"], Some("standard")).unwrap_err();
    assert!(error.starts_with("--policy patiemt: "), "{error}");
}

#[test]
fn options_change_the_policy() {
    let policy = policy(&[
        "--max-retries=unlimited",
        "--initial=2s",
        "--factor=3",
        "--max-delay=1m",
        "--jitter=proportional:0.2",
        "--deadline=10m",
        "--attempt-timeout=5s",
    ]);
    let expected = Policy::builder(Backoff::Exponential {
        initial: Duration::from_secs(2),
        factor: 3.0,
    })
    .unlimited_retries()
    .max_delay(Duration::from_secs(60))
    .jitter(Jitter::Proportional(0.2))
    .deadline(Duration::from_secs(600))
    .attempt_timeout(Duration::from_secs(5))
    // As in `patient`, on which the options are applied.
    .final_attempt_before_deadline(true)
    .retry_after_jitter(0.25)
    .build();
    assert_eq!(policy, expected.unwrap());
}

#[test]
fn the_last_of_two_equal_options_counts() {
    let policy = policy(&["--max-retries", "1", "--max-retries", "2"]);
    assert_eq!(policy.max_retries(), Some(2));
}

#[test]
fn a_contradiction_names_the_option() {
    for (args, says) in [
        (
            &["--max-delay", "10ms"][..],
            "--max-delay 10ms: the maximum delay may not be below the first delay, which is 1s in \
             policy `patient`: give a lower --initial too",
        ),
        (
            &["--max-delay", "1s", "--initial", "2s"],
            "--max-delay 1s: the maximum delay may not be below the first delay, which is 2s",
        ),
        (
            &["--initial", "60s"],
            "--initial 1m: policy `patient` has a maximum delay of 32s: give a higher --max-delay too",
        ),
        (
            &["--deadline", "0"],
            "--deadline 0s: a deadline has to be longer than 0s",
        ),
        (
            &["--attempt-timeout", "0s"],
            "--attempt-timeout 0s: an attempt needs some time",
        ),
        (
            &["--policy", "ethernet", "--jitter", "full"],
            "--jitter full: this backoff draws its own randomness",
        ),
        (
            &["--policy", "ethernet", "--initial", "1s"],
            "--initial 1s: policy `ethernet` has no first delay to change, its backoff is slotted",
        ),
        (
            &["--policy", "fetch-retry", "--factor", "3"],
            "--factor 3: policy `fetch-retry` has no factor to change, its backoff is constant",
        ),
        (
            &["--policy", "aws-standard", "--max-delay", "100ms"],
            "--max-delay 100ms contradicts policy `aws-standard`: throttled_initial is 1s",
        ),
    ] {
        let error = resolve(args, None).unwrap_err();
        assert!(error.starts_with(says), "{args:?}: {error}");
    }
}

#[test]
fn invalid_option_values_are_refused_with_the_accepted_format() {
    for (args, says) in [
        (["--initial", "-5s"], "is negative"),
        (["--initial", "5"], "has no unit"),
        (["--deadline", "99999999999d"], "longer than 584 years"),
        (["--max-delay", ""], "is empty"),
        (["--max-delay", "--quiet"], "needs a value"),
        (
            ["--max-retries", "-1"],
            "use a whole number from 0 to 4294967295, or unlimited",
        ),
        (["--max-retries", "+1"], "use a whole number"),
        (["--max-retries", "99999999999"], "use a whole number"),
        (["--max-retries", ""], "use a whole number"),
        (
            ["--attempts", "0"],
            "use a whole number from 1 to 4294967295, or unlimited",
        ),
        (["--delay", "5"], "has no unit"),
        (["--factor", "0.5"], "from 1 up"),
        (["--factor", "NaN"], "from 1 up"),
        (["--factor", "inf"], "from 1 up"),
        (["--jitter", "ful"], "full"),
        (["--seed", "-1"], "use a whole number"),
    ] {
        let Err(error) = Line::try_parse_from(["relent", args[0], args[1]]) else {
            panic!("{args:?} was accepted");
        };
        assert!(error.to_string().contains(says), "{args:?}: {error}");
    }
}

proptest! {
    #[test]
    fn any_text_is_a_value_or_an_explained_error(text in ".{0,20}") {
        for parsed in [
            duration(&text).map(|_| ()),
            retries(&text).map(|_| ()),
            attempts(&text).map(|_| ()),
            seed(&text).map(|_| ()),
            factor(&text).map(|_| ()),
            jitter(&text).map(|_| ()),
        ] {
            if let Err(error) = parsed {
                prop_assert!(!error.is_empty());
            }
        }
    }
}
