//! Conformance tests for stores: compares a store with the decisions of the core.

#![allow(
    clippy::panic,
    reason = "a store that is wrong fails the test that checks it"
)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, HeaderValue, StatusCode};
use relent::random::SessionRandom;
use relent_core::idempotency::{Claim, ClaimConfig, Fingerprint, Lease, Record, Takeover};
use relent_core::{Instant, Random};

use super::{Change, Claimed, Key, Resolution, ResolveError, Store, UnknownOutcome, WriteError};
use crate::idempotency::StoredResponse;

/// A lease or record that outlives the test, and one that expires immediately.
const BEYOND_TEST: Duration = Duration::from_secs(3600);
const EXPIRED_NOW: Duration = Duration::ZERO;

/// Applies random steps to a store and to the core's [`Record`], and compares the results and the lists of unknown
/// outcomes. The store must be empty. Then 64 tasks claim one key concurrently, and 16 resolve one outcome. No time
/// passes except for the run time of the store.
///
/// # Panics
/// The store fails or decides differently; the message lists the steps of that key.
///
/// ```
/// use relent_server::store::{Memory, conformance};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// conformance::check(Memory::new, 500, 1).await;
/// # }
/// ```
pub async fn check<S: Store>(make: impl FnOnce() -> S, steps: usize, seed: u64) {
    let store = Arc::new(make());
    let mut random = SessionRandom::with_seed(seed);
    let mut keys = Models::default();
    for step in 0..steps {
        let time = Time::Passes(Instant::from_nanos(step as u64));
        keys.step(&*store, step, time, &mut random).await;
    }
    race(&store).await;
    resolve_concurrently(&store).await;
}

/// Applies random steps like [`check`], at times that it sets by `set_clock` from `begin` on. It is for a store whose
/// clock a test can set. Leases and remaining times are compared to the microsecond.
///
/// # Panics
/// The store fails or decides differently; the message lists the steps of that key.
///
/// ```
/// use relent_core::Instant;
/// use relent_server::store::{Memory, conformance};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let began = tokio::time::Instant::now();
/// let set_clock = async |now: Instant| {
///     let now = began + now.saturating_since(Instant::ORIGIN);
///     tokio::time::advance(now - tokio::time::Instant::now()).await;
/// };
/// conformance::check_in_time(&Memory::new(), set_clock, Instant::ORIGIN, 500, 1).await;
/// # }
/// ```
pub async fn check_in_time<S: Store>(
    store: &S,
    set_clock: impl AsyncFn(Instant),
    begin: Instant,
    steps: usize,
    seed: u64,
) {
    let next = |now: Instant, random: &mut SessionRandom| {
        now.saturating_add(span(random, &[0, 0, 0, 1, 1, 2, 5, 20, 100]))
    };
    check_at_times(store, set_clock, begin, next, steps, seed).await;
}

/// Like `check_in_time`, with a clock that moves as `next` returns, possibly back.
pub(crate) async fn check_at_times<S: Store>(
    store: &S,
    set_clock: impl AsyncFn(Instant),
    begin: Instant,
    next: impl Fn(Instant, &mut SessionRandom) -> Instant,
    steps: usize,
    seed: u64,
) {
    let mut random = SessionRandom::with_seed(seed);
    let mut keys = Models::default();
    let mut now = begin;
    for step in 0..steps {
        now = next(now, &mut random);
        set_clock(now).await;
        keys.step(store, step, Time::Set(now), &mut random).await;
    }
}

/// The time of the model.
#[derive(Clone, Copy, Debug)]
enum Time {
    /// A little later in each step; the store has its own clock.
    Passes(Instant),
    /// Equal to the time of the store.
    Set(Instant),
}

impl Time {
    const fn now(self) -> Instant {
        match self {
            Self::Passes(now) | Self::Set(now) => now,
        }
    }

    /// Returns whether two times agree. Without a common clock they always do.
    fn agree(self, ours: Instant, theirs: Instant) -> bool {
        matches!(self, Self::Passes(_)) || ours == theirs
    }
}

/// Returns a random one of these.
fn span(random: &mut SessionRandom, micros: &[u64]) -> Duration {
    Duration::from_micros(micros[below(random, micros.len() as u64) as usize])
}

fn below(random: &mut SessionRandom, bound: u64) -> u64 {
    random.next_u64() % bound
}

/// The expected state of all keys.
#[derive(Default)]
struct Models(HashMap<Key, Model>);

impl Models {
    async fn step<S: Store>(
        &mut self,
        store: &S,
        step: usize,
        time: Time,
        random: &mut SessionRandom,
    ) {
        if below(random, 12) == 0 {
            return self.find_unknown(store, time, random).await;
        }
        let key = Key([below(random, 6) as u8; 32]);
        let model = self.0.entry(key).or_default();
        model.step(store, &key, step, time, random).await;
    }

