//! The end of an attempt, as the controls of its destination see it. Only this file reads a failure for
//! them.

use core::time::Duration;

use crate::destination::circuit_breaker::BreakerOutcome;
use crate::failure::{Cause, Failure, FailureKind, Hop, Network, Scope};
use crate::hint::{Advice, Audience};

/// What the end of an attempt means for each control of its destination. Controls read this value and
/// never the [`Failure`], so they cannot disagree about it.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Failure, Hint, Hop};
/// use relent_core::destination::{AttemptOutcome, BreakerOutcome};
///
/// let busy = Failure::throttled().hint(Hint::after(Duration::from_secs(2)));
/// let outcome = AttemptOutcome::of(&busy);
/// assert_eq!(outcome.circuit_breaker, BreakerOutcome::Deferred);
/// assert_eq!(outcome.cooldown.map(|request| request.delay), Some(Duration::from_secs(2)));
/// assert!(outcome.reduces_rate && outcome.pauses_hedges);
///
/// // The destination has redirected the request to another one, which is busy.
/// let outcome = AttemptOutcome::of(&busy.hop(Hop::Elsewhere));
/// assert_eq!(outcome.circuit_breaker, BreakerOutcome::Answered);
/// assert_eq!(outcome.cooldown, None);
/// assert!(!outcome.reduces_rate && !outcome.pauses_hedges);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttemptOutcome {
    /// For the circuit breaker. The throttle counts [`BreakerOutcome::Answered`] as accepted.
    pub circuit_breaker: BreakerOutcome,
    /// Whether the destination has sent a response, a failed one included. A call without a deadline
    /// waits longer for a destination that has responded before.
    pub has_responded: bool,
    /// For the cooldown: a `Retry-After` to all callers.
    pub cooldown: Option<CooldownRequest>,
    /// For an adaptive rate limit, which then reports [`BreakerOutcome::Deferred`] to the breaker.
    pub reduces_rate: bool,
    /// For hedging: no call is hedged until the next success.
    pub pauses_hedges: bool,
    /// For the budget: whether the retry after this outcome costs tokens.
    pub exemption: Exemption,
    /// For a budget that [charges failures](crate::BudgetConfig::charge_failures): whether it charges
    /// this one, unless it is exempt or [permanent](FailureKind::Permanent).
    pub is_charged: bool,
}

/// A request of the destination to all its callers to stay away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CooldownRequest {
    /// How long, from the end of the attempt.
    pub delay: Duration,
    /// Whether the destination is down or full. A circuit breaker, if there is one, then decides about
    /// the other callers.
    pub is_left_to_breaker: bool,
}

/// Whether the budget has to pay for the retry after a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exemption {
    /// It pays.
    None,
    /// Once in a session it does not: a live connection provably never processed the attempt.
    Once,
    /// It does not: the retry has a reserved slot, or the destination has responded correctly, as to
    /// a poll.
    Always,
}

impl AttemptOutcome {
    /// The attempt succeeded.
    pub const SUCCESS: Self = Self::only(BreakerOutcome::Answered);

    /// The attempt has no outcome: it was cancelled, or cut off too early to show anything.
    pub const UNKNOWN: Self = Self::only(BreakerOutcome::Unknown);

    /// An outcome that only the circuit breaker evaluates.
    pub(crate) const fn only(circuit_breaker: BreakerOutcome) -> Self {
        Self {
            circuit_breaker,
            has_responded: matches!(circuit_breaker, BreakerOutcome::Answered),
            cooldown: None,
            reduces_rate: false,
            pauses_hedges: false,
            exemption: Exemption::None,
            is_charged: false,
        }
    }

