//! Tests of single rules of admission; a [model](model) tests all of them together.

mod clock_jump;
mod late_first_attempt;
mod model;
mod reload;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::call::stop::{Stop, StopReason};
use crate::destination::circuit_breaker::{AttemptKind, CircuitBreakerConfig};
use crate::destination::rate_limit::RateLimitConfig;
use crate::failure::Failure;
use crate::hint::{Audience, Hint};
use crate::policy::backoff::Backoff;
use crate::random::FixedRandom;

const MILLI: u64 = 1_000_000;
const MOST: Duration = Duration::from_secs(300);

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * MILLI)
}

/// One destination, as a driver uses it.
struct TestDestination {
    outbound: Outbound,
    cooldown: Cooldown,
    random: FixedRandom,
    callers: u64,
}

impl TestDestination {
    fn new(circuit_breaker: bool, rate: Option<RateLimitConfig>) -> Self {
        let mut policy = Policy::builder(Backoff::None);
        if circuit_breaker {
            policy = policy.circuit_breaker(CircuitBreakerConfig::DEFAULT);
        }
        if let Some(rate) = rate {
            policy = policy.rate_limit(rate);
        }
        Self {
            outbound: Outbound::new(&policy.build().unwrap()),
            cooldown: Cooldown::new(),
            random: FixedRandom::at(0.5),
            callers: 0,
        }
    }

    /// With a rate limit of so many per second, and this burst.
    fn paced(limit: f64, burst: u32) -> Self {
        Self::new(false, Some(rate(limit, burst)))
    }

    /// With a breaker that has just gone down, and the time of that.
    fn closed() -> (Self, Instant) {
        let mut there = Self::new(true, None);
        let now = there.close();
        (there, now)
    }

    fn close(&mut self) -> Instant {
        let mut now = at(20_000);
        while !self.outbound.circuit_breaker().unwrap().is_down() {
            now = now.plus_nanos(50 * MILLI);
            let caller = self.caller(now);
            let permit = starts(self.ask(now, &caller));
            self.ended(now, permit, BreakerOutcome::Failed);
        }
        now
    }

    fn caller(&mut self, now: Instant) -> AdmissionRequest {
        self.outbound.on_request_unthrottled(now);
        self.callers += 1;
        AdmissionRequest {
            id: self.callers - 1,
            since: now,
            last_start: Instant::MAX,
            answer_by: Instant::MAX,
            longest: MOST,
            jitter: 1.0,
            kind: AttemptKind::First,
            waits_without_limit: false,
            rate_limit_only: false,
            may_wait: true,
        }
    }

    fn ask(&mut self, now: Instant, request: &AdmissionRequest) -> Admission {
        self.outbound
            .admit(now, request, &self.cooldown, &mut self.random)
    }

    fn again(&mut self, now: Instant, request: &AdmissionRequest) -> Admission {
        self.outbound
            .admit_again(now, request, &self.cooldown, &mut self.random)
    }

    fn ended(&mut self, now: Instant, permit: Permit, ended: BreakerOutcome) {
        let outcome = AttemptOutcome::only(ended);
        self.outbound
            .end(now, permit, &outcome, &self.cooldown, &mut self.random);
    }

    fn failed(&mut self, now: Instant, permit: Permit, failure: &Failure) {
        let outcome = AttemptOutcome::of(failure);
        self.outbound
            .end(now, permit, &outcome, &self.cooldown, &mut self.random);
    }

    /// Whether the `Retry-After` of this failure applies to its caller alone.
    fn applies_to_one_caller(&mut self, now: Instant, failure: &Failure) -> bool {
        let request = AttemptOutcome::of(failure).cooldown.unwrap();
        self.outbound.applies_to_one_caller(now, &request)
    }

    fn leave(&mut self, now: Instant, request: &AdmissionRequest) {
        let caller = request.waiter();
        self.outbound
            .leave(now, &caller, &self.cooldown, &mut self.random);
    }

    fn blocked_by(&self, request: &AdmissionRequest) -> Option<BlockedBy> {
        self.outbound.blocked_by(&request.waiter())
    }

    fn hedges(&mut self, now: Instant) -> bool {
        self.outbound.try_hedge(now, &self.cooldown).is_some()
    }

