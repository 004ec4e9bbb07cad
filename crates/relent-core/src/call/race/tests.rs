#![allow(clippy::unwrap_used, reason = "tests may panic")]

use core::time::Duration;

use alloc::vec::Vec;
use proptest::prelude::*;

use super::*;
use crate::call::session::decision::Decision;
use crate::call::stop::StopReason;
use crate::destination::budget::BudgetConfig;
use crate::destination::hedge::HedgeConfig;
use crate::failure::{Cause, Hop, Scope};
use crate::hint::Hint;
use crate::policy::PolicyBuilder;
use crate::policy::backoff::Backoff;
use crate::policy::jitter::Jitter;
use crate::random::FixedRandom;

const MILLI: Duration = Duration::from_millis(1);

fn policy() -> PolicyBuilder {
    Policy::builder(Backoff::constant(Duration::from_secs(1)))
        .jitter(Jitter::None)
        .max_retries(4)
}

fn at(millis: u32) -> Instant {
    Instant::ORIGIN.saturating_add(MILLI * millis)
}

fn hedge_after_50_ms() -> HedgeConfig {
    HedgeConfig::after(50 * MILLI)
}

/// A race with its session, policy and budget.
struct TestRace {
    hedge: Hedge,
    policy: Policy,
    session: Session,
    race: Race,
    budget: Budget,
}

impl TestRace {
    fn new(config: HedgeConfig, policy: PolicyBuilder, repeatable: bool) -> Self {
        let hedge = Hedge::new(&config).unwrap();
        let mut session = Session::new(at(0), repeatable);
        session.on_attempt();
        let still = BudgetConfig {
            per_second: 0.0,
            initial_tokens: 3.0,
            ..BudgetConfig::DEFAULT
        };
        Self {
            race: Race::new(&hedge, at(0)),
            hedge,
            policy: policy.build().unwrap(),
            session,
            budget: Budget::new(&still).unwrap(),
        }
    }

    fn grant(&mut self, now: Instant) -> bool {
        self.session
            .grant_hedge(&self.policy, now, Some(&self.budget))
    }

    fn join(&mut self, now: Instant) -> bool {
        let granted = self.grant(now);
        if granted {
            self.session.on_hedge();
            self.race.on_hedge(now);
        }
        granted
    }

    fn fail(&mut self, now: Instant, failure: Failure) -> RaceOutcome {
        let (session, budget) = (&mut self.session, Some(&self.budget));
        self.race
            .on_failure(&self.hedge, session, &self.policy, now, &failure, budget)
    }

    fn decide(&mut self, now: Instant, failure: &Failure) -> Decision {
        let budget = Some(&self.budget);
        self.session.on_failure(
            &self.policy,
            now,
            failure,
            &mut FixedRandom::at(0.5),
            budget,
        )
    }
}

const CONTINUES: RaceOutcome = RaceOutcome::GoesOn { kept: true };

#[test]
fn a_hedge_is_due_after_the_delay_and_the_next_after_another() {
    let mut table = TestRace::new(hedge_after_50_ms().max_hedges(2), policy(), true);
    assert_eq!(table.race.due(), Some(at(50)));
    assert!(table.join(at(60)));
    assert_eq!(table.race.due(), Some(at(110)));
    assert!(table.join(at(110)));
    assert_eq!((table.race.due(), table.race.running()), (None, 3));
}

#[test]
fn a_request_that_may_not_run_twice_is_never_hedged() {
    let mut table = TestRace::new(hedge_after_50_ms(), policy(), false);
    assert!(!table.grant(at(50)));
    assert_eq!(table.budget.balance(), 3.0);
    let assumed = policy().assume_repeatable(true);
    assert!(TestRace::new(hedge_after_50_ms(), assumed, false).grant(at(50)));
}

#[test]
fn a_hedge_counts_as_one_of_the_allowed_retries() {
    let mut table = TestRace::new(
        hedge_after_50_ms().max_hedges(4),
        policy().max_retries(2),
        true,
    );
    assert!(table.join(at(50)) && table.join(at(100)));
    assert!(!table.join(at(150)));
    // Retries are off.
    assert!(!TestRace::new(hedge_after_50_ms(), policy().max_retries(0), true).grant(at(50)));
}

#[test]
fn no_hedge_starts_after_the_last_start() {
    let limited = policy().deadline(Duration::from_millis(50));
    let mut table = TestRace::new(hedge_after_50_ms(), limited, true);
    assert!(!table.grant(at(50)));
    assert!(table.grant(at(49)));
}

