//! Attempts that run at once, with the one timer that they share.

use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use relent_core::{Cause, Failure, Hedge, Instant, Leave, Policy, Random};
pub use relent_core::{Race, Raced, Racer};

use crate::clock::Sleeper;
use crate::driver::{Driver, Target};
use crate::timer::Timer;

/// The attempts of a [`Race`] as futures, for a loop of your own that hedges.
///
/// Every attempt is in a box of its own. Dropping this drops those that run.
///
/// ```
/// use std::time::Duration;
/// use relent::Policy;
/// use relent::clock::TokioClock;
/// use relent::destination::Hedge;
/// use relent::driver::Driver;
/// use relent::policy::HedgeConfig;
/// use relent::race::{RaceEvent, Running};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let hedge = Hedge::new(&HedgeConfig::after(Duration::from_millis(50)))?;
/// let mut driver = Driver::builder(Policy::STANDARD, TokioClock).start();
/// // The first attempt takes ten seconds, the hedge is there at once.
/// let ask = |seconds| async move { tokio::time::sleep(Duration::from_secs(seconds)).await };
/// let mut running = Running::new();
/// let leave = driver.entered().await.expect("nothing holds it back");
/// running.begin(&mut driver, &hedge, leave, |_| ask(10));
/// let won = std::future::poll_fn(|context| {
///     loop {
///         match std::task::ready!(running.poll_next(&mut driver, context)) {
///             RaceEvent::Due => running.join(&mut driver, |_| ask(0)),
///             RaceEvent::Ended(racer, _) | RaceEvent::CutOff(racer, _) => {
///                 return std::task::Poll::Ready(racer.attempt().number);
///             }
///         }
///     }
/// })
/// .await;
/// assert_eq!(won, 2);
/// # Ok(()) }
/// ```
pub struct Running<F, K: Sleeper> {
    racers: Vec<(Racer, Pin<Box<F>>)>,
    /// A hedge has been granted that has not joined.
    granted: bool,
    /// A hedge is due that could not be sent when it was granted.
    put_off: bool,
    timer: Timer<K>,
    /// What the timer is set for.
    set_for: Option<Instant>,
}

/// What happens in a race.
pub enum RaceEvent<F: Future> {
    /// A hedge is due and granted: have it [join](Running::join), or [call it
    /// off](Running::call_off).
    Due,
    /// An attempt is over, with its outcome.
    Ended(Racer, F::Output),
    /// An attempt has reached its limit, and is to be dropped.
    CutOff(Racer, Pin<Box<F>>),
}

