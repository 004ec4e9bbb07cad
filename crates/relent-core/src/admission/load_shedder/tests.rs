#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

use super::*;
use alloc::vec::Vec;
use proptest::prelude::*;

/// The advice of a shedder that rejects.
const SHED: Result<(), Advice> = Err(Advice::None);

/// A shedder of a service that ends each millisecond, so the queue length is the delay in
/// milliseconds.
fn shedder() -> Shedder {
    with(&ShedderConfig::DEFAULT)
}

fn with(config: &ShedderConfig) -> Shedder {
    let mut shedder = Shedder::new(config).unwrap();
    shedder.service = 1_000_000;
    shedder
}

fn admits(shedder: &mut Shedder, millis: u64, arrival: &Arrival) -> bool {
    admit(shedder, millis, arrival) == Ok(())
}

fn admit(shedder: &mut Shedder, millis: u64, arrival: &Arrival) -> Result<(), Advice> {
    let admitted = shedder.admit(at(millis), arrival);
    admitted.map_err(|shed| shed.advice)
}

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn arrival(attempt: u32, queued: u32) -> Arrival {
    Arrival {
        attempt,
        queued,
        ..Arrival::FIRST
    }
}

#[test]
fn a_burst_that_drains_within_the_interval_sheds_nothing() {
    let mut shedder = shedder();
    for millis in 0..1000 {
        // 90 ms above the target, then briefly at it.
        let queued = if millis % 91 == 90 { 20 } else { 500 };
        assert!(
            admits(&mut shedder, millis, &arrival(2, queued)),
            "{millis}"
        );
    }
    assert!(!shedder.is_overloaded(at(1000)));
}

#[test]
fn a_standing_queue_sheds_retries_before_first_attempts() {
    let mut shedder = shedder();
    admits(&mut shedder, 0, &arrival(1, 21));
    // 20 ms is not above the target: the queue stands only after another interval.
    for (attempt, queued) in [(2, 20), (1, 21), (2, 21)] {
        assert!(admits(&mut shedder, 100, &arrival(attempt, queued)));
    }
    for (attempt, queued, expected) in [
        (2, 21, false),
        (1, 40, true),
        (1, 41, false),
        (0, 40, true),
        (2, 20, true),
    ] {
        let is = admits(&mut shedder, 200, &arrival(attempt, queued));
        assert_eq!(is, expected, "attempt {attempt}, {queued} ms");
    }
}

#[test]
fn a_queue_that_rises_again_within_the_interval_stands_immediately() {
    let mut shedder = shedder();
    for (millis, queued, admitted, overloaded) in [
        (0, 30, true, false),
        (100, 30, false, true),
        (150, 0, true, true),
        (199, 30, false, true),
        (250, 0, true, true),
        (299, 0, true, false),
        (300, 30, true, false),
    ] {
        let is = admits(&mut shedder, millis, &arrival(2, queued));
        assert_eq!(is, admitted, "{millis}");
        assert_eq!(shedder.is_overloaded(at(millis)), overloaded, "{millis}");
    }
}

#[test]
fn a_queue_that_emptied_between_two_arrivals_does_not_stand() {
    let mut shedder = shedder();
    assert!(admits(&mut shedder, 0, &arrival(1, 50)));
    shedder.on_service_end(at(50), 0);
    assert!(admits(&mut shedder, 60_000, &arrival(1, 50)));
    assert!(!shedder.is_overloaded(at(60_000)));
}

#[test]
fn the_service_time_is_measured_while_requests_wait() {
    let mut shedder = Shedder::new(&ShedderConfig::DEFAULT).unwrap();
    assert_eq!(
        shedder.queue_delay(1000),
        Duration::ZERO,
        "nothing is known"
    );
    // With waiting requests an end each 2 ms; then idle for a second.
    for millis in [0, 2, 4] {
        shedder.on_service_end(at(millis), 1);
    }
    shedder.on_service_end(at(6), 0);
    shedder.on_service_end(at(1006), 1);
    assert_eq!(shedder.queue_delay(10), Duration::from_millis(20));
    // A stall of an hour counts as one interval: (3 · 2 + 100)/4.
    shedder.on_service_end(at(3_601_006), 0);
    assert_eq!(shedder.queue_delay(2), Duration::from_millis(53));
    // The estimate follows a service that becomes slower.
    for end in 0..500 {
        shedder.on_service_end(at(4_000_000 + 4 * end), 1);
    }
    let delay = shedder.queue_delay(10).as_secs_f64();
    assert!((delay / 0.04 - 1.0).abs() < 0.01, "{delay}");
}

#[test]
fn the_in_flight_bound_reserves_capacity_for_first_attempts() {
    let config = ShedderConfig {
        in_flight: 8,
        ..ShedderConfig::DEFAULT
    };
    let mut shedder = with(&config);
    for in_flight in 0..10 {
        for (attempt, most) in [(2, 6), (1, 8)] {
            let arrival = Arrival {
                in_flight,
                ..arrival(attempt, 0)
            };
            let is = admits(&mut shedder, 0, &arrival);
            assert_eq!(is, in_flight < most, "attempt {attempt} beside {in_flight}");
        }
    }
}

