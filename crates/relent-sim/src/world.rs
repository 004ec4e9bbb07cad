//! One run in virtual time: its events, and the models of network and service.
//!
//! The reactions of the clients are in [`calls`].

mod calls;
mod restarts;

use std::hint::black_box;

use relent_core::{Advice, Policy};

use crate::arrivals;
use crate::client::{Attempt, Client, Event, Reply, Write};
use crate::cluster::{Cluster, Target};
use crate::destinations::Destinations;
use crate::network::Network;
use crate::population::Population;
use crate::queue::{FORESEEN_TOGETHER, Fifo, Queue};
use crate::random_stream::{ARRIVALS, BACKLOG, CLASSES, DESTINATIONS, JOBS, POPULATION, Stream};
use crate::recorder::Recorder;
use crate::retry_after::WaitHeader;
use crate::scenario::{Arrivals, DestinationOf, Effect, Hears, Model, Scenario, Span, WaitFormat};
use crate::server::RejectedBy;
use crate::slab::{Key, Slab};
use crate::too_many_events::TooManyEvents;

/// Runs with this recorder; gives up after `max_events` events.
pub(crate) fn run_within(
    scenario: &Scenario,
    policy: &Policy,
    seed: u64,
    recorder: Recorder,
    max_events: u64,
) -> Result<Recorder, TooManyEvents> {
    let mut world = World::new(scenario, policy, seed, recorder);
    world.open();
    let mut events = 0;
    while let Some((now, event)) = world.next() {
        events += 1;
        if events > max_events {
            return Err(TooManyEvents);
        }
        world.handle(now, event);
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
    cluster: Cluster,
    spans: Vec<Span>,
    clients: Slab<Client>,
    attempts: Slab<Attempt>,
    /// The last Retry-After sent to each attempt that a limiter has rejected.
    headers: Vec<WaitHeader>,
    /// The writes in transit.
    writes: Slab<Write>,
    destinations: Destinations,
    /// When the job of each client is completed.
    done: Vec<u64>,
    recorder: Recorder,
    /// Calls made so far, of all layers.
    made: u32,
    arrivals: Stream,
    population: Population,
    jobs: Stream,
    classes: Stream,
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, policy: &'a Policy, seed: u64, recorder: Recorder) -> Self {
        let stream = |index| Stream::new(seed, index);
        let destinations = scenario.clients.processes
            * u32::from(scenario.chain.layers)
            * u32::from(destinations_per_layer(scenario));
        let destinations = Destinations::new(policy, destinations, stream(DESTINATIONS));
        Self {
            scenario,
            policy,
            seed,
            queue: Queue::new().foreseeing(destinations.are_many()),
            network: Network::new(&scenario.network, seed),
            cluster: Cluster::new(scenario, seed),
            spans: scenario.spans().collect(),
            clients: Slab::new(),
            attempts: Slab::new(),
            headers: Vec::new(),
            writes: Slab::new(),
            destinations,
            done: Vec::new(),
            recorder,
            made: 0,
            arrivals: stream(ARRIVALS),
            population: Population::new(scenario.clients.processes, stream(POPULATION)),
            jobs: stream(JOBS),
            classes: stream(CLASSES),
        }
    }

    /// Puts the first events into the queue.
    fn open(&mut self) {
        for (index, span) in (0..).zip(&self.spans) {
            let begins = |begins| Event::Outage { index, begins };
            self.queue.push(span.at, begins(true));
            self.queue.push(span.end, begins(false));
        }
        for restart in &self.scenario.clients.restarts {
            for (at, part) in restart.parts(self.scenario.clients.processes) {
                self.queue.push(at, Event::Restart(part));
            }
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

    /// Puts the request that follows the one at `now` into the queue, if there is one.
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
            destinations,
            ..
        } = self;
        // The attempts and clients of all next events are read together, which takes hardly longer than one memory
        // access.
        let prefetch_attempt = |key: &Key| {
            let client = &clients[attempts[key.index].client];
            black_box((
                client.number,
                client.layer,
                client.parent.index,
                client.attempt,
            ));
        };
        // Likewise for calls whose wait ends, and then for their destinations.
        let foresee = |events: &mut dyn Iterator<Item = &Event>| {
            let mut destinations_per_layer = [None; FORESEEN_TOGETHER];
            for (place, event) in destinations_per_layer.iter_mut().zip(events) {
                if let Event::Admit(key) | Event::Hedge(key) = event
                    && let Some(client) = clients.get(*key)
                {
                    let session = client.call.session();
                    black_box((client.parent.index, session.started(), session.attempts()));
                    *place = Some(client.destination);
                }
            }
            for place in destinations_per_layer.into_iter().flatten() {
                destinations.prefetch(place);
            }
        };
        let is_wanted = |event: &Event| match event {
            // Most attempts get a response long before their timeout.
            Event::Timeout(key) => {
                let wanted = attempts.has(*key);
                if wanted {
                    prefetch_attempt(key);
                }
                wanted
            }
            Event::Reach(key, _) | Event::Answer(key, _) => {
                prefetch_attempt(key);
                true
            }
            Event::Admit(key) | Event::Hedge(key) => clients.has(*key),
            _ => true,
        };
        queue.pop(is_wanted, foresee)
    }

    fn handle(&mut self, now: u64, event: Event) {
        match event {
            Event::Request => {
                // A closed-loop client makes its next request after the response.
                if !matches!(self.scenario.clients.arrivals, Arrivals::Closed { .. }) {
                    self.next_request(now);
                }
                self.make(now);
            }
            Event::Backlog => self.make(now),
            Event::Outage { index, begins } => self.on_outage(now, index, begins),
            Event::Restart(processes) => self.restart(now, processes),
            Event::Call {
                parent,
                layer,
                class,
            } => {
                // If cancellation propagates, a caller that has gone has cancelled the call.
                if !self.propagates_cancellation() || self.attempts.has(parent) {
                    self.make_of(now, layer, parent, class);
                }
            }
            Event::Admit(client) if self.clients.has(client) => self.on_time(now, client.index),
            Event::Hedge(client) if self.clients.has(client) => self.on_hedge(now, client.index),
            Event::Reach(attempt, target) => self.reach(now, attempt, target),
            Event::Write(number) => self.write(now, number),
            Event::Served(attempt, target) => self.on_served(now, attempt, target),
            Event::Answer(attempt, reply) if self.attempts.has(attempt) => {
                self.on_answer(now, attempt, reply);
            }
            Event::Timeout(attempt) if self.attempts.has(attempt) => self.on_timeout(now, attempt),
            Event::Admit(_) | Event::Hedge(_) | Event::Answer(..) | Event::Timeout(_) => {}
        }
    }

    /// An outage begins or ends.
    fn on_outage(&mut self, now: u64, index: u32, begins: bool) {
        let span = self.spans[index as usize];
        let effect = self.scenario.outages[span.outage].effect;
        if begins && effect == Effect::Restart {
            for attempt in self.cluster.take_queues(span) {
                self.answer(now, attempt, Reply::Failure);
            }
        }
        self.cluster.set_outage(span, begins);
        for node in 0..self.cluster.nodes() {
            self.serve(now, node);
        }
    }

    /// The service of an attempt ends.
    fn on_served(&mut self, now: u64, attempt: Key, target: Target) {
        let server = self.cluster.node(target.node);
        let reply = match server.end(now, target.class) {
            true => Reply::Success,
            false => Reply::Failure,
        };
        if matches!(reply, Reply::Success) {
            self.recorder.on_execution();
        }
        self.answer_from(now, attempt, target, reply);
        self.serve(now, target.node);
    }

    /// Sends an attempt of the client to the layer below, or to the service.
    fn send(&mut self, now: u64, attempt: Key, index: u32) {
        if self.loses() {
            return;
        }
        let Client { layer, class, .. } = self.clients[index];
        let layer = layer + 1;
        let event = if layer < self.scenario.chain.layers {
            Event::Call {
                parent: attempt,
                layer,
                class,
            }
        } else {
            let node = self.node_of(index);
            Event::Reach(attempt, Target { node, class })
        };
        self.after_a_way(now, event);
    }

    /// The node for an attempt of the client, as far as it is known when the attempt is sent.
    fn node_of(&mut self, index: u32) -> u16 {
        match self.scenario.clients.destination {
            // The remainder is below the number of nodes.
            DestinationOf::Node => {
                (self.clients[index].destination % u32::from(self.cluster.nodes())) as u16
            }
            DestinationOf::Service if self.cluster.is_sticky() => {
                let process = self.process(index);
                self.cluster.node_of(process)
            }
            DestinationOf::Service => Target::ANY,
        }
    }

    /// Whether a layer cancels its calls below once its caller has gone.
    fn propagates_cancellation(&self) -> bool {
        self.scenario.service.cancellation || self.scenario.chain.hears != Hears::Nothing
    }

    /// Sends an answer back from a node.
    fn answer_from(&mut self, now: u64, attempt: Key, target: Target, reply: Reply) {
        if self.cluster.node(target.node).loses(target.class) {
            self.recorder.on_drop();
        } else {
            self.answer(now, attempt, reply);
        }
    }

    /// Sends an answer back.
    fn answer(&mut self, now: u64, attempt: Key, reply: Reply) {
        if !self.loses() {
            self.after_a_way(now, Event::Answer(attempt, reply));
        }
    }

    fn after_a_way(&mut self, now: u64, event: Event) {
        let way = self.network.way();
        self.queue
            .push_fifo(Fifo::InTransit, now.saturating_add(way), event);
    }

    fn loses(&mut self) -> bool {
        let lost = self.network.loses();
        if lost {
            self.recorder.on_drop();
        }
        lost
    }

    /// An attempt reaches the service.
    fn reach(&mut self, now: u64, attempt: Key, target: Target) {
        let class = target.class;
        let node = match target.node {
            Target::ANY => self.cluster.choose(),
            node => node,
        };
        let target = Target { node, class };
        if self.scenario.service.model == Model::Row {
            // It reads; its write counts as an attempt when it arrives. The read value travels back, and the write
            // travels to the service.
            if !self.loses() && !self.loses() {
                let way = self.network.way() + self.network.way();
                let version = self.cluster.node(node).version;
                let write = self.writes.insert(Write { attempt, version });
                let write = Event::Write(write.index);
                self.queue.push(now.saturating_add(way), write);
            }
            return;
        }
        if self.cluster.node(node).loses(class) {
            self.recorder.on_drop();
            return;
        }
        self.recorder.on_attempt(now);
        // Nothing is known any more about a caller that has gone.
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
        let server = self.cluster.node(node);
        if let Err(refused) = server.judge(now, number, key, class) {
            let reply = match refused {
                RejectedBy::Throttled(hinted) => {
                    let header = WaitHeader::write(self.wait_format(), now, hinted);
                    self.store_wait_header(attempt, header);
                    Reply::Throttled
                }
                RejectedBy::Shed(Advice::DoNotRetry) => Reply::Exhausted,
                RejectedBy::Shed(Advice::None | Advice::DoRetry) => Reply::Failure,
                RejectedBy::Down => self.refusal(),
            };
            return self.answer_from(now, attempt, target, reply);
        }
        if let Model::Job { .. } = self.scenario.service.model {
            let reply = if done { Reply::Success } else { Reply::Pending };
            return self.answer(now, attempt, reply);
        }
        if server.enter(attempt, class) {
            self.serve(now, node);
        } else {
            self.answer_from(now, attempt, target, self.refusal());
        }
    }

    /// The response of a service that is down, or whose queue is full.
    fn refusal(&self) -> Reply {
        match self.scenario.service.retry_after {
            None => Reply::Failure,
            Some(_) => Reply::Refused,
        }
    }

    /// Stores the Retry-After in the response to an attempt. If the attempt has ended, nothing is stored: another may
    /// have its number.
    fn store_wait_header(&mut self, attempt: Key, header: WaitHeader) {
        if self.attempts.has(attempt) {
            let index = attempt.index as usize;
            let told = self.headers.len().max(index + 1);
            self.headers.resize(told, WaitHeader::default());
            self.headers[index] = header;
        }
    }

    fn wait_format(&self) -> WaitFormat {
        let limiter = self.scenario.service.limiter.as_ref();
        limiter.map_or(WaitFormat::default(), |limiter| limiter.format)
    }

    fn write(&mut self, now: u64, number: u32) {
        let Write { attempt, version } = self.writes[number];
        self.writes.free(number);
        self.recorder.on_attempt(now);
        let server = self.cluster.node(0);
        if server.is_blacked_out(0) {
            let reply = self.refusal();
            return self.answer(now, attempt, reply);
        }
        if version == server.version {
            server.version += 1;
            self.recorder.on_execution();
            self.answer(now, attempt, Reply::Success);
        } else {
            self.answer(now, attempt, Reply::Conflict);
        }
    }

    /// Starts services on the free workers of the node.
    fn serve(&mut self, now: u64, node: u16) {
        let Self {
            attempts, cluster, ..
        } = self;
        let server = cluster.node(node);
        let cancellation = self.scenario.service.cancellation;
        let is_wanted = |attempt: Key| !cancellation || attempts.has(attempt);
        while server.is_ready()
            && let Some((attempt, class, time)) = server.begin(is_wanted)
        {
            let target = Target { node, class };
            self.queue
                .push(now.saturating_add(time), Event::Served(attempt, target));
        }
    }
}

/// The number of destinations that each process has in each layer.
const fn destinations_per_layer(scenario: &Scenario) -> u16 {
    match scenario.clients.destination {
        DestinationOf::Service => 1,
        DestinationOf::Node => scenario.service.nodes,
    }
}
