//! A server on a real socket that responds by a script: one step per request. The last step repeats.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by tests that each use a part"
)]

use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Longer than any operation here takes, on any machine.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Response of the server to a request.
#[derive(Clone, Debug)]
pub enum Step {
    /// These bytes; the connection stays open.
    Answer(Vec<u8>),
    /// These bytes, then the end of the connection (FIN).
    Close(Vec<u8>),
    /// These bytes, then a reset (RST).
    Reset(Vec<u8>),
    /// These bytes, then silence until the client disconnects.
    Stall(Vec<u8>),
    /// These bytes before the body of the request is read, and whether it is read then.
    Early(Vec<u8>, bool),
    /// The first piece after this time, then pieces of the given length with that time between them.
    Slow(Duration, usize, Vec<u8>),
}

impl Step {
    /// Removes the body: a response to HEAD ends with its head.
    fn leave_out_body(&mut self) {
        let (Self::Answer(bytes)
        | Self::Close(bytes)
        | Self::Reset(bytes)
        | Self::Stall(bytes)
        | Self::Early(bytes, _)
        | Self::Slow(_, _, bytes)) = self;
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            bytes.truncate(end + 4);
        }
    }
}

/// A received request.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The number of the connection; the first is 1.
    pub connection: usize,
    /// The head, in lower case except for its first line.
    pub head: String,
    /// The body that was read, as stated by `Content-Length`.
    pub body: Vec<u8>,
    /// The time at which its head had arrived.
    pub at: Instant,
}

impl Seen {
    /// The value of a header field.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .filter_map(|line| line.split_once(": "))
            .find(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// The method.
    pub fn method(&self) -> &str {
        self.head.split(' ').next().unwrap_or_default()
    }

    /// The path.
    pub fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    /// The first byte of `Range: bytes=N-`, if it is there.
    pub fn range_start(&self) -> Option<usize> {
        let range = self.header("range")?;
        range
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse()
            .ok()
    }
}

type Script = dyn Fn(usize, &Seen) -> Step + Send + Sync;

/// A running server; it ends with the test's process.
#[derive(Clone)]
pub struct Server {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    silent: Arc<AtomicUsize>,
    left: Arc<AtomicUsize>,
}

impl Server {
    /// Responds with these steps.
    pub fn script(steps: impl IntoIterator<Item = Step>) -> Self {
        let steps: Vec<Step> = steps.into_iter().collect();
        Self::answering(move |index, _| steps[index.min(steps.len() - 1)].clone())
    }

    /// Responds with a function of the number of the request (from 0) and the request.
    pub fn answering(script: impl Fn(usize, &Seen) -> Step + Send + Sync + 'static) -> Self {
        Self::start(false, script)
    }

    /// Calls the function before the body of the request is read; its steps may be [`Step::Early`].
    pub fn answering_early(script: impl Fn(usize, &Seen) -> Step + Send + Sync + 'static) -> Self {
        Self::start(true, script)
    }

