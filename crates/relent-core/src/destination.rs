//! What the callers of one destination share, and how it is reached.

use core::convert::Infallible;
use core::fmt;
use core::hint::black_box;
use core::sync::atomic::AtomicBool;
use core::time::Duration;

use crate::batch::{Batch, Lane, Lanes};
use crate::budget::{Budget, Lesson};
use crate::cooldown::Cooldown;
use crate::failure::{Failure, Hop, Scope};
use crate::gate::{Caller, Calm, Ended, Gate};
use crate::hedge::{Hedge, HedgeConfig};
use crate::outbound::{Answer, Asking, Outbound, Permit};
use crate::policy::Policy;
use crate::random::{Draw, Random};
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::time::{Instant, nanos};

/// What the callers of one destination share.
///
/// It has two parts, so that it stays cheap. Budget and cooldown are atomics, which every caller
/// reads and writes directly. The [`Outbound`] (gate, request rate, throttle, hedges, and the line of those who wait)
/// is reached through an [`Access`]: behind a lock where threads share it, plainly where one thread
/// has it. While a gate is open and nothing fails, its requests and successes are atomics too, of which it is
/// told a few times a second.
///
/// A [`Call`](crate::Call) asks it before each attempt, and tells it how the attempt ended.
///
/// ```
/// use core::cell::RefCell;
/// use relent_core::{Access, Destination, Draw, Outbound, Policy};
///
/// struct OneThread(RefCell<Outbound>);
///
/// impl Access for OneThread {
///     type Random = Draw;
///     type Waker = ();
///
///     fn turn<T>(&self, change: impl FnOnce(&mut Outbound, &mut Draw) -> T) -> T {
///         change(&mut self.0.borrow_mut(), &mut Draw::at(0.5))
///     }
/// }
///
/// let policy = Policy::STANDARD;
/// let outbound = Outbound::new(policy);
/// let there = Destination::new(policy, outbound, |outbound| OneThread(RefCell::new(outbound)));
/// assert!(there.budget().is_some() && !there.is_quiet());
/// ```
pub struct Destination<A> {
    budget: Budget,
    /// Whether the policy has a budget.
    budgeted: AtomicBool,
    cooldown: Cooldown,
    /// The policy's longest hint in nanoseconds: no cooldown lasts longer.
    longest: AtomicU64,
    /// Nobody has to ask while no cooldown runs.
    quiet: AtomicBool,
    /// Whether attempts are held to a rate.
    paced: AtomicBool,
    /// Whether any attempt has had a response.
    responded: AtomicBool,
    /// What the outbound has yet to be told.
    batch: Batch,
    access: A,
}

/// How the [`Outbound`] of a [`Destination`] is reached.
pub trait Access {
    /// What draws where those who wait are spread.
    type Random: Random;
    /// What somebody who has to wait leaves behind, to be woken by.
    type Waker;

    /// Lets something happen to it, in one turn at its lock if it has one. Whoever the line
    /// [names](Outbound::take_woken) is woken when the lock is released.
    fn turn<T>(&self, change: impl FnOnce(&mut Outbound, &mut Self::Random) -> T) -> T;

    /// The same where somebody asks again. If the answer is to wait, it leaves its waker, if it has one,
    /// by its number; what it has left before goes.
    #[inline]
    fn ask(
        &self,
        id: u64,
        waker: Option<&Self::Waker>,
        ask: impl FnOnce(&mut Outbound, &mut Self::Random) -> Answer,
    ) -> Answer {
        let _ = (id, waker);
        self.turn(ask)
    }

    /// The same where somebody who waits goes away; whether `leave` has seen to it.
    #[inline]
    fn leave(&self, id: u64, leave: impl FnOnce(&mut Outbound, &mut Self::Random) -> bool) -> bool {
        let _ = id;
        self.turn(leave)
    }

