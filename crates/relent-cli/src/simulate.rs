//! `relent simulate`: simulates many clients that use a policy.

mod advise;
mod charts;
mod grid;
mod random;
mod ranked;
mod table;

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use relent::{NamedPolicy, Policy};
use relent_sim::advise::TimeUnit;
use relent_sim::generate::Generator;
use relent_sim::study::{RunResult, run_all};
use relent_sim::{Metrics, Scenario, Times, bound, scenarios};
use serde::Serialize;

use crate::console::print;
use crate::options::seed;
use crate::quit::ExitError;

/// The end of `relent simulate --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  List the built-in scenarios, and run the default policies in all of them:
      relent simulate --list
      relent simulate

  Compare policies in an outage:
      relent simulate blackout --policies off,standard,envoy,./mine.toml#reports

  Simulate your own service, starting from a built-in scenario; the format is
  TOML, and --format prints every key and its default:
      relent simulate --show blackout > service.toml
      relent simulate --format
      relent simulate ./service.toml --set clients.processes=200 --seeds 10

  Draw charts: all numbers in one file for a browser, or one picture:
      relent simulate blackout --policies off,standard --report blackout.html
      relent simulate herd --policies aws-legacy --plot herd.svg

  Get a policy for your own service, with the reason for each value, and a page
  that compares it with other policies:
      relent simulate --format service > orders.toml     # and fill it in
      curl -s http://orders.internal/metrics > before.txt    # an hour before
      curl -s http://orders.internal/metrics > now.txt
      relent simulate --advise orders.toml --histogram now.txt \\
          --since before.txt --metric http_request_duration_seconds \\
          --report orders.html > policy.toml

  Look for weaknesses: draw a thousand services, client populations and faults
  at random, and save the scenarios in which the policy is worse than off:
      relent simulate --random 1000 --policies standard --save found

Policies are ranked by goodput, and by attempts if that differs by less than
.001. off (no retries) is always included. The first line is the bound: the
goodput of an optimal scheduler that knows all arrivals and failures in advance,
has one queue and makes only the necessary attempts. If there is no bound, the
reason is printed. A warning marks a policy that is worse than off by more than
.01 (paired by seeds, beyond the 95 % interval), that does not recover from an
outage from which off recovers, or that makes twice the necessary attempts.

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
  peak        the most attempts in a second after the outage, over the capacity
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
for each class of requests name, requests and successes. ended, retried,
backoff, held, held_answered and back are the times of the further tables, each
with count (of requests), p50_s, p99_s and max_s; unanswered counts requests
that were open at the end of a fault and never succeed. Numbers that do not
exist, such as the time to recover of a service that does not, are null.

A report is one HTML file without external resources: the behaviour over time,
latencies, the attempts of a thundering herd with and without jitter, all
numbers, and the parameters. A picture shows the behaviour over time (of a
thundering herd, the attempts of its clients), with a panel for each policy.
Both are written after all runs, completely or not at all; they show the run
with the first seed over time.

With --random each policy is compared with off, on the same requests. A
difference counts if it exceeds its 99 % confidence interval over ten seeds:
  stuck       does not recover: of the requests of the last quarter of the time,
              long after the fault, fewer complete than with off, by more than
              .1; and also in a run of four times the time
  worse       fewer requests complete than with off, by more than .01
  better      with another built-in policy more requests complete, by more than
              .02, without more attempts
--seed is the number of the first scenario. --generator everyday draws other
scenarios than broad: services at any distance with short queues and high loads,
few and low-traffic callers, and random fast failures. The numbers do not depend
on --jobs.

With --grid a line for each cell shows the share of requests that complete in
the last quarter of the time with off and with the policy (late), attempts per
request, the longest time for which a retry is held while the destination
responds (held), and from the end of a fault to a success (answer). A cell that
misses a bound of the file is evaluated by the means over four seeds.
scenarios/grids has files and their format.

