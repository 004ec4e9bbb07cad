//! The Retry-After header: how a limiter's response is written and read.

use std::time::Duration;

use relent_core::{Audience, Hint, HintSource, ServerTime};

use crate::limiter_response::RetryAfterHint;
use crate::scenario::{SECOND, WaitFormat};

/// The server's clock at the start of a run, in seconds since 1970: late enough for a client's clock to be a day
/// behind.
const EPOCH: u64 = 1 << 31;

/// The Retry-After of a response.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) enum WaitHeader {
    #[default]
    Nothing,
    Delay {
        nanos: u64,
        source: HintSource,
        audience: Audience,
    },
    /// A date of the server's clock, in seconds since 1970, in a response without a `Date`.
    Date { seconds: u64, audience: Audience },
}

impl WaitHeader {
    /// Writes the limiter's Retry-After at `now`.
    pub(crate) fn write(format: WaitFormat, now: u64, hinted: RetryAfterHint) -> Self {
        let (nanos, ticket) = match hinted {
            RetryAfterHint::Nothing => return Self::Nothing,
            RetryAfterHint::Shared(nanos) => (nanos, false),
            RetryAfterHint::Ticket(millis) => (millis.saturating_mul(1_000_000), true),
        };
        let audience = match ticket {
            true => Audience::TicketSeconds,
            false => Audience::Shared,
        };
        let delay = |nanos| Self::Delay {
            nanos,
            source: HintSource::header("retry-after"),
            audience,
        };
        // Rounded up, since a caller must not come early.
        let date = EPOCH + now.saturating_add(nanos).div_ceil(SECOND);
        match format {
            WaitFormat::Milliseconds if ticket => Self::Delay {
                nanos,
                source: HintSource::header("retry-after-ms"),
                audience: Audience::TicketMillis,
            },
            WaitFormat::Milliseconds => delay(nanos),
            WaitFormat::Seconds => delay(nanos.div_ceil(SECOND).saturating_mul(SECOND)),
            WaitFormat::Date => {
                let sent = Duration::from_secs(EPOCH + now / SECOND);
                let wait = ServerTime::told(sent, 0).until(Duration::from_secs(date));
                delay(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX))
            }
            WaitFormat::LoneDate => Self::Date {
                seconds: date,
                audience,
            },
        }
    }

    /// Reads it at `now`, with a local clock that is ahead by this many nanoseconds.
    pub(crate) fn read(self, now: u64, ahead: i64) -> Hint {
        match self {
            Self::Nothing => Hint::NONE,
            Self::Delay {
                nanos,
                source,
                audience,
            } => Hint::after(Duration::from_nanos(nanos))
                .from_source(source)
                .for_audience(audience),
            Self::Date { seconds, audience } => {
                let epoch = Duration::from_secs(EPOCH);
                let clock = epoch + Duration::from_nanos(now);
                let skew = Duration::from_nanos(ahead.unsigned_abs());
                let local = match ahead < 0 {
                    true => clock.saturating_sub(skew),
                    false => clock + skew,
                };
                Hint::after(ServerTime::local(local).until(Duration::from_secs(seconds)))
                    .from_source(HintSource::header("retry-after"))
                    .for_audience(audience)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(format: WaitFormat, ahead: i64) -> Option<Duration> {
        let now = 10 * SECOND + 300_000_000;
        WaitHeader::write(format, now, RetryAfterHint::Ticket(2500))
            .read(now, ahead)
            .delay()
    }

    #[test]
    fn only_a_retry_after_date_without_date_depends_on_the_local_clock() {
        let millis = |millis| Some(Duration::from_millis(millis));
        let second = SECOND as i64;
        for ahead in [-30 * second, 0, 30 * second] {
            assert_eq!(wait(WaitFormat::Milliseconds, ahead), millis(2500));
            assert_eq!(wait(WaitFormat::Seconds, ahead), millis(3000));
            // 12.8 s is in second 13; sent in second 10, plus one.
            assert_eq!(wait(WaitFormat::Date, ahead), millis(4000));
        }
        assert_eq!(wait(WaitFormat::LoneDate, 0), millis(3700));
        assert_eq!(wait(WaitFormat::LoneDate, -30 * second), millis(33_700));
        assert_eq!(wait(WaitFormat::LoneDate, 30 * second), millis(0));
    }
}
