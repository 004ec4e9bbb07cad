//! The response, with a summary of its attempts.

use std::fmt;
use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::{Extensions, HeaderMap, StatusCode, Version};
use relent::Summary;
use relent_http::attempt::HeaderNames;
use reqwest::Url;

use crate::error::Error;
use crate::secret::{RedactedUrl, redacted};

/// The last response to a request, with a summary of the attempts.
///
/// Errors of its methods carry the summary, too. For everything else, such as cookies, use reqwest's response, from
/// [`as_inner`](Self::as_inner) or [`into_inner`](Self::into_inner).
pub struct Response {
    http: reqwest::Response,
    summary: Summary,
}

/// Omits the values of header fields, which can be credentials.
impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.http.status())
            .field("url", &RedactedUrl(self.http.url()))
            .field("headers", &HeaderNames(self.http.headers()))
            .field("summary", &self.summary)
            .finish_non_exhaustive()
    }
}

impl Response {
    pub(crate) const fn new(http: reqwest::Response, summary: Summary) -> Self {
        Self { http, summary }
    }

    /// Number of attempts, time, and the reason for giving up: [`Summary::reason`] is `None` for a success.
    #[must_use]
    pub const fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The number of attempts: [`Summary::attempts`].
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.summary.attempts
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.http.status()
    }

    /// The header fields.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        self.http.headers()
    }

    /// The HTTP version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.http.version()
    }

    /// The URL that responded, after redirects.
    #[must_use]
    pub fn url(&self) -> &Url {
        self.http.url()
    }

    /// The length of the body in bytes, if it is known.
    #[must_use]
    pub fn content_length(&self) -> Option<u64> {
        self.http.content_length()
    }

    /// The socket address of the server, if it is known.
    #[must_use]
    pub fn remote_addr(&self) -> Option<SocketAddr> {
        self.http.remote_addr()
    }

    /// The extensions of the response.
    #[must_use]
    pub fn extensions(&self) -> &Extensions {
        self.http.extensions()
    }

    /// The extensions of the response, to be changed.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        self.http.extensions_mut()
    }

    /// The response itself if its status is below 400.
    ///
    /// # Errors
    /// [`Error::Status`] for a status of 400 or above.
    pub fn error_for_status(self) -> Result<Self, Error> {
        match self.http.error_for_status_ref() {
            Ok(_) => Ok(self),
            Err(error) => Err(Error::Status(redacted(error), Box::new(self.summary))),
        }
    }

    /// Reads the body as text.
    ///
    /// # Errors
    /// [`Error::Body`] if it cannot be read to its end.
    pub async fn text(self) -> Result<String, Error> {
        let Self { http, summary } = self;
        http.text()
            .await
            .map_err(|error| body_error(error, &summary))
    }

    /// Reads the body.
    ///
    /// # Errors
    /// [`Error::Body`] if it cannot be read to its end.
    pub async fn bytes(self) -> Result<Bytes, Error> {
        let Self { http, summary } = self;
        http.bytes()
            .await
            .map_err(|error| body_error(error, &summary))
    }

    /// Reads the body as JSON.
    ///
    /// # Errors
    /// [`Error::Body`] if it cannot be read to its end, or is not JSON of this type.
    #[cfg(feature = "json")]
    pub async fn json<T: serde::de::DeserializeOwned>(self) -> Result<T, Error> {
        let Self { http, summary } = self;
        http.json()
            .await
            .map_err(|error| body_error(error, &summary))
    }

    /// Reads the next piece of the body; `None` at its end.
    ///
    /// # Errors
    /// [`Error::Body`] if it ends early.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        let Self { http, summary } = self;
        http.chunk()
            .await
            .map_err(|error| body_error(error, summary))
    }

    /// Reads the body as a stream of pieces. The stream ends after the first [`Error::Body`].
    pub fn bytes_stream(self) -> impl Stream<Item = Result<Bytes, Error>> + Send {
        let Self { http, summary } = self;
        let pieces = http.bytes_stream();
        pieces.map(move |piece| piece.map_err(|error| body_error(error, &summary)))
    }

    /// The reqwest response.
    #[must_use]
    pub const fn as_inner(&self) -> &reqwest::Response {
        &self.http
    }

    /// The reqwest response, with the attempt summary in its extensions.
    ///
    /// [`mark_response`](relent_http::mark_response) and an outer retry layer find the summary there, so that a call
    /// that was given up here is not repeated above.
    #[must_use]
    pub fn into_inner(self) -> reqwest::Response {
        let Self { mut http, summary } = self;
        http.extensions_mut().insert(summary);
        http
    }

    /// The reqwest response and the attempt summary.
    #[must_use]
    pub fn into_parts(self) -> (reqwest::Response, Summary) {
        (self.http, self.summary)
    }
}

fn body_error(error: reqwest::Error, summary: &Summary) -> Error {
    Error::Body(redacted(error), Box::new(summary.clone()))
}