    /// What a caller of this number is known by in the line: the number, unless the driver puts more into it, such
    /// as whom to wake. Names have to keep the order of the numbers. A driver that makes them of wakers always asks
    /// with one.
    #[inline]
    fn name(&self, number: u64, waker: Option<&Self::Waker>) -> u64 {
        let _ = waker;
        number
    }

    /// Where threads count the requests and successes of a calm destination apart, so that they do not wait
    /// for each other's cache lines; none before they [have met](Self::on_meeting), and for one thread.
    #[inline]
    fn lanes(&self) -> Option<&Lanes> {
        None
    }

    /// A number of this thread, which says what lane it has.
    #[inline]
    fn thread(&self) -> usize {
        0
    }

    /// Two threads have counted in one place at once: time to make [lanes](Self::lanes), if there are none.
    #[inline]
    fn on_meeting(&self) {}
}

/// There is none to be reached.
impl Access for Infallible {
    type Random = Draw;
    type Waker = Self;

    fn turn<T>(&self, _: impl FnOnce(&mut Outbound, &mut Draw) -> T) -> T {
        match *self {}
    }
}

impl<A> Destination<A> {
    /// A destination with the budget of the policy, if it has one, and this outbound, which is put into its access
    /// by `share`.
    pub fn new(policy: &Policy, outbound: Outbound, share: impl FnOnce(Outbound) -> A) -> Self {
        let budget = policy.new_budget().unwrap_or_else(Budget::none);
        let mut outbound = outbound;
        outbound.teach(Instant::ORIGIN, &budget);
        Self {
            budget,
            budgeted: AtomicBool::new(policy.budget().is_some()),
            cooldown: Cooldown::new(),
            longest: AtomicU64::new(nanos(policy.max_hint())),
            quiet: AtomicBool::new(outbound.is_quiet()),
            paced: AtomicBool::new(outbound.is_paced()),
            responded: AtomicBool::new(false),
            batch: Batch::new(),
            access: share(outbound),
        }
    }

    /// Takes this budget in place of the policy's.
    #[must_use]
    pub fn with_budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self.budgeted = AtomicBool::new(true);
        self
    }

    /// The budget.
    #[inline]
    #[must_use]
    pub fn budget(&self) -> Option<&Budget> {
        self.budgeted
            .load(Ordering::Relaxed)
            .then_some(&self.budget)
    }

    /// The budget, to be given back what was taken from it, even if the policy has none any more.
    #[inline]
    pub(crate) const fn repaid_budget(&self) -> &Budget {
        &self.budget
    }

    /// The cooldown.
    #[must_use]
    pub const fn cooldown(&self) -> &Cooldown {
        &self.cooldown
    }

    /// Reads a word here and there of what is beside its outbound: see [`Outbound::touch`].
    #[inline]
    pub fn touch(&self) {
        black_box((self.budget.touch(), self.batch.touch(), self.is_paced()));
    }

    /// How its outbound is reached.
    #[must_use]
    pub const fn access(&self) -> &A {
        &self.access
    }

    /// Whether nobody has to ask before an attempt, nor tell how it ended: then no clock is read for
    /// it (design rule 10).
    #[inline]
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed) && !self.cooldown.has_begun()
    }

    /// Whether somebody learns from how an attempt ends.
    #[inline]
    pub(crate) fn learns(&self) -> bool {
        !self.quiet.load(Ordering::Relaxed)
    }

    /// Whether any attempt has had a response here: a success, or a failure that the service itself sent.
    #[inline]
    #[must_use]
    pub fn has_responded(&self) -> bool {
        self.responded.load(Ordering::Relaxed)
    }

    /// An attempt has had a response.
    #[inline]
    fn on_response(&self) {
        // It is written once, so that threads do not take it from each other.
        if !self.has_responded() {
            self.responded.store(true, Ordering::Relaxed);
        }
    }

    /// Whether attempts are held to a rate.
    #[inline]
    pub(crate) fn is_paced(&self) -> bool {
        self.paced.load(Ordering::Relaxed)
    }
}

