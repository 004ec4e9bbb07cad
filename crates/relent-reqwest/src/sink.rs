//! Where the body of a response goes.

use std::fmt;
use std::future::ready;
use std::io;

use bytes::Bytes;
use http::Response;
use tokio::fs::File;
use tokio::io::{AsyncSeekExt, AsyncWrite, AsyncWriteExt};

use crate::resumable::Resumable;

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
/// A call is never cut off by an attempt timeout, but by the deadline of the policy, after which there
/// is no other attempt. A call that is dropped with its attempt leaves it open what the sink has got;
/// the next attempt begins anew then.
pub trait Sink {
    /// A response begins. If it is `resumable` and is cut short, the rest will be asked for, and only
    /// when that fails begins it anew. What names it can be stored before any byte, to go on in another
    /// process by [`Download::resume`](crate::Download::resume).
    ///
    /// # Errors
    /// Ends the download with [`AttemptError::Sink`](crate::AttemptError::Sink).
    fn start(
        &mut self,
        head: &Response<()>,
        resumable: Option<&Resumable>,
    ) -> impl Future<Output = io::Result<()>> + Send;

    /// The response goes on after its first `from` bytes, which the sink has. `head` is that of the
    /// 206. `resumable` is what names the representation, if anything does: it can differ from what
    /// [`start`](Self::start) was given, since a signed URL is another one each time. Does nothing
    /// unless it is implemented.
    ///
    /// # Errors
    /// Ends the download with [`AttemptError::Sink`](crate::AttemptError::Sink).
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
    /// Ends the download with [`AttemptError::Sink`](crate::AttemptError::Sink).
    fn write(&mut self, bytes: Bytes) -> impl Future<Output = io::Result<()>> + Send;

    /// All of the body has been written: the time to flush. It is a part of the attempt. Does nothing
    /// unless it is implemented.
    ///
    /// # Errors
    /// Ends the download with [`AttemptError::Sink`](crate::AttemptError::Sink).
    fn complete(&mut self) -> impl Future<Output = io::Result<()>> + Send {
        ready(Ok(()))
    }

    /// The response has no representation: it answers a HEAD, or its status is 204, 205 or 304. What
    /// is there from before the download is not replaced by it. No body has begun in this download.
    /// Does nothing unless it is implemented.
    ///
    /// # Errors
    /// Ends the download with [`AttemptError::Sink`](crate::AttemptError::Sink).
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

/// A file is written from its beginning, and is as long as the response: what was in it before is gone
/// with the first response that begins. If the response goes on where an earlier call has ended, so
/// does the file. A success without a representation, such as a 304, leaves it alone.
///
/// The bytes are with the system when the download is over. To have them on the disk call
/// [`File::sync_all`]. To have a file that is whole or as it was, download into a temporary file beside
/// it, and rename that.
///
/// ```no_run
/// # async fn example(client: relent_reqwest::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let mut file = tokio::fs::File::create("large.tmp").await?;
/// let (head, _) = client.get("https://example.com/large").download(&mut file).await?;
/// if head.status().is_success() {
///     file.sync_all().await?;
///     tokio::fs::rename("large.tmp", "large").await?;
/// }
/// # Ok(())
/// # }
/// ```
impl Sink for File {
    async fn start(&mut self, _: &Response<()>, _: Option<&Resumable>) -> io::Result<()> {
        cut_to(self, 0).await
    }

    async fn resume(
        &mut self,
        _: &Response<()>,
        from: u64,
        _: Option<&Resumable>,
    ) -> io::Result<()> {
        cut_to(self, from).await
    }

    async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        self.write_all(&bytes).await
    }

    async fn complete(&mut self) -> io::Result<()> {
        self.flush().await
    }
}

/// Makes a file so long, and writes on at its end. What was written before may be on its way still.
async fn cut_to(file: &mut File, length: u64) -> io::Result<()> {
    file.flush().await?;
    file.set_len(length).await?;
    file.seek(io::SeekFrom::Start(length)).await?;
    Ok(())
}

/// Passes a body on to any [`AsyncWrite`], such as a socket, a pipe or an encoder.
///
/// What has been written cannot be called back. So a response that is cut short goes on if it can be
/// resumed; if it would have to begin anew, the download ends with
/// [`StopReason::NotReplayable`](relent_core::StopReason::NotReplayable). The body of a status that
/// says failure is written too; to see the status first, use
/// [`RequestBuilder::send`](crate::RequestBuilder::send). The writer is flushed at the end, and not
/// shut down.
///
/// ```no_run
/// # async fn example(client: relent_reqwest::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use relent_reqwest::ToWriter;
///
/// let mut stdout = ToWriter::new(tokio::io::sink());
/// client.get("https://example.com/large").download(&mut stdout).await?;
/// println!("{} bytes have left", stdout.written());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ToWriter<W> {
    writer: W,
    written: u64,
}

impl<W> ToWriter<W> {
    /// Passes a body on to this writer.
    #[must_use]
    pub const fn new(writer: W) -> Self {
        Self { writer, written: 0 }
    }

    /// The bytes that were handed to the writer.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// The writer.
    #[must_use]
    pub fn into_inner(self) -> W {
        self.writer
    }
}

impl<W: AsyncWrite + Unpin + Send> Sink for ToWriter<W> {
    async fn start(&mut self, _: &Response<()>, _: Option<&Resumable>) -> io::Result<()> {
        Ok(())
    }

    async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        // Counted first: of a write that is dropped nobody knows how much has left.
        self.written = self.written.saturating_add(bytes.len() as u64);
        self.writer.write_all(&bytes).await
    }

    async fn complete(&mut self) -> io::Result<()> {
        self.writer.flush().await
    }

    fn can_start_over(&self) -> bool {
        self.written == 0
    }
}

impl<W> fmt::Debug for ToWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToWriter")
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}
