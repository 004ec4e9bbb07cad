//! Writes a [`Hint`] to the headers of a response.

use http::{HeaderMap, HeaderValue};
use relent_core::{Advice, Audience, Hint};

use super::{ADVICE, MILLISECONDS};
use crate::headers::{RELENT_TICKET, RETRY_AFTER, X_SHOULD_RETRY};
use crate::retry_after;

/// Writes a hint so that [`hint`](crate::hint) reads it: never a shorter delay, and at most the rounding longer.
///
/// | hint | written |
/// |---|---|
/// | a delay for all callers ([`Shared`](Audience::Shared)) | `Retry-After` |
/// | a ticket in seconds | `Retry-After`, `relent-ticket: true` |
/// | a ticket in milliseconds | `retry-after-ms`, `relent-ticket: true`, and `Retry-After` for clients that support only seconds |
/// | do retry | `x-should-retry: true`, beside the delay |
/// | do not retry | `x-should-retry: false`, without a delay |
/// | nothing | nothing |
///
/// Existing hint headers are removed first, whatever the hint, so that the hint of a service below is not repeated.
/// Marks, quotas and gRPC fields stay. When shedding load, write a [`Mark`](crate::Mark) as well, and for a gRPC
/// call [`grpc::set_pushback`](crate::grpc::set_pushback).
///
/// ```
/// use std::time::Duration;
/// use relent_core::{Audience, Hint};
/// use relent_http::set_hint;
///
/// let mut headers = http::HeaderMap::new();
/// let ticket = Hint::after(Duration::from_millis(1500)).for_audience(Audience::TicketMillis);
/// set_hint(&mut headers, &ticket);
/// assert_eq!(headers["retry-after-ms"], "1500");
/// assert_eq!(headers["retry-after"], "2");
/// assert_eq!(headers["relent-ticket"], "true");
/// ```
pub fn set_hint(headers: &mut HeaderMap, hint: &Hint) {
    let others = [RETRY_AFTER, RELENT_TICKET];
    for name in ADVICE.iter().chain(&MILLISECONDS).chain(&others) {
        headers.remove(name);
    }
    let advice = match hint.advice {
        Advice::DoNotRetry => {
            headers.insert(X_SHOULD_RETRY, HeaderValue::from_static("false"));
            return;
        }
        Advice::DoRetry => Some(HeaderValue::from_static("true")),
        Advice::None => None,
    };
    if let Some(advice) = advice {
        headers.insert(X_SHOULD_RETRY, advice);
    }
    let Some(delay) = hint.delay() else {
        return;
    };
    retry_after::set(headers, delay);
    if hint.audience == Audience::TicketMillis {
        retry_after::set_millis(headers, delay);
    }
    if hint.audience != Audience::Shared {
        headers.insert(RELENT_TICKET, HeaderValue::from_static("true"));
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;
    use proptest::sample::select;

    use http::HeaderName;

    use super::*;
    use crate::{HintOptions, hint};

    /// Boundary values of the written units, and arbitrary delays.
    fn delays() -> impl Strategy<Value = Duration> {
        prop_oneof![
            Just(Duration::ZERO),
            Just(Duration::from_nanos(1)),
            Just(Duration::from_nanos(999_999_999)),
            Just(Duration::from_secs(1)),
            Just(Duration::MAX),
            (0..100_000_u64).prop_map(Duration::from_millis),
            any::<Duration>(),
        ]
    }

    proptest! {
        #[test]
        fn a_written_hint_is_read_back_and_never_early(
            delay in prop::option::of(delays()),
            audience in select(vec![Audience::Shared, Audience::TicketSeconds, Audience::TicketMillis]),
            advice in select(vec![Advice::None, Advice::DoNotRetry, Advice::DoRetry]),
            before: bool,
        ) {
            let mut headers = HeaderMap::new();
            if before {
                let named = |names: &'static [HeaderName], value| names.iter().map(move |name| (name.clone(), value));
                for (name, value) in named(&MILLISECONDS, "1").chain(named(&ADVICE, "false")).chain([
                    (RETRY_AFTER, "1"), (RETRY_AFTER, "2"), (RELENT_TICKET, "true"),
                ]) {
                    headers.append(name, HeaderValue::from_static(value));
                }
            }
            let said = delay.map_or(Hint::NONE, Hint::after).for_audience(audience).with_advice(advice);
            set_hint(&mut headers, &said);
            let read = hint(&headers, UNIX_EPOCH, &HintOptions::default());
            prop_assert_eq!(read.advice, advice);
            prop_assert_eq!(read.malformed, None);
            let (Some(meant), true) = (said.delay(), advice != Advice::DoNotRetry) else {
                prop_assert_eq!(read.delay(), None);
                return Ok(());
            };
            prop_assert_eq!(read.audience, audience);
            let read = read.delay().unwrap();
            prop_assert!(!read.is_zero() && read >= meant);
            let unit = match audience {
                Audience::TicketMillis => Duration::from_millis(1),
                _ => Duration::from_secs(1),
            };
            prop_assert!(read - meant <= unit, "{:?} for {:?}", read, meant);
        }

        #[test]
        fn fields_in_seconds_and_milliseconds_are_read_back_and_never_early(delay in delays()) {
            let meant = delay.min(Duration::from_nanos(u64::MAX));
            for (set, unit) in [
                (retry_after::set as fn(&mut HeaderMap, Duration), Duration::from_secs(1)),
                (retry_after::set_millis, Duration::from_millis(1)),
            ] {
                let mut headers = HeaderMap::new();
                set(&mut headers, delay);
                let read = hint(&headers, UNIX_EPOCH, &HintOptions::default()).delay().unwrap();
                prop_assert!(!read.is_zero() && read >= meant && read - meant <= unit);
            }
        }
    }
}
