//! Releases readiness while a call waits.
//!
//! A ready service has reserved capacity for the next call: a permit of a concurrency limit, a slot
//! in a buffer. While it is not ready, it may hold a place in the queue for that. So an instance that was
//! polled and is not called immediately is replaced by a clone, which has neither. Otherwise a waiting call
//! could block the very calls that it waits for.
//!
//! Likewise, while the service is not ready, the permit of the destination is released.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use relent::clock::Sleeper;
use relent::driver::{CallPermit, NextStep};
use relent::timer::Timer;
use relent_core::{Stop, StopReason};
use tower_service::Service;

use super::CallDriver;

/// Releases the readiness of this service, and its place in the queue for it.
#[cold]
pub(super) fn release_readiness<S: Clone>(service: &mut S) {
    *service = service.clone();
}

/// The wait of an attempt before it is sent: it needs a permit of its destination and a ready service, both at the
/// same time.
#[derive(Clone, Copy)]
pub(super) enum Reserve {
    /// Waits for the permit of the destination; the service has not been polled.
    Permit,
    /// Waits for the service; the permit of the destination has been released.
    Readiness { timed: bool },
}

/// Reason why an attempt cannot be sent.
pub(super) enum CannotStart<E> {
    /// The destination held it for as long as it may wait.
    HeldBack(Stop),
    /// The service was not ready before this limit.
    NotReady(StopReason),
    /// The service failed and will not become ready.
    Broken(E),
}

impl Reserve {
    /// Ready when the attempt must be sent now, or cannot be sent.
    pub(super) fn poll<S, T, K>(
        &mut self,
        driver: &mut CallDriver<K>,
        service: &mut S,
        timer: &mut Timer<K>,
        context: &mut Context<'_>,
    ) -> Poll<Result<CallPermit, CannotStart<S::Error>>>
    where
        S: Service<T> + Clone,
        K: Sleeper,
    {
        loop {
            match self {
                Self::Permit => {
                    let entered = ready!(driver.poll_enter(context, timer));
                    let permit = entered.map_err(CannotStart::HeldBack)?;
                    match service.poll_ready(context) {
                        Poll::Ready(Ok(())) => return Poll::Ready(Ok(permit)),
                        Poll::Ready(Err(error)) => {
                            return Poll::Ready(Err(CannotStart::Broken(error)));
                        }
                        Poll::Pending => {
                            driver.release_permit(permit);
                            *self = Self::Readiness { timed: false };
                        }
                    }
                }
                Self::Readiness { timed } => {
                    if service
                        .poll_ready(context)
                        .map_err(CannotStart::Broken)?
                        .is_pending()
                    {
                        if !*timed {
                            let Some(room) = driver.room() else {
                                return Poll::Pending;
                            };
                            *timed = true;
                            // An attempt may still start at the last instant, so wait past it.
                            let late = room.saturating_add(Duration::from_nanos(1));
                            timer.set(driver.clock(), late);
                        }
                        ready!(timer.poll(context));
                        let reason = driver.too_late().unwrap_or(StopReason::Deadline);
                        return Poll::Ready(Err(CannotStart::NotReady(reason)));
                    }
                    match driver.enter(Some(context.waker())) {
                        NextStep::Start(permit) => return Poll::Ready(Ok(permit)),
                        NextStep::Stop(stop) => {
                            return Poll::Ready(Err(CannotStart::HeldBack(stop)));
                        }
                        NextStep::Wait { .. } => {
                            release_readiness(service);
                            *self = Self::Permit;
                        }
                    }
                }
            }
        }
    }
}
