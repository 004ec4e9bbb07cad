//! Tests with databases that crash, stall, or lose confirmed writes under load, checked against a ledger.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use redis::{Client, InfoDict};
use relent_core::idempotency::{ClaimConfig, Fingerprint};
use relent_server::idempotency::{Body, IdempotencyLayer, StoredResponse};
use relent_server::postgres::pool;
use relent_server::store::{Change, Claimed, Key, Postgres, Redis, Store, WriteError};
use relent_server::transactional::{Keyed, TransactionResult, Transactional, WorkError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt, service_fn};

use crate::servers;

const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];
const PRINT: Fingerprint = Fingerprint([0; 32]);
const CRASHES: usize = 3;
/// The least number of confirmed keys between two crashes.
const CONFIRMED_BETWEEN_CRASHES: usize = 40;

fn key(number: u32) -> Key {
    let mut key = [0; 32];
    key[..4].copy_from_slice(&number.to_be_bytes());
    Key(key)
}

/// Keys that workers process, each until it is confirmed, and the confirmed ones.
#[derive(Clone, Default)]
struct Load {
    next: Arc<AtomicU32>,
    told: Arc<Mutex<HashSet<u32>>>,
    stop: Arc<AtomicBool>,
}

impl Load {
    /// Starts eight workers; `one` returns whether the key was confirmed.
    fn begin<F>(&self, one: impl Fn(u32) -> F + Clone + Send + 'static) -> JoinSet<()>
    where
        F: Future<Output = bool> + Send,
    {
        let mut workers = JoinSet::new();
        for _ in 0..8 {
            let (load, one) = (self.clone(), one.clone());
            workers.spawn(async move {
                while !load.stop.load(Ordering::Relaxed) {
                    let number = load.next.fetch_add(1, Ordering::Relaxed);
                    while !one(number).await {
                        if load.stop.load(Ordering::Relaxed) {
                            return;
                        }
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    load.told.lock().unwrap().insert(number);
                }
            });
        }
        workers
    }

    async fn until_confirmed(&self, most: usize) {
        let began = Instant::now();
        while self.told.lock().unwrap().len() < most {
            assert!(began.elapsed() < Duration::from_secs(60), "nothing goes on");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn charge(store: &Postgres, number: u32) -> bool {
    let keyed = Keyed::new(key(number), PRINT);
    let done = store.transactional(keyed, |transaction| {
        Box::pin(async move {
            let insert = "INSERT INTO charges VALUES ($1)";
            transaction.execute(insert, &[&i64::from(number)]).await?;
            Ok::<_, WorkError>(Response::new("charged"))
        })
    });
    matches!(
        done.await,
        Ok(TransactionResult::Ran(_) | TransactionResult::Not(Claimed::Replay(_)))
    )
}

/// `pg_ctl stop -m immediate` is a crash: changes that are not in the log are lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_crash_causes_no_second_charge_and_loses_no_confirmed_key() {
    let Some(mut server) = servers::postgres(&[]) else {
        return;
    };
    let store = Postgres::new(pool(&server.config(), 8).unwrap());
    store.create_tables().await.unwrap();
    let client = store.pool().get().await.unwrap();
    let create = "CREATE TABLE charges (number BIGINT NOT NULL)";
    client.batch_execute(create).await.unwrap();
    drop(client);
    let load = Load::default();
    let shared = store.clone();
    let mut workers = load.begin(move |number| {
        let store = shared.clone();
        async move { charge(&store, number).await }
    });
    for crash in 1..=CRASHES {
        load.until_confirmed(crash * CONFIRMED_BETWEEN_CRASHES)
            .await;
        // SIGQUIT.
        let directory = tokio::task::spawn_blocking(|| server.server.end());
        let directory = directory.await.unwrap();
        let begin = tokio::task::spawn_blocking(|| servers::postgres_in(directory, &[]));
        server = begin.await.unwrap().unwrap();
    }
    load.until_confirmed((CRASHES + 1) * CONFIRMED_BETWEEN_CRASHES)
        .await;
    load.stop.store(true, Ordering::Relaxed);
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
    let client = store.pool().get().await.unwrap();
    let counts = "SELECT number, count(*) FROM charges GROUP BY number";
    let counts: HashMap<u32, i64> = (client.query(counts, &[]).await.unwrap().iter())
        .map(|row| (row.get::<_, i64>(0) as u32, row.get(1)))
        .collect();
    assert!(counts.values().all(|&times| times == 1), "{counts:?}");
    for number in &*load.told.lock().unwrap() {
        assert!(counts.contains_key(number), "{number} was told and is lost");
    }
}

async fn connect(server: &servers::Redis) -> Redis {
    let client = Client::open(server.url()).unwrap();
    Redis::connect(client).await.unwrap()
}

fn paid() -> Change {
    let body = Some(Bytes::from("paid"));
    let answer =
        StoredResponse::from_parts(http::StatusCode::OK, http::HeaderMap::new(), body, None);
    Change::Complete(Arc::new(answer))
}

/// Redis is killed (kill -9) under load and restarted with its file. No key has two effects, each confirmed one is
/// replayed, and the rest is unknown.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_killed_under_load_causes_at_most_one_effect_per_key() {
    let Some(mut server) = servers::redis(&DURABLE) else {
        return;
    };
    let store = connect(&server).await;
    let config = ClaimConfig::DEFAULT;
    let load = Load::default();
    let effects = Arc::new(Mutex::new(HashMap::<u32, u32>::new()));
    let (shared, ledger) = (store.clone(), Arc::clone(&effects));
    let mut workers = load.begin(move |number| {
        let (store, effects) = (shared.clone(), Arc::clone(&ledger));
        async move {
            // Equal in each attempt of a request.
            let (key, owner) = (key(number), u128::from(number) + 1);
            match store.claim(&key, owner, PRINT, &config).await {
                Ok(Claimed::Run { lease, .. }) => {
                    // After an error the client stops: only a client without an effect continues.
                    let first = effects.lock().unwrap().insert(number, 1).is_none();
                    assert!(first, "{number} ran twice");
                    while store.write(&key, &lease, paid(), &config).await.is_err() {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    true
                }
                Ok(Claimed::Replay(_)) => true,
                Ok(other) => panic!("{other:?}"),
                Err(_) => false,
            }
        }
    });
    for crash in 1..=CRASHES {
        load.until_confirmed(crash * CONFIRMED_BETWEEN_CRASHES)
            .await;
        let directory = server.server.end();
        let begin = tokio::task::spawn_blocking(|| servers::redis_in(directory, &DURABLE));
        server = begin.await.unwrap().unwrap();
    }
    load.until_confirmed((CRASHES + 1) * CONFIRMED_BETWEEN_CRASHES)
        .await;
    load.stop.store(true, Ordering::Relaxed);
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
    let told = load.told.lock().unwrap().clone();
    for number in told {
        let claimed = store.claim(&key(number), 0, PRINT, &config).await.unwrap();
        assert!(
            matches!(claimed, Claimed::Replay(_)),
            "{number}: {claimed:?}"
        );
    }
    drop(server);
}

async fn info(server: &servers::Redis) -> InfoDict {
    let client = Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut info = redis::cmd("INFO");
    info.arg("replication");
    info.query_async(&mut connection).await.unwrap()
}

async fn tell(server: &servers::Redis, command: &[&str]) {
    let client = Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut told = redis::cmd(command[0]);
    told.arg(&command[1..]);
    told.exec_async(&mut connection).await.unwrap();
}

fn pay() -> Request<Full<Bytes>> {
    let request = Request::post("/payments").header("idempotency-key", "k");
    request.body(Full::from("5 EUR")).unwrap()
}

/// A replica that did not receive a claim takes over. The execution notices, and claims the key again for its
/// response: its duplicate does not run. A completed record that was lost runs again, as documented.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_failover_an_execution_claims_again_and_records_its_response() {
    // The only server that needs a port, since a replica finds it by that.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    drop(listener);
    let mut settings = DURABLE.to_vec();
    settings.extend(["--port", &port]);
    let Some(primary) = servers::redis(&settings) else {
        return;
    };
    let replica = servers::redis(&DURABLE).unwrap();
    tell(&replica, &["REPLICAOF", "127.0.0.1", &port]).await;
    let began = Instant::now();
    while info(&replica)
        .await
        .get::<String>("master_link_status")
        .as_deref()
        != Some("up")
    {
        assert!(began.elapsed() < Duration::from_secs(30), "no replica");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The identifier changes when the first replica connects.
    let before = info(&primary).await.get::<String>("master_replid").unwrap();
    // The name of the current primary.
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().join("primary");
    std::os::unix::fs::symlink(primary.socket(), &name).unwrap();
    let client = Client::open(format!("redis+unix://{}", name.display())).unwrap();
    let store = Redis::connect(client).await.unwrap();

    // From now on the replica receives nothing.
    tell(&replica, &["REPLICAOF", "NO", "ONE"]).await;
    let layer = IdempotencyLayer::anonymous(store.clone());
    let (charges, (go, wait)) = (Arc::new(AtomicU32::new(0)), watch::channel(false));
    let counted = Arc::clone(&charges);
    // Charges, and responds after a signal.
    let service = layer.layer(service_fn(move |_: Request<Body<Full<Bytes>>>| {
        let (number, mut wait) = (counted.fetch_add(1, Ordering::SeqCst) + 1, wait.clone());
        async move {
            drop(wait.wait_for(|go| *go).await);
            let answer = format!("charge {number}");
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(answer)))
        }
    }));
    let first = tokio::spawn(service.clone().oneshot(pay()));
    while charges.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let config = ClaimConfig::DEFAULT;
    let lost = store.claim(&key(7), 1, PRINT, &config).await.unwrap();
    let Claimed::Run { lease, .. } = lost else {
        panic!("{lost:?}");
    };
    store.write(&key(7), &lease, paid(), &config).await.unwrap();
    drop(primary);
    std::fs::remove_file(&name).unwrap();
    std::os::unix::fs::symlink(replica.socket(), &name).unwrap();

    // The failover is visible.
    let after = info(&replica).await;
    assert_ne!(after.get::<String>("master_replid").unwrap(), before);
    assert_eq!(after.get::<String>("master_replid2").unwrap(), before);
    let began = Instant::now();
    let written = loop {
        match store.write(&key(7), &lease, Change::Renew, &config).await {
            Err(WriteError::Store(_)) if began.elapsed() < Duration::from_secs(20) => {}
            written => break written,
        }
    };
    assert!(matches!(written, Err(WriteError::Gone)), "{written:?}");
    let again = store.claim(&key(7), 2, PRINT, &config).await.unwrap();
    assert!(matches!(again, Claimed::Run { .. }), "{again:?}");

    go.send(true).unwrap();
    let answered = async |response: Response<Body<Full<Bytes>>>| {
        let replayed = response.headers().contains_key("idempotent-replayed");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (body, replayed)
    };
    let first = answered(first.await.unwrap().unwrap()).await;
    assert_eq!(first, (Bytes::from("charge 1"), false));
    let duplicate = answered(service.oneshot(pay()).await.unwrap()).await;
    assert_eq!(duplicate, (Bytes::from("charge 1"), true));
    assert_eq!(charges.load(Ordering::SeqCst), 1);
}

/// What a proxy does with bytes.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Open,
    Slow,
    /// Bytes are read and discarded: the connection is half open.
    Stalled,
    /// Connections are rejected, and existing ones closed.
    Down,
}

async fn proxy(listener: UnixListener, database: PathBuf, way: watch::Receiver<Way>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let (database, mut closes) = (database.clone(), way.clone());
        let way = way.clone();
        tokio::spawn(async move {
            let Ok(server) = UnixStream::connect(&database).await else {
                return;
            };
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            tokio::select! {
                () = copy(from_client, to_server, way.clone()) => {}
                () = copy(from_server, to_client, way) => {}
                _ = closes.wait_for(|way| *way == Way::Down) => {}
            }
        });
    }
}

