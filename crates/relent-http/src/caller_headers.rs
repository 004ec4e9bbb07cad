//! Headers in which a client describes its call to a server.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use relent_core::admission::Arrival;
use relent_core::{BUCKETS, Criticality};

use crate::field::{Malformed, digits, single, trim};
use crate::grpc::timeout;
use crate::headers::{
    GRPC_PREVIOUS_RPC_ATTEMPTS, RELENT_ATTEMPT, RELENT_CRITICALITY, RELENT_DEADLINE_MS,
    RELENT_HISTOGRAM,
};
use crate::histogram;

/// Attempt number, remaining time and attempt histogram that the client of a request sent, if any.
///
/// A malformed field is treated as absent. The values are unverified claims of the client. They are good enough to
/// shed a retry before a first attempt, or to skip work for a caller that has gone.
///
/// ```
/// use std::time::Duration;
/// use relent_http::CallerContext;
///
/// let request = http::Request::get("/")
///     .header("relent-attempt", "2")
///     .header("relent-deadline-ms", "1500")
///     .header("relent-histogram", "60, 3")
///     .body(())?;
/// let caller = CallerContext::from_headers(request.headers());
/// assert_eq!(caller.attempt, 2);
/// assert_eq!(caller.remaining, Some(Duration::from_millis(1500)));
/// assert_eq!(caller.histogram, Some([60, 3, 0, 0, 0, 0, 0, 0]));
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallerContext {
    /// The attempt number of the request, for [`Arrival::attempt`]. 1 if the client sent none.
    /// Over gRPC, `grpc-previous-rpc-attempts` counts too.
    pub attempt: u32,
    /// The time left until the caller's deadline when it sent the request, in whole milliseconds;
    /// `None` if it sent none. Over gRPC, `grpc-timeout` if that is less.
    pub remaining: Option<Duration>,
    /// How many of the client's calls took 1, 2, …, 7, and 8 or more attempts, for [`Arrival::histogram`].
    /// A client sends it from time to time.
    pub histogram: Option<[u32; BUCKETS]>,
}

impl CallerContext {
    /// Reads the facts from the headers of a request.
    #[must_use]
    pub fn from_headers(headers: &HeaderMap) -> Self {
        if !has_caller_headers(headers) {
            return Self {
                attempt: 1,
                remaining: None,
                histogram: None,
            };
        }
        let number = |name: &HeaderName| single(headers, name, digits).ok().flatten();
        let previous = number(&GRPC_PREVIOUS_RPC_ATTEMPTS).unwrap_or(0);
        let attempt = number(&RELENT_ATTEMPT).unwrap_or(1);
        let attempt = attempt.max(previous.saturating_add(1));
        let deadlines = [remaining(headers), timeout::read(headers)];
        let histogram = single(headers, &RELENT_HISTOGRAM, histogram::parse);
        Self {
            attempt: u32::try_from(attempt).unwrap_or(u32::MAX),
            remaining: deadlines.into_iter().flatten().min(),
            histogram: histogram.ok().flatten(),
        }
    }

    /// Converts the facts to an [`Arrival`] for an admission decision; fields that only the server knows are as in
    /// [`Arrival::FIRST`].
    #[must_use]
    pub const fn arrival(self) -> Arrival {
        Arrival {
            attempt: self.attempt,
            remaining: self.remaining,
            histogram: self.histogram,
            ..Arrival::FIRST
        }
    }

    /// The criticality that the client sent; `None` if it sent none that is readable.
    ///
    /// Any client can claim the highest one: see `overload` of `relent-server` for which clients to trust.
    ///
    /// ```
    /// use relent_core::Criticality;
    /// use relent_http::CallerContext;
    ///
    /// let request = http::Request::get("/").header("relent-criticality", "SHEDDABLE").body(())?;
    /// assert_eq!(CallerContext::criticality(request.headers()), Some(Criticality::Sheddable));
    /// # Ok::<(), http::Error>(())
    /// ```
    #[must_use]
    pub fn criticality(headers: &HeaderMap) -> Option<Criticality> {
        if !has_caller_headers(headers) {
            return None;
        }
        let word = |value: &[u8]| Criticality::parse(trim(value)).ok_or(Malformed);
        single(headers, &RELENT_CRITICALITY, word).ok().flatten()
    }

    /// Writes the rest of the deadline to a request that is made on behalf of the caller, `elapsed` after the
    /// caller's request arrived. A nearer deadline in `headers` stays.
    ///
    /// A client with `cross_layer` then spends no more than that on all its attempts.
    ///
    /// ```
    /// use std::time::Duration;
    /// use relent_http::CallerContext;
    ///
    /// let above = http::Request::get("/").header("relent-deadline-ms", "1500").body(())?;
    /// let caller = CallerContext::from_headers(above.headers());
    /// let mut below = http::Request::get("/").body(())?;
    /// caller.pass_on(Duration::from_millis(200), below.headers_mut());
    /// assert_eq!(below.headers()["relent-deadline-ms"], "1300");
    /// # Ok::<(), http::Error>(())
    /// ```
    pub fn pass_on(&self, elapsed: Duration, headers: &mut HeaderMap) {
        let Some(remaining) = self.remaining else {
            return;
        };
        let left = remaining.saturating_sub(elapsed);
        let nearer = crate::caller_headers::remaining(headers).is_some_and(|nearer| nearer <= left);
        if !nearer {
            set_remaining(headers, left);
        }
    }
}

