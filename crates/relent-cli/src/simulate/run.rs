//! `relent simulate run`: runs policies in scenarios, and compares them.

use std::path::{Path, PathBuf};

use clap::Args;
use relent::Policy;
use relent_sim::study::run_all;
use relent_sim::{Scenario, scenarios};

use super::builtin::suggestion;
use super::charts::{self, Charts};
use super::input::{MAX_SCENARIO_BYTES, NamedItem, load_policy, read_at_most};
use super::json::json;
use super::options::{PolicyList, Report, Seeds, Threads};
use super::progress::progress;
use super::ranked;
use crate::console::print;
use crate::exit_status::ExitError;

/// The end of `relent simulate run --help`.
pub(super) const AFTER_HELP: &str = "\
Examples:
  The default policies in all built-in scenarios:
      relent simulate run

  Compare policies in an outage:
      relent simulate run blackout --policy off,standard,./mine.toml#reports

  A service of your own, starting from a built-in scenario:
      relent simulate show blackout > service.toml
      relent simulate run ./service.toml --set clients.processes=200 --seeds 10

  Charts: one file for a browser, or one picture:
      relent simulate run blackout --report blackout.html
      relent simulate run herd --policy aws-legacy --plot herd.svg

Policies are ranked by goodput, and by attempts if that differs by less than
.001. The table always has a line for off (no retries). The first line is the
bound: the goodput of an optimal scheduler that knows all arrivals and failures
in advance, has one queue and makes only the necessary attempts. If there is no
bound, the reason is printed. A warning marks a policy that is worse than off by
more than .01 (paired by seeds, beyond the 95 % interval), that does not recover
from an outage from which off recovers, or that makes twice the necessary
attempts.

The numbers are means over the seeds, with 95 % confidence intervals:
  goodput     successes before the caller's deadline, as a share of the requests
  ampl.       attempts that reach the service, per success
  ttr         time to recover, in seconds from the end of the outage: the start
              of the first ten seconds in which 99 % of the new requests finish
              within a second, or within the 99.9th percentile of the service
              time if that is longer (99 % of those that succeed without
              retries, if some fail at any load). never if that does not
              happen; the mean covers the seeds that recover, and the number of
              the others is printed. If only some recover, the other numbers
              have no interval, and the text gives the goodput of both groups
  drain       seconds until the last request of the outage, or of a thundering
              herd, has succeeded
  peak        the most attempts in a second of the two minutes after the outage,
              over the capacity
  dupl.       executions beyond one per success
  fair.       Jain's index of fairness: 1 if each client process completes the
              same share of its requests (each station sends the same number of
              frames), 1/n if one of n gets everything
  drops       messages lost, if the network loses some
  eff.        the share of the time in which a shared medium carries frames that
              arrive
  p50, p99, p99.9   latency of successes, including delays

Further tables show how long callers wait, and for what, in seconds, as p50 and
p99:
  all requests      from the start of a request to its end, with any outcome
  retried requests  the same for requests with more than one attempt, and their
                    share of all
  retried: backoff  of that time: the computed backoff, and the delays that
                    servers ask for
  retried: held     of that time: how long the destination (circuit breaker,
                    retry budget, cooldown, rate limit) holds them after their
                    backoff
  held while up     how long one retry is held after the first success of
                    another caller (in any process) that follows its backoff
  success after fault   from the end of a fault to the success of a request
                    that was open then, without the time of further faults

JSON is one line for each scenario and seed, with scenario, seed, bound and
runs; each run has policy, goodput, amplification, ttr_s, drain_s, peak,
duplicates, fairness, efficiency, p50_ms, p99_ms, p999_ms, attempts, requests,
successes, give_ups (requests that the policy gave up), drops, layers: for each
layer of a chain, from the clients down, calls_in and calls_out, and classes:
for each class of requests name, requests and successes. ended (all requests),
retried, backoff, held, held_while_up and success_after_fault are the times of
the further tables, each with count (of requests), p50_s, p99_s and max_s;
unanswered counts requests that were open at the end of a fault and never
succeed. Numbers that do not exist, such as the time to recover of a service
that does not, are null.

A report is one HTML file without external resources: the behaviour over time,
latencies, the attempts of a thundering herd with and without jitter, the
numbers of the first table, and the parameters. A picture shows the behaviour
over time (of a thundering herd, the attempts of its clients), with a panel for
each policy. Both are written after all runs, completely or not at all; they
show the run with the first seed over time.

Runs use the decision code of production, in virtual time; the same seed gives
the same numbers on every machine.

Exit status: 0; 1 if a run is given up, or the result cannot be written; 2 if
the options, a policy or a scenario are wrong.";

/// The advice for errors in a scenario.
const SEE_TEMPLATE: &str = "see `relent simulate template` for every key and its default, and \
    `relent simulate show blackout` for a scenario to start from";

