//! A policy with the deadline of one call.

use std::sync::Arc;
use std::time::Duration;

use relent_core::Policy;

/// The same policy with this deadline; `None` if it has a nearer one already. Where the time is none,
/// or none but the room of an attempt, there is one attempt, and the server will say so.
pub(crate) fn within(policy: &Policy, deadline: Duration) -> Option<Arc<Policy>> {
    if policy.deadline().is_some_and(|nearer| nearer <= deadline) {
        return None;
    }
    let sooner = policy.clone().into_builder().deadline(deadline).build();
    Some(Arc::new(
        sooner.unwrap_or_else(|_| policy.clone().without_retries()),
    ))
}
