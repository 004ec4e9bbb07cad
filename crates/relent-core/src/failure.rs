//! What a failed attempt looks like to a decision: its kind, its cause and the server's hint.

use core::fmt;

use crate::grpc::GrpcCode;
use crate::hint::Hint;

/// Whether a failed attempt may have taken effect, and whether repeating it can help.
///
/// Eligibility has two axes (design rule 1): *did it run*, answered here, and *may it run twice*,
/// answered by [`Repeatable`](crate::Repeatable).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// The server never began: repeating is safe for any operation.
    NotProcessed,
    /// The attempt may have taken effect: only a repeatable operation is attempted again.
    Ambiguous,
    /// Repeating cannot help.
    Permanent,
    /// Refused because of rate, and not processed: repeating is safe for any operation.
    Throttled,
    /// Refused, and asked not to retry.
    Overloaded,
}

impl Kind {
    /// The word for this kind in traces and policy files, such as `not_processed`.
    ///
    /// ```
    /// assert_eq!(relent_core::Kind::NotProcessed.name(), "not_processed");
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

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How an attempt failed below the level of the protocol's own answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Network {
    /// The name could not be looked up just now (EAI_AGAIN, SERVFAIL).
    Dns,
    /// The name does not exist (NXDOMAIN), or the resolver did not tell the two apart.
    NameNotFound,
    /// The connection was refused or the host is unreachable.
    Connect,
    /// The connection was cut during the TLS handshake.
    Handshake,
    /// The server's certificate is not acceptable.
    Certificate,
    /// HTTP/2 `REFUSED_STREAM`: the server did not look at the request.
    RefusedStream,
    /// HTTP/2 `GOAWAY` with a last stream below this one: the server will not look at the request.
    GoAway,
    /// The connection broke after the request, or a part of it, was sent.
    Reset,
    /// The response ended before it was complete.
    Truncated,
    /// The response is not valid HTTP: a head that cannot be read, contradictory lengths, a transfer coding
    /// that nothing decodes, a chunk without a size.
    Malformed,
    /// The request itself is malformed: a bad URL, a header that cannot be sent.
    BadRequest,
    /// Any other failure of the transport after the request may have been sent.
    Other,
}

impl Network {
    /// Whether the request can have been processed (design rule 2).
    ///
    /// [`Network::NameNotFound`] counts as not processed here: "permanent after one more look-up"
    /// is a limit of one retry, which [`Session`](crate::Session) applies. The same limit holds for
    /// [`Network::Malformed`], since a server that does not speak HTTP rarely learns it by the next attempt.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Self::Dns
            | Self::NameNotFound
            | Self::Connect
            | Self::Handshake
            | Self::RefusedStream
            | Self::GoAway => Kind::NotProcessed,
            Self::Certificate | Self::BadRequest => Kind::Permanent,
            Self::Reset | Self::Truncated | Self::Malformed | Self::Other => Kind::Ambiguous,
        }
    }

    /// The word for this failure where things are counted, such as `connection_refused`.
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
            Self::Other => "network error",
        }
    }
}

/// What was seen of a failed attempt; rules match on it, traces show it.
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
    /// An error of the caller's operation that says nothing more.
    #[default]
    Error,
    /// An HTTP status.
    Status(u16),
    /// The number of a gRPC status code; [`GrpcCode`] names it.
    Grpc(u16),
    /// The exit status of a command.
    Exit(i32),
    /// A command ended by this signal.
    Signal(i32),
    /// A command whose output matched a pattern that asks for a retry.
    Output,
    /// A local attempt timeout. It uses the delay and limit of the rule for status 408 (R2.4).
    Timeout,
    /// The transport failed.
    Network(Network),
    /// Nothing failed, but there is no result yet: ask again (polling). No list of failures is about it.
    Pending,
    /// Somebody else was faster, so that all of a read, modification and write is to be repeated. No
    /// list of failures is about it.
    Conflict,
}

impl Cause {
    /// Whether the destination itself responded, with whatever it was: it is there, and reached.
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

    /// Whether the destination answered as it should, and the operation is repeated all the same.
    #[inline]
    pub(crate) const fn is_answer(self) -> bool {
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

/// Whether an attempt made another call before the one that failed: a redirect that was followed, or
/// a service that calls more than once for one call of its own.
///
/// A failure tells of the last call only. That the last call was refused says nothing about an earlier
/// one, which may have taken effect: so after a hop the attempt as a whole is [`Kind::Ambiguous`],
/// unless the failure is of a worse kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Hop {
    /// The attempt made one call.
    #[default]
    None,
    /// There was an earlier call, or nothing proves that there was none. The session's own destination
    /// failed.
    Here,
    /// There was an earlier call, which the session's own destination answered. It was another
    /// destination that failed, and the cooldown that it asks for is its own.
    Elsewhere,
}

/// Whom a failure speaks of: what else is held back because of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Scope {
    /// The destination, or it is not known: all its callers may heed it. The default.
    #[default]
    Destination,
    /// This request only, such as its key, its body or what it asked for. The destination has
    /// answered: its hint begins no cooldown, and it is no sign of load or of an outage.
    Request,
}

