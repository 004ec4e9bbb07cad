//! `relent simulate`: what a crowd does with a policy.

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
use crate::quit::Quit;

/// The end of `relent simulate --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  What comes along, and what the default does in all of it:
      relent simulate --list
      relent simulate

  Which policy is best for an outage like this one:
      relent simulate blackout --policies off,standard,envoy,./mine.toml#reports

  The same with a service of one's own, from a scenario that comes along; its
  format is TOML, and --format prints every key and its default:
      relent simulate --show blackout > service.toml
      relent simulate --format
      relent simulate ./service.toml --set clients.processes=200 --seeds 10

  To look at: all charts and numbers in one file for a browser, or one picture:
      relent simulate blackout --policies off,standard --report blackout.html
      relent simulate herd --policies aws-legacy --plot herd.svg

  Which policy should a service of one's own have? A file for it, with the
  reason of each value, and a page that shows what it does beside others:
      relent simulate --format service > orders.toml     # and fill it in
      curl -s http://orders.internal/metrics > before.txt    # an hour before
      curl -s http://orders.internal/metrics > now.txt
      relent simulate --advise orders.toml --histogram now.txt \\
          --since before.txt --metric http_request_duration_seconds \\
          --report orders.html > policy.toml

  Does a policy ever do harm? A thousand services, crowds and troubles that are
  drawn at random; those in which it does are written to a directory, as files:
      relent simulate --random 1000 --policies standard --save found

Policies are ranked by goodput, and where that differs by less than .001 by
attempts. off (no retries) is always among them, and above all is the bound:
the goodput of somebody who knows the future, has all requests in one queue and
makes only the attempts that are needed. Where there is none it says why. A
warning tells of a policy that is worse than off by more than .01 (paired by
seeds, beyond the 95 % interval), that keeps an outage alive which is over
without retries, or that makes twice the attempts that are needed.

The numbers are means over the seeds, with 95 % confidence intervals:
  goodput     successes before the caller's deadline, as a share of the requests
  ampl.       attempts that reach the service, per success
  ttr         seconds from the end of the outage until new requests are well
              again: the first of ten in which 99 % finish within a second, or
              within what 99.9 % of the services take if that is longer (99 %
              of those that succeed without retries, if some fail whatever the
              load); never,
              if that does not happen; the mean is of the seeds in which it
              happens, and how many do not is said. Where only some recover,
              the other numbers have no interval, and the words say what both
              kinds of runs get done
  drain       seconds until the last request of the outage, or of a herd, has
              succeeded
  peak        the most attempts in a second after the outage, over the capacity
  dupl.       executions beyond one per success
  fair.       Jain's index of fairness: 1 where each client process gets the
              same share of its requests done (each station the same number of
              frames), 1/n where one of n gets all
  drops       messages lost, where the network loses some
  eff.        the share of the time in which a shared medium carries frames that
              arrive
  p50, p99, p99.9   how long successes take, waits included

Further tables say how long callers wait, and for what, in seconds; p50 is what
half of them do not exceed, p99 what 99 % do not:
  all requests      from when a request is made to its end, whatever comes of it
  retried requests  the same of those that need more than one attempt, and their
                    share of all
  retried: backoff  of that time: what the session computes, by its own backoff
                    and the delays that servers name
  retried: held     of that time: what the destination (circuit breaker, retry
                    budget, cooldown, rate limit) holds them back after their
                    backoff
  held while up     how long one retry is held from the first success of another
                    caller on, which comes after its backoff (in any process)
  answer after trouble  from the end of a trouble to the success of a request
                    that was open then, without what further troubles take of
                    that time

