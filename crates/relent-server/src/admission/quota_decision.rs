//! The request to the limits, and their decision.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use relent_core::Instant;
use relent_core::admission::{
    AdmissionController, Admitted, Arrival, KeyedLimiter, Limiter, Rejected,
};

use super::Quota;

/// A limiter of a quota that applies to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AppliedQuota {
    /// The index of the quota.
    pub(super) quota: usize,
    /// The key of the limiter; `None` if the quota has one limiter for all requests.
    pub(super) key: Option<u64>,
}

/// The reason for a rejection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RateLimitRejection {
    /// Rejected by a limiter; `limiter` is the index of its quota.
    Limits(Rejected),
    /// The limits are in Redis, which is unreachable.
    #[cfg(feature = "redis")]
    RedisDown,
}

/// The remaining quota, for the header `RateLimit`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RemainingQuota {
    pub(super) quota: usize,
    /// Attempts available now.
    pub(super) available: u32,
    /// The time until one more is available.
    pub(super) until: Duration,
}

impl RemainingQuota {
    /// Reads the remaining quota after the decision on a request of this cost.
    pub(super) fn of(
        limiter: &mut Limiter,
        quota: usize,
        now: Instant,
        cost: u32,
        verdict: &Result<Admitted, Rejected>,
    ) -> Self {
        let available = limiter.available(now, Duration::ZERO);
        let refuses = verdict.is_err() && available < cost.max(1);
        let until = limiter.until_available(now, available.saturating_add(1));
        let until = match verdict {
            // A caller with a reserved slot need not wait for the next one.
            Err(Rejected::Limited { refusal, .. }) if refuses => until.min(refusal.delay()),
            _ => until,
        };
        Self {
            quota,
            available,
            until,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Decision {
    pub(super) verdict: Result<Admitted, RateLimitRejection>,
    pub(super) left: Vec<RemainingQuota>,
    pub(super) taken: QuotaSource,
}

/// The place where an admitted request has taken its quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QuotaSource {
    /// Redis is unreachable, and requests are not limited.
    #[cfg(feature = "redis")]
    Nowhere,
    Here,
    #[cfg(feature = "redis")]
    Redis,
}

/// A decision that another server makes.
pub(super) type PendingDecision = Pin<Box<dyn Future<Output = Decision> + Send>>;

/// Limits that are kept in this process.
#[derive(Debug)]
pub(super) struct Local(Mutex<Vec<Limiters>>);

/// The limiters of a quota.
#[derive(Debug)]
enum Limiters {
    One(Limiter),
    Keyed(KeyedLimiter),
}

impl Local {
    pub(super) fn new(quotas: &[Quota]) -> Self {
        let limiters = quotas.iter().map(|quota| match quota.key {
            Some(_) => Limiters::Keyed(KeyedLimiter::new(quota.limiter.clone(), quota.max_keys)),
            None => Limiters::One(quota.limiter.clone()),
        });
        Self(Mutex::new(limiters.collect()))
    }

    /// Decides about a request by these limiters, which are in the order of their quotas.
    pub(super) fn decision(
        &self,
        now: Instant,
        arrival: &Arrival,
        applied: &[AppliedQuota],
    ) -> Decision {
        self.with(now, applied, |limiters| {
            let verdict = AdmissionController::new().admit_with(now, arrival, limiters);
            let left = limiters.iter_mut().zip(applied).map(|(limiter, applied)| {
                RemainingQuota::of(limiter, applied.quota, now, arrival.cost, &verdict)
            });
            Decision {
                left: left.collect(),
                verdict: verdict
                    .map_err(|rejected| RateLimitRejection::Limits(by_quota(rejected, applied))),
                taken: QuotaSource::Here,
            }
        })
    }

    /// Gives back the quota of a request that was admitted and not served.
    pub(super) fn give_back(&self, now: Instant, cost: u32, applied: &[AppliedQuota]) {
        self.with(now, applied, |limiters| {
            for limiter in limiters {
                limiter.give_back(now, cost);
            }
        });
    }

    fn with<T>(
        &self,
        now: Instant,
        applied: &[AppliedQuota],
        work: impl FnOnce(&mut [&mut Limiter]) -> T,
    ) -> T {
        // The limiters are consistent after every statement, so a poisoned lock is safe to use.
        let mut quotas = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted = applied.iter().peekable();
        let mut limiters: Vec<&mut Limiter> = Vec::with_capacity(applied.len());
        for (quota, each) in quotas.iter_mut().enumerate() {
            if let Some(applied) = wanted.next_if(|applied| applied.quota == quota) {
                limiters.push(match (each, applied.key) {
                    (Limiters::One(limiter), _) => limiter,
                    (Limiters::Keyed(keyed), key) => keyed.limiter(now, key.unwrap_or(0)),
                });
            }
        }
        work(&mut limiters)
    }

    /// Returns the number of keys, and of limiters evicted while in use.
    pub(super) fn keys(&self) -> (usize, u64) {
        let quotas = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        quotas
            .iter()
            .fold((0, 0), |(keys, forgotten), each| match each {
                Limiters::One(_) => (keys, forgotten),
                Limiters::Keyed(keyed) => (keys + keyed.keys(), forgotten + keyed.forgotten()),
            })
    }
}

/// Replaces the index in `applied` by the index of the quota.
pub(super) fn by_quota(rejected: Rejected, applied: &[AppliedQuota]) -> Rejected {
    let quota = |limiter: usize| applied.get(limiter).map_or(0, |applied| applied.quota);
    match rejected {
        Rejected::Limited { refusal, limiter } => Rejected::Limited {
            refusal,
            limiter: quota(limiter),
        },
        Rejected::TooCostly { limiter } => Rejected::TooCostly {
            limiter: quota(limiter),
        },
        other => other,
    }
}
