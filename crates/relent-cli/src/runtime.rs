//! The tokio runtime of the commands.

use std::os::unix::net::UnixStream;

/// The pairs of files that there has to be room for.
const OPENED_FIRST: usize = 3;

/// Runs async work to its end on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let cannot = |error| format!("cannot start: {error}");
    // tokio panics where it finds no room for what it opens first.
    let room: Result<Vec<_>, _> = (0..OPENED_FIRST).map(|_| UnixStream::pair()).collect();
    drop(room.map_err(cannot)?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(cannot)?;
    let result = runtime.block_on(work);
    // A thread that still waits for standard input or a slow reader must not delay the end.
    runtime.shutdown_background();
    Ok(result)
}