    /// Reads all unknown outcomes, page by page.
    async fn find_unknown<S: Store>(&mut self, store: &S, time: Time, random: &mut SessionRandom) {
        let now = time.now();
        let config = ClaimConfig {
            retention: span(random, &[0, 100, 1000]),
            ..ClaimConfig::DEFAULT
        };
        let mut expected: Vec<_> = (self.0.iter())
            .filter_map(|(key, model)| {
                let (record, _) = model.stored.as_ref()?;
                UnknownOutcome::of(*key, *record, now)
            })
            .collect();
        expected.sort_by_key(UnknownOutcome::place);
        let (most, mut found) = (below(random, 4) as usize + 1, Vec::new());
        loop {
            let page = store.find_unknown(found.last(), most, &config).await;
            let page = page.unwrap_or_else(|error| panic!("{error} of unknown outcomes"));
            assert!(page.len() <= most, "{page:?} for at most {most}");
            let is_last = page.is_empty();
            found.extend(page);
            if is_last {
                break;
            }
            assert!(found.len() <= 6, "{found:?} of six keys");
        }
        assert!(
            found.is_sorted_by_key(UnknownOutcome::place),
            "not in order: {found:?}"
        );
        if let Time::Passes(_) = time {
            expected.sort_by_key(|outcome| *outcome.key());
            found.sort_by_key(|outcome| *outcome.key());
        }
        let alike = |ours: &UnknownOutcome, theirs: &UnknownOutcome| match time {
            Time::Set(_) => ours == theirs,
            Time::Passes(_) => {
                let (ours, theirs) = ((ours.key(), ours.record()), (theirs.key(), theirs.record()));
                let what = |(key, record): (&Key, &Record)| {
                    let kept = (record.owner, record.fence, record.step, record.repeated);
                    (*key, record.fingerprint, kept)
                };
                what(ours) == what(theirs)
            }
        };
        let all = expected.len() == found.len()
            && expected
                .iter()
                .zip(&found)
                .all(|(ours, theirs)| alike(ours, theirs));
        assert!(all, "{found:?} for {expected:?}");
        for (ours, theirs) in expected.into_iter().zip(found) {
            let model = self.0.entry(*ours.key()).or_default();
            model.found.push((ours, theirs));
        }
    }
}

/// The expected state of one key.
#[derive(Default)]
struct Model {
    stored: Option<(Record, Option<Arc<StoredResponse>>)>,
    leases: Vec<Lease>,
    /// Unknown outcomes of the model and of the store.
    found: Vec<(UnknownOutcome, UnknownOutcome)>,
    history: Vec<String>,
}

impl Model {
    async fn step<S: Store>(
        &mut self,
        store: &S,
        key: &Key,
        step: usize,
        time: Time,
        random: &mut SessionRandom,
    ) {
        let takeovers = [Takeover::Refuse, Takeover::Rerun, Takeover::Resume];
        let over = |random: &mut SessionRandom, one_in| match (time, below(random, one_in)) {
            (Time::Set(_), _) => span(random, &[0, 1, 2, 5, 20, 100, 1000]),
            (Time::Passes(_), 0) => EXPIRED_NOW,
            (Time::Passes(_), _) => BEYOND_TEST,
        };
        let config = ClaimConfig {
            lease: over(random, 3),
            retention: over(random, 8),
            takeover: takeovers[below(random, 3) as usize],
        };
        if below(random, 5) == 0
            && let Some(last) = self.found.len().checked_sub(1)
        {
            // Usually the latest: the records of the others were written since.
            let back = below(random, 8).saturating_sub(5) as usize;
            let (ours, theirs) = self.found[last.saturating_sub(back)];
            let resolution = match below(random, 3) {
                0 => Resolution::NotApplied,
                number => Resolution::Applied(Arc::new(answer(number as usize))),
            };
            self.resolve(store, &ours, &theirs, resolution, &config, time)
                .await;
        } else if self.leases.is_empty() || below(random, 2) == 0 {
            // An owner that claims again gets a new fencing token, or its old one.
            let owner = match self.leases.last() {
                Some(lease) if below(random, 4) == 0 => lease.owner,
                _ => (u128::from(below(random, 3)) << 100) + step as u128 / 24,
            };
            let fingerprint = Fingerprint([below(random, 5).min(1) as u8; 32]);
            self.claim(store, key, owner, fingerprint, &config, time)
                .await;
        } else {
            // Usually the latest: the others are lost.
            let among = match below(random, 2) {
                0 => 1,
                _ => self.leases.len(),
            };
            let back = below(random, among as u64) as usize;
            let lease = self.leases[self.leases.len() - 1 - back];
            let change = match below(random, 6) {
                0 => Change::Renew,
                1 => Change::Checkpoint(below(random, 4) as u32 + 1),
                2 | 3 => Change::Complete(Arc::new(answer(step))),
                4 if step.is_multiple_of(3) => Change::GiveBack,
                4 => Change::Release,
                _ => Change::GiveUp,
            };
            // A process that gives a claim back does not know its fencing token.
            let lease = match change {
                Change::GiveBack => Lease { fence: 0, ..lease },
                _ => lease,
            };
            self.write(store, key, &lease, change, &config, time).await;
        }
    }

