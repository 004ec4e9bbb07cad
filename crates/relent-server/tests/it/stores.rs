//! Tests that each store decides like the core, and is durable as documented.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use relent_core::idempotency::{ClaimConfig, Fingerprint, Lease};
use relent_server::store::{
    Change, Claimed, Key, Memory, Store, StoredResponse, WriteError, conformance,
};

#[cfg(unix)]
use crate::servers;

/// For an expired record the execution claims the key again. It must not take it for another's record.
async fn distinguishes_an_expired_record_from_a_taken_one<S: Store>(store: S) {
    let (key, print) = (Key([9; 32]), Fingerprint([0; 32]));
    let forgets = ClaimConfig {
        lease: std::time::Duration::ZERO,
        retention: std::time::Duration::ZERO,
        ..ClaimConfig::DEFAULT
    };
    let claimed = store.claim(&key, 1, print, &forgets).await.unwrap();
    let Claimed::Run { lease, .. } = claimed else {
        panic!("{claimed:?}");
    };
    let write = async || store.write(&key, &lease, Change::GiveUp, &forgets).await;
    let written = write().await;
    assert!(matches!(written, Err(WriteError::Gone)), "{written:?}");
    let claimed = store.claim(&key, 2, print, &ClaimConfig::DEFAULT).await;
    assert!(matches!(claimed, Ok(Claimed::Run { .. })), "{claimed:?}");
    let written = write().await;
    assert!(matches!(written, Err(WriteError::Lost)), "{written:?}");
}

