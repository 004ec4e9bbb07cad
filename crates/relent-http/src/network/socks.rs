//! Errors of SOCKS proxies that open no connection.

use std::error::Error;
use std::fmt;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::SocksV5;
use relent_core::{Cause, Failure, FailureKind, Network};
use tower_service::Service;

use super::source::Source;

/// Error: the reply of a SOCKS proxy that opened no connection, so the request was not sent.
///
/// ```
/// use relent_core::FailureKind;
/// use relent_http::network::SocksRefused;
///
/// assert_eq!(SocksRefused::Credentials.failure().kind, FailureKind::Permanent);
/// assert_eq!(SocksRefused::HostUnreachable.failure().kind, FailureKind::NotProcessed);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SocksRefused {
    /// SOCKS5: the proxy accepts none of the offered authentication methods, or requires one that was not offered.
    Method,
    /// SOCKS5: the user name or the password is wrong.
    Credentials,
    /// SOCKS5, reply 1: general failure.
    General,
    /// SOCKS5, reply 2: not allowed by the ruleset.
    NotAllowed,
    /// SOCKS5, reply 3: network unreachable.
    NetworkUnreachable,
    /// SOCKS5, reply 4: host unreachable.
    HostUnreachable,
    /// SOCKS5, reply 5: the destination refused the connection.
    ConnectionRefused,
    /// SOCKS5, reply 6: TTL expired.
    TtlExpired,
    /// SOCKS5, reply 7: command not supported.
    Command,
    /// SOCKS5, reply 8: the type of the address is not supported.
    AddressType,
    /// SOCKS4, reply 91: rejected or failed, for any reason.
    Rejected,
    /// SOCKS4, reply 92 or 93: the proxy cannot confirm the user by ident.
    Ident,
    /// The reply is not valid SOCKS.
    Malformed,
    /// The proxy was not contacted, since this version of SOCKS cannot express the destination: IPv6 with SOCKS4, or a
    /// name of more than 255 bytes.
    Destination,
}

impl SocksRefused {
    /// Classifies the failure of the request. A reply that the same request would get again is permanent:
    /// repeating a wrong password locks accounts. Replies about the path to the destination may be temporary.
    #[must_use]
    pub fn failure(self) -> Failure {
        let (kind, network) = match self {
            Self::Method
            | Self::Credentials
            | Self::NotAllowed
            | Self::Command
            | Self::AddressType
            | Self::Ident => (FailureKind::Permanent, Network::Connect),
            Self::Destination => (FailureKind::Permanent, Network::BadRequest),
            Self::Malformed => (FailureKind::NotProcessed, Network::Malformed),
            Self::General
            | Self::NetworkUnreachable
            | Self::HostUnreachable
            | Self::ConnectionRefused
            | Self::TtlExpired
            | Self::Rejected => (FailureKind::NotProcessed, Network::Connect),
        };
        Failure::new(kind).cause(Cause::Network(network))
    }
}

impl fmt::Display for SocksRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Method => {
                "the SOCKS proxy accepts none of the offered authentication methods: check whether it \
                 needs a user name and password"
            }
            Self::Credentials => {
                "the SOCKS proxy refused the credentials: check its user name and password"
            }
            Self::General => "the SOCKS proxy replied: general failure",
            Self::NotAllowed => "the SOCKS proxy replied: connection not allowed by ruleset",
            Self::NetworkUnreachable => "the SOCKS proxy replied: network unreachable",
            Self::HostUnreachable => "the SOCKS proxy replied: host unreachable",
            Self::ConnectionRefused => "the SOCKS proxy replied: connection refused",
            Self::TtlExpired => "the SOCKS proxy replied: TTL expired",
            Self::Command => "the SOCKS proxy replied: command not supported",
            Self::AddressType => "the SOCKS proxy replied: address type not supported",
            Self::Rejected => "the SOCKS proxy replied: request rejected or failed",
            Self::Ident => "the SOCKS proxy replied: the user is not confirmed by ident",
            Self::Malformed => "the proxy's reply is not one of SOCKS",
            Self::Destination => "the destination cannot be reached by this version of SOCKS",
        })
    }
}

impl Error for SocksRefused {}

/// The error of hyper-util's SOCKS connectors, whose module is private.
type SocksError = <SocksV5<HttpConnector> as Service<Uri>>::Error;

/// The reply of a SOCKS proxy in a cause of an error; `None` if there is none.
///
/// hyper-util's error contains private types, so their variants are distinguished by the names that
/// `Debug` gives them. A variant with an unknown name counts as none.
#[must_use]
pub fn socks_refused(source: Source<'_>) -> Option<SocksRefused> {
    let Some(error) = source.downcast_ref::<SocksError>() else {
        return source.downcast_ref().copied();
    };
    match error {
        SocksError::V5(error) => Some(match &*format!("{error:?}") {
            "Auth(Unsupported)" | "Auth(MethodMismatch)" => SocksRefused::Method,
            "Auth(Failed)" => SocksRefused::Credentials,
            "Command(GeneralServerFailure)" => SocksRefused::General,
            "Command(ConnectionNotAllowed)" => SocksRefused::NotAllowed,
            "Command(NetworkUnreachable)" => SocksRefused::NetworkUnreachable,
            "Command(HostUnreachable)" => SocksRefused::HostUnreachable,
            "Command(ConnectionRefused)" => SocksRefused::ConnectionRefused,
            "Command(TtlExpired)" => SocksRefused::TtlExpired,
            "Command(CommandNotSupported)" => SocksRefused::Command,
            "Command(AddressTypeNotSupported)" => SocksRefused::AddressType,
            "HostTooLong" => SocksRefused::Destination,
            _ => return None,
        }),
        SocksError::V4(error) => Some(match &*format!("{error:?}") {
            "Command(Failed)" => SocksRefused::Rejected,
            "Command(IdentFailure)" | "Command(IdentMismatch)" => SocksRefused::Ident,
            "IpV6" => SocksRefused::Destination,
            _ => return None,
        }),
        SocksError::Parsing(_) => Some(SocksRefused::Malformed),
        SocksError::MissingHost | SocksError::MissingPort | SocksError::Serialize(_) => {
            Some(SocksRefused::Destination)
        }
        SocksError::Inner(_) | SocksError::Io(_) | SocksError::DnsFailure => None,
    }
}

