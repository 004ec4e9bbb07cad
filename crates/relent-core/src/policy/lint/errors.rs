//! The errors of the linter: contradictions, with which a policy does not build.

use core::time::Duration;

use crate::policy::backoff::Backoff;
use crate::policy::ceiling::default_max_delay;
use crate::policy::error::{Found, PolicyError};
use crate::policy::jitter::Jitter;
use crate::policy::pattern::Pattern;
use crate::policy::{MAX_RULES, Policy, Rule};

/// Rejects patterns that match no failure.
const fn check_patterns(key: &'static str, patterns: &[Pattern]) -> Result<(), PolicyError> {
    let mut index = 0;
    while index < patterns.len() {
        match patterns[index] {
            Pattern::Status(low, _) if low < 200 => {
                return Err(PolicyError::new(
                    key,
                    Found::Count(low as u32),
                    "a status below 200 is not the answer to a request: use 200 to 599",
                ));
            }
            Pattern::Status(low, high) if high > 599 || low > high => {
                return Err(PolicyError::new(
                    key,
                    Found::Count(high as u32),
                    "a status, or a range of them from the lower to the higher: use 200 to 599",
                ));
            }
            Pattern::Grpc(0) => {
                return Err(PolicyError::new(
                    key,
                    Found::Nothing,
                    "the gRPC status OK is no failure: use a code from 1 to 16",
                ));
            }
            Pattern::Grpc(code) if code > 16 => {
                return Err(PolicyError::new(
                    key,
                    Found::Count(code as u32),
                    "there is no such gRPC status: use a code from 1 to 16",
                ));
            }
            Pattern::Exit(low, high) if low < 0 || high > 255 || low > high => {
                return Err(PolicyError::new(
                    key,
                    Found::Nothing,
                    "an exit status, or a range of them from the lower to the higher: use 0 to 255",
                ));
            }
            _ => {}
        }
        index += 1;
    }
    Ok(())
}

/// The first contradiction of a policy. `const`, so that a contradictory preset does not compile.
pub(in crate::policy) const fn check(policy: &Policy) -> Result<(), PolicyError> {
    if let Some(listed) = &policy.retry_on
        && let Err(error) = check_patterns("retry_on", listed.as_slice())
    {
        return Err(error);
    }
    if let Err(error) = check_patterns("stop_on", policy.stop_on.as_slice()) {
        return Err(error);
    }
    if let Err(error) = check_patterns("not_processed", policy.not_processed.as_slice()) {
        return Err(error);
    }
    if let Err(error) = check_waits(&policy.backoff, policy.jitter, policy.max_delay) {
        return Err(error);
    }
    if let Some(initial) = policy.throttled_initial
        && policy.backoff.longest_first_delay().is_none()
    {
        return Err(PolicyError::new(
            "throttled_initial",
            Found::Duration(initial),
            "the backoff has no first delay that throttling could replace: use constant, linear, exponential, \
             fibonacci, decorrelated or elapsed, or leave throttled_initial out",
        ));
    }
    if let (Some(initial), Some(ceiling)) = (policy.throttled_initial, policy.max_delay)
        && initial.as_nanos() > ceiling.as_nanos()
    {
        return Err(PolicyError::new(
            "throttled_initial",
            Found::Duration(initial),
            "the first delay after throttling may not be above max_delay",
        ));
    }
    if let Some(limit) = policy.max_elapsed
        && limit.as_nanos() < policy.min_attempt_time.as_nanos()
    {
        return Err(PolicyError::new(
            "max_elapsed",
            Found::Duration(limit),
            "no retry could start before max_elapsed and leave min_attempt_time: lower min_attempt_time, or use \
             retries = \"off\"",
        ));
    }
    if let Some(limit) = policy.deadline
        && limit.as_nanos() <= policy.min_attempt_time.as_nanos()
    {
        return Err(PolicyError::new(
            "deadline",
            Found::Duration(limit),
            "a deadline has to be longer than 0s, and longer than min_attempt_time; leave it out for no limit",
        ));
    }
    if let Err(error) = check_attempt_timeout(policy.attempt_timeout) {
        return Err(error);
    }
    // Written so that NaN fails.
    if !(policy.retry_after_jitter > 0.0 && policy.retry_after_jitter <= 1.0) {
        return Err(PolicyError::new(
            "retry_after_jitter",
            Found::Number(policy.retry_after_jitter),
            "the spread is a share of the hint above 0, at most 1; hint = \"replace\" has none",
        ));
    }
    if policy.rules.len() > MAX_RULES {
        return Err(PolicyError::new(
            "rules",
            Found::Count(policy.rules.len() as u32),
            "a policy has at most 8 rules: put more patterns into one rule",
        ));
    }
    let rules = policy.rules.as_slice();
    let mut index = 0;
    while index < rules.len() {
        if let Err(error) = check_rule(&rules[index], policy) {
            return Err(error);
        }
        index += 1;
    }
    if let Some(circuit_breaker) = &policy.circuit_breaker
        && let Err(error) = circuit_breaker.check()
    {
        return Err(error);
    }
    if let Some(rate) = &policy.rate_limit
        && let Err(error) = rate.check()
    {
        return Err(error);
    }
    if let Some(hedge) = &policy.hedge
        && let Err(error) = hedge.check()
    {
        return Err(error);
    }
    if let Some(throttle) = &policy.throttle
        && let Err(error) = throttle.check()
    {
        return Err(error);
    }
    match &policy.budget {
        Some(budget) => budget.check(),
        None => Ok(()),
    }
}

