use super::*;
use crate::policy::Policy;
use crate::random::FixedRandom;
use core::time::Duration;
use proptest::prelude::*;

const NO_REFILL: BudgetConfig = BudgetConfig {
    per_second: 0.0,
    ..BudgetConfig::DEFAULT
};

fn at(seconds: u64) -> Instant {
    Instant::ORIGIN.saturating_add(Duration::from_secs(seconds))
}

fn drain(budget: &Budget, now: Instant) -> u32 {
    let mut granted = 0;
    while budget.withdraw(now, FailureKind::Ambiguous).is_some() {
        granted += 1;
    }
    granted
}

#[test]
fn the_default_budget_is_ten_per_cent_and_ten_initial_tokens() {
    let budget = Budget::new(&NO_REFILL).unwrap();
    assert_eq!(drain(&budget, at(0)), 10);
    for _ in 0..1000 {
        budget.on_request();
    }
    assert_eq!(drain(&budget, at(0)), 100);
}

/// tower truncates its percentage: .34 gives 50 %, anything above .5 gives 100 %.
#[test]
fn tower_percentage_truncation() {
    let config = BudgetConfig {
        ratio: 0.34,
        initial_tokens: 0.0,
        capacity: 1000.0,
        ..NO_REFILL
    };
    let budget = Budget::new(&config).unwrap();
    for _ in 0..100 {
        budget.on_request();
    }
    assert_eq!(drain(&budget, at(0)), 34);
}

#[test]
fn time_refills_a_budget_without_traffic() {
    let budget = Budget::new(&BudgetConfig::DEFAULT).unwrap();
    assert_eq!(drain(&budget, at(100)), 10);
    assert_eq!(drain(&budget, at(109)), 0);
    assert_eq!(drain(&budget, at(110)), 1);
    assert_eq!(drain(&budget, at(160)), 5);
    assert_eq!(
        drain(&budget, at(1_000_000)),
        100,
        "never more than the capacity"
    );
}

/// The AWS SDK for Rust counts its first refill from the epoch.
#[test]
fn aws_first_refill_since_epoch() {
    let budget = Budget::new(&BudgetConfig {
        initial_tokens: 0.0,
        ..BudgetConfig::DEFAULT
    })
    .unwrap();
    assert_eq!(drain(&budget, at(1_700_000_000)), 0);
}

/// Time that runs backwards (a clock with another origin) neither refills nor panics.
#[test]
fn a_budget_tolerates_a_clock_that_steps_back() {
    let budget = Budget::new(&BudgetConfig::DEFAULT).unwrap();
    assert_eq!(drain(&budget, at(100)), 10);
    assert_eq!(drain(&budget, at(50)), 0);
    assert_eq!(drain(&budget, Instant::MAX), 100);
}

#[test]
fn a_cancelled_retry_returns_its_tokens() {
    let budget = Budget::new(&NO_REFILL).unwrap();
    let before = budget.balance();
    let taken = budget.withdraw(at(0), FailureKind::Ambiguous).unwrap();
    assert!(budget.balance() < before);
    budget.refund(taken);
    assert_eq!(budget.balance(), before);
}

/// AWS retries 2.1: a transient failure costs 14, throttling 5. A success returns the last cost;
/// without a retry it deposits 1.
#[test]
fn aws_weighted_costs_and_refund() {
    let config = BudgetConfig {
        ratio: 0.0,
        success: 1.0,
        initial_tokens: 500.0,
        capacity: 500.0,
        cost: 14.0,
        throttled_cost: 5.0,
        refund_on_success: true,
        ..NO_REFILL
    };
    let budget = Budget::new(&config).unwrap();
    let first = budget.withdraw(at(0), FailureKind::Ambiguous).unwrap();
    assert_eq!(budget.balance(), 486.0);
    let second = budget.withdraw(at(0), FailureKind::Throttled).unwrap();
    assert_eq!(budget.balance(), 481.0);
    budget.on_success(second);
    assert_eq!(budget.balance(), 486.0);
    budget.on_success(Taken::default());
    assert_eq!(budget.balance(), 487.0);
    let _ = first;
}

