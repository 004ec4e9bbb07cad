//! What a driver is made of.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use relent_core::{Policy, Random, Repeatable, Session, Trace};

use super::{Driver, Extras, Goes, NOT_YET, Nowhere, To};
use crate::clock::Clock;
use crate::destination::Destination;
use crate::observe::Observer;
use crate::random::SessionRandom;
use crate::seldom::Seldom;

/// What a [`Driver`] is made of; [`start`](Self::start) makes it.
#[must_use = "a builder does nothing until `start`"]
pub struct DriverBuilder<'p, K, R = SessionRandom, P = &'p Policy, D = Nowhere> {
    policy: P,
    to: D,
    clock: K,
    random: R,
    repeatable: Repeatable,
    silent: bool,
    extras: Option<Box<Extras<'p>>>,
    observer: Observer,
}

impl<K, P, D> DriverBuilder<'_, K, SessionRandom, P, D> {
    pub(super) const fn new(policy: P, to: D, clock: K) -> Self {
        Self {
            policy,
            to,
            clock,
            random: SessionRandom::new(),
            repeatable: Repeatable::Yes,
            silent: false,
            extras: None,
            observer: Observer::NEW,
        }
    }
}

impl<'p, K, R, P, D> DriverBuilder<'p, K, R, P, D>
where
    K: Clock,
    R: Random,
    P: Deref<Target = Policy>,
    D: Goes,
{
    /// Goes to this destination: takes the retries out of its budget, minds its cooldown and its gate.
    #[inline]
    pub fn destination(
        self,
        destination: &'p Destination,
    ) -> DriverBuilder<'p, K, R, P, To<&'p Destination>> {
        self.maybe_destination(Some(destination))
    }

    /// The same, for code that may have none.
    #[inline]
    pub fn maybe_destination(
        self,
        destination: Option<&'p Destination>,
    ) -> DriverBuilder<'p, K, R, P, To<&'p Destination>> {
        self.with(|_, clock, random| (To::new(destination), clock, random))
    }

    /// Whether the operation may run twice without harm; it may unless said otherwise. A `bool` is the
    /// caller's word, which no policy overrules; [`Repeatable::known`] is for what was only found out.
    ///
    /// ```
    /// use relent::{Driver, Failure, Policy, StdClock, StopReason};
    ///
    /// let assuming = Policy::STANDARD.clone().into_builder().assume_repeatable(true).build()?;
    /// let mut driver = Driver::builder(&assuming, StdClock).repeatable(false).start();
    /// driver.on_attempt();
    /// let stop = driver.on_failure(&Failure::ambiguous()).stop();
    /// assert_eq!(stop.map(|stop| stop.reason), Some(StopReason::NotRepeatable));
    /// # Ok::<(), relent::PolicyError>(())
    /// ```
    pub fn repeatable(mut self, repeatable: impl Into<Repeatable>) -> Self {
        self.repeatable = repeatable.into();
        self
    }

    /// Keeps a trace of every attempt.
    pub fn traced(mut self) -> Self {
        self.extras.get_or_insert_default().trace = Some(Trace::new());
        self
    }

    /// Takes the waits from an iterator in place of the policy's backoff; there are no more retries
    /// when it ends. Ceiling, jitter, hints and limits of the policy apply as ever.
    pub fn waits(mut self, waits: impl Iterator<Item = Duration> + Send + 'p) -> Self {
        self.extras.get_or_insert_default().waits = Some(Box::new(waits));
        self
    }

    /// Names the destination in the metrics of this session; without it they have no such label.
    #[cfg(feature = "metrics")]
    pub fn label(mut self, label: crate::observe::Label) -> Self {
        self.observer.label(label);
        self
    }

    /// Tells of nothing: what it drives is no operation.
    pub(crate) fn silent(mut self) -> Self {
        self.silent = true;
        self
    }

    /// Draws from this random source.
    pub fn random<R2: Random>(self, random: R2) -> DriverBuilder<'p, K, R2, P, D> {
        self.with(|to, clock, _| (to, clock, random))
    }

    /// Reads this clock.
    pub fn clock<K2: Clock>(self, clock: K2) -> DriverBuilder<'p, K2, R, P, D> {
        self.with(|to, _, random| (to, clock, random))
    }

    /// The same with other parts, which may be of other types.
    #[inline]
    fn with<K2, R2, D2>(
        self,
        change: impl FnOnce(D, K, R) -> (D2, K2, R2),
    ) -> DriverBuilder<'p, K2, R2, P, D2> {
        let (to, clock, random) = change(self.to, self.clock, self.random);
        DriverBuilder {
            policy: self.policy,
            to,
            clock,
            random,
            repeatable: self.repeatable,
            silent: self.silent,
            extras: self.extras,
            observer: self.observer,
        }
    }

    /// The driver, before its first attempt.
    #[inline]
    pub fn start(self) -> Driver<'p, K, R, P, D> {
        let mut session = Session::new(NOT_YET, true);
        session.set_repeatable(self.repeatable);
        Driver {
            attended: self.policy.needs_time()
                || self.to.destination().is_some()
                || self.extras.is_some(),
            policy: self.policy,
            to: self.to,
            clock: self.clock,
            random: self.random,
            session,
            silent: self.silent,
            counted: false,
            extras: Seldom::new(self.extras),
            observer: self.observer,
        }
    }
}

impl<K, R, P, D> fmt::Debug for DriverBuilder<'_, K, R, P, D>
where
    P: Deref<Target = Policy>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverBuilder")
            .field("policy", &*self.policy)
            .finish_non_exhaustive()
    }
}
