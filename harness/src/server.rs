//! The server: the service of the scenario, over HTTP and in real time.

use std::io::{self, BufWriter, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use relent_sim::Scenario;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::{JoinSet, LocalSet};
use tower::ServiceExt;

use crate::clock::{Start, Watch};
use crate::desk::HttpService;
use crate::wire::Message;
use crate::{layered, stdin};

/// The accept queue: all clients of a herd connect simultaneously.
const BACKLOG: u32 = 16_384;

/// Serves until it receives the stop command, and then reports; or until its standard input is closed.
///
/// # Errors
/// It cannot listen, or its output cannot be written.
pub async fn serve(scenario: &Scenario, seed: u64, layers: bool) -> io::Result<()> {
    let listener = listen((Ipv4Addr::LOCALHOST, 0).into())?;
    say([Message::Ready(listener.local_addr()?.to_string())])?;
    let mut told = stdin::lines();
    let Some(wall) = stdin::start(&mut told).await else {
        return Ok(());
    };
    let start = Start::at(wall);
    let (desk, front) = match layers {
        false => (
            Arc::new(HttpService::new(scenario, seed, start)),
            Entry::ServiceOnly,
        ),
        true => {
            let desk = Arc::new(HttpService::new(
                &layered::without_layers(scenario),
                seed,
                start,
            ));
            let app = layered::app(scenario, &desk).map_err(io::Error::other)?;
            (desk, Entry::Layers(app))
        }
    };
    let deaths = layered::deaths(scenario, layers);
    let mut watch = Watch::new(start.late());
    let local = LocalSet::new();
    local
        .run_until(async {
            tokio::select! {
                ended = accept(listener, &desk, &front, &deaths) => return ended,
                () = desk.work() => {}
                () = watch.watch() => {}
                _ = told.recv() => {}
            }
            Ok(())
        })
        .await?;
    let mut state = desk.state();
    // No client waits any more, but queued attempts are served.
    state.serving.advance(u64::MAX);
    state.answer();
    let (late, used) = watch.end();
    let rest = [
        Message::Executions(state.serving.executions()),
        Message::Late(late),
        Message::Used(used),
        Message::End,
    ];
    say(state.attempts.drain(..).map(Message::Attempt).chain(rest))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    // A dead process has left connections behind.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Writes these lines to the parent process.
pub(crate) fn say(lines: impl IntoIterator<Item = Message>) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    for line in lines {
        writeln!(out, "{line}")?;
    }
    out.flush()
}

/// The first receiver of an attempt.
enum Entry {
    /// The service itself.
    ServiceOnly,
    /// An axum service with the layers of relent-server.
    Layers(Router),
}

/// Accepts connections except while the service is dead: then no socket listens, and all connections are cut.
async fn accept(
    listener: TcpListener,
    desk: &Arc<HttpService>,
    front: &Entry,
    deaths: &[(u64, u64)],
) -> io::Result<()> {
    let address = listener.local_addr()?;
    let mut listener = listener;
    for &(at, until) in deaths {
        tokio::select! {
            () = take(&listener, desk, front) => {}
            () = tokio::time::sleep_until(desk.start.instant(at)) => {}
        }
        drop(listener);
        tokio::time::sleep_until(desk.start.instant(until)).await;
        listener = listen(address)?;
    }
    take(&listener, desk, front).await;
    Ok(())
}

/// Serves connections for as long as it is polled. They are cut when it is dropped.
async fn take(listener: &TcpListener, desk: &Arc<HttpService>, front: &Entry) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        // A failed accept is the client's problem: it connects again.
        let Ok((stream, _)) = accepted else {
            continue;
        };
        let _ = stream.set_nodelay(true);
        let desk = Arc::clone(desk);
        let app = match front {
            Entry::ServiceOnly => None,
            Entry::Layers(app) => Some(app.clone()),
        };
        connections.spawn_local(async move {
            let service = service_fn(|mut request: Request<Incoming>| {
                let noted = desk.note(&request);
                let (desk, app) = (&desk, app.clone());
                async move {
                    let Some(app) = app else {
                        return Ok(desk.answer(noted).await.map(Body::new));
                    };
                    request.extensions_mut().insert(noted);
                    app.oneshot(request.map(Body::new)).await
                }
            });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // A client that goes away ends its connection, not its attempt.
            let _ = connection.await;
        });
    }
}
