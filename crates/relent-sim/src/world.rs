//! One run: the crowd, the network and the service in virtual time.

use std::fmt;
use std::hint::black_box;
use std::time::Duration;

use relent_core::{
    Advice, Answer, Asking, Budget, Cause, Decision, Ended, Failure, Hint, Holding, Instant,
    Permit, Policy, Session,
};

use crate::arrivals;
use crate::call::{Call, Event, NOBODY, Reply};
use crate::medium::{self, Cable};
use crate::metrics::{Metrics, Recorder};
use crate::outbounds::Outbounds;
use crate::queue::Queue;
use crate::scenario::{Arrivals, Model, Scenario, WaitFormat};
use crate::server::{Refused, Server, Who};
use crate::stream::{Stream, rounded};
use crate::told::Told;

/// The streams of a run, by purpose. Sessions have one each, from `SESSIONS` on.
pub(crate) const ARRIVALS: u64 = 1;
pub(crate) const POPULATION: u64 = 2;
const NETWORK: u64 = 3;
pub(crate) const SERVICE: u64 = 4;
pub(crate) const LUCK: u64 = 5;
const JOBS: u64 = 6;
const LOSS: u64 = 7;
pub(crate) const BACKLOG: u64 = 8;
const GATES: u64 = 9;
/// One for each process.
const CLOCKS: u64 = 1 << 31;
pub(crate) const SESSIONS: u64 = 1 << 32;

/// More events than any useful run has: some policies never let time pass.
pub(crate) const MOST_EVENTS: u64 = 200_000_000;

/// The run was given up: the policy makes so many attempts that it would not end in reasonable time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyEvents;

impl fmt::Display for TooManyEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "given up after {MOST_EVENTS} events: the policy makes too many attempts"
        )
    }
}

impl std::error::Error for TooManyEvents {}

/// Runs `policy` through `scenario` in virtual time: the same seed gives the same result, bit for
/// bit, on every machine. Decisions are those of [`Session`], [`Budget`] and
/// [`Outbound`](relent_core::Outbound) themselves.
///
/// ```
/// use relent_core::Policy;
/// use relent_sim::{Scenario, run};
///
/// let scenario = Scenario::parse(r#"
///     clients.arrivals.poisson = { rate = 100, for = "60s" }
///     service.failures = 0.01
/// "#)?;
/// let metrics = run(&scenario, Policy::STANDARD, 1)?;
/// assert!(metrics.goodput > 0.999);
/// assert_eq!(metrics, run(&scenario, Policy::STANDARD, 1)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`TooManyEvents`] where a policy without backoff would run for hours.
pub fn run(scenario: &Scenario, policy: &Policy, seed: u64) -> Result<Metrics, TooManyEvents> {
    let recorder = Recorder::new(scenario);
    let recorder = run_within(scenario, policy, seed, recorder, MOST_EVENTS)?;
    Ok(recorder.finish(scenario))
}

/// Runs with this recorder; gives up after so many events.
pub(crate) fn run_within(
    scenario: &Scenario,
    policy: &Policy,
    seed: u64,
    recorder: Recorder,
    most_events: u64,
) -> Result<Recorder, TooManyEvents> {
    if let Some(cable) = Cable::of(scenario) {
        return medium::run_within(scenario, policy, seed, cable, recorder, most_events);
    }
    let mut world = World::new(scenario, policy, seed, recorder);
    world.open();
    let mut events = 0;
    while let Some((now, event)) = world.next() {
        events += 1;
        if events > most_events {
            return Err(TooManyEvents);
        }
        world.happen(now, event);
    }
    world.recorder.on_end(events + world.queue.dropped());
    Ok(world.recorder)
}

