//! Files that an earlier version has written.

use super::*;

/// The tables of the version before deliveries had the time of writing.
const BEFORE: &str = "
    CREATE TABLE IF NOT EXISTS relent_endpoint_1 (
        id         INTEGER NOT NULL PRIMARY KEY,
        tenant     TEXT    NOT NULL,
        name       TEXT    NOT NULL,
        spec       TEXT    NOT NULL,             -- JSON
        revision   INTEGER NOT NULL DEFAULT 1,   -- of spec
        on_dead_letter INTEGER NOT NULL,             -- 0 block, 1 skip
        activity   INTEGER NOT NULL DEFAULT 0,   -- 0 active, 1 disabled
        reason     TEXT    NOT NULL DEFAULT '',
        health     BLOB    NOT NULL DEFAULT x'',
        owner      TEXT    NOT NULL DEFAULT '',  -- a worker; empty for none
        fence      INTEGER NOT NULL DEFAULT 0,
        wake       INTEGER,                      -- 0 if an earlier owner has left something running, or when the next is due
        UNIQUE (tenant, name)
    );
    CREATE INDEX IF NOT EXISTS relent_endpoint_1_work ON relent_endpoint_1 (owner, wake) WHERE activity = 0;
    CREATE INDEX IF NOT EXISTS relent_endpoint_1_owner ON relent_endpoint_1 (owner) WHERE owner <> '';
    CREATE TABLE IF NOT EXISTS relent_worker_1 (
        id    TEXT    NOT NULL PRIMARY KEY,
        until INTEGER NOT NULL                   -- of its lease; as all times in microseconds since 1970
    );
    CREATE TABLE IF NOT EXISTS relent_message_1 (
        row          INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
        id           TEXT    NOT NULL UNIQUE,
        endpoint     INTEGER NOT NULL,
        event        TEXT    NOT NULL,
        topic        TEXT    NOT NULL,
        content_type TEXT    NOT NULL,
        payload      BLOB    NOT NULL,
        created      INTEGER NOT NULL,
        UNIQUE (endpoint, event)
    );
    CREATE TABLE IF NOT EXISTS relent_delivery_1 (
        row       INTEGER NOT NULL PRIMARY KEY,  -- that of the message
        endpoint  INTEGER NOT NULL,
        state     INTEGER NOT NULL,              -- 0 pending, 1 running, 2 delivered, 3 dead, 4 cancelled, 5 behind another
        due       INTEGER NOT NULL,
        fence     INTEGER NOT NULL DEFAULT 0,
        attempt   INTEGER NOT NULL DEFAULT 0,
        session   BLOB    NOT NULL DEFAULT x'',
        began     INTEGER NOT NULL,
        ended     INTEGER,
        order_key TEXT,
        reason    TEXT    NOT NULL DEFAULT ''
    );
    CREATE INDEX IF NOT EXISTS relent_delivery_1_due ON relent_delivery_1 (endpoint, due) WHERE state = 0;
    CREATE INDEX IF NOT EXISTS relent_delivery_1_running ON relent_delivery_1 (endpoint, fence) WHERE state = 1;
    CREATE INDEX IF NOT EXISTS relent_delivery_1_dead ON relent_delivery_1 (endpoint) WHERE state = 3;
    CREATE INDEX IF NOT EXISTS relent_delivery_1_behind ON relent_delivery_1 (endpoint) WHERE state = 5;
    CREATE INDEX IF NOT EXISTS relent_delivery_1_order ON relent_delivery_1 (endpoint, order_key, state)
        WHERE order_key IS NOT NULL;
    CREATE INDEX IF NOT EXISTS relent_delivery_1_ended ON relent_delivery_1 (ended) WHERE ended IS NOT NULL;
    CREATE TABLE IF NOT EXISTS relent_attempt_1 (
        id      INTEGER NOT NULL PRIMARY KEY,
        row     INTEGER NOT NULL,
        number  INTEGER NOT NULL,
        began   INTEGER NOT NULL,                -- in milliseconds since 1970, as the worker says
        took    INTEGER NOT NULL,                -- in milliseconds
        status  INTEGER,
        error   TEXT    NOT NULL,
        excerpt TEXT    NOT NULL,
        address TEXT    NOT NULL
    );
    CREATE INDEX IF NOT EXISTS relent_attempt_1_row ON relent_attempt_1 (row);
";