With --advise standard output is a policy file. Its comments give the source of
each value, and compare the policy in faults that fit the description with off,
standard, policies of other systems (--policies) and the bound. A histogram is
in the text format of Prometheus. It should describe the service without
incidents, and it counts since its process started: save the metrics at the
start and at the end of an hour without incidents, and pass the first file as
--since.

Runs use the decision code of production, in virtual time; the same seed gives
the same numbers on every machine.

Exit status: 0; 1 if a run is given up, the result cannot be written, --random
finds a policy that is stuck or worse than off, or --grid a missed bound; 2 if
the options, a policy or a scenario are wrong.";

/// The advice for errors in a scenario.
const SEE_FORMAT: &str = "see `relent simulate --format` for every key and its default, and \
    `relent simulate --show blackout` for a scenario to start from";
/// The most bytes of a scenario: 1 MiB.
const MAX_SCENARIO_BYTES: u64 = 1 << 20;
/// The most seeds: more do not improve the result.
const MAX_SEEDS: u64 = 10_000;

/// The arguments of `relent simulate`.
#[derive(Args, Debug)]
pub(crate) struct SimulateArgs {
    /// Built-in scenarios, or files in TOML (see --format) [default: all built-in scenarios]
    #[arg(value_name = "SCENARIO|FILE")]
    scenarios: Vec<String>,

    /// Presets, files with one policy, FILE#C for the [policies.C] of a file; off for no retries
    /// [default: off,standard]
    #[arg(long, value_name = "A,B,FILE#C", value_delimiter = ',')]
    policies: Vec<String>,

    /// The number of seeds, counted up from --seed; each is one run
    #[arg(long, value_name = "N", value_parser = seeds, default_value = "5", allow_hyphen_values = true)]
    seeds: u64,

    /// The first seed
    #[arg(long, value_name = "S", value_parser = seed, default_value = "1", allow_hyphen_values = true)]
    seed: u64,

    /// The number of threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = seeds, allow_hyphen_values = true)]
    jobs: Option<u64>,

    /// Evaluate the policies in this many random scenarios
    #[arg(long, value_name = "N", value_parser = seeds, allow_hyphen_values = true,
        conflicts_with_all = ["scenarios", "seeds", "set", "json", "report", "plot", "list", "show", "format"])]
    random: Option<u64>,

    /// Run the policies at every combination of values in a file, and list the bounds that they miss
    #[arg(long, value_name = "FILE",
        conflicts_with_all = ["scenarios", "seeds", "set", "json", "report", "plot", "random", "list", "show", "format"])]
    grid: Option<PathBuf>,

    /// The kind of random scenarios: all, or everyday conditions (any distance, few callers, fast failures)
    #[arg(
        long,
        value_name = "broad|everyday",
        requires = "random",
        default_value = "broad",
        hide_possible_values = true
    )]
    generator: GeneratorArg,

    /// Write the random scenarios with findings to this directory
    #[arg(long, value_name = "DIR", requires = "random")]
    save: Option<PathBuf>,

    /// Print a policy file for the service that this file describes (see --format service)
    #[arg(long, value_name = "FILE",
        conflicts_with_all = ["scenarios", "set", "json", "plot", "random", "list", "show", "format"])]
    advise: Option<PathBuf>,

    /// Take the latencies of that service from its metrics, in the text format of Prometheus
    #[arg(long, value_name = "FILE", requires = "advise")]
    histogram: Option<PathBuf>,

    /// The name of the histogram in that file, with labels to select some of its series
    #[arg(long, value_name = "NAME", requires = "histogram")]
    metric: Option<String>,

    /// The unit of the bounds of that histogram, if its name does not end with it
    #[arg(
        long,
        value_name = "s|ms|us|ns",
        requires = "histogram",
        hide_possible_values = true
    )]
    unit: Option<Unit>,

    /// Earlier metrics of the same service: only the difference is used
    #[arg(long, value_name = "FILE", requires = "histogram")]
    since: Option<PathBuf>,

    /// Change a value of every scenario, such as service.failures=0.1
    #[arg(long, value_name = "KEY=VALUE", value_parser = change)]
    set: Vec<(String, String)>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Write charts and numbers as one HTML file
    #[arg(long, value_name = "FILE.html", value_parser = charts::page)]
    report: Option<PathBuf>,

    /// Draw one scenario
    #[arg(long, value_name = "FILE.svg", value_parser = charts::picture)]
    plot: Option<PathBuf>,

    /// List the built-in scenarios
    #[arg(long, conflicts_with_all = ["scenarios", "set", "json", "report", "plot", "show", "format"])]
    list: bool,

    /// Print the file of a built-in scenario, as a start for your own
    #[arg(long, value_name = "SCENARIO", conflicts_with_all = ["scenarios", "set", "json", "report", "plot", "format"])]
    show: Option<String>,

    /// Print the format of a scenario, or of the description of a service: every key and its default
    #[arg(long, value_name = "scenario|service", num_args = 0..=1, default_missing_value = "scenario",
        hide_possible_values = true, conflicts_with_all = ["scenarios", "set", "json", "report", "plot"])]
    format: Option<FormatOf>,
}

