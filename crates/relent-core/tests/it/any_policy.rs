//! Policies of every shape, for property tests.

use std::time::Duration;

use proptest::option::of as optional;
use proptest::prelude::*;
use relent_core::policy::Phase;
use relent_core::{
    Backoff, BudgetConfig, Ceiling, CircuitBreakerConfig, HedgeConfig, HedgeDelay, HintMode,
    Jitter, Pattern, Policy, RateLimitConfig, Rule, ThrottleConfig,
};

fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0..=u64::MAX).prop_map(Duration::from_nanos),
        (0..100_000u64).prop_map(Duration::from_millis),
        (0..1000u64).prop_map(Duration::from_secs),
    ]
}

fn simple_backoff() -> BoxedStrategy<Backoff> {
    prop_oneof![
        Just(Backoff::None),
        duration().prop_map(Backoff::constant),
        (duration(), duration()).prop_map(|(initial, step)| Backoff::linear(initial, step)),
        (duration(), 1.0..1e9f64)
            .prop_map(|(initial, factor)| Backoff::Exponential { initial, factor }),
        duration().prop_map(Backoff::exponential),
        duration().prop_map(Backoff::fibonacci),
        (duration(), 1.0..1e9f64)
            .prop_map(|(initial, factor)| Backoff::Decorrelated { initial, factor }),
        (1..u64::MAX, 1..=62u32).prop_map(|(slot, exponent_limit)| Backoff::Slotted {
            slot: Duration::from_nanos(slot),
            exponent_limit,
        }),
        prop::collection::vec(duration(), 1..5).prop_map(Backoff::schedule),
        (duration(), f64::MIN_POSITIVE..1e9)
            .prop_map(|(initial, fraction)| Backoff::elapsed(initial, fraction)),
    ]
    .boxed()
}

fn backoff() -> BoxedStrategy<Backoff> {
    prop_oneof![
        4 => simple_backoff(),
        1 => (prop::collection::vec((1..9u32, simple_backoff()), 0..3), prop::option::of(1..9u32), simple_backoff())
            .prop_map(|(phases, retries, last)| Backoff::Chain {
                phases: phases
                    .into_iter()
                    .map(|(retries, backoff)| Phase { retries: Some(retries), backoff })
                    .chain([Phase { retries, backoff: last }])
                    .collect(),
            }),
    ]
    .boxed()
}

fn jitter() -> BoxedStrategy<Jitter> {
    prop_oneof![
        Just(Jitter::None),
        Just(Jitter::Full),
        Just(Jitter::Equal),
        (0.0..=1.0f64).prop_map(Jitter::Proportional),
        (duration(), duration()).prop_map(|(one, other)| Jitter::Additive {
            min: one.min(other),
            max: one.max(other),
        }),
    ]
    .boxed()
}

fn pattern() -> BoxedStrategy<Pattern> {
    prop_oneof![
        (200..=599u16, 200..=599u16)
            .prop_map(|(one, other)| Pattern::Status(one.min(other), one.max(other))),
        (2..=5u16).prop_map(|class| Pattern::Status(class * 100, class * 100 + 99)),
        (1..=16u16).prop_map(Pattern::Grpc),
        (0..=255i32, 0..=255i32)
            .prop_map(|(one, other)| Pattern::Exit(one.min(other), one.max(other))),
        prop::sample::select(vec![
            Pattern::Signal,
            Pattern::Output,
            Pattern::Timeout,
            Pattern::Network,
            Pattern::Connect,
            Pattern::Throttled,
            Pattern::Error,
            Pattern::Any,
        ]),
    ]
    .boxed()
}

fn rule() -> BoxedStrategy<Rule> {
    (
        prop::collection::vec(pattern(), 1..4),
        optional(backoff()),
        optional(jitter()),
        optional(duration()),
        optional(0..=255u32),
        optional(duration()),
    )
        .prop_map(
            |(on, backoff, jitter, max_delay, max_retries, attempt_timeout)| Rule {
                on,
                backoff,
                jitter,
                max_delay,
                max_retries,
                attempt_timeout,
            },
        )
        .boxed()
}

fn budget() -> BoxedStrategy<BudgetConfig> {
    (
        (0.0..1e6f64, 0.0..1e6f64, 0.0..100f64, 0.0..1e6f64),
        (
            104.0..1e6f64,
            0.0..50f64,
            0.0..50f64,
            0.0..50f64,
            optional(0.0..50f64),
        ),
        0.0..=8f64,
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(
                filling,
                taking,
                overload_reserve,
                queue_when_exhausted,
                refund_on_success,
                charge_failures,
            )| {
                BudgetConfig {
                    overload_reserve: (overload_reserve - 4.0).max(0.0),
                    queue_when_exhausted,
                    ratio: filling.0,
                    success: filling.1,
                    initial_tokens: filling.2,
                    per_second: filling.3,
                    capacity: taking.0,
                    cost: taking.1,
                    throttled_cost: taking.2,
                    min_tokens: taking.3,
                    timeout_cost: taking.4,
                    refund_on_success,
                    charge_failures,
                }
            },
        )
        .boxed()
}

