//! Rate limits that several processes share, in Redis.

#[cfg(all(test, unix))]
mod tests;

use std::fmt;
use std::hash::Hasher;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant as Wall};

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, RedisError, Script};
use relent::clock::Clock;
use relent_core::admission::{Admitted, Arrival, LimiterConfig, Refusal, Rejected, Shed};
use relent_core::{Advice, Instant};
use relent_http::ErrorResponse;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use super::quota::Quota;
use super::quota_decision::{
    AppliedQuota, Decision, Local, PendingDecision, QuotaSource, RateLimitRejection,
    RemainingQuota, by_quota,
};
use crate::observe;
use crate::server_clock::{ServerClock, end_of_wait};
use crate::store::StoreFailureKind;
use crate::store::failure::{Explained, explain};

/// Rate limits that several processes share in Redis 6.2 or later, or a compatible server. Each request takes one
/// call of a script, for all quotas together, by the clock of the server.
///
/// ```
/// use std::time::Duration;
/// use relent_core::admission::LimiterConfig;
/// use relent_server::admission::{AdmissionLayer, RedisLimits, Quota};
///
/// // While Redis is unreachable, each of four processes admits a quarter.
/// let fleet = RedisLimits::local(redis::Client::open("redis://127.0.0.1/")?, 4).namespace("shop");
/// let layer = AdmissionLayer::redis_limits(fleet)
///     .quota(Quota::new("service", LimiterConfig::new(1000, Duration::from_secs(1)))?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # When Redis is unreachable
/// The constructor decides. Requests are admitted ([`open`](Self::open)), rejected with 503 and `Retry-After`
/// ([`closed`](Self::closed)), or limited by each process separately ([`local`](Self::local)).
///
/// A request waits for Redis for at most [100 ms](Self::max_wait), including the connection setup. The setup continues
/// without it, for up to 1 s. After a failure no request waits for Redis for 1 s; then one request tries again. A server
/// that accepts connections and never responds, and a reply that cannot be parsed, count as failures. If Redis executes
/// a call after the process has decided without it, the call takes no quota.
///
/// # Limitations
/// Times are in whole microseconds: an interval is rounded up. Slots are reserved for at most 100 000 intervals
/// ahead, even if the horizon is longer, since Redis is blocked while it removes expired slots. State in Redis
/// expires when the limiter is full again. Requests forgotten in a failover or an eviction are admitted once more.
/// All keys have one hash tag, `{namespace}`, so that a cluster keeps them on one node. If the server's clock is set
/// back, limits stand still until it has caught up. If it is set forward, limits fill up.
pub struct RedisLimits {
    client: Client,
    fallback: Fallback,
    namespace: String,
    max_wait: Duration,
    script: Script,
    clock: ServerClock,
    /// The connection, and the time of its setup.
    connection: Arc<Mutex<Option<(MultiplexedConnection, Wall)>>>,
    /// No request asks Redis until this time of the layer's clock, in nanoseconds; 0 if Redis responds.
    paused: AtomicU64,
}

/// The behaviour while Redis is unreachable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fallback {
    Open,
    Closed,
    Local(u32),
}

/// The time limit of a connection setup.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The time for which no request asks Redis after a failure.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// The most slots that Redis reserves for one limiter.
const MAX_SLOTS: u64 = 100_000;
/// Sets `now` to the time of the server, in microseconds since 1970.
const CLOCK: &str = "local time = redis.call('TIME')\nlocal now = time[1] * 1000000 + time[2]\n";

fn script(clock: &str) -> Script {
    Script::new(&[clock, include_str!("fleet.lua")].concat())
}

impl RedisLimits {
    /// Creates limits that admit every request while Redis is unreachable. Use it for limits that share an ample
    /// resource.
    #[must_use]
    pub fn open(client: Client) -> Self {
        Self::new(client, Fallback::Open)
    }

    /// Creates limits that reject every request with a quota while Redis is unreachable, with 503 and `Retry-After`.
    /// Use it for limits that must never be exceeded.
    #[must_use]
    pub fn closed(client: Client) -> Self {
        Self::new(client, Fallback::Closed)
    }

    /// Creates limits that each process enforces separately while Redis is unreachable. Rate and burst of each quota
    /// are divided by `processes` (0 counts as 1). The burst is rounded up, and a request that costs more than it
    /// takes all of it.
    #[must_use]
    pub fn local(client: Client, processes: u32) -> Self {
        Self::new(client, Fallback::Local(processes.max(1)))
    }

