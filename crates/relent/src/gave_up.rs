//! The error of a session that gave up.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

use relent_core::{StopReason, Trace};

use crate::dyn_error::DynError;
use crate::last_error::LastError;
use crate::summary::Summary;

/// The error of a call that gave up: the reason, the number of attempts, and the last error.
///
/// Other libraries name it `RetryError` or "retries exceeded". `L` is the last failure, in most
/// cases the operation's error type.
///
/// # In a function that returns another error
///
/// | the function returns | the operation fails with | write |
/// |---|---|---|
/// | `anyhow::Error`, `Box<dyn Error>` | any [`Error`], such as `reqwest::Error` | `retry(..).await?` |
/// | [`io::Error`] | [`io::Error`] | `retry(..).await?` |
/// | `anyhow::Error`, `Box<dyn Error>`, [`String`] | the same | `retry(..).or_last_error().await?` |
/// | `anyhow::Error`, with a context | `anyhow::Error` | `retry(..).or_last_error().await.context("..")?` |
/// | the same, with reason and number of attempts | `anyhow::Error`, `Box<dyn Error + Send + Sync>`, a text | `retry(..).await.map_err(GaveUp::into_dyn)?` |
/// | an enum of your own | the same | `retry(..).or_last_error_else(\|_\| MyError::NoAnswer).await?` |
/// | `sqlx::Error` | the same | `retry(..).or_last_error_else(\|gave_up\| sqlx::Error::Io(gave_up.into())).await?` |
/// | an enum of your own | another type `E` | `retry(..).await?`, and a variant `#[from] GaveUp<E>` (thiserror) |
/// | `GaveUp<E>` | any `E` | `retry(..).await?` |
///
/// A type without a public constructor, such as `reqwest::Error`, cannot represent a call that
/// ended without an error of its operation. Let the function return `GaveUp<reqwest::Error>`.
///
/// End the blocking and borrowing forms with `.run().map_err(GaveUp::into_last)` in place of
/// [`or_last_error`](crate::Retry::or_last_error). To use `?` alone, implement
/// `From<GaveUp<MyError>>` for your error:
///
/// ```
/// use relent::{GaveUp, Policy, VirtualClock, blocking};
///
/// #[derive(Debug)]
/// enum MyError {
///     Refused,
///     NoAnswer,
/// }
///
/// impl From<GaveUp<MyError>> for MyError {
///     fn from(gave_up: GaveUp<MyError>) -> Self {
///         gave_up.into_last_or_else(|_| MyError::NoAnswer)
///     }
/// }
///
/// fn order() -> Result<u32, MyError> {
///     let clock = VirtualClock::new();
///     Ok(blocking::retry(Policy::STANDARD, || Err(MyError::Refused)).clock(clock).run()?)
/// }
/// assert!(matches!(order(), Err(MyError::Refused)));
/// ```
///
/// # Display
///
/// It displays as one line. With [`Retry::traced`](crate::Retry::traced) a line with the failure of
/// each attempt follows.
///
/// The text contains the text of the last error. Therefore [`source`](Error::source) returns the
/// source of the last error, as [`io::Error`] does: a caller that prints the chain prints each
/// error once. The last error itself is [`error`](Self::error).
///
/// ```
/// use relent::{Policy, VirtualClock, blocking};
///
/// let clock = VirtualClock::new();
/// let gave_up = blocking::retry(Policy::STANDARD, || Err::<(), _>("refused"))
///     .clock(&clock)
///     .run()
///     .unwrap_err();
/// assert_eq!(gave_up.attempts(), 8);
/// assert_eq!(gave_up.error(), Some(&"refused"));
/// assert!(gave_up.to_string().starts_with("gave up after 8 attempts"));
/// ```
pub struct GaveUp<L> {
    last: Option<L>,
    summary: Box<Summary>,
}

impl<L> GaveUp<L> {
    /// Makes the error of your own loop around a [`Driver`](crate::driver::Driver), from its last
    /// error and [`Driver::summary`](crate::driver::Driver::summary).
    pub fn new(last: Option<L>, summary: Summary) -> Self {
        Self {
            last,
            summary: Box::new(summary),
        }
    }

