//! Each store decides as the core does, and keeps what it has promised to keep.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

#[cfg(unix)]
#[path = "support/servers.rs"]
mod servers;

use relent_core::claim::{ClaimConfig, Fingerprint};
use relent_server::store::{Change, Claimed, Key, Memory, Store, WriteError, conformance};

/// Its execution claims the key again then, rather than to take it for another's.
async fn tells_a_record_that_has_expired_from_one_that_another_has<S: Store>(store: S) {
    let (key, print) = (Key([9; 32]), Fingerprint([0; 32]));
    let forgets = ClaimConfig {
        lease: std::time::Duration::ZERO,
        keep: std::time::Duration::ZERO,
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
async fn memory_tells_a_record_that_has_expired_from_one_that_another_has() {
    tells_a_record_that_has_expired_from_one_that_another_has(Memory::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_decides_as_the_core_does() {
    for seed in 0..20 {
        conformance::check(Memory::new, 2000, seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn memory_decides_as_the_core_does_at_each_time() {
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

#[cfg(feature = "sqlite")]
mod sqlite {
    use relent_server::store::{Sqlite, conformance};

    #[tokio::test]
    async fn sqlite_tells_a_record_that_has_expired_from_one_that_another_has() {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open(directory.path().join("keys.db")).unwrap();
        super::tells_a_record_that_has_expired_from_one_that_another_has(store).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn sqlite_decides_as_the_core_does() {
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
    use relent_core::claim::{ClaimConfig, Fingerprint};
    use relent_server::store::{Change, Claimed, Key, Redis, RedisError, Store, conformance};

    use super::servers;

    const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];
    const PRINT: Fingerprint = Fingerprint([0; 32]);

    #[tokio::test(flavor = "multi_thread")]
    async fn redis_decides_as_the_core_does() {
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
    async fn a_server_that_forgets_is_refused_unless_that_is_accepted() {
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

    /// Killed and begun again with its file, it has what it has told; and meanwhile each call is an error.
    #[tokio::test]
    async fn what_redis_has_told_survives_its_kill_and_while_it_is_away_nothing_is_claimed() {
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
        // The connection is made anew by itself.
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

    /// Half open: it takes what is sent, and does not answer.
    #[tokio::test]
    async fn a_redis_that_does_not_answer_is_an_error_in_time() {
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
        // The same owner asks again, and has what it was given behind its back.
        let claimed = store.claim(&Key([1; 32]), 1, PRINT, &config).await.unwrap();
        assert!(
            matches!(claimed, Claimed::Run { lease, .. } if lease.fence == 1),
            "{claimed:?}"
        );
    }

    #[tokio::test]
    async fn a_record_that_may_be_forgotten_is_removed_by_redis_and_not_before() {
        let Some(server) = servers::redis(&DURABLE) else {
            return;
        };
        let client = Client::open(server.url()).unwrap();
        let store = Redis::connect(client.clone()).await.unwrap();
        let key = Key([1; 32]);
        let config = ClaimConfig {
            lease: Duration::from_secs(100),
            keep: Duration::from_secs(1000),
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

    use relent_core::claim::{ClaimConfig, Fingerprint};
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
    async fn postgres_decides_as_the_core_does() {
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
        super::tells_a_record_that_has_expired_from_one_that_another_has(store.clone()).await;
        old_records_are_removed(&store).await;
        many_processes_begin_at_once(&server).await;
    }

    #[cfg(feature = "sqlx")]
    async fn by_sqlx(server: &servers::Postgres) {
        use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

        let options = PgConnectOptions::new().socket(server.server.directory());
        let options = options.username("relent").database("postgres");
        let store = Postgres::new(PgPoolOptions::new().connect_lazy_with(options));
        store.create_tables().await.unwrap();
        for seed in 0..3 {
            let clear = sqlx::query("TRUNCATE relent_idempotency_1");
            clear.execute(store.pool()).await.unwrap();
            conformance::check(|| store.clone(), 1000, seed).await;
        }
        assert!(store.remove_expired(10).await.unwrap() <= 10);
    }

    /// Claims remove what has expired, more than they make.
    async fn old_records_are_removed(store: &Postgres) {
        let over = ClaimConfig {
            lease: Duration::ZERO,
            keep: Duration::ZERO,
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
    async fn a_postgres_that_does_not_answer_or_is_away_is_an_error_in_time() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let store = store(&server).await.patience(Duration::from_millis(500));
        let config = ClaimConfig::DEFAULT;
        let key = Key([1; 32]);
        store.claim(&key, 1, PRINT, &config).await.unwrap();
        // Another transaction has the record, and does not end.
        let mut holder = store.pool().get().await.unwrap();
        let transaction = holder.transaction().await.unwrap();
        let lock = "UPDATE relent_idempotency_1 SET step = step";
        transaction.batch_execute(lock).await.unwrap();
        let began = Instant::now();
        let over = ClaimConfig {
            takeover: relent_core::claim::Takeover::Rerun,
            ..config
        };
        let renewed = async {
            let lease = relent_core::claim::Lease {
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
