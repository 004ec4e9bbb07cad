//! Random scenarios: services, crowds and troubles that nobody has thought of.
//!
//! A scenario is drawn from a number, dimension by dimension ([`DIMENSIONS`]), and written as a file, so that
//! it can be read, changed and played again.

mod dimensions;
mod text;

pub use dimensions::{DIMENSIONS, Dimension, Level, table};

use crate::stream::Stream;

/// A scenario that was drawn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Generated {
    /// What it was drawn from.
    pub number: u64,
    /// The level of each dimension, by their names, in the order of [`DIMENSIONS`].
    pub levels: Vec<(&'static str, &'static str)>,
    /// Its file.
    pub text: String,
}

/// Draws a scenario: the same number gives the same file on every machine.
///
/// It is small enough to be played in a second or so: at most 12,000 requests are expected on average, which
/// come in one to four minutes. What goes wrong is over by the middle of that time.
///
/// ```
/// use relent_sim::{Scenario, generate::generate};
///
/// let drawn = generate(7);
/// assert_eq!(drawn, generate(7));
/// let scenario = Scenario::parse(&drawn.text)?;
/// assert!(scenario.arrivals_end() >= 60_000_000_000);
/// # Ok::<(), relent_sim::ScenarioError>(())
/// ```
#[must_use]
pub fn generate(number: u64) -> Generated {
    let mut draw = Draw {
        stream: Stream::new(number, GENERATOR),
        levels: Vec::new(),
    };
    let text = text::write(&mut draw);
    let place = |name: &str| DIMENSIONS.iter().position(|other| other.name == name);
    draw.levels.sort_by_key(|(name, _)| place(name));
    Generated {
        number,
        levels: draw.levels,
        text,
    }
}

/// The stream that a scenario is drawn from: none of a run.
const GENERATOR: u64 = 1 << 29;

/// Draws levels, and keeps which.
struct Draw {
    stream: Stream,
    levels: Vec<(&'static str, &'static str)>,
}

/// What was drawn of a dimension.
#[derive(Clone, Copy)]
struct Drawn {
    level: &'static str,
    value: f64,
}

impl Draw {
    /// A level by its weight, and a value within it: each order of magnitude is as likely.
    fn of(&mut self, dimension: &'static Dimension) -> Drawn {
        let all: u32 = dimension.levels.iter().map(|level| level.weight).sum();
        let mut rest = self.stream.below(all);
        let mut chosen = &dimension.levels[0];
        for level in dimension.levels {
            chosen = level;
            match rest.checked_sub(level.weight) {
                Some(left) => rest = left,
                None => break,
            }
        }
        let (low, high) = chosen.range;
        let value = self.between(low, high);
        self.levels.push((dimension.name, chosen.name));
        Drawn {
            level: chosen.name,
            value,
        }
    }

    /// The first level, as what else was drawn leaves no other.
    fn first(&mut self, dimension: &'static Dimension) -> Drawn {
        let level = &dimension.levels[0];
        self.levels.push((dimension.name, level.name));
        Drawn {
            level: level.name,
            value: level.range.0,
        }
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        let share = self.stream.unit();
        match low > 0.0 && high > low {
            true => low * libm::pow(high / low, share),
            false => low,
        }
    }
}

impl Drawn {
    fn is(&self, level: &str) -> bool {
        self.level == level
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::scenario::{SECOND, Scenario};

    #[test]
    fn every_number_gives_a_scenario_that_is_accepted_and_small() {
        let mut seen = HashMap::new();
        for number in 0..3000 {
            let drawn = generate(number);
            let names: Vec<_> = drawn.levels.iter().map(|(name, _)| *name).collect();
            let all: Vec<_> = DIMENSIONS.iter().map(|dimension| dimension.name).collect();
            assert_eq!(names, all, "{number}");
            for level in &drawn.levels {
                *seen.entry(*level).or_insert(0_u32) += 1;
            }
            let scenario = Scenario::parse(&drawn.text)
                .unwrap_or_else(|error| panic!("{number}: {error}\n{}", drawn.text));
            let lasts = scenario.arrivals_end();
            assert!((60 * SECOND..=240 * SECOND).contains(&lasts), "{number}");
            let over = scenario.outages_end().unwrap_or(0);
            // But for what rounding adds to each of many times.
            assert!(over <= lasts / 20 * 11, "{number}: {}", drawn.text);
        }
        for dimension in DIMENSIONS {
            for level in dimension.levels {
                let level = (dimension.name, level.name);
                assert!(seen.contains_key(&level), "{level:?} never comes");
            }
        }
        // By its weight, a tenth, within four standard deviations.
        assert!(
            seen[&("processes", "a crowd")].abs_diff(300) < 66,
            "{seen:?}"
        );
    }

    #[test]
    fn the_dimensions_are_documented_as_they_are() {
        let documented = include_str!("../scenarios/RANDOM.md");
        assert!(
            documented.contains(&table()),
            "put this there:\n{}",
            table()
        );
    }
}
