//! `relent deliver endpoints`.

use std::num::NonZeroU32;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use relent::policy::nearest;
use relent::presets;
use relent_outbox::endpoint::Acknowledgement;
use relent_outbox::headers::is_sensitive;
use relent_outbox::schedule;
use serde_json::{Map, Value, json};

use super::disabled::{all, say_if_disabled};
use super::list::{columns, full_name};
use super::server::{Connection, Server, Version, encoded, json, relative_time, sanitized, text};
use super::values::{acknowledged, count, endpoint_name, secret, signing_key, tenant_and_name};
use super::wait::{WAIT_LIMIT, WaitLimit, wait_limit};
use crate::console::{counted, print, print_done, say};
use crate::exit_status::ExitError;
use crate::human::human;

/// The end of `relent deliver endpoints --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  A receiver of payment results, with the schedule of WeChat Pay:
      relent deliver endpoints add shop https://shop.example/notify \\
          --policy wechat-pay --acknowledgement code-success --secret shop.key

  A subscriber of all events about orders, which requires a token:
      relent deliver endpoints add warehouse https://stock.example/notify \\
          --topic 'order.*' -H 'authorization: @token'

  Send a test message:
      relent deliver endpoints test shop --wait

  Hold its messages during maintenance, and release them:
      relent deliver endpoints disable shop --reason 'moves until noon'
      relent deliver endpoints enable shop

  Rotate its signing key: sign with both keys, then remove the old one:
      relent deliver new-key --output new.key
      relent deliver endpoints add-key shop --secret new.key
      relent deliver endpoints remove-key shop 2

  Delete an endpoint:
      relent deliver endpoints delete shop

An endpoint of a tenant is also named as it is printed, such as acme/warehouse.

Exit status: 0; 1 if the server refuses it or does not respond; 2 if the options
are wrong; 124 if `test --wait` reached its --timeout.";

/// An endpoint by name and tenant, and the server that has it.
#[derive(Args, Debug)]
pub(crate) struct EndpointRef {
    /// The name of the endpoint, or TENANT/NAME
    #[arg(value_name = "NAME", value_parser = endpoint_name)]
    name: String,

    /// The tenant that owns the endpoint
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,

    #[command(flatten)]
    connection: Connection,
}

impl EndpointRef {
    fn path(&self, act: &str) -> String {
        let (tenant, name) = tenant_and_name(self.tenant.as_deref(), &self.name);
        let tenant = tenant.unwrap_or_default();
        format!(
            "/v1/endpoints/{}{act}?tenant={}",
            encoded(&name),
            encoded(&tenant)
        )
    }

    /// The name with the tenant before it, as on a command line.
    fn full_name(&self) -> String {
        match self.tenant.as_deref() {
            None | Some("") => self.name.clone(),
            Some(tenant) => format!("{tenant}/{}", self.name),
        }
    }

    /// Returns the endpoint with its version.
    async fn read(&self, server: &Server) -> Result<(Value, Version), ExitError> {
        let unknown = || {
            ExitError::failed(format!(
                "no endpoint is called {:?}: `relent deliver endpoints list` lists the endpoints",
                self.full_name()
            ))
        };
        let found = server.get_version(&self.path("")).await?;
        found.ok_or_else(unknown)
    }
}

#[derive(Subcommand, Debug)]
pub(crate) enum EndpointsCommand {
    /// List endpoints with their state and message counts
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,

