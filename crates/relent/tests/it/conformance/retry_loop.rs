//! The retry loops under test, and the compared results.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use relent::clock::{BlockingSleeper, Clock};
use relent::driver::{Decision, Driver, NextStep};
use relent::policy::HedgeConfig;
use relent::trace::Trace;
use relent::{Destination, Failure, GaveUp, StopReason, blocking, retry_mut, retry_with};

use super::clock::Scripted;
use super::script::Script;

/// The result of a loop. Times are in milliseconds since the start.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CallRecord {
    /// When each attempt started.
    pub starts: Vec<u128>,
    /// The reason for giving up.
    pub reason: Option<&'static str>,
    /// When the call ended.
    pub ended: u128,
    /// The trace, if it gave up.
    pub trace: Vec<Entry>,
    /// The remaining budget, in thousandths.
    pub budget: Option<i64>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    pub attempt: u32,
    pub started: u128,
    pub ended: u128,
    pub failed: bool,
    pub wait: Option<u128>,
    pub stop: Option<&'static str>,
}

/// A retry loop under test.
pub trait RetryLoop {
    /// Plays the script to its end.
    fn play(&self, script: &Script) -> CallRecord;

    /// Polls the loop this many times, drops it, and checks that nothing remains. Returns whether
    /// there was anything to drop; `false` for blocking loops.
    fn drop_after(&self, script: &Script, polls: u32) -> bool {
        let _ = (script, polls);
        false
    }
}

/// The environment of one call.
struct CallSetup<'s> {
    script: &'s Script,
    clock: Scripted,
    there: Destination,
    starts: RefCell<Vec<u128>>,
}

type AttemptResult = Result<(), Failure>;

impl<'s> CallSetup<'s> {
    fn new(script: &'s Script) -> Rc<Self> {
        let clock = Scripted::new(script.cancel_at);
        let there = script.there(clock.now());
        Rc::new(Self {
            script,
            clock,
            there,
            starts: RefCell::default(),
        })
    }

    /// One attempt, which advances the clock by its duration.
    fn attempt(&self, number: u32) -> AttemptResult {
        let now = self.clock.since_start().as_millis();
        self.starts.borrow_mut().push(now);
        self.script.begins(&self.there, number, self.clock.now());
        let (takes, outcome) = self.script.attempt(number);
        self.clock.advance(takes);
        outcome.failure().map_or(Ok(()), Err)
    }

    fn account(&self, ended: Result<(), (StopReason, Option<&Trace>)>) -> CallRecord {
        let ended_at = self.clock.since_start().as_millis();
        let (reason, trace) = match ended {
            Ok(()) => (None, None),
            Err((reason, trace)) => (Some(reason.name()), trace),
        };
        let since = |at: relent::clock::Instant| {
            let start = relent::clock::Instant::ORIGIN.saturating_add(Duration::from_secs(1000));
            at.saturating_since(start).as_millis()
        };
        let entries = trace.iter().flat_map(|trace| trace.entries());
        let trace = entries.map(|entry| Entry {
            attempt: entry.attempt,
            started: since(entry.started),
            ended: since(entry.ended),
            failed: entry.failure.is_some(),
            wait: entry.wait().map(|wait| wait.as_millis()),
            stop: entry
                .decision
                .and_then(|decision| decision.stop())
                .map(|stop| stop.reason.name()),
        });
        assert_eq!(
            (
                self.there.queued_while_down(),
                self.there.held_by_rate_limit()
            ),
            (0, 0)
        );
        CallRecord {
            starts: self.starts.borrow().clone(),
            reason,
            ended: ended_at,
            trace: trace.collect(),
            budget: self.budget(),
        }
    }

    fn budget(&self) -> Option<i64> {
        let budget = self.there.budget()?;
        Some((budget.balance() * 1000.0).round() as i64)
    }

    fn gave_up(&self, result: &Result<(), GaveUp<Failure>>) -> CallRecord {
        match result {
            Ok(()) => self.account(Ok(())),
            Err(gave_up) => self.account(Err((gave_up.reason(), gave_up.trace()))),
        }
    }
}

fn of_failure(failure: &Failure) -> Failure {
    *failure
}

/// Polls the future to its end.
fn finish<F: std::future::Future>(clock: &Scripted, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..100_000 {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        clock.skip();
    }
    unreachable!("it never ends")
}

