//! One writer for an SQLite database: a thread that commits what has come together at once.
//!
//! SQLite takes one transaction at a time, and a durable commit waits for the disk. So whoever has something to
//! write hands it to the thread, which does all that has come meanwhile in one transaction, each in a
//! savepoint of its own: a hundred writers wait for one commit and not for a hundred. Nobody hears of what is
//! not committed.

use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, Savepoint, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

/// The most that is done in one transaction, so that the first need not wait for all.
const MOST: usize = 256;
/// So many may wait for the thread; more wait for a place.
const QUEUE: usize = 4096;
/// How long another process may hold the database.
const BUSY: Duration = Duration::from_secs(5);

/// Writes into an SQLite database, together with others: see the [module](self). Its clones are the same
/// writer. The thread ends when the last of them is gone and all is written.
#[derive(Clone, Debug)]
pub struct Writer {
    jobs: mpsc::Sender<Job>,
}

/// Something to be written, in this savepoint; or it hears that there is no transaction for it.
type Job = Box<dyn FnOnce(Result<&mut Savepoint<'_>, &Failed>) -> Option<Reply> + Send>;
/// Tells whoever waits that it is committed, or why it is not.
type Reply = Box<dyn FnOnce(Option<&Failed>) + Send>;
type Failed = Arc<rusqlite::Error>;

/// Why something is not written.
#[derive(Debug)]
#[non_exhaustive]
pub enum WriterError {
    /// The database refuses it.
    Sqlite(rusqlite::Error),
    /// The transaction could not be committed, with all that was in it.
    Commit(Arc<rusqlite::Error>),
    /// The thread has ended.
    Ended,
}

impl fmt::Display for WriterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(error) => write!(f, "SQLite: {error}"),
            Self::Commit(error) => write!(f, "SQLite could not commit: {error}"),
            Self::Ended => f.write_str("the thread that writes into SQLite has ended"),
        }
    }
}

impl Error for WriterError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // The text of the error itself is in this one.
        match self {
            Self::Sqlite(error) => error.source(),
            Self::Commit(error) => error.source(),
            Self::Ended => None,
        }
    }
}

impl From<rusqlite::Error> for WriterError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl Writer {
    /// Opens the database, which is made if it is not there, and begins the thread. `set_up` makes the tables. The
    /// journal is a write-ahead log, and what is committed outlives a loss of power
    /// (`synchronous = FULL`).
    ///
    /// # Errors
    /// The database cannot be opened or set up.
    pub fn open(
        path: impl AsRef<Path>,
        set_up: impl FnOnce(&Connection) -> rusqlite::Result<()>,
    ) -> Result<Self, WriterError> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        set_up(&connection)?;
        let (jobs, queue) = mpsc::channel(QUEUE);
        thread::Builder::new()
            .name("relent-sqlite".to_owned())
            .spawn(move || write(connection, queue))
            .map_err(|_| WriterError::Ended)?;
        Ok(Self { jobs })
    }

    /// Does this in a transaction, and returns when it is committed. What returns an error is rolled back, and
    /// nothing else with it.
    ///
    /// Once it is begun it is done, also if the future is dropped.
    ///
    /// A panic of the work goes on in whoever waits for it.
    ///
    /// # Errors
    /// That of the work, or of the database. After [`WriterError::Commit`] nothing of it is there.
    pub async fn run<T, E>(
        &self,
        work: impl FnOnce(&Savepoint<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<WriterError> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move |savepoint| {
            let savepoint = match savepoint {
                Ok(savepoint) => savepoint,
                Err(failed) => {
                    // Nobody may wait any more, here and below.
                    drop(sender.send(Ok(Err(commit_error(failed)))));
                    return None;
                }
            };
            let mut result = catch_unwind(AssertUnwindSafe(|| work(savepoint)));
            let done = matches!(result, Ok(Ok(_)));
            if !done && let Err(error) = savepoint.rollback() {
                result = Ok(Err(WriterError::from(error).into()));
            }
            Some(Box::new(move |failed| {
                let result = match failed {
                    Some(failed) if done => Ok(Err(commit_error(failed))),
                    // What was rolled back stays so.
                    _ => result,
                };
                drop(sender.send(result));
            }))
        });
        if self.jobs.send(job).await.is_err() {
            return Err(WriterError::Ended.into());
        }
        match receiver.await {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => Err(WriterError::Ended.into()),
        }
    }
}

fn commit_error<E: From<WriterError>>(failed: &Failed) -> E {
    WriterError::Commit(Arc::clone(failed)).into()
}

/// The thread.
fn write(mut connection: Connection, mut queue: mpsc::Receiver<Job>) {
    let mut jobs = Vec::with_capacity(MOST);
    while queue.blocking_recv_many(&mut jobs, MOST) > 0 {
        let mut replies = Vec::with_capacity(jobs.len());
        let committed = transaction(&mut connection, &mut jobs, &mut replies);
        let failed = committed.err().map(Arc::new);
        for reply in replies {
            reply(failed.as_ref());
        }
        // What is left had no transaction.
        for job in jobs.drain(..) {
            if let Some(failed) = &failed {
                job(Err(failed));
            }
        }
    }
}

fn transaction(
    connection: &mut Connection,
    jobs: &mut Vec<Job>,
    replies: &mut Vec<Reply>,
) -> rusqlite::Result<()> {
    let mut transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // In the order in which they came, from the end.
    jobs.reverse();
    while !jobs.is_empty() {
        let mut savepoint = transaction.savepoint()?;
        replies.extend(jobs.pop().and_then(|job| job(Ok(&mut savepoint))));
        savepoint.commit()?;
    }
    transaction.commit()
}
