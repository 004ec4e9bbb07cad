//! The service of a scenario, driven by an external clock such as that of a real server.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use relent_core::Advice;

use crate::cluster::Cluster;
use crate::limiter_response::RetryAfterHint;
use crate::scenario::{Effect, Scenario, Span};
use crate::server::RejectedBy;
use crate::slab::Key;

/// An attempt that arrives at a [`Serving`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArrivingAttempt {
    /// The name under which its response is returned.
    pub id: u32,
    /// The number of the attempt within its request, from 1.
    pub number: u32,
    /// The caller's key at the limiter: the same for all attempts of a request.
    pub key: Option<u64>,
}

/// The response to an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServiceAnswer {
    /// It was served, with effect.
    Success,
    /// Rejected, or served without effect.
    Failure {
        /// Whether the response has the no-retry marker.
        do_not_retry: bool,
        /// The Retry-After of a rejection.
        wait: Option<Wait>,
    },
    /// Rejected by the limiter.
    Throttled(Option<Wait>),
}

/// A Retry-After.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait {
    /// In nanoseconds; for a reserved slot in whole milliseconds.
    pub nanos: u64,
    /// Whether the slot is reserved for this caller.
    pub ticket: bool,
}

/// The service of a scenario: its queue, workers, outages, limiter and load shedder, as in a [run](crate::run), but
/// with the time as an argument.
///
/// It keeps its own time, so a late call of `advance` does not distort it: services that ended since the last call
/// end at their proper time, and the next ones begin then. Times are in nanoseconds from the start.
///
/// ```
/// use relent_sim::{ServiceAnswer, ArrivingAttempt, Scenario, Serving};
///
/// let scenario = Scenario::parse(r#"
///     clients.arrivals.herd = { clients = 2 }
///     service = { capacity = 10, time = "constant" }
/// "#)?;
/// let mut serving = Serving::new(&scenario, 1);
/// for id in 0..2 {
///     assert_eq!(serving.arrive(0, ArrivingAttempt { id, number: 1, key: None }), None, "queued");
/// }
/// assert_eq!(serving.next(), Some(100_000_000));
/// // Half a second late, and both are completed.
/// serving.advance(500_000_000);
/// let done: Vec<_> = serving.answers().collect();
/// assert_eq!(done, [(0, ServiceAnswer::Success), (1, ServiceAnswer::Success)]);
/// assert_eq!(serving.executions(), 2);
/// # Ok::<(), relent_sim::ScenarioError>(())
/// ```
#[derive(Debug)]
pub struct Serving {
    cluster: Cluster,
    /// Outages still to begin or end, in order.
    outages: VecDeque<(u64, Span, bool)>,
    effects: Vec<Effect>,
    /// The Retry-After of a rejection.
    retry_after: Option<Wait>,
    /// Running services: the end of each, its attempt, and its node.
    running: BinaryHeap<Reverse<(u64, u32, u16)>>,
    answers: VecDeque<(u32, ServiceAnswer)>,
    executions: u64,
}

impl Serving {
    /// Creates the service before any event. Service times are those of a run with this seed, as long as attempts
    /// arrive in the same order.
    #[must_use]
    pub fn new(scenario: &Scenario, seed: u64) -> Self {
        let mut outages: Vec<_> = scenario
            .spans()
            .flat_map(|span| [(span.at, span, true), (span.end, span, false)])
            .collect();
        outages.sort_by_key(|(at, ..)| *at);
        Self {
            cluster: Cluster::new(scenario, seed),
            outages: outages.into(),
            effects: scenario
                .outages
                .iter()
                .map(|outage| outage.effect)
                .collect(),
            retry_after: scenario.service.retry_after.map(|nanos| Wait {
                nanos,
                ticket: false,
            }),
            running: BinaryHeap::new(),
            answers: VecDeque::new(),
            executions: 0,
        }
    }

