//! A policy that is replaced while callers wait and attempts run.

use super::*;
use crate::destination::hedge::HedgeConfig;
use crate::policy::PolicyBuilder;

fn circuit_breaker() -> CircuitBreakerConfig {
    CircuitBreakerConfig::DEFAULT
}

fn policy() -> PolicyBuilder {
    Policy::builder(Backoff::None)
}

impl TestDestination {
    fn reload(&mut self, now: Instant, policy: PolicyBuilder) {
        self.go_by(now, &policy.build().unwrap());
    }

    fn go_by(&mut self, now: Instant, policy: &Policy) {
        self.outbound
            .set_policy(now, policy, &self.cooldown, &mut self.random);
    }

    /// Number of new callers that start now.
    fn start_all(&mut self, now: Instant) -> u32 {
        let mut started = 0;
        loop {
            let caller = self.caller(now);
            match self.ask(now, &caller) {
                Admission::Start(_permit) => started += 1,
                _ => {
                    self.leave(now, &caller);
                    return started;
                }
            }
        }
    }

    /// Whether it is woken.
    fn is_woken(&mut self, caller: &AdmissionRequest) -> bool {
        self.outbound.take_woken().contains(&caller.id)
    }
}

#[test]
fn a_lowered_rate_frees_no_used_slots() {
    let mut there = TestDestination::paced(10.0, 10);
    assert_eq!(there.start_all(at(1000)), 10);
    there.reload(at(1000), policy().rate_limit(rate(1.0, 10)));
    assert_eq!(there.start_all(at(1000)), 0);
    assert_eq!(there.start_all(at(2000)), 1);
    // Switching back and forth creates no slots.
    for _ in 0..100 {
        there.reload(at(2000), policy().rate_limit(rate(10.0, 10)));
        there.reload(at(2000), policy().rate_limit(rate(1.0, 10)));
    }
    assert_eq!(there.start_all(at(2000)), 0);
}

#[test]
fn the_rest_of_a_burst_survives_a_rate_change() {
    let mut there = TestDestination::paced(10.0, 10);
    let caller = there.caller(at(1000));
    for _ in 0..3 {
        let _permit = starts(there.ask(at(1000), &caller));
    }
    // Seven are left, of which the smaller bucket holds two.
    there.reload(at(1000), policy().rate_limit(rate(100.0, 2)));
    assert_eq!(there.start_all(at(1000)), 2);
    // None is left, and a larger bucket does not start full.
    there.reload(at(1000), policy().rate_limit(rate(100.0, 50)));
    assert_eq!(there.start_all(at(1000)), 0);
    assert_eq!(there.start_all(at(1010)), 1);
}

#[test]
fn a_slot_from_before_a_reload_can_be_returned() {
    for (limit, burst) in [(1.0, 1), (10.0, 1), (0.1, 1), (10.0, 5)] {
        let mut there = TestDestination::paced(1.0, 1);
        let caller = there.caller(at(1000));
        let permit = starts(there.ask(at(1000), &caller));
        there.reload(at(1100), policy().rate_limit(rate(limit, burst)));
        there
            .outbound
            .cancel(at(1200), permit, &there.cooldown, &mut there.random);
        assert!(there.start_all(at(1200)) >= 1, "{limit} {burst}");
        there.reload(at(1200), policy().rate_limit(rate(limit, 1)));
        assert_eq!(there.start_all(at(1200)), 0, "{limit} {burst}");
    }
}

