//! Server-side admission control: deadline, rate limits and load shedding.

use alloc::vec::Vec;
use core::time::Duration;

use crate::admission::load_shedder::{Arrival, Shed, Shedder};
use crate::admission::rate_limiter::{Limiter, Refusal, Verdict};
use crate::hint::{Advice, Audience, Hint};
use crate::time::{Instant, nanos};

/// The result for an admitted request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Admitted {
    /// The request came in a slot that a limiter had reserved for it, so it is not a retry by the
    /// caller's own choice.
    pub reserved_slot: bool,
}

/// The reason for rejecting a request, with everything that its caller needs.
///
/// | | HTTP | the caller may |
/// |---|---|---|
/// | [`Limited`](Self::Limited) | 429 | retry at its reserved slot, or after about that time |
/// | [`TooCostly`](Self::TooCostly) | 4xx | not retry the same request |
/// | [`Shed`](Self::Shed) | 503 | retry later, unless the response forbids it |
/// | [`Expired`](Self::Expired) | 504 | not use the response any more |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rejected {
    /// A limiter rejects it.
    Limited {
        /// When to retry: the latest time of all limiters that reject.
        refusal: Refusal,
        /// The index of that limiter, from 0 in the order of checking.
        limiter: usize,
    },
    /// It costs more than the burst of a limiter, so it can never be admitted.
    TooCostly {
        /// The index of that limiter, from 0.
        limiter: usize,
    },
    /// The server is overloaded.
    Shed(Shed),
    /// The caller's deadline has passed.
    Expired,
}

impl Rejected {
    /// The hint for the response.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::{Audience, Hint};
    /// use relent_core::admission::{Refusal, Rejected};
    ///
    /// let refusal = Refusal::Ticket(Duration::from_millis(20));
    /// let hint = Rejected::Limited { refusal, limiter: 0 }.hint();
    /// assert_eq!(hint.delay(), Some(Duration::from_millis(20)));
    /// assert_eq!(hint.audience, Audience::TicketMillis);
    ///
    /// assert_eq!(Rejected::TooCostly { limiter: 0 }.hint(), Hint::do_not_retry());
    /// ```
    #[must_use]
    pub const fn hint(&self) -> Hint {
        match self {
            Self::Limited { refusal, .. } => {
                let audience = match refusal {
                    Refusal::Ticket(_) => Audience::TicketMillis,
                    Refusal::Shared(_) => Audience::Shared,
                };
                Hint::after(refusal.delay()).for_audience(audience)
            }
            Self::Shed(Shed {
                advice: Advice::None | Advice::DoRetry,
                after,
            }) => Hint::after(*after),
            Self::Shed(_) | Self::TooCostly { .. } => Hint::do_not_retry(),
            Self::Expired => Hint::NONE,
        }
    }
}

/// Server-side admission control: checks the caller's deadline, then the limiters, then the
/// [`Shedder`] (load shedding).
///
/// A request is admitted only if all of them admit it, and only then consumes quota. A request that
/// the shedder or another limiter rejects keeps its quota, and its ticket until the grace is over.
/// A limit therefore counts only served requests.
///
/// # Several limiters
/// For example one for all callers, and one for each caller that is kept elsewhere and passed to
/// [`admit_with`](Self::admit_with). If several reject a request, the caller gets the latest of
/// their times. A slot is reserved in that limiter, and in other limiters if it would still be
/// valid at that time. A limiter with free quota reserves nothing, and may reject at the time of
/// the ticket: then the ticket stays valid for its grace.
///
/// # Counting
/// The shedder counts attempts and retries that the limiters admit. A request with a ticket counts
/// as a first attempt: the server asked it to return.
///
/// Its memory is bounded by its limiters and its shedder. A driver shares one value behind a lock.
/// A time before the latest one counts as the latest.
///
/// ```
/// use core::time::Duration;
/// use relent_core::Instant;
/// use relent_core::admission::{AdmissionController, Arrival, Limiter, LimiterConfig, Refusal, Rejected, Shedder, ShedderConfig};
///
/// let config = LimiterConfig { burst: 1, ..LimiterConfig::new(100, Duration::from_secs(1)) };
/// let limiter = Limiter::new(&config)?;
/// let shedder = Shedder::new(&ShedderConfig { in_flight: 2, ..ShedderConfig::DEFAULT })?;
/// let mut intake = AdmissionController::new().limiter(limiter).shedder(shedder);
///
/// let now = Instant::ORIGIN;
/// let arrival = Arrival { caller: Some(7), ..Arrival::FIRST };
/// // A shed request takes nothing from the limiter: the next is admitted.
/// let busy = Arrival { in_flight: 2, ..arrival };
/// assert!(matches!(intake.admit(now, &busy), Err(Rejected::Shed(_))));
/// assert!(intake.admit(now, &arrival).is_ok());
/// // Now the limit is reached, and the caller gets a reserved slot.
/// let refusal = Refusal::Ticket(Duration::from_millis(10));
/// assert_eq!(intake.admit(now, &arrival), Err(Rejected::Limited { refusal, limiter: 0 }));
/// // The deadline of this one has passed.
/// let late = Arrival { remaining: Some(Duration::ZERO), ..arrival };
/// assert_eq!(intake.admit(now, &late), Err(Rejected::Expired));
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct AdmissionController {
    limiters: Vec<Limiter>,
    shedder: Option<Shedder>,
}

