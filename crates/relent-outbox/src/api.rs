//! The HTTP API by which an outbox is run, its page for people, and its metrics.
//!
//! Programs enqueue messages and register endpoints; operators see what is stuck and why, and have it sent again. The
//! routes are described in OpenAPI at `/openapi.json`: see [`OPENAPI`].
//!
//! | | needs the token |
//! |---|---|
//! | `/v1/…`, `/metrics` | as `Authorization: Bearer TOKEN` |
//! | `/v1/messages/{id}/content` | the [content token](Api::content_token) |
//! | `/` and the pages below it | once, in a form; then by a cookie that no script can read and no other site can use |
//! | `/openapi.json`, `/health`, `/login` | no |
//!
//! Secrets go in and never come out. What cannot be meant is refused, with the name of what is wrong.
//!
//! It speaks HTTP without TLS: bind it to the loopback, or to a private network behind something that does TLS.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, delete, get, post, put};
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;

use crate::guard::AddressGuard;
use crate::secrets::Secrets;
use crate::store::Store;
use crate::worker::{Held, Hint, Watch};

mod access;
mod answer;
mod contents;
mod endpoints;
mod messages;
mod metrics;
mod page;

use access::Sessions;
pub use access::{InvalidToken, Token};

/// The description of the API: OpenAPI 3.1, as JSON.
pub const OPENAPI: &str = include_str!("api/openapi.json");

/// The most that a request may have in its body: 16 MiB.
pub const MAX_BODY: usize = 16 << 20;
/// The most messages that one request enqueues.
pub const MAX_BATCH: usize = 1000;
/// The same of a form of the page.
const MAX_FORM: usize = 64 << 10;
/// How long the header of a request may take, or a connection be kept without one; and then the rest, with the reading of
/// its body.
const PATIENCE: Duration = Duration::from_secs(30);

/// The API over a store: see the [module](self).
///
/// # Default
/// Endpoints have to be at public addresses, with `https`.
pub struct Api<S> {
    store: S,
    secrets: Secrets,
    token: Token,
    /// With which contents may be seen, too.
    content_token: Option<Token>,
    /// The sessions of the page of this process.
    sessions: Sessions,
    guard: AddressGuard,
    http_allowed: bool,
    hint: Option<Hint>,
    watch: Option<Watch>,
    render: Option<Box<dyn Fn() -> String + Send + Sync>>,
}

impl<S> fmt::Debug for Api<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api")
            .field("guard", &self.guard)
            .field("http_allowed", &self.http_allowed)
            .finish_non_exhaustive()
    }
}

impl<S: Store> Api<S> {
    /// The API over this store, for whoever has the token. Signing keys are sealed by `secrets`.
    #[must_use]
    pub fn new(store: S, secrets: Secrets, token: Token) -> Self {
        Self {
            store,
            secrets,
            token,
            content_token: None,
            sessions: Sessions::default(),
            guard: AddressGuard::new(),
            http_allowed: false,
            hint: None,
            watch: None,
            render: None,
        }
    }

    /// A client with this token may do what the other one allows, and see what messages hold: payloads, and the header fields
    /// of requests and answers. Without a content token no client sees them.
    #[must_use]
    pub fn content_token(mut self, token: Token) -> Self {
        self.content_token = Some(token);
        self
    }

    /// Lets endpoints be registered at the addresses that this guard lets pass: the one that the worker has.
    #[must_use]
    pub fn guard(mut self, guard: AddressGuard) -> Self {
        self.guard = guard;
        self
    }

    /// Lets endpoints be registered with `http`, whose messages anybody on the way can read.
    #[must_use]
    pub const fn allow_http(mut self, allowed: bool) -> Self {
        self.http_allowed = allowed;
        self
    }

    /// Tells a worker of this process when somebody has changed something, so that it looks at once. What was enqueued the
    /// [store](Store::hints) tells it.
    #[must_use]
    pub fn hint(mut self, hint: Hint) -> Self {
        self.hint = Some(hint);
        self
    }

    /// Shows what a worker of this process holds back, and why.
    #[must_use]
    pub fn watch(mut self, watch: Watch) -> Self {
        self.watch = Some(watch);
        self
    }

