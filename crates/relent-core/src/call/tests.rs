//! Guarantees for every transport: each test is named after its rule.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod healthy;
mod hedging;
mod model;
mod reload;

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use super::*;
use crate::call::race::RaceOutcome;
use crate::call::trace::TraceEntry;
use crate::destination::attempt_outcome::AttemptOutcome;
use crate::destination::budget::BudgetConfig;
use crate::destination::circuit_breaker::CircuitBreakerConfig;
use crate::destination::hedge::{Hedge, HedgeConfig};
use crate::destination::outbound::Outbound;
use crate::destination::rate_limit::RateLimitConfig;
use crate::failure::{Cause, FailureKind, Hop, Network};
use crate::hint::{Hint, HintMode};
use crate::policy::PolicyBuilder;
use crate::policy::backoff::Backoff;
use crate::policy::jitter::Jitter;
use crate::random::FixedRandom;

const SECOND: Duration = Duration::from_secs(1);

/// An event that the environment received.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Event {
    Attempt(u32),
    Failure,
    Retry,
    Stop(StopReason),
}

/// The outbound of one thread, with a count of accesses.
struct OneThread(RefCell<Outbound>, Cell<u32>);

impl Access for OneThread {
    type Random = FixedRandom;
    type Waker = ();

    fn turn<T>(&self, change: impl FnOnce(&mut Outbound, &mut FixedRandom) -> T) -> T {
        self.1.set(self.1.get() + 1);
        change(&mut self.0.borrow_mut(), &mut FixedRandom::at(0.5))
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
struct ManualClock {
    nanos: Cell<u64>,
    reads: Cell<u32>,
}

impl ManualClock {
    fn advance(&self, time: Duration) {
        self.nanos
            .set(self.nanos.get() + u64::try_from(time.as_nanos()).unwrap());
    }
}

/// The environment of a call.
struct TestEnvironment<'t> {
    policy: &'t Policy,
    there: Option<&'t There>,
    clock: &'t ManualClock,
    random: FixedRandom,
    answer_by: Cell<Instant>,
    events: RefCell<Vec<Event>>,
}

impl Environment for TestEnvironment<'_> {
    type Access = OneThread;
    type Random = FixedRandom;

    fn policy(&self) -> &Policy {
        self.policy
    }
    fn destination(&self) -> Option<&There> {
        self.there
    }
    fn parts(&mut self) -> (&Policy, Option<&Budget>, &mut FixedRandom) {
        let budget = self.there.and_then(Destination::budget);
        (self.policy, budget, &mut self.random)
    }
    fn now(&self) -> Instant {
        self.clock.reads.set(self.clock.reads.get() + 1);
        Instant::from_nanos(self.clock.nanos.get())
    }
    fn answer_by(&self) -> Instant {
        self.answer_by.get()
    }
    fn on_attempt(&self, number: u32) {
        self.events.borrow_mut().push(Event::Attempt(number));
    }
    fn on_failure(&self, _: &Failure) {
        self.events.borrow_mut().push(Event::Failure);
    }
    fn on_decision(&self, _: u32, _: &Failure, decision: &Decision) {
        self.events.borrow_mut().push(match decision {
            Decision::Retry { .. } => Event::Retry,
            Decision::Stop(stop) => Event::Stop(stop.reason),
        });
    }
    fn on_stop(&self, _: u32, _: Option<&Failure>, reason: StopReason) {
        self.events.borrow_mut().push(Event::Stop(reason));
    }
}

fn without_destination<'t>(policy: &'t Policy, clock: &'t ManualClock) -> TestEnvironment<'t> {
    environment(policy, None, clock)
}

fn at<'t>(policy: &'t Policy, there: &'t There, clock: &'t ManualClock) -> TestEnvironment<'t> {
    environment(policy, Some(there), clock)
}

fn environment<'t>(
    policy: &'t Policy,
    there: Option<&'t There>,
    clock: &'t ManualClock,
) -> TestEnvironment<'t> {
    TestEnvironment {
        policy,
        there,
        clock,
        random: FixedRandom::at(0.5),
        answer_by: Cell::new(Instant::MAX),
        events: RefCell::default(),
    }
}

fn policy() -> PolicyBuilder {
    Policy::builder(Backoff::constant(SECOND)).jitter(Jitter::None)
}

fn start<E: Environment>(call: &mut Call<'_>, environment: &mut E) -> Attempt {
    let permit = call.next(environment, None).permit().unwrap();
    call.begin(environment, permit).0
}

