//! The warnings of the linter: settings without the apparent effect.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use super::finding::Finding;
use crate::destination::hedge::HedgeDelay;
use crate::duration::format_duration;
use crate::hint::HintMode;
use crate::policy::backoff::Backoff;
use crate::policy::pattern::Pattern;
use crate::policy::{DEFAULT_HINT_SPREAD, Policy, Rule};

/// The checks that yield warnings, in the order of their findings.
const RULES: [fn(&Policy, &mut Findings); 6] = [limits, hints, lists, rules, hedge, amounts];

/// The warnings of a policy that builds.
pub(super) fn warnings(policy: &Policy) -> Vec<Finding> {
    let mut findings = Findings(Vec::new());
    for rule in RULES {
        rule(policy, &mut findings);
    }
    findings.0
}

struct Findings(Vec<Finding>);

impl Findings {
    fn warn(&mut self, key: impl Into<String>, why: impl fmt::Display) {
        self.0.push(Finding::warning(key, why));
    }
}

/// The time limits of all attempts together.
fn time_limits(policy: &Policy) -> impl Iterator<Item = (&'static str, Duration)> {
    let limits = [
        ("deadline", policy.deadline()),
        ("max_elapsed", policy.max_elapsed()),
    ];
    limits
        .into_iter()
        .filter_map(|(key, limit)| Some((key, limit?)))
}

fn limits(policy: &Policy, findings: &mut Findings) {
    let first = policy.backoff().first().unwrap_or_default();
    for (key, limit) in time_limits(policy) {
        let shown = format_duration(limit);
        if first >= limit && !policy.final_attempt_before_deadline() {
            let first = format_duration(first);
            let name = match key {
                "deadline" => "the deadline",
                _ => key,
            };
            findings.warn(
                key,
                format!(
                    "{shown} is shorter than the first delay (up to {first}), so no retry can happen: raise {name}, or \
                     set final_attempt_before_deadline = true"
                ),
            );
        }
        if let Some(timeout) = policy.attempt_timeout() {
            whole_limit((key, limit), "attempt_timeout", timeout, findings);
        }
    }
    if let (Some(elapsed), Some(deadline)) = (policy.max_elapsed(), policy.deadline())
        && elapsed >= deadline
    {
        let (elapsed, deadline) = (format_duration(elapsed), format_duration(deadline));
        findings.warn(
            "max_elapsed",
            format!("{elapsed} has no effect: the deadline of {deadline} comes first"),
        );
    }
    if let Some(elapsed) = policy.max_elapsed()
        && elapsed <= policy.min_attempt_time()
    {
        let (elapsed, room) = (
            format_duration(elapsed),
            format_duration(policy.min_attempt_time()),
        );
        findings.warn(
            "min_attempt_time",
            format!("{room} never fits into the max_elapsed of {elapsed}: nothing is retried"),
        );
    }
    if let Backoff::Elapsed { fraction, .. } = policy.backoff()
        && *fraction > 1.0
    {
        findings.warn(
            "backoff.elapsed.fraction",
            format!("{fraction} is above 1: each delay is longer than all the time before it"),
        );
    }
}

fn hints(policy: &Policy, findings: &mut Findings) {
    if policy.hint() != HintMode::Floor && policy.retry_after_jitter() != DEFAULT_HINT_SPREAD {
        findings.warn(
            "retry_after_jitter",
            format!(
                "{} has no effect: Retry-After jitter applies only with hint = \"floor\"",
                policy.retry_after_jitter()
            ),
        );
    }
}

/// Warns about an attempt timeout that fills a whole limit.
fn whole_limit(limit: (&str, Duration), key: &str, timeout: Duration, findings: &mut Findings) {
    let (limit_key, limit) = limit;
    if timeout < limit {
        return;
    }
    let (timeout, limit) = (format_duration(timeout), format_duration(limit));
    findings.warn(
        key,
        format!(
            "{timeout} is not below the {limit_key} of {limit}: a timed-out attempt is never retried"
        ),
    );
}

fn lists(policy: &Policy, findings: &mut Findings) {
    let stopped = policy.stop_on();
    if policy.retry_on().is_some_and(<[_]>::is_empty) {
        findings.warn(
            "retry_on",
            "the list is empty, so nothing is retried: leave it out to retry what can help",
        );
    }
    for pattern in policy.retry_on().unwrap_or_default() {
        if let Some(stop) = covering(stopped, pattern) {
            findings.warn(
                "retry_on",
                format!("{pattern} is never retried: stop_on lists {stop}"),
            );
        }
    }
    if (200..300).all(|status| policy.makes_failure_of(status)) {
        findings.warn(
            "retry_on",
            "every status from 200 to 299 is a failure: nothing succeeds",
        );
    }
    for pattern in stopped {
        no_failure(policy, "stop_on", pattern, findings);
    }
    for pattern in policy.not_processed() {
        no_failure(policy, "not_processed", pattern, findings);
        if let Some(why) = never_retried(policy, pattern) {
            findings.warn("not_processed", format!("{pattern} has no effect: {why}"));
        }
    }
}

