//! One attempt: a command in a process group of its own, from its start to its end.

use std::cell::Cell;
use std::ffi::OsString;
use std::future::pending;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use regex::bytes::Regex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::error::Error;
use super::output_match::OutputMatch;
use super::stdin::Stdin;
use super::terminal::Terminal;
use crate::signals::{Group, Signals, cancels};
use crate::spool::Spool;

/// Between the request to end (SIGTERM) and the end (SIGKILL), for the whole group.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// After the command has ended, a process that it left behind may still write. Its output is awaited
/// until it has been silent for this long,
pub(crate) const SILENCE: Duration = Duration::from_secs(1);
/// and for no longer than this in all.
pub(crate) const STRAGGLING: Duration = Duration::from_secs(10);

/// How often the two things without an event of their own are looked at: silence, and the end of
/// the last member of a group.
const TICK: Duration = Duration::from_millis(20);

/// What is run.
#[derive(Clone, Debug)]
pub(crate) struct CommandLine {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    /// Held against standard output and standard error.
    pub(crate) output_regex: Option<Regex>,
}

/// How one attempt is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// Which one it is, from 1; the command finds it in `RELENT_ATTEMPT`.
    pub(crate) number: u32,
    /// After this time the group is ended; `None` gives it all the time.
    pub(crate) timeout: Option<Duration>,
    /// No other attempt can follow: the command may write to standard output directly.
    pub(crate) last: bool,
}

/// How an attempt ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// With an exit status.
    Exit(i32),
    /// By a signal.
    Signal(i32),
    /// It was ended because its time was over, however it took that.
    TimedOut,
    /// It never began: it is there, but cannot be run.
    CannotRun(io::Error),
    /// It never began: there is no such command.
    NotFound,
}

impl Ended {
    /// The exit status that a shell and `timeout` use for this end: 124 when time killed it, 126
    /// and 127 when it never began, 128 + n for signal n.
    pub(crate) fn status(&self) -> i32 {
        match self {
            Self::Exit(status) => *status,
            Self::Signal(signal) => 128 + signal,
            Self::TimedOut => 124,
            Self::CannotRun(_) => 126,
            Self::NotFound => 127,
        }
    }
}

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exit(code),
            (None, signal) => Self::Signal(signal.unwrap_or_default()),
        }
    }
}

/// What is known after an attempt.
#[derive(Debug)]
pub(crate) struct Attempted {
    pub(crate) ended: Ended,
    /// Whether the output regex was found.
    pub(crate) matched: bool,
    /// What the command wrote to standard output, unless it wrote there directly.
    pub(crate) stdout: Spool,
    /// The signal after which no other attempt is made.
    pub(crate) cancelled: Option<Signal>,
    /// A process that the command left behind still held its output when it was no longer awaited.
    pub(crate) straggler: bool,
}

/// Makes one attempt and returns when it has ended and its output is complete.
///
/// Signals in the meantime are passed on to the whole group.
///
/// # Errors
/// When relent itself cannot go on; the command's group has been ended then.
pub(crate) async fn attempt(
    command: &CommandLine,
    attempt: Attempt,
    stdin: &mut Stdin,
    signals: &mut Signals,
) -> Result<Attempted, Error> {
    let started = Command::new(&command.program)
        .args(&command.args)
        .env("RELENT_ATTEMPT", attempt.number.to_string())
        .stdin(stdin.for_attempt(attempt.last)?)
        .stdout(match command.output_regex {
            None if attempt.last => Stdio::inherit(),
            _ => Stdio::piped(),
        })
        .stderr(match command.output_regex {
            None => Stdio::inherit(),
            Some(_) => Stdio::piped(),
        })
        .process_group(0)
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(e) => {
            return Ok(Attempted {
                ended: never_began(e)?,
                matched: false,
                stdout: Spool::default(),
                cancelled: None,
                straggler: false,
            });
        }
    };
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    let group = Group(Pid::from_raw(
        id.ok_or_else(|| Error::Wait(io::ErrorKind::NotFound.into()))?,
    ));
    let result = supervise(&mut child, group, command, attempt.timeout, stdin, signals).await;
    if result.is_err() {
        ask_to_end(group);
        let _ = timeout(GRACE, child.wait()).await;
        if !group.is_gone() {
            group.send(Signal::SIGKILL);
        }
    }
    result
}

