//! `relent run`: runs a command until it succeeds.

mod child;
mod error;
mod exit_list;
mod not_found;
mod output;
mod output_match;
mod stdin;
mod terminal;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::pin::pin;
use std::time::Duration;

use clap::{Args, ValueEnum};
use regex::bytes::Regex;
use relent::clock::TokioClock;
use relent::driver::{CallPermit, Decision, Driver, Stop};
use relent::failure::Cause;
use relent::policy::{Pattern, format_duration};
use relent::{Destination, Failure, Policy, StopReason};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::admission::{admitted, report_no_hedging};
use crate::console::{report_error, say};
use crate::exit_status::{EXIT_TIME_LIMIT, ExitError};
use crate::live_output::{NextRetry, SessionMessages};
use crate::options::{PolicyOptions, duration, size};
use crate::signals::{Signals, ignore_file_size_signal};
use crate::stdout;
use crate::streams;
use crate::trace_out::{self, TraceOut};
use crate::writing::STALLED_READER;
use child::{Attempt, AttemptResult, CommandEnd, CommandLine, Limits};
pub(crate) use error::Error;
use exit_list::ExitList;
use nix::sys::signal::Signal;
use not_found::not_found;
use stdin::Stdin;

/// The end of `relent run --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  Wait for a database, for at most a minute:
      relent run --deadline 1m -- pg_isready -h db

  Limit each attempt to 10 s, and do not retry a usage error:
      relent run --attempt-timeout 10s --stop-on-exit 2 -- rsync -a src/ host:

  Three attempts, 5 s apart:
      relent run --attempts 3 --delay 5s -- make deploy

  A pipeline, or other shell syntax:
      relent run -- sh -c 'pg_dump shop | gzip > shop.gz'

  Retry only temporary failures (75, EX_TEMPFAIL):
      relent run --retry-on-exit 75 -- sendmail -t < message

  Retry when the output says so, even if the exit status is 0:
      relent run --retry-on-output 'try again' -- ./status | jq .state

Streams:
  Every attempt reads the same standard input, from its beginning. Of a pipe,
  relent can read 64 KiB more than the command does: in a loop that reads this
  pipe, give the command another input (< /dev/null). Standard error is passed
  on immediately, and so is standard output on a terminal. A pipe or a file gets
  the output of the final attempt only, when it has ended; the output of earlier
  attempts goes to standard error (--stream changes this). If standard output
  loses its reader (| head), no other attempt follows. After the deadline, the
  output of a failed attempt is lost if its reader takes nothing for a second,
  and so are messages on standard error at any time.
  The buffers are bounded (--max-buffer).

Attempts:
  The command must be safe to run twice: an attempt that failed or was ended by
  --attempt-timeout may have done its work. --retry-on-exit and --stop-on-exit
  select the failures after which it runs again.
  An attempt is the command with its process group. RELENT_ATTEMPT holds its
  number. After a failure, relent ends the rest of the group before the next
  attempt: two attempts never run at the same time. SIGINT, SIGTERM, SIGHUP,
  SIGQUIT and the other signals that would end relent are forwarded to the
  group, and end it: processes that are left after --kill-after are killed.
  Background processes of a command that succeeded keep running. A process
  that has left the group (setsid, a daemon) is not ended: it can run beside
  the next attempt and after the deadline. Its output is awaited while the
  command has time, and lost afterwards.

Exit status: 0 if the command succeeded, else the exit status of the last
attempt. A command's own 123 to 127 is passed on, too. Exceptions:
  123     relent gave up, although the last attempt exited with 0
          (--retry-on-output, --retry-on-exit)
  124     a time limit ended the run: --deadline passed or left no time for
          another attempt, --attempt-timeout ended the last attempt, max_elapsed
          of the policy passed, or the circuit breaker held the next attempt
          too long
  125     relent itself failed, its options are wrong, or standard input, output
          or error is closed
  126     the command cannot be run; never retried
  127     the command was not found; never retried
  128+n   signal n ended the command, or the delay before the next attempt
  If the trace cannot be written at the end, relent reports it on standard error
  and keeps the exit status: the command has done its work, and a failure might
  make the caller repeat it.";

