//! Counts requests and successes without the lock, for a circuit breaker in the normal state.

use crate::sync::{AtomicU64, CacheAligned, Ordering};
use crate::time::Instant;

/// A period in which requests and successes do not change the state of a normal breaker. They can
/// be counted and delivered later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Healthy {
    /// The end of the period.
    pub(crate) until: Instant,
    /// A success that took fewer nanoseconds is the fastest of the window.
    pub(crate) shortest: u64,
}

/// Counts for the circuit breaker, passed on in one batch.
///
/// A success at a healthy destination changes nothing but counts. While the breaker is [healthy](Healthy),
/// they are counted here in atomics. The next thread with the lock passes them to the breaker before
/// anything else. The result is the same as if the breaker had received each one, since it reads none
/// of the counts before.
///
/// The thread with the lock [takes](Self::take) the counts, which shuts the batch, and
/// [opens](Self::open) it again at the end of its turn. A success is added only while the batch is
/// open, in one atomic step, so none reaches a breaker that went down meanwhile. A request that has
/// seen the healthy state goes, as if it had come a moment earlier, and is counted with the next batch.
///
/// All threads share the one [`Shard`] here until two of them use it concurrently. From then on each
/// uses one of the [`ShardedCounters`], and this one is only read, until a thread takes a turn.
///
/// Unless stated otherwise, the atomics are relaxed: each is an independent count, and guards no other
/// memory.
#[derive(Debug)]
pub(crate) struct HealthyCounters {
    /// The breaker is healthy until then, in nanoseconds; 0 while the batch is shut.
    healthy_until: AtomicU64,
    /// A success that took fewer nanoseconds is the fastest of the window, and goes to the breaker.
    shortest: AtomicU64,
    shard: Shard,
}

/// A shard: the counts of some threads.
#[derive(Debug)]
pub(crate) struct Shard {
    /// All requests so far, plus the first number of the shard. It numbers the callers.
    requests: AtomicU64,
    /// Those that the breaker has received. Only the thread with the lock reads it.
    reported: AtomicU64,
    /// Number of successes in the upper bits, and the sum of their nanoseconds; or [`SHUT_FLAG`].
    successes: AtomicU64,
    /// When the last of them came.
    answered: AtomicU64,
}

/// Sharded counters for the threads that make requests to one destination concurrently. Each shard has
/// its own cache line; see
/// [`Access::shards`](crate::destination::Access::shards).
#[derive(Debug)]
pub struct ShardedCounters([CacheAligned<Shard>; SHARDS]);

/// With more threads, some share a shard.
const SHARDS: usize = if cfg!(loom) { 2 } else { 8 };
/// The bits above this one are the number of the shard, those below the caller's number.
const SHARD_SHIFT: u32 = 56;
/// One success, in the bits above the sum of the times.
const ONE_SUCCESS: u64 = 1 << 48;
/// The most successes of one shard; leaves the same headroom for the sum.
const FULL_SUCCESSES: u64 = 2048 * ONE_SUCCESS;
const SHUT_FLAG: u64 = 1 << 63;
/// Longest success that is counted here, in nanoseconds: about a minute.
const MAX_LATENCY_NANOS: u64 = (1 << 36) - 1;

/// The counts of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HealthyCounts {
    pub(crate) requests: u64,
    /// An instant within the period in which the requests came.
    pub(crate) at: Instant,
    pub(crate) successes: u32,
    /// Sum of their nanoseconds.
    pub(crate) took: u64,
    /// When the last of them came.
    pub(crate) answered: Instant,
}

impl HealthyCounters {
    /// An empty batch, which is shut.
    pub(crate) fn new() -> Self {
        Self {
            healthy_until: AtomicU64::new(0),
            shortest: AtomicU64::new(0),
            shard: Shard::new(0),
        }
    }

    /// The counters of all threads without a shard of their own.
    #[inline]
    pub(crate) const fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Whether requests and successes need only be counted.
    #[inline]
    pub(crate) fn is_healthy(&self, now: Instant) -> bool {
        // Pairs with `open`: a thread that sees the healthy period sees its `shortest`, or a later one.
        now.as_nanos() < self.healthy_until.load(Ordering::Acquire)
    }