    /// Starts a cooldown of this length.
    fn cool(&mut self, now: Instant, millis: u64) {
        let hint = Hint::after(Duration::from_millis(millis));
        let failure = Failure::throttled().hint(hint);
        self.cooldown.on_failure(now, &failure, MOST);
    }

    /// A new caller that has to wait, and the end of its wait.
    fn waits(&mut self, now: Instant) -> (AdmissionRequest, Instant) {
        let request = self.caller(now);
        let until = waits(self.ask(now, &request));
        (request, until)
    }
}

fn rate(limit: f64, burst: u32) -> RateLimitConfig {
    RateLimitConfig {
        burst: Some(burst),
        ..RateLimitConfig::new(limit)
    }
}

fn starts(answer: Admission) -> Permit {
    match answer {
        Admission::Start(permit) => permit,
        other => panic!("{other:?}"),
    }
}

fn waits(answer: Admission) -> Instant {
    match answer {
        Admission::Wait(until, _) => until,
        other => panic!("{other:?}"),
    }
}

fn stops(answer: Admission) -> Stop {
    match answer {
        Admission::Stop(stop) => stop,
        other => panic!("{other:?}"),
    }
}

#[test]
fn callers_are_served_in_order_of_arrival() {
    let mut there = TestDestination::paced(10.0, 2);
    for _ in 0..2 {
        let caller = there.caller(at(0));
        let _permit = starts(there.ask(at(0), &caller));
    }
    let waiting: Vec<_> = (0..3).map(|_| there.waits(at(0))).collect();
    assert_eq!(waiting[0].1, at(100));
    // A slot is free, but a caller that comes now does not get it.
    let (late, _) = there.waits(at(100));
    for (index, (caller, _)) in waiting.iter().enumerate() {
        let now = at(100 + 100 * index as u64);
        assert!(there.blocked_by(&late).is_some());
        let _permit = starts(there.again(now, caller));
    }
    let _permit = starts(there.again(at(400), &late));
    assert_eq!(there.outbound.waiting(), 0);
}

#[test]
fn a_caller_that_may_not_wait_joins_no_queue_and_delays_no_other() {
    let mut paced = TestDestination::paced(10.0, 1);
    let first = paced.caller(at(0));
    let _permit = starts(paced.ask(at(0), &first));
    let mut cooled = TestDestination::new(true, None);
    cooled.cool(at(0), 100);
    let (down, since) = TestDestination::closed();
    for (mut there, now, is_later) in [
        (paced, at(0), true),
        (cooled, at(0), true),
        (down, since, false),
    ] {
        let stop = |there: &mut TestDestination| {
            let caller = AdmissionRequest {
                may_wait: false,
                ..there.caller(now)
            };
            stops(there.ask(now, &caller))
        };
        let first = stop(&mut there);
        let reason = match is_later {
            true => StopReason::RetryLater,
            false => StopReason::CircuitBreaker,
        };
        assert_eq!((first.reason, first.retry_at.is_some()), (reason, is_later));
        assert_eq!(there.outbound.waiting(), 0, "{reason}");
        assert!(there.outbound.take_woken().is_empty(), "{reason}");
        // The next caller waits as if it were the first, and those after it get no later time because of the others.
        let (waiting, until) = there.waits(now);
        let behind = stop(&mut there);
        assert_eq!(there.outbound.waiting(), 1, "{reason}");
        assert_eq!(stop(&mut there), behind);
        assert_eq!(waits(there.again(now, &waiting)), until, "{reason}");
    }
}

#[test]
fn an_offer_is_not_taken_during_a_cooldown_that_began_later() {
    let mut there = TestDestination::paced(10.0, 1);
    let first = there.caller(at(0));
    let _permit = starts(there.ask(at(0), &first));
    let (second, _) = there.waits(at(0));
    let (third, _) = there.waits(at(0));
    // Another caller requests admission when the slot becomes free, and is late itself.
    waits(there.again(at(100), &third));
    there.cool(at(110), 5000);
    assert!(waits(there.again(at(120), &second)) >= at(5110));
    assert_eq!(there.blocked_by(&second), Some(BlockedBy::Cooldown));
    let _permit = starts(there.again(at(10_200), &second));
}

