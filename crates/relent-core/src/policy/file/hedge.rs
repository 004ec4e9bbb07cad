//! The file form of a hedge.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use super::table::{non_default, present, table};
use super::value::{Count, DurationText};
use crate::destination::hedge::{
    DEFAULT_LEAST_DELAY, DEFAULT_MOST_DELAY, HedgeConfig, HedgeDelay, default_samples,
};

table!(HedgeForm {
    delay: DurationText,
    percentile: f64,
    least: DurationText,
    most: DurationText,
    samples: Count,
    max_hedges: Count,
});

/// The default number of hedges, as in [`HedgeConfig::after`] and [`HedgeConfig::percentile`].
const ONE_HEDGE: u32 = 1;

impl HedgeForm {
    pub(super) fn of(config: &HedgeConfig) -> Self {
        let max_hedges = non_default(config.max_hedges, &ONE_HEDGE).map(Count);
        match config.delay {
            HedgeDelay::Fixed(delay) => Self {
                delay: Some(DurationText(delay)),
                max_hedges,
                ..Self::default()
            },
            HedgeDelay::Percentile {
                percentile,
                least,
                most,
                samples,
            } => Self {
                delay: None,
                percentile: Some(percentile),
                least: non_default(least, &DEFAULT_LEAST_DELAY).map(DurationText),
                most: non_default(most, &DEFAULT_MOST_DELAY).map(DurationText),
                samples: non_default(samples, &default_samples(percentile)).map(Count),
                max_hedges,
            },
        }
    }

    pub(super) fn into_config(self) -> Result<HedgeConfig, String> {
        let delay = match (self.delay, self.percentile) {
            (Some(DurationText(delay)), None) => {
                let of_percentile = [
                    ("least", self.least.is_some()),
                    ("most", self.most.is_some()),
                    ("samples", self.samples.is_some()),
                ];
                if let Some((key, _)) = of_percentile.iter().find(|(_, present)| *present) {
                    return Err(alloc::format!(
                        "{key} is out of place beside a fixed `delay` in [hedge]: it belongs to a \
                         `percentile`"
                    ));
                }
                HedgeDelay::Fixed(delay)
            }
            (None, Some(percentile)) => HedgeDelay::Percentile {
                percentile,
                least: self.least.map_or(DEFAULT_LEAST_DELAY, |span| span.0),
                most: self.most.map_or(DEFAULT_MOST_DELAY, |span| span.0),
                samples: (self.samples).map_or(default_samples(percentile), |count| count.0),
            },
            (Some(_), Some(_)) => {
                return Err("[hedge] has a `delay` and a `percentile`: use one of them".into());
            }
            (None, None) => {
                return Err(
                    "missing key `delay` or `percentile` in [hedge]: use, for example, \
                            delay = \"50ms\", or percentile = 0.95"
                        .into(),
                );
            }
        };
        Ok(HedgeConfig {
            delay,
            max_hedges: self.max_hedges.map_or(ONE_HEDGE, |count| count.0),
        })
    }
}
