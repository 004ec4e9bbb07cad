//! The request rates of all processes, and when each next has a slot for somebody who waits.

use std::collections::HashMap;

use relent_core::{Failure, Instant, Place, Policy, RequestRate, Slot};

pub(crate) struct Rates(Vec<Rated>);

struct Rated {
    rate: RequestRate,
    /// The calls that wait, and where.
    waiting: HashMap<Place, u32>,
    places: HashMap<u32, Place>,
    /// The next time it is asked; [`u64::MAX`] for never.
    at: u64,
}

impl Rates {
    /// As many as there are, if the policy has any.
    pub(crate) fn new(policy: &Policy, count: u32) -> Self {
        let rates = (0..count).filter_map(|_| policy.new_request_rate());
        let rated = rates.map(|rate| Rated {
            rate,
            waiting: HashMap::new(),
            places: HashMap::new(),
            at: u64::MAX,
        });
        Self(rated.collect())
    }

    fn get(&mut self, number: u32) -> Option<&mut Rated> {
        self.0.get_mut(number as usize)
    }

    /// May the call make an attempt now? Otherwise it waits here, if its slot comes by `until`.
    pub(crate) fn ask(
        &mut self,
        number: u32,
        now: u64,
        until: u64,
        before: bool,
        call: u32,
    ) -> Slot {
        let Some(rated) = self.get(number) else {
            return Slot::Now;
        };
        let until = Instant::from_nanos(until);
        let slot = rated.rate.ask(Instant::from_nanos(now), until, before);
        if let Slot::At(place, _) = slot {
            rated.waiting.insert(place, call);
            rated.places.insert(call, place);
        }
        slot
    }

    /// Whether now is when the rate is to be asked, or was that before something else happened.
    pub(crate) fn is_time(&mut self, number: u32, now: u64) -> bool {
        match self.get(number) {
            Some(rated) if rated.at == now => {
                rated.at = u64::MAX;
                true
            }
            _ => false,
        }
    }

    /// The next call that has a slot.
    pub(crate) fn release(&mut self, number: u32, now: u64) -> Option<u32> {
        let rated = self.get(number)?;
        let place = rated.rate.release(Instant::from_nanos(now))?;
        let call = rated.waiting.remove(&place)?;
        rated.places.remove(&call);
        Some(call)
    }

    /// When the rate is to be asked, if that is earlier than was thought.
    pub(crate) fn plan(&mut self, number: u32, now: u64) -> Option<u64> {
        let rated = self.get(number)?;
        let at = rated.rate.next_release(Instant::from_nanos(now))?;
        let at = at.as_nanos().max(now);
        (at < rated.at).then(|| {
            rated.at = at;
            at
        })
    }

    /// A call that waits goes away.
    pub(crate) fn forget(&mut self, number: u32, call: u32) {
        if let Some(rated) = self.get(number)
            && let Some(place) = rated.places.remove(&call)
        {
            rated.rate.forget(place);
            rated.waiting.remove(&place);
        }
    }

    /// The slot that was taken at this time is not used.
    pub(crate) fn give_back(&mut self, number: u32, taken: u64) {
        if let Some(rated) = self.get(number) {
            rated.rate.give_back(Instant::from_nanos(taken));
        }
    }

    pub(crate) fn on_failure(&mut self, number: u32, now: u64, started: u64, failure: &Failure) {
        if let Some(rated) = self.get(number) {
            let (now, started) = (Instant::from_nanos(now), Instant::from_nanos(started));
            rated.rate.on_failure(now, started, failure);
        }
    }
}
