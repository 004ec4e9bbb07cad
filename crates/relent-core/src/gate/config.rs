//! How a gate probes, and how long it holds anybody back.

use core::time::Duration;

use crate::error::{Found, PolicyError};

/// How a gate probes.
///
/// # Default
/// The first probe half a second after closing, later ones up to 5 s apart. A call with a deadline is queued until
/// then, for five minutes at most; one without starts no attempt later than 30 s after it began, and 9 s while the
/// destination has never responded. A process that makes more than two requests per second probes sooner: one of ten of its
/// requests may be a probe, up to 20 per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GateConfig {
    /// From closing to the first probe at most, give or take a quarter; each later one is half as long again
    /// after the one before.
    pub first_probe: Duration,
    /// The most between two probes while requests are made. Where none are, parked ones probe at the
    /// pace at which three would usually be made, at most 20 s apart.
    pub max_probe: Duration,
    /// Nobody is parked for longer than this since the request was made, whatever other limits there
    /// are. It is for the driver to keep.
    pub patience: Duration,
    /// Where the caller has set no limit of time (no deadline and no `max_elapsed`), no attempt starts later
    /// than this after its call began, or made progress: a caller that says nothing is not to wait for
    /// minutes. It never cuts off a running attempt, and a server's time beyond it ends the call at once.
    pub patience_without_deadline: Duration,
    /// The same for a destination that has never responded in this process: a wrong address, or a service
    /// that was not started. The lower of the two counts. The default leaves the last attempt a second, so that
    /// the caller of a closed port has its error within 10 s.
    pub patience_unanswered: Duration,
}

impl GateConfig {
    /// Probes from 500 ms to 5 s apart, and five minutes of patience: 30 s without a deadline, 9 s without
    /// a response.
    pub const DEFAULT: Self = Self {
        first_probe: Duration::from_millis(500),
        max_probe: Duration::from_secs(5),
        patience: Duration::from_secs(300),
        patience_without_deadline: Duration::from_secs(30),
        patience_unanswered: Duration::from_secs(9),
    };

    /// How long after its beginning a call without a deadline may start an attempt.
    #[inline]
    pub(crate) fn without_deadline(&self, has_responded: bool) -> Duration {
        match has_responded {
            true => self.patience_without_deadline,
            false => self.patience_without_deadline.min(self.patience_unanswered),
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

impl Default for GateConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}
