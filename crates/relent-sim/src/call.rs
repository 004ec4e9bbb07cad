//! A call and its attempts, and what can happen to them: what a client costs in memory.

use relent_core::{Permit, Session};

use crate::slab::Key;
use crate::stream::Stream;
use crate::wait_header::WaitHeader;

/// What can happen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A request is made.
    Request,
    /// A request of the backlog is made.
    Backlog,
    /// An outage begins or ends; the index is that of the outage.
    Outage { index: u32, begins: bool },
    /// The wait of a call is over: it asks to make its next attempt, or its caller goes away.
    Ask(Key),
    /// A process may let somebody go who waits.
    Release(u32),
    /// An attempt reaches the layer below, which makes a call of it.
    Call { parent: Key, layer: u8 },
    /// An attempt reaches the service.
    Reach(Key),
    /// The write of an attempt that has read this version reaches the service.
    Write(Key, u64),
    /// The service of an attempt ends.
    Served(Key),
    /// An answer reaches the caller of an attempt.
    Answer(Key, Reply),
    /// An attempt has lasted as long as it may.
    Timeout(Key),
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
    Throttled(WaitHeader),
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
    pub(crate) number: u64,
    /// When its job is done.
    pub(crate) done: u64,
    /// The attempt of the layer above that this call is.
    pub(crate) parent: Key,
    /// The attempt that runs.
    pub(crate) attempt: Key,
    /// The destination as its process and layer know it.
    pub(crate) destination: u32,
    pub(crate) layer: u8,
    /// Whether it waits for leave to make the next attempt.
    pub(crate) waits: bool,
}

/// An attempt that runs.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) call: u32,
    /// The call of the layer below that it is.
    pub(crate) child: u32,
    pub(crate) permit: Option<Permit>,
}

impl Attempt {
    pub(crate) const NO_CHILD: u32 = u32::MAX;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Queue;
    use crate::slab::Slab;

    #[test]
    fn a_parked_client_takes_at_most_200_bytes() {
        // The call and its event. A parked client has no attempt.
        let bytes = Slab::<Call>::ENTRY + Queue::<Event>::ENTRY;
        assert!(bytes <= 200, "{bytes}");
    }
}
