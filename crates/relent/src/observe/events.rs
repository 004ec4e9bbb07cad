//! The events: one for each wait, each give-up, each queued attempt and each change of a circuit
//! breaker.

use std::fmt;
use std::time::Duration;

use relent_core::call::Queued;
use relent_core::{Cause, Failure, StopReason, format_duration};

use super::TARGET;
use crate::destination::BreakerState;

/// A duration for display, in whole milliseconds.
fn whole_millis(duration: Duration) -> String {
    let millis = duration.as_millis().try_into().unwrap_or(u64::MAX);
    format_duration(Duration::from_millis(millis))
}

/// The source of the server's hint, and its delay in seconds.
fn hint(failure: &Failure) -> (Option<&'static str>, Option<f64>) {
    match failure.hint.delay() {
        Some(delay) => (Some(failure.hint.source.name()), Some(delay.as_secs_f64())),
        None => (None, None),
    }
}

/// The cause and the hint for display, if they add information: `: status 503, retry-after`.
struct CauseAndHint<'a>(&'a Failure, Option<&'static str>);

impl fmt::Display for CauseAndHint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(failure, hint) = self;
        if failure.cause != Cause::Error {
            write!(f, ": {}", failure.cause)?;
        }
        match hint {
            Some(hint) => write!(f, ", {hint}"),
            None => Ok(()),
        }
    }
}

#[cold]
pub(super) fn wait(attempt: u32, failure: &Failure, after: Duration, destination: Option<&str>) {
    let (source, delay) = hint(failure);
    tracing::info!(
        target: TARGET,
        {
            // OpenTelemetry has no unsigned numbers.
            relent.attempt = i64::from(attempt),
            relent.wait = after.as_secs_f64(),
            relent.kind = failure.kind_of_attempt().name(),
            relent.cause = %failure.cause,
            relent.hint = source,
            relent.hint_delay = delay,
            relent.destination = destination,
        },
        "retry in {}{}",
        whole_millis(after),
        CauseAndHint(failure, source),
    );
}

#[cold]
pub(super) fn queued(queued: &Queued, destination: Option<&str>) {
    tracing::info!(
        target: TARGET,
        {
            relent.attempt = i64::from(queued.attempt),
            relent.by = queued.by.name(),
            relent.at_most = queued.at_most.map(|at_most| at_most.as_secs_f64()),
            relent.destination = destination,
        },
        "{queued}",
    );
}

#[cold]
pub(super) fn stop(
    attempt: u32,
    failure: Option<&Failure>,
    reason: StopReason,
    destination: Option<&str>,
) {
    let (source, delay) = failure.map_or((None, None), hint);
    let kind = failure.map(|failure| failure.kind_of_attempt().name());
    let cause = failure.map(|failure| tracing::field::display(failure.cause));
    let plural = if attempt == 1 { "" } else { "s" };
    let seen = failure
        .filter(|failure| failure.cause != Cause::Error)
        .map_or_else(String::new, |failure| format!(" ({})", failure.cause));
    // The level of an event must be a constant.
    macro_rules! emit {
        ($level:ident) => {
            tracing::$level!(
                target: TARGET,
                {
                    relent.attempt = i64::from(attempt),
                    relent.reason = reason.name(),
                    relent.kind = kind,
                    relent.cause = cause,
                    relent.hint = source,
                    relent.hint_delay = delay,
                    relent.destination = destination,
                },
                "gave up after {attempt} attempt{plural}: {reason}{seen}",
            )
        };
    }
    match reason {
        StopReason::Permanent | StopReason::Cancelled => emit!(debug),
        _ => emit!(warn),
    }
}

#[cold]
pub(super) fn circuit_breaker(state: BreakerState, destination: Option<&str>) {
    macro_rules! emit {
        ($level:ident, $message:literal) => {
            tracing::$level!(
                target: TARGET,
                {
                    relent.circuit_breaker = state.name(),
                    relent.destination = destination,
                },
                $message,
            )
        };
    }
    match state {
        BreakerState::Normal => emit!(info, "the circuit breaker is normal"),
        BreakerState::Limited => emit!(
            info,
            "the circuit breaker is limited: attempts are held to a rate"
        ),
        BreakerState::Down => emit!(warn, "the circuit breaker is down: requests are queued"),
    }
}
