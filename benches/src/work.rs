//! The operations of all subjects, and the functions that drive them.

use std::cell::Cell;
use std::future::poll_fn;
use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The timeout of one attempt.
pub const LIMIT: Duration = Duration::from_secs(5);

/// The error of the operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed;

/// Succeeds immediately. Not inlined, as a real operation would not be.
#[inline(never)]
pub fn answer(question: u64) -> Result<u64, Failed> {
    Ok(black_box(question))
}

/// The same operation as a future of 16 bytes.
#[allow(
    clippy::unused_async,
    reason = "it stands for an operation that could wait"
)]
pub async fn ask(question: u64) -> Result<u64, Failed> {
    answer(question)
}

/// Fails three times, then succeeds, and so on.
#[inline(never)]
pub fn fourth_time(calls: &Cell<u64>) -> Result<u64, Failed> {
    let call = calls.get() + 1;
    if call > 3 {
        calls.set(0);
        return Ok(black_box(call));
    }
    calls.set(call);
    Err(Failed)
}

/// The same operation as a future of 16 bytes.
#[allow(
    clippy::unused_async,
    reason = "it stands for an operation that could wait"
)]
pub async fn ask_four_times(calls: &Cell<u64>) -> Result<u64, Failed> {
    fourth_time(calls)
}

/// Polls a future that is immediately ready, as the task that awaits it would: the future is in memory, and its poll
/// is not specialized by its construction.
#[inline(always)]
pub fn poll_once<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    black_box(&mut future);
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("no operation here waits"),
    }
}

/// Waits once, and is ready at the second poll.
pub async fn ask_later(question: u64) -> Result<u64, Failed> {
    let mut waited = false;
    poll_fn(|_| {
        let ready = std::mem::replace(&mut waited, true);
        if ready {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    answer(question)
}

/// Polls a future that waits once.
#[inline(always)]
pub fn poll_twice<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    black_box(&mut future);
    let mut context = Context::from_waker(Waker::noop());
    let first = future.as_mut().poll(&mut context);
    assert!(first.is_pending(), "it waits once");
    match future.poll(&mut context) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("it waits once"),
    }
}

/// A tokio runtime, for subjects that need its timer for a delay.
#[must_use]
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap_or_else(|error| unreachable!("a runtime without I/O needs nothing: {error}"))
}

/// A budget that two threads share.
pub trait Allowance: Sync {
    /// One deposit and one withdrawal of the same size, so that it neither fills nor empties.
    fn pair(&self, turn: u64);
}
