//! Interactions of budget, circuit breaker and queue that could make retries worse than none.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

extern crate std;

use core::cell::RefCell;
use core::time::Duration;

use crate::call::session::Session;
use crate::call::session::decision::Decision;
use crate::destination::attempt_outcome::AttemptOutcome;
use crate::destination::budget::{BreakerSignal, Budget, BudgetConfig};
use crate::destination::circuit_breaker::{
    AttemptKind, BreakerOutcome, CircuitBreaker, CircuitBreakerConfig, Waiter,
};
use crate::destination::outbound::{Admission, AdmissionRequest, Outbound};
use crate::destination::{Access, Destination};
use crate::failure::{Failure, FailureKind};
use crate::hint::Hint;
use crate::policy::Policy;
use crate::policy::backoff::Backoff;
use crate::random::FixedRandom;
use crate::time::Instant;

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

/// After two failures in a row a retry is delayed for that long, however active the user is.
#[test]
fn no_reset_shortens_a_delay_by_the_budget() {
    let policy = Policy::builder(Backoff::exponential(Duration::from_millis(10)))
        .max_delay(Duration::from_secs(20))
        .max_retries(9)
        .build()
        .unwrap();
    let budget = Budget::new(&BudgetConfig {
        overload_reserve: 8.0,
        ..BudgetConfig::DEFAULT
    })
    .unwrap();
    budget.on_signal(&BreakerSignal {
        maybe_overload: true,
        consecutive_failures: true,
        ..BreakerSignal::default()
    });
    let mut session = Session::new(at(0), true);
    let fail = |session: &mut Session, now| {
        session.on_attempt();
        session.on_failure(
            &policy,
            now,
            &Failure::ambiguous(),
            &mut FixedRandom::at(0.5),
            Some(&budget),
        )
    };
    fail(&mut session, at(0));
    let Decision::Retry { after } = fail(&mut session, at(100)) else {
        unreachable!()
    };
    assert_eq!(after, Duration::from_secs(6), "it pauses");
    let until = at(100).saturating_add(after);
    let hastened = session.shorten_delay(&policy, at(200), until, &mut FixedRandom::at(0.5));
    assert_eq!(hastened, until);
}

/// A free retry is not unpaid: it is delayed like others, and does not limit the breaker.
#[test]
fn a_delayed_free_retry_is_not_unpaid() {
    let policy = Policy::builder(Backoff::None)
        .max_retries(9)
        .build()
        .unwrap();
    let budget = Budget::new(&BudgetConfig {
        cost: 0.0,
        overload_reserve: 8.0,
        ..BudgetConfig::DEFAULT
    })
    .unwrap();
    assert!(budget.withdraw(at(0), FailureKind::Throttled).is_some());
    budget.on_signal(&BreakerSignal {
        maybe_overload: true,
        consecutive_failures: true,
        ..BreakerSignal::default()
    });
    let mut session = Session::new(at(0), true);
    session.on_attempt();
    let mut middle = FixedRandom::at(0.5);
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
    type Random = FixedRandom;
    type Waker = ();

    fn turn<T>(&self, change: impl FnOnce(&mut Outbound, &mut FixedRandom) -> T) -> T {
        change(&mut self.0.borrow_mut(), &mut FixedRandom::at(0.5))
    }
}

fn request(id: u64, now: Instant) -> AdmissionRequest {
    AdmissionRequest {
        id,
        since: now,
        last_start: Instant::MAX,
        answer_by: Instant::MAX,
        longest: Duration::from_secs(300),
        jitter: 1.0,
        kind: AttemptKind::First,
        waits_without_limit: false,
        rate_limit_only: false,
        may_wait: true,
    }
}

/// A quota is exhausted: every response says to come back in five minutes, and no attempt succeeds any
/// more.
#[test]
fn an_exhausted_quota_stops_attempts_soon() {
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
        let mut request = request(0, now);
        let Admission::Start(mut permit) = there.enter(now, &mut request, false, None) else {
            continue;
        };
        permit.begin();
        let ended = at(id * 100 + 20);
        if id < 200 {
            there.end(ended, permit, &AttemptOutcome::SUCCESS);
        } else {
            refusals += 1;
            there.end(ended, permit, &AttemptOutcome::of(&refused));
        }
    }
    assert!(refusals < 50, "{refusals} were sent");
}

fn caller(id: u64, since: Instant) -> Waiter {
    Waiter {
        until: Instant::MAX,
        since,
        id,
    }
}

