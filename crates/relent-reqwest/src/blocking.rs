//! Blocking client for programs without async code (feature `blocking`).
//!
//! ```no_run
//! use relent::Policy;
//! use relent_reqwest::blocking::Client;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(Policy::STANDARD)?;
//! let response = client.get("https://example.com/").send()?;
//! println!("{}, attempts: {}", response.status(), response.attempts());
//! println!("{}", response.error_for_status()?.text()?);
//! # Ok(())
//! # }
//! ```
//!
//! Requests run on a background thread of the client, and each call here blocks its own thread until the request
//! ends. A panic of a hook reaches that thread. In an async task use [`Client`](crate::Client).

use std::cell::Cell;
use std::fmt;
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use relent::Summary;
use relent_core::Policy;
use relent_http::IdempotencyKey;
use reqwest::IntoUrl;
use tokio::runtime::Runtime;
use tokio::task::block_in_place;

use crate::body::Body;
use crate::error::Error;

/// Blocking HTTP client that sends each request as often as its policy allows; see [`Client`](crate::Client).
///
/// Clones share connections, options and the background thread.
#[derive(Clone, Debug)]
pub struct Client {
    client: crate::Client,
    runtime_thread: Arc<RuntimeThread>,
}

thread_local! {
    /// Whether this is the runtime thread of a blocking client.
    static IS_RUNTIME_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// The runtime thread of the requests. It ends with the last handle.
#[derive(Debug)]
struct RuntimeThread(Option<Runtime>);

impl Drop for RuntimeThread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Blocking shutdown is not allowed in an async context.
            runtime.shutdown_background();
        }
    }
}

impl RuntimeThread {
    fn start() -> io::Result<Arc<Self>> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("relent-reqwest")
            .on_thread_start(|| IS_RUNTIME_THREAD.set(true))
            .enable_all()
            .build()?;
        Ok(Arc::new(Self(Some(runtime))))
    }

    /// Spawns the future on the runtime thread and blocks until it ends. Safe to call on any thread.
    fn wait<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let (done, until_done) = sync_channel(1);
        if let Some(runtime) = &self.0 {
            runtime.spawn(async move {
                let ended = tokio::spawn(future).await;
                // Sending fails only if the waiting thread has ended.
                let _ = done.send(ended);
            });
        }
        // A hook of a request may make requests itself. It waits on the runtime thread, which another one replaces.
        let received = match IS_RUNTIME_THREAD.get() {
            true => block_in_place(|| until_done.recv()),
            false => until_done.recv(),
        };
        let ended = || Error::Request("the thread of the client has ended".into());
        match received.map_err(|_| ended())? {
            Ok(ended) => ended,
            // A hook has panicked. The request may have been sent, and this error would deny that.
            Err(cut_off) => match cut_off.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => Err(ended()),
            },
        }
    }
}

impl Client {
    /// Creates a client with its own connections and background thread.
    ///
    /// # Errors
    /// If the thread cannot be started, or for the reasons of [`Client::new`](crate::Client::new).
    pub fn new(policy: impl Into<Arc<Policy>>) -> Result<Self, Error> {
        Self::from_client(crate::Client::new(policy).map_err(|error| Error::Request(error.into()))?)
    }

    /// Creates a blocking client from an async client, and keeps its options (routes, keys, limits, read timeout).
    ///
    /// # Errors
    /// [`Error::Request`] if its thread cannot be started.
    ///
    /// ```
    /// use std::time::Duration;
    /// use relent::Policy;
    /// use relent_reqwest::blocking;
    ///
    /// let client = relent_reqwest::Client::new(Policy::STANDARD)?
    ///     .read_timeout(Duration::from_secs(10));
    /// let client = blocking::Client::from_client(client)?;
    /// # drop(client);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_client(client: crate::Client) -> Result<Self, Error> {
        let runtime_thread =
            RuntimeThread::start().map_err(|error| Error::Request(error.into()))?;
        Ok(Self {
            client,
            runtime_thread,
        })
    }

    /// Starts a GET request.
    pub fn get(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::GET, url)
    }

    /// Starts a HEAD request.
    pub fn head(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::HEAD, url)
    }

    /// Starts a POST request; see [`Client::post`](crate::Client::post) for when it is repeated.
    pub fn post(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::POST, url)
    }

    /// Starts a PUT request.
    pub fn put(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::PUT, url)
    }

    /// Starts a PATCH request; see [`post`](Self::post).
    pub fn patch(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::PATCH, url)
    }

    /// Starts a DELETE request.
    pub fn delete(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::DELETE, url)
    }

    /// Starts a request with any method.
    pub fn request(&self, method: Method, url: impl IntoUrl) -> RequestBuilder {
        RequestBuilder {
            builder: self.client.request(method, url),
            runtime_thread: self.runtime_thread.clone(),
        }
    }
}

/// Builder of one request; see [`RequestBuilder`](crate::RequestBuilder).
#[must_use = "a request does nothing until it is sent"]
pub struct RequestBuilder {
    builder: crate::RequestBuilder,
    runtime_thread: Arc<RuntimeThread>,
}

