//! Tests of the messages of `relent fetch` for network errors, and of its route.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use crate::fetch_support::{Fetched, command, fetch, finish, hangs_up, refused, tls, tls_as};
use crate::scripted::{Server, Step, cut, response};

fn with(variables: &[(&str, &str)], args: &[&str]) -> Fetched {
    let mut command = command(args);
    command.envs(variables.iter().copied());
    finish(command.spawn().unwrap())
}

#[test]
fn network_errors_name_host_and_port() {
    let address = refused().to_string();
    let fetched = fetch(&[&format!("http://user:hunter2@{address}/?q=hunter2")]);
    assert!(
        fetched
            .stderr
            .contains(&format!("Connection refused ({address})")),
        "{}",
        fetched.stderr
    );
    assert!(!fetched.stderr.contains("hunter2"), "{}", fetched.stderr);
    for step in [
        Step::Close(Vec::new()),
        Step::Reset(Vec::new()),
        Step::Close(cut(200, &[], b"long", 1)),
        Step::Close(b"SSH-2.0-OpenSSH_9.2p1\r\n".to_vec()),
    ] {
        let server = Server::script([step]);
        let fetched = fetch(&[&server.url("/")]);
        let place = format!("({})", server.address);
        assert!(fetched.stderr.contains(&place), "{}", fetched.stderr);
    }
    let fetched = fetch(&["http://no-such-name.invalid:81/"]);
    assert!(
        fetched.stderr.contains("(no-such-name.invalid:81)"),
        "{}",
        fetched.stderr
    );
}

#[test]
fn an_error_after_a_redirect_names_the_last_host() {
    let address = refused().to_string();
    let to = format!("http://user:hunter2@{address}/?token=hunter2");
    let server =
        Server::answering(move |_, _| Step::Answer(response(302, &[("location", &to)], "")));
    let fetched = fetch(&["-L", &server.url("/")]);
    let told = format!("Connection refused ({address})");
    assert!(fetched.stderr.contains(&told), "{}", fetched.stderr);
    assert!(!fetched.stderr.contains("hunter2"), "{}", fetched.stderr);
}

#[test]
fn a_silent_server_is_not_reported_as_no_connection() {
    let server = Server::script([Step::Stall(cut(200, &[], b"long", 1))]);
    let fetched = fetch(&[
        "--idle-timeout",
        "0.1",
        "--max-retries",
        "0",
        &server.url("/"),
    ]);
    assert_eq!(fetched.status, 28);
    assert!(
        fetched
            .stderr
            .contains("the server was silent for 100ms (--idle-timeout; 127.0.0.1:")
            || fetched.stderr.contains("only 1 bytes arrived within 100ms"),
        "{}",
        fetched.stderr
    );
    assert!(!fetched.stderr.contains("connection"), "{}", fetched.stderr);
}

#[test]
fn a_trickling_server_hits_the_idle_timeout() {
    let body = vec![b'x'; 1 << 20];
    let slow = Step::Slow(Duration::from_millis(20), 8, response(200, &[], body));
    let server = Server::script([slow]);
    let args = [
        "--idle-timeout",
        "1",
        "--max-retries",
        "0",
        &server.url("/"),
    ];
    let fetched = fetch(&args);
    assert_eq!(fetched.status, 28, "{}", fetched.stderr);
    // On a busy machine the server may appear silent.
    assert!(
        fetched.stderr.contains("bytes arrived within 1s")
            || fetched.stderr.contains("silent for 1s"),
        "{}",
        fetched.stderr
    );
}

#[test]
fn a_server_that_reads_a_long_upload_is_not_silent() {
    const LENGTH: usize = 24 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut piece, mut left) = (stream.unwrap(), vec![0; 1 << 16], LENGTH);
            while left > 0 {
                // The whole takes three times the idle timeout or more.
                thread::sleep(Duration::from_millis(4));
                match stream.read(&mut piece) {
                    Ok(length @ 1..) => left = left.saturating_sub(length),
                    _ => break,
                }
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&vec![b'x'; LENGTH]).unwrap();
    let data = format!("@{}", file.path().display());
    for args in [["-T", &data[1..]], ["-d", &data]] {
        let limit = ["--idle-timeout", "500ms", "--max-retries", "0"];
        let fetched = fetch(&[&limit[..], &args, &[&url]].concat());
        assert_eq!((fetched.status, &*fetched.stderr), (0, ""), "{args:?}");
    }
}

