//! The duration of calls without a deadline while the destination is down: 30 s, or 9 s if no
//! attempt has ever had a response. A deadline replaces both limits.

use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use relent::clock::{Clock, VirtualClock};
use relent::driver::{Decision, Driver, NextStep};
use relent::failure::{Cause, Network};
use relent::policy::HedgeConfig;
use relent::random::FixedRandom;
use relent::{
    Destination, Failure, GaveUp, Hint, Policy, PollOutcome, StopReason, blocking, poll_until,
    retry, retry_mut,
};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);
const WITHOUT_RESPONSE: Duration = Duration::from_secs(9);
const WITHOUT_DEADLINE: Duration = Duration::from_secs(30);
/// Timers of tokio are up to a millisecond late.
const TIMER: Duration = Duration::from_millis(1);

fn standard() -> Destination {
    Destination::new(Policy::STANDARD)
}

fn with_deadline(limit: Duration) -> Policy {
    let policy = Policy::STANDARD.clone().into_builder();
    policy.deadline(limit).build().unwrap()
}

fn refused() -> Failure {
    Failure::network(Network::Connect)
}

fn unavailable() -> Failure {
    Failure::ambiguous().cause(Cause::Status(503))
}

/// A destination that has responded before.
async fn answered() -> Destination {
    let there = standard();
    there.retry(async || Ok::<_, ()>(())).await.unwrap();
    there
}

