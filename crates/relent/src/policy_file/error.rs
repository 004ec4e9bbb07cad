//! The errors of a policy file: message, place, and correction.

use std::fmt;
use std::io;

use relent_core::Policy;
use relent_core::text::{nearest, printable};
use serde::de::IgnoredAny;

/// The reason why no policy could be read: the mistake, its place, and the accepted values.
///
/// Displays as a sentence, followed by the offending line where there is one:
///
/// ```text
/// unknown key `max_retrys` (line 2, column 1): did you mean `max_retries`?
///   2 | max_retrys = 10
/// ```
#[derive(Debug)]
pub struct PolicyFileError {
    file: Option<String>,
    message: String,
    /// A correction, displayed after the place.
    advice: Option<String>,
    place: Option<ErrorLocation>,
    cause: Option<io::Error>,
}

/// The format of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Syntax {
    Toml,
    Json,
}

#[derive(Debug)]
struct ErrorLocation {
    line: usize,
    column: usize,
    text: String,
}

/// The maximum number of characters displayed of an offending line, and of a sentence that may
/// quote it.
const MAX_LINE_CHARS: usize = 120;
const MAX_SENTENCE_CHARS: usize = 400;

/// The deserializer's message for a table that must have exactly one key.
const NOT_ONE_KEY: &str = "wanted exactly 1 element";

impl PolicyFileError {
    /// The line of the file, counted from 1, if the error has a place in it.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        self.place.as_ref().map(|place| place.line)
    }

    /// The column in that line in characters, counted from 1.
    #[must_use]
    pub fn column(&self) -> Option<usize> {
        self.place.as_ref().map(|place| place.column)
    }

    fn new(message: String) -> Self {
        Self {
            file: None,
            message,
            advice: None,
            place: None,
            cause: None,
        }
    }

    pub(crate) fn in_file(mut self, path: &str) -> Self {
        self.file = Some(path.to_owned());
        self
    }

    pub(crate) fn io(error: io::Error) -> Self {
        let mut this = Self::new(format!("cannot be read: {error}"));
        this.cause = Some(error);
        this
    }

    pub(super) fn not_text(error: &std::string::FromUtf8Error) -> Self {
        let at = error.utf8_error().valid_up_to();
        Self::new(format!("is not UTF-8 text (from byte {at} on)"))
    }

    pub(super) fn too_large(limit: usize) -> Self {
        Self::new(format!(
            "a policy file has at most {limit} bytes, and this one has more"
        ))
    }

    pub(crate) fn not_found(spec: &str, path: &str, presets: &[&str]) -> Self {
        let mut this = Self::new(format!(
            "no policy {spec:?}: there is no preset of that name, and no file {path:?}"
        ));
        this.advice = Some(
            match nearest(&spec.to_lowercase(), presets.iter().copied()) {
                Some(preset) => format!("did you mean `{preset}`?"),
                None => format!("the presets are {}", presets.join(", ")),
            },
        );
        this
    }

    pub(super) fn ambiguous<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let names: Vec<_> = names.collect();
        Self::new(format!(
            "holds several policies: choose one as FILE#NAME, where NAME is that of \
             [policies.NAME], of {}",
            names.join(", ")
        ))
    }

    pub(super) fn no_such_policy<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Self {
        let names: Vec<_> = names.collect();
        if names.is_empty() {
            return Self::new(format!(
                "holds one policy without a name, and none named {name:?}: leave out \"#{name}\", or \
                 put the policy under [policies.{name}]"
            ));
        }
        let mut this = Self::new(format!("holds no [policies.{name}]"));
        this.advice = Some(match nearest(name, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are {}", names.join(", ")),
        });
        this
    }

    pub(super) fn toml(text: &str, error: &toml::de::Error) -> Self {
        let mut this = Self::explain(error.message());
        // An error about the top-level table has no span.
        let span = error.span().unwrap_or(0..text.len());
        this.place = locate(text, span, error.message());
        this
    }

    pub(super) fn json(text: &str, error: &serde_json::Error) -> Self {
        let place = format!(" at line {} column {}", error.line(), error.column());
        let message = error.to_string();
        let mut this = match message.strip_suffix(&place).unwrap_or(&message) {
            // Valid JSON with this error has a table with no key or several keys in place of one.
            "expected value" if serde_json::from_str::<IgnoredAny>(text).is_ok() => {
                Self::explain(NOT_ONE_KEY)
            }
            message => Self::explain(message),
        };
        if let Some(before) = error.line().checked_sub(1) {
            let line = text.split('\n').nth(before).unwrap_or_default();
            // `serde_json` counts the column in bytes.
            let bytes = error.column().saturating_sub(1);
            let column = line.get(..bytes).map_or(bytes, |part| part.chars().count()) + 1;
            this.place = Some(ErrorLocation {
                line: before + 1,
                column,
                text: printable(line, MAX_LINE_CHARS),
            });
        }
        this
    }

    /// Rewrites the deserializer's message.
    fn explain(message: &str) -> Self {
        if let Some((unknown, known)) = unknown(message, "unknown field `") {
            let mut this = Self::new(format!("unknown key `{unknown}`"));
            this.advice = Some(if known == ["policies"] {
                "a file holds one policy at its top, or several under [policies.NAME]".to_owned()
            } else {
                correction(unknown, &known)
            });
            return this;
        }
        if let Some((unknown, known)) = unknown(message, "unknown variant `") {
            let mut this = Self::new(format!("`{unknown}` is not known here"));
            this.advice = Some(correction(unknown, &known));
            return this;
        }
        let message = message.trim_end();
        // A backoff is the only table with exactly one key.
        if message.starts_with(NOT_ONE_KEY) || message == "wanted string or table" {
            return Self::new(
                "a backoff is of exactly one kind: \"none\", or a table of one key, such as \
                 exponential = { initial = \"1s\" }"
                    .to_owned(),
            );
        }
        for (technical, plain) in [
            ("expected f64", "expected a number"),
            ("expected a sequence", "expected a list in brackets"),
            ("missing field", "missing key"),
            ("duplicate field", "duplicate key"),
            (
                "expected struct PolicyForm",
                "expected the keys of a policy",
            ),
        ] {
            if message.contains(technical) {
                return Self::new(message.replace(technical, plain));
            }
        }
        Self::new(message.to_owned())
    }
}

