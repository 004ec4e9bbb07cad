//! Random tests of workers that join, leave, die and lose leases. Store calls fail; hints are lost, duplicated, late or
//! wrong; operators change endpoints. Many seeds.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use relent::random::SessionRandom;
use relent_core::{Random, Scope};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::memory::{CallFaults, Memory};
use super::{Running, SECOND, TEN, config, refused, run, worker};
use crate::acknowledgement::NotAcknowledged;
use crate::endpoint::Endpoint;
use crate::sender::AttemptResult;
use crate::store::Hinted;
use crate::worker::attempt::{Job, Transport};

const CALLS: [&str; 6] = ["heartbeat", "find", "acquire", "claim", "settle", "release"];

/// A running attempt.
#[derive(Clone, PartialEq, Debug)]
struct Attempt {
    worker: String,
    endpoint: i64,
    order: Option<u64>,
    id: String,
}

/// Observations of the receivers.
#[derive(Default)]
struct Seen {
    running: Vec<Attempt>,
    wrong: Vec<String>,
    begun: usize,
    first: BTreeSet<String>,
    /// When the set of workers last changed.
    changed_at: Duration,
    /// How long after its due time the latest first attempt began; and the latest while ownership may change.
    latest: Duration,
    latest_in_change: Duration,
}

impl Seen {
    /// A heartbeat after a change, and its releases.
    const CHANGE: Duration = Duration::from_secs(12);

    fn on_first(&mut self, due: Duration, now: Duration) {
        let latest = match due < self.changed_at + Self::CHANGE {
            true => &mut self.latest_in_change,
            false => &mut self.latest,
        };
        *latest = (*latest).max(now.saturating_sub(due));
    }
}

/// A running attempt that ends on drop, as when its worker dies.
struct Begun(Arc<Mutex<Seen>>, Attempt);

impl Drop for Begun {
    fn drop(&mut self) {
        let mut seen = self.0.lock().unwrap();
        let at = seen.running.iter().position(|one| *one == self.1).unwrap();
        seen.running.swap_remove(at);
    }
}

struct WorkerFleet {
    store: Memory,
    seen: Arc<Mutex<Seen>>,
    random: Arc<Mutex<SessionRandom>>,
    origin: Instant,
    workers: Vec<(String, Running)>,
    endpoints: Vec<i64>,
    joined: usize,
    added: usize,
}

fn below(random: &Mutex<SessionRandom>, bound: u64) -> u64 {
    random.lock().unwrap().next_u64() % bound
}

impl WorkerFleet {
    fn new(seed: u64, endpoints: usize) -> Self {
        let concurrency = NonZeroU32::new(2).unwrap();
        let store = Memory::new((0..endpoints).map(|name| {
            Endpoint::new(format!("e{name}"), "https://shop.example/")
                .policy(TEN)
                .concurrency(concurrency)
        }));
        store.set_call_faults(CallFaults {
            random: SessionRandom::with_seed(seed + 1000),
            latency_factor: 20,
            ..CallFaults::default()
        });
        Self {
            store,
            seen: Arc::default(),
            random: Arc::new(Mutex::new(SessionRandom::with_seed(seed))),
            origin: Instant::now(),
            workers: Vec::new(),
            endpoints: (1..=i64::try_from(endpoints).unwrap()).collect(),
            joined: 0,
            added: 0,
        }
    }

    fn below(&self, bound: u64) -> u64 {
        below(&self.random, bound)
    }

