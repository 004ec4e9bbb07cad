//! The delays of a policy as an iterator.

use core::time::Duration;

use crate::call::session::Session;
use crate::call::session::decision::Decision;
use crate::failure::Failure;
use crate::hint::Hint;
use crate::policy::Policy;
use crate::random::Random;
use crate::time::Instant;

/// The delays of a policy, made by [`Policy::waits`]: those of a session whose every attempt fails
/// immediately.
#[derive(Clone, Debug)]
pub struct Waits<'p, R> {
    policy: &'p Policy,
    session: Session,
    failure: Failure,
    now: Instant,
    random: R,
}

impl Policy {
    /// The delays of this policy, if every attempt fails immediately with an unclassified but
    /// retryable failure. Ends where the policy gives up; endless if it never does.
    ///
    /// It can drive any code that takes an iterator of durations.
    pub fn waits<R: Random>(&self, random: R) -> Waits<'_, R> {
        let mut failure = Failure::not_processed();
        if self.retry_on.is_some() {
            // The list determines which failures are retried, not their delays.
            failure.hint = Hint::do_retry();
        }
        self.waits_after(failure, random)
    }

    /// The delays of this policy if every attempt fails immediately with `failure`.
    pub fn waits_after<R: Random>(&self, failure: Failure, random: R) -> Waits<'_, R> {
        Waits::new(self, failure, random)
    }
}

impl<'p, R: Random> Waits<'p, R> {
    #[inline]
    pub(crate) const fn new(policy: &'p Policy, failure: Failure, random: R) -> Self {
        let session = Session::new(Instant::ORIGIN, true);
        Self {
            policy,
            session,
            failure,
            now: Instant::ORIGIN,
            random,
        }
    }
}

impl<R: Random> Iterator for Waits<'_, R> {
    type Item = Duration;

    #[inline]
    fn next(&mut self) -> Option<Duration> {
        self.session.on_attempt();
        let (policy, failure) = (self.policy, &self.failure);
        let decision = self
            .session
            .on_failure(policy, self.now, failure, &mut self.random, None);
        let Decision::Retry { after } = decision else {
            return None;
        };
        self.now = self.now.saturating_add(after);
        Some(after)
    }
}
