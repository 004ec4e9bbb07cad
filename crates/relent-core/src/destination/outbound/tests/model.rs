//! Model of the admission protocol: random callers that arrive, wait, sleep, leave and fail, under
//! every combination of circuit breaker, rate limit and cooldown, and while these are replaced.

use alloc::vec::Vec;
use core::time::Duration;

use crate::destination::circuit_breaker::AttemptKind;

use proptest::prelude::*;

use super::super::queue::OFFER;
use super::super::*;
use super::rate;
use crate::destination::circuit_breaker::CircuitBreakerConfig;
use crate::destination::rate_limit::RateLimitConfig;
use crate::failure::Failure;
use crate::hint::Hint;
use crate::policy::backoff::Backoff;

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLI;
/// A caller that could go has gone after this: a lost wake-up, and the offer of a sleeping caller.
const MAX_IDLE_WAIT: u64 = 2 * SECOND;

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * MILLI)
}

/// Reproducible randomness (SplitMix64).
struct Mix(u64);

impl Random for Mix {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}

impl Mix {
    fn below(&mut self, most: u64) -> u64 {
        self.next_u64() % most
    }
}

#[derive(Debug)]
enum State {
    Waiting { until: Instant },
    Running { permit: Permit, ends: Instant },
    Done,
}

#[derive(Debug)]
struct Client {
    request: AdmissionRequest,
    state: State,
    /// Neither wakers nor timers reach it, like a future that is not polled.
    sleeping: bool,
    joined: Instant,
    retries: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Service {
    Up,
    Refuses,
    Hangs,
    /// Asks for this many milliseconds of silence.
    Throttles(u64),
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive {
        limit: Option<u64>,
        retries: u32,
        rate_limit_only: bool,
    },
    Leave(usize),
    Sleep(usize),
    Awake(usize),
    Advance(u64),
    /// The machine is suspended: time passes, and no timer runs.
    Suspend(u64),
    Become(Service),
    Reload(Rules),
}

/// The settings of a policy for a destination.
#[derive(Clone, Copy, Debug)]
struct Rules {
    circuit_breaker: Option<CircuitBreakerConfig>,
    /// Attempts per second, and burst.
    rate: Option<(f64, u32)>,
    max_hint: Duration,
    off: bool,
}

impl Rules {
    fn rate(&self) -> Option<RateLimitConfig> {
        self.rate.map(|(limit, burst)| rate(limit, burst))
    }

    fn policy(&self) -> Policy {
        let mut policy = Policy::builder(Backoff::None).max_hint(self.max_hint);
        if let Some(circuit_breaker) = self.circuit_breaker {
            policy = policy.circuit_breaker(circuit_breaker);
        }
        if let Some(rate) = self.rate() {
            policy = policy.rate_limit(rate);
        }
        let policy = policy.build().unwrap();
        if self.off {
            policy.without_retries()
        } else {
            policy
        }
    }
}

struct World {
    outbound: Outbound,
    cooldown: Cooldown,
    random: Mix,
    now: Instant,
    clients: Vec<Client>,
    service: Service,
    starts: Vec<Instant>,
    /// The rules, and since when each holds.
    rules: Vec<(Instant, Rules)>,
    /// No caller sleeps, and the machine is never suspended.
    wakes_are_certain: bool,
    /// Since when nothing holds any caller.
    clear_since: Option<Instant>,
}

impl World {
    fn new(rules: Rules, seed: u64, wakes_are_certain: bool) -> Self {
        let outbound = Outbound::new(&rules.policy());
        Self {
            outbound: match wakes_are_certain {
                true => outbound.with_certain_wakes(),
                false => outbound,
            },
            wakes_are_certain,
            cooldown: Cooldown::new(),
            random: Mix(seed),
            now: at(1000),
            clients: Vec::new(),
            service: Service::Up,
            starts: Vec::new(),
            rules: Vec::from([(at(0), rules)]),
            clear_since: None,
        }
    }

    fn max_hint(&self) -> Duration {
        self.rules.last().unwrap().1.max_hint
    }

    fn reload(&mut self, rules: Rules) {
        self.rules.push((self.now, rules));
        self.outbound
            .set_policy(self.now, &rules.policy(), &self.cooldown, &mut self.random);
        let most = self.max_hint();
        assert!(
            self.cooldown.left(self.now) <= most,
            "longer than the longest hint"
        );
        self.wake();
    }