#[tokio::test]
async fn memory_distinguishes_an_expired_record_from_a_taken_one() {
    distinguishes_an_expired_record_from_a_taken_one(Memory::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_decides_like_the_core() {
    for seed in 0..20 {
        conformance::check(Memory::new, 2000, seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn memory_decides_like_the_core_at_any_time() {
    let begin = relent_core::Instant::ORIGIN;
    for seed in 0..20 {
        let began = tokio::time::Instant::now();
        let set = async |now: relent_core::Instant| {
            let now = began + now.saturating_since(begin);
            tokio::time::advance(now - tokio::time::Instant::now()).await;
        };
        conformance::check_in_time(&Memory::new(), set, begin, 2000, seed).await;
    }
}

/// A response that is written again replaces itself, also if the store has no room for another.
#[tokio::test]
async fn memory_keeps_a_response_that_is_written_again() {
    let (store, config) = (Memory::new().at_most_bytes(100), ClaimConfig::DEFAULT);
    let claim = async |principal: u8| {
        let key = Key([principal; 32]);
        match store.claim(&key, 1, Fingerprint([0; 32]), &config).await {
            Ok(Claimed::Run { lease, .. }) => (key, lease),
            other => panic!("{other:?}"),
        }
    };
    let write = async |(key, lease): &(Key, Lease), status, length| {
        let body = Some(Bytes::from(vec![b'x'; length]));
        let answer = StoredResponse::from_parts(status, HeaderMap::new(), body, None);
        let complete = Change::Complete(Arc::new(answer));
        store.write(key, lease, complete, &config).await.unwrap();
    };
    let rejected = claim(1).await;
    write(&rejected, StatusCode::NOT_FOUND, 30).await;
    for (principal, length) in [(2, 30), (3, 20)] {
        write(&claim(principal).await, StatusCode::OK, length).await;
    }
    write(&rejected, StatusCode::NOT_FOUND, 30).await;
    assert_eq!((store.len(), store.bytes()), (3, 80));
    // A longer one does not fit.
    write(&rejected, StatusCode::NOT_FOUND, 40).await;
    assert_eq!((store.len(), store.bytes()), (3, 50));
}

/// A service with 100 places for records, whose accounts choose their responses.
mod memory {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use http::{Request, Response, StatusCode};
    use http_body_util::{BodyExt, Full};
    use relent_server::idempotency::{Body, IdempotencyLayer, Outcome};
    use relent_server::store::Memory;
    use tower::{Layer, ServiceExt, service_fn};

    struct Service {
        layer: IdempotencyLayer<Memory>,
        runs: Arc<AtomicUsize>,
    }

    impl Service {
        fn new(store: Memory) -> Self {
            let principal = |parts: &http::request::Parts| {
                let account = parts.headers.get("account")?;
                Some(account.to_str().ok()?.to_owned())
            };
            Self {
                layer: IdempotencyLayer::new(store, principal),
                runs: Arc::default(),
            }
        }

        /// Returns the status for an account and key; the handler responds with this status and a body of this
        /// length.
        async fn send(&self, account: &str, key: usize, answer: u16, length: usize) -> u16 {
            let runs = Arc::clone(&self.runs);
            let handler = service_fn(move |request: Request<Body<Full<Bytes>>>| {
                runs.fetch_add(1, Ordering::SeqCst);
                async move {
                    drop(request);
                    let mut response = Response::new(Full::from(vec![b'x'; length]));
                    *response.status_mut() = StatusCode::from_u16(answer).unwrap();
                    if answer == 402 {
                        response.extensions_mut().insert(Outcome::NotApplied);
                    }
                    Ok::<_, Infallible>(response)
                }
            });
            let request = Request::post("/payments")
                .header("account", account)
                .header("idempotency-key", format!("k{key}"));
            let request = request.body(Full::<Bytes>::default()).unwrap();
            let response = self.layer.layer(handler).oneshot(request).await.unwrap();
            let status = response.status().as_u16();
            drop(response.into_body().collect().await);
            status
        }

        fn runs(&self) -> usize {
            self.runs.load(Ordering::SeqCst)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rejections_of_one_account_do_not_block_new_keys() {
        let service = Service::new(Memory::new().at_most(100));
        for key in 0..1000 {
            // A stored rejection, and one that releases the key.
            for refusal in [422, 402] {
                let key = 2 * key + usize::from(refusal == 402);
                assert_eq!(service.send("mallory", key, refusal, 0).await, refusal);
            }
        }
        assert_eq!(service.layer.store().len(), 50, "half of it is for others");
        for account in ["ann", "bob", "cid"] {
            assert_eq!(service.send(account, 0, 201, 0).await, 201);
        }
        assert_eq!(service.send("mallory", 5000, 201, 0).await, 201);
        let runs = service.runs();
        for account in ["ann", "bob", "cid"] {
            assert_eq!(service.send(account, 0, 201, 0).await, 201);
        }
        assert_eq!(service.runs(), runs, "they are replayed");
    }

    #[tokio::test(start_paused = true)]
    async fn records_with_effects_are_kept_and_limit_only_their_account() {
        let service = Service::new(Memory::new().at_most(100));
        for key in 0..50 {
            // One in ten has an unknown outcome.
            let answer = if key % 10 == 0 { 500 } else { 201 };
            assert_eq!(service.send("mallory", key, answer, 0).await, answer);
        }
        assert_eq!(service.send("mallory", 50, 201, 0).await, 503);
        assert_eq!(service.runs(), 50);
        // Several such accounts still leave places for the next.
        for (account, share) in [("two", 25), ("three", 13), ("four", 6)] {
            for key in 0..share {
                assert_eq!(
                    service.send(account, key, 201, 0).await,
                    201,
                    "{account} {key}"
                );
            }
            assert_eq!(service.send(account, share, 201, 0).await, 503, "{account}");
        }
        assert_eq!(service.send("ann", 0, 201, 0).await, 201);
        let runs = service.runs();
        for key in 0..50 {
            let answer = if key % 10 == 0 { 409 } else { 201 };
            assert_eq!(service.send("mallory", key, 201, 0).await, answer);
        }
        assert_eq!(service.runs(), runs, "nothing runs again");
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_replaces_its_own_rejections_first() {
        let service = Service::new(Memory::new().at_most(100));
        assert_eq!(service.send("ann", 0, 422, 0).await, 422);
        for key in 0..200 {
            assert_eq!(service.send("mallory", key, 404, 0).await, 404);
        }
        let runs = service.runs();
        assert_eq!(service.send("ann", 0, 422, 0).await, 422);
        assert_eq!(service.runs(), runs, "it is replayed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_does_not_fit_is_stored_without_its_body() {
        let service = Service::new(Memory::new().at_most_bytes(100_000));
        for key in 0..20 {
            assert_eq!(service.send("mallory", key, 201, 10_000).await, 201);
        }
        assert!(service.layer.store().bytes() <= 50_000);
        assert_eq!(service.send("ann", 0, 201, 20_000).await, 201);
        let runs = service.runs();
        assert_eq!(
            service.send("ann", 0, 201, 20_000).await,
            201,
            "it is whole"
        );
        for key in 0..20 {
            let status = if key < 5 { 201 } else { 410 };
            assert_eq!(service.send("mallory", key, 201, 0).await, status, "{key}");
        }
        assert_eq!(service.runs(), runs);
    }

    #[tokio::test(start_paused = true)]
    async fn rejections_are_replaced_by_bodies_of_other_responses() {
        let service = Service::new(Memory::new().at_most_bytes(100_000));
        for key in 0..5 {
            assert_eq!(service.send("ann", key, 404, 9_900).await, 404);
        }
        assert_eq!(service.send("ann", 5, 201, 9_900).await, 201);
        let runs = service.runs();
        assert_eq!(service.send("ann", 5, 201, 9_900).await, 201, "it is whole");
        assert_eq!(service.runs(), runs);
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::fs;
    use std::path::Path;
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use relent_core::idempotency::{ClaimConfig, Fingerprint};
    use relent_server::sqlite::{FileProblem, WriterError};
    use relent_server::store::{Claimed, Key, Sqlite, SqliteError, Store, conformance};

    fn refused(path: &Path, expected: FileProblem) {
        let error = Sqlite::open(path).unwrap_err();
        assert!(
            matches!(&error, WriterError::File { problem, .. } if *problem == expected),
            "{error}"
        );
        assert!(
            error.to_string().contains(&path.display().to_string()),
            "{error}"
        );
    }

    /// Creates the database, and returns when its thread has closed the file.
    fn make(path: &Path) {
        drop(Sqlite::open(path).unwrap());
        let log = path.with_extension("db-wal");
        let limit = Instant::now() + Duration::from_secs(30);
        while log.exists() {
            assert!(Instant::now() < limit, "{} is still open", path.display());
            thread::yield_now();
        }
    }

    #[test]
    fn an_unwritable_file_is_an_error_with_its_name_and_stays_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        refused(path, FileProblem::Directory);
        refused(&path.join("missing").join("keys.db"), FileProblem::NoFolder);
        let text = path.join("letter.txt");
        fs::write(&text, "Dear Sir or Madam, ".repeat(1000)).unwrap();
        refused(&text, FileProblem::NotADatabase);
        assert_eq!(fs::read(&text).unwrap().len(), 19_000);
        // With and without its tables.
        let (empty, keys) = (path.join("empty.db"), path.join("keys.db"));
        make(&keys);
        fs::write(&empty, "").unwrap();
        for file in [&empty, &keys] {
            let mut permissions = fs::metadata(file).unwrap().permissions();
            permissions.set_readonly(true);
            fs::set_permissions(file, permissions).unwrap();
            let before = fs::read(file).unwrap();
            refused(file, FileProblem::ReadOnly);
            assert_eq!(fs::read(file).unwrap(), before);
            let error = Sqlite::open(file).unwrap_err().to_string();
            assert!(error.contains("read-only"), "{error}");
        }
        let address = format!("file:{}?mode=ro", path.join("open.db").display());
        make(&path.join("open.db"));
        refused(Path::new(&address), FileProblem::ReadOnly);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_claim_whose_caller_gave_up_in_the_queue_holds_no_key() {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open(directory.path().join("keys.db")).unwrap();
        let (key, print, config) = (Key([1; 32]), Fingerprint([0; 32]), ClaimConfig::DEFAULT);
        let (begun, begins) = tokio::sync::oneshot::channel();
        let (go, wait) = mpsc::channel::<()>();
        let writer = store.writer().clone();
        let busy = tokio::spawn(async move {
            let work = move |_: &rusqlite::Connection| {
                begun.send(()).unwrap();
                wait.recv().unwrap();
                Ok::<_, SqliteError>(())
            };
            writer.run(work).await.unwrap();
        });
        begins.await.unwrap();
        // The claim is in the queue by then.
        tokio::select! {
            biased;
            claimed = store.claim(&key, 1, print, &config) => panic!("{claimed:?}"),
            () = async {} => {}
        }
        go.send(()).unwrap();
        busy.await.unwrap();
        let claimed = store.claim(&key, 2, print, &config).await.unwrap();
        assert!(matches!(claimed, Claimed::Run { .. }), "{claimed:?}");
    }

    #[tokio::test]
    async fn sqlite_distinguishes_an_expired_record_from_a_taken_one() {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open(directory.path().join("keys.db")).unwrap();
        super::distinguishes_an_expired_record_from_a_taken_one(store).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn sqlite_decides_like_the_core() {
        for seed in 0..3 {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("keys.db");
            conformance::check(|| Sqlite::open(&file).unwrap(), 600, seed).await;
        }
    }
}

#[cfg(all(unix, feature = "redis"))]
mod redis {
    use std::time::{Duration, Instant};

    use redis::Client;
    use relent_core::idempotency::{ClaimConfig, Fingerprint};
    use relent_server::store::{Change, Claimed, Key, Redis, RedisError, Store, conformance};

    use super::servers;

    const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];
    const PRINT: Fingerprint = Fingerprint([0; 32]);

    #[tokio::test(flavor = "multi_thread")]
    async fn redis_decides_like_the_core() {
        let Some(server) = servers::redis(&DURABLE) else {
            return;
        };
        let store = Redis::connect(Client::open(server.url()).unwrap())
            .await
            .unwrap();
        for seed in 0..3 {
            let store = store.clone().namespace(&format!("seed {seed}"));
            conformance::check(|| store, 1000, seed).await;
        }
    }

    #[tokio::test]
    async fn a_redis_that_evicts_or_does_not_persist_is_rejected_by_default() {
        let Some(evicts) =
            servers::redis(&["--appendonly", "yes", "--maxmemory-policy", "allkeys-lru"])
        else {
            return;
        };
        let client = Client::open(evicts.url()).unwrap();
        let refused = Redis::connect(client.clone()).await.unwrap_err();
        assert!(
            matches!(&refused, RedisError::Evicts { policy } if policy == "allkeys-lru"),
            "{refused}"
        );
        Redis::connect_unchecked(client).await.unwrap();
        let volatile = servers::redis(&[]).unwrap();
        let refused = Redis::connect(Client::open(volatile.url()).unwrap())
            .await
            .unwrap_err();
        assert!(matches!(refused, RedisError::Volatile), "{refused}");
    }

    /// Killed and restarted with its file, Redis has all confirmed records. Meanwhile each call is an error.
    #[tokio::test]
    async fn confirmed_redis_records_survive_a_kill() {
        let Some(server) = servers::redis(&DURABLE) else {
            return;
        };
        let store = Redis::connect(Client::open(server.url()).unwrap())
            .await
            .unwrap();
        let config = ClaimConfig::DEFAULT;
        let claimed = store.claim(&Key([1; 32]), 1, PRINT, &config).await.unwrap();
        let Claimed::Run { lease, .. } = claimed else {
            panic!("{claimed:?}");
        };
        let directory = server.server.end();
        let began = Instant::now();
        let error = store
            .claim(&Key([2; 32]), 2, PRINT, &config)
            .await
            .unwrap_err();
        assert!(error.to_string().starts_with("Redis: "), "{error}");
        store
            .write(&Key([1; 32]), &lease, Change::Renew, &config)
            .await
            .unwrap_err();
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "nobody waits for it long"
        );
        let _server = servers::redis_in(directory, &DURABLE).unwrap();
        // The connection is re-established automatically.
        let claimed = loop {
            match store.claim(&Key([1; 32]), 3, PRINT, &config).await {
                Ok(claimed) => break claimed,
                Err(_) if began.elapsed() < Duration::from_secs(30) => {}
                Err(error) => panic!("{error}"),
            }
        };
        assert!(matches!(claimed, Claimed::InFlight(_)), "{claimed:?}");
        store
            .write(&Key([1; 32]), &lease, Change::Renew, &config)
            .await
            .unwrap();
    }

    /// A half-open connection: it accepts bytes and does not respond.
    #[tokio::test]
    async fn a_redis_that_does_not_respond_is_an_error_in_time() {
        let Some(server) = servers::redis(&DURABLE) else {
            return;
        };
        let store = Redis::connect(Client::open(server.url()).unwrap())
            .await
            .unwrap();
        server.server.signal("STOP");
        let began = Instant::now();
        let config = ClaimConfig::DEFAULT;
        store
            .claim(&Key([1; 32]), 1, PRINT, &config)
            .await
            .unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(5));
        server.server.signal("CONT");
        // The owner asks again, and gets the claim whose reply was lost.
        let claimed = store.claim(&Key([1; 32]), 1, PRINT, &config).await.unwrap();
        assert!(
            matches!(claimed, Claimed::Run { lease, .. } if lease.fence == 1),
            "{claimed:?}"
        );
    }

    #[tokio::test]
    async fn redis_keeps_a_record_for_lease_and_retention() {
        let Some(server) = servers::redis(&DURABLE) else {
            return;
        };
        let client = Client::open(server.url()).unwrap();
        let store = Redis::connect(client.clone()).await.unwrap();
        let key = Key([1; 32]);
        let config = ClaimConfig {
            lease: Duration::from_secs(100),
            retention: Duration::from_secs(1000),
            ..ClaimConfig::DEFAULT
        };
        store.claim(&key, 1, PRINT, &config).await.unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let left: i64 = redis::cmd("PTTL")
            .arg(store.name(&key))
            .query_async(&mut connection)
            .await
            .unwrap();
        assert!((1_090_000..=1_100_001).contains(&left), "{left} ms");
    }
}

#[cfg(all(unix, feature = "postgres"))]
mod postgres {
    use std::time::{Duration, Instant};

    use relent_core::idempotency::{ClaimConfig, Fingerprint};
    use relent_server::store::{Key, Postgres, Store, conformance};

    use super::servers;

    const PRINT: Fingerprint = Fingerprint([0; 32]);

    async fn store(server: &servers::Postgres) -> Postgres {
        let pool = relent_server::postgres::pool(&server.config(), 8).unwrap();
        let store = Postgres::new(pool);
        store.create_tables().await.unwrap();
        store
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn postgres_decides_like_the_core() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let store = store(&server).await;
        for seed in 0..3 {
            let client = store.pool().get().await.unwrap();
            client
                .batch_execute("TRUNCATE relent_idempotency_1")
                .await
                .unwrap();
            drop(client);
            conformance::check(|| store.clone(), 1000, seed).await;
        }
        #[cfg(feature = "sqlx")]
        by_sqlx(&server).await;
        super::distinguishes_an_expired_record_from_a_taken_one(store.clone()).await;
        old_records_are_removed(&store).await;
        many_processes_begin_at_once(&server).await;
    }

    /// A transactional handler may be long.
    #[tokio::test(flavor = "multi_thread")]
    async fn creating_idempotency_tables_that_exist_waits_for_no_transaction() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let store = store(&server).await;
        let mut client = store.pool().get().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        let lock = "LOCK TABLE relent_idempotency_1 IN ROW EXCLUSIVE MODE";
        transaction.batch_execute(lock).await.unwrap();
        store.create_tables().await.unwrap();
        transaction.commit().await.unwrap();
    }

    /// Its connection returns to the pool.
    #[tokio::test]
    async fn a_refused_creation_of_idempotency_tables_leaves_no_transaction_open() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let schema = async |name: &str| {
            let pool = relent_server::postgres::pool(&server.config(), 1).unwrap();
            let client = pool.get().await.unwrap();
            let schema = format!("CREATE SCHEMA {name}");
            client.batch_execute(&schema).await.unwrap();
        };
        let config = format!("{} options='-c search_path=one'", server.config());
        let store = Postgres::new(relent_server::postgres::pool(&config, 1).unwrap());
        store.create_tables().await.unwrap_err();
        schema("one").await;
        store.create_tables().await.unwrap();
        #[cfg(feature = "sqlx")]
        {
            let options = options(&server).options([("search_path", "two")]);
            let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1);
            let store = Postgres::new(pool.connect_lazy_with(options));
            store.create_tables().await.unwrap_err();
            schema("two").await;
            store.create_tables().await.unwrap();
        }
    }

    #[cfg(feature = "sqlx")]
    fn options(server: &servers::Postgres) -> sqlx::postgres::PgConnectOptions {
        let options = sqlx::postgres::PgConnectOptions::new().socket(server.server.directory());
        options.username("relent").database("postgres")
    }

    #[cfg(feature = "sqlx")]
    async fn by_sqlx(server: &servers::Postgres) {
        let pool = sqlx::postgres::PgPoolOptions::new();
        let store = Postgres::new(pool.connect_lazy_with(options(server)));
        store.create_tables().await.unwrap();
        for seed in 0..3 {
            let clear = sqlx::query("TRUNCATE relent_idempotency_1");
            clear.execute(store.pool()).await.unwrap();
            conformance::check(|| store.clone(), 1000, seed).await;
        }
        assert!(store.remove_expired(10).await.unwrap() <= 10);
    }

    /// Claims remove expired records faster than they create new ones.
    async fn old_records_are_removed(store: &Postgres) {
        let over = ClaimConfig {
            lease: Duration::ZERO,
            retention: Duration::ZERO,
            ..ClaimConfig::DEFAULT
        };
        for number in 0..1100_u16 {
            let mut key = Key([9; 32]);
            key.0[..2].copy_from_slice(&number.to_be_bytes());
            store.claim(&key, 1, PRINT, &over).await.unwrap();
        }
        let count = async || {
            let client = store.pool().get().await.unwrap();
            let count = "SELECT count(*) FROM relent_idempotency_1 WHERE expires < 1 << 62";
            client.query_one(count, &[]).await.unwrap().get::<_, i64>(0)
        };
        let began = Instant::now();
        while count().await > 600 {
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "{} records",
                count().await
            );
        }
    }

    async fn many_processes_begin_at_once(server: &servers::Postgres) {
        let client = store(server).await.pool().get().await.unwrap();
        client
            .batch_execute("DROP TABLE relent_idempotency_1")
            .await
            .unwrap();
        let begin = (0..8).map(|_| store(server));
        futures_util::future::join_all(begin).await;
    }

    #[tokio::test]
    async fn a_postgres_that_stalls_or_is_down_is_an_error_in_time() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let store = store(&server).await.max_wait(Duration::from_millis(500));
        let config = ClaimConfig::DEFAULT;
        let key = Key([1; 32]);
        store.claim(&key, 1, PRINT, &config).await.unwrap();
        // Another transaction locks the record, and does not end.
        let mut holder = store.pool().get().await.unwrap();
        let transaction = holder.transaction().await.unwrap();
        let lock = "UPDATE relent_idempotency_1 SET step = step";
        transaction.batch_execute(lock).await.unwrap();
        let began = Instant::now();
        let over = ClaimConfig {
            takeover: relent_core::idempotency::Takeover::Rerun,
            ..config
        };
        let renewed = async {
            let lease = relent_core::idempotency::Lease {
                owner: 1,
                fence: 1,
                until: relent_core::Instant::ORIGIN,
            };
            store
                .write(&key, &lease, relent_server::store::Change::Renew, &over)
                .await
        };
        renewed.await.unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(5));
        transaction.rollback().await.unwrap();
        store.claim(&Key([2; 32]), 1, PRINT, &config).await.unwrap();
        let _directory = server.server.end();
        let error = store
            .claim(&Key([3; 32]), 1, PRINT, &config)
            .await
            .unwrap_err();
        assert!(error.to_string().contains("PostgreSQL"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}
