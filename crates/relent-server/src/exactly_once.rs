//! Effects, answer and record of a request in one transaction: all of it happens, and once, or nothing does.
//!
//! The [layer](crate::idempotency) alone has two writes: the effects of the handler, and then its answer. A crash in
//! between leaves an unknown outcome. Where the effects are rows of the database that has the records, the handler
//! can write them in the transaction of its record. Then there is no outcome that is unknown, nothing has to be
//! taken over, and there is one commit instead of three.
//!
//! ```no_run
//! use axum::{Extension, Router, response::Response, routing::post};
//! use bytes::Bytes;
//! use http_body_util::Full;
//! use relent_server::exactly_once::{ExactlyOnce, WorkError};
//! use relent_server::idempotency::IdempotencyLayer;
//! # #[cfg(feature = "postgres")]
//! use relent_server::store::Postgres;
//!
//! # #[cfg(feature = "postgres")]
//! # fn service(store: Postgres) -> Router {
//! async fn pay(Extension(once): Extension<ExactlyOnce<Postgres>>) -> Response<Full<Bytes>> {
//!     let paid = once.run(|transaction| {
//!         Box::pin(async move {
//!             transaction.execute("INSERT INTO charges (amount) VALUES (5)", &[]).await?;
//!             Ok::<_, WorkError>(http::Response::new("paid"))
//!         })
//!     });
//!     paid.await.unwrap_or_else(|_| {
//!         // Nothing has happened.
//!         let mut response = Response::new(Full::from("the payment failed"));
//!         *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
//!         response
//!     })
//! }
//!
//! let layer = IdempotencyLayer::anonymous(store)
//!     .require(|_| true)
//!     .exactly_once();
//! Router::new().route("/payments", post(pay)).layer(layer)
//! # }
//! ```
//!
//! With the feature `sqlx`, and a store over a pool of sqlx, the handler gets a transaction of sqlx:
//!
//! ```
//! # use http::Response;
//! # use relent_server::exactly_once::{ExactlyOnce, WorkError};
//! # use relent_server::store::Postgres;
//! # #[cfg(feature = "sqlx")]
//! # async fn pay(once: ExactlyOnce<Postgres<sqlx::PgPool>>) -> Result<(), WorkError> {
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
//! What the answer says ([`Outcome`]): a final one is committed with the record. Any other, or an error, rolls all
//! of it back: the request has had no effect, and the next with its key runs. So a 5xx is never unknown here.
//!
//! # What the handler must not do
//! - Run twice: a request has one transaction. A second `run` is an error ([`AlreadyRun`]), and the layer answers 500 where the
//!   handler answers with success all the same.
//! - Answer with success what is not recorded: because it has not called `run`, has dropped it before its end, or has
//!   not looked at its error. The layer answers 500 instead. To acknowledge without a record, insert
//!   [`Outcome::NotApplied`](crate::idempotency::Outcome) into the response.
//!
//! Where `run` refuses the request (the key belongs to another request, or still runs; its outcome is unknown; the store
//! fails) the client gets that refusal, whatever the handler answers.
//!
//! # What the work must not do
//! Anything that the transaction does not undo, such as a request to another service: write a row for it in the
//! transaction, and send it when that is committed, as `examples/shop.rs` does with its receipts. Nor may it end the
//! transaction, or write the record of its own key: SQLite's writer refuses to commit, undoes all that is in the transaction
//! and says so. Others that were in it hear that they may do it again.
//!
//! On PostgreSQL the work may be run again, when its transaction met another one (40001, 40P01) or its connection was
//! lost; each time what it did before is undone.
//!
//! # When the connection is lost at the commit
//! Nobody knows whether it was committed. The key is claimed again by the same owner: its record says it.

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
use relent_core::claim::{ClaimConfig, Fingerprint};
use tokio::time::Instant;

use crate::idempotency::common::Common;
use crate::idempotency::problems::Refused;
use crate::idempotency::{Answer, KeySource, Outcome};
use crate::observe;
use crate::on_store_failure::OnStoreFailure;
use crate::store::{Change, Claimed, Key, StoreFailure};

/// Any error, as work returns it.
pub type WorkError = Box<dyn Error + Send + Sync>;

/// A request with a key, for who has no layer: as the layer makes it of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Keyed {
    /// What its record is found by.
    pub key: Key,
    /// What tells it from another request with the same key.
    pub fingerprint: Fingerprint,
    /// How long its answer is kept. There is a lease only if the same key is used without a transaction, too.
    pub claim: ClaimConfig,
    /// The longest body of an answer that is stored, in bytes: 256 KiB by default.
    pub max_answer: usize,
    /// Who reads the answer.
    pub(crate) source: KeySource,
    /// How long it may take to claim the key, with all attempts and the wait for a connection.
    pub(crate) claim_limit: Option<Duration>,
}

