//! Names to addresses that may be called, and connections to those.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tower_service::Service;

use crate::guard::AddressGuard;

/// A look-up that is under way.
pub type Resolving = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// Looks names up, for tests and for those who have a resolver of their own.
pub trait Resolve: Send + Sync + 'static {
    /// The addresses of this name.
    fn resolve(&self, name: String) -> Resolving;
}

/// Asks the resolver of the system (`getaddrinfo`), on a thread for blocking work. Of the 512 of them that a runtime of
/// tokio has unless it is told otherwise, look-ups take at most 384: one that gets no answer cannot be called off, and a
/// store in the same process needs such threads as well.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

/// Look-ups that may run.
static LOOK_UPS: Semaphore = Semaphore::const_new(384);

impl Resolve for SystemResolver {
    fn resolve(&self, name: String) -> Resolving {
        Box::pin(look_up(move || {
            let found = (name.as_str(), 0).to_socket_addrs()?;
            Ok(found.map(|address| address.ip()).collect())
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
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<TcpStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let connecting = tokio::time::timeout(this.timeout, this.connect(&uri));
            connecting
                .await
                .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
        })
    }
}

impl GuardedConnector {
    async fn connect(&self, uri: &Uri) -> io::Result<TokioIo<TcpStream>> {
        let no_host = || io::Error::new(io::ErrorKind::InvalidInput, "the URL names no host");
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
            Err(_) => self.resolver.resolve(host.to_owned()).await?,
        };
        // One that is forbidden among others is no accident: which one would be called is the owner's choice then.
        for address in &addresses {
            let checked = self.guard.check(*address);
            checked
                .map_err(|forbidden| io::Error::new(io::ErrorKind::PermissionDenied, forbidden))?;
        }
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        // One that does not answer leaves time for the others.
        let each = self.timeout / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
        for address in addresses {
            let connecting = TcpStream::connect(SocketAddr::new(address, port));
            match tokio::time::timeout(each, connecting).await {
                Ok(Ok(stream)) => {
                    stream.set_nodelay(true)?;
                    return Ok(TokioIo::new(stream));
                }
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(last)
    }
}

#[cfg(test)]
mod tests {
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
}
