//! The atomics: the processor's own, or, where it has none of 64 bits, those of `portable-atomic`.
//! Under `--cfg loom` they are loom's model of them.

#[cfg(all(not(loom), target_has_atomic = "64"))]
pub(crate) use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(all(not(loom), not(target_has_atomic = "64")))]
pub(crate) use {core::sync::atomic::Ordering, portable_atomic::AtomicU64};
