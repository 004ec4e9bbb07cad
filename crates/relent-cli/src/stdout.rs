//! Standard output, which may be closed at the start or lose its reader later.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{SFlag, fstat};

use crate::streams::StdStream;

/// Fails if standard output was closed when relent was started.
pub(crate) fn check() -> io::Result<()> {
    if StdStream::Stdout.was_closed() {
        return Err(io::Error::other(
            "it is closed; if nothing is wanted there, use >/dev/null",
        ));
    }
    Ok(())
}

/// Duplicates the descriptor of standard output, for unbuffered writes.
///
/// # Errors
/// Standard output was closed when relent was started, or no descriptor is left.
pub(crate) fn duplicate() -> io::Result<File> {
    check()?;
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Whether standard output has lost its reader: it is a pipe or a socket whose other end is closed.
pub(crate) fn reader_is_gone() -> bool {
    let stdout = io::stdout();
    let is_pipe = fstat(&stdout).is_ok_and(|stat| {
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        kind == SFlag::S_IFIFO || kind == SFlag::S_IFSOCK
    });
    let mut polled = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    is_pipe
        && poll(&mut polled, PollTimeout::ZERO).is_ok()
        && polled[0]
            .revents()
            .is_some_and(|events| events.intersects(PollFlags::POLLERR | PollFlags::POLLHUP))
}
