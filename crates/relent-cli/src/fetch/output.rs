//! The output of a response body: complete, or as it arrives, but never twice.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, LAST_MODIFIED, LOCATION,
};
use http::{Method, Response};
use indicatif::HumanBytes;
use relent_http::field::http_date;
use relent_reqwest::{Download, Resumable, Sink, is_followed};
use reqwest::Url;

use super::args::FetchArgs;
use super::limits::Limits;
use super::part_file::{EarlierPart, Part, PartSource, SideFile};
use super::progress::{Progress, SharedBar};
use super::write_out::SharedFetchData;
use crate::console::{report, report_error};
use crate::exit_status::ExitError;
use crate::output_file::OutputTarget;
use crate::spool::{self, Spool};
use crate::stdout;
use crate::writing::write_all;

/// curl's status for a response that cannot be written.
pub(crate) const UNWRITABLE: i32 = 23;
/// The name of standard output.
const STDOUT: &str = "-";
const STDERR: &str = "/dev/stderr";

/// The output of `relent fetch`.
pub(crate) struct Output {
    /// For messages.
    name: String,
    to: BodyTarget,
    /// FILE, if it was set aside for a response that is no representation for it.
    file: Option<Part>,
    /// The buffered bytes of a body that is not yet complete, or may still start over.
    kept: Spool,
    release: ReleaseTime,
    /// The most bytes of a body that are buffered.
    most: u64,
    /// Whether bytes were written to a stream, which cannot be undone.
    left: bool,
    stream: bool,
    include: bool,
    /// Whether the body of a failure is discarded.
    fail: bool,
    /// Whether a body that is not for FILE is discarded.
    silent: bool,
    /// The last byte of a body that went to standard error.
    beside: Option<u8>,
    limits: Limits,
    /// Whether the limits apply to the current body: not to that of a failure.
    limited: bool,
    /// Whether FILE gets the time of `Last-Modified`, and that time.
    remote_time: bool,
    modified: Option<SystemTime>,
    /// Whether redirects are followed, so that their bodies are discarded.
    pub(super) follows: bool,
    /// Whether the current body is that of such a redirect.
    skips: bool,
    /// Whether the current response is that of a failed attempt, with any status.
    refused: bool,
    method: Method,
    /// The URL as given, for the side file.
    url: String,
    progress: Progress,
    /// The messages for the end.
    notes: Vec<String>,
    /// The number of body bytes in the last response.
    received: u64,
    /// The data of the last response for `-w`, also if its body is incomplete.
    pub(super) seen: SharedFetchData,
}

#[derive(Debug)]
enum BodyTarget {
    /// Standard output, or a special file.
    Stream(Arc<File>),
    /// A file that appears when it is complete.
    File(Box<FileOutput>),
    /// The body is discarded.
    Nowhere,
}

/// An unfinished file.
#[derive(Debug)]
struct FileOutput {
    part: Part,
    /// FILE itself is resumed, if the server sends the rest.
    copy: bool,
    /// The rest after a part of an earlier call was requested.
    continues: bool,
    /// The file is complete already, or stays unchanged.
    settled: bool,
}

/// The time at which bytes are written to a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ReleaseTime {
    /// When the body is complete.
    Complete,
    /// When the bytes do not fit in memory: the body can be resumed.
    Resumable,
    /// Immediately.
    Now,
}

