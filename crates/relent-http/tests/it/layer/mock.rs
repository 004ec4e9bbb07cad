//! A service that responds by script, and panics if it is called without being ready.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, HeaderMap, Request, Response, Uri};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use relent_http::BoxError;
use tower::Service;

/// Scripted reaction of the service to a call.
#[derive(Clone, Debug)]
pub(crate) enum MockAnswer {
    /// Reads the request, then responds with this status, these header fields and this body.
    Status(u16, &'static [(&'static str, &'static str)], Reply),
    /// Responds with this status without reading the request.
    Early(u16),
    Fail(io::ErrorKind),
    /// Responds with this status after this time.
    Late(Duration, u16),
    Hang,
}

/// The body of a response: its frames, and whether it then stalls instead of ending.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) frames: VecDeque<Bytes>,
    pub(crate) stalls: bool,
    pub(crate) read: Arc<Mutex<Read>>,
}

/// State of the body of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) frames: usize,
    pub(crate) ended: bool,
    pub(crate) dropped: bool,
}

impl Body for Reply {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let frame = self.frames.pop_front();
        let mut read = self.read.lock().unwrap();
        match frame {
            Some(frame) => {
                read.frames += 1;
                Poll::Ready(Some(Ok(Frame::data(frame))))
            }
            None if self.stalls => Poll::Pending,
            None => {
                read.ended = true;
                Poll::Ready(None)
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.read.lock().unwrap().dropped = true;
    }
}

pub(crate) fn status(status: u16) -> MockAnswer {
    MockAnswer::Status(status, &[], Reply::default())
}

/// A request that the service received.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    pub(crate) uri: Uri,
    pub(crate) extensions: Extensions,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

#[derive(Debug, Default)]
struct Shared {
    answers: VecDeque<MockAnswer>,
    arrived: Vec<Arrived>,
    calls: usize,
    /// Calls whose future has not been dropped, and the maximum of concurrent ones.
    running: usize,
    most: usize,
    /// After the first call, the service never becomes ready again.
    never_ready_again: bool,
}

/// The service. Clones share the script, and must become ready by themselves.
#[derive(Debug)]
pub(crate) struct Mock {
    shared: Arc<Mutex<Shared>>,
    ready: bool,
}

impl Mock {
    /// Creates the service; the last answer repeats.
    pub(crate) fn new(answers: impl IntoIterator<Item = MockAnswer>) -> Self {
        let shared = Shared {
            answers: answers.into_iter().collect(),
            ..Shared::default()
        };
        Self {
            shared: Arc::new(Mutex::new(shared)),
            ready: false,
        }
    }

    pub(crate) fn never_ready_again(self) -> Self {
        self.shared.lock().unwrap().never_ready_again = true;
        self
    }

    pub(crate) fn calls(&self) -> usize {
        self.shared.lock().unwrap().calls
    }

    pub(crate) fn running(&self) -> usize {
        self.shared.lock().unwrap().running
    }

    pub(crate) fn most_at_once(&self) -> usize {
        self.shared.lock().unwrap().most
    }

    pub(crate) fn arrived(&self) -> Vec<Arrived> {
        self.shared.lock().unwrap().arrived.clone()
    }
}

impl Clone for Mock {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            ready: false,
        }
    }
}

struct Running(Arc<Mutex<Shared>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().unwrap().running -= 1;
    }
}

impl<B> Service<Request<B>> for Mock
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Reply>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Reply>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let shared = self.shared.lock().unwrap();
        if shared.never_ready_again && shared.calls > 0 {
            return Poll::Pending;
        }
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        assert!(
            std::mem::take(&mut self.ready),
            "called without being ready"
        );
        let answer = {
            let mut shared = self.shared.lock().unwrap();
            shared.calls += 1;
            shared.running += 1;
            shared.most = shared.most.max(shared.running);
            match shared.answers.len() {
                1 => shared.answers[0].clone(),
                _ => shared.answers.pop_front().unwrap(),
            }
        };
        let running = Running(self.shared.clone());
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let mut arrived = Arrived {
                uri: head.uri,
                extensions: head.extensions,
                body: Bytes::new(),
                trailers: None,
            };
            let mut unread = Some(body);
            if !matches!(answer, MockAnswer::Early(_)) {
                let body = unread.take().unwrap();
                let collected = body.collect().await.map_err(Into::into)?;
                arrived.trailers = collected.trailers().cloned();
                arrived.body = collected.to_bytes();
            }
            running.0.lock().unwrap().arrived.push(arrived);
            let (status, fields, reply) = match answer {
                MockAnswer::Status(status, fields, reply) => (status, fields, reply),
                MockAnswer::Early(status) => (status, [].as_slice(), Reply::default()),
                MockAnswer::Late(time, status) => {
                    tokio::time::sleep(time).await;
                    (status, [].as_slice(), Reply::default())
                }
                MockAnswer::Fail(kind) => return Err(io::Error::from(kind).into()),
                MockAnswer::Hang => std::future::pending().await,
            };
            let mut response = Response::builder().status(status);
            for (name, value) in fields {
                response = response.header(*name, *value);
            }
            Ok(response.body(reply).unwrap())
        })
    }
}