/// The generator of random scenarios.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum GeneratorArg {
    Broad,
    Everyday,
}

impl From<GeneratorArg> for Generator {
    fn from(generator: GeneratorArg) -> Self {
        match generator {
            GeneratorArg::Broad => Self::Broad,
            GeneratorArg::Everyday => Self::Everyday,
        }
    }
}

/// A file format that `--format` prints.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum FormatOf {
    Scenario,
    Service,
}

/// A unit of time.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum Unit {
    S,
    Ms,
    Us,
    Ns,
}

impl From<Unit> for TimeUnit {
    fn from(unit: Unit) -> Self {
        match unit {
            Unit::S => Self::Seconds,
            Unit::Ms => Self::Milliseconds,
            Unit::Us => Self::Microseconds,
            Unit::Ns => Self::Nanoseconds,
        }
    }
}

/// Extracts the TOML of a Markdown page; its prose becomes comments.
fn toml_of(page: &str) -> String {
    let mut toml = String::new();
    let mut is_prose = true;
    for line in page.lines() {
        if line.starts_with("```") {
            is_prose = !is_prose;
            continue;
        }
        if is_prose && !line.is_empty() && !line.starts_with("# ") {
            toml.push_str("# ");
        }
        toml.push_str(line);
        toml.push('\n');
    }
    toml
}

fn seeds(text: &str) -> Result<u64, String> {
    seed(text)
        .ok()
        .filter(|seeds| (1..=MAX_SEEDS).contains(seeds))
        .ok_or_else(|| format!("use a whole number from 1 to {MAX_SEEDS}"))
}

fn change(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .filter(|(key, _)| !key.trim().is_empty())
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .ok_or_else(|| "use a key and its value, such as service.failures=0.1".to_owned())
}

/// A policy or scenario with its given name and the text of its file.
#[derive(Clone)]
struct NamedItem<T> {
    name: String,
    value: T,
    text: String,
}

