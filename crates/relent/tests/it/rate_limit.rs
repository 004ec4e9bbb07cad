//! The rate limit of a destination, in every retry loop.

use std::cell::RefCell;
use std::future::pending;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use relent::policy::{CircuitBreakerConfig, HedgeConfig, RateLimitConfig};
use relent::{
    Backoff, Destination, Failure, Policy, StopReason, VirtualClock, blocking, retry, retry_mut,
};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

/// Ten attempts per second, burst 1.
fn ten() -> RateLimitConfig {
    RateLimitConfig {
        burst: Some(1),
        ..RateLimitConfig::new(10.0)
    }
}

fn policy() -> Policy {
    let policy = Policy::builder(Backoff::constant(SECOND / 100));
    policy.rate_limit(ten()).build().unwrap()
}

/// The same policy with a circuit breaker.
fn gated() -> Policy {
    let policy = policy().into_builder();
    policy
        .circuit_breaker(CircuitBreakerConfig::DEFAULT)
        .build()
        .unwrap()
}

/// The times of attempts, in milliseconds.
struct Times(Instant, RefCell<Vec<u128>>);

impl Times {
    fn new() -> Self {
        Self(Instant::now(), RefCell::default())
    }

    fn note(&self) {
        self.1.borrow_mut().push(self.0.elapsed().as_millis());
    }