impl Output {
    /// Opens the output for the response to this request, before anything is sent.
    ///
    /// # Errors
    /// [`UNWRITABLE`] with the reason, or a usage error for a URL that names no file.
    pub(crate) async fn open(
        args: &FetchArgs,
        method: &Method,
        url: &Url,
    ) -> Result<Self, ExitError> {
        let remote = args
            .remote_name
            .then(|| remote_name(url, &args.url))
            .transpose();
        let remote = remote.map_err(ExitError::usage)?;
        let name = args.output.as_deref().or(remote.as_deref().map(Path::new));
        let name = name.unwrap_or(Path::new(STDOUT));
        let to_stdout = name == Path::new(STDOUT) || name == Path::new("/dev/stdout");
        if args.continues() && to_stdout {
            return Err(ExitError::usage(
                "-C: there is no file to resume: use it with -o FILE or -O".to_owned(),
            ));
        }
        if args.continues() && (args.include || *method != Method::GET) {
            return Err(ExitError::usage(
                "-C: only the body of a GET can be resumed, without -i".to_owned(),
            ));
        }
        let to = if to_stdout {
            stdout::duplicate().map(|stdout| BodyTarget::Stream(Arc::new(stdout)))
        } else {
            // Opening a named pipe blocks until it has a reader; on a thread, signals are handled meanwhile.
            let at = name.to_owned();
            let found = tokio::task::spawn_blocking(move || OutputTarget::at(&at)).await;
            let found = found.map_err(io::Error::from).and_then(|found| found);
            found.and_then(|found| match found {
                OutputTarget::File(place) => Part::open(place).map(|part| {
                    BodyTarget::File(Box::new(FileOutput {
                        part,
                        copy: false,
                        continues: false,
                        settled: false,
                    }))
                }),
                OutputTarget::Special(file) => Ok(BodyTarget::Stream(Arc::new(file))),
            })
        };
        let to = to.map_err(|error| ExitError {
            status: UNWRITABLE,
            message: if to_stdout {
                format!("standard output cannot be written: {error}")
            } else {
                format!("-o {}: cannot be written: {error}", name.display())
            },
        })?;
        let mut url = url.clone();
        url.set_fragment(None);
        Ok(Self {
            name: display(name),
            progress: Progress::new(args.says_nothing(), to_stdout && io::stdout().is_terminal()),
            to,
            file: None,
            kept: Spool::default(),
            release: ReleaseTime::Complete,
            most: args.max_buffer,
            left: false,
            stream: args.stream,
            include: args.include || args.head,
            fail: args.fail,
            silent: args.says_nothing(),
            beside: None,
            limits: Limits::new(args.limit_rate, args.max_filesize.filter(|most| *most > 0)),
            limited: false,
            remote_time: args.remote_time,
            modified: None,
            follows: false,
            skips: false,
            refused: false,
            method: method.clone(),
            url: url.into(),
            notes: Vec::new(),
            received: 0,
            seen: SharedFetchData::default(),
        })
    }

    fn arrived(&self, head: &Response<()>) {
        let kind = head.headers().get(CONTENT_TYPE);
        let (status, url) = (head.status().as_u16(), url_of(head));
        self.seen.lock().on_response(status, &url, kind);
    }

