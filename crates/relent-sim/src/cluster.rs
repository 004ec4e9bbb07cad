//! The model of a service with several nodes behind a load balancer, and of its outages.

use crate::random_stream::{BALANCER, FAST_FAILURES, LUCK, NODES, SERVICE, Stream, WAYS_LOST};
use crate::scenario::{Balancer, Outage, Scenario, Span};
use crate::server::Server;
use crate::slab::Key;

/// The node and the class of an attempt: in three bytes, so that an event has 12.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(Rust, packed)]
pub(crate) struct Target {
    pub(crate) node: u16,
    pub(crate) class: u8,
}

impl Target {
    /// Instead of a node: the balancer chooses one when the attempt arrives.
    pub(crate) const ANY: u16 = u16::MAX;
}

/// The nodes of a service.
#[derive(Debug)]
pub(crate) struct Cluster {
    nodes: Vec<Server>,
    balancer: Balancer,
    /// The next node in round-robin order.
    turn: u16,
    choices: Stream,
    /// The node of each process if nodes are sticky: [`Target::ANY`] before it has one.
    kept: Vec<u16>,
    outages: Vec<Outage>,
    classes: Vec<String>,
    /// The outages in progress.
    active: Vec<Span>,
}

impl Cluster {
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Self {
        let service = &scenario.service;
        let node = |node: u16| {
            // Node 0 has the streams of a single-node service.
            let stream = |purpose: u64| match node {
                0 => Stream::new(seed, purpose),
                _ => Stream::new(seed, NODES + (u64::from(node) << 8) + purpose),
            };
            Server::new(
                scenario,
                [SERVICE, LUCK, WAYS_LOST, FAST_FAILURES].map(stream),
            )
        };
        let classes = scenario.clients.classes.iter();
        let keepers = match service.sticky {
            true => scenario.clients.processes as usize,
            false => 0,
        };
        Self {
            nodes: (0..service.nodes).map(node).collect(),
            balancer: service.balancer,
            turn: 0,
            choices: Stream::new(seed, BALANCER),
            kept: vec![Target::ANY; keepers],
            outages: scenario.outages.clone(),
            classes: classes.map(|class| class.name.clone()).collect(),
            active: Vec::new(),
        }
    }

    pub(crate) fn node(&mut self, node: u16) -> &mut Server {
        &mut self.nodes[usize::from(node)]
    }

    pub(crate) const fn nodes(&self) -> u16 {
        self.nodes.len() as u16
    }

    /// Whether each process keeps its node.
    pub(crate) const fn is_sticky(&self) -> bool {
        !self.kept.is_empty()
    }

    /// The node for a process: its sticky node, or the balancer's choice.
    pub(crate) fn node_of(&mut self, process: u32) -> u16 {
        match self.kept.get(process as usize) {
            Some(&node) if node != Target::ANY => node,
            kept => {
                let keeps = kept.is_some();
                let node = self.choose();
                if keeps {
                    self.kept[process as usize] = node;
                }
                node
            }
        }
    }

    /// The node that the balancer chooses.
    pub(crate) fn choose(&mut self) -> u16 {
        let nodes = self.nodes();
        if nodes == 1 {
            return 0;
        }
        let turn = self.turn;
        self.turn = (turn + 1) % nodes;
        match self.balancer {
            Balancer::RoundRobin => turn,
            // The result fits into 16 bits.
            Balancer::Random => self.choices.below(u32::from(nodes)) as u16,
            Balancer::LeastOutstanding => {
                let from_turn = (0..nodes).map(|ahead| (turn + ahead) % nodes);
                let outstanding = |node: &u16| self.nodes[usize::from(*node)].outstanding();
                from_turn.min_by_key(outstanding).unwrap_or(turn)
            }
        }
    }

    /// An outage begins or ends.
    pub(crate) fn set_outage(&mut self, span: Span, begins: bool) {
        match begins {
            true => self.active.push(span),
            false => self.active.retain(|other| *other != span),
        }
        for (number, node) in (0..).zip(&mut self.nodes) {
            let here = self.active.iter().filter_map(|span| {
                let outage = self.outages.get(span.outage)?;
                concerns(outage, span, number).then_some(outage)
            });
            let effects = here.flat_map(|outage| {
                let position = |name| self.classes.iter().position(|class| class == name);
                let classes = outage.classes.iter().filter_map(position);
                // There are at most 250.
                let classes = classes.map(|class| (outage.effect, Some(class as u8)));
                let all = outage.classes.is_empty().then_some((outage.effect, None));
                classes.chain(all)
            });
            node.set_effects(effects);
        }
    }

    /// Takes the attempts that are queued at the nodes that an outage affects.
    pub(crate) fn take_queues(&mut self, span: Span) -> Vec<Key> {
        let Some(outage) = self.outages.get(span.outage) else {
            return Vec::new();
        };
        let nodes = (0..).zip(&mut self.nodes);
        nodes
            .filter(|(number, _)| concerns(outage, &span, *number))
            .flat_map(|(_, node)| node.take_queue())
            .collect()
    }
}

/// Whether an outage affects the node of this number.
fn concerns(outage: &Outage, span: &Span, node: u16) -> bool {
    match span.node {
        Some(only) => only == node,
        None => outage.nodes.is_empty() || outage.nodes.contains(&node),
    }
}