    fn arrive(&mut self, limit: Option<u64>, retries: u32, rate_limit_only: bool) {
        assert!(self.outbound.on_request(self.now, &mut self.random));
        let until = limit.map_or(Instant::MAX, |millis| self.now.plus_nanos(millis * MILLI));
        self.clients.push(Client {
            request: AdmissionRequest {
                id: self.clients.len() as u64,
                since: self.now,
                last_start: until,
                answer_by: until,
                longest: Duration::from_secs(300),
                jitter: 1.0,
                kind: AttemptKind::First,
                waits_without_limit: false,
                rate_limit_only,
                may_wait: true,
            },
            state: State::Done,
            sleeping: false,
            joined: self.now,
            retries,
        });
        self.ask(self.clients.len() - 1);
    }

    fn ask(&mut self, index: usize) {
        let longest = self.now.saturating_add(2 * self.max_hint());
        let client = &mut self.clients[index];
        let request = client.request;
        let (outbound, random) = (&mut self.outbound, &mut self.random);
        let answer = match client.state {
            State::Waiting { .. } => {
                outbound.admit_again(self.now, &request, &self.cooldown, random)
            }
            _ => outbound.admit(self.now, &request, &self.cooldown, random),
        };
        match answer {
            Admission::Start(permit) => {
                assert!(self.now <= request.last_start, "a late start");
                if !request.rate_limit_only {
                    assert!(self.cooldown.left(self.now).is_zero(), "during a cooldown");
                }
                self.starts.push(self.now);
                let took = match self.service {
                    Service::Hangs => 1000,
                    _ => 1 + self.random.below(20),
                };
                client.state = State::Running {
                    permit,
                    ends: self.now.plus_nanos(took * MILLI),
                };
            }
            Admission::Wait(until, by) => {
                assert!(until > self.now, "asks again at once");
                if by == BlockedBy::Cooldown {
                    assert!(
                        until <= longest.max(self.now.plus_nanos(1)),
                        "held for too long"
                    );
                }
                assert!(until < Instant::MAX, "waits for ever");
                if !matches!(client.state, State::Waiting { .. }) {
                    client.joined = self.now;
                }
                client.state = State::Waiting { until };
            }
            Admission::Stop(_) | Admission::TooLate => client.state = State::Done,
        }
        self.wake();
    }

    /// Woken callers request admission again, unless they sleep.
    fn wake(&mut self) {
        for id in self.outbound.take_woken() {
            let index = self
                .clients
                .iter()
                .position(|client| client.request.id == id);
            if let Some(index) = index
                && !self.clients[index].sleeping
                && matches!(self.clients[index].state, State::Waiting { .. })
            {
                self.ask(index);
            }
        }
    }

    fn end(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let State::Running { permit, .. } = core::mem::replace(&mut client.state, State::Done)
        else {
            return;
        };
        let failure = match self.service {
            Service::Up => None,
            Service::Refuses => Some(Failure::ambiguous()),
            Service::Hangs => Some(Failure::ambiguous().cause(crate::Cause::Timeout)),
            Service::Throttles(millis) => {
                let hint = Hint::after(Duration::from_millis(millis));
                Some(Failure::throttled().hint(hint))
            }
        };
        let outcome = match &failure {
            None => AttemptOutcome::SUCCESS,
            Some(failure) => {
                let most = self.rules.last().unwrap().1.max_hint;
                self.cooldown.on_failure(self.now, failure, most);
                AttemptOutcome::of(failure)
            }
        };
        self.outbound
            .end(self.now, permit, &outcome, &self.cooldown, &mut self.random);
        let client = &mut self.clients[index];
        let again = failure.is_some() && client.retries > 0;
        if again {
            client.retries -= 1;
            client.request.kind = AttemptKind::FundedRetry;
        }
        self.wake();
        if again {
            self.ask(index);
        }
    }

    fn leave(&mut self, index: usize) {
        let caller = self.clients[index].request.waiter();
        match core::mem::replace(&mut self.clients[index].state, State::Done) {
            State::Waiting { .. } => {
                self.outbound
                    .leave(self.now, &caller, &self.cooldown, &mut self.random);
            }
            State::Running { permit, .. } => self.outbound.end(
                self.now,
                permit,
                &AttemptOutcome::UNKNOWN,
                &self.cooldown,
                &mut self.random,
            ),
            State::Done => {}
        }
        self.wake();
    }

