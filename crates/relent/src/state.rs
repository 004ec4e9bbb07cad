//! The states of a [`Retry`](crate::Retry).

use pin_project_lite::pin_project;
use relent_core::Instant;

use crate::clock::Clock;
use crate::hedged::Racing;

/// The time limit of a running attempt.
#[derive(Clone, Copy)]
pub(crate) enum Limit {
    Never,
    /// At this instant. The timer is not set yet: an attempt that succeeds immediately never sets
    /// it.
    At(Instant),
    /// When the timer expires.
    Timer,
}

pin_project! {
    /// The attempts of an operation: futures `F` with outcomes `O`.
    #[project = StateProjection]
    pub(crate) enum State<F, O, K: Clock> {
        Ready,
        Running { #[pin] attempt: F, limit: Limit },
        // Hedges may join.
        Racing { racing: Box<Racing<F, O, K>> },
        // `own`: the end of a wait of the own backoff, which a reset may shorten. `None` if the server
        // has set the time, or it was shortened already.
        Waiting { own: Option<Instant> },
        // A poll after completion must not run the operation again.
        Done,
    }
}
