//! The accepted values of a scenario.

use super::{
    Arrivals, Balancer, Chain, Clients, DestinationOf, Effect, FailuresAs, FastFailures, Hears,
    Link, MediumAccess, Model, Outage, RequestBacklog, SECOND, Scenario, Service, ServiceTime,
};

/// The longest time in a scenario: a day.
pub(super) const MAX_NANOS: u64 = 86_400 * SECOND;
/// The most requests of one run.
const MAX_REQUESTS: f64 = 10_000_000.0;

const RATE_RANGE: &str = "a number of requests per second above 0, up to 1000000";

/// The most outages of a run, including repetitions.
const MAX_OUTAGE_SPANS: u64 = 10_000;

/// `Ok`, or the key of a rejected value and the accepted ones.
pub(super) type Checked = Result<(), (&'static str, &'static str)>;

impl Scenario {
    /// Finds the first rejected value: its key, and the accepted values.
    pub(super) fn check(&self) -> Checked {
        let requests = match self.clients.arrivals {
            Arrivals::Poisson { rate, lasts } => {
                ensure(positive(rate), "rate", RATE_RANGE)?;
                time(lasts, "for")?;
                rate * lasts as f64 / SECOND as f64
            }
            Arrivals::Herd { clients } => {
                ensure(clients > 0, "clients", "at least 1 client")?;
                f64::from(clients)
            }
            Arrivals::Closed {
                clients,
                think,
                lasts,
            } => {
                ensure(clients > 0, "clients", "at least 1 client")?;
                time(lasts, "for")?;
                ensure(
                    (1_000_000..=MAX_NANOS).contains(&think),
                    "think",
                    "a time from 1ms to 24h",
                )?;
                f64::from(clients) * (1.0 + lasts as f64 / think as f64)
            }
            Arrivals::Bursts {
                rate,
                on,
                off,
                idle,
                lasts,
            } => {
                ensure(positive(rate), "rate", RATE_RANGE)?;
                time(on, "on")?;
                time(off, "off")?;
                time(lasts, "for")?;
                ensure(
                    (0.0..=rate).contains(&idle),
                    "idle",
                    "a number of requests per second from 0 up to that of the bursts",
                )?;
                let bursts = (lasts as f64 / (on + off) as f64).ceil();
                let pauses = idle * lasts as f64 / SECOND as f64;
                rate * on.min(lasts) as f64 / SECOND as f64 * bursts + pauses
            }
            Arrivals::Curve { ref points, lasts } => {
                time(lasts, "for")?;
                let first = points.first().is_some_and(|point| point.at == 0);
                ensure(
                    first && points.is_sorted_by_key(|point| point.at),
                    "points",
                    "a list of { at, rate } in order of time, the first at 0s",
                )?;
                let last = points.last().map_or(0, |point| point.at);
                ensure(last <= MAX_NANOS, "at", "a time up to 24h")?;
                let most = points.iter().map(|point| point.rate).fold(0.0, f64::max);
                let rates = points.iter().all(|point| (0.0..=1e6).contains(&point.rate));
                ensure(
                    rates && positive(most),
                    "rate",
                    "a number of requests per second from 0 to 1000000, and one of them above 0",
                )?;
                most * lasts as f64 / SECOND as f64
            }
            Arrivals::Wave {
                rate,
                swing,
                period,
                lasts,
            } => {
                ensure(positive(rate), "rate", RATE_RANGE)?;
                ensure(
                    (0.0..=1.0).contains(&swing),
                    "swing",
                    "a share of the rate from 0 to 1",
                )?;
                time(period, "period")?;
                time(lasts, "for")?;
                rate * (1.0 + swing) * lasts as f64 / SECOND as f64
            }
            Arrivals::Saturated { clients, lasts } => {
                ensure(
                    (1..=10_000).contains(&clients),
                    "clients",
                    "1 to 10000 stations",
                )?;
                time(lasts, "for")?;
                lasts as f64 / SECOND as f64 * self.capacity()
            }
        };
        let backlog = self.clients.backlog;
        let requests = requests + backlog.map_or(0.0, |backlog| f64::from(backlog.requests));
        ensure(
            requests <= MAX_REQUESTS,
            "arrivals",
            "at most 10 million requests in one run",
        )?;
        ensure(
            (1..=1000).contains(&self.service.nodes),
            "nodes",
            "a number from 1 to 1000",
        )?;
        // One budget for each process of each layer, and for each node if nodes are destinations.
        let nodes = match self.clients.destination {
            DestinationOf::Service => 1,
            DestinationOf::Node => u64::from(self.service.nodes),
        };
        let budgets =
            u64::from(self.clients.processes) * u64::from(self.chain.layers.max(1)) * nodes;
        ensure(
            (1..=1_000_000).contains(&budgets),
            "processes",
            "a number from 1 to 1000000, in all layers of a chain and for all destinations together",
        )?;
        self.clients.check()?;
        time(self.clients.attempt_timeout, "attempt_timeout")?;
        time(self.clients.deadline, "deadline")?;
        ensure(
            self.clients.clock_skew <= MAX_NANOS,
            "clock_skew",
            "a time up to 24h",
        )?;
        // Without any delay, a policy without backoff would never let time pass.
        ensure(
            (1000..=MAX_NANOS).contains(&self.network.one_way),
            "one_way",
            "a time from 1us to 24h",
        )?;
        ensure(
            self.network.deviation <= self.network.one_way,
            "deviation",
            "a time up to one_way",
        )?;
        ensure(
            (0.0..=1.0).contains(&self.network.loss),
            "loss",
            "a probability from 0 to 1",
        )?;
        if let Some(RequestBacklog { requests, at, over }) = self.clients.backlog {
            ensure(
                !matches!(self.clients.arrivals, Arrivals::Closed { .. }),
                "backlog",
                "closed-loop clients have none: use arrivals.poisson, .bursts or .herd",
            )?;
            ensure(requests > 0, "requests", "at least 1 request")?;
            ensure(at <= MAX_NANOS, "at", "a time up to 24h")?;
            ensure(over <= MAX_NANOS, "over", "a time up to 24h")?;
        }
        self.service.check()?;
        self.check_medium()?;
        self.check_outages()?;
        ensure(
            (1..=8).contains(&self.chain.layers),
            "layers",
            "a number from 1 to 8",
        )?;
        ensure(
            !self.chain.mark || self.chain.layers > 1,
            "mark",
            "only for a chain: set layers to 2 or more",
        )?;
        ensure(
            self.chain.hears == Hears::Nothing || self.chain.layers > 1,
            "hears",
            "only for a chain: set layers to 2 or more",
        )
    }
}

