//! Guarantees for every transport: each test is named after its rule.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod calm;
mod hedging;
mod model;
mod reload;

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use super::*;
use crate::backoff::Backoff;
use crate::budget::BudgetConfig;
use crate::failure::{Cause, Kind};
use crate::gate::{Ended, GateConfig};
use crate::hedge::{Hedge, HedgeConfig};
use crate::hint::Hint;
use crate::jitter::Jitter;
use crate::outbound::Outbound;
use crate::policy::PolicyBuilder;
use crate::race::Raced;
use crate::random::Draw;
use crate::request_rate::RequestRateConfig;
use crate::trace::TraceEntry;

const SECOND: Duration = Duration::from_secs(1);

/// An event that the environment received.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Told {
    Attempt(u32),
    Failure,
    Retry,
    Stop(StopReason),
}

/// The outbound of one thread, with a count of accesses.
struct OneThread(RefCell<Outbound>, Cell<u32>);

impl Access for OneThread {
    type Random = Draw;
    type Waker = ();

    fn turn<T>(&self, change: impl FnOnce(&mut Outbound, &mut Draw) -> T) -> T {
        self.1.set(self.1.get() + 1);
        change(&mut self.0.borrow_mut(), &mut Draw::at(0.5))
    }
}

type There = Destination<OneThread>;

fn there(policy: &Policy) -> There {
    Destination::new(policy, Outbound::new(policy), |outbound| {
        OneThread(RefCell::new(outbound), Cell::new(0))
    })
}

/// A manual clock, which counts how often it is read.
#[derive(Default)]
struct Hand {
    nanos: Cell<u64>,
    reads: Cell<u32>,
}

impl Hand {
    fn advance(&self, time: Duration) {
        self.nanos
            .set(self.nanos.get() + u64::try_from(time.as_nanos()).unwrap());
    }
}

/// The environment of a call.
struct Shell<'t> {
    policy: &'t Policy,
    there: Option<&'t There>,
    clock: &'t Hand,
    random: Draw,
    answer_by: Cell<Instant>,
    told: RefCell<Vec<Told>>,
}

macro_rules! environment {
    ($name:ident, $place:ty, $there:expr) => {
        struct $name<'t>(Shell<'t>);

        impl Environment for $name<'_> {
            type Place = $place;
            type Access = OneThread;
            type Random = Draw;

            fn policy(&self) -> &Policy {
                self.0.policy
            }
            fn destination(&self) -> Option<&There> {
                let there: fn(&Shell<'_>) -> bool = $there;
                self.0.there.filter(|_| there(&self.0))
            }
            fn parts(&mut self) -> (&Policy, Option<&Budget>, &mut Draw) {
                let budget = self.0.there.and_then(Destination::budget);
                (self.0.policy, budget, &mut self.0.random)
            }
            fn now(&self) -> Instant {
                self.0.clock.reads.set(self.0.clock.reads.get() + 1);
                Instant::from_nanos(self.0.clock.nanos.get())
            }
            fn answer_by(&self) -> Instant {
                self.0.answer_by.get()
            }
            fn on_attempt(&self, number: u32) {
                self.0.told.borrow_mut().push(Told::Attempt(number));
            }
            fn on_failure(&self, _: &Failure) {
                self.0.told.borrow_mut().push(Told::Failure);
            }
            fn on_decision(&self, _: u32, _: &Failure, decision: &Decision) {
                self.0.told.borrow_mut().push(match decision {
                    Decision::Retry { .. } => Told::Retry,
                    Decision::Stop(stop) => Told::Stop(stop.reason),
                });
            }
            fn on_stop(&self, _: u32, _: Option<&Failure>, reason: StopReason) {
                self.0.told.borrow_mut().push(Told::Stop(reason));
            }
        }
    };
}

environment!(Nowhere, (), |_| false);
environment!(At, Option<Entered>, |_| true);

