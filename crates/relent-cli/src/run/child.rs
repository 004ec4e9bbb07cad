//! One attempt: a command in a process group of its own, from its start to its end.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::future::pending;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use indicatif::BinaryBytes;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::{AccessFlags, Pid, access};
use regex::bytes::Regex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::error::Error;
use super::output;
use super::output_match::OutputMatch;
use super::stdin::Stdin;
use super::terminal::Terminal;
use crate::console::say;
use crate::signals::{Group, Signals, cancels};
use crate::spool::Spool;
use crate::stdout;

/// After the command has ended, a process that it left behind may still write. Its output is awaited
/// until it has been silent for this long,
pub(crate) const SILENCE: Duration = Duration::from_secs(1);
/// and for no longer than this in all.
pub(crate) const STRAGGLING: Duration = Duration::from_secs(10);

/// When the deadline is over, what a group that has been killed left in its pipes is read until nothing
/// has come for this long: a process that has left the group may hold them open.
const LAST_SILENCE: Duration = Duration::from_millis(50);

/// Whoever watches is told why no output is seen when some has been kept for so long.
const ADVICE: Duration = Duration::from_secs(3);

/// A killed process is gone at once, unless it hangs in the system. It is awaited for this long.
const DYING: Duration = Duration::from_secs(1);

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
    /// When its group is ended.
    pub(crate) limits: Limits,
    /// No other attempt can follow: the command may read standard input and write to standard
    /// output directly.
    pub(crate) last: bool,
    /// What it writes to standard output is passed on at once, not when it has been judged.
    pub(crate) stream: bool,
    /// The most of its standard output that is kept, in bytes: what is longer is passed on as it is written.
    pub(crate) most: u64,
    /// A person watches, who is told when output is kept for long.
    pub(crate) advise: bool,
}

/// When a command that runs too long is ended: asked to end first (SIGTERM), killed later (SIGKILL).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// When it is asked to end; `None` gives it all the time.
    pub(crate) end: Option<Instant>,
    /// When it is asked to end at the latest, because of the deadline. This does not move when
    /// relent is stopped.
    pub(crate) last: Option<Instant>,
    /// The time between asking and killing.
    pub(crate) kill_after: Duration,
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
    /// Nobody reads standard output any more, which the command was going to write to.
    pub(crate) unread: bool,
    /// Its output exceeded [`Attempt::most`] and was written to standard output before it had ended.
    pub(crate) passed_on: bool,
    /// The command's process group, if it may have members left. Their leader has ended.
    pub(crate) left: Option<Group>,
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
    let direct = command.output_regex.is_none() && (attempt.last || attempt.stream);
    let start = |mut program: Command| {
        let started = program
            .args(&command.args)
            .env("RELENT_ATTEMPT", attempt.number.to_string())
            .stdin(stdin.for_attempt(attempt.last)?)
            .stdout(if direct {
                Stdio::inherit()
            } else {
                Stdio::piped()
            })
            .stderr(match command.output_regex {
                None => Stdio::inherit(),
                Some(_) => Stdio::piped(),
            })
            .process_group(0)
            .spawn();
        Ok::<_, Error>(started)
    };
    let started = match start(Command::new(&command.program))? {
        // A script without `#!`: execvp, and so env(1), gives it to this shell.
        Err(e) if e.raw_os_error() == Some(Errno::ENOEXEC as i32) => {
            let mut shell = Command::new("/bin/sh");
            shell.arg(found(&command.program));
            start(shell)?
        }
        started => started,
    };
    let mut child = match started {
        Ok(child) => child,
        Err(e) => {
            return Ok(Attempted {
                ended: never_began(e)?,
                matched: false,
                stdout: Spool::default(),
                cancelled: None,
                straggler: false,
                unread: false,
                passed_on: false,
                left: None,
            });
        }
    };
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    let group = Group(Pid::from_raw(
        id.ok_or_else(|| Error::Wait(io::ErrorKind::NotFound.into()))?,
    ));
    let result = supervise(&mut child, group, command, attempt, stdin, signals).await;
    if result.is_err() {
        let limits = attempt.limits;
        ask_to_end(group);
        let _ = timeout_at(limits.kill_asked_now(), child.wait()).await;
        end(group, limits).await;
    }
    result
}

/// The file that a program is: as it is named, or by its name in `PATH`.
fn found(program: &OsStr) -> PathBuf {
    let named = Path::new(program);
    if program.as_encoded_bytes().contains(&b'/') {
        return named.to_owned();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(named));
    let is_program = |place: &PathBuf| place.is_file() && access(place, AccessFlags::X_OK).is_ok();
    let found = places.find(is_program);
    found.unwrap_or_else(|| Path::new(".").join(named))
}

/// Ends what an attempt has left running in its group, whose leader has ended: asks it to, and kills
/// what is left when the time for that is over.
pub(crate) async fn end(group: Group, limits: Limits) {
    if group.is_gone() {
        return;
    }
    ask_to_end(group);
    if !is_gone_by(group, limits.kill_asked_now()).await {
        kill(group).await;
    }
}