/// Runs the scenarios and prints the results.
///
/// # Errors
/// Policies, scenarios or changes are wrong, runs were given up, or the output cannot be written.
pub(crate) fn run(args: &SimulateArgs) -> Result<(), ExitError> {
    if args.list {
        return list();
    }
    if let Some(name) = &args.show {
        return show(name);
    }
    if let Some(of) = args.format {
        let format = match of {
            FormatOf::Scenario => scenarios::FORMAT,
            FormatOf::Service => relent_sim::advise::FORMAT,
        };
        return print(&toml_of(format)).map_err(ExitError::failed);
    }
    let threads = match args.jobs {
        Some(jobs) => jobs as usize,
        None => thread::available_parallelism().map_or(1, NonZeroUsize::get),
    };
    let seeds: Vec<u64> = (0..args.seeds)
        .map(|number| args.seed.wrapping_add(number))
        .collect();
    if let Some(file) = &args.advise {
        return advise::run(args, file, &seeds, threads);
    }
    let specs = match args.policies.as_slice() {
        [] => vec![ranked::OFF.to_owned(), "standard".to_owned()],
        specs => specs.to_vec(),
    };
    let policies = specs.iter().map(|spec| {
        let value = policy(spec).map_err(ExitError::usage)?;
        named(spec, value)
    });
    let policies: Vec<NamedItem<Policy>> = policies.collect::<Result<_, ExitError>>()?;
    if let Some(file) = &args.grid {
        return grid::run(args, file, &policies, threads);
    }
    if let Some(count) = args.random {
        return random::run(args, count, &policies, threads);
    }
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
    let only_json = args.json && args.report.is_none();
    let off = match only_json || specs.iter().any(|spec| spec == ranked::OFF) {
        true => None,
        false => Some(policy(ranked::OFF).map_err(ExitError::failed)?),
    };

    let mut charts = charts::Charts::open(args, &scenarios, &policies)?;

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

fn list() -> Result<(), ExitError> {
    let width = scenarios::names().iter().map(|name| name.len()).max();
    let width = width.unwrap_or_default();
    let mut text = String::new();
    for builtin in scenarios::all() {
        let scenario = builtin
            .load()
            .map_err(|e| ExitError::failed(e.to_string()))?;
        let _ = writeln!(text, "{:width$}  {}", builtin.name, scenario.description);
    }
    print(&text).map_err(ExitError::failed)
}

fn show(name: &str) -> Result<(), ExitError> {
    match scenarios::get(name) {
        Some(builtin) => print(builtin.text).map_err(ExitError::failed),
        None => Err(ExitError::usage(format!(
            "no scenario {name:?}: {}",
            suggestion(name)
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
        Err(error) => Err(ExitError::usage(format!("{name}: {error}\n{SEE_FORMAT}"))),
    }
}

/// Suggests a built-in scenario for an unknown name.
fn suggestion(name: &str) -> String {
    match scenarios::nearest(name) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("the built-in ones are {}", scenarios::names().join(", ")),
    }
}

fn read(path: &str) -> Result<String, String> {
    if !Path::new(path).exists() {
        return Err(format!(
            "no scenario {path:?}: there is no file of that name; {}\n{SEE_FORMAT}",
            suggestion(path)
        ));
    }
    read_at_most(
        Path::new(path),
        MAX_SCENARIO_BYTES,
        "a scenario has at most 1 MiB",
    )
}

/// Reads the text of a file of at most `most` bytes; `large` is the message for a larger one.
fn read_at_most(path: &Path, most: u64, large: &str) -> Result<String, String> {
    let name = path.display();
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes)) {
        Ok(_) if bytes.len() as u64 > most => Err(format!("{name}: {large}")),
        // Some editors begin a text with a byte order mark.
        Ok(_) => match String::from_utf8(bytes) {
            Ok(text) => Ok(text.trim_start_matches('\u{feff}').to_owned()),
            Err(_) => Err(format!("{name}: is not UTF-8 text")),
        },
        Err(error) => Err(format!("{name}: cannot be read: {error}")),
    }
}

/// Returns a policy with its name and its text as TOML.
fn named(name: &str, value: Policy) -> Result<NamedItem<Policy>, ExitError> {
    let text = toml::to_string(&value).map_err(|error| ExitError::failed(error.to_string()))?;
    let name = name.to_owned();
    Ok(NamedItem { name, value, text })
}

fn policy(spec: &str) -> Result<Policy, String> {
    NamedPolicy::load(spec)
        .map(|named| named.policy)
        .map_err(|error| format!("--policies {spec}: {error}"))
}

/// A progress bar on standard error, if that is a terminal.
fn progress(runs: usize) -> ProgressBar {
    let bar = ProgressBar::new(runs as u64);
    match ProgressStyle::with_template("{msg:16} [{bar:40}] {pos}/{len} runs, {eta} left") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[derive(Serialize)]
struct Line<'a> {
    scenario: &'a str,
    seed: u64,
    bound: Option<f64>,
    runs: Vec<Run<'a>>,
}

#[derive(Serialize)]
struct Run<'a> {
    policy: &'a str,
    goodput: f64,
    amplification: Option<f64>,
    ttr_s: Option<f64>,
    drain_s: Option<f64>,
    peak: f64,
    duplicates: u64,
    fairness: Option<f64>,
    efficiency: Option<f64>,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    p999_ms: Option<f64>,
    attempts: u64,
    requests: u64,
    successes: u64,
    give_ups: u64,
    drops: Option<u64>,
    layers: Vec<LayerCounts>,
    classes: Vec<ClassCounts<'a>>,
    ended: Option<Times>,
    retried: Option<Times>,
    backoff: Option<Times>,
    held: Option<Times>,
    held_answered: Option<Times>,
    back: Option<Times>,
    unanswered: u64,
}

