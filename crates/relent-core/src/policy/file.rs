//! The file form of a policy: flat keys, readable durations, unknown keys rejected.
//!
//! The form mirrors the policy. Everything that is read passes through
//! [`PolicyBuilder::build`](crate::PolicyBuilder::build), so a file can express only valid
//! policies. Defaults are not written, and the written form reads back equal.

mod backoff;
mod hedge;
mod table;
mod value;

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::destination::budget::BudgetConfig;
use crate::destination::circuit_breaker::CircuitBreakerConfig;
use crate::destination::rate_limit::RateLimitConfig;
use crate::destination::throttle::ThrottleConfig;
use crate::policy::pattern::Pattern;
use crate::policy::{Policy, Rule};
use backoff::BackoffForm;
use hedge::HedgeForm;
use table::{missing, non_default, present, table};
use value::{
    CeilingWord, Count, DurationText, HintWord, JitterText, Limit, PatternText, Retries, Switch,
    SwitchedTo,
};

// In the order of writing: values before tables, as TOML requires.
table!(PolicyForm {
    description: String,
    source: String,
    max_retries: Retries,
    max_elapsed: Limit,
    deadline: Limit,
    attempt_timeout: Limit,
    min_attempt_time: DurationText,
    final_attempt_before_deadline: bool,
    max_delay: Limit,
    ceiling: CeilingWord,
    jitter: JitterText,
    throttled_initial: DurationText,
    hint: HintWord,
    max_hint: DurationText,
    retry_after_jitter: f64,
    retry_on: Vec<PatternText>,
    stop_on: Vec<PatternText>,
    not_processed: Vec<PatternText>,
    assume_repeatable: bool,
    retries: Switch,
    backoff: BackoffForm,
    rules: Vec<RuleForm>,
    budget: BudgetForm,
    circuit_breaker: CircuitBreakerForm,
    rate_limit: RateLimitForm,
    hedge: HedgeForm,
    throttle: ThrottleForm,
});

table!(RuleForm {
    on: Vec<PatternText>,
    max_retries: Count,
    attempt_timeout: DurationText,
    max_delay: DurationText,
    jitter: JitterText,
    backoff: BackoffForm,
});

table!(BudgetForm {
    ratio: f64,
    success: f64,
    initial_tokens: f64,
    per_second: f64,
    capacity: f64,
    cost: f64,
    throttled_cost: f64,
    timeout_cost: f64,
    min_tokens: f64,
    overload_reserve: f64,
    queue_when_exhausted: bool,
    refund_on_success: bool,
    charge_failures: bool,
});

table!(CircuitBreakerForm {
    first_probe: DurationText,
    max_probe: DurationText,
    max_queue_time: DurationText,
    max_queue_time_without_deadline: DurationText,
    max_queue_time_without_response: DurationText,
});

table!(RateLimitForm {
    limit: f64,
    burst: Count,
    adaptive: bool,
});

table!(ThrottleForm {
    factor: f64,
    window: DurationText,
});

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        PolicyForm::of(self).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        PolicyForm::deserialize(from)?
            .into_policy()
            .map_err(D::Error::custom)
    }
}

fn patterns(list: &[Pattern]) -> Option<Vec<PatternText>> {
    (!list.is_empty()).then(|| list.iter().copied().map(PatternText).collect())
}

fn unwrap_patterns(list: Vec<PatternText>) -> Vec<Pattern> {
    list.into_iter().map(|pattern| pattern.0).collect()
}

impl PolicyForm {
    fn of(policy: &Policy) -> Self {
        let default = Policy::with_defaults(policy.backoff.clone());
        let limit = |limit: Option<Duration>| limit.map(|limit| Limit(Some(limit)));
        Self {
            description: None,
            source: None,
            max_retries: non_default(policy.max_retries, &default.max_retries).map(Retries),
            max_elapsed: limit(policy.max_elapsed),
            deadline: limit(policy.deadline),
            attempt_timeout: limit(policy.attempt_timeout),
            min_attempt_time: non_default(policy.min_attempt_time, &default.min_attempt_time)
                .map(DurationText),
            final_attempt_before_deadline: policy.final_attempt_before_deadline.then_some(true),
            max_delay: non_default(policy.max_delay, &default.max_delay).map(Limit),
            ceiling: non_default(policy.ceiling, &default.ceiling).map(CeilingWord),
            jitter: non_default(policy.jitter, &default.jitter).map(JitterText),
            throttled_initial: policy.throttled_initial.map(DurationText),
            hint: non_default(policy.hint, &default.hint).map(HintWord),
            max_hint: non_default(policy.max_hint, &default.max_hint).map(DurationText),
            retry_after_jitter: non_default(policy.retry_after_jitter, &default.retry_after_jitter),
            // An empty list means "no failures", not the default.
            retry_on: policy
                .retry_on
                .as_deref()
                .map(|list| list.iter().copied().map(PatternText).collect()),
            stop_on: patterns(&policy.stop_on),
            not_processed: patterns(&policy.not_processed),
            assume_repeatable: policy.assume_repeatable.then_some(true),
            retries: policy.retries_off.then_some(Switch(SwitchedTo::Off)),
            backoff: Some(BackoffForm::of(&policy.backoff)),
            rules: (!policy.rules.is_empty())
                .then(|| policy.rules.iter().map(RuleForm::of).collect()),
            budget: policy.budget.as_ref().map(BudgetForm::of),
            circuit_breaker: policy.circuit_breaker.as_ref().map(CircuitBreakerForm::of),
            rate_limit: policy.rate_limit.as_ref().map(RateLimitForm::of),
            hedge: policy.hedge.as_ref().map(HedgeForm::of),
            throttle: policy.throttle.as_ref().map(ThrottleForm::of),
        }
    }

