//! Formats a URI without secrets.

use std::fmt;

use http::Uri;

use crate::secret::{REDACTED, is_secret};

/// The address of a request as `url.full`: absolute if possible, without user and
/// password, and without the values of secret parameters.
pub(super) struct Redacted<'a> {
    pub(super) uri: &'a Uri,
    /// From the URI, or else the `Host` header.
    pub(super) authority: Option<&'a str>,
}

impl fmt::Display for Redacted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(scheme) = self.uri.scheme_str() {
            write!(f, "{scheme}:")?;
        }
        if let Some(authority) = self.authority {
            f.write_str("//")?;
            match authority.rsplit_once('@') {
                Some((_, host)) => write!(f, "{REDACTED}:{REDACTED}@{host}")?,
                None => f.write_str(authority)?,
            }
        }
        f.write_str(self.uri.path())?;
        let Some(query) = self.uri.query() else {
            return Ok(());
        };
        for (index, parameter) in query.split('&').enumerate() {
            f.write_str(if index == 0 { "?" } else { "&" })?;
            match parameter.split_once('=') {
                Some((name, _)) if is_secret(name) => write!(f, "{name}={REDACTED}")?,
                _ => f.write_str(parameter)?,
            }
        }
        Ok(())
    }
}

/// The host and the port, if any, of an authority.
fn parts(authority: &str) -> (&str, Option<&str>) {
    let address = authority
        .rsplit_once('@')
        .map_or(authority, |(_, address)| address);
    if let Some((host, rest)) = address
        .strip_prefix('[')
        .and_then(|bracketed| bracketed.split_once(']'))
    {
        return (host, rest.strip_prefix(':'));
    }
    match address.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (address, None),
    }
}

/// The host name or address.
pub(super) fn host(authority: &str) -> &str {
    parts(authority).0
}

/// The explicit port, or the default port of the scheme.
pub(super) fn port(uri: &Uri, authority: Option<&str>) -> Option<u16> {
    if let Some(port) = authority.and_then(|authority| parts(authority).1) {
        return port.parse().ok();
    }
    match uri.scheme_str() {
        Some("http") => Some(80),
        Some("https") => Some(443),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(text: &str) -> String {
        let uri: Uri = text.parse().unwrap();
        let authority = uri.authority().map(http::uri::Authority::as_str);
        Redacted {
            uri: &uri,
            authority,
        }
        .to_string()
    }

    #[test]
    fn user_and_password_are_redacted() {
        let told = "http://REDACTED:REDACTED@host:81/path?q=1";
        assert_eq!(redacted("http://user:hunter2@host:81/path?q=1"), told);
        assert_eq!(redacted("http://hunter2@host:81/path?q=1"), told);
    }

    #[test]
    fn secret_parameters_are_redacted_but_keep_their_names() {
        assert_eq!(
            redacted("https://host/a?color=blue&sig=hunter2&X-Amz-Signature=hunter2&&flag"),
            "https://host/a?color=blue&sig=REDACTED&X-Amz-Signature=REDACTED&&flag"
        );
        assert_eq!(redacted("http://h/?TOKEN=a=b"), "http://h/?TOKEN=REDACTED");
    }

    /// Servers decode `%74oken` to `token`.
    #[test]
    fn a_percent_encoded_parameter_name_is_secret() {
        assert_eq!(
            redacted("http://h/?%74oken=hunter2"),
            "http://h/?%74oken=REDACTED"
        );
    }

    #[test]
    fn host_and_port_are_read_out_of_every_authority() {
        let of = |text: &str| {
            let uri: Uri = text.parse().unwrap();
            let authority = uri.authority().map(http::uri::Authority::as_str);
            let host = authority.map(host).map(str::to_owned);
            (host, port(&uri, authority))
        };
        let named = |host: &str, port| (Some(host.to_owned()), port);
        assert_eq!(of("http://host/"), named("host", Some(80)));
        assert_eq!(of("https://user:pass@host/"), named("host", Some(443)));
        assert_eq!(of("https://host:8443/"), named("host", Some(8443)));
        assert_eq!(of("http://[::1]:81/"), named("::1", Some(81)));
        assert_eq!(of("http://[::1]/"), named("::1", Some(80)));
        assert_eq!(of("/path"), (None, None));
    }
}