impl Scenario {
    /// A medium is everything between the stations: the other parts of a scenario do not apply.
    fn check_medium(&self) -> Checked {
        let saturated = matches!(self.clients.arrivals, Arrivals::Saturated { .. });
        let Model::Medium {
            slot,
            rate,
            frame,
            overhead,
            collision,
            access,
        } = self.service.model
        else {
            return ensure(
                !saturated,
                "arrivals",
                "`saturated` is of the model \"medium\"",
            );
        };
        ensure(
            saturated,
            "model",
            "a medium has stations that always send: use arrivals.saturated",
        )?;
        ensure(
            (1000..=SECOND).contains(&slot),
            "slot",
            "a time from 1us to 1s",
        )?;
        ensure(
            (1.0..=1e12).contains(&rate),
            "rate",
            "a number of bits per second from 1 to 1e12",
        )?;
        ensure(
            frame > 0 && f64::from(frame) / rate <= 1.0,
            "frame",
            "at least 1 bit, and no more than a second of them",
        )?;
        ensure(overhead <= SECOND, "overhead", "a time up to 1s")?;
        ensure(
            collision.is_none_or(|time| (1000..=SECOND).contains(&time)),
            "collision",
            "a time from 1us to 1s",
        )?;
        if let MediumAccess::Window(window) = access {
            ensure(
                (1..=65_536).contains(&window),
                "window",
                "a number of slots from 1 to 65536",
            )?;
        }
        let others = Self {
            network: Link::default(),
            outages: Vec::new(),
            chain: Chain::default(),
            service: Service {
                model: self.service.model,
                ..Service::default()
            },
            ..self.clone()
        };
        ensure(
            *self == others
                && self.clients.backlog.is_none()
                && self.clients.restarts.is_empty()
                && self.clients.classes.is_empty(),
            "model",
            "a medium is used alone: leave out network, outages, chain, clients.backlog, \
             clients.classes, clients.restarts and the rest of service",
        )
    }
}

