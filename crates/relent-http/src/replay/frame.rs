//! Frames of a body as `Bytes`.

use std::task::Poll;

use bytes::{Buf, Bytes};
use http_body::Frame;

use super::error::BoxError;

/// Converts the data of a frame to `Bytes`; copies unless they already are.
pub(super) fn in_bytes<D: Buf>(frame: Frame<D>) -> Frame<Bytes> {
    frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))
}

/// The result of polling a body.
pub(super) type PolledFrame = Poll<Option<Result<Frame<Bytes>, BoxError>>>;
