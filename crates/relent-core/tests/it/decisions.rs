//! Properties that hold for every policy and every sequence of failures.

use std::time::Duration;

use proptest::prelude::*;
use relent_core::destination::Budget;
use relent_core::{
    Advice, Audience, BudgetConfig, Cause, Ceiling, Decision, Failure, FailureKind, Hint, HintMode,
    Hop, Instant, Jitter, Network, Policy, Random, Repeatable, Scope, Session, StopReason,
};

use crate::any_policy::policy;

/// A stream that repeats the drawn bits, so that the ends of ranges are frequent.
struct Bits(Vec<u64>, usize);

impl Random for Bits {
    fn next_u64(&mut self) -> u64 {
        self.1 += 1;
        self.0[self.1 % self.0.len()]
    }
}

fn bits() -> impl Strategy<Value = Vec<u64>> {
    let bit = prop_oneof![Just(0), Just(u64::MAX), Just(1 << 63), any::<u64>()];
    prop::collection::vec(bit, 1..5)
}

/// Ordinary lengths as often as extreme ones.
fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        (0..10_000u64).prop_map(Duration::from_millis),
        (0..1000u64).prop_map(Duration::from_secs),
        any::<u64>().prop_map(Duration::from_nanos),
        Just(Duration::MAX),
    ]
}

fn failure() -> impl Strategy<Value = Failure> {
    let kind = prop::sample::select(vec![
        FailureKind::NotProcessed,
        FailureKind::Ambiguous,
        FailureKind::Permanent,
        FailureKind::Throttled,
        FailureKind::Overloaded,
    ]);
    let cause = prop_oneof![
        Just(Cause::Error),
        Just(Cause::Timeout),
        Just(Cause::Output),
        (100..600u16).prop_map(Cause::Status),
        prop::sample::select(vec![408, 421, 425, 429, 503]).prop_map(Cause::Status),
        // 16 is reserved for a list that matches none of these.
        (0..16u16).prop_map(Cause::Grpc),
        any::<i32>().prop_map(Cause::Exit),
        any::<i32>().prop_map(Cause::Signal),
        prop::sample::select(vec![
            Network::NameNotFound,
            Network::Malformed,
            Network::Connect,
            Network::Certificate,
            Network::RefusedStream,
            Network::Reset,
        ])
        .prop_map(Cause::Network),
    ];
    let audience = prop::sample::select(vec![
        Audience::Shared,
        Audience::TicketSeconds,
        Audience::TicketMillis,
    ]);
    let advice = prop_oneof![
        8 => Just(Advice::None),
        1 => Just(Advice::DoRetry),
        1 => Just(Advice::DoNotRetry),
    ];
    let hint =
        (prop::option::of(duration()), audience, advice).prop_map(|(delay, audience, advice)| {
            delay
                .map_or(Hint::NONE, Hint::after)
                .for_audience(audience)
                .with_advice(advice)
        });
    let earlier = (
        prop_oneof![4 => Just(Hop::None), 1 => Just(Hop::Here), 1 => Just(Hop::Elsewhere)],
        prop_oneof![3 => Just(Scope::Destination), 1 => Just(Scope::Request)],
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
    );
    (kind, cause, hint, earlier).prop_map(
        |(kind, cause, hint, (hop, scope, as_if_applied, as_if_in_progress))| {
            Failure::new(kind)
                .cause(cause)
                .hint(hint)
                .hop(hop)
                .scope(scope)
                .as_if_applied(as_if_applied)
                .as_if_in_progress(as_if_in_progress)
        },
    )
}

fn repeatable() -> impl Strategy<Value = Repeatable> {
    prop::sample::select(vec![Repeatable::No, Repeatable::Unknown, Repeatable::Yes])
}

fn session(start: Instant, repeatable: Repeatable) -> Session {
    let mut session = Session::new(start, false);
    session.set_repeatable(repeatable);
    session
}

/// An event within an attempt, besides its failure.
#[derive(Clone, Copy, Debug)]
enum Event {
    Nothing,
    /// The operation makes progress.
    Progress,
    /// The backoff restarts.
    Reset,
}

/// Attempts: their durations, events and failures.
fn attempts() -> impl Strategy<Value = Vec<(Duration, Event, Failure)>> {
    let event = prop_oneof![
        6 => Just(Event::Nothing),
        1 => Just(Event::Progress),
        1 => Just(Event::Reset),
    ];
    prop::collection::vec((duration(), event, failure()), 1..30)
}