fn traced<E: Environment>(environment: &E) -> Call<'static> {
    let mut call = Call::new(environment);
    call.set_traced();
    call
}

fn entries(call: &mut Call<'_>) -> Vec<TraceEntry> {
    call.take_trace().unwrap().entries().copied().collect()
}

fn stop_of(entry: &TraceEntry) -> Option<StopReason> {
    entry.decision?.stop().map(|stop| stop.reason)
}

#[test]
fn a_late_timer_starts_no_attempt_after_a_time_limit() {
    let limits = [
        (policy().deadline(5 * SECOND), StopReason::Deadline),
        (policy().max_elapsed(5 * SECOND), StopReason::MaxElapsed),
    ];
    for (policy, reason) in limits {
        let policy = policy.build().unwrap();
        let clock = ManualClock::default();
        let mut without_destination = without_destination(&policy, &clock);
        let mut call = traced(&without_destination);
        start(&mut call, &mut without_destination);
        let decision = call.failed(&mut without_destination, &Failure::ambiguous());
        assert_eq!(decision, Decision::Retry { after: SECOND });
        // The machine was suspended.
        clock.advance(6 * SECOND);
        let stop = call.next(&mut without_destination, None).stop().unwrap();
        assert_eq!(stop.reason, reason);
        let trace = entries(&mut call);
        assert_eq!(trace.len(), 1);
        assert_eq!(stop_of(&trace[0]), Some(reason));
        assert_eq!(
            without_destination.events.borrow().last(),
            Some(&Event::Stop(reason))
        );

        let there = there(&policy);
        let mut at = at(&policy, &there, &clock);
        let mut call = Call::new(&at);
        start(&mut call, &mut at);
        call.failed(&mut at, &Failure::ambiguous());
        clock.advance(6 * SECOND);
        assert_eq!(call.next(&mut at, None).stop().unwrap().reason, reason);
    }
}

#[test]
fn the_last_instant_of_a_time_limit_is_in_time() {
    let policy = policy().max_elapsed(SECOND).build().unwrap();
    let clock = ManualClock::default();
    let mut without_destination = without_destination(&policy, &clock);
    let mut call = Call::new(&without_destination);
    start(&mut call, &mut without_destination);
    call.failed(&mut without_destination, &Failure::ambiguous());
    clock.advance(SECOND);
    assert_eq!(start(&mut call, &mut without_destination).number, 2);
}

#[test]
fn the_clock_is_read_once_for_each_start_and_each_failure() {
    for policy in [policy(), policy().deadline(60 * SECOND)] {
        let policy = policy.build().unwrap();
        let clock = ManualClock::default();
        let mut without_destination = without_destination(&policy, &clock);
        let mut call = Call::new(&without_destination);
        start(&mut call, &mut without_destination);
        assert_eq!(clock.reads.get(), 1);
        call.failed(&mut without_destination, &Failure::ambiguous());
        start(&mut call, &mut without_destination);
        call.succeeded(&mut without_destination);
        assert_eq!(clock.reads.get(), 3);
    }
}

#[test]
fn a_call_begins_with_its_first_attempt() {
    let policy = policy().build().unwrap();
    let clock = ManualClock::default();
    let mut without_destination = without_destination(&policy, &clock);
    let mut call = Call::new(&without_destination);
    assert_eq!(call.started(), None);
    let began = Instant::ORIGIN;
    start(&mut call, &mut without_destination);
    clock.advance(SECOND);
    call.failed(&mut without_destination, &Failure::ambiguous());
    assert_eq!(call.started(), Some(began));
}

