use proptest::prelude::*;

use super::*;
use crate::Backoff;

const TWO: &str = "
[policies.quick]
description = 'at once'
backoff = 'none'

[policies.slow]
source = 'here'
max_retries = 9
backoff.constant = { delay = '1m' }
";

#[track_caller]
fn refused(text: &str) -> String {
    PolicyFile::parse(text).unwrap_err().to_string()
}

#[test]
fn a_file_is_one_policy_or_several() {
    let one = PolicyFile::parse("description = 'd'\nsource = 's'\nbackoff = 'none'").unwrap();
    let policy = one.get(None).unwrap();
    assert_eq!(policy.name, None);
    assert_eq!(policy.description.as_deref(), Some("d"));
    assert_eq!(policy.source.as_deref(), Some("s"));
    assert_eq!(
        policy.policy,
        Policy::builder(Backoff::None).build().unwrap()
    );
    assert_eq!(one.names().count(), 0);

    let two = PolicyFile::parse(TWO).unwrap();
    assert_eq!(two.names().collect::<Vec<_>>(), ["quick", "slow"]);
    let slow = two.get(Some("slow")).unwrap();
    assert_eq!(
        (slow.name.as_deref(), slow.source.as_deref()),
        (Some("slow"), Some("here"))
    );
    assert_eq!(slow.policy.max_retries(), Some(9));
    assert_eq!(two.policies()[0].description.as_deref(), Some("at once"));
}

/// The documentation of the keys is a valid policy file, with valid alternatives and the default
/// values.
#[test]
fn the_documented_policy_keys_match_the_parser() {
    let source = include_str!("../policy_file.rs");
    let (_, page) = source.split_once("/// ```toml\n").unwrap();
    let (page, _) = page.split_once("/// ```").unwrap();
    let page: String = page
        .lines()
        .map(|line| format!("{}\n", line.trim_start_matches("///").trim()))
        .collect();
    let documented = PolicyFile::parse(&page).unwrap_or_else(|error| panic!("{error}"));
    let policy = &documented.get(None).unwrap().policy;
    let budget = *policy.budget().unwrap();
    assert_eq!(budget, crate::policy::BudgetConfig::DEFAULT);
    let rate = crate::policy::RateLimitConfig {
        burst: Some(10),
        ..crate::policy::RateLimitConfig::new(100.0)
    };
    assert_eq!(policy.rate_limit(), Some(&rate));
    assert_eq!(
        policy.hedge(),
        Some(&crate::policy::HedgeConfig::percentile(0.95))
    );
    assert_eq!(
        policy.throttle(),
        Some(&crate::policy::ThrottleConfig::DEFAULT)
    );
    let written = "backoff.exponential = { initial = \"1s\", factor = 2 }";
    let others: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# ")?.split_once("backoff"))
        .map(|(_, backoff)| format!("backoff{backoff}\njitter = \"none\""))
        .collect();
    assert_eq!(others.len(), 9);
    let throttled = page
        .lines()
        .find(|line| line.starts_with("throttled_initial"));
    for other in others {
        let mut page = page
            .replace(written, &other)
            .replacen("jitter = \"full\"", "", 1);
        // These have no first delay that throttling could replace.
        let without = ["backoff = \"none\"", "backoff.slotted", "backoff.schedule"];
        if without.iter().any(|kind| other.starts_with(kind)) {
            let error = PolicyFile::parse(&page).unwrap_err().to_string();
            assert!(
                error.contains("throttled_initial is 2s"),
                "{other}: {error}"
            );
            page = page.replacen(throttled.unwrap(), "", 1);
        }
        PolicyFile::parse(&page).unwrap_or_else(|error| panic!("{other}: {error}"));
    }
}

