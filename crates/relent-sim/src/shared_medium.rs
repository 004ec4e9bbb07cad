//! The model of a shared medium: stations on one cable that sense each other (CSMA/CD).
//!
//! Time advances in slots while stations contend, and all stations detect a sender within a slot. In each slot every
//! station with a frame sends or not. Without a sender the slot is lost. A single sender has the medium until its
//! frame is sent, and all others wait. Several senders collide: that costs the slot or the time in the scenario, and
//! each asks its session how to continue.
//!
//! Stations with a window count in slots without a sender, and one more for each frame or collision
//! ("Performance Analysis of the IEEE 802.11 Distributed Coordination Function", Bianchi, 2000).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use relent_core::destination::Budget;
use relent_core::{Decision, Failure, Instant, Policy, Session};

use crate::random_stream::{SESSIONS, Stream, rounded};
use crate::recorder::Recorder;
use crate::scenario::{Arrivals, MediumAccess, Model, SECOND, Scenario};
use crate::too_many_events::TooManyEvents;

/// The parameters of the cable, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cable {
    slot: u64,
    frame: u64,
    /// Time in addition to the frame.
    overhead: u64,
    collision: u64,
    access: MediumAccess,
    stations: u32,
    lasts: u64,
}

/// A station and the frame that it wants to send.
struct Station {
    session: Session,
    /// When it got the frame.
    made: u64,
    random: Stream,
}

struct Medium<'a> {
    scenario: &'a Scenario,
    policy: &'a Policy,
    cable: Cable,
    stations: Vec<Station>,
    budgets: Vec<Budget>,
    /// When each station sends next, unless another sends first; with a window, in counts of slots.
    ready: BinaryHeap<Reverse<(u64, u32)>>,
    /// The count of slots of stations with a window.
    count: u64,
    recorder: Recorder,
}

impl Cable {
    /// The cable of a scenario; `None` where the service is not a medium.
    pub(crate) fn of(scenario: &Scenario) -> Option<Self> {
        match (scenario.service.model, &scenario.clients.arrivals) {
            (
                Model::Medium {
                    slot,
                    rate,
                    frame,
                    overhead,
                    collision,
                    access,
                },
                &Arrivals::Saturated { clients, lasts },
            ) => Some(Self {
                slot,
                frame: rounded(f64::from(frame) / rate * SECOND as f64).max(1),
                overhead,
                collision: collision.unwrap_or(slot),
                access,
                stations: clients,
                lasts,
            }),
            _ => None,
        }
    }
}

/// Runs the stations until the end of the time, like [`run_within`](crate::world::run_within).
pub(crate) fn run_within(
    scenario: &Scenario,
    policy: &Policy,
    seed: u64,
    cable: Cable,
    recorder: Recorder,
    max_events: u64,
) -> Result<Recorder, TooManyEvents> {
    let station = |index: u32| Station {
        session: Session::new(Instant::ORIGIN, scenario.clients.repeatable),
        made: 0,
        random: Stream::new(seed, SESSIONS + u64::from(index)),
    };
    let mut medium = Medium {
        scenario,
        policy,
        cable,
        stations: (0..cable.stations).map(station).collect(),
        budgets: (0..scenario.clients.processes)
            .filter_map(|_| policy.new_budget())
            .collect(),
        ready: BinaryHeap::new(),
        count: 0,
        recorder,
    };
    for index in 0..cable.stations {
        medium.next_frame(0, 0, index);
    }
    let (mut now, mut sent, mut events) = (0, 0, 0);
    let mut senders = Vec::new();
    while now < cable.lasts {
        now = medium.senders(now, &mut senders);
        if now >= cable.lasts {
            break;
        }
        events += senders.len().max(1) as u64;
        if events > max_events {
            return Err(TooManyEvents);
        }
        for &index in &senders {
            medium.stations[index as usize].session.on_attempt();
            medium.recorder.on_attempt(now);
        }
        match senders.as_slice() {
            [] => now += cable.slot,
            &[only] => {
                now += cable.frame + cable.overhead;
                sent += cable.frame;
                medium.sent(now, only);
            }
            several => {
                now += cable.collision;
                for &index in several {
                    medium.collided(now, index);
                }
            }
        }
    }
    medium.recorder.on_medium(sent, now);
    medium.recorder.on_end(events);
    Ok(medium.recorder)
}

