//! Configuration of the circuit breaker: its probes, and how long it holds requests.

use core::time::Duration;

use crate::policy::error::{Found, PolicyError};

/// Configuration of the circuit breaker.
///
/// # Default
/// The first probe starts half a second after the breaker goes down, later ones up to 5 s apart. A call
/// with a deadline is queued until that deadline, for five minutes at most. One without a deadline
/// starts no attempt later than 30 s after it began, and 9 s while the destination has never responded.
/// A process with more than two requests per second probes sooner: one in ten of its requests may be a
/// probe, up to 20 per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CircuitBreakerConfig {
    /// Longest time from going down to the first probe, ± 25 % jitter. Each later interval is half as
    /// long again as the one before.
    pub first_probe: Duration,
    /// Longest time between two probes. After a timeout, queued requests probe once in the time of three
    /// requests at the normal rate, if that is longer, and at least every 20 s.
    pub max_probe: Duration,
    /// Longest time a request is queued, counted from when it was made or last made progress, whatever
    /// its other limits are. The driver enforces it.
    pub max_queue_time: Duration,
    /// Applies to calls with neither a deadline nor `max_elapsed`. No attempt starts later than this
    /// after the call began or last made progress, so that such a call does not wait for minutes. A
    /// running attempt is never cut off. A `Retry-After` beyond this limit ends the call immediately.
    pub max_queue_time_without_deadline: Duration,
    /// The corresponding limit for a destination that has never responded in this process: a wrong
    /// address, or a service that was not started. The lower limit applies. The default leaves the last
    /// attempt a second, so that the caller of a closed port gets its error within 10 s.
    pub max_queue_time_without_response: Duration,
}

impl CircuitBreakerConfig {
    /// Probes 500 ms to 5 s apart. Requests are queued for up to five minutes: 30 s without a deadline,
    /// 9 s without a response.
    pub const DEFAULT: Self = Self {
        first_probe: Duration::from_millis(500),
        max_probe: Duration::from_secs(5),
        max_queue_time: Duration::from_secs(300),
        max_queue_time_without_deadline: Duration::from_secs(30),
        max_queue_time_without_response: Duration::from_secs(9),
    };

    /// How long after its start a call without a deadline may start an attempt.
    #[inline]
    pub(crate) fn without_deadline(&self, has_responded: bool) -> Duration {
        match has_responded {
            true => self.max_queue_time_without_deadline,
            false => self
                .max_queue_time_without_deadline
                .min(self.max_queue_time_without_response),
        }
    }

    pub(crate) const fn check(&self) -> Result<(), PolicyError> {
        if self.first_probe.is_zero() {
            return Err(PolicyError::new(
                "first_probe",
                Found::Duration(self.first_probe),
                "probes are some time apart; 500ms is usual",
            ));
        }
        if self.max_probe.as_nanos() < self.first_probe.as_nanos() {
            return Err(PolicyError::new(
                "max_probe",
                Found::Duration(self.max_probe),
                "the most between two probes may not be below first_probe",
            ));
        }
        Ok(())
    }
}

impl Default for CircuitBreakerConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}
