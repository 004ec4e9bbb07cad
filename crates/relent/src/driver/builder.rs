//! The builder of a driver.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use relent_core::call::{Call, CallOptions};
use relent_core::{Policy, Random, Repeatable};

use super::{ByDestination, Driver, Environment, NoDestination, Target, ToDestination};
use crate::clock::Clock;
use crate::destination::Destination;
use crate::observe::Observer;
use crate::random::SessionRandom;

/// Builds a [`Driver`]; finish with [`start`](Self::start).
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
    /// Builds a driver for one repeatable operation, with its own random stream.
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
    /// Like [`builder`](Driver::builder), with shared ownership of policy and destination in place
    /// of borrows.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use relent::{Destination, Policy};
    /// use relent::clock::StdClock;
    /// use relent::driver::{Driver, NextStep};
    ///
    /// let policy = Arc::new(Policy::STANDARD.clone());
    /// let there = Some(Arc::new(Destination::new(policy.clone())));
    /// let mut driver = Driver::shared(policy, there, StdClock).start();
    /// assert!(matches!(driver.enter(None), NextStep::Start(_)));
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
    /// Uses this destination: retries are paid from its budget, and its cooldown and circuit
    /// breaker apply.
    #[inline]
    pub fn destination(
        self,
        destination: &'p Destination,
    ) -> DriverBuilder<'p, K, R, P, ToDestination<&'p Destination>> {
        self.maybe_destination(Some(destination))
    }

    /// Like [`destination`](Self::destination), for code that may have none.
    #[inline]
    pub fn maybe_destination(
        self,
        destination: Option<&'p Destination>,
    ) -> DriverBuilder<'p, K, R, P, ToDestination<&'p Destination>> {
        self.with(|_, clock, random| (ToDestination::new(destination), clock, random))
    }

    /// Uses this destination and the policy that it has.
    #[inline]
    pub(crate) fn by_destination(
        self,
        destination: &'p Destination,
    ) -> DriverBuilder<'p, K, R, P, ByDestination<'p>> {
        self.with(|_, clock, random| (ByDestination::new(destination), clock, random))
    }

    /// Sets whether the operation may safely run twice; the default is that it may. A `bool` is the
    /// caller's declaration, which no policy overrides. [`Repeatable::known`] is for a value
    /// derived from the request.
    ///
    /// ```
    /// use relent::{Failure, Policy, StopReason};
    /// use relent::clock::StdClock;
    /// use relent::driver::{Driver, NextStep};
    ///
    /// let assuming = Policy::STANDARD.clone().into_builder().assume_repeatable(true).build()?;
    /// let mut driver = Driver::builder(&assuming, StdClock).repeatable(false).start();
    /// # let NextStep::Start(permit) = driver.enter(None) else { unreachable!() };
    /// driver.on_attempt(permit);
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

    /// Takes the delays from an iterator in place of the policy's backoff. When it ends, there are
    /// no more retries. Cap, jitter, hints and limits of the policy still apply.
    pub fn waits(mut self, waits: impl Iterator<Item = Duration> + Send + 'p) -> Self {
        self.options = self.options.waits(waits);
        self
    }

    /// Sets the destination label of this session's metrics; by default they have none.
    #[cfg(feature = "metrics")]
    pub fn label(mut self, label: crate::observe::Label) -> Self {
        self.environment.observer.label(label);
        self
    }

    /// Uses this random source.
    pub fn random<R2: Random>(self, random: R2) -> DriverBuilder<'p, K, R2, P, D> {
        self.with(|target, clock, _| (target, clock, random))
    }

    /// Uses this clock.
    pub fn clock<K2: Clock>(self, clock: K2) -> DriverBuilder<'p, K2, R, P, D> {
        self.with(|target, _, random| (target, clock, random))
    }

    /// Replaces parts, possibly by others of other types.
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

    /// Makes the driver, before its first attempt.
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
