//! A request with an idempotency key runs once, and whoever repeats it gets the first answer.
//!
//! # What happens to a request
//!
//! | the key | answer |
//! |---|---|
//! | is new | the handler runs, and its answer is stored |
//! | has an answer | that answer, with `Idempotent-Replayed: true` |
//! | runs at the moment | waits for it; after [`wait`](IdempotencyLayer::wait) 409 with `Retry-After` |
//! | belongs to another request | 422 |
//! | was lost, and may have had an effect | 409, do not retry, unless [`Takeover`] says otherwise |
//! | is missing where it is [required](IdempotencyLayer::require), malformed, or there twice | 400 |
//! | may have been forgotten, if [that is asked](IdempotencyLayer::refuse_forgotten) | 412 |
//! | comes with a body that is not whole [in time](Limits::read) | 408 with `Retry-After` |
//! | is new, and too much [runs](Limits::executions) or is [in memory](Limits::buffered) | 503 with `Retry-After` |
//! | cannot be looked up, or [not in time](Limits::claim) | 503 with `Retry-After` |
//!
//! Problems are `application/problem+json` with a member `code`. Requests without a key, and those of the
//! methods GET, HEAD, OPTIONS and TRACE, go through untouched.
//!
//! # In a nested router
//! axum's `nest` takes the prefix of a route out of the URI that this layer sees, and with it what may tell one account from
//! another. With the feature `axum` the layer reads the URI that the client has sent. Without it, give a layer in a nested
//! router its [`operation`](IdempotencyLayer::operation), with the parts of the path that `nest` takes away; else one key of two
//! accounts is one request. The functions that a layer is given see the request as it is, without the prefix.
//!
//! # What a response means
//! [`Outcome`] has the table. In short: 2xx, 3xx and most 4xx are stored; a refusal that says "nothing was done" (401, 403, 409,
//! 421, 425, 429; 408, 413 and 503 with `Retry-After`) releases the key; after 408, 5xx, an error or a panic the outcome is unknown.
//! A handler that may have taken effect before it answers 503 with `Retry-After` must insert an [`Outcome`] into the
//! extensions of its response.
//!
//! # What a key is
//! It belongs to a principal: the authenticated account, never a header that the client chose nor a token
//! that is renewed between two attempts. It stands for one request: method, path, query, content type and body are
//! compared by a digest before the response says anything of the first.
//!
//! # When the client goes away
//! The handler runs on, in a task of its own, and its answer is there when the client comes back. It does so for
//! [60 s](Limits::disconnected): a handler without an end would keep its slot, its lease and its memory. Then the outcome is
//! unknown, and all of that is free, but the memory. The handler is not dropped, since it may be between a charge and the
//! record of it. It runs on for 10 min more without a lease, and what it answers within that time is recorded, unless
//! somebody has [resolved](UnknownOutcomes) the outcome meanwhile. Only where the [`Takeover`] of the route lets it run
//! again, and for [`exactly_once`](IdempotencyLayer::exactly_once), whose transaction is rolled back, the handler is
//! dropped. [`IdempotencyLayer::drain`] waits for handlers that run, before the server ends.
//!
//! # What has a limit
//! Everything that holds a slot, a lease or memory has a limit of time and of size: [`Limits`]. No principal may take all
//! of it: each may hold as many executions, waits and bytes as are free, so one alone gets half of them. Callers with an
//! empty principal, such as those of an [anonymous](IdempotencyLayer::anonymous) layer, share all of them.
//!
//! # What a crash leaves
//! The key is held by a lease, which is renewed while the handler runs. When it runs out the outcome is
//! unknown: the handler may have charged the card. So nobody runs it again unless the [`Takeover`] of
//! the route says that this is harmless.
//!
//! Until an operator, or a job that asks the payment provider, finds out what has come of it: [`UnknownOutcomes`].
//!
//! # The order of layers
//! Tracing, authentication, rate limits and overload outside, so that what they refuse is not stored; this layer;
//! a timeout inside, so that it ends the handler: it answers 408, 503 or 504 without `Retry-After`, and the outcome is unknown. Compression stays outside: what is stored is not compressed.

mod body;
#[cfg(all(test, feature = "sqlite"))]
mod clock_tests;
pub(crate) mod common;
pub(crate) mod execution;
mod lease;
pub(crate) mod limits;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod once;
pub(crate) mod problems;
mod recovery;
mod replay;
pub(crate) mod request;
mod running;
mod server;
mod service;
mod settings;
mod source;
mod store_call;
mod unknown;
mod work;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use http::request::Parts;
pub use relent_core::claim::{ClaimConfig, InvalidClaimConfig, Takeover};
pub use relent_http::Outcome;
use running::MOST_RUN_ON;
use tokio::sync::Semaphore;
use tower_layer::Layer;

