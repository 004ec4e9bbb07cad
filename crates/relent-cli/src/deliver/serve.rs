//! `relent deliver serve`: the API, the page and a worker, over a store.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use relent_outbox::api::{Api, Token};
use relent_outbox::observe::{self, ACKNOWLEDGED_AFTER, ATTEMPT_TIME, Metric};
use relent_outbox::secrets::{KEY_VARIABLE, KeyError, Secrets};
use relent_outbox::store::Store;
use relent_outbox::worker::{Drained, Worker, WorkerConfig};
use tempfile::NamedTempFile;
use tokio::net::TcpSocket;
use tokio::sync::watch;
use tokio::time::{interval, timeout};

use super::allowed_receivers::ReceiverOptions;
use super::nats::NatsArgs;
use super::server::{DEFAULT_ADDRESS, DEFAULT_TOKEN_FILE, sanitized};
use super::store::{STORE, StoreLocation, connect, folder_of, open, read};
use super::values::listen_address;
use crate::console::say;
use crate::exit_status::ExitError;
use crate::options::duration;
use crate::signals::Signals;

/// The end of `relent deliver serve --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  Everything in the working directory, for this machine alone:
      relent deliver serve

  Receivers in a network of your own, which are not called otherwise:
      relent deliver serve --allow-network 10.0.0.0/8 --allow-http

  For workers on several machines:
      relent deliver serve --store postgres://relent@db.internal/outbox

  For more attempts than this machine can make; other machines run
  `relent deliver worker`:
      relent deliver serve --nats nats://nats.internal:4222

  For other machines, behind a proxy that terminates TLS:
      relent deliver serve --listen 10.0.0.5:8480 --token-file /etc/relent/token

  Try it: http://127.0.0.1:8480/ lists stuck messages with the reason,
  /openapi.json describes the API, /metrics is for Prometheus.

The token file is created if it is missing, and only its owner can read it.
Signing keys are encrypted with the key in RELENT_OUTBOX_KEY, else with the one
in --key-file, which is created if nothing is encrypted yet. Without that key
the signing keys are lost: keep a copy of it, apart from the database backups.
The server does not start with a key that differs from the store's.

No message is lost if this process is killed: the next one continues, and
repeats unfinished attempts with the same identifier (webhook-id).

SIGTERM or SIGINT stops it: it takes no new work, and waits for the running
attempts. A second signal ends it immediately.

Exit status: 0 if all attempts had ended; 1 if some were cut off or it could
not go on; 2 if the options are wrong; 128+n if a second signal n ended it.";

/// Histogram buckets for the time until a message is acknowledged, in seconds: from a fast receiver to the end of the
/// longest schedule.
const ACKNOWLEDGED_BUCKETS: [f64; 13] = [
    0.05, 0.2, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 21_600.0, 43_200.0, 86_400.0, 259_200.0,
];
/// Histogram buckets for the time of one attempt, in seconds.
const ATTEMPT_BUCKETS: [f64; 10] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];
/// The longest wait for the store to be closed at shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The most ended messages that one search of a purge finds.
const PURGE_BATCH: usize = 10_000;