/// No unpaid retry passes the circuit breaker, however healthy the destination is.
#[test]
fn an_unpaid_retry_is_queued_even_at_a_healthy_destination() {
    for (queue_when_exhausted, waits) in [(true, true), (false, false)] {
        let budget = BudgetConfig {
            ratio: 0.2,
            per_second: 0.0,
            queue_when_exhausted,
            ..BudgetConfig::DEFAULT
        };
        let policy = policy()
            .circuit_breaker(CircuitBreakerConfig::DEFAULT)
            .budget(budget);
        let policy = policy.build().unwrap();
        let (there, clock) = (there(&policy), ManualClock::default());
        let mut at = at(&policy, &there, &clock);
        let others = |at: &mut TestEnvironment<'_>, count| {
            for _ in 0..count {
                let mut call = Call::new(at);
                start(&mut call, at);
                clock.advance(SECOND / 20);
                call.succeeded(at);
            }
        };
        others(&mut at, 40);
        let now = |clock: &ManualClock| Instant::from_nanos(clock.nanos.get());
        let budget = there.budget().unwrap();
        while budget
            .withdraw(now(&clock), FailureKind::Ambiguous)
            .is_some()
        {}
        let mut call = Call::new(&at);
        start(&mut call, &mut at);
        let decision = call.failed(&mut at, &Failure::ambiguous());
        if !waits {
            assert_eq!(decision.stop().unwrap().reason, StopReason::Budget);
            continue;
        }
        assert_eq!(decision, Decision::Retry { after: SECOND });
        others(&mut at, 20);
        assert!(there.is_healthy(now(&clock)), "nobody would have to ask");
        let NextStep::Wait { by, .. } = call.next(&mut at, None) else {
            panic!("it has to wait")
        };
        assert_eq!(by, BlockedBy::CircuitBreaker);
        // There is headroom for others, and so for this one.
        let gone = (0..200).any(|_| {
            others(&mut at, 1);
            call.next(&mut at, None).permit().is_some()
        });
        assert!(gone);
    }
}

/// Whatever held it: the stop is reported once, the trace ends with it, and the retry is refunded.
#[test]
fn giving_up_before_an_attempt_is_reported_once_and_ends_the_trace() {
    let one_an_hour = RateLimitConfig {
        burst: Some(1),
        ..RateLimitConfig::new(1.0 / 3600.0)
    };
    let paced = policy().rate_limit(one_an_hour).deadline(60 * SECOND);
    let paced = paced.budget(BudgetConfig::DEFAULT).build().unwrap();
    let cooled = policy().budget(BudgetConfig::DEFAULT).build().unwrap();
    let cooled = cooled.into_builder().deadline(60 * SECOND);
    let cooled = cooled.build().unwrap();
    for policy in [&paced, &cooled] {
        let (there, clock) = (there(policy), ManualClock::default());
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
        let events = at.events.borrow().clone();
        let stop = Event::Stop(StopReason::RetryLater);
        assert_eq!(
            events,
            [Event::Attempt(1), Event::Failure, Event::Retry, stop]
        );
        let trace = entries(&mut call);
        assert_eq!(trace.len(), 1);
        assert_eq!(stop_of(&trace[0]), Some(StopReason::RetryLater));
    }
}

