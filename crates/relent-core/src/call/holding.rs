//! The reason why a call waits at its destination, and its notice to the caller.

use core::time::Duration;

use super::place::{Entered, Stage};
use super::{Call, Environment, Place, Queued, QueuedBy};
use crate::destination::Destination;
use crate::gate::GateConfig;
use crate::outbound::Holding;
use crate::time::Instant;

impl<L: Place> Call<'_, L> {
    /// The reason why the next attempt waits; `None` if it does not wait.
    #[must_use]
    pub fn holding(&self) -> Option<Holding> {
        self.holding_since().map(|(holding, _)| holding)
    }

    pub(super) fn holding_since(&self) -> Option<(Holding, Instant)> {
        match self.place.get()?.stage {
            Stage::Waiting { by, since, .. } => Some((by, since)),
            _ => None,
        }
    }

    pub(super) fn stand(&mut self, stage: Stage) {
        if let Some(slot) = self.place.slot() {
            match slot {
                Some(entered) => entered.stage = stage,
                // It was rejected on arrival.
                None => *slot = Some(Entered { id: 0, stage }),
            }
        }
    }

    /// Reports a change at the destination. `before` held the attempt until now. `now` is `None` if the
    /// call leaves.
    pub(super) fn tell_admission<E: Environment<Place = L>>(
        &self,
        environment: &E,
        before: Option<(Holding, Instant)>,
        now: Option<Instant>,
    ) {
        let held = before.map(|(by, since)| {
            let held = now.map_or(Duration::ZERO, |now| now.saturating_since(since));
            (by, held)
        });
        environment.on_admission(held, self.holding(), now);
    }

    /// Details for a queued attempt that requests admission again at `until`; `None` if it is not
    /// queued.
    pub(super) fn queued<E: Environment<Place = L>>(
        &self,
        environment: &E,
        until: Instant,
    ) -> Option<Queued> {
        let (by, since) = self.holding_since()?;
        let policy = environment.policy();
        let started = self.session.started();
        let last = self.last_start(environment);
        let latest = match by {
            Holding::Cooldown => until,
            Holding::RequestRate => last.min(since.saturating_add(policy.max_hint())),
            Holding::Gate => {
                let gate = policy.gate().unwrap_or(&GateConfig::DEFAULT);
                last.min(started.saturating_add(gate.patience))
            }
        };
        Some(Queued {
            attempt: self.session.attempts().saturating_add(1),
            by: match by {
                Holding::Cooldown => QueuedBy::Cooldown,
                Holding::RequestRate => QueuedBy::RateLimit,
                // A breaker that is down also holds retries that are paid for.
                Holding::Gate
                    if self.session.is_unpaid()
                        && !environment.destination().is_some_and(Destination::is_down) =>
                {
                    QueuedBy::Budget
                }
                Holding::Gate => QueuedBy::CircuitBreaker,
            },
            at_most: Some(latest.saturating_since(since)),
        })
    }
}
