//! Routes: sets of requests that have their own policy.

use std::fmt;
use std::str::FromStr;

use http::{Method, Uri};

/// A set of requests, by method, host and path.
///
/// It is written as `[METHOD[,METHOD]…] HOST[:PORT][/PATH]`:
///
/// | part | matches |
/// |---|---|
/// | `GET,HEAD` | these methods; any method if left out |
/// | `api.example.com` | this host, case-insensitive, on any port |
/// | `api.example.com:8443` | this port; the default ports of `http` and `https` are 80 and 443 |
/// | `*.example.com` | every host below it, but not the host itself |
/// | `*` | any host |
/// | `/reports` | this path and everything below it, but not `/reports-old` |
/// | `/users/*/avatar` | any one segment for each `*` |
///
/// Paths are compared without decoding: `%41` is not `A`.
///
/// ```
/// use http::Method;
/// use relent_reqwest::Route;
///
/// let reports: Route = "GET *.example.com/reports".parse()?;
/// assert!(reports.matches(&Method::GET, &"https://api.example.com/reports/7".parse()?));
/// assert!(!reports.matches(&Method::GET, &"https://api.example.com/reports-old".parse()?));
/// assert!(!reports.matches(&Method::POST, &"https://api.example.com/reports".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// Empty for any method.
    methods: Vec<Method>,
    host: Host,
    port: Option<u16>,
    /// The first segments; `None` is any segment.
    path: Vec<Option<String>>,
}

/// A host pattern in lower case.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Host {
    Any,
    Is(String),
    /// The suffix, including its leading dot.
    Below(String),
}

/// Error of parsing a [`Route`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidRoute {
    text: String,
    problem: &'static str,
}

impl fmt::Display for InvalidRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}: {}; a route is written as `api.example.com/reports` or `GET,HEAD *.example.com/users/*`",
            self.text, self.problem
        )
    }
}

impl std::error::Error for InvalidRoute {}

impl Route {
    /// Whether a request with this method and URL belongs to the route.
    #[must_use]
    pub fn matches(&self, method: &Method, uri: &Uri) -> bool {
        (self.methods.is_empty() || self.methods.contains(method))
            && self.port.is_none_or(|port| Some(port) == port_of(uri))
            && self.host.matches(uri.host().unwrap_or_default())
            && self.matches_path(uri.path())
    }

    fn matches_path(&self, path: &str) -> bool {
        let mut segments = path.split('/').skip(1);
        self.path.iter().all(|wanted| match segments.next() {
            Some(segment) => wanted
                .as_ref()
                .map_or(!segment.is_empty(), |wanted| wanted == segment),
            None => false,
        })
    }
}

impl Host {
    fn matches(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Is(name) => name.eq_ignore_ascii_case(host),
            Self::Below(suffix) => host
                .len()
                .checked_sub(suffix.len())
                .filter(|above| *above > 0)
                .and_then(|above| host.get(above..))
                .is_some_and(|end| end.eq_ignore_ascii_case(suffix)),
        }
    }
}

fn port_of(uri: &Uri) -> Option<u16> {
    uri.port_u16().or(match uri.scheme_str()? {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    })
}

impl FromStr for Route {
    type Err = InvalidRoute;

    fn from_str(text: &str) -> Result<Self, InvalidRoute> {
        parse(text.trim()).map_err(|problem| InvalidRoute {
            text: text.to_owned(),
            problem,
        })
    }
}

fn parse(text: &str) -> Result<Route, &'static str> {
    let (methods, place) = match text.split_once(char::is_whitespace) {
        Some((methods, place)) => (methods, place.trim_start()),
        None => ("", text),
    };
    let method = |name: &str| Method::from_bytes(name.as_bytes()).map_err(|_| "no such method");
    let methods = match methods {
        "" => Vec::new(),
        given => given.split(',').map(method).collect::<Result<_, _>>()?,
    };
    if place.contains("://") {
        return Err("a route has no scheme");
    }
    if place.contains(|found: char| found.is_whitespace() || matches!(found, '?' | '#' | '@')) {
        return Err("a route is of method, host and path only");
    }
    let (authority, path) = match place.find('/') {
        Some(slash) => (&place[..slash], &place[slash + 1..]),
        None => (place, ""),
    };
    let (host, port) = match authority.rsplit_once(':') {
        // Not the last part of an IPv6 address in brackets.
        Some((host, port)) if !port.ends_with(']') => {
            let port = port
                .parse()
                .map_err(|_| "the port is no number up to 65535")?;
            (host, Some(port))
        }
        _ => (authority, None),
    };
    Ok(Route {
        methods,
        host: parse_host(host)?,
        port,
        path: segments(path)?,
    })
}

