//! No spans.

use http::StatusCode;
use http::{HeaderMap, Method, Uri};
use relent_core::{Failure, StopReason};

/// What the span of an attempt is without the feature `tracing`: nothing.
#[derive(Debug)]
pub struct AttemptSpan;

impl AttemptSpan {
    /// Nothing starts.
    #[inline]
    #[must_use]
    pub fn start(_: &Method, _: &Uri, _: &HeaderMap, _: u32) -> Self {
        Self
    }

    /// Nothing starts.
    #[inline]
    #[must_use]
    pub fn of<'m>(_: impl FnOnce() -> Option<(&'m Method, Uri)>, _: u32) -> Self {
        Self
    }

    /// Nothing is entered.
    #[inline]
    #[must_use]
    pub fn enter(&self) -> impl Sized {}

    /// Nothing is recorded.
    #[inline]
    pub fn answered(&mut self, _: StatusCode, _: Option<&Failure>) {}

    /// Nothing is recorded.
    #[inline]
    pub fn failed(&mut self, _: &Failure) {}
}

/// Nothing is recorded.
#[inline]
pub fn not_retried(_: StopReason) {}

#[cfg(feature = "tower")]
#[inline]
pub(crate) fn not_ready() {}
