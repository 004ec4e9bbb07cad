//! Differential tests: the same requests, service and random streams give the same attempts, to the nanosecond, in
//! the simulator and through the futures of `relent`.
//!
//! The service is the simulator's own ([`Serving`]), called through messages that take as long as those of the
//! simulator. Each request draws from the stream that it has in the simulator, and its destination from that of the
//! simulated destinations.
#![allow(missing_debug_implementations, reason = "tests may")]

mod virtual_time;

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;
use relent::clock::Sleeper;
use relent::failure::{Audience, Cause, HintSource};
use relent::policy::{
    BudgetConfig, CircuitBreakerConfig, HedgeConfig, RateLimitConfig, ThrottleConfig,
};
use relent::random::Random;
use relent::{Backoff, Destination, Failure, Hint, Jitter, Policy, retry_with};
use relent_sim::{
    ArrivingAttempt, Row, Scenario, ServiceAnswer, Serving, Stream, requests, run, trace,
};
use virtual_time::VirtualTime;

/// The stream of all destinations, and the first of the streams of the requests, as in the simulator.
const DESTINATIONS: u64 = 9;
const SESSIONS: u64 = 1 << 32;
/// The most attempts of a client in a trace.
const MOST: usize = 200;

/// The response that an attempt waits for.
#[derive(Default)]
struct Reply {
    answer: Option<ServiceAnswer>,
    waker: Option<Waker>,
}

type Waiting = Weak<RefCell<Reply>>;

struct Service {
    time: VirtualTime,
    way: Duration,
    status: u16,
    serving: RefCell<Serving>,
    /// Attempts in service.
    served: RefCell<HashMap<u32, Waiting>>,
    arrived: RefCell<u32>,
}

impl Service {
    /// Makes an attempt of a request: sends a message, and waits for the response.
    async fn attempt(self: Rc<Self>, request: u32, number: u32) -> Result<(), Failure> {
        let reply = Rc::new(RefCell::new(Reply::default()));
        let waiting = Rc::downgrade(&reply);
        let service = self.clone();
        // The message arrives even if no caller waits for the response any more.
        self.time.spawn(async move {
            service.time.sleep(service.way).await;
            let id = service.arrived.replace_with(|id| *id + 1);
            let listens = waiting.strong_count() > 0;
            let attempt = ArrivingAttempt {
                id,
                number: if listens { number } else { 1 },
                key: listens.then_some(u64::from(request)),
            };
            let answer = service
                .serving
                .borrow_mut()
                .arrive(service.time.nanos(), attempt);
            match answer {
                Some(answer) => service.answer(waiting, answer),
                None => {
                    service.served.borrow_mut().insert(id, waiting);
                }
            }
            service.deliver();
        });
        let answer = poll_fn(|context| {
            let mut reply = reply.borrow_mut();
            reply.waker = Some(context.waker().clone());
            reply.answer.take().map_or(Poll::Pending, Poll::Ready)
        });
        let status = Cause::Status(self.status);
        Err(match answer.await {
            ServiceAnswer::Success => return Ok(()),
            ServiceAnswer::Failure { do_not_retry, .. } => match do_not_retry {
                true => Failure::ambiguous()
                    .cause(status)
                    .hint(Hint::do_not_retry()),
                false => Failure::ambiguous().cause(status),
            },
            ServiceAnswer::Throttled(wait) => {
                let throttled = Failure::throttled().cause(Cause::Status(429));
                wait.map_or(throttled, |wait| {
                    let hint = Hint::after(Duration::from_nanos(wait.nanos));
                    throttled.hint(match wait.ticket {
                        true => hint
                            .from_source(HintSource::header("retry-after-ms"))
                            .for_audience(Audience::TicketMillis),
                        false => hint
                            .from_source(HintSource::header("retry-after"))
                            .for_audience(Audience::Shared),
                    })
                })
            }
        })
    }