/// Kills all members, and waits until the system has done it: not for those that hang in the system.
async fn kill(group: Group) {
    group.send(Signal::SIGKILL);
    is_gone_by(group, Instant::now() + DYING).await;
}

async fn is_gone_by(group: Group, end: Instant) -> bool {
    while !group.is_gone() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        sleep(TICK.min(left)).await;
    }
    true
}

/// Tells a command that cannot be run from a machine that cannot run another one.
fn never_began(e: io::Error) -> Result<Ended, Error> {
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
    attempt: Attempt,
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
    let (unread, passed_on) = (Cell::new(false), Cell::new(false));
    let left;

    let (stdout_pipe, stderr_pipe) = (child.stdout.take(), child.stderr.take());
    let feed = stdin.feed(child.stdin.take());
    let sink = if attempt.stream {
        Sink::Stdout(&unread)
    } else {
        Sink::Spool {
            spool: &mut stdout,
            most: attempt.most,
            unread: &unread,
            passed_on: &passed_on,
        }
    };
    let ended = {
        let mut output = pin!(async {
            tokio::try_join!(
                pump(stdout_pipe, sink, on_stdout.as_mut(), &activity),
                pump(stderr_pipe, Sink::Stderr, on_stderr.as_mut(), &activity),
            )
        });
        let mut open = true;
        let mut limit = Limit::new(attempt.limits);
        let mut advice = attempt.advise.then(|| Instant::now() + ADVICE);

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
                            group.send(signal);
                            if cancels(signal) {
                                cancelled = cancelled.or(Some(signal));
                                limit.cancel(group);
                            }
                        }
                    },
                    () = limit.reached() => limit.enforce(group),
                    () = until(advice) => advice = if activity.kept.get() {
                        say("standard output is kept until the attempt has ended; --stream passes \
                             it on at once");
                        None
                    } else {
                        Some(Instant::now() + ADVICE)
                    },
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

        if cancelled.is_some() {
            limit.cancel(group);
        }
        // The members that are left: after a timeout or a signal they have the rest of the grace to end.
        let mut awaited = limit.is_ending() && !group.is_gone();
        if awaited && !limit.asked {
            // A shell starts background commands with SIGINT and SIGQUIT ignored.
            ask_to_end(group);
        }
        let mut hurried = false;
        let mut silence = pin!(activity.ceased(SILENCE, STRAGGLING));
        // The deadline leaves no more time for output than ending the group takes.
        let patience = attempt.limits.last.map(|last| match limit.is_ending() {
            true => attempt.limits.kill_asked_at(last),
            false => last,
        });
        let mut last_silence = pin!(async {
            until(patience).await;
            activity.ceased(LAST_SILENCE, SILENCE).await;
        });
        while open && !hurried || awaited {
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
                        hurried = true;
                        limit.cancel(group);
                        ask_to_end(group);
                        awaited = !group.is_gone();
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
                () = &mut last_silence, if !awaited => {
                    straggler = true;
                    break;
                }
            }
        }
        if limit.is_ending() && !group.is_gone() {
            kill(group).await;
        }
        left = (!limit.is_ending()).then_some(group);
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
        unread: unread.get(),
        passed_on: passed_on.get(),
        left,
    })
}

/// Whether a command that has the keyboard was ended from there: no signal reaches us then. Shells
/// report the signal that ended their command as 128 + n.
fn ended_by_keyboard(ended: &Ended) -> Option<Signal> {
    [Signal::SIGINT, Signal::SIGQUIT]
        .into_iter()
        .find(|signal| ended.status() == 128 + *signal as i32)
}

impl Limits {
    /// When a command is killed that is asked to end now: never after the deadline.
    fn kill_asked_now(self) -> Instant {
        self.kill_asked_at(Instant::now())
    }

    fn kill_asked_at(self, asked: Instant) -> Instant {
        let asked = self.last.map_or(asked, |last| asked.min(last));
        asked.checked_add(self.kill_after).unwrap_or_else(far_away)
    }
}

/// An instant that no run lives to see: what lies beyond what the clock can count.
fn far_away() -> Instant {
    Instant::now() + Duration::from_secs(86400 * 365 * 30)
}

/// Returns at `at`, and never without it.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

/// The time given to an attempt, and what happens when it is over: SIGTERM to the whole group, and
/// SIGKILL later. The same when a signal asks for the end: the group has had that signal.
struct Limit {
    limits: Limits,
    next: Option<Instant>,
    /// The time is over, and the group was asked to end.
    asked: bool,
    /// A signal has asked for the end.
    cancelled: bool,
}

