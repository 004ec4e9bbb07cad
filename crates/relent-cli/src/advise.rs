//! `relent advise`: prints a policy for a described service, and compares it with other policies.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use relent::Policy;
use relent::policy::PolicyFile;
use relent_sim::advise::{self, Description, HistogramOptions, PolicyAdvice, TimeUnit};
use relent_sim::study::{RunResult, run_all};
use relent_sim::{Scenario, mean_bound, ranking};

use crate::console::{counted, print};
use crate::exit_status::ExitError;
use crate::simulate::charts::Charts;
use crate::simulate::input::{NamedItem, load_policy, read_at_most};
use crate::simulate::options::{Report, Seeds, Threads};
use crate::simulate::progress::progress;
use crate::simulate::ranked::{OFF, Row, warnings};

/// The end of `relent advise --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  A policy for your own service, with the reason for each value:
      relent simulate template service > orders.toml     # and fill it in
      relent advise orders.toml > policy.toml

  The same from the latencies of the last hour, with [latency] removed from
  orders.toml, and a page that compares the policy with others:
      curl -s http://orders.internal/metrics > before.txt    # an hour before
      curl -s http://orders.internal/metrics > now.txt
      relent advise orders.toml --histogram now.txt --baseline before.txt \\
          --metric http_request_duration_seconds --report orders.html \\
          > policy.toml

Standard output is a policy file. Its comments give the source of each value,
and compare the policy in faults that fit the description with off, standard,
policies of other systems (--policy) and the bound. `relent simulate run --help`
explains the bound and the numbers.

A histogram is in the text format of Prometheus. It should describe the service
without incidents, and it counts since its process started: save the metrics at
the start and at the end of an hour without incidents, and pass the first file
as --baseline.

Exit status: 0; 1 if the result cannot be written; 2 if the options, the
description, the metrics or a policy are wrong.";

/// The name of the advised policy.
const ADVISED: &str = "advised";
/// The policies that it is compared with, unless `--policy` names others.
const OTHERS: [&str; 6] = ["standard", OFF, "aws-standard", "grpc", "envoy", "cenkalti"];
/// The most bytes of a description, and of metrics.
const MAX_DESCRIPTION_BYTES: u64 = 1 << 20;
const MAX_METRICS_BYTES: u64 = 64 << 20;
/// The smallest difference of goodput that is reported.
const MIN_GOODPUT_DIFFERENCE: f64 = 0.01;
/// Hedging is advised if it costs at most this share of the goodput, and reduces p99 without a fault to at most this
/// factor.
const MAX_GOODPUT_LOSS: f64 = 0.002;
const MAX_P99_FACTOR: f64 = 0.9;
/// The names of the variant that is not advised.
const HEDGED: &str = "with hedges";
const UNHEDGED: &str = "without hedges";

/// The arguments of `relent advise`.
#[derive(Args, Debug)]
pub(crate) struct AdviseArgs {
    /// The description of the service, in TOML; `relent simulate template service` prints one
    #[arg(value_name = "FILE")]
    service: PathBuf,

    /// Take the latencies of the service from its metrics, in the text format of Prometheus
    #[arg(long, value_name = "FILE", help_heading = "Latencies")]
    histogram: Option<PathBuf>,

    /// The name of the histogram in that file, with labels to select some of its series
    #[arg(
        long,
        value_name = "NAME",
        requires = "histogram",
        help_heading = "Latencies"
    )]
    metric: Option<String>,

    /// The unit of the bounds of that histogram, if its name does not end with it
    #[arg(
        long,
        value_name = "s|ms|us|ns",
        requires = "histogram",
        hide_possible_values = true,
        help_heading = "Latencies"
    )]
    unit: Option<Unit>,

    /// Earlier metrics of the same service, which are subtracted
    #[arg(
        long,
        value_name = "FILE",
        requires = "histogram",
        help_heading = "Latencies"
    )]
    baseline: Option<PathBuf>,

    /// Compare with these policies: presets, files with one policy, or FILE#NAME for the [policies.NAME] of
    /// a file; repeatable [default: standard,off,aws-standard,grpc,envoy,cenkalti]
    #[arg(
        long = "policy",
        value_name = "NAME|FILE[#NAME],...",
        value_delimiter = ','
    )]
    policies: Vec<String>,

    #[command(flatten)]
    seeds: Seeds,

    #[command(flatten)]
    report: Report,

    #[command(flatten)]
    threads: Threads,
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

