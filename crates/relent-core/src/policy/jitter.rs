//! Jitter: the randomness applied to a backoff.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use alloc::string::{String, ToString};

use crate::duration::{format_duration, parse_duration};
use crate::random::{Random, up_to};
use crate::time::{nanos, share_of};

/// The randomness applied to a backoff `b`, so that callers that failed together do not retry
/// together.
///
/// # Default
/// [`Jitter::Full`].
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Jitter {
    /// `b` itself. Clients that failed together return together.
    None,
    /// Uniform in [0, b].
    #[default]
    Full,
    /// Uniform in [b/2, b].
    Equal,
    /// Uniform in [b·(1−f), b·(1+f)]; f from 0 to 1.
    Proportional(f64),
    /// b plus a uniform draw from [min, max], which does not accumulate over retries.
    Additive {
        /// The minimum addition.
        min: Duration,
        /// The maximum addition.
        max: Duration,
    },
}

impl Jitter {
    /// Adds a uniform draw from [0, max].
    #[must_use]
    pub const fn additive(max: Duration) -> Self {
        Self::Additive {
            min: Duration::ZERO,
            max,
        }
    }

    /// The delay for the backoff `backoff`, in nanoseconds; saturating.
    pub(crate) fn apply(&self, backoff: u64, random: &mut (impl Random + ?Sized)) -> u64 {
        match *self {
            Self::None => backoff,
            Self::Full => up_to(backoff, random),
            Self::Equal => {
                let half = backoff / 2;
                (backoff - half).saturating_add(up_to(half, random))
            }
            Self::Proportional(fraction) => {
                let reach = share_of(backoff, fraction);
                backoff
                    .saturating_sub(reach)
                    .saturating_add(up_to(reach.saturating_mul(2), random))
            }
            Self::Additive { min, max } => {
                let (min, max) = (nanos(min), nanos(max));
                backoff
                    .saturating_add(min)
                    .saturating_add(up_to(max.saturating_sub(min), random))
            }
        }
    }
}

impl fmt::Display for Jitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::None => f.write_str("none"),
            Self::Full => f.write_str("full"),
            Self::Equal => f.write_str("equal"),
            Self::Proportional(fraction) => write!(f, "proportional:{fraction}"),
            Self::Additive {
                min: Duration::ZERO,
                max,
            } => {
                write!(f, "additive:{}", format_duration(max))
            }
            Self::Additive { min, max } => {
                write!(
                    f,
                    "additive:{}..{}",
                    format_duration(min),
                    format_duration(max)
                )
            }
        }
    }
}

/// The error of a text that is not a jitter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JitterError(String);

impl fmt::Display for JitterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for JitterError {}

/// Parses `none`, `full`, `equal`, `proportional:0.2`, `additive:1s` or `additive:1ms..1s`.
///
/// ```
/// use relent_core::Jitter;
///
/// assert_eq!("proportional:0.2".parse(), Ok(Jitter::Proportional(0.2)));
/// assert!("ful".parse::<Jitter>().is_err());
/// ```
impl FromStr for Jitter {
    type Err = JitterError;

    fn from_str(text: &str) -> Result<Self, JitterError> {
        let duration =
            |text: &str| parse_duration(text).map_err(|error| JitterError(error.to_string()));
        match text.trim().split_once(':') {
            None => match text.trim() {
                "none" => Ok(Self::None),
                "full" => Ok(Self::Full),
                "equal" => Ok(Self::Equal),
                _ => Err(unknown(text)),
            },
            Some(("proportional", fraction)) => match fraction.trim().parse::<f64>() {
                Ok(fraction) if (0.0..=1.0).contains(&fraction) => Ok(Self::Proportional(fraction)),
                _ => Err(JitterError(alloc::format!(
                    "jitter {text:?}: the fraction of proportional is a number from 0 to 1, \
                     as in proportional:0.2"
                ))),
            },
            Some(("additive", range)) => {
                let (min, max) = match range.split_once("..") {
                    Some((min, max)) => (duration(min)?, duration(max)?),
                    None => (Duration::ZERO, duration(range)?),
                };
                if min > max {
                    return Err(JitterError(alloc::format!(
                        "jitter {text:?}: the first duration is the least that is added and may \
                         not be above the second"
                    )));
                }
                Ok(Self::Additive { min, max })
            }
            Some(_) => Err(unknown(text)),
        }
    }
}

fn unknown(text: &str) -> JitterError {
    JitterError(alloc::format!(
        "unknown jitter {text:?}: use none, full, equal, proportional:F (0 to 1) or additive:D \
         (a duration)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::FixedRandom;
    use proptest::prelude::*;

    fn at(jitter: Jitter, backoff: u64) -> [u64; 3] {
        [0.0, 0.5, 1.0].map(|point| jitter.apply(backoff, &mut FixedRandom::at(point)))
    }

    #[test]
    fn each_kind_draws_from_its_published_range() {
        assert_eq!(at(Jitter::None, 1000), [1000, 1000, 1000]);
        assert_eq!(at(Jitter::Full, 1000), [0, 500, 1000]);
        assert_eq!(at(Jitter::Equal, 1000), [500, 750, 1000]);
        assert_eq!(at(Jitter::Proportional(0.5), 1000), [500, 1000, 1500]);
        assert_eq!(
            at(Jitter::additive(Duration::from_nanos(10)), 1000),
            [1000, 1005, 1010]
        );
        let vital = Jitter::Additive {
            min: Duration::from_nanos(2),
            max: Duration::from_nanos(10),
        };
        assert_eq!(at(vital, 1000), [1002, 1006, 1010]);
    }

    /// tower loses jitter at whole seconds: 1 s with jitter .99 is exactly 1 s for every seed.
    #[test]
    fn tower_jitter_lost_at_whole_seconds() {
        assert_eq!(at(Jitter::Proportional(0.99), 1_000_000_000)[0], 10_000_000);
        assert_eq!(at(Jitter::Full, 1_000_000_000)[1], 500_000_000);
    }

    #[test]
    fn text_form_round_trips() {
        for text in [
            "none",
            "full",
            "equal",
            "proportional:0.5",
            "additive:1s",
            "additive:1ms..1s",
        ] {
            assert_eq!(text.parse::<Jitter>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "ful",
            "proportional",
            "proportional:2",
            "proportional:NaN",
            "additive:-1s",
        ] {
            assert!(text.parse::<Jitter>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_overflows(backoff: u64, point in 0.0..=1.0f64, fraction in 0.0..=1.0f64) {
            for jitter in [Jitter::Full, Jitter::Equal, Jitter::Proportional(fraction),
                           Jitter::additive(Duration::MAX)] {
                let _ = jitter.apply(backoff, &mut FixedRandom::at(point));
            }
        }
    }
}
