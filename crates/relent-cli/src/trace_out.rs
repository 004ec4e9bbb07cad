//! `--trace FILE`: the attempts and decisions of a session as one JSON object.

use std::path::{Path, PathBuf};

use relent::Summary;
use relent::trace::TraceJson;

use crate::console::Stderr;
use crate::output_file::OutputFile;

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

    /// Writes the trace of a session.
    ///
    /// # Errors
    /// The trace cannot be written after all (a full disk). An existing trace is left unchanged.
    pub(crate) fn finish(self, trace: &TraceJson) -> Result<(), String> {
        let result = match self.to {
            TraceTarget::Stderr => trace.write(Stderr),
            TraceTarget::Named(OutputFile::Special(file)) => trace.write(file),
            TraceTarget::Named(OutputFile::File(new)) => {
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

/// Writes the trace of a session, if `--trace` was given.
///
/// # Errors
/// As [`TraceOut::finish`].
pub(crate) fn finish(trace: Option<TraceOut>, summary: &Summary) -> Result<(), String> {
    trace.map_or(Ok(()), |trace| trace.finish(&TraceJson::new(summary)))
}
