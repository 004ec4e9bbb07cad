//! Circuit breaker: tracks whether a destination is up and how many attempts it can sustain.
//!
//! A retry budget limits retries by a ratio, and no fixed ratio is right. To hide independent failures
//! of rate p it needs p/(1 − p). In overload it has to be nearly zero (see *retry budget* in the rules
//! of decision). The breaker tells the two cases apart and acts accordingly:
//!
//! - **Normal**: every attempt is admitted. While attempts fail but successes keep their baseline
//!   latency, the failures do not depend on load. [`Gate::ratio`] then raises the budget's ratio to the
//!   value that hides them.
//! - **Limited**: more attempts fail than the baseline, and successes are slow or attempts time out:
//!   the destination has a queue. Retries that the budget cannot pay for also start this state. All
//!   attempts together are limited to a multiple of the demand. Failures reduce the multiple. It grows
//!   in steps while nothing fails and successes are fast (AIMD). It holds while successes are slow, and
//!   shrinks while they become slower. So the server's queue is never empty and seldom full. New
//!   requests go first; queued ones go as headroom allows. The step is halved if more attempts fail
//!   right after it, or if the breaker then goes down for a load-induced reason.
//! - **Down**: more attempts failed in a row than chance explains, or one timed out and nothing
//!   succeeded meanwhile. Requests are queued, and one probe at a time is sent. After a successful
//!   probe the breaker is limited first, so that the queue does not become a thundering herd. It
//!   becomes normal immediately if timeouts alone caused it, the success has baseline latency, and few
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
//! high-traffic process only one in eight does so after three seconds of timeouts or overload.
//!
//! A low-traffic process sees too little to measure gradually. As soon as anything fails, one success
//! far slower than the baseline counts as overload. The process releases queued requests evenly, over a
//! multiple of the time in which they arrived.

mod closed;
mod config;
mod evidence;
mod flapping;
mod limit;
mod measure;
mod parked;
mod run;

use core::time::Duration;

use crate::batch::Counted;
use crate::budget::Lesson;
use crate::error::PolicyError;
use crate::failure::{Cause, Failure, Hop, Kind, Scope};
use crate::random::Random;
use crate::time::Instant;
use closed::Closed;
pub use config::GateConfig;
use evidence::Evidence;
use flapping::Flapping;
use limit::{BARE, Limit, Stride};
use measure::{Demand, Share, Tally, Usual};
use parked::Parked;
use run::Run;

/// A request that waits for permission to make an attempt. Among queued requests, the one with the
/// earliest deadline goes first, then the one that has waited longest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Caller {
    /// When the request no longer needs a response; [`Instant::MAX`] for never.
    pub until: Instant,
    /// When the request was made.
    pub since: Instant,
    /// Distinguishes the requests at one breaker; chosen by the driver.
    pub id: u64,
}

/// The kind of attempt for which permission is requested.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Claim {
    /// The first attempt of a request. It would also be made with retries disabled.
    First,
    /// A retry that the budget has paid for, or that needs no payment.
    Paid,
    /// A retry that an exhausted budget could not pay for. It goes only where the breaker finds
    /// headroom. See
    /// [`BudgetConfig::wait_when_empty`](crate::BudgetConfig::wait_when_empty).
    Unpaid,
}

/// Permit for one attempt. Return it with [`Gate::on_end`] when the attempt is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pass {
    started: Instant,
    probe: bool,
}

impl Pass {
    /// A permit for an attempt that starts now: without a breaker, or when something else delayed the
    /// attempt after the breaker had admitted it.
    #[must_use]
    pub const fn new(started: Instant, probe: bool) -> Self {
        Self { started, probe }
    }

    /// When the permit was issued, which is when the attempt starts.
    #[must_use]
    pub const fn started(&self) -> Instant {
        self.started
    }

    /// Whether the attempt is a probe of a destination that is down.
    #[must_use]
    pub const fn is_probe(&self) -> bool {
        self.probe
    }
}

