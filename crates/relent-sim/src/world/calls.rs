//! The transport of the simulated callers: makes requests, waits, starts attempts and reports how they ended.
//! [`relent_core::call::Call`] decides.

use std::sync::Arc;
use std::time::Duration;

use relent_core::call::{Call, Environment, NextStep, RaceAttempt, RaceOutcome};
use relent_core::destination::{Budget, Destination, Hedge};
use relent_core::{Cause, Decision, Failure, Hint, HintSource, Instant, Policy, Repeatable};

use super::{World, destinations_per_layer};
use crate::call_times::Ended;
use crate::class;
use crate::client::{Attempt, Client, Event, NO_CLIENT_OR_ATTEMPT, Reply};
use crate::destinations::OneThread;
use crate::queue::Fifo;
use crate::random_stream::{CLOCKS, SESSIONS, Stream};
use crate::scenario::{Arrivals, DestinationOf, Hears, Model};
use crate::slab::Key;

/// The environment of a call for one step.
struct Step<'a> {
    policy: &'a Policy,
    destination: &'a Destination<OneThread>,
    random: &'a mut Stream,
    now: Instant,
    /// The time at which the caller goes away.
    deadline: Instant,
}

impl Environment for Step<'_> {
    type Access = OneThread;
    type Random = Stream;

    fn policy(&self) -> &Policy {
        self.policy
    }

    fn destination(&self) -> Option<&Destination<OneThread>> {
        Some(self.destination)
    }

    fn parts(&mut self) -> (&Policy, Option<&Budget>, &mut Stream) {
        (self.policy, self.destination.budget(), self.random)
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn answer_by(&self) -> Instant {
        self.deadline
    }
}

impl Step<'_> {
    /// The hedging state, if attempts are hedged.
    fn hedge(&self) -> Option<Arc<Hedge>> {
        self.destination.hedge(self.policy.hedge()?)
    }
}

