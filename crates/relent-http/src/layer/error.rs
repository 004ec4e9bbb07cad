//! Why a call brought no response.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::replay::{BoxError, NotReplayable};

/// Why the last attempt of a [`Retry`](super::Retry) brought no response.
#[derive(Debug)]
pub enum ServiceError {
    /// The service failed with this error.
    Service(BoxError),
    /// The attempt was cut off by its limit.
    Timeout(Duration),
    /// The service was not ready before the deadline, and no attempt had an outcome.
    NotReady,
    /// The body could not be made again for another attempt, and there is no other outcome.
    Body(NotReplayable),
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(error) => error.fmt(f),
            Self::Timeout(limit) => {
                write!(
                    f,
                    "no answer after {}",
                    relent_core::format_duration(*limit)
                )
            }
            Self::NotReady => f.write_str("the service was not ready before the deadline"),
            Self::Body(error) => error.fmt(f),
        }
    }
}

impl Error for ServiceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Service(error) => Some(&**error),
            Self::Body(error) => Some(error),
            Self::Timeout(_) | Self::NotReady => None,
        }
    }
}
