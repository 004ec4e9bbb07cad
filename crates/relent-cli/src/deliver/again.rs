//! `relent deliver resend`, `cancel` and `replay`.

use clap::Args;
use serde_json::{Map, Value, json};

use super::endpoints::segment;
use super::list::{State, Which, say_none_of};
use super::server::{Connection, encoded, json};
use crate::console::{print, say};
use crate::quit::Quit;

/// The end of `relent deliver replay --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  All dead letters of an endpoint that was broken:
      relent deliver replay --endpoint shop

  Also what a receiver has acknowledged and then lost, of two hours:
      relent deliver replay --endpoint shop --state delivered \\
          --since 2026-01-31T12:00:00Z --until 2026-01-31T14:00:00Z

Each message keeps its identifier, and begins its schedule anew. A receiver that
has it drops it by its webhook-id.

Exit status: 0; 1 if the server does not answer; 2 if the options are wrong.";

#[derive(Args, Debug)]
pub(crate) struct IdArgs {
    /// The messages
    #[arg(value_name = "ID", required = true, value_parser = segment)]
    ids: Vec<String>,

    /// Print JSON: an array with `id`, `done` and, if it is not done, `detail` of each
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// Those in this state: dead, delivered or cancelled
    #[arg(long, value_name = "STATE", default_value = "dead")]
    state: State,

    #[command(flatten)]
    which: Which,

    /// Print JSON: an object with `resent`, how many
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn resend(args: IdArgs) -> Result<(), Quit> {
    each(args, "resend", "will be sent again").await
}

pub(super) async fn cancel(args: IdArgs) -> Result<(), Quit> {
    each(args, "cancel", "is cancelled").await
}

/// Does this with each message, also after one with which it cannot be done.
async fn each(args: IdArgs, act: &str, done: &str) -> Result<(), Quit> {
    let server = args.connection.open()?;
    let mut result = Ok(());
    let mut became = Vec::new();
    for id in args.ids {
        match server
            .post(&format!("/v1/messages/{}/{act}", encoded(&id)), None)
            .await
        {
            Ok(_) => {
                say(&format!("{id} {done}"));
                became.push(json!({ "id": id, "done": true }));
            }
            Err(quit) => {
                say(&format!("{id}: {}", quit.message));
                became.push(json!({ "id": id, "done": false, "detail": quit.message }));
                result = Err(Quit {
                    message: String::new(),
                    ..quit
                });
            }
        }
    }
    if args.json {
        print(&(json(&became)? + "\n")).map_err(Quit::failed)?;
    }
    result
}

pub(super) async fn replay(args: ReplayArgs) -> Result<(), Quit> {
    if matches!(args.state, State::Pending | State::Running) {
        return Err(Quit::usage(format!(
            "--state {}: such a message is sent anyway; dead, delivered and cancelled ones are sent again",
            args.state.name()
        )));
    }
    let server = args.connection.open()?;
    let which = args.which;
    let endpoint = which.endpoint.clone();
    let mut filter = Map::new();
    filter.insert("state".to_owned(), args.state.name().into());
    for (key, value) in [
        ("tenant", which.tenant.map(Value::from)),
        ("endpoint", which.endpoint.map(Value::from)),
        ("topic", which.topic.map(Value::from)),
        ("from_ms", which.since.map(|since| since.0.into())),
        ("until_ms", which.until.map(|until| until.0.into())),
    ] {
        if let Some(value) = value {
            filter.insert(key.to_owned(), value);
        }
    }
    let answer = server.post("/v1/replay", Some(json(&filter)?)).await?;
    if answer["resent"] == 0 {
        say_none_of(endpoint.as_deref());
    }
    if args.json {
        return print(&(json(&answer)? + "\n")).map_err(Quit::failed);
    }
    say(&match answer["resent"].as_u64() {
        Some(1) => "1 message will be sent again".to_owned(),
        count => format!("{} messages will be sent again", count.unwrap_or_default()),
    });
    Ok(())
}
