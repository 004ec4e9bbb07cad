//! Where the body of a response goes: complete, or as it arrives, but never twice.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use relent_http::{Resumable, Sink};

use super::FetchArgs;
use super::progress::Progress;
use crate::destination::{Destination, NewFile};
use crate::quit::Quit;
use crate::spool::{self, Spool};
use crate::stdout;
use crate::writing::write_all;

/// curl's status for a response that cannot be written.
pub(crate) const UNWRITABLE: i32 = 23;
/// The name of standard output.
const STDOUT: &str = "-";

/// The output of `relent fetch`.
#[derive(Debug)]
pub(crate) struct Output {
    /// For messages.
    name: String,
    to: To,
    /// What is kept back until the body is complete, or may not begin anew any more.
    kept: Spool,
    release: Release,
    /// Whether bytes have left that cannot be called back.
    left: bool,
    stream: bool,
    include: bool,
    progress: Progress,
}

#[derive(Debug)]
enum To {
    /// Standard output, or something that is no regular file.
    Stream(Arc<File>),
    /// A file that appears when it is complete; `None` once it has.
    File(Option<NewFile>),
}

/// When bytes for a stream go out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Release {
    /// When the body is complete.
    Complete,
    /// When there are more than fit in memory: the body can be resumed.
    Resumable,
    /// At once.
    Now,
}

impl Output {
    /// Makes sure that there is a place for the response before anything is sent.
    ///
    /// # Errors
    /// [`UNWRITABLE`] with the reason.
    pub(crate) fn open(args: &FetchArgs) -> Result<Self, Quit> {
        let name = args.output.as_deref().unwrap_or(Path::new(STDOUT));
        let to_stdout = name == Path::new(STDOUT);
        let to = if to_stdout {
            own_stdout().map(To::Stream)
        } else {
            Destination::open(name, ".relent-fetch-").map(|destination| match destination {
                Destination::File(new) => To::File(Some(new)),
                Destination::Special(file) => To::Stream(Arc::new(file)),
            })
        };
        let to = to.map_err(|error| Quit {
            status: UNWRITABLE,
            message: format!("-o {}: cannot be written: {error}", name.display()),
        })?;
        Ok(Self {
            name: display(name),
            progress: Progress::new(args.options.quiet, to_stdout),
            to,
            kept: Spool::default(),
            release: Release::Complete,
            left: false,
            stream: args.stream,
            include: args.include,
        })
    }

    /// Where the response goes, for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The response is complete: lets go of what was kept back, or puts the file in its place.
    ///
    /// # Errors
    /// When it cannot be written after all.
    pub(crate) async fn complete(&mut self) -> io::Result<()> {
        match &mut self.to {
            To::Stream(_) => self.let_go().await,
            To::File(new) => new.take().map_or(Ok(()), NewFile::complete),
        }
    }

    /// The attempt is over: nothing moves any more.
    pub(crate) fn pause(&mut self) {
        self.progress.pause();
    }

    async fn let_go(&mut self) -> io::Result<()> {
        let kept = std::mem::take(&mut self.kept);
        if kept.len() == 0 {
            return Ok(());
        }
        self.on_thread(move |to| {
            let (mut buffer, mut position) = (vec![0; 1 << 16], 0);
            while position < kept.len() {
                let length = kept.read_at(position, &mut buffer)?;
                write_all(to, &buffer[..length])?;
                position += length as u64;
            }
            Ok(())
        })
        .await
    }

    /// Writes on a thread of its own, so that signals are heard while a slow reader blocks it.
    async fn on_thread(
        &mut self,
        write: impl FnOnce(&mut File) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let To::Stream(to) = &self.to else {
            return Ok(());
        };
        self.left = true;
        let mut to = to.try_clone()?;
        tokio::task::spawn_blocking(move || write(&mut to)).await?
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.to {
            To::Stream(_) => self.kept.append(bytes),
            To::File(Some(new)) => new.file().write_all(bytes),
            To::File(None) => Ok(()),
        }
    }
}

impl Sink for Output {
    async fn start(
        &mut self,
        head: &Response<()>,
        resumable: Option<&Resumable>,
    ) -> io::Result<()> {
        self.kept = Spool::default();
        self.release = match (self.stream, resumable.is_some()) {
            (true, _) => Release::Now,
            (false, true) => Release::Resumable,
            (false, false) => Release::Complete,
        };
        if head.status().as_u16() >= 400 {
            // The last attempt, and nothing that belongs in a file.
            if let To::File(_) = self.to {
                self.to = To::Stream(own_stdout()?);
                self.name = display(Path::new(STDOUT));
            }
            self.release = Release::Now;
        }
        if let To::File(Some(new)) = &self.to {
            new.file().set_len(0)?;
            new.file().rewind()?;
        }
        if self.include {
            self.append(&head_bytes(head))?;
        }
        self.progress.start(head);
        Ok(())
    }

    async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        self.progress.advance(bytes.len());
        let streams = matches!(self.to, To::Stream(_));
        let now = match self.release {
            Release::Complete => false,
            Release::Resumable => self.kept.len() + bytes.len() as u64 > spool::MEMORY as u64,
            Release::Now => true,
        };
        if !streams || !now {
            return self.append(&bytes);
        }
        self.release = Release::Now;
        self.let_go().await?;
        self.on_thread(move |to| write_all(to, &bytes)).await
    }

    fn can_start_over(&self) -> bool {
        !self.left
    }
}

fn display(name: &Path) -> String {
    if name == Path::new(STDOUT) {
        "standard output".to_owned()
    } else {
        name.display().to_string()
    }
}

fn own_stdout() -> io::Result<Arc<File>> {
    stdout::duplicate().map(Arc::new)
}

/// The head of a response as HTTP/1 writes it.
fn head_bytes(head: &Response<()>) -> Vec<u8> {
    let mut bytes = format!("{:?} {}", head.version(), head.status().as_u16()).into_bytes();
    if let Some(reason) = head.status().canonical_reason() {
        bytes.push(b' ');
        bytes.extend_from_slice(reason.as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    for (name, value) in head.headers() {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes
}