impl Keyed {
    /// With the defaults of the layer.
    #[must_use]
    pub const fn new(key: Key, fingerprint: Fingerprint) -> Self {
        Self {
            key,
            fingerprint,
            claim: ClaimConfig::DEFAULT,
            max_answer: 256 << 10,
            source: KeySource::IdempotencyKey,
            claim_limit: None,
        }
    }
}

/// What came of a request that is to happen once.
#[derive(Debug)]
pub enum Done {
    /// It has run, and this is its answer. If the [`Outcome`] of it is final, all of it is committed; else
    /// nothing of it is.
    Ran(Response<Bytes>),
    /// It has not run: there is an answer, or another one has the key. Never [`Claimed::Run`].
    Not(Claimed),
}

/// Why nothing is known to have happened.
#[derive(Debug)]
pub enum ExactlyOnceError<S> {
    /// The work has failed, and is rolled back.
    Work(WorkError),
    /// The store has failed. It may be committed: ask again with the same key.
    Store(S),
}

impl<S: fmt::Display> fmt::Display for ExactlyOnceError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(error) => write!(f, "rolled back: {error}"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl<S: Error + 'static> Error for ExactlyOnceError<S> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // Their texts are in this one.
            Self::Work(error) => error.source(),
            Self::Store(error) => error.source(),
        }
    }
}

/// The leave to run a request once: in the extensions of a request with a key, behind a layer that is
/// [exactly once](crate::idempotency::IdempotencyLayer::exactly_once). See the [module](self).
pub struct ExactlyOnce<S> {
    store: Arc<S>,
    keyed: Keyed,
    /// How long a duplicate waits for the first.
    until: Instant,
    common: Arc<Common>,
    failures: OnStoreFailure,
    is_grpc: bool,
    used: Arc<Mutex<Used>>,
}

/// What the handler has done with it, as far as the layer has to know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Used {
    /// How often the handler has called `run`, up to 2.
    runs: u8,
    /// There is a record with an answer.
    pub(crate) is_recorded: bool,
    /// The request may not run: its client hears so.
    pub(crate) refused: Option<Refused>,
}

impl Used {
    pub(crate) const fn is_run_twice(self) -> bool {
        self.runs > 1
    }
}

/// A handler has called `run` twice in one request: the second call has done nothing.
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

impl<S> ExactlyOnce<S> {
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

    /// The request that it is for.
    #[must_use]
    pub const fn keyed(&self) -> &Keyed {
        &self.keyed
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the handler has done with it.
    pub(crate) fn used(&self) -> Used {
        *self.lock()
    }

    /// The handler begins to use it.
    fn begin(&self) -> Result<(), AlreadyRun> {
        let mut used = self.lock();
        used.runs = used.runs.saturating_add(1);
        match used.is_run_twice() {
            true => Err(AlreadyRun),
            false => Ok(()),
        }
    }

    /// What the client gets.
    fn respond<E: Error + 'static>(
        &self,
        done: Result<Done, ExactlyOnceError<E>>,
    ) -> Result<Response<Full<Bytes>>, WorkError> {
        let refused = match done {
            Ok(Done::Ran(response)) => {
                observe::keyed("run");
                self.lock().is_recorded = Outcome::of(&response) == Outcome::Final;
                return Ok(response.map(Full::new));
            }
            Ok(Done::Not(claimed)) => match Refused::of(claimed) {
                Ok(answer) => {
                    self.lock().is_recorded = true;
                    match answer.replay_whole() {
                        Some(response) => return Ok(response.map(Full::new)),
                        None => Refused::AnswerNotKept,
                    }
                }
                Err(refused) => refused,
            },
            Err(ExactlyOnceError::Work(error)) => {
                observe::keyed("run");
                return Err(error);
            }
            Err(ExactlyOnceError::Store(error)) => {
                let failure = StoreFailure::new("transaction", self.keyed.key, &error);
                self.failures.failed(&failure);
                Refused::StoreFailed
            }
        };
        // The layer gives the client the same, whatever the handler does with it, and counts it.
        self.lock().refused = Some(refused);
        let refused = refused.written(self.keyed.source, self.is_grpc);
        Ok(refused.map(Full::new))
    }
}

/// What is to be written together with this answer; `None` if nothing is to be.
fn end(mut response: Response<Bytes>, keyed: &Keyed) -> (Response<Bytes>, Option<Change>) {
    keyed.source.judge(&mut response);
    if Outcome::of(&response) != Outcome::Final {
        return (response, None);
    }
    let (head, body) = response.into_parts();
    let kept = Some(body.clone()).filter(|body| body.len() <= keyed.max_answer);
    let answer = Answer::new(&head, kept, None);
    let complete = Change::Complete(Arc::new(answer));
    (Response::from_parts(head, body), Some(complete))
}

impl<S> Clone for ExactlyOnce<S> {
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

impl<S> fmt::Debug for ExactlyOnce<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExactlyOnce")
            .field("keyed", &self.keyed)
            .finish_non_exhaustive()
    }
}
