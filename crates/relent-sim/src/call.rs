//! A call and what can happen to it: what a client costs in memory.

use relent_core::{Permit, Session};

use crate::server::Who;
use crate::stream::Stream;
use crate::told::Told;

/// No call: of a parent, or a child.
pub(crate) const NOBODY: u32 = u32::MAX;

/// What can happen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A request is made.
    Request,
    /// A request of the backlog is made.
    Backlog,
    /// An outage begins or ends; the index is that of the outage.
    Outage { index: u32, begins: bool },
    /// A wait, or the way to the layer below, is over: the next attempt starts.
    Attempt(Who),
    /// An attempt reaches the service.
    Reach(Who),
    /// The write that follows a read reaches the service.
    Write(Who),
    /// A service ends.
    Served(Who),
    /// An answer reaches the caller of an attempt.
    Answer(Who, Reply),
    /// An attempt, or the wait for one, has lasted as long as it may.
    Limit(Who),
    /// A process may let somebody go who waits.
    Release(u32),
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    Success,
    /// An error or a refusal: nobody knows whether it was processed.
    Failure,
    /// Somebody else has written the row.
    Conflict,
    /// The job is not done.
    Pending,
    Throttled(Told),
    /// The layer below has given up, and says so.
    Exhausted,
}

/// A logical request at one layer: what a parked client costs.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) session: Session,
    pub(crate) random: Stream,
    pub(crate) made: u64,
    /// What a limiter knows it by: no other call has the same.
    pub(crate) key: u64,
    /// The version of the row that was read, or when the job is done.
    pub(crate) note: u64,
    /// The attempt of the layer above that this call is.
    pub(crate) parent: Who,
    /// The call of the layer below that is this call's attempt.
    pub(crate) child: u32,
    pub(crate) budget: u32,
    pub(crate) layer: u8,
    /// Of the running attempt.
    pub(crate) permit: Option<Permit>,
    /// Whether it waits for leave to make the next attempt.
    pub(crate) waits: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Queue;

    #[test]
    fn a_parked_client_takes_at_most_200_bytes() {
        // The call, its stamp, its event, and its place in the list of free calls. All grow by
        // doubling, so as much again may be unused for a while; that is not counted.
        let beside = Queue::<Event>::ENTRY + 2 * size_of::<u32>();
        let bytes = size_of::<Call>() + beside;
        assert!(bytes <= 200, "{bytes}");
    }
}
