//! Whether an operation may safely run twice, and the source of that knowledge.

use crate::policy::Policy;

/// Whether an operation may safely run twice, and how that is known.
///
/// A declaration about one operation overrides the policy's assumption about all
/// ([`PolicyBuilder::assume_repeatable`](crate::PolicyBuilder::assume_repeatable)). A `bool` is
/// such a declaration: it converts to [`Yes`](Self::Yes) or [`No`](Self::No).
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
    /// The caller declares that it may not. No policy overrides this.
    No = 0,
    /// Not known: repeatable if the policy assumes so of every operation.
    #[default]
    Unknown = 1,
    /// By nature, by key, by precondition, or by declaration of the caller.
    Yes = 2,
}

impl Repeatable {
    /// The value derived from the operation alone: [`Yes`](Self::Yes) if it is known to be
    /// repeatable, else [`Unknown`](Self::Unknown).
    #[inline]
    #[must_use]
    pub const fn known(repeatable: bool) -> Self {
        match repeatable {
            true => Self::Yes,
            false => Self::Unknown,
        }
    }

    /// Whether the operation may run twice under this policy.
    #[inline]
    #[must_use]
    pub const fn is_allowed_by(self, policy: &Policy) -> bool {
        // `Yes` alone, `Unknown` together with the assumption, `No` never.
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
