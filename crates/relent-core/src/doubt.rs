//! What a policy says that builds, and yet cannot be meant.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::backoff::Backoff;
use crate::duration::format_duration;
use crate::hedge::HedgeDelay;
use crate::hint::HintMode;
use crate::pattern::Pattern;
use crate::policy::{Policy, Rule};

/// Something in a policy that has no effect, or hardly the one that was meant. The policy works all the
/// same; what contradicts itself does not build.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Backoff, Policy};
///
/// let policy = Policy::builder(Backoff::constant(Duration::from_secs(10)))
///     .deadline(Duration::from_secs(5))
///     .build()?;
/// let doubts = policy.doubts();
/// assert_eq!(doubts[0].key(), "deadline");
/// assert_eq!(
///     doubts[0].to_string(),
///     "deadline: 5s are over before the first wait of up to 10s is: raise the deadline, or set \
///      cut_last_wait = true"
/// );
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Doubt {
    key: String,
    why: String,
}

impl Doubt {
    /// The key of the policy file that is doubtful, such as `deadline` or `rules[1].on`; rules count
    /// from 0.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.why)
    }
}

impl Policy {
    /// What this policy says that cannot be meant: limits below what they limit, failures in lists that
    /// exclude each other, rules that never match, hedges that never go, ratios above 1. `relent policy
    /// check` shows it.
    #[must_use]
    pub fn doubts(&self) -> Vec<Doubt> {
        let mut doubts = Doubts(Vec::new());
        doubts.limits(self);
        doubts.hints(self);
        doubts.lists(self);
        for (index, rule) in self.rules().iter().enumerate() {
            doubts.rule(self, index, rule);
        }
        doubts.hedge(self);
        doubts.amounts(self);
        doubts.0
    }
}

struct Doubts(Vec<Doubt>);

impl Doubts {
    fn add(&mut self, key: impl Into<String>, why: String) {
        self.0.push(Doubt {
            key: key.into(),
            why,
        });
    }

    fn limits(&mut self, policy: &Policy) {
        let first = policy.backoff().first().unwrap_or_default();
        for (key, limit) in [
            ("deadline", policy.deadline()),
            ("max_elapsed", policy.max_elapsed()),
        ] {
            let Some(limit) = limit else { continue };
            let shown = format_duration(limit);
            if first >= limit && !policy.cut_last_wait() {
                let first = format_duration(first);
                let name = match key {
                    "deadline" => "the deadline",
                    _ => key,
                };
                self.add(
                    key,
                    format!(
                        "{shown} are over before the first wait of up to {first} is: raise {name}, or \
                         set cut_last_wait = true"
                    ),
                );
            }
            if let Some(timeout) = policy.attempt_timeout() {
                self.timeout(key, limit, "attempt_timeout", timeout);
            }
        }
        if let (Some(elapsed), Some(deadline)) = (policy.max_elapsed(), policy.deadline())
            && elapsed >= deadline
        {
            let (elapsed, deadline) = (format_duration(elapsed), format_duration(deadline));
            self.add(
                "max_elapsed",
                format!("{elapsed} have no effect: the deadline of {deadline} comes first"),
            );
        }
        if let Some(elapsed) = policy.max_elapsed()
            && elapsed <= policy.attempt_room()
        {
            let (elapsed, room) = (
                format_duration(elapsed),
                format_duration(policy.attempt_room()),
            );
            self.add(
                "attempt_room",
                format!("{room} never fit into the max_elapsed of {elapsed}: nothing is retried"),
            );
        }
        if let Backoff::Elapsed { fraction, .. } = policy.backoff()
            && *fraction > 1.0
        {
            self.add(
                "backoff.elapsed.fraction",
                format!("{fraction} is above 1: each wait is longer than all the time before it"),
            );
        }
    }

    fn hints(&mut self, policy: &Policy) {
        let default = crate::policy::DEFAULT_HINT_SPREAD;
        if policy.hint() != HintMode::Floor && policy.hint_spread() != default {
            self.add(
                "hint_spread",
                format!(
                    "{} has no effect: there is a spread only with hint = \"floor\"",
                    policy.hint_spread()
                ),
            );
        }
    }