    fn start(early: bool, script: impl Fn(usize, &Seen) -> Step + Send + Sync + 'static) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, silent, left) = (
            Arc::new(Mutex::new(Vec::new())),
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicUsize::new(0)),
        );
        let script: Arc<Script> = Arc::new(script);
        let (all, stalled, gone) = (seen.clone(), Arc::clone(&silent), Arc::clone(&left));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                for connection in 1.. {
                    let (stream, _) = listener.accept().await.unwrap();
                    let (script, all, stalled) = (script.clone(), all.clone(), stalled.clone());
                    let gone = gone.clone();
                    tokio::spawn(async move {
                        // The client may disconnect at any time.
                        let _ = serve(stream, connection, early, &*script, &all, &stalled).await;
                        gone.fetch_add(1, Ordering::Release);
                    });
                }
            });
        });
        Self {
            address,
            seen,
            silent,
            left,
        }
    }

    /// The URL of a resource.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The number of requests that have met a silence, after everything before it was sent.
    pub fn silences(&self) -> usize {
        self.silent.load(Ordering::Acquire)
    }

    /// Blocks until this many requests have met a silence.
    pub fn await_silences(&self, silences: usize) {
        let began = Instant::now();
        while self.silences() < silences {
            assert!(began.elapsed() < TEST_TIMEOUT, "{silences} silences");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The number of connections that have ended.
    pub fn ended(&self) -> usize {
        self.left.load(Ordering::Acquire)
    }

    /// The number of requests that have arrived.
    pub fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

/// An address without a listener, which no other process takes while the tests run.
pub fn unused_address() -> SocketAddr {
    let taken = tokio::net::TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = taken.local_addr().unwrap();
    std::mem::forget(taken);
    address
}

/// Runs the future with paused time, so that no limit ends it. It must not wait for a timer.
pub async fn with_paused_time<F: Future>(sent: F) -> F::Output {
    tokio::time::pause();
    // Paused time does not advance by itself while a thread is blocked.
    let (done, until_done) = std::sync::mpsc::channel::<()>();
    let blocked = tokio::task::spawn_blocking(move || until_done.recv());
    let output = sent.await;
    drop(done);
    let _ = blocked.await;
    tokio::time::resume();
    output
}

/// Runs the future so that only the server's silence cuts off attempts, `times` times, and never a slow machine.
///
/// Time is paused until a request has met the silence, and then advances by `limit` and some backoff. After the last
/// silence it runs normally. So `limit` may be longer than any machine needs.
pub async fn with_silences<F: Future>(
    server: &Server,
    times: usize,
    limit: Duration,
    sent: F,
) -> F::Output {
    tokio::time::pause();
    let time = async {
        for silences in server.silences() + 1..=server.silences() + times {
            // Paused time does not advance by itself while a thread is blocked.
            let watched = server.clone();
            let met = tokio::task::spawn_blocking(move || watched.await_silences(silences));
            met.await.unwrap();
            tokio::time::sleep(limit + limit / 10).await;
        }
        tokio::time::resume();
    };
    tokio::join!(time, sent).1
}

async fn serve(
    mut stream: TcpStream,
    connection: usize,
    early: bool,
    script: &Script,
    all: &Mutex<Vec<Seen>>,
    silent: &AtomicUsize,
) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        let head_end = loop {
            if let Some(end) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let mut seen = Seen {
            connection,
            head: String::from_utf8_lossy(&buffer[..head_end]).into_owned(),
            body: Vec::new(),
            at: Instant::now(),
        };
        buffer.drain(..head_end);
        let length: usize = seen
            .header("content-length")
            .map_or(0, |length| length.parse().unwrap());
        let ask = |seen: &Seen| {
            let mut all = all.lock().unwrap();
            all.push(seen.clone());
            (all.len() - 1, script(all.len() - 1, seen))
        };
        let asked = early.then(|| ask(&seen));
        let reads = match &asked {
            Some((_, Step::Early(bytes, reads))) => {
                stream.write_all(bytes).await?;
                *reads || length == 0
            }
            _ => true,
        };
        while reads && buffer.len() < length {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        if reads {
            seen.body = buffer.drain(..length).collect();
            if let Some((index, _)) = &asked {
                all.lock().unwrap()[*index].body.clone_from(&seen.body);
            }
        }
        let (_, mut step) = asked.unwrap_or_else(|| ask(&seen));
        if seen.method() == "HEAD" {
            step.leave_out_body();
        }
        match step {
            Step::Early(..) if reads => {}
            Step::Early(..) => std::future::pending().await,
            Step::Answer(bytes) => stream.write_all(&bytes).await?,
            Step::Close(bytes) => {
                stream.write_all(&bytes).await?;
                return stream.shutdown().await;
            }
            Step::Reset(bytes) => {
                stream.write_all(&bytes).await?;
                // A reset discards unread data, so let the client read it first.
                tokio::time::sleep(Duration::from_millis(20)).await;
                return stream.set_zero_linger();
            }
            Step::Stall(bytes) => {
                stream.write_all(&bytes).await?;
                silent.fetch_add(1, Ordering::Release);
                while stream.read_buf(&mut buffer).await? > 0 {}
                return Ok(());
            }
            Step::Slow(pause, length, bytes) => {
                for piece in bytes.chunks(length) {
                    tokio::time::sleep(pause).await;
                    stream.write_all(piece).await?;
                }
            }
        }
    }
}

/// A response with this status, these header fields and `Content-Length`.
pub fn response(status: u16, fields: &[(&str, &str)], body: impl AsRef<[u8]>) -> Vec<u8> {
    cut(status, fields, body.as_ref(), usize::MAX)
}

/// A response whose body is cut after `length` bytes.
pub fn cut(status: u16, fields: &[(&str, &str)], body: &[u8], length: usize) -> Vec<u8> {
    let mut head = format!(
        "HTTP/1.1 {status} Scripted\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in fields {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(&body[..length.min(body.len())]);
    bytes
}

/// The rest of `whole` from `first` on, as a 206 that is cut after `length` bytes.
pub fn rest(first: usize, whole: &[u8], etag: &str, length: usize) -> Vec<u8> {
    let range = format!("bytes {first}-{}/{}", whole.len() - 1, whole.len());
    let fields = [("etag", etag), ("content-range", range.as_str())];
    cut(206, &fields, &whole[first..], length)
}

/// Bytes without nearby repetitions, so that a shift or a mix is detected.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2) + 1;
    (0..length)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}