#[test]
fn a_caller_that_cannot_be_served_in_time_is_rejected_immediately() {
    let mut there = TestDestination::paced(10.0, 1);
    let caller = there.caller(at(0));
    let _permit = starts(there.ask(at(0), &caller));
    for (last_start, slot) in [(100, None), (199, Some(200)), (200, None)] {
        let caller = AdmissionRequest {
            last_start: at(last_start),
            ..there.caller(at(0))
        };
        let answer = there.ask(at(0), &caller);
        match slot {
            None => drop(waits(answer)),
            Some(slot) => {
                let stop = stops(answer);
                assert_eq!(stop.reason, StopReason::RetryLater);
                assert_eq!(stop.retry_at, Some(at(slot)));
            }
        }
    }
    assert_eq!(there.outbound.held_by_rate_limit(), 2);
}

#[test]
fn no_caller_is_rejected_for_a_rate_cut_that_may_end_in_time() {
    let mut there = TestDestination::new(false, Some(RateLimitConfig::ADAPTIVE));
    for millis in (0..1000).step_by(10) {
        let caller = there.caller(at(millis));
        let permit = starts(there.ask(at(millis), &caller));
        there.ended(at(millis + 1), permit, BreakerOutcome::Answered);
    }
    for millis in 1000..1008 {
        let failure = Failure::throttled();
        let outcome = AttemptOutcome::of(&failure);
        there.outbound.adapt_rate(at(millis), at(millis), &outcome);
    }
    let limit = there.outbound.rate_limit_mut().unwrap().limit(at(1008));
    let regained = limit.unwrap() / 0.7;
    let caller = AdmissionRequest {
        last_start: at(1008 + (1500.0 / regained) as u64),
        ..there.caller(at(1008))
    };
    waits(there.ask(at(1008), &caller));
}

#[test]
fn the_slot_of_a_caller_that_leaves_goes_to_the_next() {
    let mut there = TestDestination::paced(10.0, 1);
    let caller = there.caller(at(0));
    let _permit = starts(there.ask(at(0), &caller));
    let ((first, _), (second, _)) = (there.waits(at(0)), there.waits(at(0)));
    there.leave(at(50), &first);
    assert_eq!(there.outbound.take_woken(), [second.id], "it has the timer");
    assert_eq!(waits(there.again(at(50), &second)), at(100));
    let permit = starts(there.again(at(100), &second));
    let (random, cooldown) = (&mut FixedRandom::at(0.5), &there.cooldown);
    there.outbound.cancel(at(100), permit, cooldown, random);
    let caller = there.caller(at(120));
    let _permit = starts(there.ask(at(120), &caller));
}

#[test]
fn requests_released_by_the_breaker_go_before_those_queued_for_a_slot() {
    let mut there = TestDestination::new(true, Some(rate(10.0, 100)));
    let closed = there.close();
    let (in_breaker, _) = there.waits(closed);
    let mut probe = None;
    let mut millis = closed.as_nanos() / MILLI;
    while probe.is_none() {
        millis += 100;
        if let Admission::Start(permit) = there.again(at(millis), &in_breaker) {
            probe = Some(permit);
        }
    }
    let (in_breaker, _) = there.waits(at(millis));
    there.ended(at(millis + 1), probe.unwrap(), BreakerOutcome::Answered);
    // New requests go immediately while the breaker is limited, and use up the slots.
    let queued = loop {
        let caller = there.caller(at(millis + 1));
        match there.ask(at(millis + 1), &caller) {
            Admission::Start(_permit) => {}
            answer => break (waits(answer), caller).1,
        }
    };
    assert_eq!(there.blocked_by(&queued), Some(BlockedBy::RateLimit));
    assert_eq!(
        there.blocked_by(&in_breaker),
        Some(BlockedBy::CircuitBreaker)
    );
    let served = loop {
        millis += 100;
        let mut woken = Vec::new();
        there
            .outbound
            .settle(at(millis), &there.cooldown, &mut there.random);
        woken.extend(there.outbound.take_woken());
        for id in woken {
            let who = if id == in_breaker.id {
                &in_breaker
            } else {
                &queued
            };
            if let Admission::Start(_permit) = there.again(at(millis), who) {
                break;
            }
        }
        if there.blocked_by(&queued).is_none() {
            break there.outbound.waiting();
        }
    };
    // One slot each 100 ms: the caller that goes first leaves the other waiting or alone.
    assert!(served <= 1);
}

