//! `relent deliver endpoints`.

use std::num::NonZeroU32;
use std::path::Path;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use relent::presets;
use relent_outbox::endpoint::Acknowledgement;
use relent_sim::nearest;
use serde_json::{Map, Value};

use super::list::{columns, full_name};
use super::server::{Connection, Server, distance, encoded, json, plain, text};
use crate::console::{print, say};
use crate::options::count;
use crate::quit::Quit;

/// The end of `relent deliver endpoints --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  A receiver of payment results, by the schedule of WeChat Pay:
      relent deliver endpoints add shop https://shop.example/notify \\
          --policy wechat-pay --acknowledgement code-success --secret shop.key

  Hold its messages back while it moves, and let them go:
      relent deliver endpoints disable shop --reason 'moves until noon'
      relent deliver endpoints enable shop

  Change its signing key: the new one first, and then the new one alone:
      relent deliver endpoints add shop https://shop.example/notify \\
          --secret new.key --secret old.key
      relent deliver endpoints remove-key shop 2

  Delete one that nobody needs any more:
      relent deliver endpoints delete shop

Exit status: 0; 1 if the server refuses it or does not answer; 2 if the options
are wrong.";

/// Whose endpoint it is, and which server has it.
#[derive(Args, Debug)]
pub(crate) struct Named {
    /// The name of the endpoint
    #[arg(value_name = "NAME", value_parser = segment)]
    name: String,

    /// Whose it is, where there are several owners
    #[arg(long, value_name = "NAME", default_value = "")]
    tenant: String,

    #[command(flatten)]
    connection: Connection,
}

impl Named {
    fn path(&self, act: &str) -> String {
        format!(
            "/v1/endpoints/{}{act}?tenant={}",
            encoded(&self.name),
            encoded(&self.tenant)
        )
    }
}

/// A name or an identifier that can stand in a URL.
pub(super) fn segment(text: &str) -> Result<String, String> {
    match text {
        "" | "." | ".." => Err("it cannot stand in a URL: choose another".to_owned()),
        text => Ok(text.to_owned()),
    }
}

#[derive(Subcommand, Debug)]
pub(crate) enum EndpointsCommand {
    /// List endpoints and how they fare
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,

        #[command(flatten)]
        connection: Connection,
    },
    /// Register an endpoint, or change it
    Add(Box<AddArgs>),
    /// Have messages go there again
    Enable(Named),
    /// Hold its messages back; none is lost
    Disable {
        #[command(flatten)]
        named: Named,

        /// Why; the list and the page show it
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// Remove a signing key, such as the old one when the receiver has the new one
    RemoveKey {
        #[command(flatten)]
        named: Named,

        /// Which one: 1 is the newest
        #[arg(value_name = "NUMBER")]
        number: NonZeroU32,

        /// Remove the last one, too: attempts are not signed then
        #[arg(long)]
        allow_unsigned: bool,
    },
    /// Delete an endpoint with all its messages
    ///
    /// Refused while some of them are pending, running or dead: have them delivered, or cancel them.
    Delete {
        #[command(flatten)]
        named: Named,

        /// Delete messages that were not delivered, too; nobody will get them
        #[arg(long)]
        discard: bool,
    },
}

#[derive(Args, Debug)]
pub(crate) struct AddArgs {
    #[command(flatten)]
    named: Named,

    /// Where messages are sent
    #[arg(value_name = "URL")]
    url: String,

    /// Follow this preset, or the policy in this file [default: standard-webhooks]
    #[arg(long, value_name = "NAME|FILE")]
    policy: Option<String>,

    /// Which answer acknowledges a message [default: success]
    #[arg(long, value_name = "ANSWER", value_parser = acknowledged())]
    acknowledgement: Option<Acknowledgement>,

    /// The most concurrent attempts [default: 4; where the schedule is a contract at least 256]
    #[arg(long, value_name = "N", value_parser = count, allow_hyphen_values = true)]
    concurrency: Option<NonZeroU32>,

    /// Make each attempt of the schedule, also while the endpoint is down
    ///
    /// So it is anyway where the schedule is a contract: a list of delays without jitter, as that of
    /// wechat-pay.
    #[arg(long)]
    no_park: bool,

    /// Let messages pass a dead one with the same order key
    #[arg(long)]
    skip_dead: bool,

    /// Sign with the key in this file, or with env:NAME in the environment of the server
    ///
    /// May be given twice while a key is changed: the new one first. Without it, the keys of an
    /// endpoint that is there stay.
    #[arg(long = "secret", value_name = "FILE|env:NAME")]
    secrets: Vec<String>,
}

/// Reads the name of an acknowledgement.
pub(super) fn acknowledged() -> impl TypedValueParser<Value = Acknowledgement> {
    let values =
        Acknowledgement::ALL.map(|(_, name, answer)| PossibleValue::new(name).help(answer));
    PossibleValuesParser::new(values).map(|given| {
        let mut all = Acknowledgement::ALL.into_iter();
        all.find(|(_, name, _)| *name == given)
            .map_or_else(Acknowledgement::default, |(one, ..)| one)
    })
}