#[test]
fn a_rejected_certificate_is_explained() {
    let at = |url: &str| {
        url.trim_start_matches("https://")
            .trim_end_matches('/')
            .to_owned()
    };
    let (url, pem) = tls();
    let fetched = fetch(&[&url]);
    let untrusted = format!("that of {} is not issued by a trusted CA", at(&url));
    assert_eq!(fetched.status, 60);
    assert!(fetched.stderr.contains(&untrusted), "{}", fetched.stderr);
    let fetched = fetch(&["--cacert", pem.path().to_str().unwrap(), &url]);
    assert_eq!((fetched.status, &fetched.stdout[..]), (0, &b"secret"[..]));
    let fetched = fetch(&["-k", &url]);
    assert_eq!((fetched.status, &fetched.stdout[..]), (0, &b"secret"[..]));

    let params = rcgen::CertificateParams::new(["other.example".to_owned()]).unwrap();
    let (url, pem) = tls_as(&params);
    let fetched = fetch(&["--cacert", pem.path().to_str().unwrap(), &url]);
    assert_eq!(fetched.status, 60);
    assert!(
        fetched
            .stderr
            .contains("is for other.example and not for localhost"),
        "{}",
        fetched.stderr
    );

    for (from, to, says) in [
        (2001, 2002, "expired at 2002-01-01T"),
        (2090, 2091, "is valid from 2090-01-01T"),
    ] {
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(to, 1, 1);
        let (url, pem) = tls_as(&params);
        let fetched = fetch(&["--cacert", pem.path().to_str().unwrap(), &url]);
        assert_eq!(fetched.status, 60);
        assert!(fetched.stderr.contains(says), "{}", fetched.stderr);
    }
}

#[test]
fn a_server_without_tls_is_reported() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let plain = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n";
            let _ = std::io::Write::write_all(&mut stream.unwrap(), plain);
        }
    });
    let fetched = fetch(&[&url]);
    assert_eq!(fetched.status, 35, "{}", fetched.stderr);
    assert!(
        fetched.stderr.contains("the server does not use TLS"),
        "{}",
        fetched.stderr
    );
    let address = hangs_up();
    let fetched = fetch(&[&format!("https://{address}/")]);
    let says = format!("TLS handshake cut ({address})");
    assert!(fetched.stderr.contains(&says), "{}", fetched.stderr);
}

#[test]
fn unreadable_certificates_are_an_error_without_fallback() {
    let (url, pem) = tls();
    let server = Server::script([Step::Answer(response(200, &[], ""))]);
    let empty = tempfile::NamedTempFile::new().unwrap();
    let empty = empty.path().to_str().unwrap();
    let pem = pem.path().to_str().unwrap();
    for url in [url.as_str(), &server.url("/")] {
        for (name, wrong) in [
            ("SSL_CERT_FILE", "/no/such/file"),
            ("SSL_CERT_FILE", empty),
            ("SSL_CERT_DIR", "/no/such/folder"),
        ] {
            let fetched = with(&[(name, wrong)], &[url]);
            assert_eq!(fetched.status, 77, "{}", fetched.stderr);
            assert!(fetched.stderr.contains(name), "{}", fetched.stderr);
        }
        for wrong in ["/no/such/file", empty] {
            assert_eq!(fetch(&["--cacert", wrong, url]).status, 77);
            assert_eq!(fetch(&["--cert", wrong, url]).status, 58);
        }
        // A certificate without a key.
        assert_eq!(fetch(&["--cert", pem, url]).status, 58);
    }
    assert_eq!(server.count(), 0);
}

