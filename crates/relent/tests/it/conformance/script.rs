//! The script of a call: its policy, the outcomes of its attempts, what holds it back, and its
//! cancellation.

use std::time::Duration;

use relent::clock::Instant;
use relent::destination::AttemptOutcome;
use relent::policy::{BudgetConfig, CircuitBreakerConfig, RateLimitConfig};
use relent::random::{Random, SessionRandom};
use relent::{Backoff, Destination, Failure, Hint, Jitter, Policy};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    Nothing,
    /// The destination starts a cooldown when the attempt of this number starts; 0 is before the
    /// first.
    Cooldown(u32),
    /// There is one slot in two seconds, and another caller has just taken one.
    RateLimit,
    /// The circuit breaker is down.
    CircuitBreaker,
    /// The budget is empty.
    Budget,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Success,
    Ambiguous,
    NotProcessed,
    Throttled(u64),
    Permanent,
}

impl Outcome {
    pub fn failure(self) -> Option<Failure> {
        match self {
            Self::Success => None,
            Self::Ambiguous => Some(Failure::ambiguous()),
            Self::NotProcessed => Some(Failure::not_processed()),
            Self::Throttled(seconds) => {
                let hint = Hint::after(Duration::from_secs(seconds));
                Some(Failure::throttled().hint(hint))
            }
            Self::Permanent => Some(Failure::permanent()),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Script {
    pub policy: Policy,
    /// The duration and outcome of each attempt; the last repeats.
    pub attempts: Vec<(Duration, Outcome)>,
    pub hold: Hold,
    pub cancel_at: Option<Duration>,
    pub seed: u64,
}

impl Script {
    pub fn attempt(&self, number: u32) -> (Duration, Outcome) {
        let index = (number as usize).saturating_sub(1);
        let last = self.attempts.len() - 1;
        self.attempts[index.min(last)]
    }

    /// The destination at the start of the call, at `now`.
    pub fn there(&self, now: Instant) -> Destination {
        let there = Destination::new(&self.policy).with_random(SessionRandom::with_seed(self.seed));
        match self.hold {
            Hold::Nothing => {}
            Hold::Cooldown(_) => self.begins(&there, 0, now),
            Hold::RateLimit | Hold::CircuitBreaker => {
                // Another caller was there before.
                let once = self.policy.clone().into_builder().max_retries(0);
                let once = once.build().unwrap();
                let clock = &Still(now);
                for _ in 0..40 {
                    let driver = relent::driver::Driver::builder(&once, clock).destination(&there);
                    let mut driver = driver.start();
                    let Some(permit) = driver.enter(None).permit() else {
                        break;
                    };
                    driver.on_attempt(permit);
                    match self.hold {
                        Hold::CircuitBreaker => drop(driver.on_failure(&Failure::ambiguous())),
                        _ => driver.on_success(),
                    }
                }
            }
            Hold::Budget => {
                let budget = there.budget().unwrap();
                while budget
                    .withdraw(now, relent::FailureKind::Ambiguous)
                    .is_some()
                {}
            }
        }
        there
    }

    /// Applies the effect that the script has at the start of this attempt.
    pub fn begins(&self, there: &Destination, attempt: u32, now: Instant) {
        if self.hold == Hold::Cooldown(attempt) {
            let asked = Failure::throttled().hint(Hint::after(Duration::from_secs(5)));
            let most = Duration::from_secs(300);
            there
                .cooldown()
                .on_end(now, &AttemptOutcome::of(&asked), most);
        }
    }
}

struct Still(Instant);

impl relent::clock::Clock for &Still {
    type Sleep = ();

    fn now(&self) -> Instant {
        self.0
    }
}

/// The first `count` scripts, always the same.
pub fn all(count: u64) -> impl Iterator<Item = Script> {
    (0..count).map(|seed| script(&mut SessionRandom::with_seed(seed), seed))
}

fn script(random: &mut SessionRandom, seed: u64) -> Script {
    let mut below = |most: u64| random.next_u64() % most;
    let hold = match below(8) {
        0 => Hold::Cooldown(0),
        1 => Hold::Cooldown(1 + below(3) as u32),
        2 | 3 => Hold::RateLimit,
        4 => Hold::CircuitBreaker,
        5 => Hold::Budget,
        _ => Hold::Nothing,
    };
    let backoff = match below(3) {
        0 => Backoff::None,
        1 => Backoff::constant(Duration::from_secs(1)),
        _ => Backoff::exponential(Duration::from_millis(100)),
    };
    let jitter = match below(2) {
        0 => Jitter::None,
        _ => Jitter::Full,
    };
    let mut policy = Policy::builder(backoff)
        .jitter(jitter)
        .max_retries(below(7) as u32);
    if hold == Hold::Budget || below(3) == 0 {
        policy = policy.budget(BudgetConfig {
            ratio: 0.0,
            per_second: 0.0,
            initial_tokens: 2.0,
            ..BudgetConfig::DEFAULT
        });
    }
    match below(4) {
        0 => policy = policy.deadline(Duration::from_millis(2000 + below(9000))),
        1 => policy = policy.max_elapsed(Duration::from_millis(2000 + below(9000))),
        _ => {}
    }
    if below(4) == 0 {
        policy = policy.attempt_timeout(Duration::from_secs(3));
    }
    match hold {
        Hold::RateLimit => {
            policy = policy.rate_limit(RateLimitConfig {
                burst: Some(1),
                ..RateLimitConfig::new(0.5)
            });
        }
        Hold::CircuitBreaker => {
            policy = policy.circuit_breaker(CircuitBreakerConfig {
                max_queue_time: Duration::from_secs(20),
                ..CircuitBreakerConfig::DEFAULT
            });
        }
        _ => {}
    }
    let attempts = (0..=below(5))
        .map(|_| {
            let outcome = match below(10) {
                0 => Outcome::Success,
                1 => Outcome::Permanent,
                2 => Outcome::Throttled(1 + below(4)),
                3 => Outcome::NotProcessed,
                _ => Outcome::Ambiguous,
            };
            (Duration::from_millis(below(1500)), outcome)
        })
        .collect();
    Script {
        policy: policy.build().unwrap(),
        attempts,
        hold,
        cancel_at: (below(4) == 0).then(|| Duration::from_millis(below(9000))),
        seed,
    }
}
