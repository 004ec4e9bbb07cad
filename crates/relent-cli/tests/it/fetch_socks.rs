//! Tests of `relent fetch` through a SOCKS proxy that opens or refuses a connection.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::fetch_support::{Fetched, fetch, refused, tls};
use crate::scripted::{Server, Step, response};

/// The behaviour of a proxy.
#[derive(Clone, Copy)]
enum Proxy {
    /// Responds to the first message with this, and closes.
    First(&'static [u8]),
    /// Asks for a user name and a password, and refuses them.
    WrongPassword,
    /// Responds to the connection request with this reply.
    Replies(u8),
    /// As `Replies`, for SOCKS4.
    Replies4(u8),
    /// Opens the connection after this many refused requests.
    Opens(usize),
}

impl Proxy {
    /// Returns the port and the count of connections.
    fn start(self) -> (u16, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let number = counted.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || self.serve(stream.unwrap(), number));
            }
        });
        (port, count)
    }

    fn serve(self, mut stream: TcpStream, number: usize) -> io::Result<()> {
        match self {
            Self::First(answer) => {
                stream.read_exact(&mut [0; 3])?;
                stream.write_all(answer)?;
            }
            Self::WrongPassword => {
                authenticate(&mut stream, 1)?;
            }
            Self::Replies(reply) => {
                authenticate(&mut stream, 0)?;
                target(&mut stream)?;
                stream.write_all(&[5, reply, 0, 1, 0, 0, 0, 0, 0, 0])?;
            }
            Self::Replies4(reply) => {
                stream.read_exact(&mut [0; 9])?;
                stream.write_all(&[0, reply, 0, 0, 0, 0, 0, 0])?;
            }
            Self::Opens(after) => {
                authenticate(&mut stream, 0)?;
                let target = target(&mut stream)?;
                if number < after {
                    return stream.write_all(&[5, 4, 0, 1, 0, 0, 0, 0, 0, 0]);
                }
                let mut far = TcpStream::connect(target)?;
                stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])?;
                let (mut near, mut there) = (stream.try_clone()?, far.try_clone()?);
                thread::spawn(move || {
                    let _ = io::copy(&mut near, &mut there);
                });
                io::copy(&mut far, &mut stream)?;
            }
        }
        Ok(())
    }
}

/// Accepts a user name and a password, if the client sends them, and responds with `answer`.
fn authenticate(stream: &mut TcpStream, answer: u8) -> io::Result<()> {
    let mut hello = [0; 3];
    stream.read_exact(&mut hello)?;
    stream.write_all(&[5, hello[2]])?;
    if hello[2] == 2 {
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        stream.read_exact(&mut vec![0; usize::from(length[1])])?;
        stream.read_exact(&mut length[..1])?;
        stream.read_exact(&mut vec![0; usize::from(length[0])])?;
        stream.write_all(&[1, answer])?;
    }
    Ok(())
}

/// Reads the target that the client requests.
fn target(stream: &mut TcpStream) -> io::Result<(String, u16)> {
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let host = match head[3] {
        1 => {
            let mut address = [0; 4];
            stream.read_exact(&mut address)?;
            address.map(|part| part.to_string()).join(".")
        }
        _ => {
            let mut length = [0; 1];
            stream.read_exact(&mut length)?;
            let mut name = vec![0; usize::from(length[0])];
            stream.read_exact(&mut name)?;
            String::from_utf8(name).unwrap()
        }
    };
    let mut port = [0; 2];
    stream.read_exact(&mut port)?;
    Ok((host, u16::from_be_bytes(port)))
}

/// Fetches through the proxy, with immediate retries.
fn through(proxy: &str, more: &[&str]) -> Fetched {
    let args = ["--max-retries", "10", "--max-delay", "1ms", "-x", proxy];
    fetch(&[&args[..], more].concat())
}

