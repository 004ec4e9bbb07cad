//! Late first attempts of queued requests, and a `Retry-After` for all that need not hold for all.

use super::*;

/// It would also be made with retries disabled.
#[test]
fn a_queued_request_makes_one_late_attempt_while_the_breaker_is_down() {
    let (mut there, now) = TestDestination::closed();
    let request = AdmissionRequest {
        answer_by: now.plus_nanos(400 * MILLI),
        ..there.caller(now)
    };
    let last = now.plus_nanos(300 * MILLI);
    assert_eq!(waits(there.ask(now, &request)), last);
    assert!(waits(there.again(now.plus_nanos(299 * MILLI), &request)) <= last);
    let permit = starts(there.again(last, &request));
    assert_eq!(there.outbound.waiting(), 0);
    // It is no probe, but its success counts like one.
    there.ended(last.plus_nanos(MILLI), permit, BreakerOutcome::Answered);
    assert!(!there.outbound.circuit_breaker().unwrap().is_down());
}

#[test]
fn a_request_with_an_attempt_makes_no_late_first_attempt() {
    let (mut there, now) = TestDestination::closed();
    let request = AdmissionRequest {
        answer_by: now.plus_nanos(400 * MILLI),
        kind: AttemptKind::FundedRetry,
        ..there.caller(now)
    };
    assert!(waits(there.ask(now, &request)) > now.plus_nanos(300 * MILLI));
    waits(there.again(now.plus_nanos(399 * MILLI), &request));
}

#[test]
fn no_late_first_attempt_is_made_during_a_cooldown_or_after_its_time() {
    for (cooled, late) in [(350, 0), (0, 150)] {
        let (mut there, now) = TestDestination::closed();
        let request = AdmissionRequest {
            answer_by: now.plus_nanos(400 * MILLI),
            ..there.caller(now)
        };
        waits(there.ask(now, &request));
        if cooled > 0 {
            there.cool(now, cooled);
        }
        waits(there.again(now.plus_nanos((300 + late) * MILLI), &request));
    }
}

/// One of many rejections by a rate limiter says "come back in five seconds": that holds for its
/// caller.
#[test]
fn a_shared_retry_after_holds_for_one_caller_while_others_succeed() {
    let mut there = TestDestination::new(true, None);
    let caller = there.caller(at(1000));
    let permit = starts(there.ask(at(1000), &caller));
    let says = |seconds| Failure::throttled().hint(Hint::after(Duration::from_secs(seconds)));
    assert!(
        !there.applies_to_one_caller(at(1001), &says(5)),
        "nothing is known"
    );
    there.ended(at(1010), permit, BreakerOutcome::Answered);
    assert!(there.applies_to_one_caller(at(2000), &says(5)));
    assert!(
        !there.applies_to_one_caller(at(6010), &says(5)),
        "nobody is answered any more"
    );
    let mut ungated = TestDestination::new(false, Some(rate(10.0, 1)));
    let caller = ungated.caller(at(0));
    let permit = starts(ungated.ask(at(0), &caller));
    ungated.ended(at(10), permit, BreakerOutcome::Answered);
    assert!(
        !ungated.applies_to_one_caller(at(20), &says(5)),
        "nobody learns what succeeds"
    );
}

/// A destination that is down or full sends a `Retry-After`. The rejected caller waits; the breaker
/// decides about others, since it detects recovery. Without retries their first attempts would also be
/// made.
#[test]
fn with_a_breaker_only_a_rate_rejection_holds_all_callers() {
    let hint = Hint::after(Duration::from_secs(5));
    for (failure, one) in [
        (Failure::not_processed(), true),
        (Failure::throttled(), false),
        (Failure::overloaded(), false),
    ] {
        let failure = failure.hint(hint);
        let mut gated = TestDestination::new(true, None);
        assert_eq!(gated.applies_to_one_caller(at(0), &failure), one);
        let (mut closed, now) = TestDestination::closed();
        assert_eq!(closed.applies_to_one_caller(now, &failure), one);
        let mut ungated = TestDestination::new(false, None);
        assert!(!ungated.applies_to_one_caller(at(0), &failure));
    }
}