async fn copy(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut way: watch::Receiver<Way>,
) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        let now = *way.borrow();
        match now {
            Way::Slow => tokio::time::sleep(Duration::from_millis(30)).await,
            // On a busy machine the end of the connection may come later.
            Way::Down => return,
            Way::Open | Way::Stalled => {}
        }
        drop(way.wait_for(|way| *way != Way::Stalled).await);
        if to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}

/// Through the layer: with a slow store requests run; with a stalled or unreachable one they are rejected.
async fn rejects_while_the_store_is_down<S: Store + Clone>(store: S, way: watch::Sender<Way>) {
    let layer = IdempotencyLayer::anonymous(store).wait(Duration::ZERO);
    let charges = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&charges);
    let service = layer.layer(service_fn(move |_: Request<Body<Full<Bytes>>>| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("charged"))) }
    }));
    let send = async |number: u32| {
        let request = Request::post("/payments").header("idempotency-key", format!("k{number}"));
        let request = request.body(Full::<Bytes>::from("5 EUR")).unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        let retry = response.headers().contains_key("retry-after");
        (response.status().as_u16(), retry)
    };
    assert_eq!(send(1).await, (200, false));
    way.send_replace(Way::Slow);
    assert_eq!(send(2).await, (200, false));
    for (number, wrong) in [(3, Way::Stalled), (4, Way::Down)] {
        way.send_replace(wrong);
        let began = Instant::now();
        let (status, retry) = send(number).await;
        assert_eq!((status, retry), (503, true));
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(charges.load(Ordering::SeqCst), number - 1, "nothing runs");
        way.send_replace(Way::Open);
        let began = Instant::now();
        // A stalled call arrives late, and may have claimed the key of a rejected request.
        while send(number).await.0 != 200 {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "it does not come back"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(
            charges.load(Ordering::SeqCst),
            number,
            "and then it runs once"
        );
    }
}

