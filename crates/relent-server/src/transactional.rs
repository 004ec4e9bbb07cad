//! Transactional idempotency: effects, response and record of a request are written in one transaction.
//!
//! The [layer](crate::idempotency) alone writes twice: the effects of the handler, and then its response. A crash in
//! between leaves an unknown (in-doubt) outcome. If the effects are rows of the database that has the records, the
//! handler can write them in the transaction of its record. Then no outcome is unknown, no takeover is needed, and
//! there is one commit instead of three. The guarantee holds for effects in that database only.
//!
//! ```no_run
//! use axum::{Extension, Router, response::Response, routing::post};
//! use bytes::Bytes;
//! use http_body_util::Full;
//! use relent_server::transactional::{Transactional, WorkError};
//! use relent_server::idempotency::IdempotencyLayer;
//! # #[cfg(feature = "postgres")]
//! use relent_server::store::Postgres;
//!
//! # #[cfg(feature = "postgres")]
//! # fn service(store: Postgres) -> Router {
//! async fn pay(Extension(once): Extension<Transactional<Postgres>>) -> Response<Full<Bytes>> {
//!     let paid = once.run(|transaction| {
//!         Box::pin(async move {
//!             transaction.execute("INSERT INTO charges (amount) VALUES (5)", &[]).await?;
//!             Ok::<_, WorkError>(http::Response::new("paid"))
//!         })
//!     });
//!     paid.await.unwrap_or_else(|_| {
//!         // Nothing was written.
//!         let mut response = Response::new(Full::from("the payment failed"));
//!         *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
//!         response
//!     })
//! }
//!
//! let layer = IdempotencyLayer::anonymous(store)
//!     .require(|_| true)
//!     .transactional();
//! Router::new().route("/payments", post(pay)).layer(layer)
//! # }
//! ```
//!
//! With the feature `sqlx`, and a store over a pool of sqlx, the handler gets a transaction of sqlx:
//!
//! ```
//! # use http::Response;
//! # use relent_server::transactional::{Transactional, WorkError};
//! # use relent_server::store::Postgres;
//! # #[cfg(feature = "sqlx")]
//! # async fn pay(once: Transactional<Postgres<sqlx::PgPool>>) -> Result<(), WorkError> {
//! let paid = once.run(|transaction| {
//!     Box::pin(async move {
//!         let charge = sqlx::query("INSERT INTO charges (amount) VALUES (5)");
//!         charge.execute(&mut **transaction).await?;
//!         Ok::<_, WorkError>(Response::new("paid"))
//!     })
//! });
//! # paid.await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is committed
//! The [`Outcome`] of the response decides. A final response is committed with the record. Any other outcome, or an
//! error, rolls everything back: the request had no effect, and the next one with its key runs. So a 5xx is never
//! unknown here.
//!
//! # What the handler must not do
//! - Call `run` twice: a request has one transaction. The second call is an error ([`AlreadyRun`]). If the handler
//!   then responds with success, the layer responds with 500.
//! - Respond with success without a record: without `run`, after dropping its future, or ignoring its error. The
//!   layer responds with 500 instead. To acknowledge without a record, insert
//!   [`Outcome::NotApplied`](crate::idempotency::Outcome) into the response.
//!
//! `run` rejects the request if the key belongs to another request or is running, if its outcome is unknown, or if
//! the store fails. The client then gets that rejection, whatever the handler responds.
//!
//! # What the work must not do
//! Anything that the transaction cannot undo, such as a request to another service. Insert a row for it in the
//! transaction, and send it after the commit, as `examples/shop.rs` does with its receipts. The work must not end the
//! transaction, or write the record of its own key. Otherwise SQLite's writer rolls the transaction back and returns
//! an error; other jobs in that transaction get an error that says they may be repeated.
//!
//! On PostgreSQL the work runs again after a conflict with another transaction (40001, 40P01) or a lost connection.
//! What it did before is rolled back each time.
//!
//! # When the connection is lost at the commit
//! The commit is in doubt. The same owner claims the key again, and the record shows whether it was committed.

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use relent_core::idempotency::{ClaimConfig, Fingerprint};
use tokio::time::Instant;

use crate::idempotency::common::Common;
use crate::idempotency::problems::Rejection;
use crate::idempotency::{KeySource, Outcome, StoredResponse};
use crate::observe;
use crate::on_store_failure::OnStoreFailure;
use crate::store::{Change, Claimed, Key, StoreFailure};

/// The error type of the work.
pub type WorkError = Box<dyn Error + Send + Sync>;

/// A request with a key, for use without a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Keyed {
    /// The key of the record.
    pub key: Key,
    /// Distinguishes different requests with the same key.
    pub fingerprint: Fingerprint,
    /// The retention of its response. The lease matters only if the key is also used without a transaction.
    pub claim: ClaimConfig,
    /// The longest response body that is stored, in bytes: 256 KiB by default.
    pub max_response: usize,
    /// The kind of client, which determines the form of rejections.
    pub(crate) source: KeySource,
    /// The limit for claiming the key, including all attempts and the wait for a connection: the time until the work
    /// begins.
    pub(crate) claim_limit: Option<Duration>,
}

impl Keyed {
    /// Creates a request with the defaults of the layer.
    #[must_use]
    pub const fn new(key: Key, fingerprint: Fingerprint) -> Self {
        Self {
            key,
            fingerprint,
            claim: ClaimConfig::DEFAULT,
            max_response: 256 << 10,
            source: KeySource::IdempotencyKey,
            claim_limit: None,
        }
    }
}

