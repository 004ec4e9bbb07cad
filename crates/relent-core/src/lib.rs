//! core
#![no_std]
extern crate alloc;
mod failure; mod hint; mod time;
pub use failure::{Cause, Failure, Kind, Network};
pub use hint::{Advice, Audience, Hint, HintMode, HintSource};
pub use time::Instant;
