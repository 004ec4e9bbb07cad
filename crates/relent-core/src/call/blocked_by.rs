//! The reason why a call waits at its destination, and its notice to the caller.

use core::time::Duration;

use super::destination_state::{DestinationState, Stage};
use super::{Call, Environment, Queued, QueuedBy};
use crate::destination::Destination;
use crate::destination::circuit_breaker::CircuitBreakerConfig;
use crate::destination::outbound::BlockedBy;
use crate::time::Instant;

impl Call<'_> {
    /// The reason why the next attempt waits; `None` if it does not wait.
    #[must_use]
    pub fn blocked_by(&self) -> Option<BlockedBy> {
        self.blocked_since().map(|(blocked_by, _)| blocked_by)
    }

    pub(super) fn blocked_since(&self) -> Option<(BlockedBy, Instant)> {
        match self.destination_state.as_ref()?.stage {
            Stage::Waiting { by, since, .. } => Some((by, since)),
            _ => None,
        }
    }

    pub(super) fn set_stage(&mut self, stage: Stage) {
        match &mut self.destination_state {
            Some(entered) => entered.stage = stage,
            // It was rejected on arrival.
            None => self.destination_state = Some(DestinationState { id: 0, stage }),
        }
    }

    /// Reports a change at the destination. `before` held the attempt until now. `now` is `None` if the
    /// call leaves.
    pub(super) fn report_admission<E: Environment>(
        &self,
        environment: &E,
        before: Option<(BlockedBy, Instant)>,
        now: Option<Instant>,
    ) {
        let held = before.map(|(by, since)| {
            let held = now.map_or(Duration::ZERO, |now| now.saturating_since(since));
            (by, held)
        });
        environment.on_admission(held, self.blocked_by(), now);
    }

    /// Whether the first response of the destination lets the call wait longer.
    pub(super) fn may_wait_longer<E: Environment>(&self, environment: &E) -> bool {
        self.without_deadline(environment).is_some()
            && environment
                .destination()
                .is_some_and(|there| !there.has_responded())
    }

    /// Whether its notice names a wait that the first response of the destination makes longer.
    pub(super) fn is_notice_short(&self) -> bool {
        let stage = self.destination_state.as_ref().map(|state| &state.stage);
        matches!(
            stage,
            Some(Stage::Waiting {
                may_wait_longer: true,
                ..
            })
        )
    }

    /// Whether the backoff restarts when its wait ends.
    pub(super) fn resets_after_wait(&self) -> bool {
        let stage = self.destination_state.as_ref().map(|state| &state.stage);
        matches!(stage, Some(Stage::Waiting { resets: true, .. }))
    }

    /// Details for a queued attempt that requests admission again at `until`; `None` if it is not
    /// queued.
    pub(super) fn queued<E: Environment>(
        &self,
        environment: &E,
        now: Instant,
        until: Instant,
    ) -> Option<Queued> {
        let (by, since) = self.blocked_since()?;
        let policy = environment.policy();
        let last = self.last_start(environment);
        let latest = match by {
            BlockedBy::Cooldown => until,
            BlockedBy::RateLimit => last.min(since.saturating_add(policy.max_hint())),
            BlockedBy::CircuitBreaker => {
                let circuit_breaker = policy
                    .circuit_breaker()
                    .unwrap_or(&CircuitBreakerConfig::DEFAULT);
                last.min(
                    self.session
                        .since()
                        .saturating_add(circuit_breaker.max_queue_time),
                )
            }
        };
        Some(Queued {
            attempt: self.session.attempts().saturating_add(1),
            by: match by {
                BlockedBy::Cooldown => QueuedBy::Cooldown,
                BlockedBy::RateLimit => QueuedBy::RateLimit,
                // A breaker that is down also holds retries that are paid for.
                BlockedBy::CircuitBreaker
                    if self.session.is_unpaid()
                        && !environment.destination().is_some_and(Destination::is_down) =>
                {
                    QueuedBy::Budget
                }
                BlockedBy::CircuitBreaker => QueuedBy::CircuitBreaker,
            },
            at_most: Some(latest.saturating_since(now)),
        })
    }
}
