//! Tests that the operator, and not the client, learns why a store has failed.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use relent_server::idempotency::{Body, IdempotencyLayer};
use relent_server::postgres::pool;
use relent_server::store::{
    Key, Memory, Postgres, Redis, Sqlite, Store, StoreFailure, StoreFailureKind,
};
use tower::{Layer, ServiceExt, service_fn};
use tracing_subscriber::layer::SubscriberExt;

use crate::collector::ask_all_subscribers;
use crate::servers;

const SECRET: &str = "a-secret-key";

/// Records each event as a line.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        struct Visit(String);
        impl tracing::field::Visit for Visit {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                write!(self.0, " {field}={value:?}").unwrap();
            }
        }
        if event.metadata().target() == "relent" {
            let mut visit = Visit(event.metadata().level().to_string());
            event.record(&mut visit);
            self.0.lock().unwrap().push(visit.0);
        }
    }
}

/// Returns the report to the operator for a request with a key, from the callback; the event says the same.
fn learned<S: Store>(
    runtime: &tokio::runtime::Runtime,
    store: S,
    handler: impl AsyncFn(),
) -> Option<StoreFailure> {
    let (lines, failures) = (Lines::default(), Arc::new(Mutex::new(Vec::new())));
    let kept = Arc::clone(&failures);
    let layer =
        IdempotencyLayer::new(store, |_| Some("ann".to_owned())).on_store_failure(move |failure| {
            kept.lock().unwrap().push(failure.clone());
            panic!("the callback's own");
        });
    let service = layer.layer(service_fn(|_: Request<Body<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("paid")))
    }));
    ask_all_subscribers();
    let subscriber = tracing_subscriber::registry().with(lines.clone());
    let answer = tracing::subscriber::with_default(subscriber, || {
        runtime.block_on(async {
            handler().await;
            let request = Request::post("/payments").header("idempotency-key", SECRET);
            let request = request.body(Full::<Bytes>::from("card 4711")).unwrap();
            let response = service.oneshot(request).await.unwrap();
            let (head, body) = response.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            format!("{head:?} {body:?}")
        })
    });
    let failures = failures.lock().unwrap().clone();
    let failure = failures.into_iter().next()?;
    assert_eq!(failure.operation, "claim");
    assert_eq!(failure.key, Key::of("ann", "POST", "", SECRET));
    let lines = lines.0.lock().unwrap();
    let line = lines.iter().find(|line| line.starts_with("ERROR")).unwrap();
    let mut parts = vec![
        format!("relent.kind=\"{}\"", failure.kind.name()),
        format!("relent.key={}", failure.key),
        failure.message.to_owned(),
    ];
    parts.extend(
        failure
            .code
            .iter()
            .map(|code| format!("relent.code=\"{code}\"")),
    );
    for part in parts {
        assert!(line.contains(&part), "{part} in {line}");
    }
    let said = format!("{failure:?} {failure} {line}");
    for secret in [
        SECRET,
        "4711",
        "relent_idempotency",
        "hunter2",
        "nowhere",
        "/",
    ] {
        assert!(!said.contains(secret), "{secret} in {said}");
    }
    assert!(
        answer.contains("503") && answer.contains("idempotency-store-failed"),
        "{answer}"
    );
    for known in failure
        .code
        .iter()
        .map(String::as_str)
        .chain([failure.message])
    {
        assert!(!answer.contains(known), "{known} in {answer}");
    }
    Some(failure)
}

