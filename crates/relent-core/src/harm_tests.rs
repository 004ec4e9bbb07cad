//! Where budget, gate and line could do harm together: what is lent, what is tried, what is taken for an answer.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

extern crate std;

use core::cell::RefCell;
use core::time::Duration;

use crate::backoff::Backoff;
use crate::budget::{Budget, BudgetConfig, Charge, Lesson};
use crate::decision::Decision;
use crate::destination::{Access, Destination};
use crate::failure::{Cause, Failure, Kind};
use crate::gate::{Caller, Ended, Gate, GateConfig};
use crate::hint::Hint;
use crate::outbound::{Answer, Asking, Outbound};
use crate::policy::Policy;
use crate::random::Draw;
use crate::session::Session;
use crate::time::Instant;

const SECOND: u64 = 1_000_000_000;

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

const LENDS: BudgetConfig = BudgetConfig {
    per_second: 0.0,
    reserve: 1.0,
    lend: true,
    ..BudgetConfig::DEFAULT
};

fn taught(config: BudgetConfig, requests: f64) -> Budget {
    let budget = Budget::new(&config).unwrap();
    budget.learn(&Lesson {
        requests,
        ..Lesson::default()
    });
    budget
}

/// What time has earned is lost above one capacity, though a debt has room for it.
#[test]
fn what_time_earns_pays_all_that_was_lent() {
    let config = BudgetConfig {
        per_second: 1.0,
        reserve: 0.0,
        capacity: 10.0,
        ..LENDS
    };
    let budget = taught(config, 100.0);
    assert!(budget.withdraw(at(0), Kind::Ambiguous).is_none());
    while budget
        .withdraw_within(at(0), Charge::Ordinary, 20 * SECOND, &mut Draw::at(0.5))
        .is_some()
    {}
    assert!(budget.balance() < -9.0);
    // An hour without traffic earns 3600.
    let later = at(3_600_000);
    budget.withdraw(later, Kind::Ambiguous);
    assert!(budget.balance() > 0.0, "{}", budget.balance());
}

/// What was lent while there was much traffic leaves no retry for very long when there is little.
#[test]
fn what_was_lent_in_a_busy_time_does_not_take_the_retries_of_a_quiet_one_for_hours() {
    let budget = taught(LENDS, 500.0);
    while budget
        .withdraw_within(at(0), Charge::Ordinary, 20 * SECOND, &mut Draw::at(0.5))
        .is_some()
    {}
    // Night: one request a second, for an hour.
    for _ in 0..3600 {
        budget.on_request();
    }
    assert!(budget.balance() >= 0.0, "{}", budget.balance());
}

/// Design rule 6: the last wait is cut so that the attempt has time to end.
#[test]
fn a_lent_token_is_not_for_an_attempt_that_has_no_time_left() {
    let policy = Policy::builder(Backoff::constant(Duration::from_secs(1)))
        .max_delay(Duration::from_secs(20))
        .deadline(Duration::from_secs(10))
        .cut_last_wait(true)
        .max_retries(5)
        .build()
        .unwrap();
    let budget = taught(
        BudgetConfig {
            reserve: 0.0,
            ..LENDS
        },
        // One token each 9.9 s.
        10.0 / 9.9,
    );
    let mut session = Session::new(at(0), true);
    session.on_attempt();
    let decision = session.on_failure(
        &policy,
        at(0),
        &Failure::ambiguous(),
        &mut Draw::at(0.5),
        Some(&budget),
    );
    if let Decision::Retry { after } = decision {
        // The last attempt gets a quarter of the time that was left.
        assert!(after <= Duration::from_millis(7500), "{after:?}");
    }
}

/// A token that is lent is not to be used before it is earned.
#[test]
fn nobody_hastens_to_a_token_that_is_not_earned_yet() {
    let policy = Policy::builder(Backoff::exponential(Duration::from_millis(10)))
        .max_delay(Duration::from_secs(20))
        .max_retries(9)
        .build()
        .unwrap();
    let budget = taught(
        BudgetConfig {
            reserve: 1.0,
            ..LENDS
        },
        1.0,
    );
    let mut session = Session::new(at(0), true);
    let fail = |session: &mut Session, now| {
        session.on_attempt();
        session.on_failure(
            &policy,
            now,
            &Failure::ambiguous(),
            &mut Draw::at(0.5),
            Some(&budget),
        )
    };
    fail(&mut session, at(0));
    let Decision::Retry { after } = fail(&mut session, at(100)) else {
        unreachable!()
    };
    assert_eq!(after, Duration::from_secs(10), "it is lent");
    let until = at(100).saturating_add(after);
    let hastened = session.hasten(&policy, at(200), until, &mut Draw::at(0.5));
    assert_eq!(hastened, until);
}

