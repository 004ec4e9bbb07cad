//! Reads the delay and retry advice of a response as one [`Hint`].

pub(crate) mod source;
mod write;

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName};
use relent_core::{Advice, Audience, Hint, HintSource};

use crate::field::{MILLIS, Malformed, decimal, digits, single, trim};
use crate::headers::{
    GRPC_RETRY_PUSHBACK_MS, RELENT_TICKET, RETRY_AFTER_MS, STRIPE_SHOULD_RETRY, X_AMZ_RETRY_AFTER,
    X_MS_RETRY_AFTER_MS, X_SHOULD_RETRY,
};
use crate::no_retry_mark::{self, Mark};
use crate::rate_limit::{XRateLimitReset, rate_limit, x_rate_limit_reset};
use crate::retry_after;

pub use write::set_hint;

/// The headers with `true` or `false`, do retry or do not.
static ADVICE: [HeaderName; 2] = [X_SHOULD_RETRY, STRIPE_SHOULD_RETRY];

/// The headers with a delay in milliseconds, in order of precedence.
static MILLISECONDS: [HeaderName; 3] = [RETRY_AFTER_MS, X_MS_RETRY_AFTER_MS, X_AMZ_RETRY_AFTER];

/// How to interpret headers whose meaning differs between vendors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct HintOptions {
    /// The meaning of `X-RateLimit-Reset`. Off by default.
    pub x_rate_limit_reset: XRateLimitReset,
}

/// Reads the server hint of a response: its delay and retry advice.
///
/// Precedence: "do not retry" > delays finer than a second > `Retry-After` > reset of a rate limit. The first
/// well-formed header counts. Malformed headers are ignored, and [`Hint::malformed`] names the first of them.
/// `now` is the local time, used for dates only when the response has no usable `Date`. Values saturate.
///
/// | header | read as |
/// |---|---|
/// | `relent-mark` | `exhausted`: do not retry. `overloaded`: no hint, but the failure kind that [`classify`](crate::classify) returns |
/// | `x-should-retry`, `Stripe-Should-Retry` | `true` (do retry) or `false` (do not retry), in any case; of several, one `false` decides |
/// | `grpc-retry-pushback-ms` | int32 milliseconds; negative, unreadable or repeated: do not retry (gRFC A6) |
/// | `grpc-status-details-bin` | the delay of a `google.rpc.RetryInfo`, with the feature `grpc` |
/// | `retry-after-ms`, `x-ms-retry-after-ms`, `x-amz-retry-after` | milliseconds, whole or with decimals such as `1500.5` |
/// | `Retry-After` | seconds or an HTTP date (see [`retry_after`](crate::retry_after)) |
/// | `RateLimit` | the longest reset time `t` of the limits that have no quota left (`r=0`) |
/// | `X-RateLimit-Reset` | only if [`HintOptions`] declares its meaning, and not if `X-RateLimit-Remaining` is above zero |
/// | `relent-ticket` | `true`, in any case: the delay is a slot reserved for this caller (a ticket). Ignored for the reset of a rate limit, which all callers share |
///
/// A delay without a ticket is [shared](Audience::Shared): each caller adds random jitter, a share of the delay set by
/// the policy's [`retry_after_jitter`](relent_core::Policy::retry_after_jitter).
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use relent_core::HintSource;
/// use relent_http::{HintOptions, hint};
///
/// let mut headers = http::HeaderMap::new();
/// headers.insert("retry-after", "2".parse()?);
/// headers.insert("retry-after-ms", "1500".parse()?);
///
/// let hint = hint(&headers, SystemTime::now(), &HintOptions::default());
/// assert_eq!(hint.delay(), Some(Duration::from_millis(1500)));
/// assert_eq!(hint.source, HintSource::header("retry-after-ms"));
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
#[must_use]
pub fn hint(headers: &HeaderMap, now: SystemTime, options: &HintOptions) -> Hint {
    hint_with_details(headers, now, options, || {
        #[cfg(feature = "grpc")]
        return crate::grpc::details::delay(headers);
        #[cfg(not(feature = "grpc"))]
        Ok(None)
    })
}

