//! Redirects of a request with a custom `Host` field, or with data from a file.
//!
//! reqwest follows redirects itself. To another origin it does not send `Authorization`, `Cookie` and
//! `Proxy-Authorization`, but it sends a custom `Host`, which names the first origin. A body that is read from a file it
//! sends to one URL only. In these cases relent follows redirects itself, as curl does. It follows all of them: reqwest may turn a POST into a GET, and a response does not
//! show the method of its request.

use http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LOCATION, CONTENT_TYPE, COOKIE,
    HOST, LOCATION, PROXY_AUTHORIZATION, WWW_AUTHENTICATE,
};
use http::{Method, Request, Response, Uri};
use relent_reqwest::{Body, limit_redirects};
use reqwest::{Url, redirect};

use super::output::{is_redirect, url_of};
use super::request::shown;

/// The most redirects that are followed; equal to reqwest's limit.
const MAX_REDIRECTS: usize = 10;

/// The redirect policy of the client. `by_hand`: this module follows redirects instead.
pub(super) fn policy(follow: bool, by_hand: bool) -> redirect::Policy {
    match follow && !by_hand {
        true => limit_redirects(MAX_REDIRECTS),
        false => redirect::Policy::none(),
    }
}

/// The redirects that this module follows.
pub(super) struct ManualRedirects {
    by_hand: bool,
    /// The previous requests, in order.
    asked: Vec<(Method, Uri)>,
    request: Request<Body>,
    /// The reason why the last redirect is not followed.
    refused: Option<String>,
}

impl ManualRedirects {
    /// Starts with this request. `by_hand`: the client does not follow redirects.
    pub(super) fn new(by_hand: bool, request: Request<Body>) -> Self {
        Self {
            by_hand,
            asked: Vec::new(),
            request,
            refused: None,
        }
    }

    /// Whether this module follows redirects.
    pub(super) const fn by_hand(&self) -> bool {
        self.by_hand
    }

    /// The current request.
    pub(super) const fn request(&self) -> &Request<Body> {
        &self.request
    }

    /// Returns the next request, if this response is a redirect that this module follows.
    pub(super) fn next(&mut self, head: &Response<()>) -> Option<Request<Body>> {
        self.refused = None;
        if !self.by_hand || !is_redirect(head) {
            return None;
        }
        match self.request_after(head) {
            Ok(next) => {
                let (method, uri) = (self.request.method(), self.request.uri());
                self.asked.push((method.clone(), uri.clone()));
                self.request = next.clone();
                Some(next)
            }
            Err(why) => {
                self.refused = Some(why);
                None
            }
        }
    }

    fn request_after(&self, head: &Response<()>) -> Result<Request<Body>, String> {
        let status = head.status().as_u16();
        let (from, url) = (url_of(head), target(head)?);
        let mut next = self.request.clone();
        let method = next.method().clone();
        // RFC 9110 §15.4: a POST becomes a GET, as in other clients, and with 303 every method except HEAD.
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
        if url.origin() != from.origin() {
            for name in [
                HOST,
                AUTHORIZATION,
                COOKIE,
                PROXY_AUTHORIZATION,
                WWW_AUTHENTICATE,
            ] {
                next.headers_mut().remove(name);
            }
        }
        let to = shown(url.as_str());
        *next.uri_mut() = url
            .as_str()
            .parse::<Uri>()
            .map_err(|error| format!("{to} cannot be requested: {error}"))?;
        let again = |method: &Method, uri: &Uri| method == next.method() && uri == next.uri();
        if again(self.request.method(), self.request.uri())
            || self.asked.iter().any(|(method, uri)| again(method, uri))
        {
            return Err(format!("redirect loop: {to} was already requested"));
        }
        if self.asked.len() == MAX_REDIRECTS {
            return Err(format!(
                "too many redirects: {MAX_REDIRECTS} were followed, the next leads to {to}"
            ));
        }
        Ok(next)
    }

    /// Explains why this redirect was not followed.
    pub(super) fn why_not(&self, head: &Response<()>) -> String {
        let why = self.refused.clone().or_else(|| target(head).err());
        why.unwrap_or_else(|| "its Location cannot be requested".to_owned())
    }
}

/// Returns the target of a redirect, or the reason why it cannot be followed.
fn target(head: &Response<()>) -> Result<Url, String> {
    let Some(location) = head.headers().get(LOCATION) else {
        return Err("it has no Location".to_owned());
    };
    let location = location.as_bytes();
    let text = String::from_utf8_lossy(location);
    if text.trim().is_empty() {
        return Err("its Location is empty".to_owned());
    }
    let to = shown(&text);
    let url = std::str::from_utf8(location)
        .map_err(|_| format!("its Location is not a URL: {to}"))
        .and_then(|location| {
            let url = url_of(head).join(location);
            url.map_err(|error| format!("its Location is not a URL: {to} ({error})"))
        })?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        _ => Err(format!(
            "its Location is {to}, and only http:// and https:// are followed"
        )),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;
    use reqwest::ResponseBuilderExt;

    use super::*;

    const SECRETS: [http::HeaderName; 4] = [HOST, AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION];

    fn moved(from: &str, status: u16, location: HeaderValue) -> Response<()> {
        let response = Response::builder().url(Url::parse(from).unwrap());
        let response = response.status(status).header(LOCATION, location);
        response.body(()).unwrap()
    }

    fn post() -> ManualRedirects {
        let mut request = Request::post("http://first.example/a").body(Body::from("x"));
        let headers = request.as_mut().unwrap().headers_mut();
        for name in SECRETS {
            headers.insert(name, HeaderValue::from_static("secret"));
        }
        ManualRedirects::new(true, request.unwrap())
    }

    proptest! {
        /// No Location causes a panic, leads to another scheme, or sends credentials of the first
        /// origin to another one.
        #[test]
        fn any_location_leads_to_http_and_sends_no_secret_to_another_origin(
            location in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..40),
                "(https?|ftp|file|javascript)?:?/{0,3}[a-z.@:%0-9\\[\\]]{0,20}[/?#\\\\]?.{0,10}"
                    .prop_map(String::into_bytes),
            ],
            status in prop::sample::select(vec![200, 300, 301, 302, 303, 304, 307, 308]),
        ) {
            let Ok(location) = HeaderValue::from_bytes(&location) else { return Ok(()) };
            let mut hops = post();
            let Some(next) = hops.next(&moved("http://first.example/a", status, location)) else {
                return Ok(());
            };
            prop_assert!(matches!(status, 301..=303 | 307 | 308));
            let uri = next.uri();
            prop_assert!(matches!(uri.scheme_str(), Some("http" | "https")));
            let same = uri.scheme_str() == Some("http")
                && uri.host() == Some("first.example")
                && uri.port_u16().unwrap_or(80) == 80;
            for name in SECRETS {
                prop_assert_eq!(next.headers().contains_key(name), same);
            }
            let again = status > 303;
            prop_assert_eq!(next.method() == Method::POST, again);
        }
    }
}
