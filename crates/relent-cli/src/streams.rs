//! Detection of standard streams that were closed when relent was started.
//!
//! Before `main`, Rust replaces a closed stream (`>&-`) by `/dev/null`: a result would vanish without an error. The
//! check therefore runs earlier.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering};

use nix::fcntl::{FcntlArg, fcntl};

/// A standard stream, by the number of its descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StdStream {
    Stdin = 0,
    Stdout = 1,
    Stderr = 2,
}

/// The closed streams, as a mask: bit n stands for descriptor n.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Runs before Rust's start-up code, when the descriptors are still those of the parent process.
#[ctor::ctor]
fn record_closed() {
    let closed = [
        is_closed(&io::stdin()),
        is_closed(&io::stdout()),
        is_closed(&io::stderr()),
    ];
    let bits = (0u8..)
        .zip(closed)
        .map(|(at, closed)| u8::from(closed) << at);
    CLOSED.store(bits.sum(), Ordering::Relaxed);
}

fn is_closed(stream: &impl AsFd) -> bool {
    fcntl(stream.as_fd(), FcntlArg::F_GETFD).is_err()
}

impl StdStream {
    /// Whether it was closed when relent was started.
    pub(crate) fn was_closed(self) -> bool {
        CLOSED.load(Ordering::Relaxed) >> (self as u8) & 1 == 1
    }
}

/// Checks that all three streams were open when relent was started.
///
/// # Errors
/// A stream was closed; the message names the first one.
pub(crate) fn all_open() -> Result<(), String> {
    for (stream, name, instead) in [
        (StdStream::Stdin, "standard input", "</dev/null"),
        (StdStream::Stdout, "standard output", ">/dev/null"),
        (StdStream::Stderr, "standard error", "2>/dev/null"),
    ] {
        if stream.was_closed() {
            return Err(format!(
                "{name} is closed; if nothing is wanted there, use {instead}"
            ));
        }
    }
    Ok(())
}