/// The result of a transactional request.
#[derive(Debug)]
pub enum TransactionResult {
    /// The work has run, and this is its response. It is committed if its [`Outcome`] is final, and rolled back
    /// otherwise.
    Ran(Response<Bytes>),
    /// The work has not run: the key has a stored response, or belongs to another request. Never [`Claimed::Run`].
    Not(Claimed),
}

/// The reason why nothing is known to be committed.
#[derive(Debug)]
pub enum TransactionalError<S> {
    /// The work has failed, and is rolled back.
    Work(WorkError),
    /// The store has failed. The transaction may be committed: repeat it with the same key.
    Store(S),
}

impl<S: fmt::Display> fmt::Display for TransactionalError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(error) => write!(f, "rolled back: {error}"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl<S: Error + 'static> Error for TransactionalError<S> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // Their texts are part of this error's text.
            Self::Work(error) => error.source(),
            Self::Store(error) => error.source(),
        }
    }
}

/// Runs the work of a request in one transaction with its record. The layer puts it into the extensions of each
/// request with a key, if [`transactional`](crate::idempotency::IdempotencyLayer::transactional) is set. See the
/// [module](self).
pub struct Transactional<S> {
    store: Arc<S>,
    keyed: Keyed,
    /// The time until which a duplicate waits for the first request.
    until: Instant,
    common: Arc<Common>,
    failures: OnStoreFailure,
    is_grpc: bool,
    used: Arc<Mutex<HandlerCalls>>,
}

/// The calls of the handler, as far as the layer needs them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct HandlerCalls {
    /// The number of `run` calls, up to 2.
    runs: u8,
    /// The work ran now: the response is not that of an earlier request.
    pub(crate) has_worked: bool,
    /// A record with a response exists.
    pub(crate) is_recorded: bool,
    /// The rejection that the client gets.
    pub(crate) refused: Option<Rejection>,
}

impl HandlerCalls {
    pub(crate) const fn is_run_twice(self) -> bool {
        self.runs > 1
    }
}

/// The handler has called `run` twice in one request; the second call has done nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AlreadyRun;

impl fmt::Display for AlreadyRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "`run` was called before in this request, which has one transaction: nothing of this call is done. Put all \
             effects of the request into one call",
        )
    }
}

impl Error for AlreadyRun {}

impl<S> Transactional<S> {
    pub(crate) fn new(
        store: Arc<S>,
        keyed: Keyed,
        until: Instant,
        common: Arc<Common>,
        failures: OnStoreFailure,
        is_grpc: bool,
    ) -> Self {
        Self {
            store,
            keyed,
            until,
            common,
            failures,
            is_grpc,
            used: Arc::default(),
        }
    }

    /// Returns the request.
    #[must_use]
    pub const fn keyed(&self) -> &Keyed {
        &self.keyed
    }

    fn lock(&self) -> MutexGuard<'_, HandlerCalls> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the calls of the handler so far.
    pub(crate) fn used(&self) -> HandlerCalls {
        *self.lock()
    }

    /// Counts a `run` call.
    fn begin(&self) -> Result<(), AlreadyRun> {
        let mut used = self.lock();
        used.runs = used.runs.saturating_add(1);
        match used.is_run_twice() {
            true => Err(AlreadyRun),
            false => Ok(()),
        }
    }

    /// Returns the response for the client.
    fn respond<E: Error + 'static>(
        &self,
        done: Result<TransactionResult, TransactionalError<E>>,
    ) -> Result<Response<Full<Bytes>>, WorkError> {
        let refused = match done {
            Ok(TransactionResult::Ran(response)) => {
                observe::keyed("run");
                let mut used = self.lock();
                used.has_worked = true;
                used.is_recorded = Outcome::of(&response) == Outcome::Final;
                return Ok(response.map(Full::new));
            }
            Ok(TransactionResult::Not(claimed)) => match Rejection::of(claimed) {
                Ok(answer) => {
                    self.lock().is_recorded = true;
                    match answer.replay_whole() {
                        Some(response) => return Ok(response.map(Full::new)),
                        None => Rejection::AnswerNotKept,
                    }
                }
                Err(refused) => refused,
            },
            Err(TransactionalError::Work(error)) => {
                observe::keyed("run");
                return Err(error);
            }
            Err(TransactionalError::Store(error)) => {
                let failure = StoreFailure::new("transaction", self.keyed.key, &error);
                self.failures.failed(&failure);
                Rejection::StoreFailed
            }
        };
        // The layer sends the same rejection, whatever the handler responds, and counts it.
        self.lock().refused = Some(refused);
        let refused = refused.written(self.keyed.source, self.is_grpc);
        Ok(refused.map(Full::new))
    }
}

/// Returns the response and the change to write with it; `None` if the outcome is not final.
fn end(mut response: Response<Bytes>, keyed: &Keyed) -> (Response<Bytes>, Option<Change>) {
    keyed.source.set_outcome(&mut response);
    if Outcome::of(&response) != Outcome::Final {
        return (response, None);
    }
    let (head, body) = response.into_parts();
    let kept = Some(body.clone()).filter(|body| body.len() <= keyed.max_response);
    let answer = StoredResponse::new(&head, kept, None);
    let complete = Change::Complete(Arc::new(answer));
    (Response::from_parts(head, body), Some(complete))
}

impl<S> Clone for Transactional<S> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            keyed: self.keyed,
            until: self.until,
            common: Arc::clone(&self.common),
            failures: self.failures.clone(),
            is_grpc: self.is_grpc,
            used: Arc::clone(&self.used),
        }
    }
}

impl<S> fmt::Debug for Transactional<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transactional")
            .field("keyed", &self.keyed)
            .finish_non_exhaustive()
    }
}
