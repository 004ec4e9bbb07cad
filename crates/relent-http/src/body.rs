//! Request bodies that can be sent again ([`Replay`], [`Content`]), and errors of response
//! bodies ([`NotKept`], [`Truncated`], [`UnknownTransferCoding`]).

pub use crate::complete::{Truncated, UnknownTransferCoding};
pub use crate::drained_body::NotKept;
pub use crate::replay::{ByType, Content, NotReplayable, Reopen, Replay, ReplayBody, Superseded};
