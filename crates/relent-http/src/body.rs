//! Bodies: of requests, which can be sent again ([`Replay`], [`Content`]), and what remains of those of
//! responses ([`NotKept`], [`Truncated`], [`UnknownTransferCoding`]).

pub use crate::complete::{Truncated, UnknownTransferCoding};
pub use crate::drained::NotKept;
pub use crate::replay::{ByType, Content, NotReplayable, Reopen, Replay, ReplayBody, Superseded};
