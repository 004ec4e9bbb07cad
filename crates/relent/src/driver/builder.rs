//! What a driver is made of.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use relent_core::{Call, CallOptions, Policy, Random, Repeatable};

use super::{ByDestination, Driver, Environment, NoDestination, Target, ToDestination};
use crate::clock::Clock;
use crate::destination::Destination;
use crate::observe::Observer;
use crate::random::SessionRandom;

/// What a [`Driver`] is made of; [`start`](Self::start) makes it.
#[must_use = "a builder does nothing until `start`"]
pub struct DriverBuilder<'p, K, R = SessionRandom, P = &'p Policy, D = NoDestination> {
    options: CallOptions<'p>,
    environment: Environment<K, R, P, D>,
}

impl<K, P, D> DriverBuilder<'_, K, SessionRandom, P, D> {
    const fn new(policy: P, target: D, clock: K) -> Self {
        Self {
            options: CallOptions::new(),
            environment: Environment {
                policy,
                target,
                clock,
                random: SessionRandom::new(),
                observer: Observer::NEW,
            },
        }
    }
}

impl<'p, K: Clock> Driver<'p, K> {
    /// Begins a driver for one repeatable operation, with a random stream of its own.
    #[inline]
    pub const fn builder(policy: &'p Policy, clock: K) -> DriverBuilder<'p, K> {
        DriverBuilder::new(policy, NoDestination, clock)
    }
}

impl<'p, K, P, D> Driver<'p, K, SessionRandom, P, ToDestination<D>>
where
    K: Clock,
    P: Deref<Target = Policy>,
    D: Deref<Target = Destination>,
{
    /// The same as [`builder`](Driver::builder), with shares in policy and destination in place of
    /// borrowing them.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use relent::{Destination, Policy};
    /// use relent::clock::StdClock;
    /// use relent::driver::{Driver, Next};
    ///
    /// let policy = Arc::new(Policy::STANDARD.clone());
    /// let there = Some(Arc::new(Destination::new(policy.clone())));
    /// let mut driver = Driver::shared(policy, there, StdClock).start();
    /// assert!(matches!(driver.enter(None), Next::Start(_)));
    /// ```
    #[inline]
    pub const fn shared(
        policy: P,
        destination: Option<D>,
        clock: K,
    ) -> DriverBuilder<'p, K, SessionRandom, P, ToDestination<D>> {
        DriverBuilder::new(policy, ToDestination::new(destination), clock)
    }
}

impl<'p, K, R, P, D> DriverBuilder<'p, K, R, P, D>
where
    K: Clock,
    R: Random,
    P: Deref<Target = Policy>,
    D: Target,
{
    /// Goes to this destination: takes the retries out of its budget, minds its cooldown and its gate.
    #[inline]
    pub fn destination(
        self,
        destination: &'p Destination,
    ) -> DriverBuilder<'p, K, R, P, ToDestination<&'p Destination>> {
        self.maybe_destination(Some(destination))
    }

    /// The same, for code that may have none.
    #[inline]
    pub fn maybe_destination(
        self,
        destination: Option<&'p Destination>,
    ) -> DriverBuilder<'p, K, R, P, ToDestination<&'p Destination>> {
        self.with(|_, clock, random| (ToDestination::new(destination), clock, random))
    }

    /// Goes to this destination by the policy that it has.
    #[inline]
    pub(crate) fn by_destination(
        self,
        destination: &'p Destination,
    ) -> DriverBuilder<'p, K, R, P, ByDestination<'p>> {
        self.with(|_, clock, random| (ByDestination::new(destination), clock, random))
    }

    /// Whether the operation may run twice without harm; it may unless said otherwise. A `bool` is the
    /// caller's word, which no policy overrules; [`Repeatable::known`] is for what was only found out.
    ///
    /// ```
    /// use relent::{Failure, Policy, StopReason};
    /// use relent::clock::StdClock;
    /// use relent::driver::{Driver, Next};
    ///
    /// let assuming = Policy::STANDARD.clone().into_builder().assume_repeatable(true).build()?;
    /// let mut driver = Driver::builder(&assuming, StdClock).repeatable(false).start();
    /// # let Next::Start(leave) = driver.enter(None) else { unreachable!() };
    /// driver.on_attempt(leave);
    /// let stop = driver.on_failure(&Failure::ambiguous()).stop();
    /// assert_eq!(stop.map(|stop| stop.reason), Some(StopReason::NotRepeatable));
    /// # Ok::<(), relent::policy::PolicyError>(())
    /// ```
    pub fn repeatable(mut self, repeatable: impl Into<Repeatable>) -> Self {
        self.options = self.options.repeatable(repeatable);
        self
    }

    /// Keeps a trace of every attempt.
    pub fn traced(mut self) -> Self {
        self.options = self.options.traced();
        self
    }

    /// Takes the waits from an iterator in place of the policy's backoff; there are no more retries
    /// when it ends. Ceiling, jitter, hints and limits of the policy apply as ever.
    pub fn waits(mut self, waits: impl Iterator<Item = Duration> + Send + 'p) -> Self {
        self.options = self.options.waits(waits);
        self
    }

    /// Names the destination in the metrics of this session; without it they have no such label.
    #[cfg(feature = "metrics")]
    pub fn label(mut self, label: crate::observe::Label) -> Self {
        self.environment.observer.label(label);
        self
    }

    /// Draws from this random source.
    pub fn random<R2: Random>(self, random: R2) -> DriverBuilder<'p, K, R2, P, D> {
        self.with(|target, clock, _| (target, clock, random))
    }

    /// Reads this clock.
    pub fn clock<K2: Clock>(self, clock: K2) -> DriverBuilder<'p, K2, R, P, D> {
        self.with(|target, _, random| (target, clock, random))
    }

    /// The same with other parts, which may be of other types.
    #[inline]
    fn with<K2, R2, D2>(
        self,
        change: impl FnOnce(D, K, R) -> (D2, K2, R2),
    ) -> DriverBuilder<'p, K2, R2, P, D2> {
        let environment = self.environment;
        let (target, clock, random) =
            change(environment.target, environment.clock, environment.random);
        DriverBuilder {
            options: self.options,
            environment: Environment {
                policy: environment.policy,
                target,
                clock,
                random,
                observer: environment.observer,
            },
        }
    }

    /// The driver, before its first attempt.
    #[inline]
    pub fn start(self) -> Driver<'p, K, R, P, D> {
        Driver {
            call: Call::new(self.options, &self.environment),
            environment: self.environment,
        }
    }
}

impl<K, R, P, D> fmt::Debug for DriverBuilder<'_, K, R, P, D>
where
    P: Deref<Target = Policy>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverBuilder")
            .field("policy", &*self.environment.policy)
            .finish_non_exhaustive()
    }
}