impl Clients {
    fn check(&self) -> Checked {
        ensure(
            self.classes.len() <= 250,
            "classes",
            "at most 250 kinds of requests",
        )?;
        for (index, class) in self.classes.iter().enumerate() {
            let same = |other: &super::Class| other.name == class.name;
            ensure(
                !class.name.is_empty() && !self.classes[..index].iter().any(same),
                "name",
                "a name that no other class has",
            )?;
            ensure(
                (1e-6..=1e6).contains(&class.share),
                "share",
                "a number above 0, relative to the other classes",
            )?;
            ensure(
                (1e-6..=1e6).contains(&class.cost),
                "cost",
                "a multiple of the mean service time above 0, up to 1000000",
            )?;
            if let Some(ServiceTime::Lognormal(sigma)) = class.time {
                ensure(is_valid_sigma(sigma), "lognormal", "a sigma from 0 to 5")?;
            }
            if let Some(deadline) = class.deadline {
                time(deadline, "deadline")?;
            }
            if let Some(timeout) = class.attempt_timeout {
                time(timeout, "attempt_timeout")?;
            }
        }
        ensure(self.restarts.len() <= 100, "restarts", "at most 100")?;
        for restart in &self.restarts {
            ensure(restart.at <= MAX_NANOS, "at", "a time up to 24h")?;
            ensure(restart.over <= MAX_NANOS, "over", "a time up to 24h")?;
            ensure(
                restart.processes.iter().all(|one| *one < self.processes),
                "processes",
                "a list of numbers from 0, each below clients.processes",
            )?;
        }
        Ok(())
    }
}

impl Service {
    fn check(&self) -> Checked {
        ensure(
            positive(self.capacity),
            "capacity",
            "a number of services per second above 0, up to 1000000",
        )?;
        ensure(
            (1..=10_000).contains(&self.workers),
            "workers",
            "a number from 1 to 10000",
        )?;
        if let ServiceTime::Lognormal(sigma) = self.time {
            ensure(is_valid_sigma(sigma), "lognormal", "a sigma from 0 to 5")?;
        }
        if let Model::Job { median, sigma } = self.model {
            time(median, "median")?;
            ensure(is_valid_sigma(sigma), "sigma", "a number from 0 to 5")?;
        }
        if self.model != Model::Queue {
            ensure(
                self.queue.is_none()
                    && self.failures == 0.0
                    && self.fast_failures.share() == 0.0
                    && self.shedder.is_none()
                    && self.nodes == 1,
                "model",
                "`queue`, `failures`, `fast_failures`, `shedder` and `nodes` are of the model \"queue\"",
            )?;
        }
        ensure(
            self.nodes > 1 || (self.balancer == Balancer::RoundRobin && !self.sticky),
            "nodes",
            "`balancer` and `sticky` need 2 nodes and more",
        )?;
        ensure(
            self.nodes == 1 || self.limiter.is_none(),
            "limiter",
            "is of a service with one node: leave out `nodes`",
        )?;
        if let Some(delay) = self.retry_after {
            time(delay, "retry_after")?;
        }
        ensure(
            (0.0..=100.0).contains(&self.reject_cost),
            "reject_cost",
            "a share of one service, from 0 to 100",
        )?;
        ensure(
            (0.0..=1.0).contains(&self.failures),
            "failures",
            "a probability from 0 to 1",
        )?;
        self.fast_failures.check()?;
        ensure(
            self.failures_as == FailuresAs::Status || self.retry_after.is_none(),
            "failures_as",
            "a failed connection has no Retry-After: leave out `retry_after`",
        )?;
        ensure(
            (400..600).contains(&self.status),
            "status",
            "an HTTP status that is a failure, from 400 to 599",
        )?;
        if let Some(limiter) = &self.limiter {
            ensure(
                positive(limiter.rate),
                "rate",
                "a number of attempts per second above 0, up to 1000000",
            )?;
            let made = relent_core::admission::Limiter::new(&limiter.into());
            made.map_err(|error| (error.key(), error.accepted()))?;
        }
        if let Some(shedder) = &self.shedder {
            let made = relent_core::admission::Shedder::new(&shedder.into());
            made.map_err(|error| (error.key(), error.accepted()))?;
        }
        Ok(())
    }
}

