use relent_core::{Cause, Decision, Failure, FixedRandom, Hint, Instant, Network, Session};
use serde_json::{Value, json};

use super::*;

/// The example of gRFC A6, verbatim.
fn retry() -> Value {
    json!({
        "maxAttempts": 4,
        "initialBackoff": ".1s",
        "maxBackoff": "1s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    })
}

fn method(fields: &Value) -> Value {
    let mut entry = json!({ "name": [{ "service": "shop.Orders", "method": "Get" }] });
    for (key, value) in fields.as_object().unwrap() {
        entry[key] = value.clone();
    }
    json!({ "methodConfig": [entry] })
}

fn read(value: &Value) -> Result<ServiceConfig, ServiceConfigError> {
    ServiceConfig::from_json(&value.to_string())
}

fn policy(retry: &Value) -> Arc<Policy> {
    let config = read(&method(&json!({ "retryPolicy": retry }))).unwrap();
    Arc::clone(config.method("/shop.Orders/Get").unwrap().policy())
}

fn unavailable() -> Failure {
    Failure::ambiguous().cause(GrpcCode::Unavailable.into())
}

fn waits(policy: &Policy, failure: Failure, point: f64) -> Vec<f64> {
    policy
        .waits_after(failure, FixedRandom::at(point))
        .map(|wait| wait.as_secs_f64() * 1e3)
        .collect()
}

#[test]
fn the_example_of_grfc_a6_is_converted_to_a_policy() {
    let policy = policy(&retry());
    assert_eq!(waits(&policy, unavailable(), 0.5), [100.0, 200.0, 400.0]);
    assert_eq!(waits(&policy, unavailable(), 0.0), [80.0, 160.0, 320.0]);
    assert_eq!(waits(&policy, unavailable(), 1.0), [120.0, 240.0, 480.0]);
    let internal = Failure::ambiguous().cause(GrpcCode::Internal.into());
    assert!(waits(&policy, internal, 0.5).is_empty());
    let reset = Failure::network(Network::Reset);
    assert_eq!(
        waits(&policy, reset, 0.5).len(),
        3,
        "gRPC calls it UNAVAILABLE"
    );
}

#[test]
fn a_pushback_is_exact_and_restarts_the_backoff() {
    let policy = policy(&retry());
    let pushed = unavailable().hint(Hint::after(Duration::from_millis(7)));
    let mut session = Session::new(Instant::ORIGIN, true);
    for (failure, wait) in [(unavailable(), 100), (pushed, 7), (unavailable(), 100)] {
        session.on_attempt();
        let now = Instant::ORIGIN;
        let decision = session.on_failure(&policy, now, &failure, &mut FixedRandom::at(0.5), None);
        let after = Duration::from_millis(wait);
        assert_eq!(decision, Decision::Retry { after });
    }
}

#[test]
fn max_attempts_above_the_limit_count_as_the_limit() {
    let mut many = retry();
    many["maxAttempts"] = json!(50);
    assert_eq!(policy(&many).max_retries(), Some(4));
    let text = method(&json!({ "retryPolicy": many })).to_string();
    let config = ServiceConfig::from_json_up_to(&text, 10).unwrap();
    let granted = config.method("/shop.Orders/Get").unwrap();
    assert_eq!(granted.policy().max_retries(), Some(9));
}

#[test]
fn capped_and_shrinking_backoffs_follow_grfc_a6() {
    let mut above = retry();
    above["initialBackoff"] = json!("5s");
    assert_eq!(waits(&policy(&above), unavailable(), 0.5), [1000.0; 3]);
    let mut shrinking = retry();
    shrinking["backoffMultiplier"] = json!(0.5);
    assert_eq!(
        waits(&policy(&shrinking), unavailable(), 0.5),
        [100.0, 50.0, 25.0]
    );
}

#[test]
fn status_codes_are_names_or_numbers() {
    let mut codes = retry();
    codes["retryableStatusCodes"] = json!(["ABORTED", 8, "deadline_exceeded", 10]);
    assert_eq!(
        policy(&codes).retry_on(),
        Some(
            &[
                Pattern::Grpc(10),
                Pattern::Grpc(8),
                Pattern::Grpc(4),
                Pattern::Timeout,
            ][..]
        )
    );
}

#[test]
fn a_method_uses_its_entry_or_its_services_or_the_default() {
    let entry = |name: Value, timeout: &str| json!({ "name": name, "timeout": timeout });
    let config = read(&json!({ "methodConfig": [
        entry(json!([{}]), "1s"),
        entry(json!([{ "service": "a.B" }, { "service": "a.D", "method": "" }]), "2s"),
        entry(json!([{ "service": "a.B", "method": "C" }]), "3s"),
    ]}))
    .unwrap();
    for (path, seconds) in [("/a.B/C", 3), ("/a.B/X", 2), ("/a.D/X", 2), ("/x.Y/Z", 1)] {
        let method = config.method(path).unwrap();
        let deadline = Some(Duration::from_secs(seconds));
        assert_eq!(method.policy().deadline(), deadline, "{path}");
    }
    let without_default = read(&method(&json!({ "retryPolicy": retry() }))).unwrap();
    assert!(without_default.method("/x.Y/Z").is_none());
}

#[test]
fn a_method_without_a_retry_policy_is_not_retried() {
    let config = read(&method(&json!({ "timeout": "2.5s", "waitForReady": true }))).unwrap();
    let policy = config.method("/shop.Orders/Get").unwrap().policy();
    assert!(waits(policy, unavailable(), 0.5).is_empty());
    assert_eq!(policy.deadline(), Some(Duration::from_millis(2500)));
}

#[test]
fn repeatability_is_declared_per_method_or_service() {
    let config = ServiceConfig::default().repeatable(["a.B/Get", "a.C"]);
    for (path, repeatable) in [
        ("/a.B/Get", true),
        ("/a.B/Put", false),
        ("/a.C/Any", true),
        ("/a.CC/Any", false),
        ("a.B/Get", true),
    ] {
        assert_eq!(config.is_repeatable(path), repeatable, "{path}");
    }
}

#[test]
fn retry_throttling_stops_retries_at_half_of_the_tokens() {
    let config =
        read(&json!({ "retryThrottling": { "maxTokens": 4, "tokenRatio": 0.5 } })).unwrap();
    let budget = config.new_budget().unwrap();
    let policy = policy(&retry());
    let fails = |expected: bool| {
        let mut session = Session::new(Instant::ORIGIN, true);
        session.on_attempt();
        let (now, draw) = (Instant::ORIGIN, &mut FixedRandom::at(0.5));
        let decision = session.on_failure(&policy, now, &unavailable(), draw, Some(&budget));
        assert_eq!(decision.stop().is_none(), expected, "{budget:?}");
    };
    fails(true);
    fails(false);
    for _ in 0..3 {
        budget.on_success(relent_core::destination::Taken::default());
    }
    assert_eq!(budget.balance(), 3.5);
    fails(true);
    assert!(read(&json!({})).unwrap().new_budget().is_none());
}

#[test]
fn a_hedging_policy_retries_non_fatal_statuses_immediately() {
    let hedging = json!({ "maxAttempts": 9, "hedgingDelay": "0.5s", "nonFatalStatusCodes": [14] });
    let config = read(&method(&json!({ "hedgingPolicy": hedging }))).unwrap();
    let method = config.method("/shop.Orders/Get").unwrap();
    assert_eq!(
        method.hedging(),
        Some(&Hedging {
            max_attempts: 5,
            delay: Duration::from_millis(500),
            non_fatal: vec![GrpcCode::Unavailable],
        })
    );
    let hedge = HedgeConfig::after(Duration::from_millis(500)).max_hedges(4);
    assert_eq!(method.policy().hedge(), Some(&hedge));
    assert_eq!(method.policy().max_retries(), Some(4));
    assert_eq!(waits(method.policy(), unavailable(), 0.5), [0.0; 4]);
    let fatal = Failure::ambiguous().cause(GrpcCode::Internal.into());
    assert!(waits(method.policy(), fatal, 0.5).is_empty());
}

#[test]
fn without_a_list_every_status_is_fatal() {
    let hedging = json!({ "maxAttempts": 2 });
    let config = read(&method(&json!({ "hedgingPolicy": hedging }))).unwrap();
    let method = config.method("/shop.Orders/Get").unwrap();
    assert!(waits(method.policy(), unavailable(), 0.5).is_empty());
    assert_eq!(
        method.policy().hedge(),
        Some(&HedgeConfig::after(Duration::ZERO))
    );
    // A limit of one attempt does not allow a hedge.
    let text = self::method(&json!({ "hedgingPolicy": hedging })).to_string();
    let config = ServiceConfig::from_json_up_to(&text, 1).unwrap();
    let method = config.method("/shop.Orders/Get").unwrap();
    assert_eq!(method.policy().hedge(), None);
}

#[test]
fn a_service_config_error_names_path_and_accepted_values() {
    let with = |key: &str, value: Value| {
        let mut retry = retry();
        retry[key] = value;
        method(&json!({ "retryPolicy": retry }))
    };
    let throttling = |tokens: Value, ratio: Value| json!({ "retryThrottling": { "maxTokens": tokens, "tokenRatio": ratio } });
    let at = "methodConfig[0].retryPolicy";
    for (value, path, accepted) in [
        (
            method(&json!({ "retyPolicy": retry() })),
            "methodConfig[0].retyPolicy".to_owned(),
            "retryPolicy",
        ),
        (
            with("maxAttempts", json!(1)),
            format!("{at}.maxAttempts"),
            "from 2 up",
        ),
        (
            with("maxAttempts", json!(2.5)),
            format!("{at}.maxAttempts"),
            "from 2 up",
        ),
        (
            with("maxAttempts", json!("4")),
            format!("{at}.maxAttempts"),
            "from 2 up",
        ),
        (
            with("maxAttempts", Value::Null),
            format!("{at}.maxAttempts"),
            "required",
        ),
        (
            with("initialBackoff", json!("0s")),
            format!("{at}.initialBackoff"),
            "above 0",
        ),
        (
            with("initialBackoff", json!("-1s")),
            format!("{at}.initialBackoff"),
            "0.1s",
        ),
        (
            with("maxBackoff", json!("1m")),
            format!("{at}.maxBackoff"),
            "0.1s",
        ),
        (
            with("maxBackoff", json!(1)),
            format!("{at}.maxBackoff"),
            "0.1s",
        ),
        (
            with("backoffMultiplier", json!(0)),
            format!("{at}.backoffMultiplier"),
            "above 0",
        ),
        (
            with("retryableStatusCodes", json!([])),
            format!("{at}.retryableStatusCodes"),
            "at least one",
        ),
        (
            with("retryableStatusCodes", json!(["UNAVAILABEL"])),
            format!("{at}.retryableStatusCodes[0]"),
            "UNAVAILABLE",
        ),
        (
            with("retryableStatusCodes", json!([14, 17])),
            format!("{at}.retryableStatusCodes[1]"),
            "1 to 16",
        ),
        (
            with("retryableStatusCodes", json!(["OK"])),
            format!("{at}.retryableStatusCodes[0]"),
            "1 to 16",
        ),
        (
            with("maxAttemps", json!(4)),
            format!("{at}.maxAttemps"),
            "maxAttempts",
        ),
        (
            method(&json!({ "retryPolicy": [] })),
            at.to_owned(),
            "an object",
        ),
        (
            method(&json!({ "timeout": "0s" })),
            "methodConfig[0].timeout".to_owned(),
            "above 0",
        ),
        (
            method(&json!({ "retryPolicy": retry(), "hedgingPolicy": { "maxAttempts": 2 } })),
            "methodConfig[0].hedgingPolicy".to_owned(),
            "not both",
        ),
        (
            method(&json!({ "name": [{ "method": "Get" }] })),
            "methodConfig[0].name[0]".to_owned(),
            "its service",
        ),
        (
            method(&json!({ "name": [{ "service": "a" }, { "service": "a" }] })),
            "methodConfig[0].name[1]".to_owned(),
            "already",
        ),
        (
            throttling(json!(0), json!(0.1)),
            "retryThrottling.maxTokens".to_owned(),
            "above 0",
        ),
        (
            throttling(json!(1001), json!(0.1)),
            "retryThrottling.maxTokens".to_owned(),
            "1000",
        ),
        (
            throttling(json!(10), json!(0.0001)),
            "retryThrottling.tokenRatio".to_owned(),
            "0.001",
        ),
        (
            json!({ "methodConfig": {} }),
            "methodConfig".to_owned(),
            "a list",
        ),
        (json!([]), String::new(), "an object"),
    ] {
        let error = read(&value).unwrap_err();
        assert_eq!(error.path(), path, "{error}");
        assert!(error.to_string().contains(accepted), "{error}");
    }
    let error = ServiceConfig::from_json("{").unwrap_err().to_string();
    assert!(
        error.contains("no JSON") && error.contains("line 1"),
        "{error}"
    );
}

#[test]
fn a_token_ratio_is_cut_to_three_digits_and_not_rounded() {
    for (ratio, cut) in [
        (json!(0.1999), 0.199),
        (json!(0.5466), 0.546),
        (json!(0.0019999), 0.001),
        (json!(0.29), 0.29),
        (json!(0.57), 0.57),
        (json!(1.2345), 1.234),
        (json!(3), 3.0),
        (json!(1000), 1000.0),
    ] {
        let config = json!({ "retryThrottling": { "maxTokens": 10, "tokenRatio": ratio } });
        let config = read(&config).unwrap();
        assert_eq!(config.budget().unwrap().success, cut, "{ratio}");
    }
}

#[test]
fn other_keys_of_a_service_config_are_ignored() {
    let config = read(&json!({
        "loadBalancingConfig": [{ "round_robin": {} }],
        "methodConfig": [{ "name": [{}], "waitForReady": true, "maxRequestMessageBytes": 1024 }],
    }))
    .unwrap();
    assert!(config.method("/a.B/C").is_some());
    assert!(config.budget().is_none());
}

#[test]
fn a_failure_with_an_unlisted_grpc_code_is_not_retried() {
    let policy = policy(&retry());
    let throttled = Failure::throttled().cause(Cause::Grpc(8));
    assert!(waits(&policy, throttled, 0.5).is_empty());
}
