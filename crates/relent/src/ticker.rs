//! Tickers that follow the delays of a policy.

use std::convert::Infallible;

use relent_core::call::{Call, Environment};
use relent_core::destination::{Budget, Destination};
use relent_core::{Decision, Failure, Instant, Policy, Random};

use crate::clock::{BlockingSleeper, Clock, Sleeper, StdClock};
use crate::random::SessionRandom;
use crate::retry::DefaultClock;

/// Ticks by the delays of a policy: immediately, then after each delay, until the policy gives up.
/// For loops that are not a closure.
///
/// A delay counts from the previous tick, not from the end of the work in between. If the work
/// takes longer, the next tick comes immediately (as with cenkalti's `Ticker`). Drop it to stop.
///
/// ```
/// use relent::{Policy, Ticker};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let mut ticker = Ticker::new(Policy::STANDARD);
/// let mut ticks = 0;
/// while ticker.tick().await.is_some() {
///     ticks += 1;
/// }
/// assert_eq!(ticks, 8);
/// # }
/// ```
#[derive(Debug)]
pub struct Ticker<'p, K: Clock = DefaultClock, R: Random = SessionRandom> {
    ticks: Ticks<'p, K, R>,
}

#[cfg(all(
    feature = "tokio",
    not(all(target_arch = "wasm32", target_os = "unknown"))
))]
impl<'p> Ticker<'p> {
    /// Creates a ticker for this policy. Its first tick is due now.
    #[must_use]
    pub fn new(policy: &'p Policy) -> Self {
        Self::with_clock(policy, DefaultClock::default())
    }
}

impl<'p, K: Sleeper> Ticker<'p, K> {
    /// Creates a ticker that uses this clock for time and waits.
    #[must_use]
    pub fn with_clock(policy: &'p Policy, clock: K) -> Self {
        Self {
            ticks: Ticks::new(policy, clock),
        }
    }
}

impl<K: Sleeper, R: Random> Ticker<'_, K, R> {
    /// Waits for the next tick and returns its number, from 1; `None` when the policy gives up.
    /// Cancel-safe: dropping the future loses no tick.
    pub async fn tick(&mut self) -> Option<u32> {
        let due = self.ticks.next_due()?;
        let clock = self.ticks.clock();
        let wait = due.saturating_since(clock.now());
        if !wait.is_zero() {
            clock.sleep(wait).await;
        }
        self.ticks.tick(due)
    }
}

/// The blocking form of [`Ticker`]: an iterator of tick numbers, from 1.
///
/// ```
/// use relent::{Policy, VirtualClock, blocking};
///
/// let ticks: Vec<u32> = blocking::Ticker::with_clock(Policy::STANDARD, VirtualClock::new()).collect();
/// assert_eq!(ticks, [1, 2, 3, 4, 5, 6, 7, 8]);
/// ```
#[derive(Debug)]
pub struct BlockingTicker<'p, K: Clock = StdClock, R: Random = SessionRandom> {
    ticks: Ticks<'p, K, R>,
}

#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
impl<'p> BlockingTicker<'p> {
    /// Creates a ticker for this policy. Its first tick is due now.
    #[must_use]
    pub fn new(policy: &'p Policy) -> Self {
        Self::with_clock(policy, StdClock)
    }
}

impl<'p, K: BlockingSleeper> BlockingTicker<'p, K> {
    /// Creates a ticker that uses this clock for time and waits.
    #[must_use]
    pub fn with_clock(policy: &'p Policy, clock: K) -> Self {
        Self {
            ticks: Ticks::new(policy, clock),
        }
    }
}

impl<K: BlockingSleeper, R: Random> Iterator for BlockingTicker<'_, K, R> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let due = self.ticks.next_due()?;
        let clock = self.ticks.clock();
        let wait = due.saturating_since(clock.now());
        if !wait.is_zero() && !clock.block(wait) {
            return None;
        }
        self.ticks.tick(due)
    }
}

/// A call whose attempts are ticks. It reports no events or metrics.
#[derive(Debug)]
struct Ticks<'p, K, R> {
    call: Call<'p>,
    environment: TickerEnvironment<'p, K, R>,
    due: Due,
}

/// The environment of the call: policy, clock and random source, without a destination.
#[derive(Debug)]
struct TickerEnvironment<'p, K, R> {
    policy: &'p Policy,
    clock: K,
    random: R,
}

#[derive(Debug)]
enum Due {
    /// The tick at this instant has not been delivered yet.
    At(Instant),
    /// The last tick was delivered at this instant; the next has not been requested.
    After(Instant),
    Over,
}

impl<K: Clock, R: Random> Environment for TickerEnvironment<'_, K, R> {
    type Access = Infallible;
    type Random = R;

    fn policy(&self) -> &Policy {
        self.policy
    }

    fn destination(&self) -> Option<&Destination<Infallible>> {
        None
    }

    fn parts(&mut self) -> (&Policy, Option<&Budget>, &mut R) {
        (self.policy, None, &mut self.random)
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }
}

impl<'p, K: Clock> Ticks<'p, K, SessionRandom> {
    fn new(policy: &'p Policy, clock: K) -> Self {
        let due = Due::At(clock.now());
        let environment = TickerEnvironment {
            policy,
            clock,
            random: SessionRandom::new(),
        };
        Self {
            call: Call::new(&environment),
            environment,
            due,
        }
    }
}

impl<K: Clock, R: Random> Ticks<'_, K, R> {
    const fn clock(&self) -> &K {
        &self.environment.clock
    }

    fn next_due(&mut self) -> Option<Instant> {
        let last = match self.due {
            Due::At(due) => return Some(due),
            Due::Over => return None,
            Due::After(last) => last,
        };
        let decision = self.call.failed(&mut self.environment, &Failure::pending());
        let due = match decision {
            Decision::Retry { after } => Some(last.saturating_add(after)),
            Decision::Stop(_) => None,
        };
        self.due = due.map_or(Due::Over, Due::At);
        due
    }

    /// Delivers the tick that is due, unless it is too late.
    fn tick(&mut self, due: Instant) -> Option<u32> {
        let Some(permit) = self.call.next(&mut self.environment, None).permit() else {
            self.due = Due::Over;
            return None;
        };
        // The next delay counts from a late tick; otherwise all missed ticks would follow
        // immediately.
        self.due = Due::After(due.max(self.clock().now()));
        let (attempt, _) = self.call.begin(&mut self.environment, permit);
        Some(attempt.number)
    }
}
