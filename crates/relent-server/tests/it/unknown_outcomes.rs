//! Tests that unknown outcomes are found and resolved on each store, and that the lost owner cannot write after that.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use relent_core::idempotency::{ClaimConfig, Fingerprint, Lease};
use relent_server::idempotency::{Body, Execution, IdempotencyLayer};
use relent_server::store::{
    Change, Claimed, Key, Memory, NotResolved, Resolution, ResolveError, Store, StoredResponse,
    UnknownOutcome, WriteError,
};
use tower::{Layer, ServiceExt, service_fn};

#[cfg(unix)]
use crate::servers;

const PRINT: Fingerprint = Fingerprint([3; 32]);
const CONFIG: ClaimConfig = ClaimConfig::DEFAULT;
/// The lease of an execution that is lost immediately.
const LOST: ClaimConfig = ClaimConfig {
    lease: Duration::ZERO,
    ..CONFIG
};

fn answer(body: &'static str) -> Arc<StoredResponse> {
    let (status, body) = (StatusCode::CREATED, Bytes::from_static(body.as_bytes()));
    Arc::new(StoredResponse::from_parts(
        status,
        HeaderMap::new(),
        Some(body),
        None,
    ))
}

async fn run(store: &impl Store, key: &Key, owner: u128, config: &ClaimConfig) -> Lease {
    let claimed = store.claim(key, owner, PRINT, config).await.unwrap();
    let Claimed::Run {
        lease,
        step: 0,
        repeated: false,
    } = claimed
    else {
        panic!("{claimed:?}");
    };
    lease
}

async fn find(store: &impl Store, key: &Key) -> UnknownOutcome {
    let found = store.find_unknown(None, 10_000, &CONFIG).await.unwrap();
    let found = found.into_iter().find(|outcome| outcome.key() == key);
    found.unwrap()
}

async fn writes_nothing(store: &impl Store, key: &Key, lease: &Lease) {
    for change in [
        Change::Renew,
        Change::Checkpoint(1),
        Change::Complete(answer("late")),
        Change::Release,
        Change::GiveUp,
    ] {
        let written = store.write(key, lease, change.clone(), &CONFIG).await;
        assert!(
            matches!(written, Err(WriteError::Lost)),
            "{change:?}: {written:?}"
        );
    }
}

async fn keeps_the_lost_owner_out(store: &impl Store) {
    // A request resolved as not applied runs again.
    let key = Key([1; 32]);
    let lost = run(store, &key, 1, &LOST).await;
    let found = find(store, &key).await;
    assert_eq!(
        (found.record().fence, found.record().fingerprint),
        (lost.fence, PRINT)
    );
    for _ in 0..2 {
        let resolved = store.resolve(&found, Resolution::NotApplied, &CONFIG).await;
        resolved.unwrap();
    }
    writes_nothing(store, &key, &lost).await;
    let next = run(store, &key, 2, &CONFIG).await;
    assert!(next.fence > lost.fence, "{next:?} after {lost:?}");
    writes_nothing(store, &key, &lost).await;
    let refused = store.resolve(&found, Resolution::NotApplied, &CONFIG).await;
    let running = NotResolved::Running;
    assert!(matches!(refused, Err(ResolveError::Refused(why)) if why == running));
    let complete = Change::Complete(answer("second"));
    store.write(&key, &next, complete, &CONFIG).await.unwrap();
    let claimed = store.claim(&key, 3, PRINT, &CONFIG).await.unwrap();
    assert_eq!(claimed, Claimed::Replay((*answer("second")).clone()));

    // A request resolved as applied has the given response.
    let key = Key([2; 32]);
    let lost = run(store, &key, 1, &LOST).await;
    let unknown = store.claim(&key, 2, PRINT, &CONFIG).await.unwrap();
    assert_eq!(unknown, Claimed::Unknown);
    let paid = Resolution::Applied(answer("paid"));
    // The owner claims again and is lost again: the resolution may be older than that.
    let stale = find(store, &key).await;
    for change in [Change::Renew, Change::GiveUp] {
        store.write(&key, &lost, change, &LOST).await.unwrap();
    }
    let refused = store.resolve(&stale, paid.clone(), &CONFIG).await;
    let changed = NotResolved::Changed;
    assert!(matches!(refused, Err(ResolveError::Refused(why)) if why == changed));
    let found = find(store, &key).await;
    for _ in 0..2 {
        store.resolve(&found, paid.clone(), &CONFIG).await.unwrap();
    }
    writes_nothing(store, &key, &lost).await;
    for other in [Resolution::NotApplied, Resolution::Applied(answer("late"))] {
        let refused = store.resolve(&found, other, &CONFIG).await.unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("has an answer already"), "{text}");
    }
    let claimed = store.claim(&key, 3, PRINT, &CONFIG).await.unwrap();
    assert_eq!(claimed, Claimed::Replay((*answer("paid")).clone()));
    let left = store.find_unknown(None, 10, &CONFIG).await.unwrap();
    assert_eq!(left, []);
}

