//! Durable delivery of webhooks: an outbox that sends each message until its receiver acknowledges it (R4.3).
//!
//! A service that has done something, such as taken a payment, has to tell others, and tells them again and again until
//! they say that they have heard. The message is written in the transaction of what it tells of, so that neither is there
//! without the other. A [worker](worker::Worker) sends it, by the schedule of its [`endpoint`], and writes down what came of
//! each attempt. Delivery is at least once: each attempt has the same `webhook-id`, by which the receiver drops what it
//! has.
//!
//! # Example
//! A shop that takes an order, tells `shop.example` of it in the same transaction, and delivers what there is to tell:
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
//! - `api`: the module `api`, the HTTP API, its page and its metrics, as `relent deliver serve` has them.
//! - `nats`: the module `nats`, which has attempts made by a fleet of processes.
//! - `metrics`, `tracing`: what workers do, as metrics and events ([`observe`]).
//!
//! Comments cite a "design rule" or a requirement such as "R4.3": both are in `docs/rules.md` of the repository, with
//! reasons, sources and tests.
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
#[cfg(feature = "nats")]
pub mod nats;
pub mod observe;
pub mod resolver;
pub mod schedule;
pub mod secrets;
pub mod sender;
pub mod store;
pub mod target;
pub mod text;
pub mod topic;
pub mod worker;
