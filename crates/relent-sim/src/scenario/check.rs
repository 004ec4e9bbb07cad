//! Which values of a scenario are accepted.

use super::{
    Arrivals, Backlog, Chain, Effect, Model, Network, SECOND, Scenario, Service, ServiceTime,
};

/// The longest time a scenario may name: a day.
const LONGEST: u64 = 86_400 * SECOND;
/// The most requests of one run.
const MOST_REQUESTS: f64 = 10_000_000.0;

const RATE: &str = "a number of requests per second above 0, up to 1000000";

/// Nothing, or the key of a value and what is accepted in its place.
type Checked = Result<(), (&'static str, &'static str)>;

impl Scenario {
    /// The first value that is not accepted: its key, and what is.
    pub(super) fn check(&self) -> Checked {
        let requests = match self.clients.arrivals {
            Arrivals::Poisson { rate, lasts } => {
                ensure(positive(rate), "rate", RATE)?;
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
                    (1_000_000..=LONGEST).contains(&think),
                    "think",
                    "a time from 1ms to 24h",
                )?;
                f64::from(clients) * (1.0 + lasts as f64 / think as f64)
            }
            Arrivals::Bursts {
                rate,
                on,
                off,
                lasts,
            } => {
                ensure(positive(rate), "rate", RATE)?;
                time(on, "on")?;
                time(off, "off")?;
                time(lasts, "for")?;
                let bursts = (lasts as f64 / (on + off) as f64).ceil();
                rate * on.min(lasts) as f64 / SECOND as f64 * bursts
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
            requests <= MOST_REQUESTS,
            "arrivals",
            "at most 10 million requests in one run",
        )?;
        // One budget for each process of each layer.
        let budgets = u64::from(self.clients.processes) * u64::from(self.chain.layers.max(1));
        ensure(
            (1..=1_000_000).contains(&budgets),
            "processes",
            "a number from 1 to 1000000, in all layers of a chain together",
        )?;
        time(self.clients.attempt_timeout, "attempt_timeout")?;
        time(self.clients.deadline, "deadline")?;
        ensure(
            self.clients.clock_skew <= LONGEST,
            "clock_skew",
            "a time up to 24h",
        )?;
        // With no delay at all a policy without backoff would never let time pass.
        ensure(
            (1000..=LONGEST).contains(&self.network.one_way),
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
        if let Some(Backlog { requests, at, over }) = self.clients.backlog {
            ensure(
                !matches!(self.clients.arrivals, Arrivals::Closed { .. }),
                "backlog",
                "clients that wait for their answers have none: use arrivals.poisson, .bursts or .herd",
            )?;
            ensure(requests > 0, "requests", "at least 1 request")?;
            ensure(at <= LONGEST, "at", "a time up to 24h")?;
            ensure(over <= LONGEST, "over", "a time up to 24h")?;
        }
        self.service.check()?;
        self.check_medium()?;
        let mut before = 0;
        for outage in &self.outages {
            ensure(
                outage.at >= before && outage.at <= LONGEST,
                "at",
                "outages are listed in order and do not overlap, all within 24h",
            )?;
            time(outage.lasts, "for")?;
            if let Effect::Brownout(share) = outage.effect {
                ensure(
                    share > 0.0 && share <= 1.0,
                    "brownout",
                    "the share of the capacity that is left, above 0 up to 1; for none: \"stall\"",
                )?;
            }
            before = outage.at + outage.lasts;
        }
        ensure(
            (1..=8).contains(&self.chain.layers),
            "layers",
            "a number from 1 to 8",
        )?;
        ensure(
            !self.chain.mark || self.chain.layers > 1,
            "mark",
            "only for a chain: set layers to 2 or more",
        )
    }
}

impl Scenario {
    /// A medium is all there is between stations: nothing else of a scenario is in it.
    fn check_medium(&self) -> Checked {
        let saturated = matches!(self.clients.arrivals, Arrivals::Saturated { .. });
        let Model::Medium {
            slot, rate, frame, ..
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
        let others = Self {
            network: Network::default(),
            outages: Vec::new(),
            chain: Chain::default(),
            service: Service {
                model: self.service.model,
                ..Service::default()
            },
            ..self.clone()
        };
        ensure(
            *self == others && self.clients.backlog.is_none(),
            "model",
            "a medium is used alone: leave out network, outages, chain, clients.backlog and the \
             rest of service",
        )
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
            ensure(sigma_is_fine(sigma), "lognormal", "a sigma from 0 to 5")?;
        }
        if let Model::Job { median, sigma } = self.model {
            time(median, "median")?;
            ensure(sigma_is_fine(sigma), "sigma", "a number from 0 to 5")?;
        }
        if self.model != Model::Queue {
            ensure(
                self.queue.is_none() && self.failures == 0.0 && self.shedder.is_none(),
                "model",
                "`queue`, `failures` and `shedder` are of the model \"queue\"",
            )?;
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
            let made = relent_core::Limiter::new(&limiter.into());
            made.map_err(|error| (error.key(), error.accepted()))?;
        }
        if let Some(shedder) = &self.shedder {
            let made = relent_core::Shedder::new(&shedder.into());
            made.map_err(|error| (error.key(), error.accepted()))?;
        }
        Ok(())
    }
}

fn ensure(holds: bool, key: &'static str, accepted: &'static str) -> Checked {
    if holds { Ok(()) } else { Err((key, accepted)) }
}

fn time(nanos: u64, key: &'static str) -> Checked {
    ensure(
        nanos > 0 && nanos <= LONGEST,
        key,
        "a time above 0, up to 24h",
    )
}

/// Written so that NaN fails; from one in a week to a million per second.
fn positive(rate: f64) -> bool {
    (1e-6..=1e6).contains(&rate)
}

fn sigma_is_fine(sigma: f64) -> bool {
    (0.0..=5.0).contains(&sigma)
}
