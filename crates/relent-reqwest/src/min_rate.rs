//! Minimum rate of a response body.

use std::time::Duration;

use tokio::time::Instant;

use crate::attempt_failure::AttemptFailure;

/// A minimum of `bytes` in each period of `within`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MinRate {
    pub(crate) bytes: u64,
    pub(crate) within: Duration,
}

/// The current period of a rate. Its time stops during calls to the sink.
#[derive(Debug)]
pub(crate) struct RateWindow {
    rate: MinRate,
    left: Duration,
    received: u64,
}

impl RateWindow {
    pub(crate) const fn new(rate: MinRate) -> Self {
        Self {
            rate,
            left: rate.within,
            received: 0,
        }
    }

    pub(crate) async fn limit_frame<F: Future>(
        &mut self,
        frame: F,
    ) -> Result<F::Output, Box<AttemptFailure>> {
        let began = Instant::now();
        let Ok(output) = tokio::time::timeout(self.left, frame).await else {
            return Err(AttemptFailure::slow(self.received, self.rate.within));
        };
        self.left = self.left.saturating_sub(began.elapsed());
        Ok(output)
    }

    pub(crate) const fn data(&mut self, length: u64) {
        self.received = self.received.saturating_add(length);
        if self.received >= self.rate.bytes {
            *self = Self::new(self.rate);
        }
    }
}