    /// Lets `download` resume the part of an earlier call. Returns `None` if the part is complete.
    ///
    /// # Errors
    /// The part cannot be read.
    pub(crate) fn take_up<'c>(
        &mut self,
        download: Download<'c>,
    ) -> io::Result<Option<Download<'c>>> {
        let BodyTarget::File(place) = &mut self.to else {
            return Ok(Some(download));
        };
        Ok(match place.part.earlier(&self.url)? {
            EarlierPart::Complete => {
                place.part.take_up()?;
                None
            }
            EarlierPart::Part(of, length) => {
                place.part.take_up()?;
                place.continues = true;
                Some(match of {
                    PartSource::Named(of) => download.resume(of, length),
                    PartSource::Vouched(total) => download.resume_unchecked(length, total),
                })
            }
            EarlierPart::Other(why) => {
                self.notes.push(format!(
                    "{}.part was not resumed: {why}; the download started over",
                    self.name
                ));
                Some(download)
            }
            EarlierPart::Nothing => match place.part.place().old_len() {
                Some(length) if length > 0 => {
                    (place.copy, place.continues) = (true, true);
                    Some(download.resume_unchecked(length, None))
                }
                _ => Some(download),
            },
        })
    }

    /// The name of the output, for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The number of body bytes in the last response.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Marks further bytes as the response of a failed attempt, which is not for FILE.
    pub(crate) fn refuse(&mut self) {
        self.refused = true;
    }

    /// Takes the messages for the end.
    pub(crate) fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// The number of bytes that stay for a later call, and the name of their file.
    pub(crate) fn left_over(&self) -> Option<(u64, String)> {
        let (length, path) = self.part()?.left()?;
        Some((length, path.display().to_string()))
    }

    /// Whether the response is for a file.
    pub(crate) fn is_file(&self) -> bool {
        self.part().is_some()
    }

    fn part(&self) -> Option<&Part> {
        match &self.to {
            BodyTarget::File(place) if !place.settled => Some(&place.part),
            _ => self.file.as_ref(),
        }
    }

    /// Finishes a complete response: writes the buffered bytes, or replaces FILE.
    ///
    /// # Errors
    /// The output cannot be written after all.
    pub(crate) async fn finish(&mut self) -> io::Result<()> {
        match &mut self.to {
            BodyTarget::Stream(_) => self.let_go().await,
            BodyTarget::Nowhere => Ok(()),
            BodyTarget::File(place) if place.settled => Ok(()),
            // FILE itself was complete already.
            BodyTarget::File(place) if place.copy => {
                place.settled = true;
                self.notes.push(format!(
                    "{} is complete already: it is unchanged",
                    self.name
                ));
                Ok(())
            }
            BodyTarget::File(place) => {
                let file = place.part.try_clone()?;
                let modified = self.modified.take();
                // A slow disk may take long; on a thread, signals are handled meanwhile.
                let synced = tokio::task::spawn_blocking(move || {
                    let dated = modified.map_or(Ok(()), |modified| file.set_modified(modified));
                    // `complete` syncs again, and reports errors.
                    let _ = file.sync_data();
                    dated
                });
                if let Err(error) = synced.await? {
                    let name = &self.name;
                    self.notes
                        .push(format!("-R: {name} keeps its time: {error}"));
                }
                place.settled = true;
                if let Some(lost) = place.part.complete()? {
                    self.notes.push(format!("{}: {lost}", self.name));
                }
                Ok(())
            }
        }
    }

    /// The progress bar, for callers that must clear it.
    pub(crate) fn bar(&self) -> SharedBar {
        self.progress.bar()
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

    /// Writes on its own thread, so that signals are handled while a slow reader blocks it.
    async fn on_thread(
        &mut self,
        write: impl FnOnce(&mut File) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let BodyTarget::Stream(to) = &self.to else {
            return Ok(());
        };
        self.left = true;
        let mut to = to.try_clone()?;
        tokio::task::spawn_blocking(move || write(&mut to)).await?
    }

    /// Whether `more` bytes exceed the buffer, which is reported.
    fn is_full(&self, more: usize) -> bool {
        let full =
            matches!(self.to, BodyTarget::Stream(_)) && self.kept.len() + more as u64 > self.most;
        if full && !self.silent {
            let most = HumanBytes(self.most);
            report_error(&format!(
                "the body exceeds --max-buffer ({most}): it is written as it arrives, and cannot start over"
            ));
        }
        full
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.to {
            BodyTarget::Stream(_) => self.kept.append(bytes),
            BodyTarget::File(place) if !place.settled => place.part.write(bytes),
            BodyTarget::File(_) | BodyTarget::Nowhere => Ok(()),
        }
    }

    /// Sets FILE aside for a response that is not for it.
    fn aside(&mut self, to: BodyTarget) {
        if let BodyTarget::File(place) = std::mem::replace(&mut self.to, to)
            && !place.settled
        {
            self.file = Some(place.part);
        }
    }

    /// Redirects a body that is not for FILE to standard error, or discards it in silent mode. Standard output is for
    /// the output of `-w`.
    fn divert(&mut self) {
        let stderr = io::stderr().as_fd().try_clone_to_owned();
        self.aside(match stderr {
            Ok(stderr) if !self.silent => BodyTarget::Stream(Arc::new(File::from(stderr))),
            _ => BodyTarget::Nowhere,
        });
        self.name = STDERR.to_owned();
        self.beside = matches!(self.to, BodyTarget::Stream(_)).then_some(b'\n');
        self.release = ReleaseTime::Now;
    }

    /// Ends the line on standard error after a body without a final newline.
    pub(crate) fn end_line(&mut self) {
        if self.beside.take().is_some_and(|last| last != b'\n') {
            report("\n");
        }
    }

    /// Begins a response whose body continues at byte `from`. The limits apply if `limited`.
    fn begin(&mut self, head: &Response<()>, from: u64, limited: bool) -> io::Result<()> {
        let modified = head.headers().get(LAST_MODIFIED);
        let modified = modified.filter(|_| self.remote_time);
        self.modified =
            modified.and_then(|date| http_date(date.as_bytes(), SystemTime::now()).ok());
        self.limited = limited;
        let total = length(head).map(|rest| from.saturating_add(rest));
        match limited {
            true => self.limits.begin(from, total),
            false => Ok(()),
        }
    }
}

