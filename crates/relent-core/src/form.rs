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

use crate::budget::BudgetConfig;
use crate::gate::GateConfig;
use crate::pattern::Pattern;
use crate::policy::{Policy, Rule};
use crate::request_rate::RequestRateConfig;
use crate::throttle::ThrottleConfig;
use backoff::BackoffForm;
use hedge::HedgeForm;
use table::{missing, present, table, unless};
use value::{
    CeilingWord, Count, HintWord, JitterText, Limit, PatternText, Retries, Span, Switch, SwitchedTo,
};

// In the order of writing: values before tables, as TOML requires.
table!(PolicyForm {
    description: String,
    source: String,
    max_retries: Retries,
    max_elapsed: Limit,
    deadline: Limit,
    attempt_timeout: Limit,
    attempt_room: Span,
    cut_last_wait: bool,
    max_delay: Limit,
    ceiling: CeilingWord,
    jitter: JitterText,
    throttled_initial: Span,
    hint: HintWord,
    max_hint: Span,
    hint_spread: f64,
    retry_on: Vec<PatternText>,
    stop_on: Vec<PatternText>,
    not_processed: Vec<PatternText>,
    assume_repeatable: bool,
    retries: Switch,
    backoff: BackoffForm,
    rules: Vec<RuleForm>,
    budget: BudgetForm,
    gate: GateForm,
    request_rate: RequestRateForm,
    hedge: HedgeForm,
    throttle: ThrottleForm,
});

table!(RuleForm {
    on: Vec<PatternText>,
    max_retries: Count,
    attempt_timeout: Span,
    max_delay: Span,
    jitter: JitterText,
    backoff: BackoffForm,
});

table!(BudgetForm {
    ratio: f64,
    success: f64,
    reserve: f64,
    per_second: f64,
    capacity: f64,
    cost: f64,
    throttled_cost: f64,
    timeout_cost: f64,
    floor: f64,
    overload_floor: f64,
    wait_when_empty: bool,
    refund_on_success: bool,
    charge_failures: bool,
});

table!(GateForm {
    first_probe: Span,
    max_probe: Span,
    patience: Span,
    patience_without_deadline: Span,
    patience_unanswered: Span,
});

table!(RequestRateForm {
    limit: f64,
    burst: Count,
    adapt: bool,
});