/// Whether any such header may be present: one scan of the names costs less than a search for each.
fn has_caller_headers(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| {
        let name = name.as_str();
        name.starts_with("relent-") || name.starts_with("grpc-")
    })
}

/// The deadline in the headers of a request; `None` if several contradict each other.
pub(crate) fn remaining(headers: &HeaderMap) -> Option<Duration> {
    let millis = single(headers, &RELENT_DEADLINE_MS, digits);
    millis.ok().flatten().map(Duration::from_millis)
}

/// Writes the deadline, rounded down.
pub(crate) fn set_remaining(headers: &mut HeaderMap, remaining: Duration) {
    let millis = u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX);
    headers.insert(RELENT_DEADLINE_MS, HeaderValue::from(millis));
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_FACTS: CallerContext = CallerContext {
        attempt: 1,
        remaining: None,
        histogram: None,
    };

    fn of(fields: &[(HeaderName, &str)]) -> CallerContext {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, value.parse().unwrap());
        }
        CallerContext::from_headers(&headers)
    }

    #[test]
    fn a_malformed_caller_field_is_treated_as_absent() {
        assert_eq!(of(&[]), NO_FACTS);
        for value in ["", "x", "-1", "+1", "1.5", "1 2", "1;2", "\u{b2}"] {
            for name in [RELENT_ATTEMPT, RELENT_DEADLINE_MS, RELENT_HISTOGRAM] {
                assert_eq!(of(&[(name.clone(), value)]), NO_FACTS, "{name}: {value}");
            }
        }
        for name in [RELENT_ATTEMPT, RELENT_DEADLINE_MS, RELENT_HISTOGRAM] {
            assert_eq!(of(&[(name.clone(), "3"), (name, "4")]), NO_FACTS);
        }
    }

    #[test]
    fn grpc_attempt_and_timeout_fields_are_read() {
        let grpc = of(&[
            (GRPC_PREVIOUS_RPC_ATTEMPTS, "2"),
            (crate::headers::GRPC_TIMEOUT, "300m"),
        ]);
        assert_eq!(
            (grpc.attempt, grpc.remaining),
            (3, Some(Duration::from_millis(300)))
        );
        let both = of(&[
            (GRPC_PREVIOUS_RPC_ATTEMPTS, "1"),
            (RELENT_ATTEMPT, "4"),
            (crate::headers::GRPC_TIMEOUT, "5S"),
            (RELENT_DEADLINE_MS, "20"),
        ]);
        assert_eq!(
            (both.attempt, both.remaining),
            (4, Some(Duration::from_millis(20)))
        );
        for malformed in ["x", "-1", ""] {
            assert_eq!(of(&[(GRPC_PREVIOUS_RPC_ATTEMPTS, malformed)]), NO_FACTS);
            assert_eq!(of(&[(crate::headers::GRPC_TIMEOUT, malformed)]), NO_FACTS);
        }
    }

    #[test]
    fn a_criticality_is_one_word_or_none() {
        let criticality = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(RELENT_CRITICALITY, value.parse().unwrap());
            }
            CallerContext::criticality(&headers)
        };
        assert_eq!(
            criticality(&[" critical_PLUS "]),
            Some(Criticality::CriticalPlus)
        );
        for unknown in [&[][..], &[""], &["CRITICAL+"], &["CRITICAL", "SHEDDABLE"]] {
            assert_eq!(criticality(unknown), None, "{unknown:?}");
        }
    }

    #[test]
    fn one_malformed_field_does_not_spoil_the_others() {
        let caller = of(&[(RELENT_ATTEMPT, "3"), (RELENT_DEADLINE_MS, "soon")]);
        assert_eq!(
            caller,
            CallerContext {
                attempt: 3,
                ..NO_FACTS
            }
        );
    }

    #[test]
    fn numbers_saturate_and_the_first_attempt_is_1() {
        assert_eq!(of(&[(RELENT_ATTEMPT, "0")]).attempt, 1);
        assert_eq!(
            of(&[(RELENT_ATTEMPT, "99999999999999999999")]).attempt,
            u32::MAX
        );
        let latest = of(&[(RELENT_DEADLINE_MS, "99999999999999999999")]).remaining;
        assert_eq!(latest, Some(Duration::from_millis(u64::MAX)));
    }

    #[test]
    fn pass_on_keeps_the_nearer_deadline_and_stops_at_zero() {
        let passed = |own: Option<&str>, elapsed| {
            let mut headers = HeaderMap::new();
            if let Some(own) = own {
                headers.insert(RELENT_DEADLINE_MS, own.parse().unwrap());
            }
            let caller = of(&[(RELENT_DEADLINE_MS, "1000")]);
            caller.pass_on(Duration::from_micros(elapsed), &mut headers);
            headers[RELENT_DEADLINE_MS].to_str().unwrap().to_owned()
        };
        assert_eq!(passed(None, 0), "1000");
        assert_eq!(passed(None, 1), "999", "rounded down");
        assert_eq!(passed(None, 2_000_000), "0");
        assert_eq!(passed(Some("500"), 100_000), "500");
        assert_eq!(passed(Some("950"), 100_000), "900");
        assert_eq!(passed(Some("soon"), 0), "1000");
        let mut headers = HeaderMap::new();
        NO_FACTS.pass_on(Duration::ZERO, &mut headers);
        assert!(headers.is_empty());
    }
}