struct World<'a> {
    scenario: &'a Scenario,
    policy: &'a Policy,
    seed: u64,
    queue: Queue<Event>,
    server: Server,
    calls: Vec<Call>,
    /// Changes, for each call, with everything that makes older events meaningless. Apart from the
    /// calls, so that an event which means nothing any more costs no look at a call far away.
    stamps: Vec<u32>,
    free: Vec<u32>,
    budgets: Vec<Budget>,
    outbounds: Outbounds,
    /// How long a request may be parked.
    patience: u64,
    recorder: Recorder,
    /// Calls made so far, of all layers.
    made: u64,
    arrivals: Stream,
    population: Stream,
    network: Stream,
    jobs: Stream,
    loss: Stream,
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, policy: &'a Policy, seed: u64, recorder: Recorder) -> Self {
        let stream = |index| Stream::new(seed, index);
        let populations = scenario.clients.processes * u32::from(scenario.chain.layers);
        Self {
            scenario,
            policy,
            seed,
            queue: Queue::new(),
            server: Server::new(&scenario.service, stream(SERVICE), stream(LUCK)),
            calls: Vec::new(),
            stamps: Vec::new(),
            free: Vec::new(),
            budgets: (0..populations)
                .filter_map(|_| policy.new_budget())
                .collect(),
            recorder,
            patience: policy.gate().map_or(u64::MAX, |gate| {
                u64::try_from(gate.patience.as_nanos()).unwrap_or(u64::MAX)
            }),
            outbounds: Outbounds::new(policy, populations, stream(GATES)),
            made: 0,
            arrivals: stream(ARRIVALS),
            population: stream(POPULATION),
            network: stream(NETWORK),
            jobs: stream(JOBS),
            loss: stream(LOSS),
        }
    }

    /// Puts the first events into the queue.
    fn open(&mut self) {
        for (index, outage) in (0..).zip(&self.scenario.outages) {
            let begins = |begins| Event::Outage { index, begins };
            self.queue.push(outage.at, begins(true));
            self.queue.push(outage.at + outage.lasts, begins(false));
        }
        for at in arrivals::first(&self.scenario.clients.arrivals, &mut self.arrivals) {
            self.queue.push(at, Event::Request);
        }
        if let Some(backlog) = self.scenario.clients.backlog {
            for at in arrivals::of_backlog(backlog, Stream::new(self.seed, BACKLOG)) {
                self.queue.push(at, Event::Backlog);
            }
        }
    }

    /// Puts the request that follows one at `now` into the queue, if there is one.
    fn next_request(&mut self, now: u64) {
        let arrivals = &self.scenario.clients.arrivals;
        if let Some(at) = arrivals::next(arrivals, now, &mut self.arrivals) {
            self.queue.push(at, Event::Request);
        }
    }

    /// Takes the next event out of the queue.
    fn next(&mut self) -> Option<(u64, Event)> {
        let Self {
            queue,
            stamps,
            calls,
            ..
        } = self;
        // The calls of all events that come next are looked at together, which takes hardly longer than
        // the way to memory for one.
        let look = |who: &Who| {
            let call = &calls[who.call as usize];
            black_box((call.made, call.layer, call.parent.call, call.budget));
        };
        queue.pop(|event| match event {
            Event::Attempt(who) | Event::Limit(who) => {
                // Most attempts are answered long before their limit.
                let wanted = stamps[who.call as usize] == who.stamp;
                if wanted {
                    look(who);
                }
                wanted
            }
            Event::Reach(who) | Event::Answer(who, _) => {
                look(who);
                true
            }
            _ => true,
        })
    }

    fn happen(&mut self, now: u64, event: Event) {
        match event {
            Event::Request => {
                // Who waits for an answer makes the next request when it is there.
                if !matches!(self.scenario.clients.arrivals, Arrivals::Closed { .. }) {
                    self.next_request(now);
                }
                self.request(now);
            }
            Event::Backlog => self.request(now),
            Event::Outage { index, begins } => {
                let outage = self.scenario.outages.get(index as usize);
                let effect = outage.filter(|_| begins).map(|outage| outage.effect);
                self.server.set_outage(effect);
                self.serve(now);
            }
            Event::Attempt(who) if self.is_current(who) => self.ask(now, who.call),
            Event::Release(process) => self.release(now, process),
            Event::Reach(who) => self.reach(now, who),
            Event::Write(who) => self.write(now, who),
            Event::Served(who) => {
                let succeeded = self.server.end(now);
                if succeeded {
                    self.recorder.on_execution();
                    self.answer(now, who, Reply::Success);
                } else {
                    self.answer(now, who, Reply::Failure);
                }
                self.serve(now);
            }
            Event::Answer(who, reply) if self.is_current(who) => self.settle(now, who.call, reply),
            Event::Limit(who) if self.is_current(who) => self.limit(now, who.call),
            Event::Attempt(_) | Event::Answer(..) | Event::Limit(_) => {}
        }
    }

    fn request(&mut self, now: u64) {
        let parent = Who {
            call: NOBODY,
            stamp: 0,
        };
        let call = self.call(now, 0, parent);
        self.recorder.on_request(now, self.process(call));
        self.recorder.on_call(call);
        self.ask(now, call);
    }

    /// The process that makes the call.
    fn process(&self, index: u32) -> u32 {
        self.calls[index as usize].budget % self.scenario.clients.processes
    }

    fn is_current(&self, who: Who) -> bool {
        self.stamps[who.call as usize] == who.stamp
    }

    /// One way through the network.
    fn way(&mut self) -> u64 {
        let network = &self.scenario.network;
        match network.deviation {
            0 => network.one_way,
            deviation => {
                let way = network.one_way as f64 + deviation as f64 * self.network.normal();
                rounded(way.abs())
            }
        }
    }

    /// Whether a message is lost.
    fn is_lost(&mut self) -> bool {
        let loss = self.scenario.network.loss;
        let lost = loss > 0.0 && self.loss.happens(loss);
        if lost {
            self.recorder.on_drop();
        }
        lost
    }

    /// Makes a call at a layer.
    fn call(&mut self, now: u64, layer: u8, parent: Who) -> u32 {
        let processes = self.scenario.clients.processes;
        let process = self.population.below(processes);
        let call = Call {
            session: Session::new(Instant::from_nanos(now), self.scenario.clients.repeatable),
            random: Stream::new(self.seed, SESSIONS + self.made),
            made: now,
            key: self.made,
            note: match self.scenario.service.model {
                Model::Job { median, sigma } => {
                    now.saturating_add(self.jobs.lognormal(median, sigma))
                }
                Model::Queue | Model::Row | Model::Medium { .. } => 0,
            },
            parent,
            child: NOBODY,
            budget: u32::from(layer) * processes + process,
            layer,
            permit: None,
            waits: false,
        };
        self.made += 1;
        self.recorder.on_call_in(layer);
        self.outbounds.on_request(call.budget, now);
        if let Some(budget) = self.budgets.get(call.budget as usize) {
            budget.on_request();
        }
        match self.free.pop() {
            Some(index) => {
                // The stamp goes on, so that events of the call before mean nothing to this one.
                self.calls[index as usize] = call;
                index
            }
            None => {
                self.calls.push(call);
                self.stamps.push(0);
                (self.calls.len() - 1) as u32
            }
        }
    }

    /// Makes everything that was to happen to the call meaningless.
    fn restamp(&mut self, index: u32) -> Who {
        let stamp = &mut self.stamps[index as usize];
        *stamp = stamp.wrapping_add(1);
        Who {
            call: index,
            stamp: *stamp,
        }
    }

    /// Starts an attempt as soon as gate and request rate let it.
    fn ask(&mut self, now: u64, index: u32) {
        let call = &self.calls[index as usize];
        let (number, layer, waits) = (call.budget, call.layer, call.waits);
        let deadline = call.made + self.scenario.clients.deadline;
        let last = call.session.last_start(self.policy).as_nanos();
        let last = last.min(deadline.saturating_sub(1));
        let asking = Asking {
            id: u64::from(index),
            since: Instant::from_nanos(call.made),
            last_start: Instant::from_nanos(last),
            answer_by: Instant::from_nanos(deadline),
            longest: Duration::MAX,
            spread: self.policy.hint_spread(),
            fresh: call.session.attempts() == 0,
            paced_only: self.policy.is_off(),
        };
        match self.outbounds.ask(number, now, &asking, waits) {
            Answer::Start(permit) => {
                let call = &mut self.calls[index as usize];
                call.permit = Some(permit);
                call.waits = false;
                self.attempt(now, index);
            }
            Answer::Wait(_, holding) => {
                self.calls[index as usize].waits = true;
                if !waits {
                    let gone = match holding {
                        Holding::Gate => deadline.min(asking.since.as_nanos() + self.patience),
                        _ => last.saturating_add(1),
                    };
                    let who = self.restamp(index);
                    self.queue.push(gone.max(now), Event::Limit(who));
                }
            }
            Answer::Stop(_) | Answer::TooLate => {
                if layer == 0 {
                    self.recorder.on_give_up();
                }
                self.end(now, index, Some(Reply::Failure));
            }
        }
        self.plan(now, number);
    }

    /// Lets those go who wait and may.
    fn release(&mut self, now: u64, number: u32) {
        self.outbounds.settle(number, now);
        self.wake(now, number);
        self.plan(now, number);
    }

    /// Whom something is offered to takes it at once.
    fn wake(&mut self, now: u64, number: u32) {
        for id in self.outbounds.take_woken(number) {
            let index = id as u32;
            if self.calls[index as usize].waits {
                self.ask(now, index);
            }
        }
    }

    /// Sees to it that the process looks after those who wait in time.
    fn plan(&mut self, now: u64, number: u32) {
        if let Some(at) = self.outbounds.plan(number, now) {
            self.queue.push(at, Event::Release(number));
        }
    }

    /// The destination hears how the running attempt ended, or that a call that waits goes away.
    fn ended(&mut self, now: u64, index: u32, ended: Ended) {
        let call = &mut self.calls[index as usize];
        let number = call.budget;
        let waits = std::mem::replace(&mut call.waits, false);
        if let Some(permit) = call.permit.take() {
            let budget = self.budgets.get(number as usize);
            self.outbounds.ended(number, now, permit, ended, budget);
        } else if waits {
            self.outbounds.leave(number, now, u64::from(index));
        } else {
            return;
        }
        self.wake(now, number);
        self.plan(now, number);
    }

    /// Starts an attempt of the call.
    fn attempt(&mut self, now: u64, index: u32) {
        let who = self.restamp(index);
        let clients = &self.scenario.clients;
        let call = &mut self.calls[index as usize];
        call.session.on_attempt();
        let left = (call.made + clients.deadline).saturating_sub(now);
        let most = clients.attempt_timeout.min(left);
        let limit = call
            .session
            .attempt_limit(self.policy, Instant::from_nanos(now))
            .map_or(most, |limit| (limit.as_nanos() as u64).min(most));
        let layer = call.layer;
        self.recorder.on_call_out(layer);
        if layer == 0 {
            self.recorder.on_start(index, now);
        }
        self.queue.push(now + limit, Event::Limit(who));
        if self.is_lost() {
            return;
        }
        let way = self.way();
        if layer + 1 < self.scenario.chain.layers {
            let child = self.call(now + way, layer + 1, who);
            self.calls[index as usize].child = child;
            let stamp = self.stamps[child as usize];
            let child = Who { call: child, stamp };
            self.queue
                .push(now.saturating_add(way), Event::Attempt(child));
        } else {
            self.queue.push(now.saturating_add(way), Event::Reach(who));
        }
    }

    /// An attempt reaches the service.
    fn reach(&mut self, now: u64, who: Who) {
        if self.scenario.service.model == Model::Row {
            // It reads; that it attempts to write is seen when it does.
            if self.is_current(who) {
                self.calls[who.call as usize].note = self.server.version;
            }
            // What it reads comes back to it, and what it writes goes there again.
            if !self.is_lost() && !self.is_lost() {
                let way = self.way() + self.way();
                self.queue.push(now.saturating_add(way), Event::Write(who));
            }
            return;
        }
        self.recorder.on_attempt(now);
        // Of a caller who has gone away nothing is known any more.
        let caller = self.is_current(who).then(|| &self.calls[who.call as usize]);
        let attempt = caller.map_or(1, |call| call.session.attempts());
        if let Err(refused) = self.server.judge(now, attempt, caller.map(|call| call.key)) {
            let reply = match refused {
                Refused::Throttled(hinted) => {
                    Reply::Throttled(Told::write(self.wait_format(), now, hinted))
                }
                Refused::Shed(Advice::DoNotRetry) => Reply::Exhausted,
                Refused::Shed(Advice::None | Advice::DoRetry) | Refused::Down => Reply::Failure,
            };
            return self.answer(now, who, reply);
        }
        if let Model::Job { .. } = self.scenario.service.model {
            let done = now >= self.calls[who.call as usize].note;
            let reply = if done { Reply::Success } else { Reply::Pending };
            return self.answer(now, who, reply);
        }
        if self.server.enter(who) {
            self.serve(now);
        } else {
            self.answer(now, who, Reply::Failure);
        }
    }

    fn write(&mut self, now: u64, who: Who) {
        self.recorder.on_attempt(now);
        if self.server.is_blacked_out() {
            return self.answer(now, who, Reply::Failure);
        }
        if self.calls[who.call as usize].note == self.server.version {
            self.server.version += 1;
            self.recorder.on_execution();
            self.answer(now, who, Reply::Success);
        } else {
            self.answer(now, who, Reply::Conflict);
        }
    }

    /// Lets free workers begin.
    fn serve(&mut self, now: u64) {
        let Self { stamps, server, .. } = self;
        let cancellation = self.scenario.service.cancellation;
        let is_wanted = |who: Who| !cancellation || stamps[who.call as usize] == who.stamp;
        while let Some((who, time)) = server.begin(is_wanted) {
            self.queue
                .push(now.saturating_add(time), Event::Served(who));
        }
    }

    /// Sends an answer back.
    fn answer(&mut self, now: u64, who: Who, reply: Reply) {
        if self.is_lost() {
            return;
        }
        let way = self.way();
        self.queue
            .push(now.saturating_add(way), Event::Answer(who, reply));
    }

    /// An attempt, or the wait for the next, has lasted as long as it may.
    fn limit(&mut self, now: u64, index: u32) {
        self.abandon(now, index);
        let call = &self.calls[index as usize];
        if call.waits || now >= call.made + self.scenario.clients.deadline {
            self.end(now, index, Some(Reply::Failure));
        } else {
            self.decide(now, index, Failure::ambiguous().cause(Cause::Timeout));
        }
    }

    /// With cancellation, whoever stops listening to a call of the layer below ends it.
    fn abandon(&mut self, now: u64, index: u32) {
        if !self.scenario.service.cancellation {
            return;
        }
        let call = &mut self.calls[index as usize];
        let child = std::mem::replace(&mut call.child, NOBODY);
        let attempt = Who {
            call: index,
            stamp: self.stamps[index as usize],
        };
        // A call that has ended may have given its place to somebody else's.
        if child != NOBODY && self.calls[child as usize].parent == attempt {
            self.abandon(now, child);
            self.end(now, child, None);
        }
    }

    /// The answer to the current attempt of a call.
    fn settle(&mut self, now: u64, index: u32, reply: Reply) {
        let status = Cause::Status(self.scenario.service.status);
        let failure = match reply {
            Reply::Success => {
                self.ended(now, index, Ended::Answered);
                let call = &mut self.calls[index as usize];
                let budget = self.budgets.get(call.budget as usize);
                call.session.on_success(budget);
                return self.end(now, index, Some(Reply::Success));
            }
            Reply::Failure => Failure::ambiguous().cause(status),
            Reply::Conflict => Failure::not_processed().cause(status),
            Reply::Pending => Failure::ambiguous(),
            Reply::Exhausted => Failure::ambiguous()
                .cause(status)
                .hint(Hint::do_not_retry()),
            Reply::Throttled(told) => Failure::throttled()
                .cause(Cause::Status(429))
                .hint(told.read(now, self.clock_ahead(index))),
        };
        self.decide(now, index, failure);
    }

    fn wait_format(&self) -> WaitFormat {
        let limiter = self.scenario.service.limiter.as_ref();
        limiter.map_or(WaitFormat::default(), |limiter| limiter.format)
    }

    /// How far the clock of the process that makes the call is ahead, in nanoseconds.
    fn clock_ahead(&self, index: u32) -> i64 {
        let skew = self.scenario.clients.clock_skew as f64;
        let mut clock = Stream::new(self.seed, CLOCKS + u64::from(self.process(index)));
        ((2.0 * clock.unit() - 1.0) * skew) as i64
    }

    /// Lets the session decide what follows a failure.
    fn decide(&mut self, now: u64, index: u32, failure: Failure) {
        let call = &self.calls[index as usize];
        let permit = call.permit.as_ref();
        let started = permit.map_or(Instant::from_nanos(now), Permit::started);
        let ended = self
            .outbounds
            .on_failure(call.budget, now, started, &failure);
        self.ended(now, index, ended);
        let call = &mut self.calls[index as usize];
        let budget = self.budgets.get(call.budget as usize);
        let instant = Instant::from_nanos(now);
        let decision =
            call.session
                .on_failure(self.policy, instant, &failure, &mut call.random, budget);
        let deadline = call.made + self.scenario.clients.deadline;
        match decision {
            Decision::Stop(_) => {
                if call.layer == 0 {
                    self.recorder.on_give_up();
                }
                self.end(now, index, Some(Reply::Failure));
            }
            Decision::Retry { after } => {
                let who = self.restamp(index);
                let at = Instant::from_nanos(now).saturating_add(after).as_nanos();
                if at < deadline {
                    self.queue.push(at, Event::Attempt(who));
                } else {
                    self.queue.push(deadline, Event::Limit(who));
                }
            }
        }
    }

    /// The call ends with this result, or with nobody to hear of it.
    fn end(&mut self, now: u64, index: u32, reply: Option<Reply>) {
        self.ended(now, index, Ended::Unknown);
        self.restamp(index);
        let call = &mut self.calls[index as usize];
        call.child = NOBODY;
        let budget = self.budgets.get(call.budget as usize);
        // Does nothing unless a retry was granted that will not start.
        call.session.on_cancel(budget);
        let (made, parent) = (call.made, call.parent);
        self.free.push(index);
        let Some(reply) = reply else { return };
        let succeeded = matches!(reply, Reply::Success);
        if parent.call != NOBODY {
            let reply = match succeeded {
                false if self.scenario.chain.mark => Reply::Exhausted,
                _ => reply,
            };
            return self.answer(now, parent, reply);
        }
        if succeeded {
            self.recorder
                .on_success(index, self.process(index), made, now);
        }
        if matches!(self.scenario.clients.arrivals, Arrivals::Closed { .. }) {
            self.next_request(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use relent_core::Backoff;

    #[test]
    fn a_policy_that_lets_no_time_pass_is_given_up() {
        let scenario = Scenario::parse(
            "clients.arrivals.herd = { clients = 10 }\nservice.failures = 1\nnetwork.one_way = \"1us\"",
        )
        .unwrap();
        let hot = Policy::builder(Backoff::None).unlimited_retries();
        let hot = hot.build().unwrap();
        let run = |policy| run_within(&scenario, policy, 1, Recorder::new(&scenario), 10_000);
        assert_eq!(run(&hot).err(), Some(TooManyEvents));
        assert!(run(Policy::STANDARD).is_ok());
    }
}
