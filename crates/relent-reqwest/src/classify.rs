//! Classification of reqwest errors: a [`Failure`] states how far the attempt got.

#[cfg(feature = "middleware")]
use std::error::Error;
use std::time::UNIX_EPOCH;

use dns_lookup::LookupError;
use http::HeaderMap;
use relent_core::{Cause, Failure, Network};
use relent_http::network::{
    chain, is_local, socks_refused, tunnel_refused, while_connecting, while_receiving,
    while_sending,
};
use relent_http::{HintOptions, RequestInfo};

/// Classifies a reqwest error by the types and codes in its chain of sources, never by its text.
///
/// | error | kind | cause |
/// |---|---|---|
/// | the request cannot be built | permanent | [`Network::BadRequest`] |
/// | too many redirects, a redirect loop, or a redirect to another scheme than HTTP | permanent | [`Cause::Error`] |
/// | temporary failure of the DNS look-up | not processed | [`Network::Dns`] |
/// | name not found | not processed | [`Network::NameNotFound`], which is retried once |
/// | no connection in time | not processed | [`Cause::Timeout`] |
/// | refused, unreachable, or a proxy's tunnel failed | not processed | [`Network::Connect`] |
/// | a proxy refused CONNECT with 407, or with the status of a [`TunnelRefused`](relent_http::network::TunnelRefused) | permanent, or [as the status says](relent_http::network::TunnelRefused::failure) | [`Network::Connect`] |
/// | a SOCKS proxy opened no connection | [depends on its reply](relent_http::network::SocksRefused::failure) | [`Network::Connect`] |
/// | TLS handshake cut or failed | not processed | [`Network::Handshake`] |
/// | a certificate of either side rejected | permanent | [`Network::Certificate`] |
/// | HTTP/2 `REFUSED_STREAM`, `GOAWAY` below this stream | not processed | [`Network::RefusedStream`], [`Network::GoAway`] |
/// | a kept connection closed before it took the request | not processed | [`Network::Reset`] |
/// | the request's own body failed, for any reason | ambiguous | [`Network::Local`] |
/// | no response in time | ambiguous | [`Cause::Timeout`] |
/// | connection closed or reset before the response began | ambiguous | [`Network::Reset`] |
/// | response ended early | ambiguous | [`Network::Truncated`] |
/// | a response that is not valid HTTP | ambiguous | [`Network::Malformed`], which is retried once |
/// | anything else | ambiguous | [`Network::Other`] |
///
/// An error describes the last request only. After a redirect that reqwest has followed, an earlier request may have
/// taken effect, regardless of the kind of the error. A [`Client`](crate::Client) handles that itself; your own loop
/// must set [`Failure::hop`].
///
/// Failed DNS look-ups are distinguished only with [`dns::Resolver`](crate::dns::Resolver). With another resolver
/// every one is "name not found".
///
/// ```
/// use relent_core::{Cause, Network};
/// use relent_reqwest::network;
///
/// let error = reqwest::Client::new().get("no URL").build().unwrap_err();
/// assert_eq!(network::classify(&error).cause, Cause::Network(Network::BadRequest));
/// ```
#[must_use]
pub fn classify(error: &reqwest::Error) -> Failure {
    if error.is_builder() {
        return Failure::network(Network::BadRequest);
    }
    if error.is_redirect() {
        return Failure::permanent();
    }
    if let Some(status) = error.status() {
        // From `error_for_status`: the headers are gone, including any server hint.
        let (facts, options) = (RequestInfo::default(), HintOptions::default());
        let failure = relent_http::classify(status, &HeaderMap::new(), facts, UNIX_EPOCH, &options);
        return failure.unwrap_or(Failure::network(Network::Other));
    }
    if chain(error).any(is_local) {
        return Failure::network(Network::Local);
    }
    let lookup = chain(error).find_map(|source| source.downcast_ref::<LookupError>());
    // reqwest does not report a failed look-up of a SOCKS proxy's name as a DNS error.
    if error.is_dns() || lookup.is_some() {
        return Failure::network(lookup.map_or(Network::NameNotFound, crate::dns::network));
    }
    if let Some(refused) = chain(error).find_map(tunnel_refused) {
        return refused.failure();
    }
    if let Some(refused) = chain(error).find_map(socks_refused) {
        return refused.failure();
    }
    if error.is_connect() {
        if error.is_timeout() {
            return Failure::not_processed().cause(Cause::Timeout);
        }
        return Failure::network(
            chain(error)
                .find_map(while_connecting)
                .unwrap_or(Network::Connect),
        );
    }
    if error.is_timeout() {
        return Failure::ambiguous().cause(Cause::Timeout);
    }
    let unknown = Failure::network(Network::Other);
    if error.is_body() || error.is_decode() {
        return chain(error)
            .find_map(while_receiving)
            .map_or(unknown, Failure::network);
    }
    chain(error).find_map(while_sending).unwrap_or(unknown)
}

/// Classifies the error of another middleware: as ambiguous, unless it contains a reqwest error.
#[cfg(feature = "middleware")]
pub(crate) fn classify_foreign(error: &(dyn Error + 'static)) -> Failure {
    let reqwest = chain(error).find_map(|source| source.downcast_ref());
    reqwest.map_or(Failure::ambiguous(), classify)
}
