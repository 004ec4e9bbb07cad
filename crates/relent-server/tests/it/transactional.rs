//! Tests of transactional requests: on both databases, with each driver, and through the layer.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use relent_core::idempotency::Fingerprint;
use relent_server::idempotency::{Body, IdempotencyLayer, Limits};
use relent_server::postgres::{IsolationLevel, pool};
use relent_server::precondition::{EntityTag, PreconditionError, Preconditions};
use relent_server::sqlite::WriterError;
use relent_server::store::{Change, Claimed, Key, Postgres, Sqlite, SqliteError, Store};
use relent_server::transactional::{
    AlreadyRun, Keyed, TransactionResult, Transactional, TransactionalError, WorkError,
};
use rusqlite::{Connection, params_from_iter};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tower::{Layer, ServiceExt, service_fn};

use crate::servers;

const TABLES: &str = "
    CREATE TABLE charges (what TEXT NOT NULL);
    CREATE TABLE carts (id INTEGER NOT NULL PRIMARY KEY, content TEXT NOT NULL, version BIGINT NOT NULL);
    INSERT INTO carts VALUES (1, 'empty', 1);
";
const CHARGE: &str = "INSERT INTO charges VALUES ($1)";
const PUT: &str =
    "UPDATE carts SET content = $1, version = version + 1 WHERE id = 1 AND version = $2";

/// A service whose effects are rows of the database that has the records.
trait Shop: Store + Clone {
    /// Executes the order of the request.
    fn serve(
        once: &Transactional<Self>,
        parts: &http::request::Parts,
        order: String,
    ) -> impl Future<Output = Result<Response<Full<Bytes>>, WorkError>> + Send;

    /// Returns the number of charges.
    async fn charges(&self) -> usize;
}

/// Returns the handler's response after a charge.
fn answer(order: &str) -> Result<Response<String>, WorkError> {
    match order {
        "fails" => return Err("no funds".into()),
        "panics" => panic!("a bug of the handler"),
        _ => {}
    }
    let status = if order == "unavailable" { 503 } else { 201 };
    let response = Response::builder()
        .status(status)
        .header("location", "/charges/1");
    Ok(response.body(format!("charged: {order}"))?)
}

fn put(version: u64, rows: u64) -> Result<Response<String>, WorkError> {
    Ok(match PreconditionError::unless_changed(rows) {
        Ok(()) => {
            let etag = EntityTag::of_version(version + 1).to_value();
            Response::builder()
                .header("etag", etag)
                .body("put".to_owned())?
        }
        Err(error) => error
            .response()
            .map(|body| String::from_utf8_lossy(&body).into_owned()),
    })
}

impl Shop for Sqlite {
    async fn serve(
        once: &Transactional<Self>,
        parts: &http::request::Parts,
        order: String,
    ) -> Result<Response<Full<Bytes>>, WorkError> {
        if parts.method == http::Method::PUT {
            let version = Preconditions::of(&parts.headers)?.version()?;
            return once
                .run(move |savepoint| {
                    let rows =
                        savepoint.execute(PUT, rusqlite::params![order, version.cast_signed()])?;
                    put(version, rows as u64)
                })
                .await;
        }
        once.run(move |savepoint| {
            savepoint.execute(CHARGE, [&order])?;
            answer(&order)
        })
        .await
    }

    async fn charges(&self) -> usize {
        let count = self.writer().run(|savepoint| {
            let count = savepoint.query_row("SELECT count(*) FROM charges", [], |row| {
                row.get::<_, i64>(0)
            });
            count.map_err(WriterError::from)
        });
        count.await.unwrap() as usize
    }
}

impl Shop for Postgres {
    async fn serve(
        once: &Transactional<Self>,
        parts: &http::request::Parts,
        order: String,
    ) -> Result<Response<Full<Bytes>>, WorkError> {
        if parts.method == http::Method::PUT {
            let version = Preconditions::of(&parts.headers)?.version()?;
            return once
                .run(move |transaction| {
                    let order = order.clone();
                    Box::pin(async move {
                        let version = version.cast_signed();
                        let rows = transaction.execute(PUT, &[&order, &version]).await?;
                        put(version.cast_unsigned(), rows)
                    })
                })
                .await;
        }
        once.run(move |transaction| {
            let order = order.clone();
            Box::pin(async move {
                transaction.execute(CHARGE, &[&order]).await?;
                answer(&order)
            })
        })
        .await
    }

    async fn charges(&self) -> usize {
        let client = self.pool().get().await.unwrap();
        let row = client
            .query_one("SELECT count(*) FROM charges", &[])
            .await
            .unwrap();
        row.get::<_, i64>(0) as usize
    }
}

impl Shop for Postgres<PgPool> {
    async fn serve(
        once: &Transactional<Self>,
        parts: &http::request::Parts,
        order: String,
    ) -> Result<Response<Full<Bytes>>, WorkError> {
        if parts.method == http::Method::PUT {
            let version = Preconditions::of(&parts.headers)?.version()?;
            return once
                .run(move |transaction| {
                    let put_it = sqlx::query(PUT).bind(order.clone());
                    let put_it = put_it.bind(version.cast_signed());
                    Box::pin(async move {
                        let done = put_it.execute(&mut **transaction).await?;
                        put(version, done.rows_affected())
                    })
                })
                .await;
        }
        once.run(move |transaction| {
            let order = order.clone();
            Box::pin(async move {
                let charge = sqlx::query(CHARGE).bind(&order);
                charge.execute(&mut **transaction).await?;
                answer(&order)
            })
        })
        .await
    }

    async fn charges(&self) -> usize {
        let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM charges");
        count.fetch_one(self.pool()).await.unwrap() as usize
    }
}

fn sqlite(directory: &Path) -> Sqlite {
    Sqlite::open_with(directory.join("shop.db"), |connection| {
        connection.execute_batch(TABLES)
    })
    .unwrap()
}

async fn postgres(server: &servers::Postgres) -> Postgres {
    let store = Postgres::new(pool(&server.config(), 8).unwrap());
    store.create_tables().await.unwrap();
    let client = store.pool().get().await.unwrap();
    client.batch_execute(TABLES).await.unwrap();
    drop(client);
    store
}