    /// Timers are up to a millisecond late.
    fn tenths(&self) -> Vec<u128> {
        self.1.borrow().iter().map(|millis| millis / 100).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_and_retries_follow_the_rate_limit_in_order_of_arrival() {
    let (policy, times) = (policy(), Times::new());
    let there = Destination::new(&policy);
    let order = RefCell::new(Vec::new());
    let all = (0..5).map(|number| {
        let (times, order, mut attempt) = (&times, &order, 0);
        let call = move || {
            times.note();
            order.borrow_mut().push(number);
            attempt += 1;
            let failed = number == 0 && attempt == 1;
            async move { if failed { Err("once more") } else { Ok(()) } }
        };
        retry(&policy, call).destination(&there)
    });
    for result in futures_util::future::join_all(all).await {
        result.unwrap();
    }
    assert_eq!(times.tenths(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(*order.borrow(), [0, 1, 2, 3, 4, 0]);
    assert_eq!(there.held_by_rate_limit(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_whose_slot_is_too_late_gets_retry_later_immediately() {
    let policy = policy()
        .into_builder()
        .deadline(SECOND / 4)
        .build()
        .unwrap();
    let there = Destination::new(&policy);
    let began = Instant::now();
    let all = (0..5).map(|_| {
        let call = retry(&policy, || async { Ok::<_, ()>(()) }).destination(&there);
        async move { (call.await, began.elapsed()) }
    });
    let ended = futures_util::future::join_all(all).await;
    assert!(ended[..3].iter().all(|(result, _)| result.is_ok()));
    for (result, elapsed) in &ended[3..] {
        let gave_up = result.as_ref().unwrap_err();
        assert_eq!(gave_up.reason(), StopReason::RetryLater);
        assert_eq!((gave_up.attempts(), *elapsed), (0, Duration::ZERO));
        assert!(gave_up.retry_at().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn the_rate_limit_holds_no_call_longer_than_max_hint() {
    let policy = policy().into_builder().max_hint(SECOND / 4);
    let policy = policy.build().unwrap();
    let there = Destination::new(&policy);
    let all = (0..5).map(|_| retry(&policy, || async { Ok::<_, ()>(()) }).destination(&there));
    let ended = futures_util::future::join_all(all).await;
    let served = ended.iter().filter(|result| result.is_ok()).count();
    assert_eq!((served, there.held_by_rate_limit()), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn the_slot_of_a_dropped_caller_goes_to_the_next() {
    let (policy, times) = (policy(), Times::new());
    let there = Destination::new(&policy);
    let ask = || {
        let call = || async {
            times.note();
            Ok::<_, ()>(())
        };
        Box::pin(retry(&policy, call).destination(&there))
    };
    ask().await.unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let (mut gone, stays) = (ask(), ask());
    assert!(gone.as_mut().poll(&mut context).is_pending());
    let leaving = async {
        sleep(SECOND / 20).await;
        drop(gone);
    };
    let (result, ()) = futures_util::future::join(stays, leaving).await;
    result.unwrap();
    assert_eq!(times.tenths(), [0, 1]);
    assert_eq!(there.held_by_rate_limit(), 0);
}

/// A future may be kept without being polled: in a `select!`, or in a list behind others.
#[tokio::test(start_paused = true)]
async fn an_unpolled_waiter_does_not_block_others_at_its_slot() {
    let policy = policy();
    let there = Destination::new(&policy);
    let ask = || retry(&policy, || async { Ok::<_, ()>(()) }).destination(&there);
    ask().await.unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut idle = Box::pin(ask());
    assert!(idle.as_mut().poll(&mut context).is_pending());
    let began = Instant::now();
    ask().await.unwrap();
    // Its own slot is at 200 ms. Then it notices that the caller before it has not been served.
    assert!(began.elapsed() < 310 * MILLI, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_session_dropped_before_its_attempt_returns_its_slot() {
    let policy = policy();
    let there = Destination::new(&policy);
    {
        let mut driver = relent::driver::Driver::builder(&policy, relent::clock::TokioClock)
            .destination(&there)
            .start();
        let _ = driver.entered().await.unwrap();
    }
    let began = Instant::now();
    let answer = retry(&policy, || async { Ok::<_, ()>(1) }).destination(&there);
    assert_eq!(answer.await.unwrap(), 1);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_borrowing_and_hedged_loops_follow_the_rate_limit() {
    let policy = policy();
    let there = Destination::new(&policy);
    let began = Instant::now();
    let answer = retry_mut(&policy, async |_| Ok::<_, ()>(1)).destination(&there);
    answer.run().await.unwrap();
    let answer = retry_mut(&policy, async |_| Ok::<_, ()>(1)).destination(&there);
    answer.run().await.unwrap();
    assert_eq!(began.elapsed().as_millis() / 10, 10);
    let hedge = HedgeConfig::after(SECOND);
    let policy = policy.into_builder().hedge(hedge).build().unwrap();
    let answer = retry(&policy, || async { Ok::<_, ()>(1) });
    answer.destination(&there).await.unwrap();
    assert_eq!(began.elapsed().as_millis() / 10, 20);
}

#[tokio::test(start_paused = true)]
async fn a_hedge_starts_only_if_the_rate_limit_has_a_free_slot() {
    for (after, attempts) in [(SECOND / 20, 1), (SECOND / 5, 2)] {
        let policy = policy().into_builder().hedge(HedgeConfig::after(after));
        let policy = policy.build().unwrap();
        let there = Destination::new(&policy);
        let mut count = 0;
        let slow = retry(&policy, || {
            count += 1;
            async {
                sleep(SECOND).await;
                Ok::<_, ()>(())
            }
        });
        slow.destination(&there).await.unwrap();
        assert_eq!(count, attempts);
    }
}

#[test]
fn the_blocking_loop_follows_the_rate_limit() {
    let (policy, clock) = (policy(), VirtualClock::new());
    let there = Destination::new(&policy);
    for tenth in 0..5 {
        let answer = blocking::retry(&policy, || Ok::<_, ()>(clock.elapsed()));
        let at = answer.destination(&there).clock(&clock).run().unwrap();
        assert_eq!(at, tenth * SECOND / 10);
    }
}

/// Turning retries off does not change the rate limit.
#[tokio::test(start_paused = true)]
async fn turning_retries_off_keeps_the_rate_limit() {
    let off = policy().without_retries();
    let (there, times) = (Destination::new(&off), Times::new());
    for _ in 0..3 {
        let call = || async {
            times.note();
            Err::<(), _>("down")
        };
        let gave_up = retry(&off, call).destination(&there).await.unwrap_err();
        assert_eq!(gave_up.attempts(), 1);
    }
    assert_eq!(times.tenths(), [0, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn an_adaptive_rate_drops_after_throttling_and_recovers() {
    let policy = Policy::builder(Backoff::None)
        .max_retries(0)
        .rate_limit(RateLimitConfig::ADAPTIVE)
        .build()
        .unwrap();
    let there = Destination::new(&policy);
    let once = |throttled: bool| {
        let call = move || async move {
            match throttled {
                true => Err(Failure::throttled()),
                false => Ok(()),
            }
        };
        retry(&policy, call)
            .classify(|failure: &Failure| *failure)
            .destination(&there)
    };
    for _ in 0..100 {
        once(false).await.unwrap();
        sleep(10 * MILLI).await;
    }
    once(true).await.unwrap_err();
    // The number of calls per second, one after the other.
    let count = |seconds: u32| {
        let once = &once;
        async move {
            let (began, mut count) = (Instant::now(), 0);
            while began.elapsed() < seconds * SECOND {
                once(false).await.unwrap();
                count += 1;
            }
            count / seconds
        }
    };
    let soon = count(1).await;
    assert!((60..90).contains(&soon), "{soon}");
    sleep(20 * SECOND).await;
    let later = count(1).await;
    assert!(later > 150, "{later}");
}

/// Requests that the circuit breaker releases go before others, but not above the rate.
#[tokio::test(start_paused = true)]
async fn requests_released_by_the_breaker_follow_the_rate_limit() {
    // Callers without a deadline do not wait that long.
    let policy = gated()
        .into_builder()
        .deadline(60 * SECOND)
        .build()
        .unwrap();
    let there = Destination::new(&policy);
    let (began, times) = (Instant::now(), Times::new());
    let all = (0..60).map(|_| {
        let call = || async {
            times.note();
            if began.elapsed() < 8 * SECOND {
                Err("down")
            } else {
                Ok(())
            }
        };
        retry(&policy, call).destination(&there)
    });
    let results = futures_util::future::join_all(all).await;
    assert!(results.iter().filter(|result| result.is_ok()).count() > 30);
    let times = times.1.borrow();
    for pair in times.windows(2) {
        // Timers are up to a millisecond late.
        assert!(pair[1] - pair[0] >= 98, "{pair:?}");
    }
    assert_eq!(
        (there.held_by_rate_limit(), there.queued_while_down()),
        (0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn dropped_requests_behind_breaker_and_rate_limit_leave_nothing_behind() {
    let policy = gated();
    let there = Destination::new(&policy);
    let all = (0..40).map(|_| {
        let call = retry(&policy, pending::<Result<(), ()>>);
        let mut call = Box::pin(call.destination(&there));
        let mut context = Context::from_waker(Waker::noop());
        assert!(call.as_mut().poll(&mut context).is_pending());
        call
    });
    let all: Vec<_> = all.collect();
    assert_eq!(there.held_by_rate_limit(), 39);
    drop(all);
    assert_eq!(
        (there.held_by_rate_limit(), there.queued_while_down()),
        (0, 0)
    );
    let mut answer = pin!(retry(&policy, || async { Ok::<_, ()>(()) }).destination(&there));
    answer.as_mut().await.unwrap();
}
