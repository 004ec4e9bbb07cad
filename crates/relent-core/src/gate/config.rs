//! How a gate probes, and how long it holds anybody back.

use core::time::Duration;

use crate::error::{Found, PolicyError};

/// How a gate probes.
///
/// # Default
/// The first probe half a second after closing, later ones up to 5 s apart; nobody is parked for more
/// than five minutes. A process that makes more than two requests per second probes sooner: one of ten of its
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
}

impl GateConfig {
    /// Probes from 500 ms to 5 s apart, and five minutes of patience.
    pub const DEFAULT: Self = Self {
        first_probe: Duration::from_millis(500),
        max_probe: Duration::from_secs(5),
        patience: Duration::from_secs(300),
    };

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
