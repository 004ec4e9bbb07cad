//! What sends: a worker takes endpoints, claims their messages and writes down what came of each attempt.
//!
//! ```text
//! find work ──► acquire ──► ask (slot, gate, request rate, cooldown) ──► claim ──► send ──► settle
//!     ▲                          one lane for each endpoint                          │
//!     └──────────────── every second, at a hint, when a delay is over ◄─────────────┘
//! ```
//!
//! A look for work costs as much as there are endpoints with work. So where a hint names the endpoints that have got
//! messages, there is none: it claims at once what is its own, and acquires the others.
//!
//! A message is claimed only when its endpoint may go, and its attempt is counted then. A claim is leave to begin for a short
//! time, after which the attempt asks the store again: so whoever changes an endpoint waits that long, and no attempt begins
//! by the old rules after that. One task decides; attempts and
//! calls of the store are tasks of their own, so that none of them waits for another.

pub(crate) mod attempt;
pub(crate) mod beat;
mod bodies;
mod calls;
mod config;
mod grants;
mod held;
mod lane;
mod scheduler;
mod slots;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::observe::{self, Part};
use crate::secrets::{KeyError, Secrets};
use crate::sender::Sender;
use crate::store::Store;
use scheduler::Scheduler;

pub use config::{Drained, WorkerConfig};
pub use held::{Because, Held, Watch};

/// Delivers the messages of a store, beside any number of other workers.
///
/// An endpoint is one worker's at a time, so its concurrency, request rate and gate hold for all. What its attempts have
/// taught about an endpoint (gate, cooldown) is this worker's and begins anew with the next.
#[derive(Debug)]
pub struct Worker<S> {
    store: S,
    sender: Sender,
    secrets: Secrets,
    config: WorkerConfig,
    hint: Arc<Notify>,
    #[cfg(feature = "nats")]
    relay: Option<crate::nats::Queue>,
    watch: Watch,
    asked: held::Asked,
}

/// Tells a worker in the same process that something was enqueued, so that it looks at once. Nothing depends on it.
#[derive(Clone, Debug)]
pub struct Hint(Arc<Notify>);

impl Hint {
    /// There is work, perhaps.
    pub fn wake(&self) {
        self.0.notify_one();
    }
}

impl<S: Store> Worker<S> {
    /// A worker for the messages in this store, if the key in `secrets` opens the signing keys there.
    ///
    /// # Errors
    /// [`KeyError`] if it does not, or if the store fails.
    pub async fn open(
        store: S,
        sender: Sender,
        secrets: Secrets,
        config: WorkerConfig,
    ) -> Result<Self, KeyError<S::Error>> {
        secrets.check(&store).await?;
        Ok(Self::new(store, sender, secrets, config))
    }

    /// The same without a look at the store. What the key does not open holds the messages of its endpoint, as any
    /// [fault of this side](crate::fault).
    #[must_use]
    pub fn new(store: S, sender: Sender, secrets: Secrets, config: WorkerConfig) -> Self {
        let (watch, asked) = Watch::new(config.name.clone());
        Self {
            store,
            sender,
            secrets,
            config,
            hint: Arc::new(Notify::new()),
            watch,
            asked,
            #[cfg(feature = "nats")]
            relay: None,
        }
    }

    /// Makes it a relay: it decides as before, and has its attempts made by the [deliverers](crate::nats::Deliverer) of this
    /// queue.
    #[cfg(feature = "nats")]
    #[must_use]
    pub fn relay(mut self, queue: crate::nats::Queue) -> Self {
        self.relay = Some(queue);
        self
    }

    /// A handle to see by what it holds back, and why.
    #[must_use]
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// A handle to wake it by.
    #[must_use]
    pub fn hint(&self) -> Hint {
        Hint(Arc::clone(&self.hint))
    }

    /// Works until `shutdown` is over, then drains: it claims nothing more, waits for the attempts that run up to
    /// [`WorkerConfig::drain`], writes down what came of them, and gives its endpoints and its lease back. It ends no later
    /// than that and three times its lease.
    ///
    /// While the store is away it waits, and writes what it has when it is back.
    ///
    /// To be called within a runtime of tokio with time and I/O. A worker that is dropped instead is as one that was
    /// killed: its attempts are lost, and repeated by whoever takes its endpoints over.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Drained {
        let Self {
            store,
            sender,
            secrets,
            config,
            hint,
            #[cfg(feature = "nats")]
            relay,
            watch: _,
            asked,
        } = self;
        observe::begin(Part::Worker);
        #[cfg(feature = "nats")]
        if let Some(queue) = relay {
            observe::begin(Part::Relay);
            let relay = crate::nats::Relay::begin(queue, sender.attempt_timeout());
            let (transport, open) = (relay.transport(), relay.open());
            let worker = Scheduler::new(store, sender, secrets, config, transport, hint);
            return worker.while_open(open).asked(asked).run(shutdown).await;
        }
        let transport = attempt::over(sender.clone());
        Scheduler::new(store, sender, secrets, config, transport, hint)
            .asked(asked)
            .run(shutdown)
            .await
    }
}