table!(ThrottleForm {
    factor: f64,
    window: Span,
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
            max_retries: unless(policy.max_retries, &default.max_retries).map(Retries),
            max_elapsed: limit(policy.max_elapsed),
            deadline: limit(policy.deadline),
            attempt_timeout: limit(policy.attempt_timeout),
            attempt_room: unless(policy.attempt_room, &default.attempt_room).map(Span),
            cut_last_wait: policy.cut_last_wait.then_some(true),
            max_delay: unless(policy.max_delay, &default.max_delay).map(Limit),
            ceiling: unless(policy.ceiling, &default.ceiling).map(CeilingWord),
            jitter: unless(policy.jitter, &default.jitter).map(JitterText),
            throttled_initial: policy.throttled_initial.map(Span),
            hint: unless(policy.hint, &default.hint).map(HintWord),
            max_hint: unless(policy.max_hint, &default.max_hint).map(Span),
            hint_spread: unless(policy.hint_spread, &default.hint_spread),
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
            gate: policy.gate.as_ref().map(GateForm::of),
            request_rate: policy.request_rate.as_ref().map(RequestRateForm::of),
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
        if let Some(Span(room)) = self.attempt_room {
            builder = builder.attempt_room(room);
        }
        if let Some(cut) = self.cut_last_wait {
            builder = builder.cut_last_wait(cut);
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
        if let Some(Span(initial)) = self.throttled_initial {
            builder = builder.throttled_initial(initial);
        }
        if let Some(HintWord(mode)) = self.hint {
            builder = builder.hint(mode);
        }
        if let Some(Span(longest)) = self.max_hint {
            builder = builder.max_hint(longest);
        }
        if let Some(share) = self.hint_spread {
            builder = builder.hint_spread(share);
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
        if let Some(gate) = self.gate {
            builder = builder.gate(gate.into_config());
        }
        if let Some(rate) = self.request_rate {
            builder = builder.request_rate(rate.into_config());
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
            attempt_timeout: rule.attempt_timeout.map(Span),
            max_delay: rule.max_delay.map(Span),
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
            ratio: unless(config.ratio, &default.ratio),
            success: unless(config.success, &default.success),
            reserve: unless(config.reserve, &default.reserve),
            per_second: unless(config.per_second, &default.per_second),
            capacity: unless(config.capacity, &default.capacity),
            cost: unless(config.cost, &default.cost),
            throttled_cost: unless(config.throttled_cost, &default.throttled_cost),
            timeout_cost: config.timeout_cost,
            floor: unless(config.floor, &default.floor),
            overload_floor: unless(config.overload_floor, &default.overload_floor),
            wait_when_empty: unless(config.wait_when_empty, &default.wait_when_empty),
            refund_on_success: unless(config.refund_on_success, &default.refund_on_success),
            charge_failures: unless(config.charge_failures, &default.charge_failures),
        }
    }

    fn into_config(self) -> BudgetConfig {
        let default = BudgetConfig::DEFAULT;
        BudgetConfig {
            ratio: self.ratio.unwrap_or(default.ratio),
            success: self.success.unwrap_or(default.success),
            reserve: self.reserve.unwrap_or(default.reserve),
            per_second: self.per_second.unwrap_or(default.per_second),
            capacity: self.capacity.unwrap_or(default.capacity),
            cost: self.cost.unwrap_or(default.cost),
            throttled_cost: self.throttled_cost.unwrap_or(default.throttled_cost),
            timeout_cost: self.timeout_cost,
            floor: self.floor.unwrap_or(default.floor),
            overload_floor: self.overload_floor.unwrap_or(default.overload_floor),
            wait_when_empty: self.wait_when_empty.unwrap_or(default.wait_when_empty),
            refund_on_success: self.refund_on_success.unwrap_or(default.refund_on_success),
            charge_failures: self.charge_failures.unwrap_or(default.charge_failures),
        }
    }
}

impl GateForm {
    fn of(config: &GateConfig) -> Self {
        let default = GateConfig::DEFAULT;
        Self {
            first_probe: unless(config.first_probe, &default.first_probe).map(Span),
            max_probe: unless(config.max_probe, &default.max_probe).map(Span),
            patience: unless(config.patience, &default.patience).map(Span),
            patience_without_deadline: unless(
                config.patience_without_deadline,
                &default.patience_without_deadline,
            )
            .map(Span),
            patience_unanswered: unless(config.patience_unanswered, &default.patience_unanswered)
                .map(Span),
        }
    }

    fn into_config(self) -> GateConfig {
        let default = GateConfig::DEFAULT;
        GateConfig {
            first_probe: self.first_probe.map_or(default.first_probe, |span| span.0),
            max_probe: self.max_probe.map_or(default.max_probe, |span| span.0),
            patience: self.patience.map_or(default.patience, |span| span.0),
            patience_without_deadline: self
                .patience_without_deadline
                .map_or(default.patience_without_deadline, |span| span.0),
            patience_unanswered: self
                .patience_unanswered
                .map_or(default.patience_unanswered, |span| span.0),
        }
    }
}

impl RequestRateForm {
    fn of(config: &RequestRateConfig) -> Self {
        Self {
            limit: config.limit,
            burst: config.burst.map(Count),
            adapt: unless(config.adapt, &false),
        }
    }

    fn into_config(self) -> RequestRateConfig {
        RequestRateConfig {
            limit: self.limit,
            burst: self.burst.map(|burst| burst.0),
            adapt: self.adapt.unwrap_or(false),
        }
    }
}

impl ThrottleForm {
    fn of(config: &ThrottleConfig) -> Self {
        let default = ThrottleConfig::DEFAULT;
        Self {
            factor: unless(config.factor, &default.factor),
            window: unless(config.window, &default.window).map(Span),
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
