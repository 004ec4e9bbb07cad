//! Hedging, in tokio's paused time: every instant is exact.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use proptest::prelude::*;
use relent::destination::Budget;
use relent::driver::Decision;
use relent::policy::{BudgetConfig, HedgeConfig, PolicyBuilder};
use relent::{
    Backoff, Destination, Failure, Hint, Jitter, Policy, StopReason, Summary, WriteOutcome,
    blocking, retry, retry_mut, retry_on_conflict, retry_with,
};

const MILLI: Duration = Duration::from_millis(1);

fn policy() -> PolicyBuilder {
    Policy::builder(Backoff::constant(MILLI * 1000))
        .jitter(Jitter::None)
        .max_retries(3)
}

fn hedge_after(millis: u32) -> HedgeConfig {
    HedgeConfig::after(MILLI * millis)
}

fn there(tokens: f64) -> Destination {
    let budget = Budget::new(&BudgetConfig {
        ratio: 0.0,
        initial_tokens: tokens,
        per_second: 0.0,
        ..BudgetConfig::DEFAULT
    });
    let policy = Policy::builder(Backoff::None).build().unwrap();
    Destination::new(&policy).with_budget(budget.unwrap())
}

/// The behaviour of an attempt: this result after this many milliseconds.
#[derive(Clone, Copy, Debug)]
enum Behaviour {
    Answer(u32),
    Fail(u32, Failure),
}

/// The attempts of a session: when each started, and how many run now and at most.
#[derive(Default)]
struct Log {
    started: RefCell<Vec<u128>>,
    running: Cell<u32>,
    most: Cell<u32>,
}

struct Runs<'a>(&'a Log);

impl Drop for Runs<'_> {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
    }
}

impl Log {
    async fn attempt(
        &self,
        begin: tokio::time::Instant,
        number: u32,
        script: &[Behaviour],
    ) -> Result<u32, (u32, Failure)> {
        let runs = Runs(self);
        self.running.set(self.running.get() + 1);
        self.most.set(self.most.get().max(self.running.get()));
        self.started.borrow_mut().push(begin.elapsed().as_millis());
        let index = (number as usize - 1).min(script.len() - 1);
        let result = match script[index] {
            Behaviour::Answer(after) => {
                tokio::time::sleep(MILLI * after).await;
                Ok(number)
            }
            Behaviour::Fail(after, failure) => {
                tokio::time::sleep(MILLI * after).await;
                Err((number, failure))
            }
        };
        drop(runs);
        result
    }
}

struct Seen {
    result: Result<u32, Option<u32>>,
    summary: Summary,
    started: Vec<u128>,
    most: u32,
    took: u128,
}

