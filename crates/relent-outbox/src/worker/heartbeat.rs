//! Heartbeats of a worker, in a task of their own so that nothing delays them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::observe;
use crate::store::Store;

/// The known state of the worker's lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LeaseState {
    /// The lease is held at least until then; counted from before the store was asked.
    pub(super) until: Option<Instant>,
    /// The number of times it was lost.
    pub(super) lost: u64,
    /// The number of endpoints that are this worker's share.
    pub(super) share: usize,
}

impl LeaseState {
    pub(super) const NONE: Self = Self {
        until: None,
        lost: 0,
        share: 0,
    };

    pub(super) fn is_held(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

/// Sends heartbeats until the pulse is dropped, and one immediately when it is nudged. At the end it releases the
/// lease, so that other workers get its share of the endpoints immediately.
pub(super) async fn heartbeat<S: Store>(
    store: S,
    name: String,
    lease: Duration,
    pulse: watch::Sender<LeaseState>,
    nudge: Arc<Notify>,
) {
    let each = lease / 3;
    loop {
        let asked = Instant::now();
        let (asked_of, own) = (store.clone(), name.clone());
        // In a task, so that a panic is a failure.
        let call = tokio::spawn(async move { asked_of.heartbeat(&own, lease).await });
        let wait = match timeout(each, call).await {
            Ok(Ok(Ok(heartbeat))) => {
                pulse.send_modify(|pulse| {
                    // A new worker had no lease to lose. An expired lease is lost whatever the store responds: it may
                    // have reported the loss in a response that was lost.
                    let is_lost = |until| !heartbeat.kept || until <= asked;
                    pulse.lost += u64::from(pulse.until.is_some_and(is_lost));
                    pulse.until = Some(asked + lease);
                    pulse.share = heartbeat.share;
                });
                each
            }
            failed => {
                let error = match failed {
                    Ok(Ok(Err(error))) => error.to_string(),
                    Ok(_) => "the store has panicked".to_owned(),
                    Err(_) => "the store does not answer".to_owned(),
                };
                observe::store_error("heartbeat", &error);
                each / 10
            }
        };
        tokio::select! {
            () = pulse.closed() => break,
            () = sleep(wait) => {}
            () = nudge.notified() => {}
        }
    }
    // If this fails, the lease expires.
    let _ = timeout(each, store.heartbeat(&name, Duration::ZERO)).await;
}