    /// The next event, and the client that it concerns.
    fn next(&self) -> Option<(Instant, usize)> {
        let due = self
            .clients
            .iter()
            .enumerate()
            .filter_map(|(index, client)| {
                let due = match &client.state {
                    State::Waiting { until } if !client.sleeping => *until,
                    State::Running { ends, .. } => *ends,
                    _ => return None,
                };
                Some((due, index))
            });
        due.min()
    }

    fn advance(&mut self, nanos: u64) {
        let until = self.now.plus_nanos(nanos);
        let mut turns = 0;
        while let Some((due, index)) = self.next().filter(|(due, _)| *due <= until) {
            turns += 1;
            assert!(turns < 1_000_000, "turns and turns");
            self.now = self.now.max(due);
            match self.clients[index].state {
                State::Waiting { .. } => self.ask(index),
                State::Running { .. } => self.end(index),
                State::Done => {}
            }
            self.assert_no_needless_wait();
        }
        self.now = until;
        self.assert_no_needless_wait();
        self.assert_max_queue_time();
    }

    /// No caller that is awake is queued for longer than the current breaker allows.
    fn assert_max_queue_time(&self) {
        let patience = self
            .outbound
            .circuit_breaker()
            .map(|circuit_breaker| circuit_breaker.config().max_queue_time);
        for client in &self.clients {
            let waits = matches!(client.state, State::Waiting { .. }) && !client.sleeping;
            if waits
                && self.outbound.blocked_by(&client.request.waiter())
                    == Some(BlockedBy::CircuitBreaker)
            {
                let until = client.request.since.saturating_add(patience.unwrap());
                assert!(self.now <= until, "queued for longer than the limit");
            }
        }
    }

    /// No caller that is awake waits for long when nothing holds it.
    fn assert_no_needless_wait(&mut self) {
        let now = self.now;
        let open = self
            .outbound
            .circuit_breaker()
            .is_none_or(CircuitBreaker::is_normal);
        let cool = self.cooldown.left(now).is_zero();
        let slot = match self.outbound.rate_limit_mut() {
            Some(rate) => rate.next_slot(now) <= now,
            None => true,
        };
        if !(open && cool && slot) {
            self.clear_since = None;
            return;
        }
        let since = *self.clear_since.get_or_insert(now);
        if now.nanos_since(since) < MAX_IDLE_WAIT {
            return;
        }
        for client in &self.clients {
            let waits = matches!(client.state, State::Waiting { .. }) && !client.sleeping;
            // Callers held by a cooldown have their own jitter after it.
            let held =
                self.outbound.blocked_by(&client.request.waiter()) == Some(BlockedBy::Cooldown);
            assert!(
                !waits || held || client.joined > since,
                "{client:?} at {now:?}"
            );
        }
    }

    fn step(&mut self, step: Step) {
        let count = self.clients.len().max(1);
        let pick = |index: usize| index % count;
        match step {
            Step::Arrive {
                limit,
                retries,
                rate_limit_only,
            } => self.arrive(limit, retries, rate_limit_only),
            Step::Leave(index) if !self.clients.is_empty() => self.leave(pick(index)),
            Step::Sleep(_) | Step::Suspend(_) if self.wakes_are_certain => {}
            Step::Sleep(index) if !self.clients.is_empty() => {
                self.clients[pick(index)].sleeping = true;
            }
            Step::Awake(index) if !self.clients.is_empty() => {
                let client = &mut self.clients[pick(index)];
                client.sleeping = false;
                if matches!(client.state, State::Waiting { .. }) {
                    client.joined = self.now;
                    self.ask(pick(index));
                }
            }
            Step::Leave(_) | Step::Sleep(_) | Step::Awake(_) => {}
            Step::Advance(millis) => self.advance(millis * MILLI),
            Step::Suspend(millis) => {
                self.now = self.now.plus_nanos(millis * MILLI);
                self.clear_since = None;
            }
            Step::Become(service) => self.service = service,
            Step::Reload(rules) => self.reload(rules),
        }
        assert!(self.outbound.queue.is_in_order(), "{:?}", self.outbound);
    }

