//! Polling for the result of a job, with growing delays, on a virtual clock: how many polls does an hour cost?
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::time::Duration;

use relent::{Backoff, Policy, PollOutcome, VirtualClock, poll_until};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let policy = Policy::builder(Backoff::elapsed(Duration::from_secs(1), 0.5))
        .unlimited_retries()
        .deadline(Duration::from_secs(24 * 3600))
        .build()?;
    let clock = VirtualClock::new();
    let mut looks = 0;
    let state = poll_until(&policy, || {
        looks += 1;
        let done = clock.elapsed() >= Duration::from_secs(3600);
        async move {
            Ok::<_, std::io::Error>(if done {
                PollOutcome::Done("paid")
            } else {
                PollOutcome::Pending
            })
        }
    })
    .clock(clock.clone())
    .await?;
    println!("{state} after {looks} looks in {:?}", clock.elapsed());
    Ok(())
}