/// Outcome of an attempt, as far as the breaker is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The destination did the work, or reported a permanent failure: it is up.
    Answered,
    /// It failed with an error that is neither overload nor a timeout.
    Failed,
    /// The destination rejected it because of overload.
    Overloaded,
    /// It timed out.
    TimedOut,
    /// Rejected with a `Retry-After`. Not counted as overload, because the server controls its own
    /// load.
    Deferred,
    /// No information: the attempt was cancelled.
    Unknown,
}

impl Ended {
    /// The outcome of an attempt with this failure.
    #[must_use]
    pub const fn of(failure: &Failure) -> Self {
        match (failure.kind, failure.cause) {
            // It responded with the redirect to the host that failed.
            _ if matches!(failure.hop, Hop::Elsewhere) => Self::Answered,
            (Kind::Permanent, _) => Self::Answered,
            _ if matches!(failure.scope, Scope::Request) => Self::Answered,
            (Kind::Throttled, _) if failure.hint.delay_nanos().is_some() => Self::Deferred,
            (Kind::Throttled | Kind::Overloaded, _) => Self::Overloaded,
            (_, Cause::Timeout) => Self::TimedOut,
            (Kind::NotProcessed | Kind::Ambiguous, _) => Self::Failed,
        }
    }
}

/// The multiple of the demand from which the limited state ends, if nothing is queued.
const OPEN: f64 = 1.2;
/// Requests per second from which a process sees enough to hold back first attempts; slower processes
/// never do. And the lower bound of the multiple.
const BUSY: f64 = 4.0;
const LEAST: f64 = 0.05;
/// The budget's ratio is not raised for this long after overload, nor above this share of failures, nor
/// beyond this ratio. The margin adds to the average need.
const BOUND: Duration = Duration::from_secs(15);
const HOPELESS: f64 = 0.7;
const WIDEST: f64 = 1.5;
const MARGIN: f64 = 1.25;
const SECOND: f64 = 1e9;
/// A destination that responded to one of this many requests still responds. If four of five are
/// rejected, thirty rejections in a row happen by chance once in eight hundred times.
const FEW: f64 = 30.0;

/// So few queued requests make no thundering herd when they go immediately.
const FEW_PARKED: usize = 4;

/// A period in which requests and fast successes do not change the state of a normal breaker. They can
/// be counted and delivered later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calm {
    /// The end of the period.
    pub(crate) until: Instant,
    /// A success that took more nanoseconds is slow.
    pub(crate) longest: u64,
    /// A success that took fewer nanoseconds is the fastest of the window.
    pub(crate) shortest: u64,
}

/// State of the destination, as the breaker sees it.
#[derive(Clone, Copy, Debug)]
enum State {
    Open,
    Limited(Limit),
    Closed(Closed),
}

/// Adaptive circuit breaker for one destination in one process. A plain value; the driver keeps it
/// behind a lock.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Caller, Claim, Draw, Ended, Gate, GateConfig, Instant};
///
/// let mut gate = Gate::new(&GateConfig::DEFAULT)?;
/// let mut now = Instant::ORIGIN;
/// let caller = |id, now| Caller { until: Instant::MAX, since: now, id };
/// let mut id = 0;
/// while let Some(pass) = gate.admit(now, caller(id, now), Claim::First) {
///     gate.on_request(now);
///     gate.on_end(now, pass, Ended::Failed, &mut Draw::at(0.5));
///     now = now.saturating_add(Duration::from_millis(20));
///     id += 1;
/// }
/// // Only failures: this request is queued, and becomes the first probe half a second later.
/// assert!(gate.is_closed());
/// now = now.saturating_add(Duration::from_millis(500));
/// let (released, pass) = gate.release(now).expect("it is time");
/// assert_eq!((released.id, pass.is_probe()), (id, true));
/// gate.on_end(now, pass, Ended::Answered, &mut Draw::at(0.5));
/// assert!(!gate.is_closed());
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Debug)]
pub struct Gate {
    config: GateConfig,
    state: State,
    parked: Parked,
    demand: Demand,
    tally: Tally,
    usual: Usual,
    /// Share of attempts that fail; and share that fails by neither timeout nor overload.
    share: Share,
    at_once: Share,
    run: Run,
    /// Whether the first probe succeeded when the breaker was last down.
    false_alarm: bool,
    /// When the breaker last left the normal state; the demand at that time is kept.
    left_open: Instant,
    /// When the last success was far slower than the baseline; `None` if it was not.
    slowed: Option<Instant>,
    /// Mean latency of recent successes, in seconds.
    recent: f64,
    /// When overload was last seen.
    overload: Option<Instant>,
    evidence: Evidence,
    flapping: Flapping,
    stride: Stride,
}

