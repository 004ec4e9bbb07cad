//! The process that makes the next call.

use crate::stream::Stream;

/// The number of processes drawn together.
const TOGETHER: usize = 16;

/// Draws the processes that make calls, one after the other. Several are drawn ahead, so that their state can be
/// prefetched together.
#[derive(Debug)]
pub(crate) struct Population {
    processes: u32,
    stream: Stream,
    /// The next process is behind the `left` first ones.
    drawn: [u32; TOGETHER],
    left: usize,
}

impl Population {
    pub(crate) const fn new(processes: u32, stream: Stream) -> Self {
        Self {
            processes,
            stream,
            drawn: [0; TOGETHER],
            left: 0,
        }
    }

    /// The process that makes the next call. `foresee` gets the processes whose turns come soon.
    #[inline]
    pub(crate) fn next(&mut self, foresee: impl FnOnce(&[u32])) -> u32 {
        if self.left == 0 {
            self.draw();
            foresee(&self.drawn);
        }
        self.left -= 1;
        self.drawn[self.left]
    }

    fn draw(&mut self) {
        for process in self.drawn.iter_mut().rev() {
            *process = self.stream.below(self.processes);
        }
        self.left = TOGETHER;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_shown_before_its_turn_and_comes_as_it_is_drawn() {
        let mut population = Population::new(1000, Stream::new(1, 2));
        let mut stream = Stream::new(1, 2);
        let mut shown = Vec::new();
        for _ in 0..3 * TOGETHER {
            let process = population.next(|soon| shown.extend_from_slice(soon));
            assert_eq!(process, stream.below(1000));
            let place = shown.iter().position(|other| *other == process);
            shown.remove(place.expect("it was shown"));
        }
        assert!(shown.is_empty());
    }
}