#[test]
fn if_most_attempts_are_retries_shed_requests_must_not_retry() {
    let do_not_retry = Err(Advice::DoNotRetry);
    let mut all = shedder();
    for _ in 0..10 {
        let _ = all.admit(at(0), &arrival(1, 50));
    }
    for attempt in 2..11 {
        let _ = all.admit(at(0), &arrival(attempt, 50));
    }
    assert_eq!(admit(&mut all, 100, &arrival(2, 50)), SHED, "half of them");
    assert_eq!(admit(&mut all, 100, &arrival(2, 50)), do_not_retry, "most");
    // Ten seconds later the first attempts are the majority again.
    let _ = all.admit(at(11_000), &arrival(1, 50));
    assert_eq!(admit(&mut all, 11_100, &arrival(1, 50)), SHED);

    // One client is the cause, and its histogram shows it.
    let mut one = shedder();
    let _ = one.admit(at(0), &arrival(1, 50));
    let client = Arrival {
        histogram: Some([4, 3, 2, 0, 0, 0, 0, 0]),
        ..arrival(1, 50)
    };
    assert_eq!(admit(&mut one, 100, &client), do_not_retry);
    assert_eq!(admit(&mut one, 100, &arrival(1, 50)), SHED);
}

/// Attempts in one second of an overload, by each caller in turn with its reported attempt numbers.
/// Returns those with the advice not to retry.
fn shed_with_do_not_retry(callers: &[(Option<u64>, &[u32])]) -> Vec<(Option<u64>, u32)> {
    let mut shedder = shedder();
    let mut told = Vec::new();
    for millis in 0..1000 {
        let (caller, attempts) = callers[millis % callers.len()];
        let attempt = attempts[millis / callers.len() % attempts.len()];
        let arrival = Arrival {
            caller,
            ..arrival(attempt, 100)
        };
        // The first requests are admitted, before the queue stands.
        if admit(&mut shedder, millis as u64, &arrival) == Err(Advice::DoNotRetry) {
            told.push((caller, attempt));
        }
    }
    told
}

#[test]
fn one_client_cannot_change_the_retry_advice_for_others() {
    let honest: Vec<_> = (1..=20)
        .map(|caller| (Some(caller), &[1_u32][..]))
        .collect();
    // It sends three times as much as all others together.
    let liar = (Some(77), &[9_u32][..]);
    let mut crowd = honest.clone();
    crowd.extend([liar; 60]);
    assert_eq!(shed_with_do_not_retry(&crowd), []);
    // The same for a client without an identity, and for one of two clients.
    let nobody = (None, &[9_u32][..]);
    let mut crowd = honest.clone();
    crowd.extend([nobody; 60]);
    assert_eq!(shed_with_do_not_retry(&crowd), []);
    assert_eq!(shed_with_do_not_retry(&[honest[0], liar, liar, liar]), []);
    // If callers have no identity, those that do not retry never get the advice.
    let first = (None, &[1_u32][..]);
    let told = shed_with_do_not_retry(&[first, nobody, nobody, nobody]);
    assert!(told.iter().all(|(_, attempt)| *attempt == 9), "{told:?}");
}

#[test]
fn if_most_callers_retry_all_shed_requests_must_not_retry() {
    let retrying: Vec<_> = (1..=20)
        .map(|caller| (Some(caller), &[1, 2, 3, 4][..]))
        .collect();
    let told = shed_with_do_not_retry(&retrying);
    let retries = told.iter().filter(|(_, attempt)| *attempt > 1).count();
    assert!(retries > 400, "{retries} of 750");
    // Without caller identities, too, for those that retry.
    let retrying = [(None, &[1, 2, 3, 4][..])];
    let told = shed_with_do_not_retry(&retrying);
    assert!(told.len() > 400, "{} of 750", told.len());
    assert!(told.iter().all(|(_, attempt)| *attempt > 1), "{told:?}");
}

/// A service of 1000 per second that gets `firsts` first attempts and one retry each millisecond.
/// Returns the admitted first attempts, the services, and the longest queue after the first second.
fn flood(firsts: u32) -> (u32, u32, u32) {
    let mut shedder = Shedder::new(&ShedderConfig::DEFAULT).unwrap();
    let (mut queued, mut served, mut admitted, mut longest) = (0, 0, 0, 0);
    for millis in 0..60_000 {
        for index in 0..=firsts {
            let attempt = if index < firsts { 1 } else { 2 };
            if admits(&mut shedder, millis, &arrival(attempt, queued)) {
                queued += 1;
                admitted += u32::from(attempt == 1);
            }
        }
        if queued > 0 {
            queued -= 1;
            served += 1;
            shedder.on_service_end(at(millis), queued);
        }
        if millis >= 1000 {
            longest = longest.max(queued);
        }
    }
    (admitted, served, longest)
}

