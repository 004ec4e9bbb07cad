//! Messages on standard error, and results on standard output.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

use crate::stdout;

const NAME: Style = Style::new().bold();
const ERROR: Style = AnsiColor::Red.on_default().bold();

/// Writes one line to standard error, after relent's name. In colour on a terminal, unless `NO_COLOR`
/// is set. Write errors are ignored.
pub(crate) fn say(line: &str) {
    let _ = writeln!(anstream::stderr(), "{NAME}relent:{NAME:#} {line}");
}

/// Writes one line about an error to standard error, with relent's name in red.
pub(crate) fn report_error(line: &str) {
    let _ = writeln!(anstream::stderr(), "{ERROR}relent:{ERROR:#} {line}");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        let counts = [0_u32, 1, 2].map(|count| counted(count, "seed"));
        assert_eq!(counts, ["0 seeds", "1 seed", "2 seeds"]);
    }
}
