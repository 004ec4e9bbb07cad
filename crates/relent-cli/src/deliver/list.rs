//! `relent deliver list`, `dead-letters` and `show`.

use std::fmt::Write;
use std::num::NonZeroU32;

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::server::{
    Connection, PointInTime, encoded, json, moment, relative_time, sanitized, text, wait_text,
};
use super::values::{count, segment, tenant_and_name};
use crate::console::{counted, print, say};
use crate::exit_status::ExitError;

/// The end of `relent deliver list --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  Messages that wait for one endpoint:
      relent deliver list --endpoint shop --state pending

  The messages of an event, by the prefix of its identifier:
      relent deliver list --search order-17

  The identifiers of all messages that were enqueued in the last hour:
      relent deliver list --enqueued-since 1h --limit 100000 --json |
          jq -r '.[].id'

JSON is one array of objects; times are in milliseconds since 1970.

Exit status: 0; 1 if the server does not respond; 2 if the options are wrong.";

/// The most messages of one request.
const PAGE_SIZE: usize = 1000;

/// The state of a message.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MessageState {
    Pending,
    Running,
    Delivered,
    Dead,
    Cancelled,
}

impl MessageState {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The end of `relent deliver dead-letters --help`.
pub(crate) const DEAD_LETTERS_HELP: &str = "\
Examples:
  Dead letters of one endpoint, and the attempts of one of them:
      relent deliver dead-letters --endpoint shop
      relent deliver show msg_ID

  Send them again when the receiver is repaired:
      relent deliver replay --endpoint shop

Exit status: 0; 1 if the server does not respond; 2 if the options are wrong.";

/// The end of `relent deliver show --help`.
pub(crate) const SHOW_HELP: &str = "\
Exit status: 0; 1 if there is no such message, or the server does not respond;
2 if the options are wrong.";

/// The filter options that select messages.
#[derive(Args, Debug)]
pub(crate) struct MessageFilter {
    /// Messages of this tenant
    #[arg(long, value_name = "NAME")]
    pub(super) tenant: Option<String>,

    /// Messages to this endpoint, or TENANT/NAME; a name alone is that of the endpoint without a tenant
    #[arg(long, value_name = "NAME")]
    pub(super) endpoint: Option<String>,

    /// Messages of this event
    #[arg(long, value_name = "ID")]
    pub(super) event: Option<String>,

    /// Messages whose event or identifier begins with this text
    #[arg(long, value_name = "TEXT")]
    pub(super) search: Option<String>,

    /// Messages of this topic; order.* matches a prefix
    #[arg(long, value_name = "NAME")]
    pub(super) topic: Option<String>,

    /// Messages enqueued at this time or later: 2h for two hours ago, or 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    enqueued_since: Option<PointInTime>,

    /// Messages enqueued before this time
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    enqueued_until: Option<PointInTime>,
}

/// The name of the last time of [`EndFilter`] in the API.
pub(super) const UNTIL: &str = "ended_until_ms";

/// The filter options that select messages by their end.
#[derive(Args, Debug)]
pub(crate) struct EndFilter {
    /// Messages that became dead letters, were delivered or were cancelled at this time or later: 2h for
    /// two hours ago, or 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    since: Option<PointInTime>,

    /// Messages that became dead letters, were delivered or were cancelled before this time
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    until: Option<PointInTime>,
}

impl EndFilter {
    /// Returns the given filters under their names in the API, with times in milliseconds since 1970.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&'static str, Value)> {
        let parts = [("ended_from_ms", self.since), (UNTIL, self.until)];
        let parts = parts.into_iter();
        parts.filter_map(|(key, time)| Some((key, time?.0.into())))
    }
}

impl MessageFilter {
    /// The tenant and the name of the endpoint, as far as they are given. A name alone is not that of the endpoints of
    /// all tenants, as it is not in other commands.
    pub(super) fn tenant_and_endpoint(&self) -> (Option<String>, Option<String>) {
        match &self.endpoint {
            Some(name) => {
                let (tenant, name) = tenant_and_name(self.tenant.as_deref(), name);
                (Some(tenant.unwrap_or_default()), Some(name))
            }
            None => (self.tenant.clone(), None),
        }
    }

    /// Whether messages to this endpoint may be selected.
    pub(super) fn selects(&self, endpoint: &Value) -> bool {
        let (tenant, name) = self.tenant_and_endpoint();
        tenant.is_none_or(|tenant| endpoint["tenant"] == tenant)
            && name.is_none_or(|name| endpoint["name"] == name)
    }

