//! The builder of a driver.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use relent_core::call::Call;
use relent_core::{Policy, Random, Repeatable};

use super::handle::Handle;
use super::{Driver, Environment};
use crate::clock::Clock;
use crate::destination::Destination;
use crate::observe::Observer;
use crate::random::RandomSource;

/// Builds a [`Driver`]; finish with [`start`](Self::start).
#[must_use = "a builder does nothing until `start`"]
pub struct DriverBuilder<'p, K: Clock>(pub(crate) Driver<'p, K>);

impl<'p, K: Clock> Driver<'p, K> {
    /// Builds a driver for one repeatable operation, with its own random stream.
    #[inline]
    pub fn builder(policy: &'p Policy, clock: K) -> DriverBuilder<'p, K> {
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
        let destination = destination.map(Handle::Shared);
        DriverBuilder::new(Handle::Shared(policy), destination, clock)
    }

    /// Sets the destination in place, before the first attempt: a driver is expensive to move.
    #[inline]
    pub(crate) fn set_destination(&mut self, destination: Option<&'p Destination>) {
        self.environment.destination = destination.map(Handle::Borrowed);
        self.call.set_environment(&self.environment);
    }

    /// Sets this destination, and the policy that it has now.
    #[inline]
    pub(crate) fn set_by_destination(&mut self, destination: &'p Destination) {
        self.environment.policy = Handle::Shared(destination.policy());
        self.set_destination(Some(destination));
    }
}

impl<'p, K: Clock> DriverBuilder<'p, K> {
    #[inline]
    fn new(
        policy: Handle<'p, Policy>,
        destination: Option<Handle<'p, Destination>>,
        clock: K,
    ) -> Self {
        let environment = Environment {
            policy,
            destination,
            clock,
            random: RandomSource::NEW,
            observer: Observer::NEW,
        };
        Self(Driver {
            call: Call::new(&environment),
            environment,
        })
    }

    /// Uses this destination: retries are paid from its budget, and its cooldown and circuit
    /// breaker apply.
    #[inline]
    pub fn destination(self, destination: &'p Destination) -> Self {
        self.maybe_destination(Some(destination))
    }

    /// Like [`destination`](Self::destination), for code that may have none.
    #[inline]
    pub fn maybe_destination(mut self, destination: Option<&'p Destination>) -> Self {
        self.0.set_destination(destination);
        self
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
        self.0.set_repeatable(repeatable);
        self
    }

    /// Ends the call where its destination would queue it: at a circuit breaker that is down, a
    /// cooldown or a rate limit. It takes no place in the queue, so it delays no other call.
    ///
    /// ```
    /// use relent::{Destination, Policy, StopReason};
    /// use relent::clock::StdClock;
    /// use relent::driver::{Driver, NextStep};
    /// use relent::policy::RateLimitConfig;
    ///
    /// let rate = RateLimitConfig { burst: Some(1), ..RateLimitConfig::new(0.01) };
    /// let policy = Policy::STANDARD.clone().into_builder().rate_limit(rate).build()?;
    /// let there = Destination::new(&policy);
    /// let driver = || Driver::builder(&policy, StdClock).destination(&there).fail_fast().start();
    /// let mut first = driver();
    /// let NextStep::Start(permit) = first.enter(None) else {
    ///     unreachable!("the slot is free");
    /// };
    /// first.on_attempt(permit);
    /// let NextStep::Stop(stop) = driver().enter(None) else {
    ///     unreachable!("the only slot is taken");
    /// };
    /// assert_eq!(stop.reason, StopReason::RetryLater);
    /// # Ok::<(), relent::policy::PolicyError>(())
    /// ```
    pub fn fail_fast(mut self) -> Self {
        self.0.call.set_fail_fast();
        self
    }

    /// Keeps a trace of every attempt.
    pub fn traced(mut self) -> Self {
        self.0.call.set_traced();
        self
    }

    /// Takes the delays from an iterator in place of the policy's backoff. When it ends, there are
    /// no more retries. Cap, jitter, hints and limits of the policy still apply.
    pub fn waits(mut self, waits: impl Iterator<Item = Duration> + Send + 'p) -> Self {
        self.0.call.set_waits(waits);
        self
    }

    /// Sets the destination label of this session's metrics; by default they have none.
    #[cfg(feature = "metrics")]
    pub fn label(mut self, label: crate::observe::Label) -> Self {
        self.0.environment.observer.label(label);
        self
    }

    /// Uses this random source in place of its own stream.
    pub fn random(mut self, random: impl Random + Send + 'p) -> Self {
        self.0.environment.random = RandomSource::Other(Box::new(random));
        self
    }

    /// Seeds the random stream: the same seed gives the same waits.
    pub fn seed(mut self, seed: u64) -> Self {
        self.0.environment.random = RandomSource::with_seed(seed);
        self
    }

    /// Uses this clock.
    #[inline]
    pub fn clock<K2: Clock>(mut self, clock: K2) -> DriverBuilder<'p, K2> {
        // A driver has a destructor, so its parts are replaced and not moved.
        let Driver { call, environment } = &mut self.0;
        let unused = Call::new(environment);
        let call = mem::replace(call, unused);
        let environment = Environment {
            policy: mem::replace(&mut environment.policy, Handle::Borrowed(Policy::STANDARD)),
            destination: environment.destination.take(),
            clock,
            random: mem::replace(&mut environment.random, RandomSource::NEW),
            observer: mem::replace(&mut environment.observer, Observer::NEW),
        };
        DriverBuilder(Driver { call, environment })
    }

    /// Makes the driver, before its first attempt.
    #[inline]
    pub fn start(self) -> Driver<'p, K> {
        self.0
    }
}

impl<K: Clock> fmt::Debug for DriverBuilder<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverBuilder")
            .field("policy", self.0.policy())
            .finish_non_exhaustive()
    }
}
