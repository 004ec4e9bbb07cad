//! Clients, their attempts and their events; their sizes are the memory that a client takes.

use relent_core::call::{Call, RaceAttempt};

use crate::cluster::Target;
use crate::random_stream::Stream;
use crate::slab::{Key, Linked};

/// An event of the simulation. An event has 12 bytes and a queue entry 24, so data that few events need is stored
/// elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A request is made.
    Request,
    /// A request of the backlog is made.
    Backlog,
    /// An outage begins or ends; the index is that of its span.
    Outage { index: u32, begins: bool },
    /// Processes are restarted.
    Restart(Processes),
    /// The wait of a call is over: it requests admission for its next attempt, or its caller goes away.
    Admit(Key),
    /// A hedge is to join the running attempts.
    Hedge(Key),
    /// An attempt reaches the layer below, which makes a call for it.
    Call { parent: Key, layer: u8, class: u8 },
    /// An attempt reaches the service.
    Reach(Key, Target),
    /// A write reaches the service: its number among [those in transit](Write).
    Write(u32),
    /// The service of an attempt ends.
    Served(Key, Target),
    /// A response reaches the caller of an attempt.
    Answer(Key, Reply),
    /// An attempt reaches its timeout.
    Timeout(Key),
}

/// The write of an attempt that has read this version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) attempt: Key,
    pub(crate) version: u64,
}

impl Linked for Write {
    fn link(&mut self) -> &mut u32 {
        &mut self.attempt.index
    }
}

/// A range of process numbers: `to` is exclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Processes {
    pub(crate) from: u32,
    pub(crate) to: u32,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    Success,
    /// An error or a rejection: it is unknown whether it was processed.
    Failure,
    /// A rejection with a Retry-After for all callers.
    Refused,
    /// Another caller has written the row.
    Conflict,
    /// The job is not completed.
    Pending,
    /// A limiter has rejected it: its Retry-After is stored with the attempt.
    Throttled,
    /// The layer below has given up, and its response has the no-retry marker.
    Exhausted,
}

/// The maker of a logical request at one layer: its size is the memory of a queued client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) call: Call<'static>,
    pub(crate) random: Stream,
    /// The attempt of the layer above for which it makes its call.
    pub(crate) parent: Key,
    /// Its key at a limiter, unique among the clients.
    pub(crate) number: u32,
    /// The last started of its running attempts.
    pub(crate) attempt: u32,
    /// The index of its destination.
    pub(crate) destination: u32,
    pub(crate) layer: u8,
    /// The class of its request.
    pub(crate) class: u8,
}

impl Linked for Client {
    fn link(&mut self) -> &mut u32 {
        &mut self.attempt
    }
}

/// No client, or no attempt.
pub(crate) const NO_CLIENT_OR_ATTEMPT: u32 = u32::MAX;

/// An attempt that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    pub(crate) client: u32,
    /// The previous one of the client's running attempts.
    pub(crate) next: u32,
    /// The client of the layer below that makes the call for it.
    pub(crate) child: u32,
    /// The state that the call needs of it, if hedges may join.
    pub(crate) racer: Option<RaceAttempt>,
}

impl Linked for Attempt {
    fn link(&mut self) -> &mut u32 {
        &mut self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Queue;
    use crate::slab::Slab;

    #[test]
    fn a_waiting_simulated_client_takes_at_most_172_bytes() {
        // The client and its event. A waiting client has no attempt.
        let bytes = Slab::<Client>::ENTRY + Queue::<Event>::ENTRY;
        assert!(bytes <= 172, "{bytes}");
    }
}