#[test]
fn an_unsent_hedge_is_refunded_to_the_retry_budget() {
    let mut table = TestRace::new(hedge_after_50_ms(), policy(), true);
    assert!(table.grant(at(50)));
    assert_eq!(table.budget.balance(), 2.0);
    table.session.cancel_hedge(Some(&table.budget));
    assert_eq!(table.budget.balance(), 3.0);
    table.session.cancel_hedge(Some(&table.budget));
    assert_eq!(table.budget.balance(), 3.0, "once");

    assert!(table.grant(at(50)));
    table.session.on_cancel(Some(&table.budget));
    assert_eq!(table.budget.balance(), 3.0);

    assert!(table.join(at(50)));
    table.session.on_cancel(Some(&table.budget));
    assert_eq!(table.budget.balance(), 2.0, "it was sent");
}

#[test]
fn an_exhausted_budget_grants_no_hedge() {
    let mut table = TestRace::new(hedge_after_50_ms().max_hedges(4), policy(), true);
    for _ in 0..3 {
        table
            .budget
            .withdraw(at(0), FailureKind::Ambiguous)
            .unwrap();
    }
    assert!(!table.grant(at(50)));
}

#[test]
fn a_failure_while_others_run_is_replaced_by_a_hedge_immediately() {
    let mut table = TestRace::new(hedge_after_50_ms().max_hedges(2), policy(), true);
    table.join(at(50));
    assert_eq!(table.fail(at(70), Failure::ambiguous()), CONTINUES);
    assert_eq!(table.race.due(), Some(at(70)), "gRFC A6");
}

#[test]
fn a_pushback_ends_the_hedging_of_a_race() {
    for failure in [
        Failure::throttled(),
        Failure::overloaded(),
        Failure::ambiguous().hint(Hint::after(MILLI)),
        Failure::ambiguous().hint(Hint::do_not_retry()),
    ] {
        let mut table = TestRace::new(hedge_after_50_ms().max_hedges(3), policy(), true);
        table.join(at(50));
        assert!(table.grant(at(60)), "it waits to be sent");
        assert_eq!(table.fail(at(70), failure), CONTINUES);
        assert_eq!(table.race.due(), None, "{failure:?}");
        assert_eq!(table.budget.balance(), 2.0, "{failure:?}");
    }
}

#[test]
fn a_rejection_disables_hedging_until_the_next_success() {
    let hedge = Hedge::new(&hedge_after_50_ms()).unwrap();
    for refusal in [Failure::throttled(), Failure::overloaded()] {
        let report = |failure: Failure| hedge.on_failure(&AttemptOutcome::of(&failure));
        // Only a rejection by this destination, and of more than one request, counts.
        report(refusal.hop(Hop::Elsewhere));
        report(refusal.scope(Scope::Request));
        assert_eq!(Race::new(&hedge, at(0)).due(), Some(at(50)));
        report(refusal);
        report(Failure::ambiguous());
        assert_eq!(Race::new(&hedge, at(0)).due(), None);
        hedge.on_success(MILLI);
        assert_eq!(Race::new(&hedge, at(0)).due(), Some(at(50)));
    }
}

#[test]
fn a_permanent_failure_ends_the_race_while_others_run() {
    let mut table = TestRace::new(hedge_after_50_ms(), policy(), true);
    table.join(at(50));
    let failure = Failure::permanent().cause(Cause::Status(400));
    let over = RaceOutcome::Over {
        failure,
        latest: true,
    };
    assert_eq!(table.fail(at(70), failure), over);
    assert_eq!(table.race.running(), 1);
}

/// A 412 to a write that another attempt has just made is no outcome of that attempt.
#[test]
fn an_as_if_done_response_waits_for_the_other_attempts_of_the_race() {
    let mut table = TestRace::new(hedge_after_50_ms(), policy(), true);
    table.join(at(50));
    let done = Failure::permanent().as_if_applied(true);
    assert_eq!(table.fail(at(70), done), CONTINUES);
    // The other one is lost: it may have taken effect.
    let RaceOutcome::Over { failure, latest } = table.fail(at(90), Failure::ambiguous()) else {
        panic!("nobody runs");
    };
    assert_eq!((failure, latest), (done, false));
    let stop = table.decide(at(90), &failure).stop().unwrap();
    assert_eq!(stop.reason, StopReason::OutcomeUnknown);
}

