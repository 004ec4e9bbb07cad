//! Header fields of an endpoint's own, and header fields of attempts as people may see them.
//!
//! An endpoint may ask for fields beside those of the message, such as `authorization`. Their values are kept as signing
//! keys are: sealed, or as `env:NAME` for one in the environment of each worker. No list, answer or attempt shows them.
//!
//! ```
//! use relent_outbox::endpoint::Endpoint;
//! use relent_outbox::headers;
//! use relent_outbox::secrets::Secrets;
//!
//! let secrets = Secrets::with_key("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")?;
//! let mut endpoint = Endpoint::new("shop", "https://shop.example/notify");
//! let sealed = headers::seal(&secrets, "", "shop", "authorization", "Bearer 4711")?;
//! endpoint.headers.insert("authorization".to_owned(), sealed);
//! assert_eq!(headers::open(&secrets, &endpoint)?.fields()["authorization"], "Bearer 4711");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::error::Error;
use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};
use zeroize::Zeroizing;

use crate::endpoint::Endpoint;
use crate::secrets::{KEY_VARIABLE, REFERENCE, SecretError, Secrets, header_owner};
use crate::text::printable;

/// The most fields of an endpoint's own.
pub const MAX_FIELDS: usize = 32;
/// The longest value of one, in bytes.
pub const MAX_VALUE: usize = 4096;
/// As much of the fields of a request or an answer is kept, in bytes.
pub const MAX_VISIBLE: usize = 4096;
/// As much of one value.
const MAX_VISIBLE_VALUE: usize = 1024;
/// What stands for a value that nobody may see.
pub const REDACTED: &str = "[redacted]";
/// What ends the fields of which some are left out.
const CUT: &str = "[more fields are left out]";

/// The names that an endpoint cannot have, and why. Those of the connection are hop-by-hop (RFC 9110 §7.6.1).
const RESERVED: [(&str, &[&str]); 2] = [
    (
        "belongs to the connection, which the sender alone manages",
        &[
            "connection",
            "content-length",
            "expect",
            "host",
            "http2-settings",
            "keep-alive",
            "proxy-authenticate",
            "proxy-authentication-info",
            "proxy-authorization",
            "proxy-connection",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
        ],
    ),
    (
        "is that of the message: give it when the message is enqueued",
        &["content-type"],
    ),
];

/// Parts of the names of fields whose values are not shown, whether the sender or the receiver has written them.
const SENSITIVE: [&str; 18] = [
    "access-key",
    "accesskey",
    "api-key",
    "api_key",
    "apikey",
    "auth",
    "cookie",
    "credential",
    "csrf",
    "jwt",
    "passw",
    "private",
    "secret",
    "session",
    "signature",
    "token",
    "x-key",
    "xsrf",
];

/// The fields of an endpoint's own, as they are sent.
#[derive(Clone, Default)]
pub struct CustomHeaders {
    fields: HeaderMap,
    /// What must not be kept of an answer that repeats them.
    pub(crate) texts: Vec<Zeroizing<String>>,
}

impl CustomHeaders {
    /// The fields.
    #[must_use]
    pub const fn fields(&self) -> &HeaderMap {
        &self.fields
    }
}

impl fmt::Debug for CustomHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.fields.keys()).finish()
    }
}

/// Why an endpoint cannot have a field. It never shows a value.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidHeader {
    /// Not the name of a field, in lower case.
    Name(String),
    /// A name that is not for endpoints, and why.
    Reserved(String, &'static str),
    /// The value of the field of this name cannot be sent.
    Value(String),
    /// The value is not to be had.
    Secret(String, SecretError),
    /// There are more than [`MAX_FIELDS`].
    TooMany,
}

impl fmt::Display for InvalidHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(
                f,
                "{name:?} is no name of a header field: use lower-case letters, digits and hyphens"
            ),
            Self::Reserved(name, why) => write!(f, "{name} {why}"),
            Self::Value(name) => write!(
                f,
                "the value of {name} has to have 1 to {MAX_VALUE} visible ASCII characters, with spaces between them only"
            ),
            Self::Secret(name, SecretError::NoKey) => write!(
                f,
                "the value of {name} cannot be sealed without {KEY_VARIABLE}: set that, or keep the value in an \
                 environment variable and register env:NAME"
            ),
            Self::Secret(name, SecretError::OtherKey) => write!(
                f,
                "the value of {name} was sealed with another key, or for another endpoint or field: register it again"
            ),
            Self::Secret(name, SecretError::Absent(variable)) => write!(
                f,
                "the value of {name} is in env:{variable}, which is not set: set that variable in the environment of the worker"
            ),
            Self::Secret(name, SecretError::Form) => write!(
                f,
                "the value of {name} is kept as env:NAME or sealed, never as it is: register it again"
            ),
            Self::Secret(name, error) => write!(f, "the value of {name}: {error}"),
            Self::TooMany => write!(f, "an endpoint has {MAX_FIELDS} header fields at most"),
        }
    }
}

impl Error for InvalidHeader {}

