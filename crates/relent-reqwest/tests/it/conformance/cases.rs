//! Scripts over HTTP: a request, its policy, the history of its destination, and the responses of the server.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by suites that each play a part"
)]

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use relent::clock::{Clock, TokioClock};
use relent::driver::Driver;
use relent::policy::{
    BudgetConfig, CircuitBreakerConfig, HedgeConfig, PolicyBuilder, RateLimitConfig,
};
use relent::{Backoff, Destination, Failure, Hint, Jitter, Policy, StopReason};

use crate::scripted::{Step, cut, pattern, response};

pub const MILLI: Duration = Duration::from_millis(1);
/// Longer than the cap of a streamed body.
const LONG_BODY_BYTES: usize = 100_000;
/// The seed of the random stream of all implementations.
pub const SEED: u64 = 7;

/// The body of a request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Content {
    None,
    Known,
    /// A stream that is short enough to be kept, and one that is not.
    Short,
    Long,
}

impl Content {
    pub const fn length(self) -> usize {
        match self {
            Self::None => 0,
            Self::Known => LONG_BODY_BYTES,
            Self::Short => 1000,
            Self::Long => LONG_BODY_BYTES,
        }
    }

    pub fn bytes(self) -> Vec<u8> {
        pattern(3, self.length())
    }
}

/// The history of the destination before the call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum History {
    Nothing,
    /// All requests failed, so its circuit breaker is down, if the policy has one.
    Down,
    /// It sent a `Retry-After` of this time.
    Busy(Duration),
    /// A request was just made.
    Asked,
    /// All allowed retries were made.
    Exhausted,
}

impl History {
    pub fn destination(self, policy: &Policy) -> Arc<Destination> {
        let there = Destination::new(policy.clone());
        let once = policy.clone().into_builder().max_retries(0);
        let once = once.build().unwrap();
        let attempt = |failure: Option<Failure>| {
            let mut other = Driver::builder(&once, TokioClock)
                .destination(&there)
                .start();
            let Some(permit) = other.enter(None).permit() else {
                return false;
            };
            other.on_attempt(permit);
            match failure {
                None => other.on_success(),
                Some(failure) => drop(other.on_failure(&failure)),
            }
            true
        };
        match self {
            Self::Nothing => {}
            Self::Down => while attempt(Some(Failure::ambiguous())) {},
            Self::Busy(time) => {
                attempt(Some(Failure::throttled().hint(Hint::after(time))));
            }
            Self::Asked => {
                attempt(None);
            }
            Self::Exhausted => {
                let (budget, now) = (there.budget().unwrap(), TokioClock.now());
                while budget
                    .withdraw(now, relent::FailureKind::Ambiguous)
                    .is_some()
                {}
            }
        }
        Arc::new(there)
    }
}

/// A request, its policy, and the responses of the server.
#[derive(Clone)]
pub struct Case {
    pub name: &'static str,
    pub method: Method,
    pub content: Content,
    pub policy: PolicyBuilder,
    pub before: History,
    pub steps: Vec<Step>,
    /// The number of requests that arrive, and the reason to stop.
    pub requests: usize,
    pub reason: Option<StopReason>,
    /// Whether a slow attempt is hedged.
    pub hedged: bool,
}

pub fn policy() -> PolicyBuilder {
    Policy::builder(Backoff::exponential(MILLI)).max_retries(2)
}

pub fn answer(status: u16, fields: &[(&str, &str)]) -> Step {
    Step::Answer(response(status, fields, "answer"))
}

fn silence() -> Step {
    Step::Stall(Vec::new())
}

/// A refused response whose body stalls.
fn refusal_without_end() -> Step {
    Step::Stall(cut(503, &[], &pattern(9, 1000), 100))
}

/// A `GET` with this script.
fn get(
    name: &'static str,
    steps: impl IntoIterator<Item = Step>,
    requests: usize,
    reason: Option<StopReason>,
) -> Case {
    Case {
        name,
        method: Method::GET,
        content: Content::None,
        policy: policy(),
        before: History::Nothing,
        steps: steps.into_iter().collect(),
        requests,
        reason,
        hedged: false,
    }
}

impl Case {
    fn sends(self, method: Method, content: Content) -> Self {
        Self {
            method,
            content,
            ..self
        }
    }

    fn by(self, change: impl FnOnce(PolicyBuilder) -> PolicyBuilder) -> Self {
        Self {
            policy: change(self.policy),
            ..self
        }
    }

    fn after(self, before: History) -> Self {
        Self { before, ..self }
    }

    fn hedged(self) -> Self {
        let hedge = HedgeConfig::after(MILLI * 50);
        Self {
            hedged: true,
            ..self.by(|policy| policy.hedge(hedge))
        }
    }

    pub fn policy(&self) -> Policy {
        self.policy.clone().build().unwrap()
    }
}

