//! Why there is no response, or nothing of it that can be used.

use std::error::Error as StdError;
use std::fmt;

use http::StatusCode;
use relent::{GaveUp, Summary};

use crate::failed::{AttemptError, root};

/// Why a request brought nothing that can be used.
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
    /// The request cannot be built: nothing was sent.
    Request(Box<dyn StdError + Send + Sync>),
    /// No attempt was answered, or none completely.
    GaveUp(GaveUp<AttemptError>),
    /// The response has a status that says failure; from
    /// [`Response::error_for_status`](crate::Response::error_for_status).
    Status(reqwest::Error, Box<Summary>),
    /// The body of the response broke off, or is not what it was taken for.
    Body(reqwest::Error, Box<Summary>),
}

impl Error {
    /// How the attempts went; `None` if nothing was sent.
    #[must_use]
    pub fn summary(&self) -> Option<&Summary> {
        match self {
            Self::Request(_) => None,
            Self::GaveUp(gave_up) => Some(gave_up.summary()),
            Self::Status(_, summary) | Self::Body(_, summary) => Some(summary),
        }
    }

    /// The status of the response, if it is the reason.
    #[must_use]
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Status(error, _) => error.status(),
            _ => None,
        }
    }

    /// Whether time ended the last attempt, or the reading of the body.
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

/// Only what the text does not contain already is a source; the errors themselves are in the variants.
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

/// What is within an error of the client, and in its text.
pub(crate) fn within<'e>(
    error: &'e (dyn StdError + 'static),
) -> Option<&'e (dyn StdError + 'static)> {
    if let Some(gave_up) = error.downcast_ref::<GaveUp<AttemptError>>() {
        return gave_up.error().map(|error| error as _);
    }
    if let Some(error) = error.downcast_ref() {
        return match error {
            AttemptError::Transport(error) => Some(error),
            AttemptError::Body(error) | AttemptError::Sink(error) => Some(error),
            AttemptError::Truncated(error) => Some(error),
            #[cfg(feature = "middleware")]
            AttemptError::Middleware(error) => Some(&**error),
            AttemptError::Timeout(_)
            | AttemptError::Slow { .. }
            | AttemptError::Silent(_)
            | AttemptError::Grpc(_)
            | AttemptError::NotTheRest(_) => None,
        };
    }
    Some(match error.downcast_ref()? {
        Error::Request(error) => &**error,
        Error::GaveUp(gave_up) => gave_up,
        Error::Status(error, _) | Error::Body(error, _) => error,
    })
}
