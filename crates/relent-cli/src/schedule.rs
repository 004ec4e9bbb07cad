//! `relent schedule`: shows the delays of a policy.

mod row;
mod table;

use std::cell::Cell;
use std::time::{Duration, SystemTime};

use clap::Args;
use http::{HeaderMap, Method, StatusCode};
use relent::driver::{Decision, Driver, NextStep};
use relent::failure::{Cause, Network};
use relent::policy::Pattern;
use relent::random::{FixedRandom, Random, SessionRandom};
use relent::{Failure, Policy, Summary, VirtualClock};
use relent_http::{HintOptions, RequestInfo};

use crate::console::{print, say};
use crate::exit_status::ExitError;
use crate::human::human;
use crate::options::{PolicyOptions, ResolvedPolicy};
use crate::trace_out::{self, TraceOut};

use row::Row;

/// The end of `relent schedule --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  The delays of the default policy, and of a changed one:
      relent schedule
      relent schedule --max-retries 5 --max-delay 10s

  The longest total delay of a preset, in milliseconds:
      relent schedule --policy vital --random 1 --json | jq '.[-1].total_ms'

  The delays of a policy file after a 429:
      relent schedule --policy ./policies.toml#reports --status 429

The numbers are those of a session in which every attempt fails immediately:
  delay   the delay before the retry, drawn at --random or with --seed
  least   the minimum of the delay, given the delays above it
  most    the maximum of the delay, given the delays above it
  total   the sum of the delays so far
Attempts take time, and `relent run` ends a command before its deadline
(--kill-after): near a deadline its delays can be shorter.

JSON is one array of objects with retry, delay_ms, min_ms, max_ms and total_ms;
milliseconds have fractions. --trace writes the trace of that session, in
virtual time.

Exit status: 0; 1 if the result cannot be written; 2 if the options or the
policy are wrong.";

/// A schedule with this many retries is considered endless.
const ENDLESS_RETRIES: usize = 1000;
/// The number of retries that are shown of an endless schedule, or of one without a maximum number of retries.
const SHOWN_RETRIES: usize = 20;

/// The arguments of `relent schedule`.
#[derive(Args, Debug)]
pub(crate) struct ScheduleArgs {
    /// The position of each random delay in its range, from 0 (shortest) to 1 (longest) [default: 0.5]
    #[arg(
        long,
        value_name = "0..1",
        value_parser = point,
        allow_hyphen_values = true,
        conflicts_with = "seed"
    )]
    random: Option<f64>,

    /// Show the delays after this HTTP status [default: the first failure that is retried]
    #[arg(long, value_name = "N", value_parser = status, allow_hyphen_values = true)]
    status: Option<StatusCode>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    options: PolicyOptions,
}

fn point(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|point| (0.0..=1.0).contains(point))
        .ok_or_else(|| "use a number from 0 to 1".to_owned())
}

fn status(text: &str) -> Result<StatusCode, String> {
    text.parse()
        .ok()
        .filter(|status: &StatusCode| (200..600).contains(&status.as_u16()))
        .ok_or_else(|| {
            "use an HTTP status that is a failure, from 400 to 599, or one that the policy lists"
                .to_owned()
        })
}