/// For each kind of waiting caller: for a slot, at the breaker, for the end of another cooldown.
#[test]
fn a_cooldown_also_holds_callers_that_wait_already() {
    let mut there = TestDestination::paced(10.0, 1);
    let caller = there.caller(at(0));
    let _permit = starts(there.ask(at(0), &caller));
    let (queued, until) = there.waits(at(0));
    there.cool(at(50), 60_000);
    assert!(waits(there.again(until, &queued)) >= at(60_050));
    let (held, until) = there.waits(at(200));
    there.cool(at(10_000), 120_000);
    let longer = waits(there.again(until, &held));
    assert!(longer >= at(130_000), "{longer:?}");

    let (mut there, now) = TestDestination::closed();
    let (in_breaker, until) = there.waits(now);
    there.cool(now, 60_000);
    // Its timer was set before.
    waits(there.again(until, &in_breaker));
    let over = now.plus_nanos(60_000 * MILLI);
    waits(there.again(Instant::from_nanos(over.as_nanos() - 1), &in_breaker));
    let probe = starts(there.again(over, &in_breaker));
    assert!(probe.is_probe());
}

#[test]
fn a_waiting_caller_stops_when_a_cooldown_exceeds_its_limit() {
    let mut there = TestDestination::paced(10.0, 1);
    let caller = there.caller(at(0));
    let _permit = starts(there.ask(at(0), &caller));
    let caller = AdmissionRequest {
        last_start: at(10_000),
        ..there.caller(at(0))
    };
    let until = waits(there.ask(at(0), &caller));
    there.cool(at(50), 60_000);
    let stop = stops(there.again(until, &caller));
    assert_eq!(stop.reason, StopReason::RetryLater);
    assert_eq!(stop.retry_at, Some(at(60_050)));
    assert_eq!(there.outbound.waiting(), 0);
}

#[test]
fn no_hedge_starts_while_a_cooldown_runs_or_a_caller_waits() {
    let mut there = TestDestination::paced(10.0, 2);
    assert!(there.hedges(at(0)));
    there.cool(at(0), 1000);
    assert!(!there.hedges(at(500)));
    assert!(there.hedges(at(1000)));
    let caller = there.caller(at(1000));
    let _permit = starts(there.ask(at(1000), &caller));
    there.waits(at(1000));
    assert!(!there.hedges(at(1100)));
}

/// Without this rule, 1,000 probes in 10 s reached a destination that was down.
#[test]
fn retry_after_to_a_probe_lets_no_other_probe_go_earlier() {
    let told = |audience| {
        let hint = Hint::after(Duration::from_secs(10)).for_audience(audience);
        Failure::throttled().hint(hint)
    };
    // For all callers it is a cooldown. For one, others probe at the old rate of one in ten requests.
    for (audience, most) in [(Audience::Shared, 1), (Audience::TicketMillis, 100)] {
        let (mut there, mut now) = TestDestination::closed();
        let mut probes = 0;
        let until = now.plus_nanos(10_000 * MILLI);
        while now < until {
            let caller = there.caller(now);
            match there.ask(now, &caller) {
                Admission::Start(permit) => {
                    probes += 1;
                    let failure = told(audience);
                    there.cooldown.on_failure(now, &failure, MOST);
                    there.failed(now, permit, &failure);
                }
                _ => there.leave(now, &caller),
            }
            now = now.plus_nanos(10 * MILLI);
        }
        assert!((1..=most).contains(&probes), "{audience:?}: {probes}");
    }
}

#[test]
fn an_expired_offer_goes_to_the_next_caller() {
    let mut there = TestDestination::paced(10.0, 1);
    let caller = there.caller(at(0));
    let _permit = starts(there.ask(at(0), &caller));
    let ((asleep, _), (next, until)) = (there.waits(at(0)), there.waits(at(0)));
    assert_eq!(until, at(200), "its own slot, if all before it take theirs");
    // The first is the leader and does not come. At its own slot the next caller finds the offer, and
    // has it a tenth of a second later.
    let until = waits(there.again(at(200), &next));
    assert_eq!(until, at(300));
    let _permit = starts(there.again(at(300), &next));
    // The sleeping caller joins the queue again when it requests admission.
    assert_eq!(waits(there.again(at(300), &asleep)), at(400));
    let _permit = starts(there.again(at(400), &asleep));
}