/// Tells a command that cannot be run from a machine that cannot run another one.
fn never_began(e: io::Error) -> Result<Ended, Error> {
    use nix::errno::Errno;
    match e.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => Ok(Ended::NotFound),
        Some(Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE) => Err(Error::Spawn(e)),
        _ => Ok(Ended::CannotRun(e)),
    }
}

/// Asks all members to end, also those that are stopped and could not hear it.
fn ask_to_end(group: Group) {
    group.send(Signal::SIGTERM);
    group.send(Signal::SIGCONT);
}

async fn supervise(
    child: &mut Child,
    group: Group,
    command: &CommandLine,
    limit: Option<Duration>,
    stdin: &mut Stdin,
    signals: &mut Signals,
) -> Result<Attempted, Error> {
    let matcher = || command.output_regex.clone().map(OutputMatch::new);
    let (mut on_stdout, mut on_stderr) = (matcher(), matcher());
    let mut stdout = Spool::default();
    let activity = Activity::default();
    let mut cancelled = None;
    let mut terminal = Terminal::for_command(group);
    let mut straggler = false;

    let (stdout_pipe, stderr_pipe) = (child.stdout.take(), child.stderr.take());
    let feed = stdin.feed(child.stdin.take());
    let keep = Sink::Spool(&mut stdout);
    let ended = {
        let mut output = pin!(async {
            tokio::try_join!(
                pump(stdout_pipe, keep, on_stdout.as_mut(), &activity),
                pump(stderr_pipe, Sink::Stderr, on_stderr.as_mut(), &activity),
            )
        });
        let mut open = true;
        let mut limit = Limit::after(limit);

        let status = {
            let mut feed = pin!(feed);
            let mut feeding = true;
            loop {
                tokio::select! {
                    biased;
                    status = child.wait() => break status.map_err(Error::Wait)?,
                    signal = signals.next() => match signal {
                        Signal::SIGCHLD => limit.postpone(terminal.child_changed()),
                        signal => {
                            cancelled = cancelled.or(cancels(signal).then_some(signal));
                            group.send(signal);
                        }
                    },
                    () = limit.reached() => limit.enforce(group),
                    result = &mut output, if open => {
                        open = false;
                        result?;
                    }
                    result = &mut feed, if feeding => {
                        feeding = false;
                        result?;
                    }
                }
            }
        };

        let ended = if limit.asked {
            Ended::TimedOut
        } else {
            Ended::from(status)
        };
        if terminal.is_lent() {
            cancelled = cancelled.or(ended_by_keyboard(&ended));
        }
        terminal.take_back(!matches!(ended, Ended::Exit(_)));

        // The members that are left: after a timeout they have the rest of the grace to end.
        let mut awaited = limit.asked && !group.is_gone();
        let mut silence = pin!(activity.ceased());
        while open || awaited {
            tokio::select! {
                biased;
                result = &mut output, if open => {
                    open = false;
                    result?;
                }
                signal = signals.next() => if signal != Signal::SIGCHLD {
                    group.send(signal);
                    if cancels(signal) {
                        cancelled = cancelled.or(Some(signal));
                        break;
                    }
                },
                () = limit.reached(), if awaited => {
                    limit.enforce(group);
                    awaited = false;
                }
                () = sleep(TICK), if awaited => awaited = !group.is_gone(),
                () = &mut silence, if open && !awaited => {
                    straggler = true;
                    break;
                }
            }
        }
        if awaited {
            group.send(Signal::SIGKILL);
        }
        ended
    };
    let found = |output: Option<OutputMatch>| output.is_some_and(OutputMatch::finish);
    let matched = found(on_stdout) | found(on_stderr);
    Ok(Attempted {
        ended,
        matched,
        stdout,
        cancelled,
        straggler,
    })
}