/// Creates an sqlx pool for the server whose socket is in this directory.
fn by_sqlx(directory: &Path) -> PgPool {
    pool_by_sqlx(directory, 8)
}

/// Creates an sqlx pool of this number of connections.
fn pool_by_sqlx(directory: &Path, connections: u32) -> PgPool {
    let options = PgConnectOptions::new().socket(directory);
    let options = options.username("relent").database("postgres");
    PgPoolOptions::new()
        .max_connections(connections)
        .connect_lazy_with(options)
}

type Reply = (u16, String, bool);

/// Sends a request through the layer.
async fn send<S: Shop>(layer: &IdempotencyLayer<S>, request: Request<Full<Bytes>>) -> Reply {
    let handler = service_fn(async |request: Request<Body<Full<Bytes>>>| {
        let (parts, body) = request.into_parts();
        let order = body.collect().await.unwrap().to_bytes();
        let order = String::from_utf8(order.to_vec()).unwrap();
        let once = parts.extensions.get::<Transactional<S>>().unwrap().clone();
        if order == "by another way" {
            return Ok::<_, Infallible>(Response::new(Full::from("done")));
        }
        if order == "INVALID_ARGUMENT" {
            let refused = Response::builder().header("grpc-status", "3");
            return Ok(refused.body(Full::default()).unwrap());
        }
        match order.as_str() {
            "does not look" => {
                // Ignores an error, too.
                drop(S::serve(&once, &parts, order).await);
                return Ok(Response::new(Full::from("paid")));
            }
            "ignores fails" | "ignores unavailable" => {
                let order = order.trim_start_matches("ignores ").to_owned();
                drop(S::serve(&once, &parts, order).await);
                return Ok(Response::new(Full::from("paid")));
            }
            "twice" => {
                let first = S::serve(&once, &parts, "first".to_owned()).await.unwrap();
                let second = S::serve(&once, &parts, "second".to_owned()).await;
                assert!(second.unwrap_err().is::<AlreadyRun>());
                return Ok(first);
            }
            "answers first" => {
                let once = once.clone();
                tokio::spawn(async move {
                    tokio::task::yield_now().await;
                    S::serve(&once, &parts, "later".to_owned()).await.map(drop)
                });
                return Ok(Response::new(Full::from("paid")));
            }
            "drops it" => {
                let run = std::pin::pin!(S::serve(&once, &parts, "dropped".to_owned()));
                // On a busy machine the database may complete everything within one poll.
                let body = match futures_util::future::poll_immediate(run).await {
                    None => "paid",
                    Some(_) => COMPLETED_IN_FIRST_POLL,
                };
                return Ok(Response::new(Full::from(body)));
            }
            _ => {}
        }
        Ok(S::serve(&once, &parts, order)
            .await
            .unwrap_or_else(|error| {
                let mut response = Response::new(Full::from(error.to_string()));
                *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
                response
            }))
    });
    let response = layer.layer(handler).oneshot(request).await.unwrap();
    let replayed = response.headers().contains_key("idempotent-replayed");
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap(), replayed)
}

/// The response of a handler that could not drop `run` before its end.
const COMPLETED_IN_FIRST_POLL: &str = "it is over at its first poll";

fn pay(key: &str, order: &str) -> Request<Full<Bytes>> {
    let request = Request::post("/payments").header("idempotency-key", key);
    request.body(Full::from(order.to_owned())).unwrap()
}

fn change(key: &str, version: &str, content: &str) -> Request<Full<Bytes>> {
    let request = Request::put("/carts/1").header("idempotency-key", key);
    let request = request.header("if-match", version);
    request.body(Full::from(content.to_owned())).unwrap()
}

/// Checks the guarantees on a database.
async fn holds<S: Shop>(store: S) {
    let layer = IdempotencyLayer::anonymous(store.clone()).transactional();

    // One of 64 concurrent requests runs, and all get its response.
    let replies = join_all((0..64).map(|_| send(&layer, pay("first", "5 EUR")))).await;
    let first = (201, "charged: 5 EUR".to_owned());
    assert!(
        replies
            .iter()
            .all(|(status, body, _)| (*status, body.clone()) == first),
        "{replies:?}"
    );
    assert_eq!(
        replies.iter().filter(|(_, _, replayed)| !replayed).count(),
        1
    );
    assert_eq!(store.charges().await, 1);

    // The same key with another request.
    let (status, body, _) = send(&layer, pay("first", "6 EUR")).await;
    assert_eq!(status, 422, "{body}");

    // A failed request has no effect, and may be repeated.
    for order in ["fails", "unavailable"] {
        for _ in 0..2 {
            let (status, body, replayed) = send(&layer, pay(order, order)).await;
            assert!([500, 503].contains(&status) && !replayed, "{status} {body}");
        }
    }
    let panics = std::panic::AssertUnwindSafe(send(&layer, pay("panics", "panics")));
    assert!(panics.catch_unwind().await.is_err(), "a panic goes on");
    assert_eq!(store.charges().await, 1);
    let (status, _, replayed) = send(&layer, pay("fails", "7 EUR")).await;
    assert_eq!((status, replayed), (201, false), "the key is as new");
    assert_eq!(store.charges().await, 2);

    // A handler that does not use the transaction is detected.
    let (status, body, _) = send(&layer, pay("around", "by another way")).await;
    assert!(
        status == 500 && body.contains("idempotency-transaction-unused"),
        "{status} {body}"
    );

    // A handler that rejects a gRPC call itself has no effect, and its response is sent.
    let (status, body, _) = send(&layer, pay("refused", "INVALID_ARGUMENT")).await;
    assert_eq!((status, body.as_str()), (200, ""));

    // A change applies to the version that the client has seen; its duplicate is replayed.
    for replayed in [false, true] {
        assert_eq!(
            send(&layer, change("a", "\"1\"", "book")).await,
            (200, "put".to_owned(), replayed)
        );
    }
    let (status, body, _) = send(&layer, change("b", "\"1\"", "pen")).await;
    assert!(
        status == 412 && body.contains("precondition-failed"),
        "{status} {body}"
    );
    let (status, _, replayed) = send(&layer, change("c", "\"2\"", "pen")).await;
    assert_eq!((status, replayed), (200, false));
}