        #[command(flatten)]
        connection: Connection,
    },
    /// Register an endpoint, or change what the options name
    ///
    /// An existing endpoint keeps every setting that no option names.
    Add(Box<AddArgs>),
    /// Show an endpoint, its settings and the results of its latest attempts
    Show {
        #[command(flatten)]
        named: EndpointRef,

        /// Print JSON: an object with `status` and `recent`
        #[arg(long)]
        json: bool,
    },
    /// Send a test message
    Test {
        #[command(flatten)]
        named: EndpointRef,

        /// Wait until it is acknowledged or dead
        #[arg(long)]
        wait: bool,

        /// The longest wait, such as 5m, or `unlimited`; if it passes, the status is 124
        #[arg(long, value_name = "D", default_value = WAIT_LIMIT, value_parser = wait_limit, requires = "wait")]
        timeout: WaitLimit,
    },
    /// Resume delivery to a disabled endpoint
    Enable(EndpointRef),
    /// Hold the messages of an endpoint; none is lost
    Disable {
        #[command(flatten)]
        named: EndpointRef,

        /// The reason, shown in the list and on the page
        #[arg(long, value_name = "TEXT", default_value = "disabled by an operator")]
        reason: String,
    },
    /// Add a signing key as the newest: attempts are signed with all keys
    AddKey {
        #[command(flatten)]
        named: EndpointRef,

        /// The key in this file, or env:NAME in the environment of the server
        #[arg(long, value_name = "FILE|env:NAME")]
        secret: String,
    },
    /// Remove a signing key, such as the old one after a rotation
    RemoveKey {
        #[command(flatten)]
        named: EndpointRef,

        /// The number of the key, from 1 for the newest, or its fingerprint
        ///
        /// A removal changes the numbers of older keys. Of more than two keys, name one by its
        /// fingerprint, so that a repeated command removes no other key.
        #[arg(value_name = "NUMBER|FINGERPRINT", value_parser = signing_key)]
        key: String,

        /// Also remove the last key: attempts are then unsigned
        #[arg(long)]
        allow_unsigned: bool,
    },
    /// Delete an endpoint with all its messages
    ///
    /// Refused while messages are pending, running or dead: deliver or cancel them first.
    Delete {
        #[command(flatten)]
        named: EndpointRef,

        /// Also delete undelivered messages
        #[arg(long)]
        discard: bool,
    },
}

/// The effect of a dead letter on later messages with the same order key.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum OnDeadLetter {
    /// They are delivered
    Skip,
    /// They wait until the dead letter is resent or cancelled
    Block,
}

