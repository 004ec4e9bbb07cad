//! Extensions of requests.

use std::sync::Arc;

use relent_core::Policy;
use relent_core::destination::Hedge;

/// Retry settings of one request, overriding those of the layer: insert it into the extensions of the
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
    pub(super) fails_fast: bool,
    /// `Some(None)` disables hedging.
    pub(super) hedge: Option<Option<Arc<Hedge>>>,
}

impl Override {
    /// Creates an override that changes nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether this override changes nothing.
    #[cfg(feature = "grpc")]
    pub(super) const fn is_empty(&self) -> bool {
        let Self {
            policy,
            repeatable,
            no_retry,
            fails_fast,
            hedge,
        } = self;
        policy.is_none() && repeatable.is_none() && !*no_retry && !*fails_fast && hedge.is_none()
    }

    /// Sets the policy. The budget remains that of the layer.
    #[must_use]
    pub fn policy(mut self, policy: impl Into<Arc<Policy>>) -> Self {
        self.policy = Some(policy.into());
        self
    }

    /// Declares whether the request may safely run twice, whatever its method, its headers, and the policy's
    /// assumptions.
    #[must_use]
    pub const fn repeatable(mut self, repeatable: bool) -> Self {
        self.repeatable = Some(repeatable);
        self
    }

    /// Sets the hedging, overriding the `[hedge]` of the policy; see [`RetryLayer`](super::RetryLayer).
    #[must_use]
    pub fn hedge(mut self, hedge: impl Into<Arc<Hedge>>) -> Self {
        self.hedge = Some(Some(hedge.into()));
        self
    }

    /// Disables hedging.
    #[must_use]
    pub fn no_hedge(mut self) -> Self {
        self.hedge = Some(None);
        self
    }

    /// Ends the call where its destination would queue it; see [`RetryLayer::fail_fast`](super::RetryLayer::fail_fast).
    #[must_use]
    pub const fn fail_fast(mut self) -> Self {
        self.fails_fast = true;
        self
    }

    /// Allows one attempt only. Time limits still apply.
    #[must_use]
    pub const fn no_retry(mut self) -> Self {
        self.no_retry = true;
        self
    }
}

/// Request extension: the attempt should not use the connection of the previous one. That
/// was the wrong one for this request (421), or is still sending the earlier request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreshConnection;
