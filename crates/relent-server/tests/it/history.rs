//! Checks that concurrent claims and changes of a key are linearizable on each store: each operation takes effect at
//! one moment between call and return, as the core's record decides.
//!
//! The checker searches for such an order (Wing and Gong 1993), and caches visited states (Lowe 2017).

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, StatusCode};
use relent::random::SessionRandom;
use relent_core::idempotency::{Claim, ClaimConfig, Fingerprint, Lease, Record, Takeover};
use relent_core::{Instant, Random};
use relent_server::store::{
    Change, Claimed, Key, Memory, Resolution, ResolveError, Store, StoredResponse, UnknownOutcome,
    WriteError,
};

#[cfg(unix)]
use crate::servers;

const PRINT: Fingerprint = Fingerprint([0; 32]);
/// No lease expires during the test.
const NOW: Instant = Instant::ORIGIN;
const CALLERS: usize = 6;
const CALLS: usize = 8;
const KEYS: u8 = 40;

const fn config(takeover: Takeover) -> ClaimConfig {
    ClaimConfig {
        lease: Duration::from_secs(3600),
        takeover,
        ..ClaimConfig::DEFAULT
    }
}

#[derive(Clone, Debug)]
enum Call {
    Claim(u128),
    Write(Lease, Change),
}

/// The result of an operation; a lease without its time, which is that of the store.
#[derive(Clone, PartialEq, Debug)]
enum Seen {
    Run {
        fence: u64,
        step: u32,
        repeated: bool,
    },
    /// The response of this owner.
    Replay(u128),
    InFlight,
    Mismatch,
    Unknown,
    WriteOutcome,
    Lost,
}

#[derive(Clone, Debug)]
struct Event {
    called: u64,
    returned: u64,
    call: Call,
    seen: Seen,
}

fn answer(owner: u128) -> StoredResponse {
    let body = Some(Bytes::from(owner.to_string()));
    StoredResponse::from_parts(StatusCode::OK, HeaderMap::new(), body, None)
}

/// The state of the core: the record, and the owner of the response.
type State = (Option<Record>, u128);

fn apply((record, of): &State, call: &Call, config: &ClaimConfig) -> (Seen, State) {
    match call {
        Call::Claim(owner) => {
            let (claim, change) = Record::claim(record.as_ref(), NOW, config, *owner, PRINT);
            let seen = match claim {
                Claim::Run {
                    lease,
                    step,
                    repeated,
                } => Seen::Run {
                    fence: lease.fence,
                    step,
                    repeated,
                },
                Claim::Replay => Seen::Replay(*of),
                Claim::InFlight { .. } => Seen::InFlight,
                Claim::Mismatch => Seen::Mismatch,
                Claim::Unknown => Seen::Unknown,
            };
            (seen, (change.or(*record), *of))
        }
        Call::Write(lease, change) => {
            let made = record.and_then(|record| change.make(&record, NOW, lease, config).ok());
            match made {
                Some((record, _)) => {
                    let completes = matches!(change, Change::Complete(_));
                    let of = if completes { lease.owner } else { *of };
                    (Seen::WriteOutcome, (Some(record), of))
                }
                None => (Seen::Lost, (*record, *of)),
            }
        }
    }
}

/// Returns whether the core could have produced all results in some order that respects real time: an operation that
/// returned before another was called comes first.
fn is_linearizable(events: &[Event], config: &ClaimConfig) -> bool {
    assert!(events.len() <= 128);
    let all = u128::MAX >> (128 - events.len());
    let mut been = HashSet::new();
    let mut open = vec![(0_u128, (None, 0))];
    while let Some((done, state)) = open.pop() {
        if done == all {
            return true;
        }
        if !been.insert((done, state)) {
            continue;
        }
        let left = |index: &usize| done & (1 << index) == 0;
        let indices = || (0..events.len()).filter(left);
        let first = indices().map(|index| events[index].returned).min();
        for index in indices().filter(|&index| Some(events[index].called) < first) {
            let (seen, next) = apply(&state, &events[index].call, config);
            if seen == events[index].seen {
                open.push((done | (1 << index), next));
            }
        }
    }
    false
}