/// As the descriptions of `jitter` and `max_delay` in the schema, which the page on policy files shows.
#[test]
fn an_absent_jitter_or_cap_depends_on_the_backoff() {
    use std::time::Duration;

    use relent_core::Jitter;
    let minute = Some(Duration::from_secs(60));
    let ten_minutes = Some(Duration::from_secs(600));
    let tenth = Jitter::Proportional(0.1);
    for (backoff, jitter, cap) in [
        ("'none'", Jitter::None, None),
        ("{ constant = { delay = '2m' } }", Jitter::Full, None),
        (
            "{ linear = { initial = '1s', step = '1s' } }",
            Jitter::Full,
            minute,
        ),
        ("{ exponential = { initial = '1s' } }", Jitter::Full, minute),
        (
            "{ exponential = { initial = '10m' } }",
            Jitter::Full,
            ten_minutes,
        ),
        ("{ fibonacci = { initial = '1s' } }", Jitter::Full, minute),
        (
            "{ decorrelated = { initial = '1s' } }",
            Jitter::None,
            minute,
        ),
        (
            "{ slotted = { slot = '1s', exponent_limit = 10 } }",
            Jitter::None,
            None,
        ),
        ("{ schedule = { delays = ['1s', '6h'] } }", tenth, None),
        (
            "{ elapsed = { initial = '1s', fraction = 0.1 } }",
            tenth,
            None,
        ),
    ] {
        let file = PolicyFile::parse(&format!("backoff = {backoff}"))
            .unwrap_or_else(|error| panic!("{backoff}: {error}"));
        let policy = &file.get(None).unwrap().policy;
        assert_eq!(policy.jitter(), jitter, "{backoff}");
        assert_eq!(policy.max_delay(), cap, "{backoff}");
    }
}