/// A 409 to a hedge, while the first attempt still holds the key, is no outcome of that attempt.
#[test]
fn an_in_progress_response_ends_hedging_and_waits_for_the_race() {
    let mut table = TestRace::new(hedge_after_50_ms().max_hedges(3), policy(), true);
    table.join(at(50));
    let in_progress = Failure::permanent().as_if_in_progress(true);
    assert_eq!(table.fail(at(70), in_progress), CONTINUES);
    assert_eq!(table.race.due(), None, "it would be told the same");
    let RaceOutcome::Over { failure, latest } = table.fail(at(90), Failure::ambiguous()) else {
        panic!("nobody runs");
    };
    assert_eq!((failure, latest), (in_progress, false));
    let wait = Duration::from_secs(1);
    assert_eq!(
        table.decide(at(90), &failure),
        Decision::Retry { after: wait }
    );
}

#[test]
fn the_clearest_rejection_decides_with_the_rest_of_its_delay() {
    let mut table = TestRace::new(hedge_after_50_ms(), policy(), true);
    table.join(at(50));
    let come_later = Failure::throttled().hint(Hint::after(Duration::from_secs(8)));
    assert_eq!(table.fail(at(100), come_later), CONTINUES);
    let RaceOutcome::Over { failure, latest } = table.fail(at(3100), Failure::ambiguous()) else {
        panic!("nobody runs");
    };
    assert!(!latest);
    assert_eq!(failure.kind, FailureKind::Throttled);
    assert_eq!(failure.hint.delay(), Some(Duration::from_secs(5)));
    // Among equals, the latest decides.
    let mut table = TestRace::new(hedge_after_50_ms(), policy(), true);
    table.join(at(50));
    table.fail(at(100), Failure::ambiguous());
    let last = Failure::ambiguous().cause(Cause::Status(502));
    let over = RaceOutcome::Over {
        failure: last,
        latest: true,
    };
    assert_eq!(table.fail(at(110), last), over);
}

/// With a circuit breaker no cooldown holds the caller for it, so the race has to keep it.
#[test]
fn no_rejection_shortens_the_retry_after_of_another() {
    let down = Failure::not_processed().hint(Hint::after(Duration::from_secs(10)));
    for limited in [
        Failure::throttled(),
        Failure::throttled().hint(Hint::after(Duration::from_secs(1))),
    ] {
        for (first, second) in [(down, limited), (limited, down)] {
            let mut table = TestRace::new(hedge_after_50_ms(), policy(), true);
            table.join(at(50));
            assert_eq!(table.fail(at(100), first), CONTINUES);
            let RaceOutcome::Over { failure, .. } = table.fail(at(100), second) else {
                panic!("nobody runs");
            };
            assert_eq!(failure.hint.delay(), Some(Duration::from_secs(10)));
        }
    }
}

/// gRFC A6: each failure takes a token, even if other attempts run.
#[test]
fn every_failure_of_a_race_is_charged_once() {
    let mut table = TestRace::new(hedge_after_50_ms().max_hedges(2), policy(), true);
    table.budget = Budget::new(&BudgetConfig {
        ratio: 0.0,
        initial_tokens: 10.0,
        capacity: 10.0,
        min_tokens: 5.0,
        per_second: 0.0,
        charge_failures: true,
        ..BudgetConfig::DEFAULT
    })
    .unwrap();
    table.join(at(50));
    table.join(at(100));
    assert_eq!(table.budget.balance(), 10.0);
    table.fail(at(110), Failure::throttled());
    table.fail(at(120), Failure::ambiguous());
    let RaceOutcome::Over { failure, .. } = table.fail(at(130), Failure::ambiguous()) else {
        panic!("nobody runs");
    };
    table.decide(at(130), &failure);
    assert_eq!(table.budget.balance(), 7.0);
}

/// AWS refunds the cost of the attempt that succeeded: a hedge that lost stays paid for.
#[test]
fn the_refunded_cost_is_that_of_the_winning_attempt() {
    for (winner_is_hedge, balance) in [(true, 3.0), (false, 2.0)] {
        let mut table = TestRace::new(hedge_after_50_ms(), policy(), true);
        table.budget = Budget::new(&BudgetConfig {
            initial_tokens: 3.0,
            per_second: 0.0,
            refund_on_success: true,
            ..BudgetConfig::DEFAULT
        })
        .unwrap();
        let first = table.session.taken();
        assert!(table.grant(at(50)));
        let (number, hedge) = table.session.on_hedge();
        assert_eq!(number, 2);
        table.race.on_hedge(at(50));
        let taken = if winner_is_hedge { hedge } else { first };
        let (session, budget) = (&mut table.session, Some(&table.budget));
        table
            .race
            .on_success(&table.hedge, session, at(60), taken, budget);
        assert_eq!(table.budget.balance(), balance);
    }
}

