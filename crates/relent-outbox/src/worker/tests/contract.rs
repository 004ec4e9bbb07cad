//! Schedules that are contracts, and local faults.

use relent_core::Hint;

use super::*;
use crate::fault::{FaultKind, LocalFault};
use crate::worker::HoldReason;

const CONTRACT: &str = r#"
max_retries = 4
jitter = "none"
hint = "ignore"
attempt_timeout = "20s"
retry_on = ["5xx", "4xx", "3xx", "timeout", "network"]
[backoff.schedule]
delays = ["15s", "15s", "30s", "3m"]
"#;

type Begun = Arc<Mutex<HashMap<String, Vec<Instant>>>>;

/// The start times of the attempts of each of `messages` messages, at an endpoint that behaves as `receive`.
async fn begun(
    messages: usize,
    receive: impl Fn(usize) -> (Duration, Option<Failure>) + Send + Sync + 'static,
) -> Vec<Vec<Instant>> {
    let store = Memory::new([endpoint(0).policy(CONTRACT)]);
    let seen = Begun::default();
    let noted = Arc::clone(&seen);
    let receivers = Receivers::new(move |job| {
        let mut noted = noted.lock().unwrap();
        let count = noted.len();
        let begun = noted.entry(job.id.to_string()).or_default();
        begun.push(Instant::now());
        receive(count)
    });
    let running = start(&store, &receivers, config("one"));
    // The worker already owns the endpoint.
    sleep(SECOND).await;
    for _ in 0..messages {
        store.add(1, "x");
    }
    until_ended(&store).await;
    let _ = running.stop().await;
    let seen = seen.lock().unwrap();
    seen.values().cloned().collect()
}

fn assert_kept(attempts: &[Vec<Instant>], messages: usize, takes: Duration) {
    assert_eq!(attempts.len(), messages);
    let first = attempts.iter().map(|begun| begun[0]).min().unwrap();
    for begun in attempts {
        assert_eq!(begun.len(), 5);
        assert!(begun[0] < first + 2 * SECOND, "the first is late");
        for (pair, delay) in begun.windows(2).zip([15, 15, 30, 180]) {
            let due = pair[0] + takes + delay * SECOND;
            let late = pair[1].saturating_duration_since(due);
            assert!(pair[1] >= due && late < SECOND, "{delay} s: {late:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn slow_attempts_do_not_delay_a_contract_schedule() {
    let attempts = begun(100, |_| (3600 * SECOND, None)).await;
    assert_kept(&attempts, 100, 20 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_is_down_does_not_delay_a_contract_schedule() {
    let attempts = begun(100, |_| (SECOND / 10, Some(refused()))).await;
    assert_kept(&attempts, 100, SECOND / 10);
}

#[tokio::test(start_paused = true)]
async fn retry_after_does_not_delay_a_contract_schedule() {
    let attempts = begun(20, |_| {
        let hour = Hint::after(3600 * SECOND);
        let failure = Failure::throttled().cause(Cause::Status(429)).hint(hour);
        (SECOND / 10, Some(failure))
    })
    .await;
    assert_kept(&attempts, 20, SECOND / 10);
}

/// A transport whose attempts fail by a local fault until then, with the number of attempts.
fn local_fault(kind: FaultKind, until: Instant) -> (Transport, Arc<AtomicUsize>) {
    let made = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&made);
    let transport = Transport::new(watch::channel(true).1, move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        async move {
            let mut sent =
                AttemptResult::failed(Failure::not_processed(), String::new(), SECOND / 10);
            sent.outcome = Ok(());
            if Instant::now() < until {
                let error = "for a test".to_owned();
                sent = AttemptResult::local_fault(&LocalFault { kind, error });
            }
            Ok(sent)
        }
    });
    (transport, made)
}

#[tokio::test(start_paused = true)]
async fn a_local_fault_holds_messages_without_counting_attempts() {
    for (kind, name) in FaultKind::ALL {
        let store = Memory::new([endpoint(0), endpoint(1).policy(CONTRACT)]);
        let rows: Vec<i64> = (0..40)
            .map(|message| store.add(1 + message % 2, "x"))
            .collect();
        let (transport, made) = local_fault(kind, Instant::now() + 300 * SECOND);
        let mut config = config("one");
        // A failure of the endpoint would disable it.
        config.disable_after = crate::health::DisableAfter {
            failing_for: Duration::ZERO,
            failures: 1,
        };
        let worker = worker(&store, transport, config);
        let watch = worker.watch();
        let running = run(worker);
        sleep(200 * SECOND).await;
        // A single message of each endpoint tests whether the fault is fixed, less and less often; or each message for
        // itself.
        let (endpoints, tries) = match kind.is_of_message() {
            true => (0, 400..=560),
            false => (2, 20..=49),
        };
        let held = watch.held().await;
        assert_eq!(held.len(), endpoints, "{name}: {held:?}");
        for held in held {
            assert_eq!(held.hold_reason, HoldReason::LocalFault, "{name}");
            assert_eq!(held.error, "for a test");
            assert!(held.until.is_some());
        }
        let tried = made.load(Ordering::Relaxed);
        assert!(tries.contains(&tried), "{name}: {tried}");
        until_ended(&store).await;
        for row in rows {
            store.row(row, |row| {
                assert_eq!(row.ended, Some(Ok(())), "{name}");
                assert_eq!((row.attempt, row.records.len()), (1, 1), "{name}");
            });
        }
        assert!(watch.held().await.is_empty());
        let _ = running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn messages_that_cannot_be_signed_or_sent_are_held() {
    let mut unsigned = endpoint(0);
    unsigned.secrets = vec!["env:RELENT_NO_SUCH_VARIABLE".to_owned()];
    let mut encrypted = endpoint(1);
    encrypted.secrets =
        vec!["encrypted:v1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=".to_owned()];
    let mut inside = endpoint(2);
    inside.url = "https://10.0.0.1/".to_owned();
    let mut plain = endpoint(3);
    plain.url = "http://shop.example/".to_owned();
    let later = endpoint(4).policy("a_key_of_a_later_version = 1");
    let store = Memory::new([unsigned, encrypted, inside, plain, later, endpoint(5)]);
    for lane in 1..=6 {
        store.add(lane, "x");
    }
    let receivers = quick();
    let running = start(&store, &receivers, config("one"));
    sleep(3600 * SECOND).await;
    assert_eq!(receivers.hits(), 1);
    for row in 1..=6 {
        store.row(row, |row_| {
            let expected = (row == 6).then_some(Ok(()));
            assert_eq!(row_.ended, expected, "{row}");
            assert_eq!(row_.attempt, u32::from(row == 6), "{row}");
        });
    }
    let _ = running.stop().await;
}
