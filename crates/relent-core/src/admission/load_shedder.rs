//! Load shedding: rejecting requests that a server cannot serve in time.

use core::time::Duration;

use crate::hint::Advice;
use crate::histogram::{BUCKETS, Histogram, share_of_retries};
use crate::policy::error::{Found, PolicyError};
use crate::time::{Instant, nanos};

/// The period over which the share of retries is counted: long enough for a meaningful share, short
/// enough to end soon after the overload.
const RETRY_SHARE_WINDOW: Duration = Duration::from_secs(10);
/// The number of services over which the service time is averaged.
const MEAN_OVER_SERVICES: u64 = 64;

/// The configuration of a [`Shedder`].
///
/// # Default
/// Sheds when the queue delay stays above 20 ms (the overload measure of WeChat's DAGOR) for 100 ms
/// (as in CoDel); no bound on requests in flight; "do not retry" once most attempts are retries.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ShedderConfig {
    /// The queue delay up to which nothing is shed.
    pub target: Duration,
    /// How long the delay must stay above the target until the queue counts as standing. A burst
    /// that drains in less time is harmless.
    pub interval: Duration,
    /// The maximum number of requests in flight, including queued ones; `u32::MAX` for no bound.
    pub in_flight: u32,
    /// The share of [`in_flight`](Self::in_flight) up to which retries are admitted; the rest is
    /// reserved for first attempts. From 0 to 1.
    pub retry_in_flight_share: f64,
    /// The share of retries above which rejections ask the caller not to retry. It must be
    /// exceeded among the attempts, and among the latest attempts of all callers. From 0 to 1.
    pub retry_share: f64,
}

impl ShedderConfig {
    /// Target 20 ms, interval 100 ms, no bound in flight, three quarters for retries, retry share
    /// one half.
    pub const DEFAULT: Self = Self {
        target: Duration::from_millis(20),
        interval: Duration::from_millis(100),
        in_flight: u32::MAX,
        retry_in_flight_share: 0.75,
        retry_share: 0.5,
    };

    fn check(&self) -> Result<(), PolicyError> {
        for (key, time) in [("target", self.target), ("interval", self.interval)] {
            if time.is_zero() {
                return Err(PolicyError::new(
                    key,
                    Found::Duration(time),
                    "a shedder needs a time above 0: a target of 20ms for an interval of 100ms is usual",
                ));
            }
        }
        if self.in_flight == 0 {
            return Err(PolicyError::new(
                "in_flight",
                Found::Count(0),
                "at least 1 request has to be let in, or nothing is ever served",
            ));
        }
        for (key, share) in [
            ("retry_in_flight_share", self.retry_in_flight_share),
            ("retry_share", self.retry_share),
        ] {
            // Written so that NaN fails.
            if !(0.0..=1.0).contains(&share) {
                return Err(PolicyError::new(
                    key,
                    Found::Number(share),
                    "a share is a number from 0 to 1",
                ));
            }
        }
        Ok(())
    }
}

impl Default for ShedderConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// An arriving request, as its client reports it, and the current load of the server.
///
/// Use the values of [`FIRST`](Self::FIRST) for unknown fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// The attempt number; 1 for the first, and for a request with a reserved slot (a
    /// [ticket](crate::admission::Verdict::Admitted)). 0 counts as 1.
    pub attempt: u32,
    /// A hash of the caller's identity, to which a [`Limiter`](crate::admission::Limiter) binds tickets;
    /// `None` for a caller without one.
    pub caller: Option<u64>,
    /// The cost in attempts for a [`Limiter`](crate::admission::Limiter). 0 counts as 1.
    pub cost: u32,
    /// The time until the caller's deadline, if it is known. At zero the caller no longer waits for
    /// the response.
    pub remaining: Option<Duration>,
    /// The number of requests waiting for service; 0 in a server without a queue.
    pub queued: u32,
    /// The number of other requests in flight, including queued ones.
    pub in_flight: u32,
    /// The histogram of attempts that the client sent, if any.
    pub histogram: Option<[u32; BUCKETS]>,
}