fn parse_host(host: &str) -> Result<Host, &'static str> {
    let host = host.to_ascii_lowercase();
    let below = host.strip_prefix('*');
    if below.unwrap_or(&host).contains('*') {
        return Err("`*` in a host is its whole first label");
    }
    match below {
        Some("") => Ok(Host::Any),
        Some(rest) if rest.len() > 1 && rest.starts_with('.') => Ok(Host::Below(rest.to_owned())),
        Some(_) => Err("`*` in a host is its whole first label"),
        None if host.is_empty() => Err("the host is missing; `*` is any"),
        None => Ok(Host::Is(host)),
    }
}

fn segments(path: &str) -> Result<Vec<Option<String>>, &'static str> {
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let segment = |segment: &str| match segment {
        "*" => Ok(None),
        name if name.contains('*') => Err("`*` in a path is a whole segment"),
        name => Ok(Some(name.to_owned())),
    };
    path.split('/').map(segment).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(route: &str, request: &str) -> bool {
        let (method, url) = request.split_once(' ').unwrap();
        let route: Route = route.parse().unwrap();
        route.matches(&method.parse().unwrap(), &url.parse().unwrap())
    }

    #[test]
    fn a_route_matches_as_documented() {
        for (route, request, meant) in [
            ("*", "GET http://a/", true),
            ("a", "GET http://a/x/y", true),
            ("a", "GET http://A:81/", true),
            ("A", "GET http://a/", true),
            ("a", "GET http://a.b/", false),
            ("*.b.c", "GET http://a.b.c/", true),
            ("*.b.c", "GET http://x.a.B.c/", true),
            ("*.b.c", "GET http://b.c/", false),
            ("*.b.c", "GET http://ab.c/", false),
            ("a:80", "GET http://a/", true),
            ("a:443", "GET https://a/", true),
            ("a:443", "GET http://a/", false),
            ("a:8443", "GET https://a:8443/", true),
            ("[::1]", "GET http://[::1]:9/", true),
            ("[::1]:9", "GET http://[::1]:9/", true),
            ("[::1]:9", "GET http://[::1]:8/", false),
            ("a/x", "GET http://a/x", true),
            ("a/x/", "GET http://a/x", true),
            ("a/x", "GET http://a/x/", true),
            ("a/x", "GET http://a/x/y?q", true),
            ("a/x", "GET http://a/xy", false),
            ("a/x", "GET http://a/X", false),
            ("a/x", "GET http://a/", false),
            ("*/u/*/p", "GET http://a/u/7/p/q", true),
            ("*/u/*/p", "GET http://a/u/p", false),
            ("*/u/*", "GET http://a/u/", false),
            ("GET,HEAD a", "HEAD http://a/", true),
            ("GET,HEAD a", "POST http://a/", false),
            ("PURGE  a", "PURGE http://a/", true),
        ] {
            assert_eq!(matches(route, request), meant, "{route} of {request}");
        }
    }

    #[test]
    fn an_invalid_route_returns_the_reason() {
        for (text, says) in [
            ("", "host is missing"),
            ("/x", "host is missing"),
            ("https://a/", "no scheme"),
            ("a:x", "port"),
            ("a:99999", "port"),
            ("a*b", "first label"),
            ("*b", "first label"),
            ("*.", "first label"),
            ("*.a.*", "first label"),
            ("a/x*", "whole segment"),
            ("a/?q", "only"),
            ("u@a", "only"),
            ("G=T a", "method"),
            ("GET, a", "method"),
        ] {
            let error = text.parse::<Route>().unwrap_err().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn parsing_any_text_as_a_route_does_not_panic(text in ".{0,30}", path in "(/[a-z]{0,2}){0,3}") {
            if let Ok(route) = text.parse::<Route>() {
                let uri = format!("http://a{path}").parse().unwrap();
                let _ = route.matches(&Method::GET, &uri);
            }
        }
    }
}
