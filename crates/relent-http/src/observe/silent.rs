//! Replacement for spans without the feature `tracing`: does nothing.

use http::StatusCode;
use http::{HeaderMap, Method, Uri};
use relent_core::{Failure, StopReason};

/// The span of an attempt; without the feature `tracing` it does nothing.
#[derive(Debug)]
pub struct AttemptSpan;

impl AttemptSpan {
    /// Does nothing.
    #[inline]
    #[must_use]
    pub fn start(_: &Method, _: &Uri, _: &HeaderMap, _: u32) -> Self {
        Self
    }

    /// Does nothing.
    #[inline]
    #[must_use]
    pub fn of<'m>(_: impl FnOnce() -> Option<(&'m Method, Uri)>, _: u32) -> Self {
        Self
    }

    /// Does nothing.
    #[inline]
    #[must_use]
    pub fn enter(&self) -> impl Sized {}

    /// Does nothing.
    #[inline]
    pub fn answered(&mut self, _: StatusCode, _: Option<&Failure>) {}

    /// Does nothing.
    #[inline]
    pub fn failed(&mut self, _: &Failure) {}
}

/// Does nothing.
#[inline]
pub fn not_retried(_: StopReason) {}

#[cfg(feature = "tower")]
#[inline]
pub(crate) fn not_ready() {}
