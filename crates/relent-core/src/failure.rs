//! A failed attempt, classified: its kind, its cause and the server's hint.

use core::fmt;

use crate::grpc::GrpcCode;
use crate::hint::Hint;

/// Whether a failed attempt may have taken effect, and whether a retry can help.
///
/// A retry depends on two questions: *did the attempt run*, answered here, and *may it run twice*,
/// answered by [`Repeatable`](crate::Repeatable).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FailureKind {
    /// The server never started: a retry is safe for any operation.
    NotProcessed,
    /// The attempt may have taken effect: only repeatable operations are retried.
    Ambiguous,
    /// A retry cannot help.
    Permanent,
    /// Rejected by a rate limit and not processed: a retry is safe for any operation.
    Throttled,
    /// Rejected, with the request not to retry.
    Overloaded,
}

impl FailureKind {
    /// The name in traces and policy files, such as `not_processed`.
    ///
    /// ```
    /// assert_eq!(relent_core::FailureKind::NotProcessed.name(), "not_processed");
    /// ```
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotProcessed => "not_processed",
            Self::Ambiguous => "ambiguous",
            Self::Permanent => "permanent",
            Self::Throttled => "throttled",
            Self::Overloaded => "overloaded",
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A failure of the transport, below the protocol's own responses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Network {
    /// The name lookup failed temporarily (EAI_AGAIN, SERVFAIL).
    Dns,
    /// The name does not exist (NXDOMAIN), or the resolver did not distinguish the two.
    NameNotFound,
    /// The connection was refused, or the host is unreachable.
    Connect,
    /// The connection was cut during the TLS handshake.
    Handshake,
    /// The server's certificate is not acceptable.
    Certificate,
    /// HTTP/2 `REFUSED_STREAM`: the server did not process the request.
    RefusedStream,
    /// HTTP/2 `GOAWAY` with a last stream below this one: the server will not process the request.
    GoAway,
    /// The connection broke after the request was at least partly sent.
    Reset,
    /// The response ended before it was complete.
    Truncated,
    /// The response is not valid HTTP: an unreadable head, contradictory lengths, an unknown
    /// transfer coding, a chunk without a size.
    Malformed,
    /// The request itself is malformed: an invalid URL or header.
    BadRequest,
    /// The request failed on this side, after a part of it may have been sent: its body failed, or the
    /// task of its connection ended. That is no evidence about the destination.
    Local,
    /// Any other failure of the transport after the request may have been sent.
    Other,
}

impl Network {
    /// The failure kind: whether the request may have been processed.
    ///
    /// [`Network::NameNotFound`] counts as not processed; [`Session`](crate::Session) limits it to
    /// one retry, for one more lookup. The same limit applies to [`Network::Malformed`]: a server
    /// that does not speak HTTP will rarely do so on the next attempt.
    #[must_use]
    pub const fn kind(self) -> FailureKind {
        match self {
            Self::Dns
            | Self::NameNotFound
            | Self::Connect
            | Self::Handshake
            | Self::RefusedStream
            | Self::GoAway => FailureKind::NotProcessed,
            Self::Certificate | Self::BadRequest => FailureKind::Permanent,
            Self::Reset | Self::Truncated | Self::Malformed | Self::Local | Self::Other => {
                FailureKind::Ambiguous
            }
        }
    }

    /// The name in metrics, such as `connection_refused`.
    ///
    /// ```
    /// assert_eq!(relent_core::Network::Connect.name(), "connection_refused");
    /// ```
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dns => "name_look_up_failed",
            Self::NameNotFound => "name_not_found",
            Self::Connect => "connection_refused",
            Self::Handshake => "tls_handshake_cut",
            Self::Certificate => "certificate_rejected",
            Self::RefusedStream => "stream_refused",
            Self::GoAway => "connection_going_away",
            Self::Reset => "connection_reset",
            Self::Truncated => "response_cut_short",
            Self::Malformed => "malformed_response",
            Self::BadRequest => "malformed_request",
            Self::Local => "local_error",
            Self::Other => "network_error",
        }
    }

    const fn describe(self) -> &'static str {
        match self {
            Self::Dns => "name look-up failed",
            Self::NameNotFound => "name not found",
            Self::Connect => "connection refused",
            Self::Handshake => "TLS handshake cut",
            Self::Certificate => "certificate rejected",
            Self::RefusedStream => "stream refused",
            Self::GoAway => "connection going away",
            Self::Reset => "connection reset",
            Self::Truncated => "response cut short",
            Self::Malformed => "malformed response",
            Self::BadRequest => "malformed request",
            Self::Local => "local error",
            Self::Other => "network error",
        }
    }
}