impl<A: Access> Destination<A> {
    /// Takes an outbound that is made of the one it has. `outbound` finds it in the access.
    #[must_use]
    pub fn with_outbound(
        mut self,
        outbound: impl FnOnce(&mut A) -> &mut Outbound,
        change: impl FnOnce(Outbound) -> Outbound,
    ) -> Self {
        // It is calm no more: whoever has a turn says so again.
        let counted = self.batch.take(Instant::ORIGIN, self.access.lanes());
        let outbound = outbound(&mut self.access);
        outbound.on_counted(&counted);
        *outbound = change(core::mem::take(outbound));
        self.quiet = AtomicBool::new(outbound.is_quiet());
        self.paced = AtomicBool::new(outbound.is_paced());
        self
    }

    /// Goes by this policy from now on: its budget, gate, request rate and throttle keep what they have
    /// learnt, and whoever waits, waits by the new rules. See [`Outbound::set_policy`]. A budget that the
    /// policy takes away is kept for one that comes later. [Hedges](Self::hedge) are those of each call's policy.
    ///
    /// It is one turn, so that of two policies at once one is in force with all that it has. `in_force` is
    /// called in the same turn, for what a driver keeps beside.
    pub fn set_policy(&self, now: Instant, policy: &Policy, in_force: impl FnOnce()) {
        self.turn(now, |outbound, random| {
            match policy.budget() {
                Some(config) => self.budget.apply(now, config),
                None => self.budget.suspend(),
            }
            self.budgeted
                .store(policy.budget().is_some(), Ordering::Relaxed);
            self.longest
                .store(nanos(policy.max_hint()), Ordering::Relaxed);
            outbound.set_policy(now, policy, &self.cooldown, random);
            match outbound.gate() {
                Some(_) => outbound.teach(now, &self.budget),
                // It has nothing to say any more.
                None => self.budget.learn(&Lesson::default()),
            }
            self.quiet.store(outbound.is_quiet(), Ordering::Relaxed);
            self.paced.store(outbound.is_paced(), Ordering::Relaxed);
            in_force();
        });
    }

    /// Lets something happen to the outbound in one turn, which has heard of everything before.
    #[inline]
    fn turn<T>(&self, now: Instant, change: impl FnOnce(&mut Outbound, &mut A::Random) -> T) -> T {
        self.access
            .turn(|outbound, random| self.in_turn(now, outbound, random, change))
    }

    #[inline]
    fn in_turn<T>(
        &self,
        now: Instant,
        outbound: &mut Outbound,
        random: &mut A::Random,
        change: impl FnOnce(&mut Outbound, &mut A::Random) -> T,
    ) -> T {
        outbound.on_counted(&self.batch.take(now, self.access.lanes()));
        let result = change(outbound, random);
        if let Some(calm) = self.calm(now, outbound) {
            self.batch.open(calm, self.access.lanes());
        }
        result
    }

    /// Until when successes change nothing here: neither the budget has to hear of them.
    fn calm(&self, now: Instant, outbound: &Outbound) -> Option<Calm> {
        let calm = outbound.calm(now)?;
        let ratio = outbound.gate().map_or(0.0, Gate::highest_ratio);
        self.budget()
            .is_none_or(|budget| budget.is_unmoved(ratio))
            .then_some(calm)
    }

    /// Whether an attempt may start now without a turn.
    #[inline]
    pub(crate) fn is_calm(&self, now: Instant) -> bool {
        self.batch.is_calm(now) && !self.cooldown.has_begun()
    }