const fn check_rule(rule: &Rule, policy: &Policy) -> Result<(), PolicyError> {
    if rule.on.as_slice().is_empty() {
        return Err(PolicyError::new(
            "on",
            Found::Nothing,
            "a rule names at least one failure it is about, such as 429 or timeout",
        ));
    }
    if let Err(error) = check_patterns("on", rule.on.as_slice()) {
        return Err(error);
    }
    if let Some(retries) = rule.max_retries
        && retries > 255
    {
        return Err(PolicyError::new(
            "max_retries",
            Found::Count(retries),
            "a rule allows at most 255 retries; leave it out for the policy's own limit",
        ));
    }
    if let Some(backoff) = &rule.backoff
        && !backoff.ends_within(u8::MAX)
    {
        return Err(PolicyError::new(
            "backoff",
            Found::Nothing,
            "the schedule or the phases of a rule come to their end within 255 retries",
        ));
    }
    if let Some(backoff) = &rule.backoff {
        let ceiling = match rule.max_delay {
            Some(ceiling) => ceiling,
            None => match default_max_delay(backoff) {
                Some(ceiling) => ceiling,
                None => Duration::MAX,
            },
        };
        let counted = match (rule.max_retries, policy.max_retries()) {
            (None, None) => false,
            (Some(_), _) => true,
            (None, Some(most)) => most <= u8::MAX as u32,
        };
        if !counted && !backoff.stops_growing_within(u8::MAX as u32, ceiling) {
            return Err(PolicyError::new(
                "backoff",
                Found::Nothing,
                "the backoff of a rule grows for 255 retries: set a max_delay that it reaches by then, or \
                 a max_retries",
            ));
        }
    }
    let backoff = match &rule.backoff {
        Some(backoff) => backoff,
        None => &policy.backoff,
    };
    let max_delay = match (rule.max_delay, &rule.backoff) {
        (Some(ceiling), _) => Some(ceiling),
        // The policy's cap does not apply to a rule with its own backoff.
        (None, Some(_)) => None,
        (None, None) => policy.max_delay,
    };
    let jitter = match rule.jitter {
        Some(jitter) => jitter,
        None if backoff.draws() => Jitter::None,
        None => policy.jitter,
    };
    if let Err(error) = check_waits(backoff, jitter, max_delay) {
        return Err(error);
    }
    check_attempt_timeout(rule.attempt_timeout)
}

const fn check_attempt_timeout(limit: Option<Duration>) -> Result<(), PolicyError> {
    match limit {
        Some(Duration::ZERO) => Err(PolicyError::new(
            "attempt_timeout",
            Found::Duration(Duration::ZERO),
            "an attempt needs some time; leave the timeout out for no limit",
        )),
        _ => Ok(()),
    }
}