#[test]
fn fetch_fails_with_an_invalid_proxy_and_never_bypasses_it() {
    let server = Server::script([Step::Answer(response(200, &[], "direct"))]);
    for (name, wrong) in [
        ("HTTP_PROXY", "http://user:hunter2@h:port"),
        ("http_proxy", "socks6://127.0.0.1:1"),
        ("HTTPS_PROXY", "ftp://proxy"),
        ("ALL_PROXY", "http://"),
    ] {
        let fetched = with(&[(name, wrong)], &[&server.url("/")]);
        assert_eq!(fetched.status, 2, "{}", fetched.stderr);
        assert!(fetched.stderr.contains(name), "{}", fetched.stderr);
        assert!(!fetched.stderr.contains("hunter2"), "{}", fetched.stderr);
    }
    assert_eq!(fetch(&["-x", "gopher://p", &server.url("/")]).status, 2);
    assert_eq!(server.count(), 0);
}

#[test]
fn an_error_of_the_proxy_names_the_proxy() {
    let proxy = refused().to_string();
    for url in ["http://example.invalid/", "https://example.invalid/"] {
        let fetched = fetch(&["-x", &format!("http://u:hunter2@{proxy}"), url]);
        assert_eq!(fetched.status, 7, "{}", fetched.stderr);
        let says = format!("through the proxy {proxy})");
        assert!(fetched.stderr.contains(&says), "{}", fetched.stderr);
        assert!(!fetched.stderr.contains("hunter2"), "{}", fetched.stderr);
    }
    let fetched = fetch(&["-x", "no-such-proxy.invalid:1", "http://127.0.0.1/"]);
    assert_eq!(fetched.status, 5, "{}", fetched.stderr);
    let closed = Server::script([Step::Answer(response(407, &[], ""))]);
    let fetched = fetch(&["-x", &closed.url(""), "https://example.invalid/"]);
    assert!(
        fetched.stderr.contains("proxy") && fetched.stderr.contains("example.invalid:443"),
        "{}",
        fetched.stderr
    );
}

#[test]
fn no_proxy_star_fetches_every_host_directly() {
    let server = Server::script([Step::Answer(response(200, &[], "direct"))]);
    let proxy = format!("http://{}", refused());
    let variables = |no| [("HTTP_PROXY", proxy.as_str()), ("NO_PROXY", no)];
    for no in ["*", "127.0.0.1", "a, 127.0.0.0/8"] {
        let fetched = with(&variables(no), &[&server.url("/")]);
        assert_eq!(fetched.stdout, b"direct", "{}", fetched.stderr);
    }
    assert_eq!(with(&variables("b"), &[&server.url("/")]).status, 7);
    let args = ["--noproxy", "*", &server.url("/")];
    assert_eq!(with(&variables("b"), &args).stdout, b"direct");
    let args = ["-x", "", &server.url("/")];
    assert_eq!(with(&variables("b"), &args).stdout, b"direct");
    let through = Server::script([Step::Answer(response(200, &[], "proxy"))]);
    let fetched = fetch(&[
        "-x",
        &through.url("").replace("//", "//a:b@"),
        "http://example.invalid/x",
    ]);
    assert_eq!(fetched.stdout, b"proxy", "{}", fetched.stderr);
    assert_eq!(
        through.seen()[0].header("proxy-authorization"),
        Some("Basic YTpi")
    );
}

#[test]
fn a_credential_is_in_no_message() {
    for args in [
        &["http://user:hunter2@127.0.0.1:99999/"][..],
        &["user:hunter2@example.com"],
        &["-H", "Authorization: hunter2\r\n", "http://127.0.0.1:1/"],
        &["-H", "hunter2", "http://127.0.0.1:1/"],
        &["-u", "hunter2", "http://127.0.0.1:1/"],
        &["-x", "http://user:hunter2@:1", "http://127.0.0.1:1/"],
        &[
            "--trace",
            "-",
            "-u",
            "a:hunter2",
            "http://b:hunter2@127.0.0.1:1/?token=hunter2",
        ],
    ] {
        let fetched = fetch(args);
        assert_ne!(fetched.status, 0);
        assert!(!fetched.stderr.contains("hunter2"), "{}", fetched.stderr);
    }
}
