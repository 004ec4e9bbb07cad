//! `relent deliver endpoints`.

use std::num::NonZeroU32;
use std::path::Path;

use clap::{Args, Subcommand, ValueEnum};
use relent::presets;
use relent_outbox::endpoint::Acknowledgement;
use relent_sim::nearest;
use serde_json::{Map, Value};

use super::list::{columns, full_name};
use super::server::{Connection, Server, distance, encoded, json, text};
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
    #[arg(long, value_name = "ANSWER")]
    acknowledgement: Option<Acknowledged>,

    /// The most attempts at once [default: 4]
    #[arg(long, value_name = "N", value_parser = count, allow_hyphen_values = true)]
    concurrency: Option<NonZeroU32>,

    /// Make each attempt of the schedule, also while the endpoint is down
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

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Acknowledged {
    /// A status from 200 to 299
    Success,
    /// The same, with the body `success` and nothing else
    BodySuccess,
    /// The same, with a JSON object whose `code` is `SUCCESS`
    CodeSuccess,
}

impl From<Acknowledged> for Acknowledgement {
    fn from(acknowledged: Acknowledged) -> Self {
        match acknowledged {
            Acknowledged::Success => Self::Success,
            Acknowledged::BodySuccess => Self::BodySuccess,
            Acknowledged::CodeSuccess => Self::CodeSuccess,
        }
    }
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
            let because = text(held, "because");
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
        let name = serde_json::to_value(Acknowledgement::from(acknowledgement));
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
    server.put(&args.named.path(""), &spec).await?;
    say(&format!("{} is registered", args.named.name));
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