/// Prints a policy file, with the comparison in its comments.
///
/// # Errors
/// Files cannot be read or are wrong, or the output cannot be written.
pub(crate) fn run(args: &AdviseArgs) -> Result<(), ExitError> {
    let (seeds, threads) = (&args.seeds.all(), args.threads.count());
    let advice = advice(args)?;
    let mut policies = vec![own(ADVISED, &advice.policy)?];
    let hedged = advice.hedged.as_deref();
    policies.extend(hedged.map(|text| own(HEDGED, text)).transpose()?);
    policies.extend(others(&args.policies)?);
    let scenarios = advice.fault_scenarios.iter().map(|fault_scenario| {
        let value = Scenario::parse(&fault_scenario.text)
            .map_err(|error| ExitError::failed(format!("{}: {error}", fault_scenario.name)))?;
        Ok(NamedItem {
            name: fault_scenario.name.to_owned(),
            value,
            text: fault_scenario.text.clone(),
        })
    });
    let scenarios: Vec<NamedItem<Scenario>> = scenarios.collect::<Result<_, ExitError>>()?;

    let mut charts = Charts::open(args.report.file.as_deref(), None, &scenarios, &policies)?;
    let bar = progress(scenarios.len() * policies.len() * seeds.len() + charts.runs());
    let values: Vec<&Policy> = policies.iter().map(|policy| &policy.value).collect();
    let mut results: Vec<Vec<Vec<RunResult>>> = Vec::new();
    for scenario in &scenarios {
        bar.set_message(scenario.name.clone());
        let runs = run_all(&scenario.value, &values, seeds, threads, &|| bar.inc(1));
        results.push(runs.clone());
        charts.add(scenario, seeds[0], runs, None, threads, &|| bar.inc(1));
    }
    bar.finish_and_clear();
    // The rows keep their order; only the names are exchanged.
    let mut policies = policies.clone();
    if hedged.is_some()
        && hedges_help(&results)
        && let [unhedged, hedged, ..] = policies.as_mut_slice()
    {
        unhedged.name = UNHEDGED.to_owned();
        hedged.name = ADVISED.to_owned();
    }
    let names: Vec<&str> = policies.iter().map(|policy| policy.name.as_str()).collect();
    let advised = policies.iter().find(|policy| policy.name == ADVISED);
    let policy = advised.map_or(&advice.policy, |policy| &policy.text);
    let text = policy.clone() + &comparison(&advice, &scenarios, &names, &results, seeds);
    print(&text).map_err(ExitError::failed)?;
    charts.write(&policies, seeds, &[])
}

/// Parses a generated policy.
fn own(name: &str, text: &str) -> Result<NamedItem<Policy>, ExitError> {
    let value = PolicyFile::parse(text)
        .and_then(|file| Ok(file.get(None)?.policy.clone()))
        .map_err(|error| ExitError::failed(format!("the advised policy: {error}")))?;
    Ok(NamedItem {
        name: name.to_owned(),
        value,
        text: text.to_owned(),
    })
}

/// Whether the second policy is better than the first, which is the same without hedging. `results` has the runs of
/// each scenario; the first scenario has no fault.
fn hedges_help(results: &[Vec<Vec<RunResult>>]) -> bool {
    let goodput = |policy: usize| {
        let goodputs = results.iter().map(|runs| ranking::goodput(&runs[policy]));
        goodputs.sum::<f64>() / results.len().max(1) as f64
    };
    let p99 = |policy: usize| {
        let well = results.first().map_or(&[][..], |runs| &runs[policy]);
        let slow = well.iter().flatten().filter_map(|metrics| metrics.p99_ms);
        slow.sum::<f64>()
    };
    goodput(1) >= goodput(0) - MAX_GOODPUT_LOSS && p99(1) <= MAX_P99_FACTOR * p99(0)
}

