#![allow(clippy::unwrap_used, reason = "tests may")]

use alloc::collections::BTreeMap;
use core::time::Duration;

use super::*;
use crate::admission::rate_limiter::{LimiterConfig, Verdict};
use proptest::prelude::*;

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn config() -> impl Strategy<Value = LimiterConfig> {
    (1..40_u64, 1..5_u32, 0..500_u64, 1..100_u64).prop_map(|(interval, burst, horizon, grace)| {
        LimiterConfig {
            burst,
            horizon: Duration::from_millis(horizon),
            grace: Duration::from_millis(grace),
            ..LimiterConfig::new(1, Duration::from_millis(interval))
        }
    })
}

fn keyed(config: &LimiterConfig, max_keys: u32) -> KeyedLimiter {
    KeyedLimiter::new(Limiter::new(config).unwrap(), max_keys)
}

/// The pause before a request in milliseconds, its key, caller and cost.
type Step = (u64, u64, Option<u64>, u32);

fn steps(keys: u64) -> impl Strategy<Value = alloc::vec::Vec<Step>> {
    let pause = prop_oneof![6 => Just(0), 3 => 0..60_u64, 1 => 0..2000_u64];
    let caller = prop::option::weighted(0.7, 0..4_u64);
    prop::collection::vec((pause, 0..keys, caller, 0..4_u32), 1..300)
}

impl KeyedLimiter {
    /// Every entry is found by its key, and the chains contain nothing else.
    fn is_sound(&self) -> bool {
        let found =
            (0..self.entries.len()).all(|index| self.find(self.entries[index].key) == Some(index));
        let linked: usize = self
            .chains
            .iter()
            .map(|first| {
                core::iter::successors(self.entries.get(*first as usize), |entry| {
                    self.entries.get(entry.next as usize)
                })
                .count()
            })
            .sum();
        found && linked == self.entries.len()
    }
}

proptest! {
    /// Below its capacity it behaves like limiters that are never removed.
    #[test]
    fn a_removed_idle_limiter_is_equivalent_to_a_new_one(config in config(), steps in steps(40)) {
        let mut keyed = self::keyed(&config, 40);
        let mut all: BTreeMap<u64, Limiter> = BTreeMap::new();
        let mut now = 0;
        for (pause, key, caller, cost) in steps {
            now += pause;
            let now = at(now);
            let model = all.entry(key).or_insert_with(|| Limiter::new(&config).unwrap());
            let limiter = keyed.limiter(now, key);
            let within = Duration::from_millis(100);
            prop_assert_eq!(limiter.available(now, within), model.available(now, within));
            prop_assert_eq!(limiter.until_available(now, 3), model.until_available(now, 3));
            prop_assert_eq!(limiter.admit(now, caller, cost), model.admit(now, caller, cost));
            prop_assert_eq!(limiter.tickets(), model.tickets());
            prop_assert!(keyed.is_sound());
        }
        prop_assert_eq!(keyed.forgotten(), 0);
    }

    #[test]
    fn the_number_of_keyed_limiters_is_bounded(config in config(), max in 1..9_u32, steps in steps(30)) {
        let mut keyed = self::keyed(&config, max);
        let mut now = 0;
        for (pause, key, caller, cost) in steps {
            now += pause;
            keyed.limiter(at(now), key).admit(at(now), caller, cost);
            prop_assert!(keyed.keys() <= max as usize && keyed.is_sound());
        }
    }
}

/// A hundred per second, burst 1.
const CONFIG: LimiterConfig = LimiterConfig {
    burst: 1,
    ..LimiterConfig::new(100, Duration::from_secs(1))
};

/// The fault of keyed maps that grow until the application sweeps them (actix-governor#60).
#[test]
fn unused_keys_do_not_accumulate() {
    let mut keyed = self::keyed(&CONFIG, 1_000_000);
    let mut most = 0;
    for key in 0..100_000 {
        // A new key each millisecond; each is in use for ten.
        keyed.limiter(at(key), key).admit(at(key), Some(key), 1);
        most = most.max(keyed.keys());
    }
    assert!(most <= 20, "{most}");
    assert_eq!(keyed.forgotten(), 0);
}

#[test]
fn with_all_keys_in_use_the_nearest_to_full_is_replaced_and_counted() {
    let config = LimiterConfig {
        burst: 100,
        ..CONFIG
    };
    let mut keyed = self::keyed(&config, 4);
    for (key, cost) in [(1, 50), (2, 60), (3, 10), (4, 70)] {
        keyed.limiter(at(0), key).admit(at(0), None, cost);
    }
    keyed.limiter(at(0), 5).admit(at(0), None, 90);
    assert_eq!((keyed.keys(), keyed.forgotten()), (4, 1));
    let left =
        |keyed: &mut KeyedLimiter, key| keyed.limiter(at(0), key).available(at(0), Duration::ZERO);
    assert_eq!(
        [1, 2, 4, 5].map(|key| left(&mut keyed, key)),
        [50, 40, 30, 10]
    );
    assert_eq!(left(&mut keyed, 3), 100, "ten too many");
}

#[test]
fn a_keyed_limiter_with_a_valid_ticket_is_not_removed() {
    let mut keyed = self::keyed(&CONFIG, 100);
    for _ in 0..2 {
        keyed.limiter(at(0), 1).admit(at(0), Some(1), 1);
    }
    for key in 100..150 {
        keyed.limiter(at(3009), key);
    }
    assert_eq!(
        keyed.limiter(at(3009), 1).admit(at(3009), Some(1), 1),
        Verdict::Admitted { ticket: true }
    );
}

#[test]
fn a_keyed_limiter_holds_at_least_one_key() {
    for (asked, max) in [(0, 1), (1, 1), (u32::MAX, 1 << 31)] {
        let keyed = self::keyed(&CONFIG, asked);
        assert_eq!(keyed.max_keys, max);
    }
}
