//! Errors of relent itself while it runs a command: exit status 125.

use std::fmt;
use std::io;

/// An error of relent itself, as opposed to a failure of the command.
///
/// It ends the run: repeating the command does not help, and continuing would lose bytes.
#[derive(Debug)]
pub(crate) enum Error {
    /// Standard input could not be read.
    ReadStdin(io::Error),
    /// Standard input could not be buffered for the next attempt.
    KeepStdin(io::Error),
    /// The output of the command could not be read from its pipe.
    ReadOutput(io::Error),
    /// The output of the command could not be buffered until the end of the attempt.
    KeepOutput(io::Error),
    /// The command's output could not be written to standard output.
    WriteStdout(io::Error),
    /// The system could not start another process, for any command.
    Spawn(io::Error),
    /// The end of the command could not be awaited.
    Wait(io::Error),
    /// Signal handlers could not be installed.
    Signals(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadStdin(e) => write!(f, "cannot read standard input: {e}"),
            Self::KeepStdin(e) => {
                write!(f, "cannot keep standard input for another attempt: {e}")
            }
            Self::ReadOutput(e) => write!(f, "cannot read the command's output: {e}"),
            Self::KeepOutput(e) => write!(
                f,
                "cannot keep the command's output until the attempt has ended: {e}"
            ),
            Self::WriteStdout(e) => write!(f, "cannot write to standard output: {e}"),
            Self::Spawn(e) => write!(f, "cannot start a process: {e}"),
            Self::Wait(e) => write!(f, "cannot wait for the command: {e}"),
            Self::Signals(e) => write!(f, "cannot listen to signals: {e}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::ReadStdin(e)
            | Self::KeepStdin(e)
            | Self::ReadOutput(e)
            | Self::KeepOutput(e)
            | Self::WriteStdout(e)
            | Self::Spawn(e)
            | Self::Wait(e)
            | Self::Signals(e) => Some(e),
        }
    }
}
