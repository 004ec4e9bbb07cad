//! Maps requests to the destinations that hold shared state: by default one for each origin.
//!
//! An origin is scheme, host and port (RFC 6454), written as in its §6.2: in lower case, without
//! the default port, and without user information. `http` and `https` of one host are two origins:
//! they have two listeners, and are often two services.

use std::borrow::Cow;
use std::sync::Arc;

use http::Uri;
use http::uri::Authority;
use relent::clock::Clock;
use relent::{Destination, Destinations};
use relent_core::Policy;

/// Source of the shared state (budget, circuit breaker, cooldown) for a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DestinationSource {
    /// One destination for each origin.
    ByOrigin(Arc<Destinations>),
    /// One destination for all requests.
    One(Arc<Destination>),
}

impl DestinationSource {
    /// Creates one destination for each origin, with this policy.
    #[must_use]
    pub fn by_origin(policy: &Arc<Policy>) -> Self {
        Self::ByOrigin(Arc::new(Destinations::new(Arc::clone(policy))))
    }

    /// Replaces the policy of all existing and future destinations.
    pub fn set_policy(&self, policy: &Arc<Policy>, clock: &impl Clock) {
        match self {
            Self::ByOrigin(destinations) => destinations.set_policy(Arc::clone(policy), clock),
            Self::One(destination) => destination.set_policy(Arc::clone(policy), clock),
        }
    }

    /// The destination of this URI.
    pub fn at(&self, uri: &Uri) -> Arc<Destination> {
        match self {
            Self::ByOrigin(destinations) => {
                // Most URIs are written exactly like the destination's name, so they need no copy.
                let last = destinations.last_used_if(|name| is_origin_of(uri, name));
                last.unwrap_or_else(|| destinations.get_or_create(&origin_of_uri(uri)))
            }
            Self::One(destination) => Arc::clone(destination),
        }
    }

    /// The destination of an origin, written as `scheme://authority` in lower case and
    /// without the default port, as `url::Url` writes it. It may contain user and password. All addresses
    /// without an origin share the empty one.
    pub fn named(&self, origin: &str) -> Arc<Destination> {
        match self {
            Self::ByOrigin(destinations) => {
                let last = destinations.last_used(origin);
                last.unwrap_or_else(|| destinations.get_or_create(&without_user(origin)))
            }
            Self::One(destination) => Arc::clone(destination),
        }
    }
}

/// Removes user and password: they do not select the destination, and passwords are not stored.
fn without_user(origin: &str) -> Cow<'_, str> {
    let separated = origin.split_once("://");
    match separated.and_then(|(scheme, authority)| Some((scheme, authority.rsplit_once('@')?.1))) {
        Some((scheme, host)) => Cow::Owned(format!("{scheme}://{host}")),
        None => Cow::Borrowed(origin),
    }
}

/// Whether the URI begins with exactly this origin. Other spellings and schemes are
/// left to [`origin_of_uri`].
#[inline]
fn is_origin_of(uri: &Uri, name: &str) -> bool {
    let authority = uri.authority().map_or("", Authority::as_str);
    match name.strip_suffix(authority) {
        Some("https://") => uri.scheme_str() == Some("https"),
        Some("http://") => uri.scheme_str() == Some("http"),
        Some("") => uri.scheme_str().is_none(),
        _ => false,
    }
}