/// If the latency of the winner were recorded, p95 would drop until 22 % are hedged.
#[test]
fn hedges_that_win_do_not_shorten_the_percentile() {
    extern crate std;
    let hedge = Hedge::new(&HedgeConfig::percentile(0.95)).unwrap();
    // Each response takes 10 ms on average, exponentially distributed.
    let mut state = 1_u64;
    let mut draw = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let uniform = ((state >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        MILLI.mul_f64(-10.0 * std::primitive::f64::ln(uniform))
    };
    let (mut hedged, rounds) = (0_u32, 40_000);
    for _ in 0..rounds {
        let first = draw();
        let took = match hedge.delay() {
            Some(delay) if first > delay => {
                hedged += 1;
                first.min(delay + draw())
            }
            _ => first,
        };
        hedge.on_success(took);
    }
    let share = f64::from(hedged) / f64::from(rounds);
    // A percentile is up to an eighth too long: e^(-3 * 1.125) is 3.4 %.
    assert!((0.033..=0.052).contains(&share), "{share}");
}

#[test]
fn a_percentile_needs_samples_and_has_bounds() {
    let config = HedgeConfig {
        delay: crate::destination::hedge::HedgeDelay::Percentile {
            percentile: 0.9,
            least: 20 * MILLI,
            most: 30 * MILLI,
            samples: 50,
        },
        max_hedges: 1,
    };
    for (latency, expected) in [(MILLI, 20), (MILLI * 1000, 30)] {
        let hedge = Hedge::new(&config).unwrap();
        for _ in 0..49 {
            hedge.on_success(latency);
            assert_eq!(hedge.delay(), None);
        }
        hedge.on_success(latency);
        assert_eq!(hedge.delay(), Some(expected * MILLI));
    }
}

#[test]
fn contradictions_do_not_build() {
    use crate::destination::hedge::HedgeDelay::Percentile;
    let percentile = |percentile, least: u32, samples| HedgeConfig {
        delay: Percentile {
            percentile,
            least: MILLI * least,
            most: MILLI * 10,
            samples,
        },
        max_hedges: 1,
    };
    for (config, key) in [
        (hedge_after_50_ms().max_hedges(0), "max_hedges"),
        (hedge_after_50_ms().max_hedges(5), "max_hedges"),
        (percentile(0.4, 1, 100), "percentile"),
        (percentile(1.0, 1, 100), "percentile"),
        (percentile(f64::NAN, 1, 100), "percentile"),
        (percentile(0.9, 11, 100), "least"),
        (percentile(0.95, 1, 19), "samples"),
        (percentile(0.95, 1, 2_000_000), "samples"),
    ] {
        assert_eq!(Hedge::new(&config).unwrap_err().key(), key, "{config:?}");
    }
    assert!(Hedge::new(&percentile(0.95, 1, 20)).is_ok());
    for share in [0.5, 0.9, 0.95, 0.99, 0.999] {
        assert!(Hedge::new(&HedgeConfig::percentile(share)).is_ok());
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Pass(u32),
    /// The driver notices a due hedge; `true`: and sends it immediately.
    Hedge(bool),
    Send,
    Unsent,
    Fail(u8),
    Succeed(u8),
    Cancel,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..120_u32).prop_map(Step::Pass),
        4 => any::<bool>().prop_map(Step::Hedge),
        2 => Just(Step::Send),
        1 => Just(Step::Unsent),
        4 => (0..7_u8).prop_map(Step::Fail),
        1 => any::<u8>().prop_map(Step::Succeed),
        1 => Just(Step::Cancel),
    ]
}

fn failure(which: u8) -> Failure {
    match which {
        0 | 1 => Failure::ambiguous(),
        2 => Failure::not_processed(),
        3 => Failure::throttled(),
        4 => Failure::overloaded(),
        5 => Failure::permanent(),
        _ => Failure::ambiguous().hint(Hint::after(20 * MILLI)),
    }
}