impl OnDeadLetter {
    /// The value of the member in the API.
    const fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Block => "block",
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct AddArgs {
    #[command(flatten)]
    named: EndpointRef,

    /// The URL that messages are sent to
    #[arg(value_name = "URL")]
    url: String,

    /// Follow this preset, or the policy in this file [default: standard-webhooks]
    #[arg(long, value_name = "NAME|FILE")]
    policy: Option<String>,

    /// The response that acknowledges a message [default: success]
    #[arg(long, value_name = "PROFILE", value_parser = acknowledged())]
    acknowledgement: Option<Acknowledgement>,

    /// The most concurrent attempts [default: 4; where the schedule is a contract at least 256]
    #[arg(long, value_name = "N", value_parser = count, allow_hyphen_values = true)]
    concurrency: Option<NonZeroU32>,

    /// Make each attempt of the schedule, also while the endpoint is down
    ///
    /// This is the default if the schedule is a contract: a list of delays without jitter, such as
    /// wechat-pay.
    #[arg(long)]
    no_hold: bool,

    /// Hold messages while the endpoint is down: undoes an earlier --no-hold
    #[arg(long, conflicts_with = "no_hold")]
    hold: bool,

    /// Whether later messages with the same order key pass a dead letter [default: block]
    #[arg(long, value_name = "ACTION", value_enum)]
    on_dead_letter: Option<OnDeadLetter>,

    /// Sign with the key in this file, or with env:NAME in the environment of the server
    ///
    /// `relent deliver new-key` makes a key. The option replaces all keys of an existing endpoint;
    /// `endpoints add-key` adds one.
    #[arg(long = "secret", value_name = "FILE|env:NAME")]
    secrets: Vec<String>,

    /// Send this header field with each attempt: 'NAME: VALUE', 'NAME: @FILE' for a value in a file, or
    /// 'NAME: env:NAME' for one in the environment of the server
    ///
    /// May be given several times. Values are stored encrypted. The option replaces all fields of an
    /// existing endpoint. Without it, they stay; --no-headers removes them.
    #[arg(short = 'H', long = "header", value_name = "FIELD")]
    headers: Vec<String>,

    /// Remove all header fields of the endpoint
    #[arg(long, conflicts_with = "headers")]
    no_headers: bool,

    /// Subscribe to the events of this topic; order.* matches a prefix, * all topics
    ///
    /// May be given several times. The option replaces all subscriptions of an existing endpoint.
    /// Without it, they stay; --no-topics removes them, so that it gets only messages addressed to it
    /// by name.
    #[arg(long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,

    /// Remove all subscriptions
    #[arg(long, conflicts_with = "topics")]
    no_topics: bool,
}

pub(super) async fn run(command: EndpointsCommand) -> Result<(), ExitError> {
    match command {
        EndpointsCommand::List { json, connection } => list(&connection.open()?, json).await,
        EndpointsCommand::Add(args) => add(&args).await,
        EndpointsCommand::Show {
            named,
            json: as_json,
        } => {
            let server = named.connection.open()?;
            let status = server.get(&named.path("")).await?;
            let recent = server.get(&named.path("/recent")).await?;
            let printed = match as_json {
                true => json(&json!({ "status": status, "recent": recent }))? + "\n",
                false => described(&status, &recent),
            };
            print(&printed).map_err(ExitError::failed)
        }
        EndpointsCommand::Test {
            named,
            wait,
            timeout,
        } => {
            let server = named.connection.open()?;
            let sent = server.post(&named.path("/test"), None).await?;
            let id = text(&sent, "id");
            print_done(&id);
            match wait {
                true => super::wait::wait(&server, &id, timeout, false)
                    .await
                    .map(drop),
                false => Ok(()),
            }
        }
        EndpointsCommand::Enable(named) => {
            let server = named.connection.open()?;
            server.post(&named.path("/enable"), None).await?;
            say(&format!("{} is active", named.full_name()));
            Ok(())
        }
        EndpointsCommand::Disable { named, reason } => {
            let server = named.connection.open()?;
            let body = json(&Map::from_iter([(
                "reason".to_owned(),
                Value::from(reason),
            )]))?;
            let (before, _) = named.read(&server).await?;
            server.post(&named.path("/disable"), Some(body)).await?;
            let was = match text(&before, "reason") {
                reason if reason.is_empty() => String::new(),
                reason => format!("; it was disabled before: {reason}"),
            };
            say(&format!(
                "{} is disabled; its messages are held{was}",
                named.full_name()
            ));
            Ok(())
        }
        EndpointsCommand::AddKey { named, secret: key } => {
            let body = json(&json!({ "secret": secret(&key)? }))?;
            let server = named.connection.open()?;
            let changed = server.post(&named.path("/secrets"), Some(body)).await?;
            say(&format!(
                "{} signs with {}",
                named.full_name(),
                keys(&changed).join(", ")
            ));
            Ok(())
        }
        EndpointsCommand::RemoveKey {
            named,
            key,
            allow_unsigned,
        } => {
            let server = named.connection.open()?;
            let (before, version) = named.read(&server).await?;
            let fingerprints = before["fingerprints"].as_array().into_iter().flatten();
            let fingerprints: Vec<_> = fingerprints.map(Value::as_str).collect();
            let index = fingerprints.iter().position(|one| *one == Some(&*key));
            let index = index.or_else(|| key.parse::<usize>().ok()?.checked_sub(1));
            let fingerprint = index.and_then(|index| *fingerprints.get(index)?);
            let path = |key: &str| {
                let path = named.path(&format!("/secrets/{}", encoded(key)));
                format!("{path}&allow_unsigned={allow_unsigned}")
            };
            let same = |one: &&Option<&str>| **one == fingerprint;
            let fingerprint = fingerprint.filter(|_| fingerprints.iter().filter(same).count() == 1);
            let changed = match fingerprint {
                Some(fingerprint) if *key != *fingerprint && fingerprints.len() > 2 => {
                    return Err(ExitError::failed(format!(
                        "{name} has {} signing keys, whose numbers change with each removal: name the key by its fingerprint, \
                         `relent deliver endpoints remove-key {name} {fingerprint}`",
                        fingerprints.len(),
                        name = named.full_name()
                    )));
                }
                // A repeated request by the fingerprint removes no other key.
                Some(fingerprint) => {
                    let again = format!(
                        "it is unknown whether the key was removed, and the keys after it have other numbers then: repeat it \
                         with the fingerprint, `relent deliver endpoints remove-key {} {fingerprint}`",
                        named.full_name()
                    );
                    let removed = server.delete_known(&path(fingerprint), &again).await?;
                    match removed {
                        Some(changed) => changed,
                        None => named.read(&server).await?.0,
                    }
                }
                // After a change by another client, another key may have this number.
                _ => server.delete(&path(&key), Some(&version)).await?,
            };
            let removed = index.and_then(|index| keys(&before).into_iter().nth(index));
            let removed = removed.unwrap_or_default();
            say(&format!(
                "{}: removed signing key {removed}; signing keys left: {}",
                named.full_name(),
                or_none(keys(&changed).join(", "), "none")
            ));
            Ok(())
        }
        EndpointsCommand::Delete { named, discard } => {
            let server = named.connection.open()?;
            let path = format!("{}&discard={discard}", named.path(""));
            let deleted = server.delete(&path, None).await?;
            let count = &deleted["messages"];
            say(&format!(
                "{} is deleted; messages deleted with it: {count}",
                named.full_name()
            ));
            Ok(())
        }
    }
}

async fn list(server: &Server, as_json: bool) -> Result<(), ExitError> {
    let endpoints = all(server).await?;
    if as_json {
        return print(&(json(&endpoints)? + "\n")).map_err(ExitError::failed);
    }
    let mut rows = vec![["STATE", "PENDING", "DEAD", "ENDPOINT", "URL"].map(str::to_owned)];
    rows.extend(endpoints.iter().map(|status| {
        [
            state(status),
            status["pending"].to_string(),
            status["dead"].to_string(),
            full_name(&status["endpoint"], "name"),
            text(&status["endpoint"], "url"),
        ]
    }));
    let notes = endpoints.iter().map(|status| {
        let (reason, error) = (text(status, "reason"), text(status, "last_error"));
        let note = match (reason.as_str(), error.as_str()) {
            ("", "") => String::new(),
            ("", error) => format!("    last attempt: {error}\n"),
            (reason, _) => format!("    {reason}\n"),
        };
        match held(status).as_str() {
            "" => note,
            held => format!("{note}    held back: {held}\n"),
        }
    });
    let printed = columns(&rows, [String::new()].into_iter().chain(notes));
    print(&printed).map_err(ExitError::failed)
}

/// The state of an endpoint in one word: whether its messages are sent.
fn state(status: &Value) -> String {
    match (
        text(status, "activity"),
        status["held"]["hold_reason"].as_str(),
    ) {
        (activity, Some("local-fault")) if activity == "active" => "local-fault".to_owned(),
        (activity, _) => activity,
    }
}

/// Describes why the due messages of an endpoint wait; empty if none does.
fn held(status: &Value) -> String {
    let held = &status["held"];
    if !held.is_object() {
        return String::new();
    }
    let until = held["until_ms"].as_i64();
    let until = until.map_or_else(|| "when an attempt ends".to_owned(), relative_time);
    let hold_reason = match (text(held, "hold_reason"), text(held, "error")) {
        (hold_reason, error) if error.is_empty() => hold_reason,
        (hold_reason, error) => format!("{hold_reason}: {error}"),
    };
    format!("{hold_reason}; the next attempt {until}")
}

/// The signing keys of an endpoint with their numbers and fingerprints.
fn keys(status: &Value) -> Vec<String> {
    let kept = status["endpoint"]["secrets"]
        .as_array()
        .into_iter()
        .flatten();
    let fingerprints = status["fingerprints"].as_array().into_iter().flatten();
    let key = |(index, (kept, fingerprint)): (usize, (&Value, &Value))| {
        let newest = if index == 0 { " (newest)" } else { "" };
        let kept = sanitized(kept.as_str().unwrap_or_default());
        let fingerprint = fingerprint.as_str().unwrap_or("unavailable");
        format!("{}{newest}: {kept} {}", index + 1, sanitized(fingerprint))
    };
    kept.zip(fingerprints).enumerate().map(key).collect()
}

/// The text, or another one if it is empty.
fn or_none(text: String, none: &str) -> String {
    match text.is_empty() {
        true => none.to_owned(),
        false => text,
    }
}

/// The settings whose changes are shown.
const SHOWN: [&str; 7] = [
    "url",
    "policy",
    "acknowledgement",
    "concurrency",
    "hold",
    "on_dead_letter",
    "topics",
];

/// What `PUT` has in its path, and what the server keeps by itself.
const NOT_SENT: [&str; 5] = ["tenant", "name", "secrets", "headers", "topics"];

/// Describes what differs between two forms of an endpoint, one line each.
fn changes(before: &Value, after: &Value, given: &Map<String, Value>) -> Vec<String> {
    let shown = |value: &Value| match value {
        Value::String(text) if text.contains('\n') => "a policy of its own".to_owned(),
        Value::String(text) => sanitized(text),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Array(items) => {
            let items = items.iter().filter_map(Value::as_str);
            items.map(sanitized).collect::<Vec<_>>().join(", ")
        }
        value => value.to_string(),
    };
    let mut lines = Vec::new();
    for key in SHOWN {
        let (before, after) = (&before["endpoint"][key], &after["endpoint"][key]);
        if before != after {
            lines.push(format!("{key}: {}, was {}", shown(after), shown(before)));
        }
    }
    let (old, new) = (keys(before), keys(after));
    if old != new {
        let shown = |keys: Vec<String>| or_none(keys.join(", "), "none");
        lines.push(format!("signing keys: {}, was {}", shown(new), shown(old)));
    }
    if let Some(Value::Object(headers)) = given.get("headers") {
        let names: Vec<_> = headers.keys().map(|name| sanitized(name)).collect();
        lines.push(match names.is_empty() {
            true => "header fields: none".to_owned(),
            false => format!("header fields with new values: {}", names.join(", ")),
        });
        let old = before["endpoint"]["headers"].as_object();
        let old = old.into_iter().flatten().map(|(name, _)| name);
        let removed: Vec<_> = old.filter(|name| !headers.contains_key(*name)).collect();
        if !removed.is_empty() {
            let removed: Vec<_> = removed.into_iter().map(|name| sanitized(name)).collect();
            lines.push(format!("header fields removed: {}", removed.join(", ")));
        }
    }
    lines
}

async fn add(args: &AddArgs) -> Result<(), ExitError> {
    let mut spec = Map::new();
    spec.insert("url".to_owned(), args.url.clone().into());
    if let Some(policy) = &args.policy {
        spec.insert("policy".to_owned(), policy_text(policy)?.into());
    }
    if let Some(acknowledgement) = args.acknowledgement {
        let name = serde_json::to_value(acknowledgement);
        let name = name.map_err(|error| ExitError::failed(error.to_string()))?;
        spec.insert("acknowledgement".to_owned(), name);
    }
    if let Some(concurrency) = args.concurrency {
        spec.insert("concurrency".to_owned(), concurrency.get().into());
    }
    if args.no_hold || args.hold {
        spec.insert("hold".to_owned(), args.hold.into());
    }
    if let Some(on_dead_letter) = args.on_dead_letter {
        spec.insert("on_dead_letter".to_owned(), on_dead_letter.name().into());
    }
    if !args.secrets.is_empty() {
        let secrets: Result<Vec<_>, ExitError> = args.secrets.iter().map(|s| secret(s)).collect();
        spec.insert("secrets".to_owned(), secrets?.into());
    }
    if !args.headers.is_empty() || args.no_headers {
        let mut fields = Map::new();
        for field in &args.headers {
            let (name, value) = header(field)?;
            if fields.contains_key(&name) {
                return Err(ExitError::usage(format!(
                    "-H '{name}: …': it is given twice, and an endpoint has one value of each field"
                )));
            }
            fields.insert(name, value);
        }
        spec.insert("headers".to_owned(), fields.into());
    }
    if !args.topics.is_empty() || args.no_topics {
        spec.insert("topics".to_owned(), args.topics.clone().into());
    }
    let server = args.named.connection.open()?;
    let path = args.named.path("");
    let name = args.named.full_name();
    let registered = match server.get_version(&path).await? {
        None => {
            let registered = server.put(&path, &Version::New, &spec).await?;
            say(&format!("{name} is registered"));
            registered
        }
        Some((before, version)) => {
            // All other settings stay as they are, unless an option names them.
            let mut whole = before["endpoint"].as_object().cloned().unwrap_or_default();
            whole.retain(|key, _| !NOT_SENT.contains(&key.as_str()));
            whole.extend(spec.clone());
            let changed = server.put(&path, &version, &whole).await?;
            let changes = changes(&before, &changed, &spec);
            say(&match changes.is_empty() {
                true => format!("{name} is registered already, and nothing has changed"),
                false => format!("{name} is changed: {}", changes.join("; ")),
            });
            changed
        }
    };
    say_if_disabled(&registered);
    for warning in registered["warnings"].as_array().into_iter().flatten() {
        say(&format!(
            "warning: {}",
            sanitized(warning.as_str().unwrap_or_default())
        ));
    }
    Ok(())
}

/// Reads a header field. A sensitive value must not be on the command line, which other users of the machine can read.
fn header(field: &str) -> Result<(String, Value), ExitError> {
    let (name, value) = field.split_once(':').ok_or_else(|| {
        // The text may be a secret, so the message does not repeat it.
        ExitError::usage("-H: use a name, a colon and a value, such as 'x-shop: eu'".to_owned())
    })?;
    let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
    let value = match value.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file)
            .map_err(|error| {
                ExitError::usage(format!("-H '{name}: @{file}': cannot be read: {error}"))
            })?
            .trim()
            .to_owned(),
        None if is_sensitive(&name) && !value.starts_with("env:") => {
            return Err(ExitError::usage(format!(
                "-H '{name}: …': a value on the command line can be seen by others: put it into a file, as in '{name}: @FILE'"
            )));
        }
        None => value.to_owned(),
    };
    Ok((name, value.into()))
}

