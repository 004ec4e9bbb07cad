//! What of a request can be a credential, and how it is shown without.

#[cfg(feature = "reqwest")]
use std::fmt;

#[cfg(feature = "reqwest")]
use http::HeaderMap;
#[cfg(feature = "reqwest")]
use reqwest::Url;

/// What stands in the place of a secret, as the conventions have it.
pub(crate) const REDACTED: &str = "REDACTED";

/// Parameters whose values are secret, in lower case. The first seven are those of the conventions
/// (signed addresses of AWS, Azure and Google); the others are where RFC 6749, RFC 6750 and common
/// services put a credential.
const SECRET: [&str; 20] = [
    "awsaccesskeyid",
    "signature",
    "sig",
    "x-amz-credential",
    "x-amz-security-token",
    "x-amz-signature",
    "x-goog-signature",
    "access_token",
    "api-key",
    "api_key",
    "apikey",
    "auth",
    "client_secret",
    "code",
    "key",
    "password",
    "refresh_token",
    "secret",
    "token",
    "x-goog-credential",
];

/// Whether the value of this parameter is secret; so it is if its name is written in another way
/// than the usual.
pub(crate) fn is_secret(name: &str) -> bool {
    name.contains('%')
        || SECRET
            .iter()
            .any(|secret| name.eq_ignore_ascii_case(secret))
}

/// Takes name and password and the values of secret parameters out of an address.
#[cfg(feature = "reqwest")]
pub(crate) fn redact(url: &mut Url) {
    // An address that can have no name has none.
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

/// An error whose texts have no credential of the address in them.
#[cfg(feature = "reqwest")]
#[cold]
pub(crate) fn redacted(mut error: reqwest::Error) -> reqwest::Error {
    if let Some(url) = error.url_mut() {
        redact(url);
    }
    error
}

/// An address as it is shown.
#[cfg(feature = "reqwest")]
pub(crate) struct Shown<'a>(pub(crate) &'a Url);

#[cfg(feature = "reqwest")]
impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut url = self.0.clone();
        redact(&mut url);
        fmt::Debug::fmt(url.as_str(), f)
    }
}

/// Header fields as they are shown: by their names, since any value can be a credential.
#[cfg(feature = "reqwest")]
pub(crate) struct Names<'a>(pub(crate) &'a HeaderMap);

#[cfg(feature = "reqwest")]
impl fmt::Debug for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_secret_name_is_written_in_lower_case() {
        for name in SECRET {
            assert_eq!(name, name.to_ascii_lowercase());
        }
    }

    #[cfg(feature = "reqwest")]
    #[test]
    fn an_address_is_shown_without_what_is_secret_in_it() {
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
            assert_eq!(format!("{:?}", Shown(&url)), shown);
        }
    }
}
