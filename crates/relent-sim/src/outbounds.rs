//! What the calls of all processes ask before their attempts, and when each process has something to let
//! go.

use relent_core::{
    Answer, Asking, Budget, Cooldown, Ended, Failure, Instant, Outbound, Permit, Policy,
};

use crate::stream::Stream;

pub(crate) struct Outbounds {
    processes: Vec<Process>,
    /// Never begun: cooldowns are not simulated.
    cooldown: Cooldown,
    random: Stream,
}

struct Process {
    outbound: Outbound,
    /// The next time it is asked; [`u64::MAX`] for never.
    at: u64,
}

impl Outbounds {
    /// As many as there are.
    pub(crate) fn new(policy: &Policy, count: u32, random: Stream) -> Self {
        let process = |_| Process {
            outbound: Outbound::new(policy),
            at: u64::MAX,
        };
        Self {
            processes: (0..count).map(process).collect(),
            cooldown: Cooldown::new(),
            random,
        }
    }

    fn get(&mut self, number: u32) -> Option<(&mut Process, &Cooldown, &mut Stream)> {
        let process = self.processes.get_mut(number as usize)?;
        Some((process, &self.cooldown, &mut self.random))
    }

    pub(crate) fn on_request(&mut self, number: u32, now: u64) {
        if let Some((process, ..)) = self.get(number) {
            let now = Instant::from_nanos(now);
            process.outbound.on_request_unthrottled(now);
        }
    }

    /// May the call start an attempt? Whether it waits for that already.
    pub(crate) fn ask(&mut self, number: u32, now: u64, asking: &Asking, waits: bool) -> Answer {
        let Some((process, cooldown, random)) = self.get(number) else {
            return Answer::TooLate;
        };
        let now = Instant::from_nanos(now);
        if waits {
            process.outbound.ask_again(now, asking, cooldown, random)
        } else {
            process.outbound.ask(now, asking, cooldown, random)
        }
    }

    /// Those who have something to ask, after what happened: whom an offer waits for.
    pub(crate) fn take_woken(&mut self, number: u32) -> Vec<u64> {
        self.get(number)
            .map_or_else(Vec::new, |(process, ..)| process.outbound.take_woken())
    }

    /// Makes the offers that are due, if now is when they are to be made, or was that before something
    /// else happened.
    pub(crate) fn settle(&mut self, number: u32, now: u64) {
        if let Some((process, cooldown, random)) = self.get(number)
            && process.at == now
        {
            process.at = u64::MAX;
            process
                .outbound
                .settle(Instant::from_nanos(now), cooldown, random);
        }
    }

    /// When offers are due, if that is earlier than was thought.
    pub(crate) fn plan(&mut self, number: u32, now: u64) -> Option<u64> {
        let (process, ..) = self.get(number)?;
        let at = process.outbound.due()?.as_nanos().max(now);
        (at < process.at).then(|| {
            process.at = at;
            at
        })
    }

    /// A call that waits goes away.
    pub(crate) fn leave(&mut self, number: u32, now: u64, id: u64) {
        if let Some((process, cooldown, random)) = self.get(number) {
            process
                .outbound
                .leave(Instant::from_nanos(now), id, cooldown, random);
        }
    }

    /// An attempt failed.
    pub(crate) fn on_failure(
        &mut self,
        number: u32,
        now: u64,
        started: Instant,
        failure: &Failure,
    ) -> Ended {
        let Some((process, ..)) = self.get(number) else {
            return Ended::of(failure);
        };
        let now = Instant::from_nanos(now);
        process.outbound.on_failure(now, started, failure)
    }

    /// An attempt is over; the budget beside the gate learns what the gate makes of it.
    pub(crate) fn ended(
        &mut self,
        number: u32,
        now: u64,
        permit: Permit,
        ended: Ended,
        budget: Option<&Budget>,
    ) {
        let Some((process, cooldown, random)) = self.get(number) else {
            return;
        };
        let now = Instant::from_nanos(now);
        process.outbound.ended(now, permit, ended, cooldown, random);
        if let Some(budget) = budget {
            process.outbound.teach(now, budget);
        }
    }
}