/// Results of attempts, and which of them are retried.
pub fn outcomes() -> Vec<Case> {
    let (post, put) = (Method::POST, Method::PUT);
    let ok = || answer(200, &[]);
    let reset = || Step::Reset(Vec::new());
    let late = [("retry-after", "3600")];
    let soon = [("retry-after-ms", "3")];
    let marked = |mark| [("relent-mark", mark)];
    vec![
        get("a success", [ok()], 1, None),
        get(
            "a status",
            [answer(503, &[]), answer(502, &[]), ok()],
            3,
            None,
        ),
        get(
            "a status without end",
            [answer(500, &[])],
            3,
            Some(StopReason::RetriesExhausted),
        ),
        get(
            "a permanent status",
            [answer(404, &[])],
            1,
            Some(StopReason::Permanent),
        ),
        get("a hint", [answer(429, &soon), ok()], 2, None),
        get(
            "a hint that is too far away",
            [answer(503, &late)],
            1,
            Some(StopReason::RetryLater),
        ),
        get(
            "exhausted below",
            [answer(503, &marked("exhausted"))],
            1,
            Some(StopReason::DoNotRetry),
        ),
        get(
            "overloaded below",
            [answer(503, &marked("overloaded"))],
            1,
            Some(StopReason::Overloaded),
        ),
        get("a reset", [reset(), ok()], 2, None),
        get("a silence", [silence(), ok()], 2, None)
            .by(|policy| policy.attempt_timeout(MILLI * 300)),
        get(
            "a status that the policy lists",
            [answer(202, &[]), ok()],
            2,
            None,
        )
        .by(|policy| policy.retry_on([202.into()])),
        get(
            "a refusal whose body has no end",
            [refusal_without_end(), ok()],
            2,
            None,
        ),
        get(
            "a POST that may have been processed",
            [answer(500, &[])],
            1,
            Some(StopReason::NotRepeatable),
        )
        .sends(post.clone(), Content::Known),
        get(
            "a POST that was reset",
            [reset()],
            1,
            Some(StopReason::NotRepeatable),
        )
        .sends(post.clone(), Content::Known),
        get(
            "a POST that was not processed",
            [answer(429, &soon), ok()],
            2,
            None,
        )
        .sends(post.clone(), Content::Known),
        get("a stream that was kept", [answer(503, &[]), ok()], 2, None)
            .sends(put.clone(), Content::Short),
        get(
            "a stream that was too long to be kept",
            [answer(503, &[])],
            1,
            Some(StopReason::NotReplayable),
        )
        .sends(put.clone(), Content::Long),
        // The policy's own reason takes precedence.
        get(
            "such a stream and no retry",
            [answer(503, &[])],
            1,
            Some(StopReason::RetriesExhausted),
        )
        .sends(put, Content::Long)
        .by(|policy| policy.max_retries(0)),
        get(
            "such a stream and a request that may not run twice",
            [answer(500, &[])],
            1,
            Some(StopReason::NotRepeatable),
        )
        .sends(post, Content::Long),
    ]
}

fn gated(policy: PolicyBuilder) -> PolicyBuilder {
    policy.circuit_breaker(CircuitBreakerConfig {
        first_probe: MILLI * 30,
        ..CircuitBreakerConfig::DEFAULT
    })
}

fn paced(policy: PolicyBuilder, per_second: f64) -> PolicyBuilder {
    policy.rate_limit(RateLimitConfig {
        burst: Some(1),
        ..RateLimitConfig::new(per_second)
    })
}

fn budgeted(policy: PolicyBuilder) -> PolicyBuilder {
    policy.budget(BudgetConfig {
        ratio: 0.0,
        per_second: 0.0,
        initial_tokens: 5.0,
        ..BudgetConfig::DEFAULT
    })
}

/// Calls that a destination holds back.
pub fn held_back() -> Vec<Case> {
    let ok = || answer(200, &[]);
    let refused = || answer(503, &[]);
    let hour = MILLI * 3_600_000;
    vec![
        get("a down circuit breaker that opens", [ok()], 1, None)
            .by(gated)
            .after(History::Down),
        get(
            "a down circuit breaker that stays closed",
            [refused()],
            1,
            Some(StopReason::CircuitBreaker),
        )
        .by(|policy| {
            policy.circuit_breaker(CircuitBreakerConfig {
                first_probe: hour,
                max_probe: hour,
                max_queue_time: MILLI * 400,
                ..CircuitBreakerConfig::DEFAULT
            })
        })
        .after(History::Down),
        get("a probe that fails", [refused(), ok()], 2, None)
            .by(gated)
            .after(History::Down),
        get("a cooldown that passes", [ok()], 1, None).after(History::Busy(MILLI * 50)),
        get(
            "a cooldown beyond the deadline",
            [ok()],
            0,
            Some(StopReason::RetryLater),
        )
        .by(|policy| policy.deadline(MILLI * 10_000))
        .after(History::Busy(MILLI * 60_000)),
        get("a slot that comes", [ok()], 1, None)
            .by(|policy| paced(policy, 20.0))
            .after(History::Asked),
        get("slots for retries", [refused(), refused(), ok()], 3, None)
            .by(|policy| paced(policy, 20.0)),
        get(
            "a slot that comes too late",
            [ok()],
            0,
            Some(StopReason::RetryLater),
        )
        .by(|policy| paced(policy, 0.001).deadline(MILLI * 10_000))
        .after(History::Asked),
        get(
            "a retry whose slot comes too late",
            [refused(), ok()],
            1,
            Some(StopReason::RetryLater),
        )
        .by(|policy| paced(policy, 0.001).deadline(MILLI * 10_000)),
        get(
            "no token for a retry",
            [refused(), ok()],
            1,
            Some(StopReason::Budget),
        )
        .by(budgeted)
        .after(History::Exhausted),
    ]
}

