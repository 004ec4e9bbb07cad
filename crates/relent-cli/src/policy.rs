//! `relent policy`: lists presets, prints policies and checks policy files.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use clap::Subcommand;
use relent::policy::{PolicyFile, Severity};
use relent::{NamedPolicy, presets};

use crate::console::{print, report_error};
use crate::quit::ExitError;

/// The end of `relent policy --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  Start a policy of your own from a preset:
      relent policy show patient > mine.toml

  Check it, and show its delays:
      relent policy check mine.toml
      relent schedule --policy ./mine.toml

`check` prints each finding with its severity. An error means that the file is
no valid policy or contradicts itself. A warning means that a setting has no
effect or an unexpected one: a limit below the first delay or the attempt
timeout, a failure in lists that exclude each other, a rule that never matches,
a ratio above 1.

Exit status: 0; 1 if there is an error or the result cannot be written;
2 if the options are wrong, or a file cannot be read;
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
    /// List the presets
    List,
    /// Print a policy as TOML; presets with their comments
    Show {
        /// A preset, a file with one policy, or FILE#NAME for the [policies.NAME] of a file
        #[arg(value_name = "NAME|FILE[#NAME]")]
        policy: String,
    },
    /// Read policy files and print the errors and warnings in them
    Check {
        /// Policy files; - is standard input
        #[arg(value_name = "FILE", required = true)]
        files: Vec<String>,
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
        PolicyCommand::Check { files } => check(files),
        PolicyCommand::Schema => print(PolicyFile::SCHEMA).map_err(ExitError::failed),
    }
}

fn list() -> Result<(), ExitError> {
    let width = presets::names().iter().map(|name| name.len()).max();
    let width = width.unwrap_or_default();
    let mut text = String::new();
    for preset in presets::all() {
        let loaded = preset
            .load()
            .map_err(|e| ExitError::failed(e.to_string()))?;
        let about = loaded.description.unwrap_or_default();
        let _ = writeln!(text, "{:width$}  {about}", preset.name);
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

/// Checks every file, also after a bad one; the worst status is the result.
fn check(files: &[String]) -> Result<(), ExitError> {
    let mut worst = 0;
    for file in files {
        let status = match check_file(file) {
            Ok(Checked { good, findings }) => {
                print(&good).map_err(ExitError::failed)?;
                findings.iter().for_each(|finding| report_error(finding));
                if findings.is_empty() {
                    0
                } else {
                    EXIT_WARNINGS
                }
            }
            Err(quit) => {
                report_error(&quit.message);
                quit.status
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

/// The result of checking a readable file.
struct Checked {
    /// A line for each policy without a finding.
    good: String,
    findings: Vec<String>,
}

fn check_file(file: &str) -> Result<Checked, ExitError> {
    let name = if file == "-" { "standard input" } else { file };
    let bytes = read(file).map_err(|e| {
        let instead = match file.rsplit_once('#') {
            _ if e.kind() != io::ErrorKind::NotFound => String::new(),
            _ if presets::get(file).is_some() => {
                format!("; the preset is shown by `relent policy show {file}`")
            }
            Some((path, _)) if Path::new(path).exists() => {
                format!("; all policies of a file are checked: give {path}")
            }
            _ => String::new(),
        };
        ExitError::usage(format!("{name}: cannot be read: {e}{instead}"))
    })?;
    let error = Severity::Error;
    let failed = |why: String| ExitError::failed(format!("{name}: {error}: {why}"));
    let text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        failed(format!("is not UTF-8 text (from byte {at} on)"))
    })?;
    let policies = PolicyFile::parse(&text).map_err(|e| failed(e.to_string()))?;
    let mut checked = Checked {
        good: String::new(),
        findings: Vec::new(),
    };
    for NamedPolicy {
        name: own, policy, ..
    } in policies.policies()
    {
        let name = match own {
            Some(own) => format!("{name}#{own}"),
            None => name.to_owned(),
        };
        let findings = policy.lint();
        if findings.is_empty() {
            let _ = writeln!(checked.good, "{name}: ok");
        }
        let lines = findings
            .iter()
            .map(|finding| format!("{name}: {}: {finding}", finding.severity()));
        checked.findings.extend(lines);
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
