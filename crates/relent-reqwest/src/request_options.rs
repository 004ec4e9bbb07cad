//! Options of a request outside of reqwest's builder.

use std::error::Error as StdError;
use std::sync::Arc;

use relent::Policy;
use relent_http::IdempotencyKey;

use crate::body::Body;
use crate::client::Client;
use crate::error::Error;
use crate::retry_options::RetryOptions;
use crate::secret::redacted;
use crate::whole_body::ReceiveWhole;

/// Options of a request that reqwest's builder does not have.
pub(crate) struct RequestOptions {
    pub(crate) client: Client,
    pub(crate) body: Option<Body>,
    pub(crate) key: Option<IdempotencyKey>,
    /// Replaces the policy, before all changes: the order of the calls does not count.
    pub(crate) policy: Option<Arc<Policy>>,
    pub(crate) changes: Vec<Change>,
    pub(crate) whole_body: Option<ReceiveWhole>,
    /// Whether reqwest has built a form, whose parts may all be in memory.
    pub(crate) multipart: bool,
    pub(crate) build_error: Option<Box<dyn StdError + Send + Sync>>,
}

/// A change of the options, applied when the URL of the request is known.
type Change = Box<dyn FnOnce(&mut RetryOptions) + Send>;

impl RequestOptions {
    /// Default options with this body, which replaces that of reqwest.
    #[inline]
    pub(crate) const fn new(client: Client, body: Option<Body>) -> Self {
        Self {
            client,
            body,
            key: None,
            policy: None,
            changes: Vec::new(),
            whole_body: None,
            multipart: false,
            build_error: None,
        }
    }

    /// Computes client, options and body of the request, and completes its headers.
    #[inline]
    pub(crate) fn resolve(
        self,
        built: &mut reqwest::Request,
    ) -> Result<(Client, Arc<RetryOptions>, Body), Error> {
        if let Some(build_error) = self.build_error {
            return Err(Error::Request(build_error));
        }
        let body = match (self.body, built.body_mut().take()) {
            (Some(body), _) => body,
            (None, Some(body)) if self.multipart => Body::from_form(body, self.client.0.body_cap),
            (None, Some(body)) => body.into(),
            (None, None) => Body::empty(),
        };
        if let Some(key) = self.key {
            key.attach(self.client.0.key_form, built.headers_mut());
        }
        let uri = || built.url().as_str().parse().ok();
        let mut options = self.client.options_of(built.method(), uri);
        if let Some(policy) = self.policy {
            Arc::make_mut(&mut options).policy = policy;
        }
        if !self.changes.is_empty() {
            let options = Arc::make_mut(&mut options);
            for change in self.changes {
                change(options);
            }
        }
        Ok((self.client, options.for_request(built.headers()), body))
    }
}

/// The error of a request that reqwest could not build.
pub(crate) fn build_error(error: reqwest::Error) -> Error {
    Error::Request(redacted(error).into())
}