/// Polls the future a few times and drops it. Returns whether it was unfinished.
fn drop_after<F: std::future::Future>(stage: &CallSetup<'_>, future: F, polls: u32) -> bool {
    let start = stage.budget();
    let mut context = Context::from_waker(Waker::noop());
    let mut runs = true;
    {
        let mut future = pin!(future);
        for _ in 0..polls {
            runs &= future.as_mut().poll(&mut context).is_pending();
            if !runs {
                break;
            }
            stage.clock.skip();
        }
    }
    let there = &stage.there;
    assert_eq!(
        (there.queued_while_down(), there.held_by_rate_limit()),
        (0, 0),
        "{:?}",
        stage.script
    );
    if let (Some(start), Some(left)) = (start, stage.budget()) {
        let retries = stage.starts.borrow().len().saturating_sub(1) as i64;
        assert!(start - left <= 1000 * retries, "{:?}", stage.script);
    }
    runs
}

/// Implements an async loop; `$call` is made of the stage and its operation.
macro_rules! future_face {
    ($name:ident, |$stage:ident| $call:expr) => {
        pub struct $name;

        impl RetryLoop for $name {
            fn play(&self, script: &Script) -> CallRecord {
                let $stage = &*CallSetup::new(script);
                let result = finish(&$stage.clock, $call);
                $stage.gave_up(&result)
            }

            fn drop_after(&self, script: &Script, polls: u32) -> bool {
                let $stage = &*CallSetup::new(script);
                drop_after($stage, $call, polls)
            }
        }
    };
}

async fn attempted(stage: &CallSetup<'_>, number: u32) -> AttemptResult {
    stage.attempt(number)
}

future_face!(Future, |stage| retry_with(
    &stage.script.policy,
    |attempt| { attempted(stage, attempt.number) }
)
.classify(of_failure)
.destination(&stage.there)
.clock(stage.clock.clone())
.seed(stage.script.seed)
.traced()
.cancel_on(stage.clock.clone().gone()));

future_face!(Borrowed, |stage| retry_mut(
    &stage.script.policy,
    async |attempt: relent::Attempt| attempted(stage, attempt.number).await
)
.classify(of_failure)
.destination(&stage.there)
.clock(stage.clock.clone())
.seed(stage.script.seed)
.traced()
.cancel_on(stage.clock.clone().gone())
.run());

/// The future with a policy that hedges, but whose hedge is never due.
pub struct Hedged;

impl Hedged {
    fn hedging(script: &Script) -> Script {
        let hedge = HedgeConfig::after(Duration::from_secs(86_400));
        let policy = script.policy.clone().into_builder().hedge(hedge);
        Script {
            policy: policy.build().unwrap(),
            ..script.clone()
        }
    }
}

impl RetryLoop for Hedged {
    fn play(&self, script: &Script) -> CallRecord {
        Future.play(&Self::hedging(script))
    }

    fn drop_after(&self, script: &Script, polls: u32) -> bool {
        Future.drop_after(&Self::hedging(script), polls)
    }
}

pub struct Blocked;

impl RetryLoop for Blocked {
    fn play(&self, script: &Script) -> CallRecord {
        let stage = CallSetup::new(script);
        let result = blocking::retry_with(&script.policy, |attempt| stage.attempt(attempt.number))
            .classify(of_failure)
            .destination(&stage.there)
            .clock(stage.clock.clone())
            .seed(script.seed)
            .traced()
            .run();
        stage.gave_up(&result)
    }
}

/// A hand-written loop, as a user would write it.
pub struct HandWritten;

impl RetryLoop for HandWritten {
    fn play(&self, script: &Script) -> CallRecord {
        let stage = CallSetup::new(script);
        let mut driver = Driver::builder(&script.policy, stage.clock.clone())
            .random(relent::random::SessionRandom::with_seed(script.seed))
            .destination(&stage.there)
            .traced()
            .start();
        let stop = loop {
            if stage.clock.is_over() {
                break Some(driver.on_cancel());
            }
            let permit = match driver.enter(None) {
                NextStep::Start(permit) => permit,
                NextStep::Stop(stop) => break Some(stop),
                NextStep::Wait { after, .. } => {
                    stage.clock.block(after);
                    continue;
                }
            };
            let attempt = driver.on_attempt(permit);
            match stage.attempt(attempt.number) {
                Ok(()) => {
                    driver.on_success();
                    break None;
                }
                Err(failure) => match driver.on_failure(&failure) {
                    Decision::Retry { after } => {
                        stage.clock.block(after);
                    }
                    Decision::Stop(stop) => break Some(stop),
                },
            }
        };
        let summary = driver.summary(stop);
        drop(driver);
        match stop {
            None => stage.account(Ok(())),
            Some(stop) => stage.account(Err((stop.reason, summary.trace.as_ref()))),
        }
    }
}