    /// Sends a response back.
    fn answer(self: &Rc<Self>, waiting: Waiting, answer: ServiceAnswer) {
        let service = self.clone();
        self.time.spawn(async move {
            service.time.sleep(service.way).await;
            if let Some(reply) = waiting.upgrade() {
                let mut reply = reply.borrow_mut();
                reply.answer = Some(answer);
                if let Some(waker) = reply.waker.take() {
                    waker.wake();
                }
            }
        });
    }

    /// Sends the responses of completed services.
    fn deliver(self: &Rc<Self>) {
        let answers: Vec<_> = self.serving.borrow_mut().answers().collect();
        for (id, answer) in answers {
            let waiting = self.served.borrow_mut().remove(&id).unwrap();
            self.answer(waiting, answer);
        }
    }
}

/// The stream from which all destinations draw.
#[derive(Clone)]
struct Shared(Arc<Mutex<Stream>>);

impl Random for Shared {
    fn next_u64(&mut self) -> u64 {
        self.0.lock().unwrap().next_u64()
    }
}

/// The attempts of each request through the futures of `relent`, and the number that give up. `None` if a request is made
/// at the very nanosecond of a timer: nothing defines which of them is first, so the simulator may differ.
fn real(scenario: &Scenario, policy: &Policy, seed: u64) -> Option<(Vec<Row>, u64)> {
    let time = VirtualTime::default();
    let service = Rc::new(Service {
        time: time.clone(),
        way: Duration::from_nanos(scenario.network.one_way),
        status: scenario.service.status,
        serving: RefCell::new(Serving::new(scenario, seed)),
        served: RefCell::default(),
        arrived: RefCell::new(0),
    });
    let random = Shared(Arc::new(Mutex::new(Stream::new(seed, DESTINATIONS))));
    let destination = |_| Rc::new(Destination::new(policy).with_stream(random.clone()));
    let destinations: Vec<_> = (0..scenario.clients.processes).map(destination).collect();
    let policy = Rc::new(policy.clone());
    let rows = Rc::new(RefCell::new(Vec::new()));
    let give_ups = Rc::new(RefCell::new(0));
    let mut requests = (0..).zip(requests(scenario, seed).unwrap()).peekable();
    loop {
        time.run_ready();
        let request = requests.peek().map(|(_, request)| request.at);
        let served = service.serving.borrow().next();
        let timer = time.next();
        let next = [request, served, timer].into_iter().flatten().min();
        let Some(now) = next else {
            break;
        };
        if served == Some(now) && timer != Some(now) {
            time.advance(now);
            service.serving.borrow_mut().advance(now);
            service.deliver();
            continue;
        }
        if request != Some(now) {
            time.advance(now);
            continue;
        }
        if timer == Some(now) {
            return None;
        }
        time.advance(now);
        let (number, request) = requests.next().unwrap();
        let destination = destinations[request.process as usize].clone();
        let (service, policy) = (service.clone(), policy.clone());
        let (rows, give_ups) = (rows.clone(), give_ups.clone());
        rows.borrow_mut().push(Row {
            client: number,
            ..Row::default()
        });
        let time = time.clone();
        time.clone().spawn(async move {
            let result = retry_with(&policy, |attempt| {
                let row = &mut rows.borrow_mut()[number as usize];
                match row.attempts.len() < MOST {
                    true => row.attempts.push(time.nanos()),
                    false => row.more += 1,
                }
                service.clone().attempt(number, attempt.number)
            })
            .classify(|failure: &Failure| *failure)
            .destination(&destination)
            .random(Stream::new(seed, SESSIONS + u64::from(number)))
            .clock(time.clone())
            .await;
            match result {
                Ok(()) => rows.borrow_mut()[number as usize].succeeded = Some(time.nanos()),
                Err(_) => *give_ups.borrow_mut() += 1,
            }
        });
    }
    let rows = rows.borrow().clone();
    Some((rows, give_ups.take()))
}

