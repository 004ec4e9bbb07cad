//! `relent deliver publish`: sends an event to all endpoints that subscribe to its topic.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use serde_json::{Map, Value};

use super::disabled::say_disabled;
use super::send::payload;
use super::server::{Connection, json, text};
use crate::console::{print_done, say};
use crate::exit_status::ExitError;

/// The end of `relent deliver publish --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  To each endpoint that was added with --topic 'order.*', --topic order.paid or
  --topic '*':
      relent deliver publish order.paid --event order-17-paid -d @order.json

An event is enqueued once for each endpoint, also if the command is repeated;
endpoints that have subscribed since then get it, too. If no endpoint
subscribes, the command reports it, and the event is not stored for later
subscribers.

The endpoints and the identifiers of their messages go to standard output.

Exit status: 0, also if no endpoint subscribes; 1 if the server refuses it or
does not respond; 2 if the options are wrong.";

#[derive(Args, Debug)]
pub(crate) struct PublishArgs {
    /// The topic of the event
    #[arg(value_name = "TOPIC")]
    topic: String,

    /// Your identifier of the event, the same at each repetition
    #[arg(long, value_name = "ID")]
    event: String,

    /// The message; @FILE is a file and @- standard input
    #[arg(short, long, value_name = "TEXT|@FILE", allow_hyphen_values = true)]
    data: String,

    /// The content type of the message
    #[arg(long, value_name = "TYPE", default_value = "application/json")]
    content_type: String,

    /// The tenant whose endpoints get it
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,

    /// Deliver it, at each endpoint, after earlier messages with the same key
    #[arg(long, value_name = "KEY")]
    order: Option<String>,

    /// Print JSON: an object with `messages`, each with `endpoint`, `id` and `duplicate`
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(args: PublishArgs) -> Result<(), ExitError> {
    let payload = payload(&args.data)?;
    let server = args.connection.open()?;
    let tenant = args.tenant.clone().unwrap_or_default();
    let mut event = Map::new();
    for (key, value) in [
        ("topic", Some(args.topic)),
        ("event", Some(args.event)),
        ("tenant", args.tenant),
        ("order", args.order),
        ("content_type", Some(args.content_type)),
        ("base64", Some(STANDARD.encode(payload))),
    ] {
        if let Some(value) = value {
            event.insert(key.to_owned(), Value::from(value));
        }
    }
    let published = server.post("/v1/events", Some(json(&event)?)).await?;
    let messages = published["messages"].as_array();
    let printed = match args.json {
        true => json(&published)?,
        false => {
            let lines = messages.into_iter().flatten();
            let line = |one: &Value| format!("{}  {}", text(one, "id"), text(one, "endpoint"));
            lines.map(line).collect::<Vec<_>>().join("\n")
        }
    };
    if !printed.is_empty() {
        print_done(&printed);
    }
    match messages {
        Some(messages) if !messages.is_empty() => {
            let names: Vec<_> = messages.iter().map(|one| text(one, "endpoint")).collect();
            say_disabled(&server, |status| {
                let endpoint = &status["endpoint"];
                text(endpoint, "tenant") == tenant && names.contains(&text(endpoint, "name"))
            })
            .await;
        }
        _ => say("no endpoint subscribes to this topic: nothing was enqueued"),
    }
    Ok(())
}
