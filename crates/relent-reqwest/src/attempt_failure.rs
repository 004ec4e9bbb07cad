//! Results of failed attempts.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use http::StatusCode;
use relent::clock::Clock;
use relent::driver::Driver;
use relent_core::{Cause, Decision, Failure, Network, StopReason};
use relent_http::BoxError;
use relent_http::body::Truncated;
use relent_http::network::{chain, while_receiving};

use crate::body::Body;
use crate::classify::classify;
#[cfg(feature = "middleware")]
use crate::classify::classify_foreign;
use crate::redirects::RedirectRefused;
use crate::secret::{RedactedUrl, redacted};

/// Error of an attempt without a complete response.
#[derive(Debug)]
#[non_exhaustive]
pub enum AttemptError {
    /// The transport failed. The text contains only the innermost cause; the reqwest error has the others and the
    /// URL.
    Transport(reqwest::Error),
    /// The response is a redirect that reqwest could not follow, although [`limit_redirects`](crate::limit_redirects)
    /// asks for that.
    Redirect(RedirectRefused),
    /// The attempt reached its time limit.
    Timeout(Duration),
    /// Fewer bytes of the body arrived in the given time than [`Download::min_rate`](crate::Download::min_rate)
    /// requires.
    Slow {
        /// The bytes that arrived.
        received: u64,
        /// The time in which they arrived.
        within: Duration,
    },
    /// The server was silent for this long, the read timeout: no byte of the response head arrived, and no byte of
    /// the request was sent. See [`Client::read_timeout`](crate::Client::read_timeout).
    Silent(Duration),
    /// The body ended before it was whole, although its connection did not fail.
    Truncated(Truncated),
    /// The gRPC call failed with this status, in the headers or trailers of a response whose HTTP
    /// status is 200.
    Grpc(u16),
    /// The response was not the requested part. The text describes it.
    ///
    /// Either it was not the rest of the download, so bytes of two representations would have been mixed. Or it was a
    /// part when the whole was requested, or not a complete response.
    UnexpectedResponse(String),
    /// The request's own body could not be read again, and no earlier attempt has an outcome.
    Body(io::Error),
    /// The sink returned an error.
    Sink(io::Error),
    /// Another middleware of a reqwest-middleware stack returned an error.
    #[cfg(feature = "middleware")]
    Middleware(anyhow::Error),
}

impl fmt::Display for AttemptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transport(error) => fmt::Display::fmt(root(error), f),
            Self::Redirect(refused) => refused.fmt(f),
            Self::Timeout(limit) => {
                write!(f, "no end after {}", relent_core::format_duration(*limit))
            }
            Self::Slow { received, within } => {
                let within = relent_core::format_duration(*within);
                write!(f, "only {received} bytes arrived within {within}")
            }
            Self::Silent(within) => {
                let within = relent_core::format_duration(*within);
                write!(f, "the server was silent for {within}, the read timeout")
            }
            Self::Truncated(truncated) => truncated.fmt(f),
            Self::Grpc(code) => Cause::Grpc(*code).fmt(f),
            Self::UnexpectedResponse(what) => f.write_str(what),
            Self::Body(error) | Self::Sink(error) => error.fmt(f),
            #[cfg(feature = "middleware")]
            Self::Middleware(error) => error.fmt(f),
        }
    }
}

/// A source is only an error whose text is not part of this text.
impl Error for AttemptError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Body(error) | Self::Sink(error) => error.source(),
            #[cfg(feature = "middleware")]
            Self::Middleware(error) => error.source(),
            Self::Transport(_)
            | Self::Redirect(_)
            | Self::Timeout(_)
            | Self::Slow { .. }
            | Self::Silent(_)
            | Self::Truncated(_)
            | Self::Grpc(_)
            | Self::UnexpectedResponse(_) => None,
        }
    }
}

