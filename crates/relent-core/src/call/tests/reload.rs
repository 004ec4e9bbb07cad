//! A policy that is replaced at a destination while calls run, each by the policy that it began with.

use super::*;
use crate::destination::circuit_breaker::CircuitBreakerConfig;

fn still(reserve: f64) -> BudgetConfig {
    BudgetConfig {
        ratio: 0.0,
        per_second: 0.0,
        initial_tokens: reserve,
        ..BudgetConfig::DEFAULT
    }
}

fn gated() -> PolicyBuilder {
    policy()
        .max_retries(1000)
        .circuit_breaker(CircuitBreakerConfig::DEFAULT)
}

fn paced(limit: f64) -> RateLimitConfig {
    RateLimitConfig {
        burst: Some(1),
        ..RateLimitConfig::new(limit)
    }
}

fn reload(there: &There, clock: &ManualClock, policy: PolicyBuilder) {
    let now = Instant::from_nanos(clock.nanos.get());
    there.set_policy(now, &policy.build().unwrap(), || ());
}

fn balance(there: &There) -> f64 {
    there.budget().unwrap().balance()
}

fn waiting(there: &There) -> usize {
    there.access().turn(|outbound, _| outbound.waiting())
}

/// Fails until the breaker is down.
fn close(policy: &Policy, there: &There, clock: &ManualClock) {
    clock.advance(100 * SECOND);
    let is_closed = || {
        there
            .access()
            .turn(|outbound, _| outbound.circuit_breaker().unwrap().is_down())
    };
    while !is_closed() {
        clock.advance(SECOND / 20);
        let mut at = at(policy, there, clock);
        let mut call = Call::new(&at);
        start(&mut call, &mut at);
        call.failed(&mut at, &Failure::ambiguous());
        call.leave(&at);
    }
}

#[test]
fn a_budget_added_by_a_reload_has_its_initial_tokens() {
    let plain = policy().build().unwrap();
    let (there, clock) = (there(&plain), ManualClock::default());
    assert!(there.budget().is_none());
    for _ in 0..100 {
        there.count_request();
    }
    reload(&there, &clock, policy().budget(still(3.0)));
    assert_eq!(balance(&there), 3.0);
    // It is the same one when it comes back.
    let taken = there
        .budget()
        .unwrap()
        .withdraw(at_second(0), crate::FailureKind::Ambiguous);
    reload(&there, &clock, policy());
    reload(&there, &clock, policy().budget(still(3.0)));
    assert_eq!(balance(&there), 2.0);
    there.budget().unwrap().refund(taken.unwrap());
    assert_eq!(balance(&there), 3.0);
}

#[test]
fn tokens_are_refunded_after_a_reload_removed_the_budget() {
    let began = policy().budget(still(5.0)).build().unwrap();
    let (there, clock) = (there(&began), ManualClock::default());
    let mut at = at(&began, &there, &clock);
    let waits = |at: &mut TestEnvironment<'_>| {
        let mut call = Call::new(at);
        start(&mut call, at);
        assert!(call.failed(at, &Failure::ambiguous()).stop().is_none());
        call
    };
    let (mut left, mut cancelled, mut advanced) = (waits(&mut at), waits(&mut at), waits(&mut at));
    assert_eq!(balance(&there), 2.0);
    reload(&there, &clock, policy());
    left.leave(&at);
    cancelled.cancel(&mut at);
    start(&mut advanced, &mut at);
    advanced.progressed(&mut at);
    // Retries granted meanwhile are free, and there is nothing to refund.
    let mut free = waits(&mut at);
    reload(&there, &clock, policy().budget(still(5.0)));
    free.leave(&at);
    assert_eq!(balance(&there), 5.0);
}

#[test]
fn a_granted_hedge_is_refunded_after_a_reload_removed_the_budget() {
    let config = HedgeConfig::after(SECOND);
    let began = policy().hedge(config).budget(still(5.0)).build().unwrap();
    for ends in 0..4 {
        let (there, clock) = (there(&began), ManualClock::default());
        let hedge = Hedge::new(&config).unwrap();
        let mut at = at(&began, &there, &clock);
        let mut call = Call::new(&at);
        let permit = call.next(&mut at, None).permit().unwrap();
        let racer = call.begin_race(&mut at, &hedge, permit);
        clock.advance(SECOND);
        assert!(call.grant_hedge(&mut at));
        assert_eq!(balance(&there), 4.0);
        reload(&there, &clock, policy());
        match ends {
            0 => call.defer_hedge(&mut at),
            1 => call.race_won(&mut at, &hedge, &racer, None),
            2 => {
                let failure = Failure::throttled();
                call.race_failed(&mut at, &hedge, &racer, &failure);
            }
            _ => call.leave(&at),
        }
        reload(&there, &clock, policy().budget(still(5.0)));
        assert_eq!(balance(&there), 5.0, "{ends}");
    }
}

