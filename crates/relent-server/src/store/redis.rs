//! Records in Redis.

mod connection;
#[cfg(all(test, unix))]
mod tests;
mod unknown;

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::redis::{Client, InfoDict, Script, cmd};
use relent_core::idempotency::{ClaimConfig, Fingerprint, Lease, NotResolved, Takeover};

use self::connection::{Connection, RESPONSE_TIMEOUT};
use super::answer::{InvalidStoredResponse, StoredResponse};
use super::micros::{instant, span};
use super::{Change, Claimed, Key, Resolution, ResolveError, Store, UnknownOutcome, WriteError};
use crate::server_clock::ServerClock;

/// A store in Redis 6.2 or later, or a compatible server: each call runs one script, by the clock of the server.
///
/// # Limitations
/// This store is weaker than the others. Redis confirms a write before a replica has it, so **a failover may lose the
/// latest records**, and a request whose record is lost runs again. The same happens when the server is killed,
/// unless it runs with `appendfsync always`; with `everysec` a power failure loses the last second.
/// `min-replicas-to-write 1` reduces the window, but does not close it. If nothing may happen twice, use
/// [`Sqlite`](super::Sqlite) or [`Postgres`](super::Postgres), best with their `transactional`.
///
/// # After a failover
/// An execution whose record was lost notices it: its [`write`](Store::write) returns [`Gone`](WriteError::Gone). The
/// layer claims the key again with the next renewal, within a third of the lease, or when it records the response. If
/// a duplicate has claimed the key before, both run. The handler of the first is notified
/// ([`Execution::lost`](crate::idempotency::Execution::lost)), and dropped if the route allows a takeover; its
/// response is not stored.
///
/// The loss of a completed record goes unnoticed: its duplicates run again. `INFO replication` shows that there was a
/// failover: the new primary has a new `master_replid`, and the old one as `master_replid2`. An operator who monitors
/// that can hold back retries of requests from before the failover.
///
/// If an execution without effect gives the key up while it claims it again, the claim may still be in transit. Then
/// the key is held until the lease expires. Duplicates get 409 meanwhile. After that the outcome is unknown, or a
/// duplicate runs if the route allows a takeover. Nothing happens twice.
///
/// # When the server stalls
/// Redis executes commands after a stall. So each claim contains the time until which its caller waits, by the clock
/// of the server. A claim that is executed later claims nothing ([`Late`](RedisError::Late)). The process learns that
/// clock from replies. The first claim of a process, and the first after the server's clock was set forward, takes
/// one more round trip. Other changes may be executed late, since owner and fencing token decide.
///
/// If the server's clock is set back, leases and records last that much longer; if it is set forward, they expire
/// that much earlier.
///
/// If the server is down, each call returns an [error](RedisError) within about 1 s, and the layer rejects requests
/// with 503. This store does not retry; the caller decides. After a call without a reply, or with the error
/// `READONLY`, the next one uses a new connection, but at most one each second: the host may have died, or the
/// primary may have become a replica, and neither closes connections.
///
/// # Cost of finding unknown outcomes
/// There is no index: [`find_unknown`](Store::find_unknown) scans all keys of the server, a thousand in each script
/// call. So get all outcomes in one call with a large `most`, and not page by page. The script discovers key names
/// itself, so it does not work on a cluster.
///
/// ```no_run
/// use relent_server::idempotency::IdempotencyLayer;
/// use relent_server::store::Redis;
///
/// # async fn service() -> Result<(), relent_server::store::RedisError> {
/// let store = Redis::connect(redis::Client::open("redis://127.0.0.1/")?).await?;
/// let layer = IdempotencyLayer::anonymous(store.namespace("shop"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Redis {
    connection: Connection,
    scripts: Arc<Scripts>,
    namespace: Arc<str>,
    clock: Arc<ServerClock>,
}

struct Scripts {
    claim: Script,
    write: Script,
    find_unknown: Script,
    resolve: Script,
}

/// Sets `now` to the time of the server, in microseconds since 1970.
const CLOCK: &str = "local time = redis.call('TIME')\nlocal now = time[1] * 1000000 + time[2]\n";

impl Scripts {
    fn new(clock: &str) -> Self {
        let script = |body| Script::new(&[clock, include_str!("redis/common.lua"), body].concat());
        Self {
            claim: script(include_str!("redis/claim.lua")),
            write: script(include_str!("redis/write.lua")),
            find_unknown: script(include_str!("redis/find_unknown.lua")),
            resolve: script(include_str!("redis/resolve.lua")),
        }
    }
}

