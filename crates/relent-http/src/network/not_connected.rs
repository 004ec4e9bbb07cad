//! The error of a transport that has no connection.

use std::error::Error;
use std::fmt;

use crate::replay::BoxError;

/// Error of a transport that could not connect, for any reason: the request was not sent.
///
/// An I/O error alone does not state whether the request was sent: a time-out or a reset can occur before and after
/// that. So a transport of your own wraps each error of its connector.
/// [`classify_error`](super::classify_error) then finds that the request was not processed, and it is retried
/// even if it is not repeatable. Only a rejected certificate stays permanent.
///
/// ```
/// use std::io;
/// use relent_core::FailureKind;
/// use relent_http::network::{self, NotConnected};
///
/// let timed_out = || io::Error::from(io::ErrorKind::TimedOut);
/// assert_eq!(network::classify_error(&timed_out()).kind, FailureKind::Ambiguous);
/// let not_connected = NotConnected::new(timed_out());
/// assert_eq!(network::classify_error(&not_connected).kind, FailureKind::NotProcessed);
/// ```
#[derive(Debug)]
pub struct NotConnected(BoxError);

impl NotConnected {
    /// Wraps the error of a connector.
    pub fn new(error: impl Into<BoxError>) -> Self {
        Self(error.into())
    }

    /// The error of the connector.
    #[must_use]
    pub fn get_ref(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }
}

impl fmt::Display for NotConnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The source is only what the text does not contain.
impl Error for NotConnected {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