/// gRFC A6: maxTokens 10, tokenRatio 0.1, retries only above half.
#[test]
fn grpc_throttling_stops_at_half() {
    let config = BudgetConfig {
        ratio: 0.0,
        success: 0.1,
        initial_tokens: 10.0,
        capacity: 10.0,
        min_tokens: 5.0,
        charge_failures: true,
        ..NO_REFILL
    };
    let budget = Budget::new(&config).unwrap();
    let mut granted = 0;
    for _ in 0..10 {
        budget.on_failure(FailureKind::Ambiguous);
        granted += u32::from(budget.withdraw(at(0), FailureKind::Ambiguous).is_some());
    }
    assert_eq!((granted, budget.balance()), (4, 0.0));
    for _ in 0..51 {
        budget.on_success(Taken::default());
    }
    assert!(budget.withdraw(at(0), FailureKind::Ambiguous).is_some());
}

#[test]
fn a_retry_after_a_timeout_may_have_its_own_cost() {
    for (timeout_cost, left) in [(Some(10.0), 490.0), (None, 495.0)] {
        let budget = Budget::new(&BudgetConfig {
            initial_tokens: 500.0,
            capacity: 500.0,
            cost: 5.0,
            throttled_cost: 2.0,
            timeout_cost,
            ..NO_REFILL
        })
        .unwrap();
        let charge = |kind, cause| {
            let taken = budget.withdraw(at(0), Charge::of(kind, cause)).unwrap();
            let balance = budget.balance();
            budget.refund(taken);
            balance
        };
        assert_eq!(charge(FailureKind::Ambiguous, Cause::Timeout), left);
        assert_eq!(charge(FailureKind::NotProcessed, Cause::Timeout), left);
        assert_eq!(charge(FailureKind::Ambiguous, Cause::Status(408)), 495.0);
        assert_eq!(charge(FailureKind::Throttled, Cause::Status(429)), 498.0);
    }
    let wrong = BudgetConfig {
        timeout_cost: Some(-1.0),
        ..NO_REFILL
    };
    assert_eq!(Budget::new(&wrong).unwrap_err().key(), "timeout_cost");
}

#[test]
fn contradictions_do_not_build() {
    for (config, key) in [
        (
            BudgetConfig {
                ratio: -0.1,
                ..NO_REFILL
            },
            "ratio",
        ),
        (
            BudgetConfig {
                ratio: f64::NAN,
                ..NO_REFILL
            },
            "ratio",
        ),
        (
            BudgetConfig {
                initial_tokens: 200.0,
                ..NO_REFILL
            },
            "initial_tokens",
        ),
        (
            BudgetConfig {
                capacity: 0.5,
                initial_tokens: 0.0,
                ..NO_REFILL
            },
            "cost",
        ),
        (
            BudgetConfig {
                capacity: 10.0,
                min_tokens: 9.5,
                ..NO_REFILL
            },
            "capacity",
        ),
        (
            BudgetConfig {
                capacity: 10.0,
                min_tokens: 10.0,
                charge_failures: true,
                ..NO_REFILL
            },
            "capacity",
        ),
    ] {
        assert_eq!(Budget::new(&config).unwrap_err().key(), key);
    }
}

#[test]
fn a_small_budget_amount_is_counted_or_rejected() {
    // One token in 10,000 seconds, which rounding does not lose.
    let slow = BudgetConfig {
        initial_tokens: 0.0,
        per_second: 0.0001,
        ..NO_REFILL
    };
    let budget = Budget::new(&slow).unwrap();
    assert_eq!(drain(&budget, at(0)), 0);
    assert_eq!(drain(&budget, at(9_000)), 0);
    assert_eq!(drain(&budget, at(10_000)), 1);
    assert_eq!(drain(&budget, at(60_000)), 5);
    let counted = BudgetConfig {
        ratio: 0.001,
        initial_tokens: 0.0,
        ..NO_REFILL
    };
    let budget = Budget::new(&counted).unwrap();
    for _ in 0..1000 {
        budget.on_request();
    }
    assert_eq!(drain(&budget, at(0)), 1);
    for (config, key) in [
        (
            BudgetConfig {
                ratio: 0.000_9,
                ..NO_REFILL
            },
            "ratio",
        ),
        (
            BudgetConfig {
                cost: 0.000_4,
                ..NO_REFILL
            },
            "cost",
        ),
        (
            BudgetConfig {
                per_second: 1e-10,
                ..NO_REFILL
            },
            "per_second",
        ),
    ] {
        assert_eq!(Budget::new(&config).unwrap_err().key(), key);
    }
}

