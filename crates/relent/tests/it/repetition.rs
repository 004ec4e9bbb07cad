//! Repetitions without a failure: pending polls, conflicts, ticks; and failures that no list makes
//! retryable. Time is paused throughout.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use relent::classify::RetryableError;
use relent::policy::{BudgetConfig, CircuitBreakerConfig, HedgeConfig, Pattern};
use relent::{
    Activity, Backoff, Destination, Jitter, Policy, PollOutcome, StopReason, Ticker, VirtualClock,
    WriteOutcome, blocking, poll_until, presets, retry, retry_on_conflict,
};
use tokio::time::{Instant, advance, sleep};

const SECOND: Duration = Duration::from_secs(1);

/// Every preset that makes a second attempt.
fn presets_that_retry() -> impl Iterator<Item = (&'static str, Policy)> {
    let policy = |name| presets::get(name).unwrap().load().unwrap().policy;
    let all = presets::names()
        .into_iter()
        .map(move |name| (name, policy(name)));
    all.filter(|(_, policy)| policy.max_retries() != Some(0))
}

#[tokio::test(start_paused = true)]
async fn a_write_conflict_is_retried_whatever_the_policy_lists() {
    for (name, policy) in presets_that_retry() {
        let writes = Cell::new(0);
        let written = retry_on_conflict(&policy, async || {
            writes.set(writes.get() + 1);
            match writes.get() {
                1 => WriteOutcome::Conflict("somebody was faster"),
                _ => WriteOutcome::Done(()),
            }
        });
        written
            .await
            .unwrap_or_else(|gave_up| panic!("{name}: {gave_up}"));
        assert_eq!(writes.get(), 2, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pending_poll_is_repeated_whatever_the_policy_lists() {
    for (name, policy) in presets_that_retry() {
        let looks = Cell::new(0);
        let done = poll_until(&policy, async || {
            looks.set(looks.get() + 1);
            Ok::<_, &str>(match looks.get() {
                1 => PollOutcome::Pending,
                _ => PollOutcome::Done(()),
            })
        });
        done.await
            .unwrap_or_else(|gave_up| panic!("{name}: {gave_up}"));
        assert_eq!(looks.get(), 2, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_ticker_ticks_whatever_the_policy_lists() {
    for (name, policy) in presets_that_retry() {
        let mut ticker = Ticker::new(&policy);
        assert_eq!(ticker.tick().await, Some(1), "{name}");
        assert_eq!(ticker.tick().await, Some(2), "{name}");
        let mut ticker = blocking::Ticker::with_clock(&policy, VirtualClock::new());
        assert_eq!((ticker.next(), ticker.next()), (Some(1), Some(2)), "{name}");
    }
}

/// The first write takes effect, but its response comes after the attempt timeout.
#[tokio::test(start_paused = true)]
async fn a_conditional_write_that_timed_out_is_not_applied_twice() {
    let add_one = async |policy: &Policy| {
        let (version, row) = (Cell::new(1), Cell::new(10));
        let written = retry_on_conflict(policy, async || {
            let (read, value) = (version.get(), row.get());
            if version.get() != read {
                return WriteOutcome::Conflict("somebody was faster");
            }
            version.set(read + 1);
            row.set(value + 1);
            if read == 1 {
                sleep(60 * SECOND).await;
            }
            WriteOutcome::Done(())
        });
        (written.await.map_err(|gave_up| gave_up.reason()), row.get())
    };
    let limited = Policy::builder(Backoff::None).attempt_timeout(SECOND);
    let policy = limited.clone().build().unwrap();
    let in_doubt = (Err(StopReason::NotRepeatable), 11);
    assert_eq!(add_one(&policy).await, in_doubt);
    // The policy declares that every operation may run twice.
    let assuming = limited.assume_repeatable(true).build().unwrap();
    assert_eq!(add_one(&assuming).await, (Ok(()), 12));
}

#[tokio::test(start_paused = true)]
async fn write_conflicts_do_not_trip_the_circuit_breaker() {
    let policy = Policy::builder(Backoff::constant(SECOND / 100))
        .circuit_breaker(CircuitBreakerConfig::DEFAULT)
        .unlimited_retries()
        .build()
        .unwrap();
    let there = Destination::new(&policy);
    let writes = Cell::new(0);
    let written = retry_on_conflict(&policy, async || {
        writes.set(writes.get() + 1);
        match writes.get() {
            ..300 => WriteOutcome::Conflict("somebody was faster"),
            _ => WriteOutcome::Done(there.is_normal()),
        }
    });
    assert!(written.destination(&there).await.unwrap());
    assert_eq!(writes.get(), 300);
}

#[tokio::test(start_paused = true)]
async fn pending_polls_and_conflicts_cost_no_retry_budget() {
    let budget = BudgetConfig {
        initial_tokens: 3.0,
        per_second: 0.0,
        ratio: 0.0,
        ..BudgetConfig::DEFAULT
    };
    for budget in [
        budget,
        BudgetConfig {
            charge_failures: true,
            ..budget
        },
        BudgetConfig {
            refund_on_success: true,
            ..budget
        },
    ] {
        let policy = Policy::builder(Backoff::constant(SECOND))
            .budget(budget)
            .max_retries(50)
            .build()
            .unwrap();
        let there = Destination::new(&policy);
        let looks = Cell::new(0);
        let done = poll_until(&policy, async || {
            looks.set(looks.get() + 1);
            Ok::<_, &str>(match looks.get() {
                40 => PollOutcome::Done(()),
                10 => PollOutcome::Progress,
                _ => PollOutcome::Pending,
            })
        });
        done.destination(&there).await.unwrap();
        assert_eq!(there.budget().unwrap().balance(), 3.0, "{budget:?}");
        // A conflict is free, too: another write took effect.
        let conflict =
            retry_on_conflict(&policy, async || WriteOutcome::<(), _>::Conflict("always"));
        let gave_up = conflict.destination(&there).await.unwrap_err();
        assert_eq!(gave_up.reason(), StopReason::RetriesExhausted, "{budget:?}");
        assert_eq!(there.budget().unwrap().balance(), 3.0, "{budget:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pending_poll_ends_the_race_of_a_hedged_poll() {
    let policy = Policy::builder(Backoff::constant(10 * SECOND))
        .jitter(Jitter::None)
        .hedge(HedgeConfig::after(SECOND))
        .build()
        .unwrap();
    let looks = RefCell::new(Vec::new());
    let began = Instant::now();
    let done = poll_until(&policy, || {
        looks.borrow_mut().push(began.elapsed().as_secs());
        let looks = looks.borrow().len();
        async move {
            sleep(2 * SECOND).await;
            Ok::<_, &str>(match looks {
                ..3 => PollOutcome::Pending,
                _ => PollOutcome::Done(()),
            })
        }
    });
    done.await.unwrap();
    // The poll at 0 has a hedge at 1, and both end at 2; the same for the next.
    assert_eq!(*looks.borrow(), [0, 1, 12, 13]);
}

#[tokio::test(start_paused = true)]
async fn no_retry_list_retries_a_permanent_failure_of_the_operation() {
    for list in [Pattern::Any, Pattern::Error] {
        let policy = Policy::STANDARD.clone().retrying([list]);
        let attempts = Cell::new(0);
        let count = || attempts.set(attempts.get() + 1);
        let marked = retry(&policy, async || {
            count();
            Err::<(), _>(RetryableError::Permanent("no"))
        });
        assert_eq!(
            marked.classify_by_error().await.unwrap_err().reason(),
            StopReason::Permanent
        );
        let judged = retry(&policy, async || {
            count();
            Err::<(), _>("no")
        });
        let judged = judged.when(|error| *error != "no").await.unwrap_err();
        assert_eq!(judged.reason(), StopReason::Permanent);
        let looked = poll_until(&policy, async || {
            count();
            Err::<PollOutcome<()>, _>("no")
        });
        assert_eq!(looked.await.unwrap_err().reason(), StopReason::Permanent);
        let failed = retry_on_conflict(&policy, async || {
            count();
            WriteOutcome::<(), _>::Failed("no")
        });
        assert_eq!(failed.await.unwrap_err().reason(), StopReason::Permanent);
        assert_eq!(attempts.get(), 4, "{list}");
        // The same lists allow retries of other failures.
        let retried = retry(&policy, async || Err::<(), _>("down"))
            .await
            .unwrap_err();
        assert_eq!(retried.reason(), StopReason::RetriesExhausted, "{list}");
    }
}

/// Polls for 300 s under this policy, with activity every `every`. Returns the times of the polls.
async fn looks_under_touches(policy: &Policy, every: Duration) -> Vec<Duration> {
    let activity = Activity::new();
    let began = Instant::now();
    let looks = RefCell::new(Vec::new());
    let polling = poll_until(policy, || {
        looks.borrow_mut().push(began.elapsed());
        async { Ok::<PollOutcome<()>, &str>(PollOutcome::Pending) }
    })
    .activity(&activity);
    let touching = async {
        while began.elapsed() < 300 * SECOND {
            sleep(every).await;
            activity.notify();
        }
    };
    tokio::select! {
        _ = polling => {}
        () = touching => {}
    }
    looks.into_inner()
}

#[tokio::test(start_paused = true)]
async fn activity_never_delays_the_next_poll() {
    let policy = Policy::builder(Backoff::exponential(SECOND))
        .jitter(Jitter::None)
        .unlimited_retries()
        .build()
        .unwrap();
    let looks = looks_under_touches(&policy, SECOND / 2).await;
    // One per second, since the first delay is a second.
    assert!((299..=301).contains(&looks.len()), "{}", looks.len());
    // With full jitter half a second on average, however frequent the activity is.
    let drawn = policy.into_builder().jitter(Jitter::Full).build().unwrap();
    let looks = looks_under_touches(&drawn, SECOND / 1000).await;
    assert!((500..=700).contains(&looks.len()), "{}", looks.len());
}

#[tokio::test(start_paused = true)]
async fn activity_moves_no_attempt_past_a_time_limit() {
    let policy = Policy::builder(Backoff::constant(4 * SECOND))
        .jitter(Jitter::None)
        .unlimited_retries()
        .max_elapsed(10 * SECOND)
        .build()
        .unwrap();
    let activity = Activity::new();
    let began = Instant::now();
    let looks = RefCell::new(Vec::new());
    let look = || {
        looks.borrow_mut().push(began.elapsed());
        async { Ok::<PollOutcome<()>, &str>(PollOutcome::Pending) }
    };
    let touching = async {
        sleep(79 * SECOND / 10).await;
        activity.notify();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = poll_until(&policy, look).activity(&activity) => {
            assert_eq!(result.unwrap_err().reason(), StopReason::MaxElapsed);
        }
        () = touching => {}
    }
    assert_eq!(*looks.borrow(), [0, 4, 8].map(Duration::from_secs));
    advance(SECOND).await;
}
