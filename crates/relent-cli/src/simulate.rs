//! `relent simulate`: simulates many clients that use a policy.

mod builtin;
pub(crate) mod charts;
mod grid;
pub(crate) mod input;
mod json;
pub(crate) mod options;
pub(crate) mod progress;
mod random;
pub(crate) mod ranked;
mod run;
mod table;

use clap::Subcommand;

use crate::exit_status::ExitError;

/// The end of `relent simulate --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  Compare policies with no retries, in an outage:
      relent simulate run blackout --policy off,standard,aws-standard

  Simulate your own service, starting from a built-in scenario:
      relent simulate list
      relent simulate show blackout > service.toml
      relent simulate run ./service.toml

  Look for scenarios in which a policy is worse than no retries:
      relent simulate random 1000 --policy standard --output found

Runs use the decision code of production, in virtual time; the same seed gives
the same numbers on every machine. `relent advise` writes a policy for a service
that you describe.

Exit status: 0; 1 on failure, if random finds a policy that is worse than off
(no retries) or does not recover, or if grid finds that a policy misses a bound
of its file; 2 if the command line or a file is wrong.
`relent simulate SUBCOMMAND --help` has more.";

/// The subcommands of `relent simulate`.
#[derive(Subcommand, Debug)]
pub(crate) enum SimulateCommand {
    /// Run scenarios, and compare policies in them
    #[command(after_long_help = run::AFTER_HELP)]
    Run(Box<run::RunArgs>),
    /// List the built-in scenarios
    #[command(after_long_help = builtin::LIST_HELP)]
    List,
    /// Print the file of a built-in scenario
    #[command(after_long_help = builtin::SHOW_HELP)]
    Show {
        /// A built-in scenario; `relent simulate list` shows them
        #[arg(value_name = "SCENARIO")]
        scenario: String,
    },
    /// Print a file with every key, its default and comments, to start from
    #[command(after_long_help = builtin::TEMPLATE_HELP)]
    Template {
        /// The kind of file
        #[arg(value_enum, default_value = "scenario")]
        kind: builtin::FileKind,
    },
    /// Print the JSON Schema of a file, for editors
    #[command(after_long_help = builtin::SCHEMA_HELP)]
    Schema {
        /// The file
        #[arg(value_enum, default_value = "scenario")]
        kind: builtin::FileKind,
    },
    /// Look for random scenarios in which a policy is worse than no retries
    #[command(after_long_help = random::AFTER_HELP)]
    Random(random::RandomArgs),
    /// Run one scenario at every combination of some values, and list missed bounds
    #[command(after_long_help = grid::AFTER_HELP)]
    Grid(grid::GridArgs),
}

/// Runs a subcommand of `relent simulate`.
///
/// # Errors
/// Policies, scenarios or options are wrong, a policy misses a bound, or the output cannot be written.
pub(crate) fn run(command: &SimulateCommand) -> Result<(), ExitError> {
    match command {
        SimulateCommand::Run(args) => run::run(args),
        SimulateCommand::List => builtin::list(),
        SimulateCommand::Show { scenario } => builtin::show(scenario),
        SimulateCommand::Template { kind } => builtin::template(*kind),
        SimulateCommand::Schema { kind } => builtin::schema(*kind),
        SimulateCommand::Random(args) => random::run(args),
        SimulateCommand::Grid(args) => grid::run(args),
    }
}