/// Otherwise each duplicate would come back after a second, however long the work takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_of_a_running_transaction_comes_back_after_the_average_duration() {
    let directory = tempfile::tempdir().unwrap();
    let layer = IdempotencyLayer::anonymous(sqlite(directory.path()))
        .transactional()
        .wait(Duration::ZERO);
    let (begun, begins) = tokio::sync::oneshot::channel();
    let (go, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(std::sync::Mutex::new(Some((begun, held))));
    let handler = service_fn(move |request: Request<Body<Full<Bytes>>>| {
        let held = Arc::clone(&held);
        async move {
            let once = request.extensions().get::<Transactional<Sqlite>>().unwrap();
            let is_first = request.headers()["idempotency-key"] == "first";
            let work = move |_: &_| {
                if is_first {
                    std::thread::sleep(Duration::from_millis(1001));
                } else if let Some((begun, held)) = held.lock().unwrap().take() {
                    begun.send(()).unwrap();
                    assert!(held.recv().is_err());
                }
                Ok::<_, WorkError>(Response::new("paid"))
            };
            Ok::<_, Infallible>(once.run(work).await.unwrap())
        }
    });
    let service = layer.layer(handler);
    service.clone().oneshot(pay("first", "1")).await.unwrap();
    let running = tokio::spawn(service.clone().oneshot(pay("second", "1")));
    begins.await.unwrap();
    let duplicate = service.oneshot(pay("second", "1")).await.unwrap();
    assert_eq!(duplicate.status(), 409);
    let delay = duplicate.headers()["retry-after"].to_str().unwrap();
    assert!(delay.parse::<u64>().unwrap() >= 2, "{delay}");
    drop(go);
    assert_eq!(running.await.unwrap().unwrap().status(), 200);
}