/// Whether an endpoint can have a field of this name.
///
/// # Errors
/// [`InvalidHeader`] says why not: it is no name in lower case, belongs to the connection, or to the message.
pub fn check_name(name: &str) -> Result<HeaderName, InvalidHeader> {
    let shown = || printable(name, 64);
    if name.len() > 256 {
        return Err(InvalidHeader::Name(shown()));
    }
    let valid = HeaderName::from_lowercase(name.as_bytes());
    let valid = valid.map_err(|_| InvalidHeader::Name(shown()))?;
    for (why, names) in RESERVED {
        if names.contains(&name) {
            return Err(InvalidHeader::Reserved(name.to_owned(), why));
        }
    }
    if name.starts_with("webhook-") {
        let why = "begins with webhook-, as the fields that the sender signs";
        return Err(InvalidHeader::Reserved(name.to_owned(), why));
    }
    Ok(valid)
}

fn value(name: &str, text: &str) -> Result<HeaderValue, InvalidHeader> {
    let visible = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    let is_valid = (1..=MAX_VALUE).contains(&text.len())
        && text.bytes().all(visible)
        && !text.starts_with(' ')
        && !text.ends_with(' ');
    let value = is_valid.then(|| HeaderValue::from_str(text).ok()).flatten();
    let mut value = value.ok_or_else(|| InvalidHeader::Value(name.to_owned()))?;
    // It is not put into the table that HTTP/2 compresses by.
    value.set_sensitive(true);
    Ok(value)
}

/// A value in the form in which it is kept beside this endpoint. What is a reference, or sealed for it already, stays as
/// it is.
///
/// # Errors
/// [`InvalidHeader`] if there can be no such field, or there is no key to seal with.
pub fn seal(
    secrets: &Secrets,
    tenant: &str,
    endpoint: &str,
    name: &str,
    text: &str,
) -> Result<String, InvalidHeader> {
    check_name(name)?;
    let failed = |error| InvalidHeader::Secret(name.to_owned(), error);
    let owner = header_owner(tenant, endpoint, name);
    if let Some(kept) = secrets.kept(&owner, text).map_err(failed)? {
        return Ok(kept);
    }
    value(name, text)?;
    secrets.encrypt(&owner, text).map_err(failed)
}

/// The fields of this endpoint, as they are sent.
///
/// # Errors
/// [`InvalidHeader`] if one of them cannot be had: then nothing is sent, rather than without it.
pub fn open(secrets: &Secrets, endpoint: &Endpoint) -> Result<CustomHeaders, InvalidHeader> {
    if endpoint.headers.len() > MAX_FIELDS {
        return Err(InvalidHeader::TooMany);
    }
    let mut custom = CustomHeaders::default();
    for (name, kept) in &endpoint.headers {
        let field = check_name(name)?;
        let text = secrets
            .open_text(&header_owner(&endpoint.tenant, &endpoint.name, name), kept)
            .map_err(|error| InvalidHeader::Secret(name.clone(), error))?;
        custom.fields.insert(field, value(name, &text)?);
        // What follows the name of a scheme is a secret by itself. What is shorter is in any text.
        let parts = [text.as_str(), text.rsplit(' ').next().unwrap_or_default()];
        let parts = parts.into_iter().filter(|part| part.len() >= 4);
        let parts = parts.map(|part| Zeroizing::new(part.to_owned()));
        custom.texts.extend(parts);
    }
    // What is part of another is taken away after it.
    custom
        .texts
        .sort_by_key(|text| std::cmp::Reverse(text.len()));
    Ok(custom)
}

/// How a value that is kept may be seen: where it is, never what.
#[must_use]
pub fn shown(kept: &str) -> &str {
    match kept.starts_with(REFERENCE) {
        true => kept,
        false => "sealed",
    }
}

/// Whether nobody may see the value of a field of this name, such as `authorization`, `set-cookie` or `x-api-key`.
#[must_use]
pub fn is_sensitive(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SENSITIVE.iter().any(|part| name.contains(part))
}

