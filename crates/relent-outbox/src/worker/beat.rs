//! The worker's sign of life, in a task of its own so that nothing else delays it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use super::bodies::Held;
use super::grants::{Grants, NotGranted};
use crate::observe;
use crate::store::{Confirm, Store};

/// What is known of the worker's lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pulse {
    /// It is held until then, at least; counted from before the store was asked.
    pub(super) until: Option<Instant>,
    /// How often it was lost.
    pub(super) lost: u64,
    /// How many endpoints are this worker's share.
    pub(super) share: usize,
}

impl Pulse {
    pub(super) const NONE: Self = Self {
        until: None,
        lost: 0,
        share: 0,
    };

    pub(super) fn is_held(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

/// Leave to begin an attempt: for [`GRANT`](crate::store::GRANT) from its claim, as long as the lease that it was claimed
/// with is held, and the worker does not end.
#[derive(Clone, Debug)]
pub(crate) struct Leave {
    pub(super) pulse: watch::Receiver<Pulse>,
    /// [`Pulse::lost`] when it was claimed.
    pub(super) lost: u64,
    pub(super) stopping: watch::Receiver<bool>,
    /// Until then the endpoint is as it was when the store was asked, or whoever has changed it still waits.
    pub(super) until: Instant,
    pub(super) grants: Grants,
    pub(super) confirm: Confirm,
}

impl Leave {
    /// For how long it holds from `now` on, at least; zero if it does not.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        let grant = self.until.saturating_duration_since(now);
        self.left_of_lease(now).min(grant)
    }

    /// The same if it is asked for again when the grant is over.
    pub(crate) fn left_of_lease(&self, now: Instant) -> Duration {
        let pulse = *self.pulse.borrow();
        match pulse.until {
            Some(until) if pulse.lost == self.lost && !*self.stopping.borrow() => {
                until.saturating_duration_since(now)
            }
            _ => Duration::ZERO,
        }
    }

    /// Asks for leave anew, and for the payload if it has a size, for which there is room.
    pub(super) async fn ask(
        &mut self,
        size: usize,
        room: Option<Held>,
    ) -> Result<Bytes, NotGranted> {
        self.confirm.payload = size > 0;
        let granted = self.grants.ask(self.confirm, size, room).await?;
        self.until = granted.until;
        Ok(granted.payload)
    }

    /// Asks for leave anew; whether there is some.
    #[cfg(feature = "nats")]
    pub(crate) async fn renew(&mut self) -> bool {
        self.ask(0, None).await.is_ok()
    }

    /// Until the worker ends.
    #[cfg(feature = "nats")]
    pub(crate) async fn stopped(&mut self) {
        // An error means that the worker is gone.
        let _ = self.stopping.wait_for(|stopping| *stopping).await;
    }
}

/// Gives signs of life until the pulse is dropped, and one at once when it is nudged. In the end it gives the lease back, so
/// that the worker's share of the endpoints is the others' at once.
pub(super) async fn beat<S: Store>(
    store: S,
    name: String,
    lease: Duration,
    pulse: watch::Sender<Pulse>,
    nudge: Arc<Notify>,
) {
    let each = lease / 3;
    loop {
        let asked = Instant::now();
        let (asked_of, own) = (store.clone(), name.clone());
        // In a task, so that a panic is a failure.
        let call = tokio::spawn(async move { asked_of.beat(&own, lease).await });
        let wait = match timeout(each, call).await {
            Ok(Ok(Ok(beat))) => {
                pulse.send_modify(|pulse| {
                    // A new worker had no lease to lose. One that has run out is lost whatever the store says: it may
                    // have said so in an answer that was lost.
                    let is_lost = |until| !beat.kept || until <= asked;
                    pulse.lost += u64::from(pulse.until.is_some_and(is_lost));
                    pulse.until = Some(asked + lease);
                    pulse.share = beat.share;
                });
                each
            }
            failed => {
                let error = match failed {
                    Ok(Ok(Err(error))) => error.to_string(),
                    Ok(_) => "the store has panicked".to_owned(),
                    Err(_) => "the store does not answer".to_owned(),
                };
                observe::store_error("beat", &error);
                each / 10
            }
        };
        tokio::select! {
            () = pulse.closed() => break,
            () = sleep(wait) => {}
            () = nudge.notified() => {}
        }
    }
    // If it fails the lease runs out.
    let _ = timeout(each, store.beat(&name, Duration::ZERO)).await;
}
