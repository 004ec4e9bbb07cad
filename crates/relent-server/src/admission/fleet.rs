//! Limits that several processes share, in Redis.

#[cfg(all(test, unix))]
mod tests;

use std::fmt;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant as Wall};

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, RedisError, Script};
use relent::clock::Clock;
use relent_core::{Admitted, Advice, Arrival, Instant, LimiterConfig, Refusal, Rejected, Shed};
use relent_http::ErrorResponse;
use sha2::{Digest, Sha256};

use super::judge::{Applied, Judgement, Judging, Left, Local, Refused, Taken, by_quota};
use super::quota::Quota;
use crate::observe;
use crate::server_clock::ServerClock;
use crate::store::FailureKind;
use crate::store::failure::{Explained, explain};

/// Limits that the processes of a fleet share: in Redis 6.2 or later, or what speaks as it does. Each request is
/// judged by one call of a script, for all quotas together and by the clock of the server.
///
/// ```
/// use std::time::Duration;
/// use relent_core::LimiterConfig;
/// use relent_server::admission::{AdmissionLayer, Fleet, Quota};
///
/// // While Redis is away, each of four processes admits a quarter.
/// let fleet = Fleet::local(redis::Client::open("redis://127.0.0.1/")?, 4).namespace("shop");
/// let layer = AdmissionLayer::fleet(fleet)
///     .quota(Quota::new("service", LimiterConfig::new(1000, Duration::from_secs(1)))?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # When Redis is away
/// Who makes it says what happens then: requests are let in ([`open`](Self::open)), refused with 503 and `Retry-After`
/// ([`closed`](Self::closed)), or limited by each process for itself ([`local`](Self::local)).
///
/// A request waits for Redis [100 ms](Self::patience) at most, connecting included. After a failure no request waits at all for a second;
/// then one of them tries again. A peer that accepts connections and never answers is no different, and neither is a reply that
/// is not understood. What Redis executes after its request was judged without it takes no quota there.
///
/// # What it does not promise
/// The limits are those of the processes in this one, with times in whole microseconds: an interval is rounded up. Slots are
/// reserved for as long as 100 000 of them take, if that is less than the horizon, since Redis serves nobody else while it
/// forgets them. Redis forgets by itself what is full again. What a failover or an eviction loses is
/// admitted once more. All keys begin with one hash tag, `{relent}`, so that in a cluster they are on one node. A step back of
/// the server's clock holds limits where they are until it has passed; a step forward fills them up.
pub struct Fleet {
    client: Client,
    away: Away,
    namespace: String,
    patience: Duration,
    script: Script,
    clock: ServerClock,
    connection: tokio::sync::Mutex<Option<MultiplexedConnection>>,
    /// Until then nobody asks, by the clock of the layer; 0 if all is well.
    paused: AtomicU64,
}

/// What happens while Redis is away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Away {
    Open,
    Closed,
    Local(u32),
}

/// How long nobody asks after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// So many slots Redis remembers of one limiter.
const MOST_SLOTS: u64 = 100_000;
/// Where `now` comes from: the time of the server in microseconds since 1970.
const CLOCK: &str = "local time = redis.call('TIME')\nlocal now = time[1] * 1000000 + time[2]\n";

fn script(clock: &str) -> Script {
    Script::new(&[clock, include_str!("fleet.lua")].concat())
}

impl Fleet {
    /// While Redis is away all requests are let in, as if there were no limits. For limits that share out what
    /// there is enough of.
    #[must_use]
    pub fn open(client: Client) -> Self {
        Self::new(client, Away::Open)
    }

    /// While Redis is away all requests that a quota counts for are refused, with 503 and `Retry-After`. For limits
    /// that must not be passed.
    #[must_use]
    pub fn closed(client: Client) -> Self {
        Self::new(client, Away::Closed)
    }

    /// While Redis is away each process limits for itself, at the rate and burst of each quota divided by this number of processes;
    /// 0 counts as 1. A burst is rounded up, and a request that costs more takes all of it.
    #[must_use]
    pub fn local(client: Client, processes: u32) -> Self {
        Self::new(client, Away::Local(processes.max(1)))
    }

