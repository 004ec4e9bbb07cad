//! Model of the protocol of a call: random calls at one destination, with late timers, clock jumps in
//! both directions, callers that leave at any point, and policy changes.

use alloc::collections::BTreeMap;
use alloc::vec;

use proptest::prelude::*;

use super::*;
use crate::destination::budget::Taken;

/// The next action of a call.
enum State {
    Between,
    Running,
    Over,
}

struct Caller<'t> {
    call: Call<'static>,
    at: TestEnvironment<'t>,
    state: State,
    begun: u32,
    /// Its retries that were paid for and have begun.
    paid: u32,
    trace: Vec<TraceEntry>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Come,
    Advance(u64),
    /// The machine was suspended, or its clock is set back.
    Jump(i64),
    Next(usize),
    GiveBack(usize),
    Succeed(usize),
    Fail(usize, u8),
    Progress(usize),
    /// Activity, whatever the call waits for.
    Reset(usize),
    Cancel(usize),
    Leave(usize),
    /// Later callers use this policy, and so does the destination.
    Reload(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Come),
        6 => (0..3000_u64).prop_map(Step::Advance),
        1 => (-20_000_000..100_000_000_i64).prop_map(Step::Jump),
        8 => any::<usize>().prop_map(Step::Next),
        1 => any::<usize>().prop_map(Step::GiveBack),
        2 => any::<usize>().prop_map(Step::Succeed),
        6 => (any::<usize>(), 0..4_u8).prop_map(|(who, how)| Step::Fail(who, how)),
        1 => any::<usize>().prop_map(Step::Progress),
        1 => any::<usize>().prop_map(Step::Reset),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => any::<usize>().prop_map(Step::Leave),
        1 => any::<usize>().prop_map(Step::Reload),
    ]
}

fn failure(how: u8) -> Failure {
    match how {
        0 => Failure::ambiguous(),
        1 => Failure::not_processed(),
        2 => Failure::throttled().hint(Hint::after(SECOND)),
        _ => Failure::permanent(),
    }
}

impl Caller<'_> {
    fn stops_told(&self) -> usize {
        let events = self.at.events.borrow();
        let stops = events
            .iter()
            .filter(|events| matches!(events, Event::Stop(_)));
        stops.count()
    }

    /// Trace entries do not change, except that the last decision may become a stop while no attempt
    /// runs.
    fn look_at_trace(&mut self) {
        let Some(trace) = self
            .call
            .extras
            .as_ref()
            .and_then(|extras| extras.trace.as_ref())
        else {
            return;
        };
        let now: Vec<_> = trace.entries().copied().collect();
        assert!(now.len() >= self.trace.len());
        for (index, before) in self.trace.iter().enumerate() {
            if now[index] == *before {
                continue;
            }
            assert_eq!(index + 1, now.len(), "an earlier entry was rewritten");
            assert!(before.wait().is_some() && stop_of(&now[index]).is_some());
        }
        for (number, entry) in (1..).zip(&now) {
            assert_eq!(entry.attempt, number);
        }
        self.trace = now;
    }
}

