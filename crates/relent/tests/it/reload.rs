//! Replacing the policy of a destination while it is in use.

use std::cell::Cell;
use std::future::Future;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use relent::clock::{BlockingSleeper, Clock, Sleeper, TokioClock};
use relent::policy::{
    BudgetConfig, CircuitBreakerConfig, HedgeConfig, PolicyBuilder, RateLimitConfig,
};
use relent::{Backoff, Destination, Failure, Jitter, Policy, StopReason, VirtualClock};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

fn policy() -> PolicyBuilder {
    Policy::builder(Backoff::constant(SECOND))
        .jitter(Jitter::None)
        .max_retries(2)
}

fn build(policy: PolicyBuilder) -> Policy {
    policy.build().unwrap()
}

fn gated() -> Policy {
    build(
        policy()
            .max_retries(1000)
            .circuit_breaker(CircuitBreakerConfig::DEFAULT),
    )
}

/// A call whose attempts fail while `is_down`.
fn call(
    there: &Arc<Destination>,
    is_down: &Arc<std::sync::atomic::AtomicBool>,
) -> JoinHandle<bool> {
    let (there, is_down) = (there.clone(), is_down.clone());
    tokio::spawn(async move {
        let answer = there.retry(|| async {
            match is_down.load(std::sync::atomic::Ordering::Relaxed) {
                true => Err("down"),
                false => Ok(()),
            }
        });
        answer.await.is_ok()
    })
}

/// A destination whose circuit breaker is down, with queued calls.
async fn parked() -> (
    Arc<Destination>,
    Arc<std::sync::atomic::AtomicBool>,
    Vec<JoinHandle<bool>>,
) {
    let there = Arc::new(Destination::new(gated()));
    let is_down = Arc::new(true.into());
    let mut calls = Vec::new();
    while there.queued_while_down() < 10 {
        calls.push(call(&there, &is_down));
        sleep(SECOND / 10).await;
    }
    assert!(there.is_down());
    (there, is_down, calls)
}