pub(super) fn ensure(holds: bool, key: &'static str, accepted: &'static str) -> Checked {
    if holds { Ok(()) } else { Err((key, accepted)) }
}

pub(super) fn time(nanos: u64, key: &'static str) -> Checked {
    ensure(
        nanos > 0 && nanos <= MAX_NANOS,
        key,
        "a time above 0, up to 24h",
    )
}

/// Written so that NaN fails; from about one per week to a million per second.
fn positive(rate: f64) -> bool {
    (1e-6..=1e6).contains(&rate)
}

fn is_valid_sigma(sigma: f64) -> bool {
    (0.0..=5.0).contains(&sigma)
}

impl Scenario {
    pub(super) fn check_outages(&self) -> Checked {
        let mut spans = 0;
        for outage in &self.outages {
            ensure(outage.at <= MAX_NANOS, "at", "a time up to 24h")?;
            time(outage.lasts, "for")?;
            self.check_effect(outage)?;
            ensure(outage.times >= 1, "times", "at least 1")?;
            ensure(
                outage.every.is_some() == (outage.times > 1),
                "times",
                "an outage that happens again needs `every` and `times`, of 2 and more",
            )?;
            if let Some(every) = outage.every {
                ensure(
                    every >= outage.lasts,
                    "every",
                    "from one beginning to the next: no shorter than `for`",
                )?;
                ensure(
                    u64::from(outage.times) <= MAX_NANOS / every,
                    "times",
                    "no outage after 24h",
                )?;
            }
            spans += u64::from(outage.times);
            ensure(
                outage.nodes.iter().all(|node| *node < self.service.nodes),
                "nodes",
                "a list of numbers from 0, each below service.nodes",
            )?;
            ensure(
                !outage.rolling || outage.nodes.is_empty(),
                "rolling",
                "one node after the other: leave out `nodes`",
            )?;
            let known = |name: &String| {
                let mut classes = self.clients.classes.iter();
                classes.any(|class| class.name == *name)
            };
            ensure(
                outage.classes.iter().all(known),
                "classes",
                "a list of names of clients.classes",
            )?;
        }
        ensure(
            spans <= MAX_OUTAGE_SPANS,
            "times",
            "at most 10000 outages in one run",
        )
    }

    fn check_effect(&self, outage: &Outage) -> Checked {
        const SHARE: &str = "a probability from 0 to 1";
        match outage.effect {
            Effect::Brownout(share) => ensure(
                share > 0.0 && share <= 1.0,
                "brownout",
                "the share of the capacity that is left, above 0 up to 1; for none: \"stall\"",
            ),
            Effect::Failures(share) => ensure((0.0..=1.0).contains(&share), "failures", SHARE),
            Effect::Loss(share) => ensure((0.0..=1.0).contains(&share), "loss", SHARE),
            Effect::Stall | Effect::Restart => ensure(
                outage.classes.is_empty(),
                "effect",
                "a stall or a restart concerns all classes: leave out `classes`",
            ),
            Effect::FastFailures(which) => which.check(),
            Effect::Blackout => Ok(()),
        }?;
        let needs_queue = !outage.is_total()
            || matches!(
                outage.effect,
                Effect::Restart | Effect::Failures(_) | Effect::Loss(_) | Effect::FastFailures(_)
            );
        ensure(
            self.service.model == Model::Queue || !needs_queue,
            "effect",
            "other models than \"queue\" have only a \"blackout\", a \"stall\" or a brownout, of all requests",
        )
    }
}

impl FastFailures {
    fn check(self) -> Checked {
        let accepted = match self {
            Self::Share(share) => (0.0..=1.0).contains(&share),
            Self::Every { every: of } | Self::EveryFirst { every_first: of } => of > 0,
        };
        ensure(
            accepted,
            "fast_failures",
            "a probability from 0 to 1, or one of 1 and more",
        )
    }
}
