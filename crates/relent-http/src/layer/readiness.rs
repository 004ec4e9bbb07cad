//! No wait holds readiness.
//!
//! A service that says that it is ready has set something aside for the call that follows: a permit of
//! a concurrency limit, a place in a buffer. Even while it is not ready, it may hold a place in the line
//! for that. So an instance that was polled, and is not called at once, is replaced by a clone, which
//! has neither; else a call that waits for something else would keep out those it waits for.
//!
//! The same holds for the destination: while the service is not ready, its leave is given back.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use relent::clock::Sleeper;
use relent::driver::{Leave, Next};
use relent::timer::Timer;
use relent_core::{Stop, StopReason};
use tower_service::Service;

use super::CallDriver;

/// Gives up the readiness of this service, and its place in the line for it.
#[cold]
pub(super) fn let_go<S: Clone>(service: &mut S) {
    *service = service.clone();
}

/// What an attempt waits for before it is sent: it needs the leave of its destination and a service that
/// is ready, both at once.
#[derive(Clone, Copy)]
pub(super) enum Reserve {
    /// For the leave of the destination; the service has not been polled.
    Leave,
    /// For the service; the destination has been given its leave back.
    Readiness { timed: bool },
}

/// Why an attempt cannot be sent.
pub(super) enum Unable<E> {
    /// The destination held it back for as long as it may wait.
    HeldBack(Stop),
    /// The service was not ready before this limit.
    NotReady(StopReason),
    /// The service never will be.
    Broken(E),
}

impl Reserve {
    /// Ready when the attempt is to be sent now, or cannot be.
    pub(super) fn poll<S, T, K>(
        &mut self,
        driver: &mut CallDriver<K>,
        service: &mut S,
        timer: &mut Timer<K>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Leave, Unable<S::Error>>>
    where
        S: Service<T> + Clone,
        K: Sleeper,
    {
        loop {
            match self {
                Self::Leave => {
                    let entered = ready!(driver.poll_enter(context, timer));
                    let leave = entered.map_err(Unable::HeldBack)?;
                    match service.poll_ready(context) {
                        Poll::Ready(Ok(())) => return Poll::Ready(Ok(leave)),
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(Unable::Broken(error))),
                        Poll::Pending => {
                            driver.step_back(leave);
                            *self = Self::Readiness { timed: false };
                        }
                    }
                }
                Self::Readiness { timed } => {
                    if service
                        .poll_ready(context)
                        .map_err(Unable::Broken)?
                        .is_pending()
                    {
                        if !*timed {
                            let Some(room) = driver.room() else {
                                return Poll::Pending;
                            };
                            *timed = true;
                            // The last instant at which it may start is in time.
                            let late = room.saturating_add(Duration::from_nanos(1));
                            timer.set(driver.clock(), late);
                        }
                        ready!(timer.poll(context));
                        let reason = driver.too_late().unwrap_or(StopReason::Deadline);
                        return Poll::Ready(Err(Unable::NotReady(reason)));
                    }
                    match driver.enter(Some(context.waker())) {
                        Next::Start(leave) => return Poll::Ready(Ok(leave)),
                        Next::Stop(stop) => return Poll::Ready(Err(Unable::HeldBack(stop))),
                        Next::Wait { .. } => {
                            let_go(service);
                            *self = Self::Leave;
                        }
                    }
                }
            }
        }
    }
}
