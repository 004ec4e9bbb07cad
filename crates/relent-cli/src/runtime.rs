//! The tokio runtime of the commands.

use std::os::unix::net::UnixStream;

/// The number of socket pairs that the process must be able to open.
const TOKIO_SOCKET_PAIRS: usize = 3;

/// Runs a future to completion on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let cannot = |error| format!("cannot start: {error}");
    // tokio panics if it cannot open its first files, so this opens as many before.
    let room: Result<Vec<_>, _> = (0..TOKIO_SOCKET_PAIRS)
        .map(|_| UnixStream::pair())
        .collect();
    drop(room.map_err(cannot)?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(cannot)?;
    let result = runtime.block_on(work);
    // A thread that is blocked by standard input or a slow reader must not delay the exit.
    runtime.shutdown_background();
    Ok(result)
}
