//! `relent deliver work`: makes the attempts that relays publish by NATS.

use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU32;
use std::time::Duration;

use clap::Args;
use metrics_exporter_prometheus::PrometheusBuilder;
use relent_outbox::nats::{Deliverer, DelivererConfig};
use relent_outbox::observe;
use tokio::sync::oneshot;

use super::nats::NatsArgs;
use super::reach::Reach;
use super::serve::cannot_listen;
use super::values::{count, listen_address};
use crate::console::say;
use crate::options::duration;
use crate::quit::Quit;
use crate::signals::Signals;

/// The end of `relent deliver work --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  A fleet: one that decides, and as many as are needed that deliver:
      relent deliver serve --nats nats://nats.internal:4222
      relent deliver work --nats nats://nats.internal:4222

  With metrics for Prometheus at http://10.0.0.7:9480/metrics:
      relent deliver work --nats tls://nats.internal:4222 --nats-creds work.creds \\
          --metrics 10.0.0.7:9480

It needs no database and knows no key. Give --allow-network and --allow-http to
`serve` and to `work` alike: each checks where messages go.

SIGTERM and SIGINT end it: it takes nothing more, and waits for the attempts
that run. A second one ends it at once.

Exit status: 0 if all attempts had ended; 1 if some were cut off, which the
schedule repeats; 2 if the options are wrong; 128+n if a second signal n ended
it.";

#[derive(Args, Debug)]
pub(crate) struct WorkArgs {
    #[command(flatten)]
    reach: Reach,

    /// How many attempts run at once
    ///
    /// Each has a connection: `ulimit -n` has to allow for them.
    #[arg(long, value_name = "N", default_value = "1024", value_parser = count)]
    in_flight: NonZeroU32,

    /// How many MiB of payloads longer than 8 KiB attempts hold at the same time
    ///
    /// A payload counts until it is written to the connection. Other long messages wait meanwhile.
    #[arg(long, value_name = "MIB", default_value = "64")]
    body_memory: NonZeroU32,

    /// How long the attempts that run are waited for at the end
    #[arg(long, value_name = "D", default_value = "30s", value_parser = duration)]
    drain: Duration,

    /// Where to listen for Prometheus: without a token, so on an address that others do not reach
    #[arg(long, value_name = "IP:PORT", value_parser = listen_address)]
    metrics: Option<SocketAddr>,

    #[command(flatten)]
    nats: NatsArgs,
}

/// Delivers until a signal asks for the end.
pub(super) async fn run(args: &WorkArgs) -> Result<i32, Quit> {
    let mut signals = Signals::listen()
        .map_err(|error| Quit::failed(format!("cannot listen to signals: {error}")))?;
    let sender = args.reach.sender()?;
    if let Some(address) = args.metrics {
        // The exporter keeps of an error only a text.
        TcpListener::bind(address)
            .map(drop)
            .map_err(|error| cannot_listen("--metrics", address, &error))?;
        PrometheusBuilder::new()
            .with_http_listener(address)
            .install()
            .map_err(|error| Quit::failed(format!("--metrics {address}: {error}")))?;
        observe::describe();
    }
    let missing = || Quit::usage("say by --nats where the servers of NATS are".to_owned());
    let queue = args.nats.queue().await?.ok_or_else(missing)?;
    let mut config = DelivererConfig::default();
    config.in_flight = usize::try_from(args.in_flight.get()).unwrap_or(usize::MAX);
    config.body_bytes = super::values::mebibytes(args.body_memory);
    config.drain = args.drain;
    let (stop, stopped) = oneshot::channel();
    let ended = async {
        // An error means that whoever stops is gone.
        let _ = stopped.await;
    };
    let mut deliverer = tokio::spawn(Deliverer::new(queue, sender, config).run(ended));
    tokio::select! {
        signal = signals.cancelled() => say(&format!("{signal}: waiting for the attempts that run")),
        _ = &mut deliverer => return Err(Quit::failed("it has ended; start it again, and nothing is lost".to_owned())),
    }
    let _ = stop.send(());
    tokio::select! {
        biased;
        signal = signals.cancelled() => Err(Quit::by_signal(signal)),
        cut_off = deliverer => {
            let cut_off = cut_off.unwrap_or_default();
            if cut_off > 0 {
                say(&format!("attempts that were cut off, which the schedule repeats: {cut_off}"));
            }
            Ok(i32::from(cut_off > 0))
        }
    }
}
