//! Transactional outbox for webhooks: stores each message in the transaction of your data, and delivers it.
//!
//! The message is inserted in the same database transaction as your data, so both commit or neither does. A
//! [worker](worker::Worker) sends it, signed, until the receiver acknowledges it or the schedule of its [`endpoint`]
//! ends, and records each attempt. A message may arrive several times: all its attempts have the same `webhook-id`, by
//! which the receiver drops duplicates.
//!
//! # Example
//! A shop inserts an order and its message in one transaction, and runs a worker that delivers the message:
//!
//! ```no_run
//! use relent_outbox::endpoint::Endpoint;
//! use relent_outbox::message::NewMessage;
//! use relent_outbox::secrets::Secrets;
//! use relent_outbox::sender::{Sender, SenderConfig};
//! use relent_outbox::store::{Sqlite, Store};
//! use relent_outbox::worker::{Worker, WorkerConfig};
//!
//! # async fn shop(stopped: impl Future<Output = ()> + Send + 'static) -> Result<(), Box<dyn std::error::Error>> {
//! let store = Sqlite::open("shop.db")?;
//! store.put_endpoint(Endpoint::new("shop", "https://shop.example/notify")).await?;
//! let sender = Sender::new(SenderConfig::default())?;
//! let secrets = Secrets::from_env()?;
//! let worker = Worker::open(store.clone(), sender, secrets, WorkerConfig::default()).await?;
//! let worker = tokio::spawn(worker.run(stopped));
//!
//! // The order and the message, or neither.
//! store.writer().run(|connection| {
//!     connection.execute("INSERT INTO orders VALUES (17, true)", [])?;
//!     let message = NewMessage::new("shop", "order-17-paid", r#"{"order":17}"#);
//!     Sqlite::enqueue_in(connection, &[message])
//! }).await?;
//!
//! let drained = worker.await?;
//! # let _ = drained;
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//! - `sqlite` (on by default): the store [`Sqlite`](store::Sqlite), for one machine.
//! - `postgres`: the store `Postgres`, for several workers and machines. `sqlx`: `Postgres::enqueue_in_sqlx`, in a
//!   transaction of sqlx.
//! - `api`: the module `api`, with the HTTP API, page and metrics of `relent deliver serve`.
//! - `metrics`, `tracing`: metrics and events of workers ([`observe`]).
//!
//! The crate `relent-outbox-nats` distributes the attempts to many processes, by a [`relay`].
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod acknowledgement;
#[cfg(feature = "api")]
pub mod api;
pub mod endpoint;
pub mod fault;
pub mod guard;
pub mod headers;
pub mod health;
mod invalid_message;
pub mod message;
pub mod observe;
pub mod relay;
pub mod resolver;
pub mod schedule;
pub mod secrets;
pub mod sender;
pub mod store;
pub mod target;
pub mod text;
pub mod topic;
pub mod worker;
