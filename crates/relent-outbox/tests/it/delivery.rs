//! Delivery from a store to a receiver over sockets: arrivals, repetitions and records.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use relent_outbox::endpoint::{Acknowledgement, Activity, Endpoint};
use relent_outbox::message::{MessageId, NewMessage};
use relent_outbox::secrets::Secrets;
use relent_outbox::store::{Filter, MessageState, MessageStatus, Sqlite, Store};
use relent_outbox::worker::{Drained, Worker, WorkerConfig};
use tokio::sync::oneshot;

use crate::support::{self, Receiver, Reply, answer, local_sender, ok};

const QUICK: &str = r#"
max_retries = 3
jitter = "none"
attempt_timeout = "300ms"
retry_on = ["5xx", "4xx", "3xx", "timeout", "network"]
stop_on = [410, 501]
backoff.constant = { delay = "20ms" }
"#;

fn config() -> WorkerConfig {
    let mut config = WorkerConfig::default();
    config.poll = Duration::from_millis(50);
    config.lease = Duration::from_secs(2);
    config
}

struct Bench {
    store: Sqlite,
    _directory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open(directory.path().join("outbox.db")).unwrap();
        Self {
            store,
            _directory: directory,
        }
    }

    async fn endpoint(&self, name: &str, url: String, change: impl FnOnce(Endpoint) -> Endpoint) {
        let endpoint = change(Endpoint::new(name, url).policy(QUICK));
        self.store.put_endpoint(endpoint).await.unwrap();
    }

    async fn enqueue(&self, endpoint: &str, events: usize) -> Vec<MessageId> {
        let messages = (0..events).map(|event| {
            NewMessage::new(
                endpoint,
                format!("event-{event}"),
                format!("{{\"event\":{event}}}"),
            )
        });
        let enqueued = self.store.enqueue(messages.collect()).await.unwrap();
        enqueued.into_iter().map(|enqueued| enqueued.id).collect()
    }

    fn worker(
        &self,
        config: WorkerConfig,
    ) -> (oneshot::Sender<()>, tokio::task::JoinHandle<Drained>) {
        let (stop, stopped) = oneshot::channel();
        let worker = Worker::new(
            self.store.clone(),
            local_sender(),
            Secrets::default(),
            config,
        );
        let running = tokio::spawn(worker.run(async move {
            let _ = stopped.await;
        }));
        (stop, running)
    }

    async fn statuses(&self) -> Vec<MessageStatus> {
        self.store
            .messages(Filter::default(), 10_000)
            .await
            .unwrap()
    }

    /// Waits until every message has ended.
    async fn until_ended(&self) -> Vec<MessageStatus> {
        within(support::until_ended(&self.store)).await
    }
}

async fn until<T, F: Future<Output = Option<T>>>(look: impl FnMut() -> F) -> T {
    within(support::until(look)).await
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future)
        .await
        .unwrap()
}

