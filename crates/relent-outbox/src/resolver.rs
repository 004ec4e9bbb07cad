//! Names to addresses that may be called, and connections to those.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use dns_lookup::{AddrInfoHints, LookupError, LookupErrorKind, SockType, getaddrinfo};
use http::Uri;
use hyper_util::rt::TokioIo;
use relent_core::{Cause, Failure, Network};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tower_service::Service;

use crate::fault::FaultKind;
use crate::guard::{AddressGuard, Forbidden};

/// A look-up that is under way.
pub type Resolving = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// Looks names up, for tests and for those who have a resolver of their own.
pub trait Resolve: Send + Sync + 'static {
    /// The addresses of this name. An error of the kind [`NotFound`](io::ErrorKind::NotFound) says that there is no such
    /// name, any other one that this was not found out.
    fn resolve(&self, name: String) -> Resolving;
}

/// Asks the resolver of the system (`getaddrinfo`), on a thread for blocking work. Of the 512 of them that a runtime of
/// tokio has by default, look-ups take at most 384: one that gets no answer cannot be called off, and a
/// store in the same process needs such threads as well.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

/// Look-ups that may run.
static LOOK_UPS: Semaphore = Semaphore::const_new(384);

impl Resolve for SystemResolver {
    fn resolve(&self, name: String) -> Resolving {
        Box::pin(look_up(move || {
            // Without a type of socket, every address is found once for each type.
            let hints = AddrInfoHints {
                socktype: SockType::Stream.into(),
                ..AddrInfoHints::default()
            };
            let found = getaddrinfo(Some(&name), None, Some(hints)).map_err(unknown)?;
            // An address of a family that is neither IPv4 nor IPv6 is of no use.
            Ok(found.flatten().map(|found| found.sockaddr.ip()).collect())
        }))
    }
}

/// Does this on a thread for blocking work, when there is room.
async fn look_up<T: Send + 'static>(
    look_up: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let room = LOOK_UPS.acquire().await.map_err(io::Error::other)?;
    let looking = tokio::task::spawn_blocking(move || {
        // Until it ends, and not until nobody waits for it any more.
        let _room = room;
        look_up()
    });
    looking.await.map_err(io::Error::other)?
}

/// Tells a name that there is not from a look-up that failed.
fn unknown(error: LookupError) -> io::Error {
    let kind = match error.kind() {
        LookupErrorKind::NoName | LookupErrorKind::NoData => io::ErrorKind::NotFound,
        LookupErrorKind::Memory => io::ErrorKind::OutOfMemory,
        LookupErrorKind::System | LookupErrorKind::IO => return error.into(),
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// A name that every resolver knows not to exist (RFC 6761): one that cannot say so answers nobody.
pub(crate) const NO_NAME: &str = "relent.invalid.";
/// So long it has.
const FINDS_OUT_WITHIN: Duration = Duration::from_secs(2);

/// Why there is no connection.
#[derive(Debug)]
pub(crate) struct NoConnection {
    pub(crate) failure: Failure,
    pub(crate) error: String,
    /// It is the fault of this side.
    pub(crate) fault: Option<FaultKind>,
}

impl NoConnection {
    fn of(network: Network, error: String) -> Self {
        Self {
            failure: Failure::network(network),
            error,
            fault: None,
        }
    }
}

impl fmt::Display for NoConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)
    }
}

impl Error for NoConnection {}

/// Connects to addresses that the guard has let pass, and to no others: it looks the name up once, refuses it if any of
/// its addresses is forbidden, and connects to one of those that it has seen.
#[derive(Clone)]
pub(crate) struct GuardedConnector {
    pub(crate) guard: Arc<AddressGuard>,
    pub(crate) resolver: Arc<dyn Resolve>,
    /// For the look-up and all addresses together.
    pub(crate) timeout: Duration,
}

impl Service<Uri> for GuardedConnector {
    type Response = TokioIo<TcpStream>;
    type Error = NoConnection;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<TcpStream>, NoConnection>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), NoConnection>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { this.connect(&uri).await.map(TokioIo::new) })
    }
}

impl GuardedConnector {
    async fn connect(&self, uri: &Uri) -> Result<TcpStream, NoConnection> {
        let until = Instant::now() + self.timeout;
        let no_host = || NoConnection::of(Network::BadRequest, "the URL names no host".to_owned());
        let host = uri.host().ok_or_else(no_host)?;
        let default = if uri.scheme_str() == Some("https") {
            443
        } else {
            80
        };
        let port = uri.port_u16().unwrap_or(default);
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse();
        let addresses = match literal {
            Ok(address) => vec![address],
            Err(_) => self.look_up(host).await?,
        };
        // One that is forbidden among others is no accident: which one would be called is the owner's choice then.
        for address in &addresses {
            let refused =
                |forbidden: Forbidden| NoConnection::of(Network::Connect, forbidden.to_string());
            self.guard.check(*address).map_err(refused)?;
        }
        let mut last: Option<NoConnection> = None;
        // One that does not answer leaves time for the others.
        let each = until.saturating_duration_since(Instant::now())
            / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        for address in addresses {
            let address = SocketAddr::new(address, port);
            let failed = match timeout(each, TcpStream::connect(address)).await {
                Ok(connected) => {
                    let connected = connected.and_then(|stream| {
                        stream.set_nodelay(true)?;
                        Ok(stream)
                    });
                    match connected {
                        Ok(stream) => return Ok(stream),
                        Err(error) => not_connected(address, &error),
                    }
                }
                Err(_) => NoConnection {
                    failure: Failure::not_processed().cause(Cause::Timeout),
                    error: format!("no connection to {address} in time"),
                    fault: None,
                },
            };
            // It is this side's fault only if that of no address is another's.
            if failed.fault.is_none() || last.as_ref().is_none_or(|last| last.fault.is_some()) {
                last = Some(failed);
            }
        }
        Err(last.unwrap_or_else(|| no_such_name(host)))
    }

