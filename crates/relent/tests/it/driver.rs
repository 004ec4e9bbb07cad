//! User-written loops around a driver.

use std::sync::Arc;
use std::time::Duration;

use relent::destination::Budget;
use relent::driver::{Decision, Driver};
use relent::policy::BudgetConfig;
use relent::{Backoff, Destination, Failure, Policy, StopReason, VirtualClock};

fn there() -> Arc<Destination> {
    let config = BudgetConfig {
        per_second: 0.0,
        ..BudgetConfig::DEFAULT
    };
    Arc::new(Destination::new(policy()).with_budget(Budget::new(&config).unwrap()))
}

fn policy() -> Arc<Policy> {
    let policy = Policy::builder(Backoff::None).deadline(Duration::from_secs(5));
    Arc::new(policy.build().unwrap())
}

#[test]
fn a_shared_driver_can_be_returned_and_refunds_its_retry_on_drop() {
    let there = there();
    let budget = there.budget().unwrap();
    let mut driver = Driver::shared(policy(), Some(there.clone()), VirtualClock::new()).start();
    let permit = driver.enter(None).permit().unwrap();
    driver.on_attempt(permit);
    let start = budget.balance();
    let granted = driver.on_failure(&Failure::ambiguous());
    assert!(matches!(granted, Decision::Retry { .. }));
    assert!(budget.balance() < start);
    drop(driver);
    assert_eq!(budget.balance(), start);
}

#[test]
fn an_abandoned_retry_is_refunded_and_a_stop_in_the_trace() {
    let (there, policy) = (there(), policy());
    let budget = there.budget().unwrap();
    let mut driver = Driver::builder(&policy, VirtualClock::new())
        .destination(&there)
        .traced()
        .start();
    let permit = driver.enter(None).permit().unwrap();
    driver.on_attempt(permit);
    let start = budget.balance();
    let failure = Failure::ambiguous();
    assert!(matches!(
        driver.on_failure(&failure),
        Decision::Retry { .. }
    ));
    let stop = driver.on_retry_abandoned(&failure, StopReason::NotReplayable);
    assert_eq!(budget.balance(), start);
    let trace = driver.summary(Some(stop)).trace.unwrap();
    assert_eq!(trace.entries().count(), 1);
    assert_eq!(
        trace.entries().next().unwrap().decision,
        Some(Decision::Stop(stop))
    );
}

#[test]
fn a_driver_returns_the_time_left_before_its_deadline() {
    let (policy, clock) = (policy(), VirtualClock::new());
    let mut driver = Driver::builder(&policy, clock.clone()).start();
    let permit = driver.enter(None).permit().unwrap();
    driver.on_attempt(permit);
    clock.advance(Duration::from_secs(2));
    assert_eq!(driver.remaining(), Some(Duration::from_secs(3)));
    let without = Policy::builder(Backoff::None).build().unwrap();
    assert_eq!(Driver::builder(&without, clock).start().remaining(), None);
}