/// A failed attempt, classified: the input of [`Session::on_failure`](crate::Session::on_failure).
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Cause, Failure, Hint, Kind};
///
/// let busy = Failure::throttled()
///     .cause(Cause::Status(429))
///     .hint(Hint::after(Duration::from_secs(2)));
/// assert_eq!(busy.kind, Kind::Throttled);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Did it run, and can repeating help?
    pub kind: Kind,
    /// What was seen.
    pub cause: Cause,
    /// What the server said about time.
    pub hint: Hint,
    /// Whether the server would answer so if an earlier attempt had taken effect, such as 412 to a
    /// write under `If-Match`. After an attempt that may have, a session stops with
    /// [`StopReason::OutcomeUnknown`](crate::StopReason::OutcomeUnknown).
    pub as_if_done: bool,
    /// Whether an earlier call within the same attempt may have taken effect.
    pub hop: Hop,
    /// Whether the server would answer so if an earlier attempt were still in progress, such as 409
    /// to a request with an idempotency key. After an attempt that may have taken effect a session
    /// takes it for [throttled](Kind::Throttled): it comes back until the earlier attempt is over.
    pub as_if_in_progress: bool,
    /// Whom it speaks of.
    pub scope: Scope,
}

impl Failure {
    /// A failure of this kind with no cause and no hint.
    #[must_use]
    pub const fn new(kind: Kind) -> Self {
        Self {
            kind,
            cause: Cause::Error,
            hint: Hint::NONE,
            as_if_done: false,
            hop: Hop::None,
            as_if_in_progress: false,
            scope: Scope::Destination,
        }
    }

    /// The kind of the attempt as a whole. [`kind`](Self::kind) is that of its last call, and after a
    /// [`hop`](Self::hop) an earlier call may have taken effect.
    ///
    /// ```
    /// use relent_core::{Failure, Hop, Kind};
    ///
    /// let refused = Failure::throttled();
    /// assert_eq!(refused.kind_of_attempt(), Kind::Throttled);
    /// assert_eq!(refused.hop(Hop::Here).kind_of_attempt(), Kind::Ambiguous);
    /// ```
    #[must_use]
    pub const fn kind_of_attempt(&self) -> Kind {
        match (self.kind, self.hop) {
            (Kind::NotProcessed | Kind::Throttled, Hop::Here | Hop::Elsewhere) => Kind::Ambiguous,
            (kind, _) => kind,
        }
    }

    /// Whether there was one call, so that the failure tells of the whole attempt.
    #[inline]
    pub(crate) const fn is_of_one_call(&self) -> bool {
        matches!(self.hop, Hop::None)
    }

    /// The server never began.
    #[must_use]
    pub const fn not_processed() -> Self {
        Self::new(Kind::NotProcessed)
    }

    /// It may have taken effect. This is what a plain error is (design rule 1).
    #[must_use]
    pub const fn ambiguous() -> Self {
        Self::new(Kind::Ambiguous)
    }

    /// Repeating cannot help.
    #[must_use]
    pub const fn permanent() -> Self {
        Self::new(Kind::Permanent)
    }

    /// Refused because of rate.
    #[must_use]
    pub const fn throttled() -> Self {
        Self::new(Kind::Throttled)
    }

    /// Refused, and asked not to retry.
    #[must_use]
    pub const fn overloaded() -> Self {
        Self::new(Kind::Overloaded)
    }

    /// Not a failure, though it is decided about like one: there is no result yet, and the operation is
    /// repeated (polling). The destination is well, no list of the policy is about it, and a budget does
    /// not pay for it.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::{Backoff, Decision, Draw, Failure, Instant, Policy, Session};
    ///
    /// let policy = Policy::builder(Backoff::constant(Duration::from_secs(1)))
    ///     .retry_on(["5xx".parse()?])
    ///     .build()?;
    /// let mut session = Session::new(Instant::ORIGIN, true);
    /// session.on_attempt();
    /// let now = Instant::ORIGIN;
    /// let decision = session.on_failure(&policy, now, &Failure::pending(), &mut Draw::at(1.0), None);
    /// assert_eq!(decision, Decision::Retry { after: Duration::from_secs(1) });
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn pending() -> Self {
        Self::new(Kind::NotProcessed)
            .cause(Cause::Pending)
            .scope(Scope::Request)
    }

    /// A write was refused because somebody else has written since the read, so nothing has taken
    /// effect: repeated whatever the lists of the policy say, and free of charge. The destination is well.
    #[must_use]
    pub const fn conflict() -> Self {
        Self::new(Kind::NotProcessed)
            .cause(Cause::Conflict)
            .scope(Scope::Request)
    }

    /// A failure of the transport, with the kind that it has by itself.
    #[must_use]
    pub const fn network(network: Network) -> Self {
        Self::new(network.kind()).cause(Cause::Network(network))
    }

    /// The same failure with this cause.
    #[must_use]
    pub const fn cause(mut self, cause: Cause) -> Self {
        self.cause = cause;
        self
    }

    /// The same failure with this hint.
    #[must_use]
    pub const fn hint(mut self, hint: Hint) -> Self {
        self.hint = hint;
        self
    }

    /// The same failure, which [would be the answer if an earlier attempt had taken
    /// effect](Self::as_if_done), or not.
    #[must_use]
    pub const fn as_if_done(mut self, as_if_done: bool) -> Self {
        self.as_if_done = as_if_done;
        self
    }

    /// The same failure [after another call](Self::hop), or not.
    #[must_use]
    pub const fn hop(mut self, hop: Hop) -> Self {
        self.hop = hop;
        self
    }

    /// The same failure, which [would be the answer if an earlier attempt were still in
    /// progress](Self::as_if_in_progress), or not.
    #[must_use]
    pub const fn as_if_in_progress(mut self, as_if_in_progress: bool) -> Self {
        self.as_if_in_progress = as_if_in_progress;
        self
    }

    /// The same failure, which speaks of this.
    #[must_use]
    pub const fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }
}
