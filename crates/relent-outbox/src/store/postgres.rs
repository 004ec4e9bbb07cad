//! Outbox in a PostgreSQL database.

/// Runs statements in a transaction, with a time limit.
macro_rules! transact {
    ($store:expr, $transaction:ident => $work:expr) => {{
        let mut checkout = relent_server::postgres::Checkout::new($store.max_wait);
        let client = &*checkout.connect(&$store.pool).await?;
        let done = timeout($store.max_wait, async {
            let begun = Transaction::new(client);
            let $transaction = &begun;
            let done = $work.await?;
            begun.commit().await?;
            Ok(done)
        });
        let done = done.await;
        checkout.in_time(done)
    }};
}

/// Runs read statements, with a time limit.
macro_rules! read {
    ($store:expr, $client:ident => $work:expr) => {{
        let mut checkout = relent_server::postgres::Checkout::new($store.max_wait);
        let $client = &*checkout.connect(&$store.pool).await?;
        let done = timeout($store.max_wait, $work).await;
        checkout.in_time(done)
    }};
}

mod batches;
mod driver;
mod enqueue;
mod error;
mod operate;
mod read;
mod transaction;
mod values;
mod work;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use relent_server::postgres::{Pool, Transaction as CallerTransaction, missing};
use tokio::sync::broadcast;
use tokio::time::{sleep, timeout};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Config, Socket};

pub use self::error::PostgresError;
use self::transaction::Transaction;
use super::hints;
use super::{
    AttemptRecord, ClaimRequest, Claims, ConfirmRequest, Content, Deletion, EndpointStatus,
    EndpointWork, EnqueueError, Enqueued, Fence, Filter, Heartbeat, Hinted, Hints, MessageStatus,
    OwnedEndpoint, Published, Recent, Settled, Store, Summary, end_of_grants,
};
use crate::endpoint::{Activity, Endpoint};
use crate::message::{MessageId, NewEvent, NewMessage};

/// An outbox in a PostgreSQL database: durable, for producers and workers on many machines.
///
/// ```no_run
/// use relent_outbox::message::NewMessage;
/// use relent_outbox::store::Postgres;
///
/// # async fn service() -> Result<(), Box<dyn std::error::Error>> {
/// let config = "host=/run/postgresql user=shop dbname=shop";
/// let pool = relent_server::postgres::pool(config, 16)?;
/// let store = Postgres::new(pool.clone()).listen(config.parse()?, tokio_postgres::NoTls);
/// store.create_tables().await?;
///
/// // The order and the message, or neither.
/// let mut client = pool.get().await?;
/// let transaction = client.transaction().await?;
/// transaction.execute("UPDATE orders SET paid = true WHERE id = 17", &[]).await?;
/// let message = NewMessage::new("shop", "order-17-paid", r#"{"order":17}"#);
/// Postgres::enqueue_in(&transaction, &[message]).await?;
/// transaction.commit().await?;
/// store.hint().await;
/// # Ok(())
/// # }
/// ```
///
/// Each method is a short transaction with the isolation level read committed; the clock is that of the database.
/// Producers and workers do not block each other.
///
/// Confirmed writes survive a crash of the database, unless `synchronous_commit` is `off`. They survive a failover if
/// the replica that takes over is synchronous.
#[derive(Clone)]
pub struct Postgres {
    pool: Pool,
    max_wait: Duration,
    hints: Arc<broadcast::Sender<Hinted>>,
}

/// The notification channel of hints.
const CHANNEL: &str = "relent_outbox";
/// The pause of a listener before it connects again.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);
/// The interval at which a listener repeats its statement, to detect a dead connection.
const LISTEN_INTERVAL: Duration = Duration::from_secs(10);
/// The time limit for each of its statements, and for each address to which it connects.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit for its connection: a resolver asks its second server after 5 s, and there may be several hosts.
const LISTEN_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Takes a lock, so that processes that start concurrently do not conflict.
const LOCK_CREATION: &str = "SELECT pg_advisory_xact_lock(7308604797129747)";
/// Finds tables of a later version: the number in table names is the version of their content.
const FIND_LATER_TABLES: &str = "SELECT coalesce(string_agg(tablename, ', '), '') FROM pg_tables
    WHERE schemaname = ANY(current_schemas(false)) AND substring(tablename FROM '^relent_delivery_([0-9]{1,9})$')::integer > 1";

/// Finds a table of an earlier version, without this column.
const LACKS: &str = "SELECT NOT EXISTS (SELECT FROM pg_attribute
    WHERE attrelid = $1::text::regclass AND attname = $2 AND NOT attisdropped)";