    /// Hears of what was counted, and takes a turn for all that comes next.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn shut(&self, now: Instant) {
        self.access
            .turn(|outbound, _| outbound.on_counted(&self.batch.take(now, self.access.lanes())));
    }

    /// Where this thread counts.
    #[inline]
    fn lane(&self) -> &Lane {
        match self.access.lanes() {
            Some(lanes) => lanes.of(self.access.thread()),
            None => self.batch.lane(),
        }
    }

    /// Whether it is worth a look at the clock to find that out.
    #[inline]
    pub(crate) fn may_be_calm(&self) -> bool {
        self.batch.is_calm(Instant::ORIGIN)
    }

    /// An attempt that has started succeeded: counts it without a turn, if there is nothing more to it.
    #[inline]
    pub(crate) fn answered_calmly(&self, now: Instant, permit: &Permit) -> bool {
        let is_counted = permit.is_known_to_gate()
            && self
                .batch
                .add_success(self.lane(), now, permit.started(), || {
                    self.access.on_meeting();
                });
        if is_counted {
            self.on_response();
        }
        is_counted
    }

    /// A request is made while it [is calm](Self::is_calm). Returns what it is known by.
    #[inline]
    pub(crate) fn enter_calm(&self, waker: Option<&A::Waker>) -> u64 {
        self.count_request();
        self.access.name(self.lane().add_request(), waker)
    }

    /// What a request is known by of which the outbound is told in this turn.
    #[inline]
    fn enter_told(&self, waker: Option<&A::Waker>) -> u64 {
        self.access.name(self.batch.add_told_request(), waker)
    }

    /// A request is made that does not ask: for a policy whose retries are off.
    pub(crate) fn on_request(&self, now: Instant) -> u64 {
        if self.is_calm(now) {
            return self.enter_calm(None);
        }
        self.cooldown.forget_past(now);
        let id = self.turn(now, |outbound, _| {
            outbound.on_request_unthrottled(now);
            self.enter_told(None)
        });
        self.count_request();
        id
    }

    /// A request is made, and asks for its first attempt at once, in one turn. Gets its number here.
    /// `None` if it is not to be attempted at all.
    #[inline]
    pub(crate) fn enter(
        &self,
        now: Instant,
        asking: &mut Asking,
        waker: Option<&A::Waker>,
    ) -> Option<Answer> {
        self.cooldown.forget_past(now);
        let answer = self.turn(now, |outbound, random| {
            match asking.paced_only {
                true => outbound.on_request_unthrottled(now),
                false if outbound.on_request(now, random) => {}
                false => return None,
            }
            asking.id = self.enter_told(waker);
            Some(outbound.ask(now, asking, &self.cooldown, random))
        })?;
        self.count_request();
        Some(answer)
    }

    #[inline]
    pub(crate) fn count_request(&self) {
        if let Some(budget) = self.budget() {
            budget.on_request();
        }
    }

    /// The same for a caller whose request was counted when it came, and who had not to ask then: a
    /// cooldown has begun since. It gets its number here.
    #[cold]
    pub(crate) fn ask_first(
        &self,
        now: Instant,
        asking: &mut Asking,
        waker: Option<&A::Waker>,
    ) -> Answer {
        self.turn(now, |outbound, random| {
            outbound.on_request_unthrottled(now);
            asking.id = self.enter_told(waker);
            outbound.ask(now, asking, &self.cooldown, random)
        })
    }

    /// May this caller, who waits already or not, start an attempt now?
    pub(crate) fn ask(
        &self,
        now: Instant,
        asking: &Asking,
        waits: bool,
        waker: Option<&A::Waker>,
    ) -> Answer {
        self.access.ask(asking.id, waker, |outbound, random| {
            self.in_turn(now, outbound, random, |outbound, random| match waits {
                true => outbound.ask_again(now, asking, &self.cooldown, random),
                false => outbound.ask(now, asking, &self.cooldown, random),
            })
        })
    }

    /// A caller that waits goes away, which is known to have been `held` by a cooldown: then nobody else
    /// waits for what it leaves, and no time need be known (design rule 10).
    pub(crate) fn leave(&self, caller: &Caller, held: bool, now: impl FnOnce() -> Instant) {
        let id = caller.id;
        // While anybody waits there is nothing that it would have to be told before.
        if held && self.access.leave(id, |outbound, _| outbound.leave_held(id)) {
            return;
        }
        let now = now();
        self.access.leave(id, |outbound, random| {
            self.in_turn(now, outbound, random, |outbound, random| {
                outbound.leave(now, caller, &self.cooldown, random);
            });
            true
        });
    }

    /// Whether it is judged to be down, so that nothing but probes goes there.
    pub(crate) fn is_down(&self) -> bool {
        self.access
            .turn(|outbound, _| outbound.gate().is_some_and(Gate::is_closed))
    }

    /// What is remembered here for hedges that are made so: see [`Outbound::hedge`].
    pub fn hedge(&self, config: &HedgeConfig) -> Option<Arc<Hedge>> {
        self.access.turn(|outbound, _| outbound.hedge(config))
    }

    /// Takes a slot if there is one now, for a hedge, which starts now or never: see
    /// [`Outbound::try_hedge`].
    pub(crate) fn try_hedge(&self, now: Instant) -> Option<Permit> {
        if self.is_quiet() || self.is_calm(now) {
            return Some(Permit::for_hedge(now, false));
        }
        self.turn(now, |outbound, _| outbound.try_hedge(now, &self.cooldown))
    }

    /// An attempt that has started is over.
    #[inline]
    pub(crate) fn ended(&self, now: Instant, permit: Permit, ended: Ended) {
        if ended == Ended::Answered {
            if self.answered_calmly(now, &permit) {
                return;
            }
            self.on_response();
        }
        self.turn(now, |outbound, random| {
            self.end(now, permit, ended, outbound, random);
        });
    }

    /// An attempt failed, which had this permit unless it is one of several. What the destination said
    /// to all is kept. Whether a cooldown begins.
    pub(crate) fn failed(
        &self,
        now: Instant,
        started: Instant,
        permit: Option<Permit>,
        failure: &Failure,
    ) -> bool {
        if failure.cause.is_response() || failure.scope == Scope::Request {
            self.on_response();
        }
        let cool = || {
            let longest = Duration::from_nanos(self.longest.load(Ordering::Relaxed));
            self.cooldown.on_failure(now, failure, longest)
        };
        if !self.learns() {
            return cool();
        }
        self.turn(now, |outbound, random| {
            let begins = !outbound.holds_for_one(now, failure) && cool();
            let ended = outbound.on_failure(now, started, failure);
            if let Some(permit) = permit {
                self.end(now, permit, ended, outbound, random);
            }
            begins
        })
    }

    /// The budget learns what the gate has found out.
    #[inline]
    fn end(
        &self,
        now: Instant,
        permit: Permit,
        ended: Ended,
        outbound: &mut Outbound,
        random: &mut A::Random,
    ) {
        outbound.ended(now, permit, ended, &self.cooldown, random);
        if let Some(budget) = self.budget() {
            outbound.teach(now, budget);
        }
    }

    /// An attempt at another destination was redirected here at `started`, if that is known, and ended
    /// like this; `None` is a success. Whether a cooldown begins.
    pub(crate) fn on_redirected(
        &self,
        now: Instant,
        started: Option<Instant>,
        failure: Option<&Failure>,
    ) -> bool {
        let permit = started.map(Permit::unasked);
        let Some(failure) = failure else {
            if let Some(permit) = permit {
                self.ended(now, permit, Ended::Answered);
            }
            return false;
        };
        // Here it is a failure like any other.
        self.failed(now, started.unwrap_or(now), permit, &failure.hop(Hop::None))
    }

    /// An attempt that has a permit is not made.
    pub(crate) fn cancel(&self, now: Instant, permit: Permit) {
        self.turn(now, |outbound, random| {
            outbound.cancel(now, permit, &self.cooldown, random);
        });
    }
}

impl<A> fmt::Debug for Destination<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Destination")
            .field("budget", &self.budget)
            .field("cooldown", &self.cooldown)
            .finish_non_exhaustive()
    }
}
