//! Reporting allocates nothing without a recorder. The only test of its process, since it counts
//! the allocations of the whole process.

use std::alloc::System;
use std::hint::black_box;
use std::time::Duration;

use relent::driver::Driver;
use relent::observe::Label;
use relent::{Backoff, Failure, Policy, VirtualClock};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// A failure with its kind and delay, then a give-up with its reason.
fn give_up(policy: &Policy, label: Option<&Label>, clock: &VirtualClock) {
    let mut driver = Driver::builder(policy, clock.clone());
    if let Some(label) = label {
        driver = driver.label(label.clone());
    }
    let mut driver = driver.start();
    for _ in 0..2 {
        if let Some(permit) = driver.enter(None).permit() {
            driver.on_attempt(permit);
            black_box(driver.on_failure(&Failure::ambiguous()));
        }
    }
}

#[test]
fn without_a_recorder_reporting_failures_allocates_nothing() {
    let policy = Policy::builder(Backoff::constant(Duration::from_millis(1)))
        .max_retries(1)
        .build_const();
    let (clock, payments) = (VirtualClock::new(), Label::new("payments"));
    for label in [None, Some(&payments)] {
        // One-time allocations for a label happen here.
        give_up(&policy, label, &clock);
        let region = Region::new(ALLOCATOR);
        for _ in 0..100 {
            give_up(&policy, label, &clock);
        }
        let change = region.change();
        assert_eq!(
            (change.allocations, change.reallocations),
            (0, 0),
            "{label:?}"
        );
    }
}
