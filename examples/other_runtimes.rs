//! Without tokio: a clock that waits by the timer of smol. That timer has a thread of its own, so it
//! works on any executor, such as async-std's or `futures::executor`.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use relent::clock::{Clock, Instant, Sleeper, StdClock};
use relent::{Destination, Policy, retry};

/// The time of the standard library, and smol's timer.
#[derive(Clone, Copy)]
struct SmolClock;

impl Clock for SmolClock {
    fn now(&self) -> Instant {
        StdClock.now()
    }
}

impl Sleeper for SmolClock {
    type Sleep = SmolSleep;

    fn sleep(&self, duration: Duration) -> SmolSleep {
        SmolSleep(smol::Timer::after(duration))
    }
}

struct SmolSleep(smol::Timer);

impl Future for SmolSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context).map(drop)
    }
}

static CALLS: AtomicU32 = AtomicU32::new(0);

/// Answers at its third call; the second does not end.
async fn fetch() -> std::io::Result<&'static str> {
    match CALLS.fetch_add(1, Ordering::Relaxed) {
        0 => Err(std::io::ErrorKind::ConnectionReset.into()),
        1 => std::future::pending().await,
        _ => Ok("an answer, without tokio"),
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // One job of its own, which waits rather than fails. `standard` does not repeat what timed out before it
    // knows how long successes take.
    let policy = Policy::PATIENT.clone().into_builder();
    let policy = policy.attempt_timeout(Duration::from_millis(200)).build()?;
    let there = Destination::new(&policy);
    let answer = smol::block_on(async {
        retry(&policy, fetch)
            .clock(SmolClock)
            .destination(&there)
            .notify(|notice| eprintln!("{notice}"))
            .await
    })?;
    println!("{answer}");
    Ok(())
}
