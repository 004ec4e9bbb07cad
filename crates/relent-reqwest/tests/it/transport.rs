//! Failures that need a whole exchange: several streams of one connection, a proxy's tunnel, TLS without a proper
//! close.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use relent_core::{Backoff, Cause, Failure, FailureKind, Network, Policy};
use relent_http::network::{SocksRefused, chain, socks_refused, tunnel_refused};
use relent_reqwest::network::classify;
use relent_reqwest::{AttemptError, Client, Error, default_builder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::http2::frame;

fn of(kind: FailureKind, network: Network) -> Failure {
    Failure::new(kind).cause(Cause::Network(network))
}

async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address.to_string())
}

async fn read_head<S: AsyncReadExt + Unpin>(stream: &mut S) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
}

/// Frames of HTTP/2 (RFC 9113 §6).
const SETTINGS: u8 = 4;
const GO_AWAY: u8 = 7;
const HEADERS: u8 = 1;
const END_STREAM_AND_HEADERS: u8 = 5;

/// Reads frames up to the next request head.
async fn read_request(stream: &mut TcpStream) {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await.unwrap();
        if head[3] == HEADERS {
            return;
        }
    }
}

#[tokio::test]
async fn a_go_away_leaves_later_streams_not_processed() {
    let (listener, address) = listener().await;
    let (first_seen, first) = oneshot::channel();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        // No later connection is accepted.
        drop(listener);
        stream.read_exact(&mut [0; 24]).await.unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
        read_request(&mut stream).await;
        first_seen.send(()).unwrap();
        read_request(&mut stream).await;
        let last_and_code = [0, 0, 0, 1, 0, 0, 0, 0];
        let mut answer = frame(GO_AWAY, 0, 0, &last_and_code);
        // `:status: 200` from HPACK's static table.
        answer.extend(frame(HEADERS, END_STREAM_AND_HEADERS, 1, &[0x88]));
        stream.write_all(&answer).await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    let http = default_builder().no_proxy().tls_certs_only([]);
    let http = http.http2_prior_knowledge().build().unwrap();
    let url = format!("http://{address}/");
    let one = tokio::spawn(http.get(&url).send());
    first.await.unwrap();
    let two = http.get(&url).send().await;
    assert_eq!(one.await.unwrap().unwrap().status(), 200);
    let failure = classify(&two.unwrap_err());
    assert_eq!(failure, of(FailureKind::NotProcessed, Network::GoAway));
}

#[tokio::test]
async fn a_tunnel_refused_by_the_proxy_is_not_processed() {
    for answer in ["HTTP/1.1 502 Bad Gateway\r\n\r\n", ""] {
        let (listener, address) = listener().await;
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_head(&mut stream).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let proxy = reqwest::Proxy::https(format!("http://{address}")).unwrap();
        let http = default_builder()
            .proxy(proxy)
            .tls_certs_only([])
            .build()
            .unwrap();
        let error = http.post("https://127.0.0.1:9/").send().await.unwrap_err();
        assert_eq!(classify(&error).kind, FailureKind::NotProcessed, "{answer}");
    }
}

#[tokio::test]
async fn a_proxy_that_requires_another_password_is_permanent() {
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_head(&mut stream).await;
        let answer = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
        stream.write_all(answer).await.unwrap();
    });
    let proxy = reqwest::Proxy::https(format!("http://u:p@{address}")).unwrap();
    let http = default_builder()
        .proxy(proxy)
        .tls_certs_only([])
        .build()
        .unwrap();
    let error = http.get("https://127.0.0.1:9/").send().await.unwrap_err();
    assert_eq!(
        classify(&error),
        of(FailureKind::Permanent, Network::Connect)
    );
    let refused = chain(&error).find_map(tunnel_refused).unwrap();
    assert_eq!(refused.status(), 407);
}

/// Sends a request through a SOCKS5 proxy that responds with these messages. Returns the number of attempts and the
/// error.
async fn through_socks(answers: &'static [&'static [u8]]) -> (usize, AttemptError) {
    let (listener, address) = listener().await;
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = attempts.clone();
    let server = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            for answer in answers {
                if stream.read(&mut [0; 600]).await.is_err() {
                    break;
                }
                let _ = stream.write_all(answer).await;
            }
        }
    });
    let proxy = reqwest::Proxy::all(format!("socks5h://user:hunter2@{address}")).unwrap();
    let builder = move || default_builder().proxy(proxy.clone()).tls_certs_only([]);
    let policy = Policy::builder(Backoff::constant(Duration::from_millis(1)));
    let client = Client::from_builder(builder, policy.max_retries(3).build().unwrap()).unwrap();
    let sent = client.post("http://127.0.0.1:9/").body("amount=5").send();
    let error = sent.await.unwrap_err();
    let text = format!("{error:?} {error}");
    assert!(!text.contains("hunter2"), "{text}");
    server.abort();
    let Error::GaveUp(gave_up) = error else {
        panic!("{text}");
    };
    (
        attempts.load(Ordering::SeqCst),
        gave_up.into_error().unwrap(),
    )
}

