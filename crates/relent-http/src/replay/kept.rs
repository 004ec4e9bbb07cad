//! A body that was kept completely.

use std::collections::VecDeque;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};

/// The unread rest of a body that was kept completely. The bytes are shared.
pub(super) struct Kept {
    parts: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    /// Whether its length may be reported.
    tells_length: bool,
}

impl Kept {
    pub(super) fn new(parts: Vec<Bytes>, trailers: Option<HeaderMap>, tells_length: bool) -> Self {
        Self {
            parts: parts.into(),
            trailers,
            tells_length,
        }
    }

    pub(super) fn next(&mut self) -> Option<Frame<Bytes>> {
        let part = self.parts.pop_front().map(Frame::data);
        part.or_else(|| self.trailers.take().map(Frame::trailers))
    }

    pub(super) fn is_end(&self) -> bool {
        self.parts.is_empty() && self.trailers.is_none()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let length = self.parts.iter().map(|part| part.len() as u64).sum();
        let mut hint = SizeHint::new();
        hint.set_lower(length);
        if self.tells_length {
            hint.set_upper(length);
        }
        hint
    }
}