    /// Returns the given filters under their names in the API, with times in milliseconds since 1970.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&'static str, Value)> {
        let (tenant, endpoint) = self.tenant_and_endpoint();
        [
            ("tenant", tenant.map(Value::from)),
            ("endpoint", endpoint.map(Value::from)),
            ("event", self.event.clone().map(Value::from)),
            ("search", self.search.clone().map(Value::from)),
            ("topic", self.topic.clone().map(Value::from)),
            (
                "enqueued_from_ms",
                self.enqueued_since.map(|since| since.0.into()),
            ),
            (
                "enqueued_until_ms",
                self.enqueued_until.map(|until| until.0.into()),
            ),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
    }
}

#[derive(Args, Debug)]
pub(crate) struct DeadLettersArgs {
    #[command(flatten)]
    which: MessageFilter,

    #[command(flatten)]
    ended: EndFilter,

    /// The most messages
    #[arg(long, value_name = "N", default_value = "100", value_parser = count, allow_hyphen_values = true)]
    limit: NonZeroU32,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Messages in this state
    #[arg(long, value_name = "STATE")]
    state: Option<MessageState>,

    #[command(flatten)]
    dead: DeadLettersArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The message
    #[arg(value_name = "ID", value_parser = segment)]
    id: String,

    /// Show the payload and the header fields of each attempt instead; requires the content token of
    /// the server
    #[arg(long)]
    content: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn dead_letters(args: DeadLettersArgs) -> Result<(), ExitError> {
    let state = Some(MessageState::Dead);
    list(ListArgs { state, dead: args }).await
}

pub(super) async fn list(args: ListArgs) -> Result<(), ExitError> {
    let ListArgs { state, dead: args } = args;
    if let Some(state @ (MessageState::Pending | MessageState::Running)) = state
        && args.ended.parts().next().is_some()
    {
        return Err(ExitError::usage(format!(
            "--since and --until select by the end of a message, and what is {} has not ended: use --enqueued-since and --enqueued-until",
            state.name()
        )));
    }
    let server = args.connection.open()?;
    let mut filter = String::new();
    let state = state.map(|state| ("state", state.name().into()));
    for (key, value) in args.which.parts().chain(args.ended.parts()).chain(state) {
        let value = value.as_str().map_or(value.to_string(), str::to_owned);
        let _ = write!(filter, "&{key}={}", encoded(&value));
    }
    let mut messages = Vec::new();
    let mut before = String::new();
    let mut are_all = false;
    let most = usize::try_from(args.limit.get()).unwrap_or(usize::MAX);
    while messages.len() < most && !are_all {
        let limit = PAGE_SIZE.min(most - messages.len());
        let mut page = server
            .get(&format!("/v1/messages?limit={limit}{filter}{before}"))
            .await?;
        if let Some(found) = page["messages"].as_array_mut() {
            messages.append(found);
        }
        match page["next"].as_str() {
            Some(next) => before = format!("&before={}", encoded(next)),
            None => are_all = true,
        }
    }
    if !are_all {
        say(&format!(
            "more messages match, and the latest {most} are listed: --limit N lists more"
        ));
    }
    if messages.is_empty() {
        report_no_messages(args.which.endpoint.as_deref());
    }
    let printed = match args.json {
        true => json(&messages)? + "\n",
        false => table(&messages),
    };
    print(&printed).map_err(ExitError::failed)
}

/// Reports that no message was found for an endpoint, whose name may be mistyped.
pub(super) fn report_no_messages(endpoint: Option<&str>) {
    if let Some(name) = endpoint {
        say(&format!(
            "no such message of an endpoint {name:?}; `relent deliver endpoints list` lists the endpoints"
        ));
    }
}

fn table(messages: &[Value]) -> String {
    let mut rows =
        vec![["STATE", "ATTEMPTS", "ENQUEUED", "ENDPOINT", "EVENT", "ID"].map(str::to_owned)];
    rows.extend(messages.iter().map(|message| {
        let created = message["created_ms"].as_i64().unwrap_or_default();
        [
            text(message, "state"),
            message["attempts"].to_string(),
            relative_time(created),
            full_name(message, "endpoint"),
            text(message, "event"),
            text(message, "id"),
        ]
    }));
    // The reason may be long, so it has a line of its own below the message.
    let notes = messages.iter().map(|message| {
        let reason = text(message, "reason");
        let error = text(message, "last_error");
        let wait = wait_text(message);
        let is_waiting = wait.is_some();
        let wait = wait.map_or_else(String::new, |wait| format!("    waits: {wait}\n"));
        wait + &match (reason.as_str(), error.as_str()) {
            ("", "") => String::new(),
            (reason, error) if reason.is_empty() || is_waiting => match error {
                "" => String::new(),
                error => format!("    last attempt: {error}\n"),
            },
            (reason, _) => format!("    {reason}\n"),
        }
    });
    columns(&rows, [String::new()].into_iter().chain(notes))
}

/// Returns the name, with the tenant before it if there is one.
pub(super) fn full_name(value: &Value, key: &str) -> String {
    match text(value, "tenant").as_str() {
        "" => text(value, key),
        tenant => format!("{tenant}/{}", text(value, key)),
    }
}

/// Formats rows with two spaces between the columns, each followed by its note.
pub(super) fn columns<const N: usize>(
    rows: &[[String; N]],
    notes: impl Iterator<Item = String>,
) -> String {
    let widths: [usize; N] = std::array::from_fn(|column| {
        let lengths = rows.iter().map(|row| row[column].chars().count());
        lengths.max().unwrap_or_default()
    });
    let mut printed = String::new();
    for (row, note) in rows.iter().zip(notes) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        printed.push_str(line.trim_end());
        printed.push('\n');
        printed.push_str(&note);
    }
    printed
}

