//! Where the body of a response goes.

use std::future::ready;
use std::io;

use bytes::Bytes;
use http::Response;

use super::resume::Resumable;

/// Where the body of a response goes.
///
/// It hears [`start`](Self::start), then [`write`](Self::write) for each piece in order, and
/// [`complete`](Self::complete) when all of it is there. If the response begins anew it hears `start`
/// again: what was written before is void then. If it goes on where it was cut off it hears
/// [`resume`](Self::resume), and then the rest by `write`.
///
/// A response without a representation, such as a 304, has nothing to start: the sink hears
/// [`no_content`](Self::no_content) and nothing else of it.
///
/// A call is never cut off by an attempt timeout. A call that is dropped with its attempt leaves it
/// open what the sink has got; the next attempt begins anew then.
pub trait Sink {
    /// A response begins. If it is `resumable` and is cut short, the rest will be asked for, and only
    /// when that fails begins it anew. What names it can be stored before any byte, to go on in another
    /// process by [`Download::resume`](super::Download::resume).
    ///
    /// # Errors
    /// Ends the download with [`AttemptError::Sink`](super::AttemptError::Sink).
    fn start(
        &mut self,
        head: &Response<()>,
        resumable: Option<&Resumable>,
    ) -> impl Future<Output = io::Result<()>> + Send;

    /// The response goes on after its first `from` bytes, which the sink has. `head` is that of the
    /// 206. `resumable` is what names the representation, if anything does. Does nothing unless it is
    /// implemented.
    ///
    /// # Errors
    /// Ends the download with [`AttemptError::Sink`](super::AttemptError::Sink).
    fn resume(
        &mut self,
        head: &Response<()>,
        from: u64,
        resumable: Option<&Resumable>,
    ) -> impl Future<Output = io::Result<()>> + Send {
        let _ = (head, from, resumable);
        ready(Ok(()))
    }

    /// More of the body.
    ///
    /// # Errors
    /// Ends the download with [`AttemptError::Sink`](super::AttemptError::Sink).
    fn write(&mut self, bytes: Bytes) -> impl Future<Output = io::Result<()>> + Send;

    /// All of the body has been written: the time to flush. It is a part of the attempt. Does nothing
    /// unless it is implemented.
    ///
    /// # Errors
    /// Ends the download with [`AttemptError::Sink`](super::AttemptError::Sink).
    fn complete(&mut self) -> impl Future<Output = io::Result<()>> + Send {
        ready(Ok(()))
    }

    /// The response has no representation: it answers a HEAD, or its status is 204, 205 or 304. What
    /// is there from before the download is not replaced by it; what an earlier attempt of this
    /// download has written is void. Does nothing unless it is implemented.
    ///
    /// # Errors
    /// Ends the download with [`AttemptError::Sink`](super::AttemptError::Sink).
    fn no_content(&mut self, head: &Response<()>) -> impl Future<Output = io::Result<()>> + Send {
        let _ = head;
        ready(Ok(()))
    }

    /// Whether what was written can be made void. Bytes that have left cannot be called back; a
    /// download that would have to begin anew ends with
    /// [`StopReason::NotReplayable`](relent_core::StopReason::NotReplayable) then.
    fn can_start_over(&self) -> bool {
        true
    }
}

impl Sink for Vec<u8> {
    async fn start(&mut self, _: &Response<()>, _: Option<&Resumable>) -> io::Result<()> {
        self.clear();
        Ok(())
    }

    async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        self.extend_from_slice(&bytes);
        Ok(())
    }

    async fn no_content(&mut self, _: &Response<()>) -> io::Result<()> {
        self.clear();
        Ok(())
    }
}