fn one(circuit_breaker: &mut CircuitBreaker, now: u64, took: u64, ended: BreakerOutcome) {
    circuit_breaker.on_request(at(now));
    if let Some(breaker_permit) =
        circuit_breaker.admit(at(now), caller(now, at(now)), AttemptKind::First)
    {
        circuit_breaker.on_end(
            at(now + took),
            breaker_permit,
            ended,
            &mut FixedRandom::at(0.5),
        );
    }
}

/// One lost attempt of ten seconds must not make sixty fast rejections look like slow failures.
#[test]
fn one_very_slow_failure_does_not_hide_fast_ones() {
    let mut circuit_breaker = CircuitBreaker::new(&CircuitBreakerConfig::DEFAULT).unwrap();
    let mut now = 0;
    for _ in 0..800 {
        one(&mut circuit_breaker, now, 20, BreakerOutcome::Answered);
        now += 25;
    }
    let refused = |circuit_breaker: &mut CircuitBreaker, now: &mut u64| {
        for id in 0..40 {
            let (took, ended) = match id % 2 {
                0 => (1, BreakerOutcome::Failed),
                _ => (20, BreakerOutcome::Answered),
            };
            one(circuit_breaker, *now, took, ended);
            *now += 25;
        }
    };
    refused(&mut circuit_breaker, &mut now);
    assert!(circuit_breaker.signal(at(now)).maybe_overload);
    // A connection is reset after ten seconds.
    let breaker_permit = circuit_breaker
        .admit(at(now), caller(now, at(now)), AttemptKind::First)
        .unwrap();
    for _ in 0..400 {
        one(&mut circuit_breaker, now, 20, BreakerOutcome::Answered);
        now += 25;
    }
    circuit_breaker.on_end(
        at(now),
        breaker_permit,
        BreakerOutcome::Failed,
        &mut FixedRandom::at(0.5),
    );
    refused(&mut circuit_breaker, &mut now);
    assert!(circuit_breaker.signal(at(now)).maybe_overload);
}

fn closed(policy: &Policy) -> (Outbound, crate::destination::cooldown::Cooldown, Instant) {
    let (mut outbound, cooldown) = (
        Outbound::new(policy),
        crate::destination::cooldown::Cooldown::new(),
    );
    let mut now = at(20_000);
    let mut id = 1 << 20;
    while !outbound.circuit_breaker().unwrap().is_down() {
        now = now.saturating_add(Duration::from_millis(50));
        id += 1;
        outbound.on_request_unthrottled(now);
        let asked = outbound.admit(now, &request(id, now), &cooldown, &mut FixedRandom::at(0.5));
        let Admission::Start(permit) = asked else {
            unreachable!()
        };
        outbound.end(
            now,
            permit,
            &AttemptOutcome::only(BreakerOutcome::Failed),
            &cooldown,
            &mut FixedRandom::at(0.5),
        );
    }
    (outbound, cooldown, now)
}

/// A budget that can never grant a retry is rejected.
#[test]
fn a_budget_that_charges_failures_needs_capacity_for_both_minimums() {
    let config = BudgetConfig {
        charge_failures: true,
        overload_reserve: 100.0,
        ..BudgetConfig::DEFAULT
    };
    assert!(Budget::new(&config).is_err());
}

/// A cooldown holds the request first. It reaches the breaker after more than three quarters of its
/// time.
#[test]
fn a_request_that_reaches_the_breaker_late_makes_a_late_first_attempt() {
    let policy = Policy::builder(Backoff::None)
        .circuit_breaker(CircuitBreakerConfig::DEFAULT)
        .build()
        .unwrap();
    let (mut outbound, cooldown, now) = closed(&policy);
    let mut random = FixedRandom::at(0.5);
    let request = AdmissionRequest {
        answer_by: now.saturating_add(Duration::from_millis(400)),
        last_start: now.saturating_add(Duration::from_millis(400)),
        ..request(1, now)
    };
    let mut next = now.saturating_add(Duration::from_millis(310));
    let mut answer = outbound.admit(next, &request, &cooldown, &mut random);
    loop {
        match answer {
            Admission::Start(_) => break,
            Admission::Wait(until, _) => next = until,
            other => unreachable!("no attempt was made: {other:?}"),
        }
        answer = outbound.admit_again(next, &request, &cooldown, &mut random);
    }
}