impl Gate {
    /// Creates a breaker in the normal state.
    ///
    /// # Errors
    /// Returns an error if the configured times contradict each other.
    pub fn new(config: &GateConfig) -> Result<Self, PolicyError> {
        config.check()?;
        Ok(Self::from_checked(config))
    }

    pub(crate) fn from_checked(config: &GateConfig) -> Self {
        Self {
            config: *config,
            state: State::Open,
            parked: Parked::default(),
            demand: Demand::new(),
            tally: Tally::default(),
            usual: Usual::default(),
            share: Share::default(),
            at_once: Share::default(),
            run: Run::default(),
            false_alarm: false,
            left_open: Instant::ORIGIN,
            slowed: None,
            recent: 0.0,
            overload: None,
            evidence: Evidence::default(),
            flapping: Flapping::new(),
            stride: Stride::WHOLE,
        }
    }

    /// Reads each part, to prefetch it: see [`Outbound::touch`](crate::Outbound::touch).
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        self.demand.touch()
            ^ self.config.first_probe.as_secs()
            ^ self.config.patience.as_secs()
            ^ u64::from(self.is_open())
            ^ u64::from(self.evidence.is_lossy())
            ^ self.parked.len() as u64
            ^ self.tally.earliest().as_nanos()
            ^ self.usual.took().to_bits()
            ^ self.share.get().to_bits()
            ^ self.at_once.get().to_bits()
            ^ self.left_open.as_nanos()
            ^ self.recent.to_bits()
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &GateConfig {
        &self.config
    }

    /// Counts a request. Call it once for each, before its first attempt.
    pub fn on_request(&mut self, now: Instant) {
        self.demand.add(now);
    }

    /// Returns the period in which only failures, slow successes and a new fastest success can change
    /// the state; `None` if there is none. Until its end no evaluation is due, and no window of demand
    /// or latency restarts.
    pub(crate) fn calm(&self, now: Instant) -> Option<Calm> {
        let ends = self.demand.slot_ends(now)?.min(self.tally.earliest());
        let ends = ends.min(self.evidence.window_ends());
        // If many attempts have failed, one more success can make an early evaluation due. Otherwise
        // successes only lower the share of failures.
        let nothing_pends = self.parked.len() == 0 && !self.tally.is_many();
        (self.is_open() && nothing_pends && now < ends).then(|| Calm {
            until: ends,
            longest: self.usual.longest_fast(),
            shortest: self.evidence.shortest_of_window(),
        })
    }

    /// Adds the counts of a [calm](Self::calm) period.
    pub(crate) fn on_counted(&mut self, counted: &Counted) {
        self.demand.add_many(counted.at, counted.requests);
        if counted.successes > 0 {
            self.run.on_success(counted.answered);
            self.share.add_successes(counted.successes);
            self.at_once.add_successes(counted.successes);
            self.slowed = None;
            self.tally.add(counted.successes, counted.took);
        }
    }