fn behind_a_proxy(directory: &Path, name: &str, database: PathBuf) -> watch::Sender<Way> {
    let (way, watched) = watch::channel(Way::Open);
    // A socket that is bound but not listening has a file, and rejects connections.
    let listener = UnixListener::bind(directory.join(name)).unwrap();
    tokio::spawn(proxy(listener, database, watched));
    way
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_stalls_or_is_down_keyed_requests_are_rejected_in_time() {
    let Some(server) = servers::redis(&DURABLE) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let way = behind_a_proxy(directory.path(), "redis", server.socket());
    let url = format!("redis+unix://{}", directory.path().join("redis").display());
    let store = Redis::connect(Client::open(url).unwrap()).await.unwrap();
    rejects_while_the_store_is_down(store, way).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_postgres_stalls_or_is_down_keyed_requests_are_rejected_in_time() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let (directory, name) = (tempfile::tempdir().unwrap(), ".s.PGSQL.5432");
    let database = server.server.directory().join(name);
    let way = behind_a_proxy(directory.path(), name, database);
    let config = format!(
        "host={} user=relent dbname=postgres",
        directory.path().display()
    );
    let store = Postgres::new(pool(&config, 4).unwrap());
    store.create_tables().await.unwrap();
    // Long enough for a busy machine.
    let store = store.max_wait(Duration::from_secs(2));
    rejects_while_the_store_is_down(store, way).await;
}

/// Forwards new connections to the server that `target` names. When that changes, old connections stay open: they
/// still lead to the old server, or, if its host died, nowhere.
fn forwarding(path: PathBuf, target: watch::Receiver<PathBuf>, host_dies: bool) {
    let listener = UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut target = target.clone();
            let database = target.borrow_and_update().clone();
            tokio::spawn(async move {
                let mut server = UnixStream::connect(&database).await.unwrap();
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                    _ = target.changed(), if host_dies => std::future::pending().await,
                }
            });
        }
    });
}

