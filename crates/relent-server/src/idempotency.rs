//! Idempotency keys: a request with a key runs once, and its duplicates get the first response.
//!
//! # What happens to a request
//!
//! | the key | response |
//! |---|---|
//! | is new | the handler runs, and its response is stored |
//! | has a stored response | that response, with `Idempotent-Replayed: true` |
//! | is running | the duplicate waits; after [`wait`](IdempotencyLayer::wait) it gets 409 with `Retry-After` |
//! | belongs to another request | 422 |
//! | has an unknown outcome | 409, do not retry, unless [`Takeover`] allows a rerun |
//! | is missing where it is [required](IdempotencyLayer::require), malformed, or duplicated | 400 |
//! | may have been forgotten, if [this check is on](IdempotencyLayer::refuse_forgotten) | 412 |
//! | comes with a body that does not arrive [in time](Limits::read) | 408 with `Retry-After` |
//! | comes while too much is [in memory](Limits::buffered) | 503 with `Retry-After` |
//! | is new, and too much [runs](Limits::executions) | 503 with `Retry-After` |
//! | cannot be looked up, or [not in time](Limits::claim) | 503 with `Retry-After` |
//!
//! Errors are `application/problem+json` with a member `code`. Requests without a key pass through unchanged, and so
//! do the methods GET, HEAD, OPTIONS and TRACE.
//!
//! # In a nested router
//! axum's `nest` strips the prefix of the route from the URI that this layer sees. The prefix may be what
//! distinguishes two accounts. With the feature `axum` the layer reads the URI that the client sent. Without it, give
//! a nested layer an [`operation`](IdempotencyLayer::operation) that includes the stripped parts of the path.
//! Otherwise the same key of two accounts counts as one request. The functions passed to the layer always see the
//! request without the prefix.
//!
//! # What a response means
//! [`Outcome`] has the full table. The layer stores 2xx, 3xx and most 4xx. A rejection that means "nothing was done"
//! releases the key: 401, 403, 409, 421, 425, 429, and 408, 413 or 503 with `Retry-After`. After 408, 5xx, an error
//! or a panic the outcome is unknown (in doubt). A handler that may have taken effect before it responds with 503 and
//! `Retry-After` must insert an [`Outcome`] into the extensions of its response.
//!
//! # What a key is
//! A key belongs to a principal: the authenticated account. Do not use a header that the client chooses, or a token
//! that is renewed between two attempts. A key stands for one request. The layer compares a digest of method, path,
//! query, content type and body before it reveals anything of the first request.
//!
//! # When the client goes away
//! The handler continues in its own task, and its response is available when the client retries. After
//! [60 s](Limits::disconnected) the outcome becomes unknown, which frees slot, execution and lease, but not the
//! memory. The handler is not dropped, since it may be between a charge and the record of it. It runs for up to
//! 10 min more without a lease. A response within that time is recorded, unless the outcome has been
//! [resolved](UnknownOutcomes) meanwhile.
//!
//! The handler is dropped only if the [`Takeover`] of the route lets it run again, or with
//! [`transactional`](IdempotencyLayer::transactional), which rolls its transaction back. [`IdempotencyLayer::drain`]
//! waits for running handlers before the server shuts down.
//!
//! # Limits
//! [`Limits`] bounds everything that holds a slot, a lease or memory, in time and in size. A principal may hold as
//! many executions, waits and bytes as are free, so a single principal gets half of them. Callers with an empty
//! principal, such as those of an [anonymous](IdempotencyLayer::anonymous) layer, share all of them.
//!
//! # After a crash
//! The key is held by a lease that is renewed while the handler runs. When the lease expires, the outcome is unknown:
//! the handler may have charged the card. The request does not run again unless the [`Takeover`] of the route
//! declares that safe.
//!
//! The renewals run in the task of the handler. So a handler that blocks its thread for as long as the lease (30 s by
//! default) loses it: run blocking work by `tokio::task::spawn_blocking`.
//!
//! An operator, or a job that queries the payment provider, can [resolve](UnknownOutcomes) the outcome.
//!
//! # The order of layers
//! Outside: tracing, authentication, rate limits and overload, so that their rejections are not stored. Compression
//! is also outside, so that responses are stored uncompressed. Then this layer. Inside: a timeout, so that it ends
//! the handler. The timeout responds with 408, 503 or 504 without `Retry-After`, and the outcome is unknown.