/// Compares both; `false` if the order of their events is not defined.
#[must_use]
fn are_compared(scenario: &Scenario, policy: &Policy, seed: u64) -> bool {
    let Some((real, give_ups)) = real(scenario, policy, seed) else {
        return false;
    };
    let simulated = trace(scenario, policy, seed).unwrap();
    for (simulated, real) in simulated.iter().zip(&real) {
        assert_eq!(simulated, real, "the simulated one is first");
    }
    assert_eq!(simulated.len(), real.len());
    assert_eq!(run(scenario, policy, seed).unwrap().give_ups, give_ups);
    true
}

const OUTAGES: &str = r#"
    outages = [
        { at = "5s", for = "4s", effect = "blackout" },
        { at = "15s", for = "5s", effect = { brownout = 0.5 } },
        { at = "25s", for = "2s", effect = "stall" },
    ]
    [clients]
    arrivals.poisson = { rate = 40, for = "40s" }
    processes = 2
    attempt_timeout = "24h"
    deadline = "24h"
    [service]
    capacity = 50
    workers = 2
    queue = "500ms"
    failures = 0.05
"#;

#[test]
fn standard_and_patient_behave_in_outages_as_simulated() {
    for (changes, seed) in [(&[][..], 1), (&[("clients.processes", "1")], 2)] {
        let scenario = Scenario::parse_with(OUTAGES, changes).unwrap();
        for policy in [Policy::STANDARD, Policy::PATIENT] {
            let policy = policy.clone().into_builder();
            let policy = policy.attempt_timeout(Duration::from_secs(1));
            let policy = policy.deadline(Duration::from_secs(20)).build().unwrap();
            assert!(are_compared(&scenario, &policy, seed));
        }
    }
}

/// At the deadline the policy ends the call, and reports an attempt that it cuts off. The simulated caller, which has
/// the same deadline, does not go away before.
#[test]
fn a_policy_with_the_deadline_of_its_callers_ends_calls_as_simulated() {
    for (attempt_timeout, seed) in [(None, 1), (Some(1), 2)] {
        let scenario = Scenario::parse_with(OUTAGES, &[("clients.deadline", "3s")]).unwrap();
        for policy in [Policy::STANDARD, Policy::PATIENT] {
            let mut policy = policy.clone().into_builder();
            if let Some(timeout) = attempt_timeout {
                policy = policy.attempt_timeout(Duration::from_secs(timeout));
            }
            let policy = policy.deadline(Duration::from_secs(3)).build().unwrap();
            assert!(are_compared(&scenario, &policy, seed));
        }
    }
}

fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

prop_compose! {
    fn policies()(
        backoff in prop::sample::select(vec![
            Backoff::exponential(secs(0.1)),
            Backoff::constant(secs(0.3)),
            Backoff::decorrelated(secs(0.05)),
        ]),
        jitter in prop::sample::select(vec![Jitter::Full, Jitter::Equal, Jitter::None]),
        max_retries in 0_u32..12,
        limits in (
            prop::option::of(0.05..2.0_f64),
            prop::option::of(0.5..60.0_f64),
            prop::option::of(0.5..60.0_f64),
            any::<bool>(),
        ),
        budget in prop::option::of((0.0..1.0_f64, 0.0..20.0_f64)),
        circuit_breaker in any::<bool>(),
        rate in prop::option::weighted(0.4, (prop::option::of(5.0..100.0_f64), any::<bool>())),
        throttle in prop::option::weighted(0.3, 1.0..3.0_f64),
        hedge in prop::option::weighted(0.4, (0.003..0.5_f64, any::<bool>(), 1_u32..4)),
        retry_after_jitter in prop::sample::select(vec![0.0, 0.25, 1.0]),
        off in prop::bool::weighted(0.05),
    ) -> Option<Policy> {
        let mut policy = Policy::builder(backoff).jitter(jitter).max_retries(max_retries);
        let (attempt, deadline, elapsed, cut) = limits;
        policy = policy.attempt_timeout(secs(attempt.unwrap_or(1.0)));
        if let Some(deadline) = deadline {
            policy = policy.deadline(secs(deadline));
        }
        if let Some(elapsed) = elapsed {
            policy = policy.max_elapsed(secs(elapsed));
        }
        if deadline.is_some() || elapsed.is_some() {
            policy = policy.final_attempt_before_deadline(cut);
        }
        if let Some((ratio, reserve)) = budget {
            policy = policy.budget(BudgetConfig { ratio, initial_tokens: reserve, ..BudgetConfig::DEFAULT });
        }
        if circuit_breaker {
            // A simulated caller has a deadline, here of a day. A real one without a deadline must wait as long.
            let day = Duration::from_secs(24 * 3600);
            policy = policy.circuit_breaker(CircuitBreakerConfig {
                max_queue_time_without_deadline: day,
                max_queue_time_without_response: day,
                ..CircuitBreakerConfig::DEFAULT
            });
        }
        if let Some((limit, adapt)) = rate {
            let adapt = adapt || limit.is_none();
            let burst = limit.map(|_| 3);
            policy = policy.rate_limit(RateLimitConfig { limit, burst, adaptive: adapt });
        }
        if let Some(factor) = throttle {
            policy = policy.throttle(ThrottleConfig { factor, window: secs(10.0) });
        }
        if let Some((delay, percentile, hedges)) = hedge {
            let config = match percentile {
                true => HedgeConfig::percentile(0.9),
                false => HedgeConfig::after(secs(delay)),
            };
            policy = policy.hedge(config.max_hedges(hedges));
        }
        policy.retry_after_jitter(retry_after_jitter).retries_off(off).build().ok()
    }
}