impl Medium<'_> {
    /// The station gets a new frame to send at `at`, which is `now` or later.
    fn next_frame(&mut self, now: u64, at: u64, index: u32) {
        if at >= self.cable.lasts {
            return;
        }
        let station = &mut self.stations[index as usize];
        station.session = Session::new(Instant::from_nanos(at), self.scenario.clients.repeatable);
        station.made = at;
        self.recorder.on_request(at, index);
        if let Some(budget) = budget(&self.budgets, index) {
            budget.on_request();
        }
        let at = match self.cable.access {
            MediumAccess::Policy => at,
            MediumAccess::Window(window) => {
                let until = (at - now).div_ceil(self.cable.slot);
                self.count + until + u64::from(station.random.below(window))
            }
            MediumAccess::Share => return,
        };
        self.ready.push(Reverse((at, index)));
    }

    /// Finds the stations that send in the slot at `now`, or in the first later one in which a policy lets a station
    /// send. Returns the time of that slot.
    fn senders(&mut self, now: u64, senders: &mut Vec<u32>) -> u64 {
        senders.clear();
        if self.cable.access == MediumAccess::Share {
            let share = 1.0 / f64::from(self.cable.stations);
            let stations = (0..).zip(&mut self.stations);
            senders.extend(
                stations
                    .filter_map(|(index, station)| station.random.happens(share).then_some(index)),
            );
            return now;
        }
        // Slots without a sender are skipped.
        let first = self.ready.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
        let counts = matches!(self.cable.access, MediumAccess::Window(_));
        let slots = match counts {
            true => first.saturating_sub(self.count),
            false => first.saturating_sub(now).div_ceil(self.cable.slot),
        };
        let now = now.saturating_add(slots.saturating_mul(self.cable.slot));
        let due = match counts {
            true => first,
            false => now,
        };
        while let Some(Reverse((at, index))) = self.ready.peek().copied()
            && at <= due
        {
            self.ready.pop();
            senders.push(index);
        }
        if counts {
            self.count = first.saturating_add(1);
        }
        now
    }

    /// The frame of the station has been sent.
    fn sent(&mut self, now: u64, index: u32) {
        let budget = budget(&self.budgets, index);
        let station = &mut self.stations[index as usize];
        station.session.on_success(budget);
        // A count may take less than a slot, and so end before the frame was due.
        let made = station.made.min(now);
        self.recorder.on_execution();
        self.recorder.on_success(index, index, made, now);
        self.next_frame(now, now, index);
    }

    /// The station collided with others: the frame is lost.
    fn collided(&mut self, now: u64, index: u32) {
        if self.cable.access == MediumAccess::Share {
            return;
        }
        let budget = budget(&self.budgets, index);
        let station = &mut self.stations[index as usize];
        let decision = station.session.on_failure(
            self.policy,
            Instant::from_nanos(now),
            &Failure::not_processed(),
            &mut station.random,
            budget,
        );
        let deadline = station.made.saturating_add(self.scenario.clients.deadline);
        let at = match decision {
            Decision::Retry { after } => {
                let at = Instant::from_nanos(now).saturating_add(after).as_nanos();
                if at < deadline {
                    let at = match self.cable.access {
                        MediumAccess::Window(_) => self.count + (at - now) / self.cable.slot,
                        MediumAccess::Policy | MediumAccess::Share => at,
                    };
                    self.ready.push(Reverse((at, index)));
                    return;
                }
                // The frame's caller goes away before the next attempt.
                station.session.on_cancel(budget);
                deadline
            }
            Decision::Stop(_) => {
                self.recorder.on_give_up();
                now
            }
        };
        self.next_frame(now, at.max(now), index);
    }
}

/// Stations are assigned to the budgets in turn.
fn budget(budgets: &[Budget], index: u32) -> Option<&Budget> {
    budgets.get(index as usize % budgets.len().max(1))
}
