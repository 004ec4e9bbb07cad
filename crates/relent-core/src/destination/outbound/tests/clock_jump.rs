//! The clock jumps by hours, as after a suspend that paused it.

use super::*;
use crate::destination::budget::{Budget, BudgetConfig, Charge};

const HOURS: u64 = 10 * 3600 * 1000;

impl TestDestination {
    /// All callers request admission at this time, as by timers that fire together. Returns the ids
    /// that start, and the reasons of those that give up.
    fn look(&mut self, now: Instant, callers: &[AdmissionRequest]) -> (Vec<u64>, Vec<StopReason>) {
        let (mut started, mut stopped) = (Vec::new(), Vec::new());
        for caller in callers {
            match self.again(now, caller) {
                Admission::Start(_permit) => started.push(caller.id),
                Admission::Stop(stop) => stopped.push(stop.reason),
                Admission::Wait(until, _) => assert!(until < now.plus_nanos(700_000 * MILLI)),
                Admission::TooLate => {}
            }
        }
        (started, stopped)
    }
}

#[test]
fn callers_held_by_a_cooldown_keep_their_jitter_after_a_clock_jump() {
    let mut there = TestDestination::new(true, None);
    there.cool(at(1000), 60_000);
    let mut held: Vec<_> = (0..100)
        .map(|part| {
            there.random = FixedRandom::at(f64::from(part) / 100.0);
            there.waits(at(1000))
        })
        .collect();
    held.sort_by_key(|(_, until)| *until);
    let now = at(1000 + HOURS);
    let callers: Vec<_> = held.iter().map(|(caller, _)| *caller).collect();
    let (started, _) = there.look(now, &callers);
    assert_eq!(
        started,
        [held[0].0.id],
        "they were to go one after the other"
    );
    // Each goes as long after the first as it was to.
    let first = held[0].1;
    for (caller, until) in &held[1..] {
        let again = now.plus_nanos(until.nanos_since(first));
        let early = Instant::from_nanos(again.as_nanos() - 1);
        assert!(matches!(there.again(early, caller), Admission::Wait(..)));
        let _permit = starts(there.again(again, caller));
    }
}

/// A driver that runs every two seconds is always late, and no caller starves because of that.
#[test]
fn no_caller_held_by_a_cooldown_is_delayed_twice() {
    let mut there = TestDestination::new(true, None);
    there.cool(at(1000), 10_000);
    let held: Vec<_> = (0..100)
        .map(|part| {
            there.random = FixedRandom::at(f64::from(part) / 100.0);
            there.waits(at(1000))
        })
        .collect();
    let mut waiting: Vec<_> = held.iter().map(|(caller, _)| *caller).collect();
    let last = held.iter().map(|(_, until)| *until).max().unwrap();
    let mut now = at(1000);
    while !waiting.is_empty() {
        now = now.plus_nanos(2000 * MILLI);
        let (started, _) = there.look(now, &waiting);
        waiting.retain(|caller| !started.contains(&caller.id));
        assert!(
            now < last.plus_nanos(5000 * MILLI),
            "{} left",
            waiting.len()
        );
    }
}

#[test]
fn after_a_clock_jump_queued_requests_give_up_and_one_probe_goes() {
    let (mut there, closed) = TestDestination::closed();
    let queued: Vec<_> = (0..1000).map(|_| there.waits(closed).0).collect();
    let (started, stopped) = there.look(closed.plus_nanos(HOURS * MILLI), &queued);
    assert!(started.len() <= 1, "{} go", started.len());
    assert_eq!(started.len() + stopped.len(), queued.len());
    assert!(
        stopped
            .iter()
            .all(|reason| *reason == StopReason::CircuitBreaker)
    );
}

#[test]
fn after_a_clock_jump_a_rate_limit_admits_only_its_burst() {
    let mut there = TestDestination::paced(10.0, 5);
    for _ in 0..5 {
        let caller = there.caller(at(0));
        let _permit = starts(there.ask(at(0), &caller));
    }
    let queued: Vec<_> = (0..1000).map(|_| there.waits(at(0)).0).collect();
    let now = at(HOURS);
    assert_eq!(there.look(now, &queued).0.len(), 5);
    let rest = there.outbound.held_by_rate_limit();
    assert_eq!(rest, 995, "the others wait for their slots");
}

#[test]
fn after_a_clock_jump_a_budget_stays_within_its_capacity() {
    let config = BudgetConfig {
        per_second: 10.0,
        ..BudgetConfig::DEFAULT
    };
    let budget = Budget::new(&config).unwrap();
    while budget.withdraw(at(1000), Charge::Ordinary).is_some() {}
    assert!(
        budget
            .withdraw(at(1000 + HOURS), Charge::Ordinary)
            .is_some()
    );
    assert!(budget.balance() < config.capacity, "{}", budget.balance());
}