/// Prints the schedule.
///
/// # Errors
/// The policy cannot be loaded, options contradict it, or the output cannot be written.
pub(crate) fn run(args: &ScheduleArgs) -> Result<(), ExitError> {
    let ResolvedPolicy { name, policy } = args.options.resolve().map_err(ExitError::usage)?;
    let trace = args.options.trace.as_deref().map(TraceOut::open);
    let trace = trace.transpose().map_err(ExitError::usage)?;
    if let Some(status) = args.status.map(|status| status.as_u16())
        && status < 400
        && !policy.makes_failure_of(status)
    {
        return Err(ExitError::usage(format!(
            "--status {status}: policy `{name}` does not treat it as a failure: use a status from 400 to \
             599, or one that the policy lists"
        )));
    }
    let failure = failure(args.status, &policy);
    let stream = match (args.options.seed, args.random) {
        (Some(_), _) => DelayRandom::Seeded(args.options.random()),
        (None, point) => DelayRandom::Pinned(FixedRandom::at(point.unwrap_or(0.5))),
    };
    let schedule = Schedule {
        policy: &policy,
        failure,
        stream,
    };
    let (mut rows, mut summary) = schedule.rows(ENDLESS_RETRIES);
    let cut = rows.len() == ENDLESS_RETRIES
        || (policy.max_retries().is_none() && rows.len() > SHOWN_RETRIES);
    if cut {
        (rows, summary) = schedule.rows(SHOWN_RETRIES);
    }

    if args.json {
        print(&json(&rows)).map_err(ExitError::failed)?;
    } else {
        let draws = match (&schedule.stream, args.options.seed) {
            (DelayRandom::Seeded(_), Some(seed)) => format!("drawn with seed {seed}"),
            _ => match args.random {
                None => "random delays at the middle of their range".to_owned(),
                Some(point) => format!("random delays at {point} of their range"),
            },
        };
        let after = match failure.cause {
            Cause::Error => "a failure".to_owned(),
            cause => cause.to_string(),
        };
        let title = format!("{name}, after {after}, {draws}");
        let table = table::table(&title, &rows, table::TableStyle::of_terminal());
        print(&(table + &queueing(&policy).unwrap_or_default())).map_err(ExitError::failed)?;
    }
    if !args.options.quiet {
        if cut {
            say(&format!(
                "policy `{name}` has more retries; the first {SHOWN_RETRIES} are shown"
            ));
        } else if rows.is_empty() {
            say(&match policy.max_retries() {
                Some(0) => format!("policy `{name}` allows no retries"),
                _ => format!("policy `{name}` does not retry after {}", failure.cause),
            });
        }
    }
    trace_out::finish(trace, &summary, None).map_err(ExitError::failed)
}

/// Describes how long a call may be queued, beyond the shown delays, while its destination is down.
fn queueing(policy: &Policy) -> Option<String> {
    let circuit_breaker = policy.circuit_breaker().filter(|_| !policy.is_off())?;
    let limit = policy.deadline().or(policy.max_elapsed());
    let text = match limit {
        Some(limit) => format!(
            "while the destination is down, a call is queued beyond these delays, until {} after its start",
            human(limit.min(circuit_breaker.max_queue_time))
        ),
        None => format!(
            "while the destination is down, a call is queued beyond these delays: no attempt starts later than {} \
             after the call began, or {} while there was never a response; with a deadline it is queued until \
             then, for {} at most",
            human(circuit_breaker.max_queue_time_without_deadline),
            human(
                circuit_breaker
                    .max_queue_time_without_response
                    .min(circuit_breaker.max_queue_time_without_deadline)
            ),
            human(circuit_breaker.max_queue_time)
        ),
    };
    Some(text + "\n")
}

fn json(rows: &[Row]) -> String {
    let rows: Vec<_> = rows
        .iter()
        // A row has only numbers, so serializing cannot fail.
        .map(|row| serde_json::to_string(row).unwrap_or_default())
        .collect();
    format!("[{}]\n", rows.join(",\n "))
}

/// The failure of every attempt. Without a status it is the first one that the policy retries: of the failures that it
/// lists, then a failure without a cause, then those of its rules. Rules come last because most are exceptions.
fn failure(status: Option<StatusCode>, policy: &Policy) -> Failure {
    let headers = HeaderMap::new();
    if let Some(status) = status {
        // A repeatable request: the schedule does not depend on the method.
        let request = RequestInfo::of(&Method::GET, &headers);
        let (now, options) = (SystemTime::now(), HintOptions::default());
        return relent_http::classify(status, &headers, request, now, &options)
            .or_else(|| relent_http::classify_listed(policy, status, &headers, now, &options))
            .unwrap_or(Failure::not_processed().cause(Cause::Status(status.as_u16())));
    }
    let listed = policy.retry_on().into_iter().flatten().map(example);
    let rules = policy.rules().iter().flat_map(|rule| &rule.on).map(example);
    listed
        .chain([Failure::not_processed()])
        .chain(rules)
        .find(|failure| {
            policy
                .waits_after(*failure, FixedRandom::at(0.5))
                .next()
                .is_some()
        })
        .unwrap_or(Failure::not_processed())
}

