//! What callers do: they make requests, ask before each attempt, start it, hear how it ended and let
//! the session decide.

use std::time::Duration;

use relent_core::{
    Answer, Asking, Cause, Decision, Ended, Failure, Hint, Holding, Instant, Permit, Session,
};

use super::World;
use crate::call::{Attempt, Call, Event, Reply};
use crate::scenario::{Arrivals, Model};
use crate::slab::Key;
use crate::stream::{CLOCKS, SESSIONS, Stream};

impl World<'_> {
    /// A call is made at this layer; of the uppermost it is a request.
    pub(super) fn make(&mut self, now: u64, layer: u8, parent: Key) {
        let clients = &self.scenario.clients;
        let process = self.population.below(clients.processes);
        let destination = u32::from(layer) * clients.processes + process;
        let index = self.calls.insert(Call {
            session: Session::new(Instant::from_nanos(now), clients.repeatable),
            random: Stream::new(self.seed, SESSIONS + self.made),
            made: now,
            number: self.made,
            done: match self.scenario.service.model {
                Model::Job { median, sigma } => {
                    now.saturating_add(self.jobs.lognormal(median, sigma))
                }
                Model::Queue | Model::Row | Model::Medium { .. } => 0,
            },
            parent,
            attempt: Key::NONE,
            destination,
            layer,
            waits: false,
        });
        let index = index.index;
        self.made += 1;
        self.recorder.on_call_in(layer);
        if layer == 0 {
            self.recorder.on_request(now, process);
            self.recorder.on_call(index);
        } else if let Some(attempt) = self.attempts.get_mut(parent) {
            attempt.child = index;
        }
        if self.destinations.on_request(destination, now) {
            self.ask(now, index);
            self.look_after(now, destination);
        } else {
            self.give_up(now, index);
        }
    }

    /// Starts an attempt as soon as the destination lets it.
    fn ask(&mut self, now: u64, index: u32) {
        let call = &mut self.calls[index];
        let destination = call.destination;
        let deadline = call.made + self.scenario.clients.deadline;
        let last = call.session.last_start(self.policy).as_nanos();
        let last = last.min(deadline.saturating_sub(1));
        let asking = Asking {
            id: u64::from(index),
            since: Instant::from_nanos(call.made),
            last_start: Instant::from_nanos(last),
            answer_by: Instant::from_nanos(deadline),
            longest: self.policy.max_hint(),
            spread: self.policy.hint_spread(),
            fresh: call.session.attempts() == 0,
            paced_only: self.policy.is_off(),
        };
        let waited = std::mem::replace(&mut call.waits, false);
        match self.destinations.ask(destination, now, &asking, waited) {
            Answer::Start(permit) => {
                if waited {
                    self.calls.stamp(index);
                }
                self.start(now, index, permit);
            }
            Answer::Wait(until, holding) => {
                self.calls[index].waits = true;
                // Who is offered a permit is woken; this is for when nothing is offered in time.
                let at = match holding {
                    Holding::Cooldown => until.as_nanos(),
                    Holding::Gate => {
                        let patience = self
                            .policy
                            .gate()
                            .map_or(Duration::MAX, |gate| gate.patience);
                        asking.since.saturating_add(patience).as_nanos()
                    }
                    _ => last.saturating_add(1),
                };
                let key = self.calls.stamp(index);
                self.queue.push(at.min(deadline).max(now), Event::Ask(key));
            }
            Answer::Stop(_) | Answer::TooLate => self.give_up(now, index),
        }
    }

    /// Lets those go to whom something is offered, and sees to it that the next offers are made in time.
    pub(super) fn look_after(&mut self, now: u64, destination: u32) {
        loop {
            let woken = self.destinations.take_woken(destination);
            if woken.is_empty() {
                break;
            }
            for id in woken {
                let index = id as u32;
                if self.calls[index].waits {
                    self.ask(now, index);
                }
            }
        }
        if let Some(at) = self.destinations.plan(destination, now) {
            self.queue.push(at, Event::Release(destination));
        }
    }

    /// The wait of a call is over.
    pub(super) fn on_time(&mut self, now: u64, index: u32) {
        let call = &self.calls[index];
        let destination = call.destination;
        if now >= call.made + self.scenario.clients.deadline {
            self.end(now, index, Some(Reply::Failure));
        } else {
            self.ask(now, index);
        }
        self.look_after(now, destination);
    }

    /// Starts an attempt of the call.
    fn start(&mut self, now: u64, index: u32, permit: Permit) {
        let clients = &self.scenario.clients;
        let attempt = self.attempts.insert(Attempt {
            call: index,
            child: Attempt::NO_CHILD,
            permit: Some(permit),
        });
        let call = &mut self.calls[index];
        call.attempt = attempt;
        call.session.on_attempt();
        let left = (call.made + clients.deadline).saturating_sub(now);
        let most = clients.attempt_timeout.min(left);
        let limit = call
            .session
            .attempt_limit(self.policy, Instant::from_nanos(now))
            .map_or(most, |limit| {
                u64::try_from(limit.as_nanos())
                    .unwrap_or(u64::MAX)
                    .min(most)
            });
        let layer = call.layer;
        self.recorder.on_call_out(layer);
        if layer == 0 {
            self.recorder.on_start(index, now);
        }
        self.queue.push(now + limit, Event::Timeout(attempt));
        self.send(now, attempt, layer);
    }

    /// An attempt has lasted as long as it may.
    pub(super) fn on_timeout(&mut self, now: u64, attempt: Key) {
        let index = self.attempts[attempt.index].call;
        let call = &self.calls[index];
        let destination = call.destination;
        if now >= call.made + self.scenario.clients.deadline {
            self.end(now, index, Some(Reply::Failure));
        } else if let Some(permit) = self.stop(now, index) {
            let failure = Failure::ambiguous().cause(Cause::Timeout);
            self.destinations.failed(destination, now, permit, &failure);
            self.decide(now, index, &failure);
        }
        self.look_after(now, destination);
    }

    /// The answer to a running attempt.
    pub(super) fn on_answer(&mut self, now: u64, attempt: Key, reply: Reply) {
        let index = self.attempts[attempt.index].call;
        let destination = self.calls[index].destination;
        let Some(permit) = self.stop(now, index) else {
            return;
        };
        let failure = match self.failure(now, index, reply) {
            None => {
                let budget = self.destinations.budget(destination);
                self.calls[index].session.on_success(budget);
                self.destinations
                    .ended(destination, now, permit, Ended::Answered);
                self.end(now, index, Some(Reply::Success));
                return self.look_after(now, destination);
            }
            Some(failure) => failure,
        };
        match reply {
            // Not yet is an answer.
            Reply::Pending => self
                .destinations
                .ended(destination, now, permit, Ended::Answered),
            _ => self.destinations.failed(destination, now, permit, &failure),
        }
        self.decide(now, index, &failure);
        self.look_after(now, destination);
    }

    /// How an attempt failed; `None` if it succeeded.
    fn failure(&self, now: u64, index: u32, reply: Reply) -> Option<Failure> {
        let status = Cause::Status(self.scenario.service.status);
        Some(match reply {
            Reply::Success => return None,
            Reply::Failure => Failure::ambiguous().cause(status),
            Reply::Conflict => Failure::not_processed().cause(status),
            Reply::Pending => Failure::ambiguous(),
            Reply::Exhausted => Failure::ambiguous()
                .cause(status)
                .hint(Hint::do_not_retry()),
            Reply::Throttled(header) => Failure::throttled()
                .cause(Cause::Status(429))
                .hint(header.read(now, self.clock_ahead(index))),
        })
    }

    /// How far the clock of the process that makes the call is ahead, in nanoseconds.
    fn clock_ahead(&self, index: u32) -> i64 {
        let skew = self.scenario.clients.clock_skew as f64;
        let mut clock = Stream::new(self.seed, CLOCKS + u64::from(self.process(index)));
        ((2.0 * clock.unit() - 1.0) * skew) as i64
    }

    /// The process that makes the call.
    fn process(&self, index: u32) -> u32 {
        self.calls[index].destination % self.scenario.clients.processes
    }

    /// Lets the session decide what follows a failure.
    fn decide(&mut self, now: u64, index: u32, failure: &Failure) {
        let call = &mut self.calls[index];
        let budget = self.destinations.budget(call.destination);
        let now_there = Instant::from_nanos(now);
        let random = &mut call.random;
        let decision = call
            .session
            .on_failure(self.policy, now_there, failure, random, budget);
        let deadline = call.made + self.scenario.clients.deadline;
        match decision {
            Decision::Stop(_) => self.give_up(now, index),
            Decision::Retry { after } => {
                let at = now_there.saturating_add(after).as_nanos();
                let key = self.calls.stamp(index);
                self.queue.push(at.min(deadline), Event::Ask(key));
            }
        }
    }

    /// The running attempt of the call is no more. With cancellation, the call of the layer below that
    /// it is ends, since nobody listens to it.
    fn stop(&mut self, now: u64, index: u32) -> Option<Permit> {
        let key = std::mem::replace(&mut self.calls[index].attempt, Key::NONE);
        let attempt = self.attempts.get_mut(key)?;
        let (permit, child) = (attempt.permit.take(), attempt.child);
        self.attempts.free(key.index);
        // A call that has ended may have given its place to somebody else's.
        if self.scenario.service.cancellation
            && child != Attempt::NO_CHILD
            && self.calls[child].parent == key
        {
            let destination = self.calls[child].destination;
            self.end(now, child, None);
            self.look_after(now, destination);
        }
        permit
    }

    /// The policy gives the call up.
    fn give_up(&mut self, now: u64, index: u32) {
        if self.calls[index].layer == 0 {
            self.recorder.on_give_up();
        }
        self.end(now, index, Some(Reply::Failure));
    }

    /// The call ends with this result, or with nobody to hear of it.
    fn end(&mut self, now: u64, index: u32, reply: Option<Reply>) {
        let permit = self.stop(now, index);
        let call = &mut self.calls[index];
        let destination = call.destination;
        if let Some(permit) = permit {
            self.destinations
                .ended(destination, now, permit, Ended::Unknown);
        } else if std::mem::replace(&mut call.waits, false) {
            self.destinations.leave(destination, now, u64::from(index));
        }
        // Does nothing unless a retry was granted that will not start.
        call.session
            .on_cancel(self.destinations.budget(destination));
        let (made, parent) = (call.made, call.parent);
        call.parent = Key::NONE;
        self.calls.free(index);
        let Some(reply) = reply else { return };
        let succeeded = matches!(reply, Reply::Success);
        if parent != Key::NONE {
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
