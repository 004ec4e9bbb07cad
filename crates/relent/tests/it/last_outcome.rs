//! Every loop returns the last real outcome, also when the following retry is held back until its
//! limit.

use std::time::Duration;

use relent::clock::{Clock, TokioClock};
use relent::driver::Driver;
use relent::policy::{CircuitBreakerConfig, HedgeConfig, RateLimitConfig};
use relent::{
    Destination, Failure, GaveUp, Hint, Policy, StopReason, VirtualClock, blocking, retry,
    retry_mut, retry_on,
};
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);
/// After the first probe, half a second after going down, and before the second.
const LIMIT: Duration = Duration::from_millis(900);

/// The control that holds the retry back.
#[derive(Clone, Copy, PartialEq, Debug)]
enum HeldBy {
    /// The circuit breaker, until the deadline.
    CircuitBreaker,
    /// The circuit breaker, until its maximum queue time.
    Patience,
    Cooldown,
    Rate,
}

fn once() -> Policy {
    let policy = Policy::STANDARD.clone().into_builder();
    policy.max_retries(0).build().unwrap()
}

const ALL: [HeldBy; 4] = [
    HeldBy::CircuitBreaker,
    HeldBy::Patience,
    HeldBy::Cooldown,
    HeldBy::Rate,
];

impl HeldBy {
    fn policy(self) -> Policy {
        let policy = Policy::STANDARD.clone().into_builder();
        match self {
            Self::Patience => policy.circuit_breaker(CircuitBreakerConfig {
                max_queue_time: LIMIT,
                ..CircuitBreakerConfig::DEFAULT
            }),
            Self::CircuitBreaker | Self::Cooldown => policy.deadline(LIMIT),
            Self::Rate => policy.deadline(LIMIT).rate_limit(RateLimitConfig {
                burst: Some(1),
                ..RateLimitConfig::new(0.01)
            }),
        }
        .build()
        .unwrap()
    }

    fn is_circuit_breaker(self) -> bool {
        matches!(self, Self::CircuitBreaker | Self::Patience)
    }

    /// A destination; already down if the circuit breaker is to hold the retry back, so that the
    /// attempt is a probe.
    async fn destination(self) -> Destination {
        let (there, once) = (Destination::new(self.policy()), once());
        while self.is_circuit_breaker() && !there.is_down() {
            let down = retry(&once, || async { Err::<(), _>("down") });
            down.destination(&there).await.unwrap_err();
            sleep(SECOND / 100).await;
        }
        there
    }

    /// Starts the cooldown, if that is the control: another caller gets a 429 while the attempt
    /// runs.
    fn begins(self, there: &Destination, clock: impl Clock) {
        if self == Self::Cooldown {
            let once = once();
            let mut other = Driver::builder(&once, clock).destination(there).start();
            let permit = other.enter(None).permit().unwrap();
            other.on_attempt(permit);
            other.on_failure(&Failure::throttled().hint(Hint::after(60 * SECOND)));
        }
    }

    /// Checks that one attempt was made, and that its error is kept.
    fn check(self, gave_up: &GaveUp<&str>) {
        assert_eq!(gave_up.error(), Some(&"refused"), "{self:?}: {gave_up}");
        let reason = match self {
            Self::CircuitBreaker | Self::Patience => StopReason::CircuitBreaker,
            Self::Cooldown | Self::Rate => StopReason::RetryLater,
        };
        assert_eq!(
            (gave_up.reason(), gave_up.attempts()),
            (reason, 1),
            "{self:?}"
        );
        let until = match self {
            Self::CircuitBreaker | Self::Patience => LIMIT,
            // Immediately: a caller does not wait for a permit that comes too late.
            Self::Cooldown | Self::Rate => SECOND / 10,
        };
        let elapsed = gave_up.elapsed();
        assert!(
            elapsed <= until + SECOND / 100 && elapsed + SECOND / 10 >= until,
            "{self:?}: {elapsed:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_async_loop_keeps_the_error_while_the_retry_is_held_back() {
    for by in ALL {
        let (policy, there) = (by.policy(), by.destination().await);
        let attempt = || async {
            by.begins(&there, TokioClock);
            Err::<(), _>("refused")
        };
        by.check(
            &retry(&policy, attempt)
                .destination(&there)
                .await
                .unwrap_err(),
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_borrowing_loops_keep_the_error_while_the_retry_is_held_back() {
    for by in ALL {
        let (policy, there) = (by.policy(), by.destination().await);
        let attempt = async |_| {
            by.begins(&there, TokioClock);
            Err::<(), _>("refused")
        };
        let result = retry_mut(&policy, attempt).destination(&there).run().await;
        by.check(&result.unwrap_err());

        let there = by.destination().await;
        let mut attempts = 0;
        let result = retry_on(&policy, &mut attempts, |attempts, _| {
            *attempts += 1;
            by.begins(&there, TokioClock);
            Box::pin(async { Err::<(), _>("refused") })
        });
        by.check(&result.destination(&there).run().await.unwrap_err());
    }
}

#[tokio::test(start_paused = true)]
async fn the_hedging_loop_keeps_the_error_while_the_retry_is_held_back() {
    for by in ALL {
        let (policy, there) = (by.policy(), by.destination().await);
        let hedge = HedgeConfig::after(SECOND);
        let policy = policy.into_builder().hedge(hedge).build().unwrap();
        let attempt = || async {
            by.begins(&there, TokioClock);
            Err::<(), _>("refused")
        };
        let hedged = retry(&policy, attempt).destination(&there);
        by.check(&hedged.await.unwrap_err());
    }
}

#[test]
fn the_blocking_loop_keeps_the_error_while_the_retry_is_held_back() {
    for by in ALL {
        let (policy, clock) = (by.policy(), VirtualClock::new());
        let there = Destination::new(&policy);
        while by.is_circuit_breaker() && !there.is_down() {
            let once = once();
            let down = blocking::retry(&once, || Err::<(), _>("down"));
            let down = down.destination(&there).clock(&clock);
            down.run().unwrap_err();
            clock.advance(SECOND / 100);
        }
        let result = blocking::retry(&policy, || {
            by.begins(&there, &clock);
            Err::<(), _>("refused")
        });
        by.check(&result.destination(&there).clock(&clock).run().unwrap_err());
    }
}