async fn drain(stop: oneshot::Sender<()>, running: tokio::task::JoinHandle<Drained>) -> Drained {
    let _ = stop.send(());
    within(running).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_faults_each_message_arrives_once() {
    let bench = Bench::new();
    let receiver = Receiver::new(|_| ok()).await;
    for name in ["a", "b", "c"] {
        bench
            .endpoint(name, receiver.url(name), |endpoint| endpoint)
            .await;
        bench.enqueue(name, 100).await;
    }
    let (stop, running) = bench.worker(config());
    let statuses = bench.until_ended().await;
    assert!(
        statuses
            .iter()
            .all(|status| status.state == MessageState::Delivered && status.attempts == 1)
    );
    let drained = drain(stop, running).await;
    assert_eq!((drained.aborted, drained.unsettled), (0, 0));
    let hits = receiver.hits();
    assert_eq!(hits.len(), 300);
    assert!(hits.iter().all(|hit| hit.number == 1));
    for hit in &hits {
        assert_eq!(hit.headers["content-type"], "application/json");
        assert!(hit.headers["user-agent"].starts_with("relent/"));
        assert!(hit.headers.contains_key("webhook-timestamp"));
    }
    // All endpoints are released.
    for endpoint in bench.store.endpoints(None, 10).await.unwrap() {
        assert_eq!(endpoint.worker, "", "{}", endpoint.endpoint.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_misbehaving_receiver_gets_a_message_again_until_it_acknowledges() {
    let bench = Bench::new();
    let whole = String::from_utf8(answer("200 OK", "", "success")).unwrap();
    let cuts = whole.len();
    let receiver = Receiver::new(move |hit| {
        let behaviour = hit.path.trim_start_matches('/').to_owned();
        if hit.number > 1 {
            return Reply::Answer(whole.clone().into_bytes());
        }
        match behaviour.as_str() {
            "hangs" => Reply::Hang,
            "late" => Reply::Late(Duration::from_secs(2), whole.clone().into_bytes()),
            "wrong" => Reply::Answer(answer("200 OK", "", "SUCCESS")),
            "redirects" => Reply::Answer(answer("302 Found", "location: /elsewhere\r\n", "")),
            "fails" => Reply::Answer(answer("500 No", "", "")),
            "busy" => Reply::Answer(answer("429 Busy", "retry-after: 1\r\n", "")),
            cut => Reply::Cut(whole.as_bytes()[..cut.parse().unwrap()].to_vec()),
        }
    })
    .await;
    let mut names: Vec<String> = (0..cuts).map(|cut| cut.to_string()).collect();
    names.extend(["hangs", "late", "wrong", "redirects", "fails", "busy"].map(str::to_owned));
    for name in &names {
        let url = receiver.url(name);
        bench
            .endpoint(name, url, |endpoint| {
                endpoint.acknowledgement(Acknowledgement::BodySuccess)
            })
            .await;
        bench.enqueue(name, 1).await;
    }
    let (stop, running) = bench.worker(config());
    let statuses = bench.until_ended().await;
    let _ = drain(stop, running).await;
    let mut ids: HashMap<String, Vec<String>> = HashMap::new();
    for hit in receiver.hits() {
        let ids = ids.entry(hit.path.clone()).or_default();
        ids.push(hit.id().to_owned());
    }
    for status in statuses {
        assert_eq!(
            (status.state, status.attempts),
            (MessageState::Delivered, 2),
            "{status:?}"
        );
        let ids = &ids[&format!("/{}", status.endpoint)];
        assert_eq!(
            ids,
            &[status.id.as_str(), status.id.as_str()],
            "{}",
            status.endpoint
        );
        let attempts = bench.store.attempts(&status.id).await.unwrap();
        assert_eq!(attempts.len(), 2);
        assert!(!attempts[0].error.is_empty() && attempts[1].error.is_empty());
        assert_eq!(attempts[1].address, receiver.address.to_string());
        if status.endpoint == "busy" {
            let apart = attempts[1].started_ms - attempts[0].started_ms;
            assert!(apart >= 1000, "{apart} ms after a Retry-After of 1 s");
        }
    }
    assert!(!ids.contains_key("/elsewhere"), "no redirect is followed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unacknowledged_message_is_dead_after_exactly_its_limit() {
    let bench = Bench::new();
    let receiver = Receiver::new(|hit| {
        Reply::Answer(match hit.path.as_str() {
            "/abort" => answer("500 No", "webhook-delivery: abort-message\r\n", ""),
            "/not-here" => answer("501 No", "", ""),
            _ => answer("500 No", "", "what a pity"),
        })
    })
    .await;
    for name in ["always", "abort", "not-here"] {
        bench
            .endpoint(name, receiver.url(name), |endpoint| endpoint.hold(false))
            .await;
        bench.enqueue(name, 1).await;
    }
    let (stop, running) = bench.worker(config());
    let statuses = bench.until_ended().await;
    let _ = drain(stop, running).await;
    for status in statuses {
        assert_eq!(status.state, MessageState::Dead);
        let expected = if status.endpoint == "always" { 4 } else { 1 };
        assert_eq!(status.attempts, expected, "{}", status.endpoint);
        let hits = receiver.hits();
        let path = format!("/{}", status.endpoint);
        assert_eq!(
            hits.iter().filter(|hit| hit.path == path).count(),
            expected as usize
        );
        assert!(status.reason.contains("status 50"), "{}", status.reason);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_410_disables_the_endpoint_until_an_operator_enables_it() {
    let bench = Bench::new();
    let first = AtomicBool::new(true);
    let receiver = Receiver::new(move |_| match first.swap(false, Ordering::Relaxed) {
        true => Reply::Answer(answer("410 Gone", "", "")),
        false => ok(),
    })
    .await;
    bench
        .endpoint("gone", receiver.url("gone"), |endpoint| endpoint)
        .await;
    bench.enqueue("gone", 5).await;
    let (stop, running) = bench.worker(config());
    let status = until(|| async {
        let status = bench.store.endpoint("", "gone").await.unwrap().unwrap();
        (status.activity == Activity::Disabled).then_some(status)
    })
    .await;
    assert!(status.reason.contains("410"), "{}", status.reason);
    // One attempt at a time until the first response: the others have not been sent.
    assert_eq!(receiver.hits().len(), 1);
    assert!(
        bench
            .store
            .set_activity("", "gone", Activity::Active, "")
            .await
            .unwrap()
    );
    let mut ended = bench.until_ended().await;
    // Only the message with the 410 is dead, by its policy.
    ended.retain(|status| status.state == MessageState::Dead);
    assert_eq!(ended.len(), 1);
    assert_eq!(receiver.hits().len(), 5);
    let _ = drain(stop, running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_asks_to_disable_holds_messages_of_the_endpoint() {
    // An acknowledgement, a retried failure, one that ends a message, and one after the last attempt.
    let once = "max_retries = 0\nbackoff = \"none\"\nretry_on = [\"5xx\"]";
    for (status, policy) in [
        ("200 OK", QUICK),
        ("503 Wait", QUICK),
        ("501 No", QUICK),
        ("404 No", once),
        ("500 Oops", once),
    ] {
        let bench = Bench::new();
        let first = AtomicBool::new(true);
        let receiver = Receiver::new(move |_| match first.swap(false, Ordering::Relaxed) {
            true => Reply::Answer(answer(status, "webhook-delivery: disable\r\n", "")),
            false => ok(),
        })
        .await;
        bench
            .endpoint("shop", receiver.url("shop"), |shop| shop.policy(policy))
            .await;
        bench.enqueue("shop", 5).await;
        let (stop, running) = bench.worker(config());
        let shop = until(|| async {
            let shop = bench.store.endpoint("", "shop").await.unwrap().unwrap();
            (shop.activity == Activity::Disabled).then_some(shop)
        })
        .await;
        assert!(
            shop.reason.contains("webhook-delivery: disable"),
            "{status}"
        );
        assert_eq!(receiver.hits().len(), 1, "{status}");
        let pending = match status {
            "200 OK" => 4,
            _ => 5,
        };
        assert_eq!((shop.pending, shop.dead), (pending, 0), "{status}");
        let enabled = bench.store.set_activity("", "shop", Activity::Active, "");
        assert!(enabled.await.unwrap());
        for message in bench.until_ended().await {
            assert_eq!(
                message.state,
                MessageState::Delivered,
                "{status}: {message:?}"
            );
        }
        let _ = drain(stop, running).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_of_600_or_more_is_retried() {
    let bench = Bench::new();
    let receiver = Receiver::new(|hit| match hit.number {
        1 => Reply::Answer(answer("600 What", "", "")),
        2 => Reply::Answer(answer("999 What", "", "")),
        _ => ok(),
    })
    .await;
    bench
        .endpoint("odd", receiver.url("odd"), |odd| odd.policy(QUICK))
        .await;
    bench.enqueue("odd", 1).await;
    let (stop, running) = bench.worker(config());
    let ended = bench.until_ended().await;
    assert_eq!(
        (ended[0].state, ended[0].attempts),
        (MessageState::Delivered, 3)
    );
    let _ = drain(stop, running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_one_order_key_arrive_one_after_another() {
    let bench = Bench::new();
    let receiver = Receiver::new(|hit| match hit.number {
        1 => Reply::Answer(answer("503 No", "", "")),
        _ => ok(),
    })
    .await;
    bench
        .endpoint("shop", receiver.url("shop"), |endpoint| {
            endpoint.hold(false)
        })
        .await;
    let messages = (0..20).map(|event| {
        NewMessage::new("shop", format!("event-{event}"), format!("{event}")).in_order("order")
    });
    bench.store.enqueue(messages.collect()).await.unwrap();
    let (stop, running) = bench.worker(config());
    bench.until_ended().await;
    let _ = drain(stop, running).await;
    let arrived: Vec<String> = receiver
        .hits()
        .iter()
        .map(|hit| String::from_utf8(hit.body.clone()).unwrap())
        .collect();
    let expected: Vec<String> = (0..20)
        .flat_map(|event| [event.to_string(), event.to_string()])
        .collect();
    assert_eq!(arrived, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_worker_dies_only_its_running_attempts_are_repeated() {
    let bench = Bench::new();
    let receiver = Receiver::new(|hit| match hit.number {
        1 => Reply::Late(Duration::from_millis(100), answer("200 OK", "", "")),
        _ => ok(),
    })
    .await;
    for name in ["a", "b", "c", "d"] {
        bench
            .endpoint(name, receiver.url(name), |endpoint| endpoint)
            .await;
        bench.enqueue(name, 20).await;
    }
    let (_stop, running) = bench.worker(config());
    until(|| async { (receiver.hits().len() >= 10).then_some(()) }).await;
    // It ends without a shutdown: its attempts are dropped.
    running.abort();
    let _ = running.await;
    let on_their_way = bench
        .statuses()
        .await
        .iter()
        .filter(|status| status.state == MessageState::Running)
        .count();
    let (stop, running) = bench.worker(config());
    let statuses = bench.until_ended().await;
    let _ = drain(stop, running).await;
    assert!(
        statuses
            .iter()
            .all(|status| status.state == MessageState::Delivered)
    );
    let mut counts: HashMap<String, usize> = HashMap::new();
    for hit in receiver.hits() {
        *counts.entry(hit.id().to_owned()).or_default() += 1;
    }
    assert_eq!(counts.len(), 80, "none is lost");
    let repeats: usize = counts.values().map(|count| count - 1).sum();
    assert!(
        repeats <= on_their_way,
        "{repeats} repeats, {on_their_way} on their way"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_waits_for_running_attempts_and_aborts_slow_ones() {
    let bench = Bench::new();
    let receiver = Receiver::new(|hit| match hit.path.as_str() {
        "/late" => Reply::Late(Duration::from_millis(200), answer("200 OK", "", "")),
        _ => Reply::Hang,
    })
    .await;
    let patient = QUICK.replace("300ms", "60s");
    for name in ["late", "hangs"] {
        bench
            .endpoint(name, receiver.url(name), |endpoint| {
                endpoint.policy(patient.as_str())
            })
            .await;
        bench.enqueue(name, 1).await;
    }
    let mut config = config();
    config.drain = Duration::from_millis(600);
    let (stop, running) = bench.worker(config);
    until(|| async { (receiver.hits().len() == 2).then_some(()) }).await;
    let drained = drain(stop, running).await;
    assert_eq!((drained.aborted, drained.unsettled), (1, 0));
    for status in bench.statuses().await {
        let expected = if status.endpoint == "late" {
            MessageState::Delivered
        } else {
            MessageState::Pending
        };
        assert_eq!(status.state, expected, "{}", status.endpoint);
        assert_eq!(status.attempts, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reregistered_endpoint_is_called_at_its_new_url() {
    let bench = Bench::new();
    let before = Receiver::new(|_| Reply::Answer(answer("500 No", "", ""))).await;
    let after = Receiver::new(|_| ok()).await;
    bench
        .endpoint("moves", before.url(""), |endpoint| endpoint.hold(false))
        .await;
    bench.enqueue("moves", 1).await;
    let (stop, running) = bench.worker(config());
    until(|| async { (before.hits().len() == 1).then_some(()) }).await;
    bench
        .endpoint("moves", after.url(""), |endpoint| endpoint.hold(false))
        .await;
    let statuses = bench.until_ended().await;
    let _ = drain(stop, running).await;
    assert_eq!(statuses[0].state, MessageState::Delivered);
    assert_eq!(after.hits().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_registered_at_run_time_is_served_immediately() {
    let bench = Bench::new();
    let receiver = Receiver::new(|_| ok()).await;
    let mut config = config();
    config.lease = Duration::from_secs(3600);
    let (stop, running) = bench.worker(config);
    tokio::time::sleep(Duration::from_millis(200)).await;
    for round in ["first", "second"] {
        bench
            .endpoint(round, receiver.url(round), |endpoint| endpoint)
            .await;
        bench.enqueue(round, 1).await;
        // The next heartbeat would be in 20 min.
        let statuses = bench.until_ended().await;
        assert!(
            statuses
                .iter()
                .all(|status| status.state == MessageState::Delivered)
        );
    }
    let _ = drain(stop, running).await;
}