    fn new(client: Client, away: Away) -> Self {
        Self {
            client,
            away,
            namespace: "relent".to_owned(),
            patience: Duration::from_millis(100),
            script: script(CLOCK),
            clock: ServerClock::default(),
            connection: tokio::sync::Mutex::new(None),
            paused: AtomicU64::new(0),
        }
    }

    /// What the names of its keys begin with, so that services can share one server: `relent` by default. Processes with the same
    /// namespace share the limits of quotas of the same name, which should have the same config.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.namespace);
        self
    }

    /// How long a request waits for Redis: 100 ms by default.
    #[must_use]
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet")
            .field("namespace", &self.namespace)
            .field("away", &self.away)
            .finish_non_exhaustive()
    }
}

/// The limits of one layer in Redis.
pub(super) struct Limits {
    fleet: Arc<Fleet>,
    quotas: Vec<Micros>,
    /// For the time in which Redis is away.
    local: Local,
    bursts: Vec<u32>,
}

/// A quota as the script wants it.
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
        let interval = interval.clamp(1, FOREVER / u64::from(config.burst.max(1)));
        let grace = micros(config.grace).min(FOREVER);
        let most = MOST_SLOTS.saturating_mul(interval).saturating_sub(grace);
        Self {
            name: Arc::clone(&quota.name),
            interval,
            burst: config.burst,
            horizon: micros(config.horizon).min(most).min(FOREVER),
            grace,
        }
    }
}

/// Times stay below what a number of Lua holds exactly, since it is 57 years and the year 2084 together.
const FOREVER: u64 = 1_800_000_000_000_000;

/// What the script answers: what, by which limiter, when; then what is left of each; and last the time.
type Reply = Vec<u64>;

/// It has executed a request after its caller has given up.
const LATE: u64 = 5;

impl Limits {
    pub(super) fn new(fleet: Arc<Fleet>, quotas: &[Quota]) -> Self {
        let share: Vec<Quota> = quotas.iter().map(|quota| fleet.away.share(quota)).collect();
        Self {
            fleet,
            quotas: quotas.iter().map(Micros::of).collect(),
            bursts: share.iter().map(|quota| quota.config.burst).collect(),
            local: Local::new(&share),
        }
    }

    pub(super) fn judge(
        self: &Arc<Self>,
        clock: &Arc<dyn Clock + Send + Sync>,
        arrival: Arrival,
        applied: Vec<Applied>,
    ) -> Judging {
        let (limits, clock) = (Arc::clone(self), Arc::clone(clock));
        Box::pin(async move {
            let expired = arrival.remaining.is_some_and(|left| left.is_zero());
            let now = || clock.now();
            if applied.is_empty() || expired {
                // Nothing in Redis has a say in it.
                return limits.local.judge(now(), &arrival, &[]);
            }
            if limits.fleet.may_ask(now()) {
                let asked = limits.ask(&arrival, &applied);
                let failure = match tokio::time::timeout(limits.fleet.patience, asked).await {
                    Ok(Ok(Some(judgement))) => {
                        limits.fleet.paused.store(0, Ordering::Relaxed);
                        return judgement;
                    }
                    // What answers and is not understood limits nothing either.
                    Ok(Ok(None)) => (FailureKind::Other, None),
                    Ok(Err(error)) => explain(&error),
                    Err(_) => (FailureKind::TimedOut, None),
                };
                limits.fleet.failed(now(), failure);
            }
            observe::rate_alone(limits.fleet.away.name());
            limits.judge_alone(now(), arrival, &applied)
        })
    }

    /// While Redis is away.
    fn judge_alone(&self, now: Instant, mut arrival: Arrival, applied: &[Applied]) -> Judgement {
        let verdict = match self.fleet.away {
            Away::Open => Ok(Admitted { ticket: false }),
            Away::Closed => Err(Refused::Away),
            Away::Local(_) => {
                let burst = |bursts: &mut dyn Iterator<Item = u32>| bursts.min().unwrap_or(1);
                let whole = burst(
                    &mut applied
                        .iter()
                        .filter_map(|one| Some(self.quotas.get(one.quota)?.burst)),
                );
                let share = burst(
                    &mut applied
                        .iter()
                        .filter_map(|one| self.bursts.get(one.quota).copied()),
                );
                if arrival.cost <= whole {
                    arrival.cost = arrival.cost.min(share);
                }
                return self.local.judge(now, &arrival, applied);
            }
        };
        Judgement {
            verdict,
            left: Vec::new(),
            taken: Taken::Nowhere,
        }
    }

