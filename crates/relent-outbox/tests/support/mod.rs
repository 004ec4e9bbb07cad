//! A receiver with configurable behaviour, and a sender that may call it.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use relent_outbox::guard::AddressGuard;
use relent_outbox::sender::{Sender, SenderConfig};
use relent_outbox::store::{Filter, MessageState, MessageStatus, Store};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Looks every 10 ms, for at most 60 s, until there is something.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(mut look: impl FnMut() -> F) -> T {
    let waiting = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting)
        .await
        .unwrap()
}

/// Waits until every message has ended.
pub(crate) async fn until_ended(store: &impl Store) -> Vec<MessageStatus> {
    until(|| async {
        let statuses = store.messages(Filter::default(), 10_000).await.unwrap();
        let over = |status: &MessageStatus| {
            !matches!(status.state, MessageState::Pending | MessageState::Running)
        };
        statuses.iter().all(over).then_some(statuses)
    })
    .await
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Hit {
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
    /// The number of requests with this identifier on this path, including this one.
    pub(crate) number: usize,
}

impl Hit {
    pub(crate) fn id(&self) -> &str {
        &self.headers["webhook-id"]
    }
}

/// The reaction to a request.
pub(crate) enum Reply {
    /// Writes this, and keeps the connection.
    Answer(Vec<u8>),
    /// Writes this after a time.
    Late(Duration, Vec<u8>),
    /// Writes this and closes.
    Cut(Vec<u8>),
    /// Never responds.
    Hang,
}

pub(crate) fn answer(status: &str, fields: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{fields}\r\n{body}").into_bytes()
}

pub(crate) fn ok() -> Reply {
    Reply::Answer(answer("200 OK", "", ""))
}

#[derive(Clone)]
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    hits: Vec<Hit>,
    /// The number of requests by path and identifier.
    counts: HashMap<(String, String), usize>,
}

type Behave = Arc<dyn Fn(&Hit) -> Reply + Send + Sync>;

impl Receiver {
    pub(crate) async fn new(behave: impl Fn(&Hit) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap(),
            seen: Arc::default(),
        };
        let (seen, behave): (_, Behave) = (Arc::clone(&receiver.seen), Arc::new(behave));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&seen), Arc::clone(&behave)));
            }
        });
        receiver
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    pub(crate) fn hits(&self) -> Vec<Hit> {
        self.seen.lock().unwrap().hits.clone()
    }
}

async fn serve(mut stream: TcpStream, seen: Arc<Mutex<Seen>>, behave: Behave) {
    let mut buffer = Vec::new();
    loop {
        let Some(mut hit) = read(&mut stream, &mut buffer).await else {
            return;
        };
        {
            let mut seen = seen.lock().unwrap();
            let id = hit.headers.get("webhook-id").cloned().unwrap_or_default();
            let count = seen.counts.entry((hit.path.clone(), id)).or_default();
            *count += 1;
            hit.number = *count;
            seen.hits.push(hit.clone());
        }
        let reply = behave(&hit);
        let written = match reply {
            Reply::Answer(bytes) => stream.write_all(&bytes).await,
            Reply::Late(wait, bytes) => {
                tokio::time::sleep(wait).await;
                stream.write_all(&bytes).await
            }
            Reply::Cut(bytes) => {
                let _ = stream.write_all(&bytes).await;
                let _ = stream.shutdown().await;
                return;
            }
            Reply::Hang => std::future::pending().await,
        };
        if written.is_err() {
            return;
        }
    }
}

async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Hit> {
    loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
            let mut lines = head.split("\r\n");
            let path = lines.next()?.split(' ').nth(1)?.to_owned();
            let headers: HashMap<String, String> = lines
                .filter_map(|line| line.split_once(": "))
                .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
                .collect();
            let length = headers
                .get("content-length")
                .map_or(0, |length| length.parse().unwrap());
            while buffer.len() < end + 4 + length {
                if stream.read_buf(buffer).await.ok()? == 0 {
                    return None;
                }
            }
            let body = buffer[end + 4..end + 4 + length].to_vec();
            buffer.drain(..end + 4 + length);
            return Some(Hit {
                path,
                headers,
                body,
                number: 0,
            });
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

/// An address of the loopback without a listener.
pub(crate) fn closed() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// A sender that may call the loopback by HTTP.
pub(crate) fn local_sender() -> Sender {
    Sender::new(local()).unwrap()
}

pub(crate) fn local() -> SenderConfig {
    let mut config = SenderConfig::default();
    config.guard = AddressGuard::new().allow("127.0.0.0/8".parse().unwrap());
    config.http = true;
    config.tls = Some(no_tls());
    config
}

/// A configuration that trusts no certificate, which is fast to create.
pub(crate) fn no_tls() -> rustls::ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth()
}
