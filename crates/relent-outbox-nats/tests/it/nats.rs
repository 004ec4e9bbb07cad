//! Attempts by a real nats-server: a dispatcher decides as a worker does, and NATS workers make them.

use std::collections::HashMap;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use relent_http::webhook::{Verifier, VerifyingKey};
use relent_outbox::endpoint::{Acknowledgement, Endpoint};
use relent_outbox::message::NewMessage;
use relent_outbox::resolver::{Resolve, Resolving};
use relent_outbox::secrets::Secrets;
use relent_outbox::sender::Sender;
use relent_outbox::store::{AttemptRecord, Filter, MessageState, MessageStatus, Sqlite, Store};
use relent_outbox::worker::{Drained, Worker, WorkerConfig};
use relent_outbox_nats::{NatsWorker, NatsWorkerConfig, Queue, QueueName, async_nats};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::servers;
use crate::support::{self, Receiver, Reply, answer, local_sender, ok, until, until_ended};

const QUICK: &str = r#"
max_retries = 1
jitter = "none"
attempt_timeout = "300ms"
retry_on = ["5xx", "4xx", "3xx", "timeout", "network"]
stop_on = [410, 501]
backoff.constant = { delay = "20ms" }
"#;
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

struct Bench {
    store: Sqlite,
    _directory: tempfile::TempDir,
}

/// A task that runs until it is stopped.
struct Running<T> {
    stop: oneshot::Sender<()>,
    task: JoinHandle<T>,
}

impl<T> Running<T> {
    async fn end(self) -> T {
        let _ = self.stop.send(());
        within(self.task).await.unwrap()
    }
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

    /// A store with the endpoint `a`, whose receiver acknowledges.
    async fn with_endpoint() -> (Self, Receiver) {
        let (bench, receiver) = (Self::new(), Receiver::new(|_| ok()).await);
        let endpoint = Endpoint::new("a", receiver.url("a")).policy(QUICK);
        bench.store.put_endpoint(endpoint).await.unwrap();
        (bench, receiver)
    }

    async fn enqueue(&self, endpoint: &str, events: usize) {
        let messages = (0..events)
            .map(|event| NewMessage::new(endpoint, format!("event-{event}"), "{\"order\":17}"));
        self.store.enqueue(messages.collect()).await.unwrap();
    }

    /// A worker, which is a dispatcher if there is a queue.
    fn worker(&self, queue: Option<Queue>) -> Running<Drained> {
        let mut config = WorkerConfig::default();
        config.poll = Duration::from_millis(50);
        config.lease = Duration::from_secs(2);
        let secrets = Secrets::with_key(KEY).unwrap();
        let mut worker = Worker::new(self.store.clone(), local_sender(), secrets, config);
        if let Some(queue) = queue {
            worker = worker.relay(queue);
        }
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(worker.run(async {
            let _ = stopped.await;
        }));
        Running { stop, task }
    }

    async fn statuses(&self) -> Vec<MessageStatus> {
        let all = Filter::default();
        self.store.messages(all, 10_000).await.unwrap()
    }

    /// Waits until all messages but one are delivered, and that one is held for this reason.
    async fn until_held(&self, reason: &str) -> MessageStatus {
        let mut left = until(|| async {
            let mut statuses = self.statuses().await;
            statuses.retain(|status| status.state != MessageState::Delivered);
            let is_held = |status: &MessageStatus| {
                status.state == MessageState::Pending && !status.reason.is_empty()
            };
            (statuses.len() == 1 && is_held(&statuses[0])).then_some(statuses)
        })
        .await;
        let held = left.remove(0);
        assert!(held.reason.contains(reason), "{held:?}");
        assert_eq!(held.attempts, 0);
        assert_eq!(self.store.attempts(&held.id).await.unwrap(), []);
        held
    }

    async fn until_ended(&self) -> Vec<MessageStatus> {
        until_ended(&self.store).await
    }

    /// Waits until every message has ended, each delivered by its first attempt.
    async fn until_delivered(&self) {
        for status in self.until_ended().await {
            assert_eq!(
                (status.state, status.attempts),
                (MessageState::Delivered, 1)
            );
        }
    }
}

