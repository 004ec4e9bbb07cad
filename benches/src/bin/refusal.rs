//! `refusal SUBJECT N` sends N requests over one connection in memory to a hyper server that rejects them, for
//! callgrind (`scripts/bench refusal`); `refusal` alone lists the subjects. `refusal sockets` prints the server's
//! processor time for a request at 64 connections over the loopback, each subject next to `bare`.
//!
//! `bare` responds with 503 and nothing else, `same` with the headers of a rejection, `one-field` with `Retry-After`
//! alone. `relent` is the overload layer over a service without a free slot, `served` the layer over `same` with a
//! slot for each request. In `same-told` and `told` the requests have the three headers with a client's context, and
//! the layer adds the no-retry marker.

use std::convert::Infallible;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use relent_core::admission::{ConcurrencyConfig, ConcurrencyLimiterConfig};
use relent_server::Body;
use relent_server::overload::{OverloadLayer, SlotBody};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tower::{Layer, Service, ServiceExt, service_fn};

const SUBJECTS: [&str; 7] = [
    "bare",
    "same",
    "one-field",
    "relent",
    "served",
    "same-told",
    "told",
];
const PLAIN: &[u8] = b"GET /price HTTP/1.1\r\nhost: shop.example\r\naccept: */*\r\n\r\n";
const TOLD: &[u8] =
    b"GET /price HTTP/1.1\r\nhost: shop.example\r\naccept: */*\r\nrelent-attempt: 2\r\n\
    relent-deadline-ms: 1500\r\nrelent-histogram: 10, 50\r\n\r\n";

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [sockets] = arguments.as_slice()
        && sockets == "sockets"
    {
        return match sockets_table() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("refusal sockets: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let [subject, n] = arguments.as_slice() else {
        for subject in SUBJECTS {
            println!("{subject}");
        }
        return ExitCode::SUCCESS;
    };
    let ran = n
        .parse()
        .map_err(Failed::from)
        .and_then(|n| runtime()?.block_on(run(subject, n)));
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("refusal SUBJECT N; no arguments list subjects: {error}");
            ExitCode::from(2)
        }
    }
}

fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// The services, and the response that holds the only slot of the rejecting one.
struct Services {
    overload: OverloadLayer,
    head: http::response::Parts,
    _held: Response<Body<SlotBody<Full<Bytes>>>>,
}

impl Services {
    async fn make() -> Result<Self, Failed> {
        let busy = ConcurrencyLimiterConfig {
            concurrency: ConcurrencyConfig::fixed(1),
            queue: 0,
            ..ConcurrencyLimiterConfig::DEFAULT
        };
        // With this timeout, the slot is not released during the run.
        let overload = OverloadLayer::new(&busy)?.slot_timeout(Duration::from_secs(3600));
        // The first response holds the only slot as long as its body exists. The second has the headers.
        let service = overload.layer(service_fn(answer::<()>));
        let held = service.clone().oneshot(Request::new(())).await?;
        let (head, _) = service.oneshot(Request::new(())).await?.into_parts();
        Ok(Self {
            overload,
            head,
            _held: held,
        })
    }

    /// Serves a subject by `with`.
    fn serve<W: With>(&self, subject: &str, with: W) -> Result<W::Done, Failed> {
        let head = self.head.clone();
        let same = service_fn(move |_: Request<Incoming>| {
            let mut response = Response::new(Full::<Bytes>::default());
            *response.status_mut() = head.status;
            *response.headers_mut() = head.headers.clone();
            async { Ok::<_, Infallible>(response) }
        });
        Ok(match subject {
            "bare" => with.serve(service_fn(|_: Request<Incoming>| async {
                let mut response = Response::new(Full::<Bytes>::default());
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                Ok::<_, Infallible>(response)
            })),
            "same" | "same-told" => with.serve(same),
            "one-field" => with.serve(service_fn(|_: Request<Incoming>| async {
                let mut response = Response::new(Full::<Bytes>::default());
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                let second = HeaderValue::from_static("1");
                response.headers_mut().insert(RETRY_AFTER, second);
                Ok::<_, Infallible>(response)
            })),
            "relent" | "told" => with.serve(self.overload.layer(service_fn(answer::<Incoming>))),
            "served" => with.serve(OverloadLayer::default().layer(same)),
            other => return Err(format!("there is no subject {other:?}").into()),
        })
    }
}

/// A way to run a service.
trait With {
    type Done;

    fn serve<S, B>(self, service: S) -> Self::Done
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
            + Clone
            + Send
            + 'static,
        S::Future: Send,
        B: hyper::body::Body<Data = Bytes, Error = Infallible> + Send + 'static;
}

