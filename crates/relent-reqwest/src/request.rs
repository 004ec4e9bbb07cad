//! The request builder.

use std::error::Error as StdError;
use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response as Head, Version};
use relent::Summary;
use relent_core::destination::Hedge;
use relent_core::{Pattern, Policy};
use relent_http::IdempotencyKey;
use reqwest::IntoUrl;

use crate::attempt_failure::AttemptError;
use crate::body::Body;
use crate::call::ClientCall;
use crate::client::Client;
use crate::error::Error;
use crate::min_rate::MinRate;
use crate::read_timeout::ReadTimeout;
use crate::request_options::{RequestOptions, build_error};
use crate::request_template::Template;
use crate::response::Response;
use crate::retry_options::RetryOptions;
use crate::sink::Sink;
use crate::whole_body::{self, Receiving};

/// Builder of one request: reqwest's builder, plus the retry options of this request.
///
/// [`send`](Self::send) returns the errors of all parts before anything is sent.
///
/// ```no_run
/// use std::time::Duration;
/// use relent::Policy;
/// use relent_reqwest::{Client, IdempotencyKey};
///
/// # async fn example() -> Result<(), relent_reqwest::Error> {
/// # let client: Client = unimplemented!();
/// let paid = client
///     .post("https://example.com/payments")
///     .bearer_auth("token")
///     .body("amount=5")
///     .idempotency_key(IdempotencyKey::new())
///     .policy(Policy::PATIENT.clone())
///     .timeout(Duration::from_secs(10))
///     .send()
///     .await?
///     .error_for_status()?
///     .text()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a request does nothing until it is sent"]
pub struct RequestBuilder {
    http: reqwest::RequestBuilder,
    request_options: RequestOptions,
}

impl Client {
    /// Starts a GET request.
    pub fn get(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::GET, url)
    }

    /// Starts a HEAD request.
    pub fn head(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::HEAD, url)
    }

    /// Starts a POST request. It is repeated only if the failed attempt was not processed, or if it may run twice: if it
    /// has an [idempotency key](RequestBuilder::idempotency_key) or a precondition, or is declared
    /// [repeatable](RequestBuilder::repeatable), or the policy assumes that of all requests.
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
        RequestBuilder::new(self.clone(), self.0.http.request(method, url))
    }
}

impl RequestBuilder {
    fn new(client: Client, http: reqwest::RequestBuilder) -> Self {
        let request_options = RequestOptions::new(client, None);
        Self {
            http,
            request_options,
        }
    }

    /// Adds a header field.
    pub fn header<K, V>(mut self, name: K, value: V) -> Self
    where
        HeaderName: TryFrom<K>,
        <HeaderName as TryFrom<K>>::Error: Into<http::Error>,
        HeaderValue: TryFrom<V>,
        <HeaderValue as TryFrom<V>>::Error: Into<http::Error>,
    {
        self.http = self.http.header(name, value);
        self
    }

    /// Sets these header fields, and replaces existing ones of the same names.
    pub fn headers(mut self, headers: HeaderMap) -> Self {
        self.http = self.http.headers(headers);
        self
    }

    /// Adds these parameters to the query of the URL.
    #[cfg(feature = "query")]
    pub fn query<T: serde::Serialize + ?Sized>(mut self, query: &T) -> Self {
        self.http = self.http.query(query);
        self
    }

    /// Sends this value as JSON.
    #[cfg(feature = "json")]
    pub fn json<T: serde::Serialize + ?Sized>(mut self, json: &T) -> Self {
        self.http = self.http.json(json);
        self.request_options.body = None;
        self.request_options.multipart = false;
        self
    }

    /// Sends this value as a form.
    #[cfg(feature = "form")]
    pub fn form<T: serde::Serialize + ?Sized>(mut self, form: &T) -> Self {
        self.http = self.http.form(form);
        self.request_options.body = None;
        self.request_options.multipart = false;
        self
    }

    /// Sends this form as `multipart/form-data`.
    ///
    /// If all parts are in memory (texts and bytes) and the form is no longer than [`Client::body_cap`] (64 KiB by
    /// default), it is retried and hedged like bytes. Raise the cap for larger forms. A longer form, or one with a
    /// streamed part, is sent as a stream. It is retried only if all of it was kept; otherwise the call ends with
    /// [`StopReason::NotReplayable`](relent::StopReason::NotReplayable).
    ///
    /// All attempts of a call send the same bytes. But each `Form` has a random boundary, so another call with the same
    /// idempotency key has another body. `relent-server` ignores the boundary; a server that compares it rejects that
    /// call with 422.
    #[cfg(feature = "multipart")]
    pub fn multipart(mut self, form: reqwest::multipart::Form) -> Self {
        self.http = self.http.multipart(form);
        self.request_options.body = None;
        self.request_options.multipart = true;
        self
    }

