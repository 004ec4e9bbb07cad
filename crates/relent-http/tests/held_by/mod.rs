//! What holds a retry back for as long as it may wait.

use std::time::Duration;

use relent::clock::TokioClock;
use relent::driver::Driver;
use relent::policy::RequestRateConfig;
use relent::{Destination, Failure, Hint, Policy, StopReason, retry};
use tokio::time::sleep;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// What holds the retry back.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum By {
    Gate,
    Cooldown,
    Rate,
}

pub(crate) const ALL: [By; 3] = [By::Gate, By::Cooldown, By::Rate];

impl By {
    /// A deadline before which the retry does not go.
    pub(crate) fn policy(self) -> Policy {
        let policy = Policy::STANDARD.clone().into_builder();
        let policy = match self {
            // After the first probe, half a second after closing, and before the second.
            Self::Gate => policy.deadline(SECOND * 9 / 10),
            Self::Cooldown => policy.deadline(20 * SECOND),
            Self::Rate => policy
                .deadline(20 * SECOND)
                .request_rate(RequestRateConfig {
                    burst: Some(1),
                    ..RequestRateConfig::new(0.01)
                }),
        };
        policy.build().unwrap()
    }

    /// A destination that is down already, if the gate is to hold back: the attempt is a probe then.
    pub(crate) async fn destination(self) -> Destination {
        let there = Destination::new(self.policy());
        let once = once();
        while self == Self::Gate && !there.is_closed() {
            let down = retry(&once, || async { Err::<(), _>("down") });
            down.destination(&there).await.unwrap_err();
            sleep(SECOND / 100).await;
        }
        there
    }

    /// What another meets while the attempt runs.
    pub(crate) fn begins(self, there: &Destination) {
        if self == Self::Cooldown {
            let once = once();
            let mut other = Driver::builder(&once, TokioClock)
                .destination(there)
                .start();
            let leave = other.enter(None).leave().unwrap();
            other.on_attempt(leave);
            other.on_failure(&Failure::throttled().hint(Hint::after(60 * SECOND)));
        }
    }

    /// Why a session ends whose retry is held back so.
    pub(crate) const fn reason(self) -> StopReason {
        match self {
            Self::Gate => StopReason::Gate,
            Self::Cooldown | Self::Rate => StopReason::RetryLater,
        }
    }
}

fn once() -> Policy {
    let policy = Policy::STANDARD.clone().into_builder();
    policy.max_retries(0).build().unwrap()
}
