//! Changes of the machine's clock.

use super::*;
use crate::store::sqlite::clock::TOLERANCE;

const SECOND: i64 = 1_000_000;
const DAY: i64 = 24 * 3600 * SECOND;

async fn due(store: &Sqlite, worker: &str, within: i64) -> bool {
    let within = Duration::from_micros(within.unsigned_abs());
    let found = store.find_work(worker, within, 10).await;
    !found.unwrap().is_empty()
}

#[test]
fn store_time_stands_still_for_small_steps_back_only() {
    let time = Arc::new(AtomicI64::new(DAY));
    let machine = Arc::clone(&time);
    let clock = Clock::new(move || machine.load(Ordering::Relaxed));
    let told = |is: i64| {
        time.store(is, Ordering::Relaxed);
        clock.now()
    };
    assert_eq!(told(DAY), DAY);
    assert_eq!(told(DAY - TOLERANCE), DAY);
    assert_eq!(told(DAY - 1), DAY);
    assert_eq!(told(DAY + 1), DAY + 1);
    assert_eq!(told(3 * DAY), 3 * DAY);
    assert_eq!(told(3 * DAY - TOLERANCE - 1), 3 * DAY - TOLERANCE - 1);
    assert_eq!(told(2 * DAY), 2 * DAY);
    assert_eq!(told(2 * DAY + 1), 2 * DAY + 1);
    assert_eq!(told(2 * DAY), 2 * DAY + 1);
}

/// The machine is a day ahead for a while.
#[tokio::test]
async fn messages_written_with_the_clock_ahead_wait_no_longer_than_planned() {
    let (store, directory, time) = open_with_clock();
    shop(&store).await;
    let hour = Duration::from_secs(3600);
    let before = message("before").delay(hour);
    store.enqueue(vec![message("again"), before]).await.unwrap();

    time.fetch_add(DAY, Ordering::Relaxed);
    let owned = take(&store, "worker").await;
    // Now all messages are due.
    let claimed = claim(&store, "worker", &owned[0]).await;
    assert_eq!(claimed.len(), 2);
    let again = claimed
        .iter()
        .map(|one| settled(one, AfterAttempt::Again(Duration::from_secs(60))));
    store.settle(again.collect()).await.unwrap();
    let minute = |event| message(event).delay(Duration::from_secs(60));
    let line = [minute("1").in_order("key"), minute("2").in_order("key")];
    store.enqueue(line.to_vec()).await.unwrap();
    store
        .enqueue(vec![message("days").delay(hour * 72)])
        .await
        .unwrap();

    time.fetch_sub(DAY, Ordering::Relaxed);
    assert!(!due(&store, "worker", 3600 * SECOND).await);
    assert!(store.heartbeat("worker", LEASE, true).await.unwrap().kept);
    // The running attempts have been settled.
    assert!(!due(&store, "worker", 59 * SECOND).await);
    assert!(due(&store, "worker", 60 * SECOND).await);
    time.fetch_add(20 * SECOND, Ordering::Relaxed);
    // Times are corrected once, even by a process that has not seen the step.
    drop(store);
    let store = open_at(&directory, &time);
    assert!(store.heartbeat("worker", LEASE, true).await.unwrap().kept);
    time.fetch_add(40 * SECOND, Ordering::Relaxed);
    let owned = take(&store, "worker").await;
    let claimed = claim(&store, "worker", &owned[0]).await;
    assert_eq!(claimed.len(), 3);
    let delivered = claimed
        .iter()
        .map(|one| settled(one, AfterAttempt::Delivered));
    let written = store.settle(delivered.collect()).await.unwrap();
    assert_eq!(written, [true; 3]);
    // The message behind the first one of its key is free now.
    assert_eq!(claim(&store, "worker", &owned[0]).await.len(), 1);
    assert!(!due(&store, "worker", 71 * 3600 * SECOND).await);
    assert!(due(&store, "worker", 72 * 3600 * SECOND).await);
}

/// Messages written before the machine was ahead keep their due time, however late it is.
#[tokio::test]
async fn due_times_written_with_the_right_clock_are_kept() {
    let (store, _directory, time) = open_with_clock();
    shop(&store).await;
    let later = message("later").delay(Duration::from_secs(48 * 3600));
    store.enqueue(vec![later]).await.unwrap();
    store.heartbeat("worker", LEASE, true).await.unwrap();
    time.fetch_add(DAY, Ordering::Relaxed);
    store.heartbeat("worker", LEASE, true).await.unwrap();
    time.fetch_sub(DAY, Ordering::Relaxed);
    store.heartbeat("worker", LEASE, true).await.unwrap();
    assert!(!due(&store, "worker", 2 * DAY - SECOND).await);
    assert!(due(&store, "worker", 2 * DAY).await);
}

#[tokio::test]
async fn a_worker_dead_while_the_clock_is_ahead_is_detected_a_lease_later() {
    let (store, directory, time) = open_with_clock();
    shop(&store).await;
    store.enqueue(vec![message("paid")]).await.unwrap();
    time.fetch_add(DAY, Ordering::Relaxed);
    let dead = take(&store, "dead").await;
    assert_eq!(claim(&store, "dead", &dead[0]).await.len(), 1);
    drop(store);

    time.fetch_sub(DAY, Ordering::Relaxed);
    let store = open_at(&directory, &time);
    assert!(take(&store, "worker").await.is_empty());
    time.fetch_add(29 * SECOND, Ordering::Relaxed);
    assert!(take(&store, "worker").await.is_empty());
    time.fetch_add(SECOND, Ordering::Relaxed);
    let owned = take(&store, "worker").await;
    let claimed = claim(&store, "worker", &owned[0]).await;
    assert!(claimed[0].lost);
}

/// An attempt that runs while the machine's clock is set back is settled as usual.
#[tokio::test]
async fn an_attempt_across_a_clock_step_back_is_settled() {
    let (store, _directory, time) = open_with_clock();
    shop(&store).await;
    time.fetch_add(DAY, Ordering::Relaxed);
    store.enqueue(vec![message("paid")]).await.unwrap();
    let owned = take(&store, "worker").await;
    let claimed = claim(&store, "worker", &owned[0]).await;
    time.fetch_sub(DAY, Ordering::Relaxed);
    assert!(store.heartbeat("worker", LEASE, true).await.unwrap().kept);
    let delivered = settled(&claimed[0], AfterAttempt::Delivered);
    assert_eq!(store.settle(vec![delivered]).await.unwrap(), [true]);
}

/// The machine's own clock, years ahead of this one, does not count.
#[tokio::test]
async fn a_dead_letter_is_purged_by_its_age_on_the_clock_of_the_store() {
    let (store, _directory, time) = open_with_clock();
    shop(&store).await;
    store.enqueue(vec![message("paid")]).await.unwrap();
    let owned = take(&store, "worker").await;
    let claimed = claim(&store, "worker", &owned[0]).await;
    let dead = settled(&claimed[0], AfterAttempt::Dead("poison".to_owned()));
    assert_eq!(store.settle(vec![dead]).await.unwrap(), [true]);
    let purge = async || store.purge(Duration::from_secs(24 * 3600), 10).await;
    assert_eq!(purge().await.unwrap(), 0);
    time.fetch_add(DAY - 1, Ordering::Relaxed);
    assert_eq!(purge().await.unwrap(), 0);
    time.fetch_add(1, Ordering::Relaxed);
    assert_eq!(purge().await.unwrap(), 1);
}