    /// Numbers a request that the thread with the lock passes to the breaker itself.
    pub(crate) fn add_reported_request(&self) -> u64 {
        let reported = self.shard.reported.load(Ordering::Relaxed);
        self.shard
            .reported
            .store(reported.wrapping_add(1), Ordering::Relaxed);
        self.shard.add_request()
    }

    /// Counts a success of an attempt that started at `started` in this shard, if nothing else has to
    /// change. `false`: report it to the breaker. `on_contention` is called if another thread has counted
    /// there concurrently.
    #[inline]
    #[must_use]
    pub(crate) fn add_success(
        &self,
        shard: &Shard,
        now: Instant,
        started: Instant,
        on_contention: impl Fn(),
    ) -> bool {
        let took = now.nanos_since(started);
        if !self.is_healthy(now)
            || took > MAX_LATENCY_NANOS
            || took < self.shortest.load(Ordering::Relaxed)
        {
            return false;
        }
        shard.answered.store(now.as_nanos(), Ordering::Relaxed);
        match shard.add_success(shard.successes.load(Ordering::Relaxed), took) {
            Ok(added) => added,
            Err(seen) => shard.add_success_contended(seen, took, on_contention),
        }
    }

    /// Takes the counts, and shuts the batch until it is [opened](Self::open). Requires the lock.
    pub(crate) fn take(&self, now: Instant, shards: Option<&ShardedCounters>) -> HealthyCounts {
        let healthy_until = self.healthy_until.load(Ordering::Relaxed);
        if healthy_until != 0 {
            self.healthy_until.store(0, Ordering::Relaxed);
        }
        let mut counted = HealthyCounts {
            requests: 0,
            at: match healthy_until {
                0 => now,
                end => Instant::from_nanos(end - 1),
            },
            successes: 0,
            took: 0,
            answered: Instant::ORIGIN,
        };
        self.shard.take(&mut counted);
        for shard in shards.into_iter().flat_map(ShardedCounters::all) {
            shard.take(&mut counted);
        }
        counted
    }

    /// Starts counting for this healthy period. Requires the lock, and that the counts were
    /// [taken](Self::take).
    pub(crate) fn open(&self, healthy: Healthy, shards: Option<&ShardedCounters>) {
        self.shortest.store(healthy.shortest, Ordering::Relaxed);
        self.shard.successes.store(0, Ordering::Relaxed);
        for shard in shards.into_iter().flat_map(ShardedCounters::all) {
            shard.successes.store(0, Ordering::Relaxed);
        }
        self.healthy_until
            .store(healthy.until.as_nanos(), Ordering::Release);
    }
}

impl Shard {
    fn new(first: u64) -> Self {
        Self {
            requests: AtomicU64::new(first),
            reported: AtomicU64::new(first),
            successes: AtomicU64::new(SHUT_FLAG),
            answered: AtomicU64::new(0),
        }
    }

