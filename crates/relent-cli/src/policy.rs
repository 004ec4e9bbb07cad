//! `relent policy`: lists presets, prints policies and checks policy files.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::slice;

use clap::Subcommand;
use relent::policy::{PolicyFile, Severity};
use relent::{NamedPolicy, Policy, presets};

use crate::console::{print, report_error};
use crate::exit_status::ExitError;

/// The end of `relent policy --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  Start a policy of your own from a preset:
      relent policy show patient > mine.toml

  Check it, and show its delays:
      relent policy check mine.toml
      relent schedule --policy ./mine.toml

`check FILE` checks all policies of the file, `check FILE#NAME` only that one.
`check` prints each finding with its severity. An error means that the file is
no valid policy or contradicts itself. A warning means that a setting has no
effect or an unexpected one: a limit below the first delay or the attempt
timeout, a failure in lists that exclude each other, a rule that never matches,
a ratio above 1.

Exit status: 0; 1 if there is an error or the result cannot be written;
2 if the options are wrong, or a policy cannot be found or read;
3 if there are warnings only.
With several files the worst status counts: 2, then 1, then 3.";

/// The exit status of a file that has warnings and no errors.
const EXIT_WARNINGS: i32 = 3;

/// The most bytes that are read of a file: more than a policy file may have, so that a file that is too large is
/// reported as such.
const MAX_FILE_BYTES: u64 = 2 << 20;

/// The subcommands of `relent policy`.
#[derive(Subcommand, Debug)]
pub(crate) enum PolicyCommand {
    /// List the presets, and `off`
    List,
    /// Print a policy as TOML; presets with their comments
    Show {
        /// A preset, a file with one policy, or FILE#NAME for the [policies.NAME] of a file
        #[arg(value_name = "NAME|FILE[#NAME]")]
        policy: String,
    },
    /// Read policies and print the errors and warnings in them
    Check {
        /// Policy files, of which all policies are checked, or presets; - is standard input
        #[arg(value_name = "NAME|FILE[#NAME]", required = true)]
        policies: Vec<String>,
    },
    /// Print the JSON Schema of a policy file, for editors
    Schema,
}

/// Runs a subcommand of `relent policy`.
///
/// # Errors
/// A policy cannot be loaded, a file has findings, or the output cannot be written.
pub(crate) fn run(command: &PolicyCommand) -> Result<(), ExitError> {
    match command {
        PolicyCommand::List => list(),
        PolicyCommand::Show { policy } => show(policy),
        PolicyCommand::Check { policies } => check(policies),
        PolicyCommand::Schema => print(PolicyFile::SCHEMA).map_err(ExitError::failed),
    }
}

fn list() -> Result<(), ExitError> {
    let names = NamedPolicy::names();
    let width = names.iter().map(|name| name.len()).max();
    let width = width.unwrap_or_default();
    let mut text = String::new();
    for name in names {
        let loaded = NamedPolicy::load(name).map_err(|e| ExitError::failed(e.to_string()))?;
        let about = loaded.description.unwrap_or_default();
        let _ = writeln!(text, "{name:width$}  {about}");
    }
    print(&text).map_err(ExitError::failed)
}

fn show(spec: &str) -> Result<(), ExitError> {
    if let Some(preset) = presets::get(spec) {
        return print(preset.text).map_err(ExitError::failed);
    }
    let named = NamedPolicy::load(spec).map_err(|e| ExitError::usage(e.to_string()))?;
    let policy = toml::to_string(&named.policy).map_err(|e| ExitError::failed(e.to_string()))?;
    let mut text = String::new();
    for (key, value) in [("description", named.description), ("source", named.source)] {
        if let Some(value) = value {
            let _ = writeln!(text, "{key} = {}", toml::Value::String(value));
        }
    }
    print(&(text + &policy)).map_err(ExitError::failed)
}

/// Checks everything given, also after a bad one; the worst status is the result.
fn check(policies: &[String]) -> Result<(), ExitError> {
    let mut worst = 0;
    for given in policies {
        let status = match check_one(given) {
            Ok(Checked { good, findings }) => {
                print(&good).map_err(ExitError::failed)?;
                findings.iter().for_each(|finding| report_error(finding));
                if findings.is_empty() {
                    0
                } else {
                    EXIT_WARNINGS
                }
            }
            Err(error) => {
                report_error(&error.message);
                error.status
            }
        };
        if gravity(status) > gravity(worst) {
            worst = status;
        }
    }
    match worst {
        0 => Ok(()),
        status => Err(ExitError {
            status,
            message: String::new(),
        }),
    }
}

/// Ranks exit statuses by severity.
const fn gravity(status: i32) -> i32 {
    match status {
        EXIT_WARNINGS => 1,
        0 => 0,
        status => status + 1,
    }
}

/// The result of checking what can be read.
#[derive(Default)]
struct Checked {
    /// A line for each policy without a finding.
    good: String,
    findings: Vec<String>,
}

impl Checked {
    fn add(&mut self, name: &str, policy: &Policy) {
        let findings = policy.lint();
        if findings.is_empty() {
            let _ = writeln!(self.good, "{name}: ok");
        }
        let lines = findings
            .iter()
            .map(|finding| format!("{name}: {}: {finding}", finding.severity()));
        self.findings.extend(lines);
    }
}

/// Checks a preset, all policies of a file, or one of them.
fn check_one(given: &str) -> Result<Checked, ExitError> {
    let mut checked = Checked::default();
    if NamedPolicy::names().contains(&given) {
        let named = NamedPolicy::load(given).map_err(|e| ExitError::failed(e.to_string()))?;
        checked.add(given, &named.policy);
        return Ok(checked);
    }
    let (file, only) = match given.rsplit_once('#') {
        // The file name may itself contain a `#`.
        Some((file, only)) if !Path::new(given).exists() => (file, Some(only)),
        _ => (given, None),
    };
    let name = if file == "-" { "standard input" } else { file };
    let bytes = read(file).map_err(|e| {
        // All commands have the same error for a name that is neither preset nor file.
        let unknown = (e.kind() == io::ErrorKind::NotFound).then(|| NamedPolicy::load(given));
        ExitError::usage(match unknown {
            Some(Err(unknown)) => unknown.to_string(),
            _ => format!("{name}: cannot be read: {e}"),
        })
    })?;
    let error = Severity::Error;
    let failed = |why: String| ExitError::failed(format!("{name}: {error}: {why}"));
    let text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        failed(format!("is not UTF-8 text (from byte {at} on)"))
    })?;
    let read = PolicyFile::parse(&text).map_err(|e| failed(e.to_string()))?;
    let policies = match only {
        Some(only) => slice::from_ref(read.get(Some(only)).map_err(|e| failed(e.to_string()))?),
        None => read.policies(),
    };
    for NamedPolicy {
        name: own, policy, ..
    } in policies
    {
        match own {
            Some(own) => checked.add(&format!("{name}#{own}"), policy),
            None => checked.add(name, policy),
        }
    }
    Ok(checked)
}

fn read(file: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if file == "-" {
        io::stdin()
            .lock()
            .take(MAX_FILE_BYTES)
            .read_to_end(&mut bytes)?;
    } else {
        File::open(file)?
            .take(MAX_FILE_BYTES)
            .read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}
