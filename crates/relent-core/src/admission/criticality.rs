//! The importance of a request, for load shedding.

use core::fmt;

/// The importance of a request: the four classes of "Handling Overload" (Site Reliability
/// Engineering). Less important requests are rejected first.
///
/// ```
/// use relent_core::Criticality;
///
/// assert_eq!(Criticality::parse(b"sheddable_plus"), Some(Criticality::SheddablePlus));
/// assert_eq!(Criticality::parse(b"vital"), None);
/// assert!(Criticality::CriticalPlus < Criticality::Sheddable, "the first in line is the least");
/// assert_eq!(Criticality::default(), Criticality::Critical);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Criticality {
    /// A failure is immediately visible to users, and serious.
    CriticalPlus,
    /// A failure is visible to users. The default.
    #[default]
    Critical,
    /// The request can wait for minutes, such as a request of a batch job with retries.
    SheddablePlus,
    /// The request may fail often.
    Sheddable,
}

impl Criticality {
    /// All classes, the most important first.
    pub const ALL: [Self; 4] = [
        Self::CriticalPlus,
        Self::Critical,
        Self::SheddablePlus,
        Self::Sheddable,
    ];

    /// Its name in headers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CriticalPlus => "CRITICAL_PLUS",
            Self::Critical => "CRITICAL",
            Self::SheddablePlus => "SHEDDABLE_PLUS",
            Self::Sheddable => "SHEDDABLE",
        }
    }

    /// Parses a name, ignoring case.
    #[must_use]
    pub fn parse(word: &[u8]) -> Option<Self> {
        let named = |each: &Self| word.eq_ignore_ascii_case(each.name().as_bytes());
        Self::ALL.into_iter().find(named)
    }
}

impl fmt::Display for Criticality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