/// The exit status if relent gave up although the last attempt exited with 0.
const EXIT_GAVE_UP: i32 = 123;

/// The default of `--kill-after`,
const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(2);
/// which is at most this fraction of the deadline: 1/10.
const KILL_AFTER_DEADLINE_DIVISOR: u32 = 10;

/// The arguments of `relent run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,

    /// Retry these exit statuses and no others, such as 1,75,100-110
    ///
    /// The list may contain 0. Signal n counts as 128+n. An attempt that was ended by
    /// --attempt-timeout, or whose output matches --retry-on-output, is retried as well.
    #[arg(
        long,
        value_name = "LIST",
        allow_hyphen_values = true,
        help_heading = "Retry conditions"
    )]
    retry_on_exit: Option<ExitList>,

    /// Never retry these exit statuses
    #[arg(
        long,
        value_name = "LIST",
        allow_hyphen_values = true,
        help_heading = "Retry conditions"
    )]
    stop_on_exit: Option<ExitList>,

    /// Also retry an attempt whose standard output or standard error matches, whatever its status
    ///
    /// The syntax is that of the Rust crate regex. ^ and $ match at the ends of the whole output,
    /// unless (?m) is given. Matches of up to 1 MiB are found.
    #[arg(
        long,
        value_name = "REGEX",
        value_parser = regex,
        allow_hyphen_values = true,
        help_heading = "Retry conditions"
    )]
    retry_on_output: Option<Regex>,

    /// Pass on the standard output of every attempt immediately; without WHEN it means `always`
    ///
    /// `auto` does so if standard output is a terminal, so that the user can follow the command, which
    /// can use colours. A pipe or a file gets the output of the final attempt only, when it has ended,
    /// so that its reader sees no output twice.
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_value = "auto",
        default_missing_value = "always",
        help_heading = "Execution"
    )]
    stream: StreamMode,

    /// The time between SIGTERM and SIGKILL when an attempt is ended [default: 2s]
    ///
    /// SIGTERM goes to the whole process group, and SIGKILL to processes that are left. The time also
    /// applies after a signal that relent has forwarded to the group, such as SIGINT. It is part of
    /// the deadline: with --deadline 60s --kill-after 5s, a command gets SIGTERM after 55 s at the
    /// latest, and none of its processes runs after 60 s. The default is at most a tenth of the
    /// deadline. If the command is itself `relent run`, it kills its own command at least a tenth of
    /// this time earlier: RELENT_KILL_AFTER_MS passes the time on.
    #[arg(
        short,
        long,
        value_name = "D",
        value_parser = duration,
        allow_hyphen_values = true,
        help_heading = "Execution"
    )]
    kill_after: Option<Duration>,

    /// The buffer limit for standard output of an attempt, and for standard input
    ///
    /// Bytes, or a number with KiB, MiB or GiB. Up to 1 MiB is in memory, and the rest in an unnamed
    /// file in TMPDIR. Longer output is passed on immediately, and longer input is passed through; that
    /// attempt is then the last one, also if it fails. Input from a file needs no buffer.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "1GiB",
        value_parser = size,
        help_heading = "Execution"
    )]
    max_buffer: u64,

    #[command(flatten)]
    options: PolicyOptions,
}

/// The condition for passing on standard output immediately.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum StreamMode {
    /// On a terminal
    Auto,
    /// Everywhere
    Always,
    /// Nowhere
    Never,
}

