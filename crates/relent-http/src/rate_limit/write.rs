//! Writes `RateLimit` and `RateLimit-Policy` for a server.

use std::fmt;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use relent_core::Instant;
use relent_core::admission::{Limiter, LimiterConfig};
use sfv::{Integer, ListSerializer, StringRef, key_ref};

use crate::field::{SECONDS, rounded_up};
use crate::headers::{RATELIMIT, RATELIMIT_POLICY};

const SECOND: Duration = Duration::from_secs(1);

/// The largest integer of a structured field.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// A quota of a server, and how much of it is left (draft-ietf-httpapi-ratelimit-headers-11).
///
/// Numbers are written up to 999999999999999, and times in whole seconds, rounded up.
///
/// ```
/// use std::time::Duration;
/// use relent_http::rate_limit::{Quota, set_rate_limit};
///
/// let daily = Quota {
///     window: Some(Duration::from_secs(86_400)),
///     effective_window: Some(Duration::from_millis(1500)),
///     ..Quota::new("daily", 1000, 0)
/// };
/// let mut headers = http::HeaderMap::new();
/// set_rate_limit(&mut headers, &[daily])?;
/// assert_eq!(headers["ratelimit-policy"], r#""daily";q=1000;w=86400"#);
/// assert_eq!(headers["ratelimit"], r#""daily";r=0;t=2"#);
/// # Ok::<(), relent_http::rate_limit::InvalidQuotaName>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota<'q> {
    /// The name of the quota policy: ASCII characters from the space to `~`.
    pub name: &'q str,
    /// `q`: the allotment in each window.
    pub quota: u64,
    /// `qu`: the unit of the quota, if not `requests`. The draft has `content-bytes` and `concurrent-requests`, and
    /// others can be registered. Characters as in the name.
    pub unit: Option<&'q str>,
    /// `w`: the window, if the quota has one; at least 1 s.
    pub window: Option<Duration>,
    /// `r`: the amount left.
    pub available: u64,
    /// `t`: the time within which no more than the amount left can be used. With nothing left, clients wait for this
    /// time.
    pub effective_window: Option<Duration>,
    /// `pk`: the partition of the server that the quota is for, if there are several.
    pub partition: Option<&'q [u8]>,
}

impl<'q> Quota<'q> {
    /// Creates a quota of this many requests, of which `available` are left.
    #[must_use]
    pub const fn new(name: &'q str, quota: u64, available: u64) -> Self {
        Self {
            name,
            quota,
            unit: None,
            window: None,
            available,
            effective_window: None,
            partition: None,
        }
    }

    /// The quota of a limiter with this config at `now`, for callers that hold no ticket.
    ///
    /// The window is that of the config in whole seconds, and the quota is what the rate admits in it. `available` is
    /// what the limiter admits now, so a client that sends no more than that is not rejected. If that is nothing, the
    /// effective window is the time until it admits something.
    ///
    /// ```
    /// use std::time::Duration;
    /// use relent_core::Instant;
    /// use relent_core::admission::{Limiter, LimiterConfig};
    /// use relent_http::rate_limit::{Quota, set_rate_limit};
    ///
    /// let config = LimiterConfig { burst: 1, ..LimiterConfig::new(1, Duration::from_secs(60)) };
    /// let mut limiter = Limiter::new(&config)?;
    /// limiter.admit(Instant::ORIGIN, Some(1), 1);
    ///
    /// let soon = Instant::ORIGIN.saturating_add(Duration::from_millis(500));
    /// let quota = Quota::of("per-minute", &config, &mut limiter, soon);
    /// assert_eq!((quota.quota, quota.window), (1, Some(Duration::from_secs(60))));
    /// assert_eq!(quota.available, 0);
    /// assert_eq!(quota.effective_window, Some(Duration::from_millis(59_500)));
    /// # Ok::<(), relent_core::PolicyError>(())
    /// ```
    #[must_use]
    pub fn of(name: &'q str, config: &LimiterConfig, limiter: &mut Limiter, now: Instant) -> Self {
        let available = limiter.available(now, Duration::ZERO);
        let until = limiter.until_available(now, available.saturating_add(1));
        Self::left(name, config, available, until)
    }

