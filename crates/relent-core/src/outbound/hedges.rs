//! What a destination remembers for hedges.

use alloc::vec::Vec;

use crate::hedge::{Hedge, HedgeConfig};
use crate::sync::Arc;

/// The most of them: one for each policy that is used there, as far as its hedge differs.
const MOST: usize = 16;

/// By how they are made, the last one that was made first.
#[derive(Default, Debug)]
pub(super) struct Hedges(Vec<(HedgeConfig, Arc<Hedge>)>);

impl Hedges {
    pub(super) fn of(&mut self, config: &HedgeConfig) -> Option<Arc<Hedge>> {
        if let Some((_, hedge)) = self.0.iter().find(|(made, _)| made == config) {
            return Some(Arc::clone(hedge));
        }
        let known = self.0.iter().find(|(made, _)| made.learns());
        // The others know at least whether it refused last.
        let known = known.or(self.0.first());
        let hedge = match known {
            Some((_, known)) => Hedge::learning_from(config, known),
            None => Hedge::new(config),
        };
        let hedge = Arc::new(hedge.ok()?);
        self.0.truncate(MOST - 1);
        self.0.insert(0, (*config, Arc::clone(&hedge)));
        Some(hedge)
    }
}
