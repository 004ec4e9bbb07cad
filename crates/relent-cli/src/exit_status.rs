//! Errors that end a subcommand, with their exit status.

use nix::sys::signal::Signal;

/// The result could not be produced or written, or is a finding ("this file is bad").
const FAILED: i32 = 1;
/// The command line is wrong, or a file that it names.
const USAGE: i32 = 2;
/// A time limit ended it, as in `timeout`.
pub(crate) const EXIT_TIME_LIMIT: i32 = 124;
/// Relent's own errors in `run`, as in `timeout` and `env`: other statuses belong to the command.
const OWN_ERROR: i32 = 125;

/// An exit status with its message, which is empty if everything has been reported already.
#[derive(Debug)]
pub(crate) struct ExitError {
    pub(crate) status: i32,
    pub(crate) message: String,
}

impl ExitError {
    /// The command line is wrong, or a file that it names: status 2.
    pub(crate) fn usage(message: String) -> Self {
        Self {
            status: USAGE,
            message,
        }
    }

    /// The subcommand failed: status 1.
    pub(crate) fn failed(message: String) -> Self {
        Self {
            status: FAILED,
            message,
        }
    }

    /// A time limit has passed: status 124.
    #[cfg(feature = "deliver")]
    pub(crate) fn timed_out(message: String) -> Self {
        Self {
            status: EXIT_TIME_LIMIT,
            message,
        }
    }

    /// A signal ended relent: status 128 + n.
    pub(crate) fn by_signal(signal: Signal) -> Self {
        Self {
            status: 128 + signal as i32,
            message: String::new(),
        }
    }

    /// `relent run` itself failed, not its command: status 125.
    pub(crate) fn own_error(message: String) -> Self {
        Self {
            status: OWN_ERROR,
            message,
        }
    }
}
