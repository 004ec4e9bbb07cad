//! Heartbeats of a worker, in a task of their own so that nothing delays them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use super::bodies::PayloadPermit;
use super::grants::{Grants, NotGranted};
use crate::observe;
use crate::store::{ConfirmRequest, Store};

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

/// Permission to start an attempt: for [`GRANT`](crate::store::GRANT) from its claim, while the lease of the claim is
/// held and the worker is not stopping.
#[derive(Clone, Debug)]
pub(crate) struct StartPermission {
    pub(super) pulse: watch::Receiver<LeaseState>,
    /// [`LeaseState::lost`] at the claim.
    pub(super) lost: u64,
    pub(super) stopping: watch::Receiver<bool>,
    /// Until then the endpoint is unchanged since the store was asked, or its change has not returned yet.
    pub(super) until: Instant,
    pub(super) grants: Grants,
    pub(super) confirm: ConfirmRequest,
}

impl StartPermission {
    /// The time for which it is valid from `now` on, at least; zero if it is not.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        let grant = self.until.saturating_duration_since(now);
        self.left_of_lease(now).min(grant)
    }

    /// The time for which it can be valid if an expired grant is renewed; zero if it cannot.
    pub(crate) fn left_of_lease(&self, now: Instant) -> Duration {
        let pulse = *self.pulse.borrow();
        match pulse.until {
            Some(until) if pulse.lost == self.lost && !*self.stopping.borrow() => {
                until.saturating_duration_since(now)
            }
            _ => Duration::ZERO,
        }
    }

    /// Renews the permission, and loads the payload if `size` is not zero, into the memory of `memory`.
    pub(super) async fn ask(
        &mut self,
        size: usize,
        memory: Option<PayloadPermit>,
    ) -> Result<Bytes, NotGranted> {
        self.confirm.payload = size > 0;
        let granted = self.grants.ask(self.confirm, size, memory).await?;
        self.until = granted.until;
        Ok(granted.payload)
    }

    /// Renews the permission; `false` if it is denied.
    #[cfg(feature = "nats")]
    pub(crate) async fn renew(&mut self) -> bool {
        self.ask(0, None).await.is_ok()
    }

    /// Waits until the worker stops.
    #[cfg(feature = "nats")]
    pub(crate) async fn stopped(&mut self) {
        // An error means that the worker is gone.
        let _ = self.stopping.wait_for(|stopping| *stopping).await;
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
