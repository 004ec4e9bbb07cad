//! `relent deliver send`: sends one message, directly to a URL or through a server.

use std::cell::RefCell;
use std::fmt;
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clap::Args;
use relent::classify::RetryableError;
use relent::policy::HintMode;
use relent::random::SessionRandom;
use relent::{Attempt, Backoff, NamedPolicy, Policy, retry_mut};
use relent_outbox::endpoint::{Acknowledgement, Endpoint};
use relent_outbox::guard::{AddressGuard, Network};
use relent_outbox::message::{MAX_PAYLOAD, MessageId};
use relent_outbox::schedule::{Schedule, for_messages};
use relent_outbox::secrets::{Secrets, Signing};
use relent_outbox::sender::{AttemptResult, Outgoing, Sender, SenderConfig};
use relent_outbox::store::AfterAttempt;
use relent_outbox::target::Target;
use serde_json::{Map, Value, json};

use super::allowed_receivers::authorities;
use super::disabled::disabled;
use super::server::{Connection, json, sanitized, text};
use super::values::{acknowledged, tenant_and_name};
use super::wait::{WAIT_LIMIT, WaitLimit, wait, wait_limit};
use crate::console::{print_done, say};
use crate::exit_status::ExitError;
use crate::human::human;
use crate::options::duration;
use crate::signals::Signals;

/// The end of `relent deliver send --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  Directly to a URL, until it responds with 2xx or 410, or the policy gives up:
      relent deliver send https://shop.example/notify -d '{\"order\":17}'

  With the schedule of a payment provider, signed, to a machine of your own:
      relent deliver send http://10.0.0.7:3000/notify -d @order.json \\
          --policy wechat-pay --acknowledgement code-success \\
          --secret shop.key --allow-network 10.0.0.0/8 --allow-http

  Through a server, which stores the message and retries:
      relent deliver send --endpoint shop --event order-17-paid -d @order.json

A server enqueues an event once for an endpoint, also if the command is
repeated; the identifier goes to standard output. With --wait the command
reports each attempt and why the message waits, and its exit status shows
whether the message was acknowledged.

Exit status: 0 if it was acknowledged, or is enqueued; 1 if not; 2 if the
options are wrong; 124 if --wait reached its --timeout: the message stays
enqueued; 128+n if signal n ended it.";

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

    /// The longest wait, such as 5m, or `unlimited`; if it passes, the status is 124, and the message stays enqueued
    #[arg(
        long,
        value_name = "D",
        default_value = WAIT_LIMIT,
        value_parser = wait_limit,
        requires = "wait",
        help_heading = "Server"
    )]
    timeout: WaitLimit,

    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(args: SendArgs) -> Result<i32, ExitError> {
    // Standard input or a named pipe can block this; a signal ends relent until it listens.
    let payload = payload(&args.data)?;
    let direct = args.url.as_deref().map(|url| Direct::prepare(&args, url));
    let direct = direct.transpose()?;
    let mut signals = Signals::listen()
        .map_err(|error| ExitError::failed(format!("cannot listen to signals: {error}")))?;
    let progress = RefCell::new(Progress::Nothing);
    let sending = async {
        match &direct {
            Some(direct) => send_directly(&args, direct, payload, &progress).await,
            None => send_through_server(&args, &payload, &progress).await,
        }
    };
    tokio::select! {
        biased;
        signal = signals.cancelled() => Err(ExitError {
            message: format!("{signal}: {}", progress.borrow()),
            ..ExitError::by_signal(signal)
        }),
        result = sending => result,
    }
}

/// What a signal interrupts.
enum Progress {
    /// Nothing was sent.
    Nothing,
    /// An attempt is running.
    Attempt { id: MessageId, number: u32 },
    /// The last attempt has failed, with this line.
    Failed { id: MessageId, line: String },
    /// A request to the server is running.
    Enqueuing,
    /// The server has it under this identifier.
    Enqueued(String),
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing was sent"),
            Self::Attempt { id, number } => write!(
                f,
                "attempt {number} of {id} was running, and it is unknown whether it was acknowledged; send it again with --id {id}"
            ),
            Self::Failed { id, line } => write!(f, "{id} is not acknowledged: {line}"),
            Self::Enqueuing => f.write_str(
                "it is unknown whether the message was enqueued; repeat the command: the server enqueues an event once",
            ),
            Self::Enqueued(id) => write!(
                f,
                "{id} stays enqueued, and the server continues; `relent deliver show {id}` shows its state"
            ),
        }
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
    let key = super::values::random_key()
        .map_err(|error| ExitError::failed(format!("no randomness: {error}")))?;
    let secrets = Secrets::with_key(&STANDARD.encode(key))
        .map_err(|error| ExitError::failed(error.to_string()))?;
    for secret in &args.secrets {
        let text = super::values::secret(secret)?;
        let encrypted = secrets
            .encrypt("", &endpoint.name, &text)
            .map_err(|error| wrong(secret, error.to_string()))?;
        endpoint.secrets.push(encrypted);
    }
    Ok(secrets)
}

/// What sends a message directly to a URL.
struct Direct {
    policy: Policy,
    sender: Sender,
    /// The attempt limit if the policy has none.
    attempt_timeout: Duration,
    target: Target,
    signing: Option<Signing>,
}

