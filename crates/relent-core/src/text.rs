//! Texts of error messages: names that were probably meant, and quotations that are safe to print.

use alloc::string::String;
use alloc::vec::Vec;
use core::mem::replace;

/// No known name is close to a longer text, and the comparison takes quadratic time.
const MAX_NAME_BYTES: usize = 64;

/// The name with the fewest typing errors, if it is close enough, for a message such as "did you
/// mean …?". A typing error is a character that is missing, added or replaced, or two neighbours in
/// the wrong order.
///
/// ```
/// use relent_core::text::nearest;
///
/// assert_eq!(nearest("standrad", ["standard", "patient"]), Some("standard"));
/// assert_eq!(nearest("make", ["standard", "patient"]), None);
/// ```
#[must_use]
pub fn nearest<'n>(unknown: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let known = known
        .into_iter()
        .filter(|_| unknown.len() <= MAX_NAME_BYTES);
    known
        .map(|name| (typing_errors(unknown, name), name))
        .min()
        .filter(|(errors, name)| *errors <= (name.len() / 3).max(1))
        .map(|(_, name)| name)
}

/// The fewest typing errors between two texts (the distance of optimal string alignment).
fn typing_errors(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    // Each row has the errors between the start of `one`, up to its character, and every start of `other`.
    let mut row: Vec<usize> = (0..=other.len()).collect();
    let (mut above, mut before) = (row.clone(), None);
    for (index, typed) in one.chars().enumerate() {
        let mut next = Vec::with_capacity(row.len());
        let mut errors = index + 1;
        next.push(errors);
        for (column, meant) in other.iter().enumerate() {
            errors = (row[column] + usize::from(typed != *meant))
                .min(row[column + 1] + 1)
                .min(errors + 1);
            if column > 0 && before == Some(*meant) && other[column - 1] == typed {
                errors = errors.min(above[column - 1] + 1);
            }
            next.push(errors);
        }
        above = replace(&mut row, next);
        before = Some(typed);
    }
    row[other.len()]
}

/// The text as it can be printed: without control characters, which could move the cursor of a
/// terminal, and with at most `max_chars` characters and `…`.
///
/// ```
/// use relent_core::text::printable;
///
/// assert_eq!(printable("a\u{1b}[2Jb", 10), "a [2Jb");
/// assert_eq!(printable("too long", 3), "too…");
/// ```
#[must_use]
pub fn printable(text: &str, max_chars: usize) -> String {
    let mut rest = text.trim_end().chars();
    let mut printable: String = rest
        .by_ref()
        .take(max_chars)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if rest.next().is_some() {
        printable.push('…');
    }
    printable
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_typing_error_counts_once() {
        for (typed, meant, errors) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("same", "same", 0),
            ("max_retris", "max_retries", 1),
            ("max_retriees", "max_retries", 1),
            ("max_retrieß", "max_retries", 1),
            ("rnu", "run", 1),
            ("shwo", "show", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(typing_errors(typed, meant), errors, "{typed} {meant}");
            assert_eq!(typing_errors(meant, typed), errors, "{meant} {typed}");
        }
    }

    #[test]
    fn only_a_near_name_is_suggested() {
        assert_eq!(nearest("sned", ["list", "send"]), Some("send"));
        assert_eq!(nearest("sxxd", ["list", "send"]), None);
        assert_eq!(nearest(&"a".repeat(65), ["a"]), None);
        let none: [&str; 0] = [];
        assert_eq!(nearest("a", none), None);
    }
}
