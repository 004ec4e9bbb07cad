//! Admission of each attempt by its destination, according to the policy.

use relent::Policy;
use relent::clock::TokioClock;
use relent::driver::{CallPermit, Driver, Stop};

use crate::live_output::{Countdown, SessionMessages};

/// Reports that the hedging of the policy does not apply.
pub(crate) fn report_no_hedging(policy: &Policy, live: SessionMessages, why: &str) {
    if policy.hedge().is_some() && policy.max_retries() != Some(0) {
        live.say(|| format!("the [hedge] of the policy does not apply: {why}"));
    }
}

/// Waits until the next attempt may start, and shows why it is held. Can be dropped at any time.
///
/// # Errors
/// The session must give up.
pub(crate) async fn admitted(
    driver: &mut Driver<'_, TokioClock>,
    live: SessionMessages,
) -> Result<CallPermit, Stop> {
    let countdown = Countdown::new(live);
    tokio::select! {
        biased;
        entered = driver.entered_notifying(|queued| countdown.queued(queued)) => entered,
        never = countdown.draw() => match never {},
    }
}