/// Checks that a faulty handler cannot report a false success.
async fn check_faulty_handlers<S: Shop>(store: S) {
    let layer = IdempotencyLayer::anonymous(store.clone())
        .transactional()
        .wait(Duration::ZERO);
    let is = |(status, body, _): &Reply, expected: u16, code: &str| {
        assert!(
            *status == expected && body.contains(code),
            "{status} {body}"
        );
    };

    // A rejection stands, whatever the handler responds.
    let mut paid = send(&layer, pay("looks", "does not look")).await;
    assert_eq!((paid.0, &*paid.1), (200, "paid"), "it is recorded");
    assert_eq!(store.charges().await, 1);
    let mut other = pay("looks", "does not look");
    *other.uri_mut() = "/payments?another".parse().unwrap();
    paid = send(&layer, other).await;
    is(&paid, 422, "idempotency-key-reused");
    let lost = Key::of("", "POST", "", "lost");
    let print = Fingerprint([0; 32]);
    let mut lease = Keyed::new(lost, print).claim;
    store.claim(&lost, 7, print, &lease).await.unwrap();
    let refused = send(&layer, pay("lost", "does not look")).await;
    is(&refused, 422, "idempotency-key-reused");
    for (key, is_lost) in [("runs", false), ("unknown", true)] {
        // The first request reveals the fingerprint.
        let keyed = Key::of("", "POST", "", key);
        let seen = Arc::new(std::sync::Mutex::new(None));
        let see = Arc::clone(&seen);
        let handler = service_fn(move |request: Request<Body<Full<Bytes>>>| {
            let once = request.extensions().get::<Transactional<S>>().unwrap();
            *see.lock().unwrap() = Some(once.keyed().fingerprint);
            async {
                Ok::<_, Infallible>(
                    Response::builder()
                        .status(400)
                        .body(Full::<Bytes>::default())
                        .unwrap(),
                )
            }
        });
        layer
            .layer(handler)
            .oneshot(pay(key, "does not look"))
            .await
            .unwrap();
        let print = seen.lock().unwrap().unwrap();
        if is_lost {
            lease.lease = Duration::ZERO;
        }
        store.claim(&keyed, 7, print, &lease).await.unwrap();
        let refused = send(&layer, pay(key, "does not look")).await;
        let code = if is_lost {
            "idempotency-outcome-unknown"
        } else {
            "idempotency-in-flight"
        };
        is(&refused, 409, code);
    }
    assert_eq!(store.charges().await, 1);

    // Success is not reported after a rollback.
    for order in ["ignores fails", "ignores unavailable"] {
        is(
            &send(&layer, pay(order, order)).await,
            500,
            "idempotency-transaction-unused",
        );
    }
    assert_eq!(store.charges().await, 1);

    // A second run is an error for the handler and for the client.
    is(
        &send(&layer, pay("twice", "twice")).await,
        500,
        "idempotency-transaction-run-twice",
    );
    assert_eq!(store.charges().await, 2);

    // Success is not reported before the work is completed.
    let not_over = "idempotency-transaction-unused";
    is(
        &send(&layer, pay("answers-first", "answers first")).await,
        500,
        not_over,
    );
    let mut tries = 0;
    let dropped = loop {
        tries += 1;
        let dropped = send(&layer, pay(&format!("dropped-{tries}"), "drops it")).await;
        if dropped.1 != COMPLETED_IN_FIRST_POLL {
            break dropped;
        }
        assert!(tries < 100, "it is over at its first poll each time");
    };
    is(&dropped, 500, not_over);
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite_a_faulty_handler_cannot_report_a_false_success() {
    let directory = tempfile::tempdir().unwrap();
    check_faulty_handlers(sqlite(directory.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_a_faulty_handler_cannot_report_a_false_success() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let store = postgres(&server).await;
    check_faulty_handlers(store).await;
}

/// Uses its own server: a handler that responds before its work is completed may charge after the test.
#[tokio::test(flavor = "multi_thread")]
async fn with_sqlx_a_faulty_handler_cannot_report_a_false_success() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let _tables = postgres(&server).await;
    check_faulty_handlers(Postgres::new(by_sqlx(server.server.directory()))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite_effects_and_record_are_committed_together_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    holds(sqlite(directory.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_effects_and_record_are_committed_together_or_not_at_all() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let store = postgres(&server).await;
    let renew = async || {
        let client = store.pool().get().await.unwrap();
        let remove = "DROP TABLE charges, carts; TRUNCATE relent_idempotency_1;";
        client
            .batch_execute(&format!("{remove} {TABLES}"))
            .await
            .unwrap();
    };
    let sqlx = Postgres::new(by_sqlx(server.server.directory()));
    for isolation in [
        IsolationLevel::ReadCommitted,
        IsolationLevel::RepeatableRead,
        IsolationLevel::Serializable,
    ] {
        renew().await;
        holds(store.clone().isolation(isolation)).await;
        renew().await;
        holds(sqlx.clone().isolation(isolation)).await;
    }
}

/// Otherwise effects would be committed without the record of their key, or with another record, and be repeated.
#[tokio::test]
async fn on_sqlite_work_that_changes_its_own_record_commits_nothing() {
    let (other, new, released) = (keyed(1), keyed(3), keyed(2));
    let copy = "INSERT INTO relent_idempotency_1
        SELECT ?1, fingerprint, owner, fence, stage, until, step, repeated, expires, answer
        FROM relent_idempotency_1 WHERE key = ?2";
    let directory = tempfile::tempdir().unwrap();
    let store = sqlite(directory.path());
    let work = |_: &Connection| Ok::<_, WorkError>(Response::new(""));
    assert!(ran(&store.transactional(other, work).await));
    // This key had an execution without effect.
    let claim = store.claim(&released.key, 7, released.fingerprint, &released.claim);
    let Ok(Claimed::Run { lease, .. }) = claim.await else {
        panic!("the key is not free");
    };
    let release = store.write(&released.key, &lease, Change::Release, &released.claim);
    release.await.unwrap();
    let changes = [
        // The record is inserted, deleted and replaced by the work.
        (new, copy, vec![new.key.0, other.key.0]),
        (released, "DELETE FROM relent_idempotency_1", vec![]),
        (
            released,
            "UPDATE relent_idempotency_1 SET fence = 9",
            vec![],
        ),
    ];
    for (keyed, change, keys) in changes {
        let done = store.transactional(keyed, move |savepoint| {
            savepoint.execute(CHARGE, ["5 EUR"])?;
            assert_ne!(savepoint.execute(change, params_from_iter(keys))?, 0);
            Ok::<_, WorkError>(Response::new("charged"))
        });
        let done = done.await;
        assert!(
            matches!(&done, Err(TransactionalError::Work(error)) if error.to_string().contains("own key")),
            "{change}: {done:?}"
        );
        assert_eq!(store.charges().await, 0, "{change}");
    }
    // Without interference the work runs.
    for keyed in [new, released] {
        let done = store.transactional(keyed, |savepoint| {
            savepoint.execute(CHARGE, ["5 EUR"])?;
            Ok::<_, WorkError>(Response::new("charged"))
        });
        assert!(ran(&done.await));
    }
    assert_eq!(store.charges().await, 2);
}

/// With several jobs in one transaction, a job that returns an error or panics is undone alone. If the record cannot
/// be written, all jobs are undone, and all get an error.
#[tokio::test]
async fn on_sqlite_no_job_succeeds_unless_effect_and_record_are_committed() {
    enum End {
        Fails,
        Panics,
        TakesItsKey,
    }
    for (end, kept) in [(End::Fails, 2), (End::Panics, 2), (End::TakesItsKey, 1)] {
        let directory = tempfile::tempdir().unwrap();
        let store = sqlite(directory.path());
        let taken =
            "INSERT INTO relent_idempotency_1 VALUES (?1, x'', x'', 1, 1, 0, 0, 0, 1 << 62, x'')";
        let pay = |number| {
            store.transactional(keyed(number), |savepoint| {
                savepoint.execute(CHARGE, ["5 EUR"])?;
                Ok::<_, WorkError>(Response::new("charged"))
            })
        };
        let is_all = matches!(end, End::TakesItsKey);
        let wrong = store.transactional(keyed(2), move |savepoint| {
            savepoint.execute(CHARGE, ["wrong"])?;
            match end {
                End::Fails => return Err("it fails".into()),
                End::Panics => panic!("it panics"),
                End::TakesItsKey => savepoint.execute(taken, [keyed(2).key.0])?,
            };
            Ok::<_, WorkError>(Response::new("charged"))
        });
        // All jobs are in one transaction, since the thread is blocked meanwhile.
        let (go, held) = std::sync::mpsc::channel::<()>();
        let hold = store.writer().run(move |_| {
            assert!(held.recv().is_err());
            Ok::<_, WriterError>(())
        });
        let release = async { drop(go) };
        let wrong = std::panic::AssertUnwindSafe(wrong).catch_unwind();
        let (held, first, wrong, last, ()) =
            tokio::join!(biased; hold, pay(1), wrong, pay(3), release);
        assert!(!matches!(wrong, Ok(Ok(_))));
        assert!(ran(&last), "{last:?}");
        assert_eq!(held.is_err(), is_all, "{held:?}");
        if is_all {
            let undone = matches!(
                first,
                Err(TransactionalError::Store(SqliteError::Writer(
                    WriterError::Undone
                )))
            );
            assert!(undone, "{first:?}");
        } else {
            assert!(ran(&first), "{first:?}");
        }
        assert_eq!(store.charges().await, kept);
        // Undone jobs run again, and committed ones are replayed.
        assert_eq!(ran(&pay(1).await), is_all);
        assert!(ran(&pay(2).await) && !ran(&pay(3).await));
        assert_eq!(store.charges().await, 3);
    }
}

/// The record is written together with the commit. If the record cannot be written, or a statement of the work
/// failed, nothing is committed. The connection remains usable.
#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_nothing_is_committed_without_the_record() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let deadpool = Postgres::new(pool(&server.config(), 1).unwrap());
    let sqlx = Postgres::new(by_sqlx(server.server.directory()));
    deadpool.create_tables().await.unwrap();
    let client = deadpool.pool().get().await.unwrap();
    client.batch_execute(TABLES).await.unwrap();
    drop(client);
    let loses = "INSERT INTO charges VALUES ('5 EUR'); DELETE FROM relent_idempotency_1";
    let fails = "INSERT INTO charges VALUES ('5 EUR'); SELECT 1 / 0";
    for number in 0..20 {
        for end in [loses, fails] {
            let done = deadpool.transactional(keyed(9), |transaction| {
                Box::pin(async move {
                    drop(transaction.batch_execute(end).await);
                    Ok::<_, WorkError>(Response::new("charged"))
                })
            });
            let done = done.await;
            assert!(
                matches!(done, Err(TransactionalError::Store(_))),
                "{end}: {done:?}"
            );
            let done = sqlx.transactional(
                keyed(if end == loses { 100 } else { 200 } + number),
                |transaction| {
                    Box::pin(async move {
                        for statement in end.split(';') {
                            drop(sqlx::query(statement).execute(&mut **transaction).await);
                        }
                        Ok::<_, WorkError>(Response::new("charged"))
                    })
                },
            );
            let done = done.await;
            assert!(
                matches!(done, Err(TransactionalError::Store(_))),
                "{end}: {done:?}"
            );
            assert_eq!(deadpool.charges().await, 0, "{end}");
        }
    }
    assert!(ran(&deadpool
        .transactional(keyed(9), |t| Box::pin(async move {
            t.execute(CHARGE, &[&"5 EUR"]).await?;
            Ok::<_, WorkError>(Response::new("charged"))
        }))
        .await));
    assert_eq!(deadpool.charges().await, 1);
    // Each transaction has ended once: PostgreSQL would warn of a second end.
    let log = std::fs::read_to_string(server.server.directory().join("log")).unwrap();
    assert!(!log.contains("no transaction in progress"), "{log}");
}

/// A transactional duplicate detects that an execution without a transaction was lost, and records it. The operator
/// then finds the row.
#[tokio::test]
async fn on_postgres_a_transactional_duplicate_records_a_lost_execution() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let store = postgres(&server).await;
    let mut keyed = keyed(1);
    keyed.claim.lease = Duration::ZERO;
    let claim = store.claim(&keyed.key, 1, keyed.fingerprint, &keyed.claim);
    assert!(matches!(claim.await.unwrap(), Claimed::Run { .. }));
    let again = store.transactional(keyed, |_| work("never"));
    assert!(matches!(
        again.await,
        Ok(TransactionResult::Not(Claimed::Unknown))
    ));
    let client = store.pool().get().await.unwrap();
    let stage = "SELECT stage FROM relent_idempotency_1";
    let stage: i16 = client.query_one(stage, &[]).await.unwrap().get(0);
    assert_eq!(stage, 3, "unknown");
}

fn keyed(number: u8) -> Keyed {
    Keyed::new(Key([number; 32]), Fingerprint([0; 32]))
}

fn ran(done: &Result<TransactionResult, TransactionalError<impl std::fmt::Debug>>) -> bool {
    matches!(done, Ok(TransactionResult::Ran(response)) if response.status() == StatusCode::OK)
}

/// PostgreSQL ends one of two deadlocked transactions (40P01), and it runs again.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlocked_transaction_runs_again() {
    let Some(server) = servers::postgres(&["fsync=off", "deadlock_timeout=50ms"]) else {
        return;
    };
    let store = postgres(&server).await;
    let client = store.pool().get().await.unwrap();
    client
        .batch_execute("INSERT INTO carts VALUES (2, 'empty', 1)")
        .await
        .unwrap();
    drop(client);
    let shared = Arc::new((tokio::sync::Barrier::new(2), AtomicU32::new(0)));
    let lock = |number: u8, first: i32, second: i32| {
        let shared = Arc::clone(&shared);
        store.transactional(keyed(number), move |transaction| {
            let shared = Arc::clone(&shared);
            Box::pin(async move {
                let update = "UPDATE carts SET version = version + 1 WHERE id = $1";
                transaction.execute(update, &[&first]).await?;
                if shared.1.fetch_add(1, Ordering::SeqCst) < 2 {
                    shared.0.wait().await;
                }
                transaction.execute(update, &[&second]).await?;
                Ok::<_, WorkError>(Response::new("locked"))
            })
        })
    };
    let (one, other) = tokio::join!(lock(1, 1, 2), lock(2, 2, 1));
    assert!(ran(&one) && ran(&other), "{one:?} {other:?}");
    assert_eq!(shared.1.load(Ordering::SeqCst), 3);
    let client = store.pool().get().await.unwrap();
    let versions = client
        .query("SELECT version FROM carts", &[])
        .await
        .unwrap();
    assert!(
        versions.iter().all(|row| row.get::<_, i64>(0) == 3),
        "each did both once"
    );
}

/// Work without effects.
fn work(answer: &'static str) -> BoxFuture<'static, Result<Response<&'static str>, WorkError>> {
    Box::pin(async move { Ok(Response::new(answer)) })
}

/// While one request runs, another one with its key is rejected immediately, and holds no connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_of_a_running_transaction_is_rejected_immediately() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let store = postgres(&server).await;
    let inner = store.clone();
    let outer = store.transactional(keyed(1), move |_| {
        let inner = inner.clone();
        Box::pin(async move {
            for _ in 0..20 {
                let inner = inner.transactional(keyed(1), |_| work("never")).await;
                assert!(
                    matches!(inner, Ok(TransactionResult::Not(Claimed::InFlight(_)))),
                    "{inner:?}"
                );
            }
            Ok::<_, WorkError>(Response::new("done"))
        })
    });
    assert!(ran(&outer.await));
}

/// Waits until PostgreSQL runs this statement.
async fn until_runs(client: &tokio_postgres::Client, statement: &str) {
    let running = "SELECT FROM pg_stat_activity WHERE query = $1 AND state = 'active'";
    while client
        .query(running, &[&statement])
        .await
        .unwrap()
        .is_empty()
    {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Otherwise the next request would wait behind a statement that nobody awaits.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_or_failed_transaction_leaves_no_busy_connection_in_the_pool() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let observer = postgres(&server).await.pool().get().await.unwrap();
    let deadpool = Postgres::new(pool(&server.config(), 1).unwrap());
    let sqlx = Postgres::new(pool_by_sqlx(server.server.directory(), 1));
    for (number, fails, by_sqlx) in [
        (1, false, false),
        (2, true, false),
        (3, false, true),
        (4, true, true),
    ] {
        let busy = format!("SELECT pg_sleep(60) -- {number}");
        let (statement, gives_up) = (busy.clone(), Arc::new(tokio::sync::Notify::new()));
        let (stop, keyed_work) = (Arc::clone(&gives_up), keyed(number));
        let slow: BoxFuture<'_, _> = if by_sqlx {
            Box::pin(sqlx.transactional(keyed_work, move |transaction| {
                let (statement, stop) = (statement.clone(), Arc::clone(&stop));
                Box::pin(async move {
                    tokio::select! {
                        _ = sqlx::query(&statement).execute(&mut **transaction) => {}
                        () = stop.notified() => {}
                    }
                    Err::<Response<&str>, _>(WorkError::from("it gives up"))
                })
            }))
        } else {
            Box::pin(deadpool.transactional(keyed_work, move |transaction| {
                let (statement, stop) = (statement.clone(), Arc::clone(&stop));
                Box::pin(async move {
                    tokio::select! {
                        _ = transaction.batch_execute(&statement) => {}
                        () = stop.notified() => {}
                    }
                    Err::<Response<&str>, _>(WorkError::from("it gives up"))
                })
            }))
        };
        let case = format!("fails: {fails}, sqlx: {by_sqlx}");
        if fails {
            let stop = async {
                until_runs(&observer, &busy).await;
                gives_up.notify_one();
            };
            let (failed, ()) = tokio::join!(slow, stop);
            assert!(
                matches!(failed, Err(TransactionalError::Work(_))),
                "{case}: {failed:?}"
            );
        } else {
            tokio::select! {
                done = slow => panic!("{case}: {done:?}"),
                () = until_runs(&observer, &busy) => {}
            }
        }
        let next = keyed(10 + number);
        let next = if by_sqlx {
            sqlx.transactional(next, |_| work("done")).await
        } else {
            deadpool.transactional(next, |_| work("done")).await
        };
        assert!(ran(&next), "{case}: {next:?}");
    }
}

/// The place where the connection is cut.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Cut {
    /// PostgreSQL does not receive the commit.
    Before,
    /// PostgreSQL commits, and the client gets no confirmation.
    After,
}

