//! What the routes share: the store, the tokens, the sessions, and what is allowed.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use axum::routing::MethodRouter;

use super::sessions::Sessions;
use super::token::Token;
use crate::guard::AddressGuard;
use crate::secrets::Secrets;
use crate::store::Store;
use crate::worker::{Held, Hint, Watch};

/// The API over a store: see the [module](super).
///
/// # Default
/// Endpoints have to be at public addresses, with `https`.
pub struct Api<S> {
    pub(super) store: S,
    pub(super) secrets: Secrets,
    pub(super) token: Token,
    /// With which contents may be seen, too.
    pub(super) content_token: Option<Token>,
    /// The sessions of the page of this process.
    pub(super) sessions: Sessions,
    pub(super) guard: AddressGuard,
    pub(super) http_allowed: bool,
    pub(super) hint: Option<Hint>,
    pub(super) watch: Option<Watch>,
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
    /// The API over this store, for whoever has the token. Signing keys are sealed by `secrets`.
    #[must_use]
    pub fn new(store: S, secrets: Secrets, token: Token) -> Self {
        Self {
            store,
            secrets,
            token,
            content_token: None,
            sessions: Sessions::default(),
            guard: AddressGuard::new(),
            http_allowed: false,
            hint: None,
            watch: None,
            render: None,
        }
    }

    /// A client with this token may do what the other one allows, and see what messages hold: payloads, and the header fields
    /// of requests and answers. Without a content token no client sees them.
    #[must_use]
    pub fn content_token(mut self, token: Token) -> Self {
        self.content_token = Some(token);
        self
    }

    /// Lets endpoints be registered at the addresses that this guard lets pass: the one that the worker has.
    #[must_use]
    pub fn guard(mut self, guard: AddressGuard) -> Self {
        self.guard = guard;
        self
    }

    /// Lets endpoints be registered with `http`, whose messages anybody on the way can read.
    #[must_use]
    pub const fn allow_http(mut self, allowed: bool) -> Self {
        self.http_allowed = allowed;
        self
    }

    /// Tells a worker of this process when somebody has changed something, so that it looks at once. What was enqueued the
    /// [store](Store::hints) tells it.
    #[must_use]
    pub fn hint(mut self, hint: Hint) -> Self {
        self.hint = Some(hint);
        self
    }

    /// Shows what a worker of this process holds back, and why.
    #[must_use]
    pub fn watch(mut self, watch: Watch) -> Self {
        self.watch = Some(watch);
        self
    }

    /// What `/metrics` shows, such as `PrometheusHandle::render` of the recorder that is installed. It is called after the
    /// gauges are set by what the store says.
    #[must_use]
    pub fn metrics(mut self, render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.render = Some(Box::new(render));
        self
    }

    /// What the worker of this process holds back, by tenant and name.
    pub(super) async fn held(&self) -> HashMap<(String, String), Held> {
        let held = match &self.watch {
            Some(watch) => watch.held().await,
            None => Vec::new(),
        };
        let names = |held: &Held| (held.tenant.clone(), held.name.clone());
        held.into_iter().map(|held| (names(&held), held)).collect()
    }

    /// There is something to do.
    pub(super) fn wake(&self) {
        if let Some(hint) = &self.hint {
            hint.wake();
        }
    }
}

/// The state of every route.
pub(super) type Shared<S> = Arc<Api<S>>;
/// The method, the path, and what answers.
pub(super) type Route<S> = (&'static str, &'static str, MethodRouter<Shared<S>>);
