//! Errors of scenarios, with their place.

use std::fmt;

use relent_core::text::{nearest, printable};

/// Why a scenario or the description of a service was not read: the error, its place, and the accepted values.
///
/// ```text
/// unknown key `arivals`: did you mean `arrivals`? (line 2)
///   2 | arivals.herd = { clients = 10 }
/// ```
#[derive(Debug)]
pub struct ScenarioError {
    message: String,
    /// The line number, from 1, with the text of the line.
    place: Option<(usize, String)>,
}

/// The most characters that are shown of a line, and of a sentence that may quote one.
const MAX_LINE_CHARS: usize = 120;
const MAX_MESSAGE_CHARS: usize = 400;

impl ScenarioError {
    /// The number of the line, from 1, if the error has a place in the text.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        self.place.as_ref().map(|(line, _)| *line)
    }

    pub(crate) fn toml(text: &str, error: &toml::de::Error) -> Self {
        // The table of the whole text has an empty span: if it lacks a key, no line has to do with that.
        let span = error.span();
        let span = span.filter(|span| *span != (0..0) && *span != (0..text.len()));
        let before = span.and_then(|span| text.get(..span.start));
        Self {
            message: plain(error.message()),
            place: before.and_then(|before| place(text, before.matches('\n').count())),
        }
    }

    /// The value of `key` is rejected. The error has a line if exactly one line of the text sets the key.
    pub(crate) fn value(text: &str, key: &str, accepted: &str) -> Self {
        let mut lines = text
            .lines()
            .enumerate()
            .filter(|(_, line)| sets_key(line, key))
            .map(|(index, _)| index);
        let only = lines.next().filter(|_| lines.next().is_none());
        Self {
            message: format!("{key}: {accepted}"),
            place: only.and_then(|index| place(text, index)),
        }
    }

    /// An error about the line of this index, or about the whole text.
    pub(crate) fn at(text: &str, index: Option<usize>, message: &str) -> Self {
        Self {
            message: message.to_owned(),
            place: index.and_then(|index| place(text, index)),
        }
    }

    /// Names the text that the error is about.
    pub(crate) fn about(self, text: &str) -> Self {
        Self {
            message: format!("{text}: {}", self.message),
            ..self
        }
    }

    pub(crate) fn change(change: &str, message: &str) -> Self {
        Self {
            message: format!("{change}: {}", plain(message)),
            place: None,
        }
    }
}

/// Translates an error message of serde into plain words.
fn plain(message: &str) -> String {
    let message = message.trim_end();
    for (prefix, what) in [
        ("unknown field `", "unknown key"),
        ("unknown variant `", "unknown word"),
    ] {
        if let Some((unknown, known)) = unknown(message, prefix)
            && let Some(near) = nearest(unknown, known)
        {
            return format!("{what} `{unknown}`: did you mean `{near}`?");
        }
    }
    if message.starts_with("wanted exactly 1 element") {
        return "it has one form only, and this would be a second beside it; give the whole value, as in \
                clients.arrivals={herd={clients=10}}"
            .to_owned();
    }
    let mut message = message.to_owned();
    if let Some((before, _)) = message.split_once("expected struct") {
        message = format!("{before}expected a table");
    }
    for (technical, plain) in [
        ("unknown field", "unknown key"),
        ("unknown variant", "unknown word"),
        (
            "wanted string or table",
            "expected a word, or a table of one key",
        ),
        ("expected f64", "expected a number"),
        ("expected u64", "expected a whole number from 0 on"),
        ("expected u32", "expected a whole number from 0 on"),
        ("expected u16", "expected a whole number from 0 on"),
        ("expected u8", "expected a whole number from 0 on"),
        ("expected a sequence", "expected a list in brackets"),
        ("missing field", "missing key"),
        ("duplicate field", "duplicate key"),
    ] {
        message = message.replace(technical, plain);
    }
    message
}

/// Splits "unknown field `x`, expected one of `a`, `b`".
fn unknown<'m>(message: &'m str, prefix: &str) -> Option<(&'m str, impl Iterator<Item = &'m str>)> {
    let (unknown, known) = message.strip_prefix(prefix)?.rsplit_once("`, expected ")?;
    Some((unknown, known.split('`').skip(1).step_by(2)))
}

/// Whether the line sets `key`.
fn sets_key(line: &str, key: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let line = line.split('#').next().unwrap_or_default();
    line.match_indices(key).any(|(at, _)| {
        let before = line.get(..at).unwrap_or_default();
        let after = line.get(at + key.len()..).unwrap_or_default();
        !before.ends_with(is_name) && after.trim_start().starts_with(['=', '.'])
    })
}

fn place(text: &str, index: usize) -> Option<(usize, String)> {
    let line = text.lines().nth(index)?;
    Some((index + 1, printable(line, MAX_LINE_CHARS)))
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.message, MAX_MESSAGE_CHARS))?;
        if let Some((line, text)) = &self.place {
            write!(f, " (line {line})\n  {line} | {text}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ScenarioError {}
