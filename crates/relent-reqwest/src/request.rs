//! A request in the making.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response as Head, Version};
use relent::Summary;
use relent_core::{Hedge, Pattern, Policy};
use relent_http::IdempotencyKey;
use reqwest::IntoUrl;

use crate::body::Body;
use crate::call::CallFuture;
use crate::call_options::CallOptions;
use crate::client::Client;
use crate::error::Error;
use crate::failed::AttemptError;
use crate::min_rate::Rate;
use crate::plan::{Plan, wrong};
use crate::read_timeout::ReadTimeout;
use crate::request_template::Template;
use crate::response::Response;
use crate::sink::Sink;
use crate::whole_body;

/// A request in the making: reqwest's builder, and how this one is retried.
///
/// What is wrong with a part is told by [`send`](Self::send), before anything is sent.
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
    plan: Plan,
}

impl Client {
    /// A GET request.
    pub fn get(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::GET, url)
    }

    /// A HEAD request.
    pub fn head(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::HEAD, url)
    }

    /// A POST request, which is repeated only after an attempt that was not processed, unless it has
    /// a [key](RequestBuilder::idempotency_key).
    pub fn post(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::POST, url)
    }

    /// A PUT request.
    pub fn put(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::PUT, url)
    }

    /// A PATCH request; see [`post`](Self::post).
    pub fn patch(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::PATCH, url)
    }

    /// A DELETE request.
    pub fn delete(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::DELETE, url)
    }

    /// A request by any method.
    pub fn request(&self, method: Method, url: impl IntoUrl) -> RequestBuilder {
        RequestBuilder::new(self.clone(), self.0.http.request(method, url))
    }
}

impl RequestBuilder {
    fn new(client: Client, http: reqwest::RequestBuilder) -> Self {
        let plan = Plan::new(client, None);
        Self { http, plan }
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

    /// Adds these header fields, in place of those of the same name.
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

    /// Sends this as JSON.
    #[cfg(feature = "json")]
    pub fn json<T: serde::Serialize + ?Sized>(mut self, json: &T) -> Self {
        self.http = self.http.json(json);
        self.plan.body = None;
        self.plan.multipart = false;
        self
    }

    /// Sends this as a form.
    #[cfg(feature = "form")]
    pub fn form<T: serde::Serialize + ?Sized>(mut self, form: &T) -> Self {
        self.http = self.http.form(form);
        self.plan.body = None;
        self.plan.multipart = false;
        self
    }

    /// Sends this as `multipart/form-data`.
    ///
    /// A form whose parts are all in memory (texts and bytes) is sent again like any bytes, and hedged, if it
    /// has no more bytes than [`Client::body_cap`], 64 KiB unless said otherwise: raise the cap for larger
    /// forms. A longer form, and one with a part that streams, goes out as a stream. It is sent again only if
    /// all of it was kept, and if not, the request ends with
    /// [`StopReason::NotReplayable`](relent::StopReason::NotReplayable) in place of a retry.
    #[cfg(feature = "multipart")]
    pub fn multipart(mut self, form: reqwest::multipart::Form) -> Self {
        self.http = self.http.multipart(form);
        self.plan.body = None;
        self.plan.multipart = true;
        self
    }

    /// Sends this body: bytes, a [file](Body::file), a [stream that can be made
    /// again](Body::made_by), or one of reqwest's. If that is a stream, it is kept while it goes out, up
    /// to [`Client::body_cap`], and sent again if that was all of it (design rule 9).
    pub fn body(mut self, body: impl Into<Body>) -> Self {
        self.plan.body = Some(body.into());
        self
    }

    /// Authenticates by a token.
    pub fn bearer_auth(mut self, token: impl fmt::Display) -> Self {
        self.http = self.http.bearer_auth(token);
        self
    }

    /// Authenticates by name and password.
    pub fn basic_auth(
        mut self,
        name: impl fmt::Display,
        password: Option<impl fmt::Display>,
    ) -> Self {
        self.http = self.http.basic_auth(name, password);
        self
    }

    /// The time given to each attempt, from connecting until its response's body has been read, as
    /// in reqwest. For a limit of all attempts together, a policy has a
    /// [`deadline`](relent_core::PolicyBuilder::deadline).
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.http = self.http.timeout(limit);
        self
    }

    /// Ends an attempt, or the body of its response, when the server is silent for this long; see
    /// [`Client::read_timeout`].
    pub fn read_timeout(self, silence: Duration) -> Self {
        self.change(move |options| options.read_timeout = ReadTimeout::After(silence))
    }

    /// Waits for a silent server for as long as it takes; see [`Client::read_timeout`].
    pub fn no_read_timeout(self) -> Self {
        self.change(|options| options.read_timeout = ReadTimeout::Never)
    }

    /// The version of HTTP.
    pub fn version(mut self, version: Version) -> Self {
        self.http = self.http.version(version);
        self
    }

    /// Retries by this policy. The budget stays that of the destination.
    pub fn policy(self, policy: impl Into<Arc<Policy>>) -> Self {
        let policy = policy.into();
        self.change(|options| options.policy = policy)
    }

    /// Retries exactly these failures, statuses or [patterns](Pattern), in place of those that the
    /// policy lists and of a judgement by [`when`](Self::when).
    ///
    /// It never makes a request repeatable: what may have taken effect is retried only if it may run
    /// twice (design rule 1).
    pub fn retry_on<P: Into<Pattern>>(self, failures: impl IntoIterator<Item = P>) -> Self {
        let failures: Vec<Pattern> = failures.into_iter().map(Into::into).collect();
        self.change(|options| options.retry_on(failures))
    }

