//! Classification of a transport error as a [`Failure`].

mod not_connected;
mod socks;
mod source;
#[cfg(feature = "rustls")]
mod tls;
mod tunnel;

use std::error::Error;
use std::io;

use relent::GaveUp;
use relent::error::{DynError, NoLastError};
use relent_core::{Cause, Failure, FailureKind, Network, StopReason};

use crate::complete::{Truncated, UnknownTransferCoding};

pub use not_connected::NotConnected;
pub use socks::{SocksRefused, socks_refused};
pub use source::Source;
pub use tunnel::{TunnelRefused, tunnel_refused};

/// Classifies any error by the types and codes in its chain of sources, never by its text. It knows the errors of
/// hyper, h2, hyper-util's client, rustls (with the feature `rustls`) and I/O. For those of reqwest use
/// `relent_reqwest::network::classify_error`.
///
/// | error | kind | cause |
/// |---|---|---|
/// | [`NotConnected`], or of hyper-util's client: no connection in time | not processed | [`Cause::Timeout`] |
/// | of these: no connection, for another reason; of any: refused | not processed | [`Network::Connect`] |
/// | of these: TLS handshake cut or failed | not processed | [`Network::Handshake`] |
/// | a certificate of either side rejected | permanent | [`Network::Certificate`] |
/// | a proxy refused CONNECT: 407, and any status of a [`TunnelRefused`] | [by its status](TunnelRefused::failure) | [`Network::Connect`] |
/// | a SOCKS proxy opened no connection | [by its reply](SocksRefused::failure): permanent if it is a rejection, not processed if it may be temporary | [`Network::Connect`] |
/// | HTTP/2 `REFUSED_STREAM`, `GOAWAY` below this stream | not processed | [`Network::RefusedStream`], [`Network::GoAway`] |
/// | a kept connection closed before it took the request | not processed | [`Network::Reset`] |
/// | the request's own body failed, for any reason | ambiguous | [`Network::Local`] |
/// | no response in time | ambiguous | [`Cause::Timeout`] |
/// | broken before the response began, or reset | ambiguous | [`Network::Reset`] |
/// | [`Truncated`]: a body that ended before it was complete | ambiguous | [`Network::Truncated`] |
/// | a response that is not valid HTTP | ambiguous | [`Network::Malformed`], which a session retries once |
/// | anything else | ambiguous | [`Network::Other`] |
///
/// The resolvers of the standard library and of tokio do not report why a look-up failed: it is
/// "connection refused" here.
///
/// ```
/// use std::io;
/// use relent_core::FailureKind;
/// use relent_http::network;
///
/// let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
/// assert_eq!(network::classify_error(&refused).kind, FailureKind::NotProcessed);
/// let reset = io::Error::from(io::ErrorKind::ConnectionReset);
/// assert_eq!(network::classify_error(&reset).kind, FailureKind::Ambiguous);
/// ```
///
/// An error that another layer of this process [has given up](given_up) is classified as its last error. It gets
/// advice not to retry, since the layer below has retried already.
#[must_use]
pub fn classify_error(error: &(dyn Error + 'static)) -> Failure {
    let failure = classify_cause(error);
    match given_up(error) {
        Some(reason) => given_up_by(failure, reason),
        None => failure,
    }
}

/// Changes the failure of a call that another layer of this process has given up for this reason, as if that layer
/// had [marked](crate::Mark) its response. After [`StopReason::OutcomeUnknown`] the outcome is unknown here, too.
#[must_use]
pub fn given_up_by(failure: Failure, reason: StopReason) -> Failure {
    crate::no_retry_mark::given_up(failure, reason)
}

/// The reason why another layer of this process has given up the call that failed with this error; `None` if no
/// layer has. It knows the [`GaveUp`] of the tower layer, and those of I/O errors and of [`DynError`].
#[must_use]
pub fn given_up(error: &(dyn Error + 'static)) -> Option<StopReason> {
    chain(error).find_map(|source| {
        #[cfg(feature = "tower")]
        if let Some(gave_up) = source.downcast_ref::<GaveUp<crate::ServiceError>>() {
            return Some(gave_up.reason());
        }
        let io = source.downcast_ref().map(GaveUp::<io::Error>::reason);
        let any = || source.downcast_ref().map(GaveUp::<DynError>::reason);
        let none = || source.downcast_ref().map(NoLastError::reason);
        io.or_else(any).or_else(none)
    })
}

/// Classifies by the innermost cause, whether or not a layer has given up.
fn classify_cause(error: &(dyn Error + 'static)) -> Failure {
    if chain(error).any(is_local) {
        return Failure::network(Network::Local);
    }
    if chain(error).any(<dyn Error>::is::<Truncated>) {
        return Failure::network(Network::Truncated);
    }
    if chain(error).any(<dyn Error>::is::<UnknownTransferCoding>) {
        return Failure::network(Network::Malformed);
    }
    if let Some(refused) = chain(error).find_map(tunnel_refused) {
        return refused.failure();
    }
    if let Some(refused) = chain(error).find_map(socks_refused) {
        return refused.failure();
    }
    if chain(error).any(is_connect) {
        if chain(error).any(is_timeout) {
            return Failure::not_processed().cause(Cause::Timeout);
        }
        let network = chain(error).find_map(while_connecting);
        return Failure::network(network.unwrap_or(Network::Connect));
    }
    if let Some(failure) = chain(error).find_map(while_sending) {
        return failure;
    }
    if chain(error).any(is_timeout) {
        return Failure::ambiguous().cause(Cause::Timeout);
    }
    Failure::network(Network::Other)
}

/// Whether the request failed on this side: its body failed, which ends the request, or the task of its connection
/// ended. Ask this before anything else of the [`chain`]: the causes of such an error belong to the source of the
/// body, such as another server that it is read from. They are not about the connection of the request.
#[must_use]
pub fn is_local(source: Source<'_>) -> bool {
    if let Some(error) = source.downcast_ref::<hyper::Error>() {
        return error.is_user();
    }
    // In HTTP/2, hyper then resets the stream.
    source
        .downcast_ref::<h2::Error>()
        .is_some_and(|error| error.is_reset() && !error.is_remote() && !error.is_library())
}

/// Whether no connection was established yet.
fn is_connect(source: Source<'_>) -> bool {
    if let Some(error) = source.downcast_ref::<hyper_util::client::legacy::Error>() {
        return error.is_connect();
    }
    let refused = source
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    refused || source.is::<NotConnected>() || socks::is_connect(source)
}

fn is_timeout(source: Source<'_>) -> bool {
    if let Some(error) = source.downcast_ref::<hyper::Error>() {
        return error.is_timeout();
    }
    source
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
}

/// An error and its causes, outermost first. It also follows causes that [`Error::source`] skips:
/// inside I/O errors, SOCKS connector errors, and Relent errors whose text contains another error.
pub fn chain<'e>(error: Source<'e>) -> impl Iterator<Item = Source<'e>> {
    std::iter::successors(Some(error), |error: &Source<'e>| {
        let error: Source<'e> = *error;
        // `source` skips the I/O error inside an HTTP/2 error, and the error inside one
        // whose text contains it: an I/O error, or one of ours.
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
            within(error).or_else(|| error.source())
        }
    })
}

