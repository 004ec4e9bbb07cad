//! While a destination is healthy, requests and successes are only counted, and reach the breaker
//! later. The result must be the same.

use alloc::format;
use alloc::string::String;
use alloc::vec;

use proptest::prelude::*;

use super::*;

const MILLI: u64 = 1_000_000;
/// Requests are counted in slots of five seconds.
const SLOT: u64 = 5_000 * MILLI;

impl There {
    /// The state of breaker, queue and budget, with all counts passed on at `now`.
    fn knowledge(&self, now: Instant) -> String {
        self.end_healthy_period(now);
        self.access().turn(|outbound, _| {
            if let Some(budget) = self.budget() {
                outbound.signal_budget(now, budget);
            }
            format!("{outbound:?} {:?} {:?}", self.cooldown(), self.budget())
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// So many calls, one after the other.
    Calls {
        count: u32,
        every: u64,
        took: u64,
    },
    Come,
    Next(usize),
    Succeed(usize),
    Fail(usize, u8),
    GiveBack(usize),
    Leave(usize),
    Hedge(usize),
    /// An attempt at another destination was redirected here so long ago.
    Redirected(u64, bool),
    Advance(u64),
    Jump(i64),
    Reload(usize),
    Look,
}

fn step() -> impl Strategy<Value = Step> {
    let calls = (1..40_u32, 0..30 * MILLI, 0..20 * MILLI);
    prop_oneof![
        8 => calls.prop_map(|(count, every, took)| Step::Calls { count, every, took }),
        8 => Just(Step::Come),
        6 => any::<usize>().prop_map(Step::Next),
        8 => any::<usize>().prop_map(Step::Succeed),
        3 => (any::<usize>(), 0..5_u8).prop_map(|(who, how)| Step::Fail(who, how)),
        1 => any::<usize>().prop_map(Step::GiveBack),
        1 => any::<usize>().prop_map(Step::Leave),
        1 => any::<usize>().prop_map(Step::Hedge),
        1 => (0..100 * MILLI, any::<bool>()).prop_map(|(ago, up)| Step::Redirected(ago, up)),
        8 => (0..100 * MILLI).prop_map(Step::Advance),
        2 => (0..12_000 * MILLI).prop_map(Step::Advance),
        1 => (-2000..100_000_i64).prop_map(Step::Jump),
        1 => any::<usize>().prop_map(Step::Reload),
        2 => Just(Step::Look),
    ]
}

fn failure(how: u8) -> Failure {
    match how {
        0 => Failure::ambiguous(),
        1 => Failure::not_processed(),
        2 => Failure::throttled().hint(Hint::after(SECOND)),
        3 => Failure::ambiguous().cause(Cause::Timeout),
        _ => Failure::permanent(),
    }
}

/// A destination with its callers.
struct World<'t> {
    there: &'t There,
    policies: &'t [Policy],
    clock: &'t ManualClock,
    callers: Vec<Option<(Call<'static>, TestEnvironment<'t>)>>,
}

impl<'t> World<'t> {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.clock.nanos.get())
    }

    fn come(&mut self) -> usize {
        let at = at(&self.policies[0], self.there, self.clock);
        let call = Call::new(&at);
        self.callers.push(Some((call, at)));
        self.callers.len() - 1
    }

    /// Adds a caller that requests admission.
    fn enter(&mut self) -> (usize, String) {
        let who = self.come();
        let asked = self.callers[who].as_mut().map(|(call, at)| next(call, at));
        (who, asked.unwrap_or_default())
    }

