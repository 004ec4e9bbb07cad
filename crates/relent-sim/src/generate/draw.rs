//! Draws levels of dimensions.

use super::dimensions::{Dimension, Generator, Level};
use crate::random_stream::Stream;

/// Draws levels, and keeps them.
pub(super) struct FixedRandom {
    pub(super) generator: Generator,
    pub(super) stream: Stream,
    pub(super) levels: Vec<(&'static str, &'static str)>,
}

/// The result of drawing from a dimension.
#[derive(Clone, Copy)]
pub(super) struct Drawn {
    pub(super) level: &'static str,
    pub(super) value: f64,
}

impl FixedRandom {
    /// Draws a level by its weight, and a value within it: each order of magnitude is equally likely.
    pub(super) fn of(&mut self, dimension: &'static Dimension) -> Drawn {
        let levels = dimension.levels_of(self.generator);
        let all: u32 = levels.iter().map(|level| level.weight).sum();
        let mut rest = self.stream.below(all);
        let mut chosen = &levels[0];
        for level in levels {
            chosen = level;
            match rest.checked_sub(level.weight) {
                Some(left) => rest = left,
                None => break,
            }
        }
        self.within(dimension, chosen)
    }

    /// Draws a value within this level.
    pub(super) fn within(&mut self, dimension: &'static Dimension, level: &'static Level) -> Drawn {
        let (low, high) = level.range;
        let value = self.between(low, high);
        self.levels.push((dimension.name, level.name));
        Drawn {
            level: level.name,
            value,
        }
    }

    /// Draws from a dimension that was added later. The broad generator draws nothing, so that every number still
    /// gives the same scenario.
    pub(super) fn later(&mut self, dimension: &'static Dimension) -> Drawn {
        match self.generator {
            Generator::Broad => self.first(dimension),
            Generator::Everyday => self.of(dimension),
        }
    }

    /// Takes the first level, if other drawn levels leave no other.
    pub(super) fn first(&mut self, dimension: &'static Dimension) -> Drawn {
        let level = &dimension.levels_of(self.generator)[0];
        self.levels.push((dimension.name, level.name));
        Drawn {
            level: level.name,
            value: level.range.0,
        }
    }

    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        let share = self.stream.unit();
        match low > 0.0 && high > low {
            true => low * libm::pow(high / low, share),
            false => low,
        }
    }
}

impl Drawn {
    pub(super) fn is(&self, level: &str) -> bool {
        self.level == level
    }
}
