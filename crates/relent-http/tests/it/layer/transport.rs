//! What the layer offers to a transport of your own, such as the one of a proxy.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http::{Request, Response};
use http_body_util::Empty;
use relent_core::{Cause, FailureKind, Network};
use relent_http::BoxError;
use relent_http::network::{NotConnected, classify_error};
use tower::{Layer, ServiceExt};

use super::{ending, layer, policy, post};

#[tokio::test]
async fn a_post_is_sent_again_after_every_failure_to_connect() {
    let connector_errors: [fn() -> BoxError; 5] = [
        || io::Error::from(io::ErrorKind::TimedOut).into(),
        || io::Error::from(io::ErrorKind::HostUnreachable).into(),
        || io::Error::from(io::ErrorKind::ConnectionReset).into(),
        || io::Error::from(io::ErrorKind::BrokenPipe).into(),
        || "no upstream is up".into(),
    ];
    for error in connector_errors {
        let (layer, _) = layer(policy());
        let calls = Arc::new(AtomicU32::new(0));
        let service = tower::service_fn({
            let calls = calls.clone();
            move |_: Request<_>| {
                let is_first = calls.fetch_add(1, Ordering::Relaxed) == 0;
                async move {
                    match is_first {
                        true => Err(BoxError::from(NotConnected::new(error()))),
                        false => Ok(Response::new(Empty::<bytes::Bytes>::new())),
                    }
                }
            }
        });
        let result = layer.layer(service).oneshot(post()).await;
        assert_eq!(ending(&result), (Some(200), 2, None), "{}", error());
    }
}

#[test]
fn the_cause_of_a_failure_to_connect_is_that_of_the_connector() {
    let of = |error: io::Error| {
        let failure = classify_error(&NotConnected::new(error));
        (failure.kind, failure.cause)
    };
    let (unsent, network) = (FailureKind::NotProcessed, Cause::Network);
    let timed_out = io::Error::from(io::ErrorKind::TimedOut);
    assert_eq!(of(timed_out), (unsent, Cause::Timeout));
    let cut = io::Error::from(io::ErrorKind::UnexpectedEof);
    assert_eq!(of(cut), (unsent, network(Network::Handshake)));
    let other = io::Error::other("the pool is closed");
    assert_eq!(of(other), (unsent, network(Network::Connect)));
}

#[cfg(feature = "rustls")]
#[test]
fn a_rejected_certificate_stays_permanent_while_connecting() {
    let rejected = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
    let rejected = io::Error::new(io::ErrorKind::InvalidData, rejected);
    let failure = classify_error(&NotConnected::new(rejected));
    let certificate = Cause::Network(Network::Certificate);
    assert_eq!(
        (failure.kind, failure.cause),
        (FailureKind::Permanent, certificate)
    );
}

/// The text and the sources name the error of the connector once.
#[test]
fn a_failure_to_connect_displays_as_the_error_of_the_connector() {
    let not_connected = NotConnected::new(io::Error::other("the pool is closed"));
    assert_eq!(not_connected.to_string(), "the pool is closed");
    assert!(std::error::Error::source(&not_connected).is_none());
    assert!(not_connected.get_ref().is::<io::Error>());
}
