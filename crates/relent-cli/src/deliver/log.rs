//! What a server says on standard error while it runs: what somebody may want to do something about.

use std::io;

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry;
use tracing_subscriber::util::SubscriberInitExt;

/// A store or NATS that fails, a dead letter, an endpoint that is disabled: a line for each, with the time in UTC.
pub(super) fn to_stderr() {
    let lines = layer()
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false)
        // A pipe that nobody reads any more ends nothing.
        .log_internal_errors(false)
        // What matters of what others say is in there, too.
        .with_filter(Targets::new().with_target("relent", Level::WARN));
    // Nobody else has asked for them in this process.
    let _ = registry().with(lines).try_init();
}