pub use crate::store::answer::{Answer, InvalidAnswer};
pub use body::Body;
pub use execution::{CheckpointError, Execution};
pub use limits::Limits;
#[cfg(feature = "webhook")]
pub(crate) use server::Server;
pub use service::Idempotency;
pub(crate) use source::KeySource;
pub use unknown::UnknownOutcomes;
#[cfg(feature = "webhook")]
pub(crate) use work::KeyedRequest;

use crate::on_store_failure::OnStoreFailure;
use crate::shares::Shares;
use crate::store::{Store, StoreFailure};
use common::Common;
use execution::Running;
use settings::Settings;

/// Drops duplicates of requests with an `Idempotency-Key`: see the [module](self).
///
/// Its clones, and the services that it makes, share their executions.
pub struct IdempotencyLayer<S> {
    store: Arc<S>,
    settings: Settings,
    common: Arc<Common>,
}

/// About a kilobyte each.
const MOST_ABANDONED: usize = 16_384;
const MOST_GIVE_BACKS: usize = 64;

impl<S: Store> IdempotencyLayer<S> {
    /// A layer with this store. `principal` reads from a request who sent it, as whoever has
    /// authenticated it has left it there; without one a request with a key is refused (401).
    #[must_use]
    pub fn new(
        store: S,
        principal: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let settings = Settings {
            source: KeySource::IdempotencyKey,
            principal: Arc::new(principal),
            operation: Arc::new(|_| None),
            required: Arc::new(|_| false),
            fingerprint: vec![http::header::CONTENT_TYPE],
            claim: ClaimConfig::DEFAULT,
            limits: Limits::DEFAULT,
            wait: Duration::from_secs(2),
            max_request: 1 << 20,
            max_answer: 256 << 10,
            fail_open: false,
            first_sent: false,
            failures: OnStoreFailure::default(),
            #[cfg(any(feature = "postgres", feature = "sqlite"))]
            exactly_once: false,
        };
        let common = Common {
            running: Running::default(),
            executions: Shares::new(Limits::DEFAULT.executions),
            waiters: Shares::new(Limits::DEFAULT.waiters),
            buffered: Shares::new(Limits::DEFAULT.buffered),
            abandoned: Semaphore::new(MOST_ABANDONED),
            give_backs: Semaphore::new(MOST_GIVE_BACKS),
            run_on: Arc::new(Semaphore::new(MOST_RUN_ON)),
        };
        Self {
            store: Arc::new(store),
            settings,
            common: Arc::new(common),
        }
    }

    /// A layer for a service whose callers are not told apart: all of them share one space of keys, so a
    /// key that two of them choose is a mismatch for the second.
    #[must_use]
    pub fn anonymous(store: S) -> Self {
        Self::new(store, |_| Some(String::new()))
    }

    /// Keys are those of an operation, such as the template of the route, and one key may be used for
    /// several operations. A layer [in a nested router](self#in-a-nested-router) needs it without the feature `axum`. Without it, or where it returns `None`, one key of a principal stands for one request
    /// with one method.
    #[must_use]
    pub fn operation(
        mut self,
        operation: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.settings.operation = Arc::new(operation);
        self
    }

    /// Requests that are refused without a key (400). None by default.
    #[must_use]
    pub fn require(mut self, required: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.settings.required = Arc::new(required);
        self
    }

    /// Another field that tells requests apart, such as the version of the API. `Content-Type` does by
    /// default.
    #[must_use]
    pub fn compare_header(mut self, name: HeaderName) -> Self {
        self.settings.fingerprint.push(name);
        self
    }

    /// The lease, how long answers are kept, and who may take over: 30 s, 24 h and nobody by default.
    ///
    /// # Errors
    /// By this configuration a key would run twice: [`ClaimConfig::check`].
    pub fn claim(mut self, config: ClaimConfig) -> Result<Self, InvalidClaimConfig> {
        config.check()?;
        self.settings.claim = config;
        Ok(self)
    }

    /// What a duplicate does whose predecessor was lost; [`Takeover::Refuse`] by default.
    #[must_use]
    pub const fn takeover(mut self, takeover: Takeover) -> Self {
        self.settings.claim.takeover = takeover;
        self
    }

