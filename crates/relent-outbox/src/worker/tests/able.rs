//! Workers on faulty machines leave their endpoints to other workers.

use std::future::ready;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::fault::{FaultKind, LocalFault};

/// A machine with a switch for its local fault.
#[derive(Clone, Default)]
struct Machine {
    is_faulty: Arc<AtomicBool>,
    tests: Arc<AtomicUsize>,
}

impl Machine {
    fn set_faulty(&self, is_faulty: bool) {
        self.is_faulty.store(is_faulty, Ordering::Relaxed);
    }

    /// Attempts are acknowledged, unless the local fault prevents them.
    fn transport(&self) -> Transport {
        let (this, tested) = (self.clone(), self.clone());
        let transport = Transport::new(watch::channel(true).1, move |mut job| {
            let is_faulty = this.is_faulty.load(Ordering::Relaxed);
            async move {
                job.ready().await?;
                let mut sent = AttemptResult::failed(refused(), String::new(), SECOND / 100);
                sent.outcome = Ok(());
                if is_faulty {
                    let (kind, error) = (FaultKind::Resolver, "for a test".to_owned());
                    sent = AttemptResult::local_fault(&LocalFault { kind, error });
                }
                Ok(sent)
            }
        });
        transport.in_process(move |_| {
            tested.tests.fetch_add(1, Ordering::Relaxed);
            ready(!tested.is_faulty.load(Ordering::Relaxed))
        })
    }
}

fn owned_by(store: &Memory, name: &str) -> usize {
    let owners = store.owners();
    owners.iter().filter(|owner| *owner == name).count()
}

/// Adds messages to all endpoints until both workers own their shares.
async fn two_on(store: &Memory, machines: [&Machine; 2]) -> [Running; 2] {
    let [one, two] = machines.map(Machine::transport);
    let running = [
        run(worker(store, one, config("one"))),
        run(worker(store, two, config("two"))),
    ];
    while owned_by(store, "one") < 8 || owned_by(store, "two") < 8 {
        add_to_all(store);
        until_ended(store).await;
        sleep(SECOND).await;
    }
    running
}

fn add_to_all(store: &Memory) {
    for endpoint in 1..=20 {
        store.add(endpoint, "x");
    }
}

#[tokio::test(start_paused = true)]
async fn another_worker_takes_the_endpoints_of_one_with_local_faults_until_it_is_able_again() {
    let store = Memory::new((0..20).map(endpoint));
    let (one, two) = (Machine::default(), Machine::default());
    let running = two_on(&store, [&one, &two]).await;
    one.set_faulty(true);
    add_to_all(&store);
    let began = Instant::now();
    until_ended(&store).await;
    // Three tests take 7 s; then both workers need a heartbeat.
    assert!(began.elapsed() < 20 * SECOND, "{:?}", began.elapsed());
    assert_eq!(owned_by(&store, "one"), 0);
    // It has no share while it is not able, although there is work.
    for _ in 0..60 {
        add_to_all(&store);
        sleep(SECOND).await;
        assert_eq!(owned_by(&store, "one"), 0);
    }
    until_ended(&store).await;
    one.set_faulty(false);
    timeout(60 * SECOND, async {
        while owned_by(&store, "one") < 8 {
            add_to_all(&store);
            sleep(SECOND).await;
        }
    })
    .await
    .unwrap();
    until_ended(&store).await;
    let tests = one.tests.load(Ordering::Relaxed);
    sleep(600 * SECOND).await;
    assert_eq!(
        one.tests.load(Ordering::Relaxed),
        tests,
        "it does not doubt"
    );
    for running in running {
        let _ = running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_fault_moves_no_endpoint() {
    let store = Memory::new((0..20).map(endpoint));
    let (one, two) = (Machine::default(), Machine::default());
    let running = two_on(&store, [&one, &two]).await;
    let owners = store.owners();
    one.set_faulty(true);
    add_to_all(&store);
    sleep(2 * SECOND).await;
    one.set_faulty(false);
    until_ended(&store).await;
    sleep(60 * SECOND).await;
    assert_eq!(store.owners(), owners);
    for running in running {
        let _ = running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn workers_that_are_all_faulty_keep_their_endpoints_and_send_when_one_is_repaired() {
    let store = Memory::new((0..20).map(endpoint));
    let (one, two) = (Machine::default(), Machine::default());
    let running = two_on(&store, [&one, &two]).await;
    one.set_faulty(true);
    two.set_faulty(true);
    add_to_all(&store);
    sleep(600 * SECOND).await;
    assert!(owned_by(&store, "one") >= 8 && owned_by(&store, "two") >= 8);
    assert_eq!(store.unended(), 20);
    two.set_faulty(false);
    timeout(60 * SECOND, until_ended(&store)).await.unwrap();
    for running in running {
        let _ = running.stop().await;
    }
}

/// As with NATS, if the connection of one dispatcher fails.
#[tokio::test(start_paused = true)]
async fn another_worker_takes_the_endpoints_of_one_whose_relay_accepts_nothing() {
    let store = Memory::new((0..20).map(endpoint));
    let (open, is_open) = watch::channel(true);
    let one = Transport::new(is_open, async |mut job: Job| {
        job.ready().await?;
        let mut sent = AttemptResult::failed(refused(), String::new(), SECOND / 100);
        sent.outcome = Ok(());
        Ok(sent)
    });
    let one = run(worker(&store, one, config("one")));
    add_to_all(&store);
    until_ended(&store).await;
    assert_eq!(owned_by(&store, "one"), 20);
    open.send_replace(false);
    let two = run(worker(
        &store,
        Machine::default().transport(),
        config("two"),
    ));
    sleep(20 * SECOND).await;
    add_to_all(&store);
    timeout(20 * SECOND, until_ended(&store)).await.unwrap();
    assert_eq!(owned_by(&store, "one"), 0);
    open.send_replace(true);
    sleep(20 * SECOND).await;
    add_to_all(&store);
    until_ended(&store).await;
    assert!(owned_by(&store, "one") >= 8);
    let _ = (one.stop().await, two.stop().await);
}
