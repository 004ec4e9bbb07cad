//! The model of one node of a service: a queue and its workers, with its outages.

use std::collections::VecDeque;

use relent_core::admission::{AdmissionController, Arrival, Limiter, Rejected, Shed, Shedder};
use relent_core::{Advice, Instant};

use crate::limiter_response::RetryAfterHint;
use crate::random_stream::{Stream, rounded};
use crate::scenario::{
    Effect, FastFailures, QueueBound, SECOND, Scenario, Service, ServiceRetryAfter, ServiceTime,
};
use crate::slab::Key;

/// Why an attempt is rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RejectedBy {
    /// A blackout, or a fast failure.
    Down,
    /// By the limiter, with its Retry-After.
    Throttled(RetryAfterHint),
    /// By the load shedder.
    Shed(Advice),
}

/// The effects of outages on the attempts of one class at this node.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Condition {
    /// Whether they are rejected.
    down: bool,
    /// The remaining share of the capacity.
    share: f64,
    /// The probability of an error after the service.
    failures: f64,
    /// The probability that a message is lost.
    loss: f64,
    fast: FastFailureState,
}

/// Which attempts fail fast.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
struct FastFailureState {
    share: f64,
    /// One attempt in this many; none if 0.
    every: u32,
    /// One first attempt in this many; none if 0.
    every_first: u32,
}

impl FastFailureState {
    fn with(self, more: FastFailures) -> Self {
        match more {
            FastFailures::Share(share) => Self {
                share: either(self.share, share),
                ..self
            },
            FastFailures::Every { every } => Self { every, ..self },
            FastFailures::EveryFirst { every_first } => Self {
                every_first,
                ..self
            },
        }
    }
}

/// The properties of one class of requests at this node.
#[derive(Debug)]
struct ClassState {
    /// The mean service time in nanoseconds.
    mean: u64,
    time: ServiceTime,
    now: Condition,
}

/// The state of a node.
#[derive(Debug)]
pub(crate) struct Server {
    /// The queued attempts with their classes.
    queue: VecDeque<(Key, u8)>,
    /// The longest queue.
    queue_limit: usize,
    /// Whether that was given as a time: at less than full capacity, fewer attempts fit into it.
    queue_limit_is_time: bool,
    workers: u32,
    busy: u32,
    class_states: Vec<ClassState>,
    /// The cost of one rejection, in nanoseconds of service.
    reject_cost: u64,
    /// The cost of rejections since the last service began; the next service pays it.
    unpaid_rejections: u64,
    /// Whether no service begins.
    stalled: bool,
    /// The remaining share of the capacity, for all classes.
    share: f64,
    /// `None` without limiter and load shedder.
    intake: Option<AdmissionController>,
    /// The kind of Retry-After in the limiter's rejections.
    says: ServiceRetryAfter,
    /// The version of the row.
    pub(crate) version: u64,
    times: Stream,
    luck: Stream,
    losses: Stream,
    failures: f64,
    /// The fast failures outside of outages, by chance or by the two counts below.
    fast: FastFailureState,
    chances: Stream,
    attempts: u32,
    firsts: u32,
}

impl Server {
    /// A node of the service, with the streams of its service times, its errors, its losses and its fast failures.
    pub(crate) fn new(scenario: &Scenario, [times, luck, losses, chances]: [Stream; 4]) -> Self {
        let config = &scenario.service;
        let nodes = f64::from(config.nodes);
        let mean = nodes * f64::from(config.workers) * SECOND as f64 / config.capacity;
        let per_second = scenario.capacity() / nodes;
        let queue_limit = |nanos: u64| (nanos as f64 / SECOND as f64 * per_second) as usize;
        let fast = FastFailureState::default().with(config.fast_failures);
        let well = Condition {
            down: false,
            share: 1.0,
            failures: config.failures,
            loss: 0.0,
            fast,
        };
        let kind = |cost: f64, time: Option<ServiceTime>| ClassState {
            mean: rounded(mean * cost),
            time: time.unwrap_or(config.time),
            now: well,
        };
        let classes = scenario.clients.classes.iter();
        let mut class_states: Vec<ClassState> =
            classes.map(|class| kind(class.cost, class.time)).collect();
        if class_states.is_empty() {
            class_states.push(kind(1.0, None));
        }
        Self {
            queue: VecDeque::new(),
            queue_limit: match config.queue {
                None => usize::MAX,
                Some(QueueBound::Time(nanos)) => queue_limit(nanos),
                Some(QueueBound::Attempts(attempts)) => attempts as usize,
            },
            queue_limit_is_time: matches!(config.queue, Some(QueueBound::Time(_))),
            workers: config.workers,
            busy: 0,
            class_states,
            reject_cost: rounded(mean * config.reject_cost),
            unpaid_rejections: 0,
            stalled: false,
            share: 1.0,
            intake: intake(config),
            says: config
                .limiter
                .map_or(ServiceRetryAfter::Nothing, |limiter| limiter.retry_after),
            version: 0,
            times,
            luck,
            losses,
            failures: config.failures,
            fast,
            chances,
            attempts: 0,
            firsts: 0,
        }
    }