/// Reads the description and the metrics, and derives the advice.
fn advice(args: &AdviseArgs) -> Result<PolicyAdvice, ExitError> {
    const SEE: &str = "see `relent simulate template service` for every key";
    let file = &args.service;
    let name = file.display();
    let text = read_at_most(
        file,
        MAX_DESCRIPTION_BYTES,
        "a description has at most 1 MiB",
    )
    .map_err(ExitError::usage)?;
    let service = Description::parse(&text)
        .map_err(|error| ExitError::usage(format!("{name}: {error}\n{SEE}")))?;
    let latency = match (&args.histogram, service.latency()) {
        (None, Some(latency)) => latency,
        (Some(metrics), None) => {
            let since = args.baseline.as_deref().map(read_metrics).transpose()?;
            let options = HistogramOptions {
                metric: args.metric.as_deref(),
                unit: args.unit.map(Into::into),
                since: since.as_deref(),
            };
            advise::histogram(&read_metrics(metrics)?, options).map_err(|error| {
                // The library does not know the options of the command.
                let error = error
                    .to_string()
                    .replace(
                        "give the unit of its bounds",
                        "give the unit of its bounds with --unit",
                    )
                    .replace("so name one of", "so name one with --metric, of");
                match (error.strip_prefix("the earlier metrics: "), &args.baseline) {
                    (Some(error), Some(file)) => {
                        ExitError::usage(format!("{}: {error}", file.display()))
                    }
                    _ => ExitError::usage(format!("{}: {error}", metrics.display())),
                }
            })?
        }
        (Some(_), Some(_)) => {
            return Err(ExitError::usage(format!(
                "{name}: latency: given as [latency] and by --histogram; remove one of them"
            )));
        }
        (None, None) => {
            return Err(ExitError::usage(format!(
                "{name}: latency: missing; give the latency without a fault, as [latency] with p50 and p99, or \
                 with --histogram FILE\n{SEE}"
            )));
        }
    };
    Ok(advise::advise(&service, &latency))
}

/// Reads the metrics of a service.
fn read_metrics(file: &Path) -> Result<String, ExitError> {
    const LARGE: &str =
        "metrics have at most 64 MiB: keep one histogram, as `grep ^NAME_bucket` does";
    read_at_most(file, MAX_METRICS_BYTES, LARGE).map_err(ExitError::usage)
}

