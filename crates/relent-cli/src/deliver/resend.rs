//! `relent deliver resend`, `cancel`, `send-now` and `replay`.

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::disabled::{disabled, has_none_disabled, say_disabled};
use super::list::{EndFilter, MessageFilter, MessageState, UNTIL, report_no_messages};
use super::server::{Connection, encoded, json};
use super::values::segment;
use crate::console::{counted, print_done, say};
use crate::exit_status::ExitError;

/// The end of `relent deliver replay --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  All messages to an endpoint that became dead letters in the last two hours:
      relent deliver replay --endpoint shop --since 2h

  Messages of two hours that a receiver acknowledged and then lost:
      relent deliver replay --endpoint shop --state delivered \\
          --since 2026-01-31T12:00:00Z --until 2026-01-31T14:00:00Z

Each message keeps its identifier, and restarts its schedule. A receiver that
has it already detects the duplicate by its webhook-id. The default of --until
is the present time if the state is delivered.

Exit status: 0; 1 if the server does not respond; 2 if the options are wrong.";

/// The end of `relent deliver send-now --help`.
pub(crate) const NOW_HELP: &str = "\
Examples:
  Send all pending messages after a receiver was repaired:
      relent deliver send-now --endpoint shop

The count of attempts and the schedule do not change. Messages with an order key
still wait for earlier ones, and the limits of the endpoint apply: concurrency,
rate limit, and circuit breaker.

Exit status: 0; 1 if the server does not respond, or a message is not pending;
2 if the options are wrong.";

/// The end of `relent deliver resend --help` and `relent deliver cancel --help`.
pub(crate) const EACH_HELP: &str = "\
Each message is tried, also after one that fails.

Exit status: 0; 1 if it failed for a message, or the server does not respond;
2 if the options are wrong.";

#[derive(Args, Debug)]
pub(crate) struct IdArgs {
    /// The messages
    #[arg(value_name = "ID", required = true, value_parser = segment)]
    ids: Vec<String>,

    /// Print JSON: an array with `id`, `done` and, on failure, `detail` of each message
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// Messages in this state; the others are sent anyway
    #[arg(long, value_name = "STATE", default_value = "dead")]
    state: EndState,

    #[command(flatten)]
    which: MessageFilter,

    #[command(flatten)]
    ended: EndFilter,

    /// Print JSON: an object with the count `resent`
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// The state of a message that has ended.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum EndState {
    Dead,
    Delivered,
    Cancelled,
}

impl EndState {
    const fn state(self) -> MessageState {
        match self {
            Self::Dead => MessageState::Dead,
            Self::Delivered => MessageState::Delivered,
            Self::Cancelled => MessageState::Cancelled,
        }
    }
}

pub(super) async fn resend(args: IdArgs) -> Result<(), ExitError> {
    each(args, "resend", "will be sent again").await
}

pub(super) async fn cancel(args: IdArgs) -> Result<(), ExitError> {
    each(args, "cancel", "is cancelled").await
}

/// Applies `act` to each message, also after one that fails.
async fn each(args: IdArgs, act: &str, done: &str) -> Result<(), ExitError> {
    let server = args.connection.open()?;
    let mut result = Ok(());
    // A cancelled message waits for nothing. Otherwise the first success asks.
    let mut none_disabled = (act == "cancel").then_some(true);
    let mut became = Vec::new();
    for id in args.ids {
        match server
            .post(&format!("/v1/messages/{}/{act}", encoded(&id)), None)
            .await
        {
            Ok(_) => {
                if none_disabled.is_none() {
                    none_disabled = Some(has_none_disabled(&server).await);
                }
                let waits = match none_disabled {
                    Some(false) => disabled(&server, &id).await,
                    _ => None,
                };
                let waits = waits.map_or_else(String::new, |waits| format!(", but {waits}"));
                say(&format!("{id} {done}{waits}"));
                became.push(json!({ "id": id, "done": true }));
            }
            Err(error) => {
                say(&format!("{id}: {}", error.message));
                became.push(json!({ "id": id, "done": false, "detail": error.message }));
                result = Err(ExitError {
                    message: String::new(),
                    ..error
                });
            }
        }
    }
    if args.json {
        print_done(&json(&became)?);
    }
    result
}

pub(super) async fn replay(args: ReplayArgs) -> Result<(), ExitError> {
    let server = args.connection.open()?;
    let endpoint = args.which.endpoint.clone();
    let state = args.state.state();
    let mut filter = filter(&args.which, Some(&args.ended), state);
    // A repeated request must not deliver again what the first one has delivered.
    let mut again = None;
    if state == MessageState::Delivered && !filter.contains_key(UNTIL) {
        let now = Timestamp::now();
        filter.insert(UNTIL.to_owned(), now.as_millisecond().into());
        again = Some(format!("continue the replay with --until {now:.3}"));
    }
    let answer = server.post_known("/v1/replay", json(&filter)?, again.as_deref());
    let answer = answer.await?;
    if answer["resent"] == 0 {
        report_no_messages(endpoint.as_deref());
    }
    if args.json {
        print_done(&json(&answer)?);
    } else {
        let count = answer["resent"].as_u64().unwrap_or_default();
        say(&format!("{} will be sent again", counted(count, "message")));
    }
    if answer["resent"] != 0 {
        say_disabled(&server, |status| args.which.selects(&status["endpoint"])).await;
    }
    Ok(())
}

/// The filter of messages, in the format of the API.
fn filter(
    which: &MessageFilter,
    ended: Option<&EndFilter>,
    state: MessageState,
) -> Map<String, Value> {
    let state = [("state", state.name().into())];
    let ended = ended.into_iter().flat_map(EndFilter::parts);
    let parts = which.parts().chain(ended).chain(state);
    parts.map(|(key, value)| (key.to_owned(), value)).collect()
}

#[derive(Args, Debug)]
pub(crate) struct SendNowArgs {
    /// The messages; if none is given, the options select them
    #[arg(value_name = "ID", value_parser = segment)]
    ids: Vec<String>,

    #[command(flatten)]
    which: MessageFilter,

    /// All pending messages, to all endpoints
    #[arg(long)]
    all: bool,

    /// Print JSON: an array as with `resend`, or an object with the count `due`
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn send_now(args: SendNowArgs) -> Result<(), ExitError> {
    let narrowed = args.which.parts().next().is_some();
    match (args.ids.is_empty(), narrowed || args.all) {
        (false, true) => {
            return Err(ExitError::usage(
                "give identifiers or options that select messages, not both".to_owned(),
            ));
        }
        (true, false) => {
            return Err(ExitError::usage(
                "this would send all pending messages: give identifiers, options such as --endpoint, or --all"
                    .to_owned(),
            ));
        }
        (false, false) => {
            let SendNowArgs {
                ids,
                json,
                connection,
                ..
            } = args;
            let ids = IdArgs {
                ids,
                json,
                connection,
            };
            return each(ids, "send-now", "is due now").await;
        }
        (true, true) => {}
    }
    let server = args.connection.open()?;
    let filter = filter(&args.which, None, MessageState::Pending);
    let answer = server.post("/v1/send-now", Some(json(&filter)?)).await?;
    if answer["due"] == 0 {
        report_no_messages(args.which.endpoint.as_deref());
    }
    if args.json {
        print_done(&json(&answer)?);
    } else {
        say(&match answer["due"].as_u64() {
            Some(1) => "1 message is due now".to_owned(),
            count => format!("{} messages are due now", count.unwrap_or_default()),
        });
    }
    if answer["due"] != 0 {
        say_disabled(&server, |status| args.which.selects(&status["endpoint"])).await;
    }
    Ok(())
}
