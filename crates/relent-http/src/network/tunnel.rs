//! Errors of proxies that refuse to open a CONNECT tunnel.

use std::error::Error;
use std::fmt;

use http::{StatusCode, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use relent_core::{Cause, Failure, FailureKind, Network};
use tower_service::Service;

use super::source::Source;
use crate::hint::HintOptions;
use crate::outcome::approximate_now;
use crate::repeatable::RequestInfo;

/// Error: a proxy refused CONNECT with this status, so the request was not sent.
///
/// For connectors that open tunnels themselves and keep the status. Those of hyper-util and reqwest keep only 407,
/// which [`classify_error`](super::classify_error) finds as well.
///
/// ```
/// use http::StatusCode;
/// use relent_core::FailureKind;
/// use relent_http::network::TunnelRefused;
///
/// let wrong_password = TunnelRefused::new(StatusCode::PROXY_AUTHENTICATION_REQUIRED);
/// assert_eq!(wrong_password.failure().kind, FailureKind::Permanent);
/// let busy = TunnelRefused::new(StatusCode::SERVICE_UNAVAILABLE);
/// assert_eq!(busy.failure().kind, FailureKind::NotProcessed);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TunnelRefused(StatusCode);

impl TunnelRefused {
    /// Creates the error for a proxy that responded to CONNECT with this status.
    #[must_use]
    pub const fn new(status: StatusCode) -> Self {
        Self(status)
    }

    /// The status of the proxy.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        self.0
    }

    /// Classifies the failure of the request. A status that is permanent in a response is permanent here too: the same
    /// CONNECT would be refused again, and repeating a wrong password locks accounts.
    /// Any other status is not processed, since no part of the request was sent.
    #[must_use]
    pub fn failure(self) -> Failure {
        let (facts, options) = (RequestInfo::default(), HintOptions::default());
        let headers = http::HeaderMap::new();
        let failure = crate::classify(self.0, &headers, facts, approximate_now(), &options);
        let kind = match failure.map(|failure| failure.kind) {
            // A status below 400 opens no tunnel either.
            None | Some(FailureKind::Permanent) => FailureKind::Permanent,
            Some(_) => FailureKind::NotProcessed,
        };
        Failure::new(kind).cause(Cause::Network(Network::Connect))
    }
}

impl fmt::Display for TunnelRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the proxy refused CONNECT with status {}", self.0)?;
        match self.0 {
            StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
                f.write_str(": check its user name and password")
            }
            _ => Ok(()),
        }
    }
}

impl Error for TunnelRefused {}

/// The error of hyper-util's tunnel, whose module is private.
type TunnelError = <Tunnel<HttpConnector> as Service<Uri>>::Error;

/// The refusal of CONNECT in a cause of an error, with its status, if the connector keeps it; else `None`.
#[must_use]
pub fn tunnel_refused(source: Source<'_>) -> Option<TunnelRefused> {
    if let Some(TunnelError::ProxyAuthRequired) = source.downcast_ref() {
        return Some(TunnelRefused::new(
            StatusCode::PROXY_AUTHENTICATION_REQUIRED,
        ));
    }
    source.downcast_ref().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connect_refusal_that_would_repeat_is_permanent() {
        for status in 200..600 {
            let refused = TunnelRefused::new(StatusCode::from_u16(status).unwrap());
            let kind = match status {
                408 | 421 | 425 | 429 | 500 | 502..=504 | 506..=510 | 512.. => {
                    FailureKind::NotProcessed
                }
                _ => FailureKind::Permanent,
            };
            let failure = refused.failure();
            assert_eq!(failure.kind, kind, "{status}");
            assert_eq!(failure.cause, Cause::Network(Network::Connect));
            assert!(refused.to_string().contains(&status.to_string()));
            let error: Box<dyn Error> = Box::new(refused);
            assert_eq!(tunnel_refused(&*error), Some(refused));
        }
    }
}
