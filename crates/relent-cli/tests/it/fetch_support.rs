//! Helpers for the tests of `relent fetch`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::scripted;
use crate::support::{self, HANG_TIMEOUT};

/// The result of a finished fetch.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) status: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// `relent fetch ARGS` with quick retries, and without the caller's proxies.
pub(crate) fn command(args: &[&str]) -> Command {
    let quick = [
        "fetch",
        "--initial",
        "1ms",
        "--jitter",
        "none",
        "--max-retries",
        "3",
    ];
    let mut command = support::relent(&[&quick[..], args].concat());
    for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
        command.env_remove(name).env_remove(name.to_uppercase());
    }
    command
}

/// Fetches with these arguments.
pub(crate) fn fetch(args: &[&str]) -> Fetched {
    finish(command(args).spawn().unwrap())
}

/// Waits for the end.
pub(crate) fn finish(child: Child) -> Fetched {
    let pid = Pid::from_raw(child.id() as i32);
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(child.wait_with_output()));
    let output = result.recv_timeout(HANG_TIMEOUT).unwrap_or_else(|_| {
        let _ = kill(pid, Signal::SIGKILL);
        result.recv().unwrap()
    });
    let output = output.unwrap();
    Fetched {
        // A panic is 101; a killed process has no status.
        status: output.status.code().unwrap_or(-1),
        stdout: output.stdout,
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The names in a folder.
pub(crate) fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A fetch that runs until the test ends it.
pub(crate) fn background(args: &[&str]) -> Child {
    command(args).stdin(Stdio::null()).spawn().unwrap()
}

pub(crate) fn interrupt(child: &Child) {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
}

/// Waits until `happened`.
pub(crate) fn until(mut happened: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !happened() {
        assert!(began.elapsed() < HANG_TIMEOUT, "it did not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

/// An address without a listener.
pub(crate) fn refused() -> SocketAddr {
    scripted::unused_address()
}

/// A server that closes every connection after the first bytes of the client.
pub(crate) fn hangs_up() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = std::io::Read::read(&mut stream.unwrap(), &mut [0; 4096]);
        }
    });
    address
}

/// A server that responds with `secret` over TLS, and the certificate of its CA.
pub(crate) fn tls() -> (String, tempfile::NamedTempFile) {
    tls_as(&rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap())
}

/// As [`tls`], with this certificate.
pub(crate) fn tls_as(params: &rcgen::CertificateParams) -> (String, tempfile::NamedTempFile) {
    let key = rcgen::KeyPair::generate().unwrap();
    let made = params.self_signed(&key).unwrap();
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.der().clone()], private)
        .unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        runtime.block_on(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    continue;
                };
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream
                    .write_all(&scripted::response(200, &[], "secret"))
                    .await;
                let _ = stream.shutdown().await;
            }
        });
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), made.pem()).unwrap();
    (format!("https://localhost:{port}/"), file)
}