    /// The quota of a remote limiter, which admits `available` attempts now, and one more after `until`.
    #[must_use]
    pub fn left(name: &'q str, config: &LimiterConfig, available: u32, until: Duration) -> Self {
        let window = rounded_up(config.per, SECONDS).max(1);
        let quota = u128::from(config.rate) * u128::from(window) * u128::from(SECONDS)
            / config.per.as_nanos().max(1);
        let quota = u64::try_from(quota).unwrap_or(u64::MAX);
        let effective = match available {
            0 => until,
            // Within whole seconds, no more than that can be had: rounded down.
            _ => Duration::from_secs(until.as_secs()).max(SECOND),
        };
        Self {
            window: Some(Duration::from_secs(window)),
            effective_window: Some(effective),
            ..Self::new(name, quota, u64::from(available).min(quota))
        }
    }
}

/// Error: the name or the unit of a quota has characters that a structured field cannot contain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidQuotaName {
    name: String,
}

impl fmt::Display for InvalidQuotaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the name or unit {:?} of a quota has characters other than those of ASCII from the space to `~`",
            self.name
        )
    }
}

impl std::error::Error for InvalidQuotaName {}

/// Writes `RateLimit-Policy` and `RateLimit`, replacing existing ones. Without a quota it removes both.
///
/// The fields may be on every response. A rejection also needs `Retry-After`, which takes precedence. The fields must
/// not be in trailers.
///
/// # Errors
/// [`InvalidQuotaName`]; the headers are then unchanged.
pub fn set_rate_limit(
    headers: &mut HeaderMap,
    quotas: &[Quota<'_>],
) -> Result<(), InvalidQuotaName> {
    let (mut policies, mut limits) = (ListSerializer::new(), ListSerializer::new());
    for quota in quotas {
        let name = text(quota.name)?;
        let unit = quota.unit.map(text).transpose()?;
        let mut policy = policies
            .bare_item(name)
            .parameter(key_ref("q"), integer(quota.quota));
        let mut limit = limits
            .bare_item(name)
            .parameter(key_ref("r"), integer(quota.available));
        if let Some(unit) = unit {
            policy = policy.parameter(key_ref("qu"), unit);
        }
        if let Some(window) = quota.window {
            policy = policy.parameter(key_ref("w"), integer(rounded_up(window, SECONDS).max(1)));
        }
        if let Some(window) = quota.effective_window {
            limit = limit.parameter(key_ref("t"), integer(rounded_up(window, SECONDS)));
        }
        if let Some(partition) = quota.partition {
            policy = policy.parameter(key_ref("pk"), partition);
            limit = limit.parameter(key_ref("pk"), partition);
        }
        let _ = (policy.finish(), limit.finish());
    }
    for (name, list) in [
        (RATELIMIT_POLICY, policies.finish()),
        (RATELIMIT, limits.finish()),
    ] {
        // A structured field is visible ASCII.
        match list.and_then(|list| HeaderValue::try_from(list).ok()) {
            Some(value) => headers.insert(name, value),
            None => headers.remove(name),
        };
    }
    Ok(())
}

fn text(text: &str) -> Result<&StringRef, InvalidQuotaName> {
    StringRef::from_str(text).map_err(|_| InvalidQuotaName {
        name: text.to_owned(),
    })
}

/// Saturates.
fn integer(number: u64) -> Integer {
    Integer::try_from(number.min(MAX_INTEGER)).unwrap_or(Integer::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use relent_core::admission::Verdict;
    use sfv::{BareItem, Item, List, ListEntry, Parser};

    use super::*;
    use crate::rate_limit::rate_limit;

    fn written(quotas: &[Quota<'_>]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        set_rate_limit(&mut headers, quotas).unwrap();
        headers
    }

    fn items(headers: &HeaderMap, name: http::HeaderName) -> Vec<Item> {
        let list: List = Parser::new(headers[name].as_bytes()).parse().unwrap();
        let item = |entry| match entry {
            ListEntry::Item(item) => item,
            ListEntry::InnerList(list) => panic!("{list:?}"),
        };
        list.into_iter().map(item).collect()
    }

    #[test]
    fn rate_limit_fields_match_the_draft() {
        let burst = Quota {
            window: Some(Duration::from_secs(60)),
            effective_window: Some(Duration::from_secs(30)),
            ..Quota::new("burst", 100, 50)
        };
        let user = Quota {
            partition: Some(b"trial1213"),
            ..Quota::new("a \"user\"", 999, 7)
        };
        let headers = written(&[burst, user]);
        assert_eq!(
            headers[RATELIMIT_POLICY],
            r#""burst";q=100;w=60, "a \"user\"";q=999;pk=:dHJpYWwxMjEz:"#
        );
        assert_eq!(
            headers[RATELIMIT],
            r#""burst";r=50;t=30, "a \"user\"";r=7;pk=:dHJpYWwxMjEz:"#
        );
    }

    #[test]
    fn a_quota_with_another_unit_writes_it() {
        let traffic = Quota {
            unit: Some("content-bytes"),
            ..Quota::new("traffic", 1 << 20, 7)
        };
        let headers = written(&[traffic]);
        let policy = r#""traffic";q=1048576;qu="content-bytes""#;
        assert_eq!(headers[RATELIMIT_POLICY], policy);
        assert_eq!(headers[RATELIMIT], r#""traffic";r=7"#);
        let unit = Some("\u{fc}");
        let quota = Quota { unit, ..traffic };
        assert!(set_rate_limit(&mut HeaderMap::new(), &[quota]).is_err());
    }

    #[test]
    fn an_invalid_quota_name_changes_no_header() {
        let mut headers = written(&[Quota::new("a", 1, 1)]);
        let before = headers.clone();
        for name in ["\u{fc}", "a\nb", "\u{7f}", "a\0"] {
            let error = set_rate_limit(
                &mut headers,
                &[Quota::new("b", 2, 2), Quota::new(name, 1, 1)],
            );
            assert!(error.unwrap_err().to_string().contains("ASCII"), "{name:?}");
            assert_eq!(headers, before);
        }
        set_rate_limit(&mut headers, &[]).unwrap();
        assert!(headers.is_empty(), "no quota, no field");
    }

    #[test]
    fn a_window_is_never_zero() {
        let quota = Quota {
            window: Some(Duration::ZERO),
            ..Quota::new("a", 1, 1)
        };
        assert_eq!(written(&[quota])[RATELIMIT_POLICY], r#""a";q=1;w=1"#);
    }

    proptest! {
        #[test]
        fn a_written_quota_is_read_back_and_never_early(
            name in "[ -~]{0,20}", quota: u64, available in prop_oneof![Just(0), any::<u64>()],
            window: Duration, effective in prop_oneof![
                Just(Duration::MAX), Just(Duration::from_nanos(1)), any::<Duration>(),
            ],
            partition: Vec<u8>,
        ) {
            let headers = written(&[Quota {
                name: &name, quota, available, unit: Some(&name), window: Some(window),
                effective_window: Some(effective), partition: Some(&partition),
            }]);
            let read = rate_limit(&headers).unwrap();
            let effective = effective.min(Duration::from_nanos(u64::MAX));
            if available == 0 {
                let read = read.unwrap();
                prop_assert!(read >= effective && read - effective < Duration::from_secs(1));
            } else {
                prop_assert_eq!(read, None);
            }
            for (field, key, number) in [(RATELIMIT_POLICY, "q", quota), (RATELIMIT, "r", available)] {
                let item = &items(&headers, field)[0];
                prop_assert_eq!(item.bare_item.as_string().map(StringRef::as_str), Some(&*name));
                prop_assert_eq!(&item.params["pk"], &BareItem::ByteSequence(partition.clone()));
                let read = item.params[key].as_integer().map(i64::from).unwrap();
                prop_assert_eq!(read as u64, number.min(MAX_INTEGER));
            }
        }

        /// A limiter admits now what its quota has left. A client that waits for the effective window of an exhausted
        /// quota is admitted.
        #[test]
        fn a_limiter_admits_what_its_quota_announces(
            rate in 1..2000_u32, per in 1..200_000_u64, burst in 1..50_u32, asked in 0..200_u32, later in 0..5000_u64,
        ) {
            let config = LimiterConfig {
                burst, horizon: Duration::ZERO,
                ..LimiterConfig::new(rate, Duration::from_millis(per))
            };
            let mut limiter = Limiter::new(&config).unwrap();
            for _ in 0..asked {
                limiter.admit(Instant::ORIGIN, None, 1);
            }
            let now = Instant::ORIGIN.saturating_add(Duration::from_millis(later));
            let quota = Quota::of("a", &config, &mut limiter, now);
            prop_assert!(quota.quota >= 1 && quota.available <= quota.quota);
            let headers = written(&[quota]);
            let wait = rate_limit(&headers).unwrap().unwrap_or_default();
            let then = now.saturating_add(wait);
            for _ in 0..quota.available.max(1) {
                prop_assert_eq!(limiter.admit(then, None, 1), Verdict::Admitted { ticket: false });
            }
        }
    }
}