    fn transport(&self, worker: &str) -> Transport {
        let (seen, random) = (Arc::clone(&self.seen), Arc::clone(&self.random));
        let (worker, store, origin) = (worker.to_owned(), self.store.clone(), self.origin);
        Transport::new(watch::channel(true).1, move |mut job: Job| {
            let (seen, random) = (Arc::clone(&seen), Arc::clone(&random));
            let (worker, store) = (worker.clone(), store.clone());
            async move {
                job.ready().await?;
                let payload = str::from_utf8(&job.payload).unwrap();
                let words: Vec<i64> = payload
                    .split(' ')
                    .map(|word| word.parse().unwrap())
                    .collect();
                let [endpoint, order, due] = words[..] else {
                    panic!()
                };
                let attempt = Attempt {
                    worker: worker.clone(),
                    endpoint,
                    order: u64::try_from(order).ok(),
                    id: job.id.to_string(),
                };
                {
                    let mut seen = seen.lock().unwrap();
                    let owner = store.owner(endpoint);
                    let now = origin.elapsed();
                    if owner.as_ref().is_some_and(|owner| *owner != worker) {
                        let wrong =
                            format!("{now:?}: {attempt:?} while {owner:?} has the endpoint");
                        seen.wrong.push(wrong);
                    }
                    let own = |one: &&Attempt| one.endpoint == endpoint && one.worker == worker;
                    let beside: Vec<_> = seen.running.iter().filter(own).cloned().collect();
                    if beside.len() > 1
                        || beside
                            .iter()
                            .any(|one| one.order == attempt.order && order >= 0)
                    {
                        seen.wrong
                            .push(format!("{now:?}: {attempt:?} beside {beside:?}"));
                    }
                    seen.begun += 1;
                    let due = Duration::from_micros(u64::try_from(due).unwrap());
                    // Ordered messages also wait for earlier ones, so they are not measured.
                    if seen.first.insert(attempt.id.clone()) && order < 0 {
                        seen.on_first(due, now);
                    }
                    seen.running.push(attempt.clone());
                }
                let begun = Begun(Arc::clone(&seen), attempt);
                let takes = Duration::from_millis(below(&random, 30));
                let fails = below(&random, 8) == 0;
                sleep(takes).await;
                drop(begun);
                let mut sent = AttemptResult::failed(refused(), String::new(), takes);
                sent.outcome = match fails {
                    false => Ok(()),
                    true => Err(NotAcknowledged {
                        failure: refused().scope(Scope::Request),
                        error: String::new(),
                        gone: false,
                    }),
                };
                Ok(sent)
            }
        })
    }

    fn on_change(&self) {
        self.seen.lock().unwrap().changed_at = self.origin.elapsed();
    }

    fn join(&mut self) {
        self.on_change();
        self.joined += 1;
        let name = format!("w{}", self.joined);
        let worker = worker(&self.store, self.transport(&name), config(&name));
        self.workers.push((name, run(worker)));
    }

    async fn leave(&mut self) {
        if !self.workers.is_empty() {
            let at = usize::try_from(self.below(self.workers.len() as u64)).unwrap();
            let (_, worker) = self.workers.swap_remove(at);
            let _ = worker.stop().await;
            self.on_change();
        }
    }

    /// Aborts a worker without any release.
    fn kill(&mut self) {
        if !self.workers.is_empty() {
            let at = usize::try_from(self.below(self.workers.len() as u64)).unwrap();
            let (name, worker) = self.workers.swap_remove(at);
            self.store
                .call_faults(|call_faults| call_faults.without_heartbeats.insert(name));
            worker.worker.abort();
        }
    }

    fn some_endpoint(&self) -> i64 {
        self.endpoints[usize::try_from(self.below(self.endpoints.len() as u64)).unwrap()]
    }

    /// Adds a message, with a hint or without.
    fn add(&mut self) {
        let endpoint = self.some_endpoint();
        let order = i64::try_from(self.below(4)).unwrap() - 2;
        let delay = match self.below(4) {
            0 => Duration::from_millis(self.below(3000)),
            _ => Duration::ZERO,
        };
        let due = (self.origin.elapsed() + delay).as_micros();
        // A message behind a delayed one of its key would be as late.
        let order = if delay.is_zero() { order } else { -1 };
        let payload = format!("{endpoint} {order} {due}");
        let order = u64::try_from(order).ok();
        self.store.add_ordered(endpoint, payload, delay, order);
        self.added += 1;
        let names = |one| Hinted::Endpoints([one].into());
        let hint = match self.below(8) {
            _ if !delay.is_zero() => Hinted::Anything,
            0 => return,
            1 => Hinted::Anything,
            2 => names(self.some_endpoint()),
            3 => names(99),
            _ => names(endpoint),
        };
        let store = self.store.clone();
        let late = Duration::from_millis(match self.below(4) {
            0 => self.below(2000),
            _ => 0,
        });
        let twice = self.below(4) == 0;
        tokio::spawn(async move {
            sleep(late).await;
            store.hint(hint.clone());
            if twice {
                store.hint(hint);
            }
        });
    }

    fn operate(&mut self) {
        let endpoint = self.some_endpoint();
        match self.below(4) {
            0 => self.store.set_disabled(endpoint, true),
            1 => self.store.set_disabled(endpoint, false),
            2 => self.store.replace(endpoint),
            _ => {
                let next = self.store.delete_and_put(endpoint);
                self.endpoints.retain(|one| *one != endpoint);
                self.endpoints.push(next);
            }
        }
    }

    fn calls(&self) -> BTreeMap<&'static str, usize> {
        CALLS.map(|call| (call, self.store.calls(call))).into()
    }

    fn calls_since(&self, before: &BTreeMap<&str, usize>) -> BTreeMap<&'static str, usize> {
        let since = |(call, calls)| (call, calls - before[call]);
        self.calls().into_iter().map(since).collect()
    }

    fn check(&self, seed: u64) {
        let seen = self.seen.lock().unwrap();
        assert!(seen.wrong.is_empty(), "seed {seed}: {:#?}", seen.wrong);
    }
}

