//! State for hedging that a destination keeps.

use alloc::vec::Vec;

use crate::destination::hedge::{Hedge, HedgeConfig};
use crate::sync::Arc;

/// Upper bound of the entries: one for each distinct hedge configuration.
const MAX_HEDGE_CONFIGS: usize = 16;

/// By configuration, the newest first.
#[derive(Default, Debug)]
pub(super) struct Hedges(Vec<(HedgeConfig, Arc<Hedge>)>);

impl Hedges {
    pub(super) fn of(&mut self, config: &HedgeConfig) -> Option<Arc<Hedge>> {
        if let Some((_, hedge)) = self.0.iter().find(|(made, _)| made == config) {
            return Some(Arc::clone(hedge));
        }
        let known = self.0.iter().find(|(made, _)| made.uses_latencies());
        // The others know at least whether the last outcome was a rejection.
        let known = known.or(self.0.first());
        let hedge = match known {
            Some((_, known)) => Hedge::with_history_of(config, known),
            None => Hedge::new(config),
        };
        let hedge = Arc::new(hedge.ok()?);
        self.0.truncate(MAX_HEDGE_CONFIGS - 1);
        self.0.insert(0, (*config, Arc::clone(&hedge)));
        Some(hedge)
    }
}