async fn run(
    policy: PolicyBuilder,
    hedge: HedgeConfig,
    there: &Destination,
    script: &[Behaviour],
) -> Seen {
    let log = Log::default();
    let policy = policy.hedge(hedge).build().unwrap();
    let begin = tokio::time::Instant::now();
    let (result, summary) = retry_with(&policy, |attempt| {
        log.attempt(begin, attempt.number, script)
    })
    .classify(|(_, failure): &(u32, Failure)| *failure)
    .destination(there)
    .traced()
    .with_summary()
    .await;
    let took = begin.elapsed().as_millis();
    assert_eq!(log.running.get(), 0, "an attempt went on");
    Seen {
        result: result.map_err(|last| last.map(|(number, _)| number)),
        summary,
        started: log.started.take(),
        most: log.most.get(),
        took,
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_quick_is_not_hedged() {
    let there = there(3.0);
    let seen = run(policy(), hedge_after(50), &there, &[Behaviour::Answer(49)]).await;
    assert_eq!((seen.result, seen.started.len()), (Ok(1), 1));
    assert_eq!(there.budget().unwrap().balance(), 3.0);
}

#[tokio::test(start_paused = true)]
async fn a_slow_attempt_is_joined_by_another_and_the_loser_is_dropped() {
    let there = there(3.0);
    let script = [Behaviour::Answer(10_000), Behaviour::Answer(7)];
    let seen = run(policy(), hedge_after(50), &there, &script).await;
    assert_eq!(
        (seen.result, seen.started, seen.took),
        (Ok(2), vec![0, 50], 57)
    );
    assert_eq!(there.budget().unwrap().balance(), 2.0);
    // The trace contains the loser, too.
    let trace = seen.summary.trace.unwrap();
    let ends: Vec<_> = trace.entries().map(|e| (e.attempt, e.decision)).collect();
    assert!(
        matches!(ends[0], (1, Some(Decision::Stop(stop))) if stop.reason == StopReason::Cancelled)
    );
    assert_eq!(ends[1], (2, None));
}

#[tokio::test(start_paused = true)]
async fn the_first_attempt_may_still_win() {
    let there = there(3.0);
    let script = [Behaviour::Answer(60), Behaviour::Answer(100)];
    let seen = run(policy(), hedge_after(50), &there, &script).await;
    assert_eq!((seen.result, seen.took), (Ok(1), 60));
    assert_eq!(there.budget().unwrap().balance(), 2.0, "the hedge was sent");
}

#[tokio::test(start_paused = true)]
async fn without_a_budget_left_nothing_is_hedged() {
    let there = there(0.5);
    let script = [Behaviour::Answer(10_000), Behaviour::Answer(7)];
    let seen = run(policy(), hedge_after(50), &there, &script).await;
    assert_eq!((seen.result, seen.took), (Ok(1), 10_000));
}

#[tokio::test(start_paused = true)]
async fn a_failure_waits_for_the_running_hedge() {
    let there = there(3.0);
    let script = [
        Behaviour::Fail(60, Failure::ambiguous()),
        Behaviour::Answer(100),
    ];
    let seen = run(policy(), hedge_after(50), &there, &script).await;
    assert_eq!((seen.result, seen.took), (Ok(2), 150));
}

#[tokio::test(start_paused = true)]
async fn after_all_attempts_of_a_race_fail_the_policy_decides_once() {
    let there = there(10.0);
    let failed = Failure::ambiguous();
    let script = [
        Behaviour::Fail(60, failed),
        Behaviour::Fail(30, failed),
        Behaviour::Answer(5),
    ];
    let seen = run(policy(), hedge_after(50), &there, &script).await;
    assert_eq!(seen.result, Ok(3));
    assert_eq!(seen.started, [0, 50, 1080]);
    assert_eq!(
        there.budget().unwrap().balance(),
        8.0,
        "a hedge and a retry"
    );
}

#[tokio::test(start_paused = true)]
async fn the_notice_of_an_attempt_that_timed_out_has_no_error_of_another_one() {
    let policy = policy().max_retries(2).attempt_timeout(MILLI * 200);
    let policy = policy.hedge(hedge_after(50)).build().unwrap();
    let errors = RefCell::new(Vec::new());
    let asked = retry_with(&policy, |attempt| async move {
        let after = [60, 300][usize::from(attempt.number > 1)];
        tokio::time::sleep(MILLI * after).await;
        Err::<(), _>("refused")
    });
    let noticed = asked.notify(|notice| errors.borrow_mut().push(notice.error.copied()));
    let gave_up = noticed.await.unwrap_err();
    assert_eq!(*errors.borrow(), [None]);
    assert_eq!(gave_up.error(), Some(&"refused"), "the last one");
}

#[tokio::test(start_paused = true)]
async fn hedges_count_towards_max_retries() {
    let there = there(10.0);
    let script = [Behaviour::Fail(60, Failure::ambiguous())];
    let seen = run(policy().max_retries(1), hedge_after(50), &there, &script).await;
    assert_eq!((seen.result, seen.started), (Err(Some(2)), vec![0, 50]));
    assert_eq!(seen.summary.reason, Some(StopReason::RetriesExhausted));
    let off = policy().max_retries(0);
    let seen = run(off, hedge_after(50), &there, &script).await;
    assert_eq!(seen.started, [0], "retries are off");
}

#[tokio::test(start_paused = true)]
async fn a_fatal_failure_ends_the_race() {
    let there = there(3.0);
    let script = [
        Behaviour::Answer(10_000),
        Behaviour::Fail(10, Failure::permanent()),
    ];
    let seen = run(policy(), hedge_after(50), &there, &script).await;
    assert_eq!((seen.result, seen.took), (Err(Some(2)), 60));
    assert_eq!(seen.summary.reason, Some(StopReason::Permanent));
}

#[tokio::test(start_paused = true)]
async fn a_push_back_stops_further_hedges_and_is_obeyed() {
    let hedge = hedge_after(50).max_hedges(3);
    let there = there(10.0);
    let later = Failure::throttled().hint(Hint::after(MILLI * 5000));
    let script = [
        Behaviour::Fail(200, Failure::ambiguous()),
        Behaviour::Fail(10, later),
        Behaviour::Answer(5),
    ];
    let quick = policy().hint(relent::policy::HintMode::Exact);
    let seen = run(quick, hedge, &there, &script).await;
    // The delay counts from when the response arrived, at 60 ms; no hedge joined at 100 ms.
    assert_eq!((seen.result, seen.started), (Ok(3), vec![0, 50, 5060]));
}

#[tokio::test(start_paused = true)]
async fn each_attempt_has_its_own_limit() {
    let there = there(10.0);
    let limited = policy().attempt_timeout(MILLI * 80).max_retries(1);
    let seen = run(
        limited,
        hedge_after(50),
        &there,
        &[Behaviour::Answer(10_000)],
    )
    .await;
    // Cut off at 80 ms and at 130 ms.
    assert_eq!((seen.result, seen.took), (Err(None), 130));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_cuts_off_all_attempts_of_a_race() {
    let there = there(10.0);
    let limited = policy().deadline(MILLI * 100);
    let seen = run(
        limited,
        hedge_after(50),
        &there,
        &[Behaviour::Answer(10_000)],
    )
    .await;
    assert_eq!((seen.result, seen.took, seen.most), (Err(None), 100, 2));
    assert_eq!(seen.summary.reason, Some(StopReason::Deadline));
}

#[tokio::test(start_paused = true)]
async fn with_zero_delay_all_hedges_start_immediately() {
    let hedge = hedge_after(0).max_hedges(2);
    let there = there(10.0);
    let script = [
        Behaviour::Answer(30),
        Behaviour::Answer(20),
        Behaviour::Answer(10),
    ];
    let seen = run(policy(), hedge, &there, &script).await;
    assert_eq!((seen.result, seen.started), (Ok(3), vec![0, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn cancelling_drops_all_attempts() {
    let log = Log::default();
    let policy = policy().hedge(hedge_after(50)).build().unwrap();
    let begin = tokio::time::Instant::now();
    let gave_up = retry_with(&policy, |attempt| {
        log.attempt(begin, attempt.number, &[Behaviour::Answer(10_000)])
    })
    .cancel_on(tokio::time::sleep(MILLI * 70))
    .await
    .unwrap_err();
    assert_eq!(gave_up.reason(), StopReason::Cancelled);
    assert_eq!((log.most.get(), log.running.get()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_percentile_hedge_uses_the_latencies_of_all_callers() {
    let config = HedgeConfig::percentile(0.95);
    let policy = policy().hedge(config).build().unwrap();
    let (there, elsewhere) = (Destination::new(&policy), Destination::new(&policy));
    for _ in 0..400 {
        retry(&policy, || async {
            tokio::time::sleep(MILLI * 10).await;
            Ok::<_, ()>(())
        })
        .destination(&there)
        .await
        .unwrap();
    }
    let delay = there.hedge(&config).unwrap().delay().unwrap();
    assert!(delay >= MILLI * 10 && delay <= MILLI * 12, "{delay:?}");
    // The latencies of one destination say nothing about another.
    assert_eq!(elsewhere.hedge(&config).unwrap().delay(), None);
}

/// Without a destination no latencies would be recorded, and nothing would ever be hedged.
#[tokio::test(start_paused = true)]
async fn a_percentile_without_a_destination_is_refused() {
    let policy = policy()
        .hedge(HedgeConfig::percentile(0.95))
        .build()
        .unwrap();
    let asked = Cell::new(0);
    let ask = || {
        asked.set(asked.get() + 1);
        async { Ok::<_, std::io::Error>(()) }
    };
    let gave_up = retry(&policy, ask).await.unwrap_err();
    assert_eq!(
        (gave_up.reason(), asked.get()),
        (StopReason::NoDestination, 0)
    );
    let said = gave_up.to_string();
    assert!(said.contains("needs a destination"), "{said}");
    let there = Destination::new(&policy);
    retry(&policy, ask).destination(&there).await.unwrap();
}

/// Operations that must not overlap are not hedged, and need no destination for a percentile.
#[tokio::test(start_paused = true)]
async fn operations_that_must_not_overlap_are_not_hedged() {
    let slow = || tokio::time::sleep(MILLI * 1000);
    for config in [
        HedgeConfig::after(Duration::ZERO),
        HedgeConfig::percentile(0.95),
    ] {
        let policy = policy().hedge(config).build().unwrap();
        let asked = Cell::new(0);
        let ask = || asked.set(asked.get() + 1);
        retry_on_conflict(&policy, || async {
            ask();
            slow().await;
            WriteOutcome::<_, ()>::Done(())
        })
        .await
        .unwrap();
        retry_mut(&policy, async |_| {
            ask();
            slow().await;
            Ok::<_, ()>(())
        })
        .run()
        .await
        .unwrap();
        let blocking = blocking::retry(&policy, || {
            ask();
            Ok::<_, ()>(())
        });
        blocking.run().unwrap();
        assert_eq!(asked.get(), 3, "{config:?}");
    }
}

/// The destination also keeps the hedging state for policies other than its own.
#[tokio::test(start_paused = true)]
async fn a_destination_keeps_hedging_state_for_every_policy_used_with_it() {
    let there = there(10.0);
    let slow = [Behaviour::Answer(10_000), Behaviour::Answer(5)];
    for (after, took) in [(50, 55), (80, 85)] {
        let seen = run(policy(), hedge_after(after), &there, &slow).await;
        assert_eq!((seen.result, seen.took), (Ok(2), took));
    }
    let refused = [Behaviour::Fail(5, Failure::overloaded())];
    run(policy(), hedge_after(50), &there, &refused).await;
    assert_eq!(there.hedge(&hedge_after(50)).unwrap().delay(), None);
}

#[test]
fn dropping_a_race_does_not_refund_hedges_that_were_sent() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let _inside = runtime.enter();
    let there = there(3.0);
    let policy = policy().hedge(hedge_after(0)).build().unwrap();
    {
        let mut future = pin!(
            retry(&policy, || async {
                std::future::pending::<Result<(), ()>>().await
            })
            .destination(&there)
        );
        let mut context = Context::from_waker(Waker::noop());
        assert!(future.as_mut().poll(&mut context).is_pending());
        assert_eq!(there.budget().unwrap().balance(), 2.0);
    }
    assert_eq!(there.budget().unwrap().balance(), 2.0);
}

/// A hedged future is `Send` if the operation's future is.
#[tokio::test(start_paused = true)]
async fn a_hedged_future_can_be_spawned() {
    let task = tokio::spawn(async {
        let policy = policy().hedge(hedge_after(50)).build().unwrap();
        retry(&policy, || async { Ok::<_, ()>(1) }).await
    });
    assert_eq!(task.await.unwrap().unwrap(), 1);
}

fn does() -> impl Strategy<Value = Behaviour> {
    let failure = prop_oneof![
        3 => Just(Failure::ambiguous()),
        1 => Just(Failure::throttled()),
        1 => Just(Failure::permanent()),
        1 => Just(Failure::overloaded()),
    ];
    prop_oneof![
        (0..300_u32).prop_map(Behaviour::Answer),
        (0..300_u32, failure).prop_map(|(after, failure)| Behaviour::Fail(after, failure)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// For any behaviour of the attempts and any order of their ends.
    #[test]
    fn no_order_of_outcomes_breaks_a_limit_of_a_race(
        script in proptest::collection::vec(does(), 6),
        delay in 0..150_u32,
        hedges in 1..=4_u32,
        tokens in 0..5_u32,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let config = HedgeConfig::after(MILLI * delay).max_hedges(hedges);
        let there = there(f64::from(tokens));
        let seen = runtime.block_on(run(policy(), config, &there, &script));
        let attempts = seen.started.len() as u32;
        prop_assert_eq!(seen.summary.attempts, attempts);
        prop_assert!(attempts <= 4);
        prop_assert!(seen.most <= 1 + hedges);
        // Each attempt after the first was paid for, and nothing else.
        prop_assert_eq!(there.budget().unwrap().balance(), f64::from(tokens) - f64::from(attempts - 1));
        // Every attempt is in the trace, once.
        let trace = seen.summary.trace.unwrap();
        let mut numbers: Vec<_> = trace.entries().map(|entry| entry.attempt).collect();
        numbers.sort_unstable();
        prop_assert_eq!(numbers, (1..=attempts).collect::<Vec<_>>());
        // The result is that of a successful attempt.
        if let Ok(number) = seen.result {
            prop_assert!(matches!(script[number as usize - 1], Behaviour::Answer(_)));
        } else {
            prop_assert!(seen.summary.reason.is_some());
        }
    }
}