#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// The message store: sqlite:FILE, which is created if missing, or
    /// postgres://USER@HOST/DATABASE
    ///
    /// Missing tables are created. PostgreSQL can also be given as a libpq connection string, as in
    /// "postgres:host=/run/postgresql dbname=outbox"; its password may be in PGPASSWORD. The connection uses
    /// TLS, and the server's name is verified, unless it is on this machine or `sslmode=disable` is given.
    #[arg(long, value_name = "STORE", default_value = STORE, value_parser = read)]
    store: StoreLocation,

    /// Trusted CA certificates for the PostgreSQL server (PEM) [default: those of the system]
    #[arg(long, value_name = "FILE")]
    store_ca: Option<PathBuf>,

    /// The address to listen on; port 0 takes a free one
    #[arg(long, value_name = "IP:PORT", default_value = DEFAULT_ADDRESS, value_parser = listen_address)]
    listen: SocketAddr,

    /// The file with the token of the API; created if missing [default: relent-deliver.token]
    #[arg(long, value_name = "FILE", env = "RELENT_DELIVER_TOKEN_FILE")]
    token_file: Option<PathBuf>,

    /// The file with a second token, which also shows payloads and header fields; created if missing
    /// [default: they are never shown]
    #[arg(long, value_name = "FILE")]
    content_token_file: Option<PathBuf>,

    /// The file with the key that encrypts signing keys; created if it is missing and nothing is
    /// encrypted in the store
    #[arg(long, value_name = "FILE", default_value = "relent-deliver.key")]
    key_file: PathBuf,

    /// Start with another key than the store's, if that one is lost for good
    ///
    /// Messages to endpoints whose signing keys cannot be decrypted are held, without an attempt,
    /// until the keys are registered again.
    #[arg(long)]
    replace_key: bool,

    #[command(flatten)]
    reach: ReceiverOptions,

    /// Other processes take over this one's endpoints after this time without a heartbeat
    ///
    /// Unfinished attempts of a killed process are repeated after this time.
    #[arg(long, value_name = "D", default_value = "30s", value_parser = lease)]
    lease: Duration,

    /// The memory for payloads longer than 8 KiB, in MiB
    ///
    /// A payload counts until it is written to the connection. Other long messages wait meanwhile.
    #[arg(long, value_name = "MIB", default_value = "64")]
    body_memory: NonZeroU32,

    /// The longest wait for running attempts at shutdown
    #[arg(long, value_name = "D", default_value = "30s", value_parser = duration)]
    shutdown_timeout: Duration,

    /// Delete messages this long after they were delivered, became dead letters or were cancelled
    #[arg(long, value_name = "D", default_value = "720h", value_parser = duration)]
    retention: Duration,

    #[command(flatten)]
    nats: NatsArgs,
}

/// The shortest lease: it is renewed three times within its duration.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

fn lease(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|lease| match lease >= SHORTEST_LEASE {
        true => Ok(lease),
        false => Err("the store may be slow to respond: use 1s or more".to_owned()),
    })
}

/// Serves until a signal asks for the end.
pub(super) async fn run(args: &ServeArgs) -> Result<i32, ExitError> {
    check_token_file(args)?;
    // A second server at this address changes no file of the first. Connections are refused until all is ready.
    let socket =
        bind(args.listen).map_err(|error| cannot_listen("--listen", args.listen, &error))?;
    let token = token(args)?;
    let content_token = content_token(args, &token)?;
    let tokens = (token, content_token);
    let failed = |error: String| ExitError::failed(format!("--store {}: {error}", args.store));
    match &args.store {
        StoreLocation::Sqlite(_) if args.store_ca.is_some() => Err(ExitError::usage(format!(
            "--store-ca is for PostgreSQL, and --store {} is not",
            args.store
        ))),
        StoreLocation::Sqlite(path) => {
            let store = open(path).map_err(failed)?;
            let closed = store.writer().closed();
            serve(args, socket, store, tokens, closed).await
        }
        StoreLocation::Postgres(config) => {
            let store = connect(config, args.store_ca.as_deref())
                .await
                .map_err(failed)?;
            serve(args, socket, store, tokens, async {}).await
        }
    }
}

