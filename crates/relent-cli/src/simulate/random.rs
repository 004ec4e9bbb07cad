//! `relent simulate random`: looks for random scenarios in which a policy is worse than no retries.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use relent::{NamedPolicy, Policy};
use relent_sim::evaluate::{Case, Contender, Evaluation, evaluate_all, tally};
use relent_sim::generate::Generator;

use super::input::NamedItem;
use super::options::{PolicyList, Threads, count};
use super::progress::progress;
use super::ranked::OFF;
use crate::console::{counted, print};
use crate::exit_status::ExitError;
use crate::options::seed;

/// The end of `relent simulate random --help`.
pub(super) const AFTER_HELP: &str = "\
Examples:
  Look for weaknesses of a policy: draw a thousand services, client populations
  and faults, and write the scenarios in which it is worse than off to found:
      relent simulate random 1000 --policy ./mine.toml --output found

  Run one of them again, with more policies:
      relent simulate run found/mine-worse-17.toml --policy off,./mine.toml

Each policy is compared with off, and with the built-in policies of other
systems, on the same requests. A difference counts if it exceeds its 99 %
confidence interval over ten seeds:
  does not recover   of the requests of the last quarter of the time, long after
                     the fault, fewer complete than with off, by more than .1;
                     and also in a run of four times the time
  worse              fewer requests complete than with off, by more than .01
  better             with another built-in policy more requests complete, by
                     more than .02, without more attempts

The generator broad draws all kinds of conditions, large populations above all.
everyday draws services at any distance with short queues and high loads, few
and low-traffic callers, and random fast failures.

Exit status: 0; 1 if with a policy a service does not recover, or it is worse
than off, or the result cannot be written; 2 if the options or a policy are
wrong.";

/// The arguments of `relent simulate random`.
#[derive(Args, Debug)]
pub(crate) struct RandomArgs {
    /// The number of scenarios
    #[arg(value_name = "N", value_parser = count)]
    count: u64,

    #[command(flatten)]
    policies: PolicyList,

    /// The first seed; each seed draws one scenario
    #[arg(long, value_name = "N", value_parser = seed, default_value = "1", allow_hyphen_values = true)]
    seed: u64,

    /// The kind of scenarios: all, or everyday conditions (any distance, few callers, fast failures)
    #[arg(
        long,
        value_name = "broad|everyday",
        default_value = "broad",
        hide_possible_values = true
    )]
    generator: GeneratorArg,

    /// Write the scenarios with findings to this directory, which is created if missing
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    #[command(flatten)]
    threads: Threads,
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

/// Policies of other systems for many clients, with which the evaluated policies are compared.
const OTHERS: [&str; 8] = [
    "fetch-retry",
    "cenkalti",
    "aws-standard",
    "grpc",
    "google-iam",
    "envoy",
    "finagle",
    "vital",
];

/// Draws scenarios, evaluates the policies in them, and prints the findings.
///
/// # Errors
/// A policy does not recover or is worse than `off`, or the output cannot be written.
pub(super) fn run(args: &RandomArgs) -> Result<(), ExitError> {
    let policies = args.policies.load()?;
    let load = |name: &str| {
        let loaded = NamedPolicy::load(name).map(|named| named.policy);
        loaded.map_err(|error| ExitError::failed(format!("{name}: {error}")))
    };
    let off = load(OFF)?;
    let others: Vec<(&str, Policy)> = OTHERS
        .into_iter()
        .map(|name| Ok((name, load(name)?)))
        .collect::<Result<_, ExitError>>()?;
    let contenders: Vec<Contender<'_>> = others
        .iter()
        .map(|(name, policy)| Contender { name, policy })
        .collect();
    // The others are compared with `off`.
    let evaluated: Vec<&NamedItem<Policy>> =
        policies.iter().filter(|one| one.name != OFF).collect();
    let evaluated = match evaluated.is_empty() {
        true => policies.iter().collect(),
        false => evaluated,
    };
    let values: Vec<&Policy> = evaluated.iter().map(|policy| &policy.value).collect();
    let numbers: Vec<u64> = (0..args.count)
        .map(|number| args.seed.wrapping_add(number))
        .collect();
    if let Some(folder) = &args.output {
        fs::create_dir_all(folder)
            .map_err(|error| ExitError::failed(format!("{}: {error}", folder.display())))?;
    }
    let bar = progress(numbers.len());
    let on_case = || bar.inc(1);
    let generator = args.generator.into();
    let cases = evaluate_all(
        generator,
        &numbers,
        &off,
        &values,
        &contenders,
        args.threads.count(),
        &on_case,
    );
    bar.finish_and_clear();
    let files = file_names(&evaluated);
    let mut found = 0;
    for (index, policy) in evaluated.iter().enumerate() {
        print(&report(&policy.name, index, &cases, &contenders)).map_err(ExitError::failed)?;
        for case in &cases {
            let evaluation = &case.evaluations[index];
            found += usize::from(evaluation.is_worse_or_does_not_recover());
            if let (Some(folder), Some(what)) = (&args.output, what(evaluation)) {
                save(folder, &policy.name, &files[index], what, case, evaluation)?;
            }
        }
    }
    match found {
        0 => Ok(()),
        found => Err(ExitError::failed(format!(
            "in {found} of {} evaluations a service did not recover with a policy, or it was worse than off",
            cases.len() * evaluated.len()
        ))),
    }
}

/// Names the finding in a word.
fn what(evaluation: &Evaluation) -> Option<&'static str> {
    match (evaluation.does_not_recover, evaluation.worse) {
        (true, _) => Some("does not recover"),
        (false, true) => Some("worse"),
        (false, false) if !evaluation.better.is_empty() => Some("better"),
        (false, false) => None,
    }
}

