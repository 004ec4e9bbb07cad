//! The intake: what a server asks before it serves.

use alloc::vec::Vec;
use core::time::Duration;

use crate::hint::{Advice, Audience, Hint};
use crate::limiter::{Limiter, Refusal, Verdict};
use crate::shedder::{Arrival, Shed, Shedder};
use crate::time::{Instant, nanos};

/// A request that is let in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Admitted {
    /// It came in a slot that a limiter had reserved for it: it was told to come, and is no retry by
    /// the caller's own choice.
    pub ticket: bool,
}

/// Why a request is not let in, and all that its caller has to be told.
///
/// | | HTTP | the caller may |
/// |---|---|---|
/// | [`Limited`](Self::Limited) | 429 | come back at its slot, or after about that time |
/// | [`TooCostly`](Self::TooCostly) | 4xx | not come back with the same request |
/// | [`Shed`](Self::Shed) | 503 | come back later, or is told not to |
/// | [`Expired`](Self::Expired) | 504 | do as it likes: it waits no more |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rejected {
    /// A limiter refuses it.
    Limited {
        /// When to come back: the furthest of all limiters that refuse.
        refusal: Refusal,
        /// Which of the limiters that was, in the order in which they are asked, from 0.
        limiter: usize,
    },
    /// It costs more than the burst of a limiter, so that it can never be admitted.
    TooCostly {
        /// Which of the limiters that was, from 0.
        limiter: usize,
    },
    /// The server has too much to do.
    Shed(Shed),
    /// The caller's deadline has passed.
    Expired,
}