/// Returns whether a commit is sent or confirmed.
fn names_commit(bytes: &[u8]) -> bool {
    bytes.windows(7).any(|text| text == b"COMMIT\0")
}

/// Forwards messages between the pool and the database, and cuts the first connection that commits a charge.
async fn proxy(
    listener: UnixListener,
    database: PathBuf,
    cut: Cut,
    cuts: Arc<AtomicU32>,
) -> io::Result<()> {
    loop {
        let (client, _) = listener.accept().await?;
        let (server, cuts) = (UnixStream::connect(&database).await?, Arc::clone(&cuts));
        tokio::spawn(async move {
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            let hides = Arc::new(AtomicBool::new(false));
            let hide = Arc::clone(&hides);
            let back = tokio::spawn(async move {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
                    if hide.load(Ordering::SeqCst) && names_commit(&bytes[..length]) {
                        break;
                    }
                    drop(to_client.write_all(&bytes[..length]).await);
                }
            });
            let mut bytes = vec![0; 1 << 16];
            while let Ok(length @ 1..) = from_client.read(&mut bytes).await {
                let commits = names_commit(&bytes[..length]);
                let now = commits && cuts.fetch_add(1, Ordering::SeqCst) == 0;
                if now && cut == Cut::Before {
                    break;
                }
                hides.store(now, Ordering::SeqCst);
                drop(to_server.write_all(&bytes[..length]).await);
                if now {
                    // PostgreSQL does not commit for a client that disconnected before.
                    return drop(back.await);
                }
            }
            back.abort();
        });
    }
}