/// Makes one call whose attempts fail immediately with this failure. Returns the error and the
/// elapsed time.
async fn call(
    there: &Destination,
    policy: &Policy,
    failure: Failure,
) -> (GaveUp<Failure>, Duration) {
    let began = Instant::now();
    let call = retry(policy, async || Err::<(), _>(failure));
    let gave_up = call.classify(|failure| *failure).destination(there).await;
    (gave_up.unwrap_err(), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn calls_to_a_closed_port_fail_within_nine_seconds_with_its_error() {
    let there = standard();
    // One after the other, as in a test suite.
    for number in 0..20 {
        let (gave_up, took) = call(&there, Policy::STANDARD, refused()).await;
        assert!(took <= WITHOUT_RESPONSE + TIMER, "{number}: {took:?}");
        assert_eq!(
            gave_up.error(),
            Some(&refused()),
            "{number}: {:?}",
            gave_up.reason()
        );
    }
    // A plain error does not show whether there was a response.
    let there = standard();
    for _ in 0..5 {
        let began = Instant::now();
        let error = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let call = there.retry(async || Err::<(), _>(error()));
        let text = call.await.unwrap_err().to_string();
        assert!(
            began.elapsed() <= WITHOUT_RESPONSE + TIMER,
            "{:?}",
            began.elapsed()
        );
        assert!(text.contains("connection refused"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_calls_to_a_closed_port_fail_within_nine_seconds() {
    let there = standard();
    let calls = (0..50).map(|_| call(&there, Policy::STANDARD, refused()));
    for (gave_up, took) in futures_util::future::join_all(calls).await {
        assert!(took <= WITHOUT_RESPONSE + TIMER, "{took:?}");
        assert!(gave_up.error().is_some(), "{:?}", gave_up.reason());
    }
}

#[tokio::test(start_paused = true)]
async fn the_text_of_a_give_up_without_a_deadline_names_the_limit() {
    let (gave_up, _) = call(&standard(), Policy::STANDARD, refused()).await;
    // It ends in the queue, or by a probe whose retry would start too late.
    let reason = gave_up.reason();
    assert!(
        matches!(reason, StopReason::CircuitBreaker | StopReason::MaxElapsed),
        "{reason}"
    );
    assert_eq!(gave_up.summary().without_deadline, Some(WITHOUT_RESPONSE));
    let text = gave_up.summary().to_string();
    let says = "without a deadline no attempt starts after 9s";
    assert!(text.ends_with(says), "{text}");
    let (gave_up, _) = call(&standard(), &with_deadline(SECOND), refused()).await;
    assert_eq!(gave_up.summary().without_deadline, None);
}

#[tokio::test(start_paused = true)]
async fn calls_to_a_rejecting_service_fail_within_thirty_seconds() {
    let there = standard();
    for number in 0..10 {
        let (gave_up, took) = call(&there, Policy::STANDARD, unavailable()).await;
        assert!(took <= WITHOUT_DEADLINE + TIMER, "{number}: {took:?}");
        assert!(
            gave_up.error().is_some(),
            "{number}: {:?}",
            gave_up.reason()
        );
    }
    // It has responded, so it may recover.
    let (_, took) = call(&there, Policy::STANDARD, refused()).await;
    assert!(
        took > WITHOUT_RESPONSE && took <= WITHOUT_DEADLINE,
        "{took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn calls_wait_longer_for_a_destination_that_has_responded() {
    let there = answered().await;
    let (_, took) = call(&there, Policy::STANDARD, refused()).await;
    assert!(
        took > WITHOUT_RESPONSE && took <= WITHOUT_DEADLINE,
        "{took:?}"
    );
    // A waiting call notices a response to another call.
    let (there, began) = (standard(), Instant::now());
    let waits = async {
        call(&there, Policy::STANDARD, refused()).await;
        began.elapsed()
    };
    let responds = async {
        sleep(6 * SECOND).await;
        call(&there, &with_deadline(2 * SECOND), unavailable()).await
    };
    let (took, _) = futures_util::future::join(waits, responds).await;
    // Tokio's timer rounds up to a millisecond.
    let latest = WITHOUT_DEADLINE + SECOND / 1000;
    assert!(took > WITHOUT_RESPONSE && took <= latest, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_running_attempt_is_never_cut_off() {
    let (there, began) = (standard(), Instant::now());
    let slow = there.retry(async || {
        sleep(100 * SECOND).await;
        Ok::<_, ()>(())
    });
    slow.await.unwrap();
    assert_eq!(began.elapsed(), 100 * SECOND);

    // Hanging connects: the first takes longer than the limit for starting another attempt.
    let (there, began) = (standard(), Instant::now());
    let hanging = there.retry(async || {
        sleep(20 * SECOND).await;
        Err::<(), _>(refused())
    });
    let gave_up = hanging.classify(|failure| *failure).await.unwrap_err();
    assert_eq!((gave_up.attempts(), began.elapsed()), (1, 20 * SECOND));
    assert_eq!(gave_up.reason(), StopReason::MaxElapsed);
    // After a response, the second attempt starts in time and runs to its end.
    let (there, began) = (answered().await, Instant::now());
    let hanging = there.retry(async || {
        sleep(20 * SECOND).await;
        Err::<(), _>(refused())
    });
    let gave_up = hanging.classify(|failure| *failure).await.unwrap_err();
    assert_eq!(gave_up.attempts(), 2);
    assert!(began.elapsed() >= 40 * SECOND && began.elapsed() <= 50 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_beyond_the_limit_ends_the_call_immediately() {
    let busy = |delay| {
        Failure::throttled()
            .cause(Cause::Status(429))
            .hint(Hint::after(delay))
    };
    let (there, long) = (standard(), 60 * SECOND);
    let (gave_up, took) = call(&there, Policy::STANDARD, busy(long)).await;
    assert_eq!(
        (gave_up.reason(), took),
        (StopReason::RetryLater, Duration::ZERO)
    );
    assert!(gave_up.retry_at().is_some());
    let text = gave_up.summary().to_string();
    assert!(
        text.ends_with(", and without a deadline no attempt starts after 30s"),
        "{text}"
    );
    // The same for the next call, which the cooldown would hold back.
    let (gave_up, took) = call(&there, Policy::STANDARD, busy(long)).await;
    assert_eq!(
        (gave_up.reason(), took),
        (StopReason::RetryLater, Duration::ZERO)
    );

    // A delay within the limit is observed, and its jitter is reduced to what fits.
    for _ in 0..20 {
        let (there, began) = (standard(), Instant::now());
        let comes_back = there.retry(async || match began.elapsed() < 20 * SECOND {
            true => Err(busy(20 * SECOND)),
            false => Ok(()),
        });
        comes_back.classify(|failure| *failure).await.unwrap();
        assert!(
            began.elapsed() <= WITHOUT_DEADLINE + TIMER,
            "{:?}",
            began.elapsed()
        );
    }

    let (there, policy) = (standard(), with_deadline(180 * SECOND));
    let began = Instant::now();
    let comes_back = retry(&policy, async || match began.elapsed() < long {
        true => Err(busy(long)),
        false => Ok(()),
    });
    comes_back
        .classify(|failure| *failure)
        .destination(&there)
        .await
        .unwrap();
    assert!(began.elapsed() >= long);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_replaces_the_limit_for_calls_without_one() {
    // With minutes to wait, the retries may be exhausted before the deadline. The queue holds a call for at most 300 s,
    // besides the backoff before and after it.
    for (deadline, least, most) in [(60, 50, 60), (600, 120, 310)] {
        for failure in [refused(), unavailable()] {
            let policy = with_deadline(deadline * SECOND);
            let (gave_up, took) = call(&standard(), &policy, failure).await;
            let (least, most) = (least * SECOND, most * SECOND);
            assert!(took >= least && took <= most, "{deadline}: {took:?}");
            assert!(gave_up.error().is_some());
        }
    }
    // The other time limit has the same effect.
    let policy = Policy::STANDARD.clone().into_builder();
    let policy = policy.max_elapsed(60 * SECOND).build().unwrap();
    let (_, took) = call(&standard(), &policy, refused()).await;
    assert!(took > WITHOUT_DEADLINE && took <= 60 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn every_retry_loop_keeps_the_limit_without_a_deadline() {
    let fails = async || Err::<(), _>(io::Error::from(io::ErrorKind::ConnectionRefused));
    let began = Instant::now();
    let there = standard();
    let _ = retry_mut(Policy::STANDARD, async |_| fails().await)
        .destination(&there)
        .run()
        .await;
    assert!(
        began.elapsed() <= WITHOUT_RESPONSE + TIMER,
        "{:?}",
        began.elapsed()
    );

    let hedge = HedgeConfig::after(SECOND / 10);
    let hedging = Policy::STANDARD.clone().into_builder().hedge(hedge);
    let hedging = Destination::new(hedging.build().unwrap());
    let began = Instant::now();
    hedging.retry(fails).await.unwrap_err();
    assert!(
        began.elapsed() <= WITHOUT_RESPONSE + TIMER,
        "{:?}",
        began.elapsed()
    );
    // No hedge joins an attempt after the limit.
    let late = Policy::STANDARD.clone().into_builder();
    let late = late.hedge(HedgeConfig::after(11 * SECOND)).build().unwrap();
    let (late, attempts) = (Destination::new(late), AtomicU32::new(0));
    let slow = late.retry(|| {
        attempts.fetch_add(1, Ordering::Relaxed);
        pending::<Result<(), ()>>()
    });
    let _ = tokio::time::timeout(100 * SECOND, slow).await;
    assert_eq!(attempts.into_inner(), 1);

    let (there, began) = (standard(), Instant::now());
    let polled = poll_until(Policy::STANDARD, async || {
        fails().await.map(PollOutcome::Done)
    });
    polled.destination(&there).await.unwrap_err();
    assert!(
        began.elapsed() <= WITHOUT_RESPONSE + TIMER,
        "{:?}",
        began.elapsed()
    );

    let (there, clock) = (standard(), VirtualClock::new());
    let blocked = blocking::retry(Policy::STANDARD, || Err::<(), _>("refused"));
    let gave_up = blocked.destination(&there).clock(&clock).run().unwrap_err();
    assert!(clock.elapsed() <= WITHOUT_RESPONSE, "{:?}", clock.elapsed());
    assert_eq!(gave_up.error(), Some(&"refused"));

    // An attempt that waited for something else, such as a connection, does not start after the
    // limit, either.
    let (there, clock) = (standard(), VirtualClock::new());
    let driver = Driver::builder(Policy::STANDARD, &clock).destination(&there);
    let mut driver = driver.start();
    let NextStep::Start(permit) = driver.enter(None) else {
        unreachable!("it is new");
    };
    driver.release_permit(permit);
    assert_eq!(driver.room(), Some(WITHOUT_RESPONSE));
    clock.advance(11 * SECOND);
    assert_eq!(driver.too_late(), Some(StopReason::MaxElapsed));
    let stop = driver.enter(None).stop().unwrap();
    assert_eq!(stop.reason, StopReason::MaxElapsed);
}

#[tokio::test(start_paused = true)]
async fn progress_extends_the_limit_without_a_deadline() {
    // An occasionally interrupted transfer takes as long as it takes.
    let (there, clock) = (answered().await, VirtualClock::new());
    let mut driver = Driver::builder(Policy::STANDARD, &clock)
        .destination(&there)
        .start();
    for _ in 0..10 {
        let NextStep::Start(permit) = driver.enter(None) else {
            unreachable!("nothing holds it back");
        };
        driver.on_attempt(permit);
        clock.advance(60 * SECOND);
        driver.on_progress();
        let Decision::Retry { after } = driver.on_failure(&Failure::network(Network::Truncated))
        else {
            unreachable!("it has made progress");
        };
        clock.advance(after);
    }
}

/// A restart of the server interrupts a transfer of ten minutes. Its time in the queue counts from its progress, and not
/// from its start.
#[test]
fn a_long_transfer_outlasts_a_short_outage_after_its_progress() {
    let (policy, clock) = (with_deadline(3600 * SECOND), VirtualClock::new());
    let there = Destination::new(&policy).with_random(FixedRandom::at(0.5));
    let driver = Driver::builder(&policy, &clock).destination(&there);
    let mut driver = driver.seed(1).start();
    let (mut up, mut was_queued) = (None, false);
    loop {
        match driver.enter(None) {
            NextStep::Start(permit) => driver.on_attempt(permit),
            NextStep::Wait { after, .. } => {
                was_queued = true;
                clock.advance(after);
                continue;
            }
            NextStep::Stop(stop) => panic!("{}", stop.reason),
        };
        let decision = match up {
            None => {
                clock.advance(600 * SECOND);
                up = Some(clock.elapsed() + 5 * SECOND);
                driver.on_progress();
                driver.on_failure(&Failure::network(Network::Truncated))
            }
            Some(up) if clock.elapsed() < up => driver.on_failure(&refused()),
            Some(_) => break driver.on_success(),
        };
        match decision {
            Decision::Retry { after } => clock.advance(after),
            Decision::Stop(stop) => panic!("{}", stop.reason),
        }
    }
    assert!(was_queued);
}

/// Activity while a call is queued changes no limit there, and not the place in the queue.
#[test]
fn activity_in_the_queue_of_a_circuit_breaker_leaves_nothing_behind() {
    let there = standard().with_random(FixedRandom::at(0.5));
    let clock = VirtualClock::new();
    while !there.is_down() {
        let failing = blocking::retry(Policy::STANDARD, || Err::<(), _>("refused"));
        let _ = failing.destination(&there).clock(&clock).run();
    }
    let start = || {
        Driver::builder(Policy::STANDARD, &clock)
            .destination(&there)
            .start()
    };
    let (mut probe, mut driver) = (start(), start());
    let _running = loop {
        match probe.enter(None) {
            NextStep::Start(permit) => break permit,
            NextStep::Wait { after, .. } => clock.advance(after),
            NextStep::Stop(stop) => unreachable!("{}", stop.reason),
        }
    };
    let NextStep::Wait { until, .. } = driver.enter(None) else {
        unreachable!("the destination is down, and a probe runs");
    };
    clock.advance(SECOND / 1000);
    driver.reset();
    assert_eq!(
        driver.shorten_delay(until),
        until.saturating_since(driver.clock().now())
    );
    assert_eq!(there.queued_while_down(), 1);
    drop(driver);
    assert_eq!(there.queued_while_down(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_destination_there_is_no_limit_without_a_deadline() {
    let began = Instant::now();
    let busy = Hint::after(60 * SECOND);
    let comes_back = retry(Policy::STANDARD, async || {
        match began.elapsed() < 60 * SECOND {
            true => Err(Failure::throttled().hint(busy)),
            false => Ok(()),
        }
    });
    comes_back.classify(|failure| *failure).await.unwrap();
}
