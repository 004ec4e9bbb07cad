//! Tables, and their upgrade from earlier versions.
//!
//! The number in table names is the version of their content. A version whose tables this one would misread uses
//! another number. Compatible versions add only columns with a default, and indices.

use rusqlite::{Connection, ffi};

use super::invariants::Touched;

pub(super) const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS relent_endpoint_1 (
        id         INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
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
        until INTEGER NOT NULL,                  -- of its lease; as all times in microseconds since 1970
        heartbeat  INTEGER NOT NULL DEFAULT 0,        -- when that was written
        able  INTEGER NOT NULL DEFAULT 1         -- to make attempts
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
        reason    TEXT    NOT NULL DEFAULT '',
        written   INTEGER NOT NULL DEFAULT 0,    -- when due was
        started   INTEGER NOT NULL DEFAULT 0     -- of its latest attempt
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
        address TEXT    NOT NULL,
        request  TEXT   NOT NULL DEFAULT '',     -- header fields as they may be seen
        response TEXT   NOT NULL DEFAULT ''
    );
    CREATE INDEX IF NOT EXISTS relent_attempt_1_row ON relent_attempt_1 (row);
    CREATE TABLE IF NOT EXISTS relent_key_1 (
        one     INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
        checked TEXT    NOT NULL                 -- by which a key is known to be that of this outbox
    );
    CREATE TABLE IF NOT EXISTS relent_subscription_1 (
        tenant   TEXT    NOT NULL,
        pattern  TEXT    NOT NULL,
        endpoint INTEGER NOT NULL,
        PRIMARY KEY (tenant, pattern, endpoint)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS relent_subscription_1_endpoint ON relent_subscription_1 (endpoint);
";

/// Creates the tables, or upgrades those of an earlier version, all or nothing.
pub(super) fn create(connection: &Connection) -> rusqlite::Result<()> {
    refuse_later(connection)?;
    if is_current(connection)? {
        return Ok(());
    }
    // In a transaction of its own, or within that of the caller.
    let (begin, end, undo) = if connection.is_autocommit() {
        ("BEGIN IMMEDIATE", "COMMIT", "ROLLBACK")
    } else {
        (
            "SAVEPOINT relent_tables",
            "RELEASE relent_tables",
            "ROLLBACK TO relent_tables; RELEASE relent_tables",
        )
    };
    connection.execute_batch(begin)?;
    let created = make(connection).and_then(|()| connection.execute_batch(end));
    if created.is_err() && (begin.starts_with("SAVEPOINT") || !connection.is_autocommit()) {
        connection.execute_batch(undo)?;
    }
    created
}

/// Refuses tables of a later version: its workers would not deliver messages in the tables of this version.
fn refuse_later(connection: &Connection) -> rusqlite::Result<()> {
    let later = names(
        connection,
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'relent_delivery_[0-9]*'
             AND name NOT GLOB 'relent_delivery_*[^0-9]*'
             AND CAST(substr(name, 17) AS INTEGER) > 1",
    )?;
    match later.is_empty() {
        true => Ok(()),
        false => Err(refused(crate::store::later_tables(&later))),
    }
}

/// Refuses objects that depend on the recreated table: SQLite would make them refer to the old table, or delete them.
fn refuse_dependents(connection: &Connection) -> rusqlite::Result<()> {
    let dependents = names(
        connection,
        "SELECT type || ' ' || name FROM sqlite_master
         WHERE type IN ('view', 'trigger') AND (tbl_name = 'relent_endpoint_1' OR sql LIKE '%relent_endpoint_1%')
         UNION SELECT 'table ' || m.name FROM sqlite_master AS m, pragma_foreign_key_list(m.name) AS f
         WHERE m.type = 'table' AND f.\"table\" = 'relent_endpoint_1'",
    )?;
    match dependents.is_empty() {
        true => Ok(()),
        false => Err(refused(format!(
            "the table relent_endpoint_1 of an earlier version of Relent has to be made anew, and what depends on it is in the way: \
             {dependents}. Drop that, open the outbox once, and make it again"
        ))),
    }
}

fn names(connection: &Connection, select: &str) -> rusqlite::Result<String> {
    let mut select = connection.prepare(select)?;
    let names = select.query_map([], |row| row.get(0))?;
    Ok(names.collect::<rusqlite::Result<Vec<String>>>()?.join(", "))
}

fn refused(why: String) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_MISMATCH), Some(why))
}

/// Whether the most recent additions exist.
fn is_current(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(has_column(connection, "relent_key_1", "checked")?
        && has_column(connection, "relent_delivery_1", "started")?
        && has_column(connection, "relent_worker_1", "able")?)
}

fn has_column(connection: &Connection, table: &str, column: &str) -> rusqlite::Result<bool> {
    connection
        .prepare("SELECT 1 FROM pragma_table_info(?1) WHERE name = ?2")?
        .exists((table, column))
}

fn make(connection: &Connection) -> rusqlite::Result<()> {
    // Another process may have been faster.
    refuse_later(connection)?;
    if is_current(connection)? {
        return Ok(());
    }
    let mut tables = connection.prepare(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'relent_endpoint_1' AND sql NOT LIKE '%AUTOINCREMENT%'",
    )?;
    if tables.exists([])? {
        refuse_dependents(connection)?;
        // An identifier must not be reused after its endpoint is deleted.
        connection.execute_batch("ALTER TABLE relent_endpoint_1 RENAME TO relent_endpoint_0")?;
        connection.execute_batch(TABLES)?;
        connection.execute_batch(
            "INSERT INTO relent_endpoint_1
                 (id, tenant, name, spec, revision, on_dead_letter, activity, reason, health, owner, fence, wake)
             SELECT id, tenant, name, spec, revision, on_dead_letter, activity, reason, health, owner, fence, wake
             FROM relent_endpoint_0;
             DROP TABLE relent_endpoint_0;",
        )?;
    }
    connection.execute_batch(TABLES)?;
    for (table, column, kind) in [
        ("relent_worker_1", "heartbeat", "INTEGER NOT NULL DEFAULT 0"),
        ("relent_worker_1", "able", "INTEGER NOT NULL DEFAULT 1"),
        ("relent_delivery_1", "written", "INTEGER NOT NULL DEFAULT 0"),
        ("relent_delivery_1", "started", "INTEGER NOT NULL DEFAULT 0"),
        ("relent_attempt_1", "request", "TEXT NOT NULL DEFAULT ''"),
        ("relent_attempt_1", "response", "TEXT NOT NULL DEFAULT ''"),
    ] {
        if !has_column(connection, table, column)? {
            connection.execute_batch(&format!("ALTER TABLE {table} ADD COLUMN {column} {kind}"))?;
        }
    }
    // In earlier versions, messages could be pending beside a running one of the same order key.
    let mut running = connection.prepare(
        "SELECT DISTINCT endpoint, order_key FROM relent_delivery_1 WHERE state = 1 AND order_key IS NOT NULL",
    )?;
    let mut touched = Touched::default();
    for line in running.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))? {
        let (endpoint, order) = line?;
        touched.add(endpoint, Some(order));
    }
    touched.follow(connection)
}
