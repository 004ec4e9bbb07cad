//! A latency histogram with buckets narrower than 1 %.

/// Buckets in each doubling.
const BUCKETS_PER_DOUBLING: u64 = 128;
const BUCKETS_PER_DOUBLING_BITS: u32 = 7;

/// Counts of times: each bucket spans at most 1/128 of its values, and memory does not grow.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    counts: Vec<u32>,
    total: u64,
    most: u64,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        Self {
            counts: vec![
                0;
                (BUCKETS_PER_DOUBLING * u64::from(64 - BUCKETS_PER_DOUBLING_BITS + 1))
                    as usize
            ],
            total: 0,
            most: 0,
        }
    }

    pub(crate) fn record(&mut self, nanos: u64) {
        if let Some(count) = self.counts.get_mut(bucket(nanos)) {
            *count = count.saturating_add(1);
            self.total += 1;
            self.most = self.most.max(nanos);
        }
    }

    /// How many there are.
    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// The longest, to the nanosecond; 0 if there are none.
    pub(crate) const fn most(&self) -> u64 {
        self.most
    }

    /// The quantile of this share, in nanoseconds; `None` if there are none.
    pub(crate) fn quantile(&self, share: f64) -> Option<u64> {
        let rank = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= rank {
                return Some(middle(index));
            }
        }
        None
    }
}

fn bucket(nanos: u64) -> usize {
    let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(BUCKETS_PER_DOUBLING_BITS + 1);
    // Below 2·BUCKETS_PER_DOUBLING every value has its own; above, the top bits name the bucket.
    (u64::from(shift) * BUCKETS_PER_DOUBLING + (nanos >> shift)) as usize
}

/// The middle of a bucket.
fn middle(index: usize) -> u64 {
    let index = index as u64;
    let shift = (index / BUCKETS_PER_DOUBLING).saturating_sub(1);
    ((index - shift * BUCKETS_PER_DOUBLING) << shift) + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_is_within_one_per_cent_of_its_values(nanos in 0..u64::MAX / 2) {
            let mut latencies = Latencies::new();
            latencies.record(nanos);
            let found = latencies.quantile(0.5).unwrap();
            prop_assert!(found.abs_diff(nanos) as f64 <= nanos as f64 / 128.0, "{found}");
        }
    }

    #[test]
    fn a_quantile_is_the_least_time_that_the_share_did_not_exceed() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.quantile(0.5), None);
        for nanos in 1..=100 {
            latencies.record(nanos);
        }
        assert_eq!(latencies.quantile(0.5), Some(50));
        assert_eq!(latencies.quantile(0.99), Some(99));
        assert_eq!(latencies.quantile(0.0), Some(1));
        latencies.record(u64::MAX);
        assert!(latencies.quantile(1.0).unwrap() > u64::MAX / 256 * 255);
    }
}