    /// An attempt arrives: returns its response if there is an immediate one. `None` means that it is queued, and
    /// [`answers`](Self::answers) has its response later; or that it is lost and gets none.
    pub fn arrive(&mut self, now: u64, attempt: ArrivingAttempt) -> Option<ServiceAnswer> {
        self.advance(now);
        let ArrivingAttempt { id, number, key } = attempt;
        let node = self.cluster.choose();
        let server = self.cluster.node(node);
        if server.loses(CLASS) {
            return None;
        }
        let refused = match server.judge(now, number, key, CLASS) {
            Ok(()) => {
                let attempt = Key {
                    index: id,
                    stamp: 0,
                };
                if server.enter(attempt, CLASS) {
                    self.begin(now, node);
                    return None;
                }
                RejectedBy::Down
            }
            Err(refused) => refused,
        };
        if self.cluster.node(node).loses(CLASS) {
            return None;
        }
        Some(match refused {
            RejectedBy::Throttled(hinted) => ServiceAnswer::Throttled(wait(hinted)),
            RejectedBy::Shed(advice) => ServiceAnswer::Failure {
                do_not_retry: advice == Advice::DoNotRetry,
                wait: None,
            },
            RejectedBy::Down => ServiceAnswer::Failure {
                do_not_retry: false,
                wait: self.retry_after,
            },
        })
    }

    /// Advances to `now`: everything due until then happens.
    pub fn advance(&mut self, now: u64) {
        while let Some(at) = self.next().filter(|at| *at <= now) {
            let outage = self.outages.front().filter(|(begins, ..)| *begins == at);
            if let Some((_, span, begins)) = outage.copied() {
                self.outages.pop_front();
                if begins && self.effects.get(span.outage) == Some(&Effect::Restart) {
                    for attempt in self.cluster.take_queues(span) {
                        self.answers.push_back((attempt.index, FAILED));
                    }
                }
                self.cluster.set_outage(span, begins);
                for node in 0..self.cluster.nodes() {
                    self.begin(at, node);
                }
            } else if let Some(Reverse((_, id, node))) = self.running.pop() {
                let server = self.cluster.node(node);
                let answer = match server.end(at, CLASS) {
                    true => {
                        self.executions += 1;
                        ServiceAnswer::Success
                    }
                    false => FAILED,
                };
                if !server.loses(CLASS) {
                    self.answers.push_back((id, answer));
                }
                self.begin(at, node);
            }
        }
    }

    /// The time of the next event if no attempt arrives before; `None` if there is none.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        let outage = self.outages.front().map(|(at, ..)| *at);
        let service = self.running.peek().map(|Reverse((at, ..))| *at);
        outage.into_iter().chain(service).min()
    }

    /// The responses since the last call, with the names of their attempts.
    pub fn answers(&mut self) -> impl Iterator<Item = (u32, ServiceAnswer)> {
        self.answers.drain(..)
    }

    /// The number of services so far that had an effect.
    #[must_use]
    pub const fn executions(&self) -> u64 {
        self.executions
    }

    /// Starts services on the free workers of the node.
    fn begin(&mut self, now: u64, node: u16) {
        while let Some((attempt, _, time)) = self.cluster.node(node).begin(|_| true) {
            self.running
                .push(Reverse((now.saturating_add(time), attempt.index, node)));
        }
    }
}

/// The class of all attempts: an external attempt has none.
const CLASS: u8 = 0;

const FAILED: ServiceAnswer = ServiceAnswer::Failure {
    do_not_retry: false,
    wait: None,
};

fn wait(hinted: RetryAfterHint) -> Option<Wait> {
    match hinted {
        RetryAfterHint::Nothing => None,
        RetryAfterHint::Shared(nanos) => Some(Wait {
            nanos,
            ticket: false,
        }),
        RetryAfterHint::Ticket(millis) => Some(Wait {
            nanos: millis.saturating_mul(1_000_000),
            ticket: true,
        }),
    }
}
