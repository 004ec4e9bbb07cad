//! Final attempt before a deadline: shortens the last delay so that one more attempt fits.

use super::{FINAL_DELAY_SHORTENED, Session};
use crate::call::stop::StopReason;
use crate::policy::Policy;
use crate::random::{Random, up_to};
use crate::time::{Instant, nanos};

/// A deadline cuts off a running attempt. The final attempt gets a quarter of the time that is left at
/// its decision, or the attempt timeout if that is shorter.
const FINAL_ATTEMPT_DIVISOR: u64 = 4;

impl Session {
    /// Shortens a computed delay that would leave the next attempt too little time: once, and once more after
    /// [progress](Session::on_progress).
    ///
    /// The new delay is random within the last quarter of the available time. Late, since a service
    /// needs time to recover and mostly no attempt follows. Random, since clients with a common deadline would
    /// otherwise all come at one instant. It is never below `earliest`, the server's `Retry-After`.
    ///
    /// # Errors
    /// The reason to stop, if the delay does not fit and was shortened before, or if `earliest` does
    /// not fit.
    #[cold]
    pub(super) fn final_attempt_before_deadline(
        &mut self,
        policy: &Policy,
        now: Instant,
        wait: u64,
        earliest: u64,
        by: Instant,
        random: &mut (impl Random + ?Sized),
    ) -> Result<u64, StopReason> {
        if self.flags & FINAL_DELAY_SHORTENED != 0 {
            return Err(nearest_limit(policy));
        }
        let latest = self.latest_useful_start(policy, now, by).nanos_since(now);
        if wait <= latest {
            return Ok(wait);
        }
        let earliest = earliest.max(latest - latest / 4);
        if earliest > latest {
            return Err(nearest_limit(policy));
        }
        self.flags |= FINAL_DELAY_SHORTENED;
        Ok(earliest + up_to(latest - earliest, random))
    }

    /// The last instant at which an attempt may start with time to complete; never after `by`.
    pub(super) fn latest_useful_start(
        &self,
        policy: &Policy,
        now: Instant,
        by: Instant,
    ) -> Instant {
        let last_start = policy.last_start(self.started).min(by);
        let Some(deadline) = policy.deadline else {
            return last_start;
        };
        let end = self.started.saturating_add(deadline);
        let share = end.nanos_since(now) / FINAL_ATTEMPT_DIVISOR;
        let needed = self
            .attempt_timeout(policy)
            .map_or(share, |timeout| share.min(nanos(timeout)));
        last_start.min(Instant::from_nanos(end.as_nanos() - needed))
    }
}

/// The limit that comes first; of equal ones the deadline, since it leaves less time.
fn nearest_limit(policy: &Policy) -> StopReason {
    match (policy.max_elapsed, policy.deadline) {
        (Some(limit), Some(deadline)) if limit < deadline => StopReason::MaxElapsed,
        // Without a deadline and `max_elapsed` the limit is that for callers without a deadline.
        (_, None) => StopReason::MaxElapsed,
        _ => StopReason::Deadline,
    }
}