fn alone<'t>(policy: &'t Policy, clock: &'t Hand) -> Nowhere<'t> {
    Nowhere(shell(policy, None, clock))
}

fn at<'t>(policy: &'t Policy, there: &'t There, clock: &'t Hand) -> At<'t> {
    At(shell(policy, Some(there), clock))
}

fn shell<'t>(policy: &'t Policy, there: Option<&'t There>, clock: &'t Hand) -> Shell<'t> {
    Shell {
        policy,
        there,
        clock,
        random: Draw::at(0.5),
        answer_by: Cell::new(Instant::MAX),
        told: RefCell::default(),
    }
}

fn policy() -> PolicyBuilder {
    Policy::builder(Backoff::constant(SECOND)).jitter(Jitter::None)
}

fn start<E: Environment>(call: &mut Call<'_, E::Place>, environment: &mut E) -> Attempt {
    let leave = call.next(environment, None).leave().unwrap();
    call.begin(environment, leave).0
}

fn traced<E: Environment>(environment: &E) -> Call<'static, E::Place> {
    Call::new(CallOptions::new().traced(), environment)
}

fn entries<L: Place>(call: &mut Call<'_, L>) -> Vec<TraceEntry> {
    call.take_trace().unwrap().entries().copied().collect()
}

fn stop_of(entry: &TraceEntry) -> Option<StopReason> {
    entry.decision?.stop().map(|stop| stop.reason)
}

#[test]
fn a_timer_that_is_late_starts_no_attempt_after_a_limit() {
    let limits = [
        (policy().deadline(5 * SECOND), StopReason::Deadline),
        (policy().max_elapsed(5 * SECOND), StopReason::MaxElapsed),
    ];
    for (policy, reason) in limits {
        let policy = policy.build().unwrap();
        let clock = Hand::default();
        let mut alone = alone(&policy, &clock);
        let mut call = traced(&alone);
        start(&mut call, &mut alone);
        let decision = call.failed(&mut alone, &Failure::ambiguous());
        assert_eq!(decision, Decision::Retry { after: SECOND });
        // The machine was suspended.
        clock.advance(6 * SECOND);
        let stop = call.next(&mut alone, None).stop().unwrap();
        assert_eq!(stop.reason, reason);
        let trace = entries(&mut call);
        assert_eq!(trace.len(), 1);
        assert_eq!(stop_of(&trace[0]), Some(reason));
        assert_eq!(alone.0.told.borrow().last(), Some(&Told::Stop(reason)));

        let there = there(&policy);
        let mut at = at(&policy, &there, &clock);
        let mut call = Call::new(CallOptions::new(), &at);
        start(&mut call, &mut at);
        call.failed(&mut at, &Failure::ambiguous());
        clock.advance(6 * SECOND);
        assert_eq!(call.next(&mut at, None).stop().unwrap().reason, reason);
    }
}

#[test]
fn the_last_instant_of_a_limit_is_in_time() {
    let policy = policy().max_elapsed(SECOND).build().unwrap();
    let clock = Hand::default();
    let mut alone = alone(&policy, &clock);
    let mut call = Call::new(CallOptions::new(), &alone);
    start(&mut call, &mut alone);
    call.failed(&mut alone, &Failure::ambiguous());
    clock.advance(SECOND);
    assert_eq!(start(&mut call, &mut alone).number, 2);
}

#[test]
fn rule_10_without_a_limit_of_time_no_clock_is_read_before_a_failure() {
    let policy = policy().build().unwrap();
    let clock = Hand::default();
    let mut alone = alone(&policy, &clock);
    let mut call = Call::new(CallOptions::new(), &alone);
    start(&mut call, &mut alone);
    call.succeeded(&mut alone);
    assert_eq!(clock.reads.get(), 0);

    let mut call = Call::new(CallOptions::new(), &alone);
    start(&mut call, &mut alone);
    call.failed(&mut alone, &Failure::ambiguous());
    start(&mut call, &mut alone);
    assert_eq!(clock.reads.get(), 1, "for the failure alone");
}