/// The arguments of `relent simulate run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Built-in scenarios, or files in TOML [default: all built-in scenarios]
    ///
    /// `relent simulate list` shows the built-in scenarios, and `relent simulate template` every key of a
    /// file.
    #[arg(value_name = "SCENARIO|FILE")]
    scenarios: Vec<String>,

    #[command(flatten)]
    policies: PolicyList,

    #[command(flatten)]
    seeds: Seeds,

    /// Change a value of every scenario, such as service.failures=0.1; repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = change)]
    set: Vec<(String, String)>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    report: Report,

    /// Draw one scenario
    #[arg(long, value_name = "FILE.svg", value_parser = charts::picture)]
    plot: Option<PathBuf>,

    #[command(flatten)]
    threads: Threads,
}

fn change(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .filter(|(key, _)| !key.trim().is_empty())
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .ok_or_else(|| "use a key and its value, such as service.failures=0.1".to_owned())
}

/// Runs the scenarios and prints the results.
///
/// # Errors
/// Policies, scenarios or changes are wrong, runs were given up, or the output cannot be written.
pub(super) fn run(args: &RunArgs) -> Result<(), ExitError> {
    let (seeds, threads) = (args.seeds.all(), args.threads.count());
    let policies = args.policies.load()?;
    let names = match args.scenarios.as_slice() {
        [] => scenarios::names().into_iter().map(str::to_owned).collect(),
        named => named.to_vec(),
    };
    // Everything is read before anything runs.
    let scenarios = names.into_iter().map(|name| {
        let (value, text) = scenario(&name, &args.set)?;
        Ok(NamedItem { name, value, text })
    });
    let scenarios: Vec<NamedItem<Scenario>> = scenarios.collect::<Result<_, ExitError>>()?;
    // A table and a report compare all policies with `off`, also if it was not given.
    let only_json = args.json && args.report.file.is_none();
    let off = match only_json || policies.iter().any(|policy| policy.name == ranked::OFF) {
        true => None,
        false => Some(load_policy(ranked::OFF)?.value),
    };

    let mut charts = Charts::open(
        args.report.file.as_deref(),
        args.plot.as_deref(),
        &scenarios,
        &policies,
    )?;

    let rows = policies.len() + usize::from(off.is_some());
    let runs = scenarios.len() * rows * seeds.len();
    let bar = progress(runs + charts.runs());
    let mut given_up = 0;
    for scenario in &scenarios {
        bar.set_message(scenario.name.clone());
        let values: Vec<&Policy> = policies.iter().map(|policy| &policy.value).collect();
        let on_run = || bar.inc(1);
        let results = run_all(&scenario.value, &values, &seeds, threads, &on_run);
        given_up += results.iter().flatten().filter(|run| run.is_err()).count();
        let without = off.as_ref().and_then(|off| {
            let runs = run_all(&scenario.value, &[off], &seeds, threads, &on_run);
            runs.into_iter().next()
        });
        let text = match args.json {
            true => json(scenario, &policies, &seeds, &results),
            false => {
                let rows = policies
                    .iter()
                    .zip(&results)
                    .map(|(policy, runs)| ranked::Row {
                        name: &policy.name,
                        runs,
                    });
                let without = without.iter().map(|runs| ranked::Row {
                    name: ranked::OFF,
                    runs,
                });
                let rows: Vec<ranked::Row<'_>> = rows.chain(without).collect();
                ranked::report(scenario, &rows, &seeds)
            }
        };
        bar.suspend(|| print(&text)).map_err(ExitError::failed)?;
        charts.add(scenario, seeds[0], results, without, threads, &on_run);
    }
    bar.finish_and_clear();
    charts.write(&policies, &seeds, &args.set)?;
    match given_up {
        0 => Ok(()),
        runs => Err(ExitError::failed(format!(
            "{runs} of the runs were given up: the policy makes too many attempts for a simulation"
        ))),
    }
}

/// Loads a built-in scenario or a file.
fn scenario(name: &str, changes: &[(String, String)]) -> Result<(Scenario, String), ExitError> {
    let text = match scenarios::get(name) {
        Some(builtin) => builtin.text.to_owned(),
        None => read(name).map_err(ExitError::usage)?,
    };
    let changes: Vec<_> = changes
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    match Scenario::parse_with(&text, &changes) {
        Ok(scenario) => Ok((scenario, text)),
        Err(error) => Err(ExitError::usage(format!("{name}: {error}\n{SEE_TEMPLATE}"))),
    }
}

fn read(path: &str) -> Result<String, String> {
    if !Path::new(path).exists() {
        return Err(format!(
            "no scenario {path:?}: there is no file of that name; {}\n{SEE_TEMPLATE}",
            suggestion(path)
        ));
    }
    read_at_most(
        Path::new(path),
        MAX_SCENARIO_BYTES,
        "a scenario has at most 1 MiB",
    )
}