/// Formats the findings for one policy.
fn report(name: &str, index: usize, cases: &[Case], others: &[Contender<'_>]) -> String {
    let mut text = format!(
        "{name}, in {}{} compared with off\n\n",
        counted(cases.len() as u64, "random scenario"),
        by(cases)
    );
    let found = cases
        .iter()
        .filter_map(|case| Some((case, what(&case.evaluations[index])?)));
    let found: Vec<_> = found.collect();
    if !found.is_empty() {
        text += "number  found             goodput  late   attempts  off: goodput  late   better\n";
    }
    for (case, what) in &found {
        let evaluation = &case.evaluations[index];
        let (means, off) = (evaluation.means, evaluation.off);
        let _ = writeln!(
            text,
            "{:<7} {what:<16}  {:.4}  {:.3}  {:>8.2}  {:>12.4}  {:.3}   {}",
            case.drawn.number,
            means.goodput,
            means.late,
            means.attempts,
            off.goodput,
            off.late,
            better(evaluation),
        );
    }
    let count = |is: &dyn Fn(&Evaluation) -> bool| {
        let evaluations = cases.iter().map(|case| &case.evaluations[index]);
        evaluations.filter(|one| is(one)).count()
    };
    let _ = writeln!(
        text,
        "\nscenarios: {} in which it does not recover, {} worse than off, {} in which another is better\n",
        count(&|one| one.does_not_recover),
        count(&|one| one.worse),
        count(&|one| !one.better.is_empty()),
    );
    let mean =
        |of: &dyn Fn(&Case) -> f64| cases.iter().map(of).sum::<f64>() / cases.len().max(1) as f64;
    let _ = writeln!(
        text,
        "mean goodput: {name} {:.4}",
        mean(&|case| case.first[index])
    );
    let _ = writeln!(text, "              off {:.4}", mean(&|case| case.off));
    for (number, other) in others.iter().enumerate() {
        let goodput = mean(&|case| case.others[number]);
        let _ = writeln!(text, "              {} {goodput:.4}", other.name);
    }
    if !found.is_empty() {
        text += "\nby dimension: scenarios, those in which it does not recover, worse than off, another better\n";
        let levels = tally(cases, index).into_iter();
        for tally in levels.filter(|tally| tally.cases > 0) {
            let (dimension, level) = tally.of;
            let _ = writeln!(
                text,
                "{:<34} {:>4} {:>4} {:>4} {:>4}",
                format!("{dimension}: {level}"),
                tally.cases,
                tally.does_not_recover,
                tally.worse,
                tally.better,
            );
        }
    }
    text.push('\n');
    text
}

/// Names the generator, if it is not the default.
fn by(cases: &[Case]) -> &'static str {
    match cases.first().map(|case| case.drawn.generator) {
        Some(Generator::Everyday) => " (everyday)",
        Some(Generator::Broad) | None => "",
    }
}

/// Lists the policies that are better, with the difference of goodput.
fn better(evaluation: &Evaluation) -> String {
    let names = evaluation.better.iter();
    let names: Vec<String> = names
        .map(|(name, more)| format!("{name} +{:.3}", more.mean))
        .collect();
    names.join(", ")
}

/// Returns a file name for each policy: its name without special characters, made unique.
fn file_names(policies: &[&NamedItem<Policy>]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for policy in policies {
        let last = policy.name.rsplit('/').next().unwrap_or_default();
        let last = last.replace(".toml", "").replace(".json", "");
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let name: String = last.chars().map(plain).collect();
        let name = match name.trim_matches('-') {
            "" => "policy",
            name => name,
        };
        let mut own = name.to_owned();
        let mut number = 2;
        while names.contains(&own) {
            own = format!("{name}-{number}");
            number += 1;
        }
        names.push(own);
    }
    names
}

/// Writes a scenario with the finding in its comments.
fn save(
    folder: &Path,
    policy: &str,
    file: &str,
    what: &str,
    case: &Case,
    evaluation: &Evaluation,
) -> Result<(), ExitError> {
    let number = case.drawn.number;
    let path = folder.join(format!("{file}-{}-{number}.toml", what.replace(' ', "-")));
    let (means, off) = (evaluation.means, evaluation.off);
    let levels = case.drawn.levels.iter();
    let levels: Vec<String> = levels
        .map(|(dimension, level)| format!("{dimension}: {level}"))
        .collect();
    let more = match better(evaluation) {
        none if none.is_empty() => String::new(),
        names => format!("# Better: {names}\n"),
    };
    let text = format!(
        "# Found by `relent simulate random 1 --seed {number} --generator {}`: {what}.\n\
         # {policy}: goodput {:.4}, late {:.3}, {:.2} attempts per request; off: goodput {:.4}, late {:.3}.\n\
         {more}# {}\n\n\
         description = \"random scenario {number}: {what}\"\n\n{}",
        case.drawn.generator.name(),
        means.goodput,
        means.late,
        means.attempts,
        off.goodput,
        off.late,
        levels.join("; "),
        case.drawn.text,
    );
    fs::write(&path, text)
        .map_err(|error| ExitError::failed(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_of_policies_are_unique() {
        let named = |name: &str| NamedItem {
            name: name.to_owned(),
            value: Policy::STANDARD.clone(),
            text: String::new(),
        };
        let policies = ["standard", "a/mine.toml#x", "b/mine.toml#x", "../.."].map(named);
        let names = file_names(&policies.iter().collect::<Vec<_>>());
        assert_eq!(names, ["standard", "mine-x", "mine-x-2", "policy"]);
    }
}
