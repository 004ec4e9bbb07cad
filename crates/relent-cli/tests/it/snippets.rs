//! Compiles the Rust snippets of the README and of `docs/`.
//!
//! This file contains each line of a snippet as in its document, with the code that it assumes. Pages in
//! the folders of crates are not included: their snippets are doctests.
#![allow(
    dead_code,
    unused_imports,
    unused_variables,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::redundant_closure,
    clippy::unused_io_amount,
    reason = "as documents write it"
)]

use std::fs;

use crate::documents::{root, with_suffix};

type Any = Box<dyn std::error::Error>;

#[derive(Debug)]
enum MyError {
    NoAnswer,
}

async fn fetch() -> std::io::Result<u32> {
    Ok(17)
}

#[rustfmt::skip]
mod start {
    use super::*;

    async fn first() -> Result<(), Any> {
        use relent::{Destination, Policy, retry};

        let answer = retry(Policy::STANDARD, || fetch()).await?;

        let orders = Destination::new(Policy::STANDARD);
        let answer = orders.retry(|| fetch()).await?;
        Ok(())
    }

    async fn an_error() -> Result<(), Any> {
        use relent::{Policy, retry};

        let order = retry(Policy::STANDARD, fetch).await?;
        Ok(())
    }

    async fn a_boxed_error() -> Result<(), Any> {
        use relent::{Policy, retry};

        async fn fetch() -> Result<u32, Any> {
            Ok(17)
        }
        let order = retry(Policy::STANDARD, fetch).or_last_error().await?;
        Ok(())
    }

    async fn an_enum() -> Result<(), MyError> {
        use relent::{Policy, retry};

        async fn fetch() -> Result<u32, MyError> {
            Err(MyError::NoAnswer)
        }
        let order = retry(Policy::STANDARD, fetch).or_last_error_else(|_| MyError::NoAnswer).await?;
        Ok(())
    }

    fn spawned() {
        use relent::{Policy, retry};

        let order = tokio::spawn(retry(Policy::STANDARD, fetch));
    }

    async fn shared() -> Result<(), Any> {
        use relent::{Destination, Policy, retry};

        let orders = Destination::new(Policy::STANDARD);

        let order = retry(Policy::STANDARD, fetch).destination(&orders).await?;
        Ok(())
    }

    mod of_ones_own {
        use std::io;

        use super::fetch;

        use relent::{Backoff, Policy, retry};
        use std::time::Duration;

        static POLICY: Policy = Policy::builder(Backoff::exponential(Duration::from_millis(100)))
            .max_delay(Duration::from_secs(5))
            .max_retries(4)
            .deadline(Duration::from_secs(10))
            .build_const();

        async fn call() -> Result<(), super::Any> {
            let order = retry(&POLICY, fetch)
                .when(|error: &io::Error| error.kind() == io::ErrorKind::ConnectionReset)
                .notify(|notice| log::warn!("{notice}"))
                .await?;
            Ok(())
        }
    }

    async fn from_a_file() -> Result<(), Any> {
        use relent::{NamedPolicy, retry};

        let policy = NamedPolicy::load("policy.toml")?.policy;
        let order = retry(&policy, fetch).await?;
        Ok(())
    }

    async fn with_limits() -> Result<(), Any> {
        use relent::{Destination, Policy};
        use std::time::Duration;

        let policy = Policy::STANDARD.clone().into_builder()
            .deadline(Duration::from_secs(10))
            .attempt_timeout(Duration::from_secs(1))
            .build()?;
        let orders = Destination::new(policy);

        let answer = orders.retry(|| fetch()).await?;
        Ok(())
    }
}

#[rustfmt::skip]
mod whole_program {
    use relent::{Policy, retry};
    use std::io;
    use std::sync::atomic::{AtomicU32, Ordering};

    static CALLS: AtomicU32 = AtomicU32::new(0);

    async fn fetch() -> io::Result<u32> {
        match CALLS.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Err(io::ErrorKind::ConnectionReset.into()),
            _ => Ok(17),
        }
    }

    #[tokio::main]
    async fn main() -> Result<(), Box<dyn std::error::Error>> {
        let order = retry(Policy::STANDARD, fetch)
            .notify(|notice| eprintln!("{notice}"))
            .await?;
        println!("order {order}");
        Ok(())
    }
}

#[rustfmt::skip]
mod http_client {
    use super::Any;

    async fn client(url: &str) -> Result<(), Any> {
        use relent::Policy;
        use relent_reqwest::{Client, IdempotencyKey};

        let client = Client::new(Policy::STANDARD)?;
        let orders = client.get(url).send().await?;

        // Repeated even if it may have been done: the key lets the service drop the duplicate.
        let key = IdempotencyKey::new();
        let paid = client.post(url).body("amount=5").idempotency_key(key).send().await?;
        Ok(())
    }

    async fn first(url: &str) -> Result<(), Any> {
        use relent::Policy;
        use relent_reqwest::Client;

        let client = Client::new(Policy::STANDARD)?;
        let orders = client.get(url).send().await?;
        Ok(())
    }

