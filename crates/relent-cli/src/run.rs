//! `relent run`: a command, repeated until it succeeds.

mod child;
mod error;
mod exit_list;
mod output;
mod output_match;
mod stdin;
mod terminal;

use std::ffi::OsString;

use clap::Args;
use regex::bytes::Regex;
use relent::{
    Cause, Decision, Destination, Driver, Failure, Goes, Pattern, Policy, Random, Stop, StopReason,
    TokioClock,
};

use crate::console::{complain, say};
use crate::live::{Live, Waiting};
use crate::options::PolicyOptions;
use crate::signals::Signals;
use crate::trace_out::{self, TraceOut};
use child::{Attempt, Attempted, CommandLine, Ended};
pub(crate) use error::Error;
use exit_list::ExitList;
use nix::sys::signal::Signal;
use stdin::Stdin;

/// The end of `relent run --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  Wait for a database, for at most a minute:
      relent run --deadline 1m -- pg_isready -h db

  Give each attempt 10 s, and do not repeat a usage error:
      relent run --attempt-timeout 10s --stop-on-exit 2 -- rsync -a src/ host:dst/

  Repeat only what the program calls temporary (75, EX_TEMPFAIL):
      relent run --retry-on-exit 75 -- sendmail -t < message

  Repeat what succeeds but says that it did not:
      relent run --retry-on-output 'try again' -- ./status | jq .state

Streams:
  Every attempt reads the same standard input. Standard output appears once, that of the final
  attempt; what earlier attempts wrote there goes to standard error. An attempt finds its number in
  RELENT_ATTEMPT.

Exit status: that of the last attempt, and
  124     time ended it (--attempt-timeout, --deadline)
  125     relent itself failed, or its options are wrong
  126     the command cannot be run; never retried
  127     the command was not found; never retried
  128+n   signal n ended it, or ended the wait for the next attempt
  A trace that cannot be written in the end is said on standard error and changes nothing here.";

/// What `relent run` is given.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,

    /// Retry these exit statuses and no others, such as 1,75,100-110
    ///
    /// 0 may be among them. Signal n counts as 128+n. An attempt that was ended by
    /// --attempt-timeout, or whose output matches --retry-on-output, is retried besides.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    retry_on_exit: Option<ExitList>,

    /// Never retry these exit statuses
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    stop_on_exit: Option<ExitList>,

    /// Also retry an attempt whose standard output or standard error matches, whatever its status
    ///
    /// The syntax is that of the Rust crate regex. ^ and $ are the ends of the whole output, unless
    /// (?m) is given. Matches of up to 1 MiB are found.
    #[arg(long, value_name = "REGEX", value_parser = regex, allow_hyphen_values = true)]
    retry_on_output: Option<Regex>,

    #[command(flatten)]
    options: PolicyOptions,
}

fn regex(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| {
        // The error draws the place over several lines; the last says what is wrong.
        let error = error.to_string();
        let last = error.lines().last().unwrap_or_default();
        last.strip_prefix("error: ").unwrap_or(last).to_owned()
    })
}

/// A command and when it is run again.
#[derive(Debug)]
struct Run {
    command: CommandLine,
    policy: Policy,
    retry_on_exit: Option<ExitList>,
    stop_on_exit: Option<ExitList>,
    live: Live,
}

/// How a run ended.
struct End {
    status: i32,
    /// Why there was no other attempt; `None` after a success.
    stop: Option<Stop>,
    /// What is said about it.
    verdict: Option<Verdict>,
}

/// What a failed attempt means.
#[derive(Debug)]
struct Verdict {
    failure: Failure,
    /// Why it is not retried, whatever the policy says.
    refused: Option<Refused>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refused {
    /// It never began, which has been said.
    CannotRun,
    StopOnExit,
    NotInRetryOnExit,
}

/// Runs the command until it succeeds, must not be repeated or has been repeated enough, and returns
/// the exit status of the last attempt.
///
/// # Errors
/// When relent itself cannot go on, in words.
pub(crate) async fn run(args: RunArgs) -> Result<i32, String> {
    let policy = for_commands(&args, args.options.resolve()?.policy)?;
    let trace = args.options.trace.as_deref().map(TraceOut::open);
    let trace = trace.transpose()?;
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
        live: Live::new(args.options.quiet),
    };
    // One caller: of what a destination shares, it has the budget.
    let there = Destination::new(&run.policy);
    let mut driver = Driver::builder(&run.policy, TokioClock)
        .random(args.options.random())
        .traced()
        .destination(&there)
        .start();

    let end = run.attempts(&mut driver).await;
    let stop = match &end {
        Ok(end) => end.stop,
        Err(_) => Some(driver.on_cancel()),
    };
    let summary = driver.summary(stop);
    if let Ok(end) = &end
        && let Some(verdict) = &end.verdict
    {
        let last = verdict.failure.cause.to_string();
        match verdict.refused {
            None => run.live.gave_up(&summary, &last),
            Some(Refused::CannotRun) => {}
            Some(Refused::StopOnExit) => run
                .live
                .say(|| format!("{last} is not retried: it is in --stop-on-exit")),
            Some(Refused::NotInRetryOnExit) => run
                .live
                .say(|| format!("{last} is not retried: it is not in --retry-on-exit")),
        }
    }
    if let Err(error) = trace_out::finish(trace, &summary) {
        complain(&error);
    }
    end.map(|end| end.status).map_err(|error| error.to_string())
}

