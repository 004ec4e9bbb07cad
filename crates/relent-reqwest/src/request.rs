//! A request in the making.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response as Head, Version};
use relent::Summary;
use relent_core::{Hedge, Pattern, Policy};

use crate::attempt::AttemptError;
use crate::body::Body;
use crate::client::Client;
use crate::error::Error;
use crate::exchange::Exchange;
use crate::manner::{Manner, Rate};
use crate::outgoing::Outgoing;
use crate::response::Response;
use crate::sink::Sink;
use crate::whole;
use relent_http::IdempotencyKey;

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

/// What reqwest's builder does not know of a request.
pub(crate) struct Plan {
    client: Client,
    body: Option<Body>,
    key: Option<IdempotencyKey>,
    changes: Vec<Change>,
    whole_body: bool,
    wrong: Option<Box<dyn StdError + Send + Sync>>,
}

/// A change of how the client retries, made when it is known where the request goes.
type Change = Box<dyn FnOnce(&mut Manner) + Send>;

impl RequestBuilder {
    pub(crate) fn new(client: Client, http: reqwest::RequestBuilder) -> Self {
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
        self
    }

    /// Sends this as a form.
    #[cfg(feature = "form")]
    pub fn form<T: serde::Serialize + ?Sized>(mut self, form: &T) -> Self {
        self.http = self.http.form(form);
        self.plan.body = None;
        self
    }

    /// Sends this as `multipart/form-data`. A form is a stream: it is kept while it goes out, up to
    /// [`Client::body_cap`], and sent again if that was all of it (design rule 9). Raise the cap for
    /// larger forms that are to be retried.
    #[cfg(feature = "multipart")]
    pub fn multipart(mut self, form: reqwest::multipart::Form) -> Self {
        self.http = self.http.multipart(form);
        self.plan.body = None;
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

    /// The version of HTTP.
    pub fn version(mut self, version: Version) -> Self {
        self.http = self.http.version(version);
        self
    }

    /// Retries by this policy. The budget stays that of the destination.
    pub fn policy(self, policy: impl Into<Arc<Policy>>) -> Self {
        let policy = policy.into();
        self.change(|manner| manner.policy = policy)
    }

    /// Retries exactly these failures, statuses or [patterns](Pattern), in place of those that the
    /// policy lists and of a judgement by [`when`](Self::when).
    ///
    /// It never makes a request repeatable: what may have taken effect is retried only if it may run
    /// twice (design rule 1).
    pub fn retry_on<P: Into<Pattern>>(self, failures: impl IntoIterator<Item = P>) -> Self {
        let failures: Vec<Pattern> = failures.into_iter().map(Into::into).collect();
        self.change(|manner| manner.retry_on(failures))
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
        self.change(|manner| manner.when = Some(Arc::new(when)))
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
        self.change(|manner| manner.delay = Some(Arc::new(delay)))
    }

    /// Chooses where an attempt goes; see [`Client::reroute`].
    pub fn reroute(self, route: impl Fn(u32, &mut reqwest::Url) + Send + Sync + 'static) -> Self {
        self.change(|manner| manner.reroute = Some(Arc::new(route)))
    }

    /// Hedged by this in place of the `[hedge]` of the policy; see [`Client`].
    pub fn hedge(self, hedge: impl Into<Arc<Hedge>>) -> Self {
        let hedge = hedge.into();
        self.change(|manner| manner.hedge = Some(hedge))
    }

    /// Not hedged.
    pub fn no_hedge(self) -> Self {
        self.change(|manner| {
            manner.hedge = None;
            manner.change_policy(Policy::without_hedge);
        })
    }

    /// Says whether the request may run twice, whatever its method and header say, and whatever the
    /// policy assumes of all requests. With `true` you promise that a duplicate does no harm; `false` is
    /// for a GET that does something.
    pub fn repeatable(self, repeatable: bool) -> Self {
        self.change(move |manner| manner.repeatable = repeatable.into())
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
        self.change(|manner| manner.change_policy(Policy::without_retries))
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
        self.change(move |manner| manner.rate = Some(Rate { bytes, within }))
    }

    fn change(mut self, change: impl FnOnce(&mut Manner) + Send + 'static) -> Self {
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
            return Exchange::boxed(whole::receive(self));
        }
        Exchange::new(self.http.build(), self.plan)
    }

    /// Attempts until the whole body is in `sink`, or the policy stops; see [`Client::download`].
    ///
    /// # Errors
    /// [`Error::Request`] when nothing could be sent, [`Error::GaveUp`] when the last attempt brought
    /// no complete response.
    pub async fn download<S: Sink>(self, sink: &mut S) -> Result<(Head<()>, Summary), Error> {
        let (client, manner, request) = self.prepare()?;
        Ok(client.receive(request, manner, sink).await?)
    }

    /// What its attempts are made of.
    pub(crate) fn prepare(self) -> Result<(Client, Arc<Manner>, Outgoing), Error> {
        let mut built = self.http.build().map_err(wrong)?;
        let (client, manner, body) = self.plan.settle(&mut built)?;
        let outgoing = Outgoing::new(&mut built, body, client.0.body_cap);
        Ok((client, manner, outgoing))
    }
}

impl Plan {
    /// A plan without anything of its own but the body, in place of one that reqwest has.
    #[inline]
    pub(crate) const fn new(client: Client, body: Option<Body>) -> Self {
        Self {
            client,
            body,
            key: None,
            changes: Vec::new(),
            whole_body: false,
            wrong: None,
        }
    }

    /// By whom and how the request is sent, and its body. The rest of it is made ready.
    #[inline]
    pub(crate) fn settle(
        self,
        built: &mut reqwest::Request,
    ) -> Result<(Client, Arc<Manner>, Body), Error> {
        if let Some(wrong) = self.wrong {
            return Err(Error::Request(wrong));
        }
        let body = match (self.body, built.body_mut().take()) {
            (Some(body), _) => body,
            (None, Some(body)) => body.into(),
            (None, None) => Body::empty(),
        };
        if let Some(key) = self.key {
            key.attach(self.client.0.key_form, built.headers_mut());
        }
        let uri = || built.url().as_str().parse().ok();
        let mut manner = self.client.manner_of(built.method(), uri);
        if !self.changes.is_empty() {
            let manner = Arc::make_mut(&mut manner);
            for change in self.changes {
                change(manner);
            }
        }
        Ok((self.client, manner.settled(built.headers()), body))
    }
}

/// What reqwest could not build.
pub(crate) fn wrong(error: reqwest::Error) -> Error {
    Error::Request(crate::secret::redacted(error).into())
}

/// Without the request, which reqwest shows with its header fields.
impl fmt::Debug for RequestBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBuilder").finish_non_exhaustive()
    }
}
