use super::*;
use crate::policy::Policy;
use crate::random::Draw;
use core::time::Duration;
use proptest::prelude::*;

const STILL: BudgetConfig = BudgetConfig {
    per_second: 0.0,
    ..BudgetConfig::DEFAULT
};

fn at(seconds: u64) -> Instant {
    Instant::ORIGIN.saturating_add(Duration::from_secs(seconds))
}

fn drain(budget: &Budget, now: Instant) -> u32 {
    let mut granted = 0;
    while budget.withdraw(now, Kind::Ambiguous).is_some() {
        granted += 1;
    }
    granted
}

#[test]
fn ten_per_cent_of_requests_and_a_reserve_of_ten() {
    let budget = Budget::new(&STILL).unwrap();
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
        reserve: 0.0,
        capacity: 1000.0,
        ..STILL
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
        reserve: 0.0,
        ..BudgetConfig::DEFAULT
    })
    .unwrap();
    assert_eq!(drain(&budget, at(1_700_000_000)), 0);
}

/// Time that runs backwards (a clock with another origin) neither refills nor panics.
#[test]
fn a_clock_that_steps_back_is_harmless() {
    let budget = Budget::new(&BudgetConfig::DEFAULT).unwrap();
    assert_eq!(drain(&budget, at(100)), 10);
    assert_eq!(drain(&budget, at(50)), 0);
    assert_eq!(drain(&budget, Instant::MAX), 100);
}

#[test]
fn a_retry_that_is_called_off_gives_its_tokens_back() {
    let budget = Budget::new(&STILL).unwrap();
    let before = budget.balance();
    let taken = budget.withdraw(at(0), Kind::Ambiguous).unwrap();
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
        reserve: 500.0,
        capacity: 500.0,
        cost: 14.0,
        throttled_cost: 5.0,
        refund_on_success: true,
        ..STILL
    };
    let budget = Budget::new(&config).unwrap();
    let first = budget.withdraw(at(0), Kind::Ambiguous).unwrap();
    assert_eq!(budget.balance(), 486.0);
    let second = budget.withdraw(at(0), Kind::Throttled).unwrap();
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
        reserve: 10.0,
        capacity: 10.0,
        floor: 5.0,
        charge_failures: true,
        ..STILL
    };
    let budget = Budget::new(&config).unwrap();
    let mut granted = 0;
    for _ in 0..10 {
        budget.on_failure(Kind::Ambiguous);
        granted += u32::from(budget.withdraw(at(0), Kind::Ambiguous).is_some());
    }
    assert_eq!((granted, budget.balance()), (4, 0.0));
    for _ in 0..51 {
        budget.on_success(Taken::default());
    }
    assert!(budget.withdraw(at(0), Kind::Ambiguous).is_some());
}

#[test]
fn a_retry_after_a_timeout_may_have_a_cost_of_its_own() {
    for (timeout_cost, left) in [(Some(10.0), 490.0), (None, 495.0)] {
        let budget = Budget::new(&BudgetConfig {
            reserve: 500.0,
            capacity: 500.0,
            cost: 5.0,
            throttled_cost: 2.0,
            timeout_cost,
            ..STILL
        })
        .unwrap();
        let charge = |kind, cause| {
            let taken = budget.withdraw(at(0), Charge::of(kind, cause)).unwrap();
            let balance = budget.balance();
            budget.refund(taken);
            balance
        };
        assert_eq!(charge(Kind::Ambiguous, Cause::Timeout), left);
        assert_eq!(charge(Kind::NotProcessed, Cause::Timeout), left);
        assert_eq!(charge(Kind::Ambiguous, Cause::Status(408)), 495.0);
        assert_eq!(charge(Kind::Throttled, Cause::Status(429)), 498.0);
    }
    let wrong = BudgetConfig {
        timeout_cost: Some(-1.0),
        ..STILL
    };
    assert_eq!(Budget::new(&wrong).unwrap_err().key(), "timeout_cost");
}