/// Like [`hint`], with the delay from the details of a gRPC status, which some clients remove from the headers.
pub(crate) fn hint_with_details(
    headers: &HeaderMap,
    now: SystemTime,
    options: &HintOptions,
    details: impl FnOnce() -> Result<Option<Duration>, Malformed>,
) -> Hint {
    let mut read = HintReader {
        headers,
        hint: Hint::NONE,
    };
    read.mark();
    for name in &ADVICE {
        read.advice(name, HintSource::header(name.as_str()));
    }
    read.pushback();
    read.delay(source::GRPC_RETRY_INFO, details);
    for name in &MILLISECONDS {
        let millis = || single(headers, name, |value| decimal(value, MILLIS));
        read.delay(HintSource::header(name.as_str()), millis);
    }
    read.delay(source::RETRY_AFTER, || retry_after::delay(headers, now));
    read.delay(source::RATE_LIMIT, || rate_limit(headers));
    read.delay(source::X_RATE_LIMIT_RESET, || {
        x_rate_limit_reset(headers, now, options.x_rate_limit_reset)
    });
    read.ticket();
    read.hint
}

struct HintReader<'h> {
    headers: &'h HeaderMap,
    hint: Hint,
}

impl HintReader<'_> {
    fn malformed(&mut self, source: HintSource) {
        self.hint.malformed.get_or_insert(source);
    }

    /// Records "do not retry", which overrides every other hint.
    fn refuse(&mut self, source: HintSource) {
        if self.hint.advice == Advice::DoNotRetry {
            return;
        }
        let malformed = self.hint.malformed;
        self.hint = Hint::do_not_retry().from_source(source);
        self.hint.malformed = malformed;
    }

    fn mark(&mut self) {
        if no_retry_mark::is_malformed(self.headers) {
            self.malformed(source::RELENT_MARK);
        }
        if Mark::read(self.headers) == Some(Mark::Exhausted) {
            self.refuse(source::RELENT_MARK);
        }
    }

    fn advice(&mut self, name: &HeaderName, source: HintSource) {
        for value in self.headers.get_all(name) {
            let value = trim(value.as_bytes());
            if value.eq_ignore_ascii_case(b"false") {
                self.refuse(source);
            } else if !value.eq_ignore_ascii_case(b"true") {
                self.malformed(source);
            } else if self.hint.advice == Advice::None {
                self.hint = self.hint.with_advice(Advice::DoRetry).from_source(source);
            }
        }
    }

    fn pushback(&mut self) {
        const SOURCE: HintSource = source::GRPC_PUSHBACK;
        let mut values = self.headers.get_all(GRPC_RETRY_PUSHBACK_MS).iter();
        let Some(value) = values.next() else {
            return;
        };
        let value = trim(value.as_bytes());
        let negative = value.first() == Some(&b'-');
        let millis = digits(value.strip_prefix(b"-").unwrap_or(value));
        match millis.map(i32::try_from) {
            Ok(Ok(millis)) if !negative && values.next().is_none() => {
                self.delay(SOURCE, || {
                    Ok(Some(Duration::from_millis(u64::from(
                        millis.unsigned_abs(),
                    ))))
                });
            }
            Ok(Ok(_)) if negative => self.refuse(SOURCE),
            _ => {
                self.malformed(SOURCE);
                self.refuse(SOURCE);
            }
        }
    }

    /// Reads whether the delay is reserved for this caller or shared by many.
    fn ticket(&mut self) {
        let parse = |value: &[u8]| match value {
            value if value.eq_ignore_ascii_case(b"true") => Ok(true),
            value if value.eq_ignore_ascii_case(b"false") => Ok(false),
            _ => Err(Malformed),
        };
        match single(self.headers, &RELENT_TICKET, parse) {
            Err(Malformed) => self.malformed(source::RELENT_TICKET),
            Ok(Some(true)) if self.hint.delay().is_some() => {
                self.hint.audience = match self.hint.source {
                    source::RATE_LIMIT | source::X_RATE_LIMIT_RESET => Audience::Shared,
                    source::RETRY_AFTER => Audience::TicketSeconds,
                    _ => Audience::TicketMillis,
                };
            }
            Ok(_) => {}
        }
    }

    /// Takes the delay, unless a header of higher precedence was found.
    fn delay(
        &mut self,
        source: HintSource,
        read: impl FnOnce() -> Result<Option<Duration>, Malformed>,
    ) {
        if self.hint.advice == Advice::DoNotRetry || self.hint.delay().is_some() {
            return;
        }
        match read() {
            Ok(None) => {}
            Err(Malformed) => self.malformed(source),
            Ok(Some(delay)) => {
                let (advice, malformed) = (self.hint.advice, self.hint.malformed);
                self.hint = Hint::after(delay).from_source(source).with_advice(advice);
                self.hint.malformed = malformed;
            }
        }
    }
}

