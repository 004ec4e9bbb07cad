//! Messages on standard error, and results on standard output.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};

use crate::stdout;
use crate::writing::{STALLED_READER, write_until_stalled};

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

/// What has happened to the messages on standard error so far.
struct Messages {
    /// The reader has stalled, so that messages do not wait for it.
    stalled: bool,
    /// The last message was written in part, without the end of its line.
    cut: bool,
}

impl Messages {
    const NONE: Self = Self {
        stalled: false,
        cut: false,
    };

    /// Writes a message to a pipe or file, on a line of its own. Returns whether all of it was written.
    fn write(&mut self, to: impl Write + AsFd, message: &[u8]) -> io::Result<bool> {
        let line_end: &[u8] = if self.cut { b"\n" } else { b"" };
        let bytes = [line_end, message].concat();
        let patience = if self.stalled {
            Duration::ZERO
        } else {
            STALLED_READER
        };
        let written = write_until_stalled(to, &bytes, patience);
        let written = written.inspect_err(|_| self.cut = true)?;
        self.stalled = written < bytes.len();
        if let Some(last) = bytes[..written].last() {
            self.cut = self.stalled && *last != b'\n';
        }
        Ok(!self.stalled)
    }
}

/// Locked during a message, since another one could take the space that was found, or end up inside it.
static MESSAGES: Mutex<Messages> = Mutex::new(Messages::NONE);

/// Standard error for messages. A reader that takes nothing for [`STALLED_READER`] loses messages: they must not delay
/// time limits, signals or deliveries. For a terminal relent waits, because its user has stopped it.
pub(crate) struct Stderr;

impl Stderr {
    /// Writes a message. Returns whether all of it was written.
    pub(crate) fn write_message(message: &[u8]) -> io::Result<bool> {
        let mut messages = MESSAGES.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stderr = io::stderr().lock();
        if stderr.is_terminal() {
            stderr.write_all(message).map(|()| true)
        } else {
            messages.write(stderr, message)
        }
    }
}

impl Write for Stderr {
    /// Writes one message.
    fn write_all(&mut self, message: &[u8]) -> io::Result<()> {
        Self::write_message(message).map(drop)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
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
    use std::io::{Read, pipe};

    use nix::fcntl::{FcntlArg, OFlag, fcntl};

    use super::*;

    #[test]
    fn a_message_after_one_that_was_cut_begins_on_its_own_line() {
        let (mut reader, mut writer) = pipe().unwrap();
        fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        let mut filled = 0;
        while let Ok(written) = writer.write(&[b'x'; 4096]) {
            filled += written;
        }
        fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        let mut filling = vec![0; filled];
        reader.read_exact(&mut filling[..4096]).unwrap();

        let mut messages = Messages {
            stalled: true,
            ..Messages::NONE
        };
        let long = format!("{}\n", "a".repeat(5000));
        messages.write(&writer, long.as_bytes()).unwrap();
        messages.write(&writer, b"lost\n").unwrap();
        reader.read_exact(&mut filling).unwrap();
        messages.write(&writer, long.as_bytes()).unwrap();
        messages.write(&writer, b"next\n").unwrap();
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, format!("\n{long}next\n"));
    }

    #[test]
    fn one_is_singular() {
        let counts = [0_u32, 1, 2].map(|count| counted(count, "seed"));
        assert_eq!(counts, ["0 seeds", "1 seed", "2 seeds"]);
    }
}