    async fn look_up(&self, host: &str) -> Result<Vec<IpAddr>, NoConnection> {
        let error = match timeout(self.timeout, self.resolver.resolve(host.to_owned())).await {
            Ok(Ok(addresses)) if addresses.is_empty() => return Err(no_such_name(host)),
            Ok(Ok(addresses)) => return Ok(addresses),
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                return Err(no_such_name(host));
            }
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
        let mut failed = NoConnection::of(
            Network::Dns,
            format!("the name {host} could not be looked up: {error}"),
        );
        failed.fault = FaultKind::of_io(&error);
        if failed.fault.is_none() && !self.finds_out(NO_NAME).await {
            failed.error +=
                "; no other name can be looked up either: check the resolver of this machine";
            failed.fault = Some(FaultKind::Resolver);
        }
        Err(failed)
    }

    /// Whether the resolver soon says of this name what its addresses are, or that there is none.
    pub(crate) async fn finds_out(&self, name: &str) -> bool {
        let within = self.timeout.min(FINDS_OUT_WITHIN);
        match timeout(within, self.resolver.resolve(name.to_owned())).await {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => error.kind() == io::ErrorKind::NotFound,
            Err(_) => false,
        }
    }
}

fn no_such_name(host: &str) -> NoConnection {
    NoConnection::of(
        Network::NameNotFound,
        format!("the name {host} does not exist, or has no address"),
    )
}

fn not_connected(address: SocketAddr, error: &io::Error) -> NoConnection {
    let what = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused by",
        _ => "no connection to",
    };
    let mut failed = NoConnection::of(Network::Connect, format!("{what} {address}: {error}"));
    failed.fault = FaultKind::of_io(error);
    failed
}

#[cfg(test)]
mod tests {
    use std::io::Error;
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn look_ups_without_an_answer_leave_threads_to_others() {
        let (answer, answers) = channel::<()>();
        let answers = Arc::new(std::sync::Mutex::new(answers));
        let looking: Vec<_> = (0..600)
            .map(|_| {
                let answers = Arc::clone(&answers);
                // Nobody answers before the test ends.
                tokio::spawn(look_up(move || {
                    let _ = answers.lock().unwrap().recv();
                    Ok(())
                }))
            })
            .collect();
        // They are called off, as by an attempt whose time is over, and their threads go on.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        for looking in looking {
            looking.abort();
        }
        let other = tokio::task::spawn_blocking(|| ());
        let other = tokio::time::timeout(Duration::from_secs(10), other).await;
        drop(answer);
        assert!(other.is_ok(), "a store would wait for a thread");
    }

    /// Answers by these functions: for `shop.example`, and for any other name.
    struct Answers(
        fn() -> io::Result<Vec<IpAddr>>,
        fn() -> io::Result<Vec<IpAddr>>,
    );

    impl Resolve for Answers {
        fn resolve(&self, name: String) -> Resolving {
            let answer = match name.as_str() {
                "shop.example" => self.0,
                _ => self.1,
            };
            Box::pin(async move { answer() })
        }
    }

    #[tokio::test]
    async fn a_name_that_fails_is_its_owners_and_a_resolver_that_answers_nothing_is_ours() {
        fn fails() -> io::Result<Vec<IpAddr>> {
            Err(Error::other("SERVFAIL"))
        }
        fn unknown() -> io::Result<Vec<IpAddr>> {
            Err(io::ErrorKind::NotFound.into())
        }
        fn no_files() -> io::Result<Vec<IpAddr>> {
            Err(Error::from_raw_os_error(24))
        }
        fn nothing() -> io::Result<Vec<IpAddr>> {
            Ok(Vec::new())
        }
        let (resolver, resources) = (Some(FaultKind::Resolver), Some(FaultKind::Resources));
        for (own, others, network, fault) in [
            (fails as fn() -> _, unknown as fn() -> _, Network::Dns, None),
            (fails, fails, Network::Dns, resolver),
            (unknown, fails, Network::NameNotFound, None),
            (nothing, fails, Network::NameNotFound, None),
            (no_files, unknown, Network::Dns, resources),
        ] {
            let connector = GuardedConnector {
                guard: Arc::new(AddressGuard::new()),
                resolver: Arc::new(Answers(own, others)),
                timeout: Duration::from_secs(1),
            };
            let uri = Uri::from_static("https://shop.example/");
            let failed = connector.connect(&uri).await.unwrap_err();
            assert_eq!(failed.failure, Failure::network(network), "{failed}");
            assert_eq!(failed.fault, fault, "{failed}");
            assert!(failed.error.contains("the name shop.example"), "{failed}");
        }
    }
}