impl Sink for Output {
    async fn start(
        &mut self,
        head: &Response<()>,
        resumable: Option<&Resumable>,
    ) -> io::Result<()> {
        self.arrived(head);
        self.kept = Spool::default();
        self.received = 0;
        self.release = match (self.stream, resumable.is_some()) {
            (true, _) => ReleaseTime::Now,
            (false, true) => ReleaseTime::Resumable,
            (false, false) => ReleaseTime::Complete,
        };
        let failure = self.refused || head.status().as_u16() >= 400;
        self.skips = self.follows && is_redirect(head);
        if self.skips {
            return Ok(());
        }
        if failure && self.fail {
            self.aside(BodyTarget::Nowhere);
        } else if failure || head.status().is_redirection() {
            // This is the last attempt, and its body is not for a file.
            if let BodyTarget::File(_) = self.to {
                self.divert();
            }
            if failure {
                self.release = ReleaseTime::Now;
            }
        }
        self.begin(head, 0, !failure)?;
        if let BodyTarget::File(place) = &mut self.to {
            place.copy = false;
            if std::mem::take(&mut place.continues) {
                self.notes.push(format!(
                    "the server did not send the rest of {}: the download started over",
                    self.name
                ));
            }
            // A part that begins with a head is no part of the body, so it cannot be resumed.
            let of = resumable.filter(|_| !self.include);
            // The file beside the part does not keep the coding.
            let vouched = !self.include
                && Resumable::allows_ranges(&self.method, head)
                && !head.headers().contains_key(CONTENT_ENCODING);
            let side = SideFile::new(&self.url, of, vouched, length(head));
            place.part.begin(&side)?;
        }
        if self.include {
            self.append(&head_bytes(head))?;
        }
        self.progress.start(length(head));
        Ok(())
    }

    async fn resume(
        &mut self,
        head: &Response<()>,
        from: u64,
        resumable: Option<&Resumable>,
    ) -> io::Result<()> {
        self.arrived(head);
        self.begin(head, from, true)?;
        let total = whole_length(head);
        self.progress.resume(from, total);
        if let BodyTarget::File(place) = &mut self.to {
            place.continues = false;
            let of = resumable.filter(|_| !self.include);
            let side = SideFile::new(&self.url, of, !self.include, total);
            if std::mem::take(&mut place.copy) {
                // A long file takes long; on a thread, signals are handled meanwhile.
                let copy = place.part.take_up_copy(&side, from)?;
                tokio::task::spawn_blocking(copy).await??;
            } else if resumable.is_none() {
                // Several servers sent different validators, so the recorded one is no longer valid.
                place.part.describe(side)?;
            }
        }
        Ok(())
    }

    async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        if self.skips {
            return Ok(());
        }
        self.received += bytes.len() as u64;
        self.progress.advance(bytes.len());
        if let (Some(last), Some(byte)) = (&mut self.beside, bytes.last()) {
            *last = *byte;
        }
        if self.limited {
            self.limits.arrived(bytes.len() as u64)?;
            self.limits.pause().await;
        }
        let streams = matches!(self.to, BodyTarget::Stream(_));
        let now = match self.release {
            ReleaseTime::Complete => self.is_full(bytes.len()),
            ReleaseTime::Resumable => {
                self.kept.len() + bytes.len() as u64 > spool::MAX_MEMORY_BYTES as u64
            }
            ReleaseTime::Now => true,
        };
        if !streams || !now {
            return self.append(&bytes);
        }
        self.release = ReleaseTime::Now;
        self.let_go().await?;
        self.on_thread(move |to| write_all(to, &bytes)).await
    }

    async fn complete(&mut self) -> io::Result<()> {
        if self.skips {
            return Ok(());
        }
        self.finish().await
    }

    async fn no_content(&mut self, head: &Response<()>) -> io::Result<()> {
        self.kept = Spool::default();
        self.received = 0;
        if self.method == Method::HEAD {
            // The head is the requested output.
            self.skips = self.follows && is_redirect(head);
            if self.skips {
                return Ok(());
            }
            let failure = self.refused || head.status().as_u16() >= 400;
            if let BodyTarget::File(_) = self.to
                && (failure || head.status().is_redirection())
            {
                self.divert();
            }
            if let BodyTarget::File(place) = &mut self.to {
                place
                    .part
                    .begin(&SideFile::new(&self.url, None, false, None))?;
            }
            self.append(&head_bytes(head))?;
            return self.finish().await;
        }
        if let BodyTarget::File(_) = &self.to {
            self.aside(BodyTarget::Nowhere);
            let status = head.status().as_u16();
            let what = match status {
                304 => "not modified",
                _ => "no content",
            };
            self.notes.push(format!(
                "status {status}, {what}: {} is unchanged",
                self.name
            ));
        }
        if self.include {
            self.append(&head_bytes(head))?;
        }
        self.finish().await
    }

    fn can_start_over(&self) -> bool {
        !self.left
    }
}

