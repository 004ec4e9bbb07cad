#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

use super::*;
use alloc::vec::Vec;
use proptest::prelude::*;

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLI;
const TICKET: Verdict = Verdict::Admitted { ticket: true };
const FREE: Verdict = Verdict::Admitted { ticket: false };

/// A hundred per second, burst 1; time in milliseconds, so slots are ten apart.
const CONFIG: LimiterConfig = LimiterConfig {
    burst: 1,
    ..LimiterConfig::new(100, Duration::from_secs(1))
};

fn limiter(config: &LimiterConfig) -> Limiter {
    Limiter::new(config).unwrap()
}

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * MILLI)
}

fn judge(limiter: &mut Limiter, millis: u64, key: impl Into<Option<u64>>) -> Verdict {
    limiter.admit(at(millis), key.into(), 1)
}

fn ticket(millis: u64) -> Verdict {
    Verdict::Refused(Refusal::Ticket(Duration::from_millis(millis)))
}

fn shared(millis: u64) -> Verdict {
    Verdict::Refused(Refusal::Shared(Duration::from_millis(millis)))
}

#[test]
fn a_thundering_herd_is_admitted_at_the_rate_with_two_attempts_each() {
    let mut limiter = limiter(&LimiterConfig {
        burst: 10,
        ..CONFIG
    });
    let mut slots = Vec::new();
    for key in 0..1000 {
        match judge(&mut limiter, 0, key) {
            FREE => {}
            Verdict::Refused(Refusal::Ticket(delay)) => slots.push((delay, key)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((slots.len(), limiter.tickets()), (990, 990));
    assert_eq!(slots[0].0, Duration::from_millis(10));
    assert_eq!(slots[989].0, Duration::from_millis(9900));
    for (delay, key) in slots {
        let now = Instant::ORIGIN.saturating_add(delay);
        assert_eq!(limiter.admit(now, Some(key), 1), TICKET);
    }
    assert_eq!(limiter.tickets(), 0);
}

#[test]
fn an_early_caller_gets_the_same_slot_and_delays_no_other() {
    let mut limiter = limiter(&CONFIG);
    assert_eq!(judge(&mut limiter, 0, 1), FREE);
    assert_eq!(judge(&mut limiter, 0, 2), ticket(10));
    for millis in 0..10 {
        assert_eq!(judge(&mut limiter, millis, 2), ticket(10 - millis));
    }
    assert_eq!(judge(&mut limiter, 9, 3), ticket(11));
    assert_eq!(judge(&mut limiter, 10, 2), TICKET);
    assert_eq!(judge(&mut limiter, 10, 2), ticket(20), "a slot serves once");
}

#[test]
fn a_slot_lasts_to_the_end_of_its_grace_and_no_longer() {
    for (late, expected) in [(3000, TICKET), (3001, FREE)] {
        let mut limiter = limiter(&CONFIG);
        for key in 0..3 {
            judge(&mut limiter, 0, key);
        }
        assert_eq!(judge(&mut limiter, 10 + late, 1), expected, "{late}");
        // The late key is treated as a new one, and holds no slot.
        assert_eq!(limiter.tickets(), 1);
    }
}

#[test]
fn a_lapsed_slot_serves_a_caller_without_a_ticket() {
    let mut limiter = limiter(&LimiterConfig {
        grace: Duration::from_millis(15),
        ..CONFIG
    });
    for key in 0..=100 {
        judge(&mut limiter, 0, key);
    }
    // Key 1 does not come at 10 ms, 2 does at 20 ms.
    assert_eq!(judge(&mut limiter, 20, 2), TICKET);
    assert!(matches!(judge(&mut limiter, 25, None), Verdict::Refused(_)));
    assert_eq!(judge(&mut limiter, 26, None), FREE, "that of key 1");
    assert!(matches!(judge(&mut limiter, 26, None), Verdict::Refused(_)));
}

#[test]
fn lapsed_slots_are_kept_up_to_the_burst() {
    for (burst, from) in [(1, 1), (10, 10)] {
        let mut limiter = limiter(&LimiterConfig { burst, ..CONFIG });
        for key in 0..500 {
            judge(&mut limiter, 0, key);
        }
        // About 400 slots have lapsed unused, or will, since no caller comes.
        let admitted = (1000..1100)
            .filter(|key| judge(&mut limiter, 20_000, *key) == FREE)
            .count();
        assert_eq!(admitted, from);
        // The same while the schedule still reaches ahead: nothing is released twice.
        let mut limiter = self::limiter(&LimiterConfig { burst, ..CONFIG });
        for key in 0..500 {
            judge(&mut limiter, 0, key);
        }
        let admitted = (1000..1100)
            .filter(|key| judge(&mut limiter, 4000, *key) == FREE)
            .count();
        assert_eq!(admitted, from);
    }
}

#[test]
fn slots_that_lapse_after_the_schedule_refill_the_burst() {
    let mut limiter = limiter(&LimiterConfig {
        burst: 10,
        grace: Duration::from_millis(15),
        ..CONFIG
    });
    for key in 0..20 {
        judge(&mut limiter, 0, key);
    }
    // No caller came for the slots at 10 to 100 ms; the slot at 110 ms is free.
    let admitted = (0..30)
        .filter(|_| judge(&mut limiter, 116, None) == FREE)
        .count();
    assert_eq!(admitted, 10, "not 1, and not 11");
}

#[test]
fn a_full_schedule_leaves_slots_open_too() {
    let mut limiter = limiter(&LimiterConfig {
        horizon: Duration::from_millis(100),
        ..CONFIG
    });
    for key in 0..=10 {
        judge(&mut limiter, 0, key);
    }
    assert_eq!(judge(&mut limiter, 0, None), shared(110));
    // There is a free slot, but it is not for a caller with a key.
    assert_eq!(judge(&mut limiter, 10, 11), shared(100));
    assert_eq!(judge(&mut limiter, 20, 11), ticket(100));
    assert_eq!(judge(&mut limiter, 109, None), shared(21));
    assert_eq!(judge(&mut limiter, 110, None), FREE);
}

#[test]
fn the_last_lapsed_slot_is_kept_for_a_caller_with_a_key() {
    let mut limiter = limiter(&LimiterConfig { burst: 3, ..CONFIG });
    for key in 0..500 {
        judge(&mut limiter, 0, key);
    }
    for expected in [FREE, FREE, shared(980)] {
        assert_eq!(judge(&mut limiter, 4000, None), expected);
    }
    assert_eq!(judge(&mut limiter, 4000, 500), FREE);
    // After the schedule has passed, any caller may use them.
    for expected in [FREE, FREE, FREE, shared(10)] {
        assert_eq!(judge(&mut limiter, 9000, None), expected);
    }
}

#[test]
fn beyond_the_horizon_nothing_is_reserved() {
    let mut limiter = limiter(&LimiterConfig {
        horizon: Duration::from_secs(1),
        ..CONFIG
    });
    judge(&mut limiter, 0, 0);
    for key in 1..=100 {
        assert_eq!(judge(&mut limiter, 0, key), ticket(key * 10));
    }
    for key in 101..10_000 {
        assert_eq!(judge(&mut limiter, 0, key), shared(1010));
    }
    assert_eq!(limiter.tickets(), 100);
    assert_eq!(judge(&mut limiter, 10, 1), TICKET);
    assert_eq!(judge(&mut limiter, 10, 101), ticket(1000), "room again");
}

#[test]
fn without_a_horizon_it_is_the_plain_algorithm() {
    let mut limiter = limiter(&LimiterConfig {
        horizon: Duration::ZERO,
        grace: Duration::ZERO,
        burst: 10,
        ..CONFIG
    });
    let mut admitted = 0;
    for millis in 0..10_000 {
        match judge(&mut limiter, millis, millis) {
            FREE => admitted += 1,
            Verdict::Refused(Refusal::Shared(delay)) => {
                // The delay to the next slot; callers are not counted.
                let next = Duration::from_millis(10 - millis % 10);
                assert_eq!(delay, next);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((admitted, limiter.tickets()), (10 + 999, 0));
}

#[test]
fn callers_without_a_key_get_different_times() {
    let mut limiter = limiter(&CONFIG);
    assert_eq!(judge(&mut limiter, 0, None), FREE);
    for place in 1..100 {
        assert_eq!(judge(&mut limiter, 0, None), shared(place * 10));
    }
    // Nothing is reserved: a caller with none ahead is admitted.
    assert_eq!(judge(&mut limiter, 10, None), FREE);
}

#[test]
fn each_rejected_caller_without_a_key_gets_an_open_slot() {
    let mut limiter = limiter(&CONFIG);
    judge(&mut limiter, 0, 0);
    // Two of them, then five with keys: K = 20, 40, 50, 60, 70 ms, open = 10, 30 ms.
    assert_eq!(judge(&mut limiter, 0, None), shared(10));
    assert_eq!(judge(&mut limiter, 0, None), shared(20));
    for (key, slot) in [(1, 20), (2, 40), (3, 50), (4, 60), (5, 70)] {
        assert_eq!(judge(&mut limiter, 0, key), ticket(slot));
    }
    assert_eq!(judge(&mut limiter, 12, None), FREE);
    assert_eq!(judge(&mut limiter, 12, None), shared(68), "a place behind");
    assert_eq!(judge(&mut limiter, 20, 1), TICKET);
    // New callers with a key get a ticket, not the open slot at 30 ms.
    assert_eq!(judge(&mut limiter, 31, 6), ticket(59));
    assert_eq!(judge(&mut limiter, 31, None), FREE);
}

#[test]
fn a_limiter_ignores_time_that_steps_back() {
    let mut limiter = limiter(&CONFIG);
    assert_eq!(judge(&mut limiter, 5000, 1), FREE);
    assert_eq!(judge(&mut limiter, 5000, 2), ticket(10));
    assert_eq!(judge(&mut limiter, 0, 2), ticket(10));
    assert_eq!(judge(&mut limiter, 0, 3), ticket(20));
    assert_eq!(judge(&mut limiter, 5010, 2), TICKET);
    assert_eq!(judge(&mut limiter, 1, 3), ticket(10));
}

#[test]
fn the_delay_of_a_rejection_is_rounded_up() {
    for (nanos, millis, seconds) in [
        (1, 1, 1),
        (MILLI, 1, 1),
        (SECOND, 1000, 1),
        (SECOND + 1, 1001, 2),
        (u64::MAX, u64::MAX / MILLI + 1, u64::MAX / SECOND + 1),
    ] {
        let refusal = Refusal::Shared(Duration::from_nanos(nanos));
        assert_eq!(
            (refusal.whole_millis(), refusal.whole_seconds()),
            (millis, seconds)
        );
    }
    assert_eq!(
        Refusal::Ticket(Duration::MAX).whole_millis(),
        u64::MAX / MILLI + 1
    );
}

#[test]
fn once_a_minute_is_exact_and_any_other_rate_is_never_exceeded() {
    let mut minute = limiter(&LimiterConfig {
        burst: 1,
        ..LimiterConfig::new(1, Duration::from_secs(60))
    });
    judge(&mut minute, 0, 1);
    assert_eq!(judge(&mut minute, 0, 2), ticket(60_000), "R1.6");
    let mut third = limiter(&LimiterConfig {
        burst: 1,
        ..LimiterConfig::new(3, Duration::from_secs(1))
    });
    for (nanos, expected) in [
        (0, true),
        (333_333_333, false),
        (333_333_334, true),
        (666_666_666, false),
        (666_666_667, true),
        (999_999_999, false),
        (SECOND, true),
    ] {
        let verdict = third.admit(Instant::from_nanos(nanos), None, 1);
        assert_eq!(verdict == FREE, expected, "{nanos}");
    }
}

#[test]
fn a_double_click_is_admitted_unless_the_burst_is_one() {
    for (rate, seconds) in [(1, 1), (1, 60), (10, 60), (100, 1), (1, 86_400)] {
        let config = LimiterConfig::new(rate, Duration::from_secs(seconds));
        let mut limiter = limiter(&config);
        assert_eq!(judge(&mut limiter, 0, 1), FREE, "{config:?}");
        assert_eq!(judge(&mut limiter, 1, 1), FREE, "{config:?}");
        // And no more than the attempts of one second.
        let more = (0..1000).filter(|_| judge(&mut limiter, 1, 1) == FREE);
        assert_eq!(more.count() as u32 + 2, config.burst);
        assert_eq!(config.burst, 2.max(rate / seconds as u32));
    }
    let mut one = limiter(&CONFIG);
    assert_eq!(judge(&mut one, 0, 1), FREE);
    assert!(matches!(judge(&mut one, 1, 1), Verdict::Refused(_)));
}

/// Below one attempt per nanosecond, above it, and at rates that do not divide a second.
#[test]
fn any_rate_up_to_billions_a_second_builds_and_is_exact() {
    for rate in [
        3,
        7_777,
        50_000,
        300_000,
        3_000_000,
        300_000_007,
        700_000_000,
        1_000_000_000,
        u32::MAX,
    ] {
        let config = LimiterConfig::new(rate, Duration::from_secs(1));
        let mut limiter = limiter(&config);
        // The whole burst, then the quota of a tenth of a second, ten times.
        let mut admitted = u64::from(config.burst);
        assert_eq!(limiter.admit(at(0), None, config.burst), FREE, "{rate}");
        for tenth in 1..=10 {
            let now = at(100 * tenth);
            let room = limiter.available(now, Duration::ZERO);
            if room > 0 {
                assert_eq!(limiter.admit(now, None, room), FREE, "{rate}");
                admitted += u64::from(room);
            }
            // The remaining quota is reported rounded down.
            while limiter.admit(now, None, 1) == FREE {
                admitted += 1;
            }
        }
        // Above one attempt per nanosecond the error is at most one nanosecond.
        let off = admitted - 2 * u64::from(config.burst);
        assert!(off <= u64::from(rate) / 1_000_000_000, "{rate}: {off}");
        assert!(limiter.reserved.len() + limiter.open.len() <= MAX_SLOTS as usize);
    }
}

#[test]
fn a_cost_counts_as_that_many_concurrent_attempts() {
    let mut limiter = limiter(&LimiterConfig { burst: 3, ..CONFIG });
    let mut judge = |millis, key: Option<u64>, cost| limiter.admit(at(millis), key, cost);
    assert_eq!(judge(0, Some(1), 4), Verdict::Impossible);
    assert_eq!(
        judge(0, Some(1), 3),
        FREE,
        "nothing was taken for what is impossible"
    );
    assert_eq!(judge(0, Some(2), 3), ticket(30));
    assert_eq!(judge(0, Some(3), 0), ticket(40), "nothing is free");
    assert_eq!(judge(0, None, 2), shared(60));
    assert_eq!(judge(29, Some(2), 1), ticket(1), "early is early");
    // With a lower cost than reserved it releases the rest.
    assert_eq!(judge(30, Some(2), 1), TICKET);
    assert_eq!(judge(30, Some(4), 2), FREE);
    // With a higher cost it gives up its ticket, which any caller may then use.
    assert_eq!(
        judge(40, Some(3), 2),
        ticket(40),
        "behind two that are left open"
    );
    assert_eq!(judge(40, Some(5), 1), FREE);
}

#[test]
fn the_remaining_quota_is_that_of_callers_without_a_ticket() {
    let mut limiter = limiter(&LimiterConfig { burst: 3, ..CONFIG });
    let within = Duration::from_millis;
    assert_eq!(limiter.available(at(0), within(0)), 3);
    assert_eq!(limiter.available(at(0), within(9)), 3);
    assert_eq!(limiter.available(at(0), within(10)), 4);
    assert_eq!(limiter.until_available(at(0), 3), within(0));
    assert_eq!(limiter.until_available(at(0), 4), within(10));
    for key in 0..5 {
        judge(&mut limiter, 0, key);
    }
    // Two callers hold the slots at 10 and 20 ms.
    assert_eq!(limiter.available(at(0), within(29)), 0);
    assert_eq!(limiter.available(at(0), within(30)), 1);
    assert_eq!(limiter.until_available(at(5), 1), within(25));
    assert_eq!(limiter.until_available(at(5), 0), within(0));
}

#[test]
fn a_contradictory_limiter_config_is_rejected() {
    let config = CONFIG;
    for (config, key) in [
        (LimiterConfig { rate: 0, ..config }, "rate"),
        (
            LimiterConfig {
                per: Duration::ZERO,
                ..config
            },
            "per",
        ),
        (LimiterConfig { burst: 0, ..config }, "burst"),
        (
            LimiterConfig {
                burst: 2,
                rate: 1,
                per: Duration::MAX,
                ..config
            },
            "burst",
        ),
        (
            LimiterConfig {
                grace: Duration::ZERO,
                ..config
            },
            "grace",
        ),
    ] {
        assert_eq!(Limiter::new(&config).unwrap_err().key(), key);
    }
}

/// The last slot given to a key, according to the history alone.
#[derive(Clone, Copy, Debug)]
struct ReservedSlot {
    key: u64,
    slot: u64,
}

proptest! {
    /// The plain algorithm: it admits an attempt exactly if no window then contains more than the
    /// burst and the rate.
    #[test]
    fn without_reserved_slots_it_admits_what_fits_every_window(
        rate in 1..5_u32, burst in 1..5_u32,
        steps in prop::collection::vec((0..40_u64, any::<Option<u8>>()), 1..120),
    ) {
        let mut limiter = limiter(&LimiterConfig {
            rate, burst, horizon: Duration::ZERO, ..LimiterConfig::new(1, Duration::from_nanos(60))
        });
        let interval = 60 / u64::from(rate);
        let mut admitted: Vec<u64> = Vec::new();
        let mut now = 0;
        for (step, key) in steps {
            now += step;
            let room = (0..admitted.len()).all(|from| {
                let held = (admitted.len() - from) as u64;
                held < u64::from(burst) + (now - admitted[from]) / interval
            });
            let verdict = limiter.admit(Instant::from_nanos(now), key.map(u64::from), 1);
            prop_assert_eq!(verdict == FREE, room, "at {} after {:?}", now, admitted);
            if room {
                admitted.push(now);
            }
        }
    }

    #[test]
    fn every_reserved_slot_is_honoured_for_any_arrivals(
        rate in 1..5_u32, burst in 1..5_u32, horizon in 1..600_u64, grace in 1..200_u64,
        steps in prop::collection::vec((0..8_u8, -60..90_i64, prop::option::weighted(0.7, 0..12_u64)), 1..300),
    ) {
        let mut limiter = limiter(&LimiterConfig {
            rate, burst, per: Duration::from_nanos(60),
            horizon: Duration::from_nanos(horizon), grace: Duration::from_nanos(grace),
        });
        let interval = 60 / u64::from(rate);
        let (mut clock, mut now) = (0_i64, 0_u64);
        let mut held: Vec<ReservedSlot> = Vec::new();
        let mut admitted: Vec<(u64, bool)> = Vec::new();
        for (pause, step, key) in steps {
            // Mostly at one instant, sometimes later, sometimes earlier.
            if pause == 0 {
                clock = (clock + step).max(0);
            }
            now = now.max(clock as u64);
            let verdict = limiter.admit(Instant::from_nanos(clock as u64), key, 1);
            held.retain(|held| held.slot + grace >= now);
            let index = held.iter().position(|held| Some(held.key) == key);
            match (verdict, index) {
                (Verdict::Admitted { ticket }, index) => {
                    prop_assert_eq!(ticket, index.is_some());
                    if let Some(index) = index {
                        prop_assert!(held[index].slot <= now, "never early");
                        held.swap_remove(index);
                    }
                    admitted.push((now, ticket));
                }
                (Verdict::Refused(Refusal::Ticket(delay)), Some(index)) => {
                    let slot = now + delay.as_nanos() as u64;
                    prop_assert!(slot > now, "in its grace it is let in");
                    prop_assert_eq!(slot, held[index].slot, "the same again");
                }
                (Verdict::Refused(Refusal::Ticket(delay)), None) => {
                    let slot = now + delay.as_nanos() as u64;
                    prop_assert!(slot > now && slot - now <= horizon);
                    prop_assert!(held.iter().all(|held| held.slot.abs_diff(slot) >= interval));
                    let Some(key) = key else { panic!("a ticket for nobody") };
                    held.push(ReservedSlot { key, slot });
                }
                (Verdict::Impossible, _) => panic!("no burst is below 1"),
                (Verdict::Refused(Refusal::Shared(delay)), index) => {
                    prop_assert!(index.is_none(), "who holds a ticket hears of it");
                    let most = horizon + 2 * interval;
                    prop_assert!(!delay.is_zero() && delay.as_nanos() as u64 <= most);
                }
            }
            prop_assert_eq!(limiter.tickets(), held.len());
            let remembered = limiter.reserved.len() + limiter.open.len();
            prop_assert!(remembered as u64 <= (horizon + grace) / interval + 2, "{}", remembered);
            prop_assert!(limiter.spare <= burst);
        }
        let burst = u64::from(burst);
        for (to, (last, _)) in admitted.iter().enumerate() {
            prop_assert!((to as u64) < burst + last / interval, "more than the schedule");
            for (from, (first, _)) in admitted.iter().enumerate().take(to) {
                let most = burst + (last - first + grace) / interval + 1;
                prop_assert!((to - from + 1) as u64 <= most, "{:?}", admitted);
            }
        }
    }

    #[test]
    fn a_caller_in_its_slot_is_admitted_whatever_others_do(
        others in prop::collection::vec((0..2000_u64, any::<Option<u64>>()), 0..300),
        late in 0..=3000_u64,
    ) {
        let mut limiter = limiter(&CONFIG);
        judge(&mut limiter, 0, 0);
        let key = 1 << 63;
        let mut due = None;
        let mut others: Vec<_> = others.into_iter().filter(|other| other.1 != Some(key)).collect();
        others.sort_unstable();
        for (index, (at, other)) in others.iter().enumerate() {
            if index == others.len() / 2
                && let Verdict::Refused(refusal) = judge(&mut limiter, *at, key)
            {
                due = Some(at + refusal.whole_millis() + late);
            }
            judge(&mut limiter, *at, *other);
            if let Some(due) = due && others.get(index + 1).is_none_or(|next| next.0 > due) {
                prop_assert_eq!(judge(&mut limiter, due, key), TICKET);
                break;
            }
        }
    }

    #[test]
    fn no_value_makes_the_limiter_panic(
        rate in prop_oneof![Just(0), Just(1), Just(u32::MAX), any::<u32>()],
        burst in prop_oneof![Just(0), Just(1), Just(u32::MAX), any::<u32>()],
        times in prop::array::uniform3(prop_oneof![
            Just(0), Just(1), Just(u64::MAX), Just(SECOND), any::<u64>()
        ]),
        calls in prop::collection::vec((
            prop_oneof![Just(0), Just(u64::MAX), u64::MAX - 100..u64::MAX, any::<u64>()],
            prop::option::of(0..3_u64),
        ), 1..40),
    ) {
        let [per, horizon, grace] = times.map(Duration::from_nanos);
        let config = LimiterConfig { rate, per, burst, horizon, grace };
        match Limiter::new(&config) {
            Err(error) => prop_assert!(!error.accepted().is_empty()),
            Ok(mut limiter) => {
                for (now, key) in calls {
                    let now = Instant::from_nanos(now);
                    for cost in [1, burst, u32::MAX] {
                        let peeked = limiter.peek(now, key, cost);
                        prop_assert_eq!(peeked, limiter.admit(now, key, cost));
                        if let Verdict::Refused(refusal) = peeked {
                            prop_assert!(!refusal.delay().is_zero());
                        }
                        let _ = limiter.available(now, horizon);
                        let _ = limiter.until_available(now, cost);
                    }
                }
            }
        }
    }
}

/// However attempts are made and returned, the number of made attempts stays within the limit at
/// any time.
#[test]
fn returned_quota_is_admitted_exactly_once_more() {
    let config = LimiterConfig {
        burst: 3,
        ..LimiterConfig::new(10, Duration::from_secs(1))
    };
    let mut limiter = Limiter::new(&config).unwrap();
    let mut seed = 7_u64;
    let (mut made, mut given_back) = (0_u64, 0);
    for millis in 0..20_000_u64 {
        let now = Instant::from_nanos(millis * 1_000_000);
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let key = (seed >> 33).is_multiple_of(2).then_some(seed >> 60);
        if let Verdict::Admitted { .. } = limiter.admit(now, key, 1) {
            if (seed >> 40).is_multiple_of(3) {
                limiter.give_back(now, 1);
                given_back += 1;
            } else {
                made += 1;
            }
        }
        assert!(made <= 3 + millis / 100 + 1, "{made} after {millis} ms");
    }
    assert!(given_back > 50, "{given_back}");
    // And no quota is lost: at most one burst lapses unused.
    assert!(made >= 190, "{made}");
}
