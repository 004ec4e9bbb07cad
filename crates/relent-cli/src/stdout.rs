//! Standard output, which may have been closed by whoever started relent.
//!
//! Rust opens `/dev/null` in the place of a standard stream that is closed (`>&-`), before `main`, so
//! that a result would vanish and nothing would fail. So it is looked at before that.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;

static CLOSED: AtomicBool = AtomicBool::new(false);

/// Runs before Rust's own start-up, when the descriptor is still as it was given.
#[ctor::ctor]
fn look() {
    let closed = io::stdout().as_fd().try_clone_to_owned().is_err();
    CLOSED.store(closed, Ordering::Relaxed);
}

/// Fails with `EBADF` if standard output was closed when relent was started.
pub(crate) fn check() -> io::Result<()> {
    if CLOSED.load(Ordering::Relaxed) {
        return Err(Errno::EBADF.into());
    }
    Ok(())
}

/// A descriptor of one's own for standard output, to write to without a buffer.
///
/// # Errors
/// When it was closed when relent was started, or no descriptor is left.
pub(crate) fn duplicate() -> io::Result<File> {
    check()?;
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}
