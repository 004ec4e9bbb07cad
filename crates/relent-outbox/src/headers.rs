//! Additional header fields of endpoints, and the redacted form of header fields for people.
//!
//! An endpoint may require additional fields, such as `authorization`. Their values are stored like signing keys:
//! encrypted, or as `env:NAME` for a variable in the environment of each worker. No list, response or attempt shows
//! them.
//!
//! ```
//! use relent_outbox::endpoint::Endpoint;
//! use relent_outbox::headers;
//! use relent_outbox::secrets::Secrets;
//!
//! let secrets = Secrets::with_key("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")?;
//! let mut endpoint = Endpoint::new("shop", "https://shop.example/notify");
//! let encrypted = headers::encrypt(&secrets, "", "shop", "authorization", "Bearer 4711")?;
//! endpoint.headers.insert("authorization".to_owned(), encrypted);
//! assert_eq!(headers::open(&secrets, &endpoint)?.fields()["authorization"], "Bearer 4711");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::error::Error;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderName, HeaderValue};
use zeroize::Zeroizing;

use crate::endpoint::Endpoint;
use crate::secrets::{KEY_VARIABLE, REFERENCE, SecretError, Secrets, THIS_PROCESS, header_owner};
use crate::text::printable;

/// The largest number of additional fields of an endpoint.
pub const MAX_FIELDS: usize = 32;
/// The longest value of an additional field, in bytes.
pub const MAX_VALUE: usize = 4096;
/// The longest visible form of the header fields of a request or response, in bytes.
pub const MAX_VISIBLE: usize = 4096;
/// The longest visible form of one value, in bytes.
const MAX_VISIBLE_VALUE: usize = 1024;
/// The length of the shortest text that is redacted: a shorter one may occur in any text.
const MIN_REDACTED: usize = 4;
/// The replacement of a hidden value.
pub const REDACTED: &str = "[redacted]";
/// The marker at the end of truncated fields.
const TRUNCATION_MARKER: &str = "[more fields are left out]";

/// Names that an endpoint cannot use, with the reason. The first group is hop-by-hop (RFC 9110 §7.6.1).
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

/// Parts of names of sensitive fields, in requests and in responses. Their values are not shown.
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

/// The additional header fields of an endpoint, as they are sent.
#[derive(Clone, Default)]
pub struct CustomHeaders {
    fields: HeaderMap,
    /// Texts to redact if a response echoes them.
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

/// The reason that an endpoint cannot have a field. It never contains a value.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidHeader {
    /// The text is not a lower-case field name.
    Name(String),
    /// The name is reserved, with the reason.
    Reserved(String, &'static str),
    /// The value of the field with this name cannot be sent.
    Value(String),
    /// The value is unavailable.
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
                "the value of {name} cannot be encrypted without {KEY_VARIABLE}: set that, or put the value into an \
                 environment variable and register env:NAME"
            ),
            Self::Secret(name, SecretError::OtherKey) => write!(
                f,
                "the value of {name} was encrypted with another key, or for another endpoint or field: register it again"
            ),
            Self::Secret(name, SecretError::Absent(variable)) => write!(
                f,
                "the value of {name} is in env:{variable}, which is not set: set that variable in the environment of {THIS_PROCESS}"
            ),
            Self::Secret(name, SecretError::Form) => write!(
                f,
                "the value of {name} is stored as env:NAME or encrypted, never as plain text: register it again"
            ),
            Self::Secret(name, error) => write!(f, "the value of {name}: {error}"),
            Self::TooMany => write!(f, "an endpoint has {MAX_FIELDS} header fields at most"),
        }
    }
}

impl Error for InvalidHeader {}

/// Checks that an endpoint can have a field with this name.
///
/// # Errors
/// [`InvalidHeader`] if it is not a lower-case field name, or is reserved for the connection or the message.
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
    // HTTP/2 must not put it into its compression table.
    value.set_sensitive(true);
    Ok(value)
}

/// Converts a value to its stored form for this endpoint. A reference, or a value already encrypted for it, stays
/// unchanged.
///
/// # Errors
/// [`InvalidHeader`] if there can be no such field, or there is no key to encrypt with.
pub fn encrypt(
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
    secrets.encrypt_text(&owner, text).map_err(failed)
}

/// Decrypts the additional fields of this endpoint.
///
/// # Errors
/// [`InvalidHeader`] if any of them is unavailable: nothing is sent rather than a request without it.
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
        // The part after a scheme name, such as `Bearer`, is secret by itself.
        let parts = [text.as_str(), text.rsplit(' ').next().unwrap_or_default()];
        custom.texts.extend(parts.into_iter().flat_map(forms));
    }
    // Redact longer texts before their parts.
    custom
        .texts
        .sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
    custom.texts.dedup();
    Ok(custom)
}