/// The observed cause of a failed attempt; rules match it, and traces show it.
///
/// ```
/// use relent_core::{Cause, Network};
///
/// assert_eq!(Cause::Status(503).to_string(), "status 503");
/// assert_eq!(Cause::Network(Network::Connect).to_string(), "connection refused");
/// assert_eq!(Cause::Exit(1).to_string(), "exit 1");
/// assert_eq!(Cause::Grpc(14).to_string(), "grpc unavailable");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Cause {
    /// An unclassified error of the caller's operation.
    #[default]
    Error,
    /// An HTTP status.
    Status(u16),
    /// A gRPC status code by number; [`GrpcCode`] has the names.
    Grpc(u16),
    /// The exit status of a command.
    Exit(i32),
    /// A command that was ended by this signal.
    Signal(i32),
    /// A command whose output matched a retry pattern.
    Output,
    /// A local attempt timeout. It uses the delay and limit of the rule for status 408.
    Timeout,
    /// A transport failure.
    Network(Network),
    /// Not a failure: the result is not ready, poll again. No list of failures applies.
    Pending,
    /// A write conflict: read, modify and write must all be repeated. No list of failures applies.
    Conflict,
}

impl Cause {
    /// Whether the destination itself responded, successfully or not.
    pub(crate) const fn is_response(self) -> bool {
        matches!(
            self,
            Self::Status(_)
                | Self::Grpc(_)
                | Self::Exit(_)
                | Self::Output
                | Self::Pending
                | Self::Conflict
                | Self::Network(Network::Truncated | Network::RefusedStream | Network::GoAway)
        )
    }

    /// Whether a live connection provably never processed the attempt.
    #[inline]
    pub(crate) const fn is_unsent(self) -> bool {
        matches!(
            self,
            Self::Network(Network::RefusedStream | Network::GoAway)
        )
    }

    /// Whether the destination responded correctly, and the operation is repeated all the same.
    #[inline]
    pub(crate) const fn is_regular_response(self) -> bool {
        matches!(self, Self::Pending | Self::Conflict)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error => f.write_str("error"),
            Self::Status(status) => write!(f, "status {status}"),
            Self::Grpc(number) => match GrpcCode::from_number(*number) {
                Some(code) => write!(f, "grpc {code}"),
                None => write!(f, "grpc {number}"),
            },
            Self::Exit(code) => write!(f, "exit {code}"),
            Self::Signal(number) => write!(f, "signal {number}"),
            Self::Output => f.write_str("output matched"),
            Self::Timeout => f.write_str("attempt timed out"),
            Self::Network(network) => f.write_str(network.describe()),
            Self::Pending => f.write_str("pending"),
            Self::Conflict => f.write_str("conflict"),
        }
    }
}

impl From<GrpcCode> for Cause {
    fn from(code: GrpcCode) -> Self {
        Self::Grpc(code.number())
    }
}

/// Whether the attempt made another request before the one that failed: a followed redirect, or a
/// service that makes several requests for one call.
///
/// A failure describes only the last request. An earlier one may have taken effect, even if the
/// last was rejected. After a hop the attempt as a whole is therefore [`FailureKind::Ambiguous`], unless
/// the failure is of a worse kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Hop {
    /// The attempt made one request.
    #[default]
    None,
    /// There was an earlier request, or it cannot be excluded. The session's own destination
    /// failed.
    Here,
    /// There was an earlier request, which the session's own destination answered. Another
    /// destination failed, and a cooldown that it requests applies only there.
    Elsewhere,
}

/// The scope of a failure, which determines which other requests it affects.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Scope {
    /// The destination, or unknown: it affects all callers. The default.
    #[default]
    Destination,
    /// This request only, such as its key or its body. The destination has responded: its hint
    /// starts no cooldown, and the failure does not indicate load or an outage.
    Request,
}

/// A classified failure of an attempt: the input of
/// [`Session::on_failure`](crate::Session::on_failure).
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Cause, Failure, Hint, FailureKind};
///
/// let busy = Failure::throttled()
///     .cause(Cause::Status(429))
///     .hint(Hint::after(Duration::from_secs(2)));
/// assert_eq!(busy.kind, FailureKind::Throttled);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Whether the attempt may have run, and whether a retry can help.
    pub kind: FailureKind,
    /// The observed cause.
    pub cause: Cause,
    /// The server's hint about when to retry.
    pub hint: Hint,
    /// Whether the server would respond the same if an earlier attempt had taken effect, such as
    /// with 412 to a write with `If-Match`. If an earlier attempt may have taken effect, the
    /// session stops with [`StopReason::OutcomeUnknown`](crate::StopReason::OutcomeUnknown).
    pub as_if_applied: bool,
    /// Whether an earlier request within the same attempt may have taken effect.
    pub hop: Hop,
    /// Whether the server would respond the same if an earlier attempt were still in progress, such
    /// as with 409 to a request with an idempotency key. If an earlier attempt may have taken
    /// effect, the session treats it as [throttled](FailureKind::Throttled) and retries until the earlier
    /// attempt is over.
    pub as_if_in_progress: bool,
    /// The scope of the failure.
    pub scope: Scope,
}

