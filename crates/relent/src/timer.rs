//! One timer, made when it is first needed and used again.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock::Sleeper;

pub(crate) fn set_timer<K: Sleeper>(
    timer: &mut Option<Pin<Box<K::Sleep>>>,
    clock: &K,
    duration: Duration,
) {
    let sleep = clock.sleep(duration);
    match timer {
        Some(timer) => timer.as_mut().set(sleep),
        None => *timer = Some(Box::pin(sleep)),
    }
}

pub(crate) fn poll_timer<S: Future<Output = ()>>(
    timer: &mut Option<Pin<Box<S>>>,
    context: &mut Context<'_>,
) -> Poll<()> {
    match timer {
        Some(timer) => timer.as_mut().poll(context),
        None => Poll::Ready(()),
    }
}