    async fn with_a_deadline(url: &str) -> Result<(), Any> {
        use relent::Policy;
        use relent_reqwest::Client;
        use std::time::Duration;

        let policy = Policy::STANDARD.clone().into_builder().deadline(Duration::from_secs(10)).build()?;
        let client = Client::new(Policy::STANDARD)?;
        let orders = client.get(url).policy(policy).send().await?;
        Ok(())
    }

    fn layer<S>(client: S) {
        use relent::Policy;
        use relent_http::RetryLayer;
        use tower_layer::Layer;

        let client = RetryLayer::new(Policy::STANDARD).layer(client);
    }
}

#[rustfmt::skip]
mod client_test {
    use relent::{Backoff, Policy};
    use relent_reqwest::{Client, default_builder};
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    /// Starts a server on this machine that sends a response with each status in turn, and returns its URL.
    fn server(statuses: &'static [u16]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for status in statuses {
                let (mut connection, _) = listener.accept().unwrap();
                let _ = connection.read(&mut [0; 8192]).unwrap();
                let end = "content-length: 0\r\nconnection: close\r\n\r\n";
                write!(connection, "HTTP/1.1 {status} Test\r\n{end}").unwrap();
            }
        });
        url
    }

    #[tokio::test]
    async fn the_client_retries_a_503() {
        let policy = Policy::builder(Backoff::constant(Duration::from_millis(1)))
            .max_retries(3)
            .build()
            .unwrap();
        let client = Client::from_builder(|| default_builder().no_proxy(), policy).unwrap();
        let response = client.get(server(&[503, 200])).send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.attempts(), 2);
    }
}

#[rustfmt::skip]
mod virtual_clock_test {
    use relent::{Backoff, Jitter, Policy, VirtualClock, blocking};
    use std::time::Duration;

    #[test]
    fn no_delay_exceeds_a_minute() {
        let policy = Policy::builder(Backoff::exponential(Duration::from_secs(60)))
            .jitter(Jitter::None)
            .build()
            .unwrap();
        let clock = VirtualClock::new();
        let result = blocking::retry(&policy, || Err::<(), _>("down")).clock(&clock).run();
        assert!(result.is_err());
        assert_eq!(clock.sleeps(), [60, 60, 60].map(Duration::from_secs));
    }
}

#[rustfmt::skip]
mod paused_time_test {
    use relent::{Backoff, Jitter, Policy, StopReason, retry};
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn gives_up_after_seven_seconds() {
        let policy = Policy::builder(Backoff::exponential(Duration::from_secs(1)))
            .jitter(Jitter::None)
            .max_retries(3)
            .build()
            .unwrap();
        let gave_up = retry(&policy, || async { Err::<(), _>("down") }).await.unwrap_err();
        assert_eq!(gave_up.reason(), StopReason::RetriesExhausted);
        assert_eq!((gave_up.attempts(), gave_up.elapsed()), (4, Duration::from_secs(7)));
    }
}

#[rustfmt::skip]
mod layer_test {
    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::Empty;
    use relent::{Backoff, Jitter, Policy};
    use relent_http::{BoxError, RetryLayer};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;
    use tower::{Layer, ServiceExt, service_fn};

    #[tokio::test(start_paused = true)]
    async fn retries_a_503_after_a_second() {
        let policy = Policy::builder(Backoff::constant(Duration::from_secs(1)))
            .jitter(Jitter::None)
            .build()
            .unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let service = service_fn(move |_: Request<_>| {
            let status = [503, 200][count.fetch_add(1, Ordering::Relaxed)];
            async move {
                let response = Response::builder().status(status).body(Empty::<Bytes>::new())?;
                Ok::<_, BoxError>(response)
            }
        });
        let request = Request::get("http://service/").body(Empty::<Bytes>::new()).unwrap();
        let start = tokio::time::Instant::now();
        let response = RetryLayer::new(policy).layer(service).oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(start.elapsed() >= Duration::from_secs(1));
    }
}

#[rustfmt::skip]
mod jitter_test {
    use relent::random::FixedRandom;
    use relent::{Backoff, Jitter, Policy};
    use std::time::Duration;

    #[test]
    fn the_first_delay_is_at_most_two_seconds() {
        let policy = Policy::builder(Backoff::constant(Duration::from_secs(2)))
            .jitter(Jitter::Full)
            .build()
            .unwrap();
        assert_eq!(policy.waits(FixedRandom::at(0.5)).next(), Some(Duration::from_secs(1)));
        assert_eq!(policy.waits(FixedRandom::at(1.0)).next(), Some(Duration::from_secs(2)));
    }
}

#[rustfmt::skip]
mod server {
    use axum::Router;
    use axum::extract::Request;
    use axum::http::request::Parts;
    use axum::middleware::{Next, from_fn};
    use axum::response::Response;
    use axum::routing::post;
    use relent_server::ServerLayer;
    use relent_server::admission::{AdmissionLayer, LimiterConfig, Quota};
    use relent_server::idempotency::IdempotencyLayer;
    use relent_server::store::Sqlite;
    use std::error::Error;
    use std::time::Duration;
    use tokio::net::TcpListener;

