//! A policy's waits as an iterator.

use core::time::Duration;

use crate::failure::Failure;
use crate::policy::Policy;
use crate::random::Random;
use crate::session::Session;
use crate::time::Instant;

/// The waits of a policy, made by [`Policy::waits`]: a session whose every attempt fails at once.
#[derive(Clone, Debug)]
pub struct Waits<'p, R> {
    policy: &'p Policy,
    session: Session,
    failure: Failure,
    now: Instant,
    random: R,
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
        let wait = self
            .session
            .wait_or_stop(self.policy, self.now, &self.failure, &mut self.random, None)
            .ok()?;
        self.now = Instant::from_nanos(self.now.as_nanos().saturating_add(wait));
        Some(Duration::from_nanos(wait))
    }
}