    fn new(client: Client, fallback: Fallback) -> Self {
        Self {
            client,
            fallback,
            namespace: "relent".to_owned(),
            max_wait: Duration::from_millis(100),
            script: script(CLOCK),
            clock: ServerClock::default(),
            connection: Arc::default(),
            paused: AtomicU64::new(0),
        }
    }

    /// Sets the prefix of the keys, so that services can share one server: `relent` by default. Processes with the
    /// same namespace share quotas of the same name, which should have the same configuration.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.namespace);
        self
    }

    /// Sets the longest wait of a request for Redis: 100 ms by default.
    #[must_use]
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }
}

impl fmt::Debug for RedisLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLimits")
            .field("namespace", &self.namespace)
            .field("fallback", &self.fallback)
            .finish_non_exhaustive()
    }
}

/// The limits of one layer in Redis.
pub(super) struct Limits {
    fleet: Arc<RedisLimits>,
    quotas: Vec<Micros>,
    /// For the time while Redis is unreachable.
    local: Local,
    bursts: Vec<u32>,
}

/// A quota in the units of the script: times in microseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Micros {
    name: Arc<str>,
    interval: u64,
    burst: u32,
    horizon: u64,
    grace: u64,
}

impl Micros {
    fn of(quota: &Quota) -> Self {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let config = &quota.config;
        let rate = u128::from(config.rate.max(1)) * 1000;
        let interval = u64::try_from(config.per.as_nanos().div_ceil(rate)).unwrap_or(u64::MAX);
        let interval = interval.clamp(1, MAX_MICROS / u64::from(config.burst.max(1)));
        let grace = micros(config.grace).min(MAX_MICROS);
        let most = MAX_SLOTS.saturating_mul(interval).saturating_sub(grace);
        Self {
            name: Arc::clone(&quota.name),
            interval,
            burst: config.burst,
            horizon: micros(config.horizon).min(most).min(MAX_MICROS),
            grace,
        }
    }
}

/// An upper bound of times, 57 years: added to the current time it stays below 2^53, which a Lua number holds
/// exactly.
const MAX_MICROS: u64 = 1_800_000_000_000_000;

/// The reply of the script: verdict, limiter, delay; then two numbers for each limiter; and last the server's time.
type Reply = Vec<u64>;

/// The verdict if Redis executes a call after its caller has stopped waiting.
const LATE: u64 = 5;

impl Limits {
    pub(super) fn new(fleet: Arc<RedisLimits>, quotas: &[Quota]) -> Self {
        let share: Vec<Quota> = quotas
            .iter()
            .map(|quota| fleet.fallback.share(quota))
            .collect();
        Self {
            fleet,
            quotas: quotas.iter().map(Micros::of).collect(),
            bursts: share.iter().map(|quota| quota.config.burst).collect(),
            local: Local::new(&share),
        }
    }

    pub(super) fn decision(
        self: &Arc<Self>,
        clock: &Arc<dyn Clock + Send + Sync>,
        arrival: Arrival,
        applied: Vec<AppliedQuota>,
    ) -> PendingDecision {
        let (limits, clock) = (Arc::clone(self), Arc::clone(clock));
        Box::pin(async move {
            let expired = arrival.remaining.is_some_and(|left| left.is_zero());
            let now = || clock.now();
            if applied.is_empty() || expired {
                // Neither case needs Redis.
                return limits.local.decision(now(), &arrival, &[]);
            }
            if limits.fleet.may_call_redis(now()) {
                let asked = limits.ask(&arrival, &applied);
                let failure = match tokio::time::timeout(limits.fleet.max_wait, asked).await {
                    Ok(Ok(Some(decision))) => {
                        limits.fleet.paused.store(0, Ordering::Relaxed);
                        return decision;
                    }
                    // A reply that cannot be parsed is a failure.
                    Ok(Ok(None)) => (StoreFailureKind::Other, None),
                    Ok(Err(error)) => explain(&error),
                    Err(_) => (StoreFailureKind::TimedOut, None),
                };
                limits.fleet.failed(now(), failure);
            }
            observe::rate_local(limits.fleet.fallback.name());
            limits.decide_locally(now(), arrival, &applied)
        })
    }