/// A status below 400 is a failure only if `retry_on` or a rule lists it.
fn no_failure(policy: &Policy, key: &str, pattern: &Pattern, findings: &mut Findings) {
    if let Pattern::Status(low, high) = *pattern
        && high < 400
        && !(low..=high).any(|status| policy.makes_failure_of(status))
    {
        findings.warn(
            key,
            format!("{pattern} is not a failure unless retry_on or a rule lists it"),
        );
    }
}

fn rules(policy: &Policy, findings: &mut Findings) {
    for (index, rule) in policy.rules().iter().enumerate() {
        one_rule(policy, index, rule, findings);
    }
}

fn one_rule(policy: &Policy, index: usize, rule: &Rule, findings: &mut Findings) {
    let key = |name: &str| format!("rules[{index}].{name}");
    for pattern in &rule.on {
        let earlier = policy.rules()[..index].iter().enumerate();
        let shadow = earlier
            .filter_map(|(index, rule)| Some((index, covering(&rule.on, pattern)?)))
            .next();
        if let Some((earlier, by)) = shadow {
            findings.warn(
                key("on"),
                format!("{pattern} never matches: rules[{earlier}] comes first, with {by}"),
            );
        } else if let Some(why) = never_retried(policy, pattern) {
            findings.warn(key("on"), format!("{pattern} has no effect: {why}"));
        }
    }
    if let (Some(own), Some(most)) = (rule.max_retries, policy.max_retries())
        && own > most
        && !policy.is_off()
    {
        findings.warn(
            key("max_retries"),
            format!("{own} is never reached: the policy allows {most} in total"),
        );
    }
    if let Some(timeout) = rule.attempt_timeout {
        for limit in time_limits(policy) {
            whole_limit(limit, &key("attempt_timeout"), timeout, findings);
        }
    }
}

/// Warns about hedges that never start.
fn hedge(policy: &Policy, findings: &mut Findings) {
    let Some(hedge) = policy.hedge() else { return };
    if policy.is_off() {
        // The operator's switch leaves the other settings unchanged.
        return;
    }
    if policy.max_retries() == Some(0) {
        let why = "has no effect: a hedge is a retry, and the policy allows none";
        findings.warn("hedge", why.to_string());
        return;
    }
    let (key, soonest) = match hedge.delay {
        HedgeDelay::Fixed(delay) => ("hedge.delay", delay),
        HedgeDelay::Percentile { least, .. } => ("hedge.least", least),
    };
    let timeout = policy
        .attempt_timeout()
        .map(|timeout| ("attempt_timeout", timeout));
    for (limit_key, limit) in timeout.into_iter().chain(time_limits(policy)) {
        if soonest >= limit {
            let (soonest, limit) = (format_duration(soonest), format_duration(limit));
            findings.warn(
                key,
                format!("{soonest} is not below the {limit_key} of {limit}: nothing is hedged"),
            );
        }
    }
}

fn amounts(policy: &Policy, findings: &mut Findings) {
    let Some(budget) = policy.budget() else {
        return;
    };
    if budget.ratio > 1.0 {
        findings.warn(
            "budget.ratio",
            format!(
                "{} is above 1: more retries than requests, which no service that is down bears",
                budget.ratio
            ),
        );
    }
    let queued = ("budget.queue_when_exhausted", budget.queue_when_exhausted);
    let reserved = ("budget.overload_reserve", budget.overload_reserve > 0.0);
    if policy.circuit_breaker().is_none() {
        for (key, set) in [reserved, queued] {
            if set {
                findings.warn(key, "it has no effect without a [circuit_breaker]");
            }
        }
    } else if budget.charge_failures && budget.queue_when_exhausted {
        findings.warn(queued.0, "it has no effect with charge_failures = true");
    }
}

/// The pattern that covers this one, if there is one.
fn covering<'p>(patterns: &'p [Pattern], pattern: &Pattern) -> Option<&'p Pattern> {
    patterns.iter().find(|other| other.covers(pattern))
}

