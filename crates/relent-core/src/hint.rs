//! What a server says about time, and how a policy obeys it.

use core::fmt;
use core::time::Duration;

/// Where a hint was read; its name stands in traces.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum HintSource {
    /// The caller's own code, through [`Hint::after`].
    #[default]
    Caller,
    /// `Retry-After` (RFC 9110 §10.2.3).
    RetryAfter,
    /// `retry-after-ms`.
    RetryAfterMs,
    /// `x-ms-retry-after-ms`.
    XMsRetryAfterMs,
    /// `x-amz-retry-after` (AWS SDKs, retries 2.1).
    XAmzRetryAfter,
    /// `RateLimit` (IETF draft-ietf-httpapi-ratelimit-headers).
    RateLimit,
    /// `X-RateLimit-Reset`.
    XRateLimitReset,
    /// `x-should-retry`.
    XShouldRetry,
    /// `Stripe-Should-Retry`.
    StripeShouldRetry,
    /// `grpc-retry-pushback-ms` (gRFC A6).
    GrpcPushback,
    /// `google.rpc.RetryInfo` in `grpc-status-details-bin`.
    GrpcRetryInfo,
    /// `relent-mark`.
    RelentMark,
    /// `relent-ticket`, which says whom a delay is for.
    RelentTicket,
}

impl HintSource {
    /// The name of the header, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::RetryAfter => "retry-after",
            Self::RetryAfterMs => "retry-after-ms",
            Self::XMsRetryAfterMs => "x-ms-retry-after-ms",
            Self::XAmzRetryAfter => "x-amz-retry-after",
            Self::RateLimit => "ratelimit",
            Self::XRateLimitReset => "x-ratelimit-reset",
            Self::XShouldRetry => "x-should-retry",
            Self::StripeShouldRetry => "stripe-should-retry",
            Self::GrpcPushback => "grpc-retry-pushback-ms",
            Self::GrpcRetryInfo => "grpc-status-details-bin",
            Self::RelentMark => "relent-mark",
            Self::RelentTicket => "relent-ticket",
        }
    }
}

impl fmt::Display for HintSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whom a delay is for, which decides how far callers are spread behind it (design rule 4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Audience {
    /// Perhaps many callers got the same value. Spread: up to a share of the delay, by the policy's
    /// [`hint_spread`](crate::Policy::hint_spread).
    #[default]
    Shared,
    /// A ticket: reserved for this caller, in whole seconds. Spread: at most 1 s.
    TicketSeconds,
    /// A ticket in milliseconds. Spread: at most 100 ms.
    TicketMillis,
}

/// Whether the server said in so many words that the request may be sent again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Advice {
    /// Nothing was said.
    #[default]
    None,
    /// "Do not retry": outranks everything else (design rule 5).
    DoNotRetry,
    /// "Do retry": lifts a permanent status to an ambiguous one. It never makes an operation
    /// repeatable (design rule 1).
    DoRetry,
}

/// What the server said about time: at most one delay, at most one piece of advice.
///
/// ```
/// use core::time::Duration;
/// use relent_core::Hint;
///
/// let hint = Hint::after(Duration::from_secs(3));
/// assert_eq!(hint.delay(), Some(Duration::from_secs(3)));
/// assert_eq!(Hint::NONE.delay(), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Hint {
    delay: Option<u64>,
    /// Where the delay, or the advice if there is no delay, was read.
    pub source: HintSource,
    /// Whom the delay is for.
    pub audience: Audience,
    /// Do retry, do not retry, or nothing said.
    pub advice: Advice,
    /// A header that was there but malformed and therefore ignored; noted in the trace.
    pub malformed: Option<HintSource>,
}

impl Hint {
    /// Nothing was said.
    pub const NONE: Self = Self {
        delay: None,
        source: HintSource::Caller,
        audience: Audience::Shared,
        advice: Advice::None,
        malformed: None,
    };

    /// "Come back after this delay", counted from the moment the attempt ended. Values above
    /// 584 years saturate.
    #[must_use]
    pub const fn after(delay: Duration) -> Self {
        let mut hint = Self::NONE;
        hint.delay = Some(crate::time::nanos(delay));
        hint
    }

    /// "Do not retry."
    #[must_use]
    pub const fn do_not_retry() -> Self {
        let mut hint = Self::NONE;
        hint.advice = Advice::DoNotRetry;
        hint
    }

    /// "Do retry."
    #[must_use]
    pub const fn do_retry() -> Self {
        let mut hint = Self::NONE;
        hint.advice = Advice::DoRetry;
        hint
    }

    /// The delay, if one was given.
    #[must_use]
    pub const fn delay(&self) -> Option<Duration> {
        match self.delay {
            Some(nanos) => Some(Duration::from_nanos(nanos)),
            None => None,
        }
    }

    pub(crate) const fn delay_nanos(&self) -> Option<u64> {
        self.delay
    }

    /// The same hint, this many nanoseconds after it was given.
    pub(crate) const fn later(mut self, passed: u64) -> Self {
        if let Some(delay) = self.delay {
            self.delay = Some(delay.saturating_sub(passed));
        }
        self
    }

    /// The same hint, read from `source`.
    #[must_use]
    pub const fn from_source(mut self, source: HintSource) -> Self {
        self.source = source;
        self
    }

    /// The same hint, meant for `audience`.
    #[must_use]
    pub const fn for_audience(mut self, audience: Audience) -> Self {
        self.audience = audience;
        self
    }

    /// The same hint with a note that the header `source` was malformed and ignored.
    #[must_use]
    pub const fn with_malformed(mut self, source: HintSource) -> Self {
        self.malformed = Some(source);
        self
    }

    /// The same hint with this advice.
    #[must_use]
    pub const fn with_advice(mut self, advice: Advice) -> Self {
        self.advice = advice;
        self
    }
}

/// How a policy obeys a server's delay (design rule 4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum HintMode {
    /// `floor`, the default: wait = max(hint, own wait) + spread. Never early, never in step.
    #[default]
    Floor,
    /// `replace`: wait = hint, whatever the own wait would have been (R1.5).
    Replace,
    /// `clamp`: the hint within [own wait, own wait + 5 s] (AWS SDKs, retries 2.1).
    Clamp,
    /// `exact`: wait = hint, and the backoff starts again from its first step (gRFC A6).
    Exact,
    /// `ignore`: only for reproducing systems that do not read hints; impolite otherwise.
    Ignore,
}

impl HintMode {
    /// Every mode with its word in policy files.
    pub const ALL: [(&'static str, Self); 5] = [
        ("floor", Self::Floor),
        ("replace", Self::Replace),
        ("clamp", Self::Clamp),
        ("exact", Self::Exact),
        ("ignore", Self::Ignore),
    ];
}
