//! Errors of a call without a response.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use relent::GaveUp;

use crate::replay::{BoxError, NotReplayable};

/// Error of the last attempt of a [`RetryService`](super::RetryService) that had no response.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServiceError {
    /// The service failed with this error.
    Service(BoxError),
    /// The attempt exceeded its timeout.
    Timeout(Duration),
    /// The service was not ready while an attempt was allowed to start, and no attempt had an outcome.
    NotReady,
    /// The body cannot be sent again for another attempt, and there is no other outcome.
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
            Self::NotReady => f.write_str("the service was not ready in time"),
            Self::Body(error) => error.fmt(f),
        }
    }
}

/// The source is only what the text does not contain; see [`ServiceError::Service`] for the
/// error itself.
impl Error for ServiceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Service(error) => error.source(),
            Self::Body(error) => error.source(),
            Self::Timeout(_) | Self::NotReady => None,
        }
    }
}

/// The error inside an error of the layer, which its text already contains.
pub(crate) fn within<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    if let Some(gave_up) = error.downcast_ref::<GaveUp<ServiceError>>() {
        return gave_up.error().map(|error| error as _);
    }
    match error.downcast_ref()? {
        ServiceError::Service(error) => Some(&**error),
        ServiceError::Body(error) => Some(error),
        ServiceError::Timeout(_) | ServiceError::NotReady => None,
    }
}

/// Response extension: a retry was granted, but the service failed to become ready for it
/// with this error. So the response is the last outcome of the call.
#[derive(Clone, Debug)]
pub struct ReadinessError(Arc<dyn Error + Send + Sync>);

impl ReadinessError {
    pub(super) fn new(error: BoxError) -> Self {
        Self(error.into())
    }
}

impl fmt::Display for ReadinessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the service failed to become ready for a retry: {}",
            self.0
        )
    }
}

impl Error for ReadinessError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
