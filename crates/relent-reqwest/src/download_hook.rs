//! Hooks into the attempts of a download.

use std::time::Duration;

use http::{Request, Response};
use relent::Attempt;
use relent::hook::Queued;

use crate::body::Body;
use crate::failed::Failed;

/// Hears what happens to a download that [runs](crate::Download::run): for whoever shows it to a person. `()`
/// hears nothing.
pub trait DownloadHook {
    /// An attempt starts.
    fn before_attempt(&mut self, attempt: Attempt) {
        let _ = attempt;
    }

    /// The attempt of this number has failed. The next starts after `wait`, unless it is
    /// [queued](Self::queued) then; `None` says that there is no other.
    fn after_failure(&mut self, attempt: u32, failed: &Failed, wait: Option<Duration>) {
        let _ = (attempt, failed, wait);
    }

    /// The attempt that is due is queued at its destination: by which control, and for how long at most.
    fn queued(&mut self, queued: &Queued) {
        let _ = queued;
    }

    /// The request to which a complete response leads, as a part of the same attempt: for redirects that
    /// the client does not follow. It takes the place of the one before, also for the attempts that
    /// follow.
    fn follow(&mut self, head: &Response<()>) -> Option<Request<Body>> {
        let _ = head;
        None
    }
}

impl DownloadHook for () {}
