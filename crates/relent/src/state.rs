//! The state of a [`Retry`](crate::Retry): its settings, then its driver and its attempts.

use std::mem;

use pin_project_lite::pin_project;
use relent_core::Instant;

use crate::clock::Clock;
use crate::driver::{Driver, DriverBuilder};
use crate::hedged::Racing;

/// The phases of a call.
pub(crate) enum Phase<'p, K: Clock> {
    /// It has not started.
    Settings(DriverBuilder<'p, K>),
    Call(Driver<'p, K>),
    /// While the settings become the driver; nothing sees it.
    Starting,
}

impl<'p, K: Clock> Phase<'p, K> {
    /// Changes the settings. They cannot change later: a call that was polled is pinned.
    #[inline]
    pub(crate) fn set<K2: Clock>(
        self,
        change: impl FnOnce(DriverBuilder<'p, K>) -> DriverBuilder<'p, K2>,
    ) -> Phase<'p, K2> {
        match self {
            Self::Settings(settings) => Phase::Settings(change(settings)),
            Self::Call(_) | Self::Starting => Phase::Starting,
        }
    }

    /// The driver of the call, which starts now if it has not. Never `None`.
    #[inline]
    pub(crate) fn driver(&mut self) -> Option<&mut Driver<'p, K>> {
        if let Self::Settings(_) = self
            && let Self::Settings(settings) = mem::replace(self, Self::Starting)
        {
            *self = Self::Call(settings.start());
        }
        match self {
            Self::Call(driver) => Some(driver),
            Self::Settings(_) | Self::Starting => None,
        }
    }

    /// Like [`driver`](Self::driver), by value.
    #[inline]
    pub(crate) fn into_driver(self) -> Option<Driver<'p, K>> {
        match self {
            Self::Settings(settings) => Some(settings.start()),
            Self::Call(driver) => Some(driver),
            Self::Starting => None,
        }
    }
}

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
        // `own` is the end of the wait if it is a computed backoff.
        Waiting { own: Option<Instant> },
        // A poll after completion must not run the operation again.
        Done,
    }
}
