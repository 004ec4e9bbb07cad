//! Random scenarios: combinations of services, clients and faults.
//!
//! A scenario is drawn from a number, dimension by dimension ([`DIMENSIONS`]), and written as a file, so that
//! it can be read, changed and played again.

mod dimensions;
mod draw;
mod text;

pub use dimensions::{DIMENSIONS, Dimension, Generator, Level, table};

use draw::FixedRandom;

use crate::random_stream::Stream;

/// A scenario that was drawn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Generated {
    /// The generator that drew it.
    pub generator: Generator,
    /// The number from which it was drawn.
    pub number: u64,
    /// The level of each dimension, as pairs of names, in the order of [`DIMENSIONS`].
    pub levels: Vec<(&'static str, &'static str)>,
    /// Its scenario file.
    pub text: String,
}

/// Draws a scenario: the same number gives the same file on every machine.
///
/// It runs in about a second: at most 12,000 requests are expected on average, within one to four minutes. All faults
/// end by the middle of that time.
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
    generate_by(Generator::Broad, number)
}

/// Draws a scenario by this generator, like [`generate`]; it lasts one to ten minutes.
///
/// ```
/// use relent_sim::Scenario;
/// use relent_sim::generate::{Generator, generate_by};
///
/// let drawn = generate_by(Generator::Everyday, 7);
/// let scenario = Scenario::parse(&drawn.text)?;
/// assert!(scenario.network.one_way <= 150_000_000);
/// # Ok::<(), relent_sim::ScenarioError>(())
/// ```
#[must_use]
pub fn generate_by(generator: Generator, number: u64) -> Generated {
    let mut draw = FixedRandom {
        generator,
        stream: Stream::new(number, stream_of(generator)),
        levels: Vec::new(),
    };
    let text = text::write(&mut draw);
    let place = |name: &str| DIMENSIONS.iter().position(|other| other.name == name);
    draw.levels.sort_by_key(|(name, _)| place(name));
    Generated {
        generator,
        number,
        levels: draw.levels,
        text,
    }
}

/// The stream from which scenarios are drawn: no run uses it.
const fn stream_of(generator: Generator) -> u64 {
    match generator {
        Generator::Broad => 1 << 29,
        Generator::Everyday => (1 << 29) + 1,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::scenario::{SECOND, Scenario};

    #[test]
    fn every_generated_scenario_is_valid_and_short() {
        for (generator, most) in [(Generator::Broad, 240), (Generator::Everyday, 600)] {
            accepts_all(generator, most);
        }
    }

    fn accepts_all(generator: Generator, most: u64) {
        let mut seen = HashMap::new();
        for number in 0..3000 {
            let drawn = generate_by(generator, number);
            let names: Vec<_> = drawn.levels.iter().map(|(name, _)| *name).collect();
            let all: Vec<_> = DIMENSIONS.iter().map(|dimension| dimension.name).collect();
            assert_eq!(names, all, "{number}");
            for level in &drawn.levels {
                *seen.entry(*level).or_insert(0_u32) += 1;
            }
            let scenario = Scenario::parse(&drawn.text)
                .unwrap_or_else(|error| panic!("{number}: {error}\n{}", drawn.text));
            let lasts = scenario.arrivals_end();
            assert!((60 * SECOND..=most * SECOND).contains(&lasts), "{number}");
            let over = scenario.outages_end().unwrap_or(0);
            // The margin is for the rounding of many times.
            assert!(over <= lasts / 20 * 11, "{number}: {}", drawn.text);
        }
        for dimension in DIMENSIONS {
            for level in dimension.levels_of(generator) {
                let level = (dimension.name, level.name);
                assert!(seen.contains_key(&level), "{level:?} never comes");
            }
        }
        // By its weight, within four standard deviations.
        let (level, expected) = match generator {
            Generator::Broad => ("very many", 300),
            Generator::Everyday => ("one", 1125),
        };
        let drawn = seen[&("processes", level)];
        assert!(drawn.abs_diff(expected) < 106, "{level}: {drawn}");
    }

    /// Measurements of earlier numbers stay reproducible.
    #[test]
    fn the_output_of_the_broad_generator_is_stable() {
        let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let texts = (0..300).flat_map(|number| generate(number).text.into_bytes());
        assert_eq!(
            texts.fold(0xcbf2_9ce4_8422_2325, fnv),
            11_844_590_281_387_946_421
        );
    }

    #[test]
    fn the_dimension_table_in_random_md_is_up_to_date() {
        let documented = include_str!("../scenarios/RANDOM.md");
        assert!(
            documented.contains(&table()),
            "put this into crates/relent-sim/scenarios/RANDOM.md:\n{}",
            table()
        );
    }
}