#[test]
fn under_any_load_the_queue_stays_short_and_the_service_busy() {
    // As many first attempts as the capacity, and as many retries: first attempts are shed only in
    // the first interval.
    let (admitted, served, longest) = flood(1);
    assert_eq!(served, 60_000);
    assert!(admitted >= 59_900, "{admitted}");
    assert!(longest <= 41, "{longest} ms");
    // Five times the capacity.
    let (admitted, served, longest) = flood(5);
    assert_eq!(served, 60_000);
    assert!(admitted >= 59_800, "{admitted}");
    assert!(longest <= 41, "{longest} ms");
}

#[test]
fn a_shed_request_gets_the_time_until_the_queue_is_at_its_target() {
    let mut shedder = shedder();
    let _ = shedder.admit(at(0), &arrival(1, 500));
    for (queued, after) in [(500, 480), (121, 101), (120, 100), (41, 100)] {
        let shed = shedder.admit(at(100), &arrival(1, queued)).unwrap_err();
        assert_eq!(shed.after, Duration::from_millis(after), "{queued}");
    }
    // Without a queue the only estimate is one interval.
    let mut full = with(&ShedderConfig {
        in_flight: 1,
        ..ShedderConfig::DEFAULT
    });
    let busy = Arrival {
        in_flight: 1,
        ..Arrival::FIRST
    };
    let shed = full.admit(at(0), &busy).unwrap_err();
    assert_eq!(shed.after, Duration::from_millis(100));
}

#[test]
fn an_invalid_shedder_config_is_rejected() {
    let config = ShedderConfig::DEFAULT;
    for (config, key) in [
        (
            ShedderConfig {
                target: Duration::ZERO,
                ..config
            },
            "target",
        ),
        (
            ShedderConfig {
                interval: Duration::ZERO,
                ..config
            },
            "interval",
        ),
        (
            ShedderConfig {
                in_flight: 0,
                ..config
            },
            "in_flight",
        ),
        (
            ShedderConfig {
                retry_in_flight_share: f64::NAN,
                ..config
            },
            "retry_in_flight_share",
        ),
        (
            ShedderConfig {
                retry_share: 1.1,
                ..config
            },
            "retry_share",
        ),
    ] {
        assert_eq!(Shedder::new(&config).unwrap_err().key(), key);
    }
}

proptest! {
    #[test]
    fn first_attempts_are_admitted_whenever_retries_are(
        target in 1..50_u32, interval in 1..200_u64, most in 1..20_u32, room in 0.0..=1.0,
        steps in prop::collection::vec((-20..50_i64, 0..5_u32, 0..100_u32, 0..30_u32), 1..200),
    ) {
        let mut shedder = with(&ShedderConfig {
            target: Duration::from_millis(target.into()),
            interval: Duration::from_millis(interval),
            in_flight: most,
            retry_in_flight_share: room,
            retry_share: 0.5,
        });
        let (mut clock, mut latest) = (0_i64, 0);
        // Since when every delay was above the target, and until when another rise counts as the
        // same.
        let (mut above, mut same_until) = (None, 0);
        for (step, attempt, queued, in_flight) in steps {
            clock = (clock + step).max(0);
            latest = latest.max(clock as u64);
            above = above.or(Some(latest)).filter(|_| queued > target);
            let stands = above.is_some_and(|above| latest - above >= interval || latest < same_until);
            if stands {
                same_until = latest + interval;
            }
            let arrival = Arrival { in_flight, ..arrival(attempt, queued) };
            let first = Arrival { attempt: 1, ..arrival };
            let first = admits(&mut shedder.clone(), clock as u64, &first);
            let retry = Arrival { attempt: 2, ..arrival };
            let retry = admits(&mut shedder.clone(), clock as u64, &retry);
            prop_assert!(first || !retry);
            prop_assert_eq!(first, in_flight < most && !(stands && queued > 2 * target));
            let retries_most = (f64::from(most) * room) as u32;
            prop_assert_eq!(retry, in_flight < retries_most && !stands);
            admits(&mut shedder, clock as u64, &arrival);
        }
    }

    #[test]
    fn no_value_makes_the_shedder_panic(
        config in (any::<u64>(), any::<u64>(), any::<u32>(), any::<f64>(), any::<f64>()),
        calls in prop::collection::vec(
            (any::<u64>(), any::<u32>(), any::<u32>(), any::<u32>(), any::<Option<[u32; BUCKETS]>>()),
            1..40,
        ),
    ) {
        let (target, interval, in_flight, retry_in_flight_share, retry_share) = config;
        let shedder = Shedder::new(&ShedderConfig {
            target: Duration::from_nanos(target),
            interval: Duration::from_nanos(interval),
            in_flight,
            retry_in_flight_share,
            retry_share,
        });
        let mut shedder = shedder.unwrap_or_else(|_| self::shedder());
        for (now, attempt, queued, in_flight, histogram) in calls {
            let arrival = Arrival { attempt, queued, in_flight, histogram, ..Arrival::FIRST };
            if let Err(shed) = shedder.admit(Instant::from_nanos(now), &arrival) {
                prop_assert!(!shed.after.is_zero());
            }
            shedder.on_service_end(Instant::from_nanos(now), queued);
        }
    }
}