/// A failure that the pattern matches.
fn example(pattern: &Pattern) -> Failure {
    let cause = match *pattern {
        Pattern::Throttled => return Failure::throttled().cause(Cause::Status(429)),
        Pattern::Connect => return Failure::network(Network::Connect),
        Pattern::Network => return Failure::network(Network::Reset),
        Pattern::Status(429, _) => return Failure::throttled().cause(Cause::Status(429)),
        Pattern::Status(status, _) => Cause::Status(status),
        Pattern::Grpc(code) => Cause::Grpc(code),
        Pattern::Exit(status, _) => Cause::Exit(status),
        Pattern::Signal => Cause::Signal(15),
        Pattern::Output => Cause::Output,
        Pattern::Timeout => Cause::Timeout,
        Pattern::Error | Pattern::Any => Cause::Error,
    };
    Failure::not_processed().cause(cause)
}

struct Schedule<'p> {
    policy: &'p Policy,
    failure: Failure,
    stream: DelayRandom,
}

/// The random source of the shown delays.
#[derive(Clone, Debug)]
enum DelayRandom {
    Pinned(FixedRandom),
    Seeded(SessionRandom),
}

impl Random for DelayRandom {
    fn next_u64(&mut self) -> u64 {
        match self {
            Self::Pinned(draw) => draw.next_u64(),
            Self::Seeded(random) => random.next_u64(),
        }
    }
}

/// A random source that can be pinned temporarily, to find the range of a delay.
#[derive(Clone, Debug)]
struct PinnableRandom<'c> {
    pinned: &'c Cell<Option<FixedRandom>>,
    stream: DelayRandom,
}

impl Random for PinnableRandom<'_> {
    fn next_u64(&mut self) -> u64 {
        match self.pinned.get() {
            Some(mut draw) => draw.next_u64(),
            None => self.stream.next_u64(),
        }
    }
}

impl Schedule<'_> {
    /// Returns at most `limit` retries, and the summary of their session.
    fn rows(&self, limit: usize) -> (Vec<Row>, Summary) {
        let clock = VirtualClock::new();
        let mut driver = Driver::builder(self.policy, &clock)
            .random(self.stream.clone())
            .traced()
            .start();
        // The range of a delay ignores the time left, unless the policy shortens the last delay to it.
        let ranging = if self.policy.final_attempt_before_deadline() {
            Some(self.policy.clone())
        } else {
            without_time_limits(self.policy)
        };
        let pinned = Cell::new(None);
        let mut range = ranging.as_ref().map(|policy| {
            let (pinned, stream) = (&pinned, self.stream.clone());
            policy.waits_after(self.failure, PinnableRandom { pinned, stream })
        });
        let mut rows = Vec::new();
        let mut total = Duration::ZERO;
        let stop = loop {
            match driver.enter(None) {
                NextStep::Start(permit) => driver.on_attempt(permit),
                NextStep::Stop(stop) => break stop,
                NextStep::Wait { after, .. } => {
                    clock.advance(after);
                    continue;
                }
            };
            if rows.len() == limit {
                break driver.on_cancel();
            }
            let delay = match driver.on_failure(&self.failure) {
                Decision::Retry { after } => after,
                Decision::Stop(stop) => break stop,
            };
            clock.advance(delay);
            total = total.saturating_add(delay);
            let at = |point| {
                pinned.set(Some(FixedRandom::at(point)));
                let wait = range.clone().and_then(|mut waits| waits.next());
                pinned.set(None);
                wait.unwrap_or(delay)
            };
            let (min, max) = (at(0.0), at(1.0));
            if let Some(range) = &mut range {
                range.next();
            }
            rows.push(Row {
                retry: driver.attempts(),
                delay,
                min,
                max,
                total,
            });
        };
        (rows, driver.summary(Some(stop)))
    }
}

/// The policy without its time limits.
fn without_time_limits(policy: &Policy) -> Option<Policy> {
    let builder = policy.clone().into_builder().max_elapsed(Duration::MAX);
    builder.deadline(Duration::MAX).build().ok()
}
