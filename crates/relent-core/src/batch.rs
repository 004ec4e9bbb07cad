//! What an open gate is told later: requests and fast successes, counted without its lock.

use crate::gate::Calm;
use crate::sync::{AtomicU64, Ordering};
use crate::time::Instant;

/// What an open gate is told in one go.
///
/// A success at a healthy destination changes nothing but counts. So while the gate is
/// [calm](Calm) they are made here, by atomics, and whoever takes a turn at the lock tells the gate
/// before anything else. The gate learns the same as if it had heard of each by itself, since it looks at
/// none of the counts before it is told.
///
/// Whoever has the lock [takes](Self::take) what was counted, which shuts the batch, and
/// [opens](Self::open) it again when its turn is over. A success is added only while the batch is open,
/// in one step, so none is ever told to a gate that has closed meanwhile. A request that has found
/// everything calm goes, as if it had come a moment earlier, and is told with the next batch.
///
/// Except where it is said, the atomics are relaxed: each is a count of its own, and no other memory is
/// reached by what they say.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The gate is calm before this, in nanoseconds; 0 while the batch is shut.
    calm_until: AtomicU64,
    /// A success that took more nanoseconds is for the gate to judge.
    longest: AtomicU64,
    /// All requests so far. It numbers the callers.
    requests: AtomicU64,
    /// Those that the gate has been told of. Only who has the lock looks at it.
    told: AtomicU64,
    /// How many successes, in the upper bits, and the nanoseconds that they took together; or [`SHUT`].
    successes: AtomicU64,
    /// When the last of them came.
    answered: AtomicU64,
}

/// One success, above the sum of the times.
const ONE: u64 = 1 << 48;
/// As many successes as one batch has room for, which leaves as much for the sum.
const FULL: u64 = 2048 * ONE;
const SHUT: u64 = 1 << 63;
/// So long takes no success that is counted here, in nanoseconds: about a minute.
const LONGEST: u64 = (1 << 36) - 1;

/// What a batch held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Counted {
    pub(crate) requests: u64,
    /// An instant of the time in which the requests came.
    pub(crate) at: Instant,
    pub(crate) successes: u32,
    /// Nanoseconds that they took together.
    pub(crate) took: u64,
    /// When the last of them came.
    pub(crate) answered: Instant,
}

impl Batch {
    /// An empty one, which is shut.
    pub(crate) fn new() -> Self {
        Self {
            calm_until: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            told: AtomicU64::new(0),
            successes: AtomicU64::new(SHUT),
            answered: AtomicU64::new(0),
        }
    }

    /// Whether everything goes, so that requests and successes need only be counted.
    #[inline]
    pub(crate) fn is_calm(&self, now: Instant) -> bool {
        // Together with `open`: who sees that it is calm sees `longest` of then, or a later one.
        now.as_nanos() < self.calm_until.load(Ordering::Acquire)
    }