/// The error inside an error of ours, which its text contains.
fn within(error: Source<'_>) -> Option<Source<'_>> {
    if let Some(error) = error.downcast_ref::<DynError>() {
        return Some(error.get_ref());
    }
    if let Some(gave_up) = error.downcast_ref::<GaveUp<io::Error>>() {
        return gave_up.error().map(|error| error as Source<'_>);
    }
    if let Some(gave_up) = error.downcast_ref::<GaveUp<DynError>>() {
        return gave_up.error().map(|error| error as Source<'_>);
    }
    if let Some(error) = error.downcast_ref::<NotConnected>() {
        return Some(error.get_ref());
    }
    if let Some(found) = socks::within(error) {
        return Some(found);
    }
    #[cfg(feature = "tower")]
    if let Some(found) = crate::layer::within(error) {
        return Some(found);
    }
    None
}

/// Classifies a cause of an error if there was no connection yet: a failed TLS handshake, or an invalid
/// certificate. Use it on the [`chain`] of an error whose own type shows how far the
/// attempt got; [`classify_error`] detects that by other signs.
#[must_use]
pub fn while_connecting(source: Source<'_>) -> Option<Network> {
    #[cfg(feature = "rustls")]
    if let Some(error) = source.downcast_ref::<rustls::Error>() {
        return Some(if tls::is_certificate(error) {
            Network::Certificate
        } else {
            Network::Handshake
        });
    }
    let error = source.downcast_ref::<io::Error>()?;
    let cut = error.kind() == io::ErrorKind::UnexpectedEof || is_reset(error);
    cut.then_some(Network::Handshake)
}

/// Classifies a cause of an error before the head of the response.
#[must_use]
pub fn while_sending(source: Source<'_>) -> Option<Failure> {
    if let Some(error) = source.downcast_ref::<hyper::Error>() {
        let unsent =
            |network| Some(Failure::new(FailureKind::NotProcessed).cause(Cause::Network(network)));
        if sent_before_request(error) {
            return unsent(Network::Malformed);
        }
        if error.is_canceled() || error.is_closed() {
            // Hyper reports this only for requests of which it has written nothing.
            return unsent(Network::Reset);
        }
        if error.is_parse() {
            return Some(Failure::network(Network::Malformed));
        }
        if error.is_incomplete_message() {
            return Some(Failure::network(Network::Reset));
        }
    }
    if is_local(source) {
        return Some(Failure::network(Network::Local));
    }
    #[cfg(feature = "rustls")]
    if let Some(error) = source.downcast_ref::<rustls::Error>() {
        // With TLS 1.3 the server checks the client's certificate after the handshake.
        return tls::is_certificate(error).then(|| Failure::network(Network::Certificate));
    }
    let network = if let Some(error) = source.downcast_ref::<h2::Error>() {
        of_stream(error)?
    } else {
        let error = source.downcast_ref::<io::Error>()?;
        let broken = error.kind() == io::ErrorKind::UnexpectedEof || is_reset(error);
        broken.then_some(Network::Reset)?
    };
    Some(Failure::network(network))
}

/// Classifies a cause of an error after the head of the response.
#[must_use]
pub fn while_receiving(source: Source<'_>) -> Option<Network> {
    if source.is::<Truncated>() {
        return Some(Network::Truncated);
    }
    if source.is::<UnknownTransferCoding>() {
        return Some(Network::Malformed);
    }
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
        // Hyper reports invalid chunks with these kinds. Data that TLS cannot read was damaged in transit.
        error
            if matches!(
                error.kind(),
                io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput
            ) && !is_tls(error) =>
        {
            Some(Network::Malformed)
        }
        error => is_reset(error).then_some(Network::Reset),
    }
}

/// Whether the server sent something before the request: it does not speak HTTP. hyper has a separate kind for
/// that, but no accessor. It is the only kind without a source that is none of the others.
fn sent_before_request(error: &hyper::Error) -> bool {
    if error.is_canceled() {
        let why = error.source().and_then(|why| why.downcast_ref());
        return why
            .is_some_and(|why: &hyper::Error| !why.is_canceled() && sent_before_request(why));
    }
    let other = error.is_closed()
        || error.is_incomplete_message()
        || error.is_parse()
        || error.is_timeout()
        || error.is_user();
    !other && error.source().is_none()
}

/// Whether an I/O error contains a TLS error.
fn is_tls(error: &io::Error) -> bool {
    #[cfg(feature = "rustls")]
    let is_tls = |inner: &(dyn Error + Send + Sync + 'static)| inner.is::<rustls::Error>();
    #[cfg(not(feature = "rustls"))]
    let is_tls = |_: &(dyn Error + Send + Sync + 'static)| false;
    error.get_ref().is_some_and(is_tls)
}

fn of_stream(error: &h2::Error) -> Option<Network> {
    if error.is_remote() && error.is_go_away() {
        // H2 fails only the streams above the last one that the server will process.
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