/// Charges through a proxy, with a pool of either driver.
async fn charge_behind(directory: &Path, sqlx: bool, number: u8) -> (String, u32) {
    let runs = AtomicU32::new(0);
    let count = || runs.fetch_add(1, Ordering::SeqCst) + 1;
    let done = if sqlx {
        let store = Postgres::new(by_sqlx(directory));
        let work = store.transactional(keyed(number), |transaction| {
            let run = count();
            Box::pin(async move {
                let charge = sqlx::query(CHARGE).bind("5 EUR");
                charge.execute(&mut **transaction).await?;
                Ok::<_, WorkError>(Response::new(format!("run {run}")))
            })
        });
        work.await
    } else {
        let config = format!("host={} user=relent dbname=postgres", directory.display());
        let store = Postgres::new(pool(&config, 4).unwrap());
        let work = store.transactional(keyed(number), |transaction| {
            let run = count();
            Box::pin(async move {
                transaction.execute(CHARGE, &[&"5 EUR"]).await?;
                Ok::<_, WorkError>(Response::new(format!("run {run}")))
            })
        });
        work.await
    };
    match done {
        Ok(TransactionResult::Ran(response)) => {
            let body = String::from_utf8(response.into_body().to_vec()).unwrap();
            (body, runs.load(Ordering::SeqCst))
        }
        other => panic!("{other:?}"),
    }
}

