//! A body that is kept while it streams to the server (design rule 9).

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use http_body::Body;
use relent_http::{Reopen, Replay, ReplayBody};

/// A stream of reqwest's, which can be read once, and what was kept of it meanwhile, for more attempts.
#[derive(Clone)]
pub(crate) struct Streamed(Arc<Mutex<Kept>>);

struct Kept {
    replay: Replay<reqwest::Body>,
    /// The body of the first attempt, until it is sent.
    first: Option<ReplayBody<reqwest::Body>>,
}

impl Streamed {
    /// Keeps up to `cap` bytes. `length` is what a header says of it, if one does.
    pub(crate) fn new(body: reqwest::Body, cap: usize, length: Option<u64>) -> Self {
        let (mut replay, first) = Replay::new(body, &Known, cap);
        if let Some(length) = length {
            replay.announce(length);
        }
        let first = Some(first);
        Self(Arc::new(Mutex::new(Kept { replay, first })))
    }

    /// The body of the next attempt.
    ///
    /// # Errors
    /// When it cannot be sent again.
    pub(crate) fn open(&self) -> io::Result<reqwest::Body> {
        self.with(|kept| match kept.first.take() {
            Some(first) => Ok(first),
            None => kept.replay.again(&Known).map_err(io::Error::other),
        })
        .map(reqwest::Body::wrap)
    }

    /// Whether the last attempt, which has failed, leaves a body for another. `answered`: the server
    /// has sent a response.
    pub(crate) fn take_back(&self, answered: bool) -> bool {
        self.with(|kept| kept.first.is_some() || kept.replay.take_back(answered).is_ok())
    }

    fn with<T>(&self, with: impl FnOnce(&mut Kept) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Knows the content of a body that holds bytes.
struct Known;

impl Reopen<reqwest::Body> for Known {
    /// The bytes are to be had, uncopied, only by reading them.
    fn reopen(&self, body: &mut reqwest::Body) -> Option<reqwest::Body> {
        body.as_bytes()?;
        let mut context = Context::from_waker(Waker::noop());
        let content = match Pin::new(&mut *body).poll_frame(&mut context) {
            Poll::Ready(Some(Ok(frame))) => frame.into_data().ok()?,
            _ => return None,
        };
        *body = reqwest::Body::from(content.clone());
        Some(reqwest::Body::from(content))
    }
}

impl fmt::Debug for Streamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Streamed")
    }
}
