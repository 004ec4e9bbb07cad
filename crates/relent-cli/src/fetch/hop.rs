//! Redirects that lead to another origin while a `Host` was given by hand.
//!
//! reqwest follows redirects by itself. To another origin it takes no `Authorization`, `Cookie` and
//! `Proxy-Authorization` along, but a `Host` that was given by hand, which means the first origin. So
//! such a redirect is followed here, without it, as curl does.

use http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LOCATION, CONTENT_TYPE, COOKIE,
    HOST, LOCATION, PROXY_AUTHORIZATION,
};
use http::{Method, Request, Response};
use relent_http::Body;
use reqwest::{Url, redirect};

/// The most redirects that are followed; the same as reqwest's own limit.
const MOST: usize = 10;

/// Whether and how the client follows redirects. With a `Host` given by hand it stops where another
/// origin begins.
pub(super) fn policy(follow: bool, own_host: bool) -> redirect::Policy {
    if !follow {
        return redirect::Policy::none();
    }
    let limited = redirect::Policy::limited(MOST);
    if !own_host {
        return limited;
    }
    redirect::Policy::custom(move |attempt| match attempt.previous().last() {
        Some(last) if last.origin() != attempt.url().origin() => attempt.stop(),
        _ => limited.redirect(attempt),
    })
}

/// The redirects that are followed here.
pub(super) struct Hops {
    by_hand: bool,
    followed: usize,
    request: Request<Body>,
}

impl Hops {
    /// None as yet, for this request. `by_hand`: there are redirects that the client leaves to us.
    pub(super) fn new(by_hand: bool, request: Request<Body>) -> Self {
        Self {
            by_hand,
            followed: 0,
            request,
        }
    }

    /// Whether redirects to another origin are followed here.
    pub(super) const fn by_hand(&self) -> bool {
        self.by_hand
    }

    /// The request that is sent.
    pub(super) const fn request(&self) -> &Request<Body> {
        &self.request
    }

    /// The request that this response leads to, if it is a redirect that is followed here.
    pub(super) fn next(&mut self, head: &Response<()>) -> Option<Request<Body>> {
        let status = head.status().as_u16();
        if !self.by_hand || self.followed == MOST || !matches!(status, 301..=303 | 307 | 308) {
            return None;
        }
        let location = head.headers().get(LOCATION)?.to_str().ok()?;
        let url = url_of(head).join(location).ok()?;
        if !matches!(url.scheme(), "http" | "https") {
            return None;
        }
        let mut next = self.request.clone();
        let method = next.method().clone();
        // RFC 9110 §15.4: a POST becomes a GET, as everywhere, and with 303 anything but a HEAD.
        if status == 303 && method != Method::HEAD || status < 303 && method == Method::POST {
            *next.method_mut() = Method::GET;
            *next.body_mut() = Body::empty();
            for name in [
                CONTENT_TYPE,
                CONTENT_ENCODING,
                CONTENT_LANGUAGE,
                CONTENT_LOCATION,
            ] {
                next.headers_mut().remove(name);
            }
        }
        for name in [HOST, AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION] {
            next.headers_mut().remove(name);
        }
        *next.uri_mut() = url.as_str().parse().ok()?;
        self.followed += 1;
        self.request = next.clone();
        Some(next)
    }
}

/// The URL that a response came from.
pub(super) fn url_of(head: &Response<()>) -> Url {
    reqwest::Response::from(head.clone().map(|()| ""))
        .url()
        .clone()
}