/// A commit without a confirmation is neither taken for failed nor run twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_lost_at_the_commit_leaves_one_effect_and_its_response() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let direct = postgres(&server).await;
    let cases = [
        (1, Cut::Before, false),
        (2, Cut::After, false),
        (3, Cut::Before, true),
        (4, Cut::After, true),
    ];
    for (number, cut, sqlx) in cases {
        let directory = tempfile::tempdir().unwrap();
        let cuts = Arc::new(AtomicU32::new(0));
        let name = ".s.PGSQL.5432";
        // A socket that is bound but not listening has a file, and rejects connections.
        let listener = UnixListener::bind(directory.path().join(name)).unwrap();
        let database = server.server.directory().join(name);
        let proxy = tokio::spawn(proxy(listener, database, cut, Arc::clone(&cuts)));
        let (body, runs) = charge_behind(directory.path(), sqlx, number).await;
        // The response is that of the committed run.
        let expected = if cut == Cut::After { "run 1" } else { "run 2" };
        let case = format!("{cut:?}, sqlx: {sqlx}, {runs} runs");
        assert_eq!(body, expected, "{case}");
        assert_eq!(direct.charges().await, usize::from(number), "{case}");
        let again = direct.transactional(keyed(number), |_| work("never"));
        let Ok(TransactionResult::Not(Claimed::Replay(answer))) = again.await else {
            panic!("{case}");
        };
        assert_eq!(answer.body.unwrap(), expected, "{case}");
        assert!(cuts.load(Ordering::SeqCst) > 0);
        proxy.abort();
    }
}

const CLAIM_LIMIT: Duration = Duration::from_secs(1);

fn with_claim_limit<S: Store>(store: S, claim: Duration) -> IdempotencyLayer<S> {
    let limits = Limits {
        claim,
        ..Limits::DEFAULT
    };
    IdempotencyLayer::anonymous(store)
        .transactional()
        .limits(limits)
}

/// Here each connection is closed after 900 ms. The time is virtual.
#[tokio::test(start_paused = true)]
async fn on_postgres_the_limit_of_a_claim_includes_its_retries() {
    async fn check<S: Shop>(store: S) {
        let began = tokio::time::Instant::now();
        let (status, body, _) =
            send(&with_claim_limit(store, CLAIM_LIMIT), pay("a", "5 EUR")).await;
        let took = began.elapsed();
        assert!(
            status == 503 && body.contains("idempotency-store-failed"),
            "{status} {body}"
        );
        assert!(
            (CLAIM_LIMIT..CLAIM_LIMIT + Duration::from_millis(10)).contains(&took),
            "{took:?}"
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join(".s.PGSQL.5432")).unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(900)).await;
                drop(client);
            });
        }
    });
    let path = directory.path();
    let config = format!("host={} user=relent dbname=postgres", path.display());
    check(Postgres::new(pool(&config, 4).unwrap())).await;
    check(Postgres::new(by_sqlx(path))).await;
}

/// Forwards messages between the pool and the database, and the begin of a transaction only after a while.
async fn delay_begin(listener: UnixListener, database: PathBuf, delay: Duration) -> io::Result<()> {
    loop {
        let (client, _) = listener.accept().await?;
        let server = UnixStream::connect(&database).await?;
        tokio::spawn(async move {
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            let mut bytes = vec![0; 1 << 16];
            while let Ok(length @ 1..) = from_client.read(&mut bytes).await {
                let begins = |text: &[u8]| text == b"BEGIN" || text == b"START";
                if bytes[..length].windows(5).any(begins) {
                    tokio::time::sleep(delay).await;
                }
                drop(to_server.write_all(&bytes[..length]).await);
            }
        });
    }
}

/// The limit of the claim ends the wait for the reply to `BEGIN`.
#[tokio::test(flavor = "multi_thread")]
async fn no_connection_within_a_transaction_returns_to_the_pool() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let direct = postgres(&server).await;
    let (directory, name) = (tempfile::tempdir().unwrap(), ".s.PGSQL.5432");
    let listener = UnixListener::bind(directory.path().join(name)).unwrap();
    let database = server.server.directory().join(name);
    let delay = CLAIM_LIMIT + Duration::from_millis(200);
    tokio::spawn(delay_begin(listener, database, delay));

    let by_sqlx = pool_by_sqlx(directory.path(), 1);
    let layer = with_claim_limit(Postgres::new(by_sqlx.clone()), CLAIM_LIMIT);
    assert_eq!(send(&layer, pay("a", "5 EUR")).await.0, 503);
    let charge = sqlx::query(CHARGE).bind("6 EUR");
    charge.execute(&by_sqlx).await.unwrap();
    assert_eq!(direct.charges().await, 1);

    let path = directory.path().display();
    let config = format!("host={path} user=relent dbname=postgres");
    let store = Postgres::new(pool(&config, 1).unwrap());
    let layer = with_claim_limit(store.clone(), CLAIM_LIMIT);
    assert_eq!(send(&layer, pay("b", "5 EUR")).await.0, 503);
    let client = store.pool().get().await.unwrap();
    client.execute(CHARGE, &[&"6 EUR"]).await.unwrap();
    assert_eq!(direct.charges().await, 2);
}

/// The confirmation of the commit is lost after the limit.
#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_the_limit_of_a_claim_does_not_apply_once_the_work_has_begun() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let direct = postgres(&server).await;
    let (directory, name) = (tempfile::tempdir().unwrap(), ".s.PGSQL.5432");
    let listener = UnixListener::bind(directory.path().join(name)).unwrap();
    let (database, cuts) = (server.server.directory().join(name), Arc::default());
    let proxy = tokio::spawn(proxy(listener, database, Cut::After, Arc::clone(&cuts)));
    let path = directory.path().display();
    let config = format!("host={path} user=relent dbname=postgres");
    let layer = with_claim_limit(Postgres::new(pool(&config, 4).unwrap()), CLAIM_LIMIT);
    let handler = service_fn(async |request: Request<Body<Full<Bytes>>>| {
        let once = request
            .extensions()
            .get::<Transactional<Postgres>>()
            .unwrap();
        let done = once.run(|transaction| {
            Box::pin(async move {
                transaction.execute(CHARGE, &[&"5 EUR"]).await?;
                tokio::time::sleep(CLAIM_LIMIT).await;
                Ok::<_, WorkError>(Response::new("charged"))
            })
        });
        Ok::<_, Infallible>(done.await.unwrap())
    });
    let response = layer.layer(handler).oneshot(pay("a", "5 EUR")).await;
    assert_eq!(response.unwrap().status(), 200);
    assert_eq!(direct.charges().await, 1);
    assert!(cuts.load(Ordering::SeqCst) > 0);
    proxy.abort();
}