JSON is one line for each scenario and seed, with scenario, seed, bound and
runs; each run has policy, goodput, amplification, ttr_s, drain_s, peak,
duplicates, fairness, efficiency, p50_ms, p99_ms, p999_ms, attempts, requests,
successes, give_ups (requests that the policy gave up), drops, layers: for each
layer of a chain, from the clients down, calls_in and calls_out, and classes:
for each class of requests name, requests and successes. ended, retried,
backoff, held, held_answered and back are the times of the further tables, each
with count (of requests), p50_s, p99_s and max_s; unanswered counts requests
that were open at the end of a trouble and never succeed. What does not exist,
such as the time to recover of a service that does not, is null.

A report is one HTML file that loads nothing: what the crowd did over time,
latencies, the attempts of a herd with and without jitter, all numbers, and the
parameters. A picture shows what happened over time, of a herd the attempts of
its clients, with a panel for each policy. Both are written when all runs are
done, whole or not at all; what they show over time is the run with the first
seed.

With --random each policy is held against off, on the same requests. A
difference counts if it exceeds its 99 % confidence interval over ten seeds:
  trap        of the requests of the last quarter of the time, long after the
              trouble, fewer are done than with off, by more than .1; and in a
              run of four times the time, too
  harm        less is done than with off, by more than .01 of the requests
  better      another policy that comes along gets more done, by more than .02
              of the requests, without more attempts
--seed is the number of the first scenario. --generator everyday draws others
than broad: services at any distance with short queues and high loads, few and
low-traffic callers, and failures at once by chance. The numbers do not depend
on --jobs.

With --grid a line for each cell says what is done of the requests of the last
quarter of the time with off and with the policy (late), attempts per request,
the longest time for which a retry is held while the destination answers (held)
and from the end of a trouble to an answer (answer). A cell that misses a bound
of the file is judged by the means over four seeds. scenarios/grids has files
and their format.

With --advise standard output is a policy file. Its comments say where each
value comes from, and what it does in troubles that fit the description, beside
off, standard, policies of other systems (--policies) and the bound. A histogram
is in the text format of Prometheus. It should say how long the service takes
while it is well, and it counts since its process began: take it at the begin
and at the end of a good hour, and give the first as --since.

Runs are made by the code that decides in production, in virtual time; the same
seed gives the same numbers on every machine.

Exit status: 0; 1 if a run is given up, the result cannot be written, or
--random finds a trap or harm, or --grid a missed bound; 2 if the options, a
policy or a scenario are wrong.";

/// Where a person finds out what a scenario may hold.
const SEE_FORMAT: &str = "see `relent simulate --format` for every key and its default, and \
    `relent simulate --show blackout` for a scenario to start from";
/// The most that is read of a scenario: 1 MiB.
const MOST: u64 = 1 << 20;
/// The most seeds: more say no more.
const MOST_SEEDS: u64 = 10_000;

/// What `relent simulate` is given.
#[derive(Args, Debug)]
pub(crate) struct SimulateArgs {
    /// Scenarios that come along, or files in TOML (see --format) [default: all that come along]
    #[arg(value_name = "SCENARIO|FILE")]
    scenarios: Vec<String>,

    /// Presets, files with one policy, FILE#C for the [policies.C] of a file; off for no retries
    /// [default: off,standard]
    #[arg(long, value_name = "A,B,FILE#C", value_delimiter = ',')]
    policies: Vec<String>,

    /// Runs with as many seeds, counted up from --seed
    #[arg(long, value_name = "N", value_parser = seeds, default_value = "5", allow_hyphen_values = true)]
    seeds: u64,

    /// The first seed
    #[arg(long, value_name = "S", value_parser = seed, default_value = "1", allow_hyphen_values = true)]
    seed: u64,

    /// Run on so many threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = seeds, allow_hyphen_values = true)]
    jobs: Option<u64>,