/// Calls held back after a response whose head was returned: the rest of its body is an error.
pub fn held_back_in_the_middle() -> Vec<Case> {
    let ok = || answer(200, &[]);
    vec![
        get(
            "a retry whose slot comes too late, after a refusal whose body has no end",
            [refusal_without_end(), ok()],
            1,
            Some(StopReason::RetryLater),
        )
        .by(|policy| paced(policy, 0.001).deadline(MILLI * 10_000)),
    ]
}

/// Positions of the deadline.
pub fn deadlines() -> Vec<Case> {
    let ok = || answer(200, &[]);
    let short = |policy: PolicyBuilder| policy.deadline(MILLI * 400);
    vec![
        get(
            "in the middle of an attempt",
            [silence()],
            1,
            Some(StopReason::Deadline),
        )
        .by(short),
        get(
            "in the middle of a wait",
            [answer(503, &[]), ok()],
            1,
            Some(StopReason::Deadline),
        )
        .by(|policy| {
            let policy = policy.jitter(Jitter::None).deadline(MILLI * 20_000);
            policy.backoff(Backoff::constant(MILLI * 30_000))
        }),
        get(
            "late, after it was parked",
            [silence()],
            1,
            Some(StopReason::Deadline),
        )
        .by(|policy| {
            short(policy).circuit_breaker(CircuitBreakerConfig {
                first_probe: MILLI * 60_000,
                max_probe: MILLI * 60_000,
                ..CircuitBreakerConfig::DEFAULT
            })
        })
        .after(History::Down),
        get(
            "while a refusal is read",
            [refusal_without_end(), silence()],
            2,
            Some(StopReason::Deadline),
        )
        .by(|policy| policy.deadline(MILLI * 1500)),
    ]
}

/// Hedged attempts.
pub fn hedges() -> Vec<Case> {
    let ok = || answer(200, &[]);
    vec![
        get("a hedge that answers first", [silence(), ok()], 2, None).hedged(),
        get(
            "a first attempt that fails before a hedge joins",
            [answer(503, &[]), ok()],
            2,
            None,
        )
        .hedged(),
        get(
            "a hedge that fails beside an attempt that is cut off",
            [silence(), answer(503, &[]), ok()],
            3,
            None,
        )
        .hedged()
        .by(|policy| policy.attempt_timeout(MILLI * 400)),
        get(
            "all that run at once fail, and there is no other",
            [silence(), answer(503, &[])],
            2,
            Some(StopReason::RetriesExhausted),
        )
        .hedged()
        .by(|policy| policy.attempt_timeout(MILLI * 400).max_retries(1)),
        get(
            "no token for a hedge",
            [silence()],
            1,
            Some(StopReason::Budget),
        )
        .hedged()
        .by(|policy| budgeted(policy).attempt_timeout(MILLI * 400))
        .after(History::Exhausted),
        get(
            "a POST, which no hedge joins",
            [Step::Slow(
                MILLI * 200,
                usize::MAX,
                response(200, &[], "late"),
            )],
            1,
            None,
        )
        .hedged()
        .sends(Method::POST, Content::Known),
    ]
}

/// Calls to be dropped at any await, at a destination with all controls.
pub fn dropped() -> Vec<Case> {
    let refused = || answer(503, &[]);
    let all = |case: Case| case.by(|policy| gated(budgeted(paced(policy, 100.0))));
    let ok = || answer(200, &[]);
    [
        get("an attempt", [ok()], 1, None),
        get("a wait", [refused(), refused(), ok()], 3, None),
        get(
            "a refusal that is read",
            [refusal_without_end(), ok()],
            2,
            None,
        ),
        get("a slot", [refused(), ok()], 2, None).after(History::Asked),
        get("a cooldown", [ok()], 1, None).after(History::Busy(MILLI * 40)),
        get("a circuit breaker that is down", [refused(), ok()], 2, None).after(History::Down),
        get("a hedge", [silence(), ok()], 2, None).hedged(),
    ]
    .map(all)
    .into()
}
