//! The connection to NATS, and its options.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use clap::Args;
use percent_encoding::percent_decode_str;
use relent::random::SessionRandom;
use relent::{Backoff, Jitter, Policy};
use relent_outbox_nats::async_nats::{
    ClientError, ConnectErrorKind, ConnectOptions, Event, ServerAddr, ServerError,
};
use relent_outbox_nats::{Queue, QueueName};

use crate::console::say;
use crate::exit_status::ExitError;

#[derive(Args, Debug)]
#[command(next_help_heading = "NATS")]
pub(super) struct NatsArgs {
    /// The NATS servers that connect `serve` with its workers (`relent deliver worker`)
    ///
    /// nats://HOST:PORT, or tls://HOST:PORT to require TLS; several are separated by commas. Credentials precede
    /// the host, as USER:PASSWORD@ or TOKEN@; in RELENT_NATS other users of the machine cannot see them. NATS
    /// needs JetStream.
    #[arg(
        long,
        value_name = "URL",
        env = "RELENT_NATS",
        hide_env_values = true,
        value_delimiter = ','
    )]
    nats: Vec<ServerAddr>,

    /// The file with the NATS credentials (.creds)
    #[arg(long, value_name = "FILE", requires = "nats")]
    nats_creds: Option<PathBuf>,

    /// Additional trusted CA certificates (PEM)
    #[arg(long, value_name = "FILE", requires = "nats")]
    nats_ca: Option<PathBuf>,

    /// The client certificate for NATS (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["nats_key", "nats"])]
    nats_cert: Option<PathBuf>,

    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["nats_cert", "nats"])]
    nats_key: Option<PathBuf>,

    /// The name of the JetStream stream, one per fleet; created if missing
    #[arg(long, value_name = "NAME", default_value_t, requires = "nats")]
    nats_queue: QueueName,

    /// The replicas of the stream in a NATS cluster, if it is created
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5), requires = "nats")]
    nats_replicas: u8,
}

