//! The error of a request.

use std::error::Error as StdError;
use std::fmt;

use http::StatusCode;
use relent::{GaveUp, Summary};

use crate::attempt_failure::{AttemptError, root};

/// Error of a request without a usable response.
///
/// ```no_run
/// # async fn example(client: relent_reqwest::Client) {
/// match client.get("https://example.com/").send().await {
///     Ok(response) => println!("{}", response.status()),
///     Err(error) => {
///         eprintln!("{error}");
///         if let Some(at) = error.summary().and_then(|summary| summary.retry_at) {
///             eprintln!("come back at {at:?}");
///         }
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The request cannot be built; nothing was sent.
    Request(Box<dyn StdError + Send + Sync>),
    /// No attempt got a response, or no complete one.
    GaveUp(GaveUp<AttemptError>),
    /// The response has an error status (400 or above); from
    /// [`Response::error_for_status`](crate::Response::error_for_status).
    Status(reqwest::Error, Box<Summary>),
    /// The body of the response ended early or has an invalid format.
    Body(reqwest::Error, Box<Summary>),
}

impl Error {
    /// Summary of the attempts; `None` if nothing was sent.
    #[must_use]
    pub fn summary(&self) -> Option<&Summary> {
        match self {
            Self::Request(_) => None,
            Self::GaveUp(gave_up) => Some(gave_up.summary()),
            Self::Status(_, summary) | Self::Body(_, summary) => Some(summary),
        }
    }

    /// The status of the response, if the status is the error.
    #[must_use]
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Status(error, _) => error.status(),
            _ => None,
        }
    }

    /// Whether a time limit ended the last attempt or the reading of the body.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Request(_) => false,
            Self::GaveUp(gave_up) => match gave_up.error() {
                Some(
                    AttemptError::Timeout(_) | AttemptError::Slow { .. } | AttemptError::Silent(_),
                ) => true,
                Some(AttemptError::Transport(error)) => error.is_timeout(),
                _ => false,
            },
            Self::Status(error, _) | Self::Body(error, _) => error.is_timeout(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => {
                write!(f, "the request cannot be sent: {}", root(&**error))
            }
            Self::GaveUp(gave_up) => gave_up.fmt(f),
            Self::Status(error, summary) => {
                error.fmt(f)?;
                match summary.reason {
                    Some(reason) => write!(f, " (attempts: {}; {reason})", summary.attempts),
                    None => Ok(()),
                }
            }
            Self::Body(error, _) => write!(f, "the body of the response: {error}"),
        }
    }
}

/// A source is only an error whose text is not part of this text; the variants hold all errors.
impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::GaveUp(gave_up) => gave_up.source(),
            Self::Status(error, _) | Self::Body(error, _) => error.source(),
            Self::Request(_) => None,
        }
    }
}

impl From<GaveUp<AttemptError>> for Error {
    fn from(gave_up: GaveUp<AttemptError>) -> Self {
        Self::GaveUp(gave_up)
    }
}

/// The inner error of an error of this crate, whose text it includes.
pub(crate) fn within<'e>(
    error: &'e (dyn StdError + 'static),
) -> Option<&'e (dyn StdError + 'static)> {
    if let Some(gave_up) = error.downcast_ref::<GaveUp<AttemptError>>() {
        return gave_up.error().map(|error| error as _);
    }
    if let Some(error) = error.downcast_ref() {
        return match error {
            AttemptError::Transport(error) => Some(error),
            AttemptError::Redirect(refused) => Some(refused),
            AttemptError::Body(error) | AttemptError::Sink(error) => Some(error),
            AttemptError::Truncated(error) => Some(error),
            #[cfg(feature = "middleware")]
            AttemptError::Middleware(error) => Some(&**error),
            AttemptError::Timeout(_)
            | AttemptError::Slow { .. }
            | AttemptError::Silent(_)
            | AttemptError::Grpc(_)
            | AttemptError::UnexpectedResponse(_) => None,
        };
    }
    Some(match error.downcast_ref()? {
        Error::Request(error) => &**error,
        Error::GaveUp(gave_up) => gave_up,
        Error::Status(error, _) | Error::Body(error, _) => error,
    })
}