impl AdmissionController {
    /// Admits every request before its deadline.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            limiters: Vec::new(),
            shedder: None,
        }
    }

    /// Adds a limiter after the existing ones.
    #[must_use]
    pub fn limiter(mut self, limiter: Limiter) -> Self {
        self.limiters.push(limiter);
        self
    }

    /// Sets the shedder.
    #[must_use]
    pub fn shedder(mut self, shedder: Shedder) -> Self {
        self.shedder = Some(shedder);
        self
    }

    /// Decides about a request that arrives at `now`.
    ///
    /// # Errors
    /// [`Rejected`] if it is not admitted.
    pub fn admit(&mut self, now: Instant, arrival: &Arrival) -> Result<Admitted, Rejected> {
        self.admit_with(now, arrival, &mut [])
    }

    /// Like [`admit`](Self::admit), with more limiters that are checked after the own ones, such as
    /// one for each caller.
    ///
    /// # Errors
    /// [`Rejected`] if it is not admitted.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::Instant;
    /// use relent_core::admission::{AdmissionController, Arrival, Limiter, LimiterConfig, Rejected};
    ///
    /// let second = Duration::from_secs(1);
    /// let mut intake = AdmissionController::new().limiter(Limiter::new(&LimiterConfig::new(100, second))?);
    /// let config = LimiterConfig { burst: 1, ..LimiterConfig::new(1, second) };
    /// let mut of_ann = Limiter::new(&config)?;
    ///
    /// let (now, ann) = (Instant::ORIGIN, Arrival { caller: Some(1), ..Arrival::FIRST });
    /// assert!(intake.admit_with(now, &ann, &mut [&mut of_ann]).is_ok());
    /// // After 10 ms others have quota again; she must wait, and takes nothing from them.
    /// let soon = now.saturating_add(Duration::from_millis(10));
    /// let rejected = intake.admit_with(soon, &ann, &mut [&mut of_ann]);
    /// assert!(matches!(rejected, Err(Rejected::Limited { limiter: 1, .. })));
    /// assert!(intake.admit(soon, &Arrival { caller: Some(2), ..ann }).is_ok());
    /// # Ok::<(), relent_core::PolicyError>(())
    /// ```
    pub fn admit_with(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        more: &mut [&mut Limiter],
    ) -> Result<Admitted, Rejected> {
        if arrival.remaining.is_some_and(|left| left.is_zero()) {
            return Err(Rejected::Expired);
        }
        let Self { limiters, shedder } = self;
        let (caller, cost) = (arrival.caller, arrival.cost);
        let mut furthest: Option<(Refusal, usize)> = None;
        let mut ticket = false;
        for (index, limiter) in each(limiters, more).enumerate() {
            match limiter.peek(now, caller, cost) {
                Verdict::Impossible => return Err(Rejected::TooCostly { limiter: index }),
                Verdict::Admitted { ticket: has } => ticket |= has,
                Verdict::Refused(refusal) => {
                    if furthest.is_none_or(|(other, _)| other.delay() < refusal.delay()) {
                        furthest = Some((refusal, index));
                    }
                }
            }
        }
        if let Some((refusal, index)) = furthest {
            for limiter in each(limiters, more) {
                if let Verdict::Refused(own) = limiter.peek(now, caller, cost)
                    && nanos(own.delay()).saturating_add(limiter.grace()) >= nanos(refusal.delay())
                {
                    limiter.admit(now, caller, cost);
                }
            }
            return Err(Rejected::Limited {
                refusal,
                limiter: index,
            });
        }
        if let Some(shedder) = shedder {
            let attempt = if ticket { 1 } else { arrival.attempt };
            shedder
                .admit(
                    now,
                    &Arrival {
                        attempt,
                        ..*arrival
                    },
                )
                .map_err(Rejected::Shed)?;
        }
        for limiter in each(limiters, more) {
            limiter.admit(now, caller, cost);
        }
        Ok(Admitted {
            reserved_slot: ticket,
        })
    }

    /// Reports that a service ended at `now`; see [`Shedder::on_service_end`].
    pub fn on_service_end(&mut self, now: Instant, queued: u32) {
        if let Some(shedder) = &mut self.shedder {
            shedder.on_service_end(now, queued);
        }
    }

    /// Whether there was a standing queue within the last interval; see [`Shedder::is_overloaded`].
    /// `false` without a shedder.
    #[must_use]
    pub fn is_overloaded(&self, now: Instant) -> bool {
        let shedder = self.shedder.as_ref();
        shedder.is_some_and(|shedder| shedder.is_overloaded(now))
    }

    /// The share of retries among the requests that reached the shedder in the last ten seconds; 0
    /// without a shedder.
    pub fn retry_share(&mut self, now: Instant) -> f64 {
        let shedder = self.shedder.as_mut();
        shedder.map_or(0.0, |shedder| shedder.retry_share(now))
    }

    /// The expected wait behind `queued` requests; see [`Shedder::queue_delay`]. Zero without a
    /// shedder.
    #[must_use]
    pub fn queue_delay(&self, queued: u32) -> Duration {
        let shedder = self.shedder.as_ref();
        shedder.map_or(Duration::ZERO, |shedder| shedder.queue_delay(queued))
    }

    /// Its own limiters in the order of checking, to report their remaining quota to callers.
    pub fn limiters(&mut self) -> &mut [Limiter] {
        &mut self.limiters
    }
}

fn each<'l>(
    limiters: &'l mut [Limiter],
    more: &'l mut [&mut Limiter],
) -> impl Iterator<Item = &'l mut Limiter> {
    limiters
        .iter_mut()
        .chain(more.iter_mut().map(|limiter| &mut **limiter))
}

#[cfg(all(test, not(loom)))]
mod tests;
