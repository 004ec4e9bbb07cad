//! The model of a service: a queue and its workers, in good and in bad times.

use std::collections::VecDeque;

use relent_core::{Advice, Arrival, Instant, Intake, Limiter, Rejected, Shed, Shedder};

use crate::limiter::Hinted;
use crate::scenario::{Effect, SECOND, Service, ServiceRetryAfter, ServiceTime};
use crate::slab::Key;
use crate::stream::{Stream, rounded};

/// Why an attempt is turned away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// In a blackout.
    Down,
    /// By the limiter, which says this about time.
    Throttled(Hinted),
    /// By the shedder.
    Shed(Advice),
}

/// The state of the service.
#[derive(Debug)]
pub(crate) struct Server {
    queue: VecDeque<Key>,
    /// The most that may be queued at full capacity.
    most: usize,
    workers: u32,
    busy: u32,
    /// The mean service time in nanoseconds.
    mean: u64,
    time: ServiceTime,
    /// What one refusal costs, in nanoseconds of service.
    reject_cost: u64,
    /// Refusals not yet paid for: the next service pays.
    debt: u64,
    outage: Option<Effect>,
    intake: Intake,
    /// What refusals of the limiter say about time.
    says: ServiceRetryAfter,
    /// The version of the row.
    pub(crate) version: u64,
    times: Stream,
    luck: Stream,
    failures: f64,
}

impl Server {
    pub(crate) fn new(config: &Service, times: Stream, luck: Stream) -> Self {
        let mean = f64::from(config.workers) * SECOND as f64 / config.capacity;
        let most = |nanos: u64| (nanos as f64 / SECOND as f64 * config.capacity) as usize;
        Self {
            queue: VecDeque::new(),
            most: config.queue.map_or(usize::MAX, most),
            workers: config.workers,
            busy: 0,
            mean: rounded(mean),
            time: config.time,
            reject_cost: rounded(mean * config.reject_cost),
            debt: 0,
            outage: None,
            intake: intake(config),
            says: config
                .limiter
                .map_or(ServiceRetryAfter::Nothing, |limiter| limiter.retry_after),
            version: 0,
            times,
            luck,
            failures: config.failures,
        }
    }

    pub(crate) fn set_outage(&mut self, effect: Option<Effect>) {
        self.outage = effect;
    }

    pub(crate) fn is_blacked_out(&self) -> bool {
        self.outage == Some(Effect::Blackout)
    }

    /// Whether an attempt that arrives comes as far as the queue: the attempt of this number, by the
    /// caller that the limiter knows by this key.
    pub(crate) fn judge(
        &mut self,
        now: u64,
        attempt: u32,
        key: Option<u64>,
    ) -> Result<(), Refused> {
        if self.is_blacked_out() {
            return Err(Refused::Down);
        }
        let queued = self.queued();
        let arrival = Arrival {
            attempt,
            caller: key,
            queued,
            in_flight: queued.saturating_add(self.busy),
            ..Arrival::FIRST
        };
        let refused = match self.intake.judge(Instant::from_nanos(now), &arrival) {
            Ok(_) => return Ok(()),
            Err(Rejected::Limited { refusal, .. }) => {
                Refused::Throttled(Hinted::of(self.says, refusal))
            }
            Err(Rejected::Shed(Shed { advice, .. })) => Refused::Shed(advice),
            // Every attempt costs one, and whose caller has gone is the world's to know.
            Err(Rejected::TooCostly { .. } | Rejected::Expired) => Refused::Down,
        };
        self.pay_refusal();
        Err(refused)
    }

    fn queued(&self) -> u32 {
        u32::try_from(self.queue.len()).unwrap_or(u32::MAX)
    }

    /// Queues the attempt; false if it is refused.
    pub(crate) fn enter(&mut self, attempt: Key) -> bool {
        // The bound is a time: at half the speed, half as many take it.
        let most = match self.outage {
            Some(Effect::Brownout(share)) => (self.most as f64 * share) as usize,
            _ => self.most,
        };
        if self.queue.len() >= most && self.busy >= self.workers {
            self.pay_refusal();
            return false;
        }
        self.queue.push_back(attempt);
        true
    }

    /// Refusing takes time from those who are served.
    fn pay_refusal(&mut self) {
        if self.busy >= self.workers {
            self.debt = self.debt.saturating_add(self.reject_cost);
        }
    }

    /// Begins the next service if there is one and a worker is free; returns how long it takes.
    /// What `is_wanted` denies is dropped.
    pub(crate) fn begin(&mut self, mut is_wanted: impl FnMut(Key) -> bool) -> Option<(Key, u64)> {
        if self.busy >= self.workers || self.outage == Some(Effect::Stall) {
            return None;
        }
        let attempt = loop {
            let attempt = self.queue.pop_front()?;
            if is_wanted(attempt) {
                break attempt;
            }
        };
        self.busy += 1;
        let time = match self.time {
            ServiceTime::Exponential => self.times.exponential(self.mean),
            ServiceTime::Constant => self.mean,
            // The mean of a lognormal is its median · exp(σ²/2).
            ServiceTime::Lognormal(sigma) => {
                let median = self.mean as f64 * libm::exp(-sigma * sigma / 2.0);
                self.times.lognormal(rounded(median), sigma)
            }
        };
        let time = match self.outage {
            Some(Effect::Brownout(share)) => rounded(time as f64 / share),
            _ => time,
        };
        Some((attempt, time.saturating_add(std::mem::take(&mut self.debt))))
    }

    /// A service is over; whether it succeeded.
    pub(crate) fn end(&mut self, now: u64) -> bool {
        self.busy -= 1;
        let queued = self.queued();
        self.intake.on_done(Instant::from_nanos(now), queued);
        !self.luck.happens(self.failures)
    }
}

/// The limiter and the shedder of a service, which were checked when the scenario was read.
fn intake(config: &Service) -> Intake {
    let mut intake = Intake::new();
    let limiter = config.limiter.as_ref();
    if let Some(Ok(limiter)) = limiter.map(|config| Limiter::new(&config.into())) {
        intake = intake.limiter(limiter);
    }
    let shedder = config.shedder.as_ref();
    if let Some(Ok(shedder)) = shedder.map(|config| Shedder::new(&config.into())) {
        intake = intake.shedder(shedder);
    }
    intake
}