    fn into_policy(self) -> Result<Policy, String> {
        let backoff = missing(
            self.backoff,
            "`backoff`: use \"none\" or, for example, backoff.exponential = { initial = \"1s\" }",
        )?;
        let mut builder = Policy::builder(backoff.into_backoff()?);
        if let Some(Retries(retries)) = self.max_retries {
            builder = match retries {
                Some(retries) => builder.max_retries(retries),
                None => builder.unlimited_retries(),
            };
        }
        if let Some(Limit(Some(limit))) = self.max_elapsed {
            builder = builder.max_elapsed(limit);
        }
        if let Some(Limit(Some(limit))) = self.deadline {
            builder = builder.deadline(limit);
        }
        if let Some(Limit(Some(limit))) = self.attempt_timeout {
            builder = builder.attempt_timeout(limit);
        }
        if let Some(DurationText(room)) = self.min_attempt_time {
            builder = builder.min_attempt_time(room);
        }
        if let Some(cut) = self.final_attempt_before_deadline {
            builder = builder.final_attempt_before_deadline(cut);
        }
        if let Some(Limit(ceiling)) = self.max_delay {
            builder = match ceiling {
                Some(ceiling) => builder.max_delay(ceiling),
                None => builder.unlimited_delay(),
            };
        }
        if let Some(CeilingWord(ceiling)) = self.ceiling {
            builder = builder.ceiling(ceiling);
        }
        if let Some(JitterText(jitter)) = self.jitter {
            builder = builder.jitter(jitter);
        }
        if let Some(DurationText(initial)) = self.throttled_initial {
            builder = builder.throttled_initial(initial);
        }
        if let Some(HintWord(mode)) = self.hint {
            builder = builder.hint(mode);
        }
        if let Some(DurationText(longest)) = self.max_hint {
            builder = builder.max_hint(longest);
        }
        if let Some(share) = self.retry_after_jitter {
            builder = builder.retry_after_jitter(share);
        }
        if let Some(list) = self.retry_on {
            builder = builder.retry_on(unwrap_patterns(list));
        }
        if let Some(list) = self.stop_on {
            builder = builder.stop_on(unwrap_patterns(list));
        }
        if let Some(list) = self.not_processed {
            builder = builder.not_processed(unwrap_patterns(list));
        }
        if let Some(repeatable) = self.assume_repeatable {
            builder = builder.assume_repeatable(repeatable);
        }
        if let Some(Switch(switch)) = self.retries {
            builder = builder.retries_off(matches!(switch, SwitchedTo::Off));
        }
        for rule in self.rules.unwrap_or_default() {
            builder = builder.rule(rule.into_rule()?);
        }
        if let Some(budget) = self.budget {
            builder = builder.budget(budget.into_config());
        }
        if let Some(circuit_breaker) = self.circuit_breaker {
            builder = builder.circuit_breaker(circuit_breaker.into_config());
        }
        if let Some(rate) = self.rate_limit {
            builder = builder.rate_limit(rate.into_config());
        }
        if let Some(hedge) = self.hedge {
            builder = builder.hedge(hedge.into_config()?);
        }
        if let Some(throttle) = self.throttle {
            builder = builder.throttle(throttle.into_config());
        }
        builder.build().map_err(|error| error.to_string())
    }
}

impl RuleForm {
    fn of(rule: &Rule) -> Self {
        Self {
            on: patterns(&rule.on),
            max_retries: rule.max_retries.map(Count),
            attempt_timeout: rule.attempt_timeout.map(DurationText),
            max_delay: rule.max_delay.map(DurationText),
            jitter: rule.jitter.map(JitterText),
            backoff: rule.backoff.as_ref().map(BackoffForm::of),
        }
    }

    fn into_rule(self) -> Result<Rule, String> {
        Ok(Rule {
            on: unwrap_patterns(self.on.unwrap_or_default()),
            backoff: self.backoff.map(BackoffForm::into_backoff).transpose()?,
            jitter: self.jitter.map(|jitter| jitter.0),
            max_delay: self.max_delay.map(|span| span.0),
            max_retries: self.max_retries.map(|count| count.0),
            attempt_timeout: self.attempt_timeout.map(|span| span.0),
        })
    }
}

