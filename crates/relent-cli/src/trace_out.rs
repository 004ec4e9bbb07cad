//! `--trace FILE`: the account of a session as one JSON object.

use std::io;
use std::path::{Path, PathBuf};

use relent::Summary;
use relent::trace::TraceJson;

use crate::destination::Destination;

/// Where the trace goes; opened before the first attempt, so that a bad path is an error before
/// anything ran.
#[derive(Debug)]
pub(crate) struct TraceOut {
    /// As it was written, for messages.
    name: PathBuf,
    to: To,
}

#[derive(Debug)]
enum To {
    Stderr,
    Named(Destination),
}

impl TraceOut {
    /// Makes sure that a trace can be written there. `-` is standard error.
    ///
    /// # Errors
    /// A path that cannot be written, in words.
    pub(crate) fn open(name: &Path) -> Result<Self, String> {
        let to = if name == Path::new("-") {
            Ok(To::Stderr)
        } else {
            Destination::open(name, ".relent-trace-").map(To::Named)
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

    /// Writes the account of a session.
    ///
    /// # Errors
    /// When it cannot be written after all (a full disk), in words. A trace that was there before
    /// is left as it was.
    pub(crate) fn finish(self, trace: &TraceJson) -> Result<(), String> {
        let result = match self.to {
            To::Stderr => trace.write(io::stderr().lock()),
            To::Named(Destination::Special(file)) => trace.write(file),
            To::Named(Destination::File(new)) => {
                trace.write(new.file()).and_then(|()| new.complete())
            }
        };
        result.map_err(|error| {
            format!(
                "--trace {}: the trace could not be written: {error}",
                self.name.display()
            )
        })
    }
}

/// Writes the account of a session where it was asked for.
///
/// # Errors
/// As [`TraceOut::finish`].
pub(crate) fn finish(trace: Option<TraceOut>, summary: &Summary) -> Result<(), String> {
    trace.map_or(Ok(()), |trace| trace.finish(&TraceJson::new(summary)))
}