/// A queue with its own connection.
pub(crate) async fn queue(nats: &servers::Nats) -> Queue {
    let options = async_nats::ConnectOptions::new().retry_on_initial_connect();
    let client = options.connect(nats.url()).await.unwrap();
    Queue::new(client, QueueName::default())
}

async fn deliverer(nats: &servers::Nats) -> Running<usize> {
    deliverer_with(nats, local_sender()).await
}

async fn deliverer_with(nats: &servers::Nats, sender: Sender) -> Running<usize> {
    let mut config = NatsWorkerConfig::default();
    config.drain = Duration::from_secs(5);
    let deliverer = NatsWorker::new(queue(nats).await, sender, config);
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(deliverer.run(async {
        let _ = stopped.await;
    }));
    Running { stop, task }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn over_nats_each_message_arrives_once_and_signed() {
    let Some(nats) = servers::nats() else { return };
    let bench = Bench::new();
    let receiver = Receiver::new(|_| ok()).await;
    let secrets = Secrets::with_key(KEY).unwrap();
    for name in ["a", "b", "c"] {
        let mut endpoint = Endpoint::new(name, receiver.url(name)).policy(QUICK);
        endpoint.secrets = vec![secrets.encrypt("", name, SECRET).unwrap()];
        bench.store.put_endpoint(endpoint).await.unwrap();
        bench.enqueue(name, 100).await;
    }
    let deliverers = [deliverer(&nats).await, deliverer(&nats).await];
    let relay = bench.worker(Some(queue(&nats).await));
    for status in bench.until_ended().await {
        assert_eq!(
            (status.state, status.attempts),
            (MessageState::Delivered, 1),
            "{status:?}"
        );
    }
    assert_eq!(
        relay.end().await,
        Drained {
            aborted: 0,
            unsettled: 0
        }
    );
    for deliverer in deliverers {
        assert_eq!(deliverer.end().await, 0);
    }
    let hits = receiver.hits();
    assert_eq!(hits.len(), 300);
    let verifier = Verifier::new([SECRET.parse::<VerifyingKey>().unwrap()]);
    for hit in hits {
        assert_eq!(hit.number, 1);
        let headers = hit.headers.iter().map(|(name, value)| {
            let name: http::HeaderName = name.parse().unwrap();
            (name, value.parse().unwrap())
        });
        let now = std::time::SystemTime::now();
        assert!(verifier.verify(&headers.collect(), &hit.body, now).is_ok());
    }
}

/// For each behaviour of an endpoint, the records with and without NATS are equal.
#[tokio::test(flavor = "multi_thread")]
async fn a_dispatcher_records_the_same_attempts_as_a_worker() {
    let Some(nats) = servers::nats() else { return };
    let long = "x".repeat(70_000);
    let receiver = Receiver::new(move |hit| match hit.path.as_str() {
        "/busy" => Reply::Answer(answer(
            "429 Too Many Requests",
            "retry-after: 1\r\n",
            "later",
        )),
        "/fails" => Reply::Answer(answer("500 Oops", "", SECRET)),
        "/gone" => Reply::Answer(answer("410 Gone", "", "")),
        "/moved" => Reply::Answer(answer("302 Found", "location: http://127.0.0.1/\r\n", "")),
        "/hangs" => Reply::Hang,
        "/cut" => Reply::Cut(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf".to_vec()),
        "/silent" => Reply::Cut(Vec::new()),
        "/aborts" => Reply::Answer(answer("503 No", "webhook-delivery: abort-message\r\n", "")),
        "/long" => Reply::Answer(answer("200 OK", "", &long)),
        "/code" => Reply::Answer(answer("200 OK", "", "{\"code\":\"SUCCESS\"}")),
        _ => Reply::Answer(answer("200 OK", "", "success")),
    })
    .await;
    let closed = format!("http://{}/", support::closed());
    let mut written = Vec::new();
    for through in [false, true] {
        let bench = Bench::new();
        let secrets = Secrets::with_key(KEY).unwrap();
        let mut add = Vec::new();
        for name in [
            "busy", "fails", "gone", "moved", "hangs", "cut", "silent", "aborts", "long", "code",
            "body", "not-body",
        ] {
            let mut endpoint =
                Endpoint::new(name, receiver.url(name)).acknowledgement(match name {
                    "code" => Acknowledgement::CodeSuccess,
                    "body" | "long" => Acknowledgement::BodySuccess,
                    "not-body" => Acknowledgement::CodeSuccess,
                    _ => Acknowledgement::Success,
                });
            endpoint.secrets = vec![secrets.encrypt("", name, SECRET).unwrap()];
            add.push(endpoint);
        }
        add.push(Endpoint::new("refused", &closed));
        for endpoint in add {
            let name = endpoint.name.clone();
            let endpoint = endpoint.policy(QUICK).hold(false);
            bench.store.put_endpoint(endpoint).await.unwrap();
            bench.enqueue(&name, 1).await;
        }
        let deliverer = deliverer(&nats).await;
        let queue = match through {
            true => Some(queue(&nats).await),
            false => None,
        };
        let worker = bench.worker(queue);
        let mut seen: HashMap<String, (MessageState, Vec<AttemptRecord>)> = HashMap::new();
        for status in bench.until_ended().await {
            let mut attempts = bench.store.attempts(&status.id).await.unwrap();
            for attempt in &mut attempts {
                (attempt.started_ms, attempt.duration_ms) = (0, 0);
                // Identifier and time differ for each message.
                let fields = attempt.request.lines();
                let of_all = fields.filter(|field| {
                    !field.starts_with("webhook-id:") && !field.starts_with("webhook-timestamp:")
                });
                attempt.request = of_all.collect::<Vec<_>>().join("\n");
            }
            seen.insert(status.endpoint, (status.state, attempts));
        }
        let _ = worker.end().await;
        deliverer.end().await;
        written.push(seen);
    }
    assert_eq!(written[0].len(), 13);
    assert_eq!(written[0]["fails"].1[0].excerpt, "[redacted]");
    assert_eq!(written[0], written[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_nats_is_down_messages_wait_without_counting_attempts() {
    let Some(nats) = servers::nats() else { return };
    let (bench, receiver) = Bench::with_endpoint().await;
    let relay = bench.worker(Some(queue(&nats).await));
    let deliverer = deliverer(&nats).await;
    bench.enqueue("a", 1).await;
    bench.until_ended().await;
    let port = nats.port;
    let directory = nats.server.end();
    let more = (0..100).map(|event| NewMessage::new("a", format!("late-{event}"), "{}"));
    bench.store.enqueue(more.collect()).await.unwrap();
    // Long enough to notice a dispatcher that gives up or withdraws attempts.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(receiver.hits().len(), 1);
    let _nats = servers::nats_in(directory, Some(port)).unwrap();
    bench.until_delivered().await;
    assert_eq!(receiver.hits().len(), 101);
    let _ = relay.end().await;
    deliverer.end().await;
}

/// As when a machine shuts down.
#[tokio::test(flavor = "multi_thread")]
async fn a_nats_worker_stops_cleanly_while_nats_stops() {
    let Some(nats) = servers::nats() else { return };
    let (bench, _receiver) = Bench::with_endpoint().await;
    let relay = bench.worker(Some(queue(&nats).await));
    let deliverer = deliverer(&nats).await;
    bench.enqueue("a", 1).await;
    bench.until_ended().await;
    let Running { stop, task } = deliverer;
    stop.send(()).unwrap();
    nats.server.signal("TERM");
    assert_eq!(within(task).await.unwrap(), 0);
    let _ = relay.end().await;
}

/// The consumer that an operator has created serves one request at a time, or none of this size.
#[tokio::test(flavor = "multi_thread")]
async fn nats_workers_whose_requests_are_refused_ask_once_a_second() {
    use async_nats::jetstream::consumer::pull::Config;
    let limits = [(1, 0), (0, 1)].map(|(max_waiting, max_bytes)| Config {
        durable_name: Some("deliverers".to_owned()),
        max_waiting,
        max_bytes,
        ..Config::default()
    });
    for limit in limits {
        let Some(nats) = servers::nats() else { return };
        let client = async_nats::connect(nats.url()).await.unwrap();
        let context = async_nats::jetstream::new(client.clone());
        let stream = async_nats::jetstream::stream::Config {
            name: QueueName::default().to_string(),
            subjects: vec![format!("{}.attempts", QueueName::default())],
            ..Default::default()
        };
        let stream = context.create_stream(stream).await.unwrap();
        stream.create_consumer(limit.clone()).await.unwrap();
        let requests = "$JS.API.CONSUMER.MSG.NEXT.>";
        let requests = client.subscribe(requests).await.unwrap();
        client.flush().await.unwrap();
        let workers = [deliverer(&nats).await, deliverer(&nats).await];
        let until = tokio::time::sleep(Duration::from_secs(3));
        let requests = requests.take_until(until).count().await;
        assert!((1..=12).contains(&requests), "{limit:?}: {requests} in 3 s");
        for worker in workers {
            worker.end().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn offers_that_did_not_start_are_cancelled_at_shutdown() {
    let Some(nats) = servers::nats() else { return };
    let (bench, receiver) = Bench::with_endpoint().await;
    bench.enqueue("a", 3).await;
    let relay = bench.worker(Some(queue(&nats).await));
    until(|| async {
        let statuses = bench.statuses().await;
        let running = |status: &MessageStatus| status.state == MessageState::Running;
        statuses.iter().any(running).then_some(())
    })
    .await;
    let drained = relay.end().await;
    assert_eq!((drained.aborted, drained.unsettled), (0, 0));
    for status in bench.statuses().await {
        assert_eq!((status.state, status.attempts), (MessageState::Pending, 0));
    }
    // No dispatcher permits the attempts that are left in the stream.
    let deliverer = deliverer(&nats).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(receiver.hits().len(), 0);
    let relay = bench.worker(Some(queue(&nats).await));
    bench.until_delivered().await;
    assert_eq!(receiver.hits().len(), 3);
    let _ = relay.end().await;
    deliverer.end().await;
}

/// The receiver is not at fault, and an operator must raise the limit: only this message is held.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_too_large_for_nats_is_held_with_a_reason() {
    let Some(nats) = servers::nats() else { return };
    let (bench, receiver) = Bench::with_endpoint().await;
    for (event, size) in [("too-large", 1 << 20), ("large", 1_000_000), ("small", 2)] {
        let message = NewMessage::new("a", event, vec![b'x'; size]);
        bench.store.enqueue(vec![message]).await.unwrap();
    }
    let relay = bench.worker(Some(queue(&nats).await));
    let deliverer = deliverer(&nats).await;
    let held = bench.until_held("raise max_payload of nats-server").await;
    assert_eq!(held.event, "too-large");
    // From now on the server accepts it.
    let port = nats.port;
    let directory = nats.server.end();
    std::fs::write(directory.path().join("nats.conf"), "max_payload: 2MB").unwrap();
    let _nats = servers::nats_in(directory, Some(port)).unwrap();
    let statuses = until(|| async {
        bench.store.send_now(Filter::default()).await.unwrap();
        let statuses = bench.statuses().await;
        let is_delivered = |status: &MessageStatus| status.state == MessageState::Delivered;
        statuses.iter().all(is_delivered).then_some(statuses)
    })
    .await;
    for status in statuses {
        assert_eq!((status.attempts, &status.reason[..]), (1, ""));
    }
    assert_eq!(receiver.hits().len(), 3);
    let _ = relay.end().await;
    deliverer.end().await;
}

/// By the server, or by the stream if an operator has created it. Results of NATS workers respect the limit, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_lower_nats_limit_holds_only_larger_messages() {
    const LIMIT: usize = 64 << 10;
    for by_server in [true, false] {
        let settings = |_: &std::path::Path| match by_server {
            true => "max_payload: 65536".to_owned(),
            false => String::new(),
        };
        let Some(nats) = servers::nats_with(settings) else {
            return;
        };
        if !by_server {
            let client = async_nats::connect(nats.url()).await.unwrap();
            let stream = async_nats::jetstream::stream::Config {
                name: "relent-outbox".to_owned(),
                subjects: vec!["relent-outbox.attempts".to_owned()],
                retention: async_nats::jetstream::stream::RetentionPolicy::WorkQueue,
                max_message_size: LIMIT as i32,
                ..Default::default()
            };
            let context = async_nats::jetstream::new(client);
            context.create_stream(stream).await.unwrap();
        }
        let bench = Bench::new();
        let fields: String = (0..60)
            .map(|field| format!("x-{field}: {}\r\n", "y".repeat(1000)))
            .collect();
        let receiver =
            Receiver::new(move |_| Reply::Answer(answer("200 OK", &fields, &"z".repeat(70_000))))
                .await;
        let endpoint = Endpoint::new("a", receiver.url("a")).policy(QUICK);
        bench.store.put_endpoint(endpoint).await.unwrap();
        for size in [LIMIT, 2] {
            let message = NewMessage::new("a", format!("{size}"), vec![b'x'; size]);
            bench.store.enqueue(vec![message]).await.unwrap();
        }
        let relay = bench.worker(Some(queue(&nats).await));
        let deliverer = deliverer(&nats).await;
        let says = match by_server {
            true => "raise max_payload of nats-server",
            false => "raise the limits of the stream relent-outbox",
        };
        let held = bench.until_held(says).await;
        assert_eq!(held.event, LIMIT.to_string());
        assert_eq!(receiver.hits().len(), 1);
        let _ = relay.end().await;
        deliverer.end().await;
    }
}

/// A dispatcher with one published attempt, and a client that sends messages to it.
struct DispatcherClient {
    bench: Bench,
    relay: Running<Drained>,
    client: async_nats::Client,
    /// The prefix of the subjects for this attempt.
    subject: String,
}

impl DispatcherClient {
    async fn new(nats: &servers::Nats) -> Self {
        let bench = Bench::new();
        let endpoint = Endpoint::new("a", "http://127.0.0.1:9999/").policy(QUICK);
        bench.store.put_endpoint(endpoint).await.unwrap();
        bench.enqueue("a", 1).await;
        let client = async_nats::connect(nats.url()).await.unwrap();
        let mut published = client.subscribe("relent-outbox.attempts").await.unwrap();
        let relay = bench.worker(Some(queue(nats).await));
        let attempt = within(published.next()).await.unwrap().payload;
        let head = attempt.split(|byte| *byte == b'\n').next().unwrap();
        let head: serde_json::Value = serde_json::from_slice(head).unwrap();
        let subject = head[1]["relay"].as_str().unwrap().to_owned();
        Self {
            bench,
            relay,
            client,
            subject,
        }
    }

    async fn say(&self, subject: String, text: &str) -> String {
        let asked = self.client.request(subject, text.to_owned().into());
        String::from_utf8(asked.await.unwrap().payload.to_vec()).unwrap()
    }

    /// The permitted time to start, in milliseconds.
    async fn begin(&self, name: &str) -> u64 {
        let permission = self.say(format!("{}.begin", self.subject), name).await;
        permission.parse().unwrap()
    }

    async fn end(&self, text: &str) -> String {
        self.say(format!("{}.end", self.subject), text).await
    }
}

const ONE: &str = "00000000-0000-0000-0000-000000000001";
const ANOTHER: &str = "00000000-0000-0000-0000-000000000002";

/// A result with this duration in seconds, and with this declared length of the body.
fn answered(took: u64, says: usize, body: &str) -> String {
    let head = serde_json::json!({
        "outcome": { "Answered": { "status": 200, "headers": [], "end": "Whole" } },
        "address": "", "took": { "secs": took, "nanos": 0 },
    });
    format!("[{says},{head}]\n{body}")
}

/// NATS may deliver an attempt twice, and a response may be lost. Permission belongs to one NATS worker, and ends with
/// the attempt.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_is_permitted_to_one_nats_worker_once() {
    let Some(nats) = servers::nats() else { return };
    let dispatcher_client = DispatcherClient::new(&nats).await;
    let permission = dispatcher_client.begin(ONE).await;
    // The lease of the dispatcher is 2 s.
    assert!((1..=2000).contains(&permission), "{permission}");
    assert_eq!(dispatcher_client.begin(ANOTHER).await, 0);
    assert!(
        dispatcher_client.begin(ONE).await > 0,
        "its first answer was lost"
    );
    for _ in 0..2 {
        assert_eq!(dispatcher_client.end(&answered(0, 0, "")).await, "accepted");
        assert_eq!(dispatcher_client.begin(ONE).await, 0, "it is over");
    }
    let statuses = dispatcher_client.bench.until_ended().await;
    assert_eq!(
        (statuses[0].state, statuses[0].attempts),
        (MessageState::Delivered, 1)
    );
    let _ = dispatcher_client.relay.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_nats_messages_change_nothing() {
    let Some(nats) = servers::nats() else { return };
    let dispatcher_client = DispatcherClient::new(&nats).await;
    let said = dispatcher_client.end(&answered(0, 0, "")).await;
    assert!(said.contains("no worker had permission to begin"), "{said}");
    for name in ["", "one", &"x".repeat(100_000)] {
        assert_eq!(dispatcher_client.begin(name).await, 0, "{name}");
    }
    let (relay, _) = dispatcher_client.subject.rsplit_once('.').unwrap();
    for number in [1, 17, u64::MAX] {
        let answer = answered(0, 0, "");
        let said = dispatcher_client
            .say(format!("{relay}.{number}.end"), &answer)
            .await;
        assert!(said.contains("was published"), "{said}");
        let permission = dispatcher_client
            .say(format!("{relay}.{number}.begin"), ONE)
            .await;
        assert_eq!(permission, "0");
    }
    for subject in ["0.stop", "-1.end", "18446744073709551616.end"] {
        let said = dispatcher_client
            .say(format!("{relay}.{subject}"), "")
            .await;
        assert!(said.contains("a subject ends with"), "{said}");
    }
    assert!(dispatcher_client.begin(ONE).await > 0);
    let mut fields = answered(0, 0, "");
    let many = vec!["[\"a\",\"b\"]"; 40_000].join(",");
    fields = fields.replace("\"headers\":[]", &format!("\"headers\":[{many}]"));
    for (text, wrong) in [
        ("", "empty"),
        ("\n", "cannot be read"),
        (&answered(0, 7, "succ"), "cut off"),
        (&answered(17, 0, ""), "may take 15 s"),
        (&answered(u64::MAX, 0, ""), "may take 15 s"),
        (&fields, "128 are the most"),
    ] {
        let said = dispatcher_client.end(text).await;
        assert!(
            said.starts_with("refused: ") && said.contains(wrong),
            "{said}"
        );
    }
    assert_eq!(
        dispatcher_client.bench.statuses().await[0].state,
        MessageState::Running
    );
    assert_eq!(dispatcher_client.end(&answered(0, 0, "")).await, "accepted");
    let statuses = dispatcher_client.bench.until_ended().await;
    assert_eq!(
        (statuses[0].state, statuses[0].attempts),
        (MessageState::Delivered, 1)
    );
    let _ = dispatcher_client.relay.end().await;
}

/// One dispatcher at a time owns an endpoint, and any NATS worker serves them all.
#[tokio::test(flavor = "multi_thread")]
async fn two_dispatchers_share_endpoints_and_nats_workers() {
    let Some(nats) = servers::nats() else { return };
    let bench = Bench::new();
    let receiver = Receiver::new(|_| ok()).await;
    for name in 0..20 {
        let name = name.to_string();
        let endpoint = Endpoint::new(&name, receiver.url(&name)).policy(QUICK);
        bench.store.put_endpoint(endpoint).await.unwrap();
        bench.enqueue(&name, 20).await;
    }
    let relays = [
        bench.worker(Some(queue(&nats).await)),
        bench.worker(Some(queue(&nats).await)),
    ];
    let deliverers = [deliverer(&nats).await, deliverer(&nats).await];
    bench.until_delivered().await;
    assert_eq!(receiver.hits().len(), 400);
    for relay in relays {
        let _ = relay.end().await;
    }
    for deliverer in deliverers {
        deliverer.end().await;
    }
}

/// NATS is suspended just after permission was given: the attempt starts within the permission or never, not when NATS
/// continues.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_starts_within_its_permission_or_never() {
    let Some(nats) = servers::nats() else { return };
    let receiver = Receiver::new(|_| ok()).await;
    let options = async_nats::ConnectOptions::new().client_capacity(1);
    let client = options.connect(nats.url()).await.unwrap();
    let mut config = NatsWorkerConfig::default();
    config.drain = Duration::from_secs(5);
    let queue = Queue::new(client.clone(), QueueName::default());
    let (stop, stopped) = oneshot::channel();
    let run = NatsWorker::new(queue, local_sender(), config).run(async {
        let _ = stopped.await;
    });
    let task = tokio::spawn(run);
    let relay = async_nats::connect(nats.url()).await.unwrap();
    let mut asked = relay
        .subscribe("relent-outbox.relay.x.0.begin")
        .await
        .unwrap();
    let head = serde_json::json!({
        "version": 1, "relay": "relent-outbox.relay.x.0", "url": receiver.url("a"), "headers": [],
        "limit": {"secs": 10, "nanos": 0}, "keep": 0,
    });
    let stream = async_nats::jetstream::new(relay.clone());
    until(|| async { stream.get_stream("relent-outbox").await.ok() }).await;
    let published = stream.publish("relent-outbox.attempts", format!("[2,{head}]\n{{}}").into());
    published.await.unwrap().await.unwrap();
    let asked = within(asked.next()).await.unwrap();
    // From now on, messages of the NATS worker wait behind a long queue.
    let queued_publishes: Vec<_> = (0..300)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                let _ = client
                    .publish("queued_publishes", vec![b'x'; 1 << 19].into())
                    .await;
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(20)).await;
    relay
        .publish(asked.reply.unwrap(), "5000".into())
        .await
        .unwrap();
    relay.flush().await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    nats.server.signal("STOP");
    tokio::time::sleep(Duration::from_secs(6)).await;
    let in_time = receiver.hits().len();
    nats.server.signal("CONT");
    for one in queued_publishes {
        within(one).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((in_time, receiver.hits().len()), (1, 1));
    let _ = stop.send(());
    within(task).await.unwrap();
}

/// A NATS worker that requests an attempt while the dispatcher has no lease discards it. The dispatcher is notified,
/// and does not wait for the offer to expire.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_refused_during_a_store_outage_run_after_it() {
    let Some(nats) = servers::nats() else { return };
    let (bench, receiver) = Bench::with_endpoint().await;
    bench.enqueue("a", 1).await;
    let relay = bench.worker(Some(queue(&nats).await));
    let client = async_nats::connect(nats.url()).await.unwrap();
    let mut published = client.subscribe("relent-outbox.attempts").await.unwrap();
    let mut asked = client
        .subscribe("relent-outbox.relay.*.*.begin")
        .await
        .unwrap();
    within(published.next()).await.unwrap();
    // Block other writers, so that the lease of 2 s expires.
    let file = bench._directory.path().join("outbox.db");
    let away = rusqlite::Connection::open(file).unwrap();
    away.execute_batch("BEGIN IMMEDIATE").unwrap();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let deliverer = deliverer(&nats).await;
    within(asked.next()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(receiver.hits().len(), 0);
    drop(away);
    let began = std::time::Instant::now();
    bench.until_delivered().await;
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}",
        began.elapsed()
    );
    let _ = relay.end().await;
    deliverer.end().await;
}

/// A resolver that responds for all names, or for none.
struct AllNames(bool);

impl Resolve for AllNames {
    fn resolve(&self, _: String) -> Resolving {
        let answer = match self.0 {
            true => Ok(vec![IpAddr::from([127, 0, 0, 1])]),
            false => Err(std::io::Error::other("for a test")),
        };
        Box::pin(async move { answer })
    }
}

/// Its attempts end at once, so it could take nearly all of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_on_a_faulty_machine_leaves_attempts_to_others() {
    let Some(nats) = servers::nats() else { return };
    let (bench, receiver) = (Bench::new(), Receiver::new(|_| ok()).await);
    for name in (0..20).map(|number| format!("shop-{number}")) {
        let url = format!("http://{name}.example:{}/", receiver.address.port());
        let endpoint = Endpoint::new(&name, url).policy(QUICK);
        bench.store.put_endpoint(endpoint).await.unwrap();
        bench.enqueue(&name, 10).await;
    }
    let deliverer = async |resolves| {
        let mut config = support::local();
        config.resolver = Arc::new(AllNames(resolves));
        deliverer_with(&nats, Sender::new(config).unwrap()).await
    };
    let deliverers = [
        deliverer(true).await,
        deliverer(false).await,
        deliverer(false).await,
    ];
    let relay = bench.worker(Some(queue(&nats).await));
    within(bench.until_delivered()).await;
    let _ = relay.end().await;
    for deliverer in deliverers {
        assert_eq!(deliverer.end().await, 0);
    }
}
