//! Whether an operation may run twice without harm, and who says so.

use crate::policy::Policy;

/// Whether an operation may run twice without harm (design rule 1), and how that is known.
///
/// What is said of one operation is stronger than what a policy assumes of all
/// ([`PolicyBuilder::assume_repeatable`](crate::PolicyBuilder::assume_repeatable)). A `bool` is such a
/// word: it converts to [`Yes`](Self::Yes) or [`No`](Self::No).
///
/// ```
/// use relent_core::{Backoff, Policy, Repeatable};
/// use core::time::Duration;
///
/// let backoff = Backoff::constant(Duration::from_millis(100));
/// let assuming = Policy::builder(backoff).assume_repeatable(true).build()?;
/// assert!(Repeatable::Unknown.is_allowed_by(&assuming));
/// assert!(!Repeatable::No.is_allowed_by(&assuming));
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Repeatable {
    /// The caller says that it may not. No policy overrules that.
    No = 0,
    /// Nothing makes it repeatable: it is if the policy assumes that everything is.
    #[default]
    Unknown = 1,
    /// By nature, by key, by precondition, or because the caller says so.
    Yes = 2,
}

impl Repeatable {
    /// What follows from the operation alone: [`Yes`](Self::Yes) if it is known to be repeatable, else
    /// [`Unknown`](Self::Unknown).
    #[inline]
    #[must_use]
    pub const fn known(repeatable: bool) -> Self {
        match repeatable {
            true => Self::Yes,
            false => Self::Unknown,
        }
    }

    /// Whether it may run twice under this policy.
    #[inline]
    #[must_use]
    pub const fn is_allowed_by(self, policy: &Policy) -> bool {
        // Yes by itself, Unknown together with the assumption, No never.
        self as u8 + policy.assume_repeatable as u8 >= Self::Yes as u8
    }
}

impl From<bool> for Repeatable {
    #[inline]
    fn from(said: bool) -> Self {
        match said {
            true => Self::Yes,
            false => Self::No,
        }
    }
}