    /// `None` if the reply is none that the script gives.
    async fn ask(
        &self,
        arrival: &Arrival,
        applied: &[Applied],
    ) -> Result<Option<Judgement>, RedisError> {
        let (clock, until) = (&self.fleet.clock, Wall::now() + self.fleet.patience);
        loop {
            let (caller, cost) = (arrival.caller, i64::from(arrival.cost));
            let mut reply = self.call(caller, cost, applied, clock.at(until)).await?;
            let Some(now) = reply.pop() else {
                return Ok(None);
            };
            clock.learn(i64::try_from(now).unwrap_or(i64::MAX));
            // Else the time of the server was not known, or was set.
            if reply.first() != Some(&LATE) || Wall::now() >= until {
                return Ok(judgement(&reply, applied));
            }
        }
    }

    /// As [`Limiter::give_back`](relent_core::Limiter::give_back). If Redis fails the quota stays taken.
    pub(super) async fn give_back(&self, cost: u32, applied: &[Applied]) {
        let given = self.call(None, -i64::from(cost.max(1)), applied, i64::MAX);
        drop(tokio::time::timeout(self.fleet.patience, given).await);
    }

    /// Gives back what was taken in this process, while Redis was away.
    pub(super) fn give_back_alone(&self, now: Instant, cost: u32, applied: &[Applied]) {
        self.local.give_back(now, cost, applied);
    }

    /// Runs the script, with a negative cost for one that is given back. After `until`, in the time of the server, it does
    /// nothing.
    async fn call(
        &self,
        caller: Option<u64>,
        cost: i64,
        applied: &[Applied],
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

/// `None` if it is not as the script replies: a number that is missing must not be taken for one.
fn judgement(reply: &[u64], applied: &[Applied]) -> Option<Judgement> {
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
        0 => Ok(Admitted { ticket: false }),
        1 => Ok(Admitted { ticket: true }),
        2 => limited(Refusal::Ticket),
        3 => limited(Refusal::Shared),
        4 => Err(Rejected::TooCostly { limiter }),
        _ => return None,
    };
    let left = left.iter().zip(applied).map(|(&[soon, until], one)| Left {
        quota: one.quota,
        soon: u32::try_from(soon).unwrap_or(u32::MAX),
        until: Duration::from_micros(until),
    });
    Some(Judgement {
        verdict: verdict.map_err(|rejected| Refused::Limits(by_quota(rejected, applied))),
        left: left.collect(),
        taken: Taken::Redis,
    })
}

impl Fleet {
    /// Whether this request asks Redis: not while it is known to be away, but for one each second.
    fn may_ask(&self, now: Instant) -> bool {
        let paused = self.paused.load(Ordering::Relaxed);
        if paused == 0 {
            return true;
        }
        let again = now.saturating_add(PAUSE).as_nanos();
        let order = Ordering::Relaxed;
        now.as_nanos() >= paused
            && self
                .paused
                .compare_exchange(paused, again, order, order)
                .is_ok()
    }

    fn failed(&self, now: Instant, failure: Explained) {
        let again = now.saturating_add(PAUSE).as_nanos();
        if self.paused.swap(again, Ordering::Relaxed) == 0 {
            observe::rate_failed(failure);
        }
        // What does not answer may be half open: the next one connects anew. Who connects at the moment needs no help.
        if let Ok(mut connection) = self.connection.try_lock() {
            *connection = None;
        }
    }

    async fn connection(&self) -> Result<MultiplexedConnection, RedisError> {
        let mut connection = self.connection.lock().await;
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.patience))
            .set_response_timeout(Some(self.patience));
        let new = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        Ok(connection.insert(new).clone())
    }
}

impl Away {
    /// For metrics.
    const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Local(_) => "local",
        }
    }

    /// A quota as this process keeps it by itself.
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

/// The response to a request when the limits cannot be asked.
pub(super) fn away() -> ErrorResponse {
    let shed = Shed {
        advice: Advice::None,
        after: PAUSE,
    };
    let mut response = ErrorResponse::rejected(&Rejected::Shed(shed));
    response.detail = "the rate limits cannot be checked at the moment";
    response
}

/// The same hash in every process: 64 bits of SHA-256, since nobody may find a key that shares the limiter of another.
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