/// The longest delay that jitter can make of the cap; `None` if there is no bound.
fn longest_backoff_delay(policy: &Policy) -> Option<Duration> {
    let ceiling = policy.max_delay()?;
    if policy.ceiling() == Ceiling::AfterJitter {
        return Some(ceiling);
    }
    Some(match policy.jitter() {
        Jitter::None | Jitter::Full | Jitter::Equal => ceiling,
        Jitter::Proportional(_) => ceiling.saturating_mul(2),
        Jitter::Additive { max, .. } => ceiling.saturating_add(max),
    })
}

#[track_caller]
fn check(
    policy: &Policy,
    failure: &Failure,
    (session, retry): (&Session, u32),
    now: Instant,
    after: Duration,
) {
    // A retry was granted: it is within every limit.
    if let Some(most) = policy.max_retries() {
        assert!(retry <= most, "retry {retry} of {most}");
    }
    let at = now
        .saturating_add(after)
        .saturating_add(policy.min_attempt_time());
    let started = session.started();
    if let Some(limit) = policy.max_elapsed() {
        assert!(at <= started.saturating_add(limit), "max_elapsed");
    }
    if let Some(limit) = policy.deadline() {
        assert!(at < started.saturating_add(limit), "deadline");
    }
    // It was permitted.
    assert_ne!(failure.kind, FailureKind::Overloaded);
    assert_ne!(failure.hint.advice, Advice::DoNotRetry);
    // Its delay is as the server and the policy demand.
    match failure.hint.delay() {
        Some(hint) => {
            match policy.hint() {
                HintMode::Floor => assert!(after >= hint, "early: {after:?} < {hint:?}"),
                HintMode::Replace | HintMode::Exact => assert_eq!(after, hint),
                HintMode::Clamp | HintMode::Ignore => return,
            }
            assert!(hint <= policy.max_hint());
        }
        None if policy.rules().is_empty() => {
            if let Some(longest) = longest_backoff_delay(policy) {
                assert!(
                    after <= longest,
                    "{after:?} is above the ceiling's {longest:?}"
                );
            }
        }
        None => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        max_local_rejects: 10_000_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_granted_retry_is_within_every_limit(
        policy in policy(),
        attempts in attempts(),
        bits in bits(),
        start: u64,
        repeatable in repeatable(),
    ) {
        let start = Instant::from_nanos(if start % 2 == 0 { start } else { start >> 20 });
        let budget = policy.new_budget();
        let mut random = Bits(bits, 0);
        let mut session = session(start, repeatable);
        let mut now = start;
        // Retries since the last progress.
        let mut retry = 0;
        for (number, (duration, event, failure)) in (1..).zip(attempts) {
            prop_assert_eq!(session.on_attempt(), number);
            now = now.saturating_add(duration);
            retry += 1;
            match event {
                Event::Nothing => {}
                Event::Progress => {
                    session.on_progress(now, budget.as_ref());
                    retry = 1;
                }
                Event::Reset => session.reset(now),
            }
            if let Some(remaining) = session.remaining(&policy, now) {
                prop_assert!(session.attempt_limit(&policy, now).unwrap() <= remaining);
            }
            match session.on_failure(&policy, now, &failure, &mut random, budget.as_ref()) {
                Decision::Retry { after } => {
                    check(&policy, &failure, (&session, retry), now, after);
                    now = now.saturating_add(after);
                }
                Decision::Stop(stop) => {
                    let at = failure.hint.delay().map(|delay| now.saturating_add(delay));
                    prop_assert_eq!(stop.retry_at, at);
                    prop_assert!(stop.reason != StopReason::RetryLater || at.is_some());
                    break;
                }
            }
        }
        session.on_cancel(budget.as_ref());
        if let (Some(budget), Some(config)) = (&budget, policy.budget()) {
            // Amounts are stored in thousandths.
            prop_assert!((0.0..=config.capacity + 0.001).contains(&budget.balance()));
        }
    }

    #[test]
    fn an_attempt_that_may_have_run_is_repeated_only_if_declared_safe(
        policy in policy(),
        failure in failure(),
        bits in bits(),
        said in prop::sample::select(vec![Repeatable::No, Repeatable::Unknown]),
    ) {
        let mut session = session(Instant::ORIGIN, said);
        session.on_attempt();
        let mut random = Bits(bits, 0);
        let decision = session.on_failure(&policy, Instant::ORIGIN, &failure, &mut random, None);
        let ran = !matches!(failure.kind_of_attempt(), FailureKind::NotProcessed | FailureKind::Throttled);
        let listed = policy.not_processed().iter().any(|pattern| pattern.matches(&failure));
        let vouched = policy.assume_repeatable() && said != Repeatable::No
            || listed && failure.hop == Hop::None;
        if ran && !vouched {
            prop_assert!(decision.stop().is_some());
        }
    }

    /// Several processes, one after another, can decide a delivery that lasts for days.
    #[test]
    fn a_restored_session_continues_like_an_uninterrupted_one(
        policy in policy(), attempts in attempts(), bits in bits(), repeatable in repeatable(),
    ) {
        let mut now = Instant::ORIGIN;
        let mut kept = session(now, repeatable);
        let mut restored = kept;
        let mut random = [Bits(bits.clone(), 0), Bits(bits, 0)];
        for (took, event, failure) in attempts {
            restored = Session::restore(&restored.save()).unwrap();
            now = now.saturating_add(took);
            let [left, right] = &mut random;
            let decide = |session: &mut Session, random: &mut Bits| {
                session.on_attempt();
                match event {
                    Event::Nothing => {}
                    Event::Progress => session.on_progress(now, None),
                    Event::Reset => session.reset(now),
                }
                session.on_failure(&policy, now, &failure, random, None)
            };
            prop_assert_eq!(decide(&mut kept, left), decide(&mut restored, right));
            prop_assert_eq!(kept.save(), restored.save());
        }
    }

    /// After any change in the database: no panic, and a valid count is kept.
    #[test]
    fn restoring_any_bytes_fails_or_gives_a_usable_session(
        policy in policy(),
        mut bytes in prop::collection::vec(any::<u8>(), Session::SAVED),
        looks_saved in any::<bool>(),
        failure in failure(),
        bits in bits(),
    ) {
        prop_assert!(Session::restore(&bytes[1..]).is_err());
        if looks_saved {
            (bytes[0], bytes[37], bytes[38], bytes[39], bytes[40]) = (1, bytes[37] % 4, bytes[38] & 0x2f, bytes[39] % 3, bytes[40] % 2);
        }
        if let Ok(mut session) = Session::restore(&bytes) {
            prop_assert_eq!(&session.save()[..], &bytes[..]);
            session.on_attempt();
            session.on_failure(&policy, Instant::MAX, &failure, &mut Bits(bits, 0), None);
        } else {
            prop_assert!(!looks_saved);
        }
    }

    #[test]
    fn the_delays_of_a_policy_end_with_its_retries(policy in policy(), bits in bits(), failure in failure()) {
        let waits = policy.waits_after(failure, Bits(bits, 0)).take(200).count();
        if let Some(most) = policy.max_retries() {
            prop_assert!(waits as u64 <= u64::from(most));
        }
    }

    #[test]
    fn a_budget_is_never_overdrawn_by_sessions(
        policy in policy(),
        failures in prop::collection::vec(failure(), 1..60),
        reserve in 0.0..20f64,
    ) {
        let config = BudgetConfig { initial_tokens: reserve, per_second: 0.0, ..BudgetConfig::DEFAULT };
        let budget = Budget::new(&config).unwrap();
        let mut granted = 0_u32;
        for failure in failures {
            let failure = failure.hint(Hint::NONE);
            let mut session = Session::new(Instant::ORIGIN, true);
            session.on_attempt();
            let (now, mut random) = (Instant::ORIGIN, Bits(vec![0], 0));
            let decision = session.on_failure(&policy, now, &failure, &mut random, Some(&budget));
            let free = failure.cause == Cause::Network(Network::RefusedStream)
                && failure.hop == Hop::None;
            granted += u32::from(decision.stop().is_none() && !free);
        }
        // Amounts are rounded to thousandths.
        prop_assert!(f64::from(granted) <= reserve + 0.001);
        prop_assert!((budget.balance() - (reserve - f64::from(granted))).abs() < 0.001);
    }
}
