//! A client and its attempts, and what can happen to them: what a client costs in memory.

use relent_core::{Call, Entered, Racer};

use crate::cluster::Target;
use crate::slab::{Key, Linked};
use crate::stream::Stream;

/// What can happen. An event has 12 bytes, and an entry of the queue 24: what few of them carry beside stands
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
    /// The wait of a call is over: it asks to make its next attempt, or its caller goes away.
    Ask(Key),
    /// A hedge is to join the attempts that run.
    Hedge(Key),
    /// An attempt reaches the layer below, which makes a call of it.
    Call { parent: Key, layer: u8, class: u8 },
    /// An attempt reaches the service.
    Reach(Key, Target),
    /// A write reaches the service: it has this number among [those on their way](Write).
    Write(u32),
    /// The service of an attempt ends.
    Served(Key, Target),
    /// An answer reaches the caller of an attempt.
    Answer(Key, Reply),
    /// An attempt has lasted as long as it may.
    Timeout(Key),
}

/// What an attempt writes that has read this version.
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

/// Processes by their numbers: from the first to before the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Processes {
    pub(crate) from: u32,
    pub(crate) to: u32,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    Success,
    /// An error or a refusal: nobody knows whether it was processed.
    Failure,
    /// A refusal that says after which time everybody may come back.
    Refused,
    /// Somebody else has written the row.
    Conflict,
    /// The job is not done.
    Pending,
    /// A limiter has refused it: what it says about time stands beside the attempt.
    Throttled,
    /// The layer below has given up, and says so.
    Exhausted,
}

/// Who makes a logical request at one layer: what a parked client costs.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) call: Call<'static, Option<Entered>>,
    pub(crate) random: Stream,
    /// The attempt of the layer above that its call is.
    pub(crate) parent: Key,
    /// What a limiter knows it by: no other client has the same.
    pub(crate) number: u32,
    /// The attempt that started last, of those that run.
    pub(crate) attempt: u32,
    /// The destination, as its process and layer know it.
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
pub(crate) const NOBODY: u32 = u32::MAX;

/// An attempt that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    pub(crate) client: u32,
    /// The one that started before, of those of the client that run.
    pub(crate) next: u32,
    /// The client of the layer below that makes its call.
    pub(crate) child: u32,
    /// What the call has to know of it, if hedges may join.
    pub(crate) racer: Option<Racer>,
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
    fn a_client_that_waits_takes_at_most_172_bytes_beside_its_place_at_the_destination() {
        // The client and its event. One that waits has no attempt.
        let bytes = Slab::<Client>::ENTRY + Queue::<Event>::ENTRY;
        assert!(bytes <= 172, "{bytes}");
    }
}
