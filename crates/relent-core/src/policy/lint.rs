//! The policy linter: errors, and warnings about settings without the apparent effect.

pub(super) mod errors;
mod finding;
mod warnings;

use alloc::vec::Vec;

use crate::policy::Policy;
use errors::check;
pub use finding::{Finding, Severity};
use warnings::warnings;

impl Policy {
    /// Warnings about settings without the apparent effect: limits that leave no time,
    /// contradictory lists, rules that never match, hedges that never start, ratios above 1. There
    /// are no errors, since a contradictory policy does not build. `relent policy check` shows
    /// them.
    #[must_use]
    pub fn lint(&self) -> Vec<Finding> {
        // An error is the only finding.
        if let Err(error) = check(self) {
            return Vec::from([error.into()]);
        }
        warnings(self)
    }
}