#[test]
fn a_socks_proxy_that_refuses_is_not_retried_and_is_named() {
    let cases = [
        (
            Proxy::First(b"\x05\xff"),
            "socks5h",
            "authentication method",
        ),
        (Proxy::WrongPassword, "socks5h", "refused the credentials"),
        (Proxy::WrongPassword, "socks5", "refused the credentials"),
        (Proxy::Replies(2), "socks5h", "not allowed by ruleset"),
        (Proxy::Replies(7), "socks5h", "command not supported"),
        (Proxy::Replies(8), "socks5h", "address type not supported"),
        (Proxy::Replies4(92), "socks4", "not confirmed by ident"),
        (Proxy::Replies4(93), "socks4", "not confirmed by ident"),
    ];
    for (proxy, scheme, says) in cases {
        let (port, count) = proxy.start();
        let user = if scheme == "socks4" {
            ""
        } else {
            "user:hunter2@"
        };
        let at = format!("{scheme}://{user}127.0.0.1:{port}");
        for args in [
            &["http://127.0.0.2:9/"][..],
            &["https://127.0.0.2:9/"],
            &["http://127.0.0.2:9/", "-d", "amount=5"],
        ] {
            let before = count.load(Ordering::SeqCst);
            let fetched = through(&at, args);
            let asked = count.load(Ordering::SeqCst) - before;
            assert_eq!(
                (fetched.status, asked),
                (97, 1),
                "{says}: {}",
                fetched.stderr
            );
            assert!(fetched.stderr.contains(says), "{says}: {}", fetched.stderr);
            let place = format!("127.0.0.2:9 through the proxy 127.0.0.1:{port})");
            assert!(fetched.stderr.contains(&place), "{}", fetched.stderr);
            assert!(!fetched.stderr.contains("hunter2"), "{}", fetched.stderr);
        }
    }
}

#[test]
fn a_transient_socks_reply_is_a_connect_failure_and_is_retried() {
    for (proxy, scheme, says, status, attempts) in [
        (Proxy::Replies(1), "socks5h", "general failure", 97, 11),
        (Proxy::Replies(3), "socks5h", "network unreachable", 97, 11),
        (Proxy::Replies(4), "socks5h", "host unreachable", 97, 11),
        (Proxy::Replies(5), "socks5h", "connection refused", 97, 11),
        (Proxy::Replies(6), "socks5h", "TTL expired", 97, 11),
        (Proxy::Replies4(91), "socks4", "rejected or failed", 97, 11),
        // The proxy closes the connection.
        (Proxy::First(b""), "socks5h", "SOCKS", 7, 11),
        // The proxy uses another protocol.
        (
            Proxy::First(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            "socks5h",
            "not one of SOCKS",
            97,
            2,
        ),
    ] {
        let (port, count) = proxy.start();
        let at = format!("{scheme}://127.0.0.1:{port}");
        // A POST is retried, too: nothing of the request was sent.
        let fetched = through(&at, &["http://127.0.0.2:9/", "-d", "amount=5"]);
        let asked = count.load(Ordering::SeqCst);
        assert_eq!(
            (fetched.status, asked),
            (status, attempts),
            "{says}: {}",
            fetched.stderr
        );
        assert!(fetched.stderr.contains(says), "{says}: {}", fetched.stderr);
    }
}

#[test]
fn a_socks_proxy_that_opens_a_connection_carries_the_request() {
    let server = Server::script((0..3).map(|_| Step::Answer(response(200, &[], "hello"))));
    for at in ["socks5", "socks5h", "socks5h://u:p@"] {
        let (port, count) = Proxy::Opens(1).start();
        let at = match at.contains("://") {
            true => format!("{at}127.0.0.1:{port}"),
            false => format!("{at}://127.0.0.1:{port}"),
        };
        let fetched = through(&at, &[&server.url("/")]);
        assert_eq!(
            (fetched.status, &*fetched.stdout),
            (0, &b"hello"[..]),
            "{}",
            fetched.stderr
        );
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }
    // The certificate of the server is verified as usual.
    let (url, pem) = tls();
    let (port, _) = Proxy::Opens(0).start();
    let at = format!("socks5h://127.0.0.1:{port}");
    let cacert = ["--cacert", pem.path().to_str().unwrap(), &url];
    let fetched = through(&at, &cacert);
    assert_eq!(
        (fetched.status, &*fetched.stdout),
        (0, &b"secret"[..]),
        "{}",
        fetched.stderr
    );
    assert_eq!(through(&at, &[&url]).status, 60);
}

#[test]
fn a_missing_socks_proxy_is_an_error_and_never_bypassed() {
    let server = Server::script([Step::Answer(response(200, &[], "direct"))]);
    for scheme in ["socks4", "socks4a", "socks5", "socks5h"] {
        let at = format!("{scheme}://{}", refused());
        let fetched = fetch(&["--max-retries", "0", "-x", &at, &server.url("/")]);
        assert_eq!(fetched.status, 7, "{}", fetched.stderr);
        assert!(
            fetched.stderr.contains("Connection refused"),
            "{}",
            fetched.stderr
        );
    }
    let fetched = fetch(&[
        "--max-retries",
        "0",
        "-x",
        "socks5h://no-such-proxy.invalid",
        &server.url("/"),
    ]);
    assert_eq!(fetched.status, 6, "{}", fetched.stderr);
    assert_eq!(server.count(), 0);
}