    /// Sends this body: bytes, a [file](Body::file), a [stream that can be made
    /// again](Body::made_by), or a reqwest body. A reqwest stream is kept while it is sent, up to
    /// [`Client::body_cap`], and is retried only if all of it was kept.
    pub fn body(mut self, body: impl Into<Body>) -> Self {
        self.request_options.body = Some(body.into());
        self
    }

    /// Authenticates with a bearer token.
    pub fn bearer_auth(mut self, token: impl fmt::Display) -> Self {
        self.http = self.http.bearer_auth(token);
        self
    }

    /// Authenticates with a name and a password (HTTP Basic).
    pub fn basic_auth(
        mut self,
        name: impl fmt::Display,
        password: Option<impl fmt::Display>,
    ) -> Self {
        self.http = self.http.basic_auth(name, password);
        self
    }

    /// Sets the time limit of each attempt, from connecting to the end of the response body, as in reqwest. To limit
    /// all attempts together, give the policy a [`deadline`](relent_core::PolicyBuilder::deadline).
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.http = self.http.timeout(limit);
        self
    }

    /// Ends an attempt, or the reading of its response body, when the server is silent for this long; see
    /// [`Client::read_timeout`].
    pub fn read_timeout(self, silence: Duration) -> Self {
        self.change(move |options| options.read_timeout = ReadTimeout::After(silence))
    }

    /// Waits for a silent server without a limit; see [`Client::read_timeout`].
    pub fn no_read_timeout(self) -> Self {
        self.change(|options| options.read_timeout = ReadTimeout::Never)
    }

    /// Sets the HTTP version.
    pub fn version(mut self, version: Version) -> Self {
        self.http = self.http.version(version);
        self
    }

    /// Uses this policy for the request. Budget, circuit breaker, rate limit and throttle stay those of the
    /// destination. [`no_retry`](Self::no_retry), [`no_hedge`](Self::no_hedge) and [`retry_on`](Self::retry_on)
    /// change it, also if they were called before.
    pub fn policy(mut self, policy: impl Into<Arc<Policy>>) -> Self {
        self.request_options.policy = Some(policy.into());
        self
    }

    /// Retries exactly these failures, statuses or [patterns](Pattern), instead of those that the policy lists and
    /// instead of [`when`](Self::when).
    ///
    /// It never makes a request repeatable: a request that may have taken effect is retried only if it may run twice.
    pub fn retry_on<P: Into<Pattern>>(self, failures: impl IntoIterator<Item = P>) -> Self {
        let failures: Vec<Pattern> = failures.into_iter().map(Into::into).collect();
        self.change(|options| options.retry_on(failures))
    }

    /// Sets the function that decides whether to retry.
    ///
    /// It receives the number of the attempt (from 0), and either its error or its response head. It is called for
    /// every response, including a 200. The limits of the policy still apply, as do a no-retry marker and a
    /// `Retry-After`. A request that may have taken effect is repeated only if it may run twice. For the circuit
    /// breaker, a refused 200 is a response of a healthy service.
    pub fn when(
        self,
        when: impl Fn(u32, Option<&AttemptError>, Option<&reqwest::Response>) -> bool
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.change(|options| options.when = Some(Arc::new(when)))
    }

    /// Sets the function that computes the delay, instead of the policy's backoff. Its arguments are those of
    /// [`when`](Self::when). The cap, jitter, server hints and limits of the policy still apply.
    pub fn delay(
        self,
        delay: impl Fn(u32, Option<&AttemptError>, Option<&reqwest::Response>) -> Duration
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.change(|options| options.delay = Some(Arc::new(delay)))
    }

    /// Chooses the URL of each attempt; see [`Client::reroute`].
    pub fn reroute(self, route: impl Fn(u32, &mut reqwest::Url) + Send + Sync + 'static) -> Self {
        self.change(|options| options.reroute = Some(Arc::new(route)))
    }

    /// Hedges the request with this, instead of the `[hedge]` of the policy; see [`Client`].
    pub fn hedge(self, hedge: impl Into<Arc<Hedge>>) -> Self {
        let hedge = hedge.into();
        self.change(|options| options.hedge = Some(hedge))
    }

    /// Turns hedging off for this request.
    pub fn no_hedge(self) -> Self {
        self.change(|options| {
            options.hedge = None;
            options.change_policy(Policy::without_hedge);
        })
    }

    /// Declares whether the request may run twice, regardless of its method, its headers and the policy. With `true`
    /// you promise that a duplicate is harmless. Use `false` for a GET that has side effects.
    pub fn repeatable(self, repeatable: bool) -> Self {
        self.change(move |options| options.repeatable = repeatable.into())
    }

    /// Sends this idempotency key with every attempt, so the request may run twice. Use a
    /// [new key](IdempotencyKey::new) or your own; it replaces a key in the headers.
    pub fn idempotency_key<K>(mut self, key: K) -> Self
    where
        K: TryInto<IdempotencyKey>,
        K::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        match key.try_into() {
            Ok(key) => self.request_options.key = Some(key),
            Err(error) => self.request_options.build_error = Some(error.into()),
        }
        self
    }

    /// Makes one attempt only.
    pub fn no_retry(self) -> Self {
        self.change(|options| options.change_policy(Policy::without_retries))
    }

    /// Makes reading the response body a part of each attempt. If the body is cut short, the attempt is retried, and
    /// resumes where the body ended if possible (see [`Client::download`]). The body is kept in memory. Such
    /// attempts are not hedged.
    pub const fn whole_body(mut self) -> Self {
        self.request_options.whole_body = Some(whole_body::receive);
        self
    }

    /// Cuts off an attempt that includes its body ([`download`](Self::download), [`whole_body`](Self::whole_body)) if
    /// fewer than `bytes` of it arrive `within` this time. No limit by default; see
    /// [`Download::min_rate`](crate::Download::min_rate).
    pub fn min_rate(self, bytes: u64, within: Duration) -> Self {
        self.change(move |options| options.rate = Some(MinRate { bytes, within }))
    }

    fn change(mut self, change: impl FnOnce(&mut RetryOptions) + Send + 'static) -> Self {
        self.request_options.changes.push(Box::new(change));
        self
    }

    /// Builds the request for [`Client::send`] or [`Client::download`]. The result does not contain the retry options,
    /// [`timeout`](Self::timeout) and [`whole_body`](Self::whole_body).
    ///
    /// # Errors
    /// [`Error::Request`] if a part of the request is invalid.
    pub fn build(self) -> Result<Request<Body>, Error> {
        let mut head = self.http.build().map_err(build_error)?;
        let (_, _, body) = self.request_options.resolve(&mut head)?;
        let uri = head.url().as_str().parse::<http::Uri>();
        let mut request = Request::new(body);
        *request.uri_mut() = uri.map_err(|error| Error::Request(error.into()))?;
        *request.method_mut() = head.method().clone();
        *request.version_mut() = head.version();
        *request.headers_mut() = std::mem::take(head.headers_mut());
        Ok(request)
    }

    /// Makes attempts until a response head arrives that is not a failure, or until the policy stops. With
    /// [`whole_body`](Self::whole_body) each attempt includes the body.
    ///
    /// The result is the last real outcome. If the last attempt had a response, that response is `Ok`, whether its
    /// status is 200 or 503.
    ///
    /// # Errors
    /// [`Error::Request`] if nothing could be sent; [`Error::GaveUp`] if the last attempt had no response.
    pub fn send(self) -> impl Future<Output = Result<Response, Error>> + Send {
        // Boxed, because the attempts of a request need much space, and futures are moved.
        let receiving: Receiving = match self.request_options.whole_body {
            Some(receive) => match self.prepare() {
                Ok((client, options, template)) => receive(client, options, template),
                Err(error) => Box::pin(ready(Err(error))),
            },
            None => match ClientCall::new(self.http.build(), self.request_options) {
                Ok(mut call) => Box::pin(async move { call.run().await }),
                Err(error) => Box::pin(ready(Err(error))),
            },
        };
        receiving
    }

    /// Makes attempts until the whole body is in `sink`, or until the policy stops; see [`Client::download`].
    ///
    /// # Errors
    /// [`Error::Request`] if nothing could be sent; [`Error::GaveUp`] if the last attempt had no complete response.
    pub async fn download<S: Sink>(self, sink: &mut S) -> Result<(Head<()>, Summary), Error> {
        let (client, options, template) = self.prepare()?;
        Ok(client.receive(template, options, sink).await?)
    }

    /// The client, options and template of the attempts.
    pub(crate) fn prepare(self) -> Result<(Client, Arc<RetryOptions>, Template), Error> {
        let mut built = self.http.build().map_err(build_error)?;
        let (client, options, body) = self.request_options.resolve(&mut built)?;
        let template = Template::new(&mut built, body, client.0.body_cap);
        Ok((client, options, template))
    }
}

/// Omits the request, because reqwest shows its header values.
impl fmt::Debug for RequestBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBuilder").finish_non_exhaustive()
    }
}