    /// How long a duplicate waits for the first to end before it is refused: 2 s by default, and no longer than
    /// the caller has told that it waits.
    #[must_use]
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.settings.wait = wait;
        self
    }

    /// How much time, how many executions and how much memory requests with a key may take; [`Limits::DEFAULT`] by
    /// default.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.settings.limits = limits;
        self.common.executions.set_most(limits.executions);
        self.common.waiters.set_most(limits.waiters);
        self.common.buffered.set_most(limits.buffered);
        self
    }

    /// The longest body of a request with a key, in bytes: 1 MiB by default. A longer one is refused (413).
    #[must_use]
    pub const fn max_request(mut self, bytes: usize) -> Self {
        self.settings.max_request = bytes;
        self
    }

    /// The longest body of an answer that is stored, in bytes: 256 KiB by default. Duplicates of a longer
    /// one get 410, and nothing runs again.
    #[must_use]
    pub const fn max_answer(mut self, bytes: usize) -> Self {
        self.settings.max_answer = bytes;
        self
    }

    /// A request whose client says that it has first sent it as long ago as answers are [kept](ClaimConfig::keep), or longer, is
    /// refused (412): it may be a repetition of one that is forgotten, and would run again. Clients say so with
    /// `Repeatability-First-Sent`, an HTTP date (OASIS Repeatable Requests 1.0); one that cannot be read is refused (400), and
    /// a request without it goes through.
    ///
    /// The date is of the client's clock, and is compared with that of this machine: a client whose clock is ahead is
    /// found out as much later.
    #[must_use]
    pub const fn refuse_forgotten(mut self) -> Self {
        self.settings.first_sent = true;
        self
    }

    /// When the store fails, requests with a key go through as if they had none. By default they are refused
    /// (503), since nobody knows whether they have run.
    #[must_use]
    pub const fn fail_open(mut self) -> Self {
        self.settings.fail_open = true;
        self
    }

    /// Calls this whenever a call of the store has failed with all its attempts: for an alarm, or a log of your own. What it
    /// gets holds nothing secret, and the client learns nothing of it. It runs in the task of the request, so it had better
    /// be short.
    ///
    /// ```
    /// use relent_server::idempotency::IdempotencyLayer;
    /// use relent_server::store::{FailureKind, Memory};
    ///
    /// let layer = IdempotencyLayer::anonymous(Memory::new()).on_store_failure(|failure| {
    ///     if failure.kind == FailureKind::Full {
    ///         eprintln!("{failure}, at the request {}", failure.key);
    ///     }
    /// });
    /// ```
    #[must_use]
    pub fn on_store_failure(
        mut self,
        callback: impl Fn(&StoreFailure) + Send + Sync + 'static,
    ) -> Self {
        self.settings.failures = OnStoreFailure(Some(Arc::new(callback)));
        self
    }

    /// Requests with a key are claimed and recorded by their handler, in the transaction of its effects: by
    /// [`ExactlyOnce`](crate::exactly_once::ExactlyOnce), which is in the extensions of each of them. The client of a
    /// handler that answers with success what is not recorded by it gets 500: nothing keeps a repetition from running. A
    /// request that it refuses stays refused, whatever the handler answers.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    #[must_use]
    pub const fn exactly_once(mut self) -> Self {
        self.settings.exactly_once = true;
        self
    }

    /// The same engine for the messages of a sender of webhooks, whose layer names their keys.
    #[cfg(feature = "webhook")]
    pub(crate) fn of_webhooks(store: S, keep: Duration) -> Self {
        let mut layer = Self::anonymous(store);
        layer.settings.source = KeySource::WebhookId;
        layer.settings.claim.keep = keep;
        layer
    }

    #[cfg(feature = "webhook")]
    pub(crate) fn change_claim(
        self,
        change: impl FnOnce(&mut ClaimConfig),
    ) -> Result<Self, InvalidClaimConfig> {
        let mut config = self.settings.claim;
        change(&mut config);
        self.claim(config)
    }

    /// What runs requests whose keys are found elsewhere.
    #[cfg(feature = "webhook")]
    pub(crate) fn server(&self) -> Server<S> {
        Server {
            store: Arc::clone(&self.store),
            settings: Arc::new(self.settings.clone()),
            common: Arc::clone(&self.common),
        }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The requests of which nobody knows whether they had their effect: to find them, and to say what has come of them.
    #[must_use]
    pub fn unknown_outcomes(&self) -> UnknownOutcomes<S> {
        let (store, common) = (Arc::clone(&self.store), Arc::clone(&self.common));
        UnknownOutcomes::of(store, self.settings.claim, common)
    }

    /// Waits until no handler of a request with a key runs any more, and [30 s](Limits::drain) at most; how many of their
    /// tasks are left. For the end of a server, when it takes no requests any more: what is cut off then has an unknown
    /// outcome when its lease runs out.
    pub async fn drain(&self) -> usize {
        self.common.running.drain(self.settings.limits.drain).await
    }
}

impl<S> Clone for IdempotencyLayer<S> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            settings: self.settings.clone(),
            common: Arc::clone(&self.common),
        }
    }
}

impl<S: Store, I> Layer<I> for IdempotencyLayer<S> {
    type Service = Idempotency<I, S>;

    fn layer(&self, inner: I) -> Self::Service {
        let (store, common) = (Arc::clone(&self.store), Arc::clone(&self.common));
        Idempotency::new(inner, store, Arc::new(self.settings.clone()), common)
    }
}

impl<S> fmt::Debug for IdempotencyLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("claim", &self.settings.claim)
            .finish_non_exhaustive()
    }
}
