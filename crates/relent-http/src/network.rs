//! From an error of reqwest to a [`Failure`], by design rule 2.

use std::error::Error;
use std::io;

use dns_lookup::LookupError;
use relent_core::{Cause, Failure, Hint, Kind, Network};
use rustls::AlertDescription;

use crate::RequestFacts;
use crate::classify::kind;

/// Classifies an error of reqwest by the types and codes in its chain of sources, never by its text.
///
/// | error | kind | cause |
/// |---|---|---|
/// | the request cannot be built | permanent | [`Network::BadRequest`] |
/// | too many redirects | permanent | [`Cause::Error`] |
/// | look-up failed just now | not processed | [`Network::Dns`] |
/// | name not found | not processed | [`Network::NameNotFound`], which a session retries once |
/// | no connection in time | not processed | [`Cause::Timeout`] |
/// | refused, unreachable, or a proxy's tunnel failed | not processed | [`Network::Connect`] |
/// | TLS handshake cut or failed | not processed | [`Network::Handshake`] |
/// | a certificate of either side rejected | permanent | [`Network::Certificate`] |
/// | HTTP/2 `REFUSED_STREAM`, `GOAWAY` below this stream | not processed | [`Network::RefusedStream`], [`Network::GoAway`] |
/// | a kept connection closed before it took the request | not processed | [`Network::Reset`] |
/// | no answer in time | ambiguous | [`Cause::Timeout`] |
/// | broken before the response began, or reset | ambiguous | [`Network::Reset`] |
/// | response ended early | ambiguous | [`Network::Truncated`] |
/// | anything else, such as a response that is no HTTP | ambiguous | [`Network::Other`] |
///
/// Look-ups can be told apart only with [`dns::Resolver`](crate::dns::Resolver); with another
/// resolver, every failed look-up is "name not found".
///
/// ```
/// use relent_core::{Cause, Network};
/// use relent_http::network;
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
        // From `error_for_status`: the headers are gone, and with them any hint.
        let kind = kind(status, &Hint::NONE, RequestFacts::default());
        return Failure::new(kind).cause(Cause::Status(status.as_u16()));
    }
    if error.is_dns() {
        let lookup = chain(error).find_map(|source| source.downcast_ref::<LookupError>());
        return Failure::network(lookup.map_or(Network::NameNotFound, crate::dns::network));
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

type Source<'e> = &'e (dyn Error + 'static);

/// An error and what caused it, outermost first.
fn chain<'e>(error: &'e reqwest::Error) -> impl Iterator<Item = Source<'e>> {
    std::iter::successors(Some(error as Source<'e>), |error: &Source<'e>| {
        let error: Source<'e> = *error;
        // `source` steps over the I/O error within an HTTP/2 error, and over the error within an I/O
        // error.
        if let Some(io) = error
            .downcast_ref::<h2::Error>()
            .and_then(h2::Error::get_io)
        {
            Some(io as Source<'e>)
        } else if let Some(inner) = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
        {
            Some(inner as Source<'e>)
        } else {
            error.source()
        }
    })
}

fn while_connecting(source: Source<'_>) -> Option<Network> {
    if let Some(error) = source.downcast_ref::<rustls::Error>() {
        return Some(if is_certificate(error) {
            Network::Certificate
        } else {
            Network::Handshake
        });
    }
    let error = source.downcast_ref::<io::Error>()?;
    let cut = error.kind() == io::ErrorKind::UnexpectedEof || is_reset(error);
    cut.then_some(Network::Handshake)
}

/// Before the head of the response.
fn while_sending(source: Source<'_>) -> Option<Failure> {
    if let Some(error) = source.downcast_ref::<hyper::Error>() {
        if error.is_canceled() || error.is_closed() {
            // Hyper says so only of requests of which it has written nothing.
            let unsent = Failure::new(Kind::NotProcessed);
            return Some(unsent.cause(Cause::Network(Network::Reset)));
        }
        if error.is_user() {
            // The caller's own body failed; its errors say nothing about the connection.
            return Some(Failure::network(Network::Other));
        }
        if error.is_incomplete_message() {
            return Some(Failure::network(Network::Reset));
        }
    }
    let network = if let Some(error) = source.downcast_ref::<h2::Error>() {
        of_stream(error)?
    } else if let Some(error) = source.downcast_ref::<rustls::Error>() {
        // With TLS 1.3 the server looks at the client's certificate after the handshake.
        is_certificate(error).then_some(Network::Certificate)?
    } else {
        let error = source.downcast_ref::<io::Error>()?;
        let broken = error.kind() == io::ErrorKind::UnexpectedEof || is_reset(error);
        broken.then_some(Network::Reset)?
    };
    Some(Failure::network(network))
}

/// After the head of the response.
fn while_receiving(source: Source<'_>) -> Option<Network> {
    if let Some(error) = source.downcast_ref::<hyper::Error>() {
        return error.is_incomplete_message().then_some(Network::Truncated);
    }
    if let Some(error) = source.downcast_ref::<h2::Error>() {
        return (error.is_reset() || error.is_go_away()).then_some(Network::Reset);
    }
    match source.downcast_ref::<io::Error>()? {
        // HTTP/2 reports the end of a connection as a broken pipe.
        error
            if matches!(
                error.kind(),
                io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe
            ) =>
        {
            Some(Network::Truncated)
        }
        error => is_reset(error).then_some(Network::Reset),
    }
}

fn of_stream(error: &h2::Error) -> Option<Network> {
    if error.is_remote() && error.is_go_away() {
        // H2 fails only the streams above the last one that the server will look at.
        Some(Network::GoAway)
    } else if error.is_remote() && error.reason() == Some(h2::Reason::REFUSED_STREAM) {
        Some(Network::RefusedStream)
    } else if error.is_reset() || error.is_go_away() {
        Some(Network::Reset)
    } else {
        None
    }
}

fn is_reset(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::NotConnected
    )
}

fn is_certificate(error: &rustls::Error) -> bool {
    use rustls::Error::{
        AlertReceived, InvalidCertRevocationList, InvalidCertificate, NoCertificatesPresented,
        UnsupportedNameType,
    };
    match error {
        InvalidCertificate(_)
        | InvalidCertRevocationList(_)
        | NoCertificatesPresented
        | UnsupportedNameType => true,
        AlertReceived(alert) => matches!(
            alert,
            AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied
                | AlertDescription::CertificateRequired
        ),
        _ => false,
    }
}