    /// Sets the effects at this node from now on, each with its class, or `None` for all.
    pub(crate) fn set_effects(&mut self, effects: impl Iterator<Item = (Effect, Option<u8>)>) {
        self.stalled = false;
        self.share = 1.0;
        for kind in &mut self.class_states {
            kind.now = Condition {
                down: false,
                share: 1.0,
                failures: self.failures,
                loss: 0.0,
                fast: self.fast,
            };
        }
        for (effect, class) in effects {
            match (effect, class) {
                (Effect::Stall, _) => self.stalled = true,
                (Effect::Brownout(share), None) => self.share *= share,
                _ => {}
            }
            let concerned = |index: usize| class.is_none_or(|class| usize::from(class) == index);
            let class_states = self.class_states.iter_mut().enumerate();
            for (_, kind) in class_states.filter(|(index, _)| concerned(*index)) {
                let now = &mut kind.now;
                match effect {
                    Effect::Blackout | Effect::Restart => now.down = true,
                    Effect::Brownout(share) => now.share *= share,
                    Effect::Failures(more) => now.failures = either(now.failures, more),
                    Effect::Loss(more) => now.loss = either(now.loss, more),
                    Effect::FastFailures(more) => now.fast = now.fast.with(more),
                    Effect::Stall => {}
                }
            }
        }
    }

    fn kind(&self, class: u8) -> &ClassState {
        &self.class_states[usize::from(class)]
    }

    pub(crate) fn is_blacked_out(&self, class: u8) -> bool {
        self.kind(class).now.down
    }

    /// Whether an attempt of the class that arrives here, or the response to one, is lost.
    pub(crate) fn loses(&mut self, class: u8) -> bool {
        let loss = self.kind(class).now.loss;
        loss > 0.0 && self.losses.happens(loss)
    }

    /// Attempts that are queued or served.
    pub(crate) fn outstanding(&self) -> usize {
        self.queue.len() + self.busy as usize
    }

    /// Takes all queued attempts.
    pub(crate) fn take_queue(&mut self) -> Vec<Key> {
        self.queue.drain(..).map(|(attempt, _)| attempt).collect()
    }

    /// Whether an arriving attempt gets as far as the queue: `attempt` is its number, `key` the caller's key at the
    /// limiter.
    pub(crate) fn judge(
        &mut self,
        now: u64,
        attempt: u32,
        key: Option<u64>,
        class: u8,
    ) -> Result<(), RejectedBy> {
        if self.is_blacked_out(class) || self.fails_fast(attempt, class) {
            return Err(RejectedBy::Down);
        }
        let queued = self.queued();
        let Some(intake) = &mut self.intake else {
            return Ok(());
        };
        let arrival = Arrival {
            attempt,
            caller: key,
            queued,
            in_flight: queued.saturating_add(self.busy),
            ..Arrival::FIRST
        };
        let refused = match intake.admit(Instant::from_nanos(now), &arrival) {
            Ok(_) => return Ok(()),
            Err(Rejected::Limited { refusal, .. }) => {
                RejectedBy::Throttled(RetryAfterHint::of(self.says, refusal))
            }
            Err(Rejected::Shed(Shed { advice, .. })) => RejectedBy::Shed(advice),
            // Every attempt costs one, and the world handles callers that have gone.
            Err(Rejected::TooCostly { .. } | Rejected::Expired) => RejectedBy::Down,
        };
        self.pay_refusal();
        Err(refused)
    }