#[test]
fn rule_10_with_a_limit_of_time_the_clock_is_read_once_for_each_start() {
    let policy = policy().deadline(60 * SECOND).build().unwrap();
    let clock = Hand::default();
    let mut alone = alone(&policy, &clock);
    let mut call = Call::new(CallOptions::new(), &alone);
    start(&mut call, &mut alone);
    assert_eq!(clock.reads.get(), 1);
    call.failed(&mut alone, &Failure::ambiguous());
    start(&mut call, &mut alone);
    assert_eq!(clock.reads.get(), 3);
}

/// No unpaid retry passes the circuit breaker, however healthy the destination is.
#[test]
fn a_retry_that_an_empty_budget_cannot_pay_for_waits_at_the_gate_of_a_calm_destination() {
    for (wait_when_empty, waits) in [(true, true), (false, false)] {
        let budget = BudgetConfig {
            ratio: 0.2,
            per_second: 0.0,
            wait_when_empty,
            ..BudgetConfig::DEFAULT
        };
        let policy = policy().gate(GateConfig::DEFAULT).budget(budget);
        let policy = policy.build().unwrap();
        let (there, clock) = (there(&policy), Hand::default());
        let mut at = at(&policy, &there, &clock);
        let others = |at: &mut At<'_>, count| {
            for _ in 0..count {
                let mut call = Call::new(CallOptions::new(), at);
                start(&mut call, at);
                clock.advance(SECOND / 20);
                call.succeeded(at);
            }
        };
        others(&mut at, 40);
        let now = |clock: &Hand| Instant::from_nanos(clock.nanos.get());
        let budget = there.budget().unwrap();
        while budget.withdraw(now(&clock), Kind::Ambiguous).is_some() {}
        let mut call = Call::new(CallOptions::new(), &at);
        start(&mut call, &mut at);
        let decision = call.failed(&mut at, &Failure::ambiguous());
        if !waits {
            assert_eq!(decision.stop().unwrap().reason, StopReason::Budget);
            continue;
        }
        assert_eq!(decision, Decision::Retry { after: SECOND });
        others(&mut at, 20);
        assert!(there.is_calm(now(&clock)), "nobody would have to ask");
        let Next::Wait { by, .. } = call.next(&mut at, None) else {
            panic!("it has to wait")
        };
        assert_eq!(by, Holding::Gate);
        // There is headroom for others, and so for this one.
        let gone = (0..200).any(|_| {
            others(&mut at, 1);
            call.next(&mut at, None).leave().is_some()
        });
        assert!(gone);
    }
}

/// Whatever held it: the stop is reported once, the trace ends with it, and the retry is refunded.
#[test]
fn giving_up_before_an_attempt_is_told_once_and_ends_the_trace() {
    let one_an_hour = RequestRateConfig {
        burst: Some(1),
        ..RequestRateConfig::new(1.0 / 3600.0)
    };
    let paced = policy().request_rate(one_an_hour).deadline(60 * SECOND);
    let paced = paced.budget(BudgetConfig::DEFAULT).build().unwrap();
    let cooled = policy().budget(BudgetConfig::DEFAULT).build().unwrap();
    let cooled = cooled.into_builder().deadline(60 * SECOND);
    let cooled = cooled.build().unwrap();
    for policy in [&paced, &cooled] {
        let (there, clock) = (there(policy), Hand::default());
        let balance = there.budget().unwrap().balance();
        let mut at = at(policy, &there, &clock);
        let mut call = traced(&at);
        start(&mut call, &mut at);
        let decision = call.failed(&mut at, &Failure::ambiguous());
        assert!(matches!(decision, Decision::Retry { .. }));
        assert!(there.budget().unwrap().balance() < balance);
        // Another call gets a request to stay away.
        let busy = Failure::throttled().hint(Hint::after(3600 * SECOND));
        there.cooldown().on_failure(at.now(), &busy, 3600 * SECOND);
        clock.advance(SECOND);
        for _ in 0..2 {
            let stop = call.next(&mut at, None).stop().unwrap();
            assert_eq!(stop.reason, StopReason::RetryLater);
            assert!(stop.retry_at.is_some());
        }
        assert!(there.budget().unwrap().balance() >= balance);
        let told = at.0.told.borrow().clone();
        let stop = Told::Stop(StopReason::RetryLater);
        assert_eq!(told, [Told::Attempt(1), Told::Failure, Told::Retry, stop]);
        let trace = entries(&mut call);
        assert_eq!(trace.len(), 1);
        assert_eq!(stop_of(&trace[0]), Some(StopReason::RetryLater));
    }
}

