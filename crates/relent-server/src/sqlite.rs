//! A single writer thread for an SQLite database, which commits concurrent writes together (group commit).
//!
//! SQLite runs one write transaction at a time, and a durable commit waits for the disk. So writers send their jobs
//! to a thread. The thread runs all waiting jobs in one transaction, each in its own savepoint: a hundred writers
//! wait for one commit instead of a hundred. A job returns only after the commit.
//!
//! A savepoint has a cost: SQLite copies each page that is first changed within it. So this crate writes a record
//! with a single statement, outside the savepoint of the work. SQLite undoes a failed statement on its own.
//!
//! Only the thread commits. A job that ends the transaction is rolled back, and gets an error.

mod error;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, Statement};
use tokio::sync::{mpsc, oneshot, watch};

pub use error::{FileProblem, WriterError};

use crate::store::sqlite::Records;

/// The most jobs in one transaction, so that the first need not wait for all.
const MAX_JOBS_PER_TRANSACTION: usize = 256;
/// The most jobs in the queue; further writers wait for a place.
const MAX_QUEUED_JOBS: usize = 4096;
/// The longest wait for a lock that another process holds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// A handle to the writer thread of an SQLite database: see the [module](self). Clones share the thread, which ends
/// when the last one is dropped and all jobs are written.
#[derive(Clone, Debug)]
pub struct Writer {
    jobs: mpsc::Sender<Box<dyn Job>>,
    /// Its sender is dropped when the connection is closed.
    open: watch::Receiver<()>,
}

impl Writer {
    /// Opens the database, creates it if necessary, and starts the thread. `set_up` creates the tables. The journal
    /// mode is WAL with `synchronous = FULL`, so commits survive a power failure.
    ///
    /// # Errors
    /// The database cannot be opened or set up, or is [read-only](FileProblem::ReadOnly), possibly by its file
    /// permissions alone.
    pub fn open(
        path: impl AsRef<Path>,
        set_up: impl FnOnce(&Connection) -> rusqlite::Result<()>,
    ) -> Result<Self, WriterError> {
        let path = path.as_ref();
        let of_file = |problem| WriterError::File {
            path: path.to_owned(),
            problem,
        };
        let opened = open(path, set_up).map_err(|error| match FileProblem::of(path, &error) {
            Some(problem) => of_file(problem),
            None => error.into(),
        });
        let Some(mut connection) = opened? else {
            return Err(of_file(FileProblem::ReadOnly));
        };
        let hooks = Arc::new(Hooks::default());
        hooks.set(&mut connection)?;
        let (jobs, queue) = mpsc::channel(MAX_QUEUED_JOBS);
        let (is_open, open) = watch::channel(());
        thread::Builder::new()
            .name("relent-sqlite".to_owned())
            .spawn(move || {
                write(&connection, &hooks, queue);
                drop(connection);
                drop(is_open);
            })
            .map_err(|_| WriterError::Ended)?;
        Ok(Self { jobs, open })
    }

    /// Waits until the connection is closed, after all handles are dropped and all jobs are written. The last connection
    /// to a database removes the files `-wal` and `-shm` beside it.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut open = self.open.clone();
        async move {
            // The error is the end: nothing is ever sent.
            let _ = open.changed().await;
        }
    }

    /// Runs `work` in a transaction, and returns after the commit. If it returns an error, it is rolled back alone.
    /// It may use savepoints, but must not end the transaction.
    ///
    /// A job that has started completes, even if the future is dropped. A panic of the work propagates to the waiting
    /// task.
    ///
    /// # Errors
    /// The error of the work, or of the database. After [`WriterError::Commit`], [`WriterError::TransactionEnded`]
    /// and [`WriterError::Undone`] none of the work is written.
    pub async fn run<T, E>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<WriterError> + Send + 'static,
    {
        self.run_in(move |session| session.savepoint(work)).await
    }

    /// Like `run`, without a savepoint, and with the prepared statements of the thread. Work that returns an error
    /// must have written nothing, or only in a [savepoint](WriterSession::savepoint), or must [undo](WriterSession::undo) the
    /// transaction. Its only write outside a savepoint is one statement, its last.
    pub(crate) async fn run_in<T, E>(
        &self,
        work: impl FnOnce(&mut WriterSession<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<WriterError> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let job = PendingJob {
            work: Some(work),
            result: None,
            sender,
        };
        if self.jobs.send(Box::new(job)).await.is_err() {
            return Err(WriterError::Ended.into());
        }
        match receiver.await {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => Err(WriterError::Ended.into()),
        }
    }
}