/// Such as a job for another layer of the same store.
async fn ignores_the_retention_of_its_reader(store: &impl Store) {
    let day = CONFIG.retention;
    let [brief, long] = [Duration::ZERO, 8 * day].map(|retention| ClaimConfig {
        retention,
        ..CONFIG
    });
    let key = Key([0xa9; 32]);
    let lease = run(store, &key, 1, &CONFIG).await;
    store
        .write(&key, &lease, Change::GiveUp, &CONFIG)
        .await
        .unwrap();
    for reader in [brief, CONFIG, long] {
        let found = store.find_unknown(None, 10_000, &reader).await.unwrap();
        let found = found.into_iter().find(|outcome| *outcome.key() == key);
        let age = found.unwrap().age();
        assert!(age < Duration::from_secs(3600), "{age:?}");
    }
    let (found, paid) = (find(store, &key).await, Resolution::Applied(answer("paid")));
    store.resolve(&found, paid, &brief).await.unwrap();
    let claimed = store.claim(&key, 2, PRINT, &CONFIG).await.unwrap();
    assert_eq!(claimed, Claimed::Replay((*answer("paid")).clone()));
}

#[tokio::test]
async fn memory_keeps_age_and_expiry_of_an_outcome_whatever_the_retention_of_its_reader() {
    ignores_the_retention_of_its_reader(&Memory::new()).await;
}

#[tokio::test]
async fn memory_rejects_a_late_write_of_a_fenced_off_owner() {
    keeps_the_lost_owner_out(&Memory::new()).await;
}

type Reply = (StatusCode, bool, Bytes);

async fn ask(layer: &IdempotencyLayer<Memory>, body: &'static str) -> Reply {
    let handler = async |request: Request<Body<Full<Bytes>>>| {
        let execution = request.extensions().get::<Execution>().unwrap().clone();
        let derived = execution.derived_key("charge");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let mut response = Response::new(Full::from(format!("{} {derived}", execution.fence())));
        if body.starts_with(b"fails") && execution.fence() == 1 {
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        }
        if body == "slow" {
            tokio::time::sleep(Duration::from_secs(100)).await;
        }
        Ok::<_, Infallible>(response)
    };
    let request = Request::post("/payments").header("idempotency-key", format!("\"{body}\""));
    let request = request.body(Full::from(body)).unwrap();
    let handler = service_fn(handler);
    let response = layer.layer(handler).oneshot(request).await.unwrap();
    let replayed = response.headers().contains_key("idempotent-replayed");
    let (status, body) = (response.status(), response.into_body());
    (status, replayed, body.collect().await.unwrap().to_bytes())
}