impl StreamMode {
    fn now(self) -> bool {
        match self {
            Self::Auto => io::stdout().is_terminal(),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

fn regex(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| {
        // The error shows the position over several lines; the last line is the message.
        let error = error.to_string();
        let last = error.lines().last().unwrap_or_default();
        last.strip_prefix("error: ").unwrap_or(last).to_owned()
    })
}

/// A command with the conditions and limits of its retries.
#[derive(Debug)]
struct Run {
    command: CommandLine,
    policy: Policy,
    retry_on_exit: Option<ExitList>,
    stop_on_exit: Option<ExitList>,
    stream: bool,
    kill_after: Duration,
    max_buffer: u64,
    live: SessionMessages,
}

/// The end of a run.
struct RunEnd {
    status: i32,
    /// The reason for giving up; `None` after a success.
    stop: Option<Stop>,
    /// The last failure, for the final message.
    verdict: Option<AttemptFailure>,
}

/// The classification of a failed attempt.
#[derive(Debug)]
struct AttemptFailure {
    failure: Failure,
    /// The exit status of the attempt.
    status: i32,
    /// The reason why it is not retried, independent of the policy.
    refused: Option<NotRetried>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NotRetried {
    /// The command could not be started, which has been reported.
    CannotRun,
    StopOnExit,
    NotInRetryOnExit,
    /// The output exceeded `--max-buffer` and has been passed on.
    PassedOn,
    /// Standard input exceeded `--max-buffer` and cannot be replayed.
    InputNotKept,
}

/// Runs the command until it succeeds or relent gives up, and returns the exit status.
///
/// # Errors
/// Relent itself cannot continue.
pub(crate) async fn run(args: RunArgs) -> Result<i32, String> {
    streams::all_open()?;
    let policy = for_commands(&args, args.options.resolve()?.policy)?;
    let kill_after = kill_after(args.kill_after, &policy)?;
    let policy = reserve_kill_time(policy, kill_after)?;
    let mut signals = Signals::listen().map_err(|error| Error::Signals(error).to_string())?;
    let mut trace = None;
    if let Some(name) = args.options.trace.clone() {
        // Opening a named pipe blocks until its other end is open.
        let opened = spawn_blocking(move || TraceOut::open(&name));
        let opened = tokio::select! {
            biased;
            signal = signals.cancelled() => return Ok(ExitError::by_signal(signal).status),
            opened = opened => opened,
        };
        trace = Some(opened.map_err(|error| format!("cannot start: {error}"))??);
    }
    let mut words = args.command.into_iter();
    let run = Run {
        command: CommandLine {
            program: words.next().unwrap_or_default(),
            args: words.collect(),
            output_regex: args.retry_on_output,
        },
        policy,
        retry_on_exit: args.retry_on_exit,
        stop_on_exit: args.stop_on_exit,
        stream: args.stream.now(),
        kill_after,
        max_buffer: args.max_buffer,
        live: SessionMessages::new(args.options.quiet),
    };
    let why = "two attempts of a command never run at the same time";
    report_no_hedging(&run.policy, run.live, why);
    // The destination has one caller, and the whole policy applies to it.
    let there = Destination::new(&run.policy);
    let mut driver = Driver::builder(&run.policy, TokioClock)
        .random(args.options.random())
        .traced()
        .destination(&there)
        .start();

    let end = run.attempts(&mut driver, &mut signals).await;
    let stop = match &end {
        Ok(end) => end.stop,
        Err(_) => Some(driver.on_cancel()),
    };
    let summary = driver.summary(stop);
    if let Ok(end) = &end
        && let Some(verdict) = &end.verdict
    {
        let last = verdict.last();
        match verdict.refused {
            None => run.live.report_end(&summary, &run.policy, &last),
            Some(NotRetried::CannotRun) => {}
            Some(NotRetried::StopOnExit) => run
                .live
                .say(|| format!("{last} is not retried: it is in --stop-on-exit")),
            Some(NotRetried::NotInRetryOnExit) => run
                .live
                .say(|| format!("{last} is not retried: it is not in --retry-on-exit")),
            Some(NotRetried::PassedOn) => run.live.say(|| {
                format!("{last} is not retried: its output exceeded --max-buffer and was passed on")
            }),
            Some(NotRetried::InputNotKept) => run.live.say(|| {
                format!(
                    "{last} is not retried: standard input exceeded --max-buffer and was not kept"
                )
            }),
        }
    }
    if let Err(error) = trace_out::finish(trace, &summary, Some(STALLED_READER)) {
        report_error(&error);
    }
    end.map(|end| end.status).map_err(|error| error.to_string())
}

/// Adapts the policy to a command. `--retry-on-exit` replaces the policy's `retry_on`. If that list has no failures of
/// commands, all of them replace it: with a list for HTTP, no command would ever be retried.
fn for_commands(args: &RunArgs, policy: Policy) -> Result<Policy, String> {
    let about_commands = |pattern: &Pattern| {
        matches!(
            pattern,
            Pattern::Exit(..) | Pattern::Signal | Pattern::Output | Pattern::Error | Pattern::Any
        )
    };
    let Some(listed) = policy.retry_on() else {
        return Ok(policy);
    };
    let mut listed = if args.retry_on_exit.is_none() && listed.iter().any(about_commands) {
        listed.to_vec()
    } else {
        vec![Pattern::Exit(0, 255), Pattern::Signal, Pattern::Timeout]
    };
    if args.retry_on_output.is_some() {
        listed.push(Pattern::Output);
    }
    policy
        .into_builder()
        .retry_on(listed)
        .build()
        .map_err(|error| error.to_string())
}

/// The time between SIGTERM and SIGKILL.
fn kill_after(given: Option<Duration>, policy: &Policy) -> Result<Duration, String> {
    match (given, policy.deadline()) {
        (Some(given), Some(deadline)) if given >= deadline => Err(format!(
            "--kill-after {}: must be shorter than the deadline ({}), of which it is a part",
            format_duration(given),
            format_duration(deadline),
        )),
        (Some(given), _) => Ok(given),
        (None, Some(deadline)) => {
            Ok(DEFAULT_KILL_AFTER.min(deadline / KILL_AFTER_DEADLINE_DIVISOR))
        }
        (None, None) => Ok(DEFAULT_KILL_AFTER),
    }
}

/// Moves the deadline to the time of SIGTERM, so that the command has ended at the given deadline.
fn reserve_kill_time(policy: Policy, kill_after: Duration) -> Result<Policy, String> {
    let Some(deadline) = policy.deadline() else {
        return Ok(policy);
    };
    policy
        .into_builder()
        .deadline(deadline.saturating_sub(kill_after))
        .build()
        .map_err(|error| {
            format!(
                "the deadline of {} leaves {} before --kill-after: {}",
                format_duration(deadline),
                format_duration(deadline.saturating_sub(kill_after)),
                error.accepted()
            )
        })
}

impl Run {
    async fn attempts(
        &self,
        driver: &mut Driver<'_, TokioClock>,
        signals: &mut Signals,
    ) -> Result<RunEnd, Error> {
        // Buffered output goes to a file. A write beyond the file size limit must not end relent, since the command
        // would outlive it.
        ignore_file_size_signal().map_err(Error::Signals)?;
        let mut stdin = Stdin::of_process(self.max_buffer)?;
        // The verdict and the exit status of the previous attempt, if there was one.
        let mut last = None;
        loop {
            let entered = tokio::select! {
                biased;
                signal = signals.cancelled() => Err(signal),
                entered = admitted(driver, self.live) => Ok(entered),
            };
            let permit = match entered {
                Ok(Ok(permit)) => permit,
                Ok(Err(stop)) => {
                    let (verdict, own) = last.unzip();
                    return Ok(RunEnd {
                        status: status(own.unwrap_or(0), None, Some(stop)),
                        stop: Some(stop),
                        verdict,
                    });
                }
                Err(signal) => {
                    return Ok(RunEnd {
                        status: status_of(signal),
                        stop: Some(driver.on_cancel()),
                        verdict: last.map(|(verdict, _)| verdict),
                    });
                }
            };
            let how = self.next_attempt(driver, permit);
            let mut attempted = child::attempt(&self.command, how, &mut stdin, signals).await?;
            let verdict = self.classify_attempt(&attempted, &stdin);
            self.report_attempt(&attempted, verdict.as_ref());
            if verdict.is_some()
                && let Some(group) = attempted.left
            {
                // Two attempts never run at the same time, and no process of a failed one outlives relent.
                let mut ending = pin!(child::end(group, how.limits));
                attempted.cancelled = signals.cancelling(ending.as_mut()).await;
                if attempted.cancelled.is_some() {
                    ending.await;
                }
            }
            let unread = attempted.unread || verdict.is_some() && self.stream_is_unread();
            let was_shortened = driver.is_delay_shortened();
            let decision = verdict
                .as_ref()
                .map(|verdict| decide(driver, verdict, unread || attempted.cancelled.is_some()));
            let (verdict, after) = match (verdict, decision) {
                (Some(verdict), Some(Decision::Retry { after })) => (verdict, after),
                (verdict, decision) => {
                    if decision.is_none() {
                        driver.on_success_with(Cause::Exit(attempted.ended.status()));
                    }
                    let stop = decision.and_then(|decision| decision.stop());
                    let own = attempted.ended.status();
                    let status = status(own, attempted.cancelled, stop);
                    // The output of a success is not cut off, since the command has done its work.
                    let end = how.limits.last.filter(|_| verdict.is_some());
                    let interrupted = output::to_stdout(attempted.stdout, signals, end).await?;
                    return Ok(RunEnd {
                        status: interrupted.map_or(status, status_of),
                        stop,
                        verdict,
                    });
                }
            };
            let due = Instant::now().checked_add(after);
            let own = attempted.ended.status();
            let last_end = how.limits.last;
            let mut interrupted = output::to_stderr(attempted.stdout, signals, last_end).await?;
            let waiting = NextRetry {
                attempt: how.number,
                outcome: verdict.last(),
                hint: verdict.failure.hint,
                wait: after,
                is_shortened: driver.is_delay_shortened() && !was_shortened,
            };
            if interrupted.is_none() {
                let waited = async {
                    tokio::select! {
                        biased;
                        () = self.live.wait(&waiting) => {}
                        // A slow reader does not postpone the next attempt.
                        () = child::until(due) => {}
                    }
                };
                interrupted = signals.cancelling(waited).await;
            }
            if let Some(signal) = interrupted {
                return Ok(RunEnd {
                    status: status_of(signal),
                    stop: Some(driver.on_cancel()),
                    verdict: Some(verdict),
                });
            }
            last = Some((verdict, own));
        }
    }

    /// Registers the next attempt and returns its limits.
    fn next_attempt(&self, driver: &mut Driver<'_, TokioClock>, permit: CallPermit) -> Attempt {
        let now = Instant::now();
        let attempt = driver.on_attempt(permit);
        let most = self.policy.max_retries();
        // A limit beyond the range of the clock is no limit.
        let at = |limit: Option<Duration>| limit.and_then(|limit| now.checked_add(limit));
        Attempt {
            number: attempt.number,
            limits: Limits {
                end: at(attempt.limit),
                last: at(attempt.remaining),
                kill_after: self.kill_after,
                kill_after_signal: child::kill_after_signal(self.kill_after),
            },
            last: most.is_some_and(|most| attempt.number > most),
            stream: self.stream,
            most: self.max_buffer,
            advise: attempt.number == 1 && self.live.is_on_terminal(),
        }
    }

    /// Whether output is streamed to standard output, which has lost its reader.
    fn stream_is_unread(&self) -> bool {
        self.stream && stdout::reader_is_gone()
    }

    fn report_attempt(&self, attempted: &AttemptResult, verdict: Option<&AttemptFailure>) {
        let program = self.command.program.display();
        match &attempted.ended {
            CommandEnd::NotFound => report_error(&not_found(&self.command)),
            CommandEnd::CannotRun(error) => report_error(&format!("cannot run {program}: {error}")),
            _ => {}
        }
        if attempted.straggler && verdict.is_none() {
            say(
                "a process left behind by the command still holds its output open; \
                 its further output is lost",
            );
        }
    }

    /// Classifies a failed attempt; `None` is a success.
    fn classify_attempt(&self, attempted: &AttemptResult, stdin: &Stdin) -> Option<AttemptFailure> {
        let status = attempted.ended.status();
        let listed = |list: &Option<ExitList>| list.as_ref().map(|list| list.contains(status));
        let kept = match (attempted.passed_on, stdin.is_exceeded()) {
            (true, _) => Some(NotRetried::PassedOn),
            (_, true) => Some(NotRetried::InputNotKept),
            _ => None,
        };
        let verdict = |cause, refused: Option<NotRetried>| {
            let refused = refused.or(kept);
            let failure = match refused {
                None => Failure::ambiguous(),
                Some(_) => Failure::permanent(),
            };
            Some(AttemptFailure {
                failure: failure.cause(cause),
                status,
                refused,
            })
        };
        let cause = match attempted.ended {
            CommandEnd::NotFound | CommandEnd::CannotRun(_) => {
                return verdict(Cause::Exit(status), Some(NotRetried::CannotRun));
            }
            CommandEnd::TimedOut => return verdict(Cause::Timeout, None),
            CommandEnd::Exit(status) => Cause::Exit(status),
            CommandEnd::Signal(signal) => Cause::Signal(signal),
        };
        match (listed(&self.stop_on_exit), listed(&self.retry_on_exit)) {
            (Some(true), _) if status == 0 => None,
            (Some(true), _) => verdict(cause, Some(NotRetried::StopOnExit)),
            _ if attempted.matched => verdict(Cause::Output, None),
            (_, Some(true)) => verdict(cause, None),
            _ if status == 0 => None,
            (_, Some(false)) => verdict(cause, Some(NotRetried::NotInRetryOnExit)),
            (_, None) => verdict(cause, None),
        }
    }
}

impl AttemptFailure {
    /// Describes the failure of the attempt.
    fn last(&self) -> String {
        let cause = &self.failure.cause;
        match (cause, self.status) {
            (Cause::Output, status) => format!("exit {status}, and --retry-on-output matched"),
            (_, 0) => "exit 0, which is in --retry-on-exit".to_owned(),
            _ => cause.to_string(),
        }
    }
}

/// Returns the exit status of a run after its last attempt.
fn status(own: i32, cancelled: Option<Signal>, stop: Option<Stop>) -> i32 {
    match (stop.map(|stop| stop.reason), own) {
        // The circuit breaker queues an attempt until no time is left.
        (Some(StopReason::Deadline | StopReason::MaxElapsed | StopReason::CircuitBreaker), _) => {
            EXIT_TIME_LIMIT
        }
        (Some(_), 0) => cancelled.map_or(EXIT_GAVE_UP, status_of),
        (_, status) => status,
    }
}

/// Decides about a retry. `cancelled`: a signal has arrived, or standard output has lost its reader.
fn decide(
    driver: &mut Driver<'_, TokioClock>,
    verdict: &AttemptFailure,
    cancelled: bool,
) -> Decision {
    let failure = &verdict.failure;
    if cancelled {
        Decision::Stop(driver.on_stop(failure, StopReason::Cancelled))
    } else if verdict.refused.is_some() {
        Decision::Stop(driver.on_stop(failure, StopReason::Permanent))
    } else {
        driver.on_failure(failure)
    }
}

const fn status_of(signal: Signal) -> i32 {
    128 + signal as i32
}
