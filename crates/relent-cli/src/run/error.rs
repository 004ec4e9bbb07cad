//! What can go wrong in relent itself while it runs a command: exit status 125.

use std::fmt;
use std::io;

/// A failure of relent's own machinery, as opposed to one of the command.
///
/// It ends the run: repeating the command cannot repair it, and going on would lose bytes.
#[derive(Debug)]
pub(crate) enum Error {
    /// Standard input could not be read.
    ReadStdin(io::Error),
    /// What was read from standard input could not be kept for the next attempt.
    KeepStdin(io::Error),
    /// What the command wrote could not be read from its pipe.
    ReadOutput(io::Error),
    /// What the command wrote could not be kept until the attempt is judged.
    KeepOutput(io::Error),
    /// The command's output could not be written to standard output.
    WriteStdout(io::Error),
    /// The machine could not start another process, whatever the command.
    Spawn(io::Error),
    /// The end of the command could not be awaited.
    Wait(io::Error),
    /// Signals could not be listened to.
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
                "cannot keep the command's output until the attempt is judged: {e}"
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
