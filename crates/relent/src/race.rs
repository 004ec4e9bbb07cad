//! Concurrent attempts (a race of hedges) with one shared timer.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use relent_core::call::CallPermit;
pub use relent_core::call::{Race, RaceAttempt, RaceOutcome};
use relent_core::destination::Hedge;
use relent_core::{Cause, Failure, Instant};

use crate::clock::{Clock, Sleeper};
use crate::driver::Driver;
use crate::timer::Timer;

/// The attempts of a [`Race`] as futures, for your own loop with hedges.
///
/// Every attempt is boxed. Dropping this drops the running attempts.
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
/// // The first attempt takes ten seconds, the hedge completes immediately.
/// let ask = |seconds| async move { tokio::time::sleep(Duration::from_secs(seconds)).await };
/// let mut running = Running::new();
/// let permit = driver.entered().await.expect("nothing holds it back");
/// running.begin(&mut driver, &hedge, permit, |_| ask(10));
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
pub struct Running<F, K: Clock> {
    racers: Vec<(RaceAttempt, Pin<Box<F>>)>,
    /// A granted hedge has not joined yet.
    granted: bool,
    /// A due hedge was deferred, because it could not be sent when it was granted.
    postpone: bool,
    timer: Timer<K>,
    /// The instant that the timer is set for.
    set_for: Option<Instant>,
}

/// An event of a race.
pub enum RaceEvent<F: Future> {
    /// A hedge is due and granted: have it [join](Running::join), or [cancel
    /// it](Running::cancel_due_hedge).
    Due,
    /// An attempt has ended with this outcome.
    Ended(RaceAttempt, F::Output),
    /// An attempt has reached its time limit; drop it.
    CutOff(RaceAttempt, Pin<Box<F>>),
}

impl<F: Future, K: Sleeper> Default for Running<F, K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: Future, K: Sleeper> Running<F, K> {
    /// Creates an empty race.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            racers: Vec::new(),
            granted: false,
            postpone: false,
            timer: Timer::new(),
            set_for: None,
        }
    }

    /// Starts a race with its first attempt, made by `start`.
    pub fn begin(
        &mut self,
        driver: &mut Driver<'_, K>,
        hedge: &Hedge,
        permit: CallPermit,
        start: impl FnOnce(&RaceAttempt) -> F,
    ) {
        let racer = driver.begin_race(hedge, permit);
        (self.granted, self.postpone) = (false, false);
        self.racers.clear();
        self.racers.push((racer, Box::pin(start(&racer))));
    }

    /// Whether no attempt is running.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.racers.is_empty()
    }

    /// Whether a due hedge has not joined yet.
    #[must_use]
    pub const fn is_due(&self) -> bool {
        self.granted || self.postpone
    }

    /// Starts the granted hedge, made by `start`.
    pub fn join(&mut self, driver: &mut Driver<'_, K>, start: impl FnOnce(&RaceAttempt) -> F) {
        if std::mem::take(&mut self.granted) {
            let racer = driver.begin_hedge();
            self.racers.push((racer, Box::pin(start(&racer))));
        }
    }

    /// Defers the due hedge, which cannot be sent yet, and refunds it, so that it costs other calls
    /// nothing while it waits. [Renew](Self::resume_postponed) it when it can be sent.
    pub fn postpone(&mut self, driver: &mut Driver<'_, K>) {
        if std::mem::take(&mut self.granted) {
            driver.put_off_hedge();
            self.postpone = true;
        }
    }

    /// Requests a [deferred](Self::postpone) hedge again, now that it can be sent. Returns whether
    /// it may start. If it may not, no other hedge joins.
    pub fn resume_postponed(&mut self, driver: &mut Driver<'_, K>) -> bool {
        if std::mem::take(&mut self.postpone) {
            self.granted = driver.grant_hedge();
        }
        self.granted
    }

    /// Cancels the due hedge, which cannot be sent, and refunds it. No other hedge joins.
    pub fn cancel_due_hedge(&mut self, driver: &mut Driver<'_, K>) {
        driver.cancel_hedge();
        (self.granted, self.postpone) = (false, false);
    }

    /// Polls for the next event.
    pub fn poll_next(
        &mut self,
        driver: &mut Driver<'_, K>,
        context: &mut Context<'_>,
    ) -> Poll<RaceEvent<F>> {
        loop {
            for index in 0..self.racers.len() {
                if let Poll::Ready(outcome) = self.racers[index].1.as_mut().poll(context) {
                    let (racer, _) = self.racers.remove(index);
                    return Poll::Ready(RaceEvent::Ended(racer, outcome));
                }
            }
            let due = driver
                .hedge_due()
                .filter(|_| !self.granted && !self.postpone);
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
            // Treat the timer as expired even if the clock is slightly behind; otherwise it would
            // be re-armed for ever.
            let cut_off = |racer: &RaceAttempt| racer.ends().is_some_and(|ends| ends <= next);
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

    /// Reports that this attempt, which has ended, won, and drops the others. `seen` is its status
    /// for the trace.
    pub fn won(
        &mut self,
        driver: &mut Driver<'_, K>,
        hedge: &Hedge,
        racer: &RaceAttempt,
        seen: Option<Cause>,
    ) {
        self.cancel(driver);
        driver.on_race_won(hedge, racer, seen);
    }

    /// Reports that this attempt, which has ended, failed. If that ends the race, the others are
    /// dropped; then call [`Driver::on_failure`] with the deciding failure.
    pub fn failed(
        &mut self,
        driver: &mut Driver<'_, K>,
        hedge: &Hedge,
        racer: &RaceAttempt,
        failure: &Failure,
    ) -> RaceOutcome {
        let raced = driver.on_race_failure(hedge, racer, failure);
        // A server push-back may have cancelled the granted hedge.
        let due = driver.hedge_due().is_some();
        self.granted &= due;
        self.postpone &= due;
        if let RaceOutcome::Over { .. } = raced {
            self.cancel(driver);
        }
        raced
    }

    /// Drops the running attempts.
    pub fn cancel(&mut self, driver: &mut Driver<'_, K>) {
        (self.granted, self.postpone) = (false, false);
        self.set_for = None;
        for (racer, attempt) in self.racers.drain(..) {
            drop(attempt);
            driver.on_lost(&racer);
        }
    }
}

impl<F, K: Clock> fmt::Debug for Running<F, K> {
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
