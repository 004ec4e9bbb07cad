//! A finding of the linter.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;

use crate::policy::error::PolicyError;

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// The policy works, but a setting has no effect or an unexpected one.
    Warning,
    /// The policy contradicts itself and does not build.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// A problem of a policy, from [`Policy::lint`](crate::Policy::lint) or
/// [`PolicyBuilder::lint`](crate::PolicyBuilder::lint).
///
/// Displays as a sentence that begins with the key.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Backoff, Policy};
/// use relent_core::policy::Severity;
///
/// let ten = Backoff::constant(Duration::from_secs(10));
/// let late = Policy::builder(ten.clone()).deadline(Duration::from_secs(5));
/// let findings = late.lint();
/// assert_eq!((findings[0].severity(), findings[0].key()), (Severity::Warning, "deadline"));
/// assert_eq!(
///     findings[0].to_string(),
///     "deadline: 5s is shorter than the first delay (up to 10s), so no retry can happen: raise the deadline, or set \
///      final_attempt_before_deadline = true"
/// );
/// assert_eq!(late.build()?.lint(), findings);
///
/// let never = Policy::builder(ten).deadline(Duration::ZERO);
/// assert_eq!(never.lint()[0].severity(), Severity::Error);
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    severity: Severity,
    key: String,
    text: String,
}

impl Finding {
    /// A warning about the value of this key, for checks beyond [`Policy::lint`](crate::Policy::lint).
    #[must_use]
    pub fn warning(key: impl Into<String>, why: impl fmt::Display) -> Self {
        let key = key.into();
        Self {
            severity: Severity::Warning,
            text: format!("{key}: {why}"),
            key,
        }
    }

    /// How bad it is.
    #[must_use]
    pub const fn severity(&self) -> Severity {
        self.severity
    }

    /// The key of the policy file, such as `deadline` or `rules[1].on`; rules count from 0.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<PolicyError> for Finding {
    fn from(error: PolicyError) -> Self {
        Self {
            severity: Severity::Error,
            key: error.key().to_string(),
            text: error.to_string(),
        }
    }
}
