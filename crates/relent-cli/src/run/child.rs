//! One attempt: runs a command in its own process group, from its start to its end.

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
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::error::Error;
use super::output;
use super::output_match::OutputMatch;
use super::stdin::Stdin;
use super::terminal::Terminal;
use crate::console::say;
use crate::signals::{ProcessGroup, Signals, cancels, reap_adopted};
use crate::spool::Spool;
use crate::stdout;
use crate::writing::STALLED_READER;

/// After the command has ended, a process that it left behind may still write. Its output is awaited
/// until none has arrived for this long,
pub(crate) const OUTPUT_SILENCE: Duration = Duration::from_secs(1);
/// and for this long in total at most.
pub(crate) const MAX_OUTPUT_WAIT: Duration = Duration::from_secs(10);

/// After the deadline, the pipes of a killed group are read until none of them has data for this long: a process that
/// has left the group may hold them open.
const LAST_OUTPUT_SILENCE: Duration = Duration::from_millis(50);

/// The delay before a message on a terminal explains that output is buffered.
const BUFFER_NOTICE_AFTER: Duration = Duration::from_secs(3);

/// The longest wait for killed processes. They end immediately unless they hang in the kernel.
const KILL_WAIT: Duration = Duration::from_secs(1);

/// The polling interval for two conditions without an event: silence, and the end of the last member of a group.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The variable by which a nested `relent run` finds the time until this one kills it, in milliseconds.
const KILL_AFTER: &str = "RELENT_KILL_AFTER_MS";
/// A nested `relent run` kills its command earlier than it is killed: by a tenth of that time, or by this time, but at
/// most by half.
const NESTED_MARGIN: Duration = Duration::from_millis(500);

/// The command and its arguments.
#[derive(Clone, Debug)]
pub(crate) struct CommandLine {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    /// The regular expression to find in standard output and standard error.
    pub(crate) output_regex: Option<Regex>,
}

/// The parameters of one attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// The number of the attempt, from 1; the command finds it in `RELENT_ATTEMPT`.
    pub(crate) number: u32,
    /// The times at which its group is ended.
    pub(crate) limits: Limits,
    /// No other attempt can follow: the command may read standard input and write to standard
    /// output directly.
    pub(crate) last: bool,
    /// Its standard output is passed on immediately, not after the attempt was classified.
    pub(crate) stream: bool,
    /// The most bytes of its standard output that are buffered: longer output is passed on immediately.
    pub(crate) most: u64,
    /// Output is shown on a terminal, so a message explains output that is buffered for long.
    pub(crate) advise: bool,
}

/// The times at which a command that runs too long gets SIGTERM and, later, SIGKILL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The time of SIGTERM; `None` means no limit.
    pub(crate) end: Option<Instant>,
    /// The latest time of SIGTERM, because of the deadline. It does not move when relent is stopped.
    pub(crate) last: Option<Instant>,
    /// The time between SIGTERM and SIGKILL.
    pub(crate) kill_after: Duration,
    /// That time after a forwarded signal, which may come from an outer `relent run` with a limit of its own.
    pub(crate) kill_after_signal: Duration,
}

/// The end of an attempt.
#[derive(Debug)]
pub(crate) enum CommandEnd {
    /// With an exit status.
    Exit(i32),
    /// By a signal.
    Signal(i32),
    /// By a time limit, with any exit status.
    TimedOut,
    /// The command exists, but cannot be run.
    CannotRun(io::Error),
    /// There is no such command.
    NotFound,
}

impl CommandEnd {
    /// The exit status that a shell and `timeout` use for this end: 124 after a time limit, 126 and 127
    /// if the command could not be started, 128 + n for signal n.
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

impl From<ExitStatus> for CommandEnd {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exit(code),
            (None, signal) => Self::Signal(signal.unwrap_or_default()),
        }
    }
}