mod body;
#[cfg(all(test, feature = "sqlite"))]
mod clock_tests;
pub(crate) mod common;
pub(crate) mod execution;
mod lease;
pub(crate) mod limits;
mod multipart;
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
pub use relent_core::idempotency::{ClaimConfig, InvalidClaimConfig, Takeover};
pub use relent_http::Outcome;
use running::MAX_HANDLERS_AFTER_UNKNOWN;
use tokio::sync::Semaphore;
use tower_layer::Layer;

pub use crate::store::answer::{InvalidStoredResponse, StoredResponse};
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

use crate::fair_shares::Shares;
use crate::observe;
use crate::on_store_failure::OnStoreFailure;
use crate::store::{Store, StoreFailure};
use common::Common;
use execution::Running;
use settings::Settings;

/// Drops duplicates of requests with an `Idempotency-Key`: see the [module](self).
///
/// Clones of the layer, and the services that it creates, share their executions.
pub struct IdempotencyLayer<S> {
    store: Arc<S>,
    settings: Settings,
    common: Arc<Common>,
}

/// About 1 KB each.
const MAX_PENDING_GIVE_BACKS: usize = 16_384;
const MAX_CONCURRENT_GIVE_BACKS: usize = 64;

impl<S: Store> IdempotencyLayer<S> {
    /// Creates a layer with this store. `principal` returns the sender of a request, as the authentication layer
    /// stored it. If it returns `None`, a request with a key is rejected with 401.
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
            max_response: 256 << 10,
            fail_open: false,
            first_sent: false,
            failures: OnStoreFailure::default(),
            #[cfg(any(feature = "postgres", feature = "sqlite"))]
            transactional: false,
        };
        observe::starts();
        let common = Common {
            running: Running::default(),
            executions: Shares::new(Limits::DEFAULT.executions),
            waiters: Shares::new(Limits::DEFAULT.waiters),
            buffered: Shares::new(Limits::DEFAULT.buffered),
            abandoned: Semaphore::new(MAX_PENDING_GIVE_BACKS),
            give_backs: Semaphore::new(MAX_CONCURRENT_GIVE_BACKS),
            run_on: Arc::new(Semaphore::new(MAX_HANDLERS_AFTER_UNKNOWN)),
        };
        Self {
            store: Arc::new(store),
            settings,
            common: Arc::new(common),
        }
    }

    /// Creates a layer that does not distinguish its callers. All callers share one key space: if two choose the same
    /// key, the second gets a mismatch (422).
    #[must_use]
    pub fn anonymous(store: S) -> Self {
        Self::new(store, |_| Some(String::new()))
    }

    /// Scopes keys to an operation, such as the route template: one key may then be used for several operations.
    /// Without an operation, or where it returns `None`, one key of a principal stands for one request with one
    /// method. A layer [in a nested router](self#in-a-nested-router) needs it without the feature `axum`.
    #[must_use]
    pub fn operation(
        mut self,
        operation: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.settings.operation = Arc::new(operation);
        self
    }

    /// Requests that are rejected with 400 if they have no key. None by default.
    #[must_use]
    pub fn require(mut self, required: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.settings.required = Arc::new(required);
        self
    }

    /// Adds a header to the comparison of requests, such as the API version. `Content-Type` is always compared. `Host`
    /// includes the authority of HTTP/2: add it if the host determines the account, and all callers share their keys.
    #[must_use]
    pub fn compare_header(mut self, name: HeaderName) -> Self {
        self.settings.fingerprint.push(name);
        self
    }

    /// Sets lease, retention of responses, and takeover: 30 s, 24 h and none by default.
    ///
    /// # Errors
    /// A configuration with which a key could run twice: [`ClaimConfig::check`].
    pub fn claim(mut self, config: ClaimConfig) -> Result<Self, InvalidClaimConfig> {
        config.check()?;
        self.settings.claim = config;
        Ok(self)
    }

    /// The action of a duplicate whose first request was lost; [`Takeover::Refuse`] by default.
    #[must_use]
    pub const fn takeover(mut self, takeover: Takeover) -> Self {
        self.settings.claim.takeover = takeover;
        self
    }

    /// The longest time that a duplicate waits for the first request before it is rejected: 2 s by default. It never
    /// waits beyond the deadline of its caller.
    #[must_use]
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.settings.wait = wait;
        self
    }

    /// Limits of time, executions and memory for requests with a key; [`Limits::DEFAULT`] by default.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.settings.limits = limits;
        self.common.executions.set_most(limits.executions);
        self.common.waiters.set_most(limits.waiters);
        self.common.buffered.set_most(limits.buffered);
        self
    }

    /// The longest body of a request with a key, in bytes: 1 MiB by default. A longer one is rejected with 413.
    #[must_use]
    pub const fn max_request(mut self, bytes: usize) -> Self {
        self.settings.max_request = bytes;
        self
    }

    /// The longest response body that is stored, in bytes: 256 KiB by default. Duplicates of a longer one get 410,
    /// and nothing runs again.
    #[must_use]
    pub const fn max_response(mut self, bytes: usize) -> Self {
        self.settings.max_response = bytes;
        self
    }

    /// Rejects a request with 412 if its client first sent it longer ago than responses are
    /// [kept](ClaimConfig::retention). Its record may be gone, so a duplicate would run again. The client states the time
    /// in `Repeatability-First-Sent`, an HTTP date (OASIS Repeatable Requests 1.0). A malformed date is rejected with
    /// 400. A request without the header passes.
    ///
    /// The date comes from the client's clock and is compared with the clock of this machine. If the client's clock
    /// is ahead, a late duplicate is detected that much later.
    #[must_use]
    pub const fn refuse_forgotten(mut self) -> Self {
        self.settings.first_sent = true;
        self
    }

    /// If the store fails, lets requests with a key through as if they had none. By default they are rejected with
    /// 503, because a duplicate cannot be detected.
    ///
    /// Such a request has no [`Execution`], and so no derived key. Its claim may have reached the store all the same:
    /// then its outcome becomes unknown, although it may have had its effect. A job that finds no effect under the
    /// derived key must not resolve it as [`NotApplied`](crate::store::Resolution::NotApplied).
    #[must_use]
    pub const fn fail_open(mut self) -> Self {
        self.settings.fail_open = true;
        self
    }

    /// Calls `callback` when a call of the store has failed with all its attempts, for an alarm or a log. Its
    /// argument contains nothing secret, and the client does not see it. The callback runs in the task of the
    /// request, so keep it short.
    ///
    /// ```
    /// use relent_server::idempotency::IdempotencyLayer;
    /// use relent_server::store::{StoreFailureKind, Memory};
    ///
    /// let layer = IdempotencyLayer::anonymous(Memory::new()).on_store_failure(|failure| {
    ///     if failure.kind == StoreFailureKind::Full {
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

    /// Lets the handler claim and record the request in the transaction of its effects, by
    /// [`Transactional`](crate::transactional::Transactional) in the extensions. If a handler responds with success but
    /// recorded nothing, the client gets 500, since a duplicate would run again. If the claim rejects the request,
    /// the client gets that rejection, whatever the handler responds.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    #[must_use]
    pub const fn transactional(mut self) -> Self {
        self.settings.transactional = true;
        self
    }

    /// The engine for webhooks: the webhook layer chooses the keys.
    #[cfg(feature = "webhook")]
    pub(crate) fn of_webhooks(store: S, retention: Duration) -> Self {
        let mut layer = Self::anonymous(store);
        layer.settings.source = KeySource::WebhookId;
        layer.settings.claim.retention = retention;
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

    /// Runs requests whose keys come from another layer.
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

    /// Finds and resolves requests whose outcome is unknown.
    #[must_use]
    pub fn unknown_outcomes(&self) -> UnknownOutcomes<S> {
        let (store, common) = (Arc::clone(&self.store), Arc::clone(&self.common));
        UnknownOutcomes::of(store, self.settings.claim, common)
    }

    /// Waits until no handler of a request with a key runs, for up to [30 s](Limits::drain), and returns the number
    /// of tasks left. Call it at shutdown, after the server has stopped accepting requests. A handler that is cut off
    /// then has an unknown outcome when its lease expires. The supervisor must wait longer between SIGTERM and SIGKILL:
    /// by default Docker waits for 10 s, and Kubernetes for 30 s.
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