#[tokio::test(start_paused = true)]
async fn an_operator_resolves_an_unknown_outcome_for_its_duplicates() {
    let layer = IdempotencyLayer::anonymous(Memory::new());
    let outcomes = layer.unknown_outcomes();
    // A running handler with a renewed lease is not among them.
    let slow = tokio::spawn({
        let layer = layer.clone();
        async move { ask(&layer, "slow").await }
    });
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert_eq!(outcomes.find(None, 10).await.unwrap(), []);
    assert_eq!(slow.await.unwrap().0, StatusCode::OK);
    assert_eq!(
        ask(&layer, "fails").await.0,
        StatusCode::INTERNAL_SERVER_ERROR
    );
    tokio::time::sleep(Duration::from_secs(60)).await;
    let (status, _, told) = ask(&layer, "fails").await;
    assert_eq!(status, StatusCode::CONFLICT, "{told:?}");
    let found = outcomes.find(None, 10).await.unwrap();
    let [lost] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(*lost.key(), Key::of("", "POST", "", "fails"));
    assert_eq!(lost.age(), Duration::from_secs(60));
    outcomes
        .resolve(lost, Resolution::NotApplied)
        .await
        .unwrap();
    // It runs with a higher fencing token, and the same derived key for its charge.
    let (status, replayed, told) = ask(&layer, "fails").await;
    assert_eq!((status, replayed), (StatusCode::OK, false));
    assert_eq!(told, format!("3 {}", lost.key().derived_key("charge")));

    assert_eq!(
        ask(&layer, "fails, too").await.0,
        StatusCode::INTERNAL_SERVER_ERROR
    );
    let lost = find(layer.store(), &Key::of("", "POST", "", "fails, too")).await;
    let paid = Resolution::Applied(answer("paid"));
    outcomes.resolve(&lost, paid.clone()).await.unwrap();
    let told = ask(&layer, "fails, too").await;
    assert_eq!(told, (StatusCode::CREATED, true, Bytes::from("paid")));

    let key = Key::of("", "POST", "", "other");
    run(layer.store(), &key, 1, &LOST).await;
    let lost = find(layer.store(), &key).await;
    // Another request with the key gets no information.
    outcomes.resolve(&lost, paid).await.unwrap();
    assert_eq!(
        ask(&layer, "other").await.0,
        StatusCode::UNPROCESSABLE_ENTITY
    );
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use relent_server::store::Sqlite;

    use super::*;

    #[tokio::test]
    async fn sqlite_rejects_a_late_write_of_a_fenced_off_owner() {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open(directory.path().join("keys.db")).unwrap();
        keeps_the_lost_owner_out(&store).await;
    }

    #[tokio::test]
    async fn sqlite_keeps_age_and_expiry_of_an_outcome_whatever_the_retention_of_its_reader() {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open(directory.path().join("keys.db")).unwrap();
        ignores_the_retention_of_its_reader(&store).await;
    }

    /// A file of a version before the index.
    #[tokio::test]
    async fn a_file_of_an_older_version_gets_the_index_of_unknown_outcomes() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("keys.db");
        let old = rusqlite::Connection::open(&file).unwrap();
        old.execute_batch(
            "CREATE TABLE relent_idempotency_1 (
                 key BLOB NOT NULL PRIMARY KEY, fingerprint BLOB NOT NULL, owner BLOB NOT NULL, fence INTEGER NOT NULL,
                 stage INTEGER NOT NULL, until INTEGER NOT NULL, step INTEGER NOT NULL, repeated INTEGER NOT NULL,
                 expires INTEGER NOT NULL, answer BLOB);
             CREATE INDEX relent_idempotency_1_expires ON relent_idempotency_1 (expires);
             INSERT INTO relent_idempotency_1 VALUES
                 (zeroblob(32), zeroblob(32), zeroblob(16), 7, 0, 1000, 2, 1, 9000000000000000000, NULL),
                 (randomblob(32), zeroblob(32), zeroblob(16), 7, 3, 0, 2, 0, 9000000000000000001, NULL),
                 (randomblob(32), zeroblob(32), zeroblob(16), 7, 1, 0, 0, 0, 9000000000000000002, x'01'),
                 (randomblob(32), zeroblob(32), zeroblob(16), 7, 0, 8000000000000000000, 0, 0, 9000000000000000003, NULL),
                 (randomblob(32), zeroblob(32), zeroblob(16), 7, 3, 0, 2, 1, 1000, NULL);",
        )
        .unwrap();
        drop(old);
        let store = Sqlite::open(&file).unwrap();
        let found = store.find_unknown(None, 10, &CONFIG).await.unwrap();
        let found: Vec<_> = found.iter().map(UnknownOutcome::record).collect();
        let seen: Vec<_> = (found.iter())
            .map(|record| (record.fence, record.step, record.repeated))
            .collect();
        assert_eq!(seen, [(7, 2, true), (7, 2, false)]);
        let first = find(&store, &Key([0; 32])).await;
        store
            .resolve(&first, Resolution::NotApplied, &CONFIG)
            .await
            .unwrap();
        assert_eq!(run(&store, &Key([0; 32]), 9, &CONFIG).await.fence, 9);
        let look = rusqlite::Connection::open(&file).unwrap();
        let sql = "SELECT sql FROM sqlite_schema WHERE name = 'relent_idempotency_1_unknown'";
        let index: String = look.query_row(sql, [], |row| row.get(0)).unwrap();
        assert!(index.contains("WHERE stage IN (0, 3)"), "{index}");
    }
}