#[test]
fn a_caller_whose_slot_a_new_rate_delays_too_far_stops() {
    let mut there = TestDestination::paced(100.0, 1);
    assert_eq!(there.start_all(at(1000)), 1);
    let waiting: Vec<_> = (0..50).map(|_| there.waits(at(1000)).0).collect();
    there.reload(at(1000), policy().rate_limit(rate(0.1, 1)));
    let woken = there.outbound.take_woken();
    for (index, caller) in waiting.iter().enumerate() {
        assert!(woken.contains(&caller.id));
        // The longest wait that they accept is 300 s, which is 30 slots.
        match there.again(at(1000), caller) {
            Admission::Wait(..) => assert!(index < 30, "{index}"),
            Admission::Stop(stop) => {
                assert!(index >= 30, "{index}");
                assert_eq!(stop.reason, StopReason::RetryLater);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(there.outbound.held_by_rate_limit(), 30);
}

#[test]
fn a_caller_whose_slot_after_a_cooldown_is_too_late_stops() {
    let mut there = TestDestination::paced(1.0, 1);
    there.cool(at(1000), 5000);
    let held: Vec<_> = (0..400).map(|_| there.waits(at(1000))).collect();
    let (mut started, mut queued) = (0, 0);
    for (caller, until) in held {
        match there.again(until, &caller) {
            Admission::Start(_permit) => started += 1,
            Admission::Wait(..) => queued += 1,
            Admission::Stop(stop) => assert_eq!(stop.reason, StopReason::RetryLater),
            Admission::TooLate => panic!("no limit"),
        }
    }
    assert_eq!(started, 1);
    assert_eq!((queued, there.outbound.held_by_rate_limit()), (300, 300));
}

#[test]
fn nothing_is_due_after_the_last_caller_was_rejected() {
    let mut there = TestDestination::paced(1.0, 1);
    assert_eq!(there.start_all(at(1000)), 1);
    let caller = AdmissionRequest {
        last_start: at(2000),
        ..there.caller(at(1000))
    };
    waits(there.ask(at(1000), &caller));
    there.reload(at(1000), policy().rate_limit(rate(0.1, 1)));
    stops(there.again(at(1000), &caller));
    assert_eq!((there.outbound.waiting(), there.outbound.due()), (0, None));
}

#[test]
fn a_shorter_max_queue_time_applies_to_queued_requests() {
    let (mut there, now) = TestDestination::closed();
    let caller = AdmissionRequest {
        kind: AttemptKind::FundedRetry,
        ..there.caller(now)
    };
    let until = waits(there.ask(now, &caller));
    assert!(until > now);
    let shorter = CircuitBreakerConfig {
        max_queue_time: Duration::from_millis(100),
        ..circuit_breaker()
    };
    there.reload(now, policy().circuit_breaker(shorter));
    assert!(there.is_woken(&caller));
    let until = waits(there.again(now, &caller));
    assert!(until <= now.plus_nanos(100 * MILLI), "{until:?}");
    let stop = stops(there.again(until, &caller));
    assert_eq!(stop.reason, StopReason::CircuitBreaker);
    assert_eq!(there.outbound.waiting(), 0);
}

#[test]
fn a_planned_probe_moves_to_the_time_of_the_new_policy() {
    let slow = CircuitBreakerConfig {
        first_probe: Duration::from_secs(600),
        max_probe: Duration::from_secs(600),
        ..circuit_breaker()
    };
    let mut there = TestDestination::new(true, None);
    there.reload(at(0), policy().circuit_breaker(slow));
    let now = there.close();
    let (queued, _) = there.waits(now);
    there.reload(now, policy().circuit_breaker(circuit_breaker()));
    let fresh = there.caller(now.plus_nanos(7000 * MILLI));
    let answer = there.ask(now.plus_nanos(7000 * MILLI), &fresh);
    // One or the other is the probe by now: five seconds, and a quarter.
    let probe = match answer {
        Admission::Start(permit) => permit,
        _ => starts(there.again(now.plus_nanos(7000 * MILLI), &queued)),
    };
    assert!(probe.is_probe());
}

#[test]
fn a_probe_of_a_removed_breaker_is_no_probe_of_the_next() {
    let (mut there, now) = TestDestination::closed();
    let first = now.plus_nanos(5000 * MILLI);
    let caller = there.caller(first);
    let old = starts(there.ask(first, &caller));
    assert!(old.is_probe());
    there.reload(first, policy());
    there.reload(first, policy().circuit_breaker(circuit_breaker()));
    let closed = there.close();
    let second = closed.plus_nanos(5000 * MILLI);
    let caller = there.caller(second);
    let own = starts(there.ask(second, &caller));
    assert!(own.is_probe());
    // Its outcome is ignored, and the running probe stays the only one.
    there.ended(second, old, BreakerOutcome::Unknown);
    there.waits(second);
    there.ended(second, own, BreakerOutcome::Answered);
    assert!(!there.outbound.circuit_breaker().unwrap().is_down());
}

#[test]
fn turning_retries_off_releases_no_queue_while_the_breaker_is_down() {
    let (mut there, now) = TestDestination::closed();
    let waiting: Vec<_> = (0..100).map(|_| there.waits(now)).collect();
    // The preset `off` is a policy without a circuit breaker.
    there.go_by(now, &policy().build().unwrap().without_retries());
    assert!(
        there
            .outbound
            .circuit_breaker()
            .is_some_and(CircuitBreaker::is_down)
    );
    assert_eq!(there.outbound.queued_while_down(), 100);
    for (caller, _) in &waiting {
        waits(there.again(now, caller));
    }
    // A request that arrives now is not queued.
    let new = AdmissionRequest {
        rate_limit_only: true,
        ..there.caller(now)
    };
    let _permit = starts(there.ask(now, &new));
}

#[test]
fn a_shorter_max_hint_shortens_a_running_cooldown() {
    let mut there = TestDestination::new(false, None);
    there.cool(at(1000), 300_000);
    let waiting: Vec<_> = (0..10).map(|_| there.waits(at(1000))).collect();
    assert!(waiting.iter().all(|(_, until)| *until >= at(301_000)));
    there.reload(at(2000), policy().max_hint(Duration::from_secs(10)));
    assert_eq!(there.cooldown.left(at(2000)), Duration::from_secs(10));
    let woken = there.outbound.take_woken();
    for (caller, _) in &waiting {
        assert!(woken.contains(&caller.id));
        let until = waits(there.again(at(2000), caller));
        // Its jitter is a share of the shorter time.
        assert!(until >= at(12_000) && until <= at(22_000), "{until:?}");
    }
    for (caller, _) in &waiting {
        let _permit = starts(there.again(at(22_000), caller));
    }
    // A longer one lengthens nothing.
    there.cool(at(30_000), 5000);
    there.reload(at(30_000), policy());
    assert_eq!(there.cooldown.left(at(30_000)), Duration::from_secs(5));
}

#[test]
fn jitter_after_a_cooldown_is_shortened_with_it() {
    let mut there = TestDestination::new(false, None);
    there.cool(at(0), 300_000);
    let (caller, until) = there.waits(at(0));
    assert_eq!(until, at(450_000));
    there.reload(at(301_000), policy().max_hint(Duration::from_secs(2)));
    let until = waits(there.again(at(301_000), &caller));
    assert!(until <= at(303_000), "{until:?}");
    // Jitter that is short enough is not drawn again: otherwise the shortest of many draws would count.
    there.random = FixedRandom::at(0.0);
    there.reload(at(301_000), policy().max_hint(Duration::from_secs(2)));
    assert_eq!(waits(there.again(at(301_000), &caller)), until);
}

/// The remembered cooldown is not the one that they wait for.
#[test]
fn jitter_is_shortened_after_another_short_cooldown() {
    let mut there = TestDestination::new(false, None);
    there.cool(at(0), 300_000);
    let (caller, _) = there.waits(at(0));
    there.cool(at(300_000), 1);
    there.reload(at(301_000), policy().max_hint(Duration::from_millis(1)));
    let until = waits(there.again(at(301_000), &caller));
    assert!(until <= at(301_001), "{until:?}");
}

#[test]
fn removing_the_breaker_releases_its_queue() {
    let (mut there, now) = TestDestination::closed();
    let waiting: Vec<_> = (0..20).map(|_| there.waits(now).0).collect();
    there.reload(now, policy().rate_limit(rate(1000.0, 5)));
    // All are woken, in the order of the breaker, to request a slot of the rate limit; the first five
    // go.
    let mut woken = there.outbound.take_woken();
    woken.truncate(20);
    assert!(waiting.iter().map(|caller| caller.id).eq(woken));
    for (number, caller) in waiting.iter().enumerate() {
        let answer = there.again(now, caller);
        assert_eq!(
            matches!(answer, Admission::Start(_)),
            number < 5,
            "{number}"
        );
    }
    assert_eq!(
        (
            there.outbound.queued_while_down(),
            there.outbound.held_by_rate_limit()
        ),
        (0, 15)
    );
    let waiting = &waiting[5..];
    there.reload(now, policy().circuit_breaker(circuit_breaker()));
    // The new breaker is normal: it knows nothing of the destination yet.
    let woken = there.outbound.take_woken();
    for caller in waiting {
        assert!(woken.contains(&caller.id));
        let _permit = starts(there.again(now, caller));
    }
    assert_eq!(there.outbound.waiting(), 0);
}

/// A call keeps the policy that it began with, including its hedge settings; later ones use the new
/// policy.
#[test]
fn hedges_use_their_calls_policy_and_share_learned_latencies() {
    let mut there = TestDestination::new(true, None);
    let (old, new) = (HedgeConfig::percentile(0.5), HedgeConfig::percentile(0.9));
    let before = there.outbound.hedge(&old).unwrap();
    for millis in 1..=200 {
        before.on_success(Duration::from_millis(millis));
    }
    there.reload(
        at(1000),
        policy().circuit_breaker(circuit_breaker()).hedge(new),
    );
    let after = there.outbound.hedge(&new).unwrap();
    let delay = |hedge: &Hedge| hedge.delay().unwrap().as_millis();
    assert!((95..=105).contains(&delay(&before)), "{before:?}");
    assert!((175..=185).contains(&delay(&after)), "{after:?}");
    let known = delay(&after);
    // Running and later calls each have their own, which stays the same.
    for (config, hedge) in [(old, before), (new, after)] {
        assert!(Arc::ptr_eq(&there.outbound.hedge(&config).unwrap(), &hedge));
    }
    // A policy without hedges requests none, and the state is kept for a later one.
    there.reload(at(2000), policy().circuit_breaker(circuit_breaker()));
    let fixed = HedgeConfig::after(MOST);
    let later = there.outbound.hedge(&fixed).unwrap();
    assert_eq!(later.delay(), Some(MOST));
    assert_eq!(delay(&there.outbound.hedge(&new).unwrap()), known);
}