/// The URL that a response came from.
pub(super) fn url_of(head: &Response<()>) -> Url {
    reqwest::Response::from(head.clone().map(|()| ""))
        .url()
        .clone()
}

/// Whether this is a redirect with a Location.
pub(super) fn is_redirect(head: &Response<()>) -> bool {
    is_followed(head.status()) && head.headers().contains_key(LOCATION)
}

/// The last part of the path of a URL, as it was `typed`: a URL has no `é`, but `%C3%A9`.
fn remote_name(url: &Url, typed: &str) -> Result<String, String> {
    let path = typed.split(['?', '#']).next().unwrap_or_default();
    let typed = path.rsplit('/').next().unwrap_or_default();
    let is_same = |typed: &str| {
        let joined = url.join(&format!("./{typed}"));
        joined.is_ok_and(|joined| joined.path() == url.path()) && !typed.contains(char::is_control)
    };
    match url.path().rsplit('/').next() {
        // At the end of a URL, `-` is an ordinary name.
        Some(STDOUT) => Ok(format!("./{STDOUT}")),
        Some("") | None => Err("-O: the URL has no name at its end: use -o FILE".to_owned()),
        Some(_) if is_same(typed) => Ok(typed.to_owned()),
        Some(name) => Ok(name.to_owned()),
    }
}

fn length(head: &Response<()>) -> Option<u64> {
    head.headers()
        .get(CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

/// The length of the whole representation, of which this response has a part.
fn whole_length(head: &Response<()>) -> Option<u64> {
    let range = head.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    range.rsplit('/').next()?.trim().parse().ok()
}

fn display(name: &Path) -> String {
    if name == Path::new(STDOUT) {
        "standard output".to_owned()
    } else {
        name.display().to_string()
    }
}

/// Formats the head of a response as in HTTP/1.
pub(super) fn head_bytes<B>(head: &Response<B>) -> Vec<u8> {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests may")]
    use std::sync::mpsc;
    use std::time::Duration;

    use clap::Parser;
    use tokio::task::spawn_blocking;
    use tokio::time::timeout;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: FetchArgs,
    }

    /// Runs a test with the output to this file, on a runtime with one thread for slow work.
    fn with_output(file: &Path, test: impl AsyncFnOnce(Output)) {
        let url = "http://localhost/large";
        let line = Line::parse_from(["fetch", url, "-o", file.to_str().unwrap()]);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let url = Url::parse(url).unwrap();
            test(Output::open(&line.args, &Method::GET, &url).await.unwrap()).await;
        });
    }

    /// Blocks the thread for slow work, as a slow disk does, until this is dropped.
    fn slow_disk() -> mpsc::Sender<()> {
        let (release, blocked) = mpsc::channel();
        spawn_blocking(move || blocked.recv());
        release
    }

    fn head(status: u16) -> Response<()> {
        let head = Response::builder().status(status);
        head.header(CONTENT_LENGTH, 3).body(()).unwrap()
    }

    #[test]
    fn a_complete_body_is_left_for_another_call_if_its_sync_is_interrupted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        with_output(&file, async |mut output| {
            output.start(&head(200), None).await.unwrap();
            output.write(Bytes::from_static(b"abc")).await.unwrap();
            let _slow = slow_disk();
            let finished = timeout(Duration::ZERO, output.finish()).await;
            assert!(finished.is_err());
            assert_eq!(output.left_over().map(|(length, _)| length), Some(3));
        });
        assert!(!file.exists());
    }

    #[test]
    fn the_copy_of_a_resumed_file_leaves_the_thread_to_signals() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "abc").unwrap();
        with_output(&file, async |mut output| {
            if let BodyTarget::File(place) = &mut output.to {
                place.copy = true;
            }
            let slow = slow_disk();
            let head = head(206);
            {
                let mut resumed = std::pin::pin!(output.resume(&head, 3, None));
                assert!(timeout(Duration::ZERO, &mut resumed).await.is_err());
                drop(slow);
                resumed.await.unwrap();
            }
            assert_eq!(output.left_over().map(|(length, _)| length), Some(3));
        });
    }
}
