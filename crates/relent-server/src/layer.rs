//! The layers of a service in their right order.

use std::fmt;

use tower_layer::{Identity, Layer};

use crate::idempotency::{Idempotency, IdempotencyLayer};
use crate::overload::{Overload, OverloadLayer};
use crate::store::Store;

/// What a service usually needs, in one layer: [`overload`](crate::overload) outside, [`idempotency`](crate::idempotency) inside, and
/// [around both](Self::admission) a layer that limits rates, if it is given one.
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
/// From outside to inside; each `layer` of axum goes around those before it, so that the first to be added is the innermost.
///
/// 1. Compression: what is stored is not compressed.
/// 2. Tracing, so that what is refused is seen, too.
/// 3. Authentication: keys belong to a principal. It costs something before a request may be shed; a check that is dear goes inside
///    of the overload layer, and outside of the idempotency layer.
/// 4. Rate limits, then overload: what they refuse is not stored, and a duplicate that would be answered from the store
///    has to be let in, too. What overload turns away, or what is dropped while it waits for a slot, has what it took from the
///    limits given back.
/// 5. A limit of the body's length. (The idempotency layer has one for requests with a key.)
/// 6. Idempotency.
/// 7. A timeout: inside, so that it ends the handler, which runs on when the client has gone. It answers 408, 503 or 504
///    without `Retry-After`, and the outcome is unknown.
/// 8. The handler.
///
/// What can be seen of it is checked: a request with a key that passes two idempotency layers is refused (500), and what
/// is refused by a layer of this crate inside of an idempotency layer is not stored.
pub struct ServerLayer<S, A = Identity> {
    admission: A,
    overload: OverloadLayer,
    idempotency: IdempotencyLayer<S>,
}

impl<S: Store> ServerLayer<S> {
    /// This idempotency layer, and overload with its defaults.
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
    /// With a layer around both, in its right place: one that limits rates.
    #[must_use]
    pub fn admission<B>(self, admission: B) -> ServerLayer<S, B> {
        ServerLayer {
            admission,
            overload: self.overload,
            idempotency: self.idempotency,
        }
    }

    /// With this overload layer.
    #[must_use]
    pub fn overload(mut self, overload: OverloadLayer) -> Self {
        self.overload = overload;
        self
    }

    /// Waits until no handler of a request with a key runs any more, within a limit; how many are left:
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