    /// Counts a request. Returns its number.
    #[inline]
    pub(crate) fn add_request(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds a success, if there is headroom and the shard is not shut. An error is the value that
    /// another thread has written.
    #[inline]
    fn add_success(&self, seen: u64, took: u64) -> Result<bool, u64> {
        // The value `SHUT_FLAG` is far above.
        if seen >= FULL_SUCCESSES {
            return Ok(false);
        }
        // Pairs with `take`, so that it sees `answered`.
        let (new, order) = (seen + ONE_SUCCESS + took, Ordering::Release);
        self.successes
            .compare_exchange(seen, new, order, Ordering::Relaxed)
            .map(|_| true)
    }

    /// Adds a success while other threads do.
    #[cold]
    #[inline(never)]
    fn add_success_contended(&self, mut seen: u64, took: u64, on_contention: impl Fn()) -> bool {
        on_contention();
        loop {
            match self.add_success(seen, took) {
                Ok(added) => return added,
                Err(now) => seen = now,
            }
        }
    }

    /// Adds the counts to `counted`, and shuts the shard.
    fn take(&self, counted: &mut HealthyCounts) {
        // While it stays shut, no thread writes to it.
        let successes = match self.successes.load(Ordering::Relaxed) {
            SHUT_FLAG => 0,
            _ => self.successes.swap(SHUT_FLAG, Ordering::Acquire) & !SHUT_FLAG,
        };
        if successes != 0 {
            // At most two thousand in each of a few shards.
            counted.successes += (successes / ONE_SUCCESS) as u32;
            counted.took += successes % ONE_SUCCESS;
            let answered = Instant::from_nanos(self.answered.load(Ordering::Relaxed));
            counted.answered = counted.answered.max(answered);
        }
        let requests = self.requests.load(Ordering::Relaxed);
        let reported = self.reported.load(Ordering::Relaxed);
        if requests != reported {
            self.reported.store(requests, Ordering::Relaxed);
            counted.requests = counted
                .requests
                .wrapping_add(requests.wrapping_sub(reported));
        }
    }
}

impl ShardedCounters {
    /// Empty counters.
    #[must_use]
    pub fn new() -> Self {
        let shard = |index| CacheAligned(Shard::new((index as u64 + 1) << SHARD_SHIFT));
        Self(core::array::from_fn(shard))
    }

    /// The shard of the thread with this number.
    #[inline]
    pub(crate) const fn of(&self, thread: usize) -> &Shard {
        &self.0[thread % SHARDS].0
    }

