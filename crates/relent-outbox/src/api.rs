//! HTTP API to operate an outbox, with a web page for operators and metrics.
//!
//! Programs enqueue messages and register endpoints. Operators see which messages are stuck and why, and resend them.
//! The routes are described in OpenAPI at `/openapi.json`: see [`OPENAPI`].
//!
//! | route | authentication |
//! |---|---|
//! | `/v1/…`, `/metrics` | `Authorization: Bearer TOKEN` |
//! | `/v1/messages/{id}/content` | the [content token](Api::content_token) |
//! | `/` and the pages below it | the token in a form, then a cookie that is `HttpOnly` and `SameSite=Strict` |
//! | `/openapi.json`, `/health`, `/login` | none |
//!
//! Secrets are write-only. Invalid input is refused with a description.
//!
//! The bodies of concurrent requests, except those up to 8 KiB, hold at most 64 MiB. A request beyond that waits for
//! up to 30 s before its body is read, and then gets 503.
//!
//! The API speaks HTTP without TLS: bind it to loopback, or to a private network behind a TLS proxy.

use std::pin::pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, post, put};
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;

use crate::store::Store;

mod access;
mod contents;
mod endpoints;
mod limits;
mod messages;
mod metrics;
mod object;
mod page;
mod response;
mod sessions;
mod state;
mod token;
mod wait;
mod write_timeout;

pub use limits::{MAX_BATCH, MAX_BODY};
pub use response::OPENAPI;
pub use state::Api;
pub use token::{InvalidToken, Token};

use limits::{MAX_FORM, REQUEST_TIMEOUT};
use state::Route;
use write_timeout::WriteTimeout;

impl<S: Store> Api<S> {
    /// Converts it to a router, to be merged with others.
    pub fn into_router(self) -> Router {
        let shared = Arc::new(self);
        let router = |routes: Vec<Route<S>>| {
            let routes = routes.into_iter();
            routes.fold(Router::new(), |router, (_, path, handlers)| {
                router.route(path, handlers)
            })
        };
        // An operator who signs in has no token yet.
        let page = router(page::routes()).layer(DefaultBodyLimit::max(MAX_FORM));
        router(routes())
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .merge(page)
            .fallback(response::not_found)
            .method_not_allowed_fallback(response::method_not_allowed)
            .layer(from_fn_with_state(shared.clone(), access::guard))
            .with_state(shared)
    }

    /// Serves requests until `shutdown`, and then those that are in progress. The header of a request may take 30 s,
    /// and so may the rest. A client that reads nothing of a response for 30 s loses the connection.
    pub async fn serve(self, mut listener: TcpListener, shutdown: impl Future<Output = ()> + Send) {
        let router = self.into_router();
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(REQUEST_TIMEOUT);
        let connections = GracefulShutdown::new();
        let mut shutdown = pin!(shutdown);
        loop {
            let (stream, _) = tokio::select! {
                accepted = Listener::accept(&mut listener) => accepted,
                () = &mut shutdown => break,
            };
            let service = TowerToHyperService::new(router.clone());
            let stream = TokioIo::new(WriteTimeout::new(stream, REQUEST_TIMEOUT));
            let connection = http.serve_connection(stream, service);
            // The client knows of the failure.
            let connection = connections.watch(connection);
            tokio::spawn(async move { drop(connection.await) });
        }
        drop(listener);
        connections.shutdown().await;
    }
}

/// The routes that [`OPENAPI`] describes: method, path and handlers.
fn routes<S: Store>() -> Vec<Route<S>> {
    vec![
        ("get", "/health", get(response::health)),
        ("get", "/openapi.json", get(response::openapi)),
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
            "post",
            "/v1/endpoints/{name}/secrets",
            post(endpoints::add_secret::<S>),
        ),
        (
            "delete",
            "/v1/endpoints/{name}/secrets/{key}",
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
    use std::time::Duration;

    use serde_json::Value;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::Instant;

    use super::*;
    use crate::secrets::Secrets;
    use crate::store::Sqlite;

    /// A client that stops in the middle of a request loses the connection, with a response if the header was complete.
    #[tokio::test(start_paused = true)]
    async fn a_slow_client_cannot_keep_an_api_connection() {
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
            // Also an idle connection after a response.
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
                took >= REQUEST_TIMEOUT && took < 2 * REQUEST_TIMEOUT + Duration::from_secs(1),
                "{sent:?}: {took:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_cannot_keep_an_api_connection() {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open(directory.path().join("outbox.db")).unwrap();
        let api = Api::new(store, Secrets::default(), Token::new());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(api.serve(listener, std::future::pending()));
        let mut stream = TcpStream::connect(address).await.unwrap();
        // More than the buffers of the connection hold.
        let requests = (64 << 20) / OPENAPI.len();
        let request = "GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n";
        stream
            .write_all(request.repeat(requests).as_bytes())
            .await
            .unwrap();
        tokio::time::sleep(2 * REQUEST_TIMEOUT).await;
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard).await;
        assert!(heard.len() < requests * OPENAPI.len(), "{}", heard.len());
    }

    #[tokio::test]
    async fn request_bodies_share_a_limit_of_memory_and_short_ones_do_not_wait() {
        use std::sync::atomic::{AtomicUsize, Ordering};

        use axum::body::{Body, Bytes};
        use axum::http::Request;
        use tower_service::Service;

        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open(directory.path().join("outbox.db")).unwrap();
        let token = Token::new();
        let router = Api::new(store, Secrets::default(), token.clone()).into_router();
        let call = |body: Body| {
            let request = Request::post("/v1/messages")
                .header("authorization", format!("Bearer {}", token.as_str()))
                .body(body);
            let mut router = router.clone();
            async move {
                router
                    .call(request.unwrap())
                    .await
                    .unwrap()
                    .status()
                    .as_u16()
            }
        };
        // Bodies of unknown length, whose first byte counts that they are read. They never end.
        let read = Arc::new(AtomicUsize::new(0));
        let endless = || {
            let read = Arc::clone(&read);
            let mut began = false;
            Body::from_stream(futures_util::stream::poll_fn(move |_| {
                if !std::mem::replace(&mut began, true) {
                    read.fetch_add(1, Ordering::Relaxed);
                    return std::task::Poll::Ready(Some(Ok::<_, std::io::Error>(Bytes::from("["))));
                }
                std::task::Poll::Pending
            }))
        };
        let mut uploads: Vec<_> = (0..6).map(|_| tokio::spawn(call(endless()))).collect();
        while read.load(Ordering::Relaxed) < 4 {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            call(Body::from("{")).await,
            400,
            "a short body does not wait"
        );
        assert_eq!(read.load(Ordering::Relaxed), 4);
        uploads.remove(0).abort();
        while read.load(Ordering::Relaxed) < 5 {
            tokio::task::yield_now().await;
        }
        assert_eq!(call(Body::from("{")).await, 400);
        assert_eq!(read.load(Ordering::Relaxed), 5);
        uploads.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn endpoints_that_need_attention_come_first_on_the_page() {
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
    fn openapi_describes_exactly_the_routes_of_the_api() {
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
