//! The shared judgement of whether a destination is up, and how much it can bear.
//!
//! A budget limits retries by a ratio, and no fixed ratio is right: to hide independent failures of
//! rate p it needs p/(1 − p), and to stay harmless in overload it has to be nearly nothing (design
//! rule 7). The gate tells the two apart and acts on what it finds:
//!
//! - **Open**: everything goes. While attempts fail but those that succeed are as fast as ever, the
//!   failures do not depend on load, and [`Gate::ratio`] widens the budget to what hides them.
//! - **Limited**: more fails than usual, and successes are slow or attempts time out: there is a
//!   queue, and more attempts get less done. All attempts together are held to a multiple of the
//!   demand. It shrinks by what fails, grows by steps while nothing does and successes are fast, and
//!   stays while they are slow: so the queue over there is never empty and seldom full. Requests that
//!   are made now go first; what was held back follows as there is room.
//! - **Closed**: nothing has succeeded for a while. Requests are parked instead of attempted, and one
//!   probe at a time goes out. A success opens the way, limited at first, so that what was parked does
//!   not become a second herd.
//!
//! Many processes call one destination without knowing of each other, so what a process does is
//! measured in its own demand: a crowd of ten thousand that each ask once in ten seconds probes and
//! drains in proportion to what it usually asks for. One process cannot find out whether more
//! attempts would succeed by making more of them (it would only take the others' share), which is why
//! the time that successes take is the sign of overload here, and not their number.

mod measure;
mod parked;

use core::time::Duration;

use crate::error::{Found, PolicyError};
use crate::failure::{Cause, Failure, Kind};
use crate::random::{Random, up_to};
use crate::time::{Instant, nanos};
use measure::{Demand, Share, Tally, Usual};
use parked::Parked;

/// How a gate probes.
///
/// # Default
/// The first probe half a second after closing, later ones up to 5 s apart; nobody is parked for more
/// than five minutes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GateConfig {
    /// From closing to the first probe, give or take a quarter; each later one is half as long again
    /// after the one before.
    pub first_probe: Duration,
    /// The most between two probes while requests are made. Where none are, parked ones probe at the
    /// pace at which three would usually be made, at most 30 s apart.
    pub max_probe: Duration,
    /// Nobody is parked for longer than this since the request was made, whatever other limits there
    /// are. It is for the driver to keep.
    pub patience: Duration,
}

impl GateConfig {
    /// Probes from 500 ms to 5 s apart, and five minutes of patience.
    pub const DEFAULT: Self = Self {
        first_probe: Duration::from_millis(500),
        max_probe: Duration::from_secs(5),
        patience: Duration::from_secs(300),
    };

    pub(crate) const fn check(&self) -> Result<(), PolicyError> {
        if self.first_probe.is_zero() {
            return Err(PolicyError::new(
                "first_probe",
                Found::Duration(self.first_probe),
                "probes are some time apart; 500ms is usual",
            ));
        }
        if self.max_probe.as_nanos() < self.first_probe.as_nanos() {
            return Err(PolicyError::new(
                "max_probe",
                Found::Duration(self.max_probe),
                "the most between two probes may not be below first_probe",
            ));
        }
        Ok(())
    }
}

impl Default for GateConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

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
    /// Whether the request has made no attempt yet.
    pub fresh: bool,
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
    /// It was too much for the destination, or took too long.
    Overloaded,
    /// Nothing is to be learned from it: it was called off, or refused with a time to come back.
    Unknown,
}

impl Ended {
    /// How an attempt ended that failed like this.
    #[must_use]
    pub const fn of(failure: &Failure) -> Self {
        match (failure.kind, failure.cause) {
            (Kind::Permanent, _) => Self::Answered,
            // Whoever says when to come back is in command of its load.
            (Kind::Throttled, _) if failure.hint.delay_nanos().is_some() => Self::Unknown,
            (Kind::Throttled | Kind::Overloaded, _) | (_, Cause::Timeout) => Self::Overloaded,
            (Kind::NotProcessed | Kind::Ambiguous, _) => Self::Failed,
        }
    }
}