#[test]
fn contradictions_do_not_build() {
    for (config, key) in [
        (
            BudgetConfig {
                ratio: -0.1,
                ..STILL
            },
            "ratio",
        ),
        (
            BudgetConfig {
                ratio: f64::NAN,
                ..STILL
            },
            "ratio",
        ),
        (
            BudgetConfig {
                reserve: 200.0,
                ..STILL
            },
            "reserve",
        ),
        (
            BudgetConfig {
                capacity: 0.5,
                reserve: 0.0,
                ..STILL
            },
            "cost",
        ),
        (
            BudgetConfig {
                capacity: 10.0,
                floor: 9.5,
                ..STILL
            },
            "capacity",
        ),
        (
            BudgetConfig {
                capacity: 10.0,
                floor: 10.0,
                charge_failures: true,
                ..STILL
            },
            "capacity",
        ),
    ] {
        assert_eq!(Budget::new(&config).unwrap_err().key(), key);
    }
}

#[test]
fn a_small_amount_is_counted_or_refused() {
    // One token in 10,000 seconds, which rounding does not lose.
    let slow = BudgetConfig {
        reserve: 0.0,
        per_second: 0.0001,
        ..STILL
    };
    let budget = Budget::new(&slow).unwrap();
    assert_eq!(drain(&budget, at(0)), 0);
    assert_eq!(drain(&budget, at(9_000)), 0);
    assert_eq!(drain(&budget, at(10_000)), 1);
    assert_eq!(drain(&budget, at(60_000)), 5);
    let counted = BudgetConfig {
        ratio: 0.001,
        reserve: 0.0,
        ..STILL
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
                ..STILL
            },
            "ratio",
        ),
        (
            BudgetConfig {
                cost: 0.000_4,
                ..STILL
            },
            "cost",
        ),
        (
            BudgetConfig {
                per_second: 1e-10,
                ..STILL
            },
            "per_second",
        ),
    ] {
        assert_eq!(Budget::new(&config).unwrap_err().key(), key);
    }
}

#[test]
fn a_ratio_without_bound_fills_the_budget_and_no_more() {
    for ratio in [f64::INFINITY, f64::MAX, 1e19] {
        let budget = Budget::new(&STILL).unwrap();
        budget.learn(&Lesson {
            ratio,
            ..Lesson::default()
        });
        for _ in 0..3 {
            budget.on_request();
        }
        assert_eq!(budget.balance(), 100.0, "{ratio}");
    }
    let budget = Budget::new(&STILL).unwrap();
    budget.learn(&Lesson {
        ratio: f64::NAN,
        ..Lesson::default()
    });
    budget.on_request();
    assert_eq!(budget.balance(), 10.1);
}