    /// Runs the step, and returns all results. `single_events`: each event takes the lock.
    fn step(&mut self, step: Step, single_events: bool) -> String {
        let turn = |there: &There, clock: &ManualClock| {
            if single_events {
                there.end_healthy_period(Instant::from_nanos(clock.nanos.get()));
            }
        };
        turn(self.there, self.clock);
        let now = self.now();
        let count = self.callers.len().max(1);
        let caller = match step {
            Step::Next(who)
            | Step::Succeed(who)
            | Step::Fail(who, _)
            | Step::GiveBack(who)
            | Step::Leave(who)
            | Step::Hedge(who) => self.callers.get_mut(who % count),
            _ => None,
        };
        let mut results = match (step, caller) {
            (Step::Calls { count, every, took }, _) => {
                let mut results = String::new();
                for _ in 0..count {
                    let (who, asked) = self.enter();
                    results += &asked;
                    self.clock.advance(Duration::from_nanos(took));
                    turn(self.there, self.clock);
                    if let Some((call, at)) = &mut self.callers[who]
                        && call.attempts() == 1
                    {
                        call.succeeded(at);
                    }
                    self.clock.advance(Duration::from_nanos(every));
                    turn(self.there, self.clock);
                }
                results
            }
            (Step::Come, _) => self.enter().1,
            (Step::Next(_), Some(Some((call, at)))) => next(call, at),
            (Step::Succeed(_), Some(Some((call, at)))) => {
                call.succeeded(at);
                String::new()
            }
            (Step::Fail(_, how), Some(Some((call, at)))) => {
                format!("{:?}", call.failed(at, &failure(how)))
            }
            (Step::GiveBack(_), Some(Some((call, at)))) => match call.next(at, None) {
                NextStep::Start(permit) => {
                    call.release_permit(at, permit);
                    String::new()
                }
                next => format!("{next:?}"),
            },
            (Step::Hedge(_), Some(Some((call, at)))) => format!("{}", call.grant_hedge(at)),
            (Step::Leave(_), Some(left)) => {
                if let Some((call, at)) = left.take() {
                    call.leave_for_good(&at);
                }
                String::new()
            }
            (Step::Redirected(ago, up), _) => {
                let since = Instant::from_nanos(now.as_nanos().saturating_sub(ago));
                let failure = (!up).then(Failure::ambiguous);
                let begins = self.there.on_redirected(now, Some(since), failure.as_ref());
                format!("{begins}")
            }
            (Step::Advance(nanos), _) => {
                self.clock.advance(Duration::from_nanos(nanos));
                String::new()
            }
            (Step::Jump(millis), _) => {
                // Counts are assigned to the slot of their batch. A caller that read the clock in the
                // slot before is counted in the later one.
                let nanos = self.clock.nanos.get();
                let slot = nanos - nanos % SLOT;
                let nanos = nanos.saturating_add_signed(millis * MILLI as i64);
                self.clock.nanos.set(nanos.max(slot));
                String::new()
            }
            (Step::Reload(which), _) => {
                let policy = &self.policies[which % self.policies.len()];
                self.there.set_policy(now, policy, || ());
                String::new()
            }
            (Step::Look, _) => self.there.knowledge(now),
            _ => String::new(),
        };
        results += &format!(" {:?}", self.there.budget().map(Budget::balance));
        results
    }
}

fn next(call: &mut Call<'static>, at: &mut TestEnvironment<'_>) -> String {
    match call.next(at, None) {
        NextStep::Start(permit) => format!("{:?}", call.begin(at, permit)),
        next => format!("{next:?}"),
    }
}

impl Call<'static> {
    fn leave_for_good(mut self, at: &TestEnvironment<'_>) {
        self.leave(at);
    }
}

fn standard() -> PolicyBuilder {
    policy()
        .max_retries(3)
        .circuit_breaker(CircuitBreakerConfig::DEFAULT)
}

fn policies(ratio: f64, deadline: bool) -> Vec<Policy> {
    let budget = BudgetConfig {
        ratio,
        capacity: 1000.0,
        ..BudgetConfig::DEFAULT
    };
    let mut first = standard().budget(budget);
    if deadline {
        first = first.deadline(20 * SECOND).attempt_timeout(3 * SECOND);
    }
    let first = first.build().unwrap();
    let narrow = BudgetConfig {
        ratio: ratio / 4.0,
        ..budget
    };
    let others = [
        standard().budget(narrow),
        standard(),
        policy().budget(budget),
        standard().rate_limit(RateLimitConfig::new(50.0)),
    ];
    let mut policies = vec![first.clone(), first.without_retries()];
    policies.extend(others.map(|policy| policy.build().unwrap()));
    policies
}