#[tokio::test(start_paused = true)]
async fn with_random_faults_all_messages_end_and_all_limits_hold() {
    for seed in 0..12 {
        let endpoints = 1 + usize::try_from(seed % 6).unwrap();
        let mut fleet = WorkerFleet::new(seed, endpoints);
        fleet.join();
        fleet
            .store
            .call_faults(|call_faults| call_faults.faulty = 20);
        for _ in 0..400 {
            match fleet.below(60) {
                0 | 1 if fleet.workers.len() < 5 => fleet.join(),
                2 => fleet.leave().await,
                3 => fleet.kill(),
                4 => {
                    let at = fleet.below(1 + fleet.joined as u64);
                    let silent = format!("w{at}");
                    fleet
                        .store
                        .call_faults(|call_faults| call_faults.without_heartbeats.insert(silent));
                }
                5 => {
                    fleet
                        .store
                        .call_faults(|call_faults| call_faults.without_heartbeats.clear());
                }
                6..=8 => fleet.operate(),
                9 => sleep(fleet.below(40) as u32 * SECOND).await,
                _ => fleet.add(),
            }
            sleep(Duration::from_millis(fleet.below(100))).await;
        }
        fleet.check(seed);
        fleet.store.call_faults(|call_faults| {
            call_faults.faulty = 0;
            call_faults.without_heartbeats.clear();
        });
        for endpoint in fleet.endpoints.clone() {
            fleet.store.set_disabled(endpoint, false);
        }
        fleet.join();
        let began = Instant::now();
        let all = async {
            while fleet.store.unended() > 0 {
                sleep(SECOND).await;
            }
        };
        let ended = timeout(600 * SECOND, all).await.is_ok();
        assert!(
            ended,
            "seed {seed}: {} did not end, owners {:?}",
            fleet.store.unended(),
            fleet.store.owners()
        );
        assert!(
            began.elapsed() < 120 * SECOND,
            "seed {seed}: {:?}",
            began.elapsed()
        );
        fleet.check(seed);
        while !fleet.workers.is_empty() {
            fleet.leave().await;
        }
        fleet.check(seed);
    }
}

#[tokio::test(start_paused = true)]
async fn workers_that_share_endpoints_deliver_promptly_with_few_store_calls() {
    for seed in 0..14 {
        let endpoints = 1 + usize::try_from(seed % 7).unwrap();
        let mut fleet = WorkerFleet::new(seed, endpoints);
        for _ in 0..=seed % 5 {
            fleet.join();
        }
        sleep(30 * SECOND).await;
        let (began, before) = (Instant::now(), fleet.calls());
        for _ in 0..300 {
            match fleet.below(100) {
                0 if fleet.workers.len() < 5 => fleet.join(),
                1 if fleet.workers.len() > 1 => fleet.leave().await,
                _ => fleet.add(),
            }
            sleep(Duration::from_millis(fleet.below(300))).await;
        }
        sleep(15 * SECOND).await;
        assert_eq!(fleet.store.unended(), 0, "seed {seed}");
        let calls = fleet.calls_since(&before);
        let (latest, in_change, begun) = {
            let seen = fleet.seen.lock().unwrap();
            (seen.latest, seen.latest_in_change, seen.begun)
        };
        // At most one poll later, plus slow calls (80 ms each) to find, acquire and claim. While ownership changes, a
        // worker asks for a larger share once in a poll, and another poll may pass.
        assert!(
            latest < Duration::from_millis(1250),
            "seed {seed}: {latest:?}"
        );
        assert!(
            in_change < Duration::from_millis(2500),
            "seed {seed}: {in_change:?}"
        );
        // Four claims per attempt; one search per worker, message and poll; one acquisition per worker and endpoint
        // between two heartbeats. There are more only while ownership changes.
        let polls = 5 * usize::try_from(began.elapsed().as_secs()).unwrap();
        let bounds = [
            ("claim", 4 * begun),
            ("settle", 2 * begun),
            ("find", 5 * fleet.added + polls),
            ("acquire", begun + calls["heartbeat"] * endpoints),
            ("release", begun),
        ];
        for (call, bound) in bounds {
            assert!(calls[call] <= bound, "seed {seed}: {call}: {calls:?}");
        }
        fleet.check(seed);
        while !fleet.workers.is_empty() {
            fleet.leave().await;
        }
    }
}
