//! One writer for an SQLite database: a thread that commits what has come together at once.
//!
//! SQLite takes one transaction at a time, and a durable commit waits for the disk. So whoever has something to
//! write hands it to the thread, which does all that has come meanwhile in one transaction, each in a
//! savepoint of its own: a hundred writers wait for one commit and not for a hundred. Nobody hears of what is
//! not committed.
//!
//! A savepoint has its price: SQLite copies each page that is first changed within it. So what this crate itself writes
//! of a record is one statement, which SQLite undoes alone, and stands outside of the savepoint of the work.
//!
//! Nothing is committed but by the thread. Work that ends the transaction by itself is undone, and hears so.

mod error;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, Statement};
use tokio::sync::{mpsc, oneshot};

pub use error::{FileProblem, WriterError};

use crate::store::sqlite::Records;

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
    jobs: mpsc::Sender<Box<dyn Job>>,
}

impl Writer {
    /// Opens the database, which is made if it is not there, and begins the thread. `set_up` makes the tables. The
    /// journal is a write-ahead log, and what is committed outlives a loss of power
    /// (`synchronous = FULL`).
    ///
    /// # Errors
    /// The database cannot be opened or set up, or is [read-only](FileProblem::ReadOnly), also by its permissions alone.
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
        let (jobs, queue) = mpsc::channel(QUEUE);
        thread::Builder::new()
            .name("relent-sqlite".to_owned())
            .spawn(move || write(&connection, &hooks, queue))
            .map_err(|_| WriterError::Ended)?;
        Ok(Self { jobs })
    }

    /// Does this in a transaction, and returns when it is committed. What returns an error is rolled back, and
    /// nothing else with it. Savepoints of its own are welcome; it must not end the transaction.
    ///
    /// Once it is begun it is done, also if the future is dropped.
    ///
    /// A panic of the work goes on in whoever waits for it.
    ///
    /// # Errors
    /// That of the work, or of the database. After [`WriterError::Commit`], [`WriterError::TransactionEnded`] and
    /// [`WriterError::Undone`] nothing of it is there.
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

    /// The same without a savepoint, and with the statements that the thread holds. What returns an error has written
    /// nothing, or has done so in a [savepoint](Session::savepoint), or [undoes](Session::undo) the transaction: its only
    /// write outside of a savepoint is one statement, its last.
    pub(crate) async fn run_in<T, E>(
        &self,
        work: impl FnOnce(&mut Session<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<WriterError> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let job = Waited {
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

/// A connection to a database that is set up; `None` if the database is read-only.
fn open(
    path: &Path,
    set_up: impl FnOnce(&Connection) -> rusqlite::Result<()>,
) -> rusqlite::Result<Option<Connection>> {
    let connection = Connection::open(path)?;
    // What SQLite may write against the permissions, as the superuser, is still not meant to be written.
    let file = connection.path().filter(|file| !file.is_empty());
    let file = file.and_then(|file| std::fs::metadata(file).ok());
    let is_marked = file.is_some_and(|file| file.permissions().readonly());
    if is_marked || connection.is_readonly("main")? {
        return Ok(None);
    }
    connection.busy_timeout(BUSY)?;
    write_ahead(&connection)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    set_up(&connection)?;
    // Where nothing had to be set up nothing was written yet. Another process may write at the moment, so it can be.
    connection.busy_timeout(Duration::ZERO)?;
    match connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK") {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {}
        written => written?,
    }
    connection.busy_timeout(BUSY)?;
    Ok(Some(connection))
}

/// Turns the journal into a write-ahead log. SQLite waits for nobody there, and others may do the same.
fn write_ahead(connection: &Connection) -> rusqlite::Result<()> {
    let patience = Instant::now() + BUSY;
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

/// Something to be written.
trait Job: Send {
    /// Does it.
    fn work(&mut self, session: &mut Session<'_>);

    /// Tells whoever waits what came of it; or why it is not written, if it should have been.
    fn tell(self: Box<Self>, failed: Option<WriterError>);
}

/// What the work returned, or how it panicked.
type Worked<T, E> = Result<Result<T, E>, Box<dyn Any + Send>>;

/// A job that somebody waits for.
struct Waited<W, T, E> {
    work: Option<W>,
    result: Option<Worked<T, E>>,
    sender: oneshot::Sender<Worked<T, E>>,
}

impl<W, T, E> Job for Waited<W, T, E>
where
    W: FnOnce(&mut Session<'_>) -> Result<T, E> + Send,
    T: Send,
    E: From<WriterError> + Send,
{
    fn work(&mut self, session: &mut Session<'_>) {
        let work = self.work.take();
        self.result = work.map(|work| catch_unwind(AssertUnwindSafe(|| work(&mut *session))));
        // It has panicked where nothing undoes what it had written.
        if matches!(self.result, Some(Err(_))) && !session.is_open {
            session.undo();
        }
    }

    fn tell(self: Box<Self>, failed: Option<WriterError>) {
        let result = match (self.result, failed) {
            (Some(Ok(Ok(_))) | None, Some(failed)) => Ok(Err(failed.into())),
            // What is undone by its own word stays so.
            (Some(result), _) => result,
            (None, None) => Ok(Err(WriterError::Ended.into())),
        };
        // Nobody may wait any more.
        drop(self.sender.send(result));
    }
}

/// What the database tells while something is done there.
#[derive(Default)]
struct Hooks {
    /// The thread commits.
    commits: AtomicBool,
    /// The transaction has ended in another way.
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

/// What a job works with: the connection, in a transaction, and the statements that the thread holds.
pub(crate) struct Session<'c> {
    pub(crate) records: Records<'c>,
    connection: &'c Connection,
    hooks: &'c Hooks,
    savepoint: Statement<'c>,
    undo: Statement<'c>,
    release: Statement<'c>,
    /// A savepoint is neither released nor undone.
    is_open: bool,
    /// The transaction is not to be committed.
    is_undone: bool,
}

impl<'c> Session<'c> {
    fn new(connection: &'c Connection, hooks: &'c Hooks) -> rusqlite::Result<Self> {
        Ok(Self {
            records: Records::new(connection),
            connection,
            hooks,
            savepoint: connection.prepare("SAVEPOINT relent_job")?,
            undo: connection.prepare("ROLLBACK TO relent_job")?,
            release: connection.prepare("RELEASE relent_job")?,
            is_open: false,
            is_undone: false,
        })
    }

    /// Does this in a savepoint: if it returns an error or panics, it is undone, and nothing else is.
    ///
    /// # Errors
    /// That of the work; or why the whole transaction is undone.
    pub(crate) fn savepoint<T, E: From<WriterError>>(
        &mut self,
        work: impl FnOnce(&Connection) -> Result<T, E>,
    ) -> Result<T, E> {
        if let Err(error) = self.savepoint.execute([]) {
            self.undo();
            return Err(WriterError::Commit(Arc::new(error)).into());
        }
        self.is_open = true;
        let worked = work(self.connection);
        match self.close(worked.is_ok()) {
            Some(ended) => worked.and(Err(ended.into())),
            None => worked,
        }
    }

    /// Keeps what is done in the savepoint, or undoes it; why the transaction has to be undone, if it has.
    fn close(&mut self, keep: bool) -> Option<WriterError> {
        self.is_open = false;
        let undone = if keep { Ok(0) } else { self.undo.execute([]) };
        let closed = undone.and_then(|_| self.release.execute([]));
        let ended = self.hooks.ended.load(Ordering::Relaxed);
        if closed.is_ok() && !ended {
            return None;
        }
        self.undo();
        Some(match closed {
            // Of a savepoint that is gone SQLite says no more than that it is an error.
            Err(error) if error.sqlite_error_code() != Some(ErrorCode::Unknown) => {
                WriterError::Commit(Arc::new(error))
            }
            _ => WriterError::TransactionEnded,
        })
    }

    /// Has the whole transaction undone, with what others have done in it. They hear that they may do it again.
    pub(crate) const fn undo(&mut self) {
        self.is_undone = true;
    }
}

/// The thread, and its statements.
struct Thread<'c> {
    session: Session<'c>,
    begin: Statement<'c>,
    commit: Statement<'c>,
}

impl<'c> Thread<'c> {
    fn new(connection: &'c Connection, hooks: &'c Hooks) -> rusqlite::Result<Self> {
        Ok(Self {
            session: Session::new(connection, hooks)?,
            begin: connection.prepare("BEGIN IMMEDIATE")?,
            commit: connection.prepare("COMMIT")?,
        })
    }

    /// Does this, and what comes meanwhile, in one transaction.
    fn transaction(&mut self, first: Box<dyn Job>, queue: &mut mpsc::Receiver<Box<dyn Job>>) {
        if let Err(error) = self.begin.execute([]) {
            // One that could not be rolled back before may be in the way.
            self.roll_back();
            // It may have waited for long: the others need not do so one after another.
            let waiting = std::iter::from_fn(|| queue.try_recv().ok()).take(MOST);
            let failed = Arc::new(error);
            for job in std::iter::once(first).chain(waiting) {
                job.tell(Some(WriterError::Commit(Arc::clone(&failed))));
            }
            return;
        }
        let mut done = Vec::<Box<dyn Job>>::new();
        let mut next = Some(first);
        while let Some(mut job) = next {
            if let Err(failed) = self.work(&mut *job) {
                self.roll_back();
                job.tell(Some(failed));
                for job in done {
                    job.tell(Some(WriterError::Undone));
                }
                return;
            }
            done.push(job);
            let more = done.len() < MOST;
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
            job.tell(failed.clone().map(WriterError::Commit));
        }
    }

    /// Why the transaction has to be undone, if it has.
    fn work(&mut self, job: &mut dyn Job) -> Result<(), WriterError> {
        let session = &mut self.session;
        job.work(session);
        // It has panicked.
        if session.is_open
            && let Some(failed) = session.close(false)
        {
            return Err(failed);
        }
        if session.is_undone || session.hooks.ended.load(Ordering::Relaxed) {
            return Err(WriterError::TransactionEnded);
        }
        Ok(())
    }

    /// Ends whatever transaction there is.
    fn roll_back(&mut self) {
        let session = &mut self.session;
        if !session.connection.is_autocommit() {
            // If even that fails, the next transaction cannot begin, and everybody hears of it.
            drop(session.connection.execute_batch("ROLLBACK"));
        }
        session.is_undone = false;
        session.hooks.ended.store(false, Ordering::Relaxed);
    }
}

fn write(connection: &Connection, hooks: &Hooks, mut queue: mpsc::Receiver<Box<dyn Job>>) {
    // If they cannot be prepared, whoever comes hears that the thread has ended.
    if let Ok(mut thread) = Thread::new(connection, hooks) {
        while let Some(job) = queue.blocking_recv() {
            thread.transaction(job, &mut queue);
        }
    }
}
