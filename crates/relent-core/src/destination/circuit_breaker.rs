//! Circuit breaker: tracks whether a destination is up and how many attempts it can sustain.
//!
//! A retry budget limits retries by a ratio, and no fixed ratio is right. To hide independent failures
//! of rate p it needs p/(1 − p). In overload it has to be nearly zero (see *retry budget* in the rules
//! of decision). The breaker tells the two cases apart and acts accordingly:
//!
//! - **Normal**: every attempt is admitted. While attempts fail but successes keep their baseline
//!   latency, the failures do not depend on load. [`CircuitBreaker::ratio`] then raises the budget's ratio to the
//!   value that hides them.
//! - **Limited**: more attempts fail than the baseline, and successes are slow or attempts time out:
//!   the destination has a queue. Retries that the budget cannot pay for also start this state. All
//!   attempts together are limited to a multiple of the demand. Failures reduce the multiple. It grows
//!   in steps while nothing fails and successes are fast (AIMD). It holds while successes
//!   are slow, and shrinks while they become slower. So the server's queue is never empty and rarely full. New
//!   requests go first; queued ones go as headroom allows. The step is halved if more attempts fail
//!   right after it, or if the breaker then goes down for a load-induced reason.
//! - **Down**: more attempts failed in a row than chance explains, or one timed out and nothing
//!   succeeded meanwhile. In a process without high traffic, three failures in a row are enough once the
//!   budget cannot pay for a retry. Requests are queued, and one probe at a time is sent. After a successful
//!   probe the breaker is limited first, so that the queue does not become a thundering herd. It
//!   becomes normal immediately if a single timeout caused it, the success has baseline latency, and few
//!   requests are queued.
//!
//! Many processes call one destination without coordination, so each measures in units of its own
//! demand. Ten thousand clients with one request per ten seconds each probe and drain in proportion to
//! their normal rate. The first sign of overload is the latency of successes, not their number: a
//! process that makes more attempts takes the share of the others.
//!
//! The default must not complete fewer requests than no retries. First attempts are therefore held back
//! only where most would fail. While the breaker is down, a queued request makes one late first
//! attempt before its time is over. A cooldown or the rate limit may prevent that. In a
//! high-traffic process only one in eight does so after three seconds of timeouts.
//!
//! A low-traffic process sees too little to measure gradually. It releases queued requests evenly, over
//! a multiple of the time in which they arrived.

mod attempt;
mod config;
mod evidence;
mod flapping;
mod limit;
mod measure;
mod probes;
mod queued;
mod rules;
mod run;

use core::time::Duration;

use crate::destination::budget::BreakerSignal;
use crate::destination::sharded_counters::{Healthy, HealthyCounts};
use crate::policy::error::PolicyError;
use crate::random::{FixedRandom, Random};
use crate::time::{Instant, NANOS_PER_SECOND};
pub use attempt::{AttemptKind, BreakerOutcome, BreakerPermit, Waiter};
pub use config::CircuitBreakerConfig;
use evidence::Evidence;
use flapping::Flapping;
use limit::{DEMAND_ONLY_FACTOR, Limit, NORMAL_FACTOR, StepScale};
use measure::{Baseline, Demand, HIGH_TRAFFIC_PER_SECOND, Share, Tally};
use probes::Down;
use queued::Queue;
#[cfg(feature = "ablation")]
pub use rules::BreakerRule;
#[cfg(not(feature = "ablation"))]
pub(crate) use rules::BreakerRule;
use run::Run;

/// Lower bound of the multiple of the demand in a process of high traffic.
const MIN_FACTOR: f64 = 0.05;
/// A process with fewer requests per second takes little from the destination, and its callers would wait longest.
const LOW_TRAFFIC_PER_SECOND: f64 = 3.0;
/// The budget's ratio is not raised for this long after overload, nor beyond this ratio. The margin adds
/// to the average need.
const OVERLOAD_MEMORY: Duration = Duration::from_secs(15);
const MAX_RATIO: f64 = 1.5;
const RATIO_MARGIN: f64 = 1.25;
/// A destination that responded to one of this many requests still responds. If four of five are
/// rejected, thirty rejections in a row happen by chance once in eight hundred times.
const RECENT_REQUESTS: f64 = 30.0;

