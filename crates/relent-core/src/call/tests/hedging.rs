//! Resources that a hedge takes at its destination, and returns if it is not sent.

use super::*;

/// One attempt per second, without a burst.
fn paced() -> Policy {
    let rate = RateLimitConfig {
        burst: Some(1),
        ..RateLimitConfig::new(1.0)
    };
    policy().rate_limit(rate).build().unwrap()
}

fn has_slot(there: &There, clock: &ManualClock) -> bool {
    let now = Instant::from_nanos(clock.nanos.get());
    there.access().turn(|outbound, _| {
        let rate = outbound.rate_limit_mut().unwrap();
        rate.next_slot(now) == now
    })
}

#[test]
fn an_unsent_hedge_returns_its_rate_limit_slot() {
    type EndOfHedge = fn(&mut Call<'static>, &mut TestEnvironment<'_>, &Hedge, &RaceAttempt);
    let ends: [(&str, EndOfHedge); 7] = [
        ("put off", |call, at, _, _| call.defer_hedge(at)),
        ("called off", |call, at, _, _| call.cancel_hedge(at)),
        ("won", |call, at, hedge, first| {
            call.race_won(at, hedge, first, None);
        }),
        ("over", |call, at, hedge, first| {
            call.race_failed(at, hedge, first, &Failure::ambiguous());
        }),
        ("cancelled", |call, at, _, _| {
            call.cancel(at);
        }),
        ("left", |call, at, _, _| call.leave(at)),
        ("granted again", |call, at, _, _| {
            assert!(call.grant_hedge(at));
            call.defer_hedge(at);
        }),
    ];
    let (policy, hedge) = (paced(), Hedge::new(&HedgeConfig::after(SECOND)).unwrap());
    for (name, end) in ends {
        let (there, clock) = (there(&policy), ManualClock::default());
        let mut at = at(&policy, &there, &clock);
        let mut call = Call::new(&at);
        let permit = call.next(&mut at, None).permit().unwrap();
        let first = call.begin_race(&mut at, &hedge, permit);
        clock.advance(SECOND);
        assert!(call.grant_hedge(&mut at));
        assert!(!has_slot(&there, &clock), "the hedge has it");
        end(&mut call, &mut at, &hedge, &first);
        assert!(has_slot(&there, &clock), "{name}");
        call.leave(&at);
    }
}

/// One attempt continues, so the race does.
#[test]
fn a_hedge_cancelled_by_a_pushback_returns_its_slot() {
    let config = HedgeConfig {
        max_hedges: 2,
        ..HedgeConfig::after(SECOND)
    };
    let (policy, hedge) = (paced(), Hedge::new(&config).unwrap());
    let (there, clock) = (there(&policy), ManualClock::default());
    let mut at = at(&policy, &there, &clock);
    let mut call = Call::new(&at);
    let permit = call.next(&mut at, None).permit().unwrap();
    let first = call.begin_race(&mut at, &hedge, permit);
    clock.advance(SECOND);
    assert!(call.grant_hedge(&mut at));
    call.begin_hedge(&mut at);
    assert!(!has_slot(&there, &clock), "what was sent is not given back");
    clock.advance(SECOND);
    assert!(call.grant_hedge(&mut at));
    let raced = call.race_failed(&mut at, &hedge, &first, &Failure::throttled());
    assert_eq!(raced, RaceOutcome::GoesOn { kept: true });
    assert!(has_slot(&there, &clock));
    call.leave(&at);
}

#[test]
fn a_queued_caller_takes_the_slot_of_a_deferred_hedge() {
    let policy = paced();
    let hedge = Hedge::new(&HedgeConfig::after(SECOND)).unwrap();
    let (there, clock) = (there(&policy), ManualClock::default());
    let (mut at, mut other) = (at(&policy, &there, &clock), at(&policy, &there, &clock));
    let mut call = Call::new(&at);
    let permit = call.next(&mut at, None).permit().unwrap();
    call.begin_race(&mut at, &hedge, permit);
    clock.advance(SECOND);
    assert!(call.grant_hedge(&mut at));
    let mut queued = Call::new(&other);
    assert!(matches!(
        queued.next(&mut other, None),
        NextStep::Wait { .. }
    ));
    call.defer_hedge(&mut at);
    assert!(there.access().turn(|outbound, _| outbound.has_woken()));
    start(&mut queued, &mut other);
    call.leave(&at);
    queued.leave(&other);
}
