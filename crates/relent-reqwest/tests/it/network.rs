//! Classification of every failure of a real connection.

use std::error::Error;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use dns_lookup::LookupError;
use futures_util::stream;
use relent_core::{Cause, Failure, FailureKind, Network};
use relent_reqwest::dns::Resolver;
use relent_reqwest::network::classify;
use reqwest::dns::{Name, Resolve, Resolving};
use reqwest::{Body, Client, ClientBuilder, Url};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::http2::frame;

/// Runs `serve` for the first connection to its own port.
async fn server<F>(serve: impl FnOnce(TcpStream) -> F + Send + 'static) -> Url
where
    F: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        // Later connections are refused.
        drop(listener);
        serve(stream).await;
    });
    Url::parse(&format!("http://{address}/")).unwrap()
}

fn https(mut url: Url) -> Url {
    url.set_scheme("https").unwrap();
    url
}

/// A client without reqwest's own retries.
fn client() -> ClientBuilder {
    Client::builder()
        .no_proxy()
        .retry(reqwest::retry::never())
        .dns_resolver(Arc::new(Resolver))
}

/// Sends a GET and reads the whole response.
async fn get(client: ClientBuilder, url: Url) -> Failure {
    let request = client.build().unwrap().get(url);
    let outcome = async { request.send().await?.bytes().await }.await;
    let error = outcome.unwrap_err();
    classify(&error)
}

/// Reads the head of a request.
async fn read_head(stream: &mut TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
}

fn of(kind: FailureKind, network: Network) -> Failure {
    Failure::new(kind).cause(Cause::Network(network))
}

#[tokio::test]
async fn a_refused_connection_is_not_processed() {
    // A port without a listener, which no other process can take meanwhile.
    let taken = tokio::net::TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = Url::parse(&format!("http://{}/", taken.local_addr().unwrap())).unwrap();
    assert_eq!(
        get(client(), url).await,
        of(FailureKind::NotProcessed, Network::Connect)
    );
}

#[tokio::test]
async fn an_unknown_name_fails_at_the_dns_look_up() {
    // A machine without a network cannot know that the name does not exist.
    let url = Url::parse("http://does-not-exist.invalid/").unwrap();
    let failure = get(client(), url).await;
    assert_eq!(failure.kind, FailureKind::NotProcessed);
    let network = [Network::Dns, Network::NameNotFound].map(Cause::Network);
    assert!(network.contains(&failure.cause), "{failure:?}");
}

#[tokio::test]
async fn the_resolver_resolves_localhost() {
    let url = server(|mut stream| async move {
        read_head(&mut stream).await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            .await
            .unwrap();
    })
    .await;
    let url = format!("http://localhost:{}/", url.port().unwrap());
    let answer = client()
        .build()
        .unwrap()
        .get(url)
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert_eq!(answer, "ok");
}

/// Fails every look-up with this `getaddrinfo` error, or with a plain I/O error.
struct Failing(Option<i32>);