/// The policy as it applies to a command. `--retry-on-exit` takes the place of its own list of what
/// is retried; so does everything a command can do where that list does not speak of commands: one
/// about HTTP would mean that nothing is ever retried, which no one asks for by naming a policy.
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

impl Run {
    async fn attempts<R: Random, D: Goes>(
        &self,
        driver: &mut Driver<'_, TokioClock, R, &Policy, D>,
    ) -> Result<End, Error> {
        let mut signals = Signals::listen().map_err(Error::Signals)?;
        let mut stdin = Stdin::of_process()?;
        loop {
            let attempt = driver.on_attempt();
            let most = self.policy.max_retries();
            let how = Attempt {
                number: attempt.number,
                timeout: attempt.limit,
                last: most.is_some_and(|most| attempt.number > most),
            };
            let attempted = child::attempt(&self.command, how, &mut stdin, &mut signals).await?;
            self.say_what_no_status_tells(&attempted);

            let verdict = self.judge(&attempted);
            let decision = verdict
                .as_ref()
                .map(|verdict| decide(driver, verdict, attempted.cancelled));
            let after = match (&verdict, decision) {
                (Some(verdict), Some(Decision::Retry { after })) => Waiting {
                    attempt: attempt.number,
                    outcome: verdict.failure.cause.to_string(),
                    hint: verdict.failure.hint,
                    wait: after,
                },
                (_, decision) => {
                    if decision.is_none() {
                        driver.on_success_with(Cause::Exit(attempted.ended.status()));
                    }
                    let status = attempted.ended.status();
                    let interrupted = output::to_stdout(attempted.stdout, &mut signals).await?;
                    return Ok(End {
                        status: interrupted.map_or(status, status_of),
                        stop: decision.and_then(|decision| decision.stop()),
                        verdict,
                    });
                }
            };
            let mut interrupted = output::to_stderr(attempted.stdout, &mut signals).await?;
            if interrupted.is_none() {
                interrupted = signals.cancelling(self.live.wait(&after)).await;
            }
            if let Some(signal) = interrupted {
                return Ok(End {
                    status: status_of(signal),
                    stop: Some(driver.on_cancel()),
                    verdict,
                });
            }
        }
    }

    fn say_what_no_status_tells(&self, attempted: &Attempted) {
        let program = self.command.program.display();
        match &attempted.ended {
            Ended::NotFound => complain(&format!("cannot run {program}: command not found")),
            Ended::CannotRun(error) => complain(&format!("cannot run {program}: {error}")),
            _ => {}
        }
        if attempted.straggler {
            say(
                "a process left behind by the command still holds its output; \
                 what it writes from now on is lost",
            );
        }
    }

    /// Whether an attempt failed, and how; `None` is a success.
    fn judge(&self, attempted: &Attempted) -> Option<Verdict> {
        let status = attempted.ended.status();
        let listed = |list: &Option<ExitList>| list.as_ref().map(|list| list.contains(status));
        let verdict = |cause, refused: Option<Refused>| {
            let failure = match refused {
                None => Failure::ambiguous(),
                Some(_) => Failure::permanent(),
            };
            Some(Verdict {
                failure: failure.cause(cause),
                refused,
            })
        };
        let cause = match attempted.ended {
            Ended::NotFound | Ended::CannotRun(_) => {
                return verdict(Cause::Exit(status), Some(Refused::CannotRun));
            }
            Ended::TimedOut => return verdict(Cause::Timeout, None),
            Ended::Exit(status) => Cause::Exit(status),
            Ended::Signal(signal) => Cause::Signal(signal),
        };
        match (listed(&self.stop_on_exit), listed(&self.retry_on_exit)) {
            (Some(true), _) if status == 0 => None,
            (Some(true), _) => verdict(cause, Some(Refused::StopOnExit)),
            _ if attempted.matched => verdict(Cause::Output, None),
            (_, Some(true)) => verdict(cause, None),
            _ if status == 0 => None,
            (_, Some(false)) => verdict(cause, Some(Refused::NotInRetryOnExit)),
            (_, None) => verdict(cause, None),
        }
    }
}

fn decide<R: Random, D: Goes>(
    driver: &mut Driver<'_, TokioClock, R, &Policy, D>,
    verdict: &Verdict,
    cancelled: Option<Signal>,
) -> Decision {
    let Verdict { failure, refused } = verdict;
    if cancelled.is_some() {
        Decision::Stop(driver.on_stop(failure, StopReason::Cancelled))
    } else if refused.is_some() {
        Decision::Stop(driver.on_stop(failure, StopReason::Permanent))
    } else {
        driver.on_failure(failure)
    }
}

const fn status_of(signal: Signal) -> i32 {
    128 + signal as i32
}