/// Opens a connection and sets the database up; `None` if it is read-only.
fn open(
    path: &Path,
    set_up: impl FnOnce(&Connection) -> rusqlite::Result<()>,
) -> rusqlite::Result<Option<Connection>> {
    let connection = Connection::open(path)?;
    // The superuser can write despite the permissions; still treat such a file as read-only.
    let file = connection.path().filter(|file| !file.is_empty());
    let file = file.and_then(|file| std::fs::metadata(file).ok());
    let is_marked = file.is_some_and(|file| file.permissions().readonly());
    if is_marked || connection.is_readonly("main")? {
        return Ok(None);
    }
    connection.busy_timeout(LOCK_TIMEOUT)?;
    write_ahead(&connection)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    set_up(&connection)?;
    // If `set_up` wrote nothing, try a write. A lock held by another process means that the database is writable.
    connection.busy_timeout(Duration::ZERO)?;
    match connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK") {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {}
        written => written?,
    }
    connection.busy_timeout(LOCK_TIMEOUT)?;
    Ok(Some(connection))
}

/// Sets the journal mode to WAL. SQLite does not wait for locks there, and other processes may do the same
/// concurrently.
fn write_ahead(connection: &Connection) -> rusqlite::Result<()> {
    let patience = Instant::now() + LOCK_TIMEOUT;
    loop {
        match connection.pragma_update(None, "journal_mode", "WAL") {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && Instant::now() < patience =>
            {
                thread::sleep(Duration::from_millis(10));
            }
            turned => return turned,
        }
    }
}

/// A job for the writer thread.
trait Job: Send {
    /// Runs the work.
    fn work(&mut self, session: &mut WriterSession<'_>);

    /// Sends the result to the waiting task; or `failed`, if the work succeeded but was not committed.
    fn notify(self: Box<Self>, failed: Option<WriterError>);
}

/// The result of the work, or its panic.
type WorkResult<T, E> = Result<Result<T, E>, Box<dyn Any + Send>>;

/// A job with a waiting task.
struct PendingJob<W, T, E> {
    work: Option<W>,
    result: Option<WorkResult<T, E>>,
    sender: oneshot::Sender<WorkResult<T, E>>,
}

impl<W, T, E> Job for PendingJob<W, T, E>
where
    W: FnOnce(&mut WriterSession<'_>) -> Result<T, E> + Send,
    T: Send,
    E: From<WriterError> + Send,
{
    fn work(&mut self, session: &mut WriterSession<'_>) {
        let work = self.work.take();
        self.result = work.map(|work| catch_unwind(AssertUnwindSafe(|| work(&mut *session))));
        // The work has panicked outside a savepoint, so its writes have to be undone.
        if matches!(self.result, Some(Err(_))) && !session.has_savepoint {
            session.undo();
        }
    }

    fn notify(self: Box<Self>, failed: Option<WriterError>) {
        let result = match (self.result, failed) {
            (Some(Ok(Ok(_))) | None, Some(failed)) => Ok(Err(failed.into())),
            // A failure of the work itself has precedence.
            (Some(result), _) => result,
            (None, None) => Ok(Err(WriterError::Ended.into())),
        };
        // The receiver may be gone.
        drop(self.sender.send(result));
    }
}

/// Flags that the hooks of the database set and read.
#[derive(Default)]
struct Hooks {
    /// The thread is committing.
    commits: AtomicBool,
    /// The transaction was ended by a job.
    ended: AtomicBool,
}

impl Hooks {
    fn set(self: &Arc<Self>, connection: &mut Connection) -> rusqlite::Result<()> {
        let (commit, rollback) = (Arc::clone(self), Arc::clone(self));
        connection.commit_hook(Some(move || {
            let refused = !commit.commits.load(Ordering::Relaxed);
            commit.ended.fetch_or(refused, Ordering::Relaxed);
            refused
        }))?;
        connection.rollback_hook(Some(move || {
            rollback.ended.store(true, Ordering::Relaxed);
        }))
    }
}

/// The context of a job: the connection, in a transaction, and the prepared statements of the thread.
pub(crate) struct WriterSession<'c> {
    pub(crate) records: Records<'c>,
    connection: &'c Connection,
    hooks: &'c Hooks,
    savepoint: Statement<'c>,
    undo: Statement<'c>,
    release: Statement<'c>,
    /// A savepoint is open.
    has_savepoint: bool,
    /// The transaction must be rolled back.
    is_undone: bool,
}

impl<'c> WriterSession<'c> {
    fn new(connection: &'c Connection, hooks: &'c Hooks) -> rusqlite::Result<Self> {
        Ok(Self {
            records: Records::new(connection),
            connection,
            hooks,
            savepoint: connection.prepare("SAVEPOINT relent_job")?,
            undo: connection.prepare("ROLLBACK TO relent_job")?,
            release: connection.prepare("RELEASE relent_job")?,
            has_savepoint: false,
            is_undone: false,
        })
    }