/// This many failures in a row close the gate at once; a few do if they last a second.
const RUN: u32 = 15;
const SLOW_RUN: u32 = 4;
const SLOW: u64 = 1_000_000_000;
/// A parked request probes when this many fresh ones should have come by themselves, or after this
/// many seconds.
const EXPECTED: f64 = 3.0;
const LONGEST: f64 = 30.0;
/// A probe that takes this many times the most between two probes does not hold up the next one.
const PATIENCE: u64 = 2;
/// What a success opens the way to, as a multiple of the demand.
const HEADROOM: f64 = 1.1;
/// How much the multiple grows in the first good interval, and at most: each good one in a row
/// doubles the step, but never above the demand itself.
const FIRST_STEP: f64 = 0.12;
const LAST_STEP: f64 = 0.4;
/// How much it grows below the demand while successes are slow: this finds the fair share.
const CREEP: f64 = 0.02;
/// What is left of its part above the demand in an interval with a long queue.
const EASE: f64 = 0.95;
/// More than this is open.
const OPEN: f64 = 1.2;
const MOST: f64 = 4.0;
/// Requests per second from which on a process sees enough to hold back fresh ones, and what the
/// multiple cannot fall below for the others, and for all.
const BUSY: f64 = 4.0;
const LEAST_SMALL: f64 = 1.02;
const LEAST: f64 = 0.05;
/// An open gate sees overload when this share fails, and at least this many do.
const OVERLOAD: f64 = 0.1;
const OVERLOADS: u32 = 3;
/// The budget is not widened for this long after overload, nor where more than this share fails,
/// nor beyond this ratio; and a little more than what is needed on average is allowed.
const BOUND: Duration = Duration::from_secs(60);
const HOPELESS: f64 = 0.6;
const WIDEST: f64 = 1.5;
const MARGIN: f64 = 1.25;
const SECOND: f64 = 1e9;

/// Whether the destination is up.
#[derive(Clone, Copy, Debug)]
enum State {
    Open,
    Limited(Limit),
    Closed {
        /// Between two probes, before jitter.
        wait: u64,
        /// When a fresh request may be the next probe.
        due: Instant,
        /// When a parked one may.
        parked_due: Instant,
        /// When the probe that is out went, if one is.
        probing: Option<Instant>,
    },
}

#[derive(Clone, Copy, Debug)]
struct Limit {
    /// Attempts are held to this multiple of the demand.
    factor: f64,
    /// By how much it grows next.
    step: f64,
    /// What it was before it last grew.
    before: f64,
    /// Attempts that may be made now, where the factor is below 1.
    tokens: f64,
    filled: Instant,
    /// When the next parked request may go, where the factor is above 1.
    next: Instant,
}

impl Limit {
    /// Parked requests that go per second beside the demand.
    fn pace(&self, demand: f64) -> f64 {
        ((self.factor - 1.0).max(0.02) * demand).max(1e-9)
    }

    /// The most tokens: what comes at random in a quarter of a second.
    fn capacity(&self, demand: f64) -> f64 {
        (self.factor * demand * 0.25).max(1.0)
    }

    fn fill(&mut self, now: Instant, demand: f64) {
        let gained = now.nanos_since(self.filled) as f64 / SECOND * self.factor * demand;
        self.tokens = (self.tokens + gained).min(self.capacity(demand));
        self.filled = now;
    }

    /// Whether a fresh request may go.
    fn admits(&mut self, now: Instant, demand: f64) -> bool {
        if self.factor >= 1.0 {
            return true;
        }
        self.fill(now, demand);
        let admits = self.tokens >= 1.0;
        if admits {
            self.tokens -= 1.0;
        }
        admits
    }

    /// When a parked request may go: where fresh ones are held back, what they leave.
    fn next(&self, demand: f64) -> Instant {
        if self.factor >= 1.0 {
            return self.next;
        }
        let missing = (self.capacity(demand) - self.tokens).max(0.0);
        after(self.filled, missing / (self.factor * demand).max(1e-9))
    }

    fn on_release(&mut self, now: Instant, demand: f64) {
        if self.factor >= 1.0 {
            self.next = after(now, 1.0 / self.pace(demand));
        } else {
            self.fill(now, demand);
            self.tokens = (self.tokens - 1.0).max(0.0);
        }
    }
}

