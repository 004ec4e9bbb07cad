//! What a server says on standard error while it runs: what somebody may want to do something about.

use std::io;

use tracing::Level;

/// A store or NATS that fails, a dead letter, an endpoint that is disabled: a line for each, with the time in UTC.
pub(super) fn to_stderr() {
    // Nobody else has asked for them in this process.
    let _ = tracing_subscriber::fmt()
        .with_max_level(Level::WARN)
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false)
        // A pipe that nobody reads any more ends nothing.
        .log_internal_errors(false)
        .try_init();
}