#[test]
fn retries_cost_tokens_again_after_the_breaker_is_removed() {
    let began = gated().budget(still(20.0)).build().unwrap();
    let (there, clock) = (there(&began), ManualClock::default());
    close(&began, &there, &clock);
    let cost = || {
        let now = Instant::from_nanos(clock.nanos.get());
        let before = balance(&there);
        there
            .budget()
            .unwrap()
            .withdraw(now, crate::FailureKind::Ambiguous);
        before - balance(&there)
    };
    assert_eq!(cost(), 0.0, "the circuit breaker paces them");
    reload(&there, &clock, policy().budget(still(20.0)));
    assert_eq!(cost(), 1.0);
    // With another breaker, which is normal.
    reload(&there, &clock, gated().budget(still(20.0)));
    assert_eq!(cost(), 1.0);
}

#[test]
fn a_kept_breaker_controls_a_new_budget() {
    let began = gated().build().unwrap();
    let (there, clock) = (there(&began), ManualClock::default());
    close(&began, &there, &clock);
    reload(&there, &clock, gated().budget(still(1.0)));
    let now = Instant::from_nanos(clock.nanos.get());
    for _ in 0..10 {
        let taken = there
            .budget()
            .unwrap()
            .withdraw(now, crate::FailureKind::Ambiguous);
        assert!(taken.is_some(), "the circuit breaker paces them");
    }
}

#[test]
fn a_caller_queued_for_a_removed_rate_limit_leaves_no_stale_entry() {
    let off = policy().build().unwrap().without_retries();
    let began = policy().rate_limit(paced(1.0)).build().unwrap();
    let (there, clock) = (there(&began), ManualClock::default());
    let mut at = at(&off, &there, &clock);
    let mut first = Call::new(&at);
    start(&mut first, &mut at);
    let mut second = Call::new(&at);
    assert!(matches!(second.next(&mut at, None), NextStep::Wait { .. }));
    reload(&there, &clock, policy());
    // It takes its offer.
    start(&mut second, &mut at);
    assert_eq!((waiting(&there), second.blocked_by()), (0, None));
    second.succeeded(&mut at);
    first.succeeded(&mut at);
}

#[test]
fn a_permit_can_be_released_under_another_policy() {
    let off = policy().build().unwrap().without_retries();
    let began = policy().rate_limit(paced(1.0)).build().unwrap();
    let (there, clock) = (there(&began), ManualClock::default());
    clock.advance(SECOND);
    let mut at = at(&off, &there, &clock);
    let mut call = Call::new(&at);
    let permit = call.next(&mut at, None).permit().unwrap();
    reload(&there, &clock, policy().rate_limit(paced(0.5)));
    call.release_permit(&mut at, permit);
    // Its slot is free again.
    let mut other = Call::new(&at);
    start(&mut other, &mut at);
    let mut third = Call::new(&at);
    assert!(matches!(third.next(&mut at, None), NextStep::Wait { .. }));
    third.leave(&at);
}

#[test]
fn a_retry_requests_admission_at_a_breaker_added_since() {
    let began = policy().max_retries(10).build().unwrap();
    let (there, clock) = (there(&began), ManualClock::default());
    let mut at = at(&began, &there, &clock);
    let mut call = Call::new(&at);
    start(&mut call, &mut at);
    reload(&there, &clock, gated());
    close(&gated().build().unwrap(), &there, &clock);
    call.failed(&mut at, &Failure::ambiguous());
    assert!(matches!(
        call.next(&mut at, None),
        NextStep::Wait {
            by: BlockedBy::CircuitBreaker,
            ..
        }
    ));
    reload(&there, &clock, policy());
    start(&mut call, &mut at);
    call.succeeded(&mut at);
    assert_eq!(waiting(&there), 0);
}
