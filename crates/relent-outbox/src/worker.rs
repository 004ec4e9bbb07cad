//! Workers: they take endpoints, claim due messages, send them and record the results.
//!
//! ```text
//! find work ──► acquire ──► permission (slot, breaker, rate limit, cooldown) ──► claim ──► send ──► settle
//!     ▲                         one state per endpoint                                                │
//!     └──────────────────── every second, at a hint, when a delay is over ◄───────────────────────────┘
//! ```
//!
//! Finding work costs as much as there are endpoints with work. If a hint names the endpoints with new messages, the
//! worker skips it: it immediately claims messages of its own endpoints, and acquires the others.
//!
//! A message is claimed, and its attempt counted, only when its endpoint may send. A claim permits an attempt to start
//! for a short time; after that the worker asks the store for confirmation. A change of an endpoint waits that long,
//! and no attempt starts by the old rules afterwards. One task decides; attempts and store calls run in tasks of their
//! own, so none blocks another.

mod ability;
mod admission;
pub(crate) mod attempt;
mod claim_batch;
mod clock;
mod config;
mod demand;
mod endpoint_speed;
mod endpoint_state;
mod event_loop;
mod fault_hold;
mod held_endpoints;
mod in_flight;
mod isolation;
mod lease;
mod ownership;
mod payload_memory;
pub(crate) mod permission;
mod ready_queue;
mod results;
mod rules;
mod search;
mod slots;
mod store_calls;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::observe;
use crate::relay::Relay;
use crate::secrets::{KeyError, Secrets};
use crate::sender::Sender;
use crate::store::Store;
use attempt::Transport;
use event_loop::{EventLoop, Setup};

pub use config::{Drained, WorkerConfig};
pub use held_endpoints::{HeldEndpoint, HoldMonitor, HoldReason};

/// Delivers the messages of a store, together with any number of other workers.
///
/// One worker at a time owns an endpoint, so its concurrency, rate limit and circuit breaker hold for the whole
/// fleet. The state learned from attempts (breaker, cooldown) is local: the next owner starts without it.
#[derive(Debug)]
pub struct Worker<S> {
    store: S,
    sender: Sender,
    secrets: Secrets,
    config: WorkerConfig,
    hint: Arc<Notify>,
    relay: Option<Box<dyn Relay>>,
    watch: HoldMonitor,
    asked: held_endpoints::HeldRequests,
}

/// Wakes a worker in the same process after something was enqueued, so that it looks for work immediately. Optional.
#[derive(Clone, Debug)]
pub struct Hint(Arc<Notify>);

impl Hint {
    /// Signals that there may be work.
    pub fn wake(&self) {
        self.0.notify_one();
    }
}

impl<S: Store> Worker<S> {
    /// Creates a worker for this store, after a check that the key in `secrets` decrypts its signing keys.
    ///
    /// # Errors
    /// [`KeyError`] if the key does not decrypt them, or if the store fails.
    pub async fn open(
        store: S,
        sender: Sender,
        secrets: Secrets,
        config: WorkerConfig,
    ) -> Result<Self, KeyError<S::Error>> {
        secrets.check(&store).await?;
        Ok(Self::new(store, sender, secrets, config))
    }

    /// Creates a worker without access to the store. If the key cannot decrypt the secrets of an endpoint, its messages
    /// are held, as with any [local fault](crate::fault).
    #[must_use]
    pub fn new(store: S, sender: Sender, secrets: Secrets, config: WorkerConfig) -> Self {
        let (watch, asked) = HoldMonitor::new(config.name.clone());
        Self {
            store,
            sender,
            secrets,
            config,
            hint: Arc::new(Notify::new()),
            watch,
            asked,
            relay: None,
        }
    }

    /// Gives its attempts to this [relay](crate::relay): the worker decides as before, and makes no HTTP request itself.
    #[must_use]
    pub fn relay(mut self, relay: impl Relay + 'static) -> Self {
        self.relay = Some(Box::new(relay));
        self
    }

    /// Returns a handle that shows which messages the worker holds back, and why.
    #[must_use]
    pub fn watch(&self) -> HoldMonitor {
        self.watch.clone()
    }

    /// Returns a handle to wake the worker.
    #[must_use]
    pub fn hint(&self) -> Hint {
        Hint(Arc::clone(&self.hint))
    }

    /// Works until `shutdown` completes, then shuts down: it claims nothing more, waits for running attempts up to
    /// [`WorkerConfig::drain`], records them, and releases its endpoints and its lease. After `shutdown` it takes at
    /// most [`WorkerConfig::drain`] and three leases.
    ///
    /// While the store is unavailable it waits, and writes its results when the store is back.
    ///
    /// Call it within a tokio runtime with time and I/O. Dropping the future is like killing the worker: its attempts
    /// are lost, and the next owners of its endpoints repeat them.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Drained {
        let Self {
            store,
            sender,
            secrets,
            config,
            hint,
            relay,
            watch: _,
            asked,
        } = self;
        observe::start_counters(&observe::METRICS, &observe::LABELS);
        let transport = match relay {
            Some(relay) => relay.start(),
            None => Transport::with_sender(sender.clone()),
        };
        let setup = Setup {
            store,
            sender,
            secrets,
            config,
            hint,
        };
        EventLoop::run(setup, transport, asked, shutdown).await
    }
}