struct OneThread(RefCell<Outbound>);

impl Access for OneThread {
    type Random = Draw;
    type Waker = ();

    fn turn<T>(&self, change: impl FnOnce(&mut Outbound, &mut Draw) -> T) -> T {
        change(&mut self.0.borrow_mut(), &mut Draw::at(0.5))
    }
}

fn asking(id: u64, now: Instant) -> Asking {
    Asking {
        id,
        since: now,
        last_start: Instant::MAX,
        answer_by: Instant::MAX,
        longest: Duration::from_secs(300),
        spread: 1.0,
        fresh: true,
        stays: false,
        paced_only: false,
    }
}

/// Design rule 4. A quota is used up: everybody is told to come back in five minutes, and nobody is
/// answered any more.
#[test]
fn who_is_told_to_stay_away_for_five_minutes_does_not_go_on_for_five_minutes() {
    let policy = Policy::STANDARD;
    let outbound = Outbound::new(policy);
    let there = Destination::new(policy, outbound, |outbound| {
        OneThread(RefCell::new(outbound))
    });
    let refused = Failure::throttled().hint(Hint::after(Duration::from_secs(300)));
    let mut refusals = 0;
    // Ten a second for 20 s are answered, and no more after that.
    for id in 0..3000 {
        let now = at(id * 100);
        let mut asking = asking(0, now);
        let Some(Answer::Start(mut permit)) = there.enter(now, &mut asking, None) else {
            continue;
        };
        permit.begin();
        let ended = at(id * 100 + 20);
        if id < 200 {
            there.ended(ended, permit, Ended::Answered);
        } else {
            refusals += 1;
            there.failed(ended, now, Some(permit), &refused);
        }
    }
    assert!(refusals < 50, "{refusals} were sent");
}

fn caller(id: u64, since: Instant) -> Caller {
    Caller {
        until: Instant::MAX,
        since,
        id,
    }
}

fn one(gate: &mut Gate, now: u64, took: u64, ended: Ended) {
    gate.on_request(at(now));
    if let Some(pass) = gate.admit(at(now), caller(now, at(now)), true) {
        gate.on_end(at(now + took), pass, ended, &mut Draw::at(0.5));
    }
}

/// A step of the widening counts as tried although the budget was bound at that time: when the bound is
/// over, the ratio jumps to what was never made.
#[test]
fn what_is_not_made_while_the_budget_is_bound_is_not_taken_to_be_harmless() {
    let mut gate = Gate::new(&GateConfig::DEFAULT).unwrap();
    let mut now = 0;
    for _ in 0..800 {
        one(&mut gate, now, 50, Ended::Answered);
        now += 25;
    }
    // Overload for a moment: some are refused as too many, fewer than limit all.
    for id in 0..80 {
        match id % 16 {
            0 => one(&mut gate, now, 1, Ended::Overloaded),
            _ => one(&mut gate, now, 50, Ended::Answered),
        }
        now += 25;
    }
    assert!(gate.is_open());
    // Then two in five are refused at once.
    let (mut before, mut jumped) = (gate.ratio(at(now)), 0.0_f64);
    assert!(before == 0.0);
    for id in 0..4800 {
        match id % 5 {
            0 | 3 => one(&mut gate, now, 1, Ended::Failed),
            _ => one(&mut gate, now, 50, Ended::Answered),
        }
        now += 25;
        let ratio = gate.ratio(at(now)).max(0.1);
        if gate.is_open() {
            if (ratio - before).abs() > 0.05 {
                std::eprintln!("{} s: {before:.2} -> {ratio:.2}", now / 1000);
            }
            jumped = jumped.max(ratio - before.max(0.1));
            before = ratio;
        }
    }
    // A step is half as much again, from 0.2.
    assert!(jumped <= 0.31, "by {jumped} at once");
}

