//! Before each attempt of a command its destination is asked, as its policy has it.

use relent::Policy;
use relent::clock::TokioClock;
use relent::destination::Holding;
use relent::driver::{Driver, Leave, Next, Stop, Target};
use relent::random::Random;

use crate::live::Live;

/// Says that nothing is hedged, if the policy would.
pub(crate) fn say_what_does_not_apply(policy: &Policy, live: Live, why: &str) {
    if policy.hedge().is_some() && policy.max_retries() != Some(0) {
        live.say(|| format!("the [hedge] of the policy does not apply: {why}"));
    }
}

/// Waits until the next attempt may start, and says what holds it back. Can be dropped at any time.
///
/// # Errors
/// When the session is to give up.
pub(crate) async fn admitted<R: Random, D: Target>(
    driver: &mut Driver<'_, TokioClock, R, &Policy, D>,
    live: Live,
) -> Result<Leave, Stop> {
    let mut told = None;
    loop {
        // There is one caller, so nobody changes what it is told.
        match driver.enter(None) {
            Next::Start(leave) => return Ok(leave),
            Next::Stop(stop) => return Err(stop),
            Next::Wait { after, by, .. } => {
                // Where each wait is a line, one is enough.
                let again = told.replace(by) == Some(by);
                live.held(name(by), after, again).await;
            }
        }
    }
}

const fn name(by: Holding) -> &'static str {
    match by {
        Holding::Cooldown => "the cooldown",
        Holding::RequestRate => "the request rate",
        Holding::Gate => "the gate",
        _ => by.name(),
    }
}
