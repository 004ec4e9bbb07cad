//! The builder of a driver.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use relent_core::call::{Call, CallOptions};
use relent_core::{Policy, Random, Repeatable};

use super::handle::Handle;
use super::{Driver, Environment};
use crate::clock::Clock;
use crate::destination::Destination;
use crate::observe::Observer;
use crate::random::RandomSource;

/// Builds a [`Driver`]; finish with [`start`](Self::start).
#[must_use = "a builder does nothing until `start`"]
pub struct DriverBuilder<'p, K> {
    options: CallOptions<'p>,
    environment: Environment<'p, K>,
}

impl<'p, K: Clock> Driver<'p, K> {
    /// Builds a driver for one repeatable operation, with its own random stream.
    #[inline]
    pub const fn builder(policy: &'p Policy, clock: K) -> DriverBuilder<'p, K> {
        DriverBuilder::new(Handle::Borrowed(policy), None, clock)
    }

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
    pub fn shared(
        policy: Arc<Policy>,
        destination: Option<Arc<Destination>>,
        clock: K,
    ) -> DriverBuilder<'p, K> {
        DriverBuilder::new(
            Handle::Shared(policy),
            destination.map(Handle::Shared),
            clock,
        )
    }
}

impl<'p, K> DriverBuilder<'p, K> {
    const fn new(
        policy: Handle<'p, Policy>,
        destination: Option<Handle<'p, Destination>>,
        clock: K,
    ) -> Self {
        Self {
            options: CallOptions::new(),
            environment: Environment {
                policy,
                destination,
                clock,
                random: RandomSource::NEW,
                observer: Observer::NEW,
            },
        }
    }
}

impl<'p, K: Clock> DriverBuilder<'p, K> {
    /// Uses this destination: retries are paid from its budget, and its cooldown and circuit
    /// breaker apply.
    #[inline]
    pub fn destination(self, destination: &'p Destination) -> Self {
        self.maybe_destination(Some(destination))
    }

    /// Like [`destination`](Self::destination), for code that may have none.
    #[inline]
    pub fn maybe_destination(mut self, destination: Option<&'p Destination>) -> Self {
        self.environment.destination = destination.map(Handle::Borrowed);
        self
    }

    /// Uses this destination and the policy that it has now.
    #[inline]
    pub(crate) fn by_destination(mut self, destination: &'p Destination) -> Self {
        self.environment.policy = Handle::Shared(destination.policy());
        self.destination(destination)
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

    /// Uses this random source in place of its own stream.
    pub fn random(mut self, random: impl Random + Send + 'p) -> Self {
        self.environment.random = RandomSource::Other(Box::new(random));
        self
    }

    /// Seeds the random stream: the same seed gives the same waits.
    pub fn seed(mut self, seed: u64) -> Self {
        self.environment.random = RandomSource::with_seed(seed);
        self
    }

    /// Uses this clock.
    #[inline]
    pub fn clock<K2: Clock>(self, clock: K2) -> DriverBuilder<'p, K2> {
        let Environment {
            policy,
            destination,
            clock: _,
            random,
            observer,
        } = self.environment;
        DriverBuilder {
            options: self.options,
            environment: Environment {
                policy,
                destination,
                clock,
                random,
                observer,
            },
        }
    }

    /// Makes the driver, before its first attempt.
    #[inline]
    pub fn start(self) -> Driver<'p, K> {
        Driver {
            call: Call::new(self.options, &self.environment),
            environment: self.environment,
        }
    }
}

impl<K> fmt::Debug for DriverBuilder<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverBuilder")
            .field("policy", &*self.environment.policy)
            .finish_non_exhaustive()
    }
}
