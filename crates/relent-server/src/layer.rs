//! The layers of a service in the right order.

use std::fmt;

use tower_layer::{Identity, Layer};

use crate::idempotency::{Idempotency, IdempotencyLayer};
use crate::overload::{Overload, OverloadLayer};
use crate::store::Store;

/// Combines the layers of a service: [`overload`](crate::overload) outside [`idempotency`](crate::idempotency),
/// optionally inside a [rate limiter](Self::admission).
///
/// ```
/// # use std::time::Duration;
/// # use axum::{Extension, Router, http::request::Parts, routing::post};
/// use relent_server::ServerLayer;
/// use relent_server::admission::{AdmissionLayer, LimiterConfig, Quota};
/// use relent_server::idempotency::IdempotencyLayer;
/// use relent_server::store::Memory;
/// # #[derive(Clone)]
/// # struct Account { id: u64 }
/// # async fn pay() -> &'static str { "paid" }
/// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
///
/// let keyed = IdempotencyLayer::new(Memory::new(), |request| {
///     request.extensions.get::<Account>().map(|account| account.id.to_string())
/// });
/// let hundred_a_second = LimiterConfig::new(100, Duration::from_secs(1));
/// let account = |request: &Parts| request.extensions.get::<Account>().map(|account| account.id);
/// let limits = AdmissionLayer::new()
///     .quota(Quota::new("account", hundred_a_second)?.key(account))
///     .caller(account);
/// let app = Router::new()
///     .route("/payments", post(pay))
///     .layer(ServerLayer::new(keyed).admission(limits));
/// # let app: Router = app.layer(Extension(Account { id: 7 })); // In place of authentication.
/// # axum::serve(tokio::net::TcpListener::bind("127.0.0.1:3000").await?, app).await?;
/// # Ok(())
/// # }
/// ```
///
/// # The order of layers
/// From outside to inside. In axum each `layer` wraps the ones before it, so the first one added is the innermost.
///
/// 1. Compression, so that responses are stored uncompressed, and tonic's `GrpcWebLayer`, since a gRPC-Web status is
///    part of the body.
/// 2. Tracing, so that rejections are traced, too.
/// 3. Authentication: keys belong to a principal. It runs before load is shed, so put an expensive check inside the
///    overload layer and outside the idempotency layer.
/// 4. Rate limits, then overload. Their rejections are not stored, and a duplicate with a stored response has to pass
///    them, too. If overload rejects a request, or it is dropped while it waits for a slot, its rate limit quota is
///    refunded.
/// 5. A limit of the body length. (The idempotency layer has one for requests with a key.)
/// 6. Idempotency.
/// 7. A timeout. It ends the handler, which continues when the client has disconnected. It responds with 408, 503 or
///    504 without `Retry-After`, and the outcome is unknown.
/// 8. The handler.
///
/// Two mistakes are detected. A request with a key that passes two idempotency layers is rejected with 500. If a
/// layer of this crate inside the idempotency layer rejects a request, that response is not stored.
pub struct ServerLayer<S, A = Identity> {
    admission: A,
    overload: OverloadLayer,
    idempotency: IdempotencyLayer<S>,
}

impl<S: Store> ServerLayer<S> {
    /// Creates a layer with this idempotency layer and the default overload layer.
    #[must_use]
    pub fn new(idempotency: IdempotencyLayer<S>) -> Self {
        Self {
            admission: Identity::new(),
            overload: OverloadLayer::default(),
            idempotency,
        }
    }
}

impl<S: Store, A> ServerLayer<S, A> {
    /// Adds a rate limiter around both layers.
    #[must_use]
    pub fn admission<B>(self, admission: B) -> ServerLayer<S, B> {
        ServerLayer {
            admission,
            overload: self.overload,
            idempotency: self.idempotency,
        }
    }

    /// Replaces the overload layer.
    #[must_use]
    pub fn overload(mut self, overload: OverloadLayer) -> Self {
        self.overload = overload;
        self
    }

    /// Waits, up to a limit, until no handler of a request with a key runs, and returns the number left:
    /// [`IdempotencyLayer::drain`].
    pub async fn drain(&self) -> usize {
        self.idempotency.drain().await
    }
}

impl<S: Store, A, I> Layer<I> for ServerLayer<S, A>
where
    A: Layer<Overload<Idempotency<I, S>>>,
{
    type Service = A::Service;

    fn layer(&self, inner: I) -> A::Service {
        let inside = self.overload.layer(self.idempotency.layer(inner));
        self.admission.layer(inside)
    }
}

impl<S, A: Clone> Clone for ServerLayer<S, A> {
    fn clone(&self) -> Self {
        Self {
            admission: self.admission.clone(),
            overload: self.overload.clone(),
            idempotency: self.idempotency.clone(),
        }
    }
}

impl<S, A: fmt::Debug> fmt::Debug for ServerLayer<S, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerLayer")
            .field("admission", &self.admission)
            .field("overload", &self.overload)
            .field("idempotency", &self.idempotency)
            .finish()
    }
}
