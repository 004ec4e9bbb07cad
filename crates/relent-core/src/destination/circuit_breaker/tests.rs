use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::random::FixedRandom;

const MEDIAN_DRAW: FixedRandom = FixedRandom::at(0.5);
/// Multiple of the demand after a first success, if no overload was seen.
const FIRST_FACTOR: f64 = 1.1;

fn millis(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn breaker() -> CircuitBreaker {
    CircuitBreaker::new(&CircuitBreakerConfig::DEFAULT).unwrap()
}

fn caller(id: u64, since: Instant) -> Waiter {
    Waiter {
        until: Instant::MAX,
        since,
        id,
    }
}

/// Makes requests at an even pace; each attempt takes `took` milliseconds.
fn requests(
    breaker: &mut CircuitBreaker,
    from: u64,
    count: u64,
    every: u64,
    took: u64,
    ended: impl Fn(u64) -> BreakerOutcome,
) -> u64 {
    let mut now = from;
    for id in 0..count {
        now = from + id * every;
        breaker.on_request(millis(now));
        if let Some(permit) =
            breaker.admit(millis(now), caller(id, millis(now)), AttemptKind::First)
        {
            breaker.on_end(
                millis(now + took),
                permit,
                ended(id),
                &mut MEDIAN_DRAW.clone(),
            );
        }
    }
    now + every
}

#[test]
fn a_healthy_destination_keeps_the_breaker_normal_and_the_budget_ratio() {
    let mut breaker = breaker();
    let now = requests(&mut breaker, 0, 10_000, 10, 5, |_| BreakerOutcome::Answered);
    assert!(breaker.is_normal());
    assert_eq!((breaker.queued(), breaker.ratio(millis(now))), (0, 0.0));
}

/// A fixed ratio cannot hide failures of one half.
#[test]
fn failures_that_do_not_depend_on_load_raise_the_budget_ratio() {
    for (every, least) in [(10, 0.11), (2, 1.0)] {
        let mut breaker = breaker();
        let failing = |id| match id % every {
            0 => BreakerOutcome::Failed,
            _ => BreakerOutcome::Answered,
        };
        let now = requests(&mut breaker, 0, 2000, 25, 5, failing);
        assert!(breaker.is_normal(), "one in {every}");
        let ratio = breaker.ratio(millis(now));
        assert!(
            ratio >= least && ratio <= least * 1.4,
            "one in {every}: {ratio}"
        );
    }
}

#[test]
fn failures_of_slow_destinations_limit_retries_and_the_budget_ratio() {
    let mut breaker = breaker();
    let now = requests(&mut breaker, 0, 400, 25, 5, |_| BreakerOutcome::Answered);
    // A third of the attempts fail, and successes take half a second.
    let failing = |id| match id % 3 {
        0 => BreakerOutcome::Failed,
        _ => BreakerOutcome::Answered,
    };
    let now = requests(&mut breaker, now, 40, 25, 500, failing);
    assert!(!breaker.is_normal() && !breaker.is_down());
    assert_eq!(breaker.ratio(millis(now)), 0.0);
    // Two of three succeed without retries.
    assert_eq!(breaker.queued(), 0, "fresh requests are not held back");
}

/// A 429 states that the rate is too high. A process with few requests cannot tell a majority from chance.
#[test]
fn a_high_traffic_process_is_limited_when_the_server_rejects_most_attempts() {
    for (every, one_in, limited) in [(25, 2, true), (25, 3, false), (500, 2, false)] {
        let mut breaker = breaker();
        let now = requests(&mut breaker, 0, 400, every, 5, |_| BreakerOutcome::Answered);
        let failing = |id: u64| match id.is_multiple_of(one_in) {
            true => BreakerOutcome::Overloaded,
            false => BreakerOutcome::Answered,
        };
        requests(&mut breaker, now, 60, every, 5, failing);
        let is_limited = !breaker.is_normal() && !breaker.is_down();
        assert_eq!(is_limited, limited, "one in {one_in}, every {every} ms");
    }
}

/// Attempts that would succeed without retries are not held back. A rate limiter admits the same number
/// whatever its clients send.
#[test]
fn first_attempts_are_held_back_only_where_most_time_out() {
    for (every, ended) in [
        (3, BreakerOutcome::TimedOut),
        (2, BreakerOutcome::TimedOut),
        (3, BreakerOutcome::Overloaded),
    ] {
        let mut breaker = breaker();
        let now = requests(&mut breaker, 0, 400, 25, 5, |_| BreakerOutcome::Answered);
        let failing = |id| {
            if id % every == 0 {
                ended
            } else {
                BreakerOutcome::Answered
            }
        };
        requests(&mut breaker, now, 40, 25, 150, failing);
        assert!(!breaker.is_normal() && !breaker.is_down());
        assert_eq!(breaker.queued(), 0, "one in {every}: {ended:?}");
    }
    for (ended, held) in [
        (BreakerOutcome::TimedOut, true),
        (BreakerOutcome::Overloaded, false),
    ] {
        let mut breaker = breaker();
        let now = requests(&mut breaker, 0, 400, 25, 5, |_| BreakerOutcome::Answered);
        let failing = |id| {
            if id % 5 < 3 {
                ended
            } else {
                BreakerOutcome::Answered
            }
        };
        let now = requests(&mut breaker, now, 60, 25, 150, failing);
        assert!(!breaker.is_normal() && !breaker.is_down());
        let before = breaker.queued();
        requests(&mut breaker, now, 30, 25, 150, failing);
        assert_eq!(breaker.queued() > before, held, "three in five: {ended:?}");
    }
}

/// At 40 requests per second a quarter of a second without a success is silence. At eight per second it
/// may be chance.
#[test]
fn silence_lasts_at_least_as_long_as_several_requests() {
    for (every, down_breaker) in [(25, true), (125, false)] {
        let mut breaker = breaker();
        let now = requests(&mut breaker, 0, 400, every, 5, |_| BreakerOutcome::Answered);
        let lost = breaker
            .admit(millis(now), caller(0, millis(now)), AttemptKind::First)
            .unwrap();
        breaker.on_end(
            millis(now + 600),
            lost,
            BreakerOutcome::TimedOut,
            &mut MEDIAN_DRAW.clone(),
        );
        assert_eq!(breaker.is_down(), down_breaker, "each {every} ms");
    }
}

/// Retries that an exhausted budget cannot pay for form a queue, and the breaker releases them.
#[test]
fn an_unpaid_retry_limits_the_breaker_and_goes_when_there_is_headroom() {
    let mut breaker = breaker();
    let now = requests(&mut breaker, 0, 400, 25, 50, |_| BreakerOutcome::Answered);
    let retry = |id: u64| caller(10_000 + id, millis(now));
    let paid = breaker
        .admit(millis(now), retry(0), AttemptKind::FundedRetry)
        .unwrap();
    breaker.on_end(
        millis(now),
        paid,
        BreakerOutcome::Unknown,
        &mut MEDIAN_DRAW.clone(),
    );
    assert!(breaker.is_normal());
    for id in 1..=3 {
        assert_eq!(
            breaker.admit(millis(now), retry(id), AttemptKind::UnfundedRetry),
            None
        );
    }
    assert!(!breaker.is_normal() && !breaker.is_down());
    // Two in a hundred requests at first, so none in the first second.
    let now = requests(&mut breaker, now, 40, 25, 50, |_| BreakerOutcome::Answered);
    assert_eq!(breaker.queued(), 3, "first attempts are not held back");
    let mut at = now;
    while breaker.queued() > 0 {
        at = requests(&mut breaker, at, 1, 25, 50, |_| BreakerOutcome::Answered);
        if let Some((_, permit)) = breaker.release(millis(at)) {
            breaker.on_end(
                millis(at),
                permit,
                BreakerOutcome::Answered,
                &mut MEDIAN_DRAW.clone(),
            );
        }
        assert!(at < now + 5000, "there is room");
    }
    requests(&mut breaker, at, 80, 25, 50, |_| BreakerOutcome::Answered);
    assert!(breaker.is_normal(), "nobody waits any more");
}

/// A short server queue rejects fast, and rejects more under more load. Failures after full service
/// time are not caused by load, and are no reason to reduce the limit.
#[test]
fn a_step_that_causes_fast_failures_is_halved_the_next_time() {
    for (took, cut, headroom) in [(1, true, 1.05), (50, false, 1.1)] {
        let mut breaker = breaker();
        let now = requests(&mut breaker, 0, 400, 25, 50, |_| BreakerOutcome::Answered);
        let retry = caller(10_000, millis(now));
        assert_eq!(
            breaker.admit(millis(now), retry, AttemptKind::UnfundedRetry),
            None
        );
        let grown = |breaker: &CircuitBreaker| matches!(breaker.state, State::Limited(limit) if !limit.is_demand_only());
        let mut at = now;
        while !grown(&breaker) {
            at = requests(&mut breaker, at, 1, 25, 50, |_| BreakerOutcome::Answered);
        }
        let mut was_cut = false;
        for _ in 0..10 {
            at = requests(&mut breaker, at, 1, 25, 50, |_| BreakerOutcome::Answered);
            at = requests(&mut breaker, at, 1, 25, took, |_| BreakerOutcome::Failed);
            at = requests(&mut breaker, at, 1, 25, 50, |_| BreakerOutcome::Answered);
            was_cut |= !grown(&breaker);
        }
        assert!(!breaker.is_normal() && !breaker.is_down());
        assert_eq!(was_cut, cut, "after {took} ms");
        let is = breaker.step_scale.headroom();
        assert!((is - headroom).abs() < 0.006, "{is} after {took} ms");
    }
}

#[test]
fn fast_failures_may_be_overload_and_slow_failures_are_not() {
    let mut new = breaker();
    assert!(new.signal(millis(0)).maybe_overload);
    requests(&mut new, 0, 1, 25, 5, |_| BreakerOutcome::Failed);
    assert!(new.signal(millis(50)).maybe_overload, "no success is known");
    for (took, suspicious) in [(1, true), (20, false)] {
        let mut breaker = breaker();
        let now = requests(&mut breaker, 0, 400, 25, 20, |_| BreakerOutcome::Answered);
        assert!(
            breaker.signal(millis(now)).maybe_overload,
            "nothing has failed"
        );
        let now = requests(&mut breaker, now, 3, 25, took, |id| match id {
            1 => BreakerOutcome::Answered,
            _ => BreakerOutcome::Failed,
        });
        assert_eq!(
            breaker.signal(millis(now)).maybe_overload,
            suspicious,
            "{took} ms"
        );
    }
}

/// From 50 ms away, most of the time of a rejection and of a 10 ms success is the round trip.
#[test]
fn a_distant_rejection_may_be_overload_and_a_slow_failure_is_not() {
    for (took, suspicious) in [(101, true), (110, false)] {
        let mut breaker = breaker();
        let now = requests(&mut breaker, 0, 400, 25, 110, |_| BreakerOutcome::Answered);
        let now = requests(&mut breaker, now, 6, 25, took, |id| match id {
            1 => BreakerOutcome::Answered,
            _ => BreakerOutcome::Failed,
        });
        assert_eq!(
            breaker.signal(millis(now)).maybe_overload,
            suspicious,
            "{took} ms"
        );
    }
}

/// A low-traffic process need not wait up to ten seconds for its first evaluation.
#[test]
fn a_newly_started_process_compares_failures_with_the_first_success() {
    for (failed_after, suspicious) in [(1, true), (20, false)] {
        let mut breaker = breaker();
        let now = requests(&mut breaker, 0, 1, 100, 20, |_| BreakerOutcome::Answered);
        let now = requests(&mut breaker, now, 1, 100, failed_after, |_| {
            BreakerOutcome::Failed
        });
        let findings = breaker.signal(millis(now));
        assert_eq!(findings.maybe_overload, suspicious, "{failed_after} ms");
    }
}

#[test]
fn retries_are_free_while_the_breaker_paces_them() {
    let mut breaker = breaker();
    let now = requests(&mut breaker, 0, 400, 25, 1, |_| BreakerOutcome::Answered);
    let now = requests(&mut breaker, now, 40, 25, 1, |_| BreakerOutcome::Failed);
    let findings = breaker.signal(millis(now));
    assert!(breaker.is_down() && findings.retries_free);
    requests(&mut breaker, now + 1000, 1, 25, 1, |_| {
        BreakerOutcome::Answered
    });
    let findings = breaker.signal(millis(now + 1025));
    assert!(!breaker.is_down() && !breaker.is_normal() && findings.retries_free);
}

/// Number of consecutive failures, 25 ms apart, that bring the breaker down.
fn failures_until_down(breaker: &mut CircuitBreaker, from: u64) -> u64 {
    let mut count = 0;
    while !breaker.is_down() && count < 100 {
        requests(breaker, from + 25 * count, 1, 25, 1, |_| {
            BreakerOutcome::Failed
        });
        count += 1;
    }
    count
}

/// Chance brings a breaker down once in a thousand seconds, whatever its baseline share of failures.
#[test]
fn the_breaker_goes_down_when_chance_explains_no_more_failures() {
    for (every, least, most) in [(u64::MAX, 4, 5), (10, 5, 8), (2, 14, 20)] {
        let mut breaker = breaker();
        let baseline = |id: u64| match id % every {
            1 => BreakerOutcome::Failed,
            _ => BreakerOutcome::Answered,
        };
        let now = requests(&mut breaker, 0, 2400, 25, 1, baseline);
        let count = failures_until_down(&mut breaker, now);
        assert!(count >= least && count <= most, "one in {every}: {count}");
    }
    // Without any history, chance explains more failures in a row.
    let count = failures_until_down(&mut breaker(), 0);
    assert!((6..=10).contains(&count), "{count}");
}

#[test]
fn failures_of_one_moment_do_not_bring_the_breaker_down() {
    let mut breaker = breaker();
    let now = requests(&mut breaker, 0, 2400, 25, 1, |_| BreakerOutcome::Answered);
    requests(&mut breaker, now, 50, 1, 1, |_| BreakerOutcome::Failed);
    assert!(breaker.is_normal());
    requests(&mut breaker, now + 50, 50, 1, 1, |_| BreakerOutcome::Failed);
    assert!(breaker.is_down());
}

#[test]
fn a_timeout_without_a_success_meanwhile_brings_the_breaker_down() {
    let mut alone = breaker();
    requests(&mut alone, 0, 1, 1, 1000, |_| BreakerOutcome::TimedOut);
    assert!(alone.is_down());

    // Other attempts succeed meanwhile.
    let mut among = breaker();
    let slow = among
        .admit(millis(0), caller(0, millis(0)), AttemptKind::First)
        .unwrap();
    requests(&mut among, 0, 100, 10, 5, |_| BreakerOutcome::Answered);
    among.on_end(
        millis(1000),
        slow,
        BreakerOutcome::TimedOut,
        &mut MEDIAN_DRAW.clone(),
    );
    assert!(among.is_normal());
}

/// A breaker that went down in the 61st second, with three queued requests.
fn down_breaker() -> (CircuitBreaker, u64) {
    let mut breaker = breaker();
    let now = requests(&mut breaker, 0, 2400, 25, 5, |_| BreakerOutcome::Answered);
    requests(&mut breaker, now, 5, 25, 0, |_| BreakerOutcome::Failed);
    assert!(breaker.is_down());
    let now = now + 100;
    for id in 0..3 {
        let queued = breaker.admit(
            millis(now + 6),
            caller(100 + id, millis(now + 6 + id)),
            AttemptKind::First,
        );
        assert_eq!(queued, None);
    }
    (breaker, now)
}

#[test]
fn one_probe_runs_at_a_time_and_their_intervals_grow() {
    let (mut breaker, mut now) = down_breaker();
    // From 5 s on, half of the time since the first failure, which was just before.
    for wait in [
        500, 750, 1125, 1687, 2531, 3796, 5247, 7871, 11_807, 17_711, 20_000, 20_000,
    ] {
        let next = breaker.next_release(millis(now)).unwrap();
        let waited = next.as_nanos() / 1_000_000 - now;
        assert!(waited.abs_diff(wait) <= wait / 50, "{waited} for {wait}");
        assert_eq!(breaker.release(millis(now + waited - 1)), None);
        now += waited + 1;
        let (probe, permit) = breaker.release(millis(now)).unwrap();
        assert_eq!(
            (probe.id, permit.is_probe()),
            (102, true),
            "the one with the most time left"
        );
        assert_eq!(breaker.release(millis(now)), None);
        assert_eq!(
            breaker.admit(millis(now), caller(7, millis(now)), AttemptKind::First),
            None
        );
        breaker.forget(&caller(7, millis(now)));
        breaker.on_end(
            millis(now),
            permit,
            BreakerOutcome::Failed,
            &mut MEDIAN_DRAW.clone(),
        );
        assert_eq!(
            breaker.admit(millis(now), probe, AttemptKind::FundedRetry),
            None
        );
        breaker.forget(&probe);
        breaker.admit(millis(now), probe, AttemptKind::First);
    }
}

/// The end of a ten-second outage is noticed as soon as probes allow.
#[test]
fn a_high_traffic_process_probes_once_in_ten_requests() {
    for ended in [BreakerOutcome::Failed, BreakerOutcome::TimedOut] {
        let (mut breaker, mut now) = down_breaker();
        let mut probes = 0;
        for at in (now..now + 10_000).step_by(25) {
            breaker.on_request(millis(at));
            if let Some(permit) = breaker.admit(
                millis(at),
                caller(1000 + at, millis(at)),
                AttemptKind::First,
            ) {
                assert!(permit.is_probe());
                breaker.on_end(millis(at), permit, ended, &mut MEDIAN_DRAW.clone());
                probes += 1;
            }
            now = at;
        }
        assert!((35..=41).contains(&probes), "{ended:?}: {probes} of 400");
        assert!(breaker.is_down(), "at {now}");
    }
}

/// A success after `down` milliseconds ends the down state. A second of successes follows, in which one
/// in `mixed` fails; then only failures, until the breaker is down again.
fn down_again(down: u64, mixed: u64) -> (CircuitBreaker, u64) {
    let (mut breaker, now) = down_breaker();
    let (_, permit) = breaker.release(millis(now + down)).unwrap();
    let now = now + down + 1;
    breaker.on_end(
        millis(now),
        permit,
        BreakerOutcome::Answered,
        &mut MEDIAN_DRAW.clone(),
    );
    let ended = |id: u64| match (id + 1) % mixed {
        0 => BreakerOutcome::Failed,
        _ => BreakerOutcome::Answered,
    };
    let now = requests(&mut breaker, now, 40, 25, 1, ended);
    let count = failures_until_down(&mut breaker, now);
    (breaker, now + 25 * count)
}

/// In the scenario `flapping` (docs/research/policies.md) a destination alternates between a second up and a
/// second down.
#[test]
fn new_requests_probe_only_while_a_destination_flaps() {
    let probes = |breaker: &mut CircuitBreaker, now: u64| {
        let fresh = Waiter {
            until: Instant::MAX,
            since: millis(now),
            id: 9,
        };
        let permit = breaker.admit(millis(now), fresh, AttemptKind::First);
        if let Some(permit) = permit {
            breaker.on_end(
                millis(now),
                permit,
                BreakerOutcome::Failed,
                &mut MEDIAN_DRAW.clone(),
            );
        }
        breaker.forget(&fresh);
        permit.is_some_and(|permit| permit.is_probe())
    };
    let (mut flaps, now) = down_again(600, u64::MAX);
    assert!((0..80).all(|i| probes(&mut flaps, now + 25 * i)));
    assert!(
        (100..110)
            .filter(|i| probes(&mut flaps, now + 25 * i))
            .count()
            <= 1,
        "it is down for longer than it was"
    );
    let (mut was_long, now) = down_again(3000, u64::MAX);
    assert!(!probes(&mut was_long, now), "not a brief one before");
    let (mut mixed, now) = down_again(600, 10);
    assert!(!probes(&mut mixed, now), "failures amid successes");
}

/// The headroom from before the outage is still there.
#[test]
fn after_a_brief_outage_the_limit_starts_a_fifth_above_its_last_value() {
    let factor_after_outage = |down: u64, probe: BreakerOutcome| {
        let (mut breaker, now) = down_breaker();
        let (_, permit) = breaker.release(millis(now + 500)).unwrap();
        breaker.on_end(millis(now + 501), permit, probe, &mut MEDIAN_DRAW.clone());
        requests(&mut breaker, now + down, 1, 1, 0, |_| {
            BreakerOutcome::Answered
        });
        match breaker.state {
            State::Limited(limit) => limit.factor,
            State::Normal | State::Down(_) => panic!("{:?}", breaker.state),
        }
    };
    assert!((factor_after_outage(1500, BreakerOutcome::Failed) - 1.2 * NORMAL_FACTOR).abs() < 1e-9);
    assert_eq!(
        factor_after_outage(3000, BreakerOutcome::Failed),
        FIRST_FACTOR
    );
    assert_eq!(
        factor_after_outage(1500, BreakerOutcome::TimedOut),
        FIRST_FACTOR,
        "it may be load"
    );
    // The failures before the outage may be load-induced, too.
    let mut silent = breaker();
    let now = requests(&mut silent, 0, 400, 25, 5, |_| BreakerOutcome::Answered);
    requests(&mut silent, now, 20, 25, 1000, |_| BreakerOutcome::TimedOut);
    assert!(silent.is_down());
    requests(&mut silent, now + 2000, 1, 1, 0, |_| {
        BreakerOutcome::Answered
    });
    assert!(matches!(silent.state, State::Limited(limit) if limit.factor == FIRST_FACTOR));
}

/// The failures that bring the breaker down may be evaluated before they do.
#[test]
fn a_cut_just_before_a_brief_outage_does_not_reduce_the_headroom() {
    let mut flapping = Flapping::new();
    flapping.on_growth(2.0);
    flapping.on_failure(millis(1000), true);
    flapping.on_down(millis(1150), millis(1000));
    let factor = flapping.on_up(millis(2000), FIRST_FACTOR);
    assert!((factor - 2.4).abs() < 1e-9, "{factor}");
}

#[test]
fn a_cancelled_or_hanging_probe_does_not_keep_the_breaker_down() {
    let (mut breaker, now) = down_breaker();
    let (_, called_off) = breaker.release(millis(now + 500)).unwrap();
    breaker.on_end(
        millis(now + 600),
        called_off,
        BreakerOutcome::Unknown,
        &mut MEDIAN_DRAW.clone(),
    );
    assert!(breaker.release(millis(now + 600)).is_some());
    // This one hangs. The next is sent after twice `max_probe`.
    assert!(breaker.release(millis(now + 10_599)).is_none());
    let (_, permit) = breaker.release(millis(now + 10_600)).unwrap();
    breaker.on_end(
        millis(now + 10_601),
        permit,
        BreakerOutcome::Answered,
        &mut MEDIAN_DRAW.clone(),
    );
    assert!(!breaker.is_down());
}

/// docs/research/stability.md: late first attempts would keep a queue long although no client waits for its
/// responses any more.
#[test]
fn in_a_long_outage_one_in_eight_requests_gets_a_late_first_attempt() {
    let gone = |per_second: f64, ended: BreakerOutcome, after: u64| {
        let mut breaker = breaker();
        let every = (1000.0 / per_second) as u64;
        let count = (60.0 * per_second) as u64;
        let now = requests(&mut breaker, 0, count, every, 5, |_| {
            BreakerOutcome::Answered
        });
        let now = requests(&mut breaker, now, 20, 100, 1000, |_| ended);
        assert!(breaker.is_down());
        (0..80)
            .filter(|_| breaker.grants_late_first_attempt(millis(now + after)))
            .count()
    };
    assert_eq!(gone(40.0, BreakerOutcome::TimedOut, 0), 80);
    assert_eq!(gone(40.0, BreakerOutcome::TimedOut, 5000), 10);
    // Fast failures occupy no queue.
    assert_eq!(gone(40.0, BreakerOutcome::Failed, 5000), 80);
    // For each request that is sent, those of two seconds are held.
    for (per_second, least, most) in [(0.1, 80, 80), (1.0, 40, 80), (1.6, 26, 40), (5.0, 10, 10)] {
        let gone = gone(per_second, BreakerOutcome::TimedOut, 5000);
        assert!((least..=most).contains(&gone), "{per_second}: {gone}");
    }
}

/// A breaker of a process with one request in ten seconds, in the 61st second.
fn low_traffic() -> (CircuitBreaker, u64) {
    let mut breaker = breaker();
    let now = requests(&mut breaker, 0, 6, 10_000, 5, |_| BreakerOutcome::Answered);
    (breaker, now)
}

/// A queueing destination spends as much on a timeout as on a success. Ten thousand low-traffic
/// processes cannot afford more probes.
#[test]
fn a_low_traffic_process_probes_rarely_after_a_timeout() {
    let (mut breaker, now) = low_traffic();
    requests(&mut breaker, now, 1, 1, 1000, |_| BreakerOutcome::TimedOut);
    let queued = caller(50, millis(now));
    assert_eq!(
        breaker.admit(millis(now + 1000), queued, AttemptKind::FundedRetry),
        None
    );
    // Seven requests in a minute: three would take about 26 s, which is above the bound.
    let next = breaker.next_release(millis(now + 1000)).unwrap();
    assert_eq!(next, millis(now + 21_000));
    // One would take about nine, and a new request need not wait for the queued one.
    let early = caller(51, millis(now + 9000));
    assert_eq!(
        breaker.admit(millis(now + 9000), early, AttemptKind::First),
        None
    );
    let probe = breaker
        .admit(
            millis(now + 12_000),
            caller(52, millis(now + 12_000)),
            AttemptKind::First,
        )
        .unwrap();
    assert!(probe.is_probe());
    let ended = now + 12_050;
    breaker.on_end(
        millis(ended),
        probe,
        BreakerOutcome::Answered,
        &mut MEDIAN_DRAW.clone(),
    );
    // Slow, but new requests go while the queued ones still wait for their turn.
    let fresh = caller(53, millis(ended + 1));
    assert!(
        breaker
            .admit(millis(ended + 1), fresh, AttemptKind::First)
            .is_some()
    );
    assert_eq!(breaker.release(millis(ended + 1)), None);
}

/// One of four nodes does not respond: a request queued after a timeout would wait for most of its
/// time, at each retry.
#[test]
fn after_a_lone_timeout_and_a_fast_success_a_short_queue_goes_immediately() {
    let timeout: fn(u64) -> BreakerOutcome = |_| BreakerOutcome::TimedOut;
    let cases = [
        (timeout, 1000, 5, 4, true),
        (timeout, 1000, 5, 5, false),
        (timeout, 1000, 50, 4, false),
        (|_| BreakerOutcome::Failed, 1, 5, 4, false),
    ];
    for (ended, took, probe_took, queued, opens) in cases {
        let (mut breaker, mut now) = low_traffic();
        while !breaker.is_down() {
            now = requests(&mut breaker, now, 1, 101, took, ended);
        }
        for id in 0..queued {
            let queued = caller(50 + id, millis(now));
            assert_eq!(
                breaker.admit(millis(now + took), queued, AttemptKind::FundedRetry),
                None
            );
        }
        requests(&mut breaker, now + 12_000, 1, 1, probe_took, |_| {
            BreakerOutcome::Answered
        });
        assert_eq!(
            breaker.is_normal(),
            opens,
            "{probe_took} ms, {queued} queued"
        );
        let at = millis(now + 12_000 + probe_took);
        assert_eq!(breaker.release(at).is_some(), opens);
    }
}

/// A fast failure costs little, so a restart of some seconds is detected within seconds.
#[test]
fn a_low_traffic_process_probes_soon_after_fast_failures() {
    let (mut breaker, mut now) = low_traffic();
    requests(&mut breaker, now, 3, 100, 1, |_| BreakerOutcome::Failed);
    assert!(breaker.is_down());
    now += 201;
    let queued = caller(50, millis(now));
    for wait in [
        500, 750, 1125, 1687, 2531, 3797, 5297, 7947, 11_900, 17_900, 20_000,
    ] {
        assert_eq!(
            breaker.admit(millis(now), queued, AttemptKind::FundedRetry),
            None
        );
        let next = breaker.next_release(millis(now)).unwrap();
        let waited = next.as_nanos() / 1_000_000 - now;
        assert!(waited.abs_diff(wait) <= wait / 10, "{waited} for {wait}");
        now += waited + 1;
        let (_, permit) = breaker.release(millis(now)).unwrap();
        breaker.on_end(
            millis(now),
            permit,
            BreakerOutcome::Failed,
            &mut MEDIAN_DRAW.clone(),
        );
    }
}

/// Rare packet loss delays queued requests only once.
#[test]
fn after_a_false_alarm_one_timeout_does_not_bring_the_breaker_down() {
    let (mut breaker, mut now) = low_traffic();
    let timeout = |breaker: &mut CircuitBreaker, now: u64| {
        requests(breaker, now, 1, 1, 1000, |_| BreakerOutcome::TimedOut);
        breaker.is_down()
    };
    let probe = |breaker: &mut CircuitBreaker, now: u64, ended: BreakerOutcome| {
        let fresh = caller(now, millis(now));
        let permit = breaker
            .admit(millis(now), fresh, AttemptKind::First)
            .unwrap();
        assert!(permit.is_probe());
        breaker.on_end(millis(now), permit, ended, &mut MEDIAN_DRAW.clone());
    };
    assert!(timeout(&mut breaker, now));
    now += 30_000;
    probe(&mut breaker, now, BreakerOutcome::Answered);
    // The success just before shows that this attempt was lost, and that there is no silence.
    assert!(!timeout(&mut breaker, now + 1));
    assert!(!timeout(&mut breaker, now + 22_000));
    assert!(timeout(&mut breaker, now + 23_100));
    // This time it was no false alarm.
    now += 60_000;
    probe(&mut breaker, now, BreakerOutcome::TimedOut);
    now += 30_000;
    probe(&mut breaker, now, BreakerOutcome::Answered);
    assert!(timeout(&mut breaker, now + 2000));
}

/// One of four nodes does not respond. A low-traffic process sees no other response within a second of
/// a timeout, but its breaker had a false alarm before.
#[test]
fn after_a_false_alarm_a_timeout_between_fast_successes_is_packet_loss() {
    let (mut breaker, mut now) = low_traffic();
    let timeout_is_lost = |breaker: &mut CircuitBreaker, now: u64| {
        requests(breaker, now, 1, 1, 1000, |_| BreakerOutcome::TimedOut);
        breaker.signal(millis(now + 1000)).timeouts_are_loss
    };
    assert!(!timeout_is_lost(&mut breaker, now));
    assert!(breaker.is_down());
    now += 30_000;
    for _ in 0..3 {
        now = requests(&mut breaker, now, 1, 10_000, 10, |_| {
            BreakerOutcome::Answered
        });
        assert!(!breaker.is_down());
    }
    assert!(timeout_is_lost(&mut breaker, now));
}

/// A process with one request per second sees a success in less than a second before most lost attempts, and none
/// during them.
#[test]
fn a_lost_attempt_just_after_a_success_does_not_bring_the_breaker_down() {
    for (every, down) in [(1000, false), (3000, true)] {
        let mut breaker = breaker();
        let now = requests(&mut breaker, 0, 60, every, 5, |_| BreakerOutcome::Answered);
        requests(&mut breaker, now, 1, 1, 1000, |_| BreakerOutcome::TimedOut);
        assert_eq!(breaker.is_down(), down, "a request every {every} ms");
    }
}

/// The budget bounds such a retry already, and few requests take little from the destination.
#[test]
fn a_funded_retry_of_a_low_traffic_process_is_not_queued_while_the_breaker_is_limited() {
    for (every, admitted) in [(100, false), (300, false), (400, true), (30_000, true)] {
        let mut breaker = breaker();
        let now = requests(&mut breaker, 0, 200, every, 5, |_| BreakerOutcome::Answered);
        let now = requests(&mut breaker, now, 1, every, 1, |_| BreakerOutcome::Failed);
        let unpaid = caller(900, millis(now));
        assert_eq!(
            breaker.admit(millis(now), unpaid, AttemptKind::UnfundedRetry),
            None
        );
        assert!(!breaker.is_normal() && !breaker.is_down());
        let funded = breaker.admit(
            millis(now),
            caller(901, millis(now)),
            AttemptKind::FundedRetry,
        );
        assert_eq!(funded.is_some(), admitted, "a request every {every} ms");
    }
}

/// Fast failures may be a sign of overload, which the retries of a process with more requests would add to.
#[test]
fn a_low_traffic_process_raises_the_budget_ratio_whatever_its_failures_take() {
    for kind in [
        BreakerOutcome::Failed,
        BreakerOutcome::Overloaded,
        BreakerOutcome::TimedOut,
    ] {
        for (every, low_traffic) in [(100, false), (1000, true)] {
            let mut breaker = breaker();
            let failing = |id| {
                if id % 5 == 0 {
                    kind
                } else {
                    BreakerOutcome::Answered
                }
            };
            let now = requests(&mut breaker, 0, 200, every, 1, failing);
            let signal = breaker.signal(millis(now));
            assert_eq!(signal.low_traffic, low_traffic, "{kind:?} every {every} ms");
            assert!(
                !low_traffic || signal.ratio >= 0.25,
                "{kind:?}: {}",
                signal.ratio
            );
        }
    }
}

/// In a queue the retries of many such processes add up. A new process may be one of very many.
#[test]
fn a_new_process_and_one_that_saw_overload_have_no_low_traffic() {
    let (mut breaker, now) = low_traffic();
    let fail = |breaker: &mut CircuitBreaker, now: u64| {
        requests(breaker, now, 1, 1, 1, |_| BreakerOutcome::Failed);
        breaker.signal(millis(now + 1)).low_traffic
    };
    assert!(fail(&mut breaker, now));
    breaker.overload = Some(millis(now + 600));
    assert!(!fail(&mut breaker, now + 600));
    assert!(!fail(&mut breaker, now + 15_000));
    requests(&mut breaker, now + 15_700, 1, 1, 5, |_| {
        BreakerOutcome::Answered
    });
    assert!(fail(&mut breaker, now + 16_000));

    let mut new = self::breaker();
    assert!(!fail(&mut new, 0));
    requests(&mut new, 30_000, 1, 1, 5, |_| BreakerOutcome::Answered);
    assert!(!fail(&mut new, 59_998));
    assert!(fail(&mut new, 60_000));
    assert!(!fail(&mut new, 70_000), "the third failure in a row");
}

/// One of four nodes does not respond. Those timeouts leave a low-traffic process limited for long,
/// since it cannot measure gradually.
#[test]
fn packet_loss_ends_the_limit_of_a_low_traffic_process() {
    for (took, lossy) in [(10, true), (400, false)] {
        let mut breaker = breaker();
        let mut now = requests(&mut breaker, 0, 100, 500, 10, |_| BreakerOutcome::Answered);
        now += 500;
        breaker.limit(millis(now), DEMAND_ONLY_FACTOR);
        for _ in 0..5 {
            let permit = breaker.admit(millis(now), caller(1, millis(now)), AttemptKind::First);
            requests(&mut breaker, now + 990 - took, 1, 1, took, |_| {
                BreakerOutcome::Answered
            });
            let end = (
                millis(now + 1000),
                permit.unwrap(),
                BreakerOutcome::TimedOut,
            );
            breaker.on_end(end.0, end.1, end.2, &mut MEDIAN_DRAW.clone());
            assert_eq!(breaker.signal(millis(now + 1000)).timeouts_are_loss, lossy);
            now += 1500;
        }
        assert_eq!(breaker.is_normal(), lossy, "successes take {took} ms");
    }
}

/// A breaker that goes down in its first second comes up to the server queue that the outage has left.
/// If that latency became the baseline, such a queue would never count as slow.
#[test]
fn after_a_start_in_an_outage_the_fastest_successes_are_the_baseline() {
    let baseline_after = |judgements: &[(u64, BreakerOutcome)]| {
        let mut breaker = breaker();
        requests(&mut breaker, 0, 20, 25, 1000, |_| BreakerOutcome::TimedOut);
        assert!(breaker.is_down());
        let mut now = requests(&mut breaker, 3000, 1, 1000, 900, |_| {
            BreakerOutcome::Answered
        });
        for &(took, last) in judgements {
            assert!(!breaker.is_normal() && !breaker.is_down());
            now = requests(&mut breaker, now + 2000, 29, 25, took, |id| match id % 4 {
                3 => last,
                _ => BreakerOutcome::Answered,
            });
        }
        breaker.baseline.took() / 1e6
    };
    let well = BreakerOutcome::Answered;
    assert_eq!(baseline_after(&[(300, well)]), 300.0);
    assert_eq!(baseline_after(&[(300, well), (60, well)]), 60.0);
    assert_eq!(baseline_after(&[(60, well), (300, well)]), 60.0, "a queue");
    let refused = [(300, well), (60, BreakerOutcome::Overloaded)];
    assert_eq!(baseline_after(&refused), 300.0, "not faultless");
    // The normal state has provided the baseline.
    let mut baseline = Baseline::default();
    let tally = |took: u64| {
        let mut tally = Tally::default();
        tally.add(8, 8 * took);
        tally
    };
    baseline.learn_while_limited(&tally(60_000_000));
    let mut faulty = tally(50_000_000);
    faulty.failure(BreakerOutcome::Failed);
    baseline.learn_while_limited(&faulty);
    assert_eq!(baseline.took(), 6e7);
    for _ in 0..4 {
        baseline.learn(&tally(60_000_000));
    }
    baseline.learn_while_limited(&tally(50_000_000));
    assert_eq!(baseline.took(), 6e7);
}

/// A lost packet costs a timeout, and is no evidence about load.
#[test]
fn timeouts_between_successes_of_baseline_latency_are_not_overload() {
    for (took, open) in [(5, true), (400, false)] {
        let mut breaker = breaker();
        let mut now = requests(&mut breaker, 0, 2400, 25, 5, |_| BreakerOutcome::Answered);
        for _ in 0..200 {
            let lost = [caller(now, millis(now)), caller(now + 1, millis(now))];
            let lost = lost.map(|caller| breaker.admit(millis(now), caller, AttemptKind::First));
            now = requests(&mut breaker, now, 9, 25, took, |_| BreakerOutcome::Answered);
            for permit in lost.into_iter().flatten() {
                breaker.on_end(
                    millis(now),
                    permit,
                    BreakerOutcome::TimedOut,
                    &mut MEDIAN_DRAW.clone(),
                );
            }
        }
        assert_eq!(breaker.is_normal(), open, "{took} ms");
        // Lost attempts are repeated. Late ones cost as much as successes, so their retries stay within
        // the configured ratio.
        assert_eq!(breaker.ratio(millis(now)) > 0.2, open);
        assert_eq!(breaker.signal(millis(now)).timeouts_are_loss, open);
    }
}

/// It is faster without new requests: queued ones replace them.
#[test]
fn a_low_traffic_process_drains_its_queue_evenly() {
    for (fresh_every, least, most) in [(Some(2000), 75_000, 90_000), (None, 50_000, 62_000)] {
        let (mut breaker, now) = low_traffic();
        requests(&mut breaker, now, 4, 100, 1, |_| BreakerOutcome::Failed);
        let down_breaker = now + 301;
        for id in 0..10 {
            let queued = caller(100 + id, millis(down_breaker));
            assert_eq!(
                breaker.admit(millis(down_breaker), queued, AttemptKind::First),
                None
            );
        }
        let up = down_breaker + 20_000;
        let (_, permit) = breaker.release(millis(up)).unwrap();
        breaker.on_end(
            millis(up),
            permit,
            BreakerOutcome::Answered,
            &mut MEDIAN_DRAW.clone(),
        );
        let mut at = up;
        while breaker.queued() > 0 {
            at += 1;
            assert!(at < up + 2 * most, "{} are left", breaker.queued());
            if fresh_every.is_some_and(|every| (at - up) % every == 0) {
                let now = requests(&mut breaker, at, 1, 1, 1, |_| BreakerOutcome::Answered);
                assert_eq!(now, at + 1);
            }
            if let Some((_, permit)) = breaker.release(millis(at)) {
                breaker.on_end(
                    millis(at),
                    permit,
                    BreakerOutcome::Answered,
                    &mut MEDIAN_DRAW.clone(),
                );
            }
        }
        let took = at - up;
        assert!((least..=most).contains(&took), "{took} ms for 20 s");
    }
}

/// Two per cent of one request in ten seconds is one in ten minutes, beyond any max queue time.
#[test]
fn a_low_traffic_process_sends_a_queued_retry_within_its_max_queue_time() {
    let patience = CircuitBreakerConfig::DEFAULT.max_queue_time;
    let unpaid = || {
        let (mut breaker, now) = low_traffic();
        requests(&mut breaker, now, 1, 1, 1, |_| BreakerOutcome::Failed);
        breaker.limit(millis(now), DEMAND_ONLY_FACTOR);
        (breaker, now + 10_001)
    };
    let doubted = || {
        let (mut breaker, now) = low_traffic();
        requests(&mut breaker, now, 1, 1, 1000, |_| BreakerOutcome::TimedOut);
        assert!(breaker.is_down());
        requests(&mut breaker, now + 30_000, 1, 1, 20, |_| {
            BreakerOutcome::Answered
        });
        requests(&mut breaker, now + 41_000, 1, 1, 5, |_| {
            BreakerOutcome::Failed
        });
        (breaker, now + 41_005)
    };
    for (mut breaker, now) in [unpaid(), doubted()] {
        assert!(!breaker.is_normal() && !breaker.is_down());
        let retry = caller(50, millis(now));
        assert_eq!(
            breaker.admit(millis(now), retry, AttemptKind::UnfundedRetry),
            None
        );
        // Nothing else happens: the driver calls at the times that it gets.
        let mut at = millis(now);
        let mut looks = 0;
        while breaker.queued() > 0 {
            at = at.max(breaker.next_release(at).unwrap());
            breaker.release(at);
            looks += 1;
            assert!(looks < 10, "{at:?}");
        }
        let waited = at.saturating_since(millis(now));
        assert!(waited <= patience / 2 + OVERLOAD_MEMORY, "{waited:?}");
    }
}

/// After an outage of a second a low-traffic process is limited for seconds, but its release interval
/// is minutes.
#[test]
fn the_next_release_is_no_later_than_the_end_of_the_limit() {
    let (mut breaker, now) = low_traffic();
    requests(&mut breaker, now, 3, 100, 1, |_| BreakerOutcome::Failed);
    assert!(breaker.is_down());
    let up = requests(&mut breaker, now + 1200, 1, 5, 5, |_| {
        BreakerOutcome::Answered
    });
    let retry = caller(50, millis(now));
    assert_eq!(
        breaker.admit(millis(up), retry, AttemptKind::UnfundedRetry),
        None
    );
    let next = breaker.next_release(millis(up)).unwrap();
    assert!(next <= millis(up + 5000), "{next:?}");
    assert!(breaker.release(next).is_some() && breaker.is_normal());
}

/// A queue rejects most requests, and continues to. If that were the baseline, nothing would stop
/// further attempts.
#[test]
fn the_failure_baseline_is_at_most_half_where_load_may_cause_it() {
    let tally = |failures: u32| {
        let mut tally = Tally::default();
        tally.add(100 - failures, 1_000_000);
        (0..failures).for_each(|_| tally.failure(BreakerOutcome::Failed));
        tally
    };
    let mut baseline = Baseline::default();
    baseline.learn(&tally(80));
    assert!(baseline.fails_above_baseline(&tally(80), false));
    assert!(!baseline.fails_above_baseline(&tally(80), true));
    assert_eq!(baseline.attempts(), 2.0);
    let mut half = Baseline::default();
    half.learn(&tally(50));
    assert!(!half.fails_above_baseline(&tally(70), false), "it varies");
}

/// Where responses take longer than callers wait, the breaker goes down before it sees the queue that
/// it caused. With the same steps it would do so repeatedly.
#[test]
fn going_down_while_limited_halves_the_next_step_until_normal() {
    let (mut breaker, mut now) = down_breaker();
    let recover_briefly = |breaker: &mut CircuitBreaker, now: u64| {
        let now = requests(breaker, now + 2500, 1, 25, 5, |_| BreakerOutcome::Answered);
        match breaker.state {
            State::Limited(limit) => (now, limit.factor - 1.0),
            State::Normal | State::Down(_) => panic!("{:?}", breaker.state),
        }
    };
    for (least, ended) in [
        (0.1, BreakerOutcome::TimedOut),
        (0.05, BreakerOutcome::TimedOut),
        (0.025, BreakerOutcome::Failed),
        (0.025, BreakerOutcome::TimedOut),
        // Never below the rate that queued requests always get.
        (DEMAND_ONLY_FACTOR - 1.0, BreakerOutcome::TimedOut),
        (DEMAND_ONLY_FACTOR - 1.0, BreakerOutcome::TimedOut),
    ] {
        let (then, headroom) = recover_briefly(&mut breaker, now);
        assert!((headroom - least).abs() < 1e-6, "{headroom}, {least}");
        // So long after a success no timeout counts as packet loss.
        now = requests(&mut breaker, then + 200, 60, 25, 1000, |_| ended);
        assert!(breaker.is_down());
    }
    // The steps are shorter, too, and grow while nothing fails.
    (now, _) = recover_briefly(&mut breaker, now);
    let mut factors = Vec::new();
    for _ in 0..8 {
        now = requests(&mut breaker, now, 24, 25, 5, |_| BreakerOutcome::Answered);
        if let State::Limited(limit) = breaker.state {
            factors.push(limit.factor);
        }
    }
    let steps: Vec<f64> = factors.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(steps[0] < 0.12 / 20.0, "{steps:?}");
    assert!(steps.len() == 7 && steps[6] > 1.3 * steps[0], "{steps:?}");
    breaker.open(millis(now));
    requests(&mut breaker, now + 200, 60, 25, 1000, |_| {
        BreakerOutcome::TimedOut
    });
    assert!(breaker.is_down());
    let (_, headroom) = recover_briefly(&mut breaker, now + 1700);
    assert!(
        (headroom - 0.1).abs() < 1e-6,
        "{headroom} after it was open"
    );
}

/// If attempts fail at any load, queued requests need more of them: at most 5 % more, however many
/// fail.
#[test]
fn the_limit_allows_for_at_most_a_twentieth_more_attempts_per_request() {
    for (successes, pace) in [(u32::MAX, 1.0), (40, 1.275), (1, 1.55)] {
        let mut baseline = Baseline::default();
        let mut tally = Tally::default();
        tally.add(successes, 1_000_000);
        tally.failure(BreakerOutcome::Failed);
        baseline.learn(&tally);
        let limit = Limit::new(Instant::ORIGIN, FIRST_FACTOR, &baseline);
        let is = limit.pace(10.0);
        assert!((is - pace).abs() < 1e-6, "{is} after {successes}");
    }
}

/// In the scenario `bursts` (docs/research/policies.md) the backlog of a burst is served before the next one.
#[test]
fn queued_requests_use_the_demand_that_new_ones_leave_when_nothing_fails() {
    let mut limit = Limit::new(Instant::ORIGIN, FIRST_FACTOR, &Baseline::default());
    assert!((limit.pace(10.0) - 1.0).abs() < 1e-6, "beside the demand");
    // In proportion to the attempts that were seen.
    limit.grow(0.25, &mut { StepScale::WHOLE });
    limit.factor = FIRST_FACTOR;
    assert!((limit.pace(10.0) - 3.5).abs() < 1e-6);
    limit.grow(0.75, &mut { StepScale::WHOLE });
    limit.factor = FIRST_FACTOR;
    assert!((limit.pace(10.0) - 11.0).abs() < 1e-6);
    let gone = |limit: Limit, every: u64| {
        let mut limit = limit;
        let mut gone = 0;
        for at in 1..=10_000 {
            if at % every == 0 {
                limit.on_first_attempt(millis(at), 10.0);
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
    limit.hold(millis(1), 0.0);
    assert!(
        limit.pace(10.0) < 2.0,
        "it is slow: new requests are not replaced"
    );
}

/// A rate limiter without `Retry-After` rejects most of a burst. It has the same capacity when the
/// burst is over.
#[test]
fn after_a_burst_queued_requests_use_half_of_its_goodput() {
    let refused = BreakerOutcome::Overloaded;
    for (took, ended, served, follow) in [
        // Half of the goodput is 5 per second.
        (5, refused, 1, 9..=14),
        (24, refused, 1, 7..=14),
        (40, BreakerOutcome::TimedOut, 2, 0..=3),
    ] {
        let mut breaker = breaker();
        let now = requests(&mut breaker, 0, 2400, 25, took.min(5), |_| {
            BreakerOutcome::Answered
        });
        let failing = |id| match id % 4 < served {
            true => BreakerOutcome::Answered,
            false => ended,
        };
        // Of 40 per second ten succeed, or twenty: new requests are held back where most time out.
        let now = requests(&mut breaker, now, 100, 25, took, failing);
        assert!(!breaker.is_normal() && !breaker.is_down());
        for id in 0..20 {
            let waits = caller(10_000 + id, millis(now));
            assert_eq!(
                breaker.admit(millis(now), waits, AttemptKind::FundedRetry),
                None
            );
        }
        let gone = (now..now + 2000).filter(|at| breaker.release(millis(*at)).is_some());
        let gone = gone.count();
        assert!(follow.contains(&gone), "{took} ms: {gone} in 2 s");
    }
}

/// The growth of a queue shows by how much the rate is too high.
#[test]
fn a_limit_decreases_as_fast_as_latency_grows() {
    let mut limit = Limit::new(Instant::ORIGIN, 1.1, &Baseline::default());
    limit.grow(1.0, &mut { StepScale::WHOLE });
    limit.grow(1.0, &mut { StepScale::WHOLE });
    let grown = limit.factor;
    assert!(grown > 1.3);
    let mut steady = limit;
    steady.hold(Instant::ORIGIN, 0.0);
    let before = steady.factor;
    assert!(before > 1.1 && before < grown, "what it was before");
    steady.hold(Instant::ORIGIN, 0.0);
    assert_eq!(steady.factor, before, "the queue does not grow");
    limit.hold(Instant::ORIGIN, 0.3);
    let cut = limit.factor;
    assert!(cut < grown / 1.15 && cut >= 1.0, "{cut}");
}

/// A thread reads its clock before it waits for the lock: every second one comes 5 ms late.
#[test]
fn a_limit_counts_no_time_twice_if_threads_overtake_each_other() {
    let mut limit = Limit::new(Instant::ORIGIN, 0.5, &Baseline::default());
    let times = (5..1000).flat_map(|now| [now, now - 5]);
    let admitted = times.filter(|now| limit.admits(millis(*now), 100.0));
    assert_eq!(admitted.count(), 49, "half of a hundred in a second");
}

/// docs/research/stability.md: a service with an offered load of `load` times its capacity lets the rest fail.
#[test]
fn a_limit_is_right_after_one_evaluation() {
    const ATTEMPTS: u32 = 1000;
    let baseline = Baseline::default();
    for load in [1.1, 1.5, 2.0, 4.0] {
        let mut limit = Limit::new(Instant::ORIGIN, load, &baseline);
        let served = (f64::from(ATTEMPTS) / load) as u32;
        let mut tally = Tally::default();
        tally.add(served, 1_000_000);
        for _ in served..ATTEMPTS {
            tally.failure(BreakerOutcome::TimedOut);
        }
        limit.cut(Instant::ORIGIN, tally.kept(&baseline), MIN_FACTOR);
        assert!(
            (limit.factor - 1.0).abs() < 0.02,
            "{load}: {}",
            limit.factor
        );
        // The same by a queue, which grows by the excess.
        let mut limit = Limit::new(Instant::ORIGIN, load, &baseline);
        limit.hold(Instant::ORIGIN, load - 1.0);
        assert!(
            (1.0..1.0 + 0.13 * load).contains(&limit.factor),
            "{load}: {}",
            limit.factor
        );
    }
}

/// docs/research/stability.md: overload cuts all limits by one factor, and all grow by one step (AIMD).
#[test]
fn limits_of_processes_converge() {
    let baseline = Baseline::default();
    let [mut one, mut other] =
        [0.1, 0.9].map(|factor| Limit::new(Instant::ORIGIN, factor, &baseline));
    for _ in 0..10 {
        for limit in [&mut one, &mut other] {
            limit.cut(Instant::ORIGIN, 0.7, MIN_FACTOR);
            limit.grow(1.0, &mut { StepScale::WHOLE });
            limit.grow(1.0, &mut { StepScale::WHOLE });
        }
    }
    assert!(other.factor / one.factor < 1.05, "{one:?} {other:?}");
}

/// Either the server queue is too short to measure, or this is the new baseline.
#[test]
fn failures_above_the_baseline_cut_extra_attempts_or_become_the_baseline() {
    let (mut breaker, now) = down_breaker();
    let (_, permit) = breaker.release(millis(now + 500)).unwrap();
    breaker.on_end(
        millis(now + 501),
        permit,
        BreakerOutcome::Answered,
        &mut MEDIAN_DRAW.clone(),
    );
    let factor = |breaker: &CircuitBreaker| match &breaker.state {
        State::Limited(limit) => limit.factor,
        state => panic!("{state:?}"),
    };
    let half = |id: u64| match id % 2 {
        0 => BreakerOutcome::Failed,
        _ => BreakerOutcome::Answered,
    };
    for id in 0..40 {
        breaker.admit(
            millis(now + 501),
            caller(1000 + id, millis(now + 501)),
            AttemptKind::First,
        );
    }
    // They are faster than a success.
    let at = requests(&mut breaker, now + 502, 60, 25, 1, half);
    assert!(
        factor(&breaker) <= DEMAND_ONLY_FACTOR,
        "{}",
        factor(&breaker)
    );
    requests(&mut breaker, at, 1200, 25, 1, half);
    assert!(
        breaker.is_normal() || factor(&breaker) > 1.2,
        "{:?}",
        breaker.state
    );
}

#[test]
fn the_queue_drains_beside_new_requests_earliest_deadline_first() {
    let (mut breaker, now) = down_breaker();
    for id in 0..100_u64 {
        let late = Waiter {
            until: millis(200_000 + 1000 * (id % 10)),
            ..caller(1000 + id, millis(now + 30))
        };
        assert_eq!(
            breaker.admit(millis(now + 30), late, AttemptKind::First),
            None
        );
    }
    let (_, permit) = breaker.release(millis(now + 500)).unwrap();
    breaker.on_end(
        millis(now + 505),
        permit,
        BreakerOutcome::Answered,
        &mut MEDIAN_DRAW.clone(),
    );
    let mut released = Vec::new();
    let mut fresh = 0;
    let mut at = now + 505;
    while breaker.queued() > 0 {
        at += 5;
        if (at - now) % 25 == 0 {
            breaker.on_request(millis(at));
            let permit = breaker
                .admit(millis(at), caller(at, millis(at)), AttemptKind::First)
                .unwrap();
            breaker.on_end(
                millis(at + 5),
                permit,
                BreakerOutcome::Answered,
                &mut MEDIAN_DRAW.clone(),
            );
            fresh += 1;
        }
        while let Some((caller, permit)) = breaker.release(millis(at)) {
            released.push(caller.until);
            breaker.on_end(
                millis(at + 5),
                permit,
                BreakerOutcome::Answered,
                &mut MEDIAN_DRAW.clone(),
            );
        }
    }
    assert!(released.is_sorted());
    assert_eq!(released.len(), 102);
    // At most three times as many as new ones (the factor ends at four), and at least a tenth of them.
    assert!(fresh * 3 >= 102 && fresh <= 1020, "{fresh}");
}

/// Queues requests that arrive together, and lets the first probe half a second after `now` succeed.
fn recovered(breaker: &mut CircuitBreaker, now: u64, ids: core::ops::Range<u64>) -> u64 {
    for id in ids {
        breaker.on_request(millis(now));
        assert_eq!(
            breaker.admit(millis(now), caller(id, millis(now)), AttemptKind::First),
            None
        );
    }
    let up = now + 500;
    let (_, permit) = breaker.release(millis(up)).unwrap();
    breaker.on_end(
        millis(up),
        permit,
        BreakerOutcome::Answered,
        &mut MEDIAN_DRAW.clone(),
    );
    assert!(!breaker.is_down());
    up
}

/// A timer that is late by milliseconds delays no request further: all that are due go together.
#[test]
fn a_late_timer_releases_all_due_requests_together() {
    let drained = |every: u64| {
        let (mut breaker, now) = down_breaker();
        let mut at = recovered(&mut breaker, now, 1000..41_000) * 1_000_000;
        let since = at;
        while breaker.queued() > 0 {
            at = at.next_multiple_of(every);
            while let Some((_, permit)) = breaker.release(Instant::from_nanos(at)) {
                let took = Instant::from_nanos(at + 5_000_000);
                breaker.on_end(
                    took,
                    permit,
                    BreakerOutcome::Answered,
                    &mut MEDIAN_DRAW.clone(),
                );
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
fn queued_requests_count_as_demand() {
    let (mut breaker, now) = down_breaker();
    let up = recovered(&mut breaker, now, 1000..31_000);
    let mut went = [0; 2];
    for at in up..up + 120_000 {
        while let Some((_, permit)) = breaker.release(millis(at)) {
            // There is a server queue, so the limit does not grow.
            breaker.on_end(
                millis(at + 20),
                permit,
                BreakerOutcome::Answered,
                &mut MEDIAN_DRAW.clone(),
            );
            went[usize::from(at >= up + 60_000)] += 1;
        }
    }
    let [first, second] = went;
    assert!(
        breaker.queued() > 0 && second * 10 >= first * 8,
        "{first}, then {second}"
    );
}

#[test]
fn a_request_that_cannot_complete_in_time_is_not_released() {
    let (mut breaker, now) = down_breaker();
    let late = Waiter {
        until: millis(now + 506),
        ..caller(9, millis(now + 30))
    };
    assert_eq!(
        breaker.admit(millis(now + 30), late, AttemptKind::First),
        None
    );
    let (_, permit) = breaker.release(millis(now + 500)).unwrap();
    breaker.on_end(
        millis(now + 503),
        permit,
        BreakerOutcome::Answered,
        &mut MEDIAN_DRAW.clone(),
    );
    // Successes take 5 ms here: 506 is too soon.
    let mut at = now + 503;
    while let Some(next) = breaker.next_release(millis(at)) {
        at = at.max(next.as_nanos().div_ceil(1_000_000));
        let (released, _) = breaker.release(millis(at)).unwrap();
        assert_ne!(released.id, 9);
    }
    assert_eq!(breaker.queued(), 1);
    breaker.forget(&late);
    assert_eq!(breaker.queued(), 0);
}

#[test]
fn contradictory_breaker_times_are_rejected() {
    let zero = CircuitBreakerConfig {
        first_probe: Duration::ZERO,
        ..CircuitBreakerConfig::DEFAULT
    };
    assert_eq!(CircuitBreaker::new(&zero).unwrap_err().key(), "first_probe");
    let reversed = CircuitBreakerConfig {
        max_probe: Duration::from_millis(1),
        ..CircuitBreakerConfig::DEFAULT
    };
    assert_eq!(
        CircuitBreaker::new(&reversed).unwrap_err().key(),
        "max_probe"
    );
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Ask { fresh: bool, patience: u64 },
    End { which: usize, ended: BreakerOutcome },
    Release,
    Forget(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let ended = prop_oneof![
        Just(BreakerOutcome::Answered),
        Just(BreakerOutcome::Failed),
        Just(BreakerOutcome::Overloaded),
        Just(BreakerOutcome::TimedOut),
        Just(BreakerOutcome::Unknown)
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
    fn no_queued_request_is_lost_or_waits_for_ever(steps in prop::collection::vec(step(), 1..200), draw in 0.0..1.0f64) {
        let mut random = FixedRandom::at(draw);
        let mut breaker = breaker();
        let mut now = Instant::ORIGIN;
        let (mut queued, mut running): (Vec<Waiter>, Vec<BreakerPermit>) = (Vec::new(), Vec::new());
        for (id, step) in (0..).zip(steps) {
            match step {
                Step::Pass(nanos) => now = Instant::from_nanos(now.as_nanos().saturating_add(nanos)),
                Step::Ask { fresh, patience } => {
                    breaker.on_request(now);
                    let until = Instant::from_nanos(now.as_nanos().saturating_add(patience));
                    let caller = Waiter { until, since: now, id };
                    let kind = if fresh { AttemptKind::First } else { AttemptKind::FundedRetry };
                    match breaker.admit(now, caller, kind) {
                        Some(permit) => running.push(permit),
                        None => { prop_assert!(!breaker.is_normal()); queued.push(caller) }
                    }
                }
                Step::End { which, ended } if !running.is_empty() => {
                    let permit = running.swap_remove(which % running.len());
                    breaker.on_end(now, permit, ended, &mut random);
                }
                Step::Release => {
                    if let Some((caller, permit)) = breaker.release(now) {
                        let index = queued.iter().position(|other| *other == caller);
                        prop_assert!(index.is_some(), "{caller:?} was not queued");
                        queued.swap_remove(index.unwrap());
                        running.push(permit);
                    }
                }
                Step::Forget(which) if !queued.is_empty() => {
                    let caller = queued.swap_remove(which % queued.len());
                    breaker.forget(&caller);
                }
                Step::End { .. } | Step::Forget(_) => {}
            }
            prop_assert_eq!(breaker.queued(), queued.len());
        }
        for caller in queued {
            breaker.forget(&caller);
        }
        // The destination is up again, and a request without a deadline arrives.
        for id in 0..3 {
            let caller = Waiter { until: Instant::MAX, since: now, id };
            if let Some(permit) = breaker.admit(now, caller, if id == 0 { AttemptKind::First } else { AttemptKind::FundedRetry }) {
                breaker.on_end(now, permit, BreakerOutcome::Answered, &mut random);
            }
        }
        let mut rounds = 0;
        while breaker.queued() > 0 && now < Instant::MAX {
            rounds += 1;
            prop_assert!(rounds < 1000);
            let next = breaker.next_release(now);
            prop_assert!(next.is_some(), "queued, and never to be released: {breaker:?}");
            now = now.max(next.unwrap());
            if let Some((_, permit)) = breaker.release(now) {
                breaker.on_end(now, permit, BreakerOutcome::Answered, &mut random);
            }
        }
    }
}
