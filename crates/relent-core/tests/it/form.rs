//! The file form of a policy.

use std::time::Duration;

use proptest::prelude::*;
use relent_core::{
    Backoff, BudgetConfig, Ceiling, HedgeConfig, HedgeDelay, HintMode, Jitter, Pattern, Policy,
    Rule, ThrottleConfig, parse_duration,
};

use crate::any_policy::policy;

fn seconds(text: &str) -> Duration {
    parse_duration(text).unwrap()
}

#[track_caller]
fn toml_error(text: &str, words: &[&str]) {
    let error = toml::from_str::<Policy>(text).unwrap_err().to_string();
    for word in words {
        assert!(error.contains(word), "{text}\n{error}");
    }
}

const EVERY_KEY: &str = r#"
description = "every key"
source = "this test"
max_retries = 7
max_elapsed = "15m"
deadline = "300s"
attempt_timeout = "60s"
min_attempt_time = "100ms"
final_attempt_before_deadline = true
max_delay = "32s"
ceiling = "after_jitter"
jitter = "additive:1ms..1s"
throttled_initial = "2s"
hint = "clamp"
max_hint = "1m"
retry_after_jitter = 0.5
retry_on = ["5xx", 429, "network", "exit:75"]
stop_on = ["500-504"]
not_processed = [408, 503]
assume_repeatable = true
retries = "off"
backoff.exponential = { initial = "1s", factor = 1.5 }

[[rules]]
on = [408, "timeout"]
backoff.constant = { delay = "1s" }
jitter = "none"
max_delay = "1s"
max_retries = 1
attempt_timeout = "120s"

[budget]
ratio = 0.2
success = 1
initial_tokens = 500
per_second = 0
capacity = 500
cost = 14
throttled_cost = 5
timeout_cost = 10
overload_reserve = 2
queue_when_exhausted = true
min_tokens = 1
refund_on_success = true
charge_failures = false

[hedge]
percentile = 0.9
least = "2ms"
most = "3s"
samples = 150
max_hedges = 2

[throttle]
factor = 1.5
window = "1m"
"#;

fn every_key() -> Policy {
    Policy::builder(Backoff::Exponential {
        initial: seconds("1s"),
        factor: 1.5,
    })
    .max_retries(7)
    .max_elapsed(seconds("15m"))
    .deadline(seconds("5m"))
    .attempt_timeout(seconds("1m"))
    .min_attempt_time(seconds("100ms"))
    .final_attempt_before_deadline(true)
    .max_delay(seconds("32s"))
    .ceiling(Ceiling::AfterJitter)
    .jitter(Jitter::Additive {
        min: seconds("1ms"),
        max: seconds("1s"),
    })
    .throttled_initial(seconds("2s"))
    .hint(HintMode::Clamp)
    .max_hint(seconds("1m"))
    .retry_after_jitter(0.5)
    .retry_on([
        Pattern::Status(500, 599),
        Pattern::Status(429, 429),
        Pattern::Network,
        Pattern::Exit(75, 75),
    ])
    .stop_on([Pattern::Status(500, 504)])
    .not_processed([Pattern::Status(408, 408), Pattern::Status(503, 503)])
    .assume_repeatable(true)
    .retries_off(true)
    .rule(Rule {
        on: vec![Pattern::Status(408, 408), Pattern::Timeout],
        backoff: Some(Backoff::constant(seconds("1s"))),
        jitter: Some(Jitter::None),
        max_delay: Some(seconds("1s")),
        max_retries: Some(1),
        attempt_timeout: Some(seconds("2m")),
    })
    .budget(BudgetConfig {
        ratio: 0.2,
        success: 1.0,
        initial_tokens: 500.0,
        per_second: 0.0,
        capacity: 500.0,
        cost: 14.0,
        throttled_cost: 5.0,
        timeout_cost: Some(10.0),
        overload_reserve: 2.0,
        queue_when_exhausted: true,
        min_tokens: 1.0,
        refund_on_success: true,
        charge_failures: false,
    })
    .hedge(HedgeConfig {
        delay: HedgeDelay::Percentile {
            percentile: 0.9,
            least: seconds("2ms"),
            most: seconds("3s"),
            samples: 150,
        },
        max_hedges: 2,
    })
    .throttle(ThrottleConfig {
        factor: 1.5,
        window: seconds("1m"),
    })
    .build()
    .unwrap()
}