/// The innermost source: the texts of the outer errors are only "error sending request".
pub(crate) fn root<'e>(error: &'e (dyn Error + 'static)) -> &'e (dyn Error + 'static) {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    root
}

/// A failed attempt.
#[derive(Debug)]
#[non_exhaustive]
pub struct FailedAttempt {
    /// The classification, which the retry decision uses.
    pub failure: Failure,
    /// The reason to stop, if a retry cannot help for a reason unknown to the policy.
    pub stop: Option<StopReason>,
    /// Whether the download has advanced by as much as [`Progress`](relent_core::call::Progress) requires. The count of
    /// retries and the backoff then start again.
    pub progressed: bool,
    /// The response or the error.
    pub last: LastResult,
    /// The request body. Used only if there is another attempt.
    pub(crate) body: Option<Body>,
    /// The reason why another attempt is impossible, if it is.
    pub(crate) cannot_retry: Option<StopReason>,
}

/// The response or error of a failed attempt.
pub enum LastResult {
    /// A response with an error status, or one that the caller's `when` refuses. If a retry was delayed and did not
    /// follow, it has the part of the body that was read meanwhile; see [`Client::send`](crate::Client::send).
    Refused(reqwest::Response),
    /// No response, or an incomplete one.
    Error(AttemptError),
}

/// Omits header fields, which can contain credentials.
impl fmt::Debug for LastResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(response) => f
                .debug_struct("Refused")
                .field("status", &response.status())
                .field("url", &RedactedUrl(response.url()))
                .finish_non_exhaustive(),
            Self::Error(error) => f.debug_tuple("Error").field(error).finish(),
        }
    }
}

impl LastResult {
    /// The arguments of the caller's `when`.
    pub(crate) const fn parts(&self) -> (Option<&AttemptError>, Option<&reqwest::Response>) {
        match self {
            Self::Refused(response) => (None, Some(response)),
            Self::Error(error) => (Some(error), None),
        }
    }

    /// The status, if it is a response.
    pub(crate) fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused(response) => Some(response.status()),
            Self::Error(_) => None,
        }
    }
}

/// A failed attempt without a response. It is boxed, because otherwise every successful response would be moved with
/// the space for it.
#[derive(Debug)]
pub(crate) struct AttemptFailure {
    pub(crate) failure: Failure,
    pub(crate) stop: Option<StopReason>,
    pub(crate) error: AttemptError,
}

impl AttemptFailure {
    /// The transport failed.
    fn transport(error: reqwest::Error) -> Box<Self> {
        Box::new(Self {
            failure: classify(&error),
            stop: None,
            error: AttemptError::Transport(error),
        })
    }

    /// A redirect that should have been followed.
    pub(crate) fn redirect(refused: RedirectRefused) -> Box<Self> {
        Box::new(Self {
            failure: Failure::permanent(),
            stop: None,
            error: AttemptError::Redirect(refused),
        })
    }

    /// A failure of a download that a restart, or another part, can repair.
    pub(crate) fn unexpected_response(what: impl Into<String>) -> Box<Self> {
        Box::new(Self {
            failure: Failure::network(Network::Truncated),
            stop: None,
            error: AttemptError::UnexpectedResponse(what.into()),
        })
    }

    /// A response that does not match its request.
    pub(crate) fn malformed(what: impl Into<String>) -> Box<Self> {
        let mut broken = Self::unexpected_response(what);
        broken.failure = Failure::network(Network::Malformed);
        broken
    }

    /// An attempt that reached its time limit.
    pub(crate) fn timeout(given: Duration) -> Box<Self> {
        Box::new(Self {
            failure: Failure::ambiguous().cause(Cause::Timeout),
            stop: None,
            error: AttemptError::Timeout(given),
        })
    }

    /// An attempt whose server was silent for this long.
    #[cold]
    pub(crate) fn silent(within: Duration) -> Box<Self> {
        Box::new(Self {
            failure: Failure::ambiguous().cause(Cause::Timeout),
            stop: None,
            error: AttemptError::Silent(within),
        })
    }

    /// An attempt whose body arrived too slowly.
    pub(crate) fn slow(received: u64, within: Duration) -> Box<Self> {
        Box::new(Self {
            failure: Failure::ambiguous().cause(Cause::Timeout),
            stop: None,
            error: AttemptError::Slow { received, within },
        })
    }

    /// A body that could not be read to its end.
    #[cold]
    pub(crate) fn reading(error: BoxError) -> Box<Self> {
        let error = match error.downcast::<reqwest::Error>() {
            Ok(error) => return (*error).into(),
            Err(error) => error,
        };
        let (failure, error) = match error.downcast::<Truncated>() {
            Ok(truncated) => (
                Failure::network(Network::Truncated),
                AttemptError::Truncated(*truncated),
            ),
            Err(error) => {
                let network = chain(&*error).find_map(while_receiving);
                (
                    Failure::network(network.unwrap_or(Network::Other)),
                    AttemptError::UnexpectedResponse(error.to_string()),
                )
            }
        };
        Box::new(Self {
            failure,
            stop: None,
            error,
        })
    }

