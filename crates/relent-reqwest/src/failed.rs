//! How one attempt of the client ends.

use std::error::Error;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::time::Duration;

use http::StatusCode;
use relent::clock::Clock;
use relent::driver::{Driver, Target};
use relent_core::{Cause, Decision, Failure, Network, Policy, Random, StopReason};
use relent_http::BoxError;
use relent_http::body::Truncated;
use relent_http::network::{chain, while_receiving};

use crate::body::Body;
use crate::classify::classify;
#[cfg(feature = "middleware")]
use crate::classify::classify_foreign;
use crate::secret::{Shown, redacted};

/// Why an attempt brought no response, or an incomplete one.
#[derive(Debug)]
#[non_exhaustive]
pub enum AttemptError {
    /// The transport failed. The text of this names the innermost cause alone; this error has the
    /// others, and the URL.
    Transport(reqwest::Error),
    /// The attempt was cut off by its limit.
    Timeout(Duration),
    /// Fewer bytes of the body arrived than [`Download::min_rate`](crate::Download::min_rate) asks
    /// for, within the time that it gives.
    Slow {
        /// The bytes that arrived.
        received: u64,
        /// The time in which they did.
        within: Duration,
    },
    /// The server was silent for this long, the read timeout: no byte of the head of a response arrived, and
    /// none of the request went out. See [`Client::read_timeout`](crate::Client::read_timeout).
    Silent(Duration),
    /// The body ended before it was whole, though its connection did not fail.
    Truncated(Truncated),
    /// The gRPC call failed with this status, in the headers or trailers of a response whose HTTP
    /// status is 200.
    Grpc(u16),
    /// The answer to a request for the rest of a response was not that rest: its bytes would have
    /// been mixed with those of another representation. Or it was a part where the whole was asked
    /// for, or no complete response at all. The text says what it was.
    NotTheRest(String),
    /// The request's own body could not be read again.
    Body(io::Error),
    /// The sink refused the response.
    Sink(io::Error),
    /// The error of another middleware of a stack of reqwest-middleware.
    #[cfg(feature = "middleware")]
    Middleware(anyhow::Error),
}

impl fmt::Display for AttemptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transport(error) => fmt::Display::fmt(root(error), f),
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
            Self::NotTheRest(what) => f.write_str(what),
            Self::Body(error) | Self::Sink(error) => error.fmt(f),
            #[cfg(feature = "middleware")]
            Self::Middleware(error) => error.fmt(f),
        }
    }
}

/// Only what the text does not contain already is a source.
impl Error for AttemptError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Body(error) | Self::Sink(error) => error.source(),
            #[cfg(feature = "middleware")]
            Self::Middleware(error) => error.source(),
            Self::Transport(_)
            | Self::Timeout(_)
            | Self::Slow { .. }
            | Self::Silent(_)
            | Self::Truncated(_)
            | Self::Grpc(_)
            | Self::NotTheRest(_) => None,
        }
    }
}

/// The innermost source: the texts of the errors around it say "error sending request".
pub(crate) fn root<'e>(error: &'e (dyn Error + 'static)) -> &'e (dyn Error + 'static) {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    root
}

/// An attempt that failed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Failed {
    /// What a session decides by.
    pub failure: Failure,
    /// Set if no decision can help, for a reason that a policy cannot know.
    pub stop: Option<StopReason>,
    /// Whether the attempt has brought the download on for good by as much as
    /// [`Progress`](relent_core::Progress) asks for: the count of retries and the backoff begin anew.
    pub progressed: bool,
    /// What there is to show.
    pub last: Last,
    /// What would be sent again, to be asked only if there is to be another attempt.
    pub(crate) body: Option<Body>,
    /// Why nothing could be made of another attempt, if that is so.
    pub(crate) unable: Option<StopReason>,
}

/// What a failed attempt leaves behind.
pub enum Last {
    /// A response with a status that says failure, or that the caller's own judgement refuses. Of its body
    /// as much is there as was read while a retry was waited for that has not come; see [`Client::send`](crate::Client::send).
    Refused(reqwest::Response),
    /// No response, or an incomplete one.
    Error(AttemptError),
}

/// Without header fields, which can hold credentials.
impl fmt::Debug for Last {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(response) => f
                .debug_struct("Refused")
                .field("status", &response.status())
                .field("url", &Shown(response.url()))
                .finish_non_exhaustive(),
            Self::Error(error) => f.debug_tuple("Error").field(error).finish(),
        }
    }
}

impl Last {
    /// As a caller's own judgement sees it.
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

/// An attempt that failed without a response to show. It goes about in a box, since what does not
/// happen on success would be moved as often as the response.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) failure: Failure,
    pub(crate) stop: Option<StopReason>,
    pub(crate) error: AttemptError,
}

