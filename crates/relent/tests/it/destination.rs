//! The shared state of a destination, circuit breaker and cooldown, in every retry loop.

use std::cell::Cell;
use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use relent::clock::Clock;
use relent::destination::AttemptOutcome;
use relent::driver::{Driver, NextStep};
use relent::failure::{Audience, Cause, Network};
use relent::hook::{Queued, QueuedBy};
use relent::policy::{BudgetConfig, Pattern, RateLimitConfig, Rule, ThrottleConfig};
use relent::{
    Backoff, Destination, Failure, Hint, Policy, PollOutcome, StopReason, VirtualClock, blocking,
    poll_until, retry, retry_mut,
};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

fn policy() -> Policy {
    Policy::STANDARD.clone()
}

/// For callers that wait longer than a call without a deadline.
fn patient() -> Policy {
    policy()
        .into_builder()
        .deadline(60 * SECOND)
        .build()
        .unwrap()
}

/// Fails until the circuit breaker is down: from then on only probes are sent.
async fn trip_breaker(there: &Destination) {
    let once = policy().into_builder().max_retries(0).build().unwrap();
    while !there.is_down() {
        let down = retry(&once, || async { Err::<(), _>("down") });
        down.destination(there).await.unwrap_err();
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn requests_during_an_outage_are_queued_and_served_after_recovery() {
    let there = Destination::new(policy());
    trip_breaker(&there).await;
    let (up_at, attempts) = (Instant::now() + 10 * SECOND, AtomicU32::new(0));
    let call = || async {
        attempts.fetch_add(1, Ordering::Relaxed);
        if Instant::now() < up_at {
            Err("down")
        } else {
            Ok(())
        }
    };
    let policy = patient();
    let all =
        futures_util::future::join_all((0..50).map(|_| retry(&policy, call).destination(&there)));
    let began = Instant::now();
    for result in all.await {
        result.unwrap();
    }
    // One probe at a time, 0.5, 1.25, … s after going down; fifty successes; and nothing else.
    let attempts = attempts.load(Ordering::Relaxed);
    assert!((51..=60).contains(&attempts), "{attempts}");
    assert!(began.elapsed() >= 10 * SECOND && began.elapsed() <= 40 * SECOND);
    assert_eq!(there.queued_while_down(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_probe_uses_up_no_retry_of_the_policy_and_of_a_rule() {
    let rule = Rule {
        max_retries: Some(1),
        backoff: Some(Backoff::constant(SECOND / 10)),
        ..Rule::on([Pattern::Status(500, 500)])
    };
    for ruled in [false, true] {
        let there = Destination::new(policy());
        trip_breaker(&there).await;
        let policy = patient().into_builder().max_retries(1);
        let policy = match ruled {
            true => policy.max_retries(9).rule(rule.clone()),
            false => policy,
        };
        let policy = policy.build().unwrap();
        let attempts = AtomicU32::new(0);
        let call = || async {
            attempts.fetch_add(1, Ordering::Relaxed);
            Err::<(), _>("down")
        };
        let failure = |_: &&str| Failure::ambiguous().cause(Cause::Status(500));
        let call = retry(&policy, call).classify(failure).destination(&there);
        let reason = call.await.unwrap_err().reason();
        assert_ne!(reason, StopReason::RetriesExhausted, "ruled: {ruled}");
        assert!(attempts.into_inner() > 3, "ruled: {ruled}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_queued_request_leaves_nothing_behind() {
    let (there, policy) = (Destination::new(policy()), policy());
    trip_breaker(&there).await;
    let mut context = Context::from_waker(Waker::noop());
    {
        let mut first = pin!(retry(&policy, || async { Ok::<_, ()>(1) }).destination(&there));
        let mut second = pin!(retry(&policy, || async { Ok::<_, ()>(2) }).destination(&there));
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        assert_eq!(there.queued_while_down(), 2);
    }
    assert_eq!(there.queued_while_down(), 0);
    // A dropped probe leaves nothing behind, either.
    {
        let mut probe = pin!(retry(&policy, pending::<Result<(), ()>>).destination(&there));
        assert!(probe.as_mut().poll(&mut context).is_pending());
        sleep(SECOND).await;
        assert!(probe.as_mut().poll(&mut context).is_pending());
        assert_eq!(there.queued_while_down(), 0, "it is out");
    }
    let answer = retry(&policy, || async { Ok::<_, ()>(3) }).destination(&there);
    assert_eq!(answer.await.unwrap(), 3);
}

/// The leader, which owns the timer, is dropped: another waiter takes over.
#[tokio::test(start_paused = true)]
async fn when_the_leader_is_dropped_another_waiter_takes_its_timer() {
    let (there, policy) = (Destination::new(policy()), policy());
    trip_breaker(&there).await;
    let second = {
        let mut context = Context::from_waker(Waker::noop());
        let mut first = pin!(retry(&policy, || async { Ok::<_, ()>(1) }).destination(&there));
        assert!(first.as_mut().poll(&mut context).is_pending());
        let mut second = Box::pin(retry(&policy, || async { Ok::<_, ()>(2) }).destination(&there));
        let waiting = tokio::time::timeout(Duration::from_millis(1), &mut second);
        waiting.await.unwrap_err();
        second
    };
    assert_eq!(second.await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_endless_outage_ends_waits_at_the_max_queue_time() {
    let there = Destination::new(policy());
    trip_breaker(&there).await;
    // Their deadline exceeds the breaker's maximum queue time, and some of them are unsuccessful
    // probes.
    let policy = policy()
        .into_builder()
        .deadline(600 * SECOND)
        .build()
        .unwrap();
    let began = Instant::now();
    let parked =
        (0..40).map(|_| retry(&policy, || async { Err::<(), _>("down") }).destination(&there));
    for result in futures_util::future::join_all(parked).await {
        let reason = result.unwrap_err().reason();
        assert!(
            matches!(
                reason,
                StopReason::CircuitBreaker | StopReason::RetriesExhausted
            ),
            "{reason}"
        );
    }
    // A probe that fails at the last moment waits for its retry and is not queued again: at most
    // the seventh delay, of up to 100 ms · 2⁶.
    let most = 301 * SECOND + 64 * SECOND / 10;
    assert!(began.elapsed() <= most, "{:?}", began.elapsed());
    assert_eq!(there.queued_while_down(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_queued_request_makes_one_late_attempt_and_keeps_its_deadline() {
    let there = Destination::new(policy());
    trip_breaker(&there).await;
    let hurried = policy()
        .into_builder()
        .deadline(SECOND / 4)
        .build()
        .unwrap();
    let began = Instant::now();
    let gave_up = retry(&hurried, || async {
        // After three quarters of its time.
        assert_eq!(began.elapsed().as_millis(), 188);
        std::future::pending::<Result<(), ()>>().await
    })
    .destination(&there)
    .await
    .unwrap_err();
    assert_eq!(
        (gave_up.reason(), gave_up.attempts()),
        (StopReason::Deadline, 1)
    );
    assert!(gave_up.error().is_none());
    assert!(began.elapsed() <= SECOND / 4 + Duration::from_millis(1));
}

#[tokio::test(start_paused = true)]
async fn a_shared_hint_delays_all_callers_and_a_ticket_only_its_own() {
    let policy = policy();
    let refuse = |audience| {
        move || async move {
            let hint = Hint::after(4 * SECOND).for_audience(audience);
            Err::<(), _>(Failure::throttled().hint(hint))
        }
    };
    for (audience, least, most) in [
        (Audience::Shared, 4 * SECOND, 8 * SECOND),
        (Audience::TicketSeconds, Duration::ZERO, Duration::ZERO),
    ] {
        let there = Destination::new(&policy);
        let refused = retry(&policy, refuse(audience))
            .classify(|failure| *failure)
            .destination(&there);
        let _ = tokio::time::timeout(SECOND / 100, refused).await;
        let began = Instant::now();
        let other = retry(&policy, || async { Ok::<_, ()>(()) }).destination(&there);
        other.await.unwrap();
        let waited = began.elapsed();
        assert!(
            waited + SECOND / 50 >= least && waited <= most,
            "{audience:?}: {waited:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_beyond_the_deadline_returns_when_to_retry() {
    let there = Destination::new(policy());
    let policy = policy()
        .into_builder()
        .deadline(2 * SECOND)
        .build()
        .unwrap();
    let hint = Failure::throttled().hint(Hint::after(60 * SECOND));
    let refused = retry(&policy, || async { Err::<(), _>(hint) });
    let first = refused
        .classify(|failure| *failure)
        .destination(&there)
        .await
        .unwrap_err();
    assert_eq!(first.reason(), StopReason::RetryLater);
    let second = retry(&policy, || async { Ok::<_, ()>(()) }).destination(&there);
    let second = second.await.unwrap_err();
    assert_eq!(
        (second.reason(), second.attempts()),
        (StopReason::RetryLater, 0)
    );
    assert!(second.retry_at().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_borrowing_loop_is_queued_and_can_be_cancelled_meanwhile() {
    let (there, policy) = (Destination::new(policy()), policy());
    trip_breaker(&there).await;
    let mut attempts = 0;
    let cancelled = retry_mut(&policy, async |_| {
        attempts += 1;
        Ok::<_, ()>(())
    })
    .destination(&there)
    .cancel_on(sleep(SECOND / 10))
    .run()
    .await
    .unwrap_err();
    assert_eq!((cancelled.reason(), attempts), (StopReason::Cancelled, 0));
    assert_eq!(there.queued_while_down(), 0);
    let answer = retry_mut(&policy, async |_| Ok::<_, ()>(7)).destination(&there);
    assert_eq!(answer.run().await.unwrap(), 7);
}

#[test]
fn the_blocking_loop_is_queued_by_the_circuit_breaker() {
    let (there, policy, clock) = (Destination::new(policy()), patient(), VirtualClock::new());
    let up_at = 10 * SECOND;
    let attempts = Cell::new(0);
    let once = policy
        .clone()
        .into_builder()
        .max_retries(0)
        .build()
        .unwrap();
    while !there.is_down() {
        let down = blocking::retry(&once, || Err::<(), _>("down"));
        down.destination(&there).clock(&clock).run().unwrap_err();
        clock.advance(Duration::from_millis(10));
    }
    let answer = blocking::retry(&policy, || {
        attempts.set(attempts.get() + 1);
        if clock.elapsed() < up_at {
            Err("down")
        } else {
            Ok(9)
        }
    });
    assert_eq!(answer.destination(&there).clock(&clock).run().unwrap(), 9);
    assert!(attempts.get() <= 8, "{}", attempts.get());
}

#[test]
fn adaptive_throttling_rejects_before_the_first_attempt() {
    let once = || {
        let policy = Policy::builder(Backoff::None).max_retries(0);
        policy.throttle(ThrottleConfig::DEFAULT)
    };
    let circuit_breaker = relent::policy::CircuitBreakerConfig::DEFAULT;
    for policy in [
        once().build().unwrap(),
        once().circuit_breaker(circuit_breaker).build().unwrap(),
    ] {
        let clock = VirtualClock::new();
        let there = Destination::new(&policy);
        let reasons: Vec<_> = (0..200)
            .map(|_| {
                // Rejections, not an outage: those would bring down the circuit breaker.
                blocking::retry(&policy, || Err::<(), _>(Failure::throttled()))
                    .classify(|failure| *failure)
                    .destination(&there)
                    .clock(&clock)
                    .run()
                    .unwrap_err()
            })
            .collect();
        let refused = reasons.iter().filter(|gave_up| gave_up.attempts() == 0);
        let refused: Vec<_> = refused.collect();
        assert!(refused.len() > 100, "{}", refused.len());
        let reason = |gave_up: &&relent::GaveUp<_>| gave_up.reason() == StopReason::Throttle;
        assert!(refused.iter().all(reason));
    }
}

#[tokio::test(start_paused = true)]
async fn a_pending_poll_does_not_count_against_the_destination() {
    let (there, began) = (
        Destination::new(policy().into_builder().no_budget().build().unwrap()),
        Instant::now(),
    );
    let policy = Policy::builder(Backoff::constant(SECOND / 100))
        .circuit_breaker(relent::policy::CircuitBreakerConfig::DEFAULT)
        .unlimited_retries()
        .build()
        .unwrap();
    let done = poll_until(&policy, || async {
        Ok::<_, ()>(match began.elapsed() > 3 * SECOND {
            true => PollOutcome::Done(()),
            false => PollOutcome::Pending,
        })
    });
    done.destination(&there).await.unwrap();
    assert!(!there.is_down());
}

#[tokio::test(start_paused = true)]
async fn a_destination_without_a_breaker_completes_in_one_poll() {
    let plain = policy()
        .into_builder()
        .no_circuit_breaker()
        .no_budget()
        .build()
        .unwrap();
    let there = Destination::new(&plain);
    let answer = retry(&plain, || async { Ok::<_, ()>(1) }).destination(&there);
    let mut answer = pin!(answer);
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(
        answer.as_mut().poll(&mut context),
        Poll::Ready(Ok(1))
    ));
}

/// Counts how often it is read. Its time does not advance.
struct Counted(relent::clock::Instant, Cell<u32>);

impl Clock for &Counted {
    type Sleep = ();

    fn now(&self) -> relent::clock::Instant {
        self.1.set(self.1.get() + 1);
        self.0
    }
}

#[test]
fn a_success_reads_the_clock_once_and_with_a_breaker_twice() {
    let budget_alone = Policy::builder(Backoff::exponential(SECOND))
        .budget(BudgetConfig::DEFAULT)
        .build()
        .unwrap();
    let began = relent::clock::Instant::ORIGIN;
    let reads = |policy: &Policy, there: &Destination, now| {
        let clock = Counted(now, Cell::new(0));
        let mut driver = Driver::builder(policy, &clock).destination(there).start();
        let permit = driver.enter(None).permit();
        let may_start = permit.is_some();
        if let Some(permit) = permit {
            driver.on_attempt(permit);
            driver.on_success();
        }
        drop(driver);
        (may_start, clock.1.get())
    };
    let there = Destination::new(&budget_alone);
    assert_eq!(reads(&budget_alone, &there, began), (true, 1));
    // The latencies of successes are the breaker's baseline for overload.
    let gated = Destination::new(policy());
    assert_eq!(reads(&policy(), &gated, began), (true, 2));

    // One caller notices the end of a cooldown for all.
    let refused = Failure::throttled().hint(Hint::after(SECOND));
    let refused = AttemptOutcome::of(&refused);
    there.cooldown().on_end(began, &refused, SECOND);
    assert_eq!(reads(&budget_alone, &there, began), (false, 1));
    let over = began.saturating_add(SECOND);
    assert_eq!(reads(&budget_alone, &there, over), (true, 1));
    assert_eq!(reads(&budget_alone, &there, over), (true, 1));
}

/// A waiter is woken outside the lock: the waker and its destructor may call the destination.
#[test]
fn a_waker_that_calls_the_destination_does_not_deadlock() {
    struct ReentrantWaker {
        there: std::sync::Arc<Destination>,
        woken: std::sync::atomic::AtomicBool,
    }
    impl std::task::Wake for ReentrantWaker {
        fn wake(self: std::sync::Arc<Self>) {
            self.woken.store(true, Ordering::Relaxed);
            // Queries the destination, and creates and drops a waiter.
            let _ = (self.there.queued_while_down(), self.there.is_down());
            let mut driver = Driver::builder(Policy::STANDARD, relent::clock::StdClock)
                .destination(&self.there)
                .start();
            let _ = driver.enter(None);
        }
    }
    impl Drop for ReentrantWaker {
        fn drop(&mut self) {
            let _ = self.there.queued_while_down();
        }
    }
    let policy = Policy::builder(Backoff::None)
        .rate_limit(relent::policy::RateLimitConfig {
            burst: Some(1),
            ..relent::policy::RateLimitConfig::new(1.0)
        })
        .build()
        .unwrap();
    let there = std::sync::Arc::new(Destination::new(&policy));
    let clock = VirtualClock::new();
    let driver = || Driver::builder(&policy, &clock).destination(&there).start();
    let mut first = driver();
    assert!(matches!(first.enter(None), NextStep::Start(_)));
    let waker = || {
        let comes = std::sync::Arc::new(ReentrantWaker {
            there: there.clone(),
            woken: false.into(),
        });
        (comes.clone(), Waker::from(comes))
    };
    let (mut second, (_, waker_2)) = (driver(), waker());
    assert!(matches!(
        second.enter(Some(&waker_2)),
        NextStep::Wait { .. }
    ));
    let (mut third, (comes, waker_3)) = (driver(), waker());
    assert!(matches!(third.enter(Some(&waker_3)), NextStep::Wait { .. }));
    // Each asks again with another waker; the destination drops the previous one.
    let (_, other) = waker();
    drop(waker_2);
    assert!(matches!(second.enter(Some(&other)), NextStep::Wait { .. }));
    drop(second);
    assert!(comes.woken.load(Ordering::Relaxed), "it has the timer now");
}

/// A call whose first attempt succeeds.
fn asking<'d>(
    policy: &'d Policy,
    there: &'d Destination,
) -> std::pin::Pin<Box<dyn Future<Output = Result<(), relent::GaveUp<()>>> + 'd>> {
    let call = retry(policy, || async { Ok(()) });
    Box::pin(call.destination(there))
}

/// The leader is in a `select!` that is not polled, or on a suspended runtime.
#[tokio::test(start_paused = true)]
async fn a_leader_that_is_not_polled_does_not_block_other_waiters() {
    let (there, policy) = (Destination::new(policy()), policy());
    trip_breaker(&there).await;
    let ask = || asking(&policy, &there);
    let mut asleep = ask();
    let mut context = Context::from_waker(Waker::noop());
    assert!(asleep.as_mut().poll(&mut context).is_pending());
    let began = Instant::now();
    for result in futures_util::future::join_all((0..20).map(|_| ask())).await {
        result.unwrap();
    }
    // The maximum queue time is 300 s; a probe is due within a second.
    assert!(began.elapsed() < 30 * SECOND, "{:?}", began.elapsed());
}

/// A woken future may be dropped before it is polled.
#[tokio::test(start_paused = true)]
async fn a_woken_waiter_dropped_unpolled_does_not_block_others() {
    let (there, policy) = (Destination::new(policy()), policy());
    trip_breaker(&there).await;
    let ask = || asking(&policy, &there);
    let mut context = Context::from_waker(Waker::noop());
    let mut leaving: Vec<_> = (0..3).map(|_| ask()).collect();
    for one in &mut leaving {
        assert!(one.as_mut().poll(&mut context).is_pending());
    }
    let mut last = ask();
    let began = Instant::now();
    let _ = tokio::time::timeout(Duration::from_millis(1), &mut last).await;
    // Each of them passes the timer to the next, which is never polled.
    leaving.clear();
    last.await.unwrap();
    assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
}

/// A cooldown also delays callers that were already held back or queued when it began.
#[tokio::test(start_paused = true)]
async fn a_cooldown_also_delays_requests_that_already_wait() {
    let rate = relent::policy::RateLimitConfig {
        burst: Some(1),
        ..relent::policy::RateLimitConfig::new(10.0)
    };
    let policy = Policy::builder(Backoff::None)
        .max_retries(0)
        .rate_limit(rate)
        .build()
        .unwrap();
    let there = Destination::new(&policy);
    let began = Instant::now();
    let times = std::cell::RefCell::new(Vec::new());
    let all = (0..100).map(|number| {
        let times = &times;
        let call = move || async move {
            times.borrow_mut().push(began.elapsed());
            match number {
                0 => Err(Failure::throttled().hint(Hint::after(60 * SECOND))),
                _ => Ok(()),
            }
        };
        retry(&policy, call)
            .classify(|failure: &Failure| *failure)
            .destination(&there)
    });
    let results = futures_util::future::join_all(all).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 99);
    let times = times.borrow();
    let early = times[1..].iter().filter(|at| **at < 60 * SECOND).count();
    assert_eq!(early, 0, "{times:?}");
}

/// A waiting thread is woken and does not poll.
#[test]
fn a_blocked_thread_is_woken_when_the_caller_before_it_is_dropped() {
    let policy = Policy::builder(Backoff::None)
        .rate_limit(relent::policy::RateLimitConfig {
            burst: Some(1),
            // One slot per day.
            ..relent::policy::RateLimitConfig::new(0.000_02)
        })
        .max_hint(Duration::from_secs(1_000_000))
        .build()
        .unwrap();
    let there = Destination::new(&policy);
    let mut first = Driver::builder(&policy, relent::clock::StdClock)
        .destination(&there)
        .start();
    assert!(matches!(first.enter(None), NextStep::Start(_)));
    let (there, policy) = (&there, &policy);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            let call = blocking::retry(policy, || Ok::<_, ()>(7));
            call.destination(there).run().unwrap()
        });
        while there.held_by_rate_limit() == 0 {
            std::thread::yield_now();
        }
        // Its slot was not used, so the other caller gets it.
        drop(first);
        assert_eq!(waiting.join().unwrap(), 7);
    });
}

#[test]
fn a_cancelled_blocking_session_makes_no_attempt() {
    let policy = Policy::builder(Backoff::None).unlimited_retries().build();
    let cancel = blocking::Cancel::new();
    cancel.cancel();
    let gave_up = blocking::retry(&policy.unwrap(), || Err::<(), _>("down"))
        .clock(&cancel)
        .run()
        .unwrap_err();
    assert_eq!(gave_up.reason(), StopReason::Cancelled);
    assert_eq!((gave_up.attempts(), gave_up.into_error()), (0, None));
}

#[test]
fn a_blocking_session_without_waits_can_be_cancelled() {
    let policy = Policy::builder(Backoff::None).unlimited_retries().build();
    let cancel = blocking::Cancel::new();
    let mut attempts = 0;
    let gave_up = blocking::retry(&policy.unwrap(), || {
        attempts += 1;
        if attempts == 10 {
            cancel.cancel();
        }
        Err::<(), _>("down")
    })
    .clock(&cancel)
    .run()
    .unwrap_err();
    assert_eq!(gave_up.reason(), StopReason::Cancelled);
    assert_eq!(gave_up.attempts(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_queued_notice_names_the_control_and_the_longest_wait() {
    let fails = async || Err::<(), _>(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
    let there = Destination::new(Policy::STANDARD);
    trip_breaker(&there).await;
    let began = Instant::now();
    let (mut lines, mut queued) = (Vec::new(), Vec::new());
    let call = there.retry(fails).notify(|notice| {
        lines.push(notice.to_string());
        if let Some(told) = notice.queued {
            assert_eq!(Some(notice.wait), told.at_most);
            assert!(notice.failure.is_none() && notice.error.is_none());
            queued.push((told, began.elapsed()));
        }
    });
    call.await.unwrap_err();
    let took = began.elapsed();
    assert!(!queued.is_empty(), "{lines:?}");
    for (told, at) in &queued {
        assert_eq!(told.by, QueuedBy::CircuitBreaker, "{lines:?}");
        let limit = told.at_most.unwrap();
        assert!(
            *at + limit >= took && *at + limit <= 10 * SECOND,
            "{told:?}"
        );
    }
    let first = "attempt 1 is held by the circuit breaker for at most 9s";
    assert_eq!(lines[0], first);
}

/// The first response of the destination lets a call without a deadline wait for 30 s instead of 9 s.
#[tokio::test(start_paused = true)]
async fn a_queued_call_is_notified_again_if_it_may_wait_longer() {
    let there = Destination::new(Policy::STANDARD);
    let began = Instant::now();
    let call = |number: u32| {
        let there = &there;
        async move {
            let fails = || async move {
                Err::<(), _>(match began.elapsed() < 3 * SECOND {
                    true => Failure::network(Network::Connect),
                    false => Failure::ambiguous().cause(Cause::Status(503)),
                })
            };
            let mut latest = Duration::ZERO;
            let call = retry(Policy::STANDARD, fails).classify(|failure| *failure);
            let call = call.destination(there).notify(|notice| {
                latest = began.elapsed() + notice.wait;
            });
            call.await.unwrap_err();
            let took = began.elapsed();
            assert!(
                took > 9 * SECOND && took <= latest,
                "{number}: {took:?}, {latest:?}"
            );
        }
    };
    tokio::join!(call(1), call(2), call(3));
}

#[tokio::test(start_paused = true)]
async fn each_control_that_queues_a_call_is_named() {
    async fn told(there: &Destination, policy: &Policy) -> Option<Queued> {
        let mut told = None;
        let call = retry(policy, async || Ok::<_, ()>(())).destination(there);
        call.notify(|notice| told = told.or(notice.queued))
            .await
            .unwrap();
        told
    }
    let there = Destination::new(Policy::STANDARD);
    assert_eq!(told(&there, Policy::STANDARD).await, None);
    let there = Destination::new(Policy::STANDARD);
    let hint = Failure::throttled().hint(Hint::after(4 * SECOND));
    let refused = retry(Policy::STANDARD, async || Err::<(), _>(hint)).classify(|failure| *failure);
    let refused = refused.destination(&there);
    let _ = tokio::time::timeout(SECOND / 100, refused).await;
    let by_cooldown = told(&there, Policy::STANDARD).await.unwrap();
    assert_eq!(
        (by_cooldown.attempt, by_cooldown.by),
        (1, QueuedBy::Cooldown)
    );
    let at_most = by_cooldown.at_most.unwrap();
    assert!(
        at_most >= 3 * SECOND && at_most <= 8 * SECOND,
        "{at_most:?}"
    );

    let rate = RateLimitConfig {
        burst: Some(1),
        ..RateLimitConfig::new(2.0)
    };
    let paced = Policy::STANDARD
        .clone()
        .into_builder()
        .rate_limit(rate)
        .build()
        .unwrap();
    let there = Destination::new(&paced);
    assert_eq!(told(&there, &paced).await, None);
    let by_rate = told(&there, &paced).await.unwrap();
    assert_eq!(by_rate.by, QueuedBy::RateLimit);
    assert_eq!(by_rate.at_most, Some(30 * SECOND));

    let empty = BudgetConfig {
        initial_tokens: 0.0,
        ..*Policy::STANDARD.budget().unwrap()
    };
    let empty = Policy::STANDARD
        .clone()
        .into_builder()
        .budget(empty)
        .build()
        .unwrap();
    let there = Destination::new(&empty);
    let mut by = Vec::new();
    let fails = async || Err::<(), _>(Failure::ambiguous().cause(Cause::Status(503)));
    let call = there.retry(fails).classify(|failure| *failure);
    let call = call.notify(|notice| by.extend(notice.queued.map(|queued| queued.by)));
    call.await.unwrap_err();
    assert_eq!(by.first(), Some(&QueuedBy::Budget), "{by:?}");
}

#[tokio::test(start_paused = true)]
async fn the_text_of_a_call_that_waits_for_the_own_rate_limit_does_not_blame_the_server() {
    let policy = Policy::builder(Backoff::None)
        .rate_limit(RateLimitConfig {
            burst: Some(1),
            // One slot per day.
            ..RateLimitConfig::new(0.000_02)
        })
        .build()
        .unwrap();
    let there = Destination::new(&policy);
    let call = || retry(&policy, || async { Ok::<_, &str>(()) }).destination(&there);
    call().await.unwrap();
    let gave_up = call().await.unwrap_err();
    assert_eq!(gave_up.reason(), StopReason::RetryLater);
    assert!(gave_up.retry_at().is_some());
    let text = gave_up.to_string();
    let says = "or the next slot of the rate limit of this process";
    assert!(text.contains(says), "{text}");
}

#[tokio::test(start_paused = true)]
async fn the_text_of_a_call_queued_after_throttling_does_not_say_that_the_destination_is_down() {
    let policy = policy()
        .into_builder()
        .deadline(2 * SECOND)
        .build()
        .unwrap();
    let there = Destination::new(&policy);
    let call = || async {
        let throttled = || async { Err::<(), _>(Failure::throttled()) };
        let call = retry(&policy, throttled).classify(|failure: &Failure| *failure);
        call.destination(&there).await.unwrap_err()
    };
    let mut queued = None;
    for _ in 0..100 {
        let all = futures_util::future::join_all((0..20).map(|_| call())).await;
        let is_queued =
            |gave_up: &relent::GaveUp<_>| gave_up.reason() == StopReason::CircuitBreaker;
        queued = all.into_iter().find(is_queued);
        if queued.is_some() {
            break;
        }
    }
    let queued = queued.unwrap();
    assert!(!there.is_down());
    let text = queued.summary().to_string();
    assert!(text.contains("accepts only some calls"), "{text}");
}