/// Runs the steps with counting and one by one. Returns the first step with a difference.
fn compare_batched_and_single(steps: &[Step], ratio: f64, deadline: bool) -> Result<(), String> {
    let policies = policies(ratio, deadline);
    let theres = [(); 2].map(|()| there(&policies[0]));
    let clocks = [(); 2].map(|()| ManualClock::default());
    let mut worlds = [0, 1].map(|side| {
        clocks[side].advance(100_000 * SECOND);
        World {
            there: &theres[side],
            policies: &policies,
            clock: &clocks[side],
            callers: Vec::new(),
        }
    });
    for step in steps.iter().chain([&Step::Look]) {
        let [counted, plain] = &mut worlds;
        let (counted, plain) = (counted.step(*step, false), plain.step(*step, true));
        if counted != plain {
            return Err(format!("{step:?}\ncounted: {counted}\none by one: {plain}"));
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn batched_counts_have_the_same_effect_as_single_events(
        steps in proptest::collection::vec(step(), 1..80),
        ratio in prop_oneof![Just(0.01), Just(0.1), Just(1.0)],
        deadline: bool,
    ) {
        let played = compare_batched_and_single(&steps, ratio, deadline);
        prop_assert_eq!(played, Ok(()));
    }
}

/// One call per millisecond, which takes one.
fn succeed_for(there: &There, clock: &ManualClock, millis: u64) {
    for _ in 0..millis {
        let mut at = at(Policy::STANDARD, there, clock);
        let mut call = Call::new(&at);
        start(&mut call, &mut at);
        clock.advance(Duration::from_millis(1));
        call.succeeded(&mut at);
    }
}

#[test]
fn a_success_at_a_healthy_destination_takes_no_lock() {
    let (there, clock) = (there(Policy::STANDARD), ManualClock::default());
    clock.advance(100_000 * SECOND);
    succeed_for(&there, &clock, 10_000);
    let turns = there.access().1.get();
    assert!(turns <= 2 * 20 + 2 * 3, "{turns} in ten seconds");
    let now = Instant::from_nanos(clock.nanos.get());
    let reads = clock.reads.get();
    assert!(reads <= 20_000 + turns, "{reads}: two for each call");
    let known = there.knowledge(now);
    assert!(known.contains("totals: [10000]"), "{known}");
}

/// However fast and many they are, no counter overflows.
#[test]
fn a_full_batch_is_passed_on() {
    let (there, clock) = (there(Policy::STANDARD), ManualClock::default());
    clock.advance(100_000 * SECOND);
    succeed_for(&there, &clock, 1);
    let succeed_at_once = || {
        let mut at = at(Policy::STANDARD, &there, &clock);
        let mut call = Call::new(&at);
        start(&mut call, &mut at);
        call.succeeded(&mut at);
    };
    // The fastest so far.
    succeed_at_once();
    let turns = there.access().1.get();
    for _ in 0..10_000 {
        succeed_at_once();
    }
    assert_eq!(
        there.access().1.get() - turns,
        10_000 / 2049,
        "each time it is full"
    );
}

/// Three of fifteen attempts have failed.
#[test]
fn successes_are_not_batched_while_one_can_limit_the_breaker() {
    use Step::{Advance, Calls, Come, Next, Redirected, Succeed};
    let calls = |count, every, took| Calls { count, every, took };
    let steps = [
        Come,
        Come,
        calls(18, 20_439_851, 4_825_477),
        Next(0),
        Come,
        Come,
        calls(7, 9_356_222, 13_255_826),
        calls(14, 25_298_896, 15_924_970),
        calls(34, 11_007_425, 7_863_932),
        Advance(123_297_130),
        Come,
        Come,
        Come,
        Advance(44_882_376),
        Succeed(15_339_617_933_119_069_437),
        Redirected(0, false),
        Redirected(0, false),
        Succeed(109_476_781_262_766_980),
        Redirected(0, false),
        calls(12, 0, 8_333_334),
    ];
    assert_eq!(compare_batched_and_single(&steps, 0.1, false), Ok(()));
}