    /// The reason for giving up.
    #[must_use]
    pub fn reason(&self) -> StopReason {
        self.summary.reason.unwrap_or(StopReason::Cancelled)
    }

    /// The number of attempts that were started.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.summary.attempts
    }

    /// The time since the call began, all attempts and delays included.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.summary.elapsed
    }

    /// The time at which another call may succeed: that of the server's `Retry-After`, or of the next
    /// slot of the rate limit. Always set with [`StopReason::RetryLater`]: postpone the work until then.
    #[must_use]
    pub fn retry_at(&self) -> Option<SystemTime> {
        self.summary.retry_at
    }

    /// The trace of every attempt, if one was requested.
    #[must_use]
    pub fn trace(&self) -> Option<&Trace> {
        self.summary.trace.as_ref()
    }

    /// The last error of the operation, also if the retry that followed it was held back. `None` if
    /// no attempt ended by itself: there was none, a time limit cut off each, or polling never
    /// failed.
    #[must_use]
    pub fn error(&self) -> Option<&L> {
        self.last.as_ref()
    }

    /// The last error of the operation, by value; see [`error`](Self::error).
    #[must_use]
    pub fn into_error(self) -> Option<L> {
        self.last
    }

    /// The last error of the operation, for a function that returns the same type.
    ///
    /// Without such an error (see [`error`](Self::error)) the value is made from a [`NoLastError`],
    /// which holds the reason.
    ///
    /// ```
    /// use std::io;
    /// use relent::{GaveUp, Policy, VirtualClock, blocking};
    ///
    /// fn read() -> io::Result<String> {
    ///     blocking::retry(Policy::STANDARD, || Err(io::ErrorKind::ConnectionReset.into()))
    ///         .clock(VirtualClock::new())
    ///         .run()
    ///         .map_err(GaveUp::into_last)
    /// }
    /// assert_eq!(read().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    /// ```
    #[must_use]
    pub fn into_last(self) -> L
    where
        L: FromNoLastError,
    {
        self.into_last_or_else(L::from_no_last_error)
    }

    /// The last error of the operation, or the result of `otherwise` if there is none.
    #[must_use]
    pub fn into_last_or_else(self, otherwise: impl FnOnce(NoLastError) -> L) -> L {
        let Self { last, summary } = self;
        last.unwrap_or_else(|| {
            otherwise(GaveUp {
                last: None,
                summary,
            })
        })
    }

    /// Wraps the last error so that it always is an [`Error`], and `?` converts it to
    /// `anyhow::Error` or `Box<dyn Error>`. For operations that fail with `anyhow::Error`,
    /// `Box<dyn Error + Send + Sync>`, `String` or `&str`, which do not implement `Error`.
    ///
    /// ```
    /// use std::error::Error;
    /// use relent::{GaveUp, Policy, VirtualClock, blocking};
    ///
    /// fn fetch() -> Result<u32, Box<dyn Error + Send + Sync>> {
    ///     Ok("12a".parse()?)
    /// }
    /// fn order() -> Result<u32, Box<dyn Error>> {
    ///     let clock = VirtualClock::new();
    ///     let fetched = blocking::retry(Policy::STANDARD, fetch).clock(clock).run();
    ///     Ok(fetched.map_err(GaveUp::into_dyn)?)
    /// }
    /// assert!(order().unwrap_err().to_string().ends_with("invalid digit found in string)"));
    /// ```
    #[must_use]
    pub fn into_dyn(self) -> GaveUp<DynError>
    where
        L: Into<Box<dyn Error + Send + Sync>>,
    {
        GaveUp {
            last: self.last.map(|last| DynError::from(last.into())),
            summary: self.summary,
        }
    }

    /// The attempt summary.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }
}

