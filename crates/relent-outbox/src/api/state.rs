//! Shared state of the routes: store, tokens, sessions and settings.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use axum::routing::MethodRouter;

use super::limits::RequestBodies;
use super::sessions::Sessions;
use super::token::Token;
use crate::guard::AddressGuard;
use crate::secrets::Secrets;
use crate::store::Store;
use crate::worker::{HeldEndpoint, Hint, HoldMonitor};

/// The HTTP API of a store: see the [module](super).
///
/// # Default
/// Endpoints must have public addresses and `https`.
pub struct Api<S> {
    pub(super) store: S,
    pub(super) secrets: Secrets,
    pub(super) token: Token,
    /// The token that also permits contents.
    pub(super) content_token: Option<Token>,
    /// The sessions of the page of this process.
    pub(super) sessions: Sessions,
    pub(super) bodies: RequestBodies,
    pub(super) guard: AddressGuard,
    pub(super) http_allowed: bool,
    pub(super) hint: Option<Hint>,
    pub(super) watch: Option<HoldMonitor>,
    pub(super) render: Option<Box<dyn Fn() -> String + Send + Sync>>,
}

impl<S> fmt::Debug for Api<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api")
            .field("guard", &self.guard)
            .field("http_allowed", &self.http_allowed)
            .finish_non_exhaustive()
    }
}

impl<S: Store> Api<S> {
    /// Creates an API over this store for clients with this token. `secrets` encrypts signing keys.
    #[must_use]
    pub fn new(store: S, secrets: Secrets, token: Token) -> Self {
        Self {
            store,
            secrets,
            token,
            content_token: None,
            sessions: Sessions::default(),
            bodies: RequestBodies::default(),
            guard: AddressGuard::new(),
            http_allowed: false,
            hint: None,
            watch: None,
            render: None,
        }
    }

    /// Sets a token that permits the same as the other one, and also the contents of messages: payloads, and the header
    /// fields of requests and responses. Without a content token no client can see them.
    #[must_use]
    pub fn content_token(mut self, token: Token) -> Self {
        self.content_token = Some(token);
        self
    }

    /// Allows endpoints at the addresses that this guard allows. Use the guard of the worker.
    #[must_use]
    pub fn guard(mut self, guard: AddressGuard) -> Self {
        self.guard = guard;
        self
    }

    /// Allows endpoints with `http`, whose messages are not encrypted in transit.
    #[must_use]
    pub const fn allow_http(mut self, allowed: bool) -> Self {
        self.http_allowed = allowed;
        self
    }

    /// Wakes a worker of this process after changes by clients. It learns of enqueued messages from the
    /// [store](Store::hints).
    #[must_use]
    pub fn hint(mut self, hint: Hint) -> Self {
        self.hint = Some(hint);
        self
    }

    /// Shows which messages a worker of this process holds back, and why.
    #[must_use]
    pub fn watch(mut self, watch: HoldMonitor) -> Self {
        self.watch = Some(watch);
        self
    }

    /// Sets the output of `/metrics`, such as `PrometheusHandle::render` of the installed recorder. It is called after
    /// the gauges are set from the store.
    #[must_use]
    pub fn metrics(mut self, render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.render = Some(Box::new(render));
        self
    }

    /// The endpoints that the worker of this process holds back, by tenant and name.
    pub(super) async fn held(&self) -> HashMap<(String, String), HeldEndpoint> {
        let held = match &self.watch {
            Some(watch) => watch.held().await,
            None => Vec::new(),
        };
        let names = |held: &HeldEndpoint| (held.tenant.clone(), held.name.clone());
        held.into_iter().map(|held| (names(&held), held)).collect()
    }

    /// Wakes the worker.
    pub(super) fn wake(&self) {
        if let Some(hint) = &self.hint {
            hint.wake();
        }
    }
}

/// The state of every route.
pub(super) type Shared<S> = Arc<Api<S>>;
/// A route: method, path and handlers.
pub(super) type Route<S> = (&'static str, &'static str, MethodRouter<Shared<S>>);