/// The columns that were added to tables, with their definitions.
const ADDED: [(&str, &str, &str); 2] = [
    ("relent_delivery_1", "started", "bigint NOT NULL DEFAULT 0"),
    ("relent_worker_1", "able", "boolean NOT NULL DEFAULT true"),
];

impl Postgres {
    /// The SQL of the tables, for your own migrations instead of [`create_tables`](Self::create_tables). A version with
    /// other tables gives them another number, and leaves these unchanged.
    ///
    /// Data written once is separate from data that changes with each attempt. The latter table is narrow, leaves free
    /// space in its pages for new row versions, and is vacuumed early, because dead rows slow a queue down.
    pub const TABLES: &str = r#"
        CREATE TABLE IF NOT EXISTS relent_endpoint_1 (
            id         bigint   NOT NULL PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
            tenant     text     NOT NULL COLLATE "C",
            name       text     NOT NULL COLLATE "C",
            spec       text     NOT NULL,             -- JSON
            revision   bigint   NOT NULL DEFAULT 1,   -- of spec
            on_dead_letter smallint NOT NULL,             -- 0 block, 1 skip
            activity   smallint NOT NULL DEFAULT 0,   -- 0 active, 1 disabled
            reason     text     NOT NULL DEFAULT '',
            health     bytea    NOT NULL DEFAULT '',
            owner      text     NOT NULL DEFAULT '' COLLATE "C",  -- a worker; empty for none
            fence      bigint   NOT NULL DEFAULT 0,
            UNIQUE (tenant, name)
        ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
        CREATE INDEX IF NOT EXISTS relent_endpoint_1_owner ON relent_endpoint_1 (owner) WHERE activity = 0;
        CREATE TABLE IF NOT EXISTS relent_worker_1 (
            id    text   NOT NULL PRIMARY KEY COLLATE "C",
            until bigint NOT NULL,                    -- of its lease; as all times in microseconds since 1970
            able  boolean NOT NULL DEFAULT true       -- to make attempts
        ) WITH (fillfactor = 50);
        CREATE TABLE IF NOT EXISTS relent_message_1 (
            row          bigint NOT NULL PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY,
            id           text   NOT NULL UNIQUE COLLATE "C",
            endpoint     bigint NOT NULL,
            event        text   NOT NULL COLLATE "C",
            topic        text   NOT NULL,
            content_type text   NOT NULL,
            payload      bytea  NOT NULL,
            created      bigint NOT NULL,
            UNIQUE (endpoint, event)
        );
        CREATE TABLE IF NOT EXISTS relent_delivery_1 (
            row       bigint   NOT NULL PRIMARY KEY,  -- that of the message
            endpoint  bigint   NOT NULL,
            state     smallint NOT NULL DEFAULT 0,    -- 0 pending, 1 running, 2 delivered, 3 dead, 4 cancelled, 5 behind another
            due       bigint   NOT NULL,
            fence     bigint   NOT NULL DEFAULT 0,
            attempt   bigint   NOT NULL DEFAULT 0,
            session   bytea    NOT NULL DEFAULT '',
            began     bigint   NOT NULL,
            ended     bigint,
            order_key text     COLLATE "C",
            reason    text     NOT NULL DEFAULT '',
            started   bigint   NOT NULL DEFAULT 0     -- of its latest attempt
        ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
            autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 1);
        CREATE INDEX IF NOT EXISTS relent_delivery_1_due ON relent_delivery_1 (endpoint, due, row) WHERE state = 0;
        CREATE INDEX IF NOT EXISTS relent_delivery_1_running ON relent_delivery_1 (endpoint, fence) WHERE state = 1;
        CREATE INDEX IF NOT EXISTS relent_delivery_1_dead ON relent_delivery_1 (endpoint) WHERE state = 3;
        CREATE INDEX IF NOT EXISTS relent_delivery_1_behind ON relent_delivery_1 (endpoint) WHERE state = 5;
        CREATE INDEX IF NOT EXISTS relent_delivery_1_order ON relent_delivery_1 (endpoint, order_key, state, row)
            WHERE order_key IS NOT NULL;
        CREATE INDEX IF NOT EXISTS relent_delivery_1_ended ON relent_delivery_1 (ended) WHERE ended IS NOT NULL;
        CREATE TABLE IF NOT EXISTS relent_attempt_1 (
            id      bigint   NOT NULL PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
            row     bigint   NOT NULL,
            number  bigint   NOT NULL,
            began   bigint   NOT NULL,                -- in milliseconds since 1970, as the worker says
            took    bigint   NOT NULL,                -- in milliseconds
            status  integer,
            error   text     NOT NULL,
            excerpt text     NOT NULL,
            address text     NOT NULL,
            request  text    NOT NULL DEFAULT '',     -- header fields as they may be seen
            response text    NOT NULL DEFAULT ''
        );
        CREATE INDEX IF NOT EXISTS relent_attempt_1_row ON relent_attempt_1 (row, id);
        CREATE TABLE IF NOT EXISTS relent_key_1 (
            one     boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (one),
            checked text    NOT NULL                  -- by which a key is known to be that of this outbox
        );
        CREATE TABLE IF NOT EXISTS relent_subscription_1 (
            tenant   text   NOT NULL COLLATE "C",
            pattern  text   NOT NULL COLLATE "C",
            endpoint bigint NOT NULL,
            PRIMARY KEY (tenant, pattern, endpoint)
        );
        CREATE INDEX IF NOT EXISTS relent_subscription_1_endpoint ON relent_subscription_1 (endpoint);
    "#;

    /// The SQL statement that makes all [listening](Self::listen) workers look for work, like [`hint`](Self::hint), for
    /// your own connection. Do not run it in the transaction that enqueues: it would block other commits.
    pub const HINT: &str = "SELECT pg_notify('relent_outbox', '')";

    /// Creates an outbox in the database of this pool. The tables must exist.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self {
            pool,
            max_wait: Duration::from_secs(5),
            hints: Arc::new(hints::channel()),
        }
    }

    /// Sets the time limit of a connection or a transaction of this store: 5 s by default. After that it returns an
    /// error, and closes the connection.
    #[must_use]
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// Listens, with a connection of its own, for hints of other processes, and forwards them to
    /// [`hints`](Store::hints). A closed connection is replaced after a second, and one that is lost without notice
    /// within about 20 s; hints in between are lost. A pooler must keep the session: in transaction mode, PgBouncer
    /// passes no notifications. Needs a tokio runtime. It ends with the last clone of this store.
    #[must_use]
    pub fn listen<T>(self, config: Config, tls: T) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as tokio_postgres::tls::TlsConnect<Socket>>::Future: Send,
    {
        let hints = Arc::downgrade(&self.hints);
        tokio::spawn(async move {
            while hints.upgrade().is_some() {
                // The error is of no use: workers also poll.
                drop(listen(&config, tls.clone(), &hints).await);
                sleep(RECONNECT_PAUSE).await;
            }
        });
        self
    }

    /// The connection pool.
    #[must_use]
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Creates the tables if they do not exist, and upgrades those of an earlier version. Any number of processes may do so concurrently.
    ///
    /// # Errors
    /// The database refuses, or cannot be reached; or it has the tables of a later version, which hold the messages.
    pub async fn create_tables(&self) -> Result<(), PostgresError> {
        transact!(self, transaction => async {
            transaction.batch_execute(LOCK_CREATION).await?;
            let later = transaction.prepare_cached(FIND_LATER_TABLES).await?;
            let later: String = transaction.query_one(&later, &[]).await?.try_get(0)?;
            if !later.is_empty() {
                return Err(PostgresError::Stored(super::later_tables(&later)));
            }
            // Additions wait for running transactions like creations.
            let missing = transaction.prepare_cached(&missing(Self::TABLES)).await?;
            if transaction.query_opt(&missing, &[]).await?.is_some() {
                transaction.batch_execute(Self::TABLES).await?;
            }
            let lacks = transaction.prepare_cached(LACKS).await?;
            for (table, column, definition) in ADDED {
                let lacks = transaction.query_one(&lacks, &[&table, &column]).await?;
                if lacks.try_get(0)? {
                    let add = format!("ALTER TABLE {table} ADD COLUMN {column} {definition}");
                    transaction.batch_execute(&add).await?;
                }
            }
            Ok(())
        })
    }

    /// Enqueues messages in the caller's transaction, so that they are committed together with the caller's data. It
    /// enqueues all or none; if a message is refused, the transaction continues without them. If the future is dropped
    /// before its end, roll the transaction back: it may contain a part of them. Call [`hint`](Self::hint) after the
    /// commit.
    ///
    /// A transaction that enqueues an event blocks only others that enqueue the same event for the same endpoint.
    ///
    /// # Errors
    /// See [`Store::enqueue`].
    pub async fn enqueue_in(
        transaction: &CallerTransaction<'_>,
        messages: &[NewMessage],
    ) -> Result<Vec<Enqueued>, EnqueueError<PostgresError>> {
        enqueue::enqueue_in(&mut &*transaction, messages).await
    }

    /// Enqueues messages in a transaction of sqlx, as [`enqueue_in`](Self::enqueue_in) does. Its `PgPool` is
    /// independent of the store's: [`TABLES`](Self::TABLES) and [`HINT`](Self::HINT) work with any connection.
    ///
    /// ```no_run
    /// use relent_outbox::message::NewMessage;
    /// use relent_outbox::store::Postgres;
    ///
    /// # async fn pay(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// // The order and the message, or neither.
    /// let mut transaction = pool.begin().await?;
    /// sqlx::query("UPDATE orders SET paid = true WHERE id = 17").execute(&mut *transaction).await?;
    /// let message = NewMessage::new("shop", "order-17-paid", r#"{"order":17}"#);
    /// Postgres::enqueue_in_sqlx(&mut transaction, &[message]).await?;
    /// transaction.commit().await?;
    /// // Optional: workers poll every second; this makes them look immediately.
    /// sqlx::query(Postgres::HINT).execute(&pool).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`Store::enqueue`].
    #[cfg(feature = "sqlx")]
    pub async fn enqueue_in_sqlx(
        transaction: &mut relent_server::postgres::SqlxTransaction<'_>,
        messages: &[NewMessage],
    ) -> Result<Vec<Enqueued>, EnqueueError<PostgresError>> {
        enqueue::enqueue_in(&mut **transaction, messages).await
    }

    /// Publishes events in the caller's transaction, as [`enqueue_in`](Self::enqueue_in) enqueues messages. The
    /// messages for all subscribed endpoints are committed together with the caller's data.
    ///
    /// # Errors
    /// See [`Store::publish`].
    pub async fn publish_in(
        transaction: &CallerTransaction<'_>,
        events: &[NewEvent],
    ) -> Result<Vec<Published>, EnqueueError<PostgresError>> {
        enqueue::publish_in(&mut &*transaction, events).await
    }

    /// Publishes events in a transaction of sqlx: see [`enqueue_in_sqlx`](Self::enqueue_in_sqlx).
    ///
    /// # Errors
    /// See [`Store::publish`].
    #[cfg(feature = "sqlx")]
    pub async fn publish_in_sqlx(
        transaction: &mut relent_server::postgres::SqlxTransaction<'_>,
        events: &[NewEvent],
    ) -> Result<Vec<Published>, EnqueueError<PostgresError>> {
        enqueue::publish_in(&mut **transaction, events).await
    }

    /// Notifies all [listening](Self::listen) workers that messages were enqueued by [`enqueue_in`](Self::enqueue_in).
    /// Without it, or if the database cannot be reached, workers find them at their next poll.
    pub async fn hint(&self) {
        tell(&self.hints, Hinted::Anything);
        let tell = async {
            read!(self, client => async {
                // In a transaction of its own, which writes nothing.
                let tell = client.prepare_cached(Self::HINT).await?;
                client.execute(&tell, &[]).await?;
                Ok::<_, PostgresError>(())
            })
        };
        drop(timeout(self.max_wait, tell).await);
    }

    /// Publishes events and notifies other processes. Returns the hint for this process, too.
    async fn publish_and_tell(
        &self,
        events: &[NewEvent],
    ) -> Result<(Vec<Published>, Option<Hinted>), EnqueueError<PostgresError>> {
        transact!(self, transaction => async {
            let (published, hinted) = enqueue::publish(&mut &*transaction, events).await?;
            if let Some(hinted) = &hinted {
                transaction.tell(hinted);
            }
            Ok::<_, EnqueueError<PostgresError>>((published, hinted))
        })
    }

    /// Notifies the workers of this process, and returns the result without the hint.
    fn notify_local<T>(
        &self,
        enqueued: Result<(T, Option<Hinted>), EnqueueError<PostgresError>>,
    ) -> Result<T, EnqueueError<PostgresError>> {
        let hinted = match &enqueued {
            Ok((_, hinted)) => hinted.clone(),
            Err(EnqueueError::Refused { .. }) => None,
            // It may have been written nevertheless.
            Err(EnqueueError::Store(_)) => Some(Hinted::Anything),
        };
        if let Some(hinted) = hinted {
            tell(&self.hints, hinted);
        }
        Ok(enqueued?.0)
    }

    /// Enqueues messages and notifies other processes. Returns the hint for this process, too.
    async fn enqueue_and_tell(
        &self,
        messages: &[NewMessage],
    ) -> Result<(Vec<Enqueued>, Option<Hinted>), EnqueueError<PostgresError>> {
        transact!(self, transaction => async {
            let (enqueued, hinted) = enqueue::enqueue(&mut &*transaction, messages).await?;
            if let Some(hinted) = &hinted {
                transaction.tell(hinted);
            }
            Ok::<_, EnqueueError<PostgresError>>((enqueued, hinted))
        })
    }
}