/// Header fields as people may see them, one on each line: [`MAX_VISIBLE`] bytes of them at most, without the values of
/// [sensitive](is_sensitive) fields and of those that are `hidden`, and without these secrets.
#[must_use]
pub fn visible(fields: &HeaderMap, hidden: &HeaderMap, secrets: &[impl AsRef<str>]) -> String {
    let mut lines = String::new();
    for (name, value) in fields {
        let value = match is_sensitive(name.as_str()) || hidden.contains_key(name) {
            true => REDACTED.to_owned(),
            false => {
                let mut text = String::from_utf8_lossy(value.as_bytes()).into_owned();
                for secret in secrets.iter().map(AsRef::as_ref) {
                    if !secret.is_empty() {
                        text = text.replace(secret, REDACTED);
                    }
                }
                printable(&text, MAX_VISIBLE_VALUE)
            }
        };
        let name = printable(name.as_str(), 256);
        if lines.len() + name.len() + value.len() + 3 + CUT.len() > MAX_VISIBLE {
            lines.push_str(CUT);
            break;
        }
        lines.extend([&name, ": ", &value, "\n"]);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    #[test]
    fn no_endpoint_has_a_field_of_the_connection_or_of_the_message() {
        for name in [
            "host",
            "content-length",
            "connection",
            "transfer-encoding",
            "te",
            "trailer",
            "upgrade",
            "keep-alive",
            "proxy-authorization",
            "proxy-connection",
            "expect",
            "content-type",
            "webhook-id",
            "webhook-signature",
            "webhook-anything",
            "Host",
            "X-Shop",
            "",
            "a b",
            "a:b",
            ":authority",
            "x\r\ny",
            "\u{fc}",
        ] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in [
            "authorization",
            "cookie",
            "user-agent",
            "x-shop",
            "webhooks",
            "hosted",
        ] {
            assert!(check_name(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_value_cannot_end_its_field() {
        let secrets = Secrets::with_key(KEY).unwrap();
        let long = "x".repeat(MAX_VALUE + 1);
        for value in [
            "",
            " ",
            "a ",
            " a",
            "a\r\nb: c",
            "a\nb",
            "a\0",
            "\u{fc}",
            &long,
        ] {
            let refused = seal(&secrets, "", "shop", "x-shop", value).unwrap_err();
            assert_eq!(
                refused,
                InvalidHeader::Value("x-shop".to_owned()),
                "{value:?}"
            );
        }
        assert!(seal(&secrets, "", "shop", "x-shop", &long[1..]).is_ok());
    }

    #[test]
    fn a_sealed_value_is_for_its_endpoint_and_its_field_alone() {
        let secrets = Secrets::with_key(KEY).unwrap();
        let sealed = seal(&secrets, "acme", "shop", "authorization", "Bearer 4711").unwrap();
        assert!(!sealed.contains("4711"));
        let of = |tenant: &str, name: &str, field: &str| {
            let mut endpoint = Endpoint::new(name, "https://shop.example/").tenant(tenant);
            endpoint.headers.insert(field.to_owned(), sealed.clone());
            open(&secrets, &endpoint)
        };
        let opened = of("acme", "shop", "authorization").unwrap();
        assert_eq!(opened.fields()["authorization"], "Bearer 4711");
        for (tenant, name, field) in [
            ("", "shop", "authorization"),
            ("acme", "shop2", "authorization"),
            ("acme", "shop", "x-shop"),
        ] {
            let refused = of(tenant, name, field).unwrap_err();
            assert_eq!(
                refused,
                InvalidHeader::Secret(field.to_owned(), SecretError::OtherKey)
            );
        }
        // A signing key that is sealed for the endpoint is sent to nobody.
        let key = secrets
            .seal("acme", "shop", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
            .unwrap();
        assert!(seal(&secrets, "acme", "shop", "authorization", &key).is_err());
        let mut endpoint = Endpoint::new("shop", "https://shop.example/").tenant("acme");
        endpoint.secrets = vec![sealed.clone()];
        assert!(secrets.signing(&endpoint).is_err());
        let shown = format!("{opened:?} {}", shown(&sealed));
        assert_eq!(shown, r#"{"authorization"} sealed"#);
    }

    #[test]
    fn without_its_value_nothing_is_sent() {
        let mut endpoint = Endpoint::new("shop", "https://shop.example/");
        for (kept, says) in [
            ("env:RELENT_NO_SUCH_VARIABLE", "not set"),
            ("as it is", "never as it is"),
            (
                "sealed:v1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
                "RELENT_OUTBOX_KEY",
            ),
        ] {
            endpoint.headers = [("x-shop".to_owned(), kept.to_owned())].into();
            let refused = open(&Secrets::default(), &endpoint)
                .unwrap_err()
                .to_string();
            assert!(refused.contains(says), "{refused}");
        }
    }

    #[test]
    fn what_people_see_has_no_secret_and_an_end() {
        let mut fields = HeaderMap::new();
        for (name, value) in [
            ("content-type", "application/json"),
            ("authorization", "Bearer 4711"),
            ("set-cookie", "a=4711"),
            ("webhook-signature", "v1,4711"),
            ("x-api-key", "4711"),
            ("x-shop", "eu"),
            ("x-echo", "it was Bearer 4711"),
        ] {
            fields.append(name, value.parse().unwrap());
        }
        let mut hidden = HeaderMap::new();
        hidden.insert("x-shop", HeaderValue::from_static("eu"));
        let seen = visible(&fields, &hidden, &["Bearer 4711"]);
        assert!(!seen.contains("4711") && !seen.contains("eu"), "{seen}");
        assert!(seen.contains("content-type: application/json\n"), "{seen}");
        assert!(seen.contains("x-echo: it was [redacted]\n"), "{seen}");
        for number in 0..1000 {
            let name: HeaderName = format!("x-{number}").parse().unwrap();
            fields.insert(name, HeaderValue::from_static("many"));
        }
        let seen = visible(&fields, &hidden, &[""; 0]);
        assert!(seen.len() <= MAX_VISIBLE && seen.ends_with(CUT), "{seen}");
    }
}