#[test]
fn an_unbounded_ratio_fills_the_budget_to_its_capacity() {
    for ratio in [f64::INFINITY, f64::MAX, 1e19] {
        let budget = Budget::new(&NO_REFILL).unwrap();
        budget.on_signal(&BreakerSignal {
            ratio,
            ..BreakerSignal::default()
        });
        for _ in 0..3 {
            budget.on_request();
        }
        assert_eq!(budget.balance(), 100.0, "{ratio}");
    }
    let budget = Budget::new(&NO_REFILL).unwrap();
    budget.on_signal(&BreakerSignal {
        ratio: f64::NAN,
        ..BreakerSignal::default()
    });
    budget.on_request();
    assert_eq!(budget.balance(), 10.1);
}

/// Tower's sum-then-add let four threads overdraw by one now and then.
#[test]
fn tower_overdraw_race() {
    extern crate std;
    let config = BudgetConfig {
        initial_tokens: 1000.0,
        capacity: 1000.0,
        ..NO_REFILL
    };
    let budget = Budget::new(&config).unwrap();
    let granted: u32 = std::thread::scope(|scope| {
        let workers: alloc::vec::Vec<_> = (0..4)
            .map(|_| scope.spawn(|| drain(&budget, at(0))))
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .sum()
    });
    assert_eq!(granted, 1000);
}

#[test]
fn refill_before_a_reload_counts_at_the_old_rate() {
    let with = |per_second| BudgetConfig {
        ratio: 0.0,
        per_second,
        ..BudgetConfig::DEFAULT
    };
    let budget = Budget::new(&with(0.01)).unwrap();
    assert_eq!(drain(&budget, at(100)), 10);
    // 0.99 tokens were earned; from now on ten more each second.
    budget.apply(at(199), &with(10.0));
    assert_eq!(budget.balance(), 0.99);
    assert_eq!(drain(&budget, at(200)), 10);
    // Time with a rate of zero earns nothing later.
    budget.apply(at(200), &with(0.0));
    budget.apply(at(10_000), &with(0.1));
    assert_eq!(drain(&budget, at(10_000)), 0);
    assert_eq!(drain(&budget, at(10_010)), 1);
    // Applying the same configuration repeatedly changes nothing.
    for tenth in 0..1000 {
        let now = at(10_010).saturating_add(Duration::from_millis(tenth * 10));
        budget.apply(now, &with(0.1));
    }
    assert_eq!(drain(&budget, at(10_020)), 1);
}

proptest! {
    /// Refill matches the rate, however often the budget is used.
    #[test]
    fn refill_matches_its_rate(
        per_second in 0.001..100_000.0f64,
        looks in proptest::collection::vec(0..1_000_000_000u64, 1..50),
    ) {
        let config = BudgetConfig { initial_tokens: 0.0, capacity: 1e6, cost: 1e6, per_second, ..NO_REFILL };
        let budget = Budget::new(&config).unwrap();
        let mut now = 0;
        prop_assert!(budget.withdraw(Instant::ORIGIN, FailureKind::Ambiguous).is_none());
        for look in looks {
            now += look;
            let _ = budget.withdraw(Instant::from_nanos(now), FailureKind::Ambiguous);
        }
        let expected = now as f64 * per_second / 1e9;
        prop_assume!(expected < 1e6);
        // Never early, and late by at most a refill that is not due yet.
        prop_assert!(budget.balance() <= expected * 1.000_001);
        prop_assert!(budget.balance() >= expected * 0.999_999 - 0.102);
    }

    /// Compared with a plain sum: no order of calls makes or loses a token.
    #[test]
    fn no_order_of_calls_creates_or_loses_tokens(calls in proptest::collection::vec(0..4u8, 0..200)) {
        let budget = Budget::new(&NO_REFILL).unwrap();
        let mut model = 10_000_i64;
        let mut held = alloc::vec::Vec::new();
        for call in calls {
            match call {
                0 => { budget.on_request(); model = (model + 100).min(100_000); }
                1 | 2 => match budget.withdraw(at(0), FailureKind::Ambiguous) {
                    Some(taken) => { model -= 1000; held.push(taken); }
                    None => prop_assert!(model < 1000),
                },
                _ => if let Some(taken) = held.pop() {
                    budget.refund(taken);
                    model = (model + 1000).min(100_000);
                },
            }
            prop_assert!(model >= 0);
            prop_assert_eq!((budget.balance() * MILLI) as i64, model);
        }
    }
}

