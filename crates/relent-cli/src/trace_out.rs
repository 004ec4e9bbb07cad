//! `--trace FILE`: the attempts and decisions of a session as one JSON object.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use relent::Summary;
use relent::trace::TraceJson;

use crate::console::Stderr;
use crate::output_file::OutputFile;
use crate::writing::write_until_stalled;

/// The output of the trace. It is opened before the first attempt, so that a bad path fails early.
#[derive(Debug)]
pub(crate) struct TraceOut {
    /// The name as given, for messages.
    name: PathBuf,
    to: TraceTarget,
}

#[derive(Debug)]
enum TraceTarget {
    Stderr,
    Named(OutputFile),
}

impl TraceTarget {
    /// Gives up a reader that takes nothing for as long as `patience`, if it is set.
    fn write(self, trace: &TraceJson, patience: Option<Duration>) -> io::Result<()> {
        let file = match self {
            Self::Named(OutputFile::File(new)) => {
                trace.write(new.file())?;
                return new.complete();
            }
            Self::Named(OutputFile::Special(file)) => Some(file),
            Self::Stderr => None,
        };
        let mut text = Vec::new();
        trace.write(&mut text)?;
        let is_whole = match (file, patience) {
            (None, None) => io::stderr().lock().write_all(&text).map(|()| true)?,
            (None, Some(_)) => Stderr::write_message(&text)?,
            // As for messages: a terminal has been stopped by its user.
            (Some(pipe), Some(patience)) if !pipe.is_terminal() => {
                write_until_stalled(pipe, &text, patience)? == text.len()
            }
            (Some(mut file), _) => file.write_all(&text).map(|()| true)?,
        };
        match is_whole {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "its reader takes nothing",
            )),
        }
    }
}

impl TraceOut {
    /// Opens the output; `-` is standard error.
    ///
    /// # Errors
    /// The path cannot be written.
    pub(crate) fn open(name: &Path) -> Result<Self, String> {
        let to = if name == Path::new("-") {
            Ok(TraceTarget::Stderr)
        } else {
            OutputFile::open(name, ".relent-trace-").map(TraceTarget::Named)
        };
        match to {
            Ok(to) => Ok(Self {
                name: name.to_owned(),
                to,
            }),
            Err(error) => Err(format!(
                "--trace {}: cannot be written: {error}",
                name.display()
            )),
        }
    }

    /// Writes the trace of a session. With `patience`, gives up a reader that takes nothing for as long.
    ///
    /// # Errors
    /// The trace cannot be written after all (a full disk). An existing trace is left unchanged.
    pub(crate) fn finish(
        self,
        trace: &TraceJson,
        patience: Option<Duration>,
    ) -> Result<(), String> {
        self.to.write(trace, patience).map_err(|error| {
            format!(
                "--trace {}: the trace could not be written: {error}",
                self.name.display()
            )
        })
    }
}

/// Writes the trace of a session, if `--trace` was given: see [`TraceOut::finish`].
///
/// # Errors
/// As [`TraceOut::finish`].
pub(crate) fn finish(
    trace: Option<TraceOut>,
    summary: &Summary,
    patience: Option<Duration>,
) -> Result<(), String> {
    trace.map_or(Ok(()), |trace| {
        trace.finish(&TraceJson::new(summary), patience)
    })
}