impl Limit {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            next: limits.end,
            asked: false,
            cancelled: false,
        }
    }

    /// Whether the group was asked to end.
    fn is_ending(&self) -> bool {
        self.asked || self.cancelled
    }

    /// The group has had a signal that asks for the end: what is left of it after the time for that is killed.
    fn cancel(&mut self, group: Group) {
        if !self.is_ending() {
            // What is stopped could not hear it.
            group.send(Signal::SIGCONT);
            self.next = Some(self.limits.kill_asked_now());
        }
        self.cancelled = true;
    }

    /// Moves what is next, for time in which the attempt could not run; never past the deadline.
    fn postpone(&mut self, by: Duration) {
        let latest = match self.limits.last {
            Some(last) if self.is_ending() => Some(self.limits.kill_asked_at(last)),
            last => last,
        };
        let Some(next) = self.next else { return };
        self.next = match (next.checked_add(by), latest) {
            (Some(moved), Some(latest)) => Some(moved.min(latest)),
            (moved, latest) => moved.or(latest),
        };
    }

    async fn reached(&self) {
        until(self.next).await;
    }

    fn enforce(&mut self, group: Group) {
        if self.is_ending() {
            group.send(Signal::SIGKILL);
            self.next = None;
        } else {
            ask_to_end(group);
            self.asked = true;
            self.next = Some(self.limits.kill_asked_now());
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
    /// Whether any of it is kept.
    kept: Cell<bool>,
}

impl Activity {
    /// Returns when nothing has come for as long as `silence`, or after `most`. Time in which relent
    /// itself is held up does not count.
    async fn ceased(&self, silence: Duration, most: Duration) {
        let (mut silent, mut total) = (Duration::ZERO, Duration::ZERO);
        let mut seen = self.moves.get();
        while silent < silence && total < most {
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

/// Where the bytes of a pipe go. For those that end up on standard output, it is noted if nobody
/// reads there any more.
enum Sink<'a> {
    /// Kept, up to so many bytes; then all of it is passed on, and what follows as it is written.
    Spool {
        spool: &'a mut Spool,
        most: u64,
        unread: &'a Cell<bool>,
        passed_on: &'a Cell<bool>,
    },
    Stdout(&'a Cell<bool>),
    Stderr,
}

/// Passes on what comes out of `pipe` until all its writers have closed it.
///
/// If nobody reads what goes to standard output, the pipe is closed, so that the command learns of it
/// as it would without relent between them (SIGPIPE).
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
        if let Some(matcher) = &mut matcher {
            matcher.push(&buf[..n]);
        }
        if let Sink::Spool {
            spool,
            most,
            unread,
            passed_on,
        } = &mut sink
            && spool.len().saturating_add(n as u64) > *most
        {
            say(&format!(
                "standard output exceeds --max-buffer ({}): it is passed on as it is written, and no other attempt follows",
                BinaryBytes(*most)
            ));
            passed_on.set(true);
            activity.kept.set(false);
            let unread = *unread;
            unread.set(!output::pass_on_kept(spool).await?);
            sink = Sink::Stdout(unread);
        }
        match &mut sink {
            Sink::Spool { spool, unread, .. } => {
                unread.set(stdout::reader_is_gone());
                if !unread.get() {
                    spool.append(&buf[..n]).map_err(Error::KeepOutput)?;
                    activity.kept.set(true);
                }
            }
            Sink::Stdout(unread) if unread.get() => {}
            Sink::Stdout(unread) => unread.set(!output::pass_on(buf[..n].to_vec()).await?),
            Sink::Stderr => {
                // A standard error that takes nothing is no reason to stop the command.
                let mut stderr = tokio::io::stderr();
                if stderr.write_all(&buf[..n]).await.is_ok() {
                    let _ = stderr.flush().await;
                }
            }
        }
        activity.passing_on.set(activity.passing_on.get() - 1);
        if let Sink::Spool { unread, .. } | Sink::Stdout(unread) = sink
            && unread.get()
        {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn nobody_is_killed_after_the_deadline_however_late_relent_asks() {
        let last = Instant::now() + 10 * SECOND;
        let limits = Limits {
            end: Some(last),
            last: Some(last),
            kill_after: 2 * SECOND,
        };
        for (asked, killed) in [(last - SECOND, SECOND), (last, 2 * SECOND)] {
            assert_eq!(limits.kill_asked_at(asked), last + killed);
        }
        assert_eq!(limits.kill_asked_at(last + SECOND), last + 2 * SECOND);
        let unlimited = Limits {
            last: None,
            kill_after: Duration::MAX,
            ..limits
        };
        assert!(unlimited.kill_asked_at(last) > last + 86400 * SECOND);
    }

    #[test]
    fn a_stop_moves_the_attempt_timeout_and_not_the_deadline() {
        let end = Instant::now();
        let limits = Limits {
            end: Some(end),
            last: Some(end + 5 * SECOND),
            kill_after: 2 * SECOND,
        };
        let mut limit = Limit::new(limits);
        limit.postpone(3 * SECOND);
        assert_eq!(limit.next, Some(end + 3 * SECOND));
        limit.postpone(10 * SECOND);
        assert_eq!(limit.next, Some(end + 5 * SECOND));
        limit.asked = true;
        limit.next = Some(end + 6 * SECOND);
        limit.postpone(10 * SECOND);
        assert_eq!(limit.next, Some(end + 7 * SECOND));
        // Without a deadline it moves as far as it was stopped.
        let mut limit = Limit::new(Limits {
            last: None,
            ..limits
        });
        limit.postpone(10 * SECOND);
        assert_eq!(limit.next, Some(end + 10 * SECOND));
        limit.next = None;
        limit.postpone(SECOND);
        assert_eq!(limit.next, None);
    }
}
