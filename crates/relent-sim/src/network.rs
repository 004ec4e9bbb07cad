//! The model of the network between clients and service.

use crate::random_stream::{LOSS, NETWORK, Stream, rounded};
use crate::scenario::Link as Config;

#[derive(Debug)]
pub(crate) struct Network {
    one_way: u64,
    deviation: u64,
    loss: f64,
    ways: Stream,
    losses: Stream,
}

impl Network {
    pub(crate) fn new(config: &Config, seed: u64) -> Self {
        Self {
            one_way: config.one_way,
            deviation: config.deviation,
            loss: config.loss,
            ways: Stream::new(seed, NETWORK),
            losses: Stream::new(seed, LOSS),
        }
    }

    /// The time that a message takes, in nanoseconds.
    pub(crate) fn way(&mut self) -> u64 {
        match self.deviation {
            0 => self.one_way,
            deviation => {
                rounded((self.one_way as f64 + deviation as f64 * self.ways.normal()).abs())
            }
        }
    }

    /// Whether a message is lost.
    pub(crate) fn loses(&mut self) -> bool {
        self.loss > 0.0 && self.losses.happens(self.loss)
    }
}
