//! The connection of the store to Redis.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use ::redis::{
    Client, ErrorKind, FromRedisValue, RedisError, RedisResult, ScriptInvocation, ServerErrorKind,
};

/// Timeouts of a connection and of a response.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The shortest time for which a connection is used, so that a server that always fails gets few connections.
const MIN_AGE: Duration = Duration::from_secs(1);

/// A connection that all calls share. It is replaced after a call without a reply, and after `READONLY`.
///
/// The manager reconnects only if the connection was closed. A host that died, or a primary that became a replica,
/// keeps it open: then every call would fail until TCP gives up, after a quarter of an hour, or for ever.
#[derive(Clone)]
pub(super) struct Connection(Arc<Shared>);

struct Shared {
    client: Client,
    config: ConnectionManagerConfig,
    current: Mutex<Current>,
}

struct Current {
    manager: ConnectionManager,
    since: Instant,
    /// Grows with each replacement.
    number: u64,
    may_be_dead: bool,
}

impl Connection {
    /// Connects.
    pub(super) async fn new(client: Client) -> RedisResult<Self> {
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT))
            .set_number_of_retries(0);
        let manager = ConnectionManager::new_with_config(client.clone(), config.clone()).await?;
        let current = Mutex::new(Current {
            manager,
            since: Instant::now(),
            number: 0,
            may_be_dead: false,
        });
        Ok(Self(Arc::new(Shared {
            client,
            config,
            current,
        })))
    }

    /// Returns the current connection and its number. Replaces it first if it may be dead.
    pub(super) fn current(&self) -> RedisResult<(ConnectionManager, u64)> {
        let mut current = (self.0.current.lock()).unwrap_or_else(PoisonError::into_inner);
        if current.may_be_dead && current.since.elapsed() >= MIN_AGE {
            let (client, config) = (self.0.client.clone(), self.0.config.clone());
            *current = Current {
                manager: ConnectionManager::new_lazy_with_config(client, config)?,
                since: Instant::now(),
                number: current.number + 1,
                may_be_dead: false,
            };
        }
        Ok((current.manager.clone(), current.number))
    }

    /// Runs a script.
    pub(super) async fn call<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> RedisResult<T> {
        let (mut manager, number) = self.current()?;
        let mut call = Call {
            connection: self,
            number,
            is_answered: false,
        };
        let reply = script.invoke_async(&mut manager).await;
        call.is_answered = reply.as_ref().map_or_else(is_alive, |_| true);
        reply
    }
}

/// Returns whether the error comes from a server that executes writes.
fn is_alive(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::ReadOnly) => false,
        // Before Redis 7 the error of a script has a code of its own, and contains that of its command.
        ErrorKind::Server(_) | ErrorKind::Extension => !error.to_string().contains("READONLY"),
        // The reply has another form than expected.
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => true,
        _ => false,
    }
}

/// A call without its reply. The caller may drop it, since it waits no longer than it likes.
struct Call<'a> {
    connection: &'a Connection,
    number: u64,
    is_answered: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let current = &self.connection.0.current;
        let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_answered && current.number == self.number {
            current.may_be_dead = true;
        }
    }
}