impl BudgetForm {
    fn of(config: &BudgetConfig) -> Self {
        let default = BudgetConfig::DEFAULT;
        Self {
            ratio: non_default(config.ratio, &default.ratio),
            success: non_default(config.success, &default.success),
            initial_tokens: non_default(config.initial_tokens, &default.initial_tokens),
            per_second: non_default(config.per_second, &default.per_second),
            capacity: non_default(config.capacity, &default.capacity),
            cost: non_default(config.cost, &default.cost),
            throttled_cost: non_default(config.throttled_cost, &default.throttled_cost),
            timeout_cost: config.timeout_cost,
            min_tokens: non_default(config.min_tokens, &default.min_tokens),
            overload_reserve: non_default(config.overload_reserve, &default.overload_reserve),
            queue_when_exhausted: non_default(
                config.queue_when_exhausted,
                &default.queue_when_exhausted,
            ),
            refund_on_success: non_default(config.refund_on_success, &default.refund_on_success),
            charge_failures: non_default(config.charge_failures, &default.charge_failures),
        }
    }

    fn into_config(self) -> BudgetConfig {
        let default = BudgetConfig::DEFAULT;
        BudgetConfig {
            ratio: self.ratio.unwrap_or(default.ratio),
            success: self.success.unwrap_or(default.success),
            initial_tokens: self.initial_tokens.unwrap_or(default.initial_tokens),
            per_second: self.per_second.unwrap_or(default.per_second),
            capacity: self.capacity.unwrap_or(default.capacity),
            cost: self.cost.unwrap_or(default.cost),
            throttled_cost: self.throttled_cost.unwrap_or(default.throttled_cost),
            timeout_cost: self.timeout_cost,
            min_tokens: self.min_tokens.unwrap_or(default.min_tokens),
            overload_reserve: self.overload_reserve.unwrap_or(default.overload_reserve),
            queue_when_exhausted: self
                .queue_when_exhausted
                .unwrap_or(default.queue_when_exhausted),
            refund_on_success: self.refund_on_success.unwrap_or(default.refund_on_success),
            charge_failures: self.charge_failures.unwrap_or(default.charge_failures),
        }
    }
}

impl CircuitBreakerForm {
    fn of(config: &CircuitBreakerConfig) -> Self {
        let default = CircuitBreakerConfig::DEFAULT;
        Self {
            first_probe: non_default(config.first_probe, &default.first_probe).map(DurationText),
            max_probe: non_default(config.max_probe, &default.max_probe).map(DurationText),
            max_queue_time: non_default(config.max_queue_time, &default.max_queue_time)
                .map(DurationText),
            max_queue_time_without_deadline: non_default(
                config.max_queue_time_without_deadline,
                &default.max_queue_time_without_deadline,
            )
            .map(DurationText),
            max_queue_time_without_response: non_default(
                config.max_queue_time_without_response,
                &default.max_queue_time_without_response,
            )
            .map(DurationText),
        }
    }

    fn into_config(self) -> CircuitBreakerConfig {
        let default = CircuitBreakerConfig::DEFAULT;
        CircuitBreakerConfig {
            first_probe: self.first_probe.map_or(default.first_probe, |span| span.0),
            max_probe: self.max_probe.map_or(default.max_probe, |span| span.0),
            max_queue_time: self
                .max_queue_time
                .map_or(default.max_queue_time, |span| span.0),
            max_queue_time_without_deadline: self
                .max_queue_time_without_deadline
                .map_or(default.max_queue_time_without_deadline, |span| span.0),
            max_queue_time_without_response: self
                .max_queue_time_without_response
                .map_or(default.max_queue_time_without_response, |span| span.0),
        }
    }
}

impl RateLimitForm {
    fn of(config: &RateLimitConfig) -> Self {
        Self {
            limit: config.limit,
            burst: config.burst.map(Count),
            adaptive: non_default(config.adaptive, &false),
        }
    }

    fn into_config(self) -> RateLimitConfig {
        RateLimitConfig {
            limit: self.limit,
            burst: self.burst.map(|burst| burst.0),
            adaptive: self.adaptive.unwrap_or(false),
        }
    }
}

impl ThrottleForm {
    fn of(config: &ThrottleConfig) -> Self {
        let default = ThrottleConfig::DEFAULT;
        Self {
            factor: non_default(config.factor, &default.factor),
            window: non_default(config.window, &default.window).map(DurationText),
        }
    }

    fn into_config(self) -> ThrottleConfig {
        let default = ThrottleConfig::DEFAULT;
        ThrottleConfig {
            factor: self.factor.unwrap_or(default.factor),
            window: self.window.map_or(default.window, |span| span.0),
        }
    }
}