#[cfg(all(unix, feature = "redis"))]
mod redis {
    use ::redis::{AsyncCommands, Client};
    use relent_core::idempotency::ClaimStage;
    use relent_server::store::Redis;

    use super::*;

    #[tokio::test]
    async fn redis_rejects_a_late_write_and_ignores_the_retention_of_a_reader() {
        let Some(server) = servers::redis(&["--appendonly", "no"]) else {
            return;
        };
        let client = Client::open(server.url()).unwrap();
        let store = Redis::connect_unchecked(client.clone()).await.unwrap();
        keeps_the_lost_owner_out(&store).await;
        ignores_the_retention_of_its_reader(&store).await;
        among_other_keys(&store, &client).await;
    }

    async fn among_other_keys(store: &Redis, client: &Client) {
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let store = store.clone().namespace(r"a*[b?\");
        let another = store.clone().namespace("aXb");
        let mut keys: Vec<_> = (0..2500_u16)
            .map(|number| {
                let mut key = Key([9; 32]);
                key.0[..2].copy_from_slice(&number.to_be_bytes());
                key
            })
            .collect();
        for key in &keys {
            let (owner, lost) = (1, key.0[1].is_multiple_of(2));
            run(&store, key, owner, if lost { &LOST } else { &CONFIG }).await;
        }
        run(&another, &keys[0], 1, &LOST).await;
        // Keys with the same prefix that are not records.
        let _: () = connection
            .hset(store.name(&Key([b'h'; 32])), "a", 1)
            .await
            .unwrap();
        let _: () = connection
            .set(store.name(&Key([b's'; 32])), "short")
            .await
            .unwrap();
        let _: () = connection
            .set(r"a*[b?\:short", "x".repeat(200))
            .await
            .unwrap();
        keys.retain(|key| key.0[1].is_multiple_of(2));
        let mut found = store.find_unknown(None, 100_000, &CONFIG).await.unwrap();
        found.sort_by_key(|outcome| *outcome.key());
        let found: Vec<_> = found.iter().map(|outcome| *outcome.key()).collect();
        assert_eq!(found, keys);

        // A record in the format of the first version.
        let key = Key([7; 32]);
        let old = |version: u8| {
            let mut record = vec![version, 3, 1];
            record.extend_from_slice(&5_u32.to_be_bytes());
            for number in [6_u64, 7, 9_000_000_000_000_000] {
                record.extend_from_slice(&number.to_be_bytes());
            }
            record.extend_from_slice(&8_u128.to_be_bytes());
            record.extend_from_slice(&PRINT.0);
            record
        };
        let store = store.namespace("old");
        let _: () = connection.set(store.name(&key), old(1)).await.unwrap();
        let lost = find(&store, &key).await;
        let record = lost.record();
        assert!(matches!(record.stage, ClaimStage::Unknown { .. }));
        let read = (
            record.repeated,
            record.step,
            record.fence,
            record.owner,
            record.fingerprint,
        );
        assert_eq!(read, (true, 5, 6, 8, PRINT));
        assert_eq!(record.expires.as_nanos(), 9_000_000_000_000_000_000);
        store
            .resolve(&lost, Resolution::NotApplied, &CONFIG)
            .await
            .unwrap();
        assert_eq!(run(&store, &key, 9, &CONFIG).await.fence, 8);
        // A record of a later version is an error.
        let _: () = connection.set(store.name(&key), old(2)).await.unwrap();
        let error = store.find_unknown(None, 10, &CONFIG).await.unwrap_err();
        assert!(error.to_string().contains("later version"), "{error}");
    }
}

#[cfg(all(unix, feature = "postgres"))]
mod postgres {
    use relent_server::store::Postgres;