/// So few queued requests make no thundering herd when they go immediately.
const SMALL_QUEUE_LEN: usize = 4;

/// State of the destination, as the breaker sees it.
#[derive(Clone, Copy, Debug)]
enum State {
    Normal,
    Limited(Limit),
    Down(Down),
}

/// Adaptive circuit breaker for one destination in one process. A plain value; the driver keeps it
/// behind a lock.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{FixedRandom, CircuitBreakerConfig, Instant};
/// use relent_core::destination::{AttemptKind, BreakerOutcome, CircuitBreaker, Waiter};
///
/// let mut breaker = CircuitBreaker::new(&CircuitBreakerConfig::DEFAULT)?;
/// let mut now = Instant::ORIGIN;
/// let caller = |id, now| Waiter { until: Instant::MAX, since: now, id };
/// let mut id = 0;
/// while let Some(pass) = breaker.admit(now, caller(id, now), AttemptKind::First) {
///     breaker.on_request(now);
///     breaker.on_end(now, pass, BreakerOutcome::Failed, &mut FixedRandom::at(0.5));
///     now = now.saturating_add(Duration::from_millis(20));
///     id += 1;
/// }
/// // Only failures: this request is queued, and becomes the first probe half a second later.
/// assert!(breaker.is_down());
/// now = now.saturating_add(Duration::from_millis(500));
/// let (released, pass) = breaker.release(now).expect("it is time");
/// assert_eq!((released.id, pass.is_probe()), (id, true));
/// breaker.on_end(now, pass, BreakerOutcome::Answered, &mut FixedRandom::at(0.5));
/// assert!(!breaker.is_down());
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Debug)]
pub struct CircuitBreaker {
    config: CircuitBreakerConfig,
    state: State,
    queue: Queue,
    demand: Demand,
    tally: Tally,
    baseline: Baseline,
    /// Share of attempts that fail; and share that fails by neither timeout nor overload.
    share: Share,
    plain_failure: Share,
    run: Run,
    /// Whether the first probe succeeded when the breaker was last down.
    false_alarm: bool,
    /// When the breaker last left the normal state; the demand at that time is kept.
    left_normal: Instant,
    /// Whether the last success since the breaker left the normal state was slow.
    slowed: bool,
    /// Mean latency of recent successes, in seconds.
    recent: f64,
    /// When overload was last seen.
    overload: Option<Instant>,
    evidence: Evidence,
    flapping: Flapping,
    step_scale: StepScale,
    /// Whether the process had low traffic at its last failure: few requests for a minute, no recent overload, and other
    /// attempts succeed. Its retries may then start when their backoff ends.
    low_traffic: bool,
}

impl CircuitBreaker {
    /// Creates a breaker in the normal state.
    ///
    /// # Errors
    /// Returns an error if the configured times contradict each other.
    pub fn new(config: &CircuitBreakerConfig) -> Result<Self, PolicyError> {
        config.check()?;
        Ok(Self::from_checked(config))
    }

