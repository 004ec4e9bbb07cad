//! A response body that holds the slot of its request until it ends.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, StatusCode};
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use relent_core::GrpcCode;
use relent_core::admission::Completion;
use relent_http::field::content_length;
use relent_http::grpc;

use super::slots::HeldSlot;

pin_project! {
    /// A response body of the service.
    pub struct SlotBody<B> {
        #[pin]
        inner: B,
        held: Option<HeldSlot>,
        ended: Completion,
        // The rest of the announced length: a server does not read beyond it.
        left: Option<u64>,
    }
}

impl<B: http_body::Body> SlotBody<B> {
    /// Wraps the body of the service with the slot, if any. If the body is not sent (`is_sent`), nothing reads it.
    pub(super) fn new(inner: B, head: &Parts, is_sent: bool, held: Option<HeldSlot>) -> Self {
        // A gRPC status follows in the trailers, after the announced length.
        let announced = match grpc::is_grpc(&head.headers) {
            true => None,
            false => content_length(&head.headers).or(inner.size_hint().exact()),
        };
        let is_over = !is_sent || inner.is_end_stream() || announced == Some(0);
        let mut body = Self {
            inner,
            held,
            ended: ended(head.status, &head.headers),
            left: announced,
        };
        if is_over {
            over(&mut body.held, body.ended);
        }
        body
    }
}

/// Classifies the result of a request by status and header fields or trailers.
fn ended(status: StatusCode, fields: &HeaderMap) -> Completion {
    const TOO_LATE: u16 = GrpcCode::DeadlineExceeded.number();
    match (status, grpc::code(fields)) {
        (_, Some(0)) => Completion::Served,
        (_, Some(TOO_LATE)) => Completion::TooLate,
        (_, Some(code)) if is_fault_of_service(code) => Completion::Failed,
        (StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT, None) => Completion::TooLate,
        (status, None) if status.is_server_error() => Completion::Failed,
        _ => Completion::Served,
    }
}

fn is_fault_of_service(code: u16) -> bool {
    matches!(
        GrpcCode::from_number(code),
        Some(
            GrpcCode::Unknown
                | GrpcCode::ResourceExhausted
                | GrpcCode::Unimplemented
                | GrpcCode::Internal
                | GrpcCode::Unavailable
                | GrpcCode::DataLoss
        )
    )
}

/// Ends the request and frees the slot.
fn over(held: &mut Option<HeldSlot>, ended: Completion) {
    if let Some(held) = held.take() {
        held.ended(ended);
    }
}

impl<B: http_body::Body<Data = Bytes>> http_body::Body for SlotBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.inner.as_mut().poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    *this.ended = match *this.ended {
                        Completion::Served => ended(StatusCode::OK, trailers),
                        told => told,
                    };
                }
                if let (Some(left), Some(data)) = (this.left.as_mut(), frame.data_ref()) {
                    *left = left.saturating_sub(data.len() as u64);
                }
                if this.inner.is_end_stream() || *this.left == Some(0) {
                    over(this.held, *this.ended);
                }
            }
            Some(Err(_)) => over(this.held, Completion::Failed),
            None => over(this.held, *this.ended),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B> std::fmt::Debug for SlotBody<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotBody")
            .field("holds_a_slot", &self.held.is_some())
            .finish_non_exhaustive()
    }
}