pub(super) async fn run(command: EndpointsCommand) -> Result<(), Quit> {
    match command {
        EndpointsCommand::List { json, connection } => list(&connection.open()?, json).await,
        EndpointsCommand::Add(args) => add(&args).await,
        EndpointsCommand::Enable(named) => {
            let server = named.connection.open()?;
            server.post(&named.path("/enable"), None).await?;
            say(&format!("{} is active", named.name));
            Ok(())
        }
        EndpointsCommand::Disable { named, reason } => {
            let server = named.connection.open()?;
            let body = json(&Map::from_iter([(
                "reason".to_owned(),
                Value::from(reason),
            )]))?;
            server.post(&named.path("/disable"), Some(body)).await?;
            say(&format!("{} is disabled; its messages wait", named.name));
            Ok(())
        }
        EndpointsCommand::RemoveKey {
            named,
            number,
            allow_unsigned,
        } => {
            let server = named.connection.open()?;
            let path = named.path(&format!("/secrets/{number}"));
            let path = format!("{path}&allow_unsigned={allow_unsigned}");
            let changed = server.delete(&path).await?;
            let left = changed["endpoint"]["secrets"]
                .as_array()
                .map_or(0, Vec::len);
            say(&format!(
                "{} has lost signing key {number}; signing keys left: {left}",
                named.name
            ));
            Ok(())
        }
        EndpointsCommand::Delete { named, discard } => {
            let server = named.connection.open()?;
            let path = format!("{}&discard={discard}", named.path(""));
            let deleted = server.delete(&path).await?;
            let count = &deleted["messages"];
            say(&format!(
                "{} is deleted; messages deleted with it: {count}",
                named.name
            ));
            Ok(())
        }
    }
}

async fn list(server: &Server, as_json: bool) -> Result<(), Quit> {
    let mut endpoints: Vec<Value> = Vec::new();
    let mut next = Some("/v1/endpoints?limit=1000".to_owned());
    while let Some(path) = next {
        let mut page = server.get(&path).await?;
        if let Some(found) = page["endpoints"].as_array_mut() {
            endpoints.append(found);
        }
        next = page["next"].as_str().map(str::to_owned);
    }
    if as_json {
        return print(&(json(&endpoints)? + "\n")).map_err(Quit::failed);
    }
    let mut rows = vec![["STATE", "PENDING", "DEAD", "ENDPOINT", "URL"].map(str::to_owned)];
    rows.extend(endpoints.iter().map(|status| {
        [
            text(status, "activity"),
            status["pending"].to_string(),
            status["dead"].to_string(),
            full_name(&status["endpoint"], "name"),
            text(&status["endpoint"], "url"),
        ]
    }));
    let notes = endpoints.iter().map(|status| {
        let (reason, error) = (text(status, "reason"), text(status, "last_error"));
        let mut note = match (reason.as_str(), error.as_str()) {
            ("", "") => String::new(),
            ("", error) => format!("    last attempt: {error}\n"),
            (reason, _) => format!("    {reason}\n"),
        };
        let held = &status["held"];
        if held.is_object() {
            let until = held["until_ms"].as_i64();
            let until = until.map_or_else(|| "when an attempt ends".to_owned(), distance);
            let because = match (text(held, "because"), text(held, "error")) {
                (because, error) if error.is_empty() => because,
                (because, error) => format!("{because}: {error}"),
            };
            note.push_str(&format!(
                "    held back: {because}; the next attempt {until}\n"
            ));
        }
        note
    });
    let printed = columns(&rows, [String::new()].into_iter().chain(notes));
    print(&printed).map_err(Quit::failed)
}

async fn add(args: &AddArgs) -> Result<(), Quit> {
    let mut spec = Map::new();
    spec.insert("url".to_owned(), args.url.clone().into());
    if let Some(policy) = &args.policy {
        spec.insert("policy".to_owned(), policy_text(policy)?.into());
    }
    if let Some(acknowledgement) = args.acknowledgement {
        let name = serde_json::to_value(acknowledgement);
        let name = name.map_err(|error| Quit::failed(error.to_string()))?;
        spec.insert("acknowledgement".to_owned(), name);
    }
    if let Some(concurrency) = args.concurrency {
        spec.insert("concurrency".to_owned(), concurrency.get().into());
    }
    if args.no_park {
        spec.insert("park".to_owned(), false.into());
    }
    if args.skip_dead {
        spec.insert("after_dead".to_owned(), "skip".into());
    }
    if !args.secrets.is_empty() {
        let secrets: Result<Vec<_>, Quit> = args.secrets.iter().map(|s| secret(s)).collect();
        spec.insert("secrets".to_owned(), secrets?.into());
    }
    let server = args.named.connection.open()?;
    let registered = server.put(&args.named.path(""), &spec).await?;
    say(&format!("{} is registered", args.named.name));
    for warning in registered["warnings"].as_array().into_iter().flatten() {
        say(&format!(
            "warning: {}",
            plain(warning.as_str().unwrap_or_default())
        ));
    }
    Ok(())
}

/// A preset by its name; of anything else what stands in the file, since the server reads none.
fn policy_text(policy: &str) -> Result<String, Quit> {
    match presets::get(policy) {
        Some(_) => Ok(policy.to_owned()),
        None => std::fs::read_to_string(policy).map_err(|error| {
            let near = nearest(policy, presets::names());
            let near = near.map_or_else(String::new, |near| format!("did you mean `{near}`? "));
            Quit::usage(format!(
                "--policy {policy}: neither a preset nor a file that can be read: {error}; {near}`relent policy list` has the presets"
            ))
        }),
    }
}

/// A key in a file, or a reference to one in the environment.
pub(super) fn secret(secret: &str) -> Result<String, Quit> {
    if secret.starts_with("env:") {
        return Ok(secret.to_owned());
    }
    // What is a key itself is not repeated: others may read what is said here.
    if ["whsec_", "whsk_", "whpk_"]
        .iter()
        .any(|kind| secret.starts_with(kind))
    {
        return Err(Quit::usage(
            "--secret: a key on the command line can be seen by others: put it into a file and name that"
                .to_owned(),
        ));
    }
    let text = std::fs::read_to_string(Path::new(secret))
        .map_err(|error| Quit::usage(format!("--secret {secret}: cannot be read: {error}")))?;
    Ok(text.trim().to_owned())
}
