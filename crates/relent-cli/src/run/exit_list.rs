//! Parser for lists of exit statuses on the command line: `1,75,100-110`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A set of exit statuses: numbers 0 to 255 and ranges of them, separated by commas.
///
/// Spaces around numbers are allowed; order and overlaps do not matter. A list has at least one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExitList(Vec<RangeInclusive<i32>>);

impl ExitList {
    /// Whether `status` is in the list.
    pub(crate) fn contains(&self, status: i32) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }
}

/// The error of a wrong entry, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExitListError {
    entry: String,
    position: usize,
    problem: ExitListProblem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExitListProblem {
    Empty,
    NotANumber,
    TooLarge,
    Backwards,
}

impl fmt::Display for ExitListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            entry,
            position,
            problem,
        } = self;
        match problem {
            ExitListProblem::Empty => write!(f, "entry {position} is empty")?,
            ExitListProblem::NotANumber => {
                write!(f, "entry {position}, \"{entry}\", is not a number")?;
            }
            ExitListProblem::TooLarge => {
                write!(
                    f,
                    "entry {position}, \"{entry}\", is above 255, the largest exit status"
                )?;
            }
            ExitListProblem::Backwards => {
                write!(f, "entry {position}, \"{entry}\", starts above its end")?;
            }
        }
        write!(
            f,
            "; expected exit statuses from 0 to 255 or ranges, like 1,75,100-110"
        )
    }
}

impl std::error::Error for ExitListError {}

impl FromStr for ExitList {
    type Err = ExitListError;

    fn from_str(text: &str) -> Result<Self, ExitListError> {
        let entry = |(i, entry): (usize, &str)| {
            range(entry).map_err(|problem| ExitListError {
                entry: entry.trim().to_owned(),
                position: i + 1,
                problem,
            })
        };
        text.split(',')
            .enumerate()
            .map(entry)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

fn range(entry: &str) -> Result<RangeInclusive<i32>, ExitListProblem> {
    if entry.trim().is_empty() {
        return Err(ExitListProblem::Empty);
    }
    let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
    let (first, last) = (status(first)?, status(last)?);
    if first > last {
        Err(ExitListProblem::Backwards)
    } else {
        Ok(first..=last)
    }
}

fn status(text: &str) -> Result<i32, ExitListProblem> {
    let text = text.trim();
    // `parse` alone would accept a sign, and report a number of 20 digits as "not a number".
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(ExitListProblem::NotANumber);
    }
    text.parse::<u8>()
        .map(i32::from)
        .map_err(|_| ExitListProblem::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(text: &str) -> ExitList {
        text.parse().unwrap()
    }

    #[test]
    fn a_list_names_single_statuses_and_ranges() {
        assert_eq!(list("1,75,100-110").0, [1..=1, 75..=75, 100..=110]);
        assert_eq!(list(" 0 , 5 - 7 ").0, [0..=0, 5..=7]);
        assert_eq!(list("255").0, [255..=255]);
        let some = list("1,100-110");
        assert!(some.contains(1) && some.contains(100) && some.contains(110));
        assert!(!some.contains(0) && !some.contains(99) && !some.contains(111));
    }

    #[test]
    fn errors_name_the_entry_and_what_is_accepted() {
        for (text, says) in [
            ("", "entry 1 is empty"),
            ("1,,2", "entry 2 is empty"),
            ("1,2,", "entry 3 is empty"),
            ("1,x", "entry 2, \"x\", is not a number"),
            ("-1", "entry 1, \"-1\", is not a number"),
            ("+1", "entry 1, \"+1\", is not a number"),
            ("1-2-3", "entry 1, \"1-2-3\", is not a number"),
            ("3-", "entry 1, \"3-\", is not a number"),
            ("1.5", "entry 1, \"1.5\", is not a number"),
            ("256", "entry 1, \"256\", is above 255"),
            ("99999999999999999999", "is above 255"),
            ("7-5", "entry 1, \"7-5\", starts above its end"),
            ("٣", "is not a number"),
        ] {
            let message = text.parse::<ExitList>().unwrap_err().to_string();
            assert!(message.contains(says), "{text:?}: {message}");
            assert!(message.contains("like 1,75,100-110"), "{text:?}: {message}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_list_or_an_explained_error(text in ".{0,40}") {
            if let Err(e) = text.parse::<ExitList>() {
                prop_assert!(!e.to_string().is_empty());
            }
        }

        #[test]
        fn a_written_range_contains_exactly_its_statuses(a in 0i32..=255, b in 0i32..=255) {
            let (low, high) = (a.min(b), a.max(b));
            let parsed = list(&format!("{low}-{high}"));
            for status in 0..=255 {
                prop_assert_eq!(parsed.contains(status), (low..=high).contains(&status));
            }
        }
    }
}
