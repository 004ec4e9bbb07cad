//! The built-in scenarios, and templates of the input files.

use std::fmt::Write;

use clap::ValueEnum;
use relent_sim::advise::Description;
use relent_sim::{Scenario, advise, scenarios};

use crate::console::print;
use crate::exit_status::ExitError;

/// The end of `relent simulate list --help`.
pub(super) const LIST_HELP: &str = "\
Examples:
  Run one of them:
      relent simulate run blackout

Exit status: 0; 1 if the output cannot be written.";

/// The end of `relent simulate show --help`.
pub(super) const SHOW_HELP: &str = "\
Examples:
  A scenario of your own, starting from a built-in one:
      relent simulate show blackout > mine.toml
      relent simulate run ./mine.toml

Exit status: 0; 1 if the output cannot be written; 2 if there is no such
scenario.";

/// The end of `relent simulate template --help`.
pub(super) const TEMPLATE_HELP: &str = "\
Examples:
  Every key of a scenario, for `relent simulate run`:
      relent simulate template

  The description of a service, for `relent advise`:
      relent simulate template service > orders.toml     # and fill it in
      relent advise orders.toml > policy.toml

Comments explain each key, with its default and the alternatives.

Exit status: 0; 1 if the output cannot be written; 2 if the command line is
wrong.";

/// The end of `relent simulate schema --help`.
pub(super) const SCHEMA_HELP: &str = "\
Examples:
  Completion and checks in an editor; the first line of the file names the schema:
      relent simulate schema > scenario.schema.json
      #:schema ./scenario.schema.json

Exit status: 0; 1 if the output cannot be written; 2 if the command line is
wrong.";

/// A file that has a template and a schema.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum FileKind {
    /// A scenario, for `relent simulate run`
    Scenario,
    /// The description of a service, for `relent advise`
    Service,
}

/// Lists the built-in scenarios.
///
/// # Errors
/// The output cannot be written.
pub(super) fn list() -> Result<(), ExitError> {
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

/// Prints the file of a built-in scenario.
///
/// # Errors
/// There is no such scenario, or the output cannot be written.
pub(super) fn show(name: &str) -> Result<(), ExitError> {
    match scenarios::get(name) {
        Some(builtin) => print(builtin.text).map_err(ExitError::failed),
        None => Err(ExitError::usage(format!(
            "no scenario {name:?}: {}",
            suggestion(name)
        ))),
    }
}

/// Prints a template.
///
/// # Errors
/// The output cannot be written.
pub(super) fn template(kind: FileKind) -> Result<(), ExitError> {
    let page = match kind {
        FileKind::Scenario => scenarios::FORMAT,
        FileKind::Service => advise::FORMAT,
    };
    print(&toml_of(page)).map_err(ExitError::failed)
}

/// Prints a JSON Schema.
///
/// # Errors
/// The output cannot be written.
pub(super) fn schema(kind: FileKind) -> Result<(), ExitError> {
    let schema = match kind {
        FileKind::Scenario => Scenario::SCHEMA,
        FileKind::Service => Description::SCHEMA,
    };
    print(schema).map_err(ExitError::failed)
}

/// Suggests a built-in scenario for an unknown name.
pub(super) fn suggestion(name: &str) -> String {
    match scenarios::nearest(name) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("the built-in ones are {}", scenarios::names().join(", ")),
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