impl Rejected {
    /// What the caller is to read in the answer.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::{Audience, Hint, Refusal, Rejected};
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

/// Whether a request is let in: its caller's deadline, then limiters, then the [`Shedder`].
///
/// A request is let in only if all of them would let it in, and only then anything is taken for it.
/// Whatever the shedder or another limiter refuses keeps its quota, and its ticket until the grace
/// of it is over. So a limit is for what is served.
///
/// # Several limiters
/// Such as one for all callers and one for each, which are kept elsewhere and handed to
/// [`judge_with`](Self::judge_with). A request that several refuse is told the furthest of their
/// times. A slot is reserved in that limiter, and in those others in which it would still be kept at
/// that time; in the rest it would only lapse. A limiter that had room when another refused reserves
/// nothing, and may refuse at the time of the ticket: then the ticket stays as long as its grace.
///
/// # What is counted
/// The shedder counts attempts and retries of what the limiters let through. What has a ticket counts
/// as a first attempt: it was told to come.
///
/// It is as large as its limiters and its shedder, whatever comes. A driver shares one value behind a
/// lock. Time that steps back stands still.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{
///     Arrival, Instant, Intake, Limiter, LimiterConfig, Refusal, Rejected, Shedder, ShedderConfig,
/// };
///
/// let config = LimiterConfig { burst: 1, ..LimiterConfig::new(100, Duration::from_secs(1)) };
/// let limiter = Limiter::new(&config)?;
/// let shedder = Shedder::new(&ShedderConfig { in_flight: 2, ..ShedderConfig::DEFAULT })?;
/// let mut intake = Intake::new().limiter(limiter).shedder(shedder);
///
/// let now = Instant::ORIGIN;
/// let arrival = Arrival { caller: Some(7), ..Arrival::FIRST };
/// // What is shed takes nothing from the limiter: the next is let in.
/// let busy = Arrival { in_flight: 2, ..arrival };
/// assert!(matches!(intake.judge(now, &busy), Err(Rejected::Shed(_))));
/// assert!(intake.judge(now, &arrival).is_ok());
/// // Now the limit is reached, and the caller gets a slot of its own.
/// let refusal = Refusal::Ticket(Duration::from_millis(10));
/// assert_eq!(intake.judge(now, &arrival), Err(Rejected::Limited { refusal, limiter: 0 }));
/// // Nobody waits for this one.
/// let late = Arrival { remaining: Some(Duration::ZERO), ..arrival };
/// assert_eq!(intake.judge(now, &late), Err(Rejected::Expired));
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Intake {
    limiters: Vec<Limiter>,
    shedder: Option<Shedder>,
}

impl Intake {
    /// An intake that lets in whatever comes before its deadline.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            limiters: Vec::new(),
            shedder: None,
        }
    }

    /// The same with this limiter after those that it has.
    #[must_use]
    pub fn limiter(mut self, limiter: Limiter) -> Self {
        self.limiters.push(limiter);
        self
    }

    /// The same with this shedder, in place of one that it has.
    #[must_use]
    pub fn shedder(mut self, shedder: Shedder) -> Self {
        self.shedder = Some(shedder);
        self
    }

    /// Judges a request that arrives at `now`.
    ///
    /// # Errors
    /// [`Rejected`] if it is not let in.
    pub fn judge(&mut self, now: Instant, arrival: &Arrival) -> Result<Admitted, Rejected> {
        self.judge_with(now, arrival, &mut [])
    }

    /// The same with more limiters, which are asked after those of the intake: such as one that is kept
    /// for each caller.
    ///
    /// # Errors
    /// [`Rejected`] if it is not let in.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::{Arrival, Instant, Intake, Limiter, LimiterConfig, Rejected};
    ///
    /// let second = Duration::from_secs(1);
    /// let mut intake = Intake::new().limiter(Limiter::new(&LimiterConfig::new(100, second))?);
    /// let config = LimiterConfig { burst: 1, ..LimiterConfig::new(1, second) };
    /// let mut of_ann = Limiter::new(&config)?;
    ///
    /// let (now, ann) = (Instant::ORIGIN, Arrival { caller: Some(1), ..Arrival::FIRST });
    /// assert!(intake.judge_with(now, &ann, &mut [&mut of_ann]).is_ok());
    /// // After 10 ms there is room for others; she has to wait, and takes nothing from them.
    /// let soon = now.saturating_add(Duration::from_millis(10));
    /// let rejected = intake.judge_with(soon, &ann, &mut [&mut of_ann]);
    /// assert!(matches!(rejected, Err(Rejected::Limited { limiter: 1, .. })));
    /// assert!(intake.judge(soon, &Arrival { caller: Some(2), ..ann }).is_ok());
    /// # Ok::<(), relent_core::PolicyError>(())
    /// ```
    pub fn judge_with(
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
                    limiter.judge(now, caller, cost);
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
            limiter.judge(now, caller, cost);
        }
        Ok(Admitted { ticket })
    }

    /// A service ended at `now`, as [`Shedder::on_done`] wants it.
    pub fn on_done(&mut self, now: Instant, queued: u32) {
        if let Some(shedder) = &mut self.shedder {
            shedder.on_done(now, queued);
        }
    }

    /// Whether a queue stood within the last interval; see [`Shedder::is_overloaded`]. Never without a
    /// shedder.
    #[must_use]
    pub fn is_overloaded(&self, now: Instant) -> bool {
        let shedder = self.shedder.as_ref();
        shedder.is_some_and(|shedder| shedder.is_overloaded(now))
    }

    /// The share of retries among what came as far as the shedder in the last ten seconds; 0 without
    /// one.
    pub fn retry_share(&mut self, now: Instant) -> f64 {
        let shedder = self.shedder.as_mut();
        shedder.map_or(0.0, |shedder| shedder.retry_share(now))
    }

    /// How long a request would wait behind so many; see [`Shedder::queue_delay`]. Zero without a
    /// shedder.
    #[must_use]
    pub fn queue_delay(&self, queued: u32) -> Duration {
        let shedder = self.shedder.as_ref();
        shedder.map_or(Duration::ZERO, |shedder| shedder.queue_delay(queued))
    }

    /// Its own limiters, in the order in which they are asked: to tell callers what is left of them.
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
#[path = "intake_tests.rs"]
mod tests;