    #[derive(Clone)]
    struct Account { id: u64 }

    /// Stands for your authentication: it finds the account of the caller, or responds with 401.
    async fn authenticate(mut request: Request, next: Next) -> Response {
        request.extensions_mut().insert(Account { id: 17 });
        next.run(request).await
    }

    /// Stands for your handler.
    async fn pay(amount: String) -> String {
        format!("paid {amount}\n")
    }

    #[tokio::main]
    async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
        let keys = Sqlite::open("keys.db")?;
        let keyed = IdempotencyLayer::new(keys, |request| {
            request.extensions.get::<Account>().map(|account| account.id.to_string())
        });
        let hundred_a_second = LimiterConfig::new(100, Duration::from_secs(1));
        let account = |request: &Parts| request.extensions.get::<Account>().map(|account| account.id);
        let limits = AdmissionLayer::new()
            .quota(Quota::new("account", hundred_a_second)?.key(account))
            .caller(account);
        let app = Router::new()
            .route("/payments", post(pay))
            .layer(ServerLayer::new(keyed).admission(limits))
            .layer(from_fn(authenticate));
        let listener = TcpListener::bind("127.0.0.1:3000").await?;
        axum::serve(listener, app).await?;
        Ok(())
    }
}

#[rustfmt::skip]
mod webhooks {
    use std::error::Error;

    use axum::http::StatusCode;
    use axum::response::{IntoResponse, Response};
    use axum::routing::post;
    use axum::{Extension, Router};
    use relent_http::webhook::{Verifier, VerifyingKey};
    use relent_server::store::Sqlite;
    use relent_server::transactional::{Transactional, WorkError};
    use relent_server::webhook::{Delivery, WebhookLayer};
    use tokio::net::TcpListener;

    /// Stores the payload. It commits together with the record of the message.
    async fn notified(
        Extension(once): Extension<Transactional<Sqlite>>,
        Extension(delivery): Extension<Delivery>,
    ) -> Response {
        let body = String::from_utf8_lossy(delivery.body()).into_owned();
        let handled = once.run(move |transaction| {
            transaction.execute("INSERT INTO notifications VALUES (?1)", [&body])?;
            Ok::<_, WorkError>(axum::http::Response::new("handled"))
        });
        match handled.await {
            Ok(response) => response.into_response(),
            // Nothing was written, and the sender repeats the message.
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    }

    #[tokio::main]
    async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
        let store = Sqlite::open_with("shop.db", |connection| {
            connection.execute_batch("CREATE TABLE IF NOT EXISTS notifications (body TEXT NOT NULL)")
        })?;
        let key: VerifyingKey = std::fs::read_to_string("shop.key")?.trim().parse()?;
        let layer = WebhookLayer::new(store, "acquirer", Verifier::new([key])).transactional();
        let app = Router::new().route("/notifications", post(notified)).layer(layer);
        let listener = TcpListener::bind("127.0.0.1:3000").await?;
        axum::serve(listener, app).await?;
        Ok(())
    }
}

#[rustfmt::skip]
mod outbox {
    use relent_outbox::endpoint::Endpoint;
    use relent_outbox::message::NewMessage;
    use relent_outbox::store::{Sqlite, Store};

    use super::Any;

    async fn enqueue() -> Result<(), Any> {
        let store = Sqlite::open_with("shop.db", |connection| {
            connection.execute_batch("CREATE TABLE IF NOT EXISTS orders (id INTEGER, paid BOOLEAN)")
        })?;
        store.put_endpoint(Endpoint::new("shop", "https://shop.example/notify")).await?;

        // The order and the message, or neither.
        let enqueued = store.writer().run(|connection| {
            connection.execute("INSERT INTO orders VALUES (17, true)", [])?;
            Sqlite::enqueue_in(connection, &[NewMessage::new("shop", "order-17-paid", r#"{"order":17}"#)])
        }).await?;
        Ok(())
    }
}

/// The lines of code, trimmed and without comments, because a document may be indented differently.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let code = text.lines().filter_map(|line| line.split("//").next());
    code.map(str::trim).filter(|line| !line.is_empty())
}

/// The first line of the snippet that is not compiled here, in order. Lines of one snippet may be in several
/// functions, such as a line for each type of error.
fn not_compiled(snippet: &str) -> Option<&str> {
    let mut compiled = lines(include_str!("snippets.rs"));
    lines(snippet).find(|line| !compiled.any(|other| other == *line))
}

#[test]
fn every_rust_snippet_of_the_documents_is_compiled_here() {
    let mut found = 0;
    let readme = root().join("README.md");
    for path in [vec![readme], with_suffix(&root().join("docs"), ".md")].concat() {
        let text = fs::read_to_string(&path).unwrap();
        for snippet in text.split("```rust\n").skip(1) {
            let (snippet, _) = snippet.split_once("```").unwrap();
            let missing = not_compiled(snippet);
            let path = path.display();
            assert_eq!(
                missing, None,
                "{path}: write this snippet into tests/it/snippets.rs, too:\n{snippet}"
            );
            found += 1;
        }
    }
    assert!(found >= 10, "{found} snippets");
}
