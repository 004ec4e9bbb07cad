//! Outbox in an SQLite database.

mod batches;
mod claim;
mod clock;
mod clock_correction;
mod enqueue;
mod error;
mod invariants;
mod operate;
mod read;
mod schema;
mod settle;
mod work;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use relent_server::sqlite::{Writer, WriterError};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::{Semaphore, broadcast};
use tokio::task::spawn_blocking;

use self::clock::Clock;
pub use self::error::SqliteError;
use super::hints;
use super::{
    AttemptRecord, ClaimRequest, Claims, ConfirmRequest, Content, Deletion, EndpointStatus,
    EndpointWork, EnqueueError, Enqueued, Fence, Filter, Heartbeat, Hinted, Hints,
    MAX_TRANSACTION_ROWS, MessageStatus, OwnedEndpoint, Published, Recent, Settled, Store, Summary,
    end_of_grants, micros,
};
use crate::endpoint::{Activity, Endpoint};
use crate::message::{MessageId, NewEvent, NewMessage};

/// An outbox in an SQLite database: durable, without another service to install. Workers and producers must be on one
/// machine, in one process or several.
///
/// ```
/// use relent_outbox::endpoint::Endpoint;
/// use relent_outbox::message::NewMessage;
/// use relent_outbox::store::{Sqlite, SqliteError, Store};
/// use relent_server::sqlite::WriterError;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let file = directory.path().join("shop.db");
/// let store = Sqlite::open_with(file, |connection| {
///     connection.execute_batch("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, paid)")
/// })?;
/// store.put_endpoint(Endpoint::new("shop", "https://shop.example/notify")).await?;
///
/// // The order and the message, or neither.
/// let enqueued = store.writer().run(|connection| {
///     connection.execute("INSERT INTO orders VALUES (17, true)", [])?;
///     let message = NewMessage::new("shop", "order-17-paid", r#"{"order":17}"#);
///     Sqlite::enqueue_in(connection, &[message])
/// });
/// assert!(!enqueued.await?[0].duplicate);
/// # Ok(())
/// # }
/// ```
///
/// Committed writes survive a crash and a power failure. The futures need a tokio runtime.
///
/// The clock is that of the machine. If it is set back by up to 5 s, the store's time stands still meanwhile. If it is
/// set back by more, the machine was ahead, and the store follows. Times written meanwhile then count from the next
/// [heartbeat](Store::heartbeat) of a worker. A delivery with a delay of a minute thus waits for a minute and up to one
/// heartbeat interval, even if the machine was ahead by a day; a dead worker is detected one lease later. A step
/// forward takes effect immediately: messages become due, and leases expire, which repeats running attempts. Time limits
/// of schedules (`max_elapsed`, `deadline`) end, too, so that messages become dead letters.
#[derive(Clone, Debug)]
pub struct Sqlite {
    /// Closed before the connection of the writer, which then is the last one and removes the files beside the database.
    readers: Arc<Readers>,
    writer: Writer,
    /// The bytes that jobs for the writer may hold, also those whose callers no longer wait.
    queued: Arc<Semaphore>,
    clock: Arc<Clock>,
    hints: broadcast::Sender<Hinted>,
}

impl Sqlite {
    /// The SQL of the tables in this version. [`create_tables`](Self::create_tables) also upgrades tables of an earlier
    /// version.
    ///
    /// Data written once is separate from data that changes with each attempt, so that a change writes little.
    pub const TABLES: &str = schema::TABLES;

