//! Request bodies that are kept while they stream to the server.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use relent_http::attempt::Upload;
use relent_http::body::{ByType, Replay, ReplayBody};

/// A reqwest stream, which can be read only once, and the part kept for more attempts.
#[derive(Clone)]
pub(crate) struct Streamed(Arc<Mutex<KeptStream>>);

struct KeptStream {
    replay: Replay<reqwest::Body>,
    /// The body of the first attempt, until it is sent.
    first: Option<ReplayBody<reqwest::Body>>,
}

impl Streamed {
    /// Keeps up to `cap` bytes. `length` is the length in its header, if there is one.
    pub(crate) fn new(body: reqwest::Body, cap: usize, length: Option<u64>) -> Self {
        let (mut replay, first) = Replay::new(body, &ByType, cap);
        if let Some(length) = length {
            replay.announce(length);
        }
        let first = Some(first);
        Self(Arc::new(Mutex::new(KeptStream { replay, first })))
    }

    /// The body of the next attempt.
    ///
    /// # Errors
    /// If it cannot be sent again.
    pub(crate) fn open(&self) -> io::Result<reqwest::Body> {
        self.with(|kept| match kept.first.take() {
            Some(first) => Ok(first),
            None => kept.replay.again(&ByType).map_err(io::Error::other),
        })
        .map(reqwest::Body::wrap)
    }

    /// Whether the last attempt, which has failed, leaves a body for another one. `answered`: the server has sent a
    /// response.
    pub(crate) fn take_back(&self, answered: bool) -> bool {
        self.with(|kept| kept.first.is_some() || kept.replay.take_back(answered).is_ok())
    }

    /// The progress of the body in the current attempt.
    pub(crate) fn upload(&self) -> Upload {
        self.with(|kept| kept.replay.upload())
    }

    fn with<T>(&self, with: impl FnOnce(&mut KeptStream) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Streamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Streamed")
    }
}