#[test]
fn every_policy_key_is_parsed() {
    assert_eq!(toml::from_str::<Policy>(EVERY_KEY).unwrap(), every_key());
}

#[test]
fn policy_json_has_the_same_keys_as_toml() {
    let value: toml::Table = toml::from_str(EVERY_KEY).unwrap();
    let json = serde_json::to_string(&value).unwrap();
    assert_eq!(serde_json::from_str::<Policy>(&json).unwrap(), every_key());
}

#[test]
fn absent_keys_are_the_defaults_of_the_builder() {
    for (text, backoff) in [
        ("backoff = 'none'", Backoff::None),
        (
            "backoff.constant = { delay = '1s' }",
            Backoff::constant(seconds("1s")),
        ),
        (
            "backoff.linear = { initial = '1s', step = '2s' }",
            Backoff::linear(seconds("1s"), seconds("2s")),
        ),
        (
            "backoff.exponential = { initial = '2m' }",
            Backoff::exponential(seconds("2m")),
        ),
        (
            "backoff.fibonacci = { initial = '1s' }",
            Backoff::fibonacci(seconds("1s")),
        ),
        (
            "backoff.decorrelated = { initial = '1s' }",
            Backoff::decorrelated(seconds("1s")),
        ),
        (
            "backoff.slotted = { slot = '51.2us' }",
            Backoff::slotted(seconds("51.2us")),
        ),
        (
            "backoff.schedule = { delays = ['1s', '5s', '0'] }",
            Backoff::schedule([seconds("1s"), seconds("5s"), Duration::ZERO]),
        ),
        (
            "backoff.elapsed = { initial = '1s', fraction = 0.1 }",
            Backoff::elapsed(seconds("1s"), 0.1),
        ),
        (
            "backoff.chain = [{ retries = 3, backoff = 'none' },
                              { backoff.exponential = { initial = '1s' } }]",
            Backoff::None.then(3, Backoff::exponential(seconds("1s"))),
        ),
    ] {
        let policy: Policy = toml::from_str(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(policy, Policy::builder(backoff).build().unwrap(), "{text}");
    }
}