/// The name of the destination of this URI, whatever its spelling.
fn origin_of_uri(uri: &Uri) -> String {
    let scheme = uri.scheme_str().map(str::to_ascii_lowercase);
    let default_port = match scheme.as_deref() {
        Some("https") => Some(443),
        Some("http") => Some(80),
        _ => None,
    };
    let mut host = uri.host().unwrap_or_default().to_ascii_lowercase();
    // An IPv6 address has several spellings (RFC 5952).
    let within = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    if let Some(address) = within.and_then(|within| within.parse::<std::net::Ipv6Addr>().ok()) {
        host = format!("[{address}]");
    }
    let port = uri.port_u16().filter(|port| Some(*port) != default_port);
    let port = port.map_or_else(String::new, |port| format!(":{port}"));
    match scheme {
        Some(scheme) => format!("{scheme}://{host}{port}"),
        None => host + &port,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic")]
mod tests {
    use super::*;

    fn there() -> DestinationSource {
        DestinationSource::by_origin(&Arc::new(Policy::STANDARD.clone()))
    }

    /// Spellings of origins, and the name of each.
    const SPELLINGS: [(&str, &str); 16] = [
        ("https://one.example/", "https://one.example"),
        ("https://one.example:443/a", "https://one.example"),
        ("https://ONE.Example:443/b", "https://one.example"),
        ("https://user:pass@one.example/", "https://one.example"),
        ("http://one.example/", "http://one.example"),
        ("http://one.example:80/", "http://one.example"),
        ("http://user@ONE.example:80/", "http://one.example"),
        ("http://one.example:443/", "http://one.example:443"),
        ("https://one.example:80/", "https://one.example:80"),
        ("https://one.example:8443/", "https://one.example:8443"),
        ("http://[2001:db8::80]/", "http://[2001:db8::80]"),
        ("https://[2001:db8::80]/", "https://[2001:db8::80]"),
        ("http://[2001:DB8::1]:80/", "http://[2001:db8::1]"),
        ("http://[2001:db8:0:0:0:0:0:1]/", "http://[2001:db8::1]"),
        ("http://[2001:db8::1]:81/", "http://[2001:db8::1]:81"),
        ("http://one.example./", "http://one.example."),
    ];

    #[test]
    fn all_spellings_of_an_origin_share_a_destination() {
        let by_uri = there();
        for (written, name) in SPELLINGS {
            let uri = written.parse().unwrap();
            assert_eq!(origin_of_uri(&uri), name, "{written}");
            assert!(Arc::ptr_eq(
                &by_uri.at(&uri),
                &by_uri.at(&name.parse().unwrap())
            ));
        }
        for path in ["/a", ""] {
            assert_eq!(origin_of_uri(&path.parse().unwrap_or_default()), "");
        }
    }

    #[test]
    fn http_and_https_of_one_host_are_two_destinations() {
        let there = there();
        for (one, two) in [
            ("http://one.example/", "https://one.example/"),
            ("http://one.example:443/", "https://one.example:443/"),
            ("http://[::1]/", "https://[::1]/"),
        ] {
            let at = |uri: &str| there.at(&uri.parse().unwrap());
            assert!(!Arc::ptr_eq(&at(one), &at(two)));
        }
    }

    #[test]
    fn the_last_destination_is_found_by_its_full_name() {
        let there = there();
        let at = |uri: &str| there.at(&uri.parse().unwrap());
        let (other, plain) = (at("https://one.example:80/"), at("http://one.example/"));
        assert!(!Arc::ptr_eq(&other, &plain));
        let _ = at("https://one.example:80/");
        assert!(Arc::ptr_eq(&plain, &at("http://one.example:80/")));
        assert!(Arc::ptr_eq(&plain, &at("http://ONE.example/")));
        assert!(Arc::ptr_eq(&plain, &at("http://user@one.example/")));
    }

    #[test]
    fn a_common_uri_spelling_is_not_copied() {
        for (written, copied) in [
            ("https://one.example/a", false),
            ("https://one.example:443/a", true),
            ("http://one.example/a", true),
        ] {
            let called = is_origin_of(&written.parse().unwrap(), "https://one.example");
            assert_eq!(called, !copied, "{written}");
        }
    }

    #[test]
    fn user_and_password_do_not_select_the_destination() {
        let there = there();
        let one = there.named("https://a:secret@one.example");
        assert!(Arc::ptr_eq(&one, &there.named("https://one.example")));
        assert!(Arc::ptr_eq(&one, &there.named("https://b@one.example")));
    }
}