fn circuit_breaker() -> BoxedStrategy<CircuitBreakerConfig> {
    (duration(), duration(), duration(), duration(), duration())
        .prop_map(
            |(one, other, patience, without, unanswered)| CircuitBreakerConfig {
                first_probe: one.min(other),
                max_probe: one.max(other),
                max_queue_time: patience,
                max_queue_time_without_deadline: without,
                max_queue_time_without_response: unanswered,
            },
        )
        .boxed()
}

fn rate_limit() -> BoxedStrategy<RateLimitConfig> {
    (
        optional(0.000_01..1e9f64),
        optional(1..=u32::MAX),
        any::<bool>(),
    )
        .prop_map(|(limit, burst, adapt)| RateLimitConfig {
            limit,
            burst,
            adaptive: adapt || limit.is_none(),
        })
        .boxed()
}

fn hedge() -> BoxedStrategy<HedgeConfig> {
    let percentile = (
        0.5..=0.999f64,
        optional((duration(), duration())),
        optional(1000..=1_000_000u32),
    );
    let delay = prop_oneof![
        duration().prop_map(HedgeDelay::Fixed),
        percentile.prop_map(|(percentile, bounds, known)| {
            let HedgeDelay::Percentile {
                least,
                most,
                samples,
                ..
            } = HedgeConfig::percentile(percentile).delay
            else {
                unreachable!()
            };
            let (one, other) = bounds.unwrap_or((least, most));
            HedgeDelay::Percentile {
                percentile,
                least: one.min(other),
                most: one.max(other),
                samples: known.unwrap_or(samples),
            }
        }),
    ];
    (delay, 1..=4u32)
        .prop_map(|(delay, max_hedges)| HedgeConfig { delay, max_hedges })
        .boxed()
}

fn throttle() -> BoxedStrategy<ThrottleConfig> {
    (1.0..1e9f64, 1..u64::MAX)
        .prop_map(|(factor, window)| ThrottleConfig {
            factor,
            window: Duration::from_nanos(window),
        })
        .boxed()
}

/// Any valid policy.
pub(crate) fn policy() -> impl Strategy<Value = Policy> {
    let waits = (
        backoff(),
        optional(jitter()),
        optional(optional(duration())),
        any::<bool>(),
        optional(duration()),
    );
    let limits = (
        optional(optional(any::<u32>())),
        optional(duration()),
        optional(duration()),
        optional(duration()),
        optional(duration()),
        any::<bool>(),
    );
    let hints = (
        prop::sample::select(HintMode::ALL.to_vec()),
        optional(duration()),
        optional(0.001..=1.0f64),
    );
    let lists = (
        prop::collection::vec(rule(), 0..3),
        optional(prop::collection::vec(pattern(), 0..4)),
        prop::collection::vec(pattern(), 0..4),
        prop::collection::vec(pattern(), 0..4),
    );
    let rest = (
        optional(budget()),
        any::<bool>(),
        any::<bool>(),
        optional(circuit_breaker()),
        optional(rate_limit()),
        optional(hedge()),
        optional(throttle()),
    );
    (waits, limits, hints, lists, rest).prop_filter_map(
        "contradictory policies do not build",
        |(waits, limits, hints, lists, rest)| {
            let draws = waits.0.draws();
            let mut builder = Policy::builder(waits.0)
                .hint(hints.0.1)
                .stop_on(lists.2)
                .not_processed(lists.3)
                .assume_repeatable(rest.1)
                .retries_off(rest.2);
            if let Some(jitter) = waits.1
                && !draws
            {
                builder = builder.jitter(jitter);
            }
            match waits.2 {
                Some(Some(ceiling)) => builder = builder.max_delay(ceiling),
                Some(None) => builder = builder.unlimited_delay(),
                None => {}
            }
            if waits.3 {
                builder = builder.ceiling(Ceiling::AfterJitter);
            }
            if let Some(initial) = waits.4 {
                builder = builder.throttled_initial(initial);
            }
            match limits.0 {
                Some(Some(retries)) => builder = builder.max_retries(retries),
                Some(None) => builder = builder.unlimited_retries(),
                None => {}
            }
            if let Some(limit) = limits.1 {
                builder = builder.max_elapsed(limit);
            }
            if let Some(limit) = limits.2 {
                builder = builder.deadline(limit);
            }
            if let Some(limit) = limits.3 {
                builder = builder.attempt_timeout(limit);
            }
            if let Some(room) = limits.4 {
                builder = builder.min_attempt_time(room);
            }
            builder = builder.final_attempt_before_deadline(limits.5);
            if let Some(share) = hints.2 {
                builder = builder.retry_after_jitter(share);
            }
            if let Some(longest) = hints.1 {
                builder = builder.max_hint(longest);
            }
            for rule in lists.0 {
                builder = builder.rule(rule);
            }
            if let Some(listed) = lists.1 {
                builder = builder.retry_on(listed);
            }
            if let Some(config) = rest.0 {
                builder = builder.budget(config);
            }
            if let Some(config) = rest.3 {
                builder = builder.circuit_breaker(config);
            }
            if let Some(config) = rest.4 {
                builder = builder.rate_limit(config);
            }
            if let Some(config) = rest.5 {
                builder = builder.hedge(config);
            }
            if let Some(config) = rest.6 {
                builder = builder.throttle(config);
            }
            builder.build().ok()
        },
    )
}