#[test]
fn cancelling_an_attempt_keeps_the_trace_entry_before_it() {
    let policy = policy().build().unwrap();
    let clock = ManualClock::default();
    let mut without_destination = without_destination(&policy, &clock);
    let mut call = traced(&without_destination);
    start(&mut call, &mut without_destination);
    call.failed(
        &mut without_destination,
        &Failure::ambiguous().cause(Cause::Status(503)),
    );
    clock.advance(SECOND);
    start(&mut call, &mut without_destination);
    clock.advance(SECOND);
    call.cancel(&mut without_destination);
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
fn cancelling_a_delay_turns_the_retry_into_a_stop() {
    let policy = policy().build().unwrap();
    let clock = ManualClock::default();
    let mut without_destination = without_destination(&policy, &clock);
    let mut call = traced(&without_destination);
    start(&mut call, &mut without_destination);
    call.failed(&mut without_destination, &Failure::ambiguous());
    call.cancel(&mut without_destination);
    let trace = entries(&mut call);
    assert_eq!(trace.len(), 1);
    assert_eq!(stop_of(&trace[0]), Some(StopReason::Cancelled));
}

/// A permit can be given back and requested again.
#[test]
fn a_released_permit_lets_another_call_go() {
    let one = RateLimitConfig {
        burst: Some(1),
        ..RateLimitConfig::new(0.01)
    };
    let policy = policy().rate_limit(one).build().unwrap();
    let (there, clock) = (there(&policy), ManualClock::default());
    let (mut one, mut other) = (at(&policy, &there, &clock), at(&policy, &there, &clock));
    let mut first = Call::new(&one);
    let mut second = Call::new(&other);
    let permit = first.next(&mut one, None).permit().unwrap();
    let NextStep::Wait { by, .. } = second.next(&mut other, None) else {
        panic!("there is one slot");
    };
    assert_eq!(by, BlockedBy::RateLimit);
    first.release_permit(&mut one, permit);
    start(&mut second, &mut other);
    assert!(first.next(&mut one, None).permit().is_none());
}

/// A call that goes away returns everything it has.
#[test]
fn a_dropped_call_releases_everything() {
    let policy = policy()
        .rate_limit(RateLimitConfig::new(1.0))
        .budget(BudgetConfig::DEFAULT)
        .build()
        .unwrap();
    let (there, clock) = (there(&policy), ManualClock::default());
    let mut at = at(&policy, &there, &clock);
    let mut call = Call::new(&at);
    start(&mut call, &mut at);
    let balance = there.budget().unwrap().balance();
    call.failed(&mut at, &Failure::ambiguous());
    assert!(matches!(call.next(&mut at, None), NextStep::Wait { .. }));
    assert!(call.holds());
    call.leave(&at);
    assert!(!call.holds());
    assert_eq!(there.budget().unwrap().balance(), balance);
    assert_eq!(there.access().0.borrow().waiting(), 0);
}

#[test]
fn a_cancelled_race_has_each_attempt_in_the_trace_once() {
    let policy = policy().build().unwrap();
    let hedge = Hedge::new(&HedgeConfig::after(SECOND)).unwrap();
    let clock = ManualClock::default();
    let mut without_destination = without_destination(&policy, &clock);
    let mut call = traced(&without_destination);
    let permit = call.next(&mut without_destination, None).permit().unwrap();
    let first = call.begin_race(&mut without_destination, &hedge, permit);
    clock.advance(SECOND);
    assert!(call.grant_hedge(&mut without_destination));
    let second = call.begin_hedge(&mut without_destination);
    for racer in [&first, &second] {
        call.race_lost(&mut without_destination, racer);
    }
    call.cancel(&mut without_destination);
    let attempts: Vec<_> = entries(&mut call)
        .iter()
        .map(|entry| (entry.attempt, stop_of(entry)))
        .collect();
    let cancelled = Some(StopReason::Cancelled);
    assert_eq!(attempts, [(1, cancelled), (2, cancelled)]);
}

#[test]
fn the_deciding_failure_of_a_race_is_reported_once() {
    let policy = policy().build().unwrap();
    let hedge = Hedge::new(&HedgeConfig::after(SECOND)).unwrap();
    let clock = ManualClock::default();
    let mut without_destination = without_destination(&policy, &clock);
    let mut call = traced(&without_destination);
    let permit = call.next(&mut without_destination, None).permit().unwrap();
    let first = call.begin_race(&mut without_destination, &hedge, permit);
    clock.advance(SECOND);
    assert!(call.grant_hedge(&mut without_destination));
    let second = call.begin_hedge(&mut without_destination);
    let busy = Failure::throttled();
    let raced = call.race_failed(&mut without_destination, &hedge, &first, &busy);
    assert_eq!(raced, RaceOutcome::GoesOn { kept: true });
    let plain = Failure::ambiguous();
    let raced = call.race_failed(&mut without_destination, &hedge, &second, &plain);
    let RaceOutcome::Over { failure, latest } = raced else {
        panic!("nobody runs");
    };
    assert!(!latest);
    call.failed(&mut without_destination, &failure);
    let failures = without_destination.events.borrow();
    let failures = failures.iter().filter(|events| **events == Event::Failure);
    assert_eq!(failures.count(), 2);
    assert_eq!(entries(&mut call).len(), 2);
    assert_eq!(call.hedge_due(), None);
}

/// The target of a redirect receives the outcome; the redirecting destination has responded.
#[test]
fn the_target_of_a_redirect_receives_its_outcome() {
    let policy = policy().build().unwrap();
    let (asked, answered) = (there(&policy), there(&policy));
    let clock = ManualClock::default();
    let mut at = at(&policy, &asked, &clock);
    let mut call = Call::new(&at);
    start(&mut call, &mut at);
    let busy = Failure::throttled().hint(Hint::after(SECOND));
    call.redirected(&mut at, &answered, None, Some(&busy));
    assert!(answered.cooldown().has_begun() && !asked.cooldown().has_begun());
}

/// As at its own destination: a time limit that leaves little time after a redirect is no evidence about its target.
#[test]
fn a_target_of_redirects_without_enough_time_has_no_timeouts() {
    let limits = [(10, false), (499, false), (500, true), (1000, true)];
    let limits = limits.map(|limit| [(limit, true), (limit, false)]);
    for ((left, closes), by_deadline) in limits.into_iter().flatten() {
        let policy = Policy::STANDARD.clone().into_builder();
        let policy = match by_deadline {
            true => policy.deadline(SECOND),
            false => policy.attempt_timeout(SECOND).deadline(60 * SECOND),
        };
        let policy = policy.build().unwrap();
        let (asked, answered) = (there(&policy), there(&policy));
        let clock = ManualClock::default();
        let mut at = at(&policy, &asked, &clock);
        let left = Duration::from_millis(left);
        for _ in 0..40 {
            clock.advance(SECOND);
            let mut call = Call::new(&at);
            start(&mut call, &mut at);
            clock.advance(SECOND - left);
            let since = Instant::from_nanos(clock.nanos.get());
            clock.advance(left);
            let late = Failure::ambiguous().cause(Cause::Timeout);
            call.redirected(&mut at, &answered, Some(since), Some(&late));
            call.failed(&mut at, &late.hop(Hop::Elsewhere));
        }
        let access = answered.access();
        let closed = access.turn(|outbound, _| outbound.circuit_breaker().unwrap().is_down());
        assert_eq!(closed, closes, "{left:?}, deadline: {by_deadline}");
    }
}

/// As it does during a delay: a user has returned.
#[test]
fn activity_in_a_queue_restarts_a_backoff_that_depends_on_elapsed_time() {
    let rate = RateLimitConfig {
        burst: Some(1),
        ..RateLimitConfig::new(0.1)
    };
    let policy = Policy::builder(Backoff::elapsed(SECOND, 0.5)).jitter(Jitter::None);
    let policy = policy.unlimited_retries().rate_limit(rate).build().unwrap();
    for (is_active, delay) in [(true, SECOND), (false, 55 * SECOND)] {
        let (there, clock) = (there(&policy), ManualClock::default());
        let mut at = at(&policy, &there, &clock);
        let mut call = Call::new(&at);
        start(&mut call, &mut at);
        clock.advance(100 * SECOND);
        call.failed(&mut at, &Failure::pending());
        // Another call takes the slot.
        start(&mut Call::new(&at), &mut at);
        let step = call.next(&mut at, None);
        assert!(matches!(step, NextStep::Wait { .. }));
        if is_active {
            call.reset(&at);
        }
        clock.advance(10 * SECOND);
        start(&mut call, &mut at);
        let decision = call.failed(&mut at, &Failure::pending());
        assert_eq!(decision, Decision::Retry { after: delay });
    }
}

/// A redirect is a response, even if the destination that it leads to sends none.
#[test]
fn a_destination_that_redirects_has_responded() {
    for (hop, responded) in [(Hop::Elsewhere, true), (Hop::None, false)] {
        let (there, clock) = (there(Policy::STANDARD), ManualClock::default());
        let mut at = at(Policy::STANDARD, &there, &clock);
        let mut call = Call::new(&at);
        start(&mut call, &mut at);
        call.failed(&mut at, &Failure::network(Network::Connect).hop(hop));
        assert_eq!(there.has_responded(), responded, "{hop:?}");
    }
}

/// The earlier attempts of one call make its 409 a reason to wait. They are no reason for others.
#[test]
fn an_in_progress_response_holds_no_other_caller() {
    let policy = policy().build().unwrap();
    let (there, clock) = (there(&policy), ManualClock::default());
    let mut at = at(&policy, &there, &clock);
    let mut call = Call::new(&at);
    start(&mut call, &mut at);
    call.failed(&mut at, &Failure::ambiguous());
    start(&mut call, &mut at);
    let in_progress = Failure::permanent()
        .hint(Hint::after(SECOND))
        .as_if_in_progress(true);
    let decision = call.failed(&mut at, &in_progress);
    assert!(matches!(decision, Decision::Retry { .. }), "{decision:?}");
    assert!(!there.cooldown().has_begun());
}

/// A queued request that runs out of its last milliseconds is no evidence about the destination. If it
/// counted as a timeout, the breaker would release others more slowly, until they had only milliseconds
/// left too.
#[test]
fn an_attempt_without_enough_time_is_no_timeout_for_the_breaker() {
    for (left, closes) in [(10, false), (499, false), (500, true), (1000, true)] {
        let policy = Policy::STANDARD.clone().into_builder().deadline(SECOND);
        let policy = policy.build().unwrap();
        let (there, clock) = (there(&policy), ManualClock::default());
        let mut at = at(&policy, &there, &clock);
        let left = Duration::from_millis(left);
        for _ in 0..40 {
            clock.advance(SECOND);
            let begun = Instant::from_nanos(clock.nanos.get());
            clock.advance(SECOND - left);
            let mut call = Call::begun(begun, &at);
            if let Some(permit) = call.next(&mut at, None).permit() {
                call.begin(&mut at, permit);
                clock.advance(left);
                call.failed(&mut at, &Failure::ambiguous().cause(Cause::Timeout));
            } else {
                call.leave(&at);
            }
        }
        let access = there.access();
        let closed = access.turn(|outbound, _| outbound.circuit_breaker().unwrap().is_down());
        assert_eq!(closed, closes, "{left:?}");
    }
}

#[test]
fn a_call_takes_at_most_112_bytes() {
    assert!(size_of::<Call<'_>>() <= 112);
}

/// The breaker receives a response, and nothing if the call goes away.
#[test]
fn a_running_attempt_ends_at_its_destination_once() {
    let policy = Policy::STANDARD;
    let (there, clock) = (there(policy), ManualClock::default());
    let mut at = at(policy, &there, &clock);
    let mut call = Call::new(&at);
    start(&mut call, &mut at);
    assert!(call.holds());
    call.succeeded(&mut at);
    assert!(!call.holds());
    call.end_stage(&at, &AttemptOutcome::UNKNOWN);
    assert!(!call.holds());
}

/// Without admission a call has no id at the destination until a cooldown begins.
#[test]
fn calls_without_admission_get_their_own_ids_when_a_cooldown_begins() {
    let policy = policy().build().unwrap();
    let (there, clock) = (there(&policy), ManualClock::default());
    let busy = Failure::throttled().hint(Hint::after(4 * SECOND));
    let calls = [(); 3].map(|()| {
        let mut at = at(&policy, &there, &clock);
        let mut call = Call::new(&at);
        start(&mut call, &mut at);
        (call, at)
    });
    let calls = calls.map(|(mut call, mut at)| {
        call.failed(&mut at, &busy);
        assert!(matches!(call.next(&mut at, None), NextStep::Wait { .. }));
        (call, at)
    });
    let waiting = || there.access().turn(|outbound, _| outbound.waiting());
    assert_eq!(waiting(), 3);
    for (mut call, at) in calls {
        call.leave(&at);
    }
    assert_eq!(waiting(), 0);
}

/// A policy that reproduces a system without hints holds no other caller, either.
#[test]
fn a_policy_that_ignores_hints_starts_no_cooldown() {
    let busy = Failure::throttled().hint(Hint::after(4 * SECOND));
    for mode in [HintMode::Floor, HintMode::Ignore] {
        let own = policy().hint(mode).build().unwrap();
        let (there, clock) = (there(&own), ManualClock::default());
        let mut at = at(&own, &there, &clock);
        let mut call = Call::new(&at);
        start(&mut call, &mut at);
        call.failed(&mut at, &busy);
        let ignores = mode == HintMode::Ignore;
        assert_eq!(there.cooldown().is_running(at.now()), !ignores);
        assert_eq!(there.needs_no_admission(), ignores);
        call.leave(&at);
        // A reload with such a policy ends a running cooldown.
        let ignoring = policy().hint(HintMode::Ignore).build().unwrap();
        there.set_policy(at.now(), &ignoring, || {});
        assert!(!there.cooldown().is_running(at.now()));
    }
}

/// The deadline of the caller changes while it waits.
#[test]
fn a_queued_request_is_identified_by_its_first_deadline() {
    let policy = policy()
        .circuit_breaker(crate::CircuitBreakerConfig::DEFAULT)
        .build()
        .unwrap();
    let (there, clock) = (there(&policy), ManualClock::default());
    clock.advance(SECOND * 100_000);
    let mut at = at(&policy, &there, &clock);
    loop {
        let mut call = Call::new(&at);
        match call.next(&mut at, None) {
            NextStep::Start(permit) => {
                call.begin(&mut at, permit);
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
    let queued = || there.access().0.borrow().queued_while_down();
    let mut call = Call::new(&at);
    for (asks, more) in (0..3).zip([10, 20, 5]) {
        let now = Instant::from_nanos(clock.nanos.get());
        at.answer_by.set(now.saturating_add(more * SECOND));
        assert!(matches!(call.next(&mut at, None), NextStep::Wait { .. }));
        assert_eq!(queued(), 1, "{asks}");
        clock.advance(SECOND / 100);
    }
    call.leave(&at);
    assert_eq!((queued(), there.access().0.borrow().waiting()), (0, 0));
}
