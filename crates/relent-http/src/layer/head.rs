//! What is kept of the head of a request.

use http::{Extensions, HeaderMap, Method, Request, Uri, Version};
use relent::Attempt;
use relent::clock::Clock;

use super::{Config, FreshConnection};
use crate::repeatable::RequestFacts;

/// The head of a request, for the attempts after the first.
pub(super) struct Head {
    method: Method,
    version: Version,
    uri: Uri,
    /// Apart, since moving it costs more than many a call whose request has none.
    rest: Option<Box<Rest>>,
}

#[derive(Clone)]
struct Rest {
    headers: HeaderMap,
    extensions: Extensions,
}

impl Head {
    #[inline]
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let none = request.headers().is_empty() && request.extensions().is_empty();
        let rest = || {
            Box::new(Rest {
                headers: request.headers().clone(),
                extensions: request.extensions().clone(),
            })
        };
        Self {
            method: request.method().clone(),
            version: request.version(),
            uri: request.uri().clone(),
            rest: (!none).then(rest),
        }
    }

    pub(super) const fn method(&self) -> &Method {
        &self.method
    }

    pub(super) fn facts(&self) -> RequestFacts {
        match &self.rest {
            Some(rest) => RequestFacts::of(&self.method, &rest.headers),
            None => RequestFacts::of(&self.method, &HeaderMap::new()),
        }
    }

    /// The request of an attempt after the first.
    pub(super) fn attempt<T, K: Clock + Clone, M, N>(
        &self,
        body: T,
        attempt: Attempt,
        fresh: bool,
        config: &Config<K, M, N>,
    ) -> Request<T> {
        let mut request = self.request(body);
        if fresh {
            request.extensions_mut().insert(FreshConnection);
        }
        request.extensions_mut().insert(attempt);
        config.route(&mut request, attempt.number);
        request
    }

    /// A request with this head.
    fn request<T>(&self, body: T) -> Request<T> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.version_mut() = self.version;
        *request.uri_mut() = self.uri.clone();
        if let Some(rest) = &self.rest {
            let Rest {
                headers,
                extensions,
            } = (**rest).clone();
            *request.headers_mut() = headers;
            *request.extensions_mut() = extensions;
        }
        request
    }
}
