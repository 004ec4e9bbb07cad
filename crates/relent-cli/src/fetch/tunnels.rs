//! Tunnels through proxies.
//!
//! reqwest sends CONNECT itself, but discards the response of a proxy that refuses. A forbidden port (403) and an
//! overloaded proxy (503) are then the same error, although only the second one is worth a retry. Therefore this module
//! sends CONNECT, and reqwest gets the tunnel from a local listener, which forwards the bytes.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use relent_http::network::TunnelRefused;
use relent_reqwest::IdempotencyKey;
use reqwest::{Client, Upgraded, Url};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tower_layer::Layer;
use tower_service::Service;

/// The time limit for reqwest's request at the listener, which normally arrives immediately.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of a request for a tunnel.
const MAX_HEAD_BYTES: usize = 16 << 10;
const USER: &str = "relent";

type BoxError = Box<dyn std::error::Error + Send + Sync>;

thread_local! {
    /// Receives the error of the tunnel that this thread requested last.
    static TUNNEL_ERROR: RefCell<Option<oneshot::Receiver<BoxError>>> = const { RefCell::new(None) };
}

/// Opens tunnels through a proxy.
#[derive(Clone)]
pub(crate) struct Tunnels(Client);

impl Tunnels {
    /// Uses this client, which sends plain HTTP requests to the proxy.
    pub(crate) const fn through(client: Client) -> Self {
        Self(client)
    }

    /// Returns the local URL at which reqwest requests a tunnel to this URL. `None` if no listener can be opened, or
    /// if the port is 80, which a plain HTTP URL leaves out.
    pub(crate) fn to(&self, url: &Url) -> Option<Url> {
        let port = url.port_or_known_default().filter(|port| *port != 80)?;
        let target = Url::parse(&format!("http://{}:{port}/", url.host_str()?)).ok()?;
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
        listener.set_nonblocking(true).ok()?;
        let listener = TcpListener::from_std(listener).ok()?;
        let at = listener.local_addr().ok()?;
        // No other process on this machine may use the tunnel.
        let password = IdempotencyKey::new().to_string();
        let here = Url::parse(&format!("http://{USER}:{password}@{at}/")).ok()?;
        let credentials = STANDARD.encode(format!("{USER}:{password}"));
        let (refused, error) = oneshot::channel();
        TUNNEL_ERROR.set(Some(error));
        tokio::spawn(serve(
            listener,
            credentials,
            self.0.clone(),
            target,
            refused,
        ));
        Some(here)
    }
}

/// Opens one tunnel for reqwest.
async fn serve(
    listener: TcpListener,
    credentials: String,
    client: Client,
    target: Url,
    refused: oneshot::Sender<BoxError>,
) {
    let Ok(Ok(mut near)) =
        timeout(REQUEST_TIMEOUT, accept(&listener, credentials.as_bytes())).await
    else {
        return;
    };
    drop(listener);
    let opened = tokio::select! {
        opened = open(&client, target) => opened,
        // reqwest sends nothing before the tunnel is open, so it has closed the connection.
        _ = near.read_u8() => return,
    };
    match opened {
        Ok(mut far) => {
            if near.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.is_ok() {
                // Both sides see the end of the tunnel in any case.
                let _ = copy_bidirectional(&mut near, &mut far).await;
            }
        }
        // The error must be sent before `near` is closed, which shows reqwest that there is no tunnel.
        Err(error) => drop(refused.send(error)),
    }
}

/// Accepts the first connection that sends these credentials.
async fn accept(listener: &TcpListener, credentials: &[u8]) -> io::Result<TcpStream> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        if let Ok(Ok(head)) = timeout(REQUEST_TIMEOUT, read_head(&mut stream)).await
            && head.windows(credentials.len()).any(|at| at == credentials)
        {
            return Ok(stream);
        }
    }
}

async fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == MAX_HEAD_BYTES || stream.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(head)
}

async fn open(client: &Client, target: Url) -> Result<Upgraded, BoxError> {
    let response = client.request(Method::CONNECT, target).send().await?;
    match response.status() {
        status if status.is_success() => Ok(response.upgrade().await?),
        status => Err(TunnelRefused::new(status).into()),
    }
}

/// Replaces the error of a connection that needs a tunnel by the response of the proxy.
#[derive(Clone, Copy)]
pub(crate) struct TunnelErrorLayer;

impl<S> Layer<S> for TunnelErrorLayer {
    type Service = TunnelErrorConnector<S>;

    fn layer(&self, connector: S) -> TunnelErrorConnector<S> {
        TunnelErrorConnector(connector)
    }
}

/// A connector that returns the error of the tunnel, if there is one.
#[derive(Clone)]
pub(crate) struct TunnelErrorConnector<S>(S);

impl<S, R> Service<R> for TunnelErrorConnector<S>
where
    S: Service<R, Error = BoxError>,
    S::Response: Send + 'static,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, to: R) -> Self::Future {
        TUNNEL_ERROR.take();
        // Within this call the connector looks up the proxy, which requests the tunnel.
        let connecting = self.0.call(to);
        let asked = TUNNEL_ERROR.take();
        Box::pin(async move {
            let connected = connecting.await;
            match (connected, asked) {
                (Err(error), Some(mut asked)) => Err(asked.try_recv().unwrap_or(error)),
                (connected, _) => connected,
            }
        })
    }
}
