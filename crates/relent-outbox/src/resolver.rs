//! Name resolution with an address guard, and connections to the checked addresses.

use std::collections::{BTreeSet, VecDeque};
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
use uuid::Uuid;

use crate::fault::FaultKind;
use crate::guard::{AddressGuard, Forbidden};

/// A running resolution.
pub type Resolving = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// Resolves names. Implement it for tests or for a custom resolver.
pub trait Resolve: Send + Sync + 'static {
    /// Returns the addresses of this name. An error of kind [`NotFound`](io::ErrorKind::NotFound) means that the name
    /// does not exist; any other error means that the resolution failed.
    fn resolve(&self, name: String) -> Resolving;
}

/// Resolves names by the system (`getaddrinfo`), on a thread for blocking work. A tokio runtime has 512 such threads by
/// default; resolutions use at most 384. A resolution without a response cannot be cancelled, and a store in the same
/// process needs such threads, too. Names whose last resolution took 1 s or longer use at most 128 of them, so that
/// names whose servers do not respond leave threads to the others.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

static LOOK_UPS: LookUps = LookUps::new();
/// A resolution that takes this time is slow.
const SLOW_RESOLUTION: Duration = Duration::from_secs(1);
/// The longest time limit of a connection, which prevents an overflow of the clock: a year.
const MAX_CONNECT_TIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// The number of slow names to remember. Beyond it all are forgotten.
const MAX_SLOW_NAMES: usize = 10_000;

/// Limits concurrent resolutions.
struct LookUps {
    quick: Semaphore,
    slow: Semaphore,
    /// The names whose last resolution was slow.
    slow_names: Mutex<BTreeSet<String>>,
}

impl Resolve for SystemResolver {
    fn resolve(&self, name: String) -> Resolving {
        let of = name.clone();
        let look_up = move || {
            // Without a socket type, each address is returned once per type.
            let hints = AddrInfoHints {
                socktype: SockType::Stream.into(),
                ..AddrInfoHints::default()
            };
            let found = getaddrinfo(Some(&name), None, Some(hints)).map_err(unknown)?;
            // Addresses other than IPv4 and IPv6 cannot be called.
            Ok(found.flatten().map(|found| found.sockaddr.ip()).collect())
        };
        Box::pin(LOOK_UPS.run(of, look_up))
    }
}

impl LookUps {
    const fn new() -> Self {
        Self {
            quick: Semaphore::const_new(256),
            slow: Semaphore::const_new(128),
            slow_names: Mutex::new(BTreeSet::new()),
        }
    }

    fn slow_names(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.slow_names
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the closure, which resolves this name, on a thread for blocking work, when a permit is free.
    async fn run<T: Send + 'static>(
        &'static self,
        name: String,
        look_up: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let permits = match self.slow_names().contains(&name) {
            true => &self.slow,
            false => &self.quick,
        };
        let permit = permits.acquire().await.map_err(io::Error::other)?;
        let mut running = LookUp {
            of: self,
            name,
            began: Instant::now(),
            has_ended: false,
        };
        let looking = tokio::task::spawn_blocking(move || {
            // The permit is held until the closure ends, even if the caller no longer waits.
            let _permit = permit;
            look_up()
        });
        let found = looking.await;
        running.has_ended = true;
        found.map_err(io::Error::other)?
    }
}

/// A running resolution, until it ends or its caller no longer waits.
struct LookUp {
    of: &'static LookUps,
    name: String,
    began: Instant,
    has_ended: bool,
}

impl Drop for LookUp {
    fn drop(&mut self) {
        let mut names = self.of.slow_names();
        if self.began.elapsed() >= SLOW_RESOLUTION {
            if names.len() >= MAX_SLOW_NAMES {
                names.clear();
            }
            names.insert(std::mem::take(&mut self.name));
        } else if self.has_ended {
            names.remove(&self.name);
        }
    }
}

