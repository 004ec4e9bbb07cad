//! Failing or hanging messages and endpoints delay others by no more than a bound.

use super::*;
use crate::store::INLINE;

/// The longest wait of deliverable messages until their attempt starts, while `failing` others always fail. All of
/// those have failed before.
async fn lag_beside_failing(failing: usize, each: Duration, endpoint: Endpoint) -> Duration {
    let answer = Duration::from_millis(20);
    lag_beside_slow(failing, answer, each, endpoint).await
}

/// As before; the others then take this time to fail.
async fn lag_beside_slow(
    failing: usize,
    slow: Duration,
    each: Duration,
    endpoint: Endpoint,
) -> Duration {
    let store = Memory::new([endpoint]);
    let latest = Arc::new(Mutex::new(Duration::ZERO));
    let (noted, origin) = (Arc::clone(&latest), Instant::now());
    let all_failed = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let are_slow = Arc::clone(&all_failed);
    let receivers = Receivers::new(move |job| {
        let answer = Duration::from_millis(20);
        if job.payload == "bad" {
            return match are_slow.load(Ordering::Relaxed) {
                true => (slow, Some(refused())),
                false => (answer, Some(refused())),
            };
        }
        let enqueued: u64 = std::str::from_utf8(&job.payload).unwrap().parse().unwrap();
        let lag = origin
            .elapsed()
            .saturating_sub(Duration::from_micros(enqueued));
        let mut latest = noted.lock().unwrap();
        *latest = lag.max(*latest);
        (answer, None)
    });
    let running = start(&store, &receivers, config("one"));
    let good = |store: &Memory| {
        let now = origin.elapsed().as_micros().to_string();
        store.add(1, now)
    };
    for _ in 0..failing {
        store.add(1, "bad");
    }
    // Deliverable messages among them keep the breaker normal, so that each of the others fails for the first time.
    until(|| {
        good(&store);
        let hits = receivers.hits.lock().unwrap();
        hits.len() > failing
    })
    .await;
    all_failed.store(true, Ordering::Relaxed);
    sleep(20 * SECOND).await;
    until(|| store.unended() <= failing).await;
    *latest.lock().unwrap() = Duration::ZERO;
    for _ in 0..10 {
        good(&store);
        sleep(each).await;
    }
    until(|| store.unended() <= failing).await;
    running.worker.abort();
    *latest.lock().unwrap()
}

/// A policy by which a message keeps failing during the whole test.
const ALWAYS: &str = r#"
max_retries = 1000
jitter = "none"
attempt_timeout = "15s"
retry_on = ["5xx", "timeout", "network"]
backoff.constant = { delay = "5s" }
"#;