impl fmt::Display for PolicyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{file}: ")?;
        }
        f.write_str(&printable(&self.message, MAX_SENTENCE_CHARS))?;
        if let Some(place) = &self.place {
            write!(f, " (line {}, column {})", place.line, place.column)?;
        }
        if let Some(advice) = &self.advice {
            write!(f, ": {}", printable(advice, MAX_SENTENCE_CHARS))?;
        }
        if let Some(place) = &self.place
            && !place.text.is_empty()
        {
            write!(f, "\n  {} | {}", place.line, place.text)?;
        }
        Ok(())
    }
}

impl std::error::Error for PolicyFileError {
    /// The source of the I/O error, whose own text is part of this error's text.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().and_then(std::error::Error::source)
    }
}

/// Parses "unknown field `x`, expected one of `a`, `b`".
fn unknown<'m>(message: &'m str, prefix: &str) -> Option<(&'m str, Vec<&'m str>)> {
    let (unknown, known) = message.strip_prefix(prefix)?.rsplit_once("`, expected ")?;
    let known = known.split('`').skip(1).step_by(2).collect();
    Some((unknown, known))
}

/// Keys under their names before version 0.1, and their names since.
const RENAMED: [(&str, &str); 13] = [
    ("gate", "circuit_breaker"),
    ("request_rate", "rate_limit"),
    ("attempt_room", "min_attempt_time"),
    ("cut_last_wait", "final_attempt_before_deadline"),
    ("hint_spread", "retry_after_jitter"),
    ("reserve", "initial_tokens"),
    ("floor", "min_tokens"),
    ("overload_floor", "overload_reserve"),
    ("wait_when_empty", "queue_when_exhausted"),
    ("patience", "max_queue_time"),
    (
        "patience_without_deadline",
        "max_queue_time_without_deadline",
    ),
    ("patience_unanswered", "max_queue_time_without_response"),
    ("adapt", "adaptive"),
];

fn correction(unknown: &str, known: &[&str]) -> String {
    let renamed = RENAMED.iter().find(|(old, _)| *old == unknown);
    if let Some((_, new)) = renamed.filter(|(_, new)| known.contains(new)) {
        return format!("it is called `{new}` now");
    }
    // In TOML, a key below the header of a table belongs to that table.
    if !known.contains(&"backoff") && is_key_of_policy(unknown) {
        return "it belongs to the whole policy, not to this table: put it beside `backoff`, above every [table]"
            .to_owned();
    }
    match nearest(unknown, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known are {}", known.join(", ")),
    }
}

/// Whether a policy has this key at its top. The deserializer has the list of them.
fn is_key_of_policy(key: &str) -> bool {
    let error = toml::from_str::<Policy>("unknown = 0").err();
    let known = error
        .as_ref()
        .and_then(|error| unknown(error.message(), "unknown field `"));
    known.is_some_and(|(_, known)| known.contains(&key))
}

/// The place of an error in a TOML text. An error about a whole table is placed at the key that its
/// message begins with, if that key occurs once in the table; otherwise it has no place.
fn locate(text: &str, span: std::ops::Range<usize>, message: &str) -> Option<ErrorLocation> {
    let within = text.get(span.clone())?;
    let at = if span.len() == text.len() || within.trim_end().contains('\n') {
        let key = message.split([' ', ':']).next()?;
        let mut places = key_places(within, key);
        let first = places.next()?;
        if places.next().is_some() {
            return None;
        }
        span.start + first
    } else {
        span.start
    };
    let before = text.get(..at)?;
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line_end = text
        .get(at..)?
        .find('\n')
        .map_or(text.len(), |end| at + end);
    Some(ErrorLocation {
        line: before.matches('\n').count() + 1,
        column: text.get(line_start..at)?.chars().count() + 1,
        text: printable(text.get(line_start..line_end)?, MAX_LINE_CHARS),
    })
}

/// The offsets in bytes at which `key` is assigned a value. Works line by line, so that the time is
/// linear in the size of the text.
fn key_places<'t>(text: &'t str, key: &'t str) -> impl Iterator<Item = usize> + 't {
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let mut next_line = 0;
    text.split_inclusive('\n').flat_map(move |line| {
        let start = next_line;
        next_line += line.len();
        let comment = line.trim_start().starts_with('#');
        line.match_indices(key).filter_map(move |(at, _)| {
            let after = line.get(at + key.len()..)?.trim_start_matches(' ');
            let given = after.starts_with('=') && !line.get(..at)?.ends_with(is_name);
            (given && !comment).then_some(start + at)
        })
    })
}