/// Sends a hint to this process. It fails if there is no worker.
fn tell(hints: &broadcast::Sender<Hinted>, hinted: Hinted) {
    drop(hints.send(hinted));
}

/// Forwards notifications, until the connection is lost or does not respond, or the store is gone.
async fn listen<T>(
    config: &Config,
    tls: T,
    hints: &Weak<broadcast::Sender<Hinted>>,
) -> Result<(), tokio_postgres::Error>
where
    T: MakeTlsConnect<Socket>,
    T::Stream: Send,
{
    let mut config = config.clone();
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(LISTEN_TIMEOUT);
    }
    let Ok(connected) = timeout(LISTEN_CONNECT_TIMEOUT, config.connect(tls)).await else {
        return Ok(());
    };
    let (client, mut connection) = connected?;
    let listen = async {
        let statement = format!("LISTEN {CHANNEL}");
        // A hint may have been sent before.
        let mut missed = Some(Hinted::Anything);
        // Repeated, because a gateway or proxy can lose a connection without closing it.
        while let Ok(done) = timeout(LISTEN_TIMEOUT, client.batch_execute(&statement)).await {
            done?;
            if let (Some(missed), Some(hints)) = (missed.take(), hints.upgrade()) {
                tell(&hints, missed);
            }
            sleep(LISTEN_INTERVAL).await;
        }
        Ok(())
    };
    let notify_local = async {
        while let Some(message) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(notified) = message? {
                let Some(hints) = hints.upgrade() else { break };
                tell(&hints, Hinted::read(notified.payload()));
            }
        }
        Ok(())
    };
    let gone = async {
        while hints.upgrade().is_some() {
            sleep(RECONNECT_PAUSE).await;
        }
        Ok(())
    };
    tokio::select! {
        ended = listen => ended,
        ended = notify_local => ended,
        ended = gone => ended,
    }
}

