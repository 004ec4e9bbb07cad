//! A body that was kept whole.

use std::collections::VecDeque;

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;

/// What is left to read of a body that was kept whole. The bytes are shared.
pub(super) struct Kept {
    parts: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
}

impl Kept {
    pub(super) fn new(parts: Vec<Bytes>, trailers: Option<HeaderMap>) -> Self {
        Self {
            parts: parts.into(),
            trailers,
        }
    }

    pub(super) fn next(&mut self) -> Option<Frame<Bytes>> {
        let part = self.parts.pop_front().map(Frame::data);
        part.or_else(|| self.trailers.take().map(Frame::trailers))
    }

    pub(super) fn is_end(&self) -> bool {
        self.parts.is_empty() && self.trailers.is_none()
    }

    /// Bytes of content.
    pub(super) fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }
}
