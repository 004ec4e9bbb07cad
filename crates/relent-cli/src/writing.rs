//! Writes to descriptors that are shared with other processes.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::PIPE_BUF;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A reader that takes nothing for this long delays neither the end of relent after the deadline, nor messages.
pub(crate) const STALLED_READER: Duration = Duration::from_secs(1);

/// Like [`Write::write_all`], but also works if another process has made the descriptor non-blocking.
pub(crate) fn write_all(to: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                poll(
                    &mut [PollFd::new(to.as_fd(), PollFlags::POLLOUT)],
                    PollTimeout::NONE,
                )?;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes the bytes until the descriptor takes none for as long as `patience`, or after the first part for
/// [`STALLED_READER`]. Returns how many were written.
pub(crate) fn write_until_stalled(
    mut to: impl Write + AsFd,
    bytes: &[u8],
    patience: Duration,
) -> io::Result<usize> {
    let mut written = 0;
    while written < bytes.len() {
        // A reader that has taken a part is not stalled any more.
        let patience = match written {
            0 => patience,
            _ => STALLED_READER,
        };
        if !takes_bytes(&to, patience) {
            break;
        }
        // The largest write that does not block if poll says that the descriptor takes bytes.
        let end = bytes.len().min(written + PIPE_BUF);
        match to.write(&bytes[written..end]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => written += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(written)
}

/// Whether a descriptor takes bytes within this time, or an error.
fn takes_bytes(to: impl AsFd, within: Duration) -> bool {
    let end = Instant::now() + within;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(to.as_fd(), PollFlags::POLLOUT)], left) {
            Err(Errno::EINTR) => {}
            Ok(0) => return false,
            // A failed poll says nothing about the reader.
            _ => return true,
        }
    }
}
