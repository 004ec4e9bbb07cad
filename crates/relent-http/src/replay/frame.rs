//! Frames of a body in bytes.

use std::task::Poll;

use bytes::{Buf, Bytes};
use http_body::Frame;

use super::error::BoxError;

/// The frame with its data as `Bytes`, which is a copy unless they are already.
pub(super) fn in_bytes<D: Buf>(frame: Frame<D>) -> Frame<Bytes> {
    frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))
}

/// What polling a body has come to.
pub(super) type Polled = Poll<Option<Result<Frame<Bytes>, BoxError>>>;
