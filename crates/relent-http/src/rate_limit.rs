//! Time until a quota has something left again: reads `RateLimit` and `X-RateLimit-Reset`.
//! [`set_rate_limit`] writes `RateLimit` and `RateLimit-Policy`.
//!
//! Some servers send these fields on every response. So they are a hint only when the quota is used up, and
//! they never mean that *this* request was rejected. On a response from a cache they describe another
//! client's quota and are not read.

mod write;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use sfv::{BareItem, Item, List, ListEntry, Parser};

use crate::field::{Malformed, SECONDS, decimal, single};
use crate::headers::{AGE, RATELIMIT, X_RATELIMIT_REMAINING, X_RATELIMIT_RESET};
use crate::server_clock;

pub use write::{InvalidQuotaName, Quota, set_rate_limit};

/// The meaning of `X-RateLimit-Reset` at a destination. Vendors disagree, and the number alone does not
/// show it, so the meaning must be declared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum XRateLimitReset {
    /// The default: the field is not read.
    #[default]
    Off,
    /// Seconds from the arrival of the response, such as `30` or `0.25`.
    DelaySeconds,
    /// Seconds since 1970 on the server's clock, such as `1792584000` (GitHub).
    UnixSeconds,
}

/// The delay from `RateLimit` (draft-ietf-httpapi-ratelimit-headers-11): the longest `t`, in seconds,
/// among the policies with nothing left, `r=0`.
///
/// As the draft requires, the whole field is malformed in these cases: it is no structured list, a member is no
/// item, or an `r` or a `t` is negative or no integer.
pub(crate) fn rate_limit(headers: &HeaderMap) -> Result<Option<Duration>, Malformed> {
    if !headers.contains_key(RATELIMIT) || headers.contains_key(AGE) {
        return Ok(None);
    }
    let lines: Vec<&[u8]> = headers
        .get_all(RATELIMIT)
        .into_iter()
        .map(http::HeaderValue::as_bytes)
        .collect();
    let list: List = Parser::new(&lines.join(&b", "[..]))
        .parse()
        .map_err(|_| Malformed)?;
    let mut longest = None;
    for member in &list {
        let ListEntry::Item(policy) = member else {
            return Err(Malformed);
        };
        let (left, window) = (count(policy, "r")?, count(policy, "t")?);
        if left == Some(0) {
            longest = longest.max(window);
        }
    }
    Ok(longest.map(Duration::from_secs))
}

fn count(policy: &Item, parameter: &str) -> Result<Option<u64>, Malformed> {
    match policy.params.get(parameter) {
        None => Ok(None),
        Some(BareItem::Integer(number)) => u64::try_from(i64::from(*number))
            .map(Some)
            .map_err(|_| Malformed),
        Some(_) => Err(Malformed),
    }
}