impl Failure {
    /// A failure of this kind with no cause and no hint.
    #[must_use]
    pub const fn new(kind: FailureKind) -> Self {
        Self {
            kind,
            cause: Cause::Error,
            hint: Hint::NONE,
            as_if_applied: false,
            hop: Hop::None,
            as_if_in_progress: false,
            scope: Scope::Destination,
        }
    }

    /// The kind of the attempt as a whole. [`kind`](Self::kind) describes its last request; after a
    /// [`hop`](Self::hop) an earlier request may have taken effect.
    ///
    /// ```
    /// use relent_core::{Failure, Hop, FailureKind};
    ///
    /// let refused = Failure::throttled();
    /// assert_eq!(refused.kind_of_attempt(), FailureKind::Throttled);
    /// assert_eq!(refused.hop(Hop::Here).kind_of_attempt(), FailureKind::Ambiguous);
    /// ```
    #[must_use]
    pub const fn kind_of_attempt(&self) -> FailureKind {
        match (self.kind, self.hop) {
            (FailureKind::NotProcessed | FailureKind::Throttled, Hop::Here | Hop::Elsewhere) => {
                FailureKind::Ambiguous
            }
            (kind, _) => kind,
        }
    }

    /// Whether there was only one request, so that the failure describes the whole attempt.
    #[inline]
    pub(crate) const fn is_single_request(&self) -> bool {
        matches!(self.hop, Hop::None)
    }

    /// A failure before the server started.
    #[must_use]
    pub const fn not_processed() -> Self {
        Self::new(FailureKind::NotProcessed)
    }

    /// A failure that may have taken effect, such as an unclassified error.
    #[must_use]
    pub const fn ambiguous() -> Self {
        Self::new(FailureKind::Ambiguous)
    }

    /// A failure that no retry can fix.
    #[must_use]
    pub const fn permanent() -> Self {
        Self::new(FailureKind::Permanent)
    }

    /// A rejection by a rate limit.
    #[must_use]
    pub const fn throttled() -> Self {
        Self::new(FailureKind::Throttled)
    }

    /// A rejection with the request not to retry.
    #[must_use]
    pub const fn overloaded() -> Self {
        Self::new(FailureKind::Overloaded)
    }

    /// A result that is not ready yet (polling). Handled like a failure: the operation is repeated.
    /// It does not count against the destination, no list of the policy applies, and it costs no
    /// budget.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::{Backoff, Decision, FixedRandom, Failure, Instant, Policy, Session};
    ///
    /// let policy = Policy::builder(Backoff::constant(Duration::from_secs(1)))
    ///     .retry_on(["5xx".parse()?])
    ///     .build()?;
    /// let mut session = Session::new(Instant::ORIGIN, true);
    /// session.on_attempt();
    /// let now = Instant::ORIGIN;
    /// let decision = session.on_failure(&policy, now, &Failure::pending(), &mut FixedRandom::at(1.0), None);
    /// assert_eq!(decision, Decision::Retry { after: Duration::from_secs(1) });
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn pending() -> Self {
        Self::new(FailureKind::NotProcessed)
            .cause(Cause::Pending)
            .scope(Scope::Request)
    }

    /// A write conflict: another client has written since the read, so nothing has taken effect. It
    /// is repeated whatever the lists of the policy contain, and costs no budget. It does not count
    /// against the destination.
    #[must_use]
    pub const fn conflict() -> Self {
        Self::new(FailureKind::NotProcessed)
            .cause(Cause::Conflict)
            .scope(Scope::Request)
    }

    /// A transport failure, with its [kind](Network::kind).
    #[must_use]
    pub const fn network(network: Network) -> Self {
        Self::new(network.kind()).cause(Cause::Network(network))
    }

    /// Sets the cause.
    #[must_use]
    pub const fn cause(mut self, cause: Cause) -> Self {
        self.cause = cause;
        self
    }

    /// Sets the hint.
    #[must_use]
    pub const fn hint(mut self, hint: Hint) -> Self {
        self.hint = hint;
        self
    }

    /// Sets whether this [would be the response if an earlier attempt had taken
    /// effect](Self::as_if_applied).
    #[must_use]
    pub const fn as_if_applied(mut self, as_if_applied: bool) -> Self {
        self.as_if_applied = as_if_applied;
        self
    }

    /// Sets whether it happened [after another request](Self::hop).
    #[must_use]
    pub const fn hop(mut self, hop: Hop) -> Self {
        self.hop = hop;
        self
    }

    /// Sets whether this [would be the response if an earlier attempt were still in
    /// progress](Self::as_if_in_progress).
    #[must_use]
    pub const fn as_if_in_progress(mut self, as_if_in_progress: bool) -> Self {
        self.as_if_in_progress = as_if_in_progress;
        self
    }

    /// Sets the scope.
    #[must_use]
    pub const fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }
}