impl Arrival {
    /// A first attempt of an unknown caller at an idle server.
    pub const FIRST: Self = Self {
        attempt: 1,
        caller: None,
        cost: 1,
        remaining: None,
        queued: 0,
        in_flight: 0,
        histogram: None,
    };
}

/// The response to a request that is shed: it is rejected immediately, without service.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shed {
    /// [`Advice::DoNotRetry`] if retries are most of the load, else [`Advice::None`].
    pub advice: Advice,
    /// When there may be capacity again, if a retry is allowed: the time in which the queue returns
    /// to its target without new arrivals, and at least the interval. More than zero; nothing is
    /// reserved.
    pub after: Duration,
}

/// A load shedder: decides which requests a server rejects when it gets more than it can serve.
///
/// - **By queue delay**, as CoDel does (RFC 8289): a queue is good as long as it empties. Once the
///   delay has been above the target for a whole interval, the queue is *standing*. From then on a
///   retry is admitted only up to the target, and a first attempt up to twice the target, until the
///   delay is back at the target. If it rises again within an interval, the queue counts as
///   standing immediately. CoDel drops ever more often instead, since TCP slows down with each
///   loss; callers do not. The delay is that of the arriving request: the number of requests before
///   it times the mean service time, which [`on_service_end`](Self::on_service_end) measures. The age of the
///   oldest request reacts too late: while a flood drains, it still grows.
/// - **By requests in flight**, for servers without a queue or with nothing but queues.
///
/// A retry is shed before a first attempt: a first attempt has cost nothing yet, and in overload
/// retries are expendable. If most attempts are retries, rejections ask the caller not to retry
/// ("Handling Overload", Site Reliability Engineering).
///
/// # Trust in clients
/// The attempt number comes from the client, which may lie. It therefore counts for others as a
/// single request, however many the client sends. "Do not retry" requires a majority of the
/// attempts, and a majority of the [callers](Arrival::caller), each by its latest attempt. Callers
/// without an identity count as one. Without identities only a retry gets this advice, and a first
/// attempt never does. The histogram of a client affects only that client.
///
/// A driver shares one value behind a lock. A time before the latest one counts as the latest.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Advice, Instant};
/// use relent_core::admission::{Arrival, Shed, Shedder, ShedderConfig};
///
/// let mut shedder = Shedder::new(&ShedderConfig::DEFAULT)?;
/// let at = |millis| Instant::ORIGIN.saturating_add(Duration::from_millis(millis));
/// // A service ends each millisecond, and others wait.
/// for millis in 0..100 {
///     shedder.on_service_end(at(millis), 30);
/// }
/// let first = Arrival { queued: 30, ..Arrival::FIRST };
/// let retry = Arrival { attempt: 2, ..first };
/// assert_eq!(shedder.admit(at(100), &retry), Ok(()), "perhaps only a burst");
/// assert_eq!(shedder.admit(at(200), &first), Ok(()));
/// assert_eq!(shedder.admit(at(200), &first), Ok(()));
/// let shed = Shed { advice: Advice::None, after: Duration::from_millis(100) };
/// assert_eq!(shedder.admit(at(200), &retry), Err(shed), "the queue stands");
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Shedder {
    /// In nanoseconds, as are all times here.
    target: u64,
    interval: u64,
    /// The number of requests in flight at which first attempts, or retries, are shed.
    first_in_flight: u32,
    retry_in_flight: u32,
    retry_share: f64,
    attempts: Histogram,
    callers: Callers,
    /// The mean service time of all workers together, and the number of services in it.
    service: u64,
    services: u64,
    /// The end of the latest service, if others were waiting then.
    ended: Option<u64>,
    /// The latest time seen.
    latest: u64,
    /// Since when every delay was above the target, at arrivals and at ends of services.
    above: Option<u64>,
    /// When the queue was last standing.
    last_standing: Option<u64>,
}