    /// The outcome of an attempt with this failure.
    ///
    /// Take the failure as the server sent it, not [in view of earlier
    /// attempts](crate::Session::in_view_of_earlier): those belong to one caller.
    #[must_use]
    pub const fn of(failure: &Failure) -> Self {
        // The destination that failed is the one that was asked.
        let is_own = !matches!(failure.hop, Hop::Elsewhere);
        let concerns_all = is_own && matches!(failure.scope, Scope::Destination);
        let circuit_breaker = for_breaker(failure, concerns_all);
        let exemption = exemption(failure);
        Self {
            circuit_breaker,
            has_responded: matches!(circuit_breaker, BreakerOutcome::Answered)
                || failure.cause.is_response()
                || is_rejection(failure.kind),
            cooldown: match shared_delay(failure) {
                Some(delay) if concerns_all => cooldown(failure.kind, delay),
                _ => None,
            },
            reduces_rate: concerns_all
                && matches!(failure.kind, FailureKind::Throttled)
                && !has_reserved_slot(failure),
            pauses_hedges: concerns_all && is_rejection(failure.kind),
            exemption,
            // The budget pays for the call's retries, whichever destination failed.
            is_charged: matches!(failure.scope, Scope::Destination)
                && !matches!(exemption, Exemption::Always)
                && !matches!(failure.cause, Cause::Network(Network::Local)),
        }
    }
}

const fn for_breaker(failure: &Failure, concerns_all: bool) -> BreakerOutcome {
    match (failure.kind, failure.cause) {
        // No request was sent.
        (_, Cause::Network(Network::BadRequest)) if failure.is_single_request() => {
            BreakerOutcome::Unknown
        }
        // It responded to this request, or with the redirect to the destination that failed.
        _ if !concerns_all => BreakerOutcome::Answered,
        // The caller's own body failed, whatever the destination did.
        (_, Cause::Network(Network::Local)) => BreakerOutcome::Unknown,
        (FailureKind::Permanent, _) => BreakerOutcome::Answered,
        (FailureKind::Throttled, _) if failure.hint.delay_nanos().is_some() => {
            BreakerOutcome::Deferred
        }
        (FailureKind::Throttled | FailureKind::Overloaded, _) => BreakerOutcome::Overloaded,
        (_, Cause::Timeout) => BreakerOutcome::TimedOut,
        (FailureKind::NotProcessed | FailureKind::Ambiguous, _) => BreakerOutcome::Failed,
    }
}

/// An earlier request of the attempt was processed, so only a single one can be unsent.
const fn exemption(failure: &Failure) -> Exemption {
    if failure.cause.is_regular_response() || has_reserved_slot(failure) {
        Exemption::Always
    } else if failure.cause.is_unsent() && failure.is_single_request() {
        Exemption::Once
    } else {
        Exemption::None
    }
}

const fn cooldown(kind: FailureKind, delay: Duration) -> Option<CooldownRequest> {
    let is_left_to_breaker = match kind {
        FailureKind::NotProcessed => true,
        FailureKind::Throttled | FailureKind::Overloaded => false,
        FailureKind::Ambiguous | FailureKind::Permanent => return None,
    };
    Some(CooldownRequest {
        delay,
        is_left_to_breaker,
    })
}

const fn shared_delay(failure: &Failure) -> Option<Duration> {
    match failure.hint.audience {
        Audience::Shared => failure.hint.delay(),
        Audience::TicketSeconds | Audience::TicketMillis => None,
    }
}

const fn has_reserved_slot(failure: &Failure) -> bool {
    failure.hint.delay_nanos().is_some() && !matches!(failure.hint.audience, Audience::Shared)
}

/// Whether the destination rejected the attempt because of rate or load.
const fn is_rejection(kind: FailureKind) -> bool {
    matches!(kind, FailureKind::Throttled | FailureKind::Overloaded)
}

