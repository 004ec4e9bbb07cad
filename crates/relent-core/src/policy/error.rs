//! The error of an invalid policy.

use core::fmt;
use core::time::Duration;

use crate::duration::format_duration;

/// A contradiction in a policy: the key, its value, and the accepted values.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Backoff, Policy};
///
/// let error = Policy::builder(Backoff::exponential(Duration::from_secs(10)))
///     .max_delay(Duration::from_secs(2))
///     .build()
///     .unwrap_err();
/// assert_eq!(error.key(), "max_delay");
/// assert_eq!(
///     error.to_string(),
///     "max_delay is 2s: the ceiling may not be below the first delay of the backoff"
/// );
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PolicyError {
    key: &'static str,
    found: Found,
    accepted: &'static str,
}

/// The rejected value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Found {
    Nothing,
    Duration(Duration),
    Number(f64),
    Count(u32),
}

impl PolicyError {
    pub(crate) const fn new(key: &'static str, found: Found, accepted: &'static str) -> Self {
        Self {
            key,
            found,
            accepted,
        }
    }

    /// The key of the policy file, which is also the builder method.
    #[must_use]
    pub const fn key(&self) -> &'static str {
        self.key
    }

    /// The accepted values.
    #[must_use]
    pub const fn accepted(&self) -> &'static str {
        self.accepted
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key)?;
        match self.found {
            Found::Nothing => {}
            Found::Duration(duration) => write!(f, " is {}", format_duration(duration))?,
            Found::Number(number) => write!(f, " is {number}")?,
            Found::Count(count) => write!(f, " is {count}")?,
        }
        write!(f, ": {}", self.accepted)
    }
}

impl core::error::Error for PolicyError {}
