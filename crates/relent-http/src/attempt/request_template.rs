//! The head of a request, kept for later attempts.

use std::fmt;

use http::{Extensions, HeaderMap, Method, Request, Uri, Version};

use crate::repeatable::RequestInfo;
use crate::secret::HeaderNames;

/// The head of a request, without its body, from which later attempts are built.
///
/// `A` is its address: a [`Uri`], or the parsed address of a client. `X` holds its other
/// properties: [`Extensions`], a time limit.
///
/// ```
/// use relent_http::attempt::RequestTemplate;
///
/// let request = http::Request::put("http://localhost/a").header("x", "1").body("content")?;
/// let template = RequestTemplate::of(&request);
/// assert!(template.facts().repeatable);
/// let again = template.request("content");
/// assert_eq!((again.uri(), &again.headers()["x"]), (request.uri(), &request.headers()["x"]));
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone)]
pub struct RequestTemplate<A = Uri, X = Extensions> {
    method: Method,
    version: Version,
    address: A,
    /// Boxed, since many requests have none, and moving it would cost more.
    rest: Option<Box<Rest<X>>>,
}

#[derive(Clone)]
struct Rest<X> {
    headers: HeaderMap,
    extra: X,
}

impl<A, X> RequestTemplate<A, X> {
    /// Creates a template from these parts; an `extra` of `None` means the default, as in a new request.
    #[inline]
    pub fn new(
        method: &Method,
        version: Version,
        address: A,
        headers: &HeaderMap,
        extra: Option<&X>,
    ) -> Self
    where
        X: Clone + Default,
    {
        let none = headers.is_empty() && extra.is_none();
        let rest = || {
            Box::new(Rest {
                headers: headers.clone(),
                extra: extra.cloned().unwrap_or_default(),
            })
        };
        Self {
            method: method.clone(),
            version,
            address,
            rest: (!none).then(rest),
        }
    }

    /// The method of the request.
    pub const fn method(&self) -> &Method {
        &self.method
    }

    /// The HTTP version of the request.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The address of the request.
    pub const fn address(&self) -> &A {
        &self.address
    }

    /// The header fields and other properties; `None` if they are as in a new request.
    pub fn rest(&self) -> Option<(&HeaderMap, &X)> {
        let rest = self.rest.as_deref()?;
        Some((&rest.headers, &rest.extra))
    }

    /// The request facts for classification, computed on demand: most requests do not fail.
    pub fn facts(&self) -> RequestInfo {
        match &self.rest {
            Some(rest) => RequestInfo::of(&self.method, &rest.headers),
            None => RequestInfo::of(&self.method, &HeaderMap::new()),
        }
    }
}

impl RequestTemplate {
    /// Creates a template of this request.
    #[inline]
    pub fn of<B>(request: &Request<B>) -> Self {
        let extensions = request.extensions();
        let extra = (!extensions.is_empty()).then_some(extensions);
        let (method, uri) = (request.method(), request.uri().clone());
        Self::new(method, request.version(), uri, request.headers(), extra)
    }

    /// Builds a request with this head.
    pub fn request<B>(&self, body: B) -> Request<B> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.version_mut() = self.version;
        *request.uri_mut() = self.address.clone();
        if let Some((headers, extensions)) = self.rest() {
            *request.headers_mut() = headers.clone();
            *request.extensions_mut() = extensions.clone();
        }
        request
    }
}

/// Omits possible credentials: the address, and the values of the header fields.
impl<A, X> fmt::Debug for RequestTemplate<A, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestTemplate")
            .field("method", &self.method)
            .field("version", &self.version)
            .field(
                "headers",
                &self.rest().map(|(headers, _)| HeaderNames(headers)),
            )
            .finish_non_exhaustive()
    }
}
