//! Removal of credentials from URLs and from errors with URLs.

use std::fmt;

use http::HeaderMap;
use http::header::{
    AUTHORIZATION, COOKIE, HOST, HeaderName, PROXY_AUTHORIZATION, WWW_AUTHENTICATE,
};
use relent_http::attempt::{REDACTED, is_secret};
use reqwest::Url;

/// Removes user name, password and the values of secret parameters from a URL.
pub(crate) fn redact(url: &mut Url) {
    // Fails only for a URL that cannot have a user name.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    let Some(query) = url.query() else { return };
    let has_secret = query.split('&').any(|parameter| {
        parameter
            .split_once('=')
            .is_some_and(|(name, _)| is_secret(name))
    });
    if !has_secret {
        return;
    }
    let parameters = query
        .split('&')
        .map(|parameter| match parameter.split_once('=') {
            Some((name, _)) if is_secret(name) => format!("{name}={REDACTED}"),
            _ => parameter.to_owned(),
        });
    let query = parameters.collect::<Vec<_>>().join("&");
    url.set_query(Some(&query));
}

/// Removes credentials from the URL of an error.
#[cold]
pub(crate) fn redacted(mut error: reqwest::Error) -> reqwest::Error {
    if let Some(url) = error.url_mut() {
        redact(url);
    }
    error
}

/// The header fields that reqwest does not send to another origin after a redirect, and the host.
static FOR_ONE_ORIGIN: [HeaderName; 5] = [
    AUTHORIZATION,
    COOKIE,
    HOST,
    PROXY_AUTHORIZATION,
    WWW_AUTHENTICATE,
];

/// Removes the header fields that a redirect does not send to another origin.
pub(crate) fn remove_credentials(headers: &mut HeaderMap) {
    for name in &FOR_ONE_ORIGIN {
        headers.remove(name);
    }
}

/// Whether this client adds such a field to each request. Only its `Debug` text has its default headers; a value with
/// such a text counts, too.
pub(crate) fn adds_credentials(http: &reqwest::Client) -> bool {
    let shown = format!("{http:?}");
    let has = |name: &HeaderName| shown.contains(&format!("{:?}: ", name.as_str()));
    FOR_ONE_ORIGIN.iter().any(has)
}

/// Shows a URL without credentials.
pub(crate) struct RedactedUrl<'a>(pub(crate) &'a Url);

impl fmt::Debug for RedactedUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut url = self.0.clone();
        redact(&mut url);
        fmt::Debug::fmt(url.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_secrets() {
        for (address, shown) in [
            ("http://user:hunter2@h/p?a=1", "\"http://h/p?a=1\""),
            (
                "http://h/p?a=1&token=hunter2",
                "\"http://h/p?a=1&token=REDACTED\"",
            ),
            (
                "http://h/p?%74oken=hunter2",
                "\"http://h/p?%74oken=REDACTED\"",
            ),
        ] {
            let url = Url::parse(address).unwrap();
            assert_eq!(format!("{:?}", RedactedUrl(&url)), shown);
        }
    }
}
