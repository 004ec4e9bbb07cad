//! A histogram of recent success latencies.

use core::fmt;
use core::time::Duration;

use crate::sync::{AtomicU64, Ordering};
use crate::time::nanos;

/// The number of buckets per doubling of the latency.
const BUCKETS_PER_DOUBLING: usize = 1 << BUCKETS_PER_DOUBLING_BITS;
const BUCKETS_PER_DOUBLING_BITS: u32 = 3;
/// The first bucket holds latencies below 2¹⁰ ns, about a microsecond.
const MIN_LATENCY_BITS: u32 = 10;
/// The last bucket holds latencies from 2⁴⁰ ns, about 18 minutes.
const MAX_LATENCY_BITS: u32 = 40;
const LATENCY_BUCKETS: usize =
    2 + (MAX_LATENCY_BITS - MIN_LATENCY_BITS) as usize * BUCKETS_PER_DOUBLING;

/// A histogram of latencies that forgets old samples. Fixed memory (2 KiB), lock-free.
///
/// A bucket is an eighth of a doubling wide: a percentile is at most 12.5 % too long, and never too
/// short, for latencies between a microsecond and 18 minutes. When the number of samples reaches
/// the memory, all buckets are halved: a sample loses half of its weight with every half of the
/// memory that follows it. It counts samples, not time, so it does not fade without traffic.
///
/// ```
/// use core::time::Duration;
/// use relent_core::destination::Latencies;
///
/// let latencies = Latencies::new(1000);
/// for milliseconds in 1..=100 {
///     latencies.record(Duration::from_millis(milliseconds));
/// }
/// let p95 = latencies.percentile(0.95).expect("there are samples");
/// assert!(p95 >= Duration::from_millis(95) && p95 <= Duration::from_millis(107));
/// ```
pub struct Latencies {
    buckets: [AtomicU64; LATENCY_BUCKETS],
    samples: AtomicU64,
    /// The number of starts and ends of halving: odd while a thread is halving the buckets.
    halvings: AtomicU64,
    memory: u64,
}

impl Latencies {
    /// An empty histogram with a memory of this many samples, at least 2.
    #[must_use]
    pub fn new(memory: u32) -> Self {
        Self {
            buckets: core::array::from_fn(|_| AtomicU64::new(0)),
            samples: AtomicU64::new(0),
            halvings: AtomicU64::new(0),
            memory: u64::from(memory.max(2)),
        }
    }

    /// Records a latency. Returns the number of samples including it, with the earlier ones
    /// weighted.
    pub fn record(&self, latency: Duration) -> u64 {
        // In this order, so that the buckets never hold more than is counted.
        let samples = self
            .samples
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
        if samples >= self.memory {
            self.halve_when_full();
        }
        if let Some(bucket) = self.buckets.get(bucket_index(nanos(latency))) {
            // A thread that removes it again sees that it was counted: the count cannot fall below
            // zero.
            bucket.fetch_add(1, Ordering::Release);
        }
        samples
    }

    /// Replaces the content by that of another histogram.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        let mut samples = 0_u64;
        for (bucket, other) in self.buckets.iter_mut().zip(&other.buckets) {
            let count = other.load(Ordering::Relaxed);
            samples = samples.saturating_add(count);
            *bucket = AtomicU64::new(count);
        }
        self.samples = AtomicU64::new(samples);
    }

    /// The weighted number of samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples.load(Ordering::Relaxed)
    }

    /// The latency that this share of the samples, from 0 to 1, does not exceed; `None` without
    /// samples.
    ///
    /// While other threads record and halve the samples, short latencies may have between half and
    /// four times the weight of long ones.
    #[must_use]
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        let counts = self.counts();
        let all: u64 = counts.iter().sum();
        if all == 0 {
            return None;
        }
        // At least one sample, at most all of them, whatever the share is; NaN becomes 0.
        let wanted = ((all as f64 * share + 1.0 - f64::EPSILON) as u64).clamp(1, all);
        let mut below = 0;
        for (index, count) in counts.iter().enumerate() {
            below += count;
            if below >= wanted {
                return Some(Duration::from_nanos(bucket_end(index)));
            }
        }
        None
    }

    /// Reads the buckets, one after the other. If other threads have changed too much meanwhile,
    /// the first buckets do not match the last, and it reads again. It never blocks.
    fn counts(&self) -> [u64; LATENCY_BUCKETS] {
        let mut tries = 0;
        loop {
            let snapshot = self.snapshot();
            let counts = core::array::from_fn(|index| self.buckets[index].load(Ordering::Acquire));
            tries += 1;
            if self.is_consistent_with(snapshot) || tries == MAX_READS {
                return counts;
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            halvings: self.halvings.load(Ordering::Acquire),
            samples: self.samples(),
        }
    }

    /// Whether at most one halving has happened since then, and fewer samples were added than the
    /// memory holds. The number of samples is checked, too: it is unbounded while the halving
    /// thread is suspended.
    fn is_consistent_with(&self, snapshot: Snapshot) -> bool {
        let now = self.snapshot();
        now.halvings.wrapping_sub(snapshot.halvings) <= 2
            && now.samples.abs_diff(snapshot.samples) < self.memory
    }

    /// Halves the buckets, in one thread at a time. That thread checks again afterwards, since
    /// others continue to record; no thread waits.
    #[cold]
    fn halve_when_full(&self) {
        while self.halvings.fetch_or(1, Ordering::AcqRel) & 1 == 0 {
            let gone = self.halve();
            // A read-modify-write, so that the counts of threads that left the halving to this one
            // are visible.
            self.halvings.fetch_add(1, Ordering::AcqRel);
            if gone == 0 || self.samples() < self.memory {
                return;
            }
        }
    }

    /// Returns the number of removed samples.
    fn halve(&self) -> u64 {
        let mut gone = 0;
        for bucket in &self.buckets {
            let half = |count: u64| Some(count / 2);
            if let Ok(count) = bucket.fetch_update(Ordering::AcqRel, Ordering::Acquire, half) {
                gone += count - count / 2;
            }
        }
        self.samples.fetch_sub(gone, Ordering::Relaxed);
        gone
    }
}