    /// Whether the attempt of this number fails before it is queued.
    fn fails_fast(&mut self, attempt: u32, class: u8) -> bool {
        let fast = self.kind(class).now.fast;
        if fast == FastFailureState::default() {
            return false;
        }
        let is_first = attempt <= 1;
        self.attempts = self.attempts.wrapping_add(1);
        self.firsts = self.firsts.wrapping_add(u32::from(is_first));
        let one_of = |count: u32, of: u32| of > 0 && count.is_multiple_of(of);
        one_of(self.attempts, fast.every)
            || (is_first && one_of(self.firsts, fast.every_first))
            || (fast.share > 0.0 && self.chances.happens(fast.share))
    }

    fn queued(&self) -> u32 {
        u32::try_from(self.queue.len()).unwrap_or(u32::MAX)
    }

    /// Queues the attempt; returns false if it is rejected.
    pub(crate) fn enter(&mut self, attempt: Key, class: u8) -> bool {
        // If the bound is a time: at half the speed, half as many fit into it.
        let queue_limit = match self.queue_limit_is_time && self.share < 1.0 {
            true => (self.queue_limit as f64 * self.share) as usize,
            false => self.queue_limit,
        };
        if self.queue.len() >= queue_limit && self.busy >= self.workers {
            self.pay_refusal();
            return false;
        }
        self.queue.push_back((attempt, class));
        true
    }

    /// A rejection takes time from the served requests while all workers are busy.
    fn pay_refusal(&mut self) {
        if self.busy >= self.workers {
            self.unpaid_rejections = self.unpaid_rejections.saturating_add(self.reject_cost);
        }
    }

    /// Whether a service can begin.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.busy < self.workers && !self.queue.is_empty()
    }

    /// Begins the next service if one is queued and a worker is free. Returns its attempt, class and duration. Drops
    /// attempts that `is_wanted` rejects.
    pub(crate) fn begin(
        &mut self,
        mut is_wanted: impl FnMut(Key) -> bool,
    ) -> Option<(Key, u8, u64)> {
        if self.busy >= self.workers || self.stalled {
            return None;
        }
        let (attempt, class) = loop {
            let (attempt, class) = self.queue.pop_front()?;
            if is_wanted(attempt) {
                break (attempt, class);
            }
        };
        self.busy += 1;
        let &ClassState { mean, time, now } = self.kind(class);
        let time = match time {
            ServiceTime::Exponential => self.times.exponential(mean),
            ServiceTime::Constant => mean,
            // The mean of a lognormal is its median · exp(σ²/2).
            ServiceTime::Lognormal(sigma) => {
                let median = mean as f64 * libm::exp(-sigma * sigma / 2.0);
                self.times.lognormal(rounded(median), sigma)
            }
        };
        let time = match now.share < 1.0 {
            true => rounded(time as f64 / now.share),
            false => time,
        };
        let time = time.saturating_add(std::mem::take(&mut self.unpaid_rejections));
        Some((attempt, class, time))
    }

    /// A service of the class ends; returns whether it succeeded.
    pub(crate) fn end(&mut self, now: u64, class: u8) -> bool {
        self.busy -= 1;
        let queued = self.queued();
        if let Some(intake) = &mut self.intake {
            intake.on_service_end(Instant::from_nanos(now), queued);
        }
        let failures = self.kind(class).now.failures;
        !self.luck.happens(failures)
    }
}

/// The probability that at least one of two independent events happens.
fn either(one: f64, other: f64) -> f64 {
    1.0 - (1.0 - one) * (1.0 - other)
}

/// The limiter and the load shedder of a service; their settings were checked when the scenario was read.
fn intake(config: &Service) -> Option<AdmissionController> {
    let (limiter, shedder) = (config.limiter.as_ref(), config.shedder.as_ref());
    if limiter.is_none() && shedder.is_none() {
        return None;
    }
    let mut intake = AdmissionController::new();
    if let Some(Ok(limiter)) = limiter.map(|config| Limiter::new(&config.into())) {
        intake = intake.limiter(limiter);
    }
    if let Some(Ok(shedder)) = shedder.map(|config| Shedder::new(&config.into())) {
        intake = intake.shedder(shedder);
    }
    Some(intake)
}