fn run(policies: &[Policy], steps: &[Step], exact: bool) {
    let mut policy = &policies[0];
    let (there, clock) = (there(policy), ManualClock::default());
    clock.advance(SECOND * 100_000);
    let start = there.budget().map(Budget::balance);
    let mut callers: BTreeMap<usize, Caller<'_>> = BTreeMap::new();
    let mut gone = 0;
    let mut spent = 0;
    for step in steps {
        let count = callers.len().max(1);
        let who = match *step {
            Step::Next(who)
            | Step::GiveBack(who)
            | Step::Succeed(who)
            | Step::Fail(who, _)
            | Step::Progress(who)
            | Step::Reset(who)
            | Step::Cancel(who)
            | Step::Leave(who) => callers.keys().nth(who % count).copied(),
            Step::Come => {
                let at = at(policy, &there, &clock);
                let caller = Caller {
                    call: traced(&at),
                    at,
                    state: State::Between,
                    begun: 0,
                    paid: 0,
                    trace: Vec::new(),
                };
                callers.insert(callers.len() + gone, caller);
                None
            }
            Step::Advance(millis) => {
                clock.advance(Duration::from_millis(millis));
                None
            }
            Step::Jump(millis) => {
                let nanos = clock.nanos.get().saturating_add_signed(millis * 1_000_000);
                clock.nanos.set(nanos);
                None
            }
            Step::Reload(which) => {
                policy = &policies[which % policies.len()];
                there.set_policy(Instant::from_nanos(clock.nanos.get()), policy, || ());
                None
            }
        };
        let Some(key) = who else { continue };
        let caller = callers.get_mut(&key).unwrap();
        let Caller { call, at, .. } = caller;
        match (step, &caller.state) {
            (Step::Next(_), State::Between) => {
                let last_start = call.session.last_start(at.policy);
                match call.next(at, None) {
                    NextStep::Start(permit) => {
                        let now = Instant::from_nanos(clock.nanos.get());
                        assert!(now <= last_start || now <= call.session.started());
                        let (attempt, ends) = call.begin(at, permit);
                        caller.begun += 1;
                        assert_eq!(attempt.number, caller.begun);
                        if let (Some(ends), Some(limit)) = (ends, attempt.limit) {
                            assert_eq!(ends, now.saturating_add(limit));
                        }
                        caller.paid = u32::from(call.session.taken() != Taken::NOTHING);
                        caller.state = State::Running;
                    }
                    NextStep::Wait { until, after, .. } => {
                        let now = Instant::from_nanos(clock.nanos.get());
                        assert!(until > now && !after.is_zero());
                    }
                    NextStep::Stop(_) => caller.state = State::Over,
                }
            }
            (Step::GiveBack(_), State::Between) => {
                if let Some(permit) = call.next(at, None).permit() {
                    call.release_permit(at, permit);
                } else if call.over {
                    caller.state = State::Over;
                }
            }
            (Step::Succeed(_), State::Running) => {
                call.succeeded(at);
                spent += core::mem::take(&mut caller.paid);
                caller.state = State::Over;
            }
            (Step::Fail(_, how), State::Running) => {
                let decision = call.failed(at, &failure(*how));
                spent += core::mem::take(&mut caller.paid);
                caller.state = match decision {
                    Decision::Retry { .. } => State::Between,
                    Decision::Stop(_) => State::Over,
                };
            }
            (Step::Progress(_), State::Running) => {
                call.progressed(at);
                caller.paid = 0;
            }
            (Step::Reset(_), State::Between) => {
                let until = Instant::from_nanos(clock.nanos.get()).saturating_add(SECOND);
                assert!(call.shorten_delay(at, until) <= SECOND);
            }
            (Step::Reset(_), State::Running) => call.reset(at),
            (Step::Cancel(_), State::Between | State::Running) => {
                call.cancel(at);
                spent += core::mem::take(&mut caller.paid);
                caller.state = State::Over;
            }
            (Step::Leave(_), _) => {
                call.leave(at);
                spent += core::mem::take(&mut caller.paid);
                assert!(!call.holds());
                assert!(caller.stops_told() <= 1);
                callers.remove(&key);
                gone += 1;
                continue;
            }
            _ => {}
        }
        caller.look_at_trace();
        assert!(caller.stops_told() <= 1, "{:?}", caller.at.events);
        if let State::Over = caller.state {
            assert!(!caller.call.holds(), "what is over holds nothing");
            if let (1, Some(last)) = (caller.stops_told(), caller.trace.last()) {
                assert!(stop_of(last).is_some(), "the trace ends in the stop");
            }
        }
    }
    for caller in callers.values_mut() {
        caller.call.leave(&caller.at);
        spent += caller.paid;
    }
    let outbound = there.access().0.borrow();
    assert_eq!((outbound.waiting(), outbound.queued_while_down()), (0, 0));
    drop(outbound);
    there.set_policy(Instant::from_nanos(clock.nanos.get()), &policies[0], || ());
    if let (true, Some(budget), Some(start)) = (exact, there.budget(), start) {
        let left = start - f64::from(spent);
        assert!((budget.balance() - left).abs() < 1e-6, "{left} {budget:?}");
    }
}

/// With a deadline, a rate limit, a breaker, a budget; and whether retries are off.
fn rules() -> impl Strategy<Value = (bool, Option<f64>, bool, bool, bool)> {
    let rate = proptest::option::of(0.5..5.0_f64);
    (
        any::<bool>(),
        rate,
        any::<bool>(),
        any::<bool>(),
        proptest::bool::weighted(0.2),
    )
}

fn still() -> BudgetConfig {
    BudgetConfig {
        ratio: 0.0,
        per_second: 0.0,
        initial_tokens: 50.0,
        ..BudgetConfig::DEFAULT
    }
}

proptest! {
    #[test]
    fn a_call_starts_in_time_stops_once_and_releases_everything(
        steps in proptest::collection::vec(step(), 1..120),
        rules in proptest::collection::vec(rules(), 1..4),
        circuit_breakers: bool,
    ) {
        let policies: Vec<_> = (0..).zip(rules).map(|(index, (deadline, rate, circuit_breaker, budget, off))| {
            let mut policy = policy().max_retries(6);
            if budget || index == 0 {
                policy = policy.budget(still());
            }
            if deadline {
                policy = policy.deadline(20 * SECOND).attempt_timeout(3 * SECOND);
            }
            if let Some(rate) = rate {
                policy = policy.rate_limit(RateLimitConfig {
                    burst: Some(1),
                    ..RateLimitConfig::new(rate)
                });
            }
            if circuit_breaker && circuit_breakers {
                policy = policy.circuit_breaker(crate::destination::circuit_breaker::CircuitBreakerConfig::DEFAULT);
            }
            let policy = policy.build().unwrap();
            if off { policy.without_retries() } else { policy }
        }).collect();
        // While a breaker paces retries they cost nothing, and its higher ratio is deposited.
        run(&policies, &steps, !circuit_breakers);
    }
}