/// The caller has the error, or is gone, and sends the request again.
#[tokio::test]
async fn on_sqlite_work_that_begins_after_the_limit_of_its_claim_does_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = sqlite(directory.path());
    let (go, held) = std::sync::mpsc::channel::<()>();
    let hold = store.writer().run(move |_| {
        assert!(held.recv().is_err());
        Ok::<_, WriterError>(())
    });
    let waiting = async {
        let dropped = store.transactional(keyed(1), |savepoint| {
            savepoint.execute(CHARGE, ["dropped"])?;
            Ok::<_, WorkError>(Response::new("charged"))
        });
        let dropped = futures_util::future::poll_immediate(std::pin::pin!(dropped)).await;
        assert!(dropped.is_none(), "{dropped:?}");
        let layer = with_claim_limit(store.clone(), Duration::from_millis(100));
        let late = send(&layer, pay("a", "5 EUR"));
        let late = tokio::time::timeout(Duration::from_secs(30), late).await;
        drop(go);
        late.unwrap()
    };
    let (held, (status, body, _)) = tokio::join!(biased; hold, waiting);
    held.unwrap();
    assert!(
        status == 503 && body.contains("idempotency-store-failed"),
        "{status} {body}"
    );
    assert_eq!(store.charges().await, 0);
    let layer = with_claim_limit(store.clone(), Duration::from_secs(60));
    assert_eq!(send(&layer, pay("a", "5 EUR")).await.0, 201);
    assert_eq!(store.charges().await, 1);
}

/// Otherwise a committed transaction could be reported as failed.
#[tokio::test]
async fn on_sqlite_the_limit_of_a_claim_does_not_apply_once_the_work_has_begun() {
    let directory = tempfile::tempdir().unwrap();
    let store = sqlite(directory.path());
    let handler = service_fn(async |request: Request<Body<Full<Bytes>>>| {
        let once = request.extensions().get::<Transactional<Sqlite>>().unwrap();
        let done = once.run(move |savepoint| {
            savepoint.execute(CHARGE, ["5 EUR"])?;
            std::thread::sleep(CLAIM_LIMIT);
            Ok::<_, WorkError>(Response::new("charged"))
        });
        Ok::<_, Infallible>(done.await.unwrap())
    });
    let service = with_claim_limit(store.clone(), CLAIM_LIMIT).layer(handler);
    let response = service.oneshot(pay("a", "5 EUR")).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(store.charges().await, 1);
}

/// If the work ignores a failed statement, nothing is committed.
#[tokio::test]
async fn work_that_ignores_its_errors_commits_nothing() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let store = postgres(&server).await;
    let done = store.transactional(keyed(1), |transaction| {
        Box::pin(async move {
            transaction.execute(CHARGE, &[&"5 EUR"]).await?;
            drop(
                transaction
                    .batch_execute("INSERT INTO nowhere VALUES (1)")
                    .await,
            );
            Ok::<_, WorkError>(Response::new("charged"))
        })
    });
    assert!(matches!(done.await, Err(TransactionalError::Store(_))));
    assert_eq!(store.charges().await, 0);
}

/// The same with sqlx; and a transaction that PostgreSQL ends after a conflict runs again.
#[tokio::test(flavor = "multi_thread")]
async fn with_sqlx_errors_roll_back_and_transient_ones_are_retried() {
    let Some(server) = servers::postgres(&["fsync=off"]) else {
        return;
    };
    let direct = postgres(&server).await;
    let store = Postgres::new(by_sqlx(server.server.directory()));
    let done = store.transactional(keyed(1), |transaction| {
        Box::pin(async move {
            let charge = sqlx::query(CHARGE).bind("5 EUR");
            charge.execute(&mut **transaction).await?;
            let fails = sqlx::query("INSERT INTO nowhere VALUES (1)");
            drop(fails.execute(&mut **transaction).await);
            Ok::<_, WorkError>(Response::new("charged"))
        })
    });
    assert!(matches!(done.await, Err(TransactionalError::Store(_))));
    assert_eq!(direct.charges().await, 0);

    let runs = AtomicU32::new(0);
    let done = store.transactional(keyed(2), |transaction| {
        let run = runs.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let charge = sqlx::query(CHARGE).bind("5 EUR");
            charge.execute(&mut **transaction).await?;
            if run == 0 {
                let raise = sqlx::query("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$");
                raise.execute(&mut **transaction).await?;
            }
            Ok::<_, WorkError>(Response::new("charged"))
        })
    });
    assert!(ran(&done.await));
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert_eq!(direct.charges().await, 1);
}

/// A gRPC call is rejected with a gRPC status.
#[cfg(feature = "grpc")]
#[tokio::test]
async fn a_transactional_grpc_call_is_rejected_with_a_grpc_status() {
    let directory = tempfile::tempdir().unwrap();
    let layer = IdempotencyLayer::anonymous(sqlite(directory.path())).transactional();
    let handler = service_fn(async |request: Request<Body<Full<Bytes>>>| {
        let once = request.extensions().get::<Transactional<Sqlite>>().unwrap();
        let done = once.run(|_| Ok::<_, WorkError>(Response::new("done")));
        Ok::<_, Infallible>(done.await.unwrap())
    });
    let call = async |message: &'static str| {
        let request = Request::post("/payments.Payments/Pay").header("idempotency-key", "1");
        let request = request.header("content-type", "application/grpc");
        let request = request.body(Full::from(message)).unwrap();
        layer.layer(handler).oneshot(request).await.unwrap()
    };
    assert!(!call("5 EUR").await.headers().contains_key("grpc-status"));
    let refused = call("6 EUR").await;
    assert_eq!(refused.status(), 200);
    assert_eq!(refused.headers()["grpc-status"], "3", "{refused:?}");
    assert_eq!(refused.headers()["content-type"], "application/grpc");
}
