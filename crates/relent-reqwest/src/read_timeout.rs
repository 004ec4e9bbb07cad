//! Read timeout: the longest silence of a server.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use relent_core::format_duration;
use relent_http::attempt::Upload;
use tokio::time::{Instant, Sleep, sleep};

use crate::attempt_failure::AttemptFailure;
use crate::body::Body;

/// The read timeout of attempts and of response bodies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ReadTimeout {
    /// [`ReadTimeout::DEFAULT`], unless another limit applies.
    #[default]
    Default,
    Never,
    After(Duration),
}

impl ReadTimeout {
    /// The default of `relent fetch`, too.
    pub(crate) const DEFAULT: Duration = Duration::from_secs(60);

    /// The timeout; `None` for the default if `limited` returns that there is another limit.
    pub(crate) fn unless(self, limited: impl FnOnce() -> bool) -> Option<Duration> {
        match self {
            Self::Default => (!limited()).then_some(Self::DEFAULT),
            Self::Never => None,
            Self::After(time) => Some(time),
        }
    }
}

/// Timer for the response head, which ends when the server has been silent for too long. A server that reads the
/// request is not silent.
pub(crate) struct HeadTimeout {
    within: Duration,
    body: Body,
    seen: Upload,
    // Most attempts at a fast server need none. Boxed, because attempts are moved.
    timer: Option<Pin<Box<Sleep>>>,
}

impl HeadTimeout {
    pub(crate) const fn new(within: Duration, body: Body) -> Self {
        Self {
            within,
            body,
            seen: Upload::Taken(0),
            timer: None,
        }
    }

    /// A server has responded with a redirect, and the next request is on its way.
    pub(crate) fn restart(&mut self) {
        self.timer = None;
    }

    /// Polls the timer while there is no head.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Box<AttemptFailure>> {
        let within = self.within;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(within)));
        loop {
            ready!(timer.as_mut().poll(context));
            let upload = self.body.upload();
            if matches!(upload, Upload::Taken(_)) && upload == self.seen {
                return Poll::Ready(AttemptFailure::silent(within));
            }
            self.seen = upload;
            timer.as_mut().reset(deadline_after(within));
        }
    }
}

/// The end of the timeout, 30 years from now if it overflows.
fn deadline_after(within: Duration) -> Instant {
    const OVERFLOW_TIMEOUT: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(within)
        .unwrap_or_else(|| now + OVERFLOW_TIMEOUT)
}

pin_project! {
    /// A response body that fails if its next piece takes too long.
    pub(crate) struct BodyReadTimeout<B> {
        #[pin]
        body: B,
        within: Duration,
        #[pin]
        timer: Option<Sleep>,
        // Whether the timer runs for the next piece.
        timer_running: bool,
    }
}

impl<B> BodyReadTimeout<B> {
    pub(crate) const fn new(body: B, within: Duration) -> Self {
        Self {
            body,
            within,
            timer: None,
            timer_running: false,
        }
    }
}

impl<B> http_body::Body for BodyReadTimeout<B>
where
    B: http_body::Body<Error: Into<relent_http::BoxError>>,
{
    type Data = B::Data;
    type Error = relent_http::BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Self::Error>>> {
        let mut this = self.project();
        if let Poll::Ready(read) = this.body.poll_frame(context) {
            *this.timer_running = false;
            return Poll::Ready(read.map(|read| read.map_err(Into::into)));
        }
        if !*this.timer_running {
            *this.timer_running = true;
            match this.timer.as_mut().as_pin_mut() {
                Some(timer) => timer.reset(deadline_after(*this.within)),
                None => this.timer.set(Some(sleep(*this.within))),
            }
        }
        if let Some(timer) = this.timer.as_pin_mut() {
            ready!(timer.poll(context));
        }
        let text = format!(
            "no byte of the response arrived for {}, its read timeout",
            format_duration(*this.within)
        );
        let error = io::Error::new(io::ErrorKind::TimedOut, text);
        Poll::Ready(Some(Err(error.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