    /// An attempt timeout that takes up the whole of a limit.
    fn timeout(&mut self, limit_key: &str, limit: Duration, key: &str, timeout: Duration) {
        if timeout < limit {
            return;
        }
        let (timeout, limit) = (format_duration(timeout), format_duration(limit));
        self.add(
            key,
            format!(
                "{timeout} are no less than the {limit_key} of {limit}: what times out is never \
                 retried"
            ),
        );
    }

    fn lists(&mut self, policy: &Policy) {
        let stopped = policy.stop_on();
        if policy.retry_on().is_some_and(<[_]>::is_empty) {
            self.add(
                "retry_on",
                "the list is empty, so nothing is retried: leave it out to retry what can help"
                    .to_string(),
            );
        }
        for pattern in policy.retry_on().unwrap_or_default() {
            if let Some(stop) = covering(stopped, pattern) {
                self.add(
                    "retry_on",
                    format!("{pattern} is never retried: stop_on lists {stop}"),
                );
            }
        }
        if (200..300).all(|status| policy.makes_failure_of(status)) {
            self.add(
                "retry_on",
                "every status from 200 to 299 is a failure: nothing succeeds".to_string(),
            );
        }
        for pattern in stopped {
            self.no_failure(policy, "stop_on", pattern);
        }
        for pattern in policy.not_processed() {
            self.no_failure(policy, "not_processed", pattern);
            if let Some(why) = never_retried(policy, pattern) {
                self.add("not_processed", format!("{pattern} has no effect: {why}"));
            }
        }
    }

    /// A status below 400 is a failure only where `retry_on` or a rule lists it.
    fn no_failure(&mut self, policy: &Policy, key: &str, pattern: &Pattern) {
        if let Pattern::Status(low, high) = *pattern
            && high < 400
            && !(low..=high).any(|status| policy.makes_failure_of(status))
        {
            self.add(
                key,
                format!("{pattern} is no failure unless retry_on or a rule lists it"),
            );
        }
    }

    fn rule(&mut self, policy: &Policy, index: usize, rule: &Rule) {
        let key = |name: &str| format!("rules[{index}].{name}");
        for pattern in &rule.on {
            let earlier = policy.rules()[..index].iter().enumerate();
            let shadow = earlier
                .filter_map(|(index, rule)| Some((index, covering(&rule.on, pattern)?)))
                .next();
            if let Some((earlier, by)) = shadow {
                self.add(
                    key("on"),
                    format!("{pattern} never matches: rules[{earlier}] comes first, with {by}"),
                );
            } else if let Some(why) = never_retried(policy, pattern) {
                self.add(key("on"), format!("{pattern} has no effect: {why}"));
            }
        }
        if let (Some(own), Some(most)) = (rule.max_retries, policy.max_retries())
            && own > most
            && !policy.is_off()
        {
            self.add(
                key("max_retries"),
                format!("{own} are never reached: the policy allows {most} retries in all"),
            );
        }
        if let Some(timeout) = rule.attempt_timeout {
            for (limit_key, limit) in [
                ("deadline", policy.deadline()),
                ("max_elapsed", policy.max_elapsed()),
            ] {
                if let Some(limit) = limit {
                    self.timeout(limit_key, limit, &key("attempt_timeout"), timeout);
                }
            }
        }
    }

    /// Hedges that never go, and hence nobody remembers anything for.
    fn hedge(&mut self, policy: &Policy) {
        let Some(hedge) = policy.hedge() else { return };
        if policy.is_off() {
            // An operator's switch leaves the rest as it was.
            return;
        }
        if policy.max_retries() == Some(0) {
            let why = "has no effect: a hedge is a retry, and the policy allows none";
            self.add("hedge", why.to_string());
            return;
        }
        let (key, soonest) = match hedge.delay {
            HedgeDelay::Fixed(delay) => ("hedge.delay", delay),
            HedgeDelay::Percentile { least, .. } => ("hedge.least", least),
        };
        for (limit_key, limit) in [
            ("attempt_timeout", policy.attempt_timeout()),
            ("deadline", policy.deadline()),
            ("max_elapsed", policy.max_elapsed()),
        ] {
            if let Some(limit) = limit.filter(|limit| soonest >= *limit) {
                let (soonest, limit) = (format_duration(soonest), format_duration(limit));
                self.add(
                    key,
                    format!(
                        "{soonest} are no less than the {limit_key} of {limit}: nothing is hedged"
                    ),
                );
            }
        }
    }

