//! The server: the service of the scenario, over HTTP and in real time.

use std::collections::HashMap;
use std::io::{self, BufWriter, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use relent::Hint;
use relent::failure::Audience;
use relent_http::{CallerFacts, Mark, set_hint};
use relent_sim::{ArrivingAttempt, Scenario, ServiceAnswer, Serving, Wait, WaitFormat};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinSet, LocalSet};
use tower::ServiceExt;

use crate::clock::{Start, Watch};
use crate::wire::{AttemptRecord, Said};
use crate::{layered, stdin};

/// Connections that may wait to be accepted: a herd comes all at once.
const BACKLOG: u32 = 16_384;

/// Serves until it is told to stop, and says then what it has seen; or until nobody can tell it.
///
/// # Errors
/// When it cannot listen, or nobody reads what it says.
pub async fn serve(scenario: &Scenario, seed: u64, layers: bool) -> io::Result<()> {
    let listener = listen((Ipv4Addr::LOCALHOST, 0).into())?;
    say([Said::Ready(listener.local_addr()?.to_string())])?;
    let mut told = stdin::lines();
    let Some(wall) = stdin::start(&mut told).await else {
        return Ok(());
    };
    let start = Start::at(wall);
    let (desk, front) = match layers {
        false => (Arc::new(Desk::new(scenario, seed, start)), Front::Bare),
        true => {
            let desk = Arc::new(Desk::new(&layered::inside(scenario), seed, start));
            let app = layered::app(scenario, &desk).map_err(io::Error::other)?;
            (desk, Front::Layers(app))
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
    // Nobody waits any more, but what is queued is served.
    state.serving.advance(u64::MAX);
    state.answer();
    let (late, used) = watch.end();
    let rest = [
        Said::Executions(state.serving.executions()),
        Said::Late(late),
        Said::Used(used),
        Said::End,
    ];
    say(state.attempts.drain(..).map(Said::Attempt).chain(rest))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    // One that died has left connections behind.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Says these lines to whoever started this process.
pub(crate) fn say(lines: impl IntoIterator<Item = Said>) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    for line in lines {
        writeln!(out, "{line}")?;
    }
    out.flush()
}

/// What an attempt meets first.
enum Front {
    /// The service itself.
    Bare,
    /// An axum service with the layers of relent-server.
    Layers(Router),
}

/// An attempt that has reached the service: in the extensions of its request, behind layers.
#[derive(Clone, Copy)]
pub(crate) struct Noted(ArrivingAttempt);

/// What all connections share.
pub(crate) struct Desk {
    start: Start,
    status: StatusCode,
    format: WaitFormat,
    state: Mutex<State>,
    /// Something may happen sooner than was thought.
    sooner: Notify,
}

struct State {
    serving: Serving,
    /// Who waits for the answer to each attempt.
    waiting: HashMap<u32, oneshot::Sender<ServiceAnswer>>,
    /// The attempts that arrived; the name of each is its index.
    attempts: Vec<AttemptRecord>,
}

impl Desk {
    fn new(scenario: &Scenario, seed: u64, start: Start) -> Self {
        let limiter = scenario.service.limiter;
        Self {
            start,
            status: StatusCode::from_u16(scenario.service.status)
                .unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
            format: limiter.map_or(WaitFormat::default(), |limiter| limiter.format),
            state: Mutex::new(State {
                serving: Serving::new(scenario, seed),
                waiting: HashMap::new(),
                attempts: Vec::new(),
            }),
            sooner: Notify::new(),
        }
    }

    /// Gives the answers when they are due.
    async fn work(&self) {
        loop {
            let next = {
                let mut state = self.state();
                state.serving.advance(self.start.now());
                state.answer();
                state.serving.next()
            };
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(self.start.instant(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.sooner.notified() => {}
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An attempt reaches the service, whatever becomes of it.
    fn note<B>(&self, request: &Request<B>) -> Noted {
        // The path is the name of the request: the same for all of its attempts.
        let key = request.uri().path().trim_start_matches('/').parse().ok();
        let number = CallerFacts::of(request.headers()).attempt;
        let mut state = self.state();
        let id = state.attempts.len() as u32;
        state.attempts.push(AttemptRecord {
            at: self.start.now(),
            // One without a number is none of the run.
            request: key.unwrap_or(u64::MAX),
            attempt: number,
            executed: false,
        });
        Noted(ArrivingAttempt { id, number, key })
    }

    /// What the service of the scenario answers.
    pub(crate) async fn answer(&self, noted: Noted) -> Response<Empty<Bytes>> {
        let failed = ServiceAnswer::Failure {
            do_not_retry: false,
            wait: None,
        };
        let answer = match self.arrive(noted) {
            Ok(answer) => answer,
            Err(later) => later.await.unwrap_or(failed),
        };
        self.response(answer)
    }

    /// An attempt arrives: its answer, or where it will be.
    fn arrive(
        &self,
        Noted(attempt): Noted,
    ) -> Result<ServiceAnswer, oneshot::Receiver<ServiceAnswer>> {
        let now = self.start.now();
        let mut state = self.state();
        let before = state.serving.next();
        let answer = state.serving.arrive(now, attempt);
        state.answer();
        if before != state.serving.next() {
            self.sooner.notify_one();
        }
        match answer {
            Some(answer) => Ok(answer),
            None => {
                let (tell, told) = oneshot::channel();
                state.waiting.insert(attempt.id, tell);
                Err(told)
            }
        }
    }

    fn response(&self, answer: ServiceAnswer) -> Response<Empty<Bytes>> {
        let mut response = Response::new(Empty::new());
        match answer {
            ServiceAnswer::Success => {}
            ServiceAnswer::Failure { do_not_retry, wait } => {
                *response.status_mut() = self.status;
                if do_not_retry {
                    Mark::Overloaded.set(response.headers_mut());
                }
                if let Some(wait) = wait {
                    set_hint(response.headers_mut(), &self.hint(wait));
                }
            }
            ServiceAnswer::Throttled(wait) => {
                *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                if let Some(wait) = wait {
                    set_hint(response.headers_mut(), &self.hint(wait));
                }
            }
        }
        response
    }

    /// What the limiter says about time.
    fn hint(&self, wait: Wait) -> Hint {
        let audience = match (wait.ticket, self.format) {
            (false, _) => Audience::Shared,
            (true, WaitFormat::Milliseconds) => Audience::TicketMillis,
            (true, _) => Audience::TicketSeconds,
        };
        Hint::after(Duration::from_nanos(wait.nanos)).for_audience(audience)
    }
}

impl State {
    /// Gives the answers that are there. Who has gone away gets none.
    fn answer(&mut self) {
        for (id, answer) in self.serving.answers() {
            if let Some(arrival) = self.attempts.get_mut(id as usize) {
                arrival.executed = answer == ServiceAnswer::Success;
            }
            if let Some(tell) = self.waiting.remove(&id) {
                let _ = tell.send(answer);
            }
        }
    }
}

/// Takes connections, but while the service is dead: then nobody listens, and all connections are cut.
async fn accept(
    listener: TcpListener,
    desk: &Arc<Desk>,
    front: &Front,
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
async fn take(listener: &TcpListener, desk: &Arc<Desk>, front: &Front) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        // What comes to nothing is a client's affair: it connects again.
        let Ok((stream, _)) = accepted else {
            continue;
        };
        let _ = stream.set_nodelay(true);
        let desk = Arc::clone(desk);
        let app = match front {
            Front::Bare => None,
            Front::Layers(app) => Some(app.clone()),
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
