//! The options that several subcommands share.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread;

use clap::Args;
use relent::Policy;

use super::charts;
use super::input::{NamedItem, load_policy};
use super::ranked::OFF;
use crate::exit_status::ExitError;
use crate::options::seed;

/// The most seeds, scenarios and threads: more do not improve the result.
const MAX_COUNT: u64 = 10_000;

/// The policies of a simulation.
#[derive(Args, Debug)]
pub(super) struct PolicyList {
    /// Simulate these policies: presets, files with one policy, or FILE#NAME for the [policies.NAME] of a
    /// file; `off` is no retries; repeatable [default: off,standard]
    #[arg(
        long = "policy",
        value_name = "NAME|FILE[#NAME],...",
        value_delimiter = ','
    )]
    policies: Vec<String>,
}

/// The seeds of a simulation.
#[derive(Args, Debug)]
pub(crate) struct Seeds {
    /// The number of seeds, counted up from --seed; each is one run
    #[arg(long, value_name = "N", value_parser = count, default_value = "5", allow_hyphen_values = true)]
    seeds: u64,

    /// The first seed
    #[arg(long, value_name = "N", value_parser = seed, default_value = "1", allow_hyphen_values = true)]
    seed: u64,
}

/// The threads of a simulation.
#[derive(Args, Debug)]
pub(crate) struct Threads {
    /// The number of threads [default: one for each core]
    ///
    /// The results do not depend on it.
    #[arg(long, value_name = "N", value_parser = count, allow_hyphen_values = true)]
    jobs: Option<u64>,
}

/// The report of a simulation.
#[derive(Args, Debug)]
pub(crate) struct Report {
    /// Write charts and numbers as one HTML file
    #[arg(long = "report", value_name = "FILE.html", value_parser = charts::page)]
    pub(crate) file: Option<PathBuf>,
}

impl PolicyList {
    /// Loads the policies.
    ///
    /// # Errors
    /// A policy cannot be loaded.
    pub(super) fn load(&self) -> Result<Vec<NamedItem<Policy>>, ExitError> {
        let specs = match self.policies.as_slice() {
            [] => vec![OFF.to_owned(), "standard".to_owned()],
            specs => specs.to_vec(),
        };
        specs.iter().map(|spec| load_policy(spec)).collect()
    }
}

impl Seeds {
    /// All seeds, from the first.
    pub(crate) fn all(&self) -> Vec<u64> {
        let numbers = 0..self.seeds;
        numbers
            .map(|number| self.seed.wrapping_add(number))
            .collect()
    }
}

impl Threads {
    pub(crate) fn count(&self) -> usize {
        match self.jobs {
            Some(jobs) => jobs as usize,
            None => thread::available_parallelism().map_or(1, NonZeroUsize::get),
        }
    }
}

/// Parses a number of seeds, scenarios or threads.
pub(super) fn count(text: &str) -> Result<u64, String> {
    seed(text)
        .ok()
        .filter(|count| (1..=MAX_COUNT).contains(count))
        .ok_or_else(|| format!("use a whole number from 1 to {MAX_COUNT}"))
}