    /// What `/metrics` shows, such as `PrometheusHandle::render` of the recorder that is installed. It is called after the
    /// gauges are set by what the store says.
    #[must_use]
    pub fn metrics(mut self, render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.render = Some(Box::new(render));
        self
    }

    /// As a router, to serve it beside others.
    pub fn into_router(self) -> Router {
        let shared = Arc::new(self);
        let router = |routes: Vec<Route<S>>| {
            let routes = routes.into_iter();
            routes.fold(Router::new(), |router, (_, path, handlers)| {
                router.route(path, handlers)
            })
        };
        // Who signs in has no token yet.
        let page = router(page::routes()).layer(DefaultBodyLimit::max(MAX_FORM));
        router(routes())
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .merge(page)
            .fallback(answer::not_found)
            .method_not_allowed_fallback(answer::method_not_allowed)
            .layer(from_fn_with_state(shared.clone(), access::guard))
            .with_state(shared)
    }

    /// Serves it until `shutdown`, and then until what was asked is answered. The header of a request may take 30 s, and so
    /// may the rest, so that nobody who sends slowly keeps a connection.
    pub async fn serve(self, mut listener: TcpListener, shutdown: impl Future<Output = ()> + Send) {
        let router = self.into_router();
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
        let connections = GracefulShutdown::new();
        let mut shutdown = pin!(shutdown);
        loop {
            let (stream, _) = tokio::select! {
                accepted = Listener::accept(&mut listener) => accepted,
                () = &mut shutdown => break,
            };
            let service = TowerToHyperService::new(router.clone());
            let connection = http.serve_connection(TokioIo::new(stream), service);
            // What it fails with its client knows.
            let connection = connections.watch(connection);
            tokio::spawn(async move { drop(connection.await) });
        }
        drop(listener);
        connections.shutdown().await;
    }

    /// What the worker of this process holds back, by tenant and name.
    async fn held(&self) -> HashMap<(String, String), Held> {
        let held = match &self.watch {
            Some(watch) => watch.held().await,
            None => Vec::new(),
        };
        let names = |held: &Held| (held.tenant.clone(), held.name.clone());
        held.into_iter().map(|held| (names(&held), held)).collect()
    }

    /// There is something to do.
    fn wake(&self) {
        if let Some(hint) = &self.hint {
            hint.wake();
        }
    }
}

type Shared<S> = Arc<Api<S>>;
type Route<S> = (&'static str, &'static str, MethodRouter<Shared<S>>);

/// What [`OPENAPI`] describes: the method, the path, and what answers.
fn routes<S: Store>() -> Vec<Route<S>> {
    vec![
        ("get", "/health", get(answer::health)),
        ("get", "/openapi.json", get(answer::openapi)),
        ("get", "/metrics", get(metrics::render::<S>)),
        ("get", "/v1/summary", get(messages::summary::<S>)),
        ("get", "/v1/endpoints", get(endpoints::list::<S>)),
        ("get", "/v1/endpoints/{name}", get(endpoints::show::<S>)),
        ("put", "/v1/endpoints/{name}", put(endpoints::register::<S>)),
        (
            "delete",
            "/v1/endpoints/{name}",
            delete(endpoints::delete::<S>),
        ),
        (
            "delete",
            "/v1/endpoints/{name}/secrets/{number}",
            delete(endpoints::remove_secret::<S>),
        ),
        (
            "post",
            "/v1/endpoints/{name}/enable",
            post(endpoints::enable::<S>),
        ),
        (
            "post",
            "/v1/endpoints/{name}/disable",
            post(endpoints::disable::<S>),
        ),
        (
            "post",
            "/v1/endpoints/{name}/test",
            post(endpoints::test::<S>),
        ),
        (
            "get",
            "/v1/endpoints/{name}/recent",
            get(endpoints::recent::<S>),
        ),
        ("post", "/v1/events", post(messages::publish::<S>)),
        ("get", "/v1/messages", get(messages::list::<S>)),
        ("post", "/v1/messages", post(messages::enqueue::<S>)),
        ("get", "/v1/messages/{id}", get(messages::show::<S>)),
        (
            "post",
            "/v1/messages/{id}/resend",
            post(messages::resend::<S>),
        ),
        (
            "post",
            "/v1/messages/{id}/cancel",
            post(messages::cancel::<S>),
        ),
        ("get", "/v1/messages/{id}/content", get(contents::show::<S>)),
        (
            "post",
            "/v1/messages/{id}/send-now",
            post(messages::send_now::<S>),
        ),
        ("post", "/v1/send-now", post(messages::send_all_now::<S>)),
        ("post", "/v1/replay", post(messages::replay::<S>)),
    ]
}