#[test]
fn no_timer_remains_for_an_offer_that_was_taken_or_abandoned() {
    for taken in [true, false] {
        let mut there = TestDestination::paced(1.0, 1);
        let caller = there.caller(at(0));
        let _permit = starts(there.ask(at(0), &caller));
        let [first, second, third] = [(); 3].map(|()| there.waits(at(0)).0);
        // The slot of the first comes, and another caller requests admission: it would do so again when
        // the offer ends.
        assert_eq!(waits(there.again(at(1000), &third)), at(1100));
        let next = if taken {
            let _permit = starts(there.again(at(1020), &first));
            at(2000)
        } else {
            there.leave(at(1020), &first);
            // Its offer goes to the next caller, with a new slot.
            let _permit = starts(there.again(at(1020), &second));
            at(2020)
        };
        assert_eq!(there.outbound.due(), Some(next));
        assert_eq!(waits(there.again(at(1030), &third)), next);
    }
}

/// Slots may be far apart, and callers ahead may be futures that are not polled.
#[test]
fn a_caller_passes_sleeping_callers_ahead_within_two_seconds() {
    let mut there = TestDestination::paced(0.1, 1);
    let caller = there.caller(at(0));
    let _permit = starts(there.ask(at(0), &caller));
    let asleep: Vec<_> = (0..3).map(|_| there.waits(at(0)).0.id).collect();
    let (awake, mut until) = there.waits(at(0));
    let permit = loop {
        match there.again(until, &awake) {
            Admission::Start(permit) => break permit,
            answer => until = waits(answer),
        }
    };
    // Its own slot, if all before it took theirs, would be at 40 s.
    let slot = at(10_000);
    assert!(permit.started() >= slot);
    assert!(
        permit.started() < slot.plus_nanos(2000 * MILLI),
        "{permit:?}"
    );
    assert_eq!(there.outbound.waiting(), asleep.len());
}

/// The fallback timers of many callers must not cause a storm.
#[test]
fn fallback_timers_of_a_long_queue_fire_at_most_a_thousand_times_a_second() {
    for limit in [0.1, 1.0, 100.0, 2000.0] {
        let mut there = TestDestination::paced(limit, 1);
        let caller = there.caller(at(0));
        let _permit = starts(there.ask(at(0), &caller));
        let mut looks = BTreeSet::new();
        let mut callers = BTreeMap::new();
        for _ in 0..100_000 {
            let caller = AdmissionRequest {
                longest: Duration::MAX,
                ..there.caller(at(0))
            };
            let until = waits(there.ask(at(0), &caller));
            looks.insert((until, caller.id));
            callers.insert(caller.id, (caller, until));
        }
        let mut count = 0;
        let mut went = 0;
        while let Some((now, id)) = looks.pop_first().filter(|(now, _)| *now < at(20_000)) {
            let mut asks = Vec::from([id]);
            while let Some(id) = asks.pop() {
                count += 1;
                let (caller, until) = &mut callers.get_mut(&id).unwrap();
                looks.remove(&(*until, id));
                match there.again(now, caller) {
                    Admission::Start(_permit) => went += 1,
                    answer => {
                        *until = waits(answer);
                        looks.insert((*until, id));
                    }
                }
                asks.extend(there.outbound.take_woken());
            }
        }
        assert!(went >= (20.0 * limit) as u64 - 1, "{went} at {limit}/s");
        // Two requests for each caller that starts, and the fallback timers.
        let most = 2 * went + 20 * 1000;
        assert!(count <= most, "{count} looks at {limit}/s, {went} went");
        // If slots follow quickly, no caller requests admission before its own.
        assert!(limit < 100.0 || count <= 2 * went + 2, "{count} looks");
    }
}