impl Resolve for Failing {
    fn resolve(&self, _: Name) -> Resolving {
        let error = self.0;
        Box::pin(async move {
            match error {
                Some(code) => Err(LookupError::new(code).into()),
                None => Err(io::Error::other("Temporary failure in name resolution").into()),
            }
        })
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_failed_dns_look_up_differs_from_an_unknown_name() {
    const EAI_NONAME: i32 = -2;
    const EAI_AGAIN: i32 = -3;
    const EAI_FAIL: i32 = -4;
    const EAI_SYSTEM: i32 = -11;
    for (code, network) in [
        (Some(EAI_AGAIN), Network::Dns),
        (Some(EAI_SYSTEM), Network::Dns),
        (Some(EAI_NONAME), Network::NameNotFound),
        (Some(EAI_FAIL), Network::NameNotFound),
        (None, Network::NameNotFound),
    ] {
        let client = client().dns_resolver(Arc::new(Failing(code)));
        let url = Url::parse("http://example.org/").unwrap();
        assert_eq!(
            get(client, url).await,
            of(FailureKind::NotProcessed, network),
            "{code:?}"
        );
    }
}

#[tokio::test]
async fn a_connection_closed_before_the_response_is_ambiguous() {
    let url = server(|mut stream| async move { read_head(&mut stream).await }).await;
    assert_eq!(
        get(client(), url).await,
        of(FailureKind::Ambiguous, Network::Reset)
    );
}

#[tokio::test]
async fn a_connection_closed_within_the_head_is_ambiguous() {
    let url = server(|mut stream| async move {
        read_head(&mut stream).await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-le")
            .await
            .unwrap();
    })
    .await;
    assert_eq!(
        get(client(), url).await,
        of(FailureKind::Ambiguous, Network::Reset)
    );
}

#[tokio::test]
async fn a_connection_reset_before_the_response_is_ambiguous() {
    let url = server(|mut stream| async move {
        read_head(&mut stream).await;
        stream.set_zero_linger().unwrap();
    })
    .await;
    assert_eq!(
        get(client(), url).await,
        of(FailureKind::Ambiguous, Network::Reset)
    );
}

#[tokio::test]
async fn a_response_that_ends_early_is_truncated() {
    for head in ["content-length: 10", "transfer-encoding: chunked"] {
        let url = server(move |mut stream| async move {
            read_head(&mut stream).await;
            let response = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n3\r\nabc\r\n");
            stream.write_all(response.as_bytes()).await.unwrap();
        })
        .await;
        assert_eq!(
            get(client(), url).await,
            of(FailureKind::Ambiguous, Network::Truncated),
            "{head}"
        );
    }
}

#[tokio::test]
async fn a_response_cut_by_a_reset_has_the_cause_reset() {
    let (has_head, reset) = oneshot::channel();
    let url = server(|mut stream| async move {
        read_head(&mut stream).await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")
            .await
            .unwrap();
        reset.await.unwrap();
        stream.set_zero_linger().unwrap();
    })
    .await;
    let response = client().build().unwrap().get(url).send().await.unwrap();
    has_head.send(()).unwrap();
    let error = response.bytes().await.unwrap_err();
    assert_eq!(
        classify(&error),
        of(FailureKind::Ambiguous, Network::Reset),
        "{error:?}"
    );
}

#[tokio::test]
async fn an_invalid_http_response_is_ambiguous() {
    let url = server(|mut stream| async move {
        read_head(&mut stream).await;
        stream
            .write_all(b"\x00\xffSSH-2.0-garbage\r\n\r\n")
            .await
            .unwrap();
    })
    .await;
    assert_eq!(
        get(client(), url).await,
        of(FailureKind::Ambiguous, Network::Malformed)
    );
}

/// Long enough for the client to start waiting, on any machine.
const TIMEOUT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn no_response_in_time_is_ambiguous() {
    for answer in ["", "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"] {
        let url = server(move |mut stream| async move {
            read_head(&mut stream).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
            // Until the client disconnects.
            let _ = stream.read_u8().await;
        })
        .await;
        let failure = get(client().timeout(TIMEOUT), url).await;
        assert_eq!(
            failure,
            Failure::ambiguous().cause(Cause::Timeout),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn no_connection_in_time_is_not_processed() {
    let url = server(|mut stream| async move {
        // The handshake is not answered.
        let mut hello = [0; 4096];
        while stream.read(&mut hello).await.is_ok_and(|count| count > 0) {}
    })
    .await;
    let failure = get(client().connect_timeout(TIMEOUT), https(url)).await;
    assert_eq!(failure, Failure::not_processed().cause(Cause::Timeout));
}

#[tokio::test]
async fn a_cut_tls_handshake_is_not_processed() {
    for reset in [false, true] {
        let url = server(move |mut stream| async move {
            // Unread data would turn the close into a reset.
            let mut hello = [0; 16_384];
            let _ = stream.read(&mut hello).await.unwrap();
            if reset {
                stream.set_zero_linger().unwrap();
            }
        })
        .await;
        let failure = get(client(), https(url)).await;
        assert_eq!(
            failure,
            of(FailureKind::NotProcessed, Network::Handshake),
            "{reset}"
        );
    }
}

#[tokio::test]
async fn a_handshake_with_a_server_without_tls_is_not_processed() {
    let url = server(|mut stream| async move {
        let mut hello = [0; 4096];
        let _ = stream.read(&mut hello).await.unwrap();
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .await
            .unwrap();
        while stream.read(&mut hello).await.is_ok_and(|count| count > 0) {}
    })
    .await;
    assert_eq!(
        get(client(), https(url)).await,
        of(FailureKind::NotProcessed, Network::Handshake)
    );
}

struct SelfSigned {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

fn self_signed(name: &str) -> SelfSigned {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    SelfSigned {
        certificate: made.cert.der().clone(),
        key: PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap(),
    }
}

/// Responds over TLS until the client disconnects.
async fn tls_server(config: ServerConfig) -> Url {
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let url = server(|stream| async move {
        if let Ok(mut stream) = acceptor.accept(stream).await {
            let mut request = [0; 4096];
            while stream.read(&mut request).await.is_ok_and(|count| count > 0) {}
        }
    })
    .await;
    https(url)
}

#[tokio::test]
async fn an_untrusted_certificate_is_permanent() {
    let SelfSigned { certificate, key } = self_signed("127.0.0.1");
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let url = tls_server(config).await;
    assert_eq!(
        get(client(), url).await,
        of(FailureKind::Permanent, Network::Certificate)
    );
}

#[tokio::test]
async fn a_certificate_for_another_name_is_permanent() {
    let SelfSigned { certificate, key } = self_signed("other.example");
    let root = reqwest::Certificate::from_der(&certificate).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let url = tls_server(config).await;
    let client = client().tls_certs_only([root]);
    assert_eq!(
        get(client, url).await,
        of(FailureKind::Permanent, Network::Certificate)
    );
}

#[tokio::test]
async fn a_missing_client_certificate_is_permanent() {
    let SelfSigned { certificate, key } = self_signed("127.0.0.1");
    let root = reqwest::Certificate::from_der(&certificate).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots))
        .build()
        .unwrap();
    let config = ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let url = tls_server(config).await;
    let client = client().tls_certs_only([root]);
    assert_eq!(
        get(client, url).await,
        of(FailureKind::Permanent, Network::Certificate)
    );
}

/// Sends a POST whose body fails with this error after its first piece, to a server that only reads.
async fn post_failing_body(http2: bool, error: Box<dyn Error + Send + Sync>) -> Failure {
    let url = server(move |mut stream| async move {
        if http2 {
            stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
        }
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let client = match http2 {
        true => client().http2_prior_knowledge(),
        false => client(),
    };
    let pieces = stream::iter([Ok("a piece"), Err(error)]);
    let post = client.build().unwrap().post(url);
    let error = post.body(Body::wrap_stream(pieces)).send().await;
    classify(&error.unwrap_err())
}

/// The body may be read from another server, whose connection was refused. This one has got a part of the request.
#[tokio::test]
async fn an_error_of_the_requests_own_body_proves_nothing_about_the_server() {
    const EAI_AGAIN: i32 = -3;
    for http2 in [false, true] {
        let errors: [Box<dyn Error + Send + Sync>; 4] = [
            io::Error::from(io::ErrorKind::ConnectionRefused).into(),
            io::Error::from(io::ErrorKind::TimedOut).into(),
            LookupError::new(EAI_AGAIN).into(),
            "the disk is gone".into(),
        ];
        for error in errors {
            let name = format!("{error:?}, HTTP/2: {http2}");
            let failure = post_failing_body(http2, error).await;
            assert_eq!(
                failure,
                of(FailureKind::Ambiguous, Network::Local),
                "{name}"
            );
        }
    }
}

/// The HTTP/2 frame types and error codes used here (RFC 9113 §6, §7).
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const HEADERS: u8 = 1;
const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;

fn go_away(last_stream: u32, code: u32) -> Vec<u8> {
    let payload = [last_stream.to_be_bytes(), code.to_be_bytes()].concat();
    frame(GOAWAY, 0, 0, &payload)
}

/// Responds to the first request, which is stream 1, with these bytes.
async fn h2_server(answer: Vec<u8>) -> Url {
    server(|mut stream| async move {
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).await.unwrap();
        assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            stream.read_exact(&mut payload).await.unwrap();
            if head[3] == HEADERS {
                break;
            }
        }
        stream.write_all(&answer).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    })
    .await
}

#[tokio::test]
async fn a_refused_stream_is_not_processed() {
    let answer = frame(RST_STREAM, 0, 1, &REFUSED_STREAM.to_be_bytes());
    let failure = get(client().http2_prior_knowledge(), h2_server(answer).await).await;
    assert_eq!(
        failure,
        of(FailureKind::NotProcessed, Network::RefusedStream)
    );
}

#[tokio::test]
async fn a_go_away_below_this_stream_is_not_processed() {
    for code in [NO_ERROR, INTERNAL_ERROR] {
        let url = h2_server(go_away(0, code)).await;
        let failure = get(client().http2_prior_knowledge(), url).await;
        assert_eq!(
            failure,
            of(FailureKind::NotProcessed, Network::GoAway),
            "{code}"
        );
    }
}

#[tokio::test]
async fn a_go_away_that_includes_this_stream_is_ambiguous() {
    for code in [NO_ERROR, INTERNAL_ERROR] {
        let url = h2_server(go_away(1, code)).await;
        let failure = get(client().http2_prior_knowledge(), url).await;
        assert_eq!(
            failure,
            of(FailureKind::Ambiguous, Network::Reset),
            "{code}"
        );
    }
}

#[tokio::test]
async fn a_stream_reset_for_another_reason_is_ambiguous() {
    let answer = frame(RST_STREAM, 0, 1, &INTERNAL_ERROR.to_be_bytes());
    let failure = get(client().http2_prior_knowledge(), h2_server(answer).await).await;
    assert_eq!(failure, of(FailureKind::Ambiguous, Network::Reset));
}

/// The field section `:status: 200` from HPACK's static table (RFC 7541 A).
const STATUS_200: [u8; 1] = [0x88];
const END_HEADERS: u8 = 4;

#[tokio::test]
async fn a_stream_refused_after_the_response_began_is_ambiguous() {
    let mut answer = frame(HEADERS, END_HEADERS, 1, &STATUS_200);
    answer.extend(frame(RST_STREAM, 0, 1, &REFUSED_STREAM.to_be_bytes()));
    let failure = get(client().http2_prior_knowledge(), h2_server(answer).await).await;
    assert_eq!(failure.kind, FailureKind::Ambiguous);
}

#[tokio::test]
async fn an_http2_response_that_ends_early_is_truncated() {
    let answer = frame(HEADERS, END_HEADERS, 1, &STATUS_200);
    let failure = get(client().http2_prior_knowledge(), h2_server(answer).await).await;
    assert_eq!(failure, of(FailureKind::Ambiguous, Network::Truncated));
}

#[tokio::test]
async fn a_url_that_cannot_be_requested_is_permanent() {
    let bad_request = of(FailureKind::Permanent, Network::BadRequest);
    for url in [
        "http://",
        "no url",
        "ftp://127.0.0.1/",
        "mailto:somebody@example.org",
    ] {
        let error = client().build().unwrap().get(url).send().await.unwrap_err();
        assert_eq!(classify(&error), bad_request, "{url}: {error:?}");
    }
}

#[tokio::test]
async fn too_many_redirects_are_permanent() {
    let url = server(|mut stream| async move {
        read_head(&mut stream).await;
        stream
            .write_all(b"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n")
            .await
            .unwrap();
    })
    .await;
    let client = client().redirect(reqwest::redirect::Policy::limited(0));
    assert_eq!(get(client, url).await, Failure::permanent());
}

#[tokio::test]
async fn an_error_from_error_for_status_keeps_its_kind() {
    let url = server(|mut stream| async move {
        read_head(&mut stream).await;
        stream
            .write_all(b"HTTP/1.1 503 \r\ncontent-length: 0\r\n\r\n")
            .await
            .unwrap();
    })
    .await;
    let response = client().build().unwrap().get(url).send().await.unwrap();
    let error = response.error_for_status().unwrap_err();
    assert_eq!(
        classify(&error),
        Failure::ambiguous().cause(Cause::Status(503))
    );
}