#[test]
fn an_exhausted_budget_queues_the_retry_at_the_breaker() {
    let config = BudgetConfig {
        initial_tokens: 1.0,
        queue_when_exhausted: true,
        ..NO_REFILL
    };
    let gated = BreakerSignal {
        has_queue: true,
        ..BreakerSignal::default()
    };
    let ask = |config: &BudgetConfig, signal: &BreakerSignal, charge| {
        let (budget, now) = (Budget::new(config).unwrap(), Instant::ORIGIN);
        budget.on_signal(signal);
        let ask = || budget.withdraw_within(now, charge, 5_000_000_000, &mut FixedRandom::at(0.5));
        assert!(matches!(ask(), Payment::Paid(_)), "there is one");
        let second = ask();
        assert_eq!(budget.balance(), 0.0);
        second
    };
    let (ordinary, throttled, timeout) = (Charge::Ordinary, Charge::Throttled, Charge::Timeout);
    assert_eq!(ask(&config, &gated, ordinary), Payment::QueueAtBreaker);
    assert_eq!(ask(&config, &gated, throttled), Payment::QueueAtBreaker);
    assert_eq!(ask(&config, &gated, timeout), Payment::Refused);
    // Without a circuit breaker nothing measures headroom.
    let none = BreakerSignal::default();
    assert_eq!(ask(&config, &none, ordinary), Payment::Refused);
    let ends = BudgetConfig {
        queue_when_exhausted: false,
        ..config
    };
    assert_eq!(ask(&ends, &gated, ordinary), Payment::Refused);
}

#[test]
fn after_possible_overload_a_retry_leaves_a_reserve() {
    let config = BudgetConfig {
        initial_tokens: 10.0,
        overload_reserve: 8.0,
        ..NO_REFILL
    };
    let (budget, now) = (Budget::new(&config).unwrap(), Instant::ORIGIN);
    let suspicious = BreakerSignal {
        maybe_overload: true,
        ..BreakerSignal::default()
    };
    budget.on_signal(&suspicious);
    assert!(budget.withdraw(now, FailureKind::Ambiguous).is_some());
    assert!(budget.withdraw(now, FailureKind::Ambiguous).is_some());
    assert!(budget.withdraw(now, FailureKind::Ambiguous).is_none());
    budget.on_signal(&BreakerSignal::default());
    assert!(budget.withdraw(now, FailureKind::Ambiguous).is_some());
}

/// docs/research/stability.md: the second of two retries of a newly started process.
#[test]
fn a_retry_from_the_initial_tokens_is_delayed_after_two_failures() {
    let (budget, now) = (Policy::STANDARD.new_budget().unwrap(), Instant::ORIGIN);
    let again = BreakerSignal {
        maybe_overload: true,
        consecutive_failures: true,
        ..BreakerSignal::default()
    };
    let take = |longest| match budget.withdraw_within(
        now,
        Charge::Ordinary,
        longest,
        &mut FixedRandom::at(0.5),
    ) {
        Payment::Paid(_) => Some(0),
        Payment::PaidAfter(_, wait) => Some(wait),
        Payment::QueueAtBreaker | Payment::Refused => None,
    };
    budget.on_signal(&BreakerSignal {
        consecutive_failures: false,
        ..again
    });
    assert_eq!(take(20_000_000_000), Some(0), "one failure");
    budget.on_signal(&again);
    assert_eq!(take(5_000_000_000), None, "no time for a pause");
    assert_eq!(take(20_000_000_000), Some(6_000_000_000));
    assert_eq!(take(20_000_000_000), None, "the rest is for other failures");
    for _ in 0..30 {
        budget.on_request();
    }
    assert_eq!(
        take(20_000_000_000),
        Some(0),
        "it has deposited more than the reserve"
    );
}

#[test]
fn a_successful_retry_costs_nothing() {
    let (budget, now) = (Policy::STANDARD.new_budget().unwrap(), Instant::ORIGIN);
    for _ in 0..100 {
        let taken = budget.withdraw(now, FailureKind::Ambiguous).unwrap();
        assert!(budget.needs_success(taken));
        budget.on_success(taken);
    }
    assert_eq!(budget.balance(), 10.0);
    assert!(!budget.needs_success(Taken::NOTHING));
}