impl Shedder {
    /// A shedder without measurements.
    ///
    /// # Errors
    /// Times or a bound of zero; shares outside 0 to 1.
    pub fn new(config: &ShedderConfig) -> Result<Self, PolicyError> {
        config.check()?;
        // A share of at most 1: the cast is exact enough, and saturates.
        let room = f64::from(config.in_flight) * config.retry_in_flight_share;
        Ok(Self {
            target: nanos(config.target),
            interval: nanos(config.interval),
            first_in_flight: config.in_flight,
            retry_in_flight: room as u32,
            retry_share: config.retry_share,
            attempts: Histogram::new(RETRY_SHARE_WINDOW),
            callers: Callers::EMPTY,
            service: 0,
            services: 0,
            ended: None,
            latest: 0,
            above: None,
            last_standing: None,
        })
    }

    /// Decides whether a request that arrives at `now` is admitted. Counts every request, admitted
    /// or not.
    ///
    /// # Errors
    /// [`Shed`] if it is rejected.
    pub fn admit(&mut self, now: Instant, arrival: &Arrival) -> Result<(), Shed> {
        self.latest = self.latest.max(now.as_nanos());
        self.attempts.record(now, arrival.attempt);
        self.callers
            .record(self.latest, arrival.caller, arrival.attempt > 1);
        let delay = self.delay(arrival.queued);
        let stands = self.stands(delay);
        let is_retry = arrival.attempt > 1;
        let (most_in_flight, most_delay) = match is_retry {
            true => (self.retry_in_flight, self.target),
            false => (self.first_in_flight, self.target.saturating_mul(2)),
        };
        // Without a bound in flight there is none for retries, either.
        let is_bound = self.first_in_flight < u32::MAX;
        if is_bound && arrival.in_flight >= most_in_flight || stands && delay > most_delay {
            return Err(self.reject(now, arrival));
        }
        Ok(())
    }

    /// The response to an admitted request that is rejected later, for example because it has
    /// waited too long.
    pub fn reject(&mut self, now: Instant, arrival: &Arrival) -> Shed {
        self.latest = self.latest.max(now.as_nanos());
        // Others may have arrived meanwhile: its own attempt number counts for it.
        self.callers
            .record(self.latest, arrival.caller, arrival.attempt > 1);
        let until_target = self.delay(arrival.queued).saturating_sub(self.target);
        Shed {
            advice: self.advice(now, arrival.histogram.as_ref()),
            after: Duration::from_nanos(until_target.max(self.interval)),
        }
    }

    /// Reports that a service ended at `now`, successfully or not, while `queued` requests were
    /// waiting. Do not call it for an admitted request that left before its service began.
    pub fn on_service_end(&mut self, now: Instant, queued: u32) {
        self.latest = self.latest.max(now.as_nanos());
        let now = self.latest;
        if self.delay(queued) <= self.target {
            // The queue may empty while no request arrives.
            self.above = None;
        }
        // The time between two ends is a service time only if requests were waiting.
        let last = core::mem::replace(&mut self.ended, (queued > 0).then_some(now));
        let Some(last) = last else { return };
        // A stall is not a service time.
        let time = (now - last).min(self.interval);
        self.services = (self.services + 1).min(MEAN_OVER_SERVICES);
        if time >= self.service {
            self.service += (time - self.service) / self.services;
        } else {
            self.service -= (self.service - time) / self.services;
        }
    }

    /// The wait of a request behind `queued` others. Zero until services have ended.
    #[must_use]
    pub const fn queue_delay(&self, queued: u32) -> Duration {
        Duration::from_nanos(self.delay(queued))
    }

    /// Whether the queue was standing within the last interval. A server may then serve the newest
    /// request first, since callers of the oldest are most likely gone (adaptive LIFO: "Fail at
    /// Scale", ACM Queue 2015).
    #[must_use]
    pub fn is_overloaded(&self, now: Instant) -> bool {
        let now = now.as_nanos().max(self.latest);
        self.last_standing
            .is_some_and(|last_standing| now - last_standing < self.interval)
    }

