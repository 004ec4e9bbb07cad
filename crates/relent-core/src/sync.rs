//! Atomics and shared ownership: the processor's own atomics, those of `portable-atomic` where it
//! has none of 64 bits, or loom's model of them under `--cfg loom`.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU8, AtomicU32};
#[cfg(all(not(loom), target_has_atomic = "64"))]
pub(crate) use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
#[cfg(all(not(loom), not(target_has_atomic = "64")))]
pub(crate) use {core::sync::atomic::Ordering, portable_atomic::AtomicU64};

#[cfg(target_has_atomic = "ptr")]
pub(crate) use alloc::sync::Arc;
#[cfg(not(target_has_atomic = "ptr"))]
pub(crate) use portable_atomic_util::Arc;
/// A value with its own cache line, and the adjacent one that the processor prefetches.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct CacheAligned<T>(pub(crate) T);