/// Loads the policies to compare with, including `off`.
fn others(given: &[String]) -> Result<Vec<NamedItem<Policy>>, ExitError> {
    let mut named: Vec<&str> = match given {
        [] => OTHERS.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    if !named.contains(&OFF) {
        named.push(OFF);
    }
    named.into_iter().map(load_policy).collect()
}

/// Formats the comparison as comments of a policy file.
fn comparison(
    advice: &PolicyAdvice,
    scenarios: &[NamedItem<Scenario>],
    names: &[&str],
    results: &[Vec<Vec<RunResult>>],
    seeds: &[u64],
) -> String {
    let mean = |policy: usize| {
        let goodputs = results.iter().map(|runs| ranking::goodput(&runs[policy]));
        goodputs.sum::<f64>() / results.len().max(1) as f64
    };
    let mut order: Vec<usize> = (0..names.len()).collect();
    order.sort_by(|one, other| mean(*other).total_cmp(&mean(*one)));
    let mut lines = vec![
        std::iter::once(String::new())
            .chain(std::iter::once("mean".to_owned()))
            .chain(scenarios.iter().map(|scenario| scenario.name.clone()))
            .collect::<Vec<String>>(),
    ];
    let bounds = scenarios
        .iter()
        .map(|scenario| mean_bound(&scenario.value, seeds).ok());
    let bounds: Vec<Option<f64>> = bounds.collect();
    let total: Option<f64> = bounds.iter().copied().sum();
    let cell = |bound: &Option<f64>| {
        bound.map_or_else(|| "-".to_owned(), |most| format!("{most:.4}     "))
    };
    lines.push(
        [
            "bound".to_owned(),
            total.map_or_else(
                || "-".to_owned(),
                |sum| format!("{:.4}", sum / bounds.len() as f64),
            ),
        ]
        .into_iter()
        .chain(bounds.iter().map(cell))
        .collect(),
    );
    for policy in &order {
        let cells = results.iter().map(|runs| {
            let runs = &runs[*policy];
            format!(
                "{:.4} {:>4}",
                ranking::goodput(runs),
                attempts(ranking::attempts(runs))
            )
        });
        lines.push(
            [names[*policy].to_owned(), format!("{:.4}", mean(*policy))]
                .into_iter()
                .chain(cells)
                .collect(),
        );
    }
    let mut text = format!(
        "\n# Comparison with other policies, simulated with {} from {}: goodput, and attempts per request. bound \
         is the\n# optimum. The attempt timeout above limits the attempts of all policies.\n#\n",
        counted(seeds.len() as u64, "seed"),
        seeds.first().copied().unwrap_or_default()
    );
    let widths: Vec<usize> = (0..scenarios.len() + 2)
        .map(|column| {
            lines
                .iter()
                .map(|cells| cells[column].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    for cells in &lines {
        let cells = cells.iter().zip(&widths).enumerate();
        let line: String = cells
            .map(|(column, (cell, width))| match column {
                0 => format!("{cell:width$}"),
                _ => format!("  {cell:>width$}"),
            })
            .collect();
        let _ = writeln!(text, "# {}", line.trim_end());
    }
    text += "#\n";
    for scenario in scenarios {
        let _ = writeln!(text, "# {}: {}", scenario.name, scenario.value.description);
    }
    let remarks = remarks(advice, scenarios, names, results);
    if !remarks.is_empty() {
        text += "#\n";
    }
    for remark in remarks {
        let _ = writeln!(text, "# {remark}");
    }
    text
}

/// Returns the remarks on the description, on the advised policy, and on policies that are worse than `off`.
fn remarks(
    advice: &PolicyAdvice,
    scenarios: &[NamedItem<Scenario>],
    names: &[&str],
    results: &[Vec<Vec<RunResult>>],
) -> Vec<String> {
    let description_warnings = advice
        .description_warnings
        .iter()
        .map(|doubt| format!("warning: {doubt}"));
    let mut remarks: Vec<String> = description_warnings.collect();
    remarks.extend(overload_remark(scenarios, names, results));
    let own = names
        .iter()
        .position(|name| *name == ADVISED)
        .unwrap_or_default();
    // For the other policies, the kind of warning and the scenarios are enough.
    let mut others: Vec<(&str, &'static str, Vec<&str>)> = Vec::new();
    for (scenario, runs) in scenarios.iter().zip(results) {
        let rows: Vec<Row<'_>> = names
            .iter()
            .zip(runs)
            .map(|(name, runs)| Row { name, runs })
            .collect();
        for (name, warning) in warnings(&scenario.value, &rows) {
            let what = warning.what();
            if name == ADVISED {
                remarks.push(format!("warning: {}: {name} {warning}", scenario.name));
            } else if let Some((.., places)) = others
                .iter_mut()
                .find(|(other, kind, _)| (*other, *kind) == (name, what))
            {
                places.push(&scenario.name);
            } else {
                others.push((name, what, vec![&scenario.name]));
            }
        }
        let goodput = |policy: &(usize, &Vec<RunResult>)| ranking::goodput(policy.1);
        let best = runs
            .iter()
            .enumerate()
            .max_by(|one, other| goodput(one).total_cmp(&goodput(other)));
        let more = best.map_or(0.0, |best| goodput(&best) - ranking::goodput(&runs[own]));
        if let Some((best, runs)) = best
            && more > MIN_GOODPUT_DIFFERENCE
        {
            remarks.push(format!(
                "better here: {}: with {} {:.1} % more of the requests complete, with {} attempts per request",
                scenario.name,
                names[best],
                100.0 * more,
                attempts(ranking::attempts(runs)),
            ));
        }
    }
    others.sort_by_key(|(name, ..)| names.iter().position(|other| other == name));
    let others = others
        .iter()
        .map(|(name, what, places)| format!("warning: {name} {what} in {}", places.join(", ")));
    remarks.extend(others);
    remarks
}

/// Returns a remark if the described service does not meet its load without a fault, which is the first scenario.
fn overload_remark(
    scenarios: &[NamedItem<Scenario>],
    names: &[&str],
    results: &[Vec<Vec<RunResult>>],
) -> Option<String> {
    let off = names.iter().position(|name| *name == OFF)?;
    let (well, runs) = scenarios.first().zip(results.first()?.get(off))?;
    let lost = 1.0 - well.value.service.failures - ranking::goodput(runs);
    (lost > MIN_GOODPUT_DIFFERENCE).then(|| {
        format!(
            "warning: without a fault and without retries {:.1} % of the requests get no response in time: the described \
             service has too little capacity, or its deadlines are too short, for a meaningful comparison",
            100.0 * lost
        )
    })
}

fn attempts(per_request: f64) -> String {
    match per_request {
        many if many.is_infinite() => "-".to_owned(),
        many if many >= 100.0 => format!("{many:.0}"),
        many if many >= 10.0 => format!("{many:.1}"),
        few => format!("{few:.2}"),
    }
}