#[test]
fn a_store_failure_is_reported_to_the_operator_and_not_the_client() {
    // One thread, because the subscriber is per thread.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    let mut learned_all = Vec::new();
    let mut expect = |what: &str, found: Option<StoreFailure>, kind, code: Option<&str>| {
        let found = found.map(|found| (found.kind, found.code));
        let expected = Some((kind, code.map(str::to_owned)));
        learned_all.push((what.to_owned(), found, expected));
    };
    let nothing = async || {};

    let full = learned(&runtime, Memory::new().at_most(0), nothing);
    expect("full memory", full, StoreFailureKind::Full, None);

    let directory = tempfile::tempdir().unwrap();
    let open = |name: &str| Sqlite::open(directory.path().join(name)).unwrap();
    let sqlite = open("a");
    let writer = sqlite.writer().clone();
    let drop_table = async || {
        let drop = |connection: &rusqlite::Connection| {
            connection.execute_batch("DROP TABLE relent_idempotency_1")?;
            Ok::<_, relent_server::store::SqliteError>(())
        };
        writer.run(drop).await.unwrap();
    };
    let missing = learned(&runtime, sqlite, drop_table);
    expect(
        "no table of SQLite",
        missing,
        StoreFailureKind::Missing,
        Some("SQLITE_ERROR"),
    );
    let sqlite = open("b");
    let writer = sqlite.writer().clone();
    let pragma = async |pragma: &'static str| {
        let run = move |connection: &rusqlite::Connection| {
            connection.execute_batch(pragma)?;
            Ok::<_, relent_server::store::SqliteError>(())
        };
        writer.run(run).await.unwrap();
    };
    let only_read = learned(&runtime, sqlite, async || {
        pragma("PRAGMA query_only = ON").await;
    });
    expect(
        "SQLite that is read",
        only_read,
        StoreFailureKind::ReadOnly,
        Some("SQLITE_READONLY"),
    );

    let nowhere = "host=/nowhere user=ann password=hunter2 dbname=shop";
    let away = learned(&runtime, Postgres::new(pool(nowhere, 1).unwrap()), nothing);
    expect(
        "no PostgreSQL",
        away,
        StoreFailureKind::Unreachable,
        Some("NotFound"),
    );
    if let Some(server) = servers::postgres(&["fsync=off"]) {
        let store = || {
            let _entered = runtime.enter();
            Postgres::new(pool(&server.config(), 2).unwrap())
        };
        let missing = learned(&runtime, store(), nothing);
        expect(
            "no table",
            missing,
            StoreFailureKind::Missing,
            Some("42P01"),
        );
        let create = async || store().create_tables().await.unwrap();
        runtime.block_on(create());
        let run = async |script: &str| {
            let client = store().pool().get().await.unwrap();
            client.batch_execute(script).await.unwrap();
        };
        let only_read = learned(&runtime, store(), async || {
            run("ALTER DATABASE postgres SET default_transaction_read_only = on").await;
        });
        expect(
            "a PostgreSQL that is read",
            only_read,
            StoreFailureKind::ReadOnly,
            Some("25006"),
        );
        let nobody = server.config().replace("user=relent", "user=nobody");
        let denied = learned(&runtime, Postgres::new(pool(&nobody, 1).unwrap()), nothing);
        expect(
            "no such user",
            denied,
            StoreFailureKind::Denied,
            Some("28000"),
        );
        server.server.signal("STOP");
        let stopped = store().max_wait(Duration::from_millis(50));
        let stopped = learned(&runtime, stopped, nothing);
        expect(
            "a PostgreSQL that is stopped",
            stopped,
            StoreFailureKind::TimedOut,
            None,
        );
    }

    if let Some(server) = servers::redis(&["--appendonly", "no"]) {
        let client = || redis::Client::open(server.url()).unwrap();
        let connect = || {
            runtime
                .block_on(Redis::connect_unchecked(client()))
                .unwrap()
        };
        let set = async |name: &str, value: &str| {
            let mut connection = client().get_multiplexed_async_connection().await.unwrap();
            let mut set = redis::cmd("CONFIG");
            set.arg("SET").arg(name).arg(value);
            set.exec_async(&mut connection).await.unwrap();
        };
        let full = learned(&runtime, connect(), async || set("maxmemory", "1").await);
        expect(
            "a Redis that is full",
            full,
            StoreFailureKind::Full,
            Some("OOM"),
        );
        runtime.block_on(set("maxmemory", "0"));
        let store = connect();
        server.server.signal("STOP");
        let stopped = learned(&runtime, store, nothing);
        expect(
            "a Redis that is stopped",
            stopped,
            StoreFailureKind::TimedOut,
            None,
        );
        server.server.signal("CONT");
        let store = connect();
        drop(server);
        let away = learned(&runtime, store, nothing);
        assert!(away.is_some_and(|away| away.kind == StoreFailureKind::Unreachable));
    }
    drop(std::panic::take_hook());
    let wrong: Vec<_> = (learned_all.iter())
        .filter(|(_, found, expected)| found != expected)
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn an_outage_of_shared_rate_limits_is_reported_once_with_its_reason() {
    use relent_core::admission::LimiterConfig;
    use relent_server::admission::{AdmissionLayer, Quota, RedisLimits};

    let lines = Lines::default();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    ask_all_subscribers();
    let subscriber = tracing_subscriber::registry().with(lines.clone());
    let client = redis::Client::open("redis+unix:///nowhere/at/all?pass=secret").unwrap();
    let config = LimiterConfig::new(1, Duration::from_secs(1));
    let layer = AdmissionLayer::redis_limits(RedisLimits::open(client))
        .quota(Quota::new("service", config).unwrap());
    tracing::subscriber::with_default(subscriber, || {
        runtime.block_on(async {
            for _ in 0..3 {
                let handler =
                    |_| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) };
                let request = Request::new(Full::<Bytes>::default());
                drop(layer.layer(service_fn(handler)).oneshot(request).await);
            }
        });
    });
    let lines = lines.0.lock().unwrap();
    let [line] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert!(
        line.starts_with("WARN") && line.contains("relent.kind=\"unreachable\""),
        "{line}"
    );
    assert!(
        !line.contains("nowhere") && !line.contains("secret"),
        "{line}"
    );
}
