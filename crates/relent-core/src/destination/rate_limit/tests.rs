use alloc::vec::Vec;
use core::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::failure::Failure;
use crate::hint::{Audience, Hint};

const MILLI: u64 = 1_000_000;

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * MILLI)
}

impl RateLimit {
    fn on_failure(&mut self, now: Instant, started: Instant, failure: &Failure) {
        self.on_end(now, started, &AttemptOutcome::of(failure));
    }
}

fn fixed(limit: f64, burst: u32) -> RateLimit {
    RateLimit::new(&RateLimitConfig {
        burst: Some(burst),
        ..RateLimitConfig::new(limit)
    })
    .unwrap()
}

fn adaptive() -> RateLimit {
    RateLimit::new(&RateLimitConfig::ADAPTIVE).unwrap()
}

/// Makes attempts at this interval as far as the rate permits; returns their number.
fn attempts(rate: &mut RateLimit, from: u64, to: u64, every: u64) -> usize {
    let times = (from..to).step_by(every as usize);
    times.filter(|millis| rate.take(at(*millis))).count()
}

#[test]
fn an_unused_slot_is_returned_unless_another_was_taken_since() {
    let mut rate = fixed(10.0, 1);
    assert!(rate.take(at(100)));
    rate.give_back(at(100));
    assert!(rate.take(at(120)));
    // Another slot has been taken since: a third attempt would follow 10 ms after the second.
    rate.give_back(at(100));
    assert_eq!(rate.next_slot(at(130)), at(220));
    rate.give_back(at(120));
    rate.give_back(at(120));
    assert!(rate.take(at(130)), "given back once");
    assert_eq!(rate.next_slot(at(130)), at(230));
}

#[test]
fn a_slot_from_before_a_rate_reduction_returns_nothing() {
    let mut rate = adaptive();
    attempts(&mut rate, 0, 1000, 10);
    assert!(rate.take(at(1000)));
    rate.on_failure(at(1000), at(995), &Failure::throttled());
    let next = rate.next_slot(at(1000));
    rate.give_back(at(1000));
    assert_eq!(rate.next_slot(at(1000)), next);
}

#[test]
fn without_a_limit_all_attempts_are_sent_until_throttling() {
    let mut rate = adaptive();
    assert_eq!(attempts(&mut rate, 0, 2000, 10), 200);
    assert_eq!(rate.limit(at(2000)), None);
    rate.on_failure(at(2000), at(1990), &Failure::ambiguous());
    assert_eq!(rate.limit(at(2000)), None);
    rate.on_failure(at(2000), at(1990), &Failure::throttled());
    let limit = rate.limit(at(2000)).unwrap();
    assert!((60.0..=70.0).contains(&limit), "0.7 of about 100: {limit}");
}

#[test]
fn attempts_sent_before_a_rate_reduction_cause_no_other() {
    let mut rate = adaptive();
    attempts(&mut rate, 0, 1000, 10);
    for millis in 0..100 {
        rate.on_failure(at(1000 + millis), at(900 + millis), &Failure::throttled());
    }
    let limit = rate.limit(at(1100)).unwrap();
    assert!(limit > 60.0, "{limit}");
    rate.on_failure(at(1100), at(1000), &Failure::throttled());
    assert!(rate.limit(at(1100)).unwrap() < 0.75 * limit);
}

#[test]
fn a_reduced_rate_recovers_along_the_cubic_of_rfc_9438() {
    let mut rate = adaptive();
    attempts(&mut rate, 0, 1000, 10);
    rate.on_failure(at(1000), at(990), &Failure::throttled());
    let top = rate.limit(at(1000)).unwrap() / 0.7;
    // ∛(top · 0.3 / 0.4) seconds.
    let regain = (libm::cbrt(top * 0.75) * 1000.0) as u64;
    let limits: Vec<_> = (0..=20)
        .map(|tenth| rate.limit(at(1000 + regain * tenth / 10)).unwrap())
        .collect();
    assert!(limits.is_sorted());
    assert!((limits[10] / top - 1.0).abs() < 0.01, "{limits:?}");
    let near = limits[11] - limits[9];
    assert!(near < 0.01 * top, "slow where it was too much: {near}");
    assert!((limits[20] / top - 1.3).abs() < 0.01, "{limits:?}");
}

#[test]
fn an_adaptive_rate_stays_between_its_minimum_and_the_limit() {
    let config = RateLimitConfig {
        adaptive: true,
        ..RateLimitConfig::new(50.0)
    };
    let mut rate = RateLimit::new(&config).unwrap();
    for second in 0..60 {
        attempts(&mut rate, second * 1000, second * 1000 + 1000, 1);
        let now = at(second * 1000 + 1000);
        rate.on_failure(now, now, &Failure::throttled());
    }
    let least = rate.limit(at(60_000)).unwrap();
    assert!((0.49..=0.51).contains(&least), "{least}");
    assert!(rate.limit(at(600_000)).unwrap() <= 50.0);
    let sent = attempts(&mut rate, 600_000, 610_000, 1);
    assert!((500..=505).contains(&sent), "{sent}");
}

#[test]
fn a_ticket_does_not_reduce_the_rate_but_a_shared_hint_does() {
    let mut rate = adaptive();
    attempts(&mut rate, 0, 1000, 10);
    let hint = Hint::after(Duration::from_secs(1));
    let ticket = hint.for_audience(Audience::TicketMillis);
    rate.on_failure(at(1000), at(990), &Failure::throttled().hint(ticket));
    assert_eq!(rate.limit(at(1000)), None);
    rate.on_failure(at(1000), at(990), &Failure::throttled().hint(hint));
    assert!(rate.limit(at(1000)).is_some());
}

#[test]
fn a_burst_of_any_size_is_a_limit() {
    let now = Instant::from_nanos(1 << 60);
    for burst in [1, 1000, 46_000] {
        let mut rate = fixed(0.000_01, burst);
        let took = (0..burst + 10).filter(|_| rate.take(now)).count();
        assert_eq!(took, burst as usize);
    }
    // Its value in time does not fit on the time line.
    let config = RateLimitConfig {
        burst: Some(200_000),
        ..RateLimitConfig::new(0.000_01)
    };
    assert_eq!(RateLimit::new(&config).unwrap_err().key(), "burst");
    // At the end of the time line there are no more slots, rather than any number.
    let mut rate = fixed(10.0, 5);
    assert!((0..10).filter(|_| rate.take(Instant::MAX)).count() <= 5);
}

proptest! {
    /// The used slots of any window are at most the rate and a burst.
    #[test]
    fn any_window_has_at_most_the_slots_of_the_rate_and_a_burst(
        steps in prop::collection::vec((0..40u64, prop::bool::weighted(0.2)), 1..200),
        limit in 20.0..200.0f64,
        burst in 1..5u32,
    ) {
        let mut rate = fixed(limit, burst);
        let interval = interval(limit);
        let mut now = 0;
        let mut used: Vec<u64> = Vec::new();
        for (passed, unused) in steps {
            now += passed;
            if rate.take(at(now)) {
                if unused {
                    rate.give_back(at(now));
                } else {
                    used.push(now);
                }
            }
            prop_assert!(rate.next_slot(at(now)) >= at(now));
        }
        for (index, from) in used.iter().enumerate() {
            for (count, to) in (1..).zip(&used[index..]) {
                let span = (to - from) * MILLI;
                prop_assert!(span + u64::from(burst) * interval >= count * interval);
            }
        }
    }
}
