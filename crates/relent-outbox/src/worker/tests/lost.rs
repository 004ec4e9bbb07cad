//! Attempts that are lost with their worker, and the isolation of their messages.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_panic_in_an_attempt_is_a_failed_attempt() {
    let store = Memory::new([endpoint(0).hold(false)]);
    let row = store.add(1, "x");
    let receivers = Receivers::new(|_| panic!("for a test"));
    let running = start(&store, &receivers, config("one"));
    until_ended(&store).await;
    store.row(row, |row| {
        assert!(matches!(&row.ended, Some(Err(reason)) if reason.contains("fault of the worker")));
        assert_eq!((row.attempt, row.records.len()), (10, 10));
    });
    let _ = running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_kills_its_worker_is_dead_after_exactly_its_limit() {
    let store = Memory::new([endpoint(0)]);
    let row = store.add(1, "x");
    let receivers = Receivers::new(|_| (3600 * SECOND, None));
    for life in 0..30 {
        let running = start(&store, &receivers, config(&format!("worker-{life}")));
        // The worker dies while the attempt runs, if there is one.
        sleep(5 * SECOND).await;
        running.worker.abort();
        sleep(40 * SECOND).await;
    }
    assert_eq!(receivers.hits(), 10);
    store.row(row, |row| {
        assert!(
            matches!(&row.ended, Some(Err(reason)) if reason.contains("recorded no result")),
            "{:?}",
            row.ended
        );
        assert_eq!(row.attempt, 10);
        // The record has the start of the attempt, not the time at which the next worker found it lost.
        let last = row.records.last().unwrap();
        assert_eq!(last.started_ms, crate::store::millis(row.started));
    });
}

/// Messages that are sent at the same time each time are all delivered.
#[tokio::test(start_paused = true)]
async fn a_message_that_kills_its_worker_takes_no_other_message_with_it() {
    let three = TEN.replace("max_retries = 9", "max_retries = 2");
    let store = Memory::new((0..30).map(|number| endpoint(number).policy(&three)));
    let mut poison = vec![store.add(1, "poison")];
    let rows: Vec<i64> = (3..=30).map(|endpoint| store.add(endpoint, "x")).collect();
    let kill = Arc::new(Notify::new());
    let kills = Arc::clone(&kill);
    let receivers = Receivers::new(move |job| {
        if job.payload != "poison" {
            return (Duration::from_millis(20), None);
        }
        let kills = Arc::clone(&kills);
        tokio::spawn(async move {
            sleep(Duration::from_millis(10)).await;
            kills.notify_one();
        });
        (3600 * SECOND, None)
    });
    timeout(3600 * SECOND, async {
        for number in 0.. {
            if store.unended() == 0 {
                break;
            }
            let mut often = config(&format!("worker-{number}"));
            often.poll = Duration::from_millis(20);
            let running = start(&store, &receivers, often);
            // From the third worker on, the others have one attempt left. Poison comes before and during that attempt.
            let more = async {
                if (2..6).contains(&number) {
                    sleep(Duration::from_millis([0, 1100, 100, 150][number - 2])).await;
                    poison.push(store.add(2, "poison"));
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = more => {}
                () = kill.notified() => {}
                () = until_ended(&store) => {}
            }
            running.worker.abort();
            sleep(40 * SECOND).await;
        }
    })
    .await
    .unwrap();
    for row in rows {
        store.row(row, |row| assert_eq!(row.ended, Some(Ok(()))));
    }
    for row in poison {
        store.row(row, |row| {
            assert!(
                matches!(&row.ended, Some(Err(reason)) if reason.contains("recorded no result"))
            );
            assert_eq!(row.attempt, 3);
        });
    }
    let hits = receivers.hits.lock().unwrap().clone();
    assert!(hits.values().all(|hits| *hits <= 3), "{hits:?}");
}

/// Otherwise the worker would become quiet for it again and again.
#[tokio::test(start_paused = true)]
async fn fresh_messages_of_the_endpoint_do_not_take_the_turn_of_an_isolated_one() {
    let two = TEN.replace("max_retries = 9", "max_retries = 1");
    let store = Memory::new([endpoint(0).policy(&two).concurrency(NonZeroU32::MIN)]);
    let suspect = store.add(1, "x");
    let receivers = Receivers::new(|_| (5 * SECOND, None));
    let mut often = config("lost");
    often.poll = Duration::from_millis(20);
    let running = start(&store, &receivers, often.clone());
    until(|| receivers.hits() == 1).await;
    running.worker.abort();
    often.name = "one".to_owned();
    let running = start(&store, &receivers, often);
    until(|| store.row(suspect, |row| !row.records.is_empty())).await;
    // It is due again while another attempt runs, and before a hundred fresh messages.
    store.add(1, "x");
    sleep(2 * SECOND).await;
    assert_eq!(receivers.hits(), 2);
    for _ in 0..100 {
        store.add(1, "x");
    }
    until(|| store.row(suspect, |row| row.ended == Some(Ok(())))).await;
    assert!(receivers.hits() < 10, "{}", receivers.hits());
    let _ = running.stop().await;
}

/// While the store is unavailable nothing waits because of isolated messages, so they take no turns for that time.
#[tokio::test(start_paused = true)]
async fn isolated_messages_wait_no_longer_because_of_a_store_outage() {
    let two = TEN.replace("max_retries = 9", "max_retries = 1");
    let store = Memory::new((0..2).map(|number| endpoint(number).policy(&two)));
    let suspects = [store.add(1, "x"), store.add(2, "x")];
    let receivers = Receivers::new(|_| (SECOND, None));
    let running = start(&store, &receivers, config("lost"));
    sleep(SECOND / 2).await;
    running.worker.abort();
    let running = start(&store, &receivers, config("one"));
    // Both have one attempt left. The result of the first cannot be written for long.
    until(|| receivers.hits() == 3).await;
    store.fail("settle", &[Fault::Before; 400]);
    let began = Instant::now();
    until(|| store.unended() == 1).await;
    assert!(began.elapsed() > 600 * SECOND);
    let began = Instant::now();
    until_ended(&store).await;
    assert!(began.elapsed() < 30 * SECOND, "{:?}", began.elapsed());
    for row in suspects {
        store.row(row, |row| assert_eq!(row.ended, Some(Ok(()))));
    }
    let _ = running.stop().await;
}

/// Other processes make the attempts, so isolation would protect nothing, and delay all other messages.
#[tokio::test(start_paused = true)]
async fn a_worker_with_a_relay_isolates_no_message() {
    let two = TEN.replace("max_retries = 9", "max_retries = 1");
    let store = Memory::new((0..2).map(|number| endpoint(number).policy(&two)));
    let suspect = store.add(1, "x");
    let receivers = Receivers::new(|_| (10 * SECOND, None));
    let running = run(worker(&store, receivers.remote(), config("lost")));
    until(|| receivers.hits() == 1).await;
    running.worker.abort();
    let running = run(worker(&store, receivers.remote(), config("one")));
    until(|| receivers.hits() == 2).await;
    store.row(suspect, |row| assert_eq!(row.attempt, 2));
    store.add(2, "x");
    let began = Instant::now();
    until(|| receivers.hits() == 3).await;
    assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
    let _ = running.stop().await;
}