#[tokio::test(start_paused = true)]
async fn every_form_of_destination_call_uses_its_own_policy() {
    let there = Destination::new(build(policy()));
    let attempts = Cell::new(0);
    let fail = || {
        attempts.set(attempts.get() + 1);
        Err::<(), _>("down")
    };
    let gave_up = there.retry(|| async { fail() }).await.unwrap_err();
    assert_eq!((gave_up.attempts(), gave_up.elapsed()), (3, 2 * SECOND));
    there.retry_with(|_| async { fail() }).await.unwrap_err();
    there.retry_mut(async |_| fail()).run().await.unwrap_err();
    let clock = VirtualClock::new();
    there.blocking(fail).clock(&clock).run().unwrap_err();
    assert_eq!((attempts.get(), clock.elapsed()), (12, 2 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_new_policy_applies_to_later_calls_but_not_to_running_ones() {
    let there = Destination::new(build(policy()));
    let fail = || async { Err::<(), _>("down") };
    let begun = async { there.retry(fail).await.unwrap_err() };
    let later = async {
        sleep(SECOND / 2).await;
        there.set_policy(build(policy().max_retries(5)), &TokioClock);
        assert_eq!(there.policy().max_retries(), Some(5));
        there.retry(fail).await.unwrap_err()
    };
    let (begun, later) = tokio::join!(begun, later);
    assert_eq!((begun.attempts(), later.attempts()), (3, 6));
}

#[tokio::test(start_paused = true)]
async fn retries_can_be_turned_off_and_on_at_run_time() {
    let (there, is_down, calls) = parked().await;
    there.set_policy(gated().without_retries(), &TokioClock);
    // No new call is queued, and the waiting ones are not sent immediately.
    let attempts = Cell::new(0);
    let once = there.retry(|| {
        attempts.set(attempts.get() + 1);
        async { Err::<(), _>("down") }
    });
    let gave_up = once.await.unwrap_err();
    assert_eq!(
        (gave_up.reason(), attempts.get()),
        (StopReason::RetriesExhausted, 1)
    );
    assert!(there.queued_while_down() > 0);
    is_down.store(false, std::sync::atomic::Ordering::Relaxed);
    there.set_policy(gated(), &TokioClock);
    for call in calls {
        assert!(call.await.unwrap());
    }
    assert_eq!(there.queued_while_down(), 0);
}

#[tokio::test(start_paused = true)]
async fn queued_requests_are_released_when_the_breaker_is_removed() {
    let (there, is_down, calls) = parked().await;
    is_down.store(false, std::sync::atomic::Ordering::Relaxed);
    let began = Instant::now();
    there.set_policy(build(policy()), &TokioClock);
    assert_eq!((there.queued_while_down(), there.is_normal()), (0, true));
    for call in calls {
        assert!(call.await.unwrap());
    }
    // Calls in the delay before a retry finish that delay.
    assert!(began.elapsed() <= 2 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn queued_requests_follow_a_newly_set_rate_limit() {
    let (there, is_down, calls) = parked().await;
    is_down.store(false, std::sync::atomic::Ordering::Relaxed);
    let rate = RateLimitConfig {
        burst: Some(1),
        ..RateLimitConfig::new(1.0)
    };
    let (began, waiting) = (Instant::now(), there.queued_while_down());
    there.set_policy(build(policy().rate_limit(rate)), &TokioClock);
    for call in calls {
        assert!(call.await.unwrap());
    }
    let least = SECOND * (waiting as u32 - 1);
    assert!(began.elapsed() >= least, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn requests_held_by_the_rate_limit_follow_a_new_rate() {
    let rate = |limit| RateLimitConfig {
        burst: Some(1),
        ..RateLimitConfig::new(limit)
    };
    for (new, seconds) in [(Some(10.0), 0..2), (None, 0..1), (Some(0.5), 8..12)] {
        let there = Arc::new(Destination::new(build(policy().rate_limit(rate(0.01)))));
        let up = Arc::new(false.into());
        let calls: Vec<_> = (0..6).map(|_| call(&there, &up)).collect();
        sleep(SECOND / 100).await;
        // Callers whose slot would have come too late have given up.
        let queued = there.held_by_rate_limit();
        assert!(queued > 0 && !there.policy().is_off());
        let began = Instant::now();
        let faster = match new {
            Some(limit) => policy().rate_limit(rate(limit)),
            None => policy(),
        };
        there.set_policy(build(faster), &TokioClock);
        let mut answered = 0;
        for call in calls {
            answered += usize::from(call.await.unwrap());
        }
        assert_eq!(answered, queued + 1, "{new:?}");
        let per_call = began.elapsed().as_secs() * 5 / queued as u64;
        assert!(
            seconds.contains(&per_call),
            "{new:?}: {:?}",
            began.elapsed()
        );
    }
}

#[test]
fn a_reloaded_budget_keeps_its_balance_and_uses_the_new_costs() {
    let config = BudgetConfig {
        ratio: 0.0,
        per_second: 0.0,
        initial_tokens: 4.0,
        ..BudgetConfig::DEFAULT
    };
    let with = |budget| build(policy().max_retries(100).budget(budget));
    let clock = VirtualClock::new();
    let there = Destination::new(with(config));
    let attempts = || {
        let failing = there.blocking(|| Err::<(), _>("down")).clock(&clock);
        failing.run().unwrap_err().attempts()
    };
    let dear = BudgetConfig {
        cost: 2.0,
        ..config
    };
    there.set_policy(with(dear), &clock);
    assert_eq!((there.budget().unwrap().balance(), attempts()), (4.0, 3));
    there.set_policy(build(policy().max_retries(9)), &clock);
    assert!(there.budget().is_none());
    assert_eq!(attempts(), 10);
    let small = BudgetConfig {
        initial_tokens: 1.0,
        capacity: 1.0,
        ratio: 1.0,
        ..config
    };
    there.set_policy(with(small), &clock);
    assert_eq!((there.budget().unwrap().balance(), attempts()), (0.0, 2));
}

#[tokio::test(start_paused = true)]
async fn recorded_latencies_survive_a_new_hedge_percentile() {
    let hedged = |share| build(policy().hedge(HedgeConfig::percentile(share)));
    let there = Destination::new(hedged(0.95));
    for _ in 0..400 {
        let quick = there.retry(|| async {
            sleep(SECOND / 100).await;
            Ok::<_, ()>(())
        });
        quick.await.unwrap();
    }
    there.set_policy(hedged(0.9), &TokioClock);
    let delay = there.hedge(&HedgeConfig::percentile(0.9)).unwrap().delay();
    assert!(
        delay.is_some_and(|delay| delay >= SECOND / 100 && delay < SECOND / 80),
        "{delay:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn adaptive_throttling_can_be_turned_on_and_off_at_run_time() {
    let there = Destination::new(build(policy().max_retries(0)));
    let refused = || async {
        let mut refused = 0;
        for _ in 0..200 {
            let failing = there.retry(|| async { Err::<(), _>(Failure::throttled()) });
            let gave_up = failing.classify(|failure| *failure).await.unwrap_err();
            refused += u32::from(gave_up.attempts() == 0);
        }
        refused
    };
    assert_eq!(refused().await, 0);
    let throttled = policy()
        .max_retries(0)
        .throttle(relent::policy::ThrottleConfig::DEFAULT);
    there.set_policy(build(throttled), &TokioClock);
    assert!(refused().await > 100);
    there.set_policy(build(policy().max_retries(0)), &TokioClock);
    assert_eq!(refused().await, 0);
}

/// Any callback of the caller may replace the policy.
#[test]
fn a_policy_may_be_replaced_from_every_callback() {
    struct Reloads<'a>(&'a VirtualClock, &'a Destination);
    impl Clock for Reloads<'_> {
        type Sleep = ();

        fn now(&self) -> relent::clock::Instant {
            self.1.set_policy(gated(), self.0);
            self.0.now()
        }
    }
    impl BlockingSleeper for Reloads<'_> {
        fn block(&self, duration: Duration) -> bool {
            self.1.set_policy(build(policy()), self.0);
            self.0.block(duration)
        }
    }
    let (clock, there) = (VirtualClock::new(), Destination::new(gated()));
    let attempts = Cell::new(0);
    let call = there.blocking(|| {
        there.set_policy(gated().without_retries(), &clock);
        attempts.set(attempts.get() + 1);
        if attempts.get() < 4 {
            Err("down")
        } else {
            Ok(())
        }
    });
    let call = call.classify(|_: &&str| {
        there.set_policy(build(policy()), &clock);
        Failure::ambiguous()
    });
    let call = call.notify(|_| there.set_policy(gated(), &clock));
    assert!(call.clock(Reloads(&clock, &there)).run().is_ok());
    assert_eq!(attempts.get(), 4);
}

#[test]
fn a_waker_and_its_destructor_may_replace_the_policy() {
    struct Reloads(Arc<Destination>);
    impl Wake for Reloads {
        fn wake(self: Arc<Self>) {
            self.0.set_policy(gated(), &Asleep);
        }
    }
    impl Drop for Reloads {
        fn drop(&mut self) {
            self.0.set_policy(build(policy()), &Asleep);
        }
    }
    let rate = RateLimitConfig {
        burst: Some(1),
        ..RateLimitConfig::new(0.1)
    };
    let there = Arc::new(Destination::new(build(policy().rate_limit(rate))));
    let call = || async {
        let call = there.retry(|| async { Ok::<_, &str>(()) });
        call.clock(Asleep).await.is_ok()
    };
    let (mut first, mut second) = (Box::pin(call()), Box::pin(call()));
    let mut ignored = Context::from_waker(Waker::noop());
    assert_eq!(first.as_mut().poll(&mut ignored), Poll::Ready(true));
    let waker = Waker::from(Arc::new(Reloads(there.clone())));
    let waits = second.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(waits.is_pending() && there.held_by_rate_limit() == 1);
    drop(waker);
    // This wakes the waiter, and the policy that its waker sets applies last.
    there.set_policy(build(policy()), &Asleep);
    assert_eq!(second.as_mut().poll(&mut ignored), Poll::Ready(true));
    assert_eq!(
        (there.held_by_rate_limit(), there.queued_while_down()),
        (0, 0)
    );
}

#[test]
fn two_concurrent_policy_changes_leave_one_complete_policy() {
    let rate = RateLimitConfig::new(1e6);
    let full = policy().budget(BudgetConfig::DEFAULT).rate_limit(rate);
    let full = Arc::new(build(full.circuit_breaker(CircuitBreakerConfig::DEFAULT)));
    let bare = Arc::new(build(policy()));
    let (there, clock) = (Destination::new(bare.clone()), VirtualClock::new());
    for _ in 0..2000 {
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            for policy in [&full, &bare] {
                scope.spawn(|| {
                    start.wait();
                    there.set_policy(Arc::clone(policy), &clock);
                });
            }
        });
        let in_force = there.policy();
        assert_eq!(there.budget().is_some(), in_force.budget().is_some());
        // A circuit breaker learns the latency of a success, which takes a second clock read.
        let reads = Counts(&clock, Cell::new(0));
        let call = there.blocking(|| Ok::<_, &str>(())).clock(&reads);
        call.run().unwrap();
        assert_eq!(reads.1.get() > 1, in_force.circuit_breaker().is_some());
    }
}

/// A clock whose time does not advance and whose timers never expire.
struct Asleep;

impl Clock for Asleep {
    type Sleep = std::future::Pending<()>;

    fn now(&self) -> relent::clock::Instant {
        relent::clock::Instant::ORIGIN
    }
}

impl Sleeper for Asleep {
    fn sleep(&self, _: Duration) -> Self::Sleep {
        std::future::pending()
    }
}

/// Counts how often the clock is read.
struct Counts<'a>(&'a VirtualClock, Cell<u32>);

impl Clock for Counts<'_> {
    type Sleep = ();

    fn now(&self) -> relent::clock::Instant {
        self.1.set(self.1.get() + 1);
        self.0.now()
    }
}

impl BlockingSleeper for Counts<'_> {
    fn block(&self, duration: Duration) -> bool {
        self.0.block(duration)
    }
}