impl Direct {
    fn prepare(args: &SendArgs, url: &str) -> Result<Self, ExitError> {
        let policy = args.policy.as_deref().unwrap_or("standard-webhooks");
        let policy = NamedPolicy::load(policy)
            .map_err(|error| ExitError::usage(format!("--policy {policy}: {error}")))?
            .policy;
        let guard = args.allow_network.iter().copied();
        let mut config = SenderConfig::default();
        config.guard = guard.fold(AddressGuard::new(), AddressGuard::allow);
        config.http = args.allow_http;
        config.authorities = authorities(&args.ca_file)?;
        let attempt_timeout = config.attempt_timeout;
        let sender = Sender::new(config).map_err(|error| ExitError::failed(error.to_string()))?;
        let target = sender.target(url).map_err(|error| {
            ExitError::usage(format!("{url}: {}", with_option_hint(&error.to_string())))
        })?;
        let mut endpoint = Endpoint::new("send", url);
        let signing = signing(args, &mut endpoint)?
            .signing(&endpoint)
            .map_err(|error| {
                ExitError::usage(format!(
                    "--secret: {}",
                    with_option_hint(&error.to_string())
                ))
            })?;
        Ok(Self {
            policy: for_messages(policy),
            sender,
            attempt_timeout,
            target,
            signing,
        })
    }
}

async fn send_directly(
    args: &SendArgs,
    direct: &Direct,
    payload: Bytes,
    progress: &RefCell<Progress>,
) -> Result<i32, ExitError> {
    let Direct { policy, sender, .. } = direct;
    let id = args.id.clone().unwrap_or_default();
    let not_acknowledged = |why: &str| format!("{id} is not acknowledged{why}");
    let mut random = SessionRandom::new();
    // Time limits count by a monotonic clock, since the machine's clock may be set.
    let began = Instant::now();
    let elapsed = || UNIX_EPOCH + began.elapsed();
    let mut schedule = Schedule::at_attempt(&[], 0, elapsed());
    // The schedule decides about each attempt, as in a server: the loop waits for as long as it says.
    let by_schedule = Policy::builder(Backoff::None)
        .unlimited_retries()
        .hint(HintMode::Replace)
        .max_hint(Duration::MAX)
        .build()
        .map_err(|error| ExitError::failed(error.to_string()))?;
    let sending = retry_mut(&by_schedule, async |Attempt { number, .. }| {
        let now = elapsed();
        schedule = Schedule::at_attempt(&schedule.save(), number, now);
        progress.replace(Progress::Attempt {
            id: id.clone(),
            number,
        });
        let sent = sender
            .send(Outgoing {
                target: &direct.target,
                id: &id,
                content_type: &args.content_type,
                payload: &payload,
                signing: direct.signing.as_ref(),
                custom: None,
                policy,
                acknowledgement: args.acknowledgement.unwrap_or_default(),
                limit: schedule.attempt_limit(policy, direct.attempt_timeout, now),
                now: SystemTime::now(),
            })
            .await;
        let Err(refused) = &sent.outcome else {
            return Ok(attempt(number, &sent, "acknowledged"));
        };
        let error = with_option_hint(&sanitized(&refused.error));
        progress.replace(Progress::Failed {
            id: id.clone(),
            line: attempt(number, &sent, &error),
        });
        if refused.gone {
            let why = format!(", and the receiver wants no more messages: {error}");
            return Err(RetryableError::Permanent(not_acknowledged(&why)));
        }
        let next = schedule.failed(policy, elapsed(), &refused.failure, &error, &mut random);
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
    print_done(&printed);
    Ok(0)
}

/// Replaces the advice of a library's error by that for this command.
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
        .replace("`relent deliver serve`, and restart it", "this command")
}

fn attempt(number: u32, sent: &AttemptResult, what: &str) -> String {
    let took = human(sent.took);
    let mut line = format!("attempt {number}, {took}: {what}");
    if !sent.excerpt.is_empty() && sent.outcome.is_err() {
        line.push_str(&format!("; response: {}", sanitized(&sent.excerpt)));
    }
    line
}

async fn send_through_server(
    args: &SendArgs,
    payload: &Bytes,
    progress: &RefCell<Progress>,
) -> Result<i32, ExitError> {
    let server = args.connection.open()?;
    let endpoint = args.endpoint.as_deref().unwrap_or_default();
    let (tenant, endpoint) = tenant_and_name(args.tenant.as_deref(), endpoint);
    let mut message = Map::new();
    for (key, value) in [
        ("endpoint", Some(&endpoint)),
        ("event", args.event.as_ref()),
        ("tenant", tenant.as_ref()),
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
    progress.replace(Progress::Enqueuing);
    let enqueued = server.post("/v1/messages", Some(json(&message)?)).await?;
    let id = text(&enqueued, "id");
    progress.replace(Progress::Enqueued(id.clone()));
    if enqueued["duplicate"] == Value::Bool(true) && !args.quiet {
        say("the message was enqueued before");
    }
    let printed = match args.json {
        true => json(&enqueued)?,
        false => id.clone(),
    };
    print_done(&printed);
    match args.wait {
        true => wait(&server, &id, args.timeout, args.quiet).await,
        false if args.quiet => Ok(0),
        false => {
            if let Some(waits) = disabled(&server, &id).await {
                say(&format!("it is enqueued, but {waits}"));
            }
            Ok(0)
        }
    }
}
