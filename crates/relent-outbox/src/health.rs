//! Health of an endpoint, and the rule by which a failing endpoint is disabled.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The failures after which an endpoint is disabled.
///
/// # Default
/// Five days without a success, and ten failures within the last 24 hours. The second condition protects low-traffic
/// endpoints from being disabled after few failures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DisableAfter {
    /// The time without a success.
    pub failing_for: Duration,
    /// The number of failures within the last 24 hours.
    pub failures: u32,
}

impl DisableAfter {
    /// Five days, and ten failures.
    pub const DEFAULT: Self = Self {
        failing_for: Duration::from_secs(5 * 24 * 3600),
        failures: 10,
    };
}

impl Default for DisableAfter {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The health of an endpoint, as it is stored with the endpoint.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use relent_outbox::health::{DisableAfter, Health};
///
/// let mut health = Health::default();
/// let began = SystemTime::now();
/// for hour in 0..=5 * 24 {
///     health.failed(began + Duration::from_secs(hour * 3600), "status 500");
/// }
/// let now = began + Duration::from_secs(5 * 24 * 3600);
/// assert!(health.disables(&DisableAfter::DEFAULT, now).is_some());
/// assert_eq!(Health::read(&health.write()), health);
/// assert!(health.succeeded() && !health.succeeded());
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Health {
    /// Seconds since 1970 at the first failure after the last success; `None` if the last attempt succeeded.
    failing_since: Option<u64>,
    /// The hour since 1970 of the last entry of `hours`.
    hour: u64,
    /// Failures in each of the last 24 hours, the latest last.
    hours: [u32; 24],
    last_error: String,
}

/// The version of the stored format.
const FORMAT_VERSION: u8 = 1;
const HEAD_BYTES: usize = 1 + 8 + 8 + 24 * 4;
/// The longest stored error, in bytes.
const MAX_ERROR_BYTES: usize = 256;

impl Health {
    /// Parses the [written](Self::write) form. Other bytes give the health of a new endpoint.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Self {
        Self::parse(bytes).unwrap_or_default()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (head, error) = bytes.split_at_checked(HEAD_BYTES)?;
        if head[0] != FORMAT_VERSION || error.len() > MAX_ERROR_BYTES {
            return None;
        }
        let long = |at: usize| {
            let bytes = head.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        let mut hours = [0; 24];
        for (hour, bytes) in hours.iter_mut().zip(head[17..].chunks_exact(4)) {
            *hour = u32::from_le_bytes(bytes.try_into().ok()?);
        }
        let since = long(1)?;
        Some(Self {
            failing_since: (since != u64::MAX).then_some(since),
            hour: long(9)?,
            hours,
            last_error: std::str::from_utf8(error).ok()?.to_owned(),
        })
    }