    /// Decides without Redis.
    fn decide_locally(
        &self,
        now: Instant,
        mut arrival: Arrival,
        applied: &[AppliedQuota],
    ) -> Decision {
        let verdict = match self.fleet.fallback {
            Fallback::Open => Ok(Admitted {
                reserved_slot: false,
            }),
            Fallback::Closed => Err(RateLimitRejection::RedisDown),
            Fallback::Local(_) => {
                arrival.cost = self.local_cost(arrival.cost, applied);
                return self.local.decision(now, &arrival, applied);
            }
        };
        Decision {
            verdict,
            left: Vec::new(),
            taken: QuotaSource::Nowhere,
        }
    }

    /// The cost of a request while this process limits alone. One that costs more than its share of a burst takes all
    /// of the share.
    fn local_cost(&self, cost: u32, applied: &[AppliedQuota]) -> u32 {
        let quotas = || applied.iter().map(|one| one.quota);
        let bursts = quotas().filter_map(|quota| Some(self.quotas.get(quota)?.burst));
        let shares = quotas().filter_map(|quota| self.bursts.get(quota).copied());
        match (bursts.min(), shares.min()) {
            (Some(burst), Some(share)) if cost <= burst => cost.min(share),
            _ => cost,
        }
    }

    /// Returns `None` if the reply is not one of the script.
    async fn ask(
        &self,
        arrival: &Arrival,
        applied: &[AppliedQuota],
    ) -> Result<Option<Decision>, RedisError> {
        let (clock, until) = (&self.fleet.clock, end_of_wait(self.fleet.max_wait));
        loop {
            let (caller, cost) = (arrival.caller, i64::from(arrival.cost));
            let mut reply = self.call(caller, cost, applied, clock.at(until)).await?;
            let Some(now) = reply.pop() else {
                return Ok(None);
            };
            clock.learn(i64::try_from(now).unwrap_or(i64::MAX));
            // A late verdict before `until` means that the server's time was not known, or that its clock was set.
            if reply.first() != Some(&LATE) || Wall::now() >= until {
                return Ok(decision(&reply, applied));
            }
        }
    }

    /// Gives quota back as [`Limiter::give_back`](relent_core::admission::Limiter::give_back) does. If Redis fails, the quota
    /// stays taken.
    pub(super) async fn give_back(&self, cost: u32, applied: &[AppliedQuota]) {
        let given = self.call(None, -i64::from(cost.max(1)), applied, i64::MAX);
        drop(tokio::time::timeout(self.fleet.max_wait, given).await);
    }

    /// Gives back quota that was taken in this process while Redis was unreachable.
    pub(super) fn give_back_locally(&self, now: Instant, cost: u32, applied: &[AppliedQuota]) {
        let cost = self.local_cost(cost, applied);
        self.local.give_back(now, cost, applied);
    }

    /// Runs the script; a negative `cost` gives quota back. If the server executes it after `until` (in the server's
    /// time), it does nothing.
    async fn call(
        &self,
        caller: Option<u64>,
        cost: i64,
        applied: &[AppliedQuota],
        until: i64,
    ) -> Result<Reply, RedisError> {
        let caller = caller.map(u64::to_be_bytes);
        let mut call = self.fleet.script.prepare_invoke();
        call.arg(caller.as_ref().map_or(&[][..], |bytes| &bytes[..]))
            .arg(cost);
        for one in applied {
            let Some(quota) = self.quotas.get(one.quota) else {
                continue;
            };
            let key = one.key.unwrap_or(0);
            for kind in ["", ":r", ":o", ":t"] {
                let (namespace, name) = (&self.fleet.namespace, &quota.name);
                call.key(format!("{{{namespace}}}:{name}:{key:016x}{kind}"));
            }
            call.arg(quota.interval)
                .arg(quota.burst)
                .arg(quota.horizon)
                .arg(quota.grace);
        }
        call.arg(until);
        let mut connection = self.fleet.connection().await?;
        call.invoke_async(&mut connection).await
    }
}

