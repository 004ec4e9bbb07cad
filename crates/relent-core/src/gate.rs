//! The shared judgement of whether a destination is up, and how much it can bear.
//!
//! A budget limits retries by a ratio, and no fixed ratio is right: to hide independent failures of
//! rate p it needs p/(1 − p), and to stay harmless in overload it has to be nearly nothing (design
//! rule 7). The gate tells the two apart and acts on what it finds:
//!
//! - **Open**: everything goes. While attempts fail but those that succeed are as fast as ever, the
//!   failures do not depend on load, and [`Gate::ratio`] widens the budget to what hides them.
//! - **Limited**: more fails than usual, and successes are slow or attempts time out: there is a
//!   queue, and more attempts get less done. Or retries are asked for that no budget has paid for. All attempts
//!   together are held to a multiple of the demand. It shrinks by what fails, grows by steps while nothing does and
//!   successes are fast, and stays while they are slow, less what makes them slower still: so the queue over there is
//!   never empty and seldom full. Requests that are made now go first; what was held back follows as there is room. A
//!   step after which more fails at once was too long, as was one after which the gate closes for what may come of
//!   load: the next is half as long.
//! - **Closed**: so much has failed in a row that it is no chance any more, or nothing was heard for the
//!   time of an attempt. Requests are parked instead of attempted, and one probe at a time goes out. A
//!   success opens the way, limited at first, so that what was parked does not become a second herd. It opens it wide
//!   where a timeout by itself closed the gate, the success is as fast as ever, and few are parked.
//!
//! Many processes call one destination without knowing of each other, so what a process does is
//! measured in its own demand: a crowd of ten thousand that each ask once in ten seconds probes and
//! drains in proportion to what it usually asks for. The first sign of overload is the time that successes
//! take, and not their number: one process that makes more attempts takes the others' share.
//!
//! A default must not get less done than no retries. So requests that have made no attempt are held back only
//! where most would fail. Who is parked by a closed gate without an attempt makes one before its time is over,
//! unless a cooldown or the request rate holds it then; one in eight does where attempts have been left to wait for
//! seconds and many requests are made.
//!
//! A process that asks seldom sees too little to find out anything by degrees. It takes one success
//! that was far slower than usual for overload as soon as anything fails, and lets what was parked go
//! evenly, over a multiple of the time in which it came together.

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

/// Who asks to make an attempt. Of those who are parked, the one whose time runs out first goes
/// first; between equals, the one who has waited longest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Caller {
    /// When nobody waits for the answer any more; [`Instant::MAX`] for never.
    pub until: Instant,
    /// When the request was made.
    pub since: Instant,
    /// Tells the requests of one gate apart; the driver's choice.
    pub id: u64,
}

/// What somebody asks to make an attempt for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Claim {
    /// The first attempt of a request. No retries would make it, too.
    First,
    /// A retry that the budget has paid for, or that nothing has to pay for.
    Paid,
    /// A retry that an empty budget could not pay for: it goes where the gate finds room, and not before. See
    /// [`BudgetConfig::wait_when_empty`](crate::BudgetConfig::wait_when_empty).
    Unpaid,
}

/// Leave to make one attempt. Give it back with [`Gate::on_end`] when the attempt is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pass {
    started: Instant,
    probe: bool,
}

impl Pass {
    /// Leave for an attempt that starts now: where there is no gate, or where something else held the
    /// attempt back after the gate had let it go.
    #[must_use]
    pub const fn new(started: Instant, probe: bool) -> Self {
        Self { started, probe }
    }

    /// When it was given, which is when the attempt starts.
    #[must_use]
    pub const fn started(&self) -> Instant {
        self.started
    }

    /// Whether the attempt finds out if a closed destination is up again.
    #[must_use]
    pub const fn is_probe(&self) -> bool {
        self.probe
    }
}

/// How an attempt ended, as far as a gate is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The destination did what it was asked, or said why it never will: it is up.
    Answered,
    /// It failed.
    Failed,
    /// It was too much for the destination.
    Overloaded,
    /// It took too long.
    TimedOut,
    /// It was refused with a time to come back: whoever says that is in command of its load.
    Deferred,
    /// Nothing is to be learned from it: it was called off.
    Unknown,
}

