//! A policy with the deadline of one call.

use std::sync::Arc;
use std::time::Duration;

use relent_core::Policy;

/// The same policy with this deadline; `None` if it has a nearer one already. Where the time is no longer
/// than the room of an attempt, there is one attempt, which has all of it. Where there is none, there is one
/// attempt, and the server will say so.
pub(crate) fn within(policy: &Policy, deadline: Duration) -> Option<Arc<Policy>> {
    if policy.deadline().is_some_and(|nearer| nearer <= deadline) {
        return None;
    }
    let most = deadline.saturating_sub(Duration::from_nanos(1));
    let room = policy.attempt_room().min(most);
    let builder = policy.clone().into_builder().deadline(deadline);
    let sooner = builder.attempt_room(room).build();
    Some(Arc::new(
        sooner.unwrap_or_else(|_| policy.clone().without_retries()),
    ))
}
