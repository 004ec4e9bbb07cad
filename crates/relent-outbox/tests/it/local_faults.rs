//! Local faults, over sockets and a store: they cost no message an attempt.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use relent_core::Policy;
use relent_outbox::endpoint::{Acknowledgement, Activity, Endpoint};
use relent_outbox::fault::FaultKind;
use relent_outbox::message::{MessageId, NewMessage};
use relent_outbox::resolver::{Resolve, Resolving};
use relent_outbox::secrets::{KeyError, Secrets};
use relent_outbox::sender::{AttemptResult, Outgoing, Sender};
use relent_outbox::store::{Filter, MessageState, MessageStatus, Sqlite, Store};
use relent_outbox::worker::{HoldReason, Worker, WorkerConfig};

use crate::support::{self, Receiver, local, local_sender, ok, until};

const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const OTHER: &str = "CQgHBgUEAwIBAAkIBwYFBAMCAQAJCAcGBQQDAgEACQg=";
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// A policy with two attempts. The endpoint really exists.
const TWO: &str = "max_retries = 1\njitter = \"none\"\nbackoff.constant = { delay = \"20ms\" }";

fn store() -> (Sqlite, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let store = Sqlite::open(directory.path().join("outbox.db")).unwrap();
    (store, directory)
}

async fn enqueue(store: &Sqlite, endpoint: &str) {
    let message = NewMessage::new(endpoint, "event", "{}");
    store.enqueue(vec![message]).await.unwrap();
}

async fn message(store: &Sqlite, endpoint: &str) -> MessageStatus {
    let filter = Filter {
        endpoint: Some(endpoint.to_owned()),
        ..Filter::default()
    };
    store.messages(filter, 1).await.unwrap().remove(0)
}

