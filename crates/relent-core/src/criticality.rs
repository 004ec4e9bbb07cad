//! How much a request matters, for a server that cannot serve all of them.

use core::fmt;

/// How much a request matters to those who wait for it: the four classes of "Handling Overload" (Site
/// Reliability Engineering). What matters less is turned away first.
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
    /// Its failure is seen by users at once, and is serious.
    CriticalPlus,
    /// Its failure is seen by users: what a request is unless somebody says otherwise.
    #[default]
    Critical,
    /// It can wait for minutes, such as what a batch job asks and asks again.
    SheddablePlus,
    /// It may fail often.
    Sheddable,
}

impl Criticality {
    /// All of them, what matters most first.
    pub const ALL: [Self; 4] = [
        Self::CriticalPlus,
        Self::Critical,
        Self::SheddablePlus,
        Self::Sheddable,
    ];

    /// Its word, as headers have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CriticalPlus => "CRITICAL_PLUS",
            Self::Critical => "CRITICAL",
            Self::SheddablePlus => "SHEDDABLE_PLUS",
            Self::Sheddable => "SHEDDABLE",
        }
    }

    /// The one with this word, in any capitals.
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
