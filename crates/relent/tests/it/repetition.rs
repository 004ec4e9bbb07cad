//! Repetitions without a failure: pending polls, conflicts, ticks; and failures that no list makes
//! retryable. Time is paused throughout.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use relent::classify::Marked;
use relent::policy::{BudgetConfig, GateConfig, HedgeConfig, Pattern};
use relent::{
    Activity, Backoff, Destination, Jitter, Policy, Polled, StopReason, Ticker, VirtualClock,
    Written, blocking, poll, presets, retry, update,
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
async fn rule_2_a_conflict_is_repeated_whatever_the_policy_lists() {
    for (name, policy) in presets_that_retry() {
        let writes = Cell::new(0);
        let written = update(&policy, async || {
            writes.set(writes.get() + 1);
            match writes.get() {
                1 => Written::Conflict("somebody was faster"),
                _ => Written::Done(()),
            }
        });
        written
            .await
            .unwrap_or_else(|gave_up| panic!("{name}: {gave_up}"));
        assert_eq!(writes.get(), 2, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn r4_3_what_is_not_ready_is_looked_at_again_whatever_the_policy_lists() {
    for (name, policy) in presets_that_retry() {
        let looks = Cell::new(0);
        let done = poll(&policy, async || {
            looks.set(looks.get() + 1);
            Ok::<_, &str>(match looks.get() {
                1 => Polled::Pending,
                _ => Polled::Done(()),
            })
        });
        done.await
            .unwrap_or_else(|gave_up| panic!("{name}: {gave_up}"));
        assert_eq!(looks.get(), 2, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn r4_5_a_ticker_ticks_whatever_the_policy_lists() {
    for (name, policy) in presets_that_retry() {
        let mut ticker = Ticker::new(&policy);
        assert_eq!(ticker.tick().await, Some(1), "{name}");
        assert_eq!(ticker.tick().await, Some(2), "{name}");
        let mut ticker = blocking::Ticker::with_clock(&policy, VirtualClock::new());
        assert_eq!((ticker.next(), ticker.next()), (Some(1), Some(2)), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_the_answer_of_a_healthy_destination() {
    let policy = Policy::builder(Backoff::constant(SECOND / 100))
        .gate(GateConfig::DEFAULT)
        .unlimited_retries()
        .build()
        .unwrap();
    let there = Destination::new(&policy);
    let writes = Cell::new(0);
    let written = update(&policy, async || {
        writes.set(writes.get() + 1);
        match writes.get() {
            ..300 => Written::Conflict("somebody was faster"),
            _ => Written::Done(there.is_open()),
        }
    });
    assert!(written.destination(&there).await.unwrap());
    assert_eq!(writes.get(), 300);
}

#[tokio::test(start_paused = true)]
async fn rule_7_what_a_healthy_destination_answers_is_neither_paid_for_nor_a_failure() {
    let budget = BudgetConfig {
        reserve: 3.0,
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
        let done = poll(&policy, async || {
            looks.set(looks.get() + 1);
            Ok::<_, &str>(match looks.get() {
                40 => Polled::Done(()),
                10 => Polled::Progress,
                _ => Polled::Pending,
            })
        });
        done.destination(&there).await.unwrap();
        assert_eq!(there.budget().unwrap().balance(), 3.0, "{budget:?}");
        // A conflict is free, too: another write took effect.
        let conflict = update(&policy, async || Written::<(), _>::Conflict("always"));
        let gave_up = conflict.destination(&there).await.unwrap_err();
        assert_eq!(gave_up.reason(), StopReason::RetriesExhausted, "{budget:?}");
        assert_eq!(there.budget().unwrap().balance(), 3.0, "{budget:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_ready_ends_a_race_and_no_hedge_joins_in_its_place() {
    let policy = Policy::builder(Backoff::constant(10 * SECOND))
        .jitter(Jitter::None)
        .hedge(HedgeConfig::after(SECOND))
        .build()
        .unwrap();
    let looks = RefCell::new(Vec::new());
    let began = Instant::now();
    let done = poll(&policy, || {
        looks.borrow_mut().push(began.elapsed().as_secs());
        let looks = looks.borrow().len();
        async move {
            sleep(2 * SECOND).await;
            Ok::<_, &str>(match looks {
                ..3 => Polled::Pending,
                _ => Polled::Done(()),
            })
        }
    });
    done.await.unwrap();
    // The poll at 0 has a hedge at 1, and both end at 2; the same for the next.
    assert_eq!(*looks.borrow(), [0, 1, 12, 13]);
}

#[tokio::test(start_paused = true)]
async fn rule_1_no_list_repeats_what_cannot_be_helped() {
    for list in [Pattern::Any, Pattern::Error] {
        let policy = Policy::STANDARD.clone().retrying([list]);
        let attempts = Cell::new(0);
        let count = || attempts.set(attempts.get() + 1);
        let marked = retry(&policy, async || {
            count();
            Err::<(), _>(Marked::Permanent("no"))
        });
        assert_eq!(
            marked.marked().await.unwrap_err().reason(),
            StopReason::Permanent
        );
        let judged = retry(&policy, async || {
            count();
            Err::<(), _>("no")
        });
        let judged = judged.when(|error| *error != "no").await.unwrap_err();
        assert_eq!(judged.reason(), StopReason::Permanent);
        let looked = poll(&policy, async || {
            count();
            Err::<Polled<()>, _>("no")
        });
        assert_eq!(looked.await.unwrap_err().reason(), StopReason::Permanent);
        let failed = update(&policy, async || {
            count();
            Written::<(), _>::Failed("no")
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
    let polling = poll(policy, || {
        looks.borrow_mut().push(began.elapsed());
        async { Ok::<Polled<()>, &str>(Polled::Pending) }
    })
    .activity(&activity);
    let touching = async {
        while began.elapsed() < 300 * SECOND {
            sleep(every).await;
            activity.touch();
        }
    };
    tokio::select! {
        _ = polling => {}
        () = touching => {}
    }
    looks.into_inner()
}

#[tokio::test(start_paused = true)]
async fn r4_4_a_touch_never_puts_the_next_look_off() {
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
async fn rule_6_a_touch_moves_no_attempt_past_a_limit() {
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
        async { Ok::<Polled<()>, &str>(Polled::Pending) }
    };
    let touching = async {
        sleep(79 * SECOND / 10).await;
        activity.touch();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = poll(&policy, look).activity(&activity) => {
            assert_eq!(result.unwrap_err().reason(), StopReason::MaxElapsed);
        }
        () = touching => {}
    }
    assert_eq!(*looks.borrow(), [0, 4, 8].map(Duration::from_secs));
    advance(SECOND).await;
}
