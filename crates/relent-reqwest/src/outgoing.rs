//! A request as it goes out, alike in every attempt.

use std::fmt;
use std::time::Duration;

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue, Method, Request, Version};
use relent_core::{Kind, StopReason};
use reqwest::Url;

use crate::attempt::{AttemptError, Broken, Failed};
use crate::body::Body;
use crate::secret::Shown;
use relent_http::RequestFacts;
use relent_http::attempt::Names;
use relent_http::field::content_length;

/// What the attempts of a request send.
#[derive(Debug)]
pub(crate) struct Outgoing {
    head: Result<Head, Refused>,
    body: Body,
}

/// An address that reqwest refuses, which every attempt asks it about.
struct Refused {
    address: String,
    facts: RequestFacts,
}

/// An address that is none can have a credential anywhere.
impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").finish_non_exhaustive()
    }
}

impl Outgoing {
    /// What was built, which is without its body. Of one that streams up to `cap` bytes are kept.
    #[inline]
    pub(crate) fn new(built: &mut reqwest::Request, body: Body, cap: usize) -> Self {
        // Hyper would leave out a length of zero, and some servers insist on it (RFC 9110 §8.6).
        let zero = || matches!(*built.method(), Method::POST | Method::PUT | Method::PATCH);
        let length = if body.is_empty() {
            zero().then_some(0)
        } else {
            body.told_length()
        };
        if let Some(length) = length {
            let field = built.headers_mut().entry(CONTENT_LENGTH);
            field.or_insert_with(|| HeaderValue::from(length));
        }
        Self {
            head: Ok(Head::of(built)),
            body: body.kept(cap, || content_length(built.headers())),
        }
    }

    /// The same for a request that is not of reqwest.
    pub(crate) fn of(request: Request<Body>, http: &reqwest::Client, cap: usize) -> Self {
        match Self::build(request, http) {
            Ok((mut built, body)) => Self::new(&mut built, body, cap),
            Err(refused) => *refused,
        }
    }

    /// What reqwest makes of it, and the body.
    ///
    /// # Errors
    /// What there is to attempt if reqwest refuses the address.
    pub(crate) fn build(
        request: Request<Body>,
        http: &reqwest::Client,
    ) -> Result<(reqwest::Request, Body), Box<Self>> {
        let address = request.uri().to_string();
        let (parts, body) = request.into_parts();
        let facts = RequestFacts::of(&parts.method, &parts.headers);
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

    /// What is sent where; `None` if reqwest will refuse the address.
    pub(crate) fn asked(&self) -> Option<(&Method, &Url)> {
        let head = self.head.as_ref().ok()?;
        Some((&head.method, &head.url))
    }

    /// The fields that are sent, if there are any.
    pub(crate) fn headers(&self) -> Option<&HeaderMap> {
        let rest = self.head.as_ref().ok()?.rest.as_ref()?;
        Some(&rest.headers)
    }

    /// Where it goes; `None` if reqwest will refuse the address.
    pub(crate) fn url(&self) -> Option<&Url> {
        self.asked().map(|(_, url)| url)
    }

    /// Looked up when it is needed: most requests do not fail.
    pub(crate) fn facts(&self) -> RequestFacts {
        match (&self.head, self.headers()) {
            (Ok(head), Some(headers)) => RequestFacts::of(&head.method, headers),
            (Ok(head), None) => RequestFacts::of(&head.method, &HeaderMap::new()),
            (Err(refused), _) => refused.facts,
        }
    }

    /// Takes the body back from an attempt that has failed thus, for another.
    pub(crate) fn take_back(&self, failed: &mut Failed) {
        let helped = !matches!(failed.failure.kind, Kind::Permanent | Kind::Overloaded);
        if helped && !self.body.take_back(failed.last.status().is_some()) {
            failed.stop.get_or_insert(StopReason::NotReplayable);
        }
    }

    /// Whether there is a body for another attempt, however long it is.
    pub(crate) const fn can_be_sent_again(&self) -> bool {
        self.body.can_be_sent_again()
    }

    /// The body for one attempt, or `None` for an empty one, which needs no framing.
    pub(crate) async fn open(&self) -> Result<Option<reqwest::Body>, Box<Broken>> {
        let opened = self.body.open().await;
        opened.map_err(|error| Broken::local(StopReason::NotReplayable, AttemptError::Body(error)))
    }

    /// The request of an attempt, without the body.
    pub(crate) fn request(&self, http: &reqwest::Client) -> Result<reqwest::Request, Box<Broken>> {
        match &self.head {
            Ok(head) => Ok(head.request()),
            Err(refused) => Ok(http.get(&refused.address).build()?),
        }
    }

    /// The body, if it need not be waited for.
    #[inline]
    pub(crate) fn body_at_hand(&self) -> Option<&Body> {
        self.body.is_at_hand().then_some(&self.body)
    }
}

/// No more of a request without a body than has to be kept to make it again.
pub(crate) struct Head {
    method: Method,
    url: Url,
    version: Version,
    /// Apart, since moving it costs more than many a request that has none.
    rest: Option<Box<Rest>>,
}

#[derive(Clone)]
struct Rest {
    headers: HeaderMap,
    timeout: Option<Duration>,
}

/// Without credentials.
impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rest = self.rest.as_deref();
        f.debug_struct("Head")
            .field("method", &self.method)
            .field("url", &Shown(&self.url))
            .field("version", &self.version)
            .field("headers", &rest.map(|rest| Names(&rest.headers)))
            .field("timeout", &rest.and_then(|rest| rest.timeout))
            .finish()
    }
}

impl Head {
    #[inline]
    pub(crate) fn of(request: &reqwest::Request) -> Self {
        let none = request.headers().is_empty() && request.timeout().is_none();
        let rest = || {
            Box::new(Rest {
                headers: request.headers().clone(),
                timeout: request.timeout().copied(),
            })
        };
        Self {
            method: request.method().clone(),
            url: request.url().clone(),
            version: request.version(),
            rest: (!none).then(rest),
        }
    }

    /// A request with this head. What is as in a new one is not touched: reqwest makes a map for a
    /// timeout that is not there.
    pub(crate) fn request(&self) -> reqwest::Request {
        let mut request = reqwest::Request::new(self.method.clone(), self.url.clone());
        *request.version_mut() = self.version;
        if let Some(rest) = &self.rest {
            let Rest { headers, timeout } = (**rest).clone();
            *request.headers_mut() = headers;
            if timeout.is_some() {
                *request.timeout_mut() = timeout;
            }
        }
        request
    }
}
