//! Endpoints named by hints are served immediately, without a search for work.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use relent::random::SessionRandom;
use relent_core::{Random, Scope};
use tokio::time::{Instant, sleep};

use super::memory::Memory;
use super::{Receivers, SECOND, TEN, config, endpoint, quick, refused, start, until_ended};
use crate::store::Hinted;
use crate::worker::WorkerConfig;

const HOUR: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_millis(100);

/// A worker that searches at its start, and then only after hints.
fn rarely(name: &str) -> WorkerConfig {
    WorkerConfig {
        poll: HOUR,
        ..config(name)
    }
}

fn names(endpoints: impl IntoIterator<Item = i64>) -> Hinted {
    Hinted::Endpoints(endpoints.into_iter().collect())
}

#[tokio::test(start_paused = true)]
async fn messages_named_by_a_hint_are_delivered_without_a_search() {
    let store = Memory::new((0..3).map(endpoint));
    let receivers = quick();
    let running = start(&store, &receivers, rarely("one"));
    sleep(SECOND).await;
    let looks = store.calls("find");
    // First for an endpoint that it does not own, then for an owned one.
    for _ in 0..3 {
        store.add(2, "x");
        store.hint(names([2]));
        sleep(SOON).await;
        assert_eq!(store.unended(), 0);
    }
    assert_eq!(store.calls("find"), looks);
    // A hint without names causes a search, which finds all.
    store.add(1, "x");
    store.add(3, "x");
    store.hint(Hinted::Anything);
    sleep(SOON).await;
    assert_eq!((store.unended(), store.calls("find")), (0, looks + 1));
    let _ = running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn repeated_hints_for_a_held_endpoint_cause_no_search() {
    let store = Memory::new([endpoint(0)]);
    let receivers = Receivers::new(|_| (Duration::from_millis(20), Some(refused())));
    let running = start(&store, &receivers, rarely("one"));
    sleep(SECOND).await;
    for _ in 0..20 {
        store.add(1, "x");
        store.hint(names([1]));
        sleep(SECOND).await;
    }
    let (looks, claims) = (store.calls("find"), store.calls("claim"));
    for _ in 0..2000 {
        store.hint(names([1]));
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(store.calls("find"), looks);
    // Only its probes.
    let claims = store.calls("claim") - claims;
    assert!(claims <= 10, "{claims} claims in two seconds");
    let _ = running.stop().await;
}

/// Each worker gets the hints of all endpoints.
#[tokio::test(start_paused = true)]
async fn hints_for_endpoints_of_another_worker_cause_no_search() {
    let store = Memory::new((0..40).map(endpoint));
    let receivers = quick();
    let one = start(&store, &receivers, rarely("one"));
    let two = start(&store, &receivers, rarely("two"));
    let name_all = async || {
        for endpoint in 1..=40 {
            store.add(endpoint, "x");
            store.hint(names([endpoint]));
            sleep(Duration::from_millis(1)).await;
        }
        sleep(SOON).await;
    };
    let all = async || {
        name_all().await;
        assert_eq!(store.unended(), 0);
    };
    // Workers learn of each other with the next heartbeat. Endpoints beyond a share move some leases later.
    for _ in 0..30 {
        sleep(15 * SECOND).await;
        name_all().await;
        store.hint(Hinted::Anything);
    }
    sleep(15 * SECOND).await;
    all().await;
    let owners = store.owners();
    assert!(owners.iter().any(|owner| owner == "one"), "{owners:?}");
    assert!(owners.iter().any(|owner| owner == "two"), "{owners:?}");
    let looks = store.calls("find");
    for _ in 0..20 {
        all().await;
    }
    assert_eq!(store.calls("find"), looks);
    assert_eq!(receivers.hits(), 40 * 51);
    // One worker ends: it releases its endpoints, and the other must search for them.
    let _ = one.stop().await;
    store.hint(Hinted::Anything);
    sleep(15 * SECOND).await;
    for endpoint in 1..=40 {
        store.add(endpoint, "x");
    }
    store.hint(Hinted::Anything);
    sleep(SECOND).await;
    assert_eq!(store.unended(), 0);
    assert!(store.owners().iter().all(|owner| owner == "two"));
    all().await;
    let _ = two.stop().await;
}

/// Receivers that record the largest delay of an attempt.
fn lateness(takes: Duration) -> (Receivers, Arc<Mutex<Duration>>) {
    let latest = Arc::new(Mutex::new(Duration::ZERO));
    let (noted, origin) = (Arc::clone(&latest), Instant::now());
    let receivers = Receivers::new(move |job| {
        let due: u64 = std::str::from_utf8(&job.payload).unwrap().parse().unwrap();
        let late = (origin.elapsed()).saturating_sub(Duration::from_micros(due));
        let mut latest = noted.lock().unwrap();
        *latest = late.max(*latest);
        (takes, None)
    });
    (receivers, latest)
}

/// Whatever the worker does when a hint arrives, such as waiting for a claim.
#[tokio::test(start_paused = true)]
async fn no_hint_is_lost_while_a_worker_is_busy() {
    for seed in 0..40 {
        let mut random = SessionRandom::with_seed(seed);
        let mut below = |bound: u64| random.next_u64() % bound;
        let store = Memory::new((0..5).map(endpoint));
        let (receivers, latest) = lateness(Duration::from_millis(3));
        let origin = Instant::now();
        let running = start(&store, &receivers, rarely("one"));
        sleep(SOON).await;
        let mut told_later = BTreeSet::new();
        for _ in 0..300 {
            let endpoint = i64::try_from(1 + below(5)).unwrap();
            store.add(endpoint, origin.elapsed().as_micros().to_string());
            told_later.insert(endpoint);
            // Several endpoints per hint, sometimes with one that has no message.
            if below(3) > 0 {
                if below(4) == 0 {
                    told_later.insert(i64::try_from(1 + below(7)).unwrap());
                }
                store.hint(names(std::mem::take(&mut told_later)));
                sleep(Duration::from_micros(below(12_000))).await;
            }
        }
        store.hint(names(told_later));
        sleep(SECOND).await;
        assert_eq!(store.unended(), 0, "seed {seed}");
        let latest = *latest.lock().unwrap();
        assert!(latest < SOON, "seed {seed}: {latest:?}");
        let _ = running.stop().await;
    }
}

/// Several retries of one endpoint wait at the same time, although a search returns only the first due time.
#[tokio::test(start_paused = true)]
async fn each_retry_of_an_endpoint_starts_when_it_is_due() {
    let store = Memory::new([endpoint(0).policy(TEN.replace("1s", "300ms"))]);
    let began: Arc<Mutex<HashMap<String, Vec<Instant>>>> = Arc::default();
    let noted = Arc::clone(&began);
    let receivers = Receivers::new(move |job| {
        let mut began = noted.lock().unwrap();
        let times = began.entry(job.id.to_string()).or_default();
        times.push(Instant::now());
        // Each message is refused once, without evidence against the endpoint.
        let failure = refused().scope(Scope::Request);
        (Duration::ZERO, (times.len() == 1).then_some(failure))
    });
    let running = start(&store, &receivers, rarely("one"));
    sleep(SECOND).await;
    for _ in 0..8 {
        store.add(1, "x");
        store.hint(names([1]));
        sleep(Duration::from_millis(50)).await;
    }
    sleep(SECOND).await;
    assert_eq!(store.unended(), 0);
    for times in began.lock().unwrap().values() {
        let waited = times[1] - times[0];
        assert!(waited < Duration::from_millis(350), "{waited:?}");
    }
    let _ = running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn messages_without_a_hint_are_found_within_a_poll() {
    for seed in 0..40 {
        let mut random = SessionRandom::with_seed(seed);
        let mut below = |bound: u64| random.next_u64() % bound;
        let store = Memory::new((0..5).map(endpoint));
        let (receivers, latest) = lateness(Duration::from_millis(3));
        let origin = Instant::now();
        let running = start(&store, &receivers, config("one"));
        for _ in 0..300 {
            let endpoint = i64::try_from(1 + below(5)).unwrap();
            let delay = Duration::from_millis(below(4).saturating_sub(1) * below(1500));
            let due = origin.elapsed() + delay;
            store.add_later(endpoint, due.as_micros().to_string(), delay);
            match below(4) {
                0 if delay.is_zero() => store.hint(names([endpoint])),
                0 => store.hint(Hinted::Anything),
                1 => store.hint(names([i64::try_from(1 + below(5)).unwrap()])),
                _ => {}
            }
            sleep(Duration::from_micros(below(40_000))).await;
        }
        until_ended(&store).await;
        let latest = *latest.lock().unwrap();
        assert!(latest < SECOND + SOON, "seed {seed}: {latest:?}");
        let _ = running.stop().await;
    }
}
