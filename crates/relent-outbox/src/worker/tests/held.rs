//! The report of a worker about endpoints that it holds back.

use relent_core::Hint;

use super::*;
use crate::worker::{HeldEndpoint, HoldReason};

#[tokio::test(start_paused = true)]
async fn a_worker_reports_held_endpoints_with_reason_and_time() {
    let paced = format!("{TEN}\nrate_limit.limit = 0.03\n");
    let store = Memory::new([
        endpoint(0),
        endpoint(1),
        endpoint(2).concurrency(NonZeroU32::MIN),
        endpoint(3),
        endpoint(4).policy(paced),
        endpoint(5).tenant("acme"),
    ]);
    for lane in 1..=6 {
        for _ in 0..if lane == 4 { 1 } else { 30 } {
            store.add(lane, "x");
        }
    }
    let minute = Failure::throttled().hint(Hint::after(60 * SECOND));
    let receivers = Receivers::new(move |job| match &job.rules.endpoint.name[..] {
        "e0" => (SECOND / 10, Some(refused())),
        "e1" => (SECOND / 10, Some(minute)),
        "e2" => (20 * SECOND, None),
        // It uses the only slow slot.
        "e5" => (100 * SECOND, None),
        _ => (SECOND / 10, None),
    });
    let mut config = config("one");
    config.slow_in_flight = 1;
    let worker = worker(&store, receivers.transport(), config);
    let watch = worker.watch();
    let running = run(worker);
    sleep(10 * SECOND).await;
    let mut held = watch.held().await;
    held.sort_by(|one, other| one.name.cmp(&other.name));
    let left = |held: &HeldEndpoint| {
        let left = held.until?.duration_since(std::time::SystemTime::now());
        Some(left.unwrap_or_default().as_secs())
    };
    let of = |name: &str| held.iter().find(|one| one.name == name);
    let (down, pause) = (of("e0").unwrap(), of("e1").unwrap());
    assert_eq!(down.hold_reason, HoldReason::Down);
    assert!(left(down).is_some_and(|left| left < 60), "{down:?}");
    assert_eq!(
        (pause.hold_reason, pause.running),
        (HoldReason::Cooldown, 0)
    );
    assert!(
        left(pause).is_some_and(|left| (40..=120).contains(&left)),
        "{pause:?}"
    );
    let busy = of("e2").unwrap();
    assert_eq!(
        (busy.hold_reason, busy.until, busy.running),
        (HoldReason::Concurrency, None, 1)
    );
    assert_eq!(of("e3"), None, "nothing of it waits");
    let paced = of("e4").unwrap();
    assert_eq!(paced.hold_reason, HoldReason::RateLimit);
    assert!(
        left(paced).is_some_and(|left| (5..=100).contains(&left)),
        "{paced:?}"
    );
    assert_eq!(of("e5").unwrap().tenant, "acme");
    let _ = running.stop().await;
    assert_eq!(watch.held().await, [], "whoever has ended holds nothing");
}
