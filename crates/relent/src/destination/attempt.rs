//! An attempt at a destination that belongs to no call of that destination.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use relent_core::destination::{Admission, AdmissionRequest, AttemptKind, AttemptOutcome, Permit};
use relent_core::{Failure, Instant};

use super::Destination;
use crate::clock::Clock;
use crate::observe::Observer;

/// An attempt that a [`Destination`] has admitted outside of a call: from [`Destination::try_start`].
///
/// Report its end by [`end`](Self::end). Dropped before that, it counts as cancelled.
#[must_use = "report the end of the attempt"]
pub struct DestinationAttempt<K: Clock> {
    destination: Arc<Destination>,
    /// `None` when it has ended.
    permit: Option<Permit>,
    clock: K,
}

impl Destination {
    /// Starts an attempt here if circuit breaker, cooldown, rate limit and throttle let it start now: for the choice
    /// of one of several upstreams, each with a destination of its own. It joins no queue. While the circuit breaker
    /// is down, the attempt is a probe.
    ///
    /// `is_retry` states that the caller's request has been sent before. The budget does not pay for it.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use relent::{Destination, Failure, Policy};
    /// use relent::clock::StdClock;
    ///
    /// let upstreams = [(); 2].map(|()| Arc::new(Destination::new(Policy::STANDARD)));
    /// let attempt = upstreams.iter().find_map(|upstream| upstream.try_start(StdClock, false));
    /// let sent: Result<(), Failure> = Ok(());
    /// if let Some(attempt) = attempt {
    ///     attempt.end(sent.err().as_ref());
    /// }
    /// ```
    pub fn try_start<K: Clock>(
        self: &Arc<Self>,
        clock: K,
        is_retry: bool,
    ) -> Option<DestinationAttempt<K>> {
        let now = clock.now();
        let mut request = AdmissionRequest {
            id: 0,
            since: now,
            last_start: Instant::MAX,
            answer_by: Instant::MAX,
            longest: Duration::ZERO,
            jitter: 0.0,
            kind: if is_retry {
                AttemptKind::FundedRetry
            } else {
                AttemptKind::First
            },
            waits_without_limit: false,
            rate_limit_only: self.policy().is_off(),
            may_wait: false,
        };
        let admission = self.core.enter(now, &mut request, false, None);
        self.report_breaker_change();
        let Admission::Start(mut permit) = admission else {
            return None;
        };
        permit.begin();
        Some(DestinationAttempt {
            destination: Arc::clone(self),
            permit: Some(permit),
            clock,
        })
    }

    fn report_breaker_change(&self) {
        if let Some(state) = self.breaker_change() {
            Observer::of(self).on_breaker_change(state, Some(self));
        }
    }
}

impl<K: Clock> DestinationAttempt<K> {
    /// Reports the end of the attempt. A `failure` of `None` is a success.
    pub fn end(mut self, failure: Option<&Failure>) {
        self.end_as(&failure.map_or(AttemptOutcome::SUCCESS, AttemptOutcome::of));
    }

    fn end_as(&mut self, outcome: &AttemptOutcome) {
        if let Some(permit) = self.permit.take() {
            let there = &self.destination;
            if there.core.end(self.clock.now(), permit, outcome) {
                Observer::of(there).on_cooldown();
            }
            there.report_breaker_change();
        }
    }
}

/// A cancelled attempt says nothing about the destination.
impl<K: Clock> Drop for DestinationAttempt<K> {
    fn drop(&mut self) {
        self.end_as(&AttemptOutcome::UNKNOWN);
    }
}

impl<K: Clock> fmt::Debug for DestinationAttempt<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DestinationAttempt")
            .field("destination", &self.destination)
            .finish_non_exhaustive()
    }
}