    pub(crate) fn from_checked(config: &CircuitBreakerConfig) -> Self {
        Self {
            config: *config,
            state: State::Normal,
            queue: Queue::default(),
            demand: Demand::new(),
            tally: Tally::default(),
            baseline: Baseline::default(),
            share: Share::default(),
            plain_failure: Share::default(),
            run: Run::default(),
            false_alarm: false,
            left_normal: Instant::ORIGIN,
            slowed: false,
            recent: 0.0,
            overload: None,
            evidence: Evidence::default(),
            flapping: Flapping::new(),
            step_scale: StepScale::WHOLE,
            low_traffic: false,
        }
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &CircuitBreakerConfig {
        &self.config
    }

    /// Counts a request. Call it once for each, before its first attempt.
    pub fn on_request(&mut self, now: Instant) {
        self.demand.add(now);
    }

    /// Returns the period in which only failures, slow successes and a new fastest success can change
    /// the state; `None` if there is none. Until its end no evaluation is due, and no window of demand
    /// or latency restarts.
    pub(crate) fn healthy(&self, now: Instant) -> Option<Healthy> {
        let ends = self.demand.slot_ends(now)?.min(self.tally.earliest());
        let ends = ends.min(self.evidence.window_ends());
        (self.is_normal() && self.queue.len() == 0 && now < ends).then(|| Healthy {
            until: ends,
            shortest: self.evidence.shortest_of_window(),
        })
    }

    /// Adds the counts of a [healthy](Self::healthy) period.
    pub(crate) fn on_counted(&mut self, counted: &HealthyCounts) {
        self.demand.add_many(counted.at, counted.requests);
        if counted.successes > 0 {
            self.run.on_success(counted.answered);
            self.share.add_successes(counted.successes);
            self.plain_failure.add_successes(counted.successes);
            self.tally.add(counted.successes, counted.took);
        }
    }

    /// Whether the breaker is normal: nothing is held back, and the budget alone limits retries.
    /// Otherwise the breaker paces queued requests.
    #[must_use]
    pub const fn is_normal(&self) -> bool {
        matches!(self.state, State::Normal)
    }

    /// Whether the breaker is down: only probes are sent.
    #[must_use]
    pub const fn is_down(&self) -> bool {
        matches!(self.state, State::Down(_))
    }

    /// Whether a request that is queued without an attempt makes one now that its time is nearly over.
    /// Only a breaker that is down returns `true`. It does so for every request, or for one in eight
    /// after three seconds of timeouts in a high-traffic process. Call it once for each
    /// request.
    pub(crate) fn grants_late_first_attempt(&mut self, now: Instant) -> bool {
        let demand = self.demand.baseline(now);
        match &mut self.state {
            State::Down(down) => down.grants_late_first_attempt(now, demand),
            State::Normal | State::Limited(_) => false,
        }
    }

    /// Number of queued requests.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// The id of the queued request with the earliest deadline.
    pub(crate) fn first_queued(&self) -> Option<u64> {
        self.queue.first()
    }

    /// The ids of all queued requests, earliest deadline first.
    pub(crate) fn all_queued(&self) -> impl Iterator<Item = u64> {
        self.queue.all()
    }

    /// Whether this request is queued.
    pub(crate) fn has_queued(&self, caller: &Waiter) -> bool {
        self.queue.has(caller)
    }

    /// The ratio of retries to requests that hides the failures seen, while they do not depend on load;
    /// otherwise 0.
    #[must_use]
    pub fn ratio(&self, now: Instant) -> f64 {
        let measures_no_load =
            self.is_normal() && self.fails_after_service() && !self.saw_overload_recently(now);
        if !BreakerRule::Ratio.is_on() {
            return 0.0;
        }
        match measures_no_load || self.low_traffic && !self.is_down() {
            true => self.max_ratio(),
            false => 0.0,
        }
    }

    /// Whether a timeout may be taken for packet loss. If the breaker is limited and the last success
    /// was slow, the attempt waited in a queue instead.
    fn detects_packet_loss(&self) -> bool {
        match self.state {
            State::Normal => true,
            State::Limited(_) => !(self.slowed && BreakerRule::SlowSuccess.is_on()),
            State::Down(_) => false,
        }
    }

    /// Whether failures take about as long as successes, and so are not caused by load.
    fn fails_after_service(&self) -> bool {
        self.evidence
            .fails_after_service(self.recent_success_seconds(), &self.baseline)
    }

    /// Mean latency of recent successes, in seconds. Before the first evaluation, of those counted so
    /// far; 0 if there are none.
    fn recent_success_seconds(&self) -> f64 {
        match self.recent {
            0.0 => self.tally.mean().unwrap_or(0.0) / NANOS_PER_SECOND,
            recent => recent,
        }
    }

    /// Whether overload was seen recently.
    fn saw_overload_recently(&self, now: Instant) -> bool {
        BreakerRule::OverloadMemory.is_on()
            && self
                .overload
                .is_some_and(|seen| now < seen.saturating_add(OVERLOAD_MEMORY))
    }

    /// The findings that the budget of the destination acts on.
    pub fn signal(&mut self, now: Instant) -> BreakerSignal {
        BreakerSignal {
            ratio: self.ratio(now),
            has_queue: true,
            maybe_overload: !self.fails_after_service(),
            consecutive_failures: BreakerRule::Pause.is_on()
                && self.run.is_repeated()
                && !self.low_traffic,
            timeouts_are_loss: BreakerRule::CheapLoss.is_on()
                && self.detects_packet_loss()
                && self.evidence.is_lossy(),
            low_traffic: self.low_traffic,
            retries_free: !self.is_normal() && (!self.low_traffic || self.is_down()),
            limited: !(self.is_normal() || self.is_down()),
        }
    }

    /// Whether something succeeded within this many nanoseconds, and among the last few requests. An
    /// earlier success does not show that the destination still responds.
    pub(crate) fn has_success_within(&mut self, now: Instant, nanos: u64) -> bool {
        let few = RECENT_REQUESTS / self.demand.baseline(now).max(1e-9) * NANOS_PER_SECOND;
        let then = now.as_nanos().saturating_sub(nanos.min(few as u64));
        self.run.has_success_since(Instant::from_nanos(then))
    }

    /// Upper bound of the [ratio](Self::ratio) as long as nothing fails.
    pub(crate) fn max_ratio(&self) -> f64 {
        let failing = match self.low_traffic {
            true => self.share.get(),
            false => self.plain_failure.get(),
        };
        (RATIO_MARGIN * failing / (1.0 - failing)).min(MAX_RATIO)
    }

    /// Requests permission for an attempt. `None`: the request is queued until
    /// [`release`](Self::release) returns it, or the driver [forgets](Self::forget) it. An unpaid retry
    /// switches a normal breaker to limited, and goes when there is headroom.
    pub fn admit(
        &mut self,
        now: Instant,
        caller: Waiter,
        kind: AttemptKind,
    ) -> Option<BreakerPermit> {
        self.evaluate_if_due(now);
        if kind == AttemptKind::UnfundedRetry && self.is_normal() {
            let demand = self.demand.baseline(now);
            if self.run.is_long()
                && demand < HIGH_TRAFFIC_PER_SECOND
                && BreakerRule::UnpaidProbe.is_on()
            {
                // The retry comes after a random delay, so the first probe needs no jitter.
                self.go_down(now, demand, false, &mut FixedRandom::at(0.5));
            } else {
                self.limit(now, DEMAND_ONLY_FACTOR.max(1.0 + self.ratio(now)));
            }
        }
        let fresh = kind == AttemptKind::First;
        let funded = self.low_traffic && kind == AttemptKind::FundedRetry;
        let (go, probe) = match &mut self.state {
            State::Normal => (true, false),
            State::Limited(limit) => {
                let demand = self.demand.baseline(now);
                if fresh {
                    limit.on_first_attempt(now, demand);
                }
                ((fresh || funded) && limit.admits(now, demand), false)
            }
            State::Down(down) => {
                let go = fresh && down.admits(now, &self.config);
                (go, go)
            }
        };
        if go {
            return Some(BreakerPermit::new(now, probe));
        }
        if self.queue.len() == 0
            && let State::Limited(limit) = &mut self.state
        {
            limit.on_first_queued(now, self.demand.baseline(now));
        }
        self.queue.add(caller);
        None
    }

    /// The next queued request that may go now. Call it until it returns `None`, and again at
    /// [`next_release`](Self::next_release).
    pub fn release(&mut self, now: Instant) -> Option<(Waiter, BreakerPermit)> {
        self.evaluate_if_due(now);
        if self.next_release(now)? > now {
            return None;
        }
        let answered = now.plus_seconds(self.recent);
        let mut probe = false;
        let caller = match &mut self.state {
            State::Normal => self.queue.take_first(Instant::ORIGIN)?,
            State::Limited(limit) => {
                let caller = self.queue.take_first(answered)?;
                limit.on_release(now, self.demand.baseline(now));
                caller
            }
            State::Down(down) => {
                // The last one has the most time left for a response.
                let caller = self.queue.take_last()?;
                down.on_probe(now);
                probe = true;
                caller
            }
        };
        Some((caller, BreakerPermit::new(now, probe)))
    }

    /// When a queued request may go if nothing else happens before. `None` if no queued request could
    /// still get its response in time.
    pub fn next_release(&mut self, now: Instant) -> Option<Instant> {
        // A normal breaker holds back nothing, however little time is left.
        let answered = match self.state {
            State::Normal => Instant::ORIGIN,
            State::Limited(_) | State::Down(_) => now.plus_seconds(self.recent),
        };
        if !self.queue.has_any(answered) {
            return None;
        }
        Some(match &self.state {
            State::Normal => now,
            // It releases one request, or ends by itself.
            State::Limited(limit) => {
                let demand = self.demand.baseline(now);
                let spreads = limit
                    .spread_at(OVERLOAD_MEMORY)
                    .filter(|_| demand < HIGH_TRAFFIC_PER_SECOND);
                limit
                    .next(demand)
                    .min(limit.until)
                    .min(spreads.unwrap_or(Instant::MAX))
            }
            State::Down(down) => down.next(&self.config),
        })
    }

    /// Removes a request from the queue. Does nothing if it is not queued.
    pub fn forget(&mut self, caller: &Waiter) {
        self.queue.remove(caller);
    }

    /// Changes the configuration. The planned probe comes no later than the new times allow.
    pub(crate) fn apply(&mut self, now: Instant, config: &CircuitBreakerConfig) {
        self.config = *config;
        let demand = self.demand.baseline(now);
        match &mut self.state {
            State::Normal => {}
            State::Limited(limit) => limit.spread_within(now, config.max_queue_time / 2, demand),
            State::Down(down) => down.apply(now, config, demand),
        }
    }

    /// Reports the outcome of an attempt.
    pub fn on_end(
        &mut self,
        now: Instant,
        permit: BreakerPermit,
        ended: BreakerOutcome,
        random: &mut (impl Random + ?Sized),
    ) {
        match ended {
            BreakerOutcome::Answered => {
                let took = now.nanos_since(permit.started);
                self.evidence.on_response(now, took);
                self.run.on_success(now);
                self.share.add(false);
                self.plain_failure.add(false);
                if !self.is_normal() {
                    self.slowed = self.baseline.is_slow_success(took as f64);
                }
                if let State::Down(down) = self.state {
                    self.false_alarm = down.is_false_alarm();
                    let factor = self.flapping.on_up(now, self.step_scale.headroom());
                    // A queue would have made it slow. So a packet was lost, or one of several nodes is
                    // down.
                    let few = self.queue.len() <= SMALL_QUEUE_LEN;
                    if self.false_alarm
                        && BreakerRule::LoneTimeout.is_on()
                        && down.by_lone_timeout
                        && few
                        && self.baseline.took() > 0.0
                        && !self.slowed
                    {
                        return self.open(now);
                    }
                    return self.limit(now, factor);
                }
                self.tally.add(1, took);
            }
            BreakerOutcome::Failed | BreakerOutcome::Overloaded | BreakerOutcome::TimedOut => {
                self.on_failure(now, permit, ended, random);
                if self.is_down() {
                    return;
                }
            }
            BreakerOutcome::Deferred => {
                let demand = self.demand.baseline(now);
                if permit.probe
                    && let State::Down(down) = &mut self.state
                {
                    down.on_deferred_probe(now, demand, random);
                }
            }
            BreakerOutcome::Unknown => {
                if permit.probe
                    && let State::Down(down) = &mut self.state
                {
                    down.on_lost_probe();
                }
            }
        }
        self.evaluate_if_due(now);
    }

    fn on_failure(
        &mut self,
        now: Instant,
        permit: BreakerPermit,
        ended: BreakerOutcome,
        random: &mut (impl Random + ?Sized),
    ) {
        let demand = self.demand.baseline(now);
        let silence = self.baseline.silence(demand);
        let plain_failure = ended == BreakerOutcome::Failed;
        let knows = (&self.baseline, &self.run);
        let lost = ended == BreakerOutcome::TimedOut
            && self.detects_packet_loss()
            && self.evidence.on_timeout(
                now,
                permit.started,
                (self.recent, demand),
                knows,
                self.false_alarm && BreakerRule::LossAfterFalseAlarm.is_on(),
            );
        // In a process with few requests, a lost attempt proves no silence: another one has just succeeded.
        let silent = ended == BreakerOutcome::TimedOut
            && !(lost && demand < HIGH_TRAFFIC_PER_SECOND && BreakerRule::LossIsNoSilence.is_on())
            && now.nanos_since(permit.started) >= silence;
        self.run.on_failure(permit.started, silent, &self.share);
        self.low_traffic = BreakerRule::LowTraffic.is_on()
            && demand < LOW_TRAFFIC_PER_SECOND
            && (self.demand.is_rate_known(now)
                || BreakerRule::KnownAfterAMinute.is_on() && self.demand.covers_a_minute(now))
            && !self.run.is_long()
            && !self.saw_overload_recently(now);
        self.share.add(true);
        let ended = if lost { BreakerOutcome::Failed } else { ended };
        let harmless = ended == BreakerOutcome::Failed;
        if harmless {
            let took = now.nanos_since(permit.started);
            if !lost {
                self.evidence.on_response(now, took);
            }
            self.evidence
                .on_failure(took, self.recent_success_seconds(), &self.baseline);
        }
        self.plain_failure.add(harmless);
        self.flapping.on_failure(permit.started, plain_failure);
        let overloaded = ended != BreakerOutcome::Failed;
        if let State::Down(down) = &mut self.state {
            if permit.probe {
                let timed_out = ended == BreakerOutcome::TimedOut;
                down.on_failed_probe(now, &self.config, demand, timed_out, random);
            }
            return;
        }
        self.tally.failure(ended);
        // A process with more requests soon sees a success if the alarm is false again.
        let is_cautious =
            BreakerRule::TwoTimeouts.is_on() && self.false_alarm && demand < LOW_TRAFFIC_PER_SECOND;
        if self.run.is_outage(now, demand) || self.run.is_silence(now, silence, is_cautious) {
            if overloaded && !self.is_normal() {
                self.step_scale.halve();
            }
            self.go_down(now, demand, ended == BreakerOutcome::TimedOut, random);
        }
    }

    fn go_down(
        &mut self,
        now: Instant,
        demand: f64,
        timed_out: bool,
        random: &mut (impl Random + ?Sized),
    ) {
        let is_flapping = self.flapping.on_down(now, self.run.since());
        self.leave_normal(now);
        let failing_since = self.run.since();
        let mut down = Down::new(now, failing_since, &self.config, demand, timed_out, random);
        down.is_flapping = is_flapping;
        down.by_lone_timeout = self.run.is_lone_timeout();
        self.state = State::Down(down);
    }

    fn leave_normal(&mut self, now: Instant) {
        if self.is_normal() {
            self.slowed = false;
            self.left_normal = now;
            self.demand.keep(now);
        }
    }

    fn limit(&mut self, now: Instant, factor: f64) {
        self.leave_normal(now);
        self.keep_queued(now);
        self.tally.clear(now);
        let demand = self.demand.baseline(now);
        let mut limit = Limit::new(now, factor, &self.baseline);
        if BreakerRule::Spread.is_on() && self.is_down() && demand < HIGH_TRAFFIC_PER_SECOND {
            let longest = self.config.max_queue_time / 2;
            limit.spread(now, self.left_normal, longest, self.queue.len());
        }
        limit.next = now.plus_seconds(1.0 / limit.pace(demand));
        self.state = State::Limited(limit);
    }

    fn open(&mut self, now: Instant) {
        self.tally.clear(now);
        self.flapping.on_growth(NORMAL_FACTOR);
        self.step_scale = StepScale::WHOLE;
        self.state = State::Normal;
    }

    /// Evaluates the counts when there are enough of them, or enough time has passed.
    fn evaluate_if_due(&mut self, now: Instant) {
        if let State::Limited(limit) = self.state
            && now >= limit.until
        {
            return self.open(now);
        }
        if self.tally.is_due(now) {
            self.evaluate(now);
        }
        self.spread_if_due(now);
    }

    /// A low-traffic process may see nothing that would end its limit. After a while without contrary
    /// evidence, queued requests are spread as after an outage.
    fn spread_if_due(&mut self, now: Instant) {
        let State::Limited(limit) = self.state else {
            return;
        };
        if !BreakerRule::SpreadLater.is_on() {
            return;
        }
        if limit.spread_at(OVERLOAD_MEMORY).is_some_and(|at| now >= at) {
            let demand = self.demand.baseline(now);
            if demand < HIGH_TRAFFIC_PER_SECOND && self.queue.len() > 0 {
                let mut limit = limit;
                let longest = self.config.max_queue_time / 2;
                limit.spread(now, self.left_normal, longest, self.queue.len());
                limit.next = limit.next.min(now.plus_seconds(1.0 / limit.pace(demand)));
                self.state = State::Limited(limit);
            }
        }
    }

    /// Queued requests count as demand, since their callers make no new ones.
    fn keep_queued(&mut self, now: Instant) {
        if BreakerRule::QueuedDemand.is_on() {
            let came_in = now.nanos_since(self.left_normal);
            self.demand.keep_queued(self.queue.len(), came_in);
        }
    }

    fn evaluate(&mut self, now: Instant) {
        let tally = self.tally;
        self.tally.clear(now);
        let mut rising = 0.0;
        if let Some(mean) = tally.mean() {
            let mean = mean / NANOS_PER_SECOND;
            rising = (mean - self.recent).max(0.0) / tally.seconds(now).max(1e-9);
            self.recent = mean;
        }
        if !self.is_normal() {
            self.keep_queued(now);
        }
        let demand = self.demand.baseline(now);
        // Do not hold back attempts that would succeed without retries.
        let least = if BreakerRule::HoldBack.is_on()
            && demand >= HIGH_TRAFFIC_PER_SECOND
            && tally.loses_little_if_held()
        {
            MIN_FACTOR
        } else {
            DEMAND_ONLY_FACTOR
        };
        let slow = self.baseline.is_slow(&tally);
        let served = self.fails_after_service();
        let failing = self.baseline.fails_above_baseline(&tally, served);
        let limited_by_server = BreakerRule::MostlyRejected.is_on()
            && demand >= HIGH_TRAFFIC_PER_SECOND
            && tally.is_mostly_rejected();
        let overload =
            failing && (slow || limited_by_server || self.baseline.is_overload_by_timeouts(&tally));
        if overload {
            self.overload = Some(now);
            self.low_traffic = false;
        } else if !slow && tally.is_faultless() {
            self.flapping.on_faultless();
        }
        // Under packet loss, a low-traffic process cannot measure gradually.
        let lost = demand < HIGH_TRAFFIC_PER_SECOND
            && served
            && tally.has_only_plain_failures()
            && self.evidence.is_lossy();
        let kept = tally.kept(&self.baseline);
        match &mut self.state {
            State::Normal if overload => {
                if tally.has_many_failures() && BreakerRule::Overload.is_on() {
                    self.limit(now, kept.max(least));
                }
            }
            State::Normal => {
                if !slow {
                    self.baseline.learn(&tally);
                }
            }
            State::Limited(limit) => {
                if overload {
                    limit.cut(now, kept, least);
                } else if slow {
                    limit.hold(now, rising);
                } else if failing && lost {
                    return self.open(now);
                } else if failing && !served {
                    if limit.is_demand_only() {
                        self.baseline.relearn_failure_share(&tally);
                    } else {
                        self.step_scale.halve();
                    }
                    limit.reduce_extra(now, kept, &self.baseline);
                } else {
                    if failing {
                        // The failures are not caused by load, and are no reason to reduce the limit.
                        self.baseline.relearn_failure_share(&tally);
                    }
                    if BreakerRule::LearnWhileLimited.is_on() {
                        self.baseline.learn_while_limited(&tally);
                    }
                    limit.grow(tally.weight(), &mut self.step_scale);
                    self.flapping.on_growth(limit.factor);
                    if self.queue.len() == 0 && limit.factor >= NORMAL_FACTOR {
                        return self.open(now);
                    }
                }
                if failing && tally.has_no_timeouts() && BreakerRule::Replace.is_on() {
                    limit.set_replaceable_share(tally.served(now), demand);
                }
                limit.next = limit.next.min(now.plus_seconds(1.0 / limit.pace(demand)));
            }
            State::Down(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