impl RequestBuilder {
    /// Sets options of the async builder that have no method here.
    ///
    /// ```no_run
    /// # fn example(client: relent_reqwest::blocking::Client) -> Result<(), relent_reqwest::Error> {
    /// let search = client.post("https://example.com/search");
    /// let found = search.with(|request| request.repeatable(true).whole_body()).send()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with(self, change: impl FnOnce(crate::RequestBuilder) -> crate::RequestBuilder) -> Self {
        let Self {
            builder,
            runtime_thread,
        } = self;
        let builder = change(builder);
        Self {
            builder,
            runtime_thread,
        }
    }

    /// Adds a header field.
    pub fn header<K, V>(self, name: K, value: V) -> Self
    where
        HeaderName: TryFrom<K>,
        <HeaderName as TryFrom<K>>::Error: Into<http::Error>,
        HeaderValue: TryFrom<V>,
        <HeaderValue as TryFrom<V>>::Error: Into<http::Error>,
    {
        self.with(|builder| builder.header(name, value))
    }

    /// Authenticates with a bearer token.
    pub fn bearer_auth(self, token: impl fmt::Display) -> Self {
        self.with(|builder| builder.bearer_auth(token))
    }

    /// Adds these parameters to the query of the URL.
    #[cfg(feature = "query")]
    pub fn query<T: serde::Serialize + ?Sized>(self, query: &T) -> Self {
        self.with(|builder| builder.query(query))
    }

    /// Sends this value as JSON.
    #[cfg(feature = "json")]
    pub fn json<T: serde::Serialize + ?Sized>(self, json: &T) -> Self {
        self.with(|builder| builder.json(json))
    }

    /// Sends this value as a form.
    #[cfg(feature = "form")]
    pub fn form<T: serde::Serialize + ?Sized>(self, form: &T) -> Self {
        self.with(|builder| builder.form(form))
    }

    /// Sends this body.
    pub fn body(self, body: impl Into<Body>) -> Self {
        self.with(|builder| builder.body(body))
    }

    /// Sets the time limit of each attempt, including the response body.
    pub fn timeout(self, limit: Duration) -> Self {
        self.with(|builder| builder.timeout(limit))
    }

    /// Uses this policy for the request.
    pub fn policy(self, policy: impl Into<Arc<Policy>>) -> Self {
        self.with(|builder| builder.policy(policy))
    }

    /// Sends this idempotency key, so the request may run twice; see
    /// [`RequestBuilder::idempotency_key`](crate::RequestBuilder::idempotency_key).
    pub fn idempotency_key<K>(self, key: K) -> Self
    where
        K: TryInto<IdempotencyKey>,
        K::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.with(|builder| builder.idempotency_key(key))
    }

    /// Waits until a response head arrives that is not a failure, or until the policy stops.
    ///
    /// # Errors
    /// See [`RequestBuilder::send`](crate::RequestBuilder::send).
    pub fn send(self) -> Result<Response, Error> {
        let Self {
            builder,
            runtime_thread,
        } = self;
        // Also built on the runtime thread: that may need the runtime.
        let response = runtime_thread.wait(async move { builder.send().await })?;
        Ok(Response {
            response,
            runtime_thread,
        })
    }
}

impl fmt::Debug for RequestBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.builder.fmt(f)
    }
}

/// The last response to a request, with a summary of the attempts; see [`Response`](crate::Response).
#[derive(Debug)]
pub struct Response {
    response: crate::Response,
    runtime_thread: Arc<RuntimeThread>,
}

impl Response {
    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// The header fields.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Number of attempts, time, and the reason for giving up.
    #[must_use]
    pub const fn summary(&self) -> &Summary {
        self.response.summary()
    }

    /// The number of attempts.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.response.attempts()
    }

    /// The response itself if its status is below 400.
    ///
    /// # Errors
    /// [`Error::Status`] for a status of 400 or above.
    pub fn error_for_status(self) -> Result<Self, Error> {
        let Self {
            response,
            runtime_thread,
        } = self;
        let response = response.error_for_status()?;
        Ok(Self {
            response,
            runtime_thread,
        })
    }

    /// Reads the body as text.
    ///
    /// # Errors
    /// [`Error::Body`] if it cannot be read to its end.
    pub fn text(self) -> Result<String, Error> {
        self.runtime_thread.wait(self.response.text())
    }

    /// Reads the body.
    ///
    /// # Errors
    /// [`Error::Body`] if it cannot be read to its end.
    pub fn bytes(self) -> Result<Bytes, Error> {
        self.runtime_thread.wait(self.response.bytes())
    }

    /// Reads the body as JSON.
    ///
    /// # Errors
    /// [`Error::Body`] if it cannot be read to its end, or is not JSON of this type.
    #[cfg(feature = "json")]
    pub fn json<T: serde::de::DeserializeOwned + Send + 'static>(self) -> Result<T, Error> {
        self.runtime_thread.wait(self.response.json())
    }

    /// Writes the body, and returns its length in bytes.
    ///
    /// # Errors
    /// The error of `writer`; or kind `Other` with an [`Error::Body`] if the body cannot be read to its end.
    pub fn copy_to(self, writer: &mut (impl Write + ?Sized)) -> io::Result<u64> {
        let Self {
            mut response,
            runtime_thread,
        } = self;
        let mut length = 0_u64;
        loop {
            let read = runtime_thread.wait(async move {
                let piece = response.chunk().await?;
                Ok((response, piece))
            });
            let piece;
            (response, piece) = read.map_err(io::Error::other)?;
            let Some(piece) = piece else {
                return Ok(length);
            };
            writer.write_all(&piece)?;
            length += piece.len() as u64;
        }
    }

    /// The async response.
    #[must_use]
    pub fn into_inner(self) -> crate::Response {
        self.response
    }
}
