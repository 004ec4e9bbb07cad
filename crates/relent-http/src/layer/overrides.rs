//! What travels in the extensions of a request.

use std::sync::Arc;

use relent_core::{Hedge, Policy};

/// How one request is retried, in place of what the layer says: put it into the extensions of the
/// request. It is not passed on.
///
/// ```
/// use relent_http::Override;
///
/// let mut request = http::Request::post("http://localhost/search").body(())?;
/// request.extensions_mut().insert(Override::new().repeatable(true));
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Override {
    pub(super) policy: Option<Arc<Policy>>,
    pub(super) repeatable: Option<bool>,
    pub(super) no_retry: bool,
    /// `Some(None)`: by none.
    pub(super) hedge: Option<Option<Arc<Hedge>>>,
}

impl Override {
    /// Changes nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether it changes nothing.
    #[cfg(feature = "grpc")]
    pub(super) const fn is_empty(&self) -> bool {
        self.policy.is_none() && self.repeatable.is_none() && !self.no_retry && self.hedge.is_none()
    }

    /// By this policy. The budget remains that of the layer.
    #[must_use]
    pub fn policy(mut self, policy: impl Into<Arc<Policy>>) -> Self {
        self.policy = Some(policy.into());
        self
    }

    /// Whether the request may run twice without harm, whatever its method and headers say, and whatever
    /// the policy assumes of all requests.
    #[must_use]
    pub const fn repeatable(mut self, repeatable: bool) -> Self {
        self.repeatable = Some(repeatable);
        self
    }

    /// Hedged by this in place of the `[hedge]` of the policy; see [`RetryLayer`](super::RetryLayer).
    #[must_use]
    pub fn hedge(mut self, hedge: impl Into<Arc<Hedge>>) -> Self {
        self.hedge = Some(Some(hedge.into()));
        self
    }

    /// Not hedged.
    #[must_use]
    pub fn no_hedge(mut self) -> Self {
        self.hedge = Some(None);
        self
    }

    /// One attempt only. The limits of time apply.
    #[must_use]
    pub const fn no_retry(mut self) -> Self {
        self.no_retry = true;
        self
    }
}

/// In the extensions of a request: the attempt should not use the connection of the one before. That
/// was the wrong one for this request (421), or is still busy with sending it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreshConnection;
