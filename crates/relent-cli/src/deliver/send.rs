//! `relent deliver send`: sends one message, directly to a URL or through a server.

use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clap::Args;
use nix::sys::signal::Signal;
use relent::classify::RetryableError;
use relent::policy::HintMode;
use relent::random::SessionRandom;
use relent::{Attempt, Backoff, NamedPolicy, Policy, retry_mut};
use relent_outbox::endpoint::{Acknowledgement, Endpoint};
use relent_outbox::guard::{AddressGuard, Network};
use relent_outbox::message::{MAX_PAYLOAD, MessageId};
use relent_outbox::schedule::{Schedule, for_messages};
use relent_outbox::secrets::Secrets;
use relent_outbox::sender::{AttemptResult, Outgoing, Sender, SenderConfig};
use relent_outbox::store::AfterAttempt;
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::reach::authorities;
use super::server::{Connection, Server, encoded, json, sanitized, text};
use super::values::acknowledged;
use crate::console::{print, say};
use crate::human::human;
use crate::options::duration;
use crate::quit::ExitError;
use crate::signals::Signals;

/// The end of `relent deliver send --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  Directly to a URL, until it responds with 2xx or the policy gives up:
      relent deliver send https://shop.example/notify -d '{\"order\":17}'

  With the schedule of a payment provider, signed, to a machine of your own:
      relent deliver send http://10.0.0.7:3000/notify -d @order.json \\
          --policy wechat-pay --acknowledgement code-success \\
          --secret shop.key --allow-network 10.0.0.0/8 --allow-http

  Through a server, which stores the message and retries:
      relent deliver send --endpoint shop --event order-17-paid -d @order.json

A server enqueues an event once for an endpoint, also if the command is
repeated; the identifier goes to standard output. With --wait the exit status
shows whether it was acknowledged.

Exit status: 0 if it was acknowledged, or is enqueued; 1 if not; 2 if the
options are wrong; 128+n if signal n ended it.";

/// The interval at which the state of a message is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Args, Debug)]
pub(crate) struct SendArgs {
    /// The URL to send it to, without a server
    #[arg(value_name = "URL", required_unless_present = "endpoint")]
    url: Option<String>,

    /// The message; @FILE is a file and @- standard input
    ///
    /// It is sent unchanged.
    #[arg(short, long, value_name = "TEXT|@FILE", allow_hyphen_values = true)]
    data: String,

    /// The content type of the message
    #[arg(long, value_name = "TYPE", default_value = "application/json")]
    content_type: String,

    /// Follow this preset, or the policy in this file [default: standard-webhooks]
    #[arg(
        long,
        value_name = "NAME|FILE[#NAME]",
        conflicts_with = "endpoint",
        help_heading = "Without a server"
    )]
    policy: Option<String>,

    /// The response that acknowledges it [default: success]
    #[arg(
        long,
        value_name = "PROFILE",
        value_parser = acknowledged(),
        conflicts_with = "endpoint",
        help_heading = "Without a server"
    )]
    acknowledgement: Option<Acknowledgement>,

    /// The webhook-id, if the message was sent before [default: a new one]
    #[arg(
        long,
        value_name = "ID",
        conflicts_with = "endpoint",
        help_heading = "Without a server"
    )]
    id: Option<MessageId>,

    /// Sign with the key in this file, or in the environment variable env:NAME
    #[arg(
        long = "secret",
        value_name = "FILE|env:NAME",
        conflicts_with = "endpoint",
        help_heading = "Without a server"
    )]
    secrets: Vec<String>,

    /// Also call these addresses, such as your own network
    #[arg(
        long,
        value_name = "CIDR",
        conflicts_with = "endpoint",
        help_heading = "Without a server"
    )]
    allow_network: Vec<Network>,

    /// Also call a URL without TLS
    #[arg(long, conflicts_with = "endpoint", help_heading = "Without a server")]
    allow_http: bool,

    /// Additional trusted CA certificates (PEM)
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "endpoint",
        help_heading = "Without a server"
    )]
    ca_file: Vec<PathBuf>,

    /// Report no failed attempts and delays
    #[arg(short, long)]
    quiet: bool,

    /// Print JSON instead of the identifier: an object with `id` and, through a server, `duplicate`
    #[arg(long)]
    json: bool,

    /// The endpoint that a server enqueues it for
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with = "url",
        requires = "event",
        help_heading = "Server"
    )]
    endpoint: Option<String>,

    /// Your identifier of the event, the same at each repetition
    #[arg(
        long,
        value_name = "ID",
        requires = "endpoint",
        help_heading = "Server"
    )]
    event: Option<String>,

    /// The tenant that owns the endpoint
    #[arg(
        long,
        value_name = "NAME",
        requires = "endpoint",
        help_heading = "Server"
    )]
    tenant: Option<String>,

    /// The topic of the event, such as payment.settled
    #[arg(
        long,
        value_name = "NAME",
        requires = "endpoint",
        help_heading = "Server"
    )]
    topic: Option<String>,

    /// Deliver it after earlier messages with the same key
    #[arg(
        long,
        value_name = "KEY",
        requires = "endpoint",
        help_heading = "Server"
    )]
    order: Option<String>,

    /// Make the first attempt after this time
    #[arg(long, value_name = "D", value_parser = duration, requires = "endpoint", help_heading = "Server")]
    send_after: Option<Duration>,

    /// Wait until it is acknowledged or dead
    #[arg(long, requires = "endpoint", help_heading = "Server")]
    wait: bool,

    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(args: SendArgs) -> Result<i32, ExitError> {
    let mut signals = Signals::listen()
        .map_err(|error| ExitError::failed(format!("cannot listen to signals: {error}")))?;
    let payload = payload(&args.data)?;
    let sending = async {
        match &args.url {
            Some(url) => send_directly(&args, url, payload).await,
            None => send_through_server(&args, &payload).await,
        }
    };
    tokio::select! {
        biased;
        signal = signals.cancelled() => Err(interrupted(signal)),
        result = sending => result,
    }
}

