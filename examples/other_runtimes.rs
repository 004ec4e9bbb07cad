//! Retries without tokio: delays use smol's timer, in one line. That timer has its own thread, so it works on any
//! executor, such as async-std's or `futures::executor`.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use relent::clock::SleepBy;
use relent::{Destination, Policy, retry};

static CALLS: AtomicU32 = AtomicU32::new(0);

/// Succeeds at the third call; the second one never ends.
async fn fetch() -> std::io::Result<&'static str> {
    match CALLS.fetch_add(1, Ordering::Relaxed) {
        0 => Err(std::io::ErrorKind::ConnectionReset.into()),
        1 => std::future::pending().await,
        _ => Ok("an answer, without tokio"),
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A single job, which may wait. `standard` does not retry a timeout before it knows the latency of a success.
    let policy = Policy::PATIENT.clone().into_builder();
    let policy = policy.attempt_timeout(Duration::from_millis(200)).build()?;
    let there = Destination::new(&policy);
    let answer = smol::block_on(async {
        retry(&policy, fetch)
            .clock(SleepBy(smol::Timer::after))
            .destination(&there)
            .notify(|notice| eprintln!("{notice}"))
            .await
    })?;
    println!("{answer}");
    Ok(())
}