async fn perform<S: Store>(store: &S, key: &Key, call: &Call, config: &ClaimConfig) -> Seen {
    match call {
        Call::Claim(owner) => match store.claim(key, *owner, PRINT, config).await.unwrap() {
            Claimed::Run {
                lease,
                step,
                repeated,
            } => Seen::Run {
                fence: lease.fence,
                step,
                repeated,
            },
            Claimed::Replay(answer) => {
                let body = answer.body.unwrap();
                Seen::Replay(std::str::from_utf8(&body).unwrap().parse().unwrap())
            }
            Claimed::InFlight(_) => Seen::InFlight,
            Claimed::Mismatch => Seen::Mismatch,
            Claimed::Unknown => Seen::Unknown,
            other => panic!("{other:?}"),
        },
        Call::Write(lease, change) => match store.write(key, lease, change.clone(), config).await {
            Ok(_) => Seen::WriteOutcome,
            Err(WriteError::Lost | WriteError::Gone) => Seen::Lost,
            Err(WriteError::Store(error)) => panic!("{error}"),
        },
    }
}

/// A caller: it claims until it may run, and then changes its record, also after it has lost the lease.
async fn caller<S: Store>(
    store: Arc<S>,
    key: Key,
    config: ClaimConfig,
    seed: u64,
    time: Arc<AtomicU64>,
    events: Arc<Mutex<Vec<Event>>>,
) {
    let mut random = SessionRandom::with_seed(seed);
    let mut lease: Option<Lease> = None;
    for _ in 0..CALLS {
        let dice = random.next_u64() % 100;
        let call = match lease {
            Some(lease) if dice < 80 => Call::Write(
                lease,
                match dice {
                    0..15 => Change::Renew,
                    15..30 => Change::Checkpoint((dice % 3) as u32 + 1),
                    30..50 => Change::GiveUp,
                    50..75 => Change::Release,
                    _ => Change::Complete(Arc::new(answer(lease.owner))),
                },
            ),
            _ => Call::Claim(u128::from(random.next_u64())),
        };
        let called = time.fetch_add(1, Ordering::SeqCst);
        let seen = perform(&*store, &key, &call, &config).await;
        let returned = time.fetch_add(1, Ordering::SeqCst);
        if let (Call::Claim(owner), Seen::Run { fence, .. }) = (&call, &seen) {
            lease = Some(Lease {
                owner: *owner,
                fence: *fence,
                until: NOW,
            });
        }
        events.lock().unwrap().push(Event {
            called,
            returned,
            call,
            seen,
        });
    }
}

async fn histories_are_linearizable<S: Store>(store: S) {
    let store = Arc::new(store);
    let (mut runs, mut overlaps) = (0, 0);
    for number in 0..KEYS {
        let takeover = match number % 3 {
            0 => Takeover::Refuse,
            1 => Takeover::Rerun,
            _ => Takeover::Resume,
        };
        let (key, config) = (Key([number; 32]), config(takeover));
        let (time, events) = (Arc::default(), Arc::new(Mutex::new(Vec::new())));
        let callers = (0..CALLERS).map(|caller_number| {
            let seed = u64::from(number) * 100 + caller_number as u64;
            let (store, time, events) =
                (Arc::clone(&store), Arc::clone(&time), Arc::clone(&events));
            tokio::spawn(caller(store, key, config, seed, time, events))
        });
        for ended in join_all(callers).await {
            ended.unwrap();
        }
        let mut events = std::mem::take(&mut *events.lock().unwrap());
        events.sort_by_key(|event| event.called);
        assert!(
            is_linearizable(&events, &config),
            "key {number}: {events:#?}"
        );
        runs += events
            .iter()
            .filter(|event| matches!(event.seen, Seen::Run { .. }))
            .count();
        overlaps += events
            .windows(2)
            .filter(|pair| pair[1].called < pair[0].returned)
            .count();
    }
    // The histories are not trivial.
    assert!(runs > usize::from(KEYS), "{runs} runs");
    assert!(overlaps > usize::from(KEYS), "{overlaps} overlaps");
}

