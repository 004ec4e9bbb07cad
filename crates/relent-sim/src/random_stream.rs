//! Random streams that are the same on every machine.

use relent_core::Random;

/// A seeded stream of random numbers: SplitMix64 (Steele, Lea and Flood, 2014), in integers.
///
/// Every purpose (arrivals, service times, each session) has its own stream, so a change of policy does not shift the
/// arrivals: policies are compared on the same requests. Logarithms come from `libm`, which computes them in
/// software, so that a run is the same bit for bit everywhere.
///
/// ```
/// use relent_sim::Stream;
///
/// let mut a = Stream::new(1, 7);
/// assert_eq!(a.exponential(1_000_000), Stream::new(1, 7).exponential(1_000_000));
/// ```
#[derive(Clone, Debug)]
pub struct Stream(u64);

/// The streams of a run, by purpose. Sessions have one each, from `SESSIONS` on.
pub(crate) const ARRIVALS: u64 = 1;
pub(crate) const POPULATION: u64 = 2;
pub(crate) const NETWORK: u64 = 3;
pub(crate) const SERVICE: u64 = 4;
pub(crate) const LUCK: u64 = 5;
pub(crate) const JOBS: u64 = 6;
pub(crate) const LOSS: u64 = 7;
pub(crate) const BACKLOG: u64 = 8;
pub(crate) const DESTINATIONS: u64 = 9;
pub(crate) const CLASSES: u64 = 10;
pub(crate) const BALANCER: u64 = 11;
pub(crate) const WAYS_LOST: u64 = 12;
pub(crate) const FAST_FAILURES: u64 = 13;
/// The streams of every node but the first.
pub(crate) const NODES: u64 = 1 << 30;
/// One for each process.
pub(crate) const CLOCKS: u64 = 1 << 31;
pub(crate) const SESSIONS: u64 = 1 << 32;

/// The golden ratio in 64 bits: SplitMix64's increment.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// 2⁻⁵³.
const UNIT: f64 = 1.0 / 9_007_199_254_740_992.0;

impl Stream {
    /// The stream number `index` of a run with this seed.
    #[must_use]
    pub const fn new(seed: u64, index: u64) -> Self {
        Self(mix(mix(seed.wrapping_add(STEP)) ^ index.wrapping_mul(STEP)))
    }

    /// Uniform in (0, 1].
    pub fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 * UNIT
    }

    /// Whether an event of this probability happens; 0 never, 1 always.
    pub fn happens(&mut self, probability: f64) -> bool {
        self.unit() <= probability
    }

    /// Uniform in `0..bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        // The high half of bits · bound is below bound.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u32
    }

    /// Exponential with this mean, in nanoseconds.
    pub fn exponential(&mut self, mean: u64) -> u64 {
        rounded(-libm::log(self.unit()) * mean as f64)
    }

    /// Normal with mean 0 and standard deviation 1 (Marsaglia's polar method).
    pub fn normal(&mut self) -> f64 {
        loop {
            let (x, y) = (2.0 * self.unit() - 1.0, 2.0 * self.unit() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return x * libm::sqrt(-2.0 * libm::log(square) / square);
            }
        }
    }

    /// Lognormal with this median, in nanoseconds, and standard deviation of the logarithm.
    pub fn lognormal(&mut self, median: u64, sigma: f64) -> u64 {
        rounded(libm::exp(sigma * self.normal()) * median as f64)
    }
}

impl Random for Stream {
    #[inline]
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }
}

/// To the nearest nanosecond; the cast saturates.
pub(crate) fn rounded(nanos: f64) -> u64 {
    (nanos + 0.5) as u64
}

const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_splitmix64() {
        // The first outputs for the seed 1234567, as in the reference implementation's test vectors.
        let mut stream = Stream(1_234_567);
        assert_eq!(stream.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(stream.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn the_distributions_have_their_moments() {
        let mut stream = Stream::new(1, 1);
        let count = 100_000;
        let mean = |draws: Vec<f64>| draws.iter().sum::<f64>() / draws.len() as f64;
        let exponential = (0..count).map(|_| stream.exponential(1_000_000) as f64);
        let exponential = mean(exponential.collect());
        // The mean of n exponentials has a standard error of mean/√n: 3162.
        assert!((exponential - 1e6).abs() < 4.0 * 3163.0, "{exponential}");
        let squares: Vec<f64> = (0..count).map(|_| stream.normal().powi(2)).collect();
        // Var(x²) = 2.
        assert!((mean(squares) - 1.0).abs() < 4.0 * (2.0_f64 / f64::from(count)).sqrt());
        let above = (0..count)
            .filter(|_| stream.lognormal(1000, 1.5) > 1000)
            .count();
        assert!((above as f64 / f64::from(count) - 0.5).abs() < 4.0 * 0.5 / 316.0);
        assert!((0..count).all(|_| stream.below(7) < 7 && stream.below(0) == 0));
        assert!(!stream.happens(0.0) && stream.happens(1.0));
    }
}
