//! One run in virtual time: what happens when, and the models of network and service.
//!
//! What clients do about it is in [`calls`].

mod calls;

use std::hint::black_box;

use relent_core::{Advice, Policy};

use crate::arrivals;
use crate::client::{Attempt, Client, Event, Reply};
use crate::destinations::Destinations;
use crate::network::Network;
use crate::queue::Queue;
use crate::recorder::Recorder;
use crate::scenario::{Arrivals, Model, Scenario, WaitFormat};
use crate::server::{Refused, Server};
use crate::slab::{Key, Slab};
use crate::stream::{ARRIVALS, BACKLOG, DESTINATIONS, JOBS, LUCK, POPULATION, SERVICE, Stream};
use crate::too_many_events::TooManyEvents;
use crate::wait_header::WaitHeader;

/// Runs with this recorder; gives up after so many events.
pub(crate) fn run_within(
    scenario: &Scenario,
    policy: &Policy,
    seed: u64,
    recorder: Recorder,
    most_events: u64,
) -> Result<Recorder, TooManyEvents> {
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
    network: Network,
    server: Server,
    clients: Slab<Client>,
    attempts: Slab<Attempt>,
    destinations: Destinations,
    /// When the job of each client is done.
    done: Vec<u64>,
    recorder: Recorder,
    /// Calls made so far, of all layers.
    made: u32,
    arrivals: Stream,
    population: Stream,
    jobs: Stream,
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, policy: &'a Policy, seed: u64, recorder: Recorder) -> Self {
        let stream = |index| Stream::new(seed, index);
        let destinations = scenario.clients.processes * u32::from(scenario.chain.layers);
        Self {
            scenario,
            policy,
            seed,
            queue: Queue::new(),
            network: Network::new(&scenario.network, seed),
            server: Server::new(&scenario.service, stream(SERVICE), stream(LUCK)),
            clients: Slab::new(),
            attempts: Slab::new(),
            destinations: Destinations::new(policy, destinations, stream(DESTINATIONS)),
            done: Vec::new(),
            recorder,
            made: 0,
            arrivals: stream(ARRIVALS),
            population: stream(POPULATION),
            jobs: stream(JOBS),
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
            attempts,
            clients,
            ..
        } = self;
        // The attempts and clients of all events that come next are looked at together, which takes hardly
        // longer than the way to memory for one.
        let look = |key: &Key| {
            let client = &clients[attempts[key.index].client];
            black_box((
                client.number,
                client.layer,
                client.parent.index,
                client.attempt,
            ));
        };
        queue.pop(|event| match event {
            // Most attempts are answered long before their limit.
            Event::Timeout(key) => {
                let wanted = attempts.has(*key);
                if wanted {
                    look(key);
                }
                wanted
            }
            Event::Reach(key) | Event::Answer(key, _) => {
                look(key);
                true
            }
            Event::Ask(key) | Event::Hedge(key) => clients.has(*key),
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
                self.make(now, 0, Key::NONE);
            }
            Event::Backlog => self.make(now, 0, Key::NONE),
            Event::Outage { index, begins } => {
                let outage = self.scenario.outages.get(index as usize);
                let effect = outage.filter(|_| begins).map(|outage| outage.effect);
                self.server.set_outage(effect);
                self.serve(now);
            }
            Event::Call { parent, layer } => {
                // Who has gone away has said so where that is heard.
                if !self.scenario.service.cancellation || self.attempts.has(parent) {
                    self.make(now, layer, parent);
                }
            }
            Event::Ask(client) if self.clients.has(client) => self.on_time(now, client.index),
            Event::Hedge(client) if self.clients.has(client) => self.on_hedge(now, client.index),
            Event::Reach(attempt) => self.reach(now, attempt),
            Event::Write(attempt, version) => self.write(now, attempt, version),
            Event::Served(attempt) => {
                let succeeded = self.server.end(now);
                if succeeded {
                    self.recorder.on_execution();
                    self.answer(now, attempt, Reply::Success);
                } else {
                    self.answer(now, attempt, Reply::Failure);
                }
                self.serve(now);
            }
            Event::Answer(attempt, reply) if self.attempts.has(attempt) => {
                self.on_answer(now, attempt, reply);
            }
            Event::Timeout(attempt) if self.attempts.has(attempt) => self.on_timeout(now, attempt),
            Event::Ask(_) | Event::Hedge(_) | Event::Answer(..) | Event::Timeout(_) => {}
        }
    }

    /// Sends an attempt to the layer below, or to the service.
    fn send(&mut self, now: u64, attempt: Key, layer: u8) {
        if self.loses() {
            return;
        }
        let layer = layer + 1;
        let event = if layer < self.scenario.chain.layers {
            let parent = attempt;
            Event::Call { parent, layer }
        } else {
            Event::Reach(attempt)
        };
        self.after_a_way(now, event);
    }

    /// Sends an answer back.
    fn answer(&mut self, now: u64, attempt: Key, reply: Reply) {
        if !self.loses() {
            self.after_a_way(now, Event::Answer(attempt, reply));
        }
    }

    fn after_a_way(&mut self, now: u64, event: Event) {
        let way = self.network.way();
        self.queue.push(now.saturating_add(way), event);
    }

    fn loses(&mut self) -> bool {
        let lost = self.network.loses();
        if lost {
            self.recorder.on_drop();
        }
        lost
    }

    /// An attempt reaches the service.
    fn reach(&mut self, now: u64, attempt: Key) {
        if self.scenario.service.model == Model::Row {
            // It reads; that it attempts to write is seen when it does. What it reads comes back to
            // it, and what it writes goes there again.
            if !self.loses() && !self.loses() {
                let way = self.network.way() + self.network.way();
                let write = Event::Write(attempt, self.server.version);
                self.queue.push(now.saturating_add(way), write);
            }
            return;
        }
        self.recorder.on_attempt(now);
        // Of a caller who has gone away nothing is known any more.
        let caller = self.attempts.get(attempt);
        let client = caller.map(|attempt| &self.clients[attempt.client]);
        let number = match (caller.and_then(|attempt| attempt.racer), client) {
            (Some(racer), _) => racer.attempt().number,
            (None, Some(client)) => client.call.attempts(),
            (None, None) => 1,
        };
        let key = client.map(|client| u64::from(client.number));
        let done = caller.and_then(|attempt| self.done.get(attempt.client as usize));
        let done = done.is_some_and(|done| now >= *done);
        if let Err(refused) = self.server.judge(now, number, key) {
            let reply = match refused {
                Refused::Throttled(hinted) => {
                    Reply::Throttled(WaitHeader::write(self.wait_format(), now, hinted))
                }
                Refused::Shed(Advice::DoNotRetry) => Reply::Exhausted,
                Refused::Shed(Advice::None | Advice::DoRetry) | Refused::Down => Reply::Failure,
            };
            return self.answer(now, attempt, reply);
        }
        if let Model::Job { .. } = self.scenario.service.model {
            let reply = if done { Reply::Success } else { Reply::Pending };
            return self.answer(now, attempt, reply);
        }
        if self.server.enter(attempt) {
            self.serve(now);
        } else {
            self.answer(now, attempt, Reply::Failure);
        }
    }

    fn wait_format(&self) -> WaitFormat {
        let limiter = self.scenario.service.limiter.as_ref();
        limiter.map_or(WaitFormat::default(), |limiter| limiter.format)
    }

    fn write(&mut self, now: u64, attempt: Key, version: u64) {
        self.recorder.on_attempt(now);
        if self.server.is_blacked_out() {
            return self.answer(now, attempt, Reply::Failure);
        }
        if version == self.server.version {
            self.server.version += 1;
            self.recorder.on_execution();
            self.answer(now, attempt, Reply::Success);
        } else {
            self.answer(now, attempt, Reply::Conflict);
        }
    }

    /// Lets free workers begin.
    fn serve(&mut self, now: u64) {
        let Self {
            attempts, server, ..
        } = self;
        let cancellation = self.scenario.service.cancellation;
        let is_wanted = |attempt: Key| !cancellation || attempts.has(attempt);
        while let Some((attempt, time)) = server.begin(is_wanted) {
            self.queue
                .push(now.saturating_add(time), Event::Served(attempt));
        }
    }
}
