//! Observability of running sessions: [`tracing`](https://docs.rs/tracing) events with the feature
//! `tracing`, and metrics through the [`metrics`](https://docs.rs/metrics) facade with the feature
//! `metrics`. All names are in this module; `docs/observability.md` lists them in one table.
//!
//! Both features are off by default. With a feature on and no subscriber or recorder, a first
//! success costs one check and no allocation.
//!
//! # Events
//! The target is `relent`. Durations are in seconds.
//!
//! | when | level | message | fields |
//! |---|---|---|---|
//! | before a wait | `INFO` | `retry in 340ms: status 503, retry-after` | `relent.attempt`, `relent.wait`, `relent.kind`, `relent.cause`, `relent.hint`, `relent.hint_delay` |
//! | an attempt is held | `INFO` | `attempt 6 is held by the circuit breaker for at most 29.8s` | `relent.attempt`, `relent.by`, `relent.at_most` |
//! | the circuit breaker changes state | `WARN` if it goes down, else `INFO` | `the circuit breaker is down: requests are queued` | `relent.circuit_breaker`, `relent.destination` |
//! | at a give-up | `WARN`; `DEBUG` if repeating cannot help, or it was cancelled | `gave up after 3 attempts: the retries are used up (status 503)` | `relent.attempt`, `relent.reason`, `relent.kind`, `relent.cause`, `relent.hint`, `relent.hint_delay` |
//!
//! `relent.circuit_breaker` is `normal`, `limited` or `down`; `relent.by` is `circuit_breaker`, `budget`, `cooldown` or
//! `rate_limit`. Every event has `relent.destination` if the destination has a name
//! ([`Destination::named`](crate::Destination::named)); [`Destinations`](crate::Destinations) have the names by which
//! they are found, which are origins such as `https://one.example` for a client of HTTP.
//! `relent.hint` and `relent.hint_delay` are present if the server named a time. No event contains
//! a path, a query or the text of an error: they may contain secrets.
//!
//! # Metrics
//! The number of requests is the number of attempts without retries and hedges:
//! `relent_attempts_total - relent_retries_total - relent_hedges_total`. Each call of a
//! [`poll_until`](crate::poll_until) closure is an attempt, and a job that is not completed is not a failure.
//! The ticks of a [`Ticker`](crate::Ticker) are not reported. A session whose future is dropped is
//! not a give-up.

#[cfg(feature = "tracing")]
mod events;
#[cfg(feature = "metrics")]
mod meters;
mod names;

#[cfg(feature = "metrics")]
use std::time::Duration;

#[cfg(feature = "metrics")]
use relent_core::Cause;
use relent_core::call::Queued;
#[cfg(feature = "metrics")]
use relent_core::destination::{BlockedBy, Budget};
use relent_core::{Decision, Failure, StopReason};

use crate::destination::{BreakerState, Destination};

#[cfg(feature = "metrics")]
pub use meters::{Label, describe, describe_metrics};
pub use names::*;

/// Reports the events and metrics of one session. Without the features it is empty and does
/// nothing.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    #[cfg(feature = "metrics")]
    label: Option<Label>,
}

impl Observer {
    pub(crate) const NEW: Self = Self {
        #[cfg(feature = "metrics")]
        label: None,
    };