/// Describes an endpoint as text.
fn described(status: &Value, recent: &Value) -> String {
    let endpoint = &status["endpoint"];
    let listed = |value: &Value| {
        let texts = value.as_array().into_iter().flatten();
        let texts = texts.map(|text| sanitized(text.as_str().unwrap_or_default()));
        texts.collect::<Vec<_>>().join(", ")
    };
    let headers = endpoint["headers"].as_object().into_iter().flatten();
    let headers = headers.map(|(name, kept)| {
        format!(
            "{}: {}",
            sanitized(name),
            sanitized(kept.as_str().unwrap_or_default())
        )
    });
    let lately = match recent["attempts"].as_u64() {
        None | Some(0) => "no attempts".to_owned(),
        Some(attempts) => format!(
            "{}, {:.1} a minute, {} acknowledged; p50 {} ms, p99 {} ms",
            counted(attempts, "attempt"),
            recent["per_minute"].as_f64().unwrap_or_default(),
            recent["acknowledged"],
            recent["p50_ms"],
            recent["p99_ms"]
        ),
    };
    let policy = endpoint["policy"].as_str().unwrap_or_default();
    let is_contract = schedule::policy(policy).is_ok_and(|policy| schedule::is_contract(&policy));
    let hold = match endpoint["hold"].as_bool() {
        Some(true) if is_contract => "false: the schedule is a contract".to_owned(),
        _ => endpoint["hold"].to_string(),
    };
    let policy: Vec<_> = policy.lines().map(sanitized).collect();
    let window = Duration::from_millis(recent["window_ms"].as_u64().unwrap_or_default());
    let continued = format!("\n{:17}", "");
    let mut printed = String::new();
    for (name, value) in [
        ("endpoint", full_name(endpoint, "name")),
        ("url", text(endpoint, "url")),
        ("state", state(status)),
        ("why", text(status, "reason")),
        ("held back", held(status)),
        ("last error", text(status, "last_error")),
        ("pending", status["pending"].to_string()),
        ("dead", status["dead"].to_string()),
        ("policy", policy.join(&continued)),
        ("acknowledgement", text(endpoint, "acknowledgement")),
        ("concurrency", endpoint["concurrency"].to_string()),
        ("hold", hold),
        ("on-dead-letter", text(endpoint, "on_dead_letter")),
        ("topics", or_none(listed(&endpoint["topics"]), "none")),
        (
            "headers",
            or_none(headers.collect::<Vec<_>>().join(&continued), "none"),
        ),
        (
            "keys",
            or_none(
                keys(status).join(&continued),
                "none: attempts are not signed",
            ),
        ),
        ("lately", format!("{lately}, in {}", human(window))),
    ] {
        if !value.is_empty() {
            printed.push_str(&format!("{name:<15}  {value}\n"));
        }
    }
    printed
}

/// Returns the name of a preset, or the contents of a policy file: the server reads no files.
fn policy_text(policy: &str) -> Result<String, ExitError> {
    match presets::get(policy) {
        Some(_) => Ok(policy.to_owned()),
        None if policy == "off" => Err(ExitError::usage(
            "--policy off: an endpoint needs a schedule; `relent deliver endpoints disable` holds its messages".to_owned(),
        )),
        None => std::fs::read_to_string(policy).map_err(|error| {
            let near = nearest(policy, presets::names());
            let near = near.map_or_else(String::new, |near| format!("did you mean `{near}`? "));
            ExitError::usage(format!(
                "--policy {policy}: neither a preset nor a file that can be read: {error}; {near}`relent policy list` has the presets"
            ))
        }),
    }
}