#[test]
fn a_text_that_starts_with_a_brace_is_parsed_as_json() {
    let file = PolicyFile::parse(
        "\u{feff}\n {\"policies\": {\"b\": {\"backoff\": \"none\"},
          \"a\": {\"backoff\": {\"constant\": {\"delay\": \"1s\"}}, \"description\": \"d\"}}}",
    )
    .unwrap();
    assert_eq!(file.names().collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!(
        file.get(Some("a")).unwrap().description.as_deref(),
        Some("d")
    );
}

#[test]
fn the_error_for_an_unknown_policy_lists_the_known_ones() {
    let two = PolicyFile::parse(TWO).unwrap();
    let of = |name| two.get(name).unwrap_err().to_string();
    assert_eq!(
        of(None),
        "holds several policies: choose one as FILE#NAME, where NAME is that of [policies.NAME], of \
         quick, slow"
    );
    assert_eq!(
        of(Some("quik")),
        "holds no [policies.quik]: did you mean `quick`?"
    );
    assert_eq!(
        of(Some("x")),
        "holds no [policies.x]: there are quick, slow"
    );
    let one = PolicyFile::parse("backoff = 'none'").unwrap();
    assert_eq!(
        one.get(Some("x")).unwrap_err().to_string(),
        "holds one policy without a name, and none named \"x\": leave out \"#x\", or put \
         the policy under [policies.x]"
    );
}

#[test]
fn the_error_for_a_former_key_names_the_present_one() {
    for (text, former, present) in [
        ("gate = {}", "gate", "circuit_breaker"),
        (
            "cut_last_wait = true",
            "cut_last_wait",
            "final_attempt_before_deadline",
        ),
        ("budget.reserve = 10", "reserve", "initial_tokens"),
        (
            "circuit_breaker.patience = '5m'",
            "patience",
            "max_queue_time",
        ),
        ("rate_limit.adapt = true", "adapt", "adaptive"),
    ] {
        let error = refused(&format!("backoff = 'none'\n{text}"));
        let expected = format!("unknown key `{former}` (line 2, column ");
        assert!(error.starts_with(&expected), "{error}");
        let expected = format!("): it is called `{present}` now\n");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn the_error_for_an_unknown_key_has_its_line_and_the_nearest_key() {
    assert_eq!(
        refused("backoff = 'none'\n\nmax_retrys = 10"),
        "unknown key `max_retrys` (line 3, column 1): did you mean `max_retries`?\n  \
         3 | max_retrys = 10"
    );
    assert_eq!(
        refused("[policies.a.backoff.exponential]\nintial = '1s'"),
        "unknown key `intial` (line 2, column 1): did you mean `initial`?\n  2 | intial = '1s'"
    );
    assert_eq!(
        refused("backoff = { exponental = { initial = '1s' } }")
            .lines()
            .next()
            .unwrap(),
        "`exponental` is not known here (line 1, column 13): did you mean `exponential`?"
    );
    assert_eq!(
        refused("backoff = 'none'\n[[rules]]\non = ['any']\ndelay = '1s'")
            .lines()
            .next()
            .unwrap(),
        "unknown key `delay` (line 4, column 1): known are on, max_retries, attempt_timeout, \
         max_delay, jitter, backoff"
    );
    assert_eq!(
        refused("backoff = 'none'\nhint = 'obey'")
            .lines()
            .next()
            .unwrap(),
        "`obey` is not known here (line 2, column 8): known are floor, replace, clamp, exact, ignore"
    );
    assert!(
        refused("max_retries = 1\n[policies.a]\nbackoff = 'none'")
            .starts_with("unknown key `max_retries` (line 1, column 1): a file holds one policy")
    );
    assert_eq!(
        refused("{\n \"backoff\": \"none\",\n \"max_retrys\": 10}"),
        "unknown key `max_retrys` (line 3, column 13): did you mean `max_retries`?\n  \
         3 |  \"max_retrys\": 10}"
    );
}

#[test]
fn a_key_of_the_policy_below_a_table_has_an_error_that_names_its_place() {
    for (text, key, line) in [
        (
            "[backoff.schedule]\ndelays = ['5s']\njitter = 'none'",
            "jitter",
            3,
        ),
        ("backoff = 'none'\n[hedge]\ndeadline = '3s'", "deadline", 3),
        (
            "[policies.a.backoff.constant]\ndelay = '1s'\nmax_retries = 2",
            "max_retries",
            3,
        ),
        (
            "backoff = 'none'\n[budget]\nratio = 0.1\n[budget.retry_on]",
            "retry_on",
            4,
        ),
    ] {
        let error = refused(text);
        let expected = format!("unknown key `{key}` (line {line}, column ");
        assert!(error.starts_with(&expected), "{error}");
        assert!(
            error.contains("): it belongs to the whole policy, not to this table"),
            "{error}"
        );
    }
}

#[test]
fn a_wrong_value_is_shown_with_its_line() {
    assert_eq!(
        refused("backoff = 'none'\ndeadline = '5 parsecs'"),
        "duration \"5 parsecs\" has an unknown unit (ns, us, ms, s, m, h and d are known): write \
         it like 250ms, 1.5s, 2m or 1h30m, or unlimited (line 2, column 12)\n  \
         2 | deadline = '5 parsecs'"
    );
    let ratio = refused("backoff = 'none'\nbudget.ratio = 'ten'");
    assert!(
        ratio.contains("expected a number (line 2, column 16)"),
        "{ratio}"
    );
    let one = refused("backoff = 'none'\nretry_on = '5xx'");
    assert!(
        one.contains("expected a list in brackets (line 2, column 12)"),
        "{one}"
    );
    let twice = refused("backoff = 'none'\nbackoff = 'none'");
    assert!(
        twice.contains("duplicate key (line 2, column 1)"),
        "{twice}"
    );
}

#[test]
fn the_error_for_a_backoff_without_exactly_one_kind_says_so() {
    for text in [
        "[backoff]",
        "[backoff]\nconstant.delay = '1s'\nexponential.initial = '1s'",
        "backoff = 3",
        r#"{"backoff": {}}"#,
        r#"{"backoff": {"constant": {"delay": "1s"}, "exponential": {"initial": "1s"}}}"#,
        r#"{"policies": {"a": {"backoff": {}}}}"#,
    ] {
        let message = refused(text);
        assert!(
            message.starts_with("a backoff is of exactly one kind: \"none\", or"),
            "{message}"
        );
    }
}

#[test]
fn invalid_json_is_not_reported_as_a_backoff_error() {
    let message = refused(r#"{"max_retries": }"#);
    assert!(message.starts_with("expected value (line 1,"), "{message}");
}

#[test]
fn a_contradiction_is_reported_at_its_key() {
    assert_eq!(
        refused("# max_delay = '1m'\nmax_delay = '1s'\n\n[backoff.constant]\ndelay = '1m'\n"),
        "max_delay is 1s: the ceiling may not be below the first delay of the backoff \
         (line 2, column 1)\n  2 | max_delay = '1s'"
    );
    let nested = refused("[policies.a]\nmax_delay = '1s'\nbackoff.constant = { delay = '1m' }\n");
    assert!(
        nested.contains("(line 1, column 1)\n  1 | [policies.a]"),
        "{nested}"
    );
    // The place of a key that occurs twice is not guessed.
    let rules = "max_delay = '2m'\nbackoff.constant = { delay = '1m' }\n\
                 [[rules]]\non = ['any']\nmax_delay = '1s'";
    assert_eq!(PolicyFile::parse(rules).unwrap_err().line(), None);
    let missing = refused("max_retries = 3\nretries = 'on'\n");
    assert!(
        missing.starts_with("missing key `backoff`: use"),
        "{missing}"
    );
}

#[test]
fn syntax_errors_have_a_line() {
    let error = PolicyFile::parse("backoff = 'none'\nmax_retries = = 3").unwrap_err();
    assert_eq!(
        (error.line(), error.column()),
        (Some(2), Some(15)),
        "{error}"
    );
    let error = PolicyFile::parse("{\"backoff\": \"none\",\n}").unwrap_err();
    assert_eq!(error.line(), Some(2), "{error}");
    for text in [
        "",
        "[policies]",
        "policies = {}",
        "{\"policies\": {}}",
        "[policies.'']",
        "policies = 3",
    ] {
        let error = refused(text);
        assert!(
            error.contains("polic") || error.contains("`backoff`"),
            "{text}: {error}"
        );
    }
}

#[test]
fn policy_names_are_unique_and_selectable() {
    let twice = refused(r#"{"policies": {"a": {"backoff": "none"}, "a": {"backoff": "none"}}}"#);
    assert!(twice.contains("\"a\" stands here twice"), "{twice}");
    let sign = refused("[policies.'a#b']\nbackoff = 'none'");
    assert!(sign.contains("cannot name a policy"), "{sign}");
}

#[test]
fn large_and_deep_files_are_refused() {
    let large = format!("# {}\nbackoff = 'none'", "x".repeat(MAX_SIZE));
    assert_eq!(
        refused(&large),
        "a policy file has at most 1048576 bytes, and this one has more"
    );
    for (open, close) in [("[", "]"), ("{a = ", "}"), ("{chain = [{backoff = ", "}]}")] {
        for depth in [50, 1000, 20_000] {
            refused(&format!(
                "backoff = {}1{}",
                open.repeat(depth),
                close.repeat(depth)
            ));
        }
    }
    for (open, close) in [
        ("[", "]"),
        ("{\"a\":", "}"),
        ("{\"chain\":[{\"backoff\":", "}]}"),
    ] {
        for depth in [30, 1000, 50_000] {
            refused(&format!(
                "{{\"backoff\":{}1{}}}",
                open.repeat(depth),
                close.repeat(depth)
            ));
        }
    }
    refused(&format!("a{} = 1", ".a".repeat(100_000)));
    refused(&format!("[policies{}]", ".a".repeat(100_000)));
}

/// An error is a sentence, and takes no longer than reading the file, however large the quoted text
/// is.
#[test]
fn quoted_text_in_errors_is_truncated_and_has_no_control_characters() {
    let long = "x".repeat(500_000);
    for text in [
        format!("{long} = 1"),
        format!("backoff = '{long}'"),
        format!("backoff = 'none'\njitter = '{long}'"),
        format!(
            "# {}\nmax_delay = '1s'\nbackoff.constant.delay = '1m'",
            "max_delay=".repeat(90_000)
        ),
    ] {
        let error = refused(&text);
        assert!(
            error.chars().count() < 1200,
            "{} characters",
            error.chars().count()
        );
    }
    let error = refused("\"\\u001b[2J\" = 1");
    assert!(!error.contains('\u{1b}'), "{error:?}");
}

/// Pieces whose random concatenations resemble policies.
fn nearly() -> impl Strategy<Value = String> {
    let pieces = [
        "backoff",
        "=",
        " = ",
        "'none'",
        "\n",
        "[policies.a]\n",
        "[[rules]]\n",
        "[budget]\n",
        "{",
        "}",
        "[",
        "]",
        ",",
        "\"",
        "max_retries",
        "9",
        "-",
        ".",
        "exponential",
        "initial",
        "'1s'",
        "chain",
        "on",
        "µ",
        "\u{0}",
        "#",
        ":",
        "null",
        "unlimited",
        "nan",
        "\r\n",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..40)
        .prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_text_parses_as_a_policy_file_or_fails_without_panic(text in "\\PC{0,200}", near in nearly()) {
        for text in [text, near] {
            if let Err(error) = PolicyFile::parse(&text) {
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }
}
