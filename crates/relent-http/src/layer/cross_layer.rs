//! Cross-layer headers that the layer sends, and the deadline that a request carries.

use std::sync::Arc;

use http::Request;
use relent::clock::Clock;
use relent_core::Policy;

use super::{Config, Override, RetryLayer};
use crate::cross_layer::{CrossLayer, CrossLayerCall};

impl<K, M, N> RetryLayer<K, M, N> {
    /// Sends the server the attempt number (from the second attempt on), the time left until
    /// the deadline, and from time to time how many attempts the calls of this layer take: see
    /// [`CallerContext`](crate::CallerContext), which reads them, and `docs/headers.md`. Off by default, since it is
    /// for services that know each other.
    ///
    /// A deadline that a request carries in [`relent-deadline-ms`](crate::headers::RELENT_DEADLINE_MS)
    /// limits all its attempts together.
    ///
    /// ```
    /// use relent::Policy;
    /// use relent_http::RetryLayer;
    ///
    /// let layer = RetryLayer::new(Policy::STANDARD).cross_layer();
    /// # drop(layer);
    /// ```
    #[must_use]
    pub fn cross_layer(mut self) -> Self {
        self.config.cross = Some(CrossLayer::new());
        self
    }
}

impl<K: Clock + Clone, M, N> Config<K, M, N> {
    /// The cross-layer headers of a call.
    #[inline]
    pub(super) fn cross_layer_call(&self) -> CrossLayerCall<K> {
        CrossLayerCall::of(self.cross.as_ref(), || self.clock.clone())
    }

    /// Applies the deadline that the request carries, if it is the nearer one, to the policy of the
    /// request.
    #[inline]
    pub(super) fn obey_deadline<T>(
        &self,
        policy: &Arc<Policy>,
        request: &Request<T>,
        overrides: &mut Option<Override>,
    ) {
        if self.cross.is_none() || request.headers().is_empty() {
            return;
        }
        let own = overrides.as_ref().and_then(|own| own.policy.as_ref());
        let sooner = CrossLayer::policy(own.unwrap_or(policy), request.headers());
        if let Some(sooner) = sooner {
            overrides.get_or_insert_default().policy = Some(sooner);
        }
    }
}