    use super::*;

    #[tokio::test]
    async fn postgres_rejects_a_late_write_and_ignores_the_retention_of_a_reader() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let pool = relent_server::postgres::pool(&server.config(), 4).unwrap();
        let store = Postgres::new(pool);
        store.create_tables().await.unwrap();
        let client = store.pool().get().await.unwrap();
        keeps_the_lost_owner_out(&store).await;
        ignores_the_retention_of_its_reader(&store).await;
        #[cfg(feature = "sqlx")]
        {
            use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

            client
                .batch_execute("TRUNCATE relent_idempotency_1")
                .await
                .unwrap();
            let options = PgConnectOptions::new().socket(server.server.directory());
            let options = options.username("relent").database("postgres");
            let store = Postgres::new(PgPoolOptions::new().connect_lazy_with(options));
            keeps_the_lost_owner_out(&store).await;
        }
        // Tables of a version before the index.
        let drop_index = "DROP INDEX relent_idempotency_1_unknown";
        client.batch_execute(drop_index).await.unwrap();
        run(&store, &Key([3; 32]), 1, &LOST).await;
        find(&store, &Key([3; 32])).await;
        store.create_tables().await.unwrap();
        find(&store, &Key([3; 32])).await;
        client.batch_execute(drop_index).await.unwrap();
    }

    #[tokio::test]
    async fn layers_in_two_schemas_of_a_database_find_only_their_own_outcomes() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let payments = relent_server::postgres::pool(&server.config(), 2).unwrap();
        let client = payments.get().await.unwrap();
        client
            .batch_execute("CREATE SCHEMA webhooks")
            .await
            .unwrap();
        drop(client);
        let second = format!(
            "{} options='-c search_path=webhooks,public'",
            server.config()
        );
        let webhooks = relent_server::postgres::pool(&second, 2).unwrap();
        let stores = [payments, webhooks].map(Postgres::new);
        for (number, store) in (1..).zip(&stores) {
            store.create_tables().await.unwrap();
            run(store, &Key([number; 32]), 1, &LOST).await;
        }
        for (number, store) in (1..).zip(&stores) {
            let found = store.find_unknown(None, 10, &CONFIG).await.unwrap();
            let found: Vec<_> = found.iter().map(UnknownOutcome::key).collect();
            assert_eq!(found, [&Key([number; 32])]);
        }
    }

    /// A transaction that holds the record, such as of a transactional handler, decides first.
    #[tokio::test]
    async fn a_resolution_waits_for_a_transaction_that_holds_the_record() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let pool = relent_server::postgres::pool(&server.config(), 4).unwrap();
        let store = Postgres::new(pool);
        store.create_tables().await.unwrap();
        let key = Key([1; 32]);
        run(&store, &key, 1, &LOST).await;
        let found = find(&store, &key).await;
        let mut client = store.pool().get().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        let write = "UPDATE relent_idempotency_1 SET fence = fence + 1, stage = 2";
        transaction.batch_execute(write).await.unwrap();
        let own = store.clone();
        let resolving =
            tokio::spawn(async move { own.resolve(&found, Resolution::NotApplied, &CONFIG).await });
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let watcher = store.pool().get().await.unwrap();
        while watcher
            .query_one(waits, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 0
        {
            tokio::task::yield_now().await;
        }
        transaction.commit().await.unwrap();
        let refused = resolving.await.unwrap();
        let released = NotResolved::Released;
        assert!(
            matches!(&refused, Err(ResolveError::Refused(why)) if *why == released),
            "{refused:?}"
        );
    }
}
