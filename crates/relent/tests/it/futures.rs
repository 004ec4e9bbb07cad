//! A call is a future: it can be spawned, joined, selected and collected.

use std::cell::{Cell, RefCell};
use std::future::{pending, ready};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use relent::random::FixedRandom;
use relent::{
    Activity, Backoff, Destination, Failure, Jitter, Policy, StopReason, VirtualClock, blocking,
    poll_until, retry, retry_on_conflict,
};

const SECOND: Duration = Duration::from_secs(1);

static SECONDS: Policy = Policy::builder(Backoff::constant(SECOND))
    .jitter(Jitter::None)
    .max_retries(2)
    .build_const();

/// Fails twice, then succeeds with its number of calls.
fn third_time(calls: &AtomicU32) -> impl Future<Output = Result<u32, io::Error>> + use<> {
    let call = calls.fetch_add(1, Ordering::Relaxed) + 1;
    async move {
        match call {
            1 | 2 => Err(io::ErrorKind::ConnectionReset.into()),
            _ => Ok(call),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_with_settings_is_spawned() {
    static ORDERS: LazyLock<Destination> = LazyLock::new(|| Destination::new(&SECONDS));
    static CALLS: AtomicU32 = AtomicU32::new(0);
    static NOTICES: AtomicU32 = AtomicU32::new(0);
    let order = tokio::spawn(
        retry(&SECONDS, || third_time(&CALLS))
            .classify(|_| Failure::not_processed())
            .notify(|_| {
                NOTICES.fetch_add(1, Ordering::Relaxed);
            })
            .destination(&ORDERS),
    );
    assert_eq!(order.await.unwrap().unwrap(), 3);
    assert_eq!(NOTICES.load(Ordering::Relaxed), 2);
    let order = tokio::spawn(
        ORDERS
            .retry(|| ready(Ok::<_, io::Error>(1)))
            .or_last_error(),
    );
    assert_eq!(order.await.unwrap().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn calls_are_joined_and_selected() {
    let calls = AtomicU32::new(0);
    let (one, two) = tokio::join!(
        retry(&SECONDS, || third_time(&calls)),
        retry(&SECONDS, || ready(Ok::<_, io::Error>(7))),
    );
    assert_eq!((one.unwrap(), two.unwrap()), (3, 7));
    tokio::select! {
        _ = retry(&SECONDS, pending::<Result<(), io::Error>>) => unreachable!(),
        two = retry(&SECONDS, || ready(Ok::<_, io::Error>(7))) => assert_eq!(two.unwrap(), 7),
    }
}

#[tokio::test(start_paused = true)]
async fn calls_are_collected_in_order_of_completion() {
    let mut calls: FuturesUnordered<_> = [2_u32, 0, 1]
        .map(|failures| {
            let left = Cell::new(failures);
            retry(&SECONDS, move || {
                let failed = left.get() > 0;
                left.set(left.get().saturating_sub(1));
                ready(if failed { Err("down") } else { Ok(failures) })
            })
        })
        .into_iter()
        .collect();
    let mut ended = Vec::new();
    while let Some(end) = calls.next().await {
        ended.push(end.unwrap());
    }
    assert_eq!(ended, [0, 1, 2]);
}

#[test]
fn a_call_is_send_if_its_operation_is() {
    fn is_send(_: impl Send) {}
    let there = Destination::new(&SECONDS);
    let ask = || async { Ok::<_, io::Error>(1) };
    is_send(retry(&SECONDS, ask));
    is_send(there.retry(ask).clock(VirtualClock::new()));
    is_send(retry(&SECONDS, ask).random(FixedRandom::at(0.5)).seed(7));
    is_send(retry(&SECONDS, ask).notify(|_| {}).with_summary());
    is_send(retry(&SECONDS, ask).or_last_error());
    let interrupted = retry(&SECONDS, ask).cancel_on(pending::<()>());
    is_send(interrupted.activity(&Activity::new()));
    is_send(poll_until(&SECONDS, || async {
        Ok::<_, io::Error>(relent::PollOutcome::Done(1))
    }));
    is_send(retry_on_conflict(&SECONDS, || async {
        relent::WriteOutcome::<_, io::Error>::Done(1)
    }));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_send_runs_on_a_local_set() {
    let local = tokio::task::LocalSet::new();
    let calls = Rc::new(Cell::new(0));
    let lines = Rc::new(RefCell::new(Vec::new()));
    let signal = Rc::new(pending::<()>());
    let call = {
        let (calls, lines) = (Rc::clone(&calls), Rc::clone(&lines));
        retry(&SECONDS, move || {
            let calls = Rc::clone(&calls);
            async move {
                calls.set(calls.get() + 1);
                if calls.get() < 3 {
                    Err("down")
                } else {
                    Ok(calls)
                }
            }
        })
        .notify(move |notice| lines.borrow_mut().push(notice.to_string()))
        .cancel_on(async move { (*signal).clone().await })
    };
    let end = local.spawn_local(call);
    let end = local.run_until(end).await;
    assert_eq!(end.unwrap().unwrap().get(), 3);
    assert_eq!(lines.borrow().len(), 2);
}

#[test]
fn a_notice_of_the_blocking_form_need_not_be_send() {
    let lines = Rc::new(RefCell::new(Vec::new()));
    let heard = Rc::clone(&lines);
    let result = blocking::retry(&SECONDS, || Err::<(), _>("down"))
        .clock(VirtualClock::new())
        .notify(move |notice| heard.borrow_mut().push(notice.attempt))
        .run();
    assert_eq!(result.unwrap_err().reason(), StopReason::RetriesExhausted);
    assert_eq!(*lines.borrow(), [1, 2]);
}

#[test]
fn every_hook_is_called_in_the_order_of_its_setting() {
    let heard = RefCell::new(Vec::new());
    let _ = blocking::retry(&SECONDS, || Err::<(), _>("down"))
        .notify(|notice| heard.borrow_mut().push(("first", notice.attempt)))
        .notify(|notice| heard.borrow_mut().push(("second", notice.attempt)))
        .clock(VirtualClock::new())
        .run();
    let expected = [("first", 1), ("second", 1), ("first", 2), ("second", 2)];
    assert_eq!(*heard.borrow(), expected);
}

#[test]
fn a_call_made_by_a_destination_keeps_its_policy_at_another() {
    let once = Policy::STANDARD.clone().into_builder().max_retries(1);
    let (one, other) = (
        Destination::new(once.build().unwrap()),
        Destination::new(&SECONDS),
    );
    let gave_up = one.blocking(|| Err::<(), _>("down")).destination(&other);
    let gave_up = gave_up.clock(VirtualClock::new()).run().unwrap_err();
    assert_eq!(gave_up.attempts(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_before_its_first_poll_makes_no_attempt() {
    let (there, calls) = (Destination::new(Policy::STANDARD), AtomicU32::new(0));
    let balance = there.budget().unwrap().balance();
    drop(there.retry(|| third_time(&calls)));
    {
        let waiting = pin!(there.retry(|| third_time(&calls)));
        assert!(tokio::time::timeout(Duration::ZERO, waiting).await.is_err());
    }
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert!(there.budget().unwrap().balance() >= balance);
}