impl Store for Postgres {
    type Error = PostgresError;

    async fn enqueue(
        &self,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Enqueued>, EnqueueError<PostgresError>> {
        self.notify_local(self.enqueue_and_tell(&messages).await)
    }

    async fn publish(
        &self,
        events: Vec<NewEvent>,
    ) -> Result<Vec<Published>, EnqueueError<PostgresError>> {
        self.notify_local(self.publish_and_tell(&events).await)
    }

    fn hints(&self) -> Hints {
        Hints::of(self.hints.subscribe())
    }

    async fn heartbeat(
        &self,
        worker: &str,
        lease: Duration,
        able: bool,
    ) -> Result<Heartbeat, PostgresError> {
        transact!(self, transaction => work::heartbeat(transaction, worker, lease, able))
    }

    async fn find_work(
        &self,
        worker: &str,
        within: Duration,
        most: usize,
    ) -> Result<Vec<EndpointWork>, PostgresError> {
        transact!(self, transaction => work::find(transaction, worker, within, most))
    }

    async fn acquire(
        &self,
        worker: &str,
        endpoints: Vec<i64>,
    ) -> Result<Vec<OwnedEndpoint>, PostgresError> {
        transact!(self, transaction => work::acquire(transaction, worker, &endpoints))
    }

    async fn release(
        &self,
        worker: &str,
        endpoints: Vec<(i64, Fence)>,
    ) -> Result<(), PostgresError> {
        transact!(self, transaction => work::release(transaction, worker, &endpoints))
    }

    async fn claim(
        &self,
        worker: &str,
        wanted: Vec<ClaimRequest>,
    ) -> Result<Claims, PostgresError> {
        transact!(self, transaction => work::claim(transaction, worker, &wanted))
    }

    async fn confirm(
        &self,
        worker: &str,
        attempts: Vec<ConfirmRequest>,
    ) -> Result<Vec<Option<Bytes>>, PostgresError> {
        read!(self, client => work::confirm(client, worker, &attempts))
    }

    async fn settle(&self, settled: Vec<Settled>) -> Result<Vec<bool>, PostgresError> {
        transact!(self, transaction => work::settle(transaction, &settled))
    }

    async fn put_endpoint(&self, endpoint: Endpoint) -> Result<(), PostgresError> {
        let put: Result<_, PostgresError> =
            transact!(self, transaction => operate::put_endpoint(transaction, &endpoint));
        let runs = put?;
        self.hint().await;
        end_of_grants(runs).await;
        Ok(())
    }

    async fn replace_endpoint(
        &self,
        endpoint: Endpoint,
        revision: Option<i64>,
    ) -> Result<bool, PostgresError> {
        let replaced: Result<_, PostgresError> = transact!(
            self,
            transaction => operate::replace_endpoint(transaction, &endpoint, revision)
        );
        let replaced = replaced?;
        self.hint().await;
        end_of_grants(replaced == Some(true)).await;
        Ok(replaced.is_some())
    }

    async fn delete_endpoint(
        &self,
        tenant: &str,
        name: &str,
        discard: bool,
    ) -> Result<Deletion, PostgresError> {
        self.delete_all(tenant, name, discard).await
    }

    async fn endpoint(
        &self,
        tenant: &str,
        name: &str,
    ) -> Result<Option<EndpointStatus>, PostgresError> {
        read!(self, client => read::endpoint(client, tenant, name))
    }

    async fn endpoints(
        &self,
        after: Option<(String, String)>,
        most: usize,
    ) -> Result<Vec<EndpointStatus>, PostgresError> {
        read!(self, client => read::endpoints(client, after, most))
    }

    async fn set_activity(
        &self,
        tenant: &str,
        name: &str,
        activity: Activity,
        reason: &str,
    ) -> Result<bool, PostgresError> {
        let set: Result<_, PostgresError> = transact!(
            self,
            transaction => operate::set_activity(transaction, tenant, name, activity, reason)
        );
        let set = set?;
        self.hint().await;
        end_of_grants(set == Some(true) && activity == Activity::Disabled).await;
        Ok(set.is_some())
    }

    async fn key_check(&self) -> Result<Option<String>, PostgresError> {
        read!(self, client => read::key_check(client))
    }

    async fn replace_key_check(
        &self,
        check: String,
        before: Option<String>,
    ) -> Result<bool, PostgresError> {
        transact!(
            self,
            transaction => operate::replace_key_check(transaction, &check, before.as_deref())
        )
    }

    async fn endpoints_needing_attention(
        &self,
        most: usize,
    ) -> Result<Vec<EndpointStatus>, PostgresError> {
        read!(self, client => read::needing_attention(client, most))
    }

    async fn recent(&self, tenant: &str, name: &str) -> Result<Option<Recent>, PostgresError> {
        read!(self, client => read::recent(client, tenant, name))
    }

    async fn messages(
        &self,
        filter: Filter,
        most: usize,
    ) -> Result<Vec<MessageStatus>, PostgresError> {
        read!(self, client => read::messages(client, &filter, most))
    }

    async fn attempts(&self, id: &MessageId) -> Result<Vec<AttemptRecord>, PostgresError> {
        read!(self, client => read::attempts(client, id))
    }

    async fn content(&self, id: &MessageId) -> Result<Option<Content>, PostgresError> {
        read!(self, client => read::content(client, id))
    }

    async fn send_now(&self, filter: Filter) -> Result<u64, PostgresError> {
        let due = self
            .change_all(&filter, &operate::SEND_NOW, i64::MAX)
            .await?;
        self.hint().await;
        Ok(due)
    }

    async fn resend(&self, filter: Filter) -> Result<u64, PostgresError> {
        let ended_by: Result<i64, PostgresError> = read!(self, client => read::latest_end(client));
        let resent = self
            .change_all(&filter, &operate::RESEND, ended_by?)
            .await?;
        self.hint().await;
        Ok(resent)
    }

    async fn cancel(&self, filter: Filter) -> Result<u64, PostgresError> {
        let cancelled = self.change_all(&filter, &operate::CANCEL, i64::MAX).await?;
        self.hint().await;
        Ok(cancelled)
    }

    async fn purge(&self, age: Duration, most: usize) -> Result<u64, PostgresError> {
        self.purge_all(age, most).await
    }

    async fn summary(&self) -> Result<Summary, PostgresError> {
        read!(self, client => read::summary(client))
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("max_wait", &self.max_wait)
            .finish_non_exhaustive()
    }
}
