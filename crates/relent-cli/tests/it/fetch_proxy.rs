//! Tests of `relent fetch` through a proxy that opens or refuses a tunnel.

use std::sync::{Arc, Mutex};
use std::thread;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::fetch_support::{Fetched, fetch, tls};

/// A proxy, with the heads of its requests.
struct Proxy {
    port: u16,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// Responds to CONNECT with `answer`; a 200 opens the tunnel, an empty one closes the connection.
    fn answering(answer: &'static str) -> Self {
        Self::start(None, move |_| answer)
    }

    fn start(
        tls: Option<TlsAcceptor>,
        answer: impl Fn(usize) -> &'static str + Send + Sync + 'static,
    ) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (heads.clone(), Arc::new(answer));
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let (tls, seen, answer) = (tls.clone(), seen.clone(), answer.clone());
                    tokio::spawn(async move {
                        match tls {
                            None => serve(stream, &seen, &*answer).await,
                            Some(tls) => {
                                if let Ok(stream) = tls.accept(stream).await {
                                    serve(stream, &seen, &*answer).await;
                                }
                            }
                        }
                    });
                }
            });
        });
        Self { port, heads }
    }

    fn url(&self) -> String {
        format!("http://user:hunter2@127.0.0.1:{}", self.port)
    }

    fn count(&self) -> usize {
        self.heads.lock().unwrap().len()
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    seen: &Mutex<Vec<String>>,
    answer: &(dyn Fn(usize) -> &'static str + Send + Sync),
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let number = {
        let mut seen = seen.lock().unwrap();
        seen.push(head.clone());
        seen.len() - 1
    };
    let answer = answer(number);
    let _ = stream.write_all(answer.as_bytes()).await;
    if answer.starts_with("HTTP/1.1 200 ") {
        let target = head.split(' ').nth(1).unwrap();
        if let Ok(mut far) = TcpStream::connect(target).await {
            let _ = copy_bidirectional(&mut stream, &mut far).await;
        }
    }
    let _ = stream.shutdown().await;
}

fn through(proxy: &str, url: &str) -> Fetched {
    fetch(&["--max-retries", "10", "-x", proxy, url])
}

#[test]
fn a_proxy_that_refuses_a_tunnel_is_not_retried_and_is_named() {
    for (status, answer) in [
        (
            407,
            "HTTP/1.1 407 Proxy Authentication Required\r\nproxy-authenticate: Basic realm=\"x\"\r\ncontent-length: 0\r\n\r\n",
        ),
        (
            403,
            "HTTP/1.1 403 Forbidden\r\ncontent-length: 3\r\n\r\nno\n",
        ),
        (
            400,
            "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\nno",
        ),
        (404, "HTTP/1.0 404 \r\n\r\n"),
        (
            405,
            "HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n",
        ),
        (
            302,
            "HTTP/1.1 302 Found\r\nlocation: http://login.example/\r\ncontent-length: 0\r\n\r\n",
        ),
    ] {
        let proxy = Proxy::answering(answer);
        for args in [
            &[][..],
            &["-d", "amount=5"],
            &["--retry-on", "network,connect"],
        ] {
            let before = proxy.count();
            let fetched = fetch(&[&["-x", &proxy.url(), "https://pay.invalid/"], args].concat());
            assert_eq!(
                (fetched.status, proxy.count() - before),
                (56, 1),
                "{status}: {}",
                fetched.stderr
            );
            let says = format!("the proxy refused CONNECT with status {status}");
            assert!(
                fetched.stderr.contains(&says),
                "{status}: {}",
                fetched.stderr
            );
            let place = format!(
                "(pay.invalid:443 through the proxy 127.0.0.1:{})",
                proxy.port
            );
            assert!(
                fetched.stderr.contains(&place),
                "{status}: {}",
                fetched.stderr
            );
            assert!(!fetched.stderr.contains("hunter2"), "{}", fetched.stderr);
        }
        let head = proxy.heads.lock().unwrap()[0].to_lowercase();
        assert!(
            head.starts_with("connect pay.invalid:443 http/1.1\r\n"),
            "{head}"
        );
        assert!(
            head.contains("\r\nproxy-authorization: basic dxnlcjpodw50zxiy\r\n"),
            "{head}"
        );
    }
}

#[test]
fn an_overloaded_or_broken_proxy_is_retried() {
    for (answer, status) in [
        ("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n", 56),
        (
            "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
            56,
        ),
        ("HTTP/1.1 504 Gateway Timeout\r\n\r\n", 56),
        ("", 7),
    ] {
        let proxy = Proxy::answering(answer);
        let fetched = through(&proxy.url(), "https://pay.invalid/");
        assert_eq!(
            (fetched.status, proxy.count()),
            (status, 11),
            "{answer:?}: {}",
            fetched.stderr
        );
    }
}

#[test]
fn a_tunnel_opened_at_the_second_attempt_carries_the_request() {
    let (url, pem) = tls();
    let proxy = Proxy::start(None, |number| match number {
        0 => "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
        _ => "HTTP/1.1 200 Connection established\r\n\r\n",
    });
    let cacert = pem.path().to_str().unwrap();
    let fetched = fetch(&["-x", &proxy.url(), "--cacert", cacert, &url]);
    assert_eq!(
        (fetched.status, &fetched.stdout[..]),
        (0, &b"secret"[..]),
        "{}",
        fetched.stderr
    );
    assert_eq!(proxy.count(), 2);
    let says = "the proxy refused CONNECT with status 503 Service Unavailable";
    assert!(fetched.stderr.contains(says), "{}", fetched.stderr);
    // The certificate behind the tunnel is verified as usual.
    let fetched = fetch(&["-x", &proxy.url(), &url]);
    assert_eq!(fetched.status, 60, "{}", fetched.stderr);
    // A host in NO_PROXY is fetched without the proxy.
    let asked = proxy.count();
    let fetched = fetch(&[
        "-x",
        &proxy.url(),
        "--noproxy",
        "localhost",
        "--cacert",
        cacert,
        &url,
    ]);
    assert_eq!(
        (fetched.status, proxy.count()),
        (0, asked),
        "{}",
        fetched.stderr
    );
}

#[test]
fn a_proxy_over_tls_refuses_and_opens_tunnels() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (url, pem) = tls();
    let both = tempfile::NamedTempFile::new().unwrap();
    let all = std::fs::read_to_string(pem.path()).unwrap() + &made.cert.pem();
    std::fs::write(both.path(), all).unwrap();
    for (answer, status, body) in [
        (
            "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n",
            56,
            "",
        ),
        ("HTTP/1.1 200 OK\r\n\r\n", 0, "secret"),
    ] {
        let proxy = Proxy::start(Some(acceptor.clone()), move |_| answer);
        let at = format!("https://localhost:{}", proxy.port);
        let fetched = fetch(&["-x", &at, "--cacert", both.path().to_str().unwrap(), &url]);
        assert_eq!(
            (fetched.status, proxy.count()),
            (status, 1),
            "{}",
            fetched.stderr
        );
        assert_eq!(fetched.stdout, body.as_bytes());
    }
    // A rejected certificate is that of the proxy, also of a request that goes through it.
    for to in [&url, "http://name.invalid/"] {
        let proxy = Proxy::start(Some(acceptor.clone()), |_| "");
        let at = format!("localhost:{}", proxy.port);
        let fetched = fetch(&["-x", &format!("https://{at}"), to]);
        assert_eq!(fetched.status, 60, "{}", fetched.stderr);
        let says = format!("that of {at} is not issued by a trusted CA");
        assert!(fetched.stderr.contains(&says), "{to}: {}", fetched.stderr);
    }
}

#[test]
fn a_wrong_proxy_password_for_plain_http_is_not_retried() {
    let proxy =
        Proxy::answering("HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n");
    let fetched = through(&proxy.url(), "http://pay.invalid/");
    assert_eq!(
        (fetched.status, proxy.count()),
        (22, 1),
        "{}",
        fetched.stderr
    );
    assert!(fetched.stderr.contains("status 407"), "{}", fetched.stderr);
}