prop_compose! {
    fn scenarios()(
        arrivals in prop::sample::select(vec![
            "poisson = { rate = 20, for = \"30s\" }",
            "poisson = { rate = 60, for = \"15s\" }",
            "bursts = { rate = 60, on = \"2s\", off = \"5s\", for = \"30s\" }",
            "poisson = { rate = 10, for = \"20s\" }\nclients.backlog = { requests = 200, over = \"2s\" }",
        ]),
        processes in 1..4,
        way in prop::sample::select(vec!["1us", "500us", "60ms"]),
        workers in 1..4,
        queue in prop::sample::select(vec!["unbounded", "50ms", "500ms"]),
        failures in prop::sample::select(vec![0.0, 0.1, 0.5, 1.0]),
        reject_cost in prop::sample::select(vec![0.0, 0.5]),
        limiter in prop::sample::select(vec![
            "",
            "limiter = { rate = 20, burst = 5 }",
            "limiter = { rate = 20, burst = 5, retry_after = \"2s\" }",
            "limiter = { rate = 20, burst = 5, retry_after = \"slots\", horizon = \"3s\" }",
        ]),
        shedder in prop::sample::select(vec!["", "shedder = { target = \"20ms\" }"]),
        outages in prop::sample::select(vec![
            "",
            "outages = [{ at = \"4s\", for = \"5s\", effect = \"blackout\" }]",
            "outages = [{ at = \"4s\", for = \"3s\", effect = \"stall\" }]",
            "outages = [{ at = \"4s\", for = \"6s\", effect = { brownout = 0.3 } }]",
        ]),
    ) -> Scenario {
        Scenario::parse(&format!("
            {outages}
            clients.arrivals.{arrivals}
            clients.processes = {processes}
            clients.attempt_timeout = \"24h\"
            clients.deadline = \"24h\"
            network.one_way = \"{way}\"
            [service]
            capacity = 50
            workers = {workers}
            queue = \"{queue}\"
            failures = {failures}
            reject_cost = {reject_cost}
            {limiter}
            {shedder}
        ")).unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 100,
        // Events at the same nanosecond are rare.
        max_global_rejects: 5,
        ..ProptestConfig::default()
    })]

    #[test]
    fn simulated_and_real_attempts_are_equal_for_any_policy(
        policy in policies().prop_filter_map("contradicts itself", |policy| policy),
        scenario in scenarios(),
        seed: u64,
    ) {
        prop_assume!(are_compared(&scenario, &policy, seed));
    }
}