/// Whether the response itself asks for a delay. A quota's state does not: a gateway adds it to responses of a
/// server that has already acted.
pub(crate) fn asks_for_delay(hint: &Hint) -> bool {
    hint.delay().is_some()
        && !matches!(hint.source, source::RATE_LIMIT | source::X_RATE_LIMIT_RESET)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::headers::{RATELIMIT, RELENT_MARK, RETRY_AFTER, X_RATELIMIT_RESET};

    const OPTIONS: HintOptions = HintOptions {
        x_rate_limit_reset: XRateLimitReset::DelaySeconds,
    };

    fn of(fields: &[(HeaderName, &str)]) -> Hint {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, value.parse().unwrap());
        }
        hint(&headers, UNIX_EPOCH, &OPTIONS)
    }

    fn millis(millis: u64, source: HintSource) -> Hint {
        Hint::after(Duration::from_millis(millis)).from_source(source)
    }

    /// Delay headers in order of precedence.
    fn delays() -> Vec<(HeaderName, &'static str, Hint)> {
        let pushback = millis(10, source::GRPC_PUSHBACK);
        let milliseconds = MILLISECONDS.iter().map(|name| {
            let delay = Hint::after(Duration::from_micros(1_500_500));
            let source = HintSource::header(name.as_str());
            (name.clone(), "1500.5", delay.from_source(source))
        });
        let mut delays = vec![(GRPC_RETRY_PUSHBACK_MS, "10", pushback)];
        delays.extend(milliseconds);
        delays.extend([
            (RETRY_AFTER, "4", millis(4000, source::RETRY_AFTER)),
            (
                RATELIMIT,
                r#""burst";r=0;t=5"#,
                millis(5000, source::RATE_LIMIT),
            ),
            (
                X_RATELIMIT_RESET,
                "6",
                millis(6000, source::X_RATE_LIMIT_RESET),
            ),
        ]);
        delays
    }

    #[test]
    fn milliseconds_outrank_retry_after_which_outranks_a_reset() {
        let delays = delays();
        for first in 0..delays.len() {
            let fields: Vec<_> = delays[first..]
                .iter()
                .rev()
                .map(|(name, value, _)| (name.clone(), *value))
                .collect();
            assert_eq!(of(&fields), delays[first].2, "{fields:?}");
        }
        assert_eq!(of(&[]), Hint::NONE);
    }

    #[test]
    fn do_not_retry_outranks_every_delay() {
        for (refusal, source) in [
            (
                (X_SHOULD_RETRY, "false"),
                HintSource::header("x-should-retry"),
            ),
            (
                (STRIPE_SHOULD_RETRY, "False"),
                HintSource::header("stripe-should-retry"),
            ),
            ((GRPC_RETRY_PUSHBACK_MS, "-1"), source::GRPC_PUSHBACK),
            ((RELENT_MARK, "exhausted"), source::RELENT_MARK),
        ] {
            for (name, value, _) in delays().into_iter().skip(1) {
                let fields = [(name, value), refusal.clone()];
                assert_eq!(
                    of(&fields),
                    Hint::do_not_retry().from_source(source),
                    "{fields:?}"
                );
            }
        }
    }

    #[test]
    fn one_do_not_retry_outranks_any_do_retry() {
        for fields in [
            [(X_SHOULD_RETRY, "true"), (X_SHOULD_RETRY, "false")],
            [(X_SHOULD_RETRY, "false"), (X_SHOULD_RETRY, "true")],
            [(X_SHOULD_RETRY, "false"), (STRIPE_SHOULD_RETRY, "true")],
            [(X_SHOULD_RETRY, "true"), (STRIPE_SHOULD_RETRY, "false")],
            [(X_SHOULD_RETRY, "true"), (GRPC_RETRY_PUSHBACK_MS, "-1")],
            [(X_SHOULD_RETRY, "false"), (GRPC_RETRY_PUSHBACK_MS, "5")],
            [(X_SHOULD_RETRY, "true"), (RELENT_MARK, "exhausted")],
            [(GRPC_RETRY_PUSHBACK_MS, "5"), (RELENT_MARK, "exhausted")],
        ] {
            assert_eq!(of(&fields).advice, Advice::DoNotRetry, "{fields:?}");
            assert_eq!(of(&fields).delay(), None, "{fields:?}");
        }
    }

    #[test]
    fn do_retry_goes_with_a_delay() {
        assert_eq!(
            of(&[(X_SHOULD_RETRY, " TRUE ")]),
            Hint::do_retry().from_source(HintSource::header("x-should-retry")),
        );
        assert_eq!(
            of(&[(STRIPE_SHOULD_RETRY, "true"), (RETRY_AFTER, "4")]),
            millis(4000, source::RETRY_AFTER).with_advice(Advice::DoRetry),
        );
    }

    #[test]
    fn a_malformed_header_is_ignored_noted_and_the_next_is_read() {
        let plain = ADVICE.iter().chain(&MILLISECONDS);
        let plain = plain.map(|name| (name.clone(), HintSource::header(name.as_str())));
        for (name, source) in plain.chain([
            (RELENT_MARK, source::RELENT_MARK),
            (RETRY_AFTER, source::RETRY_AFTER),
            (RATELIMIT, source::RATE_LIMIT),
        ]) {
            for malformed in ["", "soon", "-5", "+5", "1e300", "inf"] {
                // A lone word is a well-formed list, an empty field an empty one.
                if name == RATELIMIT && matches!(malformed, "" | "soon" | "-5" | "1e300" | "inf") {
                    continue;
                }
                assert_eq!(
                    of(&[(name.clone(), malformed), (X_RATELIMIT_RESET, "6")]),
                    millis(6000, source::X_RATE_LIMIT_RESET).with_malformed(source),
                    "{name}: {malformed}",
                );
            }
        }
        assert_eq!(
            of(&[
                (RETRY_AFTER_MS, "x"),
                (RETRY_AFTER, "x"),
                (X_RATELIMIT_RESET, "x")
            ]),
            Hint::NONE.with_malformed(HintSource::header("retry-after-ms")),
        );
    }

    #[test]
    fn a_pushback_that_cannot_be_read_means_do_not_retry() {
        let refused = Hint::do_not_retry().from_source(source::GRPC_PUSHBACK);
        assert_eq!(of(&[(GRPC_RETRY_PUSHBACK_MS, "-1")]), refused);
        assert_eq!(of(&[(GRPC_RETRY_PUSHBACK_MS, "-0")]), refused);
        for unreadable in ["", "soon", "1.5", "+5", "--1", "2147483648", "-", "1 2"] {
            assert_eq!(
                of(&[(GRPC_RETRY_PUSHBACK_MS, unreadable)]),
                refused.with_malformed(source::GRPC_PUSHBACK),
                "{unreadable}",
            );
        }
        assert_eq!(
            of(&[(GRPC_RETRY_PUSHBACK_MS, "5"), (GRPC_RETRY_PUSHBACK_MS, "5")]),
            refused.with_malformed(source::GRPC_PUSHBACK),
        );
        assert_eq!(
            of(&[(GRPC_RETRY_PUSHBACK_MS, "2147483647")]),
            millis(2_147_483_647, source::GRPC_PUSHBACK),
        );
    }

    #[test]
    fn a_delay_is_shared_unless_it_is_marked_as_a_ticket() {
        for (name, value, hint) in delays() {
            let ticket = match hint.source {
                source::RATE_LIMIT | source::X_RATE_LIMIT_RESET => Audience::Shared,
                source::RETRY_AFTER => Audience::TicketSeconds,
                _ => Audience::TicketMillis,
            };
            let read = |said: &str| of(&[(name.clone(), value), (RELENT_TICKET, said)]);
            assert_eq!(of(&[(name.clone(), value)]).audience, Audience::Shared);
            assert_eq!(read("true"), hint.for_audience(ticket));
            assert_eq!(read(" True"), hint.for_audience(ticket));
            assert_eq!(read("false"), hint);
            for malformed in ["", "1", "?1", "true, true"] {
                assert_eq!(read(malformed), hint.with_malformed(source::RELENT_TICKET));
            }
        }
        // A ticket without a delay has no meaning.
        assert_eq!(of(&[(RELENT_TICKET, "true")]), Hint::NONE);
    }

    #[test]
    fn a_hint_delay_too_large_saturates() {
        let longest = Duration::from_nanos(u64::MAX);
        for name in [
            RETRY_AFTER_MS,
            X_MS_RETRY_AFTER_MS,
            RETRY_AFTER,
            X_RATELIMIT_RESET,
        ] {
            assert_eq!(of(&[(name, "99999999999999999999")]).delay(), Some(longest));
        }
    }
}