impl NatsArgs {
    /// Returns the queue, if `--nats` is given. It connects in the background, and reconnects when the connection ends.
    pub(super) async fn queue(&self) -> Result<Option<Queue>, ExitError> {
        if self.nats.is_empty() {
            return Ok(None);
        }
        let said = Mutex::new(String::new());
        let mut options = ConnectOptions::new()
            .name("relent")
            .retry_on_initial_connect()
            .ping_interval(PING_INTERVAL)
            .reconnect_delay_callback(delay)
            .event_callback(move |event| {
                report_event(&said, &event);
                async {}
            });
        match user(&self.nats)? {
            Some((user, Some(password))) => options = options.user_and_password(user, password),
            Some((token, None)) => options = options.token(token),
            None => {}
        }
        if let Some(path) = &self.nats_creds {
            let file = path.display();
            options = options
                .credentials_file(path)
                .await
                .map_err(|error| ExitError::usage(format!("--nats-creds {file}: {error}")))?;
        }
        if let Some(path) = &self.nats_ca {
            options = options.add_root_certificates(path.clone());
        }
        if let (Some(cert), Some(key)) = (&self.nats_cert, &self.nats_key) {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
        if self.nats_ca.is_some() || self.nats_cert.is_some() {
            // Otherwise the server decides, in a plain-text line that an attacker on the network can change.
            options = options.require_tls(true);
        }
        let client = options
            .connect(&self.nats[..])
            .await
            .map_err(|error| ExitError::usage(format!("--nats: {error}")))?;
        let queue = Queue::new(client, self.nats_queue.clone());
        Ok(Some(queue.replicas(self.nats_replicas.into())))
    }
}

/// The NATS client gives a connection up at its third ping without a response. By default, one that is lost without
/// notice would stop all deliveries for three minutes.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// The backoff between two attempts to connect; its jitter spreads the connections of a fleet.
static RECONNECT: Policy = Policy::builder(Backoff::exponential(Duration::from_millis(100)))
    .max_delay(MAX_RECONNECT_DELAY)
    .jitter(Jitter::Equal)
    .unlimited_retries()
    .build_const();
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(5);

fn delay(tries: usize) -> Duration {
    // From the seventh attempt on, all delays have the cap.
    let mut waits = RECONNECT.waits(SessionRandom::new());
    waits.nth(tries.min(6)).unwrap_or(MAX_RECONNECT_DELAY)
}

/// Reports a change of the connection, without repeating the previous message.
fn report_event(said: &Mutex<String>, event: &Event) {
    let text = match event {
        Event::Connected => "connected to NATS".to_owned(),
        Event::Disconnected => "disconnected from NATS: attempts wait until it is back".to_owned(),
        Event::ServerError(ServerError::AuthorizationViolation) => REFUSED.to_owned(),
        Event::ClientError(ClientError::Other(kind)) => not_connected(kind),
        event => format!("NATS: {event}"),
    };
    if let Ok(mut said) = said.lock()
        && *said != text
    {
        say(&text);
        *said = text;
    }
}

const REFUSED: &str = "NATS refuses this user: give valid credentials, as nats://USER:PASSWORD@HOST or nats://TOKEN@HOST in RELENT_NATS, or with --nats-creds FILE";

/// Advises on a failed connection. The client reports only the kind of error as text, without details of a certificate
/// that is not trusted.
fn not_connected(error: &str) -> String {
    let refused = [
        ConnectErrorKind::AuthorizationViolation,
        ConnectErrorKind::Authentication,
    ];
    if refused.iter().any(|kind| kind.to_string() == error) {
        return REFUSED.to_owned();
    }
    format!(
        "NATS is not reached ({error}): is there a nats-server at the address in --nats? With TLS: is its certificate for that host and signed by a CA in --nats-ca, and does it require a client certificate (--nats-cert, --nats-key)?"
    )
}

/// A user or a token, and the password if there is one.
type User = (String, Option<String>);

/// Extracts the user from the addresses, which the NATS client ignores.
fn user(servers: &[ServerAddr]) -> Result<Option<User>, ExitError> {
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let user =
        |server: &ServerAddr| Some((decode(server.username()?), server.password().map(decode)));
    let mut users: Vec<User> = servers.iter().filter_map(user).collect();
    users.dedup();
    if users.len() > 1 {
        let wrong = "--nats: use one user for all servers, in one of the addresses or in each";
        return Err(ExitError::usage(wrong.to_owned()));
    }
    Ok(users.pop())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::TcpListener;

    use super::*;

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        nats: NatsArgs,
    }

    /// A gateway has forgotten the connection, or the server is stopped.
    #[tokio::test]
    async fn a_connection_that_is_lost_without_notice_is_replaced_within_half_a_minute() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let options = Options::parse_from(["relent", "--nats", &url]);
        let queue = options.nats.queue().await;
        let (mut stream, _) = listener.accept().await.unwrap();
        let info = r#"{"server_id":"a","version":"2.10.0","headers":true,"max_payload":1048576}"#;
        let greeting = format!("INFO {info}\r\n");
        stream.write_all(greeting.as_bytes()).await.unwrap();
        let mut lines = BufReader::new(&mut stream).lines();
        while lines.next_line().await.unwrap().unwrap() != "PING" {}
        stream.write_all(b"PONG\r\n").await.unwrap();
        tokio::time::pause();
        let again = tokio::time::timeout(Duration::from_secs(30), listener.accept());
        assert!(again.await.is_ok());
        drop((queue, stream));
    }

    #[test]
    fn reconnect_delays_double_up_to_five_seconds_with_equal_jitter() {
        for tries in [0, 1, 2, 5, 6, 7, 1000, usize::MAX] {
            let doubled = 2_u32.saturating_pow(u32::try_from(tries).unwrap_or(u32::MAX));
            let most = Duration::from_millis(100)
                .saturating_mul(doubled)
                .min(MAX_RECONNECT_DELAY);
            for _ in 0..100 {
                let wait = delay(tries);
                assert!((most / 2..=most).contains(&wait), "{tries}: {wait:?}");
            }
        }
    }
}
