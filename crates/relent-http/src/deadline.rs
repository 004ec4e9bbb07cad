//! Applies the deadline of one call to a policy.

use std::sync::Arc;
use std::time::Duration;

use relent_core::Policy;

/// The policy with this deadline; `None` if it already has a nearer one. If the deadline is no longer than the
/// minimum attempt time, one attempt gets all of it. If it is zero, one attempt is made, and the server
/// rejects it.
pub(crate) fn within(policy: &Policy, deadline: Duration) -> Option<Arc<Policy>> {
    if policy.deadline().is_some_and(|nearer| nearer <= deadline) {
        return None;
    }
    let most = deadline.saturating_sub(Duration::from_nanos(1));
    let room = policy.min_attempt_time().min(most);
    let builder = policy.clone().into_builder().deadline(deadline);
    let sooner = builder.min_attempt_time(room).build();
    Some(Arc::new(
        sooner.unwrap_or_else(|_| policy.clone().without_retries()),
    ))
}