    /// A gRPC call that failed by its trailers.
    pub(crate) fn grpc(failure: Failure) -> Box<Self> {
        let error = match failure.cause {
            Cause::Grpc(code) => AttemptError::Grpc(code),
            _ => AttemptError::UnexpectedResponse("the trailers have no grpc-status".to_owned()),
        };
        Box::new(Self {
            failure,
            stop: None,
            error,
        })
    }

    /// A body that cannot be read again.
    pub(crate) fn unopened(error: io::Error) -> Box<Self> {
        Self::local(StopReason::NotReplayable, AttemptError::Body(error))
    }

    /// A failure on the client's side, which no retry can repair.
    pub(crate) fn local(reason: StopReason, error: AttemptError) -> Box<Self> {
        Box::new(Self {
            failure: Failure::permanent(),
            stop: Some(reason),
            error,
        })
    }
}

impl From<reqwest::Error> for Box<AttemptFailure> {
    #[cold]
    fn from(error: reqwest::Error) -> Self {
        AttemptFailure::transport(redacted(error))
    }
}

/// Unlike errors of our own requests, these are not redacted: the caller gets the original error back.
#[cfg(feature = "middleware")]
impl From<reqwest_middleware::Error> for Box<AttemptFailure> {
    fn from(error: reqwest_middleware::Error) -> Self {
        match error {
            reqwest_middleware::Error::Reqwest(error) => AttemptFailure::transport(error),
            reqwest_middleware::Error::Middleware(error) => Self::new(AttemptFailure {
                failure: classify_foreign(&*error),
                stop: None,
                error: AttemptError::Middleware(error),
            }),
        }
    }
}

impl From<Box<AttemptFailure>> for Box<FailedAttempt> {
    fn from(broken: Box<AttemptFailure>) -> Self {
        Self::new(FailedAttempt {
            stop: broken.stop,
            ..*FailedAttempt::new(broken.failure, LastResult::Error(broken.error))
        })
    }
}

impl FailedAttempt {
    /// A failure without a reason to stop: the policy decides.
    pub(crate) fn new(failure: Failure, last: LastResult) -> Box<Self> {
        Box::new(Self {
            failure,
            stop: None,
            progressed: false,
            last,
            body: None,
            cannot_retry: None,
        })
    }

    /// Lets the driver decide, unless `stop` is set. Progress is reported first. The request body is checked only if
    /// there would be a retry, so that the policy's own reason to stop takes precedence.
    pub(crate) fn decide<K: Clock>(&self, driver: &mut Driver<'_, K>) -> Decision {
        match self.stop {
            Some(reason) => Decision::Stop(driver.on_stop(&self.failure, reason)),
            None => {
                self.report_progress(driver);
                driver.on_failure_unless(&self.failure, || self.cannot_retry())
            }
        }
    }

    /// Lets the driver decide, with a delay of the caller's own.
    pub(crate) fn decide_by<K: Clock>(
        &self,
        driver: &mut Driver<'_, K>,
        own: Duration,
    ) -> Decision {
        self.report_progress(driver);
        match driver.on_failure_with(&self.failure, Some(own)) {
            Decision::Retry { after } => match self.cannot_retry() {
                Some(reason) => Decision::Stop(driver.on_retry_abandoned(&self.failure, reason)),
                None => Decision::Retry { after },
            },
            stop @ Decision::Stop(_) => stop,
        }
    }

    fn report_progress<K: Clock>(&self, driver: &mut Driver<'_, K>) {
        if self.progressed {
            driver.on_progress();
        }
    }

    /// Takes the body back for another attempt; returns the reason if that is impossible.
    fn cannot_retry(&self) -> Option<StopReason> {
        let answered = self.last.status().is_some();
        let left = || {
            self.body
                .as_ref()
                .is_none_or(|body| body.take_back(answered))
        };
        self.cannot_retry
            .or_else(|| (!left()).then_some(StopReason::NotReplayable))
    }
}

/// The result of an attempt before its classification.
pub(crate) type AttemptResult = Result<reqwest::Response, Box<AttemptFailure>>;