fn config() -> WorkerConfig {
    let mut config = WorkerConfig::default();
    config.poll = Duration::from_millis(50);
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_does_not_start_with_a_key_of_another_store() {
    let (store, _directory) = store();
    let open = async |secrets: Secrets| {
        let opened = Worker::open(store.clone(), local_sender(), secrets, config()).await;
        opened.map(drop)
    };
    let (own, other) = (
        Secrets::with_key(KEY).unwrap(),
        Secrets::with_key(OTHER).unwrap(),
    );
    // Nothing is encrypted: any key is accepted, or none.
    for secrets in [&own, &other, &Secrets::default(), &own] {
        open(secrets.clone()).await.unwrap();
    }
    let mut shop = Endpoint::new("shop", "https://shop.example/");
    shop.secrets = vec!["env:SHOP".to_owned()];
    store.put_endpoint(shop.clone()).await.unwrap();
    open(other.clone()).await.unwrap();
    open(own.clone()).await.unwrap();
    shop.secrets.push(own.encrypt("", "shop", SECRET).unwrap());
    store.put_endpoint(shop.clone()).await.unwrap();
    open(own.clone()).await.unwrap();
    let refused = open(other.clone()).await.unwrap_err();
    assert!(matches!(refused, KeyError::Other { .. }), "{refused}");
    assert!(refused.to_string().contains("\"shop\""), "{refused}");
    let refused = open(Secrets::default()).await.unwrap_err();
    assert!(matches!(refused, KeyError::Missing { .. }), "{refused}");
    // The operator confirms that the old key is lost.
    other.take_over(&store).await.unwrap();
    open(other.clone()).await.unwrap();
    assert!(open(own).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_a_key_check_adopts_a_matching_key() {
    let (store, _directory) = store();
    let (own, other) = (
        Secrets::with_key(KEY).unwrap(),
        Secrets::with_key(OTHER).unwrap(),
    );
    // The first key was encrypted with a lost key; only the other endpoint was registered again.
    for (name, key) in [("lost", &other), ("shop", &own)] {
        let mut endpoint = Endpoint::new(name, "https://shop.example/");
        endpoint.secrets = vec![key.encrypt("", name, SECRET).unwrap()];
        store.put_endpoint(endpoint).await.unwrap();
    }
    let third = Secrets::with_key("/////////////////////////////////////////w8=").unwrap();
    assert!(third.check(&store).await.is_err());
    own.check(&store).await.unwrap();
    assert!(other.check(&store).await.is_err());
    own.check(&store).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_signing_key_holds_only_its_messages() {
    let (store, _directory) = store();
    let receiver = Receiver::new(|_| ok()).await;
    let own = Secrets::with_key(KEY).unwrap();
    let other = Secrets::with_key(OTHER).unwrap();
    let encrypted = other.encrypt("", "encrypted", SECRET).unwrap();
    for (name, secrets) in [
        ("unset", vec!["env:RELENT_NO_SUCH_VARIABLE".to_owned()]),
        ("no-key", vec!["env:PATH".to_owned()]),
        ("encrypted", vec![encrypted]),
        ("plain", Vec::new()),
    ] {
        let mut endpoint = Endpoint::new(name, receiver.url(name)).policy(TWO);
        endpoint.secrets = secrets;
        store.put_endpoint(endpoint).await.unwrap();
        enqueue(&store, name).await;
    }
    let worker = Worker::new(store.clone(), local_sender(), own.clone(), config());
    let watch = worker.watch();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(worker.run(async move {
        let _ = stopped.await;
    }));
    until(|| async {
        let plain = message(&store, "plain").await;
        let held = watch.held().await;
        (plain.state == MessageState::Delivered && held.len() == 3).then_some(())
    })
    .await;
    for held in watch.held().await {
        assert_eq!(held.hold_reason, HoldReason::LocalFault);
        let says = match held.name.as_str() {
            "unset" => "env:RELENT_NO_SUCH_VARIABLE is not set",
            "no-key" => "whsec_",
            _ => "another RELENT_OUTBOX_KEY",
        };
        assert!(held.error.contains(says), "{held:?}");
        let message = message(&store, &held.name).await;
        assert_eq!(
            (message.state, message.attempts),
            (MessageState::Pending, 0)
        );
        assert_eq!(store.attempts(&message.id).await.unwrap(), []);
        let endpoint = store.endpoint("", &held.name).await.unwrap().unwrap();
        assert_eq!(endpoint.activity, Activity::Active);
    }
    assert_eq!(receiver.hits().len(), 1);
    // After a new registration, delivery continues without a restart.
    let mut endpoint = Endpoint::new("encrypted", receiver.url("encrypted")).policy(TWO);
    endpoint.secrets = vec![own.encrypt("", "encrypted", SECRET).unwrap()];
    store.put_endpoint(endpoint).await.unwrap();
    let delivered = until(|| async {
        let message = message(&store, "encrypted").await;
        (message.state == MessageState::Delivered).then_some(message)
    })
    .await;
    assert_eq!(delivered.attempts, 1);
    let _ = stop.send(());
    let _ = running.await.unwrap();
}

/// The current behaviour of the resolver.
#[derive(Default)]
struct FaultyResolver(AtomicU8);

const SILENT: u8 = 1;
const FAILS: u8 = 2;
const NO_FILES: u8 = 3;

impl Resolve for FaultyResolver {
    fn resolve(&self, name: String) -> Resolving {
        let now = self.0.load(Ordering::Relaxed);
        Box::pin(async move {
            match now {
                SILENT => std::future::pending().await,
                FAILS => Err(io::Error::other("for a test")),
                NO_FILES => Err(io::Error::from_raw_os_error(24)),
                _ if name == "shop.example" => Ok(vec![IpAddr::from([127, 0, 0, 1])]),
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_resolver_holds_messages_without_counting_attempts() {
    for (resolver_fault, connect_ms) in
        [(SILENT, 200), (FAILS, 200), (NO_FILES, 200), (SILENT, 5000)]
    {
        let (store, _directory) = store();
        let receiver = Receiver::new(|_| ok()).await;
        let url = format!("http://shop.example:{}/", receiver.address.port());
        store
            .put_endpoint(Endpoint::new("shop", url).policy(TWO))
            .await
            .unwrap();
        enqueue(&store, "shop").await;
        let resolver = Arc::new(FaultyResolver(AtomicU8::new(resolver_fault)));
        let mut sending = local();
        sending.resolver = resolver.clone();
        sending.connect_timeout = Duration::from_millis(connect_ms);
        // In the last case the attempt times out before name resolution does.
        sending.attempt_timeout = Duration::from_secs(1);
        let sender = Sender::new(sending).unwrap();
        let worker = Worker::new(store.clone(), sender, Secrets::default(), config());
        let watch = worker.watch();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(worker.run(async move {
            let _ = stopped.await;
        }));
        let held = until(|| async {
            let held = watch.held().await.pop()?;
            (held.hold_reason == HoldReason::LocalFault).then_some(held)
        })
        .await;
        if connect_ms == 200 {
            assert!(held.error.contains("the name shop.example"), "{held:?}");
        }
        resolver.0.store(0, Ordering::Relaxed);
        let delivered = until(|| async {
            let message = message(&store, "shop").await;
            (message.state == MessageState::Delivered).then_some(message)
        })
        .await;
        assert_eq!(delivered.attempts, 1, "{resolver_fault}");
        let _ = stop.send(());
        let _ = running.await.unwrap();
    }
}

/// Its attempts end at once, and so does a test of its machine.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_a_resolver_leaves_its_endpoints_to_another() {
    let (store, _directory) = store();
    let receiver = Receiver::new(|_| ok()).await;
    let url = format!("http://shop.example:{}/", receiver.address.port());
    let names = ["a", "b", "c", "d"];
    for name in names {
        let endpoint = Endpoint::new(name, &url).policy(TWO);
        store.put_endpoint(endpoint).await.unwrap();
        enqueue(&store, name).await;
    }
    let start = |resolver_fault| {
        let mut sending = local();
        sending.resolver = Arc::new(FaultyResolver(AtomicU8::new(resolver_fault)));
        let sender = Sender::new(sending).unwrap();
        let mut config = config();
        config.lease = Duration::from_secs(3);
        let worker = Worker::new(store.clone(), sender, Secrets::default(), config);
        let (watch, (stop, stopped)) = (worker.watch(), tokio::sync::oneshot::channel::<()>());
        let running = tokio::spawn(worker.run(async move {
            let _ = stopped.await;
        }));
        (watch, stop, running)
    };
    let (watch, stop_faulty, faulty) = start(FAILS);
    until(|| async { (watch.held().await.len() == names.len()).then_some(()) }).await;
    let (_, stop_other, other) = start(0);
    for status in support::until_ended(&store).await {
        assert_eq!(
            (status.state, status.attempts),
            (MessageState::Delivered, 1)
        );
    }
    for (stop, running) in [(stop_faulty, faulty), (stop_other, other)] {
        let _ = stop.send(());
        let _ = running.await.unwrap();
    }
}

async fn attempt(sender: &Sender, url: &str) -> AttemptResult {
    let target = sender.target(url).unwrap();
    let outgoing = Outgoing {
        target: &target,
        id: &MessageId::new(),
        content_type: "application/json",
        payload: &Bytes::from_static(b"{}"),
        signing: None,
        custom: None,
        policy: Policy::STANDARD,
        acknowledgement: Acknowledgement::Success,
        limit: Duration::from_secs(20),
        now: SystemTime::now(),
    };
    sender.send(outgoing).await
}

#[tokio::test]
async fn a_delivery_error_names_the_failed_step() {
    let resolver = Arc::new(FaultyResolver::default());
    let mut config = local();
    config.resolver = resolver.clone();
    config.connect_timeout = Duration::from_millis(200);
    let sender = Sender::new(config).unwrap();
    let error = |sent: &AttemptResult| sent.outcome.as_ref().unwrap_err().error.clone();
    let closed = support::closed();
    let refused = attempt(&sender, &format!("http://{closed}/")).await;
    let expected = format!("connection refused by {closed}");
    assert_eq!(error(&refused), expected);
    assert_eq!(refused.fault, None);
    let unknown = attempt(&sender, "http://no.example/").await;
    assert_eq!(
        error(&unknown),
        "the name no.example does not exist, or has no address"
    );
    assert_eq!(unknown.fault, None);
    resolver.0.store(FAILS, Ordering::Relaxed);
    let failed = attempt(&sender, "http://shop.example/").await;
    assert!(
        error(&failed).starts_with("the name shop.example could not be looked up: for a test"),
        "{failed:?}"
    );
    assert_eq!(failed.fault, Some(FaultKind::Resolver));
    // A server of another protocol responds instead of TLS.
    resolver.0.store(0, Ordering::Relaxed);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"220 mail.example ESMTP\r\n").await;
        }
    });
    let plain = attempt(&sender, &format!("https://shop.example:{port}/")).await;
    assert!(
        error(&plain).starts_with("the TLS handshake failed: "),
        "{plain:?}"
    );
}