/// The delay from `X-RateLimit-Reset`, if `X-RateLimit-Remaining` is zero or absent.
pub(crate) fn x_rate_limit_reset(
    headers: &HeaderMap,
    now: SystemTime,
    meaning: XRateLimitReset,
) -> Result<Option<Duration>, Malformed> {
    if meaning == XRateLimitReset::Off || headers.contains_key(AGE) {
        return Ok(None);
    }
    let Some(reset) = single(headers, &X_RATELIMIT_RESET, |value| decimal(value, SECONDS))? else {
        return Ok(None);
    };
    let left = single(headers, &X_RATELIMIT_REMAINING, |value| {
        decimal(value, SECONDS)
    })?;
    if left.is_some_and(|left| !left.is_zero()) {
        return Ok(None);
    }
    if meaning == XRateLimitReset::DelaySeconds {
        return Ok(Some(reset));
    }
    Ok(Some(match UNIX_EPOCH.checked_add(reset) {
        Some(instant) => server_clock::until(instant, server_clock::time(headers, now)),
        None => Duration::MAX,
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::headers::DATE;

    fn map(fields: &[(http::HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    fn ietf(values: &[&str]) -> Result<Option<u64>, Malformed> {
        let fields: Vec<_> = values.iter().map(|value| (RATELIMIT, *value)).collect();
        rate_limit(&map(&fields)).map(|delay| delay.map(|delay| delay.as_secs()))
    }

    #[test]
    fn only_a_quota_that_is_used_up_asks_for_a_delay() {
        assert_eq!(ietf(&[r#""burst";r=0;t=30"#]), Ok(Some(30)));
        assert_eq!(ietf(&[r#""burst";r=50;t=30"#]), Ok(None));
        assert_eq!(ietf(&[r#""burst";r=0"#]), Ok(None));
        assert_eq!(ietf(&[r#""burst";t=30"#]), Ok(None));
        assert_eq!(
            ietf(&[r#""burst";r=0;t=30;pk=:dHJpYWwxMjEzMjM=:;other="x""#]),
            Ok(Some(30))
        );
        assert_eq!(ietf(&[]), Ok(None));
    }

    #[test]
    fn the_longest_reset_of_exhausted_quotas_counts() {
        assert_eq!(
            ietf(&[r#""burst";r=0;t=3, "day";r=0;t=600, "month";r=9;t=9999"#]),
            Ok(Some(600))
        );
        assert_eq!(
            ietf(&[r#""day";r=0;t=600"#, r#""burst";r=0;t=3"#]),
            Ok(Some(600))
        );
    }

    #[test]
    fn a_malformed_rate_limit_is_ignored_as_a_whole() {
        for malformed in [
            "limit=100, remaining=0, reset=30",
            r#""burst";r=0;t=-1"#,
            r#""burst";r=-1;t=30"#,
            r#""burst";r=0;t=1.5"#,
            r#""burst";r=0;t="30""#,
            r#""burst";r=0;t"#,
            r#""burst";r=0;t=9999999999999999"#,
            r#"("burst");r=0;t=30"#,
            r#""burst;r=0;t=30"#,
            r#""day";r=0;t=30, "burst";r=0;t=x"#,
        ] {
            assert_eq!(ietf(&[malformed]), Err(Malformed), "{malformed}");
        }
    }

    #[test]
    fn quotas_are_not_read_from_cached_responses() {
        assert_eq!(
            rate_limit(&map(&[(AGE, "0"), (RATELIMIT, r#""burst";r=0;t=30"#)])),
            Ok(None)
        );
        let cached = map(&[(AGE, "0"), (X_RATELIMIT_RESET, "30")]);
        assert_eq!(
            x_rate_limit_reset(&cached, UNIX_EPOCH, XRateLimitReset::DelaySeconds),
            Ok(None)
        );
    }

    fn vendor(
        meaning: XRateLimitReset,
        fields: &[(http::HeaderName, &str)],
    ) -> Result<Option<Duration>, Malformed> {
        // The local clock shows 2000-01-01T00:00:00Z.
        let now = UNIX_EPOCH + Duration::from_secs(946_684_800);
        x_rate_limit_reset(&map(fields), now, meaning)
    }

    #[test]
    fn the_meaning_of_x_rate_limit_reset_is_declared_not_guessed() {
        let delay = [(X_RATELIMIT_RESET, "30")];
        let epoch = [(X_RATELIMIT_RESET, "1792584030")];
        let dated = (DATE, "Wed, 21 Oct 2026 12:00:00 GMT");
        let seconds = |seconds| Ok(Some(Duration::from_secs(seconds)));
        for fields in [&delay, &epoch] {
            assert_eq!(vendor(XRateLimitReset::Off, fields), Ok(None));
        }
        assert_eq!(vendor(XRateLimitReset::DelaySeconds, &delay), seconds(30));
        assert_eq!(
            vendor(XRateLimitReset::DelaySeconds, &epoch),
            seconds(1_792_584_030),
        );
        assert_eq!(
            vendor(
                XRateLimitReset::UnixSeconds,
                &[dated.clone(), epoch[0].clone()]
            ),
            seconds(31),
        );
        assert_eq!(
            vendor(XRateLimitReset::UnixSeconds, &[dated, delay[0].clone()]),
            seconds(0)
        );
        assert_eq!(
            vendor(
                XRateLimitReset::UnixSeconds,
                &[(X_RATELIMIT_RESET, "946684810.25")]
            ),
            Ok(Some(Duration::from_millis(11_250))),
        );
    }

    #[test]
    fn a_quota_with_something_left_gives_no_delay() {
        let with_left = |left| {
            let fields = [(X_RATELIMIT_RESET, "30"), (X_RATELIMIT_REMAINING, left)];
            vendor(XRateLimitReset::DelaySeconds, &fields)
        };
        assert_eq!(with_left("0"), Ok(Some(Duration::from_secs(30))));
        assert_eq!(with_left("1"), Ok(None));
        assert_eq!(with_left("many"), Err(Malformed));
    }

    #[test]
    fn a_reset_time_too_large_saturates() {
        let far = [(X_RATELIMIT_RESET, "99999999999999999999")];
        assert_eq!(
            vendor(XRateLimitReset::UnixSeconds, &far),
            Ok(Some(Duration::MAX))
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            if let Ok(value) = http::HeaderValue::from_bytes(&bytes) {
                let mut headers = HeaderMap::new();
                headers.insert(RATELIMIT, value.clone());
                headers.insert(X_RATELIMIT_RESET, value);
                let _ = rate_limit(&headers);
                let _ = x_rate_limit_reset(&headers, UNIX_EPOCH, XRateLimitReset::UnixSeconds);
            }
        }
    }
}