#[test]
fn the_checker_rejects_histories_without_a_valid_order() {
    let event = |called, returned, call, seen| Event {
        called,
        returned,
        call,
        seen,
    };
    let run = |fence| Seen::Run {
        fence,
        step: 0,
        repeated: false,
    };
    let lease = |owner| Lease {
        owner,
        fence: 1,
        until: NOW,
    };
    let complete = |owner| Call::Write(lease(owner), Change::Complete(Arc::new(answer(owner))));
    let refuse = config(Takeover::Refuse);
    let good = [
        event(0, 9, Call::Claim(1), run(1)),
        event(1, 8, Call::Claim(2), Seen::InFlight),
        event(10, 20, complete(1), Seen::WriteOutcome),
        event(11, 12, Call::Claim(3), Seen::Replay(1)),
    ];
    assert!(is_linearizable(&good, &refuse));
    let changed = |index: usize, change: fn(&mut Event)| {
        let mut events = good.clone();
        change(&mut events[index]);
        is_linearizable(&events, &refuse)
    };
    // Two executions run concurrently.
    assert!(!changed(1, |event| event.seen = Seen::Run {
        fence: 1,
        step: 0,
        repeated: false
    }));
    // A response exists before the request is completed.
    assert!(!changed(1, |event| event.seen = Seen::Replay(1)));
    // The response of another request.
    assert!(!changed(3, |event| event.seen = Seen::Replay(2)));
    // A request is in flight after its completion.
    assert!(!changed(3, |event| (
        event.called,
        event.returned,
        event.seen
    ) = (21, 22, Seen::InFlight)));
    // The holder of the key gets `Lost`.
    assert!(!changed(2, |event| event.seen = Seen::Lost));
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_of_memory_are_linearizable() {
    // Yields around each call, so that calls overlap.
    struct Yielding(Memory);
    impl Store for Yielding {
        type Error = <Memory as Store>::Error;

        async fn claim(
            &self,
            key: &Key,
            owner: u128,
            fingerprint: Fingerprint,
            config: &ClaimConfig,
        ) -> Result<Claimed, Self::Error> {
            tokio::task::yield_now().await;
            let claimed = self.0.claim(key, owner, fingerprint, config).await;
            tokio::task::yield_now().await;
            claimed
        }

        async fn write(
            &self,
            key: &Key,
            lease: &Lease,
            change: Change,
            config: &ClaimConfig,
        ) -> Result<Lease, WriteError<Self::Error>> {
            tokio::task::yield_now().await;
            let written = self.0.write(key, lease, change, config).await;
            tokio::task::yield_now().await;
            written
        }

        async fn find_unknown(
            &self,
            after: Option<&UnknownOutcome>,
            most: usize,
            config: &ClaimConfig,
        ) -> Result<Vec<UnknownOutcome>, Self::Error> {
            self.0.find_unknown(after, most, config).await
        }

        async fn resolve(
            &self,
            found: &UnknownOutcome,
            resolution: Resolution,
            config: &ClaimConfig,
        ) -> Result<(), ResolveError<Self::Error>> {
            self.0.resolve(found, resolution, config).await
        }

        async fn remove_expired(&self, most: usize) -> Result<usize, Self::Error> {
            self.0.remove_expired(most).await
        }
    }
    histories_are_linearizable(Yielding(Memory::new())).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn histories_of_sqlite_are_linearizable() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("keys.db");
    let store = relent_server::store::Sqlite::open(file).unwrap();
    histories_are_linearizable(store).await;
}

#[cfg(all(unix, feature = "redis"))]
#[tokio::test(flavor = "multi_thread")]
async fn histories_of_redis_are_linearizable() {
    let Some(server) = servers::redis(&["--appendonly", "no"]) else {
        return;
    };
    let client = redis::Client::open(server.url()).unwrap();
    let store = relent_server::store::Redis::connect_unchecked(client);
    histories_are_linearizable(store.await.unwrap()).await;
}

#[cfg(all(unix, feature = "postgres"))]
#[tokio::test(flavor = "multi_thread")]
async fn histories_of_postgres_are_linearizable() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let pool = relent_server::postgres::pool(&server.config(), CALLERS).unwrap();
    let store = relent_server::store::Postgres::new(pool);
    store.create_tables().await.unwrap();
    histories_are_linearizable(store).await;
}