/// Sends requests until one runs, and checks how long that takes.
async fn runs_again_within<S: Store>(limit: Duration, store: S, fail: impl AsyncFnOnce()) {
    let layer = IdempotencyLayer::anonymous(store).wait(Duration::ZERO);
    let service = layer.layer(service_fn(|_: Request<Body<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("charged")))
    }));
    let send = async |number: u32| {
        let request = Request::post("/payments").header("idempotency-key", format!("k{number}"));
        let request = request.body(Full::<Bytes>::from("5 EUR")).unwrap();
        service.clone().oneshot(request).await.unwrap().status()
    };
    assert_eq!(send(0).await, 200);
    fail().await;
    let began = Instant::now();
    for number in 1.. {
        match send(number).await.as_u16() {
            200 => break,
            status => assert_eq!(status, 503),
        }
        assert!(began.elapsed() < limit, "{:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// TCP notices neither: without a reply it gives up after a quarter of an hour.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_connection_to_a_dead_host_or_a_former_primary_is_replaced() {
    for host_dies in [true, false] {
        let Some(server) = servers::redis(&DURABLE) else {
            return;
        };
        let next = servers::redis(&DURABLE).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("redis");
        let (moves, target) = watch::channel(server.socket());
        forwarding(path.clone(), target, host_dies);
        let url = format!("redis+unix://{}", path.display());
        let store = Redis::connect(Client::open(url).unwrap()).await.unwrap();
        runs_again_within(Duration::from_secs(20), store, async || {
            if !host_dies {
                // Its new primary is away, which changes nothing.
                tell(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
            }
            moves.send_replace(next.socket());
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_connection_to_a_dead_host_or_a_former_primary_is_replaced() {
    for host_dies in [true, false] {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let next = servers::postgres(&["fsync=off"]).unwrap();
        let admin = pool(&server.config(), 1).unwrap();
        Postgres::new(admin.clone()).create_tables().await.unwrap();
        let tables = Postgres::new(pool(&next.config(), 1).unwrap());
        tables.create_tables().await.unwrap();
        let (directory, name) = (tempfile::tempdir().unwrap(), ".s.PGSQL.5432");
        let (moves, target) = watch::channel(server.server.directory().join(name));
        forwarding(directory.path().join(name), target, host_dies);
        let config = format!(
            "host={} user=relent dbname=postgres",
            directory.path().display()
        );
        let pool = pool(&config, 4).unwrap();
        // All connections exist before.
        drop(join_all((0..4).map(|_| pool.get())).await);
        let store = Postgres::new(pool).max_wait(Duration::from_secs(2));
        runs_again_within(Duration::from_secs(40), store, async || {
            if !host_dies {
                let admin = admin.get().await.unwrap();
                let demote = "ALTER SYSTEM SET default_transaction_read_only = on";
                admin.batch_execute(demote).await.unwrap();
                admin
                    .batch_execute("SELECT pg_reload_conf()")
                    .await
                    .unwrap();
            }
            moves.send_replace(next.server.directory().join(name));
        })
        .await;
    }
}

/// Stops and continues the process of the store.
async fn no_claim_is_left_behind<S: Store + Clone>(store: S, stop: impl Fn(&str)) {
    const KEYS: usize = 200;
    let layer = IdempotencyLayer::anonymous(store.clone()).wait(Duration::ZERO);
    let handled = Arc::new(Mutex::new(HashSet::new()));
    let ledger = Arc::clone(&handled);
    let service = layer.layer(service_fn(move |request: Request<Body<Full<Bytes>>>| {
        let key = request.headers()["idempotency-key"].clone();
        assert!(ledger.lock().unwrap().insert(key), "it ran twice");
        async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("charged"))) }
    }));
    let send = |number: usize| {
        let request = Request::post("/payments").header("idempotency-key", format!("k{number}"));
        let request = request.body(Full::<Bytes>::from("5 EUR")).unwrap();
        let service = service.clone();
        async move { service.oneshot(request).await.unwrap().status().as_u16() }
    };
    // Connections exist, and statements are prepared.
    assert_eq!(send(KEYS).await, 200);
    stop("STOP");
    let mut sent: JoinSet<u16> = (0..KEYS).map(send).collect();
    let resume = async {
        tokio::time::sleep(Duration::from_secs(7)).await;
        stop("CONT");
    };
    let refused = async {
        while let Some(status) = sent.join_next().await {
            assert_eq!(status.unwrap(), 503);
        }
    };
    tokio::join!(resume, refused);
    let began = Instant::now();
    for number in 0..KEYS {
        while send(number).await != 200 {
            assert!(began.elapsed() < Duration::from_secs(20), "{number} waits");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(handled.lock().unwrap().len(), KEYS + 1);
    let config = ClaimConfig::DEFAULT;
    assert_eq!(store.find_unknown(None, KEYS, &config).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_stall_redis_claims_nothing_for_rejected_requests() {
    let Some(server) = servers::redis(&["--appendonly", "no"]) else {
        return;
    };
    let client = Client::open(server.url()).unwrap();
    let store = Redis::connect_unchecked(client).await.unwrap();
    no_claim_is_left_behind(store, |signal| server.server.signal(signal)).await;
}

/// The process that sent the claims has ended when they are executed, so nothing gives them back.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_claim_of_a_dead_process_holds_no_key_in_redis() {
    let Some(server) = servers::redis(&["--appendonly", "no"]) else {
        return;
    };
    let connect = || Redis::connect_unchecked(Client::open(server.url()).unwrap());
    let (store, config) = (connect().await.unwrap(), ClaimConfig::DEFAULT);
    store.claim(&key(0), 1, PRINT, &config).await.unwrap();
    server.server.signal("STOP");
    for number in 1..50 {
        // Sent without waiting for the response.
        let key = key(number);
        let claim = store.claim(&key, 1, PRINT, &config);
        let late = tokio::time::timeout(Duration::from_millis(5), claim).await;
        assert!(late.is_err(), "{late:?}");
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    drop(store);
    server.server.signal("CONT");
    let store = connect().await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    for number in 1..50 {
        let claimed = store.claim(&key(number), 2, PRINT, &config).await.unwrap();
        assert!(
            matches!(claimed, Claimed::Run { .. }),
            "{number}: {claimed:?}"
        );
    }
}

/// Signals all server processes, since each connection has its own.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_stall_postgres_claims_nothing_for_rejected_requests() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let store = Postgres::new(pool(&server.config(), 8).unwrap());
    store.create_tables().await.unwrap();
    let store = store.max_wait(Duration::from_millis(500));
    let id = server.server.id().to_string();
    let signal = |signal: &str| {
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let mut kill = std::process::Command::new("kill");
        kill.args(["-s", signal, &id]);
        kill.args(children.unwrap_or_default().split_whitespace());
        assert!(kill.status().unwrap().success());
    };
    no_claim_is_left_behind(store, signal).await;
}

/// Also if the handler claims the key, in its transaction.
#[tokio::test(flavor = "multi_thread")]
async fn while_postgres_stalls_a_transactional_request_is_rejected_in_time() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let (directory, name) = (tempfile::tempdir().unwrap(), ".s.PGSQL.5432");
    let database = server.server.directory().join(name);
    let way = behind_a_proxy(directory.path(), name, database);
    let host = directory.path().display();
    let config = format!("host={host} user=relent dbname=postgres");
    let store = Postgres::new(pool(&config, 4).unwrap()).max_wait(Duration::from_secs(60));
    store.create_tables().await.unwrap();
    let layer = IdempotencyLayer::anonymous(store).transactional();
    let service = layer.layer(service_fn(
        |request: Request<Body<Full<Bytes>>>| async move {
            let once = request
                .extensions()
                .get::<Transactional<Postgres>>()
                .unwrap();
            let paid = once.run(|_| Box::pin(async { Ok::<_, WorkError>(Response::new("paid")) }));
            Ok::<_, Infallible>(paid.await.unwrap())
        },
    ));
    assert_eq!(service.clone().oneshot(pay()).await.unwrap().status(), 200);
    way.send_replace(Way::Stalled);
    let other = || {
        let mut request = pay();
        let key = http::HeaderValue::from_static("other");
        request.headers_mut().insert("idempotency-key", key);
        request
    };
    let began = Instant::now();
    assert_eq!(
        service.clone().oneshot(other()).await.unwrap().status(),
        503
    );
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    way.send_replace(Way::Open);
    let began = Instant::now();
    while service.clone().oneshot(other()).await.unwrap().status() != 200 {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "it does not come back"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