/// The reason why the policy never retries failures of this pattern.
fn never_retried(policy: &Policy, pattern: &Pattern) -> Option<String> {
    if let Some(stop) = covering(policy.stop_on(), pattern) {
        return Some(format!("stop_on lists {stop}"));
    }
    let listed = policy.retry_on()?;
    let retried = listed.iter().any(|other| other.overlaps(pattern));
    (!retried).then(|| "retry_on does not list it".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination::budget::BudgetConfig;
    use crate::destination::circuit_breaker::CircuitBreakerConfig;
    use crate::destination::hedge::HedgeConfig;
    use crate::policy::PolicyBuilder;
    use crate::policy::lint::Severity;

    const SECOND: Duration = Duration::from_secs(1);

    fn base() -> PolicyBuilder {
        Policy::builder(Backoff::exponential(2 * SECOND))
    }

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn rule(texts: &[&str]) -> Rule {
        Rule::on(patterns(texts))
    }

    #[track_caller]
    fn warns(policy: PolicyBuilder, expected: &[&str]) {
        let findings = policy.lint();
        let of_built = policy.build().unwrap().lint();
        assert_eq!(findings, of_built);
        assert_eq!(findings.len(), expected.len(), "{findings:?}");
        for (finding, expected) in findings.iter().zip(expected) {
            assert_eq!(finding.severity(), Severity::Warning);
            let text = finding.to_string();
            assert!(text.starts_with(expected), "{text}\n{expected}");
            assert!(text.starts_with(finding.key()), "{text}");
        }
    }

    #[test]
    fn a_contradiction_is_the_only_finding_and_equals_the_build_error() {
        // The limit is too short for the first delay as well.
        let never = base().max_elapsed(SECOND).min_attempt_time(2 * SECOND);
        let findings = never.lint();
        let error = never.build().unwrap_err();
        assert_eq!(findings, [Finding::from(error)]);
        assert_eq!(findings[0].severity(), Severity::Error);
        assert_eq!(findings[0].key(), "max_elapsed");
        assert_eq!(findings[0].to_string(), error.to_string());
    }

    #[test]
    fn a_limit_below_the_first_delay_is_a_warning_unless_shortened() {
        warns(
            base().deadline(SECOND),
            &["deadline: 1s is shorter than the first delay"],
        );
        warns(
            base().max_elapsed(2 * SECOND),
            &["max_elapsed: 2s is shorter than the first delay"],
        );
        warns(
            base().deadline(SECOND).final_attempt_before_deadline(true),
            &[],
        );
        warns(base().deadline(3 * SECOND), &[]);
    }

    #[test]
    fn an_attempt_timeout_that_fills_a_limit_is_a_warning() {
        let timeout = base().attempt_timeout(10 * SECOND);
        warns(
            timeout.clone().deadline(10 * SECOND),
            &["attempt_timeout: 10s is not below the deadline of 10s"],
        );
        warns(
            timeout.clone().max_elapsed(9 * SECOND),
            &["attempt_timeout: 10s is not below the max_elapsed of 9s"],
        );
        warns(timeout.deadline(11 * SECOND), &[]);
        let ruled = base().deadline(10 * SECOND).rule(Rule {
            attempt_timeout: Some(20 * SECOND),
            ..rule(&["timeout"])
        });
        warns(ruled, &["rules[0].attempt_timeout: 20s is not below"]);
    }

    #[test]
    fn time_limits_without_effect_are_warnings() {
        let both = base().deadline(10 * SECOND);
        warns(
            both.clone().max_elapsed(10 * SECOND),
            &["max_elapsed: 10s has no effect"],
        );
        warns(both.max_elapsed(9 * SECOND), &[]);
        let room = base().max_elapsed(3 * SECOND).min_attempt_time(3 * SECOND);
        warns(room, &["min_attempt_time: 3s never fits"]);
    }

    #[test]
    fn a_failure_in_contradictory_lists_is_a_warning() {
        let listed = |retry: &[&str], stop: &[&str]| {
            base().retry_on(patterns(retry)).stop_on(patterns(stop))
        };
        warns(
            listed(&["404", "503"], &["4xx"]),
            &["retry_on: 404 is never retried: stop_on lists 4xx"],
        );
        warns(
            listed(&["503"], &["503"]),
            &["retry_on: 503 is never retried"],
        );
        // Excluding one status from a class is intended.
        warns(listed(&["5xx", "any"], &["501"]), &[]);
        warns(
            base()
                .retry_on(patterns(&["502"]))
                .not_processed(patterns(&["503"])),
            &["not_processed: 503 has no effect: retry_on does not list it"],
        );
    }

    #[test]
    fn an_empty_retry_on_list_is_a_warning() {
        warns(base().retry_on([]), &["retry_on: the list is empty"]);
    }

    #[test]
    fn retry_after_jitter_without_hint_floor_is_a_warning() {
        let spread = base().retry_after_jitter(0.5);
        warns(spread.clone().hint(HintMode::Floor), &[]);
        for mode in [HintMode::Replace, HintMode::Ignore] {
            warns(
                spread.clone().hint(mode),
                &["retry_after_jitter: 0.5 has no effect"],
            );
            warns(base().hint(mode), &[]);
        }
    }

    #[test]
    fn a_listed_success_status_without_effect_is_a_warning() {
        warns(
            base().stop_on(patterns(&["204"])),
            &["stop_on: 204 is not a failure unless"],
        );
        warns(
            base().retry_on(patterns(&["2xx", "503"])),
            &["retry_on: every status from 200 to 299 is a failure"],
        );
        warns(base().retry_on(patterns(&["202", "503"])), &[]);
    }

    #[test]
    fn a_rule_that_never_matches_is_a_warning() {
        warns(
            base().rule(rule(&["5xx"])).rule(rule(&["503", "408"])),
            &["rules[1].on: 503 never matches: rules[0] comes first, with 5xx"],
        );
        warns(
            base().rule(rule(&["408"])).rule(rule(&["timeout"])),
            &["rules[1].on: timeout never matches"],
        );
        warns(
            base()
                .rule(rule(&["any"]))
                .rule(rule(&["throttled", "exit:1"])),
            &["rules[1].on: throttled never", "rules[1].on: exit:1 never"],
        );
        warns(
            base().retry_on(patterns(&["5xx"])).rule(rule(&["429"])),
            &["rules[0].on: 429 has no effect: retry_on does not list it"],
        );
        warns(
            base().stop_on(patterns(&["5xx"])).rule(rule(&["503"])),
            &["rules[0].on: 503 has no effect: stop_on lists 5xx"],
        );
        // The kind does not follow from the status.
        let kind = base().retry_on(patterns(&["throttled", "connect"]));
        warns(kind.rule(rule(&["429", "network"])), &[]);
        warns(base().rule(rule(&["503"])).rule(rule(&["5xx"])), &[]);
    }

    #[test]
    fn a_rule_that_allows_more_than_the_policy_is_a_warning() {
        let ruled = base().max_retries(3).rule(Rule {
            max_retries: Some(4),
            ..rule(&["503"])
        });
        warns(ruled, &["rules[0].max_retries: 4 is never reached"]);
    }

    #[test]
    fn a_hedge_that_never_starts_is_a_warning() {
        let hedged = base().hedge(HedgeConfig::after(SECOND));
        warns(hedged.clone().attempt_timeout(2 * SECOND), &[]);
        warns(
            hedged.clone().attempt_timeout(SECOND),
            &["hedge.delay: 1s is not below the attempt_timeout of 1s"],
        );
        warns(
            hedged.clone().max_retries(0),
            &["hedge: has no effect: a hedge is a retry"],
        );
        warns(hedged.max_retries(0).retries_off(true), &[]);
        let late = HedgeDelay::Percentile {
            percentile: 0.95,
            least: 5 * SECOND,
            most: 9 * SECOND,
            samples: 200,
        };
        let late = HedgeConfig {
            delay: late,
            max_hedges: 1,
        };
        warns(
            base().hedge(late).deadline(5 * SECOND),
            &["hedge.least: 5s is not below the deadline of 5s"],
        );
        warns(base().hedge(HedgeConfig::percentile(0.95)), &[]);
    }

    #[test]
    fn budget_settings_without_effect_are_warnings() {
        let budget = BudgetConfig {
            overload_reserve: 8.0,
            queue_when_exhausted: true,
            ..BudgetConfig::DEFAULT
        };
        warns(
            base().budget(budget),
            &[
                "budget.overload_reserve: it has no effect without a [circuit_breaker]",
                "budget.queue_when_exhausted: it has no effect without a [circuit_breaker]",
            ],
        );
        let with_breaker = base().circuit_breaker(CircuitBreakerConfig::DEFAULT);
        warns(with_breaker.clone().budget(budget), &[]);
        let charged = BudgetConfig {
            charge_failures: true,
            ..budget
        };
        warns(
            with_breaker.budget(charged),
            &["budget.queue_when_exhausted: it has no effect with charge_failures = true"],
        );
    }

    #[test]
    fn ratios_above_1_are_warnings() {
        let with = |config| base().budget(config);
        let default = BudgetConfig::DEFAULT;
        let high = BudgetConfig {
            ratio: 1.5,
            ..default
        };
        warns(with(high), &["budget.ratio: 1.5 is above 1"]);
        warns(
            with(BudgetConfig {
                ratio: 1.0,
                ..default
            }),
            &[],
        );
        let polling = Policy::builder(Backoff::elapsed(SECOND, 1.5));
        warns(polling, &["backoff.elapsed.fraction: 1.5 is above 1"]);
    }

    #[test]
    fn the_preset_constants_have_no_finding() {
        for policy in [Policy::STANDARD, Policy::PATIENT] {
            assert_eq!(policy.lint(), []);
        }
    }
}
