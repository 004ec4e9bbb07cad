//! Hints of a server about when to retry, and how a policy applies them.

use core::fmt;
use core::time::Duration;

/// The source of a hint, by the name of its header; shown in traces.
///
/// ```
/// use relent_core::HintSource;
///
/// assert_eq!(HintSource::header("retry-after").name(), "retry-after");
/// assert_eq!(HintSource::default(), HintSource::CALLER);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HintSource(&'static str);

impl HintSource {
    /// The caller's own code, with [`Hint::after`].
    pub const CALLER: Self = Self("caller");

    /// The header with this name in lower case.
    #[must_use]
    pub const fn header(name: &'static str) -> Self {
        Self(name)
    }

    /// The name of the header, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0
    }
}

impl Default for HintSource {
    fn default() -> Self {
        Self::CALLER
    }
}

impl fmt::Display for HintSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The audience of a delay, which determines the Retry-After jitter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Audience {
    /// Many callers may have got the same value. Jitter: up to a share of the delay, the policy's
    /// [`retry_after_jitter`](crate::Policy::retry_after_jitter).
    #[default]
    Shared,
    /// A ticket (reserved slot) in whole seconds. Jitter: at most 1 s.
    TicketSeconds,
    /// A ticket in milliseconds. Jitter: at most 100 ms.
    TicketMillis,
}

/// Explicit advice of the server whether to send the request again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Advice {
    /// No advice.
    #[default]
    None,
    /// "Do not retry": overrides everything else.
    DoNotRetry,
    /// "Do retry": makes a permanent status ambiguous. It never makes an operation repeatable.
    DoRetry,
}

/// A server hint: at most one delay and at most one advice.
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
    /// The source of the delay, or of the advice if there is no delay.
    pub source: HintSource,
    /// The audience of the delay.
    pub audience: Audience,
    /// Do retry, do not retry, or no advice.
    pub advice: Advice,
    /// A header that was malformed and therefore ignored; noted in the trace.
    pub malformed: Option<HintSource>,
}

impl Hint {
    /// No hint.
    pub const NONE: Self = Self {
        delay: None,
        source: HintSource::CALLER,
        audience: Audience::Shared,
        advice: Advice::None,
        malformed: None,
    };

    /// "Retry after this delay", counted from the end of the attempt. Values above 584 years
    /// saturate.
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

    /// The delay, if there is one.
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

    /// The remaining hint, this many nanoseconds later.
    pub(crate) const fn later(mut self, passed: u64) -> Self {
        if let Some(delay) = self.delay {
            self.delay = Some(delay.saturating_sub(passed));
        }
        self
    }

    /// Sets the source.
    #[must_use]
    pub const fn from_source(mut self, source: HintSource) -> Self {
        self.source = source;
        self
    }

    /// Sets the audience.
    #[must_use]
    pub const fn for_audience(mut self, audience: Audience) -> Self {
        self.audience = audience;
        self
    }

    /// Notes that the header `source` was malformed and ignored.
    #[must_use]
    pub const fn with_malformed(mut self, source: HintSource) -> Self {
        self.malformed = Some(source);
        self
    }

    /// Sets the advice.
    #[must_use]
    pub const fn with_advice(mut self, advice: Advice) -> Self {
        self.advice = advice;
        self
    }
}

/// How a policy applies a server's delay.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum HintMode {
    /// `floor`, the default: delay = max(hint, computed backoff) + jitter. Never early, never in
    /// step with others.
    #[default]
    Floor,
    /// `replace`: delay = hint, whatever the computed backoff is.
    Replace,
    /// `clamp`: the hint within [backoff, backoff + 5 s] (AWS SDKs, retries 2.1).
    Clamp,
    /// `exact`: delay = hint, and the backoff restarts from its first step (gRFC A6).
    Exact,
    /// `ignore`: only to reproduce systems that do not read hints; impolite otherwise.
    Ignore,
}

impl HintMode {
    /// Every mode with its name in policy files.
    pub const ALL: [(&'static str, Self); 5] = [
        ("floor", Self::Floor),
        ("replace", Self::Replace),
        ("clamp", Self::Clamp),
        ("exact", Self::Exact),
        ("ignore", Self::Ignore),
    ];
}