impl World<'_> {
    /// A client makes a request.
    pub(super) fn make(&mut self, now: u64) {
        let class = class::drawn(&self.scenario.clients, &mut self.classes);
        self.make_of(now, 0, Key::NONE, class);
    }

    /// A client makes a call at this layer; at the top layer it is a request.
    pub(super) fn make_of(&mut self, now: u64, layer: u8, parent: Key, class: u8) {
        let clients = &self.scenario.clients;
        let process = self.population.next(|processes| {
            if self.destinations.are_many() {
                for process in processes {
                    let first = process * u32::from(destinations_per_layer(self.scenario));
                    self.destinations.prefetch(first);
                    self.recorder.prefetch(*process);
                }
            }
        });
        let mut destination = u32::from(layer) * clients.processes + process;
        if clients.destination == DestinationOf::Node {
            let node = match layer + 1 == self.scenario.chain.layers {
                true => self.cluster.node_of(process),
                false => 0,
            };
            destination = destination * u32::from(self.cluster.nodes()) + u32::from(node);
        }
        let mut random = Stream::new(self.seed, SESSIONS + u64::from(self.made));
        let started = Instant::from_nanos(now);
        let deadline = (now + class::deadline(clients, class)).min(self.deadline_above(parent));
        let step = Step {
            policy: self.policy,
            destination: self.destinations.get(destination),
            random: &mut random,
            now: started,
            deadline: Instant::from_nanos(deadline),
        };
        let mut call = Call::begun(started, &step);
        call.set_repeatable(Repeatable::known(clients.repeatable));
        let client = self.clients.insert(Client {
            call,
            random,
            number: self.made,
            parent,
            attempt: NO_CLIENT_OR_ATTEMPT,
            destination,
            layer,
            class,
        });
        let index = client.index;
        self.made = self.made.wrapping_add(1);
        if let Model::Job { median, sigma } = self.scenario.service.model {
            let done = now.saturating_add(self.jobs.lognormal(median, sigma));
            let jobs = self.done.len().max(index as usize + 1);
            self.done.resize(jobs, 0);
            self.done[index as usize] = done;
        }
        self.recorder.on_call_in(layer);
        if layer == 0 {
            self.recorder.on_request(now, process);
            self.recorder.on_class(class, false);
            self.recorder.on_call(index);
        } else if let Some(attempt) = self.attempts.get_mut(parent) {
            attempt.child = index;
        }
        self.ask(now, index);
        self.wake(now, destination);
    }

    /// Lets the call of this client take a step.
    fn step<T>(
        &mut self,
        now: u64,
        index: u32,
        step: impl FnOnce(&mut Call<'static>, &mut Step<'_>) -> T,
    ) -> T {
        let deadline = self.deadline(index);
        let Client {
            call,
            random,
            destination,
            ..
        } = &mut self.clients[index];
        let mut environment = Step {
            policy: self.policy,
            destination: self.destinations.get(*destination),
            random,
            now: Instant::from_nanos(now),
            deadline: Instant::from_nanos(deadline),
        };
        step(call, &mut environment)
    }

    /// The time at which the client goes away.
    #[inline]
    fn deadline(&self, index: u32) -> u64 {
        let client = &self.clients[index];
        let started = client.call.session().started();
        let own = started.as_nanos() + class::deadline(&self.scenario.clients, client.class);
        own.min(self.deadline_above(client.parent))
    }

    /// Whether the caller goes away without an outcome. A policy that has the same deadline ends the call itself, as
    /// in production.
    #[inline]
    fn goes_away(&self, now: u64, index: u32) -> bool {
        now >= self.deadline(index) && {
            let session = self.clients[index].call.session();
            session.remaining(self.policy, Instant::from_nanos(now)) != Some(Duration::ZERO)
        }
    }

    /// The time at which the client that made this attempt goes away, if the deadline propagates to the layer below.
    #[inline]
    fn deadline_above(&self, parent: Key) -> u64 {
        match self.scenario.chain.hears {
            Hears::Deadline => self.propagated_deadline(parent),
            Hears::Nothing | Hears::Cancellation => u64::MAX,
        }
    }

    #[inline(never)]
    fn propagated_deadline(&self, parent: Key) -> u64 {
        let above = self.attempts.get(parent);
        above.map_or(u64::MAX, |attempt| self.deadline(attempt.client))
    }

    /// Starts an attempt as soon as the call gets permission.
    fn ask(&mut self, now: u64, index: u32) {
        let waited = self.clients[index].call.blocked_by().is_some();
        let next = self.step(now, index, |call, step| {
            let permit = match call.next(step, Some(&index)) {
                NextStep::Start(permit) => permit,
                next => return Err(next),
            };
            let Some(hedge) = step.hedge() else {
                return Ok((call.begin(step, permit).1, None));
            };
            // Hedges may join it.
            let racer = call.begin_race(step, &hedge, permit);
            Ok((racer.ends(), Some(racer)))
        });
        match next {
            Ok((ends, racer)) => {
                if waited {
                    // The old event for the end of the wait is void.
                    self.clients.stamp(index);
                }
                self.note_attempt(now, index);
                self.run(now, index, ends, racer);
                if racer.is_some() {
                    self.plan_hedge(now, index);
                }
            }
            Err(NextStep::Wait { until, .. }) => {
                let at = until.as_nanos().min(self.deadline(index)).max(now);
                let key = self.clients.stamp(index);
                self.queue.push(at, Event::Admit(key));
            }
            Err(_) => self.give_up(now, index),
        }
    }

    /// Records the start of an attempt, with the time for which the call was held.
    #[inline]
    fn note_attempt(&mut self, now: u64, index: u32) {
        let client = &self.clients[index];
        if client.layer == 0 {
            let made = client.call.session().started().as_nanos();
            let first = client.call.attempts() == 1;
            let place = self.place(index);
            self.recorder
                .calls
                .on_attempt(index, place, made, first, now);
        }
    }

    /// The index of the client's destination within its process.
    #[inline]
    fn place(&self, index: u32) -> u32 {
        self.clients[index].destination % u32::from(destinations_per_layer(self.scenario))
    }

    /// Lets woken calls request admission.
    #[inline]
    pub(super) fn wake(&mut self, now: u64, destination: u32) {
        while let Some(woken) = self.destinations.take_woken(destination) {
            self.admit_woken(now, woken);
        }
    }

    fn admit_woken(&mut self, now: u64, woken: Vec<u32>) {
        for index in woken {
            // It may have requested admission by itself meanwhile.
            if self.clients[index].call.blocked_by().is_some() {
                self.ask(now, index);
            }
        }
    }

    /// The wait of a call is over.
    pub(super) fn on_time(&mut self, now: u64, index: u32) {
        let destination = self.clients[index].destination;
        match self.goes_away(now, index) {
            true => self.end(now, index, Some(Reply::Failure)),
            false => self.ask(now, index),
        }
        self.wake(now, destination);
    }

    /// Schedules the next hedge.
    fn plan_hedge(&mut self, now: u64, index: u32) {
        if let Some(due) = self.clients[index].call.hedge_due() {
            let key = self.clients.stamp(index);
            self.queue.push(due.as_nanos().max(now), Event::Hedge(key));
        }
    }

    /// A hedge is due.
    pub(super) fn on_hedge(&mut self, now: u64, index: u32) {
        let racer = self.step(now, index, |call, step| {
            // Unless the server has pushed back since.
            let due = call.hedge_due().is_some();
            (due && call.grant_hedge(step)).then(|| call.begin_hedge(step))
        });
        if let Some(racer) = racer {
            self.run(now, index, racer.ends(), Some(racer));
            self.plan_hedge(now, index);
        }
        self.wake(now, self.clients[index].destination);
    }

    /// Starts an attempt, with the event that cuts it off at its timeout.
    fn run(&mut self, now: u64, index: u32, ends: Option<Instant>, racer: Option<RaceAttempt>) {
        let deadline = self.deadline(index);
        let client = &mut self.clients[index];
        let attempt = self.attempts.insert(Attempt {
            client: index,
            next: client.attempt,
            child: NO_CLIENT_OR_ATTEMPT,
            racer,
        });
        client.attempt = attempt.index;
        let (layer, class) = (client.layer, client.class);
        self.recorder.on_call_out(layer);
        if layer == 0 {
            self.recorder.on_start(index, now);
        }
        let timeout = class::attempt_timeout(&self.scenario.clients, class);
        let timeout = now.saturating_add(timeout);
        let ends = ends.map_or(u64::MAX, Instant::as_nanos);
        let ends = timeout.min(deadline).min(ends);
        self.queue
            .push_fifo(Fifo::Timeouts, ends, Event::Timeout(attempt));
        self.send(now, attempt, index);
    }

    /// An attempt reaches its timeout.
    pub(super) fn on_timeout(&mut self, now: u64, attempt: Key) {
        let index = self.attempts[attempt.index].client;
        let destination = self.clients[index].destination;
        if self.goes_away(now, index) {
            self.end(now, index, Some(Reply::Failure));
        } else {
            let failure = Failure::ambiguous().cause(Cause::Timeout);
            self.failed(now, index, attempt, &failure);
        }
        self.wake(now, destination);
    }

    /// The response to a running attempt.
    pub(super) fn on_answer(&mut self, now: u64, attempt: Key, reply: Reply) {
        let index = self.attempts[attempt.index].client;
        let destination = self.clients[index].destination;
        match self.failure(now, attempt, reply) {
            None => self.succeeded(now, index, attempt),
            Some(failure) => self.failed(now, index, attempt, &failure),
        }
        self.wake(now, destination);
    }

    /// How an attempt failed; `None` if it succeeded.
    fn failure(&self, now: u64, attempt: Key, reply: Reply) -> Option<Failure> {
        let service = &self.scenario.service;
        Some(match reply {
            Reply::Success => return None,
            Reply::Failure => service.failure(),
            Reply::Refused => {
                let after = service.retry_after.unwrap_or_default();
                let hint = Hint::after(Duration::from_nanos(after));
                let hint = hint.from_source(HintSource::header("retry-after"));
                service.failure_with_retry_after().hint(hint)
            }
            Reply::Conflict => Failure::conflict(),
            Reply::Pending => Failure::pending(),
            Reply::Exhausted => Failure::ambiguous()
                .cause(Cause::Status(service.status))
                .hint(Hint::do_not_retry()),
            Reply::Throttled => {
                let ahead = self.clock_ahead(self.attempts[attempt.index].client);
                let hint = self.headers[attempt.index as usize].read(now, ahead);
                Failure::throttled().cause(Cause::Status(429)).hint(hint)
            }
        })
    }

    /// How far the clock of the client's process is ahead, in nanoseconds.
    fn clock_ahead(&self, index: u32) -> i64 {
        let skew = self.scenario.clients.clock_skew as f64;
        let mut clock = Stream::new(self.seed, CLOCKS + u64::from(self.process(index)));
        ((2.0 * clock.unit() - 1.0) * skew) as i64
    }

    /// The process of the client.
    pub(super) fn process(&self, index: u32) -> u32 {
        let number =
            self.clients[index].destination / u32::from(destinations_per_layer(self.scenario));
        number % self.scenario.clients.processes
    }

    fn succeeded(&mut self, now: u64, index: u32, attempt: Key) {
        if self.clients[index].layer == 0 {
            let place = self.place(index);
            self.recorder.calls.on_answer(place, now);
        }
        let racer = self.remove(now, attempt);
        self.step(now, index, |call, step| {
            if let Some(racer) = racer
                && let Some(hedge) = step.hedge()
            {
                call.race_won(step, &hedge, &racer, None);
            } else {
                call.succeeded(step);
            }
        });
        self.end(now, index, Some(Reply::Success));
    }

    fn failed(&mut self, now: u64, index: u32, attempt: Key, failure: &Failure) {
        let racer = self.remove(now, attempt);
        let raced = racer.and_then(|racer| {
            self.step(now, index, |call, step| {
                Some(call.race_failed(step, &*step.hedge()?, &racer, failure))
            })
        });
        let failure = match raced {
            None => *failure,
            Some(RaceOutcome::GoesOn { .. }) => return self.plan_hedge(now, index),
            Some(RaceOutcome::Over { failure, .. }) => failure,
        };
        self.drop_attempts(now, index);
        match self.step(now, index, |call, step| call.failed(step, &failure)) {
            Decision::Stop(_) => self.give_up(now, index),
            Decision::Retry { after } => {
                let at = Instant::from_nanos(now).saturating_add(after).as_nanos();
                let at = at.min(self.deadline(index));
                if self.clients[index].layer == 0 {
                    self.recorder.calls.on_backoff(index, now, at);
                }
                let key = self.clients.stamp(index);
                self.queue.push(at, Event::Admit(key));
            }
        }
    }

    /// Removes the attempt. With cancellation, this also ends the call of the layer below that was made for it.
    fn remove(&mut self, now: u64, key: Key) -> Option<RaceAttempt> {
        let Attempt {
            client,
            next,
            child,
            racer,
        } = self.attempts[key.index];
        let first = &mut self.clients[client].attempt;
        if *first == key.index {
            *first = next;
        } else {
            let mut before = *first;
            while self.attempts[before].next != key.index {
                before = self.attempts[before].next;
            }
            self.attempts[before].next = next;
        }
        self.attempts.free(key.index);
        // A call that has ended may have given its number to another.
        if self.propagates_cancellation()
            && child != NO_CLIENT_OR_ATTEMPT
            && self.clients[child].parent == key
        {
            let destination = self.clients[child].destination;
            self.end(now, child, None);
            self.wake(now, destination);
        }
        racer
    }

    /// Removes the attempts of the client that still run.
    fn drop_attempts(&mut self, now: u64, index: u32) {
        while self.clients[index].attempt != NO_CLIENT_OR_ATTEMPT {
            let attempt = self.attempts.key(self.clients[index].attempt);
            self.remove(now, attempt);
        }
    }

    /// The policy gives up the call.
    fn give_up(&mut self, now: u64, index: u32) {
        if self.clients[index].layer == 0 {
            self.recorder.on_give_up();
        }
        self.end(now, index, Some(Reply::Failure));
    }

    /// Ends the call with this result; `None` if no caller waits for it.
    pub(super) fn end(&mut self, now: u64, index: u32, reply: Option<Reply>) {
        self.drop_attempts(now, index);
        if self.clients[index].call.holds() {
            self.step(now, index, |call, step| call.leave(step));
        }
        let process = self.process(index);
        let place = self.place(index);
        let client = &mut self.clients[index];
        let parent = std::mem::replace(&mut client.parent, Key::NONE);
        let made = client.call.session().started().as_nanos();
        let class = client.class;
        self.clients.free(index);
        let Some(reply) = reply else { return };
        let succeeded = matches!(reply, Reply::Success);
        if parent != Key::NONE {
            let reply = match succeeded {
                false if self.scenario.chain.mark => Reply::Exhausted,
                _ => reply,
            };
            return self.answer(now, parent, reply);
        }
        let ended = Ended {
            call: index,
            place,
            made,
            succeeded,
        };
        self.recorder.calls.on_end(ended, now);
        if succeeded {
            self.recorder.on_success(index, process, made, now);
            self.recorder.on_class(class, true);
        }
        if matches!(self.scenario.clients.arrivals, Arrivals::Closed { .. }) {
            self.next_request(now);
        }
    }
}