/// One lost attempt of ten seconds makes sixty refusals that come at once look as if they had been
/// worked on.
#[test]
fn one_failure_that_took_very_long_does_not_hide_that_the_others_come_at_once() {
    let mut gate = Gate::new(&GateConfig::DEFAULT).unwrap();
    let mut now = 0;
    for _ in 0..800 {
        one(&mut gate, now, 20, Ended::Answered);
        now += 25;
    }
    let refused = |gate: &mut Gate, now: &mut u64| {
        for id in 0..40 {
            let (took, ended) = match id % 2 {
                0 => (1, Ended::Failed),
                _ => (20, Ended::Answered),
            };
            one(gate, *now, took, ended);
            *now += 25;
        }
    };
    refused(&mut gate, &mut now);
    assert!(gate.lesson(at(now)).suspicious);
    // A connection is reset after ten seconds.
    let pass = gate.admit(at(now), caller(now, at(now)), true).unwrap();
    for _ in 0..400 {
        one(&mut gate, now, 20, Ended::Answered);
        now += 25;
    }
    gate.on_end(at(now), pass, Ended::Failed, &mut Draw::at(0.5));
    refused(&mut gate, &mut now);
    assert!(gate.lesson(at(now)).suspicious);
}

fn closed(policy: &Policy) -> (Outbound, crate::cooldown::Cooldown, Instant) {
    let (mut outbound, cooldown) = (Outbound::new(policy), crate::cooldown::Cooldown::new());
    let mut now = at(20_000);
    let mut id = 1 << 20;
    while !outbound.gate().unwrap().is_closed() {
        now = now.saturating_add(Duration::from_millis(50));
        id += 1;
        outbound.on_request_unthrottled(now);
        let asked = outbound.ask(now, &asking(id, now), &cooldown, &mut Draw::at(0.5));
        let Answer::Start(permit) = asked else {
            unreachable!()
        };
        outbound.ended(now, permit, Ended::Failed, &cooldown, &mut Draw::at(0.5));
    }
    (outbound, cooldown, now)
}

/// A budget that can never grant a retry is refused.
#[test]
fn a_budget_that_charges_failures_has_room_for_both_floors() {
    let config = BudgetConfig {
        charge_failures: true,
        overload_floor: 100.0,
        ..BudgetConfig::DEFAULT
    };
    assert!(Budget::new(&config).is_err());
}

/// F10: `lend` without any limit: a wait without end.
#[test]
fn what_is_lent_comes_in_a_time_that_somebody_has_set() {
    let policy = Policy::builder(Backoff::constant(Duration::from_secs(1)))
        .unlimited_delay()
        .max_retries(5)
        .build()
        .unwrap();
    let budget = taught(LENDS, 0.01);
    let mut longest = Duration::ZERO;
    for _ in 0..100 {
        let mut session = Session::new(at(0), true);
        session.on_attempt();
        let failure = Failure::ambiguous().cause(Cause::Error);
        let decision =
            session.on_failure(&policy, at(0), &failure, &mut Draw::at(0.5), Some(&budget));
        if let Decision::Retry { after } = decision {
            longest = longest.max(after);
        }
    }
    assert!(longest < Duration::from_secs(3600), "{longest:?}");
}

/// The same where it was held by a cooldown first, and comes to the gate when more than three quarters of its
/// time are over.
#[test]
fn who_comes_to_a_closed_gate_late_has_a_last_chance() {
    let policy = Policy::builder(Backoff::None)
        .gate(GateConfig::DEFAULT)
        .build()
        .unwrap();
    let (mut outbound, cooldown, now) = closed(&policy);
    let mut random = Draw::at(0.5);
    let asking = Asking {
        answer_by: now.saturating_add(Duration::from_millis(400)),
        last_start: now.saturating_add(Duration::from_millis(400)),
        ..asking(1, now)
    };
    let mut next = now.saturating_add(Duration::from_millis(310));
    let mut answer = outbound.ask(next, &asking, &cooldown, &mut random);
    loop {
        match answer {
            Answer::Start(_) => break,
            Answer::Wait(until, _) => next = until,
            other => unreachable!("no attempt was made: {other:?}"),
        }
        answer = outbound.ask_again(next, &asking, &cooldown, &mut random);
    }
}
