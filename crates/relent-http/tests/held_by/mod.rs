//! Causes that hold a retry for as long as it may wait.

use std::time::Duration;

use relent::clock::TokioClock;
use relent::driver::Driver;
use relent::policy::RateLimitConfig;
use relent::{Destination, Failure, Hint, Policy, StopReason, retry};
use tokio::time::sleep;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// The cause that holds the retry.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum HeldBy {
    CircuitBreaker,
    Cooldown,
    Rate,
}

pub(crate) const ALL: [HeldBy; 3] = [HeldBy::CircuitBreaker, HeldBy::Cooldown, HeldBy::Rate];

impl HeldBy {
    /// A policy whose deadline ends before the retry may start.
    pub(crate) fn policy(self) -> Policy {
        let policy = Policy::STANDARD.clone().into_builder();
        let policy = match self {
            // After the first probe, half a second after the breaker goes down, and before the second.
            Self::CircuitBreaker => policy.deadline(SECOND * 9 / 10),
            Self::Cooldown => policy.deadline(20 * SECOND),
            Self::Rate => policy.deadline(20 * SECOND).rate_limit(RateLimitConfig {
                burst: Some(1),
                ..RateLimitConfig::new(0.01)
            }),
        };
        policy.build().unwrap()
    }

    /// For the circuit breaker, a destination that is already down: the attempt is then a probe.
    pub(crate) async fn destination(self) -> Destination {
        let there = Destination::new(self.policy());
        let once = once();
        while self == Self::CircuitBreaker && !there.is_down() {
            let down = retry(&once, || async { Err::<(), _>("down") });
            down.destination(&there).await.unwrap_err();
            sleep(SECOND / 100).await;
        }
        there
    }

    /// Another caller's request while the attempt runs: it starts a cooldown.
    pub(crate) fn start_cooldown(self, there: &Destination) {
        if self == Self::Cooldown {
            let once = once();
            let mut other = Driver::builder(&once, TokioClock)
                .destination(there)
                .start();
            let permit = other.enter(None).permit().unwrap();
            other.on_attempt(permit);
            other.on_failure(&Failure::throttled().hint(Hint::after(60 * SECOND)));
        }
    }

    /// The stop reason of a session whose retry is held by this cause.
    pub(crate) const fn reason(self) -> StopReason {
        match self {
            Self::CircuitBreaker => StopReason::CircuitBreaker,
            Self::Cooldown | Self::Rate => StopReason::RetryLater,
        }
    }
}

fn once() -> Policy {
    let policy = Policy::STANDARD.clone().into_builder();
    policy.max_retries(0).build().unwrap()
}