    async fn claim<S: Store>(
        &mut self,
        store: &S,
        key: &Key,
        owner: u128,
        fingerprint: Fingerprint,
        config: &ClaimConfig,
        time: Time,
    ) {
        self.history.push(format!(
            "{time:?}: claim by {owner:x} of {:?}, {config:?}",
            fingerprint.0[0]
        ));
        let stored = self.stored.as_ref().map(|(record, _)| record);
        let now = time.now();
        let (expected, change) = Record::claim(stored, now, config, owner, fingerprint);
        let answer = self.stored.as_ref().and_then(|(_, answer)| answer.clone());
        if let Some(record) = change {
            self.stored = Some((record, None));
        }
        let claimed = match store.claim(key, owner, fingerprint, config).await {
            Ok(claimed) => claimed,
            Err(error) => self.fail(&error),
        };
        let alike = match (&expected, &claimed) {
            (
                Claim::Run {
                    lease,
                    step,
                    repeated,
                },
                Claimed::Run {
                    lease: got,
                    step: got_step,
                    repeated: got_repeated,
                },
            ) => {
                self.leases.push(*got);
                (lease.owner, lease.fence, step, repeated)
                    == (got.owner, got.fence, got_step, got_repeated)
                    && time.agree(lease.until, got.until)
            }
            (Claim::Replay, Claimed::Replay(got)) => answer.as_deref() == Some(got),
            (Claim::InFlight { until }, Claimed::InFlight(left)) => match time {
                Time::Passes(_) => BEYOND_TEST / 2 < *left && *left <= BEYOND_TEST,
                Time::Set(now) => *left == until.saturating_since(now),
            },
            (Claim::Mismatch, Claimed::Mismatch) | (Claim::Unknown, Claimed::Unknown) => true,
            _ => false,
        };
        if !alike {
            self.fail(&format!("{claimed:?} for {expected:?}"));
        }
        if matches!(expected, Claim::Run { lease, .. } if lease.fence == 1) {
            self.forget_found(time);
        }
    }

    async fn write<S: Store>(
        &mut self,
        store: &S,
        key: &Key,
        lease: &Lease,
        change: Change,
        config: &ClaimConfig,
        time: Time,
    ) {
        self.history
            .push(format!("{time:?}: {change:?} by {lease:?}, {config:?}"));
        let now = time.now();
        let made = self
            .stored
            .as_ref()
            .map(|(record, _)| change.make(record, now, lease, config));
        let is_over = (self.stored.as_ref()).is_some_and(|(record, _)| record.is_expired(now));
        let written = store.write(key, lease, change.clone(), config).await;
        match (made, written) {
            (Some(Ok((record, lease))), Ok(got))
                if (lease.owner, lease.fence) == (got.owner, got.fence)
                    && time.agree(lease.until, got.until) =>
            {
                let renewed = matches!(change, Change::Renew);
                let answer = match change {
                    Change::Complete(answer) => Some(answer),
                    _ => None,
                };
                self.stored = Some((record, answer));
                if renewed {
                    self.forget_found(time);
                }
            }
            (None | Some(Err(_)), Err(WriteError::Lost)) => {}
            // The store may or may not have removed it already.
            (None, Err(WriteError::Gone)) => {}
            (Some(Err(_)), Err(WriteError::Gone)) if is_over => {}
            (made, written) => self.fail(&format!("{written:?} for {made:?}")),
        }
    }

    /// The new record may differ only in its times, and the store's times may be equal.
    fn forget_found(&mut self, time: Time) {
        if let Time::Passes(_) = time {
            self.found.clear();
        }
    }

