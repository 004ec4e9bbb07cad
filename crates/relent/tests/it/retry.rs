//! The loops of this crate: their behaviour beyond the session's decisions. Time is virtual or
//! paused throughout.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use relent::classify::RetryableError;
use relent::clock::{Clock, Instant, Sleeper};
use relent::random::FixedRandom;
use relent::{
    Activity, Backoff, Failure, Hint, Jitter, Policy, PollOutcome, StopReason, Ticker,
    VirtualClock, blocking, poll_until, retry, retry_mut, retry_with,
};

const SECOND: Duration = Duration::from_secs(1);

fn plain(retries: u32) -> Policy {
    Policy::builder(Backoff::exponential(SECOND))
        .jitter(Jitter::None)
        .max_retries(retries)
        .build()
        .unwrap()
}

/// A clock that counts its reads.
struct Watched(Cell<u32>);

impl Clock for &Watched {
    type Sleep = std::future::Ready<()>;

    fn now(&self) -> Instant {
        self.0.set(self.0.get() + 1);
        Instant::ORIGIN
    }
}

impl Sleeper for &Watched {
    fn sleep(&self, _: Duration) -> Self::Sleep {
        std::future::ready(())
    }
}

impl relent::clock::BlockingSleeper for &Watched {
    fn block(&self, _: Duration) -> bool {
        true
    }
}

#[tokio::test]
async fn a_first_success_reads_the_clock_once() {
    let watched = Watched(Cell::new(0));
    retry(Policy::STANDARD, || async { Ok::<_, ()>(()) })
        .clock(&watched)
        .await
        .unwrap();
    blocking::retry(Policy::STANDARD, || Ok::<_, ()>(()))
        .clock(&watched)
        .run()
        .unwrap();
    assert_eq!(watched.0.take(), 2, "once for each call");

    let deadline = plain(1).into_builder().deadline(SECOND).build().unwrap();
    retry(&deadline, || async { Ok::<_, ()>(()) })
        .clock(&watched)
        .await
        .unwrap();
    assert_eq!(watched.0.get(), 1);
}

#[tokio::test]
async fn a_wait_that_cannot_be_shortened_reads_no_clock() {
    let (policy, watched) = (plain(3), Watched(Cell::new(0)));
    let fail = || async { Err::<(), _>("down") };
    retry(&policy, fail).clock(&watched).await.unwrap_err();
    // Twice for each of four attempts, and once for the elapsed time.
    let reads = watched.0.take();
    assert_eq!(reads, 9);
    let never = std::future::pending::<()>();
    let call = retry(&policy, fail).clock(&watched).cancel_on(never);
    call.await.unwrap_err();
    assert_eq!(watched.0.take(), reads);
    let call = retry_mut(&policy, async |_| Err::<(), _>("down")).clock(&watched);
    call.run().await.unwrap_err();
    assert_eq!(watched.0.take(), reads);
    // Activity can shorten a wait, so its end must be known.
    let activity = Activity::new();
    let call = retry(&policy, fail).clock(&watched).activity(&activity);
    call.await.unwrap_err();
    assert_eq!(watched.0.take(), reads + 3);
}

#[tokio::test(start_paused = true)]
async fn the_operation_runs_at_least_once_and_waits_by_the_policy() {
    let times = RefCell::new(Vec::new());
    let start = tokio::time::Instant::now();
    let gave_up = retry(&plain(3), || {
        times.borrow_mut().push(start.elapsed().as_secs());
        async { Err::<(), _>("down") }
    })
    .await
    .unwrap_err();
    assert_eq!(*times.borrow(), [0, 1, 3, 7]);
    assert_eq!(gave_up.reason(), StopReason::RetriesExhausted);
    assert_eq!((gave_up.attempts(), gave_up.elapsed()), (4, 7 * SECOND));

    let none = plain(0);
    let gave_up = retry(&none, || async { Err::<(), _>("down") })
        .await
        .unwrap_err();
    assert_eq!(gave_up.attempts(), 1);
}

/// The crate backoff calls the operation before the future is first polled, and makes the future of
/// each next attempt before the wait: tokens and timestamps taken in the closure are stale.
#[tokio::test(start_paused = true)]
async fn backoff_operation_called_before_the_wait() {
    let calls = AtomicU32::new(0);
    let policy = plain(3);
    let future = retry(&policy, || {
        calls.fetch_add(1, Ordering::Relaxed);
        async { Err::<(), _>("down") }
    });
    let mut future = pin!(future);
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    let mut context = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut context).is_pending());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    let _ = future.await;
    assert_eq!(calls.load(Ordering::Relaxed), 4);
}

