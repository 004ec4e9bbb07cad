//! The process that makes the next call.

use crate::random_stream::Stream;

/// The number of processes drawn together.
const DRAWN_TOGETHER: usize = 16;

/// Draws the processes that make calls, one after the other. Several are drawn ahead, so that their state can be
/// prefetched together.
#[derive(Debug)]
pub(crate) struct Population {
    processes: u32,
    stream: Stream,
    /// The next process is behind the `left` first ones.
    drawn: [u32; DRAWN_TOGETHER],
    left: usize,
}

impl Population {
    pub(crate) const fn new(processes: u32, stream: Stream) -> Self {
        Self {
            processes,
            stream,
            drawn: [0; DRAWN_TOGETHER],
            left: 0,
        }
    }

    /// The process that makes the next call. `on_next_processes` gets the processes whose turns come soon.
    #[inline]
    pub(crate) fn next(&mut self, on_next_processes: impl FnOnce(&[u32])) -> u32 {
        if self.left == 0 {
            self.draw();
            on_next_processes(&self.drawn);
        }
        self.left -= 1;
        self.drawn[self.left]
    }

    fn draw(&mut self) {
        for process in self.drawn.iter_mut().rev() {
            *process = self.stream.below(self.processes);
        }
        self.left = DRAWN_TOGETHER;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_shown_before_their_turn_in_drawing_order() {
        let mut population = Population::new(1000, Stream::new(1, 2));
        let mut stream = Stream::new(1, 2);
        let mut shown = Vec::new();
        for _ in 0..3 * DRAWN_TOGETHER {
            let process = population.next(|soon| shown.extend_from_slice(soon));
            assert_eq!(process, stream.below(1000));
            let place = shown.iter().position(|other| *other == process);
            shown.remove(place.expect("it was shown"));
        }
        assert!(shown.is_empty());
    }
}