/// The shared judgement of one destination in one process: a plain value that a driver keeps behind
/// a lock.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Caller, Draw, Ended, Gate, GateConfig, Instant};
///
/// let mut gate = Gate::new(&GateConfig::DEFAULT)?;
/// let mut now = Instant::ORIGIN;
/// let caller = |id| Caller { until: Instant::MAX, since: Instant::ORIGIN, id, fresh: true };
/// for id in 0..15 {
///     gate.on_request(now);
///     let pass = gate.admit(now, caller(id)).expect("open");
///     gate.on_end(now, pass, Ended::Failed, &mut Draw::at(0.5));
/// }
/// // Nothing but failures: the next is parked, and is the first probe half a second later.
/// assert!(gate.is_closed() && gate.admit(now, caller(15)).is_none());
/// now = now.saturating_add(Duration::from_millis(500));
/// let (released, pass) = gate.release(now).expect("it is time");
/// assert_eq!((released.id, pass.is_probe()), (15, true));
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
    share: Share,
    /// When something last succeeded; failures since then, and when the first of them set out.
    answered: Instant,
    run: u32,
    run_since: Instant,
    /// The demand when the gate was last open: those who are parked make no new requests, which is no
    /// reason to let them go more slowly.
    reference: f64,
    /// Seconds that successes have taken lately.
    recent: f64,
    /// When overload was last seen.
    overload: Option<Instant>,
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
            answered: Instant::ORIGIN,
            run: 0,
            run_since: Instant::ORIGIN,
            reference: 0.0,
            recent: 0.0,
            overload: None,
        }
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

    /// Whether everything goes: nobody is held back, and the budget has the say about retries. It has
    /// not while the gate is limited or closed: what is parked then is paced by the gate.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Whether nothing but probes goes.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    /// Requests that are parked.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    /// The ratio of retries to requests that hides the failures seen, while they do not depend on
    /// load; 0 otherwise. For [`Budget::widen`](crate::Budget::widen).
    #[must_use]
    pub fn ratio(&self, now: Instant) -> f64 {
        let failing = self.share.get();
        let bound = self
            .overload
            .is_some_and(|seen| now < seen.saturating_add(BOUND));
        if !self.is_open() || bound || failing > HOPELESS {
            return 0.0;
        }
        (MARGIN * failing / (1.0 - failing)).min(WIDEST)
    }

    /// May the caller make an attempt now? `None`: it is parked until [`release`](Self::release)
    /// names it, or the driver [forgets](Self::forget) it.
    pub fn admit(&mut self, now: Instant, caller: Caller) -> Option<Pass> {
        self.judge_in_time(now);
        let (go, probe) = match &mut self.state {
            State::Open => (true, false),
            State::Limited(limit) => {
                let demand = self.demand.rate(now).max(self.reference);
                (caller.fresh && limit.admits(now, demand), false)
            }
            State::Closed { due, probing, .. } => {
                let lost = lease(&self.config, *probing).is_some_and(|end| now >= end);
                let go = caller.fresh && now >= *due && (probing.is_none() || lost);
                if go {
                    *probing = Some(now);
                }
                (go, go)
            }
        };
        if go {
            return Some(Pass {
                started: now,
                probe,
            });
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
            State::Open => self.parked.take_first(answered)?,
            State::Limited(limit) => {
                let caller = self.parked.take_first(answered)?;
                limit.on_release(now, self.demand.rate(now).max(self.reference));
                caller
            }
            State::Closed { probing, .. } => {
                // The last has the most time left to be answered in.
                let caller = self.parked.take_last()?;
                *probing = Some(now);
                probe = true;
                caller
            }
        };
        let pass = Pass {
            started: now,
            probe,
        };
        Some((caller, pass))
    }

    /// When a parked caller may go, if nothing happens before; `None` while there is nobody who could
    /// still be answered.
    pub fn next_release(&mut self, now: Instant) -> Option<Instant> {
        if !self.parked.has_any(after(now, self.recent)) {
            return None;
        }
        Some(match self.state {
            State::Open => now,
            State::Limited(limit) => limit.next(self.usual_demand(now)),
            State::Closed {
                parked_due,
                probing,
                ..
            } => match lease(&self.config, probing) {
                Some(end) => end.max(parked_due),
                None => parked_due,
            },
        })
    }

    /// A parked caller goes away. Does nothing about one who is not parked.
    pub fn forget(&mut self, caller: &Caller) {
        self.parked.remove(caller);
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
                self.run = 0;
                self.answered = now;
                self.share.add(false);
                if self.is_closed() {
                    return self.limit(now, HEADROOM);
                }
                self.tally.success(now.nanos_since(pass.started));
            }
            Ended::Failed | Ended::Overloaded => {
                self.share.add(true);
                self.on_failure(now, pass, ended == Ended::Overloaded, random);
                if self.is_closed() {
                    return;
                }
            }
            Ended::Unknown => {
                if pass.probe
                    && let State::Closed { probing, .. } = &mut self.state
                {
                    *probing = None;
                }
            }
        }
        self.judge_in_time(now);
    }

    /// What the destination is held to a multiple of.
    fn usual_demand(&mut self, now: Instant) -> f64 {
        self.demand.rate(now).max(self.reference)
    }

    fn on_failure(
        &mut self,
        now: Instant,
        pass: Pass,
        overloaded: bool,
        random: &mut (impl Random + ?Sized),
    ) {
        if let State::Closed { wait, .. } = self.state {
            if pass.probe {
                let wait = wait.saturating_add(wait / 2);
                self.close(now, wait.min(nanos(self.config.max_probe)), random);
            }
            return;
        }
        self.tally.failure(overloaded);
        if self.run == 0 {
            self.run_since = pass.started.max(self.answered);
        }
        // While an attempt ran into its timeout nothing was heard of the destination for all that time.
        self.run = self
            .run
            .saturating_add(if overloaded { SLOW_RUN } else { 1 });
        let lasts = now.nanos_since(self.run_since);
        if self.run >= RUN || self.run >= SLOW_RUN && lasts >= SLOW {
            self.close(now, nanos(self.config.first_probe), random);
        }
    }

    fn close(&mut self, now: Instant, wait: u64, random: &mut (impl Random + ?Sized)) {
        self.leave_open(now);
        let expected = (EXPECTED / self.demand.rate(now).max(1e-9)).min(LONGEST);
        let parked_wait = wait.max((expected * SECOND) as u64);
        let mut due = |wait: u64| {
            let quarter = wait / 4;
            let jittered = (wait - quarter).saturating_add(up_to(quarter * 2, random));
            Instant::from_nanos(now.as_nanos().saturating_add(jittered))
        };
        self.state = State::Closed {
            wait,
            due: due(wait),
            parked_due: due(parked_wait),
            probing: None,
        };
    }

    fn leave_open(&mut self, now: Instant) {
        if self.is_open() {
            self.reference = self.demand.rate(now);
        }
    }

    fn limit(&mut self, now: Instant, factor: f64) {
        self.leave_open(now);
        self.tally.clear(now);
        let mut limit = Limit {
            factor,
            step: FIRST_STEP,
            before: factor,
            tokens: 0.0,
            filled: now,
            next: now,
        };
        limit.next = after(now, 1.0 / limit.pace(self.usual_demand(now)));
        self.state = State::Limited(limit);
    }

    /// Judges what has been counted, when there is enough of it or enough time has passed.
    fn judge_in_time(&mut self, now: Instant) {
        if self.tally.is_due(now) {
            self.judge(now);
        }
    }

    fn judge(&mut self, now: Instant) {
        let tally = self.tally;
        self.tally.clear(now);
        if let Some(mean) = tally.mean() {
            self.recent = mean / SECOND;
        }
        let demand = self.usual_demand(now);
        let least = if demand >= BUSY { LEAST } else { LEAST_SMALL };
        let slow = self.usual.is_slow(&tally);
        let timed_out = tally.overloaded * 2 >= tally.failures.max(1);
        let overload = self.usual.is_failing(&tally) && (slow || timed_out);
        if overload {
            self.overload = Some(now);
        }
        let kept = tally.kept(&self.usual);
        match &mut self.state {
            State::Open if overload => {
                if tally.failures >= OVERLOADS && tally.failed() >= OVERLOAD {
                    self.limit(now, kept.max(least));
                }
            }
            State::Open => {
                if !slow && tally.overloaded == 0 {
                    self.usual.learn(&tally);
                }
            }
            State::Limited(limit) => {
                if overload {
                    limit.factor = (limit.factor * kept).max(least);
                    limit.before = limit.factor;
                    limit.step = FIRST_STEP;
                } else if slow {
                    limit.factor = match limit.factor {
                        below if below < 1.0 => below + CREEP,
                        // What was too much, less something if the queue has become long.
                        _ => {
                            let long = self.usual.is_very_slow(&tally);
                            let above = limit.before.max(1.0) - 1.0;
                            1.0 + above * if long { EASE } else { 1.0 }
                        }
                    };
                    limit.before = limit.factor;
                    limit.step = FIRST_STEP;
                } else {
                    let most = if limit.factor < 1.0 {
                        LAST_STEP
                    } else {
                        FIRST_STEP
                    };
                    limit.before = limit.factor;
                    // Where little was seen, little is risked.
                    limit.factor += limit.step.min(most) * tally.weight();
                    limit.factor = limit.factor.min(MOST);
                    limit.step = (limit.step * 2.0).min(LAST_STEP);
                    if self.parked.len() == 0 && limit.factor >= OPEN {
                        self.state = State::Open;
                        return;
                    }
                }
                limit.next = limit.next.min(after(now, 1.0 / limit.pace(demand)));
            }
            State::Closed { .. } => {}
        }
    }
}

/// Until when the probe that is out holds up the next one.
fn lease(config: &GateConfig, probing: Option<Instant>) -> Option<Instant> {
    let patience = nanos(config.max_probe).saturating_mul(PATIENCE);
    probing.map(|went| Instant::from_nanos(went.as_nanos().saturating_add(patience)))
}

fn after(now: Instant, seconds: f64) -> Instant {
    Instant::from_nanos(now.as_nanos().saturating_add((seconds * SECOND) as u64))
}

#[cfg(test)]
mod tests;