impl Ended {
    /// How an attempt ended that failed like this.
    #[must_use]
    pub const fn of(failure: &Failure) -> Self {
        match (failure.kind, failure.cause) {
            // It answered with the redirect to the one that failed.
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

/// More than this is open.
const OPEN: f64 = 1.2;
/// Requests per second from which on a process sees enough to hold back fresh ones, which the others
/// never do; and what the multiple cannot fall below.
const BUSY: f64 = 4.0;
const LEAST: f64 = 0.05;
/// The budget is not widened for this long after overload, nor where more than this share fails,
/// nor beyond this ratio; and a little more than what is needed on average is allowed.
const BOUND: Duration = Duration::from_secs(15);
const HOPELESS: f64 = 0.7;
const WIDEST: f64 = 1.5;
const MARGIN: f64 = 1.25;
const SECOND: f64 = 1e9;
/// A destination that has answered one of so many requests still answers: where four of five are refused, thirty in
/// a row are by chance once in eight hundred times.
const FEW: f64 = 30.0;

/// So few make no herd when they follow at once.
const FEW_PARKED: usize = 4;

/// An open gate to which requests and fast successes make no difference for a while, except that it has to
/// know of them afterwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calm {
    /// Until then.
    pub(crate) until: Instant,
    /// A success that took more nanoseconds is not fast.
    pub(crate) longest: u64,
    /// A success that took fewer nanoseconds is the fastest lately.
    pub(crate) shortest: u64,
}

/// Whether the destination is up.
#[derive(Clone, Copy, Debug)]
enum State {
    Open,
    Limited(Limit),
    Closed(Closed),
}

/// The shared judgement of one destination in one process: a plain value that a driver keeps behind
/// a lock.
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
/// // Nothing but failures: this one is parked, and is the first probe half a second later.
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
    /// What fails; and what fails at once, which costs the destination little.
    share: Share,
    at_once: Share,
    run: Run,
    /// Whether the first probe succeeded when the gate was last closed.
    false_alarm: bool,
    /// When the gate was last open; the demand of then is kept.
    left_open: Instant,
    /// When the last success was far slower than usual, if it was.
    slowed: Option<Instant>,
    /// Seconds that successes have taken lately.
    recent: f64,
    /// When overload was last seen.
    overload: Option<Instant>,
    evidence: Evidence,
    flapping: Flapping,
    stride: Stride,
}

impl Gate {
    /// An open gate.
    ///
    /// # Errors
    /// Times that make no sense.
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

    /// Reads of each part: see [`Outbound::touch`](crate::Outbound::touch).
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

    /// How it probes.
    #[must_use]
    pub const fn config(&self) -> &GateConfig {
        &self.config
    }

    /// A request is made: call it once for each, before its first attempt.
    pub fn on_request(&mut self, now: Instant) {
        self.demand.add(now);
    }

    /// Whether only failures, time, and successes that are slow or the fastest so far change anything, and until when.
    /// Before that it neither judges nor begins to count the demand or the shortest time anew.
    pub(crate) fn calm(&self, now: Instant) -> Option<Calm> {
        let ends = self.demand.slot_ends(now)?.min(self.tally.earliest());
        let ends = ends.min(self.evidence.window_ends());
        // Where many fail already, one more success can make the tally clear. Where few do, successes make them fewer.
        let nothing_pends = self.parked.len() == 0 && !self.tally.is_many();
        (self.is_open() && nothing_pends && now < ends).then(|| Calm {
            until: ends,
            longest: self.usual.longest_fast(),
            shortest: self.evidence.shortest_of_window(),
        })
    }

    /// Hears of what was counted while it was [calm](Self::calm).
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

    /// Whether everything goes: nobody is held back, and the budget has the say about retries. It has
    /// not while the gate is limited or closed: what is parked then is paced by the gate.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Whether nothing but probes goes.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed(_))
    }

    /// Whether a request that is parked without an attempt makes its one attempt now that its time is nearly over. Only
    /// a closed gate says yes: to each, but to one in eight when attempts have been left to wait for three seconds and
    /// many requests are made. To be asked once for each.
    pub(crate) fn takes_chance(&mut self, now: Instant) -> bool {
        let demand = self.demand.usual(now);
        match &mut self.state {
            State::Closed(closed) => closed.takes_chance(now, demand),
            State::Open | State::Limited(_) => false,
        }
    }

    /// Requests that are parked.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    /// The number of one who is parked; of those, the one whose time runs out first.
    pub(crate) fn first_parked(&self) -> Option<u64> {
        self.parked.first()
    }

    /// The numbers of all who are parked, the one first whose time runs out first.
    pub(crate) fn all_parked(&self) -> impl Iterator<Item = u64> {
        self.parked.all()
    }

    /// Whether this caller is parked.
    pub(crate) fn has_parked(&self, caller: &Caller) -> bool {
        self.parked.has(caller)
    }

    /// The ratio of retries to requests that hides the failures seen, while they do not depend on
    /// load; 0 otherwise.
    #[must_use]
    pub fn ratio(&self, now: Instant) -> f64 {
        let bound = self.is_bound(now) || self.at_once.is_above(HOPELESS);
        match self.is_open() && self.is_served() && !bound {
            true => self.highest_ratio(),
            false => 0.0,
        }
    }

