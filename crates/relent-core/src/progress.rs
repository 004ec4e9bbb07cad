//! How far a transfer must come for a failed attempt to count as progress.

/// The bytes that a transfer has gained since progress was last counted.
///
/// A transfer that is cut off again and again, but goes on where it ended, does not repeat itself:
/// each attempt delivers what no attempt before has delivered. So after progress the count of retries
/// and the backoff begin anew ([`Session::on_progress`](crate::Session::on_progress)).
///
/// Progress is at least 1 MiB, or a sixteenth of the whole if that is less. So a whole of T bytes
/// counts progress at most max(16, T / 1 MiB) times, and a server that yields a few bytes per
/// attempt holds nobody for ever. A megabyte takes about as long as a new connection and its slow start, so
/// the attempts add at most a small factor to what the transfer costs. The sixteenth lets small files
/// through that are cut often. Attempts that bring less than that add up.
///
/// ```
/// use relent_core::Progress;
///
/// let total = Some(1 << 30);
/// let mut progress = Progress::new(0);
/// assert!(!progress.reached(1_000_000, total));
/// assert!(progress.reached(2_000_000, total));
/// assert!(!progress.reached(2_000_000, total), "what was counted is not counted again");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// The position at which progress was last counted.
    counted: u64,
}

impl Progress {
    /// The most bytes that it takes.
    pub const BYTES: u64 = 1 << 20;
    /// The share of the whole that it takes if that is less: one part of so many.
    pub const PARTS: u64 = 16;

    /// Begins with so many bytes there.
    #[must_use]
    pub const fn new(position: u64) -> Self {
        Self { counted: position }
    }

    /// An attempt has left the transfer at `position`, of `total` bytes if that is known. Whether
    /// that is progress. A transfer that began anew makes none until it is beyond where it was.
    pub const fn reached(&mut self, position: u64, total: Option<u64>) -> bool {
        let least = match total {
            Some(total) if total / Self::PARTS < Self::BYTES => total / Self::PARTS,
            _ => Self::BYTES,
        };
        let gained = position.saturating_sub(self.counted);
        if gained == 0 || gained < least {
            return false;
        }
        self.counted = position;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn progress_is_a_mebibyte_or_a_sixteenth_of_the_whole() {
        let reached = |position, total| Progress::new(0).reached(position, total);
        assert!(reached(1 << 20, None) && !reached((1 << 20) - 1, None));
        assert!(reached(1 << 20, Some(1 << 40)) && !reached((1 << 20) - 1, Some(1 << 40)));
        assert!(reached(10, Some(160)) && !reached(9, Some(160)));
    }

    #[test]
    fn attempts_that_bring_little_add_up() {
        let mut progress = Progress::new(0);
        let reached = [400, 800, 1_200, 1_600].map(|kib| progress.reached(kib << 10, None));
        assert_eq!(reached, [false, false, true, false]);
    }

    #[test]
    fn beginning_anew_is_no_progress_until_it_is_beyond_what_was_there() {
        let mut progress = Progress::new(0);
        assert!(progress.reached(5 << 20, None));
        assert!(!progress.reached(5 << 20, None));
        assert!(!progress.reached(0, None));
        assert!(progress.reached(6 << 20, None));
    }

    #[test]
    fn no_bytes_are_never_progress() {
        for total in [None, Some(0), Some(15)] {
            assert!(!Progress::new(0).reached(0, total));
            assert!(!Progress::new(7).reached(7, total));
        }
    }

    proptest! {
        #[test]
        fn a_whole_counts_progress_at_most_so_often(total in 1u64..64 << 20, steps in proptest::collection::vec(1u64..4 << 20, 0..200)) {
            let (mut progress, mut position, mut counted) = (Progress::new(0), 0, 0);
            for step in steps {
                position = (position + step).min(total);
                counted += u64::from(progress.reached(position, Some(total)));
            }
            // A total that sixteen does not divide has one more part.
            prop_assert!(counted <= total.min(Progress::PARTS + 15).max(total / Progress::BYTES));
        }
    }
}
