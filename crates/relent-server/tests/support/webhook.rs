//! A sender of webhooks that writes its requests byte by byte, and a server for them.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::time::{Duration, UNIX_EPOCH};

use axum::Router;
use http::{HeaderMap, StatusCode};
use relent_http::webhook::{Signer, Verifier};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) const OLD_KEY: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
pub(crate) const NEW_KEY: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
/// The key of an unknown sender.
pub(crate) const OTHER_KEY: &str = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
pub(crate) const PAIR: &str = "whsk_AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
pub(crate) const PUBLIC: &str = "whpk_iojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w=";

/// Accepts the old key, the new one and the key pair.
pub(crate) fn verifier() -> Verifier {
    Verifier::new([OLD_KEY, NEW_KEY, PUBLIC].map(|key| key.parse().unwrap()))
}

pub(crate) async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(axum::serve(listener, app).into_future());
    address
}

/// A message, and one attempt to deliver it.
#[derive(Clone)]
pub(crate) struct Message {
    pub(crate) path: String,
    pub(crate) id: String,
    pub(crate) seconds: u64,
    pub(crate) body: String,
    pub(crate) fields: Vec<(String, String)>,
    keys: Vec<&'static str>,
}

impl Message {
    pub(crate) fn new(id: &str, seconds: u64) -> Self {
        Self {
            path: "/hook".to_owned(),
            id: id.to_owned(),
            seconds,
            body: "{\"amount\":5}".to_owned(),
            fields: Vec::new(),
            keys: vec![OLD_KEY],
        }
    }

    pub(crate) fn signed_by(mut self, keys: &[&'static str]) -> Self {
        self.keys = keys.to_vec();
        self
    }

    /// Signs the message as it is. If its identifier cannot be signed, uses the signature of another one.
    pub(crate) fn sign(&mut self) {
        let mut signer = Signer::new(self.keys[0].parse().unwrap());
        for key in &self.keys[1..] {
            signer = signer.also(key.parse().unwrap());
        }
        let mut headers = HeaderMap::new();
        let now = UNIX_EPOCH + Duration::from_secs(self.seconds);
        let body = self.body.as_bytes();
        if signer.sign(&self.id, now, body, &mut headers).is_err() {
            signer.sign("other", now, body, &mut headers).unwrap();
            headers.insert("webhook-id", self.id.parse().unwrap());
        }
        self.fields
            .retain(|(name, _)| !headers.contains_key(name.as_str()));
        for (name, value) in &headers {
            let value = value.to_str().unwrap().to_owned();
            self.fields.push((name.to_string(), value));
        }
    }

    /// The request up to its body, with this length field.
    pub(crate) fn head(&self, length: &str) -> String {
        let mut head = format!(
            "POST {} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n{length}\r\n",
            self.path
        );
        for (name, value) in &self.fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head + "\r\n"
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let head = self.head(&format!("content-length: {}", self.body.len()));
        (head + &self.body).into_bytes()
    }

    pub(crate) async fn send(mut self, address: &str) -> Reply {
        self.sign();
        self.send_as_signed(address).await
    }

    pub(crate) async fn send_as_signed(&self, address: &str) -> Reply {
        exchange(address, &self.bytes()).await
    }

    /// Returns `None` if there is no response.
    pub(crate) async fn try_send(mut self, address: &str) -> Option<Reply> {
        self.sign();
        let mut stream = TcpStream::connect(address).await.ok()?;
        stream.write_all(&self.bytes()).await.ok()?;
        read(stream).await
    }
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) body: String,
    head: String,
}

impl Reply {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (field, value) = line.split_once(": ")?;
            (field == name).then_some(value)
        })
    }
}

pub(crate) async fn exchange(address: &str, request: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    read(stream).await.unwrap()
}

/// Reads until the connection ends; `None` if there is no valid response.
pub(crate) async fn read(mut stream: TcpStream) -> Option<Reply> {
    let mut bytes = Vec::new();
    // The end may be a reset: a server that rejects a request does not read the rest of it.
    drop(stream.read_to_end(&mut bytes).await);
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?;
    Some(Reply {
        status: status.parse().unwrap(),
        body: body.to_owned(),
        head: head.to_owned(),
    })
}