    /// The service is up for so long that every caller that is awake is served or has given up. The
    /// others leave. No state remains.
    fn close(mut self) {
        self.service = Service::Up;
        self.advance(2000 * SECOND);
        for index in 0..self.clients.len() {
            let client = &self.clients[index];
            let done = matches!(client.state, State::Done);
            assert!(done || client.sleeping, "{client:?}");
            self.leave(index);
        }
        assert_eq!(self.outbound.waiting(), 0);
        assert_eq!(
            (
                self.outbound.queued_while_down(),
                self.outbound.held_by_rate_limit()
            ),
            (0, 0)
        );
        assert_eq!(self.outbound.due(), None);
        assert_rates(&self.rules, &self.starts);
    }
}

/// In no interval more attempts started than the rates of that time allow, except for offers that were
/// taken late.
fn assert_rates(rules: &[(Instant, Rules)], starts: &[Instant]) {
    for (first, from) in starts.iter().enumerate() {
        let start = *from;
        let from = from.as_nanos().saturating_sub(OFFER);
        let of_then = rules.partition_point(|(since, _)| since.as_nanos() <= from) - 1;
        // An offer from before a rate change that was not taken is given back to the new rate.
        let until = rules.partition_point(|(since, _)| *since <= start);
        let bursts = rules[of_then..until].iter();
        let bursts = bursts.map(|(_, rules)| rules.rate.map_or(u32::MAX, |(_, burst)| burst));
        let burst = bursts.max().unwrap();
        for (last, to) in starts.iter().enumerate().skip(first) {
            let mut most = f64::from(burst) + 1e-6;
            let mut is_held = true;
            for (index, (since, rules_then)) in rules.iter().enumerate().skip(of_then) {
                let until = rules
                    .get(index + 1)
                    .map_or(u64::MAX, |next| next.0.as_nanos());
                let span = until
                    .min(to.as_nanos())
                    .saturating_sub(since.as_nanos().max(from));
                match rules_then.rate {
                    _ if since > to => break,
                    Some((limit, _)) => most += limit * span as f64 / 1e9,
                    None => is_held = false,
                }
            }
            let went = (last - first + 1) as f64;
            assert!(
                !is_held || went <= most,
                "{went} of {most} from {from} to {to:?}"
            );
        }
    }
}

fn rules() -> impl Strategy<Value = Rules> {
    let circuit_breaker =
        (1..2000_u64, 1..2000_u64, 0..300_u64).prop_map(|(first, most, patience)| {
            CircuitBreakerConfig {
                first_probe: Duration::from_millis(first),
                max_probe: Duration::from_millis(first + most * most),
                max_queue_time: Duration::from_secs(patience),
                ..CircuitBreakerConfig::DEFAULT
            }
        });
    let circuit_breaker = prop_oneof![Just(CircuitBreakerConfig::DEFAULT), circuit_breaker];
    let hint = prop_oneof![Just(300_000_u64), 0..6000_u64];
    (
        proptest::option::of(circuit_breaker),
        proptest::option::of((0.5..50.0_f64, 1..5_u32)),
        hint,
        proptest::bool::weighted(0.2),
    )
        .prop_map(|(circuit_breaker, rate, hint, off)| Rules {
            circuit_breaker,
            rate,
            max_hint: Duration::from_millis(hint),
            off,
        })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let limit = proptest::option::of(1..20_000_u64);
    let service = prop_oneof![
        3 => Just(Service::Up),
        2 => Just(Service::Refuses),
        1 => Just(Service::Hangs),
        1 => (1..5000_u64).prop_map(Service::Throttles),
    ];
    let step = prop_oneof![
        8 => (limit, 0..4_u32, proptest::bool::weighted(0.1)).prop_map(
            |(limit, retries, rate_limit_only)| Step::Arrive { limit, retries, rate_limit_only }
        ),
        2 => any::<usize>().prop_map(Step::Leave),
        1 => any::<usize>().prop_map(Step::Sleep),
        1 => any::<usize>().prop_map(Step::Awake),
        6 => (0..3000_u64).prop_map(Step::Advance),
        1 => (0..20_000_u64).prop_map(Step::Suspend),
        2 => service.prop_map(Step::Become),
        1 => rules().prop_map(Step::Reload),
    ];
    proptest::collection::vec(step, 1..80)
}

proptest! {
    #[test]
    fn no_caller_is_lost_or_overtaken_by_rules_of_others(
        steps in steps(),
        rules in rules(),
        seed: u64,
        wakes_are_certain in proptest::bool::weighted(0.3),
    ) {
        let mut world = World::new(rules, seed, wakes_are_certain);
        for step in steps {
            world.step(step);
        }
        world.close();
    }
}