proptest! {
    /// Any order in which attempts start, fail and succeed, compared with plain counts.
    #[test]
    fn no_order_of_race_events_overdraws_or_loses_tokens(
        steps in proptest::collection::vec(step(), 0..60),
        repeatable in any::<bool>(),
        hedges in 1..=4_u32,
        retries in 0..=4_u32,
        refunds in any::<bool>(),
    ) {
        let limited = policy().max_retries(retries);
        let mut table = TestRace::new(hedge_after_50_ms().max_hedges(hedges), limited, repeatable);
        table.budget = Budget::new(&BudgetConfig {
            initial_tokens: 3.0,
            per_second: 0.0,
            refund_on_success: refunds,
            ..BudgetConfig::DEFAULT
        })
        .unwrap();
        let mut now = at(0);
        // Tokens of the running attempts, and tokens that stay paid.
        let mut running: Vec<Taken> = [table.session.taken()].into();
        let (mut attempts, mut paid, mut pushed_back) = (1_u32, 0_u32, false);
        let (mut waits_to_be_sent, mut retry_waits, mut over, mut back) = (false, false, false, 0);
        for step in steps {
            if over {
                break;
            }
            match step {
                Step::Pass(millis) => now = now.saturating_add(MILLI * millis),
                Step::Hedge(at_once) => {
                    let due = table.race.due().is_some_and(|due| due <= now);
                    if retry_waits || waits_to_be_sent || !due {
                        continue;
                    }
                    prop_assert!(!pushed_back, "hedged after a push-back");
                    let before = table.budget.balance();
                    if table.grant(now) {
                        prop_assert!(repeatable);
                        prop_assert!(before >= 1.0);
                        waits_to_be_sent = true;
                        if at_once {
                            let (_, taken) = table.session.on_hedge();
                            table.race.on_hedge(now);
                            running.push(taken);
                            (attempts, paid, waits_to_be_sent) = (attempts + 1, paid + 1, false);
                        }
                    } else {
                        table.race.close();
                    }
                }
                Step::Send if waits_to_be_sent => {
                    let (number, taken) = table.session.on_hedge();
                    table.race.on_hedge(now);
                    running.push(taken);
                    (attempts, paid, waits_to_be_sent) = (attempts + 1, paid + 1, false);
                    prop_assert_eq!(number, attempts);
                }
                Step::Unsent if waits_to_be_sent => {
                    table.session.cancel_hedge(Some(&table.budget));
                    table.race.close();
                    waits_to_be_sent = false;
                }
                // The delay before a retry is over.
                Step::Send if retry_waits => {
                    table.session.on_attempt();
                    table.race = Race::new(&table.hedge, now);
                    running.push(table.session.taken());
                    (attempts, retry_waits, pushed_back) = (attempts + 1, false, false);
                }
                Step::Send | Step::Unsent => {}
                Step::Fail(which) if !retry_waits => {
                    let failure = failure(which);
                    running.pop();
                    match table.fail(now, failure) {
                        RaceOutcome::GoesOn { .. } => {
                            prop_assert!(!running.is_empty());
                            prop_assert!(failure.kind != FailureKind::Permanent);
                            if is_pushback(&failure) {
                                (pushed_back, waits_to_be_sent) = (true, false);
                            }
                        }
                        RaceOutcome::Over { failure, .. } => {
                            prop_assert!(running.is_empty() || failure.kind == FailureKind::Permanent);
                            running.clear();
                            waits_to_be_sent = false;
                            match table.decide(now, &failure) {
                                Decision::Retry { .. } => {
                                    (retry_waits, paid) = (true, paid + 1);
                                }
                                Decision::Stop(_) => over = true,
                            }
                        }
                    }
                }
                Step::Fail(_) => {}
                Step::Succeed(which) if !retry_waits => {
                    let taken = running[usize::from(which) % running.len()];
                    let (session, budget) = (&mut table.session, Some(&table.budget));
                    table.race.on_success(&table.hedge, session, now, taken, budget);
                    waits_to_be_sent = false;
                    back = u32::from(refunds && taken != Taken::default());
                    over = true;
                }
                Step::Succeed(_) => {}
                Step::Cancel => {
                    table.session.on_cancel(Some(&table.budget));
                    paid -= u32::from(retry_waits);
                    (over, waits_to_be_sent) = (true, false);
                }
            }
            prop_assert!(attempts <= 1 + retries);
            prop_assert!(running.len() as u32 <= 1 + hedges);
            prop_assert_eq!(table.session.attempts(), attempts);
            let owed = paid + u32::from(waits_to_be_sent) - back;
            prop_assert_eq!(table.budget.balance(), 3.0 - f64::from(owed));
        }
    }
}