const fn check_waits(
    backoff: &Backoff,
    jitter: Jitter,
    max_delay: Option<Duration>,
) -> Result<(), PolicyError> {
    if let Err(error) = backoff.check() {
        return Err(error);
    }
    if backoff.draws() && !matches!(jitter, Jitter::None) {
        return Err(PolicyError::new(
            "jitter",
            Found::Nothing,
            "this backoff draws its own randomness: set jitter to none",
        ));
    }
    match jitter {
        // Written so that NaN fails.
        Jitter::Proportional(fraction) if !(fraction >= 0.0 && fraction <= 1.0) => {
            return Err(PolicyError::new(
                "jitter",
                Found::Number(fraction),
                "the fraction of proportional jitter is a number from 0 to 1",
            ));
        }
        Jitter::Additive { min, max } if min.as_nanos() > max.as_nanos() => {
            return Err(PolicyError::new(
                "jitter",
                Found::Duration(min),
                "the least that additive jitter adds may not be above the most",
            ));
        }
        _ => {}
    }
    if let (Some(ceiling), Some(first)) = (max_delay, backoff.longest_first_delay())
        && ceiling.as_nanos() < first.as_nanos()
    {
        return Err(PolicyError::new(
            "max_delay",
            Found::Duration(ceiling),
            "the ceiling may not be below the first delay of the backoff",
        ));
    }
    if let (Some(ceiling), Some(slot)) = (max_delay, backoff.longest_slot())
        && ceiling.as_nanos() < slot.as_nanos()
    {
        return Err(PolicyError::new(
            "max_delay",
            Found::Duration(ceiling),
            "with a ceiling below one slot every delay is 0: raise max_delay to the slot or above",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination::budget::BudgetConfig;
    use crate::destination::hedge::HedgeConfig;
    use crate::destination::rate_limit::RateLimitConfig;
    use crate::destination::throttle::ThrottleConfig;
    use crate::policy::PolicyBuilder;

    const SECOND: Duration = Duration::from_secs(1);

    fn base() -> PolicyBuilder {
        Policy::builder(Backoff::exponential(SECOND))
    }

    #[test]
    fn contradictory_policies_do_not_build() {
        let throttled = |backoff| Policy::builder(backoff).throttled_initial(SECOND);
        let many = (0..9).fold(base(), |builder, _| builder.rule(Rule::on([Pattern::Any])));
        let cases: [(PolicyBuilder, &str); 38] = [
            (base().max_delay(SECOND / 2), "max_delay"),
            (
                Policy::builder(Backoff::Slotted {
                    slot: SECOND,
                    exponent_limit: 10,
                })
                .max_delay(SECOND / 2),
                "max_delay",
            ),
            (
                base().max_delay(SECOND).throttled_initial(2 * SECOND),
                "throttled_initial",
            ),
            (throttled(Backoff::None), "throttled_initial"),
            (throttled(Backoff::slotted(SECOND)), "throttled_initial"),
            (throttled(Backoff::schedule([SECOND])), "throttled_initial"),
            (
                throttled(Backoff::None.then(1, Backoff::schedule([SECOND]))),
                "throttled_initial",
            ),
            (base().deadline(Duration::ZERO), "deadline"),
            (base().deadline(SECOND).min_attempt_time(SECOND), "deadline"),
            (base().attempt_timeout(Duration::ZERO), "attempt_timeout"),
            (base().retry_after_jitter(0.0), "retry_after_jitter"),
            (base().retry_after_jitter(-0.5), "retry_after_jitter"),
            (base().retry_after_jitter(1.5), "retry_after_jitter"),
            (base().retry_after_jitter(f64::NAN), "retry_after_jitter"),
            (base().jitter(Jitter::Proportional(1.5)), "jitter"),
            (base().jitter(Jitter::Proportional(f64::NAN)), "jitter"),
            (
                base().jitter(Jitter::Additive {
                    min: SECOND,
                    max: Duration::ZERO,
                }),
                "jitter",
            ),
            (
                Policy::builder(Backoff::decorrelated(SECOND)).jitter(Jitter::Full),
                "jitter",
            ),
            (base().rule(Rule::on([])), "on"),
            (base().rule(Rule::on([Pattern::from(101)])), "on"),
            (base().retry_on([Pattern::Status(100, 599)]), "retry_on"),
            (base().retry_on([Pattern::Grpc(0)]), "retry_on"),
            (base().stop_on([Pattern::from(103)]), "stop_on"),
            (
                base().rule(Rule {
                    max_retries: Some(256),
                    ..Rule::on([Pattern::Any])
                }),
                "max_retries",
            ),
            (
                base().rule(Rule {
                    backoff: Some(Backoff::schedule([SECOND; 256])),
                    ..Rule::on([Pattern::Any])
                }),
                "backoff",
            ),
            (
                base().rule(Rule {
                    backoff: Some(Backoff::None.then(255, Backoff::None)),
                    ..Rule::on([Pattern::Any])
                }),
                "backoff",
            ),
            (
                base().rule(Rule {
                    max_delay: Some(SECOND / 2),
                    ..Rule::on([Pattern::Any])
                }),
                "max_delay",
            ),
            (many, "rules"),
            (
                base().budget(BudgetConfig {
                    ratio: -1.0,
                    ..BudgetConfig::DEFAULT
                }),
                "ratio",
            ),
            (base().rate_limit(RateLimitConfig::new(0.0)), "limit"),
            (base().hedge(HedgeConfig::percentile(1.0)), "percentile"),
            (
                base().hedge(HedgeConfig::percentile(f64::NAN)),
                "percentile",
            ),
            (
                base().hedge(HedgeConfig::after(SECOND).max_hedges(5)),
                "max_hedges",
            ),
            (
                base().throttle(ThrottleConfig {
                    factor: 0.9,
                    ..ThrottleConfig::DEFAULT
                }),
                "factor",
            ),
            (
                base().throttle(ThrottleConfig {
                    window: Duration::ZERO,
                    ..ThrottleConfig::DEFAULT
                }),
                "window",
            ),
            (base().rate_limit(RateLimitConfig::new(f64::NAN)), "limit"),
            (
                base().rate_limit(RateLimitConfig {
                    adaptive: false,
                    ..RateLimitConfig::ADAPTIVE
                }),
                "limit",
            ),
            (
                base().rate_limit(RateLimitConfig {
                    burst: Some(0),
                    ..RateLimitConfig::ADAPTIVE
                }),
                "burst",
            ),
        ];
        for (builder, key) in cases {
            let error = builder.build().unwrap_err();
            assert_eq!(error.key(), key, "{error}");
        }
    }

    #[test]
    fn incompatible_keys_of_a_policy_are_rejected() {
        let chain = |first: Backoff| Policy::builder(first.then(2, Backoff::constant(SECOND)));
        let linear = Backoff::linear(SECOND, SECOND / 1000);
        let rule = |max_delay, max_retries| {
            let policy = Policy::builder(Backoff::constant(SECOND)).unlimited_retries();
            policy.rule(Rule {
                backoff: Some(linear.clone()),
                max_delay,
                max_retries,
                ..Rule::on([Pattern::Any])
            })
        };
        let budget = |budget| base().budget(budget);
        const BUDGET: BudgetConfig = BudgetConfig::DEFAULT;
        let cases = [
            (chain(Backoff::schedule([SECOND])), "retries"),
            (
                chain(Backoff::decorrelated(SECOND)).jitter(Jitter::Full),
                "jitter",
            ),
            (
                chain(Backoff::slotted(SECOND)).jitter(Jitter::Equal),
                "jitter",
            ),
            (
                chain(Backoff::exponential(3 * SECOND)).max_delay(2 * SECOND),
                "max_delay",
            ),
            (
                base().max_elapsed(SECOND).min_attempt_time(2 * SECOND),
                "max_elapsed",
            ),
            (rule(None, None), "backoff"),
            (rule(Some(10 * SECOND), None), "backoff"),
            (
                budget(BudgetConfig {
                    cost: 101.0,
                    ..BUDGET
                }),
                "cost",
            ),
            (
                budget(BudgetConfig {
                    cost: 101.0,
                    charge_failures: true,
                    ..BUDGET
                }),
                "cost",
            ),
            (
                budget(BudgetConfig {
                    throttled_cost: 101.0,
                    ..BUDGET
                }),
                "throttled_cost",
            ),
            (
                budget(BudgetConfig {
                    timeout_cost: Some(101.0),
                    ..BUDGET
                }),
                "timeout_cost",
            ),
            (
                budget(BudgetConfig {
                    throttled_cost: 51.0,
                    min_tokens: 50.0,
                    ..BUDGET
                }),
                "capacity",
            ),
            (
                base().rate_limit(RateLimitConfig {
                    burst: Some(u32::MAX),
                    ..RateLimitConfig::new(0.1)
                }),
                "burst",
            ),
            (base().retry_on([Pattern::Status(600, 699)]), "retry_on"),
            (base().retry_on([Pattern::Status(504, 500)]), "retry_on"),
            (base().stop_on([Pattern::Grpc(17)]), "stop_on"),
            (base().not_processed([Pattern::Exit(9, 1)]), "not_processed"),
            (base().rule(Rule::on([Pattern::Exit(0, 256)])), "on"),
        ];
        for (builder, key) in cases {
            let error = builder.build().unwrap_err();
            assert_eq!(error.key(), key, "{error}");
        }
        // The same settings, without the contradiction.
        for builder in [
            chain(Backoff::schedule([SECOND; 2])),
            chain(Backoff::decorrelated(SECOND)),
            chain(Backoff::exponential(SECOND)).max_delay(2 * SECOND),
            Policy::builder(Backoff::None.then(1, Backoff::constant(SECOND)))
                .throttled_initial(SECOND),
            base().max_elapsed(SECOND).min_attempt_time(SECOND),
            rule(Some(SECOND + SECOND / 5), None),
            rule(None, Some(9)),
            rule(None, None).max_retries(255),
            budget(BudgetConfig {
                cost: 100.0,
                ..BUDGET
            }),
        ] {
            builder.build().unwrap();
        }
    }
}
