//! Distribution of the attempts of an outbox to many processes by NATS JetStream.
//!
//! Use it for more concurrent attempts than the processes at the database can make, or for processes that reach the
//! receivers but not the database. The store stays the record: a [`Worker`](relent_outbox::worker::Worker) decides about
//! attempts, fencing tokens, schedules, dead letters and resends as without NATS. As a
//! [dispatcher](relent_outbox::worker::Worker::relay) it makes no HTTP request itself. A [`NatsWorker`] makes them, and decides
//! nothing.
//!
//! ```text
//! dispatcher               NATS                       NATS worker
//!   │ claims due messages    │                            │
//!   ├── attempt ────────────►│ a stream in a file         │
//!   │                        ├── attempt ────────────────►│ takes as many as fit
//!   │◄── begin? ─────────────┼────────────────────────────┤
//!   ├── yes, for 0.5 s ──────┼───────────────────────────►│ acknowledges it to the stream, and
//!   │                        │                            │ makes the one HTTP request
//!   │◄── result ─────────────┼────────────────────────────┤
//!   │ evaluates and settles  │                            │
//! ```
//!
//! A NATS worker starts an attempt only with permission of the dispatcher that has published it. The dispatcher permits
//! each attempt to one NATS worker, once. It does so only while it holds the lease of the claim, and while the endpoint
//! is unchanged since publication. Permission expires [`GRANT`](relent_outbox::store::GRANT) after the dispatcher has asked the
//! store. An attempt that NATS delivers twice or late is therefore sent at most once. A dispatcher that was suspended
//! for an hour, or killed, causes no attempt.
//!
//! An attempt not started within [`OFFER_TIMEOUT`] is withdrawn and does not count. An attempt that was started without
//! a result, because its NATS worker was killed, counts as failed with unknown outcome, and the schedule repeats it.
//!
//! The dispatcher signs: signing keys never leave it, and NATS workers need none. Any client that may publish to the
//! subjects of the stream can cause requests from the addresses of the NATS workers. Restrict publishing to the
//! dispatchers by NATS permissions.
//!
//! # Example
//! A dispatcher at the database, and a NATS worker in another process:
//!
//! ```no_run
//! use relent_outbox::secrets::Secrets;
//! use relent_outbox::sender::{Sender, SenderConfig};
//! use relent_outbox::store::Sqlite;
//! use relent_outbox::worker::{Worker, WorkerConfig};
//! use relent_outbox_nats::{NatsWorker, NatsWorkerConfig, Queue, QueueName, async_nats};
//!
//! # async fn both(stopped: impl Future<Output = ()>) -> Result<(), Box<dyn std::error::Error>> {
//! let client = async_nats::connect("nats://nats.internal:4222").await?;
//! let queue = Queue::new(client, QueueName::default());
//! let sender = Sender::new(SenderConfig::default())?;
//!
//! // The process at the database decides.
//! let store = Sqlite::open("shop.db")?;
//! let secrets = Secrets::from_env()?;
//! let dispatcher = Worker::open(store, sender.clone(), secrets, WorkerConfig::default()).await?;
//! let dispatcher = dispatcher.relay(queue.clone());
//!
//! // Any number of other processes make the attempts.
//! let nats_worker = NatsWorker::new(queue, sender, NatsWorkerConfig::default());
//! # let _ = dispatcher;
//! # nats_worker.run(stopped).await;
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//! - `metrics`, `tracing`: metrics and events of dispatchers and NATS workers ([`observe`]).
#![cfg_attr(docsrs, feature(doc_cfg))]

mod dispatcher;
mod nats_worker;
pub mod observe;
mod queue;
mod wire;

/// The NATS client library that queues are built with.
pub use async_nats;
pub use nats_worker::{NatsWorker, NatsWorkerConfig};
pub use queue::{InvalidName, OFFER_TIMEOUT, Queue, QueueName};
#[cfg(fuzzing)]
pub use wire::any_bytes;
