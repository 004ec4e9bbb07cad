//! The request that every attempt sends.

use std::fmt;
use std::time::Duration;

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue, Method, Request};
use relent_http::RequestInfo;
use relent_http::attempt::RequestTemplate;
use relent_http::field::content_length;
use reqwest::Url;

use crate::attempt_failure::AttemptFailure;
use crate::body::Body;

/// The request of all attempts.
#[derive(Debug)]
pub(crate) struct Template {
    head: Result<RequestTemplate<Url, Option<Duration>>, Refused>,
    body: Body,
}

/// A URL that reqwest refuses. Every attempt passes it to reqwest again.
struct Refused {
    address: String,
    facts: RequestInfo,
}

/// Omits the URL: an invalid one can contain a credential anywhere.
impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").finish_non_exhaustive()
    }
}

impl Template {
    /// From a request that reqwest has built, without its body. Up to `cap` bytes of a streamed body are kept.
    #[inline]
    pub(crate) fn new(built: &mut reqwest::Request, body: Body, cap: usize) -> Self {
        // hyper omits a length of zero, and some servers require it (RFC 9110 §8.6).
        let zero = || matches!(*built.method(), Method::POST | Method::PUT | Method::PATCH);
        let length = if body.is_empty() {
            zero().then_some(0)
        } else {
            body.content_length_header()
        };
        if let Some(length) = length {
            let field = built.headers_mut().entry(CONTENT_LENGTH);
            field.or_insert_with(|| HeaderValue::from(length));
        }
        Self {
            head: Ok(head_of(built)),
            body: body.kept(cap, || content_length(built.headers())),
        }
    }

    /// From a request that reqwest has not built.
    pub(crate) fn of(request: Request<Body>, http: &reqwest::Client, cap: usize) -> Self {
        match Self::build(request, http) {
            Ok((mut built, body)) => Self::new(&mut built, body, cap),
            Err(refused) => *refused,
        }
    }

    /// Builds the reqwest request and the body.
    ///
    /// # Errors
    /// A template of the refused URL.
    pub(crate) fn build(
        request: Request<Body>,
        http: &reqwest::Client,
    ) -> Result<(reqwest::Request, Body), Box<Self>> {
        let address = request.uri().to_string();
        let (parts, body) = request.into_parts();
        let facts = RequestInfo::of(&parts.method, &parts.headers);
        let built = http
            .request(parts.method, &address)
            .version(parts.version)
            .headers(parts.headers)
            .build();
        match built {
            Ok(built) => Ok((built, body)),
            Err(_) => Err(Box::new(Self {
                head: Err(Refused { address, facts }),
                body,
            })),
        }
    }

    /// The method; `None` if reqwest refuses the URL.
    pub(crate) fn method(&self) -> Option<&Method> {
        self.head.as_ref().ok().map(RequestTemplate::method)
    }

    /// The header fields, if there are any.
    pub(crate) fn headers(&self) -> Option<&HeaderMap> {
        let (headers, _) = self.head.as_ref().ok()?.rest()?;
        Some(headers)
    }

    /// The URL; `None` if reqwest refuses it.
    pub(crate) fn url(&self) -> Option<&Url> {
        self.head.as_ref().ok().map(RequestTemplate::address)
    }

    /// Whether the caller limits the time of each attempt.
    pub(crate) fn has_timeout(&self) -> bool {
        let rest = self.head.as_ref().ok().and_then(RequestTemplate::rest);
        rest.is_some_and(|(_, timeout)| timeout.is_some())
    }

    /// The facts for the classification.
    pub(crate) fn facts(&self) -> RequestInfo {
        match &self.head {
            Ok(head) => head.facts(),
            Err(refused) => refused.facts,
        }
    }

    /// The body of all attempts.
    pub(crate) const fn body(&self) -> &Body {
        &self.body
    }

    /// Whether the body can be sent again at any length.
    pub(crate) const fn can_be_sent_again(&self) -> bool {
        self.body.can_be_sent_again()
    }

    /// The request of an attempt, without the body.
    pub(crate) fn request(
        &self,
        http: &reqwest::Client,
    ) -> Result<reqwest::Request, Box<AttemptFailure>> {
        match &self.head {
            Ok(head) => Ok(request_of(head)),
            Err(refused) => Ok(http.get(&refused.address).build()?),
        }
    }

    /// The request of an attempt; `None` if reqwest refuses the URL.
    #[cfg(feature = "middleware")]
    pub(crate) fn again(&self) -> Option<reqwest::Request> {
        self.head.as_ref().ok().map(request_of)
    }
}

/// The kept parts of a request that reqwest has built.
#[inline]
fn head_of(built: &reqwest::Request) -> RequestTemplate<Url, Option<Duration>> {
    let timeout = built.timeout().copied();
    let timeout = timeout.is_some().then_some(&timeout);
    let (method, url) = (built.method(), built.url().clone());
    RequestTemplate::new(method, built.version(), url, built.headers(), timeout)
}

/// Builds a request with this head. Defaults are not set explicitly: for a missing timeout reqwest would allocate a
/// map.
fn request_of(head: &RequestTemplate<Url, Option<Duration>>) -> reqwest::Request {
    let mut request = reqwest::Request::new(head.method().clone(), head.address().clone());
    *request.version_mut() = head.version();
    if let Some((headers, timeout)) = head.rest() {
        *request.headers_mut() = headers.clone();
        if timeout.is_some() {
            *request.timeout_mut() = *timeout;
        }
    }
    request
}