#[test]
fn the_timer_passes_to_another_caller_when_the_leader_leaves() {
    let (mut there, now) = TestDestination::closed();
    let ((keeper, due), (other, later)) = (there.waits(now), there.waits(now));
    assert!(
        later > due,
        "it is woken before, and looks after itself if not"
    );
    let now = now.plus_nanos(100 * MILLI);
    there.leave(now, &keeper);
    assert_eq!(there.outbound.take_woken(), [other.id]);
    let until = waits(there.again(now, &other));
    assert!(until < later);
    assert!(starts(there.again(until, &other)).is_probe());
}

/// It may leave without notice, so that no clock is read for it.
#[test]
fn a_caller_held_by_a_cooldown_is_never_the_leader() {
    let (mut there, now) = TestDestination::closed();
    there.cool(now, 1000);
    let (held, until) = there.waits(now);
    let later = now.plus_nanos(1100 * MILLI);
    let caller = there.caller(later);
    let _probe = starts(there.ask(later, &caller));
    // The cooldown is over, and the held caller still has its jitter.
    let (_, due) = there.waits(later);
    assert_eq!(
        due, until,
        "it has the timer, and what comes next is the held one's turn"
    );
    assert!(there.outbound.remove_held(held.id));
    assert_eq!(there.outbound.waiting(), 1);
}

#[test]
fn all_due_slots_are_offered_together() {
    let mut there = TestDestination::paced(1000.0, 1);
    let caller = there.caller(at(0));
    let _permit = starts(there.ask(at(0), &caller));
    let waiting: Vec<_> = (0..50).map(|_| there.waits(at(0)).0).collect();
    // The leader's timer is 20 ms late; a bucket of that size releases as many.
    there.outbound = {
        let mut outbound = core::mem::take(&mut there.outbound);
        outbound = outbound.with_rate_limit(RateLimit::new(&rate(1000.0, 20)).unwrap());
        outbound
    };
    let _permit = starts(there.again(at(20), &waiting[0]));
    let woken = there.outbound.take_woken();
    assert_eq!(
        woken.len(),
        20,
        "{woken:?}: 19 offers, and who has the timer now"
    );
}

#[test]
fn a_late_timer_starts_no_attempt_after_last_start() {
    let mut there = TestDestination::paced(10.0, 1);
    let caller = there.caller(at(0));
    let _permit = starts(there.ask(at(0), &caller));
    let caller = AdmissionRequest {
        last_start: at(150),
        ..there.caller(at(0))
    };
    waits(there.ask(at(0), &caller));
    let answer = there.again(at(151), &caller);
    assert!(matches!(answer, Admission::TooLate), "{answer:?}");
    assert_eq!(there.outbound.waiting(), 0);
    let caller = there.caller(at(151));
    let _permit = starts(there.ask(at(151), &caller));
}

/// A caller with changed limits is still the same caller.
#[test]
fn later_changes_of_a_caller_leave_no_stale_entry_at_the_breaker() {
    let (mut there, now) = TestDestination::closed();
    let (caller, _) = there.waits(now);
    let other = AdmissionRequest {
        last_start: at(90_000),
        longest: Duration::ZERO,
        kind: AttemptKind::FundedRetry,
        ..caller
    };
    let now = now.plus_nanos(MILLI);
    waits(there.again(now, &other));
    assert_eq!(there.outbound.queued_while_down(), 1);
    there.leave(now, &other);
    assert_eq!(
        (there.outbound.queued_while_down(), there.outbound.waiting()),
        (0, 0)
    );
}