/// Whether a command that has the keyboard was ended from there: no signal reaches us then. Shells
/// report the signal that ended their command as 128 + n.
fn ended_by_keyboard(ended: &Ended) -> Option<Signal> {
    [Signal::SIGINT, Signal::SIGQUIT]
        .into_iter()
        .find(|signal| ended.status() == 128 + *signal as i32)
}

/// The time given to an attempt, and what happens when it is over: SIGTERM to the whole group,
/// after [`GRACE`] SIGKILL.
struct Limit {
    next: Option<Instant>,
    asked: bool,
}

impl Limit {
    fn after(limit: Option<Duration>) -> Self {
        // A limit beyond what the clock can count is no limit.
        Self {
            next: limit.and_then(|limit| Instant::now().checked_add(limit)),
            asked: false,
        }
    }

    fn postpone(&mut self, by: Duration) {
        self.next = self.next.and_then(|at| at.checked_add(by));
    }

    async fn reached(&self) {
        match self.next {
            Some(at) => sleep_until(at).await,
            None => pending().await,
        }
    }

    fn enforce(&mut self, group: Group) {
        if self.asked {
            group.send(Signal::SIGKILL);
            self.next = None;
        } else {
            ask_to_end(group);
            self.asked = true;
            self.next = Some(Instant::now() + GRACE);
        }
    }
}

/// When a command's output last moved.
#[derive(Debug, Default)]
struct Activity {
    moves: Cell<u64>,
    /// Pumps that are passing bytes on. They may be held up by who reads ours, which is not the
    /// command's silence.
    passing_on: Cell<u32>,
}

impl Activity {
    /// Returns when nothing has come for [`SILENCE`], or after [`STRAGGLING`]. Time in which relent
    /// itself is held up does not count.
    async fn ceased(&self) {
        let (mut silent, mut total) = (Duration::ZERO, Duration::ZERO);
        let mut seen = self.moves.get();
        while silent < SILENCE && total < STRAGGLING {
            sleep(TICK).await;
            if self.passing_on.get() == 0 {
                silent += TICK;
                total += TICK;
            }
            let moves = self.moves.get();
            if moves != seen {
                seen = moves;
                silent = Duration::ZERO;
            }
        }
    }
}

/// Where the bytes of a pipe go.
enum Sink<'a> {
    Spool(&'a mut Spool),
    Stderr,
}

/// Passes on what comes out of `pipe` until all its writers have closed it.
async fn pump(
    pipe: Option<impl AsyncRead + Unpin>,
    mut sink: Sink<'_>,
    mut matcher: Option<&mut OutputMatch>,
    activity: &Activity,
) -> Result<(), Error> {
    let Some(mut pipe) = pipe else { return Ok(()) };
    let mut buf = vec![0; 1 << 16];
    loop {
        let n = pipe.read(&mut buf).await.map_err(Error::ReadOutput)?;
        if n == 0 {
            return Ok(());
        }
        activity.moves.set(activity.moves.get() + 1);
        activity.passing_on.set(activity.passing_on.get() + 1);
        match &mut sink {
            Sink::Spool(spool) => spool.append(&buf[..n]).map_err(Error::KeepOutput)?,
            Sink::Stderr => {
                // A standard error that takes nothing is no reason to stop the command.
                let mut stderr = tokio::io::stderr();
                if stderr.write_all(&buf[..n]).await.is_ok() {
                    let _ = stderr.flush().await;
                }
            }
        }
        if let Some(matcher) = &mut matcher {
            matcher.push(&buf[..n]);
        }
        activity.passing_on.set(activity.passing_on.get() - 1);
    }
}