/// tokio-retry polls recursively: its depth grows with every attempt whose wait is ready
/// immediately.
#[tokio::test]
async fn tokio_retry_recursion() {
    let policy = Policy::builder(Backoff::None)
        .max_retries(1_000_000)
        .build()
        .unwrap();
    let gave_up = retry(&policy, || async { Err::<(), _>(()) })
        .await
        .unwrap_err();
    assert_eq!(gave_up.attempts(), 1_000_001);
}

#[test]
fn an_operation_that_keeps_failing_immediately_yields_to_other_tasks() {
    let policy = Policy::builder(Backoff::None)
        .unlimited_retries()
        .build()
        .unwrap();
    let future = retry(&policy, || async { Err::<(), _>(()) });
    let mut context = Context::from_waker(Waker::noop());
    assert!(pin!(future).poll(&mut context).is_pending());
}

/// tower's maker clones its generator without advancing it: all sessions get the same delays.
#[test]
fn tower_all_sessions_in_lockstep() {
    let waits = || {
        let clock = VirtualClock::new();
        let _ = blocking::retry(Policy::PATIENT, || Err::<(), _>(()))
            .clock(&clock)
            .run();
        clock.sleeps()
    };
    assert_ne!(waits(), waits());
    let seeded = |seed| {
        let clock = VirtualClock::new();
        let retry = blocking::retry(Policy::PATIENT, || Err::<(), _>(())).clock(&clock);
        let _ = retry.seed(seed).run();
        clock.sleeps()
    };
    assert_eq!(seeded(1), seeded(1));
    assert_ne!(seeded(1), seeded(2));
}

/// tokio-retry2 never honours retry_after, and notifies with the wrong delay, once too often.
#[test]
fn tokio_retry2_retry_after_and_notify() {
    let clock = VirtualClock::new();
    let mut heard = Vec::new();
    let gave_up = blocking::retry(&plain(2), || {
        Err::<(), _>(RetryableError::RetryAfter("slow", 5 * SECOND))
    })
    .classify_by_error()
    .notify(|notice| heard.push((notice.attempt, notice.wait, *notice.error.unwrap())))
    .random(FixedRandom::at(0.0))
    .clock(&clock)
    .run()
    .unwrap_err();
    assert_eq!(clock.sleeps(), [5 * SECOND, 5 * SECOND]);
    assert_eq!(heard, [(1, 5 * SECOND, "slow"), (2, 5 * SECOND, "slow")]);
    assert_eq!(gave_up.into_error(), Some("slow"));
}

/// tokio-retry2's MaxInterval reads the standard clock under tokio's paused time.
#[tokio::test(start_paused = true)]
async fn tokio_retry2_time_limit_ignores_paused_time() {
    let policy = Policy::builder(Backoff::constant(SECOND))
        .jitter(Jitter::None)
        .unlimited_retries()
        .max_elapsed(5 * SECOND)
        .build()
        .unwrap();
    let gave_up = retry(&policy, || async { Err::<(), _>(()) })
        .await
        .unwrap_err();
    assert_eq!(
        (gave_up.attempts(), gave_up.reason()),
        (6, StopReason::MaxElapsed)
    );
}

#[tokio::test(start_paused = true)]
async fn an_attempt_timeout_cuts_off_one_attempt_and_goes_on() {
    let policy = plain(2)
        .into_builder()
        .attempt_timeout(3 * SECOND)
        .build()
        .unwrap();
    let start = tokio::time::Instant::now();
    let result = retry_with(&policy, |attempt| async move {
        assert_eq!(attempt.limit, Some(3 * SECOND));
        if attempt.number == 1 {
            pending::<()>().await;
        }
        Ok::<_, ()>(attempt.number)
    })
    .await;
    assert_eq!(result.unwrap(), 2);
    assert_eq!(
        start.elapsed(),
        4 * SECOND,
        "3 s for the attempt, 1 s of backoff"
    );
}

#[tokio::test(start_paused = true)]
async fn a_deadline_cuts_off_the_running_attempt() {
    let policy = plain(9)
        .into_builder()
        .deadline(10 * SECOND)
        .build()
        .unwrap();
    for with_closure in [false, true] {
        let start = tokio::time::Instant::now();
        let gave_up = if with_closure {
            retry_mut(&policy, async |_| pending::<Result<(), ()>>().await)
                .run()
                .await
        } else {
            retry(&policy, pending::<Result<(), ()>>).await
        }
        .unwrap_err();
        assert_eq!(start.elapsed(), 10 * SECOND);
        assert_eq!(gave_up.reason(), StopReason::Deadline);
        assert_eq!(
            gave_up.error(),
            None,
            "no attempt came to an end of its own"
        );
    }
}

