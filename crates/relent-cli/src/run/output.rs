//! Writes the buffered standard output of a command to its destination, once.

use std::fs::File;
use std::future::pending;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep, sleep_until};

use super::error::Error;
use crate::signals::Signals;
use crate::spool::Spool;
use crate::stdout;
use crate::writing::{STALLED_READER, write_all};

/// Writes the output of the final attempt to standard output. Returns the signal that ended the
/// writing early, if one did. From `end` on, the reader has to take something at least each
/// [`STALLED_READER`].
///
/// A reader that has gone away (`| head`) is no error: it needs no more, and the command has done its
/// work.
///
/// # Errors
/// Standard output cannot be written completely (a full disk).
pub(crate) async fn to_stdout(
    spool: Spool,
    signals: &mut Signals,
    end: Option<Instant>,
) -> Result<Option<Signal>, Error> {
    let stdout = stdout::duplicate().map_err(Error::WriteStdout)?;
    let written = Arc::new(AtomicU64::new(0));
    let count = written.clone();
    tokio::select! {
        done = uninterrupted(signals, move || copy(&spool, stdout, &count)) => done,
        () = stalled(end, &written) => Ok(None),
    }
}

/// Waits until the reader has stalled after `end`; for ever without it.
async fn stalled(end: Option<Instant>, written: &AtomicU64) {
    let Some(end) = end else {
        return pending().await;
    };
    sleep_until(end).await;
    loop {
        let before = written.load(Ordering::Relaxed);
        sleep(STALLED_READER).await;
        if written.load(Ordering::Relaxed) == before {
            return;
        }
    }
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

/// Passes a piece of output on to standard error while its command runs. A write error does not stop the command.
pub(crate) async fn pass_on_to_stderr(piece: Vec<u8>) {
    let Some(mut stderr) = stderr() else { return };
    let written = tokio::task::spawn_blocking(move || write_all(&mut stderr, &piece));
    let _ = written.await;
}

/// Writes the standard output of an attempt that is followed by another to standard error, where a
/// user can see it and a pipe cannot. Returns the signal that ended the writing early, if one did. From `end` on, the
/// reader has to take something at least each [`STALLED_READER`]. Write errors are ignored.
///
/// # Errors
/// The buffer cannot be read.
pub(crate) async fn to_stderr(
    spool: Spool,
    signals: &mut Signals,
    end: Option<Instant>,
) -> Result<Option<Signal>, Error> {
    let Some(stderr) = stderr() else {
        return Ok(None);
    };
    let written = Arc::new(AtomicU64::new(0));
    let count = written.clone();
    let writing = uninterrupted(signals, move || match copy(&spool, stderr, &count) {
        Err(Error::WriteStdout(_)) => Ok(()),
        result => result,
    });
    tokio::select! {
        done = writing => done,
        () = stalled(end, &written) => Ok(None),
    }
}

/// Standard error without the lock of Rust's own handle: a slow reader must not hold back messages by it.
fn stderr() -> Option<File> {
    io::stderr()
        .as_fd()
        .try_clone_to_owned()
        .ok()
        .map(File::from)
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

/// Writes a spool, and counts the `written` bytes.
fn copy(spool: &Spool, mut to: File, written: &AtomicU64) -> Result<(), Error> {
    // Small pieces, so that a slow reader is not taken for a stalled one.
    let mut buf = vec![0; 1 << 12];
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
        written.store(position, Ordering::Relaxed);
    }
    Ok(())
}
