//! The outcome of the last attempt, kept until the next attempt starts.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::Response;
use http_body::Body;
use relent::{GaveUp, Summary};

use super::body::ResponseBody;
use super::error::{ReadinessError, ServiceError};
use super::outcome::{AttemptResult, Output, with};
use crate::complete::reports_end_stream;
use crate::drain::Drain;
use crate::replay::BoxError;

/// The last real outcome: the result of the call if the next attempt is held until the call
/// ends.
pub(super) enum LastOutcome<R> {
    Error(ServiceError),
    /// The head of a response, and its body, which is being drained.
    Refused(Response<()>, Pin<Box<Drain<R>>>),
}

impl<R> LastOutcome<R>
where
    R: Body<Error: Into<BoxError>>,
{
    pub(super) fn of(outcome: AttemptResult<R>) -> Self {
        match outcome {
            Err(error) => Self::Error(error),
            Ok(response) => {
                let (head, body) = response.into_parts();
                let head = Response::from_parts(head, ());
                let drain = Box::pin(Drain::new(&head, body, reports_end_stream::<R>));
                Self::Refused(head, drain)
            }
        }
    }

    /// Whether there is more to drain.
    pub(super) fn is_draining(&self) -> bool {
        matches!(self, Self::Refused(_, drain) if drain.is_reading())
    }

    /// Ready when nothing is left to drain.
    pub(super) fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Error(_) => Poll::Ready(()),
            Self::Refused(_, drain) => drain.as_mut().poll_end(context),
        }
    }

    /// Stops draining.
    pub(super) fn end_drain(&mut self) {
        if let Self::Refused(_, drain) = self {
            drain.as_mut().end();
        }
    }

    /// Records why no further attempt followed, if the outcome is a response.
    pub(super) fn note(&mut self, error: ReadinessError) {
        if let Self::Refused(head, _) = self {
            head.extensions_mut().insert(error);
        }
    }

    /// The result of the call.
    pub(super) fn into_output(self, summary: Summary) -> Output<R> {
        match self {
            Self::Error(error) => Err(GaveUp::new(Some(error), summary)),
            Self::Refused(head, mut drain) => {
                let body = ResponseBody::drained(drain.as_mut().take());
                Ok(with(summary, head.map(|()| body)))
            }
        }
    }
}
