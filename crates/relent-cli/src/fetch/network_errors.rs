//! Messages for network errors: the failure, its place, and advice.

use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use relent::failure::{Cause, Network};
use relent::trace::rfc3339;
use relent_http::network::{SocksRefused, TunnelRefused, chain, socks_refused, tunnel_refused};
use relent_reqwest::{AttemptError, FailedAttempt, LastResult};
use reqwest::Url;
use rustls::CertificateError;

use super::proxies::{Proxies, is_socks};
use crate::human::human;

/// The route of requests, for messages.
pub(crate) struct Route {
    pub(crate) url: Url,
    pub(crate) proxies: Proxies,
    pub(crate) connect_timeout: Duration,
    /// The value of `--connect-timeout`.
    pub(crate) chosen_connect_timeout: Duration,
    /// The Unix socket to which all requests go, instead of the host.
    pub(crate) unix_socket: Option<PathBuf>,
}

impl Route {
    /// Describes the failure of an attempt.
    pub(crate) fn outcome(&self, failed: &FailedAttempt) -> String {
        let cause = failed.failure.cause;
        let error = match &failed.last {
            LastResult::Refused(_) => return cause.to_string(),
            LastResult::Error(error) => error,
        };
        match error {
            AttemptError::Transport(error) => self.transport(cause, error),
            AttemptError::UnexpectedResponse(what) => format!("{cause}: {what}"),
            AttemptError::Timeout(limit) => format!("{cause} after {}", human(*limit)),
            AttemptError::Silent(within) => format!(
                "the server was silent for {} (--idle-timeout; {})",
                human(*within),
                self.place(&self.url)
            ),
            error => error.to_string(),
        }
    }

    fn transport(&self, cause: Cause, error: &reqwest::Error) -> String {
        let url = error.url().unwrap_or(&self.url);
        let at = self.place(url);
        if let Some(refused) = refused_tunnel(error) {
            return format!("{refused} ({at})");
        }
        if let Some(refused) = refused_by_socks(error) {
            return format!("{refused} ({at})");
        }
        let what = root(error).to_string();
        let network = match cause {
            Cause::Network(network) => network,
            Cause::Timeout if error.is_connect() => {
                let option = match self.connect_timeout == self.chosen_connect_timeout {
                    true => " (--connect-timeout)",
                    false => "",
                };
                let limit = human(self.connect_timeout);
                return format!("no connection within {limit}{option} ({at})");
            }
            _ => return format!("{what} ({at})"),
        };
        match network {
            Network::Dns | Network::NameNotFound => format!("{cause} ({at})"),
            Network::Certificate => format!("{cause}: {}", self.certificate(url, error, &what)),
            Network::Handshake => match rustls_error(error) {
                Some(rustls::Error::InvalidMessage(_)) => format!(
                    "TLS handshake failed: the server does not use TLS; perhaps http://? ({at})"
                ),
                Some(error) => format!("TLS handshake failed: {error} ({at})"),
                None => format!("{cause} ({at})"),
            },
            // "Connection refused", "Network is unreachable".
            Network::Connect => format!("{} ({at})", without_number(&what)),
            Network::BadRequest | Network::Malformed | Network::Local | Network::Other => {
                format!("{cause}: {what} ({at})")
            }
            _ => format!("{cause} ({at})"),
        }
    }

    /// Names host and port, and the proxy or socket if there is one.
    fn place(&self, url: &Url) -> String {
        let place = host_and_port(url);
        if let Some(socket) = &self.unix_socket {
            return format!("{place} at the socket {}", socket.display());
        }
        match self.proxies.of(url) {
            Some(proxy) => format!("{place} through the proxy {}", host_and_port(proxy)),
            None => place,
        }
    }

    /// Whether relent resolves only the name of the proxy. With a SOCKS proxy it may also resolve that of the host.
    pub(crate) fn looks_up_proxy(&self) -> bool {
        let proxy = self.proxies.of(&self.url);
        proxy.is_some_and(|proxy| !is_socks(proxy))
    }