    fn amounts(&mut self, policy: &Policy) {
        let Some(budget) = policy.budget() else {
            return;
        };
        if budget.ratio > 1.0 {
            self.add(
                "budget.ratio",
                format!(
                    "{} is above 1: more retries than requests, which no service that is down bears",
                    budget.ratio
                ),
            );
        }
    }
}

/// The pattern that means whatever this one means, if there is one.
fn covering<'p>(patterns: &'p [Pattern], pattern: &Pattern) -> Option<&'p Pattern> {
    patterns.iter().find(|other| other.covers(pattern))
}

/// Why the policy retries nothing that this pattern means.
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
    use crate::budget::BudgetConfig;
    use crate::hedge::HedgeConfig;
    use crate::policy::PolicyBuilder;

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
    fn doubts(policy: PolicyBuilder, expected: &[&str]) {
        let doubts = policy.build().unwrap().doubts();
        let doubts: Vec<_> = doubts.iter().map(ToString::to_string).collect();
        assert_eq!(doubts.len(), expected.len(), "{doubts:?}");
        for (doubt, expected) in doubts.iter().zip(expected) {
            assert!(doubt.starts_with(expected), "{doubt}\n{expected}");
        }
    }

    #[test]
    fn a_limit_below_the_first_wait_is_doubtful_unless_the_wait_is_cut() {
        doubts(base().deadline(SECOND), &["deadline: 1s are over before"]);
        doubts(
            base().max_elapsed(2 * SECOND),
            &["max_elapsed: 2s are over"],
        );
        doubts(base().deadline(SECOND).cut_last_wait(true), &[]);
        doubts(base().deadline(3 * SECOND), &[]);
    }

    #[test]
    fn an_attempt_timeout_that_takes_up_a_limit_is_doubtful() {
        let timeout = base().attempt_timeout(10 * SECOND);
        doubts(
            timeout.clone().deadline(10 * SECOND),
            &["attempt_timeout: 10s are no less than the deadline of 10s"],
        );
        doubts(
            timeout.clone().max_elapsed(9 * SECOND),
            &["attempt_timeout: 10s are no less than the max_elapsed of 9s"],
        );
        doubts(timeout.deadline(11 * SECOND), &[]);
        let ruled = base().deadline(10 * SECOND).rule(Rule {
            attempt_timeout: Some(20 * SECOND),
            ..rule(&["timeout"])
        });
        doubts(ruled, &["rules[0].attempt_timeout: 20s are no less"]);
    }

    #[test]
    fn limits_that_never_act_are_doubtful() {
        let both = base().deadline(10 * SECOND);
        doubts(
            both.clone().max_elapsed(10 * SECOND),
            &["max_elapsed: 10s have no effect"],
        );
        doubts(both.max_elapsed(9 * SECOND), &[]);
        let room = base().max_elapsed(3 * SECOND).attempt_room(3 * SECOND);
        doubts(room, &["attempt_room: 3s never fit"]);
    }

    #[test]
    fn a_failure_in_lists_that_exclude_each_other_is_doubtful() {
        let listed = |retry: &[&str], stop: &[&str]| {
            base().retry_on(patterns(retry)).stop_on(patterns(stop))
        };
        doubts(
            listed(&["404", "503"], &["4xx"]),
            &["retry_on: 404 is never retried: stop_on lists 4xx"],
        );
        doubts(
            listed(&["503"], &["503"]),
            &["retry_on: 503 is never retried"],
        );
        // An exception from a class is meant.
        doubts(listed(&["5xx", "any"], &["501"]), &[]);
        doubts(
            base()
                .retry_on(patterns(&["502"]))
                .not_processed(patterns(&["503"])),
            &["not_processed: 503 has no effect: retry_on does not list it"],
        );
    }

    #[test]
    fn an_empty_list_of_what_is_retried_is_doubtful() {
        doubts(base().retry_on([]), &["retry_on: the list is empty"]);
    }

    #[test]
    fn a_spread_without_a_hint_that_is_a_floor_is_doubtful() {
        let spread = base().hint_spread(0.5);
        doubts(spread.clone().hint(HintMode::Floor), &[]);
        for mode in [HintMode::Replace, HintMode::Ignore] {
            doubts(
                spread.clone().hint(mode),
                &["hint_spread: 0.5 has no effect"],
            );
            doubts(base().hint(mode), &[]);
        }
    }

    #[test]
    fn a_success_that_is_listed_where_it_means_nothing_is_doubtful() {
        doubts(
            base().stop_on(patterns(&["204"])),
            &["stop_on: 204 is no failure unless"],
        );
        doubts(
            base().retry_on(patterns(&["2xx", "503"])),
            &["retry_on: every status from 200 to 299 is a failure"],
        );
        doubts(base().retry_on(patterns(&["202", "503"])), &[]);
    }

    #[test]
    fn a_rule_that_never_matches_is_doubtful() {
        doubts(
            base().rule(rule(&["5xx"])).rule(rule(&["503", "408"])),
            &["rules[1].on: 503 never matches: rules[0] comes first, with 5xx"],
        );
        doubts(
            base().rule(rule(&["408"])).rule(rule(&["timeout"])),
            &["rules[1].on: timeout never matches"],
        );
        doubts(
            base()
                .rule(rule(&["any"]))
                .rule(rule(&["throttled", "exit:1"])),
            &["rules[1].on: throttled never", "rules[1].on: exit:1 never"],
        );
        doubts(
            base().retry_on(patterns(&["5xx"])).rule(rule(&["429"])),
            &["rules[0].on: 429 has no effect: retry_on does not list it"],
        );
        doubts(
            base().stop_on(patterns(&["5xx"])).rule(rule(&["503"])),
            &["rules[0].on: 503 has no effect: stop_on lists 5xx"],
        );
        // The kind is not known from the status.
        let kind = base().retry_on(patterns(&["throttled", "connect"]));
        doubts(kind.rule(rule(&["429", "network"])), &[]);
        doubts(base().rule(rule(&["503"])).rule(rule(&["5xx"])), &[]);
    }

    #[test]
    fn a_rule_that_allows_more_than_the_policy_is_doubtful() {
        let ruled = base().max_retries(3).rule(Rule {
            max_retries: Some(4),
            ..rule(&["503"])
        });
        doubts(ruled, &["rules[0].max_retries: 4 are never reached"]);
    }

    #[test]
    fn a_hedge_that_never_goes_is_doubtful() {
        let hedged = base().hedge(HedgeConfig::after(SECOND));
        doubts(hedged.clone().attempt_timeout(2 * SECOND), &[]);
        doubts(
            hedged.clone().attempt_timeout(SECOND),
            &["hedge.delay: 1s are no less than the attempt_timeout of 1s"],
        );
        doubts(
            hedged.clone().max_retries(0),
            &["hedge: has no effect: a hedge is a retry"],
        );
        doubts(hedged.max_retries(0).retries_off(true), &[]);
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
        doubts(
            base().hedge(late).deadline(5 * SECOND),
            &["hedge.least: 5s are no less than the deadline of 5s"],
        );
        doubts(base().hedge(HedgeConfig::percentile(0.95)), &[]);
    }

    #[test]
    fn ratios_above_1_are_doubtful() {
        let with = |config| base().budget(config);
        let default = BudgetConfig::DEFAULT;
        let high = BudgetConfig {
            ratio: 1.5,
            ..default
        };
        doubts(with(high), &["budget.ratio: 1.5 is above 1"]);
        doubts(
            with(BudgetConfig {
                ratio: 1.0,
                ..default
            }),
            &[],
        );
        let polling = Policy::builder(Backoff::elapsed(SECOND, 1.5));
        doubts(polling, &["backoff.elapsed.fraction: 1.5 is above 1"]);
    }

    #[test]
    fn the_constants_are_beyond_doubt() {
        for policy in [Policy::STANDARD, Policy::PATIENT] {
            assert_eq!(policy.doubts(), []);
        }
    }
}
