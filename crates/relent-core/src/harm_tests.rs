//! Interactions of budget, circuit breaker and queue that could make retries worse than none.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

extern crate std;

use core::cell::RefCell;
use core::time::Duration;

use crate::backoff::Backoff;
use crate::budget::{Budget, BudgetConfig, Lesson};
use crate::decision::Decision;
use crate::destination::{Access, Destination};
use crate::failure::{Failure, Kind};
use crate::gate::{Caller, Claim, Ended, Gate, GateConfig};
use crate::hint::Hint;
use crate::outbound::{Answer, Asking, Outbound};
use crate::policy::Policy;
use crate::random::Draw;
use crate::session::Session;
use crate::time::Instant;

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

/// After two failures in a row a retry is delayed for that long, however active the user is.
#[test]
fn nobody_hastens_a_retry_that_the_budget_holds_back() {
    let policy = Policy::builder(Backoff::exponential(Duration::from_millis(10)))
        .max_delay(Duration::from_secs(20))
        .max_retries(9)
        .build()
        .unwrap();
    let budget = Budget::new(&BudgetConfig {
        overload_floor: 8.0,
        ..BudgetConfig::DEFAULT
    })
    .unwrap();
    budget.learn(&Lesson {
        suspicious: true,
        repeated: true,
        ..Lesson::default()
    });
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
    assert_eq!(after, Duration::from_secs(6), "it pauses");
    let until = at(100).saturating_add(after);
    let hastened = session.hasten(&policy, at(200), until, &mut Draw::at(0.5));
    assert_eq!(hastened, until);
}

/// A free retry is not unpaid: it is delayed like others, and does not limit the breaker.
#[test]
fn a_free_retry_that_pauses_is_no_retry_that_could_not_be_paid_for() {
    let policy = Policy::builder(Backoff::None)
        .max_retries(9)
        .build()
        .unwrap();
    let budget = Budget::new(&BudgetConfig {
        cost: 0.0,
        overload_floor: 8.0,
        ..BudgetConfig::DEFAULT
    })
    .unwrap();
    assert!(budget.withdraw(at(0), Kind::Throttled).is_some());
    budget.learn(&Lesson {
        suspicious: true,
        repeated: true,
        ..Lesson::default()
    });
    let mut session = Session::new(at(0), true);
    session.on_attempt();
    let mut middle = Draw::at(0.5);
    let decision = session.on_failure(
        &policy,
        at(0),
        &Failure::ambiguous(),
        &mut middle,
        Some(&budget),
    );
    let after = Duration::from_secs(6);
    assert_eq!(decision, Decision::Retry { after });
    assert!(!session.is_unpaid());
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
        claim: Claim::First,
        stays: false,
        paced_only: false,
    }
}

/// A quota is exhausted: every response says to come back in five minutes, and no attempt succeeds any
/// more.
#[test]
fn who_is_told_to_stay_away_for_five_minutes_does_not_go_on_for_five_minutes() {
    let policy = Policy::STANDARD;
    let outbound = Outbound::new(policy);
    let there = Destination::new(policy, outbound, |outbound| {
        OneThread(RefCell::new(outbound))
    });
    let refused = Failure::throttled().hint(Hint::after(Duration::from_secs(300)));
    let mut refusals = 0;
    // Ten per second succeed for 20 s, and none after that.
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
    if let Some(pass) = gate.admit(at(now), caller(now, at(now)), Claim::First) {
        gate.on_end(at(now + took), pass, ended, &mut Draw::at(0.5));
    }
}

/// One lost attempt of ten seconds must not make sixty fast rejections look like slow failures.
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
    let pass = gate
        .admit(at(now), caller(now, at(now)), Claim::First)
        .unwrap();
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

/// A budget that can never grant a retry is rejected.
#[test]
fn a_budget_that_charges_failures_has_room_for_both_floors() {
    let config = BudgetConfig {
        charge_failures: true,
        overload_floor: 100.0,
        ..BudgetConfig::DEFAULT
    };
    assert!(Budget::new(&config).is_err());
}

/// A cooldown holds the request first. It reaches the breaker after more than three quarters of its
/// time.
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
