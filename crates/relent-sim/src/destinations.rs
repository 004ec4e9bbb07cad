//! What the calls of each process share, as `relent::Destination` does for threads: budget, cooldown,
//! and what is asked before an attempt.

use std::time::Duration;

use relent_core::{
    Answer, Asking, Budget, Cooldown, Ended, Failure, Instant, Outbound, Permit, Policy,
};

use crate::stream::Stream;

/// The destination of each process, and of each layer in it.
#[derive(Debug)]
pub(crate) struct Destinations {
    all: Vec<Destination>,
    /// The policy's longest hint: no cooldown lasts longer.
    longest: Duration,
    random: Stream,
}

#[derive(Debug)]
struct Destination {
    budget: Option<Budget>,
    cooldown: Cooldown,
    outbound: Outbound,
    /// When it is next looked after; [`u64::MAX`] for never.
    at: u64,
}

impl Destinations {
    pub(crate) fn new(policy: &Policy, count: u32, random: Stream) -> Self {
        let destination = |_| Destination {
            budget: policy.new_budget(),
            cooldown: Cooldown::new(),
            outbound: Outbound::new(policy),
            at: u64::MAX,
        };
        Self {
            all: (0..count).map(destination).collect(),
            longest: policy.max_hint(),
            random,
        }
    }

    fn get(&mut self, number: u32) -> (&mut Destination, &mut Stream) {
        (&mut self.all[number as usize], &mut self.random)
    }

    pub(crate) fn budget(&self, number: u32) -> Option<&Budget> {
        self.all[number as usize].budget.as_ref()
    }

    /// A request is made. Whether it may be attempted at all.
    pub(crate) fn on_request(&mut self, number: u32, now: u64) -> bool {
        let (destination, random) = self.get(number);
        let now = Instant::from_nanos(now);
        destination.cooldown.forget_past(now);
        let admitted = destination.outbound.on_request(now, random).is_some();
        if admitted && let Some(budget) = &destination.budget {
            budget.on_request();
        }
        admitted
    }

    /// May the call start an attempt? Whether it waits for that already.
    pub(crate) fn ask(&mut self, number: u32, now: u64, asking: &Asking, waits: bool) -> Answer {
        let (destination, random) = self.get(number);
        let Destination {
            outbound, cooldown, ..
        } = destination;
        let now = Instant::from_nanos(now);
        if waits {
            outbound.ask_again(now, asking, cooldown, random)
        } else {
            outbound.ask(now, asking, cooldown, random)
        }
    }

    /// Those who have something to ask, after what happened: whom an offer waits for.
    pub(crate) fn take_woken(&mut self, number: u32) -> Vec<u64> {
        let (destination, _) = self.get(number);
        match destination.outbound.has_woken() {
            true => destination.outbound.take_woken(),
            false => Vec::new(),
        }
    }

    /// Makes the offers that are due, if now is when they are to be made, or was that before something
    /// else happened.
    pub(crate) fn settle(&mut self, number: u32, now: u64) {
        let (destination, random) = self.get(number);
        if destination.at == now {
            destination.at = u64::MAX;
            let now = Instant::from_nanos(now);
            destination
                .outbound
                .settle(now, &destination.cooldown, random);
        }
    }

    /// When offers are due, if that is earlier than was thought.
    pub(crate) fn plan(&mut self, number: u32, now: u64) -> Option<u64> {
        let (destination, _) = self.get(number);
        let at = destination.outbound.due()?.as_nanos().max(now);
        (at < destination.at).then(|| {
            destination.at = at;
            at
        })
    }

    /// A call that waits goes away.
    pub(crate) fn leave(&mut self, number: u32, now: u64, id: u64) {
        let (destination, random) = self.get(number);
        let now = Instant::from_nanos(now);
        destination
            .outbound
            .leave(now, id, &destination.cooldown, random);
    }

    /// An attempt is over; the budget beside the gate learns what the gate makes of it.
    pub(crate) fn ended(&mut self, number: u32, now: u64, permit: Permit, ended: Ended) {
        let (destination, random) = self.get(number);
        let now = Instant::from_nanos(now);
        let Destination {
            outbound,
            cooldown,
            budget,
            ..
        } = destination;
        outbound.ended(now, permit, ended, cooldown, random);
        if let Some(budget) = budget {
            outbound.teach(now, budget);
        }
    }

    /// An attempt failed. What the destination said to all is kept.
    pub(crate) fn failed(&mut self, number: u32, now: u64, permit: Permit, failure: &Failure) {
        let longest = self.longest;
        let (destination, _) = self.get(number);
        let instant = Instant::from_nanos(now);
        destination.cooldown.on_failure(instant, failure, longest);
        let ended = destination
            .outbound
            .on_failure(instant, permit.started(), failure);
        self.ended(number, now, permit, ended);
    }
}