    fn certificate(&self, url: &Url, error: &reqwest::Error, what: &str) -> String {
        // Of a tunnel's own client, the error of reqwest is within that of the request.
        let in_tunnel = chain(error)
            .filter(|error| error.is::<reqwest::Error>())
            .count()
            > 1;
        let proxy = self
            .proxies
            .of(url)
            .filter(|proxy| proxy.scheme() == "https");
        let url = proxy
            .filter(|_| in_tunnel || url.scheme() == "http")
            .unwrap_or(url);
        let at = host_and_port(url);
        let Some(rustls::Error::InvalidCertificate(error)) = rustls_error(error) else {
            return format!("{what} ({})", self.place(url));
        };
        let whose = format!("that of {at}");
        match error {
            CertificateError::Expired => format!("{whose} has expired"),
            CertificateError::ExpiredContext { not_after, .. } => {
                format!("{whose} expired at {}", instant(not_after.as_secs()))
            }
            CertificateError::NotValidYet => format!("{whose} is not valid yet"),
            CertificateError::NotValidYetContext { not_before, .. } => {
                format!("{whose} is valid from {} on", instant(not_before.as_secs()))
            }
            CertificateError::NotValidForName => format!("{whose} is for another name"),
            CertificateError::NotValidForNameContext { presented, .. } => format!(
                "{whose} is for {} and not for {}",
                names(presented),
                url.host_str().unwrap_or_default()
            ),
            CertificateError::UnknownIssuer => format!(
                "{whose} is not issued by a trusted CA; --cacert FILE names the trusted CAs"
            ),
            CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
                format!(
                    "{whose} is that of a CA (basicConstraints CA:TRUE), which relent accepts from no \
                     server without -k"
                )
            }
            CertificateError::Revoked => format!("{whose} has been revoked"),
            _ => format!("{whose}: {error}"),
        }
    }
}

/// Formats `DnsName("a.example")` as `a.example`.
fn names(presented: &[String]) -> String {
    let bare = |name: &String| match name.split_once("(\"") {
        Some((_, name)) => name.trim_end_matches("\")").to_owned(),
        None => name.clone(),
    };
    if presented.is_empty() {
        return "no name".to_owned();
    }
    presented.iter().map(bare).collect::<Vec<_>>().join(", ")
}

fn instant(seconds: u64) -> String {
    let instant = UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
    instant.map_or_else(|| "some time".to_owned(), rfc3339)
}

/// Formats host and port of a URL: `example.com:443`.
pub(crate) fn host_and_port(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port_or_known_default() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// Removes the number from "Connection refused (os error 111)".
pub(crate) fn without_number(text: &str) -> &str {
    text.split(" (os error").next().unwrap_or(text)
}

/// Returns the response of a proxy that refused a tunnel, if that is the cause of the error.
pub(super) fn refused_tunnel(error: &reqwest::Error) -> Option<TunnelRefused> {
    chain(error).find_map(tunnel_refused)
}

/// Returns the reply of a SOCKS proxy that refused, if that is the cause of the error.
pub(super) fn refused_by_socks(error: &reqwest::Error) -> Option<SocksRefused> {
    chain(error).find_map(socks_refused)
}

fn rustls_error(error: &reqwest::Error) -> Option<&rustls::Error> {
    chain(error).find_map(|error| error.downcast_ref())
}

/// Returns the innermost error: reqwest's text names only the URL.
pub(crate) fn root(error: &reqwest::Error) -> Source<'_> {
    chain(error).last().unwrap_or(error)
}

pub(crate) type Source<'e> = &'e (dyn Error + 'static);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_names_are_shown_without_their_type() {
        let presented = [
            "DnsName(\"a.example\")".to_owned(),
            "IpAddress(1)".to_owned(),
        ];
        assert_eq!(names(&presented), "a.example, IpAddress(1)");
        assert_eq!(names(&[]), "no name");
    }

    #[test]
    fn an_address_has_its_port() {
        let place = |url| host_and_port(&Url::parse(url).unwrap());
        assert_eq!(place("https://a.example/x"), "a.example:443");
        assert_eq!(place("http://[::1]:81/"), "[::1]:81");
    }
}