/// The error for a signal: a running attempt may have been acknowledged.
fn interrupted(signal: Signal) -> ExitError {
    ExitError {
        message: format!("{signal}: it is unknown whether the message was acknowledged"),
        ..ExitError::by_signal(signal)
    }
}

pub(super) fn payload(data: &str) -> Result<Bytes, ExitError> {
    let Some(file) = data.strip_prefix('@') else {
        return Ok(Bytes::copy_from_slice(data.as_bytes()));
    };
    let failed = |error| ExitError::usage(format!("-d @{file}: cannot be read: {error}"));
    let most = u64::try_from(MAX_PAYLOAD)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    let mut bytes = Vec::new();
    match file {
        "-" => std::io::stdin().lock().take(most).read_to_end(&mut bytes),
        file => std::fs::File::open(file).and_then(|open| open.take(most).read_to_end(&mut bytes)),
    }
    .map_err(failed)?;
    match bytes.len() {
        ..=MAX_PAYLOAD => Ok(bytes.into()),
        _ => Err(ExitError::usage(format!(
            "-d @{file}: a message may have {MAX_PAYLOAD} bytes: send a reference to larger data"
        ))),
    }
}

/// Reads the given signing keys, and encrypts them with a random key of this call, as the sender expects.
fn signing(args: &SendArgs, endpoint: &mut Endpoint) -> Result<Secrets, ExitError> {
    let wrong =
        |secret: &str, error: String| ExitError::usage(format!("--secret {secret}: {error}"));
    let mut key = [0; 32];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut key))
        .map_err(|error| ExitError::failed(format!("no randomness: {error}")))?;
    let secrets = Secrets::with_key(&STANDARD.encode(key))
        .map_err(|error| ExitError::failed(error.to_string()))?;
    for secret in &args.secrets {
        let text = super::values::secret(secret)?;
        let sealed = secrets
            .seal("", &endpoint.name, &text)
            .map_err(|error| wrong(secret, error.to_string()))?;
        endpoint.secrets.push(sealed);
    }
    Ok(secrets)
}

