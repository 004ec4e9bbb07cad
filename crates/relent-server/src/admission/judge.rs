//! What is asked of the limits, and what they say.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use relent_core::{Admitted, Arrival, Instant, Intake, KeyedLimiter, Limiter, Rejected};

use super::Quota;

/// One limiter of a quota that counts for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Applied {
    /// The number of the quota.
    pub(super) quota: usize,
    /// Which of its limiters; `None` if it has one for all.
    pub(super) key: Option<u64>,
}

/// Why a request is not let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// By the limits; a limiter is named by the number of its quota.
    Limits(Rejected),
    /// The limits are elsewhere, and cannot be asked.
    #[cfg(feature = "redis")]
    Away,
}

/// What is left of a quota: to a request that is let in what it can have soon, to one that is refused what there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Left {
    pub(super) quota: usize,
    /// So many attempts: within a second, or now if it refuses.
    pub(super) soon: u32,
    /// The time until one more.
    pub(super) until: Duration,
}

impl Left {
    /// What this limiter of a quota has left, for a request of this cost that was judged so.
    pub(super) fn of(
        limiter: &mut Limiter,
        quota: usize,
        now: Instant,
        cost: u32,
        verdict: &Result<Admitted, Rejected>,
    ) -> Self {
        let left = limiter.available(now, Duration::ZERO);
        let refuses = verdict.is_err() && left < cost.max(1);
        let soon = match refuses {
            true => left,
            false => limiter.available(now, Duration::from_secs(1)),
        };
        let until = limiter.until_available(now, soon.saturating_add(1));
        let until = match verdict {
            // A caller that holds a slot need not wait for the next one.
            Err(Rejected::Limited { refusal, .. }) if refuses => until.min(refusal.delay()),
            _ => until,
        };
        Self { quota, soon, until }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Judgement {
    pub(super) verdict: Result<Admitted, Refused>,
    pub(super) left: Vec<Left>,
    pub(super) taken: Taken,
}

/// Where an admitted request has taken its quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    /// Redis is away, and nothing limits.
    #[cfg(feature = "redis")]
    Nowhere,
    Here,
    #[cfg(feature = "redis")]
    Redis,
}

/// A judgement by what is elsewhere.
pub(super) type Judging = Pin<Box<dyn Future<Output = Judgement> + Send>>;

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

    /// Judges a request for which these limiters count, in the order of their quotas.
    pub(super) fn judge(&self, now: Instant, arrival: &Arrival, applied: &[Applied]) -> Judgement {
        self.with(now, applied, |limiters| {
            let verdict = Intake::new().judge_with(now, arrival, limiters);
            let left = limiters.iter_mut().zip(applied).map(|(limiter, applied)| {
                Left::of(limiter, applied.quota, now, arrival.cost, &verdict)
            });
            Judgement {
                left: left.collect(),
                verdict: verdict.map_err(|rejected| Refused::Limits(by_quota(rejected, applied))),
                taken: Taken::Here,
            }
        })
    }

    /// A request for which these limiters count was admitted, and not served.
    pub(super) fn give_back(&self, now: Instant, cost: u32, applied: &[Applied]) {
        self.with(now, applied, |limiters| {
            for limiter in limiters {
                limiter.give_back(now, cost);
            }
        });
    }

    fn with<T>(
        &self,
        now: Instant,
        applied: &[Applied],
        work: impl FnOnce(&mut [&mut Limiter]) -> T,
    ) -> T {
        // The limiters are sound after every statement, so a poisoned lock has lost nothing.
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

    /// How many keys are remembered, and how many limiters were forgotten in use.
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

/// The same with the number of the quota in place of that among the limiters that were asked.
pub(super) fn by_quota(rejected: Rejected, applied: &[Applied]) -> Rejected {
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