/// An error of the Redis store.
#[derive(Debug)]
#[non_exhaustive]
pub enum RedisError {
    /// The server is unreachable, does not respond in time, or rejects the command.
    Redis(::redis::RedisError),
    /// The server may evict records before they expire.
    Evicts {
        /// The `maxmemory-policy` of the server.
        policy: String,
    },
    /// The server loses all records at a restart.
    Volatile,
    /// A record is not in the format of this version.
    Record(InvalidStoredResponse),
    /// The claim reached the server after its caller stopped waiting. Nothing is claimed.
    Late,
}

impl fmt::Display for RedisError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redis(error) => write!(f, "Redis: {error}"),
            Self::Evicts { policy } => write!(
                f,
                "Redis removes records when its memory is full, and their requests would run again: set \
                 maxmemory-policy to noeviction (it is {policy}), or accept that by `connect_unchecked`"
            ),
            Self::Volatile => f.write_str(
                "Redis forgets its records when it is restarted, and their requests would run again: set \
                 appendonly to yes (and appendfsync to always), or accept that by `connect_unchecked`",
            ),
            Self::Record(error) => write!(f, "the record of an idempotency key: {error}"),
            Self::Late => f.write_str(
                "Redis has executed a claim later than its caller waits, and has claimed nothing: it was paused, or is \
                 overloaded",
            ),
        }
    }
}

impl Error for RedisError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // Their texts are part of this error's text.
            Self::Redis(error) => error.source(),
            Self::Record(error) => error.source(),
            Self::Evicts { .. } | Self::Volatile | Self::Late => None,
        }
    }
}

impl From<::redis::RedisError> for RedisError {
    fn from(error: ::redis::RedisError) -> Self {
        Self::Redis(error)
    }
}

impl From<InvalidStoredResponse> for RedisError {
    fn from(error: InvalidStoredResponse) -> Self {
        Self::Record(error)
    }
}

impl Redis {
    /// Connects, and checks the persistence of the server, as far as `INFO` shows it.
    ///
    /// # Errors
    /// The server is unreachable, evicts keys, or does not persist them: see
    /// [`connect_unchecked`](Self::connect_unchecked).
    pub async fn connect(client: Client) -> Result<Self, RedisError> {
        let redis = Self::connect_unchecked(client).await?;
        let (mut connection, _) = redis.connection.current()?;
        // Some hosted services forbid `INFO`; a setting that is not visible is accepted.
        for section in ["memory", "persistence"] {
            let info = cmd("INFO").arg(section).query_async(&mut connection).await;
            check(&info.unwrap_or_else(|_| InfoDict::new("")))?;
        }
        Ok(redis)
    }

    /// Connects to a server that may lose records at a restart or when its memory is full. Their requests run again.
    ///
    /// # Errors
    /// The server is unreachable.
    pub async fn connect_unchecked(client: Client) -> Result<Self, RedisError> {
        Ok(Self {
            connection: Connection::new(client).await?,
            scripts: Arc::new(Scripts::new(CLOCK)),
            namespace: Arc::from("relent"),
            clock: Arc::default(),
        })
    }

    /// Sets the prefix of the keys of records, so that services can share one server: `relent` by default.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        Self {
            namespace: Arc::from(namespace),
            ..self
        }
    }

    /// Returns the Redis key of the record.
    #[must_use]
    pub fn name(&self, key: &Key) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.namespace.len() + 1 + key.0.len());
        name.extend_from_slice(self.namespace.as_bytes());
        name.push(b':');
        name.extend_from_slice(&key.0);
        name
    }
}

/// Checks eviction and persistence of the server, as far as `INFO` shows them.
fn check(info: &InfoDict) -> Result<(), RedisError> {
    match info.get::<String>("maxmemory_policy") {
        Some(policy) if policy != "noeviction" => return Err(RedisError::Evicts { policy }),
        _ => {}
    }
    match info.get::<u8>("aof_enabled") {
        Some(0) => Err(RedisError::Volatile),
        _ => Ok(()),
    }
}

/// The reply to a claim: decision, fencing token, time, step, repeated, response, and the time of the server.
type Reply = (String, u64, i64, u32, u8, Vec<u8>, i64);

