//! The `relent` command.

#[cfg(not(unix))]
compile_error!(
    "the command `relent` runs on Unix systems, such as Linux and macOS: it starts, signals and ends \
     groups of processes. The libraries `relent` and `relent-http` are not bound to Unix"
);

mod admission;
#[cfg(feature = "simulate")]
mod advise;
mod console;
#[cfg(feature = "deliver")]
mod deliver;
mod exit_status;
mod fetch;
mod human;
mod live_output;
mod options;
mod output_file;
mod pages;
mod policy;
mod run;
mod runtime;
mod schedule;
mod signals;
#[cfg(feature = "simulate")]
mod simulate;
mod spool;
mod stdout;
mod streams;
mod trace_out;
mod writing;

use std::io;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use relent::policy::nearest;

use crate::exit_status::ExitError;
use crate::runtime::block_on;

const AFTER_HELP: &str = "\
Examples:
  Repeat a command until it succeeds:
      relent run -- make deploy

  Download a complete file, also if the connection breaks repeatedly:
      relent fetch -o FILE https://example.com/file

  Show the delays of a policy:
      relent schedule --policy standard

`relent SUBCOMMAND --help` has more, with the exit statuses.

Environment:
  RELENT_POLICY   the policy if --policy is not given; `off` turns retries off
  NO_COLOR        no colours, also on a terminal

Runs on Unix systems, such as Linux and macOS; its tests run on Linux.";

/// Retry calls to unreliable services without overloading them
///
/// Relent retries failed commands and requests with exponential backoff and jitter, within limits. It
/// repeats only requests that may be repeated, and respects Retry-After. --trace explains every
/// attempt afterwards.
#[derive(Parser, Debug)]
#[command(
    name = "relent",
    version,
    after_long_help = AFTER_HELP,
    args_override_self = true,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run a command until it succeeds
    #[command(
        override_usage = "relent run [OPTIONS] [--] <CMD>...",
        after_long_help = run::AFTER_HELP
    )]
    Run(run::RunArgs),
    /// Fetch a URL until there is a complete response
    ///
    /// The complete body goes to standard output or a file, once.
    #[command(after_long_help = fetch::AFTER_HELP)]
    Fetch(Box<fetch::FetchArgs>),
    /// Show the delays of a policy
    #[command(after_long_help = schedule::AFTER_HELP)]
    Schedule(schedule::ScheduleArgs),
    /// Simulate many clients that use a policy
    #[cfg(feature = "simulate")]
    #[command(subcommand, after_long_help = simulate::AFTER_HELP)]
    Simulate(simulate::SimulateCommand),
    /// Print a policy for a service that you describe
    ///
    /// The simulator compares it with other policies, in faults that fit the description.
    #[cfg(feature = "simulate")]
    #[command(after_long_help = advise::AFTER_HELP)]
    Advise(Box<advise::AdviseArgs>),
    /// Deliver messages until their receivers acknowledge them
    ///
    /// A server for webhooks: it stores each message until it is delivered, and lists stuck messages
    /// with the reason.
    #[cfg(feature = "deliver")]
    #[command(subcommand, after_long_help = deliver::AFTER_HELP)]
    Deliver(deliver::DeliverCommand),
    /// List the presets, print a policy, check policy files
    #[command(subcommand, after_long_help = policy::AFTER_HELP)]
    Policy(policy::PolicyCommand),
    /// Print the completions for a shell
    ///
    /// For bash: relent completions bash > ~/.local/share/bash-completion/completions/relent
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, or write the pages of all subcommands into a directory
    Man {
        /// An existing directory
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
    },
}

fn main() {
    let status = match Cli::try_parse() {
        Ok(cli) => cli.command.run(),
        Err(error) => report_parse_error(&error),
    };
    std::process::exit(status.unwrap_or_else(|error| {
        if !error.message.is_empty() {
            console::report_error(&error.message);
        }
        error.status
    }));
}

impl Command {
    fn run(self) -> Result<i32, ExitError> {
        match self {
            Self::Run(args) => block_on(run::run(args))
                .and_then(|status| status)
                .map_err(ExitError::own_error),
            Self::Fetch(args) => block_on(fetch::run(*args))
                .map_err(ExitError::failed)
                .and_then(|status| status),
            Self::Schedule(args) => schedule::run(&args).map(|()| 0),
            #[cfg(feature = "simulate")]
            Self::Simulate(command) => simulate::run(&command).map(|()| 0),
            #[cfg(feature = "simulate")]
            Self::Advise(args) => advise::run(&args).map(|()| 0),
            #[cfg(feature = "deliver")]
            Self::Deliver(command) => deliver::run(command),
            Self::Policy(command) => policy::run(&command).map(|()| 0),
            Self::Completions { shell } => pages::completions(Cli::command(), shell).map(|()| 0),
            Self::Man { folder } => pages::man(Cli::command(), folder.as_deref()).map(|()| 0),
        }
    }
}