    /// Runs `work` in a savepoint, which is undone if it returns an error or panics.
    ///
    /// # Errors
    /// The error of the work, or the reason why the whole transaction is rolled back.
    pub(crate) fn savepoint<T, E: From<WriterError>>(
        &mut self,
        work: impl FnOnce(&Connection) -> Result<T, E>,
    ) -> Result<T, E> {
        if let Err(error) = self.savepoint.execute([]) {
            self.undo();
            return Err(WriterError::Commit(Arc::new(error)).into());
        }
        self.has_savepoint = true;
        let worked = work(self.connection);
        match self.close(worked.is_ok()) {
            Some(ended) => worked.and(Err(ended.into())),
            None => worked,
        }
    }

    /// Releases or undoes the savepoint. Returns the reason if the whole transaction has to be rolled back.
    fn close(&mut self, keep: bool) -> Option<WriterError> {
        self.has_savepoint = false;
        let undone = if keep { Ok(0) } else { self.undo.execute([]) };
        let closed = undone.and_then(|_| self.release.execute([]));
        let ended = self.hooks.ended.load(Ordering::Relaxed);
        if closed.is_ok() && !ended {
            return None;
        }
        self.undo();
        Some(match closed {
            // If the savepoint is gone, SQLite returns only a generic error.
            Err(error) if error.sqlite_error_code() != Some(ErrorCode::Unknown) => {
                WriterError::Commit(Arc::new(error))
            }
            _ => WriterError::TransactionEnded,
        })
    }

    /// Marks the whole transaction for rollback. Other jobs in it get [`WriterError::Undone`] and may be repeated.
    pub(crate) const fn undo(&mut self) {
        self.is_undone = true;
    }
}

/// The thread with its statements.
struct Thread<'c> {
    session: WriterSession<'c>,
    begin: Statement<'c>,
    commit: Statement<'c>,
}

impl<'c> Thread<'c> {
    fn new(connection: &'c Connection, hooks: &'c Hooks) -> rusqlite::Result<Self> {
        Ok(Self {
            session: WriterSession::new(connection, hooks)?,
            begin: connection.prepare("BEGIN IMMEDIATE")?,
            commit: connection.prepare("COMMIT")?,
        })
    }

    /// Runs this job, and all that arrive meanwhile, in one transaction.
    fn transaction(&mut self, first: Box<dyn Job>, queue: &mut mpsc::Receiver<Box<dyn Job>>) {
        if let Err(error) = self.begin.execute([]) {
            // An earlier transaction may still be open because its rollback failed.
            self.roll_back();
            // `begin` may have waited long for a lock. Fail the queued jobs, too, so that they do not wait one after
            // another.
            let waiting =
                std::iter::from_fn(|| queue.try_recv().ok()).take(MAX_JOBS_PER_TRANSACTION);
            let failed = Arc::new(error);
            for job in std::iter::once(first).chain(waiting) {
                job.notify(Some(WriterError::Commit(Arc::clone(&failed))));
            }
            return;
        }
        let mut done = Vec::<Box<dyn Job>>::new();
        let mut next = Some(first);
        while let Some(mut job) = next {
            if let Err(failed) = self.work(&mut *job) {
                self.roll_back();
                job.notify(Some(failed));
                for job in done {
                    job.notify(Some(WriterError::Undone));
                }
                return;
            }
            done.push(job);
            let more = done.len() < MAX_JOBS_PER_TRANSACTION;
            next = more.then(|| queue.try_recv().ok()).flatten();
        }
        let commits = &self.session.hooks.commits;
        commits.store(true, Ordering::Relaxed);
        let failed = self.commit.execute([]).err().map(Arc::new);
        commits.store(false, Ordering::Relaxed);
        if failed.is_some() {
            self.roll_back();
        }
        for job in done {
            job.notify(failed.clone().map(WriterError::Commit));
        }
    }

    /// Runs a job. Returns an error if the transaction has to be rolled back.
    fn work(&mut self, job: &mut dyn Job) -> Result<(), WriterError> {
        let session = &mut self.session;
        job.work(session);
        // The job has panicked.
        if session.has_savepoint
            && let Some(failed) = session.close(false)
        {
            return Err(failed);
        }
        if session.is_undone || session.hooks.ended.load(Ordering::Relaxed) {
            return Err(WriterError::TransactionEnded);
        }
        Ok(())
    }

    /// Rolls back any open transaction.
    fn roll_back(&mut self) {
        let session = &mut self.session;
        if !session.connection.is_autocommit() {
            // If this fails, the next transaction cannot begin, and its jobs get the error.
            drop(session.connection.execute_batch("ROLLBACK"));
        }
        session.is_undone = false;
        session.hooks.ended.store(false, Ordering::Relaxed);
    }
}

fn write(connection: &Connection, hooks: &Hooks, mut queue: mpsc::Receiver<Box<dyn Job>>) {
    // If the statements cannot be prepared, jobs get `WriterError::Ended`.
    if let Ok(mut thread) = Thread::new(connection, hooks) {
        while let Some(job) = queue.blocking_recv() {
            thread.transaction(job, &mut queue);
        }
    }
}
