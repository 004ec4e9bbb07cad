//! Writes to descriptors that are shared with other processes.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

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
