//! The latency of a service in normal operation, from quantiles.

use serde::Deserialize;

use crate::scenario::words::some_nanos;

/// The supported shares, each with the quantile of the standard normal distribution.
pub(super) const SHARES: [(f64, f64, &str); 6] = [
    (0.5, 0.0, "p50"),
    (0.75, 0.674_49, "p75"),
    (0.9, 1.281_552, "p90"),
    (0.95, 1.644_854, "p95"),
    (0.99, 2.326_348, "p99"),
    (0.999, 3.090_232, "p999"),
];
/// The greatest sigma of a lognormal distribution in the simulator.
const MAX_SIGMA: f64 = 5.0;

/// The quantiles of a description, in nanoseconds.
#[derive(Clone, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quantiles {
    /// Half of the requests take no longer.
    #[serde(deserialize_with = "some_nanos")]
    pub p50: Option<u64>,
    /// 75 % take no longer.
    #[serde(deserialize_with = "some_nanos")]
    pub p75: Option<u64>,
    /// 90 %.
    #[serde(deserialize_with = "some_nanos")]
    pub p90: Option<u64>,
    /// 95 %.
    #[serde(deserialize_with = "some_nanos")]
    pub p95: Option<u64>,
    /// 99 %.
    #[serde(deserialize_with = "some_nanos")]
    pub p99: Option<u64>,
    /// 99.9 %.
    #[serde(deserialize_with = "some_nanos")]
    pub p999: Option<u64>,
}

impl Quantiles {
    pub(super) fn latency(&self) -> Result<Latency, (&'static str, &'static str)> {
        let values = [self.p50, self.p75, self.p90, self.p95, self.p99, self.p999];
        let points = SHARES.iter().zip(values);
        let points = points.filter_map(|((share, ..), value)| Some((*share, value? as f64)));
        Latency::new(points.collect(), "the description".to_owned())
    }
}

/// The latency of a service in normal operation: quantiles, with a lognormal distribution between and beyond them.
#[derive(Clone, PartialEq, Debug)]
pub struct Latency {
    /// Shares, normal quantiles, logarithms of nanoseconds.
    points: Vec<(f64, f64, f64)>,
    /// The fit to all quantiles, by least squares.
    mu: f64,
    sigma: f64,
    /// The source of the quantiles.
    pub source: String,
}

impl Latency {
    /// From quantiles: shares of [`SHARES`] in order, and nanoseconds.
    pub(super) fn new(
        quantiles: Vec<(f64, f64)>,
        source: String,
    ) -> Result<Self, (&'static str, &'static str)> {
        let mut points: Vec<(f64, f64, f64)> = Vec::new();
        for (share, nanos) in quantiles {
            let Some((share, z, name)) = SHARES.iter().find(|(known, ..)| *known == share) else {
                continue;
            };
            if !(1e3..=86_400e9).contains(&nanos) {
                return Err((name, "a time from 1us to 24h"));
            }
            let nanos = libm::log(nanos);
            if points.last().is_some_and(|(_, _, last)| *last > nanos) {
                return Err((
                    name,
                    "a share that is larger does not take less time: a lower quantile is longer than this one",
                ));
            }
            points.push((*share, *z, nanos));
        }
        let [first, .., last] = points.as_slice() else {
            return Err((
                "latency",
                "two quantiles and more, of p50, p75, p90, p95, p99 and p999",
            ));
        };
        if last.0 < 0.9 || first.0 > 0.9 {
            return Err((
                "latency",
                "a quantile up to p90, and one from p90: a timeout cannot be guessed from the middle alone",
            ));
        }
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (z, t) = (mean(|point| point.1), mean(|point| point.2));
        let (products, squares) = points
            .iter()
            .fold((0.0, 0.0), |(products, squares), point| {
                let apart = point.1 - z;
                (products + apart * (point.2 - t), squares + apart * apart)
            });
        let sigma = (products / squares).clamp(0.0, MAX_SIGMA);
        Ok(Self {
            mu: t - sigma * z,
            sigma,
            points,
            source,
        })
    }

    /// A quantile in nanoseconds, for a share of 0.5, 0.75, 0.9, 0.95, 0.99 or 0.999: as given, or interpolated from
    /// its neighbours.
    #[must_use]
    pub fn quantile(&self, share: f64) -> f64 {
        let z = SHARES.iter().find(|(known, ..)| *known >= share);
        let z = z.map_or(SHARES[SHARES.len() - 1].1, |(_, z, _)| *z);
        let after = self.points.partition_point(|point| point.1 < z);
        let after = after.clamp(1, self.points.len() - 1);
        let ((_, from, low), (_, to, high)) = (self.points[after - 1], self.points[after]);
        libm::exp(low + (high - low) * (z - from) / (to - from))
    }

    /// The mean, in nanoseconds.
    #[must_use]
    pub fn mean(&self) -> f64 {
        libm::exp(self.mu + self.sigma * self.sigma / 2.0)
    }

    /// The standard deviation of the logarithm.
    #[must_use]
    pub const fn sigma(&self) -> f64 {
        self.sigma
    }

    /// The quantiles that were given.
    pub(super) fn given(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        self.points.iter().filter_map(|(share, _, nanos)| {
            let (.., name) = SHARES.iter().find(|(known, ..)| known == share)?;
            Some((*name, libm::exp(*nanos)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_quantiles_determine_a_lognormal_distribution() {
        let latency = Latency::new(vec![(0.5, 20e6), (0.99, 200e6)], String::new()).unwrap();
        assert!((latency.quantile(0.5) / 20e6 - 1.0).abs() < 1e-9);
        assert!((latency.quantile(0.99) / 200e6 - 1.0).abs() < 1e-9);
        let sigma = 10.0_f64.ln() / 2.326_348;
        assert!((latency.sigma() - sigma).abs() < 1e-9);
        let p999 = 20e6 * (3.090_232 * sigma).exp();
        assert!((latency.quantile(0.999) / p999 - 1.0).abs() < 1e-9);
        assert!((latency.mean() / (20e6 * (sigma * sigma / 2.0).exp()) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn insufficient_or_contradictory_quantiles_are_rejected() {
        for (points, part) in [
            (vec![(0.5, 20e6)], "two quantiles"),
            (vec![(0.5, 20e6), (0.75, 30e6)], "from p90"),
            (vec![(0.95, 20e6), (0.99, 30e6)], "up to p90"),
            (vec![(0.5, 20e6), (0.99, 10e6)], "longer than"),
            (vec![(0.5, 0.0), (0.99, 10e6)], "1us"),
        ] {
            let (_, message) = Latency::new(points, String::new()).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
    }
}