    /// Judge the policies in so many scenarios that are drawn at random
    #[arg(long, value_name = "N", value_parser = seeds, allow_hyphen_values = true,
        conflicts_with_all = ["scenarios", "seeds", "set", "json", "report", "plot", "list", "show", "format"])]
    random: Option<u64>,

    /// Play the policies at every combination of values that a file lists, and list the bounds they miss
    #[arg(long, value_name = "FILE",
        conflicts_with_all = ["scenarios", "seeds", "set", "json", "report", "plot", "random", "list", "show", "format"])]
    grid: Option<PathBuf>,

    /// How they are drawn: all kinds, or everyday conditions (any distance, few callers, fast failures)
    #[arg(
        long,
        value_name = "broad|everyday",
        requires = "random",
        default_value = "broad",
        hide_possible_values = true
    )]
    generator: GeneratorArg,

    /// Write the random scenarios in which something is found to this directory
    #[arg(long, value_name = "DIR", requires = "random")]
    save: Option<PathBuf>,

    /// Print a policy file for the service that is described in a file (see --format service)
    #[arg(long, value_name = "FILE",
        conflicts_with_all = ["scenarios", "set", "json", "plot", "random", "list", "show", "format"])]
    advise: Option<PathBuf>,

    /// Take the latencies of that service from its metrics, in the text format of Prometheus
    #[arg(long, value_name = "FILE", requires = "advise")]
    histogram: Option<PathBuf>,

    /// The histogram in that file, with labels if it should be only some of its series
    #[arg(long, value_name = "NAME", requires = "histogram")]
    metric: Option<String>,

    /// What the bounds of that histogram are counted in, if its name does not end with it
    #[arg(
        long,
        value_name = "s|ms|us|ns",
        requires = "histogram",
        hide_possible_values = true
    )]
    unit: Option<Unit>,

    /// The same metrics as they were earlier: count only what came since
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

    /// List the scenarios that come along
    #[arg(long, conflicts_with_all = ["scenarios", "set", "json", "report", "plot", "show", "format"])]
    list: bool,

    /// Print the file of a scenario that comes along, to start one's own from
    #[arg(long, value_name = "SCENARIO", conflicts_with_all = ["scenarios", "set", "json", "report", "plot", "format"])]
    show: Option<String>,

    /// Print the format of a scenario, or of the description of a service: every key and its default
    #[arg(long, value_name = "scenario|service", num_args = 0..=1, default_missing_value = "scenario",
        hide_possible_values = true, conflicts_with_all = ["scenarios", "set", "json", "report", "plot"])]
    format: Option<FormatOf>,
}

/// How random scenarios are drawn.
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

/// What has a format.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum FormatOf {
    Scenario,
    Service,
}

/// What times are counted in.
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

/// The TOML of a page in Markdown, whose prose becomes comments: a file to begin with.
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
        .filter(|seeds| (1..=MOST_SEEDS).contains(seeds))
        .ok_or_else(|| format!("use a whole number from 1 to {MOST_SEEDS}"))
}

fn change(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .filter(|(key, _)| !key.trim().is_empty())
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .ok_or_else(|| "use a key and its value, such as service.failures=0.1".to_owned())
}

/// Something with the name that it was given by, and its file.
#[derive(Clone)]
struct Named<T> {
    name: String,
    value: T,
    text: String,
}

/// Runs the scenarios and prints what came of them.
///
/// # Errors
/// Policies, scenarios or changes that are wrong, runs that were given up, output that cannot be
/// written.
pub(crate) fn run(args: &SimulateArgs) -> Result<(), Quit> {
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
        return print(&toml_of(format)).map_err(Quit::failed);
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
        let value = policy(spec).map_err(Quit::usage)?;
        named(spec, value)
    });
    let policies: Vec<Named<Policy>> = policies.collect::<Result<_, Quit>>()?;
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
        Ok(Named { name, value, text })
    });
    let scenarios: Vec<Named<Scenario>> = scenarios.collect::<Result<_, Quit>>()?;
    // A table and a report hold all others against no retries, also if they were not asked for.
    let only_json = args.json && args.report.is_none();
    let off = match only_json || specs.iter().any(|spec| spec == ranked::OFF) {
        true => None,
        false => Some(policy(ranked::OFF).map_err(Quit::failed)?),
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
        bar.suspend(|| print(&text)).map_err(Quit::failed)?;
        charts.add(scenario, seeds[0], results, without, threads, &on_run);
    }
    bar.finish_and_clear();
    charts.write(&policies, &seeds, &args.set)?;
    match given_up {
        0 => Ok(()),
        runs => Err(Quit::failed(format!(
            "{runs} of the runs were given up: the policy makes too many attempts to simulate"
        ))),
    }
}