/// Distinguishes a name that does not exist from a failed resolution.
fn unknown(error: LookupError) -> io::Error {
    let kind = match error.kind() {
        LookupErrorKind::NoName | LookupErrorKind::NoData => io::ErrorKind::NotFound,
        LookupErrorKind::Memory => io::ErrorKind::OutOfMemory,
        LookupErrorKind::System | LookupErrorKind::IO => return error.into(),
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// Creates a new name that does not exist. A resolver asks other servers for it like for any name (RFC 6761, section
/// 6.5): names under `invalid.` it may know without them, such as systemd-resolved and unbound.
fn nonexistent_name() -> String {
    format!("relent-{}.example.", Uuid::now_v7().simple())
}

/// The time limit for a name that tests the resolver.
const RESOLVER_TEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Names that were resolved lately, the latest first.
#[derive(Debug, Default)]
pub(crate) struct ResolvedNames(Mutex<VecDeque<String>>);

/// One more than are used to test the resolver: the name in question may be one of them.
const MAX_RESOLVED_NAMES: usize = 3;

impl ResolvedNames {
    fn names(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, name: &str) {
        let mut names = self.names();
        match names.iter().position(|one| one == name) {
            Some(0) => return,
            Some(at) => drop(names.remove(at)),
            None => names.truncate(MAX_RESOLVED_NAMES - 1),
        }
        names.push_front(name.to_owned());
    }

    fn others(&self, name: &str) -> Vec<String> {
        let names = self.names();
        let others = names.iter().filter(|one| *one != name);
        others.take(MAX_RESOLVED_NAMES - 1).cloned().collect()
    }
}

/// The reason that there is no connection.
#[derive(Debug)]
pub(crate) struct NoConnection {
    pub(crate) failure: Failure,
    pub(crate) error: String,
    /// The local fault that caused it, if any.
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

/// Connects only to addresses that the guard allows. It resolves the name once, refuses it if any of its addresses is
/// forbidden, and connects to one of the checked addresses.
#[derive(Clone)]
pub(crate) struct GuardedConnector {
    pub(crate) guard: Arc<AddressGuard>,
    pub(crate) resolver: Arc<dyn Resolve>,
    /// The time limit for the resolution and all addresses together.
    pub(crate) timeout: Duration,
    pub(crate) resolved: Arc<ResolvedNames>,
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
    pub(crate) async fn connect(&self, uri: &Uri) -> Result<TcpStream, NoConnection> {
        let until = Instant::now() + self.timeout.min(MAX_CONNECT_TIME);
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
        // A forbidden address among others is no accident: otherwise the owner of the name could choose which one is
        // called.
        for address in &addresses {
            let refused =
                |forbidden: Forbidden| NoConnection::of(Network::Connect, forbidden.to_string());
            self.guard.check(*address).map_err(refused)?;
        }
        let mut last: Option<NoConnection> = None;
        // Each address gets an equal share of the time left.
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
            // Report a local fault only if every address failed by one.
            if failed.fault.is_none() || last.as_ref().is_none_or(|last| last.fault.is_some()) {
                last = Some(failed);
            }
        }
        Err(last.unwrap_or_else(|| no_such_name(host)))
    }

    async fn look_up(&self, host: &str) -> Result<Vec<IpAddr>, NoConnection> {
        let error = match timeout(self.timeout, self.resolver.resolve(host.to_owned())).await {
            Ok(Ok(addresses)) if addresses.is_empty() => return Err(no_such_name(host)),
            Ok(Ok(addresses)) => {
                self.resolved.add(host);
                return Ok(addresses);
            }
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
        if failed.fault.is_none() && !self.responds_for_others(host).await {
            failed.error +=
                "; no other name can be looked up either: check the resolver of this machine";
            failed.fault = Some(FaultKind::Resolver);
        }
        Err(failed)
    }

    /// Whether the resolver responds in time for any name but this one. In a network without the public DNS only names
    /// that were resolved before tell.
    pub(crate) async fn responds_for_others(&self, name: &str) -> bool {
        if self.responds_for(&nonexistent_name()).await {
            return true;
        }
        for other in self.resolved.others(name) {
            if self.responds_for(&other).await {
                return true;
            }
        }
        false
    }

    /// Whether the resolver responds in time for this name, with addresses or that it does not exist.
    pub(crate) async fn responds_for(&self, name: &str) -> bool {
        let within = self.timeout.min(RESOLVER_TEST_TIMEOUT);
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
    let text = match error.kind() {
        io::ErrorKind::ConnectionRefused => format!("connection refused by {address}"),
        _ => format!("no connection to {address}: {error}"),
    };
    let mut failed = NoConnection::of(Network::Connect, text);
    failed.fault = FaultKind::of_io(error);
    failed
}

#[cfg(test)]
mod tests {
    use std::io::Error;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn a_connection_may_have_no_time_limit() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connector = GuardedConnector {
            guard: Arc::new(AddressGuard::new().allow("127.0.0.1".parse().unwrap())),
            resolver: Arc::new(SystemResolver),
            timeout: Duration::MAX,
            resolved: Arc::default(),
        };
        let uri = format!("http://{}/", listener.local_addr().unwrap());
        connector.connect(&uri.parse().unwrap()).await.unwrap();
    }

    #[tokio::test]
    async fn hanging_resolutions_leave_blocking_threads_to_others() {
        let (answer, answers) = channel::<()>();
        let answers = Arc::new(std::sync::Mutex::new(answers));
        let look_ups: &LookUps = Box::leak(Box::new(LookUps::new()));
        let looking: Vec<_> = (0..600)
            .map(|number| {
                let answers = Arc::clone(&answers);
                // No resolution ends before the test does.
                tokio::spawn(look_ups.run(number.to_string(), move || {
                    let _ = answers.lock().unwrap().recv();
                    Ok(())
                }))
            })
            .collect();
        // Cancel the waiting callers, as an attempt does at its time limit. The threads continue.
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

    #[tokio::test(start_paused = true)]
    async fn names_without_a_response_leave_permits_to_others() {
        let look_ups: &LookUps = Box::leak(Box::new(LookUps::new()));
        let all = look_ups.quick.available_permits();
        for left in [all - 200, all] {
            let (answer, answers) = channel::<()>();
            let answers = Arc::new(std::sync::Mutex::new(answers));
            let look_up = |number: usize| {
                let answers = Arc::clone(&answers);
                look_ups.run(number.to_string(), move || {
                    let _ = answers.lock().unwrap().recv();
                    Ok(())
                })
            };
            let looking: Vec<_> = (0..200).map(|one| tokio::spawn(look_up(one))).collect();
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(look_ups.quick.available_permits(), left);
            tokio::time::advance(SLOW_RESOLUTION).await;
            for looking in looking {
                looking.abort();
                assert!(looking.await.is_err());
            }
            drop(answer);
            while look_ups.quick.available_permits() < all {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(look_ups.slow_names().len(), 200);
        look_ups.run("7".to_owned(), || Ok(())).await.unwrap();
        assert!(!look_ups.slow_names().contains("7"), "it responds again");
    }

    /// Resolves by these functions: the first for `shop.example`, the second for any other name.
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
    async fn a_broken_resolver_is_a_local_fault_but_a_failing_name_is_not() {
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
                resolved: Arc::default(),
            };
            let uri = Uri::from_static("https://shop.example/");
            let failed = connector.connect(&uri).await.unwrap_err();
            assert_eq!(failed.failure, Failure::network(network), "{failed}");
            assert_eq!(failed.fault, fault, "{failed}");
            assert!(failed.error.contains("the name shop.example"), "{failed}");
        }
    }

    /// A resolver that has lost its servers, such as systemd-resolved without a network: it still responds for names of
    /// its own.
    struct Alone(AtomicBool);

    impl Resolve for Alone {
        fn resolve(&self, name: String) -> Resolving {
            let answer = match (name.as_str(), self.0.load(Ordering::Relaxed)) {
                (name, _) if name.ends_with("invalid.") => Err(io::ErrorKind::NotFound.into()),
                ("other.example", true) => Ok(vec![IpAddr::from([127, 0, 0, 1])]),
                _ => Err(Error::other("SERVFAIL")),
            };
            Box::pin(async move { answer })
        }
    }

    #[tokio::test]
    async fn a_resolver_without_its_servers_is_a_local_fault_while_no_known_name_resolves() {
        let resolver = Arc::new(Alone(AtomicBool::new(true)));
        let connector = GuardedConnector {
            guard: Arc::new(AddressGuard::new()),
            resolver: resolver.clone(),
            timeout: Duration::from_secs(1),
            resolved: Arc::default(),
        };
        let fault = async |name| connector.look_up(name).await.map_err(|failed| failed.fault);
        assert_eq!(fault("shop.example").await, Err(Some(FaultKind::Resolver)));
        assert!(fault("other.example").await.is_ok());
        assert_eq!(fault("shop.example").await, Err(None), "another resolves");
        resolver.0.store(false, Ordering::Relaxed);
        assert_eq!(fault("shop.example").await, Err(Some(FaultKind::Resolver)));
        assert_eq!(fault("other.example").await, Err(Some(FaultKind::Resolver)));
    }
}