/// Returns `None` if the reply is malformed: a missing number must not be read as 0.
fn decision(reply: &[u64], applied: &[AppliedQuota]) -> Option<Decision> {
    let (&[what, limiter, time], left) = reply.split_first_chunk()?;
    let (left, []) = left.as_chunks() else {
        return None;
    };
    let limiter = usize::try_from(limiter).ok()?;
    if left.len() != applied.len() || limiter >= applied.len() {
        return None;
    }
    let limited = |refusal: fn(Duration) -> Refusal| {
        let refusal = refusal(Duration::from_micros(time));
        Err(Rejected::Limited { refusal, limiter })
    };
    let verdict = match what {
        0 => Ok(Admitted {
            reserved_slot: false,
        }),
        1 => Ok(Admitted {
            reserved_slot: true,
        }),
        2 => limited(Refusal::Ticket),
        3 => limited(Refusal::Shared),
        4 => Err(Rejected::TooCostly { limiter }),
        _ => return None,
    };
    let left = left
        .iter()
        .zip(applied)
        .map(|(&[available, until], one)| RemainingQuota {
            quota: one.quota,
            available: u32::try_from(available).unwrap_or(u32::MAX),
            until: Duration::from_micros(until),
        });
    Some(Decision {
        verdict: verdict
            .map_err(|rejected| RateLimitRejection::Limits(by_quota(rejected, applied))),
        left: left.collect(),
        taken: QuotaSource::Redis,
    })
}

impl RedisLimits {
    /// Returns whether this request may ask Redis. After a failure only one request per second may.
    fn may_call_redis(&self, now: Instant) -> bool {
        let paused = self.paused.load(Ordering::Relaxed);
        if paused == 0 {
            return true;
        }
        let again = now.saturating_add(FAILURE_PAUSE).as_nanos();
        let order = Ordering::Relaxed;
        now.as_nanos() >= paused
            && self
                .paused
                .compare_exchange(paused, again, order, order)
                .is_ok()
    }

    fn failed(&self, now: Instant, failure: Explained) {
        let again = now.saturating_add(FAILURE_PAUSE).as_nanos();
        let timed_out = failure.0 == StoreFailureKind::TimedOut;
        if self.paused.swap(again, Ordering::Relaxed) == 0 {
            observe::rate_failed(failure);
        }
        // The connection may be half open, so the next request reconnects. But a new one only came too late for this
        // request. A held lock means that one is connecting already.
        if let Ok(mut connection) = self.connection.try_lock() {
            connection.take_if(|(_, since)| !timed_out || since.elapsed() >= self.max_wait);
        }
    }

    async fn connection(&self) -> Result<MultiplexedConnection, RedisError> {
        let mut connection = Arc::clone(&self.connection).lock_owned().await;
        if let Some((connection, _)) = &*connection {
            return Ok(connection.clone());
        }
        let (client, max_wait) = (self.client.clone(), self.max_wait);
        // In a task, since the setup may take longer than any request waits: then no request would ever complete it.
        let connecting = tokio::spawn(async move {
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(CONNECT_TIMEOUT.max(max_wait)))
                .set_response_timeout(Some(max_wait));
            let new = client.get_multiplexed_async_connection_with_config(&config);
            Ok(connection.insert((new.await?, Wall::now())).0.clone())
        });
        connecting.await.map_err(io::Error::from)?
    }
}

impl Fallback {
    /// For metrics.
    const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Local(_) => "local",
        }
    }

    /// The quota that this process enforces while Redis is unreachable.
    fn share(self, quota: &Quota) -> Quota {
        let Self::Local(processes) = self else {
            return quota.clone();
        };
        let config = LimiterConfig {
            per: quota.config.per.saturating_mul(processes),
            burst: quota.config.burst.div_ceil(processes),
            ..quota.config
        };
        quota.with_config(config)
    }
}

/// The response while Redis is unreachable and limits are `closed`.
pub(super) fn redis_down() -> ErrorResponse {
    let shed = Shed {
        advice: Advice::None,
        after: FAILURE_PAUSE,
    };
    let mut response = ErrorResponse::rejected(&Rejected::Shed(shed));
    response.detail = "the rate limits cannot be checked at the moment";
    response
}

/// A hash that is equal in every process: 64 bits of SHA-256, so that no client can find a key that collides with
/// another's.
#[derive(Clone, Default)]
pub(super) struct SharedHash(Sha256);

impl Hasher for SharedHash {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest: [u8; 32] = self.0.clone().finalize().into();
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        u64::from_be_bytes(first)
    }
}