impl Store for Redis {
    type Error = RedisError;

    async fn claim(
        &self,
        key: &Key,
        owner: u128,
        fingerprint: Fingerprint,
        config: &ClaimConfig,
    ) -> Result<Claimed, RedisError> {
        let takeover = match config.takeover {
            Takeover::Rerun => "rerun",
            Takeover::Resume => "resume",
            // A takeover mode added later must not allow a rerun.
            _ => "refuse",
        };
        let until = Instant::now() + RESPONSE_TIMEOUT;
        let (what, fence, time, step, repeated, answer) = loop {
            let mut call = self.scripts.claim.key(self.name(key));
            call.arg(&owner.to_be_bytes()[..])
                .arg(&fingerprint.0[..])
                .arg(span(config.lease))
                .arg(span(config.retention))
                .arg(takeover)
                .arg(self.clock.at(until));
            let reply: Reply = self.connection.call(&call).await?;
            let (what, fence, time, step, repeated, answer, now) = reply;
            self.clock.learn(now);
            if what != "late" {
                break (what, fence, time, step, repeated, answer);
            }
            // The server's clock was not known, or was set.
            if Instant::now() >= until {
                return Err(RedisError::Late);
            }
        };
        Ok(match &*what {
            "run" => {
                let lease = Lease {
                    owner,
                    fence,
                    until: instant(time),
                };
                Claimed::Run {
                    lease,
                    step,
                    repeated: repeated != 0,
                }
            }
            "replay" => Claimed::Replay(StoredResponse::from_bytes(&answer)?),
            "in-flight" => Claimed::InFlight(Duration::from_micros(time.unsigned_abs())),
            "mismatch" => Claimed::Mismatch,
            _ => Claimed::Unknown,
        })
    }

    async fn write(
        &self,
        key: &Key,
        lease: &Lease,
        change: Change,
        config: &ClaimConfig,
    ) -> Result<Lease, WriteError<RedisError>> {
        let (what, step, answer) = match &change {
            Change::Renew => ("renew", 0, Vec::new()),
            Change::Checkpoint(step) => ("checkpoint", *step, Vec::new()),
            Change::Complete(answer) => ("complete", 0, answer.to_bytes()),
            Change::Release => ("release", 0, Vec::new()),
            Change::GiveUp => ("give-up", 0, Vec::new()),
            Change::GiveBack => ("give-back", 0, Vec::new()),
        };
        let mut call = self.scripts.write.key(self.name(key));
        call.arg(&lease.owner.to_be_bytes()[..])
            .arg(lease.fence)
            .arg(what)
            .arg(span(config.lease))
            .arg(span(config.retention))
            .arg(step)
            .arg(answer);
        let until: i64 = match self.connection.call(&call).await {
            Ok(until) => until,
            Err(error) => return Err(WriteError::Store(RedisError::Redis(error))),
        };
        match until {
            -1 => Err(WriteError::Lost),
            -2 => Err(WriteError::Gone),
            0 => Ok(*lease),
            until => Ok(Lease {
                until: instant(until),
                ..*lease
            }),
        }
    }

    /// Scans all keys of the server.
    async fn find_unknown(
        &self,
        after: Option<&UnknownOutcome>,
        most: usize,
        _: &ClaimConfig,
    ) -> Result<Vec<UnknownOutcome>, RedisError> {
        self.scan(after, most).await
    }

    async fn resolve(
        &self,
        found: &UnknownOutcome,
        resolution: Resolution,
        config: &ClaimConfig,
    ) -> Result<(), ResolveError<RedisError>> {
        let answer = (self.call_resolve(found, &resolution, config).await)
            .map_err(|error| ResolveError::Store(RedisError::Redis(error)))?;
        refused(&answer).map_or(Ok(()), |why| Err(why.into()))
    }

    /// Redis expires records on its own.
    async fn remove_expired(&self, _: usize) -> Result<usize, RedisError> {
        Ok(0)
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// Returns the reason why the script has not resolved the outcome.
fn refused(answer: &str) -> Option<NotResolved> {
    match answer {
        "resolved" => None,
        "absent" => Some(NotResolved::Absent),
        "running" => Some(NotResolved::Running),
        "completed" => Some(NotResolved::Completed),
        "released" => Some(NotResolved::Released),
        _ => Some(NotResolved::Changed),
    }
}
