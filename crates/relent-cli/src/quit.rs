//! How a subcommand ends that cannot do what it was asked to.

use nix::sys::signal::Signal;

/// A result could not be produced or written, or is a finding ("this file is bad").
const FAILED: i32 = 1;
/// The command line, or what it names, is wrong.
const USAGE: i32 = 2;
/// Relent's own errors in `run`, whose other statuses are the command's; as `timeout` and `env`.
const OWN_ERROR: i32 = 125;

/// A status to end with, and what is said before; empty if all has been said.
#[derive(Debug)]
pub(crate) struct Quit {
    pub(crate) status: i32,
    pub(crate) message: String,
}

impl Quit {
    /// The command line, or what it names, is wrong: status 2.
    pub(crate) fn usage(message: String) -> Self {
        Self {
            status: USAGE,
            message,
        }
    }

    /// It did not work out: status 1.
    pub(crate) fn failed(message: String) -> Self {
        Self {
            status: FAILED,
            message,
        }
    }

    /// A signal asked for the end, before anything was sent or run.
    pub(crate) fn by_signal(signal: Signal) -> Self {
        Self {
            status: 128 + signal as i32,
            message: String::new(),
        }
    }

    /// `relent run` itself, not its command, went wrong: status 125.
    pub(crate) fn own_error(message: String) -> Self {
        Self {
            status: OWN_ERROR,
            message,
        }
    }
}