    /// Counts a request. Returns its number.
    #[inline]
    pub(crate) fn add_request(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed)
    }

    /// Numbers a request that the gate is told of by who has the lock.
    pub(crate) fn add_told_request(&self) -> u64 {
        let told = self.told.load(Ordering::Relaxed);
        self.told.store(told.wrapping_add(1), Ordering::Relaxed);
        self.add_request()
    }

    /// Counts a success of an attempt that started then, if there is nothing more to it. Else the gate is
    /// to be told.
    #[inline]
    #[must_use]
    pub(crate) fn add_success(&self, now: Instant, started: Instant) -> bool {
        let took = now.nanos_since(started);
        if !self.is_calm(now) || took > self.longest.load(Ordering::Relaxed) {
            return false;
        }
        self.answered.store(now.as_nanos(), Ordering::Relaxed);
        let mut seen = self.successes.load(Ordering::Relaxed);
        // What was shut is far above.
        while seen < FULL {
            // Who takes it sees when it came.
            let added = self.successes.compare_exchange_weak(
                seen,
                seen + ONE + took,
                Ordering::Release,
                Ordering::Relaxed,
            );
            match added {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Takes what was counted, and shuts the batch until it is [opened](Self::open). For who has the lock.
    pub(crate) fn take(&self, now: Instant) -> Counted {
        let calm_until = self.calm_until.load(Ordering::Relaxed);
        if calm_until != 0 {
            self.calm_until.store(0, Ordering::Relaxed);
        }
        // Where it stays shut nobody writes to it.
        let successes = match self.successes.load(Ordering::Relaxed) {
            SHUT => SHUT,
            _ => self.successes.swap(SHUT, Ordering::Acquire),
        } & !SHUT;
        let requests = self.requests.load(Ordering::Relaxed);
        let told = self.told.load(Ordering::Relaxed);
        if requests != told {
            self.told.store(requests, Ordering::Relaxed);
        }
        Counted {
            requests: requests.wrapping_sub(told),
            at: match calm_until {
                0 => now,
                end => Instant::from_nanos(end - 1),
            },
            successes: (successes / ONE) as u32,
            took: successes % ONE,
            answered: Instant::from_nanos(self.answered.load(Ordering::Relaxed)),
        }
    }

    /// Counts from now on while it is calm. For who has the lock, and has [taken](Self::take) what there
    /// was.
    pub(crate) fn open(&self, calm: Calm) {
        self.longest
            .store(calm.longest.min(LONGEST), Ordering::Relaxed);
        self.successes.store(0, Ordering::Relaxed);
        self.calm_until
            .store(calm.until.as_nanos(), Ordering::Release);
    }
}

/// Run with `RUSTFLAGS="--cfg loom" cargo test -p relent-core --lib loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    fn calm(until: u64, longest: u64) -> Calm {
        Calm {
            until: at(until),
            longest,
        }
    }

    fn open() -> Arc<Batch> {
        let batch = Batch::new();
        batch.open(calm(100, 50));
        Arc::new(batch)
    }

    #[test]
    fn loom_every_success_that_is_counted_is_told_once() {
        loom::model(|| {
            let batch = open();
            let other = batch.clone();
            let there = thread::spawn(move || u64::from(other.add_success(at(10), at(7))));
            let here = u64::from(batch.add_success(at(20), at(19)));
            let first = batch.take(at(30));
            let there = there.join().unwrap();
            assert_eq!(u64::from(first.successes), here + there);
            assert_eq!(first.took, here + 3 * there);
            let when = [10, 20].map(at).contains(&first.answered);
            assert!(first.successes == 0 || when, "when it came is told with it");
        });
    }

    /// A gate that closes while somebody has the lock hears of no success afterwards but by a turn.
    #[test]
    fn loom_nothing_is_added_to_what_was_taken_until_it_is_opened() {
        loom::model(|| {
            let batch = open();
            let other = batch.clone();
            let there = thread::spawn(move || other.add_success(at(10), at(9)));
            let before = batch.take(at(20));
            let added = there.join().unwrap();
            assert_eq!(u32::from(added), before.successes);
            assert_eq!(batch.take(at(30)).successes, 0);
        });
    }

    #[test]
    fn loom_requests_have_numbers_of_their_own_and_are_told_once() {
        loom::model(|| {
            let batch = open();
            let other = batch.clone();
            let there = thread::spawn(move || [other.add_request(), other.add_request()]);
            // One with a turn, which is told by itself.
            let first = batch.take(at(20)).requests;
            let own = batch.add_told_request();
            let numbers = there.join().unwrap();
            assert!(!numbers.contains(&own) && numbers[0] < numbers[1]);
            assert_eq!(first + batch.take(at(30)).requests, 2);
            assert_eq!(batch.take(at(40)).requests, 0);
        });
    }

    #[test]
    fn loom_who_sees_that_it_is_calm_sees_what_is_slow() {
        loom::model(|| {
            let batch = open();
            let other = batch.clone();
            // Calm by the second word only, by which it is slow.
            let there = thread::spawn(move || other.add_success(at(150), at(110)));
            batch.take(at(90));
            batch.open(calm(200, 30));
            assert!(!there.join().unwrap());
        });
    }
}
