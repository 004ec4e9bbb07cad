//! A server that fails by a script: `flaky_server [ADDRESS] [STEP]…`.
//!
//! Each request gets the next step, and the last step repeats. A step is a status such as `503`, `503:2` (with
//! `Retry-After: 2`), `cut` (a body that ends too early), `tagged` (a cut body with a strong `ETag`, and its rest on
//! request) or `reset` (closed without a response).
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

const BODY: &str = "an answer, at last\n";

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let listener = TcpListener::bind(arguments.next().as_deref().unwrap_or("127.0.0.1:0"))?;
    let mut steps: Vec<String> = arguments.collect();
    if steps.is_empty() {
        steps = ["503:1", "500", "cut", "200"].map(str::to_owned).to_vec();
    }
    println!("http://{}/", listener.local_addr()?);
    let mut requests = 0;
    for connection in listener.incoming() {
        // A client that disconnects must not stop the server.
        let _ = connection.and_then(|connection| serve(connection, &steps, &mut requests));
    }
    Ok(())
}

fn serve(mut connection: TcpStream, steps: &[String], requests: &mut usize) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut length = 0;
    let mut range = None;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        match header.trim().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap_or(0),
            Some(("range", value)) => range = first_byte(value),
            _ => {}
        }
    }
    std::io::copy(&mut reader.take(length), &mut std::io::sink())?;

    let step = &steps[(*requests).min(steps.len() - 1)];
    *requests += 1;
    eprintln!(
        "    [service] request {requests}: {} -> {step}",
        request.trim_end()
    );
    match step.split_once(':').unwrap_or((step, "")) {
        ("reset", _) => Ok(()),
        ("cut", _) => {
            let whole = BODY.len();
            write!(
                connection,
                "HTTP/1.1 200 OK\r\nContent-Length: {whole}\r\n\r\n{}",
                &BODY[..6]
            )
        }
        ("tagged", _) => {
            let (whole, status) = (BODY.len(), if range.is_some() { 206 } else { 200 });
            let (from, to) = range.map_or((0, 6), |from| (from, whole));
            write!(
                connection,
                "HTTP/1.1 {status} OK\r\nETag: \"v1\"\r\nContent-Range: bytes {from}-{}/{whole}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
                whole - 1,
                whole - from,
                &BODY[from..to]
            )
        }
        ("200", _) => {
            let length = BODY.len();
            write!(
                connection,
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{BODY}"
            )
        }
        (status, "") => write!(
            connection,
            "HTTP/1.1 {status} Failure\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        ),
        (status, seconds) => write!(
            connection,
            "HTTP/1.1 {status} Failure\r\nRetry-After: {seconds}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        ),
    }
}

/// The first byte of a range such as `bytes=6-`, if the body is longer.
fn first_byte(range: &str) -> Option<usize> {
    let first = range.strip_prefix("bytes=")?.strip_suffix('-')?;
    first.parse().ok().filter(|first| *first < BODY.len())
}