fn list() -> Result<(), Quit> {
    let width = scenarios::names().iter().map(|name| name.len()).max();
    let width = width.unwrap_or_default();
    let mut text = String::new();
    for builtin in scenarios::all() {
        let scenario = builtin.load().map_err(|e| Quit::failed(e.to_string()))?;
        let _ = writeln!(text, "{:width$}  {}", builtin.name, scenario.description);
    }
    print(&text).map_err(Quit::failed)
}

fn show(name: &str) -> Result<(), Quit> {
    match scenarios::get(name) {
        Some(builtin) => print(builtin.text).map_err(Quit::failed),
        None => Err(Quit::usage(format!(
            "no scenario {name:?}: {}",
            meant(name)
        ))),
    }
}

/// A scenario that comes along, or a file.
fn scenario(name: &str, changes: &[(String, String)]) -> Result<(Scenario, String), Quit> {
    let text = match scenarios::get(name) {
        Some(builtin) => builtin.text.to_owned(),
        None => read(name).map_err(Quit::usage)?,
    };
    let changes: Vec<_> = changes
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    match Scenario::parse_with(&text, &changes) {
        Ok(scenario) => Ok((scenario, text)),
        Err(error) => Err(Quit::usage(format!("{name}: {error}\n{SEE_FORMAT}"))),
    }
}

/// What somebody may have meant who named a scenario that does not come along.
fn meant(name: &str) -> String {
    match scenarios::nearest(name) {
        Some(near) => format!("did you mean {near}?"),
        None => format!(
            "those that come along are {}",
            scenarios::names().join(", ")
        ),
    }
}

fn read(path: &str) -> Result<String, String> {
    if !Path::new(path).exists() {
        return Err(format!(
            "no scenario {path:?}: there is no file of that name; {}\n{SEE_FORMAT}",
            meant(path)
        ));
    }
    read_at_most(Path::new(path), MOST, "a scenario has at most 1 MiB")
}

/// The text of a file, which may not be larger than this: then `large` is said.
fn read_at_most(path: &Path, most: u64, large: &str) -> Result<String, String> {
    let name = path.display();
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes)) {
        Ok(_) if bytes.len() as u64 > most => Err(format!("{name}: {large}")),
        // Some editors begin a text with a mark.
        Ok(_) => match String::from_utf8(bytes) {
            Ok(text) => Ok(text.trim_start_matches('\u{feff}').to_owned()),
            Err(_) => Err(format!("{name}: is not UTF-8 text")),
        },
        Err(error) => Err(format!("{name}: cannot be read: {error}")),
    }
}

/// A policy with its name, as its file would be.
fn named(name: &str, value: Policy) -> Result<Named<Policy>, Quit> {
    let text = toml::to_string(&value).map_err(|error| Quit::failed(error.to_string()))?;
    let name = name.to_owned();
    Ok(Named { name, value, text })
}

fn policy(spec: &str) -> Result<Policy, String> {
    NamedPolicy::load(spec)
        .map(|named| named.policy)
        .map_err(|error| format!("--policies {spec}: {error}"))
}

/// A bar on standard error, if that is a terminal.
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

/// What becomes of the requests of a class.
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

/// What goes into a layer of a chain, and out of it.
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

/// One line for each seed. A run that was given up has no numbers, and is not among the runs.
fn json(
    scenario: &Named<Scenario>,
    policies: &[Named<Policy>],
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
        // Numbers and names: it always serializes.
        text.push_str(&serde_json::to_string(&line).unwrap_or_default());
        text.push('\n');
    }
    text
}