/// The maximum number of reads for one percentile. One is enough unless the thread is suspended
/// during the read.
const MAX_READS: u32 = 4;

/// A snapshot of the progress of other threads.
#[derive(Clone, Copy)]
struct Snapshot {
    halvings: u64,
    samples: u64,
}

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latencies")
            .field("samples", &self.samples())
            .finish_non_exhaustive()
    }
}

/// The bucket of a latency.
const fn bucket_index(nanos: u64) -> usize {
    if nanos < 1 << MIN_LATENCY_BITS {
        return 0;
    }
    if nanos >= 1 << MAX_LATENCY_BITS {
        return LATENCY_BUCKETS - 1;
    }
    let bits = nanos.ilog2();
    let step = (nanos >> (bits - BUCKETS_PER_DOUBLING_BITS)) as usize - BUCKETS_PER_DOUBLING;
    1 + (bits - MIN_LATENCY_BITS) as usize * BUCKETS_PER_DOUBLING + step
}

/// The longest latency in a bucket, in nanoseconds.
const fn bucket_end(index: usize) -> u64 {
    if index == 0 {
        return (1 << MIN_LATENCY_BITS) - 1;
    }
    if index == LATENCY_BUCKETS - 1 {
        return 1 << MAX_LATENCY_BITS;
    }
    let (bits, step) = (
        (index - 1) / BUCKETS_PER_DOUBLING,
        (index - 1) % BUCKETS_PER_DOUBLING,
    );
    let width = MIN_LATENCY_BITS + bits as u32 - BUCKETS_PER_DOUBLING_BITS;
    (((BUCKETS_PER_DOUBLING + step + 1) as u64) << width) - 1
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const MILLI: u64 = 1_000_000;

    #[test]
    fn latency_buckets_have_no_gaps() {
        for index in 0..LATENCY_BUCKETS - 1 {
            assert_eq!(bucket_index(bucket_end(index)), index, "{index}");
            assert_eq!(bucket_index(bucket_end(index) + 1), index + 1, "{index}");
        }
        assert_eq!(bucket_index(0), 0);
        assert_eq!(bucket_index(u64::MAX), LATENCY_BUCKETS - 1);
    }

    /// Halving takes 242 steps, and others record meanwhile.
    #[test]
    fn concurrent_recording_loses_no_sample_and_distorts_no_percentile() {
        extern crate std;
        for memory in [64, 1000] {
            let latencies = Latencies::new(memory);
            let percentiles: Vec<_> = std::thread::scope(|scope| {
                let record = |thread: u64| {
                    let latencies = &latencies;
                    move || {
                        let mut seen = Vec::new();
                        for sample in 0..100_000_u64 {
                            // One in twenty is slow, as each thread sees it.
                            let long = (sample + thread).is_multiple_of(20);
                            let millis = if long { 1000 } else { 10 };
                            latencies.record(Duration::from_millis(millis));
                            // The count never falls below zero.
                            assert!(latencies.samples() < u64::MAX / 2);
                            if sample > 5000 && sample.is_multiple_of(97) {
                                seen.push((latencies.percentile(0.5), latencies.percentile(0.999)));
                            }
                        }
                        seen
                    }
                };
                let threads = [0, 5, 10, 15].map(|thread| scope.spawn(record(thread)));
                threads
                    .into_iter()
                    .flat_map(|thread| thread.join().unwrap())
                    .collect()
            });
            for (median, highest) in percentiles {
                assert_eq!(
                    median,
                    Some(Duration::from_nanos(bucket_end(bucket_index(10 * MILLI))))
                );
                assert!(highest >= median);
            }
            let held = latencies.buckets.iter();
            let held: u64 = held.map(|bucket| bucket.load(Ordering::Relaxed)).sum();
            assert_eq!(held, latencies.samples());
            assert!(held <= u64::from(memory) + 4, "{held}");
        }
    }

    /// A thread that is suspended while it reads would combine old short buckets with new long
    /// ones.
    #[test]
    fn latency_buckets_are_read_again_after_a_concurrent_halving() {
        let latencies = Latencies::new(64);
        let record = |samples| {
            for _ in 0..samples {
                latencies.record(Duration::from_millis(10));
            }
        };
        record(32);
        let snapshot = latencies.snapshot();
        record(31);
        assert!(latencies.is_consistent_with(snapshot), "all are remembered");
        record(32);
        assert!(
            latencies.is_consistent_with(snapshot),
            "they were halved once"
        );
        record(32);
        assert!(
            !latencies.is_consistent_with(snapshot),
            "they were halved twice"
        );

        // Another thread starts to halve, and is suspended.
        latencies.halvings.fetch_or(1, Ordering::Relaxed);
        let snapshot = latencies.snapshot();
        record(63);
        assert!(latencies.is_consistent_with(snapshot));
        record(1);
        assert!(
            !latencies.is_consistent_with(snapshot),
            "nobody halves them now"
        );
    }

    #[test]
    fn a_latency_histogram_takes_two_kibibytes() {
        assert!(size_of::<Latencies>() <= 2048, "{}", size_of::<Latencies>());
    }

    #[test]
    fn without_samples_there_is_no_percentile() {
        assert_eq!(Latencies::new(10).percentile(0.5), None);
    }

    #[test]
    fn an_invalid_percentile_is_clamped_to_one_sample_or_all() {
        let latencies = Latencies::new(10);
        latencies.record(Duration::from_millis(1));
        latencies.record(Duration::from_millis(100));
        for (share, least) in [(f64::NAN, 1), (-1.0, 1), (0.0, 1), (2.0, 100)] {
            let found = latencies.percentile(share).unwrap().as_millis();
            assert!((least..=least * 9 / 8).contains(&found), "{share}: {found}");
        }
    }

    #[test]
    fn old_latencies_are_forgotten_within_one_memory_length() {
        let latencies = Latencies::new(1000);
        for _ in 0..1000 {
            latencies.record(Duration::from_millis(10));
        }
        assert!(latencies.percentile(0.95).unwrap() < Duration::from_millis(12));
        let mut needed = 0;
        while latencies.percentile(0.5).unwrap() < Duration::from_millis(100) {
            latencies.record(Duration::from_millis(100));
            needed += 1;
        }
        assert!((250..=1000).contains(&needed), "{needed}");
        assert!(latencies.samples() <= 1000);
    }

    #[test]
    fn concurrent_recorders_lose_no_sample_and_stay_within_the_memory() {
        extern crate std;
        let latencies = Latencies::new(100);
        std::thread::scope(|scope| {
            for worker in 1..=4_u64 {
                let latencies = &latencies;
                scope.spawn(move || {
                    for turn in 0..10_000 {
                        latencies.record(Duration::from_micros(worker * turn));
                    }
                });
            }
        });
        let counted: u64 = latencies
            .buckets
            .iter()
            .map(|bucket| bucket.load(Ordering::Relaxed))
            .sum();
        assert_eq!(counted, latencies.samples());
        assert!(counted <= 104, "{counted}");
    }

    proptest! {
        /// Against a sorted list: at most an eighth too long, never too short.
        #[test]
        fn a_percentile_is_at_most_an_eighth_too_long(
            mut samples in proptest::collection::vec(1..10_000 * MILLI, 1..200),
            share in 0.01..1.0_f64,
        ) {
            let latencies = Latencies::new(1000);
            for nanos in &samples {
                latencies.record(Duration::from_nanos(*nanos));
            }
            samples.sort_unstable();
            let rank = (samples.len() as f64 * share).ceil() as usize;
            let exact = samples[rank.clamp(1, samples.len()) - 1];
            let found = latencies.percentile(share).unwrap().as_nanos() as u64;
            prop_assert!(found >= exact, "{found} < {exact}");
            prop_assert!(found <= (exact + exact / 8).max(1 << MIN_LATENCY_BITS), "{found} > {exact}");
        }

        #[test]
        fn every_latency_is_within_its_bucket(samples in proptest::collection::vec(any::<u64>(), 1..50)) {
            let ends: Vec<u64> = samples.iter().map(|nanos| bucket_end(bucket_index(*nanos))).collect();
            for (nanos, end) in samples.iter().zip(ends) {
                prop_assert!(*nanos <= end || *nanos > 1 << MAX_LATENCY_BITS);
            }
        }
    }
}
