//! Conformance of each store with the trait.

use std::future::Future;

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::Runtime;

#[cfg(all(unix, feature = "postgres"))]
use crate::servers;

/// Plays `cases` random sequences of steps, and shrinks a failing one.
fn play_random_steps<F: Future<Output = ()>>(cases: u32, play: impl Fn(Vec<u32>) -> F) {
    let runtime = Runtime::new().unwrap();
    let config = Config {
        cases,
        max_shrink_iters: 60,
        failure_persistence: None,
        ..Config::default()
    };
    let steps = vec(any::<u32>(), 1..150);
    let played = TestRunner::new(config).run(&steps, |steps| {
        runtime.block_on(play(steps));
        Ok(())
    });
    played.unwrap();
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::cell::Cell;
    use std::fs;

    use relent_outbox::store::{Sqlite, conformance};

    use super::play_random_steps;

    #[test]
    fn an_unusable_outbox_file_is_refused_by_name_and_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let (text, outbox) = (path.join("letter.txt"), path.join("outbox.db"));
        fs::write(&text, "Dear Sir or Madam, ".repeat(1000)).unwrap();
        // Not by `Sqlite::open`: its thread closes the file later, and writes to it then.
        let connection = rusqlite::Connection::open(&outbox).unwrap();
        Sqlite::create_tables(&connection).unwrap();
        connection.close().unwrap();
        let mut permissions = fs::metadata(&outbox).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&outbox, permissions).unwrap();
        let wrong = [
            (path.to_owned(), "is a directory"),
            (
                path.join("missing").join("outbox.db"),
                "folder does not exist",
            ),
            (text, "is not an SQLite database"),
            (outbox, "is read-only"),
        ];
        for (file, why) in wrong {
            let before = fs::read(&file).ok();
            let error = Sqlite::open(&file).unwrap_err().to_string();
            let name = file.display().to_string();
            assert!(error.contains(&name) && error.contains(why), "{error}");
            assert_eq!(fs::read(&file).ok(), before);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn sqlite_conforms_to_the_store_trait() {
        let directory = tempfile::tempdir().unwrap();
        let files = Cell::new(0);
        conformance::check(async || {
            files.set(files.get() + 1);
            let file = directory.path().join(format!("{}.db", files.get()));
            Sqlite::open(file).unwrap()
        })
        .await;
    }

    #[test]
    fn sqlite_behaves_like_the_store_model() {
        play_random_steps(20, async |steps: Vec<u32>| {
            let directory = tempfile::tempdir().unwrap();
            let store = Sqlite::open(directory.path().join("outbox.db")).unwrap();
            conformance::play(&store, &steps).await;
        });
    }
}

#[cfg(all(unix, feature = "postgres"))]
mod postgres {
    use std::cell::Cell;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use relent_outbox::endpoint::Endpoint;
    use relent_outbox::message::NewMessage;
    use relent_outbox::store::{
        AfterAttempt, ClaimRequest, Claimed, Deletion, EnqueueError, Filter, Hinted, MessageState,
        OwnedEndpoint, Postgres, Refusal, Settled, Store, conformance,
    };
    use relent_server::postgres::{pool, pool_of};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
    use tokio::sync::Notify;
    use tokio::time::sleep;
    use tokio_postgres::config::Host;
    use tokio_postgres::{Config, NoTls};

    use super::{play_random_steps, servers};

    /// A store in a schema of its own, and the configuration to connect there.
    async fn store(server: &servers::Postgres, schema: &str) -> (Postgres, Config) {
        let config = format!("{} options='-c search_path={schema}'", server.config());
        let store = Postgres::new(pool(&config, 16).unwrap()).max_wait(Duration::from_secs(60));
        let client = store.pool().get().await.unwrap();
        let schema = format!("CREATE SCHEMA {schema}");
        client.batch_execute(&schema).await.unwrap();
        store.create_tables().await.unwrap();
        (store, config.parse().unwrap())
    }

    /// A store in a schema of its own, with one endpoint.
    async fn shop(server: &servers::Postgres, schema: &str) -> Postgres {
        shop_and_config(server, schema).await.0
    }

    async fn shop_and_config(server: &servers::Postgres, schema: &str) -> (Postgres, Config) {
        let (store, config) = store(server, schema).await;
        let shop = Endpoint::new("shop", "https://shop.example/notify");
        store.put_endpoint(shop).await.unwrap();
        (store, config)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn postgres_conforms_to_the_store_trait() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let schemas = Cell::new(0);
        conformance::check(async || {
            schemas.set(schemas.get() + 1);
            store(&server, &format!("s{}", schemas.get())).await.0
        })
        .await;
    }