    /// Retries when this says so, of the number of the attempt (from 0), its error, and its response
    /// as far as its head; one of the two is there. It judges any response, also a 200.
    ///
    /// The policy's limits hold, and so do "do not retry" and that only what may run twice is
    /// repeated.
    pub fn when(
        self,
        when: impl Fn(u32, Option<&AttemptError>, Option<&reqwest::Response>) -> bool
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.change(|options| options.when = Some(Arc::new(when)))
    }

    /// Waits for as long as this says, in place of the policy's backoff; its arguments are those of
    /// [`when`](Self::when). Ceiling, jitter, hints and limits of the policy apply as ever.
    pub fn delay(
        self,
        delay: impl Fn(u32, Option<&AttemptError>, Option<&reqwest::Response>) -> Duration
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.change(|options| options.delay = Some(Arc::new(delay)))
    }

    /// Chooses where an attempt goes; see [`Client::reroute`].
    pub fn reroute(self, route: impl Fn(u32, &mut reqwest::Url) + Send + Sync + 'static) -> Self {
        self.change(|options| options.reroute = Some(Arc::new(route)))
    }

    /// Hedged by this in place of the `[hedge]` of the policy; see [`Client`].
    pub fn hedge(self, hedge: impl Into<Arc<Hedge>>) -> Self {
        let hedge = hedge.into();
        self.change(|options| options.hedge = Some(hedge))
    }

    /// Not hedged.
    pub fn no_hedge(self) -> Self {
        self.change(|options| {
            options.hedge = None;
            options.change_policy(Policy::without_hedge);
        })
    }

    /// Says whether the request may run twice, whatever its method and header say, and whatever the
    /// policy assumes of all requests. With `true` you promise that a duplicate does no harm; `false` is
    /// for a GET that does something.
    pub fn repeatable(self, repeatable: bool) -> Self {
        self.change(move |options| options.repeatable = repeatable.into())
    }

    /// Names the request, so that it may run twice: with a [new key](IdempotencyKey::new), or one of
    /// your own. It is the same for every attempt, and takes the place of one in the header.
    pub fn idempotency_key<K>(mut self, key: K) -> Self
    where
        K: TryInto<IdempotencyKey>,
        K::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        match key.try_into() {
            Ok(key) => self.plan.key = Some(key),
            Err(error) => self.plan.wrong = Some(error.into()),
        }
        self
    }

    /// Attempts once.
    pub fn no_retry(self) -> Self {
        self.change(|options| options.change_policy(Policy::without_retries))
    }

    /// Makes reading the body a part of each attempt: a response that is cut short is retried, and
    /// goes on where it ended if it can (see [`Client::download`]). The body is kept in memory. Such
    /// attempts are not hedged.
    pub const fn whole_body(mut self) -> Self {
        self.plan.whole_body = true;
        self
    }

    /// Cuts off an attempt that includes its body ([`download`](Self::download),
    /// [`whole_body`](Self::whole_body)) when fewer than `bytes` of it arrive `within` this time; see
    /// [`Download::min_rate`](crate::Download::min_rate). No limit unless said otherwise.
    pub fn min_rate(self, bytes: u64, within: Duration) -> Self {
        self.change(move |options| options.rate = Some(Rate { bytes, within }))
    }

    fn change(mut self, change: impl FnOnce(&mut CallOptions) + Send + 'static) -> Self {
        self.plan.changes.push(Box::new(change));
        self
    }

    /// The request, to be sent by [`Client::send`] or [`Client::download`]. What was said of this
    /// one's retries is not a part of it.
    ///
    /// # Errors
    /// [`Error::Request`] when a part of it makes no sense.
    pub fn build(self) -> Result<Request<Body>, Error> {
        let mut head = self.http.build().map_err(wrong)?;
        let (_, _, body) = self.plan.settle(&mut head)?;
        let uri = head.url().as_str().parse::<http::Uri>();
        let mut request = Request::new(body);
        *request.uri_mut() = uri.map_err(|error| Error::Request(error.into()))?;
        *request.method_mut() = head.method().clone();
        *request.version_mut() = head.version();
        *request.headers_mut() = std::mem::take(head.headers_mut());
        Ok(request)
    }

    /// Attempts until the head of a response has arrived that is no failure, or the policy stops;
    /// with [`whole_body`](Self::whole_body) until its end.
    ///
    /// The last real outcome is returned as it is: if the last attempt was answered, its response is
    /// `Ok`, be it a 200 or a 503.
    ///
    /// # Errors
    /// [`Error::Request`] when nothing could be sent, [`Error::GaveUp`] when the last attempt brought
    /// no response.
    pub fn send(self) -> impl Future<Output = Result<Response, Error>> + Send {
        if self.plan.whole_body {
            return CallFuture::boxed(async move {
                let (client, options, template) = self.prepare()?;
                whole_body::receive(&client, options, template).await
            });
        }
        CallFuture::new(self.http.build(), self.plan)
    }

    /// Attempts until the whole body is in `sink`, or the policy stops; see [`Client::download`].
    ///
    /// # Errors
    /// [`Error::Request`] when nothing could be sent, [`Error::GaveUp`] when the last attempt brought
    /// no complete response.
    pub async fn download<S: Sink>(self, sink: &mut S) -> Result<(Head<()>, Summary), Error> {
        let (client, options, template) = self.prepare()?;
        Ok(client.receive(template, options, sink).await?)
    }

    /// What its attempts are made of.
    pub(crate) fn prepare(self) -> Result<(Client, Arc<CallOptions>, Template), Error> {
        let mut built = self.http.build().map_err(wrong)?;
        let (client, options, body) = self.plan.settle(&mut built)?;
        let template = Template::new(&mut built, body, client.0.body_cap);
        Ok((client, options, template))
    }
}

/// Without the request, which reqwest shows with its header fields.
impl fmt::Debug for RequestBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBuilder").finish_non_exhaustive()
    }
}