/// Returns the contents of the file. If it is missing, writes the result of `make` to it, readable by its owner only.
fn read_or_make(
    option: &str,
    path: &Path,
    make: impl FnOnce() -> io::Result<String>,
) -> Result<String, ExitError> {
    let file = path.display();
    let failed = |error: io::Error| ExitError::usage(format!("{option} {file}: {error}"));
    match File::open(path) {
        Ok(mut open) => {
            let mode = open.metadata().map_err(failed)?.permissions().mode();
            if mode & 0o077 != 0 {
                say(&format!(
                    "{option} {file} can be read by others: `chmod 600 {file}` changes that"
                ));
            }
            let mut text = String::new();
            open.read_to_string(&mut text).map_err(failed)?;
            Ok(text)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let text = make().map_err(failed)?;
            write_new(path, &text).map_err(|error| match error {
                WriteError::Folder(why) => ExitError::usage(format!(
                    "{option} {file}: is missing, and cannot be created in the folder {}: {why}",
                    folder_of(path).display()
                )),
                WriteError::File(error) => failed(error),
            })?;
            say(&format!("{file} is new, and only you can read it"));
            Ok(text)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Why a new file cannot be written.
pub(super) enum WriteError {
    /// Its folder takes no file.
    Folder(io::Error),
    File(io::Error),
}

/// Writes a line to a new file that only its owner can read. It appears complete or not at all, also after a crash.
pub(super) fn write_new(path: &Path, text: &str) -> Result<(), WriteError> {
    let new = NamedTempFile::new_in(folder_of(path));
    let mut new = new.map_err(|error| WriteError::Folder(without_path(&error)))?;
    writeln!(new, "{text}").map_err(WriteError::File)?;
    new.as_file().sync_all().map_err(WriteError::File)?;
    new.persist_noclobber(path)
        .map_err(|error| WriteError::File(error.error))?;
    Ok(())
}

/// The error without the path of the temporary file, which means nothing to the user.
fn without_path(error: &io::Error) -> io::Error {
    let text = error.to_string();
    let text = text.split(" at path ").next().unwrap_or_default();
    io::Error::new(error.kind(), text)
}

/// Checks that a server that other machines can reach has a token file of its own.
fn check_token_file(args: &ServeArgs) -> Result<(), ExitError> {
    if args.token_file.is_none() && !args.listen.ip().is_loopback() {
        return Err(ExitError::usage(format!(
            "--listen {}: other machines can reach it, so name its token file with --token-file",
            args.listen
        )));
    }
    Ok(())
}

fn token(args: &ServeArgs) -> Result<Token, ExitError> {
    let path = args
        .token_file
        .as_deref()
        .unwrap_or(Path::new(DEFAULT_TOKEN_FILE));
    read_token("--token-file", path)
}

/// Returns the token that shows payloads. It must differ from the API token, which would show them to all users.
fn content_token(args: &ServeArgs, token: &Token) -> Result<Option<Token>, ExitError> {
    let Some(path) = &args.content_token_file else {
        return Ok(None);
    };
    let content_token = read_token("--content-token-file", path)?;
    match token.is(content_token.as_str()) {
        true => Err(ExitError::usage(format!(
            "--content-token-file {}: it has the same token as --token-file: give it another",
            path.display()
        ))),
        false => Ok(Some(content_token)),
    }
}

fn read_token(option: &str, path: &Path) -> Result<Token, ExitError> {
    let text = read_or_make(option, path, || Ok(Token::new().as_str().to_owned()))?;
    text.parse()
        .map_err(|error| ExitError::usage(format!("{option} {}: {error}", path.display())))
}

/// Returns the key that encrypts signing keys. A wrong key would fail every attempt of a signed message.
async fn secrets<S: Store>(args: &ServeArgs, store: &S) -> Result<Secrets, ExitError> {
    let in_variable = std::env::var_os(KEY_VARIABLE).is_some();
    let path = &args.key_file;
    let source = match in_variable {
        true => KEY_VARIABLE.to_owned(),
        false => format!("--key-file {}", path.display()),
    };
    let refused = |what: &str, error: KeyError<S::Error>| match error {
        KeyError::Store(error) => ExitError::failed(format!("--store {}: {error}", args.store)),
        error => ExitError::usage(format!(
            "{source}: {what}{error}; if it is lost for good, start once with --replace-key, and register the signing keys of \
             the endpoints again: their messages are held until then"
        )),
    };
    let secrets = match in_variable {
        true => Secrets::from_env().map_err(|error| ExitError::usage(error.to_string()))?,
        false => {
            if !args.replace_key && path.try_exists().is_ok_and(|exists| !exists) {
                let encrypted = Secrets::default().check(store).await;
                encrypted.map_err(|error| refused("is missing: ", error))?;
            }
            from_file(path)?
        }
    };
    let checked = match args.replace_key {
        true => secrets.take_over(store).await,
        false => secrets.check(store).await,
    };
    checked.map_err(|error| refused("", error))?;
    if args.replace_key {
        let unreadable = secrets.unreadable(store).await;
        for (tenant, name) in unreadable.map_err(|error| refused("", KeyError::Store(error)))? {
            let name = match tenant.as_str() {
                "" => name,
                tenant => format!("{tenant}/{name}"),
            };
            say(&format!(
                "{}: {source} does not decrypt its signing keys or header fields: register them again by `relent deliver \
                 endpoints add`; its messages are held until then",
                sanitized(&name)
            ));
        }
    }
    Ok(secrets)
}

/// Reads the key in this file, which is created if it is missing.
fn from_file(path: &Path) -> Result<Secrets, ExitError> {
    let key = read_or_make("--key-file", path, || {
        super::values::random_key().map(|key| STANDARD.encode(key))
    })?;
    Secrets::with_key(&key).map_err(|error| {
        // The error names the environment variable, but this key comes from a file.
        let error = error.to_string().replace(KEY_VARIABLE, "the key");
        ExitError::usage(format!("--key-file {}: {error}", path.display()))
    })
}

/// Connections that wait to be accepted; the default of tokio's listener.
const BACKLOG: u32 = 1024;

/// A socket at this address that does not listen yet.
fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // A restarted server need not wait for the connections of the last one.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Serves until a signal asks for the end. `closed`: the store is closed, once nothing uses it any more.
async fn serve<S: Store>(
    args: &ServeArgs,
    socket: TcpSocket,
    store: S,
    (token, content_token): (Token, Option<Token>),
    closed: impl Future<Output = ()>,
) -> Result<i32, ExitError> {
    let secrets = secrets(args, &store).await?;
    let sender = args.reach.sender()?;
    let queue = args.nats.queue().await?;
    // Until here a named pipe can block this, and a signal ends relent.
    let mut signals = Signals::listen()
        .map_err(|error| ExitError::failed(format!("cannot listen to signals: {error}")))?;
    let mut config = WorkerConfig::default();
    config.body_bytes = super::values::mebibytes(args.body_memory);
    config.drain = args.shutdown_timeout;
    config.lease = args.lease;
    let worker = Worker::new(store.clone(), sender, secrets.clone(), config);
    let worker = match queue {
        Some(queue) => worker.relay(queue),
        None => worker,
    };
    let metrics = metrics()?;
    let render = metrics.clone();
    let api = Api::new(store.clone(), secrets, token)
        .guard(args.reach.guard())
        .allow_http(args.reach.allow_http)
        .hint(worker.hint())
        .watch(worker.watch())
        .metrics(move || render.render());
    let api = match content_token {
        Some(token) => api.content_token(token),
        None => api,
    };
    let listener = socket
        .listen(BACKLOG)
        .map_err(|error| cannot_listen("--listen", args.listen, &error))?;
    let address = listener
        .local_addr()
        .map_err(|error| ExitError::failed(error.to_string()))?;
    say(&format!(
        "listening on http://{address}, messages in {}; the token is in {}",
        args.store,
        args.token_file
            .as_deref()
            .unwrap_or(Path::new(DEFAULT_TOKEN_FILE))
            .display()
    ));

    let (stop, stopping) = watch::channel(());
    let ended = |mut stopping: watch::Receiver<()>| async move {
        // An error means that the sender was dropped: stop as well.
        let _ = stopping.changed().await;
    };
    let mut worker = tokio::spawn(worker.run(ended(stopping.clone())));
    let mut api = tokio::spawn(api.serve(listener, ended(stopping)));
    let mut housekeeper = tokio::spawn(purge_periodically(store, args.retention, metrics));
    let failed = |what: &str| {
        Err(ExitError::failed(format!(
            "{what}; start it again: no message is lost"
        )))
    };
    tokio::select! {
        signal = signals.cancelled() => say(&format!("{signal}: waiting for the running attempts")),
        _ = &mut worker => return failed("the worker has ended"),
        _ = &mut api => return failed("the API has ended"),
        _ = &mut housekeeper => return failed("the deletion of old messages has ended"),
    }
    housekeeper.abort();
    drop(stop);
    let drained = async {
        // Running API requests have their own time limit; a slow client must not delay the shutdown.
        let served = timeout(args.shutdown_timeout, &mut api);
        let (drained, served) = tokio::join!(&mut worker, served);
        if served.is_ok() {
            let _ = timeout(CLOSE_TIMEOUT, closed).await;
        }
        drained
    };
    tokio::select! {
        biased;
        signal = signals.cancelled() => Err(ExitError::by_signal(signal)),
        drained = drained => match drained {
            Ok(drained) => Ok(report(drained)),
            Err(_) => failed("the worker has ended"),
        },
    }
}

/// Explains why the process cannot listen at the address of this option.
pub(super) fn cannot_listen(option: &str, address: SocketAddr, error: &io::Error) -> ExitError {
    let port = address.port();
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "port {port} is in use by another process, perhaps another `relent deliver`: end that one, or choose another port by {option}"
        ),
        io::ErrorKind::AddrNotAvailable => format!(
            "this machine does not have the address {}: choose one of its own by {option}",
            address.ip()
        ),
        io::ErrorKind::PermissionDenied => format!(
            "this user may not listen on port {port}: choose another port, above 1023, by {option}"
        ),
        _ => error.to_string(),
    };
    ExitError::failed(format!("{option} {address}: {advice}"))
}

/// Reports unfinished attempts, and returns the exit status.
fn report(Drained { aborted, unsettled }: Drained) -> i32 {
    if aborted > 0 {
        say(&format!(
            "attempts that were cut off, and count as failed: {aborted}"
        ));
    }
    if unsettled > 0 {
        say(&format!(
            "attempts of unknown outcome, which will be repeated: {unsettled}"
        ));
    }
    i32::from(aborted > 0 || unsettled > 0)
}

fn metrics() -> Result<PrometheusHandle, ExitError> {
    let full = |metric: Metric| Matcher::Full(metric.name.to_owned());
    let kept = PrometheusBuilder::new()
        .set_buckets_for_metric(full(ACKNOWLEDGED_AFTER), &ACKNOWLEDGED_BUCKETS)
        .and_then(|builder| builder.set_buckets_for_metric(full(ATTEMPT_TIME), &ATTEMPT_BUCKETS))
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(|error| ExitError::failed(format!("cannot keep metrics: {error}")));
    observe::describe();
    relent_outbox_nats::observe::describe();
    kept
}

/// Purges messages that ended at least `retention` ago, and runs the upkeep of the metrics recorder. A long purge does not
/// delay the upkeep.
async fn purge_periodically<S: Store>(store: S, retention: Duration, metrics: PrometheusHandle) {
    let upkeep = async {
        let mut seconds = interval(Duration::from_secs(5));
        loop {
            seconds.tick().await;
            metrics.run_upkeep();
        }
    };
    let purge = async {
        let mut minutes = interval(Duration::from_secs(60));
        loop {
            minutes.tick().await;
            loop {
                match store.purge(retention, PURGE_BATCH).await {
                    Ok(0) => break,
                    Ok(_) => tokio::task::yield_now().await,
                    Err(error) => {
                        say(&format!("old messages could not be deleted yet: {error}"));
                        break;
                    }
                }
            }
        }
    };
    tokio::select! {
        () = upkeep => {}
        () = purge => {}
    }
}
