//! The due messages of an endpoint, as far as is known: how many the next claim requests, and in which order.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::ClaimOrder;

/// The largest number of messages of one endpoint in a claim.
const MAX_CLAIMED: usize = 64;

/// What is known of the due messages of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Demand {
    /// It has a due message.
    is_due: bool,
    /// A due message was reported during a claim.
    due_again: bool,
    /// The number of messages to claim in one call. It doubles while claims return as many.
    want: usize,
    /// Some due messages have failed before, according to the last claim in order of due times.
    is_mixed: bool,
    /// The last attempt failed.
    is_failing: bool,
    /// Until then messages that have failed before get no turn.
    fresh_until: Option<Instant>,
    /// Counts claims, for the choice of their order.
    turn: usize,
}

impl Demand {
    /// Nothing is known to be due.
    pub(super) const NONE: Self = Self {
        is_due: false,
        due_again: false,
        want: 1,
        is_mixed: false,
        is_failing: false,
        fresh_until: None,
        turn: 0,
    };

    pub(super) const fn is_due(&self) -> bool {
        self.is_due
    }

    /// Notes that there is a due message. `is_claiming`: a claim runs, which may not see it.
    pub(super) const fn add(&mut self, is_claiming: bool) {
        self.is_due = true;
        self.due_again |= is_claiming;
    }

    /// The number of messages to claim in one call.
    pub(super) const fn want(&self) -> usize {
        self.want
    }

    /// Chooses the order of the next claim. Where some messages fail repeatedly, messages that have never failed get
    /// two of three turns, so that a deliverable message starts soon, and ends an outage.
    pub(super) fn next_order(&mut self, now: Instant, is_down: bool) -> ClaimOrder {
        const TURNS: [ClaimOrder; 3] = [ClaimOrder::Fresh, ClaimOrder::Newest, ClaimOrder::Due];
        if !(is_down || self.is_mixed || self.is_failing) {
            return ClaimOrder::Due;
        }
        let is_fresh = !is_down && self.fresh_until.is_some_and(|until| now < until);
        let turns = if is_fresh { &TURNS[..2] } else { &TURNS[..] };
        let turn = self.turn;
        self.turn = self.turn.wrapping_add(1);
        turns[turn % turns.len()]
    }

    /// Records the end of an attempt that took this long. After a message that has failed before and fails again, the
    /// others get as much time.
    pub(super) fn ended(&mut self, now: Instant, took: Duration, failed: bool, is_fresh: bool) {
        self.is_failing = failed;
        if failed && !is_fresh {
            self.fresh_until = self.fresh_until.max(now.checked_add(took));
        }
    }

    /// Records that a claim for `asked` messages in this order has returned `got`, and whether any of them has failed
    /// before.
    pub(super) fn claimed(
        &mut self,
        order: ClaimOrder,
        asked: usize,
        got: usize,
        any_has_failed: bool,
    ) {
        if order == ClaimOrder::Due {
            self.is_mixed = any_has_failed;
        }
        if got < asked {
            self.is_due = self.due_again;
            self.want = 1;
        } else {
            self.want = self.want.saturating_mul(2).min(MAX_CLAIMED);
        }
        self.due_again = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_requests_twice_as_many_while_claims_are_full() {
        let mut demand = Demand::NONE;
        demand.add(false);
        for want in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert_eq!(demand.want(), want);
            demand.claimed(ClaimOrder::Due, want, want, false);
        }
        demand.claimed(ClaimOrder::Due, 64, 63, false);
        assert_eq!((demand.want(), demand.is_due()), (1, false));
    }

    #[test]
    fn a_message_reported_during_a_claim_stays_due() {
        let mut demand = Demand::NONE;
        demand.add(false);
        demand.add(true);
        demand.claimed(ClaimOrder::Due, 1, 0, false);
        assert!(demand.is_due());
        demand.claimed(ClaimOrder::Due, 1, 0, false);
        assert!(!demand.is_due());
    }

    #[test]
    fn fresh_messages_get_turns_where_others_fail() {
        use ClaimOrder::{Due, Fresh, Newest};
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut demand = Demand::NONE;
        let orders =
            |demand: &mut Demand, now, is_down| [0; 3].map(|_| demand.next_order(now, is_down));
        assert_eq!(orders(&mut demand, now, false), [Due, Due, Due]);
        assert_eq!(orders(&mut demand, now, true), [Fresh, Newest, Due]);
        demand.claimed(Due, 1, 1, true);
        assert_eq!(orders(&mut demand, now, false), [Fresh, Newest, Due]);
        demand.claimed(Fresh, 1, 1, false);
        assert_eq!(
            orders(&mut demand, now, false),
            [Fresh, Newest, Due],
            "only a claim by due time shows that none has failed"
        );
        demand.claimed(Due, 1, 1, false);
        demand.ended(now, second, true, true);
        assert_eq!(orders(&mut demand, now, false), [Fresh, Newest, Due]);
        demand.ended(now, second, false, true);
        assert_eq!(orders(&mut demand, now, false), [Due, Due, Due]);
    }

    #[test]
    fn messages_that_fail_slowly_take_at_most_half_of_the_time() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut demand = Demand::NONE;
        demand.claimed(ClaimOrder::Due, 1, 1, true);
        demand.ended(now, 15 * second, true, false);
        let mut is_due = |at| (0..3).any(|_| demand.next_order(at, false) == ClaimOrder::Due);
        assert!(!is_due(now + 14 * second));
        assert!(is_due(now + 15 * second));
    }
}
