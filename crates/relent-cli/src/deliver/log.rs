//! The log of a server on standard error: events that an operator may need to act on.

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry;
use tracing_subscriber::util::SubscriberInitExt;

use crate::console::Stderr;

/// Logs failures of the store or of NATS, dead letters and disabled endpoints, one line each, with the time in UTC.
pub(super) fn to_stderr() {
    let lines = layer()
        .with_writer(|| Stderr)
        .with_ansi(false)
        .with_target(false)
        // A broken pipe on standard error must not end the server.
        .log_internal_errors(false)
        // Relent logs the relevant errors of its dependencies itself.
        .with_filter(Targets::new().with_target("relent", Level::WARN));
    // This fails only if a subscriber is set already, and no other code in this process sets one.
    let _ = registry().with(lines).try_init();
}
