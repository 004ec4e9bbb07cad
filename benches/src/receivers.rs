//! Receivers of webhooks in a separate process, and a sender for them.

use std::convert::Infallible;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use relent_outbox::guard::AddressGuard;
use relent_outbox::resolver::{Resolve, Resolving};
use relent_outbox::sender::{Sender, SenderConfig};

/// The error that ends a measurement.
pub type Failed = Box<dyn Error + Send + Sync>;

/// The argument that makes a measurement process serve the receivers.
pub const SERVE: &str = "serve-receivers";

/// A process that responds with 200 on each path, except with 500 on `/fails`, and only after 10 s on `/slow`.
#[derive(Debug)]
pub struct Receivers {
    process: Child,
    /// Where it listens.
    pub port: u16,
    /// A port without a listener.
    pub closed: u16,
}

impl Receivers {
    /// Starts the running binary again, with [`SERVE`] as its argument.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start() -> Result<Self, Failed> {
        let closed = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let mut process = Command::new(std::env::current_exe()?)
            .arg(SERVE)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let out = process.stdout.take().ok_or("no standard output")?;
        BufReader::new(out).read_line(&mut line)?;
        let port = line.trim().parse()?;
        Ok(Self {
            process,
            port,
            closed,
        })
    }
}

impl Drop for Receivers {
    fn drop(&mut self) {
        // It has nothing to lose.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Serves the receivers, until the process ends.
///
/// # Errors
/// There is no port.
pub async fn serve() -> Result<(), Failed> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    let listener = socket.listen(16_384)?;
    let mut out = std::io::stdout();
    writeln!(out, "{}", listener.local_addr()?.port())?;
    out.flush()?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let serving = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service_fn(answer));
        // A client that goes away ends its connection: no error to anybody.
        tokio::spawn(async move { serving.await.ok() });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let _ = request.into_body().collect().await;
    let mut response = Response::new(Empty::new());
    match &path[..] {
        "/slow" => tokio::time::sleep(Duration::from_secs(10)).await,
        "/fails" => *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR,
        _ => {}
    }
    Ok(response)
}

/// Resolves every name to this machine.
#[derive(Clone, Copy, Debug)]
struct Here;

impl Resolve for Here {
    fn resolve(&self, _: String) -> Resolving {
        Box::pin(async { Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]) })
    }
}

/// Creates a sender to those receivers, for any host name.
///
/// # Errors
/// TLS is not available.
pub fn sender() -> Result<Sender, Failed> {
    let mut config = SenderConfig::default();
    config.guard = AddressGuard::new().allow("127.0.0.0/8".parse()?);
    config.http = true;
    config.resolver = Arc::new(Here);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?;
    let roots = rustls::RootCertStore::empty();
    config.tls = Some(tls.with_root_certificates(roots).with_no_client_auth());
    Ok(Sender::new(config)?)
}

/// Returns the processor time of this process so far, in seconds, to hundredths.
///
/// # Errors
/// There is no `/proc`.
pub fn processor_seconds() -> Result<f64, Failed> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').ok_or("no such statistics")?;
    let ticks: Vec<f64> = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<f64>() / 100.0)
}

/// Returns the memory of this process, now and at its peak, in MiB.
///
/// # Errors
/// There is no `/proc`.
pub fn memory() -> Result<(f64, f64), Failed> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let of = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        Ok::<f64, Failed>(kib.ok_or("no such statistics")?.parse::<f64>()? / 1024.0)
    };
    Ok((of("VmRSS:")?, of("VmHWM:")?))
}
