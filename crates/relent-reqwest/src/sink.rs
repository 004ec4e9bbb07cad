//! Destinations of response bodies.

use std::fmt;
use std::future::ready;
use std::io;

use bytes::Bytes;
use http::Response;
use tokio::fs::File;
use tokio::io::{AsyncSeekExt, AsyncWrite, AsyncWriteExt};

use crate::resumable::Resumable;

/// Receives the body of a response.
///
/// A download calls [`start`](Self::start), then [`write`](Self::write) for each piece in order, and
/// [`complete`](Self::complete) when the body is whole. If the response restarts, `start` is called again, and
/// the bytes written before are void. If it resumes, [`resume`](Self::resume) is called, then `write` for the rest.
///
/// For a response without a representation, such as a 304, only [`no_content`](Self::no_content) is called.
///
/// The attempt timeout never cuts off a call; the deadline of the policy does, and no attempt follows then. If a
/// call is dropped together with its attempt, it is unknown how much was written, and the next attempt restarts.
pub trait Sink {
    /// Begins a response. If it is `resumable` and is cut short, the next attempt asks for the rest, and restarts
    /// only if that fails. Store `resumable` before any byte to continue in another process with
    /// [`Download::resume`](crate::Download::resume).
    ///
    /// # Errors
    /// Ends the download with [`AttemptError::Sink`](crate::AttemptError::Sink).
    fn start(
        &mut self,
        head: &Response<()>,
        resumable: Option<&Resumable>,
    ) -> impl Future<Output = io::Result<()>> + Send;

    /// Continues the response after its first `from` bytes, which the sink already has. `head` is that of the 206.
    /// `resumable` identifies the representation, if possible. It can differ from that of [`start`](Self::start),
    /// because a signed URL changes each time. The default does nothing.
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

    /// Writes the next piece of the body.
    ///
    /// # Errors
    /// Ends the download with [`AttemptError::Sink`](crate::AttemptError::Sink).
    fn write(&mut self, bytes: Bytes) -> impl Future<Output = io::Result<()>> + Send;

    /// Completes the body: all of it was written, and can be flushed. The call is a part of the attempt. The default
    /// does nothing.
    ///
    /// # Errors
    /// Ends the download with [`AttemptError::Sink`](crate::AttemptError::Sink).
    fn complete(&mut self) -> impl Future<Output = io::Result<()>> + Send {
        ready(Ok(()))
    }

    /// Reports a response without a representation: it answers a HEAD, or its status is 204, 205 or 304. It does
    /// not replace earlier content. No body has begun in this download. The default does nothing.
    ///
    /// # Errors
    /// Ends the download with [`AttemptError::Sink`](crate::AttemptError::Sink).
    fn no_content(&mut self, head: &Response<()>) -> impl Future<Output = io::Result<()>> + Send {
        let _ = head;
        ready(Ok(()))
    }

    /// Whether written bytes can be made void. If not, a download that would have to restart ends with
    /// [`StopReason::NotReplayable`](relent_core::StopReason::NotReplayable).
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
}

/// Writes the response to a file, from its beginning. Earlier content is removed when the first response begins.
///
/// If the response continues an earlier call, the file continues, too. A success without a representation, such as
/// a 304, does not change the file.
///
/// After the download the bytes are in the system's cache. Call [`File::sync_all`] to write them to the disk. To get
/// either the whole file or the old one, download into a temporary file in the same directory and rename it.
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

/// Sets the length of a file and continues to write at its end. Flushes first: earlier writes may be pending.
async fn cut_to(file: &mut File, length: u64) -> io::Result<()> {
    file.flush().await?;
    file.set_len(length).await?;
    file.seek(io::SeekFrom::Start(length)).await?;
    Ok(())
}

/// Sink that passes a body on to any [`AsyncWrite`], such as a socket, a pipe or an encoder.
///
/// Written bytes cannot be undone. A response that is cut short is therefore resumed if possible; if it would have
/// to restart, the download ends with [`StopReason::NotReplayable`](relent_core::StopReason::NotReplayable). The
/// body of an error response is written, too; use [`RequestBuilder::send`](crate::RequestBuilder::send) to see the
/// status first. The writer is flushed at the end, but not shut down.
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
    /// Creates a sink for this writer.
    #[must_use]
    pub const fn new(writer: W) -> Self {
        Self { writer, written: 0 }
    }

    /// The number of bytes passed to the writer.
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
        // Counted first: after a dropped write it is unknown how many bytes were written.
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