#[tokio::test(start_paused = true)]
async fn a_deliverable_message_starts_within_two_probes_beside_failing_ones() {
    let (often, now_and_then) = (SECOND / 10, 20 * SECOND);
    for (failing, each, hold) in [
        (1, often, true),
        (50, often, true),
        (50, often, false),
        (50, now_and_then, true),
        (200, SECOND, true),
        (1000, SECOND, true),
    ] {
        let endpoint = endpoint(0).policy(ALWAYS).hold(hold);
        let lag = lag_beside_failing(failing, each, endpoint).await;
        assert!(
            lag <= 10 * SECOND,
            "{failing} fail, one each {each:?}, held {hold}: {lag:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_deliverable_message_starts_within_an_attempt_beside_hanging_ones() {
    let attempt = 15 * SECOND;
    for (failing, each, hold) in [
        (50, SECOND, true),
        (50, 20 * SECOND, false),
        (200, SECOND, false),
    ] {
        let endpoint = endpoint(0).policy(ALWAYS).hold(hold);
        let lag = lag_beside_slow(failing, attempt, each, endpoint).await;
        assert!(
            lag <= attempt,
            "{failing} hang, one each {each:?}, held {hold}: {lag:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_deliverable_message_is_found_behind_untried_hanging_ones_in_two_attempts() {
    let attempt = 15 * SECOND;
    let store = Memory::new([endpoint(0).policy(ALWAYS)]);
    for _ in 0..1000 {
        store.add(1, "bad");
    }
    let receivers = Receivers::new(move |job| match job.payload == "bad" {
        true => (attempt, Some(refused())),
        false => (SECOND / 50, None),
    });
    let running = start(&store, &receivers, config("one"));
    for seconds in 0..5 {
        sleep(60 * SECOND + seconds * SECOND).await;
        let good = store.add(1, "good");
        let began = Instant::now();
        until(|| store.row(good, |row| row.ended.is_some())).await;
        assert!(began.elapsed() <= 2 * attempt, "{:?}", began.elapsed());
    }
    running.worker.abort();
}

/// None of the others has been attempted when the deliverable message is enqueued behind them.
#[tokio::test(start_paused = true)]
async fn a_deliverable_message_is_found_behind_many_untried_failing_ones() {
    let store = Memory::new([endpoint(0).policy(ALWAYS)]);
    for _ in 0..1000 {
        store.add(1, "bad");
    }
    let receivers = Receivers::new(|job| {
        let failure = (job.payload == "bad").then(refused);
        (Duration::from_millis(20), failure)
    });
    let running = start(&store, &receivers, config("one"));
    sleep(300 * SECOND).await;
    let good = store.add(1, "good");
    let began = Instant::now();
    until(|| store.row(good, |row| row.ended.is_some())).await;
    // Three probes: the earliest due fresh message, the latest due one, and one that has failed.
    assert!(began.elapsed() <= 15 * SECOND, "{:?}", began.elapsed());
    running.worker.abort();
}

/// Each of many keys has a first message that always fails.
#[tokio::test(start_paused = true)]
async fn a_failing_order_key_does_not_delay_other_keys() {
    let store = Memory::new([endpoint(0).policy(ALWAYS)]);
    let receivers = Receivers::new(|job| {
        let failure = (job.payload == "bad").then(refused);
        (Duration::from_millis(20), failure)
    });
    let running = start(&store, &receivers, config("one"));
    for key in 0..200 {
        store.add_ordered(1, "bad", Duration::ZERO, Some(key));
        store.add_ordered(1, "behind", Duration::ZERO, Some(key));
    }
    sleep(300 * SECOND).await;
    for key in 1000..1010 {
        let good = store.add_ordered(1, "good", Duration::ZERO, Some(key));
        let began = Instant::now();
        until(|| store.row(good, |row| row.ended.is_some())).await;
        assert!(began.elapsed() <= 15 * SECOND, "{:?}", began.elapsed());
        sleep(20 * SECOND).await;
    }
    running.worker.abort();
}

/// The largest delay of messages to responsive endpoints, while `hanging` others start to hang at the same time. Those
/// are new to the worker, or have responded until then.
async fn lag_beside_hanging(hanging: usize, have_answered: bool) -> Duration {
    let healthy = 100;
    let store = Memory::new(
        (0..hanging + healthy)
            .map(|number| Endpoint::new(number.to_string(), "https://shop.example/").policy(TEN)),
    );
    let latest = Arc::new(Mutex::new(Duration::ZERO));
    let (noted, origin) = (Arc::clone(&latest), Instant::now());
    let hangs = Arc::new(std::sync::atomic::AtomicBool::new(!have_answered));
    let now_hangs = Arc::clone(&hangs);
    let receivers = Receivers::new(move |job| {
        let number: usize = job.rules.endpoint.name.parse().unwrap();
        if number < hanging {
            return match now_hangs.load(Ordering::Relaxed) {
                true => (3600 * SECOND, None),
                false => (Duration::from_millis(20), None),
            };
        }
        let enqueued: u64 = std::str::from_utf8(&job.payload).unwrap().parse().unwrap();
        let lag = origin
            .elapsed()
            .saturating_sub(Duration::from_micros(enqueued));
        let mut latest = noted.lock().unwrap();
        *latest = lag.max(*latest);
        (Duration::from_millis(20), None)
    });
    let mut often = config("one");
    often.poll = Duration::from_millis(20);
    let running = start(&store, &receivers, often);
    let round = |endpoints: std::ops::Range<usize>| {
        for endpoint in endpoints {
            let now = origin.elapsed().as_micros().to_string();
            store.add(i64::try_from(endpoint).unwrap() + 1, now);
        }
    };
    let all = hanging + healthy;
    if have_answered {
        round(0..all);
        until_ended(&store).await;
        sleep(5 * SECOND).await;
    }
    *latest.lock().unwrap() = Duration::ZERO;
    hangs.store(true, Ordering::Relaxed);
    for second in 0..20 {
        if second < 4 {
            round(0..hanging);
        }
        round(hanging..all);
        sleep(SECOND).await;
    }
    running.worker.abort();
    *latest.lock().unwrap()
}

#[tokio::test(start_paused = true)]
#[ignore = "slow: scripts/test --all runs it"]
async fn three_thousand_hanging_endpoints_delay_others_by_at_most_three_seconds() {
    for have_answered in [false, true] {
        let lag = lag_beside_hanging(3000, have_answered).await;
        assert!(lag <= 3 * SECOND, "have answered {have_answered}: {lag:?}");
    }
}

/// Beyond all slots a new endpoint waits until attempts time out; a responsive one does not.
#[tokio::test(start_paused = true)]
async fn responsive_endpoints_keep_half_of_the_slots() {
    let store = Memory::new((0..101).map(endpoint));
    let receivers = Receivers::new(|job| match &job.rules.endpoint.name[..] {
        "e100" => (Duration::from_millis(20), None),
        _ => (3600 * SECOND, None),
    });
    let mut few = config("one");
    (few.in_flight, few.slow_in_flight) = (8, 2);
    let running = start(&store, &receivers, few);
    store.add(101, "x");
    until_ended(&store).await;
    for endpoint in 1..=100 {
        store.add(endpoint, "x");
    }
    sleep(5 * SECOND).await;
    let began = Instant::now();
    for _ in 0..20 {
        let row = store.add(101, "x");
        store.hint(crate::store::Hinted::Endpoints([101].into()));
        until(|| store.row(row, |row| row.ended.is_some())).await;
    }
    assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
    running.worker.abort();
}

/// All slots are in use, by endpoints whose messages do not end.
#[tokio::test(start_paused = true)]
async fn an_endpoint_that_waits_for_a_slot_is_served_before_those_with_a_backlog() {
    let store = Memory::new((0..9).map(endpoint));
    let mut few = config("one");
    few.in_flight = 4;
    let running = start(&store, &quick(), few);
    for message in 0..8000 {
        store.add(1 + message % 8, "x");
    }
    sleep(5 * SECOND).await;
    for _ in 0..3 {
        let late = store.add(9, "x");
        store.hint(crate::store::Hinted::Endpoints([9].into()));
        let began = Instant::now();
        until(|| store.row(late, |row| row.ended.is_some())).await;
        assert!(began.elapsed() <= SECOND, "{:?}", began.elapsed());
    }
    assert!(store.unended() > 1000, "there is still a backlog");
    running.worker.abort();
}

/// All memory is in use, by endpoints whose messages do not end.
#[tokio::test(start_paused = true)]
async fn an_endpoint_that_waits_for_memory_is_served_before_those_with_a_backlog() {
    static PAYLOAD: [u8; 100_000] = [7; 100_000];
    let store = Memory::new((0..4).map(endpoint));
    let mut config = config("one");
    config.body_bytes = 1;
    let running = start(&store, &quick(), config);
    for message in 0..1500 {
        store.add(1 + message % 3, &PAYLOAD[..]);
    }
    sleep(5 * SECOND).await;
    let late = store.add(4, &PAYLOAD[..]);
    store.hint(crate::store::Hinted::Endpoints([4].into()));
    let began = Instant::now();
    until(|| store.row(late, |row| row.ended.is_some())).await;
    assert!(began.elapsed() <= SECOND, "{:?}", began.elapsed());
    assert!(store.unended() > 500, "there is still a backlog");
    running.worker.abort();
}

/// The health that one owner has recorded applies for the next owner.
#[tokio::test(start_paused = true)]
async fn a_silent_endpoint_takes_no_fast_slot_under_its_next_owner() {
    let store = Memory::new((0..40).map(endpoint));
    for endpoint in 1..=40 {
        store.add(endpoint, "x");
    }
    let hangs = Receivers::new(|_| (3600 * SECOND, None));
    let running = start(&store, &hangs, config("one"));
    // Each attempt has timed out, and its message is due again.
    sleep(20 * SECOND).await;
    let _ = running.stop().await;
    let mut few = config("two");
    (few.in_flight, few.slow_in_flight) = (4, 2);
    let running = start(&store, &hangs, few);
    sleep(5 * SECOND).await;
    let begun = hangs.at_once.load(Ordering::Relaxed);
    assert!(begun <= 2, "{begun} at the same time");
    running.worker.abort();
}

/// The bytes of long payloads that attempts hold, and their maximum.
#[derive(Default)]
struct Bytes {
    held: AtomicUsize,
    most: AtomicUsize,
}

#[tokio::test(start_paused = true)]
async fn hanging_large_payloads_stay_within_the_memory_limit() {
    let mib = 1 << 20;
    static PAYLOAD: [u8; 1 << 20] = [0; 1 << 20];
    for body_bytes in [64 << 20, 4 << 20, 1] {
        let store = Memory::new((0..101).map(|number| {
            let many = NonZeroU32::new(16).unwrap();
            endpoint(number).concurrency(many)
        }));
        for message in 0..1500 {
            store.add(1 + message % 100, &PAYLOAD[..]);
        }
        let count: Arc<Bytes> = Arc::default();
        let counted = Arc::clone(&count);
        let receivers = Receivers::new(move |job| {
            if job.payload.len() > INLINE {
                let held = counted.held.fetch_add(job.payload.len(), Ordering::Relaxed);
                counted
                    .most
                    .fetch_max(held + job.payload.len(), Ordering::Relaxed);
                let counted = Arc::clone(&counted);
                let size = job.payload.len();
                // The attempt times out.
                tokio::spawn(async move {
                    sleep(15 * SECOND - Duration::from_millis(1)).await;
                    counted.held.fetch_sub(size, Ordering::Relaxed);
                });
                return (3600 * SECOND, None);
            }
            (Duration::from_millis(20), None)
        });
        let mut config = config("one");
        config.body_bytes = body_bytes;
        let running = start(&store, &receivers, config);
        sleep(3 * SECOND).await;
        // Short messages are delivered meanwhile.
        let began = Instant::now();
        let short = store.add(101, "x");
        until(|| store.row(short, |row| row.ended.is_some())).await;
        assert!(began.elapsed() <= 2 * SECOND, "{:?}", began.elapsed());
        sleep(120 * SECOND).await;
        let most = count.most.load(Ordering::Relaxed);
        assert!(most <= body_bytes.max(mib), "{most} of {body_bytes}");
        // Hanging endpoints hold half of the limit.
        assert!(
            most >= (body_bytes / 2).max(mib) / 2,
            "{most} of {body_bytes}"
        );
        running.worker.abort();
    }
}

/// A payload is freed once it is written, so that messages for slow receivers do not wait for each other.
#[tokio::test(start_paused = true)]
async fn large_payloads_are_delivered_with_memory_for_one() {
    static PAYLOAD: [u8; 100_000] = [7; 100_000];
    let store = Memory::new((0..3).map(endpoint));
    for message in 0..60 {
        store.add(1 + message % 3, &PAYLOAD[..]);
        store.add(1 + message % 3, "x");
    }
    let receivers = Receivers::new(|job| {
        assert_eq!(job.payload.len(), job.size);
        (Duration::from_millis(20), None)
    });
    let mut config = config("one");
    config.body_bytes = 1;
    let running = start(&store, &receivers, config);
    until_ended(&store).await;
    assert_eq!(receivers.hits(), 120);
    let _ = running.stop().await;
}