/// The result of an attempt.
#[derive(Debug)]
pub(crate) struct AttemptResult {
    pub(crate) ended: CommandEnd,
    /// Whether the output regex matched.
    pub(crate) matched: bool,
    /// The standard output of the command, unless it was written directly.
    pub(crate) stdout: Spool,
    /// The signal after which no other attempt is made.
    pub(crate) cancelled: Option<Signal>,
    /// A process that the command left behind still held its output open when relent stopped waiting.
    pub(crate) straggler: bool,
    /// Standard output has lost its reader.
    pub(crate) unread: bool,
    /// The output exceeded [`Attempt::most`] and was passed on before the attempt had ended.
    pub(crate) passed_on: bool,
    /// The command's process group, if it may have members left. The leader has ended.
    pub(crate) left: Option<ProcessGroup>,
}

/// Makes one attempt and returns when it has ended and its output is complete.
///
/// Signals in the meantime are forwarded to the whole group.
///
/// # Errors
/// Relent itself cannot continue; the command's group has been ended.
pub(crate) async fn attempt(
    command: &CommandLine,
    attempt: Attempt,
    stdin: &mut Stdin,
    signals: &mut Signals,
) -> Result<AttemptResult, Error> {
    let direct = command.output_regex.is_none() && (attempt.last || attempt.stream);
    let start = |mut program: Command| {
        let started = program
            .args(&command.args)
            .env("RELENT_ATTEMPT", attempt.number.to_string())
            .env(
                KILL_AFTER,
                attempt.limits.kill_after_signal.as_millis().to_string(),
            )
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
        // A script without `#!`: execvp, and therefore env(1), runs it with this shell.
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
            return Ok(AttemptResult {
                ended: start_error(e)?,
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
    let group = ProcessGroup(Pid::from_raw(
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

/// Finds the file of a program: the given path, or the name in `PATH`.
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

/// Ends the processes that are left in a group whose leader has ended: sends SIGTERM, and SIGKILL after the time
/// for that.
pub(crate) async fn end(group: ProcessGroup, limits: Limits) {
    if group.is_gone() {
        return;
    }
    ask_to_end(group);
    if !is_gone_by(group, limits.kill_signalled_now()).await {
        kill(group).await;
    }
}

/// Kills all members and waits until they are gone, but not for those that hang in the kernel.
async fn kill(group: ProcessGroup) {
    group.send(Signal::SIGKILL);
    is_gone_by(group, Instant::now() + KILL_WAIT).await;
}

async fn is_gone_by(group: ProcessGroup, end: Instant) -> bool {
    while !group.is_gone() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        sleep(POLL_INTERVAL.min(left)).await;
    }
    true
}

/// Distinguishes a command that cannot be run from a system that cannot start another process.
fn start_error(e: io::Error) -> Result<CommandEnd, Error> {
    match e.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => Ok(CommandEnd::NotFound),
        Some(Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE) => Err(Error::Spawn(e)),
        _ => Ok(CommandEnd::CannotRun(e)),
    }
}

/// Asks all members to end, and continues stopped ones so that they receive the signal.
fn ask_to_end(group: ProcessGroup) {
    group.send(Signal::SIGTERM);
    group.send(Signal::SIGCONT);
}

async fn supervise(
    child: &mut Child,
    group: ProcessGroup,
    command: &CommandLine,
    attempt: Attempt,
    stdin: &mut Stdin,
    signals: &mut Signals,
) -> Result<AttemptResult, Error> {
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
        let mut limit = TimeLimit::new(attempt.limits);
        let mut advice = attempt.advise.then(|| Instant::now() + BUFFER_NOTICE_AFTER);

        let status = {
            let mut feed = pin!(feed);
            let mut feeding = true;
            // Those that ended between two attempts.
            reap_adopted(group.0);
            loop {
                tokio::select! {
                    biased;
                    status = child.wait() => break status.map_err(Error::Wait)?,
                    signal = signals.next() => match signal {
                        Signal::SIGCHLD => {
                            reap_adopted(group.0);
                            limit.postpone(terminal.child_changed());
                        }
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
                        say("standard output is buffered until the attempt has ended; --stream \
                             passes it on immediately");
                        None
                    } else {
                        Some(Instant::now() + BUFFER_NOTICE_AFTER)
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
            CommandEnd::TimedOut
        } else {
            CommandEnd::from(status)
        };
        if terminal.is_lent() {
            cancelled = cancelled.or(ended_by_keyboard(&ended));
        }
        terminal.take_back(!matches!(ended, CommandEnd::Exit(_)));

        if cancelled.is_some() {
            limit.cancel(group);
        }
        // After a timeout or a signal, remaining members have the rest of the grace period to end.
        let mut awaited = limit.is_ending() && !group.is_gone();
        if awaited && !limit.asked {
            // A shell starts background commands with SIGINT and SIGQUIT ignored.
            ask_to_end(group);
        }
        let mut hurried = false;
        // Without a time limit a slow reader has as long as it needs.
        let patience = match ended {
            CommandEnd::TimedOut => STALLED_READER,
            _ => Duration::MAX,
        };
        let mut silence = pin!(activity.ceased(OUTPUT_SILENCE, MAX_OUTPUT_WAIT, patience));
        // After the deadline, output is awaited only as long as it takes to end the group.
        let output_deadline = attempt.limits.last.map(|last| match limit.is_ending() {
            true => attempt.limits.kill_asked_at(last),
            false => last,
        });
        // The output of a success is not cut off, since the command has done its work.
        let stalled = match ended {
            CommandEnd::Exit(0) if cancelled.is_none() => Duration::MAX,
            _ => STALLED_READER,
        };
        let mut last_silence = pin!(async {
            until(output_deadline).await;
            activity
                .ceased(LAST_OUTPUT_SILENCE, OUTPUT_SILENCE, stalled)
                .await;
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
                () = sleep(POLL_INTERVAL), if awaited => awaited = !group.is_gone(),
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
    Ok(AttemptResult {
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

/// Returns the signal by which the keyboard ended a command that owns the terminal: relent does not receive it. Shells
/// report the signal that ended their command as 128 + n.
fn ended_by_keyboard(ended: &CommandEnd) -> Option<Signal> {
    [Signal::SIGINT, Signal::SIGQUIT]
        .into_iter()
        .find(|signal| ended.status() == 128 + *signal as i32)
}

impl Limits {
    /// The time of SIGKILL for a command that gets SIGTERM now: never after the deadline.
    fn kill_asked_now(self) -> Instant {
        self.kill_asked_at(Instant::now())
    }

    /// The time of SIGKILL for a command that gets a forwarded signal now, or is being ended when one can arrive.
    fn kill_signalled_now(self) -> Instant {
        let kill_after = self.kill_after_signal;
        Self { kill_after, ..self }.kill_asked_now()
    }

    fn kill_asked_at(self, asked: Instant) -> Instant {
        let asked = self.last.map_or(asked, |last| asked.min(last));
        asked
            .checked_add(self.kill_after)
            .unwrap_or_else(far_future)
    }
}

/// The time between a forwarded signal and SIGKILL: shorter than that of an outer `relent run`, which cannot reach the
/// group of this one's command.
pub(crate) fn kill_after_signal(kill_after: Duration) -> Duration {
    let outer = std::env::var(KILL_AFTER).ok();
    let outer = outer.and_then(|outer| outer.parse().ok());
    outer.map_or(kill_after, |outer| {
        kill_after.min(within_outer(Duration::from_millis(outer)))
    })
}

fn within_outer(outer: Duration) -> Duration {
    outer - (outer / 10).max(NESTED_MARGIN.min(outer / 2))
}

/// An instant about 30 years from now, for limits beyond the range of the clock.
fn far_future() -> Instant {
    Instant::now() + Duration::from_secs(86400 * 365 * 30)
}

/// Waits until `at`, or for ever without it.
pub(crate) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

/// Enforces the time limit of an attempt: SIGTERM to the whole group, and SIGKILL later. After a signal that cancels,
/// which the group has received, only SIGKILL follows.
struct TimeLimit {
    limits: Limits,
    next: Option<Instant>,
    /// The time limit has passed, and the group was asked to end.
    asked: bool,
    /// A signal that cancels has arrived.
    cancelled: bool,
}

impl TimeLimit {
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

    /// The group has received a signal that cancels: members that are left after the grace period are killed.
    fn cancel(&mut self, group: ProcessGroup) {
        if !self.is_ending() {
            // A stopped process receives the signal only when it continues.
            group.send(Signal::SIGCONT);
            self.next = Some(self.limits.kill_signalled_now());
        } else if !self.cancelled {
            let latest = self.limits.kill_signalled_now();
            self.next = self.next.map(|next| next.min(latest));
        }
        self.cancelled = true;
    }

    /// Postpones the next step by the time in which the attempt was stopped; never past the deadline.
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

    fn enforce(&mut self, group: ProcessGroup) {
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

/// The activity on a command's output.
#[derive(Debug, Default)]
struct Activity {
    moves: Cell<u64>,
    /// The number of pumps that are passing bytes on. A slow reader of relent's output may block them,
    /// which does not count as silence of the command.
    passing_on: Cell<u32>,
    /// Whether any output is buffered.
    kept: Cell<bool>,
}

impl Activity {
    /// Waits until no output has arrived for `silence`, or for `most` in total. Time in which relent
    /// itself is blocked does not count, unless it is blocked for `stalled` at a time.
    async fn ceased(&self, silence: Duration, most: Duration, stalled: Duration) {
        let (mut silent, mut total, mut blocked) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let mut seen = self.moves.get();
        while silent < silence && total < most && blocked < stalled {
            sleep(POLL_INTERVAL).await;
            if self.passing_on.get() == 0 {
                silent += POLL_INTERVAL;
                total += POLL_INTERVAL;
                blocked = Duration::ZERO;
            } else {
                blocked += POLL_INTERVAL;
            }
            let moves = self.moves.get();
            if moves != seen {
                seen = moves;
                (silent, blocked) = (Duration::ZERO, Duration::ZERO);
            }
        }
    }
}

/// The destination of the bytes of a pipe. For standard output, it also records the loss of the reader.
enum Sink<'a> {
    /// Buffers up to `most` bytes; beyond that, passes on all of them and all further output.
    Spool {
        spool: &'a mut Spool,
        most: u64,
        unread: &'a Cell<bool>,
        passed_on: &'a Cell<bool>,
    },
    Stdout(&'a Cell<bool>),
    Stderr,
}

/// Passes on the bytes of `pipe` until all its writers have closed it.
///
/// If standard output has lost its reader, the pipe is closed, so that the command gets SIGPIPE as it
/// would without relent.
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
            Sink::Stderr => output::pass_on_to_stderr(buf[..n].to_vec()).await,
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
    fn sigkill_is_never_after_the_deadline() {
        let last = Instant::now() + 10 * SECOND;
        let limits = Limits {
            end: Some(last),
            last: Some(last),
            kill_after: 2 * SECOND,
            kill_after_signal: 2 * SECOND,
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
    fn a_nested_run_has_less_time_than_the_outer_one_gives() {
        for (outer, within) in [
            (60_000, 54_000),
            (10_000, 9_000),
            (2_000, 1_500),
            (300, 150),
            (0, 0),
        ] {
            let outer = Duration::from_millis(outer);
            assert_eq!(within_outer(outer), Duration::from_millis(within));
        }
    }

    #[test]
    fn a_stopped_relent_postpones_the_attempt_timeout_but_not_the_deadline() {
        let end = Instant::now();
        let limits = Limits {
            end: Some(end),
            last: Some(end + 5 * SECOND),
            kill_after: 2 * SECOND,
            kill_after_signal: 2 * SECOND,
        };
        let mut limit = TimeLimit::new(limits);
        limit.postpone(3 * SECOND);
        assert_eq!(limit.next, Some(end + 3 * SECOND));
        limit.postpone(10 * SECOND);
        assert_eq!(limit.next, Some(end + 5 * SECOND));
        limit.asked = true;
        limit.next = Some(end + 6 * SECOND);
        limit.postpone(10 * SECOND);
        assert_eq!(limit.next, Some(end + 7 * SECOND));
        // Without a deadline the limit moves by the whole time of the stop.
        let mut limit = TimeLimit::new(Limits {
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