    /// The share of retries among the attempts of the last ten seconds.
    pub fn retry_share(&mut self, now: Instant) -> f64 {
        self.attempts.retry_share(now)
    }

    const fn delay(&self, queued: u32) -> u64 {
        self.service.saturating_mul(queued as u64)
    }

    /// Evaluates the queue by a delay at the latest time.
    fn stands(&mut self, delay: u64) -> bool {
        let now = self.latest;
        if delay <= self.target {
            self.above = None;
            return false;
        }
        let above = *self.above.get_or_insert(now);
        let stands = now - above >= self.interval || self.is_overloaded(Instant::from_nanos(now));
        if stands {
            self.last_standing = Some(now);
        }
        stands
    }

    fn advice(&mut self, now: Instant, client: Option<&[u32; BUCKETS]>) -> Advice {
        let is_most = |share: f64| share > self.retry_share;
        let client = client.map_or(0.0, share_of_retries);
        let most_retry = is_most(self.attempts.retry_share(now))
            && is_most(self.callers.retry_share(self.latest));
        if is_most(client) || most_retry {
            Advice::DoNotRetry
        } else {
            Advice::None
        }
    }
}

/// The number of distinguished callers, by hash; callers with the same value count as one.
const CALLER_BITS: usize = 256;
type Bits = [u64; CALLER_BITS / 64];

/// Whether the latest attempt of each caller of the last ten to twenty seconds was a retry.
#[derive(Clone, Debug)]
struct Callers {
    /// The number of the current window, counted from the origin of time.
    window: u64,
    /// The callers seen in the current window and in the previous one.
    running: CallerSet,
    before: CallerSet,
}

#[derive(Clone, Debug)]
struct CallerSet {
    all: Bits,
    retrying: Bits,
}

impl Callers {
    const EMPTY: Self = Self {
        window: 0,
        running: CallerSet::EMPTY,
        before: CallerSet::EMPTY,
    };

    fn record(&mut self, now: u64, caller: Option<u64>, is_retry: bool) {
        self.advance(now);
        // Mixed, since hashes may differ in any bits. Callers without an identity count as one.
        let mixed = caller.map_or(0, |caller| {
            caller.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56
        });
        let (word, bit) = (mixed as usize / 64, 1 << (mixed % 64));
        if let (Some(all), Some(retrying)) = (
            self.running.all.get_mut(word),
            self.running.retrying.get_mut(word),
        ) {
            *all |= bit;
            *retrying = if is_retry {
                *retrying | bit
            } else {
                *retrying & !bit
            };
        }
    }

    /// The share of callers whose latest attempt was a retry; 0 if there are none.
    fn retry_share(&mut self, now: u64) -> f64 {
        self.advance(now);
        let (mut all, mut retrying) = (0, 0);
        for (running, before) in self.running.words().zip(self.before.words()) {
            all += (running.0 | before.0).count_ones();
            retrying += (running.1 | before.1 & !running.0).count_ones();
        }
        f64::from(retrying) / f64::from(all.max(1))
    }

    fn advance(&mut self, now: u64) {
        let window = now / nanos(RETRY_SHARE_WINDOW);
        let passed = window.saturating_sub(self.window);
        if passed > 0 {
            let running = core::mem::replace(&mut self.running, CallerSet::EMPTY);
            self.before = if passed == 1 {
                running
            } else {
                CallerSet::EMPTY
            };
            self.window = window;
        }
    }
}

impl CallerSet {
    const EMPTY: Self = Self {
        all: [0; CALLER_BITS / 64],
        retrying: [0; CALLER_BITS / 64],
    };

    fn words(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let retrying = self.retrying.iter().copied();
        self.all.iter().copied().zip(retrying)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
