//! The error of a service configuration.

use std::fmt;

/// Error: a text is not a valid service configuration. The message names the place and the accepted values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceConfigError {
    pub(super) path: String,
    pub(super) problem: String,
}

impl ServiceConfigError {
    /// The place of the error, such as `methodConfig[0].retryPolicy.maxAttempts`; empty for the whole text.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for ServiceConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            return f.write_str(&self.problem);
        }
        write!(f, "{}: {}", self.path, self.problem)
    }
}

impl std::error::Error for ServiceConfigError {}
