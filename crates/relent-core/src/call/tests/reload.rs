//! A policy that is replaced at a destination while calls run, each by the policy that it began with.

use super::*;
use crate::gate::GateConfig;

fn still(reserve: f64) -> BudgetConfig {
    BudgetConfig {
        ratio: 0.0,
        per_second: 0.0,
        reserve,
        ..BudgetConfig::DEFAULT
    }
}

fn gated() -> PolicyBuilder {
    policy().max_retries(1000).gate(GateConfig::DEFAULT)
}

fn paced(limit: f64) -> RequestRateConfig {
    RequestRateConfig {
        burst: Some(1),
        ..RequestRateConfig::new(limit)
    }
}

fn reload(there: &There, clock: &Hand, policy: PolicyBuilder) {
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
fn close(policy: &Policy, there: &There, clock: &Hand) {
    clock.advance(100 * SECOND);
    let is_closed = || {
        there
            .access()
            .turn(|outbound, _| outbound.gate().unwrap().is_closed())
    };
    while !is_closed() {
        clock.advance(SECOND / 20);
        let mut at = at(policy, there, clock);
        let mut call = Call::new(CallOptions::new(), &at);
        start(&mut call, &mut at);
        call.failed(&mut at, &Failure::ambiguous());
        call.leave(&at);
    }
}

#[test]
fn a_budget_that_is_added_holds_its_own_reserve() {
    let plain = policy().build().unwrap();
    let (there, clock) = (there(&plain), Hand::default());
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
        .withdraw(at_second(0), crate::Kind::Ambiguous);
    reload(&there, &clock, policy());
    reload(&there, &clock, policy().budget(still(3.0)));
    assert_eq!(balance(&there), 2.0);
    there.budget().unwrap().refund(taken.unwrap());
    assert_eq!(balance(&there), 3.0);
}

#[test]
fn rule_12_what_was_taken_from_a_budget_goes_back_when_the_policy_has_none_any_more() {
    let began = policy().budget(still(5.0)).build().unwrap();
    let (there, clock) = (there(&began), Hand::default());
    let mut at = at(&began, &there, &clock);
    let waits = |at: &mut At<'_>| {
        let mut call = Call::new(CallOptions::new(), at);
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
fn rule_12_a_hedge_that_was_granted_goes_back_when_the_policy_has_no_budget_any_more() {
    let config = HedgeConfig::after(SECOND);
    let began = policy().hedge(config).budget(still(5.0)).build().unwrap();
    for ends in 0..4 {
        let (there, clock) = (there(&began), Hand::default());
        let hedge = Hedge::new(&config).unwrap();
        let mut at = at(&began, &there, &clock);
        let mut call = Call::new(CallOptions::new(), &at);
        let leave = call.next(&mut at, None).leave().unwrap();
        let racer = call.begin_race(&mut at, &hedge, leave);
        clock.advance(SECOND);
        assert!(call.grant_hedge(&mut at));
        assert_eq!(balance(&there), 4.0);
        reload(&there, &clock, policy());
        match ends {
            0 => call.put_off_hedge(&mut at),
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
fn retries_cost_again_when_the_gate_that_paced_them_is_taken_away() {
    let began = gated().budget(still(20.0)).build().unwrap();
    let (there, clock) = (there(&began), Hand::default());
    close(&began, &there, &clock);
    let cost = || {
        let now = Instant::from_nanos(clock.nanos.get());
        let before = balance(&there);
        there
            .budget()
            .unwrap()
            .withdraw(now, crate::Kind::Ambiguous);
        before - balance(&there)
    };
    assert_eq!(cost(), 0.0, "the gate paces them");
    reload(&there, &clock, policy().budget(still(20.0)));
    assert_eq!(cost(), 1.0);
    // With another breaker, which is normal.
    reload(&there, &clock, gated().budget(still(20.0)));
    assert_eq!(cost(), 1.0);
}

#[test]
fn a_gate_that_stays_has_its_say_about_the_new_budget() {
    let began = gated().build().unwrap();
    let (there, clock) = (there(&began), Hand::default());
    close(&began, &there, &clock);
    reload(&there, &clock, gated().budget(still(1.0)));
    let now = Instant::from_nanos(clock.nanos.get());
    for _ in 0..10 {
        let taken = there
            .budget()
            .unwrap()
            .withdraw(now, crate::Kind::Ambiguous);
        assert!(taken.is_some(), "the gate paces them");
    }
}

#[test]
fn who_waits_for_a_rate_that_is_taken_away_leaves_no_ghost() {
    let off = policy().build().unwrap().without_retries();
    let began = policy().request_rate(paced(1.0)).build().unwrap();
    let (there, clock) = (there(&began), Hand::default());
    let mut at = at(&off, &there, &clock);
    let mut first = Call::new(CallOptions::new(), &at);
    start(&mut first, &mut at);
    let mut second = Call::new(CallOptions::new(), &at);
    assert!(matches!(second.next(&mut at, None), Next::Wait { .. }));
    reload(&there, &clock, policy());
    // It takes its offer.
    start(&mut second, &mut at);
    assert_eq!((waiting(&there), second.holding()), (0, None));
    second.succeeded(&mut at);
    first.succeeded(&mut at);
}

#[test]
fn a_leave_that_was_given_under_one_policy_steps_back_under_another() {
    let off = policy().build().unwrap().without_retries();
    let began = policy().request_rate(paced(1.0)).build().unwrap();
    let (there, clock) = (there(&began), Hand::default());
    clock.advance(SECOND);
    let mut at = at(&off, &there, &clock);
    let mut call = Call::new(CallOptions::new(), &at);
    let leave = call.next(&mut at, None).leave().unwrap();
    reload(&there, &clock, policy().request_rate(paced(0.5)));
    call.step_back(&mut at, leave);
    // Its slot is free again.
    let mut other = Call::new(CallOptions::new(), &at);
    start(&mut other, &mut at);
    let mut third = Call::new(CallOptions::new(), &at);
    assert!(matches!(third.next(&mut at, None), Next::Wait { .. }));
    third.leave(&at);
}

#[test]
fn a_call_whose_first_attempt_asked_nobody_asks_the_gate_that_came_since() {
    let began = policy().max_retries(10).build().unwrap();
    let (there, clock) = (there(&began), Hand::default());
    let mut at = at(&began, &there, &clock);
    let mut call = Call::new(CallOptions::new(), &at);
    start(&mut call, &mut at);
    reload(&there, &clock, gated());
    close(&gated().build().unwrap(), &there, &clock);
    call.failed(&mut at, &Failure::ambiguous());
    assert!(matches!(
        call.next(&mut at, None),
        Next::Wait {
            by: Holding::Gate,
            ..
        }
    ));
    reload(&there, &clock, policy());
    start(&mut call, &mut at);
    call.succeeded(&mut at);
    assert_eq!(waiting(&there), 0);
}