    fn all(&self) -> impl Iterator<Item = &Shard> {
        self.0.iter().map(|shard| &shard.0)
    }
}

impl Default for ShardedCounters {
    fn default() -> Self {
        Self::new()
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

    fn healthy(until: u64, shortest: u64) -> Healthy {
        Healthy {
            until: at(until),
            shortest,
        }
    }

    /// A batch, and the shards of threads that have met.
    struct Shared(HealthyCounters, ShardedCounters);

    impl Shared {
        fn open() -> Arc<Self> {
            let shared = Self(HealthyCounters::new(), ShardedCounters::new());
            shared.0.open(healthy(100, 0), Some(&shared.1));
            Arc::new(shared)
        }

        fn shard(&self, apart: bool) -> &Shard {
            if apart { self.1.of(1) } else { self.0.shard() }
        }

        fn add_success(&self, apart: bool, now: u64, started: u64) -> bool {
            let shard = self.shard(apart);
            self.0.add_success(shard, at(now), at(started), || ())
        }

        fn take(&self, now: u64) -> HealthyCounts {
            self.0.take(at(now), Some(&self.1))
        }
    }

    /// With both threads in one shard, and with a shard for the other one.
    fn models(test: fn(bool)) {
        for apart in [false, true] {
            loom::model(move || test(apart));
        }
    }

    #[test]
    fn loom_every_counted_success_is_passed_on_once() {
        models(|apart| {
            let shared = Shared::open();
            let other = shared.clone();
            let there = thread::spawn(move || u64::from(other.add_success(apart, 10, 7)));
            let here = u64::from(shared.add_success(false, 20, 19));
            let first = shared.take(30);
            let there = there.join().unwrap();
            assert_eq!(u64::from(first.successes), here + there);
            assert_eq!(first.took, here + 3 * there);
            let when = [10, 20].map(at).contains(&first.answered);
            assert!(
                first.successes == 0 || when,
                "when it came is reported with it"
            );
        });
    }

    /// A breaker that goes down while a thread has the lock receives no success afterwards without the
    /// lock.
    #[test]
    fn loom_nothing_is_added_to_a_taken_batch_until_it_is_opened() {
        models(|apart| {
            let shared = Shared::open();
            let other = shared.clone();
            let there = thread::spawn(move || other.add_success(apart, 10, 9));
            let before = shared.take(20);
            let added = there.join().unwrap();
            assert_eq!(u32::from(added), before.successes);
            assert_eq!(shared.take(30).successes, 0);
        });
    }

    #[test]
    fn loom_requests_have_unique_numbers_and_are_passed_on_once() {
        models(|apart| {
            let shared = Shared::open();
            let other = shared.clone();
            let there = thread::spawn(move || {
                let shard = other.shard(apart);
                [shard.add_request(), shard.add_request()]
            });
            // One with the lock, which is reported directly.
            let first = shared.take(20).requests;
            let own = shared.0.add_reported_request();
            let numbers = there.join().unwrap();
            assert!(!numbers.contains(&own) && numbers[0] < numbers[1]);
            assert_eq!(first + shared.take(30).requests, 2);
            assert_eq!(shared.take(40).requests, 0);
        });
    }

    #[test]
    fn loom_a_thread_that_sees_the_healthy_period_sees_its_latency_bound() {
        models(|apart| {
            let shared = Shared::open();
            let other = shared.clone();
            // Calm only in the second period, in which it is the fastest.
            let there = thread::spawn(move || other.add_success(apart, 150, 110));
            shared.take(90);
            shared.0.open(healthy(200, 50), Some(&shared.1));
            assert!(!there.join().unwrap());
        });
    }

    /// Two threads meet while a third has the lock: counts in their shards from then on are passed on.
    #[test]
    fn loom_shards_created_during_a_turn_lose_no_counts() {
        loom::model(|| {
            let shared = Arc::new(Shared(HealthyCounters::new(), ShardedCounters::new()));
            shared.0.open(healthy(100, 0), None);
            let other = shared.clone();
            let there = thread::spawn(move || {
                other.shard(true).add_request();
                u32::from(other.add_success(true, 10, 9))
            });
            let before = shared.0.take(at(20), None);
            shared.0.open(healthy(100, 0), Some(&shared.1));
            let added = there.join().unwrap();
            let after = shared.take(30);
            assert_eq!(before.successes + after.successes, added);
            assert_eq!(before.requests + after.requests, 1);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Request,
        Told,
        Success(u64),
        Take,
        Open,
    }

    fn step() -> impl Strategy<Value = (usize, Step)> {
        let step = prop_oneof![
            4 => Just(Step::Request),
            1 => Just(Step::Told),
            4 => (0..60_u64).prop_map(Step::Success),
            1 => Just(Step::Take),
            2 => Just(Step::Open),
        ];
        (0..2 * SHARDS, step)
    }

    proptest! {
        /// Shards hold the same total as a single counter, whichever threads use them.
        #[test]
        fn shards_hold_the_same_total_as_one_counter(
            steps in proptest::collection::vec(step(), 0..200),
            met in 0..100_usize,
        ) {
            let (apart, shards) = (HealthyCounters::new(), ShardedCounters::new());
            let one = HealthyCounters::new();
            let mut numbers = Vec::new();
            for (turn, (thread, step)) in steps.into_iter().enumerate() {
                let now = Instant::from_nanos(turn as u64);
                if turn == met {
                    // New shards are shut until the next turn at the lock.
                    prop_assert_eq!(apart.take(now, None), one.take(now, None));
                }
                let shards = (turn >= met).then_some(&shards);
                let shard = shards.map_or(apart.shard(), |shards| shards.of(thread));
                match step {
                    Step::Request => {
                        numbers.push(shard.add_request());
                        one.shard().add_request();
                    }
                    Step::Told => {
                        numbers.push(apart.add_reported_request());
                        one.add_reported_request();
                    }
                    Step::Success(took) => {
                        let (now, started) = (Instant::from_nanos(100), Instant::from_nanos(100 - took));
                        let counted = apart.add_success(shard, now, started, || ());
                        prop_assert_eq!(counted, one.add_success(one.shard(), now, started, || ()));
                    }
                    Step::Take => prop_assert_eq!(apart.take(now, shards), one.take(now, None)),
                    Step::Open => {
                        prop_assert_eq!(apart.take(now, shards), one.take(now, None));
                        let healthy = || Healthy { until: Instant::from_nanos(150), shortest: 5 };
                        apart.open(healthy(), shards);
                        one.open(healthy(), None);
                    }
                }
            }
            let count = numbers.len();
            numbers.sort_unstable();
            numbers.dedup();
            prop_assert_eq!(numbers.len(), count, "each request has a number of its own");
        }
    }
}
