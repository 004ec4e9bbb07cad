//! Target of an attempt: the checked URL of an endpoint.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;

use http::Uri;
use url::{Host, ParseError, Url};

use crate::guard::{AddressGuard, Forbidden};

/// The URL of an endpoint, in the form in which it is called.
///
/// A host that is an address in any form that HTTP clients accept (`2130706433`, `0x7f.1`, `0177.0.0.1`, `127.1`,
/// full-width digits) is parsed as that address. The [guard](AddressGuard) therefore checks the address that the
/// connection uses.
///
/// ```
/// use relent_outbox::guard::AddressGuard;
/// use relent_outbox::target::Target;
///
/// let guard = AddressGuard::new();
/// assert!(Target::parse("https://shop.example/notify", false, &guard).is_ok());
/// for refused in ["http://shop.example/", "https://a:b@shop.example/", "https://0x7f.1/", "https://shop.example:22/"] {
///     assert!(Target::parse(refused, false, &guard).is_err(), "{refused}");
/// }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    uri: Uri,
}

/// The longest URL, in bytes.
const MAX_URL_BYTES: usize = 2048;

impl Target {
    /// Parses the URL of an endpoint. `http` allows URLs without TLS. An address in the URL is
    /// [checked](AddressGuard::check) here; addresses that a name resolves to are checked for each connection.
    ///
    /// Of ports below 1024 only 80 and 443 are allowed: services behind the others, such as mail, could misinterpret a
    /// request.
    ///
    /// # Errors
    /// [`InvalidTarget`] states the violated rule.
    pub fn parse(text: &str, http: bool, guard: &AddressGuard) -> Result<Self, InvalidTarget> {
        if text.len() > MAX_URL_BYTES {
            return Err(InvalidTarget::TooLong);
        }
        let mut url = Url::parse(text).map_err(InvalidTarget::NoUrl)?;
        match url.scheme() {
            "https" => {}
            "http" if http => {}
            "http" => return Err(InvalidTarget::NotEncrypted),
            _ => return Err(InvalidTarget::Scheme),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(InvalidTarget::User);
        }
        let port = url.port_or_known_default().unwrap_or_default();
        if !matches!(port, 80 | 443 | 1024..) {
            return Err(InvalidTarget::Port(port));
        }
        let address = match url.host() {
            Some(Host::Ipv4(v4)) => Some(IpAddr::V4(v4)),
            Some(Host::Ipv6(v6)) => Some(IpAddr::V6(v6)),
            Some(Host::Domain(name)) if !name.trim_end_matches('.').is_empty() => None,
            _ => return Err(InvalidTarget::NoHost),
        };
        if let Some(address) = address {
            guard.check(address).map_err(InvalidTarget::Forbidden)?;
        }
        url.set_fragment(None);
        let uri = Uri::try_from(url.as_str()).map_err(|_| InvalidTarget::NoHost)?;
        Ok(Self { uri })
    }

    pub(crate) const fn uri(&self) -> &Uri {
        &self.uri
    }
}

/// Shows only the host: path and query may contain a secret of the receiver.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Target").field(&self.uri.host()).finish()
    }
}

/// The reason that a URL is not called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidTarget {
    /// The text is not a URL.
    NoUrl(ParseError),
    /// It is longer than 2048 bytes.
    TooLong,
    /// The scheme is neither `https` nor `http`.
    Scheme,
    /// The scheme is `http`, which the operator does not allow.
    NotEncrypted,
    /// It contains a user or a password.
    User,
    /// The port is not allowed.
    Port(u16),
    /// It has no host.
    NoHost,
    /// The address is not allowed.
    Forbidden(Forbidden),
}

impl fmt::Display for InvalidTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoUrl(ParseError::RelativeUrlWithoutBase) => f.write_str(
                "not a URL: it has no scheme; one such as https://shop.example/notify is accepted",
            ),
            Self::NoUrl(error) => write!(
                f,
                "not a URL: {error}; one such as https://shop.example/notify is accepted"
            ),
            Self::TooLong => write!(f, "a URL may have {MAX_URL_BYTES} bytes"),
            Self::Scheme => f.write_str("the scheme of a URL has to be https"),
            Self::NotEncrypted => f.write_str(
                "the scheme of a URL has to be https; the operator of the sender can allow http as well",
            ),
            Self::User => f.write_str(
                "a user or a password in a URL is not sent: sign the messages, or put a token into the path",
            ),
            Self::Port(port) => {
                write!(
                    f,
                    "port {port} is not allowed: use 80, 443, or 1024 and above"
                )
            }
            Self::NoHost => f.write_str("the URL names no host"),
            Self::Forbidden(forbidden) => forbidden.fmt(f),
        }
    }
}

impl Error for InvalidTarget {}