#[test]
fn a_blocking_attempt_is_never_cut_off_and_its_late_result_counts() {
    let policy = plain(9)
        .into_builder()
        .attempt_timeout(3 * SECOND)
        .deadline(10 * SECOND)
        .build()
        .unwrap();
    let clock = VirtualClock::new();
    let late = blocking::retry(&policy, || {
        clock.advance(20 * SECOND);
        Ok::<_, ()>(clock.elapsed())
    })
    .clock(&clock)
    .run();
    assert_eq!(late.unwrap(), 20 * SECOND, "the first attempt");

    let clock = VirtualClock::new();
    let gave_up = blocking::retry_with(&policy, |attempt| {
        assert!(attempt.limit <= Some(3 * SECOND));
        clock.advance(5 * SECOND);
        Err::<(), _>(attempt.number)
    })
    .clock(&clock)
    .run()
    .unwrap_err();
    assert_eq!(gave_up.reason(), StopReason::Deadline);
    assert_eq!(gave_up.error(), Some(&2), "no timeout in place of an error");
    assert_eq!(clock.elapsed(), 11 * SECOND, "5 s, 1 s of backoff, 5 s");
}

#[tokio::test(start_paused = true)]
async fn the_last_real_error_survives_an_attempt_that_was_cut_off() {
    let policy = plain(1)
        .into_builder()
        .attempt_timeout(SECOND)
        .build()
        .unwrap();
    let gave_up = retry_with(&policy, |attempt| async move {
        if attempt.number == 2 {
            pending::<()>().await;
        }
        Err::<(), _>("refused")
    })
    .await
    .unwrap_err();
    assert_eq!(gave_up.error(), Some(&"refused"));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_future_refunds_its_retry() {
    let policy = plain(5)
        .into_builder()
        .budget(relent::policy::BudgetConfig {
            per_second: 0.0,
            ratio: 0.0,
            ..Default::default()
        })
        .build()
        .unwrap();
    let there = relent::Destination::new(&policy);
    let budget = there.budget().unwrap();
    {
        let future = retry(&policy, || async { Err::<(), _>(()) }).destination(&there);
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        assert!(future.as_mut().poll(&mut context).is_pending());
        assert_eq!(budget.balance(), 9.0, "taken before the wait");
    }
    assert_eq!(
        budget.balance(),
        10.0,
        "given back when the caller goes away"
    );
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_ran_is_not_refunded() {
    let policy = plain(1)
        .into_builder()
        .budget(relent::policy::BudgetConfig {
            per_second: 0.0,
            ratio: 0.0,
            ..Default::default()
        })
        .build()
        .unwrap();
    let there = relent::Destination::new(&policy);
    let budget = there.budget().unwrap();
    let _ = retry(&policy, || async { Err::<(), _>(()) })
        .destination(&there)
        .await;
    assert_eq!(budget.balance(), 9.0);
}

#[tokio::test(start_paused = true)]
async fn cancellation_ends_a_wait_and_an_attempt() {
    let during_wait = retry(Policy::PATIENT, || async { Err::<(), _>("down") })
        .random(FixedRandom::at(1.0))
        .cancel_on(tokio::time::sleep(SECOND / 2))
        .await
        .unwrap_err();
    assert_eq!(during_wait.reason(), StopReason::Cancelled);
    assert_eq!(during_wait.into_error(), Some("down"));

    let during_attempt = retry(Policy::PATIENT, pending::<Result<(), ()>>)
        .cancel_on(tokio::time::sleep(SECOND))
        .await
        .unwrap_err();
    assert_eq!(
        (during_attempt.attempts(), during_attempt.error()),
        (1, None)
    );

    let borrowing = retry_mut(Policy::PATIENT, async |_| Err::<(), _>("down"))
        .random(FixedRandom::at(1.0))
        .cancel_on(tokio::time::sleep(SECOND / 2))
        .run()
        .await
        .unwrap_err();
    assert_eq!(borrowing.reason(), StopReason::Cancelled);
}

#[tokio::test]
async fn futures_can_be_spawned() {
    let plain = tokio::spawn(retry(Policy::STANDARD, || async { Ok::<_, String>(1) }));
    assert_eq!(plain.await.unwrap().unwrap(), 1);

    let count = Arc::new(AtomicU32::new(0));
    let mut log = Vec::new();
    let borrowing = tokio::spawn(
        retry_mut(Policy::STANDARD, async move |attempt: relent::Attempt| {
            log.push(attempt.number);
            count.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok::<_, String>(log.len())
        })
        .run(),
    );
    assert_eq!(borrowing.await.unwrap().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn any_iterator_of_durations_is_a_backoff() {
    let start = tokio::time::Instant::now();
    let policy = plain(10);
    let gave_up = retry(&policy, || async { Err::<(), _>(()) })
        .waits([2, 4, 8].into_iter().map(Duration::from_secs))
        .await
        .unwrap_err();
    assert_eq!((gave_up.attempts(), start.elapsed()), (4, 14 * SECOND));
}

#[test]
fn trace_delays_and_clock_are_set_in_any_order() {
    let policy = plain(10);
    let call = || blocking::retry(&policy, || Err::<(), _>("down"));
    let waits = || [2, 4].into_iter().map(Duration::from_secs);
    let clocks = [(); 3].map(|()| VirtualClock::new());
    let [one, two, three] = &clocks;
    for call in [
        call().traced().waits(waits()).clock(one),
        call().waits(waits()).traced().clock(two),
        call().clock(three).waits(waits()).traced(),
    ] {
        let gave_up = call.run().unwrap_err();
        assert_eq!(gave_up.trace().unwrap().entries().len(), 3);
    }
    assert!(clocks.iter().all(|clock| clock.elapsed() == 6 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn summary_and_trace_explain_every_attempt() {
    let (result, summary) = retry_with(&plain(3), |attempt| async move {
        if attempt.number < 3 {
            Err("down")
        } else {
            Ok(())
        }
    })
    .traced()
    .with_summary()
    .await;
    assert!(result.is_ok());
    assert_eq!(
        (summary.attempts, summary.elapsed, summary.reason),
        (3, 3 * SECOND, None)
    );
    let trace = summary.trace.unwrap();
    let waits: Vec<_> = trace
        .entries()
        .map(relent::trace::TraceEntry::wait)
        .collect();
    assert_eq!(waits, [Some(SECOND), Some(2 * SECOND), None]);
}

#[test]
fn retry_later_carries_the_time_named_by_the_server() {
    let clock = VirtualClock::new();
    let gave_up = blocking::retry(Policy::STANDARD, || Err::<(), _>("quota"))
        .classify(|_| Failure::throttled().hint(Hint::after(3600 * SECOND)))
        .clock(&clock)
        .run()
        .unwrap_err();
    assert_eq!(gave_up.reason(), StopReason::RetryLater);
    assert_eq!(
        gave_up.retry_at(),
        Some(std::time::UNIX_EPOCH + 3600 * SECOND)
    );
    assert_eq!(clock.sleeps(), [], "it does not sleep for hours");
}

#[tokio::test(start_paused = true)]
async fn progress_restarts_the_backoff_of_polling() {
    let policy = Policy::builder(Backoff::exponential(SECOND))
        .jitter(Jitter::None)
        .unlimited_retries()
        .build()
        .unwrap();
    let times = RefCell::new(Vec::new());
    let start = tokio::time::Instant::now();
    let result = poll_until(&policy, || {
        times.borrow_mut().push(start.elapsed().as_secs());
        let looks = times.borrow().len();
        async move {
            Ok::<_, ()>(match looks {
                4 => PollOutcome::Progress,
                7 => PollOutcome::Done(looks),
                _ => PollOutcome::Pending,
            })
        }
    })
    .await;
    assert_eq!(result.unwrap(), 7);
    assert_eq!(*times.borrow(), [0, 1, 3, 7, 8, 10, 14]);
}

#[tokio::test(start_paused = true)]
async fn activity_shortens_a_long_wait() {
    let policy = Policy::builder(Backoff::schedule([100 * SECOND, 100 * SECOND]))
        .jitter(Jitter::None)
        .build()
        .unwrap();
    let quick =
        Policy::builder(Backoff::exponential(SECOND).then(1, Backoff::constant(100 * SECOND)))
            .jitter(Jitter::None)
            .unlimited_retries()
            .build()
            .unwrap();
    let activity = Activity::new();
    let start = tokio::time::Instant::now();
    let looks = RefCell::new(Vec::new());
    let polling = async {
        poll_until(&quick, || {
            looks.borrow_mut().push(start.elapsed().as_secs());
            let done = looks.borrow().len() == 4;
            async move {
                Ok::<_, ()>(if done {
                    PollOutcome::Done(())
                } else {
                    PollOutcome::Pending
                })
            }
        })
        .activity(&activity)
        .await
    };
    let person = async {
        tokio::time::sleep(10 * SECOND).await;
        activity.notify();
    };
    let (result, ()) = tokio::join!(polling, person);
    result.unwrap();
    // 0, 1, then a wait until 101 that the activity at 10 shortens to one second; then the backoff
    // restarts.
    assert_eq!(*looks.borrow(), [0, 1, 11, 12]);
    drop(policy);
}

#[tokio::test(start_paused = true)]
async fn activity_does_not_shorten_a_retry_after() {
    let activity = Activity::new();
    let start = tokio::time::Instant::now();
    let policy = plain(1);
    let asking = async {
        let result = retry(&policy, || async { Err::<(), _>(()) })
            .classify(|()| Failure::throttled().hint(Hint::after(60 * SECOND)))
            .activity(&activity)
            .await;
        (result, start.elapsed())
    };
    let person = async {
        tokio::time::sleep(SECOND).await;
        activity.notify();
    };
    let ((result, elapsed), ()) = tokio::join!(asking, person);
    assert!(result.is_err());
    assert!(elapsed >= 60 * SECOND, "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn tick_delays_count_from_tick_to_tick() {
    let policy = plain(3);
    let mut ticker = Ticker::new(&policy);
    let start = tokio::time::Instant::now();
    let mut times = Vec::new();
    while let Some(tick) = ticker.tick().await {
        times.push(start.elapsed().as_secs());
        if tick == 2 {
            tokio::time::sleep(5 * SECOND).await;
        }
    }
    // Delays of 1, 2 and 4 s from tick to tick. The work after the second tick takes 5 s, so the
    // third tick is late and comes immediately.
    assert_eq!(times, [0, 1, 6, 10]);
    assert_eq!(ticker.tick().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_tick_is_not_lost_when_the_wait_is_dropped() {
    let policy = plain(3);
    let mut ticker = Ticker::new(&policy);
    assert_eq!(ticker.tick().await, Some(1));
    let start = tokio::time::Instant::now();
    for _ in 0..5 {
        let dropped = tokio::time::timeout(SECOND / 10, ticker.tick()).await;
        assert!(dropped.is_err());
    }
    assert_eq!(ticker.tick().await, Some(2));
    assert_eq!(start.elapsed(), SECOND);
}

#[test]
fn the_future_is_small() {
    async fn operation() -> Result<u64, u64> {
        Ok(1)
    }
    // One type for all calls: it has space for a destination, and keeps the last outcome.
    let size = size_of_val(&retry(Policy::STANDARD, operation));
    assert!(size <= 216, "{size}");
}

/// Some combinators poll a completed future again: it must not panic or loop.
#[test]
fn cancelled_futures_stay_cancelled() {
    let policy = plain(3);
    let future = retry(&policy, pending::<Result<(), ()>>).cancel_on(std::future::ready(()));
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        assert!(matches!(
            future.as_mut().poll(&mut context),
            Poll::Ready(Err(_))
        ));
    }
}

/// A limit that is never reached takes no virtual time; a reached limit takes exactly its length.
#[tokio::test]
async fn a_virtual_clock_advances_only_during_waits() {
    let policy = plain(1)
        .into_builder()
        .attempt_timeout(5 * SECOND)
        .build()
        .unwrap();
    let clock = VirtualClock::new();
    retry(&policy, || async { Ok::<_, ()>(()) })
        .clock(clock.clone())
        .await
        .unwrap();
    assert_eq!(clock.elapsed(), Duration::ZERO);
    let _ = retry(&policy, pending::<Result<(), ()>>)
        .clock(clock.clone())
        .await;
    assert_eq!(clock.sleeps(), [5 * SECOND, SECOND, 5 * SECOND]);
}

/// A completed future that is polled again, as in a `select!` loop without `fuse`, must not run the
/// operation again: that could be a duplicate charge.
#[test]
fn a_finished_future_does_not_run_the_operation_again() {
    let calls = AtomicU32::new(0);
    for result in [Ok(1), Err("no")] {
        calls.store(0, Ordering::Relaxed);
        let policy = plain(0);
        let future = retry(&policy, || {
            calls.fetch_add(1, Ordering::Relaxed);
            async { result }
        });
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        assert!(future.as_mut().poll(&mut context).is_ready());
        assert!(future.as_mut().poll(&mut context).is_pending());
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}