/// Rows of that version: a dead worker with two messages of one order key, one running and one pending, which it
/// allowed after a resend. Others are behind them; further ones are pending, dead and delivered.
const ROWS: &str = r#"
    INSERT INTO relent_endpoint_1 VALUES
        (1, '', 'shop', '{"name":"shop","url":"https://shop.example/notify"}', 1, 0, 0, '', x'', 'dead', 3, 0),
        (2, 'acme', 'bank', '{"tenant":"acme","name":"bank","url":"https://bank.example/"}', 4, 1, 1, 'by hand', x'01', '', 0, NULL);
    INSERT INTO relent_worker_1 VALUES ('dead', 2);
    INSERT INTO relent_message_1 VALUES
        (1, 'msg_1', 1, '1', 'paid', 'application/json', x'7b7d', 1),
        (2, 'msg_2', 1, '2', '', 'application/json', x'7b7d', 1),
        (3, 'msg_3', 1, '3', '', 'application/json', x'7b7d', 1),
        (4, 'msg_4', 1, '4', '', 'application/json', x'7b7d', 1),
        (5, 'msg_5', 1, '5', '', 'application/json', x'7b7d', 1),
        (6, 'msg_6', 1, '6', '', 'application/json', x'7b7d', 1);
    INSERT INTO relent_delivery_1 VALUES
        (1, 1, 2, 1, 2, 1, x'01', 1, 1, NULL, ''),
        (2, 1, 0, 1, 2, 0, x'', 1, NULL, 'key', ''),
        (3, 1, 1, 1, 3, 1, x'01', 1, NULL, 'key', ''),
        (4, 1, 5, 1, 0, 0, x'', 1, NULL, 'key', ''),
        (5, 1, 3, 1, 2, 9, x'01', 1, 1, NULL, 'all attempts are used'),
        (6, 1, 0, 1, 0, 0, x'', 1, NULL, NULL, '');
    INSERT INTO relent_attempt_1 VALUES (1, 1, 1, 1, 1, 200, '', 'ok', '192.0.2.1:443'), (2, 5, 9, 1, 1, 503, 'HTTP 503', '', '');
"#;

fn write_before(directory: &TempDir) -> Connection {
    let connection = Connection::open(directory.path().join("outbox.db")).unwrap();
    connection
        .pragma_update(None, "journal_mode", "WAL")
        .unwrap();
    connection.execute_batch(BEFORE).unwrap();
    connection.execute_batch(ROWS).unwrap();
    connection
}

