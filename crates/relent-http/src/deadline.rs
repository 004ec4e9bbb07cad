//! Applies the deadline of one call to a policy.

use std::sync::Arc;
use std::time::Duration;

use relent_core::Policy;

/// The time for a server to reject a request whose deadline has passed.
const TIME_TO_REJECT: Duration = Duration::from_secs(1);

/// The policy with this deadline; `None` if it already has a nearer one. If the deadline is no longer than the
/// minimum attempt time, one attempt gets all of it. If it is zero, one attempt of at most 1 s is made, and the server
/// rejects it.
pub(crate) fn within(policy: &Policy, deadline: Duration) -> Option<Arc<Policy>> {
    if policy.deadline().is_some_and(|nearer| nearer <= deadline) {
        return None;
    }
    let most = deadline.saturating_sub(Duration::from_nanos(1));
    let room = policy.min_attempt_time().min(most);
    let builder = policy.clone().into_builder().deadline(deadline);
    let sooner = builder.min_attempt_time(room).build();
    Some(Arc::new(sooner.unwrap_or_else(|_| rejected(policy))))
}

/// The policy for a request whose deadline has passed. The limit includes the wait for a rate limit.
fn rejected(policy: &Policy) -> Policy {
    let policy = policy.clone().without_retries();
    let limit = policy.deadline().unwrap_or(TIME_TO_REJECT);
    let limit = limit.min(TIME_TO_REJECT);
    let room = policy.min_attempt_time().min(limit / 2);
    let builder = policy.clone().into_builder().deadline(limit);
    let limited = builder.min_attempt_time(room).build();
    limited.unwrap_or(policy)
}
