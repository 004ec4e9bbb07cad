//! A request as it goes out, alike in every attempt.

use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method, Request};
use relent_core::StopReason;

use super::attempt::{AttemptError, Broken};
use super::body::Body;
use crate::repeatable::RequestFacts;

/// What reqwest sends, made once; an attempt takes a copy of the head.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Without the body; or an address that reqwest refuses, which every attempt asks it about.
    head: Result<reqwest::Request, String>,
    body: Body,
    facts: RequestFacts,
}

impl Outgoing {
    #[inline]
    pub(crate) fn new(mut head: reqwest::Request, body: Body) -> Self {
        // Hyper would leave out a length of zero, and some servers insist on it (RFC 9110 §8.6).
        let zero = || matches!(*head.method(), Method::POST | Method::PUT | Method::PATCH);
        let length = if body.is_empty() {
            zero().then_some(0)
        } else {
            body.told_length()
        };
        if let Some(length) = length {
            let field = head.headers_mut().entry(CONTENT_LENGTH);
            field.or_insert_with(|| HeaderValue::from(length));
        }
        Self {
            facts: RequestFacts::of(head.method(), head.headers()),
            head: Ok(head),
            body,
        }
    }

    /// The same for a request that is not of reqwest.
    pub(crate) fn of(request: Request<Body>, http: &reqwest::Client) -> Self {
        let address = request.uri().to_string();
        let (parts, body) = request.into_parts();
        let facts = RequestFacts::of(&parts.method, &parts.headers);
        let head = http
            .request(parts.method, &address)
            .version(parts.version)
            .headers(parts.headers)
            .build();
        match head {
            Ok(head) => Self::new(head, body),
            Err(_) => Self {
                head: Err(address),
                body,
                facts,
            },
        }
    }

    /// The same with another head.
    pub(crate) fn with(&self, change: impl FnOnce(&mut reqwest::Request)) -> Self {
        let mut head = match &self.head {
            Ok(head) => Ok(copy(head)),
            Err(address) => Err(address.clone()),
        };
        if let Ok(head) = &mut head {
            change(head);
        }
        Self {
            head,
            body: self.body.clone(),
            facts: self.facts,
        }
    }

    /// What reqwest sends, but for the body; `None` if it will refuse the address.
    pub(crate) fn head(&self) -> Option<&reqwest::Request> {
        self.head.as_ref().ok()
    }

    /// Host and port, which tell destinations apart; empty if reqwest will refuse the address.
    pub(crate) fn host(&self) -> &str {
        self.head().map_or("", |head| head.url().authority())
    }

    pub(crate) const fn facts(&self) -> RequestFacts {
        self.facts
    }

    /// Whether there is a body for another attempt.
    pub(crate) const fn can_be_sent_again(&self) -> bool {
        self.body.can_be_sent_again()
    }

    /// The body for one attempt, or `None` for an empty one, which needs no framing.
    pub(crate) async fn open(&self) -> Result<Option<reqwest::Body>, Broken> {
        if self.body.is_empty() {
            return Ok(None);
        }
        let opened = self.body.open().await;
        opened.map_err(|error| Broken::local(StopReason::NotReplayable, AttemptError::Body(error)))
    }

    /// The request of one attempt.
    #[inline]
    pub(crate) fn request(
        &self,
        http: &reqwest::Client,
        body: Option<reqwest::Body>,
    ) -> Result<reqwest::Request, Broken> {
        let mut request = match &self.head {
            Ok(head) => copy(head),
            Err(address) => http.get(address).build()?,
        };
        if body.is_some() {
            *request.body_mut() = body;
        }
        Ok(request)
    }
}

/// A copy of a request without a body. What is as in a new one is not touched: reqwest's own clone
/// makes a map for a timeout that is not there.
#[inline]
pub(crate) fn copy(head: &reqwest::Request) -> reqwest::Request {
    let mut copy = reqwest::Request::new(head.method().clone(), head.url().clone());
    if !head.headers().is_empty() {
        *copy.headers_mut() = head.headers().clone();
    }
    if head.timeout().is_some() {
        *copy.timeout_mut() = head.timeout().copied();
    }
    *copy.version_mut() = head.version();
    copy
}