/// Whether an error is one of a SOCKS connector: there is no connection to the destination yet.
pub(super) fn is_connect(source: Source<'_>) -> bool {
    source.is::<SocksError>()
}

/// The reason why the SOCKS proxy cannot be reached, which the error of its connector does not return as its source.
pub(super) fn within(source: Source<'_>) -> Option<Source<'_>> {
    match source.downcast_ref::<SocksError>()? {
        SocksError::Inner(error) => Some(error),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use hyper_util::client::legacy::connect::proxy::SocksV4;

    use super::*;
    use crate::network::classify_error;

    /// The error of a connector to a proxy that gives these answers to one client, in order.
    async fn refused_by(version: u8, target: &str, answers: &[&[u8]]) -> SocksError {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = format!("http://{}", listener.local_addr().unwrap());
        let answers: Vec<_> = answers.iter().map(|answer| answer.to_vec()).collect();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for answer in answers {
                let _ = stream.read(&mut [0; 600]).unwrap();
                stream.write_all(&answer).unwrap();
            }
        });
        let (proxy, http) = (proxy.parse().unwrap(), HttpConnector::new());
        let target = target.parse().unwrap();
        let error = if version == 4 {
            let mut socks = SocksV4::new(proxy, http);
            socks.call(target).await.unwrap_err()
        } else {
            let socks = SocksV5::new(proxy, http);
            let mut socks = socks.with_auth("u".to_owned(), "hunter2".to_owned());
            socks.call(target).await.unwrap_err()
        };
        server.join().unwrap();
        error
    }

    const NAME: &str = "http://pay.invalid:80";

    #[tokio::test]
    async fn every_socks5_reply_is_recognised() {
        let method = [5, 2];
        for (answers, reply) in [
            (&[&[5, 0xff][..]][..], SocksRefused::Method),
            (&[&[5, 0]], SocksRefused::Method),
            (&[&method, &[1, 1]], SocksRefused::Credentials),
            (
                &[b"HTTP/1.1 400 Bad Request\r\n\r\n"],
                SocksRefused::Malformed,
            ),
        ] {
            assert_recognised(&refused_by(5, NAME, answers).await, reply);
        }
        for (number, reply) in [
            (1, SocksRefused::General),
            (2, SocksRefused::NotAllowed),
            (3, SocksRefused::NetworkUnreachable),
            (4, SocksRefused::HostUnreachable),
            (5, SocksRefused::ConnectionRefused),
            (6, SocksRefused::TtlExpired),
            (7, SocksRefused::Command),
            (8, SocksRefused::AddressType),
            (9, SocksRefused::Malformed),
        ] {
            let answer = [5, number, 0, 1, 0, 0, 0, 0, 0, 0];
            let error = refused_by(5, NAME, &[&method, &[1, 0], &answer]).await;
            assert_recognised(&error, reply);
        }
    }

    #[tokio::test]
    async fn every_socks4_reply_is_recognised() {
        for (number, reply) in [
            (91, SocksRefused::Rejected),
            (92, SocksRefused::Ident),
            (93, SocksRefused::Ident),
            (94, SocksRefused::Malformed),
        ] {
            let error = refused_by(4, NAME, &[&[0, number, 0, 0, 0, 0, 0, 0]]).await;
            assert_recognised(&error, reply);
        }
        let error = refused_by(4, "http://[::1]:80", &[]).await;
        assert_recognised(&error, SocksRefused::Destination);
    }

    fn assert_recognised(error: &SocksError, reply: SocksRefused) {
        assert_eq!(socks_refused(error), Some(reply), "{error:?}");
        assert_eq!(classify_error(error), reply.failure(), "{reply}");
        let own: Box<dyn Error> = Box::new(reply);
        assert_eq!(socks_refused(&*own), Some(reply));
    }

    #[tokio::test]
    async fn a_socks_proxy_that_hangs_up_or_is_absent_fails_to_connect() {
        let error = refused_by(5, NAME, &[&[5, 2], &[]]).await;
        assert_eq!(socks_refused(&error), None);
        assert_eq!(classify_error(&error), Failure::network(Network::Connect));
        // Port 0 has no listener.
        let closed = "http://127.0.0.1:0".parse().unwrap();
        let mut closed = SocksV5::new(closed, HttpConnector::new());
        let target = NAME.parse().unwrap();
        let error = closed.call(target).await.unwrap_err();
        assert_eq!(classify_error(&error), Failure::network(Network::Connect));
    }
}