/// A call that gave up without an error of the operation. It was never attempted, because it was
/// queued or held back until its limit; a time limit cut off every attempt; or polling never
/// failed.
///
/// An error type that implements `From<NoLastError>` can be the result of [`GaveUp::into_last`] and
/// [`Retry::or_last_error`](crate::Retry::or_last_error). `anyhow::Error`, `Box<dyn Error>`,
/// [`io::Error`] and [`String`] do. For your own error type, implement it:
///
/// ```
/// # use std::fmt;
/// use relent::StopReason;
/// use relent::error::NoLastError;
///
/// #[derive(Debug)]
/// enum MyError {
///     Refused(u16),
///     NoAnswer(NoLastError), // with `thiserror`: `#[error(transparent)] NoAnswer(#[from] NoLastError)`
/// }
///
/// impl From<NoLastError> for MyError {
///     fn from(gave_up: NoLastError) -> Self {
///         Self::NoAnswer(gave_up)
///     }
/// }
/// # assert!(matches!(MyError::Refused(503), MyError::Refused(_)));
/// ```
pub type NoLastError = GaveUp<Infallible>;

/// An error type that can represent a call without a last error, as
/// [`Retry::or_last_error`](crate::Retry::or_last_error) requires. Every type that is
/// `From<`[`NoLastError`]`>` has it; there is nothing else to implement.
///
/// For any other type the compiler error names the line to write:
///
/// ```compile_fail,E0277
/// # use relent::{Policy, retry};
/// # enum MyError { NoAnswer }
/// # async fn fetch() -> Result<u32, MyError> { Ok(1) }
/// async fn order() -> Result<u32, MyError> {
///     retry(Policy::STANDARD, fetch).or_last_error().await
///     // write `.or_last_error_else(|_| MyError::NoAnswer).await`
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no value for a call that ends without an error of its operation",
    label = "name one: `.or_last_error_else(|gave_up| ..)`",
    note = "an async call: `retry(..).or_last_error_else(|gave_up| ..).await?`; a call with `run()`: \
            `.map_err(|gave_up| gave_up.into_last_or_else(|gave_up| ..))?`",
    note = "or, once for `{Self}`: `impl From<relent::error::NoLastError> for {Self}`"
)]
pub trait FromNoLastError: Sized {
    /// Converts a call without a last error.
    #[doc(hidden)]
    fn from_no_last_error(gave_up: NoLastError) -> Self;
}

#[diagnostic::do_not_recommend]
impl<E: From<NoLastError>> FromNoLastError for E {
    fn from_no_last_error(gave_up: NoLastError) -> Self {
        gave_up.into()
    }
}

/// Keeps the kind of the last error. Without one, the kind is [`TimedOut`](io::ErrorKind::TimedOut)
/// if a time limit was the reason.
impl From<GaveUp<io::Error>> for io::Error {
    fn from(gave_up: GaveUp<io::Error>) -> Self {
        let kind = match &gave_up.last {
            Some(last) => last.kind(),
            None => kind_of(gave_up.reason()),
        };
        Self::new(kind, gave_up)
    }
}

/// The kind is [`TimedOut`](io::ErrorKind::TimedOut) if a time limit was the reason.
impl From<NoLastError> for io::Error {
    fn from(gave_up: NoLastError) -> Self {
        Self::new(kind_of(gave_up.reason()), gave_up)
    }
}

/// Displays the error.
impl From<NoLastError> for String {
    fn from(gave_up: NoLastError) -> Self {
        gave_up.to_string()
    }
}

/// Never `Interrupted`, on which loops of the standard library continue.
fn kind_of(reason: StopReason) -> io::ErrorKind {
    match reason {
        StopReason::Deadline | StopReason::MaxElapsed => io::ErrorKind::TimedOut,
        _ => io::ErrorKind::Other,
    }
}

impl<L: fmt::Display> fmt::Display for GaveUp<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.summary.head(f)?;
        match &self.last {
            // `{:#}` also prints the causes, for error types that support it.
            Some(error) if f.alternate() => write!(f, " (last error: {error:#})")?,
            Some(error) => write!(f, " (last error: {error})")?,
            None => self.summary.failures(f)?,
        }
        self.summary.lines(f)
    }
}

impl<L: fmt::Debug> fmt::Debug for GaveUp<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GaveUp")
            .field("reason", &self.reason())
            .field("attempts", &self.attempts())
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

impl<L: LastError> Error for GaveUp<L> {
    /// The source of the last error; the text of the last error is part of this error's text.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.last.as_ref().and_then(Error::source)
    }
}
