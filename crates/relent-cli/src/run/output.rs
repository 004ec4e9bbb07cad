//! Writes the buffered standard output of a command to its destination, once.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use nix::sys::signal::Signal;

use super::error::Error;
use crate::signals::Signals;
use crate::spool::Spool;
use crate::stdout;
use crate::writing::write_all;

/// Writes the output of the final attempt to standard output. Returns the signal that ended the
/// writing early, if one did.
///
/// A reader that has gone away (`| head`) is no error: it needs no more, and the command has done its
/// work.
///
/// # Errors
/// Standard output cannot be written completely (a full disk).
pub(crate) async fn to_stdout(
    spool: Spool,
    signals: &mut Signals,
) -> Result<Option<Signal>, Error> {
    let stdout = stdout::duplicate().map_err(Error::WriteStdout)?;
    uninterrupted(signals, move || copy(&spool, stdout)).await
}

/// Passes a piece of output on to standard output while its command runs. Returns false if standard output has lost its
/// reader.
///
/// # Errors
/// Standard output cannot be written (a full disk).
pub(crate) async fn pass_on(piece: Vec<u8>) -> Result<bool, Error> {
    let mut stdout = stdout::duplicate().map_err(Error::WriteStdout)?;
    // A slow reader blocks this thread, but not the handling of signals.
    let written = tokio::task::spawn_blocking(move || write_all(&mut stdout, &piece)).await;
    match written.map_err(io::Error::from).flatten() {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true).map_err(Error::WriteStdout),
    }
}

/// Passes on all buffered output, and empties the buffer. Returns false if standard output has lost its reader.
///
/// # Errors
/// The buffer cannot be read, or standard output cannot be written (a full disk).
pub(crate) async fn pass_on_kept(spool: &mut Spool) -> Result<bool, Error> {
    let spool = std::mem::take(spool);
    let mut position = 0;
    loop {
        let mut piece = vec![0; 1 << 16];
        let n = spool
            .read_at(position, &mut piece)
            .map_err(Error::KeepOutput)?;
        if n == 0 {
            return Ok(true);
        }
        piece.truncate(n);
        if !pass_on(piece).await? {
            return Ok(false);
        }
        position += n as u64;
    }
}

/// Writes the standard output of an attempt that is followed by another to standard error, where a
/// user can see it and a pipe cannot. Returns the signal that ended the writing early, if one did.
/// Write errors are ignored.
///
/// # Errors
/// The buffer cannot be read.
pub(crate) async fn to_stderr(
    spool: Spool,
    signals: &mut Signals,
) -> Result<Option<Signal>, Error> {
    let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() else {
        return Ok(None);
    };
    let stderr = File::from(stderr);
    uninterrupted(signals, move || match copy(&spool, stderr) {
        Err(Error::WriteStdout(_)) => Ok(()),
        result => result,
    })
    .await
}

/// Runs `write` on its own thread, so that signals are handled while a slow reader blocks it.
async fn uninterrupted(
    signals: &mut Signals,
    write: impl FnOnce() -> Result<(), Error> + Send + 'static,
) -> Result<Option<Signal>, Error> {
    tokio::select! {
        written = tokio::task::spawn_blocking(write) => match written {
            Ok(result) => result.map(|()| None),
            Err(e) => Err(Error::WriteStdout(e.into())),
        },
        signal = signals.cancelled() => Ok(Some(signal)),
    }
}

fn copy(spool: &Spool, mut to: File) -> Result<(), Error> {
    let mut buf = vec![0; 1 << 16];
    let mut position = 0;
    while position < spool.len() {
        let n = spool
            .read_at(position, &mut buf)
            .map_err(Error::KeepOutput)?;
        match write_all(&mut to, &buf[..n]) {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            result => result.map_err(Error::WriteStdout)?,
        }
        position += n as u64;
    }
    Ok(())
}
