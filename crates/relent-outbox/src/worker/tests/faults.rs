//! Lost or late responses of the store, when other workers have taken over meanwhile.

use relent::random::SessionRandom;
use relent_core::Scope;

use super::memory::CallFaults;
use super::*;

/// Returns the number of concurrent attempts. Worker `one` loses its lease at 50 s while its claim is waiting for a
/// response. `two` takes over. `one` gets a lease again before the response arrives at 65 s.
async fn concurrent_attempts_after_a_late_claim(beat_is_lost: bool) -> usize {
    let store = Memory::new([endpoint(0)]);
    store.set_call_faults(CallFaults::default());
    store.add(1, "x");
    let receivers = Receivers::new(|_| (14 * SECOND, None));
    let began = Instant::now();
    let at = |seconds: u32| tokio::time::sleep_until(began + seconds * SECOND);
    let without_heartbeats = |muted: bool| {
        let silent = muted.then(|| "one".to_owned());
        store.call_faults(|call_faults| {
            call_faults.without_heartbeats = silent.into_iter().collect();
        });
    };
    let one = start(&store, &receivers, config("one"));
    at(22).await;
    without_heartbeats(true);
    at(44).await;
    let two = start(&store, &receivers, config("two"));
    at(45).await;
    store.fail("claim", &[Fault::Late]);
    store.add(1, "x");
    at(55).await;
    if beat_is_lost {
        store.fail("heartbeat", &[Fault::After]);
    }
    without_heartbeats(false);
    until_ended(&store).await;
    let _ = (one.stop().await, two.stop().await);
    receivers.most_at_once.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn messages_claimed_with_a_lost_lease_are_not_sent_with_the_next() {
    assert_eq!(concurrent_attempts_after_a_late_claim(false).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_lost_even_if_that_response_is_lost() {
    assert_eq!(concurrent_attempts_after_a_late_claim(true).await, 1);
}

/// A failed release does not keep the endpoint from other workers.
#[tokio::test(start_paused = true)]
async fn an_endpoint_beyond_the_share_is_released_despite_a_failed_call() {
    let store = Memory::new((0..4).map(endpoint));
    // Each endpoint always has due messages.
    let receivers = Receivers::new(|_| (5 * SECOND, None));
    for endpoint in 1..=4 {
        for _ in 0..1000 {
            store.add(endpoint, "x");
        }
    }
    let one = start(&store, &receivers, config("one"));
    sleep(25 * SECOND).await;
    // One endpoint exceeds the share of the first worker now.
    store.fail("release", &[Fault::Before]);
    let two = start(&store, &receivers, config("two"));
    sleep(30 * SECOND).await;
    let before = receivers.by_endpoint.lock().unwrap().clone();
    sleep(30 * SECOND).await;
    let after = receivers.by_endpoint.lock().unwrap().clone();
    for (endpoint, hits) in after {
        assert!(
            hits > before[&endpoint],
            "{endpoint}: {hits} hits and no more"
        );
    }
    let _ = (one.stop().await, two.stop().await);
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_endpoint_delays_no_other() {
    let store = Memory::new((0..2).map(endpoint));
    store.make_unreadable(2);
    let receivers = quick();
    let one = start(&store, &receivers, config("one"));
    sleep(5 * SECOND).await;
    let mut latest = Duration::ZERO;
    let mut unread = 0;
    for number in 0..500 {
        if number % 2 == 0 {
            store.add(2, "x");
            unread += 1;
            store.hint(crate::store::Hinted::Endpoints([2].into()));
        }
        sleep(Duration::from_millis(20)).await;
        let began = Instant::now();
        store.add(1, "x");
        store.hint(crate::store::Hinted::Endpoints([1].into()));
        while store.unended() > unread {
            sleep(Duration::from_millis(1)).await;
        }
        latest = latest.max(began.elapsed());
    }
    assert!(latest < Duration::from_millis(100), "{latest:?}");
    let _ = one.stop().await;
}

/// A result that is written slowly does not delay the next attempt as much.
#[tokio::test(start_paused = true)]
async fn a_retry_is_on_time_even_if_the_store_writes_slowly() {
    for seed in 0..10 {
        let store = Memory::new([endpoint(0).policy(TEN.replace("1s", "300ms"))]);
        store.set_call_faults(CallFaults {
            random: SessionRandom::with_seed(seed),
            ..CallFaults::default()
        });
        let began: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let noted = Arc::clone(&began);
        let receivers = Receivers::new(move |_| {
            let mut began = noted.lock().unwrap();
            began.push(Instant::now());
            let failure = refused().scope(Scope::Request);
            (
                Duration::ZERO,
                (!began.len().is_multiple_of(4)).then_some(failure),
            )
        });
        let running = start(&store, &receivers, config("one"));
        sleep(SECOND).await;
        store.add(1, "x");
        sleep(5 * SECOND).await;
        let began = began.lock().unwrap().clone();
        let waited: Vec<_> = began.windows(2).map(|two| two[1] - two[0]).collect();
        assert_eq!(waited.len(), 3);
        assert!(
            waited
                .iter()
                .all(|waited| *waited < Duration::from_millis(350)),
            "seed {seed}: {waited:?}"
        );
        let _ = running.stop().await;
    }
}

/// Several attempts run when the endpoint responds with 410, and each asks to disable the endpoint.
#[cfg(feature = "metrics")]
#[tokio::test(start_paused = true)]
async fn disabling_an_endpoint_is_counted_once() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    for faults in [
        &[][..],
        &[Fault::Before],
        &[Fault::After],
        &[Fault::Hang],
        &[Fault::After, Fault::Before, Fault::After],
    ] {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        let _recording = metrics::set_default_local_recorder(&recorder);
        let store = Memory::new([endpoint(0)]);
        let gone = Failure::permanent().cause(Cause::Status(410));
        let receivers = Receivers::new(move |job| match &job.payload[..] {
            b"makes it known" => (Duration::ZERO, None),
            _ => (SECOND, Some(gone)),
        });
        let one = start(&store, &receivers, config("one"));
        store.add(1, "makes it known");
        until_ended(&store).await;
        store.fail("settle", faults);
        for _ in 0..4 {
            store.add(1, "is refused");
        }
        until(|| store.disabled(1).is_some()).await;
        let two = start(&store, &receivers, config("two"));
        sleep(120 * SECOND).await;
        assert!(receivers.hits() > 2, "several attempts ran");
        let _ = (one.stop().await, two.stop().await);
        let counted = snapshotter.snapshot().into_vec().into_iter();
        let counted: Vec<_> = counted
            .filter(|(key, ..)| key.key().name() == crate::observe::DISABLED.name)
            .map(|(_, _, _, value)| value)
            .collect();
        assert_eq!(counted, [DebugValue::Counter(1)], "{faults:?}");
    }
}