    /// Opens the outbox in this file, and creates it if necessary.
    ///
    /// # Errors
    /// The database cannot be opened or is in memory, or its tables cannot be created.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SqliteError> {
        Self::open_with(path, |_| Ok(()))
    }

    /// Opens the outbox in a database that has other tables, too, such as the service's own, which `set_up` creates.
    /// The connection of the [writer](Self::writer) has SQLite's query planner stability guarantee: no plan depends on
    /// bound values.
    ///
    /// # Errors
    /// The database cannot be opened or is in memory, or its tables cannot be created.
    pub fn open_with(
        path: impl AsRef<Path>,
        set_up: impl FnOnce(&Connection) -> rusqlite::Result<()>,
    ) -> Result<Self, SqliteError> {
        Self::open_at(path, set_up, Clock::of_the_machine())
    }

    fn open_at(
        path: impl AsRef<Path>,
        set_up: impl FnOnce(&Connection) -> rusqlite::Result<()>,
        clock: Clock,
    ) -> Result<Self, SqliteError> {
        let mut file = None;
        let writer = Writer::open(path, |connection| {
            file = connection.path().map(PathBuf::from);
            keep_statements(connection)?;
            Self::create_tables(connection)?;
            set_up(connection)
        })?;
        let file = file.filter(|file| !file.as_os_str().is_empty());
        Ok(Self {
            readers: Arc::new(Readers::new(file.ok_or(SqliteError::NotAFile)?)),
            writer,
            queued: Arc::new(Semaphore::new(MAX_QUEUED_BYTES)),
            clock: Arc::new(clock),
            hints: hints::channel(),
        })
    }

    /// Creates the tables or upgrades those of an earlier version, all or nothing, for your own connection, before
    /// [`enqueue_in`](Self::enqueue_in). [`open`](Self::open) calls it. Any number of processes may do so concurrently.
    ///
    /// # Errors
    /// The database refuses; or it has the tables of a later version, which hold the messages; or views, triggers or
    /// foreign keys depend on a table that must be recreated. Then nothing is changed.
    pub fn create_tables(connection: &Connection) -> rusqlite::Result<()> {
        schema::create(connection)
    }

    /// Enqueues messages in the caller's transaction, so that they are committed together with the caller's data: in
    /// work for the [writer](Self::writer), or with any connection to the database. It enqueues all or none; after an
    /// error the transaction continues without them. Call [`hint`](Self::hint) after the commit.
    ///
    /// # Errors
    /// See [`Store::enqueue`].
    pub fn enqueue_in(
        connection: &Connection,
        messages: &[NewMessage],
    ) -> Result<Vec<Enqueued>, EnqueueError<SqliteError>> {
        within(connection, |now| {
            Ok(enqueue::enqueue(connection, now, messages)?.0)
        })
    }

    /// Publishes events in the caller's transaction, as [`enqueue_in`](Self::enqueue_in) enqueues messages. The
    /// messages for all subscribed endpoints are committed together with the caller's data.
    ///
    /// ```
    /// use relent_outbox::endpoint::Endpoint;
    /// use relent_outbox::message::NewEvent;
    /// use relent_outbox::store::{Sqlite, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// let store = Sqlite::open(directory.path().join("shop.db"))?;
    /// for name in ["billing", "warehouse"] {
    ///     let endpoint = Endpoint::new(name, format!("https://{name}.example/notify"));
    ///     store.put_endpoint(endpoint.topics(["order.*"])).await?;
    /// }
    /// let published = store.writer().run(|connection| {
    ///     let event = NewEvent::new("order.paid", "order-17-paid", r#"{"order":17}"#);
    ///     Sqlite::publish_in(connection, &[event])
    /// });
    /// let published = published.await?;
    /// let endpoints: Vec<_> = published[0].iter().map(|(name, _)| name.as_str()).collect();
    /// assert_eq!(endpoints, ["billing", "warehouse"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`Store::publish`].
    pub fn publish_in(
        connection: &Connection,
        events: &[NewEvent],
    ) -> Result<Vec<Published>, EnqueueError<SqliteError>> {
        within(connection, |now| {
            Ok(enqueue::publish(connection, now, events)?.0)
        })
    }

    /// Notifies the workers of this store that messages were enqueued by [`enqueue_in`](Self::enqueue_in). Without it
    /// they find them at their next poll.
    pub fn hint(&self) {
        self.tell(Hinted::Anything);
    }

    fn tell(&self, hinted: Hinted) {
        // It fails if there is no worker.
        drop(self.hints.send(hinted));
    }

    /// The writer of the database.
    #[must_use]
    pub const fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Runs the closure in a transaction of the writer, with the current time.
    async fn write<T: Send + 'static, E: From<WriterError> + Send + 'static>(
        &self,
        work: impl FnOnce(&Connection, i64) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let clock = Arc::clone(&self.clock);
        let work = move |connection: &Connection| work(connection, clock.now());
        self.writer.run(work).await
    }

    /// Like [`write`](Self::write), for a job that holds this number of bytes. While the disk hangs, the queue keeps jobs
    /// whose callers no longer wait, so further ones wait for room.
    async fn write_sized<T: Send + 'static, E: From<WriterError> + Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&Connection, i64) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let bytes = u32::try_from(bytes.min(MAX_QUEUED_BYTES)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.queued).acquire_many_owned(bytes).await;
        let room = room.map_err(|_| WriterError::Ended)?;
        self.write(move |connection, now| {
            let _room = room;
            work(connection, now)
        })
        .await
    }

    /// Runs the closure on committed data for an operator, with the current time.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection, i64) -> Result<T, SqliteError> + Send + 'static,
    ) -> Result<T, SqliteError> {
        self.read_with(&self.readers.for_operators, work).await
    }

    /// Runs the closure on committed data for a worker, with the current time.
    async fn read_for_worker<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection, i64) -> Result<T, SqliteError> + Send + 'static,
    ) -> Result<T, SqliteError> {
        self.read_with(&self.readers.for_workers, work).await
    }

    async fn read_with<T: Send + 'static>(
        &self,
        free: &Arc<Semaphore>,
        work: impl FnOnce(&Connection, i64) -> Result<T, SqliteError> + Send + 'static,
    ) -> Result<T, SqliteError> {
        let (readers, clock) = (Arc::clone(&self.readers), Arc::clone(&self.clock));
        let free = Arc::clone(free).acquire_owned().await;
        let free = free.map_err(|_| WriterError::Ended)?;
        let read = spawn_blocking(move || {
            let _free = free;
            readers.read(|connection| work(connection, clock.now()))
        });
        read.await.map_err(|_| WriterError::Ended)?
    }
}

