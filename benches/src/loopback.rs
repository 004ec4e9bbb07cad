//! An HTTP/1.1 server on the loopback, with a thread for each connection.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The size of the body of a 503.
pub const ERROR_BODY: usize = 200_000;

/// The counts of the server.
#[derive(Debug, Default)]
pub struct Seen {
    /// Connections that were accepted.
    pub connections: AtomicUsize,
    /// Requests that were answered, or begun to be.
    pub requests: AtomicUsize,
}

/// Responds with 503 and a large body to the first `failures` requests, and with 200 and no body to all others, as
/// long as the process runs. Returns the address.
///
/// # Errors
/// The loopback cannot be listened on.
pub fn serve(failures: usize) -> io::Result<(String, Arc<Seen>)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let url = format!("http://{}/path", listener.local_addr()?);
    let seen = Arc::new(Seen::default());
    let told = seen.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            told.connections.fetch_add(1, Ordering::SeqCst);
            let told = told.clone();
            // A client that goes away ends its connection: no error to anybody.
            thread::spawn(move || converse(stream, failures, &told).ok());
        }
    });
    Ok((url, seen))
}

fn converse(mut stream: TcpStream, failures: usize, seen: &Seen) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut request = Vec::new();
    let mut part = [0; 4096];
    loop {
        let length = stream.read(&mut part)?;
        if length == 0 {
            return Ok(());
        }
        request.extend_from_slice(&part[..length]);
        if !request.ends_with(b"\r\n\r\n") {
            continue;
        }
        request.clear();
        if seen.requests.fetch_add(1, Ordering::SeqCst) < failures {
            let head =
                format!("HTTP/1.1 503 Service Unavailable\r\ncontent-length: {ERROR_BODY}\r\n\r\n");
            stream.write_all(head.as_bytes())?;
            stream.write_all(&vec![b'x'; ERROR_BODY])?;
        } else {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        }
    }
}