/// The forms in which a response could echo a value: as written, escaped for a URL, for JSON or for HTML, in base64 and
/// in hexadecimal; and what it contains in base64, such as `user:password` with the password alone.
fn forms(text: &str) -> Vec<Zeroizing<String>> {
    let for_url = |is_kept: fn(u8) -> bool, is_lower: bool| {
        let escape = |byte: u8| match (is_kept(byte), is_lower) {
            (true, _) => char::from(byte).to_string(),
            (false, true) => format!("%{byte:02x}"),
            (false, false) => format!("%{byte:02X}"),
        };
        text.bytes().map(escape).collect::<String>()
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let is_path = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let for_json = text.replace('\\', "\\\\").replace('"', "\\\"");
    let for_html = text.replace('&', "&amp;").replace('"', "&quot;");
    let for_html = for_html.replace('<', "&lt;").replace('>', "&gt;");
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mut forms = vec![
        text.to_owned(),
        text.trim_end_matches('=').to_owned(),
        for_url(is_plain, false),
        for_url(is_plain, true),
        for_url(is_plain, false).replace("%20", "+"),
        for_url(is_path, false),
        for_url(is_path, true),
        for_json.replace('/', "\\/"),
        for_json,
        for_html.replace('\'', "&#x27;"),
        for_html.replace('\'', "&#39;"),
        STANDARD_NO_PAD.encode(text),
        URL_SAFE_NO_PAD.encode(text),
        hex.to_uppercase(),
        hex,
    ];
    let inner = STANDARD_NO_PAD.decode(text.trim_end_matches('=')).ok();
    if let Some(inner) = inner.and_then(|bytes| String::from_utf8(bytes).ok()) {
        if let Some((_, password)) = inner.split_once(':') {
            forms.push(password.to_owned());
        }
        forms.push(inner);
    }
    forms.retain(|form| form.len() >= MIN_REDACTED);
    forms.into_iter().map(Zeroizing::new).collect()
}

/// The visible form of a stored value: its kind or reference, never the value.
#[must_use]
pub fn shown(kept: &str) -> &str {
    match kept.starts_with(REFERENCE) {
        true => kept,
        false => "encrypted",
    }
}

/// Whether values of fields with this name are hidden, such as `authorization`, `set-cookie` or `x-api-key`.
#[must_use]
pub fn is_sensitive(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SENSITIVE.iter().any(|part| name.contains(part))
}

/// The visible form of header fields, one per line, at most [`MAX_VISIBLE`] bytes. Values of [sensitive](is_sensitive)
/// fields and of `hidden` ones are replaced, and these secrets are redacted.
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
        if lines.len() + name.len() + value.len() + 3 + TRUNCATION_MARKER.len() > MAX_VISIBLE {
            lines.push_str(TRUNCATION_MARKER);
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
    fn endpoints_cannot_set_fields_of_the_connection_or_the_message() {
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
    fn a_header_value_cannot_inject_another_field() {
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
            let refused = encrypt(&secrets, "", "shop", "x-shop", value).unwrap_err();
            assert_eq!(
                refused,
                InvalidHeader::Value("x-shop".to_owned()),
                "{value:?}"
            );
        }
        assert!(encrypt(&secrets, "", "shop", "x-shop", &long[1..]).is_ok());
    }

    #[test]
    fn an_encrypted_header_value_is_valid_only_for_its_endpoint_and_field() {
        let secrets = Secrets::with_key(KEY).unwrap();
        let encrypted = encrypt(&secrets, "acme", "shop", "authorization", "Bearer 4711").unwrap();
        assert!(!encrypted.contains("4711"));
        let of = |tenant: &str, name: &str, field: &str| {
            let mut endpoint = Endpoint::new(name, "https://shop.example/").tenant(tenant);
            endpoint.headers.insert(field.to_owned(), encrypted.clone());
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
        // A signing key encrypted for the endpoint is never sent as a field.
        let key = secrets
            .encrypt("acme", "shop", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
            .unwrap();
        assert!(encrypt(&secrets, "acme", "shop", "authorization", &key).is_err());
        let mut endpoint = Endpoint::new("shop", "https://shop.example/").tenant("acme");
        endpoint.secrets = vec![encrypted.clone()];
        assert!(secrets.signing(&endpoint).is_err());
        let shown = format!("{opened:?} {}", shown(&encrypted));
        assert_eq!(shown, r#"{"authorization"} encrypted"#);
    }

    #[test]
    fn an_unavailable_header_value_prevents_sending() {
        let mut endpoint = Endpoint::new("shop", "https://shop.example/");
        for (kept, says) in [
            ("env:RELENT_NO_SUCH_VARIABLE", "not set"),
            ("as it is", "never as plain text"),
            (
                "encrypted:v1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
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
    fn an_echoed_header_value_is_redacted_in_each_encoding() {
        let token = r#"s3cr3t/T0ken+42="x" a"#;
        let basic = STANDARD_NO_PAD.encode("shop:pass&word");
        let mut endpoint = Endpoint::new("shop", "https://shop.example/");
        let secrets = Secrets::with_key(KEY).unwrap();
        for (name, value) in [
            ("x-shop", token),
            ("authorization", &*format!("Basic {basic}=")),
        ] {
            let encrypted = encrypt(&secrets, "", "shop", name, value).unwrap();
            endpoint.headers.insert(name.to_owned(), encrypted);
        }
        let custom = open(&secrets, &endpoint).unwrap();
        for echo in [
            token,
            "s3cr3t%2FT0ken%2B42%3D%22x%22%20a",
            "s3cr3t%2fT0ken%2b42%3d%22x%22%20a",
            "s3cr3t%2FT0ken%2B42%3D%22x%22+a",
            "s3cr3t/T0ken%2B42%3D%22x%22%20a",
            r#"s3cr3t/T0ken+42=\"x\" a"#,
            r#"s3cr3t\/T0ken+42=\"x\" a"#,
            "s3cr3t/T0ken+42=&quot;x&quot; a",
            &STANDARD_NO_PAD.encode(token),
            &basic,
            "shop:pass&word",
            "pass&word",
        ] {
            let kept = crate::acknowledgement::excerpt(echo.as_bytes(), &custom.texts);
            assert_eq!(kept, REDACTED, "{echo}");
        }
    }

    #[test]
    fn visible_headers_are_redacted_and_limited() {
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
        assert!(
            seen.len() <= MAX_VISIBLE && seen.ends_with(TRUNCATION_MARKER),
            "{seen}"
        );
    }
}