#[cfg(all(test, feature = "sqlite"))]
mod described;

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::Instant;

    use super::*;
    use crate::store::Sqlite;

    /// Whoever begins a request and does not go on loses the connection, and hears why if there is anything to answer.
    #[tokio::test(start_paused = true)]
    async fn nobody_keeps_a_connection_by_sending_slowly() {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open(directory.path().join("outbox.db")).unwrap();
        let token = Token::new();
        let put = format!(
            "PUT /v1/endpoints/x HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: 9\r\n\r\n{{",
            token.as_str()
        );
        let ask = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
        let api = Api::new(store, Secrets::default(), token);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(api.serve(listener, std::future::pending()));
        let cases = [
            ("", ""),
            ("GET /health HTTP/1.1\r\nhost:", ""),
            // After an answer, too.
            (ask, "200 OK"),
            (&put, "503 Service Unavailable"),
        ];
        for (sent, answer) in cases {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let began = Instant::now();
            stream.write_all(sent.as_bytes()).await.unwrap();
            let mut heard = String::new();
            stream.read_to_string(&mut heard).await.unwrap();
            assert!(heard.contains(answer), "{sent:?}: {heard}");
            let took = began.elapsed();
            assert!(
                took >= PATIENCE && took < 2 * PATIENCE + Duration::from_secs(1),
                "{sent:?}: {took:?}"
            );
        }
    }

    #[tokio::test]
    async fn endpoints_that_need_somebody_come_first_however_many_there_are() {
        use axum::body::{Body, to_bytes};
        use axum::http::Request;
        use tower_service::Service;

        use crate::endpoint::{Activity, Endpoint};

        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open(directory.path().join("outbox.db")).unwrap();
        for number in 0..1100 {
            let endpoint = Endpoint::new(format!("fine-{number:04}"), "https://shop.example/");
            store.put_endpoint(endpoint).await.unwrap();
        }
        let last = Endpoint::new("zebra", "https://zebra.example/");
        store.put_endpoint(last).await.unwrap();
        let disabled = store.set_activity("", "zebra", Activity::Disabled, "moves");
        assert!(disabled.await.unwrap());
        let token = Token::new();
        let mut router = Api::new(store, Secrets::default(), token.clone()).into_router();
        let login = Request::post("/login")
            .header("content-type", "application/x-www-form-urlencoded")
            .body(Body::from(format!("token={}", token.as_str())));
        let signed_in = router.call(login.unwrap()).await.unwrap();
        let cookie = signed_in.headers()["set-cookie"].to_str().unwrap();
        let cookie = cookie.split(';').next().unwrap();
        let page = Request::get("/")
            .header("cookie", cookie)
            .body(Body::empty());
        let page = router.call(page.unwrap()).await.unwrap();
        let page = to_bytes(page.into_body(), 8 << 20).await.unwrap();
        let page = String::from_utf8_lossy(&page);
        let (first, others) = (page.find("zebra").unwrap(), page.find("fine-").unwrap());
        assert!(first < others, "{first} {others}");
    }

    #[test]
    fn every_route_is_described_and_nothing_else() {
        let own = routes::<Sqlite>();
        let own: BTreeSet<_> = own
            .iter()
            .map(|(method, path, _)| ((*path).to_owned(), (*method).to_owned()))
            .collect();
        let description: Value = serde_json::from_str(OPENAPI).unwrap();
        let paths = description["paths"].as_object().unwrap();
        let described: BTreeSet<_> = paths
            .iter()
            .flat_map(|(path, operations)| {
                let methods = operations.as_object().unwrap().keys();
                methods.map(move |method| (path.clone(), method.clone()))
            })
            .collect();
        assert_eq!(own, described);
    }
}