/// Runs the closure within the caller's transaction, which continues without its changes if it fails.
fn within<T>(
    connection: &Connection,
    work: impl FnOnce(i64) -> Result<T, EnqueueError<SqliteError>>,
) -> Result<T, EnqueueError<SqliteError>> {
    let run = |statement| connection.prepare_cached(statement)?.execute([]);
    run("SAVEPOINT relent_enqueue")?;
    let done = work(micros(SystemTime::now()));
    if done.is_err() {
        run("ROLLBACK TO relent_enqueue")?;
    }
    run("RELEASE relent_enqueue")?;
    done
}

/// Keeps all statements prepared: there are fewer than 64. Disables re-preparation for other values, which SQLite would
/// do at nearly each run of some.
fn keep_statements(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(64);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// The bytes that jobs for the writer hold at most: 64 MiB.
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// The largest number of concurrent readers for operators, and for workers: a list of many messages takes long, and
/// must delay no attempt. Reads do not block writes.
const OPERATOR_READERS: usize = 4;
const WORKER_READERS: usize = 2;

/// Read-only connections.
#[derive(Debug)]
struct Readers {
    file: PathBuf,
    idle: Mutex<Vec<Connection>>,
    for_operators: Arc<Semaphore>,
    for_workers: Arc<Semaphore>,
}

impl Readers {
    fn new(file: PathBuf) -> Self {
        Self {
            file,
            idle: Mutex::default(),
            for_operators: Arc::new(Semaphore::new(OPERATOR_READERS)),
            for_workers: Arc::new(Semaphore::new(WORKER_READERS)),
        }
    }

    /// Reads a consistent snapshot.
    fn read<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, SqliteError>,
    ) -> Result<T, SqliteError> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = idle().pop();
        let connection = match connection {
            Some(connection) => connection,
            None => {
                let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
                let connection = Connection::open_with_flags(&self.file, flags)?;
                connection.busy_timeout(Duration::from_secs(5))?;
                keep_statements(&connection)?;
                connection
            }
        };
        let transaction = connection.unchecked_transaction()?;
        let read = work(&transaction)?;
        transaction.commit()?;
        // A connection that failed is not reused.
        idle().push(connection);
        Ok(read)
    }
}

impl Store for Sqlite {
    type Error = SqliteError;

