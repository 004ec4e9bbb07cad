//! Late first attempts of queued requests, and a `Retry-After` for all that need not hold for all.

use super::*;

/// It would also be made with retries disabled.
#[test]
fn who_is_parked_by_a_closed_gate_makes_one_attempt_before_its_time_is_over() {
    let (mut there, now) = There::closed();
    let asking = Asking {
        answer_by: later_by(now, 400 * MILLI),
        ..there.caller(now)
    };
    let last = later_by(now, 300 * MILLI);
    assert_eq!(waits(there.ask(now, &asking)), last);
    assert!(waits(there.again(later_by(now, 299 * MILLI), &asking)) <= last);
    let permit = starts(there.again(last, &asking));
    assert_eq!(there.outbound.waiting(), 0);
    // It is no probe, but its success counts like one.
    there.ended(later_by(last, MILLI), permit, Ended::Answered);
    assert!(!there.outbound.gate().unwrap().is_closed());
}

#[test]
fn who_has_made_an_attempt_has_no_last_chance() {
    let (mut there, now) = There::closed();
    let asking = Asking {
        answer_by: later_by(now, 400 * MILLI),
        claim: Claim::Paid,
        ..there.caller(now)
    };
    assert!(waits(there.ask(now, &asking)) > later_by(now, 300 * MILLI));
    waits(there.again(later_by(now, 399 * MILLI), &asking));
}

#[test]
fn there_is_no_last_chance_during_a_cooldown_nor_when_its_time_is_over() {
    for (cooled, late) in [(350, 0), (0, 150)] {
        let (mut there, now) = There::closed();
        let asking = Asking {
            answer_by: later_by(now, 400 * MILLI),
            ..there.caller(now)
        };
        waits(there.ask(now, &asking));
        if cooled > 0 {
            there.cool(now, cooled);
        }
        waits(there.again(later_by(now, (300 + late) * MILLI), &asking));
    }
}

/// One of many rejections by a rate limiter says "come back in five seconds": that holds for its
/// caller.
#[test]
fn rule_4_what_is_said_to_all_holds_for_one_while_others_are_answered() {
    let mut there = There::new(true, None);
    let caller = there.caller(at(1000));
    let permit = starts(there.ask(at(1000), &caller));
    let says = |seconds| Failure::throttled().hint(Hint::after(Duration::from_secs(seconds)));
    assert!(
        !there.outbound.holds_for_one(at(1001), &says(5)),
        "nothing is known"
    );
    there.ended(at(1010), permit, Ended::Answered);
    assert!(there.outbound.holds_for_one(at(2000), &says(5)));
    assert!(
        !there
            .outbound
            .holds_for_one(at(2000), &Failure::throttled())
    );
    assert!(
        !there.outbound.holds_for_one(at(6010), &says(5)),
        "nobody is answered any more"
    );
    let mut ungated = There::new(false, Some(rate(10.0, 1)));
    let caller = ungated.caller(at(0));
    let permit = starts(ungated.ask(at(0), &caller));
    ungated.ended(at(10), permit, Ended::Answered);
    assert!(
        !ungated.outbound.holds_for_one(at(20), &says(5)),
        "nobody learns what succeeds"
    );
}

/// A destination that is down or full sends a `Retry-After`. The rejected caller waits; the breaker
/// decides about others, since it detects recovery. Without retries their first attempts would also be
/// made.
#[test]
fn rule_4_only_a_refusal_because_of_rate_holds_back_all_where_there_is_a_gate() {
    let hint = Hint::after(Duration::from_secs(5));
    for (failure, one) in [
        (Failure::not_processed(), true),
        (Failure::throttled(), false),
        (Failure::overloaded(), false),
    ] {
        let failure = failure.hint(hint);
        let mut gated = There::new(true, None);
        assert_eq!(gated.outbound.holds_for_one(at(0), &failure), one);
        let (mut closed, now) = There::closed();
        assert_eq!(closed.outbound.holds_for_one(now, &failure), one);
        let mut ungated = There::new(false, None);
        assert!(!ungated.outbound.holds_for_one(at(0), &failure));
    }
}