#[tokio::test]
async fn a_socks_refusal_is_permanent_and_a_temporary_reply_is_retried() {
    const METHOD: &[&[u8]] = &[&[5, 0xff]];
    const CREDENTIALS: &[&[u8]] = &[&[5, 2], &[1, 1]];
    const NOT_ALLOWED: &[&[u8]] = &[&[5, 2], &[1, 0], &[5, 2, 0, 1, 0, 0, 0, 0, 0, 0]];
    const UNREACHABLE: &[&[u8]] = &[&[5, 2], &[1, 0], &[5, 4, 0, 1, 0, 0, 0, 0, 0, 0]];
    for (answers, attempts, reply) in [
        (METHOD, 1, SocksRefused::Method),
        (CREDENTIALS, 1, SocksRefused::Credentials),
        (NOT_ALLOWED, 1, SocksRefused::NotAllowed),
        (UNREACHABLE, 4, SocksRefused::HostUnreachable),
    ] {
        let (asked, error) = through_socks(answers).await;
        assert_eq!(asked, attempts, "{reply}");
        let AttemptError::Transport(error) = error else {
            panic!("{error}");
        };
        assert_eq!(chain(&error).find_map(socks_refused), Some(reply));
        assert_eq!(classify(&error), reply.failure());
    }
}

#[tokio::test]
async fn a_response_without_a_tls_close_is_truncated() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let root = reqwest::Certificate::from_der(made.cert.der()).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    // The end of the connection ends the body only if TLS closes properly.
    for says_so in [true, false] {
        let (listener, address) = listener().await;
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = acceptor.accept(stream).await.unwrap();
            read_head(&mut stream).await;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\n\r\nhello")
                .await
                .unwrap();
            stream.flush().await.unwrap();
            if says_so {
                stream.shutdown().await.unwrap();
            }
        });
        let http = default_builder().no_proxy().tls_certs_only([root.clone()]);
        let http = http.http1_only().build().unwrap();
        let response = http
            .get(format!("https://{address}/"))
            .send()
            .await
            .unwrap();
        match response.bytes().await {
            Ok(body) => assert!(says_so && body == "hello", "{body:?}"),
            Err(error) => {
                assert!(!says_so, "{error:?}");
                let failure = classify(&error);
                assert_eq!(failure, of(FailureKind::Ambiguous, Network::Truncated));
            }
        }
    }
}

/// Up to ten attempts that time out after 8 s each, in virtual time.
fn ten_short_attempts() -> Policy {
    Policy::builder(Backoff::constant(Duration::from_millis(1)))
        .attempt_timeout(Duration::from_secs(8))
        .max_retries(9)
        .build()
        .unwrap()
}

/// The kernel of its peer still confirms what it receives, so no timeout of TCP ends it: the process is stopped, or a
/// load balancer has lost the server behind it. An attempt that times out ends only its stream.
#[tokio::test]
async fn a_dead_http2_connection_is_replaced_while_attempts_on_it_time_out() {
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        let mut first = true;
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let is_first = std::mem::take(&mut first);
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(socket).await.unwrap();
                while let Some(Ok((_, mut answer))) = connection.accept().await {
                    answer.send_response(http::Response::new(()), true).unwrap();
                    if is_first {
                        // Writes the response, and from then on neither reads nor writes.
                        std::future::poll_fn(|cx| {
                            Poll::Ready(connection.poll_closed(cx).is_ready())
                        })
                        .await;
                        return std::future::pending().await;
                    }
                }
            });
        }
    });
    let http = || default_builder().http2_prior_knowledge();
    let client = Client::from_builder(http, ten_short_attempts()).unwrap();
    let url = format!("http://{address}/");
    let response = client.get(&url).send().await.unwrap();
    assert_eq!(response.summary().attempts, 1);
    tokio::time::pause();
    let response = client.get(&url).send().await.unwrap();
    assert!(response.summary().attempts > 1);
}

/// Connects until the queue of this listener is full, so that the kernel ignores further connections.
#[cfg(target_os = "linux")]
fn fill(address: std::net::SocketAddr) -> Vec<std::net::TcpStream> {
    let connect = || std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200));
    std::iter::from_fn(|| connect().ok()).collect()
}

/// An address that ignores connections: the host is down, or a firewall drops them.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_dead_first_address_leaves_time_for_the_next() {
    let (listener, address) = listener().await;
    let live: std::net::SocketAddr = address.parse().unwrap();
    let dead = std::net::SocketAddr::from(([127, 0, 0, 2], live.port()));
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(dead).unwrap();
    let _dead_listener = socket.listen(1).unwrap();
    let _queued = fill(dead);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                read_head(&mut stream).await;
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                let _ = stream.write_all(answer).await;
            });
        }
    });
    let http = move || default_builder().resolve_to_addrs("two.example", &[dead, live]);
    let client = Client::from_builder(http, ten_short_attempts()).unwrap();
    let url = format!("http://two.example:{}/", live.port());
    tokio::time::pause();
    assert_eq!(client.get(url).send().await.unwrap().status(), 200);
}