pub(super) async fn show(args: ShowArgs) -> Result<(), ExitError> {
    let server = args.connection.open()?;
    let part = if args.content { "/content" } else { "" };
    let shown = server
        .get(&format!("/v1/messages/{}{part}", encoded(&args.id)))
        .await?;
    let printed = match (args.json, args.content) {
        (true, _) => json(&shown)? + "\n",
        (false, true) => contents(&shown),
        (false, false) => described(&shown),
    };
    print(&printed).map_err(ExitError::failed)
}

fn described(shown: &Value) -> String {
    let message = &shown["message"];
    let mut printed = String::new();
    let time = |key: &str| message[key].as_i64().map(relative_time).unwrap_or_default();
    for (name, value) in [
        ("id", text(message, "id")),
        ("event", text(message, "event")),
        ("endpoint", full_name(message, "endpoint")),
        ("topic", text(message, "topic")),
        ("order", text(message, "order")),
        ("state", text(message, "state")),
        (
            "why",
            wait_text(message).unwrap_or_else(|| text(message, "reason")),
        ),
        ("enqueued", time("created_ms")),
        ("due", time("due_ms")),
        ("ended", time("ended_ms")),
    ] {
        if !value.is_empty() {
            let _ = writeln!(printed, "{name:<12}  {value}");
        }
    }
    for (attempt, is_resend) in with_resends(shown) {
        if is_resend {
            printed.push_str("resent\n");
        }
        let _ = writeln!(printed, "{}", attempt_line(attempt));
    }
    printed
}

/// The attempts, each with whether it is the first after a resend, from which the numbers start again.
fn with_resends(shown: &Value) -> impl Iterator<Item = (&Value, bool)> {
    let mut before = 0;
    shown["attempts"]
        .as_array()
        .into_iter()
        .flatten()
        .map(move |attempt| {
            let number = attempt["number"].as_u64().unwrap_or_default();
            (attempt, number <= std::mem::replace(&mut before, number))
        })
}

/// Formats the payload and the header fields of attempts, without control characters.
fn contents(shown: &Value) -> String {
    let payload = &shown["payload"];
    let mut printed = format!(
        "{}, {}{}\n",
        text(payload, "content_type"),
        counted(payload["bytes"].as_u64().unwrap_or_default(), "byte"),
        match payload["truncated"] == Value::Bool(true) {
            true => ", of which this is the beginning",
            false => "",
        }
    );
    let body = payload["text"].as_str().or(payload["base64"].as_str());
    for line in body.unwrap_or_default().lines() {
        let _ = writeln!(printed, "    {}", sanitized(line));
    }
    for (attempt, is_resend) in with_resends(shown) {
        if is_resend {
            printed.push_str("resent\n");
        }
        let _ = writeln!(printed, "attempt {}", attempt["number"]);
        for (side, mark) in [("request", '>'), ("response", '<')] {
            for field in attempt[side].as_array().into_iter().flatten() {
                let (name, value) = (text(field, "name"), text(field, "value"));
                let _ = writeln!(printed, "  {mark} {name}: {value}");
            }
        }
        if let Some(excerpt) = attempt["excerpt"].as_str().filter(|text| !text.is_empty()) {
            let _ = writeln!(printed, "    {}", sanitized(excerpt));
        }
    }
    printed
}

/// Formats the result of an attempt as one line.
pub(super) fn attempt_line(attempt: &Value) -> String {
    let began = attempt["started_ms"].as_i64().map(relative_time);
    let error = text(attempt, "error");
    let result = match error.as_str() {
        "" => "acknowledged",
        error => error,
    };
    let mut line = format!(
        "attempt {}, {}, {} ms: {result}",
        attempt["number"],
        began.unwrap_or_default(),
        attempt["duration_ms"]
    );
    if let Some(excerpt) = attempt["excerpt"].as_str().filter(|text| !text.is_empty()) {
        let _ = write!(line, "\n    {}", sanitized(excerpt));
    }
    line
}