/// All columns of all tables and indices.
fn schema(connection: &Connection) -> Vec<String> {
    let mut select = connection
        .prepare(
            "SELECT m.type || ' ' || m.tbl_name || ' ' || m.name || ' ' || coalesce(i.name, '') || ' ' || coalesce(i.type, '')
                 || ' ' || coalesce(i.dflt_value, '') || ' ' || coalesce(iif(m.type = 'index', m.sql, m.sql LIKE '%AUTOINCREMENT%'), '')
             FROM sqlite_master AS m LEFT JOIN pragma_table_info(m.name) AS i ORDER BY 1",
        )
        .unwrap();
    let rows = select.query_map([], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

#[tokio::test]
async fn an_outbox_of_an_earlier_version_is_upgraded_and_served() {
    let directory = tempfile::tempdir().unwrap();
    let before = write_before(&directory);
    let file = directory.path().join("outbox.db");
    let store = Sqlite::open(&file).unwrap();
    let fresh = Connection::open_in_memory().unwrap();
    Sqlite::create_tables(&fresh).unwrap();
    assert_eq!(schema(&before), schema(&fresh));

    let bank = store.endpoint("acme", "bank").await.unwrap().unwrap();
    assert_eq!((&bank.reason[..], &bank.health[..]), ("by hand", &[1][..]));
    let states = async || {
        let found = store.messages(Filter::default(), 10).await.unwrap();
        found
            .iter()
            .rev()
            .map(|one| one.state.to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        states().await,
        "delivered pending running pending dead pending"
    );
    let attempts = store.attempts(&"msg_5".parse().unwrap()).await.unwrap();
    assert_eq!((attempts.len(), attempts[0].status), (1, Some(503)));

    // Lost messages come first, then free ones. Nothing else of an order key is claimed while one runs.
    let owned = take(&store, "worker").await;
    let claimed = claim(&store, "worker", &owned[0]).await;
    let found: Vec<_> = claimed
        .iter()
        .map(|one| (one.id.as_str(), one.lost))
        .collect();
    assert_eq!(found, [("msg_3", true), ("msg_6", false)]);
    let delivered = claimed
        .iter()
        .map(|one| settled(one, AfterAttempt::Delivered));
    let written = store.settle(delivered.collect()).await.unwrap();
    assert_eq!(written, [true, true]);
    for id in ["msg_2", "msg_4"] {
        let claimed = claim(&store, "worker", &owned[0]).await;
        assert_eq!((claimed[0].id.as_str(), claimed.len()), (id, 1));
        let delivered = settled(&claimed[0], AfterAttempt::Delivered);
        assert_eq!(store.settle(vec![delivered]).await.unwrap(), [true]);
    }
    // A stored event stays a duplicate, and row numbers continue.
    let again = store
        .enqueue(vec![message("6"), message("7")])
        .await
        .unwrap();
    assert_eq!((again[0].id.as_str(), again[0].duplicate), ("msg_6", true));
    let claimed = claim(&store, "worker", &owned[0]).await;
    assert!(claimed[0].row > 6 && claimed[0].id == again[1].id);
    assert_eq!(store.resend(Filter::default()).await.unwrap(), 6);

    // Current tables stay unchanged.
    let is = schema(&before);
    drop(store);
    let store = Sqlite::open(&file).unwrap();
    assert_eq!(schema(&before), is);
    assert_eq!(store.summary().await.unwrap().pending, 6);
}

#[test]
fn a_failed_upgrade_of_an_outbox_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut connection = write_before(&directory);
    // The temporary name of the old table is taken.
    connection
        .execute_batch("CREATE TABLE relent_endpoint_0 (other)")
        .unwrap();
    let before = schema(&connection);
    assert!(Sqlite::open(directory.path().join("outbox.db")).is_err());
    assert_eq!(schema(&connection), before);
    // Within the caller's transaction, which continues.
    let transaction = connection.transaction().unwrap();
    transaction
        .execute_batch("CREATE TABLE orders (id)")
        .unwrap();
    assert!(Sqlite::create_tables(&transaction).is_err());
    transaction
        .execute_batch("DROP TABLE relent_endpoint_0")
        .unwrap();
    Sqlite::create_tables(&transaction).unwrap();
    transaction.commit().unwrap();
    let store = Sqlite::open(directory.path().join("outbox.db")).unwrap();
    drop(store);
    let orders = schema(&connection);
    assert!(
        orders.iter().any(|row| row.contains("orders")),
        "{orders:?}"
    );
}

/// Opens the file concurrently by eight connections, as several processes do.
fn open_at_once(file: &std::path::Path) -> Vec<Sqlite> {
    let together = std::sync::Barrier::new(8);
    std::thread::scope(|threads| {
        let open = || {
            together.wait();
            Sqlite::open(file).unwrap()
        };
        let opened: Vec<_> = (0..8).map(|_| threads.spawn(open)).collect();
        opened.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

#[tokio::test]
async fn concurrent_opens_upgrade_an_outbox_once() {
    for _ in 0..20 {
        let directory = tempfile::tempdir().unwrap();
        let before = write_before(&directory);
        // A second upgrade would recreate the table from an empty one, or fail.
        let stores = open_at_once(&directory.path().join("outbox.db"));
        let fresh = Connection::open_in_memory().unwrap();
        Sqlite::create_tables(&fresh).unwrap();
        assert_eq!(schema(&before), schema(&fresh));
        for store in &stores {
            assert_eq!(store.endpoints(None, 9).await.unwrap().len(), 2);
            assert_eq!(store.messages(Filter::default(), 9).await.unwrap().len(), 6);
            let attempts = store.attempts(&"msg_5".parse().unwrap()).await.unwrap();
            assert_eq!(attempts.len(), 1);
        }
        let enqueued = stores[7].enqueue(vec![message("7")]).await.unwrap();
        assert!(!enqueued[0].duplicate);
    }
}

#[tokio::test]
async fn concurrent_opens_create_an_outbox_once() {
    for _ in 0..20 {
        let directory = tempfile::tempdir().unwrap();
        let stores = open_at_once(&directory.path().join("outbox.db"));
        shop(&stores[0]).await;
        for (number, store) in stores.iter().enumerate() {
            let enqueued = store.enqueue(vec![message(&number.to_string())]).await;
            assert!(!enqueued.unwrap()[0].duplicate);
        }
        assert_eq!(stores[3].summary().await.unwrap().pending, 8);
    }
}

#[test]
fn an_outbox_of_a_later_version_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let connection = write_before(&directory);
    connection
        .execute_batch("ALTER TABLE relent_delivery_1 RENAME TO relent_delivery_12")
        .unwrap();
    let before = schema(&connection);
    let refused = Sqlite::open(directory.path().join("outbox.db")).unwrap_err();
    assert!(
        refused.to_string().contains("later version of Relent")
            && refused.to_string().contains("(relent_delivery_12)"),
        "{refused}"
    );
    assert_eq!(schema(&connection), before);
}

#[test]
fn dependents_of_a_recreated_table_are_named() {
    for (dependent, name) in [
        (
            "CREATE VIEW shops AS SELECT name FROM relent_endpoint_1",
            "view shops",
        ),
        (
            "CREATE TRIGGER told AFTER UPDATE ON relent_endpoint_1 BEGIN SELECT 1; END",
            "trigger told",
        ),
        (
            "CREATE TRIGGER asks AFTER INSERT ON relent_message_1 BEGIN SELECT count(*) FROM relent_endpoint_1; END",
            "trigger asks",
        ),
        (
            "CREATE TABLE prices (shop REFERENCES relent_endpoint_1 (id) ON DELETE CASCADE)",
            "table prices",
        ),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let connection = write_before(&directory);
        connection.execute_batch(dependent).unwrap();
        let before = schema(&connection);
        let refused = Sqlite::open(directory.path().join("outbox.db")).unwrap_err();
        assert!(refused.to_string().contains(name), "{refused}");
        assert_eq!(schema(&connection), before);
        let (kind, name) = name.split_once(' ').unwrap();
        connection
            .execute_batch(&format!("DROP {kind} {name}"))
            .unwrap();
        drop(Sqlite::open(directory.path().join("outbox.db")).unwrap());
        connection.execute_batch(dependent).unwrap();
        // With current tables such objects are allowed.
        drop(Sqlite::open(directory.path().join("outbox.db")).unwrap());
    }
}