impl Broken {
    /// The transport failed.
    fn transport(error: reqwest::Error) -> Box<Self> {
        Box::new(Self {
            failure: classify(&error),
            stop: None,
            error: AttemptError::Transport(error),
        })
    }

    /// A failure that only a new response from the beginning, or a further part, can repair.
    pub(crate) fn not_the_rest(what: impl Into<String>) -> Box<Self> {
        Box::new(Self {
            failure: Failure::network(Network::Truncated),
            stop: None,
            error: AttemptError::NotTheRest(what.into()),
        })
    }

    /// A response that answers another question than the one that was asked.
    pub(crate) fn malformed(what: impl Into<String>) -> Box<Self> {
        let mut broken = Self::not_the_rest(what);
        broken.failure = Failure::network(Network::Malformed);
        broken
    }

    /// An attempt that was cut off after this time.
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

    /// An attempt that brought only so much.
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
                    AttemptError::NotTheRest(error.to_string()),
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
            _ => AttemptError::NotTheRest("the trailers have no grpc-status".to_owned()),
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

    /// A failure of this side, which no server can help.
    pub(crate) fn local(reason: StopReason, error: AttemptError) -> Box<Self> {
        Box::new(Self {
            failure: Failure::permanent(),
            stop: Some(reason),
            error,
        })
    }
}

impl From<reqwest::Error> for Box<Broken> {
    #[cold]
    fn from(error: reqwest::Error) -> Self {
        Broken::transport(redacted(error))
    }
}

/// What another middleware leaves is as it is, since the caller gets it back.
#[cfg(feature = "middleware")]
impl From<reqwest_middleware::Error> for Box<Broken> {
    fn from(error: reqwest_middleware::Error) -> Self {
        match error {
            reqwest_middleware::Error::Reqwest(error) => Broken::transport(error),
            reqwest_middleware::Error::Middleware(error) => Self::new(Broken {
                failure: classify_foreign(&*error),
                stop: None,
                error: AttemptError::Middleware(error),
            }),
        }
    }
}

impl From<Box<Broken>> for Box<Failed> {
    fn from(broken: Box<Broken>) -> Self {
        Self::new(Failed {
            stop: broken.stop,
            ..*Failed::new(broken.failure, Last::Error(broken.error))
        })
    }
}

impl Failed {
    /// A failure that is decided by a session.
    pub(crate) fn new(failure: Failure, last: Last) -> Box<Self> {
        Box::new(Self {
            failure,
            stop: None,
            progressed: false,
            last,
            body: None,
            unable: None,
        })
    }

    /// Lets the driver decide, unless nothing can help. Progress is told it first. Whether the body of the
    /// request can be sent again is asked only if there would be a retry, so that the policy's own reason
    /// to stop stands.
    pub(crate) fn decide<K, R, P, D>(&self, driver: &mut Driver<'_, K, R, P, D>) -> Decision
    where
        K: Clock,
        R: Random,
        P: Deref<Target = Policy>,
        D: Target,
    {
        match self.stop {
            Some(reason) => Decision::Stop(driver.on_stop(&self.failure, reason)),
            None => {
                self.tell_progress(driver);
                driver.on_failure_unless(&self.failure, || self.unable())
            }
        }
    }

    /// The same with a wait of the caller's own.
    pub(crate) fn decide_by<K, R, P, D>(
        &self,
        driver: &mut Driver<'_, K, R, P, D>,
        own: Duration,
    ) -> Decision
    where
        K: Clock,
        R: Random,
        P: Deref<Target = Policy>,
        D: Target,
    {
        self.tell_progress(driver);
        match driver.on_failure_with(&self.failure, Some(own)) {
            Decision::Retry { after } => match self.unable() {
                Some(reason) => Decision::Stop(driver.on_declined(&self.failure, reason)),
                None => Decision::Retry { after },
            },
            stop @ Decision::Stop(_) => stop,
        }
    }

    fn tell_progress<K, R, P, D>(&self, driver: &mut Driver<'_, K, R, P, D>)
    where
        K: Clock,
        R: Random,
        P: Deref<Target = Policy>,
        D: Target,
    {
        if self.progressed {
            driver.on_progress();
        }
    }

    /// Takes the body back for another attempt. Why there is none for it, if so.
    fn unable(&self) -> Option<StopReason> {
        let answered = self.last.status().is_some();
        let left = || {
            self.body
                .as_ref()
                .is_none_or(|body| body.take_back(answered))
        };
        self.unable
            .or_else(|| (!left()).then_some(StopReason::NotReplayable))
    }
}

/// What an attempt has come to.
pub(crate) type Outcome = Result<reqwest::Response, Box<Broken>>;
