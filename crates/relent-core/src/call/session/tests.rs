//! The rules of decision, and bugs of other libraries that concern decisions. Each test is named after
//! its rule or bug.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

use alloc::vec::Vec;

use proptest::prelude::*;

use super::decision::Decision;
use super::*;
use crate::destination::attempt_outcome::AttemptOutcome;
use crate::destination::budget::BudgetConfig;
use crate::destination::circuit_breaker::BreakerOutcome;
use crate::destination::cooldown::Cooldown;
use crate::failure::{Cause, Failure, FailureKind, Hop, Network, Scope};
use crate::hint::{Advice, Audience, Hint, HintMode};
use crate::policy::backoff::Backoff;
use crate::policy::ceiling::Ceiling;
use crate::policy::jitter::Jitter;
use crate::policy::pattern::Pattern;
use crate::policy::{PolicyBuilder, Rule};
use crate::random::{FixedRandom, Random};

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

/// 1 s doubling without jitter, so that every delay is known.
fn doubling() -> PolicyBuilder {
    Policy::builder(Backoff::exponential(SECOND)).jitter(Jitter::None)
}

fn status(kind: FailureKind, status: u16) -> Failure {
    Failure::new(kind).cause(Cause::Status(status))
}

fn throttled_with_hint(after: Duration) -> Failure {
    Failure::throttled().hint(Hint::after(after))
}

/// A session with its policy and its time.
struct Run<'p> {
    policy: &'p Policy,
    session: Session,
    now: Instant,
    draw: FixedRandom,
    budget: Option<&'p Budget>,
}

impl<'p> Run<'p> {
    fn new(policy: &'p Policy) -> Self {
        // Not at zero, to detect code that forgets the start of the session.
        let now = Instant::from_nanos(7_000_000_000_000);
        Self {
            policy,
            session: Session::new(now, true),
            now,
            draw: FixedRandom::at(0.5),
            budget: None,
        }
    }

    fn not_repeatable(mut self) -> Self {
        self.session = Session::new(self.now, false);
        self
    }

    fn draw(mut self, point: f64) -> Self {
        self.draw = FixedRandom::at(point);
        self
    }

