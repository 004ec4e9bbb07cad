//! Messages whose deadline passes while they wait.

use super::*;

/// With attempts that a deadline of zero cuts off, the breaker would stay down, and hold the other messages.
#[tokio::test(start_paused = true)]
async fn a_message_whose_deadline_has_passed_is_not_sent_and_is_no_evidence_about_its_endpoint() {
    let store = Memory::new([endpoint(0).policy(format!("deadline = \"1h\"\n{TEN}"))]);
    let receivers = quick();
    let running = start(&store, &receivers, config("one"));
    store.set_disabled(1, true);
    let late: Vec<_> = (0..100).map(|_| store.add(1, "late")).collect();
    sleep(3601 * SECOND).await;
    store.add(1, "in time");
    store.set_disabled(1, false);
    let began = Instant::now();
    until_ended(&store).await;
    assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
    assert_eq!(receivers.hits(), 1);
    for row in late {
        store.row(row, |row| match &row.ended {
            Some(Err(reason)) => assert!(reason.contains("not sent"), "{reason}"),
            ended => panic!("{ended:?}"),
        });
    }
    assert_eq!(store.health(1).failing_since(), None);
    let _ = running.stop().await;
}

/// Late messages are no probes, so they keep no circuit breaker down.
#[tokio::test(start_paused = true)]
async fn late_messages_at_an_endpoint_that_is_down_delay_no_probe() {
    let store = Memory::new([endpoint(0).policy(format!("deadline = \"1h\"\n{TEN}"))]);
    let is_up = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let up = Arc::clone(&is_up);
    let receivers = Receivers::new(move |_| {
        let failure = (!up.load(Ordering::Relaxed)).then(refused);
        (SECOND / 100, failure)
    });
    let running = start(&store, &receivers, config("one"));
    for _ in 0..2000 {
        store.add(1, "late");
    }
    sleep(3601 * SECOND).await;
    is_up.store(true, Ordering::Relaxed);
    store.add(1, "in time");
    let began = Instant::now();
    until_ended(&store).await;
    assert!(began.elapsed() < 30 * SECOND, "{:?}", began.elapsed());
    let _ = running.stop().await;
}

/// Otherwise one attempt at a receiver that hangs could take all the time of a schedule.
#[tokio::test(start_paused = true)]
async fn a_deadline_without_an_attempt_timeout_leaves_attempts_the_limit_of_the_sender() {
    let policy = TEN.replace("attempt_timeout = \"15s\"", "deadline = \"72h\"");
    let store = Memory::new([endpoint(0).policy(policy)]);
    let attempts = AtomicUsize::new(0);
    let receivers = Receivers::new(move |_| match attempts.fetch_add(1, Ordering::Relaxed) {
        0 => (100 * 3600 * SECOND, None),
        _ => (SECOND / 100, None),
    });
    let running = start(&store, &receivers, config("one"));
    store.add(1, "x");
    let began = Instant::now();
    until_ended(&store).await;
    assert!(began.elapsed() < 120 * SECOND, "{:?}", began.elapsed());
    assert_eq!(receivers.hits(), 2);
    let _ = running.stop().await;
}