/// Prints the requested help or version, or explains in one line the error in the command line.
fn report_parse_error(error: &clap::Error) -> Result<i32, ExitError> {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        let printed = match error.use_stderr() {
            true => error.print(),
            false => stdout::check().and_then(|()| error.print()),
        };
        return match printed {
            // The reader has closed the stream because it needs no more: that is no error.
            Err(failed) if failed.kind() != io::ErrorKind::BrokenPipe => Err(ExitError::failed(
                format!("cannot write to standard output: {failed}"),
            )),
            _ => Ok(error.exit_code()),
        };
    }
    let mut known = &Cli::command();
    let mut path = String::new();
    for argument in std::env::args_os().skip(1) {
        let name = argument.to_str();
        let Some(command) = name.and_then(|name| known.find_subcommand(name)) else {
            break;
        };
        path = format!("{path} {}", command.get_name());
        known = command;
    }
    let message = format!(
        "{}; see `relent{path} --help`",
        explain_option(error, known, &path)
            .or_else(|| suggest_subcommand(error, known, &path))
            .unwrap_or_else(|| one_line(&error.to_string())),
    );
    Err(match path.as_str() {
        " run" => ExitError::own_error(message),
        _ => ExitError::usage(message),
    })
}

/// Former options and subcommands: the subcommand that had them, with a space before each of its words, the
/// former name, and the present command line.
const RENAMED: [(&str, &str, &str); 19] = [
    (" deliver", "--keep", "--retention"),
    (" deliver", "--drain", "--shutdown-timeout"),
    (" deliver", "--no-park", "--no-hold"),
    (" deliver", "--skip-dead", "--on-dead-letter skip"),
    (" deliver", "work", "worker"),
    (" deliver", "dead", "dead-letters"),
    (" deliver worker", "--in-flight", "--concurrency"),
    (" deliver send", "--delay", "--send-after"),
    (" deliver verify", "--headers", "--header-file"),
    (" simulate", "--list", "`relent simulate list`"),
    (" simulate", "--show", "`relent simulate show SCENARIO`"),
    (" simulate", "--format", "`relent simulate template`"),
    (" simulate", "--random", "`relent simulate random N`"),
    (" simulate", "--grid", "`relent simulate grid FILE`"),
    (" simulate", "--advise", "`relent advise FILE`"),
    (" simulate", "--policies", "--policy"),
    (" simulate", "--save", "--output"),
    (" advise", "--policies", "--policy"),
    (" advise", "--since", "--baseline"),
];

/// The present form of a renamed option or subcommand. `path` is as in [`explain_option`].
fn renamed(path: &str, name: &str) -> Option<&'static str> {
    let found = RENAMED
        .iter()
        .find(|(of, old, _)| path.starts_with(of) && *old == name);
    found.map(|(.., new)| *new)
}

/// Explains an option that other tools have, that was renamed, or that belongs to a subcommand, and names the
/// present one. `path` is the subcommand `known`, with a space before each of its words.
fn explain_option(error: &clap::Error, known: &clap::Command, path: &str) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    // The value may follow, as in `--random=3`.
    let option = option.split('=').next().unwrap_or(option);
    if path == " fetch"
        && let Some(line) = fetch::replacement_for(option)
    {
        return Some(line);
    }
    let renamed = renamed(path, option);
    let present = renamed.unwrap_or(option);
    let advice = match (subcommand_with(known, present), renamed) {
        (Some(subcommand), _) => format!("use `relent{path} {subcommand} {present}`"),
        (None, Some(new)) => format!("use {new}"),
        (None, None) => options::equivalent_option(option)?.to_owned(),
    };
    Some(format!("there is no {option} here: {advice}"))
}

/// The first subcommand that has this option.
fn subcommand_with<'c>(command: &'c clap::Command, option: &str) -> Option<&'c str> {
    let long = option.strip_prefix("--")?;
    let found = command.get_subcommands().find(|subcommand| {
        let mut options = subcommand.get_arguments();
        options.any(|argument| argument.get_long() == Some(long))
    });
    found.map(clap::Command::get_name)
}

/// Suggests a subcommand for an unknown one. (clap does not find transposed letters.)
fn suggest_subcommand(error: &clap::Error, command: &clap::Command, path: &str) -> Option<String> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let names = command.get_subcommands().map(clap::Command::get_name);
    let advice = match (renamed(path, word).or_else(|| nearest(word, names)), path) {
        (Some(near), _) => format!("a similar subcommand exists: '{near}'"),
        (None, "") => format!("to repeat a command, use `relent run -- {word}`"),
        (None, " simulate") => format!("to run a scenario, use `relent simulate run {word}`"),
        (None, _) => return None,
    };
    Some(format!("unrecognized subcommand '{word}'; {advice}"))
}

/// Extracts the error and the first tip from clap's message of several paragraphs.
fn one_line(message: &str) -> String {
    let mut line = String::new();
    let mut tips = 0;
    for part in message.lines().map(str::trim) {
        if part.starts_with("Usage:") || part.starts_with("For more information") {
            break;
        }
        let part = part.strip_prefix("error: ").unwrap_or(part);
        let tip = part.strip_prefix("tip: ");
        tips += usize::from(tip.is_some());
        let part = tip.unwrap_or(part);
        if part.is_empty() || tips > 1 {
            continue;
        }
        if !line.is_empty() {
            line.push_str(if line.ends_with(':') { " " } else { "; " });
        }
        line.push_str(part);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_usage_error_is_one_line_with_its_tip() {
        let error =
            Cli::try_parse_from(["relent", "run", "--max-retrys", "1", "true"]).unwrap_err();
        assert_eq!(
            one_line(&error.to_string()),
            "unexpected argument '--max-retrys' found; a similar argument exists: '--max-retries'"
        );
        let error = Cli::try_parse_from(["relent", "run"]).unwrap_err();
        assert_eq!(
            one_line(&error.to_string()),
            "the following required arguments were not provided: <CMD>..."
        );
    }
}