/// docs/research/stability.md: if failures are fast, a success may cause another request to fail.
#[test]
fn a_successful_retry_is_paid_for_where_load_may_cause_failures() {
    let budget = Policy::STANDARD.new_budget().unwrap();
    let mut signal = BreakerSignal {
        maybe_overload: true,
        ..BreakerSignal::default()
    };
    budget.on_signal(&signal);
    let taken = budget.withdraw(at(0), FailureKind::Ambiguous).unwrap();
    assert!(!budget.needs_success(taken));
    budget.on_success(taken);
    assert_eq!(budget.balance(), 9.0);
    signal.maybe_overload = false;
    budget.on_signal(&signal);
    budget.on_success(taken);
    assert_eq!(budget.balance(), 10.0);
}

/// docs/research/stability.md: the bound on retries that remains where no circuit breaker sees the outage.
#[test]
fn after_timeouts_retries_get_no_initial_tokens_and_a_thirtieth_of_requests() {
    let budget = Policy::STANDARD.new_budget().unwrap();
    budget.on_signal(&BreakerSignal {
        maybe_overload: true,
        ..BreakerSignal::default()
    });
    assert!(budget.withdraw(at(0), Charge::Timeout).is_none());
    let retries = |requests: u32| {
        let granted = (0..requests).map(|_| {
            budget.on_request();
            u32::from(budget.withdraw(at(0), Charge::Timeout).is_some())
        });
        granted.sum::<u32>()
    };
    // On top of the two tokens above the minimum.
    assert_eq!(retries(3000), 100);
    assert_eq!(retries(3000), 100);
}

#[test]
fn lost_attempts_cost_no_more_than_others() {
    let config = BudgetConfig {
        initial_tokens: 4.0,
        timeout_cost: Some(3.0),
        ..NO_REFILL
    };
    let (budget, now) = (Budget::new(&config).unwrap(), Instant::ORIGIN);
    assert!(budget.withdraw(now, Charge::Timeout).is_some());
    assert!(budget.withdraw(now, Charge::Timeout).is_none());
    budget.on_signal(&BreakerSignal {
        timeouts_are_loss: true,
        ..BreakerSignal::default()
    });
    assert!(budget.withdraw(now, Charge::Timeout).is_some());
}

#[test]
fn retries_are_free_while_the_breaker_is_down_but_not_after_timeouts() {
    let budget = Budget::new(&BudgetConfig {
        initial_tokens: 0.0,
        ..NO_REFILL
    })
    .unwrap();
    budget.on_signal(&BreakerSignal {
        retries_free: true,
        ..BreakerSignal::default()
    });
    assert!(budget.withdraw(Instant::ORIGIN, Charge::Ordinary).is_some());
    assert!(budget.withdraw(Instant::ORIGIN, Charge::Timeout).is_none());
}

/// A rejected retry would give up immediately, although it could wait for headroom.
#[test]
fn a_limited_breaker_rejects_no_retry_and_charges_timeouts_if_possible() {
    let config = BudgetConfig {
        initial_tokens: 4.0,
        timeout_cost: Some(3.0),
        ..NO_REFILL
    };
    let (budget, now) = (Budget::new(&config).unwrap(), Instant::ORIGIN);
    budget.on_signal(&BreakerSignal {
        retries_free: true,
        limited: true,
        ..BreakerSignal::default()
    });
    for balance in [1.0, 1.0, 1.0] {
        assert!(budget.withdraw(now, Charge::Timeout).is_some());
        assert!(budget.withdraw(now, Charge::Ordinary).is_some());
        assert_eq!(budget.balance(), balance);
    }
    // A process that cannot tell whether it is one of very many pays.
    budget.on_signal(&BreakerSignal {
        limited: true,
        ..BreakerSignal::default()
    });
    assert!(budget.withdraw(now, Charge::Timeout).is_none());
}

/// The balance has 128 bytes to itself; requests and retries read the next 64.
#[test]
fn a_budget_takes_256_bytes() {
    assert_eq!(size_of::<Budget>(), 256);
    assert!(core::mem::offset_of!(Budget, charge_failures) < 192);
}
