//! Restarts of client processes: their requests end without a response, and their learned state is lost.

use super::World;
use crate::client::{Processes, Reply};
use crate::scenario::Restart;

/// The most steps of a gradual restart.
const MAX_STEPS: u32 = 100;

impl Restart {
    /// The times of the restart, each with its processes.
    pub(super) fn parts(&self, processes: u32) -> Vec<(u64, Processes)> {
        let steps = match (self.processes.len(), self.over) {
            (0, 0) => 1,
            (0, _) => processes.min(MAX_STEPS),
            (named, _) => named as u32,
        };
        // The part of `all` that is completed after this many steps.
        let share = |all: u64, step: u32| all * u64::from(step) / u64::from(steps);
        let part = |step: u32| {
            let at = self.at + share(self.over, step);
            let (from, to) = match self.processes.get(step as usize) {
                Some(one) => (*one, one + 1),
                None => {
                    let process = |step| share(u64::from(processes), step) as u32;
                    (process(step), process(step + 1))
                }
            };
            (at, Processes { from, to })
        };
        (0..steps).map(part).collect()
    }
}

impl World<'_> {
    /// The processes are restarted.
    pub(super) fn restart(&mut self, now: u64, processes: Processes) {
        let restarted = processes.from..processes.to;
        for index in self.clients.taken() {
            let client = &self.clients[index];
            if client.layer == 0 && restarted.contains(&self.process(index)) {
                self.end(now, index, Some(Reply::Failure));
            }
        }
        let destinations_per_layer = u32::from(super::destinations_per_layer(self.scenario));
        for destination in
            processes.from * destinations_per_layer..processes.to * destinations_per_layer
        {
            self.destinations.renew(self.policy, destination);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_is_restarted_once_in_at_most_a_hundred_steps() {
        for (processes, over, steps) in [(1, 5, 1), (7, 0, 1), (7, 70, 7), (1234, 1000, 100)] {
            let restart = Restart {
                at: 3,
                over,
                processes: Vec::new(),
            };
            let parts = restart.parts(processes);
            assert_eq!(parts.len(), steps);
            assert!(parts.iter().all(|(at, _)| (3..=3 + over).contains(at)));
            let mut next = 0;
            for (_, part) in parts {
                assert_eq!(part.from, next);
                next = part.to;
            }
            assert_eq!(next, processes);
        }
    }

    #[test]
    fn single_processes_are_restarted_in_the_given_order() {
        let restart = Restart {
            at: 10,
            over: 6,
            processes: vec![4, 0, 2],
        };
        let parts: Vec<(u64, u32, u32)> = restart
            .parts(9)
            .into_iter()
            .map(|(at, part)| (at, part.from, part.to))
            .collect();
        assert_eq!(parts, [(10, 4, 5), (12, 0, 1), (14, 2, 3)]);
    }
}
