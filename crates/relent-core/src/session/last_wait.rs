//! The last wait before a time limit, cut so that one more attempt fits (design rule 6).

use super::{LAST_WAIT_CUT, Session};
use crate::decision::StopReason;
use crate::policy::Policy;
use crate::random::{Random, up_to};
use crate::time::{Instant, nanos};

/// A deadline cuts a running attempt off. The last attempt gets this share of the time that is left
/// at its decision, or the attempt timeout if that is shorter.
const SHARE_OF_LAST_ATTEMPT: u64 = 4;

impl Session {
    /// Cuts a wait of the session's own that would leave the next attempt too little time, once.
    ///
    /// The cut wait is drawn from the last quarter of the time that can be waited: late, since a
    /// service needs time to recover and no attempt follows; at random, since clients that share a
    /// deadline would otherwise all come at one instant. It is never below `earliest`, the time that
    /// the server asked for.
    ///
    /// # Errors
    /// The reason to stop, if the wait does not fit and was cut before, or `earliest` does not fit.
    #[cold]
    pub(super) fn cut_last_wait(
        &mut self,
        policy: &Policy,
        now: Instant,
        wait: u64,
        earliest: u64,
        by: Instant,
        random: &mut (impl Random + ?Sized),
    ) -> Result<u64, StopReason> {
        if self.marks & LAST_WAIT_CUT != 0 {
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
        self.marks |= LAST_WAIT_CUT;
        Ok(earliest + up_to(latest - earliest, random))
    }

    /// The last instant at which an attempt may start and has time to end; none may after `by`.
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
        let share = end.nanos_since(now) / SHARE_OF_LAST_ATTEMPT;
        let needed = self
            .attempt_timeout(policy)
            .map_or(share, |timeout| share.min(nanos(timeout)));
        last_start.min(Instant::from_nanos(end.as_nanos() - needed))
    }
}

/// The limit that comes first: of the same length, the deadline, since it leaves less.
fn nearest_limit(policy: &Policy) -> StopReason {
    match (policy.max_elapsed, policy.deadline) {
        (Some(limit), Some(deadline)) if limit < deadline => StopReason::MaxElapsed,
        // Without either the caller has set no limit.
        (_, None) => StopReason::MaxElapsed,
        _ => StopReason::Deadline,
    }
}
