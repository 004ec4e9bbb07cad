//! The future of a gRPC call.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{HeaderValue, Request, Response};
use http_body::Body;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use pin_project_lite::pin_project;
use relent::clock::Sleeper;
use relent::{GaveUp, Summary};
use relent_core::{GrpcCode, StopReason};
use tower_service::Service;

use super::GrpcAttempts;
use crate::grpc::Peeked;
use crate::headers::{CONTENT_TYPE, GRPC_MESSAGE, GRPC_STATUS};
use crate::layer::{MapBody, ResponseBody, ResponseFuture, ServiceError, Unchanged};
use crate::replay::{BoxError, Reopen, ReplayBody};

/// Characters to percent-encode in `grpc-message`, besides non-ASCII.
const MESSAGE_ESCAPES: &AsciiSet = &CONTROLS.add(b'%');

pin_project! {
    /// The future of a [`GrpcRetryService`](super::GrpcRetryService). It returns a passed deadline as
    /// the gRPC status `DEADLINE_EXCEEDED`.
    #[must_use = "futures do nothing unless awaited"]
    pub struct CallFuture<S, B, R, K, M, N>
    where
        GrpcAttempts<S, K, M>: Service<Request<ReplayBody<B>>>,
        R: Body,
        K: Sleeper,
    {
        // `None` if no time was left for it.
        #[pin]
        call: Option<ResponseFuture<GrpcAttempts<S, K, M>, B, Peeked<R>, K, Unchanged, N>>,
        completed: bool,
        deadline: Option<Duration>,
    }
}

impl<S, B, R, K, M, N> CallFuture<S, B, R, K, M, N>
where
    GrpcAttempts<S, K, M>: Service<Request<ReplayBody<B>>>,
    R: Body,
    K: Sleeper,
{
    pub(super) const fn new(
        call: ResponseFuture<GrpcAttempts<S, K, M>, B, Peeked<R>, K, Unchanged, N>,
        deadline: Option<Duration>,
    ) -> Self {
        Self {
            call: Some(call),
            completed: false,
            deadline,
        }
    }

    /// A call whose time ran out before it started.
    pub(super) const fn too_late() -> Self {
        Self {
            call: None,
            completed: false,
            deadline: None,
        }
    }
}

impl<S, B, R, K, M, N> Future for CallFuture<S, B, R, K, M, N>
where
    S: Service<Request<M::Body>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    B: Body<Error: Into<BoxError>>,
    R: Body<Error: Into<BoxError>> + Unpin,
    K: Sleeper + Clone,
    M: MapBody<B> + Clone,
    N: Reopen<B>,
{
    type Output = Result<Response<ResponseBody<Peeked<R>>>, GaveUp<ServiceError>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Some(call) = this.call.as_pin_mut() else {
            // A mistaken poll after completion returns nothing.
            return match std::mem::replace(this.completed, true) {
                true => Poll::Pending,
                false => Poll::Ready(Ok(deadline_exceeded(&never_sent()))),
            };
        };
        let result = ready!(call.poll(context));
        Poll::Ready(result.or_else(|gave_up| {
            let cut_off = matches!(
                gave_up.error(),
                Some(ServiceError::Timeout(_) | ServiceError::NotReady)
            );
            // A channel with its own timer may have ended the call first.
            let over = this
                .deadline
                .is_some_and(|limit| gave_up.elapsed() >= limit);
            if cut_off || over {
                Ok(deadline_exceeded(&gave_up))
            } else {
                Err(gave_up)
            }
        }))
    }
}

fn never_sent() -> GaveUp<ServiceError> {
    let summary = Summary {
        attempts: 0,
        elapsed: Duration::ZERO,
        reason: Some(StopReason::Deadline),
        ..Summary::default()
    };
    GaveUp::new(None, summary)
}

/// The status of a gRPC client for a call without a response in time.
fn deadline_exceeded<R: Body>(gave_up: &GaveUp<ServiceError>) -> Response<ResponseBody<Peeked<R>>> {
    let mut response = Response::new(ResponseBody::of(Peeked::empty()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, GrpcCode::DeadlineExceeded.number().into());
    let message = gave_up.to_string();
    let message = utf8_percent_encode(&message, MESSAGE_ESCAPES).to_string();
    if let Ok(message) = HeaderValue::try_from(message) {
        headers.insert(GRPC_MESSAGE, message);
    }
    response.extensions_mut().insert(gave_up.summary().clone());
    response
}

impl<S, B, R, K, M, N> fmt::Debug for CallFuture<S, B, R, K, M, N>
where
    GrpcAttempts<S, K, M>: Service<Request<ReplayBody<B>>>,
    R: Body,
    K: Sleeper,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallFuture").finish_non_exhaustive()
    }
}
