//! `relent deliver worker`: makes the attempts that `relent deliver serve` dispatches through NATS.

use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU32;
use std::time::Duration;

use clap::Args;
use metrics_exporter_prometheus::PrometheusBuilder;
use relent_outbox_nats::{NatsWorker, NatsWorkerConfig, observe};
use tokio::sync::oneshot;

use super::allowed_receivers::ReceiverOptions;
use super::nats::NatsArgs;
use super::serve::cannot_listen;
use super::values::{count, listen_address};
use crate::console::say;
use crate::exit_status::ExitError;
use crate::options::duration;
use crate::signals::Signals;

/// The end of `relent deliver worker --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  One dispatcher, and as many workers as needed:
      relent deliver serve --nats nats://nats.internal:4222
      relent deliver worker --nats nats://nats.internal:4222

  With metrics for Prometheus at http://10.0.0.7:9480/metrics:
      relent deliver worker --nats tls://nats.internal:4222 \\
          --nats-creds worker.creds --metrics 10.0.0.7:9480

A worker needs no database and has no signing key. Give the same --allow-network
and --allow-http to `serve` and to `worker`: both check the receiver's address.

SIGTERM or SIGINT stops it: it takes no new attempts, and waits for the running
ones. A second signal ends it immediately.

Exit status: 0 if all attempts had ended; 1 if some were cut off, which the
schedule repeats; 2 if the options are wrong; 128+n if a second signal n ended
it.";

#[derive(Args, Debug)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    reach: ReceiverOptions,

    /// The most concurrent attempts
    ///
    /// Each uses a connection: the limit of open files (`ulimit -n`) must allow for them.
    #[arg(long, value_name = "N", default_value = "1024", value_parser = count)]
    concurrency: NonZeroU32,

    /// The memory for payloads longer than 8 KiB, in MiB
    ///
    /// A payload counts until it is written to the connection. Other long messages wait meanwhile.
    #[arg(long, value_name = "MIB", default_value = "64")]
    body_memory: NonZeroU32,

    /// The longest wait for running attempts at shutdown
    #[arg(long, value_name = "D", default_value = "30s", value_parser = duration)]
    shutdown_timeout: Duration,

    /// Serve metrics for Prometheus here; there is no token, so use an address that only it can reach
    #[arg(long, value_name = "IP:PORT", value_parser = listen_address)]
    metrics: Option<SocketAddr>,

    #[command(flatten)]
    nats: NatsArgs,
}

/// Makes attempts until a signal asks for the end.
pub(super) async fn run(args: &WorkerArgs) -> Result<i32, ExitError> {
    // A named pipe can block this; a signal ends relent until it listens.
    let sender = args.reach.sender()?;
    let missing =
        || ExitError::usage("--nats is missing: give the address of a NATS server".to_owned());
    let queue = args.nats.queue().await?.ok_or_else(missing)?;
    let mut signals = Signals::listen()
        .map_err(|error| ExitError::failed(format!("cannot listen to signals: {error}")))?;
    if let Some(address) = args.metrics {
        // The exporter reduces an error to a text; binding first keeps its kind for the message.
        TcpListener::bind(address)
            .map(drop)
            .map_err(|error| cannot_listen("--metrics", address, &error))?;
        PrometheusBuilder::new()
            .with_http_listener(address)
            .install()
            .map_err(|error| ExitError::failed(format!("--metrics {address}: {error}")))?;
        observe::describe();
    }
    let mut config = NatsWorkerConfig::default();
    config.in_flight = usize::try_from(args.concurrency.get()).unwrap_or(usize::MAX);
    config.body_bytes = super::values::mebibytes(args.body_memory);
    config.drain = args.shutdown_timeout;
    let (stop, stopped) = oneshot::channel();
    let ended = async {
        // An error means that the sender was dropped: stop as well.
        let _ = stopped.await;
    };
    let mut worker = tokio::spawn(NatsWorker::new(queue, sender, config).run(ended));
    let ended_early =
        || ExitError::failed("the worker has ended; start it again: no message is lost".to_owned());
    tokio::select! {
        signal = signals.cancelled() => say(&format!("{signal}: waiting for the running attempts")),
        _ = &mut worker => return Err(ended_early()),
    }
    let _ = stop.send(());
    tokio::select! {
        biased;
        signal = signals.cancelled() => Err(ExitError::by_signal(signal)),
        cut_off = worker => {
            let cut_off = cut_off.map_err(|_| ended_early())?;
            if cut_off > 0 {
                say(&format!("attempts that were cut off, and are repeated by the schedule: {cut_off}"));
            }
            Ok(i32::from(cut_off > 0))
        }
    }
}