/// The results of a class of requests.
#[derive(Serialize)]
struct ClassCounts<'a> {
    name: &'a str,
    requests: u64,
    successes: u64,
}

fn classes<'a>(scenario: &'a Scenario, metrics: &Metrics) -> Vec<ClassCounts<'a>> {
    let counts = scenario.clients.classes.iter().zip(&metrics.classes);
    let counts = counts.map(|(class, count)| ClassCounts {
        name: &class.name,
        requests: count.requests,
        successes: count.successes,
    });
    counts.collect()
}

/// The calls into and out of a layer of a chain.
#[derive(Serialize)]
struct LayerCounts {
    calls_in: u64,
    calls_out: u64,
}

fn layers(metrics: &Metrics) -> Vec<LayerCounts> {
    let counts = |layer: &relent_sim::Layer| LayerCounts {
        calls_in: layer.calls_in,
        calls_out: layer.calls_out,
    };
    metrics.layers.iter().map(counts).collect()
}

/// Formats one line for each seed. Runs that were given up have no numbers, and are left out.
fn json(
    scenario: &NamedItem<Scenario>,
    policies: &[NamedItem<Policy>],
    seeds: &[u64],
    results: &[Vec<RunResult>],
) -> String {
    let mut text = String::new();
    for (index, seed) in seeds.iter().enumerate() {
        let runs = policies.iter().zip(results).filter_map(|(policy, runs)| {
            let metrics = runs.get(index)?.as_ref().ok()?;
            Some(Run {
                policy: &policy.name,
                goodput: metrics.goodput,
                amplification: metrics.amplification,
                ttr_s: metrics.ttr_s,
                drain_s: metrics.drain_s,
                peak: metrics.peak,
                duplicates: metrics.duplicates,
                fairness: metrics.fairness,
                efficiency: metrics.efficiency,
                p50_ms: metrics.p50_ms,
                p99_ms: metrics.p99_ms,
                p999_ms: metrics.p999_ms,
                attempts: metrics.attempts,
                requests: metrics.requests,
                successes: metrics.successes,
                give_ups: metrics.give_ups,
                drops: metrics.drops,
                layers: layers(metrics),
                classes: classes(&scenario.value, metrics),
                ended: metrics.ended,
                retried: metrics.retried,
                backoff: metrics.backoff,
                held: metrics.held,
                held_answered: metrics.held_answered,
                back: metrics.back,
                unanswered: metrics.unanswered,
            })
        });
        let line = Line {
            scenario: &scenario.name,
            seed: *seed,
            bound: bound(&scenario.value, *seed).ok(),
            runs: runs.collect(),
        };
        // A line has only numbers and names, so serializing cannot fail.
        text.push_str(&serde_json::to_string(&line).unwrap_or_default());
        text.push('\n');
    }
    text
}
