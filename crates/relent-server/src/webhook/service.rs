//! The service that verifies a delivery, and then runs it as a request with a key.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use relent_core::idempotency::{ClaimConfig, Fingerprint};
use relent_http::webhook::SignatureError;
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tower_service::Service;

use super::settings::Settings;
use super::{Delivery, Sender};
use crate::fair_shares::{Principal, Share};
use crate::idempotency::limits::ReadLimits;
use crate::idempotency::problems::Rejection;
use crate::idempotency::request::{VERSION, read};
use crate::idempotency::{Body, KeyedRequest, Server};
use crate::observe;
use crate::store::digest::add;
use crate::store::{Key, Store};

/// The service of a [`WebhookLayer`](super::WebhookLayer).
///
/// It is always ready: a duplicate, or a rejected message, does not wait for the service inside.
pub struct Webhook<I, S> {
    inner: I,
    server: Server<S>,
    settings: Settings,
}

impl<I, S> Webhook<I, S> {
    pub(super) const fn new(inner: I, server: Server<S>, settings: Settings) -> Self {
        Self {
            inner,
            server,
            settings,
        }
    }
}

impl<I, S, B, R> Service<Request<B>> for Webhook<I, S>
where
    I: Service<Request<Body<B>>, Response = Response<R>> + Clone + Send + 'static,
    I::Future: Send,
    I::Error: Send,
    S: Store,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    R: http_body::Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<Body<R>>;
    type Error = I::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, I::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let inner = self.inner.clone();
        let (server, settings) = (self.server.clone(), self.settings.clone());
        let arrived = Instant::now();
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let received = async {
                let Some(sender) = (settings.sender)(&parts) else {
                    observe::not_verified("unknown_sender");
                    return Err(Rejection::NotVerified);
                };
                // Before verification anyone may claim to be this sender, and then takes only its share of the memory.
                let principal = match settings.shares {
                    true => Principal::clone(&sender.name),
                    false => Principal::default(),
                };
                let mut memory = server.memory(&principal)?;
                let idle = server.limits().read_idle;
                let delivery = settings
                    .receive(
                        sender,
                        &parts,
                        body,
                        server.claim_config(),
                        idle,
                        &mut memory,
                    )
                    .await?;
                Ok((delivery, principal, memory))
            };
            let (delivery, principal, memory) = match received.await {
                Ok(received) => received,
                Err(refused) => return Ok(server.refuse(refused, false)),
            };
            let key = settings.record_key(&parts, &delivery);
            let fingerprint = fingerprint(delivery.body());
            let bytes = delivery.body().clone();
            parts.extensions.insert(delivery);
            let request = KeyedRequest {
                parts,
                bytes,
                key,
                fingerprint,
                principal,
                memory,
                arrived,
            };
            server.once(inner, request).await
        })
    }
}

impl Settings {
    /// Reads the body and verifies the signature.
    async fn receive<B>(
        &self,
        sender: Sender,
        parts: &Parts,
        body: B,
        claim: &ClaimConfig,
        idle: Duration,
        memory: &mut Share,
    ) -> Result<Delivery, Rejection>
    where
        B: http_body::Body<Data = Bytes>,
    {
        claim
            .check_retention(sender.verifier.replay_window())
            .map_err(|_| Rejection::RetentionTooShort)?;
        let limits = ReadLimits {
            total: self.read_timeout,
            idle,
            bytes: self.max_body,
        };
        let body = read(parts, body, limits, memory).await?;
        let verified = sender
            .verifier
            .verify(&parts.headers, &body, (self.clock)());
        let verified = verified.map_err(|error| {
            let (reason, refused) = match error {
                SignatureError::Missing(_) => ("missing", Rejection::NoMessage),
                SignatureError::Malformed(_) => ("malformed", Rejection::NoMessage),
                SignatureError::OutOfTime { .. } => ("out_of_time", Rejection::NotVerified),
                _ => ("no_match", Rejection::NotVerified),
            };
            observe::not_verified(reason);
            refused
        })?;
        Ok(Delivery {
            id: Arc::from(verified.id),
            at: verified.at,
            sender: sender.name,
            body,
        })
    }

    /// Returns the key of the record, from three parts. A request with an `Idempotency-Key` has four, so one store
    /// can hold both.
    fn record_key(&self, parts: &Parts, delivery: &Delivery) -> Key {
        let mut digest = Sha256::new();
        add(&mut digest, delivery.sender().as_bytes());
        add(&mut digest, (self.operation)(parts).as_bytes());
        add(&mut digest, delivery.id().as_bytes());
        Key::of_principal(delivery.sender(), digest)
    }
}

/// Returns the digest of the signed body. Timestamp, header fields and query may differ in the next attempt.
fn fingerprint(body: &[u8]) -> Fingerprint {
    let mut digest = Sha256::new();
    digest.update([VERSION]);
    add(&mut digest, body);
    Fingerprint(digest.finalize().into())
}

impl<I: Clone, S> Clone for Webhook<I, S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            server: self.server.clone(),
            settings: self.settings.clone(),
        }
    }
}

impl<I: fmt::Debug, S> fmt::Debug for Webhook<I, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
