//! Progress of an interrupted transfer.

/// The bytes that a transfer has gained since its last counted progress.
///
/// A transfer that is interrupted repeatedly, but resumes where it ended, does not repeat work:
/// each attempt delivers new bytes. After progress, the retry count and the backoff therefore
/// restart ([`Session::on_progress`](crate::Session::on_progress)).
///
/// Progress is at least 1 MiB, or a sixteenth of the total if that is less. A total of T bytes thus
/// counts progress at most max(16, T / 1 MiB) times, and a server that sends a few bytes per
/// attempt cannot hold a client for ever. A mebibyte takes about as long as a new connection and
/// its slow start, so the attempts multiply the cost of a transfer by a small factor at most. The
/// sixteenth helps small files on unreliable connections. Smaller gains add up.
///
/// ```
/// use relent_core::call::Progress;
///
/// let total = Some(1 << 30);
/// let mut progress = Progress::new(0);
/// assert!(!progress.reached(1_000_000, total));
/// assert!(progress.reached(2_000_000, total));
/// assert!(!progress.reached(2_000_000, total), "what was counted is not counted again");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// The position of the last counted progress.
    counted: u64,
}

impl Progress {
    /// The number of bytes that always counts as progress: 1 MiB.
    pub const SUFFICIENT_BYTES: u64 = 1 << 20;
    /// The divisor of the total: a sixteenth of it suffices if that is less than [`SUFFICIENT_BYTES`](Self::SUFFICIENT_BYTES).
    pub const SUFFICIENT_FRACTION_DIVISOR: u64 = 16;

    /// Starts with this many bytes already transferred.
    #[must_use]
    pub const fn new(position: u64) -> Self {
        Self { counted: position }
    }

    /// Reports that an attempt ended at `position`, of `total` bytes if known. Returns whether that
    /// is progress. A restarted transfer makes none until it passes its previous position.
    pub const fn reached(&mut self, position: u64, total: Option<u64>) -> bool {
        let least = match total {
            Some(total) if total / Self::SUFFICIENT_FRACTION_DIVISOR < Self::SUFFICIENT_BYTES => {
                total / Self::SUFFICIENT_FRACTION_DIVISOR
            }
            _ => Self::SUFFICIENT_BYTES,
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
    fn small_gains_of_a_transfer_add_up_to_progress() {
        let mut progress = Progress::new(0);
        let reached = [400, 800, 1_200, 1_600].map(|kib| progress.reached(kib << 10, None));
        assert_eq!(reached, [false, false, true, false]);
    }

    #[test]
    fn a_restarted_transfer_makes_no_progress_until_it_passes_its_position() {
        let mut progress = Progress::new(0);
        assert!(progress.reached(5 << 20, None));
        assert!(!progress.reached(5 << 20, None));
        assert!(!progress.reached(0, None));
        assert!(progress.reached(6 << 20, None));
    }

    #[test]
    fn a_transfer_without_new_bytes_makes_no_progress() {
        for total in [None, Some(0), Some(15)] {
            assert!(!Progress::new(0).reached(0, total));
            assert!(!Progress::new(7).reached(7, total));
        }
    }

    proptest! {
        #[test]
        fn a_transfer_counts_progress_a_limited_number_of_times(total in 1u64..64 << 20, steps in proptest::collection::vec(1u64..4 << 20, 0..200)) {
            let (mut progress, mut position, mut counted) = (Progress::new(0), 0, 0);
            for step in steps {
                position = (position + step).min(total);
                counted += u64::from(progress.reached(position, Some(total)));
            }
            // A total that is not divisible by sixteen has one more part.
            prop_assert!(counted <= total.min(Progress::SUFFICIENT_FRACTION_DIVISOR + 15).max(total / Progress::SUFFICIENT_BYTES));
        }
    }
}