    #[test]
    fn postgres_behaves_like_the_store_model() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let schemas = Cell::new(0);
        play_random_steps(12, async |steps: Vec<u32>| {
            schemas.set(schemas.get() + 1);
            let (store, _) = store(&server, &format!("s{}", schemas.get())).await;
            conformance::play(&store, &steps).await;
        });
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn concurrent_creation_of_outbox_tables_succeeds() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        for round in 0..5 {
            let config = format!("{} options='-c search_path=s{round}'", server.config());
            let stores = (0..8).map(|_| Postgres::new(pool(&config, 2).unwrap()));
            let stores: Vec<_> = stores
                .map(|store| store.max_wait(Duration::from_secs(60)))
                .collect();
            let client = stores[0].pool().get().await.unwrap();
            let schema = format!("CREATE SCHEMA s{round}");
            client.batch_execute(&schema).await.unwrap();
            let make = |store: &Postgres| {
                let store = store.clone();
                tokio::spawn(async move { store.create_tables().await })
            };
            let made: Vec<_> = stores.iter().map(make).collect();
            for made in made {
                made.await.unwrap().unwrap();
            }
            let endpoint = Endpoint::new("shop", "https://shop.example/notify");
            stores[0].put_endpoint(endpoint).await.unwrap();
            for (number, store) in stores.iter().enumerate() {
                let enqueued = store.enqueue(vec![message(&number.to_string())]).await;
                assert!(!enqueued.unwrap()[0].duplicate);
                store.create_tables().await.unwrap();
            }
            assert_eq!(stores[3].summary().await.unwrap().pending, 8);
        }
    }

    #[tokio::test]
    async fn outbox_tables_of_a_later_version_are_refused() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let (one, _) = store(&server, "one").await;
        let rename = "ALTER TABLE relent_delivery_1 RENAME TO relent_delivery_12";
        let client = one.pool().get().await.unwrap();
        client.batch_execute(rename).await.unwrap();
        drop(client);
        for _ in 0..2 {
            let refused = one.create_tables().await.unwrap_err().to_string();
            assert!(
                refused.contains("later version of Relent")
                    && refused.contains("(relent_delivery_12)"),
                "{refused}"
            );
        }
        // Nothing was created, and the pool's connections are usable. Another schema is another outbox.
        let client = one.pool().get().await.unwrap();
        let found = client.query_one("SELECT to_regclass('relent_delivery_1') IS NULL", &[]);
        assert!(found.await.unwrap().get::<_, bool>(0));
        store(&server, "other").await;
    }

    #[tokio::test]
    async fn outbox_tables_of_an_earlier_version_are_upgraded() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let (one, _) = store(&server, "one").await;
        let client = one.pool().get().await.unwrap();
        let before = "ALTER TABLE relent_delivery_1 DROP COLUMN started; ALTER TABLE relent_worker_1 DROP COLUMN able";
        client.batch_execute(before).await.unwrap();
        for _ in 0..2 {
            one.create_tables().await.unwrap();
            let read = "SELECT started, able FROM relent_delivery_1, relent_worker_1";
            let read = client.query(read, &[]);
            assert!(read.await.unwrap().is_empty());
        }
    }

    /// Its connection returns to the pool.
    #[tokio::test]
    async fn a_dropped_creation_of_tables_leaves_no_transaction_open() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let other = pool(&server.config(), 1).unwrap().get().await.unwrap();
        let lock = "SELECT pg_advisory_lock(7308604797129747)";
        other.batch_execute(lock).await.unwrap();
        let waits = async {
            let waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
            while other.query(waiting, &[]).await.unwrap().is_empty() {}
        };
        let store = Postgres::new(pool(&server.config(), 1).unwrap());
        tokio::select! {
            created = store.create_tables() => panic!("{created:?}"),
            () = waits => {}
        }
        let unlock = "SELECT pg_advisory_unlock_all()";
        other.batch_execute(unlock).await.unwrap();
        let client = store.pool().get().await.unwrap();
        let held = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory'";
        assert!(client.query(held, &[]).await.unwrap().is_empty());
    }

    /// A transaction of the application that enqueues may be long.
    #[tokio::test(flavor = "multi_thread")]
    async fn creating_tables_that_exist_waits_for_no_transaction() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let store = shop(&server, "exists").await;
        let mut client = store.pool().get().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        Postgres::enqueue_in(&transaction, &[message("paid")])
            .await
            .unwrap();
        let limit = Duration::from_secs(30);
        let created = tokio::time::timeout(limit, store.create_tables()).await;
        created.unwrap().unwrap();
        transaction.commit().await.unwrap();
    }

    /// Otherwise its attempt would count, although none was made.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_claimed_message_is_returned_even_if_a_search_behind_it_fails() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let store = shop(&server, "behind").await;
        let ordered = ["first", "second"].map(|event| message(event).in_order("key"));
        store.enqueue(ordered.to_vec()).await.unwrap();
        let owned = take(&store).await;
        let client = store.pool().get().await.unwrap();
        // Each search of a claim fires it once.
        let fails = "CREATE SEQUENCE updates;
            CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF nextval('updates') > 1 THEN RAISE EXCEPTION 'for a test'; END IF;
                RETURN NULL;
            END $$;
            CREATE TRIGGER fails AFTER UPDATE ON relent_delivery_1 EXECUTE FUNCTION fails()";
        client.batch_execute(fails).await.unwrap();
        let wanted = vec![ClaimRequest::of(&owned, 2)];
        let claimed = store.claim("worker", wanted).await.unwrap();
        assert_eq!(claimed.messages.len(), 1);
        let updates = client.query_one("SELECT last_value > 1 FROM updates", &[]);
        assert!(updates.await.unwrap().get::<_, bool>(0), "it searched on");
        client
            .batch_execute("DROP TRIGGER fails ON relent_delivery_1")
            .await
            .unwrap();
        let delivered = settled(&claimed.messages[0], AfterAttempt::Delivered);
        assert_eq!(store.settle(vec![delivered]).await.unwrap(), [true]);
    }

    /// The search whose response was lost has claimed a message. The worker must know that, and give the endpoint up.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_claim_that_loses_its_connection_fails_and_its_messages_return_as_lost() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let (store, config) = shop_and_config(&server, "cut").await;
        let ordered = ["first", "second"].map(|event| message(event).in_order("key"));
        store.enqueue(ordered.to_vec()).await.unwrap();
        store.enqueue(vec![message("third")]).await.unwrap();
        let owned = take(&store).await;
        let client = store.pool().get().await.unwrap();
        // The second search of the claim waits for this lock.
        let waits = "CREATE SEQUENCE updates;
            CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF nextval('updates') > 1 THEN PERFORM pg_advisory_xact_lock_shared(7); END IF;
                RETURN NULL;
            END $$;
            CREATE TRIGGER waits AFTER UPDATE ON relent_delivery_1 EXECUTE FUNCTION waits();
            SELECT pg_advisory_lock(7)";
        client.batch_execute(waits).await.unwrap();
        let until = async |found: &str| {
            while !client
                .query_one(found, &[])
                .await
                .unwrap()
                .get::<_, bool>(0)
            {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let cut = Arc::new(Notify::new());
        let directory = tempfile::tempdir().unwrap();
        let by_proxy = proxy(directory.path(), &config, Arc::clone(&cut));
        let by_proxy = Postgres::new(pool_of(by_proxy, NoTls, 1).unwrap());
        let by_proxy = by_proxy.max_wait(Duration::from_secs(60));
        let wanted = vec![ClaimRequest::of(&owned, 2)];
        let claim = tokio::spawn(async move { by_proxy.claim("worker", wanted).await });
        until("SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)")
            .await;
        cut.notify_one();
        let failed = claim.await.unwrap();
        assert!(failed.is_err(), "{failed:?}");
        let unlock = client.query_one("SELECT pg_advisory_unlock(7)", &[]);
        unlock.await.unwrap();
        until("SELECT count(*) = 2 FROM relent_delivery_1 WHERE state = 1").await;
        let owned = store.acquire("worker", vec![owned.id]).await.unwrap();
        let wanted = vec![ClaimRequest::of(&owned[0], 10)];
        let claimed = store.claim("worker", wanted).await.unwrap();
        let lost: Vec<_> = claimed.messages.iter().map(|one| one.lost).collect();
        assert_eq!(lost, [true, true]);
    }

    /// Forwards one connection to the server until `cut` closes it for the client only.
    fn proxy(directory: &Path, config: &Config, cut: Arc<Notify>) -> Config {
        let Host::Unix(of_server) = &config.get_hosts()[0] else {
            panic!("{config:?}");
        };
        let name = ".s.PGSQL.5432";
        let (listener, of_server) = (directory.join(name), of_server.join(name));
        let listener = UnixListener::bind(listener).unwrap();
        let mut by_proxy = Config::new();
        by_proxy
            .host_path(directory)
            .user(config.get_user().unwrap())
            .dbname(config.get_dbname().unwrap())
            .options(config.get_options().unwrap());
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = UnixStream::connect(&of_server).await.unwrap();
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                () = cut.notified() => {}
            }
            drop(client);
            // The server notices nothing.
            let _ = tokio::io::copy(&mut server, &mut tokio::io::sink()).await;
        });
        by_proxy
    }

    /// As a primary that becomes a replica, which keeps its connections open.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_connection_to_a_server_that_became_read_only_leaves_the_pool() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let (_, config) = shop_and_config(&server, "demoted").await;
        let (admin, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        let store = Postgres::new(pool_of(config, NoTls, 1).unwrap());
        let backend = async || -> i32 {
            let client = store.pool().get().await.unwrap();
            let row = client.query_one("SELECT pg_backend_pid()", &[]).await;
            row.unwrap().get(0)
        };
        let first = backend().await;
        for demote in [
            "ALTER SYSTEM SET default_transaction_read_only = on",
            "SELECT pg_reload_conf()",
        ] {
            admin.batch_execute(demote).await.unwrap();
        }
        let demoted = async {
            let mut number = 0;
            while store
                .enqueue(vec![message(&number.to_string())])
                .await
                .is_ok()
            {
                number += 1;
            }
        };
        let limit = Duration::from_secs(60);
        tokio::time::timeout(limit, demoted).await.unwrap();
        assert_ne!(backend().await, first);
    }

    /// With 100,000 pending messages at 1,000 endpoints, and as many delivered ones. The server logs its plans.
    #[tokio::test(flavor = "multi_thread")]
    async fn no_postgres_outbox_call_scans_a_whole_table() {
        let explain = [
            "fsync=off",
            "session_preload_libraries=auto_explain",
            "auto_explain.log_min_duration=-1",
        ];
        let Some(server) = servers::postgres(&explain) else {
            return;
        };
        let (store, _) = store(&server, "many").await;
        let client = store.pool().get().await.unwrap();
        let fill = client.batch_execute(
            "INSERT INTO relent_endpoint_1 (tenant, name, spec, on_dead_letter)
             SELECT '', i, json_build_object('name', i::text, 'url', 'https://shop.example/'), 0 FROM generate_series(1, 1000) AS i;
             INSERT INTO relent_message_1 (row, id, endpoint, event, topic, content_type, payload, created)
             SELECT i, 'msg_' || lpad(i::text, 32, '0'), i % 1000 + 1, i, '', 'application/json', '{}', i
             FROM generate_series(1, 200000) AS i;
             SELECT setval(pg_get_serial_sequence('relent_message_1', 'row'), 200000);
             INSERT INTO relent_delivery_1 (row, endpoint, state, due, began, ended)
             SELECT row, endpoint, CASE WHEN row = 5 THEN 3 WHEN row > 100000 THEN 2 ELSE 0 END, row, row,
                 CASE WHEN row = 5 OR row > 100000 THEN row END FROM relent_message_1;
             INSERT INTO relent_attempt_1 (row, number, began, took, status, error, excerpt, address)
             SELECT i, 1, i, 1, 200, '', '', '' FROM generate_series(100001, 200000) AS i;
             ANALYZE;",
        );
        fill.await.unwrap();
        let explain = "ALTER DATABASE postgres SET auto_explain.log_min_duration = 0";
        client.batch_execute(explain).await.unwrap();
        drop(client);
        // A pool of new connections, for which the setting applies.
        let config = format!("{} options='-c search_path=many'", server.config());
        let store = Postgres::new(pool(&config, 1).unwrap()).max_wait(Duration::from_secs(60));

        let messages: Vec<_> = (1..9)
            .map(|to| NewMessage::new(to.to_string(), "new", "{}"))
            .collect();
        for _ in 0..2 {
            store.enqueue(messages.clone()).await.unwrap();
        }
        store
            .heartbeat("worker", Duration::from_secs(60), true)
            .await
            .unwrap();
        let work = store.find_work("worker", Duration::ZERO, 10).await.unwrap();
        let endpoints = work.iter().map(|work| work.endpoint).collect();
        let owned = store.acquire("worker", endpoints).await.unwrap();
        let wanted = owned.iter().map(|owned| ClaimRequest::of(owned, 5));
        let claimed = store
            .claim("worker", wanted.collect())
            .await
            .unwrap()
            .messages;
        assert_eq!(claimed.len(), 50);
        let delivered = claimed
            .iter()
            .map(|one| settled(one, AfterAttempt::Delivered));
        let written = store.settle(delivered.collect()).await.unwrap();
        assert_eq!(written, [true; 50]);
        let all = Filter::default();
        let filters = [
            all.clone(),
            Filter {
                state: Some(MessageState::Dead),
                ..all.clone()
            },
            Filter {
                endpoint: Some("9".to_owned()),
                ..all.clone()
            },
            Filter {
                id: Some(claimed[0].id.clone()),
                ..all.clone()
            },
            Filter {
                before: Some(claimed[0].row),
                ..all.clone()
            },
        ];
        for filter in filters {
            store.messages(filter, 100).await.unwrap();
        }
        store.attempts(&claimed[0].id).await.unwrap();
        store.endpoint("", "9").await.unwrap();
        assert_eq!(store.purge(Duration::from_secs(60), 10).await.unwrap(), 10);

        let log = std::fs::read_to_string(server.server.directory().join("log")).unwrap();
        for what in [
            "UPDATE relent_delivery_1",
            "INSERT INTO relent_message_1",
            "Index",
        ] {
            assert!(log.contains(what), "{what} is not written down");
        }
        let plans: Vec<_> = log.split("duration: ").collect();
        for table in ["message", "delivery", "attempt"] {
            let scan = format!("Seq Scan on relent_{table}_1");
            let read = plans.iter().find(|plan| plan.contains(&scan));
            assert!(read.is_none(), "{}", read.unwrap());
        }
    }

    fn message(event: &str) -> NewMessage {
        NewMessage::new("shop", event, "{}")
    }

    /// The worker sends a heartbeat, and takes one endpoint with work.
    async fn take(store: &Postgres) -> OwnedEndpoint {
        let lease = Duration::from_secs(600);
        store.heartbeat("worker", lease, true).await.unwrap();
        let work = store.find_work("worker", Duration::ZERO, 1).await.unwrap();
        let endpoints = vec![work[0].endpoint];
        let mut owned = store.acquire("worker", endpoints).await.unwrap();
        owned.remove(0)
    }

    fn settled(claimed: &Claimed, next: AfterAttempt) -> Settled {
        Settled {
            row: claimed.row,
            endpoint: claimed.endpoint,
            fence: claimed.fence,
            revision: claimed.revision,
            number: claimed.attempt,
            began: claimed.began,
            ordered: claimed.ordered,
            next,
            session: Vec::new(),
            attempt: None,
            health: None,
            disable: None,
        }
    }

    /// Many messages of one order key are enqueued while none is claimed, such as while the endpoint is disabled.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_long_queue_of_one_order_key_delays_no_claim() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let (store, _) = store(&server, "line").await;
        store
            .put_endpoint(Endpoint::new("shop", "https://shop.example/"))
            .await
            .unwrap();
        for batch in 0..20 {
            let line = (0..1000).map(|n| message(&format!("{batch}-{n}")).in_order("key"));
            store.enqueue(line.collect()).await.unwrap();
        }
        store.enqueue(vec![message("free")]).await.unwrap();
        let owned = take(&store).await;
        // The default time limit of workers.
        let store = store.max_wait(Duration::from_secs(5));
        let one = ClaimRequest::of(&owned, 1);
        let mut ordered = Vec::new();
        for _ in 0..10 {
            let claimed = store.claim("worker", vec![one]).await.unwrap().messages;
            ordered.extend(claimed.iter().map(|claimed| claimed.ordered));
        }
        assert_eq!(ordered, [true, false]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_exists_only_if_the_callers_transaction_commits() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let store = shop(&server, "callers").await;
        let mut client = store.pool().get().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        let undone = Postgres::enqueue_in(&transaction, &[message("undone")]).await;
        assert!(!undone.unwrap()[0].duplicate);
        transaction.rollback().await.unwrap();

        let transaction = client.transaction().await.unwrap();
        let mut other = message("committed");
        let committed = Postgres::enqueue_in(&transaction, &[other.clone()]).await;
        let committed = committed.unwrap().remove(0);
        other.payload = "other".into();
        let refused = Postgres::enqueue_in(&transaction, &[message("undone"), other]).await;
        match refused {
            Err(EnqueueError::Refused { index: 1, refusal }) => {
                assert_eq!(refusal, Refusal::OtherPayload(committed.id));
            }
            other => panic!("{other:?}"),
        }
        transaction.commit().await.unwrap();
        let messages = store.messages(Filter::default(), 10).await.unwrap();
        let events: Vec<_> = messages.iter().map(|one| &one.event[..]).collect();
        assert_eq!(events, ["committed"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn messages_of_an_event_exist_only_if_its_transaction_commits() {
        use relent_outbox::message::NewEvent;

        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let (store, config) = store(&server, "events").await;
        for name in ["a", "b"] {
            let endpoint = Endpoint::new(name, "https://shop.example/").topics(["order.*"]);
            store.put_endpoint(endpoint).await.unwrap();
        }
        let event = |event: &str| NewEvent::new("order.paid", event, "{}");
        let mut client = store.pool().get().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        let undone = Postgres::publish_in(&transaction, &[event("undone")]).await;
        assert_eq!(undone.unwrap()[0].len(), 2);
        transaction.rollback().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        Postgres::publish_in(&transaction, &[event("committed")])
            .await
            .unwrap();
        let other = NewEvent::new("order.paid", "committed", "other");
        let refused = Postgres::publish_in(&transaction, &[event("refused"), other]).await;
        let refused = refused.unwrap_err();
        assert!(matches!(refused, EnqueueError::Refused { index: 1, .. }));
        transaction.commit().await.unwrap();
        let events = async || {
            let found = store.messages(Filter::default(), 10).await.unwrap();
            let found = found.into_iter().map(|one| (one.endpoint, one.event));
            found.collect::<Vec<_>>()
        };
        let owned = |endpoint: &str, event: &str| (endpoint.to_owned(), event.to_owned());
        let committed = [owned("b", "committed"), owned("a", "committed")];
        assert_eq!(events().await, committed);
        #[cfg(feature = "sqlx")]
        {
            use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

            let options = PgConnectOptions::new()
                .socket(server.server.directory())
                .username(config.get_user().unwrap())
                .database(config.get_dbname().unwrap())
                .options([("search_path", "events")]);
            let pool = PgPoolOptions::new().connect_with(options).await.unwrap();
            let mut transaction = pool.begin().await.unwrap();
            let again = Postgres::publish_in_sqlx(&mut transaction, &[event("committed")]).await;
            let again = again.unwrap().remove(0);
            assert!(again.len() == 2 && again.iter().all(|(_, one)| one.duplicate));
            let undone = Postgres::publish_in_sqlx(&mut transaction, &[event("undone")]).await;
            assert_eq!(undone.unwrap()[0].len(), 2);
            transaction.rollback().await.unwrap();
            assert_eq!(events().await, committed);
        }
        #[cfg(not(feature = "sqlx"))]
        drop(config);
    }

    /// With sqlx and its own connections; a worker with tokio-postgres delivers its messages.
    #[cfg(feature = "sqlx")]
    #[tokio::test(flavor = "multi_thread")]
    async fn a_sqlx_transaction_enqueues_like_a_tokio_postgres_one() {
        use std::error::Error;

        use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let (store, config) = store(&server, "sqlx").await;
        let shop = Endpoint::new("shop", "https://shop.example/notify").tenant("acme");
        store.put_endpoint(shop).await.unwrap();
        let options = PgConnectOptions::new()
            .socket(server.server.directory())
            .username(config.get_user().unwrap())
            .database(config.get_dbname().unwrap())
            .options([("search_path", "sqlx")]);
        let pool = PgPoolOptions::new().connect_with(options).await.unwrap();
        let raw = sqlx::raw_sql(Postgres::TABLES).execute(&pool).await;
        raw.unwrap();
        let message = |event: &str| message(event).tenant("acme");

        let mut transaction = pool.begin().await.unwrap();
        let undone = Postgres::enqueue_in_sqlx(&mut transaction, &[message("undone")]).await;
        assert!(!undone.unwrap()[0].duplicate);
        transaction.rollback().await.unwrap();

        let mut transaction = pool.begin().await.unwrap();
        let full = message("committed")
            .topic("payment")
            .in_order("order-17")
            .content_type("text/plain");
        let both = [full.clone(), message("second")];
        let first = Postgres::enqueue_in_sqlx(&mut transaction, &both).await;
        let first = first.unwrap();
        let again = Postgres::enqueue_in_sqlx(&mut transaction, std::slice::from_ref(&full)).await;
        let again = again.unwrap().remove(0);
        assert!(again.duplicate && again.id == first[0].id);
        // Each refusal leaves the transaction usable.
        let others = [
            full.clone().topic("other"),
            full.clone().in_order("other"),
            full.clone().content_type("other"),
            message("committed"),
        ];
        for other in others {
            let refused =
                Postgres::enqueue_in_sqlx(&mut transaction, &[message("undone"), other]).await;
            match refused {
                Err(EnqueueError::Refused { index: 1, refusal }) => {
                    assert_eq!(refusal, Refusal::OtherPayload(first[0].id.clone()));
                }
                other => panic!("{other:?}"),
            }
        }
        let mut unknown = message("unknown");
        unknown.tenant.clear();
        let refused =
            Postgres::enqueue_in_sqlx(&mut transaction, &[message("undone"), unknown]).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("index 1: no endpoint"), "{refused}");
        transaction.commit().await.unwrap();
        sqlx::query(Postgres::HINT).execute(&pool).await.unwrap();

        // Producers with tokio-postgres and sqlx detect each other's duplicates, and a worker gets all messages.
        let again = store.enqueue(vec![full]).await.unwrap().remove(0);
        assert!(again.duplicate && again.id == first[0].id);
        let owned = take(&store).await;
        let wanted = ClaimRequest::of(&owned, 10);
        let claimed = store.claim("worker", vec![wanted]).await.unwrap().messages;
        let ids: Vec<_> = claimed.iter().map(|claimed| &claimed.id).collect();
        assert_eq!(ids, [&first[0].id, &first[1].id]);
        assert_eq!(&claimed[0].payload[..], b"{}");

        // The error of the database is among the sources.
        let mut transaction = pool.begin().await.unwrap();
        let drop = "DROP TABLE relent_attempt_1, relent_delivery_1, relent_message_1";
        sqlx::raw_sql(drop)
            .execute(&mut *transaction)
            .await
            .unwrap();
        let failed = Postgres::enqueue_in_sqlx(&mut transaction, &[message("third")]).await;
        let failed = failed.unwrap_err();
        assert!(failed.to_string().contains("relent_message_1"), "{failed}");
        let source = failed.source().unwrap();
        assert!(source.is::<sqlx::Error>(), "{source:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn on_postgres_no_message_waits_for_a_deleted_one_after_an_interrupted_deletion() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let store = shop(&server, "interrupted").await;
        let ordered = ["first", "second"].map(|event| message(event).in_order("key"));
        store.enqueue(ordered.to_vec()).await.unwrap();
        let owned = take(&store).await;
        let claim = async || {
            let wanted = ClaimRequest::of(&owned, 10);
            store.claim("worker", vec![wanted]).await.unwrap().messages
        };
        let first = claim().await;
        let delivered = settled(&first[0], AfterAttempt::Delivered);
        assert_eq!(store.settle(vec![delivered]).await.unwrap(), [true]);
        assert_eq!(claim().await.len(), 1);
        // It waits for the second, which runs.
        assert_eq!(store.resend(Filter::default()).await.unwrap(), 1);
        assert_eq!(claim().await, []);
        // With the second, one batch.
        let more = (1..500).map(|event| message(&event.to_string()));
        store.enqueue(more.collect()).await.unwrap();
        let client = store.pool().get().await.unwrap();
        let fails = "CREATE SEQUENCE deletes;
            CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF nextval('deletes') > 1 THEN RAISE EXCEPTION 'for a test'; END IF;
                RETURN NULL;
            END $$;
            CREATE TRIGGER fails AFTER DELETE ON relent_message_1 EXECUTE FUNCTION fails()";
        client.batch_execute(fails).await.unwrap();
        let failed = store.delete_endpoint("", "shop", true).await.unwrap_err();
        let error = format!("{failed:?}");
        assert!(error.contains("for a test"), "{error}");
        let again = claim().await;
        assert_eq!((again.len(), &again[0].id), (1, &first[0].id));
    }

    /// Otherwise a replay of delivered messages would continue into those that it has resent, and into new ones.
    #[tokio::test(flavor = "multi_thread")]
    async fn on_postgres_a_resend_selects_no_message_that_ends_after_its_start() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let store = shop(&server, "ends").await;
        let events = ["ended", "ends later"].map(message);
        let enqueued = store.enqueue(events.to_vec()).await.unwrap();
        let first = Filter {
            id: Some(enqueued[0].id.clone()),
            ..Filter::default()
        };
        assert_eq!(store.cancel(first).await.unwrap(), 1);
        let client = store.pool().get().await.unwrap();
        // In the year 2096.
        let ends = "CREATE FUNCTION ends() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                UPDATE relent_delivery_1 SET state = 2, ended = 4000000000000000 WHERE row = 2;
                RETURN NULL;
            END $$;
            CREATE TRIGGER ends AFTER UPDATE ON relent_delivery_1 FOR EACH ROW WHEN (NEW.row = 1) EXECUTE FUNCTION ends()";
        client.batch_execute(ends).await.unwrap();
        assert_eq!(store.resend(Filter::default()).await.unwrap(), 1);
        let messages = store.messages(Filter::default(), 10).await.unwrap();
        let states: Vec<_> = messages.iter().rev().map(|one| one.state).collect();
        assert_eq!(states, [MessageState::Pending, MessageState::Delivered]);
    }

    /// A message that is being inserted keeps its endpoint, or is refused: it is never lost in between.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_endpoint_is_not_deleted_while_a_message_is_inserted() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let store = shop(&server, "deleted").await;
        let mut client = store.pool().get().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        let coming = Postgres::enqueue_in(&transaction, &[message("paid")]).await;
        coming.unwrap();
        let deleting = store.clone();
        let deleting =
            tokio::spawn(async move { deleting.delete_endpoint("", "shop", false).await.unwrap() });
        let other = store.pool().get().await.unwrap();
        let waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        while other.query(waits, &[]).await.unwrap().is_empty() {
            assert!(!deleting.is_finished(), "it has not waited");
        }
        transaction.commit().await.unwrap();
        let refused = Deletion::Refused {
            pending: 1,
            dead: 0,
        };
        assert_eq!(deleting.await.unwrap(), refused);
        // Producers at the same endpoint do not block each other.
        let (one, other) = (client.transaction().await.unwrap(), other);
        Postgres::enqueue_in(&one, &[message("refunded")])
            .await
            .unwrap();
        other
            .batch_execute("SET lock_timeout = '1ms'")
            .await
            .unwrap();
        let mut other = other;
        let other = other.transaction().await.unwrap();
        Postgres::enqueue_in(&other, &[message("shipped")])
            .await
            .unwrap();
    }

    /// The earlier of two messages of one order key is committed when the later one is already running.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_late_committed_message_waits_for_a_running_later_one() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let store = shop(&server, "late").await;
        let mut client = store.pool().get().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        let early = message("early").in_order("key");
        let early = Postgres::enqueue_in(&transaction, &[early]).await.unwrap();
        let late = message("late").in_order("key");
        store.enqueue(vec![late]).await.unwrap();
        let owned = take(&store).await;
        let claim = async || {
            let wanted = ClaimRequest::of(&owned, 10);
            store.claim("worker", vec![wanted]).await.unwrap().messages
        };
        let running = claim().await;
        assert_eq!(running.len(), 1);
        transaction.commit().await.unwrap();
        assert_eq!(claim().await, []);
        let settled = settled(&running[0], AfterAttempt::Again(Duration::ZERO));
        assert_eq!(store.settle(vec![settled]).await.unwrap(), [true]);
        let next = claim().await;
        assert_eq!((next.len(), &next[0].id), (1, &early[0].id));
    }

    /// While a producer's transaction is open, one transaction frees the endpoint of a dead worker and another locks
    /// it; both have waited for a third.
    #[tokio::test(flavor = "multi_thread")]
    async fn freeing_and_settling_an_endpoint_do_not_deadlock() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let store = shop(&server, "freed").await;
        store.enqueue(vec![message("paid")]).await.unwrap();
        let owned = take(&store).await;
        let wanted = ClaimRequest::of(&owned, 1);
        let claimed = store.claim("worker", vec![wanted]).await.unwrap().messages;
        let other = store.pool().get().await.unwrap();
        let expired = "UPDATE relent_worker_1 SET until = 0";
        other.batch_execute(expired).await.unwrap();

        let mut producer = store.pool().get().await.unwrap();
        let producer = producer.transaction().await.unwrap();
        Postgres::enqueue_in(&producer, &[message("refunded")])
            .await
            .unwrap();
        let mut third = store.pool().get().await.unwrap();
        let third = third.transaction().await.unwrap();
        let change = "UPDATE relent_endpoint_1 SET reason = 'third'";
        third.batch_execute(change).await.unwrap();
        let waiting = async |wanted: i64| {
            let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
            while other.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) < wanted {}
        };
        let heartbeat = {
            let store = store.clone();
            tokio::spawn(async move {
                store
                    .heartbeat("other", Duration::from_secs(600), true)
                    .await
            })
        };
        waiting(1).await;
        let settle = {
            let (store, settled) = (store.clone(), settled(&claimed[0], AfterAttempt::Delivered));
            tokio::spawn(async move { store.settle(vec![settled]).await })
        };
        waiting(2).await;
        third.commit().await.unwrap();
        assert!(!heartbeat.await.unwrap().unwrap().kept);
        assert_eq!(settle.await.unwrap().unwrap(), [true]);
        producer.commit().await.unwrap();
    }

    /// Otherwise the endpoint would belong to a worker that no longer exists, and would never be freed.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_worker_that_is_being_deleted_acquires_no_endpoint() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let store = shop(&server, "forgotten").await;
        store.enqueue(vec![message("paid")]).await.unwrap();
        let owned = take(&store).await;
        let given = vec![(owned.id, owned.fence)];
        store.release("worker", given).await.unwrap();

        // Another worker deletes this one, because its lease has expired.
        let mut client = store.pool().get().await.unwrap();
        let forget = client.transaction().await.unwrap();
        let worker = "DELETE FROM relent_worker_1";
        forget.batch_execute(worker).await.unwrap();
        let acquire = {
            let store = store.clone();
            tokio::spawn(async move { store.acquire("worker", vec![owned.id]).await.unwrap() })
        };
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let other = store.pool().get().await.unwrap();
        while !acquire.is_finished()
            && other.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) == 0
        {}
        forget.commit().await.unwrap();
        assert_eq!(acquire.await.unwrap(), []);
    }

    /// A claim puts a message behind a dead letter that a concurrent purge has found to block none.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_dead_letter_that_a_concurrent_claim_waits_for_is_not_purged() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let store = shop(&server, "purge").await;
        let ordered = |event| message(event).in_order("key");
        store.enqueue(vec![ordered("dead")]).await.unwrap();
        let owned = take(&store).await;
        let wanted = ClaimRequest::of(&owned, 1);
        let claimed = store.claim("worker", vec![wanted]).await.unwrap().messages;
        let dead = settled(&claimed[0], AfterAttempt::Dead("poison".to_owned()));
        assert_eq!(store.settle(vec![dead]).await.unwrap(), [true]);

        // As a claim does.
        let mut client = store.pool().get().await.unwrap();
        let claim = client.transaction().await.unwrap();
        let lock = "SELECT FROM relent_endpoint_1 FOR NO KEY UPDATE";
        claim.batch_execute(lock).await.unwrap();
        // Even if transactions default to a snapshot at their start.
        let isolated = "default_transaction_isolation=repeatable\\\\ read";
        let options = format!("options='-c search_path=purge -c {isolated}'");
        let isolated = pool(&format!("{} {options}", server.config()), 1).unwrap();
        let purge = {
            let store = Postgres::new(isolated);
            tokio::spawn(async move { store.purge(Duration::ZERO, 10).await.unwrap() })
        };
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let other = store.pool().get().await.unwrap();
        while !purge.is_finished()
            && other.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) == 0
        {}
        let behind = Postgres::enqueue_in(&claim, &[ordered("behind")]).await;
        behind.unwrap();
        let put_behind = "UPDATE relent_delivery_1 SET state = 5 WHERE state = 0";
        claim.batch_execute(put_behind).await.unwrap();
        claim.commit().await.unwrap();
        assert_eq!(purge.await.unwrap(), 0);
    }

    /// As another version, or a person, has written it.
    #[tokio::test(flavor = "multi_thread")]
    async fn on_postgres_an_unreadable_message_becomes_a_dead_letter() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let store = shop(&server, "unreadable").await;
        let events = ["none", "other", "gone"].map(message);
        let enqueued = store.enqueue(events.to_vec()).await.unwrap();
        let client = store.pool().get().await.unwrap();
        let spoil = "UPDATE relent_message_1 SET id = 'no identifier' WHERE event = 'none';
            DELETE FROM relent_message_1 WHERE event = 'gone'";
        client.batch_execute(spoil).await.unwrap();
        let owned = take(&store).await;
        let wanted = ClaimRequest::of(&owned, 10);
        let claimed = store.claim("worker", vec![wanted]).await.unwrap().messages;
        let ids: Vec<_> = claimed.iter().map(|claimed| &claimed.id).collect();
        assert_eq!(ids, [&enqueued[1].id]);
        assert_eq!(
            store.claim("worker", vec![wanted]).await.unwrap().messages,
            []
        );
        assert_eq!(store.summary().await.unwrap().dead, 2);
        let dead = Filter {
            state: Some(MessageState::Dead),
            ..Filter::default()
        };
        let dead = store.messages(dead, 10).await.unwrap();
        assert_eq!((dead.len(), &dead[0].event[..]), (1, "none"));
        assert!(
            dead[0].reason.contains("cannot be read"),
            "{}",
            dead[0].reason
        );
    }

    /// The claim is committed before its messages are read.
    #[tokio::test(flavor = "multi_thread")]
    async fn on_postgres_an_unreadable_message_that_has_changed_since_its_claim_stays_so() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let store = shop(&server, "since").await;
        let events = ["delivered", "lost", "here"].map(message);
        store.enqueue(events.to_vec()).await.unwrap();
        let client = store.pool().get().await.unwrap();
        // At the end of the claim, as others would do after it.
        let spoil = "UPDATE relent_message_1 SET id = 'no identifier ' || event;
            CREATE FUNCTION changes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                UPDATE relent_delivery_1 SET state = 2 WHERE row = 1 AND state = 1;
                UPDATE relent_delivery_1 SET fence = fence + 1 WHERE row = 2 AND fence = NEW.fence;
                RETURN NULL;
            END $$;
            CREATE CONSTRAINT TRIGGER changes AFTER UPDATE ON relent_delivery_1 DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW WHEN (OLD.state = 0 AND NEW.state = 1) EXECUTE FUNCTION changes()";
        client.batch_execute(spoil).await.unwrap();
        let owned = take(&store).await;
        let wanted = ClaimRequest::of(&owned, 10);
        let claimed = store.claim("worker", vec![wanted]).await.unwrap().messages;
        assert_eq!(claimed, []);
        let messages = store.messages(Filter::default(), 10).await.unwrap();
        let states: Vec<_> = messages.iter().rev().map(|one| one.state).collect();
        let expected = [
            MessageState::Delivered,
            MessageState::Running,
            MessageState::Dead,
        ];
        assert_eq!(states, expected);
    }

    /// Messages enqueued by another store, in another process.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_listening_store_gets_hints_of_other_processes() {
        let Some(server) = servers::postgres(&["fsync=off"]) else {
            return;
        };
        let (other, config) = store(&server, "hints").await;
        let shop = Endpoint::new("shop", "https://shop.example/notify");
        other.put_endpoint(shop).await.unwrap();
        let listening = Postgres::new(other.pool().clone()).listen(config, NoTls);
        let mut hints = listening.hints();
        // The first hint arrives once it listens.
        assert_eq!(hints.next().await, Hinted::Anything);
        other.enqueue(vec![message("paid")]).await.unwrap();
        let work = other.find_work("worker", Duration::ZERO, 1).await.unwrap();
        let named = Hinted::Endpoints([work[0].endpoint].into());
        assert_eq!(hints.next().await, named);
        // A duplicate causes no hint; a message with a delay causes one without names.
        other.enqueue(vec![message("paid")]).await.unwrap();
        let later = message("later").delay(Duration::from_secs(1));
        other.enqueue(vec![message("now"), later]).await.unwrap();
        assert_eq!(hints.next().await, Hinted::Anything);
        other.enqueue(vec![message("then")]).await.unwrap();
        assert_eq!(hints.next().await, named);
        // Hints of producers' own transactions, and of another version.
        other.hint().await;
        assert_eq!(hints.next().await, Hinted::Anything);
        let client = other.pool().get().await.unwrap();
        for hint in [Postgres::HINT, "SELECT pg_notify('relent_outbox', 'v2')"] {
            client.execute(hint, &[]).await.unwrap();
            assert_eq!(hints.next().await, Hinted::Anything);
        }
        // The connection is lost and replaced.
        let lose =
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
        assert_eq!(client.query(lose, &[]).await.unwrap().len(), 1);
        assert_eq!(hints.next().await, Hinted::Anything);
        other.enqueue(vec![message("refunded")]).await.unwrap();
        assert_eq!(hints.next().await, named);
    }

    /// Reads a message of a client: its kind, unless it is the first, and its contents.
    async fn read_message(stream: &mut TcpStream, kind: bool) -> Vec<u8> {
        if kind {
            stream.read_u8().await.unwrap();
        }
        let length = stream.read_u32().await.unwrap() as usize - 4;
        let mut contents = vec![0; length];
        stream.read_exact(&mut contents).await.unwrap();
        contents
    }

    /// A gateway or a proxy has forgotten the connection, and drops what arrives.
    #[tokio::test]
    async fn a_listener_replaces_a_connection_that_is_lost_without_notice() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                read_message(&mut stream, false).await;
                // AuthenticationOk, ReadyForQuery.
                let ready = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
                stream.write_all(ready).await.unwrap();
                assert_eq!(
                    read_message(&mut stream, true).await,
                    b"LISTEN relent_outbox\0"
                );
                // CommandComplete, ReadyForQuery.
                let done = b"C\0\0\0\x0bLISTEN\0Z\0\0\0\x05I";
                stream.write_all(done).await.unwrap();
                open.push(stream);
            }
        });
        let config = format!("host=127.0.0.1 port={port} user=shop");
        let pool = pool(&config, 1).unwrap();
        let store = Postgres::new(pool).listen(config.parse().unwrap(), NoTls);
        let mut hints = store.hints();
        assert_eq!(hints.next().await, Hinted::Anything);
        tokio::time::pause();
        // The new connection may have missed hints.
        let again = tokio::time::timeout(Duration::from_secs(60), hints.next());
        assert_eq!(again.await.unwrap(), Hinted::Anything);
    }
}
