//! Callbacks for the attempts of a download.

use std::time::Duration;

use http::{Request, Response};
use relent::Attempt;
use relent::hook::Queued;

use crate::attempt_failure::FailedAttempt;
use crate::body::Body;

/// Callbacks for a download that is [run](crate::Download::run), to show its progress. `()` ignores all events.
pub trait DownloadHook {
    /// Called when an attempt starts.
    fn before_attempt(&mut self, attempt: Attempt) {
        let _ = attempt;
    }

    /// Called when the attempt of this number has failed. The next one starts after the delay, unless it is
    /// [queued](Self::queued) then; `None` means that no attempt follows.
    fn after_failure(&mut self, attempt: u32, failed: &FailedAttempt, next: Option<NextDelay>) {
        let _ = (attempt, failed, next);
    }

    /// Called when the next attempt is due but queued, with the cause and the maximum time.
    fn queued(&mut self, queued: &Queued) {
        let _ = queued;
    }

    /// Returns the next request after a complete response, for redirects that the client does not follow.
    ///
    /// That request belongs to the same attempt, and replaces the previous one for later attempts, too.
    fn follow(&mut self, head: &Response<()>) -> Option<Request<Body>> {
        let _ = head;
        None
    }
}

impl DownloadHook for () {}

/// The delay before the next attempt of a download.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NextDelay {
    /// The delay.
    pub delay: Duration,
    /// Whether it is shorter than the policy's, so that a
    /// [final attempt](relent::policy::PolicyBuilder::final_attempt_before_deadline) fits before a time limit.
    pub is_shortened: bool,
}
