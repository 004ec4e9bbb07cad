//! Permission to start an attempt: its limits, its renewal, and loading of large payloads when their attempts start.
//!
//! One store call serves all waiting requests. It holds at most [`MAX_LOADED_BYTES`] bytes of payloads in addition to those that
//! the [memory limit](super::bodies) counts.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::lease::LeaseState;
use super::payload_memory::PayloadPermit;
use super::store_calls::call_within;
use crate::observe;
use crate::store::{ConfirmRequest, GRANT, Store};

/// Permission to start an attempt: for [`GRANT`] from its claim, while the lease of the claim is held and the worker is
/// not stopping.
#[derive(Clone, Debug)]
pub struct StartPermission {
    lease: watch::Receiver<LeaseState>,
    /// [`LeaseState::lost`] at the claim.
    lost: u64,
    stopping: watch::Receiver<bool>,
    /// Until then the endpoint is unchanged since the store was asked, or its change has not returned yet.
    until: Instant,
    grants: Grants,
    confirm: ConfirmRequest,
}

impl StartPermission {
    /// The time for which it is valid from `now` on, at least; zero if it is not.
    #[must_use]
    pub fn left(&self, now: Instant) -> Duration {
        let grant = self.until.saturating_duration_since(now);
        self.left_of_lease(now).min(grant)
    }

    /// The time for which it can be valid if an expired grant is renewed; zero if it cannot.
    #[must_use]
    pub fn left_of_lease(&self, now: Instant) -> Duration {
        let lease = *self.lease.borrow();
        match lease.until {
            Some(until) if lease.lost == self.lost && !*self.stopping.borrow() => {
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
    pub async fn renew(&mut self) -> bool {
        self.ask(0, None).await.is_ok()
    }

    /// Waits until the worker stops.
    pub async fn stopped(&mut self) {
        // An error means that the worker is gone.
        let _ = self.stopping.wait_for(|stopping| *stopping).await;
    }
}

/// Issues the permissions of a worker, until it stops.
#[derive(Debug)]
pub(super) struct Permissions {
    lease: watch::Receiver<LeaseState>,
    grants: Grants,
    /// Notifies attempts that the worker is stopping.
    stopping: watch::Sender<bool>,
}

impl Permissions {
    /// Starts the task that renews permissions. No call of the store takes longer than `longest`.
    pub(super) fn new<S: Store>(
        store: S,
        worker: String,
        longest: Duration,
        lease: watch::Receiver<LeaseState>,
    ) -> Self {
        Self {
            lease,
            grants: Grants::of(store, worker, longest),
            stopping: watch::Sender::new(false),
        }
    }

    /// Issues the permission of an attempt that was claimed after `lost` losses of the lease.
    pub(super) fn issue(
        &self,
        lost: u64,
        until: Instant,
        confirm: ConfirmRequest,
    ) -> StartPermission {
        StartPermission {
            lease: self.lease.clone(),
            lost,
            stopping: self.stopping.subscribe(),
            until,
            grants: self.grants.clone(),
            confirm,
        }
    }

    /// Withdraws all permissions, as the worker is stopping.
    pub(super) fn stop(&self) {
        self.stopping.send_replace(true);
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }
}

/// The limits of one call, in attempts and in bytes; a single longer payload is loaded alone.
const MAX_CONFIRMATIONS: usize = 256;
const MAX_LOADED_BYTES: usize = 8 << 20;

/// Permission for one attempt, with its payload.
#[derive(Debug)]
struct Granted {
    payload: Bytes,
    until: Instant,
}

/// The reason for no permission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotGranted {
    /// The endpoint has changed, or another worker owns it.
    Refused,
    /// The store does not respond.
    Away,
}

/// A request: with the size of the payload and the memory for it, if it is to be loaded.
struct GrantRequest {
    confirm: ConfirmRequest,
    size: usize,
    memory: Option<PayloadPermit>,
    answer: oneshot::Sender<Result<Granted, NotGranted>>,
}

/// A handle for requests of attempts.
#[derive(Clone, Debug)]
struct Grants(mpsc::UnboundedSender<GrantRequest>);

impl Grants {
    /// Starts a task that serves requests from this store until all handles are dropped. No call takes longer than
    /// `longest`.
    fn of<S: Store>(store: S, worker: String, longest: Duration) -> Self {
        let (asks, mut asked) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            // A request that did not fit into the last call.
            let mut next: Option<GrantRequest> = None;
            while let Some(first) = match next.take() {
                Some(first) => Some(first),
                None => asked.recv().await,
            } {
                let (mut bytes, mut batch) = (first.size, vec![first]);
                while batch.len() < MAX_CONFIRMATIONS
                    && let Ok(one) = asked.try_recv()
                {
                    bytes = bytes.saturating_add(one.size);
                    if bytes > MAX_LOADED_BYTES {
                        next = Some(one);
                        break;
                    }
                    batch.push(one);
                }
                batch.retain(|one| !one.answer.is_closed());
                answer(&store, &worker, longest, batch).await;
            }
        });
        Self(asks)
    }

    async fn ask(
        &self,
        confirm: ConfirmRequest,
        size: usize,
        memory: Option<PayloadPermit>,
    ) -> Result<Granted, NotGranted> {
        let (answer, granted) = oneshot::channel();
        let asked = GrantRequest {
            confirm,
            size,
            memory,
            answer,
        };
        // This fails if the worker has ended.
        drop(self.0.send(asked));
        granted.await.unwrap_or(Err(NotGranted::Away))
    }
}

async fn answer<S: Store>(store: &S, worker: &str, longest: Duration, batch: Vec<GrantRequest>) {
    if batch.is_empty() {
        return;
    }
    let asked = Instant::now();
    let confirms = batch.iter().map(|one| one.confirm).collect();
    let (asked_of, own) = (store.clone(), worker.to_owned());
    let call = async move { asked_of.confirm(&own, confirms).await };
    match call_within(longest, call).await {
        Ok(confirmed) => {
            for (one, payload) in batch.into_iter().zip(confirmed) {
                let granted = payload.map(|payload| Granted {
                    payload: match one.memory {
                        Some(memory) => memory.keep(payload),
                        None => payload,
                    },
                    until: asked + GRANT,
                });
                // The receiver may be gone.
                drop(one.answer.send(granted.ok_or(NotGranted::Refused)));
            }
        }
        Err(error) => {
            observe::store_error("confirm", &error);
            for one in batch {
                drop(one.answer.send(Err(NotGranted::Away)));
            }
        }
    }
}
