//! Records in Redis.

#[cfg(all(test, unix))]
mod tests;
mod unknown;

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use ::redis::{Client, InfoDict, Script, cmd};
use relent_core::claim::{ClaimConfig, Fingerprint, Lease, NotResolved, Takeover};

use super::answer::{Answer, InvalidAnswer};
use super::micros::{instant, span};
use super::{Change, Claimed, Key, Resolution, ResolveError, Store, UnknownOutcome, WriteError};
use crate::server_clock::ServerClock;

/// Records in Redis 6.2 or later, or what speaks as it does: one call of a script for each step, by the
/// clock of the server.
///
/// # What it does not promise
/// This store is weaker than the others. Redis tells that a record is written before a replica has it, so
/// **a failover may lose the latest records**, and a request whose record is lost runs again. The same
/// happens when the server is killed, unless it appends to its file with `appendfsync always`; with
/// `everysec` a loss of power takes the last second. `min-replicas-to-write 1` makes that window smaller, and does not
/// close it. Where nothing may happen twice take [`Sqlite`](super::Sqlite) or
/// [`Postgres`](super::Postgres), best with their `exactly_once`.
///
/// # How a failover is noticed
/// An execution whose record was lost hears of it: its [`write`](Store::write) is [`Gone`](WriteError::Gone). The layer
/// claims the key again with the next renewal, within a third of the lease, or for the answer that it has. If a duplicate
/// has been quicker, both run: the handler learns of it ([`Execution::lost`](crate::idempotency::Execution::lost)), and dropped where
/// the route takes executions over; its answer is not stored. What was completed before is lost without a sign: its
/// duplicates run again. That there was a failover shows in `INFO replication`: the server that
/// takes over has another `master_replid`, and the old one as `master_replid2`. Who watches that, can hold back
/// repetitions of what is older than the failover.
///
/// An execution that ends without an effect while it claims its key again gives the key up, but that claim may still be
/// on its way. Then the key is held until the lease runs out: its duplicates hear 409, and after that that the outcome is
/// unknown, or run where the route takes executions over. Nothing happens twice by that.
///
/// # When the server stands still
/// It executes later what it was sent meanwhile. So each claim says until when its caller waits, in the time of the
/// server: one that is executed later claims nothing ([`Late`](RedisError::Late)). The process knows that time by the
/// replies: the first claim of a process, and the first after the server's clock was set forward, takes a round trip more.
/// Other changes may be executed late, since owner and fence decide whether they count.
///
/// A step back of the server's clock makes leases and records last so much longer, and a step
/// forward ends them so much earlier.
///
/// When the server is away, each call is an [error](RedisError) within about a second, and the layer refuses (503).
/// Nothing is asked twice here: whoever calls knows whether to.
///
/// # What it costs to find unknown outcomes
/// There is no index: [`find_unknown`](Store::find_unknown) scans all keys of the server, a thousand of them in each call of a
/// script. So take all outcomes in one call, with a large `most`, and not page by page. The script finds the names
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
    connection: ConnectionManager,
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

/// Where `now` comes from: the time of the server in microseconds since 1970.
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

/// Why it fails.
#[derive(Debug)]
#[non_exhaustive]
pub enum RedisError {
    /// It is not reached, does not answer in time, or refuses.
    Redis(::redis::RedisError),
    /// It may remove records before they may be forgotten.
    Evicts {
        /// Its `maxmemory-policy`.
        policy: String,
    },
    /// It forgets all when it is restarted.
    Volatile,
    /// A record is not as this version writes it.
    Record(InvalidAnswer),
    /// It would have executed a claim after its caller has given up. Nothing is claimed.
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
            // Their texts are in this one.
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

impl From<InvalidAnswer> for RedisError {
    fn from(error: InvalidAnswer) -> Self {
        Self::Record(error)
    }
}

/// How long a connection may take, and an answer.
const CONNECT: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(1);

impl Redis {
    /// Connects, and looks how the server keeps what is written to it, as far as it says so (`INFO`).
    ///
    /// # Errors
    /// It is not reached; or it evicts, or keeps nothing on disk: see
    /// [`connect_unchecked`](Self::connect_unchecked).
    pub async fn connect(client: Client) -> Result<Self, RedisError> {
        let redis = Self::connect_unchecked(client).await?;
        let mut connection = redis.connection.clone();
        // Some services do not let their users ask. What cannot be seen is not refused.
        for section in ["memory", "persistence"] {
            let info = cmd("INFO").arg(section).query_async(&mut connection).await;
            check(&info.unwrap_or_else(|_| InfoDict::new("")))?;
        }
        Ok(redis)
    }

    /// Connects to a server that may forget records when it is restarted or its memory is full. Their
    /// requests run again.
    ///
    /// # Errors
    /// It is not reached.
    pub async fn connect_unchecked(client: Client) -> Result<Self, RedisError> {
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(ANSWER))
            .set_number_of_retries(0);
        Ok(Self {
            connection: ConnectionManager::new_with_config(client, config).await?,
            scripts: Arc::new(Scripts::new(CLOCK)),
            namespace: Arc::from("relent"),
            clock: Arc::default(),
        })
    }

    /// What the names of its records begin with, so that services can share one server: `relent` by default.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        Self {
            namespace: Arc::from(namespace),
            ..self
        }
    }

    /// What the record of this key is called in Redis.
    #[must_use]
    pub fn name(&self, key: &Key) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.namespace.len() + 1 + key.0.len());
        name.extend_from_slice(self.namespace.as_bytes());
        name.push(b':');
        name.extend_from_slice(&key.0);
        name
    }
}

/// Whether the server keeps what is written to it, as far as it says so.
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

/// What the script says of a claim: what to do, fence, time, step, repeated, answer, and the time of the server.
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
            // One to come is not to be taken for leave to run.
            _ => "refuse",
        };
        let mut connection = self.connection.clone();
        let until = Instant::now() + ANSWER;
        let (what, fence, time, step, repeated, answer) = loop {
            let mut call = self.scripts.claim.key(self.name(key));
            call.arg(&owner.to_be_bytes()[..])
                .arg(&fingerprint.0[..])
                .arg(span(config.lease))
                .arg(span(config.keep))
                .arg(takeover)
                .arg(self.clock.at(until));
            let reply: Reply = call.invoke_async(&mut connection).await?;
            let (what, fence, time, step, repeated, answer, now) = reply;
            self.clock.learn(now);
            if what != "late" {
                break (what, fence, time, step, repeated, answer);
            }
            // The time of the server was not known, or was set.
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
            "replay" => Claimed::Replay(Answer::from_bytes(&answer)?),
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
            .arg(span(config.keep))
            .arg(step)
            .arg(answer);
        let mut connection = self.connection.clone();
        let until: i64 = match call.invoke_async(&mut connection).await {
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
        config: &ClaimConfig,
    ) -> Result<Vec<UnknownOutcome>, RedisError> {
        self.scan(after, most, config).await
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

    /// Redis does it by itself.
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

/// What the script says, if it has not resolved it.
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
