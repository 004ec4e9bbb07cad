//! Attempts over TLS: the certificate must match the name, and HTTP/2 is used if the receiver supports it.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use relent_core::{Failure, Network};
use relent_http::webhook::{Verifier, VerifyingKey};
use relent_outbox::acknowledgement::NotAcknowledged;
use relent_outbox::endpoint::{Acknowledgement, Endpoint};
use relent_outbox::message::MessageId;
use relent_outbox::resolver::{Resolve, Resolving};
use relent_outbox::schedule;
use relent_outbox::secrets::Secrets;
use relent_outbox::sender::{AttemptResult, Outgoing, Sender, certificates};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::support;

const KEY: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

struct Loopback;

impl Resolve for Loopback {
    fn resolve(&self, _: String) -> Resolving {
        Box::pin(async { io::Result::Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]) })
    }
}

type Versions = Arc<Mutex<Vec<Version>>>;

/// A receiver with a certificate for this name, which verifies signatures.
async fn serve(name: &str, http2: bool) -> (SocketAddr, CertificateDer<'static>, Versions) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new([name.to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .unwrap();
    if http2 {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let versions = Versions::default();
    let noted = Arc::clone(&versions);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else {
                continue;
            };
            let noted = Arc::clone(&noted);
            let service = service_fn(move |request: Request<Incoming>| {
                let noted = Arc::clone(&noted);
                async move {
                    noted.lock().unwrap().push(request.version());
                    let (head, body) = request.into_parts();
                    let body = body.collect().await.unwrap().to_bytes();
                    let verifier = Verifier::new([KEY.parse::<VerifyingKey>().unwrap()]);
                    let verified = verifier.verify(&head.headers, &body, SystemTime::now());
                    let answer = if verified.is_ok() {
                        "success"
                    } else {
                        "not verified"
                    };
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(
                        answer.as_bytes(),
                    ))))
                }
            });
            tokio::spawn(async move {
                let _ = auto::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    (address, certificate.der().clone(), versions)
}

/// The trusted certificates: only this one, or those of the system and these authorities.
enum Trust {
    Only(Option<CertificateDer<'static>>),
    Also(Vec<CertificateDer<'static>>),
}

async fn attempt(address: SocketAddr, trusted: Option<CertificateDer<'static>>) -> AttemptResult {
    attempt_with(address, Trust::Only(trusted)).await
}

async fn attempt_with(address: SocketAddr, trusted: Trust) -> AttemptResult {
    let mut config = support::local();
    config.http = false;
    config.resolver = Arc::new(Loopback);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    match trusted {
        Trust::Also(authorities) => (config.tls, config.authorities) = (None, authorities),
        Trust::Only(trusted) => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add_parsable_certificates(trusted);
            config.tls = Some(
                rustls::ClientConfig::builder_with_provider(provider)
                    .with_safe_default_protocol_versions()
                    .unwrap()
                    .with_root_certificates(roots)
                    .with_no_client_auth(),
            );
        }
    }
    let sender = Sender::new(config).unwrap();
    let target = sender
        .target(&format!("https://shop.example:{}/", address.port()))
        .unwrap();
    let secrets = Secrets::with_key("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=").unwrap();
    let mut endpoint = Endpoint::new("shop", "");
    endpoint.secrets = vec![secrets.encrypt("", "shop", KEY).unwrap()];
    let signing = secrets.signing(&endpoint).unwrap();
    let policy = schedule::policy("alipay").unwrap();
    let (id, payload) = (MessageId::new(), Bytes::from_static(b"{\"order\":17}"));
    let outgoing = Outgoing {
        target: &target,
        id: &id,
        content_type: "application/json",
        payload: &payload,
        signing: signing.as_ref(),
        custom: None,
        policy: &policy,
        acknowledgement: Acknowledgement::BodySuccess,
        limit: Duration::from_secs(20),
        now: SystemTime::now(),
    };
    sender.send(outgoing).await
}

#[tokio::test]
async fn a_signed_message_arrives_over_http_1_and_2() {
    for (http2, version) in [(false, Version::HTTP_11), (true, Version::HTTP_2)] {
        let (address, certificate, versions) = serve("shop.example", http2).await;
        let sent = attempt(address, Some(certificate)).await;
        assert_eq!(sent.outcome, Ok(()), "{}", sent.excerpt);
        assert_eq!(sent.address, address.to_string());
        assert_eq!(*versions.lock().unwrap(), [version]);
    }
}

#[tokio::test]
async fn private_cas_are_trusted_in_addition_to_those_of_the_system() {
    for http2 in [false, true] {
        let (address, certificate, _) = serve("shop.example", http2).await;
        let sent = attempt_with(address, Trust::Also(vec![certificate])).await;
        assert_eq!(sent.outcome, Ok(()), "{}", sent.excerpt);
        let sent = attempt_with(address, Trust::Also(Vec::new())).await;
        assert!(sent.outcome.is_err());
    }
}

#[tokio::test]
async fn a_ca_file_is_parsed_or_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(["shop.example".to_owned()]).unwrap();
    let der = params.self_signed(&key).unwrap().der().clone();
    let base64 = base64_of(&der);
    let pem = format!("-----BEGIN CERTIFICATE-----\n{base64}\n-----END CERTIFICATE-----\n");
    std::fs::write(&file, pem.repeat(2)).unwrap();
    assert_eq!(certificates(&file).unwrap(), [der.clone(), der]);
    for wrong in [
        "",
        "nonsense",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        std::fs::write(&file, wrong).unwrap();
        assert!(certificates(&file).is_err(), "{wrong}");
    }
    assert!(certificates(&folder.path().join("none")).is_err());
}

fn base64_of(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[tokio::test]
async fn an_untrusted_certificate_is_refused_with_a_reason() {
    let (address, certificate, _) = serve("another.example", false).await;
    for (trusted, reason) in [
        (None, "no authority that is trusted here has signed it"),
        (Some(certificate), "it is for another name"),
    ] {
        let sent = attempt(address, trusted).await;
        let error = sent.outcome.unwrap_err().error;
        let expected =
            format!("the endpoint's certificate is not trusted: {reason}; nothing was sent");
        assert_eq!(error, expected);
        assert_eq!(sent.fault, None, "its owner can renew it");
    }
}

#[tokio::test]
async fn an_untrusted_certificate_gets_no_request_and_is_retried() {
    let (address, certificate, versions) = serve("another.example", false).await;
    for trusted in [None, Some(certificate)] {
        let sent = attempt(address, trusted).await;
        let Err(NotAcknowledged { failure, error, .. }) = sent.outcome else {
            panic!("it was trusted");
        };
        assert_eq!(failure, Failure::network(Network::Handshake), "{error}");
        assert!(error.contains("certificate"), "{error}");
    }
    assert!(versions.lock().unwrap().is_empty());
}
