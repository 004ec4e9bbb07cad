//! Admission of each attempt by its destination, according to the policy.

use relent::Policy;
use relent::clock::TokioClock;
use relent::driver::{Driver, Leave, Stop, Target};
use relent::random::Random;

use crate::live::{Countdown, Live};

/// Reports that the hedging of the policy does not apply.
pub(crate) fn say_what_does_not_apply(policy: &Policy, live: Live, why: &str) {
    if policy.hedge().is_some() && policy.max_retries() != Some(0) {
        live.say(|| format!("the [hedge] of the policy does not apply: {why}"));
    }
}

/// Waits until the next attempt may start, and shows why it is held. Can be dropped at any time.
///
/// # Errors
/// The session must give up.
pub(crate) async fn admitted<R: Random, D: Target>(
    driver: &mut Driver<'_, TokioClock, R, &Policy, D>,
    live: Live,
) -> Result<Leave, Stop> {
    let countdown = Countdown::new(live);
    tokio::select! {
        biased;
        entered = driver.entered_telling(|queued| countdown.queued(queued)) => entered,
        never = countdown.draw() => match never {},
    }
}
