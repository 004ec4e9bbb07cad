//! What is kept of the head of a request, for the attempts to come.

use std::fmt;

use http::{Extensions, HeaderMap, Method, Request, Uri, Version};

use crate::repeatable::RequestFacts;
use crate::secret::Names;

/// No more of a request without its body than has to be kept to make it again, for the attempts to come.
///
/// `A` is its address: a [`Uri`], or what a client has that has read it already. `X` is what else its
/// requests have: [`Extensions`], a limit of time.
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
    /// Apart, since moving it costs more than many a request that has none.
    rest: Option<Box<Rest<X>>>,
}

#[derive(Clone)]
struct Rest<X> {
    headers: HeaderMap,
    extra: X,
}

impl<A, X> RequestTemplate<A, X> {
    /// Of a request with these parts; an `extra` of `None` is as in a new request.
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

    /// By which method.
    pub const fn method(&self) -> &Method {
        &self.method
    }

    /// In which version of HTTP.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// To whom.
    pub const fn address(&self) -> &A {
        &self.address
    }

    /// Its header fields and what else it has; `None` if they are as in a new request.
    pub fn rest(&self) -> Option<(&HeaderMap, &X)> {
        let rest = self.rest.as_deref()?;
        Some((&rest.headers, &rest.extra))
    }

    /// What classification needs to know of it. Looked up when it is needed: most requests do not fail.
    pub fn facts(&self) -> RequestFacts {
        match &self.rest {
            Some(rest) => RequestFacts::of(&self.method, &rest.headers),
            None => RequestFacts::of(&self.method, &HeaderMap::new()),
        }
    }
}

impl RequestTemplate {
    /// Of this request.
    #[inline]
    pub fn of<B>(request: &Request<B>) -> Self {
        let extensions = request.extensions();
        let extra = (!extensions.is_empty()).then_some(extensions);
        let (method, uri) = (request.method(), request.uri().clone());
        Self::new(method, request.version(), uri, request.headers(), extra)
    }

    /// A request with this head.
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

/// Without what can be a credential: the address, and the values of the header fields.
impl<A, X> fmt::Debug for RequestTemplate<A, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestTemplate")
            .field("method", &self.method)
            .field("version", &self.version)
            .field("headers", &self.rest().map(|(headers, _)| Names(headers)))
            .finish_non_exhaustive()
    }
}