impl<F: Future, K: Sleeper> Default for Running<F, K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: Future, K: Sleeper> Running<F, K> {
    /// No race yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            racers: Vec::new(),
            granted: false,
            put_off: false,
            timer: Timer::new(),
            set_for: None,
        }
    }

    /// Begins a race with its first attempt, which is made by `start`.
    pub fn begin<R, P, D>(
        &mut self,
        driver: &mut Driver<'_, K, R, P, D>,
        hedge: &Hedge,
        leave: Leave,
        start: impl FnOnce(&Racer) -> F,
    ) where
        R: Random,
        P: Deref<Target = Policy>,
        D: Target,
    {
        let racer = driver.begin_race(hedge, leave);
        (self.granted, self.put_off) = (false, false);
        self.racers.clear();
        self.racers.push((racer, Box::pin(start(&racer))));
    }

    /// Whether no attempt runs.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.racers.is_empty()
    }

    /// Whether a hedge is due that has not joined.
    #[must_use]
    pub const fn is_due(&self) -> bool {
        self.granted || self.put_off
    }

    /// The hedge that is due joins, made by `start`.
    pub fn join<R, P, D>(
        &mut self,
        driver: &mut Driver<'_, K, R, P, D>,
        start: impl FnOnce(&Racer) -> F,
    ) where
        R: Random,
        P: Deref<Target = Policy>,
        D: Target,
    {
        if std::mem::take(&mut self.granted) {
            let racer = driver.begin_hedge();
            self.racers.push((racer, Box::pin(start(&racer))));
        }
    }

    /// The hedge that is due cannot be sent yet: gives back what was granted, so that it takes nothing
    /// from others while it waits. It [is renewed](Self::renew) when it can be sent.
    pub fn put_off<R, P, D>(&mut self, driver: &mut Driver<'_, K, R, P, D>)
    where
        R: Random,
        P: Deref<Target = Policy>,
        D: Target,
    {
        if std::mem::take(&mut self.granted) {
            driver.put_off_hedge();
            self.put_off = true;
        }
    }

    /// The hedge that is due can be sent now: whether it may, which is asked again if it was [put
    /// off](Self::put_off). If it may not, no other joins.
    pub fn renew<R, P, D>(&mut self, driver: &mut Driver<'_, K, R, P, D>) -> bool
    where
        R: Random,
        P: Deref<Target = Policy>,
        D: Target,
    {
        if std::mem::take(&mut self.put_off) {
            self.granted = driver.grant_hedge();
        }
        self.granted
    }

    /// The hedge that is due cannot be sent: gives it back. No other joins.
    pub fn call_off<R, P, D>(&mut self, driver: &mut Driver<'_, K, R, P, D>)
    where
        R: Random,
        P: Deref<Target = Policy>,
        D: Target,
    {
        driver.call_off_hedge();
        (self.granted, self.put_off) = (false, false);
    }

    /// The next thing that happens.
    pub fn poll_next<R, P, D>(
        &mut self,
        driver: &mut Driver<'_, K, R, P, D>,
        context: &mut Context<'_>,
    ) -> Poll<RaceEvent<F>>
    where
        R: Random,
        P: Deref<Target = Policy>,
        D: Target,
    {
        loop {
            for index in 0..self.racers.len() {
                if let Poll::Ready(outcome) = self.racers[index].1.as_mut().poll(context) {
                    let (racer, _) = self.racers.remove(index);
                    return Poll::Ready(RaceEvent::Ended(racer, outcome));
                }
            }
            let due = driver
                .hedge_due()
                .filter(|_| !self.granted && !self.put_off);
            let ends = self.racers.iter().filter_map(|(racer, _)| racer.ends());
            let Some(next) = ends.chain(due).min() else {
                return Poll::Pending;
            };
            if self.set_for != Some(next) {
                let clock = driver.clock();
                let left = next.saturating_since(clock.now());
                if left.is_zero() {
                    self.set_for = None;
                } else {
                    self.timer.set(clock, left);
                    self.set_for = Some(next);
                }
            }
            if self.set_for.is_some() {
                ready!(self.timer.poll(context));
                self.set_for = None;
            }
            // It is then, whatever the clock says: a timer that is early must not be set forever.
            let cut_off = |racer: &Racer| racer.ends().is_some_and(|ends| ends <= next);
            if let Some(index) = self.racers.iter().position(|(racer, _)| cut_off(racer)) {
                let (racer, attempt) = self.racers.remove(index);
                return Poll::Ready(RaceEvent::CutOff(racer, attempt));
            }
            if driver.grant_hedge() {
                self.granted = true;
                return Poll::Ready(RaceEvent::Due);
            }
        }
    }

    /// This attempt, which is over, won: drops the others. `seen`: what the trace says of it.
    pub fn won<R, P, D>(
        &mut self,
        driver: &mut Driver<'_, K, R, P, D>,
        hedge: &Hedge,
        racer: &Racer,
        seen: Option<Cause>,
    ) where
        R: Random,
        P: Deref<Target = Policy>,
        D: Target,
    {
        self.cancel(driver);
        driver.on_race_won(hedge, racer, seen);
    }

    /// This attempt, which is over, failed. If that ends the race, the others are dropped, and
    /// [`Driver::on_failure`] with the failure that decides comes next.
    pub fn failed<R, P, D>(
        &mut self,
        driver: &mut Driver<'_, K, R, P, D>,
        hedge: &Hedge,
        racer: &Racer,
        failure: &Failure,
    ) -> Raced
    where
        R: Random,
        P: Deref<Target = Policy>,
        D: Target,
    {
        let raced = driver.on_race_failure(hedge, racer, failure);
        // A push-back has called off what was granted.
        let due = driver.hedge_due().is_some();
        self.granted &= due;
        self.put_off &= due;
        if let Raced::Over { .. } = raced {
            self.cancel(driver);
        }
        raced
    }

    /// Drops those that run.
    pub fn cancel<R, P, D>(&mut self, driver: &mut Driver<'_, K, R, P, D>)
    where
        R: Random,
        P: Deref<Target = Policy>,
        D: Target,
    {
        (self.granted, self.put_off) = (false, false);
        self.set_for = None;
        for (racer, attempt) in self.racers.drain(..) {
            drop(attempt);
            driver.on_lost(&racer);
        }
    }
}

impl<F, K: Sleeper> fmt::Debug for Running<F, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("attempts", &self.racers.len())
            .finish_non_exhaustive()
    }
}

impl<F: Future> fmt::Debug for RaceEvent<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Due => f.write_str("Due"),
            Self::Ended(racer, _) => f.debug_tuple("Ended").field(racer).finish(),
            Self::CutOff(racer, _) => f.debug_tuple("CutOff").field(racer).finish(),
        }
    }
}
