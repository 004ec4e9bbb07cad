//! Which requests share a budget, a gate and a cooldown: those to one host, unless said otherwise.

#[cfg(feature = "tower")]
use std::borrow::Cow;
use std::sync::Arc;

#[cfg(feature = "tower")]
use http::Uri;
#[cfg(feature = "tower")]
use http::uri::Authority;
use relent::{Destination, Destinations};
use relent_core::Policy;

/// Where the shared state of a request is found.
#[derive(Clone, Debug)]
pub(crate) enum There {
    ByHost(Arc<Destinations>),
    One(Arc<Destination>),
}

impl There {
    pub(crate) fn by_host(policy: &Arc<Policy>) -> Self {
        Self::ByHost(Arc::new(Destinations::new(Arc::clone(policy))))
    }

    /// The destination at this address.
    #[cfg(feature = "tower")]
    pub(crate) fn at(&self, uri: &Uri) -> Arc<Destination> {
        match self {
            Self::ByHost(destinations) => {
                let written = uri.authority().map_or("", Authority::as_str);
                let last = may_be_name(written).then(|| destinations.again(written));
                let last = last.flatten();
                last.unwrap_or_else(|| destinations.of(&host(uri)))
            }
            Self::One(destination) => Arc::clone(destination),
        }
    }

    /// The destination at this host, with its port.
    #[cfg(any(feature = "reqwest", test))]
    pub(crate) fn of(&self, host: &str) -> Arc<Destination> {
        match self {
            Self::ByHost(destinations) => {
                let last = destinations.again(host);
                last.unwrap_or_else(|| destinations.of(without_user(host)))
            }
            Self::One(destination) => Arc::clone(destination),
        }
    }
}

/// Who asks is no part of where it goes, and a password is kept nowhere.
fn without_user(authority: &str) -> &str {
    let user = authority.bytes().rposition(|byte| byte == b'@');
    user.and_then(|at| authority.get(at + 1..))
        .unwrap_or(authority)
}

/// Whether a destination of this very name is where a request goes whose address is written like this,
/// so that it need not be looked at any closer. Other ways to write it are no names, but for the port
/// that the one scheme has anyway and the other has not.
#[cfg(feature = "tower")]
#[inline]
fn may_be_name(authority: &str) -> bool {
    !authority.ends_with(":80") && !authority.ends_with(":443")
}

/// What tells destinations apart: host and port, in small letters and without the port that the scheme
/// has anyway, as in a `Url`. Most addresses are written so, and are not copied.
#[cfg(feature = "tower")]
fn host(uri: &Uri) -> Cow<'_, str> {
    let authority = uri.authority().map_or("", Authority::as_str);
    // Behind '@' come the capitals: one look at each byte finds both.
    let plain = !authority.bytes().any(|byte| matches!(byte, b'@'..=b'Z'));
    let host = match plain {
        true => authority,
        false => without_user(authority),
    };
    let host = match uri.scheme_str() {
        Some("https") => host.strip_suffix(":443").unwrap_or(host),
        Some("http") => host.strip_suffix(":80").unwrap_or(host),
        _ => host,
    };
    if plain || !host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Cow::Borrowed(host);
    }
    Cow::Owned(host.to_ascii_lowercase())
}

#[cfg(all(test, feature = "tower"))]
#[allow(clippy::unwrap_used, reason = "tests may panic")]
mod tests {
    use super::*;

    #[test]
    fn one_host_is_one_destination_however_it_is_written() {
        for (uri, name) in [
            ("https://one.example/", "one.example"),
            ("https://one.example:443/a", "one.example"),
            ("https://ONE.Example:443/b", "one.example"),
            ("https://user:pass@one.example/", "one.example"),
            ("http://one.example:80/", "one.example"),
            ("http://one.example:443/", "one.example:443"),
            ("https://one.example:80/", "one.example:80"),
            ("https://one.example:8443/", "one.example:8443"),
            ("http://[2001:db8::80]/", "[2001:db8::80]"),
            ("http://[2001:DB8::1]:80/", "[2001:db8::1]"),
            ("/a", ""),
        ] {
            assert_eq!(host(&uri.parse().unwrap()), name, "{uri}");
        }
    }

    #[test]
    fn the_destination_that_was_called_last_is_found_by_the_whole_of_its_name() {
        let there = There::by_host(&Arc::new(Policy::STANDARD.clone()));
        let at = |uri: &str| there.at(&uri.parse().unwrap());
        let (other, plain) = (at("https://one.example:80/"), at("http://one.example/"));
        assert!(!Arc::ptr_eq(&other, &plain));
        let _ = at("https://one.example:80/");
        assert!(Arc::ptr_eq(&plain, &at("http://one.example:80/")));
        assert!(Arc::ptr_eq(&plain, &at("http://ONE.example/")));
        assert!(Arc::ptr_eq(&plain, &at("http://user@one.example/")));
    }

    #[test]
    fn an_address_as_it_usually_is_is_not_copied() {
        let uri = "https://one.example:443/".parse().unwrap();
        assert!(matches!(host(&uri), Cow::Borrowed(_)));
    }

    #[test]
    fn who_asks_makes_no_difference() {
        let there = There::by_host(&Arc::new(Policy::STANDARD.clone()));
        let (one, two) = (there.of("a:secret@one.example"), there.of("one.example"));
        assert!(Arc::ptr_eq(&one, &two));
    }
}
