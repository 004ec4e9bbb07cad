//! Tests of single rules of admission; a [model](model) tests all of them together.

mod clock_jump;
mod last_chance;
mod model;
mod reload;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::backoff::Backoff;
use crate::decision::{Stop, StopReason};
use crate::gate::{Claim, GateConfig};
use crate::hint::{Audience, Hint};
use crate::random::Draw;
use crate::request_rate::RequestRateConfig;

const MILLI: u64 = 1_000_000;
const MOST: Duration = Duration::from_secs(300);

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * MILLI)
}

/// One destination, as a driver uses it.
struct There {
    outbound: Outbound,
    cooldown: Cooldown,
    random: Draw,
    callers: u64,
}

impl There {
    fn new(gate: bool, rate: Option<RequestRateConfig>) -> Self {
        let mut policy = Policy::builder(Backoff::None);
        if gate {
            policy = policy.gate(GateConfig::DEFAULT);
        }
        if let Some(rate) = rate {
            policy = policy.request_rate(rate);
        }
        Self {
            outbound: Outbound::new(&policy.build().unwrap()),
            cooldown: Cooldown::new(),
            random: Draw::at(0.5),
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
        while !self.outbound.gate().unwrap().is_closed() {
            now = later_by(now, 50 * MILLI);
            let caller = self.caller(now);
            let permit = starts(self.ask(now, &caller));
            self.ended(now, permit, Ended::Failed);
        }
        now
    }

    fn caller(&mut self, now: Instant) -> Asking {
        self.outbound.on_request_unthrottled(now);
        self.callers += 1;
        Asking {
            id: self.callers - 1,
            since: now,
            last_start: Instant::MAX,
            answer_by: Instant::MAX,
            longest: MOST,
            spread: 1.0,
            claim: Claim::First,
            stays: false,
            paced_only: false,
        }
    }

    fn ask(&mut self, now: Instant, asking: &Asking) -> Answer {
        self.outbound
            .ask(now, asking, &self.cooldown, &mut self.random)
    }

    fn again(&mut self, now: Instant, asking: &Asking) -> Answer {
        self.outbound
            .ask_again(now, asking, &self.cooldown, &mut self.random)
    }

    fn ended(&mut self, now: Instant, permit: Permit, ended: Ended) {
        self.outbound
            .ended(now, permit, ended, &self.cooldown, &mut self.random);
    }

    fn leave(&mut self, now: Instant, asking: &Asking) {
        let caller = asking.caller();
        self.outbound
            .leave(now, &caller, &self.cooldown, &mut self.random);
    }

    fn holding(&self, asking: &Asking) -> Option<Holding> {
        self.outbound.holding(&asking.caller())
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
    fn waits(&mut self, now: Instant) -> (Asking, Instant) {
        let asking = self.caller(now);
        let until = waits(self.ask(now, &asking));
        (asking, until)
    }
}

fn rate(limit: f64, burst: u32) -> RequestRateConfig {
    RequestRateConfig {
        burst: Some(burst),
        ..RequestRateConfig::new(limit)
    }
}

fn starts(answer: Answer) -> Permit {
    match answer {
        Answer::Start(permit) => permit,
        other => panic!("{other:?}"),
    }
}

fn waits(answer: Answer) -> Instant {
    match answer {
        Answer::Wait(until, _) => until,
        other => panic!("{other:?}"),
    }
}

fn stops(answer: Answer) -> Stop {
    match answer {
        Answer::Stop(stop) => stop,
        other => panic!("{other:?}"),
    }
}

#[test]
fn callers_are_served_in_the_order_in_which_they_asked() {
    let mut there = There::paced(10.0, 2);
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
        assert!(there.holding(&late).is_some());
        let _permit = starts(there.again(now, caller));
    }
    let _permit = starts(there.again(at(400), &late));
    assert_eq!(there.outbound.waiting(), 0);
}

#[test]
fn rule_4_an_offer_is_not_taken_during_a_cooldown_that_has_begun_since() {
    let mut there = There::paced(10.0, 1);
    let first = there.caller(at(0));
    let _permit = starts(there.ask(at(0), &first));
    let (second, _) = there.waits(at(0));
    let (third, _) = there.waits(at(0));
    // Another caller requests admission when the slot becomes free, and is late itself.
    waits(there.again(at(100), &third));
    there.cool(at(110), 5000);
    assert!(waits(there.again(at(120), &second)) >= at(5110));
    assert_eq!(there.holding(&second), Some(Holding::Cooldown));
    let _permit = starts(there.again(at(10_200), &second));
}

#[test]
fn who_could_not_be_served_in_time_is_told_at_once_and_takes_no_place() {
    let mut there = There::paced(10.0, 1);
    let caller = there.caller(at(0));
    let _permit = starts(there.ask(at(0), &caller));
    for (last_start, slot) in [(100, None), (199, Some(200)), (200, None)] {
        let caller = Asking {
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
    assert_eq!(there.outbound.queued(), 2);
}

#[test]
fn nobody_is_turned_away_for_a_cut_that_may_be_over_in_time() {
    let mut there = There::new(false, Some(RequestRateConfig::ADAPTIVE));
    for millis in (0..1000).step_by(10) {
        let caller = there.caller(at(millis));
        let permit = starts(there.ask(at(millis), &caller));
        there.ended(at(millis + 1), permit, Ended::Answered);
    }
    for millis in 1000..1008 {
        let failure = Failure::throttled();
        there.outbound.on_failure(at(millis), at(millis), &failure);
    }
    let limit = there.outbound.request_rate_mut().unwrap().limit(at(1008));
    let regained = limit.unwrap() / 0.7;
    let caller = Asking {
        last_start: at(1008 + (1500.0 / regained) as u64),
        ..there.caller(at(1008))
    };
    waits(there.ask(at(1008), &caller));
}

#[test]
fn rule_12_the_slot_of_a_caller_that_goes_away_is_the_next_ones() {
    let mut there = There::paced(10.0, 1);
    let caller = there.caller(at(0));
    let _permit = starts(there.ask(at(0), &caller));
    let ((first, _), (second, _)) = (there.waits(at(0)), there.waits(at(0)));
    there.leave(at(50), &first);
    assert_eq!(there.outbound.take_woken(), [second.id], "it has the timer");
    assert_eq!(waits(there.again(at(50), &second)), at(100));
    let permit = starts(there.again(at(100), &second));
    let (random, cooldown) = (&mut Draw::at(0.5), &there.cooldown);
    there.outbound.cancel(at(100), permit, cooldown, random);
    let caller = there.caller(at(120));
    let _permit = starts(there.ask(at(120), &caller));
}

#[test]
fn whom_the_gate_lets_go_goes_before_those_who_wait_for_a_slot() {
    let mut there = There::new(true, Some(rate(10.0, 100)));
    let closed = there.close();
    let (parked, _) = there.waits(closed);
    let mut probe = None;
    let mut millis = closed.as_nanos() / MILLI;
    while probe.is_none() {
        millis += 100;
        if let Answer::Start(permit) = there.again(at(millis), &parked) {
            probe = Some(permit);
        }
    }
    let (parked, _) = there.waits(at(millis));
    there.ended(at(millis + 1), probe.unwrap(), Ended::Answered);
    // New requests go immediately while the breaker is limited, and use up the slots.
    let queued = loop {
        let caller = there.caller(at(millis + 1));
        match there.ask(at(millis + 1), &caller) {
            Answer::Start(_permit) => {}
            answer => break (waits(answer), caller).1,
        }
    };
    assert_eq!(there.holding(&queued), Some(Holding::RequestRate));
    assert_eq!(there.holding(&parked), Some(Holding::Gate));
    let served = loop {
        millis += 100;
        let mut woken = Vec::new();
        there
            .outbound
            .settle(at(millis), &there.cooldown, &mut there.random);
        woken.extend(there.outbound.take_woken());
        for id in woken {
            let who = if id == parked.id { &parked } else { &queued };
            if let Answer::Start(_permit) = there.again(at(millis), who) {
                break;
            }
        }
        if there.holding(&queued).is_none() {
            break there.outbound.waiting();
        }
    };
    // One slot each 100 ms: the caller that goes first leaves the other waiting or alone.
    assert!(served <= 1);
}

/// For each kind of waiting caller: for a slot, at the breaker, for the end of another cooldown.
#[test]
fn a_cooldown_holds_those_who_wait_already() {
    let mut there = There::paced(10.0, 1);
    let caller = there.caller(at(0));
    let _permit = starts(there.ask(at(0), &caller));
    let (queued, until) = there.waits(at(0));
    there.cool(at(50), 60_000);
    assert!(waits(there.again(until, &queued)) >= at(60_050));
    let (held, until) = there.waits(at(200));
    there.cool(at(10_000), 120_000);
    let longer = waits(there.again(until, &held));
    assert!(longer >= at(130_000), "{longer:?}");

    let (mut there, now) = There::closed();
    let (parked, until) = there.waits(now);
    there.cool(now, 60_000);
    // Its timer was set before.
    waits(there.again(until, &parked));
    let over = later_by(now, 60_000 * MILLI);
    waits(there.again(Instant::from_nanos(over.as_nanos() - 1), &parked));
    let probe = starts(there.again(over, &parked));
    assert!(probe.is_probe());
}

#[test]
fn whoever_cannot_wait_for_the_end_of_a_cooldown_is_told_so_while_it_waits() {
    let mut there = There::paced(10.0, 1);
    let caller = there.caller(at(0));
    let _permit = starts(there.ask(at(0), &caller));
    let caller = Asking {
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
fn no_hedge_goes_while_a_cooldown_runs_or_somebody_waits() {
    let mut there = There::paced(10.0, 2);
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
fn a_probe_that_is_told_when_to_come_back_lets_no_other_go_before() {
    let told = |audience| {
        let hint = Hint::after(Duration::from_secs(10)).for_audience(audience);
        Failure::throttled().hint(hint)
    };
    // For all callers it is a cooldown. For one, others probe at the old rate of one in ten requests.
    for (audience, most) in [(Audience::Shared, 1), (Audience::TicketMillis, 100)] {
        let (mut there, mut now) = There::closed();
        let mut probes = 0;
        let until = later_by(now, 10_000 * MILLI);
        while now < until {
            let caller = there.caller(now);
            match there.ask(now, &caller) {
                Answer::Start(permit) => {
                    probes += 1;
                    let failure = told(audience);
                    there.cooldown.on_failure(now, &failure, MOST);
                    let ended = there.outbound.on_failure(now, now, &failure);
                    there.ended(now, permit, ended);
                }
                _ => there.leave(now, &caller),
            }
            now = later_by(now, 10 * MILLI);
        }
        assert!((1..=most).contains(&probes), "{audience:?}: {probes}");
    }
}

#[test]
fn an_offer_that_is_not_taken_passes_on() {
    let mut there = There::paced(10.0, 1);
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
fn nobody_looks_when_an_offer_would_have_ended_that_was_taken_or_whose_caller_left() {
    for taken in [true, false] {
        let mut there = There::paced(1.0, 1);
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
fn whoever_queues_behind_some_that_are_asleep_finds_them_out_within_two_seconds() {
    let mut there = There::paced(0.1, 1);
    let caller = there.caller(at(0));
    let _permit = starts(there.ask(at(0), &caller));
    let asleep: Vec<_> = (0..3).map(|_| there.waits(at(0)).0.id).collect();
    let (awake, mut until) = there.waits(at(0));
    let permit = loop {
        match there.again(until, &awake) {
            Answer::Start(permit) => break permit,
            answer => until = waits(answer),
        }
    };
    // Its own slot, if all before it took theirs, would be at 40 s.
    let slot = at(10_000);
    assert!(permit.started() >= slot);
    assert!(
        permit.started() < later_by(slot, 2000 * MILLI),
        "{permit:?}"
    );
    assert_eq!(there.outbound.waiting(), asleep.len());
}

/// The fallback timers of many callers must not cause a storm.
#[test]
fn a_hundred_thousand_that_queue_look_no_more_than_a_thousand_times_a_second() {
    for limit in [0.1, 1.0, 100.0, 2000.0] {
        let mut there = There::paced(limit, 1);
        let caller = there.caller(at(0));
        let _permit = starts(there.ask(at(0), &caller));
        let mut looks = BTreeSet::new();
        let mut callers = BTreeMap::new();
        for _ in 0..100_000 {
            let caller = Asking {
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
                    Answer::Start(_permit) => went += 1,
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
fn the_timer_is_handed_on_when_its_keeper_goes_away() {
    let (mut there, now) = There::closed();
    let ((keeper, due), (other, later)) = (there.waits(now), there.waits(now));
    assert!(
        later > due,
        "it is woken before, and looks after itself if not"
    );
    let now = later_by(now, 100 * MILLI);
    there.leave(now, &keeper);
    assert_eq!(there.outbound.take_woken(), [other.id]);
    let until = waits(there.again(now, &other));
    assert!(until < later);
    assert!(starts(there.again(until, &other)).is_probe());
}

/// It may leave without notice, so that no clock is read for it.
#[test]
fn whom_a_cooldown_holds_keeps_the_timer_of_nobody_else() {
    let (mut there, now) = There::closed();
    there.cool(now, 1000);
    let (held, until) = there.waits(now);
    let later = later_by(now, 1100 * MILLI);
    let caller = there.caller(later);
    let _probe = starts(there.ask(later, &caller));
    // The cooldown is over, and the held caller still has its jitter.
    let (_, due) = there.waits(later);
    assert_eq!(
        due, until,
        "it has the timer, and what comes next is the held one's turn"
    );
    assert!(there.outbound.leave_held(held.id));
    assert_eq!(there.outbound.waiting(), 1);
}

#[test]
fn what_is_due_is_offered_in_one_go() {
    let mut there = There::paced(1000.0, 1);
    let caller = there.caller(at(0));
    let _permit = starts(there.ask(at(0), &caller));
    let waiting: Vec<_> = (0..50).map(|_| there.waits(at(0)).0).collect();
    // The leader's timer is 20 ms late; a bucket of that size releases as many.
    there.outbound = {
        let mut outbound = core::mem::take(&mut there.outbound);
        outbound = outbound.with_request_rate(RequestRate::new(&rate(1000.0, 20)).unwrap());
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
fn a_late_timer_starts_no_attempt_after_the_limit() {
    let mut there = There::paced(10.0, 1);
    let caller = there.caller(at(0));
    let _permit = starts(there.ask(at(0), &caller));
    let caller = Asking {
        last_start: at(150),
        ..there.caller(at(0))
    };
    waits(there.ask(at(0), &caller));
    let answer = there.again(at(151), &caller);
    assert!(matches!(answer, Answer::TooLate), "{answer:?}");
    assert_eq!(there.outbound.waiting(), 0);
    let caller = there.caller(at(151));
    let _permit = starts(there.ask(at(151), &caller));
}

/// A caller with changed limits is still the same caller.
#[test]
fn what_a_caller_says_later_leaves_no_ghost_of_it_at_the_gate() {
    let (mut there, now) = There::closed();
    let (caller, _) = there.waits(now);
    let other = Asking {
        last_start: at(90_000),
        longest: Duration::ZERO,
        claim: Claim::Paid,
        ..caller
    };
    let now = later_by(now, MILLI);
    waits(there.again(now, &other));
    assert_eq!(there.outbound.parked(), 1);
    there.leave(now, &other);
    assert_eq!((there.outbound.parked(), there.outbound.waiting()), (0, 0));
}

/// Such as an endpoint task of the outbox, without a waiting client.
#[test]
fn who_stays_at_the_gate_waits_for_longer_than_its_patience_and_has_no_last_chance() {
    let (mut there, mut now) = There::closed();
    let asking = Asking {
        stays: true,
        ..there.caller(now)
    };
    let mut answer = there.ask(now, &asking);
    let patience = 2 * GateConfig::DEFAULT.patience;
    let last = now.saturating_add(patience);
    let mut probes = 0;
    while now < last {
        match answer {
            Answer::Start(permit) => {
                assert!(permit.is_probe(), "{permit:?}");
                probes += 1;
                there.ended(now, permit, Ended::Failed);
                answer = there.ask(now, &asking);
            }
            Answer::Wait(until, Holding::Gate) => {
                // Another request is the probe.
                let caller = there.caller(until);
                if let Answer::Start(permit) = there.ask(until, &caller) {
                    there.ended(until, permit, Ended::Failed);
                } else {
                    there.leave(until, &caller);
                }
                now = until;
                answer = there.again(now, &asking);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(probes > 0);
}

/// `max_elapsed` limits when an attempt starts, not when its response arrives.
#[test]
fn a_parked_caller_that_may_still_start_goes_however_long_answers_take() {
    let (mut there, closed) = There::closed();
    let now = later_by(closed, 30_000 * MILLI);
    let caller = there.caller(now);
    let probe = starts(there.ask(now, &caller));
    there.ended(now, probe, Ended::Answered);
    let slow: Vec<_> = (0..20)
        .map(|_| {
            let caller = there.caller(now);
            starts(there.ask(now, &caller))
        })
        .collect();
    let later = later_by(now, 100_000 * MILLI);
    for permit in slow {
        there.ended(later, permit, Ended::Answered);
    }
    let retry = Asking {
        claim: Claim::Paid,
        last_start: later_by(later, 90_000 * MILLI),
        ..there.caller(later)
    };
    let mut answer = there.ask(later, &retry);
    while let Answer::Wait(until, _) = answer {
        answer = there.again(until, &retry);
    }
    let started = starts(answer).started();
    assert!(started <= retry.last_start, "{started:?}");
}

#[test]
fn retries_that_are_off_are_held_to_the_rate_and_to_nothing_else() {
    let mut there = There::new(true, Some(rate(10.0, 10)));
    let now = there.close();
    there.cool(now, 60_000);
    let caller = Asking {
        paced_only: true,
        ..there.caller(now)
    };
    let _permit = starts(there.ask(now, &caller));
}

proptest! {
    /// If no caller leaves, each one that requests admission at its time gets its slot then: none
    /// starves, and no slot stays unused.
    #[test]
    fn everybody_is_served_when_it_was_told(count in 1..60_u64, limit in 20.0..1000.0_f64, burst in 1..5_u32) {
        let mut there = There::paced(limit, burst);
        for _ in 0..burst {
            let caller = there.caller(at(0));
            let _permit = starts(there.ask(at(0), &caller));
        }
        let interval = libm::ceil(1e9 / limit) as u64;
        let waiting: Vec<_> = (0..count).map(|_| there.waits(at(0)).0).collect();
        for (number, caller) in (1..).zip(&waiting) {
            let slot = Instant::from_nanos(number * interval);
            let early = Instant::from_nanos(slot.as_nanos() - 1);
            prop_assert!(matches!(there.again(early, caller), Answer::Wait(..)));
            let _permit = starts(there.again(slot, caller));
        }
        prop_assert_eq!(there.outbound.waiting(), 0);
    }
}

/// A held caller has only its own timer, so it needs the end of its hold.
#[test]
fn whoever_is_held_by_a_cooldown_while_it_queues_is_told_so() {
    let mut there = There::paced(1.0, 1);
    let first = there.caller(at(0));
    let permit = starts(there.ask(at(0), &first));
    let [one, other] = [0, 0].map(|millis| there.caller(at(millis)));
    assert_eq!(waits(there.ask(at(0), &one)), at(1000));
    waits(there.ask(at(0), &other));
    there.cool(at(500), 10_000);
    there.ended(at(500), permit, Ended::Deferred);
    // The slot of one comes, and no caller goes.
    let until = waits(there.again(at(1000), &one));
    assert!(until > at(10_500), "{until:?}");
    assert_eq!(there.outbound.take_woken(), [one.id, other.id]);
    let until = waits(there.again(at(1000), &other));
    assert!(until > at(10_500), "{until:?}");
}

/// A process may have very many destinations, and a simulation mostly reads one that is not cached.
#[test]
fn what_a_destination_keeps_by_the_standard_policy_takes_at_most_752_bytes() {
    let bytes = size_of::<Outbound>();
    assert!(bytes <= 752, "{bytes}");
}
