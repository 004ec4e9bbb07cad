//! The built-in scenarios.
//!
//! Each is a readable file, with the theoretical prediction in its comments.

use relent_core::text;

use crate::scenario::{Scenario, ScenarioError};

/// A built-in scenario.
///
/// ```
/// let blackout = relent_sim::scenarios::get("blackout").expect("a scenario");
/// assert_eq!(blackout.load()?.outages.len(), 1);
/// # Ok::<(), relent_sim::ScenarioError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Builtin {
    /// Its name.
    pub name: &'static str,
    /// Its file, including comments.
    pub text: &'static str,
}

/// The format of a scenario, with every key and its default (Markdown).
///
/// ```
/// assert!(relent_sim::scenarios::FORMAT.contains("[clients]"));
/// ```
pub const FORMAT: &str = include_str!("../scenarios/FORMAT.md");

impl Builtin {
    /// Reads the file.
    ///
    /// # Errors
    /// None for a released Relent: its tests read every scenario.
    pub fn load(&self) -> Result<Scenario, ScenarioError> {
        Scenario::parse(self.text)
    }
}

macro_rules! scenarios {
    ($($name:literal,)*) => {
        const SCENARIOS: &[Builtin] = &[
            $(Builtin {
                name: $name,
                text: include_str!(concat!("../scenarios/", $name, ".toml")),
            },)*
        ];
    };
}

scenarios!(
    "herd",
    "blackout",
    "brownout",
    "rate-limit",
    "throttling",
    "random-failures",
    "chain",
    "stall",
    "polling",
    "ethernet",
    "clock-skew",
    "proxy-avalanche",
    "duplicates",
);

/// All built-in scenarios.
#[must_use]
pub const fn all() -> &'static [Builtin] {
    SCENARIOS
}

/// The names of all built-in scenarios.
#[must_use]
pub fn names() -> Vec<&'static str> {
    SCENARIOS.iter().map(|scenario| scenario.name).collect()
}

/// The scenario of this name.
#[must_use]
pub fn get(name: &str) -> Option<Builtin> {
    SCENARIOS
        .iter()
        .find(|scenario| scenario.name == name)
        .copied()
}

/// The scenario whose name is nearest to this by edit distance.
///
/// ```
/// assert_eq!(relent_sim::scenarios::nearest("blakout"), Some("blackout"));
/// ```
#[must_use]
pub fn nearest(name: &str) -> Option<&'static str> {
    text::nearest(name, names())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_scenario_loads_and_has_a_description() {
        for builtin in all() {
            let scenario = builtin.load().unwrap();
            assert!(!scenario.description.is_empty(), "{}", builtin.name);
            assert_eq!(get(builtin.name), Some(*builtin));
        }
        assert_eq!(get("no-such"), None);
    }
}