/// Whether the server asked this caller to stay away for now, so that no hedge joins its attempts. It
/// does not matter which destination asked: each hedge would be redirected to it too.
pub(crate) const fn is_pushback(failure: &Failure) -> bool {
    is_rejection(failure.kind)
        || failure.as_if_in_progress
        || failure.hint.delay_nanos().is_some()
        || matches!(failure.hint.advice, Advice::DoNotRetry)
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;

    use super::*;
    use crate::hint::Hint;

    const SECOND: Duration = Duration::from_secs(1);

    /// The outcome as one line: what the breaker sees, then the effects on the other controls.
    fn line(failure: Failure) -> String {
        let outcome = AttemptOutcome::of(&failure);
        let effects = [
            (outcome.has_responded, "responded"),
            (
                outcome.cooldown.is_some_and(|it| !it.is_left_to_breaker),
                "cooldown",
            ),
            (
                outcome.cooldown.is_some_and(|it| it.is_left_to_breaker),
                "cooldown-unless-breaker",
            ),
            (outcome.reduces_rate, "rate"),
            (outcome.pauses_hedges, "no-hedges"),
            (outcome.exemption == Exemption::Once, "free-once"),
            (outcome.exemption == Exemption::Always, "free"),
            (outcome.is_charged, "charged"),
        ];
        let effects: Vec<_> = effects.iter().filter(|(is, _)| *is).collect();
        effects
            .iter()
            .fold(format!("{:?}", outcome.circuit_breaker), |line, (_, it)| {
                line + " " + it
            })
    }

    fn shared(failure: Failure) -> Failure {
        failure.hint(Hint::after(SECOND))
    }

    fn reserved(failure: Failure) -> Failure {
        failure.hint(Hint::after(SECOND).for_audience(Audience::TicketSeconds))
    }

    fn status(failure: Failure) -> Failure {
        failure.cause(Cause::Status(500))
    }

    fn network(network: Network) -> Failure {
        Failure::network(network)
    }

    #[test]
    fn each_control_learns_its_part_of_a_failure() {
        let timeout = Failure::ambiguous().cause(Cause::Timeout);
        let (own, other) = (Hop::Here, Hop::Elsewhere);
        let (throttled, overloaded) = (Failure::throttled(), Failure::overloaded());
        let not_processed = Failure::not_processed();
        let permanent = Failure::permanent();
        for (failure, expected) in [
            // By kind.
            (Failure::ambiguous(), "Failed charged"),
            (status(Failure::ambiguous()), "Failed responded charged"),
            (not_processed, "Failed charged"),
            (throttled, "Overloaded responded rate no-hedges charged"),
            (overloaded, "Overloaded responded no-hedges charged"),
            (permanent, "Answered responded charged"),
            (timeout, "TimedOut charged"),
            // With a delay for all callers.
            (shared(Failure::ambiguous()), "Failed charged"),
            (shared(permanent), "Answered responded charged"),
            (
                shared(not_processed),
                "Failed cooldown-unless-breaker charged",
            ),
            (
                shared(throttled),
                "Deferred responded cooldown rate no-hedges charged",
            ),
            (
                shared(overloaded),
                "Overloaded responded cooldown no-hedges charged",
            ),
            // With a reserved slot for one caller.
            (reserved(not_processed), "Failed free"),
            (reserved(throttled), "Deferred responded no-hedges free"),
            (reserved(overloaded), "Overloaded responded no-hedges free"),
            // By cause.
            (Failure::pending(), "Answered responded free"),
            (Failure::conflict(), "Answered responded free"),
            (
                network(Network::GoAway),
                "Failed responded free-once charged",
            ),
            (
                network(Network::RefusedStream),
                "Failed responded free-once charged",
            ),
            (network(Network::Connect), "Failed charged"),
            (network(Network::Truncated), "Failed responded charged"),
            (network(Network::Certificate), "Answered responded charged"),
            // No request was sent, so nothing is known.
            (network(Network::BadRequest), "Unknown charged"),
            // It failed on this side.
            (network(Network::Local), "Unknown"),
            (network(Network::Local).hop(own), "Unknown"),
            (network(Network::Local).hop(other), "Answered responded"),
            // About one request: the destination is up, and others are not held.
            (
                shared(throttled).scope(Scope::Request),
                "Answered responded",
            ),
            (timeout.scope(Scope::Request), "Answered responded"),
            (
                reserved(throttled).scope(Scope::Request),
                "Answered responded free",
            ),
            // The last of several requests to this destination failed. An earlier one was processed.
            (
                shared(throttled).hop(own),
                "Deferred responded cooldown rate no-hedges charged",
            ),
            (timeout.hop(own), "TimedOut charged"),
            (
                network(Network::GoAway).hop(own),
                "Failed responded charged",
            ),
            (
                network(Network::BadRequest).hop(own),
                "Answered responded charged",
            ),
            // Another destination failed. This one has responded, and its budget pays for the retry.
            (shared(throttled).hop(other), "Answered responded charged"),
            (overloaded.hop(other), "Answered responded charged"),
            (
                network(Network::Connect).hop(other),
                "Answered responded charged",
            ),
            (
                network(Network::GoAway).hop(other),
                "Answered responded charged",
            ),
            (timeout.hop(other), "Answered responded charged"),
        ] {
            assert_eq!(line(failure), expected, "{failure:?}");
        }
    }

    #[test]
    fn a_response_with_retry_after_or_a_permanent_failure_means_up() {
        let hinted = Failure::throttled().hint(Hint::after(SECOND));
        let cases = [
            (Failure::permanent(), BreakerOutcome::Answered),
            (hinted, BreakerOutcome::Deferred),
            (Failure::throttled(), BreakerOutcome::Overloaded),
            (Failure::overloaded(), BreakerOutcome::Overloaded),
            (
                Failure::ambiguous().cause(Cause::Timeout),
                BreakerOutcome::TimedOut,
            ),
            (
                Failure::ambiguous().cause(Cause::Status(503)),
                BreakerOutcome::Failed,
            ),
            (Failure::not_processed(), BreakerOutcome::Failed),
            // A failure of one request only is a response of a destination that is up.
            (hinted.scope(Scope::Request), BreakerOutcome::Answered),
            (
                Failure::throttled().scope(Scope::Request),
                BreakerOutcome::Answered,
            ),
            (
                Failure::not_processed().scope(Scope::Request),
                BreakerOutcome::Answered,
            ),
        ];
        for (failure, ended) in cases {
            let outcome = AttemptOutcome::of(&failure);
            assert_eq!(outcome.circuit_breaker, ended, "{failure:?}");
        }
    }

    /// Every combination of kind, cause, hop, scope and hint.
    fn all() -> Vec<Failure> {
        let kinds = [
            FailureKind::NotProcessed,
            FailureKind::Ambiguous,
            FailureKind::Permanent,
            FailureKind::Throttled,
            FailureKind::Overloaded,
        ];
        let causes = [
            Cause::Error,
            Cause::Status(503),
            Cause::Timeout,
            Cause::Network(Network::Connect),
            Cause::Network(Network::GoAway),
            Cause::Network(Network::BadRequest),
            Cause::Network(Network::Local),
            Cause::Pending,
        ];
        let hints = [
            Hint::NONE,
            Hint::after(SECOND),
            Hint::after(SECOND).for_audience(Audience::TicketMillis),
            Hint::do_not_retry(),
        ];
        let mut all = Vec::new();
        for kind in kinds {
            for cause in causes {
                for hop in [Hop::None, Hop::Here, Hop::Elsewhere] {
                    for scope in [Scope::Destination, Scope::Request] {
                        for hint in hints {
                            let failure = Failure::new(kind).cause(cause).hop(hop);
                            all.push(failure.scope(scope).hint(hint));
                        }
                    }
                }
            }
        }
        all
    }

    #[test]
    fn a_failure_elsewhere_or_of_one_request_affects_no_other_caller() {
        for failure in all() {
            let outcome = AttemptOutcome::of(&failure);
            let affects_others =
                outcome.cooldown.is_some() || outcome.reduces_rate || outcome.pauses_hedges;
            let is_sign = !matches!(
                outcome.circuit_breaker,
                BreakerOutcome::Answered | BreakerOutcome::Unknown
            );
            if failure.hop == Hop::Elsewhere || failure.scope == Scope::Request {
                assert!(!affects_others && !is_sign, "{failure:?}");
            }
        }
    }

    #[test]
    fn breaker_and_time_limit_agree_on_whether_the_destination_has_responded() {
        for failure in all() {
            let outcome = AttemptOutcome::of(&failure);
            match outcome.circuit_breaker {
                BreakerOutcome::Answered
                | BreakerOutcome::Overloaded
                | BreakerOutcome::Deferred => {
                    assert!(outcome.has_responded, "{failure:?}");
                }
                BreakerOutcome::TimedOut => assert!(!outcome.has_responded, "{failure:?}"),
                BreakerOutcome::Failed | BreakerOutcome::Unknown => {}
            }
        }
    }

    #[test]
    fn a_reserved_slot_costs_nothing_and_holds_no_other_caller() {
        for failure in all() {
            let outcome = AttemptOutcome::of(&failure);
            if failure.hint.audience == Audience::TicketMillis {
                assert_eq!(outcome.exemption, Exemption::Always, "{failure:?}");
                assert!(!outcome.is_charged && outcome.cooldown.is_none() && !outcome.reduces_rate);
            }
        }
    }
}