    async fn enqueue(
        &self,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Enqueued>, EnqueueError<SqliteError>> {
        let bytes = messages.iter().map(NewMessage::held_bytes).sum();
        let enqueue = self.write_sized(bytes, move |connection, now| {
            enqueue::enqueue(connection, now, &messages)
        });
        let (enqueued, hinted) = enqueue.await?;
        if let Some(hinted) = hinted {
            self.tell(hinted);
        }
        Ok(enqueued)
    }

    async fn publish(
        &self,
        events: Vec<NewEvent>,
    ) -> Result<Vec<Published>, EnqueueError<SqliteError>> {
        let bytes = events.iter().map(NewEvent::held_bytes).sum();
        let publish = self.write_sized(bytes, move |connection, now| {
            enqueue::publish(connection, now, &events)
        });
        let (published, hinted) = publish.await?;
        if let Some(hinted) = hinted {
            self.tell(hinted);
        }
        Ok(published)
    }

    fn hints(&self) -> Hints {
        Hints::of(self.hints.subscribe())
    }

    async fn heartbeat(
        &self,
        worker: &str,
        lease: Duration,
        able: bool,
    ) -> Result<Heartbeat, SqliteError> {
        let worker = worker.to_owned();
        let heartbeat = self
            .write(move |connection, now| work::heartbeat(connection, now, &worker, lease, able));
        let heartbeat = heartbeat.await?;
        // In a task of its own: a late heartbeat is dropped, and the correction of many messages may take longer.
        let store = self.clone();
        let corrected = tokio::spawn(async move { store.correct_times().await });
        corrected.await.map_err(|_| WriterError::Ended)??;
        Ok(heartbeat)
    }

    async fn find_work(
        &self,
        worker: &str,
        within: Duration,
        most: usize,
    ) -> Result<Vec<EndpointWork>, SqliteError> {
        let worker = worker.to_owned();
        self.read_for_worker(move |connection, now| {
            work::find(connection, now, &worker, within, most)
        })
        .await
    }

    async fn acquire(
        &self,
        worker: &str,
        endpoints: Vec<i64>,
    ) -> Result<Vec<OwnedEndpoint>, SqliteError> {
        let worker = worker.to_owned();
        self.write(move |connection, now| work::acquire(connection, now, &worker, &endpoints))
            .await
    }

    async fn release(&self, worker: &str, endpoints: Vec<(i64, Fence)>) -> Result<(), SqliteError> {
        let worker = worker.to_owned();
        self.write(move |connection, _| work::release(connection, &worker, &endpoints))
            .await
    }

    async fn claim(&self, worker: &str, wanted: Vec<ClaimRequest>) -> Result<Claims, SqliteError> {
        let worker = worker.to_owned();
        self.write(move |connection, now| claim::claim(connection, now, &worker, &wanted))
            .await
    }

    async fn confirm(
        &self,
        worker: &str,
        attempts: Vec<ConfirmRequest>,
    ) -> Result<Vec<Option<Bytes>>, SqliteError> {
        let worker = worker.to_owned();
        self.read_for_worker(move |connection, _| claim::confirm(connection, &worker, &attempts))
            .await
    }

    async fn settle(&self, settled: Vec<Settled>) -> Result<Vec<bool>, SqliteError> {
        self.write(move |connection, now| settle::settle(connection, now, &settled))
            .await
    }

    async fn put_endpoint(&self, endpoint: Endpoint) -> Result<(), SqliteError> {
        let bytes = endpoint.held_bytes();
        let put = self.write_sized(bytes, move |connection, _| {
            operate::put_endpoint(connection, &endpoint)
        });
        let runs = put.await?;
        self.hint();
        end_of_grants(runs).await;
        Ok(())
    }

    async fn replace_endpoint(
        &self,
        endpoint: Endpoint,
        revision: Option<i64>,
    ) -> Result<bool, SqliteError> {
        let bytes = endpoint.held_bytes();
        let replace = self.write_sized(bytes, move |connection, _| {
            operate::replace_endpoint(connection, &endpoint, revision)
        });
        let replaced = replace.await?;
        self.hint();
        end_of_grants(replaced == Some(true)).await;
        Ok(replaced.is_some())
    }

    async fn delete_endpoint(
        &self,
        tenant: &str,
        name: &str,
        discard: bool,
    ) -> Result<Deletion, SqliteError> {
        self.delete_all(tenant, name, discard).await
    }

    async fn endpoint(
        &self,
        tenant: &str,
        name: &str,
    ) -> Result<Option<EndpointStatus>, SqliteError> {
        let (tenant, name) = (tenant.to_owned(), name.to_owned());
        self.read(move |connection, now| read::endpoint(connection, now, &tenant, &name))
            .await
    }

    async fn endpoints(
        &self,
        after: Option<(String, String)>,
        most: usize,
    ) -> Result<Vec<EndpointStatus>, SqliteError> {
        self.read(move |connection, now| read::endpoints(connection, now, after, most))
            .await
    }

    async fn set_activity(
        &self,
        tenant: &str,
        name: &str,
        activity: Activity,
        reason: &str,
    ) -> Result<bool, SqliteError> {
        let (tenant, name, reason) = (tenant.to_owned(), name.to_owned(), reason.to_owned());
        let set = self.write(move |connection, _| {
            operate::set_activity(connection, &tenant, &name, activity, &reason)
        });
        let set = set.await?;
        self.hint();
        end_of_grants(set == Some(true) && activity == Activity::Disabled).await;
        Ok(set.is_some())
    }

    async fn key_check(&self) -> Result<Option<String>, SqliteError> {
        self.read(|connection, _| read::key_check(connection)).await
    }

    async fn replace_key_check(
        &self,
        check: String,
        before: Option<String>,
    ) -> Result<bool, SqliteError> {
        self.write(move |connection, _| {
            operate::replace_key_check(connection, &check, before.as_deref())
        })
        .await
    }

    async fn endpoints_needing_attention(
        &self,
        most: usize,
    ) -> Result<Vec<EndpointStatus>, SqliteError> {
        self.read(move |connection, now| read::needing_attention(connection, now, most))
            .await
    }

    async fn recent(&self, tenant: &str, name: &str) -> Result<Option<Recent>, SqliteError> {
        let (tenant, name) = (tenant.to_owned(), name.to_owned());
        self.read(move |connection, now| read::recent(connection, now, &tenant, &name))
            .await
    }

    async fn messages(
        &self,
        filter: Filter,
        most: usize,
    ) -> Result<Vec<MessageStatus>, SqliteError> {
        self.read(move |connection, _| read::messages(connection, &filter, most))
            .await
    }

    async fn attempts(&self, id: &MessageId) -> Result<Vec<AttemptRecord>, SqliteError> {
        let id = id.clone();
        self.read(move |connection, _| read::attempts(connection, &id))
            .await
    }

    async fn content(&self, id: &MessageId) -> Result<Option<Content>, SqliteError> {
        let id = id.clone();
        self.read(move |connection, _| read::content(connection, &id))
            .await
    }

    async fn send_now(&self, filter: Filter) -> Result<u64, SqliteError> {
        let due = self.change_all(filter, operate::send_now, i64::MAX).await?;
        self.hint();
        Ok(due)
    }

    async fn resend(&self, filter: Filter) -> Result<u64, SqliteError> {
        let ended_by = self
            .read(|connection, _| read::latest_end(connection))
            .await?;
        let resent = self.change_all(filter, operate::resend, ended_by).await?;
        self.hint();
        Ok(resent)
    }

    async fn cancel(&self, filter: Filter) -> Result<u64, SqliteError> {
        let cancelled = self.change_all(filter, operate::cancel, i64::MAX).await?;
        self.hint();
        Ok(cancelled)
    }

    async fn purge(&self, age: Duration, most: usize) -> Result<u64, SqliteError> {
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        let rows = move |connection: &Connection, now| read::purgeable(connection, now - age, most);
        let rows = self.read(rows).await?;
        let mut purged = 0;
        for batch in rows.chunks(MAX_TRANSACTION_ROWS) {
            let batch = batch.to_vec();
            purged += self
                .write(move |connection, now| operate::purge(connection, now - age, &batch))
                .await?;
        }
        Ok(purged)
    }

    async fn summary(&self) -> Result<Summary, SqliteError> {
        self.read(read::summary).await
    }
}

#[cfg(test)]
mod tests;
