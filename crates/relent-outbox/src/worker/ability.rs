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
/// The number of tests without a success, in 14 min or more, after which a worker without endpoints takes its share
/// again: its last endpoints may have faults of their own, or may have been changed or deleted.
const MAX_TESTS: usize = 60;

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

    /// Handles the result of a test. The next one uses these targets, unless the worker has none now.
    pub(super) fn tested(&mut self, is_able: bool, targets: Vec<Target>) {
        self.faults = self.faults.saturating_add(1);
        // A test of a relay uses no endpoint, so it is always right.
        let may_be_wrong = self.transport.is_in_process() && targets.is_empty();
        if !targets.is_empty() {
            self.targets = targets;
        }
        if is_able || (self.faults >= MAX_TESTS && may_be_wrong) {
            self.restore();
        } else {
            self.begin();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use tokio::sync::watch;
    use tokio::time::Instant;

    use super::*;
    use crate::guard::AddressGuard;

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
            ability.tested(tested, Vec::new());
            assert_eq!(began.elapsed(), Duration::from_secs(after));
            assert_eq!(ability.is_able(), able, "{after}");
        }
        for _ in 0..2 * MAX_TESTS {
            let tested = ability.next().await;
            ability.tested(tested, targets("shop.example"));
        }
        assert!(!ability.is_able(), "the relay is still closed");
        open.send_replace(true);
        let tested = ability.next().await;
        ability.tested(tested, Vec::new());
        let tests = 2 * MAX_TESTS as u64 + 1;
        assert_eq!(began.elapsed(), Duration::from_secs(30 + 15 * tests));
        assert!(ability.is_able() && !ability.is_in_doubt());
    }

    fn targets(host: &str) -> Vec<Target> {
        let guard = AddressGuard::default();
        vec![Target::parse(&format!("https://{host}/"), false, &guard).unwrap()]
    }

    /// A machine that connects to any target except that with a fault of its own.
    fn ability() -> Ability {
        let transport = Transport::new(watch::channel(true).1, async |_| unreachable!());
        Ability::new(transport.in_process(|targets: Vec<Target>| {
            let can_reach = |target: &Target| target.uri().host() != Some("faulty.example");
            ready(targets.iter().any(can_reach))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_test_uses_the_endpoints_that_the_worker_has_now() {
        let mut ability = ability();
        ability.doubt(targets("faulty.example"));
        for (now, able) in [
            ("faulty.example", false),
            ("shop.example", false),
            ("", true),
        ] {
            let tested = ability.next().await;
            assert_eq!(tested, able, "{now}");
            let now = if now.is_empty() {
                Vec::new()
            } else {
                targets(now)
            };
            ability.tested(tested, now);
            assert!(ability.is_able());
        }
        assert!(!ability.is_in_doubt());
    }

    /// If no worker is able, each keeps its endpoints, and none takes those of the others.
    #[tokio::test(start_paused = true)]
    async fn a_worker_with_endpoints_stays_not_able_until_a_test_succeeds() {
        let mut ability = ability();
        ability.doubt(targets("faulty.example"));
        for _ in 0..2 * MAX_TESTS {
            let tested = ability.next().await;
            ability.tested(tested, targets("faulty.example"));
        }
        assert!(!ability.is_able() && ability.is_in_doubt());
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_whose_last_endpoints_have_faults_of_their_own_takes_its_share_again() {
        let mut ability = ability();
        let began = Instant::now();
        ability.doubt(targets("faulty.example"));
        while ability.is_in_doubt() {
            let tested = ability.next().await;
            ability.tested(tested, Vec::new());
            assert!(ability.is_able() || began.elapsed() >= Duration::from_secs(7));
        }
        assert!(ability.is_able());
        assert_eq!(began.elapsed().as_secs() / 60, 14);
    }
}
