//! The clock of the SQLite store: the machine's clock, with jumps smoothed.

use std::time::Duration;

use relent_core::Instant;
use relent_core::idempotency::ClaimConfig;

/// A jump of the machine's clock up to this is an ordinary adjustment.
const MAX_CLOCK_ADJUSTMENT: Duration = Duration::from_secs(1);

/// Computes the store's time from readings of the machine's clock and of a monotonic clock.
///
/// If the machine's clock jumps forward, or the machine was suspended, running executions had no time to renew their
/// leases. So for the duration of a lease the store's time continues without the jump, and new leases and records
/// last that much longer. If the clock is set back, the store's time stands still.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// The last reading of the machine's clock.
    machine: Option<Instant>,
    /// The latest time that was returned.
    latest: Instant,
    /// How far the store's time is held back, and for how long still.
    behind: Duration,
    left: Duration,
    /// The longest lease so far.
    lease: Duration,
}

impl Clock {
    /// Returns the store's time for a reading of the machine's clock and the time since the last reading; and the
    /// configuration with durations by the store's time.
    pub(super) fn read(
        &mut self,
        machine: Instant,
        passed: Duration,
        config: &ClaimConfig,
    ) -> (Instant, ClaimConfig) {
        self.lease = self.lease.max(config.lease);
        self.left = self.left.saturating_sub(passed);
        if self.left.is_zero() {
            self.behind = Duration::ZERO;
        }
        if let Some(before) = self.machine {
            let jump = machine.saturating_since(before.saturating_add(passed));
            if jump > MAX_CLOCK_ADJUSTMENT {
                self.behind = self.behind.saturating_add(jump);
                self.left = self.lease;
            }
        }
        self.machine = Some(machine);
        let behind = u64::try_from(self.behind.as_nanos()).unwrap_or(u64::MAX);
        let time = Instant::from_nanos(machine.as_nanos().saturating_sub(behind));
        self.latest = self.latest.max(time);
        let config = ClaimConfig {
            lease: config.lease.saturating_add(self.behind),
            retention: config.retention.saturating_add(self.behind),
            ..*config
        };
        (self.latest, config)
    }

    #[cfg(test)]
    pub(super) fn set(&mut self, latest: Instant) {
        self.latest = latest;
    }
}

#[cfg(test)]
mod tests {
    use relent_core::idempotency::{Claim, Fingerprint, Record};

    use super::*;

    const CONFIG: ClaimConfig = ClaimConfig::DEFAULT;
    const HOUR: Duration = Duration::from_secs(3600);

    fn began() -> Instant {
        Instant::from_nanos(1_800_000_000_000_000_000)
    }

    #[test]
    fn the_store_clock_never_goes_back_with_the_machine_clock() {
        let mut clock = Clock::default();
        let second = Duration::from_secs(1);
        let ahead = began().saturating_add(HOUR);
        assert_eq!(clock.read(ahead, second, &CONFIG), (ahead, CONFIG));
        // The machine's clock is set back by an hour.
        assert_eq!(clock.read(began(), second, &CONFIG).0, ahead);
        let later = began().saturating_add(second);
        assert_eq!(clock.read(later, second, &CONFIG).0, ahead);
        let past = ahead.saturating_add(second);
        assert_eq!(clock.read(past, HOUR, &CONFIG).0, past);
    }

    /// Uses the decisions of the core, and renews every third of the lease.
    #[test]
    fn a_clock_jump_forward_ends_no_renewed_lease() {
        let mut clock = Clock::default();
        let (mut machine, third) = (began(), CONFIG.lease / 3);
        let (now, config) = clock.read(machine, Duration::ZERO, &CONFIG);
        let print = Fingerprint([0; 32]);
        let (Claim::Run { mut lease, .. }, Some(mut record)) =
            Record::claim(None, now, &config, 1, print)
        else {
            panic!("the key is free");
        };
        for round in 0..12 {
            // Jumps twice, the second time while the time is held back.
            if round == 3 || round == 5 {
                machine = machine.saturating_add(HOUR);
            }
            machine = machine.saturating_add(third);
            let (now, config) = clock.read(machine, third, &CONFIG);
            let (claim, _) = Record::claim(Some(&record), now, &config, 2, print);
            assert!(
                matches!(claim, Claim::InFlight { .. }),
                "{round}: {claim:?}"
            );
            (record, lease) = record.renew(now, &lease, &config).unwrap();
            // Newly started processes, which use the machine's clock, see a valid lease.
            assert_eq!(lease.until, machine.saturating_add(CONFIG.lease), "{round}");
        }
        assert_eq!(
            clock.read(machine, Duration::ZERO, &CONFIG),
            (machine, CONFIG)
        );
        // Without renewal the lease expires.
        let (now, _) = clock.read(machine.saturating_add(CONFIG.lease), CONFIG.lease, &CONFIG);
        assert!(now >= lease.until);
    }
}
