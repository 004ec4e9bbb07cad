//! A response, and how it was come by.

use std::fmt;
use std::ops::{Deref, DerefMut};

use bytes::Bytes;
use relent::Summary;

use super::error::Error;
use crate::secret::{Names, Shown, redacted};

/// The last response to a request, and the account of the attempts.
///
/// It stands for reqwest's: what takes `&self` there is there through [`Deref`], and what uses the
/// response up is here.
pub struct Response {
    http: reqwest::Response,
    summary: Summary,
}

/// Without the values of header fields, which can be credentials.
impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.http.status())
            .field("url", &Shown(self.http.url()))
            .field("headers", &Names(self.http.headers()))
            .field("summary", &self.summary)
            .finish_non_exhaustive()
    }
}

impl Response {
    pub(crate) const fn new(http: reqwest::Response, summary: Summary) -> Self {
        Self { http, summary }
    }

    /// How many attempts it took, how long, and why there were no more: [`Summary::reason`] is
    /// `None` for a success.
    #[must_use]
    pub const fn summary(&self) -> &Summary {
        &self.summary
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

    /// The body as text.
    ///
    /// # Errors
    /// [`Error::Body`] if it cannot be read to its end.
    pub async fn text(self) -> Result<String, Error> {
        let read = self.http.text().await;
        read.map_err(|error| Error::Body(redacted(error), Box::new(self.summary)))
    }

    /// The body.
    ///
    /// # Errors
    /// [`Error::Body`] if it cannot be read to its end.
    pub async fn bytes(self) -> Result<Bytes, Error> {
        let read = self.http.bytes().await;
        read.map_err(|error| Error::Body(redacted(error), Box::new(self.summary)))
    }

    /// What the body holds as JSON.
    ///
    /// # Errors
    /// [`Error::Body`] if it cannot be read to its end, or is no such JSON.
    #[cfg(feature = "json")]
    pub async fn json<T: serde::de::DeserializeOwned>(self) -> Result<T, Error> {
        let read = self.http.json().await;
        read.map_err(|error| Error::Body(redacted(error), Box::new(self.summary)))
    }

    /// reqwest's response, such as for its `bytes_stream`.
    #[must_use]
    pub fn into_inner(self) -> reqwest::Response {
        self.http
    }

    /// Both parts.
    #[must_use]
    pub fn into_parts(self) -> (reqwest::Response, Summary) {
        (self.http, self.summary)
    }
}

impl Deref for Response {
    type Target = reqwest::Response;

    fn deref(&self) -> &reqwest::Response {
        &self.http
    }
}

impl DerefMut for Response {
    fn deref_mut(&mut self) -> &mut reqwest::Response {
        &mut self.http
    }
}