/// Tower's sum-then-add let four threads overdraw by one now and then.
#[test]
fn tower_overdraw_race() {
    extern crate std;
    let config = BudgetConfig {
        reserve: 1000.0,
        capacity: 1000.0,
        ..STILL
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
fn what_time_has_earned_before_a_reload_counts_at_the_old_rate() {
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
    fn time_deposits_exactly_its_rate(
        per_second in 0.001..100_000.0f64,
        looks in proptest::collection::vec(0..1_000_000_000u64, 1..50),
    ) {
        let config = BudgetConfig { reserve: 0.0, capacity: 1e6, cost: 1e6, per_second, ..STILL };
        let budget = Budget::new(&config).unwrap();
        let mut now = 0;
        prop_assert!(budget.withdraw(Instant::ORIGIN, Kind::Ambiguous).is_none());
        for look in looks {
            now += look;
            let _ = budget.withdraw(Instant::from_nanos(now), Kind::Ambiguous);
        }
        let expected = now as f64 * per_second / 1e9;
        prop_assume!(expected < 1e6);
        // Never early, and late by at most a refill that is not due yet.
        prop_assert!(budget.balance() <= expected * 1.000_001);
        prop_assert!(budget.balance() >= expected * 0.999_999 - 0.102);
    }

    /// Compared with a plain sum: no order of calls makes or loses a token.
    #[test]
    fn no_order_of_calls_makes_tokens(calls in proptest::collection::vec(0..4u8, 0..200)) {
        let budget = Budget::new(&STILL).unwrap();
        let mut model = 10_000_i64;
        let mut held = alloc::vec::Vec::new();
        for call in calls {
            match call {
                0 => { budget.on_request(); model = (model + 100).min(100_000); }
                1 | 2 => match budget.withdraw(at(0), Kind::Ambiguous) {
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
fn a_retry_that_an_empty_budget_cannot_pay_for_waits_at_the_gate() {
    let config = BudgetConfig {
        reserve: 1.0,
        wait_when_empty: true,
        ..STILL
    };
    let gated = Lesson {
        gated: true,
        ..Lesson::default()
    };
    let ask = |config: &BudgetConfig, lesson: &Lesson, charge| {
        let (budget, now) = (Budget::new(config).unwrap(), Instant::ORIGIN);
        budget.learn(lesson);
        let ask = || budget.withdraw_within(now, charge, 5_000_000_000, &mut Draw::at(0.5));
        assert!(matches!(ask(), Payment::Paid(_)), "there is one");
        let second = ask();
        assert_eq!(budget.balance(), 0.0);
        second
    };
    let (ordinary, throttled, timeout) = (Charge::Ordinary, Charge::Throttled, Charge::Timeout);
    assert_eq!(ask(&config, &gated, ordinary), Payment::AtGate);
    assert_eq!(ask(&config, &gated, throttled), Payment::AtGate);
    assert_eq!(ask(&config, &gated, timeout), Payment::Refused);
    // Without a circuit breaker nothing measures headroom.
    let none = Lesson::default();
    assert_eq!(ask(&config, &none, ordinary), Payment::Refused);
    let ends = BudgetConfig {
        wait_when_empty: false,
        ..config
    };
    assert_eq!(ask(&ends, &gated, ordinary), Payment::Refused);
}

#[test]
fn after_what_may_be_a_sign_of_overload_a_retry_leaves_more() {
    let config = BudgetConfig {
        reserve: 10.0,
        overload_floor: 8.0,
        ..STILL
    };
    let (budget, now) = (Budget::new(&config).unwrap(), Instant::ORIGIN);
    let suspicious = Lesson {
        suspicious: true,
        ..Lesson::default()
    };
    budget.learn(&suspicious);
    assert!(budget.withdraw(now, Kind::Ambiguous).is_some());
    assert!(budget.withdraw(now, Kind::Ambiguous).is_some());
    assert!(budget.withdraw(now, Kind::Ambiguous).is_none());
    budget.learn(&Lesson::default());
    assert!(budget.withdraw(now, Kind::Ambiguous).is_some());
}

/// docs/research/stability.md: the second of two retries of a newly started process.
#[test]
fn who_lives_off_the_reserve_pauses_after_two_failures_in_a_row() {
    let (budget, now) = (Policy::STANDARD.new_budget().unwrap(), Instant::ORIGIN);
    let again = Lesson {
        suspicious: true,
        repeated: true,
        ..Lesson::default()
    };
    let take = |longest| match budget.withdraw_within(
        now,
        Charge::Ordinary,
        longest,
        &mut Draw::at(0.5),
    ) {
        Payment::Paid(_) => Some(0),
        Payment::PaidAfter(_, wait) => Some(wait),
        Payment::AtGate | Payment::Refused => None,
    };
    budget.learn(&Lesson {
        repeated: false,
        ..again
    });
    assert_eq!(take(20_000_000_000), Some(0), "one failure");
    budget.learn(&again);
    assert!(budget.withdraw_at_once(now, Charge::Ordinary).is_none());
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
fn a_retry_that_succeeds_costs_nothing() {
    let (budget, now) = (Policy::STANDARD.new_budget().unwrap(), Instant::ORIGIN);
    for _ in 0..100 {
        let taken = budget.withdraw(now, Kind::Ambiguous).unwrap();
        assert!(budget.hears_of_success(taken));
        budget.on_success(taken);
    }
    assert_eq!(budget.balance(), 10.0);
    assert!(!budget.hears_of_success(Taken::NOTHING));
}

/// docs/research/stability.md: if failures are fast, a success may cause another request to fail.
#[test]
fn a_retry_is_paid_for_where_failures_may_come_of_load() {
    let budget = Policy::STANDARD.new_budget().unwrap();
    let mut lesson = Lesson {
        suspicious: true,
        ..Lesson::default()
    };
    budget.learn(&lesson);
    let taken = budget.withdraw(at(0), Kind::Ambiguous).unwrap();
    assert!(!budget.hears_of_success(taken));
    budget.on_success(taken);
    assert_eq!(budget.balance(), 9.0);
    lesson.suspicious = false;
    budget.learn(&lesson);
    budget.on_success(taken);
    assert_eq!(budget.balance(), 10.0);
}

/// docs/research/stability.md: the bound on retries that remains where no circuit breaker sees the outage.
#[test]
fn after_timeouts_a_crowd_has_no_reserve_and_a_thirtieth_of_its_requests() {
    let budget = Policy::STANDARD.new_budget().unwrap();
    budget.learn(&Lesson {
        suspicious: true,
        ..Lesson::default()
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
fn attempts_that_are_lost_on_the_way_cost_no_more_than_others() {
    let config = BudgetConfig {
        reserve: 4.0,
        timeout_cost: Some(3.0),
        ..STILL
    };
    let (budget, now) = (Budget::new(&config).unwrap(), Instant::ORIGIN);
    assert!(budget.withdraw(now, Charge::Timeout).is_some());
    assert!(budget.withdraw(now, Charge::Timeout).is_none());
    budget.learn(&Lesson {
        lossy: true,
        ..Lesson::default()
    });
    assert!(budget.withdraw(now, Charge::Timeout).is_some());
}

#[test]
fn a_closed_gate_pays_for_retries_but_not_after_timeouts() {
    let budget = Budget::new(&BudgetConfig {
        reserve: 0.0,
        ..STILL
    })
    .unwrap();
    budget.learn(&Lesson {
        waived: true,
        ..Lesson::default()
    });
    assert!(budget.withdraw(Instant::ORIGIN, Charge::Ordinary).is_some());
    assert!(budget.withdraw(Instant::ORIGIN, Charge::Timeout).is_none());
}

/// A rejected retry would give up immediately, although it could wait for headroom.
#[test]
fn no_retry_is_turned_away_that_waits_at_a_limited_gate_and_after_a_timeout_it_takes_its_cost_if_it_is_there()
 {
    let config = BudgetConfig {
        reserve: 4.0,
        timeout_cost: Some(3.0),
        ..STILL
    };
    let (budget, now) = (Budget::new(&config).unwrap(), Instant::ORIGIN);
    budget.learn(&Lesson {
        waived: true,
        limited: true,
        ..Lesson::default()
    });
    for balance in [1.0, 1.0, 1.0] {
        assert!(budget.withdraw(now, Charge::Timeout).is_some());
        assert!(budget.withdraw(now, Charge::Ordinary).is_some());
        assert_eq!(budget.balance(), balance);
    }
    // A process that cannot tell whether it is one of very many pays.
    budget.learn(&Lesson {
        limited: true,
        ..Lesson::default()
    });
    assert!(budget.withdraw(now, Charge::Timeout).is_none());
}

/// The balance has 128 bytes to itself; requests and retries read the next 64.
#[test]
fn a_budget_takes_256_bytes() {
    assert_eq!(size_of::<Budget>(), 256);
    assert!(core::mem::offset_of!(Budget, charge_failures) < 192);
}
