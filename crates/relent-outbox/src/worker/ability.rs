//! Whether this machine can make attempts at all. A worker that is not able leaves its endpoints to other workers.
//!
//! A local fault of an attempt may be that of a single endpoint. So the worker then tests its machine by itself, with
//! several endpoints, until a test succeeds. It needs no endpoint of its own for that.

use std::future::pending;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::attempt::Transport;
use crate::fault::{is_able, next_wait};
use crate::target::Target;

/// The number of endpoints that a test uses.
pub(super) const MAX_TARGETS: usize = 3;

/// The tests of a machine since a local fault.
#[derive(Debug)]
pub(super) struct Ability {
    transport: Transport,
    targets: Vec<Target>,
    /// The tests in a row that a local fault has prevented.
    faults: usize,
    wait: Option<Duration>,
    /// The running test, at most one. Without one there is no doubt.
    test: JoinSet<bool>,
}

impl Ability {
    pub(super) fn new(transport: Transport) -> Self {
        Self {
            transport,
            targets: Vec::new(),
            faults: 0,
            wait: None,
            test: JoinSet::new(),
        }
    }

    pub(super) const fn is_able(&self) -> bool {
        is_able(self.faults)
    }

    /// Whether tests run.
    pub(super) fn is_in_doubt(&self) -> bool {
        !self.test.is_empty()
    }

    /// A local fault has prevented an attempt: tests the machine with these targets, unless it does already.
    pub(super) fn doubt(&mut self, targets: Vec<Target>) {
        if !self.is_in_doubt() {
            self.targets = targets;
            self.begin();
        }
    }

    /// Attempts are possible again.
    pub(super) fn restore(&mut self) {
        *self = Self::new(self.transport.clone());
    }

    fn begin(&mut self) {
        let wait = next_wait(self.wait);
        self.wait = Some(wait);
        let (transport, targets) = (self.transport.clone(), self.targets.clone());
        self.test.spawn(async move {
            sleep(wait).await;
            transport.is_able(targets).await
        });
    }

    /// Waits for the result of the running test; for ever if none runs.
    pub(super) async fn next(&mut self) -> bool {
        match self.test.join_next().await {
            Some(tested) => tested.unwrap_or(false),
            None => pending().await,
        }
    }

    /// Handles the result of a test.
    pub(super) fn tested(&mut self, is_able: bool) {
        if is_able {
            self.restore();
        } else {
            self.faults = self.faults.saturating_add(1);
            self.begin();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_machine_is_not_able_after_three_tests_in_a_row_and_is_again_after_one() {
        let (open, is_open) = watch::channel(false);
        let transport = Transport::new(is_open, async |_| unreachable!("it is only tested"));
        let mut ability = Ability::new(transport);
        assert!(ability.is_able() && !ability.is_in_doubt());
        let began = Instant::now();
        ability.doubt(Vec::new());
        for (after, able) in [(1, true), (3, true), (7, false), (15, false), (30, false)] {
            let tested = ability.next().await;
            ability.tested(tested);
            assert_eq!(began.elapsed(), Duration::from_secs(after));
            assert_eq!(ability.is_able(), able, "{after}");
        }
        open.send_replace(true);
        let tested = ability.next().await;
        ability.tested(tested);
        assert_eq!(began.elapsed(), Duration::from_secs(45));
        assert!(ability.is_able() && !ability.is_in_doubt());
    }
}