async fn send_directly(args: &SendArgs, url: &str, payload: Bytes) -> Result<i32, ExitError> {
    let policy = args.policy.as_deref().unwrap_or("standard-webhooks");
    let policy = NamedPolicy::load(policy)
        .map_err(|error| ExitError::usage(format!("--policy {policy}: {error}")))?
        .policy;
    let policy = for_messages(policy);
    let guard = args.allow_network.iter().copied();
    let mut config = SenderConfig::default();
    config.guard = guard.fold(AddressGuard::new(), AddressGuard::allow);
    config.http = args.allow_http;
    config.authorities = authorities(&args.ca_file)?;
    let sender = Sender::new(config).map_err(|error| ExitError::failed(error.to_string()))?;
    let target = sender.target(url).map_err(|error| {
        ExitError::usage(format!("{url}: {}", with_option_hint(&error.to_string())))
    })?;
    let mut endpoint = Endpoint::new("send", url);
    let signing = signing(args, &mut endpoint)?
        .signing(&endpoint)
        .map_err(|error| ExitError::usage(format!("--secret: {error}")))?;
    let id = args.id.clone().unwrap_or_default();
    let not_acknowledged = |why: &str| format!("{id} is not acknowledged{why}");
    let mut random = SessionRandom::new();
    let mut schedule = Schedule::at_attempt(&[], 0, SystemTime::now());
    // The schedule decides about each attempt, as in a server: the loop waits for as long as it says.
    let by_schedule = Policy::builder(Backoff::None)
        .unlimited_retries()
        .hint(HintMode::Replace)
        .max_hint(Duration::MAX)
        .build()
        .map_err(|error| ExitError::failed(error.to_string()))?;
    let sending = retry_mut(&by_schedule, async |Attempt { number, .. }| {
        let now = SystemTime::now();
        schedule = Schedule::at_attempt(&schedule.save(), number, now);
        let sent = sender
            .send(Outgoing {
                target: &target,
                id: &id,
                content_type: &args.content_type,
                payload: &payload,
                signing: signing.as_ref(),
                custom: None,
                policy: &policy,
                acknowledgement: args.acknowledgement.unwrap_or_default(),
                limit: schedule.attempt_limit(&policy, now),
                now,
            })
            .await;
        let Err(refused) = &sent.outcome else {
            return Ok(attempt(number, &sent, "acknowledged"));
        };
        let error = with_option_hint(&sanitized(&refused.error));
        if refused.gone {
            let why = format!(", and the receiver wants no more messages: {error}");
            return Err(RetryableError::Permanent(not_acknowledged(&why)));
        }
        let now = SystemTime::now();
        let next = schedule.failed(&policy, now, &refused.failure, &error, &mut random);
        Err(match next {
            AfterAttempt::Again(wait) => {
                let line = format!("{error}; the next attempt in {}", human(wait));
                RetryableError::RetryAfter(attempt(number, &sent, &line), wait)
            }
            AfterAttempt::Dead(reason) => {
                RetryableError::Permanent(not_acknowledged(&format!(": {reason}")))
            }
            _ => RetryableError::Permanent(not_acknowledged(&format!(": {error}"))),
        })
    });
    let tell = |line: &str| match args.quiet {
        true => {}
        false => say(line),
    };
    let sent = sending
        .classify_by_error()
        .notify(|notice| {
            if let Some(line) = notice.error {
                tell(line);
            }
        })
        .run()
        .await;
    let line = sent.map_err(|gave_up| {
        ExitError::failed(gave_up.into_last_or_else(|none| not_acknowledged(&format!(": {none}"))))
    })?;
    tell(&line);
    let printed = match args.json {
        true => json(&json!({ "id": id }))?,
        false => id.to_string(),
    };
    print(&(printed + "\n"))
        .map(|()| 0)
        .map_err(ExitError::failed)
}

/// Adds to an error of the sender the option that allows the refused URL.
fn with_option_hint(error: &str) -> String {
    error
        .replace(
            "the operator of the sender can allow http as well",
            "it is allowed by --allow-http",
        )
        .replace(
            "if it is the operator's own, allow its network",
            "if it is your own, allow its network by --allow-network CIDR",
        )
}

fn attempt(number: u32, sent: &AttemptResult, what: &str) -> String {
    let took = human(sent.took);
    let mut line = format!("attempt {number}, {took}: {what}");
    if !sent.excerpt.is_empty() && sent.outcome.is_err() {
        line.push_str(&format!("; response: {}", sanitized(&sent.excerpt)));
    }
    line
}

async fn send_through_server(args: &SendArgs, payload: &Bytes) -> Result<i32, ExitError> {
    let server = args.connection.open()?;
    let mut message = Map::new();
    for (key, value) in [
        ("endpoint", args.endpoint.as_ref()),
        ("event", args.event.as_ref()),
        ("tenant", args.tenant.as_ref()),
        ("topic", args.topic.as_ref()),
        ("order", args.order.as_ref()),
        ("content_type", Some(&args.content_type)),
        ("base64", Some(&STANDARD.encode(payload))),
    ] {
        if let Some(value) = value {
            message.insert(key.to_owned(), value.clone().into());
        }
    }
    if let Some(delay) = args.send_after {
        let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        message.insert("delay_ms".to_owned(), delay.into());
    }
    let enqueued = server.post("/v1/messages", Some(json(&message)?)).await?;
    let id = text(&enqueued, "id");
    if enqueued["duplicate"] == Value::Bool(true) && !args.quiet {
        say("the message was enqueued before");
    }
    let printed = match args.json {
        true => json(&enqueued)?,
        false => id.clone(),
    };
    print(&(printed + "\n")).map_err(ExitError::failed)?;
    match args.wait {
        true => wait(&server, &id, args.quiet).await,
        false => Ok(0),
    }
}

/// Polls a message until it has ended, and reports its attempts.
pub(super) async fn wait(server: &Server, id: &str, quiet: bool) -> Result<i32, ExitError> {
    let path = format!("/v1/messages/{}", encoded(id));
    let mut told = 0;
    loop {
        let shown = server.get(&path).await?;
        let attempts = shown["attempts"].as_array();
        for attempt in attempts.into_iter().flatten().skip(told).filter(|_| !quiet) {
            say(&super::list::attempt_line(attempt));
        }
        told = attempts.map_or(0, Vec::len);
        let message = &shown["message"];
        match message["state"].as_str() {
            Some("delivered") => return Ok(0),
            Some(state @ ("dead" | "cancelled")) => {
                let reason = text(message, "reason");
                return Err(ExitError::failed(format!("{id} is {state}: {reason}")));
            }
            _ => sleep(POLL_INTERVAL).await,
        }
    }
}