    fn budget(mut self, budget: &'p Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// The next attempt takes `duration` and fails; time advances by a granted delay.
    fn fail_after(&mut self, duration: Duration, failure: Failure) -> Decision {
        self.session.on_attempt();
        self.now = self.now.saturating_add(duration);
        let (now, draw, budget) = (self.now, &mut self.draw, self.budget);
        let decision = self
            .session
            .on_failure(self.policy, now, &failure, draw, budget);
        if let Decision::Retry { after } = decision {
            self.now = self.now.saturating_add(after);
        }
        decision
    }

    fn fail(&mut self, failure: Failure) -> Decision {
        self.fail_after(Duration::ZERO, failure)
    }

    /// The delay before the next attempt.
    #[track_caller]
    fn wait(&mut self, failure: Failure) -> Duration {
        match self.fail(failure) {
            Decision::Retry { after } => after,
            Decision::Stop(stop) => panic!("{}", stop.reason),
        }
    }

    #[track_caller]
    fn stop(&mut self, failure: Failure) -> StopReason {
        match self.fail(failure) {
            Decision::Retry { after } => panic!("waits {after:?}"),
            Decision::Stop(stop) => stop.reason,
        }
    }
}

// Eligibility: did the attempt run, and may it run twice?

#[test]
fn an_attempt_that_did_not_run_is_always_repeatable() {
    let policy = doubling().build().unwrap();
    for failure in [Failure::not_processed(), Failure::throttled()] {
        Run::new(&policy).not_repeatable().wait(failure);
    }
}

#[test]
fn an_ambiguous_attempt_is_repeated_only_if_it_may_run_twice() {
    let policy = doubling().build().unwrap();
    let failure = Failure::ambiguous();
    Run::new(&policy).wait(failure);
    let reason = Run::new(&policy).not_repeatable().stop(failure);
    assert_eq!(reason, StopReason::NotRepeatable);
}

#[test]
fn permanent_and_overloaded_failures_are_never_retried() {
    let policy = doubling().build().unwrap();
    assert_eq!(
        Run::new(&policy).stop(Failure::permanent()),
        StopReason::Permanent
    );
    // Not even if the policy lists everything and the server says "do retry".
    let eager = doubling().retry_on([Pattern::Any]).assume_repeatable(true);
    let eager = eager.build().unwrap();
    let failure = Failure::overloaded().hint(Hint::do_retry());
    assert_eq!(Run::new(&eager).stop(failure), StopReason::Overloaded);
}

#[test]
fn do_retry_never_overrides_repeatability() {
    let policy = doubling().build().unwrap();
    for kind in [FailureKind::Permanent, FailureKind::Ambiguous] {
        let failure = Failure::new(kind).hint(Hint::do_retry());
        Run::new(&policy).wait(failure);
        let reason = Run::new(&policy).not_repeatable().stop(failure);
        assert_eq!(reason, StopReason::NotRepeatable, "{kind}");
    }
}

#[test]
fn retry_on_never_overrides_repeatability() {
    let policy = doubling()
        .retry_on([Pattern::Status(404, 404)])
        .build()
        .unwrap();
    let not_found = status(FailureKind::Permanent, 404);
    Run::new(&policy).wait(not_found);
    let reason = Run::new(&policy).not_repeatable().stop(not_found);
    assert_eq!(reason, StopReason::NotRepeatable);
    // A failure that is not listed is not retried, even if that were safe.
    assert_eq!(
        Run::new(&policy).stop(Failure::throttled()),
        StopReason::Permanent
    );
}

#[test]
fn only_assume_repeatable_makes_everything_repeatable() {
    let policy = doubling().assume_repeatable(true).build().unwrap();
    Run::new(&policy)
        .not_repeatable()
        .wait(Failure::ambiguous());
    assert_eq!(
        Run::new(&policy).stop(Failure::permanent()),
        StopReason::Permanent
    );
}

#[test]
fn a_callers_not_repeatable_overrides_assume_repeatable() {
    let policy = doubling().assume_repeatable(true).build().unwrap();
    // A policy with a rule does not use the fast path.
    let ruled = doubling().assume_repeatable(true);
    let ruled = ruled.rule(Rule::on([Pattern::Timeout]));
    for policy in [policy, ruled.build().unwrap()] {
        let failure = Failure::ambiguous();
        let mut said = Run::new(&policy);
        said.session.set_repeatable(Repeatable::No);
        assert_eq!(said.stop(failure), StopReason::NotRepeatable);
        let mut said = Run::new(&policy);
        said.session.set_repeatable(Repeatable::No);
        said.wait(Failure::not_processed());
        Run::new(&policy).not_repeatable().wait(failure);
        let mut hedged = Session::new(Instant::ORIGIN, true);
        hedged.on_attempt();
        assert!(hedged.grant_hedge(&policy, Instant::ORIGIN, None));
        hedged.set_repeatable(Repeatable::No);
        assert!(!hedged.grant_hedge(&policy, Instant::ORIGIN, None));
    }
}

#[test]
fn an_attempt_with_an_earlier_call_may_have_taken_effect() {
    let plain = doubling().build().unwrap();
    let believing = doubling().not_processed([Pattern::Any]).build().unwrap();
    for policy in [&plain, &believing] {
        for hop in [Hop::Here, Hop::Elsewhere] {
            for failure in [
                Failure::not_processed(),
                Failure::network(Network::Connect),
                status(FailureKind::NotProcessed, 421),
                status(FailureKind::NotProcessed, 503).hint(Hint::do_retry()),
                throttled_with_hint(SECOND),
                Failure::ambiguous(),
            ] {
                let failure = failure.hop(hop);
                let reason = Run::new(policy).not_repeatable().stop(failure);
                assert_eq!(reason, StopReason::NotRepeatable, "{failure:?}");
                Run::new(policy).wait(failure);
            }
            for (worse, reason) in [
                (Failure::permanent(), StopReason::Permanent),
                (Failure::overloaded(), StopReason::Overloaded),
                (
                    Failure::throttled().hint(Hint::do_not_retry()),
                    StopReason::DoNotRetry,
                ),
            ] {
                assert_eq!(
                    Run::new(policy).not_repeatable().stop(worse.hop(hop)),
                    reason
                );
                assert_eq!(Run::new(policy).stop(worse.hop(hop)), reason);
            }
        }
    }
}

#[test]
fn an_attempt_with_an_earlier_call_leaves_the_outcome_unknown() {
    let policy = doubling().build().unwrap();
    let changed = status(FailureKind::Permanent, 412).as_if_applied(true);
    let mut run = Run::new(&policy);
    run.wait(Failure::throttled());
    assert_eq!(run.stop(changed), StopReason::Permanent);
    let mut run = Run::new(&policy);
    run.wait(Failure::throttled().hop(Hop::Here));
    assert_eq!(run.stop(changed), StopReason::OutcomeUnknown);
    let reason = Run::new(&policy).stop(changed.hop(Hop::Here));
    assert_eq!(reason, StopReason::OutcomeUnknown);
}

#[test]
fn a_failure_of_another_destination_has_no_effect_on_this_one() {
    let refused = throttled_with_hint(SECOND);
    for (hop, begins) in [
        (Hop::None, true),
        (Hop::Here, true),
        (Hop::Elsewhere, false),
    ] {
        let cooldown = Cooldown::new();
        let began = cooldown.on_failure(Instant::ORIGIN, &refused.hop(hop), SECOND * 300);
        assert_eq!((began, cooldown.has_begun()), (begins, begins));
        let failed = Failure::network(Network::Reset).hop(hop);
        assert_eq!(
            AttemptOutcome::of(&failed).circuit_breaker == BreakerOutcome::Answered,
            !begins
        );
        assert_eq!(AttemptOutcome::of(&refused.hop(hop)).reduces_rate, begins);
    }
}

#[test]
fn stop_on_outranks_every_reason_to_retry() {
    let policy = doubling()
        .retry_on([Pattern::Any])
        .stop_on([Pattern::Status(503, 503)])
        .build()
        .unwrap();
    let failure = status(FailureKind::NotProcessed, 503).hint(Hint::do_retry());
    assert_eq!(Run::new(&policy).stop(failure), StopReason::Permanent);
}

// Kinds of failures.

#[test]
fn a_policy_may_treat_503_as_not_processed() {
    let unavailable = status(FailureKind::Ambiguous, 503);
    let standard = doubling().build().unwrap();
    let reason = Run::new(&standard).not_repeatable().stop(unavailable);
    assert_eq!(
        reason,
        StopReason::NotRepeatable,
        "an intermediary may answer after forwarding"
    );
    let believing = doubling().not_processed([Pattern::Status(503, 503)]);
    let believing = believing.build().unwrap();
    Run::new(&believing).not_repeatable().wait(unavailable);
}

#[test]
fn an_as_if_done_response_after_an_ambiguous_attempt_is_outcome_unknown() {
    let changed = status(FailureKind::Permanent, 412).as_if_applied(true);
    let plain = Policy::builder(Backoff::None).build().unwrap();
    let ruled = Policy::builder(Backoff::None)
        .rule(Rule::on([Pattern::Timeout]))
        .build()
        .unwrap();
    for policy in [&plain, &ruled] {
        let mut run = Run::new(policy);
        run.wait(Failure::ambiguous());
        // The failure in between does not settle it.
        run.wait(Failure::not_processed());
        assert_eq!(run.stop(changed), StopReason::OutcomeUnknown);
    }
}

#[test]
fn an_as_if_done_response_that_forbids_retries_is_outcome_unknown_too() {
    let policy = Policy::builder(Backoff::None).build().unwrap();
    let changed = status(FailureKind::Permanent, 412).as_if_applied(true);
    for response in [changed, in_progress()] {
        let response = response.hint(Hint::do_not_retry());
        assert_eq!(Run::new(&policy).stop(response), StopReason::DoNotRetry);
        let mut run = Run::new(&policy);
        run.wait(Failure::ambiguous());
        assert_eq!(run.stop(response), StopReason::OutcomeUnknown);
    }
}

#[test]
fn an_as_if_done_response_without_an_ambiguous_attempt_is_permanent() {
    let changed = status(FailureKind::Permanent, 412).as_if_applied(true);
    let policy = Policy::builder(Backoff::None)
        .not_processed([Pattern::Status(503, 503)])
        .build()
        .unwrap();
    assert_eq!(Run::new(&policy).stop(changed), StopReason::Permanent);
    for refused in [
        Failure::not_processed(),
        Failure::throttled(),
        status(FailureKind::Ambiguous, 503),
    ] {
        let mut run = Run::new(&policy);
        run.wait(refused);
        assert_eq!(run.stop(changed), StopReason::Permanent, "{refused:?}");
    }
    let listed = policy.clone().retrying([404.into()]);
    let mut run = Run::new(&listed);
    run.wait(status(FailureKind::Permanent, 404));
    assert_eq!(run.stop(changed), StopReason::Permanent);

    let mut run = Run::new(&policy);
    run.wait(Failure::ambiguous());
    assert_eq!(
        run.stop(changed.as_if_applied(false)),
        StopReason::Permanent
    );
}

/// A 409 to a request with an idempotency key, without a delay.
fn in_progress() -> Failure {
    status(FailureKind::Permanent, 409)
        .as_if_in_progress(true)
        .scope(Scope::Request)
}

#[test]
fn an_in_progress_response_after_an_ambiguous_attempt_is_retried() {
    let plain = doubling().max_retries(9).build().unwrap();
    let ruled = doubling().max_retries(9).rule(Rule::on([Pattern::Timeout]));
    for policy in [plain, ruled.build().unwrap()] {
        for doubtful in [
            Failure::ambiguous().cause(Cause::Timeout),
            Failure::network(Network::Reset),
            status(FailureKind::Ambiguous, 502),
        ] {
            let mut run = Run::new(&policy);
            assert_eq!(run.wait(doubtful), SECOND);
            // As often as it is in progress, and never as a permanent failure.
            assert_eq!(run.wait(in_progress()), 2 * SECOND);
            assert_eq!(run.wait(in_progress()), 4 * SECOND);
            let seen = run.session.in_view_of_earlier(in_progress());
            assert_eq!(seen.kind, FailureKind::Throttled);
        }
    }
}

#[test]
fn an_in_progress_response_without_an_ambiguous_attempt_is_permanent() {
    let policy = doubling().build().unwrap();
    assert_eq!(Run::new(&policy).stop(in_progress()), StopReason::Permanent);
    for refused in [Failure::not_processed(), Failure::throttled()] {
        let mut run = Run::new(&policy);
        run.wait(refused);
        assert_eq!(run.stop(in_progress()), StopReason::Permanent);
    }
}

#[test]
fn an_in_progress_response_that_is_not_retried_is_outcome_unknown() {
    let listed = doubling().retry_on([Pattern::Timeout]);
    let stopped = doubling().stop_on([Pattern::from(409)]);
    for policy in [listed, stopped] {
        let policy = policy.build().unwrap();
        let mut run = Run::new(&policy);
        run.wait(Failure::ambiguous().cause(Cause::Timeout));
        assert_eq!(run.stop(in_progress()), StopReason::OutcomeUnknown);
    }
    let throttled = doubling().retry_on([Pattern::Timeout, Pattern::Throttled]);
    let throttled = throttled.build().unwrap();
    let mut run = Run::new(&throttled);
    run.wait(Failure::ambiguous().cause(Cause::Timeout));
    run.wait(in_progress());
}

#[test]
fn a_failure_of_one_request_charges_no_budget() {
    let charging = BudgetConfig {
        charge_failures: true,
        per_second: 0.0,
        ..BudgetConfig::DEFAULT
    };
    let policy = doubling().build().unwrap();
    for (scope, left) in [(Scope::Request, 10.0), (Scope::Destination, 9.0)] {
        let budget = Budget::new(&charging).unwrap();
        let failure = Failure::throttled().scope(scope);
        Run::new(&policy).budget(&budget).wait(failure);
        assert_eq!(budget.balance(), left);
    }
}

/// What the budget does not charge for the retry, it does not charge for the failure either.
#[test]
fn a_failure_that_is_exempt_charges_no_budget() {
    let charging = BudgetConfig {
        charge_failures: true,
        per_second: 0.0,
        ..BudgetConfig::DEFAULT
    };
    let policy = doubling().build().unwrap();
    let ticket = Hint::after(SECOND).for_audience(Audience::TicketMillis);
    let unsent = Failure::network(Network::GoAway);
    for (failure, left) in [
        (Failure::throttled().hint(Hint::after(SECOND)), 9.0),
        (Failure::throttled().hint(ticket), 10.0),
        (unsent, 10.0),
        // The request before it was processed.
        (unsent.hop(Hop::Here), 9.0),
        (unsent.hop(Hop::Elsewhere), 9.0),
    ] {
        let budget = Budget::new(&charging).unwrap();
        Run::new(&policy).budget(&budget).wait(failure);
        assert_eq!(budget.balance(), left, "{failure:?}");
    }
}

/// 421 on a new connection, 425 without early data, a name that does not exist after a second look-up: once
/// each, independently of the others.
#[test]
fn some_causes_are_retried_only_once() {
    let policy = doubling().max_retries(9).build().unwrap();
    let causes = [
        status(FailureKind::NotProcessed, 421),
        status(FailureKind::NotProcessed, 425),
        Failure::network(Network::NameNotFound),
    ];
    let mut run = Run::new(&policy);
    for failure in causes {
        run.wait(failure);
    }
    for failure in causes {
        let reason = run.stop(failure);
        assert_eq!(reason, StopReason::RetriesExhausted, "{}", failure.cause);
    }
    run.wait(Failure::network(Network::Connect));
    let malformed = Failure::network(Network::Malformed);
    let mut run = Run::new(&policy);
    run.wait(malformed);
    assert_eq!(run.stop(malformed), StopReason::RetriesExhausted);
}

#[test]
fn a_timeout_uses_the_rule_of_408_and_stays_ambiguous() {
    let policy = doubling()
        .not_processed([Pattern::Status(503, 503)])
        .rule(Rule {
            backoff: Some(Backoff::constant(5 * SECOND)),
            max_retries: Some(1),
            ..Rule::on([Pattern::Status(408, 408)])
        })
        .build()
        .unwrap();
    let timeout = Failure::ambiguous().cause(Cause::Timeout);
    let mut run = Run::new(&policy);
    assert_eq!(run.wait(timeout), 5 * SECOND);
    assert_eq!(run.stop(timeout), StopReason::RetriesExhausted);
    let reason = Run::new(&policy).not_repeatable().stop(timeout);
    assert_eq!(reason, StopReason::NotRepeatable);
}

// Order: backoff → cap → jitter → hint → `Retry-After` jitter → limits → budget.

#[test]
fn the_cap_applies_before_the_jitter_unless_configured_otherwise() {
    let additive = doubling()
        .jitter(Jitter::additive(SECOND))
        .max_delay(3 * SECOND);
    for (ceiling, third) in [
        (Ceiling::BeforeJitter, 3500 * MILLI),
        (Ceiling::AfterJitter, 3 * SECOND),
    ] {
        let policy = additive.clone().ceiling(ceiling).build().unwrap();
        let waits: Vec<_> = policy.waits(FixedRandom::at(0.5)).collect();
        assert_eq!(waits, [1500 * MILLI, 2500 * MILLI, third], "{ceiling:?}");
    }
}

#[test]
fn a_hint_may_exceed_the_cap_but_not_max_hint() {
    let policy = doubling().max_delay(2 * SECOND).max_hint(60 * SECOND);
    let policy = policy.build().unwrap();
    assert!(Run::new(&policy).wait(throttled_with_hint(60 * SECOND)) >= 60 * SECOND);
    let reason = Run::new(&policy).stop(throttled_with_hint(60 * SECOND + MILLI));
    assert_eq!(reason, StopReason::RetryLater);
}

// A `Retry-After` is a lower bound.

#[test]
fn retry_after_is_applied_in_five_modes() {
    // The computed backoff is 1 s. The jitter after a shared hint is at most the hint; its middle is
    // half of it.
    let cases = [
        (HintMode::Floor, 500 * MILLI, 1250 * MILLI),
        (HintMode::Floor, 4 * SECOND, 6 * SECOND),
        (HintMode::Replace, 500 * MILLI, 500 * MILLI),
        (HintMode::Replace, 4 * SECOND, 4 * SECOND),
        (HintMode::Clamp, 500 * MILLI, SECOND),
        (HintMode::Clamp, 4 * SECOND, 4 * SECOND),
        (HintMode::Clamp, 60 * SECOND, 6 * SECOND),
        (HintMode::Exact, 500 * MILLI, 500 * MILLI),
        (HintMode::Exact, 4 * SECOND, 4 * SECOND),
        (HintMode::Ignore, 4 * SECOND, SECOND),
    ];
    for (mode, hint, expected) in cases {
        let policy = doubling().hint(mode).build().unwrap();
        assert_eq!(
            Run::new(&policy).wait(throttled_with_hint(hint)),
            expected,
            "{mode:?} {hint:?}"
        );
    }
}

#[test]
fn retry_after_jitter_depends_on_the_audience() {
    let policy = doubling().build().unwrap();
    for (audience, most) in [
        (Audience::Shared, 10 * SECOND),
        (Audience::TicketSeconds, SECOND),
        (Audience::TicketMillis, 100 * MILLI),
    ] {
        let hint = Hint::after(10 * SECOND).for_audience(audience);
        let failure = Failure::throttled().hint(hint);
        assert_eq!(Run::new(&policy).draw(0.0).wait(failure), 10 * SECOND);
        assert_eq!(
            Run::new(&policy).draw(1.0).wait(failure),
            10 * SECOND + most
        );
    }
}

#[test]
fn retry_after_jitter_is_limited_to_the_time_left() {
    let policy = doubling().max_elapsed(12 * SECOND).build().unwrap();
    assert_eq!(
        Run::new(&policy)
            .draw(1.0)
            .wait(throttled_with_hint(10 * SECOND)),
        12 * SECOND
    );
    // An attempt at the deadline itself would have no time.
    let policy = doubling().deadline(12 * SECOND).build().unwrap();
    let wait = Run::new(&policy)
        .draw(1.0)
        .wait(throttled_with_hint(10 * SECOND));
    assert_eq!(wait, 12 * SECOND - Duration::from_nanos(1));
}

#[test]
fn the_policy_sets_the_share_of_retry_after_jitter() {
    for (share, most) in [(1.0, 4000), (0.25, 2500), (0.001, 2002)] {
        let policy = Policy::builder(Backoff::None).retry_after_jitter(share);
        let policy = policy.build().unwrap();
        assert_eq!(
            Run::new(&policy)
                .draw(0.0)
                .wait(throttled_with_hint(2 * SECOND)),
            2 * SECOND
        );
        assert_eq!(
            Run::new(&policy)
                .draw(1.0)
                .wait(throttled_with_hint(2 * SECOND)),
            most * MILLI
        );
        let ticket = Hint::after(2 * SECOND).for_audience(Audience::TicketSeconds);
        let ticket = Failure::throttled().hint(ticket);
        assert_eq!(Run::new(&policy).draw(1.0).wait(ticket), 3 * SECOND);
    }
}

#[test]
fn patient_adds_at_most_a_quarter_of_the_hint_as_jitter() {
    let after = |point| {
        Run::new(Policy::PATIENT)
            .draw(point)
            .wait(throttled_with_hint(2 * SECOND))
    };
    assert_eq!((after(0.0), after(1.0)), (2 * SECOND, 2500 * MILLI));
}

#[test]
fn retry_later_carries_the_instant_of_retry_after() {
    for policy in [
        doubling().max_hint(SECOND),
        doubling().max_elapsed(10 * SECOND),
        doubling().deadline(10 * SECOND),
    ] {
        let policy = policy.build().unwrap();
        let mut run = Run::new(&policy);
        let stop = run
            .fail_after(2 * SECOND, throttled_with_hint(3600 * SECOND))
            .stop()
            .unwrap();
        assert_eq!(stop.reason, StopReason::RetryLater);
        assert_eq!(stop.retry_at, Some(run.now.saturating_add(3600 * SECOND)));
    }
}

/// gRFC A6: after a pushback the sequence restarts, also that of a rule.
#[test]
fn an_exact_hint_restarts_the_backoff() {
    let plain = doubling().hint(HintMode::Exact).max_retries(9);
    let by_rule = plain.clone().rule(Rule {
        backoff: Some(Backoff::exponential(SECOND)),
        ..Rule::on([Pattern::Any])
    });
    for policy in [plain.build().unwrap(), by_rule.build().unwrap()] {
        let mut run = Run::new(&policy);
        run.wait(Failure::ambiguous());
        assert_eq!(run.wait(Failure::ambiguous()), 2 * SECOND);
        assert_eq!(run.wait(throttled_with_hint(3 * MILLI)), 3 * MILLI);
        assert_eq!(run.wait(Failure::ambiguous()), SECOND);
    }
}

// Precedence.

#[test]
fn do_not_retry_outranks_everything() {
    let policy = doubling().retry_on([Pattern::Any]).assume_repeatable(true);
    let policy = policy.build().unwrap();
    let hint = Hint::after(SECOND).with_advice(Advice::DoNotRetry);
    for kind in [
        FailureKind::NotProcessed,
        FailureKind::Throttled,
        FailureKind::Ambiguous,
        FailureKind::Overloaded,
    ] {
        let failure = Failure::new(kind).hint(hint);
        assert_eq!(Run::new(&policy).stop(failure), StopReason::DoNotRetry);
    }
}

// Time limits include the next delay.

#[test]
fn time_limits_include_the_next_delay() {
    let waits = |policy: PolicyBuilder| {
        let policy = policy.unlimited_retries().build().unwrap();
        let count = policy.waits(FixedRandom::at(0.5)).count();
        let mut run = Run::new(&policy);
        for _ in 0..count {
            run.wait(Failure::ambiguous());
        }
        (count, run.stop(Failure::ambiguous()))
    };
    // 1 + 2 + 4 = 7 s: the third retry starts at 7 s, the fourth would at 15 s.
    assert_eq!(
        waits(doubling().max_elapsed(7 * SECOND)),
        (3, StopReason::MaxElapsed)
    );
    assert_eq!(
        waits(doubling().max_elapsed(7 * SECOND - MILLI)),
        (2, StopReason::MaxElapsed)
    );
    // At the deadline itself an attempt has no time.
    assert_eq!(
        waits(doubling().deadline(7 * SECOND)),
        (2, StopReason::Deadline)
    );
    assert_eq!(
        waits(doubling().deadline(7 * SECOND + MILLI)),
        (3, StopReason::Deadline)
    );
    let room = doubling().min_attempt_time(SECOND);
    assert_eq!(
        waits(room.clone().max_elapsed(8 * SECOND)),
        (3, StopReason::MaxElapsed)
    );
    assert_eq!(
        waits(room.max_elapsed(8 * SECOND - MILLI)),
        (2, StopReason::MaxElapsed)
    );
}

/// 8 s doubling; a delay that crosses a limit is shortened once.
fn with_final_attempt() -> PolicyBuilder {
    Policy::builder(Backoff::exponential(8 * SECOND))
        .jitter(Jitter::None)
        .final_attempt_before_deadline(true)
}

#[test]
fn a_computed_delay_is_shortened_once_for_a_final_attempt() {
    // After 8 s the next delay is 16 s, and 16 s are left. With a deadline, which cuts it off, the
    // final attempt keeps a quarter of them; with max_elapsed it needs none.
    let quick = with_final_attempt()
        .deadline(24 * SECOND)
        .attempt_timeout(SECOND);
    let room = with_final_attempt()
        .deadline(24 * SECOND)
        .min_attempt_time(6 * SECOND);
    let cases = [
        (
            with_final_attempt().deadline(24 * SECOND),
            12 * SECOND,
            StopReason::Deadline,
        ),
        (quick, 15 * SECOND, StopReason::Deadline),
        (
            room,
            10 * SECOND - Duration::from_nanos(1),
            StopReason::Deadline,
        ),
        (
            with_final_attempt().max_elapsed(23 * SECOND),
            15 * SECOND,
            StopReason::MaxElapsed,
        ),
        (
            with_final_attempt()
                .max_elapsed(24 * SECOND)
                .min_attempt_time(SECOND),
            15 * SECOND,
            StopReason::MaxElapsed,
        ),
        (
            with_final_attempt()
                .max_elapsed(18 * SECOND)
                .deadline(60 * SECOND),
            10 * SECOND,
            StopReason::MaxElapsed,
        ),
    ];
    for (policy, latest, reason) in cases {
        let policy = policy.build().unwrap();
        for (point, expected) in [(0.0, latest - latest / 4), (1.0, latest)] {
            let mut run = Run::new(&policy).draw(point);
            run.wait(Failure::ambiguous());
            assert_eq!(run.wait(Failure::ambiguous()), expected, "{policy:?}");
            // No further one, however short its delay: that was the final attempt.
            assert_eq!(run.stop(Failure::ambiguous()), reason, "{policy:?}");
        }
    }
}

#[test]
fn a_delay_that_fits_is_not_shortened() {
    let policy = with_final_attempt().deadline(60 * SECOND).build().unwrap();
    let mut run = Run::new(&policy);
    assert_eq!(run.wait(Failure::ambiguous()), 8 * SECOND);
    assert_eq!(run.wait(Failure::ambiguous()), 16 * SECOND);
}

#[test]
fn a_delay_that_leaves_too_little_attempt_time_is_shortened() {
    let policy = with_final_attempt()
        .deadline(8 * SECOND + MILLI)
        .build()
        .unwrap();
    let wait = Run::new(&policy).draw(1.0).wait(Failure::ambiguous());
    assert_eq!(wait, (8 * SECOND + MILLI) * 3 / 4);
}

#[test]
fn a_retry_after_is_never_shortened() {
    for mode in [HintMode::Floor, HintMode::Replace, HintMode::Exact] {
        let policy = with_final_attempt()
            .deadline(10 * SECOND)
            .hint(mode)
            .build()
            .unwrap();
        let reason = Run::new(&policy).stop(throttled_with_hint(11 * SECOND));
        assert_eq!(reason, StopReason::RetryLater, "{mode:?}");
        // It may leave the attempt less time than a computed backoff would.
        let wait = Run::new(&policy).wait(throttled_with_hint(9 * SECOND));
        assert!(wait >= 9 * SECOND, "{mode:?}");
    }
    // AWS retries at most 5 s after its computed backoff.
    let clamp = with_final_attempt()
        .deadline(10 * SECOND)
        .hint(HintMode::Clamp);
    let clamp = clamp.build().unwrap();
    assert_eq!(
        Run::new(&clamp).stop(throttled_with_hint(11 * SECOND)),
        StopReason::Deadline
    );
    // The computed backoff is longer than the `Retry-After`: it is shortened, but not below that.
    let policy = with_final_attempt().deadline(8 * SECOND).build().unwrap();
    for (point, expected) in [(0.0, 5 * SECOND), (1.0, 6 * SECOND)] {
        assert_eq!(
            Run::new(&policy)
                .draw(point)
                .wait(throttled_with_hint(5 * SECOND)),
            expected
        );
    }
    assert_eq!(
        Run::new(&policy).stop(throttled_with_hint(7 * SECOND)),
        StopReason::Deadline
    );
}

#[test]
fn after_the_final_attempt_a_fitting_retry_after_still_applies() {
    let policy = with_final_attempt()
        .deadline(8 * SECOND)
        .hint(HintMode::Replace);
    let policy = policy.build().unwrap();
    let mut run = Run::new(&policy).draw(0.0);
    // Of 8 s the final attempt keeps 2 s; the last quarter of the other 6 s begins at 4.5 s.
    assert_eq!(run.wait(Failure::ambiguous()), 9 * SECOND / 2);
    assert_eq!(run.wait(throttled_with_hint(SECOND)), SECOND);
    assert_eq!(run.stop(Failure::ambiguous()), StopReason::Deadline);
}

#[test]
fn without_time_for_another_attempt_no_delay_is_shortened() {
    let policy = with_final_attempt()
        .max_elapsed(8 * SECOND)
        .min_attempt_time(SECOND);
    let policy = policy.build().unwrap();
    let mut run = Run::new(&policy);
    let stop = run.fail_after(7 * SECOND + MILLI, Failure::ambiguous());
    assert_eq!(
        stop.stop().map(|stop| stop.reason),
        Some(StopReason::MaxElapsed)
    );
}

#[test]
fn time_limits_include_the_attempts() {
    let policy = doubling().max_elapsed(10 * SECOND).build().unwrap();
    let mut run = Run::new(&policy);
    assert!(
        run.fail_after(9 * SECOND, Failure::ambiguous())
            .stop()
            .is_none()
    );
    let stop = run.fail_after(MILLI, Failure::ambiguous()).stop().unwrap();
    assert_eq!(stop.reason, StopReason::MaxElapsed);
}

#[test]
fn an_attempt_is_cut_off_at_its_timeout_or_the_deadline() {
    let policy = doubling()
        .deadline(100 * SECOND)
        .attempt_timeout(60 * SECOND)
        .rule(Rule {
            attempt_timeout: Some(5 * SECOND),
            ..Rule::on([Pattern::Timeout])
        })
        .build()
        .unwrap();
    let mut run = Run::new(&policy);
    let limit = |run: &Run<'_>| run.session.attempt_limit(&policy, run.now);
    assert_eq!(limit(&run), Some(60 * SECOND));
    run.fail_after(60 * SECOND, Failure::ambiguous());
    assert_eq!(limit(&run), Some(39 * SECOND), "61 s have passed");
    run.fail(Failure::ambiguous().cause(Cause::Timeout));
    assert_eq!(limit(&run), Some(5 * SECOND), "the rule's own, R2.4");
}

// Retry budget.

fn one_token() -> Budget {
    Budget::new(&BudgetConfig {
        initial_tokens: 1.0,
        per_second: 0.0,
        ..BudgetConfig::DEFAULT
    })
    .unwrap()
}

/// failsafe-go checks its budget after the sleep; Envoy counts sleeping requests wrongly.
#[test]
fn failsafe_go_budget_checked_after_the_sleep() {
    let policy = doubling().build().unwrap();
    let budget = one_token();
    Run::new(&policy).budget(&budget).wait(Failure::ambiguous());
    assert_eq!(budget.balance(), 0.0, "taken while the first still waits");
    let mut second = Run::new(&policy).budget(&budget);
    assert_eq!(second.stop(Failure::ambiguous()), StopReason::Budget);
}

/// The refund that AWS's adaptive mode and tower never make.
#[test]
fn refund_on_cancel() {
    let policy = doubling().build().unwrap();
    let budget = one_token();
    let mut run = Run::new(&policy).budget(&budget);
    run.wait(Failure::ambiguous());
    run.session.on_cancel(Some(&budget));
    assert_eq!(budget.balance(), 1.0);
    run.session.on_cancel(Some(&budget));
    assert_eq!(budget.balance(), 1.0, "given back once");

    let mut run = Run::new(&policy).budget(&budget);
    run.wait(Failure::ambiguous());
    run.session.on_attempt();
    run.session.on_cancel(Some(&budget));
    assert_eq!(budget.balance(), 0.0, "the retry went out");
}

#[test]
fn a_decision_to_stop_takes_no_tokens() {
    let budget = one_token();
    for (policy, failure) in [
        (doubling(), Failure::permanent()),
        (doubling().max_retries(0), Failure::ambiguous()),
        (doubling().max_elapsed(MILLI), Failure::ambiguous()),
        (doubling().max_hint(MILLI), throttled_with_hint(SECOND)),
    ] {
        let policy = policy.build().unwrap();
        Run::new(&policy).budget(&budget).stop(failure);
        assert_eq!(budget.balance(), 1.0);
    }
}

#[test]
fn retries_with_reserved_slots_or_unsent_attempts_cost_no_tokens() {
    let policy = doubling().max_retries(9).build().unwrap();
    let budget = one_token();
    let mut run = Run::new(&policy).budget(&budget);
    let ticket = Hint::after(SECOND).for_audience(Audience::TicketSeconds);
    run.wait(Failure::throttled().hint(ticket));
    run.wait(Failure::network(Network::RefusedStream));
    assert_eq!(budget.balance(), 1.0);
    run.wait(Failure::network(Network::GoAway));
    assert_eq!(budget.balance(), 0.0, "unsent is free once");
    assert_eq!(
        run.stop(throttled_with_hint(SECOND)),
        StopReason::Budget,
        "shared hints are not free"
    );
}

/// A contended key takes no retries from other keys.
#[test]
fn a_write_conflict_costs_no_tokens() {
    let policy = doubling().max_retries(9).build().unwrap();
    let budget = one_token();
    let mut run = Run::new(&policy).budget(&budget);
    for _ in 0..9 {
        run.wait(Failure::conflict());
    }
    assert_eq!(budget.balance(), 1.0);
    assert_eq!(run.stop(Failure::conflict()), StopReason::RetriesExhausted);
}

// Unused inputs are not read.

#[test]
fn without_time_limits_the_time_does_not_matter() {
    let policy = doubling().max_retries(4).build().unwrap();
    assert!(!policy.needs_time());
    let waits_from = |started, now: Instant| {
        let mut session = Session::new(started, true);
        let mut step = || {
            session.on_attempt();
            session.on_failure(
                &policy,
                now,
                &Failure::ambiguous(),
                &mut FixedRandom::at(0.5),
                None,
            )
        };
        [(); 5].map(|()| step())
    };
    let reference = waits_from(Instant::ORIGIN, Instant::ORIGIN);
    assert_eq!(waits_from(Instant::MAX, Instant::ORIGIN), reference);
    assert_eq!(
        waits_from(Instant::ORIGIN, Instant::from_nanos(1 << 62)),
        reference
    );
}

#[test]
fn no_randomness_is_drawn_without_need() {
    struct Never;
    impl Random for Never {
        fn next_u64(&mut self) -> u64 {
            panic!("drawn")
        }
    }
    let policy = doubling().build().unwrap();
    let mut session = Session::new(Instant::ORIGIN, true);
    session.on_attempt();
    session.on_failure(
        &policy,
        Instant::ORIGIN,
        &Failure::ambiguous(),
        &mut Never,
        None,
    );
    session.on_attempt();
    session.on_success(None);
}

// Saturation.

#[test]
fn extreme_inputs_saturate() {
    let policy = Policy::builder(Backoff::Exponential {
        initial: Duration::MAX,
        factor: 1e300,
    })
    .jitter(Jitter::additive(Duration::MAX))
    .unlimited_delay()
    .unlimited_retries()
    .max_hint(Duration::MAX);
    let policy = policy.build().unwrap();
    let mut run = Run::new(&policy).draw(1.0);
    for _ in 0..100 {
        assert_eq!(
            run.wait(Failure::ambiguous()),
            Duration::from_nanos(u64::MAX)
        );
    }
    assert_eq!(run.now, Instant::MAX);
    // An instant beyond the end of time is later than any limit.
    let stop = run.fail(throttled_with_hint(Duration::MAX)).stop().unwrap();
    assert_eq!(
        (stop.reason, stop.retry_at),
        (StopReason::RetryLater, Some(Instant::MAX))
    );
    let limited = policy
        .into_builder()
        .deadline(Duration::MAX)
        .build()
        .unwrap();
    assert_eq!(
        Run::new(&limited).stop(Failure::ambiguous()),
        StopReason::Deadline
    );
}

// Refunds: see also `refund_on_cancel`.

proptest! {
    /// Whatever sessions do, and wherever they are dropped: each token is in the budget or was spent on
    /// an attempt that started.
    #[test]
    fn no_cancellation_loses_or_creates_tokens(
        sessions in proptest::collection::vec((0..5u32, any::<bool>()), 1..20),
    ) {
        let policy = doubling().max_retries(9).build().unwrap();
        let budget = Budget::new(&BudgetConfig {
            initial_tokens: 30.0,
            per_second: 0.0,
            ..BudgetConfig::DEFAULT
        }).unwrap();
        let mut went_out = 0_u32;
        for (failures, cancelled_in_wait) in sessions {
            let mut run = Run::new(&policy).budget(&budget);
            let mut waiting = false;
            for _ in 0..failures {
                went_out += u32::from(waiting);
                waiting = run.fail(Failure::ambiguous()).stop().is_none();
                if !waiting {
                    break;
                }
            }
            if waiting && !cancelled_in_wait {
                run.session.on_attempt();
                went_out += 1;
            }
            run.session.on_cancel(Some(&budget));
        }
        prop_assert_eq!(budget.balance(), 30.0 - f64::from(went_out));
    }
}

// The operator's switch.

#[test]
fn an_operator_can_turn_retries_off() {
    let policy = doubling()
        .unlimited_retries()
        .retries_off(true)
        .build()
        .unwrap();
    let reason = Run::new(&policy).stop(Failure::not_processed());
    assert_eq!(reason, StopReason::RetriesExhausted);
    let on = policy.into_builder().retries_off(false).build().unwrap();
    Run::new(&on).wait(Failure::not_processed());
}

// Rules per failure, and counts.

#[test]
fn rules_count_retries_independently() {
    let rule = |low, backoff, retries| Rule {
        backoff: Some(backoff),
        max_retries: Some(retries),
        ..Rule::on([Pattern::Status(low, low)])
    };
    let policy = doubling()
        .max_retries(20)
        .rule(rule(500, Backoff::exponential(10 * SECOND), 3))
        .rule(rule(502, Backoff::linear(MILLI, MILLI), 2))
        .build()
        .unwrap();
    let of = |code| status(FailureKind::Ambiguous, code);
    let mut run = Run::new(&policy);
    assert_eq!(run.wait(of(500)), 10 * SECOND);
    assert_eq!(run.wait(of(502)), MILLI);
    assert_eq!(
        run.wait(of(504)),
        SECOND,
        "the policy's own backoff has not moved"
    );
    assert_eq!(run.wait(of(500)), 20 * SECOND);
    assert_eq!(run.wait(of(502)), 2 * MILLI);
    assert_eq!(run.stop(of(502)), StopReason::RetriesExhausted);
    assert_eq!(
        run.wait(of(500)),
        40 * SECOND,
        "the other rule has retries left"
    );
    assert_eq!(run.wait(of(504)), 2 * SECOND);
    assert_eq!(run.stop(of(500)), StopReason::RetriesExhausted);
}

#[test]
fn the_first_rule_that_matches_decides() {
    let rule = |pattern, delay| Rule {
        backoff: Some(Backoff::constant(delay)),
        ..Rule::on([pattern])
    };
    let policy = doubling()
        .rule(rule(Pattern::Status(503, 503), 3 * SECOND))
        .rule(rule(Pattern::Status(500, 599), 5 * SECOND))
        .build()
        .unwrap();
    assert_eq!(
        Run::new(&policy).wait(status(FailureKind::Ambiguous, 503)),
        3 * SECOND
    );
    assert_eq!(
        Run::new(&policy).wait(status(FailureKind::Ambiguous, 500)),
        5 * SECOND
    );
}

/// AWS: a different first delay, the same exponent.
#[test]
fn throttled_initial_shares_the_exponent() {
    let policy = doubling().throttled_initial(10 * SECOND).build().unwrap();
    let mut run = Run::new(&policy);
    assert_eq!(run.wait(Failure::ambiguous()), SECOND);
    assert_eq!(run.wait(Failure::throttled()), 20 * SECOND);
    assert_eq!(run.wait(Failure::ambiguous()), 4 * SECOND);
}

#[test]
fn a_reset_restarts_the_backoffs_and_moves_no_limit() {
    let policy = doubling()
        .max_retries(5)
        .max_elapsed(60 * SECOND)
        .rule(Rule {
            backoff: Some(Backoff::exponential(SECOND)),
            max_retries: Some(3),
            ..Rule::on([Pattern::Timeout])
        })
        .build()
        .unwrap();
    let timeout = Failure::ambiguous().cause(Cause::Timeout);
    let mut run = Run::new(&policy);
    run.wait(timeout);
    assert_eq!(run.wait(timeout), 2 * SECOND);
    run.session.reset(run.now);
    assert_eq!(run.wait(timeout), SECOND);
    assert_eq!(
        run.stop(timeout),
        StopReason::RetriesExhausted,
        "the rule's three are used up"
    );
    run.session.reset(run.now);
    run.wait(Failure::ambiguous());
    run.session.reset(run.now);
    assert_eq!(run.stop(Failure::ambiguous()), StopReason::RetriesExhausted);

    let mut run = Run::new(&policy);
    run.fail_after(58 * SECOND, Failure::ambiguous());
    run.session.reset(run.now);
    let stop = run.fail_after(SECOND, Failure::ambiguous()).stop().unwrap();
    assert_eq!(stop.reason, StopReason::MaxElapsed);
}

#[test]
fn delays_from_the_driver_keep_cap_jitter_hints_and_limits() {
    let policy = doubling().max_delay(2 * SECOND).build().unwrap();
    let decide = |own, failure| {
        let mut session = Session::new(Instant::ORIGIN, true);
        session.on_attempt();
        let now = Instant::ORIGIN;
        session.on_failure_with(&policy, now, &failure, own, &mut FixedRandom::at(0.0), None)
    };
    let retry = |after| Decision::Retry { after };
    assert_eq!(decide(Some(MILLI), Failure::ambiguous()), retry(MILLI));
    assert_eq!(
        decide(Some(9 * SECOND), Failure::ambiguous()),
        retry(2 * SECOND)
    );
    assert_eq!(
        decide(Some(MILLI), throttled_with_hint(9 * SECOND)),
        retry(9 * SECOND)
    );
    let stop = decide(None, Failure::ambiguous()).stop().unwrap();
    assert_eq!(
        stop.reason,
        StopReason::RetriesExhausted,
        "the iterator has ended"
    );
}

// Bugs of other libraries.

/// backoff 0.4: with `max_elapsed_time = 0` and a retry_after it made 8642 attempts in a day.
#[test]
fn backoff_retry_after_bypasses_max_elapsed() {
    let policy = doubling()
        .unlimited_retries()
        .max_elapsed(60 * SECOND)
        .build()
        .unwrap();
    let mut run = Run::new(&policy).draw(0.0);
    let mut attempts = 0;
    while run.fail(throttled_with_hint(10 * SECOND)).stop().is_none() {
        attempts += 1;
        assert!(attempts < 100);
    }
    // Delays of 10, 10, 10, 10 and 16 s (the computed backoff is above the hint by then): 56 s.
    assert_eq!(attempts, 5);
}

/// backon 1.6: the documented Retry-After recipe is used after the last retry too, and made 3601
/// attempts with `max_times = 3`.
#[test]
fn backon_retry_after_recipe_defeats_max_times() {
    let policy = doubling().max_retries(3).build().unwrap();
    let mut run = Run::new(&policy);
    for _ in 0..3 {
        run.wait(throttled_with_hint(SECOND));
    }
    assert_eq!(
        run.stop(throttled_with_hint(SECOND)),
        StopReason::RetriesExhausted
    );
}

/// tokio-retry2 0.9: the server asked for 5 s and got attempts after 10 ms.
#[test]
fn tokio_retry2_retry_after_is_never_honoured() {
    let policy = Policy::builder(Backoff::constant(10 * MILLI))
        .build()
        .unwrap();
    assert!(Run::new(&policy).wait(throttled_with_hint(5 * SECOND)) >= 5 * SECOND);
}

/// reqwest-retry 0.9: a total of 1 s, a next delay of 30 min, granted.
#[test]
fn reqwest_retry_elapsed_ignores_the_next_sleep() {
    let policy = Policy::builder(Backoff::constant(1800 * SECOND))
        .jitter(Jitter::None)
        .max_elapsed(SECOND)
        .build()
        .unwrap();
    assert_eq!(
        Run::new(&policy).stop(Failure::ambiguous()),
        StopReason::MaxElapsed
    );
}

/// failsafe-go, Failsafe and p-retry shorten the last sleep to the time left, and so retry earlier than
/// the server allowed.
#[test]
fn failsafe_truncated_sleep_beats_retry_after() {
    for policy in [
        doubling().max_elapsed(5 * SECOND),
        doubling().deadline(5 * SECOND),
    ] {
        let policy = policy.build().unwrap();
        assert_eq!(
            Run::new(&policy).stop(throttled_with_hint(10 * SECOND)),
            StopReason::RetryLater
        );
        // The computed backoff is not shortened either: 1 + 2 s have passed, 4 s do not fit.
        let mut run = Run::new(&policy);
        assert_eq!(run.wait(Failure::ambiguous()), SECOND);
        assert_eq!(run.wait(Failure::ambiguous()), 2 * SECOND);
        run.stop(Failure::ambiguous());
    }
}

/// failsafe-go applies its ± jitter to the server's delay.
#[test]
fn failsafe_go_symmetric_jitter_on_retry_after_comes_back_early() {
    for jitter in [Jitter::Proportional(1.0), Jitter::Full, Jitter::Equal] {
        let policy = doubling().jitter(jitter).build().unwrap();
        for draw in [0.0, 0.1, 0.5, 1.0] {
            let wait = Run::new(&policy)
                .draw(draw)
                .wait(throttled_with_hint(10 * SECOND));
            assert!(wait >= 10 * SECOND, "{jitter:?} at {draw}: {wait:?}");
        }
    }
}

/// SplitMix64: a seeded stream.
struct Stream(u64);

impl Random for Stream {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// stamina, tenacity, urllib3, p-retry and httpx-retries apply the cap after the jitter. Once the
/// backoff has passed it, 88 to 100 % of 20,000 clients wait for exactly the same time.
#[test]
fn jitter_erased_at_the_cap() {
    let most_on_one_value = |ceiling, jitter| {
        let policy = Policy::builder(Backoff::exponential(SECOND))
            .jitter(jitter)
            .max_delay(10 * SECOND)
            .ceiling(ceiling)
            .max_retries(8)
            .build()
            .unwrap();
        let mut eighth: Vec<_> = (0..20_000)
            .filter_map(|client| policy.waits(Stream(client)).nth(7))
            .collect();
        assert_eq!(eighth.len(), 20_000);
        eighth.sort();
        eighth
            .chunk_by(|one, other| one == other)
            .map(<[_]>::len)
            .max()
            .unwrap()
    };
    let jitters = [
        Jitter::Full,
        Jitter::Equal,
        Jitter::Proportional(0.5),
        Jitter::additive(SECOND),
    ];
    for jitter in jitters {
        let most = most_on_one_value(Ceiling::BeforeJitter, jitter);
        assert!(most <= 2, "{jitter:?}: {most}");
    }
    // The effect of the bug, and the presets that reproduce it.
    assert_eq!(
        most_on_one_value(Ceiling::AfterJitter, Jitter::additive(SECOND)),
        20_000
    );
}

/// Kubernetes' wait.Backoff sets its steps to zero when it reaches the cap.
#[test]
fn k8s_cap_ends_retries() {
    let policy = doubling()
        .max_delay(2 * SECOND)
        .max_retries(50)
        .build()
        .unwrap();
    let waits: Vec<_> = policy.waits(FixedRandom::at(0.5)).collect();
    assert_eq!(waits.len(), 50);
    assert!(waits[1..].iter().all(|wait| *wait == 2 * SECOND));
}

/// cenkalti v5 and others, where 0 or a missing limit means one attempt.
#[test]
fn unlimited_is_one_attempt() {
    let policy = doubling().unlimited_retries().build().unwrap();
    assert_eq!(
        policy.waits(FixedRandom::at(0.5)).take(10_000).count(),
        10_000
    );
    let none = doubling().max_retries(0).build().unwrap();
    assert_eq!(
        none.waits(FixedRandom::at(0.5)).count(),
        0,
        "and zero means zero"
    );
}

/// avast/retry-go: the finite and the infinite path are two loops with different semantics.
#[test]
fn retry_go_finite_and_infinite_loops_diverge() {
    let finite = doubling().max_retries(20).build().unwrap();
    let infinite = doubling().unlimited_retries().build().unwrap();
    assert!(
        finite
            .waits(FixedRandom::at(0.3))
            .eq(infinite.waits(FixedRandom::at(0.3)).take(20))
    );
    for policy in [&finite, &infinite] {
        assert_eq!(
            Run::new(policy).stop(Failure::permanent()),
            StopReason::Permanent
        );
    }
}

/// Envoy discards a Retry-After above its maximum and falls back to 25 ms; Anthropic's SDK does the
/// same.
#[test]
fn envoy_too_long_retry_after_falls_to_25_ms() {
    let policy = Policy::builder(Backoff::exponential(25 * MILLI))
        .build()
        .unwrap();
    let reason = Run::new(&policy).stop(throttled_with_hint(301 * SECOND));
    assert_eq!(reason, StopReason::RetryLater);
}

/// urllib3, curl and ky shorten a Retry-After to their maximum, and so retry early.
#[test]
fn urllib3_retry_after_is_cut_at_the_cap() {
    let policy = doubling().max_delay(2 * SECOND).build().unwrap();
    assert!(Run::new(&policy).wait(throttled_with_hint(200 * SECOND)) >= 200 * SECOND);
}

/// tenacity #93: one retrying object shared by concurrent calls mixes their state.
#[test]
fn tenacity_shared_state_across_concurrent_calls() {
    let policy = doubling().max_retries(2).build().unwrap();
    let mut runs = [(); 3].map(|()| Run::new(&policy));
    for wait in [SECOND, 2 * SECOND] {
        for run in &mut runs {
            assert_eq!(run.wait(Failure::ambiguous()), wait);
        }
    }
    for run in &mut runs {
        assert_eq!(run.stop(Failure::ambiguous()), StopReason::RetriesExhausted);
    }
}

/// The random walk continues from its own last step, not from a `Retry-After`.
#[test]
fn a_hint_does_not_stretch_the_random_walk() {
    let policy = Policy::builder(Backoff::decorrelated(Duration::from_millis(10)))
        .build()
        .unwrap();
    let mut session = Session::new(Instant::ORIGIN, true);
    let mut random = FixedRandom::at(1.0);
    session.on_attempt();
    let busy = Failure::throttled().hint(Hint::after(Duration::from_secs(20)));
    session.on_failure(&policy, Instant::ORIGIN, &busy, &mut random, None);
    session.on_attempt();
    let plain = Failure::ambiguous();
    let decision = session.on_failure(&policy, Instant::ORIGIN, &plain, &mut random, None);
    let after = Duration::from_millis(90);
    assert_eq!(decision, Decision::Retry { after });
}

/// The next attempt makes progress in `duration` and fails all the same; time advances by a granted
/// delay.
fn advance(run: &mut Run<'_>, duration: Duration, failure: Failure) -> Decision {
    run.session.on_attempt();
    run.now = run.now.saturating_add(duration);
    let (now, draw, budget) = (run.now, &mut run.draw, run.budget);
    run.session.on_progress(now, budget);
    let decision = run
        .session
        .on_failure(run.policy, now, &failure, draw, budget);
    if let Decision::Retry { after } = decision {
        run.now = run.now.saturating_add(after);
    }
    decision
}

/// A download of 2 GiB over a connection that is cut every 150 MiB.
#[test]
fn progress_restarts_the_retry_count_and_the_backoff() {
    let policy = doubling().max_retries(2).build().unwrap();
    // A pattern list that matches nothing disables the fast path.
    let long = policy.clone().into_builder();
    let long = long.stop_on([Pattern::Signal]).build().unwrap();
    for policy in [&policy, &long] {
        let mut run = Run::new(policy);
        for _ in 0..20 {
            let decision = advance(&mut run, SECOND, Failure::ambiguous());
            assert_eq!(decision, Decision::Retry { after: SECOND });
            assert_eq!(run.wait(Failure::ambiguous()), 2 * SECOND);
        }
        assert_eq!(run.session.attempts(), 40);
        assert_eq!(run.stop(Failure::ambiguous()), StopReason::RetriesExhausted);
    }
}

#[test]
fn progress_restarts_counts_of_rules_and_of_causes_retried_once() {
    let rule = Rule {
        max_retries: Some(1),
        ..Rule::on([Pattern::Status(500, 500)])
    };
    let policy = doubling().rule(rule).build().unwrap();
    for failure in [
        status(FailureKind::Ambiguous, 500),
        status(FailureKind::NotProcessed, 425),
    ] {
        let mut run = Run::new(&policy);
        run.wait(failure);
        let decision = advance(&mut run, SECOND, failure);
        assert!(matches!(decision, Decision::Retry { .. }));
        assert_eq!(run.stop(failure), StopReason::RetriesExhausted);
    }
}

#[test]
fn progress_moves_no_time_limit() {
    for (limited, reason) in [
        (doubling().deadline(60 * SECOND), StopReason::Deadline),
        (doubling().max_elapsed(60 * SECOND), StopReason::MaxElapsed),
    ] {
        let policy = limited.max_retries(1).build().unwrap();
        let mut run = Run::new(&policy);
        let mut retries = 0;
        let stop = loop {
            match advance(&mut run, 8 * SECOND, Failure::ambiguous()) {
                Decision::Retry { .. } => retries += 1,
                Decision::Stop(stop) => break stop,
            }
        };
        assert_eq!((retries, stop.reason), (6, reason));
    }
}

/// A transfer goes on with most of its time left, though it began again just before the limit.
#[test]
fn a_final_attempt_that_made_progress_is_not_the_last() {
    let policy = with_final_attempt().max_retries(9).deadline(120 * SECOND);
    let policy = policy.build().unwrap();
    let mut run = Run::new(&policy);
    let waits = [8, 16, 32, 42].map(|seconds| seconds * SECOND);
    assert_eq!(waits.map(|_| run.wait(Failure::ambiguous())), waits);
    let decision = advance(&mut run, SECOND, Failure::ambiguous());
    assert_eq!(decision, Decision::Retry { after: 8 * SECOND });
}

/// A retry that makes no further progress costs as much as any other.
#[test]
fn a_retry_that_made_progress_is_refunded() {
    let config = BudgetConfig {
        initial_tokens: 2.0,
        ratio: 0.0,
        per_second: 0.0,
        ..BudgetConfig::DEFAULT
    };
    let budget = Budget::new(&config).unwrap();
    let policy = doubling().max_retries(9).build().unwrap();
    let mut run = Run::new(&policy).budget(&budget);
    for _ in 0..20 {
        let decision = advance(&mut run, SECOND, Failure::ambiguous());
        assert!(matches!(decision, Decision::Retry { .. }));
        assert_eq!(budget.balance(), 1.0);
    }
    run.wait(Failure::ambiguous());
    assert_eq!(run.stop(Failure::ambiguous()), StopReason::Budget);
}

#[test]
fn progress_keeps_a_granted_hedge() {
    let policy = doubling().build().unwrap();
    let mut session = Session::new(Instant::ORIGIN, true);
    session.on_attempt();
    assert!(session.grant_hedge(&policy, Instant::ORIGIN, None));
    session.on_progress(Instant::ORIGIN, None);
    assert!(session.holds());
    session.cancel_hedge(None);
    assert!(!session.holds());
}

#[test]
fn a_session_fits_into_a_cache_line() {
    assert_eq!(size_of::<Session>(), 64);
}

/// The number of attempts saturates; retries are still counted.
#[test]
fn a_session_counts_retries_after_its_attempt_number_saturates() {
    let policy = doubling().max_retries(2).build().unwrap();
    let mut session = Session::new(Instant::ORIGIN, true);
    session.attempts = u32::MAX - 1;
    assert_eq!(session.on_attempt(), u32::MAX);
    session.on_progress(Instant::ORIGIN, None);
    let mut retries = 0;
    while let Decision::Retry { .. } = session.on_failure(
        &policy,
        Instant::ORIGIN,
        &Failure::ambiguous(),
        &mut FixedRandom::at(0.5),
        None,
    ) {
        assert_eq!(session.on_attempt(), u32::MAX);
        retries += 1;
        assert!(retries < 10, "it never ends");
    }
    assert_eq!(retries, 2);

    let most = doubling().max_retries(u32::MAX).build().unwrap();
    let mut session = Session::new(Instant::ORIGIN, true);
    session.attempts = u32::MAX;
    session.on_attempt();
    let failure = Failure::ambiguous();
    let mut random = FixedRandom::at(0.5);
    let decision = session.on_failure(&most, Instant::ORIGIN, &failure, &mut random, None);
    let reason = decision.stop().map(|stop| stop.reason);
    assert_eq!(reason, Some(StopReason::RetriesExhausted));
}