#[test]
fn cancelling_a_running_attempt_leaves_the_entry_of_the_one_before() {
    let policy = policy().build().unwrap();
    let clock = Hand::default();
    let mut alone = alone(&policy, &clock);
    let mut call = traced(&alone);
    start(&mut call, &mut alone);
    call.failed(&mut alone, &Failure::ambiguous().cause(Cause::Status(503)));
    clock.advance(SECOND);
    start(&mut call, &mut alone);
    clock.advance(SECOND);
    call.cancel(&mut alone);
    let trace = entries(&mut call);
    let retry = Decision::Retry { after: SECOND };
    assert_eq!(trace[0].decision, Some(retry));
    assert_eq!((trace[1].attempt, trace[1].failure), (2, None));
    assert_eq!(stop_of(&trace[1]), Some(StopReason::Cancelled));
    assert_eq!(trace[1].ended, at_second(2));
    assert_eq!(trace.len(), 2);
}

fn at_second(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

#[test]
fn cancelling_a_wait_makes_a_stop_of_the_retry() {
    let policy = policy().build().unwrap();
    let clock = Hand::default();
    let mut alone = alone(&policy, &clock);
    let mut call = traced(&alone);
    start(&mut call, &mut alone);
    call.failed(&mut alone, &Failure::ambiguous());
    call.cancel(&mut alone);
    let trace = entries(&mut call);
    assert_eq!(trace.len(), 1);
    assert_eq!(stop_of(&trace[0]), Some(StopReason::Cancelled));
}

/// A permit can be given back and requested again.
#[test]
fn a_leave_that_steps_back_lets_another_go() {
    let one = RequestRateConfig {
        burst: Some(1),
        ..RequestRateConfig::new(0.01)
    };
    let policy = policy().request_rate(one).build().unwrap();
    let (there, clock) = (there(&policy), Hand::default());
    let (mut one, mut other) = (at(&policy, &there, &clock), at(&policy, &there, &clock));
    let mut first = Call::new(CallOptions::new(), &one);
    let mut second = Call::new(CallOptions::new(), &other);
    let leave = first.next(&mut one, None).leave().unwrap();
    let Next::Wait { by, .. } = second.next(&mut other, None) else {
        panic!("there is one slot");
    };
    assert_eq!(by, Holding::RequestRate);
    first.step_back(&mut one, leave);
    start(&mut second, &mut other);
    assert!(first.next(&mut one, None).leave().is_none());
}

/// A call that goes away returns everything it has.
#[test]
fn a_call_that_goes_away_leaves_nothing_behind() {
    let policy = policy()
        .request_rate(RequestRateConfig::new(1.0))
        .budget(BudgetConfig::DEFAULT)
        .build()
        .unwrap();
    let (there, clock) = (there(&policy), Hand::default());
    let mut at = at(&policy, &there, &clock);
    let mut call = Call::new(CallOptions::new(), &at);
    start(&mut call, &mut at);
    let balance = there.budget().unwrap().balance();
    call.failed(&mut at, &Failure::ambiguous());
    assert!(matches!(call.next(&mut at, None), Next::Wait { .. }));
    assert!(call.holds());
    call.leave(&at);
    assert!(!call.holds());
    assert_eq!(there.budget().unwrap().balance(), balance);
    assert_eq!(there.access().0.borrow().waiting(), 0);
}

#[test]
fn a_race_that_is_cancelled_has_each_of_its_attempts_in_the_trace_once() {
    let policy = policy().build().unwrap();
    let hedge = Hedge::new(&HedgeConfig::after(SECOND)).unwrap();
    let clock = Hand::default();
    let mut alone = alone(&policy, &clock);
    let mut call = traced(&alone);
    let leave = call.next(&mut alone, None).leave().unwrap();
    let first = call.begin_race(&mut alone, &hedge, leave);
    clock.advance(SECOND);
    assert!(call.grant_hedge(&mut alone));
    let second = call.begin_hedge(&mut alone);
    for racer in [&first, &second] {
        call.race_lost(&mut alone, racer);
    }
    call.cancel(&mut alone);
    let attempts: Vec<_> = entries(&mut call)
        .iter()
        .map(|entry| (entry.attempt, stop_of(entry)))
        .collect();
    let cancelled = Some(StopReason::Cancelled);
    assert_eq!(attempts, [(1, cancelled), (2, cancelled)]);
}

#[test]
fn the_failure_that_decides_a_race_is_told_once() {
    let policy = policy().build().unwrap();
    let hedge = Hedge::new(&HedgeConfig::after(SECOND)).unwrap();
    let clock = Hand::default();
    let mut alone = alone(&policy, &clock);
    let mut call = traced(&alone);
    let leave = call.next(&mut alone, None).leave().unwrap();
    let first = call.begin_race(&mut alone, &hedge, leave);
    clock.advance(SECOND);
    assert!(call.grant_hedge(&mut alone));
    let second = call.begin_hedge(&mut alone);
    let busy = Failure::throttled();
    let raced = call.race_failed(&mut alone, &hedge, &first, &busy);
    assert_eq!(raced, Raced::GoesOn { kept: true });
    let plain = Failure::ambiguous();
    let raced = call.race_failed(&mut alone, &hedge, &second, &plain);
    let Raced::Over { failure, latest } = raced else {
        panic!("nobody runs");
    };
    assert!(!latest);
    call.failed(&mut alone, &failure);
    let failures = alone.0.told.borrow();
    let failures = failures.iter().filter(|told| **told == Told::Failure);
    assert_eq!(failures.count(), 2);
    assert_eq!(entries(&mut call).len(), 2);
    assert_eq!(call.hedge_due(), None);
}

/// The target of a redirect receives the outcome; the redirecting destination has responded.
#[test]
fn a_destination_that_answered_a_redirect_learns_of_it() {
    let policy = policy().build().unwrap();
    let (asked, answered) = (there(&policy), there(&policy));
    let clock = Hand::default();
    let mut at = at(&policy, &asked, &clock);
    let mut call = Call::new(CallOptions::new(), &at);
    start(&mut call, &mut at);
    let busy = Failure::throttled().hint(Hint::after(SECOND));
    call.elsewhere(&mut at, &answered, None, Some(&busy));
    assert!(answered.cooldown().has_begun() && !asked.cooldown().has_begun());
}

/// A queued request that runs out of its last milliseconds is no evidence about the destination. If it
/// counted as a timeout, the breaker would release others more slowly, until they had only milliseconds
/// left too.
#[test]
fn an_attempt_that_had_no_time_left_is_no_timeout() {
    for (left, closes) in [(10, false), (499, false), (500, true), (1000, true)] {
        let policy = Policy::STANDARD.clone().into_builder().deadline(SECOND);
        let policy = policy.build().unwrap();
        let (there, clock) = (there(&policy), Hand::default());
        let mut at = at(&policy, &there, &clock);
        let left = Duration::from_millis(left);
        for _ in 0..40 {
            clock.advance(SECOND);
            let begun = Instant::from_nanos(clock.nanos.get());
            clock.advance(SECOND - left);
            let mut call = Call::begun(begun, CallOptions::new(), &at);
            if let Some(leave) = call.next(&mut at, None).leave() {
                call.begin(&mut at, leave);
                clock.advance(left);
                call.failed(&mut at, &Failure::ambiguous().cause(Cause::Timeout));
            } else {
                call.leave(&at);
            }
        }
        let access = there.access();
        let closed = access.turn(|outbound, _| outbound.gate().unwrap().is_closed());
        assert_eq!(closed, closes, "{left:?}");
    }
}

#[test]
fn a_call_is_small() {
    assert!(size_of::<Call<'_, ()>>() <= 80);
    assert!(size_of::<Call<'_, Option<Entered>>>() <= 112);
}

/// The breaker receives a response, and nothing if the call goes away.
#[test]
fn a_running_attempt_ends_at_its_destination_once() {
    let policy = Policy::STANDARD;
    let (there, clock) = (there(policy), Hand::default());
    let mut at = at(policy, &there, &clock);
    let mut call = Call::new(CallOptions::new(), &at);
    start(&mut call, &mut at);
    assert!(call.holds());
    call.succeeded(&mut at);
    assert!(!call.holds());
    call.end_stage(&at, Ended::Unknown);
    assert!(!call.holds());
}

/// Without admission a call has no id at the destination until a cooldown begins.
#[test]
fn calls_that_came_to_a_quiet_destination_wait_side_by_side() {
    let policy = policy().build().unwrap();
    let (there, clock) = (there(&policy), Hand::default());
    let busy = Failure::throttled().hint(Hint::after(4 * SECOND));
    let calls = [(); 3].map(|()| {
        let mut at = at(&policy, &there, &clock);
        let mut call = Call::new(CallOptions::new(), &at);
        start(&mut call, &mut at);
        (call, at)
    });
    let calls = calls.map(|(mut call, mut at)| {
        call.failed(&mut at, &busy);
        assert!(matches!(call.next(&mut at, None), Next::Wait { .. }));
        (call, at)
    });
    let waiting = || there.access().turn(|outbound, _| outbound.waiting());
    assert_eq!(waiting(), 3);
    for (mut call, at) in calls {
        call.leave(&at);
    }
    assert_eq!(waiting(), 0);
}

/// The deadline of the caller changes while it waits.
#[test]
fn who_is_parked_is_known_by_what_it_said_when_it_came() {
    let policy = policy().gate(crate::GateConfig::DEFAULT).build().unwrap();
    let (there, clock) = (there(&policy), Hand::default());
    clock.advance(SECOND * 100_000);
    let mut at = at(&policy, &there, &clock);
    loop {
        let mut call = Call::new(CallOptions::new(), &at);
        match call.next(&mut at, None) {
            Next::Start(leave) => {
                call.begin(&mut at, leave);
                clock.advance(SECOND / 20);
                call.failed(&mut at, &Failure::ambiguous());
                call.leave(&at);
            }
            _ => {
                call.leave(&at);
                break;
            }
        }
    }
    let parked = || there.access().0.borrow().parked();
    let mut call = Call::new(CallOptions::new(), &at);
    for (asks, more) in (0..3).zip([10, 20, 5]) {
        let now = Instant::from_nanos(clock.nanos.get());
        at.0.answer_by.set(now.saturating_add(more * SECOND));
        assert!(matches!(call.next(&mut at, None), Next::Wait { .. }));
        assert_eq!(parked(), 1, "{asks}");
        clock.advance(SECOND / 100);
    }
    call.leave(&at);
    assert_eq!((parked(), there.access().0.borrow().waiting()), (0, 0));
}
