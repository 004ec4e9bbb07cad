//! Results of attempts: those to be written to the store, and those being written.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::store_calls::MAX_CALL_ITEMS;
use crate::store::{AfterAttempt, Settled};

/// A result to be written.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) settled: Settled,
    /// It changes the endpoint's health, which is written in its state at that time: a delayed result may be written
    /// after later ones.
    pub(super) changes_health: bool,
    /// An earlier call for it failed, but may have taken effect.
    pub(super) is_repeated: bool,
    /// The number of lease losses at the end of the attempt.
    pub(super) lost: u64,
    pub(super) ended: Instant,
}

/// The results that the store does not have yet.
#[derive(Debug)]
pub(super) struct Results {
    waiting: VecDeque<Pending>,
    /// In the running call; and its start.
    writing: Vec<Pending>,
    began: Instant,
    /// The last call failed: nothing is claimed until one succeeds.
    has_failed: bool,
    /// The largest number of results in the next call.
    batch: usize,
}

/// A written result, or one that the store has rejected.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) pending: Pending,
    /// The time between the end of the attempt and the call.
    pub(super) waited: Duration,
    pub(super) is_written: bool,
}

impl Results {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            waiting: VecDeque::new(),
            writing: Vec::new(),
            began: now,
            has_failed: false,
            batch: MAX_CALL_ITEMS,
        }
    }

    /// Queues a result.
    pub(super) fn push(&mut self, pending: Pending) {
        self.waiting.push_back(pending);
    }

    /// Disables the endpoint of the last result with it.
    pub(super) fn disable(&mut self, reason: String) {
        if let Some(pending) = self.waiting.back_mut() {
            pending.settled.disable = Some(reason);
        }
    }

    /// Whether no result waits for the next call.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The number of results that are not written.
    pub(super) fn unwritten(&self) -> usize {
        self.waiting.len() + self.writing.len()
    }

    /// Whether the last call failed.
    pub(super) const fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Starts a call. `health` returns the new health of an endpoint for a result that changes it.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        health: impl Fn(&Settled) -> Option<Vec<u8>>,
    ) -> Vec<Settled> {
        let batch = self.waiting.len().min(self.batch);
        self.writing = self.waiting.drain(..batch).collect();
        self.began = now;
        let settled = self.writing.iter().map(|pending| {
            let mut settled = pending.settled.clone();
            settled.health = pending.changes_health.then(|| health(&settled)).flatten();
            if let AfterAttempt::Again(after) = &mut settled.next {
                // The delay counts from the end of the attempt, but the store counts from now.
                *after = after.saturating_sub(now.saturating_duration_since(pending.ended));
            }
            settled
        });
        settled.collect()
    }

    /// The call failed: its results are written again. If the store cannot write one of them, smaller batches let the
    /// others pass.
    pub(super) fn failed(&mut self) {
        self.has_failed = true;
        self.batch = (self.batch / 2).max(1);
        let repeated = std::mem::take(&mut self.writing).into_iter();
        self.waiting.extend(repeated.map(|pending| Pending {
            is_repeated: true,
            ..pending
        }));
    }

    /// The call succeeded, with whether the store has written each result.
    pub(super) fn succeeded(&mut self, written: &[bool]) -> Vec<Written> {
        self.has_failed = false;
        self.batch = (self.batch * 2).min(MAX_CALL_ITEMS);
        let results = std::mem::take(&mut self.writing).into_iter().enumerate();
        let results = results.map(|(at, pending)| Written {
            waited: self.began.saturating_duration_since(pending.ended),
            is_written: written.get(at) == Some(&true),
            pending,
        });
        results.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::store::Fence;

    const SECOND: Duration = Duration::from_secs(1);

    fn pending(row: i64, ended: Instant) -> Pending {
        Pending {
            settled: Settled {
                row,
                endpoint: 1,
                fence: Fence(1),
                revision: 1,
                number: 1,
                began: UNIX_EPOCH,
                ordered: false,
                next: AfterAttempt::Again(10 * SECOND),
                session: Vec::new(),
                attempt: None,
                health: None,
                disable: None,
            },
            changes_health: row == 1,
            is_repeated: false,
            lost: 0,
            ended,
        }
    }

    #[test]
    fn a_delay_counts_from_the_end_of_the_attempt_and_health_from_the_call() {
        let now = Instant::now();
        let mut results = Results::new(now);
        results.push(pending(1, now));
        results.push(pending(2, now + SECOND));
        results.disable("gone".to_owned());
        let settled = results.begin(now + 3 * SECOND, |_| Some(vec![7]));
        assert_eq!(settled[0].next, AfterAttempt::Again(7 * SECOND));
        assert_eq!(settled[1].next, AfterAttempt::Again(8 * SECOND));
        assert_eq!(
            (&settled[0].health, &settled[1].health),
            (&Some(vec![7]), &None)
        );
        assert_eq!(settled[0].disable, None);
        assert_eq!(settled[1].disable.as_deref(), Some("gone"));
        let written = results.succeeded(&[true]);
        assert_eq!(written[1].waited, 2 * SECOND);
        assert!(written[0].is_written && !written[1].is_written);
        assert_eq!(results.unwritten(), 0);
    }

    #[test]
    fn failed_results_are_written_again_in_smaller_batches() {
        let now = Instant::now();
        let mut results = Results::new(now);
        (0..600).for_each(|row| results.push(pending(row, now)));
        for batch in [512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1] {
            assert_eq!(results.begin(now, |_| None).len(), batch);
            results.failed();
            assert!(results.has_failed() && results.unwritten() == 600);
        }
        results.begin(now, |_| None);
        let written = results.succeeded(&[true]);
        assert!(written[0].pending.is_repeated && !results.has_failed());
        assert_eq!(results.begin(now, |_| None).len(), 2);
    }
}
