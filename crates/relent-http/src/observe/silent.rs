//! No spans.

use http::StatusCode;
#[cfg(feature = "tower")]
use http::{HeaderMap, Method, Uri};
use relent_core::Failure;

/// What the span of an attempt is without the feature `tracing`: nothing.
#[derive(Debug)]
pub(crate) struct AttemptSpan;

impl AttemptSpan {
    #[cfg(feature = "tower")]
    #[inline]
    pub(crate) fn start(_: &Method, _: &Uri, _: &HeaderMap, _: u32) -> Self {
        Self
    }

    #[cfg(feature = "reqwest")]
    #[inline]
    pub(crate) fn of(_: Option<(&http::Method, &reqwest::Url)>, _: u32) -> Self {
        Self
    }

    #[inline]
    #[must_use]
    pub(crate) fn enter(&self) -> impl Sized {}

    #[cfg(feature = "reqwest")]
    #[inline]
    pub(crate) fn around<F: Future>(&self, attempt: F) -> F {
        attempt
    }

    #[inline]
    pub(crate) fn answered(&mut self, _: StatusCode, _: Option<&Failure>) {}

    #[inline]
    pub(crate) fn failed(&mut self, _: &Failure) {}
}

#[cfg(feature = "tower")]
#[inline]
pub(crate) fn not_ready() {}