    /// Serializes the health, for [`Settled::health`](crate::store::Settled::health).
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.last_error.len());
        bytes.push(FORMAT_VERSION);
        bytes.extend(self.failing_since.unwrap_or(u64::MAX).to_le_bytes());
        bytes.extend(self.hour.to_le_bytes());
        for count in self.hours {
            bytes.extend(count.to_le_bytes());
        }
        bytes.extend(self.last_error.as_bytes());
        bytes
    }

    /// Records an acknowledged attempt. Returns whether the health changed.
    pub fn succeeded(&mut self) -> bool {
        let changes = self.failing_since.is_some();
        if changes {
            *self = Self::default();
        }
        changes
    }

    /// Records a failed attempt with this error.
    pub fn failed(&mut self, now: SystemTime, error: &str) {
        let now = seconds(now);
        // A later time was written before the clock was set back.
        self.failing_since = Some(self.failing_since.unwrap_or(now).min(now));
        self.advance_to_hour(now / 3600);
        let last = &mut self.hours[23];
        *last = last.saturating_add(1);
        let end = (0..=error.len().min(MAX_ERROR_BYTES))
            .rev()
            .find(|end| error.is_char_boundary(*end));
        self.last_error.clear();
        self.last_error.push_str(&error[..end.unwrap_or_default()]);
    }

    /// Returns the reason to disable the endpoint; `None` if it stays enabled.
    #[must_use]
    pub fn disables(&self, after: &DisableAfter, now: SystemTime) -> Option<String> {
        let since = self.failing_since?;
        let now = seconds(now);
        let failing = Duration::from_secs(now.saturating_sub(since));
        let mut here = self.clone();
        here.advance_to_hour(now / 3600);
        let failures = here
            .hours
            .iter()
            .fold(0, |sum: u32, count| sum.saturating_add(*count));
        (failing >= after.failing_for && failures >= after.failures).then(|| {
            format!(
                "no success for {} days, and {failures} failures in the last 24 hours; the last: {}",
                failing.as_secs() / (24 * 3600),
                self.last_error
            )
        })
    }

    /// The time since which no attempt has succeeded; `None` if the last one did, or there was none.
    #[must_use]
    pub fn failing_since(&self) -> Option<SystemTime> {
        UNIX_EPOCH.checked_add(Duration::from_secs(self.failing_since?))
    }

    /// The error of the last attempt; empty if it succeeded.
    #[must_use]
    pub fn last_error(&self) -> &str {
        &self.last_error
    }

    /// Moves the 24-hour window to end with this hour. If the clock was set back, the window keeps its failures, and
    /// advances from this hour. An hour back may also be a failure that another worker records late.
    fn advance_to_hour(&mut self, hour: u64) {
        if hour.saturating_add(1) < self.hour {
            self.hour = hour;
        }
        let passed = usize::try_from(hour.saturating_sub(self.hour)).unwrap_or(usize::MAX);
        if passed == 0 {
            return;
        }
        self.hours.rotate_left(passed.min(24) % 24);
        let new = 24_usize.saturating_sub(passed);
        self.hours[new..].fill(0);
        self.hour = hour;
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: u64 = 24 * 3600;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_795_000_000 + seconds)
    }

    fn failing(times: impl Iterator<Item = u64>) -> Health {
        let mut health = Health::default();
        for time in times {
            health.failed(at(time), "status 500");
        }
        health
    }

    #[test]
    fn an_endpoint_is_disabled_after_five_days_and_ten_recent_failures() {
        let after = DisableAfter::DEFAULT;
        let hourly = |days: u64| failing((0..=days * 24).map(|hour| hour * 3600));
        assert_eq!(hourly(4).disables(&after, at(4 * DAY)), None);
        let reason = hourly(5).disables(&after, at(5 * DAY)).unwrap();
        assert!(
            reason.starts_with("no success for 5 days") && reason.ends_with("status 500"),
            "{reason}"
        );
        // The same failures, more than 24 hours ago.
        assert_eq!(hourly(5).disables(&after, at(7 * DAY)), None);
        // A low-traffic endpoint.
        assert_eq!(
            failing((0..=6).map(|day| day * DAY)).disables(&after, at(6 * DAY)),
            None
        );
    }

    #[test]
    fn a_clock_that_was_ahead_does_not_keep_an_endpoint_enabled() {
        let mut health = failing([50 * 365 * DAY].into_iter());
        for hour in 0..=5 * 24 {
            health.failed(at(hour * 3600), "status 500");
        }
        assert_eq!(health.failing_since(), Some(at(0)));
        let disables = |time| health.disables(&DisableAfter::DEFAULT, at(time));
        assert!(disables(5 * DAY).is_some());
        assert_eq!(disables(7 * DAY), None, "no failure of the last 24 hours");
    }

    #[test]
    fn a_success_resets_the_endpoint_health() {
        let mut health = failing((0..200).map(|hour| hour * 3600));
        assert!(health.succeeded());
        assert_eq!(health, Health::default());
        assert!(!health.succeeded(), "nothing is written for it");
        assert_eq!(health.failing_since(), None);
    }

    #[test]
    fn a_long_error_is_cut_between_characters() {
        let mut health = Health::default();
        health.failed(at(0), &"ü".repeat(1000));
        assert_eq!(health.last_error().len(), MAX_ERROR_BYTES);
        health.failed(at(0), &format!("a{}", "ü".repeat(1000)));
        assert_eq!(health.last_error().len(), MAX_ERROR_BYTES - 1);
    }

    proptest! {
        #[test]
        fn endpoint_health_is_read_back_as_written(times in prop::collection::vec(0_u64..20 * DAY, 0..50), error in ".{0,300}") {
            let mut health = failing(times.into_iter());
            health.failed(at(0), &error);
            prop_assert_eq!(Health::read(&health.write()), health);
        }

        #[test]
        fn endpoint_health_parses_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400), now in any::<u32>()) {
            let mut health = Health::read(&bytes);
            health.failed(at(u64::from(now)), "status 500");
            let _ = health.disables(&DisableAfter::DEFAULT, at(u64::from(now)));
            let mut written = health.write();
            written.extend(bytes);
            let _ = Health::read(&written);
        }

        #[test]
        fn failures_of_the_last_24_hours_are_counted(mut hours in prop::collection::vec(0_u64..100, 1..60)) {
            hours.sort_unstable();
            let last = *hours.last().unwrap();
            let health = failing(hours.iter().map(|hour| hour * 3600));
            let recent = hours.iter().filter(|hour| last - *hour < 24).count();
            let after = |failures| DisableAfter { failing_for: Duration::ZERO, failures };
            let recent = u32::try_from(recent).unwrap();
            prop_assert!(health.disables(&after(recent), at(last * 3600)).is_some());
            prop_assert!(health.disables(&after(recent + 1), at(last * 3600)).is_none());
        }
    }
}