    /// Reports under the name of the destination, if it has one.
    pub(crate) fn of(there: &Destination) -> Self {
        #[cfg(feature = "metrics")]
        if let Some(name) = there.name() {
            return Self {
                label: Some(Label::new(name)),
            };
        }
        let _ = there;
        Self::NEW
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn label(&mut self, label: Label) {
        self.label = Some(label);
    }

    /// The attempt of this number starts.
    #[inline]
    pub(crate) fn on_attempt(&self, number: u32) {
        #[cfg(feature = "metrics")]
        meters::attempt(self.label.as_ref(), number);
        let _ = number;
    }

    /// A hedge starts.
    #[inline]
    pub(crate) fn on_hedge(&self) {
        #[cfg(feature = "metrics")]
        meters::hedge(self.label.as_ref());
    }

    /// The transport has sent so many requests again by itself.
    #[cold]
    pub(crate) fn on_resends(&self, number: u32) {
        #[cfg(feature = "metrics")]
        meters::resends(self.label.as_ref(), number);
        let _ = number;
    }

    /// An attempt failed.
    #[inline]
    pub(crate) fn on_failure(&self, failure: &Failure) {
        #[cfg(feature = "metrics")]
        if failure.cause != Cause::Pending {
            meters::failure(self.label.as_ref(), failure);
        }
        let _ = failure;
    }

    /// A budget was used. Every budget gauge update comes from here.
    #[cfg(feature = "metrics")]
    #[inline]
    pub(crate) fn on_budget(&self, budget: &Budget) {
        meters::budget(self.label.as_ref(), budget);
    }

    /// The control that held the request back until now, the time if the request was released, and
    /// the control that holds it now.
    #[cfg(feature = "metrics")]
    #[cold]
    pub(crate) fn on_held(
        &self,
        before: Option<BlockedBy>,
        held: Option<Duration>,
        after: Option<BlockedBy>,
    ) {
        meters::held(self.label.as_ref(), before, held, after);
    }

    /// A cooldown begins.
    #[inline]
    pub(crate) fn on_cooldown(&self) {
        #[cfg(feature = "metrics")]
        meters::cooldown(self.label.as_ref());
    }

    /// The next attempt is queued.
    #[inline]
    pub(crate) fn on_queued(&self, queued: &Queued, there: Option<&Destination>) {
        #[cfg(feature = "tracing")]
        events::queued(queued, self.name(there));
        let _ = (queued, there);
    }

    /// The circuit breaker has changed to this state.
    #[inline]
    pub(crate) fn on_breaker_change(&self, state: BreakerState, there: Option<&Destination>) {
        #[cfg(feature = "metrics")]
        meters::circuit_breaker(self.label.as_ref(), state);
        #[cfg(feature = "tracing")]
        events::circuit_breaker(state, self.name(there));
        let _ = (state, there);
    }

    /// The current rate limit, in attempts per second.
    #[cfg(feature = "metrics")]
    pub(crate) fn on_request_rate(&self, rate: f64) {
        meters::rate_limit(self.label.as_ref(), rate);
    }

    /// The name of the destination, if it has one.
    #[cfg(feature = "tracing")]
    fn name<'n>(&'n self, there: Option<&'n Destination>) -> Option<&'n str> {
        #[cfg(feature = "metrics")]
        if let Some(label) = &self.label {
            return Some(label.name());
        }
        there.and_then(Destination::name)
    }

    /// A decision after a failure.
    #[inline]
    pub(crate) fn on_decision(
        &self,
        attempt: u32,
        failure: &Failure,
        decision: &Decision,
        there: Option<&Destination>,
    ) {
        match decision {
            Decision::Retry { after } => {
                #[cfg(feature = "metrics")]
                meters::wait(self.label.as_ref(), failure, *after);
                #[cfg(feature = "tracing")]
                events::wait(attempt, failure, *after, self.name(there));
                let _ = after;
            }
            Decision::Stop(stop) => self.on_stop(attempt, Some(failure), stop.reason, there),
        }
    }

    /// The call gives up; with the failure, if that is the reason.
    #[inline]
    pub(crate) fn on_stop(
        &self,
        attempt: u32,
        failure: Option<&Failure>,
        reason: StopReason,
        there: Option<&Destination>,
    ) {
        #[cfg(feature = "metrics")]
        meters::stop(self.label.as_ref(), reason);
        #[cfg(feature = "tracing")]
        events::stop(attempt, failure, reason, self.name(there));
        let _ = (attempt, failure, reason, there);
    }
}
