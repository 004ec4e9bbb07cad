use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::hint::Hint;
use crate::random::Draw;

const MIDDLE: Draw = Draw::at(0.5);
/// Multiple of the demand after a first success, if no overload was seen.
const HEADROOM: f64 = 1.1;

fn millis(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn gate() -> Gate {
    Gate::new(&GateConfig::DEFAULT).unwrap()
}

fn caller(id: u64, since: Instant) -> Caller {
    Caller {
        until: Instant::MAX,
        since,
        id,
    }
}

/// Makes requests at an even pace; each attempt takes `took` milliseconds.
fn requests(
    gate: &mut Gate,
    from: u64,
    count: u64,
    every: u64,
    took: u64,
    ended: impl Fn(u64) -> Ended,
) -> u64 {
    let mut now = from;
    for id in 0..count {
        now = from + id * every;
        gate.on_request(millis(now));
        if let Some(pass) = gate.admit(millis(now), caller(id, millis(now)), Claim::First) {
            gate.on_end(millis(now + took), pass, ended(id), &mut MIDDLE.clone());
        }
    }
    now + every
}

#[test]
fn a_healthy_destination_is_open_and_widens_nothing() {
    let mut gate = gate();
    let now = requests(&mut gate, 0, 10_000, 10, 5, |_| Ended::Answered);
    assert!(gate.is_open());
    assert_eq!((gate.parked(), gate.ratio(millis(now))), (0, 0.0));
}

/// A fixed ratio cannot hide failures of one half.
#[test]
fn failures_that_do_not_depend_on_load_widen_the_budget() {
    for (every, least) in [(10, 0.11), (2, 1.0)] {
        let mut gate = gate();
        let failing = |id| match id % every {
            0 => Ended::Failed,
            _ => Ended::Answered,
        };
        let now = requests(&mut gate, 0, 2000, 25, 5, failing);
        assert!(gate.is_open(), "one in {every}");
        let ratio = gate.ratio(millis(now));
        assert!(
            ratio >= least && ratio <= least * 1.4,
            "one in {every}: {ratio}"
        );
    }
}

#[test]
fn failures_of_slow_destinations_limit_retries_and_bind_the_budget() {
    let mut gate = gate();
    let now = requests(&mut gate, 0, 400, 25, 5, |_| Ended::Answered);
    // A third of the attempts fail, and successes take half a second.
    let failing = |id| match id % 3 {
        0 => Ended::Failed,
        _ => Ended::Answered,
    };
    let now = requests(&mut gate, now, 40, 25, 500, failing);
    assert!(!gate.is_open() && !gate.is_closed());
    assert_eq!(gate.ratio(millis(now)), 0.0);
    // Two of three succeed without retries.
    assert_eq!(gate.parked(), 0, "fresh requests are not held back");
}

/// Attempts that would succeed without retries are not held back. A rate limiter admits the same number
/// whatever its clients send.
#[test]
fn fresh_requests_are_held_back_only_where_most_time_out() {
    for (every, ended) in [
        (3, Ended::TimedOut),
        (2, Ended::TimedOut),
        (3, Ended::Overloaded),
    ] {
        let mut gate = gate();
        let now = requests(&mut gate, 0, 400, 25, 5, |_| Ended::Answered);
        let failing = |id| {
            if id % every == 0 {
                ended
            } else {
                Ended::Answered
            }
        };
        requests(&mut gate, now, 40, 25, 150, failing);
        assert!(!gate.is_open() && !gate.is_closed());
        assert_eq!(gate.parked(), 0, "one in {every}: {ended:?}");
    }
    for (ended, held) in [(Ended::TimedOut, true), (Ended::Overloaded, false)] {
        let mut gate = gate();
        let now = requests(&mut gate, 0, 400, 25, 5, |_| Ended::Answered);
        let failing = |id| {
            if id % 5 < 3 { ended } else { Ended::Answered }
        };
        let now = requests(&mut gate, now, 60, 25, 150, failing);
        assert!(!gate.is_open() && !gate.is_closed());
        let before = gate.parked();
        requests(&mut gate, now, 30, 25, 150, failing);
        assert_eq!(gate.parked() > before, held, "three in five: {ended:?}");
    }
}

/// At 40 requests per second a quarter of a second without a success is silence. At eight per second it
/// may be chance.
#[test]
fn silence_is_as_long_as_several_requests_take_to_be_made() {
    for (every, closed) in [(25, true), (125, false)] {
        let mut gate = gate();
        let now = requests(&mut gate, 0, 400, every, 5, |_| Ended::Answered);
        let lost = gate
            .admit(millis(now), caller(0, millis(now)), Claim::First)
            .unwrap();
        gate.on_end(
            millis(now + 600),
            lost,
            Ended::TimedOut,
            &mut MIDDLE.clone(),
        );
        assert_eq!(gate.is_closed(), closed, "each {every} ms");
    }
}

/// Retries that an exhausted budget cannot pay for form a queue, and the breaker releases them.
#[test]
fn a_retry_that_nothing_has_paid_for_limits_an_open_gate_and_goes_when_that_finds_room() {
    let mut gate = gate();
    let now = requests(&mut gate, 0, 400, 25, 50, |_| Ended::Answered);
    let retry = |id: u64| caller(10_000 + id, millis(now));
    let paid = gate.admit(millis(now), retry(0), Claim::Paid).unwrap();
    gate.on_end(millis(now), paid, Ended::Unknown, &mut MIDDLE.clone());
    assert!(gate.is_open());
    for id in 1..=3 {
        assert_eq!(gate.admit(millis(now), retry(id), Claim::Unpaid), None);
    }
    assert!(!gate.is_open() && !gate.is_closed());
    // Two in a hundred requests at first, so none in the first second.
    let now = requests(&mut gate, now, 40, 25, 50, |_| Ended::Answered);
    assert_eq!(gate.parked(), 3, "first attempts are not held back");
    let mut at = now;
    while gate.parked() > 0 {
        at = requests(&mut gate, at, 1, 25, 50, |_| Ended::Answered);
        if let Some((_, pass)) = gate.release(millis(at)) {
            gate.on_end(millis(at), pass, Ended::Answered, &mut MIDDLE.clone());
        }
        assert!(at < now + 5000, "there is room");
    }
    requests(&mut gate, at, 80, 25, 50, |_| Ended::Answered);
    assert!(gate.is_open(), "nobody waits any more");
}

/// A short server queue rejects fast, and rejects more under more load. Failures after full service
/// time are not caused by load, and are no reason to reduce the limit.
#[test]
fn a_step_after_which_more_fails_at_once_is_half_as_long_the_next_time() {
    for (took, cut, headroom) in [(1, true, 1.05), (50, false, 1.1)] {
        let mut gate = gate();
        let now = requests(&mut gate, 0, 400, 25, 50, |_| Ended::Answered);
        let retry = caller(10_000, millis(now));
        assert_eq!(gate.admit(millis(now), retry, Claim::Unpaid), None);
        let grown = |gate: &Gate| matches!(gate.state, State::Limited(limit) if !limit.is_bare());
        let mut at = now;
        while !grown(&gate) {
            at = requests(&mut gate, at, 1, 25, 50, |_| Ended::Answered);
        }
        let mut was_cut = false;
        for _ in 0..10 {
            at = requests(&mut gate, at, 1, 25, 50, |_| Ended::Answered);
            at = requests(&mut gate, at, 1, 25, took, |_| Ended::Failed);
            at = requests(&mut gate, at, 1, 25, 50, |_| Ended::Answered);
            was_cut |= !grown(&gate);
        }
        assert!(!gate.is_open() && !gate.is_closed());
        assert_eq!(was_cut, cut, "after {took} ms");
        let is = gate.stride.headroom();
        assert!((is - headroom).abs() < 0.006, "{is} after {took} ms");
    }
}

#[test]
fn what_fails_at_once_or_before_any_success_is_suspicious_and_what_was_worked_on_is_not() {
    let mut new = gate();
    assert!(new.lesson(millis(0)).suspicious);
    requests(&mut new, 0, 1, 25, 5, |_| Ended::Failed);
    assert!(new.lesson(millis(50)).suspicious, "no success is known");
    for (took, suspicious) in [(1, true), (20, false)] {
        let mut gate = gate();
        let now = requests(&mut gate, 0, 400, 25, 20, |_| Ended::Answered);
        assert!(gate.lesson(millis(now)).suspicious, "nothing has failed");
        let now = requests(&mut gate, now, 3, 25, took, |id| match id {
            1 => Ended::Answered,
            _ => Ended::Failed,
        });
        assert_eq!(gate.lesson(millis(now)).suspicious, suspicious, "{took} ms");
    }
}

/// From 50 ms away, most of the time of a rejection and of a 10 ms success is the round trip.
#[test]
fn a_refusal_from_far_away_is_suspicious_and_an_error_after_work_is_not() {
    for (took, suspicious) in [(101, true), (110, false)] {
        let mut gate = gate();
        let now = requests(&mut gate, 0, 400, 25, 110, |_| Ended::Answered);
        let now = requests(&mut gate, now, 6, 25, took, |id| match id {
            1 => Ended::Answered,
            _ => Ended::Failed,
        });
        assert_eq!(gate.lesson(millis(now)).suspicious, suspicious, "{took} ms");
    }
}

/// A low-traffic process need not wait up to ten seconds for its first evaluation.
#[test]
fn who_has_just_begun_compares_failures_with_the_first_success() {
    for (failed_after, suspicious) in [(1, true), (20, false)] {
        let mut gate = gate();
        let now = requests(&mut gate, 0, 1, 100, 20, |_| Ended::Answered);
        let now = requests(&mut gate, now, 1, 100, failed_after, |_| Ended::Failed);
        let lesson = gate.lesson(millis(now));
        assert_eq!(lesson.suspicious, suspicious, "{failed_after} ms");
    }
}

/// One very long failure is not representative, neither before the first evaluation nor after it.
#[test]
fn a_failure_counts_for_no_longer_than_the_first_success_took() {
    let mut gate = gate();
    let now = requests(&mut gate, 0, 1, 1000, 20, |_| Ended::Answered);
    let now = requests(&mut gate, now, 1, 1000, 2000, |_| Ended::Failed);
    let now = requests(&mut gate, now, 3, 1000, 1, |_| Ended::Failed);
    assert!(gate.lesson(millis(now)).suspicious);
}

#[test]
fn who_has_made_few_requests_pays_for_its_retries() {
    let mut seldom = gate();
    requests(&mut seldom, 0, 2, 1000, 500, |_| Ended::TimedOut);
    let lesson = seldom.lesson(millis(2000));
    assert!(seldom.is_closed() && !lesson.waived);
    let mut gate = gate();
    let now = requests(&mut gate, 0, 400, 25, 1, |_| Ended::Answered);
    let now = requests(&mut gate, now, 40, 25, 1, |_| Ended::Failed);
    let lesson = gate.lesson(millis(now));
    assert!(gate.is_closed() && lesson.waived);
    requests(&mut gate, now + 1000, 1, 25, 1, |_| Ended::Answered);
    let lesson = gate.lesson(millis(now + 1025));
    assert!(!gate.is_closed() && !gate.is_open() && lesson.waived);
}

/// Number of consecutive failures, 25 ms apart, that bring the breaker down.
fn failures_until_closed(gate: &mut Gate, from: u64) -> u64 {
    let mut count = 0;
    while !gate.is_closed() && count < 100 {
        requests(gate, from + 25 * count, 1, 25, 1, |_| Ended::Failed);
        count += 1;
    }
    count
}

/// Chance brings a breaker down once in a thousand seconds, whatever its baseline share of failures.
#[test]
fn so_many_failures_in_a_row_close_as_are_no_chance() {
    for (every, least, most) in [(u64::MAX, 4, 5), (10, 5, 8), (2, 14, 20)] {
        let mut gate = gate();
        let usual = |id: u64| match id % every {
            1 => Ended::Failed,
            _ => Ended::Answered,
        };
        let now = requests(&mut gate, 0, 2400, 25, 1, usual);
        let count = failures_until_closed(&mut gate, now);
        assert!(count >= least && count <= most, "one in {every}: {count}");
    }
    // Without any history, chance explains more failures in a row.
    let count = failures_until_closed(&mut gate(), 0);
    assert!((6..=10).contains(&count), "{count}");
}

#[test]
fn failures_of_one_moment_do_not_close() {
    let mut gate = gate();
    let now = requests(&mut gate, 0, 2400, 25, 1, |_| Ended::Answered);
    requests(&mut gate, now, 50, 1, 1, |_| Ended::Failed);
    assert!(gate.is_open());
    requests(&mut gate, now + 50, 50, 1, 1, |_| Ended::Failed);
    assert!(gate.is_closed());
}

#[test]
fn a_timeout_during_which_nothing_succeeded_closes() {
    let mut alone = gate();
    requests(&mut alone, 0, 1, 1, 1000, |_| Ended::TimedOut);
    assert!(alone.is_closed());

    // Other attempts succeed meanwhile.
    let mut among = gate();
    let slow = among
        .admit(millis(0), caller(0, millis(0)), Claim::First)
        .unwrap();
    requests(&mut among, 0, 100, 10, 5, |_| Ended::Answered);
    among.on_end(millis(1000), slow, Ended::TimedOut, &mut MIDDLE.clone());
    assert!(among.is_open());
}

/// A breaker that went down in the 61st second, with three queued requests.
fn closed() -> (Gate, u64) {
    let mut gate = gate();
    let now = requests(&mut gate, 0, 2400, 25, 5, |_| Ended::Answered);
    requests(&mut gate, now, 5, 25, 0, |_| Ended::Failed);
    assert!(gate.is_closed());
    let now = now + 100;
    for id in 0..3 {
        let parked = gate.admit(
            millis(now + 6),
            caller(100 + id, millis(now + 6 + id)),
            Claim::First,
        );
        assert_eq!(parked, None);
    }
    (gate, now)
}

#[test]
fn one_probe_at_a_time_further_and_further_apart() {
    let (mut gate, mut now) = closed();
    for wait in [500, 750, 1125, 1687, 2531, 3796, 5000, 5000] {
        assert_eq!(
            gate.next_release(millis(now)).unwrap().as_nanos() / 1_000_000,
            now + wait
        );
        assert_eq!(gate.release(millis(now + wait - 1)), None);
        now += wait + 1;
        let (probe, pass) = gate.release(millis(now)).unwrap();
        assert_eq!(
            (probe.id, pass.is_probe()),
            (102, true),
            "the one with the most time left"
        );
        assert_eq!(gate.release(millis(now)), None);
        assert_eq!(
            gate.admit(millis(now), caller(7, millis(now)), Claim::First),
            None
        );
        gate.forget(&caller(7, millis(now)));
        gate.on_end(millis(now), pass, Ended::Failed, &mut MIDDLE.clone());
        assert_eq!(gate.admit(millis(now), probe, Claim::Paid), None);
        gate.forget(&probe);
        gate.admit(millis(now), probe, Claim::First);
    }
}

/// The end of a ten-second outage is noticed as soon as probes allow.
#[test]
fn who_asks_often_probes_once_in_ten_requests() {
    for ended in [Ended::Failed, Ended::TimedOut] {
        let (mut gate, mut now) = closed();
        let mut probes = 0;
        for at in (now..now + 10_000).step_by(25) {
            gate.on_request(millis(at));
            if let Some(pass) = gate.admit(millis(at), caller(1000 + at, millis(at)), Claim::First)
            {
                assert!(pass.is_probe());
                gate.on_end(millis(at), pass, ended, &mut MIDDLE.clone());
                probes += 1;
            }
            now = at;
        }
        assert!((35..=41).contains(&probes), "{ended:?}: {probes} of 400");
        assert!(gate.is_closed(), "at {now}");
    }
}

/// A success after `down` milliseconds ends the down state. A second of successes follows, in which one
/// in `mixed` fails; then only failures, until the breaker is down again.
fn closed_again(down: u64, mixed: u64) -> (Gate, u64) {
    let (mut gate, now) = closed();
    let (_, pass) = gate.release(millis(now + down)).unwrap();
    let now = now + down + 1;
    gate.on_end(millis(now), pass, Ended::Answered, &mut MIDDLE.clone());
    let ended = |id: u64| match (id + 1) % mixed {
        0 => Ended::Failed,
        _ => Ended::Answered,
    };
    let now = requests(&mut gate, now, 40, 25, 1, ended);
    let count = failures_until_closed(&mut gate, now);
    (gate, now + 25 * count)
}

/// In the scenario `flapping` (docs/research/policies.md) a destination alternates between a second up and a
/// second down.
#[test]
fn fresh_requests_probe_while_a_destination_flaps_and_no_longer() {
    let probes = |gate: &mut Gate, now: u64| {
        let fresh = Caller {
            until: Instant::MAX,
            since: millis(now),
            id: 9,
        };
        let pass = gate.admit(millis(now), fresh, Claim::First);
        if let Some(pass) = pass {
            gate.on_end(millis(now), pass, Ended::Failed, &mut MIDDLE.clone());
        }
        gate.forget(&fresh);
        pass.is_some_and(|pass| pass.is_probe())
    };
    let (mut flaps, now) = closed_again(600, u64::MAX);
    assert!((0..80).all(|i| probes(&mut flaps, now + 25 * i)));
    assert!(
        (100..110)
            .filter(|i| probes(&mut flaps, now + 25 * i))
            .count()
            <= 1,
        "it is down for longer than it was"
    );
    let (mut was_long, now) = closed_again(3000, u64::MAX);
    assert!(!probes(&mut was_long, now), "not a brief one before");
    let (mut mixed, now) = closed_again(600, 10);
    assert!(!probes(&mut mixed, now), "failures amid successes");
}

/// The headroom from before the outage is still there.
#[test]
fn after_a_brief_closure_a_gate_opens_with_a_fifth_more_than_it_had() {
    let opened = |down: u64, probe: Ended| {
        let (mut gate, now) = closed();
        let (_, pass) = gate.release(millis(now + 500)).unwrap();
        gate.on_end(millis(now + 501), pass, probe, &mut MIDDLE.clone());
        requests(&mut gate, now + down, 1, 1, 0, |_| Ended::Answered);
        match gate.state {
            State::Limited(limit) => limit.factor,
            State::Open | State::Closed(_) => panic!("{:?}", gate.state),
        }
    };
    assert!((opened(1500, Ended::Failed) - 1.2 * OPEN).abs() < 1e-9);
    assert_eq!(opened(3000, Ended::Failed), HEADROOM);
    assert_eq!(opened(1500, Ended::TimedOut), HEADROOM, "it may be load");
    // The failures before the outage may be load-induced, too.
    let mut silent = gate();
    let now = requests(&mut silent, 0, 400, 25, 5, |_| Ended::Answered);
    requests(&mut silent, now, 20, 25, 1000, |_| Ended::TimedOut);
    assert!(silent.is_closed());
    requests(&mut silent, now + 2000, 1, 1, 0, |_| Ended::Answered);
    assert!(matches!(silent.state, State::Limited(limit) if limit.factor == HEADROOM));
}

/// The failures that bring the breaker down may be evaluated before they do.
#[test]
fn a_cut_just_before_a_brief_closure_says_nothing_of_what_there_is_room_for() {
    let opened = |overload: bool| {
        let mut flapping = Flapping::new();
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        flapping.on_growth(2.0);
        if overload {
            flapping.on_overload();
        }
        flapping.on_failure(at(1000), true);
        flapping.on_closed(at(1150), at(1000));
        flapping.on_opened(at(2000), HEADROOM)
    };
    assert!((opened(false) - 2.4).abs() < 1e-9);
    // Half of the rate above the demand was not too much.
    assert!((opened(true) - 1.8).abs() < 1e-9);
}

#[test]
fn a_probe_that_is_called_off_or_never_ends_does_not_keep_the_gate_closed() {
    let (mut gate, now) = closed();
    let (_, called_off) = gate.release(millis(now + 500)).unwrap();
    gate.on_end(
        millis(now + 600),
        called_off,
        Ended::Unknown,
        &mut MIDDLE.clone(),
    );
    assert!(gate.release(millis(now + 600)).is_some());
    // This one hangs. The next is sent after twice `max_probe`.
    assert!(gate.release(millis(now + 10_599)).is_none());
    let (_, pass) = gate.release(millis(now + 10_600)).unwrap();
    gate.on_end(
        millis(now + 10_601),
        pass,
        Ended::Answered,
        &mut MIDDLE.clone(),
    );
    assert!(!gate.is_closed());
}

/// docs/research/stability.md: late first attempts would keep a queue long although no client waits for its
/// responses any more.
#[test]
fn a_gate_that_stays_closed_lets_one_in_eight_have_its_last_chance_and_all_of_a_small_process() {
    let gone = |per_second: f64, ended: Ended, after: u64| {
        let mut gate = gate();
        let every = (1000.0 / per_second) as u64;
        let count = (60.0 * per_second) as u64;
        let now = requests(&mut gate, 0, count, every, 5, |_| Ended::Answered);
        let now = requests(&mut gate, now, 20, 100, 1000, |_| ended);
        assert!(gate.is_closed());
        (0..80)
            .filter(|_| gate.takes_chance(millis(now + after)))
            .count()
    };
    assert_eq!(gone(40.0, Ended::TimedOut, 0), 80);
    assert_eq!(gone(40.0, Ended::TimedOut, 5000), 10);
    // Fast failures occupy no queue.
    assert_eq!(gone(40.0, Ended::Failed, 5000), 80);
    // For each request that is sent, those of two seconds are held.
    for (per_second, least, most) in [(0.1, 80, 80), (1.0, 40, 80), (1.6, 26, 40), (5.0, 10, 10)] {
        let gone = gone(per_second, Ended::TimedOut, 5000);
        assert!((least..=most).contains(&gone), "{per_second}: {gone}");
    }
}

/// A breaker of a process with one request in ten seconds, in the 61st second.
fn seldom() -> (Gate, u64) {
    let mut gate = gate();
    let now = requests(&mut gate, 0, 6, 10_000, 5, |_| Ended::Answered);
    (gate, now)
}

/// A queueing destination spends as much on a timeout as on a success. Ten thousand low-traffic
/// processes cannot afford more probes.
#[test]
fn who_asks_seldom_probes_seldom_after_a_timeout() {
    let (mut gate, now) = seldom();
    requests(&mut gate, now, 1, 1, 1000, |_| Ended::TimedOut);
    let parked = caller(50, millis(now));
    assert_eq!(gate.admit(millis(now + 1000), parked, Claim::Paid), None);
    // Seven requests in a minute: three would take about 26 s, which is above the bound.
    let next = gate.next_release(millis(now + 1000)).unwrap();
    assert_eq!(next, millis(now + 21_000));
    // One would take about nine, and a new request need not wait for the queued one.
    let early = caller(51, millis(now + 9000));
    assert_eq!(gate.admit(millis(now + 9000), early, Claim::First), None);
    let probe = gate
        .admit(
            millis(now + 12_000),
            caller(52, millis(now + 12_000)),
            Claim::First,
        )
        .unwrap();
    assert!(probe.is_probe());
    let ended = now + 12_050;
    gate.on_end(millis(ended), probe, Ended::Answered, &mut MIDDLE.clone());
    // Slow, but new requests go while the queued ones still wait for their turn.
    let fresh = caller(53, millis(ended + 1));
    assert!(gate.admit(millis(ended + 1), fresh, Claim::First).is_some());
    assert_eq!(gate.release(millis(ended + 1)), None);
}

/// One of four nodes does not respond: a request queued after a timeout would wait for most of its
/// time, at each retry.
#[test]
fn after_a_timeout_by_itself_and_a_fast_success_a_few_follow_at_once() {
    let timeout: fn(u64) -> Ended = |_| Ended::TimedOut;
    let cases = [
        (timeout, 1000, 5, 4, true),
        (timeout, 1000, 5, 5, false),
        (timeout, 1000, 50, 4, false),
        (|_| Ended::Failed, 1, 5, 4, false),
    ];
    for (ended, took, probe_took, parked, opens) in cases {
        let (mut gate, mut now) = seldom();
        while !gate.is_closed() {
            now = requests(&mut gate, now, 1, 101, took, ended);
        }
        for id in 0..parked {
            let parked = caller(50 + id, millis(now));
            assert_eq!(gate.admit(millis(now + took), parked, Claim::Paid), None);
        }
        requests(&mut gate, now + 12_000, 1, 1, probe_took, |_| {
            Ended::Answered
        });
        assert_eq!(gate.is_open(), opens, "{probe_took} ms, {parked} parked");
        let at = millis(now + 12_000 + probe_took);
        assert_eq!(gate.release(at).is_some(), opens);
    }
}

/// A fast failure costs little, so a restart of some seconds is detected within seconds.
#[test]
fn who_asks_seldom_probes_soon_after_failures_at_once() {
    let (mut gate, mut now) = seldom();
    requests(&mut gate, now, 3, 100, 1, |_| Ended::Failed);
    assert!(gate.is_closed());
    now += 201;
    let parked = caller(50, millis(now));
    for wait in [500, 2500, 12_500, 20_000, 20_000] {
        assert_eq!(gate.admit(millis(now), parked, Claim::Paid), None);
        let next = gate.next_release(millis(now)).unwrap();
        let waited = next.as_nanos() / 1_000_000 - now;
        assert!(waited.abs_diff(wait) <= wait / 10, "{waited} for {wait}");
        now += waited + 1;
        let (_, pass) = gate.release(millis(now)).unwrap();
        gate.on_end(millis(now), pass, Ended::Failed, &mut MIDDLE.clone());
    }
}

/// Rare packet loss delays queued requests only once.
#[test]
fn after_a_false_alarm_one_timeout_does_not_close() {
    let (mut gate, mut now) = seldom();
    let timeout = |gate: &mut Gate, now: u64| {
        requests(gate, now, 1, 1, 1000, |_| Ended::TimedOut);
        gate.is_closed()
    };
    let probe = |gate: &mut Gate, now: u64, ended: Ended| {
        let fresh = caller(now, millis(now));
        let pass = gate.admit(millis(now), fresh, Claim::First).unwrap();
        assert!(pass.is_probe());
        gate.on_end(millis(now), pass, ended, &mut MIDDLE.clone());
    };
    assert!(timeout(&mut gate, now));
    now += 30_000;
    probe(&mut gate, now, Ended::Answered);
    assert!(!timeout(&mut gate, now + 1));
    assert!(timeout(&mut gate, now + 1100));
    // This time it was no false alarm.
    now += 30_000;
    probe(&mut gate, now, Ended::TimedOut);
    now += 30_000;
    probe(&mut gate, now, Ended::Answered);
    assert!(timeout(&mut gate, now + 1));
}

/// One of four nodes does not respond. A low-traffic process sees no other response within a second of
/// a timeout, but its breaker had a false alarm before.
#[test]
fn after_a_false_alarm_a_timeout_between_fast_successes_is_taken_for_lost() {
    let (mut gate, mut now) = seldom();
    let timeout_is_lost = |gate: &mut Gate, now: u64| {
        requests(gate, now, 1, 1, 1000, |_| Ended::TimedOut);
        gate.lesson(millis(now + 1000)).lossy
    };
    assert!(!timeout_is_lost(&mut gate, now));
    assert!(gate.is_closed());
    now += 30_000;
    for _ in 0..3 {
        now = requests(&mut gate, now, 1, 10_000, 10, |_| Ended::Answered);
        assert!(!gate.is_closed());
    }
    assert!(timeout_is_lost(&mut gate, now));
}

/// One of four nodes does not respond. Those timeouts leave a low-traffic process limited for long,
/// since it cannot measure gradually.
#[test]
fn a_limited_gate_of_a_small_process_opens_where_what_fails_is_lost_between_fast_successes() {
    for (took, lossy) in [(10, true), (400, false)] {
        let mut gate = gate();
        let mut now = requests(&mut gate, 0, 100, 500, 10, |_| Ended::Answered);
        requests(&mut gate, now, 1, 1, 400, |_| Ended::Answered);
        now = requests(&mut gate, now + 500, 1, 500, 1, |_| Ended::Failed);
        assert!(!gate.is_open() && !gate.is_closed());
        for _ in 0..5 {
            let pass = gate.admit(millis(now), caller(1, millis(now)), Claim::First);
            requests(&mut gate, now + 990 - took, 1, 1, took, |_| Ended::Answered);
            let end = (millis(now + 1000), pass.unwrap(), Ended::TimedOut);
            gate.on_end(end.0, end.1, end.2, &mut MIDDLE.clone());
            assert_eq!(gate.lesson(millis(now + 1000)).lossy, lossy);
            now += 1500;
        }
        assert_eq!(gate.is_open(), lossy, "successes take {took} ms");
    }
}

/// The mean of a few successes proves little, but one far above the baseline is enough.
#[test]
fn who_asks_seldom_takes_one_slow_success_and_a_failure_for_overload() {
    for (took, limited) in [(10, false), (500, true)] {
        let (mut gate, now) = seldom();
        requests(&mut gate, now, 1, 1, took, |_| Ended::Answered);
        requests(&mut gate, now + 10_000, 1, 1, 1, |_| Ended::Failed);
        assert_eq!(!gate.is_open(), limited, "{took} ms");
        assert!(!gate.is_closed());
    }
}

/// Overload is found early, before the budget rejects retries that the limited breaker can serve later.
#[test]
fn overload_is_seen_as_soon_as_many_attempts_say_so() {
    for (count, limited) in [(120, true), (12, false)] {
        let mut gate = gate();
        let now = requests(&mut gate, 0, 800, 25, 5, |_| Ended::Answered);
        let failing = |id| match id % 2 {
            0 => Ended::Failed,
            _ => Ended::Answered,
        };
        requests(&mut gate, now, count, 1, 50, failing);
        assert_eq!(!gate.is_open(), limited, "{count} in so many milliseconds");
    }
}

/// A breaker that goes down in its first second comes up to the server queue that the outage has left.
/// If that latency became the baseline, such a queue would never count as slow.
#[test]
fn who_began_in_an_outage_or_in_a_queue_takes_the_fastest_successes_since_for_usual() {
    let usual_after = |judgements: &[(u64, Ended)]| {
        let mut gate = gate();
        requests(&mut gate, 0, 20, 25, 1000, |_| Ended::TimedOut);
        assert!(gate.is_closed());
        let mut now = requests(&mut gate, 3000, 1, 1000, 900, |_| Ended::Answered);
        for &(took, last) in judgements {
            assert!(!gate.is_open() && !gate.is_closed());
            now = requests(&mut gate, now + 2000, 29, 25, took, |id| match id % 4 {
                3 => last,
                _ => Ended::Answered,
            });
        }
        gate.usual.took() / 1e6
    };
    let well = Ended::Answered;
    assert_eq!(usual_after(&[(300, well)]), 300.0);
    assert_eq!(usual_after(&[(300, well), (60, well)]), 60.0);
    assert_eq!(usual_after(&[(60, well), (300, well)]), 60.0, "a queue");
    let refused = [(300, well), (60, Ended::Overloaded)];
    assert_eq!(usual_after(&refused), 300.0, "not faultless");
    // The normal state has provided the baseline.
    let mut usual = Usual::default();
    let tally = |took: u64| {
        let mut tally = Tally::default();
        tally.add(8, 8 * took);
        tally
    };
    usual.learn_while_limited(&tally(60_000_000));
    let mut faulty = tally(50_000_000);
    faulty.failure(Ended::Failed);
    usual.learn_while_limited(&faulty);
    assert_eq!(usual.took(), 6e7);
    for _ in 0..4 {
        usual.learn(&tally(60_000_000));
    }
    usual.learn_while_limited(&tally(50_000_000));
    assert_eq!(usual.took(), 6e7);
}

/// A process that starts in a burst would take the latency of a queue as its baseline.
#[test]
fn who_began_in_a_queue_learns_at_once_what_is_usual_without_it() {
    let mut usual = Usual::default();
    for (millis, most) in [(180, 180.0), (2, 10.0)] {
        let mut tally = Tally::default();
        tally.add(10, 10_000_000 * millis);
        usual.learn(&tally);
        assert!(usual.took() <= most * 1e6, "{}", usual.took());
    }
}

/// A lost packet costs a timeout, and is no evidence about load.
#[test]
fn timeouts_beside_successes_as_fast_as_ever_are_no_overload() {
    for (took, open) in [(5, true), (400, false)] {
        let mut gate = gate();
        let mut now = requests(&mut gate, 0, 2400, 25, 5, |_| Ended::Answered);
        for _ in 0..200 {
            let lost = [caller(now, millis(now)), caller(now + 1, millis(now))];
            let lost = lost.map(|caller| gate.admit(millis(now), caller, Claim::First));
            now = requests(&mut gate, now, 9, 25, took, |_| Ended::Answered);
            for pass in lost.into_iter().flatten() {
                gate.on_end(millis(now), pass, Ended::TimedOut, &mut MIDDLE.clone());
            }
        }
        assert_eq!(gate.is_open(), open, "{took} ms");
        // Lost attempts are repeated. Late ones cost as much as successes, so their retries stay within
        // the configured ratio.
        assert_eq!(gate.ratio(millis(now)) > 0.2, open);
        assert_eq!(gate.lesson(millis(now)).lossy, open);
    }
}

/// It is faster without new requests: queued ones replace them.
#[test]
fn what_a_small_process_parked_goes_evenly_over_a_multiple_of_the_time_it_took_to_come() {
    for (fresh_every, least, most) in [(Some(2000), 75_000, 90_000), (None, 50_000, 62_000)] {
        let (mut gate, now) = seldom();
        requests(&mut gate, now, 4, 100, 1, |_| Ended::Failed);
        let closed = now + 301;
        for id in 0..10 {
            let parked = caller(100 + id, millis(closed));
            assert_eq!(gate.admit(millis(closed), parked, Claim::First), None);
        }
        let up = closed + 20_000;
        let (_, pass) = gate.release(millis(up)).unwrap();
        gate.on_end(millis(up), pass, Ended::Answered, &mut MIDDLE.clone());
        let mut at = up;
        while gate.parked() > 0 {
            at += 1;
            assert!(at < up + 2 * most, "{} are left", gate.parked());
            if fresh_every.is_some_and(|every| (at - up) % every == 0) {
                let now = requests(&mut gate, at, 1, 1, 1, |_| Ended::Answered);
                assert_eq!(now, at + 1);
            }
            if let Some((_, pass)) = gate.release(millis(at)) {
                gate.on_end(millis(at), pass, Ended::Answered, &mut MIDDLE.clone());
            }
        }
        let took = at - up;
        assert!((least..=most).contains(&took), "{took} ms for 20 s");
    }
}

/// Two per cent of one request in ten seconds is one in ten minutes, beyond any max queue time.
#[test]
fn the_retry_of_a_small_process_goes_within_its_patience_once_there_is_no_sign_of_trouble() {
    let patience = GateConfig::DEFAULT.patience;
    let overloaded = || {
        let (mut gate, now) = seldom();
        requests(&mut gate, now, 1, 1, 500, |_| Ended::Answered);
        requests(&mut gate, now + 10_000, 1, 1, 1, |_| Ended::Failed);
        (gate, now + 10_001)
    };
    let doubted = || {
        let (mut gate, now) = seldom();
        requests(&mut gate, now, 1, 1, 1000, |_| Ended::TimedOut);
        assert!(gate.is_closed());
        requests(&mut gate, now + 30_000, 1, 1, 20, |_| Ended::Answered);
        requests(&mut gate, now + 41_000, 1, 1, 5, |_| Ended::Failed);
        (gate, now + 41_005)
    };
    for (mut gate, now) in [overloaded(), doubted()] {
        assert!(!gate.is_open() && !gate.is_closed());
        let retry = caller(50, millis(now));
        assert_eq!(gate.admit(millis(now), retry, Claim::Paid), None);
        // Nothing else happens: the driver calls at the times that it gets.
        let mut at = millis(now);
        let mut looks = 0;
        while gate.parked() > 0 {
            at = at.max(gate.next_release(at).unwrap());
            gate.release(at);
            looks += 1;
            assert!(looks < 10, "{at:?}");
        }
        let waited = at.saturating_since(millis(now));
        assert!(waited <= patience / 2 + BOUND, "{waited:?}");
    }
}

/// After an outage of a second a low-traffic process is limited for seconds, but its release interval
/// is minutes.
#[test]
fn the_end_of_a_limit_is_a_time_to_look() {
    let (mut gate, now) = seldom();
    requests(&mut gate, now, 3, 100, 1, |_| Ended::Failed);
    assert!(gate.is_closed());
    let up = requests(&mut gate, now + 1200, 1, 5, 5, |_| Ended::Answered);
    let retry = caller(50, millis(now));
    assert_eq!(gate.admit(millis(up), retry, Claim::Paid), None);
    let next = gate.next_release(millis(up)).unwrap();
    assert!(next <= millis(up + 5000), "{next:?}");
    assert!(gate.release(next).is_some() && gate.is_open());
}

/// A queue rejects most requests, and continues to. If that were the baseline, nothing would stop
/// further attempts.
#[test]
fn no_more_than_half_is_usual_where_failures_may_come_of_load() {
    let tally = |failures: u32| {
        let mut tally = Tally::default();
        tally.add(100 - failures, 1_000_000);
        (0..failures).for_each(|_| tally.failure(Ended::Failed));
        tally
    };
    let mut usual = Usual::default();
    usual.learn(&tally(80));
    assert!(usual.is_failing(&tally(80), false));
    assert!(!usual.is_failing(&tally(80), true));
    assert_eq!(usual.attempts(), 2.0);
    let mut half = Usual::default();
    half.learn(&tally(50));
    assert!(!half.is_failing(&tally(70), false), "it varies");
}

/// Where responses take longer than callers wait, the breaker goes down before it sees the queue that
/// it caused. With the same steps it would do so repeatedly.
#[test]
fn a_gate_that_closes_while_it_is_limited_goes_half_as_far_the_next_time_until_it_is_open() {
    let (mut gate, mut now) = closed();
    let open_a_little = |gate: &mut Gate, now: u64| {
        let now = requests(gate, now + 2500, 1, 25, 5, |_| Ended::Answered);
        match gate.state {
            State::Limited(limit) => (now, limit.factor - 1.0),
            State::Open | State::Closed(_) => panic!("{:?}", gate.state),
        }
    };
    for (least, ended) in [
        (0.1, Ended::TimedOut),
        (0.05, Ended::TimedOut),
        (0.025, Ended::Failed),
        (0.025, Ended::TimedOut),
        // Never below the rate that queued requests always get.
        (BARE - 1.0, Ended::TimedOut),
        (BARE - 1.0, Ended::TimedOut),
    ] {
        let (then, headroom) = open_a_little(&mut gate, now);
        assert!((headroom - least).abs() < 1e-6, "{headroom}, {least}");
        // So long after a success no timeout counts as packet loss.
        now = requests(&mut gate, then + 200, 60, 25, 1000, |_| ended);
        assert!(gate.is_closed());
    }
    // The steps are shorter, too, and grow while nothing fails.
    (now, _) = open_a_little(&mut gate, now);
    let mut factors = Vec::new();
    for _ in 0..8 {
        now = requests(&mut gate, now, 24, 25, 5, |_| Ended::Answered);
        if let State::Limited(limit) = gate.state {
            factors.push(limit.factor);
        }
    }
    let steps: Vec<f64> = factors.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(steps[0] < 0.12 / 20.0, "{steps:?}");
    assert!(steps.len() == 7 && steps[6] > 1.3 * steps[0], "{steps:?}");
    gate.open(millis(now));
    requests(&mut gate, now + 200, 60, 25, 1000, |_| Ended::TimedOut);
    assert!(gate.is_closed());
    let (_, headroom) = open_a_little(&mut gate, now + 1700);
    assert!(
        (headroom - 0.1).abs() < 1e-6,
        "{headroom} after it was open"
    );
}

/// If attempts fail at any load, queued requests need more of them: at most 5 % more, however many
/// fail.
#[test]
fn a_limit_counts_in_attempts_that_a_request_usually_takes_up_to_a_twentieth_more() {
    for (successes, pace) in [(u32::MAX, 1.0), (40, 1.275), (1, 1.55)] {
        let mut usual = Usual::default();
        let mut tally = Tally::default();
        tally.add(successes, 1_000_000);
        tally.failure(Ended::Failed);
        usual.learn(&tally);
        let limit = Limit::new(Instant::ORIGIN, HEADROOM, &usual);
        let is = limit.pace(10.0);
        assert!((is - pace).abs() < 1e-6, "{is} after {successes}");
    }
}

/// In the scenario `bursts` (docs/research/policies.md) the backlog of a burst is served before the next one.
#[test]
fn what_fresh_requests_leave_of_the_demand_goes_to_those_that_wait_once_all_is_well() {
    let mut limit = Limit::new(Instant::ORIGIN, HEADROOM, &Usual::default());
    assert!((limit.pace(10.0) - 1.0).abs() < 1e-6, "beside the demand");
    // In proportion to the attempts that were seen.
    limit.grow(0.25, &mut { Stride::WHOLE });
    limit.factor = HEADROOM;
    assert!((limit.pace(10.0) - 3.5).abs() < 1e-6);
    limit.grow(0.75, &mut { Stride::WHOLE });
    limit.factor = HEADROOM;
    assert!((limit.pace(10.0) - 11.0).abs() < 1e-6);
    let gone = |limit: Limit, every: u64| {
        let mut limit = limit;
        let mut gone = 0;
        for at in 1..=10_000 {
            if at % every == 0 {
                limit.on_fresh(millis(at), 10.0);
            }
            if limit.next(10.0) <= millis(at) {
                limit.on_release(millis(at), 10.0);
                gone += 1;
            }
        }
        gone
    };
    assert!((110..=111).contains(&gone(limit, u64::MAX)), "none in 10 s");
    assert!((10..=12).contains(&gone(limit, 100)), "ten in a second");
    assert!((59..=61).contains(&gone(limit, 200)), "five in a second");
    limit.hold(millis(1), false, 0.0);
    assert!((limit.pace(10.0) - 1.0).abs() < 1e-6, "it is slow");
}

/// A rate limiter without `Retry-After` rejects most of a burst. It has the same capacity when the
/// burst is over.
#[test]
fn after_a_burst_those_that_wait_ask_for_half_of_what_was_served_in_it() {
    let refused = Ended::Overloaded;
    for (took, ended, served, follow) in [
        // Half of the goodput is 5 per second. On top of a demand of 40 per second up to 2.8 go: 40 *
        // (1.02 * 1.05 - 1).
        (5, refused, 1, 14..=15),
        (24, refused, 1, 7..=14),
        (40, Ended::TimedOut, 2, 0..=3),
    ] {
        let mut gate = gate();
        let now = requests(&mut gate, 0, 2400, 25, took.min(5), |_| Ended::Answered);
        let failing = |id| match id % 4 < served {
            true => Ended::Answered,
            false => ended,
        };
        // Of 40 per second ten succeed, or twenty: new requests are held back where most time out.
        let mut now = requests(&mut gate, now, 100, 25, took, failing);
        // Fast rejections do not limit it. An unpaid retry does.
        if gate.is_open() {
            let unpaid = caller(9_999, millis(now));
            assert_eq!(gate.admit(millis(now), unpaid, Claim::Unpaid), None);
            now = requests(&mut gate, now + 1, 20, 25, took, failing);
            gate.forget(&unpaid);
        }
        assert!(!gate.is_open() && !gate.is_closed());
        for id in 0..20 {
            let waits = caller(10_000 + id, millis(now));
            assert_eq!(gate.admit(millis(now), waits, Claim::Paid), None);
        }
        let gone = (now..now + 2000).filter(|at| gate.release(millis(*at)).is_some());
        let gone = gone.count();
        assert!(follow.contains(&gone), "{took} ms: {gone} in 2 s");
    }
}

/// The growth of a queue shows by how much the rate is too high.
#[test]
fn a_limit_gives_way_as_fast_as_successes_become_slower() {
    let usual = Usual::default();
    let mut limit = Limit::new(Instant::ORIGIN, 1.1, &usual);
    limit.grow(1.0, &mut { Stride::WHOLE });
    limit.grow(1.0, &mut { Stride::WHOLE });
    let grown = limit.factor;
    assert!(grown > 1.3);
    let mut steady = limit;
    steady.hold(Instant::ORIGIN, false, 0.0);
    assert!(
        steady.factor > 1.1 && steady.factor < grown,
        "what it was before"
    );
    limit.hold(Instant::ORIGIN, false, 0.3);
    assert!(
        limit.factor < grown / 1.15 && limit.factor >= 1.0,
        "{}",
        limit.factor
    );
}

/// docs/research/stability.md: a service with an offered load of `load` times its capacity lets the rest fail.
#[test]
fn a_limit_is_right_after_one_judgement() {
    const ATTEMPTS: u32 = 1000;
    let usual = Usual::default();
    for load in [1.1, 1.5, 2.0, 4.0] {
        let mut limit = Limit::new(Instant::ORIGIN, load, &usual);
        let served = (f64::from(ATTEMPTS) / load) as u32;
        let mut tally = Tally::default();
        tally.add(served, 1_000_000);
        for _ in served..ATTEMPTS {
            tally.failure(Ended::TimedOut);
        }
        limit.cut(Instant::ORIGIN, tally.kept(&usual), LEAST);
        assert!(
            (limit.factor - 1.0).abs() < 0.02,
            "{load}: {}",
            limit.factor
        );
        // The same by a queue, which grows by the excess.
        let mut limit = Limit::new(Instant::ORIGIN, load, &usual);
        limit.hold(Instant::ORIGIN, false, load - 1.0);
        assert!(
            (1.0..1.0 + 0.13 * load).contains(&limit.factor),
            "{load}: {}",
            limit.factor
        );
    }
}

/// docs/research/stability.md: overload cuts all limits by one factor, and all grow by one step (AIMD).
#[test]
fn limits_of_processes_come_together() {
    let usual = Usual::default();
    let [mut one, mut other] = [0.1, 0.9].map(|factor| Limit::new(Instant::ORIGIN, factor, &usual));
    for _ in 0..10 {
        for limit in [&mut one, &mut other] {
            limit.cut(Instant::ORIGIN, 0.7, LEAST);
            limit.grow(1.0, &mut { Stride::WHOLE });
            limit.grow(1.0, &mut { Stride::WHOLE });
        }
    }
    assert!(other.factor / one.factor < 1.05, "{one:?} {other:?}");
}

/// Either the server queue is too short to measure, or this is the new baseline.
#[test]
fn failures_beyond_the_usual_cut_what_is_made_beside_the_demand_and_are_usual_if_that_is_no_help() {
    let (mut gate, now) = closed();
    let (_, pass) = gate.release(millis(now + 500)).unwrap();
    gate.on_end(
        millis(now + 501),
        pass,
        Ended::Answered,
        &mut MIDDLE.clone(),
    );
    let factor = |gate: &Gate| match &gate.state {
        State::Limited(limit) => limit.factor,
        state => panic!("{state:?}"),
    };
    let half = |id: u64| match id % 2 {
        0 => Ended::Failed,
        _ => Ended::Answered,
    };
    for id in 0..40 {
        gate.admit(
            millis(now + 501),
            caller(1000 + id, millis(now + 501)),
            Claim::First,
        );
    }
    // They are faster than a success.
    let at = requests(&mut gate, now + 502, 60, 25, 1, half);
    assert!(factor(&gate) <= BARE, "{}", factor(&gate));
    requests(&mut gate, at, 1200, 25, 1, half);
    assert!(gate.is_open() || factor(&gate) > 1.2, "{:?}", gate.state);
}

#[test]
fn what_was_parked_drains_beside_fresh_requests_and_earliest_deadline_first() {
    let (mut gate, now) = closed();
    for id in 0..100_u64 {
        let late = Caller {
            until: millis(200_000 + 1000 * (id % 10)),
            ..caller(1000 + id, millis(now + 30))
        };
        assert_eq!(gate.admit(millis(now + 30), late, Claim::First), None);
    }
    let (_, pass) = gate.release(millis(now + 500)).unwrap();
    gate.on_end(
        millis(now + 505),
        pass,
        Ended::Answered,
        &mut MIDDLE.clone(),
    );
    let mut released = Vec::new();
    let mut fresh = 0;
    let mut at = now + 505;
    while gate.parked() > 0 {
        at += 5;
        if (at - now) % 25 == 0 {
            gate.on_request(millis(at));
            let pass = gate
                .admit(millis(at), caller(at, millis(at)), Claim::First)
                .unwrap();
            gate.on_end(millis(at + 5), pass, Ended::Answered, &mut MIDDLE.clone());
            fresh += 1;
        }
        while let Some((caller, pass)) = gate.release(millis(at)) {
            released.push(caller.until);
            gate.on_end(millis(at + 5), pass, Ended::Answered, &mut MIDDLE.clone());
        }
    }
    assert!(released.is_sorted());
    assert_eq!(released.len(), 102);
    // At most three times as many as new ones (the factor ends at four), and at least a tenth of them.
    assert!(fresh * 3 >= 102 && fresh <= 1020, "{fresh}");
}

/// Queues requests that arrive together, and lets the first probe half a second after `now` succeed.
fn reopened(gate: &mut Gate, now: u64, ids: core::ops::Range<u64>) -> u64 {
    for id in ids {
        gate.on_request(millis(now));
        assert_eq!(
            gate.admit(millis(now), caller(id, millis(now)), Claim::First),
            None
        );
    }
    let up = now + 500;
    let (_, pass) = gate.release(millis(up)).unwrap();
    gate.on_end(millis(up), pass, Ended::Answered, &mut MIDDLE.clone());
    assert!(!gate.is_closed());
    up
}

/// A timer that is late by milliseconds delays no request further: all that are due go together.
#[test]
fn all_that_is_due_is_released_at_one_look() {
    let drained = |every: u64| {
        let (mut gate, now) = closed();
        let mut at = reopened(&mut gate, now, 1000..41_000) * 1_000_000;
        let since = at;
        while gate.parked() > 0 {
            at = at.next_multiple_of(every);
            while let Some((_, pass)) = gate.release(Instant::from_nanos(at)) {
                let took = Instant::from_nanos(at + 5_000_000);
                gate.on_end(took, pass, Ended::Answered, &mut MIDDLE.clone());
            }
            at += every;
        }
        (at - since) as f64 / 1e9
    };
    let (exact, late) = (drained(10_000), drained(20_000_000));
    assert!(late < exact * 1.05, "{late} s for {exact} s");
}

/// Callers of queued requests make no new ones, which is no reason to release them more slowly.
#[test]
fn parked_callers_are_demand() {
    let (mut gate, now) = closed();
    let up = reopened(&mut gate, now, 1000..31_000);
    let mut went = [0; 2];
    for at in up..up + 120_000 {
        while let Some((_, pass)) = gate.release(millis(at)) {
            // There is a server queue, so the limit does not grow.
            gate.on_end(millis(at + 20), pass, Ended::Answered, &mut MIDDLE.clone());
            went[usize::from(at >= up + 60_000)] += 1;
        }
    }
    let [first, second] = went;
    assert!(
        gate.parked() > 0 && second * 10 >= first * 8,
        "{first}, then {second}"
    );
}

#[test]
fn who_cannot_be_answered_in_time_is_not_let_go() {
    let (mut gate, now) = closed();
    let late = Caller {
        until: millis(now + 506),
        ..caller(9, millis(now + 30))
    };
    assert_eq!(gate.admit(millis(now + 30), late, Claim::First), None);
    let (_, pass) = gate.release(millis(now + 500)).unwrap();
    gate.on_end(
        millis(now + 503),
        pass,
        Ended::Answered,
        &mut MIDDLE.clone(),
    );
    // Successes take 5 ms here: 506 is too soon.
    let mut at = now + 503;
    while let Some(next) = gate.next_release(millis(at)) {
        at = at.max(next.as_nanos().div_ceil(1_000_000));
        let (released, _) = gate.release(millis(at)).unwrap();
        assert_ne!(released.id, 9);
    }
    assert_eq!(gate.parked(), 1);
    gate.forget(&late);
    assert_eq!(gate.parked(), 0);
}

#[test]
fn who_says_when_to_come_back_and_who_says_no_is_up() {
    let hinted = Failure::throttled().hint(Hint::after(Duration::from_secs(1)));
    let cases = [
        (Failure::permanent(), Ended::Answered),
        (hinted, Ended::Deferred),
        (Failure::throttled(), Ended::Overloaded),
        (Failure::overloaded(), Ended::Overloaded),
        (Failure::ambiguous().cause(Cause::Timeout), Ended::TimedOut),
        (
            Failure::ambiguous().cause(Cause::Status(503)),
            Ended::Failed,
        ),
        (Failure::not_processed(), Ended::Failed),
        // A failure of one request only is a response of a destination that is up.
        (hinted.scope(Scope::Request), Ended::Answered),
        (Failure::throttled().scope(Scope::Request), Ended::Answered),
        (
            Failure::not_processed().scope(Scope::Request),
            Ended::Answered,
        ),
    ];
    for (failure, ended) in cases {
        assert_eq!(Ended::of(&failure), ended, "{failure:?}");
    }
}

#[test]
fn times_that_make_no_sense_are_refused() {
    let zero = GateConfig {
        first_probe: Duration::ZERO,
        ..GateConfig::DEFAULT
    };
    assert_eq!(Gate::new(&zero).unwrap_err().key(), "first_probe");
    let reversed = GateConfig {
        max_probe: Duration::from_millis(1),
        ..GateConfig::DEFAULT
    };
    assert_eq!(Gate::new(&reversed).unwrap_err().key(), "max_probe");
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Ask { fresh: bool, patience: u64 },
    End { which: usize, ended: Ended },
    Release,
    Forget(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let ended = prop_oneof![
        Just(Ended::Answered),
        Just(Ended::Failed),
        Just(Ended::Overloaded),
        Just(Ended::TimedOut),
        Just(Ended::Unknown)
    ];
    prop_oneof![
        (0..3_000_000_000u64).prop_map(Step::Pass),
        Just(Step::Pass(u64::MAX / 4)),
        (any::<bool>(), 0..20_000_000_000u64)
            .prop_map(|(fresh, patience)| Step::Ask { fresh, patience }),
        (any::<usize>(), ended).prop_map(|(which, ended)| Step::End { which, ended }),
        Just(Step::Release),
        any::<usize>().prop_map(Step::Forget),
    ]
}

proptest! {
    /// In any order of events: no request is lost or released twice, and a normal breaker queues none.
    /// Once the destination responds, every request with enough time left gets through.
    #[test]
    fn nobody_is_lost_and_nobody_waits_for_ever(steps in prop::collection::vec(step(), 1..200), draw in 0.0..1.0f64) {
        let mut random = Draw::at(draw);
        let mut gate = gate();
        let mut now = Instant::ORIGIN;
        let (mut parked, mut running): (Vec<Caller>, Vec<Pass>) = (Vec::new(), Vec::new());
        for (id, step) in (0..).zip(steps) {
            match step {
                Step::Pass(nanos) => now = Instant::from_nanos(now.as_nanos().saturating_add(nanos)),
                Step::Ask { fresh, patience } => {
                    gate.on_request(now);
                    let until = Instant::from_nanos(now.as_nanos().saturating_add(patience));
                    let caller = Caller { until, since: now, id };
                    let claim = if fresh { Claim::First } else { Claim::Paid };
                    match gate.admit(now, caller, claim) {
                        Some(pass) => running.push(pass),
                        None => { prop_assert!(!gate.is_open()); parked.push(caller) }
                    }
                }
                Step::End { which, ended } if !running.is_empty() => {
                    let pass = running.swap_remove(which % running.len());
                    gate.on_end(now, pass, ended, &mut random);
                }
                Step::Release => {
                    if let Some((caller, pass)) = gate.release(now) {
                        let index = parked.iter().position(|other| *other == caller);
                        prop_assert!(index.is_some(), "{caller:?} was not parked");
                        parked.swap_remove(index.unwrap());
                        running.push(pass);
                    }
                }
                Step::Forget(which) if !parked.is_empty() => {
                    let caller = parked.swap_remove(which % parked.len());
                    gate.forget(&caller);
                }
                Step::End { .. } | Step::Forget(_) => {}
            }
            prop_assert_eq!(gate.parked(), parked.len());
        }
        for caller in parked {
            gate.forget(&caller);
        }
        // The destination is up again, and a request without a deadline arrives.
        for id in 0..3 {
            let caller = Caller { until: Instant::MAX, since: now, id };
            if let Some(pass) = gate.admit(now, caller, if id == 0 { Claim::First } else { Claim::Paid }) {
                gate.on_end(now, pass, Ended::Answered, &mut random);
            }
        }
        let mut rounds = 0;
        while gate.parked() > 0 && now < Instant::MAX {
            rounds += 1;
            prop_assert!(rounds < 1000);
            let next = gate.next_release(now);
            prop_assert!(next.is_some(), "parked, and never to be released: {gate:?}");
            now = now.max(next.unwrap());
            if let Some((_, pass)) = gate.release(now) {
                gate.on_end(now, pass, Ended::Answered, &mut random);
            }
        }
    }
}