/// Such as an endpoint task of the outbox, without a waiting client.
#[test]
fn an_unlimited_waiter_exceeds_the_max_queue_time_without_a_late_attempt() {
    let (mut there, mut now) = TestDestination::closed();
    let request = AdmissionRequest {
        waits_without_limit: true,
        ..there.caller(now)
    };
    let mut answer = there.ask(now, &request);
    let patience = 2 * CircuitBreakerConfig::DEFAULT.max_queue_time;
    let last = now.saturating_add(patience);
    let mut probes = 0;
    while now < last {
        match answer {
            Admission::Start(permit) => {
                assert!(permit.is_probe(), "{permit:?}");
                probes += 1;
                there.ended(now, permit, BreakerOutcome::Failed);
                answer = there.ask(now, &request);
            }
            Admission::Wait(until, BlockedBy::CircuitBreaker) => {
                // Another request is the probe.
                let caller = there.caller(until);
                if let Admission::Start(permit) = there.ask(until, &caller) {
                    there.ended(until, permit, BreakerOutcome::Failed);
                } else {
                    there.leave(until, &caller);
                }
                now = until;
                answer = there.again(now, &request);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(probes > 0);
}

/// `max_elapsed` limits when an attempt starts, not when its response arrives.
#[test]
fn a_queued_caller_goes_until_its_last_start_however_slow_responses_are() {
    let (mut there, closed) = TestDestination::closed();
    let now = closed.plus_nanos(30_000 * MILLI);
    let caller = there.caller(now);
    let probe = starts(there.ask(now, &caller));
    there.ended(now, probe, BreakerOutcome::Answered);
    let slow: Vec<_> = (0..20)
        .map(|_| {
            let caller = there.caller(now);
            starts(there.ask(now, &caller))
        })
        .collect();
    let later = now.plus_nanos(100_000 * MILLI);
    for permit in slow {
        there.ended(later, permit, BreakerOutcome::Answered);
    }
    let retry = AdmissionRequest {
        kind: AttemptKind::FundedRetry,
        last_start: later.plus_nanos(90_000 * MILLI),
        ..there.caller(later)
    };
    let mut answer = there.ask(later, &retry);
    while let Admission::Wait(until, _) = answer {
        answer = there.again(until, &retry);
    }
    let started = starts(answer).started();
    assert!(started <= retry.last_start, "{started:?}");
}

#[test]
fn with_retries_off_only_the_rate_limit_applies() {
    let mut there = TestDestination::new(true, Some(rate(10.0, 10)));
    let now = there.close();
    there.cool(now, 60_000);
    let caller = AdmissionRequest {
        rate_limit_only: true,
        ..there.caller(now)
    };
    let _permit = starts(there.ask(now, &caller));
}

proptest! {
    /// If no caller leaves, each one that requests admission at its time gets its slot then: none
    /// starves, and no slot stays unused.
    #[test]
    fn every_caller_is_served_at_its_announced_time(count in 1..60_u64, limit in 20.0..1000.0_f64, burst in 1..5_u32) {
        let mut there = TestDestination::paced(limit, burst);
        for _ in 0..burst {
            let caller = there.caller(at(0));
            let _permit = starts(there.ask(at(0), &caller));
        }
        let interval = libm::ceil(1e9 / limit) as u64;
        let waiting: Vec<_> = (0..count).map(|_| there.waits(at(0)).0).collect();
        for (number, caller) in (1..).zip(&waiting) {
            let slot = Instant::from_nanos(number * interval);
            let early = Instant::from_nanos(slot.as_nanos() - 1);
            prop_assert!(matches!(there.again(early, caller), Admission::Wait(..)));
            let _permit = starts(there.again(slot, caller));
        }
        prop_assert_eq!(there.outbound.waiting(), 0);
    }
}

/// A held caller has only its own timer, so it needs the end of its hold.
#[test]
fn a_queued_caller_learns_that_a_cooldown_holds_it() {
    let mut there = TestDestination::paced(1.0, 1);
    let first = there.caller(at(0));
    let permit = starts(there.ask(at(0), &first));
    let [one, other] = [0, 0].map(|millis| there.caller(at(millis)));
    assert_eq!(waits(there.ask(at(0), &one)), at(1000));
    waits(there.ask(at(0), &other));
    there.cool(at(500), 10_000);
    there.ended(at(500), permit, BreakerOutcome::Deferred);
    // The slot of one comes, and no caller goes.
    let until = waits(there.again(at(1000), &one));
    assert!(until > at(10_500), "{until:?}");
    assert_eq!(there.outbound.take_woken(), [one.id, other.id]);
    let until = waits(there.again(at(1000), &other));
    assert!(until > at(10_500), "{until:?}");
}

/// A process may have very many destinations, and a simulation mostly reads one that is not cached.
#[test]
fn the_outbound_takes_at_most_752_bytes() {
    let bytes = size_of::<Outbound>();
    assert!(bytes <= 752, "{bytes}");
}