#[test]
fn a_hedge_needs_only_its_delay_and_defaults_the_rest() {
    for (text, config) in [
        ("delay = '50ms'", HedgeConfig::after(seconds("50ms"))),
        (
            "delay = '0s'\nmax_hedges = 4",
            HedgeConfig::after(Duration::ZERO).max_hedges(4),
        ),
        ("percentile = 0.95", HedgeConfig::percentile(0.95)),
        (
            "percentile = 0.5\nmax_hedges = 2",
            HedgeConfig::percentile(0.5).max_hedges(2),
        ),
    ] {
        let text = format!("backoff = 'none'\n[hedge]\n{text}");
        let policy: Policy = toml::from_str(&text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(policy.hedge(), Some(&config), "{text}");
    }
    let policy: Policy = toml::from_str("backoff = 'none'\n[throttle]").unwrap();
    assert_eq!(policy.throttle(), Some(&ThrottleConfig::DEFAULT));
    for preset in [Policy::STANDARD, Policy::PATIENT] {
        assert_eq!((preset.hedge(), preset.throttle()), (None, None));
    }
}

#[test]
fn unlimited_is_written_as_a_word() {
    let policy: Policy = toml::from_str(
        "backoff.exponential = { initial = '1s' }
         max_retries = 'unlimited'
         max_delay = 'unlimited'
         max_elapsed = 'unlimited'
         deadline = 'unlimited'
         attempt_timeout = 'unlimited'",
    )
    .unwrap();
    let expected = Policy::builder(Backoff::exponential(seconds("1s")))
        .unlimited_retries()
        .unlimited_delay();
    assert_eq!(policy, expected.build().unwrap());
    let none: Policy = toml::from_str("backoff = 'none'\nmax_retries = 0").unwrap();
    assert_eq!(none.max_retries(), Some(0));
}

#[test]
fn a_written_policy_omits_every_default() {
    let written = toml::to_string(&Policy::PATIENT).unwrap();
    assert_eq!(
        written,
        "max_retries = 10\nfinal_attempt_before_deadline = true\nmax_delay = \"32s\"\nretry_after_jitter = 0.25\n\n\
         [backoff.exponential]\ninitial = \"1s\"\n"
    );
    let written = serde_json::to_string(&Policy::STANDARD).unwrap();
    assert_eq!(
        written,
        r#"{"max_retries":7,"max_delay":"20s","backoff":{"exponential":{"initial":"100ms"}},"budget":{"per_second":0.0,"timeout_cost":3.0,"overload_reserve":8.0,"queue_when_exhausted":true,"refund_on_success":true},"circuit_breaker":{}}"#
    );
}

#[test]
fn errors_for_wrong_values_name_the_accepted_ones() {
    const E: &str = "backoff.exponential = { initial = '1s' }\n";
    for (text, words) in [
        ("max_delay = 5", &["no unit", "250ms", "unlimited"][..]),
        ("max_delay = '-1s'", &["negative"]),
        ("max_delay = 1.5", &["no unit"]),
        ("min_attempt_time = '5 parsecs'", &["unknown unit"]),
        (
            "retry_after_jitter = 0",
            &["retry_after_jitter is 0", "above 0, at most 1"],
        ),
        (
            "final_attempt_before_deadline = 'yes'",
            &["final_attempt_before_deadline", "boolean"],
        ),
        ("deadline = true", &["boolean", "duration such as"]),
        (
            "max_retries = -1",
            &["invalid number of retries \"-1\"", "unlimited"],
        ),
        ("max_retries = 99999999999", &["invalid number of retries"]),
        ("max_retries = 1.5", &["invalid number of retries"]),
        ("max_retries = 'ten'", &["invalid number of retries"]),
        ("jitter = 'ful'", &["ful", "full"]),
        ("jitter = 0.5", &["0.5", "full"]),
        ("hint = 'flor'", &["flor", "floor", "ignore"]),
        ("hint = 1", &["floor", "ignore"]),
        ("ceiling = 'none'", &["before_jitter", "after_jitter"]),
        ("retries = true", &["on", "off"]),
        ("retry_on = [600]", &["600", "names no failure", "5xx"]),
        ("retry_on = ['tiemout']", &["tiemout", "timeout"]),
        ("retry_on = 503", &["sequence"]),
        ("stop_on = [{}]", &["a failure such as 503"]),
        ("budget.ratio = -1", &["ratio is -1", "number of tokens"]),
        ("max_delay = '10ms'", &["max_delay is 10ms", "first delay"]),
        (
            "hedge = {}",
            &["missing key `delay` or `percentile`", "50ms"],
        ),
        (
            "hedge = { delay = '1s', percentile = 0.9 }",
            &["a `delay` and a `percentile`", "one of them"],
        ),
        (
            "hedge = { delay = '1s', most = '2s' }",
            &["most is out of place", "belongs to a `percentile`"],
        ),
        (
            "hedge.percentile = 95",
            &["percentile is 95", "0.5", "0.999", "0.95"],
        ),
        ("hedge.percentile = 1", &["percentile is 1", "0.999"]),
        (
            "hedge = { delay = '1s', max_hedges = 0 }",
            &["max_hedges is 0", "from 1 to 4", "leave hedging out"],
        ),
        ("hedge.delay = 50", &["no unit", "250ms"]),
        ("throttle.factor = 0.5", &["factor is 0.5", "from 1 up"]),
        ("throttle.window = '0s'", &["window is 0s", "2m is usual"]),
        ("rules = [{ on = [] }]", &["at least one failure"]),
        (
            "rules = [{ on = ['any'], max_retries = 256 }]",
            &["at most 255"],
        ),
        (
            "rules = [{ on = ['any'], max_retries = 'unlimited' }]",
            &["whole number"],
        ),
    ] {
        toml_error(&format!("{E}{text}"), words);
    }
    for (text, words) in [
        (
            "max_retries = 3",
            &["missing key `backoff`", "exponential"][..],
        ),
        ("backoff = 'exponential'", &["exponential"]),
        ("backoff = { exponential = {} }", &["missing key `initial`"]),
        ("backoff = { constant = {} }", &["missing key `delay`"]),
        ("backoff = { slotted = {} }", &["missing key `slot`"]),
        (
            "backoff = { exponential = { initial = '1s', factor = 0.5 } }",
            &["factor is 0.5"],
        ),
        (
            "backoff = { exponential = { initial = '1s', factor = nan } }",
            &["factor is NaN"],
        ),
        (
            "backoff = { exponental = { initial = '1s' } }",
            &["exponental", "`exponential`"],
        ),
        (
            "backoff = { schedule = { delays = [] } }",
            &["at least one delay"],
        ),
        ("backoff = { chain = [] }", &["at least one phase"]),
        (
            "backoff = { chain = [{ retries = 3 }] }",
            &["missing key `backoff` of a phase"],
        ),
    ] {
        toml_error(text, words);
    }
}

#[test]
fn unknown_and_duplicate_keys_are_rejected_everywhere() {
    for text in [
        "max_retrys = 3\nbackoff = 'none'",
        "backoff.constant = { delay = '1s', dealy = '1s' }",
        "backoff.exponential = { initial = '1s', jitter = 'none' }",
        "backoff.chain = [{ backoff = 'none', delay = '1s' }]",
        "backoff = 'none'\n[[rules]]\non = ['any']\nonn = []",
        "backoff = 'none'\n[budget]\nratios = 1",
        "backoff = 'none'\n[hedge]\ndelay = '1s'\nhedges = 1",
        "backoff = 'none'\n[throttle]\nk = 2",
    ] {
        toml_error(text, &["unknown field", "expected"]);
    }
    toml_error("backoff = 'none'\nbackoff = 'none'", &["duplicate"]);
    let twice = r#"{"backoff": "none", "max_retries": 1, "max_retries": 2}"#;
    let error = serde_json::from_str::<Policy>(twice)
        .unwrap_err()
        .to_string();
    assert!(error.contains("duplicate field `max_retries`"), "{error}");
}

/// `null` could mean "unlimited" or "default", so it is rejected.
#[test]
fn null_is_refused() {
    for key in ["max_retries", "max_delay", "budget", "rules", "description"] {
        let text = format!(r#"{{"backoff": "none", "{key}": null}}"#);
        let error = serde_json::from_str::<Policy>(&text).unwrap_err();
        assert!(error.to_string().contains("null"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_local_rejects: 1_000_000, ..ProptestConfig::default() })]

    #[test]
    fn a_written_policy_reads_back_equal(policy in policy()) {
        let written = toml::to_string(&policy).unwrap();
        let read: Policy = toml::from_str(&written)
            .map_err(|error| TestCaseError::fail(format!("{written}\n{error}")))?;
        prop_assert_eq!(&read, &policy, "{}", written);
        let written = serde_json::to_string(&policy).unwrap();
        let read: Policy = serde_json::from_str(&written)
            .map_err(|error| TestCaseError::fail(format!("{written}\n{error}")))?;
        prop_assert_eq!(&read, &policy, "{}", written);
    }
}

#[test]
fn a_policy_with_the_longest_durations_round_trips() {
    let policy = Policy::builder(Backoff::constant(Duration::MAX))
        .jitter(Jitter::additive(Duration::MAX))
        .max_elapsed(Duration::MAX)
        .max_hint(Duration::MAX)
        .build()
        .unwrap();
    let text = toml::to_string(&policy).unwrap();
    assert_eq!(toml::from_str::<Policy>(&text).unwrap(), policy, "{text}");
}
