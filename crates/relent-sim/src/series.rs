//! Counts over time in bounded memory.

/// The most bins of a series. A longer run merges them.
const MAX_BINS: usize = 4000;
/// The initial width of a bin: a millisecond.
const FIRST_WIDTH_NANOS: u64 = 1_000_000;

/// Counts of one bin of a [`Series`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Bin {
    /// Requests made.
    pub requests: u64,
    /// Attempts that reached the service.
    pub attempts: u64,
    /// Requests that succeeded.
    pub successes: u64,
}

impl Bin {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.attempts += other.attempts;
        self.successes += other.successes;
    }
}

/// Counts over time, in bins of equal width from the start of the run.
///
/// The width starts at a millisecond and grows with the run, by a factor of two and of five in turn, so that there
/// are never more than 4000 bins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Series {
    /// The width of a bin in nanoseconds: 1 or 2 times a power of ten.
    pub width: u64,
    /// The bins, up to the last in which anything happened.
    pub bins: Vec<Bin>,
}

impl Series {
    pub(crate) const fn new() -> Self {
        Self {
            width: FIRST_WIDTH_NANOS,
            bins: Vec::new(),
        }
    }

    /// The end of the last bin, in nanoseconds.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.width.saturating_mul(self.bins.len() as u64)
    }

    /// The counts in bins of `width` nanoseconds, which must be a multiple of the present width; other widths are
    /// rounded down to one.
    #[must_use]
    pub fn with_width(&self, width: u64) -> Self {
        let factor = (width / self.width).max(1);
        let merged = self.bins.chunks(factor as usize).map(|bins| {
            let mut sum = Bin::default();
            bins.iter().for_each(|bin| sum.add(*bin));
            sum
        });
        Self {
            width: self.width * factor,
            bins: merged.collect(),
        }
    }

    pub(crate) fn at(&mut self, now: u64) -> &mut Bin {
        while now / self.width >= MAX_BINS as u64 {
            let two = self.width.ilog10() != (self.width * 5).ilog10();
            *self = self.with_width(self.width * if two { 5 } else { 2 });
        }
        let index = (now / self.width) as usize;
        if self.bins.len() <= index {
            self.bins.resize(index + 1, Bin::default());
        }
        &mut self.bins[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_widen_with_the_run_and_keep_all_counts() {
        let mut series = Series::new();
        let mut seen = vec![series.width];
        for second in 0..50_000 {
            series.at(second * 1_000_000_000).attempts += 1;
            if seen.last() != Some(&series.width) {
                seen.push(series.width);
            }
            assert!(series.bins.len() <= MAX_BINS);
        }
        let millis: Vec<u64> = seen.iter().map(|width| width / 1_000_000).collect();
        assert_eq!(millis, [1, 2, 10, 20, 100, 200, 1000, 2000, 10_000, 20_000]);
        let total: u64 = series.bins.iter().map(|bin| bin.attempts).sum();
        assert_eq!(total, 50_000);
        assert_eq!(series.end(), 50_000 * 1_000_000_000);
    }
}