/// This many requests over one connection in memory.
struct InMemory {
    request: &'static [u8],
    n: u32,
}

impl With for InMemory {
    type Done = Pin<Box<dyn Future<Output = Result<(), Failed>>>>;

    fn serve<S, B>(self, service: S) -> Self::Done
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
            + Clone
            + Send
            + 'static,
        S::Future: Send,
        B: hyper::body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
    {
        Box::pin(async move {
            let (mut client, server) = tokio::io::duplex(16 << 10);
            let service = TowerToHyperService::new(service);
            let connection = http1::Builder::new().serve_connection(TokioIo::new(server), service);
            let connection = tokio::spawn(connection);
            converse(&mut client, self.request, self.n).await?;
            drop(client);
            drop(connection.await);
            Ok(())
        })
    }
}

const CONNECTIONS: u32 = 64;
/// Requests of each connection in a round.
const REQUESTS: u32 = 1000;
const ROUNDS: usize = 9;

/// The processor time of the thread that serves [`CONNECTIONS`], in nanoseconds per request.
struct OverSockets;

impl With for OverSockets {
    type Done = Result<f64, Failed>;

    fn serve<S, B>(self, service: S) -> Self::Done
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
            + Clone
            + Send
            + 'static,
        S::Future: Send,
        B: hyper::body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let clients = std::thread::spawn(move || {
            runtime()?.block_on(async {
                let mut clients = JoinSet::new();
                for _ in 0..CONNECTIONS {
                    clients.spawn(async move {
                        let mut client = TcpStream::connect(address).await?;
                        client.set_nodelay(true)?;
                        converse(&mut client, PLAIN, REQUESTS).await
                    });
                }
                while let Some(ended) = clients.join_next().await {
                    ended??;
                }
                Ok::<_, Failed>(())
            })
        });
        let runtime = runtime()?;
        let before = processor_time()?;
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener)?;
            let mut connections = JoinSet::new();
            for _ in 0..CONNECTIONS {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let service = TowerToHyperService::new(service.clone());
                connections
                    .spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
            while connections.join_next().await.is_some() {}
            Ok::<_, Failed>(())
        })?;
        let took = processor_time()? - before;
        clients.join().map_err(|_| "a client has panicked")??;
        Ok(took / f64::from(CONNECTIONS * REQUESTS))
    }
}

/// The processor time of this thread, in nanoseconds.
fn processor_time() -> Result<f64, Failed> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text
        .split(' ')
        .next()
        .ok_or("no time in schedstat")?
        .parse()?)
}

/// Measures in turns, so that other work on the machine slows all.
fn sockets_table() -> Result<(), Failed> {
    // The slot is held as long as its runtime exists.
    let holding = runtime()?;
    let services = holding.block_on(Services::make())?;
    let subjects = ["bare", "one-field", "same", "relent"];
    let mut took = [(); 4].map(|()| Vec::new());
    for _ in 0..ROUNDS {
        for (subject, took) in subjects.iter().zip(&mut took) {
            took.push(services.serve(subject, OverSockets)??);
        }
    }
    println!("| | ns of the processor for a request | over bare (lowest, highest) |");
    println!("|---|---:|---:|");
    let bare = took[0].clone();
    let median = |of: &mut Vec<f64>| {
        of.sort_by(f64::total_cmp);
        of[of.len() / 2]
    };
    for (subject, took) in subjects.iter().zip(&mut took) {
        let mut ratios: Vec<_> = took
            .iter()
            .zip(&bare)
            .map(|(one, bare)| one / bare)
            .collect();
        let ratio = median(&mut ratios);
        let (low, high) = (ratios[0], ratios[ratios.len() - 1]);
        println!(
            "| {subject} | {:.0} | {ratio:.3} ({low:.2}, {high:.2}) |",
            median(took)
        );
    }
    Ok(())
}

async fn run(subject: &str, n: u32) -> Result<(), Failed> {
    let services = Services::make().await?;
    let request = match subject.contains("told") {
        true => TOLD,
        false => PLAIN,
    };
    services.serve(subject, InMemory { request, n })?.await
}

async fn answer<B>(_: Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("an answer")))
}

/// Sends the request `n` times, each after the last response.
async fn converse(
    client: &mut (impl AsyncRead + AsyncWrite + Unpin),
    request: &[u8],
    n: u32,
) -> Result<(), Failed> {
    let mut read = vec![0; 16 << 10];
    for _ in 0..n {
        client.write_all(request).await?;
        // A response this short arrives in one piece.
        let length = client.read(&mut read).await?;
        if !read[..length].starts_with(b"HTTP/1.1 503") {
            return Err(String::from_utf8_lossy(&read[..length]).into());
        }
    }
    Ok(())
}