    /// Whether a timeout may be taken for an attempt that was lost on the way. Where the gate is limited and the last
    /// success was slow, it waited in a queue.
    fn hears_losses(&self) -> bool {
        match self.state {
            State::Open => true,
            State::Limited(_) => self.slowed.is_none(),
            State::Closed(_) => false,
        }
    }

    /// Whether what fails takes about as long as what succeeds, and so does not come of load.
    fn is_served(&self) -> bool {
        self.evidence.is_served(self.lately(), &self.usual)
    }

    /// Seconds that successes have taken lately: those counted so far before the first judgement, 0 before the first of them.
    fn lately(&self) -> f64 {
        match self.recent {
            0.0 => self.tally.mean().unwrap_or(0.0) / SECOND,
            recent => recent,
        }
    }

    /// Whether overload was seen a short time ago.
    fn is_bound(&self, now: Instant) -> bool {
        self.overload
            .is_some_and(|seen| now < seen.saturating_add(BOUND))
    }

    /// What it has found out, for the budget of the destination.
    pub fn lesson(&mut self, now: Instant) -> Lesson {
        Lesson {
            ratio: self.ratio(now),
            gated: true,
            suspicious: !self.is_served(),
            repeated: self.run.is_repeated(),
            lossy: self.hears_losses() && self.evidence.is_lossy(),
            // Who has made few requests cannot tell whether it is one of very many.
            waived: !self.is_open() && self.demand.is_known(now),
            limited: !self.is_open() && !self.is_closed(),
        }
    }

    /// Whether something succeeded in the last so many nanoseconds, and among the last few requests: what was
    /// answered before is no sign that anybody still is.
    pub(crate) fn has_answered_within(&mut self, now: Instant, nanos: u64) -> bool {
        let few = FEW / self.demand.usual(now).max(1e-9) * SECOND;
        let then = now.as_nanos().saturating_sub(nanos.min(few as u64));
        self.run.has_answered_since(Instant::from_nanos(then))
    }

    /// The most that the [ratio](Self::ratio) can come to as long as nothing fails.
    pub(crate) fn highest_ratio(&self) -> f64 {
        let failing = self.at_once.get();
        (MARGIN * failing / (1.0 - failing)).min(WIDEST)
    }

    /// May the caller make an attempt now? `None`: it is parked until [`release`](Self::release) names it, or the
    /// driver [forgets](Self::forget) it. A retry that nothing has paid for limits an open gate, and goes when the
    /// gate finds room for it.
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

    /// The next parked caller that may go now. Ask until there is none, and again at
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
                // The last has the most time left to be answered in.
                let caller = self.parked.take_last()?;
                closed.on_probe(now);
                probe = true;
                caller
            }
        };
        Some((caller, Pass::new(now, probe)))
    }

    /// When a parked caller may go, if nothing happens before; `None` while there is nobody who could
    /// still be answered.
    pub fn next_release(&mut self, now: Instant) -> Option<Instant> {
        // An open gate holds back nobody, however little time is left.
        let answered = match self.state {
            State::Open => Instant::ORIGIN,
            State::Limited(_) | State::Closed(_) => after(now, self.recent),
        };
        if !self.parked.has_any(answered) {
            return None;
        }
        Some(match &self.state {
            State::Open => now,
            // It lets one go, or gives way by itself.
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

    /// A parked caller goes away. Does nothing about one who is not parked.
    pub fn forget(&mut self, caller: &Caller) {
        self.parked.remove(caller);
    }

    /// Probes like this from now on: the probe that is planned comes no later than the new times say.
    pub(crate) fn apply(&mut self, now: Instant, config: &GateConfig) {
        self.config = *config;
        let demand = self.demand.usual(now);
        match &mut self.state {
            State::Open => {}
            State::Limited(limit) => limit.spread_within(now, config.patience / 2, demand),
            State::Closed(closed) => closed.apply(now, config, demand),
        }
    }

    /// An attempt is over.
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
                    // A queue would have made it slow: one was lost, or one of several nodes is down.
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

    /// A process that sees little need not wait until it has seen more: a failure and a success that
    /// took far longer than usual are overload, unless what failed had been worked on. And one that sees much need not
    /// wait until half a second has passed.
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

    /// Judges what has been counted, when there is enough of it or enough time has passed.
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

    /// A process that sees little may see nothing any more that would end its limit. When nothing has
    /// spoken for the limit for a while, what is parked goes as after an outage.
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

    /// Those who wait make no new requests.
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
        // What no retries would get done is not to be held back.
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
        // A small process finds out nothing by degrees where attempts are lost on the way.
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
                        // It does not come of load, and is no reason to ask for less.
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