    /// Whether the breaker is normal: nothing is held back, and the budget alone limits retries.
    /// Otherwise the breaker paces queued requests.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Whether the breaker is down: only probes are sent.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed(_))
    }

    /// Whether a request that is queued without an attempt makes one now that its time is nearly over.
    /// Only a breaker that is down returns `true`. It does so for every request, or for one in eight
    /// after three seconds of timeouts or overload in a high-traffic process. Call it once for each
    /// request.
    pub(crate) fn takes_chance(&mut self, now: Instant) -> bool {
        let demand = self.demand.usual(now);
        match &mut self.state {
            State::Closed(closed) => closed.takes_chance(now, demand),
            State::Open | State::Limited(_) => false,
        }
    }

    /// Number of queued requests.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    /// The id of the queued request with the earliest deadline.
    pub(crate) fn first_parked(&self) -> Option<u64> {
        self.parked.first()
    }

    /// The ids of all queued requests, earliest deadline first.
    pub(crate) fn all_parked(&self) -> impl Iterator<Item = u64> {
        self.parked.all()
    }

    /// Whether this request is queued.
    pub(crate) fn has_parked(&self, caller: &Caller) -> bool {
        self.parked.has(caller)
    }

    /// The ratio of retries to requests that hides the failures seen, while they do not depend on load;
    /// otherwise 0.
    #[must_use]
    pub fn ratio(&self, now: Instant) -> f64 {
        let bound = self.is_bound(now) || self.at_once.is_above(HOPELESS);
        match self.is_open() && self.is_served() && !bound {
            true => self.highest_ratio(),
            false => 0.0,
        }
    }

    /// Whether a timeout may be taken for packet loss. If the breaker is limited and the last success
    /// was slow, the attempt waited in a queue instead.
    fn hears_losses(&self) -> bool {
        match self.state {
            State::Open => true,
            State::Limited(_) => self.slowed.is_none(),
            State::Closed(_) => false,
        }
    }

    /// Whether failures take about as long as successes, and so are not caused by load.
    fn is_served(&self) -> bool {
        self.evidence.is_served(self.lately(), &self.usual)
    }

    /// Mean latency of recent successes, in seconds. Before the first evaluation, of those counted so
    /// far; 0 if there are none.
    fn lately(&self) -> f64 {
        match self.recent {
            0.0 => self.tally.mean().unwrap_or(0.0) / SECOND,
            recent => recent,
        }
    }

    /// Whether overload was seen recently.
    fn is_bound(&self, now: Instant) -> bool {
        self.overload
            .is_some_and(|seen| now < seen.saturating_add(BOUND))
    }

    /// The findings that the budget of the destination acts on.
    pub fn lesson(&mut self, now: Instant) -> Lesson {
        Lesson {
            ratio: self.ratio(now),
            gated: true,
            suspicious: !self.is_served(),
            repeated: self.run.is_repeated(),
            lossy: self.hears_losses() && self.evidence.is_lossy(),
            // A process with few requests cannot tell whether it is one of very many.
            waived: !self.is_open() && self.demand.is_known(now),
            limited: !self.is_open() && !self.is_closed(),
        }
    }

    /// Whether something succeeded within this many nanoseconds, and among the last few requests. An
    /// earlier success does not show that the destination still responds.
    pub(crate) fn has_answered_within(&mut self, now: Instant, nanos: u64) -> bool {
        let few = FEW / self.demand.usual(now).max(1e-9) * SECOND;
        let then = now.as_nanos().saturating_sub(nanos.min(few as u64));
        self.run.has_answered_since(Instant::from_nanos(then))
    }

    /// Upper bound of the [ratio](Self::ratio) as long as nothing fails.
    pub(crate) fn highest_ratio(&self) -> f64 {
        let failing = self.at_once.get();
        (MARGIN * failing / (1.0 - failing)).min(WIDEST)
    }

    /// Requests permission for an attempt. `None`: the request is queued until
    /// [`release`](Self::release) returns it, or the driver [forgets](Self::forget) it. An unpaid retry
    /// switches a normal breaker to limited, and goes when there is headroom.
    pub fn admit(&mut self, now: Instant, caller: Caller, claim: Claim) -> Option<Pass> {
        self.judge_in_time(now);
        if claim == Claim::Unpaid && self.is_open() {
            self.limit(now, BARE.max(1.0 + self.ratio(now)));
        }
        let fresh = claim == Claim::First;
        let (go, probe) = match &mut self.state {
            State::Open => (true, false),
            State::Limited(limit) => {
                let demand = self.demand.usual(now);
                if fresh {
                    limit.on_fresh(now, demand);
                }
                (fresh && limit.admits(now, demand), false)
            }
            State::Closed(closed) => {
                let go = fresh && closed.admits(now, &self.config);
                (go, go)
            }
        };
        if go {
            return Some(Pass::new(now, probe));
        }
        if self.parked.len() == 0
            && let State::Limited(limit) = &mut self.state
        {
            limit.on_first_parked(now, self.demand.usual(now));
        }
        self.parked.add(caller);
        None
    }

    /// The next queued request that may go now. Call it until it returns `None`, and again at
    /// [`next_release`](Self::next_release).
    pub fn release(&mut self, now: Instant) -> Option<(Caller, Pass)> {
        self.judge_in_time(now);
        if self.next_release(now)? > now {
            return None;
        }
        let answered = after(now, self.recent);
        let mut probe = false;
        let caller = match &mut self.state {
            State::Open => self.parked.take_first(Instant::ORIGIN)?,
            State::Limited(limit) => {
                let caller = self.parked.take_first(answered)?;
                limit.on_release(now, self.demand.usual(now));
                caller
            }
            State::Closed(closed) => {
                // The last one has the most time left for a response.
                let caller = self.parked.take_last()?;
                closed.on_probe(now);
                probe = true;
                caller
            }
        };
        Some((caller, Pass::new(now, probe)))
    }

    /// When a queued request may go if nothing else happens before. `None` if no queued request could
    /// still get its response in time.
    pub fn next_release(&mut self, now: Instant) -> Option<Instant> {
        // A normal breaker holds back nothing, however little time is left.
        let answered = match self.state {
            State::Open => Instant::ORIGIN,
            State::Limited(_) | State::Closed(_) => after(now, self.recent),
        };
        if !self.parked.has_any(answered) {
            return None;
        }
        Some(match &self.state {
            State::Open => now,
            // It releases one request, or ends by itself.
            State::Limited(limit) => {
                let demand = self.demand.usual(now);
                let ends = match self.slowed {
                    None => limit.until,
                    Some(_) => Instant::MAX,
                };
                let spreads = limit.untroubled(BOUND).filter(|_| demand < BUSY);
                limit
                    .next(demand)
                    .min(ends)
                    .min(spreads.unwrap_or(Instant::MAX))
            }
            State::Closed(closed) => closed.next(&self.config),
        })
    }

    /// Removes a request from the queue. Does nothing if it is not queued.
    pub fn forget(&mut self, caller: &Caller) {
        self.parked.remove(caller);
    }

    /// Changes the configuration. The planned probe comes no later than the new times allow.
    pub(crate) fn apply(&mut self, now: Instant, config: &GateConfig) {
        self.config = *config;
        let demand = self.demand.usual(now);
        match &mut self.state {
            State::Open => {}
            State::Limited(limit) => limit.spread_within(now, config.patience / 2, demand),
            State::Closed(closed) => closed.apply(now, config, demand),
        }
    }

    /// Reports the outcome of an attempt.
    pub fn on_end(
        &mut self,
        now: Instant,
        pass: Pass,
        ended: Ended,
        random: &mut (impl Random + ?Sized),
    ) {
        match ended {
            Ended::Answered => {
                let took = now.nanos_since(pass.started);
                self.evidence.on_answer(now, took);
                self.run.on_success(now);
                self.share.add(false);
                self.at_once.add(false);
                self.slowed = self.usual.is_far_below(took).then_some(now);
                if let State::Closed(closed) = self.state {
                    self.false_alarm = closed.is_unfounded();
                    let factor = self.flapping.on_opened(now, self.stride.headroom());
                    // A queue would have made it slow. So a packet was lost, or one of several nodes is
                    // down.
                    let few = self.parked.len() <= FEW_PARKED;
                    if self.false_alarm && closed.lone && few && self.usual.is_as_fast(took as f64)
                    {
                        return self.open(now);
                    }
                    return self.limit(now, factor);
                }
                self.tally.add(1, took);
            }
            Ended::Failed | Ended::Overloaded | Ended::TimedOut => {
                self.on_failure(now, pass, ended, random);
                if self.is_closed() {
                    return;
                }
            }
            Ended::Deferred => {
                let demand = self.demand.usual(now);
                if pass.probe
                    && let State::Closed(closed) = &mut self.state
                {
                    closed.on_deferred_probe(now, demand, random);
                }
            }
            Ended::Unknown => {
                if pass.probe
                    && let State::Closed(closed) = &mut self.state
                {
                    closed.on_lost_probe();
                }
            }
        }
        self.judge_soon(now);
        self.judge_in_time(now);
    }

    fn on_failure(
        &mut self,
        now: Instant,
        pass: Pass,
        ended: Ended,
        random: &mut (impl Random + ?Sized),
    ) {
        let demand = self.demand.usual(now);
        let silence = self.usual.silence(demand);
        let at_once = ended == Ended::Failed;
        let silent = ended == Ended::TimedOut && now.nanos_since(pass.started) >= silence;
        self.run.on_failure(pass.started, silent, &self.share);
        self.share.add(true);
        let knows = (&self.usual, &self.run, &self.share);
        let lost = ended == Ended::TimedOut
            && self.hears_losses()
            && self.evidence.on_timeout(
                now,
                pass.started,
                (self.recent, demand),
                knows,
                self.false_alarm,
            );
        let ended = if lost { Ended::Failed } else { ended };
        let harmless = ended == Ended::Failed;
        if harmless {
            let took = now.nanos_since(pass.started);
            if !lost {
                self.evidence.on_answer(now, took);
            }
            self.evidence.on_failure(took, self.lately(), &self.usual);
        }
        self.at_once.add(harmless);
        self.flapping.on_failure(pass.started, at_once);
        let overloaded = ended != Ended::Failed;
        if let State::Closed(closed) = &mut self.state {
            if pass.probe {
                closed.on_failed_probe(now, &self.config, demand, overloaded, random);
            }
            return;
        }
        self.tally.failure(ended);
        if self.run.is_outage(now, demand) || self.run.is_silence(now, silence, self.false_alarm) {
            let flaps = self.flapping.on_closed(now, self.run.since());
            if overloaded && !self.is_open() {
                self.stride.halve();
            }
            self.leave_open(now);
            let mut closed = Closed::new(now, &self.config, demand, overloaded, random);
            closed.flaps = flaps;
            closed.lone = self.run.is_lone();
            self.state = State::Closed(closed);
        }
    }

    fn leave_open(&mut self, now: Instant) {
        if self.is_open() {
            self.left_open = now;
            self.demand.keep(now);
        }
    }

    fn limit(&mut self, now: Instant, factor: f64) {
        self.leave_open(now);
        self.keep_parked(now);
        self.tally.clear(now);
        let demand = self.demand.usual(now);
        let mut limit = Limit::new(now, factor, &self.usual);
        if self.is_closed() && demand < BUSY {
            let longest = self.config.patience / 2;
            limit.spread(now, self.left_open, longest, self.parked.len());
        }
        limit.next = after(now, 1.0 / limit.pace(demand));
        self.state = State::Limited(limit);
    }

    fn open(&mut self, now: Instant) {
        self.tally.clear(now);
        self.flapping.on_growth(OPEN);
        self.stride = Stride::WHOLE;
        self.state = State::Open;
    }

    /// Evaluates early. In a low-traffic process, a failure and a success far slower than the baseline
    /// are overload, unless the failure took full service time. A high-traffic process need not wait
    /// for half a second.
    fn judge_soon(&mut self, now: Instant) {
        let served = self.is_served();
        if !self.is_open() || !self.usual.is_failing(&self.tally, served) {
            return;
        }
        if self.tally.is_clear(now) && self.tally.is_many() && self.usual.is_slow(&self.tally) {
            return self.judge(now);
        }
        let slowed = self
            .slowed
            .is_some_and(|then| then.saturating_add(BOUND) > now);
        if slowed && !(served && self.tally.is_plain()) && self.demand.usual(now) < BUSY {
            self.overload = Some(now);
            self.limit(now, BARE);
        }
    }

    /// Evaluates the counts when there are enough of them, or enough time has passed.
    fn judge_in_time(&mut self, now: Instant) {
        if let State::Limited(limit) = self.state
            && now >= limit.until
            && self.slowed.is_none()
        {
            return self.open(now);
        }
        if self.tally.is_due(now) {
            self.judge(now);
        }
        self.spread_in_time(now);
    }

    /// A low-traffic process may see nothing that would end its limit. After a while without contrary
    /// evidence, queued requests are spread as after an outage.
    fn spread_in_time(&mut self, now: Instant) {
        let State::Limited(limit) = self.state else {
            return;
        };
        if limit.untroubled(BOUND).is_some_and(|at| now >= at) {
            let demand = self.demand.usual(now);
            if demand < BUSY && self.parked.len() > 0 {
                let mut limit = limit;
                let longest = self.config.patience / 2;
                limit.spread(now, self.left_open, longest, self.parked.len());
                limit.next = limit.next.min(after(now, 1.0 / limit.pace(demand)));
                self.state = State::Limited(limit);
            }
        }
    }

    /// Queued requests count as demand, since their callers make no new ones.
    fn keep_parked(&mut self, now: Instant) {
        let came_in = now.nanos_since(self.left_open);
        self.demand.keep_parked(self.parked.len(), came_in);
    }

    fn judge(&mut self, now: Instant) {
        let tally = self.tally;
        self.tally.clear(now);
        let mut rising = 0.0;
        if let Some(mean) = tally.mean() {
            let mean = mean / SECOND;
            rising = (mean - self.recent).max(0.0) / tally.seconds(now).max(1e-9);
            self.recent = mean;
        }
        if !self.is_open() {
            self.keep_parked(now);
        }
        let demand = self.demand.usual(now);
        // Do not hold back attempts that would succeed without retries.
        let least = if demand >= BUSY && tally.is_lost_anyway() {
            LEAST
        } else {
            BARE
        };
        let slow = self.usual.is_slow(&tally);
        let served = self.is_served();
        let failing = self.usual.is_failing(&tally, served);
        let overload = failing && (slow || self.usual.is_too_much(&tally));
        if overload {
            self.flapping.on_overload();
            self.overload = Some(now);
        } else if !slow && tally.is_faultless() {
            self.flapping.on_faultless();
        }
        // Under packet loss, a low-traffic process cannot measure gradually.
        let lost = demand < BUSY && served && tally.is_plain() && self.evidence.is_lossy();
        let kept = tally.kept(&self.usual);
        match &mut self.state {
            State::Open if overload => {
                if tally.is_many() {
                    self.limit(now, kept.max(least));
                }
            }
            State::Open => {
                if !slow && !tally.is_refused() {
                    self.usual.learn(&tally);
                }
            }
            State::Limited(limit) => {
                if overload {
                    limit.cut(now, kept, least);
                } else if slow {
                    limit.hold(now, self.usual.is_very_slow(&tally), rising);
                } else if failing && lost {
                    return self.open(now);
                } else if failing && !served {
                    if limit.is_bare() {
                        self.usual.learn_failed_anew(&tally);
                    } else {
                        self.stride.halve();
                    }
                    limit.doubt(now, kept, &self.usual);
                } else {
                    if failing {
                        // The failures are not caused by load, and are no reason to reduce the limit.
                        self.usual.learn_failed_anew(&tally);
                    }
                    self.usual.learn_while_limited(&tally);
                    limit.grow(tally.weight(), &mut self.stride);
                    self.flapping.on_growth(limit.factor);
                    if self.parked.len() == 0 && limit.factor >= OPEN {
                        return self.open(now);
                    }
                }
                if failing && tally.is_answered() {
                    limit.follow(tally.served(now), demand);
                }
                limit.next = limit.next.min(after(now, 1.0 / limit.pace(demand)));
            }
            State::Closed(_) => {}
        }
    }
}

fn after(now: Instant, seconds: f64) -> Instant {
    Instant::from_nanos(now.as_nanos().saturating_add((seconds * SECOND) as u64))
}

#[cfg(test)]
mod tests;