    async fn resolve<S: Store>(
        &mut self,
        store: &S,
        ours: &UnknownOutcome,
        theirs: &UnknownOutcome,
        resolution: Resolution,
        config: &ClaimConfig,
        time: Time,
    ) {
        self.history
            .push(format!("{time:?}: {resolution:?} of {ours:?}, {config:?}"));
        let stored = self.stored.as_ref().map(|(record, _)| record);
        let expected = resolution.make(stored, time.now(), ours, config);
        match (
            expected,
            store.resolve(theirs, resolution.clone(), config).await,
        ) {
            (Ok(record), Ok(())) => self.stored = Some((record, resolution.answer().cloned())),
            (Err(ours), Err(ResolveError::Refused(theirs))) if ours == theirs => {}
            (expected, resolved) => self.fail(&format!("{resolved:?} for {expected:?}")),
        }
    }

    fn fail(&self, what: &dyn std::fmt::Display) -> ! {
        panic!("{what}\nafter\n{}", self.history.join("\n"));
    }
}

/// A response with content that is easily lost: repeated fields, bytes that are not text, trailers.
fn answer(step: usize) -> StoredResponse {
    let mut headers = HeaderMap::new();
    for value in [&b"a"[..], b"b", b"\xff\t"] {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append("x-several", value);
        }
    }
    headers.insert("x-step", HeaderValue::from(step));
    StoredResponse {
        status: StatusCode::CREATED,
        trailers: step.is_multiple_of(2).then(|| headers.clone()),
        headers,
        body: (!step.is_multiple_of(3)).then(|| Bytes::from(vec![step as u8; step % 300])),
    }
}

/// Exactly one of many concurrent claims of a key runs.
async fn race<S: Store>(store: &Arc<S>) {
    let key = Key([255; 32]);
    let tasks = (0..64).map(|owner| {
        let store = Arc::clone(store);
        tokio::spawn(async move {
            let (config, print) = (ClaimConfig::DEFAULT, Fingerprint([0; 32]));
            store
                .claim(&key, owner, print, &config)
                .await
                .map_err(|error| error.to_string())
        })
    });
    let claims = join_all(tasks).await;
    let (mut runs, mut waits) = (0, 0);
    for claim in claims {
        match claim {
            Ok(Ok(Claimed::Run { .. })) => runs += 1,
            Ok(Ok(Claimed::InFlight(_))) => waits += 1,
            other => panic!("{other:?} for a key that is claimed by 64 at once"),
        }
    }
    assert_eq!((runs, waits), (1, 63), "of 64 claims of one key one runs");
}

/// Exactly one of many concurrent resolutions of an outcome succeeds.
async fn resolve_concurrently<S: Store>(store: &Arc<S>) {
    let (key, print) = (Key([254; 32]), Fingerprint([0; 32]));
    let config = ClaimConfig {
        lease: EXPIRED_NOW,
        ..ClaimConfig::DEFAULT
    };
    let claimed = store.claim(&key, 1, print, &config).await;
    let Ok(Claimed::Run { .. }) = claimed else {
        panic!("{claimed:?} for a new key");
    };
    let found = match store.find_unknown(None, 1000, &config).await {
        Ok(found) => found.into_iter().find(|outcome| *outcome.key() == key),
        Err(error) => panic!("{error} of unknown outcomes"),
    };
    let Some(found) = found else {
        panic!("an outcome that is unknown is not found");
    };
    let tasks = (0..16).map(|number| {
        let store = Arc::clone(store);
        let resolution = Resolution::Applied(Arc::new(answer(number)));
        tokio::spawn(async move {
            let resolved = store
                .resolve(&found, resolution, &ClaimConfig::DEFAULT)
                .await;
            (number, resolved.map_err(|error| error.to_string()))
        })
    });
    let done = join_all(tasks).await;
    let done = done
        .into_iter()
        .flatten()
        .filter(|(_, resolved)| resolved.is_ok());
    let done: Vec<_> = done.map(|(number, _)| answer(number)).collect();
    let kept = store.claim(&key, 2, print, &config).await;
    let kept = match kept {
        Ok(Claimed::Replay(kept)) => [kept],
        other => panic!("{other:?} for an outcome that was resolved"),
    };
    assert_eq!(done, kept, "of 16 that resolve one outcome one does");
}

/// A manual clock: it advances by microseconds, and sometimes steps forward or back by up to two hours.
#[cfg(all(test, unix, any(feature = "postgres", feature = "redis")))]
pub(crate) fn step(now: Instant, random: &mut SessionRandom) -> Instant {
    let by = Duration::from_micros(random.next_u64() % 7_200_000_000);
    match random.next_u64() % 20 {
        0 => now.saturating_add(by),
        1 => Instant::from_nanos(now.as_nanos().saturating_sub(by.as_nanos() as u64)),
        _ => now.saturating_add(Duration::from_micros(random.next_u64() % 20)),
    }
}
