//! Messages on standard error, and results on standard output.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use nix::libc::PIPE_BUF;

use crate::stdout;
use crate::writing::{STALLED_READER, takes_bytes};

const NAME: Style = Style::new().bold();
const ERROR: Style = AnsiColor::Red.on_default().bold();

/// Writes one line to standard error, after relent's name. In colour on a terminal, unless `NO_COLOR`
/// is set. Write errors are ignored.
pub(crate) fn say(line: &str) {
    report(&format!("{NAME}relent:{NAME:#} {line}\n"));
}

/// Writes one line about an error to standard error, with relent's name in red.
pub(crate) fn report_error(line: &str) {
    report(&format!("{ERROR}relent:{ERROR:#} {line}\n"));
}

/// Writes a text to standard error, with its colours if they are wanted there. Write errors are ignored.
pub(crate) fn report(text: &str) {
    let _ = match AutoStream::choice(&io::stderr()) {
        ColorChoice::Never => Stderr.write_all(strip_str(text).to_string().as_bytes()),
        _ => Stderr.write_all(text.as_bytes()),
    };
}

/// The largest write that does not block if poll says that the descriptor takes bytes.
const PIECE_BYTES: usize = PIPE_BUF;

/// Whether the reader of standard error has stalled, so that messages do not wait for it. Locked during a message,
/// since another one could take the space that was found.
static STALLED: Mutex<bool> = Mutex::new(false);

/// Standard error for messages. A reader that takes nothing for [`STALLED_READER`] loses messages: they must not delay
/// time limits, signals or deliveries. For a terminal relent waits, because its user has stopped it.
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut stalled = STALLED.lock().unwrap_or_else(PoisonError::into_inner);
        let stderr = io::stderr();
        if !stderr.is_terminal() {
            let patience = if *stalled {
                Duration::ZERO
            } else {
                STALLED_READER
            };
            *stalled = !takes_bytes(&stderr, patience);
            if *stalled {
                return Ok(bytes.len());
            }
        }
        stderr.lock().write(&bytes[..bytes.len().min(PIECE_BYTES)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A count with its noun: `1 attempt`, `2 attempts`.
pub(crate) fn counted(count: impl Into<u64>, noun: &str) -> String {
    let count = count.into();
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Prints a result on standard output. A reader that has gone away (`| head`) is no error: it needs
/// no more.
///
/// # Errors
/// Standard output cannot be written (a full disk, or it is closed).
pub(crate) fn print(text: &str) -> Result<(), String> {
    let mut stdout = io::stdout().lock();
    let printed = stdout::check()
        .and_then(|()| stdout.write_all(text.as_bytes()))
        .and_then(|()| stdout.flush());
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}"))
        }
        _ => Ok(()),
    }
}

/// Prints the result of a change that is in force, such as an acknowledged message. An error does not change the exit
/// status, since a failure might make the caller repeat the change, and send messages again.
#[cfg(feature = "deliver")]
pub(crate) fn print_done(result: &str) {
    if let Err(error) = print(&format!("{result}\n")) {
        report_error(&error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        let counts = [0_u32, 1, 2].map(|count| counted(count, "seed"));
        assert_eq!(counts, ["0 seeds", "1 seed", "2 seeds"]);
    }
}
